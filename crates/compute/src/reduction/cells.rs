//! Inner loops over blocks of little-endian values: all values to one cell, or each value to a separate cell.

use std::marker::PhantomData;

use super::counted::CellCounters;
use super::state::{CellNumbers, CellSums, count};
use crate::array::pass::{Compensated, two_sum};
use crate::loops::number::{LaneCounter, Number};
use crate::loops::simd::{self, Level, SimdPass};

/// Number of lanes of a block: the same on every processor, so that sums of floats are the same, too.
const LANES: usize = 32;

/// Type of values whose sums are supported.
pub(super) trait Summable: Number {
    /// Sum of up to 4096 values.
    type Lane: Copy + Default;
    /// Sum of any number of values.
    type Total: Copy + Default + Send + std::fmt::Debug;
    fn put(lane: Self::Lane, value: Self, keeps: bool) -> Self::Lane;
    fn join(total: Self::Total, lane: Self::Lane) -> Self::Total;
    fn both(one: Self::Total, other: Self::Total) -> Self::Total;
    fn real(total: Self::Total) -> f64;
    fn sums(totals: Vec<Self::Total>) -> CellSums;
    fn numbers(values: &[Self]) -> CellNumbers;
}

macro_rules! whole {
    ($($type:ty),*; $lane:ty, $put:expr, $join:expr) => {
        $(#[allow(clippy::cast_lossless, clippy::cast_possible_wrap, clippy::cast_sign_loss,
            clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "both fit")]
        impl Summable for $type {
            type Lane = $lane;
            type Total = i128;
            #[inline(always)]
            fn put(lane: $lane, value: Self, keeps: bool) -> $lane {
                let put: fn($lane, $type) -> $lane = $put;
                put(lane, if keeps { value } else { 0 })
            }
            #[inline(always)]
            fn join(total: i128, lane: $lane) -> i128 {
                let join: fn($lane) -> i128 = $join;
                total + join(lane)
            }
            fn both(one: i128, other: i128) -> i128 {
                one.wrapping_add(other)
            }
            fn real(total: i128) -> f64 {
                super::state::real(total)
            }
            fn sums(totals: Vec<i128>) -> CellSums {
                CellSums::Whole(totals)
            }
            fn numbers(values: &[Self]) -> CellNumbers {
                CellNumbers::Whole(values.iter().map(|value| i128::from(*value)).collect())
            }
        })*
    };
}
whole!(i8, i16, i32, u8, u16, u32; i64, |lane, value| lane + value as i64, |lane| lane as i128);
// The upper and the lower half, so that neither wraps.
whole!(i64, u64; (i64, u64),
    |(high, low), value| (high + (value >> 32) as i64, low + u64::from(value as u32)),
    |(high, low)| ((high as i128) << 32) + low as i128);

impl Summable for f32 {
    type Lane = f64;
    type Total = Compensated;
    #[inline(always)]
    fn put(lane: f64, value: Self, keeps: bool) -> f64 {
        lane + f64::from(if keeps { value } else { 0.0 })
    }
    #[inline(always)]
    fn join((sum, lost): Compensated, lane: f64) -> Compensated {
        let (sum, more) = two_sum(sum, lane);
        (sum, lost + more)
    }
    fn both(one: Compensated, other: Compensated) -> Compensated {
        let (sum, more) = two_sum(one.0, other.0);
        (sum, one.1 + (more + other.1))
    }
    fn real(total: Compensated) -> f64 {
        super::state::total(total)
    }
    fn sums(totals: Vec<Compensated>) -> CellSums {
        CellSums::Real(totals)
    }
    fn numbers(values: &[Self]) -> CellNumbers {
        CellNumbers::Real(values.iter().copied().map(f64::from).collect())
    }
}

impl Summable for f64 {
    type Lane = Compensated;
    type Total = Compensated;
    #[inline(always)]
    fn put((sum, lost): Compensated, value: Self, keeps: bool) -> Compensated {
        let (sum, more) = two_sum(sum, if keeps { value } else { 0.0 });
        (sum, lost + more)
    }
    #[inline(always)]
    fn join((sum, lost): Compensated, lane: Compensated) -> Compensated {
        let (sum, more) = two_sum(sum, lane.0);
        (sum, lost + (more + lane.1))
    }
    fn both(one: Compensated, other: Compensated) -> Compensated {
        let (sum, more) = two_sum(one.0, other.0);
        (sum, one.1 + (more + other.1))
    }
    fn real(total: Compensated) -> f64 {
        super::state::total(total)
    }
    fn sums(totals: Vec<Compensated>) -> CellSums {
        CellSums::Real(totals)
    }
    fn numbers(values: &[Self]) -> CellNumbers {
        CellNumbers::Real(values.to_vec())
    }
}

/// Returns a product and its rounding error.
#[inline(always)]
fn product(a: f64, b: f64) -> Compensated {
    let product = a * b;
    let lost = a.mul_add(b, -product);
    (product, if lost.is_finite() { lost } else { 0.0 })
}

/// Adds a number to a sum, both with their rounding errors.
#[inline(always)]
fn plus((sum, lost): Compensated, (value, below): Compensated) -> Compensated {
    let (sum, more) = two_sum(sum, value);
    (sum, lost + (more + below))
}

/// Results of a block of values.
#[derive(Clone, Copy)]
pub(super) struct BlockResult<T: Summable> {
    pub(super) count: u64,
    pub(super) sum: T::Total,
    pub(super) low: T,
    pub(super) high: T,
}

/// Pass that counts, sums and, with `EXTREMES`, finds the smallest and largest value. With `BIG`, values are big-endian.
pub(super) struct CellBlock<'a, T, K, const SUM: bool, const EXTREMES: bool, const BIG: bool> {
    pub(super) values: &'a [u8],
    pub(super) keeps: K,
    pub(super) of: PhantomData<T>,
}

impl<T: Summable, K: Fn(T) -> bool, const SUM: bool, const EXTREMES: bool, const BIG: bool> SimdPass
    for CellBlock<'_, T, K, SUM, EXTREMES, BIG>
{
    type Output = BlockResult<T>;

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "lanes number several arrays at once"
    )]
    fn run(self) -> BlockResult<T> {
        let mut counts = [T::Tally::default(); LANES];
        let mut sums = [T::Lane::default(); LANES];
        let (mut lows, mut highs) = ([T::HIGHEST; LANES], [T::LOWEST; LANES]);
        let mut put = |lane: usize, value: &[u8]| {
            let value = if BIG {
                T::read_big(value)
            } else {
                T::read(value)
            };
            let keeps = (self.keeps)(value);
            counts[lane] = counts[lane].count(keeps);
            if SUM {
                sums[lane] = T::put(sums[lane], value, keeps);
            }
            if EXTREMES {
                lows[lane] = (if keeps { value } else { T::HIGHEST }).smaller(lows[lane]);
                highs[lane] = (if keeps { value } else { T::LOWEST }).larger(highs[lane]);
            }
        };
        let mut rows = self.values.chunks_exact(LANES * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..LANES {
                put(lane, &row[lane * T::SIZE..(lane + 1) * T::SIZE]);
            }
        }
        for (lane, value) in rows.remainder().chunks_exact(T::SIZE).enumerate() {
            put(lane, value);
        }
        let mut found = BlockResult {
            count: 0,
            sum: T::Total::default(),
            low: T::HIGHEST,
            high: T::LOWEST,
        };
        for lane in 0..LANES {
            found.count += counts[lane].total();
            if SUM {
                found.sum = T::join(found.sum, sums[lane]);
            }
            if EXTREMES {
                found.low = lows[lane].smaller(found.low);
                found.high = highs[lane].larger(found.high);
            }
        }
        found
    }
}

/// Pass that computes the sum of the squared distances of values from their mean.
pub(super) struct Squares<'a, T, K> {
    pub(super) values: &'a [u8],
    pub(super) mean: f64,
    pub(super) keeps: K,
    pub(super) of: PhantomData<T>,
}

impl<T: Summable, K: Fn(T) -> bool> SimdPass for Squares<'_, T, K> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut lanes = [0.0_f64; LANES];
        let mut put = |lane: usize, value: T| {
            let away = value.to_f64() - self.mean;
            lanes[lane] += if (self.keeps)(value) {
                away * away
            } else {
                0.0
            };
        };
        let mut rows = self.values.chunks_exact(LANES * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..LANES {
                put(lane, T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]));
            }
        }
        for (lane, value) in rows.remainder().chunks_exact(T::SIZE).enumerate() {
            put(lane, T::read(value));
        }
        lanes.iter().sum()
    }
}

/// Results of the cells of a box, with one array for each kind of result.
#[derive(Debug)]
pub(super) struct Cells<T: Summable> {
    pub(super) counts: Vec<u64>,
    pub(super) sums: Vec<T::Total>,
    /// Sums of weighted values, one for each cell.
    pub(super) weighted: Vec<Compensated>,
    pub(super) weights: Vec<Compensated>,
    pub(super) lows: Vec<T>,
    pub(super) highs: Vec<T>,
    pub(super) moments: Vec<(f64, f64)>,
    pub(super) counters: Option<CellCounters>,
}

/// Pass that adds each value to a separate cell.
struct EachCell<'a, T: Summable, K> {
    values: &'a [u8],
    keeps: K,
    weight: f64,
    cells: &'a mut Cells<T>,
    first: usize,
}

impl<T: Summable, K: Fn(T) -> bool> SimdPass for EachCell<'_, T, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self {
            values,
            keeps,
            weight,
            cells,
            first,
        } = self;
        let count_of = values.len() / T::SIZE;
        let values = || values.chunks_exact(T::SIZE).map(T::read);
        let counts = &mut cells.counts[first..first + count_of];
        if let Some(moments) = cells.moments.get_mut(first..first + count_of) {
            for ((value, (mean, squares)), seen) in values().zip(moments).zip(&*counts) {
                let away = value.to_f64() - *mean;
                let next = *mean + away / (count(*seen) + 1.0);
                let more = away * (value.to_f64() - next);
                if keeps(value) {
                    (*mean, *squares) = (next, *squares + more);
                }
            }
        }
        if let Some(sums) = cells.sums.get_mut(first..first + count_of) {
            for (value, sum) in values().zip(sums) {
                *sum = T::join(*sum, T::put(T::Lane::default(), value, keeps(value)));
            }
        }
        if let Some(lows) = cells.lows.get_mut(first..first + count_of) {
            for (value, low) in values().zip(lows) {
                *low = (if keeps(value) { value } else { T::HIGHEST }).smaller(*low);
            }
        }
        if let Some(highs) = cells.highs.get_mut(first..first + count_of) {
            for (value, high) in values().zip(highs) {
                *high = (if keeps(value) { value } else { T::LOWEST }).larger(*high);
            }
        }
        if let Some(weights) = cells.weights.get_mut(first..first + count_of) {
            let sums = &mut cells.weighted[first..first + count_of];
            for ((value, all), sum) in values().zip(weights).zip(sums) {
                if keeps(value) {
                    *all = plus(*all, (weight, 0.0));
                    *sum = plus(*sum, product(weight, value.to_f64()));
                }
            }
        }
        if let Some(counters) = &mut cells.counters {
            for (place, value) in values().enumerate().filter(|(_, value)| keeps(*value)) {
                counters.put(first + place, value);
            }
        }
        for (value, seen) in values().zip(counts) {
            *seen += u64::from(keeps(value));
        }
    }
}

impl<T: Summable> Cells<T> {
    /// Adds each value of a block to a separate cell, from `first` on.
    pub(super) fn each<K: Fn(T) -> bool>(
        &mut self,
        level: Level,
        (values, first): (&[u8], usize),
        keeps: K,
        weight: f64,
    ) {
        let each = EachCell {
            values,
            keeps,
            weight,
            cells: self,
            first,
        };
        simd::run(level, each);
    }

    /// Returns whether each cell keeps only the number of its values and their sum.
    pub(super) fn are_sums(&self) -> bool {
        let more = [self.lows.len(), self.moments.len()];
        !self.sums.is_empty() && more == [0, 0] && self.counters.is_none()
    }

    /// Adds big-endian values to one cell that keeps only the sum. The reading loop swaps the bytes of values, so that they need no buffer.
    pub(super) fn add_swapped<K: Fn(T) -> bool + Copy>(
        &mut self,
        level: Level,
        (values, cell): (&[u8], usize),
        keeps: K,
    ) {
        let of = PhantomData;
        let block = CellBlock::<T, K, true, false, true> { values, keeps, of };
        let found = simd::run(level, block);
        if found.count > 0 {
            self.sums[cell] = T::both(self.sums[cell], found.sum);
            self.counts[cell] += found.count;
        }
    }

    /// Adds all values of a block to one cell.
    pub(super) fn all<K: Fn(T) -> bool + Copy>(
        &mut self,
        level: Level,
        (values, cell): (&[u8], usize),
        keeps: K,
        weight: f64,
    ) {
        let of = PhantomData;
        macro_rules! block {
            ($sum:literal, $extremes:literal) => {
                simd::run(
                    level,
                    CellBlock::<T, K, $sum, $extremes, false> { values, keeps, of },
                )
            };
        }
        let weighted = !self.weights.is_empty();
        let sum = !self.sums.is_empty() || weighted || !self.moments.is_empty();
        let found = match (sum, !self.lows.is_empty()) {
            (false, false) => block!(false, false),
            (false, true) => block!(false, true),
            (true, false) => block!(true, false),
            (true, true) => block!(true, true),
        };
        if found.count == 0 {
            return;
        }
        if let Some(counters) = &mut self.counters {
            let values = values.chunks_exact(T::SIZE).map(T::read);
            values
                .filter(|value| keeps(*value))
                .for_each(|value| counters.put(cell, value));
        }
        let real = T::real(found.sum);
        if let Some(moments) = self.moments.get_mut(cell) {
            let mean = real / count(found.count);
            let squares = Squares {
                values,
                mean,
                keeps,
                of: PhantomData,
            };
            let squares = simd::run(level, squares);
            let own = (self.counts[cell], *moments);
            *moments = super::state::moments(own, (found.count, (mean, squares)));
        }
        if let Some(sum) = self.sums.get_mut(cell) {
            *sum = T::both(*sum, found.sum);
        }
        if let (Some(low), Some(high)) = (self.lows.get_mut(cell), self.highs.get_mut(cell)) {
            (*low, *high) = (found.low.smaller(*low), found.high.larger(*high));
        }
        if weighted {
            let weights = product(weight, count(found.count));
            self.weights[cell] = plus(self.weights[cell], weights);
            self.weighted[cell] = plus(self.weighted[cell], product(weight, real));
        }
        self.counts[cell] += found.count;
    }
}
