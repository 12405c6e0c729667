//! Dates and times in the notation of users: a year, month, day, hour, minute or second, which stands for the whole of it.

use crate::display::day_of;

const DAY_SECONDS: f64 = 86_400.0;
const NANOS: i64 = 1_000_000_000;
const DAY_NANOS: i64 = 86_400 * NANOS;
/// Maximum absolute value of years.
const YEARS_MAX: i64 = 100_000;

/// Example of a time, for errors.
pub const EXAMPLES: &str = "2026, 2026-01, 2026-01-31 or 2026-01-31T12:30";

/// Smallest given part of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CalendarUnit {
    Year,
    Month,
    Day,
    Clock,
}

/// Time with the length of its smallest part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalendarTime {
    unit: CalendarUnit,
    date: (i64, i64, i64),
    /// Next day, month or year, at which it ends, unless `clock` is set.
    next: (i64, i64, i64),
    /// Seconds of the day at which it begins and ends.
    clock: Option<(i64, i64)>,
}

/// Returns the position of a time on a line that holds the times of all calendars: each month on it has 31 days.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "years are few")]
pub fn place_in_time((year, month, day): (i64, i64, i64), seconds: f64) -> f64 {
    ((year * 12 + month - 1) * 31 + day - 1) as f64 * DAY_SECONDS + seconds
}

impl CalendarTime {
    /// Parses `1990`, `1990-01`, `1990-01-31`, `1990-01-31T12`, `…T12:30`, `…T12:30:59`.
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
        let unit = match (parts.len(), clock) {
            (_, Some(_)) => CalendarUnit::Clock,
            (1, None) => CalendarUnit::Year,
            (2, None) => CalendarUnit::Month,
            _ => CalendarUnit::Day,
        };
        let date = (year, month, day);
        Some(Self {
            unit,
            date,
            next,
            clock,
        })
    }

    /// Returns the smallest given part of the time.
    #[must_use]
    pub fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// Returns its start and its end as positions of [`place_in_time`].
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

    /// Returns the start and the end in nanoseconds since the Unix epoch (UTC); a time beyond this range is clamped to its first or last value.
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

/// Returns the seconds of a day at which a clock's time begins and ends.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn moment_spans_its_smallest_given_unit() {
        let places = |text| CalendarTime::read(text).unwrap().places();
        let same = |one: f64, other: f64| assert!(one.total_cmp(&other).is_eq(), "{one} {other}");
        let (start, end) = places("1990");
        same(start, place_in_time((1990, 1, 1), 0.0));
        same(end, place_in_time((1991, 1, 1), 0.0));
        for text in ["1990-12", "1990-12-31", "1990-12-31T23"] {
            same(places(text).1, end);
        }
        // The 30th of February is a day of some calendars.
        assert!(places("1990-02-30").0 < places("1990-03-01").0);
        let nanos = |text| CalendarTime::read(text).unwrap().nanos();
        assert_eq!(nanos("1970"), (0, 365 * 86_400_000_000_000));
        assert_eq!(nanos("1970-01-31").1, nanos("1970-02").0);
        assert_eq!(nanos("1970-01-01T00:01").0, 60_000_000_000);
        for text in [
            "1990-13",
            "1990-1-1-1",
            "1990-01T3",
            "99999999999",
            "-1",
            "1990-01-01T25",
            "",
            "-",
            "x",
        ] {
            assert_eq!(CalendarTime::read(text), None, "{text}");
        }
    }

    #[test]
    fn calendar_time_knows_its_smallest_unit() {
        let unit = |text| CalendarTime::read(text).unwrap().unit();
        assert_eq!(unit("1990"), CalendarUnit::Year);
        assert_eq!(unit("1990-02"), CalendarUnit::Month);
        assert_eq!(unit("1990-02-03"), CalendarUnit::Day);
        assert_eq!(unit("1990-02-03 04:05"), CalendarUnit::Clock);
    }

    proptest! {
        #[test]
        fn moment_places_and_nanos_are_ordered(text in "[0-9]{1,4}(-[01][0-9](-[0-3][0-9](T[0-2][0-9](:[0-5][0-9])?)?)?)?") {
            if let Some(moment) = CalendarTime::read(&text) {
                let ((from, to), (first, last)) = (moment.places(), moment.nanos());
                prop_assert!(from < to);
                prop_assert!(first <= last);
            }
        }
    }
}
