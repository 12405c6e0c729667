//! What can be wrong with a file, a variable's name or a selection.

use std::io;

/// Why a file, a variable or a selection can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file begins like none of the formats that are known.
    #[error(
        "neither netCDF, HDF5, FITS nor a zip file with a Zarr in it: the first bytes are {first}"
    )]
    Unknown {
        /// The first bytes, in hexadecimal.
        first: String,
    },
    /// The file is shorter than it says.
    #[error(
        "{what} needs bytes {offset} to {end}, and the file ends at {size}: it is truncated or damaged"
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// First byte that was wanted.
        offset: u64,
        /// First byte after those.
        end: u64,
        /// Bytes that there are.
        size: u64,
    },
    /// Bytes that mean nothing there.
    #[error("{what} at byte {offset} is damaged: {why}")]
    Corrupt {
        /// What was being read.
        what: &'static str,
        /// Where it lies.
        offset: u64,
        /// What is wrong with it.
        why: String,
    },
    /// A text file of a Zarr that can't be understood.
    #[error("{file}: {why}")]
    Metadata {
        /// The file, as a path in its folder.
        file: String,
        /// What is wrong, and at which place.
        why: String,
    },
    /// More than any real file has.
    #[error("more than {limit} {what}: files like this are not read")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much is read.
        limit: u64,
    },
    /// Something that the format can say and this reader can't follow.
    #[error("{variable}: {what}, which can't be read")]
    Unsupported {
        /// The variable.
        variable: String,
        /// What it uses.
        what: String,
    },
    /// An attribute about missing values, valid ones or packing that has no certain reading.
    #[error("{variable}: attribute {attribute}: {why}")]
    Attribute {
        /// The variable.
        variable: String,
        /// The attribute, by name.
        attribute: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// A name that the file does not have.
    #[error("no variable {name}; there are {}", .there.join(", "))]
    NoVariable {
        /// What was asked for.
        name: String,
        /// Those that are there, the first of them.
        there: Vec<String>,
    },
    /// A selection that the variable does not have.
    #[error("{variable}: selection of dimension {dimension}: {why}")]
    Selection {
        /// The variable.
        variable: String,
        /// The dimension, by name.
        dimension: String,
        /// What is wrong with it.
        why: String,
    },
    /// A time, or units of time, that can't be understood.
    #[error("time {text:?}: {why}")]
    Time {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The bytes could not be read.
    #[error("reading {what} at byte {offset}")]
    Io {
        /// What was being read.
        what: &'static str,
        /// Where.
        offset: u64,
        /// Why not.
        source: io::Error,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
