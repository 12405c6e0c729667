//! Additional replicas of versions. The tables `short` and `migration` list the replicas that are missing or are to be removed, and labels
//! create them. Next: `server/src/jobs`, whose driver calls this module and sends the labels.
//!
//! A replica has the id of the version, and is on another node. Its row in `replica` is written together with its label, and becomes
//! current when the label has succeeded. The row is deleted with the version, whatever the outcome of its label. A row of `short` is
//! deleted when a version has as many replicas as wanted, so after a restart `short` lists exactly the remaining work.

use crate::attached;
use crate::clock;
use crate::cluster::Cluster;
use crate::corruption;
use crate::jobs::DriverMessage;
use crate::jobs::store::json;
use crate::migrations;
use crate::names::Fault;
use crate::names::burst::{self, TierNode};
use crate::names::commit::Database;
use crate::names::draining::Leaving;
use crate::names::parts;
use crate::names::replicas::{
    COMING, CURRENT, MIGRATIONS, NEW, NOWHERE, leaves, look_again, others, remove_replica,
    state_of_first, switch_first,
};
use crate::names::{Change, notes};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_model::id::{Inode, NodeId, ObjectId};
use tidemill_model::label::{LabelInput, LabelOutput, Operation, Owner};
use tidemill_model::layout::{PartOf, Selection};
use tidemill_model::replicas::{OnlineNode, REPLICAS_MAX, ReplicaSet, ReplicaState, ReplicaStep};
use tidemill_wire::v1;

/// Interval at which the server checks for missing replicas.
const PERIOD: Duration = Duration::from_millis(500);
/// Maximum number of versions examined in one batch.
pub(crate) const VERSIONS_MAX: usize = 256;
/// Maximum number of versions of one node that are read in one batch.
const PAGE_MAX: u32 = 4096;
/// Value of the column `lost.after` when all versions of the node are listed.
const ALL: i64 = i64::MAX;
/// Maximum number of unavailable files whose names are reported.
const LOST_NAMED_MAX: i64 = 10;
/// Longest pause between seals that still belong to one run of new files. The files of a run are replicated when the run ends, since
/// replication would slow down the program that writes the files.
const GIVE_WAY_NS: i64 = 200_000_000;
/// Maximum wait of the first file of a run, in nanoseconds, before its replication starts.
const GIVE_WAY_NS_MAX: i64 = 5 * 1_000_000_000;
/// Time in nanoseconds for which a version is skipped after no replica of the version could be created.
pub(crate) const REST_NS: i64 = 10 * 1_000_000_000;

/// A version that may have fewer replicas than wanted.
#[derive(Clone, Debug)]
pub(crate) struct UnderReplicated {
    pub(crate) kept: ReplicaSet,
    pub(crate) owner: Owner,
    ino: u64,
    path: String,
    /// Version that contains the object as a part; `None` if the object is a whole version.
    part: Option<PartOf>,
    /// Whether the version is in the burst tier and was also stored on a node of the capacity tier at the last check.
    staged_out: bool,
    /// Whether the version was deleted and no longer belongs to a file.
    deleted: bool,
    /// Nodes with a backend in which the file at this path must not be written.
    not_written: Vec<u32>,
}

/// Finding about the replicas of a version.
#[derive(Clone, Debug)]
pub(crate) enum ReplicaFinding {
    /// The version has enough replicas, or no replicas are wanted any more.
    Enough,
    /// No replica can be created or removed now. `has` replicas are current (column `short.has`), which may be as many as possible.
    Rest { has: i64, stored: bool },
    /// A replica with a requested migration must stay on its node.
    Stay,
    /// The replicas on the nodes `goes` are to be removed, and `first` is the node of the first replica afterwards.
    Surplus { goes: Vec<NodeId>, first: NodeId },
}

/// Nodes that have been offline for longer than the repair delay.
#[derive(Debug)]
pub(crate) struct LostNodes {
    /// Time for which a node may be offline before its replicas are recreated.
    pub(crate) after: Duration,
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
pub(crate) struct ReplicaReview {
    node: u32,
    back: bool,
    begin: bool,
}

impl LostNodes {
    /// Reads the lost nodes from the database.
    pub(crate) fn new(db: &Connection, after: Duration) -> Result<Self, Fault> {
        let mut statement = db.prepare("SELECT node, back, after FROM lost")?;
        let rows = statement.query_map([], |row| {
            let loss = LostNode {
                back: row.get(1)?,
                all: row.get::<_, i64>(2)? == ALL,
            };
            Ok((row.get(0)?, loss))
        })?;
        let nodes = rows.collect::<Result<_, _>>()?;
        Ok(Self { after, nodes })
    }

    /// Returns the lost nodes.
    pub(crate) fn lost(&self) -> BTreeSet<u32> {
        let lost = self.nodes.iter().filter(|(_, loss)| !loss.back);
        lost.map(|(&node, _)| node).collect()
    }

    /// Updates the lost nodes from the nodes that are offline and up. Returns the reviews of versions that are due.
    pub(crate) fn renew(&mut self, offline: &BTreeSet<u32>, up: &[u32]) -> Vec<ReplicaReview> {
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
    pub(crate) fn looked(&mut self, db: &Connection) -> Result<(), Fault> {
        self.nodes = Self::new(db, self.after)?.nodes;
        Ok(())
    }

    /// Whether more versions of a lost or reconnected node have to be examined.
    pub(crate) fn pending(&self) -> bool {
        self.nodes.values().any(|loss| !loss.all)
    }
}

/// Adds the next versions of a node to the list of versions to examine.
pub(crate) fn look(db: &Connection, look: ReplicaReview, now: i64) -> Result<(), Fault> {
    if look.begin {
        let sql = "INSERT OR REPLACE INTO lost VALUES (?1, ?2, 0)";
        db.prepare_cached(sql)?
            .execute(params![look.node, look.back])?;
    }
    let sql = "SELECT after FROM lost WHERE node = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let after = statement.query_row([look.node], |row| row.get::<_, i64>(0));
    let Some(after) = after.optional()? else {
        return Ok(());
    };
    let held = "SELECT object FROM replica WHERE node = ?1 AND object > ?2 \
                UNION SELECT object FROM burst WHERE node = ?1 AND object > ?2 \
                UNION SELECT burst.object FROM burst CROSS JOIN held ON held.object = burst.object \
                WHERE held.node = ?1 AND burst.object > ?2 AND removed = 0 \
                UNION SELECT object FROM held \
                WHERE node = ?1 AND object > ?2 AND replicas > 1 AND removed = 0 ORDER BY object LIMIT ?3";
    let mut statement = db.prepare_cached(held)?;
    let row = params![look.node, after, PAGE_MAX];
    let objects = statement.query_map(row, |row| row.get(0))?;
    let objects = objects.collect::<Result<Vec<i64>, _>>()?;
    let sql = "INSERT INTO short SELECT object, \
               (node NOT IN (SELECT node FROM lost WHERE back = 0)) + (SELECT count(*) FROM replica \
                WHERE replica.object = held.object AND state = ?3 \
                AND node NOT IN (SELECT node FROM lost WHERE back = 0)), ?2 \
               FROM held WHERE object = ?1 \
               ON CONFLICT DO UPDATE SET has = excluded.has, at = min(at, ?2)";
    let mut insert = db.prepare_cached(sql)?;
    for &object in &objects {
        insert.execute(params![object, now, CURRENT])?;
        if !look.back {
            burst::lost_elsewhere(db, object)?;
        }
    }
    match objects.last() {
        Some(&last) if objects.len() as u64 >= u64::from(PAGE_MAX) => {
            let sql = "UPDATE lost SET after = ?2 WHERE node = ?1";
            db.prepare_cached(sql)?.execute(params![look.node, last])?;
        }
        _ => {
            db.prepare_cached("DELETE FROM lost WHERE node = ?1 AND back = 1")?
                .execute([look.node])?;
            let sql = "UPDATE lost SET after = ?2 WHERE node = ?1";
            db.prepare_cached(sql)?.execute(params![look.node, ALL])?;
        }
    }
    Ok(())
}

/// Returns the nodes of the burst tier that are filled above the limit for eviction.
pub(crate) fn filling(database: &Database, cluster: &Cluster) -> Vec<TierNode> {
    let mut tier = cluster.tier();
    tier.retain(|&free| {
        let at = (free, clock::now_ns());
        let to_evict = database.read(|db| burst::to_evict(db, cluster.limits(), at));
        to_evict.is_ok_and(|bytes| bytes > 0)
    });
    tier
}

/// Makes the driver check for missing replicas periodically, as long as the server runs.
pub(crate) async fn watch(
    database: Arc<Database>,
    cluster: Arc<Cluster>,
    after: Duration,
    driver: Sender<DriverMessage>,
) {
    let mut offline = BTreeSet::new();
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = clock::now_ns();
        let due = database.read(|db| Ok(!due(db, (now, now), &cluster.up(), 1)?.is_empty()));
        let before = std::mem::replace(&mut offline, cluster.offline_for(after));
        let look =
            due.unwrap_or(false) || before != offline || !filling(&database, &cluster).is_empty();
        if look && driver.send(DriverMessage::Replicas).is_err() {
            return;
        }
    }
}

/// Returns the number of versions with missing replicas, and the names of unavailable files.
pub(crate) fn health(db: &Connection) -> Result<v1::ReplicaHealth, Fault> {
    let count = |sql: &str| -> Result<u64, Fault> {
        let mut statement = db.prepare_cached(sql)?;
        let count: i64 = statement.query_row([], |row| row.get(0))?;
        Ok(count.cast_unsigned())
    };
    let sql = "SELECT DISTINCT path FROM short CROSS JOIN held ON held.object = short.object WHERE has = 0 ORDER BY short.object LIMIT ?1";
    let mut statement = db.prepare_cached(sql)?;
    let unavailable_paths = statement.query_map([LOST_NAMED_MAX], |row| row.get(0))?;
    let mut nodes = db.prepare_cached("SELECT node FROM lost WHERE back = 0")?;
    let failed_nodes = nodes.query_map([], |row| row.get(0))?;
    Ok(v1::ReplicaHealth {
        short: count(&format!(
            "SELECT count(*) FROM short WHERE has < {REPLICAS_MAX}"
        ))?,
        unavailable: count("SELECT count(*) FROM short WHERE has = 0")?,
        unavailable_paths: unavailable_paths.collect::<Result<_, _>>()?,
        failed_nodes: failed_nodes.collect::<Result<_, _>>()?,
        corrupt: count("SELECT count(*) FROM corruption")?,
    })
}

/// Returns the versions to examine up to `until`; versions with the fewest replicas come first. New versions wait while more new versions
/// arrive. A version is left out while a node that is up creates a replica of the version.
pub(crate) fn due(
    db: &Connection,
    (now, until): (i64, i64),
    up: &[u32],
    max: usize,
) -> Result<Vec<i64>, Fault> {
    let sql = "SELECT min(at), max(at) FROM short WHERE has = ?1 AND at <= ?2";
    let mut ends = db.prepare_cached(sql)?;
    let ends = ends.query_row([NEW, now], |row| {
        Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?))
    });
    let waits = match ends? {
        (Some(first), Some(last)) => now - last < GIVE_WAY_NS && now - first < GIVE_WAY_NS_MAX,
        _ => false,
    };
    let sql = "SELECT object FROM short WHERE has = ?1 AND at <= ?2 AND NOT EXISTS \
               (SELECT 1 FROM replica WHERE replica.object = short.object AND state = ?4 \
               AND node IN (SELECT value FROM json_each(?5))) ORDER BY at LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let up = json(&up);
    let mut objects = Vec::new();
    for has in (0..=MIGRATIONS).filter(|&has| !(waits && has == NEW)) {
        let left = i64::try_from(max - objects.len()).unwrap_or(0);
        let row = params![has, until, left, COMING, up];
        let rows = statement.query_map(row, |row| row.get(0))?;
        objects.extend(rows.collect::<Result<Vec<i64>, _>>()?);
    }
    Ok(objects)
}

/// Facts about absent or drained nodes that the tables of versions lack.
#[derive(Debug)]
pub(crate) struct NodeAbsences {
    /// Nodes that have been offline for longer than the repair delay, and nodes that were removed from the cluster.
    pub(crate) lost: BTreeSet<u32>,
    /// Nodes that are being drained.
    pub(crate) emptied: BTreeSet<u32>,
    /// Number of nodes that could hold replicas.
    pub(crate) places: usize,
    /// Nodes of the burst tier.
    pub(crate) bursts: BTreeSet<u32>,
}

impl NodeAbsences {
    pub(crate) fn new(losses: &LostNodes, leaving: &Leaving, cluster: &Cluster) -> Self {
        let stores = cluster.stores();
        let mut lost = losses.lost();
        lost.append(&mut leaving.removed());
        let emptied = leaving.emptied();
        let stays = |node: &&u32| !lost.contains(node) && !emptied.contains(node);
        let places = stores.iter().filter(stays).count();
        Self {
            lost,
            emptied,
            places,
            bursts: cluster.bursts(),
        }
    }
}

/// Reads all facts about a version that may lack replicas or has a requested migration.
pub(crate) fn short(
    db: &Connection,
    object: i64,
    absent: &NodeAbsences,
) -> Result<UnderReplicated, Fault> {
    let sql = "SELECT held.size, replicas, held.node, removed, held.ino, path, \
               coalesce(inode.uid, held.uid), coalesce(inode.gid, 0) \
               FROM held LEFT JOIN inode ON inode.ino = held.ino WHERE held.object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let object = object.cast_unsigned();
    let found = statement
        .query_row([object.cast_signed()], |row| {
            let kept = ReplicaSet {
                object: ObjectId(object),
                size: row.get::<_, i64>(0)?.cast_unsigned(),
                wanted: row.get::<_, u32>(1)? as usize,
                holders: vec![(NodeId(row.get(2)?), ReplicaState::Current)],
                target: None,
                places: absent.places,
            };
            Ok(UnderReplicated {
                kept,
                part: None,
                staged_out: false,
                not_written: Vec::new(),
                deleted: row.get(3)?,
                ino: row.get::<_, i64>(4)?.cast_unsigned(),
                path: String::from_utf8_lossy(&row.get::<_, Vec<u8>>(5)?).into_owned(),
                owner: Owner {
                    uid: row.get(6)?,
                    gid: row.get(7)?,
                },
            })
        })
        .optional()?;
    let Some(mut short) = found else {
        return Ok(UnderReplicated::deleted(object));
    };
    short.part = parts::part_of(db, object)?;
    short.staged_out = !absent.bursts.is_empty() && burst::is_staged_out(db, object)?;
    short.not_written = attached::not_written(db, &short.path)?;
    let first = &mut short.kept.holders[0];
    first.1 = state_of_first(db, object, first.0.0)?;
    let others = others(db, object)?.into_iter();
    let others = others.map(|(node, state)| (NodeId(node), state));
    short.kept.holders.extend(others);
    let migrations = migrations::of(db, object)?;
    for (node, state) in &mut short.kept.holders {
        let goes =
            |target: u32| !absent.lost.contains(&target) && !absent.emptied.contains(&target);
        // If the wanted target can't take the version, the version stays, unless it has to leave.
        let of = migrations
            .iter()
            .find(|one| one.source == node.0 && (one.anywhere || one.target.is_some_and(goes)));
        let leaves = of.is_some() || absent.emptied.contains(&node.0);
        *state = match (leaves, absent.lost.contains(&node.0), *state) {
            (true, false, ReplicaState::Current) => ReplicaState::Leaving,
            (true, true, _) => ReplicaState::FailedLeaving,
            (false, true, _) => ReplicaState::Failed,
            (false, false, ReplicaState::Current) if absent.bursts.contains(&node.0) => {
                ReplicaState::Burst
            }
            (_, false, state) => state,
        };
        let target = of.and_then(|one| one.target.filter(|&target| goes(target)));
        short.kept.target = short.kept.target.or(target.map(NodeId));
    }
    let staged = staged(&migrations, &short.kept.holders);
    short.kept.target = short.kept.target.or(staged);
    let going = going(db, object)?.into_iter();
    let going = going.map(|node| (NodeId(node), ReplicaState::Going));
    short.kept.holders.extend(going);
    Ok(short)
}

/// Returns the nodes that are about to remove an object.
fn going(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM removal WHERE object = ?1 AND node >= 0";
    let mut statement = db.prepare_cached(sql)?;
    let going = statement.query_map([object.cast_signed()], |row| row.get(0))?;
    Ok(going.collect::<Result<_, _>>()?)
}

/// Returns the node for which a replica was requested, or `None` if that node already has a replica.
fn staged(
    migrations: &[migrations::Migration],
    holders: &[(NodeId, ReplicaState)],
) -> Option<NodeId> {
    let wanted = migrations.iter().find(|one| one.source == NOWHERE)?;
    let target = NodeId(wanted.target?);
    let states = [ReplicaState::Current, ReplicaState::Burst];
    let mut there = holders.iter();
    let has = there.any(|(node, state)| *node == target && states.contains(state));
    (!has).then_some(target)
}

impl UnderReplicated {
    fn deleted(object: u64) -> Self {
        Self {
            kept: ReplicaSet {
                object: ObjectId(object),
                size: 0,
                wanted: 0,
                holders: Vec::new(),
                target: None,
                places: 0,
            },
            owner: Owner::default(),
            ino: 0,
            path: String::new(),
            part: None,
            staged_out: false,
            deleted: true,
            not_written: Vec::new(),
        }
    }

    /// Returns the next step for the version's replicas, given the nodes that are up.
    pub(crate) fn next(&self, sites: &[OnlineNode]) -> ReplicaStep {
        if self.not_written.is_empty() {
            return self.kept.next(sites);
        }
        let mut sites = sites.to_vec();
        for site in &mut sites {
            site.takes &= !(site.backend && self.not_written.contains(&site.node.0));
        }
        self.kept.next(&sites)
    }

    /// Whether no replicas of the version are wanted any more.
    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// Whether the version was staged out, but is no longer stored on any node of the capacity tier.
    pub(crate) fn stages_out_again(&self) -> bool {
        self.staged_out && !self.deleted && !self.kept.is_stored()
    }

    /// Returns the operation of a label that creates a replica by copying from the node `from`.
    pub(crate) fn operation(&self, from: NodeId) -> Operation {
        Operation::Copy {
            from: LabelInput {
                name: String::new(),
                object: self.kept.object,
                node: from,
                size: self.kept.size,
                selection: Selection::WHOLE,
            },
            to: LabelOutput {
                name: String::new(),
                object: self.kept.object,
                inode: Inode(self.ino),
                path: self.path.clone(),
                memory: false,
            },
            part: self.part,
        }
    }
}

/// Returns the existing replicas of some objects except the first of each. The result includes replicas that are removed as soon as no
/// client reads them. With `moved`, the first replicas are included, too, for callers that may know an earlier first replica.
pub(crate) fn of_all(
    db: &Connection,
    objects: &[ObjectId],
    moved: bool,
) -> Result<Vec<(ObjectId, NodeId)>, Fault> {
    let any = "SELECT 1 WHERE EXISTS (SELECT 1 FROM replica) OR EXISTS (SELECT 1 FROM removal)";
    if objects.is_empty() || !(moved || db.prepare_cached(any)?.exists([])?) {
        return Ok(Vec::new());
    }
    let objects: Vec<u64> = objects.iter().map(|object| object.0).collect();
    let sql = "SELECT replica.object, node FROM json_each(?1) AS wanted \
               CROSS JOIN replica ON replica.object = wanted.value WHERE state = ?2 AND NOT EXISTS \
               (SELECT 1 FROM corruption WHERE corruption.object = replica.object AND corruption.node = replica.node) \
               UNION SELECT removal.object, node FROM json_each(?1) AS wanted \
               CROSS JOIN removal ON removal.object = wanted.value WHERE label = 0 AND node >= 0 \
               UNION SELECT held.object, node FROM json_each(?1) AS wanted \
               CROSS JOIN held ON held.object = wanted.value WHERE ?3 AND node >= 0 AND NOT EXISTS \
               (SELECT 1 FROM corruption WHERE corruption.object = held.object AND corruption.node = held.node)";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![json(&objects), CURRENT, moved], |row| {
        let object = ObjectId(row.get::<_, i64>(0)?.cast_unsigned());
        Ok((object, NodeId(row.get(1)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns all nodes with an intact replica of a version, the first replica's node before the others.
pub(crate) fn holders(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT node FROM held WHERE object = ?1 AND node >= 0";
    let mut statement = db.prepare_cached(sql)?;
    let first = statement.query_row([object.cast_signed()], |row| row.get::<_, u32>(0));
    let first = match first.optional()? {
        Some(first) => Some((first, state_of_first(db, object, first)?)),
        None => None,
    };
    let all = first.into_iter().chain(others(db, object)?);
    let current = all.filter(|(_, state)| *state == ReplicaState::Current);
    let mut nodes: Vec<u32> = current.map(|(node, _)| node).collect();
    // A job may still read the replica there.
    let going = "SELECT node FROM removal WHERE object = ?1 AND label = 0 AND node >= 0 \
                 AND NOT EXISTS (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = removal.node)";
    let mut going = db.prepare_cached(going)?;
    let going = going.query_map([object.cast_signed()], |row| row.get(0))?;
    nodes.extend(going.collect::<Result<Vec<u32>, _>>()?);
    Ok(nodes)
}

/// Cancels the removal of a version's replicas if every other replica is corrupt.
pub(crate) fn cancel_removal(
    db: &Connection,
    object: u64,
    (leaving, now): (&Leaving, i64),
) -> Result<(), Fault> {
    let id = object.cast_signed();
    let sql = "SELECT removal.node FROM removal CROSS JOIN held ON held.object = removal.object AND held.removed = 0 \
               WHERE removal.object = ?1 AND removal.label = 0 AND removal.node >= 0 \
               AND NOT EXISTS (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = removal.node) \
               AND EXISTS (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = held.node) \
               AND NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = ?1 AND state = ?2 AND NOT EXISTS \
               (SELECT 1 FROM corruption WHERE corruption.object = ?1 AND corruption.node = replica.node))";
    let mut statement = db.prepare_cached(sql)?;
    let kept = statement.query_map(params![id, CURRENT], |row| row.get::<_, u32>(0))?;
    for node in kept.collect::<Result<Vec<_>, _>>()? {
        tracing::warn!(
            node,
            "object {object:016x} is not removed: its other replicas are corrupt"
        );
        db.prepare_cached("DELETE FROM removal WHERE object = ?1 AND node = ?2")?
            .execute(params![id, node])?;
        db.prepare_cached("INSERT OR REPLACE INTO replica VALUES (?1, ?2, ?3)")?
            .execute(params![id, node, CURRENT])?;
        notes::copied(db, object, node)?;
        if leaving.is_emptied(node) {
            leaves(db, object, node, now)?;
        }
        look_again(db, object, now)?;
    }
    Ok(())
}

/// Records that a label is to create a replica on a node. Does nothing if the version was deleted in the meantime.
pub(crate) fn coming(db: &Connection, object: u64, node: NodeId) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO replica SELECT object, ?2, ?3 FROM held \
               WHERE object = ?1 AND removed = 0 AND node != ?2";
    db.prepare_cached(sql)?
        .execute(params![object.cast_signed(), node.0, COMING])?;
    Ok(())
}

/// Records the outcome of a label that was to create a replica.
pub(crate) fn ended(
    db: &Connection,
    object: ObjectId,
    node: NodeId,
    well: bool,
    (leaving, now): (&Leaving, i64),
) -> Result<(), Fault> {
    if corruption::repaired(db, object, node, well)? {
        if !well {
            return look_later(db, object, 1, now);
        }
        if leaving.is_emptied(node.0) {
            leaves(db, object.0, node.0, now)?;
        }
        return look_again(db, object.0, now);
    }
    let row = params![object.0.cast_signed(), node.0];
    if !well {
        let sql = "DELETE FROM replica WHERE object = ?1 AND node = ?2";
        if db.prepare_cached(sql)?.execute(row)? > 0 {
            let sql = "UPDATE short SET at = ?2, has = max(has, 1) WHERE object = ?1";
            db.prepare_cached(sql)?
                .execute(params![object.0.cast_signed(), now + REST_NS])?;
        }
        return Ok(());
    }
    let sql = "UPDATE replica SET state = ?3 WHERE object = ?1 AND node = ?2";
    let row = params![object.0.cast_signed(), node.0, CURRENT];
    if db.prepare_cached(sql)?.execute(row)? > 0 {
        notes::copied(db, object.0, node.0)?;
        burst::staged_in(db, object.0.cast_signed(), node.0, now)?;
        if leaving.is_emptied(node.0) {
            leaves(db, object.0, node.0, now)?;
        }
        return look_again(db, object.0, now);
    }
    // The version was deleted while the replica was being created.
    remove_replica(db, object.0, node.0, now)
}

/// Stores a finding about the replicas of a version. Returns the change to announce to clients that use the version's file.
pub(crate) fn found(
    db: &Connection,
    object: ObjectId,
    found: &ReplicaFinding,
    now: i64,
) -> Result<Option<Change>, Fault> {
    match found {
        ReplicaFinding::Enough => enough(db, object.0, now).map(|()| None),
        ReplicaFinding::Stay => {
            migrations::stay(db, object.0)?;
            look_again(db, object.0, now)?;
            Ok(None)
        }
        ReplicaFinding::Rest { has, stored } => {
            if *stored {
                burst::staged_out(db, object.0.cast_signed())?;
            }
            look_later(db, object, *has, now)?;
            Ok(None)
        }
        ReplicaFinding::Surplus { goes, first } => remove(db, object.0, (goes, first.0), now),
    }
}

/// Removes a version from the tables `short` and `migration`. If a migration from one of the version's nodes is requested, the version
/// is examined later instead: the request is new, or the migration can't be done now.
fn enough(db: &Connection, object: u64, now: i64) -> Result<(), Fault> {
    let object = object.cast_signed();
    let sql = "SELECT 1 FROM migration WHERE object = ?1 AND (source = (SELECT node FROM held WHERE object = ?1 \
               AND removed = 0) OR source IN (SELECT node FROM replica WHERE object = ?1))";
    if db.prepare_cached(sql)?.exists([object])? {
        return look_later(db, ObjectId(object.cast_unsigned()), MIGRATIONS, now);
    }
    for sql in [
        "DELETE FROM short WHERE object = ?1",
        "DELETE FROM migration WHERE object = ?1",
    ] {
        db.prepare_cached(sql)?.execute([object])?;
    }
    burst::staged_out(db, object)
}

/// Removes replicas. If the first replica is removed, another replica becomes the first.
fn remove(
    db: &Connection,
    object: u64,
    (goes, first): (&[NodeId], u32),
    now: i64,
) -> Result<Option<Change>, Fault> {
    let sql = "SELECT ino, node FROM held WHERE object = ?1 AND removed = 0";
    let mut statement = db.prepare_cached(sql)?;
    let version = statement.query_row([object.cast_signed()], |row| {
        Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, u32>(1)?))
    });
    // The replicas of a version that was deleted in the meantime were deleted with it.
    let Some((ino, was_first)) = version.optional()? else {
        return Ok(None);
    };
    let mut changed = None;
    for node in goes {
        if node.0 == was_first {
            if !switch_first(db, object, first)? {
                continue;
            }
            changed = Some(Change::Vnode(ino));
        }
        remove_replica(db, object, node.0, now)?;
        notes::copied(db, object, node.0)?;
        migrations::done(db, object, node.0)?;
    }
    Ok(changed)
}

fn look_later(db: &Connection, object: ObjectId, has: i64, now: i64) -> Result<(), Fault> {
    let sql = "UPDATE short SET at = ?2, has = ?3 WHERE object = ?1";
    db.prepare_cached(sql)?
        .execute(params![object.0.cast_signed(), now + REST_NS, has])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::SqliteNames;

    #[test]
    fn removed_multipart_version_does_not_hide_replicas_of_other_objects() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let database = names.database();
        let kept = |db: &Connection| {
            db.execute_batch(
                "INSERT INTO removal(object, node, queued) VALUES (7, -1, 0), (8, 2, 0);
                 INSERT INTO replica VALUES (8, 1, 1)",
            )?;
            Ok(())
        };
        database.write_blocking(kept).unwrap();
        let objects = [ObjectId(7), ObjectId(8)];
        let found = database.read(|db| of_all(db, &objects, true)).unwrap();
        assert_eq!(found, [1, 2].map(|node| (ObjectId(8), NodeId(node))));
        assert!(database.read(|db| holders(db, 7)).unwrap().is_empty());
    }

    #[test]
    fn orphan_check_skips_replicas_in_progress_on_connected_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let database = names.database();
        let kept = |db: &Connection| {
            db.execute_batch(
                "INSERT INTO short VALUES (7, 1, 0), (8, 1, 0), (9, 9, 0), (10, 1, 2);
                 INSERT INTO replica VALUES (7, 1, 0), (8, 1, 1)",
            )?;
            Ok(())
        };
        database.write_blocking(kept).unwrap();
        for (up, expected) in [(1, &[8, 9][..]), (2, &[7, 8, 9])] {
            let times = (2 * GIVE_WAY_NS, 1);
            let found = database.read(|db| due(db, times, &[up], 10)).unwrap();
            assert_eq!(found, expected, "{up}");
        }
    }

    #[test]
    fn replication_of_new_versions_waits_for_end_of_run_at_most_5_s() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let database = names.database();
        let last = GIVE_WAY_NS_MAX;
        let kept = move |db: &Connection| {
            let sql = "INSERT INTO short VALUES (7, 1, 1), (8, 1, ?1), (9, 2, ?1)";
            Ok(db.execute(sql, [last])?)
        };
        database.write_blocking(kept).unwrap();
        let due = |now| {
            database
                .read(move |db| due(db, (now, now), &[], 10))
                .unwrap()
        };
        assert_eq!(due(last), [9]);
        assert_eq!(due(last + 1), [7, 8, 9]);
        let kept =
            |db: &Connection| Ok(db.execute("UPDATE short SET at = 2 WHERE object = 7", [])?);
        database.write_blocking(kept).unwrap();
        assert_eq!(due(last + 1), [9]);
        assert_eq!(due(last + GIVE_WAY_NS), [7, 8, 9]);
    }
}
