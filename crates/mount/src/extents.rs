//! A mount's state of a version that several mounts write, or have written: the location of each byte of the file. The state uses neither
//! clock nor network: its user passes in the server's answers, and transfers the bytes (next: `mount/src/fs/multi_writer.rs`;
//! `docs/decisions/0025-concurrent-writers.md`).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{Extent, Extents, LayoutError, Part, PartPosition, encode_extents};
use tidemill_wire::v1;

/// Whether other mounts have published writes since this mount last asked the server. The state stays stale until the server's answer is
/// adopted, so that a concurrent reader asks, too.
#[derive(Debug, Default)]
pub struct Freshness {
    /// Number of times that other mounts may have published writes.
    marks: AtomicU64,
    /// Number of `marks` that an adopted answer covers.
    answered: AtomicU64,
}

impl Freshness {
    /// Records that other mounts have published writes.
    pub fn mark(&self) {
        self.marks.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of a request that is sent now, for [`Self::answered`].
    pub fn asks(&self) -> u64 {
        self.marks.load(Ordering::Acquire)
    }

    /// Records that the answer to the request `asked` is adopted.
    pub fn answered(&self, asked: u64) {
        self.answered.fetch_max(asked, Ordering::AcqRel);
    }

    /// Whether other mounts may have published writes that this mount does not know.
    pub fn is_stale(&self) -> bool {
        self.answered.load(Ordering::Acquire) < self.marks.load(Ordering::Acquire)
    }
}

/// Returns the extent that covers all of a file of `size` bytes, which one mount has written.
#[must_use]
pub fn all_of(size: u64) -> Option<Extent> {
    let at = PartPosition { part: 0, offset: 0 };
    (size > 0).then_some(Extent {
        offset: 0,
        length: size,
        at,
    })
}

/// Writes of this mount to a version that may not be published yet. The mount never again writes bytes that it has reported.
#[derive(Debug)]
pub struct WriteLog {
    /// Index of the part that this mount writes.
    pub index: usize,
    /// Time of the last write, in nanoseconds since the Unix epoch.
    pub mtime: i64,
    /// End of the part's object in bytes.
    end: u64,
    /// Written extents that are not reported to the server.
    pending: Extents,
    /// Reported extents without an answer, which are reported again.
    publications: Vec<(v1::MountPublication, Extents)>,
    /// Number of the last report to the server.
    number: u64,
}

/// Returns an empty list of extents of a part.
fn pending(index: usize) -> Extents {
    let part = Part::on(ObjectId(0), 0, NodeId(0));
    Extents::with_parts(vec![part; index + 1])
}

impl WriteLog {
    /// Returns an empty log of writes; the part's object has `end` bytes.
    #[must_use]
    pub fn new(index: usize, end: u64, mtime: i64) -> Self {
        Self {
            index,
            mtime,
            end,
            pending: pending(index),
            publications: Vec::new(),
            number: 0,
        }
    }

    /// Returns the number of extents that the server may not know.
    #[must_use]
    pub fn count(&self) -> usize {
        let publications = self.publications.iter().map(|(_, extents)| extents.count());
        publications.sum::<usize>() + self.pending.count()
    }

    /// Whether the bytes `range` of the file would have another offset in the part than in the file.
    #[must_use]
    pub fn moves(&self, range: &Range<u64>) -> bool {
        match self.pending.covering(range) {
            Some(extent) => extent.at.offset != extent.offset,
            None => self.end != range.start,
        }
    }

    /// Returns the offset in the part for a write of the bytes `range` of the file, and whether [`Self::written`] has to be called for
    /// them.
    pub fn place(&mut self, range: &Range<u64>) -> (u64, bool) {
        if let Some(extent) = self.pending.covering(range) {
            return (extent.at.offset + (range.start - extent.offset), false);
        }
        let at = self.end;
        self.end += range.end - range.start;
        (at, true)
    }

    /// Records that the bytes `range` of the file were written at offset `at` of the part.
    ///
    /// # Errors
    /// The log has too many extents, or the range is invalid.
    pub fn written(&mut self, range: &Range<u64>, at: u64) -> Result<(), LayoutError> {
        let part = self.index;
        self.pending.put(Extent {
            offset: range.start,
            length: range.end - range.start,
            at: PartPosition { part, offset: at },
        })
    }

    /// Turns the writes since the last report into a new report; with `cut` the report sets the file's length.
    pub fn tell(&mut self, cut: Option<u64>) {
        if self.pending.count() == 0 && cut.is_none() {
            return;
        }
        let mut extents = std::mem::replace(&mut self.pending, pending(self.index));
        self.number += 1;
        let publication = v1::MountPublication {
            number: self.number,
            extents: encode_extents(extents.extents()),
            cut,
            mtime: self.mtime,
        };
        if let Some(cut) = cut {
            extents.set_size(cut);
        }
        self.publications.push((publication, extents));
    }

    /// Returns the reports that the server has not answered.
    #[must_use]
    pub fn publications(&self) -> Vec<v1::MountPublication> {
        self.publications
            .iter()
            .map(|(publication, _)| publication.clone())
            .collect()
    }

    /// Records that the server has received these reports, and that its answer is adopted.
    pub fn heard(&mut self, publications: &[v1::MountPublication]) {
        let last = publications.last().map(|publication| publication.number);
        self.publications
            .retain(|(publication, _)| Some(publication.number) > last);
    }

    /// Records that the part is sealed, and that the state published since then is adopted.
    pub fn acknowledge_all(&mut self) {
        self.publications.clear();
    }

    /// Returns the unpublished writes to a range, in order: each entry first sets the length of the file, then has extents.
    #[must_use]
    pub fn over(&self, range: &Range<u64>) -> Vec<(Option<u64>, Vec<Extent>)> {
        let publications = self.publications.iter();
        let publications = publications.map(|(publication, extents)| (publication.cut, extents));
        let all = publications.chain([(None, &self.pending)]);
        let within = |(cut, extents): (Option<u64>, &Extents)| {
            (cut, extents.within(range.clone()).collect())
        };
        all.map(within).collect()
    }

    /// Returns the length of the file for writers on this mount, if all other mounts see the length `seen`.
    #[must_use]
    pub fn size_over(&self, seen: u64) -> u64 {
        let mut size = seen;
        for (publication, extents) in &self.publications {
            size = publication.cut.unwrap_or_else(|| size.max(extents.size));
        }
        size.max(self.pending.size)
    }
}

#[cfg(test)]
mod tests {
    use super::{Freshness, WriteLog};

    fn write(log: &mut WriteLog, range: std::ops::Range<u64>) {
        let (at, is_new) = log.place(&range);
        if is_new {
            log.written(&range, at).unwrap();
        }
    }

    #[test]
    fn write_log_moves_range_unless_part_has_same_offset() {
        let mut log = WriteLog::new(0, 100, 0);
        assert!(
            log.moves(&(0..10)),
            "the bytes are in the file's extent already"
        );
        assert!(log.moves(&(110..120)));
        assert!(!log.moves(&(100..110)));
        write(&mut log, 100..110);
        assert!(
            !log.moves(&(102..105)),
            "the bytes are overwritten in place"
        );
        assert!(!log.moves(&(110..120)) && log.moves(&(105..120)));
        write(&mut log, 0..10);
        assert!(log.moves(&(2..5)) && log.moves(&(110..120)));
    }

    #[test]
    fn write_log_counts_extents_until_server_has_received_them() {
        let mut log = WriteLog::new(1, 0, 0);
        write(&mut log, 0..1);
        write(&mut log, 5..6);
        log.tell(None);
        write(&mut log, 9..10);
        assert_eq!(log.count(), 3);
        log.heard(&log.publications());
        assert_eq!(log.count(), 1);
    }

    #[test]
    fn freshness_stays_stale_if_marked_during_request() {
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
