//! Deletes old jobs that have ended. The origin of their files stays known: lineage and cached results need the row of a task, but not the
//! task's output text or the reason for its placement.

use crate::clock;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::jobs::records;
use tidemill_meta::{Connection, Fault, SqliteNames};
use tidemill_model::id::JobId;

/// Interval at which the server checks for old jobs.
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of jobs deleted in one transaction.
const BATCH_MAX: usize = 100;

/// Deletes jobs that ended longer ago than `keep`, as long as the server runs.
pub(crate) async fn run(names: Arc<SqliteNames>, keep: Duration) {
    let keep = i64::try_from(keep.as_nanos()).unwrap_or(i64::MAX);
    loop {
        let before = clock::now_ns().saturating_sub(keep);
        let old = names.database().read(|db| records::ended(db, None, before));
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
