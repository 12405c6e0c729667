//! Errors of built-in kernels.

use std::io;

/// Reason why a built-in kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// A variable cannot be reduced as requested.
    #[error(transparent)]
    Reduce(Box<crate::reduction::Error>),
    /// A kernel of this name does not exist.
    #[error("built-in kernel {0:?} does not exist")]
    Unknown(String),
    /// The kernel does not know an argument.
    #[error("{kernel} does not know the argument {arg:?}; it knows: {valid}")]
    Argument {
        /// Name of the kernel that failed.
        kernel: &'static str,
        /// Argument as given.
        arg: String,
        /// Arguments that the kernel knows.
        valid: String,
    },
    /// An argument has an invalid value.
    #[error("{key} cannot be {value:?}; it can be: {valid}")]
    Value {
        /// Name of the argument with the invalid value.
        key: &'static str,
        /// Value as given.
        value: String,
        /// Description of the valid values.
        valid: String,
    },
    /// A required argument is missing.
    #[error("{kernel} needs {key}=; it knows: {valid}")]
    Needed {
        /// Name of the kernel that failed.
        kernel: &'static str,
        /// Name of the missing argument.
        key: &'static str,
        /// Arguments that the kernel knows.
        valid: String,
    },
    /// The kernel `grep` has no pattern.
    #[error("grep needs a pattern; it knows: {valid}")]
    NoPattern {
        /// Arguments that the kernel knows.
        valid: String,
    },
    /// A pattern is no valid regular expression.
    #[error("the pattern {pattern:?} is no regular expression: {reason}")]
    Pattern {
        /// Pattern as given.
        pattern: String,
        /// Reason why the pattern is invalid.
        reason: String,
    },
    /// No inputs of the kernel were named.
    #[error("{0} needs at least one input")]
    NoInput(&'static str),
    /// The task names more outputs than the one that the kernel writes.
    #[error("{kernel} writes one output, but the task names {count}")]
    Outputs {
        /// Name of the kernel that failed.
        kernel: &'static str,
        /// Number of outputs that the task names.
        count: usize,
    },
    /// The task names more inputs than the one that the kernel reads.
    #[error("{kernel} takes one input, but the task names {count}")]
    Inputs {
        /// Name of the kernel that failed.
        kernel: &'static str,
        /// Number of inputs that the task names.
        count: usize,
    },
    /// The inputs together are not a whole number of values.
    #[error(
        "the last {bytes} bytes of the input are not a whole value of {size} bytes; is dtype= right?"
    )]
    Ragged {
        /// Number of bytes after the last whole value.
        bytes: usize,
        /// Size of a value, in bytes.
        size: usize,
    },
    /// An input of the kernel cannot be read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// Name of the input.
        name: String,
        /// Cause of the error.
        source: io::Error,
    },
    /// The size of an input is no multiple of the size of its values.
    #[error(
        "{name} has {bytes} bytes, which is no whole number of values of {size} bytes; is dtype= right?"
    )]
    Torn {
        /// Name of the input.
        name: String,
        /// Size of the input, in bytes.
        bytes: u64,
        /// Size of a value, in bytes.
        size: usize,
    },
    /// A word of a text input is not a number.
    #[error("{name}, line {line}: {word:?} is no number")]
    NotANumber {
        /// Name of the input.
        name: String,
        /// Number of the line, from 1.
        line: u64,
        /// Word that is not a number.
        word: String,
    },
    /// The inputs contain no values.
    #[error("the inputs contain no values")]
    Empty,
    /// An input is not an image.
    #[error(
        "{0} is no complete binary PGM image with one byte per pixel; give width= if it is raw"
    )]
    NoImage(String),
    /// Compressed or encrypted data has a wrong format, or was changed.
    #[error("from byte {offset} on the input is no valid {format} data: {what}")]
    Corrupt {
        /// Name of the format.
        format: &'static str,
        /// Offset in all inputs as one, in bytes.
        offset: u64,
        /// Description of the fault in the data.
        what: String,
    },
    /// Compressed or encrypted data lacks its end.
    #[error("the input ends within its {0} data; is it complete?")]
    CutShort(&'static str),
    /// A file is not a valid key.
    #[error("{name} is no key: it must contain 32 bytes, or 64 hexadecimal digits")]
    NoKey {
        /// Name of the file.
        name: String,
    },
    /// The key differs from the key that the input was encrypted with.
    #[error(
        "this is not the key that the input was encrypted with, or the first 80 bytes of the input were changed"
    )]
    WrongKey,
    /// The system returned no random numbers.
    #[error("cannot get random numbers: {0}")]
    Chance(#[source] io::Error),
    /// The inputs contain no bytes.
    #[error("the inputs are empty")]
    NoBytes,
    /// Values cannot be decoded from their bytes.
    #[error("{0}")]
    Held(String),
    /// The inputs together are not a whole number of rows.
    #[error(
        "the inputs contain {values} values, which is no whole number of rows of {columns}; is columns= right?"
    )]
    RaggedRows {
        /// Number of values in the inputs.
        values: u64,
        /// Number of values in a row of the matrix.
        columns: usize,
    },
    /// A value is not finite, although all values of the matrix must be finite numbers.
    #[error(
        "the value in row {row}, column {column} (both from 0) is NaN or infinite; missing=nan skips rows with NaN"
    )]
    NotFinite {
        /// Number of the row, from 0.
        row: u64,
        /// Number of the column, from 0.
        column: u64,
    },
    /// The matrix does not have enough rows.
    #[error(
        "{kernel} needs at least {needed} rows, but there are {rows} (without those with missing values)"
    )]
    TooFewRows {
        /// Name of the kernel that failed.
        kernel: &'static str,
        /// Required number of rows.
        needed: u64,
        /// Number of rows in the matrix.
        rows: u64,
    },
    /// The inputs do not have enough values.
    #[error("{kernel} needs at least {needed} values")]
    TooFew {
        /// Name of the kernel that failed.
        kernel: &'static str,
        /// Required number of values.
        needed: u64,
    },
    /// A fold was finished before all bytes of a value arrived.
    #[error("a part of the input is missing: byte {0} or an adjacent byte")]
    Gap(u64),
    /// The kernel does not support partial states, or chains.
    #[error("{kernel} {what}")]
    Form {
        /// Name of the kernel that failed.
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
