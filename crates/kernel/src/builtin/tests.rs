//! The built-in kernels against plain references, and all vector levels against each other.

use std::fs;
use std::marker::PhantomData;

use proptest::prelude::*;

use super::statistics::{Statistic, compute};
use super::values::Numbers;
use super::*;
use crate::loops::number::{BLOCK, BlockMoments, Extreme, FloatSum, IntegerSum, Number};
use crate::loops::simd::{self, Level};

/// Writes each part as a file, so that together they are one series.
struct Files {
    _folder: tempfile::TempDir,
    names: Vec<String>,
}

fn files(parts: &[Vec<u8>]) -> Files {
    let folder = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let path = folder.path().join(number.to_string());
        fs::write(&path, part).unwrap();
        names.push(path.to_str().unwrap().to_owned());
    }
    Files {
        _folder: folder,
        names,
    }
}

fn doubles(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn numbers(statistic: Statistic, parts: &[Vec<u8>], dtype: &str) -> Result<Numbers, BuiltinError> {
    compute(statistic, &files(parts).names, dtype, 0, Level::best())
}

fn run(name: &str, args: &[&str], parts: &[Vec<u8>]) -> Result<String, BuiltinError> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let mut result = Vec::new();
    run_builtin(name, &args, &files(parts).names, &mut result)?;
    Ok(String::from_utf8(result).unwrap())
}

/// Values times a power of two as an exact integer sum: the reference for sums of floats.
fn exact_sum(values: &[f64]) -> f64 {
    // All test values are multiples of 2^-20 below 2^40, so that this is exact.
    #[allow(clippy::cast_possible_truncation, reason = "see above")]
    let sum: i128 = values
        .iter()
        .map(|value| (value * f64::from(1 << 20)) as i128)
        .sum();
    sum as f64 / f64::from(1 << 20)
}

/// Values with many magnitudes, all multiples of 2^-20 below 2^40.
fn series(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f64>> {
    let value = (any::<i32>(), 0..20_i32)
        .prop_map(|(value, power)| f64::from(value) * 2_f64.powi(power - 20));
    proptest::collection::vec(value, length)
}

/// Cuts a series into files at some places.
fn cut(values: &[f64], places: &[usize]) -> Vec<Vec<u8>> {
    let mut places: Vec<_> = places
        .iter()
        .map(|place| place % (values.len() + 1))
        .collect();
    places.extend([0, values.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| doubles(&values[pair[0]..pair[1]]))
        .collect()
}

fn close(found: f64, wanted: f64, tolerance: f64) -> bool {
    (found - wanted).abs() <= tolerance
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_mean_keeps_its_bound_and_ignores_how_a_series_is_cut(
        values in series(1..3 * BLOCK), places in proptest::collection::vec(any::<usize>(), 0..4),
    ) {
        let whole = numbers(Statistic::Mean, &[doubles(&values)], "f64").unwrap();
        let parts = numbers(Statistic::Mean, &cut(&values, &places), "f64").unwrap();
        prop_assert_eq!(&whole, &parts);
        let count = values.len() as f64;
        let magnitudes: f64 = values.iter().map(|value| value.abs()).sum();
        // 140 units for the sum, and one for the division.
        let bound = (140.0 * magnitudes / count + whole.values[0].abs()) * 2_f64.powi(-53);
        prop_assert!(close(whole.values[0], exact_sum(&values) / count, bound));
    }

    #[test]
    fn extremes_are_exact(values in series(1..2 * BLOCK), nans in proptest::collection::vec(any::<usize>(), 0..9)) {
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let mut mixed = values.clone();
        for place in nans {
            mixed.insert(place % (mixed.len() + 1), f64::NAN);
        }
        prop_assert_eq!(numbers(Statistic::Max, &[doubles(&mixed)], "f64").unwrap().values, vec![max]);
        prop_assert_eq!(numbers(Statistic::Min, &[doubles(&mixed)], "f64").unwrap().values, vec![min]);
    }

    #[test]
    fn spread_and_regression_match_a_plain_two_pass_reference(
        values in series(2..2 * BLOCK), shift in 0..1000_i32, places in proptest::collection::vec(any::<usize>(), 0..4),
    ) {
        let values: Vec<f64> = values.iter().map(|value| value + f64::from(shift)).collect();
        let count = values.len() as f64;
        let mean = exact_sum(&values) / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let parts = cut(&values, &places);
        let spread = numbers(Statistic::Stddev, &parts, "f64").unwrap().values[0];
        let wanted = (squares / count).sqrt();
        prop_assert!(close(spread, wanted, wanted * 1e-10), "{} {}", spread, wanted);
        let middle = (count - 1.0) / 2.0;
        let (mut products, mut indices) = (0.0, 0.0);
        for (index, value) in values.iter().enumerate() {
            products += (index as f64 - middle) * (value - mean);
            indices += (index as f64 - middle).powi(2);
        }
        let line = numbers(Statistic::Linreg, &parts, "f64").unwrap().values;
        prop_assert_eq!(&line, &numbers(Statistic::Linreg, &[doubles(&values)], "f64").unwrap().values);
        let slope_scale = (squares / indices).sqrt();
        prop_assert!(close(line[0], products / indices, slope_scale * 1e-9));
        prop_assert!(close(line[1], mean - products / indices * middle, slope_scale * middle * 1e-9 + mean.abs() * 1e-12));
        if squares > 0.0 {
            prop_assert!(close(line[2], products * products / indices / squares, 1e-9));
        }
    }

    #[test]
    fn integers_are_exact(values in proptest::collection::vec(any::<i64>(), 1..2 * BLOCK)) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let sum: i128 = values.iter().map(|value| i128::from(*value)).sum();
        let wanted = sum as f64 / values.len() as f64;
        let mean = numbers(Statistic::Mean, std::slice::from_ref(&bytes), "i64").unwrap().values[0];
        prop_assert!(close(mean, wanted, wanted.abs() * 1e-15 + 1e-3), "{} {}", mean, wanted);
        let max = numbers(Statistic::Max, std::slice::from_ref(&bytes), "i64").unwrap();
        prop_assert_eq!(max.text, values.iter().max().unwrap().to_string());
        let min = numbers(Statistic::Min, &[bytes], "u64").unwrap();
        prop_assert_eq!(min.text, values.iter().map(|value| value.cast_unsigned()).min().unwrap().to_string());
    }

    #[test]
    fn all_vector_levels_agree_to_the_last_bit(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
        fn check<T: Number + std::fmt::Debug, const L: usize>(bytes: &[u8]) {
            let bytes = &bytes[..bytes.len() / T::SIZE * T::SIZE];
            let all = |level| {
                let moments = simd::run(level, BlockMoments::<T, true>(bytes, PhantomData));
                let max = simd::run(level, Extreme::<T, true, L>(bytes, PhantomData));
                let min = simd::run(level, Extreme::<T, false, L>(bytes, PhantomData));
                // A NaN is a NaN whatever its bits: those depend on the order of operands.
                let bits = |value: f64| if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() };
                (
                    bits(simd::run(level, FloatSum::<T>(bytes, PhantomData))),
                    simd::run(level, IntegerSum::<T, 64>(bytes, PhantomData)),
                    max.map(|value| bits(value.to_f64() + 0.0)),
                    min.map(|value| bits(value.to_f64() + 0.0)),
                    [moments.mean, moments.squares, moments.products].map(bits),
                )
            };
            for level in Level::available() {
                assert_eq!(all(level), all(Level::Portable), "{level:?}");
            }
        }
        check::<f64, 32>(&bytes);
        check::<f32, 64>(&bytes);
        check::<i8, 256>(&bytes);
        check::<i16, 128>(&bytes);
        check::<i32, 64>(&bytes);
        check::<i64, 32>(&bytes);
        check::<u8, 256>(&bytes);
        check::<u16, 128>(&bytes);
        check::<u32, 64>(&bytes);
        check::<u64, 32>(&bytes);
    }

    #[test]
    fn words_are_counted_as_by_a_plain_loop(text in proptest::collection::vec(
        prop_oneof![3 => Just(b'a'), 2 => Just(b' '), 1 => Just(b'\n'), 1 => any::<u8>()], 0..40_000,
    )) {
        let words = text.split(|byte| matches!(byte, b' ' | 9..=13)).filter(|word| !word.is_empty()).count();
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        let wanted = [lines as u64, words as u64, text.len() as u64];
        let files = files(&[text]);
        for level in Level::available() {
            prop_assert_eq!(text::wordcount(&files.names, level).unwrap(), wanted);
        }
    }
}

#[test]
fn nan_rules() {
    let mixed = doubles(&[f64::NAN, 1.0, 2.0]);
    for statistic in ["mean", "stddev"] {
        assert_eq!(
            run(statistic, &[], std::slice::from_ref(&mixed)).unwrap(),
            "NaN\n"
        );
    }
    assert_eq!(
        run("linreg", &[], std::slice::from_ref(&mixed)).unwrap(),
        "NaN NaN NaN\n"
    );
    assert_eq!(
        run("max", &[], std::slice::from_ref(&mixed)).unwrap(),
        "2\n"
    );
    assert_eq!(run("min", &[], &[mixed]).unwrap(), "1\n");
    let only = doubles(&[f64::NAN; 5000]);
    assert_eq!(run("max", &[], &[only]).unwrap(), "NaN\n");
    let infinite = doubles(&[f64::NEG_INFINITY, f64::NAN]);
    assert_eq!(
        run("max", &[], std::slice::from_ref(&infinite)).unwrap(),
        "-inf\n"
    );
    assert_eq!(
        run("mean", &[], &[doubles(&[f64::INFINITY, 1.0])]).unwrap(),
        "inf\n"
    );
    assert_eq!(run("max", &[], &[doubles(&[-0.0])]).unwrap(), "0\n");
}

#[test]
fn results_in_text_and_raw() {
    let parts = [b"1 2 3\n".to_vec(), b"4".to_vec()];
    assert_eq!(run("mean", &["dtype=text"], &parts).unwrap(), "2.5\n");
    assert_eq!(
        run("stddev", &["dtype=text"], &parts).unwrap(),
        "1.118033988749895\n"
    );
    assert_eq!(
        run("stddev", &["dtype=text", "ddof=1"], &parts).unwrap(),
        "1.2909944487358056\n"
    );
    assert_eq!(run("linreg", &["dtype=text"], &parts).unwrap(), "1 1 1\n");
    assert_eq!(
        run("max", &["dtype=text"], &[b"1e300".to_vec()]).unwrap(),
        "1e300\n"
    );
    assert_eq!(
        run("mean", &["dtype=u8"], &[vec![255; 5000]]).unwrap(),
        "255\n"
    );
    let mut raw = Vec::new();
    let args = ["dtype=text".to_owned(), "out=f64".to_owned()];
    run_builtin("linreg", &args, &files(&parts).names, &mut raw).unwrap();
    assert_eq!(raw, doubles(&[1.0, 1.0, 1.0]));
    // Beyond 2^53 only integers keep all digits.
    let large = [i64::MAX.to_le_bytes().to_vec()];
    assert_eq!(
        run("max", &["dtype=i64"], &large).unwrap(),
        "9223372036854775807\n"
    );
}

#[test]
fn grep_counts_lines_that_match() {
    let parts = [
        b"int a;\nfor (;;)\nprint int\n\nINT".to_vec(),
        b"pointer\nint".to_vec(),
    ];
    for (args, count) in [
        (vec!["-c", "int"], "4\n"),
        (vec!["-cw", "int"], "3\n"),
        (vec!["-ciw", "int"], "4\n"),
        (vec!["-v", "int"], "3\n"),
        (vec!["-e", "^for|^$"], "2\n"),
        (vec!["-F", "(;;)"], "1\n"),
        (vec!["a;.f"], "0\n"),
        (vec![r"[^x]f"], "0\n"),
        (vec!["--", "-x"], "0\n"),
    ] {
        assert_eq!(run("grep", &args, &parts).unwrap(), count, "{args:?}");
    }
}

#[test]
fn wrong_arguments_list_the_right_ones() {
    let one = [doubles(&[1.0])];
    for (name, args, words) in [
        ("mean", vec!["foo=1"], "dtype=TYPE, out=text|f64"),
        ("mean", vec!["ddof=1"], "dtype=TYPE, out=text|f64"),
        ("mean", vec!["dtype=f16"], "f64, f32, i8"),
        ("mean", vec!["out=json"], "text, f64"),
        ("stddev", vec!["ddof=2"], "0 (population), 1 (sample)"),
        ("stddev", vec!["ddof=1"], "at least 2 values"),
        ("linreg", vec![], "at least 2 values"),
        ("wordcount", vec!["-l"], "no arguments"),
        ("grep", vec![], "needs a pattern"),
        ("grep", vec!["-z", "x"], "-c (always on)"),
        ("grep", vec!["a", "b"], "-c (always on)"),
        ("grep", vec!["("], "no regular expression"),
        ("nean", vec![], "no built-in kernel"),
    ] {
        let error = run(name, &args, &one).unwrap_err().to_string();
        assert!(error.contains(words), "{name} {args:?}: {error}");
    }
    assert!(matches!(
        run("mean", &[], &[vec![]]),
        Err(BuiltinError::Empty)
    ));
    assert!(matches!(
        run("mean", &[], &[]),
        Err(BuiltinError::NoInput("mean"))
    ));
    let torn = run("mean", &[], &[vec![0; 12]]).unwrap_err().to_string();
    assert!(
        torn.contains("12 bytes") && torn.contains("dtype="),
        "{torn}"
    );
    let word = run("max", &["dtype=text"], &[b"1\n2 x\n".to_vec()])
        .unwrap_err()
        .to_string();
    assert!(word.contains("line 2") && word.contains("\"x\""), "{word}");
}
