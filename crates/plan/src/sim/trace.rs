//! A trace: the record of a real job on a cluster, for planning similar jobs and for checking predictions. This module parses traces and
//! converts them; it does no I/O.
//!
//! `tidemill job export-trace` writes a trace; `docs/simulator.md` describes it field by field. Times of tasks are nanoseconds since the
//! job's submission, by the clocks of the nodes that ran them.

mod fetches;

use super::error::{FileProblem, InputError};
use super::json::JsonReader;
use super::platform::{CORES_MAX, Platform, PlatformNode};
use super::quantity::whole;
use super::workflow::{GraphFault, Reused, StripedFile, Workflow, WorkflowFile, WorkflowTask};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::event::History;
use tidemill_model::id::NodeId;
use tidemill_model::label::{Kernel, Pipeline};
use tidemill_model::layout::{Selection, SelectionError};
use tidemill_model::resources::Needs;
use tidemill_model::time::Span;

/// Value of the field `format` in every trace.
pub const FORMAT: &str = "tidemill-trace";
/// Supported version of the trace format.
pub const VERSION: u32 = 1;

/// Trace: record of a real job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Name of the format, always [`FORMAT`].
    pub format: String,
    /// Version of the format, always [`VERSION`].
    pub version: u32,
    /// Name of the job.
    pub job: String,
    /// Name of the job's policy.
    pub policy: String,
    /// Time of the job's submission, in nanoseconds since the Unix epoch by the server's clock.
    pub submitted_ns: u64,
    /// Time from the submission of the job to its end, in nanoseconds.
    pub makespan_ns: u64,
    /// Random state at the start of the job, for a policy that draws random numbers.
    #[serde(default)]
    pub random_state: Option<u64>,
    /// Nodes that were online when the job was submitted.
    pub nodes: Vec<TraceNode>,
    /// Files that existed before the job.
    pub files: Vec<TraceFile>,
    /// Tasks of the job in the script's order.
    pub tasks: Vec<TraceTask>,
}

/// Node at the time of the job's submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceNode {
    /// Id of the node.
    pub node: u32,
    /// Whether this node is the server cores, which only provide cores.
    #[serde(default)]
    pub server_cores: bool,
    /// Number of cores of the node.
    pub cores: u32,
    /// Memory of the node for tasks that specify their need, in bytes; 0 means unlimited.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Amount of each named resource of the node.
    #[serde(default)]
    pub resources: BTreeMap<String, u64>,
    /// Programs of the job's tasks that the node's host has; `None` means all programs.
    #[serde(default)]
    pub programs: Option<BTreeSet<String>>,
    /// Rate of fetches that the node reported, in bytes per second.
    pub link_bytes_per_sec: u64,
    /// Configured rate of the node's device, in bytes per second; 0 if no rate is configured.
    #[serde(default)]
    pub device_bytes_per_sec: u64,
    /// Configured power of the node at full load, in thousandths of a watt; 0 if no power is configured.
    #[serde(default)]
    pub watts_milli: u64,
    /// Maximum size of fetched objects that the node keeps after their last use, in bytes.
    pub input_cache_bytes_max: u64,
    /// Learned run times of the node by kernel.
    #[serde(default)]
    pub history: BTreeMap<String, TraceHistory>,
    /// Full paths of `files` on other nodes that this node should have replicas of, oldest first.
    #[serde(default)]
    pub replicas: Vec<String>,
    /// Whether the policy chose this node last.
    #[serde(default)]
    pub last_turn: bool,
}

/// Learned run times of a kernel on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceHistory {
    /// Number of runs that succeeded.
    pub runs: u64,
    /// Sum of the run times of these runs, in nanoseconds.
    pub total_ns: u64,
    /// Sum of the input sizes of these runs, in bytes.
    pub input_bytes: u64,
}

/// File that existed before the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceFile {
    /// Full path of the file in the cluster.
    pub path: String,
    /// Size of the file, in bytes.
    pub size_bytes: u64,
    /// Node that holds the file; for a striped file, the node of its first part.
    pub node: u32,
    /// Size of a stripe, in bytes; 0 if the file is one object.
    #[serde(default)]
    pub unit_bytes: u64,
    /// Parts of the file if the file is striped.
    #[serde(default)]
    pub parts: Vec<TracePart>,
}

/// Part of a striped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracePart {
    /// Node that holds the part.
    pub node: u32,
    /// Size of the part, in bytes.
    pub size_bytes: u64,
}

/// Origin of a task's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceKernelKind {
    /// The kernel is part of every node.
    Builtin,
    /// The kernel is a `.so` in the cluster.
    Native,
    /// The kernel is a WebAssembly module in the cluster.
    Wasm,
    /// The kernel is an executable in the cluster.
    Stored,
    /// The kernel is a program of the nodes' hosts.
    Program,
    /// The kernel is a pipeline of kernels.
    Pipeline,
}

/// Record of a task: its last try, which succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceTask {
    /// Name of the task.
    pub name: String,
    /// Kernel of the task. For a kernel that is stored in the cluster this is the full path of its code, which is also one of `inputs`.
    pub kernel: String,
    /// Origin of the kernel.
    pub kernel_kind: TraceKernelKind,
    /// Full paths of all inputs, in the order of the task's inputs.
    pub inputs: Vec<String>,
    /// Selection of each input, such as `part 2 bytes 0-4095,8192-8199`; an empty text means the whole input. An empty list means that all
    /// inputs are read completely.
    #[serde(default)]
    pub selections: Vec<String>,
    /// All outputs of the task.
    pub outputs: Vec<TraceOutput>,
    /// Node to which the script bound the task.
    #[serde(default)]
    pub pinned: Option<u32>,
    /// Number of cores that the task needed.
    #[serde(default = "one")]
    pub cores: u32,
    /// Memory that was reserved for the task, in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Named resources that the task needed.
    #[serde(default)]
    pub resources: BTreeMap<String, u64>,
    /// Node that ran the task.
    pub node: u32,
    /// Time at which the task was sent to the node, in nanoseconds since the job's submission.
    pub sent_ns: u64,
    /// Time at which the task got a core and the fetch of its inputs began, in nanoseconds since the job's submission.
    pub start_ns: u64,
    /// Time at which the task's kernel began, in nanoseconds since the job's submission.
    pub kernel_start_ns: u64,
    /// Time at which the task's outputs were sealed, in nanoseconds since the job's submission.
    pub end_ns: u64,
    /// Time that the task spent on reading files, in nanoseconds; 0 if it was not measured apart from computing.
    #[serde(default)]
    pub read_ns: u64,
    /// Time that the task spent on computing, in nanoseconds; for a cached result the time of the run that produced the result.
    pub compute_ns: u64,
    /// Time that returning the cached result took, in nanoseconds. `None` if the kernel ran.
    #[serde(default)]
    pub reused_ns: Option<u64>,
    /// Time that the task spent on writing files, in nanoseconds; 0 if it was not measured apart from computing.
    #[serde(default)]
    pub write_ns: u64,
    /// Last part of the time before the task's end, in which its inputs were hashed, in nanoseconds. The trace of a real run counts this
    /// time as computing, too, because a replay takes as long.
    #[serde(default)]
    pub hash_ns: u64,
    /// Processor time of the task's kernel, in nanoseconds; 0 if it was not measured.
    #[serde(default)]
    pub cpu_ns: u64,
    /// Bytes that the task fetched from other nodes.
    pub transferred_bytes: u64,
}

/// File that a task wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceOutput {
    /// Full path of the output file in the cluster.
    pub path: String,
    /// Size of the output file, in bytes.
    pub size_bytes: u64,
}

impl Trace {
    /// Parses a trace. `file` is the name used in errors.
    ///
    /// # Errors
    /// Names the fault in the trace and its line: text that is not JSON, an unknown version, missing or unknown fields, files that no task
    /// writes, tasks that depend on each other in a cycle, or an empty list of nodes.
    pub fn parse(file: &str, text: &str) -> Result<Self, InputError> {
        #[derive(Deserialize)]
        struct TraceHeader {
            #[serde(default)]
            format: String,
            #[serde(default)]
            version: u32,
        }
        let reader = JsonReader { file, text };
        let header: TraceHeader = serde_json::from_str(text).map_err(|e| reader.json(0, &e))?;
        if header.format != FORMAT || header.version != VERSION {
            let problem = FileProblem::Version {
                format: FORMAT,
                found: format!("{} of `{}`", header.version, header.format),
                known: "1",
            };
            return Err(reader.error(0, problem));
        }
        let trace: Self = serde_json::from_str(text).map_err(|e| reader.json(0, &e))?;
        if !trace.nodes.iter().any(|node| !node.server_cores) {
            return Err(reader.error(0, FileProblem::NoNodes));
        }
        if trace.tasks.is_empty() {
            return Err(reader.error(0, FileProblem::NoTasks));
        }
        trace.check_lists(&reader)?;
        match trace.build() {
            Ok(_) => Ok(trace),
            Err(fault) => Err(reader.error(line(&reader, "tasks", fault.task), fault.problem)),
        }
    }

    /// Checks that each node and each file is listed once and that the values of nodes and files are valid.
    fn check_lists(&self, reader: &JsonReader<'_>) -> Result<(), InputError> {
        if self.job.trim().is_empty() {
            return Err(reader.error(0, FileProblem::NoName("the job".to_owned())));
        }
        let mut seen = BTreeMap::new();
        for (at, one) in self.nodes.iter().enumerate() {
            let error = |problem| Err(reader.error(line(reader, "nodes", at), problem));
            if let Some(first) = seen.insert(one.node, at) {
                let first = line(reader, "nodes", first);
                let node = one.node;
                return error(FileProblem::SameNode { node, first });
            }
            let what = || format!("`cores` of node {}", one.node);
            if one.cores > CORES_MAX {
                let (what, max) = (what(), CORES_MAX.into());
                return error(FileProblem::TooMany { what, max });
            }
            // The server of a cluster that lends no cores counts as a node without cores.
            if one.cores == 0 && !one.server_cores {
                return error(FileProblem::Zero { what: what() });
            }
        }
        let mut seen = BTreeMap::new();
        for (at, one) in self.files.iter().enumerate() {
            let error = |problem| Err(reader.error(line(reader, "files", at), problem));
            if one.path.trim().is_empty() {
                return error(FileProblem::NoName("a file".to_owned()));
            }
            if let Some(first) = seen.insert(&one.path, at) {
                let first = line(reader, "files", first);
                let file = one.path.clone();
                return error(FileProblem::SameFile { file, first });
            }
        }
        Ok(())
    }

    /// Returns the job for a simulation: each file is on its recorded node, and computing takes its recorded time.
    ///
    /// # Errors
    /// Errors of [`Self::parse`], without lines; a trace that was parsed causes none.
    pub fn workflow(&self) -> Result<Workflow, InputError> {
        self.build()
            .map_err(|fault| InputError::new(&self.job, 0, fault.problem))
    }

    /// Returns the job for a comparison with the real run: cached results are returned and not recomputed.
    ///
    /// # Errors
    /// Errors of [`Self::workflow`].
    pub fn replay(&self) -> Result<Workflow, InputError> {
        let mut workflow = self.workflow()?;
        for (task, traced) in workflow.tasks.iter_mut().zip(&self.tasks) {
            task.reused = traced.reused_ns.map(|ns| Reused {
                time: Span(ns),
                transferred_bytes: traced.transferred_bytes,
            });
        }
        Ok(workflow)
    }

    fn build(&self) -> Result<Workflow, GraphFault> {
        let mut files = Vec::new();
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        for file in &self.files {
            index.insert(&file.path, files.len());
            files.push(self.file(file));
        }
        let mut outputs = Vec::new();
        for (number, task) in self.tasks.iter().enumerate() {
            let mut made = Vec::new();
            for output in &task.outputs {
                if let Some(&known) = index.get(output.path.as_str()) {
                    let (task, file) = (task.name.clone(), output.path.clone());
                    let other = self.maker_of(known, &outputs);
                    let problem = FileProblem::SameOutput { task, file, other };
                    return Err(GraphFault {
                        task: number,
                        problem,
                    });
                }
                index.insert(&output.path, files.len());
                made.push(files.len());
                files.push(made_file(output));
            }
            outputs.push(made);
        }
        let mut tasks = Vec::new();
        for (number, (task, outputs)) in self.tasks.iter().zip(outputs).enumerate() {
            let find = |path: &String| {
                index.get(path.as_str()).copied().ok_or_else(|| {
                    let (task, file) = (task.name.clone(), path.clone());
                    let problem = FileProblem::DanglingFile { task, file };
                    GraphFault {
                        task: number,
                        problem,
                    }
                })
            };
            tasks.push(WorkflowTask {
                name: task.name.clone(),
                kernel: kernel(task),
                inputs: task.inputs.iter().map(find).collect::<Result<_, _>>()?,
                selections: selections(task).map_err(|problem| GraphFault {
                    task: number,
                    problem,
                })?,
                outputs,
                compute: Span(task.compute_ns),
                node: task.pinned.map(|node| self.planned_id(node)),
                needs: Needs {
                    cores: task.cores,
                    memory_bytes: task.memory_bytes,
                    named: task.resources.clone(),
                },
                reused: None,
            });
        }
        let mut workflow = Workflow {
            name: self.job.clone(),
            policy: Some(self.policy.clone()),
            tasks,
            files,
        };
        workflow.link()?;
        Ok(workflow)
    }

    /// Converts a file that existed before the job to a workflow file.
    fn file(&self, file: &TraceFile) -> WorkflowFile {
        WorkflowFile {
            name: file.path.clone(),
            size: file.size_bytes,
            maker: None,
            home: Some(self.planned_id(file.node)),
            striped: self.striped(file),
        }
    }

    fn striped(&self, file: &TraceFile) -> Option<StripedFile> {
        if file.parts.is_empty() {
            return None;
        }
        let parts = file.parts.iter();
        let part = |part: &TracePart| (self.planned_id(part.node), part.size_bytes);
        Some(StripedFile {
            unit: file.unit_bytes,
            parts: parts.map(part).collect(),
        })
    }

    fn maker_of(&self, file: usize, outputs: &[Vec<usize>]) -> String {
        let maker = outputs.iter().position(|made| made.contains(&file));
        maker.map_or("(before the job)".to_owned(), |task| {
            self.tasks[task].name.clone()
        })
    }

    /// Returns the cluster as far as the trace describes it: the cores, histories and rates that nodes reported. Links and devices are as
    /// fast as tasks really fetched, read and wrote, and labels are as fast as the fastest label was. Devices that were not measured apart
    /// from computing have no limit. Links that transferred nothing large are as fast as their nodes reported.
    #[must_use]
    pub fn platform(&self) -> Platform {
        let workflow = self.build().ok();
        let size = |bytes: fn(&Workflow, usize) -> u64, task| {
            workflow
                .as_ref()
                .map_or(0, |workflow| bytes(workflow, task))
        };
        let all = || self.tasks.iter().enumerate();
        let fetches = self.fetches();
        let read = rate(all().map(|(at, task)| (size(Workflow::input_bytes, at), task.read_ns)));
        let write = rate(all().map(|(at, task)| (size(Workflow::output_bytes, at), task.write_ns)));
        let node = |one: &TraceNode| PlatformNode {
            class: if one.server_cores {
                "SERVER_CORES"
            } else {
                "AFE"
            }
            .to_owned(),
            cores: one.cores,
            memory_bytes: Some(one.memory_bytes).filter(|bytes| *bytes > 0),
            resources: one.resources.clone(),
            programs: one.programs.clone(),
            read_bandwidth: read,
            write_bandwidth: write,
            link_bandwidth: fetches
                .bytes_per_sec
                .or(Some(one.link_bytes_per_sec.max(1))),
            // A fetch waits for the latency of both ends.
            link_latency: Span(fetches.latency.0 / 2),
            link_assumed: one.link_bytes_per_sec,
            device_assumed: Some(one.device_bytes_per_sec),
            watts_milli_assumed: Some(one.watts_milli),
            input_cache_bytes_max: one.input_cache_bytes_max,
            history: one
                .history
                .iter()
                .map(|(kernel, h)| (kernel.clone(), history(h)))
                .collect(),
            replicas: one.replicas.clone(),
            last_turn: one.last_turn,
            ..PlatformNode::default()
        };
        let mut platform = Platform::uniform(0, &PlatformNode::default());
        platform.nodes = self.stores().map(node).collect();
        platform.server_cores = self.nodes.iter().find(|one| one.server_cores).map(node);
        let delays = self
            .tasks
            .iter()
            .map(|task| task.start_ns.saturating_sub(task.sent_ns));
        platform.label_latency = Span(delays.min().unwrap_or(0));
        platform
    }

    /// Returns a trace that predicts this run from an earlier run: every task and transfer takes the time measured in `earlier`. Nodes,
    /// files and policy are those of this run; all measurements are those of `earlier`. The [`Self::workflow`] and [`Self::platform`] of
    /// the result predict this run without its measurements.
    ///
    /// # Errors
    /// The name of the first task that `earlier` does not have.
    pub fn measured_in(&self, earlier: &Self) -> Result<Self, FileProblem> {
        let known: BTreeMap<&str, &TraceTask> = earlier
            .tasks
            .iter()
            .map(|task| (task.name.as_str(), task))
            .collect();
        let task = |task: &TraceTask| {
            let before = known.get(task.name.as_str()).ok_or_else(|| {
                let (task, job) = (task.name.clone(), earlier.job.clone());
                FileProblem::NotInTrace { task, job }
            })?;
            Ok::<_, FileProblem>(TraceTask {
                inputs: task.inputs.clone(),
                selections: task.selections.clone(),
                outputs: task.outputs.clone(),
                pinned: task.pinned,
                cores: task.cores,
                memory_bytes: task.memory_bytes,
                resources: task.resources.clone(),
                kernel: task.kernel.clone(),
                kernel_kind: task.kernel_kind,
                reused_ns: task.reused_ns,
                ..(*before).clone()
            })
        };
        let tasks = self
            .tasks
            .iter()
            .map(task)
            .collect::<Result<_, FileProblem>>()?;
        Ok(Self {
            tasks,
            makespan_ns: earlier.makespan_ns,
            ..self.clone()
        })
    }

    /// Converts run times on the server cores, which were measured on a core of speed `speed`, into run times on a core of speed 1. A
    /// simulation of the result must give the server cores the speed `speed`.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "run times are far from 2^53 ns, 104 days"
    )]
    pub fn with_server_core_speed(mut self, speed: f64) -> Self {
        let server_cores = self.nodes.iter().filter(|one| one.server_cores);
        let server_cores: Vec<u32> = server_cores.map(|one| one.node).collect();
        let there = self.tasks.iter_mut();
        for task in there.filter(|task| server_cores.contains(&task.node)) {
            task.compute_ns = whole(task.compute_ns as f64 * speed);
        }
        self
    }

    /// Returns the storage nodes of the trace, ordered by id.
    fn stores(&self) -> impl Iterator<Item = &TraceNode> {
        let mut stores: Vec<&TraceNode> =
            self.nodes.iter().filter(|one| !one.server_cores).collect();
        stores.sort_by_key(|one| one.node);
        stores.into_iter()
    }

    /// Returns the id that a node of the trace has in [`Self::platform`], where ids have no gaps.
    #[must_use]
    pub fn planned_id(&self, node: u32) -> NodeId {
        let position = self.stores().position(|one| one.node == node);
        let server_cores = || self.platform_server_cores_id();
        position.map_or_else(server_cores, |index| {
            NodeId(u32::try_from(index).unwrap_or(u32::MAX))
        })
    }

    fn platform_server_cores_id(&self) -> NodeId {
        let count = self.stores().count();
        Platform::uniform(count, &PlatformNode::default()).server_cores_id()
    }
}

/// Converts a file that a task wrote to a workflow file.
fn made_file(output: &TraceOutput) -> WorkflowFile {
    WorkflowFile {
        name: output.path.clone(),
        size: output.size_bytes,
        maker: None,
        home: None,
        striped: None,
    }
}

/// Parses the selections of a task's inputs.
fn selections(task: &TraceTask) -> Result<Vec<Selection>, FileProblem> {
    let read = task.inputs.iter().zip(&task.selections);
    let parse = |(file, text): (&String, &String)| {
        text.parse().map_err(|error| FileProblem::Selected {
            task: task.name.clone(),
            file: file.clone(),
            why: SelectionError::to_string(&error),
        })
    };
    read.map(parse).collect()
}

/// Returns the default number of cores of a task.
fn one() -> u32 {
    1
}

/// Returns the rate of all transfers that took time and transferred bytes, in bytes per second; `None` if there were no such transfers.
fn rate(all: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let transferred = all.filter(|&(bytes, ns)| bytes > 0 && ns > 0);
    let (bytes, ns) = transferred.fold((0_u128, 0_u128), |sum, (bytes, ns)| {
        (sum.0 + u128::from(bytes), sum.1 + u128::from(ns))
    });
    let rate = (bytes * 1_000_000_000).checked_div(ns)?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
}

fn kernel(task: &TraceTask) -> Kernel {
    let name = task.kernel.clone();
    match task.kernel_kind {
        TraceKernelKind::Builtin => Kernel::Builtin(name),
        TraceKernelKind::Native => Kernel::Native { input: name },
        TraceKernelKind::Wasm => Kernel::Wasm { input: name },
        TraceKernelKind::Stored => Kernel::Stored { input: name },
        TraceKernelKind::Program => Kernel::Program(name),
        // Traces do not list the stages, and no part of the simulation needs them.
        TraceKernelKind::Pipeline => Kernel::Pipeline(Box::new(Pipeline {
            text: name,
            stages: Vec::new(),
        })),
    }
}

fn history(history: &TraceHistory) -> History {
    History {
        runs: history.runs,
        total_ns: history.total_ns,
        input_bytes: history.input_bytes,
    }
}

/// Returns the line on which one entry of a list of the trace begins; 0 if the line is unknown.
fn line(reader: &JsonReader<'_>, list: &str, at: usize) -> u32 {
    #[derive(Deserialize)]
    struct TraceLists<'a> {
        #[serde(borrow)]
        nodes: Vec<&'a RawValue>,
        #[serde(borrow)]
        files: Vec<&'a RawValue>,
        #[serde(borrow)]
        tasks: Vec<&'a RawValue>,
    }
    let lists: Option<TraceLists<'_>> = serde_json::from_str(reader.text).ok();
    let part = lists.and_then(|lists| {
        let parts = match list {
            "nodes" => lists.nodes,
            "files" => lists.files,
            _ => lists.tasks,
        };
        parts.get(at).copied()
    });
    part.map_or(0, |part| reader.line(part))
}

#[cfg(test)]
mod tests {
    use super::super::{Placement, Simulation};
    use super::*;

    pub(crate) const TRACE: &str = r#"{ "format": "tidemill-trace", "version": 1, "job": "two", "policy": "min-wait",
  "submitted_ns": 1, "makespan_ns": 3000000000,
  "nodes": [
    { "node": 3, "cores": 1, "link_bytes_per_sec": 125000000, "input_cache_bytes_max": 1000,
      "history": { "cut": { "runs": 2, "total_ns": 10, "input_bytes": 20 } } },
    { "node": 1, "cores": 1, "link_bytes_per_sec": 125000000, "input_cache_bytes_max": 1000 } ],
  "files": [ { "path": "/w/raw", "size_bytes": 1000, "node": 3 } ],
  "tasks": [
    { "name": "a", "kernel": "cut", "kernel_kind": "program", "inputs": ["/w/raw"],
      "outputs": [ { "path": "/w/part", "size_bytes": 100 } ], "node": 1, "sent_ns": 0,
      "start_ns": 500, "kernel_start_ns": 1000000500, "end_ns": 2000000000, "compute_ns": 999999500,
      "transferred_bytes": 1000 },
    { "name": "b", "kernel": "sum", "kernel_kind": "builtin", "inputs": ["/w/part"],
      "outputs": [ { "path": "/w/total", "size_bytes": 8 } ], "pinned": 1, "node": 1, "sent_ns": 0,
      "start_ns": 2000000000, "kernel_start_ns": 2000000000, "end_ns": 3000000000,
      "compute_ns": 1000000000, "transferred_bytes": 0 } ] }"#;

    #[test]
    fn trace_gives_job_and_platform_with_dense_ids() {
        let trace = Trace::parse("t.json", TRACE).unwrap();
        let platform = trace.platform();
        assert_eq!(platform.nodes.len(), 2);
        assert_eq!(platform.nodes[1].history["cut"].runs, 2);
        assert_eq!(platform.nodes[0].link_bandwidth, Some(125_000_000));
        assert_eq!(platform.nodes[0].link_latency, Span::from_millis(500));
        assert_eq!(platform.label_latency, Span(500));
        let workflow = trace.workflow().unwrap();
        assert_eq!(workflow.files[0].home, Some(NodeId(1)));
        assert_eq!(workflow.tasks[1].node, Some(NodeId(0)));
        assert_eq!(workflow.files[1].maker, Some((0, 0)));
        let text = serde_json::to_string(&trace).unwrap();
        assert_eq!(Trace::parse("again.json", &text).unwrap(), trace);
    }

    /// Returns a trace with a striped file on both nodes: one task reads a part, one task reads ranges, and one task reads the whole file.
    fn striped() -> Trace {
        let mut trace = Trace::parse("t.json", TRACE).unwrap();
        for node in &mut trace.nodes {
            node.input_cache_bytes_max = 1 << 20;
        }
        // Node 3 holds stripes 0 and 2, and node 1 holds stripe 1 and ten more bytes.
        let raw = &mut trace.files[0];
        (raw.size_bytes, raw.unit_bytes) = (3 * 4096 + 10, 4096);
        let part = |(node, size_bytes)| TracePart { node, size_bytes };
        raw.parts = [(3, 8192), (1, 4106)].map(part).into();
        let reader = |name: &str, node, selection: &str| TraceTask {
            name: name.to_owned(),
            outputs: Vec::new(),
            pinned: Some(node),
            selections: vec![selection.to_owned()],
            ..trace.tasks[0].clone()
        };
        trace.tasks = vec![
            reader("part there", 1, "part 1"),
            reader("part elsewhere", 3, "part 1"),
            reader("part again", 3, "part 1"),
            reader("ranges", 1, "bytes 4090-4099,8192-8192"),
            reader("ranges of a part", 1, "part 0 bytes 0-99"),
            reader("all", 1, ""),
        ];
        trace
    }

    #[test]
    fn striped_trace_moves_only_bytes_read_elsewhere() {
        let trace = striped();
        let text = serde_json::to_string(&trace).unwrap();
        assert_eq!(Trace::parse("again.json", &text).unwrap(), trace);
        let (platform, workflow) = (trace.platform(), trace.workflow().unwrap());
        let read: Vec<u64> = (0..6).map(|task| workflow.input_bytes(task)).collect();
        assert_eq!(read, [4106, 4106, 4106, 11, 100, 3 * 4096 + 10]);
        let simulation = Simulation::new(&platform, &workflow);
        let report = simulation.placement(Placement::Recorded).run().unwrap();
        let transferred = |name: &str| {
            let mut tasks = report.tasks.iter();
            tasks
                .find(|task| task.name == name)
                .unwrap()
                .transferred_bytes
        };
        assert_eq!(transferred("part there"), 0);
        // One of the two tasks fetches the part for both.
        assert_eq!(
            transferred("part elsewhere") + transferred("part again"),
            4106
        );
        assert_eq!(transferred("ranges"), 6 + 1);
        assert_eq!(transferred("ranges of a part"), 100);
        assert_eq!(transferred("all"), 8192);
    }

    #[test]
    fn trace_refuses_impossible_striped_files() {
        let refused = |change: &dyn Fn(&mut Trace)| {
            let mut trace = striped();
            change(&mut trace);
            let text = serde_json::to_string(&trace).unwrap();
            Trace::parse("t.json", &text).unwrap_err().to_string()
        };
        let selection = |text: &'static str| {
            move |trace: &mut Trace| trace.tasks[0].selections = vec![text.to_owned()]
        };
        for (text, reported) in [
            ("part 2", "it has no part 2"),
            ("bytes 0-12298", "it has 12298"),
            ("bytes 5-4", "ends before that"),
            ("bytes 0-18446744073709551615", "is not a range of bytes"),
            ("some", "is not a range of bytes"),
        ] {
            let error = refused(&selection(text));
            assert!(
                error.contains("task `part there` reads `/w/raw`"),
                "{error}"
            );
            assert!(error.contains(reported), "{error}");
        }
        for unit in [0, 1, u64::MAX] {
            let error = refused(&|trace| trace.files[0].unit_bytes = unit);
            assert!(error.contains("stripe unit"), "{error}");
        }
        let error = refused(&|trace| trace.files[0].parts[1].size_bytes = u64::MAX);
        assert!(error.contains("part 1 has"), "{error}");
    }

    #[test]
    fn measured_in_takes_only_times_of_the_other_run() {
        let run = Trace::parse("t.json", TRACE).unwrap();
        let mut earlier = run.clone();
        earlier.policy = "random".to_owned();
        earlier.files[0].node = 1;
        earlier.tasks[0].compute_ns = 7;
        let expected = run.measured_in(&earlier).unwrap();
        assert_eq!(expected.tasks[0].compute_ns, 7);
        assert_eq!(
            (&expected.policy, &expected.files),
            (&run.policy, &run.files)
        );
        earlier.tasks[1].name = "c".to_owned();
        let error = run.measured_in(&earlier).unwrap_err().to_string();
        assert!(error.contains("task `b` is not in the trace"), "{error}");
    }

    #[test]
    fn server_core_speed_scales_times_of_tasks_on_server_cores() {
        let mut run = Trace::parse("t.json", TRACE).unwrap();
        run.nodes[1].server_cores = true;
        let slower = run.clone().with_server_core_speed(2.0);
        assert_eq!(slower.tasks[1].compute_ns, 2 * run.tasks[1].compute_ns);
        run.nodes[1].server_cores = false;
        assert_eq!(run.clone().with_server_core_speed(2.0), run);
    }

    #[test]
    fn invalid_trace_is_reported_with_line() {
        for (from, to, expected) in [
            (
                "\"version\": 1",
                "\"version\": 6",
                "t.json: version 6 of `tidemill-trace`",
            ),
            (
                "[\"/w/part\"]",
                "[\"/w/party\"]",
                "t.json:13: task `b` names file `/w/party`",
            ),
            (
                "[\"/w/raw\"]",
                "[\"/w/total\"]",
                "t.json:9: tasks need each other in a circle",
            ),
            (
                "/w/total",
                "/w/part",
                "t.json:13: task `b` writes `/w/part`, which task `a`",
            ),
            (
                "\"pinned\"",
                "\"pined\"",
                "t.json:14: unknown field `pined`",
            ),
            (
                "\"pinned\"",
                "\"pined\"",
                "t.json:14: unknown field `pined`, expected one of",
            ),
            (
                "\"transferred_bytes\": 1000",
                "\"transferred_bytes\": -1",
                "t.json:12: invalid value",
            ),
        ] {
            let text = TRACE.replacen(from, to, 1);
            assert_ne!(text, TRACE, "nothing was replaced");
            let error = Trace::parse("t.json", &text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}\nexpected {expected}");
        }
    }

    #[test]
    fn duplicate_or_absurd_trace_values_are_reported_with_line() {
        for (from, to, expected) in [
            (
                "{ \"node\": 1, \"cores\": 1",
                "{ \"node\": 3, \"cores\": 1",
                "t.json:6: node 3 is listed twice, first in line 4",
            ),
            (
                "{ \"node\": 1, \"cores\": 1",
                "{ \"node\": 1, \"cores\": 0",
                "t.json:6: `cores` of node 1 must be more than 0",
            ),
            (
                "{ \"node\": 1, \"cores\": 1",
                "{ \"node\": 1, \"cores\": 4000000000",
                "t.json:6: `cores` of node 1 can't be more than 65536",
            ),
            (
                "[ { \"path\": \"/w/raw\", \"size_bytes\": 1000, \"node\": 3 } ]",
                "[ { \"path\": \"/w/raw\", \"size_bytes\": 1000, \"node\": 3 },\n\
                 { \"path\": \"/w/raw\", \"size_bytes\": 5, \"node\": 3 } ]",
                "t.json:8: file `/w/raw` is listed twice, first in line 7",
            ),
            (
                "\"name\": \"b\"",
                "\"name\": \"a\"",
                "t.json:13: there is another task `a` before",
            ),
            (
                "\"name\": \"b\"",
                "\"name\": \"\"",
                "t.json:13: task number 2 has no name",
            ),
            (
                "\"kernel\": \"sum\"",
                "\"kernel\": \"\"",
                "t.json:13: the kernel of task `b` has no name",
            ),
            (
                "\"compute_ns\": 1000000000",
                "\"compute_ns\": 18000000000000000000",
                "t.json:13: the run times of all tasks together are more than 100 years",
            ),
        ] {
            let text = TRACE.replacen(from, to, 1);
            assert_ne!(text, TRACE, "nothing was replaced");
            let error = Trace::parse("t.json", &text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}\nexpected {expected}");
        }
    }
}
