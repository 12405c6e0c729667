//! How long an operation waits for what is away: one deadline for everything it waits for.
//!
//! The deadline belongs to the thread that serves the operation, and every wait below asks for it here: so no
//! wait can add its own patience to another's, none can forget to hand it on, and what waits in the background
//! for as long as the mount lives says so by having none.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long an operation waits in all for a server or an element that is away.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The first pause before something is tried again; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Puts the deadline back that was there before, also if an operation panics.
struct Before(Option<Instant>);

impl Drop for Before {
    fn drop(&mut self) {
        DEADLINE.set(self.0);
    }
}

/// Serves an operation on this thread; all of its waits end [`PATIENCE`] from now.
pub(crate) fn serve<T>(operation: impl FnOnce() -> T) -> T {
    until(Instant::now() + PATIENCE, operation)
}

/// Does a part of an operation that may take no longer than that.
pub(crate) fn at_most<T>(limit: Duration, part: impl FnOnce() -> T) -> T {
    until(deadline().min(Instant::now() + limit), part)
}

fn until<T>(end: Instant, part: impl FnOnce() -> T) -> T {
    let _before = Before(DEADLINE.replace(Some(end)));
    part()
}

/// When the waiting of this thread's operation ends; what no operation asked for waits [`PATIENCE`] from now.
pub(crate) fn deadline() -> Instant {
    DEADLINE.get().unwrap_or_else(|| Instant::now() + PATIENCE)
}

/// Bytes were moved: what is waited for is there, and a long copy is no wait.
pub(crate) fn renew() {
    if DEADLINE.get().is_some() {
        DEADLINE.set(Some(Instant::now() + PATIENCE));
    }
}

/// Pauses between tries, longer each time.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    end: Option<Instant>,
}

impl Pauses {
    /// Pauses that end then; without an end they go on for as long as the mount lives.
    pub(crate) fn until(end: Option<Instant>) -> Self {
        Self {
            next: PAUSE_MIN,
            end,
        }
    }

    /// How long to pause before the next try; `None`: there is no time for one.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        let Some(end) = self.end else {
            return Some(pause);
        };
        let left = end.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then(|| pause.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_operation_share_its_deadline() {
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
    fn pauses_grow_and_end_with_the_deadline() {
        let mut endless = Pauses::until(None);
        let pauses: Vec<_> = (0..100).filter_map(|_| endless.next()).collect();
        assert_eq!((pauses[0], pauses[99]), (PAUSE_MIN, PAUSE_MAX));
        let mut over = Pauses::until(Some(Instant::now()));
        assert_eq!(over.next(), None);
        let mut soon = Pauses::until(Some(Instant::now() + PAUSE_MIN / 2));
        assert!(soon.next().is_some_and(|pause| pause < PAUSE_MIN));
    }
}
