//! Search expressions for files: `var = tas and time >= 1990 and lat < 30` (`docs/find.md`).
//!
//! This module parses expressions and reports errors with their positions; the owner of the files converts an [`Expr`] to a search.

mod moment;
mod parse;
#[cfg(test)]
mod tests;

pub use moment::{SearchTime, place_in_time};
pub use parse::read;

/// Longest expression, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Maximum number of conditions in an expression.
pub const TESTS_MAX: usize = 64;
/// Maximum nesting depth of parentheses and `not`s.
pub const DEPTH_MAX: usize = 32;
/// Maximum memory of a compiled regular expression, in bytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Error in an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {}: {what}", at + 1)]
pub struct FindError {
    /// Number of characters before the error.
    pub at: usize,
    /// Fault at this position, and advice.
    pub what: String,
}

/// Search expression.
#[derive(Clone, Debug)]
pub enum Expr {
    /// All of these expressions hold.
    All(Vec<Expr>),
    /// At least one of these expressions holds.
    Any(Vec<Expr>),
    /// The expression does not hold.
    Not(Box<Expr>),
    /// Single condition.
    Test(Test),
}

/// Comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CompareOperator {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Matches,
}

impl CompareOperator {
    /// Returns the operator in its text form.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::Unequal => "!=",
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
            Self::Matches => "~",
        }
    }
}

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
        moment: Option<SearchTime>,
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
        /// Comparison: equal, unequal, matches (wildcards as in a shell).
        compare: CompareOperator,
        /// Text to compare with.
        text: String,
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
        moment: SearchTime,
    },
    /// Owner of the file.
    Owner {
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

/// Value to compare with.
#[derive(Clone, Debug)]
pub struct ComparedValue {
    /// Text of the value.
    pub text: String,
    /// The value as a number, if it is one.
    pub number: Option<f64>,
    /// The value as a regular expression, for the operator that matches.
    pub regex: Option<regex::Regex>,
}

impl ComparedValue {
    /// Returns whether the comparison holds for a text.
    #[must_use]
    pub fn fits(&self, compare: CompareOperator, text: &str) -> bool {
        let number = || text.trim().parse::<f64>().ok().zip(self.number);
        let same = || {
            text == self.text || number().is_some_and(|(own, other)| own.total_cmp(&other).is_eq())
        };
        match compare {
            CompareOperator::Equal => same(),
            CompareOperator::Unequal => !same(),
            CompareOperator::Matches => self
                .regex
                .as_ref()
                .is_some_and(|regex| regex.is_match(text)),
            CompareOperator::Less => number().is_some_and(|(own, other)| own < other),
            CompareOperator::AtMost => number().is_some_and(|(own, other)| own <= other),
            CompareOperator::Greater => number().is_some_and(|(own, other)| own > other),
            CompareOperator::AtLeast => number().is_some_and(|(own, other)| own >= other),
        }
    }
}
