//! Writes the decisions of a batch of events to the database in one transaction, before the driver sends or acknowledges any of the
//! decisions (next: `server/src/jobs/driver.rs`).

use super::publish::publish;
use crate::replicas::NodesView;
use std::collections::BTreeSet;
use tidemill_meta::jobs::outbox::{self, LabelWork, OutboxLabel};
use tidemill_meta::jobs::outputs::Publishing;
use tidemill_meta::jobs::{awaited, joins, records};
use tidemill_meta::placement::burst::{self, TierNode};
use tidemill_meta::placement::nodes::{self, ReplicaReview};
use tidemill_meta::placement::replicas::{self, remove_replica};
use tidemill_meta::placement::under_replicated::{self, ReplicaFinding};
use tidemill_meta::placement::{corruption, removals, scrub};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::transaction::Tx;
use tidemill_meta::vnode::Caller;
use tidemill_meta::{Change, Connection, Fault, version};
use tidemill_model::event::{Decision, JobState, TaskState};
use tidemill_model::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Corrupt, Failure, FailureKind, Operation, Outcome};
use tidemill_model::object::Placed;
use tidemill_model::time::Time;
use tidemill_wire::v1;

/// One change that the driver stores in the database.
#[derive(Clone, Debug)]
pub(crate) enum PersistStep {
    /// Stores a label that is about to be sent.
    Post(OutboxLabel),
    /// Stores the state of a task.
    Task {
        task: TaskId,
        state: TaskState,
        tries: u32,
        failure: Option<Failure>,
    },
    /// Stores the state of a job.
    Job {
        job: JobId,
        state: JobState,
        at: Time,
    },
    /// Stores the nodes of the cluster at the start of a job.
    Nodes { job: JobId, nodes: v1::Peers },
    /// Stores the reason for the placement of a task.
    Decided { job: JobId, decision: Box<Decision> },
    /// Publishes the outputs of a task that succeeded.
    Publish(Box<Publishing>),
    /// Stores the resources that a run of a task used, whether the run succeeded or failed.
    Measured {
        task: TaskId,
        node: NodeId,
        outcome: Box<Outcome>,
        /// Energy above idle power, in millionths of a joule; `None` if the energy can't be estimated.
        above_idle: Option<u64>,
    },
    /// Removes an expired version, with the names of its file.
    Expire(u64),
    /// Removes objects that will never be versions of files.
    Remove {
        node: NodeId,
        objects: Vec<ObjectId>,
    },
    /// Stores a finding about the replicas of a version.
    Replicas {
        object: ObjectId,
        found: ReplicaFinding,
    },
    /// Records that an object in the burst tier must be staged out again, since it is no longer stored outside the tier.
    StagesOutAgain(ObjectId),
    /// Examines the next objects of a node that is lost or has reconnected.
    Look(ReplicaReview),
    /// Makes space on a node of the burst tier, which may hold too many bytes.
    MakeSpace(TierNode),
    /// Adds more objects on a draining node to the list of objects to examine.
    List(u32),
    /// Records that a file exists that a user's jobs waited for.
    Resolved {
        uid: u32,
        path: String,
        placed: Placed,
    },
    /// Stores the end of a label. On success, `ended` has the objects that the label sealed: objects that no step uses are removed. On
    /// failure, `ended` has the objects that the label removed in spite of the failure.
    Settle {
        label: LabelId,
        node: NodeId,
        /// Whether the label belongs to a task.
        of_task: bool,
        ended: Result<Vec<ObjectId>, Vec<ObjectId>>,
        read: scrub::ScrubbedLabel,
    },
    /// Records that objects on a node are corrupt.
    Corrupt { node: NodeId, objects: Vec<Corrupt> },
    /// Records that a scrub has read all its objects.
    Scrubbed { scrub: u64 },
}

/// A batch of steps to store, and the number that the batch gives to changed jobs.
#[derive(Debug)]
pub(crate) struct StepBatch {
    pub(crate) steps: Vec<PersistStep>,
    pub(crate) change: i64,
    pub(crate) now: i64,
    /// The nodes, if the batch ends a copy that succeeded.
    pub(crate) nodes: Option<NodesView>,
}

impl StepBatch {
    /// Returns whether the batch stores labels that remove objects.
    pub(crate) fn removes(&self) -> bool {
        self.steps.iter().any(|step| match step {
            PersistStep::Post(posted) => matches!(posted.work, LabelWork::Remove(_)),
            _ => false,
        })
    }
}

/// Returns whether a step ends a copy that succeeded.
pub(crate) fn ends_copies(steps: &[PersistStep]) -> bool {
    let mut steps = steps.iter();
    steps.any(
        |step| matches!(step, PersistStep::Settle { of_task: false, ended: Ok(sealed), .. } if !sealed.is_empty()),
    )
}

/// Writes a batch of steps to the database; returns the changes in the namespace.
pub(crate) fn write(
    db: &Connection,
    shared: &NamesShared,
    batch: &StepBatch,
) -> Result<Vec<Change>, Fault> {
    let last = last_states(&batch.steps);
    let mut writer = StepWriter {
        db,
        shared,
        now: batch.now,
        change: batch.change,
        nodes: batch.nodes.as_ref(),
        changes: Vec::new(),
        elsewhere: Vec::new(),
    };
    for (index, step) in batch.steps.iter().enumerate() {
        writer.step(step, last.contains(&index))?;
    }
    // The state of a successful task clears the errors of earlier tries, so these messages are written after it.
    for (task, message) in &writer.elsewhere {
        records::set_error(db, *task, message)?;
    }
    // The duration of the last task instance is known only now.
    for step in &batch.steps {
        if let PersistStep::Publish(publishing) = step
            && !publishing.layouts.is_empty()
        {
            joins::measure(db, publishing.task)?;
        }
    }
    Ok(writer.changes)
}

/// Returns the indices of the last state of each task in a batch: earlier states need not be written.
fn last_states(steps: &[PersistStep]) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut last = BTreeSet::new();
    for (index, step) in steps.iter().enumerate().rev() {
        if let PersistStep::Task { task, .. } = step
            && seen.insert(*task)
        {
            last.insert(index);
        }
    }
    last
}

struct StepWriter<'a> {
    db: &'a Connection,
    shared: &'a NamesShared,
    now: i64,
    change: i64,
    nodes: Option<&'a NodesView>,
    changes: Vec<Change>,
    /// Tasks with outputs that are not at the path that the job specifies, each with the reason.
    elsewhere: Vec<(TaskId, String)>,
}

impl StepWriter<'_> {
    fn step(&mut self, step: &PersistStep, last: bool) -> Result<(), Fault> {
        use PersistStep as Step;
        match step {
            Step::Post(posted) => self.post(posted),
            Step::Task {
                task,
                state,
                tries,
                failure,
            } => {
                if let Some(failure) = failure {
                    self.failure(*task, failure)?;
                }
                if last {
                    records::set_task_state(self.db, *task, *state, *tries, self.change)
                } else {
                    Ok(())
                }
            }
            Step::Job { job, state, at } => self.job(*job, *state, *at),
            Step::Nodes { job, nodes } => records::put_nodes(self.db, *job, nodes),
            Step::Decided { job, decision } => records::put_decision(self.db, *job, decision),
            Step::Publish(publishing) => {
                let (changes, elsewhere) = publish(self.db, self.shared, publishing, self.now)?;
                self.changes.extend(changes);
                if !elsewhere.is_empty() {
                    self.elsewhere.push((publishing.task, elsewhere));
                }
                Ok(())
            }
            Step::Measured {
                task,
                node,
                outcome,
                above_idle,
            } => {
                records::set_run(self.db, *task, *node, outcome, self.change)?;
                records::add_energy(self.db, *task, outcome.cpu, *above_idle)
            }
            Step::Expire(object) => version::set_expiry(self.db, *object, self.now),
            Step::Remove { node, objects } => self.remove(*node, objects),
            Step::Look(look) => nodes::review(self.db, &self.shared.nodes, *look, self.now),
            Step::List(node) => nodes::list(self.db, *node, self.now),
            Step::MakeSpace(free) => burst::make_space(self.db, self.shared, *free, self.now),
            Step::Replicas { object, found } => {
                let changed = under_replicated::found(self.db, *object, found, self.now)?;
                self.changes.extend(changed);
                Ok(())
            }
            Step::StagesOutAgain(object) => burst::stages_out_again(self.db, object.0),
            Step::Resolved { uid, path, placed } => awaited::resolve(self.db, *uid, path, *placed),
            Step::Settle {
                label,
                node,
                ended,
                read,
                ..
            } => self.settle(*label, *node, ended, read),
            Step::Corrupt { node, objects } => {
                corruption::found(self.db, self.shared, *node, objects, self.now).map(drop)
            }
            Step::Scrubbed { scrub } => scrub::finish(self.db, *scrub, self.now),
        }
    }

    fn failure(&self, task: TaskId, failure: &Failure) -> Result<(), Fault> {
        records::set_error(self.db, task, &failure.message)?;
        if failure.kind == FailureKind::Unfit {
            self.shared.rules.wake();
        }
        Ok(())
    }

    fn post(&self, posted: &OutboxLabel) -> Result<(), Fault> {
        outbox::put(self.db, posted, self.now)?;
        match &posted.work {
            LabelWork::Task(_) => Ok(()),
            LabelWork::Remove(objects) => {
                removals::labelled(self.db, posted.label, posted.node, objects)
            }
            LabelWork::Copy(object) => replicas::begun(self.db, *object, posted.node),
            LabelWork::Verify { scrub, last } => scrub::labelled(self.db, *scrub, *last),
        }
    }

    fn job(&self, job: JobId, state: JobState, at: Time) -> Result<(), Fault> {
        records::set_job_state(self.db, job, state, at)?;
        if state != JobState::Running {
            self.shared.rules.wake();
        }
        Ok(())
    }

    fn remove(&self, node: NodeId, objects: &[ObjectId]) -> Result<(), Fault> {
        let caller = Caller::root();
        let tx = Tx::new(self.db, self.shared, &caller, 0, self.now);
        for object in objects {
            tx.drop_object(object.0, i64::from(node.0))?;
        }
        Ok(())
    }

    fn settle(
        &self,
        label: LabelId,
        node: NodeId,
        ended: &Result<Vec<ObjectId>, Vec<ObjectId>>,
        read: &scrub::ScrubbedLabel,
    ) -> Result<(), Fault> {
        match outbox::take(self.db, label)? {
            Some(Operation::Remove { objects }) => {
                let failed = ended.as_ref().err().map(Vec::as_slice);
                let kept = (&self.shared.nodes, self.now);
                return removals::ended(self.db, node, &objects, failed, kept);
            }
            Some(Operation::Copy { to, .. }) => {
                let kept = (&self.shared.nodes, self.now);
                replicas::ended(self.db, to.object, node, ended.is_ok(), kept)?;
                return match self.nodes.filter(|_| ended.is_ok()) {
                    Some(nodes) => nodes.settle(self.db, to.object, kept),
                    None => Ok(()),
                };
            }
            Some(Operation::Verify { scrub, objects, .. }) => {
                let found = (read, ended.is_ok());
                let of = (scrub, node);
                return scrub::ended(self.db, self.shared, of, &objects, found, self.now);
            }
            Some(Operation::Analyse(_)) | None => {}
        }
        for &object in ended.iter().flatten() {
            // An aborted label may run in spite of the abort, because of a message that arrived twice. The label then creates a replica
            // that no step has requested.
            if !replicas::is_expected(self.db, object, node)? {
                remove_replica(self.db, object.0, node.0, self.now)?;
            }
        }
        Ok(())
    }
}
