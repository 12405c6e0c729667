//! What a simulation tells: when each task ran where, what moved, what it took.

use super::engine::Slept;
use super::platform::{Element, Platform};
use super::workflow::Workflow;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use tidemill_core::id::ElementId;
use tidemill_core::policy::write_amplification;
use tidemill_core::shown::bytes;
use tidemill_core::time::{Span, Time};

/// How one task went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) element: ElementId,
    /// Numbers of the cores that it had.
    pub(super) cores: Vec<u32>,
    pub(super) sent: Time,
    pub(super) start: Time,
    pub(super) kernel_start: Time,
    pub(super) end: Time,
    pub(super) read: Span,
    pub(super) compute: Span,
    pub(super) write: Span,
    pub(super) hash: Span,
    pub(super) moved_bytes: u64,
}

/// The outcome of a simulation. Times are nanoseconds of virtual time since the job was submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the workflow.
    pub workflow: String,
    /// Name of the policy.
    pub policy: String,
    /// How the files were placed.
    pub placement: String,
    /// The seed.
    pub seed: u64,
    /// From submission to the end of the last task.
    pub makespan_ns: u64,
    /// Bytes of all tasks' inputs.
    pub input_bytes: u64,
    /// Bytes of all tasks' outputs.
    pub output_bytes: u64,
    /// Bytes that went from one element to another.
    pub moved_bytes: u64,
    /// (input + moved) / input, 1 without input (AnalyzeThis Eq. 1).
    pub write_amplification: f64,
    /// Energy of all elements in joules; `None` if the platform gives no power.
    pub energy_joules: Option<f64>,
    /// What each element did, the host last.
    pub elements: Vec<ElementReport>,
    /// How each task went, in the workflow's order.
    pub tasks: Vec<TaskReport>,
    /// What the simulation had to do.
    pub events: EventCounts,
}

/// What one element did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ElementReport {
    /// Its id.
    pub element: u32,
    /// Its class in the platform.
    pub class: String,
    /// Its cores.
    pub cores: u32,
    /// Tasks that it ran.
    pub tasks: u64,
    /// Runs that failed on it.
    #[serde(default)]
    pub failed: u64,
    /// Time in which cores were taken, all cores together.
    pub busy_ns: u64,
    /// Time in which they were not, until the job's end.
    pub idle_ns: u64,
    /// Bytes that it pulled from others.
    pub pulled_bytes: u64,
    /// Bytes of its tasks' outputs.
    pub written_bytes: u64,
    /// Time in which it slept.
    #[serde(default)]
    pub suspended_ns: u64,
    /// Time in which it was being woken.
    #[serde(default)]
    pub waking_ns: u64,
    /// How often it was woken.
    #[serde(default)]
    pub wakes: u64,
    /// Its energy in joules; 0 if the platform gives no power.
    pub energy_joules: f64,
}

/// How one task went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReport {
    /// Its name.
    pub name: String,
    /// Its kernel.
    pub kernel: String,
    /// Where it ran.
    pub element: u32,
    /// On which of the element's cores; none if it needs none.
    pub cores: Vec<u32>,
    /// When its element got it.
    pub sent_ns: u64,
    /// When it got a core and its inputs began to be pulled.
    pub start_ns: u64,
    /// When all its inputs were on the element.
    pub kernel_start_ns: u64,
    /// When its outputs were written and its inputs hashed.
    pub end_ns: u64,
    /// Time it read its inputs from the device.
    pub read_ns: u64,
    /// Time it computed.
    pub compute_ns: u64,
    /// Time it wrote its outputs.
    pub write_ns: u64,
    /// Time its inputs were hashed, its core still held.
    #[serde(default)]
    pub hash_ns: u64,
    /// Bytes that it pulled.
    pub moved_bytes: u64,
}

/// Events of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCounts {
    /// Events that the dispatcher was given: elements that came up, the job, labels that started, ended and were given
    /// back.
    pub dispatcher: u64,
    /// Moments of the virtual clock at which something went on; those that had lost their meaning do not count.
    pub clock: u64,
    /// Labels that elements were sent and gave back before they began them.
    #[serde(default)]
    pub given_up: u64,
    /// Runs that failed and were tried again.
    #[serde(default)]
    pub failed: u64,
}

/// Runs of one element that failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lost {
    pub(super) runs: u64,
    /// Time of cores that they took.
    pub(super) time: Span,
}

/// How a simulation was set up.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) policy: String,
    pub(super) placement: &'static str,
    pub(super) seed: u64,
}

impl Report {
    pub(super) fn new(
        platform: &Platform,
        workflow: &Workflow,
        setup: Setup,
        end: Time,
        times: Vec<Times>,
        (events, failed, slept): (EventCounts, &[Lost], &[Slept]),
    ) -> Self {
        let all = 0..workflow.tasks.len();
        let sum = |bytes: &dyn Fn(usize) -> u64| all.clone().map(bytes).sum();
        let input_bytes = sum(&|task| workflow.input_bytes(task));
        let output_bytes = sum(&|task| workflow.output_bytes(task));
        let moved_bytes = times.iter().map(|one| one.moved_bytes).sum();
        let elements = elements(platform, workflow, end, &times, (failed, slept));
        let powered = platform.elements.iter().chain(&platform.host);
        let powered = powered
            .into_iter()
            .any(|one| one.power_busy_watts > 0.0 || one.power_idle_watts > 0.0);
        let tasks = workflow.tasks.iter().zip(times);
        let tasks = tasks.map(|(task, times)| TaskReport {
            name: task.name.clone(),
            kernel: task.kernel.name().to_owned(),
            element: times.element.0,
            cores: times.cores,
            sent_ns: times.sent.0,
            start_ns: times.start.0,
            kernel_start_ns: times.kernel_start.0,
            end_ns: times.end.0,
            read_ns: times.read.0,
            compute_ns: times.compute.0,
            write_ns: times.write.0,
            hash_ns: times.hash.0,
            moved_bytes: times.moved_bytes,
        });
        Self {
            workflow: workflow.name.clone(),
            policy: setup.policy,
            placement: setup.placement.to_owned(),
            seed: setup.seed,
            makespan_ns: end.0,
            input_bytes,
            output_bytes,
            moved_bytes,
            write_amplification: write_amplification(input_bytes, moved_bytes),
            energy_joules: powered.then(|| elements.iter().map(|one| one.energy_joules).sum()),
            tasks: tasks.collect(),
            elements,
            events,
        }
    }

    /// For people: the figures of the whole, then one line an element.
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
        line("moved", bytes(self.moved_bytes));
        line(
            "write amplification",
            format!("{:.3}", self.write_amplification),
        );
        if self.events.failed > 0 {
            line("failed runs", self.events.failed.to_string());
        }
        let woken: u64 = self.elements.iter().map(|one| one.wakes).sum();
        if self.elements.iter().any(|one| one.suspended_ns > 0) {
            line("woken", format!("{woken} times"));
        }
        let powered = self.energy_joules.is_some();
        if let Some(joules) = self.energy_joules {
            line("energy", format!("{joules:.1} J"));
        }
        let _ = writeln!(
            text,
            "\n{:>7}  {:<10} {:>5} {:>7} {:>12} {:>12} {:>6} {:>11} {:>11}{}",
            "element",
            "class",
            "cores",
            "tasks",
            "busy",
            "idle",
            "used",
            "pulled",
            "written",
            if powered { "      energy" } else { "" }
        );
        for one in &self.elements {
            let _ = writeln!(
                text,
                "{:>7}  {:<10} {:>5} {:>7} {:>12} {:>12} {:>5.1}% {:>11} {:>11}{}",
                one.element,
                one.class,
                one.cores,
                one.tasks,
                time(one.busy_ns),
                time(one.idle_ns),
                100.0 * share(one.busy_ns, one.busy_ns + one.idle_ns),
                bytes(one.pulled_bytes),
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

fn elements(
    platform: &Platform,
    workflow: &Workflow,
    end: Time,
    times: &[Times],
    (failed, slept): (&[Lost], &[Slept]),
) -> Vec<ElementReport> {
    let blank = |id: u32, element: &Element| ElementReport {
        element: id,
        class: element.class.clone(),
        cores: element.cores,
        tasks: 0,
        failed: 0,
        busy_ns: 0,
        idle_ns: 0,
        pulled_bytes: 0,
        written_bytes: 0,
        suspended_ns: 0,
        waking_ns: 0,
        wakes: 0,
        energy_joules: 0.0,
    };
    let stores = (0..).zip(&platform.elements);
    let mut reports: Vec<ElementReport> = stores.map(|(id, one)| blank(id, one)).collect();
    reports.extend(
        platform
            .host
            .iter()
            .map(|host| blank(platform.host_id().0, host)),
    );
    let last = reports.len() - 1;
    for (task, times) in times.iter().enumerate() {
        let index = (times.element.0 as usize).min(last);
        let report = &mut reports[index];
        report.tasks += 1;
        report.busy_ns += times.end.since(times.start).0 * times.cores.len() as u64;
        report.pulled_bytes += times.moved_bytes;
        report.written_bytes += workflow.output_bytes(task);
    }
    for (report, lost) in reports.iter_mut().zip(failed) {
        report.failed = lost.runs;
        report.busy_ns += lost.time.0;
    }
    for (report, slept) in reports.iter_mut().zip(slept) {
        report.suspended_ns = slept.suspended.0;
        report.waking_ns = slept.waking.0;
        report.wakes = slept.wakes;
    }
    for (report, element) in reports
        .iter_mut()
        .zip(platform.elements.iter().chain(&platform.host))
    {
        let awake = end.0.saturating_sub(report.suspended_ns + report.waking_ns);
        let whole = awake.saturating_mul(u64::from(report.cores));
        report.idle_ns = whole.saturating_sub(report.busy_ns);
        report.energy_joules = energy(element, awake, report);
    }
    reports
}

/// Idle power as long as it is awake, and for every core that is taken its part of what busy takes more; busy while it wakes.
fn energy(element: &Element, awake_ns: u64, report: &ElementReport) -> f64 {
    let more = element.power_busy_watts - element.power_idle_watts;
    let seconds = |ns: u64| Span(ns).as_secs_f64();
    let busy = seconds(report.busy_ns) / f64::from(element.cores.max(1));
    element.power_idle_watts * seconds(awake_ns)
        + more * busy
        + element.power_busy_watts * seconds(report.waking_ns)
        + element.power_suspended_watts * seconds(report.suspended_ns)
}

#[expect(clippy::cast_precision_loss, reason = "display only")]
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// A length of time for people.
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
