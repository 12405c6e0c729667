//! Parser and printer of job files: converts libconfig or TOML to a tree of values with their lines and columns.
//!
//! Both forms have the same tree, which is that of libconfig. [`TextForm`] tells them apart. This module knows only the syntax; [`crate::job`] defines the meaning of settings. It reads no files: `@include` is refused, and the
//! caller passes the text with the name to use in errors.

mod form;
pub(crate) mod from_toml;
mod parse;
mod position;
mod print;
mod to_toml;

pub use form::{ErrorNames, TextForm, parse};
pub(crate) use position::Positions;

use tidemill_model::similar_names::did_you_mean;
use tidemill_model::substitute::Template;

/// Maximum nesting depth of groups, lists and arrays.
pub const MAX_DEPTH: u32 = 32;
/// Longest script, in bytes.
pub const MAX_SCRIPT_BYTES: usize = 32 << 20;

/// Position in a script. Positions are ordered as in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl Position {
    /// Position of the first character.
    pub const START: Self = Self { line: 1, column: 1 };
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Value and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptValue {
    /// Data of the value.
    pub data: ValueData,
    /// Position of its first character.
    pub at: Position,
}

/// Data of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueData {
    /// `true` or `false`, in any case.
    Boolean(bool),
    /// Decimal, hexadecimal (`0x`), octal (`0o`) or binary (`0b`), with or without the suffix `L`.
    Integer(i64),
    /// A finite number with a point or an exponent.
    Float(f64),
    /// Text; adjacent strings have been joined, and escapes replaced.
    Text(String),
    /// Text with references, in the settings of a task whose references are being replaced. Parsers return no such values.
    Template(Template),
    /// `[ … ]`: plain values of one type.
    Array(Vec<ScriptValue>),
    /// `( … )`: values of any type.
    List(Vec<ScriptValue>),
    /// `{ … }`: settings.
    Group(SettingGroup),
}

impl ValueData {
    /// Returns the name of the type in errors.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Boolean(_) => "a boolean",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) | Self::Template(_) => "a string",
            Self::Array(_) | Self::List(_) => "an array",
            Self::Group(_) => "a table",
        }
    }

    /// Returns whether the value contains no other values.
    fn is_plain(&self) -> bool {
        !matches!(self, Self::Array(_) | Self::List(_) | Self::Group(_))
    }
}

/// Settings in the order of the script, each name once.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SettingGroup {
    /// The settings.
    pub settings: Vec<Setting>,
}

impl SettingGroup {
    /// Returns the setting with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

/// `name = value;`
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Name of the setting.
    pub name: String,
    /// Position of the name.
    pub at: Position,
    /// Value of the setting.
    pub value: ScriptValue,
}

/// Error of a script that is not in its form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{at}: {problem}")]
pub struct ScriptError {
    /// Name of the script, as the caller gave it.
    pub file: String,
    /// Position of the error.
    pub at: Position,
    /// Problem.
    pub problem: ScriptProblem,
}

/// Problem in a script's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptProblem {
    /// Another token is expected here.
    #[error("expected {what}, found {found}")]
    Expected {
        /// Expected token.
        what: String,
        /// Token in the text.
        found: String,
    },
    /// A bracket is never closed.
    #[error("this '{open}' is never closed: expected '{close}' before {found}")]
    Unclosed {
        /// Opening bracket.
        open: char,
        /// Missing bracket.
        close: char,
        /// Token at the position of the missing bracket.
        found: String,
    },
    /// A string is not closed before the end of the script.
    #[error("this string is never closed: expected '\"' before the end of the script")]
    UnclosedText,
    /// A comment is not closed before the end of the script.
    #[error("this comment is never closed: expected '*/' before the end of the script")]
    UnclosedComment,
    /// `\x` is not followed by two hexadecimal digits below 80.
    #[error(
        "expected two hexadecimal digits from 00 to 7f after '\\x'; write other characters as they are"
    )]
    Escape,
    /// A word is not a number.
    #[error("{0:?} is not a number; write text in quotes")]
    Number(String),
    /// A number is too large.
    #[error("{0} does not fit in a 64-bit number")]
    Range(String),
    /// An array contains values of several types.
    #[error(
        "an array holds plain values of one type: expected {expected}, found {found}; use a list ( … ) to mix them"
    )]
    Mixed {
        /// Type of the first value.
        expected: &'static str,
        /// Type of this value.
        found: &'static str,
    },
    /// A group contains the same name twice.
    #[error("setting \"{name}\" is given twice, first at {first}; remove one")]
    Twice {
        /// Name of the setting.
        name: String,
        /// Position of the first setting.
        first: Position,
    },
    /// The script contains `@include`.
    #[error("@include is not allowed in a job file; put the text itself here")]
    Include,
    /// Groups, lists and arrays are nested too deeply.
    #[error("groups, lists and arrays lie more than {MAX_DEPTH} deep in each other")]
    Depth,
    /// The script is too long.
    #[error("the script has {0} bytes; the most is {MAX_SCRIPT_BYTES}; split the job")]
    Length(usize),
    /// The script is not text.
    #[error("the script is not UTF-8 text")]
    Encoding,
    /// The script is not TOML.
    #[error("the script is not TOML: {0}")]
    Toml(String),
    /// A table of a TOML script does not exist.
    #[error("a job file has no \"{name}\" outside of its tables{} may have: {valid}", did_you_mean(.nearest.as_deref()))]
    Table {
        /// Name of the table or setting.
        name: String,
        /// Table that was probably meant.
        nearest: Option<String>,
        /// All valid tables.
        valid: String,
    },
    /// A table of a TOML script has another type.
    #[error("\"{name}\" should be a table [{name}]; its type is {found}")]
    TableType {
        /// Name of the table.
        name: &'static str,
        /// Type of the value.
        found: &'static str,
    },
    /// The table `[on]` does not have this setting.
    #[error("[on] has no setting \"{name}\"{} may have: {valid}", did_you_mean(.nearest.as_deref()))]
    OnSetting {
        /// Name of the setting.
        name: String,
        /// Setting that was probably meant.
        nearest: Option<String>,
        /// All valid settings.
        valid: String,
    },
    /// The table `[on]` has no pattern of files.
    #[error("[on] needs the setting \"files\", as in files = \"run-*/*.nc\", or \"regex\"")]
    OnFiles,
    /// A rule has several tasks.
    #[error("a rule has one task: leave out this one, or make it a rule of its own")]
    RuleTasks,
    /// The event of the table `[on]` does not exist.
    #[error("event {0:?} does not exist; it may be \"closed\" or \"writing\"")]
    Event(String),
    /// The name of a setting can't be expressed in libconfig.
    #[error(
        "{0:?} can't be the name of a setting: give letters, digits, '-', '_', '*' or '.', and a letter or '*' first"
    )]
    Name(String),
    /// The name of an argument in a table is invalid.
    #[error(
        "{0:?} can't be the name of an argument: give lower-case letters, digits, '_' and '-', or write args as an array of strings"
    )]
    ArgumentName(String),
    /// The value of an argument in a table is no plain value.
    #[error("argument \"{name}\" must be a string, a number or a boolean, not {found}")]
    ArgumentType {
        /// Name of the argument.
        name: String,
        /// Type of the value.
        found: &'static str,
    },
    /// The value is a date or a time.
    #[error("no setting is a date or a time; write text in quotes")]
    Date,
}

/// Returns whether values can be an array: plain values of one type.
fn is_array(values: &[ScriptValue]) -> bool {
    let Some(first) = values.first() else {
        return false;
    };
    let kind = first.data.kind();
    first.data.is_plain() && values.iter().all(|value| value.data.kind() == kind)
}

#[cfg(test)]
mod tests;
