//! What is looked for among files: `var = tas and time >= 1990 and lat < 30` (`docs/find.md`).
//!
//! Read here, with errors that name their place; whoever has the files turns an [`Expr`] into a search.

mod moment;
mod parse;
#[cfg(test)]
mod tests;

pub use moment::{Moment, place_in_time};
pub use parse::read;

/// Longest expression, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Most conditions of an expression.
pub const TESTS_MAX: usize = 64;
/// Most brackets and `not`s within each other.
pub const DEPTH_MAX: usize = 32;
/// Most memory that a compiled regular expression may need, in bytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {}: {what}", at + 1)]
pub struct FindError {
    /// Characters before the place.
    pub at: usize,
    /// What is wrong there, and what to do.
    pub what: String,
}

/// An expression.
#[derive(Clone, Debug)]
pub enum Expr {
    /// All of these hold.
    All(Vec<Expr>),
    /// One of these holds.
    Any(Vec<Expr>),
    /// It does not hold.
    Not(Box<Expr>),
    /// A condition.
    Test(Test),
}

/// How something is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Compare {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Matches,
}

impl Compare {
    /// As it is written.
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

/// A condition on a file. One on several values of it (variables, coordinates) holds if it holds for one of them.
#[derive(Clone, Debug)]
pub enum Test {
    /// What its header says: `var`, `units`, `dim.lat`, `attr.institution`, ….
    Said {
        /// What of it.
        key: String,
        /// How.
        compare: Compare,
        /// With what.
        value: Value,
    },
    /// The span of a coordinate.
    Coordinate {
        /// Its name.
        name: String,
        /// How.
        compare: Compare,
        /// With this number.
        number: Option<f64>,
        /// With this time, if its units are times.
        moment: Option<Moment>,
    },
    /// An attribute `user.*`.
    Attribute {
        /// All of its name.
        name: String,
        /// How.
        compare: Compare,
        /// With what.
        value: Value,
    },
    /// Its name, without folders.
    Name {
        /// How: equal, unequal, matches (wildcards as in a shell).
        compare: Compare,
        /// With what.
        text: String,
    },
    /// Bytes that it has.
    Size {
        /// How.
        compare: Compare,
        /// With so many.
        bytes: u64,
    },
    /// When it was written to.
    Modified {
        /// How.
        compare: Compare,
        /// With this time.
        moment: Moment,
    },
    /// Whose it is.
    Owner {
        /// A name or number.
        user: String,
    },
    /// A kernel, job or rule that made it.
    MadeBy {
        /// Its name.
        name: String,
    },
    /// It was made of a version of this file, by however many tasks.
    From {
        /// The file's path.
        path: String,
    },
}

/// What something is compared with.
#[derive(Clone, Debug)]
pub struct Value {
    /// As it is written.
    pub text: String,
    /// If it is a number.
    pub number: Option<f64>,
    /// If it is to match.
    pub regex: Option<regex::Regex>,
}

impl Value {
    /// Whether a text compares so.
    #[must_use]
    pub fn fits(&self, compare: Compare, text: &str) -> bool {
        let number = || text.trim().parse::<f64>().ok().zip(self.number);
        let same = || {
            text == self.text || number().is_some_and(|(own, other)| own.total_cmp(&other).is_eq())
        };
        match compare {
            Compare::Equal => same(),
            Compare::Unequal => !same(),
            Compare::Matches => self
                .regex
                .as_ref()
                .is_some_and(|regex| regex.is_match(text)),
            Compare::Less => number().is_some_and(|(own, other)| own < other),
            Compare::AtMost => number().is_some_and(|(own, other)| own <= other),
            Compare::Greater => number().is_some_and(|(own, other)| own > other),
            Compare::AtLeast => number().is_some_and(|(own, other)| own >= other),
        }
    }
}
