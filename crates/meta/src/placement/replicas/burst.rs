//! The burst tier: this module records which objects are on nodes of the tier (column `replica.tier`), stages the objects out after a delay, and
//! evicts objects when space is needed. The module uses the mechanism of replicas. An object in the tier does not count as a wanted replica
//! ([`tidemill_model::replicas::ReplicaState::Burst`]), so a replica is created on another node. A request to leave its node removes the
//! object from the tier (next: `server/src/replicas.rs`).

use crate::Connection;
use crate::attribute::DIRECTORY_DURABLE;
use crate::fault::Fault;
use crate::placement::migrations;
use crate::placement::replicas::{self, Reason};
use crate::placement::reservations;
use crate::placement::under_replicated::{MIGRATIONS, schedule, schedule_burst};
use crate::query::stored_enum;
use crate::query::{execute, exists, find, number, numbers, rows, unsigned};
use crate::shared::NamesShared;
use crate::transaction::Tx;
use crate::vnode::InodeRecord;
use parking_lot::RwLock;
use rusqlite::params;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_model::layout::RESERVE_BYTES;
use tidemill_sched::burst::{Durable, TierFill, TierLimits};
use tidemill_wire::convert::BURST as TIER;
use tidemill_wire::v1::{self, name_result::Result as Answer};

stored_enum! {
    /// State of an object in the burst tier.
    TierState {
        /// The object waits for its delay.
        Waits = 0,
        /// The object is due to be staged out.
        Due = 1,
        /// The object is staged out.
        Staged = 2,
    }
}

/// Delay in nanoseconds after which a node's report includes a sealed object.
pub(in crate::placement) const HEARD_NS: i64 = 2 * 1_000_000_000;
/// Maximum number of objects that one call evicts or makes due.
const OBJECTS_MAX: u32 = 4096;

/// Nodes of the burst tier, including offline nodes that were known before.
#[derive(Debug, Default)]
pub struct Bursts {
    nodes: RwLock<BTreeSet<u32>>,
    any: AtomicBool,
    limits: RwLock<TierLimits>,
    /// Whether any space in the tier has been reserved, in this run of the server or before.
    reserved: AtomicBool,
}

impl Bursts {
    /// Replaces the set of nodes in the burst tier.
    pub fn set(&self, nodes: BTreeSet<u32>) {
        if !nodes.is_empty() {
            self.any.store(true, Ordering::Relaxed);
        }
        *self.nodes.write() = nodes;
    }

    /// Returns whether the tier has nodes, or contained nodes at some time since the server's start.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Returns whether a node belongs to the burst tier, online or offline.
    pub fn has(&self, node: u32) -> bool {
        self.any() && self.nodes.read().contains(&node)
    }

    /// Returns the percentage of a node's processors that map tasks leave to the programs that write files on the node.
    pub fn leaves(&self, node: u32) -> u8 {
        match self.has(node) {
            true => self.limits().share,
            false => 0,
        }
    }

    /// Returns whether any space in the tier has been reserved.
    pub fn reserved(&self) -> bool {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Records that space in the tier has been reserved; the record stays until the end of the server.
    pub fn set_reserved(&self) {
        self.reserved.store(true, Ordering::Relaxed);
    }

    /// Returns the present limits for stage-out, eviction and reservations.
    pub fn limits(&self) -> TierLimits {
        *self.limits.read()
    }

    /// Replaces the limits for stage-out, eviction and reservations.
    pub fn set_limits(&self, limits: TierLimits) {
        *self.limits.write() = limits;
    }
}

impl Tx<'_> {
    /// Records that an object was just sealed on a node of the burst tier. The object is staged out after a delay, and after a longer delay
    /// if it may be deleted before.
    pub(crate) fn written_to_burst(
        &self,
        object: u64,
        node: u32,
        held_ns: i64,
    ) -> Result<(), Fault> {
        if self.shared.bursts.reserved() {
            reservations::closed(self.db, object, node)?;
        }
        let sql = "INSERT INTO replica(object, node, state, size, since, tier) SELECT object, ?2, 2, size, ?3, 0 FROM held \
                   WHERE object = ?1 ON CONFLICT DO UPDATE SET state = max(state, 2), size = excluded.size, since = ?3, tier = 0 \
                   WHERE tier IS NULL AND want != 2";
        execute(self.db, sql, params![object.cast_signed(), node, self.now])?;
        let after = self.shared.bursts.limits().after.0;
        let at = self
            .now
            .saturating_add(i64::try_from(after).unwrap_or(i64::MAX))
            .saturating_add(held_ns);
        schedule(self.db, object, MIGRATIONS, at)
    }

    /// Answers whether a sync of a directory has to wait until the files below the directory are staged out.
    pub(crate) fn stage_out_wait(&self, op: &v1::StageOutWait) -> Result<Answer, Fault> {
        let waits = self.shared.bursts.any() && self.waits_for_stage_out(op.ino)?;
        let value = if waits {
            b"staged".to_vec()
        } else {
            Vec::new()
        };
        Ok(Answer::Bytes(v1::Bytes { value }))
    }

    /// Returns whether the attribute of a directory, or of its nearest ancestor with it, requires that a sync waits for stage-out.
    pub fn waits_for_stage_out(&self, ino: u64) -> Result<bool, Fault> {
        let directory = InodeRecord::get(self.db, ino)?;
        let reported = self.directory_attribute::<Durable>(&directory, DIRECTORY_DURABLE)?;
        Ok(directory.is_dir() && reported == Some(Durable::Staged))
    }

    /// Cancels the eviction of an object from the burst tier. Returns the number of bytes that the eviction would have freed; `None` if the
    /// object is not in the tier.
    pub fn stays_in_burst(&self, object: u64) -> Result<Option<u64>, Fault> {
        let id = object.cast_signed();
        let sql = "SELECT CASE tier WHEN 2 THEN size ELSE 0 END FROM replica WHERE object = ?1 AND tier IS NOT NULL";
        let bytes: Option<i64> = find(self.db, sql, [id], |row| row.get(0))?;
        if bytes.is_some() {
            migrations::cancel_eviction(self.db, object)?;
            let sql = "UPDATE replica SET since = ?2 WHERE object = ?1 AND tier = 2";
            execute(self.db, sql, params![id, self.now])?;
        }
        Ok(bytes.map(i64::cast_unsigned))
    }

    /// Returns the node of the burst tier to which an object is about to be copied.
    pub fn comes_to_burst(&self, object: u64) -> Result<Option<u32>, Fault> {
        let sql = "SELECT node FROM replica WHERE object = ?1 AND why = 4";
        find(self.db, sql, [object.cast_signed()], |row| row.get(0))
    }

    /// Requests that a stored object is copied to a node of the burst tier.
    pub fn stage_in(&self, object: u64, node: u32) -> Result<(), Fault> {
        migrations::stage_in(self.db, object, node, self.now)
    }

    /// Returns the number of bytes that are about to be copied to a node of the burst tier.
    pub fn coming_to_burst(&self, node: u32) -> Result<u64, Fault> {
        let bytes = sum_of("size");
        let sql = format!("SELECT {bytes} FROM replica WHERE target = ?1 AND why = 4");
        number(self.db, &sql, [node])
    }

    /// Returns the number of bytes on a node of the burst tier that are staged out and can be evicted.
    pub fn evictable(&self, node: u32) -> Result<u64, Fault> {
        let bytes = sum_of("size");
        let sql = format!("SELECT {bytes} FROM replica WHERE node = ?1 AND tier = ?2");
        number(self.db, &sql, params![node, TierState::Staged])
    }

    /// Evicts the oldest staged-out objects of a node, in total at least `bytes` bytes if there are enough.
    pub fn evict_at_least(&self, node: u32, mut bytes: u64) -> Result<(), Fault> {
        for (object, size) in oldest(self.db, node, (TierState::Staged, OBJECTS_MAX), false)? {
            if bytes == 0 {
                break;
            }
            bytes = bytes.saturating_sub(size);
            evict_object(self.db, object, node, self.now)?;
        }
        Ok(())
    }

    /// Stages these objects out of the burst tier now, and evicts them if `evict` is set. Counts the objects that are not staged out yet.
    pub fn stage_out_now(
        &self,
        objects: &[(u64, u64)],
        evict: bool,
        reply: &mut v1::StageReply,
    ) -> Result<(), Fault> {
        let sql = "SELECT node, tier FROM replica WHERE object = ?1 AND tier IS NOT NULL";
        for &(object, size) in objects {
            let found = find(self.db, sql, [object.cast_signed()], |row| {
                Ok((row.get::<_, u32>(0)?, row.get::<_, TierState>(1)?))
            })?;
            let Some((node, state)) = found else {
                continue;
            };
            if state != TierState::Staged {
                reply.objects += 1;
                reply.bytes = reply.bytes.saturating_add(size);
                schedule(self.db, object, MIGRATIONS, self.now)?;
                if !self.shared.is_up(node) {
                    reply.offline = reply.offline.max(node + 1);
                }
            } else if evict {
                reply.held += 1;
                evict_object(self.db, object, node, self.now)?;
            }
        }
        Ok(())
    }
}

/// Returns an SQL expression that sums bytes and never overflows, as `sum` of SQLite would for the sizes of huge sparse files.
pub fn sum_of(bytes: &str) -> String {
    format!("CAST(min(total({bytes}), 9.2e18) AS INTEGER)")
}

/// Returns at most `max` objects of a node in this state and their sizes, the oldest first. With `staying`, objects with a requested migration
/// are left out.
fn oldest(
    db: &Connection,
    node: u32,
    (state, max): (TierState, u32),
    staying: bool,
) -> Result<Vec<(u64, u64)>, Fault> {
    let sql = "SELECT object, size FROM replica WHERE node = ?1 AND tier = ?2 AND (NOT ?4 OR NOT EXISTS (SELECT 1 FROM replica AS one \
               WHERE one.object = replica.object AND (one.want = 1 OR one.target IS NOT NULL))) ORDER BY since, object LIMIT ?3";
    rows(db, sql, params![node, state, max, staying], numbers)
}

/// Requests the eviction of an object from a node; the object has replicas on other nodes.
fn evict_object(db: &Connection, object: u64, node: u32, now: i64) -> Result<(), Fault> {
    migrations::request(db, object, (node, Reason::Evict), now)
}

/// Records that an object in the burst tier has all its wanted replicas on nodes outside the tier.
pub fn staged_out(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "UPDATE replica SET tier = 2 WHERE object = ?1 AND tier IS NOT NULL RETURNING node, why IS 3";
    let found: Vec<(u32, bool)> = rows(db, sql, [object.cast_signed()], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    for (node, _) in found.into_iter().filter(|(_, evict)| *evict) {
        evict_object(db, object, node, 0)?;
    }
    Ok(())
}

/// Records that an object in the burst tier has too few replicas outside the tier, so that it is staged out once more.
pub fn stages_out_again(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "UPDATE replica SET tier = 1 WHERE object = ?1 AND tier = 2";
    execute(db, sql, [object.cast_signed()])
}

/// Records that a replica of an object is lost or corrupt. Without another replica outside the burst tier, the object is staged out again.
pub(in crate::placement) fn lost_elsewhere(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "SELECT 1 FROM (SELECT node FROM held WHERE object = ?1 \
               UNION SELECT node FROM replica WHERE object = ?1 AND want != 2 AND state = 2) AS has \
               WHERE has.node NOT IN (SELECT node FROM replica WHERE object = ?1 AND (state >= 3 OR tier IS NOT NULL)) \
               AND has.node NOT IN (SELECT node FROM node WHERE state >= 2)";
    let stored = exists(db, sql, [object.cast_signed()])?;
    match stored {
        true => Ok(()),
        false => stages_out_again(db, object),
    }
}

/// Requests the eviction of an object from the burst tier as soon as the object is staged out.
pub(crate) fn evict_when_staged_out(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "UPDATE replica SET why = iif(want = 0, 3, why) WHERE object = ?1 AND tier IS NOT NULL RETURNING node, tier";
    let found: Vec<(u32, TierState)> = rows(db, sql, [object.cast_signed()], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    for (node, _) in found
        .into_iter()
        .filter(|(_, state)| *state == TierState::Staged)
    {
        evict_object(db, object, node, 0)?;
    }
    Ok(())
}

/// Records that a new replica is stored on a node, if the replica was requested for the burst tier.
pub(in crate::placement) fn staged_in(
    db: &Connection,
    object: u64,
    node: u32,
    now: i64,
) -> Result<(), Fault> {
    let sql = "UPDATE replica SET tier = 2, since = ?3 WHERE object = ?1 AND node = ?2 AND why = 4 AND tier IS NULL";
    execute(db, sql, params![object.cast_signed(), node, now])
}

/// Deletes the records of all objects on a node that has left the burst tier.
fn forget_node(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE replica SET tier = NULL, why = iif(want = 0 AND why = 3, NULL, why) WHERE tier IS NOT NULL AND node = ?1";
    execute(db, sql, [node])?;
    replicas::settle_node(db, node)
}

/// A node of the burst tier, and the free bytes of the node's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierNode {
    /// Number of the node.
    pub node: u32,
    /// Number of free bytes of the node's device, as last reported by the node.
    pub bytes: u64,
    /// Capacity of the whole device in bytes.
    pub capacity: u64,
}

/// Returns the number of bytes to evict from a node to reach the wanted free space. Files of other programs on the node's device can't be
/// evicted and do not count.
pub fn to_evict(
    db: &Connection,
    limits: TierLimits,
    (free, now): (TierNode, i64),
) -> Result<u64, Fault> {
    let aside = reservations::aside(db, free.node, now)?;
    let fill = TierFill {
        capacity: free.capacity,
        used: free.capacity.saturating_sub(free.bytes),
        evicting: 0,
        aside,
        least: RESERVE_BYTES,
    };
    // This check needs no count of the objects: files of other programs only make the device fuller.
    if limits.to_evict(fill) == 0 {
        return Ok(0);
    }
    let sum = |from: &str| -> Result<u64, Fault> {
        let sql = format!("SELECT {} FROM {from} = ?1", sum_of("size"));
        number(db, &sql, [free.node])
    };
    let held = sum("replica WHERE tier IS NOT NULL AND node")?;
    let evicting = sum("replica WHERE want = 1 AND node")?;
    // These objects are no longer counted as held, but still occupy space.
    let removed = number(
        db,
        &format!(
            "SELECT {} FROM replica CROSS JOIN held ON held.object = replica.object WHERE want = 2 AND replica.node = ?1",
            sum_of("held.size")
        ),
        [free.node],
    )?;
    let has = held.saturating_add(removed);
    let capacity = has.saturating_add(free.bytes);
    Ok(limits.to_evict(TierFill {
        capacity,
        used: has,
        evicting: evicting.saturating_add(removed),
        ..fill
    }))
}

/// Returns whether a node is filled above the limit for eviction and [`make_space`] would change something. If the node has only objects that
/// can't be staged out at present, such a call would change nothing.
pub fn can_make_space(
    db: &Connection,
    limits: TierLimits,
    at: (TierNode, i64),
) -> Result<bool, Fault> {
    let any = |state| Ok::<_, Fault>(!oldest(db, at.0.node, (state, 1), true)?.is_empty());
    Ok(to_evict(db, limits, at)? > 0 && (any(TierState::Staged)? || any(TierState::Waits)?))
}

/// Frees space on a node by evicting the oldest staged-out objects. If that is not enough, other objects become due for stage-out.
pub fn make_space(
    db: &Connection,
    shared: &NamesShared,
    free: TierNode,
    now: i64,
) -> Result<(), Fault> {
    let mut wanted = to_evict(db, shared.bursts.limits(), (free, now))?;
    for state in [TierState::Staged, TierState::Waits] {
        for (object, size) in oldest(db, free.node, (state, OBJECTS_MAX), true)? {
            if wanted == 0 {
                return Ok(());
            }
            wanted = wanted.saturating_sub(size);
            match state {
                TierState::Staged => evict_object(db, object, free.node, now)?,
                _ => sooner(db, object, now)?,
            }
        }
    }
    Ok(())
}

/// Makes waiting objects of a node due for stage-out, the oldest first, until their sizes sum up to `bytes` bytes.
pub fn stage_out_sooner(
    db: &Connection,
    (node, mut bytes): (u32, u64),
    now: i64,
) -> Result<(), Fault> {
    for (object, size) in oldest(db, node, (TierState::Waits, OBJECTS_MAX), false)? {
        if bytes == 0 {
            break;
        }
        bytes = bytes.saturating_sub(size);
        sooner(db, object, now)?;
    }
    Ok(())
}

/// Makes a waiting object due for stage-out now.
fn sooner(db: &Connection, object: u64, now: i64) -> Result<(), Fault> {
    let sql = "UPDATE replica SET tier = 1 WHERE object = ?1 AND tier IS NOT NULL";
    execute(db, sql, [object.cast_signed()])?;
    schedule(db, object, MIGRATIONS, now)
}

/// Handles the tier of a node that joined, if the tier changed. A node that is new in the burst tier, or that the server's database does
/// not know, may already have versions.
pub fn met(
    db: &Connection,
    (known, came): (Option<&v1::Node>, &v1::Node),
    now: i64,
) -> Result<(), Fault> {
    let (was, is) = (
        known.is_some_and(|known| known.tier == TIER),
        came.tier == TIER,
    );
    match (was, is) {
        (false, true) => list(db, came.node, now),
        (true, false) => stores(db, came.node, now),
        _ => Ok(()),
    }
}

/// Makes the objects of a node count as stored in the capacity tier, since the node no longer belongs to the burst tier.
fn stores(db: &Connection, node: u32, now: i64) -> Result<(), Fault> {
    migrations::cancel_tier(db, node)?;
    schedule_burst(db, node, true, now)?;
    forget_node(db, node)?;
    reservations::forget_node(db, node)
}

fn list(db: &Connection, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO replica(object, node, state, size, since, tier) SELECT object, ?1, 2, size, ?2, 0 FROM held \
               WHERE node = ?1 AND removed = 0 \
               UNION ALL SELECT replica.object, ?1, 2, held.size, ?2, 0 FROM replica CROSS JOIN held ON held.object = replica.object \
               WHERE replica.want != 2 AND replica.node = ?1 AND replica.state >= 2 AND held.node != ?1 AND held.removed = 0 \
               ON CONFLICT DO UPDATE SET size = excluded.size, since = ?2, tier = 0 WHERE tier IS NULL AND want != 2";
    execute(db, sql, params![node, now])?;
    schedule_burst(db, node, false, now)
}

/// Returns the usage of a node of the burst tier, for display.
pub fn reported(db: &Connection, node: u32, now: i64) -> Result<v1::BurstFiles, Fault> {
    let (reserved_bytes, reserved_left) = reservations::reported(db, node, now)?;
    let (bytes, left) = (
        sum_of("size"),
        sum_of("CASE WHEN tier = 2 THEN 0 ELSE size END"),
    );
    let sql = format!(
        "SELECT count(*), {bytes}, coalesce(sum(tier = 2), 0), {left}, \
         coalesce(min(CASE WHEN tier = 2 THEN NULL ELSE since END), 0) FROM replica \
         WHERE tier IS NOT NULL AND node = ?1"
    );
    let mut statement = db.sql.prepare_cached(&sql)?;
    Ok(statement.query_row([node], |row| {
        let number = |at| unsigned(row, at);
        Ok(v1::BurstFiles {
            objects: number(0)?,
            bytes: number(1)?,
            staged_out: number(2)?,
            bytes_left: number(3)?,
            oldest: row.get(4)?,
            reserved_bytes,
            reserved_left,
        })
    })?)
}

/// Returns the objects of a version that was just recorded, each with its node.
pub fn places(db: &Connection, vnode: &InodeRecord) -> Result<Vec<(u64, i64)>, Fault> {
    if !vnode.has_parts() {
        return Ok(vec![(vnode.object, vnode.node)]);
    }
    let parts = crate::parts::parts(db, vnode.object)?.into_iter();
    let parts = parts.flat_map(|(_, parts)| parts);
    Ok(parts.map(|part| (part.object, part.node.into())).collect())
}
