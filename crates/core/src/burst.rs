//! The burst tier: elements that take what is written at the speed of their own device, and pass it on. When that is drained, and
//! what may go from there then.

pub mod share;

use crate::time::Span;
use std::str::FromStr;

/// What whoever syncs a folder waits for, as its attribute says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// That what was written survives power loss, as on any file system.
    Synced,
    /// And that all that was closed below it has drained from the burst tier.
    Drained,
}

impl FromStr for Durable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "synced" => Ok(Self::Synced),
            "drained" => Ok(Self::Drained),
            _ => Err(format!(
                "{text:?} is nothing that fsync of a folder can wait for: give synced, or drained"
            )),
        }
    }
}

/// When what lies in the burst tier drains, and how much of it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long after its seal a version is copied to elements that store.
    pub after: Span,
    /// Part of what an element could hold, in percent, above which drained versions go, the oldest first.
    pub high: u8,
    /// Part down to which they go.
    pub low: u8,
    /// What becomes of new files when the tier is full: true, they go to elements that store at once; false, they wait until
    /// something has drained.
    pub pass: bool,
    /// Part of what an element could hold, in percent, that users may be promised together ([`crate::promise`]).
    pub reserve: u8,
    /// Part of an element's processors, in percent, that maps of hooks leave to who writes there ([`share`]); 0: they wait for
    /// nobody.
    pub share: u8,
}

impl Default for Limits {
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

/// Limits that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the burst tier can't be emptied from {high} % down to {low} %: give two percentages, 1 to 99, the second not larger than the first"
)]
pub struct LimitsError {
    high: u8,
    low: u8,
}

impl Limits {
    /// They, if they make sense.
    ///
    /// # Errors
    /// If what is to be left is more than what is too much, or one of them is no part.
    pub fn checked(self) -> Result<Self, LimitsError> {
        let Self { high, low, .. } = self;
        match (1..=99).contains(&low) && (low..=99).contains(&high) {
            true => Ok(self),
            false => Err(LimitsError { high, low }),
        }
    }

    /// Bytes that are to go from an element so that it is not filled above the mark, and a new file can begin.
    #[must_use]
    pub fn to_go(&self, fill: Fill) -> u64 {
        let part = |percent: u8| {
            let part = u128::from(fill.capacity) * u128::from(percent) / 100;
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let stays = fill.used.saturating_sub(fill.going);
        let taken = stays.saturating_add(fill.aside);
        let begins = fill.capacity.saturating_sub(taken) >= fill.least;
        match taken > part(self.high) || (!begins && taken > part(self.low)) {
            true => (taken - part(self.low)).min(stays),
            false => 0,
        }
    }
}

/// How full an element is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// What it could hold.
    pub capacity: u64,
    /// What it holds.
    pub used: u64,
    /// What of that goes already.
    pub going: u64,
    /// What is set aside of the rest, for files that are being written and by promises ([`crate::promise`]): as good as taken.
    pub aside: u64,
    /// What a new file needs beside all that.
    pub least: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_go(capacity: u64, used: u64, going: u64, (aside, least): (u64, u64)) -> u64 {
        Limits::default().to_go(Fill {
            capacity,
            used,
            going,
            aside,
            least,
        })
    }

    #[test]
    fn to_go_starts_above_high_mark_and_stops_at_low_mark() {
        let to_go = |capacity, used, going| to_go(capacity, used, going, (0, 0));
        assert_eq!(to_go(1000, 800, 0), 0);
        assert_eq!(to_go(1000, 801, 0), 201);
        assert_eq!(to_go(1000, 900, 100), 0);
        assert_eq!(to_go(1000, 1000, 100), 300);
        assert_eq!(to_go(0, 0, 0), 0);
        assert_eq!(to_go(0, 5, 0), 5);
        assert_eq!(to_go(u64::MAX, u64::MAX, 0), u64::MAX - u64::MAX / 5 * 3);
        assert_eq!(to_go(100, 10, 20), 0);
    }

    #[test]
    fn to_go_counts_reserved_space_and_space_for_a_new_file() {
        assert_eq!(to_go(1000, 700, 0, (100, 0)), 0);
        assert_eq!(to_go(1000, 700, 0, (101, 0)), 201);
        // No more can go than there is.
        assert_eq!(to_go(1000, 100, 0, (900, 0)), 100);
        assert_eq!(to_go(1000, 100, 100, (900, 0)), 0);
        // Below the mark, but no file can begin: an element that is small, or has many files open.
        assert_eq!(to_go(100, 62, 0, (16, 16)), 0);
        assert_eq!(to_go(64, 50, 0, (0, 16)), 50 - 38);
        assert_eq!(to_go(20, 5, 0, (0, 16)), 0);
    }

    #[test]
    fn burst_limits_refuse_invalid_marks() {
        let limits = |high, low| {
            Limits {
                high,
                low,
                ..Limits::default()
            }
            .checked()
            .is_ok()
        };
        assert!(limits(80, 60) && limits(50, 50) && limits(99, 1));
        assert!(!limits(60, 80) && !limits(100, 50) && !limits(50, 0));
    }
}
