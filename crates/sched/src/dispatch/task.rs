//! The dispatcher's records of jobs, tasks and labels.

use super::class::ClassNumber;
use super::run_times::KernelNumber;
use super::small_map::SmallMap;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::event::{JobState, TaskSpec, TaskState};
use tidemill_model::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Failure, Outcome, Owner};
use tidemill_model::object::Placed;
use tidemill_model::time::Time;

/// Queue in which a ready task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadyQueue {
    /// No policy has been asked for the task yet.
    Fresh,
    /// No storage node that can run tasks of this class has capacity; the task is placed when any such node gains capacity.
    Any(ClassNumber),
    /// No online node can run tasks of this class, or the node that the job script names can't run them.
    Barred(ClassNumber),
    /// The job script names this node.
    Pinned(NodeId),
    /// The policy chose this node, but the node's queue was full.
    At(NodeId),
}

/// State of one task in the dispatcher.
#[derive(Debug)]
pub(super) struct DispatchedTask {
    pub(super) spec: TaskSpec,
    pub(super) kernel: KernelNumber,
    pub(super) class: ClassNumber,
    pub(super) job: JobId,
    pub(super) state: TaskState,
    /// Number of tries of the task so far; tries that ended by a lost node or a dependency are subtracted.
    pub(super) tries: u32,
    /// Number of tries of the task that ended by the loss of a node.
    pub(super) losses: u32,
    /// Number of times that the task was rescheduled before its run began.
    pub(super) reschedules: u32,
    /// Label of the task's current try; `Some` exactly while the task is sent or running.
    pub(super) current: Option<LabelId>,
    /// Tasks of the same job whose outputs the task waits for.
    pub(super) missing: SmallMap<TaskId>,
    /// Awaited inputs that were found, by their index among the inputs.
    pub(super) found: BTreeMap<usize, Placed>,
    /// Number of awaited inputs that were not found yet.
    pub(super) awaited: usize,
    /// Whether an input of the task is only on a node that is not online.
    pub(super) stranded: bool,
    /// Whether it was reported that no online node can run the task.
    pub(super) aside: bool,
    /// Outputs of the task. They are kept while the task is run again because they were lost.
    pub(super) outputs: Option<Vec<Placed>>,
    /// Tasks that read the outputs of the task.
    pub(super) dependents: SmallMap<TaskId>,
    /// Nodes on which the task failed in a way that may not occur on other nodes.
    pub(super) avoid: BTreeSet<NodeId>,
    /// Queue of the task; `Some` exactly while the task is ready.
    pub(super) line: Option<ReadyQueue>,
    /// Inputs of the task, stored while the task is ready: the task may be considered often before it is placed.
    pub(super) ready_inputs: Vec<Placed>,
    /// Value of `Dispatcher::news` when the policy was last asked for the task.
    pub(super) asked: u64,
    /// Failure that is reported with the next change of the task's state.
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
            missing: SmallMap::default(),
            found: BTreeMap::new(),
            awaited: 0,
            stranded: false,
            outputs: None,
            dependents: SmallMap::default(),
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

    /// Returns whether the task waits for any reason, and no node has it.
    pub(super) fn idle(&self) -> bool {
        matches!(self.state, TaskState::Waiting | TaskState::Ready)
    }
}

/// Returns whether a task state is final.
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

/// State of one job in the dispatcher.
#[derive(Debug)]
pub(super) struct DispatchedJob {
    pub(super) owner: Owner,
    pub(super) policy: String,
    /// Tasks of the job in the script's order.
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

    /// Returns the number of unfinished tasks of the job.
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
/// A label is *live* while its task's `current` names it. A label that is not live was revoked with its node or aborted; its record stays
/// so that a late outcome is recognised.
#[derive(Debug)]
pub(super) struct SentLabel {
    pub(super) task: TaskId,
    pub(super) job: JobId,
    pub(super) node: NodeId,
    /// Object ids of the label's outputs.
    pub(super) objects: Vec<ObjectId>,
    /// Inputs of the label, in the order of the task's inputs.
    pub(super) inputs: Vec<Placed>,
    /// Estimated size of each output in bytes, for tasks that are sent along with the label.
    pub(super) output_bytes: u64,
    /// Whether the label may read an output of an earlier label that did not exist yet.
    pub(super) chained: bool,
    /// Whether the label was revoked with its node and may be resumed with it.
    pub(super) revoked: bool,
    /// Success of the label that arrived before the outcome of a label on which this label depends.
    pub(super) held: Option<Box<Outcome>>,
}
