//! Where records begin whose length nobody knows: the bytes that they end with are looked for about the ends of stripes, on
//! whichever element these are. Nothing else is read.

use crate::pull::{Lies, PullError, Pulls, Reader, Source, read_span};
use memchr::memmem;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_core::id::ObjectId;
use tidemill_core::layout::{RECORD_BYTES_MAX, SelectionError};

/// Bytes that are looked at first: more than most lines have,
const FIRST_BYTES: u64 = 4 << 10;
/// and at most, each time four times as many.
const NEXT_BYTES_MAX: u64 = 1 << 20;

/// Where objects are that this element has, and whether all is given up.
pub(crate) type Around<'a> = (
    &'a dyn Fn(ObjectId) -> Option<PathBuf>,
    &'a dyn Fn() -> bool,
);

/// See the module.
pub(crate) struct Seams<'a> {
    pulls: &'a Arc<Pulls>,
    lies: &'a Lies,
    around: Around<'a>,
    sources: BTreeMap<usize, Source>,
    buffer: Vec<u8>,
}

impl<'a> Seams<'a> {
    pub(crate) fn new(pulls: &'a Arc<Pulls>, lies: &'a Lies, around: Around<'a>) -> Self {
        Self {
            pulls,
            lies,
            around,
            sources: BTreeMap::new(),
            buffer: Vec::new(),
        }
    }

    /// The first record that begins at a byte or behind it: at the begin of the file, or behind what records end with. The end
    /// of the file, if none does.
    pub(crate) fn begin(&mut self, at: u64, end: &[u8]) -> Result<u64, PullError> {
        let size = self.lies.layout.size();
        if at == 0 || at >= size {
            return Ok(at.min(size));
        }
        let mut from = at.saturating_sub(end.len() as u64);
        let mut length = FIRST_BYTES;
        loop {
            let to = (from + length).min(size);
            self.read(from, to)?;
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
        }
    }

    /// Reads bytes of the file; what objects lack at their ends is zeros.
    fn read(&mut self, from: u64, to: u64) -> Result<(), PullError> {
        self.buffer.clear();
        self.buffer
            .resize(usize::try_from(to - from).unwrap_or(usize::MAX), 0);
        let (here, cancelled) = self.around;
        for piece in self.lies.layout.pieces(from..to) {
            let Some(within) = piece.at else { continue };
            let part = self.lies.layout.parts().get(within.part);
            let has = part.map_or(0, |part| part.size);
            let bytes = within.offset..(within.offset + piece.length).min(has);
            if bytes.is_empty() {
                continue;
            }
            let source = match self.sources.entry(within.part) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    new.insert(self.pulls.source(self.lies, within.part, here)?)
                }
            };
            let buffer = &mut self.buffer;
            let begin = piece.offset - from;
            let place = |at: u64, read: &[u8]| {
                let to = usize::try_from(begin + at - bytes.start).unwrap_or(usize::MAX);
                let into = buffer.get_mut(to..to.saturating_add(read.len()));
                let wrong = tidemill_client::Error::Answer("range of bytes");
                into.ok_or(wrong)?.copy_from_slice(read);
                Ok(())
            };
            match &source.from {
                Reader::File(file) => {
                    let device = |source| PullError::Device {
                        path: PathBuf::new(),
                        source,
                    };
                    read_span(file, &bytes, place, cancelled, device)?;
                }
                Reader::Element(remote) => {
                    self.pulls.receive_span(remote, &bytes, place, cancelled)?;
                }
            }
        }
        Ok(())
    }
}
