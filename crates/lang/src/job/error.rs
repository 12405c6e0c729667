//! Errors of a job, and a report of all of them. This module only holds and formats data.

use super::{MAX_ARG_BYTES, MAX_ERRORS, MAX_NAME_BYTES};
use crate::script::{self, ErrorNames, Position};
use tidemill_model::id::{JobId, NodeId};
use tidemill_model::label::MAX_PATH_BYTES;
use tidemill_model::layout::SelectionError;
use tidemill_model::resources::{AMOUNT_MAX, NAME_BYTES_MAX};
use tidemill_model::similar_names::did_you_mean;

/// One error in a job: the file, the position, the task and the problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{at}: {}{problem}", task_prefix(.task.as_deref()))]
pub struct JobError {
    /// Script file.
    pub file: String,
    /// Position in the script.
    pub at: Position,
    /// Task with the error, if it has a name yet.
    pub task: Option<String>,
    /// Problem.
    pub problem: JobProblem,
}

fn task_prefix(task: Option<&str>) -> String {
    task.map_or_else(String::new, |task| format!("task \"{task}\": "))
}

/// All errors of a job, in the order of its script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobErrors {
    /// Between one and [`MAX_ERRORS`] errors.
    pub errors: Vec<JobError>,
    /// Number of further errors.
    pub left_out: usize,
}

impl std::error::Error for JobErrors {}

impl std::fmt::Display for JobErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{error}")?;
        }
        if self.left_out > 0 {
            write!(f, "\nand {} more errors", self.left_out)?;
        }
        Ok(())
    }
}

/// Collector of errors while a script is read.
#[derive(Debug)]
pub(super) struct Errors {
    /// Names of tables and settings.
    pub(super) names: ErrorNames,
    file: String,
    errors: Vec<JobError>,
    left_out: usize,
}

impl Errors {
    pub(super) fn new(file: &str, names: ErrorNames) -> Self {
        Self {
            names,
            file: file.to_owned(),
            errors: Vec::new(),
            left_out: 0,
        }
    }

    pub(super) fn add(&mut self, at: Position, task: Option<&str>, problem: JobProblem) {
        if self.errors.len() == MAX_ERRORS {
            self.left_out += 1;
            return;
        }
        let task = task.map(str::to_owned);
        self.errors.push(JobError {
            file: self.file.clone(),
            at,
            task,
            problem,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    pub(super) fn into_report(mut self) -> JobErrors {
        self.errors.sort_by_key(|error| error.at);
        JobErrors {
            errors: self.errors,
            left_out: self.left_out,
        }
    }
}

/// Problem in a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobProblem {
    /// The script is not TOML or libconfig.
    #[error(transparent)]
    Script(script::ScriptProblem),
    /// A setting does not exist.
    #[error("{place} has no setting \"{name}\"{} may have: {valid}", did_you_mean(.nearest.as_deref()))]
    UnknownSetting {
        /// Place with the setting.
        place: &'static str,
        /// Name of the setting.
        name: String,
        /// Setting that was probably meant.
        nearest: Option<String>,
        /// All valid settings.
        valid: String,
    },
    /// A mandatory setting is missing.
    #[error("{place} needs the setting \"{name}\"")]
    MissingSetting {
        /// Place without the setting.
        place: &'static str,
        /// Name of the setting.
        name: &'static str,
    },
    /// A value has the wrong type.
    #[error("\"{name}\" must be {expected}, not {found}")]
    Type {
        /// Name of the setting.
        name: String,
        /// Expected type.
        expected: &'static str,
        /// Type of the value.
        found: &'static str,
    },
    /// A value is not one of the allowed ones.
    #[error("\"{name}\" can't be \"{value}\"{} may be: {valid}", did_you_mean(.nearest.as_deref()))]
    Choice {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// Value that was probably meant.
        nearest: Option<String>,
        /// All valid values.
        valid: String,
    },
    /// The weights of a policy can't be used.
    #[error("\"policy\": {0}")]
    Policy(tidemill_sched::policy::UnknownPolicy),
    /// A value is not a length of time.
    #[error(
        "\"{name}\" must be a length of time such as 90, \"90s\", \"5m\", \"2h\" or \"1d\", not {value}"
    )]
    Duration {
        /// Name of the setting.
        name: String,
        /// Its value.
        value: String,
    },
    /// A value is not a number of bytes.
    #[error("\"{name}\" must be a number of bytes such as 4096, \"512M\" or \"4G\", not {value}")]
    Size {
        /// Name of the setting.
        name: String,
        /// Its value.
        value: String,
    },
    /// No resource can have this name.
    #[error(
        "\"{0}\" can't be the name of a resource; use at most {NAME_BYTES_MAX} letters, digits, '-' and '_', with single dots between words that begin with a letter"
    )]
    ResourceName(String),
    /// The amount of a resource is invalid.
    #[error("\"{name}\" must be from 0 to {AMOUNT_MAX}, not {value}")]
    Amount {
        /// Name of the resource.
        name: String,
        /// Amount.
        value: i64,
    },
    /// A task may use less memory than is reserved for it.
    #[error(
        "limits.memory is {limit} bytes, less than \"memory\", {memory} bytes, which is reserved for the task; leave one of them out"
    )]
    MemoryLimit {
        /// Maximum memory of the task, in bytes.
        limit: u64,
        /// Memory that is reserved for the task, in bytes.
        memory: u64,
    },
    /// A number is out of bounds.
    #[error("\"{name}\" must be from 0 to {max}, not {value}")]
    Bounds {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        value: i64,
        /// Largest valid value.
        max: i64,
    },
    /// A job or task has too many entries.
    #[error("{count} {what}; the maximum is {max}; split it")]
    TooMany {
        /// Kind of the entries.
        what: &'static str,
        /// Number of entries.
        count: usize,
        /// Maximum number of entries.
        max: usize,
    },
    /// A job has no tasks.
    #[error("the job has no tasks; it needs at least one {0}")]
    NoTasks(&'static str),
    /// A task has no outputs.
    #[error("a task needs at least one output; without an output its results would be lost")]
    NoOutputs,
    /// The name of a job or task can't be used.
    #[error(
        "\"{0}\" can't be a name; use 1 to {MAX_NAME_BYTES} bytes without '/' and control characters"
    )]
    Name(String),
    /// An argument can't be passed to a program.
    #[error("an argument must be at most {MAX_ARG_BYTES} bytes without a zero byte")]
    Argument,
    /// Two tasks have the same name.
    #[error("another task has that name, at {first}; names must be unique in a job")]
    SameTask {
        /// Position of the first task.
        first: Position,
    },
    /// A file name is empty.
    #[error("a file name must not be empty")]
    EmptyPath,
    /// A path leaves its directory.
    #[error("\"{0}\" has \"..\" in it; name files relative to \"workdir\" or by an absolute path")]
    Escape(String),
    /// A path names a directory.
    #[error("\"{0}\" names a directory; tasks read and write files")]
    DirectoryPath(String),
    /// No file can have this path.
    #[error(
        "\"{0}\" is too long or has a zero byte in it; a path has at most {MAX_PATH_BYTES} bytes, each name in it {MAX_NAME_BYTES}"
    )]
    Path(String),
    /// A working directory is not absolute.
    #[error(
        "\"workdir\" must be an absolute path in the cluster such as \"/scratch/job\", not \"{0}\""
    )]
    Workdir(String),
    /// An output is not below the working directory.
    #[error("output \"{path}\" is not below workdir \"{workdir}\"; a task may only write there")]
    OutputOutside {
        /// Path of the output.
        path: String,
        /// Working directory of the job.
        workdir: String,
    },
    /// A task lists a file twice.
    #[error("\"{0}\" is listed twice")]
    Twice(String),
    /// The kernel would see two files under one name.
    #[error("\"{first}\" and \"{second}\" would both be \"{name}\" to the kernel; rename one")]
    Collision {
        /// Common name.
        name: String,
        /// First file.
        first: String,
        /// Second file.
        second: String,
    },
    /// A name would have to be both a file and a directory.
    #[error("\"{file}\" is a file, so \"{below}\" can't be below it; rename one")]
    FileAndDirectory {
        /// Path of the file.
        file: String,
        /// Path below the file.
        below: String,
    },
    /// A file is in a directory that a task writes as a whole.
    #[error(
        "\"{below}\" is in \"{directory}\", a directory that a task makes as a whole; read all of it, as \"{directory}\", or write elsewhere"
    )]
    WithinDirectory {
        /// Path of the directory.
        directory: String,
        /// Path within the directory.
        below: String,
    },
    /// A file is read as a directory, or a directory is read as a file.
    #[error(
        "\"{0}\" is a directory for one task and a file for another; write it with a slash at its end in both, or in neither"
    )]
    FileOrDirectory(String),
    /// The kernel can't write a directory.
    #[error(
        "output \"{path}/\" is a directory, which {kernel} can't write; let a program or a shared object (.so) make it"
    )]
    DirectoryBy {
        /// Path of the directory.
        path: String,
        /// Type of the kernel.
        kernel: &'static str,
    },
    /// A task can't have this environment variable.
    #[error("the variable \"{name}\" can't be set: {reason}")]
    Variable {
        /// Name of the variable.
        name: String,
        /// Reason.
        reason: &'static str,
    },
    /// A task asks for a container, which no node offers.
    #[error(
        "no node offers containers: kernels are confined so that they can't mount; ask for software on the nodes' hosts by \"directories\" and \"path\""
    )]
    Container,
    /// A path is no directory of a host.
    #[error(
        "\"{name}\" has \"{path}\"; write absolute paths of directories on the nodes' hosts, without \"..\" and ':'"
    )]
    HostDirectory {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        path: String,
    },
    /// A task reads its own output.
    #[error("it reads its own output \"{0}\"; write to another name")]
    OwnOutput(String),
    /// Two tasks write the same file.
    #[error(
        "output \"{path}\" is also an output of task \"{other}\" at {first}; every file has one writer"
    )]
    SameOutput {
        /// Path of the file.
        path: String,
        /// Name of the other task.
        other: String,
        /// Position at which the other task lists the file.
        first: Position,
    },
    /// The selected bytes of an input are invalid, or the input does not have them.
    #[error("input \"{path}\": {problem}")]
    Selection {
        /// Path of the input.
        path: String,
        /// Fault of the selection.
        problem: SelectionError,
    },
    /// No input can have this name.
    #[error("\"{0}\" can't be the name of a kernel's input; give a name relative to \"workdir\"")]
    InputName(String),
    /// An input's file was rewritten while the job was read.
    #[error("input \"{0}\" has changed during the submission; submit the job again")]
    Changed(String),
    /// A setting is valid only for task instances.
    #[error("\"{0}\" sets the bytes that task instances of a file see: it needs \"per\"")]
    OfInstances(String),
    /// A halo is invalid.
    #[error(
        "\"halo\" is a number of bytes on both sides of a stripe, or of records if \"records\" is their length: it needs per = \"stripe\""
    )]
    Halo,
    /// A task has `per` but no inputs.
    #[error("\"per\" needs an input: there are task instances for the parts of the first input")]
    NothingPer,
    /// The task instances of an input can't be determined.
    #[error(
        "\"{0}\" must be all of one file that exists, is closed and is readable when the job is submitted, or an output of a task \
         above: there is a task instance for each of its parts or stripes"
    )]
    PerInput(String),
    /// A file of extents can't have task instances.
    #[error(
        "\"{0}\" was written by several mounts at once, so its parts are no stripes; `tidemill migrate --rewrite` joins it into one file"
    )]
    PerPieces(String),
    /// A file that does not exist yet can't have stripes.
    #[error(
        "how many stripes it will have is not known: a task of this job creates it; use per = \"stripe-object\""
    )]
    StripesToCome,
    /// A mapper is invalid, or finds nothing.
    #[error("\"variable\": {0}")]
    Mapper(String),
    /// A value of `reduce` is invalid.
    #[error("\"reduce\": {0}")]
    Reduce(&'static str),
    /// `layout = "same"` is not possible.
    #[error("\"layout\" = \"same\" stripes the output as the input: {0}")]
    SameLayout(&'static str),
    /// Several task instances would write the same file.
    #[error(
        "all task instances would write \"{0}\": put {{part}}, {{stripe}}, {{chunk}}, {{name}} or {{stem}} in its name, or set layout = \"same\""
    )]
    InstanceOutput(String),
    /// A selection of bytes names several files.
    #[error(
        "\"{0}\" stands for several files; in a table, \"file\" names one (`foreach` makes a task of each), and a backslash before a wildcard makes it a character"
    )]
    SelectedPattern(String),
    /// `stdin` or an entry of `streaming` is no input, or `stdout` is no output.
    #[error("\"{setting}\" is \"{name}\", which is not in \"{list}\"; list it there")]
    Stream {
        /// `stdin`, `stdout` or `streaming`.
        setting: &'static str,
        /// Its value.
        name: String,
        /// `input` or `output`.
        list: &'static str,
    },
    /// Tasks depend on each other in a cycle.
    #[error("these tasks depend on each other in a cycle: {0}; remove one of the inputs")]
    Cycle(String),
    /// A kernel can't have this type.
    #[error("kernel \"{name}\" can't be of type \"{kind}\": {reason}")]
    KernelName {
        /// Name of the kernel.
        name: String,
        /// Its type.
        kind: &'static str,
        /// Reason.
        reason: &'static str,
    },
    /// A pipeline of kernels can't be parsed.
    #[error("\"{text}\" is not a pipeline of kernels: {reason}")]
    Pipeline {
        /// Text of the pipeline.
        text: String,
        /// Fault in the text.
        reason: &'static str,
    },
    /// A pattern can't be parsed.
    #[error("\"{text}\" is not a pattern: {reason}")]
    Pattern {
        /// Text of the pattern.
        text: String,
        /// Fault in the text.
        reason: String,
    },
    /// A pattern matches no file.
    #[error(
        "no file matches \"{0}\"; a pattern stands for the files that exist when the job is submitted, and for outputs of tasks above"
    )]
    NoMatch(String),
    /// A pattern matches a file whose name can't be written in a script.
    #[error(
        "\"{pattern}\" also matches \"{name}\", whose name is not UTF-8; rename it, or write a pattern that does not match it"
    )]
    NotText {
        /// Text of the pattern.
        pattern: String,
        /// Name of the file, with U+FFFD for bytes that are not UTF-8.
        name: String,
    },
    /// All tasks of a `foreach` would have the same name.
    #[error("all tasks of this foreach would be \"{0}\"; put {{{1}}} into the name")]
    ForeachName(String, String),
    /// Patterns stand for more tasks or text than a job can have.
    #[error(
        "the job's patterns expand to too much text, or are compared with too many files; split it"
    )]
    TooMuch,
    /// A pipeline of kernels can't have this setting.
    #[error("\"{0}\" can't be set for a pipeline of kernels: {1}")]
    PipelineSetting(&'static str, &'static str),
    /// A task can't run as one process on each node.
    #[error("\"mpi\": {0}")]
    Ranks(&'static str),
    /// A pipeline of kernels has more than one output, or another standard output.
    #[error(
        "a pipeline of kernels writes one output, the standard output of its last kernel, but this task has {0}"
    )]
    PipelineOutputs(usize),
    /// The kernel does not exist.
    #[error("kernel \"{name}\" was not found; tried: {tried}")]
    UnknownKernel {
        /// Name of the kernel.
        name: String,
        /// Places that were searched.
        tried: String,
    },
    /// A kernel is not executable.
    #[error("kernel \"{0}\" is not executable; run `chmod +x` on it")]
    NotExecutable(String),
    /// The built-in kernel of this name does not accept the arguments.
    #[error(
        "\"{name}\" is a built-in kernel, and {reason}{}", for_the_program(.name, *.remedy)
    )]
    BuiltinRefuses {
        /// Name of the kernel.
        name: String,
        /// Reason.
        reason: String,
        /// Way to name the program of the same name, if the user may have meant it.
        remedy: Option<ProgramBy>,
    },
    /// A file that is not executable has the name of a built-in kernel.
    #[error(
        "\"{0}\" is not a kernel, as it is not executable, but it hides the built-in kernel of that name; rename it, or write type = \"builtin\""
    )]
    HidesBuiltin(String),
    /// The input does not exist, and the job is strict.
    #[error(
        "input \"{path}\" does not exist and no task makes it (the job is strict){}", perhaps(.nearest.as_deref())
    )]
    MissingInput {
        /// Path of the input.
        path: String,
        /// File that was probably meant.
        nearest: Option<String>,
    },
    /// An input is not sealed yet and the job is strict, or a kernel is not sealed yet.
    #[error("\"{0}\" is still being written; submit when it is closed")]
    Unsealed(String),
    /// The job's owner may not read an input.
    #[error("you may not read \"{0}\"")]
    Denied(String),
    /// The path of an input contains an absolute symbolic link whose target does not exist in the cluster.
    #[error(
        "\"{0}\" leads through a symbolic link to an absolute path, which begins at the root of the cluster here and does not exist; make the link relative"
    )]
    Away(String),
    /// An output exists already.
    #[error(
        "output \"{0}\" exists already; remove it, write to another name, or submit with --replace"
    )]
    OutputExists(String),
    /// An output is a directory, but a file of that name exists.
    #[error(
        "output \"{0}/\" is a directory, but \"{0}\" exists and is not a directory; remove it, or write to another name"
    )]
    FileForDirectory(String),
    /// Another job is going to write this output.
    #[error(
        "output \"{path}\" is also an output of job {job}, which has not ended; wait for it (`tidemill job watch {job}`), cancel it, or write to another name"
    )]
    ClaimedOutput {
        /// Path of the output.
        path: String,
        /// Id of the other job.
        job: JobId,
    },
    /// An output is to be replaced, and the job's owner may not write to it.
    #[error("output \"{0}\" exists, and you may not write to it")]
    Unwritable(String),
    /// The node does not exist.
    #[error("the cluster has no node {0}; see `tidemill status`")]
    UnknownNode(NodeId),
    /// No node can ever run the task.
    #[error("no node can run it: {0}; `tidemill status` shows what nodes offer")]
    Nowhere(String),
}

/// Ways in which a script names the program of the nodes' hosts instead of the built-in kernel of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramBy {
    /// By the setting `type`.
    Type,
    /// By its path, because stages of a pipeline have no `type`.
    Path,
}

fn for_the_program(name: &str, remedy: Option<ProgramBy>) -> String {
    match remedy {
        None => String::new(),
        Some(ProgramBy::Type) => {
            format!("; for the program \"{name}\" of the nodes' hosts write type = \"program\"")
        }
        Some(ProgramBy::Path) => format!(
            "; for the program \"{name}\" of the nodes' hosts write its path, such as /usr/bin/{name}"
        ),
    }
}

fn perhaps(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| {
        format!("; did you mean \"{nearest}\"?")
    })
}
