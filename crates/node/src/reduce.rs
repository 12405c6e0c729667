//! Reductions of arrays on the node that stores their bytes: limits of users, and child processes (`docs/reductions.md`).
//!
//! A child process belongs to one user. The child process serves requests until it has been idle for a time or has served a maximum number
//! of requests. So an effect of a request on its child process is not visible to other users.

use crate::executor::ExecutorParts;
use crate::store::{ReadAt, StoreError};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_client::concurrency_limit::{Busy, UserPermits};
use tidemill_compute::work::{ReducerError, ReducerWork, SENT_BYTES_MAX, StoredBytes};
use tidemill_model::id::ObjectId;
use tidemill_model::label::Owner;
use tidemill_sandbox::reduce_workers::{CHILD_MAX, ReduceError, Reducing};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum time that a request waits for a free core.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum idle time of a child process.
const IDLE_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Maximum number of requests that one child process serves.
const REQUESTS_MAX: u32 = 100_000;

/// Maximum number of idle child processes per core.
const IDLE_PER_CORE: usize = 2;

/// Maximum length in bytes of a request's body: the order, and bytes of other nodes.
pub(crate) const BODY_BYTES_MAX: usize = SENT_BYTES_MAX + (5 << 20);

/// Reason why a reduction failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReduceTrouble {
    #[error(transparent)]
    Busy(#[from] Busy),
    #[error("this node has reached its limit of concurrent reductions: retry")]
    Full,
    #[error("the request is malformed")]
    Malformed,
    #[error("{0}")]
    Request(String),
    #[error("bytes {1} to {2} of object {0:016x}: {3}")]
    Data(u64, u64, u64, String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Child(ReduceError),
}

/// Idle child process.
#[derive(Debug)]
struct Idle {
    owner: Owner,
    child: Reducing,
    born: Instant,
    since: Instant,
    served: u32,
}

/// Child processes of a node that reduce arrays.
#[derive(Debug)]
pub(crate) struct Reducers {
    parts: Arc<ExecutorParts>,
    of_each: UserPermits,
    of_all: Arc<Semaphore>,
    idle: Mutex<VecDeque<Idle>>,
    idle_max: usize,
    next: AtomicU64,
    watched: AtomicBool,
}

/// Permission to reduce one array.
#[derive(Debug)]
pub(crate) struct ReducePermit {
    _own: OwnedSemaphorePermit,
    _any: OwnedSemaphorePermit,
}

impl Reducers {
    pub(crate) fn new(parts: Arc<ExecutorParts>, cores: u32) -> Self {
        let cores = usize::try_from(cores.max(1)).unwrap_or(1);
        Self {
            parts,
            of_each: UserPermits::with_patience(cores, PATIENCE),
            of_all: Arc::new(Semaphore::new(cores)),
            idle: Mutex::default(),
            idle_max: cores * IDLE_PER_CORE,
            next: AtomicU64::new(0),
            watched: AtomicBool::new(false),
        }
    }

    /// Waits until the user may start another reduction.
    pub(crate) async fn turn(&self, owner: Owner) -> Result<ReducePermit, ReduceTrouble> {
        let own = self.of_each.take(owner.uid).await?;
        let any = tokio::time::timeout(PATIENCE, self.of_all.clone().acquire_owned()).await;
        let any = any.ok().and_then(Result::ok).ok_or(ReduceTrouble::Full)?;
        Ok(ReducePermit {
            _own: own,
            _any: any,
        })
    }

    /// Reduces values whose bytes are at least partly in an object. Returns the result in postcard format. `body` contains a length, the
    /// order (with `batch` a batch of orders) of this length, and the bytes that the client sends with the order. Blocks.
    pub(crate) fn reduce(
        &self,
        owner: Owner,
        object: ObjectId,
        (body, batch): (&[u8], bool),
    ) -> Result<Vec<u8>, ReduceTrouble> {
        let (work, sent) = parse(body, batch)?;
        let refused = |trouble: ReducerError| self.refused(object, &work, trouble);
        if work.check().map_err(refused)? != sent.len() as u64 {
            return Err(ReduceTrouble::Malformed);
        }
        let opened = self.parts.store.open(object)?;
        if !opened.stat.sealed {
            return Err(StoreError::NotFound { object }.into());
        }
        if let Some(end) = work
            .pieces()
            .find_map(|piece| beyond(piece, opened.stat.size))
        {
            let (size, what) = (opened.stat.size, "they are beyond its end");
            return Err(ReduceTrouble::Data(object.0, size, end, what.to_owned()));
        }
        let made = match opened.bytes.file() {
            Some(file) => self.by_child(owner, &work, file, sent),
            None => {
                let (work, sent) = gathered(work.clone(), &*opened.bytes, sent)
                    .map_err(|error| ReduceTrouble::Request(error.to_string()))?;
                let nothing = File::open("/dev/null").map_err(ReduceError::Socket);
                nothing.and_then(|nothing| self.by_child(owner, &work, &nothing, &sent))
            }
        };
        made.map_err(|error| match error {
            ReduceError::Refused(trouble) => refused(trouble),
            error => ReduceTrouble::Child(error),
        })
    }

    fn by_child(
        &self,
        owner: Owner,
        work: &ReducerWork,
        file: &File,
        sent: &[u8],
    ) -> Result<Vec<u8>, ReduceError> {
        loop {
            let mut child = self.child(owner)?;
            let made = child.child.carry_out(work, file, sent);
            let used = child.served > 0;
            self.put(child);
            match made {
                // The child may have ended while it was idle; a new one is started.
                Err(ReduceError::Ended(_)) if used => {}
                made => return made,
            }
        }
    }

    fn refused(
        &self,
        object: ObjectId,
        work: &ReducerWork,
        trouble: ReducerError,
    ) -> ReduceTrouble {
        let held = work.pieces().filter_map(|piece| match piece {
            StoredBytes::Held { offset, length } => Some((*offset, offset + length)),
            _ => None,
        });
        match held.reduce(|(start, _), (_, end)| (start, end)) {
            Some((start, end)) if trouble.of_data => {
                ReduceTrouble::Data(object.0, start, end, trouble.message)
            }
            _ => ReduceTrouble::Request(trouble.message),
        }
    }

    fn child(&self, owner: Owner) -> Result<Idle, ReduceError> {
        let mut idle = self.idle.lock();
        let found = idle.iter().rposition(|idle| idle.owner == owner);
        if let Some(idle) = found.and_then(|place| idle.remove(place)) {
            return Ok(idle);
        }
        drop(idle);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let directory = self
            .parts
            .directory
            .join("run")
            .join(format!("reduce-{number}"));
        Ok(Idle {
            owner,
            child: self.parts.runner.start_reducing(&directory, owner)?,
            born: Instant::now(),
            since: Instant::now(),
            served: 0,
        })
    }

    fn put(&self, mut used: Idle) {
        (used.since, used.served) = (Instant::now(), used.served + 1);
        if used.served >= REQUESTS_MAX || used.born.elapsed() >= CHILD_MAX || !used.child.is_there()
        {
            return;
        }
        let mut idle = self.idle.lock();
        idle.push_back(used);
        // The child that has waited longest is ended.
        let ended = (idle.len() > self.idle_max).then(|| idle.pop_front());
        drop(idle);
        drop(ended);
    }

    /// Removes the child processes that have been idle for too long. Returns them, and whether no child process remains.
    fn take_idle(&self) -> (Vec<Idle>, bool) {
        let mut idle = self.idle.lock();
        let place = idle.partition_point(|idle| idle.since.elapsed() >= IDLE_MAX);
        let ended = idle.drain(..place).collect();
        if idle.is_empty() {
            self.watched.store(false, Ordering::Release);
        }
        (ended, idle.is_empty())
    }

    /// Starts a task that ends child processes that have been idle for too long. The task runs until no child process remains.
    pub(crate) fn watch(self: &Arc<Self>) {
        if self.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let reducers = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let (ended, done) = reducers.take_idle();
                let _ = tokio::task::spawn_blocking(move || drop(ended)).await;
                if done {
                    return;
                }
            }
        });
    }
}

fn beyond(piece: &StoredBytes, size: u64) -> Option<u64> {
    match piece {
        StoredBytes::Held { offset, length } => {
            Some(offset.saturating_add(*length)).filter(|end| *end > size)
        }
        _ => None,
    }
}

fn parse(body: &[u8], batch: bool) -> Result<(ReducerWork, &[u8]), ReduceTrouble> {
    let (length, rest) = body
        .split_first_chunk::<4>()
        .ok_or(ReduceTrouble::Malformed)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (order, sent) = rest
        .split_at_checked(length)
        .ok_or(ReduceTrouble::Malformed)?;
    let work = match batch {
        true => postcard::from_bytes(order).map(ReducerWork::Batch),
        false => postcard::from_bytes(order).map(ReducerWork::Array),
    };
    Ok((work.map_err(|_| ReduceTrouble::Malformed)?, sent))
}

/// Converts work on a file to work without a file, which contains the bytes of the file.
fn gathered(
    work: ReducerWork,
    bytes: &dyn ReadAt,
    mut sent: &[u8],
) -> std::io::Result<(ReducerWork, Vec<u8>)> {
    let mut all = Vec::new();
    let pieces = work.pieces().map(|piece| {
        Ok(match piece {
            StoredBytes::Held { offset, length } => {
                let start = all.len();
                all.resize(
                    start + usize::try_from(*length).map_err(std::io::Error::other)?,
                    0,
                );
                let read = bytes.read_at(*offset, &mut all[start..])?;
                if (read as u64) < *length {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                StoredBytes::Sent(*length)
            }
            StoredBytes::Sent(length) => {
                let count = usize::try_from(*length)
                    .unwrap_or(usize::MAX)
                    .min(sent.len());
                let (now, later) = sent.split_at(count);
                all.extend_from_slice(now);
                sent = later;
                *piece
            }
            StoredBytes::Hole(_) => *piece,
        })
    });
    let pieces: Vec<StoredBytes> = pieces.collect::<std::io::Result<_>>()?;
    Ok((work.moved(pieces), all))
}
