//! Nodes that are being drained or were removed from the cluster: such nodes take no new objects. [`Leaving`] is a copy in memory of the
//! tables `drain` and `removed`.

use super::{burst, migrations, nodes, under_replicated};
use crate::Connection;
use crate::fault::Fault;
use crate::query::{changed, execute, find, number, numbers, rows, unsigned};
use parking_lot::RwLock;
use rusqlite::params;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_wire::v1;

/// Maximum number of versions on a draining node that are examined in one batch.
const PAGE_MAX: u32 = 16_384;
/// Value of the column `drain.after` when all versions on the node were examined.
const ALL: i64 = i64::MAX;

/// Draining and removed nodes, as described in the module's documentation.
#[derive(Debug, Default)]
pub struct Leaving {
    nodes: RwLock<LeavingNodes>,
    /// Whether versions with one wanted replica may have further replicas, or rows in `migration`.
    moving: AtomicBool,
}

#[derive(Debug, Default)]
struct LeavingNodes {
    emptied: BTreeSet<u32>,
    removed: BTreeSet<u32>,
}

impl Leaving {
    /// Loads the draining and removed nodes from the database.
    pub fn load(&self, db: &Connection) -> Result<(), Fault> {
        let emptied: BTreeSet<u32> = rows(db, "SELECT node FROM drain", [], |row| row.get(0))?;
        let removed = nodes::removed(db)?;
        let any = "SELECT EXISTS (SELECT 1 FROM migration) OR EXISTS (SELECT 1 FROM replica)";
        if db.sql.query_row(any, [], |row| row.get(0))? || !emptied.is_empty() {
            self.set_moving();
        }
        *self.nodes.write() = LeavingNodes { emptied, removed };
        Ok(())
    }

    /// Returns the nodes that are being drained.
    pub fn emptied(&self) -> BTreeSet<u32> {
        self.nodes.read().emptied.clone()
    }

    /// Returns the nodes that were removed from the cluster.
    pub fn removed(&self) -> BTreeSet<u32> {
        self.nodes.read().removed.clone()
    }

    /// Returns whether a node is being drained.
    pub fn is_emptied(&self, node: u32) -> bool {
        self.nodes.read().emptied.contains(&node)
    }

    /// Returns whether a node was removed from the cluster.
    pub fn is_removed(&self, node: u32) -> bool {
        self.nodes.read().removed.contains(&node)
    }

    /// Returns whether a node takes no new objects, since it is being drained or was removed.
    pub fn is_closed(&self, node: u32) -> bool {
        let nodes = self.nodes.read();
        nodes.emptied.contains(&node) || nodes.removed.contains(&node)
    }

    /// Sets whether a node is being drained. Call this in the transaction of this change, before any other write.
    pub(super) fn set_emptied(&self, node: u32, emptied: bool) {
        let mut nodes = self.nodes.write();
        if emptied {
            nodes.emptied.insert(node);
            self.set_moving();
        } else {
            nodes.emptied.remove(&node);
        }
    }

    /// Records that a node was removed from the cluster.
    pub(super) fn set_removed(&self, node: u32) {
        let mut nodes = self.nodes.write();
        nodes.emptied.remove(&node);
        nodes.removed.insert(node);
        self.set_moving();
    }

    /// Returns whether versions with one wanted replica may have other replicas, or may be about to migrate.
    pub fn moving(&self) -> bool {
        self.moving.load(Ordering::Relaxed)
    }

    /// Records that such versions may exist from now on, so that [`Self::moving`] returns true.
    pub fn set_moving(&self) {
        self.moving.store(true, Ordering::Relaxed);
    }
}

/// Starts draining a node, unless the node is already being drained. From now on, each version sealed on the node is put on the list at its
/// seal.
pub fn begin(db: &Connection, leaving: &Leaving, node: u32, now: i64) -> Result<(), Fault> {
    leaving.set_emptied(node, true);
    let sql = "INSERT OR IGNORE INTO drain VALUES (?1, ?2, 0, 0, 0)";
    execute(db, sql, params![node, now])?;
    migrations::drain(db, node)
}

/// Stops draining a node; returns whether it was being drained. The node's remaining objects stay, and objects that have left the node stay
/// on the other nodes.
pub fn cancel(db: &Connection, leaving: &Leaving, node: u32) -> Result<bool, Fault> {
    if !forget_node(db, node)? {
        return Ok(false);
    }
    migrations::cancel_drain(db, node)?;
    leaving.set_emptied(node, false);
    Ok(true)
}

/// Deletes the record of a draining node; returns whether the node was being drained.
pub(super) fn forget_node(db: &Connection, node: u32) -> Result<bool, Fault> {
    Ok(changed(db, "DELETE FROM drain WHERE node = ?1", [node])? > 0)
}

/// Counts a file of `size` bytes that has left a node, if the node is being drained.
pub(super) fn count_left(db: &Connection, node: u32, size: i64) -> Result<(), Fault> {
    let sql = "UPDATE drain SET files = files + 1, bytes = bytes + ?2 WHERE node = ?1";
    execute(db, sql, params![node, size])
}

/// Returns the draining nodes whose versions are not all on the list of versions to examine yet.
pub fn unlisted(db: &Connection) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM drain WHERE after != ?1";
    rows(db, sql, [ALL], |row| row.get(0))
}

/// Adds the next versions on a draining node to the list of versions to examine.
pub fn list(db: &Connection, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "SELECT after FROM drain WHERE node = ?1";
    let Some(after) = find(db, sql, [node], |row| row.get::<_, i64>(0))? else {
        return Ok(());
    };
    let sql = "SELECT max(object) FROM (SELECT object FROM held WHERE object > ?1 ORDER BY object LIMIT ?2)";
    let mut statement = db.sql.prepare_cached(sql)?;
    let last: Option<i64> = statement.query_row(params![after, PAGE_MAX], |row| row.get(0))?;
    if let Some(last) = last {
        migrations::request_drain(db, node, (after, last))?;
        under_replicated::schedule_leaving(db, node, (after, last), now)?;
    }
    let sql = "UPDATE drain SET after = ?2 WHERE node = ?1";
    execute(db, sql, params![node, last.unwrap_or(ALL)])
}

/// Returns the progress of all draining nodes.
pub fn progress(db: &Connection, now: i64) -> Result<Vec<v1::Drain>, Fault> {
    let sql = "SELECT node, began, after, files, bytes FROM drain ORDER BY node";
    let mut drains: Vec<v1::Drain> = rows(db, sql, [], |row| {
        Ok(v1::Drain {
            node: row.get(0)?,
            began: row.get(1)?,
            listing: row.get::<_, i64>(2)? != ALL,
            files_moved: unsigned(row, 3)?,
            bytes_moved: unsigned(row, 4)?,
            ..v1::Drain::default()
        })
    })?;
    for drain in &mut drains {
        measure(db, drain, now)?;
    }
    Ok(drains)
}

fn measure(db: &Connection, drain: &mut v1::Drain, now: i64) -> Result<(), Fault> {
    let node = drain.node;
    let bytes = burst::sum_of("size");
    let sql = format!("SELECT count(*), {bytes} FROM migration WHERE source = ?1");
    let mut statement = db.sql.prepare_cached(&sql)?;
    (drain.files_left, drain.bytes_left) = statement.query_row([node], numbers)?;
    let sql = "SELECT count(*) FROM migration CROSS JOIN short ON short.object = migration.object \
               WHERE source = ?1 AND short.at > ?2";
    drain.files_waiting = number(db, sql, params![node, now])?;
    let uses = nodes::uses(db, node)?;
    (drain.removals, drain.writing, drain.labels) = (uses.removals, uses.writing, uses.labels);
    Ok(())
}
