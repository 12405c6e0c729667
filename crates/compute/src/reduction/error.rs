//! Reasons why a variable cannot be reduced.

use crate::array::ArrayError;

/// Reason why a variable cannot be reduced.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("{file}: {source}")]
    Format {
        file: String,
        source: Box<tidemill_format::Error>,
    },
    #[error("{file}: chunk {chunk} of {variable}{}: {source}", .place.as_deref().unwrap_or_default())]
    Chunk {
        file: String,
        variable: String,
        chunk: u64,
        place: Option<String>,
        source: Box<ArrayError>,
    },
    #[error("{what} {text:?}: {why}")]
    Text {
        what: &'static str,
        text: String,
        why: String,
    },
    #[error("{variable} of {file} has no dimension {name}; there are {}", .there.join(", "))]
    NoDimension {
        file: String,
        variable: String,
        name: String,
        there: Vec<String>,
    },
    #[error("{variable} of {file}: {what}, which can't be reduced")]
    Unsupported {
        file: String,
        variable: String,
        what: String,
    },
    #[error("{file}: dimension {dimension}: {why}")]
    Selection {
        file: String,
        dimension: String,
        why: String,
    },
    #[error("{file} and {other} don't fit together: {why}")]
    Files {
        file: String,
        other: String,
        why: String,
    },
    #[error("the result has {0} values; one of more than {max} is written as netCDF only: name a .nc file with --to (the kernel: to=nc), or reduce more dimensions", max = super::CELLS_MAX)]
    TooLarge(u64),
    #[error("one piece of the result has more than {max} bytes: select less of it at a time", max = super::STATE_BYTES_MAX)]
    PieceTooLarge,
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error("{file}: {source}")]
    Io {
        file: String,
        source: std::io::Error,
    },
    #[error("the values changed while they were read: ranks need several passes; try again")]
    Changed,
    #[error("{0}")]
    Query(String),
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns the error of an invalid file, or of an invalid request for the file.
    pub(super) fn of(file: impl Into<String>, source: tidemill_format::Error) -> Self {
        Self::Format {
            file: file.into(),
            source: Box::new(source),
        }
    }
}
