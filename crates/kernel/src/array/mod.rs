//! Reductions of n-dimensional arrays as they are stored: decode, select, leave out what is missing, and count, sum or find
//! the smallest or largest value, over all axes or some. Pure functions over bytes.
//!
//! What is asked for is a [`Spec`]. [`Plan::new`] checks all of it that can be checked without the bytes, and says how many
//! those are once they are decoded; only then is anything allocated. [`Reducer::fold`] gives a [`State`]; states of
//! several pieces of the same array [merge](State::merge), and [`State::finish`] gives the values.
//!
//! Numbers are those of the interface of reductionist (`docs/reductions.md`): the result has the type of the array, sums of integers
//! wrap as the type does. Sums of floats are added up in `f64`, in pairs and with compensation, and rounded once, however the
//! array was cut.

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
pub use held::{Held, HeldError, HeldPiece};
pub use plan::Plan;
pub use state::{Reduced, State};
pub use text::{Encoded, TextError, columns};

use codec::Decoder;
use serde::{Deserialize, Serialize};
use std::fmt;
use values::Values;

/// Dimensions of an array.
pub const DIMENSIONS_MAX: usize = 32;

/// Bytes of an array, or of a chunk of one, once it is decoded.
pub const RAW_BYTES_MAX: usize = 256 << 20;

/// Values of a result, with what is kept of each.
pub const RESULT_BYTES_MAX: usize = 64 << 20;

/// Values that stand for missing ones.
pub const MISSING_MAX: usize = 1024;

/// Steps of decoding.
pub const CODECS_MAX: usize = 8;

/// The type of an array's values.
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
    /// Bytes of a value.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// Its name as numpy has it.
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

/// Runs `$body` with `$type` as the type that `$dtype` is.
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

/// What is wanted of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// How many values are not missing.
    Count,
    /// The smallest of them.
    Min,
    /// The largest.
    Max,
    /// Their sum.
    Sum,
    /// All values that are selected, missing ones too.
    Select,
}

/// A number as it is written in a request.
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

/// Which values are missing. NaN is none of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Missing {
    /// Those equal to one of these.
    Values(Vec<Literal>),
    /// Those below the first or above the second.
    Outside(Option<Literal>, Option<Literal>),
}

/// What of a dimension is selected, as numpy's `start:end:stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Slice {
    pub start: i64,
    pub end: i64,
    pub stride: i64,
}

/// A reduction of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// What is wanted.
    pub operation: Operation,
    /// The type of its values.
    pub dtype: Dtype,
    /// Whether their highest byte comes first.
    pub big_endian: bool,
    /// Its dimensions; `None`: one, as long as there are values.
    pub shape: Option<Vec<u64>>,
    /// Whether the first dimension is the one whose values lie side by side, not the last.
    pub fortran: bool,
    /// The axes that are reduced; `None`: all.
    pub axes: Option<Vec<u32>>,
    /// What of each dimension is selected; `None`: all.
    pub selection: Option<Vec<Slice>>,
    /// How it is decoded, in this order.
    pub codecs: Vec<Codec>,
    /// Which values are missing.
    pub missing: Option<Missing>,
}

/// Reduces arrays one after the other, with the same buffers.
#[derive(Debug, Default)]
pub struct Reducer {
    decoder: Decoder,
}

impl Reducer {
    /// Decodes `stored` and reduces it.
    ///
    /// # Errors
    /// If the bytes are not what the spec says.
    pub fn fold(&mut self, spec: &Spec, stored: &[u8]) -> Result<State, ArrayError> {
        let plan = Plan::new(spec)?;
        let how = (spec.codecs.as_slice(), spec.dtype.size());
        let (raw, shuffled) = self.decoder.decode(how, plan.raw_bytes(), stored)?;
        let plan = plan.of(raw.len())?;
        let values = Values::new(raw, (spec.dtype, spec.big_endian), shuffled);
        fold::fold(&plan, &values)
    }

    /// As [`Self::fold`], to the values.
    ///
    /// # Errors
    /// As those of [`Self::fold`].
    pub fn reduce(&mut self, spec: &Spec, stored: &[u8]) -> Result<Reduced, ArrayError> {
        Ok(self.fold(spec, stored)?.finish())
    }
}
