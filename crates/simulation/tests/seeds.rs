//! The seeds of `seeds.txt`: some that are run always, and those that once showed a defect.

use tidemill_simulation::{Options, run};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/seeds.txt");

/// A line of the file: a range of seeds, the faults that are left out, the copies that are made of versions, whether they
/// rot, and whether elements are emptied.
fn parse(line: &str) -> Option<(std::ops::Range<u64>, Options)> {
    let line = line.split('#').next()?.trim();
    let (line, sleeps) = match line.strip_suffix(" sleeps") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let (line, rules) = match line.strip_suffix(" rules") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let (line, together) = match line.strip_suffix(" together") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let (line, drains) = match line.strip_suffix(" drains") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let (line, rot) = match line.strip_suffix(" rot") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let (line, copies) = line.split_once(" copies ").unwrap_or((line, "1"));
    let (seeds, without) = line.split_once(" without ").unwrap_or((line, ""));
    let (first, end) = match seeds.trim().split_once("..") {
        Some((first, end)) => (first.parse().ok()?, end.parse().ok()?),
        None => (
            seeds.trim().parse().ok()?,
            seeds.trim().parse::<u64>().ok()? + 1,
        ),
    };
    let without = without.split(',').map(|word| word.trim().to_owned());
    let options = Options {
        verbose: false,
        without: without.collect(),
        copies: copies.trim().parse().ok()?,
        rot,
        drains,
        together,
        rules,
        sleeps,
    };
    Some((first..end, options))
}

#[test]
fn nothing_acknowledged_is_lost_whatever_fails() {
    let text = std::fs::read_to_string(SEEDS).unwrap();
    let lines: Vec<_> = text.lines().filter_map(parse).collect();
    assert!(!lines.is_empty());
    let (mut jobs, mut outputs) = (0, 0);
    for (seeds, options) in lines {
        for seed in seeds {
            match run(seed, &options) {
                Ok(summary) => {
                    jobs += summary.jobs;
                    outputs += summary.outputs;
                }
                Err(defect) => panic!("{defect}"),
            }
        }
    }
    // Scripts that the array refuses would show nothing.
    assert!(
        jobs > 1000 && outputs > 1000,
        "{jobs} jobs, {outputs} outputs"
    );
}

#[test]
fn a_seed_replays() {
    let options = Options::default();
    let first = run(5, &options);
    let again = run(5, &options);
    let told =
        |ran: Result<_, tidemill_simulation::Defect>| ran.map_err(|defect| defect.to_string());
    assert_eq!(told(first), told(again));
}
