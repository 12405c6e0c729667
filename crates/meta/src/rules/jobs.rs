//! Jobs that rules submitted. A job is open until its outcome is recorded in the rule runs or in the batch that it processes.

use crate::Connection;
use crate::Fault;
use crate::query::{execute, exists, find, rows, unsigned};
use rusqlite::params;
use std::collections::BTreeMap;
use tidemill_wire::v1;

/// Records a job of a rule. `depth` is the number of rule runs that led from external input to its outputs.
pub fn add(
    db: &Connection,
    job: u64,
    (rule, revision): (u64, u64),
    depth: u32,
) -> Result<(), Fault> {
    let sql = "INSERT INTO rule_job(job, rule, revision, depth, open) VALUES (?1, ?2, ?3, ?4, 1)";
    let (job, rule) = (job.cast_signed(), rule.cast_signed());
    let row = params![job, rule, revision.cast_signed(), depth];
    execute(db, sql, row)
}

/// Records a job that reduces a batch. Its outputs are one rule run further from external input than the files of the batch.
pub(super) fn add_reduction(
    db: &Connection,
    job: u64,
    (rule, revision, batch): (u64, u64, u64),
) -> Result<(), Fault> {
    let sql = "INSERT INTO rule_job(job, rule, revision, depth, open) SELECT ?1, ?2, ?3, \
               1 + coalesce(max(depth), 0), 1 FROM rule_run WHERE rule = ?2 AND batch = ?4 AND batch != 0";
    let row = [job, rule, revision, batch].map(u64::cast_signed);
    execute(db, sql, row)
}

/// Returns the number of rule runs that led from external input to a version; 0 if no job of a rule made the version.
pub(super) fn depth(db: &Connection, object: u64) -> Result<u32, Fault> {
    let sql = "SELECT rule_job.depth + 1 FROM version JOIN task ON task.task = version.task \
               JOIN rule_job ON rule_job.job = task.job WHERE version.object = ?1 AND version.task != 0";
    Ok(find(db, sql, [object.cast_signed()], |row| row.get(0))?.unwrap_or(0))
}

/// Returns the number of open jobs by rule and user with whose rights the jobs run.
pub fn open(db: &Connection) -> Result<BTreeMap<(u64, u32), u32>, Fault> {
    let sql = "SELECT rule, uid, count(*) FROM rule_job JOIN job ON job.job = rule_job.job WHERE open = 1 \
               GROUP BY rule, uid";
    rows(db, sql, [], |row| {
        Ok(((unsigned(row, 0)?, row.get(1)?), row.get(2)?))
    })
}

/// Returns the number of open jobs of a rule.
pub fn count_open(db: &Connection, rule: u64) -> Result<u32, Fault> {
    let sql = "SELECT count(*) FROM rule_job WHERE rule = ?1 AND open = 1";
    Ok(find(db, sql, [rule.cast_signed()], |row| row.get(0))?.unwrap_or(0))
}

/// Returns open jobs that have ended.
pub(super) fn ended(db: &Connection, limit: u32) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT rule_job.job FROM rule_job LEFT JOIN job ON job.job = rule_job.job \
               WHERE open = 1 AND job.state IS NOT ?1 LIMIT ?2";
    let running = i32::from(v1::State::Running);
    rows(db, sql, params![running, limit], |row| unsigned(row, 0))
}

/// Returns the running jobs whose rule runs were all ended otherwise. Jobs that reduce have no rule runs and are not returned.
pub fn in_vain(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT job FROM rule_job WHERE open = 1 AND NOT EXISTS \
               (SELECT 1 FROM rule_run WHERE rule_run.job = rule_job.job AND state = 2) \
               AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.job = rule_job.job AND batch.job != 0)";
    rows(db, sql, [], |row| unsigned(row, 0))
}

/// Whether jobs of removed rules still run.
pub(super) fn any_of_removed(db: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM rule_job WHERE open = 1 AND rule NOT IN (SELECT rule FROM rule)";
    exists(db, sql, [])
}

/// Closes a job after its outcome was recorded.
pub(super) fn close(db: &Connection, job: u64) -> Result<(), Fault> {
    let sql = "UPDATE rule_job SET open = 0 WHERE job = ?1";
    execute(db, sql, [job.cast_signed()])
}

/// Closes the jobs that reduce batches of a removed rule. Mapping jobs stay open until they have ended, as their inputs may be abandoned.
pub(super) fn close_reductions(db: &Connection, rule: u64) -> Result<(), Fault> {
    let sql = "UPDATE rule_job SET open = 0 WHERE rule = ?1 AND open = 1 AND EXISTS (SELECT 1 FROM batch \
               WHERE batch.job = rule_job.job AND batch.job != 0)";
    execute(db, sql, [rule.cast_signed()])
}
