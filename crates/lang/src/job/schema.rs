//! Generator of `examples/job.schema.json`, the JSON Schema of jobs, rules and hooks in TOML. The names are those that the readers accept, and
//! each needs a type and a description here.

use super::read::{
    ACCESS, INPUT_SETTINGS, JOB_SETTINGS, KERNEL_KINDS, LIMIT_SETTINGS, TASK_SETTINGS, TIERS,
};
use crate::rule::hook::{HOOK_SETTINGS, InputAction, On};
use crate::rule::read::{BATCH_SETTINGS, OWN};
use crate::script::from_toml::{EVENTS, ON_SETTINGS};
use std::path::Path;

/// Environment variable that makes the test write the file.
const WRITE: &str = "TIDEMILL_WRITE_SCHEMA";
/// Name, type and description of a setting.
type Row = (&'static str, &'static str, &'static str);

/// Settings of `[job]` only.
const JOB: [Row; 8] = [
    (
        "name",
        "text",
        "Name of the job or rule, without slashes; a job needs it",
    ),
    (
        "workdir",
        "text",
        "Absolute path in the cluster to which all names are relative; a job needs it",
    ),
    (
        "policy",
        "text",
        "Placement policy [default: that of the cluster]",
    ),
    (
        "strict",
        "boolean",
        "Refuse the job if an input does not exist [default: false]",
    ),
    (
        "replace",
        "boolean",
        "Make new versions of outputs that exist [default: false; true in rules]",
    ),
    ("cache", "boolean", "Use cached results [default: true]"),
    ("submission-id", "text", "Idempotency key of the submission"),
    (
        "intermediate",
        "tier",
        "Storage of intermediate files [default: disk]",
    ),
];
/// Settings of `[job]` that a task overrides.
const BOTH: [Row; 9] = [
    (
        "retries",
        "integer",
        "Number of retries of a task, 0 to 100 [default: 2]",
    ),
    (
        "lifetime",
        "lifetime",
        "Lifetime of outputs: keep, used, or a length of time such as 2h [default: keep]",
    ),
    ("limits", "limits", "Limits of each run of a task"),
    (
        "cores",
        "integer",
        "Number of cores of a task, 0 to 4096 [default: 1]",
    ),
    (
        "memory",
        "quantity",
        "Reserved memory of a task, such as 2G",
    ),
    (
        "resources",
        "resources",
        "Amounts of other resources of a task by name",
    ),
    (
        "environment",
        "variables",
        "Environment variables of a task",
    ),
    ("path", "texts", "Directories of hosts with programs"),
    (
        "directories",
        "texts",
        "Directories of hosts that a task sees",
    ),
];
/// Settings of a task only.
const TASK: [Row; 19] = [
    (
        "name",
        "text",
        "Name of the task, without slashes, unique in the job; a job needs it, and a rule has none",
    ),
    (
        "foreach",
        "foreach",
        "Glob with named wildcards, or values, that create many tasks; not in rules",
    ),
    (
        "per",
        "text",
        "Unit of task instances: stripe-object, stripe, chunk or file",
    ),
    (
        "layout",
        "text",
        "Layout of the output: same stripes the output as the first input [default: one object]",
    ),
    (
        "variable",
        "text",
        "Variable that task instances read, such as netcdf:tas",
    ),
    (
        "reduce",
        "text",
        "Kernel that merges the outputs of task instances",
    ),
    (
        "records",
        "quantity",
        "Records: bytes of each, lines, or the bytes that end a record",
    ),
    (
        "halo",
        "quantity",
        "Bytes around a stripe that a task instance sees",
    ),
    (
        "access",
        "access",
        "Readable bytes of inputs [default: part]",
    ),
    (
        "mpi",
        "boolean",
        "Run one MPI process on each node with input data [default: false]",
    ),
    ("kernel", "text", "Kernel, or pipeline of kernels"),
    (
        "input",
        "inputs",
        "Files and directories that the task reads, up to 100 000",
    ),
    (
        "output",
        "texts",
        "Files, and directories with a slash at the end, that the task writes, 1 to 10 000",
    ),
    (
        "args",
        "args",
        "Arguments of the kernel, up to 10 000 of 128 KiB each; a table gives arguments name=value",
    ),
    ("type", "kernel", "Source of the kernel [default: detected]"),
    (
        "stdin",
        "text",
        "Input that becomes standard input [default: nothing]",
    ),
    (
        "stdout",
        "text",
        "Output that takes standard output [default: the log of the task]",
    ),
    (
        "streaming",
        "streaming",
        "Inputs that are read while they are written, or true for all inputs",
    ),
    (
        "node",
        "integer",
        "Node on which the task must run [default: chosen by the policy]",
    ),
];
/// Settings of an input.
const INPUT: [Row; 5] = [
    ("file", "text", "File, neither a directory nor a pattern"),
    (
        "part",
        "quantity",
        "Number of a part of a striped file, from 0",
    ),
    ("bytes", "text or texts", "Ranges of bytes such as 0-4095"),
    (
        "records",
        "quantity",
        "Records: bytes of each, lines, or the bytes that end a record",
    ),
    (
        "name",
        "text",
        "Name of the file for the kernel, relative to workdir",
    ),
];
/// Limits.
const LIMIT: [Row; 3] = [
    (
        "time",
        "quantity",
        "Wall-clock time of one run [default: 1h]",
    ),
    (
        "memory",
        "quantity",
        "Address space [default: memory of the task, or 8G]",
    ),
    (
        "output",
        "quantity",
        "Total bytes that a task may write [default: 64G]",
    ),
];
/// Settings of `[on]`.
const ON: [Row; 6] = [
    (
        "files",
        "text",
        "Glob of the files, relative to workdir; {name} is a wildcard with a name",
    ),
    (
        "regex",
        "text",
        "Regular expression of whole paths below workdir, in place of files",
    ),
    (
        "event",
        "event",
        "Event that triggers the rule [default: closed]",
    ),
    (
        "where",
        "text",
        "Condition on the files, such as size >= 1MB and owner = alice",
    ),
    (
        "batch",
        "batch",
        "Number or time of files that one task processes together",
    ),
    (
        "depth",
        "integer",
        "Longest chain of rule runs, 1 to 1000 [default: 8]",
    ),
];
/// Settings of batches.
const BATCH: [Row; 2] = [
    (
        "files",
        "integer",
        "Number of files of one task, 1 to 10000",
    ),
    ("after", "text", "Time after the first file, such as 5s"),
];
/// Settings of `[hook]`.
const HOOK: [Row; 9] = [
    (
        "map",
        "text",
        "Kernel that runs on each file, with its arguments",
    ),
    (
        "output",
        "text",
        "Path of the result of the map, or of the reduced result",
    ),
    (
        "reduce",
        "text",
        "Kernel that reduces the results of a batch",
    ),
    (
        "parts",
        "text",
        "Path of the results of maps that are reduced",
    ),
    (
        "group",
        "integer",
        "Number of files of a batch or of one map, 1 to 10000",
    ),
    ("marker", "text", "Glob of files that end a batch"),
    ("on", "hook_on", "Time of the map [default: seal]"),
    (
        "inputs",
        "hook_inputs",
        "Handling of files after their map [default: keep]",
    ),
    (
        "mpi",
        "boolean",
        "Run one MPI process on each node with a part of the file [default: false]",
    ),
];

const HEAD: &str = r##"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "Job, rule or hook of Tidemill in TOML",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "job": { "description": "Settings of the job", "$ref": "#/$defs/job" },
    "task": { "description": "Tasks of a job, or the task of a rule", "anyOf": [{ "$ref": "#/$defs/task" }, { "type": "array", "items": { "$ref": "#/$defs/task" } }] },
    "on": { "description": "Files that trigger a rule", "$ref": "#/$defs/on" },
    "hook": { "description": "Kernels that map and reduce the files of a rule", "$ref": "#/$defs/hook" }
  },
  "$defs": {
"##;

const TEXT: &str = r#"{ "type": "string" }"#;
const BOOLEAN: &str = r#"{ "type": "boolean" }"#;
const INTEGER: &str = r#"{ "type": "integer" }"#;
const QUANTITY: &str = r#"{ "type": ["string", "integer"] }"#;
const ARGUMENTS: &str = r#"{ "type": "object", "propertyNames": { "pattern": "^[a-z0-9_-]+$" }, "additionalProperties": { "type": ["string", "number", "boolean"] } }"#;

fn choice(values: &[&str]) -> String {
    let values: Vec<_> = values.iter().map(|value| format!("\"{value}\"")).collect();
    format!("{{ \"enum\": [{}] }}", values.join(", "))
}

fn many(items: &str) -> String {
    format!("{{ \"type\": \"array\", \"items\": {items} }}")
}

fn any_of(first: &str, second: &str) -> String {
    format!("{{ \"anyOf\": [{first}, {second}] }}")
}

fn table(values: &str) -> String {
    format!("{{ \"type\": \"object\", \"additionalProperties\": {values} }}")
}

fn definition(name: &str) -> String {
    format!("{{ \"$ref\": \"#/$defs/{name}\" }}")
}

/// Returns the schema of a type.
fn schema_of(kind: &str) -> String {
    match kind {
        "text" => TEXT.to_owned(),
        "boolean" => BOOLEAN.to_owned(),
        "integer" => INTEGER.to_owned(),
        "quantity" | "lifetime" => QUANTITY.to_owned(),
        "texts" => many(TEXT),
        "text or texts" => any_of(TEXT, &many(TEXT)),
        "resources" => table("true"),
        "variables" => table(QUANTITY),
        "foreach" => any_of(TEXT, &table("true")),
        "args" => any_of(&many(QUANTITY), ARGUMENTS),
        "inputs" => many(&any_of(TEXT, &definition("input"))),
        "streaming" => any_of(BOOLEAN, &many(TEXT)),
        "batch" => any_of(QUANTITY, &definition("batch")),
        "limits" => definition(kind),
        "tier" => choice(&TIERS),
        "access" => choice(&ACCESS),
        "kernel" => choice(&KERNEL_KINDS),
        "event" => choice(&EVENTS.map(|(event, _)| event)),
        "hook_on" => choice(&[On::Write, On::Seal, On::Group].map(On::word)),
        "hook_inputs" => {
            let actions = [InputAction::Keep, InputAction::Delete, InputAction::Evict];
            choice(&actions.map(InputAction::word))
        }
        _ => panic!("{kind} is no type"),
    }
}

/// Returns the definition of a table with the settings that a reader accepts.
fn defined(name: &str, settings: &[&str], rows: &[&[Row]], required: &[&str]) -> String {
    let rows = rows.concat();
    assert_eq!(rows.len(), settings.len(), "settings of {name}");
    let property = |setting: &&str| {
        let row = rows.iter().find(|(known, ..)| known == setting);
        let (_, kind, description) =
            row.unwrap_or_else(|| panic!("{name}.{setting} needs a type and a description"));
        let schema = schema_of(kind);
        let rest = schema.strip_prefix("{ ").unwrap();
        format!("        \"{setting}\": {{ \"description\": \"{description}\", {rest}")
    };
    let properties: Vec<_> = settings.iter().map(property).collect();
    let required: Vec<_> = required.iter().map(|name| format!("\"{name}\"")).collect();
    let required = match required.is_empty() {
        true => String::new(),
        false => format!("      \"required\": [{}],\n", required.join(", ")),
    };
    format!(
        "    \"{name}\": {{\n      \"type\": \"object\",\n      \"additionalProperties\": false,\n{required}      \"properties\": {{\n{}\n      }}\n    }}",
        properties.join(",\n")
    )
}

/// Returns the schema.
fn generated() -> String {
    // The tasks of a job are tables of their own.
    let job = JOB_SETTINGS.iter().copied().filter(|name| *name != "tasks");
    let job: Vec<_> = job.collect();
    let definitions = [
        defined("job", &job, &[&JOB, &BOTH], &[]),
        defined(
            "task",
            &TASK_SETTINGS,
            &[&TASK, &BOTH],
            &["kernel", "output"],
        ),
        defined("input", &INPUT_SETTINGS, &[&INPUT], &["file"]),
        defined("limits", &LIMIT_SETTINGS, &[&LIMIT], &[]),
        defined("on", &ON_SETTINGS, &[&ON], &[]).replacen(
            "\"additionalProperties\": false,",
            "\"additionalProperties\": false,\n      \"oneOf\": [{ \"required\": [\"files\"] }, { \"required\": [\"regex\"] }],",
            1,
        ),
        defined("batch", &BATCH_SETTINGS, &[&BATCH], &[]),
        defined("hook", &HOOK_SETTINGS, &[&HOOK], &["map", "output"]),
    ];
    format!("{HEAD}{}\n  }}\n}}\n", definitions.join(",\n"))
}

#[test]
fn schema_file_matches_settings_of_readers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/job.schema.json");
    let generated = generated();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(
        file == generated,
        "examples/job.schema.json is out of date: run `{WRITE}=1 cargo test -p tidemill-lang schema`"
    );
}

#[test]
fn table_on_has_all_settings_of_rules() {
    let renamed = |name: &&'static str| -> &'static str {
        match *name {
            "pattern" => "files",
            "when" => "event",
            name => name,
        }
    };
    let own = OWN.iter().filter(|name| **name != "task");
    let mut own: Vec<_> = own.map(renamed).collect();
    let mut on = ON_SETTINGS.to_vec();
    own.sort_unstable();
    on.sort_unstable();
    assert_eq!(own, on);
}
