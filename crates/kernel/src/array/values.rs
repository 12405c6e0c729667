//! The values of a decoded array, a block at a time: little-endian and side by side, whatever their order is in memory. What is
//! shuffled is put together block by block, so that it is read from the cache when it is reduced.

use super::{Dtype, Spec};
use crate::loops::simd::{self, Level, Pass};
use crate::loops::swap;

/// Values in a block.
pub(super) const BLOCK: usize = 4096;

/// Raw values.
#[derive(Debug)]
pub(super) struct Values<'a> {
    raw: &'a [u8],
    size: usize,
    shuffled: bool,
    swapped: bool,
}

impl<'a> Values<'a> {
    pub(super) fn new(raw: &'a [u8], spec: &Spec, shuffled: bool) -> Self {
        let size = Dtype::size(spec.dtype);
        Self {
            raw,
            size,
            shuffled: shuffled && size > 1,
            swapped: spec.big_endian && size > 1,
        }
    }

    /// Values `first` to `first + count`, at most [`BLOCK`]; in `room` if they don't lie like that in memory.
    pub(super) fn block<'b>(
        &'b self,
        first: usize,
        count: usize,
        room: &'b mut Vec<u8>,
    ) -> &'b [u8] {
        let size = self.size;
        let plain = &self.raw[first * size..][..count * size];
        if !self.shuffled && !self.swapped {
            return plain;
        }
        room.resize(BLOCK * size, 0);
        let room = &mut room[..count * size];
        if self.shuffled {
            self.unshuffle(first, count, room);
        } else {
            swap::swap(plain, room, size);
        }
        room
    }

    fn unshuffle(&self, first: usize, count: usize, to: &mut [u8]) {
        let level = Level::best();
        let planes = self.raw.len() / self.size;
        // The planes of bytes with the lowest first.
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
                Words::<2> {
                    planes: [0, 1].map(plane),
                    to,
                },
            ),
            4 => simd::run(
                level,
                Words::<4> {
                    planes: [0, 1, 2, 3].map(plane),
                    to,
                },
            ),
            _ => simd::run(
                level,
                Words::<8> {
                    planes: [0, 1, 2, 3, 4, 5, 6, 7].map(plane),
                    to,
                },
            ),
        }
    }
}

/// Puts values of `N` bytes together.
struct Words<'a, const N: usize> {
    planes: [&'a [u8]; N],
    to: &'a mut [u8],
}

impl<const N: usize> Pass for Words<'_, N> {
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
