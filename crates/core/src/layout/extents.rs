//! Versions of pieces: each writer puts what it writes one after the other into an object of its own; which bytes of the
//! file those are is kept beside it. Where writers wrote the same bytes, those count that were sealed last.

use super::{LayoutError, Part, Piece, Within};
use std::collections::BTreeMap;
use std::ops::Range;

/// Most pieces of one version.
pub const PIECES_MAX: usize = 1 << 20;

/// See the module. What no piece covers reads as zeros.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Extents {
    /// Length of the file in bytes.
    pub size: u64,
    /// One for each writer.
    pub parts: Vec<Part>,
    /// In the order of the file; none overlap, and no two could be one.
    pub pieces: Vec<Extent>,
}

/// Bytes of the file that follow each other in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where they begin in the file.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// Where they begin.
    pub at: Within,
}

impl Extent {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// What of it is in a range of the file.
    fn cut(&self, range: Range<u64>) -> Option<Self> {
        let (start, end) = (self.offset.max(range.start), self.end().min(range.end));
        (start < end).then(|| Self {
            offset: start,
            length: end - start,
            at: Within {
                offset: self.at.offset + (start - self.offset),
                ..self.at
            },
        })
    }

    fn goes_on_with(&self, next: &Self) -> bool {
        self.end() == next.offset
            && self.at.part == next.at.part
            && self.at.offset + self.length == next.at.offset
    }
}

impl Extents {
    /// Adds what another writer wrote: `pieces` are the file's and the part's first bytes and how many, in the order in which they were
    /// written, later ones over earlier ones. The file ends no earlier than they do.
    ///
    /// # Errors
    /// A piece that leaves the part or the numbers there are, or too many of them; nothing is changed then.
    pub fn add(&mut self, part: Part, pieces: &[(u64, u64, u64)]) -> Result<(), LayoutError> {
        let index = self.parts.len();
        let mut all: BTreeMap<u64, Extent> =
            self.pieces.iter().map(|one| (one.offset, *one)).collect();
        let mut size = self.size;
        for &(offset, within, length) in pieces {
            let end = offset.checked_add(length);
            let holds = within
                .checked_add(length)
                .is_some_and(|end| end <= part.size);
            let (Some(end), true) = (end, holds && length > 0) else {
                return Err(LayoutError::Piece(offset));
            };
            clear(&mut all, offset..end);
            let at = Within {
                part: index,
                offset: within,
            };
            all.insert(offset, Extent { offset, length, at });
            size = size.max(end);
        }
        let mut joined: Vec<Extent> = Vec::with_capacity(all.len());
        for next in all.into_values() {
            match joined.last_mut() {
                Some(last) if last.goes_on_with(&next) => last.length += next.length,
                _ => joined.push(next),
            }
        }
        if joined.len() > PIECES_MAX {
            return Err(LayoutError::Pieces(joined.len()));
        }
        self.parts.push(part);
        (self.pieces, self.size) = (joined, size);
        Ok(())
    }

    /// The file is that long from now on.
    pub fn set_size(&mut self, size: u64) {
        let pieces = self.pieces.iter();
        self.pieces = pieces.filter_map(|piece| piece.cut(0..size)).collect();
        self.size = size;
    }

    pub(super) fn piece(&self, offset: u64, end: u64) -> Piece {
        let next = self.pieces.partition_point(|piece| piece.end() <= offset);
        let (end, at) = match self.pieces.get(next) {
            Some(piece) if piece.offset <= offset => {
                let within = piece.at.offset + (offset - piece.offset);
                let at = Within {
                    offset: within,
                    ..piece.at
                };
                (end.min(piece.end()), Some(at))
            }
            Some(piece) => (end.min(piece.offset), None),
            None => (end, None),
        };
        Piece {
            offset,
            length: end - offset,
            at,
        }
    }

    pub(super) fn pieces_of(&self, part: usize, range: Range<u64>) -> Vec<Piece> {
        let of = self.pieces.iter().filter(|piece| piece.at.part == part);
        let within = |piece: &Extent| {
            let start = piece.at.offset.max(range.start);
            let end = (piece.at.offset + piece.length).min(range.end);
            (start < end).then(|| Piece {
                offset: piece.offset + (start - piece.at.offset),
                length: end - start,
                at: Some(Within {
                    part,
                    offset: start,
                }),
            })
        };
        let mut pieces: Vec<Piece> = of.filter_map(within).collect();
        pieces.sort_unstable_by_key(|piece| piece.at.map(|at| at.offset));
        pieces
    }

    pub(super) fn check(&self) -> Result<(), LayoutError> {
        if self.pieces.len() > PIECES_MAX {
            return Err(LayoutError::Pieces(self.pieces.len()));
        }
        let mut end = 0;
        for piece in &self.pieces {
            let part = self.parts.get(piece.at.part).map_or(0, |part| part.size);
            let holds = piece.at.offset.checked_add(piece.length);
            let holds = holds.is_some_and(|end| end <= part);
            let ends = piece.offset.checked_add(piece.length);
            let ends = ends.filter(|&last| last <= self.size);
            let (Some(last), true) = (ends, holds && piece.length > 0 && piece.offset >= end)
            else {
                return Err(LayoutError::Piece(piece.offset));
            };
            end = last;
        }
        Ok(())
    }
}

/// Takes a range of the file out of what covers it.
fn clear(all: &mut BTreeMap<u64, Extent>, range: Range<u64>) {
    let before = all.range(..range.start).next_back().map(|(_, one)| *one);
    if let Some(one) = before.filter(|one| one.end() > range.start) {
        all.remove(&one.offset);
        let rests = [one.cut(0..range.start), one.cut(range.end..u64::MAX)];
        all.extend(rests.into_iter().flatten().map(|rest| (rest.offset, rest)));
    }
    let inside: Vec<u64> = all
        .range(range.clone())
        .map(|(&offset, _)| offset)
        .collect();
    for offset in inside {
        if let Some(one) = all.remove(&offset)
            && let Some(rest) = one.cut(range.end..u64::MAX)
        {
            all.insert(rest.offset, rest);
        }
    }
}
