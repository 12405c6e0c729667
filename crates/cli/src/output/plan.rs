//! Results of planning: simulations, advice, models, and jobs that were not submitted.

use super::messages::AwaitedInput;
use super::table::{Text, columns};
use super::{Report, dash, list, records};
use crate::format::{self, Bytes, Span};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use tidemill_model::display::line;
use tidemill_plan::advisor::hook::{HookAdvice, HookCase, TierShortage};
use tidemill_plan::advisor::{Advice, Case, ExecutionSide, Prediction, RunChoice};
use tidemill_plan::model::{ReportPart, SiteReport};
use tidemill_plan::sim::compare::RunComparison;
use tidemill_plan::sim::elastic::{self, ElasticPoint, ElasticResult};
use tidemill_plan::sim::sweep::{self, SweepPoint};
use tidemill_plan::sim::{SimulationReport, TaskReport};
use tidemill_plan::units::{self, BytesPerSecond, Joules, Seconds, significant};

/// Maximum number of tasks in the text; JSON has all.
const SHOWN_MAX: usize = 100;

records! {
    /// Simulated job.
    Simulated {
        #[serde(flatten)]
        report: SimulationReport,
        /// Whether the text shows every task.
        #[serde(skip)]
        tasks: bool,
    }
}

columns! { task: TaskReport {
    left "TASK" => task.name,
    left "KERNEL" => task.kernel,
    right "NODE" => task.node,
    right "CORE" => numbers(&task.cores),
    right "START" => Span(task.start_ns),
    right "FETCH" => Span(task.kernel_start_ns - task.start_ns),
    right "READ" => Span(task.read_ns),
    right "COMPUTE" => Span(task.compute_ns),
    right "WRITE" => Span(task.write_ns),
    right "END" => Span(task.end_ns),
    right "TRANSFER" => Bytes(task.transferred_bytes),
} }

impl Report for Simulated {
    fn text(&self, out: &mut Text) {
        out.push(&self.report.text());
        if self.tasks {
            writeln!(out);
            out.table(&self.report.tasks);
        }
    }
}

/// Returns the numbers of cores, with ranges in short form.
fn numbers(cores: &[u32]) -> String {
    match cores {
        [] => "-".to_owned(),
        [first, .., last] if last - first + 1 == u32::try_from(cores.len()).unwrap_or(0) => {
            format!("{first}-{last}")
        }
        cores => {
            let cores = cores.iter().map(u32::to_string);
            cores.collect::<Vec<_>>().join(",")
        }
    }
}

/// Simulated job on clusters of many shapes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sweep(pub(crate) Vec<SweepPoint>);

impl Report for Sweep {
    fn text(&self, out: &mut Text) {
        out.push(&sweep::table(&self.0));
    }
}

records! {
    /// Simulated job with suspended nodes.
    PowerComparison new(nodes: usize, all: &[ElasticPoint]) {
        /// Number of nodes of the platform.
        nodes: usize,
        points: Vec<PowerPoint> = list(all),
        #[serde(skip)]
        text: String = elastic::table(all),
    }

    /// Simulated job with a number of active nodes.
    PowerPoint from of: ElasticPoint {
        active: usize,
        /// Only the active nodes work.
        #[serde(rename = "static")]
        stays: ElasticResult,
        /// As many nodes are resumed as pays.
        elastic: ElasticResult,
        /// All nodes are resumed.
        all: ElasticResult,
        /// The best of the three.
        best: &'static str = of.best(),
    }
}

impl Report for PowerComparison {
    fn text(&self, out: &mut Text) {
        out.push(&self.text);
    }
}

/// Predictions of the simulator next to measured values.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Comparison(pub(crate) RunComparison);

impl Report for Comparison {
    fn text(&self, out: &mut Text) {
        writeln!(out, "{}", self.0.text().trim_end_matches('\n'));
    }
}

records! {
    /// Results of the models of Active Flash for a site; only the requested sections.
    Model {
        #[serde(flatten)]
        report: SiteReport,
        #[serde(skip)]
        parts: Vec<ReportPart>,
    }
}

impl Report for Model {
    fn text(&self, out: &mut Text) {
        for part in &self.parts {
            match part {
                ReportPart::Text(text) => out.push(text),
                ReportPart::Table(table) => {
                    let titles = table.header.iter().enumerate();
                    let titles: Vec<_> = titles
                        .map(|(at, title)| (*title, table.right.contains(&at)))
                        .collect();
                    out.grid(&titles, table.rows.iter().cloned());
                }
            }
        }
    }
}

records! {
    /// Advice for a kernel: run it on the node, on the client, or on both.
    OffloadAdvice new(name: &str, case: &Case, advice: &Advice, sources: Vec<String>) {
        kernel: String = name.to_owned(), input_bytes: units::Bytes = case.input,
        /// Bytes of the result for each byte of input.
        output_ratio: f64 = case.output_ratio,
        splittable: bool = case.splittable,
        /// Side that needs the result.
        result: ExecutionSide = case.result,
        /// Rates of the kernel, and times to start it.
        node_bytes_per_sec: Option<BytesPerSecond> = case.node.rate,
        node_start_seconds: Seconds = case.node.start, client_bytes_per_sec: Option<BytesPerSecond> = case.client.rate,
        client_start_seconds: Seconds = case.client.start,
        /// Share of a processor that the kernel gets.
        client_processor_share: f64 = case.client.load.share,
        node_processor_share: f64 = case.node.load.share, link_bytes_per_sec: BytesPerSecond = case.link.bandwidth, link_latency_seconds: Seconds = case.link.latency,
        choices: Vec<OffloadChoice> = [RunChoice::Node, RunChoice::Client, RunChoice::Both].map(|choice| OffloadChoice::new(choice, advice)).to_vec(), best: RunChoice = advice.best, reason: String = advice.reason.clone(),
        /// Origin of each figure, one sentence each.
        sources: Vec<String>,
    }

    /// One way to run a kernel.
    OffloadChoice new(choice: RunChoice, advice: &Advice) {
        choice: RunChoice, feasible: bool = advice.of(choice).is_ok(),
        /// Costs; absent if the choice is not feasible.
        #[serde(flatten)]
        prediction: Option<Prediction> = advice.of(choice).ok(),
        /// Reason why the choice is not feasible.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String> = advice.of(choice).err().map(|why| why.to_string()),
    }
}

/// Feasible way to run a kernel: a row of the table.
pub(crate) struct FeasibleChoice(RunChoice, Prediction);

columns! { one: FeasibleChoice {
    left "CHOICE" => one.0,
    right "TIME" => one.1.time,
    right "WAIT" => one.1.waiting,
    right "TRANSFER" => one.1.transferring,
    right "RUN" => one.1.on_node + one.1.on_client,
    right "BYTES" => size(one.1.transferred),
    right "ENERGY" => one.1.energy.map_or_else(|| "?".to_owned(), |energy| energy.to_string()),
} }

impl Report for OffloadAdvice {
    fn text(&self, out: &mut Text) {
        let (input, output) = (
            size(self.input_bytes),
            size(self.input_bytes * self.output_ratio),
        );
        let (kernel, result) = (&self.kernel, self.result);
        writeln!(
            out,
            "{kernel} over {input}; its result of {output} is wanted on the {result}\n"
        );
        let choices = self.choices.iter();
        let feasible = choices.filter_map(|one| Some(FeasibleChoice(one.choice, one.prediction?)));
        out.table(&feasible.collect::<Vec<_>>());
        for one in &self.choices {
            if let Some(why) = &one.why {
                writeln!(out, "{}: not possible: {why}", one.choice);
            }
            if let (RunChoice::Both, Some(both)) = (one.choice, one.prediction) {
                let share = significant((both.node_share * 1e3).round() / 10.0);
                writeln!(out, "both: best with {share} % of the input on the node");
            }
        }
        writeln!(out, "\nbest: {}: {}\n", self.best, self.reason);
        self.sources
            .iter()
            .for_each(|source| writeln!(out, "{source}"));
    }
}

records! {
    /// Advice for a hook: whether the burst tier keeps up.
    HookPlan new(names: [String; 3], case: &HookCase, advice: HookAdvice, sources: Vec<String>) {
        hook: String = names[0].clone(), map: String = names[1].clone(),
        /// `keep`, `delete` or `evict`.
        inputs: String = names[2].clone(),
        /// Reasons why the tier does not keep up, one sentence each.
        why: Vec<String> = shortages(case, &advice),
        #[serde(flatten)]
        advice: HookAdvice,
        /// Whether maps run while files are written.
        on_write: bool = case.on_write,
        burst_bytes: units::Bytes = case.burst, files: u32 = case.files,
        /// Time from the begin of one burst to the begin of the next.
        every_seconds: Seconds = case.every,
        nodes: u32 = case.nodes, cores: u32 = case.cores, write_bytes_per_sec: BytesPerSecond = case.write, kernel_bytes_per_sec: BytesPerSecond = case.rate,
        /// Share of the processors that maps leave to writers.
        share: f64 = case.share,
        /// Rate at which one node stages out; null if it is not known.
        stage_out_rate_bytes_per_sec: Option<BytesPerSecond> = case.stage_out,
        space_bytes: Option<units::Bytes> = case.space,
        /// Origin of each figure, one sentence each.
        sources: Vec<String>,
    }
}

/// Returns the reasons why the tier does not keep up, one sentence each.
fn shortages(case: &HookCase, advice: &HookAdvice) -> Vec<String> {
    let why = advice.lacks.iter().map(|lack| match lack {
        TierShortage::Writing => format!("a burst takes {}, and the next burst begins after {}", advice.burst_seconds, case.every),
        TierShortage::Cores => {
            let behind = size(advice.behind_bytes);
            let full = advice.bursts_until_full.map_or_else(String::new, |bursts| {
                format!("; the tier is full of them after {bursts} bursts")
            });
            let needed = match advice.cores_needed {
                Some(cores) => format!("; {cores} cores of each node would do"),
                None => "; no number of cores would do, as a file has one".to_owned(),
            };
            format!("each burst leaves {behind} on each node that are not mapped when the next burst begins{full}{needed}")
        }
        TierShortage::StageOut => format!("{} have to be staged out from each node", per_second(advice.stage_out)),
        TierShortage::Space => format!("a burst does not fit: a node holds {}", case.space.map_or_else(String::new, size)),
    });
    why.collect()
}

impl Report for HookPlan {
    fn text(&self, out: &mut Text) {
        let (hook, map, burst) = (line(&self.hook), line(&self.map), size(self.burst_bytes));
        let (files, every, nodes, cores) = (self.files, self.every_seconds, self.nodes, self.cores);
        writeln!(
            out,
            "hook {hook}: {map} over bursts of {burst} in {files} files, every {every}, into {nodes} x {cores} cores of the burst tier\n"
        );
        let advice = &self.advice;
        let (work, done) = (advice.work_seconds, advice.done_in_burst_seconds);
        writeln!(out, "a burst takes       {}", advice.burst_seconds);
        writeln!(
            out,
            "maps of a node      {work} of one core, {done} of these during the burst"
        );
        writeln!(
            out,
            "last result         {} after it began",
            advice.results_seconds
        );
        writeln!(
            out,
            "stage out           {} from each node",
            per_second(advice.stage_out)
        );
        match advice.keeps_up {
            true => writeln!(out, "\nkeeps up: yes\n"),
            false => writeln!(out, "\nkeeps up: no: {}\n", self.why.join("; ")),
        }
        self.sources
            .iter()
            .for_each(|source| writeln!(out, "{source}"));
    }
}

/// Formats a size as all other commands do.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "display only; casts saturate"
)]
pub(crate) fn size(bytes: units::Bytes) -> String {
    format::bytes(bytes.get().round() as u64)
}

/// Formats a rate as all other commands do.
pub(crate) fn per_second(rate: BytesPerSecond) -> String {
    format!("{}/s", size(units::Bytes::new(rate.get())))
}

records! {
    /// Job that was not submitted, because of `--dry-run`.
    DryRun {
        /// Always null.
        job: Option<u64>,
        /// Always empty.
        errors: Vec<String>,
        awaited: Vec<AwaitedInput>, plan: PlannedJob,
    }

    /// Predicted course of a job.
    PlannedJob {
        job: String, policy: String,
        /// Time of all tasks with known times.
        makespan_ns: Span,
        /// Whether the times of all tasks are known.
        complete: bool,
        transferred_bytes: Bytes,
        /// Energy in joules; null if the power of a node is not known.
        energy_joules: Option<Joules>,
        cost: Option<String>,
        /// Kernels that did not run before, with the number of tasks of each.
        unknown_kernels: BTreeMap<String, usize>,
        notes: Vec<String>, tasks: Vec<PlannedTask>,
    }

    /// Predicted course of a task. Times are since the submission.
    PlannedTask {
        name: String, kernel: String,
        /// Predicted node; null if no node is up.
        node: Option<u32>,
        start_ns: Span, end_ns: Span,
        /// Whether the time of the run is known.
        time_known: bool,
        transferred_bytes: Bytes,
        /// Job whose cached result the task would get.
        reused_job: Option<u64>,
        /// Missing inputs.
        awaited: Vec<String>,
    }
}

columns! { task: PlannedTask {
    left "TASK" => task.name,
    left "KERNEL" => task.kernel,
    right "NODE" => dash(&task.node),
    right "START" => task.start_ns,
    right "TIME" => match task.time_known {
        true => Span(task.end_ns.0 - task.start_ns.0).to_string(),
        false => "unknown".to_owned(),
    },
    right "TRANSFER" => task.transferred_bytes,
    left "NOTE" => match (task.reused_job, task.awaited.first()) {
        (Some(job), _) => format!("cached result of job {job}"),
        (None, Some(path)) => format!("waits for {path}"),
        (None, None) => String::new(),
    },
} }

impl PlannedJob {
    fn unknown_tasks(&self) -> usize {
        self.unknown_kernels.values().sum()
    }

    fn costs(&self, out: &mut Text) {
        let time = match self.unknown_tasks() {
            0 => self.makespan_ns.to_string(),
            all if all == self.tasks.len() => "not known".to_owned(),
            some => format!(
                "at least {}, without {} whose time is not known",
                self.makespan_ns,
                format::count(some as u64, "task")
            ),
        };
        let least = if self.complete { "" } else { "at least " };
        let energy = match (&self.energy_joules, &self.cost) {
            (None, _) => {
                "not known; give the power of a node with --busy-power and --idle-power".to_owned()
            }
            (Some(energy), None) => format!("{least}{energy}"),
            (Some(energy), Some(cost)) => format!("{least}{energy}, {cost}"),
        };
        writeln!(out, "time     {time}");
        writeln!(out, "transferred {least}{}", self.transferred_bytes);
        writeln!(out, "energy   {energy}");
    }
}

impl Report for DryRun {
    fn text(&self, out: &mut Text) {
        let plan = &self.plan;
        let cached = match plan
            .tasks
            .iter()
            .filter(|task| task.reused_job.is_some())
            .count()
        {
            0 => String::new(),
            cached => format!(", {cached} of them cached and not run"),
        };
        writeln!(out, "job      {}", plan.job);
        writeln!(out, "tasks    {}{cached}", plan.tasks.len());
        writeln!(out, "policy   {}", plan.policy);
        if plan.tasks.iter().any(|task| task.node.is_some()) {
            plan.costs(out);
        }
        writeln!(out);
        out.table(plan.tasks.iter().take(SHOWN_MAX));
        match plan.tasks.len().saturating_sub(SHOWN_MAX) {
            0 => {}
            more => writeln!(out, "and {more} more; --json has all"),
        }
        for (kernel, tasks) in &plan.unknown_kernels {
            let tasks = format::count(*tasks as u64, "task");
            writeln!(
                out,
                "nobody ran {kernel} yet: the time of {tasks} is not known"
            );
        }
        plan.notes.iter().for_each(|note| writeln!(out, "{note}"));
    }
}
