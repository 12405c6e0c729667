//! What the driver remembers of unfinished jobs beside the dispatcher: whose they are, which objects they
//! need to stay, which outputs nobody will read any more.

use super::Accepted;
use std::collections::BTreeMap;
use tidemill_core::event::{Ended, Origin, OutputSpec};
use tidemill_core::id::{JobId, ObjectId, TaskId};
use tidemill_core::job::Lifetime;
use tidemill_core::label::Owner;
use tidemill_core::object::Placed;

/// One unfinished job.
#[derive(Debug)]
pub(crate) struct Memo {
    pub(crate) owner: Owner,
    pub(crate) groups: Vec<u32>,
    pub(crate) cache: bool,
    pub(crate) replace: bool,
    pub(crate) tasks: BTreeMap<TaskId, TaskMemo>,
    /// Objects that must stay until the job has ended.
    pub(crate) pins: Vec<ObjectId>,
}

/// One task of it.
#[derive(Debug)]
pub(crate) struct TaskMemo {
    pub(crate) outputs: Vec<OutputSpec>,
    pub(crate) lifetime: Lifetime,
    /// Tasks whose outputs it reads, each once.
    makers: Vec<TaskId>,
    /// Tasks that read its outputs and have not ended well.
    readers_left: usize,
    read_by_any: bool,
    done: bool,
    sealed: Vec<Placed>,
}

impl Memo {
    pub(crate) fn new(accepted: &Accepted) -> Self {
        let spec = &accepted.spec;
        let mut memo = Self {
            owner: spec.owner,
            groups: accepted.groups.clone(),
            cache: accepted.cache,
            replace: accepted.replace,
            tasks: BTreeMap::new(),
            pins: Vec::new(),
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
            let sealed = match &task.ended {
                Some(Ended::Done(sealed)) => sealed.clone(),
                _ => Vec::new(),
            };
            memo.pins.extend(sealed.iter().map(|placed| placed.object));
            let done = matches!(task.ended, Some(Ended::Done(_)));
            let outputs = task.outputs.clone();
            let lifetime = *lifetime;
            let task_memo = TaskMemo {
                outputs,
                lifetime,
                makers,
                readers_left: 0,
                read_by_any: false,
                done,
                sealed,
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

    /// A task ended well with these outputs. Gives the outputs (inode and object) that were kept only as
    /// long as somebody was to read them, and that nobody will any more.
    pub(crate) fn on_done(&mut self, id: TaskId, sealed: &[Placed]) -> Vec<(u64, u64)> {
        self.pins.extend(sealed.iter().map(|placed| placed.object));
        let Some(task) = self.tasks.get_mut(&id) else {
            return Vec::new();
        };
        task.sealed = sealed.to_vec();
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
            .flat_map(|task| task.outputs.iter().zip(&task.sealed))
            .map(|(output, placed)| (output.inode.0, placed.object.0))
            .collect()
    }
}

impl TaskMemo {
    fn unused(&self) -> bool {
        self.lifetime == Lifetime::Used && self.done && self.read_by_any && self.readers_left == 0
    }
}

/// Which job a task belongs to.
pub(crate) type Owners = std::collections::HashMap<TaskId, JobId>;
