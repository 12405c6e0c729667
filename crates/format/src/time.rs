//! Times in CF notation (`days since 1850-01-01`, in several calendars), and the indices of a coordinate within a time span.
//!
//! The code follows the CF conventions, section 4.4. The units month and year are months and years of the calendar: `1 months since
//! 2000-01-31` is 29 February, and a fraction means that part of the month in which it falls.

use std::fmt;

use crate::{Error, IndexRange, Result, Variable};

/// Calendar: rule for counting days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calendar {
    /// Julian calendar up to 4 October 1582, Gregorian from 15 October 1582 on: `standard`, `gregorian`.
    Standard,
    /// Gregorian calendar at all times.
    Gregorian,
    /// Julian calendar at all times.
    Julian,
    /// Every year is without 29 February.
    NoLeap,
    /// Every year has 29 February.
    AllLeap,
    /// Every year has twelve months of 30 days.
    Days360,
}

const MONTHS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
/// Maximum distance of supported years from the year 0.
const YEARS_MAX: i64 = 100_000;
/// 15 October 1582, the first Gregorian day, as days since 1 March of the year 0 in the Gregorian calendar.
const FIRST_GREGORIAN: i64 = 578_041;

impl Calendar {
    /// Returns the calendar with this name in the CF conventions.
    ///
    /// # Errors
    /// If the name of the calendar is not known.
    pub fn named(name: &str) -> Result<Self> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "standard" | "gregorian" | "" => Self::Standard,
            "proleptic_gregorian" => Self::Gregorian,
            "julian" => Self::Julian,
            "noleap" | "365_day" => Self::NoLeap,
            "all_leap" | "366_day" => Self::AllLeap,
            "360_day" => Self::Days360,
            _ => {
                let why = "no calendar that is known: standard, proleptic_gregorian, julian, noleap, all_leap, 360_day".into();
                return Err(Error::Time {
                    text: name.into(),
                    why,
                });
            }
        })
    }

    fn is_leap(self, year: i64, julian: bool) -> bool {
        match self {
            Self::NoLeap | Self::Days360 => false,
            Self::AllLeap => true,
            _ if julian => year.rem_euclid(4) == 0,
            _ => {
                year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0)
            }
        }
    }

    /// Returns whether this calendar counts a day with Julian leap years.
    fn is_julian(self, day: Date) -> bool {
        self == Self::Julian
            || self == Self::Standard && (day.year, day.month, day.day) < (1582, 10, 15)
    }

    fn month_days(self, year: i64, month: i64, julian: bool) -> i64 {
        match self {
            Self::Days360 => 30,
            _ if month == 2 => 28 + i64::from(self.is_leap(year, julian)),
            _ => usize::try_from(month - 1)
                .ok()
                .and_then(|month| MONTHS.get(month))
                .copied()
                .unwrap_or(0),
        }
    }

    /// Returns the number of a day in this calendar.
    fn number(self, day: Date) -> i64 {
        let Date {
            year,
            month,
            day: of_month,
        } = day;
        // Years begin in March, so that a leap day is the last day.
        let (shifted, from_march) = if month > 2 {
            (year, month - 3)
        } else {
            (year - 1, month + 9)
        };
        let in_year = (153 * from_march + 2) / 5 + of_month - 1;
        match self {
            Self::Days360 => year * 360 + (month - 1) * 30 + of_month - 1,
            Self::NoLeap | Self::AllLeap => {
                let before: i64 = (1..month)
                    .map(|month| self.month_days(year, month, false))
                    .sum();
                year * (365 + i64::from(self == Self::AllLeap)) + before + of_month - 1
            }
            // On 1 March 0 the Julian calendar was two days before the Gregorian one.
            _ if self.is_julian(day) => shifted * 365 + shifted.div_euclid(4) + in_year - 2,
            _ => {
                shifted * 365 + shifted.div_euclid(4) - shifted.div_euclid(100)
                    + shifted.div_euclid(400)
                    + in_year
            }
        }
    }

    /// Returns the second of the calendar at which a day begins.
    #[expect(
        clippy::cast_precision_loss,
        reason = "days of 200 000 years are far below 2^52"
    )]
    fn seconds(self, day: Date) -> f64 {
        self.number(day) as f64 * DAY
    }

    /// Returns the day that contains a second of the calendar, if the day's year is supported.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked against the years that are counted"
    )]
    fn at(self, seconds: f64) -> Option<Date> {
        let day = (seconds / DAY).floor();
        (day.abs() < 366.0 * YEARS_MAX as f64).then(|| self.day(day as i64))
    }

    /// Returns the day with a number in this calendar.
    fn day(self, number: i64) -> Date {
        // The estimate is wrong by at most a year; the search then continues month by month.
        let mut year = number * 400 / 146_097;
        if self == Self::Days360 {
            year = number.div_euclid(360);
        }
        while self.number(Date {
            year,
            month: 1,
            day: 1,
        }) > number
        {
            year -= 1;
        }
        while self.number(Date {
            year: year + 1,
            month: 1,
            day: 1,
        }) <= number
        {
            year += 1;
        }
        let month = (1..=12)
            .rev()
            .find(|month| {
                self.number(Date {
                    year,
                    month: *month,
                    day: 1,
                }) <= number
            })
            .unwrap_or(1);
        let mut day = number
            - self.number(Date {
                year,
                month,
                day: 1,
            })
            + 1;
        // In October 1582 there is no day between the 4th and the 15th.
        if self == Self::Standard && number >= FIRST_GREGORIAN && (year, month) == (1582, 10) {
            day += 10;
        }
        Date { year, month, day }
    }
}

/// Day of a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    /// Year of the date; year 0 precedes year 1.
    pub year: i64,
    /// Month of the date, 1 to 12.
    pub month: i64,
    /// Day of the month, 1 to 31.
    pub day: i64,
}

impl fmt::Display for Date {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// Day of a calendar and time of the day.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DateTime {
    /// Day of a calendar.
    pub date: Date,
    /// Second of the day.
    pub seconds: f64,
}

impl fmt::Display for DateTime {
    /// Writes the day, and the time unless it is the start of the day.
    #[expect(clippy::cast_possible_truncation, reason = "a day has few seconds")]
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.date.fmt(out)?;
        if self.seconds == 0.0 {
            return Ok(());
        }
        let whole = self.seconds.floor();
        let (seconds, rest) = (whole as i64, ((self.seconds - whole) * 1e3).round() as i64);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(out, "T{hour:02}:{minute:02}:{second:02}")?;
        if rest > 0 {
            write!(out, ".{:03}", rest.min(999))?;
        }
        Ok(())
    }
}

impl DateTime {
    /// Returns the hour of the day, 0 to 23.
    #[expect(clippy::cast_possible_truncation, reason = "a day has few hours")]
    pub fn hour(&self) -> i64 {
        (self.seconds / 3600.0) as i64
    }
}

/// Units of a time coordinate: length of a unit, start and calendar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Units {
    calendar: Calendar,
    /// Length of one unit in seconds; 0 for months and years.
    seconds: f64,
    /// Length of one unit in months; 0 for units of a fixed length.
    months: i64,
    /// Second of the calendar at which the units begin to count.
    since: f64,
}

const DAY: f64 = 86_400.0;

/// Returns the text before ` since `, in any letter case, and the text after it.
fn halves(units: &str) -> Option<(&str, &str)> {
    const SINCE: &str = " since ";
    let at = units.to_ascii_lowercase().find(SINCE)?;
    Some((&units[..at], &units[at + SINCE.len()..]))
}

impl Units {
    /// Parses the texts of the attributes `units` and `calendar`.
    ///
    /// # Errors
    /// If the texts are not units of time since a time.
    pub fn parse(units: &str, calendar: &str) -> Result<Self> {
        let wrong = |why: &str| Error::Time {
            text: units.into(),
            why: why.into(),
        };
        let calendar = Calendar::named(calendar)?;
        let (unit, since) =
            halves(units).ok_or_else(|| wrong("no units of time (days since 1850-01-01)"))?;
        let (seconds, months) = match unit.trim().to_lowercase().as_str() {
            "year" | "years" | "yr" | "yrs" => (0.0, 12),
            "month" | "months" | "mon" | "mons" => (0.0, 1),
            "common_year" | "common_years" => (365.0 * DAY, 0),
            "week" | "weeks" => (7.0 * DAY, 0),
            "day" | "days" | "d" => (DAY, 0),
            "hour" | "hours" | "hr" | "hrs" | "h" => (3600.0, 0),
            "minute" | "minutes" | "min" | "mins" => (60.0, 0),
            "second" | "seconds" | "sec" | "secs" | "s" => (1.0, 0),
            "millisecond" | "milliseconds" | "msec" | "msecs" | "ms" => (1e-3, 0),
            "microsecond" | "microseconds" | "microsec" | "microsecs" | "us" | "\u{b5}s"
            | "\u{3bc}s" => (1e-6, 0),
            "nanosecond" | "nanoseconds" | "nanosec" | "nanosecs" | "ns" => (1e-9, 0),
            _ => {
                return Err(wrong(
                    "the unit is none of years, months, weeks, days, hours, minutes, seconds, milliseconds, microseconds, nanoseconds",
                ));
            }
        };
        let since = TimeText::parse(since.trim(), calendar)?.start;
        Ok(Self {
            calendar,
            seconds,
            months,
            since,
        })
    }

    /// Returns the time units of a variable, if it has any.
    ///
    /// # Errors
    /// If the time units of the variable are invalid.
    pub fn of(variable: &Variable) -> Result<Option<Self>> {
        match variable.text("units") {
            Some(units) if halves(units).is_some() => {
                Self::parse(units, variable.text("calendar").unwrap_or("standard")).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the day of a coordinate value; `None` if its year is not supported.
    pub fn date(&self, value: f64) -> Option<Date> {
        self.moment(value).map(|moment| moment.date)
    }

    /// Returns the day and time of a coordinate value, rounded to the nearest millisecond.
    pub fn moment(&self, value: f64) -> Option<DateTime> {
        let seconds = (self.seconds(value) * 1e3).round() / 1e3;
        let day = (seconds / DAY).floor();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "checked against what is counted"
        )]
        (day.abs() < 366.0 * YEARS_MAX as f64).then(|| DateTime {
            date: self.calendar.day(day as i64),
            seconds: seconds - day * DAY,
        })
    }

    /// Converts a coordinate value to seconds of the calendar; NaN if its year is not supported.
    pub fn seconds(&self, value: f64) -> f64 {
        if self.months == 0 {
            return self.since + value * self.seconds;
        }
        let months = value * self.months as f64;
        let counted = months.abs() < (12 * YEARS_MAX) as f64;
        if !counted {
            return f64::NAN;
        }
        let whole = months.floor();
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let (start, end) = (self.after(whole as i64), self.after(whole as i64 + 1));
        start + (months - whole) * (end - start)
    }

    /// Returns the coordinate value for a second of the calendar.
    pub fn value(&self, seconds: f64) -> f64 {
        if self.months == 0 {
            return (seconds - self.since) / self.seconds;
        }
        let (Some(date), Some(since)) = (self.calendar.at(seconds), self.calendar.at(self.since))
        else {
            return f64::NAN;
        };
        let mut month = (date.year - since.year) * 12 + date.month - since.month;
        while self.after(month) > seconds {
            month -= 1;
        }
        let (start, end) = (self.after(month), self.after(month + 1));
        let (month, of_one) = (month as f64, self.months as f64);
        (month + (seconds - start) / (end - start)) / of_one
    }

    /// Returns the second of the calendar at `months` months after the start: on the same day of the month, or on the month's last day.
    fn after(&self, months: i64) -> f64 {
        let Some(since) = self.calendar.at(self.since) else {
            return f64::NAN;
        };
        let month = since.year * 12 + since.month - 1 + months;
        let first = Date {
            year: month.div_euclid(12),
            month: month.rem_euclid(12) + 1,
            day: 1,
        };
        let julian = self.calendar.is_julian(first);
        let last = self.calendar.month_days(first.year, first.month, julian);
        let date = Date {
            day: since.day.min(last),
            ..first
        };
        self.calendar.seconds(date) + self.since.rem_euclid(DAY)
    }

    /// Returns the coordinate value at which a day begins. Months after the twelfth are months of the next years.
    pub fn at(&self, date: Date) -> f64 {
        let month = date.year * 12 + date.month - 1;
        self.value(self.calendar.seconds(Date {
            year: month.div_euclid(12),
            month: month.rem_euclid(12) + 1,
            day: date.day,
        }))
    }

    /// Returns whether the calendar of other units counts days in the same way, at least from the second `from` of the calendar on.
    pub fn same_calendar(&self, other: &Self, from: f64) -> bool {
        let gregorian = from >= FIRST_GREGORIAN as f64 * DAY;
        let is_gregorian = |units: &Self| {
            matches!(units.calendar, Calendar::Standard | Calendar::Gregorian) && gregorian
        };
        self.calendar == other.calendar || is_gregorian(self) && is_gregorian(other)
    }

    /// Returns the coordinate values from the start of one text (`1990-01`) to the end of another (`1999-12`, to the last moment of that
    /// month): the first value, and the value after the last.
    ///
    /// # Errors
    /// If a text is not a time.
    pub fn span(&self, from: &str, to: &str) -> Result<(f64, f64)> {
        let from = TimeText::parse(from, self.calendar)?.start;
        let to = TimeText::parse(to, self.calendar)?.end;
        Ok((self.value(from), self.value(to)))
    }
}

/// Time in a text: its length is the length of its smallest part (a year, a month, a day, an hour, a minute, a second).
struct TimeText {
    start: f64,
    end: f64,
}

impl TimeText {
    fn parse(text: &str, calendar: Calendar) -> Result<Self> {
        let wrong = |why: &str| Error::Time {
            text: text.into(),
            why: why.into(),
        };
        let (date, clock) = match text.split_once(['T', ' ']) {
            Some((date, clock)) => (date, clock.trim()),
            None => (text, ""),
        };
        let (negative, date) = date
            .strip_prefix('-')
            .map_or((false, date), |date| (true, date));
        let parts: Option<Vec<i64>> = date.split('-').map(|part| part.parse().ok()).collect();
        let parts = parts
            .filter(|parts| parts.len() <= 3)
            .ok_or_else(|| wrong("no date (1990-01-31)"))?;
        let year = if negative { -parts[0] } else { parts[0] };
        let (month, day) = (
            parts.get(1).copied().unwrap_or(1),
            parts.get(2).copied().unwrap_or(1),
        );
        if !(-YEARS_MAX..=YEARS_MAX).contains(&year) || !(1..=12).contains(&month) {
            return Err(wrong("no such month"));
        }
        let date = Date { year, month, day };
        let days = calendar.month_days(year, month, calendar.is_julian(date));
        if !(1..=days).contains(&day)
            || (calendar == Calendar::Standard
                && (1582, 10) == (year, month)
                && (5..15).contains(&day))
        {
            return Err(wrong("no such day in this calendar"));
        }
        let next = match parts.len() {
            1 => Date {
                year: year + 1,
                month: 1,
                day: 1,
            },
            2 if month == 12 => Date {
                year: year + 1,
                month: 1,
                day: 1,
            },
            2 => Date {
                year,
                month: month + 1,
                day: 1,
            },
            _ => date,
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "days of 200 000 years are far below 2^52"
        )]
        let seconds = |day: i64| day as f64 * DAY;
        let start = seconds(calendar.number(date));
        if parts.len() < 3 {
            return Ok(Self {
                start,
                end: seconds(calendar.number(next)),
            });
        }
        let (offset, len) = clock_of(clock).ok_or_else(|| wrong("no time of day (23:59:59)"))?;
        Ok(Self {
            start: start + offset,
            end: start + offset + len,
        })
    }
}

/// Returns the seconds since midnight, and the length of the time in the text: a day if the text is empty.
fn clock_of(text: &str) -> Option<(f64, f64)> {
    let text = text
        .trim()
        .trim_end_matches("UTC")
        .trim_end_matches('Z')
        .trim();
    let (text, zone) = match text.find(['+', '-', ' ']) {
        Some(at) => (text[..at].trim(), text[at..].trim()),
        None => (text, ""),
    };
    let zone = match zone.trim_start_matches(['+', '-']) {
        "" => 0.0,
        hours => {
            let (hours, minutes) = hours.split_once(':').unwrap_or((hours, "0"));
            let away = hours.parse::<f64>().ok()? * 3600.0 + minutes.parse::<f64>().ok()? * 60.0;
            if zone.starts_with('-') { -away } else { away }
        }
    };
    if text.is_empty() {
        return Some((-zone, DAY));
    }
    let mut parts = text.split(':');
    let hours: f64 = parts.next()?.parse().ok()?;
    let (minutes, seconds) = (parts.next(), parts.next());
    let number = |part: Option<&str>| part.map_or(Some(0.0), |part| part.parse::<f64>().ok());
    let len = match (minutes, seconds) {
        (None, _) => 3600.0,
        (_, None) => 60.0,
        _ => 1.0,
    };
    let (minutes, seconds) = (number(minutes)?, number(seconds)?);
    let fits = (0.0..=24.0).contains(&hours)
        && (0.0..60.0).contains(&minutes)
        && (0.0..61.0).contains(&seconds);
    (fits && parts.next().is_none())
        .then_some((hours * 3600.0 + minutes * 60.0 + seconds - zone, len))
}

/// Returns the indices of a coordinate whose values are at least `low` and below `high` (`through`: at most `high`). The indices are
/// consecutive, because coordinates ascend or descend. Returns `None` if there are gaps in them.
pub fn between(values: &[f64], low: f64, high: f64, through: bool) -> Option<IndexRange> {
    let inside = |value: &f64| *value >= low && (*value < high || through && *value <= high);
    let Some(first) = values.iter().position(inside) else {
        return Some(IndexRange {
            start: 0,
            end: 0,
            step: 1,
        });
    };
    let last = values.iter().rposition(inside).unwrap_or(first);
    let whole = values[first..=last].iter().all(inside);
    whole.then_some(IndexRange {
        start: first as u64,
        end: last as u64 + 1,
        step: 1,
    })
}
