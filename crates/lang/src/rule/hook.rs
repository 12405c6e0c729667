//! Hooks: rules with map and reduce (Active Burst-Buffer, §III-C and D). A hook defines when files are mapped on the node where they
//! were written, when the results of a batch are reduced to one, and whether the files are kept afterwards. This module only parses and
//! expands hooks.
//!
//! A hook is the setting `hook` of a rule, from which the rule's task is generated; all other properties are those of rules. [`HookSpec`] is a
//! hook in the notation of users, on a command line or in the paper's own format (its Fig. 4). `docs/hooks.md` is the user's page.

mod paper;

pub use paper::FormatError;

use super::RuleProblem;
use crate::job::pipeline;
use crate::script::{Position, ScriptValue, Setting, SettingGroup, ValueData};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Write as _;
use tidemill_model::glob::{self, Pattern};
use tidemill_model::substitute::{self, Template, reference};

/// Time for which files that are mapped together wait for more of them.
const GATHERING: &str = "10s";
/// Maximum number of files in one batch: its reduce reads the results of all.
pub const BATCH_FILES_MAX: u32 = 10_000;
/// Number of closed and unmapped files beyond which maps count as late.
pub const LAG_FILES: u64 = 16;
/// Settings of a hook.
pub(crate) const HOOK_SETTINGS: [&str; 9] = [
    "map", "output", "reduce", "parts", "group", "marker", "on", "inputs", "mpi",
];
/// Variable with a batch's number in the output of a reduce.
const BATCH: &str = "batch";

/// Unit and time of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum On {
    /// Each file as it is written.
    Write,
    /// Each file when it is sealed.
    #[default]
    Seal,
    /// Several files at a time, when they are sealed.
    Group,
}

/// Handling of files after their map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum InputAction {
    /// They are kept.
    #[default]
    Keep,
    /// They are deleted.
    Delete,
    /// They are kept, and evicted from the burst tier as soon as they are stored elsewhere.
    Evict,
}

const ONS: [(On, &str); 3] = [
    (On::Write, "write"),
    (On::Seal, "seal"),
    (On::Group, "group"),
];
const INPUT_ACTIONS: [(InputAction, &str); 3] = [
    (InputAction::Keep, "keep"),
    (InputAction::Delete, "delete"),
    (InputAction::Evict, "evict"),
];

/// Returns the word for a value.
fn word<T: PartialEq>(words: &[(T, &'static str)], value: &T) -> &'static str {
    let found = words.iter().find(|(known, _)| known == value);
    found.map_or("", |(_, word)| word)
}

/// Returns the value for a word.
fn value<T: Copy>(words: &[(T, &'static str)], word: &str) -> Option<T> {
    let found = words.iter().find(|(_, known)| *known == word);
    found.map(|(value, _)| *value)
}

impl On {
    /// Returns the word for the value.
    #[must_use]
    pub fn word(self) -> &'static str {
        word(&ONS, &self)
    }

    /// Returns the value for a word.
    #[must_use]
    pub fn called(word: &str) -> Option<Self> {
        value(&ONS, word)
    }
}

impl InputAction {
    /// Returns the word for the value.
    #[must_use]
    pub fn word(self) -> &'static str {
        word(&INPUT_ACTIONS, &self)
    }

    /// Returns the value for a word.
    #[must_use]
    pub fn called(word: &str) -> Option<Self> {
        value(&INPUT_ACTIONS, word)
    }
}

/// End of a batch.
#[derive(Clone, Debug)]
pub enum BatchEnd {
    /// No matching file is open for writing any more.
    Close,
    /// This number of files has been closed.
    Files(u32),
    /// A file has been closed that matches this pattern.
    Marker(Pattern),
}

/// A rule's hook.
#[derive(Clone, Debug)]
pub struct Hook {
    /// Hook as it was given.
    pub spec: HookSpec,
    /// End of its batches; `None` if there is no reduce.
    pub batches: Option<BatchEnd>,
}

/// Hook in the notation of users.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HookSpec {
    /// Name; if empty, the name of its kernel is used.
    pub name: String,
    /// Absolute pattern of the files, or the regular expression of a rule that has one.
    pub pattern: String,
    /// Kernel of the map, with its arguments.
    pub map: String,
    /// Output of the reduce, or of the map if there is no reduce.
    pub output: String,
    /// Kernel that reduces the results of a batch to one.
    pub reduce: Option<String>,
    /// Output of maps that are reduced; by default in a hidden directory next to the output.
    pub parts: Option<String>,
    /// Number of files in a batch, or of files that are mapped at a time.
    pub group: Option<u32>,
    /// Pattern of files that end a batch.
    pub marker: Option<String>,
    /// Handling of files after their map.
    pub inputs: InputAction,
    /// Time of the map.
    pub on: On,
    /// Whether the map's kernel runs as an MPI process on each node that holds a part of a file. The same applies to the reduce's kernel
    /// if it is a shared object.
    pub mpi: bool,
    /// Longest time of one kernel.
    pub time: Option<String>,
    /// Maximum size of the output of one kernel.
    pub size: Option<String>,
}

fn setting(name: &str, data: ValueData) -> Setting {
    let at = Position::START;
    Setting {
        name: name.to_owned(),
        at,
        value: ScriptValue { data, at },
    }
}

fn text(name: &str, text: impl Into<String>) -> Setting {
    setting(name, ValueData::Text(text.into()))
}

impl HookSpec {
    /// Returns the name of the hook; without a name, this is its kernel's name without directories and extension.
    #[must_use]
    pub fn own_name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let first = self.map.trim_start_matches(['|', ' ']);
        let first = first.split([' ', '|', '\t']).next().unwrap_or_default();
        let last = first.rsplit('/').next().unwrap_or_default();
        let stem = last.split(['.', '@']).next().unwrap_or_default();
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
        let name: String = stem.chars().filter(|c| plain(*c)).collect();
        match name.is_empty() || name.starts_with('-') || name.parse::<u64>().is_ok() {
            true => format!("hook{name}"),
            false => name,
        }
    }

    /// Returns the rule text of the hook.
    #[must_use]
    pub fn rule_text(&self) -> String {
        self.rule_settings().to_string()
    }

    /// Returns the settings of the hook's rule. The directory of the rule contains all files, or is a parent of that directory if results are
    /// stored elsewhere.
    #[must_use]
    pub fn rule_settings(&self) -> SettingGroup {
        let below = self.pattern.trim_matches('/');
        let directory = Pattern::with_names(below).map(|pattern| pattern.directory().to_owned());
        let directory = directory.unwrap_or_default();
        let base: Vec<&str> = components(&directory).collect();
        let mut depth = base.len();
        for name in [Some(&self.output), self.parts.as_ref()]
            .into_iter()
            .flatten()
        {
            if name.starts_with('/') {
                let shared = components(directory_of(name)).zip(&base);
                depth = depth.min(shared.take_while(|(one, other)| one == *other).count());
            }
        }
        // Wildcards stay as they are written, and so do names without wildcards.
        let pattern: Vec<&str> = components(below).skip(depth).collect();
        let absolute = |name: &String| match depth < base.len() && !name.starts_with('/') {
            true => format!("/{}/{name}", substitute::escaped(&directory)),
            false => name.clone(),
        };
        let plain = components(below)
            .take(base.len())
            .collect::<Vec<_>>()
            .join("/");
        let marker = self.marker.as_ref().map(|marker| {
            match depth < base.len() && !marker.starts_with('/') {
                true => format!("/{plain}/{marker}"),
                false => marker.clone(),
            }
        });
        let mut hook = vec![
            text("map", &*self.map),
            text("output", absolute(&self.output)),
        ];
        for (name, value) in [
            ("reduce", self.reduce.clone()),
            ("parts", self.parts.as_ref().map(absolute)),
            ("marker", marker),
        ] {
            hook.extend(value.map(|value| text(name, value)));
        }
        let group = self.group.map(|files| ValueData::Integer(files.into()));
        hook.extend(group.map(|files| setting("group", files)));
        hook.push(text("on", self.on.word()));
        hook.push(text("inputs", self.inputs.word()));
        if self.mpi {
            hook.push(setting("mpi", ValueData::Boolean(true)));
        }
        let mut settings = vec![
            text("name", self.own_name()),
            text("workdir", format!("/{}", base[..depth].join("/"))),
            text("pattern", pattern.join("/")),
            setting("hook", ValueData::Group(SettingGroup { settings: hook })),
        ];
        let limits = [("time", &self.time), ("output", &self.size)];
        let limits = limits
            .into_iter()
            .filter_map(|(name, value)| Some(text(name, value.as_ref()?)));
        let limits: Vec<_> = limits.collect();
        if !limits.is_empty() {
            settings.push(setting(
                "limits",
                ValueData::Group(SettingGroup { settings: limits }),
            ));
        }
        SettingGroup { settings }
    }

    /// Converts names to the form of the command line, where they are relative to the directory that contains all files.
    fn given_in(&mut self, workdir: &str, pattern: &str) {
        let workdir = workdir.trim_end_matches('/');
        self.pattern = match pattern.starts_with('/') {
            true => pattern.to_owned(),
            false => format!("{}/{pattern}", glob::escaped(workdir)),
        };
        let directory = Pattern::with_names(pattern.trim_start_matches('/'));
        if pattern.starts_with('/')
            || directory.is_ok_and(|directory| directory.directory().is_empty())
        {
            return;
        }
        let absolute = |directory: &str, name: &mut String| {
            if !name.starts_with('/') {
                *name = format!("{directory}/{name}");
            }
        };
        let directory = substitute::escaped(workdir);
        absolute(&directory, &mut self.output);
        self.parts
            .iter_mut()
            .for_each(|parts| absolute(&directory, parts));
        let plain = glob::escaped(workdir);
        self.marker
            .iter_mut()
            .for_each(|marker| absolute(&plain, marker));
    }
}

/// Returns the names of a path.
fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// Returns the directory of a name up to its first variable.
fn directory_of(name: &str) -> &str {
    let head = substitute::before_references(name);
    head.rfind('/').map_or("", |at| &head[..=at])
}

/// A problem and its position.
type HookFault = (Position, RuleProblem);

/// Reads the setting `hook` of a rule. Returns the hook, and the rule's settings with the generated task.
pub(super) fn expanded(
    group: &SettingGroup,
) -> Result<Option<(Hook, SettingGroup)>, Vec<HookFault>> {
    let Some(given) = group.get("hook") else {
        return Ok(None);
    };
    let mut wrong = Vec::new();
    for made in ["task", "when", "batch"] {
        if let Some(twice) = group.get(made) {
            let name = made.to_owned();
            let advice = "its hook defines them".to_owned();
            let place = "a rule with a hook";
            wrong.push((
                twice.at,
                RuleProblem::Unknown {
                    place,
                    name,
                    advice,
                },
            ));
        }
    }
    let ValueData::Group(settings) = &given.value.data else {
        let (name, found) = ("hook".to_owned(), given.value.data.kind());
        let expected = "a table with map and output";
        wrong.push((
            given.value.at,
            RuleProblem::Type {
                name,
                expected,
                found,
            },
        ));
        return Err(wrong);
    };
    let value_of = |name: &str| match &group.get(name)?.value.data {
        ValueData::Text(text) => Some(text.clone()),
        _ => None,
    };
    let workdir = value_of("workdir").unwrap_or_default();
    let mut reader = HookReader {
        at: given.value.at,
        workdir: &workdir,
        settings,
        wrong,
    };
    let hook = reader.hook();
    let (Some(mut hook), true) = (hook, reader.wrong.is_empty()) else {
        return Err(reader.wrong);
    };
    hook.spec.name = value_of("name").unwrap_or_default();
    let pattern = value_of("pattern").unwrap_or_default();
    let many = match value_of("regex") {
        Some(regex) => {
            hook.spec.pattern = regex;
            true
        }
        None => {
            hook.spec.given_in(&workdir, &pattern);
            pattern.contains('{') || glob::literal(&pattern).is_none()
        }
    };
    let output = Template::parse(&hook.spec.output);
    if many && hook.batches.is_none() && output.as_literal().is_some() {
        let (name, what) = (
            "output",
            "all files that match would have the same output: put {stem} into it, or {batch}",
        );
        let what = what.to_owned();
        return Err(vec![(given.value.at, RuleProblem::Value { name, what })]);
    }
    let group = hook.expanded(group, given.value.at);
    Ok(Some((hook, group)))
}

struct HookReader<'a> {
    at: Position,
    workdir: &'a str,
    settings: &'a SettingGroup,
    wrong: Vec<HookFault>,
}

impl HookReader<'_> {
    fn text(&mut self, name: &'static str) -> Option<String> {
        let value = &self.settings.get(name)?.value;
        if let ValueData::Text(text) = &value.data {
            return Some(text.clone());
        }
        let (found, expected) = (value.data.kind(), "a string");
        let name = name.to_owned();
        self.wrong.push((
            value.at,
            RuleProblem::Type {
                name,
                expected,
                found,
            },
        ));
        None
    }

    fn needed(&mut self, name: &'static str, example: &'static str) -> Option<String> {
        if self.settings.get(name).is_none() {
            let name = format!("setting \"{name}\"");
            self.wrong
                .push((self.at, RuleProblem::Missing(name, example)));
        }
        self.text(name)
    }

    fn value(&mut self, name: &'static str, what: impl Into<String>) {
        let at = self.settings.get(name).map_or(self.at, |one| one.value.at);
        let what = what.into();
        self.wrong.push((at, RuleProblem::Value { name, what }));
    }

    fn one_of<T: Copy + Default>(&mut self, name: &'static str, words: &[(T, &'static str)]) -> T {
        let Some(given) = self.text(name) else {
            return T::default();
        };
        value(words, &given).unwrap_or_else(|| {
            let known: Vec<_> = words.iter().map(|(_, word)| format!("{word:?}")).collect();
            self.value(
                name,
                format!("{given:?} does not exist: give {}", known.join(", ")),
            );
            T::default()
        })
    }

    fn group(&mut self) -> Option<u32> {
        let given = match self.settings.get("group")?.value.data {
            ValueData::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        };
        let files = given.filter(|files| (1..=BATCH_FILES_MAX).contains(files));
        if files.is_none() {
            self.value(
                "group",
                format!("give a number of files from 1 to {BATCH_FILES_MAX}"),
            );
        }
        files
    }

    fn boolean(&mut self, name: &'static str) -> bool {
        match self.settings.get(name).map(|one| &one.value.data) {
            None => false,
            Some(ValueData::Boolean(value)) => *value,
            Some(_) => {
                self.value(name, "give true or false");
                false
            }
        }
    }

    fn kernel(&mut self, name: &'static str, kernel: &str, mpi: bool) {
        if mpi && !is_object(kernel) {
            let what = "with mpi it must be one shared object of your own: \"/lib/extremes.so\"";
            return self.value(name, what);
        }
        if let Err(problem) = pipeline::split(&as_pipeline(kernel)) {
            self.value(name, problem.to_string());
        }
    }

    fn hook(&mut self) -> Option<Hook> {
        for one in &self.settings.settings {
            if !HOOK_SETTINGS.contains(&one.name.as_str()) {
                let (place, name) = ("\"hook\"", one.name.clone());
                let advice = super::advice(&name, &HOOK_SETTINGS);
                self.wrong.push((
                    one.at,
                    RuleProblem::Unknown {
                        place,
                        name,
                        advice,
                    },
                ));
            }
        }
        let map = self.needed(
            "map",
            "the kernel that is run on each file, as in map = \"max dtype=f32\"",
        );
        let output = self.needed(
            "output",
            "the output of map, as in output = \"max/{stem}.txt\"",
        );
        let spec = HookSpec {
            map: map?,
            output: output?,
            reduce: self.text("reduce"),
            parts: self.text("parts"),
            marker: self.text("marker"),
            group: self.group(),
            on: self.one_of("on", &ONS),
            inputs: self.one_of("inputs", &INPUT_ACTIONS),
            mpi: self.boolean("mpi"),
            ..HookSpec::default()
        };
        self.kernel("map", &spec.map, spec.mpi);
        if let Some(reduce) = &spec.reduce {
            self.kernel("reduce", reduce, false);
        }
        let batches = self.batches(&spec);
        self.makes_sense(&spec);
        Some(Hook { spec, batches })
    }

    fn batches(&mut self, spec: &HookSpec) -> Option<BatchEnd> {
        let within = format!("{}/", glob::escaped(self.workdir.trim_end_matches('/')));
        let below = |marker: &String| match marker.strip_prefix(&within) {
            None if marker.starts_with('/') => {
                Err(format!("it is absolute and not below {within}"))
            }
            below => {
                let found = Pattern::new(below.unwrap_or(marker));
                found.map_err(|error| error.to_string())
            }
        };
        let marker = match spec.marker.as_ref().map(below) {
            Some(Err(why)) => {
                self.value("marker", why);
                None
            }
            marker => marker.and_then(Result::ok),
        };
        spec.reduce.as_ref()?;
        let files = spec.group.filter(|_| spec.on != On::Group);
        Some(match (marker, files) {
            (Some(marker), _) => BatchEnd::Marker(marker),
            (None, Some(files)) => BatchEnd::Files(files),
            (None, None) => BatchEnd::Close,
        })
    }

    /// Checks that the settings fit together.
    fn makes_sense(&mut self, spec: &HookSpec) {
        let reduces = spec.reduce.is_some();
        if spec.on == On::Group && spec.group.is_none() {
            self.value("on", "set how many files are mapped at a time: group = 10");
        }
        if spec.group.is_some() && spec.on != On::Group && !reduces {
            self.value("group", "it is the number of files of a batch, and there is no reduce; on = \"group\" maps that many files at a time");
        }
        if spec.marker.is_some() && !reduces {
            self.value("marker", "it ends a batch, and there is no reduce");
        }
        if spec.marker.is_some() && spec.group.is_some() && spec.on != On::Group {
            self.value(
                "marker",
                "a batch ends by a marker or by a number of files: leave one of them out",
            );
        }
        if spec.parts.is_some() && !reduces {
            self.value("parts", "it is the input of reduce, and there is no reduce");
        }
        // A reduce has no single input file whose name could be used.
        let output = Template::parse(&spec.output);
        for name in output.references().filter(|name| reduces && *name != BATCH) {
            let batch = reference(BATCH);
            self.value("output", format!("{{{name}}} has no meaning in the output of a reduction; use {batch}, or write {{{{{name}}}}} for the text {{{name}}}"));
        }
    }
}

/// Returns the kernel text of a map, under which its run times are kept.
#[must_use]
pub fn kernel_of(map: &str) -> String {
    as_pipeline(map)
}

/// Returns whether a kernel is a single shared object of a user without arguments.
fn is_object(kernel: &str) -> bool {
    let mut words = kernel.split_ascii_whitespace();
    words.next().is_some_and(|name| name.ends_with(".so")) && words.next().is_none()
}

/// Returns a kernel with its arguments as a pipeline, even of one stage: its programs read standard input.
fn as_pipeline(kernel: &str) -> String {
    format!("| {kernel}")
}

/// Returns a kernel of a script, with the names of inputs instead of `{inputs}`.
pub(super) fn with_inputs(kernel: &str, names: &[&str]) -> String {
    let Ok(stages) = pipeline::split(kernel) else {
        return kernel.to_owned();
    };
    let inputs = reference(substitute::INPUTS);
    if !stages.iter().flatten().any(|word| *word == inputs) {
        return kernel.to_owned();
    }
    let mut out = String::from("|");
    for (index, stage) in stages.iter().enumerate() {
        if index > 0 {
            out.push_str(" |");
        }
        let words = stage.iter().flat_map(|word| match *word == inputs {
            true => names.to_vec(),
            false => vec![word.as_str()],
        });
        words.for_each(|word| quote(&mut out, word));
    }
    out
}

/// Adds a word of a pipeline and quotes it, so that it stays one word.
fn quote(out: &mut String, word: &str) {
    let plain = word.replace('\\', "\\\\").replace('"', "\\\"");
    let _ = write!(out, " \"{plain}\"");
}

impl Hook {
    /// Returns the output of maps.
    fn mapped(&self) -> String {
        let HookSpec {
            output,
            parts,
            name,
            ..
        } = &self.spec;
        if self.batches.is_none() {
            return output.clone();
        }
        parts
            .clone()
            .unwrap_or_else(|| format!("{}.{name}/{}", directory_of(output), reference(BATCH)))
    }

    /// Returns the settings of a rule with the task of the hook.
    fn expanded(&self, group: &SettingGroup, at: Position) -> SettingGroup {
        let mut settings: Vec<_> = group
            .settings
            .iter()
            .filter(|one| one.name != "hook")
            .cloned()
            .collect();
        let add = |to: &mut Vec<Setting>, name: &str, data: ValueData| {
            to.push(Setting {
                name: name.to_owned(),
                at,
                value: ScriptValue { data, at },
            });
        };
        let mut task = Vec::new();
        let mpi = self.spec.mpi;
        let kernel = match mpi {
            true => self.spec.map.trim().to_owned(),
            false => as_pipeline(&self.spec.map),
        };
        add(&mut task, "kernel", ValueData::Text(kernel));
        let output = ScriptValue {
            data: ValueData::Text(self.mapped()),
            at,
        };
        add(&mut task, "output", ValueData::Array(vec![output]));
        let grouped = self.spec.on == On::Group;
        if grouped {
            let files = self.spec.group.unwrap_or(1);
            let batch = vec![
                setting("files", ValueData::Integer(files.into())),
                text("after", GATHERING),
            ];
            add(
                &mut settings,
                "batch",
                ValueData::Group(SettingGroup { settings: batch }),
            );
        } else if mpi {
            let input = ValueData::Text(reference("path"));
            let input = ScriptValue { data: input, at };
            add(&mut task, "input", ValueData::Array(vec![input]));
        } else {
            add(&mut task, "stdin", ValueData::Text(reference("file")));
        }
        if mpi {
            add(&mut task, "mpi", ValueData::Boolean(true));
        }
        if group.get("policy").is_none() {
            // A mapped file does not leave the node where it was written.
            add(
                &mut settings,
                "policy",
                ValueData::Text("input-locality".into()),
            );
        }
        if self.spec.on == On::Write {
            add(&mut settings, "when", ValueData::Text("streaming".into()));
        }
        add(
            &mut settings,
            "task",
            ValueData::Group(SettingGroup { settings: task }),
        );
        SettingGroup { settings }
    }

    /// Returns the task that reduces the results of a batch.
    pub(super) fn reducing(
        &self,
        (name, workdir): (String, &str),
        batch: u64,
        parts: &[String],
    ) -> Option<SettingGroup> {
        let kernel = self.spec.reduce.as_ref()?;
        let below = format!("{}/", workdir.trim_end_matches('/'));
        let seen = |part: &'_ String| -> String {
            let inside = part.strip_prefix(&below);
            inside
                .unwrap_or_else(|| part.rsplit('/').next().unwrap_or_default())
                .to_owned()
        };
        let names: Vec<String> = parts.iter().map(seen).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let at = Position::START;
        let list = |all: Vec<String>| {
            let all = all.into_iter().map(ValueData::Text);
            let all = all.map(|data| ScriptValue { data, at });
            ValueData::Array(all.collect())
        };
        let batch = batch.to_string();
        let known = |name: &str| (name == BATCH).then_some(Cow::Borrowed(batch.as_str()));
        let output = Template::parse(&self.spec.output).fill(known);
        let inputs = parts.iter().map(|part| glob::escaped(part));
        let mpi = self.spec.mpi && is_object(kernel);
        let kernel = match mpi {
            true => kernel.trim().to_owned(),
            false => with_inputs(&as_pipeline(kernel), &names),
        };
        let mut settings = vec![
            text("name", name),
            text("kernel", kernel),
            setting("input", list(inputs.collect())),
            setting("output", list(vec![output.to_string()])),
        ];
        if mpi {
            settings.push(setting("mpi", ValueData::Boolean(true)));
        }
        Some(SettingGroup { settings })
    }
}

/// Compares names of files; numbers in names are compared as numbers.
#[must_use]
pub fn file_order(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one, other);
    loop {
        let (digits, others) = (number_of(left), number_of(right));
        let order = match (digits.is_empty(), others.is_empty()) {
            (false, false) => {
                let (plain, others) = (
                    digits.trim_start_matches('0'),
                    others.trim_start_matches('0'),
                );
                plain
                    .len()
                    .cmp(&others.len())
                    .then_with(|| plain.cmp(others))
            }
            _ => match (left.chars().next(), right.chars().next()) {
                (Some(first), Some(second)) => first.cmp(&second),
                (None, None) => return one.cmp(other),
                (first, second) => return first.cmp(&second),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
        let step = |text: &str, digits: usize| match digits {
            0 => text.chars().next().map_or(0, char::len_utf8),
            digits => digits,
        };
        left = &left[step(left, digits.len())..];
        right = &right[step(right, others.len())..];
    }
}

/// Returns the digits at the beginning of a text.
fn number_of(text: &str) -> &str {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests;
