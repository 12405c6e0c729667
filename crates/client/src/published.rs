//! What a server tells of a version that several mounts write: which bytes of the file are where (`docs/decisions/0026-several-writers.md`).

use tidemill_core::id::{ElementId, ObjectId};
use tidemill_core::layout::{Extents, Layout, LayoutError, Part, decode_pieces};
use tidemill_wire::convert;
use tidemill_wire::v1;

/// What is visible to all.
#[derive(Debug, Default)]
pub struct Visible {
    /// The version; 0: the server may not know yet that others may write, too.
    pub version: u64,
    /// Its bytes.
    pub extents: Extents,
    /// The number of what was published last.
    pub last: u64,
    /// When it was changed last, in nanoseconds since the epoch.
    pub mtime: i64,
    /// Nothing more will be published.
    pub sealed: bool,
}

/// An answer that no server gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not pieces of a file")]
pub struct Wrong;

impl From<LayoutError> for Wrong {
    fn from(_: LayoutError) -> Self {
        Self
    }
}

impl Visible {
    /// Takes over what the server says. Says whether there was more in it than is known.
    ///
    /// # Errors
    /// If no server says that.
    pub fn adopt(&mut self, told: &v1::Together) -> Result<bool, Wrong> {
        if let Some(layout) = &told.sealed {
            let layout = convert::layout(layout, told.size).map_err(|_| Wrong)?;
            let Layout::Extents(extents) = layout else {
                return Err(Wrong);
            };
            *self = Self {
                version: told.version,
                extents,
                last: u64::MAX,
                mtime: self.mtime.max(told.mtime),
                sealed: true,
            };
            return Ok(true);
        }
        if self.version == 0 {
            self.version = told.version;
        }
        // Another answer may have come first, with more.
        if self.sealed || told.last < self.last {
            return Ok(false);
        }
        for part in &told.parts[self.extents.parts.len().min(told.parts.len())..] {
            let part = Part::on(ObjectId(part.object), 0, ElementId(part.element));
            self.extents.parts.push(part);
        }
        for news in &told.news {
            if news.number <= self.last {
                continue;
            }
            if news.all {
                self.extents.set_size(0);
            }
            for piece in decode_pieces(&news.pieces)? {
                self.extents.put(piece)?;
            }
            if let Some(cut) = news.cut {
                self.extents.set_size(cut);
            }
            self.last = news.number;
        }
        self.last = self.last.max(told.last);
        self.extents.set_size(told.size);
        self.mtime = self.mtime.max(told.mtime);
        Ok(true)
    }
}
