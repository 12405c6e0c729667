//! Decoding: what was stored becomes raw values. Declared sizes are looked at before anything is allocated, and buffers are used
//! again.

mod bits;
mod blosc;
mod lz;
#[cfg(test)]
mod tests;

use super::error::ArrayError;
use super::plan::Plan;
use super::{CODECS_MAX, RAW_BYTES_MAX};
use bits::Packed;
use libdeflater::{DecompressionError, Decompressor};
use serde::{Deserialize, Serialize};

/// A step of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    /// Deflate in the frame of gzip.
    Gzip,
    /// Deflate in the frame of zlib.
    Zlib,
    /// Zstandard.
    Zstd,
    /// Blosc 2: a frame, or a chunk alone.
    Blosc2,
    /// The first bytes of all elements of this size come first, then their second ones, and so on.
    Shuffle(u8),
    /// Four bytes at the end sum up those before, as HDF5 does it.
    Fletcher32,
    /// Blosc: a chunk.
    Blosc,
    /// LZF, as h5py has it.
    Lzf,
    /// Bits of one significance together, as HDF5's filter 32008 has it.
    Bitshuffle {
        /// Bytes of an element.
        element: u8,
        /// Elements of a block; 0 if the library chose it.
        block: u32,
        /// How they are compressed then: 0 not, 2 by LZ4, 3 by Zstandard.
        packed: u32,
    },
}

impl Codec {
    fn check(self) -> Result<(), ArrayError> {
        match self {
            Self::Shuffle(0) | Self::Bitshuffle { element: 0, .. } => Err(ArrayError::ElementSize),
            Self::Bitshuffle { packed, .. } if Packed::numbered(packed).is_none() => {
                Err(ArrayError::Unsupported("bitshuffle with this compression"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether `codecs` can be undone here.
pub(super) fn check(codecs: &[Codec]) -> Result<(), ArrayError> {
    if codecs.len() > CODECS_MAX {
        return Err(ArrayError::ManyCodecs);
    }
    codecs.iter().try_for_each(|codec| codec.check())
}

/// Decompressors and buffers.
#[derive(Default)]
pub(super) struct Decoder {
    inflate: Option<Decompressor>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    /// What the last step made, and what the next one makes.
    buffers: [Vec<u8>; 2],
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Decoder {
    /// The raw bytes, and whether they are shuffled still: a last step that shuffles values of the array's own type is left to
    /// whoever reads them.
    pub(super) fn decode<'a>(
        &'a mut self,
        plan: &Plan<'_>,
        stored: &'a [u8],
    ) -> Result<(&'a [u8], bool), ArrayError> {
        let codecs = &plan.spec.codecs;
        let fused = codecs.last()
            == u8::try_from(plan.spec.dtype.size())
                .ok()
                .map(Codec::Shuffle)
                .as_ref();
        let steps = &codecs[..codecs.len() - usize::from(fused)];
        // `None`: still what was stored, less what was cut off.
        let (mut made, mut length) = (None, stored.len());
        let [mut one, mut other] = std::mem::take(&mut self.buffers);
        let mut result = Ok(());
        for (place, step) in steps.iter().enumerate() {
            let input = if made.is_some() {
                &one[..length]
            } else {
                &stored[..length]
            };
            let bytes = plan
                .raw_bytes()
                .and_then(|raw| before(&steps[place + 1..], raw));
            let step = match step {
                Codec::Fletcher32 => checked(input),
                Codec::Shuffle(size) => {
                    unshuffle(input, usize::from(*size), &mut other);
                    Ok(length)
                }
                step => self.decompress(*step, input, bytes, &mut other),
            };
            match step {
                Ok(now) => length = now,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            if steps[place] != Codec::Fletcher32 {
                std::mem::swap(&mut one, &mut other);
                made = Some(());
            }
        }
        self.buffers = [one, other];
        result?;
        let raw = if made.is_some() {
            &self.buffers[0][..length]
        } else {
            &stored[..length]
        };
        Ok((raw, fused))
    }

    /// Decompresses to the beginning of `to`; gives how many bytes it made: exactly `bytes`, where that is known.
    fn decompress(
        &mut self,
        codec: Codec,
        input: &[u8],
        bytes: Option<usize>,
        to: &mut Vec<u8>,
    ) -> Result<usize, ArrayError> {
        // Where it is not known, more and more room is tried.
        let mut room =
            bytes.unwrap_or_else(|| input.len().saturating_mul(4).clamp(64 << 10, RAW_BYTES_MAX));
        loop {
            if to.len() < room {
                to.resize(room, 0);
            }
            match self.attempt(codec, input, &mut to[..room]) {
                Ok(made) => {
                    let expected = bytes.unwrap_or(made);
                    return match made == expected {
                        true => Ok(made),
                        false => Err(ArrayError::Size {
                            found: made,
                            expected,
                        }),
                    };
                }
                Err(Failed::Room) if bytes.is_none() && room < RAW_BYTES_MAX => {
                    room = room.saturating_mul(4).min(RAW_BYTES_MAX);
                }
                Err(Failed::Room) if bytes.is_none() => return Err(ArrayError::TooLarge),
                Err(Failed::Room) => {
                    let why = "it decodes to more bytes than shape and dtype make";
                    return Err(corrupt(codec, why));
                }
                Err(Failed::Data(why)) => return Err(corrupt(codec, why)),
            }
        }
    }

    fn attempt(&mut self, codec: Codec, input: &[u8], to: &mut [u8]) -> Result<usize, Failed> {
        let bad = |error| match error {
            DecompressionError::BadData => {
                Failed::Data("the bytes are damaged, or are no such data")
            }
            DecompressionError::InsufficientSpace => Failed::Room,
        };
        let inflate = self.inflate.get_or_insert_with(Decompressor::new);
        match codec {
            Codec::Gzip => inflate.gzip_decompress(input, to).map_err(bad),
            Codec::Zlib => inflate.zlib_decompress(input, to).map_err(bad),
            Codec::Blosc | Codec::Blosc2 => blosc::decode(input, to, self),
            Codec::Lzf => lz::lzf(input, to),
            Codec::Bitshuffle {
                element,
                block,
                packed,
            } => {
                let packed = Packed::numbered(packed).unwrap_or(Packed::No);
                let block = usize::try_from(block).unwrap_or(0);
                let mut zstd = |input: &[u8], to: &mut [u8]| self.unzstd(input, to).ok();
                bits::decode(input, to, (element.into(), block, packed), &mut zstd)
            }
            _ => self.unzstd(input, to),
        }
    }

    fn unzstd(&mut self, input: &[u8], to: &mut [u8]) -> Result<usize, Failed> {
        // Declared sizes are no more than a reason to ask for less room: what is made is bounded by the room.
        let declared = zstd::zstd_safe::get_frame_content_size(input)
            .ok()
            .flatten();
        if declared.is_some_and(|size| size > to.len() as u64) {
            return Err(Failed::Room);
        }
        let decoder = match self.zstd.take() {
            Some(decoder) => decoder,
            None => zstd::bulk::Decompressor::new()
                .map_err(|_| Failed::Data("there is no memory for the decoder"))?,
        };
        let made = self.zstd.insert(decoder).decompress_to_buffer(input, to);
        made.map_err(|error| match error.to_string().contains("too small") {
            true => Failed::Room,
            false => Failed::Data("the bytes are damaged, or are no such data"),
        })
    }
}

impl blosc::Within for Decoder {
    fn zlib(&mut self, input: &[u8], to: &mut [u8]) -> Option<usize> {
        self.attempt(Codec::Zlib, input, to).ok()
    }

    fn zstd(&mut self, input: &[u8], to: &mut [u8]) -> Option<usize> {
        self.unzstd(input, to).ok()
    }
}

/// Bytes before steps that leave `raw` bytes, where that can be told.
fn before(steps: &[Codec], raw: usize) -> Option<usize> {
    steps.iter().try_fold(raw, |bytes, step| match step {
        Codec::Fletcher32 => Some(bytes + 4),
        Codec::Shuffle(_) | Codec::Bitshuffle { packed: 0, .. } => Some(bytes),
        _ => None,
    })
}

enum Failed {
    /// There is not enough.
    Room,
    Data(&'static str),
}

fn corrupt(codec: Codec, why: &'static str) -> ArrayError {
    let format = match codec {
        Codec::Gzip => "gzip",
        Codec::Zlib => "zlib",
        Codec::Zstd => "zstd",
        Codec::Blosc2 => "blosc2",
        Codec::Shuffle(_) => "shuffle",
        Codec::Fletcher32 => "fletcher32",
        Codec::Blosc => "blosc",
        Codec::Lzf => "lzf",
        Codec::Bitshuffle { .. } => "bitshuffle",
    };
    ArrayError::Corrupt { format, why }
}

/// Undoes a shuffle of elements of any size. What is left behind whole elements was not shuffled.
fn unshuffle(from: &[u8], size: usize, to: &mut Vec<u8>) {
    if to.len() < from.len() {
        to.resize(from.len(), 0);
    }
    let count = from.len() / size;
    let whole = count * size;
    if count > 0 {
        for (byte, plane) in from[..whole].chunks_exact(count).enumerate() {
            let places = to[..whole].iter_mut().skip(byte).step_by(size);
            for (value, to) in plane.iter().zip(places) {
                *to = *value;
            }
        }
    }
    to[whole..from.len()].copy_from_slice(&from[whole..]);
}

/// How many bytes stand before a checksum that is right.
fn checked(bytes: &[u8]) -> Result<usize, ArrayError> {
    let Some((data, stored)) = bytes.split_last_chunk::<4>() else {
        return Err(corrupt(
            Codec::Fletcher32,
            "there is no room for a checksum",
        ));
    };
    let (found, expected) = (fletcher32(data), u32::from_le_bytes(*stored));
    // Old libraries stored the bytes of both halves in the other order, and readers take both.
    let swapped = (found >> 8 & 0x00ff_00ff) | (found & 0x00ff_00ff) << 8;
    if found == expected || swapped == expected {
        return Ok(data.len());
    }
    Err(ArrayError::Checksum { found, expected })
}

/// Fletcher's checksum over 16-bit words, the high byte first, as HDF5 has it.
pub(super) fn fletcher32(data: &[u8]) -> u32 {
    // So many words leave both sums in 32 bits.
    const WORDS: usize = 360;
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut low, mut high) = (0_u32, 0_u32);
    let (words, rest) = data.as_chunks::<2>();
    for words in words.chunks(WORDS) {
        for word in words {
            low += u32::from(u16::from_be_bytes(*word));
            high += low;
        }
        (low, high) = (fold(low), fold(high));
    }
    if let [last] = rest {
        low += u32::from(*last) << 8;
        high += low;
        (low, high) = (fold(low), fold(high));
    }
    fold(high) << 16 | fold(low)
}
