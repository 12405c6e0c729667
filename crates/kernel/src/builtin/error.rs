//! Why built-in kernels fail.

use std::io;

/// Why a built-in kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// A variable that can't be reduced as asked.
    #[error(transparent)]
    Reduce(Box<crate::reduction::Error>),
    /// There is no such kernel.
    #[error("built-in kernel {0:?} does not exist")]
    Unknown(String),
    /// An argument that the kernel does not know.
    #[error("{kernel} does not know the argument {arg:?}; it knows: {valid}")]
    Argument {
        /// The kernel.
        kernel: &'static str,
        /// What it was given.
        arg: String,
        /// What it knows.
        valid: String,
    },
    /// An argument with a value that is none of those it can have.
    #[error("{key} cannot be {value:?}; it can be: {valid}")]
    Value {
        /// The argument.
        key: &'static str,
        /// What it was given.
        value: String,
        /// What it can be.
        valid: String,
    },
    /// An argument that must be given.
    #[error("{kernel} needs {key}=; it knows: {valid}")]
    Needed {
        /// The kernel.
        kernel: &'static str,
        /// The argument.
        key: &'static str,
        /// What it knows.
        valid: String,
    },
    /// `grep` without a pattern.
    #[error("grep needs a pattern; it knows: {valid}")]
    NoPattern {
        /// What it knows.
        valid: String,
    },
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
    /// More inputs than the one it takes.
    #[error("{kernel} takes one input, but the task names {count}")]
    Inputs {
        /// The kernel.
        kernel: &'static str,
        /// How many were named.
        count: usize,
    },
    /// The inputs together are no whole number of values.
    #[error(
        "the last {bytes} bytes of the input are no value, which has {size} bytes; is dtype= right?"
    )]
    Ragged {
        /// Bytes that are left.
        bytes: usize,
        /// The size of a value.
        size: usize,
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
    /// An input that is no image.
    #[error(
        "{0} is no binary PGM image of a byte a pixel (or not whole); give width= if it is raw"
    )]
    NoImage(String),
    /// Compressed or encrypted data that is none, or was changed.
    #[error("from byte {offset} on the input is no valid {format} data: {what}")]
    Damaged {
        /// The format.
        format: &'static str,
        /// Where, in all inputs as one.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Compressed or encrypted data whose end is not there.
    #[error("the input ends before its {0} data does; is it whole?")]
    CutShort(&'static str),
    /// A file that is no key.
    #[error("{name} is no key: it must hold 32 bytes, or 64 hexadecimal digits")]
    NoKey {
        /// The file.
        name: String,
    },
    /// The key is another than that which the input was encrypted with.
    #[error(
        "this is not the key that the input was encrypted with, or the first 80 bytes of the input were changed"
    )]
    WrongKey,
    /// The system gives no random numbers.
    #[error("cannot get random numbers: {0}")]
    Chance(#[source] io::Error),
    /// There are no bytes at all.
    #[error("the inputs are empty")]
    NoBytes,
    /// Values that can't be had out of the bytes that hold them.
    #[error("{0}")]
    Held(String),
    /// The inputs together are no whole number of rows.
    #[error(
        "the inputs hold {values} values, which is no whole number of rows of {columns}; is columns= right?"
    )]
    RaggedRows {
        /// Their values.
        values: u64,
        /// The values in a row.
        columns: usize,
    },
    /// A value that is no number, where all must be.
    #[error(
        "the value in row {row}, column {column} (both from 0) is NaN or infinite; missing=nan passes over rows with NaN"
    )]
    NotFinite {
        /// The row.
        row: u64,
        /// The column.
        column: u64,
    },
    /// There are not enough rows.
    #[error(
        "{kernel} needs at least {needed} rows, but there are {rows} (less those with missing values)"
    )]
    TooFewRows {
        /// The kernel.
        kernel: &'static str,
        /// How many it needs.
        needed: u64,
        /// How many there are.
        rows: u64,
    },
    /// There are not enough values.
    #[error("{kernel} needs at least {needed} values")]
    TooFew {
        /// The kernel.
        kernel: &'static str,
        /// How many it needs.
        needed: u64,
    },
    /// A fold was finished before all bytes of a value had come.
    #[error("a part of the input is missing: byte {0} or an adjacent byte")]
    Gap(u64),
    /// A kernel that has no partial states was asked for one, or was to be put behind another.
    #[error("{kernel} {what}")]
    Form {
        /// The kernel.
        kernel: &'static str,
        /// What it cannot do.
        what: &'static str,
    },
    /// A partial state that cannot be merged or written.
    #[error("this partial state cannot be used: {0}")]
    State(&'static str),
    /// What the kernel before writes cannot be gathered in a file.
    #[error("cannot keep the output of the kernel before it: {0}")]
    Gather(#[source] io::Error),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[source] io::Error),
}
