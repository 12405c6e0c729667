//! Hooks, which are rules with a map: their settings, and the results of their maps and batches.

use super::rule::{counts, rule_json, state};
use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::display::line;
use tidemill_wire::v1;

/// Output of `tidemill rule show` for a hook.
#[derive(Debug)]
pub(crate) struct HookView(pub(crate) v1::Rule);

impl View for HookView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let rule = &self.0;
        let hook = rule.hook.clone().unwrap_or_default();
        writeln!(
            out,
            "hook {} (number {}, revision {}) of {}: {}, for {}",
            line(&rule.name),
            rule.rule,
            rule.revision,
            users::name(rule.uid),
            state(rule),
            line(&hook.pattern)
        )?;
        writeln!(out, "map     {} (on {})", line(&hook.map), hook.on)?;
        if let Some(reduce) = &hook.reduce {
            writeln!(out, "reduce  {}", line(reduce))?;
        }
        writeln!(out, "result  {}", line(&hook.output))?;
        let dropped = format::count(hook.dropped, "file");
        writeln!(out, "inputs  {}; {dropped} dropped", hook.inputs)?;
        writeln!(out, "files   {}", counts(rule))?;
        if hook.lag_files > 0 {
            let lag = format::count(hook.lag_files, "file");
            let bytes = format::bytes(hook.lag_bytes);
            let then = match hook.lags {
                true => ": maps lag behind, and run after files are closed",
                false => "",
            };
            writeln!(out, "behind  {lag}, {bytes}{then}")?;
        }
        if hook.batches.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let header = ["BATCH", "STATE", "FILES", "MAPPED", "JOB", "WHY"];
        let mut rows = table(&header, &[0, 2, 3, 4]);
        for batch in &hook.batches {
            let job = match batch.job {
                0 => String::new(),
                job => job.to_string(),
            };
            rows.add_row([
                batch.batch.to_string(),
                line(&batch.state),
                batch.files.to_string(),
                batch.mapped.to_string(),
                job,
                line(&batch.error),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        rule_json(&self.0)
    }
}

/// Returns the fields of a hook as JSON.
pub(super) fn hook_json(hook: &v1::Hook) -> Value {
    let batches = hook.batches.iter().map(|batch| {
        json!({
            "batch": batch.batch,
            "state": batch.state,
            "files": batch.files,
            "mapped": batch.mapped,
            "job": (batch.job != 0).then_some(batch.job),
            "begun": batch.begun,
            "ended": (batch.ended != 0).then_some(batch.ended),
            "error": batch.error,
        })
    });
    let batches: Vec<Value> = batches.collect();
    json!({
        "pattern": hook.pattern,
        "map": hook.map,
        "output": hook.output,
        "reduce": hook.reduce,
        "parts": hook.parts,
        "group": hook.group,
        "marker": hook.marker,
        "on": hook.on,
        "inputs": hook.inputs,
        "time": hook.time,
        "size": hook.size,
        "dropped": hook.dropped,
        "behind": { "files": hook.lag_files, "bytes": hook.lag_bytes, "lags": hook.lags },
        "batches": batches,
    })
}
