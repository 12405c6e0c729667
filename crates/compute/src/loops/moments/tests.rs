//! Compares the sums of blocks on all SIMD levels with each other and with sums of big integers.

#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "results are exact, and places are small"
)]

use num_bigint::BigInt;
use proptest::prelude::*;

use super::*;
use crate::exact_sums::parts;

/// Expected sum of [`LimbSums`], in units of 2^-2176.
#[derive(Debug, PartialEq)]
struct Wanted {
    sum: BigInt,
    squares: BigInt,
    products: BigInt,
}

fn wanted(values: impl Iterator<Item = (BigInt, i32)>, first: u64) -> Wanted {
    let mut all = Wanted {
        sum: BigInt::ZERO,
        squares: BigInt::ZERO,
        products: BigInt::ZERO,
    };
    for (index, (mantissa, exponent)) in (first..).zip(values) {
        let up = |exponent: i32| usize::try_from(exponent + 2176).unwrap();
        all.sum += &mantissa << up(exponent);
        all.products += (&mantissa * index) << up(exponent);
        all.squares += (&mantissa * &mantissa) << up(2 * exponent);
    }
    all
}

fn found<T: SummedBlocks>(
    level: Level,
    values: &[u8],
    first: u64,
    grid: &mut i32,
) -> Option<(Wanted, f64, f64)> {
    let moments = T::moments(level, SumKinds::Products, values, grid)?;
    let [mut sum, mut squares, mut products]: [Exact; 3] = Default::default();
    moments.sums.sum(&mut sum);
    moments.sums.squares(&mut squares);
    moments.sums.products(first, &mut products);
    let all = Wanted {
        sum: sum.integer(),
        squares: squares.integer(),
        products: products.integer(),
    };
    let least = T::moments(level, SumKinds::Sum, values, grid)?;
    assert_eq!(least.sums.sums, moments.sums.sums);
    let squares = T::moments(level, SumKinds::Squares, values, grid)?;
    assert_eq!(squares.sums.squares, moments.sums.squares);
    Some((
        all,
        moments.least.to_f64() + 0.0,
        moments.greatest.to_f64() + 0.0,
    ))
}

/// Checks the sums on all SIMD levels. If `must` is false, a level need not be able to sum the block.
fn check<T: SummedBlocks>(bytes: &[u8], grid: i32, must: bool) {
    let bytes = &bytes[..bytes.len() / T::SIZE * T::SIZE];
    if bytes.is_empty() {
        return;
    }
    let values: Vec<T> = bytes.chunks(T::SIZE).map(T::read).collect();
    let numbers = values.iter().map(|value| value.exact());
    let wanted = wanted(numbers, 77);
    let least = values
        .iter()
        .fold(T::HIGHEST, |best, value| value.smaller(best));
    let greatest = values
        .iter()
        .fold(T::LOWEST, |best, value| value.larger(best));
    for level in Level::available() {
        let mut grid = grid;
        let found = found::<T>(level, bytes, 77, &mut grid);
        assert!(!must || found.is_some(), "{level:?} should fit");
        if let Some((found, low, high)) = found {
            assert!(found == wanted, "{level:?}");
            assert_eq!(low, least.to_f64() + 0.0, "{level:?}");
            assert_eq!(high, greatest.to_f64() + 0.0, "{level:?}");
        }
    }
}

/// Exact value of a number.
trait ExactValue {
    fn exact(&self) -> (BigInt, i32);
}

impl<T: Number> ExactValue for T {
    fn exact(&self) -> (BigInt, i32) {
        if T::INTEGER {
            (self.text().parse().unwrap(), 0)
        } else {
            let (mantissa, exponent) = parts(self.to_f64());
            (mantissa.into(), exponent)
        }
    }
}

fn bytes_of(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn integer_moments_are_exact(bytes in proptest::collection::vec(any::<u8>(), 1..8 * BLOCK_OF_PRODUCTS)) {
        let whole = |size: usize| &bytes[..bytes.len().min(size * BLOCK_OF_PRODUCTS)];
        check::<i8>(whole(1), 0, true);
        check::<u8>(whole(1), 0, true);
        check::<i16>(whole(2), 0, true);
        check::<u16>(whole(2), 0, true);
        check::<i32>(whole(4), 0, true);
        check::<u32>(whole(4), 0, true);
        check::<i64>(whole(8), 0, true);
        check::<u64>(whole(8), 0, true);
    }

    #[test]
    fn floats_of_similar_magnitude_fit_grid(
        values in proptest::collection::vec(-1.0..1.0_f64, 1..BLOCK_OF_PRODUCTS),
        power in -300..300_i32, grid in -880..990_i32,
    ) {
        let scaled: Vec<f64> = values.iter().map(|value| (value * 4194304.0).trunc() * 2_f64.powi(power)).collect();
        check::<f64>(&bytes_of(&scaled), grid, true);
        #[allow(clippy::cast_possible_truncation, reason = "to have values of that type")]
        let singles: Vec<u8> = values.iter().flat_map(|value| (*value as f32 + 1.0).to_le_bytes()).collect();
        check::<f32>(&singles, grid, true);
    }

    #[test]
    fn moments_that_fit_are_exact(
        values in proptest::collection::vec(any::<u64>().prop_map(f64::from_bits), 1..40),
        spread in 1..2000_i32, base in -1074..900_i32,
    ) {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let grid = base.clamp(-880, 900);
        check::<f64>(&bytes_of(&finite), grid, false);
        let near: Vec<f64> = finite.iter().map(|value| {
            let (mantissa, exponent) = parts(*value);
            mantissa as f64 * 2_f64.powi((base + exponent.rem_euclid(spread)).clamp(-1020, 930))
        }).collect();
        check::<f64>(&bytes_of(&near), grid, false);
        let singles: Vec<u8> = values.iter().map(|value| f32::from_bits(value.to_bits() as u32))
            .filter(|value| value.is_finite()).flat_map(f32::to_le_bytes).collect();
        check::<f32>(&singles, grid, false);
    }
}

#[test]
fn full_blocks_of_extremes_do_not_overflow() {
    fn full<T: SummedBlocks>(value: T, bytes: &[u8]) {
        let values = bytes.repeat(BLOCK);
        for level in Level::available() {
            let found = T::moments(level, SumKinds::Squares, &values, &mut 0);
            let Some(found) = found else {
                panic!("{value:?} should fit at {level:?}");
            };
            let one = T::moments(level, SumKinds::Squares, bytes, &mut 0).unwrap();
            let (mut all, mut single) = (Exact::default(), Exact::default());
            found.sums.squares(&mut all);
            one.sums.squares(&mut single);
            assert_eq!(
                all.integer(),
                single.integer() * BLOCK,
                "{value:?} {level:?}"
            );
            let products = &values[..BLOCK_OF_PRODUCTS * T::SIZE];
            check::<T>(products, 0, true);
        }
    }
    full(i32::MIN, &i32::MIN.to_le_bytes());
    full(u32::MAX, &u32::MAX.to_le_bytes());
    full(i64::MIN, &i64::MIN.to_le_bytes());
    full(u64::MAX, &u64::MAX.to_le_bytes());
    for value in [
        1.0 - f64::EPSILON / 2.0,
        -1.0 + f64::EPSILON / 2.0,
        1.0,
        -0.0,
        1e290,
        -1e-200,
    ] {
        full(value, &value.to_le_bytes());
    }
    for value in [
        1.0 - f32::EPSILON / 2.0,
        -3.0e38_f32,
        1e-38,
        f32::MIN_POSITIVE / 2.0,
    ] {
        full(value, &value.to_le_bytes());
    }
}

#[test]
fn moments_refuse_non_finite_or_distant_values() {
    for level in Level::available() {
        for values in [
            vec![f64::NAN],
            vec![1.0, f64::NAN, 2.0],
            vec![f64::INFINITY, 1.0],
            vec![f64::NEG_INFINITY],
            vec![1.0, 1e-60],
            vec![5e-324, 1.0],
            vec![f64::MAX],
        ] {
            let mut grid = 1;
            let found = f64::moments(level, SumKinds::Squares, &bytes_of(&values), &mut grid);
            assert!(found.is_none(), "{values:?} {level:?}");
        }
    }
}
