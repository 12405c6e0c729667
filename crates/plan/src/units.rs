//! Physical quantities: small types over `f64` in SI units, with only the arithmetic that makes sense. This module parses and prints
//! quantities and does no I/O.
//!
//! Text carries its unit: `"1.5 TB/s"`, `"10 pJ/bit"`, `"$0.30/kWh"`. **`MB` is 10^6 bytes and `MiB` is 2^20**, as in job scripts, flags
//! and all printed output. Bits are counted in powers of 1000, as networks do: 1 Gbit/s is 125 000 000 B/s. A year is 365 days. Unit names
//! are case-sensitive, and the space between number and unit is optional. A parsed quantity is between [`SI_MIN`] and [`SI_MAX`], so that
//! no quantity computed from it is infinite; powers, prices and energies of moving data may be zero as well. A computed quantity may have
//! either sign (an energy that is saved is negative).
//!
//! Money is in the [`Currency`] of its text, and is only ever added to money of the same currency.
//!
//! A serialised quantity is a bare number in its SI unit (bytes, seconds, joules, watts); a parsed quantity is text.

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};
use std::fmt;
use std::iter::Sum;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::str::FromStr;
use thiserror::Error;
use tidemill_model::quantity::{self, Unit, UnitForm, alias, unit};

/// Error in the text of a quantity.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum UnitError {
    /// The text does not start with a number.
    #[error("\"{text}\" has no number; write {quantity} as \"{example}\"")]
    NoNumber {
        /// Text that was read.
        text: String,
        /// Expected quantity, in words.
        quantity: &'static str,
        /// Example of a valid text.
        example: &'static str,
    },
    /// The text is a number without a unit.
    #[error("\"{text}\" has no unit; write {quantity} as \"{example}\"")]
    NoUnit {
        /// Text that was read.
        text: String,
        /// Expected quantity, in words.
        quantity: &'static str,
        /// Example of a valid text.
        example: &'static str,
    },
    /// The unit does not measure this quantity.
    #[error("unknown unit \"{unit}\" in \"{text}\"; {quantity} is in {known}")]
    UnknownUnit {
        /// Text that was read.
        text: String,
        /// Part of the text after the number.
        unit: String,
        /// Expected quantity, in words.
        quantity: &'static str,
        /// Known units of the quantity.
        known: String,
    },
    /// The value is zero or less.
    #[error("\"{text}\" is not above zero, as {quantity} must be")]
    NotPositive {
        /// Text that was read.
        text: String,
        /// Expected quantity, in words.
        quantity: &'static str,
    },
    /// The value is negative.
    #[error("\"{text}\" is less than zero, which {quantity} can't be")]
    Negative {
        /// Text that was read.
        text: String,
        /// Expected quantity, in words.
        quantity: &'static str,
    },
    /// The value is beyond [`SI_MIN`] or [`SI_MAX`].
    #[error("\"{text}\" is too {} for {quantity}", if *.large { "much" } else { "little" })]
    Absurd {
        /// Text that was read.
        text: String,
        /// Expected quantity, in words.
        quantity: &'static str,
        /// Whether the value is beyond the upper bound.
        large: bool,
    },
    /// The price names no currency, or two currencies.
    #[error("\"{text}\" has {found}; write {quantity} as {example}")]
    Currency {
        /// Text that was read.
        text: String,
        /// Expected quantity, in words.
        quantity: &'static str,
        /// Description of the error.
        found: &'static str,
        /// Example of a valid text.
        example: &'static str,
    },
}

/// Largest parsed value, in the SI unit of its quantity: products of all values of a site stay far from infinity.
pub const SI_MAX: f64 = 1e30;
/// Smallest parsed value, in the SI unit of its quantity, unless the quantity may be zero.
pub const SI_MIN: f64 = 1e-30;

/// Common interface of all quantities.
pub trait Quantity: Copy {
    /// Name of the quantity in words, with its article: "a size".
    const NAME: &'static str;
    /// Example in the notation of users.
    const EXAMPLE: &'static str;
    /// Units of the quantity; the printed ones in ascending order.
    const UNITS: &'static [Unit];
    /// Whether a parsed value may be zero.
    const MAY_BE_ZERO: bool;

    /// Converts a number in the SI unit to the quantity.
    fn from_si(value: f64) -> Self;

    /// Returns the number in the SI unit.
    fn si(self) -> f64;
}

const HOUR: f64 = 3600.0;

/// Defines a number of some unit, with the arithmetic that keeps the unit.
macro_rules! amount {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
        pub struct $type(f64);

        impl $type {
            /// Zero amount.
            pub const ZERO: Self = Self(0.0);

            /// Converts a number in the SI unit to the quantity.
            pub const fn new(value: f64) -> Self {
                Self(value)
            }

            /// Returns the number in the SI unit.
            pub const fn get(self) -> f64 {
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

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_f64(self.0)
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                f64::json_schema(generator)
            }
        }
    };
}

/// Defines an amount that is parsed from text with its unit.
macro_rules! quantity {
    ($(#[$doc:meta])* $type:ident, $name:literal, $example:literal, $may_be_zero:literal, $units:expr) => {
        amount! { $(#[$doc])* $type }

        impl Quantity for $type {
            const NAME: &'static str = $name;
            const EXAMPLE: &'static str = $example;
            const UNITS: &'static [Unit] = $units;
            const MAY_BE_ZERO: bool = $may_be_zero;

            fn from_si(value: f64) -> Self {
                Self(value)
            }

            fn si(self) -> f64 {
                self.0
            }
        }

        impl FromStr for $type {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                parse(text)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor::<Self>(PhantomData))
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
    Bytes, "a size", "64 GB", false, quantity::BYTES
}

quantity! {
    /// A bandwidth, throughput or data production rate, in bytes per second.
    BytesPerSecond, "a rate", "1.5 GB/s", false, quantity::RATES
}

quantity! {
    /// Time that moving or processing one byte takes, in seconds per byte: the inverse of a rate.
    SecondsPerByte, "a time per byte", "2 ns/B", false, &[unit("ns/B", 1e-9), unit("us/B", 1e-6), unit("s/B", 1.0)]
}

quantity! {
    /// A span of time, in seconds.
    Seconds, "a time", "1 h", false, quantity::TIMES
}

quantity! {
    /// An energy, in joules.
    Joules, "an energy", "2.5 kWh", false, &[
        unit("J", 1.0), unit("Wh", HOUR), unit("kWh", 1e3 * HOUR), unit("MWh", 1e6 * HOUR),
        alias("mJ", 1e-3), alias("kJ", 1e3), alias("MJ", 1e6), alias("GJ", 1e9),
    ]
}

quantity! {
    /// A power, in watts.
    Watts, "a power", "190 W", true, &[unit("mW", 1e-3), unit("W", 1.0), unit("kW", 1e3), unit("MW", 1e6)]
}

quantity! {
    /// Energy that moving data takes, in joules per byte.
    JoulesPerByte, "an energy per bit", "10 pJ/bit", true, &[
        unit("pJ/bit", 8e-12), unit("nJ/bit", 8e-9), alias("pJ/B", 1e-12), alias("nJ/B", 1e-9),
        alias("J/B", 1.0),
    ]
}

amount! {
    /// Money in an unspecified currency; see [`Price`].
    Money
}

amount! {
    /// Price of energy, in money for a joule.
    MoneyPerJoule
}

product!(BytesPerSecond * Seconds = Bytes);
product!(SecondsPerByte * Bytes = Seconds);
product!(Watts * Seconds = Joules);
product!(JoulesPerByte * Bytes = Joules);
product!(MoneyPerJoule * Joules = Money);

impl BytesPerSecond {
    /// Returns the time that one byte takes.
    pub fn inverse(self) -> SecondsPerByte {
        SecondsPerByte::new(1.0 / self.0)
    }
}

impl Mul<SecondsPerByte> for BytesPerSecond {
    type Output = f64;

    /// Returns the share of each second that handling this rate takes.
    fn mul(self, time: SecondsPerByte) -> f64 {
        self.0 * time.0
    }
}

impl Joules {
    /// Returns the energy in kilowatt-hours.
    pub fn kilowatt_hours(self) -> f64 {
        self.0 / (1e3 * HOUR)
    }
}

macro_rules! display {
    ($($type:ident),+) => {$(
        impl fmt::Display for $type {
            /// Prints the quantity in the largest unit that is not larger than the quantity, to four significant digits.
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

/// Currency in the spelling of its text: a sign (`$`, `€`) or a code of three capitals (`EUR`). Currencies with different spellings are
/// different, because several countries use `$`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Currency(String);

impl Currency {
    /// Splits the currency from the begin of a text. Returns the currency and the rest of the text.
    fn split(text: &str) -> (Option<Self>, &str) {
        let sign =
            |letter: char| matches!(letter, '$' | '\u{a2}'..='\u{a5}' | '\u{20a0}'..='\u{20cf}');
        let signs = text.chars().next().filter(|first| sign(*first));
        let letters = text.chars().take_while(char::is_ascii_alphabetic).count();
        let code =
            letters == CODE_LETTERS && text[..letters].chars().all(|c| c.is_ascii_uppercase());
        let length = signs.map_or(if code { CODE_LETTERS } else { 0 }, char::len_utf8);
        let (currency, rest) = text.split_at(length);
        let found = (length > 0).then(|| Self(currency.to_owned()));
        (found, rest.trim_start())
    }

    /// Formats money of this currency for people. Amounts from a hundred on are whole numbers with separated thousands, and smaller amounts
    /// have cents: `$1,818,000`, `-$0.25`, `1,818,000 EUR`.
    pub fn show(&self, money: Money) -> String {
        let digits = if money.get().abs() < 100.0 { 2 } else { 0 };
        let amount = thousands(&format!("{:.digits$}", money.get().abs()));
        let sign = if money.get() < 0.0 { "-" } else { "" };
        if self.0.len() == CODE_LETTERS && self.0.is_ascii() {
            format!("{sign}{amount} {self}")
        } else {
            format!("{sign}{self}{amount}")
        }
    }
}

/// Number of letters of a currency's code (ISO 4217).
const CODE_LETTERS: usize = 3;

impl fmt::Display for Currency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Money, or money for a joule, with its currency, as parsed from text: `"$610"`, `"610 EUR"`, `"€0.30/kWh"`.
#[derive(Debug, Clone, PartialEq)]
pub struct Price<A> {
    /// Amount in the currency.
    pub amount: A,
    /// Currency of the amount.
    pub currency: Currency,
}

/// Quantity that can have a price.
pub trait Priced: Copy {
    /// Name in words, with its article.
    const NAME: &'static str;
    /// Example in the notation of users.
    const EXAMPLE: &'static str;
    /// Units after the currency, each with its value in the SI unit.
    const UNITS: &'static [(&'static str, f64)];

    /// Converts a number in the SI unit to the quantity.
    fn from_si(value: f64) -> Self;
}

impl Priced for Money {
    const NAME: &'static str = "a price";
    const EXAMPLE: &'static str = "\"$610\" or \"610 EUR\"";
    const UNITS: &'static [(&'static str, f64)] = &[("", 1.0)];

    fn from_si(value: f64) -> Self {
        Self(value)
    }
}

impl Priced for MoneyPerJoule {
    const NAME: &'static str = "a price of energy";
    const EXAMPLE: &'static str = "\"$0.30/kWh\" or \"0.30 EUR/kWh\"";
    const UNITS: &'static [(&'static str, f64)] =
        &[("/kWh", 1.0 / (1e3 * HOUR)), ("/MWh", 1.0 / (1e6 * HOUR))];

    fn from_si(value: f64) -> Self {
        Self(value)
    }
}

impl<A: Priced> FromStr for Price<A> {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let odd = |found| UnitError::Currency {
            text: text.to_owned(),
            quantity: A::NAME,
            found,
            example: A::EXAMPLE,
        };
        let (before, amount) = Currency::split(text.trim());
        let (number, rest) = quantity::split(amount);
        let value: f64 = number.parse().map_err(|_| odd("no number"))?;
        let (after, unit) = Currency::split(rest);
        let known = A::UNITS.iter().find(|(name, _)| *name == unit);
        let (_, factor) = known.ok_or_else(|| odd("an unknown unit or currency"))?;
        let currency = match (before, after) {
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return Err(odd("no currency")),
            (Some(_), Some(_)) => return Err(odd("two currencies")),
        };
        let amount = A::from_si(within(text, A::NAME, value * factor, true)?);
        Ok(Self { amount, currency })
    }
}

impl<'de, A: Priced> Deserialize<'de> for Price<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor::<Self>(PhantomData))
    }
}

fn print<Q: Quantity>(quantity: Q, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let size = quantity.si().abs();
    let mut printed = Q::UNITS
        .iter()
        .filter(|unit| unit.form == UnitForm::Printed);
    let smallest = printed
        .next()
        .expect("every quantity has a unit that is printed");
    let mut chosen = if size == 0.0 {
        // Zero is zero in any unit, and the SI unit reads best.
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

/// Formats a number to four significant digits, without trailing zeros.
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

/// Formats a number to four significant digits and never rounds up: for upper bounds.
pub fn at_most(value: f64) -> String {
    let text = significant(value);
    let rounded: f64 = text.parse().unwrap_or(value);
    if rounded <= value {
        return text;
    }
    // Value of one in the last digit that is shown.
    let digit = 10_f64.powf(value.abs().log10().floor() - 3.0).min(1.0);
    significant(rounded - digit)
}

/// Separates the thousands of a decimal number without a sign.
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
    let (number, name) = quantity::split(text);
    let value: f64 = number.parse().map_err(|_| UnitError::NoNumber {
        text: text.to_owned(),
        quantity: Q::NAME,
        example: Q::EXAMPLE,
    })?;
    if name.is_empty() {
        return Err(UnitError::NoUnit {
            text: text.to_owned(),
            quantity: Q::NAME,
            example: Q::EXAMPLE,
        });
    }
    let unit = quantity::find(Q::UNITS, name).ok_or_else(|| UnitError::UnknownUnit {
        text: text.to_owned(),
        unit: name.to_owned(),
        quantity: Q::NAME,
        known: quantity::known(Q::UNITS).join(", "),
    })?;
    within(text, Q::NAME, value * unit.factor, Q::MAY_BE_ZERO).map(Q::from_si)
}

/// Checks that a number is within the bounds of parsed quantities.
fn within(
    text: &str,
    quantity: &'static str,
    si: f64,
    may_be_zero: bool,
) -> Result<f64, UnitError> {
    let text = || text.to_owned();
    if si == 0.0 && may_be_zero {
        return Ok(0.0);
    }
    if si < 0.0 && may_be_zero {
        let text = text();
        return Err(UnitError::Negative { text, quantity });
    }
    if si <= 0.0 {
        let text = text();
        return Err(UnitError::NotPositive { text, quantity });
    }
    if (SI_MIN..=SI_MAX).contains(&si) {
        return Ok(si);
    }
    Err(UnitError::Absurd {
        text: text(),
        quantity,
        large: si > 1.0,
    })
}

struct TextVisitor<Q>(PhantomData<Q>);

/// Description of the text that a reader expects for a quantity.
trait ExpectedText {
    /// Returns the description in words.
    fn expected() -> String;
}

impl<Q: Quantity> ExpectedText for Q {
    fn expected() -> String {
        format!("{} with its unit, such as \"{}\"", Q::NAME, Q::EXAMPLE)
    }
}

impl<A: Priced> ExpectedText for Price<A> {
    fn expected() -> String {
        format!("{} with its currency, such as {}", A::NAME, A::EXAMPLE)
    }
}

impl<Q: ExpectedText + FromStr<Err = UnitError>> Visitor<'_> for TextVisitor<Q> {
    type Value = Q;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&Q::expected())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Q, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const K: f64 = 1e3;

    #[test]
    fn units_parse_to_si() {
        assert_eq!(
            "1.5 TB/s".parse(),
            Ok(BytesPerSecond::new(1.5 * K * K * K * K))
        );
        assert_eq!("64GB".parse(), Ok(Bytes::new(64.0 * K * K * K)));
        assert_eq!("1 MiB".parse(), Ok(Bytes::new(1_048_576.0)));
        assert_eq!("1 MB".parse(), Ok(Bytes::new(1e6)));
        assert_eq!("1 KB".parse::<Bytes>(), "1 kB".parse());
        assert_eq!("1 Gbit/s".parse(), Ok(BytesPerSecond::new(125e6)));
        assert_eq!("2 y".parse(), Ok(Seconds::new(2.0 * 365.0 * 86_400.0)));
        assert_eq!("1e3 B".parse(), Ok(Bytes::new(1000.0)));
        assert_eq!("1e-3s".parse(), Ok(Seconds::new(0.001)));
        let energy: JoulesPerByte = "10 pJ/bit".parse().unwrap();
        assert!((energy.get() - 80e-12).abs() < 1e-20);
    }

    #[test]
    fn unit_errors_show_expected_form() {
        let error = |text: &str| text.parse::<Bytes>().unwrap_err().to_string();
        assert_eq!(error("64"), "\"64\" has no unit; write a size as \"64 GB\"");
        assert_eq!(
            error("much"),
            "\"much\" has no number; write a size as \"64 GB\""
        );
        assert!(
            error("64 gb").starts_with("unknown unit \"gb\" in \"64 gb\"; a size is in B, kB, MB")
        );
        assert!(error("64 GB/s").starts_with("unknown unit \"GB/s\""));
        assert_eq!(
            error("-1 GB"),
            "\"-1 GB\" is not above zero, as a size must be"
        );
        assert!(error("0 GB").contains("not above zero"));
        assert!(error("1e400 GB").contains("too much for a size"));
        assert!(error("1e22 GB").contains("too much for a size"));
        assert!(error("1e-31 B").contains("too little for a size"));
        assert!(error("").contains("no number"));
    }

    #[test]
    fn unit_arithmetic_keeps_dimensions() {
        let rate: BytesPerSecond = "2 MB/s".parse().unwrap();
        let size = rate * Seconds::new(3.0);
        assert_eq!(size.to_string(), "6 MB");
        assert_eq!(size / rate, Seconds::new(3.0));
        assert_eq!(rate.inverse() * size, Seconds::new(3.0));
        assert!((rate * rate.inverse() - 1.0).abs() < 1e-12);
        let energy = Watts::new(1000.0) * Seconds::new(3600.0);
        assert_eq!(energy.to_string(), "1 kWh");
        let price: Price<MoneyPerJoule> = "$0.30/kWh".parse().unwrap();
        assert_eq!(price.currency.show(price.amount * energy), "$0.30");
    }

    #[test]
    fn powers_prices_and_transfer_energies_may_be_zero() {
        assert_eq!("0 W".parse(), Ok(Watts::ZERO));
        assert_eq!("-0 W".parse::<Watts>().unwrap().get().to_bits(), 0);
        assert_eq!("0 pJ/bit".parse(), Ok(JoulesPerByte::ZERO));
        assert_eq!(money("$0").unwrap().amount, Money::ZERO);
        let error = "-1 W".parse::<Watts>().unwrap_err().to_string();
        assert_eq!(error, "\"-1 W\" is less than zero, which a power can't be");
        assert!("0 s".parse::<Seconds>().is_err());
    }

    fn money(text: &str) -> Result<Price<Money>, UnitError> {
        text.parse()
    }

    #[test]
    fn prices_keep_their_currency() {
        for (text, currency, shown) in [
            ("$610", "$", "$610"),
            ("610 $", "$", "$610"),
            ("€ 1818000", "€", "€1,818,000"),
            ("610 EUR", "EUR", "610 EUR"),
            ("CHF 0.25", "CHF", "0.25 CHF"),
            ("¥1e6", "¥", "¥1,000,000"),
        ] {
            let price = money(text).unwrap();
            assert_eq!(price.currency.to_string(), currency, "{text}");
            assert_eq!(price.currency.show(price.amount), shown);
        }
        for (text, why) in [
            (
                "610",
                "no currency; write a price as \"$610\" or \"610 EUR\"",
            ),
            ("$610 EUR", "two currencies"),
            ("$", "no number"),
            ("", "no number"),
            ("610 euros", "an unknown unit or currency"),
            ("610 eur", "an unknown unit or currency"),
            ("$610/kWh", "an unknown unit or currency"),
            ("-$1", "no number"),
            ("$-1", "less than zero"),
            ("$1e40", "too much for a price"),
        ] {
            let error = money(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        for text in ["$0.36/kWh", "0.36 $/kWh", "$360/MWh", "0.36$/kWh"] {
            let price: Price<MoneyPerJoule> = text.parse().unwrap();
            assert!((price.amount.get() - 1e-7).abs() < 1e-15, "{text}");
        }
        let error = "$1".parse::<Price<MoneyPerJoule>>().unwrap_err();
        assert!(error.to_string().contains("/kWh"), "{error}");
    }

    #[test]
    fn units_print_with_readable_scale() {
        assert_eq!(Bytes::ZERO.to_string(), "0 B");
        assert_eq!(Seconds::ZERO.to_string(), "0 s");
        assert_eq!(Seconds::new(90.0).to_string(), "1.5 min");
        let dollar = money("$0").unwrap().currency;
        assert_eq!(dollar.show(Money::new(1_818_000.0)), "$1,818,000");
        assert_eq!(dollar.show(Money::new(-19_131.2)), "-$19,131");
        assert_eq!(Joules::new(-432.96e6).to_string(), "-120.3 kWh");
        assert_eq!(BytesPerSecond::new(0.91 * K * K).to_string(), "910 kB/s");
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
        fn printed_units_parse_back(exponent in -3.0..15.0_f64) {
            let value = 10_f64.powf(exponent);
            comes_back::<Bytes>(value)?;
            comes_back::<BytesPerSecond>(value)?;
            comes_back::<Seconds>(value)?;
            comes_back::<Joules>(value)?;
            comes_back::<Watts>(value)?;
        }

        #[test]
        fn at_most_never_rounds_up(exponent in -6.0..12.0_f64) {
            let value = 10_f64.powf(exponent);
            let shown: f64 = at_most(value).parse().unwrap();
            prop_assert!(shown <= value && shown > value * 0.998 - 1.0, "{value} became {shown}");
        }

        #[test]
        fn bytes_parser_never_panics_on_any_text(text in "\\PC{0,12}") {
            if let Ok(size) = text.parse::<Bytes>() {
                prop_assert!(size.get() > 0.0 && size.get().is_finite());
            }
        }
    }
}
