use num_bigint::BigInt;

use super::*;
use crate::exact_sums;
use crate::loops::product::RealNumber;

fn numbers(text: &str) -> Vec<Vec<f64>> {
    let line = |line: &str| line.split(' ').map(|word| word.parse().unwrap()).collect();
    text.lines().map(line).collect()
}

/// Returns random rows around `centres`, so far from 0 that sums of squares lose all digits.
fn rows(count: u32, centres: &[[f64; 3]]) -> Vec<f64> {
    let mut chance = 1_u64;
    let mut next = || {
        chance = chance
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        f64::from(u32::try_from(chance >> 32).unwrap()) / f64::from(u32::MAX) - 0.5
    };
    (0..count as usize)
        .flat_map(|row| centres[row % centres.len()].map(|centre| centre + next()))
        .collect()
}

#[test]
fn pca_finds_components_of_points_on_line() {
    // Rows along (3, 4), and a constant third column.
    let values: Vec<f64> = (-5..=5)
        .flat_map(|step| [f64::from(3 * step), f64::from(4 * step), 7.0])
        .collect();
    let found = run("pca", &["columns=3"], &[doubles(&values)]).unwrap();
    let found = numbers(&found);
    assert_eq!(found.len(), 3);
    let close = |found: &[f64], wanted: &[f64]| {
        found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12)
    };
    assert!(close(&found[0], &[275.0, 1.0, 0.6, 0.8, 0.0]), "{found:?}");
    assert!(close(&found[1][..2], &[0.0, 0.0]) && close(&found[2][..2], &[0.0, 0.0]));
    let mean = run("pca", &["columns=3", "show=mean"], &[doubles(&values)]).unwrap();
    assert_eq!(mean, "0 0 7\n");
    let args = ["columns=3", "components=1", "show=projection"];
    let projected = numbers(&run("pca", &args, &[doubles(&values)]).unwrap());
    for (step, row) in (-5..=5).zip(&projected) {
        assert!(close(row, &[f64::from(5 * step)]), "{projected:?}");
    }
}

/// Returns the covariance of two columns, computed exactly and rounded once.
fn covariance(values: &[f64], columns: usize, first: usize, second: usize) -> f64 {
    let (mut a, mut b, mut ab) = (
        exact_sums::Exact::default(),
        exact_sums::Exact::default(),
        BigInt::from(0),
    );
    for row in values.chunks(columns) {
        a.add_f64(row[first]);
        b.add_f64(row[second]);
        let ((m, e), (n, f)) = (
            exact_sums::parts(row[first]),
            exact_sums::parts(row[second]),
        );
        ab += (BigInt::from(m) * n) << usize::try_from(2 * exact_sums::PLACES + e + f).unwrap();
    }
    let rows = values.len() / columns;
    let over = ab * rows - a.integer() * b.integer();
    exact_sums::ratio(
        &over,
        &(BigInt::from(rows) * (rows - 1)),
        -2 * exact_sums::PLACES,
    )
}

#[test]
fn pca_of_values_far_from_zero_keeps_error_bound() {
    let centres = [[1e9, -3e9, 5e8], [1e9 + 2.0, -3e9, 5e8 - 1.0]];
    let values = rows(12_345, &centres);
    let found = run("pca", &["columns=3"], &[doubles(&values)]).unwrap();
    keep_bound(
        &numbers(&found),
        &values,
        f64::from(1 << 14) * f64::EPSILON / 2.0,
    );
}

/// Checks covariances, which follow from variances and directions, against exact covariances.
fn keep_bound(found: &[Vec<f64>], values: &[f64], bound: f64) {
    for first in 0..3 {
        for second in 0..3 {
            let sum: f64 = found
                .iter()
                .map(|row| row[0] * row[2 + first] * row[2 + second])
                .sum();
            let wanted = covariance(values, 3, first, second);
            let spread =
                covariance(values, 3, first, first) * covariance(values, 3, second, second);
            assert!(
                (sum - wanted).abs() <= bound * spread.sqrt(),
                "{sum} {wanted}"
            );
        }
    }
}

#[test]
#[allow(clippy::cast_possible_truncation, reason = "narrower values are meant")]
fn pca_of_narrow_values_keeps_error_bound() {
    let narrow = |scale: f32, off: f64| -> Vec<f32> {
        let values = rows(12_345, &[[off, -off, 0.0], [off + 2.0, -off, 3.0]]);
        values.iter().map(|value| *value as f32 * scale).collect()
    };
    // In `f32`, also with squares that would underflow or overflow in that type.
    for (scale, off) in [
        (1.0, 0.0),
        (1.0, 5e4),
        (1e-12, 0.0),
        (1e-24, 1.0),
        (1e24, 1.0),
    ] {
        let values = narrow(scale, off);
        let bytes = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let found = run("pca", &["columns=3", "dtype=f32"], &[bytes]).unwrap();
        let unscale = 1.0 / f64::from(scale);
        let values: Vec<f64> = values
            .iter()
            .map(|value| f64::from(*value) * unscale)
            .collect();
        let mut found = numbers(&found);
        found.iter_mut().for_each(|row| row[0] *= unscale * unscale);
        keep_bound(&found, &values, 1.0 / 4096.0);
    }
    // A constant column has no squares, which is no reason for another type.
    let same: Vec<u8> = narrow(1.0, 0.0)
        .chunks(2)
        .flat_map(|pair| [pair[0], 0.1].map(f32::to_le_bytes).concat())
        .collect();
    let found = run("pca", &["columns=2", "dtype=f32"], &[same]).unwrap();
    assert_eq!(numbers(&found)[1][..2], [0.0, 0.0]);
}

#[test]
fn matrix_rows_with_nan_are_skipped_if_missing_else_refused() {
    let mut values = rows(2000, &[[1.0, 2.0, 3.0]]);
    let whole = run("pca", &["columns=3"], &[doubles(&values)]).unwrap();
    let missing: Vec<f64> = values
        .chunks(3)
        .flat_map(|row| [row, &[8.0, f64::NAN, 7.0]].concat())
        .collect();
    let found = run("pca", &["columns=3", "missing=nan"], &[doubles(&missing)]).unwrap();
    for (a, b) in numbers(&whole)
        .iter()
        .flatten()
        .zip(numbers(&found).iter().flatten())
    {
        assert!((a - b).abs() < 1e-12);
    }
    let args = ["columns=3", "missing=nan", "show=projection"];
    let projected = run("pca", &args, &[doubles(&missing)]).unwrap();
    assert_eq!(
        projected
            .lines()
            .filter(|line| *line == "NaN NaN NaN")
            .count(),
        2000
    );
    let labels = run(
        "kmeans",
        &["columns=3", "k=2", "missing=nan", "show=labels"],
        &[doubles(&missing)],
    )
    .unwrap();
    assert_eq!(labels.lines().filter(|line| *line == "-1").count(), 2000);
    assert_eq!(labels.lines().count(), 4000);
    values[3001] = f64::INFINITY;
    values[4000] = f64::NAN;
    for (name, args) in [
        ("pca", vec!["columns=3"]),
        ("kmeans", vec!["columns=3", "k=2"]),
    ] {
        let error = run(name, &args, &[doubles(&values)])
            .unwrap_err()
            .to_string();
        assert!(error.contains("row 1000, column 1"), "{error}");
        let error = run(name, &args, &[doubles(&values[..10])])
            .unwrap_err()
            .to_string();
        assert!(error.contains("is columns= right?"), "{error}");
        let error = run(name, &args, &[doubles(&values[..3])])
            .unwrap_err()
            .to_string();
        assert!(error.contains("at least 2 rows"), "{error}");
        let error = run(name, &args[1..], &[doubles(&values)])
            .unwrap_err()
            .to_string();
        assert!(error.contains("needs columns="), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pca_result_is_independent_of_pieces(
        values in proptest::collection::vec(-99..99_i32, 9000..30_000),
        columns in 1..9_usize,
        cuts in cuts(),
    ) {
        let values: Vec<f64> = values.into_iter().map(|value| f64::from(value) / 7.0).collect();
        let values = &values[..values.len() / columns * columns];
        let columns = format!("columns={columns}");
        merge_invariance("pca", &[&columns], &doubles(values), &cuts);
        merge_invariance("pca", &[&columns, "show=mean", "missing=2"], &doubles(values), &cuts);
        let columns_of_narrow = columns.clone();
        let columns = format!("{columns}0");
        let narrow: Vec<u8> = values
            .iter()
            .flat_map(|value| f32::of(*value).to_le_bytes())
            .collect();
        merge_invariance("pca", &[&columns_of_narrow, "dtype=f32"], &narrow, &cuts);
        merge_invariance("pca", &[&columns, "dtype=i16", "order=big"], &doubles(&values[..values.len() / 5 * 5]), &cuts);
    }
}

/// Returns the result of Lloyd's algorithm without optimisations.
fn lloyd(
    values: &[f64],
    columns: usize,
    mut centres: Vec<f64>,
    iterations: usize,
) -> (Vec<f64>, Vec<usize>) {
    let nearest = |row: &[f64], centres: &[f64]| {
        let far = |centre: &[f64]| {
            row.iter()
                .zip(centre)
                .map(|(a, b)| (a - b) * (a - b))
                .sum::<f64>()
        };
        let far: Vec<f64> = centres.chunks(columns).map(far).collect();
        far.iter()
            .enumerate()
            .min_by(|a, b| a.1.total_cmp(b.1))
            .unwrap()
            .0
    };
    for _ in 0..iterations {
        let mut sums = vec![0.0; centres.len()];
        let mut counts = vec![0.0; centres.len() / columns];
        for row in values.chunks(columns) {
            let cluster = nearest(row, &centres);
            counts[cluster] += 1.0;
            sums[cluster * columns..]
                .iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += value);
        }
        for (place, sum) in sums
            .iter()
            .enumerate()
            .filter(|(place, _)| counts[place / columns] > 0.0)
        {
            centres[place] = sum / counts[place / columns];
        }
    }
    let labels = values
        .chunks(columns)
        .map(|row| nearest(row, &centres))
        .collect();
    (centres, labels)
}

#[test]
fn kmeans_from_given_centres_matches_lloyd() {
    let values = rows(70_000, &[[0.0, 0.2, 0.4], [0.6, 0.0, 0.1], [3.0, 1.0, 2.0]]);
    let start = values[..7 * 3].to_vec();
    let (centres, labels) = lloyd(&values, 3, start.clone(), 6);
    let inputs = files(&[
        doubles(&values[..30_000]),
        doubles(&start),
        doubles(&values[30_000..]),
    ]);
    let arg = format!("start={}", inputs.names[1]);
    let base = [
        arg.as_str(),
        "columns=3",
        "k=7",
        "iterations=6",
        "tolerance=0",
    ];
    let ran = |more: &[&str]| {
        let mut result = Vec::new();
        run_builtin(
            "kmeans",
            &strings(&[&base[..], more].concat()),
            &inputs.names,
            &mut result,
        )
        .unwrap();
        String::from_utf8(result).unwrap()
    };
    let found = ran(&[]);
    for (row, wanted) in numbers(&found).iter().zip(centres.chunks(3)) {
        assert!(
            row[1..]
                .iter()
                .zip(wanted)
                .all(|(a, b)| (a - b).abs() < 1e-9),
            "{row:?} {wanted:?}"
        );
    }
    let named: Vec<usize> = ran(&["show=labels"])
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(named == labels);
    let squares: f64 = values
        .chunks(3)
        .zip(&labels)
        .map(|(row, label)| {
            row.iter()
                .zip(&centres[label * 3..])
                .map(|(a, b)| (a - b) * (a - b))
                .sum::<f64>()
        })
        .sum();
    let summary = ran(&["show=summary"]);
    let words: Vec<_> = summary.split_whitespace().collect();
    assert!((words[0].parse::<f64>().unwrap() / squares - 1.0).abs() < 1e-9);
    assert_eq!(words[1..], ["6", "stopped"]);
    assert_eq!(ran(&["threads=3"]), found);
    let wrong = run_builtin(
        "kmeans",
        &strings(&[&arg, "columns=3", "k=8"]),
        &inputs.names,
        &mut Vec::new(),
    );
    assert!(wrong.unwrap_err().to_string().contains("8 rows of 3"));
}

#[test]
#[allow(clippy::cast_possible_truncation, reason = "narrower types are meant")]
fn kmeans_finds_clusters_from_chosen_centres() {
    let centres = [
        [0.0, 9.0, 0.0],
        [9.0, 0.0, 0.0],
        [0.0, 0.0, 1000.0],
        [-9.0, -9.0, -9.0],
    ];
    let values = rows(100_000, &centres);
    let narrow: Vec<u8> = values
        .iter()
        .flat_map(|value| (*value as f32).to_le_bytes())
        .collect();
    let whole: Vec<u8> = values
        .iter()
        .flat_map(|value| (value.round() as i16).to_be_bytes())
        .collect();
    for (format, bytes) in [
        (vec![], doubles(&values)),
        (vec!["dtype=f32"], narrow),
        (vec!["dtype=i16", "order=big"], whole),
    ] {
        let args = [&["columns=3", "k=4", "seed=5"], format.as_slice()].concat();
        let found = run("kmeans", &args, &[bytes]).unwrap();
        let mut found = numbers(&found);
        let place = |row: &[f64]| (row[3].round() + 0.0, row[1].round() + 0.0);
        found.sort_by(|a, b| place(a).partial_cmp(&place(b)).unwrap());
        for (row, wanted) in found
            .iter()
            .zip([centres[3], centres[0], centres[1], centres[2]])
        {
            assert!((row[0] - 25_000.0).abs() < 0.5);
            assert!(
                row[1..]
                    .iter()
                    .zip(wanted)
                    .all(|(a, b)| (a - b).abs() < 0.02),
                "{found:?}"
            );
        }
    }
    let same = doubles(&[1.5; 30]);
    let found = run("kmeans", &["columns=3", "k=4", "show=summary"], &[same]).unwrap();
    assert_eq!(found, "0 1 converged\n");
}
