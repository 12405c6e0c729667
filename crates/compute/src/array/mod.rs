//! Reductions of n-dimensional arrays in their stored form: decode, select, leave out missing values, and count, sum or find the smallest
//! or largest value, over all axes or some axes. The functions are pure functions over bytes.
//!
//! A [`ArraySpec`] describes the reduction. [`ArrayPlan::new`] checks everything that can be checked without the bytes, and computes the
//! size of the decoded bytes; only then is memory allocated. [`Reducer::fold`] returns an [`ArrayState`]; states of several pieces of the
//! same array [merge](ArrayState::merge), and [`ArrayState::finish`] returns the values.
//!
//! The numbers follow the interface of reductionist (`docs/reductions.md`): the result has the type of the array, and sums of integers
//! wrap as the type does. Sums of floats are computed in `f64`, in pairs and with compensation, and are rounded once, however the array
//! was divided.

mod absent;
pub(crate) mod codec;
mod error;
mod fold;
mod held;
pub(crate) mod pass;
mod plan;
mod state;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod values;

pub use absent::{Absent, absent};
pub use codec::Codec;
pub use error::ArrayError;
pub use held::{ChunkError, HeldChunk, VariablePart};
pub use plan::ArrayPlan;
pub use state::{ArrayState, Reduced};
pub use text::{Encoded, TextError, columns};

use codec::Decoder;
use serde::{Deserialize, Serialize};
use std::fmt;
use values::RawValues;

/// Maximum number of dimensions of an array.
pub const DIMENSIONS_MAX: usize = 32;

/// Maximum size of a decoded array, or of one of its chunks, in bytes.
pub const RAW_BYTES_MAX: usize = 256 << 20;

/// Maximum size of a result, in bytes, including the state of each value.
pub const RESULT_BYTES_MAX: usize = 64 << 20;

/// Maximum number of values that a request may declare as missing.
pub const MISSING_MAX: usize = 1024;

/// Maximum number of decoding steps of an array.
pub const CODECS_MAX: usize = 8;

/// Type of an array's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Dtype {
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Float32,
    Float64,
}

impl Dtype {
    /// Returns the size of a value, in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// Returns numpy's name of the type, such as `int32`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Evaluates `$body` with `$type` as the type that `$dtype` stands for.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $body:expr) => {{
        use $crate::array::Dtype;
        match $dtype {
            Dtype::Int8 => {
                type $type = i8;
                $body
            }
            Dtype::Int16 => {
                type $type = i16;
                $body
            }
            Dtype::Int32 => {
                type $type = i32;
                $body
            }
            Dtype::Int64 => {
                type $type = i64;
                $body
            }
            Dtype::Uint8 => {
                type $type = u8;
                $body
            }
            Dtype::Uint16 => {
                type $type = u16;
                $body
            }
            Dtype::Uint32 => {
                type $type = u32;
                $body
            }
            Dtype::Uint64 => {
                type $type = u64;
                $body
            }
            Dtype::Float32 => {
                type $type = f32;
                $body
            }
            Dtype::Float64 => {
                type $type = f64;
                $body
            }
        }
    }};
}
pub(crate) use with_type;

/// Requested result of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrayOperation {
    /// Number of values that are not missing.
    Count,
    /// Smallest of the values that are not missing.
    Min,
    /// Largest of the values that are not missing.
    Max,
    /// Sum of the values that are not missing.
    Sum,
    /// All selected values, including missing ones.
    Select,
}

/// Number as it is written in a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Literal {
    Int(i64),
    Uint(u64),
    Float(f64),
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Uint(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
        }
    }
}

/// Rule for missing values. NaN never counts as such a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Missing {
    /// Values equal to any of these numbers are missing.
    Values(Vec<Literal>),
    /// Values below the first number or above the second number are missing.
    Outside(Option<Literal>, Option<Literal>),
}

/// Selected indices of a dimension, like numpy's `start:end:stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ArraySlice {
    pub start: i64,
    pub end: i64,
    pub stride: i64,
}

/// Reduction of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArraySpec {
    /// Requested result of the reduction.
    pub operation: ArrayOperation,
    /// Type of the array's values.
    pub dtype: Dtype,
    /// Whether the most significant byte is stored first.
    pub big_endian: bool,
    /// Shape of the array; `None` for one dimension, whose length follows from the number of values.
    pub shape: Option<Vec<u64>>,
    /// Whether the first dimension is contiguous in memory, and not the last.
    pub fortran: bool,
    /// Axes that are reduced; `None` for all axes.
    pub axes: Option<Vec<u32>>,
    /// Selected part of each dimension; `None` for the whole array.
    pub selection: Option<Vec<ArraySlice>>,
    /// Steps that decode the array, in this order.
    pub codecs: Vec<Codec>,
    /// Rule for missing values.
    pub missing: Option<Missing>,
}

/// Reduces arrays one after the other, with the same buffers.
#[derive(Debug, Default)]
pub struct Reducer {
    decoder: Decoder,
}

impl Reducer {
    /// Decodes `stored` and reduces the values.
    ///
    /// # Errors
    /// If the bytes do not match the spec of the reduction.
    pub fn fold(&mut self, spec: &ArraySpec, stored: &[u8]) -> Result<ArrayState, ArrayError> {
        let plan = ArrayPlan::new(spec)?;
        let how = (spec.codecs.as_slice(), spec.dtype.size());
        let (raw, shuffled) = self.decoder.decode(how, plan.raw_bytes(), stored)?;
        let plan = plan.of(raw.len())?;
        let values = RawValues::new(raw, (spec.dtype, spec.big_endian), shuffled);
        fold::fold(&plan, &values)
    }

    /// Decodes and reduces `stored` like [`Self::fold`], and returns the values of the result.
    ///
    /// # Errors
    /// Errors of [`Self::fold`].
    pub fn reduce(&mut self, spec: &ArraySpec, stored: &[u8]) -> Result<Reduced, ArrayError> {
        Ok(self.fold(spec, stored)?.finish())
    }
}
