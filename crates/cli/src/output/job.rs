//! Jobs and their tasks.

use super::energy::{self, Energy};
use super::lineage::RuntimeEnvironment;
use super::table::{Text, columns};
use super::{Report, dash, list, maybe, records, sorted};
use crate::format::{self, Bytes, Span, Time};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use tidemill_wire::convert::state_name;
use tidemill_wire::v1;

/// List of jobs, the newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Jobs(pub(crate) Vec<Job>);

records! {
    /// Job.
    Job from of: v1::Job {
        job: u64, name: String,
        /// File of the job.
        source: String,
        /// Directory of relative paths of the job.
        workdir: String,
        uid: u32,
        /// Placement policy; empty for the default of the cluster.
        policy: String,
        /// `running`, `done`, `failed` or `cancelled`.
        state: &'static str = state(of.state),
        submitted: Time, ended: Time, tasks_total: u32,
        tasks_by_state: BTreeMap<String, u32> = sorted(&of.tasks_by_state),
        /// Bytes that nodes fetched from each other.
        transferred_bytes: Bytes,
        energy: Option<Energy> = maybe(&of.energy),
        /// Some of the missing inputs that the job waits for, and their number.
        awaited: Vec<String>,
        awaited_total: u32,
        /// Some reasons why tasks with all inputs wait, and the number of these tasks.
        held_up: Vec<String>,
        held_up_total: u32,
        /// Tasks; empty in lists of jobs.
        tasks: Vec<Task> = list(&of.tasks),
        #[serde(skip)]
        headline: String = headline(of),
        #[serde(skip)]
        waits: String = waits(of).unwrap_or_default(),
    }

    /// Task of a job.
    Task from of: v1::Task {
        task: u64, name: String, kernel: String,
        /// Hash of the code of the kernel.
        kernel_hash: String,
        /// `waiting`, `ready`, `sent`, `running`, `done`, `failed` or `cancelled`.
        state: &'static str = state(of.state),
        /// Node that the task was sent to.
        node: Option<u32> = node(of),
        /// Number of starts.
        tries: u32,
        /// First fetch of inputs, start of the kernel, and seal of the outputs.
        start: Time,
        kernel_start: Time, end: Time,
        /// Time to hash the outputs.
        hash_ns: Span,
        read_bytes: Bytes, written_bytes: Bytes,
        /// Bytes of inputs that the node fetched from other nodes.
        transferred_bytes: Bytes,
        /// Number of outputs that were requested in memory, and their bytes in memory.
        memory_outputs: u64,
        in_memory_bytes: Bytes,
        /// Processor time of the kernel.
        cpu_ns: Span,
        /// Maximum memory of the kernel.
        memory_bytes: Bytes,
        energy: Option<Energy> = maybe(&of.energy),
        /// Task and job whose cached result was used; null if the task ran.
        reused_task: Option<u64> = (of.reused_task != 0).then_some(of.reused_task),
        reused_job: Option<u64> = (of.reused_task != 0).then_some(of.reused_job),
        /// Reason of a failure; empty if the task did not fail.
        error: String,
        inputs: Vec<String>,
        /// Selected part of each input; empty for a whole file.
        selections: Vec<String>,
        outputs: Vec<String>, args: Vec<String>,
        runtime_environment: Option<RuntimeEnvironment> = maybe(&of.runtime_environment),
        /// Missing inputs.
        awaited: Vec<String>,
    }

    /// Change of a watched job.
    JobChange new(of: &v1::Job, tasks: &[v1::Task]) {
        job: Job = of.into(),
        /// Tasks with a new state.
        changed: Vec<Task> = list(tasks),
        #[serde(skip)]
        ended: u32 = ["done", "failed", "cancelled"].iter().filter_map(|name| of.tasks_by_state.get(*name)).sum(),
    }
}

/// Output of the tasks of a job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TaskLogs(pub(crate) Vec<TaskLog>);

records! {
    /// Output of a task.
    TaskLog from of: v1::Task {
        task: u64, name: String,
        #[serde(skip)]
        kernel: String,
        state: &'static str = state(of.state),
        node: Option<u32> = node(of),
        /// Reason of a failure; empty if the task did not fail.
        error: String,
        /// Standard output and standard error, perhaps shortened.
        stdout: String,
        stderr: String,
    }
}

columns! { job: Job {
    right "JOB" => job.job,
    left "NAME" => job.name,
    left "STATE" => job.state,
    right "TASKS" => format!("{}/{}", job.tasks_by_state.get("done").copied().unwrap_or(0), job.tasks_total),
    left "POLICY" => job.policy(),
    right "USER" => job.uid,
    left "SUBMITTED (UTC)" => job.submitted,
    right "TIME" => lasted(job.submitted, job.ended),
    left "ENERGY" => energy::cell(&job.energy),
    left "NOTE" => job.waits,
} }

columns! { task: Task {
    left "TASK" => task.name,
    left "KERNEL" => task.kernel,
    left "STATE" => task.state,
    right "NODE" => dash(&task.node),
    right "TRIES" => task.tries,
    right "TIME" => lasted(task.start, task.end),
    right "IN" => task.read_bytes,
    right "OUT" => task.written_bytes,
    right "TRANSFER" => task.transferred_bytes,
    left "NOTE" => task.note(),
} }

impl Report for Jobs {
    fn text(&self, out: &mut Text) {
        match self.0.is_empty() {
            true => writeln!(out, "no jobs; start one with `tidemill submit SCRIPT`"),
            false => out.table(&self.0),
        }
    }
}

impl Report for Job {
    fn text(&self, out: &mut Text) {
        writeln!(out, "{}", self.headline);
        writeln!(
            out,
            "script {}, files in {}, policy {}",
            self.source,
            self.workdir,
            self.policy()
        );
        let took = lasted(self.submitted, self.ended);
        writeln!(
            out,
            "submitted {} UTC, took {took}, {} transferred between nodes\n",
            self.submitted, self.transferred_bytes,
        );
        if let Some(energy) = self.energy.as_ref().and_then(Energy::text) {
            writeln!(out, "energy {energy}\n");
        }
        out.table(&self.tasks);
    }
}

impl Report for JobChange {
    fn text(&self, out: &mut Text) {
        for task in &self.changed {
            let (ended, total, name) = (self.ended, self.job.tasks_total, &task.name);
            write!(
                out,
                "[{ended}/{total}] {name} ({}) {}",
                task.kernel, task.state
            );
            if let Some(node) = task.node {
                write!(out, " on node {node}");
            }
            if task.end > task.start && task.start.0 > 0 {
                write!(out, ", {}", lasted(task.start, task.end));
            }
            if !task.error.is_empty() {
                write!(out, ": {}", task.error);
            }
            if let Some(job) = task.reused_job {
                write!(out, ", result of job {job}");
            }
            writeln!(out);
        }
    }
}

/// Shows standard output (`>`) before standard error (`|`).
impl Report for TaskLogs {
    fn text(&self, out: &mut Text) {
        for task in &self.0 {
            let node = task
                .node
                .map_or_else(String::new, |node| format!(" on node {node}"));
            writeln!(
                out,
                "== {} ({}), {}{node} ==",
                task.name, task.kernel, task.state
            );
            if !task.error.is_empty() {
                writeln!(out, "{}", task.error);
            }
            for (mark, text) in [('>', &task.stdout), ('|', &task.stderr)] {
                for line in text.lines() {
                    writeln!(out, "  {mark} {line}");
                }
            }
        }
    }
}

impl Job {
    fn policy(&self) -> &str {
        match self.policy.as_str() {
            "" => "default",
            policy => policy,
        }
    }
}

impl Task {
    fn note(&self) -> String {
        if let Some(first) = self.error.lines().next() {
            return first.to_owned();
        }
        match (self.reused_job, self.awaited.as_slice()) {
            (Some(job), _) => format!("result of job {job} used again"),
            (None, []) => String::new(),
            (None, [first]) => format!("waits for {first}"),
            (None, [first, rest @ ..]) => format!("waits for {first} and {} more", rest.len()),
        }
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

/// Returns whether a job has ended.
pub(crate) fn has_ended(job: &v1::Job) -> bool {
    use v1::State;
    matches!(job.state(), State::Done | State::Failed | State::Cancelled)
}

/// Returns the name of a state from the network.
pub(crate) fn state(number: i32) -> &'static str {
    state_name(v1::State::try_from(number).unwrap_or(v1::State::Unspecified))
}

/// Returns the node that a task was sent to. A task that was cancelled before has no try.
fn node(task: &v1::Task) -> Option<u32> {
    use v1::State;
    let sent = match task.state() {
        State::Unspecified | State::Waiting | State::Ready => false,
        State::Sent | State::Running | State::Done => true,
        State::Failed | State::Cancelled => task.tries > 0 || task.start > 0,
    };
    sent.then_some(task.node)
}

/// Returns the time between two points; until now if the second is not known, `-` if the first is not.
fn lasted(from: Time, to: Time) -> String {
    let to = if to.0 == 0 { format::now() } else { to };
    let span = Span(u64::try_from(to.0 - from.0).unwrap_or(0));
    dash(&(from.0 != 0).then_some(span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text_of;

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

    #[test]
    fn failed_job_shows_task_node_and_reason() {
        let job = job();
        assert_eq!(
            headline(&job),
            "job 7 j: failed, 0 of 2 tasks done, 1 failed, 1 cancelled"
        );
        assert_eq!(
            text_of(&JobChange::new(&job, &job.tasks)),
            "[2/2] a (mean) failed on node 2, 2.50 s: exit code 3\n"
        );
        assert_eq!(
            text_of(&TaskLogs(list(&job.tasks))),
            "== a (mean), failed on node 2 ==\nexit code 3\n  > half\n  | one\n  | two\n"
        );
        assert!(text_of(&Job::from(&job)).contains("exit code 3"));
    }

    #[test]
    fn job_list_counts_only_successful_tasks_as_done() {
        let mut job = job();
        let jobs = |job: &v1::Job| text_of(&Jobs(vec![job.into()]));
        assert!(jobs(&job).contains(" 0/2 "));
        job.tasks_by_state = [("done".into(), 1), ("cancelled".into(), 1)].into();
        assert!(jobs(&job).contains(" 1/2 "));
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
        let text = text_of(&Jobs(vec![Job::from(&waiting)]));
        assert!(text.contains("waits for /w/a and 2 more files"));
        assert_eq!(waits(&job()), None);
    }

    #[test]
    fn unsent_task_has_null_node() {
        let mut task = v1::Task {
            state: v1::State::Waiting.into(),
            ..v1::Task::default()
        };
        assert_eq!(Task::from(&task).node, None);
        task.state = v1::State::Sent.into();
        assert_eq!(Task::from(&task).node, Some(0));
    }
}
