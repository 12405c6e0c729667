//! Jobs, tasks and the reasons for placements.

use super::spec::StoredTask;
use crate::Connection;
use crate::Fault;
use crate::json::json_list;
use crate::json::{json, parse};
use crate::query::{changed, execute, find, rows, unsigned};
use prost::Message;
use rusqlite::{OptionalExtension, Row, params};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::event::{Decision, JobState, TaskState};
use tidemill_model::id::{JobId, LabelId, NodeId, TaskId};
use tidemill_model::label::{Outcome, Owner};
use tidemill_model::time::{Span, Time};
use tidemill_sched::elastic::RUN_MICROJOULES_MAX;
use tidemill_wire::convert::time_to_wire;
use tidemill_wire::v1::{self, State};

/// Number of the newest runs that are searched for earlier runs of a kernel.
const RUNS_MAX: u32 = 10_000;

/// Name, origin and submission time of a job.
#[derive(Clone, Debug)]
pub struct Heading {
    /// Name of the job from its script.
    pub name: String,
    /// File name of the job's script, for error messages and the list of jobs.
    pub source: String,
    /// Working directory at the submission, to which relative paths in the script refer.
    pub workdir: String,
    /// Text of the job's script, as submitted.
    pub script: String,
    /// Submission id of the job, if the client has sent one.
    pub submission_id: Option<String>,
    /// Time at which the server received the job, in nanoseconds since the Unix epoch.
    pub submitted: i64,
}

/// Owner and settings of a job that has not ended.
#[derive(Clone, Debug)]
pub struct JobSettings {
    /// Id of the job to which the settings belong.
    pub job: JobId,
    /// User and group that submitted the job, and with whose rights its tasks run.
    pub owner: Owner,
    /// Supplementary group ids of the job's owner.
    pub groups: Vec<u32>,
    /// Placement policy that the job requests.
    pub policy: Option<String>,
    /// Whether tasks may be answered from cached results.
    pub cache: bool,
    /// Whether outputs replace existing files.
    pub replace: bool,
}

/// A task with its state.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// Id of the task, unique over all jobs.
    pub task: TaskId,
    /// Description of the task: kernel, arguments, inputs, outputs and limits.
    pub spec: StoredTask,
    /// Stored state of the task; `State::Unspecified` if the database has an unknown number.
    pub state: State,
    /// Label of the newest try.
    pub label: LabelId,
    /// Number of tries, including the current one, without tries that ended by the loss of a node or the failure of an earlier label.
    pub tries: u32,
}

/// Number of bytes that runs of a kernel have read and written, by the kernel's kind and name.
pub type KernelTraffic = BTreeMap<(String, String), (u64, u64)>;

/// Returns the number that represents a job's state in the database.
pub fn state_number(state: State) -> i32 {
    state.into()
}

/// Returns the number that represents a task's state in the database.
pub(crate) fn task_state(state: TaskState) -> i32 {
    state_number(state.into())
}

fn job_id(row: &Row<'_>) -> rusqlite::Result<JobId> {
    Ok(JobId(unsigned(row, 0)?))
}

/// Stores a job that the server accepts, with its tasks.
pub fn insert(
    db: &Connection,
    heading: &Heading,
    settings: &JobSettings,
    tasks: impl Iterator<Item = (TaskId, StoredTask)>,
) -> Result<(), Fault> {
    let job = settings.job.0.cast_signed();
    let sql = "INSERT INTO job(job, name, source, workdir, uid, gid, groups, policy, state, submitted, ended, script, \
               cache, replacing, submission_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, ?11, ?12, ?13, ?14)";
    let row = params![
        job,
        heading.name,
        heading.source,
        heading.workdir,
        settings.owner.uid,
        settings.owner.gid,
        json(&settings.groups),
        settings.policy,
        state_number(State::Running),
        heading.submitted,
        heading.script,
        settings.cache,
        settings.replace,
        heading.submission_id,
    ];
    execute(db, sql, row)?;
    let sql = "INSERT INTO task(task, job, spec, state, changed) VALUES (?1, ?2, ?3, ?4, 0)";
    let mut insert = db.sql.prepare_cached(sql)?;
    let waiting = state_number(State::Waiting);
    for (task, spec) in tasks {
        insert.execute(params![task.0.cast_signed(), job, json(&spec), waiting])?;
    }
    Ok(())
}

/// Returns the job that a user has submitted with this submission id.
pub fn known(
    db: &Connection,
    uid: u32,
    submission_id: Option<&str>,
) -> Result<Option<JobId>, Fault> {
    let Some(submission_id) = submission_id else {
        return Ok(None);
    };
    let sql = "SELECT job FROM job WHERE uid = ?1 AND submission_id = ?2";
    find(db, sql, params![uid, submission_id], job_id)
}

/// Returns all jobs that have not ended, oldest first.
pub fn unfinished(db: &Connection) -> Result<Vec<JobSettings>, Fault> {
    let sql = "SELECT job, uid, gid, groups, policy, cache, replacing FROM job WHERE state = ?1 ORDER BY job";
    let mut statement = db.sql.prepare(sql)?;
    let mut rows = statement.query([state_number(State::Running)])?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        let job = job_id(row)?;
        jobs.push(JobSettings {
            job,
            owner: Owner {
                uid: row.get(1)?,
                gid: row.get(2)?,
            },
            groups: parse(&row.get::<_, String>(3)?, "groups of job", job.0)?,
            policy: row.get(4)?,
            cache: row.get(5)?,
            replace: row.get(6)?,
        });
    }
    Ok(jobs)
}

/// Returns the tasks of a job, in the order of the script.
pub fn tasks(db: &Connection, job: JobId) -> Result<Vec<TaskRow>, Fault> {
    let sql = "SELECT task, spec, state, label, tries FROM task WHERE job = ?1 ORDER BY task";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut rows = statement.query([job.0.cast_signed()])?;
    let mut tasks = Vec::new();
    while let Some(row) = rows.next()? {
        let task = unsigned(row, 0)?;
        tasks.push(TaskRow {
            task: TaskId(task),
            spec: StoredTask::parse(&row.get::<_, String>(1)?, TaskId(task))?,
            state: State::try_from(row.get::<_, i32>(2)?).unwrap_or(State::Unspecified),
            label: LabelId(unsigned(row, 3)?),
            tries: row.get(4)?,
        });
    }
    Ok(tasks)
}

/// Returns the stored form of a task.
pub fn spec(db: &Connection, task: TaskId) -> Result<StoredTask, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("SELECT spec FROM task WHERE task = ?1")?;
    let spec: String = statement.query_row([task.0.cast_signed()], |row| row.get(0))?;
    StoredTask::parse(&spec, task)
}

/// Returns the number of the job that contains a task; 0 if the task is unknown.
pub fn job_of(db: &Connection, task: TaskId) -> Result<u64, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("SELECT job FROM task WHERE task = ?1")?;
    let job = statement.query_row([task.0.cast_signed()], job_id);
    Ok(job.optional()?.map_or(0, |job| job.0))
}

/// Returns the largest number that was given to a change of a task.
pub fn last_change(db: &Connection) -> Result<i64, Fault> {
    let sql = "SELECT coalesce(max(changed), 0) FROM task";
    Ok(db.sql.query_row(sql, [], |row| row.get(0))?)
}

/// Returns the bytes that the newest tasks of a user have read and written, by the kind and name of the tasks' kernels.
pub fn kernel_traffic(db: &Connection, uid: u32) -> Result<KernelTraffic, Fault> {
    let sql = "SELECT json_extract(run.spec, '$.kernel_kind'), json_extract(run.spec, '$.kernel'), \
               sum(run.read_bytes), sum(run.written_bytes) \
               FROM (SELECT * FROM task ORDER BY task DESC LIMIT ?1) AS run JOIN job ON job.job = run.job \
               WHERE job.uid = ?2 AND run.state = ?3 AND run.reused = 0 GROUP BY 1, 2";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut rows = statement.query(params![RUNS_MAX, uid, state_number(State::Done)])?;
    let mut traffic = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let bytes =
            |at| -> Result<u64, Fault> { Ok(u64::try_from(row.get::<_, i64>(at)?).unwrap_or(0)) };
        traffic.insert((row.get(0)?, row.get(1)?), (bytes(2)?, bytes(3)?));
    }
    Ok(traffic)
}

/// Sets the state of a task; `change` is the number of the change. A successful task drops the errors of its earlier tries.
pub fn set_task_state(
    db: &Connection,
    task: TaskId,
    state: TaskState,
    tries: u32,
    change: i64,
) -> Result<(), Fault> {
    let sql = "UPDATE task SET state = ?2, tries = ?3, changed = ?4, error = iif(?5, '', error) WHERE task = ?1";
    let (id, done) = (task.0.cast_signed(), state == TaskState::Done);
    execute(db, sql, params![id, task_state(state), tries, change, done])
}

/// Sets the error message of a task.
pub fn set_error(db: &Connection, task: TaskId, message: &str) -> Result<(), Fault> {
    let sql = "UPDATE task SET error = ?2 WHERE task = ?1";
    execute(db, sql, params![task.0.cast_signed(), message])
}

/// Sets the label of a task's newest try, and the node to which the label is sent.
pub(super) fn set_label(
    db: &Connection,
    task: TaskId,
    label: LabelId,
    node: NodeId,
) -> Result<(), Fault> {
    let row = params![task.0.cast_signed(), label.0.cast_signed(), node.0];
    let sql = "UPDATE task SET label = ?2, node = ?3 WHERE task = ?1";
    execute(db, sql, row)
}

/// Sets the state of a job; `at` is the time of the change.
pub fn set_job_state(db: &Connection, job: JobId, state: JobState, at: Time) -> Result<(), Fault> {
    let ended = if state == JobState::Running {
        0
    } else {
        time_to_wire(at)
    };
    let row = params![job.0.cast_signed(), state_number(state.into()), ended];
    let sql = "UPDATE job SET state = ?2, ended = ?3 WHERE job = ?1";
    execute(db, sql, row)
}

/// Stores the reason for the placement of a task.
pub fn put_decision(db: &Connection, job: JobId, decision: &Decision) -> Result<(), Fault> {
    let row = params![
        decision.label.0.cast_signed(),
        job.0.cast_signed(),
        decision.task.0.cast_signed(),
        v1::Decision::from(decision).encode_to_vec(),
    ];
    let sql = "INSERT OR REPLACE INTO decision VALUES (?1, ?2, ?3, ?4)";
    execute(db, sql, row)
}

/// Stores the resources that the newest run of a task used; `change` is the number of the change.
pub fn set_run(
    db: &Connection,
    task: TaskId,
    node: NodeId,
    outcome: &Outcome,
    change: i64,
) -> Result<(), Fault> {
    let sql = "UPDATE task SET node = ?2, start = ?3, kernel_start = ?4, end = ?5, read_bytes = ?6, \
               written_bytes = ?7, transferred_bytes = ?8, cpu_ns = ?9, memory_bytes = ?10, kernel_hash = ?11, \
               changed = ?12, stdout = ?13, stderr = ?14, reused = ?15, hash_ns = ?16, in_memory_bytes = ?17 WHERE task = ?1";
    let row = params![
        task.0.cast_signed(),
        node.0,
        time_to_wire(outcome.start),
        time_to_wire(outcome.kernel_start),
        time_to_wire(outcome.end),
        outcome.read_bytes.cast_signed(),
        outcome.written_bytes.cast_signed(),
        outcome.transferred_bytes.cast_signed(),
        outcome.cpu.0.cast_signed(),
        outcome.memory_bytes.cast_signed(),
        outcome.kernel_hash,
        change,
        outcome.stdout,
        outcome.stderr,
        outcome.reused.map_or(0, |task| task.0.cast_signed()),
        outcome.hashing.0.cast_signed(),
        outcome.in_memory_bytes.cast_signed(),
    ];
    execute(db, sql, row)
}

/// Adds the energy of a run above idle power, in millionths of a joule, to its task. Every run counts, also a failed run, unless it used no
/// processor time; `None` counts as a run whose energy is unknown.
pub fn add_energy(
    db: &Connection,
    task: TaskId,
    cpu: Span,
    above_idle: Option<u64>,
) -> Result<(), Fault> {
    if cpu == Span::default() {
        return Ok(());
    }
    let sql = "UPDATE task SET microjoules = min(microjoules + ?2, ?4), estimated = estimated + ?3, \
               unestimated = unestimated + 1 - ?3 WHERE task = ?1";
    let row = params![
        task.0.cast_signed(),
        above_idle.unwrap_or(0).cast_signed(),
        above_idle.is_some(),
        RUN_MICROJOULES_MAX.cast_signed(),
    ];
    execute(db, sql, row)
}

/// Sets the node, times and code of a task to those of the task instance in `instances` that ended last.
pub(super) fn end_with(
    db: &Connection,
    task: TaskId,
    instances: BTreeSet<TaskId>,
) -> Result<(), Fault> {
    let sql = "UPDATE task SET (node, start, kernel_start, end, kernel_hash) = (SELECT one.node, max(one.end), \
               max(one.end), max(one.end), one.kernel_hash FROM json_each(?2) AS met CROSS JOIN task AS one \
               ON one.task = met.value) WHERE task = ?1";
    let row = params![
        task.0.cast_signed(),
        json_list(instances.into_iter().map(|task| task.0))
    ];
    execute(db, sql, row)
}

/// Returns the jobs of a user, or of all users, that ended before a point in time (nanoseconds since the Unix epoch).
pub fn ended(db: &Connection, uid: Option<u32>, before: i64) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT job FROM job WHERE (?1 IS NULL OR uid = ?1) AND deleted = 0 AND state != ?2 AND ended < ?3";
    let row = params![uid, state_number(State::Running), before];
    rows(db, sql, row, |row| Ok(job_id(row)?.0))
}

/// Returns the time at which the first of the jobs in the list ended, if any job has ended.
pub fn first_end(db: &Connection) -> Result<Option<i64>, Fault> {
    let sql = "SELECT min(ended) FROM job WHERE deleted = 0 AND state != ?1";
    let row = [state_number(State::Running)];
    Ok(find(db, sql, row, |row| row.get::<_, Option<i64>>(0))?.flatten())
}

/// Returns, in the order of `jobs`, the owner of each job and whether the job still runs; `None` for a job that does not exist.
pub fn states(db: &Connection, jobs: &[u64]) -> Result<Vec<Option<(u32, bool)>>, Fault> {
    let asked: Vec<i64> = jobs.iter().map(|job| job.cast_signed()).collect();
    let sql = "SELECT uid, state NOT IN (?2, ?3, ?4) FROM json_each(?1) LEFT JOIN job ON job.job = json_each.value AND deleted = 0 \
               ORDER BY json_each.key";
    let mut statement = db.sql.prepare_cached(sql)?;
    let [done, failed, cancelled] =
        [State::Done, State::Failed, State::Cancelled].map(state_number);
    let rows = statement.query_map(params![json(&asked), done, failed, cancelled], |row| {
        let (uid, running): (Option<u32>, Option<bool>) = (row.get(0)?, row.get(1)?);
        Ok(uid.zip(running))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Records that a rule submitted a job. `depth` is the number of rule runs that led from external input to the job's outputs. The job is
/// open until the rule has processed its end.
pub fn set_rule(db: &Connection, job: u64, rule: u64, depth: u32) -> Result<(), Fault> {
    let sql = "UPDATE job SET rule = ?2, rule_depth = ?3, rule_open = 1 WHERE job = ?1";
    execute(
        db,
        sql,
        params![job.cast_signed(), rule.cast_signed(), depth],
    )
}

/// Records that the rule has processed the end of a job.
pub(crate) fn close_for_rule(db: &Connection, job: u64) -> Result<(), Fault> {
    let sql = "UPDATE job SET rule_open = 0 WHERE job = ?1";
    execute(db, sql, [job.cast_signed()])
}

/// Closes the jobs that reduce batches of a removed rule. Mapping jobs stay open until they have ended, as their inputs may be abandoned.
pub(crate) fn close_reductions(db: &Connection, rule: u64) -> Result<(), Fault> {
    let sql = "UPDATE job SET rule_open = 0 WHERE rule = ?1 AND rule_open = 1 AND EXISTS (SELECT 1 FROM batch \
               WHERE batch.job = job.job AND batch.job != 0)";
    execute(db, sql, [rule.cast_signed()])
}

/// Stores the statuses of the nodes at the start of a job.
pub fn put_nodes(db: &Connection, job: JobId, nodes: &v1::Peers) -> Result<(), Fault> {
    let sql = "UPDATE job SET nodes = ?2 WHERE job = ?1";
    execute(db, sql, params![job.0.cast_signed(), nodes.encode_to_vec()])
}

/// Returns the statuses of the nodes at the start of a job, in the order of their ids.
pub fn nodes(db: &Connection, job: JobId) -> Result<Vec<v1::Node>, Fault> {
    let sql = "SELECT nodes FROM job WHERE job = ?1 AND nodes IS NOT NULL";
    let stored: Option<Vec<u8>> = find(db, sql, [job.0.cast_signed()], |row| row.get(0))?;
    let nodes = v1::Peers::decode(stored.unwrap_or_default().as_slice())
        .map_err(|error| Fault::Corrupt(format!("nodes of job {job}: {error}")))?;
    Ok(nodes.nodes)
}

/// Deletes a job that has ended, with the output texts of its tasks and the reasons for their placements; returns false for a job that
/// still runs or was deleted before. Lineage and cached results need the rest.
pub fn delete(db: &Connection, job: JobId) -> Result<bool, Fault> {
    let (job, running) = (job.0.cast_signed(), state_number(State::Running));
    let sql = "UPDATE job SET deleted = 1, submission_id = NULL, nodes = NULL WHERE job = ?1 AND deleted = 0 AND state != ?2";
    if changed(db, sql, params![job, running])? == 0 {
        return Ok(false);
    }
    let sql = "UPDATE task SET stdout = '', stderr = '' WHERE job = ?1";
    execute(db, sql, [job])?;
    execute(db, "DELETE FROM decision WHERE job = ?1", [job])?;
    Ok(true)
}

/// A job that ended before the database was lost, as far as the lineage records of nodes show it.
#[derive(Debug)]
pub struct EndedJob {
    /// Id of the job before the loss, taken from the records of its tasks.
    pub job: JobId,
    /// Replacement for the job's name, which the records of nodes do not have.
    pub name: String,
    /// User id of the job's owner, from the record of one of its tasks.
    pub uid: u32,
    /// Final state of the job: done if all recovered tasks succeeded, otherwise failed.
    pub state: State,
    /// Earliest start of a recovered task, in nanoseconds since the Unix epoch; a substitute for the time of submission.
    pub submitted: i64,
    /// Latest end of a recovered task, in nanoseconds since the Unix epoch.
    pub ended: i64,
}

/// A task that ended before the database was lost.
#[derive(Debug)]
pub struct EndedTask {
    /// Id of the task before the loss.
    pub task: TaskId,
    /// Id of the recovered job that contains the task.
    pub job: JobId,
    /// Description of the task, as JSON.
    pub spec: String,
    /// Final state of the task: done or failed.
    pub state: State,
    /// Number of the change that ended the task.
    pub changed: u64,
    /// Node that ran the task and recorded its end.
    pub node: NodeId,
    /// Start of the run, in nanoseconds since the Unix epoch; also stored as the start of the kernel.
    pub start: i64,
    /// End of the run, in nanoseconds since the Unix epoch.
    pub end: i64,
    /// Number of bytes that the run read from all its inputs.
    pub read_bytes: u64,
    /// Number of bytes that the run wrote to all its outputs.
    pub written_bytes: u64,
    /// Number of bytes of inputs that the node fetched from other nodes for the run.
    pub transferred_bytes: u64,
    /// Hash of the code of the kernel that ran, in hexadecimal.
    pub kernel_hash: String,
    /// Reason for the failure of the task; empty if the task succeeded.
    pub error: String,
    /// End of the text that the task wrote to its standard error.
    pub stderr: String,
    /// End of the text that the task wrote to its standard output; empty if an output received the text.
    pub stdout: String,
}

/// Writes a recovered job without its tasks.
pub fn insert_ended_job(db: &Connection, job: &EndedJob) -> Result<(), Fault> {
    let sql = "INSERT INTO job(job, name, source, workdir, uid, gid, groups, policy, state, submitted, ended, script) \
               VALUES (?1, ?2, '', '', ?3, 0, '[]', NULL, ?4, ?5, ?6, '')";
    let row = params![
        job.job.0.cast_signed(),
        job.name,
        job.uid,
        i32::from(job.state),
        job.submitted,
        job.ended,
    ];
    execute(db, sql, row)
}

/// Writes a recovered task of a job.
pub fn insert_ended_task(db: &Connection, task: &EndedTask) -> Result<(), Fault> {
    let sql = "INSERT INTO task(task, job, spec, state, changed, tries, node, start, kernel_start, end, \
               read_bytes, written_bytes, transferred_bytes, kernel_hash, error, stderr, stdout) \
               VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
    let row = params![
        task.task.0.cast_signed(),
        task.job.0.cast_signed(),
        task.spec,
        i32::from(task.state),
        task.changed.cast_signed(),
        task.node.0,
        task.start,
        task.end,
        task.read_bytes.cast_signed(),
        task.written_bytes.cast_signed(),
        task.transferred_bytes.cast_signed(),
        task.kernel_hash,
        task.error,
        task.stderr,
        task.stdout,
    ];
    execute(db, sql, row)
}
