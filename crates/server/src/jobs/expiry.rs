//! Lifetimes: a version of a file is removed when its lifetime has expired, with all names of the file. A file with a newer version is not
//! removed.

use crate::clock;
use crate::names::commit::Database;
use crate::names::shared::NamesShared;
use crate::names::transaction::Tx;
use crate::names::vnode::{Caller, InodeRecord};
use crate::names::{Change, Changed, Fault, SqliteNames};
use rusqlite::{Connection, params};
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1;

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
    let due = database.read(|db| due(db, now))?;
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

fn due(db: &Connection, now: i64) -> Result<Vec<(i64, i64)>, Fault> {
    let sql = "SELECT ino, object FROM expiry WHERE at <= ?1 ORDER BY at LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([now, BATCH_MAX], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

impl Tx<'_> {
    fn expire(&mut self, ino: i64, object: i64) -> Result<(), Fault> {
        let sql = "DELETE FROM expiry WHERE ino = ?1 AND object = ?2";
        self.db.prepare_cached(sql)?.execute([ino, object])?;
        let Some(vnode) = InodeRecord::find(self.db, ino.cast_unsigned())? else {
            return Ok(());
        };
        if vnode.object != object.cast_unsigned() || vnode.writing != 0 {
            return Ok(());
        }
        let mut statement = self
            .db
            .prepare_cached("SELECT parent, name FROM dirent WHERE ino = ?1")?;
        let rows =
            statement.query_map(params![ino], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))?;
        for (parent, name) in rows.collect::<Result<Vec<_>, _>>()? {
            let parent = parent.cast_unsigned();
            self.unlink(&v1::Unlink {
                parent,
                name,
                directory: false,
                time: self.now,
            })?;
        }
        Ok(())
    }
}
