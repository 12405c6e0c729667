//! Labels of the node, from their arrival until the server has stored their outcomes. The module uses the node's database and sends reports
//! to the server (next: `server/src/cluster.rs`).
//!
//! The module writes a label to the database before it queues the label, and an outcome before it reports the outcome. So neither a killed
//! node nor a lost connection loses or repeats an effect.
//!
//! The module uses no thread, clock or kernel. [`crate::executor`] takes labels from this module, runs them on threads and returns their
//! results; a simulation does the same in virtual time.

use crate::db::{Db, DbError};
use crate::flash_model::FlashModel;
use crate::records::{self, FormerState, LabelRecord};
use crate::reports::Reports;
use crate::runner::RunHandle;
use crate::scrub;
use crate::streaming_inputs::{ProducerOutcome, StreamingInput, analysis, streamed_by};
use crate::task::LabelEffects;
use parking_lot::{Condvar, Mutex, MutexGuard};
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::{Failure, FailureKind, Label, Lane, Outcome};
use tidemill_model::queue::{Aborted, Added, LABELS_MAX, NodeQueue};
use tidemill_model::resources::{Offers, ScarceResource};
use tidemill_model::time::Time;
use tidemill_wire::v1;

/// Maximum number of labels answered from a cached result that the node remembers, for labels that depend on them.
const REUSED_MAX: usize = 10_000;

/// Labels of a node, from their arrival until the server has stored their outcomes.
#[derive(Debug)]
pub struct NodeLabels {
    node: NodeId,
    db: Db,
    flash: Arc<FlashModel>,
    reports: Arc<Reports>,
    clock: fn() -> Time,
    state: Mutex<LabelsState>,
    /// Condition variables of the threads that execute labels, one for each lane.
    wake: [Condvar; Lane::ALL.len()],
    /// Condition variable that is signalled when the node stops.
    stopped: Condvar,
}

#[derive(Debug)]
struct LabelsState {
    queue: NodeQueue,
    live: BTreeMap<LabelId, Live>,
    /// Labels that compare objects and whose outcomes are not stored yet.
    verifies: BTreeSet<LabelId>,
    /// Last labels that were answered from a cached result.
    reused: BTreeSet<LabelId>,
    seq: u64,
    /// Ended labels whose outcomes could not be stored in the database yet.
    unkept: Vec<(LabelId, Arc<LabelEffects>)>,
    /// Labels whose outcomes the server has stored. The database does not have the acknowledgement yet.
    acknowledged: BTreeSet<LabelId>,
    /// The acknowledged labels whose acknowledgement could not be stored.
    unacknowledged: Vec<LabelId>,
    stopping: bool,
}

impl LabelsState {
    /// Informs the labels that read streamed outputs of label `id` that the label has ended. If it failed, their runs are cancelled.
    fn end_streaming(&mut self, id: LabelId, well: bool) {
        if let Some(live) = self.live.get(&id) {
            live.fate.seal(well);
        }
        for streamed in self.queue.streamed_in_vain(id) {
            if let Some(live) = self.live.get_mut(&streamed) {
                live.in_vain = Some(id);
                live.control.cancel();
            }
        }
    }

    fn new(offers: Offers) -> Self {
        Self {
            queue: NodeQueue::new(offers),
            live: BTreeMap::new(),
            verifies: BTreeSet::new(),
            reused: BTreeSet::new(),
            seq: 0,
            unkept: Vec::new(),
            acknowledged: BTreeSet::new(),
            unacknowledged: Vec::new(),
            stopping: false,
        }
    }
}

/// Access of a label to the bytes of one of its inputs.
#[derive(Clone, Debug, Default)]
pub struct InputAccess {
    /// Capability for the input on its node.
    pub capability: Vec<u8>,
    /// Layout of the input, if the input is stored in several objects.
    pub layout: Option<v1::Layout>,
    /// Whether the input is on this node and may not be sealed yet.
    pub streaming: bool,
    /// Percentage of the processors that the label leaves to writers while the input is being written.
    pub leaves: u8,
}

/// State of a label from its acceptance until its outcome is stored.
#[derive(Clone, Debug)]
pub struct Live {
    /// Accepted label.
    pub label: Arc<Label>,
    /// Access to the label's inputs, in the order of the inputs.
    pub ways: Arc<[InputAccess]>,
    /// Cached result of an earlier, equal task.
    pub cached_result: Option<Arc<v1::CachedResult>>,
    /// Phase of the label: `queued`, `fetching` or `running`.
    pub state: &'static str,
    /// Start time of the label; zero before its start.
    pub start: Time,
    /// Handle to cancel the label while it runs.
    pub control: Arc<RunHandle>,
    /// Outcome of this label, for the labels to which it streams outputs.
    pub(crate) fate: Arc<ProducerOutcome>,
    /// Inputs that other labels were still writing when this label started.
    pub(crate) streaming_inputs: Vec<StreamingInput>,
    /// Failed label that was streaming an input to this label.
    pub(crate) in_vain: Option<LabelId>,
}

impl Live {
    /// Decodes a label of another node; `None` if the message is invalid.
    pub(crate) fn of(message: &v1::Label) -> Option<Self> {
        Some(Self {
            label: Arc::new(Label::try_from(message).ok()?),
            ways: ways(message),
            cached_result: None,
            state: "running",
            start: Time::default(),
            control: Arc::default(),
            fate: Arc::default(),
            streaming_inputs: Vec::new(),
            in_vain: None,
        })
    }

    /// Encodes the label as the message in which the node received it.
    pub(crate) fn message(&self) -> v1::Label {
        let mut message = v1::Label::from(&*self.label);
        if let Some(v1::label::Operation::Analyse(analyse)) = &mut message.operation {
            for (input, way) in analyse.inputs.iter_mut().zip(self.ways.iter()) {
                input.capability.clone_from(&way.capability);
                input.layout.clone_from(&way.layout);
                input.streaming = way.streaming;
                input.leaves = way.leaves.into();
            }
        }
        message
    }

    /// Returns the earlier labels that may stream inputs to this label, which may start as soon as they run. A label with a cached result
    /// needs complete inputs, so the function returns no labels for it.
    fn producers(&self, live: &BTreeMap<LabelId, Self>) -> Vec<LabelId> {
        let Some(own) = analysis(&self.label).filter(|_| self.cached_result.is_none()) else {
            return Vec::new();
        };
        let streams = |maker: &LabelId| {
            let maker = live.get(maker).and_then(|live| analysis(&live.label));
            maker.is_some_and(|maker| streamed_by(own, maker).is_some())
        };
        self.label.after.iter().copied().filter(streams).collect()
    }

    /// Returns the inputs of this label that other labels are writing now.
    fn streaming_inputs(&self, live: &BTreeMap<LabelId, Self>) -> Vec<StreamingInput> {
        let Some(own) = analysis(&self.label).filter(|own| !own.streaming.is_empty()) else {
            return Vec::new();
        };
        let makers = self.label.after.iter().filter_map(|maker| live.get(maker));
        let makers = makers.filter(|maker| maker.state != "queued" && !maker.fate.has_succeeded());
        let inputs = makers.filter_map(|maker| {
            let streamed = streamed_by(own, analysis(&maker.label)?)?;
            Some(streamed.into_iter().map(|(index, name)| StreamingInput {
                index,
                maker: maker.label.id,
                name,
                fate: Arc::clone(&maker.fate),
            }))
        });
        inputs.flatten().collect()
    }

    /// Returns the capability for the input number `index` on its node.
    pub(crate) fn capability(&self, index: usize) -> &[u8] {
        self.ways.get(index).map_or(&[], |way| &way.capability)
    }
}

impl NodeLabels {
    /// Opens the database and queues the labels that were queued when the node stopped. `offers` are the node's current resources.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn open(
        (node, offers): (NodeId, Offers),
        db: Db,
        flash: Arc<FlashModel>,
        reports: Arc<Reports>,
        clock: fn() -> Time,
    ) -> Result<Arc<Self>, DbError> {
        let labels = Arc::new(Self {
            node,
            db,
            flash,
            reports,
            clock,
            state: Mutex::new(LabelsState::new(offers)),
            wake: Default::default(),
            stopped: Condvar::new(),
        });
        labels.recover()?;
        Ok(labels)
    }

    /// Accepts labels: new labels are queued after they were written to the database; ended labels are reported again.
    pub fn accept(self: &Arc<Self>, messages: Vec<v1::Label>) {
        let labels = Arc::clone(self);
        let incoming: Vec<IncomingLabel> = {
            let mut state = self.state.lock();
            messages
                .into_iter()
                .map(|label| {
                    state.seq += 1;
                    IncomingLabel::new(label, state.seq, self.now())
                })
                .collect()
        };
        let records: Vec<LabelRecord> = incoming.iter().map(IncomingLabel::record).collect();
        let change = move |connection: &rusqlite::Connection| {
            records
                .iter()
                .map(|record| records::accept_label(connection, record))
                .collect::<Result<Vec<FormerState>, _>>()
        };
        self.db.submit(false, change, move |kept| match kept {
            Ok(kept) => labels.on_accepted(incoming, kept),
            Err(error) => labels.on_refused(&incoming, &error),
        });
    }

    /// Cancels a label: it is removed from the queue, or its kernel is killed.
    pub fn abort(self: &Arc<Self>, label: LabelId) {
        let labels = Arc::clone(self);
        // The request takes the same path as labels, so that it can't overtake its label.
        self.db
            .submit(false, |_| Ok(()), move |_| labels.on_abort(label));
    }

    /// Removes a label from the queue and returns it to the server, if the label has not started. A started label continues.
    pub fn reschedule(self: &Arc<Self>, label: LabelId) {
        let labels = Arc::clone(self);
        // The request takes the same path as labels, as a cancellation does.
        self.db
            .submit(false, |_| Ok(()), move |_| labels.on_reschedule(label));
    }

    /// Records that the server has stored the outcomes of these labels. The record needs no commit of its own: a restarted node reports an
    /// outcome again whose acknowledgement was lost.
    pub fn acknowledge(self: &Arc<Self>, ids: Vec<LabelId>) {
        self.state.lock().acknowledged.extend(&ids);
        let labels = Arc::clone(self);
        let acked = ids.clone();
        let change = move |connection: &rusqlite::Connection| {
            records::ack_labels(connection, &acked)?;
            Ok(())
        };
        self.db.ride(false, change, move |result| {
            if let Err(error) = result {
                tracing::warn!(%error, "acknowledgements of labels can't be stored yet");
                labels.state.lock().unacknowledged.extend(ids);
                return;
            }
            let mut state = labels.state.lock();
            for id in ids {
                state.acknowledged.remove(&id);
                state.queue.acknowledge(id);
            }
        });
    }

    /// Returns the number of running labels and the number of waiting labels.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.queue.running(), state.queue.queued())
    }

    /// Returns the labels whose outcome is not stored yet.
    #[must_use]
    pub fn live(&self) -> Vec<Live> {
        self.state.lock().live.values().cloned().collect()
    }

    /// Returns whether the label's outcome is not stored yet.
    #[must_use]
    pub fn is_live(&self, label: LabelId) -> bool {
        self.state.lock().live.contains_key(&label)
    }

    /// Returns the labels whose outcome the server has not acknowledged, with the outcomes of ended labels.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn known(&self) -> Result<Vec<LabelRecord>, DbError> {
        // A label that leaves the list of acknowledged labels has left the database's list before.
        let acknowledged = self.state.lock().acknowledged.clone();
        let mut known = self.db.read(records::open_labels)?;
        known.retain(|record| !acknowledged.contains(&record.id));
        Ok(known)
    }

    /// Returns the highest ids that the node has stored.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn used_ids(&self) -> Result<tidemill_wire::v1::UsedIds, DbError> {
        self.db.read(records::used_ids)
    }

    /// Returns whether the node has any work except comparing objects.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let state = self.state.lock();
        state.queue.running() + state.queue.queued() > state.verifies.len()
    }

    /// Waits for `time`, or until the node stops. Returns whether the node stops.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stopping {
            self.stopped.wait_for(&mut state, time);
        }
        state.stopping
    }

    /// Reports the node's running labels, unacknowledged outcomes and corrupt objects to a server that the node has just reached.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn report(&self) -> Result<(), DbError> {
        for live in self.live() {
            if live.state != "queued" {
                self.reports.started(live.label.id, live.start, live.state);
            }
        }
        for record in self.known()? {
            if let Some(outcome) = record.outcome {
                self.repeat(record.id, &outcome);
            }
        }
        for corrupt in scrub::all_corrupt(&self.db)? {
            self.reports.send(corrupt);
        }
        Ok(())
    }

    /// Returns the next label of a lane, waiting until a label is ready; `None` when the node stops.
    #[must_use]
    pub fn next(&self, lane: Lane) -> Option<(LabelId, Live)> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            if let Some(next) = self.take(&mut state, lane) {
                return Some(next);
            }
            self.wake[lane as usize].wait(&mut state);
        }
    }

    /// Returns the next label of a lane, if a label is ready now.
    #[must_use]
    pub fn try_next(&self, lane: Lane) -> Option<(LabelId, Live)> {
        self.take(&mut self.state.lock(), lane)
    }

    /// Wakes the threads of the lanes that have a ready label.
    fn wake(&self, state: &LabelsState) {
        for lane in Lane::ALL {
            if state.queue.is_ready(lane) {
                self.wake[lane as usize].notify_all();
            }
        }
    }

    fn take(&self, state: &mut MutexGuard<'_, LabelsState>, lane: Lane) -> Option<(LabelId, Live)> {
        let state = &mut **state;
        let id = state.queue.take(lane)?;
        if state.queue.streams(id) {
            self.wake(state);
        }
        let streaming_inputs = state.live.get(&id)?.streaming_inputs(&state.live);
        let live = state.live.get_mut(&id)?;
        live.streaming_inputs = streaming_inputs;
        live.start = self.now();
        live.state = "fetching";
        let mut live = live.clone();
        let holds = |memory: &Arc<v1::CachedResult>| {
            let mut needed = memory.if_reused.iter();
            needed.all(|label| state.reused.contains(&LabelId(*label)))
        };
        live.cached_result = live.cached_result.filter(holds);
        Some((id, live))
    }

    /// Accepts the result of a label. Returns whether the result counts: a failure because the node stops does not count.
    pub fn end(self: &Arc<Self>, id: LabelId, mut work: LabelEffects) -> bool {
        let succeeded = work.outcome.result.is_ok();
        let lost = {
            let mut state = self.state.lock();
            if state.stopping && !succeeded {
                // The label runs again at the next start.
                return false;
            }
            if work.outcome.reused.is_some() {
                state.reused.insert(id);
                if state.reused.len() > REUSED_MAX {
                    state.reused.pop_first();
                }
            }
            let vain = state.live.get(&id).and_then(|live| live.in_vain);
            if let (Some(before), Err(failure)) = (vain, &mut work.outcome.result) {
                // The failure was caused by the other label.
                *failure = dependency(before);
            }
            let lost = state.queue.end(id, succeeded);
            state.end_streaming(id, succeeded);
            self.wake(&state);
            lost
        };
        self.keep(id, work);
        self.abandon(id, lost);
        true
    }

    /// Stops the queue: no further labels start, and the kernels of running labels are killed.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        for live in state.live.values() {
            live.control.cancel();
        }
        drop(state);
        for wake in self.wake.iter().chain([&self.stopped]) {
            wake.notify_all();
        }
    }

    fn now(&self) -> Time {
        (self.clock)()
    }

    /// Queues the labels that the database has without an outcome.
    fn recover(self: &Arc<Self>) -> Result<(), DbError> {
        let db = &self.db;
        let acked = db.read(records::acked_labels)?;
        let open = db.read(records::open_labels)?;
        let mut queued = Vec::new();
        let mut state = self.state.lock();
        let last = acked.iter().chain(&open).map(|record| record.seq).max();
        state.seq = last.unwrap_or(0);
        for record in acked {
            state.queue.add_ended(record.id, succeeded(&record));
            state.queue.acknowledge(record.id);
        }
        for record in open {
            if record.outcome.is_some() {
                state.queue.add_ended(record.id, succeeded(&record));
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
            self.enqueue(&IncomingLabel::new(message, record.seq, self.now()));
        }
        Ok(())
    }

    fn on_accepted(self: &Arc<Self>, incoming: Vec<IncomingLabel>, kept: Vec<FormerState>) {
        for (incoming, kept) in incoming.into_iter().zip(kept) {
            match kept {
                FormerState::New => self.enqueue(&incoming),
                FormerState::Queued => {}
                FormerState::Ended(outcome) => self.repeat(incoming.id(), &outcome),
            }
        }
    }

    /// Reports the stored outcome of a label again.
    fn repeat(&self, id: LabelId, outcome: &[u8]) {
        match v1::LabelOutcome::decode(outcome) {
            Ok(outcome) => self.reports.finished(id, outcome),
            Err(error) => tracing::error!(%error, label = %id, "a stored outcome is invalid"),
        }
    }

    /// Refuses new labels that could not be stored, because the node can't guarantee to run them.
    fn on_refused(&self, incoming: &[IncomingLabel], error: &DbError) {
        for incoming in incoming {
            if self.state.lock().live.contains_key(&incoming.id()) {
                continue;
            }
            let outcome = failed(self.now(), FailureKind::Device, error.to_string());
            self.reports.finished(incoming.id(), (&outcome).into());
        }
    }

    fn enqueue(self: &Arc<Self>, incoming: &IncomingLabel) {
        let id = incoming.id();
        let mut state = self.state.lock();
        let label = match &incoming.label {
            Ok(label) => label,
            Err(outcome) => {
                state.queue.add_ended(id, false);
                drop(state);
                self.keep(id, LabelEffects::without_effect((**outcome).clone()));
                return;
            }
        };
        if state.live.len() >= LABELS_MAX {
            state.queue.add_ended(id, false);
            drop(state);
            let message = format!("the queue of node {} is full", self.node);
            let outcome = failed(self.now(), FailureKind::Device, message);
            self.keep(id, LabelEffects::without_effect(outcome));
            return;
        }
        let (lane, needs) = (label.operation.lane(), label.operation.needs());
        if let Some(lack) = needs.and_then(|needs| state.queue.offers().lacks(needs)) {
            // The node offered more when the label was sent.
            state.queue.add_ended(id, false);
            drop(state);
            let outcome = failed(self.now(), FailureKind::Unfit, self.lacks(&lack));
            self.keep(id, LabelEffects::without_effect(outcome));
            return;
        }
        let live = incoming.live(label);
        let producers = live.producers(&state.live);
        let after = (label.after.as_slice(), producers.as_slice());
        let place = ((lane, incoming.seq), label.owner.uid);
        match state.queue.add_of(id, place, needs, after) {
            Added::Known => {}
            Added::Queued => {
                state.live.insert(id, live);
                if lane == Lane::Verify {
                    state.verifies.insert(id);
                }
                drop(state);
                self.wake[lane as usize].notify_one();
            }
            Added::DependencyFailed(before) => {
                drop(state);
                self.keep(
                    id,
                    LabelEffects::without_effect(dependency_failed(before, self.now())),
                );
            }
        }
    }

    fn lacks(&self, lack: &ScarceResource) -> String {
        let (needs, offered) = (lack.shown(lack.needs), lack.shown(lack.offered));
        let node = self.node;
        format!(
            "node {node} offers {} = {offered}, and the task needs {needs}",
            lack.what
        )
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
        let abandoned = |message: &str| failed(self.now(), FailureKind::Cancelled, message.into());
        match aborted {
            Aborted::Running | Aborted::Nothing => {}
            Aborted::Removed(dependants) => {
                let outcome = abandoned("the label was aborted before it began");
                self.keep(label, LabelEffects::without_effect(outcome));
                self.abandon(label, dependants);
            }
            // The label was lost on its way to this node, and the server waits for its end.
            Aborted::Unknown => {
                let outcome = abandoned("the label was aborted before it arrived");
                self.reports.finished(label, (&outcome).into());
            }
        }
    }

    fn on_reschedule(self: &Arc<Self>, label: LabelId) {
        let Some(dependants) = self.state.lock().queue.reschedule(label) else {
            return;
        };
        let message = format!("it was rescheduled from node {}", self.node);
        let outcome = failed(self.now(), FailureKind::Rescheduled, message);
        self.keep(label, LabelEffects::without_effect(outcome));
        self.abandon(label, dependants);
    }

    /// Records that a started label begins to fetch inputs or to run.
    pub fn on_phase(&self, id: LabelId, phase: &'static str) {
        if let Some(live) = self.state.lock().live.get_mut(&id) {
            live.state = phase;
        }
        self.reports.started(id, self.now(), phase);
    }

    /// Ends the labels that depend on a failed label.
    fn abandon(self: &Arc<Self>, failed: LabelId, dependants: Vec<LabelId>) {
        for dependant in dependants {
            self.keep(
                dependant,
                LabelEffects::without_effect(dependency_failed(failed, self.now())),
            );
        }
    }

    /// Stores the outcome of a label with all its effects in one transaction, then reports the outcome.
    fn keep(self: &Arc<Self>, id: LabelId, work: LabelEffects) {
        self.try_to_keep(id, Arc::new(work));
    }

    fn try_to_keep(self: &Arc<Self>, id: LabelId, work: Arc<LabelEffects>) {
        let labels = Arc::clone(self);
        let outcome = v1::LabelOutcome::from(&work.outcome);
        let message = outcome.encode_to_vec();
        let effects = Arc::clone(&work);
        let change = move |connection: &rusqlite::Connection| {
            effects.keep(connection)?;
            records::end_label(connection, id, &message)
        };
        // The source of a copy may be removed on another node as soon as the outcome is reported.
        let durable = work.is_copy();
        self.db.submit(durable, change, move |kept| match kept {
            Ok(()) => {
                {
                    let mut state = labels.state.lock();
                    state.live.remove(&id);
                    state.verifies.remove(&id);
                }
                work.tell(&labels.flash);
                labels.reports.finished(id, outcome);
            }
            Err(DbError::Stopped) => {}
            Err(error) => {
                tracing::warn!(%error, label = %id, "the outcome of a label can't be stored yet");
                labels.state.lock().unkept.push((id, work));
            }
        });
    }

    /// Retries to store outcomes and acknowledgements that could not be stored. The node reports an outcome only after storing it:
    /// otherwise a restart would lose the outcome.
    pub fn keep_again(self: &Arc<Self>) {
        let (unkept, unacknowledged) = {
            let mut state = self.state.lock();
            let unkept = std::mem::take(&mut state.unkept);
            (unkept, std::mem::take(&mut state.unacknowledged))
        };
        for (id, work) in unkept {
            self.try_to_keep(id, work);
        }
        if !unacknowledged.is_empty() {
            self.acknowledge(unacknowledged);
        }
    }
}

/// Label that is being accepted into the queue.
#[derive(Debug)]
struct IncomingLabel {
    message: v1::Label,
    seq: u64,
    /// Decoded label, or the outcome of an invalid label.
    label: Result<Arc<Label>, Box<Outcome>>,
}

impl IncomingLabel {
    fn new(message: v1::Label, seq: u64, now: Time) -> Self {
        let label = Label::try_from(&message).map(Arc::new).map_err(|error| {
            Box::new(failed(
                now,
                FailureKind::Kernel,
                format!("the label is invalid: {error}"),
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

    fn record(&self) -> LabelRecord {
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
            ways: ways(&self.message),
            cached_result: cached_result(&self.message),
            state: "queued",
            start: Time::default(),
            control: Arc::default(),
            fate: Arc::default(),
            streaming_inputs: Vec::new(),
            in_vain: None,
        }
    }
}

/// Returns the outcome of a label that failed without any effect.
#[must_use]
pub fn failed(at: Time, kind: FailureKind, message: String) -> Outcome {
    Outcome::at(at, Err(Failure { kind, message }))
}

fn succeeded(record: &LabelRecord) -> bool {
    let outcome = record.outcome.as_deref().map(v1::LabelOutcome::decode);
    matches!(outcome, Some(Ok(outcome)) if outcome.failure.is_none())
}

fn dependency_failed(before: LabelId, now: Time) -> Outcome {
    Outcome::at(now, Err(dependency(before)))
}

fn dependency(before: LabelId) -> Failure {
    Failure {
        kind: FailureKind::Dependency,
        message: format!("label {before}, which had to succeed before, failed"),
    }
}

fn cached_result(message: &v1::Label) -> Option<Arc<v1::CachedResult>> {
    match &message.operation {
        Some(v1::label::Operation::Analyse(analyse)) => analyse.cached_result.clone().map(Arc::new),
        _ => None,
    }
}

fn ways(message: &v1::Label) -> Arc<[InputAccess]> {
    use v1::label::Operation;
    let inputs = match &message.operation {
        Some(Operation::Analyse(analyse)) => analyse.inputs.as_slice(),
        Some(Operation::Copy(copy)) => copy.from.as_slice(),
        _ => &[],
    };
    let way = |input: &v1::Input| InputAccess {
        capability: input.capability.clone(),
        layout: input.layout.clone(),
        streaming: input.streaming,
        leaves: u8::try_from(input.leaves).unwrap_or(99).min(99),
    };
    inputs.iter().map(way).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::DbWriter;
    use rusqlite::Connection;
    use std::path::Path;
    use tidemill_model::id::ObjectId;
    use tidemill_model::label::{Operation, Owner};

    fn label(id: u64) -> v1::Label {
        v1::Label::from(&Label {
            id: LabelId(id),
            owner: Owner::default(),
            after: Vec::new(),
            operation: Operation::Remove {
                objects: vec![ObjectId(3)],
            },
        })
    }

    fn in_memory() -> Arc<Mutex<Connection>> {
        Arc::new(Mutex::new(Connection::open_in_memory().unwrap()))
    }

    /// Returns the labels of a node with one core, the writer of the node's database, and the messages to the server after the greeting.
    fn opened(
        disk: &Arc<Mutex<Connection>>,
    ) -> (
        Arc<NodeLabels>,
        DbWriter,
        tokio::sync::mpsc::UnboundedReceiver<v1::FromNode>,
    ) {
        let (db, writer) = Db::without_thread(Arc::clone(disk)).unwrap();
        let reports = Arc::new(Reports::default());
        let flash = Arc::new(FlashModel::new(Path::new("/none"), 0));
        let labels = NodeLabels::open(
            (NodeId(0), Offers::of_cores(1)),
            db,
            flash,
            Arc::clone(&reports),
            Time::default,
        );
        let mut reported = reports.connect(v1::Hello::default());
        reported.try_recv().unwrap();
        (labels.unwrap(), writer, reported)
    }

    fn pages_max(disk: &Mutex<Connection>, pages: u64) {
        let sql = format!("PRAGMA max_page_count = {pages}");
        disk.lock().query_row(&sql, [], |_| Ok(())).unwrap();
    }

    #[test]
    fn abort_of_unknown_label_finishes_it() {
        let (labels, mut writer, mut reported) = opened(&in_memory());
        labels.abort(LabelId(7));
        assert!(writer.turn());
        let reported = reported.try_recv().unwrap().message;
        let Some(v1::from_node::Message::Finished(finished)) = reported else {
            panic!("{reported:?}");
        };
        assert_eq!(finished.label, 7);
        assert!(finished.outcome.unwrap().failure.is_some());
    }

    #[test]
    fn reschedule_returns_label_to_server_unless_started() {
        let (labels, mut writer, mut reported) = opened(&in_memory());
        labels.accept(vec![label(7), label(8)]);
        assert!(writer.turn());
        assert_eq!(labels.try_next(Lane::Remove).unwrap().0, LabelId(7));
        for id in [7, 8, 9] {
            labels.reschedule(LabelId(id));
        }
        while writer.turn() {}
        let Some(v1::from_node::Message::Finished(finished)) = reported.try_recv().unwrap().message
        else {
            panic!("no message was sent")
        };
        let failure = finished.outcome.unwrap().failure.unwrap();
        assert_eq!((finished.label, failure.kind.as_str()), (8, "rescheduled"));
        assert!(
            reported.try_recv().is_err(),
            "the first runs, the last never arrived"
        );
        assert!(labels.try_next(Lane::Remove).is_none());
        assert!(labels.is_live(LabelId(7)));
    }

    #[test]
    fn label_outcome_is_reported_only_after_it_is_stored() {
        let disk = in_memory();
        let (labels, mut writer, mut reported) = opened(&disk);
        labels.accept(vec![label(7)]);
        assert!(writer.turn());
        let (id, _) = labels.try_next(Lane::Remove).unwrap();

        pages_max(&disk, 1);
        let long = "why ".repeat(1 << 14);
        let work = LabelEffects::without_effect(failed(Time(1), FailureKind::Exit(1), long));
        assert!(labels.end(id, work));
        assert!(writer.turn());
        assert!(reported.try_recv().is_err(), "reported and not stored");
        assert_eq!(labels.known().unwrap()[0].outcome, None);

        pages_max(&disk, 1 << 30);
        labels.keep_again();
        assert!(writer.turn());
        assert!(reported.try_recv().is_ok());
        assert!(labels.known().unwrap()[0].outcome.is_some());
        labels.acknowledge(vec![id]);
        assert!(
            !writer.turn(),
            "an acknowledgement needs no commit of its own"
        );
        assert_eq!(labels.known().unwrap(), []);
    }

    /// The node is killed before and after the commit that has the acknowledgement.
    #[test]
    fn acknowledgement_is_stored_with_next_label_or_outcome_is_reported_again() {
        let disk = in_memory();
        let (labels, mut writer, _reported) = opened(&disk);
        labels.accept(vec![label(7)]);
        assert!(writer.turn());
        let (id, _) = labels.try_next(Lane::Remove).unwrap();
        let failed = failed(Time(1), FailureKind::Exit(1), String::new());
        assert!(labels.end(id, LabelEffects::without_effect(failed)));
        assert!(writer.turn());
        labels.acknowledge(vec![id]);

        let (labels, mut writer, mut reported) = opened(&disk);
        labels.report().unwrap();
        let again = reported.try_recv().unwrap().message;
        let Some(v1::from_node::Message::Finished(finished)) = again else {
            panic!("{again:?}");
        };
        assert_eq!(finished.label, 7);
        labels.acknowledge(vec![id]);
        labels.accept(vec![label(8)]);
        assert!(writer.turn());

        let (labels, _writer, mut reported) = opened(&disk);
        labels.report().unwrap();
        assert!(reported.try_recv().is_err());
        let known: Vec<LabelId> = labels.known().unwrap().iter().map(|one| one.id).collect();
        assert_eq!(known, [LabelId(8)]);
    }
}
