//! What can be wrong with a job, and a report of everything that is.

use super::{MAX_ARG_BYTES, MAX_ERRORS, MAX_NAME_BYTES, MAX_PATH_BYTES};
use crate::id::{ElementId, JobId};
use crate::layout::SelectionError;
use crate::resources::{AMOUNT_MAX, NAME_BYTES_MAX};
use crate::script::{self, Position};

/// One thing that is wrong with a job: in which file, where, in which task, and what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{at}: {}{problem}", task_prefix(.task.as_deref()))]
pub struct JobError {
    /// The script.
    pub file: String,
    /// Where.
    pub at: Position,
    /// The task it is about, if it has a name yet.
    pub task: Option<String>,
    /// What is wrong.
    pub problem: Problem,
}

fn task_prefix(task: Option<&str>) -> String {
    task.map_or_else(String::new, |task| format!("task \"{task}\": "))
}

/// Everything that is wrong with a job, in the order of its script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobErrors {
    /// At most [`MAX_ERRORS`] of them, at least one.
    pub errors: Vec<JobError>,
    /// How many more there are.
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

/// Collects errors while a script is read.
#[derive(Debug)]
pub(super) struct Errors {
    file: String,
    errors: Vec<JobError>,
    left_out: usize,
}

impl Errors {
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            errors: Vec::new(),
            left_out: 0,
        }
    }

    pub(super) fn add(&mut self, at: Position, task: Option<&str>, problem: Problem) {
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

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is not libconfig.
    #[error(transparent)]
    Script(script::Problem),
    /// A setting that does not exist.
    #[error("{place} has no setting \"{name}\"{} may have: {valid}", did_you_mean(.nearest.as_deref()))]
    UnknownSetting {
        /// What it was given to.
        place: &'static str,
        /// Its name.
        name: String,
        /// The setting that was probably meant.
        nearest: Option<String>,
        /// All settings there are.
        valid: String,
    },
    /// A setting that must be given.
    #[error("{place} needs the setting \"{name}\"")]
    MissingSetting {
        /// What lacks it.
        place: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// A value of the wrong type.
    #[error("\"{name}\" must be {expected}, not {found}")]
    Type {
        /// The setting.
        name: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A value that is not one of those allowed.
    #[error("\"{name}\" can't be \"{value}\"{} may be: {valid}", did_you_mean(.nearest.as_deref()))]
    Choice {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The value that was probably meant.
        nearest: Option<String>,
        /// All values there are.
        valid: String,
    },
    /// A policy whose weights can't be used.
    #[error("\"policy\": {0}")]
    Policy(crate::policy::UnknownPolicy),
    /// Not a length of time.
    #[error(
        "\"{name}\" must be a length of time such as 90, \"90s\", \"5m\", \"2h\" or \"1d\", not {value}"
    )]
    Duration {
        /// The setting.
        name: String,
        /// Its value.
        value: String,
    },
    /// Not a number of bytes.
    #[error("\"{name}\" must be a number of bytes such as 4096, \"512M\" or \"4G\", not {value}")]
    Size {
        /// The setting.
        name: String,
        /// Its value.
        value: String,
    },
    /// A name that no resource can have.
    #[error(
        "\"{0}\" can't be the name of a resource; use at most {NAME_BYTES_MAX} letters, digits, '-' and '_', with single dots between words that begin with a letter"
    )]
    ResourceName(String),
    /// An amount of a resource that can't be.
    #[error("\"{name}\" must be from 0 to {AMOUNT_MAX}, not {value}")]
    Amount {
        /// The resource.
        name: String,
        /// The amount.
        value: i64,
    },
    /// A task that may use less memory than is set aside for it.
    #[error(
        "limits.memory is {limit} bytes, less than \"memory\", {memory} bytes, which is set aside for the task; leave one of them out"
    )]
    MemoryLimit {
        /// What it may use.
        limit: u64,
        /// What is set aside for it.
        memory: u64,
    },
    /// A number out of bounds.
    #[error("\"{name}\" must be from 0 to {max}, not {value}")]
    Bounds {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: i64,
        /// The most it may be.
        max: i64,
    },
    /// More than a job or task may have.
    #[error("{count} {what}; the most is {max}; split it")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// A job without tasks.
    #[error("the job has no tasks; \"tasks\" needs at least one group {{ … }}")]
    NoTasks,
    /// A task without outputs.
    #[error("a task needs at least one output; without an output its results would be lost")]
    NoOutputs,
    /// A name of a job or task that can't be used.
    #[error(
        "\"{0}\" can't be a name; use 1 to {MAX_NAME_BYTES} bytes without '/' and control characters"
    )]
    Name(String),
    /// An argument that no program can be given.
    #[error("an argument must be at most {MAX_ARG_BYTES} bytes without a zero byte")]
    Argument,
    /// Two tasks of one name.
    #[error("another task has that name, at {first}; names must be unique in a job")]
    SameTask {
        /// Where the first one is.
        first: Position,
    },
    /// A file name of no characters.
    #[error("a file name must not be empty")]
    EmptyPath,
    /// A path that leaves its folder.
    #[error("\"{0}\" has \"..\" in it; name files relative to \"workdir\" or by an absolute path")]
    Escape(String),
    /// A path that names a folder.
    #[error("\"{0}\" names a folder; tasks read and write files")]
    FolderPath(String),
    /// A path that no file can have.
    #[error(
        "\"{0}\" is too long or has a zero byte in it; a path has at most {MAX_PATH_BYTES} bytes, each part {MAX_NAME_BYTES}"
    )]
    Path(String),
    /// A working folder that is not absolute.
    #[error(
        "\"workdir\" must be an absolute path in the array such as \"/scratch/job\", not \"{0}\""
    )]
    Workdir(String),
    /// An output somewhere else.
    #[error("output \"{path}\" is not below workdir \"{workdir}\"; a task may only write there")]
    OutputOutside {
        /// The output.
        path: String,
        /// The job's folder.
        workdir: String,
    },
    /// One file twice in a task.
    #[error("\"{0}\" is listed twice")]
    Twice(String),
    /// Two files that the kernel would see under one name.
    #[error("\"{first}\" and \"{second}\" would both be \"{name}\" to the kernel; rename one")]
    Collision {
        /// The name.
        name: String,
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// A name that would have to be a file and a folder.
    #[error("\"{file}\" is a file, so \"{below}\" can't be below it; rename one")]
    FileAndFolder {
        /// The file.
        file: String,
        /// The one below it.
        below: String,
    },
    /// A file in a folder that a task makes as a whole.
    #[error(
        "\"{below}\" is in \"{folder}\", a folder that a task makes as a whole; read all of it, as \"{folder}\", or write elsewhere"
    )]
    WithinFolder {
        /// The folder.
        folder: String,
        /// What lies in it.
        below: String,
    },
    /// A file that is read as a folder, or a folder that is read as a file.
    #[error(
        "\"{0}\" is a folder for one task and a file for another; write it with a slash at its end in both, or in neither"
    )]
    FileOrFolder(String),
    /// A folder that the kernel can't make.
    #[error(
        "output \"{path}/\" is a folder, which {kernel} can't write; let a program or a shared object (.so) make it"
    )]
    FolderBy {
        /// The folder.
        path: String,
        /// What kind of kernel it is.
        kernel: &'static str,
    },
    /// An environment variable that a task can't have.
    #[error("the variable \"{name}\" can't be set: {reason}")]
    Variable {
        /// Its name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// A setting that others have.
    #[error(
        "no element offers containers: kernels are confined so that they can't mount; ask for software on the elements' hosts by \"folders\" and \"path\""
    )]
    Container,
    /// No folder of a host.
    #[error(
        "\"{name}\" has \"{path}\"; write absolute paths of folders on the elements' hosts, without \"..\" and ':'"
    )]
    HostFolder {
        /// The setting.
        name: &'static str,
        /// Its value.
        path: String,
    },
    /// A task that waits for itself.
    #[error("it reads its own output \"{0}\"; write to another name")]
    OwnOutput(String),
    /// Two tasks that write one file.
    #[error(
        "output \"{path}\" is also an output of task \"{other}\" at {first}; every file has one writer"
    )]
    SameOutput {
        /// The file.
        path: String,
        /// The other task.
        other: String,
        /// Where that one lists it.
        first: Position,
    },
    /// Bytes of an input that can't be, or that it does not have.
    #[error("input \"{path}\": {problem}")]
    Selection {
        /// The input.
        path: String,
        /// What is wrong with them.
        problem: SelectionError,
    },
    /// An input that is to have a name which no input can have.
    #[error("\"{0}\" can't be the name of a kernel's input; give a name relative to \"workdir\"")]
    InputName(String),
    /// An input whose file was written anew while the job was read.
    #[error("input \"{0}\" has changed during the submission; submit the job again")]
    Changed(String),
    /// What only components have.
    #[error("\"{0}\" says what components of a file see: it needs \"per\"")]
    OfComponents(String),
    /// A halo that can't be.
    #[error(
        "\"halo\" is a number of bytes on both sides of a chunk, or of records if \"records\" is their length: it needs per = \"chunk\""
    )]
    Halo,
    /// `per` without inputs.
    #[error("\"per\" needs an input: the first one is what there are components of")]
    NothingPer,
    /// Components of what is not known.
    #[error(
        "\"{0}\" must be all of one file that is there, closed and readable when the job is submitted, or an output of a task \
         above: there is a component for each of its parts or chunks"
    )]
    PerInput(String),
    /// Components of a file of pieces.
    #[error(
        "\"{0}\" was written by several mounts at once, so its parts are no stripes; `tidemill stripe --rewrite` makes it one file again"
    )]
    PerPieces(String),
    /// Chunks of a file that is not there.
    #[error(
        "how many chunks it will have is not known: a task of this job makes it; use per = \"part\""
    )]
    ChunksToCome,
    /// A mapper that can't be, or finds nothing.
    #[error("\"mapper\": {0}")]
    Mapper(String),
    /// `reduce` that can't be.
    #[error("\"reduce\": {0}")]
    Reduce(&'static str),
    /// `layout = "same"` that can't be.
    #[error("\"layout\" = \"same\" makes a file that is striped as the input is: {0}")]
    SameLayout(&'static str),
    /// Components that would write one file.
    #[error(
        "all components would write \"{0}\": put %part, %chunk, %piece, %name or %stem in its name, or say layout = \"same\""
    )]
    ComponentOutput(String),
    /// Files whose bytes are selected one by one.
    #[error(
        "\"{0}\" stands for several files; in a group, \"file\" names one (`foreach` makes a task of each)"
    )]
    SelectedPattern(String),
    /// `stdin` or one of `pipelined` that is no input, or `stdout` that is no output.
    #[error("\"{setting}\" is \"{name}\", which is not in \"{list}\"; list it there")]
    Stream {
        /// `stdin`, `stdout` or `pipelined`.
        setting: &'static str,
        /// Its value.
        name: String,
        /// `input` or `output`.
        list: &'static str,
    },
    /// Tasks that wait for each other.
    #[error(
        "these tasks depend on each other in a cycle: {0}; one of them must do without the other's output"
    )]
    Cycle(String),
    /// A kernel that can't be of its type.
    #[error("kernel \"{name}\" can't be of type \"{kind}\": {reason}")]
    KernelName {
        /// The kernel.
        name: String,
        /// Its type.
        kind: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A stack of kernels that can't be read.
    #[error("\"{text}\" is no stack of kernels: {reason}")]
    Stack {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A pattern that can't be read.
    #[error("\"{text}\" is no pattern: {reason}")]
    Pattern {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A pattern that means nothing.
    #[error(
        "no file matches \"{0}\"; a pattern stands for the files that exist when the job is submitted, and for outputs of tasks above"
    )]
    NoMatch(String),
    /// A pattern that means a file whose name a script can't have.
    #[error(
        "\"{pattern}\" means \"{name}\", too, whose name is not UTF-8; rename it, or write a pattern that does not mean it"
    )]
    NotText {
        /// The pattern.
        pattern: String,
        /// The name, with U+FFFD for bytes that are not UTF-8.
        name: String,
    },
    /// Tasks of a `foreach` that would all have one name.
    #[error("all tasks of this foreach would be \"{0}\"; put {{{1}}} into the name")]
    ForeachName(String, String),
    /// Patterns that stand for more than a job can have.
    #[error(
        "the job's patterns stand for too much text, or are held against too many files; split it"
    )]
    TooMuch,
    /// A setting that a stack of kernels can't have.
    #[error("\"{0}\" can't be given for a stack of kernels: {1}")]
    StackSetting(&'static str, &'static str),
    /// A task that can't be a process on each element.
    #[error("\"mpi\": {0}")]
    Ranks(&'static str),
    /// A stack of kernels with more than one output, or another standard output.
    #[error(
        "a stack of kernels writes one output, the standard output of its last kernel, but this task has {0}"
    )]
    StackOutputs(usize),
    /// No such kernel.
    #[error("kernel \"{name}\" was not found; tried: {tried}")]
    UnknownKernel {
        /// The kernel.
        name: String,
        /// Where it was looked for.
        tried: String,
    },
    /// A kernel that may not be run.
    #[error("kernel \"{0}\" is not executable; run `chmod +x` on it")]
    NotExecutable(String),
    /// Arguments that the built-in kernel of that name does not take.
    #[error(
        "\"{name}\" is a built-in kernel, and {reason}{}", for_the_program(.name, *.remedy)
    )]
    BuiltinRefuses {
        /// The kernel.
        name: String,
        /// Why it does not run so.
        reason: String,
        /// How the program of that name is had, if it can be meant.
        remedy: Option<ProgramBy>,
    },
    /// A file that may not be run, with the name of a built-in kernel.
    #[error(
        "\"{0}\" is no kernel, as it is not executable, but it hides the built-in kernel of that name; rename it, or write type = \"builtin\""
    )]
    HidesBuiltin(String),
    /// No such input, and the job is strict.
    #[error(
        "input \"{path}\" does not exist and no task makes it (the job is strict){}", perhaps(.nearest.as_deref())
    )]
    MissingInput {
        /// The input.
        path: String,
        /// The file that was probably meant.
        nearest: Option<String>,
    },
    /// An input that is not whole yet, and the job is strict, or a kernel that is not.
    #[error("\"{0}\" is still being written; submit when it is closed")]
    Unsealed(String),
    /// An input that its owner may not read.
    #[error("you may not read \"{0}\"")]
    Denied(String),
    /// An input that an absolute symbolic link leads away from.
    #[error(
        "\"{0}\" leads through a symbolic link to an absolute path, which begins at the root of the cluster here and is not there; make the link relative"
    )]
    Away(String),
    /// An output that is there already.
    #[error(
        "output \"{0}\" exists already; remove it, write to another name, or submit with --replace"
    )]
    OutputExists(String),
    /// A folder among the outputs where there is a file.
    #[error(
        "output \"{0}/\" is a folder, but \"{0}\" exists and is not a folder; remove it, or write to another name"
    )]
    FileForFolder(String),
    /// An output that another job is going to write.
    #[error(
        "output \"{path}\" is an output of job {job} too, which has not ended; wait for it (`tidemill watch {job}`), cancel it, or write to another name"
    )]
    ClaimedOutput {
        /// The output.
        path: String,
        /// The other job.
        job: JobId,
    },
    /// An output that is to be replaced and that its owner may not write to.
    #[error("output \"{0}\" exists, and you may not write to it")]
    Unwritable(String),
    /// No such element.
    #[error("the array has no element {0}; see `tidemill status`")]
    UnknownElement(ElementId),
    /// No element can ever run it.
    #[error("no element can run it: {0}; `tidemill status` shows what elements offer")]
    Nowhere(String),
}

/// How a script says that it means the program of the elements' hosts, and no built-in kernel of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramBy {
    /// By the setting `type`.
    Type,
    /// By its path, as stages of a stack have no `type`.
    Path,
}

fn for_the_program(name: &str, remedy: Option<ProgramBy>) -> String {
    match remedy {
        None => String::new(),
        Some(ProgramBy::Type) => {
            format!("; for the program \"{name}\" of the elements' hosts write type = \"program\"")
        }
        Some(ProgramBy::Path) => format!(
            "; for the program \"{name}\" of the elements' hosts write its path, such as /usr/bin/{name}"
        ),
    }
}

fn perhaps(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| {
        format!("; did you mean \"{nearest}\"?")
    })
}

fn did_you_mean(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean \"{nearest}\"? It"),
        None => "; it".to_owned(),
    }
}
