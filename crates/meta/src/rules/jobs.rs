//! Jobs that rules submitted (columns `rule`, `rule_depth` and `rule_open` of `job`). A job is open until its outcome is recorded in the rule runs or in the batch that it processes.

use crate::Connection;
use crate::Fault;
use crate::query::{exists, find, rows, unsigned};
use rusqlite::params;
use std::collections::BTreeMap;
use tidemill_wire::v1;

/// Returns the number of rule runs that led from external input to a version; 0 if no job of a rule made the version.
pub(super) fn depth(db: &Connection, object: u64) -> Result<u32, Fault> {
    let sql = "SELECT rule_depth + 1 FROM version JOIN task ON task.task = version.task JOIN job ON job.job = task.job \
               WHERE version.object = ?1 AND version.task != 0 AND rule != 0";
    Ok(find(db, sql, [object.cast_signed()], |row| row.get(0))?.unwrap_or(0))
}

/// Returns the number of open jobs by rule and user with whose rights the jobs run.
pub fn open(db: &Connection) -> Result<BTreeMap<(u64, u32), u32>, Fault> {
    let sql = "SELECT rule, uid, count(*) FROM job WHERE rule_open = 1 GROUP BY rule, uid";
    rows(db, sql, [], |row| {
        Ok(((unsigned(row, 0)?, row.get(1)?), row.get(2)?))
    })
}

/// Returns the number of open jobs of a rule.
pub fn count_open(db: &Connection, rule: u64) -> Result<u32, Fault> {
    let sql = "SELECT count(*) FROM job WHERE rule = ?1 AND rule_open = 1";
    Ok(find(db, sql, [rule.cast_signed()], |row| row.get(0))?.unwrap_or(0))
}

/// Returns open jobs that have ended.
pub(super) fn ended(db: &Connection, limit: u32) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT job FROM job WHERE rule_open = 1 AND state != ?1 LIMIT ?2";
    let running = i32::from(v1::State::Running);
    rows(db, sql, params![running, limit], |row| unsigned(row, 0))
}

/// Returns the running jobs whose rule runs were all ended otherwise. Jobs that reduce have no rule runs and are not returned.
pub fn in_vain(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT job FROM job WHERE rule_open = 1 AND NOT EXISTS \
               (SELECT 1 FROM rule_run WHERE rule_run.job = job.job AND state = 2) \
               AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.job = job.job AND batch.job != 0)";
    rows(db, sql, [], |row| unsigned(row, 0))
}

/// Whether jobs of removed rules still run.
pub(super) fn any_of_removed(db: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM job WHERE rule_open = 1 AND rule NOT IN (SELECT rule FROM rule)";
    exists(db, sql, [])
}
