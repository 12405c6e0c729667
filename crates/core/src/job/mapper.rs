//! Mappers that are programs of users: builds the task of such a program, which reads the begin of a file and prints which bytes of the
//! file belong to which pieces. This module does no I/O.

use super::components::{said, setting};
use super::expand::{group_of, text};
use super::path::Named;
use super::{duration, stack};
use crate::script::{Data, Group, Position, Setting, Value};
use crate::time::Span;

/// Prefix of the name of a mapper that is a program.
pub(super) const PROGRAM: &str = "program:";
/// Number of bytes at the begin of its file that the program can read.
pub const HEAD_BYTES: u64 = 1 << 20;
/// Maximum run time of the program; shorter if its task has a shorter limit.
const TIME_MAX: Span = Span::from_secs(60);
/// Maximum size of its output, in bytes.
pub const PRINTED_BYTES_MAX: u64 = 8 << 20;
/// Maximum address space.
const MEMORY: &str = "4GiB";
/// Name of its output for the kernel. It has no name in the cluster.
const OUTPUT: &str = ".tidemill-map";

/// Program that reports the components of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Program and its arguments, in the notation of the script.
    pub words: String,
    /// Full path of the file.
    pub path: String,
    /// Settings of its task except `name` and `output`.
    task: Group,
}

impl Program {
    /// Returns the program that a task of a script names for an input.
    pub(super) fn of(
        task: &Group,
        words: &str,
        (file, size): (&Named, u64),
        at: Position,
    ) -> Result<Self, String> {
        let stages = stack::split(words).map_err(|problem| problem.to_string())?;
        let [one] = &stages[..] else {
            return Err("it is one program, with its arguments".to_owned());
        };
        if size == 0 {
            return Err("the file is empty".to_owned());
        }
        let text = |text: &str| Data::Text(text.to_owned());
        let list = |words: &[String]| {
            let words = words.iter().map(|word| said(word.as_str(), at));
            Data::List(words.collect())
        };
        let mut args = one[1..].to_vec();
        args.push(file.name.clone());
        let head = Group {
            settings: vec![
                setting("file", text(&file.path), at),
                setting(
                    "bytes",
                    Data::Text(format!("0-{}", size.min(HEAD_BYTES) - 1)),
                    at,
                ),
            ],
        };
        let head = Value {
            data: Data::Group(head),
            at,
        };
        let limits = [
            ("time", Data::Integer(seconds(task))),
            ("memory", text(MEMORY)),
            ("output", Data::Integer(PRINTED_BYTES_MAX.cast_signed())),
        ];
        let limits = limits.map(|(name, data)| setting(name, data, at));
        let mut settings = vec![
            setting("kernel", text(&one[0]), at),
            setting("args", list(&args), at),
            setting("input", Data::List(vec![head]), at),
            setting("whole", Data::Boolean(true), at),
            setting("cores", Data::Integer(0), at),
            setting("retries", Data::Integer(1), at),
            setting(
                "limits",
                Data::Group(Group {
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
            task: Group { settings },
        })
    }

    /// Returns a job with one task per program, in order; `script` is the job whose tasks name the programs.
    #[must_use]
    pub fn job<'a>(script: &Group, programs: impl Iterator<Item = &'a Self>) -> Group {
        let at = Position::START;
        let name = script
            .get("name")
            .and_then(|setting| text(&setting.value))
            .unwrap_or_default();
        let task = |(number, program): (usize, &Self)| {
            let output = format!("{OUTPUT}-{number}");
            let mut settings = vec![
                setting("name", Data::Text(format!("mapper {number}")), at),
                setting("stdout", Data::Text(output.clone()), at),
                setting("output", Data::List(vec![said(output, at)]), at),
            ];
            settings.extend(program.task.settings.iter().cloned());
            Value {
                data: Data::Group(Group { settings }),
                at,
            }
        };
        let tasks = Data::List(programs.enumerate().map(task).collect());
        let around = ["workdir", "environment", "path", "directories"];
        let around = around.iter().filter_map(|name| script.get(name).cloned());
        let mut settings: Vec<Setting> = around.collect();
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        settings.insert(0, setting("name", Data::Text(format!("{name}.map")), at));
        settings.push(setting("tasks", tasks, at));
        Group { settings }
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
fn seconds(task: &Group) -> i64 {
    let most = TIME_MAX.0 / 1_000_000_000;
    let limits = task
        .get("limits")
        .and_then(|limits| group_of(&limits.value));
    let time = limits.and_then(|limits| Some(&limits.get("time")?.value.data));
    let given = match time {
        Some(Data::Integer(seconds)) => u64::try_from(*seconds).ok(),
        Some(Data::Text(text)) => duration(text).map(|span| span.0 / 1_000_000_000),
        _ => None,
    };
    given.unwrap_or(most).clamp(1, most).cast_signed()
}
