//! Random access to a version of a file, such as its header and some of its chunks (next: `client/src/reader.rs`).

use crate::Error;
use crate::objects::ObjectAddress;
use crate::opened::OpenedVersion;
use crate::reader;
use crate::transfer::Transfer;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tidemill_model::id::NodeId;
use tidemill_model::layout::Layout;

/// Maximum time of a node for a fold: its wait for a free core, and the time limit of one request.
const FOLDED_MAX: Duration = Duration::from_secs(75);

/// Maximum number of requests to a busy node.
const BUSY_MAX: u32 = 60;
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Reader of one version of a file, even if the file is renamed or replaced.
#[derive(Clone, Debug)]
pub struct RangedFile<'a> {
    transfer: &'a Transfer,
    version: Arc<OpenedVersion>,
}

impl Transfer {
    /// Opens a file for random access.
    ///
    /// # Errors
    /// The path does not exist, is not a file, or may not be read.
    pub async fn ranged(&self, path: impl AsRef<[u8]>) -> Result<RangedFile<'_>, Error> {
        let ino = self.sealed_attributes(path).await?.ino;
        Ok(RangedFile {
            transfer: self,
            version: Arc::new(self.opened(ino, 0).await?),
        })
    }
}

impl RangedFile<'_> {
    /// Returns the layout of the version.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.version.layout()
    }

    /// Returns the number of the version, as in the file's attributes.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.version()
    }

    /// Returns the node from which a part is read.
    #[must_use]
    pub fn node(&self, part: usize) -> Option<NodeId> {
        self.version.node(part)
    }

    /// Reads a range of bytes, which must all exist. Reads from another replica if a node cannot return the bytes.
    ///
    /// # Errors
    /// No replica can be read.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes, Error> {
        self.version.read(self.transfer, range).await
    }

    /// Makes a node that stores a part fold the chunks in the part, for the user of the transfer. If the node fails, another node with a replica does so. The
    /// error includes the last node.
    ///
    /// # Errors
    /// No node with a replica can fold the chunks.
    pub async fn fold(&self, part: usize, batch: Bytes) -> Result<Bytes, (NodeId, Error)> {
        let (objects, user) = (self.transfer.objects(), self.transfer.user());
        let request = |remote: ObjectAddress, patience| {
            let batch = batch.clone();
            async move {
                let mut busy = 0;
                loop {
                    let asked = objects.fold(&remote, user, batch.clone());
                    match reader::within(patience, &remote, asked).await {
                        Err(Error::NodeRefused {
                            status: 429 | 503, ..
                        }) if busy < BUSY_MAX => busy += 1,
                        answer => return answer,
                    }
                    tokio::time::sleep(BUSY_WAIT).await;
                }
            }
        };
        let mut grant = self.version.grant(self.transfer, part);
        grant.work = Some(FOLDED_MAX);
        let folded = reader::ask(&grant, request).await;
        folded.map_err(|error| (self.node(part).unwrap_or(NodeId(0)), error.into_last()))
    }
}
