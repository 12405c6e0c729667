//! Blosc: chunks of versions 1 and 2, and frames of version 2 that contain one array. The code follows the descriptions of the formats
//! (`README_CHUNK_FORMAT`, `README_CFRAME_FORMAT`, `README_B2ND_METALAYER` of C-Blosc2) and files of the libraries.
//!
//! A chunk is divided into blocks, and most blocks into one stream for each byte of an element. The caller's buffer limits all declared
//! sizes.

use super::{DecodeFailure, InnerDecompressor, bits, lz};

const CORRUPT: DecodeFailure = DecodeFailure::Data("the bytes are corrupt, or are no such data");

const HEADER: usize = 16;
const HEADER_LONG: usize = 32;
const FRAME_MAGIC: &[u8] = b"\x9e\xa8b2frame\0";
const DIMENSIONS_MAX: usize = 8;

const SHUFFLE: u8 = 1;
const BITSHUFFLE: u8 = 2;
const TRUNCATED: u8 = 4;

/// Reads a number of four bytes, which must not be negative.
fn number(bytes: &[u8], at: usize) -> Result<usize, DecodeFailure> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
    let number = i32::from_le_bytes(*word.ok_or(CORRUPT)?);
    usize::try_from(number).map_err(|_| CORRUPT)
}

fn big(bytes: &[u8], at: usize, length: usize) -> Result<usize, DecodeFailure> {
    let bytes = bytes.get(at..at + length).ok_or(CORRUPT)?;
    let number = bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    usize::try_from(number).map_err(|_| CORRUPT)
}

/// Decodes a Blosc frame or chunk to the beginning of `to`; returns the number of bytes.
pub(super) fn decode(
    input: &[u8],
    to: &mut [u8],
    within: &mut dyn InnerDecompressor,
) -> Result<usize, DecodeFailure> {
    match input.starts_with(FRAME_MAGIC) {
        true => frame(input, to, within),
        false => chunk(input, to, within),
    }
}

/// Header of a Blosc chunk.
struct BloscHeader {
    version: u8,
    flags: u8,
    size: usize,
    bytes: usize,
    block: usize,
    /// Filters of the chunk's blocks, first to last.
    filters: [u8; 6],
    /// Kind of the chunk's constant values: 1 zeros, 2 not a number, 3 one value, 4 never written; 0 if the chunk stores values.
    special: u8,
    length: usize,
}

impl BloscHeader {
    fn read(input: &[u8]) -> Result<Self, DecodeFailure> {
        let head = input.first_chunk::<HEADER>().ok_or(CORRUPT)?;
        let [version, _, flags, size, ..] = *head;
        let mut header = Self {
            version,
            flags,
            size: usize::from(size),
            bytes: number(head, 4)?,
            block: number(head, 8)?,
            filters: [0; 6],
            special: 0,
            length: HEADER,
        };
        if flags & 5 == 5 {
            let head = input.first_chunk::<HEADER_LONG>().ok_or(CORRUPT)?;
            header.filters.copy_from_slice(&head[16..22]);
            header.special = head[31] >> 4 & 7;
            header.length = HEADER_LONG;
            if head[31] & 1 != 0 {
                return Err(DecodeFailure::Data("it needs a dictionary"));
            }
        } else {
            header.filters[0] = [0, SHUFFLE, 0, 0, BITSHUFFLE][usize::from(flags & 4 | flags & 1)];
        }
        if header.size == 0 || (header.bytes > 0 && header.block == 0) {
            return Err(CORRUPT);
        }
        header.block = header.block.min(header.bytes);
        Ok(header)
    }

    /// Returns the number of compressed streams of a block.
    fn streams(&self, block: usize) -> usize {
        let dense = self.flags & 0x10 != 0 || block < self.block;
        let old = self.version <= 2 && (self.size > 16 || self.block / self.size < 128);
        if dense || old { 1 } else { self.size }
    }

    fn unfiltered(&self, from: &mut Vec<u8>, spare: &mut Vec<u8>) -> Result<(), DecodeFailure> {
        for filter in self.filters.iter().rev() {
            match *filter {
                0 | TRUNCATED => continue,
                SHUFFLE if self.size == 1 => continue,
                SHUFFLE => super::unshuffle(from, self.size, spare),
                BITSHUFFLE => self.unbitshuffle(from, spare),
                _ => {
                    return Err(DecodeFailure::Data(
                        "it was filtered in a way that is not known here",
                    ));
                }
            }
            spare.truncate(from.len());
            std::mem::swap(from, spare);
        }
        Ok(())
    }

    fn unbitshuffle(&self, from: &[u8], to: &mut Vec<u8>) {
        to.clear();
        to.extend_from_slice(from);
        let count = from.len() / self.size;
        // Version 1 did not shuffle a block at all if it could not shuffle the whole block.
        let count = if self.version <= 2 && !count.is_multiple_of(8) {
            0
        } else {
            count / 8 * 8
        };
        let whole = count * self.size;
        if whole > 0 {
            bits::unshuffle(&from[..whole], self.size, &mut to[..whole]);
        }
    }
}

fn chunk(
    input: &[u8],
    to: &mut [u8],
    within: &mut dyn InnerDecompressor,
) -> Result<usize, DecodeFailure> {
    let header = BloscHeader::read(input)?;
    let to = to.get_mut(..header.bytes).ok_or(DecodeFailure::Space)?;
    if header.special != 0 {
        return special(header.special, header.size, input, to);
    }
    if header.flags & 2 != 0 {
        let stored = input
            .get(header.length..)
            .and_then(|rest| rest.get(..header.bytes));
        to.copy_from_slice(stored.ok_or(CORRUPT)?);
        return Ok(header.bytes);
    }
    let (mut block, mut spare) = (Vec::new(), Vec::new());
    for (index, to) in to.chunks_mut(header.block.max(1)).enumerate() {
        let start = number(input, header.length + 4 * index)?;
        block.clear();
        block.resize(to.len(), 0);
        streams(
            &header,
            input.get(start..).ok_or(CORRUPT)?,
            &mut block,
            within,
        )?;
        header.unfiltered(&mut block, &mut spare)?;
        to.copy_from_slice(&block);
    }
    Ok(header.bytes)
}

/// Expands a chunk of constant values.
fn special(kind: u8, size: usize, input: &[u8], to: &mut [u8]) -> Result<usize, DecodeFailure> {
    let nan: &[u8] = if size == 4 {
        &[0, 0, 0xc0, 0x7f]
    } else {
        &[0, 0, 0, 0, 0, 0, 0xf8, 0x7f]
    };
    let value = match kind {
        1 | 4 => &[0],
        2 if size == 4 || size == 8 => nan,
        3 => input.get(HEADER_LONG..HEADER_LONG + size).ok_or(CORRUPT)?,
        _ => return Err(CORRUPT),
    };
    for (to, byte) in to.iter_mut().zip(value.iter().cycle()) {
        *to = *byte;
    }
    Ok(to.len())
}

fn streams(
    header: &BloscHeader,
    mut input: &[u8],
    block: &mut [u8],
    within: &mut dyn InnerDecompressor,
) -> Result<(), DecodeFailure> {
    let count = header.streams(block.len());
    let length = block.len() / count;
    if length * count != block.len() || length == 0 {
        return Err(CORRUPT);
    }
    for to in block.chunks_mut(length) {
        let (stored, rest) = input.split_first_chunk::<4>().ok_or(CORRUPT)?;
        let stored = i32::from_le_bytes(*stored);
        input = rest;
        if header.version > 2 && stored <= 0 {
            // A run of one byte, whose value is stored in place of the length.
            if stored < 0 {
                let (kind, rest) = input.split_first().ok_or(CORRUPT)?;
                if kind & 1 == 0 || stored < -255 {
                    return Err(CORRUPT);
                }
                input = rest;
            }
            to.fill(u8::try_from(-stored).unwrap_or(0));
            continue;
        }
        let stored = usize::try_from(stored).map_err(|_| CORRUPT)?;
        let (bytes, rest) = input.split_at_checked(stored).ok_or(CORRUPT)?;
        input = rest;
        if stored == length {
            to.copy_from_slice(bytes);
            continue;
        }
        let made = match header.flags >> 5 {
            0 => lz::blosclz(bytes, to).ok(),
            1 => lz4_flex::block::decompress_into(bytes, to).ok(),
            3 => within.zlib(bytes, to),
            4 => within.zstd(bytes, to),
            _ => {
                return Err(DecodeFailure::Data(
                    "it is compressed in a way that is not known here",
                ));
            }
        };
        if made != Some(length) {
            return Err(CORRUPT);
        }
    }
    Ok(())
}

/// Decodes a contiguous frame: a header, chunks, and a chunk with their positions.
fn frame(
    input: &[u8],
    to: &mut [u8],
    within: &mut dyn InnerDecompressor,
) -> Result<usize, DecodeFailure> {
    let head = big(input, 11, 4)?;
    let (bytes, stored) = (big(input, 30, 8)?, big(input, 39, 8)?);
    let (size, chunk_bytes) = (big(input, 48, 4)?, big(input, 58, 4)?);
    let grid = BloscGrid::read(input.get(..head).ok_or(CORRUPT)?, size)?;
    // Blocks of several dimensions are padded to whole blocks.
    let space = to.len().saturating_mul(if grid.is_some() { 4 } else { 1 });
    if bytes > space {
        return Err(DecodeFailure::Space);
    }
    let mut blocks = Vec::new();
    let out = match &grid {
        Some(_) => {
            blocks.resize(bytes, 0);
            &mut blocks[..]
        }
        None => &mut to[..bytes],
    };
    let count = bytes.div_ceil(chunk_bytes.max(1));
    if (bytes > 0 && chunk_bytes == 0) || count > input.len() || (grid.is_some() && count != 1) {
        return Err(CORRUPT);
    }
    let mut places = vec![0; count * 8];
    let index = head.checked_add(stored).and_then(|at| input.get(at..));
    if count > 0 && chunk(index.ok_or(CORRUPT)?, &mut places, within)? != places.len() {
        return Err(CORRUPT);
    }
    let (places, _) = places.as_chunks::<8>();
    for (place, to) in places.iter().zip(out.chunks_mut(chunk_bytes.max(1))) {
        let place = i64::from_le_bytes(*place);
        if place < 0 {
            special(u8::try_from(place >> 56 & 7).unwrap_or(0), size, &[], to)?;
            continue;
        }
        let at = usize::try_from(place).ok();
        let at = at.and_then(|place| place.checked_add(head));
        let from = at.and_then(|at| input.get(at..)).ok_or(CORRUPT)?;
        if chunk(from, to, within)? != to.len() {
            return Err(CORRUPT);
        }
    }
    match grid {
        Some(grid) => grid.turn(&blocks, to),
        None => Ok(bytes),
    }
}

/// Layout of an array of several dimensions in the blocks of its only chunk.
struct BloscGrid {
    shape: Vec<usize>,
    block: Vec<usize>,
    size: usize,
}

impl BloscGrid {
    /// Reads the layout of blocks from a frame's header; `None` if the bytes are already in order.
    fn read(head: &[u8], size: usize) -> Result<Option<Self>, DecodeFailure> {
        let Some(name) = head.windows(5).position(|bytes| bytes == b"\xa4b2nd") else {
            return Ok(None);
        };
        // Name and position; at the position the length, and then an array: version, dimensions, shape, shapes of chunk and block.
        let at = big(head, name + 6, 4)?;
        let reported = at
            .checked_add(5)
            .and_then(|at| head.get(at..))
            .ok_or(CORRUPT)?;
        let dimensions = usize::from(*reported.get(2).ok_or(CORRUPT)?);
        if dimensions == 0 || dimensions > DIMENSIONS_MAX || size == 0 {
            return Err(CORRUPT);
        }
        let list = |at: usize, length: usize| -> Result<Vec<usize>, DecodeFailure> {
            (0..dimensions)
                .map(|place| big(reported, at + 2 + place * (length + 1), length))
                .collect()
        };
        let (chunks, blocks) = (4 + dimensions * 9, 5 + dimensions * 14);
        let (shape, chunk, block) = (list(3, 8)?, list(chunks, 4)?, list(blocks, 4)?);
        if block.contains(&0) || shape.contains(&0) {
            return Err(CORRUPT);
        }
        if shape != chunk {
            return Err(DecodeFailure::Data("it is an array of several chunks"));
        }
        Ok(Some(Self { shape, block, size }))
    }

    /// Reorders the values of blocks into rows; returns the number of bytes.
    fn turn(&self, blocks: &[u8], to: &mut [u8]) -> Result<usize, DecodeFailure> {
        let product = |sizes: &[usize]| {
            let mut sizes = sizes.iter().chain([&self.size]);
            sizes.try_fold(1_usize, |product, size| product.checked_mul(*size))
        };
        let bytes = product(&self.shape).ok_or(DecodeFailure::Space)?;
        let block_bytes = product(&self.block).ok_or(CORRUPT)?;
        if bytes > to.len() {
            return Err(DecodeFailure::Space);
        }
        let counts: Vec<usize> = (self.shape.iter().zip(&self.block))
            .map(|(shape, block)| shape.div_ceil(*block))
            .collect();
        let all = counts
            .iter()
            .try_fold(1_usize, |product, count| product.checked_mul(*count));
        if all.and_then(|all| all.checked_mul(block_bytes)) != Some(blocks.len()) {
            return Err(CORRUPT);
        }
        for (number, block) in blocks.chunks_exact(block_bytes).enumerate() {
            let first: Vec<usize> = (places(number, &counts).iter().zip(&self.block))
                .map(|(place, block)| place * block)
                .collect();
            self.put(block, &first, to);
        }
        Ok(bytes)
    }

    /// Copies the rows of the block whose first element is at `first` to their positions in the array.
    fn put(&self, block: &[u8], first: &[usize], to: &mut [u8]) {
        let last = self.shape.len() - 1;
        let length = self.block[last].min(self.shape[last] - first[last]) * self.size;
        for (number, row) in block.chunks_exact(self.block[last] * self.size).enumerate() {
            let place = places(number, &self.block[..last]);
            let mut at = 0;
            let mut inside = true;
            for dimension in 0..last {
                let index = first[dimension] + place[dimension];
                inside &= index < self.shape[dimension];
                at = at * self.shape[dimension] + index;
            }
            if inside {
                let at = (at * self.shape[last] + first[last]) * self.size;
                to[at..at + length].copy_from_slice(&row[..length]);
            }
        }
    }
}

/// Returns the indices of the element with this number, the last dimension first.
fn places(mut number: usize, sizes: &[usize]) -> Vec<usize> {
    let mut places: Vec<usize> = (sizes.iter().rev())
        .map(|size| {
            let place = number % size;
            number /= size;
            place
        })
        .collect();
    places.reverse();
    places
}
