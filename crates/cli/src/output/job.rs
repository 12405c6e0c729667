//! Jobs and their tasks.

use super::cluster::state;
use super::{View, energy, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_wire::v1;

/// List of jobs.
#[derive(Debug)]
pub(crate) struct JobsView(pub(crate) Vec<v1::Job>);

impl View for JobsView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.0.is_empty() {
            return writeln!(out, "no jobs; start one with `tidemill submit SCRIPT`");
        }
        jobs_text(&self.0, out)
    }

    fn json(&self) -> Value {
        self.0.iter().map(job_json).collect()
    }
}

pub(crate) fn jobs_text(jobs: &[v1::Job], out: &mut dyn Write) -> io::Result<()> {
    let header = [
        "JOB",
        "NAME",
        "STATE",
        "TASKS",
        "POLICY",
        "USER",
        "SUBMITTED (UTC)",
        "TIME",
        "ENERGY",
        "NOTE",
    ];
    let mut rows = table(&header, &[0, 3, 5, 7]);
    for job in jobs {
        rows.add_row([
            job.job.to_string(),
            job.name.clone(),
            state(job.state).into(),
            format!("{}/{}", done_tasks(job), job.tasks_total),
            policy(job).into(),
            job.uid.to_string(),
            format::time(job.submitted),
            lasted(job.submitted, job.ended),
            energy::short(job.energy.as_ref()).unwrap_or_else(|| "-".into()),
            waits(job).unwrap_or_default(),
        ]);
    }
    write_table(out, &rows)
}

/// One job with its tasks.
#[derive(Debug)]
pub(crate) struct JobView(pub(crate) v1::Job);

impl View for JobView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let job = &self.0;
        writeln!(out, "{}", headline(job))?;
        writeln!(
            out,
            "script {}, files in {}, policy {}",
            job.source,
            job.workdir,
            policy(job)
        )?;
        writeln!(
            out,
            "submitted {} UTC, took {}, {} transferred between nodes\n",
            format::time(job.submitted),
            lasted(job.submitted, job.ended),
            format::bytes(job.transferred_bytes),
        )?;
        if let Some(energy) = energy::text(job.energy.as_ref()) {
            writeln!(out, "energy {energy}\n")?;
        }
        let header = [
            "TASK", "KERNEL", "STATE", "NODE", "TRIES", "TIME", "IN", "OUT", "TRANSFER", "NOTE",
        ];
        let mut rows = table(&header, &[3, 4, 5, 6, 7, 8]);
        for task in &job.tasks {
            rows.add_row([
                task.name.clone(),
                task.kernel.clone(),
                state(task.state).into(),
                node(task),
                task.tries.to_string(),
                lasted(task.start, task.end),
                format::bytes(task.read_bytes),
                format::bytes(task.written_bytes),
                format::bytes(task.transferred_bytes),
                note(task),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        job_json(&self.0)
    }
}

/// One change of a watched job.
#[derive(Debug)]
pub(crate) struct ChangeView<'a> {
    /// The job.
    pub(crate) job: &'a v1::Job,
    /// Tasks with a new state.
    pub(crate) changed: &'a [v1::Task],
}

impl View for ChangeView<'_> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let ended = ended_tasks(self.job);
        for task in self.changed {
            let mut line = format!(
                "[{ended}/{}] {} ({}) {}",
                self.job.tasks_total,
                task.name,
                task.kernel,
                state(task.state)
            );
            if has_node(task) {
                line = format!("{line} on node {}", task.node);
            }
            if task.end > task.start && task.start > 0 {
                line = format!("{line}, {}", lasted(task.start, task.end));
            }
            if !task.error.is_empty() {
                line = format!("{line}: {}", task.error);
            }
            if task.reused_task != 0 {
                line = format!("{line}, result of job {}", task.reused_job);
            }
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "job": job_json(self.job),
            "changed": self.changed.iter().map(task_json).collect::<Vec<_>>(),
        })
    }
}

/// Output of tasks, standard output (`>`) before standard error (`|`), and the reasons of failures.
#[derive(Debug)]
pub(crate) struct LogsView(pub(crate) Vec<v1::Task>);

impl View for LogsView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for task in &self.0 {
            write!(
                out,
                "== {} ({}), {}",
                task.name,
                task.kernel,
                state(task.state)
            )?;
            if has_node(task) {
                write!(out, " on node {}", task.node)?;
            }
            writeln!(out, " ==")?;
            if !task.error.is_empty() {
                writeln!(out, "{}", task.error)?;
            }
            for (mark, text) in [('>', &task.stdout), ('|', &task.stderr)] {
                for line in text.lines() {
                    writeln!(out, "  {mark} {line}")?;
                }
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let log = |task: &v1::Task| {
            json!({
                "task": task.task, "name": task.name, "state": state(task.state),
                "node": node_or_null(task), "error": task.error,
                "stdout": task.stdout, "stderr": task.stderr,
            })
        };
        self.0.iter().map(log).collect()
    }
}

/// Returns a summary, such as `job 3 montage: running, 12 of 36 tasks done`.
pub(crate) fn headline(job: &v1::Job) -> String {
    let count = |name: &str| job.tasks_by_state.get(name).copied().unwrap_or(0);
    let mut text = format!(
        "job {} {}: {}, {} of {} done",
        job.job,
        job.name,
        state(job.state),
        count("done"),
        format::count(job.tasks_total, "task"),
    );
    for name in ["failed", "cancelled"] {
        if count(name) > 0 {
            text = format!("{text}, {} {name}", count(name));
        }
    }
    match waits(job) {
        Some(waits) => format!("{text}, {waits}"),
        None => text,
    }
}

/// Returns `waits for /w/a and 2 more files`, if the job waits for inputs that do not exist yet. Otherwise returns the reason why tasks
/// with all inputs wait, if the reason is more than a place in a queue.
pub(crate) fn waits(job: &v1::Job) -> Option<String> {
    if let Some(first) = job.awaited.first() {
        let more = job.awaited_total.saturating_sub(1);
        return Some(match more {
            0 => format!("waits for {first}"),
            more => format!("waits for {first} and {}", format::count(more, "more file")),
        });
    }
    let why = job.held_up.first()?;
    let tasks = format::count(job.held_up_total, "task");
    Some(format!("{tasks} held up: {why}"))
}

/// Returns the policy's name; jobs without a policy have the cluster's policy.
fn policy(job: &v1::Job) -> &str {
    if job.policy.is_empty() {
        "default"
    } else {
        &job.policy
    }
}

/// Returns the number of tasks that succeeded.
fn done_tasks(job: &v1::Job) -> u32 {
    job.tasks_by_state.get("done").copied().unwrap_or(0)
}

/// Returns the number of tasks that have ended, with success or without.
pub(crate) fn ended_tasks(job: &v1::Job) -> u32 {
    let ended = ["done", "failed", "cancelled"];
    ended
        .iter()
        .filter_map(|name| job.tasks_by_state.get(*name))
        .sum()
}

/// Returns whether a job has ended.
pub(crate) fn has_ended(job: &v1::Job) -> bool {
    use v1::State;
    matches!(job.state(), State::Done | State::Failed | State::Cancelled)
}

/// Returns the node that a task was sent to, as text.
fn node(task: &v1::Task) -> String {
    if has_node(task) {
        task.node.to_string()
    } else {
        "-".into()
    }
}

/// Returns whether a task was sent to a node. A task that was cancelled before has no try.
fn has_node(task: &v1::Task) -> bool {
    use v1::State;
    match task.state() {
        State::Unspecified | State::Waiting | State::Ready => false,
        State::Sent | State::Running | State::Done => true,
        State::Failed | State::Cancelled => task.tries > 0 || task.start > 0,
    }
}

fn node_or_null(task: &v1::Task) -> Value {
    if has_node(task) {
        task.node.into()
    } else {
        Value::Null
    }
}

fn note(task: &v1::Task) -> String {
    if !task.error.is_empty() {
        return task.error.lines().next().unwrap_or_default().into();
    }
    if task.reused_task != 0 {
        return format!("result of job {} used again", task.reused_job);
    }
    match task.awaited.as_slice() {
        [] => String::new(),
        [first] => format!("waits for {first}"),
        [first, rest @ ..] => format!("waits for {first} and {} more", rest.len()),
    }
}

/// Returns the time between two points; until now if the second is not known, `-` if the first is not.
fn lasted(from: i64, to: i64) -> String {
    if from == 0 {
        return "-".into();
    }
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| {
            i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
        })
    };
    let to = if to == 0 { now() } else { to };
    format::span(u64::try_from(to - from).unwrap_or(0))
}

/// Returns a job as JSON, with its tasks.
pub(crate) fn job_json(job: &v1::Job) -> Value {
    json!({
        "job": job.job,
        "name": job.name,
        "source": job.source,
        "workdir": job.workdir,
        "uid": job.uid,
        "policy": job.policy,
        "state": state(job.state),
        "submitted": job.submitted,
        "ended": job.ended,
        "tasks_total": job.tasks_total,
        "tasks_by_state": job.tasks_by_state.iter().collect::<std::collections::BTreeMap<_, _>>(),
        "transferred_bytes": job.transferred_bytes,
        "energy": energy::value(job.energy.as_ref()),
        "awaited": job.awaited,
        "awaited_total": job.awaited_total,
        "held_up": job.held_up,
        "held_up_total": job.held_up_total,
        "tasks": job.tasks.iter().map(task_json).collect::<Vec<_>>(),
    })
}

fn task_json(task: &v1::Task) -> Value {
    json!({
        "task": task.task,
        "name": task.name,
        "kernel": task.kernel,
        "kernel_hash": task.kernel_hash,
        "state": state(task.state),
        "node": node_or_null(task),
        "tries": task.tries,
        "start": task.start,
        "kernel_start": task.kernel_start,
        "end": task.end,
        "hash_ns": task.hash_ns,
        "read_bytes": task.read_bytes,
        "written_bytes": task.written_bytes,
        "transferred_bytes": task.transferred_bytes,
        "memory_outputs": task.memory_outputs,
        "in_memory_bytes": task.in_memory_bytes,
        "cpu_ns": task.cpu_ns,
        "memory_bytes": task.memory_bytes,
        "energy": energy::value(task.energy.as_ref()),
        "reused_task": (task.reused_task != 0).then_some(task.reused_task),
        "reused_job": (task.reused_task != 0).then_some(task.reused_job),
        "error": task.error,
        "inputs": task.inputs,
        "selections": task.selections,
        "outputs": task.outputs,
        "args": task.args,
        "runtime_environment": super::lineage::runtime_environment(task.runtime_environment.as_ref()),
        "awaited": task.awaited,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> v1::Job {
        let task = v1::Task {
            name: "a".into(),
            kernel: "mean".into(),
            state: v1::State::Failed.into(),
            node: 2,
            tries: 1,
            error: "exit code 3".into(),
            stdout: "half\n".into(),
            stderr: "one\ntwo\n".into(),
            start: 1_000_000_000,
            end: 3_500_000_000,
            ..v1::Task::default()
        };
        v1::Job {
            job: 7,
            name: "j".into(),
            state: v1::State::Failed.into(),
            tasks_total: 2,
            tasks_by_state: [("failed".into(), 1), ("cancelled".into(), 1)].into(),
            tasks: vec![task],
            ..v1::Job::default()
        }
    }

    fn text(view: &dyn View) -> String {
        let mut out = Vec::new();
        view.text(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn failed_job_shows_task_node_and_reason() {
        let job = job();
        assert_eq!(
            headline(&job),
            "job 7 j: failed, 0 of 2 tasks done, 1 failed, 1 cancelled"
        );
        let view = ChangeView {
            job: &job,
            changed: &job.tasks,
        };
        assert_eq!(
            text(&view),
            "[2/2] a (mean) failed on node 2, 2.50 s: exit code 3\n"
        );
        let logs = text(&LogsView(job.tasks.clone()));
        assert_eq!(
            logs,
            "== a (mean), failed on node 2 ==\nexit code 3\n  > half\n  | one\n  | two\n"
        );
        assert!(text(&JobView(job)).contains("exit code 3"));
    }

    #[test]
    fn job_list_counts_only_successful_tasks_as_done() {
        let mut job = job();
        assert!(text(&JobsView(vec![job.clone()])).contains(" 0/2 "));
        job.tasks_by_state = [("done".into(), 1), ("cancelled".into(), 1)].into();
        assert!(text(&JobsView(vec![job])).contains(" 1/2 "));
    }

    #[test]
    fn waiting_job_shows_awaited_files() {
        let waiting = v1::Job {
            state: v1::State::Running.into(),
            awaited: vec!["/w/a".into(), "/w/b".into()],
            awaited_total: 3,
            ..job()
        };
        assert!(headline(&waiting).ends_with(", waits for /w/a and 2 more files"));
        assert!(text(&JobsView(vec![waiting])).contains("waits for /w/a and 2 more files"));
        assert_eq!(waits(&job()), None);
    }

    #[test]
    fn unsent_task_has_null_node() {
        let mut task = v1::Task {
            state: v1::State::Waiting.into(),
            ..v1::Task::default()
        };
        assert_eq!(task_json(&task)["node"], Value::Null);
        task.state = v1::State::Sent.into();
        assert_eq!(task_json(&task)["node"], 0);
    }
}
