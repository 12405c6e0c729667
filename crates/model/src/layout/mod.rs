//! Layouts: define which objects hold a version's bytes, and on which nodes the objects are stored. No other module maps bytes of a file to
//! bytes of objects. This module does no I/O.
//!
//! A version consists of **parts**: objects that each hold some of its bytes. The bytes of a part are stored on one or more nodes as
//! **replicas**. **Segments** map bytes of the file to bytes of a part.

mod extents;
mod place;
mod plan;
mod select;
mod stripes;
#[cfg(test)]
mod tests;

pub use extents::{EXTENTS_MAX, Extent, Extents, UNPUBLISHED_MAX, decode_extents, encode_extents};
pub use place::{
    FreeSpace, PlacementError, RESERVE_BYTES, Tier, place, place_in_burst, place_in_memory,
    place_stripes, to_resume,
};
pub use plan::Fetch;
pub use select::{
    RANGES_MAX, RECORD_BYTES_MAX, Records, SelectedBytes, SelectedSpan, Selection, SelectionError,
    VALUES_BYTES_MAX, byte_ranges,
};
pub use stripes::{PartOf, StripedLayout, Stripes, UNIT_GRAIN, UNIT_MAX, WIDTH_MAX};

use crate::id::{NodeId, ObjectId};
use crate::replicas::{REPLICAS_MAX, ReplicaState};
use std::collections::BTreeMap;
use std::ops::Range;

/// Layout of a sealed version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The whole file is one object (the default; AnalyzeThis §3.3).
    Whole(Part),
    /// Stripes of equal size, distributed over the parts in turn (Active Storage §4).
    Striped(StripedLayout),
    /// Extents anywhere in the file, by several writers or gathered from small writes (Active Burst-Buffer §III-B).
    Extents(Extents),
}

/// Object that holds bytes of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Object of the part. Lineage and cached results identify the part by this object and its place in the layout.
    pub object: ObjectId,
    /// Size of the part's object, in bytes.
    pub size: u64,
    /// Replicas of the part.
    pub replicas: Vec<Replica>,
}

/// Replica of an object on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Id of the node.
    pub node: NodeId,
    /// State of the replica, which determines whether the replica can be read.
    pub state: ReplicaState,
}

/// Consecutive bytes of a file that are in one object, or in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Position of the segment in the file, in bytes.
    pub offset: u64,
    /// Length of the segment, in bytes.
    pub length: u64,
    /// Position of the segment in a part; `None` for zeros that nobody wrote.
    pub at: Option<PartPosition>,
}

/// Position in a part of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPosition {
    /// Index of the part in [`Layout::parts`].
    pub part: usize,
    /// Offset from the beginning of the part's object, in bytes.
    pub offset: u64,
}

/// Error of a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The stripe unit is invalid.
    #[error(
        "a stripe unit of {0} bytes is not allowed: it must be a multiple of {UNIT_GRAIN} of at most {UNIT_MAX}"
    )]
    Unit(u64),
    /// The number of parts is invalid.
    #[error("{0} nodes can't hold a striped file: it takes 1 to {WIDTH_MAX}")]
    Width(usize),
    /// A text does not describe stripes.
    #[error(
        "`{0}` is not a stripe layout: give UNIT or UNIT,WIDTH, such as 1MiB or 1MiB,4 (bytes, KiB, MiB, GiB)"
    )]
    Stripes(String),
    /// The size of a part does not match its place in the layout.
    #[error("part {part} has {has} bytes, but its place in the file has {asked}")]
    Length {
        /// Index of the part.
        part: usize,
        /// Size of the part's object, in bytes.
        has: u64,
        /// Expected size of the part, in bytes.
        asked: u64,
    },
    /// An extent is out of order, overlaps another extent, is empty, or leaves the file or its part.
    #[error("the extent at byte {0} is not in order, or is outside of the file or of its object")]
    Extent(u64),
    /// The layout has too many extents.
    #[error("a version of {0} extents is not allowed: at most {EXTENTS_MAX}")]
    Extents(usize),
    /// The bytes are not encoded extents.
    #[error("these bytes are not a list of extents")]
    Encoding,
    /// A part has no replica, too many replicas, or two replicas on one node.
    #[error("part {0} needs replicas on 1 to {REPLICAS_MAX} different nodes")]
    Replicas(usize),
}

impl Part {
    /// Returns a part with one replica, on `node`.
    #[must_use]
    pub fn on(object: ObjectId, size: u64, node: NodeId) -> Self {
        let replica = Replica {
            node,
            state: ReplicaState::Current,
        };
        Self {
            object,
            size,
            replicas: vec![replica],
        }
    }

    /// Returns the replicas of the part that can be read.
    pub fn current(&self) -> impl Iterator<Item = &Replica> {
        let current = |replica: &&Replica| replica.state == ReplicaState::Current;
        self.replicas.iter().filter(current)
    }
}

impl Layout {
    /// Returns the parts of the layout, in the order of [`PartPosition::part`].
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        match self {
            Self::Whole(part) => std::slice::from_ref(part),
            Self::Striped(striped) => &striped.parts,
            Self::Extents(extents) => &extents.parts,
        }
    }

    /// Returns the parts of the layout, to change their locations.
    pub fn parts_mut(&mut self) -> &mut [Part] {
        match self {
            Self::Whole(part) => std::slice::from_mut(part),
            Self::Striped(striped) => &mut striped.parts,
            Self::Extents(extents) => &mut extents.parts,
        }
    }

    /// Returns the size of the file, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Whole(part) => part.size,
            Self::Striped(striped) => striped.size,
            Self::Extents(extents) => extents.size,
        }
    }

    /// Returns the segments of `range` within the file, in order and without a gap.
    pub fn segments(&self, range: Range<u64>) -> impl Iterator<Item = Segment> {
        let end = range.end.min(self.size());
        let mut offset = range.start;
        std::iter::from_fn(move || {
            if offset >= end {
                return None;
            }
            let segment = self.segment(offset, end);
            offset += segment.length;
            Some(segment)
        })
    }

    /// Returns the longest segment that begins at `offset` and ends at `end` or before. `end` is greater than `offset` and within the file.
    fn segment(&self, offset: u64, end: u64) -> Segment {
        match self {
            Self::Whole(_) => Segment {
                offset,
                length: end - offset,
                at: Some(PartPosition { part: 0, offset }),
            },
            Self::Striped(striped) => striped.segment(offset, end),
            Self::Extents(extents) => extents.segment(offset, end),
        }
    }

    /// Returns the positions in the file of a byte range of a part, in the order of the part.
    pub fn segments_of(&self, part: usize, range: Range<u64>) -> Vec<Segment> {
        let size = self.parts().get(part).map_or(0, |part| part.size);
        let range = range.start..range.end.min(size);
        match self {
            _ if range.is_empty() => Vec::new(),
            Self::Whole(_) => self.segments(range).collect(),
            Self::Striped(striped) => striped.segments_of(part, range),
            Self::Extents(extents) => extents.segments_of(part, range),
        }
    }

    /// Returns the bytes of parts that make up a byte range of the file, with consecutive bytes as one range, in the order of the parts.
    /// These ranges are requested from nodes all at once.
    #[must_use]
    pub fn spans(&self, range: Range<u64>) -> Vec<(usize, Range<u64>)> {
        let mut spans: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
        match self {
            // There is one range per part, whatever the number of its stripes.
            Self::Striped(striped) => return striped.spans(range),
            Self::Whole(_) | Self::Extents(_) => {
                for segment in self.segments(range) {
                    if let Some(at) = segment.at {
                        let span = at.offset..at.offset + segment.length;
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

    /// Returns whether every written byte of the file can be read.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let lies = |part: &Part| part.size == 0 || part.current().next().is_some();
        self.parts().iter().all(lies)
    }

    /// Checks that the layout is valid.
    ///
    /// # Errors
    /// The first fault of the layout.
    pub fn check(&self) -> Result<(), LayoutError> {
        for (index, part) in self.parts().iter().enumerate() {
            let mut nodes: Vec<_> = part.replicas.iter().map(|replica| replica.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let different = nodes.len() == part.replicas.len();
            if !different || nodes.is_empty() || nodes.len() > REPLICAS_MAX as usize {
                return Err(LayoutError::Replicas(index));
            }
        }
        match self {
            Self::Whole(_) => Ok(()),
            Self::Striped(striped) => striped.check(),
            Self::Extents(extents) => extents.check(),
        }
    }
}
