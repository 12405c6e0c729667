//! Replicas that move to other nodes: rows of `replica` with the wanted state `Leave`. A row requests the removal of one replica, and may
//! request where another replica is to be stored. The examination of the object ([`crate::placement::under_replicated`]) creates the new replica, makes
//! it the first if the old replica was the first, and then removes the old replica. After a restart, the table therefore has exactly the
//! remaining work. A request for a further replica is a row of the node that is to receive it.

use crate::Connection;
use crate::fault::Fault;
use crate::placement::burst;
use crate::placement::replicas::{Reason, settle, settle_node};
use crate::placement::under_replicated::{MIGRATIONS, look_again, schedule};
use crate::query::{changed, execute, exists, find, number, rows, unsigned};
use rusqlite::params;
use tidemill_wire::v1;

/// A version's object that may migrate, with the node of its first replica and the nodes of its other replicas.
#[derive(Debug)]
pub struct Movable {
    /// Id of the object.
    pub object: u64,
    /// Node of the object's first replica.
    pub first: u32,
    /// Size of the object in bytes.
    pub size: u64,
    /// Nodes of the other replicas, including replicas that are being created.
    pub others: Vec<u32>,
}

/// Requests that the replica on a node leaves the node, unless that is requested already.
pub(in crate::placement) fn request(
    db: &Connection,
    object: u64,
    (node, why): (u32, Reason),
    at: i64,
) -> Result<(), Fault> {
    let sql = "INSERT INTO replica(object, node, state, want, why, size) SELECT object, ?2, 2, 1, ?3, size FROM held \
               WHERE object = ?1 AND (node = ?2 OR EXISTS (SELECT 1 FROM replica WHERE replica.object = ?1 AND replica.node = ?2)) \
               ON CONFLICT DO UPDATE SET want = 1, why = ?3, target = NULL, size = excluded.size WHERE want = 0";
    execute(db, sql, params![object.cast_signed(), node, why])?;
    schedule(db, object, MIGRATIONS, at)
}

/// Requests that a further replica of an object is created on a node of the burst tier. A replica that the node is about to remove is created
/// after its removal.
pub(in crate::placement) fn stage_in(
    db: &Connection,
    object: u64,
    node: u32,
    at: i64,
) -> Result<(), Fault> {
    let sql = "INSERT INTO replica(object, node, state, why, target, size) SELECT object, ?2, 0, 4, ?2, size FROM held \
               WHERE object = ?1 ON CONFLICT DO UPDATE SET why = 4, target = ?2, size = excluded.size WHERE want != 1";
    execute(db, sql, params![object.cast_signed(), node])?;
    schedule(db, object, MIGRATIONS, at)
}

/// Requests that an object migrates from a draining node, after the object was just written there.
pub fn leaves(db: &Connection, object: u64, node: u32, at: i64) -> Result<(), Fault> {
    request(db, object, (node, Reason::Drain), at)
}

/// Requests that the first replica of an object migrates to another node. The request to leave a draining node remains, and other
/// migrations of the object are cancelled.
pub fn move_first(
    db: &Connection,
    object: u64,
    (first, target): (u32, u32),
    now: i64,
) -> Result<(), Fault> {
    cancel_undrained(db, object)?;
    let sql = "INSERT INTO replica(object, node, state, want, why, target, size) SELECT object, ?2, 2, 1, 1, ?3, size FROM held \
               WHERE object = ?1 ON CONFLICT DO UPDATE SET why = iif(want = 1, why, 1), want = 1, target = ?3, \
               size = excluded.size WHERE want != 2";
    execute(db, sql, params![object.cast_signed(), first, target])?;
    schedule(db, object, MIGRATIONS, now)
}

/// Requests a migration of a rebalance, unless the object was deleted or moved since the plan was made.
pub fn rebalance(
    db: &Connection,
    object: u64,
    (source, target): (u32, u32),
    now: i64,
) -> Result<(), Fault> {
    let sql = "INSERT INTO replica(object, node, state, want, why, target, size) SELECT object, ?2, 2, 1, 2, ?3, size FROM held \
               WHERE object = ?1 AND removed = 0 AND node = ?2 AND NOT EXISTS (SELECT 1 FROM replica \
               WHERE replica.object = ?1 AND replica.node = ?3 AND want != 2 AND state >= 2) \
               ON CONFLICT DO UPDATE SET want = 1, why = 2, target = ?3, size = excluded.size WHERE want = 0";
    match changed(db, sql, params![object.cast_signed(), source, target])? {
        0 => Ok(()),
        _ => schedule(db, object, MIGRATIONS, now),
    }
}

/// Passes the objects without a requested migration to `take` in order, until `take` returns false.
pub fn each_movable(db: &Connection, mut take: impl FnMut(Movable) -> bool) -> Result<(), Fault> {
    let sql = "SELECT object, node, size FROM held WHERE removed = 0 AND size > 0 AND node >= 0 \
               AND NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = held.object AND (want = 1 OR target IS NOT NULL)) \
               ORDER BY object";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut others = db.sql.prepare_cached(
        "SELECT node FROM replica WHERE object = ?1 AND node != ?2 AND want != 2 AND state > 0",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let object: i64 = row.get(0)?;
        let first: u32 = row.get(1)?;
        let others = others.query_map(params![object, first], |row| row.get(0))?;
        let movable = Movable {
            object: object.cast_unsigned(),
            first,
            size: unsigned(row, 2)?,
            others: others.collect::<Result<_, _>>()?,
        };
        if !take(movable) {
            break;
        }
    }
    Ok(())
}

/// Requests that the replicas on a draining node in the range `after` to `last` of objects leave the node. A replica that is being created
/// is put on the list when it exists.
pub(in crate::placement) fn request_drain(
    db: &Connection,
    node: u32,
    (after, last): (i64, i64),
) -> Result<(), Fault> {
    let sql = "INSERT INTO replica(object, node, state, want, why, size) SELECT object, ?1, 2, 1, 0, size FROM held \
               WHERE object > ?2 AND object <= ?3 AND node = ?1 AND removed = 0 \
               UNION ALL SELECT replica.object, ?1, 2, 1, 0, held.size FROM replica \
               CROSS JOIN held ON held.object = replica.object \
               WHERE replica.want != 2 AND replica.node = ?1 AND replica.object > ?2 AND replica.object <= ?3 AND replica.state >= 2 \
               AND held.node != ?1 AND held.removed = 0 \
               ON CONFLICT DO UPDATE SET want = 1, why = 0, target = NULL, size = excluded.size WHERE want = 0";
    execute(db, sql, params![node, after, last])
}

/// Makes all migrations from a node leave the node, since it is drained, and cancels all migrations to it.
pub(in crate::placement) fn drain(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE replica SET why = 0 WHERE want = 1 AND node = ?1";
    execute(db, sql, [node])?;
    cancel_to(db, node)
}

/// Cancels migrations that satisfy a condition. Returns the objects.
fn cancel_where(
    db: &Connection,
    condition: &str,
    key: impl rusqlite::Params,
) -> Result<Vec<u64>, Fault> {
    let sql = format!(
        "UPDATE replica SET want = iif(want = 1, 0, want), why = NULL, target = NULL WHERE {condition} RETURNING object"
    );
    let objects: Vec<u64> = rows(db, &sql, key, |row| unsigned(row, 0))?;
    for &object in &objects {
        settle(db, object)?;
    }
    Ok(objects)
}

/// Cancels all migrations to a node. Objects that have to leave their node get another target; other migrations are deleted.
pub(in crate::placement) fn cancel_to(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE replica SET target = NULL WHERE target = ?1 AND why = 0";
    execute(db, sql, [node])?;
    cancel_where(db, "target = ?1", [node]).map(drop)
}

/// Cancels the migrations by which objects leave a draining node. Entries on the list of versions to examine are removed when they are
/// examined.
pub(in crate::placement) fn cancel_drain(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE replica SET want = 0, why = NULL, target = NULL WHERE want = 1 AND node = ?1 AND why = 0";
    execute(db, sql, [node])?;
    settle_node(db, node)
}

/// Cancels the migrations to and from a node that no longer belongs to the burst tier.
pub(in crate::placement) fn cancel_tier(db: &Connection, node: u32) -> Result<(), Fault> {
    cancel_where(db, "want = 1 AND node = ?1 AND why = 3", [node])?;
    cancel_where(db, "target = ?1 AND why = 4", [node]).map(drop)
}

/// Cancels the eviction of an object.
pub(in crate::placement) fn cancel_eviction(db: &Connection, object: u64) -> Result<(), Fault> {
    cancel_where(
        db,
        "object = ?1 AND want != 2 AND why = 3",
        [object.cast_signed()],
    )
    .map(drop)
}

/// Cancels all migrations of rebalances that have not been executed.
pub fn cancel_rebalance(db: &Connection) -> Result<(), Fault> {
    for object in cancel_where(db, "want = 1 AND why = 2", [])? {
        look_again(db, object, 0)?;
    }
    Ok(())
}

/// Cancels a user's requested move of an object; returns whether one was requested.
pub fn cancel_move(db: &Connection, object: u64) -> Result<bool, Fault> {
    let sql = "object = ?1 AND want = 1 AND why = 1";
    Ok(!cancel_where(db, sql, [object.cast_signed()])?.is_empty())
}

/// Cancels the migrations of an object. The object still leaves a draining node, to any other node.
pub(in crate::placement) fn stay(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "UPDATE replica SET target = NULL WHERE object = ?1 AND want = 1 AND why = 0";
    execute(db, sql, [object.cast_signed()])?;
    cancel_undrained(db, object)
}

/// Cancels the migrations of an object except from draining nodes. An eviction waits until the object is staged out the next time.
fn cancel_undrained(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "UPDATE replica SET want = 0 WHERE object = ?1 AND want = 1 AND why = 3";
    execute(db, sql, [object.cast_signed()])?;
    let condition = "object = ?1 AND (want = 1 AND why != 0 OR why = 4)";
    cancel_where(db, condition, [object.cast_signed()]).map(drop)
}

/// Deletes the requests for further replicas of an object.
pub(in crate::placement) fn forget(db: &Connection, object: u64) -> Result<(), Fault> {
    cancel_where(db, "object = ?1 AND why = 4", [object.cast_signed()]).map(drop)
}

/// Returns whether a migration from a node is requested that has, or will have, a replica of the version.
pub(in crate::placement) fn any_from_holder(db: &Connection, object: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM replica WHERE object = ?1 AND want = 1";
    exists(db, sql, [object.cast_signed()])
}

/// Returns the word for the reason of an object's migration, if one is requested.
pub fn reason(db: &Connection, object: u64) -> Result<Option<&'static str>, Fault> {
    let sql =
        "SELECT why FROM replica WHERE object = ?1 AND (want = 1 OR target IS NOT NULL) LIMIT 1";
    let reason = find(db, sql, [object.cast_signed()], |row| {
        row.get::<_, Reason>(0)
    })?;
    Ok(reason.map(Reason::word))
}

/// Whether any migration is requested or in progress.
pub fn any(db: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT EXISTS (SELECT 1 FROM node WHERE drain_began IS NOT NULL) OR EXISTS (SELECT 1 FROM replica WHERE want = 1) \
               OR EXISTS (SELECT 1 FROM replica WHERE target IS NOT NULL)";
    Ok(number(db, sql, [])? != 0)
}

/// Returns the number of files to migrate and their bytes, by the reason.
pub fn pending(db: &Connection) -> Result<Vec<v1::Pending>, Fault> {
    let bytes = burst::sum_of("size");
    let sql = format!(
        "SELECT why, count(*), {bytes} FROM (SELECT why, size FROM replica WHERE want = 1 \
         UNION ALL SELECT why, size FROM replica WHERE target IS NOT NULL AND want != 1) GROUP BY why ORDER BY why"
    );
    rows(db, &sql, [], |row| {
        Ok(v1::Pending {
            why: row.get::<_, Reason>(0)?.word().into(),
            files: unsigned(row, 1)?,
            bytes: unsigned(row, 2)?,
        })
    })
}
