//! The label: the unit of work. Every operation on data in a cluster is a label that a node executes (LABIOS §3.2). This module defines
//! labels and their outcomes as plain data.
//!
//! A label is idempotent by its id: a node that receives a label id again answers with the recorded outcome.

use crate::directory;
use crate::id::{Inode, JobId, LabelId, NodeId, ObjectId, TaskId};
use crate::layout::{PartOf, Selection};
use crate::resources::Needs;
use crate::runtime_environment::RuntimeEnvironment;
use crate::time::{Span, Time};
use std::ops::Range;

/// Maximum number of inputs of one task.
pub const MAX_INPUTS: usize = 100_000;
/// Longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 4095;

/// User for whom a label is executed. Kernels run with the rights of this user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Owner {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id.
    pub gid: u32,
}

/// One unit of work for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Id of the label, which is never reused. A node that receives the id twice executes the label once.
    pub id: LabelId,
    /// User whose rights the label uses.
    pub owner: Owner,
    /// Labels of the same mini DAG that must have succeeded before this label. They precede this label in its batch, or were sent to this
    /// node earlier and may have ended already.
    pub after: Vec<LabelId>,
    /// Operation to execute.
    pub operation: Operation,
}

/// Operation of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Run a kernel over inputs and store its outputs.
    Analyse(Box<Analysis>),
    /// Fetch a sealed object from another node and store it: as another replica under the same id, or as a separate object.
    Copy {
        /// Source object and its location.
        from: LabelInput,
        /// Id and file of the stored replica.
        to: LabelOutput,
        /// Striped file to which the object belongs as a part.
        part: Option<PartOf>,
        /// Permission bits of the file.
        mode: Option<u32>,
    },
    /// Remove objects. A missing object is no error.
    Remove {
        /// Objects to remove.
        objects: Vec<ObjectId>,
    },
    /// Read sealed objects and compare their content with their recorded hashes.
    Verify {
        /// Scrub to which this label belongs, for the server.
        scrub: u64,
        /// Whether all other work of the node precedes this label, because nobody waits for its result.
        idle: bool,
        /// Objects to verify.
        objects: Vec<ObjectId>,
    },
}

/// Resource that a label occupies while it is executed. Labels of different lanes do not wait for each other: the space that a removal
/// frees is needed before a kernel that runs for hours has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Cores of the node.
    Kernel,
    /// No core of the node, although a kernel runs.
    Light,
    /// Network of the node.
    Copy,
    /// Device of the node, for a moment.
    Remove,
    /// Device of the node, for a long time, while the device has no other work.
    Verify,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 5] = [
        Self::Kernel,
        Self::Light,
        Self::Copy,
        Self::Remove,
        Self::Verify,
    ];
}

impl Operation {
    /// Returns the resource that the operation occupies.
    #[must_use]
    pub fn lane(&self) -> Lane {
        match self {
            Self::Analyse(analysis) if analysis.needs.cores == 0 => Lane::Light,
            Self::Analyse(_) => Lane::Kernel,
            Self::Copy { .. } => Lane::Copy,
            Self::Remove { .. } => Lane::Remove,
            Self::Verify { .. } => Lane::Verify,
        }
    }

    /// Returns the resources that the operation takes in addition to its lane while it runs. `None` means no counted resource.
    #[must_use]
    pub fn needs(&self) -> Option<&Needs> {
        match self {
            Self::Analyse(analysis) => Some(&analysis.needs),
            Self::Copy { .. } | Self::Remove { .. } | Self::Verify { .. } => None,
        }
    }

    /// Returns the objects that may exist after the label has succeeded, as open-ended ranges of ids.
    #[must_use]
    pub fn makes(&self) -> Vec<Range<u64>> {
        match self {
            Self::Analyse(analysis) => {
                let outputs = analysis.outputs.iter();
                outputs.map(LabelOutput::objects).collect()
            }
            Self::Copy { to, .. } => std::iter::once(to.objects()).collect(),
            Self::Remove { .. } | Self::Verify { .. } => Vec::new(),
        }
    }
}

/// Task instance as a node runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// Task that this label tries to run.
    pub task: TaskId,
    /// Job of the task.
    pub job: JobId,
    /// Name of the task in the job script.
    pub name: String,
    /// Kernel code to run.
    pub kernel: Kernel,
    /// Arguments of the kernel, without the kernel's own name.
    pub args: Vec<String>,
    /// All inputs that the kernel may read.
    pub inputs: Vec<LabelInput>,
    /// All outputs that the kernel must write.
    pub outputs: Vec<LabelOutput>,
    /// Name of the input that is the kernel's standard input.
    pub stdin: Option<String>,
    /// Name of the output file that receives the kernel's standard output.
    pub stdout: Option<String>,
    /// Indices of `inputs` that may be streamed through a pipe while the label that writes them runs. The writing label is one of the
    /// labels in `after`.
    pub streaming: Vec<u32>,
    /// Resources that must be free before the kernel runs, and that the kernel occupies while it runs.
    pub needs: Needs,
    /// Limits on the run of the kernel.
    pub limits: Limits,
    /// Environment of the kernel.
    pub runtime_environment: RuntimeEnvironment,
}

/// Location of a kernel's code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// Kernel that is part of every node.
    Builtin(String),
    /// A native `.so` with the entry point `start_kernel`, stored in the cluster (so also an input of the task).
    Native {
        /// Name among the task's inputs.
        input: String,
    },
    /// A WebAssembly module with the same interface, stored in the cluster (so also an input of the task).
    Wasm {
        /// Name among the task's inputs.
        input: String,
    },
    /// An executable stored in the cluster (so also an input of the task), such as a script.
    Stored {
        /// Name among the task's inputs.
        input: String,
    },
    /// Program that is installed on the node's host: an absolute path, or a name that is looked up in PATH.
    Program(String),
    /// Pipeline of kernels: each kernel reads the output of the previous one while it is written.
    Pipeline(Box<Pipeline>),
}

/// Pipeline of kernels in one label (LABIOS §3.2: an operation stack). The data between its kernels is not stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pipeline {
    /// Text of the pipeline as the user wrote it.
    pub text: String,
    /// Kernels in their order; no stage is a pipeline itself.
    pub stages: Vec<Stage>,
}

/// One kernel of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stage {
    /// Code of the kernel.
    pub kernel: Kernel,
    /// Arguments of the kernel, without the kernel's own name.
    pub args: Vec<String>,
}

impl Kernel {
    /// Returns the name under which the kernel's run-time history is stored.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Builtin(name) | Self::Program(name) => name,
            Self::Native { input } | Self::Wasm { input } | Self::Stored { input } => input,
            Self::Pipeline(pipeline) => &pipeline.text,
        }
    }

    /// Returns the programs of the node's host that the kernel uses, sorted, without duplicates.
    #[must_use]
    pub fn programs(&self) -> Vec<String> {
        let mut programs = match self {
            Self::Program(name) => vec![name.clone()],
            Self::Pipeline(pipeline) => {
                let stages = pipeline.stages.iter();
                stages.flat_map(|stage| stage.kernel.programs()).collect()
            }
            Self::Builtin(_) | Self::Native { .. } | Self::Wasm { .. } | Self::Stored { .. } => {
                Vec::new()
            }
        };
        programs.sort_unstable();
        programs.dedup();
        programs
    }

    /// Returns whether the code of the kernel, or of one of its stages, is the task's input `name`.
    #[must_use]
    pub fn is_in(&self, name: &str) -> bool {
        match self {
            Self::Builtin(_) | Self::Program(_) => false,
            Self::Native { input } | Self::Wasm { input } | Self::Stored { input } => input == name,
            Self::Pipeline(pipeline) => {
                pipeline.stages.iter().any(|stage| stage.kernel.is_in(name))
            }
        }
    }
}

/// Input of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelInput {
    /// Path that the kernel sees, relative to its private directory.
    pub name: String,
    /// Sealed object that the input refers to.
    pub object: ObjectId,
    /// Node that holds the object. A label on another node fetches the object first.
    pub node: NodeId,
    /// Size of the whole object in bytes, whatever the selection; an estimate if an earlier label of the same batch writes the object.
    pub size: u64,
    /// Selection that the kernel sees.
    pub selection: Selection,
}

/// Output of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelOutput {
    /// Path that the kernel writes, relative to its private directory; the path of a [directory] ends in a slash.
    pub name: String,
    /// Object id of the output once it is sealed; for a directory, the first of its ids.
    pub object: ObjectId,
    /// Inode that the output's name will have. It is stored with the object so that names can be rebuilt from nodes. For a directory, it is
    /// the first inode of a range of the same length as the ids.
    pub inode: Inode,
    /// Full path of the output in the namespace, without a slash at its end.
    pub path: String,
    /// Whether the output is to be stored in memory if its node has a memory tier: only the job's tasks read the output, and it is deleted
    /// after the job.
    pub memory: bool,
}

impl LabelOutput {
    /// Returns the object ids that the output may use.
    #[must_use]
    pub fn objects(&self) -> Range<u64> {
        directory::objects(&self.name, self.object)
    }
}

/// Limits on one run of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum wall-clock time of the run.
    pub time: Span,
    /// Maximum address space of the kernel, in bytes.
    pub memory_bytes: u64,
    /// Maximum size of all outputs together, in bytes.
    pub output_bytes: u64,
    /// Maximum number of cores, enforced where the node can do so; 0 means a fraction of one core. `None` means that the task named no
    /// number and may use all idle cores.
    pub cores: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: Span::from_secs(3600),
            memory_bytes: 8 << 30,
            output_bytes: 64 << 30,
            cores: None,
        }
    }
}

/// Maximum number of last bytes that are stored of a kernel's standard output and of its standard error, each.
pub const TAIL_BYTES_MAX: usize = 16 << 10;

/// Outcome of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Sealed outputs of the label, or its failure.
    pub result: Result<Vec<SealedOutput>, Failure>,
    /// Time at which the fetch of the label's inputs began, by the node's clock.
    pub start: Time,
    /// Time at which the label's kernel began to run, by the node's clock.
    pub kernel_start: Time,
    /// Time at which the outputs were sealed, the inputs hashed (if hashing pays) and the core freed, by the node's clock.
    pub end: Time,
    /// Time before `end` in which the inputs were hashed.
    pub hashing: Span,
    /// Bytes that the label fetched from other nodes.
    pub transferred_bytes: u64,
    /// Size of all inputs of the label, in bytes.
    pub read_bytes: u64,
    /// Size of all outputs of the label, in bytes.
    pub written_bytes: u64,
    /// Size of the outputs that are stored in memory only, in bytes.
    pub in_memory_bytes: u64,
    /// Number of inputs that were streamed to the kernel while they were written. If the number is not zero, the kernel's run time includes
    /// waiting for the writers.
    pub streamed: u32,
    /// User and system time of the kernel.
    pub cpu: Span,
    /// Largest resident set of the kernel, in bytes.
    pub memory_bytes: u64,
    /// Earlier task whose cached result is returned, if no kernel ran.
    pub reused: Option<TaskId>,
    /// Hash of the kernel's code in hexadecimal (blake3); empty for labels without a kernel.
    pub kernel_hash: String,
    /// BLAKE3 of the content of each input in hexadecimal; empty text for an input that was not hashed. No entries if no input was hashed.
    pub contents: Vec<String>,
    /// Objects that were deleted although the removal failed.
    pub removed: Vec<ObjectId>,
    /// Objects that a verification found to be corrupt.
    pub corrupt: Vec<Corrupt>,
    /// Last bytes of the kernel's standard output, at most [`TAIL_BYTES_MAX`]; empty if an output file received the standard output.
    pub stdout: String,
    /// Last bytes of the kernel's standard error, at most [`TAIL_BYTES_MAX`].
    pub stderr: String,
}

impl Outcome {
    /// Returns the outcome of a label that ended at `time` without any other effect.
    #[must_use]
    pub fn at(time: Time, result: Result<Vec<SealedOutput>, Failure>) -> Self {
        Self {
            result,
            start: time,
            kernel_start: time,
            end: time,
            hashing: Span(0),
            transferred_bytes: 0,
            read_bytes: 0,
            written_bytes: 0,
            in_memory_bytes: 0,
            streamed: 0,
            cpu: Span(0),
            memory_bytes: 0,
            reused: None,
            kernel_hash: String::new(),
            contents: Vec::new(),
            removed: Vec::new(),
            corrupt: Vec::new(),
            stdout: String::new(),
            stderr: String::new(),
        }
    }
}

impl Outcome {
    /// Prepends a line to the kernel's standard error. Drops the beginning of the standard error if the text becomes too long.
    pub fn say(&mut self, line: &str) {
        let most = TAIL_BYTES_MAX.saturating_sub(line.len());
        let mut from = self.stderr.len().saturating_sub(most);
        while !self.stderr.is_char_boundary(from) {
            from += 1;
        }
        self.stderr.replace_range(..from, line);
    }
}

/// Object whose content differs from its sealed content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// Id of the object.
    pub object: ObjectId,
    /// Description of the corruption for people: a predicate whose subject is the object.
    pub what: String,
}

/// Sealed output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedOutput {
    /// Id of the object.
    pub object: ObjectId,
    /// Size of the sealed output, in bytes.
    pub size: u64,
    /// Path within an output directory; empty for an output that is a file.
    pub name: String,
}

impl SealedOutput {
    /// Returns an output that is a file.
    #[must_use]
    pub fn file(object: ObjectId, size: u64) -> Self {
        let name = String::new();
        Self { object, size, name }
    }
}

/// Reason for the failure of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Class of failure, which decides whether a retry makes sense.
    pub kind: FailureKind,
    /// Explanation for the user, in one sentence.
    pub message: String,
}

/// Classes of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The kernel could not be found, read or loaded.
    Kernel,
    /// The kernel ended with an exit code other than 0.
    Exit(i32),
    /// A signal ended the kernel.
    Signal(i32),
    /// The kernel ran out of time.
    Timeout,
    /// The kernel wrote more bytes than its limit.
    OutputLimit,
    /// The kernel used more memory than its limit.
    MemoryLimit,
    /// The kernel succeeded but did not write one of its outputs.
    MissingOutput,
    /// An input of the label could not be read or fetched.
    Input,
    /// The node's device is full or failed.
    Device,
    /// The user cancelled the task.
    Cancelled,
    /// An earlier label that this label depends on failed.
    Dependency,
    /// The node was lost while the label ran.
    NodeLost,
    /// The server rescheduled the label before it began, for an idle node.
    Rescheduled,
    /// The node lacks a resource that the label needs: the resource belongs to another node, or the node waits for the resource.
    Unfit,
}

impl FailureKind {
    /// Returns whether a retry of the label, possibly on another node, can help.
    #[must_use]
    pub fn retryable(self) -> bool {
        matches!(
            self,
            Self::Exit(_) | Self::Signal(_) | Self::Input | Self::Device | Self::NodeLost
        )
    }
}
