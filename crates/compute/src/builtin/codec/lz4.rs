//! Frame format of LZ4, version 1.6.1 of its description: frames of blocks that may refer to the 64 KiB before them, with checksums
//! (xxHash-32) of header, blocks and content, and skippable frames. The library decodes the blocks themselves.
//!
//! The library's frame codec (`lz4_flex::frame` 0.14) is not used: its decoder pulls its input, but kernels receive their input in pushes,
//! and it accepts a file that is cut off between two blocks as complete; its encoder has one thread.

use std::fmt::Debug;
use std::io::{self, Write};

use lz4_flex::block;
use twox_hash::XxHash32;

use super::{BuiltinError, corrupt, pack};
use crate::fold::Stream;

const FORMAT: &str = "lz4";

const MAGIC: u32 = 0x184d_2204;

/// Magic numbers of skippable frames, without their last four bits.
const MAGIC_SKIPPED: u32 = 0x184d_2a50;

/// Magic number of the legacy format without frames.
const MAGIC_LEGACY: u32 = 0x184c_2102;

/// Version 1 of the frame format, in the first two bits of the flags.
const VERSION: u8 = 0b0100_0000;
const INDEPENDENT: u8 = 0b0010_0000;
const BLOCK_SUMS: u8 = 0b0001_0000;
const CONTENT_SIZE: u8 = 0b1000;
const CONTENT_SUM: u8 = 0b0100;
const RESERVED: u8 = 0b0010;
const DICTIONARY: u8 = 0b0001;

/// Bit of a block size that marks an uncompressed block.
const PLAIN: u32 = 1 << 31;

/// Maximum distance to which a block refers back, in bytes.
const WINDOW: usize = 64 << 10;

/// Maximum size of a block in bytes; the next constant is the number of this size in a header.
const BLOCK_BYTES: usize = 4 << 20;
const BLOCK_SIZE: u8 = 7;

/// Compresses input to one frame of independent blocks of 4 MiB, with a checksum of the content.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameWriter {
    sum: ContentChecksum,
}

/// Checksum of the content so far.
#[derive(Clone)]
struct ContentChecksum(twox_hash::xxhash32::Hasher);

impl Default for ContentChecksum {
    fn default() -> Self {
        Self(twox_hash::xxhash32::Hasher::with_seed(0))
    }
}

impl Debug for ContentChecksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sum").field(&self.value()).finish()
    }
}

impl ContentChecksum {
    fn add(&mut self, bytes: &[u8]) {
        std::hash::Hasher::write(&mut self.0, bytes);
    }

    fn value(&self) -> u32 {
        self.0.finish_32()
    }
}

impl pack::BlockFormat for FrameWriter {
    fn block_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn worker(&self) -> pack::BlockCompressor<'_> {
        Box::new(|content, packed| {
            let start = packed.len();
            let data = start + 4;
            packed.resize(data + block::get_maximum_output_size(content.len()), 0);
            let size = block::compress_into(content, &mut packed[data..]);
            let size = size.map_err(io::Error::other)?;
            packed.truncate(data + size);
            let mut mark = u32::try_from(size).map_err(io::Error::other)?;
            if size >= content.len() {
                packed.truncate(data);
                packed.extend_from_slice(content);
                mark = u32::try_from(content.len()).map_err(io::Error::other)? | PLAIN;
            }
            packed[start..data].copy_from_slice(&mark.to_le_bytes());
            Ok(())
        })
    }

    fn head(&mut self, out: &mut Vec<u8>) {
        let flags = [VERSION | INDEPENDENT | CONTENT_SUM, BLOCK_SIZE << 4];
        out.extend(MAGIC.to_le_bytes());
        out.extend(flags);
        out.push(header_sum(&flags));
    }

    fn took(&mut self, block: &[u8]) {
        self.sum.add(block);
    }

    fn tail(&mut self, out: &mut Vec<u8>) {
        out.extend([0; 4]);
        out.extend(self.sum.value().to_le_bytes());
    }

    fn none_is_a_block(&self) -> bool {
        false
    }
}

/// Returns the checksum byte of a frame header: the second byte of the checksum of the header without its magic number.
fn header_sum(header: &[u8]) -> u8 {
    XxHash32::oneshot(0, header).to_le_bytes()[1]
}

/// Next item of a frame to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FrameItem {
    /// Magic number and two bytes (or half the length, if the frame is skippable).
    #[default]
    Start,
    /// Rest of a frame's header.
    Header,
    /// Rest of the length of a skippable frame.
    Length,
    /// Size field of a block.
    Size,
    /// Block with this size field, and its checksum.
    Block(u32),
    /// Checksum of the frame's content.
    Sum,
}

/// Decompresses a series of frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    next: FrameItem,
    /// Bytes of the next item that have arrived.
    held: Vec<u8>,
    /// Number of input bytes before the next item.
    taken: u64,
    /// Whether any frame was read.
    some: bool,
    header: FrameHeader,
    /// Number of input bytes to skip before the next item.
    skipped: u64,
    sum: ContentChecksum,
    given: u64,
    /// Last 64 KiB of output, if blocks refer to them.
    window: Vec<u8>,
    unpacked: Vec<u8>,
}

/// Header of a frame.
#[derive(Debug, Default)]
struct FrameHeader {
    /// First six bytes of the frame.
    start: [u8; 6],
    flags: u8,
    block_bytes: usize,
    content_bytes: Option<u64>,
}

impl Frames {
    /// Returns the number of bytes of the frame's next item.
    fn needed(&self) -> usize {
        let flag = |flag, bytes| usize::from(self.header.flags & flag != 0) * bytes;
        match self.next {
            FrameItem::Start => 6,
            FrameItem::Header => 1 + flag(CONTENT_SIZE, 8),
            FrameItem::Length => 2,
            FrameItem::Size | FrameItem::Sum => 4,
            FrameItem::Block(mark) => (mark & !PLAIN) as usize + flag(BLOCK_SUMS, 4),
        }
    }

    fn wrong(&self, what: &str) -> BuiltinError {
        corrupt(FORMAT, self.taken, what)
    }

    fn start(&mut self, item: &[u8]) -> Result<FrameItem, BuiltinError> {
        self.header.start.copy_from_slice(item);
        let magic = u32::from_le_bytes([item[0], item[1], item[2], item[3]]);
        match magic {
            MAGIC => {}
            _ if magic & !0xf == MAGIC_SKIPPED => {
                self.header.flags = 0;
                return Ok(FrameItem::Length);
            }
            MAGIC_LEGACY => return Err(self.wrong("it is in the legacy format, without frames")),
            _ => return Err(self.wrong("no frame begins here")),
        }
        let (flags, size) = (item[4], item[5]);
        if flags >> 6 != VERSION >> 6 || flags & RESERVED != 0 || size & 0b1000_1111 != 0 {
            return Err(self.wrong("the header is of another version"));
        }
        if flags & DICTIONARY != 0 {
            return Err(self.wrong("it needs a dictionary"));
        }
        self.header.flags = flags;
        self.header.block_bytes = match size >> 4 {
            4 => 64 << 10,
            5 => 256 << 10,
            6 => 1 << 20,
            7 => BLOCK_BYTES,
            _ => return Err(self.wrong("the header has no size of blocks")),
        };
        Ok(FrameItem::Header)
    }

    fn header(&mut self, item: &[u8]) -> Result<FrameItem, BuiltinError> {
        let (size, sum) = item.split_at(item.len() - 1);
        let checked = [&self.header.start[4..], size].concat();
        if header_sum(&checked) != sum[0] {
            return Err(self.wrong("the checksum of the header is wrong"));
        }
        self.header.content_bytes = size.try_into().ok().map(u64::from_le_bytes);
        self.sum = ContentChecksum::default();
        self.given = 0;
        self.window.clear();
        Ok(FrameItem::Size)
    }

    fn size(&mut self, item: &[u8; 4]) -> Result<FrameItem, BuiltinError> {
        let mark = u32::from_le_bytes(*item);
        if mark == 0 {
            let wanted = self.header.content_bytes;
            if wanted.is_some_and(|bytes| bytes != self.given) {
                return Err(self.wrong("the length of the content differs from the header"));
            }
            if self.header.flags & CONTENT_SUM != 0 {
                return Ok(FrameItem::Sum);
            }
            self.some = true;
            return Ok(FrameItem::Start);
        }
        if (mark & !PLAIN) as usize > self.header.block_bytes {
            return Err(self.wrong("a block is larger than the header allows"));
        }
        Ok(FrameItem::Block(mark))
    }

    fn block(
        &mut self,
        mark: u32,
        item: &[u8],
        out: &mut dyn Write,
    ) -> Result<FrameItem, BuiltinError> {
        let (data, sum) = item.split_at((mark & !PLAIN) as usize);
        if !sum.is_empty() && XxHash32::oneshot(0, data).to_le_bytes() != sum {
            return Err(self.wrong("the checksum of a block is wrong"));
        }
        let mut unpacked = std::mem::take(&mut self.unpacked);
        let content = if mark & PLAIN == 0 {
            unpacked.resize(self.header.block_bytes, 0);
            let size = block::decompress_into_with_dict(data, &mut unpacked, &self.window);
            let size = size.map_err(|error| self.wrong(&error.to_string()))?;
            &unpacked[..size]
        } else {
            data
        };
        self.given += content.len() as u64;
        if self.header.flags & CONTENT_SUM != 0 {
            self.sum.add(content);
        }
        if self.header.flags & INDEPENDENT == 0 {
            let last = &content[content.len().saturating_sub(WINDOW)..];
            let excess = (self.window.len() + last.len()).saturating_sub(WINDOW);
            self.window.drain(..excess);
            self.window.extend_from_slice(last);
        }
        out.write_all(content).map_err(BuiltinError::Write)?;
        self.unpacked = unpacked;
        Ok(FrameItem::Size)
    }

    /// Processes the next item of the frame, all of whose bytes have arrived.
    fn item(&mut self, item: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        let next = match (self.next, item) {
            (FrameItem::Start, _) => self.start(item)?,
            (FrameItem::Header, _) => self.header(item)?,
            (FrameItem::Length, _) => {
                let start = self.header.start;
                let length = u32::from_le_bytes([start[4], start[5], item[0], item[1]]);
                self.skipped = length.into();
                self.some = true;
                FrameItem::Start
            }
            (FrameItem::Size, [a, b, c, d]) => self.size(&[*a, *b, *c, *d])?,
            (FrameItem::Block(mark), _) => self.block(mark, item, out)?,
            (FrameItem::Sum | FrameItem::Size, _) => {
                if self.sum.value().to_le_bytes() != item {
                    return Err(self.wrong("the checksum of the content is wrong"));
                }
                self.some = true;
                FrameItem::Start
            }
        };
        self.next = next;
        self.taken += item.len() as u64;
        Ok(())
    }
}

impl Stream for Frames {
    fn push(&mut self, mut bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        while !bytes.is_empty() {
            if self.skipped > 0 {
                let skipped = usize::try_from(self.skipped).unwrap_or(usize::MAX);
                let some = bytes.len().min(skipped);
                self.skipped -= some as u64;
                self.taken += some as u64;
                bytes = &bytes[some..];
                continue;
            }
            let needed = self.needed() - self.held.len();
            let (first, rest) = bytes.split_at(bytes.len().min(needed));
            bytes = rest;
            if first.len() < needed {
                self.held.extend_from_slice(first);
            } else if self.held.is_empty() {
                self.item(first, out)?;
            } else {
                let mut held = std::mem::take(&mut self.held);
                held.extend_from_slice(first);
                self.item(&held, out)?;
                held.clear();
                self.held = held;
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>, _: &mut dyn Write) -> Result<(), BuiltinError> {
        let between = self.next == FrameItem::Start && self.held.is_empty() && self.skipped == 0;
        if self.some && between {
            return Ok(());
        }
        Err(BuiltinError::CutShort(FORMAT))
    }
}
