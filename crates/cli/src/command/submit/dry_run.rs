//! `tidemill submit --dry-run`: the plan of a job, by the simulator, from the records of the cluster.
//!
//! The server examines the job as if it were submitted and returns its knowledge. This module makes a trace of future tasks
//! from it, and the simulator runs the trace. Unknown values are reported as unknown and count as zero.

use super::awaited;
use crate::config::Submit;
use crate::context::CommandContext;
use crate::format;
use crate::output::list;
use crate::output::plan::{DryRun, PlannedJob, PlannedTask};
use crate::trace::trace;
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use tidemill_model::event::History;
use tidemill_model::id::NodeId;
use tidemill_model::label::Kernel;
use tidemill_model::resources::Needs;
use tidemill_model::time::Span;
use tidemill_plan::sim::trace::Trace;
use tidemill_plan::sim::{
    Placement, Platform, Simulation, SimulationReport, Workflow, WorkflowTask,
};
use tidemill_plan::units::Watts;
use tidemill_sched::dispatch::expected_run;
use tidemill_wire::v1;

/// Name of the kernel that stands for all work of nodes for other jobs.
const OTHER: &str = "(other jobs)";

/// Shows the plan of a job that the server would accept.
///
/// # Errors
/// If the reply of the server has no plan or can't be simulated.
pub(super) fn show(
    mut reply: v1::SubmitReply,
    prices: &Submit,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let planned = reply.planned.take();
    let planned = planned.context("the reply of the server has no plan")?;
    let notes = awaited(&reply);
    let plan = PlannedJob::new(planned, notes, prices)?;
    context.output.show(&DryRun {
        job: None,
        errors: Vec::new(),
        awaited: list(&reply.awaited),
        plan,
    })?;
    context.note("nothing was submitted");
    Ok(ExitCode::SUCCESS)
}

impl PlannedJob {
    fn new(
        mut planned: v1::JobTrace,
        mut notes: Vec<String>,
        prices: &Submit,
    ) -> anyhow::Result<Self> {
        let job = planned
            .job
            .as_mut()
            .context("the server's answer is incomplete")?;
        let tasks = std::mem::take(&mut job.tasks);
        let (name, policy) = (job.name.clone(), job.policy.clone());
        let history = history(&planned.nodes);
        let sizes = sizes(&planned, &tasks);
        let mut unknown = BTreeMap::new();
        let mut steps: Vec<PlannedTask> = Vec::with_capacity(tasks.len());
        let mut unsized_tasks = 0;
        let mut runs = Vec::with_capacity(tasks.len());
        for (task, traced) in tasks.iter().zip(&planned.tasks) {
            let bytes = task
                .inputs
                .iter()
                .map(|path| sizes.get(path.as_str()).copied());
            let bytes: u64 = bytes.map(|size| size.flatten().unwrap_or(0)).sum();
            let reused = task.reused_task != 0;
            let run = history.get(task.kernel.as_str());
            let run = run.and_then(|history| expected_run(history, bytes));
            if run.is_none() && !reused {
                *unknown.entry(task.kernel.clone()).or_insert(0) += 1;
            }
            unsized_tasks += usize::from(traced.output_sizes.is_empty() && !reused);
            runs.push(run.unwrap_or_default());
            steps.push(PlannedTask {
                name: task.name.clone(),
                kernel: task.kernel.clone(),
                node: None,
                start_ns: format::Span(0),
                end_ns: format::Span(0),
                transferred_bytes: format::Bytes(0),
                time_known: reused || run.is_some(),
                reused_job: reused.then_some(task.reused_job),
                awaited: task.awaited.clone(),
            });
        }
        if unsized_tasks > 0 {
            notes.push(format!(
                "the sizes of the outputs of {} are unknown; the plan does not contain their transfer",
                format::count(unsized_tasks as u64, "task")
            ));
        }
        let mut plan = Self {
            job: name,
            policy,
            makespan_ns: format::Span(0),
            complete: unknown.is_empty(),
            transferred_bytes: format::Bytes(0),
            energy_joules: None,
            cost: None,
            unknown_kernels: unknown,
            notes,
            tasks: steps,
        };
        plan.simulate(planned, tasks, &runs, prices)?;
        let transferred = plan.tasks.iter().map(|task| task.transferred_bytes.0);
        plan.transferred_bytes.0 = transferred.sum();
        Ok(plan)
    }

    /// Simulates the job.
    fn simulate(
        &mut self,
        mut planned: v1::JobTrace,
        tasks: Vec<v1::Task>,
        runs: &[Span],
        prices: &Submit,
    ) -> anyhow::Result<()> {
        let stores = planned.nodes.iter().filter(|one| one.role == "store");
        let up: BTreeSet<u32> = planned.nodes.iter().map(|one| one.node).collect();
        let Some(first) = stores.map(|one| one.node).min() else {
            self.notes
                .push("no node is up: all tasks would wait for one".to_owned());
            return Ok(());
        };
        self.place(&mut planned, &up, first);
        let loads = loads(&planned.nodes, &mut self.notes);
        planned.job = planned.job.map(|job| v1::Job { tasks, ..job });
        for ((task, traced), run) in planned
            .job
            .iter_mut()
            .flat_map(|job| &mut job.tasks)
            .zip(&mut planned.tasks)
            .zip(runs)
        {
            // Recorded as a run from 0 on. A cached result takes no time.
            task.node = first;
            if task.reused_task == 0 {
                task.end = i64::try_from(run.0).unwrap_or(i64::MAX);
            }
            traced.output_sizes.resize(task.outputs.len(), 0);
        }
        let trace = trace(planned)?;
        let mut platform = trace.platform();
        let workflow = behind(&trace, &mut platform, &loads)?;
        let others = workflow.tasks.len() - self.tasks.len();
        let simulated = Simulation::new(&platform, &workflow)
            .placement(Placement::Recorded)
            .run()?;
        self.take(&trace, &simulated, others);
        self.price(&platform, &trace, prices);
        Ok(())
    }

    /// Moves files and tasks of nodes that are down, and files that do not exist yet, to another node.
    fn place(&mut self, planned: &mut v1::JobTrace, up: &BTreeSet<u32>, first: u32) {
        for file in &mut planned.files {
            if up.contains(&file.node) {
                continue;
            }
            if file.object != 0 {
                let (path, node) = (&file.path, file.node);
                self.notes.push(format!(
                    "node {node}, which holds {path}, is down: tasks would wait for it"
                ));
            }
            file.node = first;
        }
        for (task, step) in planned.tasks.iter_mut().zip(&self.tasks) {
            if let Some(node) = task.pinned.filter(|node| !up.contains(node)) {
                self.notes.push(format!(
                    "task {} would wait for node {node}, which is down",
                    step.name
                ));
                task.pinned = None;
            }
        }
    }

    fn take(&mut self, trace: &Trace, simulated: &SimulationReport, others: usize) {
        let nodes = trace.nodes.iter().map(|one| one.node);
        let real: BTreeMap<NodeId, u32> = nodes.map(|one| (trace.planned_id(one), one)).collect();
        for (step, task) in self.tasks.iter_mut().zip(&simulated.tasks[others..]) {
            step.node = real.get(&NodeId(task.node)).copied();
            step.start_ns.0 = task.start_ns;
            step.end_ns.0 = task.end_ns;
            step.transferred_bytes.0 = task.transferred_bytes;
            self.makespan_ns = self.makespan_ns.max(step.end_ns);
        }
    }

    /// Computes the energy that nodes draw until the job has ended. Idle power is charged to the job, work for other jobs is
    /// not.
    fn price(&mut self, platform: &Platform, trace: &Trace, prices: &Submit) {
        let (Some(busy), Some(idle)) = (prices.busy_power, prices.idle_power) else {
            return;
        };
        if idle > busy {
            self.notes.push(format!(
                "energy is not reported: idle-power {idle} is above busy-power {busy}"
            ));
            return;
        }
        let seconds = |ns: u64| tidemill_plan::units::Seconds::new(Span(ns).as_secs_f64());
        let nodes = platform.nodes.iter().chain(&platform.server_cores);
        #[expect(clippy::cast_precision_loss, reason = "a number of nodes")]
        let count = nodes.count() as f64;
        let mut energy = idle * count * seconds(self.makespan_ns.0);
        for step in &self.tasks {
            let node = trace.nodes.iter().find(|one| Some(one.node) == step.node);
            let cores = node.map_or(1, |one| one.cores.max(1));
            let more: Watts = (busy - idle) / f64::from(cores);
            energy = energy + more * seconds(step.end_ns.0 - step.start_ns.0);
        }
        self.energy_joules = Some(energy);
        self.cost = prices.energy_price.as_ref().map(|price| {
            let money = price.amount * energy;
            price.currency.show(money)
        });
    }
}

/// Returns the run times of each kernel that all nodes have learned.
fn history(nodes: &[v1::Node]) -> BTreeMap<String, History> {
    let mut all: BTreeMap<String, History> = BTreeMap::new();
    for (kernel, known) in nodes.iter().flat_map(|one| &one.history) {
        let sum = all.entry(kernel.clone()).or_default();
        sum.runs = sum.runs.saturating_add(known.runs);
        sum.total_ns = sum.total_ns.saturating_add(known.total_ns);
        sum.input_bytes = sum.input_bytes.saturating_add(known.input_bytes);
    }
    all
}

/// Returns the sizes of all files, by path; none for files whose size nobody knows.
fn sizes<'a>(planned: &'a v1::JobTrace, tasks: &'a [v1::Task]) -> BTreeMap<&'a str, Option<u64>> {
    let there = planned.files.iter();
    let there = there.map(|file| {
        (
            file.path.as_str(),
            Some(file.size).filter(|_| file.object != 0),
        )
    });
    let made = tasks.iter().zip(&planned.tasks).flat_map(|(task, traced)| {
        let outputs = task.outputs.iter().enumerate();
        outputs.map(|(at, path)| (path.as_str(), traced.output_sizes.get(at).copied()))
    });
    there.chain(made).collect()
}

/// Returns the work of nodes for other jobs: the nodes, and the time of each.
fn loads(nodes: &[v1::Node], notes: &mut Vec<String>) -> Vec<(u32, u32, Span)> {
    let mut loads = Vec::new();
    for one in nodes.iter().filter(|one| one.running + one.queued > 0) {
        let wait = one.traced.as_ref().map_or(0, |state| state.wait_ns);
        let (node, running, queued) = (one.node, one.running, one.queued);
        let until = match wait {
            0 => "has a core free".to_owned(),
            wait => format!("should have a core free in {}", format::span(wait)),
        };
        notes.push(format!(
            "node {node} runs {running} tasks of other jobs, {queued} wait for it; it {until}"
        ));
        if wait > 0 {
            loads.push((node, one.cores, Span(wait)));
        }
    }
    loads
}

/// Returns the job, queued after the work of nodes for other jobs.
fn behind(
    trace: &Trace,
    platform: &mut Platform,
    loads: &[(u32, u32, Span)],
) -> anyhow::Result<Workflow> {
    let mut others = Vec::new();
    for &(node, cores, wait) in loads {
        let id = trace.planned_id(node);
        for core in 0..cores {
            others.push(WorkflowTask {
                name: format!("{OTHER} {node} {core}"),
                kernel: Kernel::Program(OTHER.to_owned()),
                inputs: Vec::new(),
                selections: Vec::new(),
                outputs: Vec::new(),
                compute: wait,
                node: Some(id),
                needs: Needs::default(),
                reused: None,
            });
        }
        let known = History {
            runs: 1,
            total_ns: wait.0,
            input_bytes: 0,
        };
        let at = usize::try_from(id.0).unwrap_or(usize::MAX);
        let node = match platform.nodes.get_mut(at) {
            Some(node) => Some(node),
            None => platform.server_cores.as_mut(),
        };
        if let Some(node) = node {
            node.history.insert(OTHER.to_owned(), known);
        }
    }
    Ok(trace.replay()?.behind(others))
}
