//! Number types of raw arrays.

use std::cmp::Ordering;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Counter in a lane of a vector.
pub(crate) trait LaneCounter: Copy + Default {
    /// Maximum count of the counter.
    const MAX: usize;
    /// Returns the counter plus one if `counts` is true.
    fn count(self, counts: bool) -> Self;
    /// Returns the count as a number.
    fn total(self) -> u64;
}

macro_rules! tally {
    ($($type:ty),*) => {
        $(impl LaneCounter for $type {
            // No caller counts more at once.
            const MAX: usize = if size_of::<$type>() == 1 { 255 } else { 65_535 };
            #[inline(always)]
            fn count(self, counts: bool) -> Self {
                self.wrapping_add(<$type>::from(counts))
            }
            #[inline(always)]
            fn total(self) -> u64 {
                u64::from(self)
            }
        })*
    };
}

tally!(u8, u16, u32, u64);

/// Type of number in a raw little-endian array.
pub(crate) trait Number:
    Copy + PartialOrd + std::fmt::Debug + Default + Send + Sync + Serialize + DeserializeOwned + 'static
{
    /// Integer type of the same size, for counts in lanes.
    type Tally: LaneCounter;
    /// Size of a value of the type, in bytes.
    const SIZE: usize;
    /// Whether sums of the type are exact.
    const INTEGER: bool;
    /// Value that is not above any number.
    const LOWEST: Self;
    /// Value that is not below any number.
    const HIGHEST: Self;
    /// Returns the value in the first `SIZE` bytes.
    fn read(bytes: &[u8]) -> Self;
    /// Returns the value in the first `SIZE` bytes, most significant byte first.
    fn read_big(bytes: &[u8]) -> Self;
    /// Returns the `f64` nearest to the value.
    #[allow(clippy::wrong_self_convention, reason = "all implementors are Copy")]
    fn to_f64(self) -> f64;
    /// Returns the next larger value; the value itself if there is none.
    fn above(self) -> Self;
    /// Returns the next smaller value; the value itself if there is none.
    fn below(self) -> Self;
    /// Returns the nearest value of this type that is not below (`up`) or not above (else) `value`; `None` if there is none.
    fn bound(value: f64, up: bool) -> Option<Self>;
    /// Writes the value as `SIZE` little-endian bytes.
    fn write(self, to: &mut [u8]);
    /// Returns an unsigned integer of the same size that is larger exactly if `self` is larger. If the type is signed, 0 maps to half of
    /// its range. Both zeros of floats have the same integer; the integer of a NaN has no meaning.
    fn ordered(self) -> u64;
    /// Returns the value for which [`Number::ordered`] returns this integer.
    fn from_ordered(ordered: u64) -> Self;
    /// Returns the larger of two values; `other` if this value is NaN.
    fn larger(self, other: Self) -> Self;
    /// Returns the smaller of two values; `other` if this value is NaN.
    fn smaller(self, other: Self) -> Self;
    /// Returns the exact decimal text of the value.
    fn text(self) -> String;
    /// Parses the decimal text of a value; also `nan` for floats.
    fn parse(text: &str) -> Option<Self>;
    /// Returns whether two values are the same; a NaN is the same as any other NaN.
    fn same(self, other: Self) -> bool;
}

/// Returns the bytes of numbers in their native order.
pub(crate) fn bytes_of<T: Number>(values: &[T]) -> &[u8] {
    // SAFETY: numbers are bytes without gaps.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Defines the functions of [`Number`] that read a value from bytes.
macro_rules! reads {
    ($type:ty) => {
        #[inline(always)]
        fn read(bytes: &[u8]) -> Self {
            let mut value = [0; size_of::<$type>()];
            value.copy_from_slice(&bytes[..size_of::<$type>()]);
            <$type>::from_le_bytes(value)
        }
        #[inline(always)]
        fn read_big(bytes: &[u8]) -> Self {
            let mut value = [0; size_of::<$type>()];
            value.copy_from_slice(&bytes[..size_of::<$type>()]);
            <$type>::from_be_bytes(value)
        }
    };
}

macro_rules! float {
    ($type:ty, $tally:ty) => {
        impl Number for $type {
            const SIZE: usize = size_of::<$type>();
            type Tally = $tally;
            const INTEGER: bool = false;
            const LOWEST: Self = <$type>::NEG_INFINITY;
            const HIGHEST: Self = <$type>::INFINITY;
            reads!($type);
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn above(self) -> Self {
                self.next_up()
            }
            fn below(self) -> Self {
                self.next_down()
            }
            #[allow(
                clippy::cast_possible_truncation,
                reason = "rounding is put right below"
            )]
            fn bound(value: f64, up: bool) -> Option<Self> {
                let near = value as Self;
                let wide = f64::from(near);
                Some(match (up, wide.partial_cmp(&value)?) {
                    (true, Ordering::Less) => near.next_up(),
                    (false, Ordering::Greater) => near.next_down(),
                    _ => near,
                })
            }
            fn write(self, to: &mut [u8]) {
                to[..size_of::<$type>()].copy_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            fn ordered(self) -> u64 {
                const SIGN: $tally = 1 << (<$tally>::BITS - 1);
                let bits = (self + 0.0).to_bits();
                u64::from(if bits & SIGN == 0 { bits | SIGN } else { !bits })
            }
            #[allow(clippy::cast_possible_truncation, reason = "it came from that size")]
            #[inline(always)]
            fn from_ordered(ordered: u64) -> Self {
                const SIGN: $tally = 1 << (<$tally>::BITS - 1);
                let bits = ordered as $tally;
                Self::from_bits(if bits & SIGN == 0 { !bits } else { bits ^ SIGN })
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
            fn text(self) -> String {
                // Adding 0 turns -0 into 0: the sign of the largest of several zeros is not defined.
                decimal(f64::from(self) + 0.0)
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            #[allow(
                clippy::float_cmp,
                reason = "a value that stands for none is met exactly"
            )]
            #[inline(always)]
            fn same(self, other: Self) -> bool {
                (self == other) | (self.is_nan() & other.is_nan())
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $tally:ty) => {
        impl Number for $type {
            const SIZE: usize = size_of::<$type>();
            type Tally = $tally;
            const INTEGER: bool = true;
            const LOWEST: Self = <$type>::MIN;
            const HIGHEST: Self = <$type>::MAX;
            reads!($type);
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_lossless,
                reason = "documented rounding"
            )]
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn above(self) -> Self {
                self.saturating_add(1)
            }
            fn below(self) -> Self {
                self.saturating_sub(1)
            }
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it saturates"
            )]
            fn bound(value: f64, up: bool) -> Option<Self> {
                let whole = if up { value.ceil() } else { value.floor() };
                let least = <$type>::MIN as f64;
                // One more than the largest value, which has an exact float.
                let end = (<$type>::MAX / 2 + 1) as f64 * 2.0;
                match up {
                    _ if whole.is_nan() => None,
                    true if whole >= end => None,
                    false if whole < least => None,
                    _ => Some(whole as Self),
                }
            }
            fn write(self, to: &mut [u8]) {
                to[..size_of::<$type>()].copy_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            fn ordered(self) -> u64 {
                u64::from(<$type>::MIN.abs_diff(self))
            }
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                reason = "it came from that size"
            )]
            #[inline(always)]
            fn from_ordered(ordered: u64) -> Self {
                <$type>::MIN.wrapping_add(ordered as Self)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn text(self) -> String {
                self.to_string()
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            #[inline(always)]
            fn same(self, other: Self) -> bool {
                self == other
            }
        }
    };
}

float!(f64, u64);
float!(f32, u32);
integer!(i8, u8);
integer!(i16, u16);
integer!(i32, u32);
integer!(i64, u64);
integer!(u8, u8);
integer!(u16, u16);
integer!(u32, u32);
integer!(u64, u64);

/// Returns a decimal text from which exactly this `f64` can be read.
pub(crate) fn decimal(value: f64) -> String {
    let plain = value == 0.0 || (1e-5..1e16).contains(&value.abs());
    if plain {
        format!("{value}")
    } else {
        format!("{value:?}")
    }
}
