//! What can be wrong with the simulator's input, and with what it is asked to do.

use crate::misspelt::perhaps;
use tidemill_core::id::ElementId;
use tidemill_core::policy::UnknownPolicy;

/// Something is wrong with a file; its text begins with file and line, as compilers write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    /// The file, as the caller named it.
    pub file: String,
    /// The line, from 1; 0 for what concerns the whole file.
    pub line: u32,
    /// What is wrong.
    pub problem: Problem,
}

impl InputError {
    pub(super) fn new(file: &str, line: u32, problem: Problem) -> Self {
        Self {
            file: file.to_owned(),
            line,
            problem,
        }
    }
}

impl std::fmt::Display for InputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Problem::Script(errors) = &self.problem {
            return f.write_str(errors);
        }
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.problem),
            line => write!(f, "{}:{line}: {}", self.file, self.problem),
        }
    }
}

impl std::error::Error for InputError {}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Neither a section nor a setting.
    #[error("expected `[section]` or `key = value`, found `{0}`")]
    NotIni(String),
    /// A setting before the first section.
    #[error("`{0}` stands before the first section; put it below [AFE] or [SERVER]")]
    OutsideSection(String),
    /// Given twice.
    #[error("{what} is given twice, first in line {first}; remove one")]
    Twice {
        /// What.
        what: String,
        /// The line where it stands first.
        first: u32,
    },
    /// A section that has no meaning.
    #[error(
        "there is no section [{}]{}; a platform has [AFE], [SERVER], [HOST] and classes of elements as [AFE:name]",
        .0, perhaps(.0, &["AFE", "SERVER", "HOST"])
    )]
    UnknownSection(String),
    /// A setting that has no meaning.
    #[error("{place} has no setting `{key}`{}; it may have: {}", perhaps(.key, .known), known.join(", "))]
    UnknownKey {
        /// The section or table.
        place: String,
        /// The name.
        key: String,
        /// Those that mean something.
        known: Vec<&'static str>,
    },
    /// A key of JSON that means nothing, and seems to be meant for one that does.
    #[error("{place} has no `{key}`; did you mean `{meant}`?")]
    Misspelt {
        /// The object.
        place: &'static str,
        /// The key.
        key: String,
        /// The one that was probably meant.
        meant: String,
    },
    /// A name in a costs file that the job script does not have.
    #[error("[{table}] has `{name}`, and the job has no such {what}{}", perhaps(.name, &.known.iter().map(String::as_str).collect::<Vec<_>>()))]
    NotInJob {
        /// The table.
        table: &'static str,
        /// What its names are.
        what: &'static str,
        /// The name.
        name: String,
        /// Those of the job that the table lacks.
        known: Vec<String>,
    },
    /// A file with nothing in it.
    #[error(
        "it is empty; give a job script, a trace (`tidemill jobs ID --export-trace FILE`) or a workflow of WfCommons"
    )]
    EmptyFile,
    /// JSON that is nothing to plan.
    #[error(
        "it is JSON, but neither a trace (which has `format`: \"tidemill-trace\") nor a workflow of WfCommons (which has \
         `schemaVersion` and `workflow`){0}"
    )]
    NotPlanned(String),
    /// A name without a letter.
    #[error("{0} has no name: it is empty")]
    NoName(String),
    /// Two tasks of one name.
    #[error("there is another task `{0}` before; give each its own name")]
    TaskTwice(String),
    /// A file that is listed twice.
    #[error("file `{file}` is listed twice, first in line {first}; remove one")]
    SameFile {
        /// The file.
        file: String,
        /// The line where it stands first.
        first: u32,
    },
    /// A file with two sizes.
    #[error("file `{file}` has {size} bytes here and {other} in line {first}")]
    TwoSizes {
        /// The file.
        file: String,
        /// Its size here.
        size: u64,
        /// Its size elsewhere.
        other: u64,
        /// The line where that stands.
        first: u32,
    },
    /// An element that is listed twice.
    #[error("element {element} is listed twice, first in line {first}; remove one")]
    SameElement {
        /// The element.
        element: u32,
        /// The line where it stands first.
        first: u32,
    },
    /// More than can be counted.
    #[error("{what} together are more than {max}, the maximum of the simulator")]
    Absurd {
        /// What is added up.
        what: &'static str,
        /// The most, in words.
        max: &'static str,
    },
    /// Waiting takes more than working.
    #[error(
        "{place} draws {idle} W when it is idle and {busy} W when it is busy; `power_idle` can't be above `power_busy`"
    )]
    IdleAboveBusy {
        /// The section.
        place: String,
        /// Power with no core busy, in watts.
        idle: String,
        /// Power with all cores busy, in watts.
        busy: String,
    },
    /// Something needed is not there.
    #[error("{place} needs `{key}`")]
    Missing {
        /// The section, table or object.
        place: String,
        /// The setting.
        key: String,
    },
    /// Not a number, or too large a one.
    #[error("`{text}` for {what} is not a number that can be used")]
    Number {
        /// What it is for.
        what: String,
        /// What stands there.
        text: String,
    },
    /// A unit that does not measure that.
    #[error("{what} can't be measured in `{unit}`; units are {}", known.join(", "))]
    Unit {
        /// What it is for.
        what: String,
        /// The unit.
        unit: String,
        /// Those that do.
        known: Vec<&'static str>,
    },
    /// Below zero.
    #[error("{what} can't be negative: `{text}`")]
    Negative {
        /// What it is for.
        what: String,
        /// What stands there.
        text: String,
    },
    /// Zero.
    #[error("{what} must be more than 0")]
    Zero {
        /// What it is for.
        what: String,
    },
    /// Above a limit.
    #[error("{what} can't be more than {max}")]
    TooMany {
        /// What it is for.
        what: String,
        /// The most.
        max: u64,
    },
    /// A platform without elements.
    #[error(
        "the platform has no elements; give `number_afes` in [SERVER] or in a class at least 1"
    )]
    NoElements,
    /// Named resources that can't be read: what is wrong with them.
    #[error("{0}")]
    Resources(String),
    /// Not JSON, or not of the right shape: what the reader said.
    #[error("{0}")]
    Json(String),
    /// Not TOML, or not of the right shape: what the reader said.
    #[error("{0}")]
    Toml(String),
    /// A job script with errors, each with its own file and line.
    #[error("{0}")]
    Script(String),
    /// A version of a format that can't be read.
    #[error("version {found} of {format} can't be read; known are {known}")]
    Version {
        /// The format.
        format: &'static str,
        /// The version of the file.
        found: String,
        /// Those that can.
        known: &'static str,
    },
    /// A workflow without tasks.
    #[error("the workflow has no tasks")]
    NoTasks,
    /// Two tasks of one name.
    #[error("task `{task}` exists twice, first in line {first}")]
    SameTask {
        /// Its name or id.
        task: String,
        /// The line where it stands first.
        first: u32,
    },
    /// Two tasks make one file.
    #[error("task `{task}` writes `{file}`, which task `{other}` writes as well")]
    SameOutput {
        /// The second task.
        task: String,
        /// The file.
        file: String,
        /// The first task.
        other: String,
    },
    /// A task reads what it writes.
    #[error("task `{task}` reads `{file}`, which it writes itself")]
    OwnOutput {
        /// The task.
        task: String,
        /// The file.
        file: String,
    },
    /// Tasks need each other in a circle.
    #[error("tasks need each other in a circle: {0}")]
    Cycle(String),
    /// A file is named that the workflow does not have.
    #[error("task `{task}` names file `{file}`, which is not in the list of files")]
    DanglingFile {
        /// The task.
        task: String,
        /// The file.
        file: String,
    },
    /// A task reads bytes that a file does not have, or a file lies as none can.
    #[error("task `{task}` reads `{file}`: {why}")]
    Selected {
        /// The task.
        task: String,
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A task is named that the workflow does not have.
    #[error("task `{task}` names task `{other}`, which the workflow does not have")]
    DanglingTask {
        /// The task.
        task: String,
        /// The name or id that leads nowhere.
        other: String,
    },
    /// Run times are to come from the trace of another run, which does not have the task.
    #[error("task `{task}` is not in the trace of job `{job}`; give one of the same job")]
    NotInTrace {
        /// The task.
        task: String,
        /// The job of the other trace.
        job: String,
    },
    /// A task without a run time.
    #[error("the run time of task `{0}` is not known")]
    NoRunTime(String),
    /// A file without a size.
    #[error("the size of file `{file}` of task `{task}` is not known; give it in [files]")]
    NoSize {
        /// The task that reads or writes it.
        task: String,
        /// The file.
        file: String,
    },
}

/// Why a simulation could not be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// No policy has that name.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// No element of the platform can ever run a task.
    #[error("no element can run task `{task}`: {why}")]
    Nowhere {
        /// The task.
        task: String,
        /// What it needs, and what there is.
        why: String,
    },
    /// A task or file is bound to an element that the platform does not have.
    #[error("{what} is bound to element {element}, which the platform does not have")]
    NoSuchElement {
        /// The task or file.
        what: String,
        /// The element.
        element: ElementId,
    },
    /// Files are to lie where they were recorded, but one was not.
    #[error("the element of `{file}` is not recorded; choose another placement")]
    NotRecorded {
        /// The file.
        file: String,
    },
    /// The dispatcher did not bring the job to a good end.
    #[error("the job ended with {left} of {tasks} tasks undone: {}", why.as_deref().unwrap_or(
        "nothing failed, so this is a fault of the simulator or the dispatcher"
    ))]
    Unfinished {
        /// Tasks that were not done.
        left: usize,
        /// Tasks of the workflow.
        tasks: usize,
        /// What failed last.
        why: Option<String>,
    },
}
