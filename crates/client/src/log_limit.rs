//! Limit for log lines that unauthenticated clients can cause: a number of lines per minute, then a count of the suppressed lines.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

const LINES_MAX: u32 = 20;
const PERIOD: Duration = Duration::from_secs(60);

/// Limit and counter of one kind of log line.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<SparseState>);

#[derive(Debug, Default)]
struct SparseState {
    begun: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl LogLimit {
    /// Returns a counter that has counted no lines.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(SparseState {
            begun: None,
            logged: 0,
            left_out: 0,
        }))
    }

    /// Returns whether a line may be written now: `Some` with the number of lines that were suppressed before.
    pub fn may(&self) -> Option<u64> {
        self.may_at(Instant::now())
    }

    fn may_at(&self, now: Instant) -> Option<u64> {
        let mut count = self.0.lock();
        if count.begun.is_none_or(|begun| now - begun >= PERIOD) {
            count.begun = Some(now);
            count.logged = 0;
        }
        if count.logged == LINES_MAX {
            count.left_out += 1;
            return None;
        }
        count.logged += 1;
        Some(std::mem::take(&mut count.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_limit_counts_suppressed_lines() {
        let sparse = LogLimit::new();
        let begin = Instant::now();
        for _ in 0..LINES_MAX {
            assert_eq!(sparse.may_at(begin), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(sparse.may_at(begin), None);
        }
        assert_eq!(sparse.may_at(begin + PERIOD), Some(1000));
        assert_eq!(sparse.may_at(begin + PERIOD), Some(0));
    }
}
