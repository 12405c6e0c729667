//! Lineage reply of the server, as JSON.

use serde_json::{Map, Value, json};
use tidemill_core::id::{ObjectId, TaskId};
use tidemill_core::lineage::difference::Difference;
use tidemill_core::lineage::{Graph, Vertex};
use tidemill_wire::v1;

/// Returns the reply as JSON, limited to the graph, and the ids of the found vertices.
pub(crate) fn json(reply: &v1::LineageReply, graph: &Graph, found: Option<&[Vertex]>) -> Value {
    let versions = reply.versions.iter();
    let versions = versions.filter(|version| graph.version(ObjectId(version.object)).is_some());
    let runs = reply.runs.iter();
    let runs = runs.filter(|run| graph.record(TaskId(run.task)).is_some());
    let mut document = json!({
        "object": (reply.object != 0).then_some(reply.object),
        "cluster": format!("{:016x}", reply.cluster),
        "versions": versions.map(version_json).collect::<Vec<_>>(),
        "runs": runs.map(run_json).collect::<Vec<_>>(),
        "cut": (!reply.cut.is_empty()).then_some(&reply.cut),
    });
    if let Some(found) = found {
        let object = |vertex: &Vertex| match vertex {
            Vertex::Version(object) => Some(object.0),
            Vertex::Run(_) => None,
        };
        let task = |vertex: &Vertex| match vertex {
            Vertex::Run(task) => Some(task.0),
            Vertex::Version(_) => None,
        };
        let objects: Vec<u64> = found.iter().filter_map(object).collect();
        let tasks: Vec<u64> = found.iter().filter_map(task).collect();
        document["found"] = json!({ "objects": objects, "tasks": tasks });
    }
    document
}

/// Returns differences as JSON.
pub(crate) fn difference(differences: &[Difference]) -> Value {
    let one = |one: &Difference| json!({ "run": one.run, "what": one.what, "first": one.first, "second": one.second });
    json!({ "differences": differences.iter().map(one).collect::<Vec<_>>() })
}

fn version_json(version: &v1::Version) -> Value {
    if version.hidden {
        return json!({ "object": version.object, "task": version.task, "hidden": true });
    }
    json!({
        "object": version.object,
        "path": version.path,
        "current_path": version.current_path,
        "size": version.size,
        "inode": version.ino,
        "version": version.version,
        "uid": version.uid,
        "sealed_at": version.sealed_at,
        "node": version.node,
        "task": version.task,
        "superseded": version.superseded,
        "dropped": (!version.dropped.is_empty()).then_some(&version.dropped),
        "hash": (!version.hash.is_empty()).then_some(&version.hash),
        "annotations": annotations(version),
    })
}

fn annotations(version: &v1::Version) -> Map<String, Value> {
    let one = |one: &v1::Annotation| {
        let value = String::from_utf8_lossy(&one.value);
        (one.name.clone(), Value::String(value.into_owned()))
    };
    version.annotations.iter().map(one).collect()
}

/// Returns the environment that a task requested.
pub(super) fn runtime_environment(given: Option<&v1::RuntimeEnvironment>) -> Option<Value> {
    given.map(
        |one| json!({ "environment": one.environment, "path": one.path, "directories": one.directories }),
    )
}

fn run_json(run: &v1::Run) -> Value {
    let named = |objects: &[v1::NamedObject]| -> Value {
        let pair = |object: &v1::NamedObject| {
            let mut pair = json!({ "name": object.name, "object": object.object });
            if !object.selection.is_empty() {
                pair["selection"] = object.selection.as_str().into();
            }
            pair
        };
        objects.iter().map(pair).collect()
    };
    if run.hidden {
        return json!({
            "task": run.task,
            "hidden": true,
            "inputs": named(&run.inputs),
            "outputs": named(&run.outputs),
        });
    }
    json!({
        "task": run.task,
        "job": run.job,
        "job_name": run.job_name,
        "name": run.name,
        "kernel": run.kernel,
        "kernel_hash": run.kernel_hash,
        "args": run.args,
        "runtime_environment": runtime_environment(run.runtime_environment.as_ref()),
        "node": run.node,
        "uid": run.uid,
        "start": run.start,
        "end": run.end,
        "read_bytes": run.read_bytes,
        "written_bytes": run.written_bytes,
        "transferred_bytes": run.transferred_bytes,
        "reused_task": (run.reused_task != 0).then_some(run.reused_task),
        "inputs": named(&run.inputs),
        "outputs": named(&run.outputs),
    })
}
