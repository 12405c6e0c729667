//! The built-in kernels. They run in a confined process of their own like all others; see `child`.
//!
//! Numeric kernels read raw little-endian arrays (`dtype=`, default `f64`) or text, from all inputs in
//! order as one series. A result is one line of decimal text, or with `out=f64` raw little-endian `f64`
//! that the next kernel can read.

mod number;
pub(crate) mod series;
mod simd;
mod statistics;
mod text;

use std::io::{self, Write};

use simd::Level;
use statistics::{Statistic, compute};

/// Name and revision of each built-in kernel. A revision counts changes of what results look like.
const KERNELS: &[(&str, u32)] = &[
    ("grep", 1),
    ("linreg", 1),
    ("max", 1),
    ("mean", 1),
    ("min", 1),
    ("stddev", 1),
    ("wordcount", 1),
];

const NUMERIC_ARGS: &str = "dtype=TYPE, out=text|f64";
const STDDEV_ARGS: &str = "dtype=TYPE, out=text|f64, ddof=0|1";

/// Why a built-in kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// There is no such kernel.
    #[error("there is no built-in kernel {0:?}")]
    Unknown(String),
    /// An argument that the kernel does not know.
    #[error("{kernel} does not know the argument {arg:?}; it knows: {valid}")]
    Argument {
        /// The kernel.
        kernel: &'static str,
        /// What it was given.
        arg: String,
        /// What it knows.
        valid: &'static str,
    },
    /// An argument with a value that is none of those it can have.
    #[error("{key} cannot be {value:?}; it can be: {valid}")]
    Value {
        /// The argument.
        key: &'static str,
        /// What it was given.
        value: String,
        /// What it can be.
        valid: &'static str,
    },
    /// `grep` without a pattern.
    #[error("grep needs a pattern; it knows: {}", text::GREP_ARGS)]
    NoPattern,
    /// A pattern that is no regular expression.
    #[error("the pattern {pattern:?} is no regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No inputs were named.
    #[error("{0} needs at least one input")]
    NoInput(&'static str),
    /// More outputs than the one it writes.
    #[error("{kernel} writes one output, but the task names {count}")]
    Outputs {
        /// The kernel.
        kernel: &'static str,
        /// How many were named.
        count: usize,
    },
    /// An input cannot be read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// The input.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// An input whose size is no multiple of the size of its values.
    #[error(
        "{name} has {bytes} bytes, which is no whole number of values of {size} bytes; is dtype= right?"
    )]
    Torn {
        /// The input.
        name: String,
        /// Its size.
        bytes: u64,
        /// The size of a value.
        size: usize,
    },
    /// A word that is no number.
    #[error("{name}, line {line}: {word:?} is no number")]
    NotANumber {
        /// The input.
        name: String,
        /// The line, from 1.
        line: u64,
        /// The word.
        word: String,
    },
    /// There are no values at all.
    #[error("the inputs hold no values")]
    Empty,
    /// There are not enough values.
    #[error("{kernel} needs at least {needed} values")]
    TooFew {
        /// The kernel.
        kernel: &'static str,
        /// How many it needs.
        needed: u64,
    },
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[source] io::Error),
}

/// The names of all built-in kernels, sorted.
#[must_use]
pub fn builtin_names() -> Vec<&'static str> {
    KERNELS.iter().map(|(name, _)| *name).collect()
}

/// Whether there is a built-in kernel of this name.
#[must_use]
pub fn is_builtin(name: &str) -> bool {
    revision(name).is_some()
}

pub(crate) fn revision(name: &str) -> Option<u32> {
    KERNELS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, revision)| *revision)
}

/// Runs a built-in kernel here, over files named relative to the working directory. Kernels of tasks run
/// through [`crate::Launcher`] instead, which confines them.
///
/// # Errors
/// If the arguments or inputs are not what the kernel takes, or the result cannot be written.
pub fn run_builtin(
    name: &str,
    args: &[String],
    inputs: &[String],
    result: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let Some((name, _)) = KERNELS.iter().find(|(known, _)| *known == name) else {
        return Err(BuiltinError::Unknown(name.to_owned()));
    };
    if inputs.is_empty() {
        return Err(BuiltinError::NoInput(name));
    }
    let statistic = match *name {
        "mean" => Statistic::Mean,
        "max" => Statistic::Max,
        "min" => Statistic::Min,
        "stddev" => Statistic::Stddev,
        "linreg" => Statistic::Linreg,
        "grep" => {
            let count = text::Grep::parse(args)?.count(inputs)?;
            return writeln!(result, "{count}").map_err(BuiltinError::Write);
        }
        _ => {
            if let Some(arg) = args.first() {
                return Err(BuiltinError::Argument {
                    kernel: "wordcount",
                    arg: arg.clone(),
                    valid: "no arguments",
                });
            }
            let [lines, words, bytes] = text::wordcount(inputs, Level::best())?;
            return writeln!(result, "{lines} {words} {bytes}").map_err(BuiltinError::Write);
        }
    };
    let options = Options::parse(name, statistic, args)?;
    let numbers = compute(
        statistic,
        inputs,
        &options.dtype,
        options.ddof,
        Level::best(),
    )?;
    if options.raw {
        let bytes: Vec<u8> = numbers
            .values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        result.write_all(&bytes).map_err(BuiltinError::Write)
    } else {
        writeln!(result, "{}", numbers.text).map_err(BuiltinError::Write)
    }
}

/// Arguments of the numeric kernels.
#[derive(Debug)]
struct Options {
    dtype: String,
    raw: bool,
    ddof: u64,
}

impl Options {
    fn parse(
        kernel: &'static str,
        statistic: Statistic,
        args: &[String],
    ) -> Result<Self, BuiltinError> {
        let valid = if statistic == Statistic::Stddev {
            STDDEV_ARGS
        } else {
            NUMERIC_ARGS
        };
        let mut options = Self {
            dtype: "f64".into(),
            raw: false,
            ddof: 0,
        };
        for arg in args {
            match arg.split_once('=') {
                Some(("dtype", value)) => options.dtype = value.to_owned(),
                Some(("out", "text")) => options.raw = false,
                Some(("out", "f64")) => options.raw = true,
                Some(("out", value)) => {
                    return Err(BuiltinError::Value {
                        key: "out",
                        value: value.into(),
                        valid: "text, f64",
                    });
                }
                Some(("ddof", "0")) if statistic == Statistic::Stddev => options.ddof = 0,
                Some(("ddof", "1")) if statistic == Statistic::Stddev => options.ddof = 1,
                Some(("ddof", value)) if statistic == Statistic::Stddev => {
                    let valid = "0 (population), 1 (sample)";
                    return Err(BuiltinError::Value {
                        key: "ddof",
                        value: value.into(),
                        valid,
                    });
                }
                _ => {
                    return Err(BuiltinError::Argument {
                        kernel,
                        arg: arg.clone(),
                        valid,
                    });
                }
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests;
