//! The burst tier: nodes that accept writes at the speed of their own device and copy the files to other nodes. This module defines
//! when files are staged out and how many staged-out files must be evicted; it does no I/O.

use std::str::FromStr;
use tidemill_model::time::Span;

/// Guarantee of an `fsync` of a directory, as set by the directory's attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// An `fsync` of the directory makes written data survive power loss, as on any file system.
    Synced,
    /// In addition, an `fsync` of the directory stages out all closed files below the directory from the burst tier.
    Staged,
}

impl FromStr for Durable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "synced" => Ok(Self::Synced),
            "staged" => Ok(Self::Staged),
            _ => Err(format!(
                "fsync of a directory can't wait for {text:?}: give synced or staged"
            )),
        }
    }
}

/// Limits that define when files in the burst tier are staged out, and how full the tier's nodes stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Time from the seal of a version until it is copied to nodes of the capacity tier.
    pub after: Span,
    /// Fill level of a node, in percent of its capacity, above which staged-out versions are evicted, the oldest first.
    pub high: u8,
    /// Fill level of a node, in percent of its capacity, down to which staged-out versions are evicted.
    pub low: u8,
    /// Handling of new files when the tier is full: if true, they are stored on nodes of the capacity tier at once; if false, they wait until a
    /// file is staged out.
    pub pass: bool,
    /// Share of a node's capacity, in percent, that all reservations of users together may take ([`crate::reservation`]).
    pub reserve: u8,
    /// Percentage of a node's processors that maps of hooks leave to writers ([`tidemill_model::processor_share`]); 0: maps do not wait.
    pub share: u8,
}

impl Default for TierLimits {
    fn default() -> Self {
        Self {
            after: Span::from_secs(30),
            high: 80,
            low: 60,
            pass: false,
            reserve: 50,
            share: 90,
        }
    }
}

/// The limits are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the burst tier can't evict files from {high} % down to {low} %: give two percentages, 1 to 99, the second not larger than the first"
)]
pub struct LimitsError {
    high: u8,
    low: u8,
}

impl TierLimits {
    /// Returns the limits of the burst tier if they are valid.
    ///
    /// # Errors
    /// If the lower fill level is above the upper one, or if either level is not from 1 to 99.
    pub fn checked(self) -> Result<Self, LimitsError> {
        let Self { high, low, .. } = self;
        match (1..=99).contains(&low) && (low..=99).contains(&high) {
            true => Ok(self),
            false => Err(LimitsError { high, low }),
        }
    }

    /// Returns the number of bytes to evict from a node so that its fill level is at most the upper level and a new file can be opened.
    #[must_use]
    pub fn to_evict(&self, fill: TierFill) -> u64 {
        let part = |percent: u8| {
            let part = u128::from(fill.capacity) * u128::from(percent) / 100;
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let stays = fill.used.saturating_sub(fill.evicting);
        let taken = stays.saturating_add(fill.aside);
        let begins = fill.capacity.saturating_sub(taken) >= fill.least;
        match taken > part(self.high) || (!begins && taken > part(self.low)) {
            true => (taken - part(self.low)).min(stays),
            false => 0,
        }
    }
}

/// Fill state of a node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierFill {
    /// Space that files on the node could take, in bytes.
    pub capacity: u64,
    /// Space that the node's files take, in bytes.
    pub used: u64,
    /// Part of `used` that is already being evicted, in bytes.
    pub evicting: u64,
    /// Part of the free space set aside for open files and for reservations ([`crate::reservation`]), in bytes. It counts as used.
    pub aside: u64,
    /// Space that a new file needs in addition, in bytes.
    pub least: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_evict(capacity: u64, used: u64, evicting: u64, (aside, least): (u64, u64)) -> u64 {
        TierLimits::default().to_evict(TierFill {
            capacity,
            used,
            evicting,
            aside,
            least,
        })
    }

    #[test]
    fn to_evict_starts_above_high_mark_and_stops_at_low_mark() {
        let to_evict = |capacity, used, evicting| to_evict(capacity, used, evicting, (0, 0));
        assert_eq!(to_evict(1000, 800, 0), 0);
        assert_eq!(to_evict(1000, 801, 0), 201);
        assert_eq!(to_evict(1000, 900, 100), 0);
        assert_eq!(to_evict(1000, 1000, 100), 300);
        assert_eq!(to_evict(0, 0, 0), 0);
        assert_eq!(to_evict(0, 5, 0), 5);
        assert_eq!(to_evict(u64::MAX, u64::MAX, 0), u64::MAX - u64::MAX / 5 * 3);
        assert_eq!(to_evict(100, 10, 20), 0);
    }

    #[test]
    fn to_evict_counts_reserved_space_and_space_for_a_new_file() {
        assert_eq!(to_evict(1000, 700, 0, (100, 0)), 0);
        assert_eq!(to_evict(1000, 700, 0, (101, 0)), 201);
        // No more bytes can be evicted than the node holds.
        assert_eq!(to_evict(1000, 100, 0, (900, 0)), 100);
        assert_eq!(to_evict(1000, 100, 100, (900, 0)), 0);
        // The fill level is below the mark, but no file can begin: the node is small, or has many open files.
        assert_eq!(to_evict(100, 62, 0, (16, 16)), 0);
        assert_eq!(to_evict(64, 50, 0, (0, 16)), 50 - 38);
        assert_eq!(to_evict(20, 5, 0, (0, 16)), 0);
    }

    #[test]
    fn burst_limits_refuse_invalid_marks() {
        let limits = |high, low| {
            TierLimits {
                high,
                low,
                ..TierLimits::default()
            }
            .checked()
            .is_ok()
        };
        assert!(limits(80, 60) && limits(50, 50) && limits(99, 1));
        assert!(!limits(60, 80) && !limits(100, 50) && !limits(50, 0));
    }
}
