//! Kernels that identify contents: `fingerprint` and `dedup`.
//!
//! - **`fingerprint`** writes Rabin's fingerprint of each input, 16 hexadecimal digits, and the input's length. It detects corruption,
//!   and fingerprints of parts can be combined. It does not protect against attackers: contents with any fingerprint are easily made.
//! - **`dedup`** cuts all inputs into chunks according to their content (FastCDC: Xia et al., "The Design of Fast Content-Defined
//!   Chunking for Data Deduplication Based Storage Systems", 2020), and reports the number of bytes that remain if equal chunks are
//!   stored once. Chunks are equal if their BLAKE3 hashes are equal. No chunk spans files.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;

use fastcdc::v2020::FastCDC;

use super::BuiltinError;
use super::series::open;
use super::table::{BuiltinKernel, FoldInput, KernelArgument, KernelConstructor, KernelOptions};
use crate::fold::{self, Fold};
use crate::loops::fingerprint::{extend, join};
use crate::loops::simd::Level;

/// Kernels `fingerprint` and `dedup`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[
    BuiltinKernel {
        name: "dedup",
        revision: 1,
        help: "content-defined chunks, and the bytes that remain if equal chunks are stored once",
        args: &[CHUNKS],
        usage: None,
        prepare: None,
        code: KernelConstructor::Whole(dedup),
    },
    BuiltinKernel {
        name: "fingerprint",
        revision: 1,
        help: "Rabin's fingerprint of each input, and its length",
        args: &[],
        usage: None,
        prepare: None,
        code: KernelConstructor::Fold(FoldInput::Bytes, |_| Ok(Box::new(Fingerprint::default()))),
    },
];

const CHUNKS: &[KernelArgument] = &[
    KernelArgument {
        key: "size",
        values: "BYTES",
        default: "8192",
        help: "usual size of a chunk, a multiple of 8 from 256 to 2097152; chunks except the last have a quarter to 8 times this size",
    },
    KernelArgument {
        key: "out",
        values: "summary|chunks",
        default: "summary",
        help: "summary: bytes, chunks, different bytes, different chunks; chunks: input, offset, length and hash of each",
    },
];

/// Lengths and fingerprints of processed pieces that do not touch, by their offsets.
#[derive(Debug, Default)]
struct Fingerprint(BTreeMap<u64, (u64, u64)>);

impl Fingerprint {
    fn add(&mut self, offset: u64, length: u64, value: u64) {
        let (mut start, mut piece) = (offset, (length, value));
        let before = self.0.range(..offset).next_back();
        if let Some((&begin, &(long, first))) = before
            && begin + long == offset
        {
            piece = (long + length, join(first, value, length));
            start = begin;
        }
        if let Some((long, second)) = self.0.remove(&(offset + length)) {
            piece = (piece.0 + long, join(piece.1, second, long));
        }
        self.0.insert(start, piece);
    }
}

impl Fold for Fingerprint {
    fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuiltinError> {
        if !bytes.is_empty() {
            let value = extend(0, bytes, Level::best());
            self.add(offset, bytes.len() as u64, value);
        }
        Ok(())
    }

    fn state(&self) -> Result<Vec<u8>, BuiltinError> {
        fold::encode(&self.0)
    }

    fn merge(&mut self, state: &[u8]) -> Result<(), BuiltinError> {
        let pieces: BTreeMap<u64, (u64, u64)> = fold::decode(state)?;
        for (offset, (length, value)) in pieces {
            self.add(offset, length, value);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        if self.0.is_empty() {
            return Err(BuiltinError::NoBytes);
        }
        for (length, value) in self.0.values() {
            // A leading 1 distinguishes contents that differ only in leading zeros.
            let value = join(1, *value, *length);
            writeln!(out, "{value:016x} {length}").map_err(BuiltinError::Write)?;
        }
        Ok(())
    }
}

fn dedup(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    const VALID: &str = "a multiple of 8 from 256 to 2097152";
    let size: usize = options.needed("size", options.number("size", VALID)?)?;
    if !(256..=2 << 20).contains(&size) || !size.is_multiple_of(8) {
        return Err(options.wrong("size", &size.to_string(), VALID));
    }
    let list = options.is("out", "chunks");
    let mut out = std::io::BufWriter::new(out);
    let mut known = HashSet::new();
    let (mut bytes, mut chunks, mut kept) = (0, 0_u64, 0);
    for (input, name) in inputs.iter().enumerate() {
        let file = open(name)?;
        for cut in FastCDC::new(&file, size / 4, size, size * 8) {
            let chunk = &file[cut.offset..][..cut.length];
            let hash = blake3::hash(chunk);
            if list {
                writeln!(out, "{input} {} {} {hash}", cut.offset, cut.length)
                    .map_err(BuiltinError::Write)?;
            }
            if known.insert(*hash.as_bytes()) {
                kept += cut.length;
            }
            chunks += 1;
        }
        bytes += file.len();
    }
    if !list {
        writeln!(out, "{bytes} {chunks} {kept} {}", known.len()).map_err(BuiltinError::Write)?;
    }
    out.flush().map_err(BuiltinError::Write)
}
