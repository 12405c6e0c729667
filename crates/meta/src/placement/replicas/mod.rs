//! The table `replica`: the state of each object on each node, the wanted state, and the reason.
//!
//! All replicas of a version are one object with one id. The tables `version` and `part` have the first replica of an object, and `replica`
//! has a row for each other replica. The first replica has a row only if it is not intact, leaves its node, is in the burst tier or uses a
//! reservation. The row of a replica is written together with the label that creates the replica, and becomes current when the label has
//! succeeded. Each reason has its own module, and no other module writes the table. Partial indexes serve the queries for due work; therefore
//! these queries contain literals.

pub mod burst;
pub mod corruption;
pub mod migrations;
pub mod removals;
pub mod reservations;

use crate::Connection;
use crate::attribute::DIRECTORY_REPLICAS;
use crate::fault::Fault;
use crate::json::json_list;
use crate::placement::nodes::NodeStates;
use crate::placement::under_replicated::{AT_ONCE, NEW, look_again, postpone};
use crate::placement::{nodes, object_and_node};
use crate::query::{execute, exists, find, rows, stored_enum, unsigned};
use crate::transaction::{Change, Tx};
use crate::vnode::InodeRecord;
use crate::{parts, version, vnode};
use rusqlite::params;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{self, Layout, Part};
use tidemill_model::replicas::{
    ReplicaRecord, ReplicaState, WantedReplicas, WantedState, in_order,
};
use tidemill_wire::v1::name_result::Result as Answer;

stored_enum! {
    /// State of an object on a node (column `state`).
    StoredState {
        /// The node has no complete bytes: a replica is requested, or a client writes the object there within a reservation.
        Absent = 0,
        /// A label creates the replica.
        Coming = 1,
        /// The replica is complete.
        Current = 2,
        /// The content differs from the sealed content.
        Corrupt = 3,
        /// A label recreates the corrupt replica.
        Repairing = 4,
    }
}

stored_enum! {
    /// Wanted state of an object on a node (column `want`).
    Want {
        /// The node keeps the object.
        Keep = 0,
        /// The node keeps the object until there are enough other replicas.
        Leave = 1,
        /// The node removes the object as soon as no client reads it.
        Drop = 2,
    }
}

stored_enum! {
    /// Reason of a wanted state (column `why`).
    Reason {
        /// The node is drained.
        Drain = 0,
        /// A user has requested the move.
        Move = 1,
        /// The cluster is rebalanced.
        Rebalance = 2,
        /// The object is evicted from the burst tier, once it is staged out.
        Evict = 3,
        /// The object is staged in to the burst tier.
        StageIn = 4,
        /// The object belongs to no version, or its version was deleted.
        Delete = 5,
        /// There are enough other replicas.
        Surplus = 6,
    }
}

impl Reason {
    /// Returns the word for the reason in reports.
    pub(in crate::placement) fn word(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Move => "move",
            Self::Rebalance => "rebalance",
            Self::Evict => "evict",
            Self::StageIn => "stage-in",
            Self::Delete => "delete",
            Self::Surplus => "surplus",
        }
    }
}

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
                   AND removed = 0 AND replicas > 1 + (SELECT count(*) FROM replica WHERE replica.object = held.object \
                   AND replica.node != held.node AND want != 2 AND state >= 2)";
        let row = params![vnode.object.cast_signed(), self.now];
        let waits = exists(self.db, sql, row)?;
        Ok(if waits {
            Answer::Copying(attr)
        } else {
            Answer::Attr(attr)
        })
    }

    /// Returns the wanted number of replicas of a version.
    pub(crate) fn replicas_of(&self, object: u64) -> Result<u32, Fault> {
        let sql = "SELECT replicas FROM version WHERE object = ?1";
        let wanted = find(self.db, sql, [object.cast_signed()], |row| row.get(0))?;
        Ok(wanted.unwrap_or(1))
    }

    /// Returns the node from which the caller should read an object: the first node. If the first node does not respond, or the
    /// caller avoids that node, the function returns a node with another replica.
    pub fn readable(&self, object: u64, first: u32, avoid: &[u32]) -> Result<u32, Fault> {
        let corrupt = self.shared.corruption() && corruption::is(self.db, object, first)?;
        if object == 0 || (self.shared.answers(first) && !avoid.contains(&first) && !corrupt) {
            return Ok(first);
        }
        let all = all(self.db, object, NodeId(first))?.into_iter();
        let all = all.filter(|(_, state)| *state == ReplicaState::Current);
        let all: Vec<u32> = all.map(|(node, _)| node.0).collect();
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
            "replicas": self.replicas_of(vnode.object)?,
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

/// Returns the records of an object, ordered by node.
pub(in crate::placement) fn of(db: &Connection, object: u64) -> Result<Vec<ReplicaRecord>, Fault> {
    let sql = "SELECT node, state, want, why, target, tier IS 2, label != 0 FROM replica \
               WHERE object = ?1 AND node >= 0 ORDER BY node";
    rows(db, sql, [object.cast_signed()], |row| {
        let why: Option<Reason> = row.get(3)?;
        let target: Option<u32> = row.get(4)?;
        Ok(ReplicaRecord {
            node: NodeId(row.get(0)?),
            state: match row.get(1)? {
                StoredState::Absent => None,
                StoredState::Coming | StoredState::Repairing => Some(ReplicaState::Coming),
                StoredState::Current => Some(ReplicaState::Current),
                StoredState::Corrupt => Some(ReplicaState::Corrupt),
            },
            want: match row.get(2)? {
                Want::Keep => WantedState::Keep,
                Want::Leave => WantedState::Leave {
                    target: target.map(NodeId),
                    anywhere: matches!(why, Some(Reason::Drain | Reason::Evict)),
                },
                Want::Drop => WantedState::Drop {
                    labelled: row.get(6)?,
                },
            },
            requested: why == Some(Reason::StageIn),
            staged_out: row.get(5)?,
        })
    })
}

/// Returns all nodes with a replica of an object, including replicas in progress. The first replica's node is the first.
pub fn all(
    db: &Connection,
    object: u64,
    first: NodeId,
) -> Result<Vec<(NodeId, ReplicaState)>, Fault> {
    Ok(in_order(first, &of(db, object)?))
}

/// Records an existing replica of an object that is to be kept. The table `version` or `part` has the first replica.
pub fn insert(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    let sql = "INSERT INTO replica(object, node, state) VALUES (?1, ?2, 2) \
               ON CONFLICT DO UPDATE SET state = 2, want = 0, why = NULL, label = 0, detail = NULL";
    execute(db, sql, params![object.cast_signed(), node])
}

/// Returns whether the first replica of an object is on a node of `given` that does not hold the object.
pub fn is_misplaced(
    db: &Connection,
    object: u64,
    (holders, given): (&[u32], &[u32]),
) -> Result<bool, Fault> {
    let sql = "SELECT node FROM held WHERE object = ?1 AND removed = 0";
    let first = find(db, sql, [object.cast_signed()], |row| row.get::<_, i64>(0))?;
    let first = first.and_then(|first| u32::try_from(first).ok());
    Ok(first.is_some_and(|first| given.contains(&first) && !holders.contains(&first)))
}

/// Returns the paths of stored versions whose nodes are all in `given` if none of these nodes has the object according to `has`. A path is the
/// present one of the file, or that of the version when it was written.
pub fn lost(
    db: &Connection,
    given: &[u32],
    has: impl Fn(u64, u32) -> bool,
) -> Result<Vec<Vec<u8>>, Fault> {
    let sql = "SELECT object, node, ino, path FROM held WHERE removed = 0 AND node >= 0";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut others = db
        .sql
        .prepare_cached("SELECT node FROM replica WHERE object = ?1 AND state > 1 AND want != 2")?;
    let mut rows = statement.query([])?;
    let mut lost = Vec::new();
    while let Some(row) = rows.next()? {
        let object = row.get::<_, i64>(0)?.cast_unsigned();
        let first = row.get::<_, i64>(1)?;
        let holders = others.query_map([object.cast_signed()], |row| row.get::<_, i64>(0))?;
        let holders = holders.chain([Ok(first)]);
        let holders: Vec<u32> = holders
            .filter_map(|node| node.map(|node| u32::try_from(node).ok()).transpose())
            .collect::<Result<_, _>>()?;
        let all_given = holders.iter().all(|node| given.contains(node));
        if all_given && !holders.iter().any(|&node| has(object, node)) {
            let ino = row.get::<_, i64>(2)?.cast_unsigned();
            let stored: Vec<u8> = row.get(3)?;
            lost.push(crate::path_of(db, ino)?.unwrap_or(stored));
        }
    }
    Ok(lost)
}

/// Makes a node that holds an object the node of the first replica.
pub fn place_on(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    insert(db, object, node)?;
    switch_first(db, object, node)?;
    settle(db, object)
}

/// Records that a label is to create a replica on a node, or to recreate the node's corrupt replica. Does nothing if the version was deleted
/// in the meantime.
pub fn begun(db: &Connection, object: u64, node: NodeId) -> Result<(), Fault> {
    let sql = "INSERT INTO replica(object, node, state, size) SELECT object, ?2, 1, size FROM held \
               WHERE object = ?1 AND removed = 0 AND (node != ?2 OR EXISTS \
               (SELECT 1 FROM replica WHERE replica.object = ?1 AND replica.node = ?2 AND state = 3)) \
               ON CONFLICT DO UPDATE SET state = iif(state = 3, 4, 1) WHERE state IN (0, 3) AND want != 2";
    execute(db, sql, params![object.cast_signed(), node.0])
}

/// Deletes the rows of an object that say no more than the absence of a row: no bytes and no request, or an intact first replica.
pub(in crate::placement) fn settle(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM replica WHERE object = ?1 AND want = 0 AND why IS NULL AND tier IS NULL AND reservation IS NULL \
               AND (state = 0 OR state = 2 AND node = (SELECT node FROM held WHERE held.object = ?1))";
    execute(db, sql, [object.cast_signed()])
}

/// Deletes such rows of all objects on a node.
pub(in crate::placement) fn settle_node(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "DELETE FROM replica WHERE want != 2 AND node = ?1 AND want = 0 AND why IS NULL AND tier IS NULL \
               AND reservation IS NULL AND (state = 0 OR state = 2 AND EXISTS \
               (SELECT 1 FROM held WHERE held.object = replica.object AND held.node = ?1))";
    execute(db, sql, [node])
}

/// Removes all replicas of a deleted version that have a row. A replica in progress is removed when it is complete.
pub(in crate::placement) fn forget(db: &Connection, object: u64, now: i64) -> Result<(), Fault> {
    forget_all(db, "object = ?1", (object, now))?;
    // The parts keep their bytes until the version is no longer used.
    let sql = "UPDATE replica SET tier = NULL WHERE tier IS NOT NULL AND object IN (SELECT part FROM part WHERE object = ?1)";
    execute(db, sql, [object.cast_signed()])
}

/// Removes all replicas of a version's parts that have a row.
pub(in crate::placement) fn forget_parts(
    db: &Connection,
    version: u64,
    now: i64,
) -> Result<(), Fault> {
    let parts = "object IN (SELECT part FROM part WHERE object = ?1)";
    forget_all(db, parts, (version, now))
}

fn forget_all(db: &Connection, objects: &str, (object, now): (u64, i64)) -> Result<(), Fault> {
    let id = object.cast_signed();
    let sql = format!("DELETE FROM replica WHERE {objects} AND want != 2 AND state < 2");
    execute(db, &sql, [id])?;
    let sql = format!(
        "UPDATE replica SET since = iif(want = 2, since, ?2), want = 2, why = 5, \
         state = 2, target = NULL, tier = NULL, detail = NULL WHERE {objects} AND (want != 2 OR state != 2)"
    );
    execute(db, &sql, params![id, now])
}

/// Deletes the rows of a node that was removed from the cluster.
pub(in crate::placement) fn forget_node(db: &Connection, node: u32) -> Result<(), Fault> {
    execute(
        db,
        "DELETE FROM replica WHERE node = ?1 AND want = 2",
        [node],
    )?;
    execute(
        db,
        "DELETE FROM replica WHERE node = ?1 AND want != 2",
        [node],
    )
}

/// Returns whether a node has an existing replica of an object other than the first replica.
pub fn is_current(db: &Connection, object: u64, node: u32) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM replica WHERE object = ?1 AND node = ?2 AND want != 2 AND state >= 2 \
               AND node != (SELECT node FROM held WHERE held.object = ?1)";
    exists(db, sql, params![object.cast_signed(), node])
}

/// Returns whether the database expects an object on a node, either as the first replica of a version or as another replica.
pub fn is_expected(db: &Connection, object: ObjectId, node: NodeId) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM held WHERE object = ?1 AND node = ?2 \
               UNION ALL SELECT 1 FROM replica WHERE object = ?1 AND node = ?2 AND want != 2 AND state > 0";
    exists(db, sql, params![object.0.cast_signed(), node.0])
}

/// Returns the nodes with a replica of an object, or a replica in progress.
pub fn nodes_of(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM held WHERE object = ?1 \
               UNION SELECT node FROM replica WHERE object = ?1 AND want != 2 AND state > 0";
    rows(db, sql, [object.cast_signed()], |row| row.get(0))
}

/// Returns the total size of versions on each node, with all replicas, in bytes.
pub fn bytes_of_nodes(db: &Connection) -> Result<BTreeMap<u32, u64>, Fault> {
    let bytes = burst::sum_of("size");
    let sql = format!(
        "SELECT node, {bytes} FROM (\
         SELECT node, size FROM held WHERE removed = 0 AND node >= 0 \
         UNION ALL SELECT replica.node, held.size FROM replica \
         CROSS JOIN held ON held.object = replica.object AND held.node != replica.node WHERE want != 2 AND state > 0) GROUP BY node"
    );
    rows(db, &sql, [], |row| Ok((row.get(0)?, unsigned(row, 1)?)))
}

/// Makes another replica of a version the first replica, if that replica exists; returns whether it exists.
fn switch_first(db: &Connection, object: u64, first: u32) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM replica WHERE object = ?1 AND node = ?2 AND state = 2 AND want != 2";
    if !exists(db, sql, params![object.cast_signed(), first])? {
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
    removals::queue(db, object, node.into(), now)
}

/// Returns the existing replicas of some objects except the first of each. The result includes replicas that are removed as soon as no
/// client reads them. With `moved`, the first replicas are included, too, for callers that may know an earlier first replica.
pub fn of_all(
    db: &Connection,
    objects: &[ObjectId],
    moved: bool,
) -> Result<Vec<(ObjectId, NodeId)>, Fault> {
    if objects.is_empty() || !(moved || exists(db, "SELECT 1 FROM replica LIMIT 1", [])?) {
        return Ok(Vec::new());
    }
    let sql = "SELECT replica.object, node FROM json_each(?1) AS wanted \
               CROSS JOIN replica ON replica.object = wanted.value WHERE state = 2 AND label = 0 AND node >= 0 \
               UNION SELECT held.object, held.node FROM json_each(?1) AS wanted \
               CROSS JOIN held ON held.object = wanted.value WHERE ?2 AND held.node >= 0 AND NOT EXISTS \
               (SELECT 1 FROM replica WHERE replica.object = held.object AND replica.node = held.node AND state >= 3)";
    let key = params![json_list(objects.iter().map(|object| object.0)), moved];
    rows(db, sql, key, object_and_node)
}

/// Returns all nodes with an intact replica of a version, the first replica's node before the others.
pub fn holders(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM held WHERE object = ?1 AND node >= 0";
    let first = find(db, sql, [object.cast_signed()], |row| {
        row.get(0).map(NodeId)
    })?;
    let found = of(db, object)?;
    let all = first.map(|first| in_order(first, &found));
    let current = all.into_iter().flatten();
    let current = current.filter(|(_, state)| *state == ReplicaState::Current);
    // A job may still read the replica there.
    let going = found.iter().filter(|row| row.is_readable_until_removal());
    let going = going.map(|row| row.node);
    Ok(current
        .map(|(node, _)| node)
        .chain(going)
        .map(|node| node.0)
        .collect())
}

/// Returns whether a node has the first replica of an object that belongs to a version which was not deleted.
fn is_first(db: &Connection, object: u64, node: u32) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM held WHERE object = ?1 AND node = ?2 AND removed = 0";
    exists(db, sql, params![object.cast_signed(), node])
}

/// Records the outcome of a label that was to create a replica.
pub fn ended(
    db: &Connection,
    object: ObjectId,
    node: NodeId,
    well: bool,
    (leaving, now): (&NodeStates, i64),
) -> Result<(), Fault> {
    let (id, key) = (object.0, params![object.0.cast_signed(), node.0]);
    let sql = "SELECT state, why FROM replica WHERE object = ?1 AND node = ?2 AND want != 2";
    let row = find(db, sql, key, |row| {
        Ok((
            row.get::<_, StoredState>(0)?,
            row.get::<_, Option<Reason>>(1)?,
        ))
    })?;
    match row {
        Some((StoredState::Repairing, _)) if !well => {
            execute(
                db,
                "UPDATE replica SET state = 3 WHERE object = ?1 AND node = ?2",
                key,
            )?;
            return postpone(db, id, Some(NEW), now);
        }
        Some((_, why)) if !well => {
            // A request for a replica on this node stays.
            let sql = match why {
                Some(Reason::StageIn) => {
                    "UPDATE replica SET state = 0 WHERE object = ?1 AND node = ?2 AND state = 1"
                }
                _ => "DELETE FROM replica WHERE object = ?1 AND node = ?2 AND state = 1",
            };
            execute(db, sql, key)?;
            return postpone(db, id, None, now);
        }
        // The version was deleted while the replica was being created.
        None if well && !is_first(db, id, node.0)? => {
            return remove_replica(db, id, node.0, now);
        }
        None => return Ok(()),
        Some((state, _)) => {
            let sql = "UPDATE replica SET state = 2, detail = NULL WHERE object = ?1 AND node = ?2";
            execute(db, sql, key)?;
            if state != StoredState::Repairing {
                burst::staged_in(db, id, node.0, now)?;
            }
            settle(db, id)?;
        }
    }
    if leaving.is_emptied(node.0) {
        migrations::leaves(db, id, node.0, now)?;
    }
    look_again(db, id, now)
}

/// Removes replicas. If the first replica is removed, another replica becomes the first.
pub(in crate::placement) fn remove_surplus(
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
        let sql = "SELECT size FROM replica WHERE object = ?1 AND node = ?2 AND want = 1";
        let left = find(db, sql, params![object.cast_signed(), node.0], |row| {
            row.get(0)
        })?;
        removals::queue_surplus(db, object, node.0, now)?;
        if let Some(size) = left {
            nodes::count_left(db, node.0, size)?;
        }
    }
    settle(db, object)?;
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
                "INSERT INTO replica(object, node, state, want) VALUES (7, -1, 2, 2), (8, 2, 2, 2), (8, 1, 2, 0)",
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
