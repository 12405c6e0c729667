//! Input events and output actions of the dispatcher: plain data without I/O. The server turns network traffic into events and actions into
//! network traffic; a simulator turns events and actions into steps in virtual time.

use crate::directory;
use crate::id::{Inode, JobId, LabelId, NodeId, ObjectId, TaskId};
use crate::label::{Failure, Kernel, Label, Limits, Operation, Outcome, Owner, SealedOutput};
use crate::layout::{Layout, Selection, StripedLayout};
use crate::object::Placed;
use crate::resources::{Needs, Offers};
use crate::runtime_environment::RuntimeEnvironment;
use crate::time::Time;
use std::collections::BTreeMap;

/// Role of a node in the placement of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Node that stores files and runs kernels.
    Store,
    /// The server cores: they run reduce and unaligned tasks under the hybrid policy and store only the outputs of these tasks
    /// (AnalyzeThis §3.2, "Hybrid").
    ServerCores,
}

/// Number of runs of a kernel on a node, and their duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct History {
    /// Number of runs of the kernel that succeeded.
    pub runs: u64,
    /// Sum of the run times of these runs, in nanoseconds.
    pub total_ns: u64,
    /// Sum of the input sizes of these runs, in bytes.
    pub input_bytes: u64,
}

/// Status object of a node: the dispatcher's knowledge of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Purpose of the node.
    pub role: Role,
    /// Resources of the node for kernels that run at the same time.
    pub offers: Offers,
    /// Capacity of the node, in bytes.
    pub capacity_bytes: u64,
    /// Free space of the node, in bytes.
    pub free_bytes: u64,
    /// Rate at which the node can fetch from another node, in bytes per second (measured or configured).
    pub link_bytes_per_sec: u64,
    /// Configured rate of the node's device in bytes per second; 0 if no rate is configured.
    pub device_bytes_per_sec: u64,
    /// Power that the node draws at full load, in thousandths of a watt, as configured; 0 if no power is configured.
    pub watts_milli: u64,
    /// Run-time history of the node per kernel name.
    pub history: BTreeMap<String, History>,
}

/// Event that the driver passes to the dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node joined or reconnected. Labels on the node still belong to it. The dispatcher revoked them when the node was declared down: a
    /// label without a replacement since then counts as sent again, and the other labels are aborted. After this event, `Dispatcher::wants`
    /// returns whether the node should still have a label that was sent to it.
    NodeUp {
        /// Id of the node.
        node: NodeId,
        /// Status of the node.
        view: NodeView,
    },
    /// A node is lost: its connection ended and the node did not reconnect in time. The driver also sends this event for a node that did
    /// not connect in time after a restart of the server. Until `NodeUp` or `NodeDown` arrives, the dispatcher waits for a node that it
    /// only knows by its id.
    NodeDown {
        /// Id of the node.
        node: NodeId,
    },
    /// A node is suspended. The node is not lost: its data is not recreated, its work is not revoked, and tasks that need data of this node
    /// alone wait.
    NodeSuspended {
        /// Id of the node.
        node: NodeId,
    },
    /// A node has a new status object.
    NodeStatus {
        /// Id of the node.
        node: NodeId,
        /// New status of the node.
        view: NodeView,
    },
    /// A node reports programs of its host. The state of a program that is not listed does not change. When a node connects, the
    /// dispatcher knows nothing about its programs.
    Programs {
        /// Id of the node.
        node: NodeId,
        /// Programs that the host has.
        found: Vec<String>,
        /// Programs that the host does not have.
        missing: Vec<String>,
    },
    /// A job was accepted, or is restored after a restart of the server. The driver must have checked the policy's name with
    /// `policy::by_name`; an unknown name counts as the cluster's default. After a restart, all jobs must be restored before the first node
    /// is admitted: labels on a node that belong to no job are aborted.
    Submitted(Box<JobSpec>),
    /// A file that a task waits for was sealed.
    FileSealed {
        /// Full path of the file in the namespace.
        path: String,
        /// Sealed version of the file.
        placed: Placed,
    },
    /// A node began to execute a label.
    Started {
        /// Id of the node.
        node: NodeId,
        /// Id of the label.
        label: LabelId,
    },
    /// A node finished a label, with success or failure.
    Finished {
        /// Id of the node.
        node: NodeId,
        /// Id of the label.
        label: LabelId,
        /// Result of the label.
        outcome: Box<Outcome>,
    },
    /// The owner cancelled a job.
    Cancel {
        /// Id of the job.
        job: JobId,
    },
    /// A node must execute an operation that belongs to no job. The dispatcher drops the operation if the node can't accept it now.
    MaintenanceTask {
        /// Id of the node.
        node: NodeId,
        /// User whose rights the operation has.
        owner: Owner,
        /// Operation to execute.
        operation: Operation,
    },
    /// A node has gained or lost a replica of an object that another node holds. The driver need not send this event for objects that
    /// no job reads.
    Copied {
        /// Id of the object.
        object: ObjectId,
        /// Id of the node.
        node: NodeId,
        /// Whether the node has the replica.
        there: bool,
    },
    /// An object that jobs read consists of these parts, in this order. Events about replicas of the object refer to replicas of its parts.
    Parted {
        /// Id of the object.
        object: ObjectId,
        /// Layout of the object. [`Event::Copied`] reports replicas of its parts beyond the first replica of each part.
        layout: Layout,
    },
    /// A node is being drained and gets no more tasks, or gets tasks again. Work that the node already has continues.
    Emptied {
        /// Id of the node.
        node: NodeId,
        /// Whether the node is being drained.
        emptied: bool,
    },
    /// A maintenance task was sent to a node before a restart of the server and is not finished.
    MaintenanceSent {
        /// Id of the node.
        node: NodeId,
        /// Id of the label.
        label: LabelId,
        /// Operation of the label.
        operation: Operation,
    },
}

/// Accepted job as the dispatcher receives it: names are resolved and ids are issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Id of the job.
    pub job: JobId,
    /// User whose rights the job's tasks have.
    pub owner: Owner,
    /// Name of the policy; `None` for the cluster's default.
    pub policy: Option<String>,
    /// Tasks of the job in the script's order. The driver has checked that their dependencies are acyclic.
    pub tasks: Vec<TaskSpec>,
}

/// One task of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// Id of the task.
    pub task: TaskId,
    /// Name of the task in the script.
    pub name: String,
    /// Code of the task.
    pub kernel: Kernel,
    /// Arguments of the task.
    pub args: Vec<String>,
    /// All inputs of the task.
    pub inputs: Vec<InputSpec>,
    /// All outputs of the task.
    pub outputs: Vec<OutputSpec>,
    /// Name of the input that is the kernel's standard input.
    pub stdin: Option<String>,
    /// Name of the output file that receives the kernel's standard output.
    pub stdout: Option<String>,
    /// Node on which the task must run, if the script names one.
    pub node: Option<NodeId>,
    /// Maximum number of retries after failures that a retry can cure.
    pub retries: u32,
    /// Resources that must be free on the node before the task runs.
    pub needs: Needs,
    /// Programs that the node's host must have, sorted, without duplicates; then directories that it must expose, each with a final slash.
    pub programs: Vec<String>,
    /// Limits on a run of the task.
    pub limits: Limits,
    /// Environment of the task.
    pub runtime_environment: RuntimeEnvironment,
    /// Role of this task within the task that the script names.
    pub share: TaskRole,
    /// End of the task before a restart of the server. `None` if the job is not restored or the task was not finished.
    pub ended: Option<RecoveredState>,
}

/// Role of a task within the task that a script names (Active Storage §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskRole {
    /// The whole task that the script names.
    #[default]
    All,
    /// A task instance: it runs on the node that stores its first input.
    Instance,
    /// The join of the outputs: files that are striped like the first input, whose parts task instances wrote. The further inputs are these
    /// parts, the parts of the first output first. No kernel runs.
    Join,
    /// The merge of the results: a kernel merges the results of the task instances.
    Merge,
}

/// State of a task before a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveredState {
    /// The task succeeded with these outputs, in the order of its spec's `outputs`.
    Done(Vec<Placed>),
    /// The task failed.
    Failed,
    /// The task was sent under this label with these output objects, and no end of the label is known.
    Sent {
        /// Id of the label.
        label: LabelId,
        /// Node to which the label was sent.
        node: NodeId,
        /// Ids that the task's outputs will have, in the order of its spec's `outputs`.
        objects: Vec<ObjectId>,
        /// Number of tries of the task before this try.
        tries: u32,
    },
}

/// One input of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// Name of the input that the kernel sees.
    pub name: String,
    /// Full path of the input in the namespace.
    pub path: String,
    /// Origin of the input.
    pub origin: Origin,
    /// Selection of the input that the task reads.
    pub selection: Selection,
    /// Whether the task reads the input forward, so that the task may begin while the producer of the input runs.
    pub streaming: bool,
}

/// Origin of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// File that was sealed when the job was submitted: the task uses exactly this version.
    File(Placed),
    /// File that does not exist yet (smart directory). A job that is restored after a restart has `File` for a file that was found before.
    Awaited,
    /// Output of a task of the same job: (task, index among its outputs).
    Task(TaskId, usize),
}

/// One output of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// Name of the output that the kernel writes; the name of a [directory] ends in a slash.
    pub name: String,
    /// Full path of the output in the namespace, without a slash at its end.
    pub path: String,
    /// Inode that the output's name will have; for a directory, the first inode of a range with one inode for each of the directory's ids.
    pub inode: Inode,
    /// Whether the output is a part of a named file and so has no name of its own.
    pub part: bool,
    /// Whether the output is to be stored in the memory tier; see [`Output`](crate::label::LabelOutput).
    pub memory: bool,
}

impl OutputSpec {
    /// Returns whether the output is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        directory::is_directory(&self.name)
    }

    /// Returns the path that the job claims for this output. The path of a directory ends in a slash and includes everything below the
    /// directory. Returns `None` for a part, because the job claims the path of the whole file.
    #[must_use]
    pub fn claimed(&self) -> Option<String> {
        let slash = if self.is_directory() { "/" } else { "" };
        (!self.part).then(|| format!("{}{slash}", self.path))
    }

    /// Returns the files of this output as separate outputs: the output itself, or the files of `sealed` that belong to the output
    /// directory.
    #[must_use]
    pub fn files(&self, placed: Placed, sealed: &[SealedOutput]) -> Vec<(Self, Placed)> {
        if !self.is_directory() {
            return vec![(self.clone(), placed)];
        }
        let first = placed.object;
        let file = |one: &SealedOutput| {
            let output = Self {
                name: format!("{}{}", self.name, one.name),
                path: format!("{}/{}", self.path, one.name),
                inode: Inode(self.inode.0 + (one.object.0 - first.0)),
                part: self.part,
                memory: self.memory,
            };
            let (object, size) = (one.object, one.size);
            let node = placed.node;
            let placed = Placed { object, node, size };
            (output, placed)
        };
        let files = directory::files(&self.name, first, sealed).unwrap_or_default();
        files.into_iter().map(file).collect()
    }
}

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskState {
    /// Some input does not exist yet.
    Waiting,
    /// All inputs of the task exist, and no node has been chosen for the task yet.
    Ready,
    /// A node has the task in its queue.
    Sent,
    /// The task runs.
    Running,
    /// The task succeeded.
    Done,
    /// The task failed and will not be retried.
    Failed,
    /// The job was cancelled, or a task it depends on failed.
    Cancelled,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// At least one task of the job has not ended.
    Running,
    /// All tasks of the job succeeded.
    Done,
    /// All tasks of the job have ended, and at least one task failed.
    Failed,
    /// The owner cancelled the job.
    Cancelled,
}

/// Estimated costs of running a task on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Id of the node.
    pub node: NodeId,
    /// Time until a core of the node is free, in nanoseconds.
    pub wait_ns: u64,
    /// Time to fetch the inputs that other nodes store, in nanoseconds.
    pub transfer_ns: u64,
    /// Size of the inputs that other nodes store, in bytes.
    pub transfer_bytes: u64,
    /// Time to run the kernel on this node according to the node's history, in nanoseconds; 0 without a history.
    pub run_ns: u64,
}

/// Reason for the placement of a task: the data that `tidemill job explain` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Id of the task.
    pub task: TaskId,
    /// Label under which the task was sent.
    pub label: LabelId,
    /// Node to which the task was sent.
    pub node: NodeId,
    /// Time of the decision.
    pub at: Time,
    /// Policy that chose the node, or `pinned`.
    pub policy: String,
    /// Reason for the policy's choice, in one sentence.
    pub reason: String,
    /// Whether the task was sent together with a task on which it depends (mini DAG).
    pub chained: bool,
    /// Estimates for all candidate nodes.
    pub estimates: Vec<Estimate>,
}

/// Action that the driver must carry out. The driver carries out actions in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a batch of labels (whole mini DAGs, maintenance tasks) to a node. Each label is now the current try of its task. A label that
    /// was revoked with its node and is resumed is sent again.
    Send {
        /// Id of the node.
        node: NodeId,
        /// Labels in an order that respects dependencies.
        labels: Vec<Label>,
    },
    /// Ask a node to abort a label.
    Abort {
        /// Id of the node.
        node: NodeId,
        /// Id of the label.
        label: LabelId,
    },
    /// Ask a node to return a label unless the label has begun. The label stays the current try of its task until the node reports its end
    /// as [`Rescheduled`](crate::label::FailureKind::Rescheduled) or with another result.
    Reschedule {
        /// Id of the node.
        node: NodeId,
        /// Id of the label.
        label: LabelId,
    },
    /// Store this decision for `tidemill job explain`.
    Decided(Box<Decision>),
    /// A task succeeded: publish the names of its outputs and record its lineage.
    ///
    /// This action occurs once per task, with one exception: the outputs were lost with their node, and the task ran again because other
    /// tasks needed the outputs (its state left `Done` in between). Names that still refer to the lost outputs then switch to the new
    /// outputs; the lost objects are an older version.
    Publish {
        /// Id of the task.
        task: TaskId,
        /// Label that succeeded.
        label: LabelId,
        /// Outputs of the task in the order of its spec. A directory has the first of its ids and the total size of all its files in bytes.
        outputs: Vec<Placed>,
    },
    /// All instances of a task succeeded: publish the names of the task's outputs, whose parts the instances wrote. This action occurs as
    /// often as [`Self::Publish`].
    Join {
        /// Task that joins the outputs of the task instances.
        task: TaskId,
        /// Outputs of the task, each with the node of its first part.
        outputs: Vec<Placed>,
        /// Layout of each output, in the order of `outputs`.
        layouts: Vec<StripedLayout>,
    },
    /// The state of a task changed.
    Task {
        /// Id of the job.
        job: JobId,
        /// Id of the task.
        task: TaskId,
        /// New state of the task.
        state: TaskState,
        /// Number of tries so far, including the current try. Tries that ended by the loss of a node or by the failure of an earlier label
        /// do not count.
        tries: u32,
        /// Reason for a failure or a retry, or the node that the task waits for.
        failure: Option<Failure>,
        /// Time of the change.
        at: Time,
    },
    /// The state of a job changed.
    Job {
        /// Id of the job.
        job: JobId,
        /// New state of the job.
        state: JobState,
        /// Time of the change.
        at: Time,
    },
    /// Delete objects that will never have a name (outputs of a try that another try replaced).
    Discard {
        /// Id of the node.
        node: NodeId,
        /// Ids of the objects.
        objects: Vec<ObjectId>,
    },
}

/// Source of ids for labels and objects. The driver makes sure that ids are never reused.
pub trait IdSource: std::fmt::Debug + Send {
    /// Returns whether a label id and this many object ids are available now. If the ids are not available, the dispatcher sends nothing
    /// and asks again at the next event.
    fn ready(&mut self, objects: u64) -> bool;
    /// Returns a new label id, larger than all earlier label ids: even after a restart the order of ids is the order of labels.
    fn label(&mut self) -> LabelId;
    /// Returns the first of `count` new consecutive object ids. The dispatcher asks for object ids, like label ids, only after
    /// [`ready`](Self::ready) returned true.
    fn objects(&mut self, count: u64) -> ObjectId;
}
