//! What a mount knows of a version that several mounts write, or have written: which bytes of the file are where. Knows neither
//! clock nor network: who uses it says what the server has answered, and brings the bytes to where they belong
//! (`docs/decisions/0026-several-writers.md`).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_core::id::{ElementId, ObjectId};
use tidemill_core::layout::{Extent, Extents, LayoutError, Part, Within, encode_pieces};
use tidemill_wire::v1;

/// Whether others have made something visible since the server was last asked for it. It is not before the answer is adopted: who
/// reads meanwhile asks, too.
#[derive(Debug, Default)]
pub struct Freshness {
    /// How often something may have been made visible.
    marks: AtomicU64,
    /// How many of these an answer has come after.
    answered: AtomicU64,
}

impl Freshness {
    /// Others have made something visible.
    pub fn mark(&self) {
        self.marks.fetch_add(1, Ordering::AcqRel);
    }

    /// What an answer will say that is asked for now, for [`Self::answered`].
    pub fn asks(&self) -> u64 {
        self.marks.load(Ordering::Acquire)
    }

    /// The answer is adopted.
    pub fn answered(&self, asked: u64) {
        self.answered.fetch_max(asked, Ordering::AcqRel);
    }

    /// Whether there may be more than is known.
    pub fn is_stale(&self) -> bool {
        self.answered.load(Ordering::Acquire) < self.marks.load(Ordering::Acquire)
    }
}

/// What one mount has written of a file of `size` bytes: all of it.
#[must_use]
pub fn all_of(size: u64) -> Option<Extent> {
    let at = Within { part: 0, offset: 0 };
    (size > 0).then_some(Extent {
        offset: 0,
        length: size,
        at,
    })
}

/// What is written here of a version, and not known to be visible to all. Bytes that were told are never written again.
#[derive(Debug)]
pub struct Log {
    /// Which of the parts.
    pub index: usize,
    /// When it was written last, in nanoseconds since the epoch.
    pub mtime: i64,
    /// Where the object ends.
    end: u64,
    /// Written, and not told.
    pending: Extents,
    /// Told, and not answered: it is told again.
    told: Vec<(v1::Told, Extents)>,
    /// The number of what was told last.
    number: u64,
}

/// Nothing of a part.
fn pending(index: usize) -> Extents {
    let part = Part::on(ObjectId(0), 0, ElementId(0));
    Extents::with_parts(vec![part; index + 1])
}

impl Log {
    /// Nothing is written yet; the part's object has `end` bytes.
    #[must_use]
    pub fn new(index: usize, end: u64, mtime: i64) -> Self {
        Self {
            index,
            mtime,
            end,
            pending: pending(index),
            told: Vec::new(),
            number: 0,
        }
    }

    /// How many pieces the server may not have heard of.
    #[must_use]
    pub fn count(&self) -> usize {
        let told = self.told.iter().map(|(_, pieces)| pieces.count());
        told.sum::<usize>() + self.pending.count()
    }

    /// Whether these bytes of the file would lie elsewhere in the part than in the file.
    #[must_use]
    pub fn moves(&self, range: &Range<u64>) -> bool {
        match self.pending.covering(range) {
            Some(piece) => piece.at.offset != piece.offset,
            None => self.end != range.start,
        }
    }

    /// Where in the part these bytes of the file are to be written, and whether [`Self::written`] is to be told of it.
    pub fn place(&mut self, range: &Range<u64>) -> (u64, bool) {
        if let Some(piece) = self.pending.covering(range) {
            return (piece.at.offset + (range.start - piece.offset), false);
        }
        let at = self.end;
        self.end += range.end - range.start;
        (at, true)
    }

    /// These bytes of the file were written there.
    ///
    /// # Errors
    /// If there are too many pieces, or such bytes can't be.
    pub fn written(&mut self, range: &Range<u64>, at: u64) -> Result<(), LayoutError> {
        let part = self.index;
        self.pending.put(Extent {
            offset: range.start,
            length: range.end - range.start,
            at: Within { part, offset: at },
        })
    }

    /// What was written since is about to be told; with `cut` the file is that long then.
    pub fn tell(&mut self, cut: Option<u64>) {
        if self.pending.count() == 0 && cut.is_none() {
            return;
        }
        let mut pieces = std::mem::replace(&mut self.pending, pending(self.index));
        self.number += 1;
        let told = v1::Told {
            number: self.number,
            pieces: encode_pieces(pieces.pieces()),
            cut,
            mtime: self.mtime,
        };
        if let Some(cut) = cut {
            pieces.set_size(cut);
        }
        self.told.push((told, pieces));
    }

    /// What is to be told.
    #[must_use]
    pub fn told(&self) -> Vec<v1::Told> {
        self.told.iter().map(|(told, _)| told.clone()).collect()
    }

    /// The server has heard of this, and what it answered is adopted.
    pub fn heard(&mut self, told: &[v1::Told]) {
        let last = told.last().map(|told| told.number);
        self.told.retain(|(told, _)| Some(told.number) > last);
    }

    /// The part is sealed, and what is visible since then is adopted.
    pub fn all_heard(&mut self) {
        self.told.clear();
    }

    /// What lies over the visible bytes of a range, in order: first the file is as long as that, then these pieces.
    #[must_use]
    pub fn over(&self, range: &Range<u64>) -> Vec<(Option<u64>, Vec<Extent>)> {
        let told = self.told.iter();
        let told = told.map(|(told, pieces)| (told.cut, pieces));
        let all = told.chain([(None, &self.pending)]);
        let within =
            |(cut, pieces): (Option<u64>, &Extents)| (cut, pieces.within(range.clone()).collect());
        all.map(within).collect()
    }

    /// The length of the file for who writes here, if that is what all see.
    #[must_use]
    pub fn size_over(&self, seen: u64) -> u64 {
        let mut size = seen;
        for (told, pieces) in &self.told {
            size = told.cut.unwrap_or_else(|| size.max(pieces.size));
        }
        size.max(self.pending.size)
    }
}

#[cfg(test)]
mod tests {
    use super::{Freshness, Log};

    fn write(log: &mut Log, range: std::ops::Range<u64>) {
        let (at, is_new) = log.place(&range);
        if is_new {
            log.written(&range, at).unwrap();
        }
    }

    #[test]
    fn range_moves_unless_part_has_same_offset() {
        let mut log = Log::new(0, 100, 0);
        assert!(log.moves(&(0..10)), "what the file has lies there already");
        assert!(log.moves(&(110..120)));
        assert!(!log.moves(&(100..110)));
        write(&mut log, 100..110);
        assert!(!log.moves(&(102..105)), "it is written over in its place");
        assert!(!log.moves(&(110..120)) && log.moves(&(105..120)));
        write(&mut log, 0..10);
        assert!(log.moves(&(2..5)) && log.moves(&(110..120)));
    }

    #[test]
    fn pieces_count_until_server_has_heard_them() {
        let mut log = Log::new(1, 0, 0);
        write(&mut log, 0..1);
        write(&mut log, 5..6);
        log.tell(None);
        write(&mut log, 9..10);
        assert_eq!(log.count(), 3);
        log.heard(&log.told());
        assert_eq!(log.count(), 1);
    }

    #[test]
    fn freshness_stays_stale_if_marked_during_question() {
        let freshness = Freshness::default();
        assert!(!freshness.is_stale());
        freshness.mark();
        let asked = freshness.asks();
        assert!(freshness.is_stale(), "nothing is adopted yet");
        freshness.mark();
        freshness.answered(asked);
        assert!(freshness.is_stale(), "more was made visible meanwhile");
        freshness.answered(freshness.asks());
        assert!(!freshness.is_stale());
        freshness.answered(asked);
        assert!(
            !freshness.is_stale(),
            "an answer that comes late takes nothing back"
        );
    }
}
