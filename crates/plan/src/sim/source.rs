//! Kinds of input files for planning: a job script, a trace or a workflow of WfCommons. The content of the file determines its kind.

use super::error::{FileProblem, InputError};
use super::json::JsonReader;
use super::trace;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use tidemill_lang::script::TextForm;

/// Kind of a planning input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// The file is a job script, for [`super::job::parse`].
    Script,
    /// The file is a trace, for [`trace::Trace::parse`].
    Trace,
    /// The file is a workflow, for [`super::wfformat::parse`].
    WfFormat,
}

/// Returns the kind of a planning input file. `file` is the name used in errors.
///
/// # Errors
/// The file is empty, or is JSON that is neither a trace nor a workflow. Other faults are reported by the parsers.
pub fn source(file: &str, text: &str) -> Result<SourceKind, InputError> {
    /// Number of bytes at the start of a file that determine its kind: a truncated trace is still a trace.
    const BEGIN: usize = 1024;
    let reader = JsonReader { file, text };
    if text.trim().is_empty() {
        return Err(reader.error(0, FileProblem::EmptyFile));
    }
    // No job script begins like this, except with the header of a table, and none is a single word or number.
    let is_json = TextForm::of(text) != TextForm::Toml && is_json(text);
    if !is_json {
        return Ok(SourceKind::Script);
    }
    let begin = &text.as_bytes()[..text.len().min(BEGIN)];
    if String::from_utf8_lossy(begin).contains(trace::FORMAT) {
        return Ok(SourceKind::Trace);
    }
    if !text.trim_start().starts_with('{') {
        return Err(reader.error(1, FileProblem::NotPlanned(String::new())));
    }
    let keys: BTreeMap<String, IgnoredAny> =
        serde_json::from_str(text).map_err(|error| reader.json(0, &error))?;
    if keys.contains_key("schemaVersion") || keys.contains_key("workflow") {
        return Ok(SourceKind::WfFormat);
    }
    let mut meant = keys.keys().map(|key| {
        let perhaps = crate::suggestions::perhaps(key, &["schemaVersion", "workflow", "format"]);
        (key, perhaps)
    });
    let meant = meant.find(|(key, perhaps)| !perhaps.is_empty() && *key != "format");
    let meant = meant.map_or_else(String::new, |(key, perhaps)| format!(": `{key}`{perhaps}"));
    Err(reader.error(1, FileProblem::NotPlanned(meant)))
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[', '"'])
        || serde_json::from_str::<IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_kind_follows_from_content() {
        for (text, expected) in [
            ("name = \"x\"; workdir = \"/\";", SourceKind::Script),
            ("# a comment only", SourceKind::Script),
            ("[job]\nname = \"x\"", SourceKind::Script),
            ("", SourceKind::Script),
            (
                "{ \"format\": \"tidemill-trace\", \"version\": 1,",
                SourceKind::Trace,
            ),
            (
                "{ \"name\": \"w\", \"schemaVersion\": \"1.5\" }",
                SourceKind::WfFormat,
            ),
            ("{ \"workflow\": {} }", SourceKind::WfFormat),
        ] {
            match source("f", text) {
                Ok(found) => assert_eq!(found, expected, "{text}"),
                Err(error) => assert_eq!((text, error.problem), ("", FileProblem::EmptyFile)),
            }
        }
    }

    #[test]
    fn json_without_workflow_is_not_taken_for_a_job_script() {
        for text in ["{}", "[]", "null", "42", "\"x\"", " [ { } ]", "true\n"] {
            let error = source("f.json", text).unwrap_err().to_string();
            assert!(
                error.starts_with("f.json:1: it is JSON, but neither"),
                "{text}: {error}"
            );
        }
        for text in ["", " \n\t"] {
            let error = source("f.json", text).unwrap_err().to_string();
            assert!(error.starts_with("f.json: it is empty"), "{error}");
        }
        let error = source("f.json", "{ \"name\": 1,\n")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("f.json:2: EOF"), "{error}");
        let error = source("f.json", "{ \"schemaversion\": 1 }")
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("`schemaversion`; did you mean `schemaVersion`?"),
            "{error}"
        );
    }
}
