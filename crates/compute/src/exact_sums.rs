//! Exact sums of floating-point numbers, their squares and products, and results that are computed from them with a single rounding.
//!
//! A sum is stored as one very long integer, as Kulisch proposed and Neal described ("Fast exact summation using small and large
//! superaccumulators", 2015, §2). It has digits of 32 bits in words of 64 bits, so carries can be deferred. The sum does not depend on the
//! order of its terms.
//! on the order of its terms.

use num_bigint::{BigInt, Sign};
use serde::{Deserialize, Serialize};

/// Number of bits of a digit.
const DIGIT: i32 = 32;

/// Number of bits after the binary point: enough for the square of the smallest number, and some more.
pub(crate) const PLACES: i32 = 2176;

/// Exponent of the lowest bit of the lowest digit.
const LOWEST: i32 = -PLACES;

/// Number of digits: enough for the square of the largest number, times 2^128 terms.
const DIGITS: usize = 140;

/// Number of terms after which carries must be propagated: each term adds less than 2^32 to a digit.
const TERMS_MAX: u32 = 1 << 30;

/// Exact sum of integers times powers of two.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "PackedSum", try_from = "PackedSum")]
pub(crate) struct Exact {
    digits: Box<[i64; DIGITS]>,
    terms: u32,
}

impl Default for Exact {
    fn default() -> Self {
        Self {
            digits: Box::new([0; DIGITS]),
            terms: 0,
        }
    }
}

impl Exact {
    /// Adds `value * 2^exponent` to the sum. The exponent must be at least -2176, and the sum must stay below 2^2300.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a value is cut into its digits"
    )]
    pub(crate) fn add(&mut self, value: i128, exponent: i32) {
        if value == 0 {
            return;
        }
        self.terms += 1;
        if self.terms == TERMS_MAX {
            self.carry();
        }
        let place = (exponent - LOWEST).cast_unsigned();
        let (digit, shift) = ((place / 32) as usize, place % 32);
        let low = value.cast_unsigned() << shift;
        // The shift is done in two steps, because a shift by all 128 bits would shift by none.
        let high = (value >> (127 - shift)) >> 1;
        for (place, word) in self.digits[digit..digit + 4].iter_mut().enumerate() {
            *word += i64::from((low >> (32 * place)) as u32);
        }
        self.digits[digit + 4] += high as i64;
    }

    /// Adds a finite number to the sum.
    pub(crate) fn add_f64(&mut self, value: f64) {
        let (mantissa, exponent) = parts(value);
        self.add(i128::from(mantissa), exponent);
    }

    /// Adds another exact sum to this sum.
    pub(crate) fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        other.carry();
        self.carry();
        for (digit, more) in self.digits.iter_mut().zip(other.digits.iter()) {
            *digit += more;
        }
        self.terms += 1;
    }

    /// Propagates carries, so that all digits except the highest are from 0 to 2^32 - 1.
    fn carry(&mut self) {
        let mut carry = 0;
        for digit in &mut self.digits[..DIGITS - 1] {
            let sum = *digit + carry;
            carry = sum >> DIGIT;
            *digit = sum & 0xffff_ffff;
        }
        self.digits[DIGITS - 1] += carry;
        self.terms = 0;
    }

    /// Returns the sum as an integer in units of `2^-2176`.
    pub(crate) fn integer(&self) -> BigInt {
        let mut carried = self.clone();
        carried.carry();
        let (top, low) = carried.digits.split_last().expect("there are 140 digits");
        let mut bytes: Vec<u8> = low
            .iter()
            .flat_map(|digit| digit.to_le_bytes().into_iter().take(4))
            .collect();
        bytes.extend(top.to_le_bytes());
        BigInt::from_signed_bytes_le(&bytes)
    }

    /// Returns the sum without its fraction.
    pub(crate) fn whole(&self) -> BigInt {
        self.integer() >> PLACES
    }

    /// Returns the `f64` nearest to the sum; half-way cases are rounded to even.
    pub(crate) fn value(&self) -> f64 {
        ratio(&self.integer(), &BigInt::from(1), LOWEST)
    }

    /// Returns the sum divided by an integer, rounded once.
    pub(crate) fn value_over(&self, divisor: &BigInt) -> f64 {
        ratio(&self.integer(), divisor, LOWEST)
    }
}

/// Stored form of an exact sum: the position of the first digit that is not zero, and the digits from that position on, in two's
/// complement.
#[derive(Clone, Serialize, Deserialize)]
struct PackedSum {
    first: u16,
    bytes: Vec<u8>,
}

impl From<Exact> for PackedSum {
    fn from(mut exact: Exact) -> Self {
        exact.carry();
        let first = exact.digits.iter().position(|digit| *digit != 0);
        let zeros = first.unwrap_or_default();
        let integer = exact.integer() >> (DIGIT.unsigned_abs() as usize * zeros);
        Self {
            first: u16::try_from(zeros).expect("there are 140 digits"),
            bytes: integer.to_signed_bytes_le(),
        }
    }
}

impl TryFrom<PackedSum> for Exact {
    type Error = &'static str;

    fn try_from(packed: PackedSum) -> Result<Self, Self::Error> {
        let mut exact = Self::default();
        let negative = packed.bytes.last().is_some_and(|byte| *byte >= 0x80);
        let first = usize::from(packed.first);
        if first * 4 + packed.bytes.len() > DIGITS * 4 {
            return Err("a sum is too long");
        }
        let mut bytes = packed.bytes;
        bytes.resize(
            (DIGITS - first.min(DIGITS)) * 4,
            if negative { 0xff } else { 0 },
        );
        let digits = exact.digits.iter_mut().skip(first);
        for (digit, four) in digits.zip(bytes.as_chunks::<4>().0) {
            *digit = i64::from(u32::from_le_bytes(*four));
        }
        if negative {
            exact.digits[DIGITS - 1] -= 1 << DIGIT;
        }
        Ok(exact)
    }
}

/// Returns mantissa and exponent of a finite number, which is `mantissa * 2^exponent`.
pub(crate) fn parts(value: f64) -> (i64, i32) {
    let bits = value.to_bits();
    let exponent = i32::try_from((bits >> 52) & 0x7ff).expect("an exponent has 11 bits");
    let fraction = (bits & ((1 << 52) - 1)).cast_signed();
    let (mantissa, exponent) = if exponent == 0 {
        (fraction, -1074)
    } else {
        (fraction | 1 << 52, exponent - 1075)
    };
    let signed = if value.is_sign_negative() {
        -mantissa
    } else {
        mantissa
    };
    (signed, exponent)
}

/// Returns `numerator / denominator * 2^exponent`, rounded once to the nearest; half-way cases are rounded to even.
pub(crate) fn ratio(numerator: &BigInt, denominator: &BigInt, exponent: i32) -> f64 {
    if denominator.sign() == Sign::NoSign {
        return f64::NAN;
    }
    if numerator.sign() == Sign::NoSign {
        return 0.0;
    }
    let negative = (numerator.sign() == Sign::Minus) != (denominator.sign() == Sign::Minus);
    let (over, under) = (numerator.magnitude(), denominator.magnitude());
    let bits = |number: &num_bigint::BigUint| i64::try_from(number.bits()).unwrap_or(i64::MAX);
    // The quotient gets at least as many bits as rounding needs.
    let shift = 66 + bits(under) - bits(over);
    let by = usize::try_from(shift.unsigned_abs()).unwrap_or(usize::MAX);
    let (over, under) = if shift >= 0 {
        (over << by, under.clone())
    } else {
        (over.clone(), under << by)
    };
    let quotient = &over / &under;
    let exact = &quotient * &under == over;
    let mut digits = quotient.iter_u64_digits();
    let low = u128::from(digits.next().unwrap_or_default());
    let quotient = low | u128::from(digits.next().unwrap_or_default()) << 64;
    let exponent = i64::from(exponent) - shift;
    let size = round(quotient | u128::from(!exact), exponent);
    if negative { -size } else { size }
}

/// Returns the square root of `numerator / denominator * 2^exponent`, with an error of less than one unit in the last place. The exponent
/// must be even.
pub(crate) fn root_of_ratio(numerator: &BigInt, denominator: &BigInt, exponent: i32) -> f64 {
    let bits = |number: &BigInt| i32::try_from(number.bits()).unwrap_or(i32::MAX);
    // The scale brings the square near 1, because the square may be out of the range of a float although its root is not.
    let scale = (bits(numerator) - bits(denominator)) / 2;
    let root = ratio(numerator, denominator, -2 * scale).sqrt();
    let scale = scale + exponent / 2;
    root * power((scale / 2).clamp(-1000, 1000)) * power((scale - scale / 2).clamp(-1000, 1000))
}

/// Returns `value * 2^exponent`, rounded to an `f64`. The lowest bit of a value of more than 60 bits may stand for all bits below it.
fn round(value: u128, exponent: i64) -> f64 {
    let bits = i64::from(128 - value.leading_zeros());
    // Exponent of the result's last bit.
    let last = (exponent + bits - 53).max(-1074);
    if last > 971 {
        return f64::INFINITY;
    }
    let drop = last - exponent;
    let rounded = match u32::try_from(drop) {
        Err(_) => value << drop.unsigned_abs(),
        Ok(0) => value,
        Ok(drop @ 1..128) => {
            let (kept, rest) = (value >> drop, value & ((1 << drop) - 1));
            let half = 1 << (drop - 1);
            kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
        }
        Ok(_) => 0,
    };
    #[allow(clippy::cast_precision_loss, reason = "it has at most 53 bits")]
    let mantissa = rounded as f64;
    let last = i32::try_from(last).expect("it is between -1074 and 971");
    // The multiplication takes two steps, because 2^last itself may be too small for a float.
    mantissa * power(last / 2) * power(last - last / 2)
}

/// Returns `2^exponent`, for an exponent from -1022 to 1023.
pub(crate) fn power(exponent: i32) -> f64 {
    let biased = u64::try_from(exponent + 1023).expect("the exponent is that of a normal number");
    f64::from_bits(biased << 52)
}

#[cfg(test)]
#[allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "results are exact, and any number will do"
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the exact sum of the same numbers as an integer in units of 2^-1074.
    fn reference(values: &[f64]) -> BigInt {
        values
            .iter()
            .map(|value| {
                let (mantissa, exponent) = parts(*value);
                BigInt::from(mantissa) << usize::try_from(exponent + 1074).unwrap()
            })
            .sum()
    }

    fn any_finite() -> impl Strategy<Value = f64> {
        prop_oneof![
            any::<u64>().prop_map(f64::from_bits),
            any::<i32>().prop_map(f64::from),
            Just(f64::MAX),
            Just(f64::MIN_POSITIVE),
            Just(5e-324),
            Just(-0.0),
        ]
        .prop_filter("finite", |value| value.is_finite())
    }

    proptest! {
        #[test]
        fn exact_sum_is_independent_of_split(
            values in proptest::collection::vec(any_finite(), 0..60), place in any::<usize>(),
        ) {
            let sum = |values: &[f64]| {
                let mut sum = Exact::default();
                values.iter().for_each(|value| sum.add_f64(*value));
                sum
            };
            let whole = sum(&values);
            prop_assert_eq!(whole.integer(), reference(&values) << (2176 - 1074));
            let (a, b) = values.split_at(place % (values.len() + 1));
            let mut merged = sum(b);
            let stored = postcard::to_allocvec(&sum(a)).unwrap();
            merged.merge(&postcard::from_bytes(&stored).unwrap());
            prop_assert_eq!(merged.integer(), whole.integer());
        }

        #[test]
        fn exact_sum_of_one_number_is_that_number(value in any_finite()) {
            let mut sum = Exact::default();
            sum.add_f64(value);
            prop_assert_eq!(sum.value().to_bits(), (value + 0.0).to_bits());
        }

        #[test]
        fn ratio_of_small_integers_matches_processor(
            over in -(1_i64 << 53)..1 << 53, under in 1..1_i64 << 53,
        ) {
            let found = ratio(&over.into(), &under.into(), 0);
            prop_assert_eq!(found.to_bits(), (over as f64 / under as f64 + 0.0).to_bits());
        }
    }

    #[test]
    fn ratio_rounds_at_edges_of_range() {
        let one = BigInt::from(1);
        assert_eq!(ratio(&one, &one, -1074), 5e-324);
        assert_eq!(ratio(&one, &one, -1075), 0.0);
        assert_eq!(ratio(&BigInt::from(3), &one, -1075), 1e-323);
        assert_eq!(ratio(&one, &one, 1024), f64::INFINITY);
        assert_eq!(ratio(&BigInt::from(-1), &BigInt::from(3), 0), -1.0 / 3.0);
        assert_eq!(
            ratio(&BigInt::from((1_i64 << 53) + 1), &one, 0),
            9_007_199_254_740_992.0
        );
        let mut corrupt = PackedSum {
            first: 139,
            bytes: vec![1; 9],
        };
        assert!(Exact::try_from(corrupt.clone()).is_err());
        corrupt.first = 9;
        assert!(Exact::try_from(corrupt).is_ok());
    }
}
