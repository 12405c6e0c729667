//! Files that lack replicas or have corrupt replicas, and files that no reachable node stores. This module only reads.

use super::fault::Fault;
use super::placement::burst::sum_of;
use super::vnode::NO_NODE;
use crate::Connection;
use crate::query::{rows, unsigned};
use rusqlite::params;
use std::collections::BTreeSet;
use tidemill_model::replicas::REPLICAS_MAX;
use tidemill_wire::v1;

/// Returns the nodes that have replicas of an object, intact or corrupt.
pub fn holders(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM held WHERE object = ?1 \
               UNION SELECT node FROM replica WHERE object = ?1 AND want != 2 AND state >= 2";
    rows(db, sql, [object.cast_signed()], |row| row.get(0))
}

/// Returns an SQL condition for versions with bytes that have an intact replica, but no intact replica on these nodes.
fn nowhere(present: &[u32]) -> String {
    let present = listed(present);
    let somewhere = |within: &str| {
        format!(
            "(held.node {within} ({present}) AND {FIRST_INTACT} OR EXISTS (SELECT 1 FROM replica WHERE replica.object = held.object \
             AND replica.node != held.node AND want != 2 AND state = 2 AND replica.node {within} ({present})))"
        )
    };
    format!(
        "(held.node != {NO_NODE} AND held.size > 0 AND NOT {} AND {})",
        somewhere("IN"),
        somewhere("NOT IN")
    )
}

/// Returns node ids as a list for SQL.
fn listed<'a>(nodes: impl IntoIterator<Item = &'a u32>) -> String {
    let nodes: Vec<String> = nodes.into_iter().map(ToString::to_string).collect();
    nodes.join(",")
}

/// Returns an SQL condition for versions whose replicas were only on removed nodes (`migrations::remove` has put them on the list).
fn only_on_removed(removed: &BTreeSet<u32>) -> String {
    format!(
        "(held.node IN ({}) AND EXISTS (SELECT 1 FROM short WHERE short.object = held.object AND has = 0))",
        listed(removed)
    )
}

/// Returns the number of files whose replicas are only on nodes other than these. The function reads all versions.
pub fn unavailable(db: &Connection, reached: &[u32]) -> Result<u64, Fault> {
    let sql = format!(
        "SELECT count(DISTINCT version) FROM held WHERE removed = 0 AND {}",
        nowhere(reached)
    );
    let count: i64 = db.sql.query_row(&sql, [], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

/// Returns the number of files whose replicas were only on removed nodes.
pub fn lost_for_good(db: &Connection, removed: &BTreeSet<u32>) -> Result<u64, Fault> {
    if removed.is_empty() {
        return Ok(0);
    }
    let sql = format!(
        "SELECT count(DISTINCT held.version) FROM short CROSS JOIN held ON held.object = short.object \
         WHERE short.has = 0 AND held.removed = 0 AND {}",
        only_on_removed(removed)
    );
    let count: i64 = db.sql.query_row(&sql, [], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

/// SQL expression for the number of intact replicas of a version, without replicas that are being created.
const GOOD: &str = "((SELECT count(*) FROM replica WHERE replica.object = held.object AND replica.node != held.node \
     AND want != 2 AND state = 2) + NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = held.object \
     AND replica.node = held.node AND state >= 3))";

/// SQL condition: the first replica of a version is intact.
const FIRST_INTACT: &str = "NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = held.object \
     AND replica.node = held.node AND state >= 3)";

/// Returns the numbers of missing replicas, corrupt replicas and repairs in progress.
pub fn counted(db: &Connection, now: i64) -> Result<v1::HealthReply, Fault> {
    let count = |sql: &str| -> Result<u64, Fault> {
        let mut statement = db.sql.prepare_cached(sql)?;
        let count: i64 = statement.query_row([], |row| row.get(0))?;
        Ok(count.cast_unsigned())
    };
    Ok(v1::HealthReply {
        short: count(&format!(
            "SELECT count(*) FROM short JOIN held USING (object) WHERE removed = 0 AND replicas > 1 AND has < {REPLICAS_MAX}"
        ))?,
        resting: count(&format!(
            "SELECT count(*) FROM short JOIN held USING (object) WHERE removed = 0 AND replicas > 1 AND has < {REPLICAS_MAX} \
             AND at > {now} AND NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = short.object AND state = 1)"
        ))?,
        corrupt: count("SELECT count(*) FROM replica WHERE state >= 3")?,
        all_corrupt: count(&format!(
            "SELECT count(*) FROM held WHERE object IN (SELECT object FROM replica WHERE state >= 3) AND {GOOD} < 1"
        ))?,
        repairing: count("SELECT count(*) FROM replica WHERE state IN (1, 4)")?,
        bytes_left: count(&format!(
            "SELECT {} FROM short JOIN held USING (object) WHERE removed = 0 AND has < {REPLICAS_MAX}",
            sum_of(&format!("size * max(replicas - max({GOOD}, 0), 0)"))
        ))?,
        ..v1::HealthReply::default()
    })
}

fn ailing(
    db: &Connection,
    kind: &str,
    sql: &str,
    (after, limit): (u64, u32),
) -> Result<Vec<v1::Ailing>, Fault> {
    rows(db, sql, params![after.cast_signed(), limit], |row| {
        let nodes: String = row.get(3)?;
        Ok(v1::Ailing {
            kind: kind.into(),
            object: unsigned(row, 0)?,
            path: row.get(1)?,
            size: unsigned(row, 2)?,
            nodes: nodes
                .split(',')
                .filter_map(|one| one.parse().ok())
                .collect(),
            what: row.get(4)?,
            repairing: row.get(5)?,
        })
    })
}

/// SQL expression for the list of all nodes that store a version or once stored it.
const HOLDERS: &str = "(held.node || coalesce((SELECT ',' || group_concat(node) FROM replica \
     WHERE replica.object = held.object AND replica.node != held.node AND want != 2 AND state > 0), ''))";

/// Returns the next files whose replicas were only on removed nodes: files after an object, up to a number of files.
pub fn lost(
    db: &Connection,
    removed: &BTreeSet<u32>,
    page: (u64, u32),
) -> Result<Vec<v1::Ailing>, Fault> {
    if removed.is_empty() {
        return Ok(Vec::new());
    }
    let what = "its nodes were removed from the cluster";
    without_replica(db, ("lost", what), &only_on_removed(removed), page)
}

/// Returns the next files whose replicas are only on nodes other than these: files after an object, up to a number of files.
pub fn offline(
    db: &Connection,
    reached: &[u32],
    page: (u64, u32),
) -> Result<Vec<v1::Ailing>, Fault> {
    let what = "its nodes do not answer";
    without_replica(db, ("unavailable", what), &nowhere(reached), page)
}

fn without_replica(
    db: &Connection,
    (kind, what): (&str, &str),
    condition: &str,
    page: (u64, u32),
) -> Result<Vec<v1::Ailing>, Fault> {
    let sql = format!(
        "SELECT object, path, size, {HOLDERS}, '{what}', 0 FROM held \
         WHERE object > ?1 AND removed = 0 AND {condition} ORDER BY object LIMIT ?2"
    );
    ailing(db, kind, &sql, page)
}

/// Returns the next files with corrupt replicas: files after an object, up to a number of files.
pub fn corrupt(db: &Connection, page: (u64, u32)) -> Result<Vec<v1::Ailing>, Fault> {
    let sql = format!(
        "SELECT held.object, path, held.size, group_concat(bad.node), \
         detail || iif({GOOD} < 1, ', and no other replica exists', ''), max(bad.state = 4) \
         FROM replica AS bad CROSS JOIN held ON held.object = bad.object WHERE bad.state >= 3 AND bad.object > ?1 \
         GROUP BY bad.object ORDER BY bad.object LIMIT ?2"
    );
    ailing(db, "corrupt", &sql, page)
}

/// Returns the next files that have fewer replicas than wanted: files after an object, up to a number of files.
pub fn short(db: &Connection, page: (u64, u32)) -> Result<Vec<v1::Ailing>, Fault> {
    let sql = format!(
        "SELECT short.object, path, size, {HOLDERS}, 'it has ' || max({GOOD}, 0) || ' of ' || replicas || ' replicas', \
         EXISTS (SELECT 1 FROM replica WHERE replica.object = short.object AND state = 1) \
         FROM short CROSS JOIN held ON held.object = short.object \
         WHERE short.object > ?1 AND removed = 0 AND replicas > 1 AND has < {REPLICAS_MAX} ORDER BY short.object LIMIT ?2"
    );
    ailing(db, "short", &sql, page)
}
