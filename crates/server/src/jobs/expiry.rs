//! Lifetimes: a version of a file is removed when its lifetime has expired, with all names of the file. A file with a newer version is not
//! removed.

use crate::chores::{Chore, Due, Step};
use std::sync::Arc;
use tidemill_meta::transaction::Tx;
use tidemill_meta::vnode::Caller;
use tidemill_meta::{Change, Changed, Connection, Fault, SqliteNames, expiry};

/// Maximum number of versions removed in one transaction.
const BATCH_MAX: i64 = 1000;

/// Removes expired versions.
pub(crate) struct Expiry(pub(crate) Arc<SqliteNames>);

impl Chore for Expiry {
    fn delays(&self) -> &'static str {
        "expired files are kept for now"
    }

    fn due(&mut self, _: i64) -> Result<Due, Fault> {
        self.0.database().read(expiry::first).map(Due::from)
    }

    fn step(&mut self, now: i64) -> Step<'_> {
        Box::pin(remove_due(&self.0, now))
    }
}

async fn remove_due(names: &SqliteNames, now: i64) -> Result<Due, Fault> {
    let database = names.database();
    let due = database.read(|db| expiry::due(db, now, BATCH_MAX))?;
    let shared = names.shared().clone();
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
    Ok(Due::NOW)
}
