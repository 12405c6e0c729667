//! Seals versions after their last close, many at a time: first the element, which keeps the bytes, then the
//! server, which switches the name.

use super::Caller;
use super::backend::Backend;
use super::object::{Data, Object};
use super::table::Table;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_client::objects::Remote as Address;
use tidemill_core::id::ObjectId;
use tidemill_wire::route::SealBody;
use tidemill_wire::v1::{self, Attr, name_op::Op, name_result::Result as Answer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Versions sealed in one request to the server.
const BATCH_MAX: usize = 256;
/// Seals asked of elements at once.
const ELEMENT_SEALS_MAX: usize = 16;
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
        backend.runtime.spawn(worker.run(queue));
        Self { jobs, pending }
    }

    pub(crate) fn submit(&self, job: Job) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        if self.jobs.send(job).is_err() {
            self.pending.fetch_sub(1, Ordering::AcqRel);
            tracing::error!("a version was closed after the end of the mount: the server will seal it");
        }
    }

    /// Waits until everything submitted is done; says whether it is.
    pub(crate) fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
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
    async fn run(self, mut queue: mpsc::UnboundedReceiver<Job>) {
        let mut batch = Vec::new();
        let worker = Arc::new(self);
        let mut running = JoinSet::new();
        while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
            // Remote bytes and lost elements take long: those must not hold up the rest.
            let (slow, fast): (Vec<_>, Vec<_>) =
                std::mem::take(&mut batch).into_iter().partition(|job| job.object.waits());
            for job in slow {
                running.spawn(worker.clone().batch(vec![job]));
            }
            if !fast.is_empty() {
                worker.clone().batch(fast).await;
            }
            while running.try_join_next().is_some() {}
        }
        while running.join_next().await.is_some() {}
    }

    async fn batch(self: Arc<Self>, jobs: Vec<Job>) {
        let mut ready = Vec::with_capacity(jobs.len());
        let mut asking = JoinSet::new();
        for job in jobs {
            if job.ending == Ending::Abandon {
                ready.push(Ready { job, sealed: None });
                continue;
            }
            if asking.len() >= ELEMENT_SEALS_MAX {
                self.collect(&mut asking, &mut ready).await;
            }
            let worker = self.clone();
            asking.spawn(async move {
                let answer = worker.at_element(&job).await;
                (job, answer)
            });
        }
        while !asking.is_empty() {
            self.collect(&mut asking, &mut ready).await;
        }
        self.at_server(ready).await;
    }

    async fn collect(
        &self,
        asking: &mut JoinSet<(Job, Result<(u64, i64), ClientError>)>,
        ready: &mut Vec<Ready>,
    ) {
        match asking.join_next().await {
            Some(Ok((job, Ok(sealed)))) => ready.push(Ready {
                job,
                sealed: Some(sealed),
            }),
            Some(Ok((job, Err(error)))) => {
                tracing::error!(
                    ino = job.ino,
                    "a version could not be sealed; its bytes stay on its element until the server \
                     recovers them: {error}"
                );
                self.finish(&job, None);
            }
            Some(Err(panic)) => tracing::error!("sealing stopped: {panic}"),
            None => {}
        }
    }

    /// Lets the element seal the object; gives length and mtime.
    async fn at_element(&self, job: &Job) -> Result<(u64, i64), ClientError> {
        if job.object.waits() {
            let object = job.object.clone();
            let flushed = tokio::task::spawn_blocking(move || object.flush()).await;
            if !matches!(flushed, Ok(Ok(()))) {
                tracing::warn!(ino = job.ino, "a file is sealed at the length that reached its element");
            }
        }
        let stat = job.object.stat().unwrap_or_default();
        let address = match &job.object.data {
            Data::Remote(remote) => remote.address().clone(),
            _ => self.address(job).await?,
        };
        let path = self.table.path(job.ino).unwrap_or_default();
        let body = SealBody {
            inode: job.ino,
            path: String::from_utf8_lossy(&path).into_owned(),
            uid: job.attr.uid,
            gid: job.attr.gid,
            mode: job.attr.mode,
            durable: false,
        };
        let start = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            match self.backend.objects.seal(&address, &body).await {
                Ok(size) => return Ok((size, stat.mtime)),
                Err(error @ ClientError::Element { .. }) if start.elapsed() < PATIENCE => {
                    tracing::debug!("waiting for an element to seal: {error}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn address(&self, job: &Job) -> Result<Address, ClientError> {
        let (backend, element) = (self.backend.clone(), job.object.element);
        let found = match backend.place(element, super::Pace::Now) {
            Ok(place) => Ok(place),
            Err(_) => {
                let asked = tokio::task::spawn_blocking(move || {
                    backend.place(element, super::Pace::MayWait)
                });
                asked.await.unwrap_or(Err(crate::error::Error::Later))
            }
        };
        let down = ClientError::ElementDown(tidemill_core::id::ElementId(element));
        let place = found.map_err(|_| down)?;
        Ok(Address {
            url: place.url,
            object: ObjectId(job.object.id),
            capability: job.object.capability.clone(),
        })
    }

    /// Tells the server. An operation that fails ends its request, so the rest is sent again without it.
    async fn at_server(&self, ready: Vec<Ready>) {
        let mut rest = ready;
        while !rest.is_empty() {
            let ops = rest.iter().map(Ready::op).collect();
            let answers = match self.backend.apply_async(rest[0].job.caller, ops, false).await {
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
                Some(attr) => state.attr = attr,
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
