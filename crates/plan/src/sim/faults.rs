//! Faults in a simulation: runs that fail at a rate, and devices that are full.

use super::platform::PlatformNode;
use tidemill_model::random::RandomSource;

/// Constant that separates the random numbers of faults from random numbers of a policy with the same seed.
const FAULTS: u64 = 0x6661_756c_7473;

/// Random decision which runs fail: a given share on average, depending only on the seed.
#[derive(Debug)]
pub(super) struct FailureDice(RandomSource);

impl FailureDice {
    pub(super) fn new(seed: u64) -> Self {
        Self(RandomSource::seeded(seed ^ FAULTS))
    }

    /// Returns whether a run on this node fails. No random number is drawn for a node without failures.
    #[expect(
        clippy::cast_precision_loss,
        reason = "no share needs more than 64 bits"
    )]
    pub(super) fn fails(&mut self, node: &PlatformNode) -> bool {
        let rate = node.failure_rate;
        rate > 0.0 && (self.0.next_u64() as f64) < rate * u64::MAX as f64
    }
}

/// Used space of a node's device, not counting replicas of other nodes' objects.
#[derive(Debug, Default)]
pub(super) struct UsedSpace {
    capacity: Option<u64>,
    used: u64,
}

impl UsedSpace {
    pub(super) fn of(node: &PlatformNode) -> Self {
        Self {
            capacity: node.capacity,
            used: 0,
        }
    }

    /// Adds the size of files that exist before the job.
    pub(super) fn holds(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
    }

    /// Returns the free space in bytes if `replicas` bytes of replicas are stored, too; `None` if the device has no limit.
    pub(super) fn free(&self, replicas: u64) -> Option<u64> {
        let taken = self.used.saturating_add(replicas);
        Some(self.capacity?.saturating_sub(taken))
    }

    /// Takes space for outputs. Returns whether the free space was sufficient.
    pub(super) fn take(&mut self, bytes: u64, replicas: u64) -> bool {
        let fits = self.free(replicas).is_none_or(|free| bytes <= free);
        if fits {
            self.holds(bytes);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_runs_fail_at_their_rate_reproducibly_by_seed() {
        let count = |rate, seed| {
            let node = PlatformNode {
                failure_rate: rate,
                ..PlatformNode::default()
            };
            let mut dice = FailureDice::new(seed);
            (0..10_000).filter(|_| dice.fails(&node)).count()
        };
        assert_eq!((count(0.0, 1), count(1.0, 1)), (0, 10_000));
        assert!((900..1100).contains(&count(0.1, 1)), "{}", count(0.1, 1));
        assert_eq!(count(0.1, 7), count(0.1, 7));
    }

    #[test]
    fn device_space_refuses_bytes_beyond_capacity() {
        let mut space = UsedSpace::of(&PlatformNode {
            capacity: Some(100),
            ..PlatformNode::default()
        });
        assert!(space.take(60, 0));
        assert!(!space.take(41, 0) && !space.take(40, 1));
        assert!(space.take(40, 0));
        assert_eq!(space.free(5), Some(0));
        assert!(UsedSpace::default().take(u64::MAX, u64::MAX));
    }
}
