//! What the dispatcher is told and what it answers with. The server turns network traffic into events
//! and actions into network traffic; a simulator does the same in virtual time.

use crate::folder;
use crate::id::{ElementId, Inode, JobId, LabelId, ObjectId, TaskId};
use crate::label::{Failure, Kernel, Label, Limits, Operation, Outcome, Owner, Sealed};
use crate::layout::{Layout, Selection, Striped};
use crate::object::Placed;
use crate::resources::{Needs, Offers};
use crate::surroundings::Surroundings;
use crate::time::Time;
use std::collections::BTreeMap;

/// What an element is for, as far as placement of work goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Keeps files and runs kernels.
    Store,
    /// The server's own cores: runs reduce and unaligned tasks under the hybrid policy, keeps only
    /// their outputs (AnalyzeThis §3.2, "Hybrid").
    Host,
}

/// How often and how long a kernel ran on an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct History {
    /// Runs that ended well.
    pub runs: u64,
    /// Their run times together, in nanoseconds.
    pub total_ns: u64,
    /// Bytes of their inputs together.
    pub input_bytes: u64,
}

/// What is known of an element: its status object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementView {
    /// What it is for.
    pub role: Role,
    /// What it has for kernels that run at once.
    pub offers: Offers,
    /// Bytes it holds.
    pub capacity_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Rate at which it can pull from another element, in bytes per second (measured, or configured).
    pub link_bytes_per_sec: u64,
    /// Rate of its device in bytes per second, as configured; 0: nobody said.
    pub device_bytes_per_sec: u64,
    /// Power that it draws at full load in thousandths of a watt, as configured; 0: nobody said.
    pub watts_milli: u64,
    /// Run-time history per kernel name.
    pub history: BTreeMap<String, History>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An element joined or came back. Labels that it holds are still its own: those that were taken
    /// back when it was declared down and that nothing has overtaken since count as sent again, the
    /// others are aborted. After this event `Dispatcher::wants` says of what was sent what the element should have.
    ElementUp {
        /// Which.
        element: ElementId,
        /// What it is like.
        view: ElementView,
    },
    /// An element is lost: its connection ended and did not come back in time. Also for an element of
    /// the array that did not come in time after a restart of the server: until one of the two events
    /// the dispatcher waits for an element that it has only heard of.
    ElementDown {
        /// Which.
        element: ElementId,
    },
    /// An element sleeps. It is not lost: what it has is neither made again nor taken from it, and what is only there waits.
    ElementAsleep {
        /// Which.
        element: ElementId,
    },
    /// A new status object.
    ElementStatus {
        /// Which.
        element: ElementId,
        /// What it is like now.
        view: ElementView,
    },
    /// What an element says of programs of its host. What it does not name stays as it was; when it comes up nothing
    /// is known.
    Programs {
        /// Which.
        element: ElementId,
        /// Those that it has.
        found: Vec<String>,
        /// Those that it does not have.
        missing: Vec<String>,
    },
    /// A job was accepted (or is brought back after a restart of the server). Its policy's name must
    /// have been checked with `policy::by_name`; an unknown one counts as the array's default.
    /// After a restart all jobs are brought back before the first element is let in: what an element
    /// has that no job speaks for is aborted.
    Submitted(Box<JobSpec>),
    /// A file that jobs wait for was sealed.
    FileSealed {
        /// Its full path in the namespace.
        path: String,
        /// Its sealed version.
        placed: Placed,
    },
    /// An element began a label.
    Started {
        /// Where.
        element: ElementId,
        /// Which.
        label: LabelId,
    },
    /// An element ended a label.
    Finished {
        /// Where.
        element: ElementId,
        /// Which.
        label: LabelId,
        /// How.
        outcome: Box<Outcome>,
    },
    /// The owner cancelled a job.
    Cancel {
        /// Which.
        job: JobId,
    },
    /// An element is to do something that belongs to no job. It is forgotten if that can't be sent now.
    Errand {
        /// Which one.
        element: ElementId,
        /// With whose rights.
        owner: Owner,
        /// What.
        operation: Operation,
    },
    /// An element has a copy of an object that another holds, or has it no more. Of objects that no job reads nothing need
    /// be told.
    Copied {
        /// The object.
        object: ObjectId,
        /// The element.
        element: ElementId,
        /// Whether it is there.
        there: bool,
    },
    /// An object that jobs read lies in these, in their order: what is said of copies is said of them.
    Parted {
        /// The object.
        object: ObjectId,
        /// What it is made of. Other copies of the parts than the first are told by [`Event::Copied`].
        layout: Layout,
    },
    /// No more tasks are placed on an element, which is being emptied, or they are again. What it has goes on.
    Emptied {
        /// The element.
        element: ElementId,
        /// Whether it is.
        emptied: bool,
    },
    /// Such a label is under way from before a restart.
    ErrandSent {
        /// Where.
        element: ElementId,
        /// Which.
        label: LabelId,
        /// What it does.
        operation: Operation,
    },
}

/// A job as the dispatcher takes it: names resolved, ids issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Its handle.
    pub job: JobId,
    /// Whose rights its tasks have.
    pub owner: Owner,
    /// Name of the policy; `None` for the array's default.
    pub policy: Option<String>,
    /// Its tasks in the script's order. Dependencies have been checked to be acyclic.
    pub tasks: Vec<TaskSpec>,
}

/// One task of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// Its id.
    pub task: TaskId,
    /// Its name in the script.
    pub name: String,
    /// Its code.
    pub kernel: Kernel,
    /// Its arguments.
    pub args: Vec<String>,
    /// All it reads.
    pub inputs: Vec<InputSpec>,
    /// All it writes.
    pub outputs: Vec<OutputSpec>,
    /// Name of the input that is its standard input.
    pub stdin: Option<String>,
    /// Name of the output that takes its standard output.
    pub stdout: Option<String>,
    /// The element it must run on, if the script says so.
    pub element: Option<ElementId>,
    /// How often it may be tried again after a failure that another try can mend.
    pub retries: u32,
    /// What must be free on its element for it to run.
    pub needs: Needs,
    /// Programs that its element's host must have, in order, each once; then folders that it must show, with a slash at
    /// the end.
    pub programs: Vec<String>,
    /// Bounds on a run.
    pub limits: Limits,
    /// What it finds around it.
    pub surroundings: Surroundings,
    /// What it is of the task that the script names.
    pub share: Share,
    /// Set when the job comes back after a restart and the task had ended already.
    pub ended: Option<Ended>,
}

/// What a task is of the one that a script names (Active Storage §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    #[default]
    All,
    /// One of its components: it runs where its first input is.
    Component,
    /// Its outputs: files striped as its first input is, whose parts components have made. The other inputs are these, those
    /// of the first output first. Nothing runs.
    Join,
    /// Its result, which a kernel makes of what components gave.
    Merge,
}

/// How a task had ended before a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Well, with these outputs, in the order of `outputs`.
    Done(Vec<Placed>),
    /// Badly.
    Failed,
    /// It had been sent under this label with these output objects and is not known to have ended.
    Sent {
        /// The label.
        label: LabelId,
        /// Where.
        element: ElementId,
        /// The ids its outputs will have, in the order of `outputs`.
        objects: Vec<ObjectId>,
        /// Tries before this one.
        tries: u32,
    },
}

/// One input of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// The name the kernel sees.
    pub name: String,
    /// Full path in the namespace.
    pub path: String,
    /// Where it comes from.
    pub origin: Origin,
    /// What of it the task reads.
    pub selection: Selection,
    /// Whether the task reads it forward, so that it may begin while the task that makes it runs.
    pub pipelined: bool,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file that was sealed when the job was submitted: this very version is used.
    File(Placed),
    /// A file that is still to be written (smart folder). A job that is brought back after a restart
    /// gives a file that was found before as `File`.
    Awaited,
    /// An output of a task of the same job: (task, index among its outputs).
    Task(TaskId, usize),
}

/// One output of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// The name the kernel writes; of a [folder] it ends in a slash.
    pub name: String,
    /// Full path in the namespace, without a slash at its end.
    pub path: String,
    /// The inode that the name will have; of a folder the first of as many as it takes ids.
    pub inode: Inode,
    /// Whether it is a part of what will have the name, and has none itself.
    pub part: bool,
    /// Whether it is to be in memory; see [`Output`](crate::label::Output).
    pub memory: bool,
}

impl OutputSpec {
    /// Whether it is a folder.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        folder::is_folder(&self.name)
    }

    /// What its job claims by it: a folder with a slash at the end, and all below it. `None`: what it is a part of is claimed.
    #[must_use]
    pub fn claimed(&self) -> Option<String> {
        let slash = if self.is_folder() { "/" } else { "" };
        (!self.part).then(|| format!("{}{slash}", self.path))
    }

    /// The files that it is, as outputs of their own: itself, or what of `sealed` lies in the folder that it is.
    #[must_use]
    pub fn files(&self, placed: Placed, sealed: &[Sealed]) -> Vec<(Self, Placed)> {
        if !self.is_folder() {
            return vec![(self.clone(), placed)];
        }
        let first = placed.object;
        let file = |one: &Sealed| {
            let output = Self {
                name: format!("{}{}", self.name, one.name),
                path: format!("{}/{}", self.path, one.name),
                inode: Inode(self.inode.0 + (one.object.0 - first.0)),
                part: self.part,
                memory: self.memory,
            };
            let (object, size) = (one.object, one.size);
            let element = placed.element;
            let placed = Placed {
                object,
                element,
                size,
            };
            (output, placed)
        };
        let files = folder::files(&self.name, first, sealed).unwrap_or_default();
        files.into_iter().map(file).collect()
    }
}

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskState {
    /// Some input does not exist yet.
    Waiting,
    /// All inputs exist; no element has been found for it yet.
    Ready,
    /// An element has it in its queue.
    Sent,
    /// It runs.
    Running,
    /// It ended well.
    Done,
    /// It ended badly and will not be tried again.
    Failed,
    /// The job was cancelled, or a task it depends on failed.
    Cancelled,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// Some task is not at its end.
    Running,
    /// All tasks ended well.
    Done,
    /// Some task failed and nothing more can run.
    Failed,
    /// The owner cancelled it.
    Cancelled,
}

/// What an element would cost a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The element.
    pub element: ElementId,
    /// Until a core is free, in nanoseconds.
    pub wait_ns: u64,
    /// To pull inputs that are elsewhere, in nanoseconds.
    pub transfer_ns: u64,
    /// Bytes of inputs that are elsewhere.
    pub transfer_bytes: u64,
    /// To run the kernel there, by its history, in nanoseconds; 0 if it has none.
    pub run_ns: u64,
}

/// Why a task was sent where it was: what `tidemill explain` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The task.
    pub task: TaskId,
    /// The label of this try.
    pub label: LabelId,
    /// Where it went.
    pub element: ElementId,
    /// When.
    pub at: Time,
    /// The policy that chose, or `pinned`.
    pub policy: String,
    /// The policy's reason in one sentence.
    pub reason: String,
    /// Whether it was sent along with a task it depends on (mini DAG).
    pub chained: bool,
    /// All the elements that could have been chosen.
    pub estimates: Vec<Estimate>,
}

/// Something the driver must do. Actions are to be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a batch of labels (whole mini DAGs, errands) to an element: the labels that their tasks are now tries
    /// of. One that was taken back with its element and is taken up again is sent again.
    Send {
        /// Where.
        element: ElementId,
        /// In an order that respects dependencies.
        labels: Vec<Label>,
    },
    /// Tell an element to give up a label.
    Abort {
        /// Where.
        element: ElementId,
        /// Which.
        label: LabelId,
    },
    /// Tell an element to give a label back unless it has begun it. The label stays the try of its task until the
    /// element says that it ended as [`Recalled`](crate::label::FailureKind::Recalled), or otherwise.
    Recall {
        /// Where.
        element: ElementId,
        /// Which.
        label: LabelId,
    },
    /// Keep this for `explain`.
    Decided(Box<Decision>),
    /// A task ended well: publish the names of its outputs, record its lineage.
    ///
    /// Once per task, except when the outputs were lost with their element and the task was run again
    /// because others needed them (its state left `Done` in between). Names that still stand for the
    /// earlier outputs then switch to these; the earlier objects are an older version.
    Publish {
        /// The task.
        task: TaskId,
        /// The label that succeeded.
        label: LabelId,
        /// Its outputs in the order of the spec; a folder has the first of its ids and the bytes of all its files.
        outputs: Vec<Placed>,
    },
    /// All components of a task have ended well: publish the names of its outputs, whose parts they have made. As often as
    /// [`Self::Publish`].
    Join {
        /// The task that joins them.
        task: TaskId,
        /// Its outputs, each with the element of its first part.
        outputs: Vec<Placed>,
        /// What each of them is made of.
        layouts: Vec<Striped>,
    },
    /// A task's state changed.
    Task {
        /// The job.
        job: JobId,
        /// The task.
        task: TaskId,
        /// Its new state.
        state: TaskState,
        /// Tries so far, the one under way counted; those that an element's loss or an earlier label's
        /// failure ended are not.
        tries: u32,
        /// Why it failed, why it will be tried again, or which element it waits for.
        failure: Option<Failure>,
        /// When.
        at: Time,
    },
    /// A job's state changed.
    Job {
        /// The job.
        job: JobId,
        /// Its new state.
        state: JobState,
        /// When.
        at: Time,
    },
    /// Objects that no name will ever have (outputs of a try that was overtaken) may be removed.
    Discard {
        /// Where.
        element: ElementId,
        /// Which.
        objects: Vec<ObjectId>,
    },
}

/// Where the dispatcher gets ids for labels and objects; the driver makes sure that they are never reused.
pub trait IdSource: std::fmt::Debug + Send {
    /// Whether a label and this many objects can be had now. If not, nothing is sent; the next event asks again.
    fn ready(&mut self, objects: u64) -> bool;
    /// A new label id, larger than all before it: after a restart this tells which labels follow which.
    fn label(&mut self) -> LabelId;
    /// The first of so many new object ids that follow one another. Like a label's they are asked for only if they were
    /// [`ready`](Self::ready).
    fn objects(&mut self, count: u64) -> ObjectId;
}
