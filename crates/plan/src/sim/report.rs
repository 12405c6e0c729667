//! Report of a simulation: the time and node of each task, the transferred data, and the resources used.

use super::engine::SuspendTimes;
use super::platform::{Platform, PlatformNode};
use super::workflow::Workflow;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use tidemill_model::display::bytes;
use tidemill_model::id::NodeId;
use tidemill_model::time::{Span, Time};
use tidemill_sched::policy::write_amplification;

/// Times of one simulated task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskTimes {
    pub(super) node: NodeId,
    /// Numbers of the task's cores.
    pub(super) cores: Vec<u32>,
    pub(super) sent: Time,
    pub(super) start: Time,
    pub(super) kernel_start: Time,
    pub(super) end: Time,
    pub(super) read: Span,
    pub(super) compute: Span,
    pub(super) write: Span,
    pub(super) hash: Span,
    pub(super) transferred_bytes: u64,
}

/// Report of a simulation. Times are nanoseconds of virtual time since the job was submitted.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema, Deserialize)]
pub struct SimulationReport {
    /// Name of the simulated workflow.
    pub workflow: String,
    /// Name of the scheduling policy.
    pub policy: String,
    /// Name of the placement of the files before the job.
    pub placement: String,
    /// Seed of the simulation's random numbers.
    pub seed: u64,
    /// Time from submission to the end of the last task.
    pub makespan_ns: u64,
    /// Size of all tasks' inputs, in bytes.
    pub input_bytes: u64,
    /// Size of all tasks' outputs, in bytes.
    pub output_bytes: u64,
    /// Bytes that were transferred from one node to another.
    pub transferred_bytes: u64,
    /// Write amplification: (input + transferred) / input; 1 without input (AnalyzeThis Eq. 1).
    pub write_amplification: f64,
    /// Energy of all nodes in joules; `None` if the platform file gives no power.
    pub energy_joules: Option<f64>,
    /// Reports of the nodes; the server cores are last.
    pub nodes: Vec<NodeReport>,
    /// Reports of the tasks, in the workflow's order.
    pub tasks: Vec<TaskReport>,
    /// Numbers of the simulated events.
    pub events: EventCounts,
}

/// Report of one node.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema, Deserialize)]
pub struct NodeReport {
    /// Id of the node.
    pub node: u32,
    /// Class of the node in the platform.
    pub class: String,
    /// Number of cores of the node.
    pub cores: u32,
    /// Number of tasks that the node ran.
    pub tasks: u64,
    /// Number of runs that failed on the node.
    #[serde(default)]
    pub failed: u64,
    /// Time in which cores were taken, summed over all cores, in nanoseconds.
    pub busy_ns: u64,
    /// Time in which cores were not taken until the job's end, summed over all cores, in nanoseconds.
    pub idle_ns: u64,
    /// Bytes that the node fetched from other nodes.
    pub fetched_bytes: u64,
    /// Size of the outputs of the node's tasks, in bytes.
    pub written_bytes: u64,
    /// Time for which the node was suspended, in nanoseconds.
    #[serde(default)]
    pub suspended_ns: u64,
    /// Time for which the node was resuming, in nanoseconds.
    #[serde(default)]
    pub resuming_ns: u64,
    /// Number of times that the node was resumed.
    #[serde(default)]
    pub resumes: u64,
    /// Energy of the node in joules; 0 if the platform file gives no power.
    pub energy_joules: f64,
}

/// Report of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct TaskReport {
    /// Name of the task.
    pub name: String,
    /// Kernel of the task.
    pub kernel: String,
    /// Node that ran the task.
    pub node: u32,
    /// Numbers of the task's cores on its node; empty if the task needs no core.
    pub cores: Vec<u32>,
    /// Time at which the node received the task.
    pub sent_ns: u64,
    /// Time at which the task got a core and the fetch of its inputs began.
    pub start_ns: u64,
    /// Time at which all inputs of the task were on the node.
    pub kernel_start_ns: u64,
    /// Time at which the task's outputs were written and its inputs hashed.
    pub end_ns: u64,
    /// Time spent on reading the task's inputs from the device.
    pub read_ns: u64,
    /// Time spent on computing.
    pub compute_ns: u64,
    /// Time spent on writing the task's outputs.
    pub write_ns: u64,
    /// Time spent on hashing the task's inputs, while the task held its core.
    #[serde(default)]
    pub hash_ns: u64,
    /// Bytes that the task fetched from other nodes.
    pub transferred_bytes: u64,
}

/// Numbers of the events of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct EventCounts {
    /// Number of events for the dispatcher: nodes that connected, the job, and labels that started, ended or were returned.
    pub dispatcher: u64,
    /// Number of times of the virtual clock at which an activity continued, without obsolete times.
    pub clock: u64,
    /// Number of labels that nodes returned before the labels began.
    #[serde(default)]
    pub abandoned: u64,
    /// Number of runs that failed and were retried.
    #[serde(default)]
    pub failed: u64,
}

/// Failed runs on one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lost {
    pub(super) runs: u64,
    /// Core time of the failed runs.
    pub(super) time: Span,
}

/// Names and numbers that set up a simulation, for its report.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) policy: String,
    pub(super) placement: &'static str,
    pub(super) seed: u64,
}

impl SimulationReport {
    pub(super) fn new(
        platform: &Platform,
        workflow: &Workflow,
        setup: Setup,
        end: Time,
        times: Vec<TaskTimes>,
        (events, failed, suspend_times): (EventCounts, &[Lost], &[SuspendTimes]),
    ) -> Self {
        let all = 0..workflow.tasks.len();
        let sum = |bytes: &dyn Fn(usize) -> u64| all.clone().map(bytes).sum();
        let input_bytes = sum(&|task| workflow.input_bytes(task));
        let output_bytes = sum(&|task| workflow.output_bytes(task));
        let transferred_bytes = times.iter().map(|one| one.transferred_bytes).sum();
        let nodes = nodes(platform, workflow, end, &times, (failed, suspend_times));
        let powered = platform.nodes.iter().chain(&platform.server_cores);
        let powered = powered
            .into_iter()
            .any(|one| one.power_busy_watts > 0.0 || one.power_idle_watts > 0.0);
        let tasks = workflow.tasks.iter().zip(times);
        let tasks = tasks.map(|(task, times)| TaskReport {
            name: task.name.clone(),
            kernel: task.kernel.name().to_owned(),
            node: times.node.0,
            cores: times.cores,
            sent_ns: times.sent.0,
            start_ns: times.start.0,
            kernel_start_ns: times.kernel_start.0,
            end_ns: times.end.0,
            read_ns: times.read.0,
            compute_ns: times.compute.0,
            write_ns: times.write.0,
            hash_ns: times.hash.0,
            transferred_bytes: times.transferred_bytes,
        });
        Self {
            workflow: workflow.name.clone(),
            policy: setup.policy,
            placement: setup.placement.to_owned(),
            seed: setup.seed,
            makespan_ns: end.0,
            input_bytes,
            output_bytes,
            transferred_bytes,
            write_amplification: write_amplification(input_bytes, transferred_bytes),
            energy_joules: powered.then(|| nodes.iter().map(|one| one.energy_joules).sum()),
            tasks: tasks.collect(),
            nodes,
            events,
        }
    }

    /// Formats the report for people: the figures of the whole job, then one line per node.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string never fails.
            let _ = writeln!(text, "{name:<20} {value}");
        };
        line(
            "workflow",
            format!("{}, {} tasks", self.workflow, self.tasks.len()),
        );
        line("policy", self.policy.clone());
        line(
            "placement",
            format!("{}, seed {}", self.placement, self.seed),
        );
        line("makespan", time(self.makespan_ns));
        line("input", bytes(self.input_bytes));
        line("transferred", bytes(self.transferred_bytes));
        line(
            "write amplification",
            format!("{:.3}", self.write_amplification),
        );
        if self.events.failed > 0 {
            line("failed runs", self.events.failed.to_string());
        }
        let resumed: u64 = self.nodes.iter().map(|one| one.resumes).sum();
        if self.nodes.iter().any(|one| one.suspended_ns > 0) {
            line("resumed", format!("{resumed} times"));
        }
        let powered = self.energy_joules.is_some();
        if let Some(joules) = self.energy_joules {
            line("energy", format!("{joules:.1} J"));
        }
        let _ = writeln!(
            text,
            "\n{:>7}  {:<10} {:>5} {:>7} {:>12} {:>12} {:>6} {:>11} {:>11}{}",
            "node",
            "class",
            "cores",
            "tasks",
            "busy",
            "idle",
            "used",
            "fetched",
            "written",
            if powered { "      energy" } else { "" }
        );
        for one in &self.nodes {
            let _ = writeln!(
                text,
                "{:>7}  {:<10} {:>5} {:>7} {:>12} {:>12} {:>5.1}% {:>11} {:>11}{}",
                one.node,
                one.class,
                one.cores,
                one.tasks,
                time(one.busy_ns),
                time(one.idle_ns),
                100.0 * share(one.busy_ns, one.busy_ns + one.idle_ns),
                bytes(one.fetched_bytes),
                bytes(one.written_bytes),
                if powered {
                    format!(" {:>9.1} J", one.energy_joules)
                } else {
                    String::new()
                },
            );
        }
        text
    }
}

fn nodes(
    platform: &Platform,
    workflow: &Workflow,
    end: Time,
    times: &[TaskTimes],
    (failed, suspend_times): (&[Lost], &[SuspendTimes]),
) -> Vec<NodeReport> {
    let blank = |id: u32, node: &PlatformNode| NodeReport {
        node: id,
        class: node.class.clone(),
        cores: node.cores,
        tasks: 0,
        failed: 0,
        busy_ns: 0,
        idle_ns: 0,
        fetched_bytes: 0,
        written_bytes: 0,
        suspended_ns: 0,
        resuming_ns: 0,
        resumes: 0,
        energy_joules: 0.0,
    };
    let stores = (0..).zip(&platform.nodes);
    let mut reports: Vec<NodeReport> = stores.map(|(id, one)| blank(id, one)).collect();
    reports.extend(
        platform
            .server_cores
            .iter()
            .map(|server_cores| blank(platform.server_cores_id().0, server_cores)),
    );
    let last = reports.len() - 1;
    for (task, times) in times.iter().enumerate() {
        let index = (times.node.0 as usize).min(last);
        let report = &mut reports[index];
        report.tasks += 1;
        report.busy_ns += times.end.since(times.start).0 * times.cores.len() as u64;
        report.fetched_bytes += times.transferred_bytes;
        report.written_bytes += workflow.output_bytes(task);
    }
    for (report, lost) in reports.iter_mut().zip(failed) {
        report.failed = lost.runs;
        report.busy_ns += lost.time.0;
    }
    for (report, suspend_times) in reports.iter_mut().zip(suspend_times) {
        report.suspended_ns = suspend_times.suspended.0;
        report.resuming_ns = suspend_times.resuming.0;
        report.resumes = suspend_times.resumes;
    }
    for (report, node) in reports
        .iter_mut()
        .zip(platform.nodes.iter().chain(&platform.server_cores))
    {
        let active = end
            .0
            .saturating_sub(report.suspended_ns + report.resuming_ns);
        let whole = active.saturating_mul(u64::from(report.cores));
        report.idle_ns = whole.saturating_sub(report.busy_ns);
        report.energy_joules = energy(node, active, report);
    }
    reports
}

/// Returns the energy of a node. The node draws idle power while it is active, and for every busy core its share of the difference to busy
/// power. While the node resumes, it draws busy power.
fn energy(node: &PlatformNode, active_ns: u64, report: &NodeReport) -> f64 {
    let more = node.power_busy_watts - node.power_idle_watts;
    let seconds = |ns: u64| Span(ns).as_secs_f64();
    let busy = seconds(report.busy_ns) / f64::from(node.cores.max(1));
    node.power_idle_watts * seconds(active_ns)
        + more * busy
        + node.power_busy_watts * seconds(report.resuming_ns)
        + node.power_suspended_watts * seconds(report.suspended_ns)
}

#[expect(clippy::cast_precision_loss, reason = "display only")]
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// Formats a length of time for people.
pub(super) fn time(ns: u64) -> String {
    let seconds = Span(ns).as_secs_f64();
    match seconds {
        ..1e-3 => format!("{:.1} µs", seconds * 1e6),
        1e-3..1.0 => format!("{:.1} ms", seconds * 1e3),
        1.0..600.0 => format!("{seconds:.2} s"),
        600.0..36e3 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}
