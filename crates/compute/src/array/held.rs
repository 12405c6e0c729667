//! Values of a variable in the bytes of a file, chunk by chunk. The chunks are decoded and written one after the other, in the order of
//! their indices (the last index is the fastest) and in this machine's byte order.
//!
//! The process that has read the file's header sends the locations of the chunks ([`VariablePart`]); this module trusts none of these data.

use super::absent::{Absent, Replace};
use super::codec::{self, Decoder};
use super::error::ArrayError;
use super::{ArrayOperation, ArraySpec, Codec, DIMENSIONS_MAX, Dtype, RAW_BYTES_MAX};
use crate::loops::swap::swap;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Number of bytes whose byte order is changed at once.
const SWAPPED_BYTES: usize = 256 << 10;

/// Maximum size of a value of a variable, in bytes.
const ELEMENT_BYTES_MAX: u32 = 1 << 16;

/// Description of the part of a variable that some bytes contain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariablePart {
    /// Name of the variable, for messages.
    pub variable: String,
    /// Type of the values in numpy's notation, for messages.
    pub dtype: String,
    /// Size of a value, in bytes.
    pub element: u32,
    /// Size of each number in bytes, if numbers are stored in the byte order opposite to this machine's (a value may be two numbers).
    pub swap: Option<u8>,
    /// Shape of the whole variable, for messages.
    pub shape: Vec<u64>,
    /// Shape of the array that each chunk decodes to; `None` if chunks contain plain values.
    pub chunk_shape: Option<Vec<u64>>,
    /// Steps that decode each chunk, in this order.
    pub codecs: Vec<Codec>,
    /// Number of further files, after the first, that contain the bytes: all files count as one, in their order.
    #[serde(default, skip_serializing_if = "is_none")]
    pub more: u32,
    /// Missing values, which are replaced by one value; `None` if all values are written unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<Absent>,
    /// Chunks of the part, in the order in which they are written.
    pub chunks: Vec<HeldChunk>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_none(more: &u32) -> bool {
    *more == 0
}

/// Chunk of a variable, or contiguous values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldChunk {
    /// Indices of the chunk's first value.
    pub start: Vec<u64>,
    /// Number of indices along each dimension, the first ones of the chunk; a single number stands for contiguous values.
    pub shape: Vec<u64>,
    /// Offset of the chunk's first byte in the available bytes.
    pub offset: u64,
    /// Number of the chunk's stored bytes.
    pub length: u64,
    /// Distance from one index of the first dimension to the next, in bytes, if bytes of other variables are in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<u64>,
    /// Steps that decode this chunk, if they differ from those of the other chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codecs: Option<Vec<Codec>>,
}

/// Reason why the values of a chunk cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// The bytes of a chunk, or their description, are invalid.
    #[error("chunk {number} of {variable}, from index {start:?} on, can't be decoded: {why}")]
    Chunk {
        /// Number of the invalid chunk, from 0.
        number: usize,
        /// Name of the variable.
        variable: String,
        /// Indices of the chunk's first value.
        start: Vec<u64>,
        /// Cause of the error.
        why: ArrayError,
    },
    /// The description of missing values does not fit the values.
    #[error("missing values can't be replaced: {0}")]
    Absent(ArrayError),
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Buffer and options for writing values.
struct SwapBuffer {
    buffer: Vec<u8>,
    replace: Option<Replace>,
}

enum HeldFailure {
    Array(ArrayError),
    Write(io::Error),
}

impl From<ArrayError> for HeldFailure {
    fn from(error: ArrayError) -> Self {
        Self::Array(error)
    }
}

impl From<io::Error> for HeldFailure {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl VariablePart {
    /// Returns the description for a program as JSON: [`VariablePart`] without the data that only decoding needs.
    #[must_use]
    pub fn described(&self, input: &str) -> serde_json::Value {
        let chunk = |one: &HeldChunk| serde_json::json!({ "start": one.start, "shape": one.shape });
        let chunks: Vec<_> = self.chunks.iter().map(chunk).collect();
        serde_json::json!({
            "input": input, "variable": self.variable, "dtype": self.dtype, "itemsize": self.element, "shape": self.shape, "chunks": chunks,
        })
    }

    /// Decodes all chunks from the bytes `stored`, and writes their values to `out`.
    ///
    /// # Errors
    /// The error of the first chunk that cannot be decoded, or of `out`.
    pub fn decode(&self, stored: &[u8], out: &mut dyn Write) -> Result<(), ChunkError> {
        self.decode_all(&[stored], out)
    }

    /// Decodes all chunks, like [`Self::decode`], from the bytes of several files that count as one.
    ///
    /// # Errors
    /// Errors of [`Self::decode`].
    pub fn decode_all(&self, stored: &[&[u8]], out: &mut dyn Write) -> Result<(), ChunkError> {
        let mut decoder = Decoder::default();
        let absent = self.absent.as_ref();
        let replace = absent.map(|absent| absent.replace(self.element));
        let mut turned = SwapBuffer {
            buffer: Vec::new(),
            replace: replace.transpose().map_err(ChunkError::Absent)?,
        };
        for (number, chunk) in self.chunks.iter().enumerate() {
            let done = self.chunk(chunk, (stored, &mut decoder), &mut turned, out);
            done.map_err(|failed| match failed {
                HeldFailure::Write(error) => ChunkError::Write(error),
                HeldFailure::Array(why) => ChunkError::Chunk {
                    number,
                    variable: self.variable.clone(),
                    start: chunk.start.clone(),
                    why,
                },
            })?;
        }
        Ok(())
    }

    fn chunk(
        &self,
        chunk: &HeldChunk,
        (stored, decoder): (&[&[u8]], &mut Decoder),
        turned: &mut SwapBuffer,
        out: &mut dyn Write,
    ) -> Result<(), HeldFailure> {
        let numbers_fit =
            |size: u8| matches!(size, 2 | 4 | 8) && self.element.is_multiple_of(u32::from(size));
        if !(1..=ELEMENT_BYTES_MAX).contains(&self.element) || !self.swap.is_none_or(numbers_fit) {
            return Err(ArrayError::ElementSize.into());
        }
        let bytes = bytes_of(chunk, stored).ok_or(ArrayError::Beyond)?;
        let mut write = |values: &[u8]| self.turn(values, turned, out);
        let Some(chunk_shape) = &self.chunk_shape else {
            return self.values(chunk, bytes, &mut write);
        };
        let raw = self.bytes_of(chunk_shape)?;
        if raw > RAW_BYTES_MAX {
            return Err(ArrayError::TooLarge.into());
        }
        let spec = plain(chunk.codecs.as_ref().unwrap_or(&self.codecs), raw);
        codec::check(&spec.codecs)?;
        let how = (spec.codecs.as_slice(), spec.dtype.size());
        let (found, _) = decoder.decode(how, Some(raw), bytes)?;
        if found.len() != raw {
            let (found, expected) = (found.len(), raw);
            return Err(ArrayError::Size { found, expected }.into());
        }
        let fits = chunk.shape.len() == chunk_shape.len()
            && chunk
                .shape
                .iter()
                .zip(chunk_shape)
                .all(|(taken, all)| taken <= all);
        if !fits {
            return Err(ArrayError::Beyond.into());
        }
        self.corner(found, (chunk_shape, &chunk.shape), &mut write)
    }

    /// Returns the size of an array of the variable's values, in bytes.
    fn bytes_of(&self, shape: &[u64]) -> Result<usize, ArrayError> {
        // A single value has no dimensions.
        if shape.len() > DIMENSIONS_MAX {
            return Err(ArrayError::Dimensions(shape.len()));
        }
        let size = shape
            .iter()
            .try_fold(u64::from(self.element), |size, &length| {
                size.checked_mul(length)
            });
        size.and_then(|size| usize::try_from(size).ok())
            .ok_or(ArrayError::TooLarge)
    }

    /// Writes the values of a chunk that is not an array.
    fn values(
        &self,
        chunk: &HeldChunk,
        bytes: &[u8],
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), HeldFailure> {
        let expected = self.bytes_of(&chunk.shape)?;
        let (Some(stride), Some((&rows, row))) = (chunk.stride, chunk.shape.split_first()) else {
            let found = bytes.len();
            return match found == expected {
                true => Ok(write(bytes)?),
                false => Err(ArrayError::Size { found, expected }.into()),
            };
        };
        let row = match row {
            [] => self.element as usize,
            row => self.bytes_of(row)?,
        };
        if row == 0 || stride < row as u64 {
            return Err(ArrayError::Beyond.into());
        }
        let stride = usize::try_from(stride).map_err(|_| ArrayError::TooLarge)?;
        let mut gathered = Vec::new();
        for index in 0..rows {
            let begin = usize::try_from(index)
                .ok()
                .and_then(|index| index.checked_mul(stride));
            let found = begin.and_then(|begin| bytes.get(begin..)?.get(..row));
            gathered.extend_from_slice(found.ok_or(ArrayError::Beyond)?);
            if gathered.len() >= SWAPPED_BYTES {
                write(&gathered)?;
                gathered.clear();
            }
        }
        Ok(write(&gathered)?)
    }

    /// Writes the values of a corner of an array: `shape` of `all`.
    fn corner(
        &self,
        array: &[u8],
        (all, shape): (&[u64], &[u64]),
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), HeldFailure> {
        // Inner dimensions that are taken completely are contiguous.
        let cut = shape.iter().zip(all).rposition(|(taken, all)| taken != all);
        let cut = cut.unwrap_or(0);
        let size = |shape: &[u64]| shape.iter().product::<u64>() * u64::from(self.element);
        if shape.contains(&0) {
            return Ok(());
        }
        let row = size(&shape[cut..]);
        let steps: Vec<u64> = (0..cut).map(|one| size(&all[one + 1..])).collect();
        let mut at = vec![0_u64; cut];
        loop {
            let begin: u64 = at
                .iter()
                .zip(&steps)
                .map(|(index, step)| index * step)
                .sum();
            let place = |byte: u64| usize::try_from(byte).map_err(|_| ArrayError::TooLarge);
            let values = array.get(place(begin)?..place(begin + row)?);
            write(values.ok_or(ArrayError::Beyond)?)?;
            let next = (0..cut).rev().find(|&one| at[one] + 1 < shape[one]);
            let Some(next) = next else { return Ok(()) };
            at[next] += 1;
            at[next + 1..].fill(0);
        }
    }

    /// Writes values in this machine's byte order, and replaces missing values.
    fn turn(&self, values: &[u8], to: &mut SwapBuffer, out: &mut dyn Write) -> io::Result<()> {
        if self.swap.is_none() && to.replace.is_none() {
            return out.write_all(values);
        }
        to.buffer.resize(SWAPPED_BYTES, 0);
        for values in values.chunks(SWAPPED_BYTES) {
            let turned = &mut to.buffer[..values.len()];
            match self.swap {
                Some(size) => swap(values, turned, size.into()),
                None => turned.copy_from_slice(values),
            }
            if let Some(replace) = &to.replace {
                replace(turned);
            }
            out.write_all(turned)?;
        }
        Ok(())
    }
}

/// Returns the stored bytes of a chunk, which must be in one file.
fn bytes_of<'a>(chunk: &HeldChunk, stored: &[&'a [u8]]) -> Option<&'a [u8]> {
    let mut begin = usize::try_from(chunk.offset).ok()?;
    let length = usize::try_from(chunk.length).ok()?;
    for bytes in stored {
        let found = bytes.get(begin..).and_then(|rest| rest.get(..length));
        if found.is_some() {
            return found;
        }
        begin = begin.checked_sub(bytes.len())?;
    }
    None
}

/// Returns the description of an array that decodes to `bytes` bytes.
fn plain(codecs: &[Codec], bytes: usize) -> ArraySpec {
    ArraySpec {
        operation: ArrayOperation::Select,
        dtype: Dtype::Uint8,
        big_endian: false,
        shape: Some(vec![bytes as u64]),
        fortran: false,
        axes: None,
        selection: None,
        codecs: codecs.to_vec(),
        missing: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(held: &VariablePart, stored: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let done = held.decode(stored, &mut out);
        done.map(|()| out).map_err(|error| error.to_string())
    }

    fn held(
        chunk_shape: Option<Vec<u64>>,
        codecs: Vec<Codec>,
        chunks: Vec<HeldChunk>,
    ) -> VariablePart {
        VariablePart {
            variable: "tas".into(),
            dtype: "int16".into(),
            element: 2,
            swap: None,
            shape: vec![4, 6],
            chunk_shape,
            codecs,
            more: 0,
            absent: None,
            chunks,
        }
    }

    fn chunk(start: [u64; 2], shape: &[u64], offset: usize, length: usize) -> HeldChunk {
        HeldChunk {
            start: start.to_vec(),
            shape: shape.to_vec(),
            offset: offset as u64,
            length: length as u64,
            stride: None,
            codecs: None,
        }
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut deflate = libdeflater::Compressor::default();
        let mut to = vec![0; deflate.zlib_compress_bound(bytes.len())];
        let made = deflate.zlib_compress(bytes, &mut to).unwrap();
        to.truncate(made);
        to
    }

    #[test]
    fn chunks_are_decoded_cut_and_byte_swapped() {
        let values: Vec<u8> = (0..24).collect();
        // Two bytes each: first all low bytes, then all high bytes.
        let shuffled: Vec<u8> = values
            .iter()
            .step_by(2)
            .chain(values.iter().skip(1).step_by(2))
            .copied()
            .collect();
        let stored = zlib(&shuffled);
        let chunk_shape = Some(vec![3, 4]);
        let codecs = vec![Codec::Zlib, Codec::Shuffle(2)];
        let whole = chunk([0, 0], &[3, 4], 0, stored.len());
        let mut one = held(
            chunk_shape.clone(),
            codecs,
            vec![whole.clone(), chunk([0, 4], &[2, 2], 0, stored.len())],
        );
        let corner = [0, 1, 2, 3, 8, 9, 10, 11];
        assert_eq!(
            decoded(&one, &stored).unwrap(),
            [&values[..], &corner].concat()
        );
        one.swap = Some(2);
        assert_eq!(decoded(&one, &stored).unwrap()[..4], [1, 0, 3, 2]);
        // A chunk to which a filter was not applied.
        let plain = HeldChunk {
            codecs: Some(vec![]),
            ..chunk([0, 0], &[3, 4], stored.len(), 24)
        };
        let both = held(chunk_shape, one.codecs.clone(), vec![plain, whole]);
        let all = [&stored[..], &values].concat();
        assert_eq!(
            decoded(&both, &all).unwrap(),
            [&values[..], &values].concat()
        );
        let wrong = decoded(&both, &all[..all.len() - 1]).unwrap_err();
        assert_eq!(
            wrong,
            "chunk 0 of tas, from index [0, 0] on, can't be decoded: its description does not fit its bytes"
        );
        let mut corrupt = all;
        corrupt[2] ^= 0xff;
        let wrong = decoded(&both, &corrupt).unwrap_err();
        assert!(
            wrong.starts_with("chunk 1 of tas, from index [0, 0] on, can't be decoded: zlib: "),
            "{wrong}"
        );
    }

    #[test]
    fn decode_joins_files_and_refuses_chunk_across_two_files() {
        let files: [&[u8]; 3] = [&[0, 1, 2, 3], &[], &[4, 5, 6, 7, 8, 9]];
        let of = |chunks: Vec<HeldChunk>| {
            let mut out = Vec::new();
            let done = held(None, vec![], chunks).decode_all(&files, &mut out);
            done.map(|()| out).map_err(|error| error.to_string())
        };
        let got = of(vec![chunk([0, 2], &[2], 6, 4), chunk([0, 0], &[1], 2, 2)]);
        assert_eq!(got.unwrap(), [6, 7, 8, 9, 2, 3]);
        for (offset, length) in [(2, 4), (8, 4), (10, 2), (usize::MAX, 2)] {
            let wrong = of(vec![chunk([0, 0], &[length as u64 / 2], offset, length)]);
            assert!(wrong.is_err(), "{offset} {length}");
        }
    }

    #[test]
    fn strided_chunk_picks_records_of_variable() {
        let values: Vec<u8> = (0..30).collect();
        let rows = HeldChunk {
            stride: Some(10),
            ..chunk([1, 0], &[3, 2], 3, 24)
        };
        let got = decoded(&held(None, vec![], vec![rows.clone()]), &values).unwrap();
        assert_eq!(got, [3, 4, 5, 6, 13, 14, 15, 16, 23, 24, 25, 26]);
        for stride in [0, 3, u64::MAX] {
            let rows = HeldChunk {
                stride: Some(stride),
                ..rows.clone()
            };
            assert!(
                decoded(&held(None, vec![], vec![rows]), &values).is_err(),
                "{stride}"
            );
        }
        let run = chunk([0, 1], &[2], 4, 4);
        assert_eq!(
            decoded(&held(None, vec![], vec![run]), &values).unwrap(),
            [4, 5, 6, 7]
        );
    }

    proptest! {
        #[test]
        fn decode_never_reads_past_input_for_any_header(
            element in 0_u32..9, swap in proptest::option::of(0_u8..9),
            chunk_shape in proptest::option::of(proptest::collection::vec(prop_oneof![0_u64..6, Just(u64::MAX)], 0..4)),
            shape in proptest::collection::vec(prop_oneof![0_u64..6, Just(1 << 40), Just(u64::MAX)], 0..4),
            offset in prop_oneof![0_u64..70, Just(u64::MAX)], length in prop_oneof![0_u64..70, Just(u64::MAX)],
            stride in proptest::option::of(prop_oneof![0_u64..20, Just(u64::MAX)]),
            codec in 0_usize..4,
        ) {
            let codecs = [vec![], vec![Codec::Zlib], vec![Codec::Shuffle(0)], vec![Codec::Fletcher32, Codec::Shuffle(3)]];
            let chunks = vec![HeldChunk { start: vec![], shape, offset, length, stride, codecs: None }];
            let one = VariablePart { element, swap, ..held(chunk_shape, codecs[codec].clone(), chunks) };
            if let Ok(got) = decoded(&one, &[7; 64]) {
                prop_assert!(got.len() <= 64);
            }
        }
    }
}
