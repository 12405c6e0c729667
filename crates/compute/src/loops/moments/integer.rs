//! Sums of integers: integers up to 32 bits have one limb, larger integers two limbs of 32 bits.

use std::marker::PhantomData;

use super::super::number::Number;
use super::super::simd::{self, Level, SimdPass};
use super::{Biased, BlockMoments, LIMBS, SumKinds};

const LANES: usize = 16;
const LOW: u64 = 0xffff_ffff;

pub(super) fn moments<T: Number, const L: usize>(
    level: Level,
    want: SumKinds,
    values: &[u8],
) -> BlockMoments<T> {
    let type_ = PhantomData;
    match want {
        SumKinds::Sum => simd::run(level, IntegerBlock::<T, L, false, false> { values, type_ }),
        SumKinds::Squares => simd::run(level, IntegerBlock::<T, L, true, false> { values, type_ }),
        SumKinds::Products => simd::run(level, IntegerBlock::<T, L, true, true> { values, type_ }),
    }
}

struct IntegerBlock<'a, T, const L: usize, const Q: bool, const P: bool> {
    values: &'a [u8],
    type_: PhantomData<T>,
}

/// Partial sums in lanes. Sums of products have a high and a low half, each with terms of 32 bits.
struct IntegerLanes<T, const L: usize> {
    least: [T; LANES],
    greatest: [T; LANES],
    sums: [[u64; LANES]; L],
    high: [[[u64; LANES]; L]; L],
    low: [[[u64; LANES]; L]; L],
    running: [[u64; LANES]; L],
}

impl<T: Number, const L: usize, const Q: bool, const P: bool> IntegerBlock<'_, T, L, Q, P> {
    #[inline(always)]
    fn row(values: [T; LANES], lanes: &mut IntegerLanes<T, L>) {
        for lane in 0..LANES {
            lanes.least[lane] = values[lane].smaller(lanes.least[lane]);
            lanes.greatest[lane] = values[lane].larger(lanes.greatest[lane]);
            let ordered = values[lane].ordered();
            let limbs: [u64; L] = if L == 1 {
                [ordered; L]
            } else {
                std::array::from_fn(|limb| {
                    if limb == 0 {
                        ordered >> 32
                    } else {
                        ordered & LOW
                    }
                })
            };
            for a in 0..L {
                lanes.sums[a][lane] += limbs[a];
                if P {
                    lanes.running[a][lane] += lanes.sums[a][lane];
                }
                if Q {
                    for b in a..L {
                        let product = (limbs[a] & LOW) * (limbs[b] & LOW);
                        lanes.high[a][b][lane] += product >> 32;
                        lanes.low[a][b][lane] += product & LOW;
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn together(lanes: &IntegerLanes<T, L>, rows: u64) -> Biased {
        let bias = i128::from(T::default().ordered());
        let mut all = Biased {
            count: i128::from(rows) * LANES as i128,
            limbs: L,
            weights: if L == 1 { [0; LIMBS] } else { [32, 0, 0] },
            bias: if L == 1 {
                [bias; LIMBS]
            } else {
                [bias >> 32, 0, 0]
            },
            ..Biased::default()
        };
        for a in 0..L {
            for lane in 0..LANES {
                let rows = i128::from(rows);
                let sum = i128::from(lanes.sums[a][lane]) - rows * all.bias[a];
                all.sums[a] += sum;
                if P {
                    let times = rows * (rows + 1) / 2;
                    let running = i128::from(lanes.running[a][lane]) - times * all.bias[a];
                    let by_row = rows * sum - running;
                    all.products[a] += by_row * LANES as i128 + sum * lane as i128;
                }
            }
            for b in a..L {
                let sum =
                    |lanes: &[u64; LANES]| lanes.iter().map(|lane| i128::from(*lane)).sum::<i128>();
                all.squares[a][b] = (sum(&lanes.high[a][b]) << 32) + sum(&lanes.low[a][b]);
            }
        }
        all
    }
}

impl<T: Number, const L: usize, const Q: bool, const P: bool> SimdPass
    for IntegerBlock<'_, T, L, Q, P>
{
    type Output = BlockMoments<T>;

    #[inline(always)]
    fn run(self) -> BlockMoments<T> {
        let mut lanes = IntegerLanes {
            least: [T::HIGHEST; LANES],
            greatest: [T::LOWEST; LANES],
            sums: [[0; LANES]; L],
            high: [[[0; LANES]; L]; L],
            low: [[[0; LANES]; L]; L],
            running: [[0; LANES]; L],
        };
        let mut rows = self.values.chunks_exact(LANES * T::SIZE);
        let mut count = 0;
        for row in rows.by_ref() {
            let mut values = [T::default(); LANES];
            for lane in 0..LANES {
                values[lane] = T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]);
            }
            Self::row(values, &mut lanes);
            count += 1;
        }
        let rest = rows.remainder();
        let (mut least, mut greatest) = (T::HIGHEST, T::LOWEST);
        if !rest.is_empty() {
            let extremes = (lanes.least, lanes.greatest);
            let mut values = [T::default(); LANES];
            for (value, bytes) in values.iter_mut().zip(rest.chunks_exact(T::SIZE)) {
                *value = T::read(bytes);
                least = value.smaller(least);
                greatest = value.larger(greatest);
            }
            Self::row(values, &mut lanes);
            (lanes.least, lanes.greatest) = extremes;
            count += 1;
        }
        for lane in 0..LANES {
            least = lanes.least[lane].smaller(least);
            greatest = lanes.greatest[lane].larger(greatest);
        }
        BlockMoments {
            least,
            greatest,
            sums: Self::together(&lanes, count).unbiased(),
        }
    }
}
