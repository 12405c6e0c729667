//! Random access to a version of a file, such as its header and some of its chunks (next: `node/src`).

use crate::striped::{StripedVersion, unless_silent, whole};
use crate::transfer::{Transfer, silent};
use crate::{Error, objects::ObjectAddress};
use bytes::Bytes;
use std::ops::Range;
use std::time::Duration;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{Layout, Part};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Maximum time of a node for a fold: its wait for a free core, and the time limit of one request.
const FOLDED_MAX: Duration = Duration::from_secs(75);

/// Maximum number of requests to a busy node.
const BUSY_MAX: u32 = 60;
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Reader of one version of a file, even if the file is renamed or replaced.
#[derive(Clone, Debug)]
pub struct RangedFile<'a> {
    transfer: &'a Transfer,
    open: v1::Open,
    source: RangedSource,
    layout: Layout,
}

#[derive(Clone, Debug)]
enum RangedSource {
    Whole(ObjectAddress),
    Parts(StripedVersion),
}

impl Transfer {
    /// Opens a file for random access.
    ///
    /// # Errors
    /// The path does not exist, is not a file, or may not be read.
    pub async fn ranged(&self, path: impl AsRef<[u8]>) -> Result<RangedFile<'_>, Error> {
        let ino = self.sealed_attributes(path).await?.ino;
        let mut open = v1::Open {
            ino,
            ..v1::Open::default()
        };
        let (source, layout, version) = self.opened(&open).await?;
        open.version = version;
        Ok(RangedFile {
            transfer: self,
            open,
            source,
            layout,
        })
    }

    async fn opened(&self, open: &v1::Open) -> Result<(RangedSource, Layout, u64), Error> {
        let Answer::Opened(opened) = self.one(Op::Open(open.clone())).await? else {
            return Err(Error::Answer("Open"));
        };
        let version = opened.attr.as_ref().map_or(0, |attr| attr.version);
        if let Some(parts) = Transfer::parts(&opened)? {
            let layout = parts.layout().clone();
            return Ok((RangedSource::Parts(parts), layout, version));
        }
        let (object, node) = (ObjectId(opened.object), NodeId(opened.node));
        let layout = Layout::Whole(Part::on(object, opened.size, node));
        Ok((
            RangedSource::Whole(Transfer::remote(&opened)?),
            layout,
            version,
        ))
    }
}

impl<'a> RangedFile<'a> {
    /// Returns the reader of an opened version with parts.
    pub(crate) fn of_parts(
        transfer: &'a Transfer,
        opened: &v1::Opened,
        parts: StripedVersion,
    ) -> Self {
        let attr = opened.attr.unwrap_or_default();
        let open = v1::Open {
            ino: attr.ino,
            version: attr.version,
            ..v1::Open::default()
        };
        let layout = parts.layout().clone();
        Self {
            transfer,
            open,
            source: RangedSource::Parts(parts),
            layout,
        }
    }

    /// Returns the layout of the version.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the number of the version, as in the file's attributes.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.open.version
    }

    /// Returns the node from which a part is read.
    #[must_use]
    pub fn node(&self, part: usize) -> Option<NodeId> {
        match &self.source {
            RangedSource::Whole(remote) => Some(remote.node),
            RangedSource::Parts(parts) => parts.remote(part).map(|remote| remote.node),
        }
    }

    /// Reads a range of bytes, which must all exist. Reads from another replica if the first node cannot return the bytes.
    ///
    /// # Errors
    /// No replica can be read.
    pub async fn read(&mut self, range: Range<u64>) -> Result<Bytes, Error> {
        loop {
            let (node, error) = match self.once(range.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(failed) => failed,
            };
            let unavailable = error.is_lost() || error.is_elsewhere();
            if !unavailable || self.open.avoid.contains(&node) {
                return Err(error);
            }
            tracing::debug!(node, "another replica is looked for: {error}");
            self.open.avoid.push(node);
            (self.source, self.layout, _) = self.transfer.opened(&self.open).await?;
        }
    }

    /// Makes a node that stores a part fold the chunks in the part, for the user of the transfer. If the node fails, another node with a replica does so. The
    /// error includes the last node.
    ///
    /// # Errors
    /// No node with a replica can fold the chunks.
    pub async fn fold(&mut self, part: usize, batch: Bytes) -> Result<Bytes, (NodeId, Error)> {
        let user = self.transfer.user();
        let mut busy = 0;
        loop {
            let remote = match &self.source {
                RangedSource::Whole(remote) => Some(remote),
                RangedSource::Parts(parts) => parts.remote(part),
            };
            let none = (NodeId(0), Error::Answer("Open"));
            let remote = remote.ok_or(none)?.clone();
            let asked = self.transfer.objects().fold(&remote, user, batch.clone());
            let asked = tokio::time::timeout(FOLDED_MAX, asked).await;
            let error = match asked.unwrap_or_else(|_| Err(silent(&remote))) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let status = match &error {
                Error::NodeRefused { status, .. } => *status,
                _ => 0,
            };
            if matches!(status, 429 | 503) && busy < BUSY_MAX {
                busy += 1;
                tokio::time::sleep(BUSY_WAIT).await;
                continue;
            }
            let node = remote.node;
            let elsewhere =
                error.is_lost() || error.is_elsewhere() || matches!(status, 422 | 500..);
            if !elsewhere || self.open.avoid.contains(&node.0) {
                return Err((node, error));
            }
            tracing::debug!(node = node.0, "another replica is looked for: {error}");
            self.open.avoid.push(node.0);
            match self.transfer.opened(&self.open).await {
                Ok((source, layout, _)) => (self.source, self.layout) = (source, layout),
                Err(_) => return Err((node, error)),
            }
        }
    }

    async fn once(&self, range: Range<u64>) -> Result<Bytes, (u32, Error)> {
        let objects = self.transfer.objects();
        match &self.source {
            RangedSource::Parts(parts) => parts.window(objects, &self.open.avoid, range).await,
            RangedSource::Whole(remote) => {
                let length = range.end.saturating_sub(range.start);
                let read = objects.read(remote, range.start, length);
                let patient = self.open.avoid.contains(&remote.node.0);
                let bytes = unless_silent(read, remote, patient).await;
                whole(bytes, remote, length).map_err(|error| (remote.node.0, error))
            }
        }
    }
}
