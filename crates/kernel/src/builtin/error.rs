//! Errors of built-in kernels.

use std::io;

/// Reason why a built-in kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// A variable that cannot be reduced as requested.
    #[error(transparent)]
    Reduce(Box<crate::reduction::Error>),
    /// A kernel of this name does not exist.
    #[error("built-in kernel {0:?} does not exist")]
    Unknown(String),
    /// An argument that the kernel does not know.
    #[error("{kernel} does not know the argument {arg:?}; it knows: {valid}")]
    Argument {
        /// The kernel.
        kernel: &'static str,
        /// Given argument.
        arg: String,
        /// Known arguments.
        valid: String,
    },
    /// An argument with an invalid value.
    #[error("{key} cannot be {value:?}; it can be: {valid}")]
    Value {
        /// The argument.
        key: &'static str,
        /// Given value.
        value: String,
        /// Valid values.
        valid: String,
    },
    /// A required argument is missing.
    #[error("{kernel} needs {key}=; it knows: {valid}")]
    Needed {
        /// The kernel.
        kernel: &'static str,
        /// The argument.
        key: &'static str,
        /// Known arguments.
        valid: String,
    },
    /// `grep` without a pattern.
    #[error("grep needs a pattern; it knows: {valid}")]
    NoPattern {
        /// Known arguments.
        valid: String,
    },
    /// A pattern that is no valid regular expression.
    #[error("the pattern {pattern:?} is no regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Reason.
        reason: String,
    },
    /// No inputs were named.
    #[error("{0} needs at least one input")]
    NoInput(&'static str),
    /// There are more outputs than the one that the kernel writes.
    #[error("{kernel} writes one output, but the task names {count}")]
    Outputs {
        /// The kernel.
        kernel: &'static str,
        /// Number of named outputs.
        count: usize,
    },
    /// There are more inputs than the one that the kernel reads.
    #[error("{kernel} takes one input, but the task names {count}")]
    Inputs {
        /// The kernel.
        kernel: &'static str,
        /// Number of named inputs.
        count: usize,
    },
    /// The inputs together are no whole number of values.
    #[error(
        "the last {bytes} bytes of the input are not a whole value of {size} bytes; is dtype= right?"
    )]
    Ragged {
        /// Number of remaining bytes.
        bytes: usize,
        /// Size of a value, in bytes.
        size: usize,
    },
    /// An input cannot be read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// The input.
        name: String,
        /// Cause.
        source: io::Error,
    },
    /// An input whose size is no multiple of the size of its values.
    #[error(
        "{name} has {bytes} bytes, which is no whole number of values of {size} bytes; is dtype= right?"
    )]
    Torn {
        /// The input.
        name: String,
        /// Size in bytes.
        bytes: u64,
        /// Size of a value, in bytes.
        size: usize,
    },
    /// A word that is no number.
    #[error("{name}, line {line}: {word:?} is no number")]
    NotANumber {
        /// The input.
        name: String,
        /// Line, from 1.
        line: u64,
        /// The word.
        word: String,
    },
    /// There are no values.
    #[error("the inputs contain no values")]
    Empty,
    /// An input is no image.
    #[error(
        "{0} is no complete binary PGM image with one byte per pixel; give width= if it is raw"
    )]
    NoImage(String),
    /// Compressed or encrypted data in a wrong format, or data that was changed.
    #[error("from byte {offset} on the input is no valid {format} data: {what}")]
    Corrupt {
        /// The format.
        format: &'static str,
        /// Offset in all inputs as one, in bytes.
        offset: u64,
        /// Description.
        what: String,
    },
    /// Compressed or encrypted data without its end.
    #[error("the input ends within its {0} data; is it complete?")]
    CutShort(&'static str),
    /// A file that is no key.
    #[error("{name} is no key: it must contain 32 bytes, or 64 hexadecimal digits")]
    NoKey {
        /// The file.
        name: String,
    },
    /// The key differs from the one that the input was encrypted with.
    #[error(
        "this is not the key that the input was encrypted with, or the first 80 bytes of the input were changed"
    )]
    WrongKey,
    /// The system returned no random numbers.
    #[error("cannot get random numbers: {0}")]
    Chance(#[source] io::Error),
    /// There are no bytes.
    #[error("the inputs are empty")]
    NoBytes,
    /// Values cannot be decoded from their bytes.
    #[error("{0}")]
    Held(String),
    /// The inputs together are no whole number of rows.
    #[error(
        "the inputs contain {values} values, which is no whole number of rows of {columns}; is columns= right?"
    )]
    RaggedRows {
        /// Number of values.
        values: u64,
        /// Number of values in a row.
        columns: usize,
    },
    /// A value that is no number, although all values must be numbers.
    #[error(
        "the value in row {row}, column {column} (both from 0) is NaN or infinite; missing=nan skips rows with NaN"
    )]
    NotFinite {
        /// The row.
        row: u64,
        /// The column.
        column: u64,
    },
    /// There are not enough rows.
    #[error(
        "{kernel} needs at least {needed} rows, but there are {rows} (without those with missing values)"
    )]
    TooFewRows {
        /// The kernel.
        kernel: &'static str,
        /// Required number.
        needed: u64,
        /// Number of rows.
        rows: u64,
    },
    /// There are not enough values.
    #[error("{kernel} needs at least {needed} values")]
    TooFew {
        /// The kernel.
        kernel: &'static str,
        /// Required number.
        needed: u64,
    },
    /// A fold was finished before all bytes of a value arrived.
    #[error("a part of the input is missing: byte {0} or an adjacent byte")]
    Gap(u64),
    /// The kernel does not support partial states, or chains.
    #[error("{kernel} {what}")]
    Form {
        /// The kernel.
        kernel: &'static str,
        /// Description of the unsupported feature.
        what: &'static str,
    },
    /// A partial state cannot be merged or written.
    #[error("this partial state cannot be used: {0}")]
    State(&'static str),
    /// The output of the previous kernel cannot be collected in a file.
    #[error("cannot keep the output of the kernel before it: {0}")]
    Gather(#[source] io::Error),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[source] io::Error),
}
