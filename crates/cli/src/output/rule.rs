//! Rules, hooks among them, and their runs.

use super::hook::hook_json;
use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::display::{line, lines};
use tidemill_wire::v1;

/// Output of `tidemill rule list`.
#[derive(Debug)]
pub(crate) struct RulesView(pub(crate) Vec<v1::Rule>);

impl View for RulesView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "RULE",
            "NAME",
            "KIND",
            "USER",
            "STATE",
            "REVISION",
            "JOBS",
            "DIRECTORY",
            "PATTERN",
        ];
        let mut rows = table(&header, &[0, 5, 6]);
        for rule in &self.0 {
            rows.add_row([
                rule.rule.to_string(),
                line(&rule.name),
                kind(rule).into(),
                whose(rule),
                state(rule).into(),
                rule.revision.to_string(),
                rule.jobs.to_string(),
                line(&rule.workdir),
                line(&rule.pattern),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        self.0.iter().map(rule_json).collect()
    }
}

/// Returns the number of runs of a rule in each state.
pub(super) fn counts(rule: &v1::Rule) -> String {
    let mut rule_runs: Vec<_> = rule.rule_runs.iter().collect();
    rule_runs.sort();
    let counts = rule_runs
        .iter()
        .map(|(state, count)| format!("{count} {state}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    match counts.is_empty() {
        true => "none yet".into(),
        false => counts,
    }
}

/// Returns the kind of a rule: a hook has a map.
fn kind(rule: &v1::Rule) -> &'static str {
    if rule.hook.is_some() { "hook" } else { "rule" }
}

/// Returns whether a rule runs for new files.
pub(super) fn state(rule: &v1::Rule) -> &'static str {
    if rule.paused { "paused" } else { "active" }
}

fn whose(rule: &v1::Rule) -> String {
    let user = users::name(rule.uid);
    if rule.for_all {
        format!("{user}, for all")
    } else {
        user
    }
}

/// Output of `tidemill rule show` for a rule without a map.
#[derive(Debug)]
pub(crate) struct RuleView(pub(crate) v1::Rule);

impl View for RuleView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let rule = &self.0;
        writeln!(
            out,
            "rule {} (number {}, revision {}) of {}: {}, changed {}",
            line(&rule.name),
            rule.rule,
            rule.revision,
            whose(rule),
            state(rule),
            format::time(rule.changed)
        )?;
        let counts = counts(rule);
        writeln!(out, "runs: {counts}; jobs under way: {}", rule.jobs)?;
        if rule.walking {
            writeln!(out, "the server is still searching for existing files")?;
        }
        write!(out, "\n{}", lines(&rule.text))?;
        if rule.text.ends_with('\n') {
            Ok(())
        } else {
            writeln!(out)
        }
    }

    fn json(&self) -> Value {
        rule_json(&self.0)
    }
}

/// Returns a rule as JSON, with the fields of a hook if it is a hook.
pub(crate) fn rule_json(rule: &v1::Rule) -> Value {
    let mut shown = json!({
        "rule": rule.rule,
        "name": rule.name,
        "kind": kind(rule),
        "uid": rule.uid,
        "revision": rule.revision,
        "paused": rule.paused,
        "for_all": rule.for_all,
        "of_directory": rule.of_directory,
        "workdir": rule.workdir,
        "pattern": rule.pattern,
        "changed": rule.changed,
        "jobs": rule.jobs,
    });
    if !rule.text.is_empty() {
        shown["text"] = json!(rule.text);
        shown["rule_runs"] = json!(rule.rule_runs);
        shown["walking"] = json!(rule.walking);
    }
    if let Some(hook) = &rule.hook {
        shown["hook"] = hook_json(hook);
    }
    shown
}

/// Output of `tidemill rule test`.
#[derive(Debug)]
pub(crate) struct TestView(pub(crate) v1::TestRuleReply);

impl View for TestView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.0.matches {
            return writeln!(out, "{}", lines(&self.0.why));
        }
        let mut captures: Vec<_> = self.0.captures.iter().collect();
        captures.sort();
        for (name, value) in captures {
            writeln!(out, "{{{}}} = {}", line(name), line(value))?;
        }
        write!(out, "{}", lines(&self.0.script))
    }

    fn json(&self) -> Value {
        json!({
            "matches": self.0.matches,
            "why": self.0.why,
            "captures": self.0.captures,
            "script": self.0.script,
        })
    }
}

/// Output of `tidemill rule log`.
#[derive(Debug)]
pub(crate) struct LogView(pub(crate) Vec<v1::RuleRun>);

impl View for LogView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "RUN",
            "QUEUED (UTC)",
            "STATE",
            "JOB",
            "DEPTH",
            "FILE",
            "WHY",
        ];
        let mut rows = table(&header, &[0, 3, 4]);
        for one in &self.0 {
            rows.add_row([
                one.rule_run.to_string(),
                format::time(one.queued),
                line(&one.state),
                if one.job == 0 {
                    String::new()
                } else {
                    one.job.to_string()
                },
                one.depth.to_string(),
                line(&one.path),
                line(&one.error),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        let shown = self.0.iter().map(|one| {
            json!({
                "rule_run": one.rule_run,
                "path": one.path,
                "object": one.object,
                "state": one.state,
                "job": (one.job != 0).then_some(one.job),
                "task": (one.task != 0).then_some(one.task),
                "depth": one.depth,
                "queued": one.queued,
                "ended": (one.ended != 0).then_some(one.ended),
                "error": one.error,
            })
        });
        shown.collect()
    }
}
