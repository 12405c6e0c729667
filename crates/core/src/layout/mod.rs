//! Layouts: which objects hold a version's bytes, and where they are. Nothing else knows how bytes of a file map to bytes
//! of objects.
//!
//! A version is made of **parts**, objects that each hold some of its bytes. What a part holds lies on one or more elements,
//! its **copies**. Which bytes of the file are which bytes of which part is told as **pieces**.

mod extents;
mod place;
mod select;
mod stripes;
#[cfg(test)]
mod tests;

pub use extents::{Extent, Extents, PIECES_MAX, UNTOLD_MAX, decode_pieces, encode_pieces};
pub use place::{
    Medium, PlacementError, RESERVE_BYTES, Room, place, place_in_burst, place_in_memory,
    place_stripes, to_wake,
};
pub use select::{
    RANGES_MAX, RECORD_BYTES_MAX, Records, Selected, SelectedSpan, Selection, SelectionError,
    VALUES_BYTES_MAX, byte_ranges,
};
pub use stripes::{PartOf, Striped, Stripes, UNIT_GRAIN, UNIT_MAX, WIDTH_MAX};

use crate::copies::{COPIES_MAX, CopyState};
use crate::id::{ElementId, ObjectId};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a sealed version is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The whole file is one object (the default; AnalyzeThis §3.3).
    Whole(Part),
    /// Stripes of one size go round over the parts (Active Storage §4).
    Striped(Striped),
    /// Pieces anywhere in the file, by several writers or gathered from small writes (Active Burst-Buffer §III-B).
    Extents(Extents),
}

/// An object that holds bytes of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The object. With its place in the layout it is what lineage and remembered results mean by the part.
    pub object: ObjectId,
    /// Its length in bytes.
    pub size: u64,
    /// Where it is.
    pub copies: Vec<Copy>,
}

/// An element's bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Which element.
    pub element: ElementId,
    /// Whether it can be read.
    pub state: CopyState,
}

/// Bytes of a file that follow each other in one object, or in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they begin in the file, in bytes.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// Where they begin in a part; `None`: they are zeros that nobody wrote.
    pub at: Option<Within>,
}

/// A place in a part of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within {
    /// Which of [`Layout::parts`].
    pub part: usize,
    /// Bytes from the begin of its object.
    pub offset: u64,
}

/// A layout that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A stripe unit that can't be.
    #[error(
        "a stripe unit of {0} bytes can't be: it must be a multiple of {UNIT_GRAIN} of at most {UNIT_MAX}"
    )]
    Unit(u64),
    /// So many parts can't be.
    #[error("{0} elements can't hold a striped file: it takes 1 to {WIDTH_MAX}")]
    Width(usize),
    /// No description of stripes.
    #[error(
        "`{0}` says not how to stripe: give UNIT or UNIT,WIDTH, such as 1MiB or 1MiB,4 (bytes, KiB, MiB, GiB)"
    )]
    Stripes(String),
    /// A part is longer than its place in the layout says.
    #[error("part {part} has {has} bytes, and its place in the file takes {asked}")]
    Length {
        /// Which part.
        part: usize,
        /// Bytes of its object.
        has: u64,
        /// Bytes that it should have.
        asked: u64,
    },
    /// Pieces that are out of order, overlap, are empty, or leave the file or their part.
    #[error("the piece at byte {0} is not in order, or is no part of the file or of its object")]
    Piece(u64),
    /// Too many pieces.
    #[error("a version of {0} pieces can't be: at most {PIECES_MAX}")]
    Pieces(usize),
    /// Bytes that are no pieces.
    #[error("these bytes are no list of pieces")]
    Encoding,
    /// A part has no copy or too many, or two on one element.
    #[error("part {0} needs copies on 1 to {COPIES_MAX} different elements")]
    Copies(usize),
}

impl Part {
    /// A part that lies on one element.
    #[must_use]
    pub fn on(object: ObjectId, size: u64, element: ElementId) -> Self {
        let copy = Copy {
            element,
            state: CopyState::Current,
        };
        Self {
            object,
            size,
            copies: vec![copy],
        }
    }

    /// The copies that can be read.
    pub fn current(&self) -> impl Iterator<Item = &Copy> {
        let current = |copy: &&Copy| copy.state == CopyState::Current;
        self.copies.iter().filter(current)
    }
}

impl Layout {
    /// The parts, in the order that [`Within::part`] counts.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        match self {
            Self::Whole(part) => std::slice::from_ref(part),
            Self::Striped(striped) => &striped.parts,
            Self::Extents(extents) => &extents.parts,
        }
    }

    /// The parts, to note where they are.
    pub fn parts_mut(&mut self) -> &mut [Part] {
        match self {
            Self::Whole(part) => std::slice::from_mut(part),
            Self::Striped(striped) => &mut striped.parts,
            Self::Extents(extents) => &mut extents.parts,
        }
    }

    /// The length of the file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Whole(part) => part.size,
            Self::Striped(striped) => striped.size,
            Self::Extents(extents) => extents.size,
        }
    }

    /// Where bytes of the file are: what of `range` is in the file, in order and without a gap.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let end = range.end.min(self.size());
        let mut offset = range.start;
        std::iter::from_fn(move || {
            if offset >= end {
                return None;
            }
            let piece = self.piece(offset, end);
            offset += piece.length;
            Some(piece)
        })
    }

    /// The longest piece from `offset` on that ends at `end`, which is in the file and behind it.
    fn piece(&self, offset: u64, end: u64) -> Piece {
        match self {
            Self::Whole(_) => Piece {
                offset,
                length: end - offset,
                at: Some(Within { part: 0, offset }),
            },
            Self::Striped(striped) => striped.piece(offset, end),
            Self::Extents(extents) => extents.piece(offset, end),
        }
    }

    /// Which bytes of the file some bytes of a part are, in the order of the part.
    pub fn pieces_of(&self, part: usize, range: Range<u64>) -> Vec<Piece> {
        let size = self.parts().get(part).map_or(0, |part| part.size);
        let range = range.start..range.end.min(size);
        match self {
            _ if range.is_empty() => Vec::new(),
            Self::Whole(_) => self.pieces(range).collect(),
            Self::Striped(striped) => striped.pieces_of(part, range),
            Self::Extents(extents) => extents.pieces_of(part, range),
        }
    }

    /// The bytes of parts that make up bytes of the file, each as one range where they follow each other: what is asked
    /// of elements, all at once. In the order of the parts.
    #[must_use]
    pub fn spans(&self, range: Range<u64>) -> Vec<(usize, Range<u64>)> {
        let mut spans: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
        match self {
            // Of each part one range, whatever number of stripes it has.
            Self::Striped(striped) => return striped.spans(range),
            Self::Whole(_) | Self::Extents(_) => {
                for piece in self.pieces(range) {
                    if let Some(at) = piece.at {
                        let span = at.offset..at.offset + piece.length;
                        spans.entry(at.part).or_default().push(span);
                    }
                }
            }
        }
        let mut all = Vec::new();
        for (part, mut of) in spans {
            of.sort_unstable_by_key(|span| span.start);
            let mut of = of.into_iter();
            let Some(mut last) = of.next() else { continue };
            for span in of {
                if span.start == last.end {
                    last.end = span.end;
                } else {
                    all.push((part, std::mem::replace(&mut last, span)));
                }
            }
            all.push((part, last));
        }
        all
    }

    /// Whether every byte that somebody wrote can be read.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let lies = |part: &Part| part.size == 0 || part.current().next().is_some();
        self.parts().iter().all(lies)
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), LayoutError> {
        for (index, part) in self.parts().iter().enumerate() {
            let mut elements: Vec<_> = part.copies.iter().map(|copy| copy.element).collect();
            elements.sort_unstable();
            elements.dedup();
            let different = elements.len() == part.copies.len();
            if !different || elements.is_empty() || elements.len() > COPIES_MAX as usize {
                return Err(LayoutError::Copies(index));
            }
        }
        match self {
            Self::Whole(_) => Ok(()),
            Self::Striped(striped) => striped.check(),
            Self::Extents(extents) => extents.check(),
        }
    }
}
