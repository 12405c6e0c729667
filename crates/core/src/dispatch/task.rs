//! The dispatcher's records of jobs, tasks and labels.

use super::class::ClassNumber;
use super::run_times::KernelNumber;
use super::small_map::ShortMap;
use crate::event::{JobState, TaskSpec, TaskState};
use crate::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use crate::label::{Failure, Outcome, Owner};
use crate::object::Placed;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Line in which a ready task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadyQueue {
    /// No policy has been asked yet.
    Fresh,
    /// No storage node that can run tasks of this class has capacity; the task is placed when any of them gets some.
    Any(ClassNumber),
    /// No online node can run tasks of this class, or the node that the job script names can't.
    Barred(ClassNumber),
    /// The job script names the node.
    Pinned(NodeId),
    /// The policy chose the node, but its queue was full.
    At(NodeId),
}

/// One task.
#[derive(Debug)]
pub(super) struct DispatchedTask {
    pub(super) spec: TaskSpec,
    pub(super) kernel: KernelNumber,
    pub(super) class: ClassNumber,
    pub(super) job: JobId,
    pub(super) state: TaskState,
    /// Number of tries so far; tries that ended by a lost node or a dependency are subtracted.
    pub(super) tries: u32,
    /// Number of tries that ended by the loss of a node.
    pub(super) losses: u32,
    /// Number of reschedules from nodes that did not begin the task.
    pub(super) reschedules: u32,
    /// Label of the current try; `Some` exactly while the task is sent or running.
    pub(super) current: Option<LabelId>,
    /// Tasks of the job whose outputs it waits for.
    pub(super) missing: ShortMap<TaskId>,
    /// Awaited inputs that were found, by their index.
    pub(super) found: BTreeMap<usize, Placed>,
    /// Number of awaited inputs that were not found.
    pub(super) awaited: usize,
    /// Whether an input is only on a node that is not online.
    pub(super) stranded: bool,
    /// Whether it was reported that no online node can run the task.
    pub(super) aside: bool,
    /// Result of the task. It is kept while the task is run again because the result was lost.
    pub(super) outputs: Option<Vec<Placed>>,
    /// Tasks that read its outputs.
    pub(super) dependents: ShortMap<TaskId>,
    /// Nodes on which the task failed in a way that may not occur on other nodes.
    pub(super) avoid: BTreeSet<NodeId>,
    /// Line of the task; `Some` exactly while the task is ready.
    pub(super) line: Option<ReadyQueue>,
    /// Inputs of the task while it is ready, since it may be considered often before it is placed.
    pub(super) ready_inputs: Vec<Placed>,
    /// Value of `Dispatcher::news` when the policy was last asked.
    pub(super) asked: u64,
    /// Failure that is reported with its next change of state.
    pub(super) failure: Option<Failure>,
}

impl DispatchedTask {
    pub(super) fn new(
        job: JobId,
        spec: TaskSpec,
        (kernel, class): (KernelNumber, ClassNumber),
    ) -> Self {
        Self {
            spec,
            kernel,
            class,
            aside: false,
            job,
            state: TaskState::Waiting,
            tries: 0,
            losses: 0,
            reschedules: 0,
            current: None,
            missing: ShortMap::default(),
            found: BTreeMap::new(),
            awaited: 0,
            stranded: false,
            outputs: None,
            dependents: ShortMap::default(),
            avoid: BTreeSet::new(),
            line: None,
            ready_inputs: Vec::new(),
            asked: 0,
            failure: None,
        }
    }

    /// Returns whether the task is run again because its result was lost with a node.
    pub(super) fn redone(&self) -> bool {
        self.outputs.is_some() && self.state != TaskState::Done
    }

    /// Returns whether the task waits, for whatever reason, and no node has it.
    pub(super) fn idle(&self) -> bool {
        matches!(self.state, TaskState::Waiting | TaskState::Ready)
    }
}

/// Returns whether a state is final.
pub(super) fn is_end(state: TaskState) -> bool {
    matches!(
        state,
        TaskState::Done | TaskState::Failed | TaskState::Cancelled
    )
}

/// Tasks of one kernel that became ready together (for the hybrid policy).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wave {
    pub(super) left: u64,
    pub(super) size: u64,
}

/// One job.
#[derive(Debug)]
pub(super) struct DispatchedJob {
    pub(super) owner: Owner,
    pub(super) policy: String,
    /// Tasks in the script's order.
    pub(super) tasks: Vec<TaskId>,
    pub(super) state: JobState,
    pub(super) counts: BTreeMap<TaskState, usize>,
    pub(super) waves: BTreeMap<KernelNumber, Wave>,
    pub(super) submitted: Time,
    pub(super) ended: Option<Time>,
}

impl DispatchedJob {
    pub(super) fn count(&self, state: TaskState) -> usize {
        self.counts.get(&state).copied().unwrap_or(0)
    }

    /// Returns the number of tasks that have not ended.
    pub(super) fn open(&self) -> usize {
        let ended: usize = self
            .counts
            .iter()
            .filter(|(state, _)| is_end(**state))
            .map(|(_, count)| count)
            .sum();
        self.tasks.len() - ended
    }
}

/// Label that was sent and whose outcome is not known yet.
///
/// A label is *live* while its task's `current` names it. A label that is not live was revoked with its node or aborted; it is kept so
/// that a late outcome is recognised.
#[derive(Debug)]
pub(super) struct SentLabel {
    pub(super) task: TaskId,
    pub(super) job: JobId,
    pub(super) node: NodeId,
    /// Ids of its outputs.
    pub(super) objects: Vec<ObjectId>,
    /// Inputs, in the order of the task's inputs.
    pub(super) inputs: Vec<Placed>,
    /// Estimate of each output's size in bytes, for tasks that are sent along.
    pub(super) output_bytes: u64,
    /// Whether the label may read an output of an earlier label that did not exist yet.
    pub(super) chained: bool,
    /// Whether the label was revoked with its node and may be resumed with it.
    pub(super) revoked: bool,
    /// Success that arrived before that of a label on which this label depends.
    pub(super) held: Option<Box<Outcome>>,
}
