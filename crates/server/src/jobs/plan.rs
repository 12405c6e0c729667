//! The plan of a job, which is the answer to a dry run. A planner calculates with the plan, which therefore contains the facts that the
//! cluster has recorded and omits unknown values. This module writes nothing.

use super::driver_records::TaskDirectories;
use super::results::{self, AssumedOutputs};
use super::submit::{self, FIRST_DRY_RUN_ID, ReadJob};
use super::trace;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_meta::jobs::records::{self, KernelTraffic};
use tidemill_meta::jobs::spec::kind;
use tidemill_meta::jobs::view;
use tidemill_meta::lineage::original_ns;
use tidemill_meta::{Connection, Fault};
use tidemill_model::directory::{is_directory, outputs_of};
use tidemill_model::event::{InputSpec, Origin, TaskRole, TaskSpec};
use tidemill_model::id::{LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Analysis, Label, LabelInput, LabelOutput, Operation};
use tidemill_model::layout::Selection;
use tidemill_model::object::Placed;
use tidemill_wire::v1;

/// State of the cluster that only the driver knows and that the database does not have.
#[derive(Debug)]
pub(crate) struct ClusterView {
    /// Name of the policy that would choose nodes.
    pub(super) policy: String,
    /// Nodes of the cluster as [`trace::nodes`] returns them.
    pub(super) nodes: Vec<v1::Node>,
}

/// Expected properties of an output that does not exist yet.
#[derive(Clone, Copy, Debug)]
struct ExpectedOutput {
    object: ObjectId,
    node: NodeId,
    /// Size of the output in bytes; `None` if unknown.
    size: Option<u64>,
}

/// Returns the plan of a job, as far as values are known; see `SubmitReply.planned`.
pub(super) fn planned(
    db: &Connection,
    read: &ReadJob,
    cluster_view: ClusterView,
    up: &[u32],
) -> Result<v1::JobTrace, Fault> {
    let spec = &read.accepted.spec;
    let mut planner = Planner {
        db,
        read,
        up: up.iter().copied().collect(),
        written: records::kernel_traffic(db, spec.owner.uid)?,
        expected: BTreeMap::new(),
        directories: TaskDirectories::default(),
        presumed: AssumedOutputs::default(),
        reused: BTreeSet::new(),
    };
    // In the order of dependencies: later tasks read the outputs of earlier tasks.
    let mut tasks = BTreeMap::new();
    for &index in &read.job.dag.order {
        if let Some(task) = spec.tasks.get(index) {
            tasks.insert(index, planner.task(task)?);
        }
    }
    let mut files = BTreeMap::new();
    for input in spec.tasks.iter().flat_map(|task| &task.inputs) {
        if let Some(file) = file(db, input)? {
            files.insert(file.path.clone(), file);
        }
    }
    let (tasks, traced) = tasks.into_values().unzip();
    let job = v1::Job {
        name: read.job.name.clone(),
        source: read.source.clone(),
        workdir: read.job.workdir.clone(),
        uid: spec.owner.uid,
        policy: cluster_view.policy,
        tasks_total: u32::try_from(spec.tasks.len()).unwrap_or(u32::MAX),
        tasks,
        ..v1::Job::default()
    };
    Ok(v1::JobTrace {
        job: Some(job),
        nodes: cluster_view.nodes,
        files: files.into_values().collect(),
        tasks: traced,
    })
}

/// Returns the description of an input file that no task of the job writes.
fn file(db: &Connection, input: &InputSpec) -> Result<Option<v1::TracedFile>, Fault> {
    let path = input.path.clone();
    Ok(match input.origin {
        Origin::File(placed) => Some(v1::TracedFile {
            path,
            size: placed.size,
            node: placed.node.0,
            object: placed.object.0,
            layout: trace::layout(db, placed.object.0)?,
        }),
        Origin::Awaited => Some(v1::TracedFile {
            path,
            ..v1::TracedFile::default()
        }),
        Origin::Task(..) => None,
    })
}

struct Planner<'a> {
    db: &'a Connection,
    read: &'a ReadJob,
    up: BTreeSet<u32>,
    written: KernelTraffic,
    expected: BTreeMap<(TaskId, usize), ExpectedOutput>,
    /// Directories that are part of the cached results, by task.
    directories: TaskDirectories,
    presumed: AssumedOutputs,
    /// Tasks whose results are cached.
    reused: BTreeSet<u64>,
}

impl Planner<'_> {
    fn task(&mut self, spec: &TaskSpec) -> Result<(v1::Task, v1::TracedTask), Fault> {
        let cached_result = self.cached_result(spec)?;
        let bytes = self.input_bytes(spec);
        let sizes = match &cached_result {
            Some(found) => self.offered(spec, found),
            None => self.unmade(spec, bytes),
        };
        let mut task = v1::Task {
            task: 0,
            name: spec.name.clone(),
            kernel: spec.kernel.name().to_owned(),
            args: spec.args.clone(),
            selections: view::selections(spec.inputs.iter().map(|one| one.selection.to_string())),
            inputs: spec.inputs.iter().map(|one| one.path.clone()).collect(),
            outputs: spec.outputs.iter().map(|one| one.path.clone()).collect(),
            awaited: spec
                .inputs
                .iter()
                .filter(|one| one.origin == Origin::Awaited)
                .map(|one| one.path.clone())
                .collect(),
            ..v1::Task::default()
        };
        if let Some(found) = cached_result {
            task.reused_task = found.task;
            task.reused_job = records::job_of(self.db, TaskId(found.task))?;
        }
        let code = spec
            .inputs
            .iter()
            .find(|one| one.name == spec.kernel.name());
        let traced = v1::TracedTask {
            kernel_kind: match spec.share {
                TaskRole::Join => trace::JOIN.to_owned(),
                TaskRole::All | TaskRole::Instance | TaskRole::Merge => kind(&spec.kernel).into(),
            },
            kernel_path: code.map_or_else(String::new, |code| code.path.clone()),
            pinned: spec.node.map(|node| node.0),
            needs: Some(v1::Needs::from(&spec.needs)),
            sent: 0,
            run_ns: original_ns(self.db, task.reused_task)?,
            output_sizes: sizes.into_iter().collect::<Option<_>>().unwrap_or_default(),
        };
        Ok((task, traced))
    }

    /// Records the outputs that a task would get from a cached result; returns their sizes.
    fn offered(&mut self, spec: &TaskSpec, found: &v1::CachedResult) -> Vec<Option<u64>> {
        let names = spec.outputs.iter().map(|output| output.name.as_str());
        let files = found.outputs.iter().map(|file| file.name.as_str());
        // The files match the outputs, or the result would not be offered.
        let owners = outputs_of(names, files).unwrap_or_default();
        let mut sizes = Vec::with_capacity(spec.outputs.len());
        for (at, output) in spec.outputs.iter().enumerate() {
            let own = found.outputs.iter().zip(&owners);
            let own = own.filter(|(_, owner)| **owner == at).map(|(file, _)| file);
            let object = object(spec.task, at);
            let size: u64 = own.clone().map(|file| file.size).sum();
            let expected = ExpectedOutput {
                object,
                node: NodeId(own.clone().next().map_or(0, |file| file.node)),
                size: Some(size),
            };
            self.expected.insert((spec.task, at), expected);
            if is_directory(&output.name) {
                let files = own.map(|file| (file.name.as_str(), placed(file)));
                self.directories.put(object, &output.name, files);
            }
            sizes.push(Some(size));
        }
        sizes
    }

    /// Records the expected outputs of a run of a task; returns their sizes.
    fn unmade(&mut self, spec: &TaskSpec, bytes: Option<u64>) -> Vec<Option<u64>> {
        let sizes = self.sizes(spec, bytes);
        for (at, &size) in sizes.iter().enumerate() {
            let expected = ExpectedOutput {
                object: object(spec.task, at),
                node: NodeId(0),
                size,
            };
            self.expected.insert((spec.task, at), expected);
        }
        sizes
    }

    /// Returns the cached result for a task, if the result can be used without reading data first.
    fn cached_result(&mut self, spec: &TaskSpec) -> Result<Option<v1::CachedResult>, Fault> {
        if !self.read.accepted.cache {
            return Ok(None);
        }
        let waits = |input: &InputSpec| input.origin == Origin::Awaited;
        if spec.inputs.iter().any(waits) {
            return Ok(None);
        }
        let label = self.label(spec);
        let up = |node: NodeId| self.up.contains(&node.0);
        let found = results::recall(self.db, &label, &mut self.presumed, &up)?;
        let certain = found.filter(|found| {
            let all_reused = found.if_reused.iter().all(|id| self.reused.contains(id));
            found.contents.is_empty() && all_reused
        });
        if certain.is_some() {
            self.reused.insert(label.id.0);
        }
        Ok(certain)
    }

    /// Returns the label by which a node would run the task.
    fn label(&self, spec: &TaskSpec) -> Label {
        let input = |input: &InputSpec| {
            let (object, node, size) = match input.origin {
                Origin::File(placed) => (placed.object, placed.node, placed.size),
                Origin::Task(task, output) => match self.expected.get(&(task, output)) {
                    Some(known) => (known.object, known.node, known.size.unwrap_or(0)),
                    None => (object(task, output), NodeId(0), 0),
                },
                Origin::Awaited => (ObjectId(FIRST_DRY_RUN_ID), NodeId(0), 0),
            };
            LabelInput {
                name: input.name.clone(),
                object,
                node,
                size,
                selection: input.selection.clone(),
            }
        };
        let outputs = spec.outputs.iter().enumerate();
        let outputs = outputs.map(|(at, output)| LabelOutput {
            name: output.name.clone(),
            object: object(spec.task, at),
            inode: output.inode,
            path: output.path.clone(),
            memory: output.memory,
        });
        let inputs: Vec<LabelInput> = spec.inputs.iter().map(input).collect();
        let job = &self.read.accepted.spec;
        let analysis = Analysis {
            task: spec.task,
            job: job.job,
            name: spec.name.clone(),
            kernel: spec.kernel.clone(),
            args: spec.args.clone(),
            inputs: self.directories.unfold(&inputs),
            outputs: outputs.collect(),
            stdin: spec.stdin.clone(),
            streaming: Vec::new(),
            stdout: spec.stdout.clone(),
            limits: spec.limits,
            runtime_environment: spec.runtime_environment.clone(),
            needs: spec.needs.clone(),
        };
        Label {
            id: LabelId(spec.task.0),
            owner: job.owner,
            after: Vec::new(),
            operation: Operation::Analyse(Box::new(analysis)),
        }
    }

    /// Returns the total size in bytes of all inputs that are not code; `None` if a size is unknown.
    fn input_bytes(&self, spec: &TaskSpec) -> Option<u64> {
        let data = spec.inputs.iter();
        let data = data.filter(|input| !spec.kernel.is_in(&input.name));
        let sizes = data.map(|input| match input.origin {
            Origin::File(placed) => Some(self.selected(placed, &input.selection)),
            Origin::Task(task, output) => {
                let size = self.expected.get(&(task, output))?.size;
                size.map(|size| input.selection.bytes_of(size))
            }
            Origin::Awaited => None,
        });
        sizes.sum()
    }

    /// Returns the number of bytes that a selection covers in a file. A selection beyond the file was refused before.
    fn selected(&self, placed: Placed, selection: &Selection) -> u64 {
        if selection.is_whole() {
            return placed.size;
        }
        let layout = submit::layout(self.db, placed);
        layout.selected(selection).map_or(0, |one| one.length())
    }

    /// Estimates the sizes of a task's outputs: proportional to the inputs as in earlier runs, with equal shares for the outputs.
    fn sizes(&self, spec: &TaskSpec, input_bytes: Option<u64>) -> Vec<Option<u64>> {
        let key = (kind(&spec.kernel).to_owned(), spec.kernel.name().to_owned());
        let known = self.written.get(&key).zip(input_bytes);
        let each = known.and_then(|(&(read, written), bytes)| {
            let all = u128::from(written) * u128::from(bytes);
            // A kernel that read no bytes is expected to write the same number as before.
            let all = all
                .checked_div(u128::from(read))
                .unwrap_or(u128::from(written));
            let each = all.checked_div(spec.outputs.len() as u128)?;
            u64::try_from(each).ok()
        });
        vec![each; spec.outputs.len()]
    }
}

fn placed(file: &v1::Input) -> Placed {
    Placed {
        object: ObjectId(file.object),
        node: NodeId(file.node),
        size: file.size,
    }
}

/// Returns an object id for an expected output, which no stored object has.
fn object(task: TaskId, output: usize) -> ObjectId {
    // Tasks have at most 10 000 outputs.
    ObjectId(FIRST_DRY_RUN_ID + (task.0 - FIRST_DRY_RUN_ID) * (1 << 14) + output as u64)
}
