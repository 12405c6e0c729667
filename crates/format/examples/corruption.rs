//! Reads any number of corrupt files: `corruption RUNS [SEED]`. Each corrupt file is a file of tests/fixtures with some bytes changed.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    dead_code,
    reason = "a tool for tests, and a part of one"
)]

use std::cell::Cell;
use std::io;
use std::path::Path;

use tidemill_format::zip::Zip;
use tidemill_format::{Bytes, IndexRange, VariableSource, pieces, read};

/// Maximum number of bytes that a reader may fetch for a header, or for an index of chunks. The reader's own limit is half of this number,
/// and pages are fetched completely.
const FETCHED_MAX: u64 = 2 << 30;
/// Number of pieces of each variable that are examined.
const PIECES: usize = 64;

/// Pseudorandom numbers (xorshift).
pub(crate) struct DamageRandom(u64);

impl DamageRandom {
    /// Returns a generator; the same seed gives the same sequence.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a pseudorandom number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % end.max(1)
    }
}

/// Returns the intact fixture files, with their names.
pub(crate) fn fixtures() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut files: Vec<(String, Vec<u8>)> = directory
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && path.extension().is_some_and(|end| end != "json"))
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                std::fs::read(path).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

/// Returns a file with some bytes changed or its end cut off. Some new bytes look like sizes. Most corruption is near bytes that look like
/// a header.
pub(crate) fn corrupt(file: &[u8], chance: &mut DamageRandom) -> Vec<u8> {
    let mut file = file.to_vec();
    for _ in 0..=chance.below(6) {
        let near = if chance.below(2) == 0 {
            file.len()
        } else {
            file.len().min(4096)
        };
        let at = chance.below(near);
        match chance.below(8) {
            0 => file[at] = 0xff,
            1 => file[at] = 0,
            2 => file[at] ^= 1 << chance.below(8),
            3 => {
                let end = (at + 1 + chance.below(8)).min(file.len());
                file[at..end].fill([0xff, 0x7f, 0x80, 0][chance.below(4)]);
            }
            4 => {
                let (from, len) = (chance.below(file.len()), chance.below(16));
                let len = len.min(file.len() - at).min(file.len() - from);
                file.copy_within(from..from + len, at);
            }
            5 if chance.below(8) == 0 => file.truncate(at.max(1)),
            _ => file[at] = u8::try_from(chance.below(256)).unwrap(),
        }
    }
    file
}

struct CountedReads<'a> {
    file: &'a Vec<u8>,
    fetched: Cell<u64>,
}

impl Bytes for CountedReads<'_> {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.fetched.set(self.fetched.get() + into.len() as u64);
        assert!(
            offset + into.len() as u64 <= self.size(),
            "a read past the end"
        );
        assert!(self.fetched.get() < FETCHED_MAX, "too much is read");
        self.file.read_at(offset, into)
    }
}

/// Reads all parts of a file. Returns whether its header could be read.
pub(crate) fn one(name: &str, file: &Vec<u8>) -> bool {
    let counted = CountedReads {
        file,
        fetched: Cell::new(0),
    };
    let header = match read(&counted) {
        Ok(header) => header,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "{name}");
            return false;
        }
    };
    let zip = name.ends_with(".zip").then(|| Zip::open(&counted).unwrap());
    for variable in &header.variables {
        counted.fetched.set(0);
        let all: Vec<IndexRange> = variable.shape().into_iter().map(IndexRange::all).collect();
        let thin: Vec<IndexRange> = all
            .iter()
            .map(|range| IndexRange {
                start: range.end / 3,
                end: range.end,
                step: 7,
            })
            .collect();
        for ranges in [all, thin] {
            let Ok(some) = pieces(
                variable,
                &ranges,
                zip.as_ref().map_or(VariableSource::File(&counted), |zip| {
                    VariableSource::Directory(zip)
                }),
                1 << 16,
            ) else {
                continue;
            };
            for piece in some.take(PIECES) {
                let Ok(piece) = piece else { break };
                let inside = |(range, size): (&IndexRange, &u64)| {
                    range.end <= *size && range.start <= range.end
                };
                assert!(
                    piece.within.iter().zip(&piece.shape).all(inside),
                    "{name}: {piece:?}"
                );
                assert!(
                    piece
                        .span
                        .is_none_or(|span| span.offset + span.size <= file.size()),
                    "{name}"
                );
            }
        }
    }
    true
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u64>().unwrap());
    let (runs, seed) = (
        arguments.next().unwrap_or(100_000),
        arguments.next().unwrap_or(1),
    );
    let files = fixtures();
    let mut chance = DamageRandom::new(seed);
    let (mut done, mut read) = (0, 0_u64);
    let start = std::time::Instant::now();
    while done < runs {
        let (name, file) = &files[usize::try_from(done).unwrap() % files.len()];
        let corrupt = corrupt(file, &mut chance);
        let keep = std::panic::catch_unwind(|| one(name, &corrupt));
        match keep {
            Ok(whole) => read += u64::from(whole),
            Err(_) => {
                std::fs::write("corrupt.bin", &corrupt).unwrap();
                panic!("{name}, run {done}, seed {seed}: see corrupt.bin");
            }
        }
        done += 1;
    }
    println!(
        "{done} runs, {read} of them with a header that could be read, {:?}",
        start.elapsed()
    );
}
