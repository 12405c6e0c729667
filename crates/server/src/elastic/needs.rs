//! Reasons in the database why a node is needed. The same reasons keep a node active and resume a node, so that no node alternates.

use crate::names::Fault;
use rusqlite::{Connection, params};
use tidemill_model::replicas::REPLICAS_MAX;

/// Readable reasons why a node is needed, each with an SQL query that has the node as `?1`.
const NEEDS: [(&str, &str); 6] = [
    (
        "a file is being written to it",
        "SELECT 1 FROM writing WHERE node = ?1 OR object IN (SELECT object FROM part WHERE node = ?1)",
    ),
    ("it has labels", "SELECT 1 FROM label WHERE node = ?1"),
    (
        "a file is to migrate to it or from it",
        "SELECT 1 FROM migration WHERE source = ?1 OR target = ?1",
    ),
    (
        "a file on it lacks replicas",
        "SELECT 1 FROM short WHERE EXISTS (SELECT 1 FROM held WHERE held.object = short.object AND held.node = ?1) \
         OR EXISTS (SELECT 1 FROM replica WHERE replica.object = short.object AND replica.node = ?1)",
    ),
    (
        "it is being emptied",
        "SELECT 1 FROM drain WHERE node = ?1 AND (after != 9223372036854775807 \
         OR EXISTS (SELECT 1 FROM removal WHERE removal.node = ?1))",
    ),
    (
        "its objects are being scrubbed",
        "SELECT 1 FROM scrub WHERE node = ?1 AND ended <= 0",
    ),
];

/// Returns the reason why a node is needed, or `None` if the node is not needed.
pub(super) fn of(db: &Connection, node: u32) -> Result<Option<&'static str>, Fault> {
    for (what, sql) in NEEDS {
        if db.prepare_cached(sql)?.exists([node])? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// Returns the nodes that have, or will have, a replica of a version that lacks replicas while none can be created now; `None` if there is
/// no such version.
pub(super) fn holders_of_resting_version(
    db: &Connection,
    now: i64,
) -> Result<Option<Vec<u32>>, Fault> {
    let sql = "SELECT short.object FROM short JOIN held ON held.object = short.object \
               WHERE at > ?1 AND has < ?2 AND removed = 0 LIMIT 1";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![now, REPLICAS_MAX])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let object: i64 = row.get(0)?;
    let sql =
        "SELECT node FROM held WHERE object = ?1 UNION SELECT node FROM replica WHERE object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let holders = statement.query_map([object], |row| row.get(0))?;
    Ok(Some(holders.collect::<Result<_, _>>()?))
}
