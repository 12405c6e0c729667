//! Uses of a node: the files on it, and the reasons why it must not be removed or suspended.

use crate::Connection;
use crate::fault::Fault;
use crate::query::{exists, number, rows};
use rusqlite::params;
use tidemill_model::display::line;

/// Maximum number of files that are named when the files prevent a node from being removed.
const NAMED_MAX: u32 = 5;

/// Numbers of uses for which a node is still needed.
#[derive(Clone, Copy, Debug)]
pub struct NodeUses {
    /// Versions that are being written on the node.
    pub writing: u64,
    /// Labels of tasks on the node, which will store their outputs there.
    pub labels: u64,
    /// Removals that wait. Removals that are postponed for days are not counted.
    pub removals: u64,
}

/// Returns the number of files on a node, and the names of some of these files.
pub fn files(db: &Connection, node: u32) -> Result<(u64, Vec<String>), Fault> {
    let sql = "SELECT (SELECT count(*) FROM held WHERE node = ?1 AND removed = 0) \
               + (SELECT count(*) FROM replica CROSS JOIN held ON held.object = replica.object \
               WHERE want != 2 AND replica.node = ?1 AND state > 0 AND held.node != ?1)";
    let files = number(db, sql, [node])?;
    let sql = "SELECT path FROM held WHERE node = ?1 AND removed = 0 \
               UNION ALL SELECT path FROM replica CROSS JOIN held ON held.object = replica.object \
               WHERE want != 2 AND replica.node = ?1 AND state > 0 AND held.node != ?1 LIMIT ?2";
    let names: Vec<_> = rows(db, sql, params![node, NAMED_MAX], |row| {
        row.get::<_, Vec<u8>>(0)
    })?;
    let shown = |name: &Vec<u8>| line(&String::from_utf8_lossy(name));
    Ok((files, names.iter().map(shown).collect()))
}

/// Counts the uses for which a node without files is still needed.
pub fn uses(db: &Connection, node: u32) -> Result<NodeUses, Fault> {
    let removals = "SELECT (SELECT count(*) FROM replica WHERE want = 2 AND node = ?1 AND since < (unixepoch() + 3600) * 1000000000) \
                    + (SELECT count(*) FROM part CROSS JOIN version ON version.object = part.object \
                    WHERE part.node = ?1 AND removed = 1)";
    let writing = "SELECT (SELECT count(*) FROM writing WHERE node = ?1) + (SELECT count(*) FROM part \
                   CROSS JOIN writing ON writing.object = part.object WHERE part.node = ?1)";
    let labels = "SELECT count(*) FROM label WHERE node = ?1 AND task != 0";
    Ok(NodeUses {
        writing: number(db, writing, [node])?,
        labels: number(db, labels, [node])?,
        removals: number(db, removals, [node])?,
    })
}

/// Readable reasons why a node must not be suspended, each with an SQL query that has the node as `?1`.
const NEEDS: [(&str, &str); 6] = [
    (
        "a file is being written to it",
        "SELECT 1 FROM writing WHERE node = ?1 OR object IN (SELECT object FROM part WHERE node = ?1)",
    ),
    ("it has labels", "SELECT 1 FROM label WHERE node = ?1"),
    (
        "a file is to migrate to it or from it",
        "SELECT 1 FROM replica WHERE want = 1 AND node = ?1 UNION ALL SELECT 1 FROM replica WHERE target = ?1",
    ),
    (
        "a file on it lacks replicas",
        "SELECT 1 FROM short WHERE EXISTS (SELECT 1 FROM held WHERE held.object = short.object AND held.node = ?1) \
         OR EXISTS (SELECT 1 FROM replica WHERE replica.object = short.object AND replica.node = ?1 AND want != 2)",
    ),
    (
        "it is being emptied",
        "SELECT 1 FROM node WHERE node = ?1 AND drain_began IS NOT NULL AND (drain_listed != 9223372036854775807 \
         OR EXISTS (SELECT 1 FROM replica WHERE want = 2 AND replica.node = ?1))",
    ),
    (
        "its objects are being scrubbed",
        "SELECT 1 FROM scrub WHERE node = ?1 AND ended <= 0",
    ),
];

/// Returns the reason why a node must be active, or `None` if the node may be suspended. The same reasons keep a node active and resume a
/// node, so that no node alternates.
pub fn need(db: &Connection, node: u32) -> Result<Option<&'static str>, Fault> {
    for (what, sql) in NEEDS {
        if exists(db, sql, [node])? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}
