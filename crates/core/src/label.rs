//! The label: the one unit of work. Everything that happens to data in an array is a label that an
//! element executes (DESIGN: one mechanism; LABIOS §3.2).
//!
//! A label is idempotent by its id: an element that sees an id again answers with the recorded outcome.

use crate::folder;
use crate::id::{ElementId, Inode, JobId, LabelId, ObjectId, TaskId};
use crate::layout::{PartOf, Selection};
use crate::resources::Needs;
use crate::surroundings::Surroundings;
use crate::time::{Span, Time};
use std::ops::Range;

/// Who a label works for. Kernels run with these rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Owner {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id.
    pub gid: u32,
}

/// One unit of work for one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Never reused; an element that sees it twice does it once.
    pub id: LabelId,
    /// Whose rights it uses.
    pub owner: Owner,
    /// Labels of the same mini DAG that must have succeeded before: earlier in this batch, or sent to this
    /// element before and perhaps ended already.
    pub after: Vec<LabelId>,
    /// What to do.
    pub operation: Operation,
}

/// What a label does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Run a kernel over inputs and keep its outputs.
    Analyse(Box<Analysis>),
    /// Pull a sealed object from another element and keep it here: under the same id as another copy of it, or as an object
    /// of its own.
    Copy {
        /// What and where it is.
        from: Input,
        /// The id, and the file that it is of.
        to: Output,
        /// What it is a part of.
        part: Option<PartOf>,
    },
    /// Remove objects; it is no error if one is gone already.
    Remove {
        /// Which ones.
        objects: Vec<ObjectId>,
    },
    /// Read sealed objects and compare them with the hashes that were made of them.
    Verify {
        /// The scrub that this is a part of, for the server.
        scrub: u64,
        /// Nobody waits for it: everything else comes first.
        idle: bool,
        /// Which ones.
        objects: Vec<ObjectId>,
    },
}

/// What a label takes up while it is executed. Labels of different lanes don't wait for each other: what a removal
/// frees is needed before a kernel that runs for hours has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Cores.
    Kernel,
    /// No core, though a kernel runs.
    Light,
    /// The network.
    Copy,
    /// The device, for a moment.
    Remove,
    /// The device, for long, where nothing else is done.
    Verify,
}

impl Lane {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Kernel,
        Self::Light,
        Self::Copy,
        Self::Remove,
        Self::Verify,
    ];
}

impl Operation {
    /// What it takes up.
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

    /// What it takes up beyond that while it runs; `None`: nothing that is counted.
    #[must_use]
    pub fn needs(&self) -> Option<&Needs> {
        match self {
            Self::Analyse(analysis) => Some(&analysis.needs),
            Self::Copy { .. } | Self::Remove { .. } | Self::Verify { .. } => None,
        }
    }

    /// The objects that there may be when it has ended well: of each range those from its begin on.
    #[must_use]
    pub fn makes(&self) -> Vec<Range<u64>> {
        match self {
            Self::Analyse(analysis) => {
                let outputs = analysis.outputs.iter();
                outputs.map(Output::objects).collect()
            }
            Self::Copy { to, .. } => std::iter::once(to.objects()).collect(),
            Self::Remove { .. } | Self::Verify { .. } => Vec::new(),
        }
    }
}

/// A task as an element runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The task this label is a try of.
    pub task: TaskId,
    /// Its job.
    pub job: JobId,
    /// The task's name in the job script.
    pub name: String,
    /// The code to run.
    pub kernel: Kernel,
    /// Its arguments, without the kernel's own name.
    pub args: Vec<String>,
    /// Everything it may read.
    pub inputs: Vec<Input>,
    /// Everything it must write.
    pub outputs: Vec<Output>,
    /// Name among `inputs` that becomes its standard input.
    pub stdin: Option<String>,
    /// Name among `outputs` that takes its standard output.
    pub stdout: Option<String>,
    /// Which of `inputs`, by their index, it may be fed through a pipe while the label that makes them runs, one of those that
    /// it comes after.
    pub pipelined: Vec<u32>,
    /// What must be free for it to run, and is taken while it does.
    pub needs: Needs,
    /// Bounds on what it may use.
    pub limits: Limits,
    /// What it finds around it.
    pub surroundings: Surroundings,
}

/// Where a kernel's code comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// A kernel that is part of every element.
    Builtin(String),
    /// A native `.so` with the entry point `start_kernel`, kept in the array (so also an input).
    Native {
        /// Name among the task's inputs.
        input: String,
    },
    /// A WebAssembly module with the same interface, kept in the array (so also an input).
    Wasm {
        /// Name among the task's inputs.
        input: String,
    },
    /// An executable kept in the array (so also an input), such as a script.
    Stored {
        /// Name among the task's inputs.
        input: String,
    },
    /// A program installed on the element's host: an absolute path, or a name to be found in its PATH.
    Program(String),
    /// Kernels one behind the other: each takes what the one before writes, as it comes.
    Stack(Box<Stack>),
}

/// A stack of kernels in one label (LABIOS §3.2: an operation stack). What lies between them is nowhere kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stack {
    /// As the user wrote it.
    pub text: String,
    /// Its kernels in their order, none a stack itself.
    pub stages: Vec<Stage>,
}

/// One kernel of a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stage {
    /// Its code.
    pub kernel: Kernel,
    /// Its arguments, without its own name.
    pub args: Vec<String>,
}

impl Kernel {
    /// The name run-time history is kept under.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Builtin(name) | Self::Program(name) => name,
            Self::Native { input } | Self::Wasm { input } | Self::Stored { input } => input,
            Self::Stack(stack) => &stack.text,
        }
    }

    /// The programs of the element's host that it is made of, in order, each once.
    #[must_use]
    pub fn programs(&self) -> Vec<String> {
        let mut programs = match self {
            Self::Program(name) => vec![name.clone()],
            Self::Stack(stack) => {
                let stages = stack.stages.iter();
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

    /// Whether its code, or that of one of its stages, is this input of its task.
    #[must_use]
    pub fn is_in(&self, name: &str) -> bool {
        match self {
            Self::Builtin(_) | Self::Program(_) => false,
            Self::Native { input } | Self::Wasm { input } | Self::Stored { input } => input == name,
            Self::Stack(stack) => stack.stages.iter().any(|stage| stage.kernel.is_in(name)),
        }
    }
}

/// An input of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The path the kernel sees, relative to its private folder.
    pub name: String,
    /// The exact sealed object.
    pub object: ObjectId,
    /// The element that holds it; another one than the label's own means that it is pulled first.
    pub element: ElementId,
    /// Length in bytes, whatever of it is selected; for an output of an earlier label of the same batch an estimate.
    pub size: u64,
    /// What of it the kernel sees.
    pub selection: Selection,
}

/// An output of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The path the kernel writes, relative to its private folder; of a [folder] it ends in a slash.
    pub name: String,
    /// The id its bytes will have once sealed; of a folder the first of its ids.
    pub object: ObjectId,
    /// The inode its name will have, kept with the object so that names can be rebuilt from elements; of a folder the
    /// first of as many.
    pub inode: Inode,
    /// Its full path in the namespace, without a slash at its end.
    pub path: String,
    /// Whether it is to be in memory, if its element has some for that: the job's tasks hand it on, and nobody else keeps it.
    pub memory: bool,
}

impl Output {
    /// The objects that it may have.
    #[must_use]
    pub fn objects(&self) -> Range<u64> {
        folder::objects(&self.name, self.object)
    }
}

/// Bounds on one run of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Wall-clock time.
    pub time: Span,
    /// Address space, in bytes.
    pub memory_bytes: u64,
    /// All that it may write, in bytes.
    pub output_bytes: u64,
    /// Cores that it is held to, where the element can; 0: a part of one. `None`: the task did not say how many it needs,
    /// and may use what nobody else wants.
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

/// Bytes of a kernel's standard output and of its standard error that are kept, from the end.
pub const TAIL_BYTES_MAX: usize = 16 << 10;

/// What became of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub result: Result<Vec<Sealed>, Failure>,
    /// When its inputs began to be pulled, by the element's clock.
    pub start: Time,
    /// When its kernel began to run, by the element's clock.
    pub kernel_start: Time,
    /// When its outputs were sealed and its inputs hashed, where that pays, by the element's clock: its core is free.
    pub end: Time,
    /// The last part of that time, in which its inputs were hashed.
    pub hashing: Span,
    /// Bytes pulled from other elements.
    pub moved_bytes: u64,
    /// Bytes of all its inputs.
    pub read_bytes: u64,
    /// Bytes of all its outputs.
    pub written_bytes: u64,
    /// Those of them that are in memory only.
    pub in_memory_bytes: u64,
    /// Inputs that its kernel was fed while they were made: its time says nothing of how long it takes.
    pub fed: u32,
    /// User and system time of the kernel.
    pub cpu: Span,
    /// Largest resident set, in bytes.
    pub memory_bytes: u64,
    /// Set if nothing ran: the outputs are those of this earlier task, whose result was remembered.
    pub reused: Option<TaskId>,
    /// Hash of the kernel's code in hexadecimal (blake3); empty for labels without a kernel.
    pub kernel_hash: String,
    /// BLAKE3 of the content of each input in hexadecimal, empty for inputs that were not hashed; no entries at all
    /// if none was.
    pub contents: Vec<String>,
    /// Of a removal that failed: the objects that are gone all the same.
    pub removed: Vec<ObjectId>,
    /// Of objects that were read to be compared: those that are not what they were.
    pub damaged: Vec<Damaged>,
    /// The end of what the kernel wrote to its standard output, at most [`TAIL_BYTES_MAX`] bytes; empty if
    /// that went to an output.
    pub stdout: String,
    /// The end of what the kernel wrote to its standard error, at most [`TAIL_BYTES_MAX`] bytes.
    pub stderr: String,
}

impl Outcome {
    /// Of a label that did nothing else than end so at this time.
    #[must_use]
    pub fn at(time: Time, result: Result<Vec<Sealed>, Failure>) -> Self {
        Self {
            result,
            start: time,
            kernel_start: time,
            end: time,
            hashing: Span(0),
            moved_bytes: 0,
            read_bytes: 0,
            written_bytes: 0,
            in_memory_bytes: 0,
            fed: 0,
            cpu: Span(0),
            memory_bytes: 0,
            reused: None,
            kernel_hash: String::new(),
            contents: Vec::new(),
            removed: Vec::new(),
            damaged: Vec::new(),
            stdout: String::new(),
            stderr: String::new(),
        }
    }
}

impl Outcome {
    /// Puts a line before what the kernel wrote to its standard error, of which the first part goes if it is too much.
    pub fn say(&mut self, line: &str) {
        let most = TAIL_BYTES_MAX.saturating_sub(line.len());
        let mut from = self.stderr.len().saturating_sub(most);
        while !self.stderr.is_char_boundary(from) {
            from += 1;
        }
        self.stderr.replace_range(..from, line);
    }
}

/// An object that is not what was sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Which.
    pub object: ObjectId,
    /// What is wrong with it, for people: a part of a sentence whose subject it is.
    pub what: String,
}

/// An output as it was sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The object's id.
    pub object: ObjectId,
    /// Its final length in bytes.
    pub size: u64,
    /// Where it lies in an output that is a folder; empty for one that is a file.
    pub name: String,
}

impl Sealed {
    /// An output that is a file.
    #[must_use]
    pub fn file(object: ObjectId, size: u64) -> Self {
        let name = String::new();
        Self { object, size, name }
    }
}

/// Why a label failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class of failure, which decides whether another try makes sense.
    pub kind: FailureKind,
    /// What was wrong, for the user, in one sentence.
    pub message: String,
}

/// Classes of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The kernel could not be found, read or loaded.
    Kernel,
    /// It ended with an exit code other than 0.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
    /// It ran out of time.
    Timeout,
    /// It wrote more than it may.
    OutputLimit,
    /// It used more memory than it may.
    MemoryLimit,
    /// It ended well but did not write one of its outputs.
    MissingOutput,
    /// One of its inputs could not be had.
    Input,
    /// The element's device is full or failed.
    Device,
    /// The user cancelled it.
    Cancelled,
    /// An earlier label of its batch failed.
    Dependency,
    /// The element was lost while it ran.
    ElementLost,
    /// The server took it back before it began, for an element that had nothing to do.
    Recalled,
    /// The element does not have what it needs: it is for another one, or waits for one.
    Unfit,
}

impl FailureKind {
    /// Whether trying again, possibly elsewhere, can help.
    #[must_use]
    pub fn retryable(self) -> bool {
        matches!(
            self,
            Self::Exit(_) | Self::Signal(_) | Self::Input | Self::Device | Self::ElementLost
        )
    }
}
