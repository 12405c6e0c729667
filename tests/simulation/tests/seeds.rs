//! Runs the seeds of `seeds.txt`: seeds that always run, and seeds that once showed a defect.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_simulation::{SimulationOptions, run};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/seeds.txt");

/// Parses a line of `seeds.txt`: a range of seeds, the faults that are left out, the number of replicas of versions, and further options.
fn parse(line: &str) -> Option<(Range<u64>, SimulationOptions)> {
    let line = line.split('#').next()?.trim();
    let mut options = SimulationOptions::default();
    let mut words = line.split_whitespace();
    let seeds = words.next()?;
    while let Some(word) = words.next() {
        match word {
            "without" => {
                let faults = words.next()?.split(',');
                options.without = faults.map(str::to_owned).collect();
            }
            "replicas" => options.replicas = words.next()?.parse().ok()?,
            "bit-rot" => options.bit_rot = true,
            "drains" => options.drains = true,
            "multi-writer" => options.multi_writer = true,
            "rules" => options.rules = true,
            "hooks" => options.hooks = true,
            "batches" => options.batches = true,
            "suspends" => options.suspends = true,
            "bursts" => options.bursts = true,
            "memory-tier" => options.memory_tier = true,
            "labels" => options.labels = true,
            other => panic!("unknown option `{other}`: {line}"),
        }
    }
    let (first, end) = match seeds.split_once("..") {
        Some((first, end)) => (first.parse().ok()?, end.parse().ok()?),
        None => (seeds.parse().ok()?, seeds.parse::<u64>().ok()? + 1),
    };
    Some((first..end, options))
}

#[test]
fn acknowledged_data_survives_all_faults_of_known_seeds() {
    let text = std::fs::read_to_string(SEEDS).unwrap();
    let lines: Vec<_> = text.lines().filter_map(parse).collect();
    assert!(!lines.is_empty());
    let each = |(seeds, options): &(Range<u64>, SimulationOptions)| {
        let options = options.clone();
        seeds.clone().map(move |seed| (seed, options.clone()))
    };
    let all: Vec<(u64, SimulationOptions)> = lines.iter().flat_map(each).collect();
    let next = AtomicUsize::new(0);
    let some = || {
        let (mut jobs, mut outputs) = (0, 0);
        while let Some((seed, options)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            match run(*seed, options) {
                Ok(summary) => {
                    jobs += summary.jobs;
                    outputs += summary.outputs;
                }
                Err(defect) => {
                    // The other threads simulate no further seeds.
                    next.store(all.len(), Ordering::Relaxed);
                    panic!("{defect}")
                }
            }
        }
        (jobs, outputs)
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (jobs, outputs) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        let ran = threads.into_iter().map(|thread| match thread.join() {
            Ok(ran) => ran,
            Err(defect) => std::panic::resume_unwind(defect),
        });
        ran.fold((0, 0), |sum, ran| (sum.0 + ran.0, sum.1 + ran.1))
    });
    // Scripts that the cluster refuses would test nothing.
    assert!(
        jobs > 1000 && outputs > 1000,
        "{jobs} jobs, {outputs} outputs"
    );
}

#[test]
fn same_seed_replays_the_same_run() {
    let options = SimulationOptions::default();
    let first = run(5, &options);
    let again = run(5, &options);
    let reported =
        |ran: Result<_, tidemill_simulation::Defect>| ran.map_err(|defect| defect.to_string());
    assert_eq!(reported(first), reported(again));
}
