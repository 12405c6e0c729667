//! Sums of floats at the speed of memory: sums of the distances of a block's values from one of its values, of the squares of the
//! distances, and of their products with the index. The sums are rounded, but are the same on all processors.
//!
//! Distances are added in 16 lanes, 64 rows at a time; these sums are added in sequence and then pairwise, so each is rounded at most 72
//! times. A product is rounded before it is added, because not all processors can do both at once. If the first value is so far from the
//! mean that squares would cancel, the block is summed again around its mean.

#[cfg(target_arch = "x86_64")]
mod wide;

use std::marker::PhantomData;

use super::super::number::Number;
use super::super::simd::{self, Level, SimdPass};

/// Number of independent partial sums.
const LANES: usize = 16;

/// Number of rows that a partial sum adds one after the other.
const ROWS: usize = 64;

/// Maximum ratio of the squares around the centre to the squares around the mean of the block.
const SQUARES_MAX: f64 = 16.0;

/// Minimum sum of squares: smaller sums may have lost terms below the smallest number.
const SQUARES_MIN: f64 = 1e-270;

/// Sums of a block around a centre `c`, which is a value of the block or near its mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Centred<T> {
    /// Smallest value of the block; the next field is the largest.
    pub(crate) least: T,
    pub(crate) greatest: T,
    pub(crate) centre: f64,
    /// Sum of `x - c`.
    pub(crate) distances: f64,
    /// Sum of `(x - c)²`.
    pub(crate) squares: f64,
    /// Sum of `i (x - c)`, where `i` is the index in the block; 0 if not requested.
    pub(crate) products: f64,
}

/// Sums a block of whole little-endian values, at least one. Returns `None` if a value is not finite, or if squares exceed the range of a
/// float.
pub(crate) fn centred<T: CentredSums>(
    level: Level,
    products: bool,
    values: &[u8],
) -> Option<Centred<T>> {
    #[allow(clippy::cast_precision_loss, reason = "a block has few values")]
    let count = (values.len() / T::SIZE) as f64;
    let around = |centre| {
        let found = T::around(level, products, values, centre);
        let same = found.least.same(found.greatest);
        let fits = same || found.squares >= SQUARES_MIN;
        // NaN and infinities also reach this point.
        (found.squares.is_finite() && found.products.is_finite() && fits).then_some(found)
    };
    let found: Centred<T> = around(T::read(values).to_f64())?;
    let mean = found.distances / count;
    let own = found.squares - found.distances * mean;
    if found.squares <= SQUARES_MAX * own || found.squares == 0.0 {
        return Some(found);
    }
    around(found.centre + mean)
}

/// Floats whose blocks can be summed around a centre.
pub(crate) trait CentredSums: Number {
    /// Runs one pass over whole little-endian values.
    fn around(level: Level, products: bool, values: &[u8], centre: f64) -> Centred<Self>;
}

macro_rules! around {
    ($($type:ty: $wide:path),*) => {
        $(impl CentredSums for $type {
            fn around(level: Level, products: bool, values: &[u8], centre: f64) -> Centred<Self> {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 | Level::Ifma => $wide(products, values, centre),
                    level => portable::<$type>(level, products, values, centre),
                }
            }
        })*
    };
}

around!(f64: wide::doubles, f32: wide::singles);

fn portable<T: Number>(level: Level, products: bool, values: &[u8], centre: f64) -> Centred<T> {
    let type_ = PhantomData::<T>;
    if products {
        simd::run(
            level,
            CentredBlock::<T, true> {
                values,
                centre,
                type_,
            },
        )
    } else {
        simd::run(
            level,
            CentredBlock::<T, false> {
                values,
                centre,
                type_,
            },
        )
    }
}

struct CentredBlock<'a, T, const P: bool> {
    values: &'a [u8],
    centre: f64,
    type_: PhantomData<T>,
}

/// Partial sums of a block in lanes.
#[derive(Clone, Copy)]
struct CentredLanes {
    distances: [f64; LANES],
    squares: [f64; LANES],
    products: [f64; LANES],
}

impl CentredLanes {
    #[inline(always)]
    fn new() -> Self {
        Self {
            distances: [0.0; LANES],
            squares: [0.0; LANES],
            products: [0.0; LANES],
        }
    }

    #[inline(always)]
    fn add(&mut self, lane: usize, distance: f64, index: f64, products: bool) {
        self.distances[lane] += distance;
        self.squares[lane] += distance * distance;
        if products {
            self.products[lane] += index * distance;
        }
    }
}

impl<T: Number, const P: bool> SimdPass for CentredBlock<'_, T, P> {
    type Output = Centred<T>;

    #[allow(clippy::cast_precision_loss, reason = "a block has few values")]
    #[inline(always)]
    fn run(self) -> Centred<T> {
        let (mut least, mut greatest) = ([T::HIGHEST; LANES], [T::LOWEST; LANES]);
        let mut all = CentredLanes::new();
        let mut index = [0.0; LANES];
        for (lane, index) in index.iter_mut().enumerate() {
            *index = lane as f64;
        }
        for piece in self.values.chunks(ROWS * LANES * T::SIZE) {
            let mut lanes = CentredLanes::new();
            let mut rows = piece.chunks_exact(LANES * T::SIZE);
            for row in rows.by_ref() {
                for lane in 0..LANES {
                    let value = T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]);
                    least[lane] = value.smaller(least[lane]);
                    greatest[lane] = value.larger(greatest[lane]);
                    lanes.add(lane, value.to_f64() - self.centre, index[lane], P);
                    if P {
                        index[lane] += LANES as f64;
                    }
                }
            }
            for (lane, value) in rows.remainder().chunks_exact(T::SIZE).enumerate() {
                let value = T::read(value);
                least[lane] = value.smaller(least[lane]);
                greatest[lane] = value.larger(greatest[lane]);
                lanes.add(lane, value.to_f64() - self.centre, index[lane], P);
            }
            for lane in 0..LANES {
                all.distances[lane] += lanes.distances[lane];
                all.squares[lane] += lanes.squares[lane];
                all.products[lane] += lanes.products[lane];
            }
        }
        Centred {
            least: least.into_iter().fold(T::HIGHEST, T::smaller),
            greatest: greatest.into_iter().fold(T::LOWEST, T::larger),
            centre: self.centre,
            distances: pairwise(all.distances),
            squares: pairwise(all.squares),
            products: pairwise(all.products),
        }
    }
}

/// Adds the lanes pairwise.
#[inline(always)]
fn pairwise(mut lanes: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
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

    fn check<T: CentredSums>(bytes: &[u8]) {
        let bytes = &bytes[..bytes.len() / T::SIZE * T::SIZE];
        if bytes.is_empty() {
            return;
        }
        for products in [false, true] {
            let found = |level| {
                centred::<T>(level, products, bytes).map(|found| {
                    let sums = [found.centre, found.distances, found.squares, found.products];
                    (
                        found.least.to_f64() + 0.0,
                        found.greatest.to_f64() + 0.0,
                        sums.map(f64::to_bits),
                    )
                })
            };
            for level in Level::available() {
                assert_eq!(found(level), found(Level::Portable), "{level:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn centred_moments_are_bit_equal_on_all_simd_levels(
            bytes in proptest::collection::vec(any::<u8>(), 0..9000),
            values in proptest::collection::vec(-1e3..1e9_f64, 0..4096),
        ) {
            check::<f64>(&bytes);
            check::<f32>(&bytes);
            let doubles: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            check::<f64>(&doubles);
            let singles: Vec<u8> = values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
            check::<f32>(&singles);
        }
    }

    #[test]
    fn centred_moments_avoid_outlying_first_value_as_centre() {
        let mut values = vec![1e9; 1];
        values.extend((0..4000).map(|index| f64::from(index % 2)));
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let found: Centred<f64> = centred(Level::best(), true, &bytes).unwrap();
        assert!(found.centre < 1e6, "{}", found.centre);
        for odd in [f64::NAN, f64::INFINITY, 1e200] {
            for place in [0, 1, 3999] {
                let mut odd_bytes = bytes.clone();
                odd_bytes[place * 8..place * 8 + 8].copy_from_slice(&odd.to_le_bytes());
                assert!(centred::<f64>(Level::best(), false, &odd_bytes).is_none());
            }
        }
        assert!(
            centred::<f64>(
                Level::best(),
                false,
                &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
            )
            .is_none()
        );
    }
}
