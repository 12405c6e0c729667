//! Lifetimes: a version of a file is removed when its lifetime has expired, with all names of the file. A file with a newer version is not
//! removed.

use crate::clock;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::shared::NamesShared;
use tidemill_meta::transaction::Tx;
use tidemill_meta::vnode::Caller;
use tidemill_meta::{Change, Changed, Connection, Fault, SqliteNames, expiry};

/// Interval at which the server checks for expired versions.
const PERIOD: Duration = Duration::from_millis(500);
/// Maximum number of versions removed in one transaction.
const BATCH_MAX: i64 = 1000;

/// Removes expired versions as long as the server runs.
pub(crate) async fn run(names: Arc<SqliteNames>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        if let Err(fault) = once(names.database(), names.shared(), &names).await {
            fault.log_delay("expired files are kept for now");
        }
    }
}

async fn once(
    database: &Database,
    shared: &Arc<NamesShared>,
    names: &SqliteNames,
) -> Result<(), Fault> {
    let now = clock::now_ns();
    let due = database.read(|db| expiry::due(db, now, BATCH_MAX))?;
    if due.is_empty() {
        return Ok(());
    }
    let shared = shared.clone();
    let work = move |db: &Connection| {
        let caller = Caller::root();
        let mut tx = Tx::new(db, &shared, &caller, 0, now);
        for (ino, object) in due {
            tx.expire(ino, object)?;
        }
        Ok(tx.changes)
    };
    let changes: Vec<Change> = database.write(work).await?;
    names.tell(Changed {
        session: 0,
        changes,
    });
    Ok(())
}
