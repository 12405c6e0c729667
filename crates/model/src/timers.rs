//! Timers of background work, without a clock: which work is to be looked at now, and when the next work is.
//!
//! A look asks the work itself when it is due. The answer is a time, or nothing until a signal wakes the work. A signal that arrives while
//! work runs is kept, so the work is looked at again afterwards.

use crate::backoff::Backoff;
use crate::time::{Span, Time};
use std::collections::BTreeSet;
use std::time::Duration;

/// Set of signals that wake work, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Signals(pub u32);

impl Signals {
    /// Returns the signals of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether both sets have a signal in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Work with a timer.
#[derive(Debug)]
struct Timer {
    signals: Signals,
    /// Shortest time between two looks.
    rest: Span,
    failures: Backoff,
    state: TimerState,
    /// Time from which the next look is allowed.
    from: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimerState {
    /// The work is looked at when this time has come; `None`: when a signal arrives.
    Waits(Option<Time>),
    /// The work is looked at, or runs. `woken`: a signal has arrived since.
    Busy { woken: bool },
}

/// Timers of all background work of a process. Work is numbered in the order in which it was added.
#[derive(Debug, Default)]
pub struct Timers {
    timers: Vec<Timer>,
    queue: BTreeSet<(Time, usize)>,
}

impl Timers {
    /// Adds work that is looked at at once, later when one of `signals` arrives, and not more often than once in `rest`. After failures,
    /// the pauses are those of `failures`. Returns the number of the work.
    pub fn add(&mut self, signals: Signals, rest: Duration, failures: Backoff) -> usize {
        let number = self.timers.len();
        self.timers.push(Timer {
            signals,
            rest: span(rest),
            failures,
            state: TimerState::Waits(None),
            from: Time::default(),
        });
        self.set(number, Some(Time::default()));
        number
    }

    fn set(&mut self, number: usize, at: Option<Time>) {
        let timer = &mut self.timers[number];
        if let TimerState::Waits(Some(before)) = timer.state {
            self.queue.remove(&(before, number));
        }
        timer.state = TimerState::Waits(at);
        self.queue.extend(at.map(|at| (at, number)));
    }

    /// Wakes the work that waits for one of these signals.
    pub fn wake(&mut self, signals: Signals, now: Time) {
        for number in 0..self.timers.len() {
            let timer = &mut self.timers[number];
            if !timer.signals.meets(signals) {
                continue;
            }
            let at = timer.from.max(now);
            match &mut timer.state {
                TimerState::Busy { woken } => *woken = true,
                TimerState::Waits(Some(before)) if *before <= at => {}
                TimerState::Waits(_) => self.set(number, Some(at)),
            }
        }
    }

    /// Returns work that is to be looked at now, if any. The work is busy until [`Self::done`] or [`Self::failed`] is called for it.
    pub fn take(&mut self, now: Time) -> Option<usize> {
        let &(at, number) = self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.remove(&(at, number));
        let timer = &mut self.timers[number];
        timer.state = TimerState::Busy { woken: false };
        timer.from = now + timer.rest;
        Some(number)
    }

    /// Returns the time at which work is to be looked at next, if no signal arrives before.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        self.queue.first().map(|&(at, _)| at)
    }

    /// Ends the look at work, or its run: the work is looked at again after `due`; without `due`, when a signal arrives.
    pub fn done(&mut self, number: usize, now: Time, due: Option<Duration>) {
        let timer = &mut self.timers[number];
        timer.failures.reset();
        let woken = timer.state == TimerState::Busy { woken: true };
        let due = due.map(|due| now + span(due));
        let due = if woken { Some(now) } else { due };
        let from = timer.from;
        self.set(number, due.map(|due| due.max(from)));
    }

    /// Ends a look or a run that failed: the work is looked at again after a pause. Signals do not shorten the pause.
    pub fn failed(&mut self, number: usize, now: Time) {
        let timer = &mut self.timers[number];
        let pause = span(timer.failures.pause()).max(timer.rest);
        timer.from = now + pause;
        let from = timer.from;
        self.set(number, Some(from));
    }
}

fn span(time: Duration) -> Span {
    Span(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Signals = Signals(1);
    const B: Signals = Signals(2);

    fn at(secs: u64) -> Time {
        Time::default() + Span::from_secs(secs)
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Returns timers of two works. Both have been looked at in second 1 and wait for a signal.
    fn two() -> Timers {
        let mut timers = Timers::default();
        let failures = Backoff::new(secs(2), secs(4));
        timers.add(A, secs(2), failures);
        timers.add(A.and(B), Duration::ZERO, failures);
        for number in 0..2 {
            assert_eq!(timers.take(at(1)), Some(number));
            timers.done(number, at(1), None);
        }
        assert_eq!((timers.take(at(9)), timers.next()), (None, None));
        timers
    }

    #[test]
    fn work_is_looked_at_when_due_or_woken_but_not_more_often_than_once_in_its_rest() {
        let mut timers = two();
        timers.wake(B, at(2));
        assert_eq!((timers.take(at(2)), timers.take(at(2))), (Some(1), None));
        timers.done(1, at(2), Some(secs(10)));
        assert_eq!(timers.next(), Some(at(12)));
        timers.wake(A, at(2));
        // The first work rests until second 3; the wake of the second work replaces its later time.
        assert_eq!((timers.take(at(2)), timers.take(at(2))), (Some(1), None));
        assert_eq!(timers.next(), Some(at(3)));
        timers.done(1, at(2), None);
        assert_eq!(timers.take(at(3)), Some(0));
        timers.done(0, at(3), Some(Duration::ZERO));
        assert_eq!(timers.next(), Some(at(5)));
    }

    #[test]
    fn signal_during_a_run_causes_another_look() {
        let mut timers = two();
        timers.wake(A, at(5));
        assert_eq!(timers.take(at(5)), Some(0));
        assert_eq!(timers.take(at(5)), Some(1));
        timers.done(1, at(5), None);
        assert_eq!(timers.next(), None);
        timers.wake(A, at(6));
        assert_eq!(timers.take(at(6)), Some(1));
        timers.done(1, at(6), None);
        timers.done(0, at(9), None);
        assert_eq!(timers.take(at(9)), Some(0));
        timers.done(0, at(9), None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn failed_work_pauses_longer_each_time_and_signals_do_not_shorten_the_pause() {
        let mut timers = two();
        timers.wake(B, at(10));
        let mut failed = Vec::new();
        for now in 10..30 {
            if timers.take(at(now)).is_some() {
                timers.failed(1, at(now));
                failed.push(now);
            }
            timers.wake(B, at(now));
        }
        assert_eq!(failed, [10, 12, 16, 20, 24, 28]);
        assert_eq!(timers.take(at(32)), Some(1));
        timers.done(1, at(32), None);
        timers.wake(B, at(33));
        assert_eq!(timers.take(at(33)), Some(1));
        timers.failed(1, at(33));
        assert_eq!(timers.next(), Some(at(35)));
    }
}
