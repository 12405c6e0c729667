//! Parser of the paper's own format (Active Burst-Buffer, Fig. 4): its users write this text to `/dev/abbfs`, and users of this system write
//! it to `.tidemill/hooks`.
//!
//! ```text
//! </run/*.dat>
//!     op: func
//!     lib_path: /kernels/1000/extremes@1.so
//!     output: extremes/{stem}
//!     cache times: 1
//! <//run/*.dat>
//! ```

use super::{BATCH_FILES_MAX, HookSpec, InputAction, On};
use std::fmt::{self, Display, Formatter};

/// Accepted names of the map function (`op`), in addition to the operation's own name.
const MAPS: [&str; 3] = ["map", "func", "tidemill_map"];
const REDUCE: &str = "reduce";

/// Error of a text that is not in the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct FormatError {
    /// Line, from 1.
    pub line: usize,
    /// Fault in this line, and advice.
    pub what: String,
    /// Whether the text is incomplete and may be continued.
    pub unfinished: bool,
}

/// Section that is being read.
struct PaperSection {
    spec: HookSpec,
    op: Option<String>,
    times: Option<u32>,
    on: Option<On>,
    begun: usize,
}

impl HookSpec {
    /// Reads hooks, each between a line `<PATTERN>` and a line `</PATTERN>`. A section with `op: reduce` belongs to the previous section
    /// with the same pattern, whose output is then reduced.
    ///
    /// # Errors
    /// The first fault, and its line.
    pub fn read_all(text: &str) -> Result<Vec<Self>, FormatError> {
        let mut all: Vec<Self> = Vec::new();
        let mut open: Option<PaperSection> = None;
        let mut last = 0;
        for (line, text) in (1..).zip(text.lines()) {
            last = line;
            let wrong = |what: String| FormatError {
                line,
                what,
                unfinished: false,
            };
            let text = text.trim();
            let marked = text
                .strip_prefix('<')
                .and_then(|text| text.strip_suffix('>'));
            match (open.take(), marked) {
                (None, None) if text.is_empty() || text.starts_with('#') => {}
                (None, None) => {
                    let what =
                        format!("{text:?} stands outside of a section: begin one with <PATTERN>");
                    return Err(wrong(what));
                }
                (None, Some(pattern)) => open = Some(PaperSection::new(pattern, line)),
                (Some(section), Some(end)) => {
                    section.check_end(end).map_err(wrong)?;
                    section.close(&mut all).map_err(wrong)?;
                }
                (Some(mut section), None) => {
                    if !text.is_empty() && !text.starts_with('#') {
                        section.option(text).map_err(wrong)?;
                    }
                    open = Some(section);
                }
            }
        }
        match open {
            None => Ok(all),
            Some(section) => Err(FormatError {
                line: last,
                unfinished: true,
                what: format!(
                    "the section that begins in line {} has no end: write </{}>",
                    section.begun, section.spec.pattern
                ),
            }),
        }
    }
}

impl PaperSection {
    fn new(pattern: &str, begun: usize) -> Self {
        let spec = HookSpec {
            pattern: pattern.to_owned(),
            ..HookSpec::default()
        };
        Self {
            spec,
            op: None,
            times: None,
            on: None,
            begun,
        }
    }

    fn check_end(&self, end: &str) -> Result<(), String> {
        let pattern = &self.spec.pattern;
        let named = end.strip_prefix('/');
        // `</run/a>` also ends a section that begins with `</run/a>`.
        match named == Some(pattern) || (pattern.starts_with('/') && end == pattern) {
            true => Ok(()),
            false => Err(format!(
                "<{end}> does not end <{pattern}>: write </{pattern}>"
            )),
        }
    }

    fn option(&mut self, text: &str) -> Result<(), String> {
        let (key, value) = text
            .split_once(':')
            .ok_or_else(|| format!("{text:?} is not an option: write \"name: value\""))?;
        let (key, value) = (key.trim(), value.trim());
        if value.is_empty() {
            return Err(format!("{key} has no value"));
        }
        let number = |value: &str| {
            let number = value.parse().ok();
            let number = number.filter(|number| (1..=BATCH_FILES_MAX).contains(number));
            number.ok_or_else(|| format!("{key}: give a number from 1 to {BATCH_FILES_MAX}"))
        };
        let spec = &mut self.spec;
        let given = Some(value.to_owned());
        match key {
            "op" => self.op = given,
            "lib_path" => value.clone_into(&mut spec.map),
            "output" => value.clone_into(&mut spec.output),
            "name" => value.clone_into(&mut spec.name),
            "mpi" => {
                spec.mpi = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(format!("mpi: {value:?} is not yes or no")),
                }
            }
            "reduce" => spec.reduce = given,
            "parts" => spec.parts = given,
            "marker" => spec.marker = given,
            "time" => spec.time = given,
            "size" => spec.size = given,
            "cache times" => self.times = Some(number(value)?),
            "group" => spec.group = Some(number(value)?),
            "on" => {
                let on = On::called(value);
                self.on =
                    Some(on.ok_or_else(|| format!("on: {value:?} is not write, seal or group"))?);
            }
            "inputs" => {
                let action = InputAction::called(value);
                spec.inputs = action
                    .ok_or_else(|| format!("inputs: {value:?} is not keep, delete or evict"))?;
            }
            _ => {
                return Err(format!(
                    "option {key:?} does not exist; the options are op, lib_path, output, cache times, name, reduce, parts, group, marker, on, inputs, mpi, time and size"
                ));
            }
        }
        Ok(())
    }

    fn close(mut self, all: &mut Vec<HookSpec>) -> Result<(), String> {
        for (name, value) in [("lib_path", &self.spec.map), ("output", &self.spec.output)] {
            if value.is_empty() {
                return Err(format!(
                    "the section for {} has no {name}",
                    self.spec.pattern
                ));
            }
        }
        match self.op.as_deref() {
            None => {}
            Some(REDUCE) => return self.joins(all),
            Some(op) if MAPS.contains(&op) => {}
            Some(op) => {
                return Err(format!(
                    "op: {op:?} is neither map nor reduce: a function that maps is called func, or tidemill_map"
                ));
            }
        }
        // A number of writes at a time corresponds to the same number of files in this system.
        let times = self.times.filter(|&times| times > 1);
        self.spec.on = self.on.unwrap_or(match times {
            Some(_) => On::Group,
            None => On::Write,
        });
        if self.spec.group.is_none() {
            self.spec.group = times;
        }
        all.push(self.spec);
        Ok(())
    }

    /// Makes this section reduce the output of the matching section before it.
    fn joins(self, all: &mut [HookSpec]) -> Result<(), String> {
        let pattern = &self.spec.pattern;
        let mapped = all.iter_mut().rev();
        let mapped = mapped
            .into_iter()
            .find(|spec| spec.pattern == *pattern && spec.reduce.is_none());
        let Some(mapped) = mapped else {
            return Err(format!(
                "nothing maps {pattern} before this reduce: put a section with op: map before it"
            ));
        };
        mapped.reduce = Some(self.spec.map);
        mapped.parts = Some(std::mem::replace(&mut mapped.output, self.spec.output));
        mapped.marker = mapped.marker.take().or(self.spec.marker);
        mapped.group = mapped.group.or(self.spec.group);
        Ok(())
    }
}

impl Display for HookSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "<{}>", self.pattern)?;
        let mut line = |name: &str, value: &str| writeln!(f, "    {name}: {value}");
        line("op", "map")?;
        line("lib_path", &self.map)?;
        line("output", &self.output)?;
        let group = self.group.map(|files| files.to_string());
        match (self.on, &group) {
            (On::Group, Some(files)) => line("cache times", files)?,
            (On::Write, _) => line("cache times", "1")?,
            _ => {}
        }
        line("on", self.on.word())?;
        if self.mpi {
            line("mpi", "yes")?;
        }
        if let (true, Some(files)) = (self.on != On::Group, &group) {
            line("group", files)?;
        }
        if !self.name.is_empty() {
            line("name", &self.name)?;
        }
        for (name, value) in [
            ("reduce", &self.reduce),
            ("parts", &self.parts),
            ("marker", &self.marker),
            ("time", &self.time),
            ("size", &self.size),
        ] {
            if let Some(value) = value {
                line(name, value)?;
            }
        }
        line("inputs", self.inputs.word())?;
        writeln!(f, "</{}>", self.pattern)
    }
}
