//! Timed work of the server. One task runs all chores: it looks at a chore when the chore is due or when a signal wakes it
//! ([`tidemill_meta::wakes`]), so a server without work runs no statement.
//!
//! A chore finds its work in the database. A look therefore misses nothing that was committed before, and each later commit causes another
//! look. Next: `model/src/timers.rs`, which decides the order and the pauses.

use crate::clock;
use crate::cluster::Cluster;
use crate::cluster::revocations::Revocations;
use crate::elastic::manager::{Elasticity, Manager};
use crate::jobs::DriverMessage;
use crate::jobs::expiry::Expiry;
use crate::migrations::reservations::ExpiredReservations;
use crate::removal::{Garbage, Removals};
use crate::replicas::MissingReplicas;
use crate::scrub::Scrubs;
use crate::workspaces::ExpiredWorkspaces;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_meta::wakes::{COMMIT, Wakes};
use tidemill_meta::{Fault, SqliteNames};
use tidemill_model::backoff::Backoff;
use tidemill_model::time::Time;
use tidemill_model::timers::{Signals, Timers};
use tokio::time::Instant;

/// Default for the shortest time between two looks at a chore.
const REST: Duration = Duration::from_millis(500);
/// Pause after the first failure of a chore, and (`AGAIN_MAX`) longest pause.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// Longest time without a look at a chore that is due at a time of the wall clock, since that clock may be set.
const CLOCK_MAX: Duration = Duration::from_secs(60);
/// Longest sleep of the task, far below the largest time of the runtime.
const SLEEP_MAX: Duration = Duration::from_secs(86_400);

/// Time at which a chore is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// At this time of the wall clock, in nanoseconds since the Unix epoch.
    At(i64),
    /// After this time.
    After(Duration),
    /// No work is known: only a signal causes the next look.
    Woken,
}

impl Due {
    pub(crate) const NOW: Self = Self::After(Duration::ZERO);

    /// Returns the time until the chore is due, at most the time until the wall clock is compared again.
    pub(crate) fn left(self, now: i64) -> Option<Duration> {
        match self {
            Self::Woken => None,
            Self::After(time) => Some(time),
            Self::At(at) => {
                let left = at.saturating_sub(now).max(0).unsigned_abs();
                Some(Duration::from_nanos(left).min(CLOCK_MAX))
            }
        }
    }
}

/// A due time that the database has, if there is work at all.
impl From<Option<i64>> for Due {
    fn from(at: Option<i64>) -> Self {
        at.map_or(Self::Woken, Self::At)
    }
}

/// Running work of a chore.
pub(crate) type Step<'a> = BoxFuture<'a, Result<Due, Fault>>;

/// Work that the server does from time to time.
pub(crate) trait Chore: Send {
    /// Returns the text of the log about work that a failure delays.
    fn delays(&self) -> &'static str;

    /// Returns the signals that wake the chore.
    fn woken_by(&self) -> Signals {
        COMMIT
    }

    /// Returns the shortest time between two looks.
    fn rest(&self) -> Duration {
        REST
    }

    /// Looks when the chore is due, with one small query. `now` is the time of the wall clock.
    fn due(&mut self, now: i64) -> Result<Due, Fault>;

    /// Does the work that is due, and returns when the chore is to be looked at again. Other chores run while the future waits.
    fn step(&mut self, now: i64) -> Step<'_>;
}

/// All chores of a server.
pub(crate) type Chores = Vec<Box<dyn Chore>>;

/// Parts of the server that the chores need.
pub(crate) struct ChoreParts {
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) manager: Manager,
    pub(crate) garbage: Garbage,
    pub(crate) driver: Sender<DriverMessage>,
    /// Time for which a node may be offline before its replicas are recreated.
    pub(crate) repair_after: Duration,
    /// Interval in which all objects of each node are read, if they are.
    pub(crate) scrub_every: Option<Duration>,
}

impl ChoreParts {
    /// Returns the chores of every server, also of a simulated one.
    pub(crate) fn chores(self) -> Chores {
        let (names, cluster, driver) = (&self.names, &self.cluster, &self.driver);
        let database = names.database();
        vec![
            Box::new(Expiry(names.clone())),
            Box::new(ExpiredReservations(names.clone())),
            Box::new(ExpiredWorkspaces::new(names)),
            Box::new(Elasticity::new(&self.manager)),
            Box::new(Revocations::new(names.shared(), cluster)),
            Box::new(Removals::new(self.garbage, cluster, driver)),
            Box::new(MissingReplicas::new(
                database,
                cluster,
                self.repair_after,
                driver,
            )),
            Box::new(Scrubs {
                database: database.clone(),
                cluster: cluster.clone(),
                every: self.scrub_every,
                driver: driver.clone(),
            }),
        ]
    }
}

/// Runs the chores as long as the server runs.
pub(crate) async fn run(chores: Chores, wakes: Arc<Wakes>) {
    let begun = Instant::now();
    let now = || Time(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut timers = Timers::default();
    for chore in &chores {
        let failures = Backoff::new(AGAIN, AGAIN_MAX);
        timers.add(chore.woken_by(), chore.rest(), failures);
    }
    let mut idle: Vec<Option<Box<dyn Chore>>> = chores.into_iter().map(Some).collect();
    let mut running = FuturesUnordered::new();
    loop {
        timers.wake(wakes.take(), now());
        while let Some(number) = timers.take(now()) {
            if let Some(chore) = idle[number].take() {
                running.push(look(number, chore));
            }
        }
        let timer = async {
            match timers.next() {
                Some(at) => {
                    let left = Duration::from_nanos(at.since(now()).0).min(SLEEP_MAX);
                    tokio::time::sleep(left).await;
                }
                None => std::future::pending().await,
            }
        };
        // The order is fixed, so that a simulation repeats it.
        tokio::select! {
            biased;
            Some((number, chore, looked)) = running.next() => {
                match looked {
                    Ok(due) => timers.done(number, now(), due),
                    Err(Fault::Closed) => return,
                    Err(fault) => {
                        fault.log_delay(chore.delays());
                        timers.failed(number, now());
                    }
                }
                idle[number] = Some(chore);
            }
            () = wakes.woken() => {}
            () = timer => {}
        }
    }
}

/// Looks at a chore and does its work, if it is due. Returns the chore with the time until its next look.
async fn look(
    number: usize,
    mut chore: Box<dyn Chore>,
) -> (usize, Box<dyn Chore>, Result<Option<Duration>, Fault>) {
    let looked = AssertUnwindSafe(async {
        let now = clock::now_ns();
        match chore.due(now)?.left(now) {
            Some(Duration::ZERO) => chore.step(now).await.map(|due| due.left(clock::now_ns())),
            left => Ok(left),
        }
    });
    let looked = looked.catch_unwind().await;
    // The panic is in the log already, and the other chores must go on.
    let looked = looked.unwrap_or(Err(Fault::Malformed("a chore that panicked")));
    (number, chore, looked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use tidemill_meta::wakes::NODES;

    /// Work in memory: jobs with due times, and the times at which they were done.
    #[derive(Debug, Default)]
    struct Jobs {
        due: Vec<i64>,
        done: Vec<(i64, i64)>,
        looks: usize,
        /// Job that appears while a step runs.
        during: Option<i64>,
        fails: usize,
        panics: bool,
    }

    /// Due time of work that appears, and the signals that report it.
    type LateJob = (i64, Arc<Wakes>);

    #[derive(Clone, Default)]
    struct TestChore {
        jobs: Arc<Mutex<Jobs>>,
        /// Signalled work that appears in the look, after the chore has read its jobs.
        late: Arc<Mutex<Option<LateJob>>>,
    }

    impl Chore for TestChore {
        fn delays(&self) -> &'static str {
            "a test waits"
        }

        fn due(&mut self, _: i64) -> Result<Due, Fault> {
            let mut jobs = self.jobs.lock();
            jobs.looks += 1;
            let due = Due::from(jobs.due.iter().min().copied());
            if let Some((at, wakes)) = self.late.lock().take() {
                jobs.due.push(at);
                wakes.wake(COMMIT);
            }
            Ok(due)
        }

        fn step(&mut self, now: i64) -> Step<'_> {
            Box::pin(async move {
                if std::mem::take(&mut self.jobs.lock().panics) {
                    panic!("a test");
                }
                let left = self.jobs.lock().fails.checked_sub(1);
                if let Some(left) = left {
                    self.jobs.lock().fails = left;
                    return Err(Fault::Malformed("a test"));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                let mut jobs = self.jobs.lock();
                let (due, left): (Vec<i64>, _) = jobs.due.iter().partition(|at| **at <= now);
                jobs.due = left;
                jobs.done.extend(due.into_iter().map(|at| (at, now)));
                let during = jobs.during.take();
                jobs.due.extend(during);
                Ok(Due::NOW)
            })
        }
    }

    fn milliseconds(ms: i64) -> i64 {
        ms * 1_000_000
    }

    /// Runs a chore in virtual time from second 0 of the wall clock on.
    fn in_virtual_time<T>(test: impl AsyncFnOnce(TestChore, Arc<Wakes>) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let done = runtime.block_on(async {
            clock::start(Duration::ZERO);
            let (chore, wakes) = (TestChore::default(), Arc::new(Wakes::default()));
            tokio::spawn(run(vec![Box::new(chore.clone())], wakes.clone()));
            test(chore, wakes).await
        });
        clock::stop();
        done
    }

    async fn pass(ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    #[test]
    fn chore_runs_when_due_and_is_not_looked_at_without_a_signal() {
        in_virtual_time(async |chore, wakes| {
            pass(1000).await;
            assert_eq!(chore.jobs.lock().looks, 1);
            chore.jobs.lock().due.push(milliseconds(3_000));
            pass(5_000).await;
            wakes.wake(NODES);
            pass(1_000).await;
            // No signal of the chore arrived, so the chore could not know of the job.
            assert_eq!(chore.jobs.lock().looks, 1);
            wakes.wake(COMMIT);
            pass(2_000).await;
            let looked = chore.jobs.lock().looks;
            assert_eq!(chore.jobs.lock().done.len(), 1);
            pass(3_600_000).await;
            assert_eq!(chore.jobs.lock().looks, looked);
        });
    }

    #[test]
    fn due_time_of_the_wall_clock_is_kept() {
        in_virtual_time(async |chore, wakes| {
            chore.jobs.lock().due = vec![milliseconds(200_000), milliseconds(90_500)];
            wakes.wake(COMMIT);
            pass(300_000).await;
            let done = chore.jobs.lock().done.clone();
            assert_eq!(done.len(), 2, "{done:?}");
            for (due, at) in done {
                assert!((0..milliseconds(20)).contains(&(at - due)), "{due} {at}");
            }
        });
    }

    #[test]
    fn work_that_appears_during_a_look_or_a_step_is_not_missed() {
        in_virtual_time(async |chore, wakes| {
            pass(1000).await;
            *chore.late.lock() = Some((milliseconds(0), wakes.clone()));
            wakes.wake(COMMIT);
            pass(2_000).await;
            assert_eq!(chore.jobs.lock().done.len(), 1);
            chore.jobs.lock().due.push(0);
            chore.jobs.lock().during = Some(0);
            wakes.wake(COMMIT);
            pass(2_000).await;
            assert_eq!(chore.jobs.lock().done.len(), 3);
        });
    }

    #[test]
    fn failed_and_panicking_chore_is_tried_again() {
        in_virtual_time(async |chore, wakes| {
            chore.jobs.lock().due.push(0);
            chore.jobs.lock().fails = 3;
            pass(20_000).await;
            assert_eq!(chore.jobs.lock().done.len(), 1);
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| {}));
            chore.jobs.lock().due.push(0);
            chore.jobs.lock().panics = true;
            wakes.wake(COMMIT);
            pass(20_000).await;
            std::panic::set_hook(hook);
            assert_eq!(chore.jobs.lock().done.len(), 2);
        });
    }

    #[test]
    fn burst_of_signals_causes_few_looks() {
        in_virtual_time(async |chore, wakes| {
            for _ in 0..1000 {
                wakes.wake(COMMIT);
                pass(1).await;
            }
            pass(1_000).await;
            assert!(chore.jobs.lock().looks <= 4, "{:?}", chore.jobs.lock());
        });
    }
}
