//! Errors in a file, a variable's name or a selection.

use std::io;

/// Reason why a file, a variable or a selection cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file begins like none of the known formats.
    #[error(
        "neither netCDF, HDF5, FITS nor a zip file with a Zarr in it: the first bytes are {first}"
    )]
    Unknown {
        /// The first bytes, in hexadecimal.
        first: String,
    },
    /// The file is shorter than its header declares.
    #[error(
        "{what} needs bytes {offset} to {end}, and the file ends at {size}: it is truncated or corrupt"
    )]
    Truncated {
        /// Item that was being read.
        what: &'static str,
        /// Offset of the first requested byte.
        offset: u64,
        /// Offset after the last requested byte.
        end: u64,
        /// Size of the file, in bytes.
        size: u64,
    },
    /// Bytes that are invalid at their place.
    #[error("{what} at byte {offset} is corrupt: {why}")]
    Corrupt {
        /// Item that was being read.
        what: &'static str,
        /// Offset in bytes.
        offset: u64,
        /// Reason.
        why: String,
    },
    /// A metadata file of a Zarr array that is invalid.
    #[error("{file}: {why}")]
    Metadata {
        /// The file, as a path in its directory.
        file: String,
        /// Reason, with its place.
        why: String,
    },
    /// More than any real file has.
    #[error("more than {limit} {what}: such files are not read")]
    Limit {
        /// Item that exceeds its limit.
        what: &'static str,
        /// Limit.
        limit: u64,
    },
    /// A feature of the format that this reader does not support.
    #[error("{variable}: {what}, which can't be read")]
    Unsupported {
        /// The variable.
        variable: String,
        /// Feature that the variable uses.
        what: String,
    },
    /// An ambiguous attribute about missing values, valid values or packing.
    #[error("{variable}: attribute {attribute}: {why}")]
    Attribute {
        /// The variable.
        variable: String,
        /// The attribute, by name.
        attribute: String,
        /// Reason, and a remedy.
        why: String,
    },
    /// A name that the file does not contain.
    #[error("no variable {name}; there are {}", .there.join(", "))]
    NoVariable {
        /// Requested name.
        name: String,
        /// First of the existing names.
        there: Vec<String>,
    },
    /// A selection that does not fit the variable.
    #[error("{variable}: selection of dimension {dimension}: {why}")]
    Selection {
        /// The variable.
        variable: String,
        /// The dimension, by name.
        dimension: String,
        /// Reason.
        why: String,
    },
    /// A time, or units of time, that are invalid.
    #[error("time {text:?}: {why}")]
    Time {
        /// Given text.
        text: String,
        /// Reason.
        why: String,
    },
    /// The bytes could not be read.
    #[error("reading {what} at byte {offset}")]
    Io {
        /// Item that was being read.
        what: &'static str,
        /// Offset in bytes.
        offset: u64,
        /// Cause.
        source: io::Error,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
