//! Objects that nodes are to remove. The list is durable, and is written in the transaction that makes the objects garbage. An object leaves
//! the list when the label that removes the object has succeeded. A repeated removal is no error, and an object that could not be removed
//! becomes part of another label.

use super::nodes::NodeStates;
use super::replicas::CURRENT;
use super::{corruption, migrations, replicas, under_replicated};
use crate::Connection;
use crate::fault::Fault;
use crate::json::json_list;
use crate::notes;
use crate::query::{execute, rows, unsigned};
use crate::vnode::NO_NODE;
use rusqlite::params;
use tidemill_model::id::{LabelId, NodeId, ObjectId};

/// Minimum time in nanoseconds between listing and removal, so that a client that has just looked up the object can open it.
pub const REST_NS: i64 = 1_000_000_000;
/// Pause in nanoseconds before another attempt to remove an object.
const AGAIN_NS: i64 = 30 * 1_000_000_000;
/// Maximum number of objects that one label removes.
const OBJECTS_MAX: u32 = 1024;

/// Queues the removal of an object from a node. A version of several objects has the node `NO_NODE`.
pub fn queue(db: &Connection, object: u64, node: i64, now: i64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO removal(object, node, queued) VALUES (?1, ?2, ?3)";
    let row = params![object.cast_signed(), node, now];
    execute(db, sql, row)
}

/// Queues the removal of all replicas of an object except the first.
pub(super) fn queue_replicas(db: &Connection, object: u64, now: i64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO removal(object, node, queued) \
               SELECT object, node, ?2 FROM replica WHERE object = ?1 AND state = ?3";
    let row = params![object.cast_signed(), now, CURRENT];
    execute(db, sql, row)
}

/// Queues the removal of all replicas of a version's parts.
pub(super) fn queue_parts(db: &Connection, version: u64, now: i64) -> Result<(), Fault> {
    for sql in [
        "INSERT OR IGNORE INTO removal(object, node, queued) \
         SELECT part, node, ?2 FROM part WHERE object = ?1",
        "INSERT OR IGNORE INTO removal(object, node, queued) SELECT replica.object, replica.node, ?2 FROM part \
         CROSS JOIN replica ON replica.object = part.part WHERE part.object = ?1 AND state = 1",
    ] {
        execute(db, sql, params![version.cast_signed(), now])?;
    }
    Ok(())
}

/// Cancels the removal of an object from a node, if the removal is queued.
pub fn cancel(db: &Connection, object: u64, node: i64) -> Result<(), Fault> {
    let sql = "DELETE FROM removal WHERE object = ?1 AND node = ?2";
    execute(db, sql, params![object.cast_signed(), node])
}

/// Deletes the queued removals on a node.
pub(super) fn forget_node(db: &Connection, node: u32) -> Result<(), Fault> {
    execute(db, "DELETE FROM removal WHERE node = ?1", [node])
}

/// Returns the nodes with queued removals, and whether the removal of any version of several objects is queued.
pub fn waiting(db: &Connection) -> Result<(Vec<u32>, bool), Fault> {
    // Each step finds the next node in the index, so the number of removals does not matter.
    let sql = "WITH RECURSIVE waiting(node) AS (SELECT min(node) FROM removal UNION ALL \
               SELECT (SELECT min(node) FROM removal WHERE node > waiting.node) FROM waiting WHERE node IS NOT NULL) \
               SELECT node FROM waiting WHERE node IS NOT NULL";
    let nodes: Vec<i64> = rows(db, sql, [], |row| row.get(0))?;
    let with_parts = nodes.contains(&NO_NODE);
    let nodes = nodes
        .into_iter()
        .filter_map(|node| u32::try_from(node).ok());
    Ok((nodes.collect(), with_parts))
}

/// Returns the nodes that are about to remove an object.
pub(super) fn nodes_of(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM removal WHERE object = ?1 AND node >= 0";
    rows(db, sql, [object.cast_signed()], |row| row.get(0))
}

/// Returns the objects of a node after `after` that have no label and were queued in the range of times from `since` to `before`, as many
/// as one label removes. The flag states whether the object still belongs to a version on another node. In that case no client is directed
/// to read the object on this node, and a rule run reads the object on the other node. Only a map task that was sent to this node during
/// the write reads the object here. The rules have compared the rows of the feed up to the number `compared`.
pub fn page(
    db: &Connection,
    (node, after): (u32, ObjectId),
    (before, since): (i64, i64),
    compared: i64,
) -> Result<Vec<(ObjectId, bool)>, Fault> {
    let sql = "SELECT object, EXISTS (SELECT 1 FROM held WHERE held.object = removal.object \
               AND removed = 0) FROM removal WHERE node = ?1 AND object > ?2 AND label = 0 \
               AND queued < ?3 AND queued >= ?4 AND (NOT EXISTS (SELECT 1 FROM rule_run \
               WHERE rule_run.object = removal.object AND state <= 2) \
               AND object NOT IN (SELECT object FROM feed WHERE seq > ?6) OR EXISTS (SELECT 1 FROM held \
               WHERE held.object = removal.object AND removed = 0)) AND NOT EXISTS (SELECT 1 FROM rule_run \
               JOIN label ON label.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
               WHERE rule_run.object = removal.object AND rule_run.state <= 2 AND rule_run.state = 2 \
               AND label.node = removal.node) \
               ORDER BY object LIMIT ?5";
    let after = after.0.cast_signed();
    let key = params![node, after, before, since, OBJECTS_MAX, compared];
    rows(db, sql, key, |row| {
        let object = ObjectId(unsigned(row, 0)?);
        Ok((object, row.get(1)?))
    })
}

/// Records that a label is to remove these objects from a node.
pub fn labelled(
    db: &Connection,
    label: LabelId,
    node: NodeId,
    objects: &[u64],
) -> Result<(), Fault> {
    if objects.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE removal SET label = ?1 WHERE node = ?2 \
               AND object IN (SELECT value FROM json_each(?3))";
    let row = params![
        label.0.cast_signed(),
        node.0,
        json_list(objects.iter().copied())
    ];
    execute(db, sql, row)
}

/// Records the end of a label that was to remove these objects from a node. A failed label may have removed some of the objects.
pub fn ended(
    db: &Connection,
    node: NodeId,
    objects: &[ObjectId],
    failed: Option<&[ObjectId]>,
    (leaving, now): (&NodeStates, i64),
) -> Result<(), Fault> {
    let gone = json_list(failed.unwrap_or(objects).iter().map(|object| object.0));
    corruption::forget_removed(db, node, &gone)?;
    let sql = "DELETE FROM removal WHERE node = ?1 AND object IN (SELECT value FROM json_each(?2))";
    execute(db, sql, params![node.0, gone])?;
    if failed.is_some() {
        let sql = "UPDATE removal SET label = 0, queued = ?3 \
                   WHERE node = ?1 AND object IN (SELECT value FROM json_each(?2))";
        let again = now + AGAIN_NS - REST_NS;
        let row = params![
            node.0,
            json_list(objects.iter().map(|object| object.0)),
            again
        ];
        execute(db, sql, row)?;
        // A report in the meantime may have made this replica the last intact one.
        if corruption::any(db)? {
            for object in objects {
                keep_last_intact(db, object.0, (leaving, now))?;
            }
        }
    }
    Ok(())
}

/// Cancels the removal of a version's replicas if every other replica is corrupt.
pub(super) fn keep_last_intact(
    db: &Connection,
    object: u64,
    (leaving, now): (&NodeStates, i64),
) -> Result<(), Fault> {
    let sql = "SELECT removal.node FROM removal CROSS JOIN held ON held.object = removal.object AND held.removed = 0 \
               WHERE removal.object = ?1 AND removal.label = 0 AND removal.node >= 0 \
               AND NOT EXISTS (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = removal.node) \
               AND EXISTS (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = held.node) \
               AND NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = ?1 AND state = ?2 AND NOT EXISTS \
               (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = replica.node))";
    let key = params![object.cast_signed(), CURRENT];
    let kept: Vec<u32> = rows(db, sql, key, |row| row.get(0))?;
    for node in kept {
        tracing::warn!(
            node,
            "object {object:016x} is not removed: its other replicas are corrupt"
        );
        cancel(db, object, node.into())?;
        replicas::insert(db, object, node)?;
        notes::copied(db, object, node)?;
        if leaving.is_emptied(node) {
            migrations::leaves(db, object, node, now)?;
        }
        under_replicated::look_again(db, object, now)?;
    }
    Ok(())
}
