//! The element types of raw arrays.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type of number in a raw little-endian array.
pub(crate) trait Number:
    Copy + PartialOrd + std::fmt::Debug + Default + Send + Serialize + DeserializeOwned + 'static
{
    /// Bytes of one value.
    const SIZE: usize;
    /// Whether sums are exact.
    const INTEGER: bool;
    /// Not above any number.
    const LOWEST: Self;
    /// Not below any number.
    const HIGHEST: Self;
    /// The value in the first `SIZE` bytes.
    fn read(bytes: &[u8]) -> Self;
    /// The nearest `f64`.
    #[allow(clippy::wrong_self_convention, reason = "all implementors are Copy")]
    fn to_f64(self) -> f64;
    /// An unsigned integer that is larger exactly if `self` is; half of its type's range for 0 if it is signed.
    /// Integers only.
    fn ordered(self) -> u64;
    /// The larger of both; `other` if this is NaN.
    fn larger(self, other: Self) -> Self;
    /// The smaller of both; `other` if this is NaN.
    fn smaller(self, other: Self) -> Self;
    /// Exact decimal text.
    fn text(self) -> String;
    /// Reads decimal text; `nan` too for floats.
    fn parse(text: &str) -> Option<Self>;
    /// Whether both are the same value; a NaN is the same as any other.
    fn same(self, other: Self) -> bool;
}

macro_rules! float {
    ($type:ty) => {
        impl Number for $type {
            const SIZE: usize = size_of::<$type>();
            const INTEGER: bool = false;
            const LOWEST: Self = <$type>::NEG_INFINITY;
            const HIGHEST: Self = <$type>::INFINITY;
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut value = [0; size_of::<$type>()];
                value.copy_from_slice(&bytes[..size_of::<$type>()]);
                <$type>::from_le_bytes(value)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn ordered(self) -> u64 {
                0
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
                // Adding nothing turns -0 into 0: which zero is the largest of several is no result.
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
    ($type:ty) => {
        impl Number for $type {
            const SIZE: usize = size_of::<$type>();
            const INTEGER: bool = true;
            const LOWEST: Self = <$type>::MIN;
            const HIGHEST: Self = <$type>::MAX;
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut value = [0; size_of::<$type>()];
                value.copy_from_slice(&bytes[..size_of::<$type>()]);
                <$type>::from_le_bytes(value)
            }
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_lossless,
                reason = "documented rounding"
            )]
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn ordered(self) -> u64 {
                u64::from(<$type>::MIN.abs_diff(self))
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

float!(f64);
float!(f32);
integer!(i8);
integer!(i16);
integer!(i32);
integer!(i64);
integer!(u8);
integer!(u16);
integer!(u32);
integer!(u64);

/// Decimal text from which the same `f64` is read back.
pub(crate) fn decimal(value: f64) -> String {
    let plain = value == 0.0 || (1e-5..1e16).contains(&value.abs());
    if plain {
        format!("{value}")
    } else {
        format!("{value:?}")
    }
}
