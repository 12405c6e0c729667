//! Compares the kernels for selections and distributions with plain references.

#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "results are exact, and places are small"
)]

use proptest::prelude::*;

use super::{doubles, files, fold, run, strings};
use crate::builtin::{run_builtin, stream_builtin};

fn lines(text: &str) -> Vec<f64> {
    text.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

/// Returns the output of a stream for one input in pieces of `piece` bytes.
fn stream(name: &str, args: &[&str], input: &[u8], piece: usize) -> Vec<u8> {
    use std::io::Write;
    let mut stream = stream_builtin(name, &strings(args), Vec::new()).unwrap();
    for piece in input.chunks(piece) {
        stream.write_all(piece).unwrap();
    }
    stream.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn quantile_kernel_matches_sorted_values(
        mut values in prop_oneof![
            proptest::collection::vec(-1e6..1e6_f64, 1..3000),
            proptest::collection::vec((-3..3_i32).prop_map(f64::from), 1..3000),
            proptest::collection::vec(any::<u64>().prop_map(f64::from_bits), 1..300),
            proptest::collection::vec(0.0..1.0_f64, 25_000..60_000),
        ],
        q in 0.0..=1.0_f64,
    ) {
        let file = files(&[doubles(&values)]);
        values.retain(|value| !value.is_nan());
        prop_assume!(!values.is_empty());
        values.sort_by(f64::total_cmp);
        let place = q * (values.len() - 1) as f64;
        let (low, high) = (values[place.floor() as usize], values[place.ceil() as usize]);
        let wanted = if low == high || place.fract() == 0.0 { low } else {
            low * (1.0 - place.fract()) + high * place.fract()
        } + 0.0;
        let q = format!("q={q}");
        for (args, wanted) in [
            (vec![q.as_str(), "out=f64"], wanted),
            (vec![q.as_str(), "out=f64", "method=lower"], low + 0.0),
            (vec![q.as_str(), "out=f64", "method=higher"], high + 0.0),
        ] {
            let mut found = Vec::new();
            run_builtin("quantile", &strings(&args), &file.names, &mut found).unwrap();
            prop_assert!(found == wanted.to_le_bytes() || wanted.is_nan(), "{:?} is not {}", found, wanted);
        }
    }

    #[test]
    fn histogram_bins_count_values_between_edges(
        values in proptest::collection::vec(-2.0..3.0_f64, 0..500), bins in 1..40_usize, from in -1.0..0.5_f64, width in 0.1..2.0_f64,
    ) {
        let to = from + width;
        let args = [format!("bins={bins}"), format!("from={from}"), format!("to={to}")];
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let found = String::from_utf8(fold("histogram", &args, &doubles(&values)).unwrap()).unwrap();
        let mut rest = values.len();
        for (number, line) in found.lines().enumerate() {
            let words: Vec<_> = line.split(' ').collect();
            if number < bins {
                let (low, high): (f64, f64) = (words[0].parse().unwrap(), words[1].parse().unwrap());
                let is_in = |value: &&f64| **value >= low && (**value < high || (number + 1 == bins && **value == high));
                let count = values.iter().filter(is_in).count();
                prop_assert_eq!(words[2].parse::<usize>().unwrap(), count, "{}", line);
            }
            rest -= words[words.len() - 1].parse::<usize>().unwrap();
        }
        prop_assert_eq!(rest, 0);
    }

    #[test]
    fn filter_keeps_values_that_satisfy_condition(
        values in proptest::collection::vec(prop_oneof![-5.0..5.0_f64, Just(f64::NAN)], 0..3000), piece in 1..5000_usize,
    ) {
        let wanted: Vec<f64> = values.iter().copied().filter(|value| *value > 1.0 || *value < -2.0).collect();
        let input = doubles(&values);
        let condition = "where=x > 1 or x < -2";
        prop_assert_eq!(stream("filter", &[condition], &input, piece), doubles(&wanted));
        let big = |values: &[f64]| values.iter().flat_map(|value| value.to_be_bytes()).collect::<Vec<u8>>();
        prop_assert_eq!(stream("filter", &[condition, "order=big"], &big(&values), piece), big(&wanted));
        let count = fold("filter", &[condition, "show=count"], &input).unwrap();
        prop_assert_eq!(count, format!("{}\n", wanted.len()).into_bytes());
        let index = stream("filter", &[condition, "show=index"], &input, piece);
        let index = lines(std::str::from_utf8(&index).unwrap());
        let places: Vec<f64> = index.iter().map(|index| values[*index as usize]).collect();
        prop_assert_eq!(places, wanted);
    }

    #[test]
    fn top_k_matches_sorted_values(values in proptest::collection::vec(-50..50_i32, 0..6000), k in 0..50_usize) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut order: Vec<_> = values.iter().copied().enumerate().collect();
        let text = |order: &[(usize, i32)]| order.iter().take(k).map(|(index, value)| format!("{index} {value}\n")).collect::<String>();
        let k_arg = format!("k={k}");
        order.sort_by_key(|(index, value)| (-value, *index));
        let found = fold("topk", &["dtype=i32", &k_arg], &bytes).unwrap();
        prop_assert_eq!(String::from_utf8(found).unwrap(), text(&order));
        order.sort_by_key(|(index, value)| (*value, *index));
        let found = fold("topk", &["dtype=i32", "by=smallest", &k_arg], &bytes).unwrap();
        prop_assert_eq!(String::from_utf8(found).unwrap(), text(&order));
    }

    #[test]
    fn grep_streams_lines_that_it_counts(
        text in proptest::collection::vec(prop_oneof![4 => Just(b'a'), 3 => Just(b'b'), 2 => Just(b'\n')], 0..300), piece in 1..60_usize,
    ) {
        let wanted: Vec<&[u8]> = text.split(|byte| *byte == b'\n').filter(|line| line.windows(2).any(|two| two == b"ab")).collect();
        let found = stream("grep", &["--lines", "ab"], &text, piece);
        let joined: Vec<u8> = wanted.iter().flat_map(|line| [line, b"\n".as_slice()].concat()).collect();
        prop_assert_eq!(&found, &joined);
        let offsets = stream("grep", &["--offsets", "ab"], &text, piece);
        let offsets = lines(std::str::from_utf8(&offsets).unwrap());
        prop_assert_eq!(offsets.len(), wanted.len());
        for (offset, line) in offsets.iter().zip(&wanted) {
            let offset = *offset as usize;
            prop_assert_eq!(&text[offset..offset + line.len()], *line);
            prop_assert!(offset == 0 || text[offset - 1] == b'\n');
        }
    }
}

#[test]
fn sample_is_uniform_and_repeatable() {
    let values: Vec<f64> = (0..100_000).map(f64::from).collect();
    let sample = |seed: &str| {
        let found = fold("sample", &["n=2000", "out=text", seed], &doubles(&values)).unwrap();
        lines(&String::from_utf8(found).unwrap())
    };
    let first = sample("seed=1");
    assert_eq!(first.len(), 2000);
    assert_eq!(first, sample("seed=1"));
    assert!(first.is_sorted());
    let second = sample("seed=2");
    let common = first.iter().filter(|value| second.contains(value)).count();
    assert!(
        common < 100,
        "{common} of 2000 in common where 40 are expected"
    );
    // A fifth of the values has about a fifth of the sample: within six deviations.
    for fifth in 0..5 {
        let within = |value: &&f64| {
            **value >= 20_000.0 * f64::from(fifth) && **value < 20_000.0 * f64::from(fifth + 1)
        };
        let count = first.iter().filter(within).count();
        assert!((290..510).contains(&count), "{count}");
    }
}

#[test]
fn grep_reads_each_file_separately() {
    let parts = [b"x\nab".to_vec(), b"ab\n".to_vec()];
    assert_eq!(run("grep", &["--lines", "ab"], &parts).unwrap(), "ab\nab\n");
    assert_eq!(run("grep", &["--offsets", "ab"], &parts).unwrap(), "2\n0\n");
    assert_eq!(run("grep", &["ab"], &parts).unwrap(), "2\n");
    assert_eq!(run("wordcount", &[], &parts).unwrap(), "2 3 7\n");
}

#[test]
fn histogram_without_range_spans_all_values() {
    let values = doubles(&[1.0, 2.0, 2.5, f64::NAN, 5.0]);
    let found = run("histogram", &["bins=2"], std::slice::from_ref(&values)).unwrap();
    assert_eq!(found, "1 3 3\n3 5 1\nbelow 0\nabove 0\nnan 1\n");
    let raw = fold(
        "histogram",
        &["bins=2", "from=2", "to=3", "out=f64"],
        &values,
    );
    assert_eq!(raw.unwrap(), doubles(&[1.0, 1.0]));
    let same = run("histogram", &["bins=1", "dtype=i8"], &[vec![7; 9]]).unwrap();
    assert_eq!(same, "6.5 7.5 9\nbelow 0\nabove 0\nnan 0\n");
}

#[test]
fn median_reads_text_big_endian_and_missing_values() {
    assert_eq!(
        run(
            "median",
            &["dtype=text"],
            &[b"3 1\n2".to_vec(), b" 9".to_vec()]
        )
        .unwrap(),
        "2.5\n"
    );
    let big: Vec<u8> = [5_i16, -1, 700, -9]
        .iter()
        .flat_map(|value| value.to_be_bytes())
        .collect();
    let args = ["dtype=i16", "order=big", "missing=-9"];
    assert_eq!(
        run("median", &args, std::slice::from_ref(&big)).unwrap(),
        "5\n"
    );
    assert_eq!(
        run("quantile", &["q=0,1", args[0], args[1]], &[big]).unwrap(),
        "-9 700\n"
    );
    assert!(run("median", &[], &[doubles(&[f64::NAN])]).is_err());
}

#[test]
fn extrema_kernel_lists_values_with_indices() {
    let values = doubles(&[0.0, 3.0, 1.0, 1.0, -2.0, 5.0, f64::NAN, 7.0, 1.0]);
    assert_eq!(
        run("extrema", &[], std::slice::from_ref(&values)).unwrap(),
        "1 1\n"
    );
    assert_eq!(
        run("extrema", &["show=list"], &[values]).unwrap(),
        "1 max 3\n4 min -2\n"
    );
}

#[test]
fn selection_kernels_report_reason_of_wrong_arguments() {
    let one = [doubles(&[1.0])];
    for (name, args, words) in [
        ("filter", vec![], "filter needs where="),
        ("filter", vec!["where=x >"], "needs a value"),
        ("filter", vec!["above=high"], "a number"),
        ("histogram", vec!["bins=0"], "1 to 16777216"),
        ("histogram", vec!["from=2", "to=1"], "above from=2"),
        ("quantile", vec!["q=1.5"], "from 0 to 1"),
        ("topk", vec!["k=-1"], "a whole number"),
        ("stats", vec!["of=mean,mode"], "linreg"),
        ("mean", vec!["missing=none"], "the type that dtype= names"),
        ("mean", vec!["order=middle"], "little, big"),
    ] {
        let error = run(name, &args, &one).unwrap_err().to_string();
        assert!(error.contains(words), "{name} {args:?}: {error}");
    }
}
