//! The dispatcher: the state machine between jobs and elements. It is told what happened, decides what
//! runs where, and answers with actions; it does no I/O and reads no clock.
//!
//! **Tasks** go Waiting → Ready → Sent → Running → Done, Failed or Cancelled (see `inputs` for the
//! first arrow, `place` for the second, `outcome` for the last). A task whose dependency failed for
//! good is cancelled; the rest of the job goes on as far as it can.
//!
//! **Order.** Ready tasks go first come, first served by (job, task). One that cannot be placed, for
//! want of room on the element that its policy insists on, or of an element that has what it needs, does not hold up
//! those behind it.
//!
//! **A task goes only where it can run**: to elements that offer what it needs and have its programs (see `class`). How
//! much of that is free decides when it starts there, which is the element's business (see [`crate::resources`]).
//!
//! **Bounded queues.** An element gets [`QUEUE_FACTOR`] labels per core, and up to [`QUEUE_FACTOR_MAX`]
//! while all that it has is expected to be done within [`QUEUE_TARGET`]; the rest stays here, so that it
//! can still go elsewhere.
//!
//! **Nothing waits beside an idle core.** What an element was sent and has not begun is taken back when another has
//! nothing to do and the policy would rather have it there (see `recall`).
//!
//! **Exactly one result.** A label is *live* while its task's `current` names it. Only a live label's
//! success is published; others are taken up again with their element or their outputs are discarded.
//!
//! Everything that reaches a decision is ordered, so the same events give the same actions.

mod batch;
mod check;
mod class;
mod copies;
mod element;
mod elements;
mod errand;
mod inputs;
mod job;
mod join;
mod learned;
mod outcome;
mod place;
mod presence;
mod query;
mod recall;
mod roll;
mod scored;
mod short;
mod sight;
mod sleep;
#[cfg(test)]
mod speed;
mod table;
mod task;

pub use class::ASIDE;
pub use copies::{COPIES_BYTES_MAX, COPIES_MAX, LASTING_MAX};
pub use element::expected_run;
pub use query::{ElementLoad, ElementStatus, JobStatus, TaskStatus};
pub use sleep::Demand;

use crate::event::{Action, Event, IdSource, JobState, TaskState};
use crate::id::{ElementId, JobId, LabelId, ObjectId, TaskId};
use crate::label::{Failure, Label};
use crate::policy::{self, Policy, UnknownPolicy};
use crate::time::{Span, Time};
use class::Classes;
use copies::Copies;
use element::{Element, Presence};
use elements::Elements;
use errand::Errands;
use learned::Learned;
use place::Reads;
use short::Short;
use sight::Lists;
use std::collections::{BTreeMap, BTreeSet};
use table::Table;
use task::{Issued, Job, Line, Task, is_end};

/// Labels that an element always gets per core.
pub const QUEUE_FACTOR: usize = 4;
/// Labels that an element always gets.
pub const QUEUE_MIN: usize = 8;
/// Labels that an element gets per core at most.
pub const QUEUE_FACTOR_MAX: usize = 64;
/// Work per core up to which a queue is filled beyond [`QUEUE_FACTOR`]: enough to hide the way to the
/// server and back, including its disk.
pub const QUEUE_TARGET: Span = Span::from_millis(20);
/// Labels of one mini DAG.
pub const MINI_DAG_LABELS_MAX: usize = 32;
/// Tasks behind one another in a mini DAG.
pub const MINI_DAG_DEPTH_MAX: usize = 8;
/// How often a policy is asked whether a task joins a mini DAG, per mini DAG.
pub const MINI_DAG_ASKS_MAX: usize = 2 * MINI_DAG_LABELS_MAX;
/// Tasks waiting for a full element that are asked for again per event when another is idle.
pub const IDLE_ASKS_MAX: usize = 4;
/// Tasks waiting for an element that got room and that would rather go elsewhere by now, per event: after these
/// the others wait for the next event, unless a core has nothing to do.
pub const LINE_ASKS_MAX: usize = 4;
/// Errands of one element that may be under way, beside copies.
pub const ERRANDS_MAX: usize = 4;
/// Copies that an element may be making or have before it: so many of any length,
pub const COPY_LABELS_MIN: usize = 3;
/// so many of small objects, which are made many at once,
pub const COPY_LABELS_MAX: usize = 512;
/// and no more than these while they have so many bytes.
pub const COPY_LABELS_BYTES_MAX: u64 = 32 << 20;
/// Losses of an element that a task survives. Apart from `retries`, which count the task's own failures.
pub const LOSSES_MAX: u32 = 5;
/// What a run counts for that no element has a history of: so much that such runs spread over elements as long as
/// their inputs move in less. The first that ends tells what the others count for.
pub const UNKNOWN_RUN: Span = Span::from_secs(60);
/// The part of its expected time that a label counts for at least while it runs, however long it has run: one in so
/// many. One that is over its time is not about to end because of that.
pub const LEFT_PART: u64 = 4;
/// How often a task is taken back from elements that have not begun it.
pub const RECALLS_MAX: u32 = 4;
/// Elements that have more to do than cores and are looked at per event for a label to take back.
pub const RECALL_LOOKS_MAX: usize = 16;
/// Labels whose policy is asked per event whether they are to be taken back.
pub const RECALL_ASKS_MAX: usize = 2;
/// The policy of components.
pub(super) const COMPONENTS: &str = "input-locality";
/// The longest that a run counts for.
pub const EXPECTED_MAX: Span = Span::from_secs(30 * 86_400);

const _: () = assert!(QUEUE_FACTOR <= QUEUE_FACTOR_MAX && QUEUE_MIN <= QUEUE_FACTOR_MAX);
const _: () = assert!(MINI_DAG_DEPTH_MAX <= MINI_DAG_LABELS_MAX);

/// Settings of a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the policy of jobs that name none.
    pub policy: String,
    /// Seed of policies that draw.
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

/// The state machine.
#[derive(Debug)]
pub struct Dispatcher {
    config: Config,
    ids: Box<dyn IdSource>,
    policies: BTreeMap<String, Box<dyn Policy>>,
    jobs: BTreeMap<JobId, Job>,
    tasks: Table<TaskId, Task>,
    elements: Elements,
    labels: Table<LabelId, Issued>,
    /// Labels that belong to no task, and where they are.
    errands: Errands,
    learned: Learned,
    classes: Classes,
    copies: Copies,
    /// Ready tasks, by what they wait for.
    lines: BTreeMap<Line, BTreeSet<(JobId, TaskId)>>,
    /// Tasks that wait for a path.
    awaited: BTreeMap<String, BTreeSet<TaskId>>,
    /// Tasks that wait for an element.
    stranded: BTreeSet<TaskId>,
    /// Done tasks that are run again.
    redone: BTreeSet<TaskId>,
    /// Elements that may have got room since ready tasks were looked at.
    touched: Short<ElementId>,
    /// Storage elements with a core that has nothing to do.
    idle: BTreeSet<ElementId>,
    /// Storage elements that have more to do than cores.
    crowded: BTreeSet<ElementId>,
    /// Where `crowded` is looked at next, and how many of it before nothing can have changed.
    looked: ElementId,
    to_look: usize,
    /// Labels that are being taken back, and the element that each is for.
    recalled: BTreeMap<LabelId, ElementId>,
    /// Counts what may make a policy move a task away from the full element that it waits for: elements that
    /// run out of work, and run times that turn out to be different.
    news: u64,
    /// Jobs in which a task came to an end since jobs were looked at.
    ending: Short<JobId>,
    /// Labels that leave at the end of the event, by element.
    outbox: Short<ElementId, Vec<Label>>,
    /// Whether decisions are told.
    explains: bool,
    /// Lists for the next task that is placed, so that they need not be made anew each time.
    spare: Lists,
    spare_reads: Reads,
}

/// What a handler is given with its event.
#[derive(Debug)]
struct Turn<'a> {
    now: Time,
    out: &'a mut Vec<Action>,
}

impl Dispatcher {
    /// An empty dispatcher that knows no element and no job.
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
            tasks: Table::default(),
            elements: Elements::default(),
            labels: Table::default(),
            errands: Errands::default(),
            learned: Learned::default(),
            classes: Classes::default(),
            copies: Copies::default(),
            lines: BTreeMap::new(),
            awaited: BTreeMap::new(),
            stranded: BTreeSet::new(),
            redone: BTreeSet::new(),
            touched: Short::default(),
            idle: BTreeSet::new(),
            crowded: BTreeSet::new(),
            looked: ElementId(0),
            to_look: 0,
            recalled: BTreeMap::new(),
            news: 1,
            ending: Short::default(),
            outbox: Short::default(),
            explains: true,
            spare: Lists::default(),
            spare_reads: Reads::default(),
        })
    }

    /// Gives no [`Action::Decided`]: for a driver that keeps no explanations. The estimates of all elements for
    /// every task cost time where there are many.
    #[must_use]
    pub fn without_explanations(mut self) -> Self {
        self.explains = false;
        self
    }

    /// Goes on from what another knew beyond jobs and elements, to do what that would have done: what the array's policy
    /// remembered, and the copies that elements which are up should have, oldest first.
    pub fn resume(&mut self, memory: policy::Memory, copies: &[(ElementId, ObjectId, u64)]) {
        if let Some(policy) = self.policies.get_mut(&self.config.policy) {
            policy.restore(memory);
        }
        for &(element, object, size) in copies {
            self.copies.note(element, object, size);
        }
    }

    /// Takes one event and appends what is to be done about it, in the order in which it is to be done.
    ///
    /// Labels leave last, at most one [`Action::Send`] per element and event, after the
    /// [`Action::Task`] of every task in it; a driver that journals actions before it carries them out
    /// loses nothing. Events may come twice or late; what they say is taken once.
    pub fn on(&mut self, event: Event, now: Time, out: &mut Vec<Action>) {
        let turn = &mut Turn { now, out };
        match event {
            Event::ElementUp { element, view } => self.on_element_up(element, view, turn),
            Event::ElementDown { element } => self.on_element_down(element, turn),
            Event::ElementAsleep { element } => self.on_element_asleep(element, turn),
            Event::ElementStatus { element, view } => self.on_element_status(element, view),
            Event::Programs {
                element,
                found,
                missing,
            } => self.on_programs(element, found, missing),
            Event::Submitted(spec) => self.on_submitted(*spec, turn),
            Event::FileSealed { path, placed } => self.on_file_sealed(&path, placed, turn),
            Event::Started { element, label } => self.on_started(element, label, turn),
            Event::Finished {
                element,
                label,
                outcome,
            } => {
                self.on_finished(element, label, outcome, turn);
            }
            Event::Cancel { job } => self.on_cancel(job, turn),
            Event::Errand {
                element,
                owner,
                operation,
            } => self.on_errand(element, owner, operation),
            Event::Copied {
                object,
                element,
                there,
            } => self.on_copied(object, element, there, turn),
            Event::Parted { object, layout } => self.copies.part(object, layout),
            Event::Emptied { element, emptied } => self.on_emptied(element, emptied),
            Event::ErrandSent {
                element,
                label,
                operation,
            } => self.on_errand_sent(element, label, &operation),
        }
        self.pump(turn);
        self.recall(turn);
        self.end_jobs(turn);
        while let Some((element, labels)) = self.outbox.pop_first() {
            turn.out.push(Action::Send { element, labels });
        }
        debug_assert!(self.labels_add_up(), "labels and elements disagree");
    }

    fn task(&self, id: TaskId) -> &Task {
        self.tasks
            .get(&id)
            .expect("tasks are kept as long as anything names them")
    }

    fn task_mut(&mut self, id: TaskId) -> &mut Task {
        self.tasks
            .get_mut(&id)
            .expect("tasks are kept as long as anything names them")
    }

    fn job_mut(&mut self, id: JobId) -> &mut Job {
        self.jobs
            .get_mut(&id)
            .expect("a job is kept as long as its tasks")
    }

    /// An element by its id; one that was never heard of counts as expected.
    fn element_mut(&mut self, id: ElementId) -> &mut Element {
        self.elements.get_or_insert(id, || {
            Element::new(Presence::Expected, query::unknown_view())
        })
    }

    fn presence(&self, id: ElementId) -> Presence {
        self.elements
            .get(&id)
            .map_or(Presence::Expected, |element| element.presence)
    }

    /// Moves a task to a state, keeps all counts and lines, and says so. Staying in a state is said only
    /// if there is a failure to tell.
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
                self.join_line(Line::Fresh, id);
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

    /// Counts a task in or out of the ready ones of its kernel.
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

    fn leave_line(&mut self, line: Line, key: (JobId, TaskId)) {
        if let Some(members) = self.lines.get_mut(&line) {
            members.remove(&key);
            // Most events fill this one again.
            if members.is_empty() && line != Line::Fresh {
                self.lines.remove(&line);
            }
        }
    }

    /// Puts a ready task in line, out of the one it stood in.
    fn join_line(&mut self, line: Line, id: TaskId) {
        let task = self.task_mut(id);
        let key = (task.job, id);
        if let Some(old) = task.line.replace(line) {
            self.leave_line(old, key);
        }
        self.lines.entry(line).or_default().insert(key);
    }

    /// Says which jobs came to an end with this event.
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

    /// Takes a label off its element's queue.
    fn release(&mut self, element: ElementId, label: LabelId) {
        if let Some(known) = self.elements.get_mut(&element)
            && known.remove(label)
        {
            self.touch(element);
        }
    }

    /// Has ready tasks looked at again for an element whose room or cores may have changed.
    fn touch(&mut self, id: ElementId) {
        self.touched.insert(id, ());
        self.count_idle(id);
    }

    fn count_idle(&mut self, id: ElementId) {
        let store = self.elements.get(&id);
        let store = store.filter(|element| element.view.role == crate::event::Role::Store);
        let idle = store.is_some_and(|element| element.idle_cores() > 0);
        if !store.is_some_and(Element::crowded) {
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

    /// Keeps a failure to be told with the task's next state.
    fn tell(&mut self, id: TaskId, failure: Failure) {
        self.task_mut(id).failure = Some(failure);
    }
}
