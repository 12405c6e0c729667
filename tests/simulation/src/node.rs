//! One simulated node: the production state machine of labels, reports and database, driven without threads. The objects of the node are in
//! memory, and its kernels take virtual time.

use crate::dice::mix;
use crate::store::{ObjectContent, SimulatedObject, SimulatedStore, StoreRefusal};
use crate::time;
use parking_lot::Mutex;
use prost::Message as _;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tidemill_model::id::{LabelId, NodeId, ObjectId};
use tidemill_model::label::{
    Analysis, FailureKind, Kernel, Label, LabelOutput, Lane, Operation, Outcome, Owner,
    SealedOutput,
};
use tidemill_model::resources::{LIGHT_MAX, Offers, ResourceLedger};
use tidemill_node::db::{self, Db, DbWriter};
use tidemill_node::flash_model::FlashModel;
use tidemill_node::labels::{Live, NodeLabels, failed};
use tidemill_node::records::{self, ObjectRecord};
use tidemill_node::reports::Reports;
use tidemill_node::task::LabelEffects;
use tidemill_wire::capability::Attributes;
use tidemill_wire::v1::{self, to_node::Message as To};
use tokio::sync::mpsc::UnboundedReceiver;

/// Number of status reports between two clean-ups of the label table.
const STATUSES_PER_PRUNE: u64 = 30;
const CAPACITY_BYTES: u64 = 1 << 40;
/// Number of objects with which a node of the burst tier is full.
const BURST_OBJECTS: u64 = 16;
/// Memory of a node for tasks that specify their need, in bytes.
pub(crate) const MEMORY_BYTES: u64 = 4 << 30;
pub(crate) const GPU: &str = "gpu";

/// Simulated node that is running, down or suspended.
#[derive(Debug)]
pub(crate) struct SimulatedNode {
    pub(crate) id: u32,
    cores: u32,
    /// Database of the node, which survives a crash.
    disk: Arc<Mutex<Connection>>,
    /// Whether the node compares its objects with their hashes when it is idle.
    scrubs: bool,
    pub(crate) store: SimulatedStore,
    /// Running state; `None` while the node is down.
    pub(crate) life: Option<Life>,
    /// Number of times that the node was started.
    pub(crate) lives: u64,
    statuses: u64,
    /// Whether the node belongs to the burst tier, from which files are staged out to other nodes.
    pub(crate) burst: bool,
    /// Whether the node has reported that it suspends itself.
    pub(crate) suspending: bool,
    /// Whether the node is suspended: a process waits for the request to resume.
    pub(crate) suspended: bool,
    /// Messages that the suspended node's waiting process wants to send.
    waiting: Vec<v1::FromNode>,
    /// Number of the node's current memory, if it stores objects in memory; 0 if it stores objects on a disk.
    memory: u64,
}

/// State of a simulated node while it runs.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) db: Db,
    writer: DbWriter,
    pub(crate) labels: Arc<NodeLabels>,
    pub(crate) reports: Arc<Reports>,
    /// Objects that the node has recorded as corrupt.
    pub(crate) corrupt: Arc<Mutex<Vec<u64>>>,
    /// Messages on their way to the server; `None` without a connection.
    outgoing: Option<UnboundedReceiver<v1::FromNode>>,
    pub(crate) running: BTreeMap<LabelId, Live>,
    /// Whether a commit of waiting changes is scheduled.
    pub(crate) commit_due: bool,
}

/// Returns whether a label reads an input that is still being written on this node, and was not aborted.
pub(crate) fn streaming_not_sealed(node: &SimulatedNode, live: &Live) -> bool {
    let Operation::Analyse(analysis) = &live.label.operation else {
        return false;
    };
    let ways = analysis.inputs.iter().zip(live.ways.iter());
    let mut streaming = ways.filter(|(_, way)| way.streaming);
    let sealed = |object: ObjectId| {
        node.store.read(object.0).is_some() || node.read(|db| records::has_object(db, object))
    };
    !live.control.is_cancelled() && streaming.any(|(input, _)| !sealed(input.object))
}

/// Returns the content that a task computes from these inputs.
pub(crate) fn made_of(
    kernel: &str,
    args: &[String],
    index: usize,
    inputs: &[ObjectContent],
) -> ObjectContent {
    let text = kernel
        .bytes()
        .chain(args.iter().flat_map(|arg| arg.bytes()));
    let start = text.fold(mix(index as u64), |sum, byte| mix(sum ^ u64::from(byte)));
    let token = inputs
        .iter()
        .fold(start, |sum, input| mix(sum ^ input.token));
    let size = 1 + token % 1000;
    ObjectContent { token, size }
}

impl SimulatedNode {
    pub(crate) fn new(id: u32, cores: u32) -> Self {
        let connection = Connection::open_in_memory().expect("SQLite works in memory");
        db::keep_statements(&connection).expect("SQLite knows them");
        Self {
            id,
            cores,
            disk: Arc::new(Mutex::new(connection)),
            scrubs: false,
            store: SimulatedStore::default(),
            life: None,
            lives: 0,
            statuses: 0,
            suspending: false,
            burst: false,
            suspended: false,
            waiting: Vec::new(),
            memory: 0,
        }
    }

    /// Returns a node that stores objects in memory and offers no cores.
    pub(crate) fn in_memory(id: u32, capacity_bytes: u64) -> Self {
        let mut node = Self::new(id, 0);
        node.memory = 1;
        node.store.capacity_bytes = Some(capacity_bytes);
        node
    }

    /// Removes the node's memory, with database and objects. Returns the removed objects.
    pub(crate) fn forget(&mut self) -> BTreeMap<u64, SimulatedObject> {
        self.kill();
        self.memory += 1;
        let fresh = Self::new(self.id, 0);
        self.disk = fresh.disk;
        // The tables are created while there is space.
        Db::without_thread(Arc::clone(&self.disk)).expect("an empty database is its own");
        std::mem::take(&mut self.store.objects)
    }

    /// Returns the resources of the node for tasks; nodes with even numbers have a GPU.
    fn offers(&self) -> Offers {
        let gpus = u64::from(self.id.is_multiple_of(2));
        Offers {
            cores: self.cores,
            memory_bytes: MEMORY_BYTES,
            named: BTreeMap::from([(GPU.to_owned(), gpus)]),
        }
    }

    /// Starts the node with its stored state.
    pub(crate) fn start(&mut self, scrubs: bool) {
        self.scrubs = scrubs;
        self.lives += 1;
        let (db, writer) =
            Db::without_thread(Arc::clone(&self.disk)).expect("a node's database is its own");
        self.remove_unkept();
        self.settle();
        let reports = Arc::new(Reports::default());
        let labels = NodeLabels::open(
            (NodeId(self.id), self.offers()),
            db.clone(),
            Arc::new(FlashModel::new(Path::new("/nowhere"), CAPACITY_BYTES)),
            Arc::clone(&reports),
            time::now,
        );
        let labels = labels.expect("a node's database is its own");
        self.life = Some(Life {
            db,
            writer,
            labels,
            reports,
            corrupt: Arc::default(),
            outgoing: None,
            running: BTreeMap::new(),
            commit_due: false,
        });
    }

    /// Removes outputs that were written to the store but not recorded before the node was killed: the label of an output may never run.
    fn remove_unkept(&mut self) {
        let open = self.read(records::open_labels);
        for record in open.iter().filter(|record| record.outcome.is_none()) {
            let label = v1::Label::decode(&*record.payload).expect("a node keeps what it got");
            let label = Label::try_from(&label).expect("a node keeps what it got");
            for object in label.operation.makes().into_iter().flatten() {
                if !self.read(|db| records::has_object(db, ObjectId(object))) {
                    self.store.objects.remove(&object);
                }
            }
        }
    }

    /// Kills the node: changes that were not committed are lost.
    pub(crate) fn kill(&mut self) {
        self.life = None;
        self.suspending = false;
        self.suspended = false;
        self.waiting.clear();
    }

    /// Returns the free space of the node, in bytes; a node of the burst tier is full with a few objects.
    fn free_bytes(&self) -> u64 {
        match (self.store.full, self.burst) {
            (true, _) => 0,
            (false, false) => CAPACITY_BYTES / 2,
            (false, true) => {
                let held = self.store.objects.len() as u64 * (CAPACITY_BYTES / BURST_OBJECTS);
                CAPACITY_BYTES.saturating_sub(held)
            }
        }
    }

    fn status(&self, life: &Life) -> v1::Node {
        let (running, queued) = life.labels.counts();
        v1::Node {
            node: self.id,
            role: "store".into(),
            up: true,
            url: format!("http://node-{}", self.id),
            host: format!("host-{}", self.id),
            directory: format!("/node/{}", self.id),
            cores: self.cores,
            memory_bytes: self.offers().memory_bytes,
            resources: self.offers().named,
            running: u32::try_from(running).unwrap_or(u32::MAX),
            queued: u32::try_from(queued).unwrap_or(u32::MAX),
            capacity_bytes: CAPACITY_BYTES,
            free_bytes: self.free_bytes(),
            tier: if self.memory > 0 {
                "memory"
            } else if self.burst {
                "burst"
            } else {
                ""
            }
            .into(),
            link_bytes_per_sec: 125_000_000,
            scrub_bytes_per_sec: u64::from(self.scrubs),
            memory_id: self.memory,
            ..v1::Node::default()
        }
    }

    /// Begins the connection of a suspended node's process, which waits for the request to resume.
    fn connect_suspended(&mut self) {
        let hello = v1::Hello {
            version: tidemill_wire::PROTOCOL_VERSION,
            suspended: true,
            node: Some(v1::Node {
                node: self.id,
                role: "store".into(),
                host: format!("host-{}", self.id),
                directory: format!("/node/{}", self.id),
                ..v1::Node::default()
            }),
            ..v1::Hello::default()
        };
        self.waiting.push(v1::FromNode {
            message: Some(v1::from_node::Message::Hello(hello)),
        });
    }

    /// Suspends the node if it has reported that it suspends itself. Returns whether it did so.
    pub(crate) fn complete_suspend(&mut self) -> bool {
        let is_suspending = self.life.is_some() && std::mem::take(&mut self.suspending);
        if is_suspending {
            // A suspended node stops in order: waiting changes are committed.
            self.commit();
            self.life = None;
            self.suspended = true;
        }
        is_suspending
    }

    /// Reports that the node suspends itself, or that it refuses because it has work.
    fn suspend(&mut self) {
        use v1::from_node::Message as From;
        let Some(life) = &self.life else { return };
        let known = life.labels.known();
        let known = known.expect("a node's database is its own");
        let written = self.store.objects.values().any(|object| !object.sealed);
        let busy = !known.is_empty() || life.labels.counts() != (0, 0) || written;
        life.reports.send(match busy {
            true => From::Stays(v1::Stays {
                why: "it has something to do".into(),
            }),
            false => From::Suspended(v1::Suspended {}),
        });
        self.suspending = !busy;
    }

    /// Begins a connection to the server: from now on the node sends its messages over this connection.
    pub(crate) fn connect(&mut self) {
        if self.suspended {
            return self.connect_suspended();
        }
        let Some(life) = &self.life else { return };
        let known = life.labels.known().expect("a node's database is its own");
        let hello = v1::Hello {
            version: tidemill_wire::PROTOCOL_VERSION,
            node: Some(self.status(life)),
            cluster_id: 0,
            labels: known.iter().map(|record| record.id.0).collect(),
            used: None,
            suspended: false,
            public_key: Vec::new(),
        };
        let outgoing = life.reports.connect(hello);
        if let Some(life) = &mut self.life {
            life.outgoing = Some(outgoing);
        }
    }

    pub(crate) fn disconnect(&mut self) {
        if let Some(life) = &mut self.life {
            life.reports.disconnect();
            life.outgoing = None;
        }
    }

    /// Returns the messages that the node wants to send.
    pub(crate) fn take_outgoing(&mut self) -> Vec<v1::FromNode> {
        let mut messages = std::mem::take(&mut self.waiting);
        let outgoing = self.life.as_mut().and_then(|life| life.outgoing.as_mut());
        if let Some(outgoing) = outgoing {
            while let Ok(message) = outgoing.try_recv() {
                messages.push(message);
            }
        }
        messages
    }

    /// Sends the node's status to the server, and cleans up at intervals.
    pub(crate) fn tell_status(&mut self) {
        let Some(life) = &self.life else { return };
        life.labels.keep_again();
        let status = self.status(life);
        life.reports.send(v1::from_node::Message::Status(status));
        self.statuses += 1;
        if self.statuses.is_multiple_of(STATUSES_PER_PRUNE) {
            life.db.submit(false, records::prune_labels, |_| {});
        }
        life.db.flush();
    }

    /// Handles a message of the server as the production node's connection handles it.
    pub(crate) fn hear(&mut self, message: To) {
        if self.suspending {
            return;
        }
        let Some(life) = &self.life else { return };
        match message {
            To::Suspend(_) => self.suspend(),
            To::Resume(_) => {}
            To::Welcome(_) => {
                let reported = life.labels.report();
                reported.expect("a node's database is its own");
            }
            To::Labels(labels) => life.labels.accept(labels.labels),
            To::Abort(abort) => life.labels.abort(LabelId(abort.label)),
            To::Reschedule(reschedule) => life.labels.reschedule(LabelId(reschedule.label)),
            To::Ack(ack) => life
                .labels
                .acknowledge(ack.labels.into_iter().map(LabelId).collect()),
            // A simulated server has no log.
            To::Log(_) => {}
            // A simulated node has no backend.
            To::Files(_) => {}
            To::FindPrograms(_) | To::Probe(_) | To::Peers(_) | To::Revoke(_) => {}
        }
    }

    /// Seals an object that a client wrote. Calls `done` with the object's length once the seal is committed.
    pub(crate) fn seal(
        &mut self,
        object: u64,
        signed: Attributes,
        done: impl FnOnce(Result<u64, StoreRefusal>) + Send + 'static,
    ) {
        let Some(life) = &self.life else { return };
        let size = match self.store.seal(object) {
            Ok(size) => size,
            Err(refusal) => return done(Err(refusal)),
        };
        let row = ObjectRecord::written(ObjectId(object), size, signed, time::now());
        let change = move |connection: &Connection| {
            if !records::has_object(connection, row.id)? {
                records::put_object(connection, &row)?;
            }
            Ok(())
        };
        life.db.submit(false, change, move |kept| {
            done(kept.map(|()| size).map_err(|_| StoreRefusal::Full));
        });
    }

    /// Commits waiting changes of the node's database until there are none.
    pub(crate) fn commit(&mut self) {
        if let Some(life) = &mut self.life {
            life.commit_due = false;
            while life.writer.turn() {}
        }
        self.set_aside();
    }

    /// Returns the labels that begin to run on the node now.
    pub(crate) fn begin(&mut self) -> Vec<LabelId> {
        let mut begun = Vec::new();
        let Some(life) = &mut self.life else {
            return begun;
        };
        for lane in Lane::ALL {
            let space = match lane {
                Lane::Kernel => self.cores,
                Lane::Light => LIGHT_MAX,
                Lane::Copy | Lane::Remove | Lane::Verify => 1,
            };
            let is_in = |live: &&Live| live.label.operation.lane() == lane;
            while life.running.values().filter(is_in).count() < space as usize {
                let Some((id, live)) = life.labels.try_next(lane) else {
                    break;
                };
                life.labels.on_phase(id, "running");
                life.running.insert(id, live);
                begun.push(id);
            }
        }
        self.check_resources();
        begun
    }

    /// Checks that running labels never take more than the node's resources.
    fn check_resources(&self) {
        let mut ledger = ResourceLedger::new(self.offers());
        let running = self.life.iter().flat_map(|life| life.running.values());
        for needs in running.filter_map(|live| live.label.operation.needs()) {
            assert!(ledger.take(needs), "node {} lends {needs} twice", self.id);
        }
    }

    /// Makes the database full, or gives it space again.
    pub(crate) fn fill_database(&self, full: bool) {
        fill(&self.disk.lock(), full);
    }

    /// Calls `read` with the node's database.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> T {
        read(&self.disk.lock()).expect("a node's database is its own")
    }
}

/// Stops a database from growing (`full`), or lets it grow again.
pub(crate) fn fill(connection: &Connection, full: bool) {
    let pages = if full { 1 } else { 1 << 30 };
    let set = connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()));
    set.expect("a setting that every SQLite has");
}

/// Result of a task on a simulated node.
#[derive(Debug)]
pub(crate) struct Did {
    pub(crate) work: LabelEffects,
    /// Objects that the task put into the store.
    pub(crate) objects: Vec<(u64, ObjectContent)>,
}

/// Returns the end of a label that ran. `inputs` holds the content of the label's inputs, or the reason for which they could not be read.
pub(crate) fn done(
    live: &Live,
    analysis: &Analysis,
    inputs: Result<Vec<ObjectContent>, String>,
    cached_result: Option<Vec<ObjectContent>>,
    hashes: bool,
) -> Did {
    let ended = |kind, message| {
        let mut outcome = failed(live.start, kind, message);
        outcome.end = time::now();
        outcome
    };
    let failure = |kind, message: String| did(live, ended(kind, message), Vec::new());
    if live.control.is_cancelled() {
        return failure(FailureKind::Cancelled, "the label was aborted".into());
    }
    let inputs = match inputs {
        Ok(inputs) => inputs,
        Err(message) => return failure(FailureKind::Input, message),
    };
    let mut outcome = ended(FailureKind::Device, String::new());
    outcome.kernel_hash = format!("hash of {}", analysis.kernel.name());
    outcome.read_bytes = inputs.iter().map(|input| input.size).sum();
    if hashes {
        outcome.contents = inputs
            .iter()
            .map(|input| format!("{:016x}", input.token))
            .collect();
    }
    let objects = match (&live.cached_result, cached_result) {
        (Some(memory), Some(outputs)) => {
            outcome.reused = Some(tidemill_model::id::TaskId(memory.task));
            let objects = analysis.outputs.iter().map(|output| output.object.0);
            objects.zip(outputs).collect()
        }
        _ => outputs(analysis, &inputs),
    };
    let sealed = objects
        .iter()
        .map(|&(object, bytes)| SealedOutput::file(ObjectId(object), bytes.size));
    outcome.result = Ok(sealed.collect());
    let made = made(analysis, &objects, live.label.owner, &outcome);
    let mut did = did(live, outcome, objects);
    did.work.made = made;
    did
}

fn did(live: &Live, outcome: Outcome, objects: Vec<(u64, ObjectContent)>) -> Did {
    let work = LabelEffects {
        label: Some(Arc::clone(&live.label)),
        ..LabelEffects::without_effect(outcome)
    };
    Did { work, objects }
}

/// Returns the end of a label that copies an object.
pub(crate) fn copied(live: &Live, to: &LabelOutput, bytes: ObjectContent) -> Did {
    let mut outcome = failed(live.start, FailureKind::Device, String::new());
    outcome.end = time::now();
    outcome.result = Ok(vec![SealedOutput::file(to.object, bytes.size)]);
    let record = ObjectRecord {
        id: to.object,
        size: bytes.size,
        owner: live.label.owner,
        inode: to.inode.0,
        path: to.path.clone().into_bytes(),
        mode: None,
        task: None,
        sealed_at: outcome.end,
        part: None,
        hash: Some(crate::bit_rot::hash(bytes)),
        memory: false,
    };
    let mut did = did(live, outcome, vec![(to.object.0, bytes)]);
    did.work.made = vec![record];
    did
}

/// Returns the end of a label that removed `objects`. `all` is true if these were all objects of the label.
pub(crate) fn removed(live: &Live, objects: Vec<ObjectId>, all: bool) -> Did {
    let mut did = broke(live, FailureKind::Device);
    if all {
        did.work.outcome.result = Ok(Vec::new());
    } else {
        did.work.outcome.removed.clone_from(&objects);
    }
    did.work.removed = objects;
    did
}

/// Returns the end of a label whose kernel failed, or whose outputs found no space.
pub(crate) fn broke(live: &Live, kind: FailureKind) -> Did {
    did(live, failed_now(live, kind), Vec::new())
}

pub(crate) fn failed_now(live: &Live, kind: FailureKind) -> Outcome {
    let mut outcome = failed(live.start, kind, "as the dice fell".into());
    outcome.end = time::now();
    outcome
}

fn outputs(analysis: &Analysis, inputs: &[ObjectContent]) -> Vec<(u64, ObjectContent)> {
    let kernel = kernel_name(&analysis.kernel);
    let outputs = analysis.outputs.iter().enumerate();
    outputs
        .map(|(index, output)| {
            let bytes = made_of(kernel, &analysis.args, index, inputs);
            (output.object.0, bytes)
        })
        .collect()
}

pub(crate) fn kernel_name(kernel: &Kernel) -> &str {
    kernel.name()
}

fn made(
    analysis: &Analysis,
    objects: &[(u64, ObjectContent)],
    owner: Owner,
    outcome: &Outcome,
) -> Vec<ObjectRecord> {
    let outputs = analysis.outputs.iter().zip(objects);
    outputs
        .map(|(output, (_, bytes))| ObjectRecord {
            id: output.object,
            size: bytes.size,
            owner,
            inode: output.inode.0,
            path: output.path.clone().into_bytes(),
            mode: None,
            task: Some(analysis.task.0),
            sealed_at: outcome.end,
            part: None,
            hash: None,
            memory: false,
        })
        .collect()
}
