//! The stored form of a task: JSON in the column `task.spec`, described in `docs/formats-server.md`.

use super::output_paths::{Anchors, split};
use crate::Fault;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_lang::job::Lifetime;
use tidemill_model::directory;
use tidemill_model::event::{InputSpec, Origin, OutputSpec, RecoveredState, TaskRole, TaskSpec};
use tidemill_model::id::{Inode, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Kernel, Limits, Pipeline, Stage};
use tidemill_model::object::Placed;
use tidemill_model::resources::Needs;
use tidemill_model::runtime_environment::RuntimeEnvironment;
use tidemill_model::time::Span;

/// A task as stored in the database.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredTask {
    pub(crate) name: String,
    /// Kind of the kernel, such as `native` or `pipeline`; empty for a task that was recovered without a log.
    pub kernel_kind: String,
    /// Name of the kernel within its kind; for a pipeline, the text of the pipeline.
    pub kernel: String,
    pub(crate) args: Vec<String>,
    /// Kernels of the task's pipeline, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stages: Vec<StoredStage>,
    /// Inputs of the task in the order of the task's spec.
    pub inputs: Vec<StoredInput>,
    /// Outputs of the task, in the order by which `StoredOrigin::Task` numbers them.
    pub outputs: Vec<StoredOutput>,
    stdin: Option<String>,
    stdout: Option<String>,
    /// Number of the node on which the task must run; `None` if the script names no node.
    pub node: Option<u32>,
    retries: u32,
    time_ns_max: u64,
    memory_bytes_max: u64,
    output_bytes_max: u64,
    /// Number of cores that the task requires; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cores: Option<u32>,
    #[serde(default, skip_serializing_if = "is_zero")]
    memory_bytes: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    resources: BTreeMap<String, u64>,
    lifetime: StoredLifetime,
    /// Existing directories in which the task's outputs are created.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub anchors: Anchors,
    #[serde(default, skip_serializing_if = "RuntimeEnvironment::is_empty")]
    #[serde(with = "StoredRuntimeEnvironment")]
    pub(crate) runtime_environment: RuntimeEnvironment,
    /// Role of the task in the script's task that it belongs to; by default the script's task itself.
    #[serde(default, skip_serializing_if = "StoredShare::is_all")]
    pub share: StoredShare,
}

/// Stored form of `TaskRole`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredShare {
    /// The whole task that the script names.
    #[default]
    All,
    /// A task instance, which runs on the node that stores its first input.
    Instance,
    /// The join of the parts that task instances wrote into striped files; no kernel runs.
    Join,
    /// The merge of the task instances' results by a kernel.
    Merge,
}

impl StoredShare {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RuntimeEnvironment")]
struct StoredRuntimeEnvironment {
    environment: BTreeMap<String, String>,
    path: Vec<String>,
    directories: Vec<String>,
}

/// Returns a path for display: the path of a directory output ends with a slash, as the output's name does.
pub fn shown(path: String, name: &str) -> String {
    if directory::is_directory(name) {
        path + "/"
    } else {
        path
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredStage {
    kernel_kind: String,
    kernel: String,
    args: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredLifetime {
    Keep,
    Used,
    Intermediate,
    AfterNs(u64),
}

/// An input of a task as stored in the database.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredInput {
    /// Name of the input that the kernel sees.
    pub name: String,
    /// Full path of the input in the namespace.
    pub path: String,
    /// Origin of the input: an existing version, an awaited file, or an output of another task.
    pub origin: StoredOrigin,
    /// Selection of bytes of the input, in the text form of `Selection`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selection: String,
    /// Whether the task may read the input while another task still writes it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub streaming: bool,
}

/// Stored form of `Origin`, the origin of an input.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredOrigin {
    /// A version that existed at the submission or was found for an awaited file since; the task reads exactly this version.
    File {
        /// Id of the version's object.
        object: u64,
        /// Number of the node that stored the version when the version was chosen.
        node: u32,
        /// Size of the version in bytes.
        size: u64,
    },
    /// A file that did not exist when the job was submitted; the job waits until it exists.
    Awaited,
    /// An output of another task of the same job.
    Task {
        /// Id of the task that writes the output.
        task: u64,
        /// Index of the output among the outputs of that task, from 0.
        output: usize,
    },
}

/// An output of a task as stored in the database.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredOutput {
    /// Name of the output that the kernel writes; the name of a directory ends with a slash.
    pub name: String,
    pub(crate) path: String,
    pub(crate) ino: u64,
    /// Whether the output is one part of the file at the path.
    #[serde(default, skip_serializing_if = "is_false")]
    pub part: bool,
    /// Whether the output is to be stored in memory.
    #[serde(default, skip_serializing_if = "is_false")]
    pub memory: bool,
}

/// Name of the column with a stored task, for errors about a corrupt database.
pub const SPEC: &str = "the spec of task";

/// Returns the dispatcher's name of a path that a job waits for. The name includes the job's owner, because another user may not be able to
/// read the same file.
pub fn awaited_key(uid: u32, path: &str) -> String {
    format!("{uid}:{path}")
}

impl StoredTask {
    /// Returns the stored form of a task; of the job's anchors, it contains those for the directories of the task's outputs.
    pub fn new(task: &TaskSpec, lifetime: Lifetime, anchors: &Anchors) -> Self {
        let directories = task.outputs.iter().map(|output| split(&output.path).0);
        let anchors = directories
            .filter_map(|directory| Some((directory.to_owned(), *anchors.get(directory)?)));
        let stages = match &task.kernel {
            Kernel::Pipeline(pipeline) => pipeline.stages.as_slice(),
            _ => &[],
        };
        let stage = |stage: &Stage| StoredStage {
            kernel_kind: kind(&stage.kernel).into(),
            kernel: stage.kernel.name().into(),
            args: stage.args.clone(),
        };
        Self {
            name: task.name.clone(),
            kernel_kind: kind(&task.kernel).into(),
            kernel: task.kernel.name().into(),
            args: task.args.clone(),
            stages: stages.iter().map(stage).collect(),
            inputs: task.inputs.iter().map(input_to_store).collect(),
            outputs: task.outputs.iter().map(output_to_store).collect(),
            stdin: task.stdin.clone(),
            stdout: task.stdout.clone(),
            node: task.node.map(|node| node.0),
            retries: task.retries,
            time_ns_max: task.limits.time.0,
            memory_bytes_max: task.limits.memory_bytes,
            output_bytes_max: task.limits.output_bytes,
            cores: task.limits.cores,
            memory_bytes: task.needs.memory_bytes,
            resources: task.needs.named.clone(),
            lifetime: match lifetime {
                Lifetime::Keep => StoredLifetime::Keep,
                Lifetime::Used => StoredLifetime::Used,
                Lifetime::Intermediate => StoredLifetime::Intermediate,
                Lifetime::After(span) => StoredLifetime::AfterNs(span.0),
            },
            anchors: anchors.collect(),
            runtime_environment: task.runtime_environment.clone(),
            share: match task.share {
                TaskRole::All => StoredShare::All,
                TaskRole::Instance => StoredShare::Instance,
                TaskRole::Join => StoredShare::Join,
                TaskRole::Merge => StoredShare::Merge,
            },
        }
    }

    /// Returns a task that has ended and that is known only from its nodes' lineage records.
    pub fn ended(name: String, kernel: String, args: Vec<String>) -> Self {
        Self {
            name,
            kernel_kind: String::new(),
            kernel,
            args,
            stages: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            stdin: None,
            stdout: None,
            node: None,
            retries: 0,
            time_ns_max: 0,
            memory_bytes_max: 0,
            output_bytes_max: 0,
            cores: None,
            memory_bytes: 0,
            resources: BTreeMap::new(),
            lifetime: StoredLifetime::Keep,
            anchors: Anchors::new(),
            runtime_environment: RuntimeEnvironment::default(),
            share: StoredShare::All,
        }
    }

    /// Parses the stored text of a task.
    pub fn parse(text: &str, task: TaskId) -> Result<Self, Fault> {
        serde_json::from_str(text)
            .map_err(|error| Fault::Corrupt(format!("{SPEC} {task}: {error}")))
    }

    /// Returns the task instances that wrote the parts of the task's outputs.
    pub fn instances(&self) -> BTreeSet<TaskId> {
        // The first input of a task that joins striped files is the input that its task instances divide.
        let parts = self
            .inputs
            .iter()
            .skip((self.share == StoredShare::Join).into());
        let instances = parts.filter_map(|input| match input.origin {
            StoredOrigin::Task { task, .. } => Some(TaskId(task)),
            StoredOrigin::File { .. } | StoredOrigin::Awaited => None,
        });
        // Each task instance appears once for every output.
        instances.collect()
    }

    /// Returns whether any output of the task is a directory.
    pub fn has_directory(&self) -> bool {
        let mut outputs = self.outputs.iter();
        outputs.any(|output| directory::is_directory(&output.name))
    }

    /// Returns the time for which the task's outputs are kept.
    pub fn lifetime(&self) -> Lifetime {
        match self.lifetime {
            StoredLifetime::Keep => Lifetime::Keep,
            StoredLifetime::Used => Lifetime::Used,
            StoredLifetime::Intermediate => Lifetime::Intermediate,
            StoredLifetime::AfterNs(ns) => Lifetime::After(Span(ns)),
        }
    }

    /// Returns the resources that a node must have free to run the task.
    pub fn needs(&self) -> Needs {
        Needs {
            cores: self.cores.unwrap_or(1),
            memory_bytes: self.memory_bytes,
            named: self.resources.clone(),
        }
    }

    /// Returns the task in the form for the dispatcher; `None` if this release does not know the task's kind of kernel.
    pub fn task_spec(
        &self,
        task: TaskId,
        uid: u32,
        ended: Option<RecoveredState>,
    ) -> Option<TaskSpec> {
        let kernel = if self.kernel_kind == PIPELINE {
            let stages = self.stages.iter().map(|stage| {
                let kernel = single(&stage.kernel_kind, &stage.kernel)?;
                let args = stage.args.clone();
                Some(Stage { kernel, args })
            });
            Kernel::Pipeline(Box::new(Pipeline {
                text: self.kernel.clone(),
                stages: stages.collect::<Option<_>>()?,
            }))
        } else {
            single(&self.kernel_kind, &self.kernel)?
        };
        Some(TaskSpec {
            needs: self.needs(),
            programs: self.runtime_environment.wanted(&kernel),
            task,
            name: self.name.clone(),
            kernel,
            args: self.args.clone(),
            inputs: self
                .inputs
                .iter()
                .map(|input| input_from_store(input, uid))
                .collect(),
            outputs: self.outputs.iter().map(output_from_store).collect(),
            stdin: self.stdin.clone(),
            stdout: self.stdout.clone(),
            node: self.node.map(NodeId),
            retries: self.retries,
            limits: Limits {
                time: Span(self.time_ns_max),
                memory_bytes: self.memory_bytes_max,
                output_bytes: self.output_bytes_max,
                cores: self.cores,
            },
            runtime_environment: self.runtime_environment.clone(),
            share: match self.share {
                StoredShare::All => TaskRole::All,
                StoredShare::Instance => TaskRole::Instance,
                StoredShare::Join => TaskRole::Join,
                StoredShare::Merge => TaskRole::Merge,
            },
            ended,
        })
    }
}

/// Name of the kernel kind of a pipeline.
const PIPELINE: &str = "pipeline";

/// Returns the name of a kernel's kind.
pub fn kind(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Builtin(_) => "builtin",
        Kernel::Native { .. } => "native",
        Kernel::Wasm { .. } => "wasm",
        Kernel::Stored { .. } => "stored",
        Kernel::Program(_) => "program",
        Kernel::Pipeline(_) => PIPELINE,
    }
}

fn single(kind: &str, name: &str) -> Option<Kernel> {
    let name = name.to_owned();
    Some(match kind {
        "builtin" => Kernel::Builtin(name),
        "native" => Kernel::Native { input: name },
        "wasm" => Kernel::Wasm { input: name },
        "stored" => Kernel::Stored { input: name },
        "program" => Kernel::Program(name),
        _ => return None,
    })
}

fn input_to_store(input: &InputSpec) -> StoredInput {
    let origin = match input.origin {
        Origin::File(Placed { object, node, size }) => StoredOrigin::File {
            object: object.0,
            node: node.0,
            size,
        },
        Origin::Awaited => StoredOrigin::Awaited,
        Origin::Task(task, output) => StoredOrigin::Task {
            task: task.0,
            output,
        },
    };
    StoredInput {
        name: input.name.clone(),
        path: input.path.clone(),
        origin,
        selection: input.selection.to_string(),
        streaming: input.streaming,
    }
}

fn input_from_store(input: &StoredInput, uid: u32) -> InputSpec {
    let (origin, path) = match input.origin {
        StoredOrigin::File { object, node, size } => {
            let placed = Placed {
                object: ObjectId(object),
                node: NodeId(node),
                size,
            };
            (Origin::File(placed), input.path.clone())
        }
        StoredOrigin::Awaited => (Origin::Awaited, awaited_key(uid, &input.path)),
        StoredOrigin::Task { task, output } => {
            (Origin::Task(TaskId(task), output), input.path.clone())
        }
    };
    InputSpec {
        name: input.name.clone(),
        path,
        origin,
        // The selection was checked when it was written.
        selection: input.selection.parse().unwrap_or_default(),
        streaming: input.streaming,
    }
}

fn output_to_store(output: &OutputSpec) -> StoredOutput {
    StoredOutput {
        name: output.name.clone(),
        path: output.path.clone(),
        ino: output.inode.0,
        part: output.part,
        memory: output.memory,
    }
}

fn output_from_store(output: &StoredOutput) -> OutputSpec {
    OutputSpec {
        name: output.name.clone(),
        path: output.path.clone(),
        inode: Inode(output.ino),
        part: output.part,
        memory: output.memory,
    }
}
