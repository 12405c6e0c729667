//! Seals versions after their last close, in batches. First the node seals the objects, then the server makes the version current (next:
//! `node/src`, `server/src`).
//!
//! The sealer retries a version for as long as the mount runs. The sealer stops only when the server answers that the version cannot be
//! sealed any more. Until then, programs on this mount read the file as it was written. Every node has a lane of its own, so that an
//! offline node delays no other files.

use super::Caller;
use super::backend::Backend;
use super::deadline;
use super::object::{ObjectData, OpenObject};
use super::pending::PendingAttributes;
use super::right;
use super::table::InodeTable;
use super::unsealed::{CloseOutcome, UnsealedSummary, UnsealedVersions};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_client::objects::Sealed;
use tidemill_model::backoff::Backoff;
use tidemill_model::id::NodeId;
use tidemill_wire::route::{self, SealBody, SealItem, SealResult};
use tidemill_wire::v1::{self, Attr, name_op::Op, name_result::Result as Answer};
use tokio::sync::{Notify, Semaphore, mpsc};

/// Maximum number of versions sealed in one request to the server.
const BATCH_MAX: usize = 256;
/// Time that a version waits for other versions to be sealed in the same batch, unless a caller waits for the seal.
const GATHER: Duration = Duration::from_millis(8);
/// Maximum number of batches of one node that are being sealed at once.
const BATCHES_MAX: usize = 2;
/// Maximum time of a node or the server for a batch, before the batch is retried.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Maximum time for which the mount asks the server for the address of an offline node, before the pause.
const FIND: Duration = Duration::from_secs(1);
/// Pause before the mount asks the server again whether a version has its replicas.
const COPYING: Duration = Duration::from_millis(100);
/// Pauses before a version is retried.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Version whose last writer has closed it.
#[derive(Debug)]
pub(crate) struct SealJob {
    pub(crate) ino: u64,
    pub(crate) object: Arc<OpenObject>,
    pub(crate) caller: Caller,
    pub(crate) ending: Ending,
    pub(crate) attr: Attr,
    /// Attributes of the file that the server does not know yet.
    pub(crate) pending: Option<PendingAttributes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The version becomes the file's current one.
    Seal,
    /// The version is dropped.
    Abandon,
}

/// Tasks that seal closed versions.
#[derive(Debug)]
pub(crate) struct Sealer(Arc<SealWorker>);

#[derive(Debug)]
struct SealWorker {
    backend: Arc<Backend>,
    table: Arc<InodeTable>,
    unsealed: UnsealedVersions,
    /// One lane for each node, and one lane for requests to the server alone.
    lanes: Mutex<HashMap<Option<u32>, SealLane>>,
    /// Notification that ends the pauses of versions that wait for their retry.
    again: Notify,
}

/// Queue of versions that are sealed in batches.
#[derive(Clone, Debug)]
struct SealLane {
    versions: mpsc::UnboundedSender<LaneJob>,
    hurry: Arc<Notify>,
}

#[derive(Debug)]
struct LaneJob {
    job: SealJob,
    /// Its objects that nodes have sealed so far, in the order of the parts.
    sealed_parts: Vec<Sealed>,
    /// Length and mtime of the version, after all objects are sealed. `None` before the seal, and for versions that are dropped.
    sealed: Option<(u64, i64)>,
    /// Pauses before the next retries of the version.
    pauses: Backoff,
    /// Whether the version needs a request of its own, because a request with others was refused.
    alone: bool,
}

impl Sealer {
    pub(crate) fn new(backend: Arc<Backend>, table: Arc<InodeTable>) -> Self {
        Self(Arc::new(SealWorker {
            backend,
            table,
            unsealed: UnsealedVersions::default(),
            lanes: Mutex::default(),
            again: Notify::new(),
        }))
    }

    /// Skips the gathering pause, because a caller waits for submitted versions.
    pub(crate) fn hurry(&self) {
        for lane in self.0.lanes.lock().values() {
            lane.hurry.notify_one();
        }
    }

    /// Retries all pausing versions at once, because an offline node or the server is back.
    pub(crate) fn retry(&self) {
        self.0.again.notify_waiters();
    }

    pub(crate) fn submit(&self, job: SealJob) {
        self.0.unsealed.enter(job.object.id, job.ino);
        let version = LaneJob {
            job,
            sealed_parts: Vec::new(),
            sealed: None,
            pauses: AGAIN,
            alone: false,
        };
        if version.job.object.waits() && version.job.ending == Ending::Seal {
            // Bytes on their way must not delay versions whose bytes have arrived.
            let worker = self.0.clone();
            self.0.backend.runtime.spawn(worker.arrive(version));
        } else {
            self.0.queue(version);
        }
    }

    /// Returns a summary of the versions that are not sealed yet.
    pub(crate) fn standing(&self) -> UnsealedSummary {
        self.0.unsealed.standing()
    }

    /// Returns the outcome of a closed version.
    pub(crate) fn fate(&self, object: u64) -> CloseOutcome {
        self.0.unsealed.fate(object)
    }

    /// Waits until all submitted versions are sealed or dropped. If `timeout` passes first, returns a summary of the remaining versions.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<(), UnsealedSummary> {
        self.hurry();
        self.retry();
        self.0.unsealed.wait(timeout)
    }

    /// Waits until fewer than `most` versions are unsealed, or until the time `until`. Returns whether fewer are unsealed.
    pub(crate) fn wait_below(&self, most: usize, until: Instant) -> bool {
        self.0.unsealed.wait_below(most, until)
    }

    /// Returns the errno for an operation that waited in vain for the seal of this inode.
    pub(crate) fn errno(&self, ino: u64) -> rustix::io::Errno {
        self.0.unsealed.errno(ino)
    }
}

impl SealWorker {
    /// Adds a version to the lane of its next node.
    fn queue(self: &Arc<Self>, version: LaneJob) {
        let node = version.node();
        let lane = {
            let mut lanes = self.lanes.lock();
            let lane = lanes.entry(node).or_insert_with(|| self.lane());
            lane.clone()
        };
        if lane.versions.send(version).is_err() {
            tracing::debug!("a version was closed after the end of the mount: the server seals it");
        }
    }

    fn lane(self: &Arc<Self>) -> SealLane {
        // Unbounded: the number of open files on this host limits the queue.
        let (versions, queue) = mpsc::unbounded_channel();
        let hurry = Arc::new(Notify::new());
        self.backend
            .runtime
            .spawn(self.clone().run(queue, hurry.clone()));
        SealLane { versions, hurry }
    }

    async fn run(self: Arc<Self>, mut queue: mpsc::UnboundedReceiver<LaneJob>, hurry: Arc<Notify>) {
        let mut batch = Vec::new();
        // With few batches under way at once, batches grow with the load.
        let turns = Arc::new(Semaphore::new(BATCHES_MAX));
        while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
            if tokio::time::timeout(GATHER, hurry.notified())
                .await
                .is_err()
                && !queue.is_empty()
            {
                queue.recv_many(&mut batch, BATCH_MAX).await;
            }
            let Ok(turn) = turns.clone().acquire_owned().await else {
                return;
            };
            let worker = self.clone();
            let versions = std::mem::take(&mut batch);
            tokio::spawn(async move {
                worker.end(versions).await;
                drop(turn);
            });
        }
    }

    /// Waits until the bytes of a file on another host have arrived at its node.
    async fn arrive(self: Arc<Self>, version: LaneJob) {
        if version.job.object.flushed().await.is_err() {
            // The writer got this error from the write, `fsync` or close.
            self.unsealed
                .lost(version.job.object.id, "not all of it has reached its node");
            let path = self.path(&version.job);
            tracing::warn!(path, "a file is sealed at the length that reached its node");
        }
        self.queue(version);
    }

    /// Ends versions whose bytes have arrived. Versions that were refused in a batch are sent alone.
    async fn end(self: &Arc<Self>, versions: Vec<LaneJob>) {
        let (alone, multi_writer): (Vec<_>, Vec<_>) = versions.into_iter().partition(|v| v.alone);
        self.end_batch(multi_writer).await;
        for version in alone {
            self.end_batch(vec![version]).await;
        }
    }

    async fn end_batch(self: &Arc<Self>, versions: Vec<LaneJob>) {
        let mut ready = Vec::new();
        match versions.first().and_then(LaneJob::node) {
            Some(node) => self.at_node(node, versions, &mut ready).await,
            None => ready = versions,
        }
        self.at_server(ready).await;
    }

    /// Asks a node to seal objects. Renews expired capabilities once.
    async fn at_node(
        self: &Arc<Self>,
        node: u32,
        versions: Vec<LaneJob>,
        ready: &mut Vec<LaneJob>,
    ) {
        let refused = self.seal_all(node, versions, ready).await;
        if refused.is_empty() {
            return;
        }
        let until = Some(deadline::now() + ATTEMPT);
        for version in &refused {
            let job = &version.job;
            if let Err(error) = version.part().right.renew(&self.backend, until).await {
                tracing::debug!(ino = job.ino, "no new right to seal: {error}");
            }
        }
        let refused = self.seal_all(node, refused, ready).await;
        self.later(
            refused,
            &refusal(node, 403, "the node refuses the right to seal"),
        );
    }

    /// Asks a node to seal objects. Returns the versions whose capability the node refuses.
    async fn seal_all(
        self: &Arc<Self>,
        node: u32,
        versions: Vec<LaneJob>,
        ready: &mut Vec<LaneJob>,
    ) -> Vec<LaneJob> {
        // Read before the seal: the node's own change of the file must not count.
        let stats = versions.iter().map(|v| v.part().stat());
        let stats: Vec<_> = stats.map(Result::unwrap_or_default).collect();
        let items: Vec<_> = versions.iter().map(|v| self.item(v)).collect();
        let results = match self.ask_node(node, &items).await {
            Ok(results) => results,
            Err(error) => {
                self.later(versions, &error);
                return Vec::new();
            }
        };
        let results: BTreeMap<u64, SealResult> = results
            .into_iter()
            .map(|result| (result.object, result))
            .collect();
        let mut refused = Vec::new();
        for (mut version, stat) in versions.into_iter().zip(stats) {
            match results.get(&version.part().id) {
                Some(result) if result.status == 200 => {
                    if result.size < stat.size {
                        self.log_lost(
                            &version.job,
                            &format!("the node has {} bytes of it", result.size),
                        );
                    }
                    match route::parse_hex(&result.receipt) {
                        Some(receipt) => {
                            let size = result.size;
                            let part = Sealed { size, receipt };
                            match version.is_sealed(part, stat.mtime) {
                                true => ready.push(version),
                                false => self.queue(version),
                            }
                        }
                        None => self.later(vec![version], &ClientError::Answer("seal")),
                    }
                }
                Some(result) if result.status == 403 => refused.push(version),
                Some(result) => {
                    let why = refusal(node, result.status, &result.message);
                    self.later(vec![version], &why);
                }
                None => self.later(vec![version], &ClientError::Answer("seal")),
            }
        }
        refused
    }

    fn item(&self, version: &LaneJob) -> SealItem {
        let (job, part) = (&version.job, version.part());
        SealItem {
            object: part.id,
            capability: route::hex(&part.right.capability()),
            body: SealBody {
                durable: false,
                // A program reports itself that it has closed its descriptor.
                lost: self.backend.hands_out() && job.object.local().is_some(),
                part: version.is_part(),
            },
        }
    }

    async fn ask_node(
        &self,
        node: u32,
        items: &[SealItem],
    ) -> Result<Vec<SealResult>, ClientError> {
        let end = Instant::now() + ATTEMPT;
        let url = match self.backend.find(node, Some(deadline::now() + FIND)).await {
            Ok(place) => place.url,
            // A server that has just started may not know the node yet.
            Err(error) => self.backend.last_url(node).ok_or(error)?,
        };
        let objects = &self.backend.objects;
        let asked = objects.seal_all(NodeId(node), &url, items);
        let answer = tokio::time::timeout_at(end.into(), asked).await;
        let answer = answer.unwrap_or_else(|_| Err(right::silent(&url)));
        if answer.as_ref().is_err_and(ClientError::is_lost) {
            // The node may return with another address.
            self.backend.forget_node(node);
        }
        answer
    }

    /// Reports versions to the server. An operation that fails ends its request, so the remaining operations are sent again without it.
    async fn at_server(self: &Arc<Self>, versions: Vec<LaneJob>) {
        let mut rest = versions;
        while !rest.is_empty() {
            let ops = rest.iter().map(LaneJob::op).collect();
            let until = Some(deadline::now() + ATTEMPT);
            let caller = rest[0].job.caller;
            let answers = match self.backend.apply_async(caller, ops, until).await {
                Ok(answers) if !answers.is_empty() => answers,
                Ok(_) => return self.later(rest, &ClientError::Answer("Apply")),
                Err(error) => return self.later(rest, &error),
            };
            let later = rest.split_off(answers.len().min(rest.len()));
            for (version, answer) in rest.into_iter().zip(answers) {
                self.conclude(version, answer);
            }
            rest = later;
        }
    }

    fn conclude(self: &Arc<Self>, version: LaneJob, answer: Answer) {
        let attr = match (version.sealed, answer) {
            (_, Answer::Copying(_)) => return self.after(vec![version], COPYING),
            (_, Answer::Error(error)) if !is_final(error.errno) => {
                let version = match error.errno {
                    // The server wants other receipts of the nodes.
                    libc::EBADMSG => version.unsealed(),
                    _ => version,
                };
                return self.later(vec![version], &ClientError::from(error));
            }
            (sealed, Answer::Error(error)) => {
                // A file that was removed in the meantime needs no seal.
                if sealed.is_some() && error.errno != libc::ENOENT {
                    self.log_lost(&version.job, &error.message);
                }
                None
            }
            (None, _) => None,
            (Some(_), Answer::Attr(attr)) => {
                if let Some(multi_writer) = version.job.object.multi_writer() {
                    multi_writer.part_sealed();
                }
                Some(attr)
            }
            (Some((size, mtime)), _) => {
                let job = &version.job;
                let known = self.table.get(job.ino);
                let mut attr = known.map_or(job.attr, |vnode| vnode.state.lock().attr);
                attr.object = job.object.id;
                attr.node = job.object.place();
                attr.parts = job.object.is_striped();
                attr.size = size;
                attr.mtime = mtime;
                attr.version += 1;
                attr.writing = false;
                Some(attr)
            }
        };
        self.finish(&version.job, attr);
    }

    /// Retries versions after a pause, or earlier if an offline node or the server returns.
    fn later(self: &Arc<Self>, mut versions: Vec<LaneJob>, why: &ClientError) {
        let pauses = versions.iter_mut().map(|version| version.pauses.pause());
        let Some(pause) = pauses.max() else { return };
        // One version of the batch may be the reason of the refusal.
        let alone = versions.len() > 1 && !why.is_lost();
        for version in &mut versions {
            version.alone |= alone;
            let first = self.unsealed.failed(version.job.object.id, why);
            if first {
                let path = self.path(&version.job);
                tracing::warn!(
                    path,
                    "closed files can't be sealed now; the mount retries (see .tidemill/status): {why}"
                );
            }
        }
        self.after(versions, pause);
    }

    /// Queues versions again after a pause, or earlier if an offline node or the server returns.
    fn after(self: &Arc<Self>, versions: Vec<LaneJob>, pause: Duration) {
        let worker = self.clone();
        self.backend.runtime.spawn(async move {
            let _ = tokio::time::timeout(pause, worker.again.notified()).await;
            for version in versions {
                worker.queue(version);
            }
        });
    }

    /// Logs that bytes which `close` acknowledged are lost.
    fn log_lost(&self, job: &SealJob, why: &str) {
        self.unsealed.lost(job.object.id, why);
        tracing::error!(
            path = self.path(job),
            object = format_args!("{:016x}", job.object.id),
            node = job.object.place(),
            "some bytes written to a file are not in the cluster: {why}"
        );
    }

    fn path(&self, job: &SealJob) -> String {
        match self.table.path(job.ino) {
            Some(path) => String::from_utf8_lossy(&path).into_owned(),
            None => format!("inode {}", job.ino),
        }
    }

    /// Ends the writing of a version in the table. Without `attr`, the next use asks the server for the attributes.
    fn finish(&self, job: &SealJob, attr: Option<Attr>) {
        if let Some(vnode) = self.table.get(job.ino) {
            let mut state = vnode.state.lock();
            state.writing = None;
            state.kept = None;
            state.stamp = self.table.tick();
            match attr {
                // Another mount has sealed a version since, and the table knows it: this answer was slow.
                Some(sealed) if sealed.version < state.attr.version => {}
                // Takes only the fields that the seal changed: a chmod may have overtaken this answer on its way here.
                Some(sealed) if state.attr.ino == sealed.ino => {
                    let attr = &mut state.attr;
                    attr.object = sealed.object;
                    attr.node = sealed.node;
                    attr.parts = sealed.parts;
                    attr.size = sealed.size;
                    attr.mtime = sealed.mtime;
                    attr.ctime = attr.ctime.max(sealed.ctime);
                    attr.version = sealed.version;
                    attr.writing = sealed.writing;
                    attr.multi_writer = sealed.multi_writer;
                }
                Some(sealed) => state.attr = sealed,
                None => state.fresh = None,
            }
            vnode.changed.notify_all();
        }
        self.table.drop_unused(job.ino);
        self.unsealed.done(job.object.id);
    }
}

fn refusal(node: u32, status: u16, message: &str) -> ClientError {
    ClientError::NodeRefused {
        url: format!("number {node}"),
        status,
        message: message.to_owned(),
    }
}

/// Whether the server's answer about a version is final: another writer has taken over, the file is deleted, or the version can never be
/// sealed. After any other error a retry may succeed.
fn is_final(errno: i32) -> bool {
    [
        libc::ESTALE,
        libc::ENOENT,
        libc::EACCES,
        libc::EPERM,
        libc::EINVAL,
    ]
    .contains(&errno)
}

impl LaneJob {
    /// Returns the node that has to seal the next object of the version; `None` if all objects are sealed.
    fn node(&self) -> Option<u32> {
        let unsealed = self.job.ending == Ending::Seal && self.sealed.is_none();
        unsealed.then_some(self.part().node)
    }

    /// Returns the object of the version that is sealed next.
    fn part(&self) -> &OpenObject {
        let next = self.job.object.parts().nth(self.sealed_parts.len());
        next.unwrap_or(&self.job.object)
    }

    /// Returns whether the object that is sealed next is one of several of the version.
    fn is_part(&self) -> bool {
        match &self.job.object.data {
            ObjectData::Striped(_) => true,
            ObjectData::MultiWriter(multi_writer) => multi_writer.is_part(),
            _ => false,
        }
    }

    /// Records that a node has sealed the next object of the version. Returns whether it was the last object.
    fn is_sealed(&mut self, part: Sealed, mtime: i64) -> bool {
        let length = part.size;
        self.sealed_parts.push(part);
        if !self.job.object.is_striped() {
            self.sealed = Some((length, mtime));
        } else if self.sealed_parts.len() == self.job.object.parts().count() {
            // The server computes the length of the file from the lengths of the parts.
            let stat = self.job.object.stat().unwrap_or_default();
            self.sealed = Some((stat.size, stat.mtime));
        }
        self.sealed.is_some()
    }

    /// Returns the version as before its seal at nodes.
    fn unsealed(self) -> Self {
        Self {
            sealed_parts: Vec::new(),
            sealed: None,
            ..self
        }
    }

    fn op(&self) -> Op {
        let (ino, object) = (self.job.ino, self.job.object.id);
        let (publications, base) = match (self.job.object.multi_writer(), self.sealed) {
            (Some(multi_writer), Some(_)) => multi_writer.last_word(),
            _ => (Vec::new(), None),
        };
        match self.sealed {
            Some((size, mtime)) => Op::Seal(v1::Seal {
                publications,
                base,
                ino,
                object,
                size,
                mtime,
                attributes: self.job.pending.map(|pending| pending.reported(ino)),
                replicas: String::new(),
                parts: match self.job.object.is_striped() {
                    true => self.sealed_parts.iter().map(|part| part.size).collect(),
                    false => Vec::new(),
                },
                receipts: self
                    .sealed_parts
                    .iter()
                    .map(|part| part.receipt.clone())
                    .collect(),
            }),
            None => Op::Abandon(v1::Abandon { ino, object }),
        }
    }
}
