//! Sweep: runs one workflow on clusters of many shapes, nodes × cores × policies, as in AnalyzeThis Fig. 10.

use super::error::SimError;
use super::platform::{Platform, PlatformNode};
use super::simulation::{Placement, Simulation};
use super::workflow::Workflow;
use crate::chart::{self, ChartAxis, Line, LineChart};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use tidemill_model::time::Span;

/// Parameters of a sweep over cluster shapes.
#[derive(Clone, Debug)]
pub struct Shapes {
    /// Numbers of nodes of the clusters; the paper uses 1 to 8.
    pub nodes: RangeInclusive<u32>,
    /// Numbers of cores per node of the clusters; the paper uses 1 to 12.
    pub cores: RangeInclusive<u32>,
    /// Names of the policies to simulate.
    pub policies: Vec<String>,
    /// Placement of files before the job.
    pub placement: Placement,
    /// Seed of all random numbers of the simulations.
    pub seed: u64,
}

impl Default for Shapes {
    /// Returns the paper's parameters: 1 to 8 nodes of 1 to 12 cores, round-robin and write amplification.
    fn default() -> Self {
        Self {
            nodes: 1..=8,
            cores: 1..=12,
            policies: vec!["round-robin".to_owned(), "write-amplification".to_owned()],
            placement: Placement::RoundRobin,
            seed: 0,
        }
    }
}

/// Result of one simulation of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SweepPoint {
    /// Name of the policy.
    pub policy: String,
    /// Number of nodes of the cluster.
    pub nodes: u32,
    /// Number of cores per node.
    pub cores: u32,
    /// Time from the job's submission to its end, in nanoseconds.
    pub makespan_ns: u64,
    /// Bytes that were transferred from one node to another.
    pub transferred_bytes: u64,
    /// Write amplification: (input + transferred) / input.
    pub write_amplification: f64,
    /// Energy of all nodes in joules, if the node has a configured power.
    pub energy_joules: Option<f64>,
}

/// Runs a workflow on clusters of all shapes and returns the points by policy, nodes, cores. The nodes are copies of the first node of
/// `like`; the server cores and label latency of `like` are kept.
///
/// # Errors
/// [`SimError`] of the first simulation that can't be run.
pub fn sweep(
    like: &Platform,
    workflow: &Workflow,
    shapes: &Shapes,
) -> Result<Vec<SweepPoint>, SimError> {
    let mut points = Vec::new();
    let node = like.nodes.first().cloned().unwrap_or_default();
    for policy in &shapes.policies {
        for nodes in shapes.nodes.clone() {
            for cores in shapes.cores.clone() {
                let node = PlatformNode {
                    cores,
                    ..node.clone()
                };
                let platform = Platform {
                    nodes: vec![node; nodes as usize],
                    ..like.clone()
                };
                let report = Simulation::new(&platform, workflow)
                    .policy(policy)
                    .placement(shapes.placement)
                    .seed(shapes.seed)
                    .run()?;
                points.push(SweepPoint {
                    policy: policy.clone(),
                    nodes,
                    cores,
                    makespan_ns: report.makespan_ns,
                    transferred_bytes: report.transferred_bytes,
                    write_amplification: report.write_amplification,
                    energy_joules: report.energy_joules,
                });
            }
        }
    }
    Ok(points)
}

/// Draws the points of a sweep as an SVG document like the paper's Fig. 10: one chart per policy, all with the same scale, with one line
/// per number of nodes over the number of cores per node.
#[must_use]
pub fn svg(workflow: &str, points: &[SweepPoint]) -> String {
    let seconds = |one: &SweepPoint| Span(one.makespan_ns).as_secs_f64();
    let least = points.iter().map(seconds).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(seconds).fold(0.0, f64::max);
    let y = ChartAxis::log("makespan in seconds");
    // Separate scales would hide the differences of the policies on the same cluster.
    let y = if least > 0.0 && least < most {
        y.from_to(least * 0.9, most * 1.1)
    } else {
        y
    };
    let policies = points.chunk_by(|a, b| a.policy == b.policy);
    let charts = policies.map(|points| LineChart {
        title: format!("{workflow}, {}", points[0].policy),
        x: ChartAxis::linear("cores of each node"),
        y: y.clone(),
        lines: lines(points),
        levels: Vec::new(),
    });
    chart::stack(&charts.collect::<Vec<_>>())
}

/// Returns a line of makespans for each number of nodes.
fn lines(points: &[SweepPoint]) -> Vec<Line> {
    let lines = points.chunk_by(|a, b| a.nodes == b.nodes);
    let line = |line: &[SweepPoint]| {
        let point = |one: &SweepPoint| {
            let makespan = Span(one.makespan_ns);
            (f64::from(one.cores), makespan.as_secs_f64())
        };
        let nodes = line[0].nodes;
        let plural = if nodes == 1 { "" } else { "s" };
        let name = format!("{nodes} node{plural}");
        Line::new(name, line.iter().map(point).collect())
    };
    lines.map(line).collect()
}

/// Formats the points as one table of makespans in seconds: one row per policy and number of nodes, one column per number of cores.
#[must_use]
pub fn table(points: &[SweepPoint]) -> String {
    let mut text = String::new();
    let mut cores: Vec<u32> = points.iter().map(|one| one.cores).collect();
    cores.sort_unstable();
    cores.dedup();
    // Writing to a string never fails.
    let _ = write!(text, "{:<22} {:>8}", "makespan in s", "nodes");
    for cores in &cores {
        let plural = if *cores == 1 { "" } else { "s" };
        let _ = write!(text, " {:>10}", format!("{cores} core{plural}"));
    }
    text.push('\n');
    for line in points.chunk_by(|a, b| (&a.policy, a.nodes) == (&b.policy, b.nodes)) {
        let Some(first) = line.first() else {
            continue;
        };
        let _ = write!(text, "{:<22} {:>8}", first.policy, first.nodes);
        for point in line {
            let _ = write!(text, " {:>10.2}", Span(point.makespan_ns).as_secs_f64());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::job;
    use super::*;

    #[test]
    fn sweep_scales_up_to_the_width_of_the_workflow() {
        let tasks: Vec<String> = (0..4)
            .map(|i| format!("{{ name = \"{i}\"; kernel = \"k\"; output = [ \"{i}\" ]; }}"))
            .collect();
        let script = format!(
            "name = \"n\"; workdir = \"/\"; tasks = ( {} );",
            tasks.join(", ")
        );
        let costs = "[kernels]\nk = { time = 1, output = 0 }";
        let workflow = job::parse("j", &script, "c", costs).unwrap();
        let shapes = Shapes {
            nodes: 1..=2,
            cores: 1..=3,
            ..Shapes::default()
        };
        let points = sweep(
            &Platform::uniform(1, &PlatformNode::default()),
            &workflow,
            &shapes,
        )
        .unwrap();
        let seconds: Vec<u64> = points
            .iter()
            .map(|one| one.makespan_ns / 1_000_000_000)
            .collect();
        assert_eq!(seconds, [4, 2, 2, 2, 1, 1, 4, 2, 2, 2, 1, 1]);
        let lines = lines(&points[..6]);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].points, [(1.0, 4.0), (2.0, 2.0), (3.0, 2.0)]);
        assert_eq!(lines[1].label, "2 nodes");
        let svg = svg("n", &points);
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        for policy in &shapes.policies {
            assert!(svg.contains(&format!("n, {policy}")), "{svg}");
        }
        assert_eq!(table(&points).lines().count(), 5);
    }
}
