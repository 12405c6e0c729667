//! Queries of the dispatcher's state for status pages and for the driver. Queries change nothing.

use super::turns::Line;
use super::{Dispatcher, ReadyQueue};
use crate::policy;
use std::collections::BTreeMap;
use tidemill_model::event::{JobState, NodeView, Role, TaskState};
use tidemill_model::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::Owner;
use tidemill_model::object::Placed;
use tidemill_model::resources::Offers;
use tidemill_model::time::{Span, Time};

/// Status of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Id of the job.
    pub job: JobId,
    /// Owner of the job.
    pub owner: Owner,
    /// Name of the job's policy.
    pub policy: String,
    /// State of the job.
    pub state: JobState,
    /// Time at which the job was accepted.
    pub submitted: Time,
    /// Time at which the job ended.
    pub ended: Option<Time>,
    /// Number of the job's tasks in each state; states without tasks are left out.
    pub tasks: BTreeMap<TaskState, usize>,
}

/// Status of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    /// Id of the task.
    pub task: TaskId,
    /// Name of the task in the script.
    pub name: String,
    /// Name of the task's kernel.
    pub kernel: String,
    /// State of the task.
    pub state: TaskState,
    /// Number of tries of the task so far.
    pub tries: u32,
    /// Current label of the task and the node that has the label.
    pub sent: Option<(LabelId, NodeId)>,
    /// Outputs of the task.
    pub outputs: Vec<Placed>,
}

/// Status of a node and its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Id of the node.
    pub node: NodeId,
    /// Whether the node is online.
    pub up: bool,
    /// Last reported status of the node.
    pub view: NodeView,
    /// Number of labels in the node's queue, including running ones.
    pub outstanding: usize,
    /// Number of labels that run on the node.
    pub running: usize,
    /// Maximum number of labels in the node's queue.
    pub bound: usize,
    /// Expected time until a core of the node is free.
    pub wait: Span,
    /// Number of ready tasks that wait in the dispatcher for a place in the node's queue.
    pub waiting: usize,
    /// Programs of tasks that the node reported as installed.
    pub programs: Vec<String>,
}

/// Load of an online node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLoad {
    /// Id of the node.
    pub node: NodeId,
    /// Number of labels that run on the node.
    pub running: usize,
    /// Number of labels in the node's queue that do not run yet.
    pub queued: usize,
    /// Number of ready tasks that wait in the dispatcher for a place in the node's queue.
    pub waiting: usize,
    /// Expected time until the node has a core for another label, after all earlier labels.
    pub wait: Span,
    /// Expected time until all work of the node is done.
    pub left: Span,
}

/// Returns the status of a node that has not connected yet.
pub(super) fn unknown_view() -> NodeView {
    NodeView {
        role: Role::Store,
        offers: Offers::of_cores(1),
        capacity_bytes: 0,
        free_bytes: 0,
        link_bytes_per_sec: 0,
        device_bytes_per_sec: 0,
        watts_milli: 0,
        history: BTreeMap::new(),
    }
}

impl Dispatcher {
    /// Returns all jobs that were not deleted, oldest id first.
    pub fn jobs(&self) -> impl Iterator<Item = JobStatus> + '_ {
        self.jobs.keys().filter_map(|&job| self.job(job))
    }

    /// Returns the status of a job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobStatus> {
        let job = self.jobs.get(&id)?;
        Some(JobStatus {
            job: id,
            owner: job.owner,
            policy: job.policy.clone(),
            state: job.state,
            submitted: job.submitted,
            ended: job.ended,
            tasks: job
                .counts
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(&s, &c)| (s, c))
                .collect(),
        })
    }

    /// Returns the tasks of a job in the script's order; none if the job does not exist.
    pub fn tasks(&self, job: JobId) -> impl Iterator<Item = TaskStatus> + '_ {
        let tasks = self
            .jobs
            .get(&job)
            .map(|job| job.tasks.as_slice())
            .unwrap_or_default();
        tasks.iter().map(|&id| {
            let task = self.task(id);
            let sent = task
                .current
                .and_then(|label| Some((label, self.labels.get(&label)?.node)));
            TaskStatus {
                task: id,
                name: task.spec.name.clone(),
                kernel: task.spec.kernel.name().to_owned(),
                state: task.state,
                tries: task.tries,
                sent,
                outputs: task.outputs.clone().unwrap_or_default(),
            }
        })
    }

    /// Returns the number of ready tasks that wait for a place in the queue of a node.
    fn waiting_for(&self, id: NodeId) -> usize {
        let lines = [ReadyQueue::At(id), ReadyQueue::Pinned(id)].map(|line| self.lines.get(&line));
        lines.into_iter().flatten().map(Line::len).sum()
    }

    /// Returns the loads of online nodes. A task that waits in the dispatcher counts with the mean expected time of the sent tasks.
    pub fn loads(&self, now: Time) -> impl Iterator<Item = NodeLoad> + '_ {
        let up = self.nodes.iter().filter(|(_, node)| node.up());
        up.map(move |(id, node)| {
            let (outstanding, running) = (node.outstanding.len(), node.running.len());
            let waiting = self.waiting_for(id);
            let all = |span: Span| {
                let sent = outstanding.max(1) as u128;
                let all = u128::from(span.0) * (sent + waiting as u128) / sent;
                Span(u64::try_from(all).unwrap_or(u64::MAX))
            };
            NodeLoad {
                node: id,
                running,
                queued: outstanding.saturating_sub(running),
                waiting,
                wait: all(node.wait(now)),
                left: all(node.all_left(now)),
            }
        })
    }

    /// Returns the status of all known nodes.
    pub fn nodes(&self, now: Time) -> impl Iterator<Item = NodeStatus> + '_ {
        self.nodes.iter().map(move |(id, node)| NodeStatus {
            node: id,
            up: node.up(),
            view: NodeView {
                history: self.learned.on(id),
                ..node.view.clone()
            },
            outstanding: node.outstanding.len(),
            running: node.running.len(),
            bound: node.bound(),
            wait: node.wait(now),
            waiting: self.waiting_for(id),
            programs: self.classes.programs_on(id),
        })
    }

    /// Returns the replicas of other nodes' objects that a node should have, oldest first; estimated transfers assume these replicas.
    pub fn replicas_on(&self, node: NodeId) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
        self.replicas.on(node)
    }

    /// Returns the name of the policy for jobs that name no policy.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.config.policy
    }

    /// Returns the state of the policy with this name, or of the cluster's own policy.
    #[must_use]
    pub fn memory(&self, policy: Option<&str>) -> policy::PolicyState {
        let policy = self.policies.get(policy.unwrap_or(&self.config.policy));
        policy.map_or_else(policy::PolicyState::default, |policy| policy.memory())
    }

    /// Returns the task of a label, as long as the label's outcome is not known.
    #[must_use]
    pub fn task_of(&self, label: LabelId) -> Option<TaskId> {
        self.labels.get(&label).map(|issued| issued.task)
    }
}
