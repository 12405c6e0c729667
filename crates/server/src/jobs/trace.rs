//! Traces: the course of a job, with all data that are needed to plan a similar job (`tidemill job export-trace`).
//!
//! The state of nodes at the start of a job is stored with the job, since histories and network links change until the export. All other
//! data is read from the tables of jobs and lineage.

use super::spec::{SPEC, StoredOrigin, StoredShare, StoredTask};
use super::store::parse;
use super::{SubmittedJob, store, view};
use crate::names::{Fault, parts};
use prost::Message;
use rusqlite::{Connection, OptionalExtension as _, params};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::event::{JobSpec, Origin};
use tidemill_model::id::{JobId, NodeId, ObjectId, TaskId};
use tidemill_model::layout::{Layout, Part};
use tidemill_model::time::Time;
use tidemill_sched::dispatch::{Dispatcher, NodeStatus};
use tidemill_wire::convert::role_name;
use tidemill_wire::v1;

/// Maximum number of reused results that are followed from a task to the original run.
const REUSED_MAX: usize = 64;

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

/// Stores the nodes that [`nodes`] returned.
pub(crate) fn keep(db: &Connection, job: JobId, nodes: &[v1::Node]) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO job_node(job, node, status) VALUES (?1, ?2, ?3)";
    let mut insert = db.prepare_cached(sql)?;
    for node in nodes {
        let row = params![job.0.cast_signed(), node.node, node.encode_to_vec()];
        insert.execute(row)?;
    }
    Ok(())
}

/// Returns the trace of a job; `job` has no tasks yet.
pub(crate) fn trace(db: &Connection, mut job: v1::Job) -> Result<v1::JobTrace, Fault> {
    job.tasks = view::tasks(db, job.job, -1)?.0;
    let decisions = view::decisions(db, job.job)?;
    if job.policy.is_empty() {
        let asked = decisions.iter().find(|one| one.policy != "pinned");
        job.policy = asked.map_or_else(String::new, |one| one.policy.clone());
    }
    // The last decision about a task is the decision of its last try.
    let sent: BTreeMap<u64, i64> = decisions.iter().map(|one| (one.task, one.at)).collect();
    let resolved = store::resolved_inputs(db, JobId(job.job))?;
    let mut files = BTreeMap::new();
    let mut tasks = Vec::with_capacity(job.tasks.len());
    let mut statement =
        db.prepare_cached("SELECT task, spec FROM task WHERE job = ?1 ORDER BY task")?;
    let mut rows = statement.query([job.job.cast_signed()])?;
    while let Some(row) = rows.next()? {
        let id = row.get::<_, i64>(0)?.cast_unsigned();
        let text: String = row.get(1)?;
        let stored: StoredTask = parse(&text, SPEC, id)?;
        let code = stored.inputs.iter().find(|one| one.name == stored.kernel);
        let sizes = store::outputs(&stored, &store::files(db, TaskId(id))?);
        tasks.push(v1::TracedTask {
            needs: Some(v1::Needs::from(&stored.needs())),
            kernel_path: code.map_or_else(String::new, |code| code.path.clone()),
            kernel_kind: match stored.share {
                // The task runs nothing, so it has no code.
                StoredShare::Join => JOIN.to_owned(),
                StoredShare::All | StoredShare::Instance | StoredShare::Merge => stored.kernel_kind,
            },
            pinned: stored.node,
            sent: sent.get(&id).copied().unwrap_or(0),
            output_sizes: sizes.iter().map(|placed| placed.size).collect(),
            run_ns: cached_ns(db, job.tasks.get(tasks.len()))?,
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
        nodes: kept(db, job.job)?,
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

/// Returns the duration of the run that made a task's reused result; 0 if the task ran itself or the duration is unknown.
pub(super) fn cached_ns(db: &Connection, task: Option<&v1::Task>) -> Result<u64, Fault> {
    let mut next = task.map_or(0, |task| task.reused_task);
    let sql = "SELECT reused, end - kernel_start FROM task WHERE task = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let mut ran = 0;
    for _ in 0..REUSED_MAX {
        if next == 0 {
            break;
        }
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let Some((before, ns)) = statement.query_row([next.cast_signed()], row).optional()? else {
            return Ok(0);
        };
        next = before.cast_unsigned();
        ran = u64::try_from(ns).unwrap_or(0);
    }
    Ok(ran)
}

fn kept(db: &Connection, job: u64) -> Result<Vec<v1::Node>, Fault> {
    let sql = "SELECT status FROM job_node WHERE job = ?1 ORDER BY node";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([job.cast_signed()], |row| row.get::<_, Vec<u8>>(0))?;
    let mut nodes = Vec::new();
    for row in rows {
        let status = v1::Node::decode(row?.as_slice())
            .map_err(|error| Fault::Corrupt(format!("nodes of job {job}: {error}")))?;
        nodes.push(status);
    }
    Ok(nodes)
}
