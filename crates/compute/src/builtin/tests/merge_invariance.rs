//! Checks the merge invariance of all folds that are not statistics; the module `statistics` checks statistics.

use proptest::prelude::*;

use super::{cuts, doubles, merge_invariance, run};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn text_fold_results_are_independent_of_pieces(
        text in proptest::collection::vec(prop_oneof![
            4 => Just(b'a'), 2 => Just(b'b'), 2 => Just(b' '), 1 => Just(b'\n'), 1 => any::<u8>(),
        ], 0..400),
        cuts in cuts(),
    ) {
        merge_invariance("wordcount", &[], &text, &cuts);
        for args in [vec!["ab"], vec!["-v", "a"], vec!["^$"], vec!["-iw", "A"], vec!["^b|a$"]] {
            merge_invariance("grep", &args, &text, &cuts);
        }
    }

    #[test]
    fn value_fold_results_are_independent_of_pieces(
        values in prop_oneof![
            proptest::collection::vec(prop_oneof![(-9..9_i32).prop_map(f64::from), Just(f64::NAN), Just(f64::INFINITY)], 0..40),
            proptest::collection::vec((-99..99_i32).prop_map(f64::from), 5000..9000),
        ],
        cuts in cuts(),
    ) {
        let bytes = doubles(&values);
        for (name, args) in [
            ("extrema", vec![]),
            ("extrema", vec!["show=list", "missing=3"]),
            ("extrema", vec!["dtype=i16", "missing=0", "order=big"]),
            ("histogram", vec!["from=-5", "to=7.5", "bins=7"]),
            ("histogram", vec!["dtype=u8", "from=3", "to=250", "bins=31", "out=f64", "missing=0"]),
            ("filter", vec!["show=count", "above=2"]),
            ("filter", vec!["show=count", "where=not (x<3) and x!=5", "missing=7"]),
            ("filter", vec!["show=count", "dtype=i32", "order=big", "from=0"]),
            ("topk", vec!["k=7"]),
            ("topk", vec!["k=3", "by=smallest", "missing=-9"]),
            ("topk", vec!["k=100000", "dtype=u8"]),
            ("topk", vec!["k=0"]),
            ("sample", vec!["n=9", "out=text"]),
            ("sample", vec!["n=100000", "dtype=i16", "order=big"]),
            ("sample", vec!["n=5", "seed=77", "missing=3"]),
        ] {
            merge_invariance(name, &args, &bytes, &cuts);
        }
    }
}

#[test]
fn fold_results_are_independent_of_thread_count() {
    // Shares of 8 MiB, and one that is shorter; the second file begins within a block of values.
    let numbers: Vec<u8> = (0..5_u32 << 20)
        .flat_map(|index| (index.wrapping_mul(2_654_435_761) >> 7).to_le_bytes())
        .collect();
    let parts = [numbers[..12].to_vec(), numbers];
    for (name, args) in [
        (
            "stats",
            vec!["dtype=f32", "of=count,min,max,mean,stddev,linreg"],
        ),
        (
            "stats",
            vec!["dtype=u16", "of=sum,mean,stddev,linreg", "order=big"],
        ),
        ("histogram", vec!["dtype=i32"]),
        ("extrema", vec!["dtype=i16"]),
        ("filter", vec!["dtype=i32", "show=count", "above=1000000"]),
        ("topk", vec!["dtype=u32", "k=3"]),
        ("sample", vec!["dtype=i32", "n=5", "out=text"]),
        ("wordcount", vec![]),
        ("fingerprint", vec![]),
    ] {
        let one = run(name, &args, &parts).unwrap();
        for threads in ["threads=2", "threads=7"] {
            let more = [args.as_slice(), &[threads]].concat();
            assert_eq!(run(name, &more, &parts).unwrap(), one, "{name} {more:?}");
        }
    }
    let one = run("grep", &["-c", "a"], &parts).unwrap();
    assert_eq!(run("grep", &["-j", "3", "a"], &parts).unwrap(), one);
}
