//! Parser of numbers with units in platform and costs files: `15`, `15 ms`, `550 MB/s`, `1.5 GiB`.
//!
//! Units of bytes, rates and powers are those of [`crate::units`].

use super::error::FileProblem;
use crate::units::{Bytes, BytesPerSecond, Quantity, Unit, Watts};
use tidemill_core::time::Span;

/// Kind of a number, which determines its possible units and its default unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuantityKind {
    /// Bytes per second; MB/s without a unit.
    Bandwidth,
    /// Milliseconds without a unit, as in the paper's platform files.
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

impl QuantityKind {
    /// Returns the default unit.
    fn usual(self) -> &'static str {
        match self {
            Self::Bandwidth => "MB/s",
            Self::Latency => "ms",
            Self::Duration => "s",
            Self::Size => "B",
            Self::Power => "W",
            Self::Factor => "",
        }
    }

    /// Returns the units with their values in nanoseconds, bytes, bytes per second or watts.
    fn units(self) -> Vec<(&'static str, f64)> {
        let of = |units: &'static [Unit]| units.iter().map(|unit| (unit.name, unit.factor));
        match self {
            Self::Bandwidth => of(BytesPerSecond::UNITS).collect(),
            Self::Latency => vec![("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)],
            Self::Duration => vec![
                ("ns", 1.0),
                ("us", 1e3),
                ("ms", 1e6),
                ("s", 1e9),
                ("m", 60e9),
                ("h", 3600e9),
                ("d", 86_400e9),
            ],
            Self::Size => of(Bytes::UNITS).collect(),
            Self::Power => of(Watts::UNITS).collect(),
            Self::Factor => vec![("", 1.0)],
        }
    }
}

/// Largest accepted number, in the base unit: half of the range of 64 bits, so that sums of two fit.
const MAX: f64 = 9.2e18;

/// Parses a number with a unit into the base unit of its kind. `what` is the name used in errors.
pub(super) fn read(what: &str, text: &str, kind: QuantityKind) -> Result<f64, FileProblem> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '_')))
        .unwrap_or(text.len());
    // An exponent is part of the number, but no unit begins with an `e`.
    let end = exponent_end(text, end);
    let (number, unit) = text.split_at(end);
    let number: f64 = number
        .replace('_', "")
        .parse()
        .map_err(|_| FileProblem::Number {
            what: what.to_owned(),
            text: text.to_owned(),
        })?;
    let unit = unit.trim();
    let units = kind.units();
    let wanted = if unit.is_empty() { kind.usual() } else { unit };
    let known = units.iter().find(|(name, _)| *name == wanted);
    let (_, factor) = known.ok_or_else(|| FileProblem::Unit {
        what: what.to_owned(),
        unit: unit.to_owned(),
        known: units.iter().map(|(name, _)| *name).collect(),
    })?;
    let value = number * factor;
    if value < 0.0 {
        return Err(FileProblem::Negative {
            what: what.to_owned(),
            text: text.to_owned(),
        });
    }
    if !value.is_finite() || value > MAX {
        return Err(FileProblem::Number {
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

/// Parses a number that must not be zero.
pub(super) fn positive(what: &str, text: &str, kind: QuantityKind) -> Result<f64, FileProblem> {
    let value = read(what, text, kind)?;
    if value > 0.0 {
        Ok(value)
    } else {
        Err(FileProblem::Zero {
            what: what.to_owned(),
        })
    }
}

/// Rounds to whole units: the border at which the floats of planning end.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what `read` gives is between 0 and MAX"
)]
pub(super) fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// Converts seconds of a file to nanoseconds; `None` if they are no valid length of time.
pub(super) fn seconds(seconds: f64) -> Option<Span> {
    let ns = seconds * 1e9;
    (0.0..MAX).contains(&ns).then(|| Span(whole(ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, kind: QuantityKind) -> Option<u64> {
        read("x", text, kind).ok().map(whole)
    }

    #[test]
    fn quantity_has_unit_of_its_kind_unless_given() {
        assert_eq!(value("550", QuantityKind::Bandwidth), Some(550_000_000));
        assert_eq!(
            value("1.5 GiB/s", QuantityKind::Bandwidth),
            Some(1_610_612_736)
        );
        assert_eq!(value("15", QuantityKind::Latency), Some(15_000_000));
        assert_eq!(value("15us", QuantityKind::Latency), Some(15_000));
        assert_eq!(value("2", QuantityKind::Duration), Some(2_000_000_000));
        assert_eq!(value("1e3 B", QuantityKind::Size), Some(1000));
        assert_eq!(value("2.5e-1 KB", QuantityKind::Size), Some(250));
        assert_eq!(value("2 kB", QuantityKind::Size), Some(2000));
        assert_eq!(value("1 MiB", QuantityKind::Size), Some(1_048_576));
        assert_eq!(
            value("1 Gbit/s", QuantityKind::Bandwidth),
            Some(125_000_000)
        );
        assert_eq!(value("1_000", QuantityKind::Size), Some(1000));
    }

    #[test]
    fn invalid_quantity_is_reported() {
        for (text, part) in [
            ("", "not a number"),
            ("fast", "not a number"),
            ("1..2", "not a number"),
            ("1e999", "not a number"),
            ("5 MB", "B/s, kB/s, MB/s"),
            ("-5", "negative"),
        ] {
            let error = read("read_bandwidth", text, QuantityKind::Bandwidth).unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let error = positive("x", "0", QuantityKind::Size)
            .unwrap_err()
            .to_string();
        assert!(error.contains("more than 0"), "{error}");
    }
}
