//! Replicas of versions: the wanted number of replicas, and the nodes that have replicas.
//!
//! All replicas of a version are one object with one id. The tables `inode` and `version` have the first replica, also of a version with
//! only one replica; the table `replica` has the other replicas. The row of a replica is written together with the label that creates the
//! replica, and becomes current when the label has succeeded. The row is deleted with the version, whatever the outcome of its label.

use super::nodes::NodeStates;
use super::under_replicated::{AT_ONCE, NEW, look_again, postpone};
use super::{burst, corruption, migrations, object_and_node, removals};
use crate::Connection;
use crate::attribute::DIRECTORY_REPLICAS;
use crate::fault::Fault;
use crate::json::json_list;
use crate::query::{changed, execute, exists, find, rows, unsigned};
use crate::transaction::{Change, Tx};
use crate::vnode::InodeRecord;
use crate::{notes, parts, version, vnode};
use rusqlite::params;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{self, Layout, Part};
use tidemill_model::replicas::{ReplicaState, WantedReplicas};
use tidemill_wire::v1::name_result::Result as Answer;

/// Number of [`ReplicaState::Coming`] in the column `replica.state`, and (`CURRENT`) number of [`ReplicaState::Current`]. The other states
/// follow from other tables.
pub const COMING: i64 = 0;
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
        let waits = exists(self.db, sql, row)?;
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
        let wanted = find(self.db, sql, [object.cast_signed()], |row| row.get(0))?;
        Ok((wanted.unwrap_or(1), others(self.db, object)?))
    }

    /// Returns the node from which the caller should read an object: the first node. If the first node does not respond, or the
    /// caller avoids that node, the function returns a node with another replica.
    pub fn readable(&self, object: u64, first: u32, avoid: &[u32]) -> Result<u32, Fault> {
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
        let path = find(self.db, sql, [object.cast_signed()], |row| {
            row.get::<_, Vec<u8>>(0)
        })?;
        let path = String::from_utf8_lossy(&path.unwrap_or_default()).into_owned();
        let what = known.map(|(_, what)| what).unwrap_or_default();
        let fault = Fault::CorruptFile(path, first, what);
        tracing::warn!("{fault}");
        Ok(fault)
    }

    /// Returns the layout of a file as JSON: the value of the attribute `user.tidemill.layout`.
    pub fn layout(&self, vnode: &InodeRecord) -> Result<String, Fault> {
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
            let leaves = self.shared.nodes.is_emptied(replica.node.0);
            let state = match replica.state {
                ReplicaState::Current if leaves && self.shared.is_up(replica.node.0) => "leaving",
                ReplicaState::Current if self.shared.bursts.has(replica.node.0) => "burst",
                ReplicaState::Coming => "coming",
                ReplicaState::Corrupt => "corrupt",
                _ if self.shared.nodes.is_removed(replica.node.0) => "lost",
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
pub fn others(db: &Connection, object: u64) -> Result<Vec<(u32, ReplicaState)>, Fault> {
    let sql = "SELECT replica.node, state, repairing FROM replica LEFT JOIN corruption \
               ON corruption.object = replica.object AND corruption.node = replica.node \
               WHERE replica.object = ?1 ORDER BY replica.node";
    rows(db, sql, [object.cast_signed()], |row| {
        let state = match (row.get(1)?, row.get(2)?) {
            (COMING, _) => ReplicaState::Coming,
            (_, repairing) => of_corruption(repairing),
        };
        Ok((row.get(0)?, state))
    })
}

/// Returns the state of an object's first replica.
pub(crate) fn state_of_first(
    db: &Connection,
    object: u64,
    node: u32,
) -> Result<ReplicaState, Fault> {
    let sql = "SELECT repairing FROM corruption WHERE object = ?1 AND node = ?2";
    let repairing = find(db, sql, params![object.cast_signed(), node], |row| {
        row.get(0)
    })?;
    Ok(of_corruption(repairing))
}

/// Returns the state of an existing replica from the record of its corruption: intact, corrupt, or under repair.
fn of_corruption(repairing: Option<bool>) -> ReplicaState {
    match repairing {
        None => ReplicaState::Current,
        Some(true) => ReplicaState::Coming,
        Some(false) => ReplicaState::Corrupt,
    }
}

/// Records an existing replica of an object. The table `version` or `part` has the first replica.
pub fn insert(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    let row = params![object.cast_signed(), node, CURRENT];
    let sql = "INSERT OR REPLACE INTO replica VALUES (?1, ?2, ?3)";
    execute(db, sql, row)
}

/// Records that a label is to create a replica on a node. Does nothing if the version was deleted in the meantime.
pub fn coming(db: &Connection, object: u64, node: NodeId) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO replica SELECT object, ?2, ?3 FROM held \
               WHERE object = ?1 AND removed = 0 AND node != ?2";
    execute(db, sql, params![object.cast_signed(), node.0, COMING])
}

/// Deletes the row of a replica; returns whether the replica was known.
fn delete(db: &Connection, object: u64, node: u32) -> Result<bool, Fault> {
    let sql = "DELETE FROM replica WHERE object = ?1 AND node = ?2";
    let row = params![object.cast_signed(), node];
    Ok(changed(db, sql, row)? > 0)
}

/// Deletes the rows of an object's replicas except the first.
pub(super) fn forget(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM replica WHERE object = ?1";
    execute(db, sql, [object.cast_signed()])
}

/// Deletes the rows of the replicas of a version's parts.
pub(super) fn forget_parts(db: &Connection, version: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM replica WHERE object IN (SELECT part FROM part WHERE object = ?1)";
    execute(db, sql, [version.cast_signed()])
}

/// Deletes the rows of the replicas on a node.
pub(super) fn forget_node(db: &Connection, node: u32) -> Result<(), Fault> {
    execute(db, "DELETE FROM replica WHERE node = ?1", [node])
}

/// Returns whether a node has an existing replica of an object other than the first replica.
pub fn is_current(db: &Connection, object: u64, node: u32) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM replica WHERE object = ?1 AND node = ?2 AND state = ?3";
    exists(db, sql, params![object.cast_signed(), node, CURRENT])
}

/// Returns whether the database expects an object on a node, either as the first replica of a version or as another replica.
pub fn is_expected(db: &Connection, object: ObjectId, node: NodeId) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM held WHERE object = ?1 AND node = ?2 \
               UNION ALL SELECT 1 FROM replica WHERE object = ?1 AND node = ?2";
    exists(db, sql, params![object.0.cast_signed(), node.0])
}

/// Returns the nodes with a replica of an object, or a replica in progress.
pub fn nodes_of(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql =
        "SELECT node FROM held WHERE object = ?1 UNION SELECT node FROM replica WHERE object = ?1";
    rows(db, sql, [object.cast_signed()], |row| row.get(0))
}

/// Returns the total size of versions on each node, with all replicas, in bytes.
pub fn bytes_of_nodes(db: &Connection) -> Result<BTreeMap<u32, u64>, Fault> {
    let bytes = burst::sum_of("size");
    let sql = format!(
        "SELECT node, {bytes} FROM (\
         SELECT node, size FROM held WHERE removed = 0 AND node >= 0 \
         UNION ALL SELECT replica.node, held.size FROM replica \
         CROSS JOIN held ON held.object = replica.object) GROUP BY node"
    );
    rows(db, &sql, [], |row| Ok((row.get(0)?, unsigned(row, 1)?)))
}

/// Makes another replica of a version the first replica, if that replica exists; returns whether it exists.
fn switch_first(db: &Connection, object: u64, first: u32) -> Result<bool, Fault> {
    let row = params![object.cast_signed(), first, CURRENT];
    let sql = "DELETE FROM replica WHERE object = ?1 AND node = ?2 AND state = ?3";
    if changed(db, sql, row)? == 0 {
        return Ok(false);
    }
    version::set_node(db, object, first)?;
    parts::set_node(db, object, first)?;
    vnode::set_node(db, object, first)?;
    Ok(true)
}

/// Removes one replica of an object, or an object that does not belong to a version.
pub fn remove_replica(db: &Connection, object: u64, node: u32, now: i64) -> Result<(), Fault> {
    // The mark as corrupt stays until the replica is deleted, so that this replica is not kept instead of another.
    delete(db, object, node)?;
    removals::queue(db, object, node.into(), now)
}

/// Returns the existing replicas of some objects except the first of each. The result includes replicas that are removed as soon as no
/// client reads them. With `moved`, the first replicas are included, too, for callers that may know an earlier first replica.
pub fn of_all(
    db: &Connection,
    objects: &[ObjectId],
    moved: bool,
) -> Result<Vec<(ObjectId, NodeId)>, Fault> {
    let any = "SELECT 1 WHERE EXISTS (SELECT 1 FROM replica) OR EXISTS (SELECT 1 FROM removal)";
    if objects.is_empty() || !(moved || exists(db, any, [])?) {
        return Ok(Vec::new());
    }
    let sql = "SELECT replica.object, node FROM json_each(?1) AS wanted \
               CROSS JOIN replica ON replica.object = wanted.value WHERE state = ?2 AND NOT EXISTS \
               (SELECT 1 FROM corruption WHERE corruption.object = replica.object AND corruption.node = replica.node) \
               UNION SELECT removal.object, node FROM json_each(?1) AS wanted \
               CROSS JOIN removal ON removal.object = wanted.value WHERE label = 0 AND node >= 0 \
               UNION SELECT held.object, node FROM json_each(?1) AS wanted \
               CROSS JOIN held ON held.object = wanted.value WHERE ?3 AND node >= 0 AND NOT EXISTS \
               (SELECT 1 FROM corruption WHERE corruption.object = held.object AND corruption.node = held.node)";
    let key = params![
        json_list(objects.iter().map(|object| object.0)),
        CURRENT,
        moved
    ];
    rows(db, sql, key, object_and_node)
}

/// Returns all nodes with an intact replica of a version, the first replica's node before the others.
pub fn holders(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM held WHERE object = ?1 AND node >= 0";
    let first = find(db, sql, [object.cast_signed()], |row| row.get::<_, u32>(0))?;
    let first = match first {
        Some(first) => Some((first, state_of_first(db, object, first)?)),
        None => None,
    };
    let all = first.into_iter().chain(others(db, object)?);
    let current = all.filter(|(_, state)| *state == ReplicaState::Current);
    let mut nodes: Vec<u32> = current.map(|(node, _)| node).collect();
    // A job may still read the replica there.
    let going = "SELECT node FROM removal WHERE object = ?1 AND label = 0 AND node >= 0 \
                 AND NOT EXISTS (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = removal.node)";
    let going: Vec<u32> = rows(db, going, [object.cast_signed()], |row| row.get(0))?;
    nodes.extend(going);
    Ok(nodes)
}

/// Records the outcome of a label that was to create a replica.
pub fn ended(
    db: &Connection,
    object: ObjectId,
    node: NodeId,
    well: bool,
    (leaving, now): (&NodeStates, i64),
) -> Result<(), Fault> {
    let look = || {
        if leaving.is_emptied(node.0) {
            migrations::leaves(db, object.0, node.0, now)?;
        }
        look_again(db, object.0, now)
    };
    if corruption::repaired(db, object, node, well)? {
        return match well {
            true => look(),
            false => postpone(db, object.0, Some(NEW), now),
        };
    }
    if !well {
        return match delete(db, object.0, node.0)? {
            true => postpone(db, object.0, None, now),
            false => Ok(()),
        };
    }
    let sql = "UPDATE replica SET state = ?3 WHERE object = ?1 AND node = ?2";
    let row = params![object.0.cast_signed(), node.0, CURRENT];
    if changed(db, sql, row)? > 0 {
        notes::copied(db, object.0, node.0)?;
        burst::staged_in(db, object.0, node.0, now)?;
        return look();
    }
    // The version was deleted while the replica was being created.
    remove_replica(db, object.0, node.0, now)
}

/// Removes replicas. If the first replica is removed, another replica becomes the first.
pub(super) fn remove_surplus(
    db: &Connection,
    object: u64,
    (goes, first): (&[NodeId], u32),
    now: i64,
) -> Result<Option<Change>, Fault> {
    let sql = "SELECT ino, node FROM held WHERE object = ?1 AND removed = 0";
    let version = find(db, sql, [object.cast_signed()], |row| {
        Ok((unsigned(row, 0)?, row.get::<_, u32>(1)?))
    })?;
    // The replicas of a version that was deleted in the meantime were deleted with it.
    let Some((ino, was_first)) = version else {
        return Ok(None);
    };
    let mut changed = None;
    for node in goes {
        if node.0 == was_first {
            if !switch_first(db, object, first)? {
                continue;
            }
            changed = Some(Change::Vnode(ino));
        }
        remove_replica(db, object, node.0, now)?;
        notes::copied(db, object, node.0)?;
        migrations::done(db, object, node.0)?;
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteNames;

    #[test]
    fn removed_multipart_version_does_not_hide_replicas_of_other_objects() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let database = names.database();
        let kept = |db: &Connection| {
            db.sql.execute_batch(
                "INSERT INTO removal(object, node, queued) VALUES (7, -1, 0), (8, 2, 0);
                 INSERT INTO replica VALUES (8, 1, 1)",
            )?;
            Ok(())
        };
        database.write_blocking(kept).unwrap();
        let objects = [ObjectId(7), ObjectId(8)];
        let found = database.read(|db| of_all(db, &objects, true)).unwrap();
        assert_eq!(found, [1, 2].map(|node| (ObjectId(8), NodeId(node))));
        assert!(database.read(|db| holders(db, 7)).unwrap().is_empty());
    }
}
