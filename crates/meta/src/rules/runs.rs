//! Rule runs: one row for each version that matches a rule, from the match to the end of the task.

use super::{Rules, StoredRule, input_deletion, jobs};
use crate::Connection;
use crate::Fault;
use crate::jobs::records;
use crate::json::json;
use crate::query::stored_enum;
use crate::query::{changed, execute, exists, find, rows, unsigned};
use crate::vnode::InodeRecord;
use rusqlite::{Row, params};
use std::collections::BTreeMap;
use tidemill_lang::rule::hook::LAG_FILES;
use tidemill_model::event::TaskState;
use tidemill_sched::dispatch::ASIDE;
use tidemill_wire::v1;

/// Maximum number of ended jobs whose outcomes are recorded in one transaction.
const JOBS_MAX: u32 = 16;
/// Maximum length in characters of a stored reason of a failure.
const ERROR_CHARS_MAX: usize = 2000;
/// Maximum number of rule runs deleted in one transaction.
const FORGET_MAX: i64 = 10_000;

/// Reason of the end of a rule run whose version was never sealed.
pub const ABANDONED: &str =
    "the file was removed, or abandoned by its writer, before it was sealed";

/// Reason of the end of a rule run for an unsealed version that several mounts have begun to write.
pub const SHARED: &str = "several mounts write the file: it triggers the rule when it is sealed";

/// SQL expression for the node of the burst tier on which an object is being written or is stored.
const NODE: &str = "coalesce((SELECT node FROM writing WHERE writing.object = rule_run.object), \
                    (SELECT node FROM replica WHERE replica.object = rule_run.object AND tier IS NOT NULL))";

/// SQL condition for the next rule runs of a removed rule that are deleted: at most `?2` runs of the rule `?1`.
pub(super) const LEFT: &str = "rule_run IN (SELECT rule_run FROM rule_run WHERE rule = ?1 AND NOT (state = 2 AND EXISTS \
                               (SELECT 1 FROM job WHERE job.job = rule_run.job AND rule_open = 1)) LIMIT ?2) \
                               AND NOT EXISTS (SELECT 1 FROM rule WHERE rule.rule = ?1)";

stored_enum! {
    /// State of a version that matches a rule.
    MatchState {
        /// The version is queued and will trigger the rule.
        Queued = 0,
        /// The rule run for an earlier version of the same path has not ended.
        Waiting = 1,
        /// The job of the rule run is running.
        Running = 2,
        /// The task of the rule run has succeeded.
        Done = 3,
        /// The task of the rule run failed, or the server refused its job.
        Failed = 4,
        /// The file was deleted before the rule ran.
        Deleted = 5,
        /// The version results from a chain of rule runs that exceeds the recursion limit.
        Loop = 6,
        /// The content of the version does not have the type that the rule requires.
        Other = 7,
    }
}

impl MatchState {
    /// All states with the names that commands and messages use for them.
    pub const ALL: [(Self, &str); 8] = [
        (Self::Queued, "queued"),
        (Self::Waiting, "waiting"),
        (Self::Running, "running"),
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Deleted, "deleted"),
        (Self::Loop, "loop"),
        (Self::Other, "other"),
    ];

    fn name(self) -> String {
        let found = Self::ALL.iter().find(|(state, _)| *state == self);
        found.map_or("unknown", |(_, name)| name).to_owned()
    }

    /// Returns the state with a name; `None` if no state has this name.
    pub fn called(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(_, known)| *known == name)
            .map(|(state, _)| *state)
    }
}

/// A version that matches a rule, before its rule run is stored.
pub(super) struct NewRun<'a> {
    pub(super) rule: u64,
    pub(super) vnode: &'a InodeRecord,
    /// User with whose rights the rule is to run.
    pub(super) uid: u32,
    pub(super) path: &'a str,
    pub(super) depth: u32,
    pub(super) state: MatchState,
    pub(super) error: String,
}

/// Stores a rule run. Returns `false` if the version has already triggered the rule: a version triggers a rule once, however often it
/// gets a name.
pub(super) fn add(db: &Connection, new: &NewRun<'_>, now: i64) -> Result<bool, Fault> {
    let ended = if new.state == MatchState::Loop {
        now
    } else {
        0
    };
    let sql = "INSERT OR IGNORE INTO rule_run(rule, object, ino, uid, path, depth, state, queued, ended, error) \
               SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE EXISTS (SELECT 1 FROM rule WHERE rule = ?1)";
    let row = params![
        new.rule.cast_signed(),
        new.vnode.object.cast_signed(),
        new.vnode.ino.cast_signed(),
        new.uid,
        new.path,
        new.depth,
        new.state,
        now,
        ended,
        new.error
    ];
    let added = changed(db, sql, row)?;
    Ok(added == 1)
}

/// Whether a run of a rule for any version at a path has not ended.
pub(super) fn any_open_at(db: &Connection, rule: u64, path: &str) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM rule_run WHERE rule = ?1 AND path = ?2 AND state <= 2";
    exists(db, sql, params![rule.cast_signed(), path])
}

/// Returns the rule runs for a version that have not ended, with their states.
pub(super) fn open_for(db: &Connection, object: u64) -> Result<Vec<(u64, MatchState)>, Fault> {
    let sql = "SELECT rule_run, state FROM rule_run WHERE object = ?1 AND state <= 2";
    rows(db, sql, [object.cast_signed()], |row| {
        Ok((unsigned(row, 0)?, row.get(1)?))
    })
}

/// Adds a rule run to a batch. Returns the number of files in the batch. Deleted and abandoned files do not count as files of the batch. A
/// file at the end of a chain counts, and makes the batch fail.
pub(super) fn add_to_batch(
    db: &Connection,
    (rule, object): (u64, u64),
    batch: u64,
) -> Result<u32, Fault> {
    let (rule, batch) = (rule.cast_signed(), batch.cast_signed());
    let sql = "UPDATE rule_run SET batch = ?3 WHERE rule = ?1 AND object = ?2";
    let row = [rule, object.cast_signed(), batch];
    execute(db, sql, row)?;
    let sql = "SELECT count(*) FROM rule_run WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND (state < ?3 OR state = ?4)";
    let key = params![rule, batch, MatchState::Deleted, MatchState::Loop];
    Ok(find(db, sql, key, |row| row.get(0))?.unwrap_or(0))
}

/// A queued version that is to trigger a rule.
#[derive(Clone, Debug)]
pub struct RuleRun {
    /// Number of the rule run.
    pub rule_run: u64,
    /// Object id of the version that is to trigger the rule.
    pub object: u64,
    /// Inode of the version's file.
    pub ino: u64,
    /// Path of the file that matched the rule.
    pub path: String,
    /// Number of earlier rule runs in the chain that led to the version; 0 if no job of a rule made the version.
    pub depth: u32,
    /// Node on which the version is still being written; `None` for a sealed version.
    pub node: Option<u32>,
    /// Node of the burst tier on which the version is being written or is stored, and the time at which the version was queued.
    pub since: (Option<u32>, i64),
    /// Batch to which the version belongs; 0 for a rule without batches.
    pub batch: u64,
}

fn node(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<u32>> {
    let node = row.get::<_, Option<i64>>(at)?;
    Ok(node.and_then(|node| node.try_into().ok()))
}

/// Passes at most `limit` queued runs of a rule for one user to `take`, the oldest first, until `take` returns `false`.
pub fn read_queued(
    db: &Connection,
    (rule, uid): (u64, u32),
    limit: usize,
    mut take: impl FnMut(RuleRun) -> bool,
) -> Result<(), Fault> {
    let sql = format!(
        "SELECT rule_run, rule_run.object, rule_run.ino, path, depth, writing.node, {NODE}, queued, batch FROM rule_run \
         LEFT JOIN writing ON writing.object = rule_run.object WHERE rule = ?1 AND state = 0 AND rule_run.uid = ?2 \
         ORDER BY rule_run LIMIT ?3"
    );
    let mut statement = db.sql.prepare_cached(&sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![rule.cast_signed(), uid, limit])?;
    while let Some(row) = rows.next()? {
        let rule_run = RuleRun {
            rule_run: unsigned(row, 0)?,
            object: unsigned(row, 1)?,
            ino: unsigned(row, 2)?,
            path: row.get(3)?,
            depth: row.get(4)?,
            node: node(row, 5)?,
            since: (node(row, 6)?, row.get(7)?),
            batch: unsigned(row, 8)?,
        };
        if !take(rule_run) {
            break;
        }
    }
    Ok(())
}

/// Returns the burst nodes and queue times of at most `limit` queued runs of a rule.
pub fn queued_since(
    db: &Connection,
    rule: u64,
    limit: u32,
) -> Result<Vec<(Option<u32>, i64)>, Fault> {
    let sql =
        format!("SELECT {NODE}, queued FROM rule_run WHERE rule = ?1 AND state = ?2 LIMIT ?3");
    let key = params![rule.cast_signed(), MatchState::Queued, limit];
    rows(db, &sql, key, |row| Ok((node(row, 0)?, row.get(1)?)))
}

/// Returns the next user after `after` with whose rights a rule is to run, and the time at which the first of that user's files was queued.
pub fn next_user(
    db: &Connection,
    rule: u64,
    after: Option<u32>,
) -> Result<Option<(u32, i64)>, Fault> {
    let sql = "SELECT uid, queued FROM rule_run WHERE rule = ?1 AND state = 0 AND uid > ?2 \
               ORDER BY uid, rule_run LIMIT 1";
    let next = |after: i64| {
        find(db, sql, [rule.cast_signed(), after], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    };
    match next(after.map_or(-1, i64::from))? {
        None if after.is_some() => next(-1),
        found => Ok(found),
    }
}

/// Returns the number of running tasks of rules for each user.
pub fn running_tasks(db: &Connection) -> Result<BTreeMap<u32, u32>, Fault> {
    let sql = "SELECT uid, count(DISTINCT task) FROM rule_run WHERE state = 2 GROUP BY uid";
    rows(db, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Records that the tasks from `first` to `last` of a job process the version of a queued rule run. Fails if the rule run is not queued.
pub fn begin(
    db: &Connection,
    rule_run: &RuleRun,
    job: u64,
    (first, last): (u64, u64),
) -> Result<(), Fault> {
    let sql = "UPDATE rule_run SET state = ?2, job = ?3, task = ?4, last = ?6 WHERE rule_run = ?1 AND state = ?5";
    let row = params![
        rule_run.rule_run.cast_signed(),
        MatchState::Running,
        job.cast_signed(),
        first.cast_signed(),
        MatchState::Queued,
        last.cast_signed()
    ];
    let changed = changed(db, sql, row)?;
    match changed {
        1 => Ok(()),
        _ => Err(Fault::Stale(rule_run.object)),
    }
}

/// Queues map tasks again that were bound to the node of a write and still wait for that node although their files are sealed. The map
/// tasks may then run on any node with the files. Their earlier jobs are cancelled.
pub fn requeue_sealed(db: &Connection, rules: &Rules) -> Result<(), Fault> {
    let rules = rules.all();
    let hooks = rules.iter().filter(|kept| kept.rule.hook.is_some());
    let hooks: Vec<u64> = hooks.map(|kept| kept.id).collect();
    let sql = "UPDATE rule_run SET state = 0, job = 0, task = 0, last = 0 WHERE state = 2 \
               AND rule IN (SELECT value FROM json_each(?1)) \
               AND NOT EXISTS (SELECT 1 FROM writing WHERE writing.object = rule_run.object) \
               AND EXISTS (SELECT 1 FROM task WHERE task.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
               AND task.state = ?2 AND (instr(task.error, ?3) = 1 OR instr(task.error, ?4) = 1))";
    let ready = i32::from(v1::State::from(TaskState::Ready));
    let row = params![json(&hooks), ready, ASIDE[0], ASIDE[1]];
    execute(db, sql, row)
}

/// Returns the results of a batch's map tasks.
pub(super) fn mapped_objects(
    db: &Connection,
    (rule, batch): (u64, u64),
) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT made.object FROM rule_run CROSS JOIN task_output AS made \
               ON made.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
               WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state = ?3";
    let row = params![rule.cast_signed(), batch.cast_signed(), MatchState::Done];
    rows(db, sql, row, |row| unsigned(row, 0))
}

/// Records the outcomes of jobs that have ended. Returns whether more ended jobs may remain.
pub fn settle(db: &Connection, rules: &Rules, now: i64) -> Result<bool, Fault> {
    let jobs = jobs::ended(db, JOBS_MAX)?;
    for &job in &jobs {
        // These rule runs belong to a rule that was removed in the meantime.
        let sql = "DELETE FROM rule_run WHERE job = ?1 AND state = 2 AND rule NOT IN (SELECT rule FROM rule)";
        execute(db, sql, [job.cast_signed()])?;
        settle_job(db, rules, job, now)?;
        records::close_for_rule(db, job)?;
    }
    Ok(jobs.len() == JOBS_MAX as usize)
}

fn settle_job(db: &Connection, rules: &Rules, job: u64, now: i64) -> Result<(), Fault> {
    let sql = "SELECT rule_run, task.state, task.error FROM rule_run LEFT JOIN task ON task.task BETWEEN rule_run.task \
               AND max(rule_run.task, rule_run.last) WHERE rule_run.job = ?1 AND rule_run.state = 2";
    let tasks: Vec<_> = rows(db, sql, [job.cast_signed()], |row| {
        let (state, error): (Option<i32>, Option<String>) = (row.get(1)?, row.get(2)?);
        Ok((unsigned(row, 0)?, state, error))
    })?;
    // A rule run with task instances has failed if one of its tasks has failed. Its reason is the first one available.
    let mut ends: BTreeMap<u64, (MatchState, String)> = BTreeMap::new();
    for (rule_run, state, error) in tasks {
        let (ended, error) = ended(job, state, error.unwrap_or_default());
        let known = ends
            .entry(rule_run)
            .or_insert((MatchState::Done, String::new()));
        if ended == MatchState::Failed && (known.0 == MatchState::Done || known.1.is_empty()) {
            *known = (ended, error);
        }
    }
    for (rule_run, (ended, error)) in ends {
        let error = match ended {
            MatchState::Failed if error.is_empty() => format!("its job {job} has ended without it"),
            _ => error,
        };
        let before = (rule_run, MatchState::Running);
        end(db, rules, before, ended, (&error, now))?;
    }
    Ok(())
}

/// Returns the state of a rule run after the end of its task, and the reason if the reason is known.
fn ended(job: u64, state: Option<i32>, error: String) -> (MatchState, String) {
    match state.and_then(|state| v1::State::try_from(state).ok()) {
        Some(v1::State::Done) => (MatchState::Done, String::new()),
        Some(v1::State::Cancelled) if error.is_empty() => {
            (MatchState::Failed, format!("its job {job} was cancelled"))
        }
        _ => (MatchState::Failed, error),
    }
}

/// Ends a rule run in a given state, and queues the next version of the same path.
pub fn end(
    db: &Connection,
    rules: &Rules,
    (rule_run, before): (u64, MatchState),
    state: MatchState,
    (error, now): (&str, i64),
) -> Result<(), Fault> {
    let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
    let sql = "UPDATE rule_run SET state = ?3, error = ?4, ended = ?5 WHERE rule_run = ?1 AND state = ?2 RETURNING rule, path, object";
    let key = params![rule_run.cast_signed(), before, state, error, now];
    let read = |row: &Row<'_>| {
        let path = row.get::<_, String>(1)?;
        Ok((row.get::<_, i64>(0)?, path, unsigned(row, 2)?))
    };
    let Some((rule, path, object)) = find(db, sql, key, read)? else {
        return Ok(());
    };
    if rules.any_input_action() {
        input_deletion::examine(db, object)?;
    }
    // The ended rule run may have been a waiting one; then no other rule run is queued.
    let sql = "UPDATE rule_run SET state = 0 WHERE rule_run = (SELECT min(rule_run) FROM rule_run \
               WHERE rule = ?1 AND path = ?2 AND state = 1) AND NOT EXISTS (SELECT 1 FROM rule_run AS other \
               WHERE other.rule = ?1 AND other.path = ?2 AND other.state <= 2 AND other.state != 1)";
    execute(db, sql, params![rule, path])
}

/// Stores the reason why the file of an ended rule run was not deleted.
pub(super) fn set_error(db: &Connection, rule_run: u64, why: &str) -> Result<(), Fault> {
    let sql = "UPDATE rule_run SET error = ?2 WHERE rule_run = ?1";
    execute(db, sql, params![rule_run.cast_signed(), why])
}

/// Returns the objects of a rule's failed runs that belong to no batch: of all runs, or of those of one path.
pub(super) fn failed_without_batch(
    db: &Connection,
    rule: u64,
    path: &str,
) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT object FROM rule_run WHERE rule = ?1 AND batch = 0 AND state IN (?3, ?4) AND (?2 = '' OR path = ?2)";
    let (failed, looped) = (MatchState::Failed, MatchState::Loop);
    let key = params![rule.cast_signed(), path, failed, looped];
    rows(db, sql, key, |row| unsigned(row, 0))
}

/// Queues failed runs of a rule again: all failed runs, or those of one path. Returns the number of queued runs.
pub(super) fn retry(db: &Connection, (rule, path): (u64, &str), now: i64) -> Result<usize, Fault> {
    // Of several failed versions of a path the first is queued, and the others follow it.
    let sql = "UPDATE rule_run SET state = ?4, error = '', job = 0, task = 0, ended = 0, depth = 0, queued = ?5 \
               WHERE rule = ?1 AND state IN (?6, ?7) AND (?2 = '' OR path = ?3)";
    let (waiting, failed, looped) = (MatchState::Waiting, MatchState::Failed, MatchState::Loop);
    let rule = rule.cast_signed();
    let row = params![rule, path, path, waiting, now, failed, looped];
    let count = changed(db, sql, row)?;
    let sql = "UPDATE rule_run SET state = ?2 WHERE rule = ?1 AND state = ?3 AND NOT EXISTS (SELECT 1 FROM rule_run AS other \
               WHERE other.rule = ?1 AND other.path = rule_run.path AND other.state <= 2 \
               AND (other.state != ?3 OR other.rule_run < rule_run.rule_run))";
    execute(db, sql, params![rule, MatchState::Queued, waiting])?;
    Ok(count)
}

/// Deletes some rule runs of a removed rule. Returns whether more may remain. Files that stayed only because of this rule, and that other
/// rules have mapped, may be deleted then. A rule run whose job still runs is deleted after the end of the job.
pub fn forget(db: &Connection, rule: u64) -> Result<bool, Fault> {
    input_deletion::examine_left(db, rule, FORGET_MAX)?;
    let sql = format!("DELETE FROM rule_run WHERE {LEFT}");
    let deleted = changed(db, &sql, params![rule.cast_signed(), FORGET_MAX])?;
    Ok(deleted > 0)
}

/// Returns the removed rules that still have rule runs in the database.
pub fn removed_rules(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT DISTINCT rule FROM rule_run WHERE rule NOT IN (SELECT rule FROM rule)";
    rows(db, sql, [], |row| unsigned(row, 0))
}

/// Returns the number of failed runs of a rule.
pub fn count_failed(db: &Connection, rule: u64) -> Result<u64, Fault> {
    let sql = "SELECT count(*) FROM rule_run WHERE rule = ?1 AND state = ?2";
    let key = params![rule.cast_signed(), MatchState::Failed];
    Ok(find(db, sql, key, |row| unsigned(row, 0))?.unwrap_or(0))
}

/// Returns the number of runs of a rule in each state, by the name of the state.
pub fn count_by_state(db: &Connection, rule: u64) -> Result<Vec<(String, u64)>, Fault> {
    let sql = "SELECT state, count(*) FROM rule_run WHERE rule = ?1 GROUP BY state";
    rows(db, sql, [rule.cast_signed()], |row| {
        Ok((row.get::<_, MatchState>(0)?.name(), unsigned(row, 1)?))
    })
}

/// Returns the number of sealed versions that match a hook and are not mapped yet, and their total size in bytes, capped near the largest
/// file size.
pub fn lag(db: &Connection, rule: u64) -> Result<(u64, u64), Fault> {
    let sql = "SELECT count(*), CAST(min(total(size), 9.2e18) AS INTEGER) FROM rule_run \
               CROSS JOIN version ON version.object = rule_run.object WHERE rule = ?1 AND state <= ?2";
    let key = params![rule.cast_signed(), MatchState::Running];
    let read = |row: &Row<'_>| Ok((unsigned(row, 0)?, unsigned(row, 1)?));
    Ok(find(db, sql, key, read)?.unwrap_or_default())
}

/// Whether the map tasks of a hook lag; then files are mapped when they are closed. Each client that begins to write a file waits for this
/// query, which therefore counts no more rows than necessary.
pub fn lags(db: &Connection, kept: &StoredRule) -> Result<bool, Fault> {
    if kept.rule.hook.is_none() {
        return Ok(false);
    }
    let sql = "SELECT count(*) FROM (SELECT 1 FROM rule_run CROSS JOIN version ON version.object = rule_run.object \
               WHERE rule = ?1 AND state <= ?2 LIMIT ?3)";
    let most = LAG_FILES + 1;
    let key = params![
        kept.id.cast_signed(),
        MatchState::Running,
        most.cast_signed()
    ];
    Ok(find(db, sql, key, |row| unsigned(row, 0))? == Some(most))
}

/// Returns at most `limit` runs of a rule before the run `before`, the last first. With `states`, returns only runs in these states.
pub fn log(
    db: &Connection,
    rule: u64,
    (before, limit): (u64, u32),
    states: &[MatchState],
) -> Result<Vec<v1::RuleRun>, Fault> {
    let before = match before {
        0 => i64::MAX,
        before => i64::try_from(before).unwrap_or(i64::MAX),
    };
    let states: Vec<i64> = states.iter().map(|state| *state as i64).collect();
    let sql = "SELECT rule_run, path, object, state, job, task, depth, queued, ended, error FROM rule_run \
               WHERE rule = ?1 AND rule_run < ?2 AND (?3 = '[]' OR state IN (SELECT value FROM json_each(?3))) \
               ORDER BY rule_run DESC LIMIT ?4";
    let key = params![rule.cast_signed(), before, json(&states), limit];
    rows(db, sql, key, |row| {
        Ok(v1::RuleRun {
            rule_run: unsigned(row, 0)?,
            path: row.get(1)?,
            object: unsigned(row, 2)?,
            state: row.get::<_, MatchState>(3)?.name(),
            job: unsigned(row, 4)?,
            task: unsigned(row, 5)?,
            depth: row.get(6)?,
            queued: row.get(7)?,
            ended: row.get(8)?,
            error: row.get(9)?,
        })
    })
}
