//! Jobs: a script's settings with their types and meanings, and the graph of its tasks.
//!
//! [`Job::parse`] takes a script's text and finds everything that is wrong with it without looking at the
//! array. [`resolve`] looks at the array through the trait [`Outside`] and makes what the dispatcher
//! takes. Neither does any I/O. `docs/job-scripts.md` is the user's page about all this.

mod components;
mod dag;
mod error;
mod expand;
mod mapped;
mod mapper;
pub mod own;
mod path;
pub mod quantity;
mod read;
mod resolve;
pub(crate) mod stack;

pub use components::{MERGE, Made, Map, Mapped, Mapping, PARTIAL};
pub use error::{JobError, JobErrors, Problem, ProgramBy};
pub use expand::{Files, Listed, NoFiles};
pub use mapped::{FolderMap, MappedFile};
pub use mapper::{HEAD_BYTES, PRINTED_BYTES_MAX, Program};
pub use quantity::{duration, size};
pub use resolve::{Awaited, Found, Ids, Look, Outside, awaited, resolve};
pub use stack::MAX_STAGES;

use crate::event::Share;
use crate::folder;
use crate::id::{ElementId, ObjectId};
use crate::label::Limits;
use crate::layout::Selection;
use crate::resources::Needs;
use crate::script::{self, Group, Position};
use crate::surroundings::Surroundings;
use crate::time::Span;
use error::Errors;

/// Most tasks of one job.
pub const MAX_TASKS: usize = 1_000_000;
/// Most different amounts of cores, memory and resources, and folders of hosts, that its tasks may need: each is looked
/// for by itself.
pub const MAX_KINDS: usize = 1000;
/// Most inputs of one task.
pub const MAX_INPUTS: usize = 100_000;
/// Most outputs of one task.
pub const MAX_OUTPUTS: usize = 10_000;
/// Most arguments of one task.
pub const MAX_ARGS: usize = 10_000;
/// Longest argument, in bytes: what Linux gives one argument of a program.
pub const MAX_ARG_BYTES: usize = 128 << 10;
/// Longest name of a job or task and longest part of a path, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 4095;
/// Most times a task may be tried again.
pub const MAX_RETRIES: u32 = 100;
/// Times a task is tried again if the script does not say.
pub const DEFAULT_RETRIES: u32 = 2;
/// Most errors that one report lists.
pub const MAX_ERRORS: usize = 100;

/// A job script that is right in itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The script, as errors name it.
    pub file: String,
    /// Its name.
    pub name: String,
    /// Folder that names are relative to: absolute, without `.`, `..`, `//` or a slash at the end.
    pub workdir: String,
    /// Name of the policy; `None` for the array's default.
    pub policy: Option<String>,
    /// Whether all inputs must exist when it is submitted.
    pub strict: bool,
    /// Whether outputs that exist are replaced by new versions.
    pub replace: bool,
    /// Whether remembered results are used instead of running tasks again.
    pub cache: bool,
    /// A word of its owner's for this submission: a second with the same word is not another job.
    pub once: Option<String>,
    /// Whether what tasks hand to each other is to be in memory.
    pub intermediate_memory: bool,
    /// Its tasks in the script's order.
    pub tasks: Vec<Task>,
    /// Which of them needs which.
    pub dag: Dag,
}

/// One task of a script.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its name, unique in the job.
    pub name: String,
    /// Where it stands in the script.
    pub at: Position,
    /// Its code; for a stack the whole text, which is no file.
    pub kernel: KernelName,
    /// The kernels of a stack; empty if it is none.
    pub stages: Vec<StageName>,
    /// All it reads.
    pub inputs: Vec<Input>,
    /// All it writes; never empty.
    pub outputs: Vec<Output>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Name, as the kernel sees it, of the input that is its standard input.
    pub stdin: Option<String>,
    /// Name, as the kernel sees it, of the output that takes its standard output.
    pub stdout: Option<String>,
    /// The element it must run on.
    pub element: Option<ElementId>,
    /// How often it may be tried again.
    pub retries: u32,
    /// What must be free on its element for it to run.
    pub needs: Needs,
    /// Bounds on a run.
    pub limits: Limits,
    /// What it finds around it.
    pub surroundings: Surroundings,
    /// How long its outputs are kept.
    pub lifetime: Lifetime,
    /// What it is of the task that the script names.
    pub share: Share,
}

impl Task {
    /// What a program of this name may be called on an element's host: in the folders of `path`, else in the element's
    /// own.
    pub fn programs<'a>(&'a self, name: &'a str) -> impl Iterator<Item = String> + 'a {
        let path = self.surroundings.path.iter();
        let path = path.filter(|_| !name.contains('/'));
        let within = path.map(move |folder| format!("{folder}/{name}"));
        within.chain([name.to_owned()])
    }

    /// All its kernels: the stages of a stack, else the one.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelName> {
        let single = self.stages.is_empty().then_some(&self.kernel);
        single
            .into_iter()
            .chain(self.stages.iter().map(|stage| &stage.kernel))
    }
}

/// One kernel of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageName {
    /// Its code.
    pub kernel: KernelName,
    /// Its arguments.
    pub args: Vec<String>,
}

/// A kernel as the script names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    /// The name.
    pub name: String,
    /// The script's `type`, if given.
    pub kind: Option<KernelKind>,
    /// Where it stands in the script.
    pub at: Position,
    /// The file that it is if it is kept in the array; `None` if `kind` rules that out.
    pub file: Option<Input>,
}

/// Where a script says that a kernel comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKind {
    /// Part of every element.
    Builtin,
    /// A `.so` kept in the array.
    Native,
    /// A WebAssembly module kept in the array.
    Wasm,
    /// A program installed on the elements' hosts.
    Program,
    /// An executable kept in the array.
    Stored,
}

/// A file that a task reads, or a [folder] that another task of the job makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The name the kernel sees: relative to `workdir`, or the last part of a path elsewhere. Of a folder it ends in a
    /// slash.
    pub name: String,
    /// Full path in the namespace, without a slash at its end.
    pub path: String,
    /// Where it comes from.
    pub source: Source,
    /// What of it is read.
    pub selection: Selection,
    /// Whether the script says that it is read forward.
    pub pipelined: bool,
    /// The version that the script was read for, if it counts.
    pub version: Option<ObjectId>,
    /// Where it stands in the script.
    pub at: Position,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// No task of the job makes it.
    Outside,
    /// Index of the task that makes it and index among that task's outputs.
    Task(usize, usize),
}

/// A file or [folder] that a task writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name the kernel writes, relative to `workdir`. Of a folder it ends in a slash.
    pub name: String,
    /// Full path in the namespace, without a slash at its end.
    pub path: String,
    /// Whether it is a part of the file of this path.
    pub part: bool,
    /// Whether it is to be in memory: other tasks of the job read it, after which it is removed.
    pub memory: bool,
    /// Where it stands in the script.
    pub at: Position,
}

impl Output {
    /// Whether it is a folder.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        folder::is_folder(&self.name)
    }
}

/// How long a task's outputs are kept (AnalyzeThis §2: lifetime attributes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// Until somebody removes them.
    #[default]
    Keep,
    /// Until the last task of the job that reads them has ended well. What no task reads is kept.
    Used,
    /// As `Used`, but only what is to be in memory: the rest of a task's outputs is kept.
    Handed,
    /// This long after they were sealed.
    After(Span),
}

/// The graph of a job. Tasks are named by their index in [`Job::tasks`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Dag {
    /// For each task those whose outputs it reads, ascending, each once.
    pub dependencies: Vec<Vec<usize>>,
    /// For each task those that read its outputs, ascending, each once.
    pub dependants: Vec<Vec<usize>>,
    /// All tasks, dependencies first, else in the script's order.
    pub order: Vec<usize>,
}

impl Job {
    /// Reads a script for an array without files: patterns mean outputs of the job's own tasks only.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, JobErrors> {
        Self::read(file, text, &NoFiles)
    }

    /// Reads a script, whose patterns mean what is in `files`, and whose components what that is made of.
    ///
    /// `file` is the name that errors give.
    ///
    /// # Errors
    /// Everything that is wrong with the script in itself, in its order; if patterns are, only that.
    pub fn read(file: &str, text: &[u8], files: &dyn Files) -> Result<Self, JobErrors> {
        match script::parse(file, text) {
            Ok(group) => Self::of_group(file, group, files),
            Err(error) => {
                let mut errors = Errors::new(file);
                errors.add(error.at, None, Problem::Script(error.problem));
                Err(errors.into_report())
            }
        }
    }

    /// As [`Self::parse`], of a script that was parsed.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn of_group(file: &str, mut group: Group, files: &dyn Files) -> Result<Self, JobErrors> {
        let mut errors = Errors::new(file);
        expand::expand(&mut group, files, &mut errors);
        if !errors.is_empty() {
            return Err(errors.into_report());
        }
        let mut job = read::job(file, &group, &mut errors);
        job.dag = dag::detect(&mut job.tasks, &mut errors);
        if job.intermediate_memory {
            dag::hand_on(&mut job.tasks);
        }
        if errors.is_empty() {
            Ok(job)
        } else {
            Err(errors.into_report())
        }
    }
}

#[cfg(test)]
mod tests;
