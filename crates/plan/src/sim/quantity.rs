//! Numbers with units as platform and costs files have them: `15`, `15 ms`, `550 MB/s`, `1.5 GiB`.
//!
//! Units of bytes are powers of 1000 (`MB`, as device makers count) or of 1024 (`MiB`).

use super::error::Problem;
use tidemill_core::time::Span;

/// What a number measures, and so which units it may have and which it has without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes per second; MB/s without a unit.
    Bandwidth,
    /// Milliseconds without a unit, as the paper's platform files count.
    Latency,
    /// Seconds without a unit.
    Duration,
    /// Bytes.
    Size,
    /// Watts.
    Power,
    /// A plain number.
    Factor,
}

impl Kind {
    /// Units with what they stand for, in nanoseconds, bytes, bytes per second or watts; the first is taken
    /// where none is written.
    fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Bandwidth => &[
                ("MB/s", 1e6),
                ("B/s", 1.0),
                ("KB/s", 1e3),
                ("GB/s", 1e9),
                ("KiB/s", 1024.0),
                ("MiB/s", 1_048_576.0),
                ("GiB/s", 1_073_741_824.0),
            ],
            Self::Latency => &[("ms", 1e6), ("ns", 1.0), ("us", 1e3), ("s", 1e9)],
            Self::Duration => &[
                ("s", 1e9),
                ("ns", 1.0),
                ("us", 1e3),
                ("ms", 1e6),
                ("m", 60e9),
                ("h", 3600e9),
                ("d", 86_400e9),
            ],
            Self::Size => &[
                ("B", 1.0),
                ("KB", 1e3),
                ("MB", 1e6),
                ("GB", 1e9),
                ("TB", 1e12),
                ("KiB", 1024.0),
                ("MiB", 1_048_576.0),
                ("GiB", 1_073_741_824.0),
                ("TiB", 1_099_511_627_776.0),
            ],
            Self::Power => &[("W", 1.0), ("mW", 1e-3), ("kW", 1e3)],
            Self::Factor => &[("", 1.0)],
        }
    }
}

/// Largest number that is taken, in the unit's base: half of what 64 bits hold, so that sums of two fit.
const MAX: f64 = 9.2e18;

/// Reads a number with a unit into the base of its kind. `what` names it in errors.
pub(super) fn read(what: &str, text: &str, kind: Kind) -> Result<f64, Problem> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '_')))
        .unwrap_or(text.len());
    // An exponent is part of the number, but the `e` of no unit starts one.
    let end = exponent_end(text, end);
    let (number, unit) = text.split_at(end);
    let number: f64 = number
        .replace('_', "")
        .parse()
        .map_err(|_| Problem::Number {
            what: what.to_owned(),
            text: text.to_owned(),
        })?;
    let unit = unit.trim();
    let units = kind.units();
    let factor = match unit {
        "" => units.first().map(|(_, factor)| *factor),
        unit => units
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, factor)| *factor),
    };
    let factor = factor.ok_or_else(|| Problem::Unit {
        what: what.to_owned(),
        unit: unit.to_owned(),
        known: units.iter().map(|(name, _)| *name).collect(),
    })?;
    let value = number * factor;
    if value < 0.0 {
        return Err(Problem::Negative {
            what: what.to_owned(),
            text: text.to_owned(),
        });
    }
    if !value.is_finite() || value > MAX {
        return Err(Problem::Number {
            what: what.to_owned(),
            text: text.to_owned(),
        });
    }
    Ok(value)
}

fn exponent_end(text: &str, end: usize) -> usize {
    let Some(rest) = text[end..].strip_prefix(['e', 'E']) else {
        return end;
    };
    let sign = usize::from(rest.starts_with(['-', '+']));
    let digits = rest[sign..]
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len() - sign);
    if digits == 0 {
        end
    } else {
        end + 1 + sign + digits
    }
}

/// Reads a number that must not be zero.
pub(super) fn positive(what: &str, text: &str, kind: Kind) -> Result<f64, Problem> {
    let value = read(what, text, kind)?;
    if value > 0.0 {
        Ok(value)
    } else {
        Err(Problem::Zero {
            what: what.to_owned(),
        })
    }
}

/// To whole units: the edge where the planning's floats end.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what `read` gives is between 0 and MAX"
)]
pub(super) fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// Seconds as files have them, to nanoseconds; `None` if they are no length of time.
pub(super) fn seconds(seconds: f64) -> Option<Span> {
    let ns = seconds * 1e9;
    (0.0..MAX).contains(&ns).then(|| Span(whole(ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, kind: Kind) -> Option<u64> {
        read("x", text, kind).ok().map(whole)
    }

    #[test]
    fn numbers_have_the_unit_of_their_kind_unless_they_name_one() {
        assert_eq!(value("550", Kind::Bandwidth), Some(550_000_000));
        assert_eq!(value("1.5 GiB/s", Kind::Bandwidth), Some(1_610_612_736));
        assert_eq!(value("15", Kind::Latency), Some(15_000_000));
        assert_eq!(value("15us", Kind::Latency), Some(15_000));
        assert_eq!(value("2", Kind::Duration), Some(2_000_000_000));
        assert_eq!(value("1e3 B", Kind::Size), Some(1000));
        assert_eq!(value("2.5e-1 KB", Kind::Size), Some(250));
        assert_eq!(value("1_000", Kind::Size), Some(1000));
    }

    #[test]
    fn what_is_no_number_has_no_such_unit_or_is_negative_is_told() {
        for (text, part) in [
            ("", "not a number"),
            ("fast", "not a number"),
            ("1..2", "not a number"),
            ("1e999", "not a number"),
            ("5 MB", "MB/s, B/s"),
            ("-5", "negative"),
        ] {
            let error = read("read_bandwidth", text, Kind::Bandwidth).unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let error = positive("x", "0", Kind::Size).unwrap_err().to_string();
        assert!(error.contains("more than 0"), "{error}");
    }
}
