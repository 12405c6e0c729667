//! Elastic allocation: answers whether resuming nodes pays. It simulates one workflow on one cluster with more and more awake nodes in
//! three ways: these nodes alone, all nodes, and as many as a running cluster would resume (LABIOS §4.2.3, Fig. 13).

use super::error::SimError;
use super::platform::Platform;
use super::report::Report;
use super::simulation::{Allocation, Simulation};
use super::workflow::Workflow;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tidemill_core::event::History;
use tidemill_core::time::Span;

/// Result of one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Went {
    /// Time from submission to the end, in nanoseconds.
    pub makespan_ns: u64,
    /// Energy of all nodes until then in joules; `None` if the platform gives no power.
    pub energy_joules: Option<f64>,
    /// Number of times that nodes were resumed.
    pub wakes: u64,
}

/// Results for one number of awake nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Number of awake nodes.
    pub awake: usize,
    /// The awake nodes work alone; others are resumed only for data or programs that no awake node has.
    pub stays: Went,
    /// All others are resumed at once.
    pub all: Went,
    /// As many are resumed as pays.
    pub elastic: Went,
}

/// Returns the cluster as if each node already ran every kernel of the workflow, so that all run times are known.
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

/// Returns the quarters of a cluster, as in the paper's figure.
#[must_use]
pub fn quarters(nodes: usize) -> Vec<usize> {
    let mut awake: Vec<usize> = (1..=4).map(|part| (nodes * part / 4).max(1)).collect();
    awake.dedup();
    awake
}

/// Simulates each way with this number of awake nodes; `given` sets policy, placement and seed.
///
/// # Errors
/// [`SimError`] of the first run that can't be run.
pub fn compare<'a>(
    (platform, workflow): (&'a Platform, &'a Workflow),
    awake: &[usize],
    given: impl for<'b> Fn(Simulation<'b>) -> Simulation<'b>,
) -> Result<Vec<Point>, SimError> {
    let mut points = Vec::with_capacity(awake.len());
    for &awake in awake {
        let platform = Platform {
            asleep: platform.nodes.len().saturating_sub(awake),
            ..platform.clone()
        };
        let went = |allocation| {
            let simulation = given(Simulation::new(&platform, workflow));
            let ran = simulation.allocation(allocation).run();
            ran.map(|report| Went::of(&report))
        };
        points.push(Point {
            awake,
            stays: went(Allocation::Static)?,
            all: went(Allocation::All)?,
            elastic: went(Allocation::Elastic)?,
        });
    }
    Ok(points)
}

impl Went {
    fn of(report: &Report) -> Self {
        Self {
            makespan_ns: report.makespan_ns,
            energy_joules: report.energy_joules,
            wakes: report.nodes.iter().map(|one| one.wakes).sum(),
        }
    }

    fn text(&self) -> String {
        let seconds = Span(self.makespan_ns).as_secs_f64();
        let energy = self.energy_joules.map(|joules| format!("{joules:.1}"));
        let energy = energy.unwrap_or_else(|| "?".into());
        format!("{seconds:>10.2} {energy:>10} {:>6}", self.wakes)
    }
}

impl Point {
    /// Returns the best way: the one with the least energy if the platform gives power, else the one with the least time. Among equally
    /// good ways, the one with the fewest resumed nodes is chosen.
    #[must_use]
    pub fn best(&self) -> &'static str {
        let ways = [
            ("static", &self.stays),
            ("elastic", &self.elastic),
            ("all", &self.all),
        ];
        let cost = |went: &Went| {
            let seconds = Span(went.makespan_ns).as_secs_f64();
            went.energy_joules.unwrap_or(seconds)
        };
        let least = |best: (&'static str, f64), (name, went): (&'static str, &Went)| {
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

/// Formats the points as a table.
#[must_use]
pub fn table(points: &[Point]) -> String {
    // Writing to a string never fails.
    let mut text = String::new();
    let ways = ["static", "elastic", "all woken"];
    let heads = ways.map(|way| format!("  {way:<28}"));
    let columns = "        s          J  woken ";
    let _ = writeln!(text, "{:>5}{}", "", heads.concat().trim_end());
    let _ = writeln!(text, "awake  {}  best", [columns; 3].join("  "));
    for point in points {
        let ways = [&point.stays, &point.elastic, &point.all].map(Went::text);
        let _ = writeln!(
            text,
            "{:>5}{}  {}",
            point.awake,
            ways.map(|way| format!("  {way}")).concat(),
            point.best()
        );
    }
    text
}
