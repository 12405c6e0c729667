//! Objects that nodes are to remove: rows of `replica` with the wanted state [`replicas::Want::Drop`]. The row is written in the transaction
//! that makes the object garbage, and is deleted when the label that removes the object has succeeded. A repeated removal is no error, and an
//! object that could not be removed becomes part of another label.

use crate::Connection;
use crate::fault::Fault;
use crate::json::json_list;
use crate::placement::nodes::NodeStates;
use crate::placement::replicas::{self, Reason};
use crate::placement::{corruption, migrations, under_replicated};
use crate::query::{execute, find, rows, unsigned};
use crate::vnode::NO_NODE;
use rusqlite::params;
use tidemill_model::id::{LabelId, NodeId, ObjectId};
use tidemill_model::replicas::kept_back;

/// Minimum time in nanoseconds between listing and removal, so that a client that has just looked up the object can open it.
pub const REST_NS: i64 = 1_000_000_000;
/// Pause in nanoseconds before another attempt to remove an object.
const AGAIN_NS: i64 = 30 * 1_000_000_000;
/// Maximum number of objects that one label removes.
const OBJECTS_MAX: u32 = 1024;

/// Queues the removal of an object from a node. A version of several objects has the node `NO_NODE`.
pub fn queue(db: &Connection, object: u64, node: i64, now: i64) -> Result<(), Fault> {
    drop_from(db, object, (node, Reason::Delete), now)
}

/// Queues the removal of a replica, since there are enough others. A replica that was to leave its node keeps the reason for that.
pub(in crate::placement) fn queue_surplus(
    db: &Connection,
    object: u64,
    node: u32,
    now: i64,
) -> Result<(), Fault> {
    drop_from(db, object, (node.into(), Reason::Surplus), now)
}

fn drop_from(
    db: &Connection,
    object: u64,
    (node, why): (i64, Reason),
    now: i64,
) -> Result<(), Fault> {
    let sql = "INSERT INTO replica(object, node, state, want, why, since) VALUES (?1, ?2, 2, 2, ?4, ?3) \
               ON CONFLICT DO UPDATE SET state = max(state, 2), want = 2, why = iif(want = 1, why, ?4), target = NULL, \
               since = ?3, tier = NULL WHERE want != 2";
    execute(db, sql, params![object.cast_signed(), node, now, why])
}

/// Queues the removal of the first replicas of a version's parts.
pub(in crate::placement) fn queue_parts(
    db: &Connection,
    version: u64,
    now: i64,
) -> Result<(), Fault> {
    let sql = "SELECT part, node FROM part WHERE object = ?1";
    let parts: Vec<(i64, i64)> = rows(db, sql, [version.cast_signed()], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    let mut parts = parts.into_iter();
    parts.try_for_each(|(part, node)| queue(db, part.cast_unsigned(), node, now))
}

/// Cancels the removal of an object from a node, if the removal is queued.
pub fn cancel(db: &Connection, object: u64, node: i64) -> Result<(), Fault> {
    let sql = "DELETE FROM replica WHERE object = ?1 AND node = ?2 AND want = 2";
    execute(db, sql, params![object.cast_signed(), node])
}

/// Returns the nodes with queued removals, and whether the removal of any version of several objects is queued.
pub fn waiting(db: &Connection) -> Result<(Vec<u32>, bool), Fault> {
    // Each step finds the next node in the index, so the number of removals does not matter.
    let sql = "WITH RECURSIVE waiting(node) AS (SELECT min(node) FROM replica WHERE want = 2 UNION ALL \
               SELECT (SELECT min(node) FROM replica WHERE want = 2 AND node > waiting.node) FROM waiting WHERE node IS NOT NULL) \
               SELECT node FROM waiting WHERE node IS NOT NULL";
    let nodes: Vec<i64> = rows(db, sql, [], |row| row.get(0))?;
    let with_parts = nodes.contains(&NO_NODE);
    let nodes = nodes
        .into_iter()
        .filter_map(|node| u32::try_from(node).ok());
    Ok((nodes.collect(), with_parts))
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
    let sql = "SELECT object, EXISTS (SELECT 1 FROM held WHERE held.object = replica.object \
               AND removed = 0) FROM replica WHERE want = 2 AND node = ?1 AND object > ?2 AND label = 0 \
               AND since < ?3 AND since >= ?4 AND (NOT EXISTS (SELECT 1 FROM rule_run \
               WHERE rule_run.object = replica.object AND rule_run.state <= 2) \
               AND object NOT IN (SELECT object FROM feed WHERE seq > ?6) OR EXISTS (SELECT 1 FROM held \
               WHERE held.object = replica.object AND removed = 0)) AND NOT EXISTS (SELECT 1 FROM rule_run \
               JOIN label ON label.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
               WHERE rule_run.object = replica.object AND rule_run.state <= 2 AND rule_run.state = 2 \
               AND label.node = replica.node) \
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
    let sql = "UPDATE replica SET label = ?1 WHERE want = 2 AND node = ?2 \
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
    let gone = failed.unwrap_or(objects).iter();
    let sql = "DELETE FROM replica WHERE want = 2 AND node = ?1 AND object IN (SELECT value FROM json_each(?2)) RETURNING object, why";
    let key = params![node.0, json_list(gone.map(|object| object.0))];
    let removed: Vec<(u64, Option<Reason>)> =
        rows(db, sql, key, |row| Ok((unsigned(row, 0)?, row.get(1)?)))?;
    for (object, _) in removed
        .into_iter()
        .filter(|(_, why)| *why == Some(Reason::StageIn))
    {
        migrations::stage_in(db, object, node.0, now)?;
    }
    if failed.is_some() {
        let sql = "UPDATE replica SET label = 0, since = ?3 \
                   WHERE want = 2 AND node = ?1 AND object IN (SELECT value FROM json_each(?2))";
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
pub(in crate::placement) fn keep_last_intact(
    db: &Connection,
    object: u64,
    (leaving, now): (&NodeStates, i64),
) -> Result<(), Fault> {
    let sql = "SELECT node FROM held WHERE object = ?1 AND removed = 0 AND node >= 0";
    let Some(first) = find(db, sql, [object.cast_signed()], |row| row.get(0))? else {
        return Ok(());
    };
    for NodeId(node) in kept_back(NodeId(first), &replicas::of(db, object)?) {
        tracing::warn!(
            node,
            "object {object:016x} is not removed: its other replicas are corrupt"
        );
        replicas::insert(db, object, node)?;
        if leaving.is_emptied(node) {
            migrations::leaves(db, object, node, now)?;
        }
        under_replicated::look_again(db, object, now)?;
    }
    Ok(())
}
