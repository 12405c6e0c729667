//! Computes `a·x + b` of each value of an array.

use super::number::Number;
use super::simd::{self, Level, SimdPass};

/// Type of values that can be scaled.
///
/// - `f64`: a product and a sum, each rounded. `f32`: computed in `f64`, and rounded to `f32` at the end.
/// - Integers up to 32 bits: computed in `f64`, rounded to the nearest (ties to even) and clamped to the type's range.
/// - 64-bit integers: exact and clamped to the range if `a` and `b` are integers below 2⁶³ in size; else like other integers, with the
///   value rounded to `f64` first.
/// - NaN stays NaN; an integer that would be NaN becomes 0.
pub(crate) trait Scalable: Number {
    /// Returns the value scaled by `by`.
    fn scale(self, by: ScaleFactors) -> Self;
    /// Writes the value to the first `SIZE` bytes, least significant byte first.
    fn put(self, to: &mut [u8]);
}

/// Factor and summand of a scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScaleFactors {
    a: f64,
    b: f64,
    /// Factor and summand as integers, if both are integers.
    whole: Option<(i128, i128)>,
}

impl ScaleFactors {
    /// Returns a scaling with the factor `a` and the summand `b`.
    pub(crate) fn new(a: f64, b: f64) -> Self {
        const LIMIT: f64 = 9_223_372_036_854_775_808.0;
        let whole = |x: f64| x.abs() < LIMIT && x.fract().abs() <= 0.0;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "both are integers below the limit"
        )]
        let whole = (whole(a) && whole(b)).then_some((a as i128, b as i128));
        Self { a, b, whole }
    }
}

macro_rules! put {
    ($type:ty) => {
        #[inline(always)]
        fn put(self, to: &mut [u8]) {
            to[..size_of::<$type>()].copy_from_slice(&self.to_le_bytes());
        }
    };
}

impl Scalable for f64 {
    put!(f64);
    #[inline(always)]
    fn scale(self, by: ScaleFactors) -> Self {
        self * by.a + by.b
    }
}

impl Scalable for f32 {
    put!(f32);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the rounding that is documented"
    )]
    #[inline(always)]
    fn scale(self, by: ScaleFactors) -> Self {
        (f64::from(self) * by.a + by.b) as f32
    }
}

macro_rules! narrow {
    ($($type:ty),*) => {
        $(impl Scalable for $type {
            put!($type);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "held within the range")]
            #[inline(always)]
            fn scale(self, by: ScaleFactors) -> Self {
                (f64::from(self) * by.a + by.b).round_ties_even() as $type
            }
        })*
    };
}

narrow!(i8, i16, i32, u8, u16, u32);

macro_rules! wide {
    ($($type:ty),*) => {
        $(impl Scalable for $type {
            put!($type);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                clippy::cast_sign_loss,
                reason = "the rounding that is documented, held within the range"
            )]
            #[inline(always)]
            fn scale(self, by: ScaleFactors) -> Self {
                match by.whole {
                    // Both are below 2^63 and the value below 2^64, so nothing overflows.
                    Some((a, b)) => {
                        let low = i128::from(<$type>::MIN);
                        let high = i128::from(<$type>::MAX);
                        (i128::from(self) * a + b).clamp(low, high) as $type
                    }
                    None => (self as f64 * by.a + by.b).round_ties_even() as $type,
                }
            }
        })*
    };
}

wide!(i64, u64);

/// Writes the scaled values of `from` to `to`, which must have the same length. Values that are `missing` are copied.
pub(crate) fn scale<T: Scalable>(
    from: &[u8],
    to: &mut [u8],
    by: ScaleFactors,
    missing: Option<T>,
    level: Level,
) {
    let with = With { by, missing };
    simd::run(level, ApartScaling { from, to, with });
}

/// Scales values in place; values that are `missing` stay unchanged.
pub(crate) fn scale_in_place<T: Scalable>(
    values: &mut [u8],
    by: ScaleFactors,
    missing: Option<T>,
    level: Level,
) {
    let with = With { by, missing };
    simd::run(level, InPlace { values, with });
}

#[derive(Clone, Copy)]
struct With<T> {
    by: ScaleFactors,
    missing: Option<T>,
}

impl<T: Scalable> With<T> {
    #[inline(always)]
    fn one(&self, value: T) -> T {
        match self.missing {
            Some(missing) if missing.same(value) => value,
            _ => value.scale(self.by),
        }
    }
}

struct ApartScaling<'a, T> {
    from: &'a [u8],
    to: &'a mut [u8],
    with: With<T>,
}

impl<T: Scalable> SimdPass for ApartScaling<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let to = self.to.chunks_exact_mut(T::SIZE);
        for (from, to) in self.from.chunks_exact(T::SIZE).zip(to) {
            self.with.one(T::read(from)).put(to);
        }
    }
}

struct InPlace<'a, T> {
    values: &'a mut [u8],
    with: With<T>,
}

impl<T: Scalable> SimdPass for InPlace<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for value in self.values.chunks_exact_mut(T::SIZE) {
            self.with.one(T::read(value)).put(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks the scaling of arrays on all SIMD levels, with separate buffers and in place, against the scaling of single values.
    fn check<T: Scalable>(bytes: &[u8], by: ScaleFactors, missing: Option<T>) {
        let bytes = &bytes[..bytes.len() / T::SIZE * T::SIZE];
        let mut wanted = Vec::new();
        for value in bytes.chunks_exact(T::SIZE).map(T::read) {
            let scaled = match missing {
                Some(missing) if missing.same(value) => value,
                _ => value.scale(by),
            };
            wanted.push(scaled);
        }
        let same = |got: &[u8]| {
            let got = got.chunks_exact(T::SIZE).map(T::read);
            got.zip(&wanted).all(|(got, wanted)| got.same(*wanted))
        };
        for level in Level::available() {
            let mut to = vec![0; bytes.len()];
            scale::<T>(bytes, &mut to, by, missing, level);
            assert!(same(&to), "{level:?}");
            to.copy_from_slice(bytes);
            scale_in_place::<T>(&mut to, by, missing, level);
            assert!(same(&to), "{level:?} in place");
        }
    }

    proptest! {
        #[test]
        fn scale_kernel_gives_equal_results_on_all_simd_levels(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            a in prop_oneof![any::<f64>(), (-9_i8..9).prop_map(f64::from)],
            b in prop_oneof![any::<f64>(), (-9_i8..9).prop_map(f64::from)],
        ) {
            let by = ScaleFactors::new(a, b);
            check::<f64>(&bytes, by, Some(f64::NAN));
            check::<f32>(&bytes, by, None);
            check::<i8>(&bytes, by, Some(3));
            check::<u8>(&bytes, by, None);
            check::<i16>(&bytes, by, None);
            check::<u16>(&bytes, by, None);
            check::<i32>(&bytes, by, None);
            check::<u32>(&bytes, by, None);
            check::<i64>(&bytes, by, None);
            check::<u64>(&bytes, by, None);
        }

        #[test]
        fn integer_scale_is_exact_and_saturates(x in any::<i64>(), y in any::<i32>(), a in any::<i32>(), b in any::<i32>()) {
            let by = ScaleFactors::new(a.into(), b.into());
            let exact = i128::from(x) * i128::from(a) + i128::from(b);
            prop_assert_eq!(i128::from(x.scale(by)), exact.clamp(i64::MIN.into(), i64::MAX.into()));
            // Products of 32-bit numbers have 62 bits, more than a double has. But a result within the range is below 2^53, and so exact.
            let exact = i64::from(y) * i64::from(a) + i64::from(b);
            prop_assert_eq!(i64::from(y.scale(by)), exact.clamp(i32::MIN.into(), i32::MAX.into()));
        }
    }

    #[test]
    fn scale_rounds_and_saturates() {
        assert_eq!(5_i32.scale(ScaleFactors::new(0.5, 0.0)), 2);
        assert_eq!(7_i32.scale(ScaleFactors::new(0.5, 0.0)), 4);
        assert_eq!(200_u8.scale(ScaleFactors::new(2.0, 0.0)), 255);
        assert_eq!(200_u8.scale(ScaleFactors::new(-1.0, 0.0)), 0);
        assert_eq!(1_i16.scale(ScaleFactors::new(f64::NAN, 0.0)), 0);
        assert_eq!(i64::MAX.scale(ScaleFactors::new(1.0, -1.0)), i64::MAX - 1);
        assert_eq!(u64::MAX.scale(ScaleFactors::new(1.0, 1.0)), u64::MAX);
        assert!(f32::NAN.scale(ScaleFactors::new(2.0, 1.0)).is_nan());
    }
}
