//! Physical quantities: small types over `f64` in SI units, with only the arithmetic that makes sense.
//!
//! Text carries its unit: `"1.5 TB/s"`, `"10 pJ/bit"`, `"$0.30/kWh"`. **Bytes are counted in powers of 1024**, as
//! in Tables 1 to 4 of the Active Flash paper: a KB is 1024 bytes, and `KiB` means the same. Bits are counted in
//! powers of 1000, as networks do: 1 Gbit/s is 125 000 000 B/s. A year is 365 days. Unit names are
//! case-sensitive, and a space between number and unit may be left out. What is read must be more than zero and
//! finite; what is computed may have either sign (an energy that is saved is negative).
//!
//! Serialised, a quantity is a bare number in its SI unit (bytes, seconds, joules, watts); read, it is text.

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};
use std::fmt;
use std::iter::Sum;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::str::FromStr;
use thiserror::Error;

/// Text that is no quantity.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum UnitError {
    /// It does not start with a number.
    #[error("\"{text}\" has no number; write {quantity} as \"{example}\"")]
    NoNumber {
        /// What was read.
        text: String,
        /// What it should have been.
        quantity: &'static str,
        /// How to write one.
        example: &'static str,
    },
    /// A number without a unit.
    #[error("\"{text}\" has no unit; write {quantity} as \"{example}\"")]
    NoUnit {
        /// What was read.
        text: String,
        /// What it should have been.
        quantity: &'static str,
        /// How to write one.
        example: &'static str,
    },
    /// A unit that does not measure this quantity.
    #[error("unknown unit \"{unit}\" in \"{text}\"; {quantity} is in {known}")]
    UnknownUnit {
        /// What was read.
        text: String,
        /// The part after the number.
        unit: String,
        /// What it should have been.
        quantity: &'static str,
        /// The units there are.
        known: String,
    },
    /// Zero, less, or too much to count.
    #[error("\"{text}\" is not above zero and finite, as {quantity} must be")]
    NotPositive {
        /// What was read.
        text: String,
        /// What it should have been.
        quantity: &'static str,
    },
}

/// A unit of a quantity.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// As it is written.
    pub name: &'static str,
    /// One of it in the SI unit.
    pub factor: f64,
    /// Whether values are printed in it; others are only read.
    pub printed: bool,
}

const fn unit(name: &'static str, factor: f64) -> Unit {
    Unit {
        name,
        factor,
        printed: true,
    }
}

const fn alias(name: &'static str, factor: f64) -> Unit {
    Unit {
        name,
        factor,
        printed: false,
    }
}

/// What all quantities share.
pub trait Quantity: Copy {
    /// The quantity in words, with its article: "a size".
    const NAME: &'static str;
    /// One as a user would write it.
    const EXAMPLE: &'static str;
    /// Its units; those that are printed in ascending order.
    const UNITS: &'static [Unit];

    /// From a number in the SI unit.
    fn from_si(value: f64) -> Self;

    /// The number in the SI unit.
    fn si(self) -> f64;
}

const K: f64 = 1024.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

macro_rules! quantity {
    ($(#[$doc:meta])* $type:ident, $name:literal, $example:literal, [$($unit:expr),+ $(,)?]) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
        pub struct $type(f64);

        impl $type {
            /// Nothing of it.
            pub const ZERO: Self = Self(0.0);

            /// From a number in the SI unit.
            pub const fn new(value: f64) -> Self {
                Self(value)
            }

            /// The number in the SI unit.
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl Quantity for $type {
            const NAME: &'static str = $name;
            const EXAMPLE: &'static str = $example;
            const UNITS: &'static [Unit] = &[$($unit),+];

            fn from_si(value: f64) -> Self {
                Self(value)
            }

            fn si(self) -> f64 {
                self.0
            }
        }

        impl Add for $type {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl Sub for $type {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl Neg for $type {
            type Output = Self;
            fn neg(self) -> Self {
                Self(-self.0)
            }
        }

        impl Mul<f64> for $type {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }

        impl Div<f64> for $type {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }

        impl Div for $type {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }

        impl Sum for $type {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::ZERO, Add::add)
            }
        }

        impl FromStr for $type {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                parse(text)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_f64(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor(PhantomData))
            }
        }
    };
}

macro_rules! product {
    ($left:ident * $right:ident = $result:ident) => {
        impl Mul<$right> for $left {
            type Output = $result;
            fn mul(self, other: $right) -> $result {
                $result::new(self.get() * other.get())
            }
        }

        impl Mul<$left> for $right {
            type Output = $result;
            fn mul(self, other: $left) -> $result {
                other * self
            }
        }

        impl Div<$right> for $result {
            type Output = $left;
            fn div(self, other: $right) -> $left {
                $left::new(self.get() / other.get())
            }
        }

        impl Div<$left> for $result {
            type Output = $right;
            fn div(self, other: $left) -> $right {
                $right::new(self.get() / other.get())
            }
        }
    };
}

quantity! {
    /// An amount of data, in bytes.
    Bytes, "a size", "64 GB", [
        unit("B", 1.0), unit("KB", K), unit("MB", K * K), unit("GB", K * K * K), unit("TB", K * K * K * K),
        unit("PB", K * K * K * K * K), alias("KiB", K), alias("MiB", K * K), alias("GiB", K * K * K),
        alias("TiB", K * K * K * K), alias("PiB", K * K * K * K * K),
    ]
}

quantity! {
    /// A bandwidth, throughput or data production rate, in bytes per second.
    BytesPerSecond, "a rate", "1.5 GB/s", [
        unit("B/s", 1.0), unit("KB/s", K), unit("MB/s", K * K), unit("GB/s", K * K * K),
        unit("TB/s", K * K * K * K), alias("KiB/s", K), alias("MiB/s", K * K), alias("GiB/s", K * K * K),
        alias("TiB/s", K * K * K * K), alias("Mbit/s", 1e6 / 8.0), alias("Gbit/s", 1e9 / 8.0),
        alias("Tbit/s", 1e12 / 8.0),
    ]
}

quantity! {
    /// What moving or processing one byte costs in time, in seconds per byte: the inverse of a rate.
    SecondsPerByte, "a time per byte", "2 ns/B", [unit("ns/B", 1e-9), unit("us/B", 1e-6), unit("s/B", 1.0)]
}

quantity! {
    /// A span of time, in seconds.
    Seconds, "a time", "1 h", [
        alias("ns", 1e-9), unit("us", 1e-6), unit("ms", 1e-3), unit("s", 1.0), unit("min", 60.0),
        unit("h", HOUR), unit("d", DAY), unit("y", 365.0 * DAY),
    ]
}

quantity! {
    /// An energy, in joules.
    Joules, "an energy", "2.5 kWh", [
        unit("J", 1.0), unit("Wh", HOUR), unit("kWh", 1e3 * HOUR), unit("MWh", 1e6 * HOUR),
        alias("mJ", 1e-3), alias("kJ", 1e3), alias("MJ", 1e6), alias("GJ", 1e9),
    ]
}

quantity! {
    /// A power, in watts.
    Watts, "a power", "190 W", [unit("mW", 1e-3), unit("W", 1.0), unit("kW", 1e3), unit("MW", 1e6)]
}

quantity! {
    /// What moving data costs in energy, in joules per byte.
    JoulesPerByte, "an energy per bit", "10 pJ/bit", [
        unit("pJ/bit", 8e-12), unit("nJ/bit", 8e-9), alias("pJ/B", 1e-12), alias("nJ/B", 1e-9),
        alias("J/B", 1.0),
    ]
}

quantity! {
    /// Money, in dollars.
    Dollars, "a price", "$610", [unit("$", 1.0)]
}

quantity! {
    /// The price of energy, in dollars per joule.
    DollarsPerJoule, "a price of energy", "$0.30/kWh", [
        unit("$/kWh", 1.0 / (1e3 * HOUR)), alias("$/MWh", 1.0 / (1e6 * HOUR)),
    ]
}

product!(BytesPerSecond * Seconds = Bytes);
product!(SecondsPerByte * Bytes = Seconds);
product!(Watts * Seconds = Joules);
product!(JoulesPerByte * Bytes = Joules);
product!(DollarsPerJoule * Joules = Dollars);

impl BytesPerSecond {
    /// The time one byte takes.
    pub fn inverse(self) -> SecondsPerByte {
        SecondsPerByte::new(1.0 / self.0)
    }
}

impl Mul<SecondsPerByte> for BytesPerSecond {
    type Output = f64;

    /// The share of each second that handling this rate takes.
    fn mul(self, time: SecondsPerByte) -> f64 {
        self.0 * time.0
    }
}

impl Joules {
    /// In kilowatt-hours.
    pub fn kilowatt_hours(self) -> f64 {
        self.0 / (1e3 * HOUR)
    }
}

macro_rules! display {
    ($($type:ident),+) => {$(
        impl fmt::Display for $type {
            /// In the largest unit of which there is at least one, to four significant digits.
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                print(*self, formatter)
            }
        }
    )+};
}

display!(
    Bytes,
    BytesPerSecond,
    SecondsPerByte,
    Seconds,
    Joules,
    Watts,
    JoulesPerByte
);

impl fmt::Display for Dollars {
    /// Whole dollars with thousands apart from a hundred on, else cents: `$1,818,000`, `-$0.25`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.0.abs() < 100.0 { 2 } else { 0 };
        let amount = format!("{:.digits$}", self.0.abs());
        let sign = if self.0 < 0.0 { "-" } else { "" };
        write!(formatter, "{sign}${}", thousands(&amount))
    }
}

impl fmt::Display for DollarsPerJoule {
    /// Per kilowatt-hour: `$0.3/kWh`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "${}/kWh", significant(self.0 * 1e3 * HOUR))
    }
}

fn print<Q: Quantity>(quantity: Q, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let size = quantity.si().abs();
    let mut printed = Q::UNITS.iter().filter(|unit| unit.printed);
    let smallest = printed
        .next()
        .expect("every quantity has a unit that is printed");
    let mut chosen = if size == 0.0 {
        // Nothing is nothing in any unit, and the SI unit reads best.
        Q::UNITS
            .iter()
            .find(|unit| (unit.factor - 1.0).abs() < f64::EPSILON)
            .unwrap_or(smallest)
    } else {
        smallest
    };
    for unit in printed {
        if size >= unit.factor {
            chosen = unit;
        }
    }
    write!(
        formatter,
        "{} {}",
        significant(quantity.si() / chosen.factor),
        chosen.name
    )
}

/// A number to four significant digits, without trailing zeros.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let mut decimals = 0_usize;
    let mut scaled = value.abs();
    while scaled < 999.95 && decimals < 15 {
        scaled *= 10.0;
        decimals += 1;
    }
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Separates the thousands of a decimal number that has no sign.
pub fn thousands(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::with_capacity(number.len() + whole.len() / 3);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

fn parse<Q: Quantity>(text: &str) -> Result<Q, UnitError> {
    let trimmed = text.trim();
    let (dollars, amount) = match trimmed.strip_prefix('$') {
        Some(amount) => ("$", amount),
        None => ("", trimmed),
    };
    let (number, rest) = amount.split_at(number_length(amount));
    let value: f64 = number.parse().map_err(|_| UnitError::NoNumber {
        text: text.to_owned(),
        quantity: Q::NAME,
        example: Q::EXAMPLE,
    })?;
    let name = format!("{dollars}{}", rest.trim());
    if name.is_empty() {
        return Err(UnitError::NoUnit {
            text: text.to_owned(),
            quantity: Q::NAME,
            example: Q::EXAMPLE,
        });
    }
    let unit = Q::UNITS
        .iter()
        .find(|unit| unit.name == name)
        .ok_or_else(|| {
            let known: Vec<_> = Q::UNITS.iter().map(|unit| unit.name).collect();
            UnitError::UnknownUnit {
                text: text.to_owned(),
                unit: name.clone(),
                quantity: Q::NAME,
                known: known.join(", "),
            }
        })?;
    let si = value * unit.factor;
    if si > 0.0 && si.is_finite() {
        return Ok(Q::from_si(si));
    }
    Err(UnitError::NotPositive {
        text: text.to_owned(),
        quantity: Q::NAME,
    })
}

/// How much of `text` is its number: `e` belongs to it only with an exponent behind it.
fn number_length(text: &str) -> usize {
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
    end
}

struct TextVisitor<Q>(PhantomData<Q>);

impl<Q: Quantity + FromStr<Err = UnitError>> Visitor<'_> for TextVisitor<Q> {
    type Value = Q;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} with its unit, such as \"{}\"",
            Q::NAME,
            Q::EXAMPLE
        )
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Q, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_becomes_si() {
        assert_eq!(
            "1.5 TB/s".parse(),
            Ok(BytesPerSecond::new(1.5 * K * K * K * K))
        );
        assert_eq!("64GB".parse(), Ok(Bytes::new(64.0 * K * K * K)));
        assert_eq!("1 KiB".parse::<Bytes>(), "1 KB".parse());
        assert_eq!("1 Gbit/s".parse(), Ok(BytesPerSecond::new(125e6)));
        assert_eq!("2 y".parse(), Ok(Seconds::new(2.0 * 365.0 * 86_400.0)));
        assert_eq!("1e3 B".parse(), Ok(Bytes::new(1000.0)));
        assert_eq!("1e-3s".parse(), Ok(Seconds::new(0.001)));
        assert_eq!("$610".parse(), Ok(Dollars::new(610.0)));
        assert_eq!("610 $".parse(), Ok(Dollars::new(610.0)));
        let price: DollarsPerJoule = "$0.36/kWh".parse().unwrap();
        assert!((price.get() - 1e-7).abs() < 1e-15);
        let energy: JoulesPerByte = "10 pJ/bit".parse().unwrap();
        assert!((energy.get() - 80e-12).abs() < 1e-20);
    }

    #[test]
    fn errors_say_what_to_write() {
        let error = |text: &str| text.parse::<Bytes>().unwrap_err().to_string();
        assert_eq!(error("64"), "\"64\" has no unit; write a size as \"64 GB\"");
        assert_eq!(
            error("much"),
            "\"much\" has no number; write a size as \"64 GB\""
        );
        assert!(
            error("64 gb").starts_with("unknown unit \"gb\" in \"64 gb\"; a size is in B, KB, MB")
        );
        assert!(error("64 GB/s").starts_with("unknown unit \"GB/s\""));
        assert_eq!(
            error("-1 GB"),
            "\"-1 GB\" is not above zero and finite, as a size must be"
        );
        assert!(error("0 GB").contains("not above zero"));
        assert!(error("1e400 GB").contains("finite"));
        assert!(error("").contains("no number"));
    }

    #[test]
    fn arithmetic_keeps_units() {
        let rate: BytesPerSecond = "2 MB/s".parse().unwrap();
        let size = rate * Seconds::new(3.0);
        assert_eq!(size.to_string(), "6 MB");
        assert_eq!(size / rate, Seconds::new(3.0));
        assert_eq!(rate.inverse() * size, Seconds::new(3.0));
        assert!((rate * rate.inverse() - 1.0).abs() < 1e-12);
        let energy = Watts::new(1000.0) * Seconds::new(3600.0);
        assert_eq!(energy.to_string(), "1 kWh");
        let price: DollarsPerJoule = "$0.30/kWh".parse().unwrap();
        assert_eq!((price * energy).to_string(), "$0.30");
    }

    #[test]
    fn printed_for_people() {
        assert_eq!(Bytes::ZERO.to_string(), "0 B");
        assert_eq!(Seconds::ZERO.to_string(), "0 s");
        assert_eq!(Seconds::new(90.0).to_string(), "1.5 min");
        assert_eq!(Dollars::new(1_818_000.0).to_string(), "$1,818,000");
        assert_eq!(Dollars::new(-19_131.2).to_string(), "-$19,131");
        assert_eq!(Joules::new(-432.96e6).to_string(), "-120.3 kWh");
        assert_eq!(BytesPerSecond::new(0.91 * K * K).to_string(), "931.8 KB/s");
        assert_eq!(significant(0.0312), "0.0312");
        assert_eq!(significant(123_456.0), "123456");
    }

    fn comes_back<Q>(value: f64) -> Result<(), TestCaseError>
    where
        Q: Quantity + fmt::Display + FromStr<Err = UnitError>,
    {
        let text = Q::from_si(value).to_string();
        let back: Q = text
            .parse()
            .map_err(|error| TestCaseError::fail(format!("{error}")))?;
        prop_assert!(
            (back.si() / value - 1.0).abs() < 1e-3,
            "{value} became {text}"
        );
        Ok(())
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(exponent in -3.0..15.0_f64) {
            let value = 10_f64.powf(exponent);
            comes_back::<Bytes>(value)?;
            comes_back::<BytesPerSecond>(value)?;
            comes_back::<Seconds>(value)?;
            comes_back::<Joules>(value)?;
            comes_back::<Watts>(value)?;
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,12}") {
            if let Ok(size) = text.parse::<Bytes>() {
                prop_assert!(size.get() > 0.0 && size.get().is_finite());
            }
        }
    }
}
