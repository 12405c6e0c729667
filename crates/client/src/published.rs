//! The server's description of a version that several mounts write: the location of each byte of the file
//! (`docs/decisions/0025-concurrent-writers.md`).

use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{Extents, Layout, LayoutError, Part, decode_extents};
use tidemill_wire::convert;
use tidemill_wire::v1;

/// Published state of a version that several mounts write.
#[derive(Debug, Default)]
pub struct Visible {
    /// Object id of the version; 0 if the server may not know yet that other mounts may write the version, too.
    pub version: u64,
    /// Extents of the version's bytes.
    pub extents: Extents,
    /// Number of the last publication.
    pub last: u64,
    /// Time of the last change, in nanoseconds since the Unix epoch.
    pub mtime: i64,
    /// Whether no more publications of the version follow.
    pub sealed: bool,
}

/// Error for an invalid answer of the server.
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
