//! Reserved space in the burst tier (table `space_reservation`), and the versions placed within a reservation (column `replica.reservation`).
//! [`tidemill_sched::reservation`] defines which clients may begin which versions. A trigger of the database gives back the used space of
//! removed objects.

use crate::placement::burst::{HEARD_NS, TierState, sum_of};
use crate::query::{execute, first_time, number, numbers, rows, unsigned};

use crate::Connection;
use crate::fault::Fault;
use crate::ids;
use crate::overflow::ClientLocation;
use crate::paths;
use crate::transaction::Tx;
use crate::vnode::InodeRecord;
use rusqlite::params;
use std::collections::BTreeMap;
use tidemill_model::id::NodeId;
use tidemill_model::layout::{FreeSpace, PlacementError, RESERVE_BYTES, place_in_burst};
use tidemill_sched::reservation::{SpaceReservation, TierSpace};

/// A space reservation that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct ActiveReservation {
    /// Number of the reservation, which is never reused.
    pub id: u64,
    /// Inode of the directory whose files use the reservation.
    pub ino: u64,
    /// Node of the burst tier on which the space is reserved.
    pub node: u32,
    /// Reserved bytes, the part of them that closed files use, and the number of files being written within the reservation.
    pub reservation: SpaceReservation,
    /// User that created the reservation.
    pub uid: u32,
    /// Whether the reservation counts towards the users' common limit.
    pub bounded: bool,
    /// Start of the reservation, in nanoseconds since the Unix epoch.
    pub since: i64,
    /// End of the reservation, in nanoseconds since the Unix epoch.
    pub until: i64,
}

/// Returns all reservations that have not ended.
pub fn all(db: &Connection, now: i64) -> Result<Vec<ActiveReservation>, Fault> {
    let sql = "SELECT reservation, ino, node, bytes, used, uid, bounded, since, until FROM space_reservation WHERE until > ?1 ORDER BY reservation";
    let mut reservations: Vec<ActiveReservation> = rows(db, sql, [now], |row| {
        let number = |at| unsigned(row, at);
        Ok(ActiveReservation {
            id: number(0)?,
            ino: number(1)?,
            node: row.get(2)?,
            reservation: SpaceReservation {
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
    if reservations.is_empty() {
        return Ok(reservations);
    }
    let sql = "SELECT reservation, count(*) FROM writing CROSS JOIN replica ON replica.object = writing.object \
               WHERE reservation IS NOT NULL AND want != 2 GROUP BY reservation";
    let open: BTreeMap<u64, u64> = rows(db, sql, [], numbers)?;
    for one in &mut reservations {
        one.reservation.open = open.get(&one.id).copied().unwrap_or(0);
    }
    Ok(reservations)
}

/// Returns the reservations on a node.
pub fn of(reservations: &[ActiveReservation], node: u32) -> Vec<SpaceReservation> {
    let of = reservations.iter().filter(|one| one.node == node);
    of.map(|one| one.reservation).collect()
}

/// Returns the first reservation on a node with enough space for a file of this initial size in bytes.
fn taker(own: &[ActiveReservation], node: u32, bytes: u64) -> Option<&ActiveReservation> {
    own.iter()
        .find(|one| one.node == node && one.reservation.takes(bytes))
}

/// Returns the space of a node with `free` free bytes and its reservations.
pub fn space(
    db: &Connection,
    (node, free): (u32, u64),
    (reservations, now): (&[ActiveReservation], i64),
) -> Result<TierSpace, Fault> {
    let sql = "SELECT count(*) FROM writing WHERE node = ?1";
    let open = number(db, sql, [node])?;
    let bytes = sum_of("size");
    let sql =
        format!("SELECT {bytes} FROM replica WHERE node = ?1 AND tier IN (?2, ?3) AND since > ?4");
    let row = params![node, TierState::Waits, TierState::Due, now - HEARD_NS];
    let unheard = number(db, &sql, row)?;
    let within = of(reservations, node).iter().map(|one| one.open).sum();
    Ok(TierSpace {
        free,
        unheard,
        open: open.saturating_sub(within),
    })
}

/// Returns the number of bytes on a node that are reserved for files being written and by reservations.
pub fn aside(db: &Connection, node: u32, now: i64) -> Result<u64, Fault> {
    let reservations = all(db, now)?;
    let space = space(db, (node, 0), (&reservations, now))?;
    Ok(space.aside(&of(&reservations, node)))
}

/// Returns the number of bytes on a node that are reserved by reservations alone.
pub fn reserved(db: &Connection, node: u32, now: i64) -> Result<u64, Fault> {
    let reservations = of(&all(db, now)?, node);
    Ok(reservations
        .iter()
        .map(SpaceReservation::aside)
        .fold(0, u64::saturating_add))
}

/// Returns the number of reserved bytes on a node, and the number of these that are unused.
pub fn reported(db: &Connection, node: u32, now: i64) -> Result<(u64, u64), Fault> {
    let reservations = of(&all(db, now)?, node);
    let sum = |bytes: fn(&SpaceReservation) -> u64| {
        reservations.iter().map(bytes).fold(0, u64::saturating_add)
    };
    Ok((sum(|one| one.bytes), sum(SpaceReservation::left)))
}

/// Creates a reservation for the files below a directory. The reservation has a new id and uses no space yet; the function returns the id.
pub fn insert(db: &Connection, new: &ActiveReservation) -> Result<u64, Fault> {
    let id = ids::reserve(db, "reservation", 1)?;
    let sql = "INSERT INTO space_reservation(reservation, ino, node, bytes, uid, bounded, since, until) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let row = params![
        id.cast_signed(),
        new.ino.cast_signed(),
        new.node,
        new.reservation.bytes.cast_signed(),
        new.uid,
        new.bounded,
        new.since,
        new.until
    ];
    execute(db, sql, row)?;
    Ok(id)
}

/// Ends a reservation.
pub fn release(db: &Connection, id: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM space_reservation WHERE reservation = ?1";
    execute(db, sql, [id.cast_signed()])
}

/// Ends the reservations on a node.
pub(in crate::placement) fn forget_node(db: &Connection, node: u32) -> Result<(), Fault> {
    execute(db, "DELETE FROM space_reservation WHERE node = ?1", [node])
}

/// Ends the reservations for the files below a directory that lost its name.
pub(crate) fn forget_directory(db: &Connection, ino: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM space_reservation WHERE ino = ?1";
    execute(db, sql, [ino.cast_signed()])
}

/// Returns the time at which the next reservation expires, if any.
pub fn first_end(db: &Connection) -> Result<Option<i64>, Fault> {
    first_time(db, "SELECT min(until) FROM space_reservation")
}

/// Counts the bytes of an object that was begun within a reservation and is now closed. Call this before the object is recorded as stored.
pub(in crate::placement) fn closed(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE space_reservation SET used = used + min(size, (1 << 62) - min(used, 1 << 62)) FROM \
               (SELECT replica.reservation AS taken, held.size FROM replica CROSS JOIN held ON held.object = replica.object \
               WHERE replica.object = ?1 AND replica.node = ?2 AND replica.reservation IS NOT NULL AND tier IS NULL AND want != 2) \
               WHERE reservation = taken";
    execute(db, sql, params![object.cast_signed(), node])
}

/// Ends reservations whose time has expired.
pub fn sweep(db: &Connection, now: i64) -> Result<(), Fault> {
    execute(db, "DELETE FROM space_reservation WHERE until <= ?1", [now])
}

impl Tx<'_> {
    /// Returns the node of the burst tier for a new version without a requested node: a node with a reservation for the version, else any
    /// node with space that is not reserved for other clients.
    pub(crate) fn placed_in_burst(
        &self,
        dir: &InodeRecord,
        here: ClientLocation<'_>,
    ) -> Result<Option<NodeId>, Fault> {
        if !self.shared.bursts.any() {
            return Ok(None);
        }
        let reservations = self.reservations()?;
        let own = self.own(dir, &reservations)?;
        let nodes: Vec<NodeId> = here.here.iter().copied().map(NodeId).collect();
        let apart: Vec<NodeId> = here.apart.iter().copied().map(NodeId).collect();
        let (mut within, mut beside) = (Vec::new(), Vec::new());
        let spaces = self.shared.spaces();
        for free in spaces.store.iter().filter(|free| free.burst) {
            let node = free.node.0;
            let at = (node, free.free_bytes);
            let space = space(self.db, at, (&reservations, self.now))?;
            if taker(&own, node, here.bytes).is_some() {
                within.push(FreeSpace {
                    free_bytes: space.within(),
                    ..*free
                });
            }
            beside.push(FreeSpace {
                free_bytes: space.beside(&of(&reservations, node)),
                ..*free
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

    /// Checks a request for a node of the burst tier. The client may begin a version within its own reservation, or a version that leaves
    /// the reservations of others intact. Otherwise the client waits for space as all writers on the node do.
    pub(crate) fn need_unreserved(
        &self,
        dir: &InodeRecord,
        node: u32,
        here: ClientLocation<'_>,
    ) -> Result<(), Fault> {
        if !self.shared.bursts.reserved() || !self.shared.bursts.has(node) {
            return Ok(());
        }
        let reservations = self.reservations()?;
        let own = self.own(dir, &reservations)?;
        if let Some(one) = taker(&own, node, here.bytes) {
            return self.take_up(one, here);
        }
        let reserved = of(&reservations, node);
        let spaces = self.shared.spaces();
        let free = spaces.store.iter().find(|free| free.node.0 == node);
        let Some(free) = free.filter(|_| !reserved.is_empty()) else {
            return Ok(());
        };
        let at = (node, free.free_bytes);
        let space = space(self.db, at, (&reservations, self.now))?;
        match space.beside(&reserved) >= here.bytes.saturating_add(RESERVE_BYTES) {
            true => Ok(()),
            false => Err(PlacementError::BurstFull.into()),
        }
    }

    fn reservations(&self) -> Result<Vec<ActiveReservation>, Fault> {
        match self.shared.bursts.reserved() {
            true => all(self.db, self.now),
            false => Ok(Vec::new()),
        }
    }

    /// Returns the reservations for a directory or its ancestors; the reservation of the nearest directory is first.
    fn own(
        &self,
        dir: &InodeRecord,
        reservations: &[ActiveReservation],
    ) -> Result<Vec<ActiveReservation>, Fault> {
        let mut own = Vec::new();
        if reservations.is_empty() {
            return Ok(own);
        }
        paths::upward(self.db, dir.ino, |at| {
            let of_this = reservations.iter().filter(|one| one.ino == at.ino);
            own.extend(of_this.copied());
            Ok(own.len() < reservations.len())
        })?;
        Ok(own)
    }

    /// Records that a new version uses space of this reservation.
    fn take_up(&self, one: &ActiveReservation, here: ClientLocation<'_>) -> Result<(), Fault> {
        if here.object == 0 {
            return Ok(());
        }
        let sql = "INSERT INTO replica(object, node, state, reservation) VALUES (?1, ?3, 0, ?2) \
                   ON CONFLICT DO UPDATE SET reservation = ?2";
        let row = params![here.object.cast_signed(), one.id.cast_signed(), one.node];
        execute(self.db, sql, row)
    }
}
