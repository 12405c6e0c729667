//! A version of a file that the server has opened for reading, and the nodes to which its reads are sent (next: `client/src/reader.rs`).

use crate::error::Error;
use crate::objects::ObjectAddress;
use crate::reader::{self, Grant, OTHERS_AFTER, Turn};
use crate::transfer::{COPYING, PIECE_BYTES, Transfer, remote_at};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use std::ops::Range;
use std::time::Duration;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{Fetch, Layout, Part};
use tidemill_wire::convert;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tokio::time::Instant;

/// Number of bytes of a file that are transferred as one window.
pub(crate) const WINDOW_BYTES: u64 = 4 * PIECE_BYTES as u64;
/// Maximum number of windows that are read at once: the next window arrives while one window is passed on.
const WINDOWS: usize = 2;

/// Node of a part, and the part's address there; `None` if the node is offline.
type PartPlace = (NodeId, Option<ObjectAddress>);

/// A version that the server has opened.
#[derive(Debug)]
pub(crate) struct OpenedVersion {
    open: v1::Open,
    layout: Layout,
    nodes: Mutex<ReadNodes>,
}

/// The nodes to which the reads of a version are sent now.
#[derive(Debug)]
struct ReadNodes {
    parts: Vec<PartPlace>,
    /// Nodes that failed. They are asked only if no other node has a replica, and then without a time limit.
    avoid: Vec<u32>,
    /// End of the wait for suspended nodes, after it has begun.
    resumed_by: Option<Instant>,
}

/// Returns the layout of an opened version, and the place of each part.
pub(crate) fn located(opened: &v1::Opened) -> Result<(Layout, Vec<PartPlace>), Error> {
    let place = |node: u32, url: &str, object: u64, capability: &[u8]| {
        let node = NodeId(node);
        let address = remote_at((node, url), ObjectId(object), capability);
        (node, address.ok())
    };
    let Some(layout) = &opened.layout else {
        let place = place(opened.node, &opened.url, opened.object, &opened.capability);
        let part = Part::on(ObjectId(opened.object), opened.size, place.0);
        return Ok((Layout::Whole(part), vec![place]));
    };
    if opened.part_urls.len() != layout.parts.len() {
        return Err(Error::Answer("Open"));
    }
    let located = |(part, url): (&v1::LayoutPart, &String)| {
        place(part.node, url, part.object, &part.capability)
    };
    let places = layout.parts.iter().zip(&opened.part_urls).map(located);
    let layout = convert::layout(layout, opened.size).map_err(|_| Error::Answer("Open"))?;
    Ok((layout, places.collect()))
}

impl OpenedVersion {
    /// Returns a version as the server opened it.
    pub(crate) fn new(opened: &v1::Opened) -> Result<Self, Error> {
        let attr = opened.attr.unwrap_or_default();
        let (layout, parts) = located(opened)?;
        Ok(Self {
            open: v1::Open {
                ino: attr.ino,
                version: attr.version,
                ..v1::Open::default()
            },
            layout,
            nodes: Mutex::new(ReadNodes {
                parts,
                avoid: Vec::new(),
                resumed_by: None,
            }),
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the number of the version.
    pub(crate) fn version(&self) -> u64 {
        self.open.version
    }

    /// Returns the node from which a part is read now.
    pub(crate) fn node(&self, part: usize) -> Option<NodeId> {
        self.nodes.lock().parts.get(part).map(|(node, _)| *node)
    }

    /// Returns the right to read a part.
    pub(crate) fn grant<'a>(&'a self, transfer: &'a Transfer, part: usize) -> PartGrant<'a> {
        PartGrant {
            transfer,
            version: self,
            part,
            work: None,
        }
    }

    /// Reads a range of the file.
    pub(crate) async fn read(
        &self,
        transfer: &Transfer,
        range: Range<u64>,
    ) -> Result<Bytes, Error> {
        let fetch = |fetch: Fetch| async move {
            let grant = self.grant(transfer, fetch.part);
            reader::read(&grant, transfer.objects(), fetch.bytes).await
        };
        reader::window(&self.layout, range, |_| (), fetch).await
    }

    /// Passes the bytes of the file from offset `from` on to `piece`, in order and in chunks.
    pub(crate) async fn stream(
        &self,
        transfer: &Transfer,
        from: u64,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let size = self.layout.size();
        if let Layout::Whole(_) = &self.layout {
            let grant = self.grant(transfer, 0);
            return reader::stream(&grant, transfer.objects(), (from, Some(size)), piece)
                .await
                .map(drop);
        }
        let starts = (from..size).step_by(usize::try_from(WINDOW_BYTES).unwrap_or(usize::MAX));
        let window = |start: u64| {
            let end = size.min(start.saturating_add(WINDOW_BYTES));
            self.read(transfer, start..end)
        };
        let mut windows = stream::iter(starts.map(window)).buffered(WINDOWS);
        while let Some(window) = windows.next().await {
            piece(window?)?;
        }
        Ok(())
    }

    /// Reads the remaining bytes of a corrupt version: zeros where no bytes are left. Returns the number of bytes.
    pub(crate) async fn read_corrupt(
        &self,
        transfer: &Transfer,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let (size, objects) = (self.layout.size(), transfer.objects());
        let fetch = |Fetch { part, bytes, nodes }: Fetch| async move {
            let (start, length) = (bytes.start, bytes.end - bytes.start);
            let place = self.nodes.lock().parts[part].1.clone();
            let remote = &place.ok_or(Error::NodeDown(nodes[0]))?;
            let mut read = objects.read(remote, start, length).await;
            if read.as_ref().is_err_and(Error::is_elsewhere) {
                read = objects.read_corrupt_range(remote, start, length).await;
            }
            match read {
                Err(error) if error.is_elsewhere() => Ok(Bytes::new()),
                read => read,
            }
        };
        let mut start = 0;
        while start < size {
            let end = size.min(start + WINDOW_BYTES);
            piece(reader::window(&self.layout, start..end, |_| (), fetch).await?)?;
            start = end;
        }
        Ok(size)
    }

    /// Opens the version once more, without the nodes that failed.
    async fn open_again(&self, transfer: &Transfer, failed: &[NodeId]) -> Result<(), Error> {
        let mut open = self.open.clone();
        {
            let avoid = &mut self.nodes.lock().avoid;
            for node in failed {
                if !avoid.contains(&node.0) {
                    avoid.push(node.0);
                }
            }
            open.avoid.clone_from(avoid);
        }
        let Answer::Opened(opened) = transfer.one(Op::Open(open)).await? else {
            return Err(Error::Answer("Open"));
        };
        let (layout, parts) = located(&opened)?;
        let object = |part: &Part| part.object;
        let same = layout.parts().iter().map(object);
        if !same.eq(self.layout.parts().iter().map(object)) {
            return Err(Error::Answer("Open"));
        }
        self.nodes.lock().parts = parts;
        Ok(())
    }
}

/// The server's answer to an open, as the right to read one part of the version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartGrant<'a> {
    transfer: &'a Transfer,
    version: &'a OpenedVersion,
    part: usize,
    /// Maximum time of work on the part, which a node may refuse although it has the part.
    pub(crate) work: Option<Duration>,
}

impl PartGrant<'_> {
    fn node(&self, turn: &Turn) -> Option<NodeId> {
        let node = self.version.node(self.part)?;
        (!turn.tried().contains(&node)).then_some(node)
    }
}

impl Grant for PartGrant<'_> {
    async fn next(&self, turn: &Turn) -> Result<Option<NodeId>, Error> {
        if let Some(node) = self.node(turn) {
            return Ok(Some(node));
        }
        self.version.open_again(self.transfer, turn.tried()).await?;
        Ok(self.node(turn))
    }

    async fn address(&self, node: NodeId) -> Result<ObjectAddress, Error> {
        let nodes = self.version.nodes.lock();
        let found = nodes.parts.get(self.part);
        let address = found.filter(|(now, _)| *now == node);
        let address = address.and_then(|(_, address)| address.clone());
        address.ok_or(Error::NodeDown(node))
    }

    fn patience(&self, node: NodeId, _turn: &Turn) -> Option<Duration> {
        let avoided = self.version.nodes.lock().avoid.contains(&node.0);
        self.work.or((!avoided).then_some(OTHERS_AFTER))
    }

    fn is_node_error(&self, error: &Error) -> bool {
        let refused =
            matches!(error, Error::NodeRefused { status, .. } if matches!(status, 422 | 500..));
        error.is_lost() || error.is_elsewhere() || (self.work.is_some() && refused)
    }

    async fn renew(&self) -> Result<bool, Error> {
        self.version.open_again(self.transfer, &[]).await?;
        Ok(true)
    }

    /// The requests have started the resumption of a suspended node. A node that hangs has no time limit if it is the only one.
    async fn again(&self, turn: &Turn) -> bool {
        let (Some(&node), Some(true)) = (turn.tried().last(), turn.last().map(Error::is_lost))
        else {
            return false;
        };
        let asked = self.address(node).await.map(|address| address.url);
        let asked = asked.as_deref().unwrap_or_default();
        let mut until = self.version.nodes.lock().resumed_by;
        let resumes = self.transfer.resumes(node.0, asked, &mut until).await;
        self.version.nodes.lock().resumed_by = until;
        if !matches!(resumes, Ok(true)) {
            return turn.round() == 0;
        }
        self.version.nodes.lock().avoid.retain(|&one| one != node.0);
        tokio::time::sleep(COPYING).await;
        self.version.open_again(self.transfer, &[]).await.is_ok()
    }
}
