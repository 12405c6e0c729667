//! Statistics against integers of any length, and however the input is cut.

use num_bigint::BigInt;
use proptest::prelude::*;

use super::{cuts, doubles, fold, law, run};
use crate::exact::parts;

/// Values of many magnitudes, which cancel, with some that are not finite or zero.
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

/// Sums of `x`, `x²`, `ix` as integers, in units of 2^-1074, 2^-2148 and 2^-1074.
fn sums(values: &[f64]) -> [BigInt; 3] {
    let mut sums = [BigInt::ZERO, BigInt::ZERO, BigInt::ZERO];
    for (index, value) in values.iter().enumerate() {
        let (mantissa, exponent) = parts(*value);
        let value = BigInt::from(mantissa) << usize::try_from(exponent + 1074).unwrap();
        sums[1] += &value * &value;
        sums[2] += &value * index;
        sums[0] += value;
    }
    sums
}

/// Whether `found` is a nearest number to `over / under * 2^exponent`.
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
    fn results_are_rounded_once(values in series(false)) {
        prop_assume!(values.len() >= 2);
        let [sum, squares, products] = sums(&values);
        let bytes = doubles(&values);
        let count = BigInt::from(values.len());
        let found = fold("stats", &["of=count,sum,mean,stddev,linreg"], &bytes).unwrap();
        let found = numbers(&found);
        prop_assert_eq!(found[0], values.len() as f64);
        prop_assert!(nearest(found[1], &sum, &1.into(), -1074), "sum {}", found[1]);
        prop_assert!(nearest(found[2], &sum, &count, -1074), "mean {}", found[2]);

        let scatter = &count * &squares - &sum * &sum;
        let (mantissa, exponent) = parts(found[3]);
        if exponent > -1074 {
            // (m-1)² < variance * 2^(-2 exponent) < (m+1)²
            let over = scatter.clone() << usize::try_from((-2148 - 2 * exponent).max(0)).unwrap();
            let under = (&count * &count) << usize::try_from((2148 + 2 * exponent).max(0)).unwrap();
            let square = |mantissa: i64| BigInt::from(mantissa) * mantissa * &under;
            prop_assert!(square(mantissa - 1) < over && over < square(mantissa + 1), "stddev {}", found[3]);
        }

        let n = values.len();
        let index = BigInt::from(n * (n - 1) / 2);
        let index_squares: BigInt = (0..n).map(|index| BigInt::from(index * index)).sum();
        let spread = &count * &index_squares - &index * &index;
        let joint = &count * &products - &index * &sum;
        prop_assert!(nearest(found[4], &joint, &spread, -1074), "slope {}", found[4]);
        let at_zero = &sum * &index_squares - &index * &products;
        prop_assert!(nearest(found[5], &at_zero, &spread, -1074), "intercept {}", found[5]);
        if scatter == BigInt::ZERO {
            prop_assert!(found[6].is_nan());
        } else {
            prop_assert!(nearest(found[6], &(&joint * &joint), &(&spread * &scatter), 0), "r2 {}", found[6]);
        }
    }

    #[test]
    fn any_split_and_order_gives_the_same_bits(values in series(true), cuts in cuts()) {
        let bytes = doubles(&values);
        for name in ["count", "min", "max", "sum", "mean", "stddev", "linreg"] {
            law(name, &["out=f64"], &bytes, &cuts);
        }
        let of = "of=count,min,max,sum,mean,stddev,linreg";
        law("stats", &[of, "out=f64", "missing=-9"], &bytes, &cuts);
        law("stats", &[of, "missing=nan", "order=big"], &bytes, &cuts);
        for dtype in ["f32", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"] {
            let dtype = format!("dtype={dtype}");
            law("stats", &[of, &dtype, "missing=0"], &bytes, &cuts);
            law("stats", &[of, &dtype, "ddof=1", "order=big"], &bytes, &cuts);
        }
    }

    #[test]
    fn missing_values_are_as_if_never_there(values in series(false), holes in proptest::collection::vec(any::<usize>(), 0..9)) {
        let mut with = values.clone();
        for hole in holes {
            with.insert(hole % (with.len() + 1), -9.0);
        }
        let of = "of=count,min,max,sum,mean,stddev";
        let kept: Vec<f64> = values.iter().copied().filter(|value| *value != -9.0).collect();
        let plain = fold("stats", &[of], &doubles(&kept));
        prop_assert_eq!(&fold("stats", &[of, "missing=-9"], &doubles(&with)), &plain);
        let nan: Vec<f64> = with.iter().map(|value| if *value == -9.0 { f64::NAN } else { *value }).collect();
        prop_assert_eq!(&fold("stats", &[of, "missing=nan"], &doubles(&nan)), &plain);
    }

    #[test]
    fn integers_are_exact_in_both_orders(values in proptest::collection::vec(any::<i64>(), 1..9000)) {
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
fn a_line_with_missing_values_keeps_its_indices() {
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
fn very_small_and_large_deviations_do_not_vanish() {
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
fn states_are_refused_where_they_do_not_belong() {
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
