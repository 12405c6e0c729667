//! Decoding of arrays: turns stored bytes into raw values. Declared sizes are checked before any allocation, and buffers are reused.

mod bits;
mod blosc;
mod lz;
#[cfg(test)]
mod tests;

use super::error::ArrayError;
use super::{CODECS_MAX, RAW_BYTES_MAX};
use bits::BitCompression;
use libdeflater::{DecompressionError, Decompressor};
use serde::{Deserialize, Serialize};
use tidemill_format::Filter;

/// Step of decoding stored bytes; each step reverses a filter of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    /// Decompresses deflate in the frame of gzip.
    Gzip,
    /// Decompresses deflate in the frame of zlib.
    Zlib,
    /// Decompresses Zstandard.
    Zstd,
    /// Decompresses Blosc 2: a frame, or a single chunk.
    Blosc2,
    /// Reverses a shuffle: the first bytes of all elements of this size, then their second bytes, and so on.
    Shuffle(u8),
    /// Checks and removes the four bytes at the end, which are the checksum of the bytes before them, as in HDF5.
    Fletcher32,
    /// Decompresses Blosc: one chunk.
    Blosc,
    /// Decompresses LZF, as in h5py.
    Lzf,
    /// Reverses a bitshuffle: bits of one significance are grouped, as in HDF5's filter 32008.
    Bitshuffle {
        /// Size of an element, in bytes.
        element: u8,
        /// Number of elements in a block; 0 if the writing library chose it.
        block: u32,
        /// Compression of the blocks: 0 none, 2 LZ4, 3 Zstandard.
        packed: u32,
    },
    /// Checks and removes the four bytes at the end, which are the CRC-32C of the bytes before them.
    Crc32c,
    /// Decompresses a block of LZ4 after its length, or (`true`) blocks with their lengths, as in HDF5.
    Lz4(bool),
    /// Decompresses bzip2.
    Bzip2,
}

impl Codec {
    /// Returns the decoding step that reverses a filter, if this module supports the filter.
    #[must_use]
    pub fn of(filter: &Filter) -> Option<Self> {
        Some(match filter {
            Filter::Shuffle { element } => Self::Shuffle(u8::try_from(*element).ok()?),
            Filter::Deflate => Self::Zlib,
            Filter::Gzip => Self::Gzip,
            Filter::Zstd => Self::Zstd,
            Filter::Fletcher32 => Self::Fletcher32,
            Filter::Crc32c => Self::Crc32c,
            Filter::Lz4 { blocks } => Self::Lz4(*blocks),
            Filter::Bzip2 => Self::Bzip2,
            Filter::Blosc => Self::Blosc,
            Filter::Blosc2 => Self::Blosc2,
            Filter::Lzf => Self::Lzf,
            Filter::Bitshuffle { parameters } => match parameters[..] {
                [_, _, element, block, ref packed @ ..] => Self::Bitshuffle {
                    element: u8::try_from(element).ok()?,
                    block,
                    packed: packed.first().copied().unwrap_or(0),
                },
                _ => return None,
            },
            _ => return None,
        })
    }

    fn check(self) -> Result<(), ArrayError> {
        match self {
            Self::Shuffle(0) | Self::Bitshuffle { element: 0, .. } => Err(ArrayError::ElementSize),
            Self::Bitshuffle { packed, .. } if BitCompression::numbered(packed).is_none() => {
                Err(ArrayError::Unsupported("bitshuffle with this compression"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that this module can reverse `codecs`.
pub(crate) fn check(codecs: &[Codec]) -> Result<(), ArrayError> {
    if codecs.len() > CODECS_MAX {
        return Err(ArrayError::ManyCodecs);
    }
    codecs.iter().try_for_each(|codec| codec.check())
}

/// Decompressors and buffers, reused for all arrays.
#[derive(Default)]
pub(crate) struct Decoder {
    inflate: Option<Decompressor>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    /// Output of the last decoding step, and output of the next step.
    buffers: [Vec<u8>; 2],
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Decoder {
    /// Returns the raw bytes, and whether they are still shuffled: the caller must reverse a last step that shuffles values of the array's
    /// own type.
    pub(crate) fn decode<'a>(
        &'a mut self,
        (codecs, size): (&[Codec], usize),
        raw_bytes: Option<usize>,
        stored: &'a [u8],
    ) -> Result<(&'a [u8], bool), ArrayError> {
        let fused = codecs.last() == u8::try_from(size).ok().map(Codec::Shuffle).as_ref();
        let steps = &codecs[..codecs.len() - usize::from(fused)];
        // `None`: still the stored bytes, without those that were cut off.
        let (mut made, mut length) = (None, stored.len());
        let [mut one, mut other] = std::mem::take(&mut self.buffers);
        let mut result = Ok(());
        for (place, step) in steps.iter().enumerate() {
            let input = if made.is_some() {
                &one[..length]
            } else {
                &stored[..length]
            };
            let bytes = raw_bytes.and_then(|raw| before(&steps[place + 1..], raw));
            let step = match step {
                Codec::Fletcher32 => checked(input, fletcher32_is),
                Codec::Crc32c => checked(input, crc32c_is),
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
            if !matches!(steps[place], Codec::Fletcher32 | Codec::Crc32c) {
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

    /// Decompresses to the beginning of `to`; returns the number of bytes, which must be exactly `bytes` if that is known.
    fn decompress(
        &mut self,
        codec: Codec,
        input: &[u8],
        bytes: Option<usize>,
        to: &mut Vec<u8>,
    ) -> Result<usize, ArrayError> {
        // If the size is unknown, larger and larger buffers are tried.
        let mut space =
            bytes.unwrap_or_else(|| input.len().saturating_mul(4).clamp(64 << 10, RAW_BYTES_MAX));
        loop {
            if to.len() < space {
                to.resize(space, 0);
            }
            match self.attempt(codec, input, &mut to[..space]) {
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
                Err(DecodeFailure::Space) if bytes.is_none() && space < RAW_BYTES_MAX => {
                    space = space.saturating_mul(4).min(RAW_BYTES_MAX);
                }
                Err(DecodeFailure::Space) if bytes.is_none() => return Err(ArrayError::TooLarge),
                Err(DecodeFailure::Space) => {
                    let why = "it decodes to more bytes than shape and dtype make";
                    return Err(corrupt(codec, why));
                }
                Err(DecodeFailure::Data(why)) => return Err(corrupt(codec, why)),
            }
        }
    }

    fn attempt(
        &mut self,
        codec: Codec,
        input: &[u8],
        to: &mut [u8],
    ) -> Result<usize, DecodeFailure> {
        let bad = |error| match error {
            DecompressionError::BadData => {
                DecodeFailure::Data("the bytes are corrupt, or are no such data")
            }
            DecompressionError::InsufficientSpace => DecodeFailure::Space,
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
                let packed = BitCompression::numbered(packed).unwrap_or(BitCompression::No);
                let block = usize::try_from(block).unwrap_or(0);
                bits::decode(input, to, (element.into(), block, packed), self)
            }
            Codec::Lz4(true) => unlz4_blocks(input, to),
            Codec::Lz4(false) => match input.split_first_chunk::<4>() {
                Some((length, block)) => unlz4(block, to, u64::from(u32::from_le_bytes(*length))),
                None => Err(DecodeFailure::Data(CORRUPT)),
            },
            Codec::Bzip2 => unbzip2(input, to),
            _ => self.unzstd(input, to),
        }
    }

    fn unzstd(&mut self, input: &[u8], to: &mut [u8]) -> Result<usize, DecodeFailure> {
        // Declared sizes only allow a smaller buffer; the buffer limits the output.
        let declared = zstd::zstd_safe::get_frame_content_size(input)
            .ok()
            .flatten();
        if declared.is_some_and(|size| size > to.len() as u64) {
            return Err(DecodeFailure::Space);
        }
        let decoder = match self.zstd.take() {
            Some(decoder) => decoder,
            None => zstd::bulk::Decompressor::new()
                .map_err(|_| DecodeFailure::Data("no memory for the decoder"))?,
        };
        let made = self.zstd.insert(decoder).decompress_to_buffer(input, to);
        made.map_err(|error| match error.to_string().contains("too small") {
            true => DecodeFailure::Space,
            false => DecodeFailure::Data("the bytes are corrupt, or are no such data"),
        })
    }
}

/// Decompressors of data within other formats; each decompressor gets the buffer that it may fill.
trait InnerDecompressor {
    fn zlib(&mut self, input: &[u8], to: &mut [u8]) -> Option<usize>;
    fn zstd(&mut self, input: &[u8], to: &mut [u8]) -> Option<usize>;
}

impl InnerDecompressor for Decoder {
    fn zlib(&mut self, input: &[u8], to: &mut [u8]) -> Option<usize> {
        self.attempt(Codec::Zlib, input, to).ok()
    }

    fn zstd(&mut self, input: &[u8], to: &mut [u8]) -> Option<usize> {
        self.unzstd(input, to).ok()
    }
}

/// Returns the number of bytes before decoding steps that leave `raw` bytes, if it follows from the steps.
fn before(steps: &[Codec], raw: usize) -> Option<usize> {
    steps.iter().try_fold(raw, |bytes, step| match step {
        Codec::Fletcher32 | Codec::Crc32c => Some(bytes + 4),
        Codec::Shuffle(_) | Codec::Bitshuffle { packed: 0, .. } => Some(bytes),
        _ => None,
    })
}

enum DecodeFailure {
    /// The output buffer is too small.
    Space,
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
        Codec::Crc32c => "crc32c",
        Codec::Lz4(_) => "lz4",
        Codec::Bzip2 => "bzip2",
    };
    ArrayError::Corrupt { format, why }
}

/// Reverses a shuffle of elements of any size. Bytes after the last whole element were not shuffled.
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

/// Returns the number of bytes before the checksum, if the checksum is valid.
fn checked(bytes: &[u8], is: fn(&[u8], u32) -> Result<(), u32>) -> Result<usize, ArrayError> {
    let Some((data, stored)) = bytes.split_last_chunk::<4>() else {
        return Err(corrupt(
            Codec::Fletcher32,
            "the data is too short for a checksum",
        ));
    };
    let expected = u32::from_le_bytes(*stored);
    match is(data, expected) {
        Ok(()) => Ok(data.len()),
        Err(found) => Err(ArrayError::Checksum { found, expected }),
    }
}

fn fletcher32_is(data: &[u8], expected: u32) -> Result<(), u32> {
    let found = fletcher32(data);
    // Old libraries stored the bytes of both halves in the other order, and readers accept both.
    let swapped = (found >> 8 & 0x00ff_00ff) | (found & 0x00ff_00ff) << 8;
    match found == expected || swapped == expected {
        true => Ok(()),
        false => Err(found),
    }
}

fn crc32c_is(data: &[u8], expected: u32) -> Result<(), u32> {
    match crc32c(data) {
        found if found == expected => Ok(()),
        found => Err(found),
    }
}

/// Returns the CRC-32C (Castagnoli) of bytes, computed one byte at a time.
pub(super) fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0_u32;
        while byte < 256 {
            let (mut value, mut bit) = (byte, 0);
            while bit < 8 {
                value = value >> 1 ^ if value & 1 == 1 { 0x82f6_3b78 } else { 0 };
                bit += 1;
            }
            table[byte as usize] = value;
            byte += 1;
        }
        table
    };
    let next = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize];
    !data.iter().fold(!0, next)
}

const CORRUPT: &str = "the bytes are corrupt, or are no such data";

/// Decompresses one block of LZ4 to `length` bytes.
fn unlz4(block: &[u8], to: &mut [u8], length: u64) -> Result<usize, DecodeFailure> {
    let length = usize::try_from(length).map_err(|_| DecodeFailure::Space)?;
    let to = to.get_mut(..length).ok_or(DecodeFailure::Space)?;
    let made = lz4_flex::block::decompress_into(block, to);
    made.ok()
        .filter(|made| *made == length)
        .ok_or(DecodeFailure::Data(CORRUPT))
}

/// Decompresses the LZ4 blocks of HDF5: the total length, the block length, and each block after its own length. A block that compression
/// did not shorten is stored unchanged.
fn unlz4_blocks(input: &[u8], to: &mut [u8]) -> Result<usize, DecodeFailure> {
    let corrupt = || DecodeFailure::Data(CORRUPT);
    let (all, rest) = input.split_first_chunk::<8>().ok_or_else(corrupt)?;
    let (block, mut rest) = rest.split_first_chunk::<4>().ok_or_else(corrupt)?;
    let all = usize::try_from(u64::from_be_bytes(*all)).map_err(|_| DecodeFailure::Space)?;
    let block = u32::from_be_bytes(*block) as usize;
    let to = to.get_mut(..all).ok_or(DecodeFailure::Space)?;
    if block == 0 && all > 0 {
        return Err(corrupt());
    }
    for to in to.chunks_mut(block.max(1)) {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or_else(corrupt)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (bytes, behind) = behind.split_at_checked(length).ok_or_else(corrupt)?;
        rest = behind;
        if length == to.len() {
            to.copy_from_slice(bytes);
        } else {
            unlz4(bytes, to, to.len() as u64)?;
        }
    }
    Ok(all)
}

fn unbzip2(input: &[u8], to: &mut [u8]) -> Result<usize, DecodeFailure> {
    use std::io::Read;
    let mut decoder = bzip2::read::BzDecoder::new(input);
    let mut made = 0;
    while made < to.len() {
        match decoder.read(&mut to[made..]) {
            Ok(0) => return Ok(made),
            Ok(more) => made += more,
            Err(_) => return Err(DecodeFailure::Data(CORRUPT)),
        }
    }
    match decoder.read(&mut [0]) {
        Ok(0) => Ok(made),
        Ok(_) => Err(DecodeFailure::Space),
        Err(_) => Err(DecodeFailure::Data(CORRUPT)),
    }
}

/// Returns Fletcher's checksum over 16-bit words, with the high byte of each word first, as in HDF5.
pub(super) fn fletcher32(data: &[u8]) -> u32 {
    // With this number of words, both sums fit into 32 bits.
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
