//! Search conditions for files: `var = tas and time >= 1990 and lat < 30` (`docs/find.md`).
//!
//! This module checks the names and values of a [`tidemill_model::condition::Condition`]; the owner of the files converts an [`Expr`] to a search.

mod read;
#[cfg(test)]
mod tests;

pub use read::read;

use regex::Regex;
use tidemill_model::calendar::CalendarTime;
use tidemill_model::condition::{CompareOperator, ComparedValue, Tree};
use tidemill_model::glob::Pattern;

/// Search condition.
pub type Expr = Tree<Test>;

/// Condition on a file. A condition on a property with several values (variables, coordinates) holds if it holds for one of them.
#[derive(Clone, Debug)]
pub enum Test {
    /// Property in the file's header: `var`, `units`, `dim.lat`, `attr.institution`, ….
    Text {
        /// Name of the property.
        key: String,
        /// Comparison operator.
        compare: CompareOperator,
        /// Value to compare with.
        value: ComparedValue,
    },
    /// Span of a coordinate.
    Coordinate {
        /// Name of the coordinate.
        name: String,
        /// Comparison operator.
        compare: CompareOperator,
        /// Number to compare with.
        number: Option<f64>,
        /// Time to compare with, if the coordinate's units are times.
        moment: Option<CalendarTime>,
    },
    /// Attribute `user.*`.
    Attribute {
        /// Full name of the attribute.
        name: String,
        /// Comparison operator.
        compare: CompareOperator,
        /// Value to compare with.
        value: ComparedValue,
    },
    /// Name of the file, without directories.
    Name {
        /// Whether the names match that the test describes, or all other names.
        equal: bool,
        /// Description of names.
        wanted: WantedName,
    },
    /// Size of the file.
    Size {
        /// Comparison operator.
        compare: CompareOperator,
        /// Size to compare with, in bytes.
        bytes: u64,
    },
    /// Time of the last write to the file.
    Modified {
        /// Comparison operator.
        compare: CompareOperator,
        /// Time to compare with.
        moment: CalendarTime,
    },
    /// Owner of the file.
    Owner {
        /// Whether the file belongs to the user, or to another user.
        equal: bool,
        /// Name or number of the user.
        user: String,
    },
    /// Kernel, job or rule that wrote the file.
    MadeBy {
        /// Name of the kernel, job or rule.
        name: String,
    },
    /// The file was computed from a version of another file, through any number of tasks.
    From {
        /// Path of the other file.
        path: String,
    },
}

/// Description of names of files.
#[derive(Clone, Debug)]
pub enum WantedName {
    /// Exactly this name.
    Exact(String),
    /// Names that match a pattern with wildcards.
    Glob(Pattern),
    /// Names that contain a match of a regular expression.
    Regex(Regex),
}

impl WantedName {
    /// Returns whether a name fits.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        match self {
            Self::Exact(wanted) => name == wanted,
            Self::Glob(pattern) => pattern.matches(name),
            Self::Regex(regex) => regex.is_match(name),
        }
    }
}
