//! Time limits of operations: one deadline for all waits of an operation. Uses only the thread's deadline and the process's clock.
//!
//! The deadline belongs to the thread that serves the operation, and every wait reads it from the thread. So no wait can add its own limit
//! to another wait's limit, and no call can forget to pass the deadline on. A background task that waits for as long as the mount runs
//! passes no deadline.
//!
//! Deadlines are times of [`now`], a clock that stands still while the whole process is suspended, such as during the suspension of a host
//! or the migration of a virtual machine, because no other process could answer then.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_model::backoff::Backoff;

/// Total time that an operation waits for an unreachable server or node, by default.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Time that is practically without limit.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Pauses before a retry.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// Maximum time of one wait: if a wait takes much longer, the process was suspended.
const SLICE: Duration = Duration::from_secs(1);
/// Time by which a thread of a busy host may wake up late without counting as suspended.
const LATE: Duration = Duration::from_secs(2);

/// Time that operations of this process wait for a server or node, in milliseconds.
static SET_MS: AtomicU64 = AtomicU64::new(30_000);
/// Total time in nanoseconds during which the process was suspended.
static MISSED: AtomicU64 = AtomicU64::new(0);
/// Time up to which suspensions have been counted.
static KNOWN: Mutex<Option<Instant>> = Mutex::new(None);

thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Deadline of the thread before an operation, which is restored when this value is dropped, also if the operation panics.
struct PreviousDeadline(Option<Instant>);

impl Drop for PreviousDeadline {
    fn drop(&mut self) {
        DEADLINE.set(self.0);
    }
}

/// Sets the time that operations of this process wait for a server or node; `None`: without limit.
pub(crate) fn set(patience: Option<Duration>) {
    let millis = u64::try_from(bounded(patience).as_millis()).unwrap_or(u64::MAX);
    SET_MS.store(millis, Ordering::Relaxed);
}

fn bounded(patience: Option<Duration>) -> Duration {
    patience.map_or(FOREVER, |patience| patience.min(FOREVER))
}

/// Returns the total time that an operation waits for an unreachable server or node.
pub(crate) fn limit() -> Duration {
    Duration::from_millis(SET_MS.load(Ordering::Relaxed))
}

/// Returns the time of a clock that excludes suspensions of the process.
pub(crate) fn now() -> Instant {
    // In this order, so that a suspension between the two reads is not subtracted twice.
    let missed = missed();
    Instant::now() - missed
}

/// Returns the real time at which `now` will be `until`, unless the process is suspended again.
pub(crate) fn real(until: Instant) -> Instant {
    until + missed()
}

fn missed() -> Duration {
    Duration::from_nanos(MISSED.load(Ordering::Acquire))
}

/// Records that a wait which was to end at `at` has ended now, and counts a suspension if the difference is large.
pub(crate) fn woken(at: Instant) {
    let now = Instant::now();
    if now.saturating_duration_since(at) < LATE {
        return;
    }
    let mut known = KNOWN.lock();
    // Other threads may have counted it before.
    let from = known.map_or(at, |known| known.max(at));
    let more = now.saturating_duration_since(from);
    if !more.is_zero() {
        *known = Some(now);
        let nanos = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
        MISSED.fetch_add(nanos, Ordering::AcqRel);
        drop(known);
        tracing::info!(
            "{} s were missed: deadlines are moved back by that time",
            more.as_secs()
        );
    }
}

/// Returns the time at which the next slice of a wait ends.
fn slice(until: Instant) -> Instant {
    real(until).min(Instant::now() + SLICE)
}

/// Waits for a notification. Returns whether the time `until` passed before it. May return early without a notification.
pub(crate) fn wait<T>(condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Instant) -> bool {
    let end = slice(until);
    let timed_out = condvar.wait_until(guard, end).timed_out();
    if timed_out {
        woken(end);
    }
    timed_out && now() >= until
}

/// Pauses the thread before a retry.
pub(crate) fn sleep(pause: Duration) {
    let end = Instant::now() + pause;
    std::thread::sleep(pause);
    woken(end);
}

/// Pauses like [`sleep`], from async code.
pub(crate) async fn pause(pause: Duration) {
    let end = Instant::now() + pause;
    tokio::time::sleep(pause).await;
    woken(end);
}

/// Returns the result of `work`; `None` if `work` does not end before `until`.
pub(crate) async fn within<T>(until: Instant, work: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(work);
    loop {
        let end = slice(until);
        if let Ok(done) = tokio::time::timeout_at(end.into(), &mut work).await {
            return Some(done);
        }
        woken(end);
        if now() >= until {
            return None;
        }
    }
}

/// Serves an operation on this thread; all waits of the operation end [`limit`] from now.
pub(crate) fn serve<T>(operation: impl FnOnce() -> T) -> T {
    until(now() + limit(), operation)
}

/// Runs a part of an operation with a shorter time limit.
pub(crate) fn at_most<T>(limit: Duration, part: impl FnOnce() -> T) -> T {
    until(deadline().min(now() + limit), part)
}

/// Runs a part of an operation that another thread has begun, with the deadline `end` of the operation.
pub(crate) fn until<T>(end: Instant, part: impl FnOnce() -> T) -> T {
    let _before = PreviousDeadline(DEADLINE.replace(Some(end)));
    part()
}

/// Returns the deadline of this thread's operation. Outside of an operation, the deadline is [`limit`] from now.
pub(crate) fn deadline() -> Instant {
    DEADLINE.get().unwrap_or_else(|| now() + limit())
}

/// Extends the deadline because bytes were transferred: the server or node answers, and a long transfer is not a wait.
pub(crate) fn renew() {
    if DEADLINE.get().is_some() {
        DEADLINE.set(Some(now() + limit()));
    }
}

/// Pauses between attempts, each longer than the pause before.
#[derive(Debug)]
pub(crate) struct Pauses {
    pauses: Backoff,
    end: Option<Instant>,
}

impl Pauses {
    /// Returns pauses that end at the time `end`. Without `end` they continue for as long as the mount runs.
    pub(crate) fn until(end: Option<Instant>) -> Self {
        Self { pauses: AGAIN, end }
    }

    /// Returns the pause before the next attempt; `None` if no time is left for another attempt.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let pause = self.pauses.pause();
        let Some(end) = self.end else {
            return Some(pause);
        };
        let left = end.checked_duration_since(now())?;
        (!left.is_zero()).then(|| pause.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lock that each test holds, because one test sets back the clock that all tests share.
    static CLOCK: Mutex<()> = Mutex::new(());

    #[test]
    fn nested_operations_share_deadline_of_outer_operation() {
        let _clock = CLOCK.lock();
        let outer = serve(|| {
            let outer = deadline();
            assert_eq!(at_most(PATIENCE * 2, deadline), outer);
            assert!(at_most(Duration::ZERO, deadline) < outer);
            assert_eq!(deadline(), outer);
            let _ = std::panic::catch_unwind(|| serve(|| panic!("an operation that fails")));
            assert_eq!(deadline(), outer);
            outer
        });
        assert!(deadline() >= outer);
    }

    #[test]
    fn operation_without_time_limit_has_far_deadline() {
        let _clock = CLOCK.lock();
        assert_eq!(limit(), PATIENCE);
        assert_eq!(bounded(Some(PATIENCE)), PATIENCE);
        assert_eq!(bounded(Some(Duration::MAX)), FOREVER);
        let far = now() + bounded(None);
        assert!(real(far) >= far && far > now() + FOREVER / 2);
    }

    #[test]
    fn retry_pauses_grow_and_end_with_deadline() {
        let _clock = CLOCK.lock();
        let mut endless = Pauses::until(None);
        let pauses: Vec<_> = (0..100).filter_map(|_| endless.next()).collect();
        assert!(pauses[0] == AGAIN.next() && pauses[99] > pauses[0]);
        let mut over = Pauses::until(Some(now()));
        assert_eq!(over.next(), None);
        let mut soon = Pauses::until(Some(now() + AGAIN.next() / 2));
        assert!(soon.next().is_some_and(|pause| pause < AGAIN.next()));
    }

    /// Several threads observe the same suspension. The suspension counts once, and no deadline passes because of it.
    #[test]
    fn deadline_excludes_time_of_process_suspension() {
        let _clock = CLOCK.lock();
        let (gone, before) = (Duration::from_secs(3600), now());
        let until = before + PATIENCE;
        let at = Instant::now().checked_sub(gone).unwrap();
        let threads: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(move || woken(at)))
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(before - now() > gone - PATIENCE && before - now() < gone + PATIENCE);
        assert!(real(until) > Instant::now());
        let (never, mut missing) = (Condvar::new(), false);
        let lock = Mutex::new(());
        let end = now() + AGAIN.next();
        while !missing {
            missing = wait(&never, &mut lock.lock(), end);
        }
        assert!(now() >= end);
        woken(Instant::now().checked_sub(LATE / 2).unwrap());
        assert!(real(now()) <= Instant::now());
    }
}
