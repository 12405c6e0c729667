//! Mappers that are programs of users: builds the task of such a program, which reads the beginning of a file and prints which bytes of the file
//! belong to which chunks. This module does no I/O.

use super::expand::{group_of, text};
use super::instances::{setting, string_value};
use super::path::NamedFile;
use super::pipeline;
use super::read::FULL;
use crate::script::{Position, ScriptValue, Setting, SettingGroup, ValueData};
use tidemill_model::quantity;
use tidemill_model::time::Span;

/// Prefix of the name of a mapper that is a program.
pub(super) const PROGRAM: &str = "program:";
/// Number of bytes at the beginning of its file that the program can read.
pub const HEAD_BYTES: u64 = 1 << 20;
/// Maximum run time of the program; shorter if its task has a shorter limit.
const TIME_MAX: Span = Span::from_secs(60);
/// Maximum size of its output, in bytes.
pub const PRINTED_BYTES_MAX: u64 = 8 << 20;
/// Maximum address space.
const MEMORY: &str = "4GiB";
/// Name of its output for the kernel. It has no name in the cluster.
const OUTPUT: &str = ".tidemill-map";

/// Program that reports the task instances of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct MapperProgram {
    /// Program and its arguments, in the notation of the script.
    pub words: String,
    /// Full path of the file.
    pub path: String,
    /// Settings of its task except `name` and `output`.
    task: SettingGroup,
}

impl MapperProgram {
    /// Returns the program that a task of a script names for an input.
    pub(super) fn of(
        task: &SettingGroup,
        words: &str,
        (file, size): (&NamedFile, u64),
        at: Position,
    ) -> Result<Self, String> {
        let stages = pipeline::split(words).map_err(|problem| problem.to_string())?;
        let [one] = &stages[..] else {
            return Err("it is one program, with its arguments".to_owned());
        };
        if size == 0 {
            return Err("the file is empty".to_owned());
        }
        let text = |text: &str| ValueData::Text(text.to_owned());
        let list = |words: &[String]| {
            let words = words.iter().map(|word| string_value(word.as_str(), at));
            ValueData::List(words.collect())
        };
        let mut args = one[1..].to_vec();
        args.push(file.name.clone());
        let head = SettingGroup {
            settings: vec![
                setting("file", text(&file.path), at),
                setting(
                    "bytes",
                    ValueData::Text(format!("0-{}", size.min(HEAD_BYTES) - 1)),
                    at,
                ),
            ],
        };
        let head = ScriptValue {
            data: ValueData::Group(head),
            at,
        };
        let limits = [
            ("time", ValueData::Integer(seconds(task))),
            ("memory", text(MEMORY)),
            (
                "output",
                ValueData::Integer(PRINTED_BYTES_MAX.cast_signed()),
            ),
        ];
        let limits = limits.map(|(name, data)| setting(name, data, at));
        let mut settings = vec![
            setting("kernel", text(&one[0]), at),
            setting("args", list(&args), at),
            setting("input", ValueData::List(vec![head]), at),
            setting("access", ValueData::Text(FULL.to_owned()), at),
            setting("cores", ValueData::Integer(0), at),
            setting("retries", ValueData::Integer(1), at),
            setting(
                "limits",
                ValueData::Group(SettingGroup {
                    settings: limits.to_vec(),
                }),
                at,
            ),
        ];
        let around = ["environment", "path", "directories", "node"];
        settings.extend(around.iter().filter_map(|name| task.get(name).cloned()));
        Ok(Self {
            words: words.to_owned(),
            path: file.path.clone(),
            task: SettingGroup { settings },
        })
    }

    /// Returns a job with one task per program, in order; `script` is the job whose tasks name the programs.
    #[must_use]
    pub fn job<'a>(
        script: &SettingGroup,
        programs: impl Iterator<Item = &'a Self>,
    ) -> SettingGroup {
        let at = Position::START;
        let name = script
            .get("name")
            .and_then(|setting| text(&setting.value))
            .unwrap_or_default();
        let task = |(number, program): (usize, &Self)| {
            let output = format!("{OUTPUT}-{number}");
            let mut settings = vec![
                setting("name", ValueData::Text(format!("mapper {number}")), at),
                setting("stdout", ValueData::Text(output.clone()), at),
                setting(
                    "output",
                    ValueData::List(vec![string_value(output, at)]),
                    at,
                ),
            ];
            settings.extend(program.task.settings.iter().cloned());
            ScriptValue {
                data: ValueData::Group(SettingGroup { settings }),
                at,
            }
        };
        let tasks = ValueData::List(programs.enumerate().map(task).collect());
        let around = ["workdir", "environment", "path", "directories"];
        let around = around.iter().filter_map(|name| script.get(name).cloned());
        let mut settings: Vec<Setting> = around.collect();
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        settings.insert(
            0,
            setting("name", ValueData::Text(format!("{name}.map")), at),
        );
        settings.push(setting("tasks", tasks, at));
        SettingGroup { settings }
    }

    /// Returns a key that identifies it among programs for the same version of its file.
    #[must_use]
    pub fn key(&self) -> String {
        self.task.to_string()
    }
}

/// Number of characters of a job's name in the name of the job of its mappers.
const NAME_CHARS_MAX: usize = 50;

/// Returns the maximum run time of a task's mapper, in seconds.
fn seconds(task: &SettingGroup) -> i64 {
    let most = TIME_MAX.0 / 1_000_000_000;
    let limits = task
        .get("limits")
        .and_then(|limits| group_of(&limits.value));
    let time = limits.and_then(|limits| Some(&limits.get("time")?.value.data));
    let given = match time {
        Some(ValueData::Integer(seconds)) => u64::try_from(*seconds).ok(),
        Some(ValueData::Text(text)) => quantity::duration(text)
            .ok()
            .map(|span| span.0 / 1_000_000_000),
        _ => None,
    };
    given.unwrap_or(most).clamp(1, most).cast_signed()
}
