//! Channels of [workspaces](super::workspaces): this module records the node of each channel. Messages do not pass through the server.

use super::attribute::DIRECTORY_TIER;
use super::fault::Fault;
use super::ids;
use super::quota::used;
use super::transaction::Tx;
use super::vnode::{InodeRecord, READ, SEARCH, WRITE};
use super::workspaces::{WorkspaceRefusal, WorkspaceResult};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use tidemill_core::channel::{CAPACITY_BYTES, CAPACITY_BYTES_MAX, CAPACITY_BYTES_MIN, is_name};
use tidemill_wire::capability::rights;
use tidemill_wire::v1;

/// Maximum number of channels of one workspace.
const CHANNELS_EACH_MAX: u32 = 64;
/// Maximum number of channels of all workspaces, and (`CHANNELS_OF_USER_MAX`) of the channels that one user created.
const CHANNELS_MAX: u32 = 4096;
const CHANNELS_OF_USER_MAX: u32 = 1024;
/// Space in bytes that a node keeps free beyond the capacity of a channel, among other things for the node's database.
const SPARE_BYTES: u64 = 16 << 20;

const COLUMNS: &str = "name, node, object, capacity, uid, created, memory, lost";

impl Tx<'_> {
    /// Chooses the node of a new channel, and returns the channel with a capability to create it on the node.
    pub(crate) fn create_channel(
        &mut self,
        op: &v1::CreateChannelRequest,
    ) -> WorkspaceResult<v1::Channel> {
        let workspace = match self.workspace_for(&op.workspace, SEARCH | WRITE)? {
            Ok(workspace) => workspace,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !is_name(&op.channel) {
            return Ok(Err(WorkspaceRefusal::ChannelName(op.channel.clone())));
        }
        let capacity = match op.capacity_bytes {
            0 => CAPACITY_BYTES,
            bytes => bytes,
        };
        if !(CAPACITY_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&capacity) {
            return Ok(Err(WorkspaceRefusal::Capacity(capacity)));
        }
        if let Some(refusal) = self.no_more_channels(&workspace, op, capacity)? {
            return Ok(Err(refusal));
        }
        let Some((node, memory)) = self.node_for(&workspace, capacity)? else {
            return Ok(Err(WorkspaceRefusal::NoNode(capacity)));
        };
        let object = ids::reserve(self.db, "object", 1)?;
        let sql = "INSERT INTO channel(object, workspace, name, node, capacity, uid, created, memory) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let row = params![
            object.cast_signed(),
            workspace.ino.cast_signed(),
            op.channel,
            node,
            capacity.cast_signed(),
            self.caller.uid,
            self.now,
            memory
        ];
        self.db.execute(sql, row)?;
        self.shared.quotas.forget(workspace.ino);
        let mut made = match self.channel(&workspace, &op.workspace, &op.channel)? {
            Ok(made) => made,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.grant_channel(&workspace, &mut made, rights::CREATE);
        Ok(Ok(made))
    }

    /// Returns the directory of a workspace in which the caller has the permissions `want`.
    fn workspace_for(&self, name: &str, want: u32) -> WorkspaceResult<InodeRecord> {
        let Some(workspace) = self.found_workspace(name)? else {
            return Ok(Err(WorkspaceRefusal::Unknown(name.to_owned())));
        };
        self.need(&workspace, want, name)?;
        Ok(Ok(workspace))
    }

    fn no_more_channels(
        &self,
        workspace: &InodeRecord,
        op: &v1::CreateChannelRequest,
        capacity: u64,
    ) -> Result<Option<WorkspaceRefusal>, Fault> {
        let sql = "SELECT count(*), coalesce(sum(workspace = ?1), 0), coalesce(sum(workspace = ?1 AND name = ?2), 0), \
                   coalesce(sum(uid = ?3), 0) FROM channel";
        let counts =
            |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let row = params![workspace.ino.cast_signed(), op.channel, self.caller.uid];
        let (all, here, same, own): (u32, u32, u32, u32) = self.db.query_row(sql, row, counts)?;
        if same > 0 {
            let (workspace, channel) = (op.workspace.clone(), op.channel.clone());
            return Ok(Some(WorkspaceRefusal::ChannelExists(workspace, channel)));
        }
        let own_max = self.caller.uid != 0 && own >= CHANNELS_OF_USER_MAX;
        if all >= CHANNELS_MAX || here >= CHANNELS_EACH_MAX || own_max {
            return Ok(Some(WorkspaceRefusal::TooManyChannels));
        }
        let sql = "SELECT quota FROM workspace WHERE ino = ?1";
        let quota: i64 = self
            .db
            .query_row(sql, [workspace.ino.cast_signed()], |row| row.get(0))?;
        let (taken, _) = used(self.db, workspace.ino)?;
        let left = quota.cast_unsigned().saturating_sub(taken);
        Ok((quota != 0 && capacity > left).then_some(WorkspaceRefusal::NoQuota(capacity, left)))
    }

    /// Returns the node with the most free space that is up. A node of the memory tier is chosen if the workspace's directory selects
    /// memory and such a node has enough space.
    fn node_for(
        &self,
        workspace: &InodeRecord,
        capacity: u64,
    ) -> Result<Option<(u32, bool)>, Fault> {
        let sql = "SELECT value FROM xattr WHERE ino = ?1 AND name = ?2";
        let row = params![workspace.ino.cast_signed(), DIRECTORY_TIER];
        let tier = self.db.query_row(sql, row, |row| row.get::<_, Vec<u8>>(0));
        let wants_memory = tier.optional()?.is_some_and(|tier| tier == b"memory");
        let spaces = self.shared.spaces();
        let fits = |one: &&tidemill_core::layout::FreeSpace| {
            let enough = one.free_bytes >= capacity.saturating_add(SPARE_BYTES);
            one.answers && !one.leaving && enough && (wants_memory || !one.memory)
        };
        let found = spaces.store.iter().filter(fits);
        let found = found.max_by_key(|one| (one.memory, one.free_bytes));
        Ok(found.map(|one| (one.node.0, one.memory)))
    }

    /// Returns the description of a channel, without capabilities.
    fn channel(
        &self,
        vnode: &InodeRecord,
        workspace: &str,
        name: &str,
    ) -> WorkspaceResult<v1::Channel> {
        let sql = format!("SELECT {COLUMNS} FROM channel WHERE workspace = ?1 AND name = ?2");
        let mut statement = self.db.prepare_cached(&sql)?;
        let row = params![vnode.ino.cast_signed(), name];
        let found = statement
            .query_row(row, |row| shown(row, workspace))
            .optional()?;
        Ok(found.ok_or_else(|| WorkspaceRefusal::NoChannel(name.to_owned())))
    }

    fn grant_channel(&self, workspace: &InodeRecord, channel: &mut v1::Channel, more: u32) {
        let may = |want, right| {
            if self.caller.may(workspace, want) {
                right
            } else {
                0
            }
        };
        let rights = may(READ, rights::RECEIVE) | may(WRITE, rights::SEND) | more;
        channel.capability = self.shared.grant(
            workspace.ino,
            channel.node,
            channel.object,
            rights,
            self.caller.uid,
        );
    }

    /// Returns a channel, with a capability that grants the rights that the caller has to the workspace's directory: read, write or both.
    pub(crate) fn open_channel(&self, op: &v1::ChannelRequest) -> WorkspaceResult<v1::Channel> {
        let workspace = match self.workspace_for(&op.workspace, SEARCH)? {
            Ok(workspace) => workspace,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !self.caller.may(&workspace, WRITE) {
            self.need(&workspace, READ, &op.workspace)?;
        }
        let mut channel = match self.channel(&workspace, &op.workspace, &op.channel)? {
            Ok(channel) => channel,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if channel.lost {
            return Ok(Err(WorkspaceRefusal::ChannelLost(
                channel.channel,
                channel.node,
            )));
        }
        self.grant_channel(&workspace, &mut channel, 0);
        Ok(Ok(channel))
    }

    /// Returns the channels of a workspace, in the order of their names.
    pub(crate) fn channels_shown(&self, name: &str) -> WorkspaceResult<Vec<v1::Channel>> {
        let workspace = match self.workspace_for(name, READ | SEARCH)? {
            Ok(workspace) => workspace,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let sql = format!("SELECT {COLUMNS} FROM channel WHERE workspace = ?1 ORDER BY name");
        let mut channels = self.db.prepare_cached(&sql)?;
        let channels = channels.query_map([workspace.ino.cast_signed()], |row| shown(row, name))?;
        Ok(Ok(channels.collect::<Result<_, _>>()?))
    }

    /// Removes a channel. The caller must own the channel or its workspace.
    pub(crate) fn remove_channel(
        &mut self,
        op: &v1::ChannelRequest,
    ) -> WorkspaceResult<v1::Channel> {
        let workspace = match self.workspace_for(&op.workspace, SEARCH)? {
            Ok(workspace) => workspace,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let channel = match self.channel(&workspace, &op.workspace, &op.channel)? {
            Ok(channel) => channel,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if channel.uid != self.caller.uid {
            self.need_owner(&workspace)?;
        }
        let sql = "DELETE FROM channel WHERE object = ?1";
        self.db.execute(sql, [channel.object.cast_signed()])?;
        self.shared.quotas.forget(workspace.ino);
        Ok(Ok(channel))
    }
}

fn shown(row: &rusqlite::Row<'_>, workspace: &str) -> rusqlite::Result<v1::Channel> {
    let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    Ok(v1::Channel {
        workspace: workspace.to_owned(),
        channel: row.get(0)?,
        node: row.get(1)?,
        object: number(2)?,
        capacity_bytes: number(3)?,
        uid: row.get(4)?,
        created: row.get(5)?,
        memory: row.get(6)?,
        lost: row.get(7)?,
        url: String::new(),
        capability: Vec::new(),
    })
}

/// Returns the channels that each node must keep, by node.
pub(crate) fn kept(db: &Connection) -> Result<BTreeMap<u32, Vec<v1::KeptChannel>>, Fault> {
    let sql = "SELECT node, object, capacity FROM channel WHERE lost = 0 ORDER BY object";
    let mut rows = db.prepare_cached(sql)?;
    let rows = rows.query_map([], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let kept = v1::KeptChannel {
            object: number(1)?,
            capacity_bytes: number(2)?,
        };
        Ok((row.get::<_, u32>(0)?, kept))
    })?;
    let mut kept: BTreeMap<u32, Vec<v1::KeptChannel>> = BTreeMap::new();
    for row in rows {
        let (node, channel) = row?;
        kept.entry(node).or_default().push(channel);
    }
    Ok(kept)
}

/// Records that the channels of a node are lost; returns the number of channels.
pub(crate) fn lose(db: &Connection, node: u32) -> Result<usize, Fault> {
    let sql = "UPDATE channel SET lost = 1 WHERE node = ?1";
    Ok(db.execute(sql, [node])?)
}
