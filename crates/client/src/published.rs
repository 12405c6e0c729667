//! The server's description of a version that several mounts write: which bytes of the file are where
//! (`docs/decisions/0025-concurrent-writers.md`).

use tidemill_core::id::{NodeId, ObjectId};
use tidemill_core::layout::{Extents, Layout, LayoutError, Part, decode_extents};
use tidemill_wire::convert;
use tidemill_wire::v1;

/// The published state of a version.
#[derive(Debug, Default)]
pub struct Visible {
    /// The version; 0: the server may not know yet that others may write, too.
    pub version: u64,
    /// Its bytes.
    pub extents: Extents,
    /// The number of the last publication.
    pub last: u64,
    /// Time of the last change, in nanoseconds since the epoch.
    pub mtime: i64,
    /// Whether no more publications follow.
    pub sealed: bool,
}

/// Error of an invalid answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not extents of a file")]
pub struct InvalidAnswer;

impl From<LayoutError> for InvalidAnswer {
    fn from(_: LayoutError) -> Self {
        Self
    }
}

impl Visible {
    /// Applies an answer of the server. Returns whether it contained new information.
    ///
    /// # Errors
    /// The answer is invalid.
    pub fn adopt(&mut self, reported: &v1::MultiWriter) -> Result<bool, InvalidAnswer> {
        if let Some(layout) = &reported.sealed {
            let layout = convert::layout(layout, reported.size).map_err(|_| InvalidAnswer)?;
            let Layout::Extents(extents) = layout else {
                return Err(InvalidAnswer);
            };
            *self = Self {
                version: reported.version,
                extents,
                last: u64::MAX,
                mtime: self.mtime.max(reported.mtime),
                sealed: true,
            };
            return Ok(true);
        }
        if self.version == 0 {
            self.version = reported.version;
        }
        // An answer with more information may have arrived first.
        if self.sealed || reported.last < self.last {
            return Ok(false);
        }
        for part in &reported.parts[self.extents.parts.len().min(reported.parts.len())..] {
            let part = Part::on(ObjectId(part.object), 0, NodeId(part.node));
            self.extents.parts.push(part);
        }
        for news in &reported.news {
            if news.number <= self.last {
                continue;
            }
            if news.all {
                self.extents.set_size(0);
            }
            for extent in decode_extents(&news.extents)? {
                self.extents.put(extent)?;
            }
            if let Some(cut) = news.cut {
                self.extents.set_size(cut);
            }
            self.last = news.number;
        }
        self.last = self.last.max(reported.last);
        self.extents.set_size(reported.size);
        self.mtime = self.mtime.max(reported.mtime);
        Ok(true)
    }
}
