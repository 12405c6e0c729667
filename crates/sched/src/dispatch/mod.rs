//! The dispatcher: the state machine between jobs and nodes. It receives events, decides on which node each task runs, and answers
//! with actions, which the driver carries out. It does no I/O and reads no clock.
//!
//! **States of a task**: Waiting → Ready → Sent → Running → Done, Failed or Cancelled (see `inputs` for the first arrow, `place` for the
//! second, `outcome` for the last). A task whose dependency failed permanently is cancelled; the rest of the job continues as far as
//! possible.
//!
//! **Order.** Ready tasks are placed in turn for each user, and first come, first served by (job, task) for one user (see `turns`). A task
//! may be impossible to place because the node that its policy chose has no capacity, or because no node has the resources that the task needs. Such a task does not hold up later tasks.
//!
//! **A task is placed only where it can run**: on nodes that offer the resources that the task needs and have its programs (see `class`).
//! The node starts the task when enough of these resources are free (see [`tidemill_model::resources`]).
//!
//! **Bounded queues.** A node gets [`QUEUE_FACTOR`] labels per core, and up to [`QUEUE_FACTOR_MAX`] while all its labels are expected
//! to end within [`QUEUE_TARGET`]. The remaining tasks stay in the dispatcher, so that they can still be placed on other nodes.
//!
//! **No label waits while another node has an idle core.** A label that a node has not begun is rescheduled when another node is idle and
//! the policy prefers that other node (see `reschedule`).
//!
//! **Exactly one result.** A label is *live* while its task's `current` names it. Only the success of a live label is published. Other
//! labels are resumed with their node, or their outputs are discarded.
//!
//! All data that influences a decision is ordered, so the same events give the same actions.

mod batch;
mod check;
mod class;
mod cost_view;
mod demand;
mod id_set;
mod inputs;
mod job;
mod join;
mod maintenance;
mod node;
mod nodes;
mod outcome;
mod place;
mod presence;
mod query;
mod replicas;
mod reschedule;
mod run_times;
mod scored;
mod small_map;
#[cfg(test)]
mod speed;
mod table;
mod task;
mod turns;

pub use class::ASIDE;
pub use demand::Demand;
pub use node::expected_run;
pub use query::{JobStatus, NodeLoad, NodeStatus, TaskStatus};
pub use replicas::{LASTING_MAX, REPLICAS_MAX};

use crate::policy::{self, Policy, UnknownPolicy};
use class::Classes;
use cost_view::ViewLists;
use maintenance::MaintenanceTasks;
use node::{NodeState, Presence};
use nodes::Nodes;
use place::TaskReads;
use replicas::Replicas;
use run_times::Learned;
use small_map::SmallMap;
use std::collections::{BTreeMap, BTreeSet};
use table::IdTable;
use task::{DispatchedJob, DispatchedTask, ReadyQueue, SentLabel, is_end};
use tidemill_model::event::{Action, Event, IdSource, JobState, TaskState};
use tidemill_model::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Failure, Label};
use tidemill_model::time::{Span, Time};
use turns::{Line, Turns, User};

/// Number of labels per core that a node always gets.
pub const QUEUE_FACTOR: usize = 4;
/// Number of labels that a node always gets.
pub const QUEUE_MIN: usize = 8;
/// Maximum number of labels per core.
pub const QUEUE_FACTOR_MAX: usize = 64;
/// Work per core up to which a node's queue is filled beyond [`QUEUE_FACTOR`]: enough to hide a round trip to the server and its disk.
pub const QUEUE_TARGET: Span = Span::from_millis(20);
/// Maximum number of labels in one mini DAG.
pub const MINI_DAG_LABELS_MAX: usize = 32;
/// Maximum length of a chain of dependent tasks in a mini DAG.
pub const MINI_DAG_DEPTH_MAX: usize = 8;
/// Maximum number of requests to policies, per mini DAG, whether a task joins the mini DAG.
pub const MINI_DAG_ASKS_MAX: usize = 2 * MINI_DAG_LABELS_MAX;
/// Maximum number of tasks per event that wait for a full node and are placed again while another node is idle.
pub const IDLE_ASKS_MAX: usize = 4;
/// Maximum number of tasks per event that wait for a node with new capacity and that their policy now prefers to place on another node.
/// After these tasks, the remaining tasks wait for the next event, unless a core is idle.
pub const LINE_ASKS_MAX: usize = 4;
/// Maximum number of maintenance tasks of one node that are under way, not counting replicas.
pub const MAINTENANCE_TASKS_MAX: usize = 4;
/// Minimum number of replicas of any size that a node may be making or have in its queue.
pub const COPY_LABELS_MIN: usize = 3;
/// Maximum number of replicas of small objects that a node may be making or have in its queue: small replicas are made many at a time.
pub const COPY_LABELS_MAX: usize = 512;
/// Maximum size of the replicas of small objects that a node may be making or have in its queue together, in bytes.
pub const COPY_LABELS_BYTES_MAX: u64 = 32 << 20;
/// Maximum number of losses of its node that a task survives. Losses do not count as `retries`, which limit the task's own failures.
pub const LOSSES_MAX: u32 = 5;
/// Expected time of a kernel run if no node has run the kernel. It is so long that such runs spread over nodes as long as their inputs can
/// be fetched in less time. The first run that ends determines the expected time of the next runs.
pub const UNKNOWN_RUN: Span = Span::from_secs(60);
/// Divisor of a label's expected time: the label counts for at least this fraction while it runs, however long it has run. A label that
/// exceeds its expected time is not likely to end soon because of that.
pub const LEFT_PART: u64 = 4;
/// Maximum number of times that a task is rescheduled from a node that has not begun the task.
pub const RESCHEDULES_MAX: u32 = 4;
/// Maximum number of nodes with more work than cores that are searched per event for a label to reschedule.
pub const RESCHEDULE_LOOKS_MAX: usize = 16;
/// Maximum number of labels per event for which the policy is asked whether to reschedule the label.
pub const RESCHEDULE_ASKS_MAX: usize = 2;
/// Name of the policy that places task instances.
pub(super) const INSTANCES: &str = "input-locality";
/// Maximum expected time of a kernel run.
pub const EXPECTED_MAX: Span = Span::from_secs(30 * 86_400);

const _: () = assert!(QUEUE_FACTOR <= QUEUE_FACTOR_MAX && QUEUE_MIN <= QUEUE_FACTOR_MAX);
const _: () = assert!(MINI_DAG_DEPTH_MAX <= MINI_DAG_LABELS_MAX);

/// Settings of a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the policy for jobs that name no policy.
    pub policy: String,
    /// Seed of policies that draw random numbers.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: policy::DEFAULT.to_owned(),
            seed: 0,
        }
    }
}

/// State machine between jobs and nodes.
#[derive(Debug)]
pub struct Dispatcher {
    config: Config,
    ids: Box<dyn IdSource>,
    policies: BTreeMap<String, Box<dyn Policy>>,
    jobs: BTreeMap<JobId, DispatchedJob>,
    tasks: IdTable<TaskId, DispatchedTask>,
    nodes: Nodes,
    labels: IdTable<LabelId, SentLabel>,
    /// Maintenance tasks, which belong to no job, with their nodes.
    maintenance_tasks: MaintenanceTasks,
    learned: Learned,
    classes: Classes,
    replicas: Replicas,
    /// Ready tasks by the queue in which they wait.
    lines: BTreeMap<ReadyQueue, Line>,
    turns: Turns,
    /// Tasks that wait for a file, by the file's path.
    awaited: BTreeMap<String, BTreeSet<TaskId>>,
    /// Tasks that wait for an offline node.
    stranded: BTreeSet<TaskId>,
    /// Done tasks that are run again because their outputs were lost.
    redone: BTreeSet<TaskId>,
    /// Nodes that may have gained capacity since ready tasks were last placed.
    touched: SmallMap<NodeId>,
    /// Storage nodes with an idle core.
    idle: BTreeSet<NodeId>,
    /// Storage nodes with more work than cores.
    crowded: BTreeSet<NodeId>,
    /// Node of `crowded` at which the next search begins, and the number of nodes to search until all were searched since the last change.
    looked: NodeId,
    to_look: usize,
    /// Labels that are being rescheduled, with the node that each label is rescheduled to.
    rescheduled: BTreeMap<LabelId, NodeId>,
    /// Counter of changes that may make a policy move a task from the full node that the task waits for: nodes that run out of work, and
    /// run times that differ from the expected run times.
    news: u64,
    /// Jobs in which a task ended since the dispatcher last checked for ended jobs.
    ending: SmallMap<JobId>,
    /// Labels that are sent at the end of the event, by node.
    outbox: SmallMap<NodeId, Vec<Label>>,
    /// Whether placement decisions are reported.
    explains: bool,
    /// Lists that the view for the next placed task reuses, so that they are not allocated each time.
    spare: ViewLists,
    spare_reads: TaskReads,
}

/// Context of an event handler: the time of the event, and the list of actions.
#[derive(Debug)]
struct Turn<'a> {
    now: Time,
    out: &'a mut Vec<Action>,
}

impl Dispatcher {
    /// Returns an empty dispatcher without nodes and jobs.
    ///
    /// # Errors
    /// [`UnknownPolicy`] if the configured policy does not exist.
    pub fn new(config: Config, ids: Box<dyn IdSource>) -> Result<Self, UnknownPolicy> {
        let default = policy::by_name(&config.policy, config.seed)?;
        Ok(Self {
            policies: BTreeMap::from([(config.policy.clone(), default)]),
            config,
            ids,
            jobs: BTreeMap::new(),
            tasks: IdTable::default(),
            nodes: Nodes::default(),
            labels: IdTable::default(),
            maintenance_tasks: MaintenanceTasks::default(),
            learned: Learned::default(),
            classes: Classes::default(),
            replicas: Replicas::default(),
            lines: BTreeMap::new(),
            turns: Turns::default(),
            awaited: BTreeMap::new(),
            stranded: BTreeSet::new(),
            redone: BTreeSet::new(),
            touched: SmallMap::default(),
            idle: BTreeSet::new(),
            crowded: BTreeSet::new(),
            looked: NodeId(0),
            to_look: 0,
            rescheduled: BTreeMap::new(),
            news: 1,
            ending: SmallMap::default(),
            outbox: SmallMap::default(),
            explains: true,
            spare: ViewLists::default(),
            spare_reads: TaskReads::default(),
        })
    }

    /// Disables [`Action::Decided`], for a driver that keeps no explanations. With many nodes, the estimates for every task take much
    /// time.
    #[must_use]
    pub fn without_explanations(mut self) -> Self {
        self.explains = false;
        self
    }

    /// Restores the state of another dispatcher beyond jobs and nodes, so that this dispatcher makes the same decisions: the state of the
    /// cluster's policy, and the replicas that online nodes should have, oldest first.
    pub fn resume(&mut self, memory: policy::PolicyState, replicas: &[(NodeId, ObjectId, u64)]) {
        if let Some(policy) = self.policies.get_mut(&self.config.policy) {
            policy.restore(memory);
        }
        for &(node, object, size) in replicas {
            self.replicas.note(node, object, size);
        }
    }

    /// Handles an event and appends the resulting actions to `out`, in the order in which the driver must carry them out.
    ///
    /// Labels are sent last, with at most one [`Action::Send`] per node and event, after the [`Action::Task`] of every task in the send
    /// action; a driver that journals actions before it carries them out loses nothing. Events may arrive twice or late; each event takes
    /// effect once.
    pub fn on(&mut self, event: Event, now: Time, out: &mut Vec<Action>) {
        let turn = &mut Turn { now, out };
        match event {
            Event::NodeUp { node, view } => self.on_node_up(node, view, turn),
            Event::NodeDown { node } => self.on_node_down(node, turn),
            Event::NodeSuspended { node } => self.on_node_suspended(node, turn),
            Event::NodeStatus { node, view } => self.on_node_status(node, view),
            Event::Programs {
                node,
                found,
                missing,
            } => self.on_programs(node, found, missing),
            Event::Submitted(spec) => self.on_submitted(*spec, turn),
            Event::FileSealed { path, placed } => self.on_file_sealed(&path, placed, turn),
            Event::Started { node, label } => self.on_started(node, label, turn),
            Event::Finished {
                node,
                label,
                outcome,
            } => {
                self.on_finished(node, label, outcome, turn);
            }
            Event::Cancel { job } => self.on_cancel(job, turn),
            Event::MaintenanceTask {
                node,
                owner,
                operation,
            } => self.on_maintenance_task(node, owner, operation),
            Event::Copied {
                object,
                node,
                there,
            } => self.on_copied(object, node, there, turn),
            Event::Parted { object, layout } => self.replicas.part(object, layout),
            Event::Emptied { node, emptied } => self.on_emptied(node, emptied),
            Event::MaintenanceSent {
                node,
                label,
                operation,
            } => self.on_maintenance_sent(node, label, &operation),
        }
        self.pump(turn);
        self.reschedule(turn);
        self.end_jobs(turn);
        while let Some((node, labels)) = self.outbox.pop_first() {
            turn.out.push(Action::Send { node, labels });
        }
        debug_assert!(self.labels_add_up(), "labels and nodes disagree");
    }

    fn task(&self, id: TaskId) -> &DispatchedTask {
        self.tasks
            .get(&id)
            .expect("tasks are kept as long as anything names them")
    }

    fn task_mut(&mut self, id: TaskId) -> &mut DispatchedTask {
        self.tasks
            .get_mut(&id)
            .expect("tasks are kept as long as anything names them")
    }

    fn job_mut(&mut self, id: JobId) -> &mut DispatchedJob {
        self.jobs
            .get_mut(&id)
            .expect("a job is kept as long as its tasks")
    }

    /// Returns a node by its id; an unknown node is added as expected.
    fn node_mut(&mut self, id: NodeId) -> &mut NodeState {
        self.nodes.get_or_insert(id, || {
            NodeState::new(Presence::Expected, query::unknown_view())
        })
    }

    fn presence(&self, id: NodeId) -> Presence {
        self.nodes
            .get(&id)
            .map_or(Presence::Expected, |node| node.presence)
    }

    /// Moves a task to a state, updates all counts and queues, and reports the change. A task that stays in its state is reported only if
    /// it has a failure to report.
    fn set_state(&mut self, id: TaskId, state: TaskState, turn: &mut Turn<'_>) {
        let task = self.task_mut(id);
        let (job, old, tries, failure) = (task.job, task.state, task.tries, task.failure.take());
        if old == state && failure.is_none() {
            return;
        }
        task.state = state;
        if old != state {
            let line = task.line.take();
            if old == TaskState::Ready {
                task.ready_inputs = Vec::new();
                task.aside = false;
            }
            if let Some(line) = line {
                self.leave_line(line, (job, id));
            }
            let job_state = self.job_mut(job);
            if let Some(count) = job_state.counts.get_mut(&old) {
                *count -= 1;
            }
            *job_state.counts.entry(state).or_default() += 1;
            if old == TaskState::Ready || state == TaskState::Ready {
                self.count_wave(id, job, state == TaskState::Ready);
            }
            if state == TaskState::Ready {
                self.join_line(ReadyQueue::Fresh, id);
            }
            if is_end(state) {
                self.ending.insert(job, ());
            }
        }
        turn.out.push(Action::Task {
            job,
            task: id,
            state,
            tries,
            failure,
            at: turn.now,
        });
    }

    /// Adds a task to the ready tasks of its kernel, or removes it from them.
    fn count_wave(&mut self, id: TaskId, job: JobId, ready: bool) {
        let Some((task, job)) = self.tasks.get(&id).zip(self.jobs.get_mut(&job)) else {
            return;
        };
        let wave = job.waves.entry(task.kernel).or_default();
        if ready {
            wave.size = if wave.left == 0 { 1 } else { wave.size + 1 };
            wave.left += 1;
        } else {
            wave.left -= 1;
        }
    }

    fn owner_of(&self, id: TaskId) -> User {
        let job = self.jobs.get(&self.task(id).job);
        job.expect("a job is kept as long as its tasks").owner.uid
    }

    fn leave_line(&mut self, line: ReadyQueue, (job, task): (JobId, TaskId)) {
        let user = self.owner_of(task);
        if let Some(members) = self.lines.get_mut(&line) {
            members.remove(user, job, task);
            // Most events fill this line again.
            if members.is_empty() && line != ReadyQueue::Fresh {
                self.lines.remove(&line);
            }
        }
    }

    /// Adds a ready task to a queue, and removes the task from its previous queue.
    fn join_line(&mut self, line: ReadyQueue, id: TaskId) {
        let task = self.task_mut(id);
        let key = (task.job, id);
        if let Some(old) = task.line.replace(line) {
            self.leave_line(old, key);
        }
        let user = self.owner_of(id);
        let members = self.lines.entry(line).or_default();
        members.insert(user, key.0, id);
    }

    /// Reports the jobs that ended with the current event.
    fn end_jobs(&mut self, turn: &mut Turn<'_>) {
        while let Some((id, ())) = self.ending.pop_first() {
            let job = self.job_mut(id);
            if job.state != JobState::Running || job.open() > 0 {
                continue;
            }
            let well = job.count(TaskState::Done) == job.tasks.len();
            job.state = if well {
                JobState::Done
            } else {
                JobState::Failed
            };
            job.ended = Some(turn.now);
            turn.out.push(Action::Job {
                job: id,
                state: job.state,
                at: turn.now,
            });
        }
    }

    /// Removes a label from its node's queue.
    fn release(&mut self, node: NodeId, label: LabelId) {
        if let Some(known) = self.nodes.get_mut(&node)
            && known.remove(label)
        {
            self.touch(node);
        }
    }

    /// Schedules another attempt to place ready tasks on a node whose capacity or cores may have changed.
    fn touch(&mut self, id: NodeId) {
        self.touched.insert(id, ());
        self.count_idle(id);
    }

    fn count_idle(&mut self, id: NodeId) {
        let store = self.nodes.get(&id);
        let store = store.filter(|node| node.view.role == tidemill_model::event::Role::Store);
        let idle = store.is_some_and(|node| node.idle_cores() > 0);
        if !store.is_some_and(NodeState::crowded) {
            self.crowded.remove(&id);
        } else if self.crowded.insert(id) {
            self.to_look = usize::MAX;
        }
        if idle {
            if self.idle.insert(id) {
                self.news += 1;
                self.to_look = usize::MAX;
            }
        } else {
            self.idle.remove(&id);
        }
    }

    /// Stores a failure of a task, which is reported with the next state of the task.
    fn tell(&mut self, id: TaskId, failure: Failure) {
        self.task_mut(id).failure = Some(failure);
    }
}
