//! Comparison of prediction and measurement: simulates a job as recorded in its trace, and compares the simulated and recorded results.

use super::error::SimError;
use super::platform::Platform;
use super::report::{SimulationReport, time};
use super::simulation::{Placement, Simulation};
use super::trace::Trace;
use super::workflow::Workflow;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use tidemill_model::display::bytes;

/// Prediction and measurement of a job.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RunComparison {
    /// Name of the job.
    pub job: String,
    /// Name of the policy of measurement and prediction.
    pub policy: String,
    /// Time from the job's submission to its end, in nanoseconds.
    pub makespan_ns: Pair,
    /// Bytes that were transferred from one node to another.
    pub transferred_bytes: Pair,
    /// Number of tasks that were predicted on the node that actually ran them.
    pub same_node: usize,
    /// Mean of the absolute errors of the tasks' run times, in percent.
    pub run_error_mean_percent: f64,
    /// All tasks of the job, in the order of the trace.
    pub tasks: Vec<TaskComparison>,
    /// Report of the whole prediction.
    #[serde(skip)]
    pub predicted: SimulationReport,
}

/// Prediction and measurement of one task.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TaskComparison {
    /// Name of the task.
    pub name: String,
    /// Kernel of the task.
    pub kernel: String,
    /// Node that ran the task, by the node's id in the trace's platform.
    pub node: Pair,
    /// Time at which the task got a core, in nanoseconds since submission.
    pub start_ns: Pair,
    /// Time from the task's start to its end, in nanoseconds.
    pub run_ns: Pair,
    /// Time of the task's end, in nanoseconds since submission.
    pub end_ns: Pair,
    /// Bytes that the task fetched from other nodes.
    pub transferred_bytes: Pair,
}

/// Measured and predicted value of the same quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Pair {
    /// Measured value of the quantity.
    pub measured: u64,
    /// Predicted value of the quantity.
    pub predicted: u64,
}

impl Pair {
    /// Returns (predicted − measured) / measured in percent; 0 if both values are 0, infinite if only the measured value is 0.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    #[must_use]
    pub fn error_percent(self) -> f64 {
        if self.measured == self.predicted {
            return 0.0;
        }
        (self.predicted as f64 - self.measured as f64) / self.measured as f64 * 100.0
    }
}

/// Simulates the job of a trace with its files on their recorded nodes and compares the results. `workflow` is that of the trace;
/// `platform` is that of the trace or a platform with the same ids and better numbers. The policy is the trace's.
///
/// # Errors
/// [`SimError`] as for any simulation.
pub fn compare(
    trace: &Trace,
    workflow: &Workflow,
    platform: &Platform,
    seed: u64,
) -> Result<RunComparison, SimError> {
    let predicted = Simulation::new(platform, workflow)
        .policy(&trace.policy)
        .placement(Placement::Recorded)
        .seed(trace.random_state.unwrap_or(seed))
        .run()?;
    let pair = |measured, predicted| Pair {
        measured,
        predicted,
    };
    let tasks = trace.tasks.iter().zip(&predicted.tasks);
    let tasks: Vec<TaskComparison> = tasks
        .map(|(measured, predicted)| TaskComparison {
            name: measured.name.clone(),
            kernel: measured.kernel.clone(),
            node: pair(
                trace.planned_id(measured.node).0.into(),
                predicted.node.into(),
            ),
            start_ns: pair(measured.start_ns, predicted.start_ns),
            run_ns: pair(
                measured.end_ns.saturating_sub(measured.start_ns),
                predicted.end_ns - predicted.start_ns,
            ),
            end_ns: pair(measured.end_ns, predicted.end_ns),
            transferred_bytes: pair(measured.transferred_bytes, predicted.transferred_bytes),
        })
        .collect();
    let transferred = trace.tasks.iter().map(|task| task.transferred_bytes).sum();
    let errors = tasks.iter().map(|task| task.run_ns.error_percent().abs());
    let errors: Vec<f64> = errors.filter(|error| error.is_finite()).collect();
    #[expect(clippy::cast_precision_loss, reason = "a mean for people")]
    let run_error_mean_percent = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    let same = |task: &&TaskComparison| task.node.measured == task.node.predicted;
    Ok(RunComparison {
        job: trace.job.clone(),
        policy: trace.policy.clone(),
        makespan_ns: pair(trace.makespan_ns, predicted.makespan_ns),
        transferred_bytes: pair(transferred, predicted.transferred_bytes),
        same_node: tasks.iter().filter(same).count(),
        run_error_mean_percent,
        tasks,
        predicted,
    })
}

impl RunComparison {
    /// Formats the comparison for people: first the whole job, then one line per task.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let count = self.tasks.len();
        // Writing to a string never fails.
        let _ = writeln!(
            text,
            "{}, {count} tasks, policy {}\n\n{:<28} {:>12} {:>12} {:>9}",
            self.job, self.policy, "", "measured", "predicted", "error"
        );
        let mut line = |name: &str, pair: Pair, show: &dyn Fn(u64) -> String| {
            let (measured, predicted) = (show(pair.measured), show(pair.predicted));
            let error = pair.error_percent();
            let _ = writeln!(
                text,
                "{name:<28} {measured:>12} {predicted:>12} {error:>+8.1}%"
            );
        };
        line("makespan", self.makespan_ns, &time);
        line("transferred", self.transferred_bytes, &bytes);
        for task in &self.tasks {
            let place = if task.node.measured == task.node.predicted {
                format!("on {}", task.node.measured)
            } else {
                format!("on {}, not {}", task.node.measured, task.node.predicted)
            };
            line(&format!("{} {place}", task.name), task.run_ns, &time);
        }
        let _ = writeln!(
            text,
            "\nrun times differ by {:.1} % in the mean; {} of {count} tasks ran where it was predicted",
            self.run_error_mean_percent, self.same_node
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{
        FORMAT, TraceFile, TraceKernelKind, TraceNode, TraceOutput, TraceTask, VERSION,
    };
    use super::super::{PlatformNode, Reused, TaskReport, WorkflowTask, job};
    use super::*;
    use tidemill_model::time::Span;

    #[test]
    fn compare_errors_are_percent_of_measured() {
        let error = |measured, predicted| {
            Pair {
                measured,
                predicted,
            }
            .error_percent()
        };
        assert!((error(200, 220) - 10.0).abs() < 1e-9);
        assert!((error(200, 180) + 10.0).abs() < 1e-9);
        assert!(error(0, 0).abs() < 1e-9 && error(0, 1).is_infinite());
    }

    /// Converts a simulation's report to a trace.
    fn trace_of(
        workflow: &Workflow,
        report: &SimulationReport,
        platform: &Platform,
        homes: &[u32],
    ) -> Trace {
        let file = |index: &usize| &workflow.files[*index];
        let output = |index: &usize| TraceOutput {
            path: file(index).name.clone(),
            size_bytes: file(index).size,
        };
        let task = |(task, ran): (&WorkflowTask, &TaskReport)| TraceTask {
            name: task.name.clone(),
            kernel: task.kernel.name().to_owned(),
            kernel_kind: TraceKernelKind::Program,
            inputs: task
                .inputs
                .iter()
                .map(|one| file(one).name.clone())
                .collect(),
            selections: task.selections.iter().map(ToString::to_string).collect(),
            outputs: task.outputs.iter().map(output).collect(),
            pinned: None,
            cores: task.needs.cores,
            memory_bytes: task.needs.memory_bytes,
            resources: task.needs.named.clone(),
            node: ran.node,
            sent_ns: ran.sent_ns,
            start_ns: ran.start_ns,
            kernel_start_ns: ran.kernel_start_ns,
            end_ns: ran.end_ns,
            read_ns: ran.read_ns,
            compute_ns: ran.compute_ns,
            write_ns: ran.write_ns,
            hash_ns: ran.hash_ns,
            cpu_ns: 0,
            reused_ns: task.reused.map(|_| ran.end_ns - ran.kernel_start_ns),
            transferred_bytes: ran.transferred_bytes,
        };
        let there = workflow.files.iter().filter(|file| file.maker.is_none());
        let files = there.zip(homes).map(|(file, &node)| TraceFile {
            path: file.name.clone(),
            size_bytes: file.size,
            node,
            unit_bytes: 0,
            parts: Vec::new(),
        });
        let nodes = (0..).zip(&platform.nodes).map(|(id, node)| TraceNode {
            node: id,
            replicas: node.replicas.clone(),
            last_turn: node.last_turn,
            server_cores: false,
            memory_bytes: node.memory_bytes.unwrap_or(0),
            resources: node.resources.clone(),
            programs: node.programs.clone(),
            cores: node.cores,
            link_bytes_per_sec: node.link_assumed,
            device_bytes_per_sec: node.device_bytes_per_sec(),
            watts_milli: node.watts_milli(),
            input_cache_bytes_max: node.input_cache_bytes_max,
            history: [].into(),
        });
        Trace {
            format: FORMAT.to_owned(),
            version: VERSION,
            job: workflow.name.clone(),
            policy: report.policy.clone(),
            submitted_ns: 0,
            makespan_ns: report.makespan_ns,
            random_state: None,
            nodes: nodes.collect(),
            files: files.collect(),
            tasks: workflow.tasks.iter().zip(&report.tasks).map(task).collect(),
        }
    }

    #[test]
    fn prediction_of_a_simulated_run_is_exact() {
        let script = r#"name = "n"; workdir = "/w"; tasks = (
            { name = "a"; kernel = "k"; input = [ "1" ]; output = [ "x" ]; },
            { name = "b"; kernel = "k"; input = [ "2" ]; output = [ "y" ]; },
            { name = "c"; kernel = "sum"; input = [ "x", "y" ]; output = [ "z" ]; } );"#;
        let costs = "[files]\n1 = 1000\n2 = 5000\n[kernels]\nk = { rate = \"1 KB/s\", ratio = 0.5 }\n\
                     sum = { time = 1, output = 1000 }";
        let workflow = job::parse("j", script, "c", costs).unwrap();
        let node = PlatformNode {
            read_bandwidth: Some(8000),
            write_bandwidth: Some(8000),
            link_bandwidth: Some(2500),
            link_assumed: 2500,
            ..PlatformNode::default()
        };
        let platform = Platform::uniform(2, &node);
        let simulation = Simulation::new(&platform, &workflow).policy("round-robin");
        let report = simulation.run().unwrap();
        let trace = trace_of(&workflow, &report, &platform, &[0, 1]);
        let again = trace.workflow().unwrap();
        let compared = compare(&trace, &again, &trace.platform(), 0).unwrap();
        assert!(report.transferred_bytes > 0);
        for pair in [compared.makespan_ns, compared.transferred_bytes] {
            assert_eq!(pair.measured, pair.predicted);
        }
        assert_eq!(compared.same_node, 3);
        let text = compared.text();
        assert!(text.contains("3 of 3 tasks"), "{text}");
    }

    /// A second job reads the inputs of the first job. The inputs that nodes fetched before, the next node in turn and the cached results
    /// decide its placement and the bytes that it moves.
    #[test]
    fn trace_of_warm_run_is_replayed_exactly() {
        let script = r#"name = "n"; workdir = "/w"; tasks = (
            { name = "a"; kernel = "k"; input = [ "1", "2" ]; output = [ "x" ]; },
            { name = "b"; kernel = "k"; input = [ "2" ]; output = [ "y" ]; },
            { name = "c"; kernel = "sum"; input = [ "x", "y" ]; output = [ "z" ]; } );"#;
        let costs = "[files]\n1 = 9000\n2 = 5000\n[kernels]\nk = { time = 1, output = 500 }\n\
                     sum = { time = 1, output = 1000 }";
        let mut workflow = job::parse("j", script, "c", costs).unwrap();
        workflow.tasks[2].reused = Some(Reused {
            time: Span::from_millis(200),
            transferred_bytes: 70,
        });
        let node = PlatformNode {
            link_bandwidth: Some(2500),
            link_assumed: 2500,
            ..PlatformNode::default()
        };
        let cold = Platform::uniform(2, &node);
        let mut warm = cold.clone();
        warm.nodes[1].replicas = vec!["/w/1".to_owned()];
        warm.nodes[0].last_turn = true;
        for policy in ["input-locality", "round-robin", "min-wait", "wa"] {
            let run = |platform| Simulation::new(platform, &workflow).policy(policy).run();
            let (report, other) = (run(&warm).unwrap(), run(&cold).unwrap());
            assert_ne!(report.tasks, other.tasks, "{policy}");
            let trace = trace_of(&workflow, &report, &warm, &[0, 1]);
            let text = serde_json::to_string(&trace).unwrap();
            let trace = Trace::parse("t", &text).unwrap();
            let mut platform = trace.platform();
            platform
                .nodes
                .iter_mut()
                .for_each(|one| one.link_bandwidth = Some(2500));
            let again = trace.replay().unwrap();
            let compared = compare(&trace, &again, &platform, 0).unwrap();
            for pair in [compared.makespan_ns, compared.transferred_bytes] {
                assert_eq!(pair.measured, pair.predicted, "{policy}");
            }
            assert_eq!(compared.same_node, 3, "{policy}");
            assert_eq!(trace.workflow().unwrap().tasks[2].reused, None);
        }
    }
}
