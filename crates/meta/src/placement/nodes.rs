//! Known and removed nodes.

use super::{
    burst, corruption, drains, lost_nodes, migrations, removals, replicas, reservations,
    suspensions, under_replicated,
};
use crate::Connection;
use crate::fault::Fault;
use crate::notes;
use crate::query::{execute, exists, find, number, numbers, rows, unsigned};
use crate::shared::NamesShared;
use crate::transaction::Tx;
use crate::vnode::Caller;
use prost::Message as _;
use rusqlite::params;
use std::collections::BTreeSet;
use tidemill_model::display::line;
use tidemill_wire::v1;

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

/// Returns the stored statuses of all nodes.
pub fn all(db: &Connection) -> Result<Vec<v1::Node>, Fault> {
    let sql = "SELECT status FROM node ORDER BY node";
    let statuses: Vec<Vec<u8>> = rows(db, sql, [], |row| row.get(0))?;
    Ok(statuses
        .iter()
        .filter_map(|status| v1::Node::decode(status.as_slice()).ok())
        .collect())
}

/// Returns the stored status of a node, as it was before the node's present connection.
pub fn known(db: &Connection, node: u32) -> Result<Option<v1::Node>, Fault> {
    let sql = "SELECT status FROM node WHERE node = ?1";
    let known = find(db, sql, [node], |row| row.get::<_, Vec<u8>>(0))?;
    Ok(known.and_then(|status| v1::Node::decode(status.as_slice()).ok()))
}

/// Stores the status of a node.
pub fn put(db: &Connection, status: &v1::Node) -> Result<(), Fault> {
    let row = params![status.node, status.encode_to_vec()];
    execute(db, "INSERT OR REPLACE INTO node VALUES (?1, ?2)", row)
}

/// Returns the nodes that were removed from the cluster.
pub fn removed(db: &Connection) -> Result<BTreeSet<u32>, Fault> {
    rows(db, "SELECT node FROM removed", [], |row| row.get(0))
}

/// Records that a node was removed from the cluster.
pub fn insert_removed(db: &Connection, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO removed VALUES (?1, ?2)";
    execute(db, sql, params![node, now])
}

/// Returns the number of files on a node, and the names of some of these files.
pub fn files(db: &Connection, node: u32) -> Result<(u64, Vec<String>), Fault> {
    let sql = "SELECT (SELECT count(*) FROM held WHERE node = ?1 AND removed = 0) \
               + (SELECT count(*) FROM replica WHERE node = ?1)";
    let files = number(db, sql, [node])?;
    let sql = "SELECT path FROM held WHERE node = ?1 AND removed = 0 \
               UNION ALL SELECT path FROM replica CROSS JOIN held ON held.object = replica.object \
               WHERE replica.node = ?1 LIMIT ?2";
    let names: Vec<_> = rows(db, sql, params![node, NAMED_MAX], |row| {
        row.get::<_, Vec<u8>>(0)
    })?;
    let shown = |name: &Vec<u8>| line(&String::from_utf8_lossy(name));
    Ok((files, names.iter().map(shown).collect()))
}

/// Counts the uses for which a node without files is still needed.
pub fn uses(db: &Connection, node: u32) -> Result<NodeUses, Fault> {
    let removals = "SELECT (SELECT count(*) FROM removal WHERE node = ?1 AND queued < (unixepoch() + 3600) * 1000000000) \
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

/// Removes a node from the cluster. The versions that are being written there can't become complete any more, and are aborted.
pub fn remove(db: &Connection, shared: &NamesShared, node: u32, now: i64) -> Result<(), Fault> {
    abandon_writing(db, shared, node, now)?;
    shared.leaving.set_removed(node);
    // Other nodes have these versions, too, and further replicas may be missing from now on.
    let sql = "SELECT object FROM replica WHERE node = ?1 UNION SELECT burst.object FROM burst \
               CROSS JOIN held ON held.object = burst.object \
               WHERE held.node = ?1 AND burst.node != ?1 AND removed = 0";
    let others: Vec<u64> = rows(db, sql, [node], |row| unsigned(row, 0))?;
    for &object in &others {
        under_replicated::look_again(db, object, now)?;
    }
    under_replicated::schedule_lost(db, node, now)?;
    suspensions::forget(db, node)?;
    insert_removed(db, node, now)?;
    for object in others {
        burst::lost_elsewhere(db, object)?;
    }
    replicas::forget_node(db, node)?;
    drains::forget_node(db, node)?;
    removals::forget_node(db, node)?;
    corruption::forget_node(db, node)?;
    notes::forget_node(db, node)?;
    lost_nodes::forget_node(db, node)?;
    burst::forget_node(db, node)?;
    reservations::forget_node(db, node)?;
    execute(db, "DELETE FROM node WHERE node = ?1", [node])?;
    migrations::forget_node(db, node)
}

fn abandon_writing(
    db: &Connection,
    shared: &NamesShared,
    node: u32,
    now: i64,
) -> Result<(), Fault> {
    let sql = "SELECT ino, object FROM writing WHERE node = ?1 \
               UNION SELECT ino, writing.object FROM part CROSS JOIN writing ON writing.object = part.object \
               WHERE part.node = ?1";
    let versions: Vec<(u64, u64)> = rows(db, sql, [node], numbers)?;
    let caller = Caller::root();
    for (ino, object) in versions {
        let mut tx = Tx::new(db, shared, &caller, 0, now);
        tx.abandon(&v1::Abandon { ino, object })?;
    }
    Ok(())
}
