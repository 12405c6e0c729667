//! Numbers for people: sizes, spans, points in time. Programs parse only the forms that people write: sizes, lengths of
//! time, and settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
pub(crate) use tidemill_model::display::bytes;
use tidemill_model::display::{civil, day_of};
use tidemill_model::quantity::{self, QuantityError};
use tidemill_model::replicas;
use tidemill_server::queue::{Address, AddressError, QueueLocation};

/// Number of bytes as people write it: `500MB`, `2GiB`, `1048576`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub(crate) struct ByteSize(pub(crate) u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl NumberOrText {
    /// Returns the text, or the number as text.
    fn text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

impl TryFrom<NumberOrText> for ByteSize {
    type Error = SizeError;

    fn try_from(text: NumberOrText) -> Result<Self, SizeError> {
        match text {
            NumberOrText::Number(bytes) => Ok(Self(bytes)),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

/// Number of replicas: `2`, `"2,now"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub(crate) struct ReplicaCount(pub(crate) replicas::WantedReplicas);

impl TryFrom<NumberOrText> for ReplicaCount {
    type Error = String;

    fn try_from(text: NumberOrText) -> Result<Self, String> {
        text.text().parse().map(Self)
    }
}

/// The text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size: {1}")]
pub(crate) struct SizeError(String, QuantityError);

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let bytes = quantity::size(text);
        bytes
            .map(Self)
            .map_err(|error| SizeError(text.to_owned(), error))
    }
}

/// Length of time as people write it, always with a unit: `90s`, `5m`, `2h`, `30d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub(crate) struct TimeLength(pub(crate) std::time::Duration);

/// The text is no length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LengthError {
    /// A plain number, which does not tell seconds from days.
    #[error("the time `{0}` has no unit: write `{0}s` for seconds, or a number with m, h or d")]
    NoUnit(String),
    /// Neither a number nor a unit.
    #[error("`{0}` is not a length of time: give a number with s, m, h or d, such as 30s")]
    NoTime(String),
}

impl FromStr for TimeLength {
    type Err = LengthError;

    fn from_str(text: &str) -> Result<Self, LengthError> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(LengthError::NoUnit(text.to_owned()));
        }
        let span = quantity::duration(text);
        let span = span.map_err(|_| LengthError::NoTime(text.to_owned()))?;
        Ok(Self(std::time::Duration::from_nanos(span.0)))
    }
}

impl TryFrom<NumberOrText> for TimeLength {
    type Error = LengthError;

    fn try_from(text: NumberOrText) -> Result<Self, LengthError> {
        text.text().parse()
    }
}

/// Value, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "NumberOrText")]
#[serde(bound = "T: FromStr, T::Err: std::fmt::Display")]
pub(crate) struct OrOff<T>(pub(crate) Option<T>);

impl<T: FromStr> FromStr for OrOff<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text {
            "off" => Ok(Self(None)),
            text => text.parse().map(|what| Self(Some(what))),
        }
    }
}

impl<T: FromStr> TryFrom<NumberOrText> for OrOff<T> {
    type Error = T::Err;

    fn try_from(text: NumberOrText) -> Result<Self, T::Err> {
        text.text().parse()
    }
}

/// Queue of labels as text: `journal`, or servers of NATS. The text may contain a password, so it is never printed, and is
/// parsed only when it is used.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct QueueText(pub(crate) String);

impl QueueText {
    /// Parses the text.
    pub(crate) fn place(&self) -> Result<QueueLocation, AddressError> {
        match self.0.as_str() {
            "journal" => Ok(QueueLocation::Own),
            _ => self.address().map(QueueLocation::Nats),
        }
    }

    /// Parses the text as the address of NATS servers.
    pub(crate) fn address(&self) -> Result<Address, AddressError> {
        self.0.parse()
    }
}

impl From<String> for QueueText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Debug for QueueText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueueText(..)")
    }
}

/// Formats a span of nanoseconds: `4 ms`, `1.25 s`, `3 min 20 s`.
#[expect(clippy::cast_precision_loss, reason = "display only")]
pub(crate) fn span(nanos: u64) -> String {
    match nanos {
        0 => "0 s".into(),
        1..1_000_000 => format!("{} µs", nanos.div_ceil(1_000)),
        1_000_000..1_000_000_000 => format!("{} ms", nanos / 1_000_000),
        1_000_000_000..60_000_000_000 => format!("{:.2} s", nanos as f64 / 1e9),
        _ => {
            let seconds = nanos / 1_000_000_000;
            match seconds / 3600 {
                0 => format!("{} min {} s", seconds / 60, seconds % 60),
                hours => format!("{hours} h {} min", seconds % 3600 / 60),
            }
        }
    }
}

/// Formats nanoseconds since the epoch as `2026-11-21 10:32:47` in UTC; `-` for 0.
pub(crate) fn time(nanos: i64) -> String {
    if nanos == 0 {
        return "-".into();
    }
    let seconds = nanos.div_euclid(1_000_000_000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day % 3600 / 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Parses a time in UTC as [`time`] formats it, with an optional fraction of the second, in nanoseconds since the epoch.
pub(crate) fn parse_time(text: &str) -> Result<i64, String> {
    let parse = || {
        let (date, of_day) = text
            .strip_suffix('Z')
            .unwrap_or(text)
            .split_once([' ', 'T'])?;
        let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let (whole, fraction) = of_day.split_once('.').unwrap_or((of_day, ""));
        let mut whole = whole.split(':').map(|part| part.parse::<i64>().ok());
        let (hour, minute, second) = (whole.next()??, whole.next()??, whole.next()??);
        let nanos: i64 = format!("{fraction:0<9}").parse().ok()?;
        (1..10_000).contains(&year).then_some(())?;
        (1..13).contains(&month).then_some(())?;
        let days = day_of(year, month, day);
        let valid = civil(days) == (year, month, day)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute)
            && (0..60).contains(&second)
            && (0..1_000_000_000).contains(&nanos);
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
        seconds
            .checked_mul(1_000_000_000)?
            .checked_add(nanos)
            .filter(|_| valid)
    };
    parse().ok_or_else(|| "expected a time in UTC, such as `2026-11-30 09:15:00`".into())
}

/// Returns the present time.
pub(crate) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = since.map_or(0, |since| since.as_nanos());
    Time(i64::try_from(nanos).unwrap_or(i64::MAX))
}

/// Formats type and mode as `ls -l` does, such as `-rwxr-x---`.
pub(crate) fn mode(kind: char, mode: u32) -> String {
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Formats a count with its noun: `3 tasks`, `1 task`.
pub(crate) fn count(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// Declares a number with a unit: a plain number for programs, a short text for people.
macro_rules! quantity {
    ($(#[$meta:meta])* $name:ident($number:ty) as $text:path) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
        pub(crate) struct $name(pub(crate) $number);

        impl From<$number> for $name {
            fn from(number: $number) -> Self {
                Self(number)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&$text(self.0))
            }
        }
    };
}

quantity! {
    /// Number of bytes.
    Bytes(u64) as bytes
}

quantity! {
    /// Length of time in nanoseconds.
    Span(u64) as span
}

quantity! {
    /// Point in time: nanoseconds since 1970-01-01 00:00 UTC. 0 stands for a time that has not come or is not known.
    Time(i64) as time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_formats_calendar_dates() {
        assert_eq!(time(0), "-");
        assert_eq!(time(951_782_400_000_000_000), "2000-02-29 00:00:00");
        assert_eq!(time(1_795_257_167_000_000_000), "2026-11-21 10:32:47");
        assert_eq!(time(-1_000_000_000), "1969-12-31 23:59:59");
    }

    #[test]
    fn span_format_picks_fitting_unit() {
        assert_eq!(span(999), "1 µs");
        assert_eq!(span(4_000_000), "4 ms");
        assert_eq!(span(1_250_000_000), "1.25 s");
        assert_eq!(span(200_000_000_000), "3 min 20 s");
        assert_eq!(span(7_320_000_000_000), "2 h 2 min");
    }

    #[test]
    fn time_is_parsed_as_formatted() {
        for nanos in [1_700_000_000_000_000_000, 1, 951_782_400_000_000_000] {
            let second = nanos / 1_000_000_000 * 1_000_000_000;
            assert_eq!(parse_time(&time(nanos)), Ok(second));
        }
        assert_eq!(parse_time("1970-01-01T00:00:01.5Z"), Ok(1_500_000_000));
        for text in [
            "",
            "now",
            "2026-02-30 00:00:00",
            "2026-11-30",
            "2026-11-30 24:00:00",
            "2026-11-30 1:2",
            "2026-11-30 00:00:00.x",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn time_length_needs_unit() {
        let secs = |text: &str| text.parse::<TimeLength>().map(|time| time.0.as_secs());
        assert_eq!(secs("10s"), Ok(10));
        assert_eq!(secs("5 m"), Ok(300));
        assert_eq!(secs("10"), Err(LengthError::NoUnit("10".into())));
        assert!(secs("10").unwrap_err().to_string().contains("`10s`"));
        for wrong in ["", "s", "-1s", "1w"] {
            assert_eq!(secs(wrong), Err(LengthError::NoTime(wrong.into())));
        }
        assert!("7".parse::<OrOff<TimeLength>>().is_err());
    }

    #[test]
    fn mode_formats_like_ls() {
        assert_eq!(mode('d', 0o1777), "drwxrwxrwt");
        assert_eq!(mode('-', 0o4640), "-rwSr-----");
    }
}
