//! Lost nodes whose objects are being examined: nodes that have been offline for longer than the repair delay.

use super::{burst, under_replicated};
use crate::Connection;
use crate::fault::Fault;
use crate::query::{execute, find, rows};
use rusqlite::params;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of versions of one node that are read in one batch.
const PAGE_MAX: u32 = 4096;
/// Value of the column `lost.after` when all versions of the node are listed.
const ALL: i64 = i64::MAX;

/// Nodes that have been offline for longer than the repair delay.
#[derive(Debug)]
pub struct LostNodes {
    /// Time for which a node may be offline before its replicas are recreated.
    pub after: Duration,
    /// Lost nodes, and lost nodes that have reconnected, until all their versions are examined.
    nodes: BTreeMap<u32, LostNode>,
}

/// Progress of examining a node's versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LostNode {
    back: bool,
    all: bool,
}

/// Request to examine more versions of a node that is lost or has reconnected, or all of its versions from the first.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaReview {
    node: u32,
    back: bool,
    begin: bool,
}

impl LostNodes {
    /// Reads the lost nodes from the database.
    pub fn new(db: &Connection, after: Duration) -> Result<Self, Fault> {
        let nodes = rows(db, "SELECT node, back, after FROM lost", [], |row| {
            let loss = LostNode {
                back: row.get(1)?,
                all: row.get::<_, i64>(2)? == ALL,
            };
            Ok((row.get(0)?, loss))
        })?;
        Ok(Self { after, nodes })
    }

    /// Returns the lost nodes.
    pub fn lost(&self) -> BTreeSet<u32> {
        let lost = self.nodes.iter().filter(|(_, loss)| !loss.back);
        lost.map(|(&node, _)| node).collect()
    }

    /// Updates the lost nodes from the nodes that are offline and up. Returns the reviews of versions that are due.
    pub fn renew(&mut self, offline: &BTreeSet<u32>, up: &[u32]) -> Vec<ReplicaReview> {
        let mut looks = Vec::new();
        for &node in offline {
            if self.nodes.get(&node).is_none_or(|loss| loss.back) {
                tracing::warn!(
                    node,
                    "a node has been offline for too long: its files are copied again"
                );
                looks.push(ReplicaReview {
                    node,
                    back: false,
                    begin: true,
                });
            }
        }
        for (&node, loss) in &self.nodes {
            if !loss.back && up.contains(&node) {
                tracing::info!(node, "a lost node has reconnected");
                looks.push(ReplicaReview {
                    node,
                    back: true,
                    begin: true,
                });
            } else if !loss.all && looks.iter().all(|look| look.node != node) {
                looks.push(ReplicaReview {
                    node,
                    back: loss.back,
                    begin: false,
                });
            }
        }
        for look in &looks {
            let loss = LostNode {
                back: look.back,
                all: false,
            };
            self.nodes.insert(look.node, loss);
        }
        looks
    }

    /// Reads the lost nodes again after a change was stored.
    pub fn looked(&mut self, db: &Connection) -> Result<(), Fault> {
        self.nodes = Self::new(db, self.after)?.nodes;
        Ok(())
    }

    /// Whether more versions of a lost or reconnected node have to be examined.
    pub fn pending(&self) -> bool {
        self.nodes.values().any(|loss| !loss.all)
    }
}

/// Adds the next versions of a node to the list of versions to examine.
pub fn look(db: &Connection, look: ReplicaReview, now: i64) -> Result<(), Fault> {
    if look.begin {
        let sql = "INSERT OR REPLACE INTO lost VALUES (?1, ?2, 0)";
        execute(db, sql, params![look.node, look.back])?;
    }
    let sql = "SELECT after FROM lost WHERE node = ?1";
    let Some(after) = find(db, sql, [look.node], |row| row.get::<_, i64>(0))? else {
        return Ok(());
    };
    let held = "SELECT object FROM replica WHERE node = ?1 AND object > ?2 \
                UNION SELECT object FROM burst WHERE node = ?1 AND object > ?2 \
                UNION SELECT burst.object FROM burst CROSS JOIN held ON held.object = burst.object \
                WHERE held.node = ?1 AND burst.object > ?2 AND removed = 0 \
                UNION SELECT object FROM held \
                WHERE node = ?1 AND object > ?2 AND replicas > 1 AND removed = 0 ORDER BY object LIMIT ?3";
    let row = params![look.node, after, PAGE_MAX];
    let objects: Vec<i64> = rows(db, held, row, |row| row.get(0))?;
    for &object in &objects {
        let object = object.cast_unsigned();
        under_replicated::recount(db, object, now)?;
        if !look.back {
            burst::lost_elsewhere(db, object)?;
        }
    }
    match objects.last() {
        Some(&last) if objects.len() as u64 >= u64::from(PAGE_MAX) => {
            let sql = "UPDATE lost SET after = ?2 WHERE node = ?1";
            execute(db, sql, params![look.node, last])?;
        }
        _ => {
            let sql = "DELETE FROM lost WHERE node = ?1 AND back = 1";
            execute(db, sql, [look.node])?;
            let sql = "UPDATE lost SET after = ?2 WHERE node = ?1";
            execute(db, sql, params![look.node, ALL])?;
        }
    }
    Ok(())
}

/// Returns the nodes that are lost.
pub fn lost(db: &Connection) -> Result<Vec<u32>, Fault> {
    rows(db, "SELECT node FROM lost WHERE back = 0", [], |row| {
        row.get(0)
    })
}

/// Deletes the record of a node that was removed from the cluster.
pub(super) fn forget_node(db: &Connection, node: u32) -> Result<(), Fault> {
    execute(db, "DELETE FROM lost WHERE node = ?1", [node])
}
