//! What the dispatcher keeps of jobs, tasks and labels.

use super::class::ClassNumber;
use super::learned::KernelNumber;
use super::short::Short;
use crate::event::{JobState, TaskSpec, TaskState};
use crate::id::{ElementId, JobId, LabelId, ObjectId, TaskId};
use crate::label::{Failure, Outcome, Owner};
use crate::object::Placed;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Where a ready task stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// No policy has been asked yet.
    Fresh,
    /// No storage element that can run tasks of this class had room; any of them that gets some will do.
    Any(ClassNumber),
    /// No element that is up can run tasks of this class, or the one that the job script names can't.
    Barred(ClassNumber),
    /// The job script names the element.
    Pinned(ElementId),
    /// The policy chose the element, but its queue was full.
    At(ElementId),
}

/// One task.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) spec: TaskSpec,
    pub(super) kernel: KernelNumber,
    pub(super) class: ClassNumber,
    pub(super) job: JobId,
    pub(super) state: TaskState,
    /// Tries so far; those that a lost element or a dependency ended are taken off again.
    pub(super) tries: u32,
    /// Tries that ended with the loss of an element.
    pub(super) losses: u32,
    /// How often it was taken back from an element that had not begun it.
    pub(super) recalls: u32,
    /// The label of the try under way; `Some` exactly while the task is sent or running.
    pub(super) current: Option<LabelId>,
    /// Tasks of the job whose outputs it waits for.
    pub(super) missing: Short<TaskId>,
    /// Awaited inputs that were found, by their index.
    pub(super) found: BTreeMap<usize, Placed>,
    /// Awaited inputs that were not.
    pub(super) awaited: usize,
    /// Whether an input is only on an element that is not up.
    pub(super) stranded: bool,
    /// Whether it was said that no element that is up can run it.
    pub(super) aside: bool,
    /// The result that counts. Kept while the task is run again because it was lost.
    pub(super) outputs: Option<Vec<Placed>>,
    /// Tasks that read its outputs.
    pub(super) dependents: Short<TaskId>,
    /// Elements that failed it in a way that another may not.
    pub(super) avoid: BTreeSet<ElementId>,
    /// Its place among the ready tasks; `Some` exactly while it is ready.
    pub(super) line: Option<Line>,
    /// Its inputs while it is ready, since it may be looked at often before it is placed.
    pub(super) ready_inputs: Vec<Placed>,
    /// Which news (see `Dispatcher::news`) the policy had when it was asked last.
    pub(super) asked: u64,
    /// Goes out with its next change of state.
    pub(super) failure: Option<Failure>,
}

impl Task {
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
            recalls: 0,
            current: None,
            missing: Short::default(),
            found: BTreeMap::new(),
            awaited: 0,
            stranded: false,
            outputs: None,
            dependents: Short::default(),
            avoid: BTreeSet::new(),
            line: None,
            ready_inputs: Vec::new(),
            asked: 0,
            failure: None,
        }
    }

    /// Whether it is run again because its result was lost with an element.
    pub(super) fn redone(&self) -> bool {
        self.outputs.is_some() && self.state != TaskState::Done
    }

    /// Whether it waits, for whatever reason, and no element has it.
    pub(super) fn idle(&self) -> bool {
        matches!(self.state, TaskState::Waiting | TaskState::Ready)
    }
}

/// Whether a state is an end.
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
pub(super) struct Job {
    pub(super) owner: Owner,
    pub(super) policy: String,
    /// In the script's order.
    pub(super) tasks: Vec<TaskId>,
    pub(super) state: JobState,
    pub(super) counts: BTreeMap<TaskState, usize>,
    pub(super) waves: BTreeMap<KernelNumber, Wave>,
    pub(super) submitted: Time,
    pub(super) ended: Option<Time>,
}

impl Job {
    pub(super) fn count(&self, state: TaskState) -> usize {
        self.counts.get(&state).copied().unwrap_or(0)
    }

    /// Tasks that are not at an end.
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

/// A label that was sent and whose outcome is not known yet.
///
/// It is *live* while its task's `current` names it. One that is not live was taken back with its
/// element or aborted; it is kept so that a late outcome is recognised.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) task: TaskId,
    pub(super) job: JobId,
    pub(super) element: ElementId,
    /// Ids of its outputs.
    pub(super) objects: Vec<ObjectId>,
    /// What it reads, in the order of the task's inputs.
    pub(super) inputs: Vec<Placed>,
    /// Estimate of each output's size, for tasks that are sent along.
    pub(super) output_bytes: u64,
    /// It may read what a label before it was still to make.
    pub(super) chained: bool,
    /// It was taken back with its element and may be taken up again with it.
    pub(super) taken_back: bool,
    /// A success that came before that of a label it depends on.
    pub(super) held: Option<Box<Outcome>>,
}
