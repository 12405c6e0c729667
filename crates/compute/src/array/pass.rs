//! Inner loops over blocks of little-endian values: all values into one result, or each value into a separate result.

#![allow(
    clippy::needless_range_loop,
    reason = "lanes number several arrays at once"
)]

use crate::loops::number::{LaneCounter, Number};
use crate::loops::simd::{self, Level, SimdPass};
use std::marker::PhantomData;

/// Type of values, with the type for their sums.
pub(super) trait Adds: Number {
    /// Type of sums: `u64`, which wraps as all integers of two's complement do, or `f64`.
    type Sum: Copy + Default;
    /// Smallest finite number of the type; the next constant is the largest.
    const LEAST: Self;
    const MOST: Self;
    fn widen(self) -> Self::Sum;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
}

macro_rules! adds {
    ($($type:ty),*; $wide:ty) => {
        $(impl Adds for $type {
            type Sum = u64;
            const LEAST: Self = Self::MIN;
            const MOST: Self = Self::MAX;
            #[inline(always)]
            #[allow(clippy::cast_lossless, clippy::cast_sign_loss, clippy::unnecessary_cast, reason = "it wraps")]
            fn widen(self) -> u64 {
                self as $wide as u64
            }
            #[inline(always)]
            fn add(a: u64, b: u64) -> u64 {
                a.wrapping_add(b)
            }
        })*
    };
}
adds!(i8, i16, i32, i64; i64);
adds!(u8, u16, u32, u64; u64);

macro_rules! adds_floats {
    ($($type:ty),*) => {
        $(impl Adds for $type {
            type Sum = f64;
            const LEAST: Self = Self::MIN;
            const MOST: Self = Self::MAX;
            #[inline(always)]
            fn widen(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn add(a: f64, b: f64) -> f64 {
                a + b
            }
        })*
    };
}
adds_floats!(f32, f64);

/// Rule that decides which values count.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ValueRule<T> {
    All,
    Not(T),
    NoneOf(Vec<T>),
    /// Values that are not below the first number, nor above the second: NaN counts.
    Within(T, T),
    /// Values as in `Within`, but NaN does not count.
    Valid(T, T),
}

impl<T: Number> ValueRule<T> {
    #[inline(always)]
    fn keeps(&self, value: T) -> bool {
        match self {
            Self::All => true,
            Self::Not(missing) => value != *missing,
            Self::NoneOf(missing) => !missing.contains(&value),
            Self::Within(least, most) => !((value < *least) | (value > *most)),
            Self::Valid(least, most) => (value >= *least) & (value <= *most),
        }
    }
}

/// Number of lanes of a sum: the same on every processor, so that sums of floats are the same, too.
const LANES: usize = 32;

/// Returns the sum of values, computed in lanes, then in pairs.
pub(super) fn sum<T: Adds>(level: Level, values: &[u8]) -> T::Sum {
    simd::run(level, SumPass::<T>(values, PhantomData))
}

struct SumPass<'a, T>(&'a [u8], PhantomData<T>);

impl<T: Adds> SimdPass for SumPass<'_, T> {
    type Output = T::Sum;

    #[inline(always)]
    fn run(self) -> T::Sum {
        let mut lanes = [T::Sum::default(); LANES];
        let mut rows = self.0.chunks_exact(LANES * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..LANES {
                lanes[lane] = T::add(
                    lanes[lane],
                    T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]).widen(),
                );
            }
        }
        for (lane, value) in rows.remainder().chunks_exact(T::SIZE).enumerate() {
            lanes[lane] = T::add(lanes[lane], T::read(value).widen());
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for lane in 0..width {
                lanes[lane] = T::add(lanes[lane], lanes[lane + width]);
            }
        }
        lanes[0]
    }
}

/// Returns the sum of floats like [`sum`], with the rounding error: each lane keeps the error of its own sum.
pub(super) fn sum_compensated<T: Adds<Sum = f64>>(level: Level, values: &[u8]) -> Compensated {
    simd::run(level, SumCompensated::<T>(values, PhantomData))
}

struct SumCompensated<'a, T>(&'a [u8], PhantomData<T>);

impl<T: Adds<Sum = f64>> SimdPass for SumCompensated<'_, T> {
    type Output = Compensated;

    #[inline(always)]
    fn run(self) -> Compensated {
        let (mut sums, mut lost) = ([0.0; LANES], [0.0; LANES]);
        let mut rows = self.0.chunks_exact(LANES * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..LANES {
                let value = T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]).widen();
                let (sum, error) = two_sum(sums[lane], value);
                (sums[lane], lost[lane]) = (sum, lost[lane] + error);
            }
        }
        for (lane, value) in rows.remainder().chunks_exact(T::SIZE).enumerate() {
            let (sum, error) = two_sum(sums[lane], T::read(value).widen());
            (sums[lane], lost[lane]) = (sum, lost[lane] + error);
        }
        let both = sums.iter().zip(&lost);
        both.fold((0.0, 0.0), |(all, small), (sum, lost)| {
            let (total, error) = two_sum(all, *sum);
            (total, small + (error + lost))
        })
    }
}

/// Returns the sum of two numbers and its rounding error (Knuth, The Art of Computer Programming 2, 4.2.2).
#[inline(always)]
pub(crate) fn two_sum(a: f64, b: f64) -> Compensated {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// Returns the largest or smallest value, and whether any value was NaN.
pub(super) fn extreme<T: Number, const MAX: bool>(level: Level, values: &[u8]) -> (T, bool) {
    match T::SIZE {
        1 => simd::run(level, ExtremePass::<T, MAX, 256>(values, PhantomData)),
        2 => simd::run(level, ExtremePass::<T, MAX, 128>(values, PhantomData)),
        _ => simd::run(level, ExtremePass::<T, MAX, 64>(values, PhantomData)),
    }
}

#[inline(always)]
pub(super) fn better<T: Number, const MAX: bool>(value: T, best: T) -> T {
    if MAX {
        value.larger(best)
    } else {
        value.smaller(best)
    }
}

pub(super) const fn worst<T: Number, const MAX: bool>() -> T {
    if MAX { T::LOWEST } else { T::HIGHEST }
}

struct ExtremePass<'a, T, const MAX: bool, const L: usize>(&'a [u8], PhantomData<T>);

impl<T: Number, const MAX: bool, const L: usize> SimdPass for ExtremePass<'_, T, MAX, L> {
    type Output = (T, bool);

    #[inline(always)]
    #[allow(clippy::eq_op, reason = "only NaN is not itself")]
    fn run(self) -> (T, bool) {
        let mut lanes = [worst::<T, MAX>(); L];
        // The count uses lanes of the same width, so that both use the same vectors.
        let mut nan = [T::Tally::default(); L];
        let mut rows = self.0.chunks_exact(L * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..L {
                let value = T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]);
                lanes[lane] = better::<T, MAX>(value, lanes[lane]);
                if !T::INTEGER {
                    nan[lane] = nan[lane].count(value != value);
                }
            }
        }
        let (mut best, mut any) = (worst::<T, MAX>(), false);
        for value in rows.remainder().chunks_exact(T::SIZE) {
            let value = T::read(value);
            best = better::<T, MAX>(value, best);
            any |= value != value;
        }
        for lane in 0..L {
            best = better::<T, MAX>(lanes[lane], best);
            any |= nan[lane].total() > 0;
        }
        (best, any)
    }
}

/// Counts the values that count, and writes them to `to`, with `neutral` in place of each value that does not count.
pub(super) fn mask<T: Number>(
    level: Level,
    values: &[u8],
    keep: &ValueRule<T>,
    neutral: T,
    to: &mut [u8],
) -> u64 {
    match keep {
        ValueRule::All => {
            to.copy_from_slice(values);
            (values.len() / T::SIZE) as u64
        }
        ValueRule::Not(missing) => {
            let keeps = |value: T| value != *missing;
            simd::run(
                level,
                Mask {
                    values,
                    to,
                    neutral,
                    keeps,
                },
            )
        }
        ValueRule::Within(least, most) => {
            let keeps = |value: T| !((value < *least) | (value > *most));
            simd::run(
                level,
                Mask {
                    values,
                    to,
                    neutral,
                    keeps,
                },
            )
        }
        ValueRule::NoneOf(_) | ValueRule::Valid(..) => {
            let keeps = |value: T| keep.keeps(value);
            simd::run(
                Level::Portable,
                Mask {
                    values,
                    to,
                    neutral,
                    keeps,
                },
            )
        }
    }
}

struct Mask<'a, T, F> {
    values: &'a [u8],
    to: &'a mut [u8],
    neutral: T,
    keeps: F,
}

impl<T: Number, F: Fn(T) -> bool> SimdPass for Mask<'_, T, F> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let mut count = 0_u64;
        for (value, to) in self
            .values
            .chunks_exact(T::SIZE)
            .zip(self.to.chunks_exact_mut(T::SIZE))
        {
            let value = T::read(value);
            let keeps = (self.keeps)(value);
            count += u64::from(keeps);
            (if keeps { value } else { self.neutral }).write(to);
        }
        count
    }
}

/// Increments the count of each result whose value counts.
pub(super) fn count_each<T: Number>(values: &[u8], keep: &ValueRule<T>, counts: &mut [i64]) {
    if *keep == ValueRule::All {
        counts.iter_mut().for_each(|count| *count += 1);
        return;
    }
    for (value, count) in values.chunks_exact(T::SIZE).zip(counts) {
        *count += i64::from(keep.keeps(T::read(value)));
    }
}

/// A value and its rounding error.
pub(crate) type Compensated = (f64, f64);

/// Adds a value with compensation, as Neumaier does ("Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", 1974).
#[inline(always)]
pub(super) fn add_compensated((sum, lost): Compensated, value: f64) -> Compensated {
    let total = sum + value;
    let more = if sum.abs() >= value.abs() {
        (sum - total) + value
    } else {
        (value - total) + sum
    };
    (total, lost + more)
}

/// Adds each float to its own sum, with compensation.
pub(super) fn add_each_float<T: Adds<Sum = f64>>(
    level: Level,
    values: &[u8],
    sums: &mut [Compensated],
) {
    simd::run(level, AddFloats::<T>(values, sums, PhantomData));
}

struct AddFloats<'a, T>(&'a [u8], &'a mut [Compensated], PhantomData<T>);

impl<T: Adds<Sum = f64>> SimdPass for AddFloats<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (value, sum) in self.0.chunks_exact(T::SIZE).zip(self.1) {
            *sum = add_compensated(*sum, T::read(value).widen());
        }
    }
}

/// Adds each integer to its own sum.
pub(super) fn add_each<T: Adds<Sum = u64>>(level: Level, values: &[u8], sums: &mut [u64]) {
    simd::run(level, AddWhole::<T>(values, sums, PhantomData));
}

struct AddWhole<'a, T>(&'a [u8], &'a mut [u64], PhantomData<T>);

impl<T: Adds<Sum = u64>> SimdPass for AddWhole<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (value, sum) in self.0.chunks_exact(T::SIZE).zip(self.1) {
            *sum = sum.wrapping_add(T::read(value).widen());
        }
    }
}

/// Replaces each value of `best` by the value of `values` if that value is better, or NaN.
pub(super) fn extreme_each<T: Number, const MAX: bool>(
    level: Level,
    values: &[u8],
    best: &mut [T],
) {
    simd::run(level, ExtremeEach::<T, MAX>(values, best));
}

struct ExtremeEach<'a, T, const MAX: bool>(&'a [u8], &'a mut [T]);

impl<T: Number, const MAX: bool> SimdPass for ExtremeEach<'_, T, MAX> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (value, best) in self.0.chunks_exact(T::SIZE).zip(self.1) {
            *best = with_nan::<T, MAX>(T::read(value), *best);
        }
    }
}

/// Returns the better of two values, or NaN if either is NaN.
#[inline(always)]
#[allow(clippy::eq_op, reason = "only NaN is not itself")]
pub(super) fn with_nan<T: Number, const MAX: bool>(value: T, best: T) -> T {
    if value != value || best != best {
        if value != value { value } else { best }
    } else {
        better::<T, MAX>(value, best)
    }
}
