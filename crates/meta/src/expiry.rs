//! Times at which versions expire.

use super::rules::runs::MatchState;
use super::transaction::Tx;
use super::vnode::InodeRecord;
use super::{Fault, tree, version};
use crate::Connection;
use crate::query::{execute, numbers, rows};
use rusqlite::params;
use tidemill_wire::v1;

/// Schedules the removal of a version of a file, with all names of the file, at time `at`.
pub fn put(db: &Connection, ino: u64, object: u64, at: i64) -> Result<(), Fault> {
    let row = params![ino.cast_signed(), object.cast_signed(), at];
    execute(db, "INSERT OR REPLACE INTO expiry VALUES (?1, ?2, ?3)", row)
}

/// Schedules the removal of a version that a task wrote to the inode `ino`. If the file was deleted before the task ended, the version has
/// another inode now.
pub fn put_output(db: &Connection, ino: u64, object: u64, at: i64) -> Result<(), Fault> {
    let version = version::file_of(db, object)?;
    put(db, version.map_or(ino, |(_, ino, _)| ino), object, at)
}

/// Returns at most `limit` versions whose lifetime has expired, as inode and object, in the order of their expiry.
pub fn due(db: &Connection, now: i64, limit: i64) -> Result<Vec<(u64, u64)>, Fault> {
    let sql = "SELECT ino, object FROM expiry WHERE at <= ?1 ORDER BY at LIMIT ?2";
    rows(db, sql, [now, limit], numbers)
}

impl Tx<'_> {
    /// Removes all names of a file whose version has expired, unless the file has a newer version or is being written.
    pub fn expire(&mut self, ino: u64, object: u64) -> Result<(), Fault> {
        let sql = "DELETE FROM expiry WHERE ino = ?1 AND object = ?2";
        let key = [ino.cast_signed(), object.cast_signed()];
        execute(self.db, sql, key)?;
        let Some(vnode) = InodeRecord::find(self.db, ino)? else {
            return Ok(());
        };
        if vnode.object != object || vnode.writing != 0 {
            return Ok(());
        }
        for (parent, name) in tree::names_of(self.db, ino)? {
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

/// Schedules the removal of the results of a batch's map tasks at time `at`.
pub(super) fn schedule_mapped(
    db: &Connection,
    (rule, batch): (u64, u64),
    at: i64,
) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO expiry SELECT made.ino, made.object, ?3 FROM rule_run CROSS JOIN task_output AS made \
               ON made.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
               WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state = ?4";
    let row = params![
        rule.cast_signed(),
        batch.cast_signed(),
        at,
        MatchState::Done
    ];
    execute(db, sql, row)
}
