//! Writes the decisions of a batch of events to the database in one transaction, before the driver sends or acknowledges any of the
//! decisions (next: `server/src/jobs/driver.rs`).

use super::joins;
use super::outbox::{self, OutboxLabel};
use super::publish::{self, Publishing};
use super::store::{resolve_awaited, state_number, task_state};
use super::trace;
use crate::names::burst::{self, TierNode};
use crate::names::replicas::remove_replica;
use crate::names::shared::NamesShared;
use crate::names::transaction::Tx;
use crate::names::vnode::Caller;
use crate::names::{Change, Fault};
use crate::replicas::{ReplicaFinding, ReplicaReview};
use crate::{corruption, migrations, removal, replicas, scrub};
use prost::Message;
use rusqlite::{Connection, OptionalExtension as _, params};
use std::collections::BTreeSet;
use tidemill_model::event::{Decision, JobState, TaskState};
use tidemill_model::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Corrupt, Failure, FailureKind, Operation, Outcome};
use tidemill_model::object::Placed;
use tidemill_model::time::{Span, Time};
use tidemill_sched::elastic::RUN_MICROJOULES_MAX;
use tidemill_wire::convert::time_to_wire;
use tidemill_wire::v1::{self, State};

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
    Nodes { job: JobId, nodes: Vec<v1::Node> },
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
    Expire { ino: u64, object: u64 },
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
        changes: Vec::new(),
        elsewhere: Vec::new(),
    };
    for (index, step) in batch.steps.iter().enumerate() {
        writer.step(step, last.contains(&index))?;
    }
    // The state of a successful task clears the errors of earlier tries, so these messages are written after it.
    for (task, message) in &writer.elsewhere {
        let sql = "UPDATE task SET error = ?2 WHERE task = ?1";
        db.prepare_cached(sql)?
            .execute(params![task.0.cast_signed(), message])?;
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
    changes: Vec<Change>,
    /// Tasks with outputs that are not at the path that the job specifies, each with the reason.
    elsewhere: Vec<(TaskId, String)>,
}

impl StepWriter<'_> {
    fn step(&mut self, step: &PersistStep, last: bool) -> Result<(), Fault> {
        use PersistStep as Step;
        match step {
            Step::Post(posted) => posted.put(self.db, self.now),
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
                    self.task(*task, *state, *tries)
                } else {
                    Ok(())
                }
            }
            Step::Job { job, state, at } => self.job(*job, *state, *at),
            Step::Nodes { job, nodes } => trace::keep(self.db, *job, nodes),
            Step::Decided { job, decision } => self.decided(*job, decision),
            Step::Publish(publishing) => {
                let (changes, elsewhere) =
                    publish::publish(self.db, self.shared, publishing, self.now)?;
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
                self.measured(*task, *node, outcome)?;
                self.drew(*task, outcome, *above_idle)
            }
            Step::Expire { ino, object } => {
                // A file that was deleted has another inode now.
                let sql = "SELECT ino FROM version WHERE object = ?1";
                let mut known = self.db.prepare_cached(sql)?;
                let known = known.query_row([object.cast_signed()], |row| row.get::<_, i64>(0));
                let ino = known.optional()?.map_or(*ino, i64::cast_unsigned);
                publish::expire(self.db, ino, *object, self.now)
            }
            Step::Remove { node, objects } => self.remove(*node, objects),
            Step::Look(look) => replicas::look(self.db, *look, self.now),
            Step::List(node) => migrations::list(self.db, *node, self.now),
            Step::MakeSpace(free) => burst::make_space(self.db, self.shared, *free, self.now),
            Step::Replicas { object, found } => {
                let changed = replicas::found(self.db, *object, found, self.now)?;
                self.changes.extend(changed);
                Ok(())
            }
            Step::StagesOutAgain(object) => {
                burst::stages_out_again(self.db, object.0.cast_signed())
            }
            Step::Resolved { uid, path, placed } => resolve_awaited(self.db, *uid, path, *placed),
            Step::Settle {
                label,
                node,
                ended,
                read,
            } => self.settle(*label, *node, ended, read),
            Step::Corrupt { node, objects } => {
                corruption::found(self.db, self.shared, *node, objects, self.now).map(drop)
            }
            Step::Scrubbed { scrub } => scrub::finish(self.db, *scrub, self.now),
        }
    }

    fn failure(&self, task: TaskId, failure: &Failure) -> Result<(), Fault> {
        let sql = "UPDATE task SET error = ?2 WHERE task = ?1";
        let row = params![task.0.cast_signed(), failure.message];
        self.db.prepare_cached(sql)?.execute(row)?;
        if failure.kind == FailureKind::Unfit {
            self.shared.rules.wake();
        }
        Ok(())
    }

    fn task(&self, task: TaskId, state: TaskState, tries: u32) -> Result<(), Fault> {
        // A successful task drops the errors of its earlier tries.
        let sql = "UPDATE task SET state = ?2, tries = ?3, changed = ?4, error = iif(?5, '', error) \
                   WHERE task = ?1";
        let row = params![
            task.0.cast_signed(),
            task_state(state),
            tries,
            self.change,
            state == TaskState::Done
        ];
        self.db.prepare_cached(sql)?.execute(row)?;
        Ok(())
    }

    fn job(&self, job: JobId, state: JobState, at: Time) -> Result<(), Fault> {
        let ended = if state == JobState::Running {
            0
        } else {
            time_to_wire(at)
        };
        let row = params![job.0.cast_signed(), state_number(State::from(state)), ended];
        self.db
            .prepare_cached("UPDATE job SET state = ?2, ended = ?3 WHERE job = ?1")?
            .execute(row)?;
        if state != JobState::Running {
            self.shared.rules.wake();
        }
        Ok(())
    }

    fn decided(&self, job: JobId, decision: &Decision) -> Result<(), Fault> {
        let row = params![
            decision.label.0.cast_signed(),
            job.0.cast_signed(),
            decision.task.0.cast_signed(),
            v1::Decision::from(decision).encode_to_vec(),
        ];
        self.db
            .prepare_cached("INSERT OR REPLACE INTO decision VALUES (?1, ?2, ?3, ?4)")?
            .execute(row)?;
        Ok(())
    }

    fn measured(&self, task: TaskId, node: NodeId, outcome: &Outcome) -> Result<(), Fault> {
        let sql = "UPDATE task SET node = ?2, start = ?3, kernel_start = ?4, end = ?5, read_bytes = ?6, \
                   written_bytes = ?7, transferred_bytes = ?8, cpu_ns = ?9, memory_bytes = ?10, kernel_hash = ?11, \
                   changed = ?12, stdout = ?13, stderr = ?14, reused = ?15, hash_ns = ?16, in_memory_bytes = ?17 WHERE task = ?1";
        self.db.prepare_cached(sql)?.execute(params![
            task.0.cast_signed(),
            node.0,
            time_to_wire(outcome.start),
            time_to_wire(outcome.kernel_start),
            time_to_wire(outcome.end),
            outcome.read_bytes.cast_signed(),
            outcome.written_bytes.cast_signed(),
            outcome.transferred_bytes.cast_signed(),
            outcome.cpu.0.cast_signed(),
            outcome.memory_bytes.cast_signed(),
            outcome.kernel_hash,
            self.change,
            outcome.stdout,
            outcome.stderr,
            outcome.reused.map_or(0, |task| task.0.cast_signed()),
            outcome.hashing.0.cast_signed(),
            outcome.in_memory_bytes.cast_signed(),
        ])?;
        Ok(())
    }

    /// Adds the energy of a run to its task; every run of a task counts, also a failed run.
    fn drew(&self, task: TaskId, outcome: &Outcome, above_idle: Option<u64>) -> Result<(), Fault> {
        if outcome.cpu == Span::default() {
            return Ok(());
        }
        let sql = "UPDATE task SET microjoules = min(microjoules + ?2, ?4), estimated = estimated + ?3, \
                   unestimated = unestimated + 1 - ?3 WHERE task = ?1";
        self.db.prepare_cached(sql)?.execute(params![
            task.0.cast_signed(),
            above_idle.unwrap_or(0).cast_signed(),
            above_idle.is_some(),
            RUN_MICROJOULES_MAX.cast_signed(),
        ])?;
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
                let kept = (&self.shared.leaving, self.now);
                return removal::ended(self.db, node, &objects, failed, kept);
            }
            Some(Operation::Copy { to, .. }) => {
                let kept = (&self.shared.leaving, self.now);
                return replicas::ended(self.db, to.object, node, ended.is_ok(), kept);
            }
            Some(Operation::Verify { scrub, objects, .. }) => {
                let found = (read, ended.is_ok());
                let of = (scrub, node);
                return scrub::ended(self.db, self.shared, of, &objects, found, self.now);
            }
            Some(Operation::Analyse(_)) | None => {}
        }
        for &object in ended.iter().flatten() {
            if !self.is_known(object, node)? {
                remove_replica(self.db, object.0, node.0, self.now)?;
            }
        }
        Ok(())
    }

    /// Returns whether the database expects a new object on a node. An aborted label may run in spite of the abort, because of a message
    /// that arrived twice. The label then creates a replica that no step has requested.
    fn is_known(&self, object: ObjectId, node: NodeId) -> Result<bool, Fault> {
        let sql = "SELECT EXISTS (SELECT 1 FROM held WHERE object = ?1 AND node = ?2) \
                   OR EXISTS (SELECT 1 FROM replica WHERE object = ?1 AND node = ?2)";
        let mut known = self.db.prepare_cached(sql)?;
        let row = params![object.0.cast_signed(), node.0];
        Ok(known.query_row(row, |row| row.get(0))?)
    }
}
