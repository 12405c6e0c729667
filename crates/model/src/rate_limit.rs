//! Limit on the average rate of work: decides whether work that is counted in bytes may begin now.

use crate::time::Time;

/// Nanoseconds in a second.
const SECOND_NS: u128 = 1_000_000_000;

/// Limit in bytes per second. At most the bytes of one second are saved during a pause. Work that exceeds the saved bytes is begun
/// nevertheless, and the next work waits longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Rate in bytes per second; 0 for no limit.
    bytes_per_sec: u64,
    /// Saved bytes at time `at`; a negative number means that work has exceeded the rate.
    left: i128,
    at: Option<Time>,
}

impl RateLimit {
    /// Returns a limit of `bytes_per_sec` bytes per second; 0 for no limit.
    #[must_use]
    pub fn new(bytes_per_sec: u64) -> Self {
        Self {
            bytes_per_sec,
            left: i128::from(bytes_per_sec),
            at: None,
        }
    }

    /// Returns whether work of `bytes` bytes may begin now. If so, the bytes count towards the limit.
    pub fn take(&mut self, bytes: u64, now: Time) -> bool {
        if self.bytes_per_sec == 0 {
            return true;
        }
        let at = self.at.unwrap_or(now);
        let rate = u128::from(self.bytes_per_sec);
        let gained = u128::from(now.0.saturating_sub(at.0)) * rate / SECOND_NS;
        // Time for less than a byte is not lost.
        let counted = u64::try_from(gained * SECOND_NS / rate).unwrap_or(u64::MAX);
        self.at = Some(Time(at.0.saturating_add(counted)));
        let gained = i128::try_from(gained).unwrap_or(i128::MAX);
        let most = i128::from(self.bytes_per_sec);
        self.left = self.left.saturating_add(gained).min(most);
        let may = self.left > 0;
        if may {
            self.left -= i128::from(bytes);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomSource;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn rate_limit_bounds_average_to_rate_plus_largest_piece() {
        for seed in 0..50 {
            let mut dice = RandomSource::seeded(seed);
            let rate = 1 + dice.next_u64() % 1000;
            let (mut pace, mut now, mut done) = (RateLimit::new(rate), 0, 0);
            for _ in 0..2000 {
                now += dice.next_u64() % (SECOND / 10);
                let bytes = dice.next_u64() % 5000;
                done += if pace.take(bytes, Time(now)) {
                    bytes
                } else {
                    0
                };
                let most = u128::from(rate) * u128::from(now) / u128::from(SECOND);
                assert!(
                    u128::from(done) <= most + u128::from(rate) + 5000,
                    "seed {seed}"
                );
            }
            // The calls are so frequent that no time is left unused.
            let least = u128::from(rate) * u128::from(now) / u128::from(SECOND);
            assert!(
                u128::from(done) * 10 >= least * 9,
                "seed {seed}: {done} of {least}"
            );
        }
    }

    #[test]
    fn rate_limit_of_zero_is_unlimited() {
        let mut pace = RateLimit::new(0);
        assert!((0..10).all(|_| pace.take(u64::MAX, Time(0))));
    }
}
