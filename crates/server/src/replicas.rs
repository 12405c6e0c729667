//! Decisions about the replicas of versions that lack replicas, or that are to migrate ([`tidemill_meta::placement::under_replicated`]).
//! Next: `server/src/jobs`, whose driver calls this module and sends the labels that create the replicas.

use crate::chores::{Chore, Due, Step};
use crate::clock;
use crate::cluster::Cluster;
use crate::jobs::DriverMessage;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::placement::burst::{self, TierNode};
use tidemill_meta::placement::nodes::NodeStates;
use tidemill_meta::placement::under_replicated::{self, ReplicaFinding, VersionFacts, due};
use tidemill_meta::remotes;
use tidemill_meta::wakes::{COMMIT, FILLED, NODES};
use tidemill_meta::{Connection, Fault};
use tidemill_model::id::{Inode, NodeId, ObjectId};
use tidemill_model::label::{LabelInput, LabelOutput, Operation, Owner};
use tidemill_model::layout::Selection;
use tidemill_model::replicas::{NodeAbsences, OnlineNode, ReplicaRecord, ReplicaSet, ReplicaStep};
use tidemill_model::timers::Signals;

/// Time until the next look while replicas are being created, or new files give way to programs that write.
const LOOK: Duration = Duration::from_millis(500);
/// Maximum number of versions examined in one batch.
pub(crate) const VERSIONS_MAX: usize = 256;

/// A version that may have fewer replicas than wanted.
#[derive(Clone, Debug)]
pub(crate) struct UnderReplicated {
    pub(crate) kept: ReplicaSet,
    /// Facts about the version; `None` if the object belongs to no version.
    facts: Option<VersionFacts>,
    /// Nodes with a backend in which the file at this path must not be written.
    not_written: Vec<u32>,
}

/// Returns the nodes of the burst tier that are filled above the limit for eviction and have objects to evict or to stage out.
pub(crate) fn filling(database: &Database, cluster: &Cluster) -> Vec<TierNode> {
    let mut tier = cluster.tier();
    tier.retain(|&free| {
        let at = (free, clock::now_ns());
        let can = database.read(|db| burst::can_make_space(db, cluster.limits(), at));
        can.unwrap_or(false)
    });
    tier
}

/// Makes the driver create missing replicas.
pub(crate) struct MissingReplicas {
    database: Arc<Database>,
    cluster: Arc<Cluster>,
    /// Time for which a node may be offline before its replicas are recreated.
    after: Duration,
    driver: Sender<DriverMessage>,
    /// Nodes that were offline for that time at the last step.
    offline: BTreeSet<u32>,
}

impl MissingReplicas {
    pub(crate) fn new(
        database: &Arc<Database>,
        cluster: &Arc<Cluster>,
        after: Duration,
        driver: &Sender<DriverMessage>,
    ) -> Self {
        Self {
            database: database.clone(),
            cluster: cluster.clone(),
            after,
            driver: driver.clone(),
            offline: BTreeSet::new(),
        }
    }
}

impl Chore for MissingReplicas {
    fn delays(&self) -> &'static str {
        "replicas are postponed"
    }

    fn woken_by(&self) -> Signals {
        COMMIT.and(NODES).and(FILLED)
    }

    fn due(&mut self, now: i64) -> Result<Due, Fault> {
        let first = self.database.read(under_replicated::first)?;
        let waits = first.is_some_and(|at| at <= now);
        let up = self.cluster.up();
        let due = waits
            && !self
                .database
                .read(|db| due(db, (now, now), &up, 1))?
                .is_empty();
        if due
            || self.offline != self.cluster.offline_for(self.after)
            || !filling(&self.database, &self.cluster).is_empty()
        {
            return Ok(Due::NOW);
        }
        let next = match waits {
            true => Some(LOOK),
            false => first.and_then(|at| Due::At(at).left(now)),
        };
        let next = next
            .into_iter()
            .chain(self.cluster.next_offline_for(self.after))
            .min();
        Ok(next.map_or(Due::Woken, Due::After))
    }

    fn step(&mut self, _: i64) -> Step<'_> {
        self.offline = self.cluster.offline_for(self.after);
        let sent = self.driver.send(DriverMessage::Replicas);
        let sent = sent.map(|()| Due::NOW).map_err(|_| Fault::Closed);
        Box::pin(std::future::ready(sent))
    }
}

/// Facts about the nodes from which the replicas of versions are decided.
#[derive(Debug)]
pub(crate) struct NodesView {
    pub(crate) stores: Vec<u32>,
    pub(crate) bursts: BTreeSet<u32>,
    pub(crate) sites: Vec<OnlineNode>,
}

impl NodesView {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self {
            stores: cluster.stores(),
            bursts: cluster.bursts(),
            sites: cluster.sites(),
        }
    }

    /// Records in the transaction that has ended a copy that the version now has enough replicas, if so. Otherwise the driver examines the
    /// version next.
    pub(crate) fn settle(
        &self,
        db: &Connection,
        object: ObjectId,
        (nodes, now): (&NodeStates, i64),
    ) -> Result<(), Fault> {
        // Another transaction may have removed a node since this view was made.
        let absent = self.absences(nodes);
        match short(db, object.0, &absent) {
            Ok(short) if short.is_deleted() || short.next(&self.sites) != ReplicaStep::Enough => {}
            Ok(_) => drop(under_replicated::found(
                db,
                object,
                &ReplicaFinding::Enough,
                now,
            )?),
            Err(fault) => fault.log_delay("replicas of a version are examined later"),
        }
        Ok(())
    }

    /// Returns the absent and drained nodes.
    pub(crate) fn absences(&self, nodes: &NodeStates) -> NodeAbsences {
        let mut lost = nodes.lost();
        lost.append(&mut nodes.removed());
        let emptied = nodes.emptied();
        let stays = |node: &&u32| !lost.contains(node) && !emptied.contains(node);
        let places = self.stores.iter().filter(stays).count();
        NodeAbsences {
            lost,
            emptied,
            places,
            bursts: self.bursts.clone(),
        }
    }
}

/// Reads all facts about a version that may lack replicas or has a requested migration.
pub(crate) fn short(
    db: &Connection,
    object: u64,
    absent: &NodeAbsences,
) -> Result<UnderReplicated, Fault> {
    let facts = under_replicated::facts(db, object)?;
    let (mut size, mut from, mut not_written) = ((0, 0), NodeId(0), Vec::new());
    let mut records: &[ReplicaRecord] = &[];
    if let Some(facts) = &facts {
        (size, from, records) = ((facts.size, facts.wanted), facts.first, &facts.records);
        not_written = remotes::read_only_nodes(db, &facts.path)?;
    }
    Ok(UnderReplicated {
        kept: ReplicaSet::new(ObjectId(object), size, (from, records), absent),
        facts,
        not_written,
    })
}

impl UnderReplicated {
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
        self.facts.as_ref().is_none_or(|facts| facts.deleted)
    }

    /// Whether the version was staged out, but is no longer stored on any node of the capacity tier.
    pub(crate) fn stages_out_again(&self) -> bool {
        let mut records = self.facts.iter().flat_map(|facts| &facts.records);
        let staged_out = records.any(|one| one.staged_out);
        staged_out && !self.is_deleted() && !self.kept.is_stored()
    }

    /// Returns the owner of the version's file.
    pub(crate) fn owner(&self) -> Owner {
        let owner = self.facts.as_ref().map(|facts| facts.owner);
        owner.unwrap_or_default()
    }

    /// Returns the operation of a label that creates a replica by copying from the node `from`.
    pub(crate) fn operation(&self, from: NodeId) -> Operation {
        let facts = self.facts.as_ref();
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
                inode: Inode(facts.map_or(0, |facts| facts.ino)),
                path: facts.map(|facts| facts.path.clone()).unwrap_or_default(),
                memory: false,
            },
            part: facts.and_then(|facts| facts.part),
            mode: facts.and_then(|facts| facts.mode),
        }
    }
}
