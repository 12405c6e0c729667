//! The dispatcher's driver: a thread that owns the dispatcher, passes events to the dispatcher and executes the resulting decisions. The
//! driver writes the database (next: `server/src/jobs/persist.rs`) and sends labels through the queue (next: `server/src/queue.rs`).
//!
//! **Invariant**: the driver sends nothing to a node and acknowledges no outcome before all decisions so far are in the database. If a
//! server is killed at any moment, its next start therefore finds each label that a node may have.
//!
//! If the database can't be written (the disk is full, or its device fails), the driver retries the same steps until the steps are stored.
//! The driver decides nothing else during that time, so dispatcher and database never disagree about the order of events. The driver does
//! not reconstruct its state from the database, since the database lacks the reports of nodes that were not yet acknowledged.

use super::awaited::{AwaitedFiles, FoundFile};
use super::blocks::IdBlocks;
use super::driver_records::{JobRecord, TaskJobs};
use super::inbox::{Inbox, Stopped};
use super::persist::{self, PersistStep, StepBatch};
use super::plan::ClusterView;
use super::results::{self, AssumedOutputs};
use super::{DriverMessage, SubmittedJob, store, trace};
use crate::clock;
use crate::cluster::{Cluster, DriverReport};
use crate::conditions::database_state;
use crate::queue::{LabelQueue, Unavailable};
use crate::removal::Garbage;
use crate::replicas::{self, NodesView, UnderReplicated};
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::jobs::data;
use tidemill_meta::jobs::outbox::{self, OutboxLabel};
use tidemill_meta::jobs::outputs::{self, OutputFiles, Publishing};
use tidemill_meta::jobs::records;
use tidemill_meta::jobs::spec::awaited_key;
use tidemill_meta::jobs::view::StartedTasks;
use tidemill_meta::multi_writer;
use tidemill_meta::parts;
use tidemill_meta::placement::under_replicated::{MIGRATIONS, REST_NS, ReplicaFinding};
use tidemill_meta::placement::{self, corruption, migrations, nodes, scrub, under_replicated};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::transaction::Tx;
use tidemill_meta::{Change, Changed, Connection, Fault, SqliteNames, version};
use tidemill_model::directory::is_directory;
use tidemill_model::event::{Action, Event, JobState, NodeView, Origin, OutputSpec, TaskState};
use tidemill_model::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{
    Corrupt, Failure, FailureKind, Label, Lane, Operation, Outcome, Owner,
};
use tidemill_model::layout::StripedLayout;
use tidemill_model::object::Placed;
use tidemill_model::rate_limit::RateLimit;
use tidemill_model::replicas::{OnlineNode, REPLICAS_MAX, ReplicaSet, ReplicaStep};
use tidemill_model::time::{Span, Time};
use tidemill_sched::dispatch::{Config, Dispatcher};
use tidemill_wire::capability::rights;
use tidemill_wire::condition;
use tidemill_wire::v1::{self, to_node::Message as To};

/// Maximum number of messages in one transaction.
const BATCH_MAX: usize = 512;
/// Number of bytes of labels after which another message begins: far below the maximum size of a message.
const LABELS_BYTES_MAX: usize = 8 << 20;
/// Wait for a message when nothing is to be repeated.
const IDLE: Duration = Duration::from_secs(3600);
/// Pause after a failed write to the database, and after a failure of the queue.
const REST: Duration = Duration::from_secs(1);
const QUEUE_REST: Span = Span::from_secs(REST.as_secs());

/// Shared state through which the driver reports to the rest of the server.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    /// Whether any job waits for a file.
    pub(crate) awaiting: Arc<AtomicBool>,
    /// Counter that is incremented with every change of a job.
    pub(crate) changes: tokio::sync::watch::Sender<i64>,
    /// Running labels that do not belong to a job.
    pub(crate) running: Arc<Mutex<BTreeSet<LabelId>>>,
    /// Tasks that have started. The database has them as sent.
    pub(crate) started: Arc<StartedTasks>,
    /// Reason why decisions can't be stored or sent now; `None` if decisions can be stored and sent.
    pub(crate) trouble: Arc<Mutex<Option<(condition::ConditionKind, String)>>>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            awaiting: Arc::default(),
            changes: tokio::sync::watch::Sender::new(0),
            running: Arc::default(),
            started: Arc::default(),
            trouble: Arc::default(),
        }
    }
}

/// The thread state of the dispatcher's driver.
#[derive(Debug)]
pub(crate) struct Driver {
    dispatcher: Dispatcher,
    names: Arc<SqliteNames>,
    database: Arc<Database>,
    shared: Arc<NamesShared>,
    cluster: Arc<Cluster>,
    queue: Arc<dyn LabelQueue>,
    /// Time of the next attempt to use the queue, if the queue may lack labels or has labels that were not sent to nodes.
    behind: Option<Time>,
    garbage: Garbage,
    signals: Signals,
    jobs: BTreeMap<JobId, JobRecord>,
    owners: TaskJobs,
    /// Files that jobs wait for.
    awaited: AwaitedFiles,
    /// Outcomes that the dispatcher has not accepted yet, by label.
    unsettled: BTreeMap<LabelId, Unsettled>,
    /// Objects that the outputs of unfinished labels may reuse.
    offered: BTreeMap<LabelId, Vec<ObjectId>>,
    look: bool,
    sweep: bool,
    copy: bool,
    scrub: bool,
    /// Nodes that have been offline for longer than the repair delay.
    /// Time for which a node may be offline before its replicas are recreated.
    lost_after: Duration,
    /// Rate limit for replicas of versions that are no longer new.
    pace: RateLimit,
    /// Nodes that are being drained, as last reported to the dispatcher.
    emptied: BTreeSet<u32>,
    /// Whether the first replica of an object may have changed since the driver last reported replicas to the dispatcher.
    moved: bool,
    /// Objects that were reported corrupt since the last call of `turn`: the database does not have these reports yet.
    corrupt: BTreeSet<ObjectId>,
    /// Versions whose next check is due before this time are processed at once, because a node joined.
    woken: i64,
    change: i64,
    /// Steps and messages that result from restoring the unfinished jobs.
    first: (Vec<PersistStep>, Outbox),
}

#[derive(Debug)]
struct Unsettled {
    node: NodeId,
    task: Option<TaskId>,
    outcome: Box<Outcome>,
}

/// Result of processing a version that may lack replicas.
enum ProcessedVersion {
    /// A finding about the version's replicas that is to be stored.
    Found(ReplicaFinding),
    /// Labels for the version's replicas are in progress, or will be created.
    On,
    /// No label can be created now, neither for this version nor for the next versions.
    NoFurther,
}

/// Delay and rate of repairs and migrations of replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repairing {
    /// Time for which a node may be offline before its replicas are recreated.
    pub(crate) after: Duration,
    /// Rate limit in bytes per second; 0 means as fast as the nodes can.
    pub(crate) bytes_per_sec: u64,
}

/// Labels whose outcome is stored and is to be acknowledged, by node.
type Acks = BTreeMap<NodeId, Vec<LabelId>>;

/// Messages to send once the decisions of a batch are in the database.
#[derive(Debug, Default)]
struct Outbox {
    messages: Vec<(u32, To)>,
    labels: BTreeMap<NodeId, Vec<Label>>,
    /// Nodes that reconnected, and the labels that they know.
    back: BTreeMap<NodeId, BTreeSet<LabelId>>,
    acks: Acks,
    /// Tasks whose state changes, and whether the change is only that they have started.
    states: BTreeMap<TaskId, (JobId, bool)>,
    /// Objects that ended jobs needed. Until the end of a job is stored, a restarted server would need the job's objects again.
    unpinned: Vec<ObjectId>,
}

/// Returns the event that reports to the dispatcher whether a replica exists on a node.
fn copied(object: ObjectId, node: NodeId, there: bool) -> Event {
    Event::Copied {
        object,
        node,
        there,
    }
}

impl Driver {
    /// Creates the driver, and restores the jobs that have not ended.
    pub(crate) fn new(
        names: Arc<SqliteNames>,
        cluster: Arc<Cluster>,
        queue: Arc<dyn LabelQueue>,
        garbage: Garbage,
        signals: Signals,
        (default_policy, repairing): (&str, Repairing),
    ) -> Result<Self, Fault> {
        let database = names.database().clone();
        let blocks = IdBlocks::new(database.clone());
        let config = Config {
            policy: default_policy.into(),
            seed: u64::from_le_bytes(tidemill_meta::random::random()),
        };
        let dispatcher = Dispatcher::new(config, Box::new(blocks))
            .map_err(|_| Fault::Malformed("the default policy does not exist"))?;
        let change = database.read(records::last_change)?;
        let mut driver = Self {
            dispatcher,
            shared: names.shared().clone(),
            names,
            database,
            cluster,
            queue,
            behind: Some(Time::default()),
            garbage,
            signals,
            jobs: BTreeMap::new(),
            owners: TaskJobs::new(),
            awaited: AwaitedFiles::default(),
            unsettled: BTreeMap::new(),
            offered: BTreeMap::new(),
            look: true,
            sweep: false,
            copy: false,
            scrub: false,
            woken: 0,
            lost_after: repairing.after,
            pace: RateLimit::new(repairing.bytes_per_sec),
            emptied: BTreeSet::new(),
            moved: true,
            corrupt: BTreeSet::new(),
            change,
            first: Default::default(),
        };
        driver.bring_back()?;
        Ok(driver)
    }

    fn bring_back(&mut self) -> Result<(), Fault> {
        if let Err(fault) = self.database.write_blocking(outbox::delete_superseded) {
            fault.log_delay("labels of ended tasks are kept until the next start");
        }
        if let Err(fault) = self.database.write_blocking(scrub::clean) {
            fault.log_delay("incomplete scrubs are kept until the next start");
        }
        let jobs = self.database.read(store::unfinished)?;
        tracing::info!(jobs = jobs.len(), "unfinished jobs are resumed");
        let mut steps = Vec::new();
        let mut outbox = Outbox::default();
        self.tell_emptied(&mut steps, &mut outbox);
        for job in jobs {
            self.take(job, &mut steps, &mut outbox);
        }
        self.moved = self.database.read(migrations::any)?;
        for (node, label) in self.database.read(outbox::maintenance_tasks)? {
            let event = Event::MaintenanceSent {
                node,
                label: label.id,
                operation: label.operation,
            };
            self.feed(event, &mut steps, &mut outbox);
        }
        self.first = (steps, outbox);
        Ok(())
    }

    /// Processes messages until the server stops.
    pub(crate) fn run(mut self, incoming: Receiver<DriverMessage>) {
        let mut inbox = Inbox::new(incoming);
        let mut going = self.begin(&mut inbox);
        while going.is_ok() {
            let again = self.look || self.behind.is_some();
            let wait = if again { REST } else { IDLE };
            going = self.turn(&mut inbox, wait);
        }
        tracing::debug!("the driver of jobs has ended");
    }

    /// Stores and sends the decisions that result from restoring the jobs.
    pub(crate) fn begin(&mut self, inbox: &mut Inbox) -> Result<(), Stopped> {
        let (steps, outbox) = std::mem::take(&mut self.first);
        self.finish(steps, outbox, inbox)
    }

    /// Processes the incoming messages, and stores and sends the decisions. Without a message within `wait`, repeats only failed steps.
    pub(crate) fn turn(&mut self, inbox: &mut Inbox, wait: Duration) -> Result<(), Stopped> {
        // The search for replicas starts from the state kept by the last turn.
        let copy = std::mem::take(&mut self.copy);
        let mut next = inbox.next(if copy { Duration::ZERO } else { wait })?;
        let mut steps = Vec::new();
        let mut outbox = Outbox::default();
        let mut taken = 0;
        while let Some(message) = next {
            self.on(message, &mut steps, &mut outbox);
            taken += 1;
            next = if taken < BATCH_MAX {
                inbox.next(Duration::ZERO)?
            } else {
                None
            };
        }
        if std::mem::take(&mut self.look) && !self.awaited.is_empty() {
            self.look_for_awaited(&mut steps, &mut outbox);
        }
        if std::mem::take(&mut self.sweep) {
            self.remove_garbage(&mut steps, &mut outbox);
        }
        if copy {
            // The replicas are decided from the database as it was before these steps. Their steps are written first, so that these
            // steps take precedence.
            let mut first = Vec::new();
            self.make_replicas(&mut first, &mut outbox);
            first.append(&mut steps);
            steps = first;
        }
        if std::mem::take(&mut self.scrub) {
            self.go_on_scrubbing(&mut steps, &mut outbox);
        }
        self.finish(steps, outbox, inbox)?;
        self.corrupt.clear();
        Ok(())
    }

    /// Creates labels for missing replicas.
    fn make_replicas(&mut self, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        let offline = self.cluster.offline_for(self.lost_after);
        let looks = self.shared.nodes.renew(&offline, &self.cluster.up());
        steps.extend(looks.into_iter().map(PersistStep::Look));
        let unlisted = self.database.read(nodes::unlisted).unwrap_or_default();
        self.copy |= !unlisted.is_empty();
        steps.extend(unlisted.into_iter().map(PersistStep::List));
        let filling = replicas::filling(&self.database, &self.cluster);
        steps.extend(filling.into_iter().map(PersistStep::MakeSpace));
        let now = clock::now_ns();
        let until = now.max(self.woken);
        let due = self.database.read(|db| {
            under_replicated::due(db, (now, until), &self.cluster.up(), replicas::VERSIONS_MAX)
        });
        let due = due.unwrap_or_else(|fault| {
            fault.log_delay("replicas are postponed");
            Vec::new()
        });
        let view = NodesView::new(&self.cluster);
        let absent = view.absences(&self.shared.nodes);
        let all = due.len() < replicas::VERSIONS_MAX;
        let mut settled = false;
        for object in due {
            let short = self
                .database
                .read(|db| replicas::short(db, object, &absent));
            let Ok(mut short) = short else { break };
            let object = short.kept.object;
            // The corruption of the object is not in the database yet: a replica that seems superfluous may be the last good one.
            if self.corrupt.contains(&object) {
                continue;
            }
            if short.stages_out_again() {
                steps.push(PersistStep::StagesOutAgain(object));
            }
            match self.go_on_copying(&mut short, &view.sites, steps, outbox) {
                ProcessedVersion::Found(found) => {
                    steps.push(PersistStep::Replicas { object, found });
                    settled = true;
                }
                ProcessedVersion::On => {}
                // The next versions find no node that takes a label either, or are due later, too.
                ProcessedVersion::NoFurther => break,
            }
        }
        self.copy |= (settled && !all) || self.shared.nodes.pending();
    }

    /// Sends nodes labels to read the next objects of a scrub.
    fn go_on_scrubbing(&mut self, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        let open = self.database.read(scrub::open).unwrap_or_else(|fault| {
            fault.log_delay("scrubs are postponed");
            Vec::new()
        });
        for one in open {
            if !self
                .dispatcher
                .takes_maintenance_task(one.node, Lane::Verify)
            {
                continue;
            }
            match self.database.read(|db| one.next(db)) {
                Ok(Some(operation)) => {
                    let maintenance_task = Event::MaintenanceTask {
                        node: one.node,
                        owner: Owner::default(),
                        operation,
                    };
                    self.feed(maintenance_task, steps, outbox);
                }
                Ok(None) => steps.push(PersistStep::Scrubbed { scrub: one.id() }),
                Err(fault) => fault.log_delay("a scrub is postponed"),
            }
        }
    }

    /// Creates labels for the missing replicas of a version, as far as the nodes accept labels.
    fn go_on_copying(
        &mut self,
        short: &mut UnderReplicated,
        sites: &[OnlineNode],
        steps: &mut Vec<PersistStep>,
        outbox: &mut Outbox,
    ) -> ProcessedVersion {
        if short.is_deleted() {
            return ProcessedVersion::Found(ReplicaFinding::Enough);
        }
        let rest = |kept: &ReplicaSet| {
            let has = i64::try_from(kept.has().min(REPLICAS_MAX as usize)).unwrap_or(0);
            let has = if kept.only_migrates() {
                MIGRATIONS
            } else {
                has
            };
            let stored = kept.is_stored();
            ProcessedVersion::Found(ReplicaFinding::Rest { has, stored })
        };
        loop {
            match short.next(sites) {
                ReplicaStep::Enough => return ProcessedVersion::Found(ReplicaFinding::Enough),
                ReplicaStep::Wait => return ProcessedVersion::On,
                ReplicaStep::Remove { goes, first } => {
                    let object = short.kept.object;
                    self.retract_replicas(object, &goes, steps, outbox);
                    // Usually this completes the work for the version.
                    short.kept.go(&goes, first);
                    let found = ReplicaFinding::Surplus { goes, first };
                    steps.push(PersistStep::Replicas { object, found });
                }
                ReplicaStep::Stay => return ProcessedVersion::Found(ReplicaFinding::Stay),
                ReplicaStep::NoSource | ReplicaStep::NoPlace => return rest(&short.kept),
                ReplicaStep::Later if short.kept.only_migrates() => return rest(&short.kept),
                ReplicaStep::Later => {
                    let has = i64::from(REPLICAS_MAX);
                    let stored = short.kept.is_stored();
                    return ProcessedVersion::Found(ReplicaFinding::Rest { has, stored });
                }
                ReplicaStep::Make { to, .. }
                    if !self.dispatcher.takes_maintenance_task(to, Lane::Copy) =>
                {
                    let takes = |site: &OnlineNode| {
                        site.takes
                            && self
                                .dispatcher
                                .takes_maintenance_task(site.node, Lane::Copy)
                    };
                    return match sites.iter().any(takes) {
                        true => ProcessedVersion::On,
                        false => ProcessedVersion::NoFurther,
                    };
                }
                ReplicaStep::Make { .. }
                    if short.kept.can_wait() && !self.pace.take(short.kept.size, clock::now()) =>
                {
                    // Versions that only move are processed after all others.
                    return match short.kept.only_migrates() {
                        true => ProcessedVersion::NoFurther,
                        false => ProcessedVersion::On,
                    };
                }
                ReplicaStep::Make { from, to } => {
                    let maintenance_task = Event::MaintenanceTask {
                        node: to,
                        owner: short.owner(),
                        operation: short.operation(from),
                    };
                    self.feed(maintenance_task, steps, outbox);
                    short.kept.comes(to);
                }
            }
        }
    }

    /// Reports the nodes that accept no tasks to the dispatcher, and reports them to the namespace and the replica checks.
    fn tell_emptied(&mut self, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        let emptied = self.shared.nodes.emptied();
        let before = std::mem::replace(&mut self.emptied, emptied.clone());
        for &node in before.symmetric_difference(&emptied) {
            let event = Event::Emptied {
                node: NodeId(node),
                emptied: emptied.contains(&node),
            };
            self.feed(event, steps, outbox);
        }
    }

    /// Handles the removal of a node from the cluster: the node's remaining labels will not be executed.
    fn on_removed(&mut self, node: NodeId, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        self.tell_emptied(steps, outbox);
        self.feed(Event::NodeDown { node }, steps, outbox);
        let maintenance_tasks = self
            .database
            .read(outbox::maintenance_tasks)
            .unwrap_or_default();
        for (_, label) in maintenance_tasks.into_iter().filter(|(on, _)| *on == node) {
            let failure = Failure {
                kind: FailureKind::NodeLost,
                message: format!("node {} was removed from the cluster", node.0),
            };
            let outcome = Outcome::at(clock::now(), Err(failure));
            self.on_finished(node, label.id, outcome, steps, outbox);
        }
    }

    /// Returns whether the dispatcher must learn of changes to the replicas of an object: a job reads the object, or the dispatcher already
    /// knows replicas of the object and would otherwise keep outdated knowledge forever.
    fn dispatcher_knows(&self, object: ObjectId) -> bool {
        self.shared.pinned(object.0) || self.dispatcher.knows_replicas(object)
    }

    /// Reports to the dispatcher that an object is no longer readable on the given nodes.
    fn retract_replicas(
        &mut self,
        object: ObjectId,
        nodes: &[NodeId],
        steps: &mut Vec<PersistStep>,
        outbox: &mut Outbox,
    ) {
        if !self.dispatcher_knows(object) {
            return;
        }
        for &node in nodes {
            self.feed(copied(object, node, false), steps, outbox);
        }
    }

    /// Creates labels that remove deleted objects from nodes.
    fn remove_garbage(&mut self, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        for node in self.cluster.up() {
            let (id, mut last) = (NodeId(node), ObjectId(0));
            while self.dispatcher.takes_maintenance_task(id, Lane::Remove) {
                let mut objects = match self.garbage.due(node, last) {
                    Ok(objects) => objects,
                    Err(fault) => {
                        fault.log_delay("removals are postponed");
                        break;
                    }
                };
                let Some(&end) = objects.last() else { break };
                last = end;
                // The replica may be the last good one.
                objects.retain(|object| !self.corrupt.contains(object));
                if objects.is_empty() {
                    continue;
                }
                let maintenance_task = Event::MaintenanceTask {
                    node: id,
                    owner: Owner::default(),
                    operation: Operation::Remove { objects },
                };
                self.feed(maintenance_task, steps, outbox);
            }
        }
    }

    fn on(&mut self, message: DriverMessage, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        match message {
            DriverMessage::Report(report) => self.on_report(*report, steps, outbox),
            DriverMessage::Submitted(job) => {
                let nodes = v1::Peers {
                    nodes: trace::nodes(&job, &self.dispatcher, clock::now()),
                    ..v1::Peers::default()
                };
                let id = job.spec.job;
                steps.push(PersistStep::Nodes { job: id, nodes });
                self.take(*job, steps, outbox);
            }
            DriverMessage::Plan(job, answer) => {
                let policy = job.spec.policy.as_deref();
                let cluster_view = ClusterView {
                    policy: policy.unwrap_or(self.dispatcher.policy()).to_owned(),
                    nodes: trace::nodes(&job, &self.dispatcher, clock::now()),
                };
                // The caller may no longer wait for the answer.
                let _ = answer.send(cluster_view);
            }
            DriverMessage::Cancel(job) => self.feed(Event::Cancel { job }, steps, outbox),
            DriverMessage::NamesChanged => self.look = true,
            DriverMessage::RightsChanged => {
                self.awaited.look_at_all();
                self.look = true;
            }
            DriverMessage::Garbage => self.sweep = true,
            DriverMessage::Replicas => self.copy = true,
            DriverMessage::Scrub => self.scrub = true,
            DriverMessage::Migrations => {
                self.tell_emptied(steps, outbox);
                self.moved = true;
                self.copy = true;
                self.woken = clock::now_ns() + REST_NS;
            }
            DriverMessage::Load(asker) => {
                // The caller may no longer wait for the answer.
                let _ = asker.send(self.dispatcher.loads(clock::now()).collect());
            }
            DriverMessage::Demand(asker) => {
                let _ = asker.send(self.dispatcher.demand(clock::now()));
            }
            DriverMessage::Stop => {}
        }
    }

    fn take(&mut self, job: SubmittedJob, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        let memo = JobRecord::new(&job);
        for object in &memo.pins {
            self.shared.pin(object.0);
        }
        for task in &job.spec.tasks {
            self.owners.insert(task.task, job.spec.job);
            for claimed in task.outputs.iter().filter_map(OutputSpec::claimed) {
                self.shared.claims.again(job.spec.job, &claimed);
            }
            for input in task
                .inputs
                .iter()
                .filter(|input| input.origin == Origin::Awaited)
            {
                if let Some((_, path)) = input.path.split_once(':') {
                    let (owner, id) = (job.spec.owner, job.spec.job);
                    let caller = || outputs::caller(owner, &job.groups);
                    self.awaited.add(path, id, caller, owner.uid);
                    // From here on, changes are reported to the driver.
                    self.signals.awaiting.store(true, Ordering::Relaxed);
                    self.look = true;
                }
            }
        }
        let pins = memo.pins.clone();
        self.jobs.insert(job.spec.job, memo);
        self.report_replicas(&pins, steps, outbox);
        self.feed(Event::Submitted(Box::new(job.spec)), steps, outbox);
        self.ask_for_programs(outbox);
    }

    /// Reports to the dispatcher on which nodes the replicas of objects are that jobs read.
    fn report_replicas(
        &mut self,
        objects: &[ObjectId],
        steps: &mut Vec<PersistStep>,
        outbox: &mut Outbox,
    ) {
        let of_all = |db: &Connection| parts::of_all(db, objects);
        let parted = match self.shared.parts() {
            true => self.database.read(of_all),
            false => Ok(Vec::new()),
        };
        let parted = parted.unwrap_or_else(|fault| {
            fault.log_delay("the layout of files is not known");
            Vec::new()
        });
        let parts = parted.iter().flat_map(|(_, layout)| layout.parts());
        let parts = parts.map(|part| part.object);
        let objects: Vec<ObjectId> = objects.iter().copied().chain(parts).collect();
        for (object, layout) in parted {
            self.feed(Event::Parted { object, layout }, steps, outbox);
        }
        let moved = self.moved;
        let replicas = self
            .database
            .read(|db| placement::replicas::of_all(db, &objects, moved));
        let replicas = replicas.unwrap_or_else(|fault| {
            fault.log_delay("the places of replicas are not known");
            Vec::new()
        });
        for (object, node) in replicas {
            self.feed(copied(object, node, true), steps, outbox);
        }
        if !self.shared.corruption() {
            return;
        }
        let corrupt = self.database.read(|db| corruption::of_all(db, &objects));
        let corrupt = corrupt.unwrap_or_else(|fault| {
            fault.log_delay("which replicas are corrupt is not known");
            Vec::new()
        });
        for (object, node) in corrupt {
            self.feed(copied(object, node, false), steps, outbox);
        }
    }

    /// Handles the report that objects of a node no longer have their sealed content.
    fn on_corrupt(
        &mut self,
        node: NodeId,
        corrupt: &[Corrupt],
        steps: &mut Vec<PersistStep>,
        outbox: &mut Outbox,
    ) {
        // Jobs may read a replica elsewhere that waits for its removal, rather than no replica.
        let read = corrupt.iter().map(|one| one.object);
        let read: Vec<ObjectId> = read
            .filter(|object| self.dispatcher_knows(*object))
            .collect();
        self.report_replicas(&read, steps, outbox);
        for one in corrupt {
            self.retract_replicas(one.object, &[node], steps, outbox);
            self.corrupt.insert(one.object);
        }
        self.copy |= !corrupt.is_empty();
    }

    fn on_report(
        &mut self,
        report: DriverReport,
        steps: &mut Vec<PersistStep>,
        outbox: &mut Outbox,
    ) {
        match report {
            DriverReport::Up { node, labels } => {
                let id = NodeId(node.node);
                let Ok(view) = NodeView::try_from(&node) else {
                    return;
                };
                self.feed(Event::NodeUp { node: id, view }, steps, outbox);
                self.resync(id, &labels, outbox);
                self.ask_for_programs(outbox);
                self.woken = clock::now_ns() + REST_NS;
                self.copy = true;
            }
            DriverReport::Programs {
                node,
                found,
                missing,
            } => {
                let node = NodeId(node);
                let programs = Event::Programs {
                    node,
                    found,
                    missing,
                };
                self.feed(programs, steps, outbox);
            }
            DriverReport::Corrupt { node, corrupt } => {
                let node = NodeId(node);
                let objects: Vec<Corrupt> = corrupt.objects.iter().map(Into::into).collect();
                self.on_corrupt(node, &objects, steps, outbox);
                steps.push(PersistStep::Corrupt { node, objects });
            }
            DriverReport::Down { node } => {
                self.feed(Event::NodeDown { node: NodeId(node) }, steps, outbox);
            }
            DriverReport::Suspended { node } => {
                let node = NodeId(node);
                self.feed(Event::NodeSuspended { node }, steps, outbox);
            }
            DriverReport::Removed { node } => self.on_removed(NodeId(node), steps, outbox),
            DriverReport::Status { node } => {
                let id = NodeId(node.node);
                let Ok(view) = NodeView::try_from(&node) else {
                    return;
                };
                self.feed(Event::NodeStatus { node: id, view }, steps, outbox);
            }
            DriverReport::Started { node, label } => {
                let (node, label) = (NodeId(node), LabelId(label));
                if self.dispatcher.task_of(label).is_none() && self.dispatcher.wants(label) {
                    self.signals.running.lock().insert(label);
                }
                self.feed(Event::Started { node, label }, steps, outbox);
            }
            DriverReport::Finished {
                node,
                label,
                outcome,
            } => match Outcome::try_from(&outcome) {
                Ok(outcome) => {
                    self.on_finished(NodeId(node), LabelId(label), outcome, steps, outbox)
                }
                Err(error) => tracing::warn!(node, label, %error, "an outcome is invalid"),
            },
        }
    }

    /// Asks nodes whether they have the programs of jobs, if the nodes have not yet reported that.
    fn ask_for_programs(&self, outbox: &mut Outbox) {
        for (node, names) in self.dispatcher.unknown_programs() {
            let question = v1::FindPrograms { request: 0, names };
            outbox.messages.push((node.0, To::FindPrograms(question)));
        }
    }

    /// Sends a reconnected node the labels that are assigned to the node and unknown there, and aborts the node's other labels.
    fn resync(&mut self, node: NodeId, known: &[u64], outbox: &mut Outbox) {
        let known: BTreeSet<LabelId> = known.iter().copied().map(LabelId).collect();
        for label in known.iter().filter(|label| !self.dispatcher.wants(**label)) {
            let abort = v1::AbortLabel { label: label.0 };
            outbox.messages.push((node.0, To::Abort(abort)));
        }
        outbox.back.insert(node, known);
    }

    fn on_finished(
        &mut self,
        node: NodeId,
        label: LabelId,
        outcome: Outcome,
        steps: &mut Vec<PersistStep>,
        outbox: &mut Outbox,
    ) {
        let task = self.dispatcher.task_of(label);
        let final_outcome = self.fail_if_output_blocked(task, &outcome);
        let unsettled = Unsettled {
            node,
            task,
            outcome: Box::new(outcome),
        };
        self.unsettled.insert(label, unsettled);
        self.feed(
            Event::Finished {
                node,
                label,
                outcome: Box::new(final_outcome),
            },
            steps,
            outbox,
        );
        self.settle(steps, outbox);
    }

    /// Returns the outcome for the dispatcher: a success becomes a failure if an output name is taken or not writable for the owner.
    fn fail_if_output_blocked(&self, task: Option<TaskId>, outcome: &Outcome) -> Outcome {
        let final_outcome = outcome.clone();
        let Some(task) = task.filter(|_| outcome.result.is_ok()) else {
            return final_outcome;
        };
        let memo = self.owners.get(&task).and_then(|job| self.jobs.get(job));
        let Some((memo, outputs)) =
            memo.and_then(|memo| Some((memo, &memo.tasks.get(&task)?.outputs)))
        else {
            return final_outcome;
        };
        let caller = outputs::caller(memo.owner, &memo.groups);
        let checked = self.database.read(|db| {
            let tx = Tx::new(db, &self.shared, &caller, 0, clock::now_ns());
            for output in outputs.iter().filter(|output| !output.part) {
                let obstacle = if output.is_directory() {
                    outputs::directory_obstacle(&tx, &memo.anchors, &output.path, memo.replace)?
                } else {
                    outputs::obstacle(&tx, &memo.anchors, &output.path, output.inode.0)?
                };
                if obstacle.is_some() && !data::published(db, task)? {
                    return Ok(obstacle);
                }
            }
            Ok(None)
        });
        match checked {
            Ok(Some(message)) => {
                let failure = Failure {
                    kind: FailureKind::MissingOutput,
                    message,
                };
                Outcome {
                    result: Err(failure),
                    ..final_outcome
                }
            }
            Ok(None) => final_outcome,
            Err(fault) => {
                fault.log_delay("outputs can't be checked before they are named");
                final_outcome
            }
        }
    }

    /// Acknowledges outcomes that the dispatcher has accepted.
    fn settle(&mut self, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        let settled: Vec<LabelId> = self
            .unsettled
            .keys()
            .copied()
            .filter(|&label| self.dispatcher.task_of(label).is_none())
            .collect();
        for label in settled {
            let Some(Unsettled {
                node,
                task,
                outcome,
            }) = self.unsettled.remove(&label)
            else {
                continue;
            };
            self.offered.remove(&label);
            if task.is_none() {
                self.signals.running.lock().remove(&label);
            }
            let ended = match &outcome.result {
                Ok(sealed) => Ok(sealed.iter().map(|sealed| sealed.object).collect()),
                Err(_) => Err(outcome.removed.clone()),
            };
            // A replica was created, or failed: the next replica can be made.
            self.copy |= task.is_none();
            let made = outcome.result.iter().flatten().filter(|_| task.is_none());
            let read = made.filter(|sealed| self.dispatcher_knows(sealed.object));
            for object in read.map(|sealed| sealed.object).collect::<Vec<_>>() {
                self.feed(copied(object, node, true), steps, outbox);
            }
            if task.is_none() {
                self.shared.on_copied(outcome.written_bytes);
                self.scrub = true;
                self.on_corrupt(node, &outcome.corrupt, steps, outbox);
            }
            let read = scrub::ScrubbedLabel {
                bytes: outcome.read_bytes,
                corrupt: outcome.corrupt.clone(),
            };
            if let Some(task) = task {
                let power = self.cluster.power(node.0);
                let above_idle =
                    power.and_then(|(power, cores)| power.above_idle(outcome.cpu, cores));
                steps.push(PersistStep::Measured {
                    task,
                    node,
                    outcome,
                    above_idle,
                });
            }
            steps.push(PersistStep::Settle {
                label,
                node,
                of_task: task.is_some(),
                ended,
                read,
            });
            outbox.acks.entry(node).or_default().push(label);
        }
    }

    fn feed(&mut self, event: Event, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        let mut actions = Vec::new();
        self.dispatcher.on(event, clock::now(), &mut actions);
        for action in actions {
            self.carry_out(action, steps, outbox);
        }
    }

    fn carry_out(&mut self, action: Action, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        match action {
            Action::Send { node, labels } => {
                let labels: Vec<Label> = labels
                    .into_iter()
                    .map(|label| self.with_directory_files(label))
                    .collect();
                let posted = labels.iter().map(|label| OutboxLabel::new(node, label));
                steps.extend(posted.map(PersistStep::Post));
                outbox.labels.entry(node).or_default().extend(labels);
            }
            Action::Abort { node, label } => {
                outbox
                    .messages
                    .push((node.0, To::Abort(v1::AbortLabel { label: label.0 })));
            }
            Action::Reschedule { node, label } => {
                let reschedule = v1::RescheduleLabel { label: label.0 };
                outbox.messages.push((node.0, To::Reschedule(reschedule)));
            }
            Action::Decided(decision) => {
                if let Some(&job) = self.owners.get(&decision.task) {
                    steps.push(PersistStep::Decided { job, decision });
                }
            }
            Action::Publish {
                task,
                label,
                outputs,
            } => self.publish(task, Some(label), (&outputs, Vec::new()), steps),
            Action::Join {
                task,
                outputs,
                layouts,
            } => self.publish(task, None, (&outputs, layouts), steps),
            Action::Task {
                task,
                state,
                tries,
                failure,
                ..
            } => {
                let is_start = state == TaskState::Running;
                if let Some(&job) = self.owners.get(&task) {
                    outbox.states.insert(task, (job, is_start));
                }
                if is_start {
                    return;
                }
                steps.push(PersistStep::Task {
                    task,
                    state,
                    tries,
                    failure,
                });
            }
            Action::Job { job, state, at } => {
                steps.push(PersistStep::Job { job, state, at });
                if state != JobState::Running {
                    self.end_job(job, outbox);
                }
            }
            Action::Discard { node, objects } => steps.push(PersistStep::Remove { node, objects }),
        }
    }

    /// Returns the label with the names of the files in its input directories.
    fn with_directory_files(&self, mut label: Label) -> Label {
        if let Operation::Analyse(analysis) = &mut label.operation
            && analysis.inputs.iter().any(|one| is_directory(&one.name))
            && let Some(memo) = self.jobs.get(&analysis.job)
        {
            analysis.inputs = memo.directories.unfold(&analysis.inputs);
        }
        label
    }

    /// Adds missing labels to the queue, and sends the nodes that are up their labels. Nodes that are offline receive their labels when
    /// they reconnect.
    fn deliver(&mut self, mut outbox: Outbox, acks: &Acks) -> Result<(), Unavailable> {
        let mut nodes: BTreeSet<NodeId> = outbox.labels.keys().copied().collect();
        let up: BTreeSet<NodeId> = self.cluster.up().into_iter().map(NodeId).collect();
        if self.behind.is_some() {
            if self.queue.may_lack() {
                for (node, label) in self.database.read(|db| outbox::of(db, None))? {
                    outbox.labels.entry(node).or_default().push(label);
                }
            }
            // Nodes answer for labels that they receive once more.
            for node in &up {
                outbox.back.entry(*node).or_default();
            }
        }
        for (node, labels) in outbox.labels {
            self.queue.enqueue(node, labels)?;
        }
        for (node, known) in outbox.back {
            self.queue.redeliver(node, &known)?;
            nodes.insert(node);
        }
        for &node in nodes.intersection(&up) {
            let labels = self.queue.fetch(node)?.into_iter();
            let (wanted, others): (Vec<_>, Vec<_>) =
                labels.partition(|label| self.dispatcher.wants(label.id));
            let others: Vec<LabelId> = others.iter().map(|label| label.id).collect();
            if !others.is_empty() {
                self.queue.acknowledge(node, &others)?;
            }
            if !wanted.is_empty() {
                self.send(node, &wanted);
            }
        }
        for (node, labels) in acks {
            self.queue.acknowledge(*node, labels)?;
        }
        Ok(())
    }

    /// Delivers labels as [`Self::deliver`] does, and records the result. After a failure the driver does not use the queue for a while;
    /// the database has the labels that the queue lacks.
    fn try_to_deliver(&mut self, outbox: Outbox, acks: &Acks) {
        let now = clock::now();
        if self.behind.is_some_and(|again| now < again) {
            return;
        }
        let delivered = self.deliver(outbox, acks);
        self.behind = delivered.is_err().then(|| now + QUEUE_REST);
        let why = delivered.err().map(|error| error.to_string());
        let mut trouble = self.signals.trouble.lock();
        match (&why, &*trouble) {
            (None, Some(_)) => tracing::info!("the queue has all labels"),
            (Some(error), None) => {
                tracing::error!(
                    error,
                    "labels can't be put into their queue; the server retries without limit"
                );
            }
            _ => {}
        }
        *trouble = why.map(|why| (condition::QUEUE_OFFLINE, why));
    }

    fn send(&mut self, node: NodeId, labels: &[Label]) {
        let cached_result = self.recall(labels).unwrap_or_else(|fault| {
            fault.log_delay("can't look for cached results");
            vec![None; labels.len()]
        });
        for (label, cached_result) in labels.iter().zip(&cached_result) {
            if let Some(cached_result) = cached_result {
                let objects = cached_result.outputs.iter();
                let objects = objects.map(|output| ObjectId(output.object)).collect();
                self.offered.insert(label.id, objects);
            }
        }
        let mut batch = v1::Labels::default();
        let mut bytes = 0;
        let up = self.cluster.up();
        for (label, cached_result) in labels.iter().zip(cached_result) {
            let label = self.signed((node, &up), label, cached_result);
            bytes += label.encoded_len();
            batch.labels.push(label);
            // Labels that read directories may name very many files.
            if bytes > LABELS_BYTES_MAX {
                let batch = std::mem::take(&mut batch);
                self.cluster.send(node.0, To::Labels(batch));
                bytes = 0;
            }
        }
        if !batch.labels.is_empty() {
            self.cluster.send(node.0, To::Labels(batch));
        }
    }

    /// Returns the cached results that may answer labels sent in one message.
    fn recall(&self, labels: &[Label]) -> Result<Vec<Option<v1::CachedResult>>, Fault> {
        let mut presumed = AssumedOutputs::default();
        let up = |node: NodeId| self.cluster.up().contains(&node.0);
        self.database.read(|db| {
            let recalled = labels.iter().map(|label| {
                let task = self.dispatcher.task_of(label.id);
                let job = task.and_then(|task| self.owners.get(&task));
                let memo = job.and_then(|job| self.jobs.get(job));
                if !memo.is_some_and(|memo| memo.cache) {
                    return Ok(None);
                }
                results::recall(db, label, &mut presumed, &up)
            });
            recalled.collect()
        })
    }

    /// Returns a node that is up and has a replica of an object whose first node is offline.
    fn elsewhere(&self, object: u64, up: &[u32]) -> Option<u32> {
        let holders = self
            .database
            .read(|db| placement::replicas::holders(db, object));
        let mut holders = holders.unwrap_or_default().into_iter();
        holders.find(|node| up.contains(node))
    }

    /// Returns whether a node stores its files in a backend.
    fn has_backend(&self, node: NodeId) -> bool {
        let spaces = self.shared.spaces();
        let mut backend = spaces.store.iter().filter(|space| space.backend);
        backend.any(|space| space.node == node)
    }

    fn is_corrupt(&self, object: u64, node: u32) -> bool {
        let is = |db: &Connection| corruption::is(db, object, node);
        self.shared.corruption() && self.database.read(is).unwrap_or(false)
    }

    /// Returns whether an object is still being written that a rule's task may read as a streaming input.
    fn is_streaming(&self, object: u64) -> bool {
        let is = |db: &Connection| version::is_in_progress(db, object);
        self.shared.rules.any_streaming() && self.database.read(is).unwrap_or(false)
    }

    /// Returns the label as sent to the node: with capabilities to fetch each remote input from a node that has the input now.
    fn signed(
        &self,
        (node, up): (NodeId, &[u32]),
        label: &Label,
        cached_result: Option<v1::CachedResult>,
    ) -> v1::Label {
        let mut message = v1::Label::from(label);
        // Ranks may have to fetch every input from another node, and are started where the inputs are.
        let ranked = matches!(&label.operation, Operation::Analyse(analysis) if analysis.runtime_environment.is_ranked());
        let right = match ranked {
            true => rights::READ | rights::RANK,
            false => rights::READ,
        };
        let sign = |input: &mut v1::Input| {
            if let Some(layout) = self.layout(input.object, up, (label.owner.uid, right)) {
                input.layout = Some(layout);
                return;
            }
            input.streaming = input.node == node.0 && self.is_streaming(input.object);
            input.leaves = self.shared.bursts.leaves(node.0).into();
            // A node with a backend has no file to open in place: it sends a request to itself.
            let asks = input.node != node.0 || ranked || self.has_backend(node);
            if asks {
                let object = input.object;
                let is_corrupt = || self.is_corrupt(object, input.node);
                if !up.contains(&input.node) || is_corrupt() {
                    let other = self.elsewhere(input.object, up);
                    input.node = other.unwrap_or(input.node);
                }
                input.capability =
                    self.shared
                        .sign_for_label(input.node, input.object, right, label.owner.uid);
            }
        };
        match &mut message.operation {
            Some(v1::label::Operation::Analyse(analyse)) => {
                analyse.cached_result = cached_result;
                let cached_result = analyse.cached_result.iter_mut();
                let outputs = cached_result.flat_map(|cached_result| &mut cached_result.outputs);
                analyse.inputs.iter_mut().chain(outputs).for_each(sign);
            }
            Some(v1::label::Operation::Copy(copy)) => copy.from.iter_mut().for_each(sign),
            Some(v1::label::Operation::Remove(_) | v1::label::Operation::Verify(_)) | None => {}
        }
        message
    }

    /// Returns the layout of a version that consists of parts, with the node of each part; `None` for a version that is one object.
    fn layout(&self, object: u64, up: &[u32], (uid, right): (u32, u32)) -> Option<v1::Layout> {
        if !self.shared.parts() {
            return None;
        }
        let found = self.database.read(|db| parts::parts(db, object));
        let (unit, rows) = found.unwrap_or_default()?;
        let part = |row: parts::PartRow| {
            let there = up.contains(&row.node).then_some(row.node);
            let node = there.or_else(|| self.elsewhere(row.object, up));
            let node = node.unwrap_or(row.node);
            let sign = &self.shared;
            v1::LayoutPart {
                object: row.object,
                node,
                size: row.size.unwrap_or(0),
                capability: sign.sign_for_label(node, row.object, right, uid),
            }
        };
        let parts = rows.into_iter().map(part).collect();
        let extents = match unit {
            0 => self.database.read(|db| multi_writer::extents(db, object)),
            _ => Ok(Vec::new()),
        };
        let extents = extents.ok()?;
        Some(v1::Layout {
            unit,
            parts,
            extents,
        })
    }

    fn publish(
        &mut self,
        task: TaskId,
        label: Option<LabelId>,
        (outputs, layouts): (&[Placed], Vec<StripedLayout>),
        steps: &mut Vec<PersistStep>,
    ) {
        let Some(&job) = self.owners.get(&task) else {
            return;
        };
        let Some(memo) = self.jobs.get_mut(&job) else {
            return;
        };
        let Some(of) = memo.tasks.get(&task) else {
            return;
        };
        let unsettled = label.and_then(|label| self.unsettled.get(&label));
        let sealed = unsettled.and_then(|unsettled| unsettled.outcome.result.as_ref().ok());
        let sealed = sealed.map(Vec::as_slice).unwrap_or_default();
        let files = of.outputs.iter().zip(outputs);
        let files: OutputFiles = files
            .flat_map(|(output, &placed)| output.files(placed, sealed))
            .collect();
        for (_, placed) in &files {
            self.shared.pin(placed.object.0);
        }
        let directories = of.outputs.iter().filter(|output| output.is_directory());
        let offered = label.and_then(|label| self.offered.remove(&label));
        let offered = offered.unwrap_or_default();
        let was_reused = unsettled.is_some_and(|unsettled| unsettled.outcome.reused.is_some());
        let contents = unsettled.map(|unsettled| unsettled.outcome.contents.clone());
        let reused = if was_reused { offered } else { Vec::new() };
        let publishing = Publishing {
            job,
            task,
            label: label.unwrap_or_default(),
            owner: memo.owner,
            groups: memo.groups.clone(),
            directories: directories.cloned().collect(),
            anchors: memo.anchors.clone(),
            outputs: files.clone(),
            layouts,
            lifetime: of.lifetime,
            replace: memo.replace,
            reused,
            contents: contents.unwrap_or_default(),
        };
        steps.push(PersistStep::Publish(Box::new(publishing)));
        let unused = memo.on_done(task, &files);
        steps.extend(
            unused
                .into_iter()
                .map(|(_, object)| PersistStep::Expire(object)),
        );
    }

    fn end_job(&mut self, job: JobId, outbox: &mut Outbox) {
        let Some(memo) = self.jobs.remove(&job) else {
            return;
        };
        outbox.unpinned.extend(&memo.pins);
        let outputs = memo.tasks.values().flat_map(|task| &task.outputs);
        let claimed: Vec<String> = outputs.filter_map(OutputSpec::claimed).collect();
        let claimed = claimed.iter().map(String::as_str);
        self.shared.claims.release(job, claimed);
        for task in memo.tasks.keys() {
            self.owners.remove(task);
        }
        self.awaited.end(job);
        self.dispatcher.forget(job);
    }

    /// Checks whether files that jobs wait for exist now.
    fn look_for_awaited(&mut self, steps: &mut Vec<PersistStep>, outbox: &mut Outbox) {
        let (awaited, shared) = (&mut self.awaited, &self.shared);
        let found = self.database.read(|db| awaited.look(db, shared));
        let found = found.unwrap_or_else(|fault: Fault| {
            fault.log_delay("can't look for files that jobs wait for");
            self.look = true;
            Vec::new()
        });
        for FoundFile {
            uid,
            path,
            placed,
            jobs,
        } in found
        {
            for job in jobs {
                // The version must stay for the jobs that will read it.
                if let Some(memo) = self.jobs.get_mut(&job) {
                    memo.pins.push(placed.object);
                    self.shared.pin(placed.object.0);
                }
            }
            self.report_replicas(&[placed.object], steps, outbox);
            let key = awaited_key(uid, &path);
            steps.push(PersistStep::Resolved { uid, path, placed });
            self.feed(Event::FileSealed { path: key, placed }, steps, outbox);
        }
    }

    /// Stores the decisions, then sends the messages.
    fn finish(
        &mut self,
        steps: Vec<PersistStep>,
        mut outbox: Outbox,
        inbox: &mut Inbox,
    ) -> Result<(), Stopped> {
        if !steps.is_empty() || !outbox.states.is_empty() {
            self.change += 1;
            let changes = match steps.is_empty() {
                true => Vec::new(),
                false => self.keep(steps, inbox)?,
            };
            for (task, (job, is_start)) in std::mem::take(&mut outbox.states) {
                match is_start {
                    true => self.signals.started.start(job, task, self.change),
                    false => self.signals.started.forget(job, task),
                }
            }
            self.names.tell(Changed {
                session: 0,
                changes,
            });
            self.signals.changes.send_replace(self.change);
        }
        self.signals
            .awaiting
            .store(!self.awaited.is_empty(), Ordering::Relaxed);
        for object in std::mem::take(&mut outbox.unpinned) {
            self.shared.unpin(object.0);
            if !self.shared.pinned(object.0) {
                self.dispatcher.forget_replicas(object);
            }
        }
        for (node, message) in outbox.messages.drain(..) {
            self.cluster.send(node, message);
        }
        let acks = std::mem::take(&mut outbox.acks);
        self.try_to_deliver(outbox, &acks);
        for (node, labels) in acks {
            let labels = labels.iter().map(|label| label.0).collect();
            self.cluster.send(node.0, To::Ack(v1::Ack { labels }));
        }
        Ok(())
    }

    /// Stores the steps in the database, and retries until the steps are stored.
    fn keep(&self, steps: Vec<PersistStep>, inbox: &mut Inbox) -> Result<Vec<Change>, Stopped> {
        let view = || NodesView::new(&self.cluster);
        let batch = Arc::new(StepBatch {
            nodes: persist::ends_copies(&steps).then(view),
            steps,
            change: self.change,
            now: clock::now_ns(),
        });
        // The permission to remove must survive a power loss, too: a replica elsewhere may be the only one left.
        let durable = batch.removes();
        let (mut failed, mut stored) = (false, None);
        loop {
            let written = match &stored {
                None => {
                    let (batch, shared) = (batch.clone(), self.shared.clone());
                    let write = move |db: &Connection| persist::write(db, &shared, &batch);
                    self.database.write_here(durable, write)
                }
                // The decisions are in the database, but a power loss may still undo them.
                Some(_) => self.database.write_here(durable, |_| Ok(Vec::new())),
            };
            let written = written.and_then(|written| {
                stored.get_or_insert(written.value);
                written.on_disk
            });
            match written {
                Ok(()) => {
                    if failed {
                        tracing::info!("decisions can be stored again");
                        *self.signals.trouble.lock() = None;
                    }
                    return Ok(stored.unwrap_or_default());
                }
                Err(Fault::Closed) => return Err(Stopped),
                Err(fault) => {
                    if !std::mem::replace(&mut failed, true) {
                        tracing::error!(%fault, "decisions can't be stored; jobs wait until they can");
                    }
                    let kind = database_state(&fault);
                    *self.signals.trouble.lock() = Some((kind, format!("jobs wait: {fault}")));
                    inbox.rest(REST)?;
                }
            }
        }
    }
}
