//! The driver's own records of unfinished jobs: the jobs' owners, the objects that must stay, and the outputs that no task will read any
//! more.

use super::SubmittedJob;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_lang::job::Lifetime;
use tidemill_meta::jobs::output_paths::Anchors;
use tidemill_meta::jobs::outputs::OutputFiles;
use tidemill_model::directory::is_directory;
use tidemill_model::event::{Origin, OutputSpec, RecoveredState};
use tidemill_model::id::{JobId, ObjectId, TaskId};
use tidemill_model::label::MAX_INPUTS;
use tidemill_model::label::{LabelInput, Owner};
use tidemill_model::layout::Selection;
use tidemill_model::object::Placed;

/// Maximum total length in bytes of the names of files in the directories that one label reads.
const NAME_BYTES_MAX: usize = 16 << 20;

/// The driver's record of one unfinished job.
#[derive(Debug)]
pub(crate) struct JobRecord {
    pub(crate) owner: Owner,
    pub(crate) groups: Vec<u32>,
    pub(crate) cache: bool,
    pub(crate) replace: bool,
    pub(crate) anchors: Arc<Anchors>,
    pub(crate) tasks: BTreeMap<TaskId, TaskRecord>,
    /// Objects that must not be removed until the job has ended.
    pub(crate) pins: Vec<ObjectId>,
    /// Content of the directories that the job's tasks have written.
    pub(crate) directories: TaskDirectories,
}

/// Content of output directories, by the object that represents each directory: names in the directory, and their objects.
#[derive(Debug, Default)]
pub(crate) struct TaskDirectories(BTreeMap<ObjectId, Vec<(String, Placed)>>);

/// The driver's record of one task of an unfinished job.
#[derive(Debug)]
pub(crate) struct TaskRecord {
    pub(crate) outputs: Vec<OutputSpec>,
    pub(crate) lifetime: Lifetime,
    /// Tasks whose outputs the task reads, each task once.
    makers: Vec<TaskId>,
    /// Number of tasks that read the task's outputs and have not succeeded yet.
    readers_left: usize,
    read_by_any: bool,
    done: bool,
    /// Inodes and objects of the files that the task has written.
    made: Vec<(u64, ObjectId)>,
}

impl JobRecord {
    pub(crate) fn new(accepted: &SubmittedJob) -> Self {
        let spec = &accepted.spec;
        let mut memo = Self {
            owner: spec.owner,
            groups: accepted.groups.clone(),
            cache: accepted.cache,
            replace: accepted.replace,
            anchors: Arc::new(accepted.anchors.clone()),
            tasks: BTreeMap::new(),
            pins: Vec::new(),
            directories: TaskDirectories::default(),
        };
        for (task, lifetime) in spec.tasks.iter().zip(&accepted.lifetimes) {
            let mut makers = Vec::new();
            for input in &task.inputs {
                match input.origin {
                    Origin::File(placed) => memo.pins.push(placed.object),
                    Origin::Task(maker, _) if !makers.contains(&maker) => makers.push(maker),
                    Origin::Task(..) | Origin::Awaited => {}
                }
            }
            let files: OutputFiles = match (&task.ended, accepted.files.get(&task.task)) {
                (Some(RecoveredState::Done(_)), Some(files)) => files.clone(),
                (Some(RecoveredState::Done(sealed)), None) => {
                    let outputs = task.outputs.iter().cloned();
                    outputs.zip(sealed.iter().copied()).collect()
                }
                _ => Vec::new(),
            };
            let done = matches!(task.ended, Some(RecoveredState::Done(_)));
            let made = memo.take((&task.outputs, *lifetime), &files);
            let outputs = task.outputs.clone();
            let lifetime = *lifetime;
            let task_memo = TaskRecord {
                outputs,
                lifetime,
                makers,
                readers_left: 0,
                read_by_any: false,
                done,
                made,
            };
            memo.tasks.insert(task.task, task_memo);
        }
        memo.count_readers();
        memo
    }

    fn count_readers(&mut self) {
        let edges: Vec<(TaskId, bool)> = self
            .tasks
            .values()
            .flat_map(|task| task.makers.iter().map(|&maker| (maker, task.done)))
            .collect();
        for (maker, done) in edges {
            if let Some(maker) = self.tasks.get_mut(&maker) {
                maker.read_by_any = true;
                maker.readers_left += usize::from(!done);
            }
        }
    }

    /// Records that a task succeeded with these outputs. Returns temporary outputs, as inode and object, that no task will read any more.
    pub(crate) fn on_done(&mut self, id: TaskId, files: &OutputFiles) -> Vec<(u64, u64)> {
        let of = |task: &TaskRecord| (task.outputs.clone(), task.lifetime);
        let (outputs, lifetime) = self.tasks.get(&id).map(of).unwrap_or_default();
        let made = self.take((&outputs, lifetime), files);
        let Some(task) = self.tasks.get_mut(&id) else {
            return Vec::new();
        };
        task.made = made;
        let again = std::mem::replace(&mut task.done, true);
        let mut candidates = vec![id];
        if !again {
            let makers = task.makers.clone();
            for maker in &makers {
                if let Some(maker) = self.tasks.get_mut(maker) {
                    maker.readers_left = maker.readers_left.saturating_sub(1);
                }
            }
            candidates.extend(makers);
        }
        let unused = candidates
            .iter()
            .filter_map(|id| self.tasks.get(id))
            .filter(|task| task.unused());
        unused
            .flat_map(|task| &task.made)
            .map(|&(inode, object)| (inode, object.0))
            .collect()
    }

    /// Records the files of a task with these outputs; returns the files that are removed after the last task has read them.
    fn take(
        &mut self,
        (outputs, lifetime): (&[OutputSpec], Lifetime),
        files: &OutputFiles,
    ) -> Vec<(u64, ObjectId)> {
        self.pins
            .extend(files.iter().map(|(_, placed)| placed.object));
        for output in outputs.iter().filter(|output| output.is_directory()) {
            let within = files
                .iter()
                .filter(|(file, _)| file.name.starts_with(&output.name));
            if let Some((_, first)) = within.clone().next() {
                let files = within.map(|(file, placed)| (file.name.as_str(), *placed));
                let directory = ObjectId(first.object.0 - 1);
                self.directories.put(directory, &output.name, files);
            }
        }
        let in_memory = |name: &str| {
            let mut in_memory = outputs.iter().filter(|output| output.memory);
            in_memory.any(|output| match output.is_directory() {
                true => name.starts_with(&output.name),
                false => name == output.name,
            })
        };
        let goes = |file: &OutputSpec| match lifetime {
            Lifetime::Intermediate => in_memory(&file.name),
            Lifetime::Used => true,
            Lifetime::Keep | Lifetime::After(_) => false,
        };
        let made = files.iter().filter(|(file, _)| goes(file));
        made.map(|(file, placed)| (file.inode.0, placed.object))
            .collect()
    }
}

impl TaskDirectories {
    /// Records the content of an output directory with this name, from those files whose names begin with the directory's name.
    pub(crate) fn put<'a>(
        &mut self,
        directory: ObjectId,
        name: &str,
        files: impl Iterator<Item = (&'a str, Placed)>,
    ) {
        let within = files.filter_map(|(file, placed)| {
            let name = file.strip_prefix(name)?;
            Some((name.to_owned(), placed))
        });
        self.0.insert(directory, within.collect());
    }

    /// Returns a label's inputs with each directory replaced by its files. If the names of the files exceed the limit of a label, returns
    /// the inputs unchanged; the node then reports the error.
    pub(crate) fn unfold(&self, inputs: &[LabelInput]) -> Vec<LabelInput> {
        let mut all = Vec::with_capacity(inputs.len());
        let mut name_bytes = 0;
        for input in inputs {
            let directory = self.0.get(&input.object);
            let Some(files) = directory.filter(|_| is_directory(&input.name)) else {
                all.push(input.clone());
                continue;
            };
            for (name, placed) in files {
                let name = format!("{}{name}", input.name);
                name_bytes += name.len();
                all.push(LabelInput {
                    name,
                    object: placed.object,
                    node: placed.node,
                    size: placed.size,
                    selection: Selection::WHOLE,
                });
            }
            if all.len() > MAX_INPUTS || name_bytes > NAME_BYTES_MAX {
                return inputs.to_vec();
            }
        }
        all
    }
}

impl TaskRecord {
    fn unused(&self) -> bool {
        self.done && self.read_by_any && self.readers_left == 0
    }
}

/// The job to which each task belongs.
pub(crate) type TaskJobs = std::collections::HashMap<TaskId, JobId>;
