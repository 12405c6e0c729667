//! Tests of workflows with kernels that have never run before: the eight of `examples/wfcommons`, on clusters of several shapes.

use std::fs;
use std::path::Path;
use tidemill_model::time::Span;
use tidemill_plan::sim::{Platform, PlatformNode, Simulation, Workflow, wfformat};

/// Numbers of nodes and of cores per node of the clusters.
const SHAPES: [(usize, u32); 5] = [(4, 1), (4, 4), (8, 2), (16, 1), (1, 2)];

fn platform((nodes, cores): (usize, u32), label_latency: Span) -> Platform {
    let node = PlatformNode {
        cores,
        read_bandwidth: Some(550_000_000),
        write_bandwidth: Some(450_000_000),
        link_bandwidth: Some(125_000_000),
        ..PlatformNode::default()
    };
    Platform {
        label_latency,
        ..Platform::uniform(nodes, &node)
    }
}

fn workflows() -> Vec<(String, Workflow)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/wfcommons");
    let files = fs::read_dir(directory)
        .expect("the examples exist")
        .map(|entry| entry.expect("a directory is read").path());
    let mut files: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|end| end == "json"))
        .collect();
    files.sort();
    let read = |file: &Path| {
        let name = file.display().to_string();
        let text = fs::read_to_string(file).expect("a file is read");
        (
            name.clone(),
            wfformat::parse(&name, &text).expect("it is whole"),
        )
    };
    files.iter().map(|file| read(file)).collect()
}

#[test]
fn min_wait_is_hardly_ever_slower_than_round_robin() {
    let workflows = workflows();
    assert_eq!(workflows.len(), 8);
    let mut slow = Vec::new();
    for (name, workflow) in &workflows {
        for shape in SHAPES {
            for latency in [Span(0), Span::from_millis(5)] {
                let platform = platform(shape, latency);
                let makespan = |policy| {
                    let report = Simulation::new(&platform, workflow).policy(policy).run();
                    let report = report.unwrap();
                    (report.makespan_ns, report.transferred_bytes)
                };
                let (turns, wait) = (makespan("round-robin"), makespan("min-wait"));
                let line = format!(
                    "{name:40} {shape:?} {:6.0} ms: {:8.1} s {:6} MB, round-robin {:8.1} s {:6} MB",
                    latency.0 as f64 / 1e6,
                    wait.0 as f64 / 1e9,
                    wait.1 / 1_000_000,
                    turns.0 as f64 / 1e9,
                    turns.1 / 1_000_000,
                );
                if wait.0 > turns.0 / 100 * 105 {
                    slow.push(line);
                }
            }
        }
    }
    assert!(slow.is_empty(), "{}", slow.join("\n"));
}
