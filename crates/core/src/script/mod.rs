//! Job scripts as text: libconfig in, a tree of values out, every one with its line and column.
//!
//! This module knows the syntax only. What the settings mean is the business of [`crate::job`]. It reads
//! no files: `@include` is refused, and the caller hands in the text with the name to use in errors.

mod parse;
mod print;

pub use parse::parse;

/// How deep groups, lists and arrays may lie in each other.
pub const MAX_DEPTH: u32 = 32;
/// Longest script, in bytes.
pub const MAX_SCRIPT_BYTES: usize = 32 << 20;

/// A place in a script. Ordered as in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl Position {
    /// The first character.
    pub const START: Self = Self { line: 1, column: 1 };
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// What it is.
    pub data: Data,
    /// Where its first character stands.
    pub at: Position,
}

/// What a setting can be set to.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// `true` or `false`, in any case.
    Boolean(bool),
    /// Decimal, hexadecimal (`0x`), octal (`0o`) or binary (`0b`), with or without the suffix `L`.
    Integer(i64),
    /// A finite number with a point or an exponent.
    Float(f64),
    /// Adjacent strings have been joined, escapes undone.
    Text(String),
    /// `[ … ]`: plain values of one type.
    Array(Vec<Value>),
    /// `( … )`: values of any type.
    List(Vec<Value>),
    /// `{ … }`: settings.
    Group(Group),
}

impl Data {
    /// The type, as an error names it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Boolean(_) => "a boolean",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a string",
            Self::Array(_) => "an array [ … ]",
            Self::List(_) => "a list ( … )",
            Self::Group(_) => "a group { … }",
        }
    }
}

/// Settings in the order of the script, each name once.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Group {
    /// The settings.
    pub settings: Vec<Setting>,
}

impl Group {
    /// The setting of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

/// `name = value;`
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Where the name stands.
    pub at: Position,
    /// Its value.
    pub value: Value,
}

/// A script that is not libconfig.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{at}: {problem}")]
pub struct ScriptError {
    /// The script, as the caller named it.
    pub file: String,
    /// Where it is wrong.
    pub at: Position,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a script's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Something else should stand here.
    #[error("expected {what}, found {found}")]
    Expected {
        /// What should.
        what: String,
        /// What does.
        found: String,
    },
    /// A bracket is never closed.
    #[error("this '{open}' is never closed: expected '{close}' before {found}")]
    Unclosed {
        /// The bracket.
        open: char,
        /// The one that is missing.
        close: char,
        /// What stands where it is missing.
        found: String,
    },
    /// A string runs to the end of the script.
    #[error("this string is never closed: expected '\"' before the end of the script")]
    UnclosedText,
    /// A comment runs to the end of the script.
    #[error("this comment is never closed: expected '*/' before the end of the script")]
    UnclosedComment,
    /// `\x` without two hexadecimal digits below 80.
    #[error(
        "expected two hexadecimal digits from 00 to 7f after '\\x'; write other characters as they are"
    )]
    Escape,
    /// Not a number.
    #[error("{0:?} is not a number; write text in quotes")]
    Number(String),
    /// A number that does not fit.
    #[error("{0} does not fit in a 64-bit number")]
    Range(String),
    /// Values of several types between `[` and `]`.
    #[error(
        "an array holds plain values of one type: expected {expected}, found {found}; use a list ( … ) to mix them"
    )]
    Mixed {
        /// Type of the first value.
        expected: &'static str,
        /// Type of this one.
        found: &'static str,
    },
    /// The same name twice in one group.
    #[error("setting \"{name}\" is given twice, first at {first}; remove one")]
    Twice {
        /// The name.
        name: String,
        /// Where it was given first.
        first: Position,
    },
    /// `@include`.
    #[error("@include is not allowed in a job script; put the text itself here")]
    Include,
    /// Too many brackets in each other.
    #[error("groups, lists and arrays lie more than {MAX_DEPTH} deep in each other")]
    Depth,
    /// Too long.
    #[error("the script has {0} bytes; the most is {MAX_SCRIPT_BYTES}; split the job")]
    Length(usize),
    /// Not text.
    #[error("the script is not UTF-8 text")]
    Encoding,
}

#[cfg(test)]
mod tests;
