//! The worker manager: finds nodes that were idle for a while, suspends them, and wakes nodes that are needed. It sends messages to
//! nodes and runs commands. Next: `server/src/cluster.rs`, which sends the messages.

use super::{Elastic, Sleepers, energy, needs, span, store};
use crate::clock;
use crate::cluster::Cluster;
use crate::cluster::keeper::Activity;
use crate::names::SqliteNames;
use crate::names::commit::Database;
use crate::names::shared::Shared;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_core::dispatch::Demand;
use tidemill_core::elastic::{Action, Event, WAKE_UNKNOWN, Worker, allocate};
use tidemill_core::id::NodeId;
use tidemill_core::time::Span;
use tidemill_wire::v1::{self, to_node::Message as To};
use tokio::time::Instant;

/// Interval of looks while a caller waits.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// Interval in which the consumed energy is stored.
const KEEP: Duration = Duration::from_secs(30);
/// Interval in which needs are examined.
const PERIOD: Duration = Duration::from_millis(500);

/// The worker manager: see the module.
#[derive(Clone, Debug)]
pub(crate) struct Manager {
    cluster: Arc<Cluster>,
    database: Arc<Database>,
    shared: Arc<Shared>,
    elastic: Arc<Elastic>,
    /// Activity of the nodes at the last look.
    seen: Arc<Mutex<BTreeMap<u32, Activity>>>,
    /// Nodes that are to be suspended at once on request, whatever their recent reads.
    by_hand: Arc<Mutex<BTreeSet<u32>>>,
}

impl Manager {
    /// Starts the manager, for as long as the server runs.
    pub(crate) fn start(names: &SqliteNames, cluster: &Arc<Cluster>, elastic: Elastic) -> Self {
        let (automatic, shared) = (elastic.after.is_some(), names.shared().clone());
        shared.sleepers.configure(elastic.limits(), automatic);
        let manager = Self {
            cluster: cluster.clone(),
            database: names.database().clone(),
            shared,
            elastic: Arc::new(elastic),
            seen: Arc::default(),
            by_hand: Arc::default(),
        };
        tokio::spawn(manager.clone().run());
        manager
    }

    fn sleepers(&self) -> &Arc<Sleepers> {
        &self.shared.sleepers
    }

    async fn run(self) {
        let mut next = Instant::now() + PERIOD;
        let energy = &self.sleepers().energy;
        if let Err(fault) = self.database.read(|db| energy.restore(db)) {
            fault.put_off("what nodes have drawn is not known");
        }
        let mut kept = Instant::now();
        loop {
            let _ = tokio::time::timeout_at(next, self.sleepers().news.notified()).await;
            if Instant::now() >= next {
                next = Instant::now() + PERIOD;
                self.count(&mut kept).await;
                if self.sleepers().any.load(Ordering::Relaxed) {
                    self.sleepers().tick();
                    self.look().await;
                }
            }
            for (node, action) in self.sleepers().take_actions() {
                self.carry_out(node, action).await;
            }
        }
    }

    /// Counts the nodes' energy, and stores it from time to time.
    async fn count(&self, kept: &mut Instant) {
        let energy = &self.sleepers().energy;
        energy.count(&self.cluster.draws());
        if kept.elapsed() < KEEP {
            return;
        }
        *kept = Instant::now();
        let all = energy.all();
        if all.is_empty() {
            return;
        }
        let work = move |db: &rusqlite::Connection| energy::keep(db, &all);
        if let Err(fault) = self.database.write(work).await {
            fault.put_off("what nodes have drawn can't be kept");
        }
    }

    async fn carry_out(&self, node: u32, action: Action) {
        match action {
            Action::Suspend => self.suspend_unless_needed(node).await,
            Action::Keep => {
                self.cluster.tell_asleep(node);
                self.keep(node, true).await;
                self.end_host(node);
            }
            Action::Wake => self.wake(node),
            Action::Forget => self.keep(node, false).await,
            Action::Abandon => self.cluster.declare_offline(node),
        }
    }

    /// Suspends a node unless it is needed. Work may have been assigned to it since the last look; from now on none is.
    async fn suspend_unless_needed(&self, node: u32) {
        self.cluster.refresh();
        if let Some(why) = self.needed(node, self.cluster.demand().await.as_ref()) {
            self.sleepers().stays(node, why.to_owned());
            return self.cluster.refresh();
        }
        let quiet_ns = match (self.by_hand.lock().remove(&node), self.elastic.after) {
            (false, Some(after)) => span(after).0,
            _ => 0,
        };
        let suspend = To::Suspend(v1::Suspend { quiet_ns });
        if !self.cluster.send(node, suspend) {
            self.sleepers().on(node, Event::Left);
        }
    }

    async fn keep(&self, node: u32, asleep: bool) {
        let kept = store::Kept {
            node,
            asleep,
            since: self.sleepers().since(node),
            wakes: self.sleepers().learnt(node),
        };
        let kept = self.database.write(move |db| store::keep(db, kept)).await;
        if let Err(fault) = kept {
            tracing::warn!(node, %fault, "whether a node sleeps can't be kept");
        }
    }

    /// Runs the command that suspends a host, if there is one.
    fn end_host(&self, node: u32) {
        let Some(command) = self.elastic.commands(node).suspend else {
            return;
        };
        let sleepers = self.sleepers().clone();
        tokio::task::spawn_blocking(move || {
            // A node that was woken in the meantime stays up.
            if !sleepers.sleeps(node) || sleepers.wakes(node) {
                return;
            }
            if let Err(why) = command.run(node) {
                tracing::warn!(node, "{why}");
                sleepers.trouble(node, Event::Tick, why);
            }
        });
    }

    /// Wakes a node in all available ways.
    fn wake(&self, node: u32) {
        let told = self.cluster.wake(node);
        tracing::info!(node, "a suspended node is woken");
        let Some(command) = self.elastic.commands(node).wake else {
            if !told {
                let why =
                    "no process of it waits to be woken, and there is no wake command: start it";
                self.sleepers().trouble(node, Event::Failed, why.into());
            }
            return;
        };
        let sleepers = self.sleepers().clone();
        tokio::task::spawn_blocking(move || {
            if let Err(why) = command.run(node)
                && sleepers.wakes(node)
            {
                tracing::warn!(node, "{why}");
                sleepers.trouble(node, Event::Failed, why);
            }
        });
    }

    /// Returns the need for a node, or `None`.
    fn needed(&self, node: u32, demand: Option<&Demand>) -> Option<&'static str> {
        let Some(demand) = demand else {
            return Some("what jobs need is not known at this moment");
        };
        let id = NodeId(node);
        if demand.used.contains(&id) || demand.wanted.contains(&id) {
            return Some("a job needs it");
        }
        let needs = self.database.read(|db| needs::of(db, node));
        needs.unwrap_or(Some("what needs it is not known at this moment"))
    }

    async fn look(&self) {
        let asleep = self.sleepers().asleep();
        let candidates = self.tired();
        if asleep.is_empty() && candidates.is_empty() {
            return;
        }
        let Some(demand) = self.cluster.demand().await else {
            return;
        };
        for &node in &asleep {
            if self.needed(node, Some(&demand)).is_some() {
                self.sleepers().on(node, Event::Wanted);
            }
        }
        self.make_room(&asleep);
        self.share(&asleep, &demand);
        for node in candidates {
            match self.needed(node, Some(&demand)) {
                Some(why) => {
                    self.sleepers().needed(node, why);
                    self.sleepers().on(node, Event::Wanted);
                }
                None => {
                    self.sleepers().needed(node, "");
                    self.sleepers().on(node, Event::Tired);
                }
            }
        }
    }

    /// Returns the nodes that were idle for the allowed time.
    fn tired(&self) -> Vec<u32> {
        let Some(after) = self.elastic.after else {
            return Vec::new();
        };
        let up = self.cluster.up();
        let mut tired = Vec::new();
        let mut seen = self.seen.lock();
        for node in up {
            let Some(now) = self.cluster.activity(node).filter(|now| now.may) else {
                continue;
            };
            let before = seen.insert(node, now);
            let moves = before.is_some_and(|before| before.moved != now.moved);
            if now.busy || moves {
                self.sleepers().on(node, Event::Wanted);
            }
            match self.sleepers().unused(node) {
                Some(unused) if unused >= span(after) => tired.push(node),
                _ => {}
            }
        }
        tired
    }

    /// Wakes a node for replicas that find no place on the nodes that are up.
    fn make_room(&self, asleep: &[u32]) {
        if asleep.is_empty() {
            return;
        }
        let now = clock::now_ns();
        let holders = self
            .database
            .read(|db| needs::holders_of_one_that_rests(db, now));
        let Ok(Some(holders)) = holders else { return };
        let other = asleep
            .iter()
            .find(|node| !holders.contains(node) && !self.shared.leaving.is_closed(**node));
        if let Some(&node) = other {
            self.sleepers().on(node, Event::Wanted);
        }
    }

    /// Wakes as many nodes for waiting tasks as `allocate` chooses.
    fn share(&self, asleep: &[u32], demand: &Demand) {
        let able: BTreeSet<u32> = demand.able.iter().map(|node| node.0).collect();
        let able: Vec<u32> = asleep
            .iter()
            .copied()
            .filter(|one| able.contains(one))
            .collect();
        let waking = able.iter().any(|&node| self.sleepers().wakes(node));
        if able.is_empty() || waking {
            return;
        }
        let awake: Vec<Worker> = self
            .cluster
            .stores()
            .into_iter()
            .filter(|&node| self.cluster.activity(node).is_some())
            .filter_map(|node| self.worker(node, Span::default()))
            .collect();
        let mut sleeping: Vec<(Span, u32)> = able
            .into_iter()
            .map(|node| (self.wake_up_time(node), node))
            .collect();
        sleeping.sort_unstable();
        let workers: Option<Vec<Worker>> = sleeping
            .iter()
            .map(|&(wake, node)| self.worker(node, wake))
            .collect();
        let Some(workers) = workers else { return };
        let chosen = allocate(demand.work.0, &awake, &workers);
        for &(_, node) in &sleeping[..chosen.woken] {
            self.sleepers().on(node, Event::Wanted);
        }
    }

    fn wake_up_time(&self, node: u32) -> Span {
        let learnt = self.sleepers().learnt(node).mean();
        learnt.unwrap_or(WAKE_UNKNOWN)
    }

    /// Work is measured in core time here.
    fn worker(&self, node: u32, wake: Span) -> Option<Worker> {
        let (power, cores) = self.cluster.power(node)?;
        Some(Worker::of_cores(cores, power, wake))
    }

    /// Suspends a node on request. Waits until it is suspended.
    ///
    /// # Errors
    /// The reason why it is not suspended.
    pub(crate) async fn suspend(&self, node: u32) -> Result<(), String> {
        let sleepers = self.sleepers();
        if sleepers.sleeps(node) && !sleepers.wakes(node) {
            return Ok(());
        }
        let Some(activity) = self.cluster.activity(node) else {
            return Err(format!("node {node} is not up"));
        };
        if !activity.may {
            return Err(format!(
                "node {node} can't be suspended: it keeps what it has in memory, or lends the server's cores"
            ));
        }
        if let Some(why) = self.needed(node, self.cluster.demand().await.as_ref()) {
            return Err(format!("node {node} stays awake: {why}"));
        }
        self.by_hand.lock().insert(node);
        sleepers.on(node, Event::Tired);
        loop {
            tokio::time::sleep(LOOK).await;
            if sleepers.sleeps(node) {
                return Ok(());
            }
            if !sleepers.falls(node) {
                let why = sleepers.why(node);
                return Err(format!("node {node} stays awake: {why}"));
            }
        }
    }

    /// Wakes a node on request. Waits until it is up.
    ///
    /// # Errors
    /// The reason why it is not up.
    pub(crate) async fn wake_now(&self, node: u32) -> Result<(), String> {
        let sleepers = self.sleepers();
        loop {
            if self.cluster.activity(node).is_some() {
                return Ok(());
            }
            let why = sleepers.why(node);
            if !sleepers.sleeps(node) {
                let offline = format!("node {node} is offline, and was not suspended");
                return Err(if why.is_empty() { offline } else { why });
            }
            sleepers.want(node);
            tokio::time::sleep(LOOK).await;
        }
    }
}
