//! Conditions: `size >= 1MB and not (owner = alice or user.project = "tide*")`. One grammar serves `tidemill find`, rules and the kernel
//! `filter` (`docs/find.md`, "Conditions").
//!
//! This module parses the text and reports errors with their positions. The users of a condition check its names and values, and evaluate
//! it.

mod parse;
mod print;
#[cfg(test)]
mod tests;
mod value;

pub use parse::parse;
pub use value::{
    ComparedValue, known_name, known_names, number, only, regex, size, swapped_name, time,
    unknown_name,
};

use std::ops::Range;

/// Longest condition, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Maximum number of comparisons in a condition.
pub const COMPARISONS_MAX: usize = 100;
/// Maximum nesting depth of parentheses and `not`s.
pub const DEPTH_MAX: usize = 32;
/// Maximum memory of a compiled regular expression, in bytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Error in a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {}: {what}", at + 1)]
pub struct ConditionError {
    /// Number of characters before the error.
    pub at: usize,
    /// Fault at this position, and advice.
    pub what: String,
}

impl ConditionError {
    /// Creates an error at a position.
    #[must_use]
    pub fn new(at: usize, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { at, what }
    }

    /// Returns the error with the text of the condition and a mark below the position.
    #[must_use]
    pub fn pointed(&self, text: &str) -> String {
        use crate::display::line;
        let spaces = " ".repeat(self.at);
        format!("{}\n  {}\n  {spaces}^", line(&self.to_string()), line(text))
    }
}

/// Tests joined by `and`, `or` and `not`.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree<T> {
    /// All of these trees hold.
    All(Vec<Tree<T>>),
    /// At least one of these trees holds.
    Any(Vec<Tree<T>>),
    /// The tree does not hold.
    Not(Box<Tree<T>>),
    /// Single test.
    Test(T),
}

/// Parsed condition.
pub type Condition = Tree<Comparison>;

impl<T> Tree<T> {
    /// Replaces each test.
    ///
    /// # Errors
    /// The first error of a replacement.
    pub fn try_map<U, E>(
        &self,
        replace: &mut impl FnMut(&T) -> Result<U, E>,
    ) -> Result<Tree<U>, E> {
        let mut all = |trees: &[Self]| -> Result<Vec<_>, E> {
            trees.iter().map(|tree| tree.try_map(replace)).collect()
        };
        Ok(match self {
            Self::All(trees) => Tree::All(all(trees)?),
            Self::Any(trees) => Tree::Any(all(trees)?),
            Self::Not(tree) => Tree::Not(Box::new(tree.try_map(replace)?)),
            Self::Test(test) => Tree::Test(replace(test)?),
        })
    }

    /// Replaces each test.
    #[must_use]
    pub fn map<U>(&self, replace: &mut impl FnMut(&T) -> U) -> Tree<U> {
        let mut all = |trees: &[Self]| trees.iter().map(|tree| tree.map(replace)).collect();
        match self {
            Self::All(trees) => Tree::All(all(trees)),
            Self::Any(trees) => Tree::Any(all(trees)),
            Self::Not(tree) => Tree::Not(Box::new(tree.map(replace))),
            Self::Test(test) => Tree::Test(replace(test)),
        }
    }

    /// Returns whether the tree holds. Tests that do not decide the result are not evaluated.
    ///
    /// # Errors
    /// The first error of a test.
    pub fn holds<E>(&self, test: &mut impl FnMut(&T) -> Result<bool, E>) -> Result<bool, E> {
        match self {
            Self::All(trees) => {
                for tree in trees {
                    if !tree.holds(test)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Any(trees) => {
                for tree in trees {
                    if tree.holds(test)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Not(tree) => Ok(!tree.holds(test)?),
            Self::Test(one) => test(one),
        }
    }

    /// Returns the tests in the order of the text.
    #[must_use]
    pub fn tests(&self) -> Vec<&T> {
        match self {
            Self::All(trees) | Self::Any(trees) => trees.iter().flat_map(Self::tests).collect(),
            Self::Not(tree) => tree.tests(),
            Self::Test(test) => vec![test],
        }
    }

    /// Returns the trees that must all hold: those of nested [`Tree::All`], or the tree itself.
    #[must_use]
    pub fn conjuncts(self) -> Vec<Self> {
        match self {
            Self::All(trees) => trees.into_iter().flat_map(Self::conjuncts).collect(),
            tree => vec![tree],
        }
    }
}

/// Comparison of a name and a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Left side: the name, unless the user of the condition allows names on the right.
    pub left: Operand,
    /// Comparison operator.
    pub operator: CompareOperator,
    /// Right side.
    pub right: Operand,
}

/// Side of a comparison.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Text without quotes.
    pub text: String,
    /// Quotation mark around the text.
    pub quote: Option<char>,
    /// Characters of the condition that contain the operand.
    pub span: Range<usize>,
}

impl PartialEq for Operand {
    /// Positions do not count.
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.quote) == (&other.text, other.quote)
    }
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
    /// Operators of numbers and times.
    pub const ORDER: [Self; 6] = [
        Self::Equal,
        Self::Unequal,
        Self::Less,
        Self::AtMost,
        Self::Greater,
        Self::AtLeast,
    ];

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

    /// Returns the operator of the comparison with its sides swapped.
    #[must_use]
    pub fn swapped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::AtMost => Self::AtLeast,
            Self::Greater => Self::Less,
            Self::AtLeast => Self::AtMost,
            same => same,
        }
    }

    /// Returns whether the comparison of two numbers holds; [`CompareOperator::Matches`] never does.
    #[must_use]
    pub fn holds<N: PartialOrd>(self, left: &N, right: &N) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Unequal => left != right,
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::Greater => left > right,
            Self::AtLeast => left >= right,
            Self::Matches => false,
        }
    }
}
