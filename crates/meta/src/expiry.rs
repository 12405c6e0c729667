//! Removal of versions that have expired (column `version.expires`), with all names of their files.

use super::transaction::Tx;
use super::vnode::InodeRecord;
use super::{Fault, tree, version};
use crate::Connection;
use crate::query::{first_time, numbers, rows};
use tidemill_wire::v1;

/// Returns the time at which the next version expires, if any version does.
pub fn first(db: &Connection) -> Result<Option<i64>, Fault> {
    first_time(db, "SELECT min(expires) FROM version WHERE expires > 0")
}

/// Returns at most `limit` versions whose lifetime has expired, as inode and object, in the order of their expiry.
pub fn due(db: &Connection, now: i64, limit: i64) -> Result<Vec<(u64, u64)>, Fault> {
    let sql = "SELECT ino, object FROM version WHERE expires > 0 AND expires <= ?1 ORDER BY expires LIMIT ?2";
    rows(db, sql, [now, limit], numbers)
}

impl Tx<'_> {
    /// Removes all names of a file whose version has expired, unless the file has a newer version or is being written.
    pub fn expire(&mut self, ino: u64, object: u64) -> Result<(), Fault> {
        version::set_expiry(self.db, object, 0)?;
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
