//! The nodes of the cluster: the table `node`, and a copy of the nodes' states in memory ([`NodeStates`]).
//!
//! A node has one [`NodeState`]. A node of any state but the last may also be draining: it takes no new objects, and its objects migrate to
//! other nodes. The row also keeps the suspension and the energy of the node for `suspensions` and `energy`.
//!
//! A node that was offline for longer than the repair delay is lost. All versions on a lost or reconnected node are examined in pages
//! (next: `server/src/replicas.rs`).

use super::energy::Drawn;
use super::suspensions::StoredElasticState;
use super::{burst, migrations, node_uses, replicas, reservations, under_replicated};
use crate::Connection;
use crate::fault::Fault;
use crate::json::json;
use crate::query::{changed, execute, find, number, numbers, rows, stored_enum, unsigned};
use crate::shared::NamesShared;
use crate::transaction::Tx;
use crate::vnode::Caller;
use parking_lot::RwLock;
use prost::Message as _;
use rusqlite::params;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_sched::elastic::Resumes;
use tidemill_wire::v1;

/// Maximum number of versions of a lost or reconnected node that are examined in one batch.
const REVIEWED_MAX: u32 = 4096;
/// Maximum number of versions on a draining node that are examined in one batch.
const LISTED_MAX: u32 = 16_384;
/// Value of the columns `reviewed` and `drain_listed` when all versions on the node were examined.
const ALL: i64 = i64::MAX;

stored_enum! {
    /// Presence of a node in the cluster.
    NodeState {
        /// The node is online, or offline for less than the repair delay.
        Present = 0,
        /// The node was lost and has reconnected. Not all of its versions are examined yet.
        Reconnected = 1,
        /// The node has been offline for longer than the repair delay, so its replicas do not count.
        Lost = 2,
        /// The node was removed from the cluster. No other node gets its number.
        Removed = 3,
    }
}

/// State of each node that is draining, or that is not simply present. Each change is made in the transaction that stores it.
#[derive(Debug, Default)]
pub struct NodeStates {
    nodes: RwLock<BTreeMap<u32, KnownState>>,
    /// Whether versions with one wanted replica may have further replicas, or rows in `replica`.
    moving: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct KnownState {
    state: NodeState,
    draining: bool,
    /// Whether all versions of a lost or reconnected node were examined.
    reviewed: bool,
}

/// Request to examine more versions of a node that is lost or has reconnected, or all of its versions from the first.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaReview {
    node: u32,
    state: NodeState,
    begin: bool,
}

impl NodeStates {
    /// Loads the states of the nodes from the database.
    pub fn load(&self, db: &Connection) -> Result<(), Fault> {
        let sql = "SELECT node, state, drain_began IS NOT NULL, reviewed FROM node \
                   WHERE state != 0 OR drain_began IS NOT NULL";
        let nodes: BTreeMap<u32, KnownState> = rows(db, sql, [], |row| {
            let known = KnownState {
                state: row.get(1)?,
                draining: row.get(2)?,
                reviewed: row.get::<_, i64>(3)? == ALL,
            };
            Ok((row.get(0)?, known))
        })?;
        let any = "SELECT EXISTS (SELECT 1 FROM replica WHERE want != 2)";
        if number(db, any, [])? != 0 || nodes.values().any(|known| known.draining) {
            self.set_moving();
        }
        *self.nodes.write() = nodes;
        Ok(())
    }

    fn with(&self, has: impl Fn(&KnownState) -> bool) -> BTreeSet<u32> {
        let nodes = self.nodes.read();
        let nodes = nodes.iter().filter(|(_, known)| has(known));
        nodes.map(|(&node, _)| node).collect()
    }

    fn has(&self, node: u32, has: impl FnOnce(&KnownState) -> bool) -> bool {
        self.nodes.read().get(&node).is_some_and(has)
    }

    fn change(&self, node: u32, change: impl FnOnce(&mut KnownState)) {
        let mut nodes = self.nodes.write();
        change(nodes.entry(node).or_insert(KnownState {
            state: NodeState::Present,
            draining: false,
            reviewed: true,
        }));
    }

    /// Returns the lost nodes.
    pub fn lost(&self) -> BTreeSet<u32> {
        self.with(|known| known.state == NodeState::Lost)
    }

    /// Returns the nodes that were removed from the cluster.
    pub fn removed(&self) -> BTreeSet<u32> {
        self.with(|known| known.state == NodeState::Removed)
    }

    /// Returns the nodes that are being drained.
    pub fn emptied(&self) -> BTreeSet<u32> {
        self.with(|known| known.draining)
    }

    /// Returns whether a node is being drained.
    pub fn is_emptied(&self, node: u32) -> bool {
        self.has(node, |known| known.draining)
    }

    /// Returns whether a node was removed from the cluster.
    pub fn is_removed(&self, node: u32) -> bool {
        self.has(node, |known| known.state == NodeState::Removed)
    }

    /// Returns whether a node takes no new objects, since it is being drained or was removed.
    pub fn is_closed(&self, node: u32) -> bool {
        self.has(node, |known| {
            known.draining || known.state == NodeState::Removed
        })
    }

    /// Sets whether a node is being drained. Call this in the transaction of this change, before any other write.
    fn set_emptied(&self, node: u32, emptied: bool) {
        self.change(node, |known| known.draining = emptied);
        if emptied {
            self.set_moving();
        }
    }

    /// Records that a node was removed from the cluster.
    fn set_removed(&self, node: u32) {
        self.change(node, |known| {
            (known.state, known.draining) = (NodeState::Removed, false);
        });
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

    /// Updates the lost nodes from the nodes that are offline and up. Returns the reviews of versions that are due.
    pub fn renew(&self, offline: &BTreeSet<u32>, up: &[u32]) -> Vec<ReplicaReview> {
        let mut reviews: Vec<ReplicaReview> = Vec::new();
        for &node in offline {
            let counts =
                |known: &KnownState| matches!(known.state, NodeState::Lost | NodeState::Removed);
            if !self.has(node, counts) {
                tracing::warn!(
                    node,
                    "a node has been offline for too long: its files are copied again"
                );
                reviews.push(ReplicaReview {
                    node,
                    state: NodeState::Lost,
                    begin: true,
                });
            }
        }
        for (&node, known) in &*self.nodes.read() {
            let begin = known.state == NodeState::Lost && up.contains(&node);
            if begin {
                tracing::info!(node, "a lost node has reconnected");
            }
            if begin || known.is_pending() && reviews.iter().all(|review| review.node != node) {
                reviews.push(ReplicaReview {
                    node,
                    state: if begin {
                        NodeState::Reconnected
                    } else {
                        known.state
                    },
                    begin,
                });
            }
        }
        for review in &reviews {
            self.change(review.node, |known| {
                (known.state, known.reviewed) = (review.state, false);
            });
        }
        reviews
    }

    /// Whether more versions of a lost or reconnected node have to be examined.
    pub fn pending(&self) -> bool {
        self.nodes.read().values().any(KnownState::is_pending)
    }
}

impl KnownState {
    fn is_pending(&self) -> bool {
        !self.reviewed && matches!(self.state, NodeState::Lost | NodeState::Reconnected)
    }
}

/// Returns the stored statuses of all nodes.
pub fn all(db: &Connection) -> Result<Vec<v1::Node>, Fault> {
    let sql = "SELECT status FROM node WHERE status IS NOT NULL ORDER BY node";
    let statuses: Vec<Vec<u8>> = rows(db, sql, [], |row| row.get(0))?;
    Ok(statuses
        .iter()
        .filter_map(|status| v1::Node::decode(status.as_slice()).ok())
        .collect())
}

/// Returns the stored status of a node, as it was before the node's present connection.
pub fn known(db: &Connection, node: u32) -> Result<Option<v1::Node>, Fault> {
    let sql = "SELECT status FROM node WHERE node = ?1 AND status IS NOT NULL";
    let known = find(db, sql, [node], |row| row.get::<_, Vec<u8>>(0))?;
    Ok(known.and_then(|status| v1::Node::decode(status.as_slice()).ok()))
}

/// Stores the status of a node, unless the node was removed.
pub fn put(db: &Connection, status: &v1::Node) -> Result<(), Fault> {
    let sql = "INSERT INTO node(node, status) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET status = ?2 WHERE state != 3";
    execute(db, sql, params![status.node, status.encode_to_vec()])
}

/// Returns the nodes that are lost.
pub fn lost(db: &Connection) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM node WHERE state = 2";
    rows(db, sql, [], |row| row.get(0))
}

/// Records that a node was removed from the cluster. Only the number of the node remains.
pub fn insert_removed(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO node(node, state) VALUES (?1, ?2)";
    execute(db, sql, params![node, NodeState::Removed])
}

/// Adds the next versions of a lost or reconnected node to the list of versions to examine.
pub fn review(
    db: &Connection,
    states: &NodeStates,
    review: ReplicaReview,
    now: i64,
) -> Result<(), Fault> {
    let ReplicaReview { node, state, begin } = review;
    if begin {
        let sql = "INSERT INTO node(node, state) VALUES (?1, ?2) \
                   ON CONFLICT DO UPDATE SET state = ?2, reviewed = 0 WHERE state != 3";
        execute(db, sql, params![node, state])?;
    }
    let sql = "SELECT reviewed FROM node WHERE node = ?1 AND state = ?2";
    let Some(after) = find(db, sql, params![node, state], |row| row.get::<_, i64>(0))? else {
        return states.load(db);
    };
    let held = "SELECT object FROM replica WHERE want != 2 AND node = ?1 AND object > ?2 AND state > 0 AND (tier IS NOT NULL \
                OR node != (SELECT node FROM held WHERE held.object = replica.object)) \
                UNION SELECT replica.object FROM replica CROSS JOIN held ON held.object = replica.object \
                WHERE tier IS NOT NULL AND held.node = ?1 AND replica.object > ?2 AND removed = 0 \
                UNION SELECT object FROM held \
                WHERE node = ?1 AND object > ?2 AND replicas > 1 AND removed = 0 ORDER BY object LIMIT ?3";
    let row = params![node, after, REVIEWED_MAX];
    let objects: Vec<i64> = rows(db, held, row, |row| row.get(0))?;
    for &object in &objects {
        let object = object.cast_unsigned();
        under_replicated::recount(db, object, now)?;
        if state == NodeState::Lost {
            burst::lost_elsewhere(db, object)?;
        }
    }
    let full = objects.len() as u64 >= u64::from(REVIEWED_MAX);
    let reached = objects.last().filter(|_| full).copied().unwrap_or(ALL);
    let after_all = match state {
        NodeState::Reconnected if reached == ALL => NodeState::Present,
        _ => state,
    };
    let sql = "UPDATE node SET state = ?2, reviewed = ?3 WHERE node = ?1";
    execute(db, sql, params![node, after_all, reached])?;
    states.change(node, |known| {
        (known.state, known.reviewed) = (after_all, reached == ALL);
    });
    Ok(())
}

/// Starts draining a node, unless the node is already being drained. From now on, each version sealed on the node is put on the list at its
/// seal.
pub fn drain(db: &Connection, states: &NodeStates, node: u32, now: i64) -> Result<(), Fault> {
    states.set_emptied(node, true);
    let sql = "INSERT INTO node(node, drain_began) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET drain_began = ?2, \
               drain_listed = 0, drain_files = 0, drain_bytes = 0 WHERE drain_began IS NULL";
    execute(db, sql, params![node, now])?;
    migrations::drain(db, node)
}

/// Stops draining a node; returns whether it was being drained. The node's remaining objects stay, and objects that have left the node stay
/// on the other nodes.
pub fn cancel_drain(db: &Connection, states: &NodeStates, node: u32) -> Result<bool, Fault> {
    let sql = "UPDATE node SET drain_began = NULL WHERE node = ?1 AND drain_began IS NOT NULL";
    if changed(db, sql, [node])? == 0 {
        return Ok(false);
    }
    migrations::cancel_drain(db, node)?;
    states.set_emptied(node, false);
    Ok(true)
}

/// Counts a file of `size` bytes that has left a node, if the node is being drained.
pub(super) fn count_left(db: &Connection, node: u32, size: i64) -> Result<(), Fault> {
    let sql = "UPDATE node SET drain_files = drain_files + 1, drain_bytes = drain_bytes + ?2 \
               WHERE node = ?1 AND drain_began IS NOT NULL";
    execute(db, sql, params![node, size])
}

/// Returns the draining nodes whose versions are not all on the list of versions to examine yet.
pub fn unlisted(db: &Connection) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM node WHERE drain_began IS NOT NULL AND drain_listed != ?1";
    rows(db, sql, [ALL], |row| row.get(0))
}

/// Adds the next versions on a draining node to the list of versions to examine.
pub fn list(db: &Connection, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "SELECT drain_listed FROM node WHERE node = ?1 AND drain_began IS NOT NULL";
    let Some(after) = find(db, sql, [node], |row| row.get::<_, i64>(0))? else {
        return Ok(());
    };
    let sql = "SELECT max(object) FROM (SELECT object FROM held WHERE object > ?1 ORDER BY object LIMIT ?2)";
    let mut statement = db.sql.prepare_cached(sql)?;
    let last: Option<i64> = statement.query_row(params![after, LISTED_MAX], |row| row.get(0))?;
    if let Some(last) = last {
        migrations::request_drain(db, node, (after, last))?;
        under_replicated::schedule_leaving(db, node, (after, last), now)?;
    }
    let sql = "UPDATE node SET drain_listed = ?2 WHERE node = ?1";
    execute(db, sql, params![node, last.unwrap_or(ALL)])
}

/// Returns the progress of all draining nodes.
pub fn drains(db: &Connection, now: i64) -> Result<Vec<v1::Drain>, Fault> {
    let sql = "SELECT node, drain_began, drain_listed, drain_files, drain_bytes FROM node \
               WHERE drain_began IS NOT NULL ORDER BY node";
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
    let sql = format!("SELECT count(*), {bytes} FROM replica WHERE want = 1 AND node = ?1");
    let mut statement = db.sql.prepare_cached(&sql)?;
    (drain.files_left, drain.bytes_left) = statement.query_row([node], numbers)?;
    let sql = "SELECT count(*) FROM replica CROSS JOIN short ON short.object = replica.object \
               WHERE want = 1 AND node = ?1 AND short.at > ?2";
    drain.files_waiting = number(db, sql, params![node, now])?;
    let uses = node_uses::uses(db, node)?;
    (drain.removals, drain.writing, drain.labels) = (uses.removals, uses.writing, uses.labels);
    Ok(())
}

/// Returns the stored suspensions of all nodes that were ever suspended.
pub fn suspensions(db: &Connection) -> Result<Vec<StoredElasticState>, Fault> {
    let sql = "SELECT node, suspended, suspended_at, resumes, resume_ns FROM node WHERE suspended IS NOT NULL";
    rows(db, sql, [], |row| {
        Ok(StoredElasticState {
            node: row.get(0)?,
            suspended: row.get(1)?,
            since: row.get(2)?,
            resumes: Resumes {
                count: unsigned(row, 3)?,
                total_ns: unsigned(row, 4)?,
            },
        })
    })
}

/// Stores whether a node is suspended, and the durations of its resumes so far.
pub fn keep_suspension(db: &Connection, kept: StoredElasticState) -> Result<(), Fault> {
    let sql = "INSERT INTO node(node, suspended, suspended_at, resumes, resume_ns) VALUES (?1, ?2, ?3, ?4, ?5) \
               ON CONFLICT DO UPDATE SET suspended = ?2, suspended_at = ?3, resumes = ?4, resume_ns = ?5 WHERE state != 3";
    let (count, total) = (kept.resumes.count, kept.resumes.total_ns);
    let row = params![
        kept.node,
        kept.suspended,
        kept.since,
        count.cast_signed(),
        total.cast_signed()
    ];
    execute(db, sql, row)
}

/// Returns the stored energy of the nodes with a known energy.
pub(super) fn energy(db: &Connection) -> Result<BTreeMap<u32, Drawn>, Fault> {
    let sql = "SELECT node, microjoules, counted_ns, basis FROM node WHERE basis IS NOT NULL";
    rows(db, sql, [], |row| {
        let drawn = Drawn {
            microjoules: unsigned(row, 1)?,
            counted_ns: unsigned(row, 2)?,
            by: row.get(3)?,
        };
        Ok((row.get(0)?, drawn))
    })
}

/// Stores the energy of these nodes.
pub fn keep_energy(db: &Connection, all: &BTreeMap<u32, Drawn>) -> Result<(), Fault> {
    let sql = "UPDATE node SET microjoules = value ->> 1, counted_ns = value ->> 2, basis = value ->> 3 \
               FROM json_each(?1) WHERE node.node = value ->> 0 AND state != 3";
    let rows = all.iter().map(|(node, drawn)| {
        let (energy, time) = (
            drawn.microjoules.cast_signed(),
            drawn.counted_ns.cast_signed(),
        );
        (node, energy, time, &drawn.by)
    });
    execute(db, sql, [json(&rows.collect::<Vec<_>>())])
}

/// Removes a node from the cluster. The versions that are being written there can't become complete any more, and are aborted.
pub fn remove(db: &Connection, shared: &NamesShared, node: u32, now: i64) -> Result<(), Fault> {
    abandon_writing(db, shared, node, now)?;
    shared.nodes.set_removed(node);
    // Other nodes have these versions, too, and further replicas may be missing from now on.
    let sql = "SELECT object FROM replica WHERE want != 2 AND node = ?1 AND state > 0 AND (tier IS NOT NULL \
               OR node != (SELECT node FROM held WHERE held.object = replica.object)) UNION SELECT replica.object FROM replica \
               CROSS JOIN held ON held.object = replica.object \
               WHERE tier IS NOT NULL AND held.node = ?1 AND replica.node != ?1 AND removed = 0";
    let others: Vec<u64> = rows(db, sql, [node], |row| unsigned(row, 0))?;
    for &object in &others {
        under_replicated::look_again(db, object, now)?;
    }
    under_replicated::schedule_lost(db, node, now)?;
    insert_removed(db, node)?;
    for object in others {
        burst::lost_elsewhere(db, object)?;
    }
    replicas::forget_node(db, node)?;
    reservations::forget_node(db, node)?;
    migrations::cancel_to(db, node)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    /// Returns the state of each node and whether the node is draining, in memory and after a restart of the server.
    fn pictures(db: &Connection, states: &NodeStates) -> Vec<(u32, NodeState, bool)> {
        let restarted = NodeStates::default();
        restarted.load(db).unwrap();
        let [now, later] = [states, &restarted].map(|states| {
            let nodes = states.nodes.read();
            let known = nodes
                .iter()
                .map(|(&node, known)| (node, known.state, known.draining));
            let present = |(_, state, draining): &(u32, NodeState, bool)| {
                *state == NodeState::Present && !draining
            };
            known.filter(|known| !present(known)).collect::<Vec<_>>()
        });
        assert_eq!(now, later);
        assert_eq!(states.pending(), restarted.pending());
        now
    }

    #[test]
    fn node_row_and_picture_agree_and_removed_node_never_returns() {
        let directory = tempfile::tempdir().unwrap();
        let db = schema::open_writer(&directory.path().join("server.db")).unwrap();
        let states = NodeStates::default();
        let status = v1::Node {
            node: 3,
            ..v1::Node::default()
        };
        let kept = StoredElasticState {
            node: 3,
            suspended: true,
            since: 5,
            resumes: Resumes::default(),
        };
        let energy = [(3, Drawn::default())].into();
        let report = || {
            put(&db, &status).unwrap();
            keep_suspension(&db, kept).unwrap();
            keep_energy(&db, &energy).unwrap();
        };
        let examine = |offline: &[u32], up: &[u32]| {
            let reviews = states.renew(&offline.iter().copied().collect(), up);
            for one in &reviews {
                review(&db, &states, *one, 1).unwrap();
            }
            reviews
        };
        report();
        assert_eq!(all(&db).unwrap(), std::slice::from_ref(&status));
        drain(&db, &states, 3, 1).unwrap();
        assert_eq!(pictures(&db, &states), [(3, NodeState::Present, true)]);
        // The node is lost while it is drained.
        let lost = examine(&[3], &[])[0];
        assert_eq!(pictures(&db, &states), [(3, NodeState::Lost, true)]);
        assert!(examine(&[3], &[]).is_empty());
        examine(&[], &[3]);
        assert_eq!(pictures(&db, &states), [(3, NodeState::Present, true)]);
        assert!(cancel_drain(&db, &states, 3).unwrap());
        assert_eq!(pictures(&db, &states), []);
        assert_eq!(suspensions(&db).unwrap().len(), 1);
        // Late messages and a review that was decided before the removal do not bring the node back.
        states.set_removed(3);
        insert_removed(&db, 3).unwrap();
        report();
        review(&db, &states, lost, 1).unwrap();
        assert_eq!(pictures(&db, &states), [(3, NodeState::Removed, false)]);
        assert!(all(&db).unwrap().is_empty() && suspensions(&db).unwrap().is_empty());
        assert!(super::energy(&db).unwrap().is_empty() && states.lost().is_empty());
    }
}
