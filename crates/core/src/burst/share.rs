//! What maps leave to who writes, while somebody does: when one may begin, and how much of the processors of its element it has
//! then. Once a burst is over they have all that they can get.

use crate::time::{Span, Time};

/// A file that was begun so short a time ago is of a burst that may be over in a moment: maps of its element wait for that.
pub const YOUNG: Span = Span::from_secs(1);
/// A map waits no longer than that for such moments, as who writes one file after the other never pauses.
pub const HELD_MAX: Span = Span::from_secs(10);
/// Since when no file has grown when a burst is over.
const QUIET: Span = Span::from_millis(200);
/// What maps may have had too much, in time of one processor: what is beyond is forgotten, so that they always get on.
const DEBT_MAX: Span = Span::from_secs(1);
/// What they may have at once when they had nothing for a while.
const SAVED_MAX: Span = Span::from_millis(20);

/// When the map of a file may begin that was queued then, with the newest file that is being written on its element.
#[must_use]
pub fn begins(queued: Time, newest: Option<Time>) -> Time {
    let over = newest.map_or(queued, |begun| Time(begun.0.saturating_add(YOUNG.0)));
    over.min(Time(queued.0.saturating_add(HELD_MAX.0)))
        .max(queued)
}

/// What all maps of an element have together.
#[derive(Clone, Debug)]
pub struct Pace {
    cores: u32,
    /// When a file has last grown.
    grew: Option<Time>,
    /// What was earned and not used yet, in nanoseconds of one processor; below 0, what they had too much.
    saved: i64,
    /// When that was.
    counted: Time,
}

impl Pace {
    /// That of an element with so many cores.
    #[must_use]
    pub fn new(cores: u32) -> Self {
        Self {
            cores: cores.max(1),
            grew: None,
            saved: 0,
            counted: Time::default(),
        }
    }

    /// A file that is being written has grown.
    pub fn on_grown(&mut self, now: Time) {
        if !self.bursts(now) {
            self.saved = 0;
            self.counted = now;
        }
        self.grew = Some(now);
    }

    /// Whether somebody writes.
    #[must_use]
    pub fn bursts(&self, now: Time) -> bool {
        self.grew.is_some_and(|grew| now.since(grew) < QUIET)
    }

    /// A map has worked for so long.
    pub fn on_worked(&mut self, took: Span, now: Time) {
        if self.bursts(now) {
            let took = i64::try_from(took.0).unwrap_or(i64::MAX);
            let most = -i64::try_from(DEBT_MAX.0).unwrap_or(i64::MAX);
            self.saved = self.saved.saturating_sub(took).max(most);
        }
    }

    /// How long a map is to rest that leaves so many percent of the processors to who writes; `None`: it may go on.
    pub fn rest(&mut self, leaves: u8, now: Time) -> Option<Span> {
        let part = u64::from(100 - leaves.min(99)) * u64::from(self.cores);
        if leaves == 0 || !self.bursts(now) {
            return None;
        }
        let passed = now.since(self.counted).0;
        self.counted = now;
        let earned = i64::try_from(passed.saturating_mul(part) / 100).unwrap_or(i64::MAX);
        let most = i64::try_from(SAVED_MAX.0).unwrap_or(i64::MAX);
        self.saved = self.saved.saturating_add(earned).min(most);
        match self.saved {
            0.. => None,
            debt => Some(Span(debt.unsigned_abs().saturating_mul(100).div_ceil(part))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn map_waits_for_young_files_up_to_a_limit() {
        assert_eq!(begins(at(500), None), at(500));
        assert_eq!(begins(at(500), Some(at(500))), at(1500));
        assert_eq!(begins(at(500), Some(at(9000))), at(10_000));
        assert_eq!(begins(at(500), Some(at(90_000))), at(10_500));
        // One that has been open for long holds nobody.
        assert_eq!(begins(at(5000), Some(at(100))), at(5000));
    }

    /// Maps that want all they can get, in pieces of some milliseconds, while a file grows for a minute.
    fn worked(leaves: u8, cores: u32, piece_ms: u64) -> u64 {
        let mut pace = Pace::new(cores);
        let (mut now, mut worked) = (0, 0);
        while now < 60_000 {
            pace.on_grown(at(now));
            if let Some(rest) = pace.rest(leaves, at(now)) {
                assert!(rest <= Span::from_secs(100), "they get on");
                now += rest.0.div_ceil(1_000_000).clamp(1, 50);
            } else {
                now += piece_ms;
                worked += piece_ms;
                pace.on_grown(at(now));
                pace.on_worked(Span::from_millis(piece_ms), at(now));
            }
        }
        worked
    }

    proptest! {
        /// While a file is being written, maps get their share of time and no more. The exception is a piece that takes
        /// longer than the debt that `Pace` remembers.
        #[test]
        fn maps_get_their_share_while_files_grow(leaves in 1_u8..=99, cores in 1_u32..=4, piece in 1_u64..100) {
            let part = (60_000 * u64::from(100 - leaves) * u64::from(cores) / 100).min(60_000);
            let worked = worked(leaves, cores, piece);
            prop_assert!(worked <= part + piece + 60, "{worked} of {part}");
            prop_assert!(worked + piece + 60 >= part * 9 / 10 || part >= 50_000, "{worked} of {part}");
        }
    }

    #[test]
    fn pace_forgets_debt_after_burst() {
        let mut pace = Pace::new(1);
        pace.on_grown(at(0));
        assert_eq!(pace.rest(90, at(0)), None);
        pace.on_worked(Span::from_secs(3600), at(1));
        // A piece that took an hour is not paid for a day.
        assert!(
            pace.rest(99, at(2))
                .is_some_and(|rest| rest <= Span::from_secs(100))
        );
        assert_eq!(pace.rest(0, at(2)), None, "nothing is left to who writes");
        assert_eq!(pace.rest(99, at(201)), None, "nobody writes");
        pace.on_grown(at(1000));
        assert_eq!(pace.rest(90, at(1000)), None);
    }
}
