//! The burst tier: this module records which objects are on nodes of the tier (table `burst`), stages the objects out after a delay, and
//! evicts objects when space is needed. The module uses the mechanism of replicas. An object in the tier does not count as a wanted replica
//! ([`tidemill_model::replicas::ReplicaState::Burst`]), so a replica is created on another node. A row of `migration` removes the object
//! from the tier (next: `server/src/replicas.rs`).

use super::attribute::DIRECTORY_DURABLE;
use super::fault::Fault;
use super::replicas::{CURRENT, EVICT, MIGRATIONS, NOWHERE, STAGE_IN, migrates_at};
use super::reservations;
use super::shared::NamesShared;
use super::transaction::Tx;
use super::vnode::InodeRecord;
use parking_lot::RwLock;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_model::layout::RESERVE_BYTES;
use tidemill_sched::burst::{Durable, TierFill, TierLimits};
use tidemill_wire::convert::BURST as TIER;
use tidemill_wire::v1::{self, name_result::Result as Answer};

/// State of an object (`burst.state`): the object waits for its delay, is due to be staged out, or is staged out.
pub(super) const WAITS: i64 = 0;
pub(super) const DUE: i64 = 1;
const STAGED: i64 = 2;
/// Delay in nanoseconds after which a node's report includes a sealed object.
pub(super) const HEARD_NS: i64 = 2 * 1_000_000_000;
/// Maximum number of objects that one call evicts or makes due.
const OBJECTS_MAX: u32 = 4096;

/// Nodes of the burst tier, including offline nodes that were known before.
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    nodes: RwLock<BTreeSet<u32>>,
    any: AtomicBool,
    limits: RwLock<TierLimits>,
    /// Whether any space in the tier has been reserved, in this run of the server or before.
    reserved: AtomicBool,
}

impl Bursts {
    pub(crate) fn set(&self, nodes: BTreeSet<u32>) {
        if !nodes.is_empty() {
            self.any.store(true, Ordering::Relaxed);
        }
        *self.nodes.write() = nodes;
    }

    /// Returns whether the tier has nodes, or contained nodes at some time since the server's start.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn has(&self, node: u32) -> bool {
        self.any() && self.nodes.read().contains(&node)
    }

    /// Returns the percentage of a node's processors that map tasks leave to the programs that write files on the node.
    pub(crate) fn leaves(&self, node: u32) -> u8 {
        match self.has(node) {
            true => self.limits().share,
            false => 0,
        }
    }

    /// Returns whether any space in the tier has been reserved.
    pub(crate) fn reserved(&self) -> bool {
        self.reserved.load(Ordering::Relaxed)
    }

    pub(crate) fn set_reserved(&self) {
        self.reserved.store(true, Ordering::Relaxed);
    }

    pub(crate) fn limits(&self) -> TierLimits {
        *self.limits.read()
    }

    pub(crate) fn set_limits(&self, limits: TierLimits) {
        *self.limits.write() = limits;
    }
}

impl Tx<'_> {
    /// Records that an object was just sealed on a node of the burst tier. The object is staged out after a delay, and after a longer delay
    /// if it may be deleted before.
    pub(super) fn written_to_burst(
        &self,
        object: u64,
        node: u32,
        held_ns: i64,
    ) -> Result<(), Fault> {
        let object = object.cast_signed();
        let sql = "INSERT OR IGNORE INTO burst SELECT object, ?2, size, ?3, 0, 0 FROM held WHERE object = ?1";
        self.db
            .prepare_cached(sql)?
            .execute(params![object, node, self.now])?;
        let after = self.shared.bursts.limits().after.0;
        let at = self
            .now
            .saturating_add(i64::try_from(after).unwrap_or(i64::MAX))
            .saturating_add(held_ns);
        migrates_at(self.db, object, at)
    }

    /// Answers whether a sync of a directory has to wait until the files below the directory are staged out.
    pub(super) fn stage_out_wait(&self, op: &v1::StageOutWait) -> Result<Answer, Fault> {
        let waits = self.shared.bursts.any() && self.waits_for_stage_out(op.ino)?;
        let value = if waits {
            b"staged".to_vec()
        } else {
            Vec::new()
        };
        Ok(Answer::Bytes(v1::Bytes { value }))
    }

    /// Returns whether the attribute of a directory, or of its nearest ancestor with it, requires that a sync waits for stage-out.
    pub(crate) fn waits_for_stage_out(&self, ino: u64) -> Result<bool, Fault> {
        let directory = InodeRecord::get(self.db, ino)?;
        let reported = self.directory_attribute::<Durable>(&directory, DIRECTORY_DURABLE)?;
        Ok(directory.is_dir() && reported == Some(Durable::Staged))
    }

    /// Cancels the eviction of an object from the burst tier. Returns the number of bytes that the eviction would have freed; `None` if the
    /// object is not in the tier.
    pub(crate) fn stays_in_burst(&self, object: u64) -> Result<Option<u64>, Fault> {
        let object = object.cast_signed();
        let sql = "SELECT CASE state WHEN ?2 THEN size ELSE 0 END FROM burst WHERE object = ?1";
        let mut statement = self.db.prepare_cached(sql)?;
        let bytes: Option<i64> = statement
            .query_row([object, STAGED], |row| row.get(0))
            .optional()?;
        if bytes.is_some() {
            let sql = "DELETE FROM migration WHERE object = ?1 AND why = ?2";
            let row = params![object, EVICT];
            self.db.prepare_cached(sql)?.execute(row)?;
            let sql = "UPDATE burst SET at = ?2 WHERE object = ?1 AND state = ?3";
            let row = params![object, self.now, STAGED];
            self.db.prepare_cached(sql)?.execute(row)?;
        }
        Ok(bytes.map(i64::cast_unsigned))
    }

    /// Returns the node of the burst tier to which an object is about to be copied.
    pub(crate) fn comes_to_burst(&self, object: u64) -> Result<Option<u32>, Fault> {
        let sql = "SELECT target FROM migration WHERE source = ?1 AND object = ?2";
        let mut statement = self.db.prepare_cached(sql)?;
        let row = params![NOWHERE, object.cast_signed()];
        Ok(statement.query_row(row, |row| row.get(0)).optional()?)
    }

    /// Requests that a stored object is copied to a node of the burst tier.
    pub(crate) fn stage_in(&self, object: u64, node: u32) -> Result<(), Fault> {
        let object = object.cast_signed();
        let sql = "INSERT OR IGNORE INTO migration SELECT ?2, object, ?3, size, ?4 FROM held WHERE object = ?1";
        let row = params![object, NOWHERE, node, STAGE_IN];
        self.db.prepare_cached(sql)?.execute(row)?;
        migrates_at(self.db, object, self.now)
    }

    /// Returns the number of bytes that are about to be copied to a node of the burst tier.
    pub(crate) fn coming_to_burst(&self, node: u32) -> Result<u64, Fault> {
        let bytes = sum_of("size");
        let sql = format!("SELECT {bytes} FROM migration WHERE why = ?1 AND target = ?2");
        let mut statement = self.db.prepare_cached(&sql)?;
        let bytes: i64 = statement.query_row([STAGE_IN, node.into()], |row| row.get(0))?;
        Ok(bytes.cast_unsigned())
    }

    /// Returns the number of bytes on a node of the burst tier that are staged out and can be evicted.
    pub(crate) fn evictable(&self, node: u32) -> Result<u64, Fault> {
        let bytes = sum_of("size");
        let sql = format!("SELECT {bytes} FROM burst WHERE node = ?1 AND state = ?2");
        let mut statement = self.db.prepare_cached(&sql)?;
        let bytes: i64 = statement.query_row([i64::from(node), STAGED], |row| row.get(0))?;
        Ok(bytes.cast_unsigned())
    }

    /// Evicts the oldest staged-out objects of a node, in total at least `bytes` bytes if there are enough.
    pub(crate) fn evict_at_least(&self, node: u32, mut bytes: u64) -> Result<(), Fault> {
        let sql = "SELECT object, size FROM burst WHERE node = ?1 AND state = ?2 ORDER BY at, object LIMIT ?3";
        let mut statement = self.db.prepare_cached(sql)?;
        let oldest = statement.query_map(params![node, STAGED, OBJECTS_MAX], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
        for (object, size) in oldest.collect::<Result<Vec<_>, _>>()? {
            if bytes == 0 {
                break;
            }
            bytes = bytes.saturating_sub(size);
            evict_object(self.db, object, node, self.now)?;
        }
        Ok(())
    }

    /// Stages these objects out of the burst tier now, and evicts them if `evict` is set. Counts the objects that are not staged out yet.
    pub(crate) fn stage_out_now(
        &self,
        objects: &[(u64, u64)],
        evict: bool,
        reply: &mut v1::StageReply,
    ) -> Result<(), Fault> {
        let sql = "SELECT node, state FROM burst WHERE object = ?1";
        let mut statement = self.db.prepare_cached(sql)?;
        for &(object, size) in objects {
            let object = object.cast_signed();
            let found = statement.query_row([object], |row| {
                Ok((row.get::<_, u32>(0)?, row.get::<_, i64>(1)?))
            });
            let Some((node, state)) = found.optional()? else {
                continue;
            };
            if state != STAGED {
                reply.objects += 1;
                reply.bytes = reply.bytes.saturating_add(size);
                migrates_at(self.db, object, self.now)?;
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
pub(crate) fn sum_of(bytes: &str) -> String {
    format!("CAST(min(total({bytes}), 9.2e18) AS INTEGER)")
}

/// Requests the eviction of an object from a node; the object has replicas on other nodes.
fn evict_object(db: &Connection, object: i64, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO migration SELECT ?2, object, NULL, size, ?3 FROM burst WHERE object = ?1";
    db.prepare_cached(sql)?
        .execute(params![object, node, EVICT])?;
    migrates_at(db, object, now)
}

/// Records that an object in the burst tier has all its wanted replicas on nodes outside the tier.
pub(crate) fn staged_out(db: &Connection, object: i64) -> Result<(), Fault> {
    let sql = "UPDATE burst SET state = ?2 WHERE object = ?1 RETURNING node, evict";
    let mut statement = db.prepare_cached(sql)?;
    let found = statement.query_row([object, STAGED], |row| {
        Ok((row.get::<_, u32>(0)?, row.get::<_, bool>(1)?))
    });
    match found.optional()? {
        Some((node, true)) => evict_object(db, object, node, 0),
        _ => Ok(()),
    }
}

/// Returns whether an object in the burst tier has all its wanted replicas outside the tier, according to the database.
pub(crate) fn is_staged_out(db: &Connection, object: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM burst WHERE object = ?1 AND state = ?2";
    let row = params![object.cast_signed(), STAGED];
    Ok(db.prepare_cached(sql)?.exists(row)?)
}

/// Records that an object in the burst tier has too few replicas outside the tier, so that it is staged out once more.
pub(crate) fn stages_out_again(db: &Connection, object: i64) -> Result<(), Fault> {
    let sql = "UPDATE burst SET state = ?2 WHERE object = ?1 AND state = ?3";
    let row = params![object, DUE, STAGED];
    db.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Records that a replica of an object is lost or corrupt. Without another replica outside the burst tier, the object is staged out again.
pub(crate) fn lost_elsewhere(db: &Connection, object: i64) -> Result<(), Fault> {
    let sql = "SELECT 1 FROM burst, (SELECT node FROM held WHERE object = ?1 \
               UNION ALL SELECT node FROM replica WHERE object = ?1 AND state = ?2) AS has \
               WHERE burst.object = ?1 AND has.node != burst.node \
               AND has.node NOT IN (SELECT node FROM lost WHERE back = 0 UNION ALL SELECT node FROM removed) \
               AND NOT EXISTS (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = has.node)";
    let stored = db.prepare_cached(sql)?.exists(params![object, CURRENT])?;
    match stored {
        true => Ok(()),
        false => stages_out_again(db, object),
    }
}

/// Requests the eviction of an object from the burst tier as soon as the object is staged out.
pub(super) fn evict_when_staged_out(db: &Connection, object: i64) -> Result<(), Fault> {
    let sql = "UPDATE burst SET evict = 1 WHERE object = ?1 RETURNING node, state";
    let mut statement = db.prepare_cached(sql)?;
    let found = statement.query_row([object], |row| {
        Ok((row.get::<_, u32>(0)?, row.get::<_, i64>(1)?))
    });
    match found.optional()? {
        Some((node, STAGED)) => evict_object(db, object, node, 0),
        _ => Ok(()),
    }
}

/// Records that a new replica is stored on a node, if the replica was requested for the burst tier.
pub(crate) fn staged_in(db: &Connection, object: i64, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO burst SELECT object, target, size, ?3, ?4, 0 FROM migration \
               WHERE source = ?5 AND object = ?1 AND target = ?2";
    let row = params![object, node, now, STAGED, NOWHERE];
    db.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Records that an object is no longer on a node of the burst tier.
pub(crate) fn left(db: &Connection, object: i64, node: u32) -> Result<(), Fault> {
    let sql = "DELETE FROM burst WHERE object = ?1 AND node = ?2";
    db.prepare_cached(sql)?.execute(params![object, node])?;
    Ok(())
}

/// A node of the burst tier, and the free bytes of the node's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TierNode {
    pub(crate) node: u32,
    pub(crate) bytes: u64,
    /// Capacity of the whole device in bytes.
    pub(crate) capacity: u64,
}

/// Returns the number of bytes to evict from a node to reach the wanted free space. Files of other programs on the node's device can't be
/// evicted and do not count.
pub(crate) fn to_evict(
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
        let mut statement = db.prepare_cached(&sql)?;
        let sum: i64 = statement.query_row([free.node], |row| row.get(0))?;
        Ok(sum.cast_unsigned())
    };
    let held = sum("burst WHERE node")?;
    let evicting = sum("migration WHERE source")?;
    // These objects are no longer counted as held, but still occupy space.
    let removed =
        sum("removal CROSS JOIN held ON held.object = removal.object WHERE removal.node")?;
    let has = held.saturating_add(removed);
    let capacity = has.saturating_add(free.bytes);
    Ok(limits.to_evict(TierFill {
        capacity,
        used: has,
        evicting: evicting.saturating_add(removed),
        ..fill
    }))
}

/// Frees space on a node by evicting the oldest staged-out objects. If that is not enough, other objects become due for stage-out.
pub(crate) fn make_space(
    db: &Connection,
    shared: &NamesShared,
    free: TierNode,
    now: i64,
) -> Result<(), Fault> {
    let mut wanted = to_evict(db, shared.bursts.limits(), (free, now))?;
    let sql = "SELECT object, size FROM burst WHERE node = ?1 AND state = ?2 \
               AND NOT EXISTS (SELECT 1 FROM migration WHERE migration.object = burst.object) ORDER BY at, object LIMIT ?3";
    for state in [STAGED, WAITS] {
        let mut statement = db.prepare_cached(sql)?;
        let oldest = statement.query_map(params![free.node, state, OBJECTS_MAX], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
        for (object, size) in oldest.collect::<Result<Vec<_>, _>>()? {
            if wanted == 0 {
                return Ok(());
            }
            wanted = wanted.saturating_sub(size);
            match state {
                STAGED => evict_object(db, object, free.node, now)?,
                _ => sooner(db, object, now)?,
            }
        }
    }
    Ok(())
}

/// Makes waiting objects of a node due for stage-out, the oldest first, until their sizes sum up to `bytes` bytes.
pub(crate) fn stage_out_sooner(
    db: &Connection,
    (node, mut bytes): (u32, u64),
    now: i64,
) -> Result<(), Fault> {
    let sql = "SELECT object, size FROM burst WHERE node = ?1 AND state = ?2 ORDER BY at, object LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let oldest = statement.query_map(params![node, WAITS, OBJECTS_MAX], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
    })?;
    for (object, size) in oldest.collect::<Result<Vec<_>, _>>()? {
        if bytes == 0 {
            break;
        }
        bytes = bytes.saturating_sub(size);
        sooner(db, object, now)?;
    }
    Ok(())
}

/// Makes a waiting object due for stage-out now.
fn sooner(db: &Connection, object: i64, now: i64) -> Result<(), Fault> {
    let sql = "UPDATE burst SET state = ?2 WHERE object = ?1";
    db.prepare_cached(sql)?.execute([object, DUE])?;
    migrates_at(db, object, now)
}

/// Handles the tier of a node that joined, if the tier changed. A node that is new in the burst tier, or that the server's database does
/// not know, may already have versions.
pub(crate) fn met(
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
    let sql =
        "DELETE FROM migration WHERE (source = ?1 AND why = ?2) OR (target = ?1 AND why = ?3)";
    db.execute(sql, params![node, EVICT, STAGE_IN])?;
    let sql = "INSERT INTO short SELECT object, ?3, ?2 FROM burst WHERE node = ?1 \
               ON CONFLICT DO UPDATE SET at = min(at, ?2)";
    db.execute(sql, params![node, now, MIGRATIONS])?;
    for sql in [
        "DELETE FROM burst WHERE node = ?1",
        "DELETE FROM space_reservation WHERE node = ?1",
    ] {
        db.execute(sql, [node])?;
    }
    Ok(())
}

fn list(db: &Connection, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO burst SELECT object, ?1, size, ?2, 0, 0 FROM held WHERE node = ?1 AND removed = 0 \
               UNION ALL SELECT replica.object, ?1, held.size, ?2, 0, 0 FROM replica CROSS JOIN held ON held.object = replica.object \
               WHERE replica.node = ?1 AND replica.state = ?3 AND held.removed = 0";
    db.execute(sql, params![node, now, CURRENT])?;
    let sql = "INSERT INTO short SELECT object, ?3, ?2 FROM burst WHERE node = ?1 AND state != 2 \
               ON CONFLICT DO UPDATE SET at = min(at, ?2)";
    db.execute(sql, params![node, now, MIGRATIONS])?;
    Ok(())
}

/// Returns the usage of a node of the burst tier, for display.
pub(crate) fn reported(db: &Connection, node: u32, now: i64) -> Result<v1::BurstFiles, Fault> {
    let (reserved_bytes, reserved_left) = reservations::reported(db, node, now)?;
    let (bytes, left) = (
        sum_of("size"),
        sum_of("CASE WHEN state = 2 THEN 0 ELSE size END"),
    );
    let sql = format!(
        "SELECT count(*), {bytes}, coalesce(sum(state = 2), 0), {left}, \
         coalesce(min(CASE WHEN state = 2 THEN NULL ELSE at END), 0) FROM burst WHERE node = ?1"
    );
    let mut statement = db.prepare_cached(&sql)?;
    Ok(statement.query_row([node], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
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
pub(super) fn places(db: &Connection, vnode: &InodeRecord) -> Result<Vec<(u64, i64)>, Fault> {
    if !vnode.has_parts() {
        return Ok(vec![(vnode.object, vnode.node)]);
    }
    let parts = super::parts::parts(db, vnode.object)?.into_iter();
    let parts = parts.flat_map(|(_, parts)| parts);
    Ok(parts.map(|part| (part.object, part.node.into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::quota::used;
    use crate::names::{Caller, Names as _, NamesRequest, SqliteNames, ids};
    use crate::replicas::{self, LostNodes};
    use crate::{clock, corruption, migrations};
    use std::time::Duration;
    use tidemill_model::id::{Inode, NodeId, ObjectId};
    use tidemill_model::label::Corrupt;
    use tidemill_wire::v1::name_op::Op;

    /// Largest sum of bytes that `sum_of` returns.
    const MOST: u64 = 9_200_000_000_000_000_000;

    /// A namespace with a node of the burst tier, number 3.
    struct Tier {
        names: SqliteNames,
        ino: u64,
        object: u64,
        _directory: tempfile::TempDir,
    }

    impl Tier {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
            names.add_node(NodeId(3));
            names.shared().bursts.set([3].into());
            names.shared().leaving.set_moving();
            let all = names
                .database()
                .write_blocking(|db| ids::reserve_for(db, &Caller::root(), 10, 10));
            let (ino, object) = all.unwrap();
            Self {
                names,
                ino,
                object,
                _directory: directory,
            }
        }

        fn ask(&self, op: Op) {
            let request = NamesRequest {
                caller: Caller::root(),
                session: 5,
                ops: vec![v1::NameOp { op: Some(op) }],
                ..NamesRequest::default()
            };
            let answer = self.names.apply_blocking(request).unwrap().remove(0).result;
            assert!(!matches!(answer, Some(Answer::Error(_))), "{answer:?}");
        }

        /// Creates and closes a file on the node of the burst tier; returns its object.
        fn closed(&mut self, size: u64) -> u64 {
            let (ino, object) = (self.ino, self.object);
            (self.ino, self.object) = (ino + 1, object + 1);
            self.ask(Op::Create(v1::Create {
                parent: 1,
                name: ino.to_string().into_bytes(),
                kind: v1::Kind::File.into(),
                mode: 0o644,
                ino,
                object,
                ..v1::Create::default()
            }));
            self.ask(Op::Seal(v1::Seal {
                ino,
                object,
                size,
                ..v1::Seal::default()
            }));
            object
        }

        fn write<T: Send + 'static>(
            &self,
            work: impl FnOnce(&Tx<'_>) -> Result<T, Fault> + Send + 'static,
        ) -> Result<T, Fault> {
            let shared = self.names.shared().clone();
            self.names.database().write_blocking(move |db| {
                let root = Caller::root();
                work(&Tx::new(db, &shared, &root, 0, clock::now_ns()))
            })
        }

        fn sql(&self, sql: String) {
            let done = self.write(move |tx| Ok(tx.db.execute_batch(&sql)?));
            done.unwrap();
        }

        fn stage_out(&self, until: i64) -> v1::StageReply {
            let request = v1::StageRequest {
                path: b"/".to_vec(),
                until,
                ..v1::StageRequest::default()
            };
            let staged = self.write(move |tx| migrations::files::stage_out(tx, &request));
            staged.unwrap().unwrap()
        }

        fn staged_out(&self, object: u64) -> bool {
            self.names
                .database()
                .read(|db| is_staged_out(db, object))
                .unwrap()
        }
    }

    #[test]
    fn stage_out_waits_only_for_files_closed_before_request() {
        let mut tier = Tier::new();
        let first = tier.closed(5);
        let asked = tier.stage_out(0);
        assert_eq!((asked.objects, asked.bytes), (1, 5));
        tier.closed(7);
        let again = tier.stage_out(asked.until);
        assert_eq!((again.objects, again.bytes), (1, 5), "{again:?}");
        assert_eq!((again.files, again.until), (2, asked.until));
        assert_eq!(tier.stage_out(0).bytes, 12);
        // The clock was set back after the seal.
        let late = clock::now_ns() + 3_600_000_000_000;
        tier.sql(format!(
            "UPDATE version SET sealed_at = {late} WHERE object = {first}"
        ));
        assert_eq!(tier.stage_out(0).until, late);
        assert_eq!(tier.stage_out(late).bytes, 12);
    }

    #[test]
    fn stage_out_by_inode_waits_and_refuses_eviction_and_stage_in() {
        let tier = Tier::new();
        let by_number = v1::StageRequest {
            directory: 1,
            ..v1::StageRequest::default()
        };
        let free = v1::StageRequest {
            evict: true,
            ..by_number.clone()
        };
        let staged = tier.write(move |tx| migrations::files::stage_out(tx, &free));
        assert!(matches!(staged, Err(Fault::Malformed(_))), "{staged:?}");
        let stage_in = v1::StageIn::default();
        let request = v1::StageRequest {
            stage_in: Some(stage_in.clone()),
            ..by_number.clone()
        };
        let brought = tier
            .write(move |tx| migrations::files::stage_in(tx, (&request, &stage_in), (&[], &[])));
        assert!(matches!(brought, Err(Fault::Malformed(_))), "{brought:?}");
        let waited = tier.write(move |tx| migrations::files::stage_out(tx, &by_number));
        assert!(matches!(waited, Ok(Ok(_))), "{waited:?}");
    }

    #[test]
    fn burst_sums_saturate_for_files_of_huge_total_length() {
        let mut tier = Tier::new();
        tier.sql(format!(
            "INSERT INTO space_reservation(reservation, ino, node, bytes, uid, bounded, since, until) VALUES (1, 1, 3, 100, 0, 0, 0, {0});
             INSERT INTO reserved_object(object, reservation, node) VALUES ({1}, 1, 3), ({2}, 1, 3), ({3}, 1, 3)",
            i64::MAX,
            tier.object,
            tier.object + 1,
            tier.object + 2,
        ));
        let size = i64::MAX.unsigned_abs();
        let objects = [size, size, 7].map(|size| tier.closed(size));
        let free = TierNode {
            node: 3,
            bytes: 0,
            capacity: 1 << 40,
        };
        let counted = tier.write(move |tx| {
            let (db, now) = (tx.db, tx.now);
            let reservations = reservations::all(db, now)?;
            assert_eq!(reservations[0].reservation.used, 1 << 62);
            let space = reservations::space(db, (3, 0), (&reservations, now))?;
            assert_eq!(space.unheard, MOST);
            let staged = reported(db, 3, now)?;
            assert_eq!((staged.objects, staged.bytes_left), (3, MOST));
            assert!(to_evict(db, TierLimits::default(), (free, now))? > 0);
            for object in objects {
                tx.stage_in(object, 4)?;
                staged_out(db, object.cast_signed())?;
            }
            assert_eq!((tx.evictable(3)?, tx.coming_to_burst(4)?), (MOST, MOST));
            assert_eq!(used(db, Inode::ROOT.0)?.0, MOST);
            migrations::labels::pending(db)
        });
        let bytes: Vec<u64> = counted.unwrap().iter().map(|one| one.bytes).collect();
        assert_eq!(bytes, [MOST]);
        // Evicted objects no longer count.
        tier.sql(format!(
            "INSERT INTO removal(node, object, queued) VALUES (3, {0}, 0), (3, {1}, 0); DELETE FROM removal",
            objects[0], objects[1]
        ));
        let left = tier.write(|tx| reservations::all(tx.db, tx.now)).unwrap();
        assert_eq!(left[0].reservation.used, 0);
    }

    /// Makes the replica of the object on node 0 unavailable, in the way that `way` selects.
    fn lose(tier: &Tier, way: u32, object: u64) {
        let shared = tier.names.shared().clone();
        let lost = tier.write(move |tx| {
            let (db, now) = (tx.db, tx.now);
            let what = Corrupt {
                object: ObjectId(object),
                what: "has changed".into(),
            };
            let member = |node, burst| migrations::NodeProperties {
                node,
                store: true,
                memory: false,
                burst,
                up: burst,
            };
            match way {
                0 => corruption::found(db, &shared, NodeId(0), &[what], now).map(drop),
                1 => {
                    let mut losses = LostNodes::new(db, Duration::ZERO)?;
                    let looks = losses.renew(&[0].into(), &[]);
                    looks
                        .into_iter()
                        .try_for_each(|look| replicas::look(db, look, now))
                }
                _ => {
                    let members = [member(0, false), member(1, false), member(3, true)];
                    let gone = migrations::remove(db, &shared, (0, &members), (true, now))?;
                    assert_eq!(gone.unwrap(), 1);
                    Ok(())
                }
            }
        });
        lost.unwrap();
    }

    #[test]
    fn version_whose_stored_replica_is_lost_is_staged_out_again() {
        for way in 0..3 {
            // The object was written to the tier or staged in, and has one or two stored replicas.
            for (brought, twice) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut tier = Tier::new();
                let object = tier.closed(5);
                tier.sql(match brought {
                    false => format!("INSERT INTO replica VALUES ({object}, 0, 1)"),
                    true => format!(
                        "INSERT INTO replica VALUES ({object}, 3, 1); UPDATE version SET node = 0;
                         UPDATE inode SET node = 0 WHERE object = {object}"
                    ),
                });
                if twice {
                    tier.sql(format!("INSERT INTO replica VALUES ({object}, 1, 1)"));
                }
                let done = tier.write(move |tx| staged_out(tx.db, object.cast_signed()));
                done.unwrap();
                tier.sql("DELETE FROM short".into());
                assert!(tier.staged_out(object));
                lose(&tier, way, object);
                let what = format!("way {way}, brought {brought}, twice {twice}");
                assert_eq!(tier.staged_out(object), twice, "{what}");
                assert_eq!(tier.stage_out(0).objects, u64::from(!twice), "{what}");
                let looked = tier.write(|tx| {
                    let sql = "SELECT count(*) FROM short WHERE has > 0";
                    Ok(tx.db.query_row(sql, [], |row| row.get::<_, i64>(0))?)
                });
                assert_eq!(looked.unwrap(), 1, "{what}");
            }
        }
    }
}
