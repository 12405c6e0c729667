//! What the dispatcher keeps of an element: whether it is up, what it has to do and how long that takes.

use super::short::Short;
use super::{LEFT_PART, QUEUE_FACTOR, QUEUE_FACTOR_MAX, QUEUE_MIN, QUEUE_TARGET};
use crate::event::{ElementView, History};
use crate::id::LabelId;
use crate::time::{Span, Time};

/// Whether an element can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Objects or labels are said to be on it, but it has not come yet.
    Expected,
    Up,
    Down,
}

/// One element.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) presence: Presence,
    /// Its status; histories are moved to `Learned`.
    pub(super) view: ElementView,
    /// Labels that take a place in its queue, with the time each is expected to take.
    pub(super) outstanding: Short<LabelId, Span>,
    /// Which of them run, since when, and the time each is expected to take.
    pub(super) running: Short<LabelId, (Time, Span)>,
    /// Sum of the expected times of `outstanding`.
    pub(super) backlog: Span,
    spent: Spent,
}

/// What running labels have spent of the time that they are expected to take, so that it need not be summed
/// up for every task that is placed.
#[derive(Debug, Default)]
struct Spent {
    /// Labels that are within their time.
    active: u64,
    /// Sum of the times since when those run, modulo 2^64: what has passed since is small enough.
    starts_ns: u64,
    /// Expected times of all others.
    over_ns: u64,
    /// From when until when this holds: until another label is over its time.
    from: Time,
    until: Time,
}

impl Element {
    pub(super) fn new(presence: Presence, view: ElementView) -> Self {
        Self {
            presence,
            view,
            outstanding: Short::default(),
            running: Short::default(),
            backlog: Span::default(),
            spent: Spent::default(),
        }
    }

    pub(super) fn up(&self) -> bool {
        self.presence == Presence::Up
    }

    pub(super) fn cores(&self) -> usize {
        usize::try_from(self.view.cores.max(1)).unwrap_or(usize::MAX)
    }

    /// Whether its queue takes another label: a few per core, more while all that is queued is short.
    pub(super) fn room(&self) -> bool {
        let count = self.outstanding.len();
        let cores = self.cores();
        let few = count < cores.saturating_mul(QUEUE_FACTOR).max(QUEUE_MIN);
        let short = self.backlog.0 / (cores as u64) < QUEUE_TARGET.0;
        self.up() && (few || (short && count < self.bound()))
    }

    /// Labels that its queue never exceeds.
    pub(super) fn bound(&self) -> usize {
        self.cores().saturating_mul(QUEUE_FACTOR_MAX)
    }

    /// Cores that have nothing to do.
    pub(super) fn idle_cores(&self) -> usize {
        if self.up() {
            self.cores().saturating_sub(self.outstanding.len())
        } else {
            0
        }
    }

    /// Whether labels wait for a core of it.
    pub(super) fn crowded(&self) -> bool {
        self.up() && self.outstanding.len() > self.cores()
    }

    /// Until a core is free, as [`Self::wait`] says it, in less time.
    pub(super) fn wait_now(&mut self, now: Time) -> Span {
        if self.outstanding.len() < self.cores() {
            return Span::default();
        }
        if now < self.spent.from || now > self.spent.until {
            self.sum_up(now);
        }
        let now_all = self.spent.active.wrapping_mul(now.0);
        let active = now_all.wrapping_sub(self.spent.starts_ns);
        let spent = active.saturating_add(self.spent.over_ns);
        let wait = Span(self.backlog.0.saturating_sub(spent) / self.cores() as u64);
        debug_assert_eq!(
            wait,
            self.wait(now),
            "what running labels spent is summed up wrongly"
        );
        wait
    }

    fn sum_up(&mut self, now: Time) {
        let mut spent = Spent {
            from: now,
            until: Time(u64::MAX),
            ..Spent::default()
        };
        for &(start, expected) in self.running.values() {
            let expected = spendable(expected);
            let end = start + expected;
            if start > now {
                spent.until = spent.until.min(start);
            } else if end < now {
                spent.over_ns = spent
                    .over_ns
                    .saturating_add(now.since(start).0.min(expected.0));
            } else {
                spent.active += 1;
                spent.starts_ns = spent.starts_ns.wrapping_add(start.0);
                spent.until = spent.until.min(end);
            }
        }
        self.spent = spent;
    }

    /// Whether the wait that was asked for last stays what it is as time passes.
    pub(super) fn stands_still(&self) -> bool {
        self.spent.active == 0 && self.spent.until == Time(u64::MAX)
    }

    /// Until a core is free (see the policy `min-wait` for the equation).
    pub(super) fn wait(&self, now: Time) -> Span {
        if self.outstanding.len() < self.cores() {
            return Span::default();
        }
        self.left(now)
    }

    /// Until all that it has is done, each of the cores that are needed for it doing a like part.
    pub(super) fn left(&self, now: Time) -> Span {
        let spent: u64 = self
            .running
            .values()
            .map(|(start, expected)| now.since(*start).0.min(spendable(*expected).0))
            .sum();
        let cores = self.cores().min(self.outstanding.len().max(1));
        Span(self.backlog.0.saturating_sub(spent) / cores as u64)
    }

    /// A label began to run.
    pub(super) fn start(&mut self, label: LabelId, now: Time) {
        let expected = self.outstanding.get(label).copied().unwrap_or_default();
        self.running.insert(label, (now, expected));
        self.spent.from = Time(u64::MAX);
    }

    pub(super) fn add(&mut self, label: LabelId, expected: Span) {
        if self.outstanding.insert(label, expected).is_none() {
            self.backlog = self.backlog + expected;
        }
    }

    /// A label is expected to take another time than was thought.
    pub(super) fn expect(&mut self, label: LabelId, expected: Span) {
        let Some(known) = self.outstanding.get(label).copied() else {
            return;
        };
        self.outstanding.insert(label, expected);
        self.backlog = Span(self.backlog.0.saturating_sub(known.0)) + expected;
        if let Some((start, _)) = self.running.get(label).copied() {
            self.running.insert(label, (start, expected));
            self.spent.from = Time(u64::MAX);
        }
    }

    /// Takes a label off the queue; whether it was there.
    pub(super) fn remove(&mut self, label: LabelId) -> bool {
        if self.running.remove(label).is_some() {
            // Summed up at the next look.
            self.spent.from = Time(u64::MAX);
        }
        let removed = self.outstanding.remove(label);
        if let Some(expected) = removed {
            self.backlog = Span(self.backlog.0.saturating_sub(expected.0));
        }
        removed.is_some()
    }
}

/// What a running label gets rid of by running, of the time that it is expected to take.
fn spendable(expected: Span) -> Span {
    Span(expected.0 - expected.0 / LEFT_PART)
}

/// How long a run over `input_bytes` should take: the mean of past runs, scaled by the size of the
/// inputs within a factor of four, since a kernel's start does not shrink with its input and few grow
/// faster than it. `None` without a history.
pub(super) fn expected_run(history: &History, input_bytes: u64) -> Option<Span> {
    Some(Mean::of(history)?.scaled(input_bytes))
}

/// A history's mean run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    ns: u64,
    bytes: u64,
}

impl Mean {
    pub(super) fn of(history: &History) -> Option<Self> {
        Some(Self {
            ns: history.total_ns.checked_div(history.runs)?,
            bytes: history.input_bytes / history.runs,
        })
    }

    /// For a run over so many bytes, as [`expected_run`] says.
    pub(super) fn scaled(self, input_bytes: u64) -> Span {
        if self.bytes == 0 {
            return Span(self.ns);
        }
        let scaled = multiply_divide(self.ns, input_bytes, self.bytes);
        Span(scaled.clamp(self.ns / 4, self.ns.saturating_mul(4)))
    }
}

/// How long pulling bytes over a link takes.
pub(super) fn transfer(bytes: u64, bytes_per_sec: u64) -> Span {
    Span(multiply_divide(bytes, 1_000_000_000, bytes_per_sec.max(1)))
}

/// `a * b / c`, or the largest number if that is larger. Most products fit in 64 bits, where division is
/// several times faster.
fn multiply_divide(a: u64, b: u64, c: u64) -> u64 {
    if let Some(product) = a.checked_mul(b) {
        return product / c;
    }
    let wide = u128::from(a) * u128::from(b) / u128::from(c);
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_expected_to_take_the_mean_scaled_by_size_within_a_factor_of_four() {
        let history = History {
            runs: 2,
            total_ns: 200,
            input_bytes: 20,
        };
        assert_eq!(expected_run(&history, 10), Some(Span(100)));
        assert_eq!(expected_run(&history, 20), Some(Span(200)));
        assert_eq!(expected_run(&history, 1000), Some(Span(400)));
        assert_eq!(expected_run(&history, 0), Some(Span(25)));
        assert_eq!(expected_run(&History::default(), 10), None);
    }

    #[test]
    fn a_transfer_takes_bytes_over_rate_and_a_dead_link_does_not_divide_by_zero() {
        assert_eq!(transfer(125_000_000, 125_000_000), Span::from_secs(1));
        assert_eq!(transfer(5, 0), Span::from_secs(5));
    }
}
