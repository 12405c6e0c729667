//! Reasons why an array cannot be reduced.

use super::{CODECS_MAX, DIMENSIONS_MAX, Dtype, MISSING_MAX, RAW_BYTES_MAX, RESULT_BYTES_MAX};

/// Reason why an array cannot be reduced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ArrayError {
    #[error("an array has 1 to {DIMENSIONS_MAX} dimensions, not {0}")]
    Dimensions(usize),
    #[error("dimension {0} has length 0: lengths are 1 or more")]
    EmptyDimension(usize),
    #[error(
        "the array has more than {RAW_BYTES_MAX} bytes: ask for its chunks, or parts of it, one by one"
    )]
    TooLarge,
    #[error("the result has more than {RESULT_BYTES_MAX} bytes: ask for parts of it")]
    ResultTooLarge,
    #[error(
        "a selection is one [start, end, stride] a dimension: there are {dimensions}, and {given} were given"
    )]
    Selection { dimensions: usize, given: usize },
    #[error("the stride of dimension {0} is 0: a stride is a positive or negative number")]
    Stride(usize),
    #[error("{0} needs `shape`")]
    NeedsShape(&'static str),
    #[error("axis {axis} is beyond the array's {dimensions} dimensions, which are numbered from 0")]
    Axis { axis: u32, dimensions: usize },
    #[error("axes are given in ascending order, each once")]
    AxesOrder,
    #[error("{value} is no {dtype}, which the missing values of this array are")]
    Missing { value: String, dtype: Dtype },
    #[error("the smallest valid value, {0}, is not below the largest, {1}")]
    EmptyRange(String, String),
    #[error("a request has up to {MISSING_MAX} missing values")]
    ManyMissing,
    #[error("an array has up to {CODECS_MAX} filters")]
    ManyCodecs,
    #[error("a filter's element_size is 1 to 255 bytes")]
    ElementSize,
    #[error(
        "{0} can't be decoded here: there is no decoder for it that is small and safe enough; read the file by /files and \
         decode it yourself, or store it with zlib, gzip or zstd"
    )]
    Unsupported(&'static str),
    #[error("{format}: {why}")]
    Corrupt {
        format: &'static str,
        why: &'static str,
    },
    #[error("after decoding there are {found} bytes, where shape and dtype make {expected}")]
    Size { found: usize, expected: usize },
    #[error("after decoding there are {found} bytes, which are no whole values of {size} bytes")]
    Ragged { found: usize, size: usize },
    #[error("the checksum is {found:08x}, where {expected:08x} was stored")]
    Checksum { found: u32, expected: u32 },
    #[error("its description does not fit its bytes")]
    Beyond,
    #[error("these results are not of the same reduction")]
    OtherReduction,
}

impl ArrayError {
    /// Returns whether the stored bytes are the cause of the error, not the request.
    #[must_use]
    pub fn is_of_data(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. } | Self::Size { .. } | Self::Ragged { .. } | Self::Checksum { .. }
        )
    }
}
