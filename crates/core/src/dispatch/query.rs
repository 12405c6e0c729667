//! What status pages and the driver may ask. Nothing here changes anything.

use super::{Dispatcher, Line};
use crate::event::{ElementView, JobState, Role, TaskState};
use crate::id::{ElementId, JobId, LabelId, ObjectId, TaskId};
use crate::label::Owner;
use crate::object::Placed;
use crate::policy;
use crate::resources::Offers;
use crate::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A job at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Which.
    pub job: JobId,
    /// Whose.
    pub owner: Owner,
    /// Name of its policy.
    pub policy: String,
    /// Its state.
    pub state: JobState,
    /// When it was taken on.
    pub submitted: Time,
    /// When it ended.
    pub ended: Option<Time>,
    /// How many of its tasks are in which state; states without any are left out.
    pub tasks: BTreeMap<TaskState, usize>,
}

/// A task at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    /// Which.
    pub task: TaskId,
    /// Its name in the script.
    pub name: String,
    /// Name of its kernel.
    pub kernel: String,
    /// Its state.
    pub state: TaskState,
    /// Tries so far.
    pub tries: u32,
    /// The label under way and the element that has it.
    pub sent: Option<(LabelId, ElementId)>,
    /// Its result.
    pub outputs: Vec<Placed>,
}

/// An element's queue at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementStatus {
    /// Which.
    pub element: ElementId,
    /// Whether it is up.
    pub up: bool,
    /// What it is like, as it said last.
    pub view: ElementView,
    /// Labels in its queue, running ones counted.
    pub outstanding: usize,
    /// Labels that run.
    pub running: usize,
    /// Labels that it takes at most.
    pub bound: usize,
    /// Expected time until a core is free.
    pub wait: Span,
    /// Ready tasks that wait in the dispatcher for room on it.
    pub waiting: usize,
    /// Programs of tasks that it said it has.
    pub programs: Vec<String>,
}

/// What an element that is up has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementLoad {
    /// Which.
    pub element: ElementId,
    /// Labels that run.
    pub running: usize,
    /// Labels in its queue that do not run yet.
    pub queued: usize,
    /// Ready tasks that wait in the dispatcher for room on it.
    pub waiting: usize,
    /// Expected time until it has a core for another label, after all that came before.
    pub wait: Span,
    /// Expected time until all that it has to do is done.
    pub left: Span,
}

/// The view of an element that has not come yet.
pub(super) fn unknown_view() -> ElementView {
    ElementView {
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
    /// All jobs that were not forgotten, oldest id first.
    pub fn jobs(&self) -> impl Iterator<Item = JobStatus> + '_ {
        self.jobs.keys().filter_map(|&job| self.job(job))
    }

    /// One job.
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

    /// The tasks of a job in the script's order; none if there is no such job.
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
                .and_then(|label| Some((label, self.labels.get(&label)?.element)));
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

    /// Ready tasks that wait for room on an element.
    fn waiting_for(&self, id: ElementId) -> usize {
        let lines = [Line::At(id), Line::Pinned(id)].map(|line| self.lines.get(&line));
        lines.into_iter().flatten().map(BTreeSet::len).sum()
    }

    /// What the elements that are up have to do. Tasks that wait here count for as long, in the mean, as those that
    /// were sent.
    pub fn loads(&self, now: Time) -> impl Iterator<Item = ElementLoad> + '_ {
        let up = self.elements.iter().filter(|(_, element)| element.up());
        up.map(move |(id, element)| {
            let (outstanding, running) = (element.outstanding.len(), element.running.len());
            let waiting = self.waiting_for(id);
            let all = |span: Span| {
                let sent = outstanding.max(1) as u128;
                let all = u128::from(span.0) * (sent + waiting as u128) / sent;
                Span(u64::try_from(all).unwrap_or(u64::MAX))
            };
            ElementLoad {
                element: id,
                running,
                queued: outstanding.saturating_sub(running),
                waiting,
                wait: all(element.wait(now)),
                left: all(element.all_left(now)),
            }
        })
    }

    /// All elements that were ever heard of.
    pub fn elements(&self, now: Time) -> impl Iterator<Item = ElementStatus> + '_ {
        self.elements
            .iter()
            .map(move |(id, element)| ElementStatus {
                element: id,
                up: element.up(),
                view: ElementView {
                    history: self.learned.on(id),
                    ..element.view.clone()
                },
                outstanding: element.outstanding.len(),
                running: element.running.len(),
                bound: element.bound(),
                wait: element.wait(now),
                waiting: self.waiting_for(id),
                programs: self.classes.programs_on(id),
            })
    }

    /// The copies of others' objects that an element should have, oldest first: what transfers are reckoned with.
    pub fn copies_on(&self, element: ElementId) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
        self.copies.on(element)
    }

    /// The policy of jobs that name none.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.config.policy
    }

    /// What the policy of that name, or the array's own, goes on from.
    #[must_use]
    pub fn memory(&self, policy: Option<&str>) -> policy::Memory {
        let policy = self.policies.get(policy.unwrap_or(&self.config.policy));
        policy.map_or_else(policy::Memory::default, |policy| policy.memory())
    }

    /// The task that a label is a try of, while its outcome is not known.
    #[must_use]
    pub fn task_of(&self, label: LabelId) -> Option<TaskId> {
        self.labels.get(&label).map(|issued| issued.task)
    }
}
