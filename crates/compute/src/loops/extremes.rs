//! Finds the smallest and the largest value of a block.

use std::marker::PhantomData;

use super::number::Number;
use super::simd::{self, Level, SimdPass};

/// Returns the smallest and the largest of whole little-endian values, without NaN; `None` if all values are NaN.
pub(crate) fn extremes<T: Number>(level: Level, values: &[u8]) -> Option<(T, T)> {
    match T::SIZE {
        1 => both::<T, 256>(level, values),
        2 => both::<T, 128>(level, values),
        _ => both::<T, 64>(level, values),
    }
}

fn both<T: Number, const L: usize>(level: Level, values: &[u8]) -> Option<(T, T)> {
    let least = simd::run(level, Extreme::<T, false, L>(values, PhantomData))?;
    let greatest = simd::run(level, Extreme::<T, true, L>(values, PhantomData))?;
    Some((least, greatest))
}

/// Finds the largest (or smallest) number of a block; `None` if the block contains only NaN. `L` values of `T` should fill four of the
/// widest vectors.
struct Extreme<'a, T, const MAX: bool, const L: usize>(&'a [u8], PhantomData<T>);

impl<T: Number, const MAX: bool, const L: usize> Extreme<'_, T, MAX, L> {
    /// Returns the better of two values; `best` if `value` is NaN.
    #[inline(always)]
    fn better(value: T, best: T) -> T {
        if MAX {
            value.larger(best)
        } else {
            value.smaller(best)
        }
    }
}

impl<T: Number, const MAX: bool, const L: usize> SimdPass for Extreme<'_, T, MAX, L> {
    type Output = Option<T>;

    #[inline(always)]
    fn run(self) -> Option<T> {
        let worst = if MAX { T::LOWEST } else { T::HIGHEST };
        let mut lanes = [worst; L];
        let mut rows = self.0.chunks_exact(L * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..L {
                lanes[lane] = Self::better(
                    T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]),
                    lanes[lane],
                );
            }
        }
        let mut best = worst;
        for value in rows.remainder().chunks_exact(T::SIZE) {
            best = Self::better(T::read(value), best);
        }
        for lane in lanes {
            best = Self::better(lane, best);
        }
        // The worst value may be a value of the block, or mean that there is none.
        let found = best != worst
            || self
                .0
                .chunks_exact(T::SIZE)
                .any(|value| T::read(value) == worst);
        found.then_some(best)
    }
}
