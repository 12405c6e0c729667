//! The reference of job files, from the JSON Schema that the readers of job files keep up to date.

use super::markdown::table;
use serde_json::{Map, Value};
use std::fmt::Write as _;

const SCHEMA: &str = include_str!("../../../../examples/job.schema.json");

const HEAD: &str = "# Settings of job files\n
This page lists every setting of jobs, rules and hooks in TOML. [Job files](../job-files.md), [rules](../rules.md) and [hooks](../hooks.md)
explain the settings. `examples/job.schema.json` is the same list as a JSON Schema, for editors.\n
Lengths of time are seconds, or strings such as `\"90s\"`, `\"5m\"`, `\"2h\"`, `\"1d\"`. Sizes are bytes, or strings such as `\"512MB\"`
(powers of 1000) or `\"4GiB\"` (powers of 1024).\n\n";

/// Tables in the order of the page: name in the schema, title, and where the table stands.
const TABLES: [(&str, &str, &str); 8] = [
    ("job", "`[job]`", "The table `[job]` of a job or rule"),
    (
        "task",
        "`[[task]]`",
        "One table `[[task]]` for each task of a job, or the table `[task]` of a rule",
    ),
    ("input", "Input", "A table in `input` of a task"),
    (
        "limits",
        "Limits",
        "The table `limits` of `[job]`, and of a task",
    ),
    ("on", "`[on]`", "The table `[on]` of a rule or hook"),
    ("conditions", "Conditions", "The table `where` of `[on]`"),
    ("batch", "Batch", "The table `batch` of `[on]`"),
    ("hook", "`[hook]`", "The table `[hook]` of a hook"),
];

/// Returns the page.
pub(super) fn page() -> String {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap_or_default();
    let definitions = schema["$defs"].as_object().cloned().unwrap_or_default();
    let mut out = HEAD.to_owned();
    for (name, title, place) in TABLES {
        if let Some(definition) = definitions.get(name) {
            let _ = write!(out, "## {title}\n\n{place}.\n\n");
            settings(&mut out, name, definition, &definitions);
        }
    }
    out.trim_end().to_owned() + "\n"
}

fn settings(out: &mut String, of: &str, definition: &Value, all: &Map<String, Value>) {
    let required = definition["required"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let properties = definition["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let is_required = |name: &String| required.iter().any(|one| one == name);
    let mut properties: Vec<_> = properties.iter().collect();
    properties.sort_by_key(|(name, _)| !is_required(name));
    let rows: Vec<_> = properties
        .iter()
        .map(|(name, value)| {
            let text = value["description"].as_str().unwrap_or_default();
            let (text, default) = super::commands::split_default(text);
            let of_job = of == "task" && !shared(of, name, all).is_empty();
            let default = match (default, is_required(name)) {
                _ if of_job => "that of the job",
                (_, true) => "required",
                (Some(default), _) => default,
                (None, _) => "none",
            };
            [
                format!("`{name}`"),
                type_of(value),
                default.to_owned(),
                shared(of, name, all).to_owned(),
                text.to_owned(),
            ]
        })
        .collect();
    table(
        out,
        ["setting", "type", "default", "also in", "meaning"],
        &rows,
    );
}

/// Returns the other table of a setting that both a job and a task have: the task overrides the job.
fn shared(of: &str, name: &str, all: &Map<String, Value>) -> &'static str {
    let has = |other: &str| {
        all.get(other)
            .is_some_and(|table| !table["properties"][name].is_null())
    };
    match of {
        _ if name == "name" => "",
        "job" if has("task") => "`[[task]]`",
        "task" if has("job") => "`[job]`",
        _ => "",
    }
}

/// Returns the words for a type of the schema.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"]
        .as_str()
        .and_then(|path| path.rsplit('/').next())
    {
        return format!("[table](#{name})");
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    if let Some(ways) = schema["anyOf"].as_array() {
        let ways: Vec<String> = ways.iter().map(type_of).collect();
        return ways.join(", or ");
    }
    match &schema["type"] {
        Value::Array(types) => {
            let types: Vec<&str> = types.iter().filter_map(Value::as_str).collect();
            types.join(" or ")
        }
        kind if kind == "array" => format!("array of {}", plural(&type_of(&schema["items"]))),
        kind if kind == "object" => match type_of(&schema["additionalProperties"]) {
            values if values.is_empty() => "table".into(),
            values => format!("table of {}", plural(&values)),
        },
        kind => kind.as_str().unwrap_or_default().to_owned(),
    }
}

fn plural(kind: &str) -> String {
    kind.replace("string", "strings")
        .replace("integer", "integers")
        .replace("[table]", "[tables]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_of_the_schema_is_on_the_page() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let page = page();
        for (name, definition) in schema["$defs"].as_object().unwrap() {
            assert!(TABLES.iter().any(|(known, ..)| known == name), "{name}");
            for setting in definition["properties"].as_object().unwrap().keys() {
                assert!(
                    page.contains(&format!("\n| `{setting}` | ")),
                    "{name}.{setting}"
                );
            }
        }
        assert!(!page.contains("|  |  |  |"), "{page}");
        assert!(
            page.contains("| `input` | array of strings, or [tables](#input) | none |"),
            "{page}"
        );
    }
}
