//! Lineage from the nodes' data about the tasks that ended there, for a recovery without a log.

use super::sources::RecoveredNode;
use std::collections::BTreeMap;
use tidemill_meta::jobs::data::{self, TaskInput};
use tidemill_meta::jobs::records::{self, EndedJob, EndedTask};
use tidemill_meta::jobs::spec::StoredTask;
use tidemill_meta::node_database::NodeTask;
use tidemill_meta::{Connection, Fault, version};
use tidemill_model::attribute::task as page;
use tidemill_model::event::OutputSpec;
use tidemill_model::id::{Inode, JobId, NodeId, ObjectId, TaskId};
use tidemill_model::object::Placed;
use tidemill_wire::v1::State;

/// Returns the tasks that ended on any of the nodes, by their ids. Of several runs of a task, the last successful one counts.
pub(super) fn ended(nodes: &[RecoveredNode]) -> BTreeMap<u64, NodeTask> {
    let mut tasks: BTreeMap<u64, &NodeTask> = BTreeMap::new();
    for task in nodes.iter().flat_map(|node| &node.records.tasks) {
        let known = tasks.entry(task.task).or_insert(task);
        let better = (task.done, task.number(page::END)) > (known.done, known.number(page::END));
        if better {
            *known = task;
        }
    }
    let tasks = tasks.into_iter();
    tasks.map(|(id, task)| (id, task.clone())).collect()
}

/// Inserts the jobs whose ended tasks are known, and those tasks with their inputs and outputs.
pub(super) fn insert(db: &Connection, tasks: &BTreeMap<u64, NodeTask>) -> Result<(), Fault> {
    let mut jobs: BTreeMap<u64, Vec<&NodeTask>> = BTreeMap::new();
    for task in tasks.values() {
        jobs.entry(task.job()).or_default().push(task);
    }
    for (job, tasks) in &jobs {
        let first = tasks.iter().map(|task| task.number(page::START)).min();
        let last = tasks.iter().map(|task| task.number(page::END)).max();
        let done = tasks.iter().all(|task| task.done);
        let ended = EndedJob {
            job: JobId(*job),
            name: format!("job {job}, recovered"),
            uid: tasks.first().map_or(0, |task| task.uid()),
            state: ended_state(done),
            submitted: first.unwrap_or(0).cast_signed(),
            ended: last.unwrap_or(0).cast_signed(),
        };
        records::insert_ended_job(db, &ended)?;
    }
    for (changed, task) in (1..).zip(tasks.values()) {
        put_task(db, task, changed)?;
    }
    Ok(())
}

fn ended_state(done: bool) -> State {
    if done { State::Done } else { State::Failed }
}

fn put_task(db: &Connection, task: &NodeTask, changed: u64) -> Result<(), Fault> {
    let spec = StoredTask::ended(task.text(page::NAME), task.text(page::KERNEL), task.args());
    let ended = EndedTask {
        task: TaskId(task.task),
        job: JobId(task.job()),
        spec: serde_json::to_string(&spec).unwrap_or_default(),
        state: ended_state(task.done),
        changed,
        node: NodeId(task.node),
        start: task.number(page::START).cast_signed(),
        end: task.number(page::END).cast_signed(),
        read_bytes: task.number(page::READ_BYTES),
        written_bytes: task.number(page::WRITTEN_BYTES),
        transferred_bytes: task.number(page::TRANSFERRED_BYTES),
        kernel_hash: task.text(page::KERNEL_HASH),
        error: task.text(page::ERROR),
        stderr: task.text(page::STDERR),
        stdout: task.text(page::STDOUT),
    };
    records::insert_ended_task(db, &ended)?;
    if !task.done {
        return Ok(());
    }
    let mut selections = task.selections().into_iter();
    for (seq, &object) in (0..).zip(&task.inputs) {
        let input = TaskInput {
            name: &name_of(db, object)?.0,
            object,
            selection: &selections.next().unwrap_or_default(),
        };
        data::put_input(db, TaskId(task.task), seq, input)?;
    }
    let output = |&object: &u64| {
        let (name, file) = name_of(db, object)?;
        let (ino, size) = file.unwrap_or((0, 0));
        let output = OutputSpec {
            name,
            path: String::new(),
            part: false,
            memory: false,
            inode: Inode(ino),
        };
        let placed = Placed {
            object: ObjectId(object),
            node: NodeId(task.node),
            size,
        };
        Ok((output, placed))
    };
    let outputs = task.outputs.iter().map(output);
    let outputs = outputs.collect::<Result<Vec<_>, Fault>>()?;
    data::put_outputs(db, TaskId(task.task), &outputs)
}

/// Returns the last component of an object's path, with the inode and size of its file. For an object of no known version, returns the id.
fn name_of(db: &Connection, object: u64) -> Result<(String, Option<(u64, u64)>), Fault> {
    Ok(match version::file_of(db, object)? {
        Some((path, ino, size)) => {
            let path = String::from_utf8_lossy(&path).into_owned();
            let name = path.rsplit('/').next().unwrap_or_default();
            (name.to_owned(), Some((ino, size)))
        }
        None => (format!("object {object}"), None),
    })
}
