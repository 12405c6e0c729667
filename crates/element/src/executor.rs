//! Takes labels in, runs them on a fixed set of threads, and keeps and reports how they ended.
//!
//! A label is in the database before it is in the queue, and its outcome is in the database before it is
//! reported, so that neither a killed element nor a lost connection loses or repeats an effect. What one label
//! does is in [`crate::task`].

use crate::db::{Db, DbError};
use crate::error::Error;
use crate::flash_model::FlashModel;
use crate::pull::Pulls;
use crate::queue::{Aborted, Added, LABELS_MAX, Queue};
use crate::records::{self, Kept, LabelRecord};
use crate::reports::Reports;
use crate::runner::{Control, Runner};
use crate::status::Counters;
use crate::store::Store;
use crate::task::{self, Work};
use parking_lot::{Condvar, Mutex};
use prost::Message as _;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_core::id::{ElementId, LabelId, ObjectId};
use tidemill_core::label::{Failure, FailureKind, Label, Operation, Outcome};
use tidemill_core::time::{Span, Time};
use tidemill_wire::v1::{self, from_element::Message};

/// Labels answered from memory that are known as such, for labels that come after them.
const REUSED_MAX: usize = 10_000;

/// What the executor works with.
#[derive(Debug)]
pub struct Parts {
    /// Whose labels these are.
    pub element: ElementId,
    /// The element's folder.
    pub folder: PathBuf,
    /// Objects.
    pub store: Arc<dyn Store>,
    /// Rows.
    pub db: Db,
    /// Objects of other elements.
    pub pulls: Arc<Pulls>,
    /// Kernels.
    pub runner: Runner,
    /// Counters.
    pub counters: Arc<Counters>,
    /// What the writes do to the flash below.
    pub flash: Arc<FlashModel>,
    /// The way to the server.
    pub reports: Arc<Reports>,
}

/// Runs labels. Dropping it without [`Executor::stop`] leaves its threads running.
#[derive(Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    workers: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    parts: Parts,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    live: HashMap<LabelId, Live>,
    /// Labels that were answered from memory, the last ones.
    reused: BTreeSet<LabelId>,
    /// Labels that had ended and had something in `run/` when it was last looked at.
    left: BTreeSet<LabelId>,
    seq: u64,
    stopping: bool,
}

/// A label from its acceptance until its outcome is kept.
#[derive(Clone, Debug)]
pub struct Live {
    /// The label.
    pub label: Arc<Label>,
    /// The capabilities of its inputs, in their order.
    pub capabilities: Arc<[Vec<u8>]>,
    /// The result of an earlier task like it.
    pub remembered: Option<Arc<v1::Remembered>>,
    /// `queued`, `fetching` or `running`.
    pub state: &'static str,
    /// When it was begun; zero before.
    pub start: Time,
    /// To give it up while it runs.
    pub control: Arc<Control>,
}

impl Executor {
    /// Takes up what was queued when the element stopped, and starts `cores` threads.
    ///
    /// # Errors
    /// If the database or the folder can't be read, or a thread can't be started.
    pub fn start(parts: Parts, cores: u32) -> Result<Self, Error> {
        clear(&parts.folder.join("run"))?;
        let shared = Arc::new(Shared {
            parts,
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        shared.recover()?;
        let mut workers = Vec::new();
        for core in 0..cores {
            let shared = Arc::clone(&shared);
            let worker = std::thread::Builder::new()
                .name(format!("kernel-{core}"))
                .spawn(move || shared.work())
                .map_err(Error::Thread)?;
            workers.push(worker);
        }
        Ok(Self {
            shared,
            workers: Mutex::new(workers),
        })
    }

    /// Takes labels in: those that are new are queued once they are in the database, those that have ended
    /// are reported again.
    pub fn accept(&self, labels: Vec<v1::Label>) {
        let shared = Arc::clone(&self.shared);
        let mut incoming: Vec<Incoming> = {
            let mut state = shared.state.lock();
            labels
                .into_iter()
                .map(|label| {
                    state.seq += 1;
                    Incoming::new(label, state.seq)
                })
                .collect()
        };
        let records: Vec<LabelRecord> = incoming.iter_mut().map(Incoming::record).collect();
        let change = move |connection: &rusqlite::Connection| {
            records
                .iter()
                .map(|record| records::accept_label(connection, record))
                .collect::<Result<Vec<Kept>, _>>()
        };
        self.shared
            .parts
            .db
            .submit(false, change, move |kept| match kept {
                Ok(kept) => shared.on_accepted(incoming, kept),
                Err(error) => shared.on_refused(&incoming, &error),
            });
    }

    /// Gives up a label: it is taken out of the queue, or its kernel is killed.
    pub fn abort(&self, label: LabelId) {
        let shared = Arc::clone(&self.shared);
        // Goes the way of the labels, so that it can't overtake the one it is about.
        self.shared
            .parts
            .db
            .submit(false, |_| Ok(()), move |_| shared.on_abort(label));
    }

    /// The server has kept these outcomes.
    pub fn acknowledge(&self, labels: Vec<LabelId>) {
        let shared = Arc::clone(&self.shared);
        let acked = labels.clone();
        let change = move |connection: &rusqlite::Connection| {
            records::ack_labels(connection, &acked)?;
            Ok(())
        };
        self.shared.parts.db.submit(false, change, move |result| {
            if let Err(error) = result {
                // They will be reported and acknowledged once more.
                tracing::warn!(%error, "acknowledged labels could not be forgotten");
                return;
            }
            let mut state = shared.state.lock();
            for label in labels {
                state.queue.acknowledge(label);
            }
        });
    }

    /// Labels that run and labels that wait.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let state = self.shared.state.lock();
        (state.queue.running(), state.queue.queued())
    }

    /// Labels whose outcome is not kept yet.
    #[must_use]
    pub fn live(&self) -> Vec<Live> {
        self.shared.state.lock().live.values().cloned().collect()
    }

    /// Labels whose outcome the server has not acknowledged, with the outcomes of those that ended.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn known(&self) -> Result<Vec<LabelRecord>, DbError> {
        self.shared.parts.db.read(records::open_labels)
    }

    /// Removes what labels left in `run/` that could not be removed when they ended. Blocks.
    pub fn sweep(&self) {
        let parts = self.parts();
        let mut left = BTreeSet::new();
        for entry in std::fs::read_dir(parts.folder.join("run"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            // `7`, or `7.0.copy` beside it; spare folders have other names.
            let label = name.to_str().and_then(|name| name.split('.').next());
            let Some(label) = label.and_then(|label| label.parse().ok()).map(LabelId) else {
                continue;
            };
            let state = self.shared.state.lock();
            let (live, seen) = (state.live.contains_key(&label), state.left.contains(&label));
            drop(state);
            // One that was just ended is being cleaned by its worker: it is looked at again the next time.
            if !live && seen {
                task::clean(parts, label);
                let _ = std::fs::remove_file(entry.path());
            } else if !live {
                left.insert(label);
            }
        }
        self.shared.state.lock().left = left;
    }

    /// Kills what runs and ends the threads. What had not ended is run again at the next start. Blocks.
    pub fn stop(&self) {
        {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            for live in state.live.values() {
                live.control.cancel();
            }
        }
        self.shared.wake.notify_all();
        for worker in self.workers.lock().drain(..) {
            if worker.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

/// A label on its way into the queue.
#[derive(Debug)]
struct Incoming {
    message: v1::Label,
    seq: u64,
    /// What it says, or the outcome of a label that says nothing that can be done.
    label: Result<Arc<Label>, Box<Outcome>>,
}

impl Incoming {
    fn new(message: v1::Label, seq: u64) -> Self {
        let label = Label::try_from(&message).map(Arc::new).map_err(|error| {
            Box::new(failed(
                task::now(),
                FailureKind::Kernel,
                format!("the label can't be understood: {error}"),
            ))
        });
        Self {
            message,
            seq,
            label,
        }
    }

    fn id(&self) -> LabelId {
        LabelId(self.message.id)
    }

    fn record(&mut self) -> LabelRecord {
        let outcome = self.label.as_ref().err();
        LabelRecord {
            id: self.id(),
            seq: self.seq,
            payload: self.message.encode_to_vec(),
            outcome: outcome.map(|outcome| v1::LabelOutcome::from(&**outcome).encode_to_vec()),
        }
    }

    fn live(&self, label: &Arc<Label>) -> Live {
        Live {
            label: Arc::clone(label),
            capabilities: capabilities(&self.message),
            remembered: remembered(&self.message),
            state: "queued",
            start: Time::default(),
            control: Arc::default(),
        }
    }
}

impl Shared {
    /// Puts the labels of the database back into the queue.
    fn recover(self: &Arc<Self>) -> Result<(), Error> {
        let db = &self.parts.db;
        let acked = db.read(records::acked_labels)?;
        let open = db.read(records::open_labels)?;
        let mut queued = Vec::new();
        let mut state = self.state.lock();
        let last = acked.iter().chain(&open).map(|record| record.seq).max();
        state.seq = last.unwrap_or(0);
        for record in acked {
            state
                .queue
                .add_ended(record.id, record.seq, succeeded(&record));
            state.queue.acknowledge(record.id);
        }
        for record in open {
            if record.outcome.is_some() {
                state
                    .queue
                    .add_ended(record.id, record.seq, succeeded(&record));
            } else {
                queued.push(record);
            }
        }
        drop(state);
        for record in queued {
            let message = v1::Label::decode(&*record.payload).unwrap_or(v1::Label {
                id: record.id.0,
                ..v1::Label::default()
            });
            let incoming = Incoming::new(message, record.seq);
            if let Ok(label) = &incoming.label {
                // It may be given up before it runs again.
                self.parts.remove_unkept(label);
            }
            self.enqueue(&incoming);
        }
        Ok(())
    }

    fn on_accepted(self: &Arc<Self>, incoming: Vec<Incoming>, kept: Vec<Kept>) {
        for (incoming, kept) in incoming.into_iter().zip(kept) {
            match kept {
                Kept::New => self.enqueue(&incoming),
                Kept::Queued => {}
                Kept::Ended(outcome) => match v1::LabelOutcome::decode(&*outcome) {
                    Ok(outcome) => self.parts.reports.finished(incoming.id(), outcome),
                    Err(error) => {
                        tracing::error!(%error, label = %incoming.id(), "a kept outcome is broken")
                    }
                },
            }
        }
    }

    /// The labels could not be kept, so they can't be promised to be run.
    fn on_refused(&self, incoming: &[Incoming], error: &DbError) {
        for incoming in incoming {
            let outcome = failed(task::now(), FailureKind::Device, error.to_string());
            self.parts
                .reports
                .finished(incoming.id(), (&outcome).into());
        }
    }

    fn enqueue(self: &Arc<Self>, incoming: &Incoming) {
        let id = incoming.id();
        let mut state = self.state.lock();
        let label = match &incoming.label {
            Ok(label) => label,
            Err(outcome) => {
                state.queue.add_ended(id, incoming.seq, false);
                drop(state);
                self.keep(id, Work::without_effect((**outcome).clone()));
                return;
            }
        };
        if state.live.len() >= LABELS_MAX {
            state.queue.add_ended(id, incoming.seq, false);
            drop(state);
            let message = format!("the queue of element {} is full", self.parts.element);
            let outcome = failed(task::now(), FailureKind::Device, message);
            self.keep(id, Work::without_effect(outcome));
            return;
        }
        match state.queue.add(id, incoming.seq, &label.after) {
            Added::Known => {}
            Added::Queued => {
                state.live.insert(id, incoming.live(label));
                drop(state);
                self.wake.notify_one();
            }
            Added::DependencyFailed(before) => {
                drop(state);
                self.keep(id, Work::without_effect(dependency_failed(before)));
            }
        }
    }

    fn on_abort(self: &Arc<Self>, label: LabelId) {
        let aborted = {
            let mut state = self.state.lock();
            let aborted = state.queue.abort(label);
            if aborted == Aborted::Running
                && let Some(live) = state.live.get(&label)
            {
                live.control.cancel();
            }
            aborted
        };
        if let Aborted::Removed(dependants) = aborted {
            let message = "the label was given up before it began".to_owned();
            let outcome = failed(task::now(), FailureKind::Cancelled, message);
            self.keep(label, Work::without_effect(outcome));
            self.give_up(label, dependants);
        }
    }

    /// A worker thread.
    fn work(self: &Arc<Self>) {
        while let Some((id, live)) = self.next() {
            let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                task::run(&self.parts, &live, &|phase| self.on_phase(id, phase))
            }))
            .unwrap_or_else(|_| {
                let message = "the element itself failed on this label; see its log".to_owned();
                Work::without_effect(failed(live.start, FailureKind::Device, message))
            });
            let succeeded = work.outcome.result.is_ok();
            let lost = {
                let mut state = self.state.lock();
                if state.stopping && !succeeded {
                    // Killed because the element stops: it is run again at the next start.
                    return;
                }
                if work.outcome.reused.is_some() {
                    state.reused.insert(id);
                    if state.reused.len() > REUSED_MAX {
                        state.reused.pop_first();
                    }
                }
                state.queue.end(id, succeeded)
            };
            self.keep(id, work);
            if succeeded {
                self.wake.notify_all();
            }
            self.give_up(id, lost);
            task::clean(&self.parts, id);
        }
    }

    fn next(&self) -> Option<(LabelId, Live)> {
        let mut guard = self.state.lock();
        loop {
            let state = &mut *guard;
            if state.stopping {
                return None;
            }
            if let Some(id) = state.queue.take()
                && let Some(live) = state.live.get_mut(&id)
            {
                live.start = task::now();
                live.state = "fetching";
                let mut live = live.clone();
                let holds = |memory: &Arc<v1::Remembered>| {
                    let mut needed = memory.if_reused.iter();
                    needed.all(|label| state.reused.contains(&LabelId(*label)))
                };
                live.remembered = live.remembered.filter(holds);
                return Some((id, live));
            }
            self.wake.wait(&mut guard);
        }
    }

    fn on_phase(&self, id: LabelId, phase: &'static str) {
        if let Some(live) = self.state.lock().live.get_mut(&id) {
            live.state = phase;
        }
        self.parts.reports.started(id, task::now(), phase);
    }

    /// Ends labels that came after one that failed.
    fn give_up(self: &Arc<Self>, failed: LabelId, dependants: Vec<LabelId>) {
        for dependant in dependants {
            self.keep(dependant, Work::without_effect(dependency_failed(failed)));
        }
    }

    /// Keeps how a label ended with all its effects in one change, then reports it.
    fn keep(self: &Arc<Self>, id: LabelId, work: Work) {
        let shared = Arc::clone(self);
        let outcome = v1::LabelOutcome::from(&work.outcome);
        let message = outcome.encode_to_vec();
        let change = move |connection: &rusqlite::Connection| {
            work.keep(connection)?;
            records::end_label(connection, id, &message)?;
            Ok(work)
        };
        self.parts.db.submit(false, change, move |result| {
            if matches!(result, Err(DbError::Stopped)) {
                return;
            }
            let ended = shared.state.lock().live.remove(&id);
            let outcome = match result {
                Ok(work) => {
                    work.tell(&shared.parts.flash);
                    outcome
                }
                Err(error) => {
                    if let Some(live) = ended {
                        shared.parts.remove_unkept(&live.label);
                    }
                    let message = format!("how the label ended could not be kept: {error}");
                    (&failed(task::now(), FailureKind::Device, message)).into()
                }
            };
            shared.parts.reports.finished(id, outcome);
        });
    }
}

/// The outcome of a label that failed before it had any effect.
pub(crate) fn failed(start: Time, kind: FailureKind, message: String) -> Outcome {
    Outcome {
        result: Err(Failure { kind, message }),
        start,
        kernel_start: start,
        end: task::now(),
        moved_bytes: 0,
        read_bytes: 0,
        written_bytes: 0,
        cpu: Span(0),
        memory_bytes: 0,
        reused: None,
        kernel_hash: String::new(),
        contents: Vec::new(),
        stdout: String::new(),
        stderr: String::new(),
    }
}

fn succeeded(record: &LabelRecord) -> bool {
    let outcome = record.outcome.as_deref().map(v1::LabelOutcome::decode);
    matches!(outcome, Some(Ok(outcome)) if outcome.failure.is_none())
}

fn dependency_failed(before: LabelId) -> Outcome {
    let message = format!("label {before}, which had to end well before, failed");
    failed(task::now(), FailureKind::Dependency, message)
}

fn remembered(message: &v1::Label) -> Option<Arc<v1::Remembered>> {
    match &message.operation {
        Some(v1::label::Operation::Analyse(analyse)) => analyse.remembered.clone().map(Arc::new),
        _ => None,
    }
}

fn capabilities(message: &v1::Label) -> Arc<[Vec<u8>]> {
    use v1::label::Operation;
    let inputs = match &message.operation {
        Some(Operation::Analyse(analyse)) => analyse.inputs.as_slice(),
        Some(Operation::Copy(copy)) => copy.from.as_slice(),
        _ => &[],
    };
    inputs
        .iter()
        .map(|input| input.capability.clone())
        .collect()
}

/// Empties a folder that tasks may pass through but not read.
fn clear(folder: &std::path::Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |source| Error::Folder {
        path: folder.to_owned(),
        source,
    };
    crate::folder::empty(folder).map_err(failed)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).map_err(failed)
}

impl Parts {
    /// Removes objects and what is kept of them, and tells the server which are gone for good. Blocks.
    pub fn remove(&self, objects: &[ObjectId]) {
        let gone = |object: &ObjectId| {
            self.counters.on_removed(*object);
            let removed = self.store.remove(*object);
            // The server asks again for what it is not told of.
            removed
                .inspect_err(
                    |error| tracing::warn!(%error, %object, "an object can't be removed yet"),
                )
                .is_ok()
        };
        let objects = objects.iter().copied().filter(|object| object.is_data());
        let objects: Vec<ObjectId> = objects.filter(gone).collect();
        let change = move |connection: &rusqlite::Connection| {
            for &object in &objects {
                records::remove_object(connection, object)?;
            }
            Ok(objects)
        };
        let (flash, reports) = (Arc::clone(&self.flash), Arc::clone(&self.reports));
        self.db.submit(false, change, move |result| match result {
            Ok(objects) => {
                let removed = objects.iter().map(|object| object.0).collect();
                reports.send(Message::Removed(v1::Removed { objects: removed }));
                objects
                    .into_iter()
                    .for_each(|object| flash.on_removed(object));
            }
            Err(error) => tracing::error!(%error, "removed objects could not be forgotten"),
        });
    }

    /// Removes the files of a label's outputs that were taken into the store but never kept: it was cut off, or it is
    /// told as failed.
    fn remove_unkept(&self, label: &Label) {
        let Operation::Analyse(analysis) = &label.operation else {
            return;
        };
        for output in &analysis.outputs {
            let kept = self
                .db
                .read(|connection| records::has_object(connection, output.object));
            match kept {
                Ok(true) => {}
                Ok(false) => {
                    if let Err(error) = self.store.remove(output.object) {
                        tracing::warn!(%error, object = %output.object, "an output that was not kept can't be removed");
                    }
                }
                Err(error) => tracing::warn!(%error, "outputs that were not kept stay"),
            }
        }
    }
}

impl Executor {
    /// What it works with.
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.shared.parts
    }
}
