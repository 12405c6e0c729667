//! Files in the memory tier: placement of new versions, and the migration of an unfinished version to another node when memory is full.

use super::attribute::DIRECTORY_TIER;
use super::fault::Fault;
use super::ids::reserve;
use super::placement::removals;
use super::rules::runs::ABANDONED;
use super::shared::Spaces;
use super::transaction::{Change, Tx};
use super::version;
use super::vnode::InodeRecord;
use crate::query::unsigned;
use tidemill_model::id::{Inode, NodeId};
use tidemill_model::layout::{
    FreeSpace, PlacementError, RESERVE_BYTES, Tier, place, place_in_memory,
};
use tidemill_wire::capability::rights;
use tidemill_wire::v1::{self, name_result::Result as Answer};

/// Location of the client that requests a new version, and properties of the new version.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientLocation<'a> {
    /// Nodes of the client's host to which the client can write directly, without the network. The client can leave such a node if the node
    /// is in the memory tier and full.
    pub here: &'a [u32],
    /// Nodes that already have other parts of the file.
    pub apart: &'a [u32],
    /// Number of bytes with which the version begins.
    pub bytes: u64,
    /// Object into which the version is written; 0 if the placement does not depend on the object.
    pub object: u64,
    /// Whether the object already exists in the backend of its node.
    pub stub: bool,
}

impl<'a> From<&'a v1::Create> for ClientLocation<'a> {
    fn from(op: &'a v1::Create) -> Self {
        Self {
            here: &op.here,
            apart: &[],
            bytes: 0,
            object: op.object,
            stub: op.stub,
        }
    }
}

impl<'a> From<&'a v1::NewVersion> for ClientLocation<'a> {
    fn from(op: &'a v1::NewVersion) -> Self {
        Self {
            here: &op.here,
            apart: &[],
            bytes: op.bytes,
            object: op.object,
            stub: op.stub,
        }
    }
}

impl Tx<'_> {
    /// Returns a node of the memory tier for a version in a directory; `None` if the directory does not select memory, or memory is full.
    pub(super) fn placed_in_memory(
        &self,
        dir: &InodeRecord,
        whence: ClientLocation<'_>,
        spaces: &Spaces,
    ) -> Result<Option<NodeId>, Fault> {
        if !self.shared.directory_tiers()
            || self.directory_attribute(dir, DIRECTORY_TIER)? != Some(Tier::Memory)
        {
            return Ok(None);
        }
        let here: Vec<NodeId> = whence.here.iter().copied().map(NodeId).collect();
        let placed = place_in_memory(&here, whence.bytes, &spaces.store);
        if placed.is_none() {
            self.shared.on_overflowed();
        }
        Ok(placed)
    }

    /// Moves an unfinished version to another node. The first request returns the target node; the second request, after the client has
    /// copied all bytes, removes the version from its former node.
    pub fn overflow(&mut self, op: &v1::Overflow) -> Result<Answer, Fault> {
        let (mut vnode, _) = self.written(op.ino, op.object)?;
        let from = self.writing_node(op.object)?;
        let (Some(from), true) = (from, vnode.writing == op.object) else {
            return Err(Fault::Stale(op.object));
        };
        let spaces = self.shared.spaces();
        let Some(to) = op.node else {
            let to = elsewhere(op, from, &spaces.store)?;
            let all = rights::READ | rights::WRITE | rights::ATTRIBUTES;
            return Ok(Answer::Opened(v1::Opened {
                attr: Some(vnode.attr()),
                object: op.object,
                node: to.0,
                capability: self.right_to_write(&vnode, to.0, op.object, all)?,
                ..v1::Opened::default()
            }));
        };
        if i64::from(to) == from {
            // A repeated request: its answer was lost.
            return self.opened_for_writing(&vnode, op.object);
        }
        if !spaces
            .store
            .iter()
            .any(|space| space.node.0 == to && !space.memory)
        {
            return Err(PlacementError::Unknown(NodeId(to)).into());
        }
        version::set_writing_node(self.db, op.object, to.into())?;
        removals::queue(self.db, op.object, from, self.now)?;
        if vnode.object == 0 {
            vnode.node = to.into();
            vnode.update(self.db)?;
        }
        self.shared.on_overflowed();
        self.changes.push(Change::Vnode(vnode.ino));
        self.opened_for_writing(&vnode, op.object)
    }

    /// Ends the unfinished versions on a node of the memory tier that has lost its memory. A file with a sealed version keeps that version.
    /// A file without a sealed version receives the lost version, without bytes, so that no reader mistakes the file for an empty file; the
    /// function that records the lost versions of the node also finds this version. Returns the number of unfinished versions.
    pub(crate) fn lose_writing(&mut self, node: u32) -> Result<u64, Fault> {
        let mut statement = self
            .db
            .sql
            .prepare("SELECT ino, object FROM writing WHERE node = ?1")?;
        let written = statement.query_map([node], |row| {
            let number = |at| unsigned(row, at);
            Ok((number(0)?, number(1)?))
        })?;
        let written = written.collect::<Result<Vec<(u64, u64)>, _>>()?;
        for &(ino, object) in &written {
            match InodeRecord::find(self.db, ino)?.filter(|vnode| vnode.writing == object) {
                Some(vnode) if vnode.object == 0 => self.lose_first(vnode, node.into())?,
                Some(_) => drop(self.abandon(&v1::Abandon { ino, object })?),
                None => {
                    self.drop_object(object, node.into())?;
                    self.end_writing(object)?;
                }
            }
        }
        Ok(written.len() as u64)
    }

    /// Turns the first, unsealed version of a file into a version without bytes, which triggers no rule. The version has a new object that
    /// no node stores: a writer that does not know of the loss may still write the old object, which is not part of a version.
    fn lose_first(&mut self, mut vnode: InodeRecord, node: i64) -> Result<(), Fault> {
        let written = std::mem::take(&mut vnode.writing);
        self.end_begun(written, ABANDONED)?;
        self.end_writing(written)?;
        self.drop_object(written, node)?;
        vnode.object = reserve(self.db, "object", 1)?;
        vnode.version += 1;
        vnode.size = 0;
        let path = self.path_of(vnode.ino)?.unwrap_or_default();
        self.insert_version(&vnode, (vnode.uid, 0), (&path, 1))?;
        self.feed_appeared(&vnode, &path)?;
        vnode.update(self.db)?;
        self.changes.push(Change::Vnode(vnode.ino));
        self.changes.push(Change::Sealed(vnode.ino));
        self.purge_if_orphan(&vnode)
    }
}

/// Chooses a node with a disk that has space for the bytes written so far.
fn elsewhere(op: &v1::Overflow, from: i64, spaces: &[FreeSpace]) -> Result<NodeId, PlacementError> {
    let needed = op.bytes.saturating_add(RESERVE_BYTES);
    let able = spaces
        .iter()
        .filter(|space| !space.memory && i64::from(space.node.0) != from)
        .filter(|space| space.free_bytes >= needed);
    let able: Vec<FreeSpace> = able.copied().collect();
    match able.is_empty() {
        true => Err(PlacementError::AllFull),
        false => place(Inode(op.ino), None, &able),
    }
}
