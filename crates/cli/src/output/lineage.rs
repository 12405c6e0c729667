//! Lineage as the server answers it, as JSON.

use serde_json::{Value, json};
use tidemill_wire::v1;

/// The answer as JSON.
pub(crate) fn json(reply: &v1::LineageReply) -> Value {
    json!({
        "object": reply.object,
        "versions": reply.versions.iter().map(version_json).collect::<Vec<_>>(),
        "runs": reply.runs.iter().map(run_json).collect::<Vec<_>>(),
        "cut": (!reply.cut.is_empty()).then_some(&reply.cut),
    })
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
        "element": version.element,
        "task": version.task,
    })
}

fn run_json(run: &v1::Run) -> Value {
    let named = |objects: &[v1::NamedObject]| -> Value {
        let pair =
            |object: &v1::NamedObject| json!({ "name": object.name, "object": object.object });
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
        "element": run.element,
        "uid": run.uid,
        "start": run.start,
        "end": run.end,
        "read_bytes": run.read_bytes,
        "written_bytes": run.written_bytes,
        "moved_bytes": run.moved_bytes,
        "reused_task": (run.reused_task != 0).then_some(run.reused_task),
        "inputs": named(&run.inputs),
        "outputs": named(&run.outputs),
    })
}
