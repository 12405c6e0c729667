//! `wordcount`: lines, words and bytes, as `wc` counts them. A line is a newline; a word is a longest run of bytes that are not white
//! space of the C locale. No word spans files.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::BuiltinError;
use super::table::{BuiltinKernel, FoldInput, KernelConstructor};
use crate::fold::{self, Fold};
use crate::loops::bytes::{lines_and_words, white};
use crate::loops::simd::Level;

/// Kernel `wordcount`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "wordcount",
    revision: 1,
    help: "lines, words and bytes, as wc counts them",
    args: &[],
    usage: None,
    prepare: None,
    code: KernelConstructor::Fold(FoldInput::Bytes, |_| Ok(Box::new(WordCounts::default()))),
}];

/// Partial state of `wordcount`. A word that is cut counts once on either side until both sides are present.
#[derive(Debug, Default, Serialize, Deserialize)]
struct WordCounts {
    lines: u64,
    words: u64,
    bytes: u64,
    /// Stretches of counted bytes, by the offset of their first byte.
    stretches: BTreeMap<u64, WordStretch>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct WordStretch {
    end: u64,
    /// Whether a word reaches to the start of the stretch, and whether a word reaches to its end.
    word_at: (bool, bool),
}

impl WordCounts {
    /// Adds a counted stretch, and joins it with its neighbours.
    fn join(&mut self, mut start: u64, mut stretch: WordStretch) {
        if let Some(after) = self.stretches.remove(&stretch.end) {
            self.words -= u64::from(stretch.word_at.1 && after.word_at.0);
            stretch.end = after.end;
            stretch.word_at.1 = after.word_at.1;
        }
        let before = self.stretches.range(..start).next_back();
        if let Some((&first, &before)) = before.filter(|(_, before)| before.end == start) {
            self.words -= u64::from(before.word_at.1 && stretch.word_at.0);
            start = first;
            stretch.word_at.0 = before.word_at.0;
        }
        self.stretches.insert(start, stretch);
    }
}

impl Fold for WordCounts {
    fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuiltinError> {
        let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
            return Ok(());
        };
        let (lines, words) = lines_and_words(Level::best(), b' ', bytes);
        self.lines += lines;
        self.words += words;
        self.bytes += bytes.len() as u64;
        let stretch = WordStretch {
            end: offset + bytes.len() as u64,
            word_at: (!white(*first), !white(*last)),
        };
        self.join(offset, stretch);
        Ok(())
    }

    fn state(&self) -> Result<Vec<u8>, BuiltinError> {
        fold::encode(self)
    }

    fn merge(&mut self, state: &[u8]) -> Result<(), BuiltinError> {
        let other: Self = fold::decode(state)?;
        self.lines += other.lines;
        self.words += other.words;
        self.bytes += other.bytes;
        for (start, stretch) in other.stretches {
            self.join(start, stretch);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        writeln!(out, "{} {} {}", self.lines, self.words, self.bytes).map_err(BuiltinError::Write)
    }
}
