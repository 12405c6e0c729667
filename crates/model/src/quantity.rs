//! Numbers with units in the notation of users: sizes, rates and lengths of time. All parts of Tidemill read them here.
//!
//! `MB` is 10^6 bytes, and `MiB` is 2^20. Names of units are case-sensitive, and the space between number and unit is optional.

use crate::time::Span;

/// Unit of a quantity.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Name in text.
    pub name: &'static str,
    /// Value in the base unit: bytes, bytes per second, seconds, ….
    pub factor: f64,
    /// Use of the unit.
    pub form: UnitForm,
}

/// Use of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitForm {
    /// Values are printed in this unit.
    Printed,
    /// The unit is only parsed.
    Parsed,
    /// The unit is another spelling of a unit, which lists of units leave out.
    Short,
}

/// Returns a unit in which values are printed.
#[must_use]
pub const fn unit(name: &'static str, factor: f64) -> Unit {
    let form = UnitForm::Printed;
    Unit { name, factor, form }
}

/// Returns a unit that is only parsed.
#[must_use]
pub const fn alias(name: &'static str, factor: f64) -> Unit {
    let form = UnitForm::Parsed;
    Unit { name, factor, form }
}

const fn short(name: &'static str, factor: f64) -> Unit {
    let form = UnitForm::Short;
    Unit { name, factor, form }
}

const K: f64 = 1e3;
const KI: f64 = 1024.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// Units of data, in bytes.
pub const BYTES: &[Unit] = &[
    unit("B", 1.0),
    unit("kB", K),
    unit("MB", K * K),
    unit("GB", K * K * K),
    unit("TB", K * K * K * K),
    unit("PB", K * K * K * K * K),
    alias("KB", K),
    alias("KiB", KI),
    alias("MiB", KI * KI),
    alias("GiB", KI * KI * KI),
    alias("TiB", KI * KI * KI * KI),
    alias("PiB", KI * KI * KI * KI * KI),
    short("k", K),
    short("K", K),
    short("M", K * K),
    short("G", K * K * K),
    short("T", K * K * K * K),
    short("P", K * K * K * K * K),
    short("Ki", KI),
    short("Mi", KI * KI),
    short("Gi", KI * KI * KI),
    short("Ti", KI * KI * KI * KI),
    short("Pi", KI * KI * KI * KI * KI),
];

/// Units of rates, in bytes per second.
pub const RATES: &[Unit] = &[
    unit("B/s", 1.0),
    unit("kB/s", K),
    unit("MB/s", K * K),
    unit("GB/s", K * K * K),
    unit("TB/s", K * K * K * K),
    alias("KB/s", K),
    alias("KiB/s", KI),
    alias("MiB/s", KI * KI),
    alias("GiB/s", KI * KI * KI),
    alias("TiB/s", KI * KI * KI * KI),
    alias("Mbit/s", 1e6 / 8.0),
    alias("Gbit/s", 1e9 / 8.0),
    alias("Tbit/s", 1e12 / 8.0),
];

/// Units of time, in seconds.
pub const TIMES: &[Unit] = &[
    alias("ns", 1e-9),
    unit("us", 1e-6),
    unit("ms", 1e-3),
    unit("s", 1.0),
    unit("min", 60.0),
    unit("h", HOUR),
    unit("d", DAY),
    unit("y", 365.0 * DAY),
    short("m", 60.0),
];

/// Units of lengths of time that jobs and settings have, in seconds.
const LENGTHS: &[Unit] = &[
    unit("s", 1.0),
    unit("m", 60.0),
    unit("h", HOUR),
    unit("d", DAY),
    short("min", 60.0),
];

/// Text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not start with a number, or the number is not whole.
    #[error("it does not begin with a whole number")]
    Number,
    /// The unit does not measure this quantity.
    #[error("the unit {unit:?} is unknown; write a whole number with {known}")]
    Unit {
        /// The unit.
        unit: String,
        /// Known units.
        known: String,
    },
    /// The value is too large.
    #[error("the value is too large")]
    Large,
}

/// Splits a text into its number and its unit; each may be empty. An `e` belongs to the number only if an exponent follows.
#[must_use]
pub fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    while let Some(&byte) = bytes.get(end) {
        let sign = matches!(bytes.get(end + 1), Some(b'+' | b'-'));
        match byte {
            b'0'..=b'9' | b'.' => end += 1,
            b'+' | b'-' if end == 0 => end += 1,
            b'e' | b'E' if sign && is_digit(end + 2) => end += 2,
            b'e' | b'E' if is_digit(end + 1) => end += 1,
            _ => break,
        }
    }
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// Returns the unit of this name.
#[must_use]
pub fn find<'a>(units: &'a [Unit], name: &str) -> Option<&'a Unit> {
    units.iter().find(|unit| unit.name == name)
}

/// Returns the names of units for an error.
#[must_use]
pub fn known(units: &[Unit]) -> Vec<&'static str> {
    let listed = units.iter().filter(|unit| unit.form != UnitForm::Short);
    listed.map(|unit| unit.name).collect()
}

/// Parses a size in bytes: `4096`, `4kB`, `512MB`, `4G` (powers of 1000), `4KiB`, `512Mi` (powers of 1024).
///
/// # Errors
/// The text is not a size, or the size is too large.
pub fn size(text: &str) -> Result<u64, QuantityError> {
    whole(text, BYTES, "B")
}

/// Parses a length of time: `90`, `90s`, `5m`, `2h` or `1d`; a number alone means seconds.
///
/// # Errors
/// The text is not a length of time, or the length is too large.
pub fn duration(text: &str) -> Result<Span, QuantityError> {
    let seconds = whole(text, LENGTHS, "s")?;
    let nanos = seconds.checked_mul(1_000_000_000);
    let nanos = nanos.ok_or(QuantityError::Large)?;
    Ok(Span(nanos))
}

/// Parses a whole number of units whose factors are whole; `usual` is the unit of a number alone.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the factors are whole numbers below 2^53"
)]
fn whole(text: &str, units: &[Unit], usual: &str) -> Result<u64, QuantityError> {
    let (digits, unit) = split(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(QuantityError::Number);
    }
    let name = if unit.is_empty() { usual } else { unit };
    let found = find(units, name).ok_or_else(|| QuantityError::Unit {
        unit: unit.to_owned(),
        known: known(units).join(", "),
    })?;
    let number = digits.parse::<u64>().ok();
    let value = number.and_then(|number| number.checked_mul(found.factor as u64));
    value.ok_or(QuantityError::Large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantity_parses_durations_and_sizes() {
        let secs = |text| duration(text).ok().map(|span| span.0 / 1_000_000_000);
        assert_eq!(secs("90"), Some(90));
        assert_eq!(secs("90s"), Some(90));
        assert_eq!(secs("5 m"), Some(300));
        assert_eq!(secs("2h"), Some(7200));
        assert_eq!(secs("1d"), Some(86_400));
        for wrong in ["", "s", "-1s", "1w", "1.5h", "1m30", "99999999999999d"] {
            assert_eq!(secs(wrong), None, "{wrong}");
        }
        for (text, bytes) in [
            ("17", 17),
            ("17 B", 17),
            ("5kB", 5_000),
            ("5K", 5_000),
            ("3 M", 3_000_000),
            ("4GB", 4_000_000_000),
            ("2GiB", 2 << 30),
            ("512Mi", 512 << 20),
            ("1 TiB", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "M",
            "-1",
            "4g",
            "1.5G",
            "1e3",
            "1X",
            "1i",
            "1iB",
            "2ki",
            "99999999999T",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quantity_error_names_text_and_units() {
        let error = |text| size(text).unwrap_err().to_string();
        assert_eq!(
            error("4g"),
            "the unit \"g\" is unknown; write a whole number with B, kB, MB, GB, TB, PB, KB, KiB, MiB, GiB, TiB, PiB"
        );
        assert_eq!(error("1.5G"), "it does not begin with a whole number");
        assert_eq!(error("99999999999T"), "the value is too large");
        let error = duration("1w").unwrap_err().to_string();
        assert!(
            error.ends_with("write a whole number with s, m, h, d"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn quantity_parser_never_panics_on_any_text(text in "\\PC{0,20}") {
            let (number, unit) = split(&text);
            prop_assert!(number.len() + unit.len() <= text.len());
            let _ = (size(&text), duration(&text));
        }
    }
}
