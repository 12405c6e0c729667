//! Compares statistics with computations in integers of any length, for any cuts of the input.

#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "results are exact, and places are small"
)]

use num_bigint::BigInt;
use proptest::prelude::*;

use super::{cuts, doubles, fold, merge_invariance, run};
use crate::exact_sums::{parts, ratio, root_of_ratio};

/// Generates values of many magnitudes, which cancel, with some that are not finite or zero.
fn series(special: bool) -> impl Strategy<Value = Vec<f64>> {
    let odd = if special { 1 } else { 0 };
    let value = prop_oneof![
        20 => (-1.0..1.0_f64, 0..40_i32).prop_map(|(value, power)| value * 2_f64.powi(power)),
        20 => (any::<i32>()).prop_map(|value| 1e9 + f64::from(value) * 1e-9),
        2 => Just(0.0),
        odd => any::<u64>().prop_map(f64::from_bits),
        odd => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(-9.0)],
    ];
    let values = prop_oneof![
        proptest::collection::vec(value.clone(), 0..60),
        proptest::collection::vec(-1e6..1e6_f64, 2000..9000),
        proptest::collection::vec(value, 3000..6000),
    ];
    (values, any::<bool>()).prop_map(|(mut values, negate)| {
        if negate {
            values.iter_mut().for_each(|value| *value = -*value);
        }
        values
    })
}

/// Returns the sums of `x`, `x²`, `ix`, in units of 2^-1074, 2^-2148 and 2^-1074.
fn sums(values: &[f64]) -> [BigInt; 3] {
    sums_of(values.iter().map(|value| {
        let (mantissa, exponent) = parts(*value);
        BigInt::from(mantissa) << usize::try_from(exponent + 1074).unwrap()
    }))
}

fn sums_of(values: impl Iterator<Item = BigInt>) -> [BigInt; 3] {
    let mut sums = [BigInt::ZERO, BigInt::ZERO, BigInt::ZERO];
    for (index, value) in values.enumerate() {
        sums[1] += &value * &value;
        sums[2] += &value * index;
        sums[0] += value;
    }
    sums
}

/// Returns `n²` times the variance of the values, `n²` times their covariance with the index, and `n²` times the variance of the index.
fn scatter(n: usize, [sum, squares, products]: &[BigInt; 3]) -> [BigInt; 3] {
    let count = BigInt::from(n);
    let index = BigInt::from(n * (n - 1) / 2);
    let index_squares: BigInt = (0..n).map(|index| BigInt::from(index * index)).sum();
    [
        &count * squares - sum * sum,
        &count * products - &index * sum,
        &count * index_squares - &index * &index,
    ]
}

/// Returns whether `found` is an `f64` nearest to `over / under * 2^exponent`.
fn nearest(found: f64, over: &BigInt, under: &BigInt, exponent: i32) -> bool {
    let (mantissa, own) = parts(found);
    let low = exponent.min(own);
    let up = |number: BigInt, by: i32| number << usize::try_from(by - low).unwrap();
    let distance = up(BigInt::from(mantissa) * under, own) - up(over.clone(), exponent);
    let half_unit = up(under.clone(), own);
    distance.magnitude() * 2_u32 <= *half_unit.magnitude()
}

fn numbers(text: &[u8]) -> Vec<f64> {
    let text = String::from_utf8_lossy(text);
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn integer_statistics_are_rounded_once(
        values in proptest::collection::vec(prop_oneof![any::<i64>(), -9..9_i64, Just(i64::MIN)], 2..3000),
    ) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all = sums_of(values.iter().map(|value| BigInt::from(*value)));
        let found = fold("stats", &["dtype=i64", "of=count,mean,stddev,linreg"], &bytes).unwrap();
        let found = numbers(&found);
        let count = BigInt::from(values.len());
        prop_assert!(nearest(found[1], &all[0], &count, 0), "mean {}", found[1]);
        let [variance, joint, spread] = scatter(values.len(), &all);
        let (mantissa, exponent) = parts(found[2]);
        if mantissa > 0 {
            // (m - 1)² < variance / 4^exponent < (m + 1)²
            let over = variance.clone() << usize::try_from((-2 * exponent).max(0)).unwrap();
            let under = (&count * &count) << usize::try_from((2 * exponent).max(0)).unwrap();
            let square = |mantissa: i64| BigInt::from(mantissa) * mantissa * &under;
            prop_assert!(square(mantissa - 1) < over && over < square(mantissa + 1), "stddev {}", found[2]);
        }
        prop_assert!(nearest(found[3], &joint, &spread, 0), "slope {}", found[3]);
        let index = BigInt::from(values.len() * (values.len() - 1) / 2);
        let index_squares: BigInt = (0..values.len()).map(|index| BigInt::from(index * index)).sum();
        let at_zero = &all[0] * index_squares - index * &all[2];
        prop_assert!(nearest(found[4], &at_zero, &spread, 0), "intercept {}", found[4]);
        if variance == BigInt::ZERO {
            prop_assert!(found[5].is_nan());
        } else {
            prop_assert!(nearest(found[5], &(&joint * &joint), &(&spread * &variance), 0), "r2 {}", found[5]);
        }
    }

    #[test]
    fn float_statistics_keep_error_bounds(values in series(false), shift in prop_oneof![Just(0.0), -1e12..1e12_f64]) {
        prop_assume!(values.len() >= 2);
        let values: Vec<f64> = values.iter().map(|value| value + shift).collect();
        let found = fold("stats", &["of=count,sum,mean,stddev,linreg"], &doubles(&values)).unwrap();
        let found = numbers(&found);
        let n = values.len();
        let all = sums(&values);
        let [variance, joint, spread] = scatter(n, &all);
        let count = n as f64;
        let mean = ratio(&all[0], &n.into(), -1074);
        let sum = ratio(&all[0], &1.into(), -1074);
        let deviation = root_of_ratio(&variance, &(BigInt::from(n) * n), -2148);
        let unit = 2_f64.powi(-53);
        // The references are rounded too.
        let bound = 320.0 * unit * deviation;
        let is_near = |found: f64, wanted: f64, bound: f64| (found - wanted).abs() <= bound + wanted.abs() * 2.0 * unit;
        prop_assert!(is_near(found[1], sum, bound * count), "sum {} {}", found[1], sum);
        prop_assert!(is_near(found[2], mean, bound), "mean {} {}", found[2], mean);
        prop_assert!(is_near(found[3], deviation, 3e-13 * deviation), "stddev {} {}", found[3], deviation);
        let slope = ratio(&joint, &spread, -1074);
        let index_deviation = root_of_ratio(&spread, &(BigInt::from(n) * n), 0);
        prop_assert!(is_near(found[4], slope, 1e-12 * deviation / index_deviation), "slope {} {}", found[4], slope);
        let intercept = mean - slope * (count - 1.0) / 2.0;
        let bound = 1e-12 * deviation + 4.0 * unit * mean.abs();
        prop_assert!(is_near(found[5], intercept, bound + 4.0 * unit * slope.abs() * count), "intercept {} {}", found[5], intercept);
        if variance != BigInt::ZERO {
            let r2 = ratio(&(&joint * &joint), &(&spread * &variance), 0);
            prop_assert!(is_near(found[6], r2, 2e-12), "r2 {} {}", found[6], r2);
        }
    }

    #[test]
    fn statistics_are_independent_of_split_and_order(values in series(true), cuts in cuts()) {
        let bytes = doubles(&values);
        for name in ["count", "min", "max", "sum", "mean", "stddev", "linreg"] {
            merge_invariance(name, &["out=f64"], &bytes, &cuts);
        }
        let of = "of=count,min,max,sum,mean,stddev,linreg";
        merge_invariance("stats", &[of, "out=f64", "missing=-9"], &bytes, &cuts);
        merge_invariance("stats", &[of, "missing=nan", "order=big"], &bytes, &cuts);
        for dtype in ["f32", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"] {
            let dtype = format!("dtype={dtype}");
            merge_invariance("stats", &[of, &dtype, "missing=0"], &bytes, &cuts);
            merge_invariance("stats", &[of, &dtype, "ddof=1", "order=big"], &bytes, &cuts);
        }
    }

    #[test]
    fn statistics_ignore_missing_values(values in series(false), holes in proptest::collection::vec(any::<usize>(), 0..9)) {
        let mut with = values.clone();
        for hole in holes {
            with.insert(hole % (with.len() + 1), -9.0);
        }
        let kept: Vec<f64> = values.iter().copied().filter(|value| *value != -9.0).collect();
        let of = "of=count,min,max,sum,mean,stddev";
        let Ok(plain) = fold("stats", &[of], &doubles(&kept)) else {
            prop_assert!(fold("stats", &[of, "missing=-9"], &doubles(&with)).is_err());
            return Ok(());
        };
        let marked = fold("stats", &[of, "missing=-9"], &doubles(&with)).unwrap();
        let nan: Vec<f64> = with.iter().map(|value| if *value == -9.0 { f64::NAN } else { *value }).collect();
        prop_assert_eq!(&fold("stats", &[of, "missing=nan"], &doubles(&nan)).unwrap(), &marked);
        let (plain, marked) = (numbers(&plain), numbers(&marked));
        prop_assert_eq!(&plain[..3], &marked[..3]);
        // Blocks without missing values are rounded differently.
        let bound = [plain[5] * plain[0], plain[5], plain[5]];
        for ((a, b), bound) in plain[3..].iter().zip(&marked[3..]).zip(bound) {
            prop_assert!((a - b).abs() <= 1e-12 * bound + a.abs() * 3e-16, "{} {}", a, b);
        }
    }

    #[test]
    fn integer_statistics_are_exact_in_both_byte_orders(values in proptest::collection::vec(any::<i64>(), 1..9000)) {
        let little: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let big: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
        let sum: i128 = values.iter().map(|value| i128::from(*value)).sum();
        let (min, max) = (values.iter().min().unwrap(), values.iter().max().unwrap());
        let wanted = format!("count {}\nmin {min}\nmax {max}\nsum {sum}\n", values.len());
        let of = "of=count,min,max,sum";
        for (bytes, order) in [(little, "order=little"), (big, "order=big")] {
            let found = fold("stats", &["dtype=i64", of, order], &bytes).unwrap();
            prop_assert_eq!(String::from_utf8(found).unwrap(), wanted.clone());
        }
    }
}

#[test]
fn linreg_with_missing_values_keeps_indices() {
    let values: Vec<f64> = (0..5000)
        .map(|index| {
            if index % 7 == 3 {
                -9.0
            } else {
                0.5 * f64::from(index) + 4.0
            }
        })
        .collect();
    let found = run("linreg", &["missing=-9"], &[doubles(&values)]).unwrap();
    assert_eq!(found, "0.5 4 1\n");
}

#[test]
fn statistics_of_extreme_magnitudes_never_overflow_or_underflow() {
    let found = run("stddev", &[], &[doubles(&[1e-200, 3e-200])]).unwrap();
    assert_eq!(found, "1e-200\n");
    let found = run("stddev", &[], &[doubles(&[-1e300, 1e300])]).unwrap();
    assert_eq!(found, "1e300\n");
    let found = run("sum", &[], &[doubles(&[1e308, 1e308, -1e308])]).unwrap();
    assert_eq!(found, "1e308\n");
    let found = run("mean", &[], &[doubles(&[1e308, 1e308])]).unwrap();
    assert_eq!(found, "1e308\n");
}

#[test]
fn merge_refuses_state_of_other_kernel() {
    let fold = |name, args: &[&str]| super::fold_builtin(name, &super::strings(args)).unwrap();
    let state = fold("mean", &[]).state().unwrap();
    assert!(fold("mean", &[]).merge(&state).is_ok());
    assert!(fold("sum", &[]).merge(&state).is_err());
    assert!(fold("mean", &["dtype=f32"]).merge(&state).is_err());
    assert!(fold("mean", &[]).merge(&state[..state.len() - 1]).is_err());
    assert!(fold("mean", &[]).merge(&[]).is_err());
    let mut other = state.clone();
    other[0] = 9;
    assert!(fold("mean", &[]).merge(&other).is_err());
    let mut torn = fold("mean", &[]);
    torn.update(0, &[0; 7]).unwrap();
    assert!(
        torn.finish(&mut Vec::new())
            .unwrap_err()
            .to_string()
            .contains("missing")
    );
}
