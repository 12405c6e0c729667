//! Converts values of one type to another type.
//!
//! A value keeps its number if the target type can represent the number. If not:
//! - A float becomes an integer by dropping its fraction.
//! - A number out of the target's range becomes the nearest end of the range.
//! - NaN becomes 0.
//! - A number that a float cannot represent exactly is rounded to the nearest (ties to even).

use super::number::Number;
use super::simd::{self, Level, SimdPass};

/// Number of values that are converted at a time: between two loops they are stored in 64 bits in the first-level cache.
pub(crate) const AT_ONCE: usize = 1024;

/// Type of values that can be converted: to the widest type of its kind, and from the widest type of each kind.
pub(crate) trait Convert: Number {
    /// Widest type of the value's kind: `f64`, `i64` or `u64`.
    type Wide: Copy + Default;
    fn wide(self) -> Self::Wide;
}

/// Type of values that can be converted from all the widest types.
pub(crate) trait FromWide: Sized {
    fn from_f64(value: f64) -> Self;
    fn from_i64(value: i64) -> Self;
    fn from_u64(value: u64) -> Self;
    fn put(self, to: &mut [u8]);
}

/// Widest type of a kind of numbers.
pub(crate) trait Wide: Copy + Default {
    fn make<U: FromWide>(self) -> U;
}

macro_rules! wide {
    ($wide:ty, $make:ident: $($type:ty),*) => {
        impl Wide for $wide {
            #[inline(always)]
            fn make<U: FromWide>(self) -> U {
                U::$make(self)
            }
        }
        $(impl Convert for $type {
            type Wide = $wide;
            #[inline(always)]
            fn wide(self) -> $wide {
                self.into()
            }
        })*
    };
}

wide!(f64, from_f64: f32, f64);
wide!(i64, from_i64: i8, i16, i32, i64);
wide!(u64, from_u64: u8, u16, u32, u64);

macro_rules! made {
    ($($type:ty: $clamp_i64:expr, $clamp_u64:expr;)*) => {
        $(impl FromWide for $type {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "documented")]
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as Self
            }
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "held within the range before, or rounded as documented"
            )]
            #[inline(always)]
            fn from_i64(value: i64) -> Self {
                $clamp_i64(value) as Self
            }
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                clippy::cast_precision_loss,
                reason = "held within the range before, or rounded as documented"
            )]
            #[inline(always)]
            fn from_u64(value: u64) -> Self {
                $clamp_u64(value) as Self
            }
            #[inline(always)]
            fn put(self, to: &mut [u8]) {
                to[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
            }
        })*
    };
}

made! {
    f64: |x| x, |x| x;
    f32: |x| x, |x| x;
    i8: |x: i64| x.clamp(i8::MIN.into(), i8::MAX.into()), |x: u64| x.min(i8::MAX as u64);
    i16: |x: i64| x.clamp(i16::MIN.into(), i16::MAX.into()), |x: u64| x.min(i16::MAX as u64);
    i32: |x: i64| x.clamp(i32::MIN.into(), i32::MAX.into()), |x: u64| x.min(i32::MAX as u64);
    i64: |x: i64| x, |x: u64| x.min(i64::MAX as u64);
    u8: |x: i64| x.clamp(0, u8::MAX.into()), |x: u64| x.min(u8::MAX.into());
    u16: |x: i64| x.clamp(0, u16::MAX.into()), |x: u64| x.min(u16::MAX.into());
    u32: |x: i64| x.clamp(0, u32::MAX.into()), |x: u64| x.min(u32::MAX.into());
    u64: |x: i64| x.max(0), |x: u64| x;
}

/// Writes the little-endian values of `from` as values of type `U` to `to`, which must have space for as many values.
pub(crate) fn convert<T: Convert<Wide: Wide>, U: FromWide>(
    from: &[u8],
    to: &mut [u8],
    level: Level,
) {
    let mut wide = [T::Wide::default(); AT_ONCE];
    let to = to.chunks_mut(AT_ONCE * size_of::<U>());
    for (from, to) in from.chunks(AT_ONCE * T::SIZE).zip(to) {
        let wide = &mut wide[..from.len() / T::SIZE];
        simd::run(level, Widen::<T> { from, to: wide });
        simd::run(
            level,
            Make::<T::Wide, U> {
                from: wide,
                to,
                made: std::marker::PhantomData,
            },
        );
    }
}

struct Widen<'a, T: Convert> {
    from: &'a [u8],
    to: &'a mut [T::Wide],
}

impl<T: Convert> SimdPass for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (from, to) in self.from.chunks_exact(T::SIZE).zip(self.to) {
            *to = T::read(from).wide();
        }
    }
}

struct Make<'a, W, U> {
    from: &'a [W],
    to: &'a mut [u8],
    made: std::marker::PhantomData<U>,
}

impl<W: Wide, U: FromWide> SimdPass for Make<'_, W, U> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let to = self.to.chunks_exact_mut(size_of::<U>());
        for (from, to) in self.from.iter().zip(to) {
            from.make::<U>().put(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks the conversion of each value against the conversion of the language, through `i128` between integers.
    macro_rules! check {
        ($bytes:expr; $from:tt => $($to:tt),*) => {
            $(for level in Level::available() {
                let from: Vec<$from> = $bytes.chunks_exact(size_of::<$from>()).map(<$from as Number>::read).collect();
                let raw = &$bytes[..from.len() * size_of::<$from>()];
                let mut to = vec![0; from.len() * size_of::<$to>()];
                convert::<$from, $to>(raw, &mut to, level);
                for (from, to) in from.iter().zip(to.chunks_exact(size_of::<$to>())) {
                    let wanted = wanted!(*from, $from, $to);
                    assert!(<$to as Number>::read(to).same(wanted), "{from} as {}: {level:?}", stringify!($to));
                }
            })*
        };
    }
    macro_rules! wanted {
        ($x:expr, f64, $to:tt) => {
            $x as $to
        };
        ($x:expr, f32, $to:tt) => {
            $x as $to
        };
        ($x:expr, $from:tt, f64) => {
            $x as f64
        };
        ($x:expr, $from:tt, f32) => {
            $x as f32
        };
        ($x:expr, $from:tt, $to:tt) => {
            i128::from($x).clamp(<$to>::MIN.into(), <$to>::MAX.into()) as $to
        };
    }
    macro_rules! check_all {
        ($bytes:expr; $($from:tt),*) => {
            $(check!($bytes; $from => f64, f32, i8, i16, i32, i64, u8, u16, u32, u64);)*
        };
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        #[allow(clippy::cast_possible_truncation, reason = "what is tested")]
        fn convert_matches_language_conversion_for_all_type_pairs(
            words in prop::collection::vec(prop_oneof![
                any::<u64>(), any::<f64>().prop_map(f64::to_bits), (-300.0..300.0_f64).prop_map(f64::to_bits),
                Just(f64::NAN.to_bits()), Just(u64::MAX), Just(0),
            ], 0..200),
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            check_all!(bytes; f64, f32, i8, i16, i32, i64, u8, u16, u32, u64);
        }
    }
}
