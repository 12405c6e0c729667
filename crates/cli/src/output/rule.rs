//! Rules, hooks among them, and their runs.

use super::table::{Text, columns, listing};
use super::{Report, given, list, maybe, records, sorted};
use crate::format::{self, Bytes, Time};
use std::collections::BTreeMap;
use tidemill_client::users;
use tidemill_model::display::{line, lines};
use tidemill_wire::v1;

listing! {
    /// List of rules.
    Rules of Rule
}

records! {
    /// Rule, or hook: a rule with a map.
    Rule from of: v1::Rule {
        rule: u64, name: String,
        /// `rule` or `hook`.
        kind: &'static str = if of.hook.is_some() { "hook" } else { "rule" },
        uid: u32,
        /// Number of the version of the rule.
        revision: u64,
        paused: bool,
        /// Whether the rule runs for files of all users.
        for_all: bool,
        /// Whether the rule is an attribute of its directory.
        of_directory: bool,
        /// The rule runs for files below this directory.
        workdir: String,
        pattern: String,
        /// Time of the last change.
        changed: Time,
        /// Number of jobs of the rule that have not ended.
        jobs: u32,
        /// Text of the rule; absent in lists.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String> = given(&of.text),
        /// Number of runs by state; absent in lists.
        #[serde(skip_serializing_if = "Option::is_none")]
        rule_runs: Option<BTreeMap<String, u64>> = (!of.text.is_empty()).then(|| sorted(&of.rule_runs)),
        /// Whether the server still searches for existing files; absent in lists.
        #[serde(skip_serializing_if = "Option::is_none")]
        walking: Option<bool> = (!of.text.is_empty()).then_some(of.walking),
        /// Settings of a hook; absent for other rules.
        #[serde(skip_serializing_if = "Option::is_none")]
        hook: Option<Hook> = maybe(&of.hook),
        #[serde(skip)]
        counts: BTreeMap<String, u64> = sorted(&of.rule_runs),
    }

    /// Settings and results of a hook.
    Hook from of: v1::Hook {
        pattern: String, map: String, output: String, reduce: Option<String>,
        /// Directory for the results of the map.
        parts: Option<String>,
        /// Number of files of a batch.
        group: Option<u32>,
        /// Name of the end-of-batch file.
        marker: Option<String>,
        /// Event that runs the map.
        on: String,
        /// `keep`, `delete` or `evict`.
        inputs: String,
        /// Limits of a batch: its time and the size of its files.
        time: Option<String>,
        size: Option<String>,
        /// Number of dropped input files.
        dropped: u64,
        behind: HookBacklog = HookBacklog { files: of.lag_files, bytes: Bytes(of.lag_bytes), lags: of.lags },
        batches: Vec<HookBatch> = list(&of.batches),
    }

    /// Files that are closed and not mapped yet.
    HookBacklog {
        files: u64, bytes: Bytes,
        /// Whether maps run only after files are closed.
        lags: bool,
    }

    /// Batch of a hook.
    HookBatch from of: v1::HookBatch {
        batch: u64, state: String, files: u64,
        /// Number of files that are mapped.
        mapped: u64,
        /// Job of the reduction.
        job: Option<u64> = given(&of.job),
        begun: Time,
        ended: Option<Time> = given(&of.ended),
        /// Reason of a failure.
        error: String,
    }
}

columns! { rule: Rule {
    right "RULE" => rule.rule,
    left "NAME" => rule.name,
    left "KIND" => rule.kind,
    left "USER" => rule.owner(),
    left "STATE" => rule.state(),
    right "REVISION" => rule.revision,
    right "JOBS" => rule.jobs,
    left "DIRECTORY" => rule.workdir,
    left "PATTERN" => rule.pattern,
} }

columns! { batch: HookBatch {
    right "BATCH" => batch.batch,
    left "STATE" => batch.state,
    right "FILES" => batch.files,
    right "MAPPED" => batch.mapped,
    right "JOB" => batch.job.map_or_else(String::new, |job| job.to_string()),
    left "WHY" => batch.error,
} }

impl Rule {
    /// Returns the number of runs in each state.
    fn runs(&self) -> String {
        match self.counts.is_empty() {
            true => "none yet".into(),
            false => super::joined(
                self.counts
                    .iter()
                    .map(|(state, count)| format!("{count} {state}")),
            ),
        }
    }

    /// Returns whether the rule runs for new files.
    fn state(&self) -> &'static str {
        if self.paused { "paused" } else { "active" }
    }

    fn owner(&self) -> String {
        let all = if self.for_all { ", for all" } else { "" };
        users::name(self.uid) + all
    }

    fn title(&self) -> String {
        let (kind, name, number, revision) =
            (self.kind, line(&self.name), self.rule, self.revision);
        format!("{kind} {name} (number {number}, revision {revision}) of")
    }

    fn hook(&self, hook: &Hook, out: &mut Text) {
        let (owner, pattern) = (users::name(self.uid), line(&hook.pattern));
        writeln!(
            out,
            "{} {owner}: {}, for {pattern}",
            self.title(),
            self.state()
        );
        writeln!(out, "map     {} (on {})", line(&hook.map), hook.on);
        if let Some(reduce) = &hook.reduce {
            writeln!(out, "reduce  {}", line(reduce));
        }
        writeln!(out, "result  {}", line(&hook.output));
        writeln!(
            out,
            "inputs  {}; {} dropped",
            hook.inputs,
            format::count(hook.dropped, "file")
        );
        writeln!(out, "files   {}", self.runs());
        let HookBacklog { files, bytes, lags } = hook.behind;
        if files > 0 {
            let then = if lags {
                ": maps lag behind, and run after files are closed"
            } else {
                ""
            };
            writeln!(
                out,
                "behind  {}, {bytes}{then}",
                format::count(files, "file")
            );
        }
        if !hook.batches.is_empty() {
            writeln!(out);
            out.table(&hook.batches);
        }
    }
}

impl Report for Rule {
    fn text(&self, out: &mut Text) {
        if let Some(hook) = &self.hook {
            return self.hook(hook, out);
        }
        let (owner, state, changed) = (self.owner(), self.state(), self.changed);
        writeln!(out, "{} {owner}: {state}, changed {changed}", self.title());
        writeln!(out, "runs: {}; jobs under way: {}", self.runs(), self.jobs);
        if self.walking == Some(true) {
            writeln!(out, "the server is still searching for existing files");
        }
        let text = lines(self.text.as_deref().unwrap_or_default());
        writeln!(out, "\n{}", text.strip_suffix('\n').unwrap_or(&text));
    }
}

records! {
    /// Outcome of the test of a rule with a file.
    RuleTest from of: v1::TestRuleReply {
        /// Whether the rule runs for the file.
        matches: bool,
        /// Reason why the rule does not run for the file.
        why: String,
        /// Values of the variables of the pattern.
        captures: BTreeMap<String, String> = sorted(&of.captures),
        /// Job of the file, as TOML.
        script: String = as_toml(&of.script),
    }
}

/// Returns a job as TOML.
fn as_toml(job: &str) -> String {
    let group = tidemill_lang::script::parse("job", job.as_bytes());
    group.map_or_else(|_| job.to_owned(), |group| group.to_toml())
}

impl Report for RuleTest {
    fn text(&self, out: &mut Text) {
        if !self.matches {
            return writeln!(out, "{}", lines(&self.why));
        }
        for (name, value) in &self.captures {
            writeln!(out, "{{{}}} = {}", line(name), line(value));
        }
        write!(out, "{}", lines(&self.script));
    }
}

listing! {
    /// Runs of a rule, the newest first.
    RuleLog of RuleRun
}

records! {
    /// Run of a rule.
    RuleRun from of: v1::RuleRun {
        rule_run: u64,
        /// File that triggered the run.
        path: String,
        object: u64, state: String,
        job: Option<u64> = given(&of.job),
        task: Option<u64> = given(&of.task),
        /// Number of rules before this one in a chain.
        depth: u32,
        queued: Time,
        ended: Option<Time> = given(&of.ended),
        /// Reason of a failure.
        error: String,
    }
}

columns! { run: RuleRun {
    right "RUN" => run.rule_run,
    left "QUEUED (UTC)" => run.queued,
    left "STATE" => run.state,
    right "JOB" => run.job.map_or_else(String::new, |job| job.to_string()),
    right "DEPTH" => run.depth,
    left "FILE" => run.path,
    left "WHY" => run.error,
} }
