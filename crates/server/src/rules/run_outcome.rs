//! Ends of rule runs: by jobs that have ended, by deleted files, and by refused jobs. This module writes the tables of rules.

use super::store::one;
use super::{MatchState, Rules};
use crate::jobs::store::{json, state_number, task_state};
use crate::names::Fault;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use tidemill_model::event::TaskState;
use tidemill_sched::dispatch::ASIDE;
use tidemill_wire::v1;

/// Maximum number of ended jobs whose outcomes are recorded in one transaction.
const JOBS_MAX: u32 = 16;
/// Maximum length in characters of a stored reason of a failure.
const ERROR_CHARS_MAX: usize = 2000;

/// Reason of the end of a rule run whose version was never sealed.
pub(crate) const ABANDONED: &str =
    "the file was removed, or abandoned by its writer, before it was sealed";

/// Reason of the end of a rule run for an unsealed version that several mounts have begun to write.
pub(crate) const SHARED: &str =
    "several mounts write the file: it triggers the rule when it is sealed";

/// Returns the running jobs whose rule runs were all ended otherwise. Jobs that reduce have no rule runs and are not returned.
pub(super) fn in_vain(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT job FROM rule_job WHERE open = 1 AND NOT EXISTS \
               (SELECT 1 FROM rule_run WHERE rule_run.job = rule_job.job AND state = 2) \
               AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.job = rule_job.job AND batch.job != 0)";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| Ok(row.get::<_, i64>(0)?.cast_unsigned()))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Queues map tasks again that were bound to the node of a write and still wait for that node although their files are sealed. The map
/// tasks may then run on any node with the files. Their earlier jobs are cancelled.
pub(super) fn set_free(db: &Connection, rules: &Rules) -> Result<(), Fault> {
    let rules = rules.all();
    let hooks = rules.iter().filter(|kept| kept.rule.hook.is_some());
    let hooks: Vec<u64> = hooks.map(|kept| kept.id).collect();
    let sql = "UPDATE rule_run SET state = 0, job = 0, task = 0, last = 0 WHERE state = 2 \
               AND rule IN (SELECT value FROM json_each(?1)) \
               AND NOT EXISTS (SELECT 1 FROM writing WHERE writing.object = rule_run.object) \
               AND EXISTS (SELECT 1 FROM task WHERE task.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
               AND task.state = ?2 AND (instr(task.error, ?3) = 1 OR instr(task.error, ?4) = 1))";
    let ready = task_state(TaskState::Ready);
    let row = params![json(&hooks), ready, ASIDE[0], ASIDE[1]];
    db.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Records the outcomes of jobs that have ended. Returns whether more ended jobs may remain.
pub(super) fn settle(db: &Connection, rules: &Rules, now: i64) -> Result<bool, Fault> {
    let sql = "SELECT rule_job.job FROM rule_job LEFT JOIN job ON job.job = rule_job.job \
               WHERE open = 1 AND job.state IS NOT ?1 LIMIT ?2";
    let running = state_number(v1::State::Running);
    let jobs: Vec<i64> = {
        let mut statement = db.prepare_cached(sql)?;
        let rows = statement.query_map(params![running, JOBS_MAX], |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    for job in &jobs {
        // These rule runs belong to a rule that was removed in the meantime.
        let sql = "DELETE FROM rule_run WHERE job = ?1 AND state = 2 AND rule NOT IN (SELECT rule FROM rule)";
        db.prepare_cached(sql)?.execute([job])?;
        settle_job(db, rules, *job, now)?;
        db.prepare_cached("UPDATE rule_job SET open = 0 WHERE job = ?1")?
            .execute([job])?;
    }
    Ok(jobs.len() == JOBS_MAX as usize)
}

fn settle_job(db: &Connection, rules: &Rules, job: i64, now: i64) -> Result<(), Fault> {
    let sql = "SELECT rule_run, task.state, task.error FROM rule_run LEFT JOIN task ON task.task BETWEEN rule_run.task \
               AND max(rule_run.task, rule_run.last) WHERE rule_run.job = ?1 AND rule_run.state = 2";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([job], |row| {
        let (state, error): (Option<i32>, Option<String>) = (row.get(1)?, row.get(2)?);
        Ok((row.get::<_, i64>(0)?.cast_unsigned(), state, error))
    })?;
    // A rule run with task instances has failed if one of its tasks has failed. Its reason is the first one available.
    let mut ends: BTreeMap<u64, (MatchState, String)> = BTreeMap::new();
    for row in rows {
        let (rule_run, state, error) = row?;
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
        end(
            db,
            rules,
            (rule_run, MatchState::Running),
            ended,
            (&error, now),
        )?;
    }
    Ok(())
}

/// Returns the state of a rule run after the end of its task, and the reason if the reason is known.
fn ended(job: i64, state: Option<i32>, error: String) -> (MatchState, String) {
    match state.and_then(|state| v1::State::try_from(state).ok()) {
        Some(v1::State::Done) => (MatchState::Done, String::new()),
        Some(v1::State::Cancelled) if error.is_empty() => {
            (MatchState::Failed, format!("its job {job} was cancelled"))
        }
        _ => (MatchState::Failed, error),
    }
}

/// Ends a rule run in a given state, and queues the next version of the same path.
pub(super) fn end(
    db: &Connection,
    rules: &Rules,
    (rule_run, before): (u64, MatchState),
    state: MatchState,
    (error, now): (&str, i64),
) -> Result<(), Fault> {
    let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
    let sql = "UPDATE rule_run SET state = ?3, error = ?4, ended = ?5 WHERE rule_run = ?1 AND state = ?2 RETURNING rule, path, object";
    let key = params![
        rule_run.cast_signed(),
        before.number(),
        state.number(),
        error,
        now
    ];
    let read = |row: &rusqlite::Row<'_>| {
        let path = row.get::<_, String>(1)?;
        Ok((row.get::<_, i64>(0)?, path, row.get::<_, i64>(2)?))
    };
    let Some((rule, path, object)) = one(db, sql, key, read)? else {
        return Ok(());
    };
    if rules.any_input_action() {
        db.prepare_cached("INSERT OR IGNORE INTO mapped VALUES (?1)")?
            .execute([object])?;
    }
    // The ended rule run may have been a waiting one; then no other rule run is queued.
    let sql = "UPDATE rule_run SET state = 0 WHERE rule_run = (SELECT min(rule_run) FROM rule_run \
               WHERE rule = ?1 AND path = ?2 AND state = 1) AND NOT EXISTS (SELECT 1 FROM rule_run AS other \
               WHERE other.rule = ?1 AND other.path = ?2 AND other.state <= 2 AND other.state != 1)";
    db.prepare_cached(sql)?.execute(params![rule, path])?;
    Ok(())
}
