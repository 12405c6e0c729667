//! Replicas that move to other nodes. A row requests the removal of one replica, and may request where another replica is to be stored. The
//! examination of the object ([`super::under_replicated`]) creates the new replica, makes it the first if the old replica was the first,
//! and then removes the old replica. After a restart, the table therefore has exactly the remaining work.

use super::replicas::CURRENT;
use super::under_replicated::{MIGRATIONS, look_again, schedule};
use super::{burst, nodes};
use crate::Connection;
use crate::fault::Fault;
use crate::query::stored_enum;
use crate::query::{changed, execute, exists, find, number, rows, unsigned};
use rusqlite::params;
use tidemill_wire::v1;

stored_enum! {
    /// Reason of a migration.
    Reason {
        /// The node is drained.
        Drain = 0,
        /// A user has requested the migration.
        Move = 1,
        /// The cluster is rebalanced.
        Rebalance = 2,
        /// The object is evicted from the burst tier.
        Evict = 3,
        /// The object is staged in to the burst tier.
        StageIn = 4,
    }
}

impl Reason {
    /// Returns the word for the reason in reports.
    fn word(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Move => "move",
            Self::Rebalance => "rebalance",
            Self::Evict => "evict",
            Self::StageIn => "stage-in",
        }
    }
}

/// Value of the column `migration.source` for a new replica that replaces no other replica.
pub const NOWHERE: u32 = u32::MAX;

/// Request that a replica of an object leaves a node.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Node that the replica leaves; [`NOWHERE`] for a further replica.
    pub source: u32,
    /// Node that must receive the new replica; `None` for any node.
    pub target: Option<u32>,
    /// Whether the replica has to leave its node, to any node that can take it.
    pub anywhere: bool,
}

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

/// Requests that the replica on the node `source` migrates to `target`, or to any node, unless its migration is requested already. With
/// the source `NOWHERE`, a further replica is requested.
pub(super) fn request(
    db: &Connection,
    object: u64,
    (source, target): (u32, Option<u32>),
    reason: Reason,
    at: i64,
) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO migration SELECT ?2, object, ?3, size, ?4 FROM held WHERE object = ?1";
    let row = params![object.cast_signed(), source, target, reason];
    execute(db, sql, row)?;
    schedule(db, object, MIGRATIONS, at)
}

/// Requests that an object migrates from a draining node, after the object was just written there.
pub fn leaves(db: &Connection, object: u64, node: u32, at: i64) -> Result<(), Fault> {
    request(db, object, (node, None), Reason::Drain, at)
}

/// Requests that the first replica of an object migrates to another node. The request to leave a draining node remains, and other
/// migrations of the object are cancelled.
pub fn move_first(
    db: &Connection,
    object: u64,
    (first, target): (u32, u32),
    now: i64,
) -> Result<(), Fault> {
    let id = object.cast_signed();
    let sql = "DELETE FROM migration WHERE object = ?1 AND why != ?2";
    execute(db, sql, params![id, Reason::Drain])?;
    let sql = "INSERT INTO migration SELECT ?2, object, ?3, size, ?4 FROM held WHERE object = ?1 \
               ON CONFLICT DO UPDATE SET target = ?3";
    execute(db, sql, params![id, first, target, Reason::Move])?;
    schedule(db, object, MIGRATIONS, now)
}

/// Requests a migration of a rebalance, unless the object was deleted or moved since the plan was made.
pub fn rebalance(
    db: &Connection,
    object: u64,
    (source, target): (u32, u32),
    now: i64,
) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO migration SELECT ?2, object, ?3, size, ?4 FROM held \
               WHERE object = ?1 AND removed = 0 AND node = ?2 \
               AND NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = ?1 AND replica.node = ?3 AND state = ?5)";
    let row = params![
        object.cast_signed(),
        source,
        target,
        Reason::Rebalance,
        CURRENT
    ];
    match changed(db, sql, row)? {
        0 => Ok(()),
        _ => schedule(db, object, MIGRATIONS, now),
    }
}

/// Passes the objects without a requested migration to `take` in order, until `take` returns false.
pub fn each_movable(db: &Connection, mut take: impl FnMut(Movable) -> bool) -> Result<(), Fault> {
    let sql = "SELECT object, node, size FROM held WHERE removed = 0 AND size > 0 AND node >= 0 \
               AND NOT EXISTS (SELECT 1 FROM migration WHERE migration.object = held.object) ORDER BY object";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut others = db
        .sql
        .prepare_cached("SELECT node FROM replica WHERE object = ?1")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let object: i64 = row.get(0)?;
        let others = others.query_map([object], |row| row.get(0))?;
        let movable = Movable {
            object: object.cast_unsigned(),
            first: row.get(1)?,
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
pub(super) fn request_drain(
    db: &Connection,
    node: u32,
    (after, last): (i64, i64),
) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO migration SELECT ?1, object, NULL, size, ?4 FROM held \
               WHERE object > ?2 AND object <= ?3 AND node = ?1 AND removed = 0 \
               UNION ALL SELECT ?1, replica.object, NULL, held.size, ?4 FROM replica \
               CROSS JOIN held ON held.object = replica.object \
               WHERE replica.object > ?2 AND replica.object <= ?3 AND replica.node = ?1 AND replica.state = ?5 \
               AND held.removed = 0";
    let page = params![node, after, last, Reason::Drain, CURRENT];
    execute(db, sql, page)
}

/// Makes all migrations from a node leave the node, since it is drained, and cancels all migrations to it.
pub(super) fn drain(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE migration SET why = ?2 WHERE source = ?1";
    execute(db, sql, params![node, Reason::Drain])?;
    cancel_to(db, node)
}

/// Cancels all migrations to a node. Objects that have to leave their node get another target; other migrations are deleted.
fn cancel_to(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE migration SET target = NULL WHERE target = ?1 AND why = ?2";
    execute(db, sql, params![node, Reason::Drain])?;
    execute(db, "DELETE FROM migration WHERE target = ?1", [node])
}

/// Cancels the migrations by which objects leave a draining node. Entries on the list of versions to examine are removed when they are
/// examined.
pub(super) fn cancel_drain(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "DELETE FROM migration WHERE source = ?1 AND why = ?2";
    execute(db, sql, params![node, Reason::Drain])
}

/// Cancels the migrations to and from a node that no longer belongs to the burst tier.
pub(super) fn cancel_tier(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql =
        "DELETE FROM migration WHERE (source = ?1 AND why = ?2) OR (target = ?1 AND why = ?3)";
    execute(db, sql, params![node, Reason::Evict, Reason::StageIn])
}

/// Cancels the migrations of an object that have this reason; returns whether any existed.
pub fn cancel(db: &Connection, object: u64, reason: Reason) -> Result<bool, Fault> {
    let sql = "DELETE FROM migration WHERE object = ?1 AND why = ?2";
    let row = params![object.cast_signed(), reason];
    Ok(changed(db, sql, row)? > 0)
}

/// Cancels all migrations of rebalances that have not been executed.
pub fn cancel_rebalance(db: &Connection) -> Result<(), Fault> {
    let sql = "DELETE FROM migration WHERE why = ?1 RETURNING object";
    let objects: Vec<i64> = rows(db, sql, [Reason::Rebalance], |row| row.get(0))?;
    for object in objects {
        look_again(db, object.cast_unsigned(), 0)?;
    }
    Ok(())
}

/// Cancels the migrations of an object. The object still leaves a draining node, to any other node.
pub(super) fn stay(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "UPDATE migration SET target = NULL WHERE object = ?1 AND why = ?2";
    let row = params![object.cast_signed(), Reason::Drain];
    execute(db, sql, row)?;
    let sql = "DELETE FROM migration WHERE object = ?1 AND why != ?2";
    execute(db, sql, row)
}

/// Records that the replica of an object has left a node.
pub(super) fn done(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    burst::left(db, object, node)?;
    let sql = "DELETE FROM migration WHERE source = ?1 AND object = ?2 RETURNING size";
    let row = params![node, object.cast_signed()];
    match find(db, sql, row, |row| row.get(0))? {
        Some(size) => nodes::count_left(db, node, size),
        None => Ok(()),
    }
}

/// Deletes the requested migrations of an object.
pub(super) fn forget(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM migration WHERE object = ?1";
    execute(db, sql, [object.cast_signed()])
}

/// Deletes the requested migrations of a version's parts.
pub(super) fn forget_parts(db: &Connection, version: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM migration WHERE object IN (SELECT part FROM part WHERE object = ?1)";
    execute(db, sql, [version.cast_signed()])
}

/// Deletes the requested migrations from a node that was removed from the cluster, and cancels those to the node.
pub(super) fn forget_node(db: &Connection, node: u32) -> Result<(), Fault> {
    execute(db, "DELETE FROM migration WHERE source = ?1", [node])?;
    cancel_to(db, node)
}

/// Returns the requested migrations of an object.
pub(super) fn of(db: &Connection, object: u64) -> Result<Vec<Migration>, Fault> {
    let sql = "SELECT source, target, why FROM migration WHERE object = ?1";
    rows(db, sql, [object.cast_signed()], |row| {
        Ok(Migration {
            source: row.get(0)?,
            target: row.get(1)?,
            anywhere: matches!(row.get(2)?, Reason::Drain | Reason::Evict),
        })
    })
}

/// Returns whether a migration from a node is requested that has, or will have, a replica of the version.
pub(super) fn any_from_holder(db: &Connection, object: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM migration WHERE object = ?1 AND (source = (SELECT node FROM held WHERE object = ?1 \
               AND removed = 0) OR source IN (SELECT node FROM replica WHERE object = ?1))";
    exists(db, sql, [object.cast_signed()])
}

/// Returns the word for the reason of an object's migration, if one is requested.
pub fn reason(db: &Connection, object: u64) -> Result<Option<&'static str>, Fault> {
    let sql = "SELECT why FROM migration WHERE object = ?1 LIMIT 1";
    let reason = find(db, sql, [object.cast_signed()], |row| {
        row.get::<_, Reason>(0)
    })?;
    Ok(reason.map(Reason::word))
}

/// Whether any migration is requested or in progress.
pub fn any(db: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT EXISTS (SELECT 1 FROM node WHERE drain_began IS NOT NULL) OR EXISTS (SELECT 1 FROM migration)";
    Ok(number(db, sql, [])? != 0)
}

/// Returns the number of files to migrate and their bytes, by the reason.
pub fn pending(db: &Connection) -> Result<Vec<v1::Pending>, Fault> {
    let bytes = burst::sum_of("size");
    let sql = format!("SELECT why, count(*), {bytes} FROM migration GROUP BY why ORDER BY why");
    rows(db, &sql, [], |row| {
        Ok(v1::Pending {
            why: row.get::<_, Reason>(0)?.word().into(),
            files: unsigned(row, 1)?,
            bytes: unsigned(row, 2)?,
        })
    })
}
