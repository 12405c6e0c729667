//! Values of a decoded array, one block at a time: little-endian and contiguous, whatever their order in memory. Shuffled values are
//! reassembled block by block, so that a reduction reads them from the cache.

use super::{ArrayError, Dtype};
use crate::loops::simd::{self, Level, SimdPass};
use crate::loops::swap;

/// Maximum number of values in a block.
pub(crate) const BLOCK: usize = 4096;

/// Raw values of a decoded array.
#[derive(Debug)]
pub(crate) struct RawValues<'a> {
    raw: &'a [u8],
    size: usize,
    shuffled: bool,
    swapped: bool,
    /// Whether all values are equal to the single value in `raw`.
    constant: bool,
}

impl<'a> RawValues<'a> {
    pub(crate) fn new(raw: &'a [u8], (dtype, big_endian): (Dtype, bool), shuffled: bool) -> Self {
        let size = dtype.size();
        Self {
            raw,
            size,
            shuffled: shuffled && size > 1,
            swapped: big_endian && size > 1,
            constant: false,
        }
    }

    /// Returns any number of equal values.
    pub(crate) fn constant(
        raw: &'a [u8],
        (dtype, big_endian): (Dtype, bool),
    ) -> Result<Self, ArrayError> {
        if raw.len() != dtype.size() {
            let (found, expected) = (raw.len(), dtype.size());
            return Err(ArrayError::Size { found, expected });
        }
        let values = Self::new(raw, (dtype, big_endian), false);
        Ok(Self {
            constant: true,
            ..values
        })
    }

    /// Returns values `first` to `first + count`, at most [`BLOCK`]; in `buffer` if they are not contiguous and little-endian in memory.
    pub(crate) fn block<'b>(
        &'b self,
        first: usize,
        count: usize,
        buffer: &'b mut Vec<u8>,
    ) -> &'b [u8] {
        let size = self.size;
        if self.constant {
            return self.repeated(count, buffer);
        }
        let plain = &self.raw[first * size..][..count * size];
        if !self.shuffled && !self.swapped {
            return plain;
        }
        buffer.resize(BLOCK * size, 0);
        let buffer = &mut buffer[..count * size];
        if self.shuffled {
            self.unshuffle(first, count, buffer);
        } else {
            swap::swap(plain, buffer, size);
        }
        buffer
    }

    /// Returns values from memory without a copy, like [`Self::block`], if they are contiguous and only their byte order differs.
    pub(crate) fn swapped(&self, first: usize, count: usize) -> Option<&[u8]> {
        let lie = self.swapped && !self.shuffled && !self.constant;
        lie.then(|| &self.raw[first * self.size..][..count * self.size])
    }

    fn repeated<'b>(&self, count: usize, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        buffer.resize(BLOCK * self.size, 0);
        for value in buffer.chunks_exact_mut(self.size).take(count) {
            value.copy_from_slice(self.raw);
            if self.swapped {
                value.reverse();
            }
        }
        &buffer[..count * self.size]
    }

    fn unshuffle(&self, first: usize, count: usize, to: &mut [u8]) {
        let level = Level::best();
        let planes = self.raw.len() / self.size;
        // Planes of bytes, the lowest first.
        let plane = |byte: usize| {
            let byte = if self.swapped {
                self.size - 1 - byte
            } else {
                byte
            };
            &self.raw[byte * planes + first..][..count]
        };
        match self.size {
            2 => simd::run(
                level,
                BytePlanes::<2> {
                    planes: [0, 1].map(plane),
                    to,
                },
            ),
            4 => simd::run(
                level,
                BytePlanes::<4> {
                    planes: [0, 1, 2, 3].map(plane),
                    to,
                },
            ),
            _ => simd::run(
                level,
                BytePlanes::<8> {
                    planes: [0, 1, 2, 3, 4, 5, 6, 7].map(plane),
                    to,
                },
            ),
        }
    }
}

/// Reassembles shuffled values of `N` bytes.
struct BytePlanes<'a, const N: usize> {
    planes: [&'a [u8]; N],
    to: &'a mut [u8],
}

impl<const N: usize> SimdPass for BytePlanes<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (to, _) = self.to.as_chunks_mut::<N>();
        let planes = self.planes.map(|plane| &plane[..to.len()]);
        for (place, to) in to.iter_mut().enumerate() {
            let mut value = 0_u64;
            for (byte, plane) in planes.iter().enumerate() {
                value |= u64::from(plane[place]) << (8 * byte);
            }
            to.copy_from_slice(&value.to_le_bytes()[..N]);
        }
    }
}
