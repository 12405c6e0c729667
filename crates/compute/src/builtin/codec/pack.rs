//! Compressors: `gzip`, `bzip2`, `zstd` and the batching of blocks.

use std::fmt::Debug;
use std::io::{self, Write};

use bzip2::{Action, Compress, Compression};
use libdeflater::{CompressionLvl, Compressor};
use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

use super::{BuiltinError, PIECE_BYTES, give};
use crate::fold::Stream;
use crate::threads::{Pile, in_threads};

/// Number of blocks that each thread compresses at a time, if there are several threads.
const BLOCKS_A_THREAD: usize = 4;

/// Function that compresses a block and appends the result to a vector.
pub(super) type BlockCompressor<'a> = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> io::Result<()> + 'a>;

/// Compressed format whose blocks are compressed independently.
pub(super) trait BlockFormat: Send + Sync + Debug {
    /// Returns the size of an uncompressed block in bytes; only the last block is shorter.
    fn block_bytes(&self) -> usize;

    /// Returns a block compressor for one thread.
    fn worker(&self) -> BlockCompressor<'_>;

    /// Writes the bytes of the format before all blocks.
    fn head(&mut self, _: &mut Vec<u8>) {}

    /// Receives the uncompressed blocks, in order.
    fn took(&mut self, _: &[u8]) {}

    /// Writes the bytes of the format after all blocks.
    fn tail(&mut self, _: &mut Vec<u8>) {}

    /// Returns whether an empty content consists of one empty block.
    fn none_is_a_block(&self) -> bool {
        true
    }
}

/// Compresses input block by block.
#[derive(Debug)]
pub(super) struct Packer<B> {
    blocks: B,
    threads: usize,
    /// Input bytes that are less than a batch of blocks.
    held: Vec<u8>,
    begun: bool,
}

impl<B: BlockFormat> Packer<B> {
    pub(super) fn new(blocks: B, threads: usize) -> Self {
        Self {
            blocks,
            threads,
            held: Vec::new(),
            begun: false,
        }
    }

    /// Returns the number of input bytes that are compressed at a time.
    fn batch_bytes(&self) -> usize {
        let blocks = if self.threads == 1 {
            1
        } else {
            self.threads * BLOCKS_A_THREAD
        };
        self.blocks.block_bytes() * blocks
    }

    /// Compresses whole blocks, or the last block.
    fn batch(&mut self, bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        let mut packed = Vec::new();
        if !self.begun {
            self.begun = true;
            self.blocks.head(&mut packed);
            give(&mut packed, out)?;
        }
        let size = self.blocks.block_bytes();
        if self.threads == 1 {
            let mut worker = self.blocks.worker();
            for block in bytes.chunks(size) {
                worker(block, &mut packed).map_err(BuiltinError::Write)?;
                give(&mut packed, out)?;
            }
        } else {
            for mut packed in self.in_parallel(bytes).map_err(BuiltinError::Write)? {
                give(&mut packed, out)?;
            }
        }
        bytes.chunks(size).for_each(|block| self.blocks.took(block));
        Ok(())
    }

    /// Returns the compressed blocks of some input, in order.
    fn in_parallel(&self, bytes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let blocks: Vec<_> = bytes
            .chunks(self.blocks.block_bytes())
            .enumerate()
            .collect();
        let threads = self.threads.min(blocks.len());
        let blocks = Pile::new(blocks);
        let done = in_threads(vec![(); threads], |()| {
            let mut worker = self.blocks.worker();
            let mut done = Vec::new();
            while let Some((number, block)) = blocks.take() {
                let mut packed = Vec::new();
                worker(block, &mut packed)?;
                done.push((number, packed));
            }
            Ok(done)
        });
        let mut done: Vec<_> = done.into_iter().collect::<io::Result<Vec<_>>>()?.concat();
        done.sort_unstable_by_key(|(number, _)| *number);
        Ok(done.into_iter().map(|(_, packed)| packed).collect())
    }
}

impl<B: BlockFormat> Stream for Packer<B> {
    fn push(&mut self, mut bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        let batch = self.batch_bytes();
        if !self.held.is_empty() {
            let (first, rest) = bytes.split_at(bytes.len().min(batch - self.held.len()));
            self.held.extend_from_slice(first);
            bytes = rest;
            if self.held.len() < batch {
                return Ok(());
            }
            let held = std::mem::take(&mut self.held);
            self.batch(&held, out)?;
            self.held = held;
            self.held.clear();
        }
        // Whole batches in the caller's buffer are compressed without a copy.
        let whole = bytes.len() / batch * batch;
        for bytes in bytes[..whole].chunks(batch) {
            self.batch(bytes, out)?;
        }
        self.held.extend_from_slice(&bytes[whole..]);
        Ok(())
    }

    fn finish(mut self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        let held = std::mem::take(&mut self.held);
        let nothing = !self.begun && held.is_empty();
        self.batch(&held, out)?;
        let mut tail = Vec::new();
        if nothing && self.blocks.none_is_a_block() {
            let packed = self.blocks.worker()(&[], &mut tail);
            packed.map_err(BuiltinError::Write)?;
        }
        self.blocks.tail(&mut tail);
        give(&mut tail, out)
    }
}

/// Format of gzip members (RFC 1952).
#[derive(Debug)]
pub(super) struct Gzip {
    level: CompressionLvl,
}

/// Size of a member, in bytes: the empty window of 32 KiB at its start then costs a small part of a percent.
const MEMBER_BYTES: usize = 1 << 20;

impl Gzip {
    /// Returns a gzip compressor with a level from 1 to 12.
    pub(super) fn new(level: i32) -> Self {
        let level = CompressionLvl::new(level).expect("the level was checked");
        Self { level }
    }
}

impl BlockFormat for Gzip {
    fn block_bytes(&self) -> usize {
        MEMBER_BYTES
    }

    fn worker(&self) -> BlockCompressor<'_> {
        let mut compressor = Compressor::new(self.level);
        Box::new(move |block, packed| {
            let start = packed.len();
            packed.resize(start + compressor.gzip_compress_bound(block.len()), 0);
            let size = compressor.gzip_compress(block, &mut packed[start..]);
            packed.truncate(start + size.map_err(io::Error::other)?);
            Ok(())
        })
    }
}

/// Format of bzip2 streams of one block each.
#[derive(Debug)]
pub(super) struct Bzip2 {
    level: u32,
}

impl Bzip2 {
    /// Returns a bzip2 compressor with a level from 1 to 9.
    pub(super) fn new(level: i32) -> Self {
        Self {
            level: level.unsigned_abs(),
        }
    }
}

impl BlockFormat for Bzip2 {
    fn block_bytes(&self) -> usize {
        // A block ends 19 bytes before its size.
        self.level as usize * 100_000 - 19
    }

    fn worker(&self) -> BlockCompressor<'_> {
        Box::new(|block, packed| {
            let mut compress = Compress::new(Compression::new(self.level), 0);
            loop {
                packed.reserve(block.len() / 4 + 1024);
                let taken = usize::try_from(compress.total_in()).map_err(io::Error::other)?;
                let status = compress.compress_vec(&block[taken..], packed, Action::Finish);
                if status.map_err(io::Error::other)? == bzip2::Status::StreamEnd {
                    return Ok(());
                }
            }
        })
    }
}

/// Compresses input to one frame of zstd, with a checksum.
pub(super) struct Zstd {
    encoder: Encoder<'static>,
    packed: Vec<u8>,
}

impl Debug for Zstd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zstd").finish_non_exhaustive()
    }
}

impl Zstd {
    pub(super) fn new(level: i32, threads: usize) -> io::Result<Self> {
        let mut encoder = Encoder::new(level)?;
        encoder.set_parameter(CParameter::ChecksumFlag(true))?;
        if threads > 1 {
            let threads = u32::try_from(threads).unwrap_or(u32::MAX);
            encoder.set_parameter(CParameter::NbWorkers(threads))?;
        }
        let packed = Vec::with_capacity(PIECE_BYTES);
        Ok(Self { encoder, packed })
    }

    /// Writes the output buffer if it is full.
    fn space(&mut self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        if self.packed.len() == self.packed.capacity() {
            give(&mut self.packed, out)?;
        }
        Ok(())
    }
}

impl Stream for Zstd {
    fn push(&mut self, bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        let mut input = InBuffer::around(bytes);
        while input.pos() < bytes.len() {
            self.space(out)?;
            let place = self.packed.len();
            let mut space = OutBuffer::around_pos(&mut self.packed, place);
            let ran = self.encoder.run(&mut input, &mut space);
            ran.map_err(BuiltinError::Write)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        loop {
            self.space(out)?;
            let place = self.packed.len();
            let mut space = OutBuffer::around_pos(&mut self.packed, place);
            let left = self.encoder.finish(&mut space, true);
            if left.map_err(BuiltinError::Write)? == 0 {
                return give(&mut self.packed, out);
            }
        }
    }
}
