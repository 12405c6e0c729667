//! Errors in a file, a variable's name or a selection.

use std::io;

/// Reason why a file, a variable or a selection cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file does not begin like any of the known formats.
    #[error(
        "neither netCDF, HDF5, FITS nor a zip file with a Zarr in it: the first bytes are {first}"
    )]
    Unknown {
        /// First bytes of the file, in hexadecimal.
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
    /// Bytes of the file are invalid at their place.
    #[error("{what} at byte {offset} is corrupt: {why}")]
    Corrupt {
        /// Item that was being read.
        what: &'static str,
        /// Offset of the invalid bytes.
        offset: u64,
        /// Reason why the bytes are invalid.
        why: String,
    },
    /// A metadata file of a Zarr array is invalid.
    #[error("{file}: {why}")]
    Metadata {
        /// Path of the metadata file in its directory.
        file: String,
        /// Reason why the metadata is invalid, with its place in the file.
        why: String,
    },
    /// A number in the file exceeds the limit of any real file.
    #[error("more than {limit} {what}: such files are not read")]
    Limit {
        /// Item that exceeds its limit.
        what: &'static str,
        /// Limit that the number exceeds.
        limit: u64,
    },
    /// The variable uses a feature of the format that this reader does not support.
    #[error("{variable}: {what}, which can't be read")]
    Unsupported {
        /// Path of the variable.
        variable: String,
        /// Feature that the variable uses.
        what: String,
    },
    /// An attribute about missing values, valid values or packing is ambiguous.
    #[error("{variable}: attribute {attribute}: {why}")]
    Attribute {
        /// Path of the variable.
        variable: String,
        /// Name of the attribute.
        attribute: String,
        /// Reason why the attribute is ambiguous, and a remedy.
        why: String,
    },
    /// The file does not contain a variable with the requested name.
    #[error("no variable {name}; there are {}", .there.join(", "))]
    NoVariable {
        /// Requested name.
        name: String,
        /// Names of the first variables in the file.
        there: Vec<String>,
    },
    /// A selection does not fit the variable.
    #[error("{variable}: selection of dimension {dimension}: {why}")]
    Selection {
        /// Path of the variable.
        variable: String,
        /// Name of the dimension.
        dimension: String,
        /// Reason why the selection does not fit.
        why: String,
    },
    /// A time, or units of time, are invalid.
    #[error("time {text:?}: {why}")]
    Time {
        /// Text of the time or units.
        text: String,
        /// Reason why the time or units are invalid.
        why: String,
    },
    /// Bytes of the file could not be read.
    #[error("reading {what} at byte {offset}")]
    Io {
        /// Item that was being read.
        what: &'static str,
        /// Offset of the first requested byte.
        offset: u64,
        /// Error that the storage reported.
        source: io::Error,
    },
}

/// Result of functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;
