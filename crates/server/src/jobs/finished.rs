//! Deletes old jobs that have ended. The origin of their files stays known: lineage and cached results need the row of a task, but not the
//! task's output text or the reason for its placement.

use crate::chores::{Chore, Due, Step};
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::jobs::records;
use tidemill_meta::{Connection, Fault, SqliteNames};
use tidemill_model::id::JobId;

/// Shortest time between two checks for old jobs, since each reads all jobs.
const REST: Duration = Duration::from_secs(60);
/// Maximum number of jobs deleted in one transaction.
const BATCH_MAX: usize = 100;

/// Deletes jobs that ended longer ago than `keep_ns` nanoseconds.
pub(crate) struct OldJobs {
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) keep_ns: i64,
}

impl Chore for OldJobs {
    fn delays(&self) -> &'static str {
        "old jobs are kept for now"
    }

    fn rest(&self) -> Duration {
        REST
    }

    fn due(&mut self, _: i64) -> Result<Due, Fault> {
        let first = self.names.database().read(records::first_end)?;
        // A job is old when more than the time to keep it has passed.
        let old = first.map(|ended| ended.saturating_add(self.keep_ns).saturating_add(1));
        Ok(Due::from(old))
    }

    fn step(&mut self, now: i64) -> Step<'_> {
        Box::pin(async move {
            let before = now.saturating_sub(self.keep_ns);
            let database = self.names.database();
            let old = database.read(|db| records::ended(db, None, before))?;
            delete(database, old).await.map(|_| Due::NOW)
        })
    }
}

/// Deletes jobs that have ended; returns the deleted jobs.
pub(crate) async fn delete(database: &Database, jobs: Vec<u64>) -> Result<Vec<u64>, Fault> {
    let mut deleted = Vec::new();
    for batch in jobs.chunks(BATCH_MAX) {
        let batch = batch.to_vec();
        let done: Vec<u64> = database.write(move |db| delete_now(db, &batch)).await?;
        deleted.extend(done);
    }
    Ok(deleted)
}

fn delete_now(db: &Connection, jobs: &[u64]) -> Result<Vec<u64>, Fault> {
    let mut deleted = Vec::new();
    for &job in jobs {
        if records::delete(db, JobId(job))? {
            deleted.push(job);
        }
    }
    Ok(deleted)
}
