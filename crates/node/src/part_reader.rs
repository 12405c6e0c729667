//! Reader of bytes of a file's parts, from this node or from other nodes. The reader requests many small spans from another node at a time.

use crate::fetch::{FetchError, FetchSource, Fetcher, InputLocations, PartReader, read_span};
use bytes::Bytes;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_model::id::ObjectId;
use tidemill_wire::route::{RANGES_BYTES_MAX, RANGES_MAX};

/// Maximum length in bytes of a span that is requested together with other spans.
const SMALL_BYTES: u64 = 16 << 10;

/// Maximum number of spans per request.
const AHEAD: usize = 256;
const _: () = assert!(AHEAD <= RANGES_MAX && AHEAD as u64 * SMALL_BYTES <= RANGES_BYTES_MAX);

/// Function that returns the path of an object's file on this node, and function that returns whether the read was cancelled.
pub(crate) type SpanLookup<'a> = (
    &'a dyn Fn(ObjectId) -> Option<PathBuf>,
    &'a dyn Fn() -> bool,
);

/// Range of bytes of a part, with the index of the part.
pub(crate) type PartBytes = (usize, Range<u64>);

/// Reader of spans of a file's parts.
pub(crate) struct Spans<'a> {
    fetcher: &'a Arc<Fetcher>,
    locations: &'a InputLocations,
    around: SpanLookup<'a>,
    sources: BTreeMap<usize, FetchSource>,
    ahead: Box<dyn Iterator<Item = PartBytes> + 'a>,
    known: HashMap<PartBytes, Bytes>,
}

impl<'a> Spans<'a> {
    /// Creates a reader. `ahead` are the expected spans in their order; the actual reads may differ.
    pub(crate) fn new(
        fetcher: &'a Arc<Fetcher>,
        locations: &'a InputLocations,
        around: SpanLookup<'a>,
        ahead: impl Iterator<Item = PartBytes> + 'a,
    ) -> Self {
        Self {
            fetcher,
            locations,
            around,
            sources: BTreeMap::new(),
            ahead: Box::new(ahead),
            known: HashMap::new(),
        }
    }

    /// Passes the bytes of a span to `place` in pieces. Returns whether the bytes are on this node.
    pub(crate) fn read(
        &mut self,
        span: PartBytes,
        mut place: impl FnMut(u64, &[u8]) -> Result<(), FetchError>,
        device: impl Fn(std::io::Error) -> FetchError,
    ) -> Result<bool, FetchError> {
        if !self.known.contains_key(&span) && self.is_to_ask(&span) {
            self.ask_ahead()?;
        }
        if let Some(bytes) = self.known.remove(&span) {
            place(span.1.start, &bytes)?;
            return Ok(false);
        }
        let (fetcher, cancelled) = (self.fetcher, self.around.1);
        let source = self.source(span.0)?;
        match &source.from {
            PartReader::File(file) => read_span(file, &span.1, place, cancelled, device)?,
            PartReader::Node(remote) => fetcher.receive_span(remote, &span.1, place, cancelled)?,
        }
        Ok(source.here)
    }

    fn source(&mut self, part: usize) -> Result<&FetchSource, FetchError> {
        Ok(match self.sources.entry(part) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(self.fetcher.source(self.locations, part, self.around.0)?)
            }
        })
    }

    /// Requests the next expected small spans.
    fn ask_ahead(&mut self) -> Result<(), FetchError> {
        self.known.clear();
        let mut next = Vec::new();
        while next.len() < AHEAD
            && let Some(span) = self.ahead.next()
        {
            if self.is_to_ask(&span) {
                next.push(span);
            }
        }
        self.ask(next)
    }

    /// Requests all small spans of the next reads in one request.
    pub(crate) fn prepare(
        &mut self,
        spans: impl Iterator<Item = PartBytes>,
    ) -> Result<(), FetchError> {
        let unknown = spans.filter(|span| self.is_to_ask(span) && !self.known.contains_key(span));
        let unknown: Vec<PartBytes> = unknown.take(AHEAD).collect();
        if unknown.len() > 1 {
            self.ask(unknown)
        } else {
            Ok(())
        }
    }

    fn is_to_ask(&mut self, (part, bytes): &PartBytes) -> bool {
        is_small(bytes)
            && matches!(
                self.source(*part).map(|source| &source.from),
                Ok(PartReader::Node(_))
            )
    }

    /// Requests spans. A span that is not returned is requested alone when it is read.
    fn ask(&mut self, spans: Vec<PartBytes>) -> Result<(), FetchError> {
        let mut wanted: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
        for (part, bytes) in spans {
            wanted.entry(part).or_default().push(bytes);
        }
        for (part, ranges) in wanted {
            let (fetcher, cancelled) = (self.fetcher, self.around.1);
            let PartReader::Node(remote) = &self.source(part)?.from else {
                continue;
            };
            match fetcher.receive_ranges(remote, &ranges, cancelled) {
                Ok(all) => {
                    let known = ranges.into_iter().map(|bytes| (part, bytes)).zip(all);
                    self.known.extend(known);
                }
                Err(FetchError::Cancelled) => return Err(FetchError::Cancelled),
                Err(error) => tracing::debug!(%error, "spans are requested one by one"),
            }
        }
        Ok(())
    }
}

fn is_small(bytes: &Range<u64>) -> bool {
    bytes.end - bytes.start <= SMALL_BYTES
}
