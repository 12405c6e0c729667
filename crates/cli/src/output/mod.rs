//! Results of commands: each is a struct whose serialisation is the output of `--json`, with a text for people.
//!
//! [`Output`] prints only types of the list in [`registry`], so every JSON output has a schema in `docs/json-output.schema.json`.

pub(crate) mod apps;
pub(crate) mod atomic_file;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod energy;
pub(crate) mod explain;
pub(crate) mod files;
pub(crate) mod find;
pub(crate) mod health;
pub(crate) mod inspect;
pub(crate) mod job;
pub(crate) mod kernel;
pub(crate) mod lineage;
pub(crate) mod messages;
pub(crate) mod node;
pub(crate) mod places;
pub(crate) mod plan;
pub(crate) mod prov;
pub(crate) mod reduce;
pub(crate) mod registry;
pub(crate) mod remote;
pub(crate) mod report;
pub(crate) mod rule;
pub(crate) mod stage;
pub(crate) mod stat;
pub(crate) mod table;
pub(crate) mod token;
pub(crate) mod workspace;

pub(crate) use registry::Registered;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
pub(crate) use table::{Row, Text, UnknownColumn};
use tidemill_model::display;

/// Declares structs of the JSON output. With `from`, a struct is made from a message of the protocol, with `new` from arguments;
/// a field without a value has that of the same name.
macro_rules! records {
    (@one $(#[$meta:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, serde::Serialize, schemars::JsonSchema)]
        pub(crate) struct $name { $($(#[$of_field])* pub(crate) $field: $type,)* }
    };
    (@one $(#[$meta:meta])* $name:ident from $of:ident: $from:ty { $($(#[$of_field:meta])* $field:ident: $type:ty $(= $value:expr)?),* $(,)? }) => {
        $crate::output::records! { @one $(#[$meta])* $name { $($(#[$of_field])* $field: $type),* } }

        impl From<&$from> for $name {
            fn from($of: &$from) -> Self {
                Self { $($field: $crate::output::records!(@value $of $field $($value)?),)* }
            }
        }
    };
    (@one $(#[$meta:meta])* $name:ident new($($arg:ident: $arg_type:ty),*) { $($(#[$of_field:meta])* $field:ident: $type:ty $(= $value:expr)?),* $(,)? }) => {
        $crate::output::records! { @one $(#[$meta])* $name { $($(#[$of_field])* $field: $type),* } }

        impl $name {
            pub(crate) fn new($($arg: $arg_type),*) -> Self {
                Self { $($field: $crate::output::records!(@argument $field $($value)?),)* }
            }
        }
    };
    (@argument $field:ident) => { $field };
    (@argument $field:ident $value:expr) => { $value };
    (@value $of:ident $field:ident) => { $crate::output::same(&$of.$field) };
    (@value $of:ident $field:ident $value:expr) => { $value };
    ($($(#[$meta:meta])* $name:ident $(new($($arg:tt)*))? $(from $of:ident: $from:ty)? { $($body:tt)* })*) => {
        $($crate::output::records! { @one $(#[$meta])* $name $(new($($arg)*))? $(from $of: $from)? { $($body)* } })*
    };
}
pub(crate) use records;

/// Result of a command.
pub(crate) trait Report: Registered {
    /// Writes the text for people.
    fn text(&self, out: &mut Text);
}

/// Result with one sentence for people; an empty sentence is not printed.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
pub(crate) struct Message<T>(#[serde(skip)] pub(crate) String, pub(crate) T);

impl<T: Registered> Registered for Message<T> {
    const COMMANDS: &'static [&'static str] = T::COMMANDS;
}

impl<T: Registered> Report for Message<T> {
    fn text(&self, out: &mut Text) {
        if !self.0.is_empty() {
            writeln!(out, "{}", self.0.trim_end_matches('\n'));
        }
    }
}

/// Converts a field of a message of the protocol.
pub(crate) fn same<A: Clone + Into<B>, B>(value: &A) -> B {
    value.clone().into()
}

/// Converts a list.
pub(crate) fn list<'a, A: 'a, B: From<&'a A>>(all: impl IntoIterator<Item = &'a A>) -> Vec<B> {
    all.into_iter().map(B::from).collect()
}

/// Converts an optional value.
pub(crate) fn maybe<'a, A, B: From<&'a A>>(value: &'a Option<A>) -> Option<B> {
    value.as_ref().map(B::from)
}

/// Returns a value that the protocol leaves out by 0 or an empty text.
pub(crate) fn given<A: Clone + Default + PartialEq + Into<B>, B>(value: &A) -> Option<B> {
    (*value != A::default()).then(|| value.clone().into())
}

/// Returns a map in the order of its keys.
pub(crate) fn sorted<'a, V: Clone + 'a>(
    map: impl IntoIterator<Item = (&'a String, &'a V)>,
) -> BTreeMap<String, V> {
    let map = map.into_iter();
    map.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Returns the text of an optional value; `-` without a value.
pub(crate) fn dash<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "-".to_owned(), T::to_string)
}

/// Returns bytes of an untrusted name as one line.
pub(crate) fn shown(name: &[u8]) -> String {
    display::line(&String::from_utf8_lossy(name))
}

/// Joins texts by `, `.
pub(crate) fn joined<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| one.to_string()).collect();
    all.join(", ")
}

/// Printer of results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output {
    /// Whether results are printed as JSON.
    pub(crate) json: bool,
    /// Columns of tables, in order; empty for all.
    pub(crate) columns: Vec<String>,
    /// Command, such as `job list`; empty in tests.
    pub(crate) command: String,
}

impl Output {
    /// Prints a result.
    ///
    /// # Errors
    /// If standard output can't be written, or the tables lack a requested column.
    pub(crate) fn show<R: Report>(&self, report: &R) -> anyhow::Result<()> {
        self.print(report, serde_json::to_string_pretty)
    }

    /// Prints the result of a command that has succeeded.
    ///
    /// # Errors
    /// As [`Self::show`].
    pub(crate) fn finish<R: Report>(&self, report: &R) -> anyhow::Result<ExitCode> {
        self.show(report).map(|()| ExitCode::SUCCESS)
    }

    /// Prints one step of a continuous output: one line in JSON.
    ///
    /// # Errors
    /// If standard output can't be written, or the tables lack a requested column.
    pub(crate) fn step<R: Report>(&self, report: &R) -> anyhow::Result<()> {
        self.print(report, serde_json::to_string)
    }

    fn print<R: Report>(
        &self,
        report: &R,
        json: fn(&R) -> serde_json::Result<String>,
    ) -> anyhow::Result<()> {
        debug_assert!(
            self.command.is_empty() || registry::prints(R::COMMANDS, &self.command),
            "`{}` is not among the commands of {} in the list of output types",
            self.command,
            std::any::type_name::<R>()
        );
        let printed = match self.json {
            true => harmless(&json(report)?) + "\n",
            // Names and messages may come from untrusted users: control sequences for the terminal are not printed.
            false => display::lines(&Text::of(report, &self.columns)?),
        };
        let mut out = io::stdout().lock();
        out.write_all(printed.as_bytes())?;
        Ok(out.flush()?)
    }
}

/// Escapes the control characters that JSON itself allows (from U+007F on); the value stays the same.
fn harmless(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c >= '\u{7f}' && c.is_control() {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// Returns a path or name of this machine in its JSON form: [`display::escaped`].
pub(crate) fn exact(path: impl AsRef<OsStr>) -> String {
    display::escaped(path.as_ref().as_bytes())
}

/// Returns the text of a report, for tests.
#[cfg(test)]
pub(crate) fn text_of(report: &impl Report) -> String {
    Text::of(report, &[]).expect("all columns are known")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn harmless_json_keeps_value_and_escapes_control_characters() {
        let value = serde_json::json!({ "name": "a\u{9b}2J\x1b[1m\u{7f}ä" });
        for text in [format!("{value:#}"), value.to_string()] {
            let text = harmless(&text);
            assert!(!text.replace('\n', "").contains(char::is_control), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
