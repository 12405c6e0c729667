//! Plan of a read: the requests to nodes that return a byte range of a file, and the place of the returned bytes in the range.

use super::{Layout, Part};
use crate::id::NodeId;
use std::ops::Range;

/// Request for consecutive bytes of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Index of the part in [`Layout::parts`].
    pub part: usize,
    /// Requested bytes of the part's object. The range is not empty and ends at the object's end or before.
    pub bytes: Range<u64>,
    /// Nodes with a replica that can be read, in the order in which they are asked.
    pub nodes: Vec<NodeId>,
}

impl Part {
    /// Returns the nodes with a replica that can be read, ordered by `rank`: nodes of the lowest rank are first.
    pub fn nodes_by<K: Ord>(&self, rank: impl Fn(NodeId) -> K) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.current().map(|replica| replica.node).collect();
        nodes.sort_by_key(|&node| rank(node));
        nodes
    }
}

impl Layout {
    /// Returns the requests that together return all stored bytes of a range of the file, in the order of the parts and of their bytes. No
    /// byte is requested twice. Bytes that nobody wrote, and missing bytes at the end of an object, are in no request. `rank` orders the
    /// nodes of a request.
    pub fn plan_read<K: Ord>(&self, range: Range<u64>, rank: impl Fn(NodeId) -> K) -> Vec<Fetch> {
        let mut plan: Vec<Fetch> = Vec::new();
        for (part, span) in self.spans(range) {
            let stored = &self.parts()[part];
            let bytes = span.start..span.end.min(stored.size);
            match plan.last_mut().filter(|last| last.part == part) {
                // Two extents may have the same bytes.
                Some(last) if bytes.start <= last.bytes.end => {
                    last.bytes.end = last.bytes.end.max(bytes.end);
                }
                _ if bytes.is_empty() => {}
                _ => plan.push(Fetch {
                    part,
                    bytes,
                    nodes: stored.nodes_by(&rank),
                }),
            }
        }
        plan
    }

    /// Returns the bytes of a range of the file. `fetched` are all requests of the range's plan, in order, with their bytes. Bytes that no
    /// request returned are zeros.
    pub fn assemble<B: AsRef<[u8]>>(&self, range: Range<u64>, fetched: &[(Fetch, B)]) -> Vec<u8> {
        let length = range.end.saturating_sub(range.start);
        let mut all = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        for segment in self.segments(range) {
            let length = usize::try_from(segment.length).unwrap_or(0);
            let end = all.len() + length;
            let stored = segment.at.and_then(|at| {
                let is_before = |(fetch, _): &(Fetch, B)| {
                    (fetch.part, fetch.bytes.start) <= (at.part, at.offset)
                };
                let before = &fetched[..fetched.partition_point(is_before)];
                let (fetch, bytes) = before.last().filter(|(fetch, _)| fetch.part == at.part)?;
                let skip = usize::try_from(at.offset - fetch.bytes.start).ok()?;
                let rest = bytes.as_ref().get(skip..)?;
                Some(rest.get(..length).unwrap_or(rest))
            });
            all.extend_from_slice(stored.unwrap_or_default());
            all.resize(end, 0);
        }
        all
    }
}
