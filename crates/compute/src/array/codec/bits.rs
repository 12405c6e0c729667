//! Bitshuffle: groups bits of one significance, as HDF5's filter 32008 and Blosc do. The code follows the description of the format
//! (Masui et al., Astronomy and Computing 12, 2015) and files of the library.

use super::{DecodeFailure, InnerDecompressor};

/// Default size of a block in bytes; the next constant is the minimum number of elements in a block.
const BLOCK_BYTES: usize = 8192;
const BLOCK_ELEMENTS_MIN: usize = 128;

const CORRUPT: DecodeFailure = DecodeFailure::Data("the bytes are corrupt, or are no such data");

/// Compression of a block after its bits are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BitCompression {
    No,
    Lz4,
    Zstd,
}

impl BitCompression {
    /// Returns the compression for the fifth parameter of HDF5's filter.
    pub(super) fn numbered(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::No,
            2 => Self::Lz4,
            3 => Self::Zstd,
            _ => return None,
        })
    }
}

/// Reverses the grouping of bits in one block of elements of `size` bytes; the number of elements must be a multiple of 8.
pub(super) fn unshuffle(from: &[u8], size: usize, to: &mut [u8]) {
    let row = from.len() / size / 8;
    for byte in 0..size {
        let planes = &from[byte * 8 * row..(byte + 1) * 8 * row];
        for eight in 0..row {
            let mut bits = 0_u64;
            for plane in 0..8 {
                bits |= u64::from(planes[plane * row + eight]) << (8 * plane);
            }
            let values = transposed(bits).to_le_bytes();
            for (place, value) in values.into_iter().enumerate() {
                to[(eight * 8 + place) * size + byte] = value;
            }
        }
    }
}

/// Returns the transpose of a matrix of 8 × 8 bits (Hacker's Delight, section 7-3).
fn transposed(mut bits: u64) -> u64 {
    for (shift, mask) in [
        (7, 0x00aa_00aa_00aa_00aa),
        (14, 0x0000_cccc_0000_cccc),
        (28, 0x0000_0000_f0f0_f0f0),
    ] {
        let swapped = (bits ^ bits >> shift) & mask;
        bits ^= swapped ^ swapped << shift;
    }
    bits
}

/// Decodes the output of HDF5's filter with elements of `size` bytes; returns the number of bytes. `block` is the number of elements in a
/// block, 0 if the library chose it. Without compression the number of bytes does not change.
pub(super) fn decode(
    input: &[u8],
    to: &mut [u8],
    (size, block, packed): (usize, usize, BitCompression),
    within: &mut dyn InnerDecompressor,
) -> Result<usize, DecodeFailure> {
    let (mut input, total, block) = match packed {
        BitCompression::No => (input, input.len(), chosen(block, size)),
        _ => {
            let (head, rest) = input.split_first_chunk::<12>().ok_or(CORRUPT)?;
            let (total, bytes) = head.split_at(8);
            let total = total
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            let bytes = bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            let total = usize::try_from(total).map_err(|_| DecodeFailure::Space)?;
            (rest, total, chosen(bytes / size, size))
        }
    };
    if total > to.len() {
        return Err(DecodeFailure::Space);
    }
    let to = &mut to[..total];
    let mut scratch = Vec::new();
    let whole = total / size / 8 * 8;
    let mut done = 0;
    while done < whole {
        let count = block.min(whole - done);
        let (from, until) = (done * size, (done + count) * size);
        let bits = match packed {
            BitCompression::No => {
                let (bits, rest) = input.split_at_checked(until - from).ok_or(CORRUPT)?;
                input = rest;
                bits
            }
            _ => {
                let (length, rest) = input.split_first_chunk::<4>().ok_or(CORRUPT)?;
                let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| CORRUPT)?;
                let (stored, rest) = rest.split_at_checked(length).ok_or(CORRUPT)?;
                input = rest;
                scratch.resize(until - from, 0);
                let made = match packed {
                    BitCompression::Zstd => within.zstd(stored, &mut scratch),
                    _ => lz4_flex::block::decompress_into(stored, &mut scratch).ok(),
                };
                if made != Some(until - from) {
                    return Err(CORRUPT);
                }
                &scratch[..]
            }
        };
        unshuffle(bits, size, &mut to[from..until]);
        done += count;
    }
    // Fewer than eight elements, and bytes after the last whole element, are stored unchanged.
    let rest = &mut to[whole * size..];
    rest.copy_from_slice(input.get(..rest.len()).ok_or(CORRUPT)?);
    Ok(total)
}

/// Returns the number of elements in a block, a multiple of 8.
fn chosen(block: usize, size: usize) -> usize {
    match block {
        0 => (BLOCK_BYTES / size / 8 * 8).max(BLOCK_ELEMENTS_MIN),
        block => (block / 8 * 8).max(8),
    }
}
