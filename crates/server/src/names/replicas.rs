//! Replicas of versions in the namespace: the wanted number of replicas, and the nodes that have replicas.
//!
//! All replicas of a version are one object with one id. The tables `inode` and `version` have the first replica, also of a version with
//! only one replica; the table `replica` has the other replicas. The table `short` lists versions that may have too few replicas;
//! [`crate::replicas`] processes the table.

use super::attribute::DIRECTORY_REPLICAS;
use super::fault::Fault;
use super::parts;
use super::transaction::Tx;
use super::vnode::InodeRecord;
use crate::corruption;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};
use tidemill_model::layout::{self, Layout, Part};
use tidemill_model::replicas::{REPLICAS_MAX, ReplicaState, WantedReplicas};
use tidemill_wire::v1::name_result::Result as Answer;

/// State of a replica in progress (`replica.state`), and (`CURRENT`) of an existing replica.
pub(crate) const COMING: i64 = 0;
pub(crate) const CURRENT: i64 = 1;

impl Tx<'_> {
    /// Returns the wanted number of replicas of a file's current version.
    pub(crate) fn replicas_wanted(
        &self,
        vnode: &InodeRecord,
        named: &str,
    ) -> Result<WantedReplicas, Fault> {
        if !named.is_empty() {
            return named.parse().map_err(Fault::BadReplicas);
        }
        // An object that is not a file's version is deleted soon.
        if vnode.version == 0 {
            return Ok(WantedReplicas::ONE);
        }
        let directories = if self.shared.directory_replicas() {
            self.directory_replicas(vnode.ino)?
        } else {
            None
        };
        Ok(directories.unwrap_or_else(|| self.shared.replicas()))
    }

    fn directory_replicas(&self, ino: u64) -> Result<Option<WantedReplicas>, Fault> {
        self.directory_attribute(&self.directory_of(ino)?, DIRECTORY_REPLICAS)
    }

    /// Requests the wanted replicas of a version that was just recorded.
    pub(crate) fn want_replicas(&self, vnode: &InodeRecord, now: bool) -> Result<(), Fault> {
        let at = if now { AT_ONCE } else { self.now };
        if !vnode.has_parts() {
            return look_again(self.db, vnode.object, at);
        }
        let parts = parts::parts(self.db, vnode.object)?;
        let parts = parts.into_iter().flat_map(|(_, parts)| parts);
        for part in parts {
            look_again(self.db, part.object, at)?;
        }
        Ok(())
    }

    /// Returns the answer for a caller that has sealed a version: done, or wait for the replicas that are being created. Callers do not
    /// wait for replicas that can't be created at present.
    pub(crate) fn sealed_with(
        &self,
        vnode: &InodeRecord,
        wanted: WantedReplicas,
    ) -> Result<Answer, Fault> {
        let attr = vnode.attr();
        if !wanted.now || wanted.replicas < 2 {
            return Ok(Answer::Attr(attr));
        }
        let sql = "SELECT 1 FROM held CROSS JOIN short ON short.object = held.object AND at <= ?2 \
                   WHERE (held.object = ?1 OR held.object IN (SELECT part FROM part WHERE part.object = ?1)) \
                   AND removed = 0 AND replicas > 1 + (SELECT count(*) FROM replica WHERE replica.object = held.object AND state = ?3)";
        let row = params![vnode.object.cast_signed(), self.now, CURRENT];
        let waits = self.db.prepare_cached(sql)?.exists(row)?;
        Ok(if waits {
            Answer::Copying(attr)
        } else {
            Answer::Attr(attr)
        })
    }

    /// Returns the wanted number of replicas of a version, and the nodes with another replica or a replica in progress.
    pub(crate) fn replicas_of(
        &self,
        object: u64,
    ) -> Result<(u32, Vec<(u32, ReplicaState)>), Fault> {
        let sql = "SELECT replicas FROM version WHERE object = ?1";
        let mut statement = self.db.prepare_cached(sql)?;
        let wanted = statement.query_row([object.cast_signed()], |row| row.get(0));
        Ok((wanted.optional()?.unwrap_or(1), others(self.db, object)?))
    }

    /// Returns the node from which the caller should read an object: the first node. If the first node does not respond, or the
    /// caller avoids that node, the function returns a node with another replica.
    pub(crate) fn readable(&self, object: u64, first: u32, avoid: &[u32]) -> Result<u32, Fault> {
        let corrupt = self.shared.corruption() && corruption::is(self.db, object, first)?;
        if object == 0 || (self.shared.answers(first) && !avoid.contains(&first) && !corrupt) {
            return Ok(first);
        }
        let others = others(self.db, object)?.into_iter();
        let others = others.filter(|(_, state)| *state == ReplicaState::Current);
        let all: Vec<u32> = std::iter::once(first)
            .filter(|_| !corrupt)
            .chain(others.map(|(node, _)| node))
            .collect();
        if all.is_empty() {
            return Err(self.corrupt(object, first)?);
        }
        let mut better = all.iter().filter(|node| !avoid.contains(node));
        let answering = better.clone().find(|&&node| self.shared.answers(node));
        let is_suspended = |node: &&u32| self.shared.suspensions.is_suspended(**node);
        let up = answering.or_else(|| better.find(|&&node| self.shared.is_up(node)));
        let up = up.or_else(|| all.iter().find(is_suspended));
        Ok(up.copied().unwrap_or(all[0]))
    }

    /// Returns a node that is up and has the corrupt bytes of an object.
    pub(crate) fn corrupt_on(&self, object: u64) -> Result<Option<u32>, Fault> {
        let corrupt = corruption::of(self.db, object)?.into_iter();
        let mut corrupt = corrupt.map(|(node, _)| node);
        Ok(corrupt.find(|&node| self.shared.is_up(node)))
    }

    fn corrupt(&self, object: u64, first: u32) -> Result<Fault, Fault> {
        let corrupt = corruption::of(self.db, object)?;
        let known = corrupt.into_iter().find(|(node, _)| *node == first);
        let sql = "SELECT path FROM held WHERE object = ?1";
        let mut statement = self.db.prepare_cached(sql)?;
        let path = statement.query_row([object.cast_signed()], |row| row.get::<_, Vec<u8>>(0));
        let path = String::from_utf8_lossy(&path.optional()?.unwrap_or_default()).into_owned();
        let what = known.map(|(_, what)| what).unwrap_or_default();
        let fault = Fault::CorruptFile(path, first, what);
        tracing::warn!("{fault}");
        Ok(fault)
    }

    /// Removes the replicas of a version that is being removed. A replica in progress is removed when it is complete.
    pub(crate) fn drop_replicas(&self, object: u64) -> Result<(), Fault> {
        let object = object.cast_signed();
        let sql = "INSERT OR IGNORE INTO removal(object, node, queued) \
                   SELECT object, node, ?2 FROM replica WHERE object = ?1 AND state = ?3";
        self.db
            .prepare_cached(sql)?
            .execute(params![object, self.now, CURRENT])?;
        for sql in [
            "DELETE FROM replica WHERE object = ?1",
            "DELETE FROM short WHERE object = ?1",
            "DELETE FROM migration WHERE object = ?1",
            "DELETE FROM burst WHERE object = ?1 OR object IN (SELECT part FROM part WHERE object = ?1)",
        ] {
            self.db.prepare_cached(sql)?.execute([object])?;
        }
        Ok(())
    }

    /// Deletes the records of corrupt replicas of a version that is being removed, since no replica needs repair.
    pub(crate) fn forget_corruption(&self, object: u64) -> Result<(), Fault> {
        for sql in [
            "DELETE FROM corruption WHERE object = ?1",
            "DELETE FROM short WHERE object = ?1",
        ] {
            self.db
                .prepare_cached(sql)?
                .execute([object.cast_signed()])?;
        }
        Ok(())
    }

    /// Returns the layout of a file as JSON: the value of the attribute `user.tidemill.layout`.
    pub(crate) fn layout(&self, vnode: &InodeRecord) -> Result<String, Fault> {
        let mut reported = json!({
            "layout": "whole",
            "version": vnode.version,
            "size": vnode.size,
            "replicas": self.replicas_of(vnode.object)?.0,
            "parts": [],
        });
        if vnode.object != 0 {
            let layout = self.layout_of(vnode)?;
            if let Layout::Striped(striped) = &layout {
                reported["layout"] = "striped".into();
                reported["unit"] = striped.unit.into();
            }
            if let Layout::Extents(extents) = &layout {
                reported["layout"] = "extents".into();
                reported["extents"] = extents.count().into();
            }
            reported["parts"] = self.reported(&layout).into();
        }
        Ok(reported.to_string())
    }

    fn reported(&self, layout: &Layout) -> Vec<Value> {
        let replica = |replica: &layout::Replica| {
            let leaves = self.shared.leaving.is_emptied(replica.node.0);
            let state = match replica.state {
                ReplicaState::Current if leaves && self.shared.is_up(replica.node.0) => "leaving",
                ReplicaState::Current if self.shared.bursts.has(replica.node.0) => "burst",
                ReplicaState::Coming => "coming",
                ReplicaState::Corrupt => "corrupt",
                _ if self.shared.leaving.is_removed(replica.node.0) => "lost",
                _ if self.shared.is_up(replica.node.0) => "current",
                _ if self.shared.suspensions.is_suspended(replica.node.0) => "suspended",
                _ => "offline",
            };
            json!({ "node": replica.node.0, "state": state })
        };
        let part = |(index, part): (usize, &Part)| {
            let segments = layout.segments_of(index, 0..part.size);
            json!({
                "object": format!("{:016x}", part.object.0),
                "offset": segments.first().map_or(0, |segment| segment.offset),
                "size": part.size,
                "replicas": part.replicas.iter().map(replica).collect::<Vec<_>>(),
            })
        };
        layout.parts().iter().enumerate().map(part).collect()
    }
}

/// Returns the nodes with replicas of an object other than the first replica, including replicas in progress.
pub(crate) fn others(db: &Connection, object: u64) -> Result<Vec<(u32, ReplicaState)>, Fault> {
    let sql = "SELECT replica.node, state, repairing FROM replica LEFT JOIN corruption \
               ON corruption.object = replica.object AND corruption.node = replica.node \
               WHERE replica.object = ?1 ORDER BY replica.node";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([object.cast_signed()], |row| {
        let state = match (row.get(1)?, row.get(2)?) {
            (COMING, _) => ReplicaState::Coming,
            (_, repairing) => of_corruption(repairing),
        };
        Ok((row.get(0)?, state))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the state of an object's first replica.
pub(crate) fn state_of_first(
    db: &Connection,
    object: u64,
    node: u32,
) -> Result<ReplicaState, Fault> {
    let sql = "SELECT repairing FROM corruption WHERE object = ?1 AND node = ?2";
    let mut statement = db.prepare_cached(sql)?;
    let repairing = statement.query_row(params![object.cast_signed(), node], |row| row.get(0));
    Ok(of_corruption(repairing.optional()?))
}

/// Returns the state of an existing replica from the record of its corruption: intact, corrupt, or under repair.
fn of_corruption(repairing: Option<bool>) -> ReplicaState {
    match repairing {
        None => ReplicaState::Current,
        Some(true) => ReplicaState::Coming,
        Some(false) => ReplicaState::Corrupt,
    }
}

/// Schedules a check whether a version has enough replicas. The version is examined among those with only one replica, the most urgent.
pub(crate) fn look_again(db: &Connection, object: u64, at: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO short VALUES (?1, 1, ?2) ON CONFLICT DO UPDATE SET at = min(at, ?2)";
    db.prepare_cached(sql)?
        .execute(params![object.cast_signed(), at])?;
    Ok(())
}

/// Number of current replicas of a version that was just sealed (column `short.has`).
pub(crate) const NEW: i64 = 1;
/// Time when a version is due that a caller waits for (column `short.at`): a time long past.
const AT_ONCE: i64 = 0;
/// Value of the column `short.has` for a version that only has to migrate. No replica is missing, so the version is examined after all
/// versions with too few replicas.
pub(crate) const MIGRATIONS: i64 = REPLICAS_MAX as i64 + 1;
/// Reason of a migration (column `migration.why`).
pub(crate) const DRAIN: i64 = 0;
pub(crate) const MOVE: i64 = 1;
pub(crate) const REBALANCE: i64 = 2;
pub(crate) const EVICT: i64 = 3;
pub(crate) const STAGE_IN: i64 = 4;
/// Value of the column `migration.source` for a new replica that replaces no other replica.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Schedules the examination of an object that has a row in `migration`, or that is to be staged out.
pub(crate) fn migrates_at(db: &Connection, object: i64, at: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO short VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET at = min(at, ?3)";
    db.prepare_cached(sql)?
        .execute(params![object, MIGRATIONS, at])?;
    Ok(())
}

/// Requests that an object migrates from a draining node, after the object was just written there.
pub(crate) fn leaves(db: &Connection, object: u64, node: u32, at: i64) -> Result<(), Fault> {
    let object = object.cast_signed();
    let sql = "INSERT OR IGNORE INTO migration SELECT ?2, object, NULL, size, ?3 FROM held WHERE object = ?1";
    db.prepare_cached(sql)?
        .execute(params![object, node, DRAIN])?;
    migrates_at(db, object, at)
}

/// Makes another replica of a version the first replica, if that replica exists; returns whether it exists.
pub(crate) fn switch_first(db: &Connection, object: u64, first: u32) -> Result<bool, Fault> {
    let row = params![object.cast_signed(), first, CURRENT];
    let sql = "DELETE FROM replica WHERE object = ?1 AND node = ?2 AND state = ?3";
    if db.prepare_cached(sql)?.execute(row)? == 0 {
        return Ok(false);
    }
    for sql in [
        "UPDATE version SET node = ?2 WHERE object = ?1",
        "UPDATE part SET node = ?2 WHERE part = ?1",
        "UPDATE inode SET node = ?2 WHERE object = ?1 AND ino = (SELECT ino FROM version WHERE object = ?1)",
    ] {
        db.prepare_cached(sql)?
            .execute(params![object.cast_signed(), first])?;
    }
    Ok(true)
}

/// Removes one replica of an object, or an object that does not belong to a version.
pub(crate) fn remove_replica(
    db: &Connection,
    object: u64,
    node: u32,
    now: i64,
) -> Result<(), Fault> {
    let row = params![object.cast_signed(), node, now];
    // The mark as corrupt stays until the replica is deleted, so that this replica is not kept instead of another.
    db.prepare_cached("DELETE FROM replica WHERE object = ?1 AND node = ?2")?
        .execute(params![object.cast_signed(), node])?;
    db.prepare_cached("INSERT OR IGNORE INTO removal(object, node, queued) VALUES (?1, ?2, ?3)")?
        .execute(row)?;
    Ok(())
}
