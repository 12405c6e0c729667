//! Elastic allocation: answers whether resuming nodes pays. This module simulates one workflow on one cluster with more and more active
//! nodes in three ways: these nodes alone, all nodes, and as many as a running cluster would resume (LABIOS §4.2.3, Fig. 13).

use super::error::SimError;
use super::platform::Platform;
use super::report::SimulationReport;
use super::simulation::{Allocation, Simulation};
use super::workflow::Workflow;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tidemill_model::event::History;
use tidemill_model::time::Span;

/// Result of one way to allocate nodes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ElasticResult {
    /// Time from submission to the end, in nanoseconds.
    pub makespan_ns: u64,
    /// Energy of all nodes until the end in joules; `None` if the platform file gives no power.
    pub energy_joules: Option<f64>,
    /// Number of times that nodes were resumed.
    pub resumes: u64,
}

/// Results for one number of active nodes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ElasticPoint {
    /// Number of active nodes.
    pub active: usize,
    /// Result if the active nodes work alone; other nodes are resumed only for data or programs that no active node has.
    pub stays: ElasticResult,
    /// Result if all other nodes are resumed at once.
    pub all: ElasticResult,
    /// Result if as many nodes are resumed as pays.
    pub elastic: ElasticResult,
}

/// Returns the cluster with all run times known: each node counts as having run every kernel of the workflow.
#[must_use]
pub fn known(mut platform: Platform, workflow: &Workflow) -> Platform {
    let mut history: BTreeMap<String, History> = BTreeMap::new();
    for (index, task) in workflow.tasks.iter().enumerate() {
        let one = history.entry(task.kernel.name().to_owned()).or_default();
        one.runs += 1;
        one.total_ns = one.total_ns.saturating_add(task.compute.0);
        one.input_bytes = one.input_bytes.saturating_add(workflow.input_bytes(index));
    }
    for node in &mut platform.nodes {
        node.history.clone_from(&history);
    }
    platform
}

/// Returns a quarter, a half, three quarters and all of a cluster's nodes, as in the paper's figure.
#[must_use]
pub fn quarters(nodes: usize) -> Vec<usize> {
    let mut active: Vec<usize> = (1..=4).map(|part| (nodes * part / 4).max(1)).collect();
    active.dedup();
    active
}

/// Simulates each way to allocate nodes with this number of active nodes; `given` sets policy, placement and seed.
///
/// # Errors
/// [`SimError`] of the first simulation that can't be run.
pub fn compare<'a>(
    (platform, workflow): (&'a Platform, &'a Workflow),
    active: &[usize],
    given: impl for<'b> Fn(Simulation<'b>) -> Simulation<'b>,
) -> Result<Vec<ElasticPoint>, SimError> {
    let mut points = Vec::with_capacity(active.len());
    for &active in active {
        let platform = Platform {
            suspended: platform.nodes.len().saturating_sub(active),
            ..platform.clone()
        };
        let went = |allocation| {
            let simulation = given(Simulation::new(&platform, workflow));
            let ran = simulation.allocation(allocation).run();
            ran.map(|report| ElasticResult::of(&report))
        };
        points.push(ElasticPoint {
            active,
            stays: went(Allocation::Static)?,
            all: went(Allocation::All)?,
            elastic: went(Allocation::Elastic)?,
        });
    }
    Ok(points)
}

impl ElasticResult {
    fn of(report: &SimulationReport) -> Self {
        Self {
            makespan_ns: report.makespan_ns,
            energy_joules: report.energy_joules,
            resumes: report.nodes.iter().map(|one| one.resumes).sum(),
        }
    }

    fn text(&self) -> String {
        let seconds = Span(self.makespan_ns).as_secs_f64();
        let energy = self.energy_joules.map(|joules| format!("{joules:.1}"));
        let energy = energy.unwrap_or_else(|| "?".into());
        format!("{seconds:>10.2} {energy:>10} {:>6}", self.resumes)
    }
}

impl ElasticPoint {
    /// Returns the name of the best way: the way with the least energy if the platform gives power, else the way with the least time. Among
    /// equally good ways, the way with the fewest resumed nodes is chosen.
    #[must_use]
    pub fn best(&self) -> &'static str {
        let ways = [
            ("static", &self.stays),
            ("elastic", &self.elastic),
            ("all", &self.all),
        ];
        let cost = |went: &ElasticResult| {
            let seconds = Span(went.makespan_ns).as_secs_f64();
            went.energy_joules.unwrap_or(seconds)
        };
        let least = |best: (&'static str, f64), (name, went): (&'static str, &ElasticResult)| {
            if cost(went) < best.1 {
                (name, cost(went))
            } else {
                best
            }
        };
        let best = ways.into_iter().fold(("static", f64::INFINITY), least);
        best.0
    }
}

/// Formats the results for each number of active nodes as a table.
#[must_use]
pub fn table(points: &[ElasticPoint]) -> String {
    // Writing to a string never fails.
    let mut text = String::new();
    let ways = ["static", "elastic", "all resumed"];
    let heads = ways.map(|way| format!("  {way:<28}"));
    let columns = "        s          J  resumed ";
    let _ = writeln!(text, "{:>5}{}", "", heads.concat().trim_end());
    let _ = writeln!(text, "active  {}  best", [columns; 3].join("  "));
    for point in points {
        let ways = [&point.stays, &point.elastic, &point.all].map(ElasticResult::text);
        let _ = writeln!(
            text,
            "{:>5}{}  {}",
            point.active,
            ways.map(|way| format!("  {way}")).concat(),
            point.best()
        );
    }
    text
}
