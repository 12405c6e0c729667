//! Parser of numbers with units in platform and costs files: `15`, `15 ms`, `550 MB/s`, `1.5 GiB`.
//!
//! The units are those of [`tidemill_model::quantity`] and [`crate::units`].

use super::error::FileProblem;
use crate::units::{Quantity, Watts};
use tidemill_model::quantity::{self, BYTES, RATES, TIMES, Unit, unit};
use tidemill_model::time::Span;

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

    /// Returns the units.
    fn units(self) -> &'static [Unit] {
        match self {
            Self::Bandwidth => RATES,
            Self::Latency | Self::Duration => TIMES,
            Self::Size => BYTES,
            Self::Power => Watts::UNITS,
            Self::Factor => FACTORS,
        }
    }

    /// Returns the number by which factors of units are multiplied: times are in nanoseconds.
    fn scale(self) -> f64 {
        match self {
            Self::Latency | Self::Duration => 1e9,
            _ => 1.0,
        }
    }
}

/// Plain numbers have no unit.
const FACTORS: &[Unit] = &[unit("", 1.0)];

/// Largest accepted number, in the base unit: half of the range of 64 bits, so that sums of two fit.
const MAX: f64 = 9.2e18;

/// Parses a number with a unit into the base unit of its kind. `what` is the name used in errors.
pub(super) fn read(what: &str, text: &str, kind: QuantityKind) -> Result<f64, FileProblem> {
    let text = text.trim();
    let (number, unit) = quantity::split(text);
    let number: f64 = number.parse().map_err(|_| FileProblem::Number {
        what: what.to_owned(),
        text: text.to_owned(),
    })?;
    let wanted = if unit.is_empty() { kind.usual() } else { unit };
    let known = quantity::find(kind.units(), wanted);
    let known = known.ok_or_else(|| FileProblem::Unit {
        what: what.to_owned(),
        unit: unit.to_owned(),
        known: quantity::known(kind.units()),
    })?;
    let value = number * (known.factor * kind.scale());
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
        assert_eq!(value("1 ns", QuantityKind::Latency), Some(1));
        assert_eq!(value("7 us", QuantityKind::Duration), Some(7_000));
        assert_eq!(
            value("2 min", QuantityKind::Duration),
            value("2 m", QuantityKind::Duration)
        );
    }

    #[test]
    fn invalid_quantity_is_reported() {
        for (text, part) in [
            ("", "not a number"),
            ("fast", "not a number"),
            ("1..2", "not a number"),
            ("1_000", "can't be measured in `_000`"),
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
