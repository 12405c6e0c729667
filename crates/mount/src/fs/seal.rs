//! Seals versions after their last close, many at a time: first the element, which keeps the bytes, then the
//! server, which switches the name.
//!
//! A version that can't be sealed is tried again, for as long as the mount lives. Only the server's word that
//! the version is not to be sealed any more ends that. Until then the files of this mount are read as they were
//! written. Every element has a lane of its own, so that one that is away holds up nobody else's files.

use super::Caller;
use super::backend::Backend;
use super::object::{Data, Object};
use super::patience;
use super::pending::Pending;
use super::right;
use super::table::Table;
use super::unsealed::{Fate, Standing, Unsealed};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_core::id::{ElementId, ObjectId};
use tidemill_core::layout::PartOf;
use tidemill_core::shown::escaped;
use tidemill_wire::route::{SealBody, SealItem, SealResult};
use tidemill_wire::v1::{self, Attr, name_op::Op, name_result::Result as Answer};
use tokio::sync::{Notify, Semaphore, mpsc};

/// Versions sealed in one request to the server.
const BATCH_MAX: usize = 256;
/// How long a version waits for others to be sealed with it, unless somebody waits for it.
const GATHER: Duration = Duration::from_millis(8);
/// Batches of one element under way at once.
const BATCHES_MAX: usize = 2;
/// How long an element or the server may take for a batch before it is tried again.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long it is asked where an element is that is away, before the pause.
const FIND: Duration = Duration::from_secs(1);
/// Pause before it is asked again whether a version has its copies.
const COPYING: Duration = Duration::from_millis(100);
/// Pause before a version is tried again, doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A version whose last writer is gone.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ino: u64,
    pub(crate) object: Arc<Object>,
    pub(crate) caller: Caller,
    pub(crate) ending: Ending,
    pub(crate) attr: Attr,
    /// Attributes that the server does not know yet.
    pub(crate) pending: Option<Pending>,
}

/// What becomes of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It becomes the file's current one.
    Seal,
    /// It is dropped.
    Abandon,
}

/// The tasks that seal.
#[derive(Debug)]
pub(crate) struct Sealer(Arc<Worker>);

#[derive(Debug)]
struct Worker {
    backend: Arc<Backend>,
    table: Arc<Table>,
    unsealed: Unsealed,
    /// One for each element, and one for what only the server has to be told.
    lanes: Mutex<HashMap<Option<u32>, Lane>>,
    /// Wakes what pauses before it is tried again.
    again: Notify,
}

/// Versions that are sealed with each other.
#[derive(Clone, Debug)]
struct Lane {
    versions: mpsc::UnboundedSender<Version>,
    hurry: Arc<Notify>,
}

/// A job on its way.
#[derive(Debug)]
struct Version {
    job: Job,
    /// Lengths of those of its objects that elements have sealed, in their order.
    lengths: Vec<u64>,
    /// Length and mtime, once all are sealed; `None` before, and of what is dropped.
    sealed: Option<(u64, i64)>,
    /// The pause before it is tried again.
    pause: Duration,
    /// It is asked for in a request of its own: one with others was refused.
    alone: bool,
}

impl Sealer {
    pub(crate) fn new(backend: Arc<Backend>, table: Arc<Table>) -> Self {
        Self(Arc::new(Worker {
            backend,
            table,
            unsealed: Unsealed::default(),
            lanes: Mutex::default(),
            again: Notify::new(),
        }))
    }

    /// Somebody waits for what was submitted.
    pub(crate) fn hurry(&self) {
        for lane in self.0.lanes.lock().values() {
            lane.hurry.notify_one();
        }
    }

    /// What was away is back: what could not be sealed is tried again at once.
    pub(crate) fn retry(&self) {
        self.0.again.notify_waiters();
    }

    pub(crate) fn submit(&self, job: Job) {
        self.0.unsealed.enter(job.object.id, job.ino);
        let version = Version {
            job,
            lengths: Vec::new(),
            sealed: None,
            pause: PAUSE_MIN,
            alone: false,
        };
        if version.job.object.waits() && version.job.ending == Ending::Seal {
            // Bytes on their way must not hold up what has arrived.
            let worker = self.0.clone();
            self.0.backend.runtime.spawn(worker.arrive(version));
        } else {
            self.0.queue(version);
        }
    }

    /// What is not sealed yet.
    pub(crate) fn standing(&self) -> Standing {
        self.0.unsealed.standing()
    }

    /// What has become of a version.
    pub(crate) fn fate(&self, object: u64) -> Fate {
        self.0.unsealed.fate(object)
    }

    /// Waits until everything submitted is done, or gives what is not.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<(), Standing> {
        self.hurry();
        self.retry();
        self.0.unsealed.wait(timeout)
    }

    /// Waits until fewer than so many versions are not sealed; says whether that is so.
    pub(crate) fn wait_below(&self, most: usize, until: Instant) -> bool {
        self.0.unsealed.wait_below(most, until)
    }

    /// The errno for an operation that has waited in vain for the seal of this inode.
    pub(crate) fn errno(&self, ino: u64) -> rustix::io::Errno {
        self.0.unsealed.errno(ino)
    }
}

impl Worker {
    /// Puts a version in its lane.
    fn queue(self: &Arc<Self>, version: Version) {
        let element = version.element();
        let lane = {
            let mut lanes = self.lanes.lock();
            let lane = lanes.entry(element).or_insert_with(|| self.lane());
            lane.clone()
        };
        if lane.versions.send(version).is_err() {
            tracing::debug!("a version was closed after the end of the mount: the server seals it");
        }
    }

    fn lane(self: &Arc<Self>) -> Lane {
        // Unbounded: what is in it is bounded by the open files of this host.
        let (versions, queue) = mpsc::unbounded_channel();
        let hurry = Arc::new(Notify::new());
        self.backend
            .runtime
            .spawn(self.clone().run(queue, hurry.clone()));
        Lane { versions, hurry }
    }

    async fn run(self: Arc<Self>, mut queue: mpsc::UnboundedReceiver<Version>, hurry: Arc<Notify>) {
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

    /// Waits until the bytes of a file on another host are there.
    async fn arrive(self: Arc<Self>, version: Version) {
        if version.job.object.flushed().await.is_err() {
            // Whoever wrote them was told so, at the write, `fsync` or close.
            self.unsealed.lost(
                version.job.object.id,
                "not all of it has reached its element",
            );
            let path = self.path(&version.job);
            tracing::warn!(
                path,
                "a file is sealed at the length that reached its element"
            );
        }
        self.queue(version);
    }

    /// Ends versions whose bytes are where they belong. What was refused with others is asked for alone.
    async fn end(self: &Arc<Self>, versions: Vec<Version>) {
        let (alone, together): (Vec<_>, Vec<_>) = versions.into_iter().partition(|v| v.alone);
        self.end_batch(together).await;
        for version in alone {
            self.end_batch(vec![version]).await;
        }
    }

    async fn end_batch(self: &Arc<Self>, versions: Vec<Version>) {
        let mut ready = Vec::new();
        match versions.first().and_then(Version::element) {
            Some(element) => self.at_element(element, versions, &mut ready).await,
            None => ready = versions,
        }
        self.at_server(ready).await;
    }

    /// Lets an element seal objects. Rights that have run out are got anew once.
    async fn at_element(
        self: &Arc<Self>,
        element: u32,
        versions: Vec<Version>,
        ready: &mut Vec<Version>,
    ) {
        let refused = self.seal_all(element, versions, ready).await;
        if refused.is_empty() {
            return;
        }
        let until = Some(patience::now() + ATTEMPT);
        for version in &refused {
            let job = &version.job;
            if let Err(error) = version.part().right.renew(&self.backend, until).await {
                tracing::debug!(ino = job.ino, "no new right to seal: {error}");
            }
        }
        let refused = self.seal_all(element, refused, ready).await;
        self.later(
            refused,
            &refusal(element, 403, "it refuses the right to seal"),
        );
    }

    /// Lets an element seal objects; gives back those whose capability it refuses.
    async fn seal_all(
        self: &Arc<Self>,
        element: u32,
        versions: Vec<Version>,
        ready: &mut Vec<Version>,
    ) -> Vec<Version> {
        // Before the seal: the element's own change of the file must not count.
        let stats = versions.iter().map(|v| v.part().stat());
        let stats: Vec<_> = stats.map(Result::unwrap_or_default).collect();
        let items: Vec<_> = versions.iter().map(|v| self.item(v)).collect();
        let results = match self.ask_element(element, &items).await {
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
                        self.say_lost(&version.job, &format!("it has {} bytes there", result.size));
                    }
                    if version.is_sealed(result.size, stat.mtime) {
                        ready.push(version);
                    } else {
                        self.queue(version);
                    }
                }
                Some(result) if result.status == 403 => refused.push(version),
                Some(result) => {
                    let why = refusal(element, result.status, &result.message);
                    self.later(vec![version], &why);
                }
                None => self.later(vec![version], &ClientError::Answer("seal")),
            }
        }
        refused
    }

    fn item(&self, version: &Version) -> SealItem {
        let (job, part) = (&version.job, version.part());
        let path = self.table.path(job.ino).unwrap_or_default();
        let bytes = part.right.capability();
        let mut capability = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            let _ = write!(capability, "{byte:02x}");
        }
        SealItem {
            object: part.id,
            capability,
            body: SealBody {
                inode: job.ino,
                path: escaped(&path),
                uid: job.attr.uid,
                gid: job.attr.gid,
                mode: job.attr.mode,
                durable: false,
                // A program says itself that it has closed its descriptor.
                lost: self.backend.lends() && job.object.local().is_some(),
                part: version.part_of().map(PartOf::to_bytes),
            },
        }
    }

    async fn ask_element(
        &self,
        element: u32,
        items: &[SealItem],
    ) -> Result<Vec<SealResult>, ClientError> {
        let end = Instant::now() + ATTEMPT;
        let url = match self
            .backend
            .find(element, Some(patience::now() + FIND))
            .await
        {
            Ok(place) => place.url,
            // A server that has just started may not know it yet.
            Err(error) => self.backend.last_url(element).ok_or(error)?,
        };
        let objects = &self.backend.objects;
        let asked = objects.seal_all(ElementId(element), &url, items);
        let answer = tokio::time::timeout_at(end.into(), asked).await;
        let answer = answer.unwrap_or_else(|_| Err(right::silent(&url)));
        if answer.as_ref().is_err_and(ClientError::is_lost) {
            // It may come back elsewhere.
            self.backend.forget_element(element);
        }
        answer
    }

    /// Tells the server. An operation that fails ends its request, so the rest is sent again without it.
    async fn at_server(self: &Arc<Self>, versions: Vec<Version>) {
        let mut rest = versions;
        while !rest.is_empty() {
            let ops = rest.iter().map(Version::op).collect();
            let until = Some(patience::now() + ATTEMPT);
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

    fn conclude(self: &Arc<Self>, version: Version, answer: Answer) {
        let attr = match (version.sealed, answer) {
            (_, Answer::Copying(_)) => return self.after(vec![version], COPYING),
            (_, Answer::Error(error)) if !is_final(error.errno) => {
                return self.later(vec![version], &ClientError::from(error));
            }
            (sealed, Answer::Error(error)) => {
                // A file that was removed meanwhile needs no seal.
                if sealed.is_some() && error.errno != libc::ENOENT {
                    self.say_lost(&version.job, &error.message);
                }
                None
            }
            (None, _) => None,
            (Some(_), Answer::Attr(attr)) => {
                if let Some(together) = version.job.object.together() {
                    together.part_sealed();
                }
                Some(attr)
            }
            (Some((size, mtime)), _) => {
                let job = &version.job;
                let known = self.table.get(job.ino);
                let mut attr = known.map_or(job.attr, |node| node.state.lock().attr);
                attr.object = job.object.id;
                attr.element = job.object.place();
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

    /// Tries again after a pause, or when something is back that was away.
    fn later(self: &Arc<Self>, mut versions: Vec<Version>, why: &ClientError) {
        let Some(pause) = versions.iter().map(|version| version.pause).max() else {
            return;
        };
        // One of them may be what is not taken.
        let alone = versions.len() > 1 && !why.is_lost();
        for version in &mut versions {
            version.alone |= alone;
            version.pause = (version.pause * 2).min(PAUSE_MAX);
            let first = self.unsealed.failed(version.job.object.id, why);
            if first {
                let path = self.path(&version.job);
                tracing::warn!(
                    path,
                    "closed files can't be sealed now; they are tried again (see .tidemill/status): {why}"
                );
            }
        }
        self.after(versions, pause);
    }

    /// Goes on with versions after a pause, or when something is back that was away.
    fn after(self: &Arc<Self>, versions: Vec<Version>, pause: Duration) {
        let worker = self.clone();
        self.backend.runtime.spawn(async move {
            let _ = tokio::time::timeout(pause, worker.again.notified()).await;
            for version in versions {
                worker.queue(version);
            }
        });
    }

    /// Bytes that `close` acknowledged will never be seen.
    fn say_lost(&self, job: &Job, why: &str) {
        self.unsealed.lost(job.object.id, why);
        tracing::error!(
            path = self.path(job),
            object = format_args!("{:016x}", job.object.id),
            element = job.object.place(),
            "what was written to a file is not all in the array: {why}"
        );
    }

    fn path(&self, job: &Job) -> String {
        match self.table.path(job.ino) {
            Some(path) => String::from_utf8_lossy(&path).into_owned(),
            None => format!("inode {}", job.ino),
        }
    }

    /// Ends the writing of a version in the table; the attributes are asked for again if unknown.
    fn finish(&self, job: &Job, attr: Option<Attr>) {
        if let Some(node) = self.table.get(job.ino) {
            let mut state = node.state.lock();
            state.writing = None;
            state.kept = None;
            state.stamp = self.table.tick();
            match attr {
                // Another mount has sealed a version since, and that is known: this answer was slow.
                Some(sealed) if sealed.version < state.attr.version => {}
                // Only what the seal changed: a chmod may have overtaken this answer on its way here.
                Some(sealed) if state.attr.ino == sealed.ino => {
                    let attr = &mut state.attr;
                    attr.object = sealed.object;
                    attr.element = sealed.element;
                    attr.parts = sealed.parts;
                    attr.size = sealed.size;
                    attr.mtime = sealed.mtime;
                    attr.ctime = attr.ctime.max(sealed.ctime);
                    attr.version = sealed.version;
                    attr.writing = sealed.writing;
                    attr.together = sealed.together;
                }
                Some(sealed) => state.attr = sealed,
                None => state.fresh = None,
            }
            node.changed.notify_all();
        }
        self.table.drop_unused(job.ino);
        self.unsealed.done(job.object.id);
    }
}

fn refusal(element: u32, status: u16, message: &str) -> ClientError {
    ClientError::ElementRefused {
        url: format!("number {element}"),
        status,
        message: message.to_owned(),
    }
}

/// Whether this is the server's last word on a version: another writer has taken over, the file is gone, or the
/// seal is nothing that it could ever carry out. Anything else may be different later.
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

impl Version {
    /// The element that has to seal it first.
    fn element(&self) -> Option<u32> {
        let unsealed = self.job.ending == Ending::Seal && self.sealed.is_none();
        unsealed.then_some(self.part().element)
    }

    /// The object that is sealed next.
    fn part(&self) -> &Object {
        let next = self.job.object.parts().nth(self.lengths.len());
        next.unwrap_or(&self.job.object)
    }

    /// What that is a part of.
    fn part_of(&self) -> Option<PartOf> {
        let striped = match &self.job.object.data {
            Data::Striped(striped) => striped,
            Data::Together(together) => return together.part_of(),
            _ => return None,
        };
        let version = ObjectId(self.job.object.id);
        Some(striped.part_of(version, self.lengths.len()))
    }

    /// An element has sealed the next one; says whether it was the last.
    fn is_sealed(&mut self, length: u64, mtime: i64) -> bool {
        self.lengths.push(length);
        if !self.job.object.is_striped() {
            self.sealed = Some((length, mtime));
        } else if self.lengths.len() == self.job.object.parts().count() {
            // The server reckons by the lengths how long the file is.
            let stat = self.job.object.stat().unwrap_or_default();
            self.sealed = Some((stat.size, stat.mtime));
        }
        self.sealed.is_some()
    }

    fn op(&self) -> Op {
        let (ino, object) = (self.job.ino, self.job.object.id);
        let (told, base) = match (self.job.object.together(), self.sealed) {
            (Some(together), Some(_)) => together.last_word(),
            _ => (Vec::new(), None),
        };
        match self.sealed {
            Some((size, mtime)) => Op::Seal(v1::Seal {
                told,
                base,
                ino,
                object,
                size,
                mtime,
                attributes: self.job.pending.map(|pending| pending.told(ino)),
                copies: String::new(),
                parts: match self.job.object.is_striped() {
                    true => self.lengths.clone(),
                    false => Vec::new(),
                },
            }),
            None => Op::Abandon(v1::Abandon { ino, object }),
        }
    }
}
