//! Simulates the control plane of a cluster for any number of seeds. Options:
//!
//! - `--seeds A..B`: seeds to simulate (B excluded);
//! - `--verbose`: print every event;
//! - `--keep-going`: continue after a defect;
//! - `--without FAULT,FAULT`: leave these faults out;
//! - `--replicas N`: create replicas of files;
//! - `--bit-rot`: change or remove some replicas;
//! - `--drains`: drain nodes;
//! - `--multi-writer`: several mounts write the same files, which replaces all other simulation;
//! - `--rules`: a rule is triggered for all files;
//! - `--hooks`: a hook maps all files, in place of the rule;
//! - `--batches`: hooks with all their features;
//! - `--suspends`: nodes are suspended while no work needs them;
//! - `--memory-tier`: some nodes belong to the memory tier, on hosts that die, and workspaces are created and end;
//! - `--bursts`: some nodes belong to the burst tier;
//! - `--labels`: schedule an application's labels, which replaces all other simulation.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::process::ExitCode;
use std::time::Instant;
use tidemill_simulation::{SimulationOptions, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let value = |name: &str| {
        let index = arguments.iter().position(|argument| argument == name)?;
        arguments.get(index + 1)
    };
    let seeds = value("--seeds").and_then(|range| {
        let (first, end) = range.split_once("..")?;
        Some((first.parse::<u64>().ok()?, end.parse::<u64>().ok()?))
    });
    let Some((first, end)) = seeds else {
        println!(
            "usage: simulate --seeds A..B [--verbose] [--keep-going] [--without FAULT,FAULT] [--replicas N] [--bit-rot] [--drains] [--multi-writer] [--rules] [--hooks] [--batches] [--suspends] [--memory-tier] [--bursts] [--labels]"
        );
        return ExitCode::FAILURE;
    };
    let without = value("--without").map_or("", String::as_str).split(',');
    let options = SimulationOptions {
        verbose: has("--verbose"),
        without: without.map(str::to_owned).collect(),
        replicas: value("--replicas").map_or(1, |replicas| replicas.parse().unwrap_or(1)),
        bit_rot: has("--bit-rot"),
        drains: has("--drains"),
        multi_writer: has("--multi-writer"),
        rules: has("--rules"),
        hooks: has("--hooks"),
        batches: has("--batches"),
        suspends: has("--suspends"),
        memory_tier: has("--memory-tier"),
        labels: has("--labels"),
        bursts: has("--bursts"),
    };
    // The failure is printed completely below.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let (mut events, mut jobs, mut outputs, mut reads, mut defects) = (0, 0, 0, 0, 0);
    let (mut resumes, mut lost, mut workspaces, mut labels) = (0, 0, 0, 0);
    let (mut batches, mut dropped) = (0, 0);
    for seed in first..end {
        match run(seed, &options) {
            Ok(summary) => {
                events += summary.events;
                jobs += summary.jobs;
                outputs += summary.outputs;
                reads += summary.reads;
                resumes += summary.resumes;
                lost += summary.lost;
                workspaces += summary.workspaces;
                batches += summary.batches;
                dropped += summary.dropped;
                labels += summary.labels;
            }
            Err(defect) => {
                println!("{defect}");
                events += defect.events;
                defects += 1;
                if !has("--keep-going") {
                    break;
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = f64::from(u32::try_from(events).unwrap_or(u32::MAX)) / seconds;
    println!(
        "{events} events, {jobs} jobs, {outputs} outputs, {reads} reads, {resumes} resumes, {lost} versions lost with memory, {workspaces} workspaces ended, {batches} batches, {dropped} files deleted, {labels} labels in {seconds:.1} s: {rate:.0} events/s; {defects} defects"
    );
    ExitCode::from(u8::from(defects > 0))
}
