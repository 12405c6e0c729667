//! Where records begin whose length nobody knows: the bytes that they end with are looked for about the ends of stripes, on
//! whichever element these are. Nothing else is read.

use crate::pull::{Lies, PullError, Pulls};
use crate::spans::{Around, Span, Spans};
use memchr::memmem;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_core::layout::{RECORD_BYTES_MAX, SelectionError};

/// Bytes that are looked at first: more than most lines have,
const FIRST_BYTES: u64 = 4 << 10;
/// and at most, each time four times as many.
const NEXT_BYTES_MAX: u64 = 1 << 20;

/// See the module.
pub(crate) struct Seams<'a> {
    lies: &'a Lies,
    spans: Spans<'a>,
    buffer: Vec<u8>,
    /// What was looked for last, and what was found: the same for all between.
    last: RangeInclusive<u64>,
}

impl<'a> Seams<'a> {
    /// `runs`: those whose begins and ends are looked for, in this order.
    pub(crate) fn new(
        pulls: &'a Arc<Pulls>,
        lies: &'a Lies,
        around: Around<'a>,
        (runs, end): (Vec<Range<u64>>, &'a [u8]),
    ) -> Self {
        let size = lies.layout.size();
        let seams = runs.into_iter().flat_map(|run| [run.start, run.end]);
        let within = seams.filter(move |&at| at > 0 && at < size);
        let windows = within.map(move |at| first_window(at, end, size));
        let ahead = windows.flat_map(move |window| spans_of(lies, window));
        Self {
            lies,
            spans: Spans::new(pulls, lies, around, ahead.map(|(_, span)| span)),
            buffer: Vec::new(),
            last: 0..=0,
        }
    }

    /// The first record that begins at a byte or behind it: at the begin of the file, or behind what records end with. The end
    /// of the file, if none does.
    pub(crate) fn begin(&mut self, at: u64, end: &[u8]) -> Result<u64, PullError> {
        if !self.last.contains(&at) {
            self.last = at..=self.look(at, end)?;
        }
        Ok(*self.last.end())
    }

    fn look(&mut self, at: u64, end: &[u8]) -> Result<u64, PullError> {
        let size = self.lies.layout.size();
        if at >= size {
            return Ok(size);
        }
        let Range { start, end: to } = first_window(at, end, size);
        let (mut from, mut to, mut length) = (start, to, FIRST_BYTES);
        loop {
            self.read(from..to)?;
            if let Some(found) = memmem::find(&self.buffer, end) {
                return Ok(from + (found + end.len()) as u64);
            }
            if to == size {
                return Ok(size);
            }
            if to - at > RECORD_BYTES_MAX {
                return Err(SelectionError::RecordLength(at).into());
            }
            // What it ends with may lie across.
            from = to - (end.len() as u64 - 1);
            length = (length * 4).min(NEXT_BYTES_MAX);
            to = (from + length).min(size);
        }
    }

    /// Reads bytes of the file; what objects lack at their ends is zeros.
    fn read(&mut self, window: Range<u64>) -> Result<(), PullError> {
        let spans = spans_of(self.lies, window.clone()).map(|(_, span)| span);
        if window.end - window.start > FIRST_BYTES {
            self.spans.prepare(spans)?;
        }
        read_window(self.lies, &mut self.spans, window, &mut self.buffer)?;
        Ok(())
    }
}

/// Reads bytes of a file; what objects lack at their ends is zeros. Gives how many came from elsewhere.
pub(crate) fn read_window(
    lies: &Lies,
    spans: &mut Spans<'_>,
    window: Range<u64>,
    buffer: &mut Vec<u8>,
) -> Result<u64, PullError> {
    let length = usize::try_from(window.end - window.start).unwrap_or(usize::MAX);
    buffer.clear();
    buffer.resize(length, 0);
    let mut moved = 0;
    for (begin, span) in spans_of(lies, window) {
        let (start, bytes) = (span.1.start, span.1.end - span.1.start);
        let place = |at: u64, read: &[u8]| {
            let to = usize::try_from(begin + at - start).unwrap_or(usize::MAX);
            let into = buffer.get_mut(to..to.saturating_add(read.len()));
            let wrong = tidemill_client::Error::Answer("range of bytes");
            into.ok_or(wrong)?.copy_from_slice(read);
            Ok(())
        };
        let device = |source| PullError::Device {
            path: PathBuf::new(),
            source,
        };
        if !spans.read(span, place, device)? {
            moved += bytes;
        }
    }
    Ok(moved)
}

/// What is read first for the record that begins at a byte or behind it.
fn first_window(at: u64, end: &[u8], size: u64) -> Range<u64> {
    let from = at.saturating_sub(end.len() as u64);
    from..(from + FIRST_BYTES).min(size)
}

/// What objects have of some bytes of the file, each with the place of its first byte among these.
pub(crate) fn spans_of(lies: &Lies, window: Range<u64>) -> impl Iterator<Item = (u64, Span)> {
    let from = window.start;
    lies.layout.pieces(window).filter_map(move |piece| {
        let within = piece.at?;
        let has = lies.layout.parts().get(within.part)?.size;
        let bytes = within.offset..(within.offset + piece.length).min(has);
        (!bytes.is_empty()).then_some((piece.offset - from, (within.part, bytes)))
    })
}
