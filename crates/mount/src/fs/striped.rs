//! A version that is spread over several nodes: reads and writes are sent to all nodes that hold the bytes (next:
//! `mount/src/fs/object.rs`).

use super::backend::Backend;
use super::object::{ObjectData, OpenObject, WriteStat};
use super::right::Right;
use crate::error::Error;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_model::layout::{self, Fetch, Layout};

/// An open version that is spread over several nodes.
#[derive(Debug)]
pub(crate) struct OpenStriped {
    /// Layout of the stripes. The lengths of the parts in the layout are not used.
    layout: layout::StripedLayout,
    /// Objects of the parts, in the order of the parts in the file.
    parts: Vec<Arc<OpenObject>>,
    /// Length of the file in bytes.
    size: AtomicU64,
    /// Right whose release reports the last close to the server, which keeps the version until the release.
    hold: Option<(Arc<Backend>, Arc<Right>)>,
}

impl OpenStriped {
    /// Returns the version of a file of `size` bytes with these parts.
    pub(crate) fn new(
        layout: layout::StripedLayout,
        parts: Vec<Arc<OpenObject>>,
        size: u64,
    ) -> Self {
        Self {
            layout,
            parts,
            size: AtomicU64::new(size),
            hold: None,
        }
    }

    /// Makes the object report to the server when no program has it open any more.
    pub(crate) fn held(mut self, backend: Arc<Backend>, right: Arc<Right>) -> Self {
        self.hold = Some((backend, right));
        self
    }

    pub(crate) fn parts(&self) -> &[Arc<OpenObject>] {
        &self.parts
    }

    /// Returns the size in bytes of a part of a file of `size` bytes.
    pub(crate) fn part_size(&self, size: u64, part: usize) -> u64 {
        layout::StripedLayout::part_size(self.layout.unit, self.parts.len(), size, part)
    }

    fn layout(&self, size: u64) -> Layout {
        Layout::Striped(self.layout.of_size(size))
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let size = self.size();
        let end = offset.saturating_add(length as u64).min(size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let layout = self.layout(size);
        let plan = layout.plan_read(offset..end, |_| ());
        for fetch in plan.iter().skip(1) {
            if let ObjectData::Remote(remote) = &self.parts[fetch.part].data {
                remote.ask_for(fetch.bytes.clone());
            }
        }
        // A part may return fewer bytes: the missing bytes are zeros.
        let read = |fetch: Fetch| {
            let part = &self.parts[fetch.part];
            let bytes = part.read(fetch.bytes.start, length_of(&fetch.bytes))?;
            Ok((fetch, bytes))
        };
        let fetched: Result<Vec<_>, Error> = plan.into_iter().map(read).collect();
        Ok(layout.assemble(offset..end, &fetched?))
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        let layout = self.layout(end);
        for (part, span) in layout.spans(offset..end) {
            let segments: Vec<_> = segments(&layout, part, &span, offset..end).collect();
            if let [(_, to, length)] = segments[..] {
                self.parts[part].write(span.start, &bytes[to..to + length])?;
                continue;
            }
            let mut gathered = Vec::with_capacity(length_of(&span));
            for (_, to, length) in segments {
                gathered.extend_from_slice(&bytes[to..to + length]);
            }
            self.parts[part].write(span.start, &gathered)?;
        }
        self.size.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<(), Error> {
        for (index, part) in self.parts.iter().enumerate() {
            part.truncate(self.part_size(size, index))?;
        }
        self.size.store(size, Ordering::Release);
        Ok(())
    }

    /// Sends all buffered bytes of all parts concurrently.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        for part in &self.parts {
            if let ObjectData::Remote(remote) = &part.data {
                remote.begin_flush();
            }
        }
        self.parts.iter().try_for_each(|part| part.flush())
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.flush()?;
        self.parts.iter().try_for_each(|part| part.sync())
    }

    pub(crate) fn stat(&self) -> Result<WriteStat, Error> {
        let mut all = WriteStat {
            size: self.size(),
            ..WriteStat::default()
        };
        for part in &self.parts {
            let stat = part.stat()?;
            all.mtime = all.mtime.max(stat.mtime);
            all.blocks += stat.blocks;
        }
        Ok(all)
    }
}

impl Drop for OpenStriped {
    fn drop(&mut self) {
        if let Some((backend, right)) = self.hold.take() {
            backend.released(right.release());
        }
    }
}

fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(0)
}

/// Returns the segments of a part's bytes: the start of each in `span` and in `range` of the file, and its length.
fn segments(
    layout: &Layout,
    part: usize,
    span: &Range<u64>,
    range: Range<u64>,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let place = |offset: u64| usize::try_from(offset).unwrap_or(0);
    let start = span.start;
    let all = layout.segments_of(part, span.clone()).into_iter();
    all.filter_map(move |segment| {
        let from = segment.at?.offset.checked_sub(start)?;
        let to = segment.offset.checked_sub(range.start)?;
        Some((place(from), place(to), place(segment.length)))
    })
}
