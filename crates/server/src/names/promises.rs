//! Promised room in the burst tier (`promise`), and the versions placed within a promise (`promised`). [`tidemill_core::promise`]
//! defines which writers may begin which versions. Triggers of the database count the used part of a promise and end it with its
//! directory.

use super::burst::{DUE, HEARD_NS, WAITS, sum_of};
use super::fault::Fault;
use super::spill::Here;
use super::transaction::{DEPTH_MAX, Tx};
use super::vnode::Vnode;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use tidemill_core::id::{Inode, NodeId};
use tidemill_core::layout::{PlacementError, RESERVE_BYTES, Room, place_in_burst};
use tidemill_core::promise::{Promise, Space};

/// A promise that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promised {
    pub(crate) id: u64,
    /// Directory whose files are within the promise.
    pub(crate) ino: u64,
    pub(crate) node: u32,
    pub(crate) promise: Promise,
    /// User that asked for the promise.
    pub(crate) uid: u32,
    /// Whether the promise counts towards the users' common limit.
    pub(crate) bounded: bool,
    pub(crate) since: i64,
    pub(crate) until: i64,
}

/// Returns all promises that have not ended.
pub(crate) fn all(db: &Connection, now: i64) -> Result<Vec<Promised>, Fault> {
    let sql = "SELECT promise, ino, node, bytes, used, uid, bounded, since, until FROM promise WHERE until > ?1 ORDER BY promise";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([now], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok(Promised {
            id: number(0)?,
            ino: number(1)?,
            node: row.get(2)?,
            promise: Promise {
                bytes: number(3)?,
                used: number(4)?,
                open: 0,
            },
            uid: row.get(5)?,
            bounded: row.get(6)?,
            since: row.get(7)?,
            until: row.get(8)?,
        })
    })?;
    let mut promises = rows.collect::<Result<Vec<_>, _>>()?;
    if promises.is_empty() {
        return Ok(promises);
    }
    let sql = "SELECT promise, count(*) FROM writing CROSS JOIN promised ON promised.object = writing.object GROUP BY promise";
    let mut statement = db.prepare_cached(sql)?;
    let open = statement.query_map([], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok((number(0)?, number(1)?))
    })?;
    let open = open.collect::<Result<BTreeMap<u64, u64>, _>>()?;
    for one in &mut promises {
        one.promise.open = open.get(&one.id).copied().unwrap_or(0);
    }
    Ok(promises)
}

/// Returns the promises of a node.
pub(crate) fn of(promises: &[Promised], node: u32) -> Vec<Promise> {
    let of = promises.iter().filter(|one| one.node == node);
    of.map(|one| one.promise).collect()
}

/// Returns the first promise of a node with space for a file of this initial size, in bytes.
fn taker(own: &[Promised], node: u32, bytes: u64) -> Option<&Promised> {
    own.iter()
        .find(|one| one.node == node && one.promise.takes(bytes))
}

/// Returns the space of a node with `free` free bytes.
pub(crate) fn space(
    db: &Connection,
    (node, free): (u32, u64),
    (promises, now): (&[Promised], i64),
) -> Result<Space, Fault> {
    let sql = "SELECT count(*) FROM writing WHERE node = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let open: i64 = statement.query_row([node], |row| row.get(0))?;
    let bytes = sum_of("size");
    let sql =
        format!("SELECT {bytes} FROM burst WHERE node = ?1 AND state IN (?2, ?3) AND at > ?4");
    let mut statement = db.prepare_cached(&sql)?;
    let row = params![node, WAITS, DUE, now - HEARD_NS];
    let unheard: i64 = statement.query_row(row, |row| row.get(0))?;
    let within = of(promises, node).iter().map(|one| one.open).sum();
    Ok(Space {
        free,
        unheard: unheard.cast_unsigned(),
        open: open.cast_unsigned().saturating_sub(within),
    })
}

/// Returns the bytes of a node that are reserved by files being written and by promises.
pub(crate) fn aside(db: &Connection, node: u32, now: i64) -> Result<u64, Fault> {
    let promises = all(db, now)?;
    let space = space(db, (node, 0), (&promises, now))?;
    Ok(space.aside(&of(&promises, node)))
}

/// Returns the bytes of a node that are reserved by promises alone.
pub(crate) fn promised(db: &Connection, node: u32, now: i64) -> Result<u64, Fault> {
    let promises = of(&all(db, now)?, node);
    Ok(promises
        .iter()
        .map(Promise::aside)
        .fold(0, u64::saturating_add))
}

/// Returns the promised bytes of a node, and their unused part.
pub(crate) fn told(db: &Connection, node: u32, now: i64) -> Result<(u64, u64), Fault> {
    let promises = of(&all(db, now)?, node);
    let sum = |bytes: fn(&Promise) -> u64| promises.iter().map(bytes).fold(0, u64::saturating_add);
    Ok((sum(|one| one.bytes), sum(Promise::left)))
}

/// Ends promises whose time is over.
pub(crate) fn sweep(db: &Connection, now: i64) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM promise WHERE until <= ?1")?
        .execute([now])?;
    Ok(())
}

impl Tx<'_> {
    /// Returns the node of the burst tier for a new version without a requested node: a node with a promise for the
    /// version, else any node with room that is not promised to others.
    pub(super) fn placed_in_burst(
        &self,
        dir: &Vnode,
        here: Here<'_>,
    ) -> Result<Option<NodeId>, Fault> {
        if !self.shared.bursts.any() {
            return Ok(None);
        }
        let promises = self.promises()?;
        let own = self.own(dir, &promises)?;
        let nodes: Vec<NodeId> = here.here.iter().copied().map(NodeId).collect();
        let apart: Vec<NodeId> = here.apart.iter().copied().map(NodeId).collect();
        let (mut within, mut beside) = (Vec::new(), Vec::new());
        let rooms = self.shared.rooms();
        for room in rooms.store.iter().filter(|room| room.burst) {
            let node = room.node.0;
            let at = (node, room.free_bytes);
            let space = space(self.db, at, (&promises, self.now))?;
            if taker(&own, node, here.bytes).is_some() {
                within.push(Room {
                    free_bytes: space.within(),
                    ..*room
                });
            }
            beside.push(Room {
                free_bytes: space.beside(&of(&promises, node)),
                ..*room
            });
        }
        if let Ok(Some(node)) = place_in_burst(&nodes, &apart, here.bytes, &within) {
            if let Some(one) = taker(&own, node.0, here.bytes) {
                self.take_up(one, here)?;
            }
            return Ok(Some(node));
        }
        match place_in_burst(&nodes, &apart, here.bytes, &beside) {
            Err(PlacementError::BurstFull) if self.shared.bursts.limits().pass => Ok(None),
            placed => Ok(placed?),
        }
    }

    /// Checks a request for a node of the tier. The client may begin a version within its own promise, or a version that leaves
    /// the promises of others intact. Otherwise the client waits like all writers there.
    pub(super) fn need_unpromised(
        &self,
        dir: &Vnode,
        node: u32,
        here: Here<'_>,
    ) -> Result<(), Fault> {
        if !self.shared.bursts.promised() || !self.shared.bursts.has(node) {
            return Ok(());
        }
        let promises = self.promises()?;
        let own = self.own(dir, &promises)?;
        if let Some(one) = taker(&own, node, here.bytes) {
            return self.take_up(one, here);
        }
        let promised = of(&promises, node);
        let rooms = self.shared.rooms();
        let room = rooms.store.iter().find(|room| room.node.0 == node);
        let Some(room) = room.filter(|_| !promised.is_empty()) else {
            return Ok(());
        };
        let at = (node, room.free_bytes);
        let space = space(self.db, at, (&promises, self.now))?;
        match space.beside(&promised) >= here.bytes.saturating_add(RESERVE_BYTES) {
            true => Ok(()),
            false => Err(PlacementError::BurstFull.into()),
        }
    }

    fn promises(&self) -> Result<Vec<Promised>, Fault> {
        match self.shared.bursts.promised() {
            true => all(self.db, self.now),
            false => Ok(Vec::new()),
        }
    }

    /// Returns the promises for a directory or its ancestors, the nearest first.
    fn own(&self, dir: &Vnode, promises: &[Promised]) -> Result<Vec<Promised>, Fault> {
        let mut own = Vec::new();
        let (mut at, mut parent) = (dir.ino, dir.parent);
        for _ in 0..DEPTH_MAX {
            if promises.len() == own.len() {
                break;
            }
            own.extend(promises.iter().filter(|one| one.ino == at).copied());
            if at == Inode::ROOT.0 {
                break;
            }
            at = parent;
            parent = Vnode::get(self.db, at)?.parent;
        }
        Ok(own)
    }

    /// Places a new version within this promise.
    fn take_up(&self, one: &Promised, here: Here<'_>) -> Result<(), Fault> {
        if here.object == 0 {
            return Ok(());
        }
        let sql = "INSERT OR REPLACE INTO promised(object, promise, node) VALUES (?1, ?2, ?3)";
        let row = params![here.object.cast_signed(), one.id.cast_signed(), one.node];
        self.db.prepare_cached(sql)?.execute(row)?;
        Ok(())
    }
}
