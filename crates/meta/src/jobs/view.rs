//! Jobs and tasks read from the database, in the form in which clients display them.

use super::spec::{StoredOrigin, StoredTask, shown};
use crate::Connection;
use crate::Fault;
use crate::json::json_list;
use crate::query::{find, rows, unsigned};
use parking_lot::Mutex;
use prost::Message;
use rusqlite::{Row, params};
use std::collections::{BTreeMap, HashMap, HashSet};
use tidemill_model::glob::Pattern;
use tidemill_model::id::{JobId, TaskId};
use tidemill_wire::convert::{self, state_name};
use tidemill_wire::v1::{self, State};

/// Maximum number of awaited inputs that are shown for a job.
const AWAITED_MAX: u32 = 3;
/// Maximum number of other reasons for waiting that are shown for a job.
const HELD_UP_MAX: usize = 3;

const JOB: &str =
    "SELECT job, name, source, workdir, uid, policy, state, submitted, ended FROM job";

fn job_row(row: &Row<'_>) -> rusqlite::Result<v1::Job> {
    Ok(v1::Job {
        job: unsigned(row, 0)?,
        name: row.get(1)?,
        source: row.get(2)?,
        workdir: row.get(3)?,
        uid: row.get(4)?,
        policy: row.get::<_, Option<String>>(5)?.unwrap_or_default(),
        state: row.get(6)?,
        submitted: row.get(7)?,
        ended: row.get(8)?,
        ..v1::Job::default()
    })
}

/// Sent tasks that nodes have reported as started, by job, each with the number of the change. The database does not store that a task has
/// started: after a restart of the server, the node reports the start again.
#[derive(Debug, Default)]
pub struct StartedTasks(Mutex<BTreeMap<u64, BTreeMap<u64, i64>>>);

impl StartedTasks {
    /// Records that a task has started; `change` is the number of the change.
    pub fn start(&self, job: JobId, task: TaskId, change: i64) {
        let mut jobs = self.0.lock();
        jobs.entry(job.0).or_default().insert(task.0, change);
    }

    /// Records that the database has a later state of a task.
    pub fn forget(&self, job: JobId, task: TaskId) {
        let mut jobs = self.0.lock();
        if let Some(tasks) = jobs.get_mut(&job.0) {
            tasks.remove(&task.0);
            if tasks.is_empty() {
                jobs.remove(&job.0);
            }
        }
    }

    fn of(&self, job: u64) -> BTreeMap<u64, i64> {
        self.0.lock().get(&job).cloned().unwrap_or_default()
    }
}

/// Returns a job without its tasks; `None` if the job does not exist.
pub fn job(db: &Connection, id: u64, started: &StartedTasks) -> Result<Option<v1::Job>, Fault> {
    let sql = format!("{JOB} WHERE job = ?1 AND deleted = 0");
    let found = find(db, &sql, [id.cast_signed()], job_row)?;
    found.map(|job| count(db, job, started)).transpose()
}

/// Filter of a job list.
#[derive(Debug, Default)]
pub struct JobFilter {
    /// Owner of the jobs; `None` for all users.
    pub uid: Option<u32>,
    /// Maximum number of jobs, the newest first.
    pub limit: u32,
    /// States of the jobs; empty for all states.
    pub states: Vec<i32>,
    /// Glob of the names of the jobs; `None` for all names.
    pub name: Option<Pattern>,
}

/// Returns jobs, the newest first.
pub fn jobs(
    db: &Connection,
    wanted: &JobFilter,
    started: &StartedTasks,
) -> Result<Vec<v1::Job>, Fault> {
    let sql = format!(
        "{JOB} WHERE (?1 IS NULL OR uid = ?1) AND deleted = 0 AND (?2 = '' OR instr(?2, ',' || state || ',')) \
         ORDER BY job DESC LIMIT ?3"
    );
    let states: Vec<String> = wanted.states.iter().map(ToString::to_string).collect();
    let states = match states.is_empty() {
        true => String::new(),
        false => format!(",{},", states.join(",")),
    };
    // Patterns are compared here, so the limit is counted here, too.
    let rows = match wanted.name {
        None => i64::from(wanted.limit),
        Some(_) => -1,
    };
    let mut statement = db.sql.prepare_cached(&sql)?;
    let mut rows = statement.query(params![wanted.uid, states, rows])?;
    let limit = usize::try_from(wanted.limit).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        let name = row.get_ref(1)?.as_str().unwrap_or_default();
        if wanted
            .name
            .as_ref()
            .is_none_or(|wanted| wanted.matches(name))
        {
            found.push(job_row(row)?);
        }
    }
    drop(rows);
    let counted = found.into_iter().map(|job| count(db, job, started));
    counted.collect()
}

/// Returns the number of unfinished jobs of a user.
pub fn unfinished(db: &Connection, uid: u32) -> Result<u64, Fault> {
    let sql = "SELECT count(*) FROM job WHERE state = ?1 AND uid = ?2";
    let row = params![i32::from(State::Running), uid];
    let jobs: i64 = db
        .sql
        .prepare_cached(sql)?
        .query_row(row, |row| row.get(0))?;
    Ok(jobs.cast_unsigned())
}

fn count(db: &Connection, mut job: v1::Job, started: &StartedTasks) -> Result<v1::Job, Fault> {
    let sql = "SELECT state, count(*), sum(transferred_bytes), CAST(total(microjoules) AS INTEGER), sum(estimated), sum(unestimated) \
               FROM task WHERE job = ?1 GROUP BY state";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut rows = statement.query([job.job.cast_signed()])?;
    while let Some(row) = rows.next()? {
        let state = State::try_from(row.get::<_, i32>(0)?).unwrap_or(State::Unspecified);
        let tasks: u32 = row.get(1)?;
        job.tasks_total += tasks;
        job.tasks_by_state.insert(state_name(state).into(), tasks);
        job.transferred_bytes += unsigned(row, 2)?;
        if let Some(drew) = energy(row, 3)? {
            let sum = job.energy.get_or_insert_default();
            sum.microjoules = sum.microjoules.saturating_add(drew.microjoules);
            sum.runs = sum.runs.saturating_add(drew.runs);
            sum.unknown = sum.unknown.saturating_add(drew.unknown);
        }
    }
    count_started(db, &mut job, started)?;
    if job.state() == State::Running {
        let total = "SELECT count(DISTINCT path) FROM awaited WHERE job = ?1 AND object = -1";
        let id = job.job.cast_signed();
        job.awaited_total = db
            .sql
            .prepare_cached(total)?
            .query_row([id], |row| row.get(0))?;
    }
    if job.state() == State::Running {
        held_up(db, &mut job)?;
    }
    if job.awaited_total > 0 {
        let some = "SELECT DISTINCT path FROM awaited WHERE job = ?1 AND object = -1 ORDER BY path LIMIT ?2";
        let mut some = db.sql.prepare_cached(some)?;
        let rows = some.query_map(params![job.job.cast_signed(), AWAITED_MAX], |row| {
            row.get(0)
        })?;
        job.awaited = rows.collect::<Result<_, _>>()?;
    }
    Ok(job)
}

/// Counts the sent tasks of a job that have started as running tasks.
fn count_started(db: &Connection, job: &mut v1::Job, started: &StartedTasks) -> Result<(), Fault> {
    let tasks = started.of(job.job);
    if tasks.is_empty() {
        return Ok(());
    }
    let sql =
        "SELECT count(*) FROM task WHERE task IN (SELECT value FROM json_each(?1)) AND state = ?2";
    let key = params![json_list(tasks.into_keys()), i32::from(State::Sent)];
    let running: u32 = db
        .sql
        .prepare_cached(sql)?
        .query_row(key, |row| row.get(0))?;
    let by_state = &mut job.tasks_by_state;
    if let Some(sent) = by_state.get_mut(state_name(State::Sent)) {
        *sent = sent.saturating_sub(running);
    }
    *by_state
        .entry(state_name(State::Running).into())
        .or_default() += running;
    by_state.retain(|_, tasks| *tasks > 0);
    Ok(())
}

/// Returns the energy of runs above idle power, from three columns of a row; `None` if there were no runs.
fn energy(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<v1::Estimated>> {
    let estimated = v1::Estimated {
        microjoules: unsigned(row, at)?,
        runs: row.get(at + 1)?,
        unknown: row.get(at + 2)?,
    };
    Ok((estimated.runs + estimated.unknown > 0).then_some(estimated))
}

/// Adds the known reasons why tasks of a job wait before they are sent to a node.
fn held_up(db: &Connection, job: &mut v1::Job) -> Result<(), Fault> {
    let sql = "SELECT error, count(*) FROM task WHERE job = ?1 AND state IN (?2, ?3) AND error <> '' \
               GROUP BY error ORDER BY min(task)";
    let states = [State::Waiting, State::Ready].map(i32::from);
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut rows = statement.query(params![job.job.cast_signed(), states[0], states[1]])?;
    while let Some(row) = rows.next()? {
        job.held_up_total += row.get::<_, u32>(1)?;
        if job.held_up.len() < HELD_UP_MAX {
            job.held_up.push(row.get(0)?);
        }
    }
    Ok(())
}

/// Returns the tasks of a job that changed after the change `after`, in the script's order, and the number of the last change.
pub fn tasks(
    db: &Connection,
    job: u64,
    after: i64,
    started: &StartedTasks,
) -> Result<(Vec<v1::Task>, i64), Fault> {
    let sql = "SELECT task, spec, state, node, tries, start, kernel_start, end, read_bytes, written_bytes, \
               transferred_bytes, cpu_ns, memory_bytes, kernel_hash, error, iif(state = 6, stderr, ''), changed, reused, \
               coalesce((SELECT before.job FROM task AS before WHERE before.task = task.reused), 0), hash_ns, \
               in_memory_bytes, microjoules, estimated, unestimated FROM task \
               WHERE job = ?1 AND (changed > ?2 OR task IN (SELECT value FROM json_each(?3))) ORDER BY task";
    let started = started.of(job);
    let new = started.iter().filter(|(_, change)| **change > after);
    let new = json_list(new.map(|(task, _)| *task));
    let unresolved = unresolved(db, job)?;
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut rows = statement.query(params![job.cast_signed(), after, new])?;
    let mut tasks = Vec::new();
    let mut last = after;
    while let Some(row) = rows.next()? {
        let mut task = task_row(row, &unresolved)?;
        last = last.max(row.get(16)?);
        if let Some(change) = started.get(&task.task)
            && task.state() == State::Sent
        {
            task.state = State::Running.into();
            last = last.max(*change);
        }
        tasks.push(task);
    }
    Ok((tasks, last))
}

/// Returns the specifications of a job's tasks, in the script's order.
pub fn specs(db: &Connection, job: u64) -> Result<Vec<(TaskId, StoredTask)>, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("SELECT task, spec FROM task WHERE job = ?1 ORDER BY task")?;
    let mut rows = statement.query([job.cast_signed()])?;
    let mut specs = Vec::new();
    while let Some(row) = rows.next()? {
        let task = TaskId(unsigned(row, 0)?);
        let stored = StoredTask::parse(&row.get::<_, String>(1)?, task)?;
        specs.push((task, stored));
    }
    Ok(specs)
}

fn unresolved(db: &Connection, job: u64) -> Result<HashSet<String>, Fault> {
    let sql = "SELECT path FROM awaited WHERE job = ?1 AND object = -1";
    rows(db, sql, [job.cast_signed()], |row| row.get(0))
}

fn task_row(row: &Row<'_>, unresolved: &HashSet<String>) -> Result<v1::Task, Fault> {
    let long = |at: usize| unsigned(row, at);
    let id = long(0)?;
    let stored = StoredTask::parse(&row.get::<_, String>(1)?, TaskId(id))?;
    let state: i32 = row.get(2)?;
    let waiting = State::try_from(state).is_ok_and(|state| state == State::Waiting);
    let awaited = stored
        .inputs
        .iter()
        .filter(|input| waiting && matches!(input.origin, StoredOrigin::Awaited))
        .map(|input| input.path.clone())
        .filter(|path| unresolved.contains(path));
    let memory_outputs = stored.outputs.iter().filter(|output| output.memory);
    let memory_outputs = memory_outputs.count() as u64;
    let streaming = stored.inputs.iter().filter(|input| input.streaming);
    let streaming = streaming.map(|input| input.path.clone()).collect();
    Ok(v1::Task {
        task: id,
        state,
        awaited: awaited.collect(),
        name: stored.name,
        kernel: stored.kernel,
        args: stored.args,
        runtime_environment: convert::runtime_environment(&stored.runtime_environment),
        selections: selections(stored.inputs.iter().map(|input| input.selection.clone())),
        inputs: (stored.inputs.into_iter())
            .map(|input| shown(input.path, &input.name))
            .collect(),
        outputs: (stored.outputs.into_iter())
            .map(|output| shown(output.path, &output.name))
            .collect(),
        node: row.get(3)?,
        tries: row.get(4)?,
        start: row.get(5)?,
        kernel_start: row.get(6)?,
        end: row.get(7)?,
        read_bytes: long(8)?,
        written_bytes: long(9)?,
        transferred_bytes: long(10)?,
        cpu_ns: long(11)?,
        memory_bytes: long(12)?,
        kernel_hash: row.get(13)?,
        error: row.get(14)?,
        stderr: row.get(15)?,
        reused_task: long(17)?,
        reused_job: long(18)?,
        hash_ns: long(19)?,
        in_memory_bytes: long(20)?,
        memory_outputs,
        streaming,
        energy: energy(row, 21)?,
        ..v1::Task::default()
    })
}

/// Returns the selections of inputs as text; empty if the task reads all bytes of all inputs.
pub fn selections(all: impl Iterator<Item = String> + Clone) -> Vec<String> {
    match all.clone().all(|one| one.is_empty()) {
        true => Vec::new(),
        false => all.collect(),
    }
}

/// Returns at most `limit` tasks of a job after the task `after`, with their output text.
pub fn logs(db: &Connection, job: u64, after: u64, limit: u32) -> Result<Vec<v1::Task>, Fault> {
    let sql = "SELECT task, spec, state, node, error, stdout, stderr, tries, start FROM task \
               WHERE job = ?1 AND task > ?2 ORDER BY task LIMIT ?3";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut logs = Vec::new();
    let mut rows = statement.query(params![job.cast_signed(), after.cast_signed(), limit])?;
    while let Some(row) = rows.next()? {
        let task = unsigned(row, 0)?;
        let stored = StoredTask::parse(&row.get::<_, String>(1)?, TaskId(task))?;
        logs.push(v1::Task {
            task,
            name: stored.name,
            kernel: stored.kernel,
            state: row.get(2)?,
            node: row.get(3)?,
            error: row.get(4)?,
            stdout: row.get(5)?,
            stderr: row.get(6)?,
            tries: row.get(7)?,
            start: row.get(8)?,
            ..v1::Task::default()
        });
    }
    Ok(logs)
}

/// Returns the number of inputs that a task read before the tasks that wrote them ended, by the clock of their node.
fn streamed(task: &v1::Task, makers: &HashMap<&str, &v1::Task>) -> u32 {
    let ran = task.reused_task == 0;
    let makers = task
        .streaming
        .iter()
        .filter_map(|path| makers.get(path.as_str()));
    let streamed =
        makers.filter(|maker| ran && maker.node == task.node && task.kernel_start < maker.end);
    u32::try_from(streamed.count()).unwrap_or(u32::MAX)
}

/// Returns the recorded reasons for the placement of a job's tasks.
pub fn decisions(db: &Connection, job: u64) -> Result<Vec<v1::Decision>, Fault> {
    let tasks: HashMap<u64, v1::Task> = tasks(db, job, -1, &StartedTasks::default())?
        .0
        .into_iter()
        .map(|task| (task.task, task))
        .collect();
    let sql = "SELECT body, task.label = decision.label, transferred_bytes, in_memory_bytes FROM decision \
               JOIN task ON task.task = decision.task WHERE decision.job = ?1 ORDER BY decision.label";
    let mut statement = db.sql.prepare_cached(sql)?;
    let rows = statement.query_map([job.cast_signed()], |row| {
        Ok((
            row.get::<_, Vec<u8>>(0)?,
            row.get::<_, bool>(1)?,
            unsigned(row, 2)?,
            unsigned(row, 3)?,
        ))
    })?;
    let makers = tasks.values().filter(|task| task.reused_task == 0);
    let makers = makers.flat_map(|task| task.outputs.iter().map(move |path| (path.as_str(), task)));
    let makers: HashMap<&str, &v1::Task> = makers.collect();
    let mut decisions = Vec::new();
    for row in rows {
        let (body, is_last, transferred_bytes, in_memory_bytes) = row?;
        let mut decision = v1::Decision::decode(body.as_slice())
            .map_err(|error| Fault::Corrupt(format!("a decision about job {job}: {error}")))?;
        if let Some(task) = tasks.get(&decision.task) {
            decision.name.clone_from(&task.name);
            if !task.selections.is_empty() {
                decision.inputs.clone_from(&task.inputs);
                decision.selections.clone_from(&task.selections);
            }
            decision.reused_task = task.reused_task;
            decision.reused_job = task.reused_job;
            decision.memory_outputs = task.memory_outputs;
            // The streamed inputs are known when the task has ended.
            if is_last && task.kernel_start > 0 {
                decision.streaming = u32::try_from(task.streaming.len()).unwrap_or(u32::MAX);
                decision.streamed = streamed(task, &makers);
            }
            decision.energy = task.energy.filter(|_| is_last);
        }
        if is_last {
            decision.transferred_bytes = transferred_bytes;
            decision.in_memory_bytes = in_memory_bytes;
        }
        decisions.push(decision);
    }
    Ok(decisions)
}
