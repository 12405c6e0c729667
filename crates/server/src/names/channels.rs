//! Channels of [rooms](super::rooms): this module records the node of each. Messages do not pass through the server.

use super::attribute::DIRECTORY_MEDIUM;
use super::fault::Fault;
use super::ids;
use super::quota::used;
use super::rooms::{Done, Refusal};
use super::transaction::Tx;
use super::vnode::{READ, SEARCH, Vnode, WRITE};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use tidemill_core::channel::{CAPACITY_BYTES, CAPACITY_BYTES_MAX, CAPACITY_BYTES_MIN, is_name};
use tidemill_wire::capability::rights;
use tidemill_wire::v1;

/// Maximum number of channels of a room.
const CHANNELS_EACH_MAX: u32 = 64;
/// Maximum number of channels of all rooms, and of the channels that one user created.
const CHANNELS_MAX: u32 = 4096;
const CHANNELS_OF_USER_MAX: u32 = 1024;
/// Space that a node keeps free in addition to a channel, for its database among others, in bytes.
const SPARE_BYTES: u64 = 16 << 20;

const COLUMNS: &str = "name, node, object, capacity, uid, created, memory, lost";

impl Tx<'_> {
    /// Chooses the node of a new channel, and returns the right to create it there.
    pub(crate) fn create_channel(&mut self, op: &v1::CreateChannelRequest) -> Done<v1::Channel> {
        let room = match self.room_for(&op.room, SEARCH | WRITE)? {
            Ok(room) => room,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !is_name(&op.channel) {
            return Ok(Err(Refusal::ChannelName(op.channel.clone())));
        }
        let capacity = match op.capacity_bytes {
            0 => CAPACITY_BYTES,
            bytes => bytes,
        };
        if !(CAPACITY_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&capacity) {
            return Ok(Err(Refusal::Capacity(capacity)));
        }
        if let Some(refusal) = self.no_more_channels(&room, op, capacity)? {
            return Ok(Err(refusal));
        }
        let Some((node, memory)) = self.node_for(&room, capacity)? else {
            return Ok(Err(Refusal::NoNode(capacity)));
        };
        let object = ids::reserve(self.db, "object", 1)?;
        let sql = "INSERT INTO channel(object, room, name, node, capacity, uid, created, memory) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let row = params![
            object.cast_signed(),
            room.ino.cast_signed(),
            op.channel,
            node,
            capacity.cast_signed(),
            self.caller.uid,
            self.now,
            memory
        ];
        self.db.execute(sql, row)?;
        self.shared.quotas.forget(room.ino);
        let mut made = match self.channel(&room, &op.room, &op.channel)? {
            Ok(made) => made,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.lend_channel(&room, &mut made, rights::CREATE);
        Ok(Ok(made))
    }

    /// Returns a room in which the caller has the permissions `want`.
    fn room_for(&self, name: &str, want: u32) -> Done<Vnode> {
        let Some(room) = self.found_room(name)? else {
            return Ok(Err(Refusal::Unknown(name.to_owned())));
        };
        self.need(&room, want, name)?;
        Ok(Ok(room))
    }

    fn no_more_channels(
        &self,
        room: &Vnode,
        op: &v1::CreateChannelRequest,
        capacity: u64,
    ) -> Result<Option<Refusal>, Fault> {
        let sql = "SELECT count(*), coalesce(sum(room = ?1), 0), coalesce(sum(room = ?1 AND name = ?2), 0), \
                   coalesce(sum(uid = ?3), 0) FROM channel";
        let counts =
            |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let row = params![room.ino.cast_signed(), op.channel, self.caller.uid];
        let (all, here, same, own): (u32, u32, u32, u32) = self.db.query_row(sql, row, counts)?;
        if same > 0 {
            let (room, channel) = (op.room.clone(), op.channel.clone());
            return Ok(Some(Refusal::ChannelExists(room, channel)));
        }
        let own_max = self.caller.uid != 0 && own >= CHANNELS_OF_USER_MAX;
        if all >= CHANNELS_MAX || here >= CHANNELS_EACH_MAX || own_max {
            return Ok(Some(Refusal::TooManyChannels));
        }
        let sql = "SELECT quota FROM room WHERE ino = ?1";
        let quota: i64 = self
            .db
            .query_row(sql, [room.ino.cast_signed()], |row| row.get(0))?;
        let (taken, _) = used(self.db, room.ino)?;
        let left = quota.cast_unsigned().saturating_sub(taken);
        Ok((quota != 0 && capacity > left).then_some(Refusal::NoQuota(capacity, left)))
    }

    /// Returns the node with the most room that is up: in memory if the room's directory asks for that and such a node has
    /// enough.
    fn node_for(&self, room: &Vnode, capacity: u64) -> Result<Option<(u32, bool)>, Fault> {
        let sql = "SELECT value FROM xattr WHERE ino = ?1 AND name = ?2";
        let row = params![room.ino.cast_signed(), DIRECTORY_MEDIUM];
        let medium = self.db.query_row(sql, row, |row| row.get::<_, Vec<u8>>(0));
        let wants_memory = medium.optional()?.is_some_and(|medium| medium == b"memory");
        let rooms = self.shared.rooms();
        let fits = |one: &&tidemill_core::layout::Room| {
            let enough = one.free_bytes >= capacity.saturating_add(SPARE_BYTES);
            one.answers && !one.leaving && enough && (wants_memory || !one.memory)
        };
        let found = rooms.store.iter().filter(fits);
        let found = found.max_by_key(|one| (one.memory, one.free_bytes));
        Ok(found.map(|one| (one.node.0, one.memory)))
    }

    /// Returns the description of a channel, without rights.
    fn channel(&self, vnode: &Vnode, room: &str, name: &str) -> Done<v1::Channel> {
        let sql = format!("SELECT {COLUMNS} FROM channel WHERE room = ?1 AND name = ?2");
        let mut statement = self.db.prepare_cached(&sql)?;
        let row = params![vnode.ino.cast_signed(), name];
        let found = statement
            .query_row(row, |row| shown(row, room))
            .optional()?;
        Ok(found.ok_or_else(|| Refusal::NoChannel(name.to_owned())))
    }

    fn lend_channel(&self, room: &Vnode, channel: &mut v1::Channel, more: u32) {
        let may = |want, right| {
            if self.caller.may(room, want) {
                right
            } else {
                0
            }
        };
        let rights = may(READ, rights::RECEIVE) | may(WRITE, rights::SEND) | more;
        channel.capability = self.shared.lend(
            room.ino,
            channel.node,
            channel.object,
            rights,
            self.caller.uid,
        );
    }

    /// Returns a channel, with the right to use it as far as the caller may read and write the room's directory.
    pub(crate) fn open_channel(&self, op: &v1::ChannelRequest) -> Done<v1::Channel> {
        let room = match self.room_for(&op.room, SEARCH)? {
            Ok(room) => room,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !self.caller.may(&room, WRITE) {
            self.need(&room, READ, &op.room)?;
        }
        let mut channel = match self.channel(&room, &op.room, &op.channel)? {
            Ok(channel) => channel,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if channel.lost {
            return Ok(Err(Refusal::ChannelLost(channel.channel, channel.node)));
        }
        self.lend_channel(&room, &mut channel, 0);
        Ok(Ok(channel))
    }

    /// Returns the channels of a room, in the order of their names.
    pub(crate) fn channels_shown(&self, name: &str) -> Done<Vec<v1::Channel>> {
        let room = match self.room_for(name, READ | SEARCH)? {
            Ok(room) => room,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let sql = format!("SELECT {COLUMNS} FROM channel WHERE room = ?1 ORDER BY name");
        let mut channels = self.db.prepare_cached(&sql)?;
        let channels = channels.query_map([room.ino.cast_signed()], |row| shown(row, name))?;
        Ok(Ok(channels.collect::<Result<_, _>>()?))
    }

    /// Removes a channel that the caller, or the room of the caller, owns.
    pub(crate) fn remove_channel(&mut self, op: &v1::ChannelRequest) -> Done<v1::Channel> {
        let room = match self.room_for(&op.room, SEARCH)? {
            Ok(room) => room,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let channel = match self.channel(&room, &op.room, &op.channel)? {
            Ok(channel) => channel,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if channel.uid != self.caller.uid {
            self.need_owner(&room)?;
        }
        let sql = "DELETE FROM channel WHERE object = ?1";
        self.db.execute(sql, [channel.object.cast_signed()])?;
        self.shared.quotas.forget(room.ino);
        Ok(Ok(channel))
    }
}

fn shown(row: &rusqlite::Row<'_>, room: &str) -> rusqlite::Result<v1::Channel> {
    let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    Ok(v1::Channel {
        room: room.to_owned(),
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

/// Returns the channels that each node must keep.
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

/// Marks the channels of a node as lost; returns their number.
pub(crate) fn lose(db: &Connection, node: u32) -> Result<usize, Fault> {
    let sql = "UPDATE channel SET lost = 1 WHERE node = ?1";
    Ok(db.execute(sql, [node])?)
}
