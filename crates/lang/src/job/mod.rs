//! Jobs: a script's settings with their types and meanings, and the graph of its tasks.
//!
//! [`Job::parse`] takes a script's text, TOML or libconfig, and finds all errors that can be found without access to the cluster. [`resolve`] accesses the cluster
//! through the trait [`Outside`] and returns the job that the dispatcher takes. Neither does any I/O. `docs/job-files.md` is the user's
//! page about jobs.

mod dag;
mod error;
mod expand;
mod instances;
mod mapped;
mod mapper;
mod path;
pub(crate) mod pipeline;
mod read;
mod resolve;
#[cfg(test)]
mod schema;

pub use error::{JobError, JobErrors, JobProblem, ProgramBy};
pub use expand::{DirectoryLookup, ListedName, NoFiles};
pub(crate) use instances::NUMBERS as INSTANCE_NUMBERS;
pub use instances::{ExternalInput, MERGE, MappedSelection, MapperResult, Mapping, PARTIAL};
pub use mapped::{DirectoryMap, MappedFile};
pub use mapper::{HEAD_BYTES, MapperProgram, PRINTED_BYTES_MAX};
pub use pipeline::MAX_STAGES;
pub use resolve::{FutureInput, JobIds, Outside, PathLookup, ResolvedFile, awaited, resolve};

use crate::script::{self, ErrorNames, Position, SettingGroup};
use error::Errors;
use tidemill_model::directory;
use tidemill_model::event::TaskRole;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::label::Limits;
use tidemill_model::layout::Selection;
use tidemill_model::resources::Needs;
use tidemill_model::runtime_environment::RuntimeEnvironment;
use tidemill_model::time::Span;

/// Maximum number of tasks of one job.
pub const MAX_TASKS: usize = 1_000_000;
/// Maximum number of different amounts of cores, memory and resources, and of directories of hosts, that its tasks may need: each causes a
/// search of its own.
pub const MAX_KINDS: usize = 1000;
/// Maximum number of outputs of one task.
pub const MAX_OUTPUTS: usize = 10_000;
/// Maximum number of arguments of one task.
pub const MAX_ARGS: usize = 10_000;
/// Longest argument, in bytes: the limit of Linux for one argument of a program.
pub const MAX_ARG_BYTES: usize = 128 << 10;
/// Longest name of a job or task and longest part of a path, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Maximum number of retries of a task.
pub const MAX_RETRIES: u32 = 100;
/// Default number of retries of a task.
pub const DEFAULT_RETRIES: u32 = 2;
/// Maximum number of errors that one report lists.
pub const MAX_ERRORS: usize = 100;

/// Job script without errors in itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the script in errors.
    pub file: String,
    /// Name of the job.
    pub name: String,
    /// Directory to which names are relative: absolute, without `.`, `..`, `//` or a slash at the end.
    pub workdir: String,
    /// Name of the policy; `None` for the cluster's default.
    pub policy: Option<String>,
    /// Whether all inputs must exist when it is submitted.
    pub strict: bool,
    /// Whether existing outputs are replaced by new versions.
    pub replace: bool,
    /// Whether cached results are used instead of running tasks again.
    pub cache: bool,
    /// Submission id chosen by the owner: a second submission with the same id does not create another job.
    pub submission_id: Option<String>,
    /// Whether intermediate files of the job are to be stored in memory.
    pub intermediate_memory: bool,
    /// Tasks in the script's order.
    pub tasks: Vec<ScriptTask>,
    /// Dependencies between the tasks.
    pub dag: Dag,
}

/// One task of a script.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptTask {
    /// Name, unique in the job.
    pub name: String,
    /// Position in the script.
    pub at: Position,
    /// Code of the task; for a pipeline the whole text, which is no file.
    pub kernel: KernelName,
    /// Kernels of a pipeline; empty if the kernel is none.
    pub stages: Vec<StageName>,
    /// All inputs.
    pub inputs: Vec<ScriptInput>,
    /// All outputs; never empty.
    pub outputs: Vec<ScriptOutput>,
    /// Arguments.
    pub args: Vec<String>,
    /// Name, as the kernel sees it, of the input that is its standard input.
    pub stdin: Option<String>,
    /// Name, as the kernel sees it, of the output that takes its standard output.
    pub stdout: Option<String>,
    /// Node on which the task must run.
    pub node: Option<NodeId>,
    /// Maximum number of retries.
    pub retries: u32,
    /// Resources that must be free on its node for it to run.
    pub needs: Needs,
    /// Bounds on a run.
    pub limits: Limits,
    /// Environment of the task.
    pub runtime_environment: RuntimeEnvironment,
    /// Lifetime of its outputs.
    pub lifetime: Lifetime,
    /// Role of this task within the task that the script names.
    pub share: TaskRole,
}

impl ScriptTask {
    /// Returns the possible names of a program on a node's host: in the directories of `path`, and then in the node's own path.
    pub fn programs<'a>(&'a self, name: &'a str) -> impl Iterator<Item = String> + 'a {
        let path = self.runtime_environment.path.iter();
        let path = path.filter(|_| !name.contains('/'));
        let within = path.map(move |directory| format!("{directory}/{name}"));
        within.chain([name.to_owned()])
    }

    /// Returns all its kernels: the stages of a pipeline, or the single kernel.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelName> {
        let single = self.stages.is_empty().then_some(&self.kernel);
        single
            .into_iter()
            .chain(self.stages.iter().map(|stage| &stage.kernel))
    }
}

/// One kernel of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageName {
    /// Code of the kernel.
    pub kernel: KernelName,
    /// Arguments of the kernel.
    pub args: Vec<String>,
}

/// Kernel as the script names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    /// Name of the kernel.
    pub name: String,
    /// `type` of the script, if given.
    pub kind: Option<KernelKind>,
    /// Position in the script.
    pub at: Position,
    /// File of a kernel that is stored in the cluster; `None` if `kind` excludes such a file.
    pub file: Option<ScriptInput>,
}

/// Type of a kernel in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKind {
    /// Kernel that is part of every node.
    Builtin,
    /// A `.so` stored in the cluster.
    Native,
    /// A WebAssembly module stored in the cluster.
    Wasm,
    /// A program installed on the nodes' hosts.
    Program,
    /// An executable stored in the cluster.
    Stored,
}

/// File that a task reads, or a [directory] that another task of the job writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptInput {
    /// Name that the kernel sees: relative to `workdir`, or the last part of a path elsewhere. The name of a directory ends in a slash.
    pub name: String,
    /// Full path in the namespace, without a slash at its end.
    pub path: String,
    /// Origin of the input.
    pub source: InputOrigin,
    /// Selection of the input that is read.
    pub selection: Selection,
    /// Whether the script declares that the input is read forward.
    pub streaming: bool,
    /// Version for which the script was read, if it matters.
    pub version: Option<ObjectId>,
    /// Position in the script.
    pub at: Position,
}

/// Origin of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputOrigin {
    /// File that no task of the job writes.
    Outside,
    /// Index of the task that writes the input, and index among the outputs of that task.
    Task(usize, usize),
}

/// File or [directory] that a task writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptOutput {
    /// Name that the kernel writes, relative to `workdir`. The name of a directory ends in a slash.
    pub name: String,
    /// Full path in the namespace, without a slash at its end.
    pub path: String,
    /// Whether the output is a part of the file at this path.
    pub part: bool,
    /// Whether the output is to be stored in memory: other tasks of the job read it, and it is removed afterwards.
    pub memory: bool,
    /// Position in the script.
    pub at: Position,
}

impl ScriptOutput {
    /// Returns whether the output is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        directory::is_directory(&self.name)
    }
}

/// Lifetime of a task's outputs (AnalyzeThis §2: lifetime attributes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// Until a user removes them.
    #[default]
    Keep,
    /// Until the last task of the job that reads them has succeeded. Outputs that no task reads are kept.
    Used,
    /// Like `Used` for outputs that are to be stored in memory; all other outputs are kept.
    Intermediate,
    /// For this time after they were sealed.
    After(Span),
}

/// Graph of a job. Tasks are named by their index in [`Job::tasks`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Dag {
    /// For each task, the tasks whose outputs it reads, ascending, each once.
    pub dependencies: Vec<Vec<usize>>,
    /// For each task, the tasks that read its outputs, ascending, each once.
    pub dependants: Vec<Vec<usize>>,
    /// All tasks, dependencies first, else in the script's order.
    pub order: Vec<usize>,
}

impl Job {
    /// Reads a script for a cluster without files: patterns match only outputs of the job's own tasks.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, JobErrors> {
        Self::read(file, text, &NoFiles)
    }

    /// Reads a script. Patterns are expanded with the files in `files`, and task instances with the layouts of these files.
    ///
    /// `file` is the name used in errors.
    ///
    /// # Errors
    /// All errors in the script itself, in its order; if patterns have errors, only these.
    pub fn read(file: &str, text: &[u8], files: &dyn DirectoryLookup) -> Result<Self, JobErrors> {
        let names = ErrorNames::of_job(text);
        match script::parse(file, text) {
            Ok(group) => Self::of_group((file, names), group, files),
            Err(error) => {
                let mut errors = Errors::new(file, names);
                errors.add(error.at, None, JobProblem::Script(error.problem));
                Err(errors.into_report())
            }
        }
    }

    /// Reads a parsed script like [`Self::read`]. Errors use `names` for tables and settings.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn of_group(
        (file, names): (&str, ErrorNames),
        mut group: SettingGroup,
        files: &dyn DirectoryLookup,
    ) -> Result<Self, JobErrors> {
        let mut errors = Errors::new(file, names);
        expand::expand(&mut group, files, &mut errors);
        if !errors.is_empty() {
            return Err(errors.into_report());
        }
        let mut job = read::job(file, &group, &mut errors);
        job.dag = dag::detect(&mut job.tasks, &mut errors);
        if job.intermediate_memory {
            dag::mark_intermediates(&mut job.tasks);
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
