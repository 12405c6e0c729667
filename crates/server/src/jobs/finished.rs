//! Deletes old jobs that have ended. The origin of their files stays known: lineage and cached results need the row of a task, but not the
//! task's output text or the reason for its placement.

use crate::clock;
use crate::names::commit::Database;
use crate::names::{Fault, SqliteNames};
use rusqlite::{Connection, params};
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1::State;

/// Interval at which the server checks for old jobs.
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of jobs deleted in one transaction.
const BATCH_MAX: usize = 100;

/// Deletes jobs that ended longer ago than `keep`, as long as the server runs.
pub(crate) async fn run(names: Arc<SqliteNames>, keep: Duration) {
    let keep = i64::try_from(keep.as_nanos()).unwrap_or(i64::MAX);
    loop {
        let before = clock::now_ns().saturating_sub(keep);
        let old = names.database().read(|db| ended(db, None, before));
        let deleted = match old {
            Ok(old) => delete(names.database(), old).await.map(|_| ()),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = deleted {
            fault.log_delay("old jobs are kept for now");
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Returns the jobs of a user, or of all users, that ended before a point in time (nanoseconds since the Unix epoch).
pub(crate) fn ended(db: &Connection, uid: Option<u32>, before: i64) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT job FROM job WHERE (?1 IS NULL OR uid = ?1) AND deleted = 0 AND state != ?2 AND ended < ?3";
    let running = i32::from(State::Running);
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![uid, running, before], |row| row.get::<_, i64>(0))?;
    let jobs = rows.map(|job| job.map(i64::cast_unsigned));
    Ok(jobs.collect::<Result<_, _>>()?)
}

/// Returns, in the order of `jobs`, the owner of each job and whether the job still runs; `None` for a job that does not exist.
pub(crate) fn states(db: &Connection, jobs: &[u64]) -> Result<Vec<Option<(u32, bool)>>, Fault> {
    let asked: Vec<String> = jobs
        .iter()
        .map(|job| job.cast_signed().to_string())
        .collect();
    let sql = "SELECT uid, state NOT IN (?2, ?3, ?4) FROM json_each(?1) LEFT JOIN job ON job.job = json_each.value AND deleted = 0 \
               ORDER BY json_each.key";
    let mut statement = db.prepare_cached(sql)?;
    let [done, failed, cancelled] = [State::Done, State::Failed, State::Cancelled].map(i32::from);
    let row = params![format!("[{}]", asked.join(",")), done, failed, cancelled];
    let rows = statement.query_map(row, |row| {
        let (uid, running): (Option<u32>, Option<bool>) = (row.get(0)?, row.get(1)?);
        Ok(uid.zip(running))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Deletes jobs that have ended; returns the deleted jobs.
pub(crate) async fn delete(database: &Database, jobs: Vec<u64>) -> Result<Vec<u64>, Fault> {
    let mut deleted = Vec::new();
    for batch in jobs.chunks(BATCH_MAX) {
        let batch = batch.to_vec();
        let done: Vec<u64> = database.write(move |db| delete_now(db, batch)).await?;
        deleted.extend(done);
    }
    Ok(deleted)
}

fn delete_now(db: &Connection, jobs: Vec<u64>) -> Result<Vec<u64>, Fault> {
    let mut deleted = Vec::new();
    for job in jobs {
        let sql = "UPDATE job SET deleted = 1, submission_id = NULL WHERE job = ?1 AND deleted = 0 AND state != ?2";
        let running = i32::from(State::Running);
        let mut statement = db.prepare_cached(sql)?;
        if statement.execute(params![job.cast_signed(), running])? == 0 {
            continue;
        }
        for sql in [
            "UPDATE task SET stdout = '', stderr = '' WHERE job = ?1",
            "DELETE FROM decision WHERE job = ?1",
            "DELETE FROM job_node WHERE job = ?1",
        ] {
            db.prepare_cached(sql)?.execute([job.cast_signed()])?;
        }
        deleted.push(job);
    }
    Ok(deleted)
}
