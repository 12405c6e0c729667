//! Kernels that compress and decompress: `gzip zstd lz4 bzip2` and `gunzip unzstd unlz4 bunzip2`, in the file formats of the programs of
//! these names. All inputs form one content. Corrupt or truncated data is an error, at the latest at its end, so no part of such a result
//! is kept. The memory that the kernels use does not depend on the sizes that a file declares.
//!
//! `gzip` and `bzip2` write members of 1 MiB and of one block, like pigz and pbzip2, and `lz4` writes independent blocks of 4 MiB, so
//! `threads=` can be more than one. The result does not depend on the number of threads (but `zstd` distinguishes one from several).

mod lz4;
mod pack;
mod unpack;

use std::io::Write;

use super::BuiltinError;
use super::table::{BuiltinKernel, FoldInput, KernelArgument, KernelConstructor, KernelOptions};
use pack::{Bzip2, Gzip, Packer, Zstd};
use unpack::{Bunzip2, Gunzip, Unpacker, Unzstd};

/// Number of bytes that are written at a time: a file written in pieces of this size is read fastest later.
const PIECE_BYTES: usize = 1 << 20;

macro_rules! kernel {
    ($name:literal, $help:literal, $args:expr, $make:expr) => {
        BuiltinKernel {
            name: $name,
            revision: 1,
            help: $help,
            args: $args,
            usage: None,
            prepare: None,
            code: KernelConstructor::Stream(FoldInput::Bytes, $make),
        }
    };
}

/// Kernels that compress and decompress, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[
    kernel!(
        "gzip",
        "all inputs as one, compressed in the format of gzip",
        &[LEVEL_GZIP, THREADS],
        |options| {
            let level = level(options, 1, 12)?;
            Ok(Box::new(Packer::new(Gzip::new(level), options.threads()?)))
        }
    ),
    kernel!(
        "gunzip",
        "the decompressed input, in the format of gzip",
        &[],
        |_| { Ok(Box::new(Unpacker::new(Gunzip::new()))) }
    ),
    kernel!(
        "zstd",
        "all inputs as one, compressed in the format of zstd",
        &[LEVEL_ZSTD, THREADS],
        |options| {
            let stream = Zstd::new(level(options, -7, 22)?, options.threads()?);
            Ok(Box::new(stream.map_err(BuiltinError::Write)?))
        }
    ),
    kernel!(
        "unzstd",
        "the decompressed input, in the format of zstd",
        &[],
        |_| {
            let decoder = Unzstd::new().map_err(BuiltinError::Write)?;
            Ok(Box::new(Unpacker::new(decoder)))
        }
    ),
    kernel!(
        "lz4",
        "all inputs as one, compressed in the frame format of lz4",
        &[THREADS],
        |options| {
            let blocks = lz4::FrameWriter::default();
            Ok(Box::new(Packer::new(blocks, options.threads()?)))
        }
    ),
    kernel!(
        "unlz4",
        "the decompressed input, in the frame format of lz4",
        &[],
        |_| { Ok(Box::new(lz4::Frames::default())) }
    ),
    kernel!(
        "bzip2",
        "all inputs as one, compressed in the format of bzip2",
        &[LEVEL_BZIP2, THREADS],
        |options| {
            let level = level(options, 1, 9)?;
            Ok(Box::new(Packer::new(Bzip2::new(level), options.threads()?)))
        }
    ),
    kernel!(
        "bunzip2",
        "the decompressed input, in the format of bzip2",
        &[],
        |_| { Ok(Box::new(Unpacker::new(Bunzip2::new()))) }
    ),
];

const LEVEL_GZIP: &[KernelArgument] = &[KernelArgument {
    key: "level",
    values: "LEVEL",
    default: "6",
    help: "1 (fastest) to 12 (smallest)",
}];

const LEVEL_ZSTD: &[KernelArgument] = &[KernelArgument {
    key: "level",
    values: "LEVEL",
    default: "3",
    help: "-7 (fastest) to 22 (smallest)",
}];

const LEVEL_BZIP2: &[KernelArgument] = &[KernelArgument {
    key: "level",
    values: "LEVEL",
    default: "9",
    help: "1 to 9: size of a block in units of 100 kB",
}];

const THREADS: &[KernelArgument] = &[KernelArgument {
    key: "threads",
    values: "COUNT",
    default: "1",
    help: "threads to compress with",
}];

fn level(options: &KernelOptions, least: i32, most: i32) -> Result<i32, BuiltinError> {
    let valid = format!("{least} to {most}");
    let level = options.number("level", &valid)?;
    let level: i32 = options.needed("level", level)?;
    if (least..=most).contains(&level) {
        return Ok(level);
    }
    Err(options.wrong("level", &level.to_string(), &valid))
}

/// Returns an error within the data of a format.
fn corrupt(format: &'static str, offset: u64, what: impl Into<String>) -> BuiltinError {
    BuiltinError::Corrupt {
        format,
        offset,
        what: what.into(),
    }
}

/// Writes a piece of output and clears it.
fn give(piece: &mut Vec<u8>, out: &mut dyn Write) -> Result<(), BuiltinError> {
    out.write_all(piece).map_err(BuiltinError::Write)?;
    piece.clear();
    Ok(())
}
