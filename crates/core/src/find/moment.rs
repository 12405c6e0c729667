//! Times as people write them: a year, month, day, hour, minute or second, all of which is meant.

use crate::shown::day_of;

const DAY_SECONDS: f64 = 86_400.0;
const NANOS: i64 = 1_000_000_000;
const DAY_NANOS: i64 = 86_400 * NANOS;
/// Years that are counted, either side of 0.
const YEARS_MAX: i64 = 100_000;

/// A time as long as its smallest part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    date: (i64, i64, i64),
    /// The day after, month after, or year after, in which it ends, unless `seconds` says so.
    next: (i64, i64, i64),
    /// Seconds of the day at which it begins and ends.
    clock: Option<(i64, i64)>,
}

/// Where a time lies on a line that holds those of all calendars: a month of it has 31 days.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "years are few")]
pub fn place_in_time((year, month, day): (i64, i64, i64), seconds: f64) -> f64 {
    ((year * 12 + month - 1) * 31 + day - 1) as f64 * DAY_SECONDS + seconds
}

impl Moment {
    /// From `1990`, `1990-01`, `1990-01-31`, `1990-01-31T12`, `…T12:30`, `…T12:30:59`.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (date, clock) = match text.trim_end_matches('Z').split_once(['T', ' ']) {
            Some((date, clock)) => (date, Some(clock)),
            None => (text, None),
        };
        let parts: Vec<i64> = numbers(date, '-')?;
        let (year, month, day) = (
            *parts.first()?,
            *parts.get(1).unwrap_or(&1),
            *parts.get(2).unwrap_or(&1),
        );
        let fits = year <= YEARS_MAX && (1..=12).contains(&month) && (1..=31).contains(&day);
        if !fits || (clock.is_some() && parts.len() != 3) {
            return None;
        }
        let next = match parts.len() {
            1 => (year + 1, 1, 1),
            2 if month == 12 => (year + 1, 1, 1),
            2 => (year, month + 1, 1),
            _ => (year, month, day + 1),
        };
        let clock = match clock {
            Some(clock) => Some(of_day(clock)?),
            None => None,
        };
        let date = (year, month, day);
        Some(Self { date, next, clock })
    }

    /// Where it begins, and what comes after it, as [`place_in_time`] has it.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "seconds of a day")]
    pub fn places(&self) -> (f64, f64) {
        match self.clock {
            Some((from, to)) => (
                place_in_time(self.date, from as f64),
                place_in_time(self.date, to as f64),
            ),
            None => (place_in_time(self.date, 0.0), place_in_time(self.next, 0.0)),
        }
    }

    /// The same in nanoseconds since the Unix epoch (UTC); what that can't tell is its first or last moment.
    #[must_use]
    pub fn nanos(&self) -> (i64, i64) {
        let at = |(year, month, day): (i64, i64, i64), seconds: i64| {
            let first = day_of(year, month, 1) + day - 1;
            first
                .saturating_mul(DAY_NANOS)
                .saturating_add(seconds * NANOS)
        };
        match self.clock {
            Some((from, to)) => (at(self.date, from), at(self.date, to)),
            None => (at(self.date, 0), at(self.next, 0)),
        }
    }
}

fn numbers(text: &str, between: char) -> Option<Vec<i64>> {
    let number = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse().ok()).flatten()
    };
    let numbers: Option<Vec<i64>> = text.split(between).map(number).collect();
    numbers.filter(|numbers| numbers.len() <= 3)
}

/// The seconds of a day that a clock's time begins at, and those at which it ends.
fn of_day(text: &str) -> Option<(i64, i64)> {
    let parts = numbers(text, ':')?;
    let at = |place: usize| parts.get(place).copied().unwrap_or(0);
    let (hour, minute, second) = (at(0), at(1), at(2));
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let from = hour * 3600 + minute * 60 + second;
    Some((from, from + [3600, 60, 1][parts.len() - 1]))
}
