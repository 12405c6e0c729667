//! Seals versions after their last close, many at a time: first the element, which keeps the bytes, then the
//! server, which switches the name.

use super::Caller;
use super::backend::Backend;
use super::object::Object;
use super::table::Table;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_core::id::ElementId;
use tidemill_wire::route::{SealBody, SealItem, SealResult};
use tidemill_wire::v1::{self, Attr, name_op::Op, name_result::Result as Answer};
use tokio::sync::{Notify, Semaphore, mpsc};

/// Versions sealed in one request to the server.
const BATCH_MAX: usize = 256;
/// How long a version waits for others to be sealed with it, unless somebody waits for it.
const GATHER: Duration = Duration::from_millis(8);
/// Batches under way at once.
const BATCHES_MAX: usize = 2;
/// How long an element that can't be reached is asked again.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause before that, doubled up to [`PAUSE_MAX`].
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
}

/// What becomes of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It becomes the file's current one.
    Seal,
    /// It is dropped.
    Abandon,
}

/// The task that seals.
#[derive(Debug)]
pub(crate) struct Sealer {
    jobs: mpsc::UnboundedSender<Job>,
    pending: Arc<AtomicUsize>,
    hurry: Arc<Notify>,
}

struct Worker {
    backend: Arc<Backend>,
    table: Arc<Table>,
    pending: Arc<AtomicUsize>,
}

/// A job whose bytes are final.
struct Ready {
    job: Job,
    /// Length and mtime; `None` if the version is dropped.
    sealed: Option<(u64, i64)>,
}

impl Sealer {
    pub(crate) fn start(backend: Arc<Backend>, table: Arc<Table>) -> Self {
        // Unbounded: what is in it is bounded by the open files of this host.
        let (jobs, queue) = mpsc::unbounded_channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let worker = Worker {
            backend: backend.clone(),
            table,
            pending: pending.clone(),
        };
        let hurry = Arc::new(Notify::new());
        backend.runtime.spawn(worker.run(queue, hurry.clone()));
        Self {
            jobs,
            pending,
            hurry,
        }
    }

    /// Somebody waits for what was submitted.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    pub(crate) fn submit(&self, job: Job) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        if self.jobs.send(job).is_err() {
            self.pending.fetch_sub(1, Ordering::AcqRel);
            tracing::error!(
                "a version was closed after the end of the mount: the server will seal it"
            );
        }
    }

    /// Waits until everything submitted is done; says whether it is.
    pub(crate) fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.hurry();
        while self.pending.load(Ordering::Acquire) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

impl Worker {
    async fn run(self, mut queue: mpsc::UnboundedReceiver<Job>, hurry: Arc<Notify>) {
        let worker = Arc::new(self);
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
            // Remote bytes have to be sent first: those must not hold up the rest.
            let (slow, fast): (Vec<_>, Vec<_>) = std::mem::take(&mut batch)
                .into_iter()
                .partition(|job| job.object.waits());
            for job in slow {
                tokio::spawn(worker.clone().remote(job));
            }
            if fast.is_empty() {
                continue;
            }
            let Ok(turn) = turns.clone().acquire_owned().await else {
                return;
            };
            let worker = worker.clone();
            tokio::spawn(async move {
                worker.local(fast).await;
                drop(turn);
            });
        }
    }

    /// Ends the version of a file on another host.
    async fn remote(self: Arc<Self>, job: Job) {
        if job.ending == Ending::Seal {
            let object = job.object.clone();
            let flushed = tokio::task::spawn_blocking(move || object.flush()).await;
            if !matches!(flushed, Ok(Ok(()))) {
                tracing::warn!(
                    ino = job.ino,
                    "a file is sealed at the length that reached its element"
                );
            }
        }
        self.local(vec![job]).await;
    }

    /// Ends versions whose bytes are where they belong.
    async fn local(&self, jobs: Vec<Job>) {
        let mut ready = Vec::with_capacity(jobs.len());
        let mut by_element: BTreeMap<u32, Vec<(Job, i64)>> = BTreeMap::new();
        for job in jobs {
            if job.ending == Ending::Abandon {
                ready.push(Ready { job, sealed: None });
            } else {
                // Before the seal: the element's own change of the file must not count.
                let mtime = job.object.stat().unwrap_or_default().mtime;
                by_element
                    .entry(job.object.element)
                    .or_default()
                    .push((job, mtime));
            }
        }
        for (element, jobs) in by_element {
            self.at_element(element, jobs, &mut ready).await;
        }
        self.at_server(ready).await;
    }

    /// Lets an element seal objects. Rights that have run out are got anew once.
    async fn at_element(&self, element: u32, jobs: Vec<(Job, i64)>, ready: &mut Vec<Ready>) {
        let mut refused = self.seal_all(element, jobs, ready).await;
        if refused.is_empty() {
            return;
        }
        for (job, _) in &refused {
            if let Err(error) = job.object.right.renew(&self.backend).await {
                tracing::debug!(ino = job.ino, "no new right to seal: {error}");
            }
        }
        refused = self.seal_all(element, refused, ready).await;
        for (job, _) in &refused {
            self.give_up(job, "the element refuses its capability");
        }
    }

    /// Lets an element seal objects; gives back those whose capability it refuses.
    async fn seal_all(
        &self,
        element: u32,
        jobs: Vec<(Job, i64)>,
        ready: &mut Vec<Ready>,
    ) -> Vec<(Job, i64)> {
        let items: Vec<_> = jobs.iter().map(|(job, _)| self.item(job)).collect();
        let results = match self.ask_element(element, &items).await {
            Ok(results) => results,
            Err(error) => {
                for (job, _) in &jobs {
                    self.give_up(job, &error.to_string());
                }
                return Vec::new();
            }
        };
        let results: BTreeMap<u64, SealResult> = results
            .into_iter()
            .map(|result| (result.object, result))
            .collect();
        let mut refused = Vec::new();
        for (job, mtime) in jobs {
            match results.get(&job.object.id) {
                Some(result) if result.status == 200 => {
                    let sealed = Some((result.size, mtime));
                    ready.push(Ready { job, sealed });
                }
                Some(result) if result.status == 403 => refused.push((job, mtime)),
                Some(result) => self.give_up(&job, &result.message),
                None => self.give_up(&job, "the element did not answer for it"),
            }
        }
        refused
    }

    fn item(&self, job: &Job) -> SealItem {
        let path = self.table.path(job.ino).unwrap_or_default();
        let bytes = job.object.right.capability();
        let mut capability = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            let _ = write!(capability, "{byte:02x}");
        }
        SealItem {
            object: job.object.id,
            capability,
            body: SealBody {
                inode: job.ino,
                path: String::from_utf8_lossy(&path).into_owned(),
                uid: job.attr.uid,
                gid: job.attr.gid,
                mode: job.attr.mode,
                durable: false,
                lost: false,
            },
        }
    }

    /// Asks an element, for a while if it can't be reached: it may be about to come back, elsewhere perhaps.
    async fn ask_element(
        &self,
        element: u32,
        items: &[SealItem],
    ) -> Result<Vec<SealResult>, ClientError> {
        let start = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let url = self.backend.url(element).await?;
            match self
                .backend
                .objects
                .seal_all(ElementId(element), &url, items)
                .await
            {
                Err(error) if error.is_lost() && start.elapsed() < PATIENCE => {
                    tracing::debug!("waiting for an element to seal: {error}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    self.backend.forget_element(element);
                }
                other => return other,
            }
        }
    }

    fn give_up(&self, job: &Job, why: &str) {
        tracing::error!(
            ino = job.ino,
            "a version could not be sealed; its bytes stay on its element until the server recovers \
             them: {why}"
        );
        self.finish(job, None);
    }

    /// Tells the server. An operation that fails ends its request, so the rest is sent again without it.
    async fn at_server(&self, ready: Vec<Ready>) {
        let mut rest = ready;
        while !rest.is_empty() {
            let ops = rest.iter().map(Ready::op).collect();
            let answers = match self
                .backend
                .apply_async(rest[0].job.caller, ops, false)
                .await
            {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::error!("versions could not be named at the server: {error}");
                    for Ready { job, .. } in rest {
                        self.finish(&job, None);
                    }
                    return;
                }
            };
            let done = answers.len().clamp(1, rest.len());
            let later = rest.split_off(done);
            for (ready, answer) in rest.into_iter().zip(answers) {
                if let Answer::Error(error) = &answer {
                    tracing::debug!(ino = ready.job.ino, "not sealed: {}", error.message);
                }
                self.conclude(ready, answer);
            }
            rest = later;
        }
    }

    fn conclude(&self, ready: Ready, answer: Answer) {
        let attr = match (&ready.sealed, answer) {
            (_, Answer::Error(_)) | (None, _) => None,
            (Some(_), Answer::Attr(attr)) => Some(attr),
            (Some((size, mtime)), _) => {
                let mut attr = self
                    .table
                    .get(ready.job.ino)
                    .map_or(ready.job.attr, |node| node.state.lock().attr);
                attr.object = ready.job.object.id;
                attr.element = ready.job.object.element;
                attr.size = *size;
                attr.mtime = *mtime;
                attr.version += 1;
                attr.writing = false;
                Some(attr)
            }
        };
        self.finish(&ready.job, attr);
    }

    /// Ends the writing of a version in the table; the attributes are asked for again if unknown.
    fn finish(&self, job: &Job, attr: Option<Attr>) {
        if let Some(node) = self.table.get(job.ino) {
            let mut state = node.state.lock();
            state.writing = None;
            state.stamp = self.table.tick();
            match attr {
                // Only what the seal changed: a chmod may have overtaken this answer on its way here.
                Some(sealed) if state.attr.ino == sealed.ino => {
                    let attr = &mut state.attr;
                    attr.object = sealed.object;
                    attr.element = sealed.element;
                    attr.size = sealed.size;
                    attr.mtime = sealed.mtime;
                    attr.ctime = attr.ctime.max(sealed.ctime);
                    attr.version = sealed.version;
                    attr.writing = sealed.writing;
                }
                Some(sealed) => state.attr = sealed,
                None => state.fresh = None,
            }
            node.changed.notify_all();
        }
        self.table.drop_unused(job.ino);
        self.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Ready {
    fn op(&self) -> Op {
        let (ino, object) = (self.job.ino, self.job.object.id);
        match self.sealed {
            Some((size, mtime)) => Op::Seal(v1::Seal {
                ino,
                object,
                size,
                mtime,
            }),
            None => Op::Abandon(v1::Abandon { ino, object }),
        }
    }
}
