//! Share of processors between writers and maps: decides when a map may begin while files are written, and the processor time that the map
//! gets on its node during the burst. After a burst, maps get all the processor time they can use. This module does no I/O.

use crate::time::{Span, Time};

/// Maximum age at which an open file delays the maps of its node: a burst that wrote such a young file may end soon.
pub const YOUNG: Span = Span::from_secs(1);
/// Maximum delay of a map by young open files: a program that writes one file after the other never pauses.
pub const HELD_MAX: Span = Span::from_secs(10);
/// Time without growth of any file on a node after which a burst is over.
const QUIET: Span = Span::from_millis(200);
/// Maximum processor time that maps may overdraw; more overdrawn time is not counted, so that maps always make progress.
const DEBT_MAX: Span = Span::from_secs(1);
/// Maximum processor time that maps may save up while they pause.
const SAVED_MAX: Span = Span::from_millis(20);

/// Returns the time at which the map of a file may begin. `queued` is the time at which it was queued, and `newest` is the opening time of the newest
/// file that is being written on its node.
#[must_use]
pub fn begins(queued: Time, newest: Option<Time>) -> Time {
    let over = newest.map_or(queued, |begun| Time(begun.0.saturating_add(YOUNG.0)));
    over.min(Time(queued.0.saturating_add(HELD_MAX.0)))
        .max(queued)
}

/// Processor time budget of all maps of a node together.
#[derive(Clone, Debug)]
pub struct ProcessorPace {
    cores: u32,
    /// Time at which a file last grew.
    grew: Option<Time>,
    /// Processor time that maps have earned and not used, in nanoseconds of one processor; a negative number is overdrawn time.
    saved: i64,
    /// Time of the last update of `saved`.
    counted: Time,
}

impl ProcessorPace {
    /// Returns the processor time budget for a node with `cores` cores.
    #[must_use]
    pub fn new(cores: u32) -> Self {
        Self {
            cores: cores.max(1),
            grew: None,
            saved: 0,
            counted: Time::default(),
        }
    }

    /// Records that a file on the node has grown while a program writes it.
    pub fn on_grown(&mut self, now: Time) {
        if !self.bursts(now) {
            self.saved = 0;
            self.counted = now;
        }
        self.grew = Some(now);
    }

    /// Returns whether a program is writing files on the node.
    #[must_use]
    pub fn bursts(&self, now: Time) -> bool {
        self.grew.is_some_and(|grew| now.since(grew) < QUIET)
    }

    /// Records that a map has used processor time for the duration `took`.
    pub fn on_worked(&mut self, took: Span, now: Time) {
        if self.bursts(now) {
            let took = i64::try_from(took.0).unwrap_or(i64::MAX);
            let most = -i64::try_from(DEBT_MAX.0).unwrap_or(i64::MAX);
            self.saved = self.saved.saturating_sub(took).max(most);
        }
    }

    /// Returns the time for which a map must pause so that it leaves `leaves` percent of the processors to writers; `None` for no pause.
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
        // A file that has been open for a long time delays no map.
        assert_eq!(begins(at(5000), Some(at(100))), at(5000));
    }

    /// Returns the processor time that maps get in work units of `piece_ms` ms, if they take all they may, while a file grows for a minute.
    fn worked(leaves: u8, cores: u32, piece_ms: u64) -> u64 {
        let mut pace = ProcessorPace::new(cores);
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
        /// While a file is being written, maps get at most their share of processor time. The exception is a work unit that takes longer
        /// than the debt that `ProcessorPace` remembers.
        #[test]
        fn maps_get_at_most_their_processor_share_while_files_grow(leaves in 1_u8..=99, cores in 1_u32..=4, piece in 1_u64..100) {
            let part = (60_000 * u64::from(100 - leaves) * u64::from(cores) / 100).min(60_000);
            let worked = worked(leaves, cores, piece);
            prop_assert!(worked <= part + piece + 60, "{worked} of {part}");
            prop_assert!(worked + piece + 60 >= part * 9 / 10 || part >= 50_000, "{worked} of {part}");
        }
    }

    #[test]
    fn processor_pace_forgets_debt_after_burst() {
        let mut pace = ProcessorPace::new(1);
        pace.on_grown(at(0));
        assert_eq!(pace.rest(90, at(0)), None);
        pace.on_worked(Span::from_secs(3600), at(1));
        // A piece of one hour does not cause a day of rest.
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
