//! Time limits of operations: one deadline for all waits of an operation. It touches only this thread's deadline and the process's clock.
//!
//! The deadline belongs to the thread that serves the operation, and every wait below reads it here. So no wait can add its own limit to
//! another wait's, and no call can forget to pass the deadline on. A background task that waits for as long as the mount runs states that
//! by passing no deadline.
//!
//! Deadlines are times of [`now`], which stands still while the whole process does: during the suspension of a host, or the migration of a
//! virtual machine, no other process could answer.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Total time that an operation waits for an unreachable server or node, by default.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Practically without limit.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// First pause before a retry; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Maximum time of one wait: if a wait takes much longer, the process was suspended.
const SLICE: Duration = Duration::from_secs(1);
/// Tolerance for threads of a busy host that wake up late.
const LATE: Duration = Duration::from_secs(2);

/// Time that an operation of this process waits, in milliseconds.
static SET_MS: AtomicU64 = AtomicU64::new(30_000);
/// Nanoseconds during which the process was suspended. Every operation reads the value.
static MISSED: AtomicU64 = AtomicU64::new(0);
/// Time up to which suspensions are counted.
static KNOWN: Mutex<Option<Instant>> = Mutex::new(None);

thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Restores the previous deadline, also if an operation panics.
struct PreviousDeadline(Option<Instant>);

impl Drop for PreviousDeadline {
    fn drop(&mut self) {
        DEADLINE.set(self.0);
    }
}

/// Sets the time that operations of this process wait; `None`: without limit.
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

/// Returns the time, without the time of suspensions.
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

/// Notes that a wait which was to end at `at` has ended now.
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

/// Returns the end of the next slice of a wait.
fn slice(until: Instant) -> Instant {
    real(until).min(Instant::now() + SLICE)
}

/// Waits for a notification. Returns whether the time was over before it. May return early without reason.
pub(crate) fn wait<T>(condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Instant) -> bool {
    let end = slice(until);
    let timed_out = condvar.wait_until(guard, end).timed_out();
    if timed_out {
        woken(end);
    }
    timed_out && now() >= until
}

/// Pauses before a retry.
pub(crate) fn sleep(pause: Duration) {
    let end = Instant::now() + pause;
    std::thread::sleep(pause);
    woken(end);
}

/// As [`sleep`], from async code.
pub(crate) async fn pause(pause: Duration) {
    let end = Instant::now() + pause;
    tokio::time::sleep(pause).await;
    woken(end);
}

/// Returns the result of `work`, if it ends in time.
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

/// Serves an operation on this thread; all of its waits end [`limit`] from now.
pub(crate) fn serve<T>(operation: impl FnOnce() -> T) -> T {
    until(now() + limit(), operation)
}

/// Runs a part of an operation with a tighter limit.
pub(crate) fn at_most<T>(limit: Duration, part: impl FnOnce() -> T) -> T {
    until(deadline().min(now() + limit), part)
}

/// Runs a part of an operation that another thread has begun, with that operation's deadline `end`.
pub(crate) fn until<T>(end: Instant, part: impl FnOnce() -> T) -> T {
    let _before = PreviousDeadline(DEADLINE.replace(Some(end)));
    part()
}

/// Returns the end of the waits of this thread's operation. Without an operation, it is [`limit`] from now.
pub(crate) fn deadline() -> Instant {
    DEADLINE.get().unwrap_or_else(|| now() + limit())
}

/// Extends the deadline because bytes were moved: the other side answers, and a long copy is not a wait.
pub(crate) fn renew() {
    if DEADLINE.get().is_some() {
        DEADLINE.set(Some(now() + limit()));
    }
}

/// Pauses between attempts, longer each time.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    end: Option<Instant>,
}

impl Pauses {
    /// Returns pauses that stop at `end`. Without an end they continue for as long as the mount runs.
    pub(crate) fn until(end: Option<Instant>) -> Self {
        Self {
            next: PAUSE_MIN,
            end,
        }
    }

    /// Returns the pause before the next attempt; `None`: there is no time for another attempt.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
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

    /// Held by each test, as one of them sets back the clock that all tests share.
    static CLOCK: Mutex<()> = Mutex::new(());

    #[test]
    fn nested_operations_share_one_deadline() {
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
    fn unbounded_patience_has_far_deadline() {
        let _clock = CLOCK.lock();
        assert_eq!(limit(), PATIENCE);
        assert_eq!(bounded(Some(PATIENCE)), PATIENCE);
        assert_eq!(bounded(Some(Duration::MAX)), FOREVER);
        let far = now() + bounded(None);
        assert!(real(far) >= far && far > now() + FOREVER / 2);
    }

    #[test]
    fn pauses_grow_and_end_with_deadline() {
        let _clock = CLOCK.lock();
        let mut endless = Pauses::until(None);
        let pauses: Vec<_> = (0..100).filter_map(|_| endless.next()).collect();
        assert_eq!((pauses[0], pauses[99]), (PAUSE_MIN, PAUSE_MAX));
        let mut over = Pauses::until(Some(now()));
        assert_eq!(over.next(), None);
        let mut soon = Pauses::until(Some(now() + PAUSE_MIN / 2));
        assert!(soon.next().is_some_and(|pause| pause < PAUSE_MIN));
    }

    /// Several threads observe the same suspension. It counts once, and no deadline passes because of it.
    #[test]
    fn suspended_time_does_not_count() {
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
        let end = now() + PAUSE_MIN;
        while !missing {
            missing = wait(&never, &mut lock.lock(), end);
        }
        assert!(now() >= end);
        woken(Instant::now().checked_sub(LATE / 2).unwrap());
        assert!(real(now()) <= Instant::now());
    }
}
