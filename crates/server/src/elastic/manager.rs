//! The worker manager suspends nodes that were idle for a while, and resumes nodes that are needed. It sends messages to nodes and runs
//! commands. Next: `server/src/cluster.rs`, which sends the messages.

use super::Elastic;
use crate::chores::{Chore, Due, Step};
use crate::clock;
use crate::cluster::Cluster;
use crate::cluster::suspended_connections::Activity;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::placement::suspensions::{LOOK, StoredElasticState, Suspensions, span};
use tidemill_meta::placement::{node_uses, nodes, under_replicated};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::wakes::SUSPENSIONS;
use tidemill_meta::{Connection, Fault, SqliteNames};
use tidemill_model::id::NodeId;
use tidemill_model::time::Span;
use tidemill_model::timers::Signals;
use tidemill_sched::dispatch::Demand;
use tidemill_sched::elastic::{
    ElasticAction, ElasticEvent, RESUME_UNKNOWN, ResumeCandidate, allocate,
};
use tidemill_wire::v1::{self, to_node::Message as To};
use tokio::time::Instant;

/// Interval at which the consumed energy of nodes is stored.
const KEEP: Duration = Duration::from_secs(30);
/// Interval at which the manager checks which nodes are needed and which are idle, while any node may be suspended, and (`COUNT`) at which
/// it only counts energy.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const COUNT: Duration = Duration::from_secs(1);

/// The worker manager, as described in the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Manager {
    cluster: Arc<Cluster>,
    database: Arc<Database>,
    shared: Arc<NamesShared>,
    elastic: Arc<Elastic>,
    /// Activity of the nodes at the manager's last check.
    seen: Arc<Mutex<BTreeMap<u32, Activity>>>,
    /// Nodes with a request to suspend them at once, even if clients have read from them recently.
    by_hand: Arc<Mutex<BTreeSet<u32>>>,
}

/// Suspends and resumes nodes, and counts their energy.
pub(crate) struct Elasticity {
    manager: Manager,
    /// Time of the next check, and (`kept`) time when the consumed energy was last stored.
    next: Instant,
    kept: Instant,
}

impl Elasticity {
    pub(crate) fn new(manager: &Manager) -> Self {
        Self {
            manager: manager.clone(),
            next: Instant::now(),
            kept: Instant::now(),
        }
    }
}

impl Chore for Elasticity {
    fn delays(&self) -> &'static str {
        "nodes stay as they are for now"
    }

    fn woken_by(&self) -> Signals {
        SUSPENSIONS
    }

    fn rest(&self) -> Duration {
        Duration::ZERO
    }

    fn due(&mut self, _: i64) -> Result<Due, Fault> {
        Ok(Due::NOW)
    }

    fn step(&mut self, _: i64) -> Step<'_> {
        Box::pin(async {
            let manager = self.manager.clone();
            let suspensions = manager.suspensions();
            if Instant::now() >= self.next {
                manager.count(&mut self.kept).await;
                if suspensions.any() {
                    suspensions.tick();
                    manager.look().await;
                }
                let pause = if suspensions.any() { LOOK_AGAIN } else { COUNT };
                self.next = Instant::now() + pause;
            }
            for (node, action) in suspensions.take_actions() {
                manager.carry_out(node, action).await;
            }
            let left = self.next.saturating_duration_since(Instant::now());
            Ok(Due::After(left))
        })
    }
}

impl Manager {
    pub(crate) fn new(names: &SqliteNames, cluster: &Arc<Cluster>, elastic: Elastic) -> Self {
        let (automatic, shared) = (elastic.after.is_some(), names.shared().clone());
        shared.suspensions.configure(elastic.limits(), automatic);
        let energy = &shared.suspensions.energy;
        if let Err(fault) = names.database().read(|db| energy.restore(db)) {
            fault.log_delay("the energy consumption of nodes can't be read");
        }
        Self {
            cluster: cluster.clone(),
            database: names.database().clone(),
            shared,
            elastic: Arc::new(elastic),
            seen: Arc::default(),
            by_hand: Arc::default(),
        }
    }

    fn suspensions(&self) -> &Arc<Suspensions> {
        &self.shared.suspensions
    }

    /// Adds up the energy that nodes consume, and stores the sums periodically.
    async fn count(&self, kept: &mut Instant) {
        let energy = &self.suspensions().energy;
        energy.count(&self.cluster.draws());
        if kept.elapsed() < KEEP {
            return;
        }
        *kept = Instant::now();
        let all = energy.all();
        if all.is_empty() {
            return;
        }
        let work = move |db: &Connection| nodes::keep_energy(db, &all);
        if let Err(fault) = self.database.write(work).await {
            fault.log_delay("the energy consumption of nodes can't be stored");
        }
    }

    async fn carry_out(&self, node: u32, action: ElasticAction) {
        match action {
            ElasticAction::Suspend => self.suspend_unless_needed(node).await,
            ElasticAction::Keep => {
                self.cluster.tell_suspended(node);
                self.keep(node, true).await;
                self.end_host(node);
            }
            ElasticAction::Resume => self.resume(node),
            ElasticAction::Forget => self.keep(node, false).await,
            ElasticAction::Abandon => self.cluster.declare_offline(node),
        }
    }

    /// Suspends a node unless the node is needed. Work may have been assigned to the node since the last check; from now on none is.
    async fn suspend_unless_needed(&self, node: u32) {
        self.cluster.refresh();
        if let Some(why) = self.needed(node, self.cluster.demand().await.as_ref()) {
            self.suspensions().stays(node, why.to_owned());
            return self.cluster.refresh();
        }
        let quiet_ns = match (self.by_hand.lock().remove(&node), self.elastic.after) {
            (false, Some(after)) => span(after).0,
            _ => 0,
        };
        let suspend = To::Suspend(v1::Suspend { quiet_ns });
        if !self.cluster.send(node, suspend) {
            self.suspensions().on(node, ElasticEvent::Left);
        }
    }

    async fn keep(&self, node: u32, suspended: bool) {
        let kept = StoredElasticState {
            node,
            suspended,
            since: self.suspensions().since(node),
            resumes: self.suspensions().learnt(node),
        };
        let kept = self
            .database
            .write(move |db| nodes::keep_suspension(db, kept))
            .await;
        if let Err(fault) = kept {
            tracing::warn!(node, %fault, "the state of a suspended node can't be stored");
        }
    }

    /// Runs the command that suspends the host of a node, if such a command is configured.
    fn end_host(&self, node: u32) {
        let Some(command) = self.elastic.commands(node).suspend else {
            return;
        };
        let suspensions = self.suspensions().clone();
        tokio::task::spawn_blocking(move || {
            // A node that was resumed in the meantime stays up.
            if !suspensions.is_suspended(node) || suspensions.is_resuming(node) {
                return;
            }
            if let Err(why) = command.run(node) {
                tracing::warn!(node, "{why}");
                suspensions.trouble(node, ElasticEvent::Tick, why);
            }
        });
    }

    /// Resumes a node by a message and by the configured command.
    fn resume(&self, node: u32) {
        let reported = self.cluster.resume(node);
        tracing::info!(node, "a suspended node is resumed");
        let Some(command) = self.elastic.commands(node).resume else {
            if !reported {
                let why = "no process of the node waits for a resume message, and there is no resume command: start the node";
                self.suspensions()
                    .trouble(node, ElasticEvent::Failed, why.into());
            }
            return;
        };
        let suspensions = self.suspensions().clone();
        tokio::task::spawn_blocking(move || {
            if let Err(why) = command.run(node)
                && suspensions.is_resuming(node)
            {
                tracing::warn!(node, "{why}");
                suspensions.trouble(node, ElasticEvent::Failed, why);
            }
        });
    }

    /// Returns the reason why a node is needed, or `None` if the node is not needed.
    fn needed(&self, node: u32, demand: Option<&Demand>) -> Option<&'static str> {
        let Some(demand) = demand else {
            return Some("the needs of jobs are not known at this moment");
        };
        let id = NodeId(node);
        if demand.used.contains(&id) || demand.wanted.contains(&id) {
            return Some("a job needs it");
        }
        let needs = self.database.read(|db| node_uses::need(db, node));
        needs.unwrap_or(Some("the needs for the node are not known at this moment"))
    }

    async fn look(&self) {
        let suspended = self.suspensions().suspended();
        let candidates = self.idle();
        if suspended.is_empty() && candidates.is_empty() {
            return;
        }
        let Some(demand) = self.cluster.demand().await else {
            return;
        };
        for &node in &suspended {
            if self.needed(node, Some(&demand)).is_some() {
                self.suspensions().on(node, ElasticEvent::Wanted);
            }
        }
        self.make_space(&suspended);
        self.share(&suspended, &demand);
        for node in candidates {
            match self.needed(node, Some(&demand)) {
                Some(why) => {
                    self.suspensions().needed(node, why);
                    self.suspensions().on(node, ElasticEvent::Wanted);
                }
                None => {
                    self.suspensions().needed(node, "");
                    self.suspensions().on(node, ElasticEvent::Idle);
                }
            }
        }
    }

    /// Returns the nodes that were idle for the time set in `Elastic::after`.
    fn idle(&self) -> Vec<u32> {
        let Some(after) = self.elastic.after else {
            return Vec::new();
        };
        let up = self.cluster.up();
        let mut idle = Vec::new();
        let mut seen = self.seen.lock();
        for node in up {
            let Some(now) = self.cluster.activity(node).filter(|now| now.may) else {
                continue;
            };
            let before = seen.insert(node, now);
            let moves = before.is_some_and(|before| before.moved != now.moved);
            if now.busy || moves {
                self.suspensions().on(node, ElasticEvent::Wanted);
            }
            match self.suspensions().unused(node) {
                Some(unused) if unused >= span(after) => idle.push(node),
                _ => {}
            }
        }
        idle
    }

    /// Resumes a suspended node when no node that is up has space for waiting replicas.
    fn make_space(&self, suspended: &[u32]) {
        if suspended.is_empty() {
            return;
        }
        let now = clock::now_ns();
        let holders = self
            .database
            .read(|db| under_replicated::holders_of_resting_version(db, now));
        let Ok(Some(holders)) = holders else { return };
        let other = suspended
            .iter()
            .find(|node| !holders.contains(node) && !self.shared.nodes.is_closed(**node));
        if let Some(&node) = other {
            self.suspensions().on(node, ElasticEvent::Wanted);
        }
    }

    /// Resumes the number of nodes for waiting tasks that `allocate` chooses.
    fn share(&self, suspended: &[u32], demand: &Demand) {
        let able: BTreeSet<u32> = demand.able.iter().map(|node| node.0).collect();
        let able: Vec<u32> = suspended
            .iter()
            .copied()
            .filter(|one| able.contains(one))
            .collect();
        let resuming = able
            .iter()
            .any(|&node| self.suspensions().is_resuming(node));
        if able.is_empty() || resuming {
            return;
        }
        let active: Vec<ResumeCandidate> = self
            .cluster
            .stores()
            .into_iter()
            .filter(|&node| self.cluster.activity(node).is_some())
            .filter_map(|node| self.worker(node, Span::default()))
            .collect();
        let mut suspended: Vec<(Span, u32)> = able
            .into_iter()
            .map(|node| (self.resume_time(node), node))
            .collect();
        suspended.sort_unstable();
        let workers: Option<Vec<ResumeCandidate>> = suspended
            .iter()
            .map(|&(resume, node)| self.worker(node, resume))
            .collect();
        let Some(workers) = workers else { return };
        let chosen = allocate(demand.work.0, &active, &workers);
        for &(_, node) in &suspended[..chosen.resumed] {
            self.suspensions().on(node, ElasticEvent::Wanted);
        }
    }

    fn resume_time(&self, node: u32) -> Span {
        let learnt = self.suspensions().learnt(node).mean();
        learnt.unwrap_or(RESUME_UNKNOWN)
    }

    /// Returns a node as a candidate for `allocate`, with work measured in core time.
    fn worker(&self, node: u32, resume: Span) -> Option<ResumeCandidate> {
        let (power, cores) = self.cluster.power(node)?;
        Some(ResumeCandidate::of_cores(cores, power, resume))
    }

    /// Suspends a node on request. Waits until the node is suspended.
    ///
    /// # Errors
    /// The reason why the node is not suspended.
    pub(crate) async fn suspend(&self, node: u32) -> Result<(), String> {
        let suspensions = self.suspensions();
        if suspensions.is_suspended(node) && !suspensions.is_resuming(node) {
            return Ok(());
        }
        let Some(activity) = self.cluster.activity(node) else {
            return Err(format!("node {node} is not up"));
        };
        if !activity.may {
            return Err(format!(
                "node {node} can't be suspended: it stores its data in memory, or only lends cores to the server"
            ));
        }
        if let Some(why) = self.needed(node, self.cluster.demand().await.as_ref()) {
            return Err(format!("node {node} stays active: {why}"));
        }
        self.by_hand.lock().insert(node);
        suspensions.on(node, ElasticEvent::Idle);
        loop {
            tokio::time::sleep(LOOK).await;
            if suspensions.is_suspended(node) {
                return Ok(());
            }
            if !suspensions.is_suspending(node) {
                let why = suspensions.why(node);
                return Err(format!("node {node} stays active: {why}"));
            }
        }
    }

    /// Resumes a node on request. Waits until the node is up.
    ///
    /// # Errors
    /// The reason why the node is not up.
    pub(crate) async fn resume_now(&self, node: u32) -> Result<(), String> {
        let suspensions = self.suspensions();
        loop {
            if self.cluster.activity(node).is_some() {
                return Ok(());
            }
            let why = suspensions.why(node);
            if !suspensions.is_suspended(node) {
                let offline = format!("node {node} is offline, and was not suspended");
                return Err(if why.is_empty() { offline } else { why });
            }
            suspensions.want(node);
            tokio::time::sleep(LOOK).await;
        }
    }
}
