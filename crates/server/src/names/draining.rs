//! Nodes that are being drained or were removed from the cluster: such nodes take no new objects. This module holds a copy in memory of the
//! tables `drain` and `removed`.

use super::fault::Fault;
use parking_lot::RwLock;
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Draining and removed nodes, as described in the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    nodes: RwLock<LeavingNodes>,
    /// Whether versions with one wanted replica may have further replicas, or rows in `migration`.
    moving: AtomicBool,
}

#[derive(Debug, Default)]
struct LeavingNodes {
    emptied: BTreeSet<u32>,
    removed: BTreeSet<u32>,
}

fn numbers(db: &Connection, sql: &str) -> Result<BTreeSet<u32>, Fault> {
    let mut statement = db.prepare_cached(sql)?;
    let numbers = statement.query_map([], |row| row.get(0))?;
    Ok(numbers.collect::<Result<_, _>>()?)
}

impl Leaving {
    /// Loads the draining and removed nodes from the database.
    pub(crate) fn load(&self, db: &Connection) -> Result<(), Fault> {
        let emptied = numbers(db, "SELECT node FROM drain")?;
        let removed = numbers(db, "SELECT node FROM removed")?;
        let any = "SELECT EXISTS (SELECT 1 FROM migration) OR EXISTS (SELECT 1 FROM replica)";
        if db.query_row(any, [], |row| row.get(0))? || !emptied.is_empty() {
            self.set_moving();
        }
        *self.nodes.write() = LeavingNodes { emptied, removed };
        Ok(())
    }

    /// Returns the nodes that are being drained.
    pub(crate) fn emptied(&self) -> BTreeSet<u32> {
        self.nodes.read().emptied.clone()
    }

    /// Returns the nodes that were removed from the cluster.
    pub(crate) fn removed(&self) -> BTreeSet<u32> {
        self.nodes.read().removed.clone()
    }

    /// Returns whether a node is being drained.
    pub(crate) fn is_emptied(&self, node: u32) -> bool {
        self.nodes.read().emptied.contains(&node)
    }

    /// Returns whether a node was removed from the cluster.
    pub(crate) fn is_removed(&self, node: u32) -> bool {
        self.nodes.read().removed.contains(&node)
    }

    /// Returns whether a node takes no new objects, since it is being drained or was removed.
    pub(crate) fn is_closed(&self, node: u32) -> bool {
        let nodes = self.nodes.read();
        nodes.emptied.contains(&node) || nodes.removed.contains(&node)
    }

    /// Sets whether a node is being drained. Call this in the transaction of this change, before any other write.
    pub(crate) fn set_emptied(&self, node: u32, emptied: bool) {
        let mut nodes = self.nodes.write();
        if emptied {
            nodes.emptied.insert(node);
            self.set_moving();
        } else {
            nodes.emptied.remove(&node);
        }
    }

    /// Records that a node was removed from the cluster.
    pub(crate) fn set_removed(&self, node: u32) {
        let mut nodes = self.nodes.write();
        nodes.emptied.remove(&node);
        nodes.removed.insert(node);
        self.set_moving();
    }

    /// Returns whether versions with one wanted replica may have other replicas, or may be about to migrate.
    pub(crate) fn moving(&self) -> bool {
        self.moving.load(Ordering::Relaxed)
    }

    pub(crate) fn set_moving(&self) {
        self.moving.store(true, Ordering::Relaxed);
    }
}
