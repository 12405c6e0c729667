//! Ids: the server issues ids in blocks that are stored before use, and never issues an id twice.

use super::fault::Fault;
use super::transaction::Tx;
use super::vnode::Caller;
use crate::Connection;
use crate::query::{changed, execute, exists};
use rusqlite::{OptionalExtension, params};
use std::ops::Range;
use tidemill_model::id::Inode;
use tidemill_wire::v1::UsedIds;

/// Maximum number of ids of one kind in one reserved block.
pub const RESERVE_MAX: u32 = 1 << 20;
/// Number of blocks of unused ids that a user without an administrator's rights may have. Above that number, blocks older than a day are
/// deleted, a few at a time; above `BLOCKS_EACH_MAX`, the oldest blocks are deleted regardless of age.
const BLOCKS_EACH: i64 = 1024;
const BLOCKS_EACH_MAX: i64 = 4096;
const FORGOTTEN: i64 = 16;
const KEPT_NS: i64 = 24 * 3600 * 1_000_000_000;

/// Takes `count` ids of a kind (`inode`, `object`, `label`, `job`, `task`, `session`, `member`); returns the first id.
pub fn reserve(db: &Connection, kind: &str, count: u64) -> Result<u64, Fault> {
    let sql = "UPDATE counter SET next = next + ?2 WHERE name = ?1 RETURNING next - ?2";
    let first: i64 = db
        .sql
        .prepare_cached(sql)?
        .query_row(params![kind, count.cast_signed()], |row| row.get(0))?;
    Ok(first.cast_unsigned())
}

/// Highest id that a node may report as used: the server issues lower ids for ever.
const USED_MAX: u64 = 1 << 58;

/// Number of inodes that stay unused if a node has an object that the database does not know.
const INODES_LEFT: u64 = 1 << 32;

/// Returns the counters that are not above the ids that a node has stored, with the lowest unused id of each. Such a database is older than the
/// node's data: it was restored from a copy, or its host lost power.
///
/// # Errors
/// If the node reports an id that no server issues.
pub fn counters_behind(db: &Connection, used: &UsedIds) -> Result<Vec<(&'static str, u64)>, Fault> {
    let reported = [
        ("object", used.object),
        ("task", used.task),
        ("label", used.label),
    ];
    if reported.iter().any(|(_, id)| *id > USED_MAX) {
        return Err(Fault::Malformed(
            "the node reports ids that no server issues",
        ));
    }
    let mut behind = Vec::new();
    for (kind, id) in reported {
        if next(db, kind)? <= id {
            behind.push((kind, id + 1));
        }
    }
    // Nodes do not know all inodes.
    if behind.iter().any(|(kind, _)| *kind == "object") {
        behind.push(("inode", next(db, "inode")?.saturating_add(INODES_LEFT)));
    }
    Ok(behind)
}

/// Raises counters: no id below the new value is issued from now on.
pub fn raise(db: &Connection, counters: &[(&'static str, u64)]) -> Result<(), Fault> {
    let sql = "UPDATE counter SET next = max(next, ?2) WHERE name = ?1";
    for (kind, unused) in counters {
        execute(db, sql, params![kind, unused.cast_signed()])?;
    }
    Ok(())
}

/// Leaves `gap` ids of a kind unused, since a lost server may have issued them.
pub fn leave_gap(db: &Connection, kind: &str, gap: u64) -> Result<(), Fault> {
    reserve(db, kind, gap).map(drop)
}

/// Returns the next value of a counter.
pub(super) fn next(db: &Connection, kind: &str) -> Result<u64, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("SELECT next FROM counter WHERE name = ?1")?;
    let next: i64 = statement.query_row([kind], |row| row.get(0))?;
    Ok(next.cast_unsigned())
}

/// Takes `count` consecutive ids from the start of a block; returns the first id.
pub fn take(block: &mut Range<u64>, count: u64) -> u64 {
    let first = block.start;
    assert!(count <= block.end - first, "all were reserved before");
    block.start += count;
    first
}

/// Reserves inode and object ids for a client. A client without an administrator's rights may use no other ids, so they are recorded.
pub fn reserve_for(
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
    if !caller.administrator && inodes + objects > 0 {
        let block = ReservedIds {
            objects: object..object + u64::from(objects),
            inodes: inode..inode + u64::from(inodes),
        };
        block.note(db, caller.uid, super::clock::now_ns())?;
    }
    Ok((inode, object))
}

/// Block of ids that a client without an administrator's rights has just reserved.
struct ReservedIds {
    objects: Range<u64>,
    inodes: Range<u64>,
}

impl ReservedIds {
    /// Stores the block, merged into the user's last block if the two blocks are adjacent.
    fn note(&self, db: &Connection, uid: u32, now: i64) -> Result<(), Fault> {
        forget_old(db, uid, now)?;
        let (object, inode) = (self.objects.start.cast_signed(), self.inodes.start);
        let objects = self.objects.end.saturating_sub(self.objects.start);
        let inodes = self.inodes.end.saturating_sub(self.inodes.start);
        let (objects, inodes) = (objects.cast_signed(), inodes.cast_signed());
        let sql = "UPDATE id_range SET objects = objects + ?4, inodes = inodes + ?5, left = left + ?4 + ?5, at = ?6 \
                   WHERE first_object = (SELECT max(first_object) FROM id_range WHERE uid = ?1) \
                   AND first_object + objects = ?2 AND first_inode + inodes = ?3";
        let row = params![uid, object, inode.cast_signed(), objects, inodes, now];
        if changed(db, sql, row)? > 0 {
            return Ok(());
        }
        let sql = "INSERT INTO id_range(uid, first_object, first_inode, objects, inodes, left, at) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?4 + ?5, ?6)";
        execute(db, sql, row)
    }
}

/// Makes space for another block of a user by deleting the oldest blocks.
fn forget_old(db: &Connection, uid: u32, now: i64) -> Result<(), Fault> {
    let sql = "SELECT count(*) FROM id_range WHERE uid = ?1";
    let count: i64 = db
        .sql
        .prepare_cached(sql)?
        .query_row([uid], |row| row.get(0))?;
    if count < BLOCKS_EACH {
        return Ok(());
    }
    let sql = "DELETE FROM id_range WHERE first_object IN (SELECT first_object FROM id_range WHERE uid = ?1 \
               ORDER BY first_object LIMIT ?2) AND (at < ?3 OR ?4)";
    let row = params![uid, FORGOTTEN, now - KEPT_NS, count >= BLOCKS_EACH_MAX];
    execute(db, sql, row)
}

impl Tx<'_> {
    /// Returns whether the caller has reserved an id of this kind, and marks the id as used.
    fn use_reserved(&self, kind: &str, id: u64) -> Result<bool, Fault> {
        let sql = format!(
            "UPDATE id_range SET left = left - 1 WHERE first_object = (SELECT first_object FROM id_range \
             WHERE uid = ?1 AND first_{kind} <= ?2 AND {kind}s > 0 ORDER BY first_{kind} DESC LIMIT 1) \
             AND ?2 < first_{kind} + {kind}s RETURNING first_object, left"
        );
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let row = params![self.caller.uid, id.cast_signed()];
        let found = self.db.sql.prepare_cached(&sql)?.query_row(row, read);
        let Some((block, left)): Option<(i64, i64)> = found.optional()? else {
            return Ok(false);
        };
        if left <= 0 {
            let sql = "DELETE FROM id_range WHERE first_object = ?1";
            execute(self.db, sql, [block])?;
        }
        Ok(true)
    }

    /// Returns the inode id of a request if the client may use the id; returns a new id if the request has none.
    pub(crate) fn checked_inode(&self, ino: u64) -> Result<u64, Fault> {
        if ino == 0 {
            return reserve(self.db, "inode", 1);
        }
        let fine = if self.caller.administrator {
            ino > Inode::ROOT.0 && ino < next(self.db, "inode")?
        } else {
            self.use_reserved("inode", ino)?
        };
        match fine {
            true => Ok(ino),
            false => Err(Fault::Malformed(
                "the inode id is not reserved; reserve ids first",
            )),
        }
    }

    /// Fails if the client has not reserved an object id, or if the id is already used.
    pub(crate) fn check_object(&self, object: u64) -> Result<(), Fault> {
        let fine = if self.caller.administrator {
            object != 0 && object < next(self.db, "object")?
        } else {
            self.use_reserved("object", object)?
        };
        if !fine {
            return Err(Fault::Malformed(
                "the object id is not reserved; reserve ids first",
            ));
        }
        let sql = "SELECT 1 FROM version WHERE object = ?1 UNION ALL SELECT 1 FROM writing WHERE object = ?1 \
                   UNION ALL SELECT 1 FROM replica WHERE object = ?1 AND want = 2 UNION ALL SELECT 1 FROM part WHERE part = ?1";
        if exists(self.db, sql, [object.cast_signed()])? {
            return Err(Fault::Malformed(
                "the object id was used before; reserve a new id",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NamesRequest, SqliteNames};
    use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

    fn names() -> (tempfile::TempDir, SqliteNames) {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (7, 7)).unwrap();
        (directory, names)
    }

    fn user(uid: u32) -> Caller {
        Caller {
            uid,
            gid: uid,
            ..Caller::default()
        }
    }

    /// Returns the blocks of a user: first object, number of objects, number of inodes, and number of unused ids.
    fn blocks(names: &SqliteNames, uid: u32) -> Vec<(u64, i64, i64, i64)> {
        let read = |db: &Connection| {
            let sql = "SELECT first_object, objects, inodes, left FROM id_range WHERE uid = ?1 ORDER BY first_object";
            let mut statement = db.sql.prepare(sql)?;
            let rows = statement.query_map([uid], |row| {
                let first: i64 = row.get(0)?;
                Ok((first.cast_unsigned(), row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        };
        names.database().read(read).unwrap()
    }

    fn reserved(names: &SqliteNames, uid: u32, (inodes, objects): (u32, u32)) -> (u64, u64) {
        let reserve = move |db: &Connection| reserve_for(db, &user(uid), inodes, objects);
        names.database().write_blocking(reserve).unwrap()
    }

    fn make(names: &SqliteNames, uid: u32, ino: u64) -> Answer {
        let directory = v1::Create {
            parent: 1,
            name: ino.to_string().into_bytes(),
            kind: v1::Kind::Directory.into(),
            mode: 0o755,
            ino,
            ..v1::Create::default()
        };
        let request = NamesRequest {
            caller: user(uid),
            ops: vec![v1::NameOp {
                op: Some(Op::Create(directory)),
            }],
            ..NamesRequest::default()
        };
        let mut results = crate::Names::apply_blocking(names, request).unwrap();
        results.remove(0).result.unwrap()
    }

    #[test]
    fn adjacent_id_blocks_merge_and_are_deleted_when_used() {
        let (_directory, names) = names();
        let (ino, object) = reserved(&names, 7, (1, 1));
        for _ in 0..1000 {
            reserved(&names, 7, (1, 1));
        }
        assert_eq!(blocks(&names, 7), [(object, 1001, 1001, 2002)]);
        // A user may not use another user's ids.
        assert!(matches!(make(&names, 8, ino), Answer::Error(_)));
        assert!(matches!(make(&names, 7, ino), Answer::Entry(_)));
        assert!(matches!(make(&names, 7, ino + 1001), Answer::Error(_)));
        assert_eq!(blocks(&names, 7), [(object, 1001, 1001, 2001)]);
        // A block without objects follows, and is the last one merged.
        let first = reserved(&names, 7, (2, 0)).0;
        reserved(&names, 7, (0, 0));
        let second = reserved(&names, 7, (1, 0)).0;
        for ino in [first, first + 1, second] {
            assert!(matches!(make(&names, 7, ino), Answer::Entry(_)), "{ino}");
        }
        assert_eq!(blocks(&names, 7), [(object, 1001, 1003, 2001)]);
    }

    #[test]
    fn id_blocks_of_one_user_are_bounded() {
        let (_directory, names) = names();
        let first = reserved(&names, 9, (1, 1));
        let reserve = |db: &Connection| {
            for _ in 0..2 * BLOCKS_EACH_MAX {
                reserve_for(db, &user(7), 1, 0)?;
            }
            reserve_for(db, &user(7), 1, 0)
        };
        let (last, _) = names.database().write_blocking(reserve).unwrap();
        assert!(blocks(&names, 7).len() <= usize::try_from(BLOCKS_EACH_MAX).unwrap());
        assert!(matches!(make(&names, 7, last), Answer::Entry(_)));
        assert!(matches!(make(&names, 7, last - 1), Answer::Entry(_)));
        // Blocks of other users stay.
        assert_eq!(blocks(&names, 9), [(first.1, 1, 1, 2)]);
        // Blocks older than a day are deleted above a user's usual number.
        let age = |db: &Connection| Ok(db.sql.execute("UPDATE id_range SET at = 0", [])?);
        names.database().write_blocking(age).unwrap();
        for _ in 0..BLOCKS_EACH_MAX {
            reserved(&names, 7, (1, 0));
            if blocks(&names, 7).len() <= usize::try_from(BLOCKS_EACH).unwrap() {
                return;
            }
        }
        panic!("{} blocks stay", blocks(&names, 7).len());
    }
}
