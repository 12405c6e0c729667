//! Comparison of the clocks of the node's host and of the server, whose clock decides when capabilities expire. The module has no effects.

use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tidemill_wire::{condition, v1};

/// Minimum difference of the clocks that is reported, because smaller differences do no harm.
const APART_MIN: Duration = Duration::from_secs(60);

/// Last known time of the server, and the time at which it arrived.
#[derive(Debug, Default)]
pub(crate) struct Clocks(Mutex<Option<(u64, Instant)>>);

impl Clocks {
    /// Records the server's current time, in nanoseconds since 1970.
    pub(crate) fn heard(&self, server_ns: u64) {
        *self.0.lock() = Some((server_ns, Instant::now()));
    }

    /// Returns the condition of this host's clock at the time `now_ns`; `None` if the difference does no harm.
    pub(crate) fn condition(&self, node: u32, now_ns: u64) -> Option<v1::Condition> {
        let apart = self.trouble(now_ns);
        (!apart.is_empty()).then(|| condition::NODE_CLOCK.of(Some(node), apart))
    }

    /// Returns the difference between the two clocks at the host's time `now_ns`, as human-readable text; empty if the difference does no
    /// harm.
    fn trouble(&self, now_ns: u64) -> String {
        let Some((server_ns, at)) = *self.0.lock() else {
            return String::new();
        };
        let since = u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        apart(server_ns.saturating_add(since), now_ns)
    }
}

fn apart(server_ns: u64, now_ns: u64) -> String {
    let difference = Duration::from_nanos(server_ns.abs_diff(now_ns));
    if difference < APART_MIN {
        return String::new();
    }
    let where_to = if now_ns < server_ns {
        "behind"
    } else {
        "ahead of"
    };
    format!(
        "the clock of its host is {} s {where_to} the server's: set both clocks; from 5 minutes on, other hosts can't read or write its files",
        difference.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_difference_over_limit_is_reported() {
        let second = 1_000_000_000;
        let clocks = Clocks::default();
        assert_eq!(clocks.trouble(7), "", "nothing is known yet");
        clocks.heard(1000 * second);
        assert_eq!(clocks.trouble(1050 * second), "");
        let ahead = clocks.trouble(4600 * second);
        assert!(ahead.contains("s ahead of the server's"), "{ahead}");
        let behind = apart(1000 * second, 100 * second);
        assert!(behind.contains("900 s behind the server's"), "{behind}");
    }
}
