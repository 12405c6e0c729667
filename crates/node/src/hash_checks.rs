//! Comparison of objects with hashes that clients send. The node reads an object once for all concurrent clients. The module starts threads
//! that read the store and write hashes to the database.
//!
//! A client that may read an object may ask whether the object has a hash. The node stores only the hash that it computes. One thread at a
//! time reads an object, for all clients that ask during this time. Each user has at most one such thread, and the node at most
//! [`RUNS_MAX`]. The read stops when none of its clients is connected any more.

use crate::executor::ExecutorParts;
use crate::http::HttpRefusal;
use crate::records::Hash;
use crate::scrub::{self, ScrubError, ScrubResult};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::concurrency_limit::UserPermits;
use tidemill_model::id::ObjectId;
use tokio::sync::{Semaphore, watch};

/// Maximum number of objects that are read concurrently.
const RUNS_MAX: usize = 8;
/// Maximum time that a client waits for the start of its read, because earlier reads may be of large objects.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Time for which a verified object is not read again for another hash.
const RECENT: Duration = Duration::from_secs(600);
/// Maximum number of objects that are remembered as verified.
const RECENT_MAX: usize = 4096;

/// Comparisons of objects with hashes that a node runs.
#[derive(Debug)]
pub(crate) struct HashChecks {
    runs: Mutex<HashMap<ObjectId, Arc<ConfirmRead>>>,
    turns: UserPermits,
    threads: Arc<Semaphore>,
    /// Verified objects, each with the time at which it was read.
    recent: Mutex<VecDeque<(ObjectId, Instant)>>,
}

/// Object that is being read.
#[derive(Debug)]
struct ConfirmRead {
    /// Number of clients that wait for the read. The number changes only while the table of reads is locked.
    askers: Mutex<usize>,
    ended: watch::Receiver<Option<Result<bool, String>>>,
}

/// Client that waits for a read; dropping this value ends the wait.
struct ConfirmClient {
    run: Arc<ConfirmRead>,
}

impl Drop for ConfirmClient {
    fn drop(&mut self) {
        *self.run.askers.lock() -= 1;
    }
}

impl ConfirmRead {
    /// Adds a client to the read; `None` if all its clients have left, so that the read ends.
    fn join(self: &Arc<Self>) -> Option<ConfirmClient> {
        let mut askers = self.askers.lock();
        if *askers == 0 {
            return None;
        }
        *askers += 1;
        let run = Arc::clone(self);
        Some(ConfirmClient { run })
    }

    fn is_left(&self) -> bool {
        *self.askers.lock() == 0
    }
}

impl Default for HashChecks {
    fn default() -> Self {
        Self {
            runs: Mutex::default(),
            turns: UserPermits::with_patience(1, PATIENCE),
            threads: Arc::new(Semaphore::new(RUNS_MAX)),
            recent: Mutex::default(),
        }
    }
}

async fn has_hash(
    parts: &Arc<ExecutorParts>,
    object: ObjectId,
    theirs: Hash,
) -> Result<bool, HttpRefusal> {
    let parts = Arc::clone(parts);
    let has = move || scrub::has_hash(&parts, object, &theirs);
    Ok(tokio::task::spawn_blocking(has).await??)
}

impl HashChecks {
    /// Returns whether an object has this hash. Dropping the future ends the wait.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        parts: &Arc<ExecutorParts>,
        (uid, object): (u32, ObjectId),
        theirs: Hash,
    ) -> Result<bool, HttpRefusal> {
        if has_hash(parts, object, theirs).await? {
            return Ok(true);
        }
        let reader = Arc::clone(parts);
        let read = move |cancelled: &dyn Fn() -> bool| scrub::compute(&reader, object, cancelled);
        Ok(self.read(uid, object, read).await? && has_hash(parts, object, theirs).await?)
    }

    /// Reads an object once for all waiting clients. Returns whether the object has its sealed content.
    async fn read(
        self: &Arc<Self>,
        uid: u32,
        object: ObjectId,
        read: impl FnOnce(&dyn Fn() -> bool) -> Result<ScrubResult, ScrubError> + Send + 'static,
    ) -> Result<bool, HttpRefusal> {
        if self.is_recent(object) {
            return Ok(true);
        }
        let joined = self.joined(object);
        let asker = match joined {
            Some(asker) => asker,
            None => {
                let turn = self.turns.take(uid).await?;
                let thread = Arc::clone(&self.threads).acquire_owned().await;
                match self.begin(object, read, (turn, thread)) {
                    Some(asker) => asker,
                    None => return Ok(true),
                }
            }
        };
        let mut ended = asker.run.ended.clone();
        let reported = ended.wait_for(Option::is_some).await;
        let reported = reported.ok().and_then(|reported| reported.clone());
        let reported = reported.unwrap_or_else(|| Err("the read ended too early".into()));
        reported.map_err(|why| ScrubError::Read(object, why).into())
    }

    fn joined(&self, object: ObjectId) -> Option<ConfirmClient> {
        self.runs.lock().get(&object)?.join()
    }

    /// Starts a thread that reads an object, or joins a read in progress. The thread holds `turn` until it ends. `None` if a thread has
    /// just read the object.
    fn begin(
        self: &Arc<Self>,
        object: ObjectId,
        read: impl FnOnce(&dyn Fn() -> bool) -> Result<ScrubResult, ScrubError> + Send + 'static,
        turn: impl Send + 'static,
    ) -> Option<ConfirmClient> {
        let mut runs = self.runs.lock();
        if let Some(asker) = runs.get(&object).and_then(ConfirmRead::join) {
            return Some(asker);
        }
        // A run is added to the recent objects before it is removed from the table.
        if self.is_recent(object) {
            return None;
        }
        let (say, ended) = watch::channel(None);
        let askers = Mutex::new(1);
        let run = Arc::new(ConfirmRead { askers, ended });
        runs.insert(object, Arc::clone(&run));
        let asker = ConfirmClient {
            run: Arc::clone(&run),
        };
        let own = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let reported = match read(&|| run.is_left()) {
                Ok(found) => Ok(matches!(found, ScrubResult::Good(_))),
                Err(ScrubError::Read(_, why)) => Err(why),
                Err(ScrubError::Db(error)) => Err(error.to_string()),
            };
            own.on_ended(object, &run, reported == Ok(true));
            say.send_replace(Some(reported));
            drop(turn);
        });
        Some(asker)
    }

    fn on_ended(&self, object: ObjectId, run: &Arc<ConfirmRead>, good: bool) {
        if good {
            let mut recent = self.recent.lock();
            recent.push_back((object, Instant::now()));
            if recent.len() > RECENT_MAX {
                recent.pop_front();
            }
        }
        let mut runs = self.runs.lock();
        if runs.get(&object).is_some_and(|now| Arc::ptr_eq(now, run)) {
            runs.remove(&object);
        }
    }

    fn is_recent(&self, object: ObjectId) -> bool {
        let mut recent = self.recent.lock();
        while recent
            .front()
            .is_some_and(|(_, read)| read.elapsed() > RECENT)
        {
            recent.pop_front();
        }
        recent.iter().any(|(known, _)| *known == object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    const GOOD: Result<ScrubResult, ScrubError> = Ok(ScrubResult::Good(1));

    async fn until(what: impl Fn() -> bool) {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_hash_checks_cause_one_read() {
        let confirms = Arc::new(HashChecks::default());
        let reads = Arc::new(AtomicUsize::new(0));
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(wait));
        let asked = (0..100_u32).map(|asker| {
            let (confirms, reads, wait) = (confirms.clone(), reads.clone(), wait.clone());
            tokio::spawn(async move {
                let read = move |_: &dyn Fn() -> bool| {
                    reads.fetch_add(1, Ordering::SeqCst);
                    let _ = wait.lock().unwrap().recv();
                    GOOD
                };
                confirms.read(asker % 10, ObjectId(5), read).await.unwrap()
            })
        });
        let asked: Vec<_> = asked.collect();
        until(|| reads.load(Ordering::SeqCst) > 0).await;
        drop(go);
        for asked in asked {
            assert!(asked.await.unwrap());
        }
        assert_eq!(reads.load(Ordering::SeqCst), 1);
        assert!(confirms.runs.lock().is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn hash_check_read_is_one_per_user_and_ends_without_clients() {
        let confirms = Arc::new(HashChecks::default());
        let begun = Arc::new(AtomicUsize::new(0));
        let ask = |uid, object| {
            let (confirms, begun) = (confirms.clone(), begun.clone());
            tokio::spawn(async move {
                let read = move |cancelled: &dyn Fn() -> bool| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    while !cancelled() {
                        std::thread::yield_now();
                    }
                    Ok(ScrubResult::Stopped)
                };
                let _ = confirms.read(uid, ObjectId(object), read).await;
            })
        };
        let first = ask(7, 1);
        until(|| begun.load(Ordering::SeqCst) == 1).await;
        let joined = ask(8, 1);
        let askers = |object| {
            let runs = confirms.runs.lock();
            let run = runs.get(&ObjectId(object));
            run.map_or(0, |run| *run.askers.lock())
        };
        until(|| askers(1) == 2).await;
        let second = ask(7, 2);
        let other = ask(9, 3);
        until(|| begun.load(Ordering::SeqCst) == 2).await;
        assert_eq!((askers(2), askers(3)), (0, 1), "user 7 has a turn already");
        first.abort();
        until(|| askers(1) == 1).await;
        joined.abort();
        until(|| begun.load(Ordering::SeqCst) == 3).await;
        assert_eq!(askers(2), 1);
        for asked in [second, other] {
            asked.abort();
        }
        until(|| confirms.runs.lock().is_empty()).await;
    }
}
