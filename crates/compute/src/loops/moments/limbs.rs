//! Exact sums of floats: grids, and limbs of 26 bits, whose products any processor can compute.

use std::marker::PhantomData;

use super::super::number::Number;
use super::super::simd::{self, Level, SimdPass};
use super::{Biased, BlockMoments, LIMBS, SumKinds};
use crate::exact_sums::power;

/// Number of bits of a limb.
const LIMB: i32 = 26;

/// Bias that makes limbs positive: biased limbs are from 0 to 2^26.
const BIAS: u64 = 1 << 25;
const LIMB_MASK: u64 = (1 << 27) - 1;

/// Range of grids: within it, all numbers that are added and subtracted are normal.
const GRIDS: std::ops::RangeInclusive<i32> = -880..=990;

/// Result of a pass over a block, and whether each value was a sum of limbs.
pub(super) type LimbResult<T> = (BlockMoments<T>, bool);

/// Runs `pass` with the grid of the previous block, and if that grid does not fit, with the block's own grid. All values must be below
/// `2^grid`.
pub(super) fn moments<T: Number>(
    values: &[u8],
    grid: &mut i32,
    pass: impl Fn(i32) -> LimbResult<T>,
) -> Option<BlockMoments<T>> {
    debug_assert!(!values.is_empty(), "a block has values");
    let (found, exact) = pass(*grid);
    let above = above(&found);
    if exact && above <= *grid {
        return Some(found);
    }
    // One more, so that a slightly larger value in the next block fits too.
    let better = above.saturating_add(1).max(*GRIDS.start());
    if better == *grid || !GRIDS.contains(&better) {
        return None;
    }
    *grid = better;
    let (found, exact) = pass(*grid);
    exact.then_some(found)
}

/// Returns an exponent such that all values except NaN are below the power of two with this exponent in size.
fn above<T: Number>(found: &BlockMoments<T>) -> i32 {
    let largest = found
        .least
        .to_f64()
        .abs()
        .max(found.greatest.to_f64().abs());
    let exponent = i32::try_from((largest.to_bits() >> 52) & 0x7ff).unwrap_or(0x7ff);
    exponent - 1022
}

/// Returns the number that is added to a value to cut it at `2^weight`: numbers of this size have their last bit there. `2^51` and `extra`
/// are in the low bits of the number.
fn cutter(weight: i32, extra: u64) -> f64 {
    f64::from_bits(power(weight + 52).to_bits() + (1 << 51) + extra)
}

/// Sums a block whose values are below `2^grid`, with `L` limbs for each value.
pub(super) fn limbs<T: Number, const L: usize>(
    level: Level,
    want: SumKinds,
    values: &[u8],
    grid: i32,
) -> LimbResult<T> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Ifma => wanted::<T, L, 8>(level, want, values, grid),
        _ => wanted::<T, L, 4>(level, want, values, grid),
    }
}

fn wanted<T: Number, const L: usize, const N: usize>(
    level: Level,
    want: SumKinds,
    values: &[u8],
    grid: i32,
) -> LimbResult<T> {
    match want {
        SumKinds::Sum => simd::run(level, LimbBlock::<T, L, N, false, false>::new(values, grid)),
        SumKinds::Squares => simd::run(level, LimbBlock::<T, L, N, true, false>::new(values, grid)),
        SumKinds::Products => simd::run(level, LimbBlock::<T, L, N, true, true>::new(values, grid)),
    }
}

/// Pass over a block in `N` lanes with `L` limbs; sums squares if `Q`, products if `P`.
struct LimbBlock<'a, T, const L: usize, const N: usize, const Q: bool, const P: bool> {
    values: &'a [u8],
    weights: [i32; LIMBS],
    cutters: [f64; L],
    type_: PhantomData<T>,
}

impl<'a, T, const L: usize, const N: usize, const Q: bool, const P: bool>
    LimbBlock<'a, T, L, N, Q, P>
{
    fn new(values: &'a [u8], grid: i32) -> Self {
        // The first limb takes the bits from `grid` down, one bit less than its maximum, because it is rounded.
        let weights = [1, 2, 3].map(|limb| grid + 1 - limb * LIMB);
        let mut cutters = [0.0; L];
        for (cutter_, weight) in cutters.iter_mut().zip(weights) {
            *cutter_ = cutter(weight, BIAS);
        }
        Self {
            values,
            weights,
            cutters,
            type_: PhantomData,
        }
    }
}

/// Wrapping sums of all rows so far, in `N` lanes.
struct LimbLanes<T, const L: usize, const N: usize> {
    least: [T; N],
    greatest: [T; N],
    /// Bits that are in no limb.
    rest: [u64; N],
    sums: [[u64; N]; L],
    squares: [[[u64; N]; L]; L],
    /// Sum of `sums` after each row.
    running: [[u64; N]; L],
}

impl<T: Number, const L: usize, const N: usize, const Q: bool, const P: bool>
    LimbBlock<'_, T, L, N, Q, P>
{
    #[inline(always)]
    fn row(&self, values: [T; N], lanes: &mut LimbLanes<T, L, N>) {
        for lane in 0..N {
            lanes.least[lane] = values[lane].smaller(lanes.least[lane]);
            lanes.greatest[lane] = values[lane].larger(lanes.greatest[lane]);
            let mut rest = values[lane].to_f64();
            let mut limbs = [0; L];
            for limb in 0..L {
                let cut = rest + self.cutters[limb];
                rest -= cut - self.cutters[limb];
                lanes.sums[limb][lane] = lanes.sums[limb][lane].wrapping_add(cut.to_bits());
                limbs[limb] = cut.to_bits() & LIMB_MASK;
            }
            lanes.rest[lane] |= rest.to_bits();
            if Q {
                for a in 0..L {
                    for b in a..L {
                        let product = limbs[a].wrapping_mul(limbs[b]);
                        lanes.squares[a][b][lane] = lanes.squares[a][b][lane].wrapping_add(product);
                    }
                }
            }
            if P {
                for limb in 0..L {
                    lanes.running[limb][lane] =
                        lanes.running[limb][lane].wrapping_add(lanes.sums[limb][lane]);
                }
            }
        }
    }

    /// Combines the lanes, and computes the integers that the wrapped sums stand for.
    #[inline(always)]
    fn together(&self, lanes: &LimbLanes<T, L, N>, rows: u64) -> Biased {
        let mut all = Biased {
            count: i128::from(rows) * N as i128,
            limbs: L,
            weights: self.weights,
            bias: [i128::from(BIAS); LIMBS],
            ..Biased::default()
        };
        for a in 0..L {
            let bits = self.cutters[a].to_bits();
            for lane in 0..N {
                let sum = lanes.sums[a][lane].wrapping_sub(bits.wrapping_mul(rows));
                let sum = i128::from(sum.cast_signed());
                all.sums[a] += sum;
                if P {
                    // Row r was added rows - r times.
                    let times = rows * (rows + 1) / 2;
                    let running = lanes.running[a][lane].wrapping_sub(bits.wrapping_mul(times));
                    let by_row = i128::from(rows) * sum - i128::from(running.cast_signed());
                    all.products[a] += by_row * N as i128 + sum * lane as i128;
                }
            }
            for b in a..L {
                let squares = lanes.squares[a][b].iter();
                all.squares[a][b] = squares.map(|lane| i128::from(*lane)).sum();
            }
        }
        all
    }
}

impl<T: Number, const L: usize, const N: usize, const Q: bool, const P: bool> SimdPass
    for LimbBlock<'_, T, L, N, Q, P>
{
    type Output = LimbResult<T>;

    #[inline(always)]
    fn run(self) -> LimbResult<T> {
        let mut lanes = LimbLanes {
            least: [T::HIGHEST; N],
            greatest: [T::LOWEST; N],
            rest: [0; N],
            sums: [[0; N]; L],
            squares: [[[0; N]; L]; L],
            running: [[0; N]; L],
        };
        let mut rows = self.values.chunks_exact(N * T::SIZE);
        let mut count = 0;
        for row in rows.by_ref() {
            let mut values = [T::default(); N];
            for lane in 0..N {
                values[lane] = T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]);
            }
            self.row(values, &mut lanes);
            count += 1;
        }
        let rest = rows.remainder();
        let (mut least, mut greatest) = (T::HIGHEST, T::LOWEST);
        if !rest.is_empty() {
            let extremes = (lanes.least, lanes.greatest);
            let mut values = [T::default(); N];
            for (value, bytes) in values.iter_mut().zip(rest.chunks_exact(T::SIZE)) {
                *value = T::read(bytes);
                least = value.smaller(least);
                greatest = value.larger(greatest);
            }
            self.row(values, &mut lanes);
            // Padding of the last row is no value.
            (lanes.least, lanes.greatest) = extremes;
            count += 1;
        }
        for lane in 0..N {
            least = lanes.least[lane].smaller(least);
            greatest = lanes.greatest[lane].larger(greatest);
        }
        // A rest may be a zero with a sign.
        let exact = lanes.rest.iter().fold(0, |all, rest| all | rest) << 1 == 0;
        let sums = self.together(&lanes, count).unbiased();
        let moments = BlockMoments {
            least,
            greatest,
            sums,
        };
        (moments, exact)
    }
}
