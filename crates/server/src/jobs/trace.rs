//! Traces: the course of a job, with all data that are needed to plan a similar job (`tidemill job export-trace`).
//!
//! The state of nodes at the start of a job is stored with the job, since histories and network links change until the export. All other
//! data is read from the tables of jobs and lineage.

use super::{SubmittedJob, store};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_meta::jobs::records;
use tidemill_meta::jobs::spec::{StoredOrigin, StoredShare};
use tidemill_meta::jobs::view::{self, StartedTasks};
use tidemill_meta::lineage::original_ns;
use tidemill_meta::{Connection, Fault, parts};
use tidemill_model::event::{JobSpec, Origin};
use tidemill_model::id::{JobId, NodeId, ObjectId};
use tidemill_model::layout::{Layout, Part};
use tidemill_model::time::Time;
use tidemill_sched::dispatch::{Dispatcher, NodeStatus};
use tidemill_wire::convert::role_name;
use tidemill_wire::v1;

/// Returns the nodes that are up at the start of a job, with their histories of the job's kernels and all other state that the job's policy
/// uses.
pub(crate) fn nodes(job: &SubmittedJob, dispatcher: &Dispatcher, now: Time) -> Vec<v1::Node> {
    let memory = dispatcher.memory(job.spec.policy.as_deref());
    let read: BTreeSet<ObjectId> = inputs(&job.spec).collect();
    let mut all: Vec<v1::Node> = known(job, dispatcher.nodes(now)).collect();
    for (index, node) in all.iter_mut().enumerate() {
        let id = NodeId(node.node);
        let replicas = dispatcher.replicas_on(id).map(|(object, _)| object);
        let wait_ns = node.traced.as_ref().map_or(0, |state| state.wait_ns);
        node.traced = Some(v1::TracedState {
            wait_ns,
            replicas: replicas
                .filter(|object| read.contains(object))
                .map(|object| object.0)
                .collect(),
            last: memory.last == Some(id),
            source: memory.source.filter(|_| index == 0),
        });
    }
    all
}

/// Returns the inputs of a job that exist when the job starts.
fn inputs(job: &JobSpec) -> impl Iterator<Item = ObjectId> + '_ {
    let inputs = job.tasks.iter().flat_map(|task| &task.inputs);
    inputs.filter_map(|input| match input.origin {
        Origin::File(placed) => Some(placed.object),
        Origin::Awaited | Origin::Task(..) => None,
    })
}

fn known(
    job: &SubmittedJob,
    nodes: impl Iterator<Item = NodeStatus>,
) -> impl Iterator<Item = v1::Node> {
    let tasks = job.spec.tasks.iter();
    let kernels: BTreeSet<String> = tasks.map(|task| task.kernel.name().to_owned()).collect();
    let up = nodes.filter(|node| node.up);
    let node = move |node: NodeStatus| {
        let view = node.view;
        let known = view.history.into_iter();
        let known = known.filter(|(kernel, _)| kernels.contains(kernel.as_str()));
        let history = known.map(|(kernel, history)| {
            let history = v1::KernelHistory {
                runs: history.runs,
                total_ns: history.total_ns,
                input_bytes: history.input_bytes,
            };
            (kernel, history)
        });
        v1::Node {
            node: node.node.0,
            role: role_name(view.role).into(),
            up: true,
            cores: view.offers.cores,
            memory_bytes: view.offers.memory_bytes,
            resources: view.offers.named,
            programs: node.programs,
            capacity_bytes: view.capacity_bytes,
            free_bytes: view.free_bytes,
            link_bytes_per_sec: view.link_bytes_per_sec,
            device_bytes_per_sec: view.device_bytes_per_sec,
            watts_milli: view.watts_milli,
            history: history.collect(),
            running: count(node.running),
            queued: count(node.outstanding.saturating_sub(node.running)),
            traced: Some(v1::TracedState {
                wait_ns: node.wait.0,
                ..v1::TracedState::default()
            }),
            ..v1::Node::default()
        }
    };
    up.map(node)
}

fn count(labels: usize) -> u32 {
    u32::try_from(labels).unwrap_or(u32::MAX)
}

/// Returns the trace of a job; `job` has no tasks yet.
pub(crate) fn trace(db: &Connection, mut job: v1::Job) -> Result<v1::JobTrace, Fault> {
    job.tasks = view::tasks(db, job.job, -1, &StartedTasks::default())?.0;
    let decisions = view::decisions(db, job.job)?;
    if job.policy.is_empty() {
        let asked = decisions.iter().find(|one| one.policy != "pinned");
        job.policy = asked.map_or_else(String::new, |one| one.policy.clone());
    }
    // The last decision about a task is the decision of its last try.
    let sent: BTreeMap<u64, i64> = decisions.iter().map(|one| (one.task, one.at)).collect();
    let resolved = tidemill_meta::jobs::awaited::resolved_inputs(db, JobId(job.job))?;
    let mut files = BTreeMap::new();
    let mut tasks = Vec::with_capacity(job.tasks.len());
    for (id, stored) in view::specs(db, job.job)? {
        let code = stored.inputs.iter().find(|one| one.name == stored.kernel);
        let sizes = store::outputs(&stored, &tidemill_meta::jobs::data::output_files(db, id)?);
        tasks.push(v1::TracedTask {
            needs: Some(v1::Needs::from(&stored.needs())),
            kernel_path: code.map_or_else(String::new, |code| code.path.clone()),
            kernel_kind: match stored.share {
                // The task runs nothing, so it has no code.
                StoredShare::Join => JOIN.to_owned(),
                StoredShare::All | StoredShare::Instance | StoredShare::Merge => stored.kernel_kind,
            },
            pinned: stored.node,
            sent: sent.get(&id.0).copied().unwrap_or(0),
            output_sizes: sizes.iter().map(|placed| placed.size).collect(),
            run_ns: match job.tasks.get(tasks.len()) {
                Some(task) => original_ns(db, task.reused_task)?,
                None => 0,
            },
        });
        for input in stored.inputs {
            let (size, node, object) = match input.origin {
                StoredOrigin::File { node, size, object } => (size, node, object),
                StoredOrigin::Awaited => match resolved.get(&input.path) {
                    Some(placed) => (placed.size, placed.node.0, placed.object.0),
                    None => continue,
                },
                StoredOrigin::Task { .. } => continue,
            };
            if files.contains_key(&input.path) {
                continue;
            }
            let path = input.path.clone();
            let file = v1::TracedFile {
                layout: layout(db, object)?,
                path,
                size,
                node,
                object,
            };
            files.insert(input.path, file);
        }
    }
    Ok(v1::JobTrace {
        nodes: records::nodes(db, JobId(job.job))?,
        job: Some(job),
        files: files.into_values().collect(),
        tasks,
    })
}

/// Returns the objects of a striped version, with their nodes. Returns `None` for a version that is one object, and for a version of
/// extents, which traces can't represent.
pub(super) fn layout(db: &Connection, object: u64) -> Result<Option<v1::Layout>, Fault> {
    let Some(Layout::Striped(striped)) = parts::sealed(db, object)? else {
        return Ok(None);
    };
    let part = |part: &Part| v1::LayoutPart {
        object: part.object.0,
        node: part.replicas.first().map_or(0, |replica| replica.node.0),
        size: part.size,
        capability: Vec::new(),
    };
    Ok(Some(v1::Layout {
        unit: striped.unit,
        parts: striped.parts.iter().map(part).collect(),
        ..v1::Layout::default()
    }))
}

/// Kernel kind of a task that runs on no node because its task instances run in its place.
pub(super) const JOIN: &str = "builtin";
