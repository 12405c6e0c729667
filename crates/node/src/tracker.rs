//! Conversion of the task tracker and the status object to JSON, for `GET /tasks`, `/status` and attributes. The functions have no effects.

use crate::flash_model;
use crate::labels::Live;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tidemill_model::attribute::{object, status, task};
use tidemill_model::display::escaped;
use tidemill_model::id::{ObjectId, TaskId};
use tidemill_model::label::{LabelInput, LabelOutput, Operation};
use tidemill_wire::v1;

/// Names of the attributes of a task collection, and whether they are numbers.
const TASK_NAMES: [(u32, &str, bool); 19] = [
    (task::INPUTS, "inputs_collection", true),
    (task::OUTPUTS, "outputs_collection", true),
    (task::NAME, "name", false),
    (task::JOB, "job", true),
    (task::KERNEL, "kernel", false),
    (task::KERNEL_HASH, "kernel_hash", false),
    (task::ARGS, "args", false),
    (task::STATE, "state", false),
    (task::START, "start", true),
    (task::END, "end", true),
    (task::EXIT, "exit", true),
    (task::TRANSFERRED_BYTES, "transferred_bytes", true),
    (task::READ_BYTES, "read_bytes", true),
    (task::WRITTEN_BYTES, "written_bytes", true),
    (task::ERROR, "error", false),
    (task::STDERR, "stderr", false),
    (task::UID, "uid", true),
    (task::STDOUT, "stdout", false),
    (task::SELECTIONS, "selections", false),
];

/// Returns whether a label belongs to a task.
pub(crate) fn is_of(live: &Live, id: TaskId) -> bool {
    matches!(&live.label.operation, Operation::Analyse(analysis) if analysis.task == id)
}

/// Returns a queued or running label as JSON.
pub(crate) fn live_json(live: &Live) -> Value {
    let label = &live.label;
    let mut json = json!({
        "label": label.id.0,
        "state": live.state,
        "start": live.start.0,
        "uid": label.owner.uid,
    });
    match &label.operation {
        Operation::Analyse(analysis) => {
            let input = |input: &LabelInput| hex(input.object);
            let output = |output: &LabelOutput| hex(output.object);
            json["operation"] = "analyse".into();
            json["task"] = analysis.task.0.into();
            json["job"] = analysis.job.0.into();
            json["name"] = analysis.name.as_str().into();
            json["kernel"] = analysis.kernel.name().into();
            json["args"] = analysis.args.clone().into();
            json["inputs"] = analysis.inputs.iter().map(input).collect();
            json["outputs"] = analysis.outputs.iter().map(output).collect();
            let (stdout, stderr) = live.control.printed();
            json["stdout"] = stdout.into();
            json["stderr"] = stderr.into();
        }
        Operation::Copy { from, to, .. } => {
            json["operation"] = "copy".into();
            json["inputs"] = json!([hex(from.object)]);
            json["outputs"] = json!([hex(to.object)]);
        }
        Operation::Remove { objects } => {
            json["operation"] = "remove".into();
            json["inputs"] = objects.iter().map(|&object| hex(object)).collect();
        }
        Operation::Verify { objects, .. } => {
            json["operation"] = "verify".into();
            json["inputs"] = objects.iter().map(|&object| hex(object)).collect();
        }
    }
    json
}

pub(crate) fn ended_json(
    id: TaskId,
    attributes: &[(u32, u32, Vec<u8>)],
    inputs: &[ObjectId],
    outputs: &[ObjectId],
) -> Value {
    let mut json = Map::new();
    json.insert("operation".into(), "analyse".into());
    json.insert("task".into(), id.0.into());
    let own = attributes.iter().filter(|(page, ..)| *page == task::PAGE);
    for (_, number, value) in own {
        let Some((_, name, is_number)) = TASK_NAMES.iter().find(|(n, ..)| n == number) else {
            continue;
        };
        let value = match name {
            &("args" | "selections") => serde_json::from_slice(value).unwrap_or(Value::Null),
            _ => decode(value, *is_number),
        };
        json.insert((*name).into(), value);
    }
    let ids = |ids: &[ObjectId]| ids.iter().map(|&id| hex(id)).collect::<Value>();
    json.insert("inputs".into(), ids(inputs));
    json.insert("outputs".into(), ids(outputs));
    json.into()
}

/// Returns one attribute as JSON: a number or text according to its page, else hexadecimal digits.
pub(crate) fn attribute_json(page: u32, number: u32, value: &[u8]) -> Value {
    let is_number = match page {
        object::PAGE if number == object::PART => None,
        object::PAGE => Some(number != object::PATH),
        status::PAGE => Some(!matches!(number, status::HISTORY | status::FLASH_MODEL)),
        task::PAGE => TASK_NAMES
            .iter()
            .find(|(n, ..)| *n == number)
            .map(|(.., is_number)| *is_number),
        _ => None,
    };
    match is_number {
        Some(is_number) => {
            let is_path = page == object::PAGE && number == object::PATH;
            let value = match is_path {
                true => escaped(value).into(),
                false => decode(value, is_number),
            };
            json!({"page": page, "number": number, "value": value})
        }
        None => {
            let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({"page": page, "number": number, "hex": hex})
        }
    }
}

/// Returns the status of a node as JSON.
pub fn status_json(node: &v1::Node) -> Value {
    let history: BTreeMap<&str, Value> = node
        .history
        .iter()
        .map(|(name, h)| {
            let history = json!({
                "runs": h.runs,
                "total_ns": h.total_ns,
                "input_bytes": h.input_bytes,
            });
            (name.as_str(), history)
        })
        .collect();
    json!({
        "node": node.node,
        "role": node.role,
        "url": node.url,
        "cores": node.cores,
        "memory_bytes": node.memory_bytes,
        "resources": node.resources,
        "running": node.running,
        "queued": node.queued,
        "capacity_bytes": node.capacity_bytes,
        "free_bytes": node.free_bytes,
        "bytes_written": node.bytes_written,
        "bytes_read": node.bytes_read,
        "link_bytes_per_sec": node.link_bytes_per_sec,
        "device_bytes_per_sec": node.device_bytes_per_sec,
        "watts_milli": node.watts_milli,
        "load_milli": node.load_milli,
        "sandbox": node.sandbox,
        "history": history,
        "flash_model": node.flash_model.as_ref().map(flash_model::json),
    })
}

fn decode(value: &[u8], is_number: bool) -> Value {
    match <[u8; 8]>::try_from(value) {
        Ok(bytes) if is_number => u64::from_le_bytes(bytes).into(),
        _ => String::from_utf8_lossy(value).into(),
    }
}

fn hex(id: ObjectId) -> Value {
    format!("{:016x}", id.0).into()
}
