//! Search for the starts of records of unknown length. The module reads bytes around the ends of stripes, on any node, and searches them
//! for the bytes with which records end. The module reads no other bytes.

use crate::fetch::{FetchError, Fetcher, InputLocations};
use crate::part_reader::{PartBytes, SpanLookup, Spans};
use memchr::memmem;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_model::layout::{RECORD_BYTES_MAX, SelectionError};

/// Number of bytes of the first read, which is longer than most lines.
const FIRST_BYTES: u64 = 4 << 10;
/// Maximum number of bytes per read; each read is four times as long as the previous read.
const NEXT_BYTES_MAX: u64 = 1 << 20;

/// Search for the starts of a file's records.
pub(crate) struct RecordStarts<'a> {
    locations: &'a InputLocations,
    spans: Spans<'a>,
    buffer: Vec<u8>,
    /// Range of the last search, and its result, which is the same for all offsets in the range.
    last: RangeInclusive<u64>,
}

impl<'a> RecordStarts<'a> {
    /// Creates a search. `runs` are the ranges whose starts and ends will be searched, in the order of the searches.
    pub(crate) fn new(
        fetcher: &'a Arc<Fetcher>,
        locations: &'a InputLocations,
        around: SpanLookup<'a>,
        (runs, end): (Vec<Range<u64>>, &'a [u8]),
    ) -> Self {
        let size = locations.layout.size();
        let seams = runs.into_iter().flat_map(|run| [run.start, run.end]);
        let within = seams.filter(move |&at| at > 0 && at < size);
        let windows = within.map(move |at| first_window(at, end, size));
        let ahead = windows.flat_map(move |window| spans_of(locations, window));
        Self {
            locations,
            spans: Spans::new(fetcher, locations, around, ahead.map(|(_, span)| span)),
            buffer: Vec::new(),
            last: 0..=0,
        }
    }

    /// Returns the start of the first record at or after offset `at`. A record starts at the start of the file, or after the end of another
    /// record. Returns the end of the file if no further record starts.
    pub(crate) fn begin(&mut self, at: u64, end: &[u8]) -> Result<u64, FetchError> {
        if !self.last.contains(&at) {
            self.last = at..=self.look(at, end)?;
        }
        Ok(*self.last.end())
    }

    fn look(&mut self, at: u64, end: &[u8]) -> Result<u64, FetchError> {
        let size = self.locations.layout.size();
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
            // The end of a record may cross the border between two reads.
            from = to - (end.len() as u64 - 1);
            length = (length * 4).min(NEXT_BYTES_MAX);
            to = (from + length).min(size);
        }
    }

    /// Reads a range of the file into the window. Bytes after the end of an object are zeros.
    fn read(&mut self, window: Range<u64>) -> Result<(), FetchError> {
        let spans = spans_of(self.locations, window.clone()).map(|(_, span)| span);
        if window.end - window.start > FIRST_BYTES {
            self.spans.prepare(spans)?;
        }
        read_window(self.locations, &mut self.spans, window, &mut self.buffer)?;
        Ok(())
    }
}

/// Reads a range of a file. Bytes after the end of an object are zeros. Returns how many bytes were fetched from other nodes.
pub(crate) fn read_window(
    locations: &InputLocations,
    spans: &mut Spans<'_>,
    window: Range<u64>,
    buffer: &mut Vec<u8>,
) -> Result<u64, FetchError> {
    let length = usize::try_from(window.end - window.start).unwrap_or(usize::MAX);
    buffer.clear();
    buffer.resize(length, 0);
    let mut transferred = 0;
    for (begin, span) in spans_of(locations, window) {
        let (start, bytes) = (span.1.start, span.1.end - span.1.start);
        let place = |at: u64, read: &[u8]| {
            let to = usize::try_from(begin + at - start).unwrap_or(usize::MAX);
            let into = buffer.get_mut(to..to.saturating_add(read.len()));
            let wrong = tidemill_client::Error::Answer("range of bytes");
            into.ok_or(wrong)?.copy_from_slice(read);
            Ok(())
        };
        let device = |source| FetchError::Device {
            path: PathBuf::new(),
            source,
        };
        if !spans.read(span, place, device)? {
            transferred += bytes;
        }
    }
    Ok(transferred)
}

/// Returns the first range to read in the search for the first record at or after offset `at`.
fn first_window(at: u64, end: &[u8], size: u64) -> Range<u64> {
    let from = at.saturating_sub(end.len() as u64);
    from..(from + FIRST_BYTES).min(size)
}

/// Returns the parts of a range of the file that objects hold, each with its offset in the range.
pub(crate) fn spans_of(
    locations: &InputLocations,
    window: Range<u64>,
) -> impl Iterator<Item = (u64, PartBytes)> {
    let from = window.start;
    locations
        .layout
        .segments(window)
        .filter_map(move |segment| {
            let within = segment.at?;
            let has = locations.layout.parts().get(within.part)?.size;
            let bytes = within.offset..(within.offset + segment.length).min(has);
            (!bytes.is_empty()).then_some((segment.offset - from, (within.part, bytes)))
        })
}
