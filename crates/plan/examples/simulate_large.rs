//! Benchmark of the simulator: generates a large layered workflow in WfFormat 1.5 from a seed, simulates the workflow on clusters of
//! several sizes and prints one JSON line per run, for `bench/`.
//!
//! ```text
//! cargo run --release -p tidemill-plan --example simulate_large -- [--tasks N] [--nodes N] [--cores N]
//!     [--policy NAME] [--seed N] [--write FILE | --read FILE] [--placed FILE]
//! ```
//!
//! `--write` only generates the workflow's file, for `--read` (so that the reported memory is that of the simulation) and for other
//! simulators. `--placed` runs without devices and then writes tasks with their nodes and the bytes between them, for
//! `bench/simgrid/peer.cpp`.

#![expect(clippy::print_stdout, reason = "the lines are what it is for")]

use serde_json::{Value, json};
use std::time::Instant;
use tidemill_model::time::Span;
use tidemill_plan::sim::{
    Platform, PlatformNode, Simulation, SimulationReport, Workflow, wfformat,
};

/// Number of levels of a generated workflow.
const LEVELS: u64 = 25;
/// Number of kernels that a generated workflow uses.
const KERNELS: u64 = 12;

#[derive(Debug)]
struct Args {
    tasks: u64,
    nodes: usize,
    cores: u32,
    policy: String,
    seed: u64,
    write: Option<String>,
    read: Option<String>,
    placed: Option<String>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args()?;
    if let Some(path) = &args.write {
        let workflow = generate(args.tasks, args.seed);
        std::fs::write(path, serde_json::to_string(&workflow)?)?;
        return Ok(());
    }
    let text = match &args.read {
        Some(path) => std::fs::read_to_string(path)?,
        None => serde_json::to_string(&generate(args.tasks, args.seed))?,
    };
    let begun = Instant::now();
    let workflow = wfformat::parse("generated.json", &text)?;
    let read_s = begun.elapsed().as_secs_f64();
    let json_bytes = text.len();
    drop(text);
    let node = node(&args);
    let platform = Platform::uniform(args.nodes, &node);
    let (begun, cpu_begun) = (Instant::now(), cpu_s());
    let report = Simulation::new(&platform, &workflow)
        .policy(&args.policy)
        .seed(args.seed)
        .run()?;
    let run_s = begun.elapsed().as_secs_f64();
    // On a machine with other load, processor time is more meaningful than elapsed time.
    let cpu_s = cpu_s()
        .zip(cpu_begun)
        .map_or(run_s, |(end, begun)| end - begun);
    let events = report.events.dispatcher + report.events.clock;
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let events_per_s = (events as f64 / cpu_s).round();
    let line = json!({
        "bench": "simulate_large", "tasks": report.tasks.len(), "nodes": args.nodes,
        "cores": args.cores, "policy": report.policy, "seed": args.seed,
        "json_bytes": json_bytes, "read_s": read_s, "run_s": run_s, "cpu_s": cpu_s,
        "dispatcher_events": report.events.dispatcher, "clock_events": report.events.clock,
        "events_per_cpu_s": events_per_s, "makespan_s": Span(report.makespan_ns).as_secs_f64(),
        "transferred_bytes": report.transferred_bytes, "memory_peak_bytes": memory_peak(),
    });
    println!("{line}");
    if let Some(path) = &args.placed {
        std::fs::write(path, placed(&platform, &workflow, &report))?;
    }
    Ok(())
}

fn node(args: &Args) -> PlatformNode {
    let node = PlatformNode {
        cores: args.cores,
        link_bandwidth: Some(1_250_000_000),
        link_latency: Span(50_000),
        link_assumed: 1_250_000_000,
        ..PlatformNode::default()
    };
    if args.placed.is_some() {
        return node;
    }
    PlatformNode {
        read_bandwidth: Some(550_000_000),
        write_bandwidth: Some(450_000_000),
        read_latency: Span(100_000),
        write_latency: Span(100_000),
        ..node
    }
}

/// Returns the schedule in the form that `bench/simgrid/peer.cpp` reads.
fn placed(platform: &Platform, workflow: &Workflow, report: &SimulationReport) -> String {
    let node = &platform.nodes[0];
    let rate = node.link_bandwidth.unwrap_or(u64::MAX);
    let latency = node.link_latency.as_secs_f64();
    let count = platform.nodes.len();
    let mut lines = vec![format!("hosts {count} {} {rate} {latency}", node.cores)];
    for (task, ran) in workflow.tasks.iter().zip(&report.tasks) {
        lines.push(format!("task {} {}", ran.node, task.compute.as_secs_f64()));
    }
    for (index, task) in workflow.tasks.iter().enumerate() {
        for &input in &task.inputs {
            let file = &workflow.files[input];
            let Some((maker, _)) = file.maker else {
                continue;
            };
            let stays = report.tasks[maker].node == report.tasks[index].node;
            let bytes = if stays { -1 } else { i128::from(file.size) };
            lines.push(format!("edge {maker} {index} {bytes}"));
        }
    }
    lines.join("\n") + "\n"
}

fn args() -> Result<Args, String> {
    let mut args = Args {
        tasks: 100_000,
        nodes: 1000,
        cores: 4,
        policy: "min-wait".to_owned(),
        seed: 1,
        write: None,
        read: None,
        placed: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or(format!("{name} needs a value"))?;
        let wrong = |_| format!("{value} is no value of {name}");
        match name.as_str() {
            "--tasks" => args.tasks = value.parse().map_err(wrong)?,
            "--nodes" => args.nodes = value.parse().map_err(wrong)?,
            "--cores" => args.cores = value.parse().map_err(wrong)?,
            "--policy" => args.policy = value,
            "--seed" => args.seed = value.parse().map_err(wrong)?,
            "--write" => args.write = Some(value),
            "--placed" => args.placed = Some(value),
            "--read" => args.read = Some(value),
            _ => return Err(format!("there is no {name}; see the top of the file")),
        }
    }
    Ok(args)
}

/// Generates levels of equal width. A task of the first level reads a file of its own, and a task of a later level reads the outputs of one
/// to three tasks near it in the previous level. Sizes are 10 kB to 10 MB, run times 0.1 to 20 s.
fn generate(tasks: u64, seed: u64) -> Value {
    let mut dice = LoadDice(seed);
    let width = tasks.div_ceil(LEVELS).max(1);
    let name = |index: u64| format!("k{}_ID{index:07}", (index / width) % KERNELS);
    let mut parents: Vec<Vec<u64>> = Vec::new();
    let mut children: Vec<Vec<u64>> = vec![Vec::new(); usize::try_from(tasks).unwrap_or(0)];
    let mut files = Vec::new();
    for index in 0..tasks {
        let (level, place) = (index / width, index % width);
        let mut mine = Vec::new();
        if level > 0 {
            for _ in 0..=dice.roll(3) {
                let near = (place + dice.roll(9)).saturating_sub(4).min(width - 1);
                mine.push((level - 1) * width + near);
            }
            mine.sort_unstable();
            mine.dedup();
        } else {
            files.push(json!({ "id": format!("in{index}"), "sizeInBytes": 10_000 + dice.roll(10_000_000) }));
        }
        files.push(
            json!({ "id": format!("out{index}"), "sizeInBytes": 10_000 + dice.roll(10_000_000) }),
        );
        for &parent in &mine {
            children[usize::try_from(parent).unwrap_or(0)].push(index);
        }
        parents.push(mine);
    }
    let names = |list: &[u64]| list.iter().map(|&one| name(one)).collect::<Vec<_>>();
    let mut specified = Vec::new();
    let mut executed = Vec::new();
    for ((index, parents), children) in (0..).zip(&parents).zip(&children) {
        let mut inputs: Vec<String> = parents.iter().map(|one| format!("out{one}")).collect();
        if inputs.is_empty() {
            inputs.push(format!("in{index}"));
        }
        specified.push(json!({
            "name": name(index), "id": name(index), "parents": names(parents), "children": names(children),
            "inputFiles": inputs, "outputFiles": [format!("out{index}")],
        }));
        let millis = u32::try_from(100 + dice.roll(19_900)).unwrap_or(100);
        executed.push(json!({
            "id": name(index), "runtimeInSeconds": f64::from(millis) / 1000.0,
            "command": { "program": format!("k{}", (index / width) % KERNELS) },
        }));
    }
    json!({
        "name": format!("layers-{tasks}-{seed}"), "schemaVersion": "1.5",
        "workflow": {
            "specification": { "tasks": specified, "files": files },
            "execution": { "makespanInSeconds": 0, "executedAt": "2026-01-01T00:00:00Z", "tasks": executed },
        },
    })
}

/// Random number generator SplitMix64.
struct LoadDice(u64);

impl LoadDice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// Returns the processor time of this thread so far, in seconds; `None` if the system does not report it.
fn cpu_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns: u64 = text.split(' ').next()?.parse().ok()?;
    Some(Span(ns).as_secs_f64())
}

/// Returns the largest resident set of this process so far in bytes; `None` if the system does not report it.
fn memory_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}
