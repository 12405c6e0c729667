//! Ids are handed out in blocks that are persisted before use, and never again.

use super::fault::Fault;
use super::node::Caller;
use super::transaction::Tx;
use rusqlite::{Connection, params};
use std::ops::Range;
use tidemill_core::id::Inode;

/// Ids of one kind in one reservation.
pub(crate) const RESERVE_MAX: u32 = 1 << 20;

/// Takes `count` ids of a kind (`inode`, `object`, `label`, `job`, `task`, `session`, `change`, `member`); gives the first.
pub(crate) fn reserve(db: &Connection, kind: &str, count: u64) -> Result<u64, Fault> {
    let sql = "UPDATE counter SET next = next + ?2 WHERE name = ?1 RETURNING next - ?2";
    let first: i64 = db
        .prepare_cached(sql)?
        .query_row(params![kind, count.cast_signed()], |row| row.get(0))?;
    Ok(first.cast_unsigned())
}

/// Takes `count` ids that follow each other from a block that has them; gives the first.
pub(crate) fn take(block: &mut Range<u64>, count: u64) -> u64 {
    let first = block.start;
    assert!(count <= block.end - first, "all were reserved before");
    block.start += count;
    first
}

/// Reserves inodes and objects for a client. What an untrusted one reserved is noted: it may use no other.
pub(crate) fn reserve_for(
    db: &Connection,
    caller: &Caller,
    inodes: u32,
    objects: u32,
) -> Result<(u64, u64), Fault> {
    if inodes > RESERVE_MAX || objects > RESERVE_MAX {
        return Err(Fault::Malformed("more than 1048576 ids at once"));
    }
    let inode = reserve(db, "inode", u64::from(inodes))?;
    let object = reserve(db, "object", u64::from(objects.max(1)))?;
    if !caller.trusted {
        let row = params![
            object.cast_signed(),
            objects,
            inode.cast_signed(),
            inodes,
            caller.uid
        ];
        db.prepare_cached("INSERT INTO reservation VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(row)?;
    }
    Ok((inode, object))
}

impl Tx<'_> {
    /// The inode id of a request, if the client may use it; a new one if it has none.
    pub(crate) fn checked_inode(&self, ino: u64) -> Result<u64, Fault> {
        if ino == 0 {
            return reserve(self.db, "inode", 1);
        }
        let fine = if self.caller.trusted {
            ino > Inode::ROOT.0 && ino < self.next_id("inode")?
        } else {
            let sql = "SELECT 1 FROM reservation WHERE uid = ?1 AND ?2 >= first_inode \
                       AND ?2 < first_inode + inodes";
            self.db
                .prepare_cached(sql)?
                .exists(params![self.caller.uid, ino.cast_signed()])?
        };
        let used = self
            .db
            .prepare_cached("SELECT 1 FROM inode WHERE ino = ?1")?
            .exists([ino.cast_signed()])?;
        match (fine, used) {
            (true, false) => Ok(ino),
            (_, true) => Err(Fault::Malformed(
                "the inode id is in use; reserve ids first",
            )),
            _ => Err(Fault::Malformed(
                "the inode id is not reserved; reserve ids first",
            )),
        }
    }

    /// Refuses an object id that the client has not reserved or that is used.
    pub(crate) fn check_object(&self, object: u64) -> Result<(), Fault> {
        let fine = if self.caller.trusted {
            object != 0 && object < self.next_id("object")?
        } else {
            let sql = "SELECT 1 FROM reservation WHERE uid = ?1 AND ?2 >= first_object \
                       AND ?2 < first_object + objects";
            self.db
                .prepare_cached(sql)?
                .exists(params![self.caller.uid, object.cast_signed()])?
        };
        if !fine {
            return Err(Fault::Malformed(
                "the object id is not reserved; reserve ids first",
            ));
        }
        let sql = "SELECT 1 FROM version WHERE object = ?1 UNION ALL SELECT 1 FROM writing WHERE object = ?1 \
                   UNION ALL SELECT 1 FROM removal WHERE object = ?1 UNION ALL SELECT 1 FROM part WHERE part = ?1";
        if self
            .db
            .prepare_cached(sql)?
            .exists([object.cast_signed()])?
        {
            return Err(Fault::Malformed(
                "the object id was used before; take a fresh one",
            ));
        }
        Ok(())
    }

    fn next_id(&self, kind: &str) -> Result<u64, Fault> {
        let mut statement = self
            .db
            .prepare_cached("SELECT next FROM counter WHERE name = ?1")?;
        Ok(statement
            .query_row([kind], |row| row.get::<_, i64>(0))?
            .cast_unsigned())
    }
}
