//! Errors in the simulator's input and in its request.

use crate::suggestions::perhaps;
use tidemill_model::id::NodeId;
use tidemill_sched::policy::UnknownPolicy;

/// Error in an input file; its text begins with file and line, as compilers write errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    /// Name of the file that the caller gave.
    pub file: String,
    /// Line of the error, from 1; 0 for an error that concerns the whole file.
    pub line: u32,
    /// Fault in the input file.
    pub problem: FileProblem,
}

impl InputError {
    pub(super) fn new(file: &str, line: u32, problem: FileProblem) -> Self {
        Self {
            file: file.to_owned(),
            line,
            problem,
        }
    }
}

impl std::fmt::Display for InputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let FileProblem::Script(errors) = &self.problem {
            return f.write_str(errors);
        }
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.problem),
            line => write!(f, "{}:{line}: {}", self.file, self.problem),
        }
    }
}

impl std::error::Error for InputError {}

/// Fault in an input file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileProblem {
    /// A line of an INI file is neither a section nor a setting.
    #[error("expected `[section]` or `key = value`, found `{0}`")]
    NotIni(String),
    /// A setting of an INI file precedes the first section.
    #[error("`{0}` stands before the first section; put it below [AFE] or [SERVER]")]
    OutsideSection(String),
    /// An entry of the file is given twice.
    #[error("{what} is given twice, first in line {first}; remove one")]
    Twice {
        /// Name of the repeated entry.
        what: String,
        /// Line of the entry's first occurrence.
        first: u32,
    },
    /// A section of a platform file is unknown.
    #[error(
        "there is no section [{}]{}; a platform has [AFE], [SERVER], [SERVER_CORES] and classes of nodes as [AFE:name]",
        .0, perhaps(.0, &["AFE", "SERVER", "SERVER_CORES"])
    )]
    UnknownSection(String),
    /// A setting of the file is unknown.
    #[error("{place} has no setting `{key}`{}; it may have: {}", perhaps(.key, .known), known.join(", "))]
    UnknownKey {
        /// Section or table of the unknown setting.
        place: String,
        /// Name of the unknown setting.
        key: String,
        /// Known settings of the section or table.
        known: Vec<&'static str>,
    },
    /// A key of a JSON object is unknown and resembles a known key.
    #[error("{place} has no `{key}`; did you mean `{meant}`?")]
    Misspelt {
        /// Name of the JSON object.
        place: &'static str,
        /// Unknown key.
        key: String,
        /// Key that was probably meant.
        meant: String,
    },
    /// A name in a costs file does not exist in the job file.
    #[error("[{table}] has `{name}`, and the job has no such {what}{}", perhaps(.name, &.known.iter().map(String::as_str).collect::<Vec<_>>()))]
    NotInJob {
        /// Name of the table in the costs file.
        table: &'static str,
        /// Kind of the table's names: files, kernels or tasks.
        what: &'static str,
        /// Name that the job script does not contain.
        name: String,
        /// Names in the job script that the table lacks.
        known: Vec<String>,
    },
    /// The input file is empty.
    #[error(
        "it is empty; give a job file, a trace (`tidemill job export-trace ID --output FILE`) or a workflow of WfCommons"
    )]
    EmptyFile,
    /// A JSON file is neither a trace nor a workflow.
    #[error(
        "it is JSON, but neither a trace (which has `format`: \"tidemill-trace\") nor a workflow of WfCommons (which has \
         `schemaVersion` and `workflow`){0}"
    )]
    NotPlanned(String),
    /// A name in the file is empty.
    #[error("{0} has no name: it is empty")]
    NoName(String),
    /// Two tasks have the same name.
    #[error("there is another task `{0}` before; give each its own name")]
    TaskTwice(String),
    /// A file of the workflow is listed twice.
    #[error("file `{file}` is listed twice, first in line {first}; remove one")]
    SameFile {
        /// Name of the file.
        file: String,
        /// Line of the file's first occurrence.
        first: u32,
    },
    /// A file of the workflow has two sizes.
    #[error("file `{file}` has {size} bytes here and {other} in line {first}")]
    TwoSizes {
        /// Name of the file.
        file: String,
        /// Size of the file at this position, in bytes.
        size: u64,
        /// Size of the file at the other position, in bytes.
        other: u64,
        /// Line of the other position.
        first: u32,
    },
    /// A node of the trace is listed twice.
    #[error("node {node} is listed twice, first in line {first}; remove one")]
    SameNode {
        /// Id of the node.
        node: u32,
        /// Line of the node's first occurrence.
        first: u32,
    },
    /// A sum over the whole input is too large.
    #[error("{what} together are more than {max}, the maximum of the simulator")]
    Absurd {
        /// Name of the summed quantity.
        what: &'static str,
        /// Maximum, in words.
        max: &'static str,
    },
    /// The idle power of a node is higher than its busy power.
    #[error(
        "{place} draws {idle} W when it is idle and {busy} W when it is busy; `power_idle` can't be above `power_busy`"
    )]
    IdleAboveBusy {
        /// Section of the power settings.
        place: String,
        /// Power of the node with no core busy, in watts.
        idle: String,
        /// Power of the node with all cores busy, in watts.
        busy: String,
    },
    /// A mandatory setting is missing.
    #[error("{place} needs `{key}`")]
    Missing {
        /// Section, table or object that lacks the setting.
        place: String,
        /// Name of the missing setting.
        key: String,
    },
    /// The text of a quantity is not a number, or the number is too large.
    #[error("`{text}` for {what} is not a number that can be used")]
    Number {
        /// Name of the quantity.
        what: String,
        /// Text of the quantity in the file.
        text: String,
    },
    /// The unit of a quantity does not measure this quantity.
    #[error("{what} can't be measured in `{unit}`; units are {}", known.join(", "))]
    Unit {
        /// Name of the quantity.
        what: String,
        /// Unit in the file.
        unit: String,
        /// Known units of the quantity.
        known: Vec<&'static str>,
    },
    /// The value of a quantity is negative.
    #[error("{what} can't be negative: `{text}`")]
    Negative {
        /// Name of the quantity.
        what: String,
        /// Text of the quantity in the file.
        text: String,
    },
    /// The value of a quantity is zero.
    #[error("{what} must be more than 0")]
    Zero {
        /// Name of the quantity.
        what: String,
    },
    /// The value of a quantity is above its limit.
    #[error("{what} can't be more than {max}")]
    TooMany {
        /// Name of the quantity.
        what: String,
        /// Largest valid value.
        max: u64,
    },
    /// A platform has no nodes.
    #[error("the platform has no nodes; give `number_afes` in [SERVER] or in a class at least 1")]
    NoNodes,
    /// Named resources can't be parsed: a description of the fault.
    #[error("{0}")]
    Resources(String),
    /// The file is not JSON, or has the wrong structure: the message of the JSON reader.
    #[error("{0}")]
    Json(String),
    /// The file is not TOML, or has the wrong structure: the message of the TOML reader.
    #[error("{0}")]
    Toml(String),
    /// A job file has errors, each with its own file and line.
    #[error("{0}")]
    Script(String),
    /// The version of a file format is not supported.
    #[error("version {found} of {format} can't be read; known are {known}")]
    Version {
        /// Name of the file format.
        format: &'static str,
        /// Version in the file.
        found: String,
        /// Supported versions of the format.
        known: &'static str,
    },
    /// A workflow has no tasks.
    #[error("the workflow has no tasks")]
    NoTasks,
    /// Two tasks have the same name or id.
    #[error("task `{task}` exists twice, first in line {first}")]
    SameTask {
        /// Name or id of the task.
        task: String,
        /// Line of the task's first occurrence.
        first: u32,
    },
    /// Two tasks write the same file.
    #[error("task `{task}` writes `{file}`, which task `{other}` writes as well")]
    SameOutput {
        /// Task that the file lists later as the writer.
        task: String,
        /// Name of the file that both tasks write.
        file: String,
        /// Task that the file lists first as the writer.
        other: String,
    },
    /// A task reads its own output.
    #[error("task `{task}` reads `{file}`, which it writes itself")]
    OwnOutput {
        /// Name of the task.
        task: String,
        /// Name of the file.
        file: String,
    },
    /// Tasks depend on each other in a cycle.
    #[error("tasks need each other in a circle: {0}")]
    Cycle(String),
    /// A task names a file that the workflow does not have.
    #[error("task `{task}` names file `{file}`, which is not in the list of files")]
    DanglingFile {
        /// Name of the task.
        task: String,
        /// Name of the missing file.
        file: String,
    },
    /// A task reads bytes that a file does not have, or the layout of a file is invalid.
    #[error("task `{task}` reads `{file}`: {why}")]
    Selected {
        /// Name of the task.
        task: String,
        /// Name of the file.
        file: String,
        /// Description of the fault in the selection or layout.
        why: String,
    },
    /// A task names a task that the workflow does not have.
    #[error("task `{task}` names task `{other}`, which the workflow does not have")]
    DanglingTask {
        /// Name of the task.
        task: String,
        /// Name or id of the missing task.
        other: String,
    },
    /// Run times are taken from the trace of another run, which does not have this task.
    #[error("task `{task}` is not in the trace of job `{job}`; give one of the same job")]
    NotInTrace {
        /// Name of the task.
        task: String,
        /// Job of the other trace.
        job: String,
    },
    /// A task has no run time.
    #[error("the run time of task `{0}` is not known")]
    NoRunTime(String),
    /// A file has no size.
    #[error("the size of file `{file}` of task `{task}` is not known; give it in [files]")]
    NoSize {
        /// Task that reads or writes the file.
        task: String,
        /// Name of the file.
        file: String,
    },
}

/// Reason for which a simulation could not be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// No policy has this name.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// No node of the platform can ever run a task.
    #[error("no node can run task `{task}`: {why}")]
    Nowhere {
        /// Name of the task.
        task: String,
        /// Comparison of the resources that the task needs with the resources of the nodes.
        why: String,
    },
    /// A task or file is bound to a node that the platform does not have.
    #[error("{what} is bound to node {node}, which the platform does not have")]
    NoSuchNode {
        /// Name of the task or file.
        what: String,
        /// Id of the missing node.
        node: NodeId,
    },
    /// The placement requires recorded locations of files, and a file has no recorded location.
    #[error("the node of `{file}` is not recorded; choose another placement")]
    NotRecorded {
        /// Name of the file.
        file: String,
    },
    /// The dispatcher did not complete the simulated job.
    #[error("the job ended with {left} of {tasks} tasks undone: {}", why.as_deref().unwrap_or(
        "nothing failed, so this is a fault of the simulator or the dispatcher"
    ))]
    Unfinished {
        /// Number of tasks that did not succeed.
        left: usize,
        /// Number of tasks of the workflow.
        tasks: usize,
        /// Reason for the last failure of a run.
        why: Option<String>,
    },
}
