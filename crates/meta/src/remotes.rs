//! Remotes, attached directories and the objects found there.

use super::fault::Fault;
use crate::Connection;
use crate::query::{changed, execute, find, rows, unsigned};
use rusqlite::{OptionalExtension, Row, params};
use std::collections::BTreeMap;
use tidemill_wire::v1;

/// Number of rows with known objects of a remote that are deleted in one transaction.
const FORGET_MAX: u32 = 10_000;

fn remote_of(row: &Row<'_>) -> rusqlite::Result<v1::Remote> {
    Ok(v1::Remote {
        name: row.get(0)?,
        uri: row.get(1)?,
        read_only: row.get(2)?,
        uid: row.get(3)?,
        added: row.get(4)?,
        attachment: None,
    })
}

/// Returns all remotes, with their attachments.
pub fn all(db: &Connection) -> Result<Vec<v1::Remote>, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("SELECT * FROM remote ORDER BY name")?;
    let rows = statement.query_map([], remote_of)?;
    let mut remotes = rows.collect::<Result<Vec<_>, _>>()?;
    let mut attachments = attachments(db)?;
    for remote in &mut remotes {
        remote.attachment = attachments.remove(&remote.name);
    }
    Ok(remotes)
}

/// Returns a remote without its attachment.
pub fn one(db: &Connection, name: &str) -> Result<Option<v1::Remote>, Fault> {
    let sql = "SELECT * FROM remote WHERE name = ?1";
    find(db, sql, [name], remote_of)
}

/// Adds a remote whose name no other remote has.
pub fn insert(db: &Connection, remote: &v1::Remote) -> Result<(), Fault> {
    let mut insert = db
        .sql
        .prepare_cached("INSERT INTO remote VALUES (?1, ?2, ?3, ?4, ?5)")?;
    insert.execute(params![
        remote.name,
        remote.uri,
        remote.read_only,
        remote.uid,
        remote.added
    ])?;
    Ok(())
}

/// Removes a remote that is not attached.
pub fn remove(db: &Connection, name: &str) -> Result<(), Fault> {
    execute(db, "DELETE FROM remote WHERE name = ?1", [name])
}

fn attachment_of(row: &Row<'_>) -> rusqlite::Result<(String, v1::Attachment)> {
    let number = |at: usize| unsigned(row, at);
    let attachment = v1::Attachment {
        directory: row.get(1)?,
        node: row.get(2)?,
        every_s: row.get(3)?,
        uid: row.get(4)?,
        gid: row.get(5)?,
        mode: row.get(6)?,
        asked: number(7)?,
        answered: number(8)?,
        looked: row.get(9)?,
        files: number(10)?,
        passed: number(11)?,
        example: row.get(12)?,
        trouble: row.get(13)?,
    };
    Ok((row.get(0)?, attachment))
}

/// Returns all attachments, by the names of the remotes.
pub fn attachments(db: &Connection) -> Result<BTreeMap<String, v1::Attachment>, Fault> {
    rows(db, "SELECT * FROM attachment", [], attachment_of)
}

/// Returns the attachment of a remote.
pub fn attachment(db: &Connection, remote: &str) -> Result<Option<v1::Attachment>, Fault> {
    let sql = "SELECT * FROM attachment WHERE remote = ?1";
    let found = find(db, sql, [remote], attachment_of)?;
    Ok(found.map(|(_, attachment)| attachment))
}

/// Whether a path is the path of a directory, or below the directory.
pub fn within(directory: &str, path: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a path is in an attached directory whose store, on that node, is read-only.
pub(crate) fn is_read_only(db: &Connection, node: i64, path: &[u8]) -> Result<bool, Fault> {
    let path = String::from_utf8_lossy(path);
    let nodes = read_only_nodes(db, &path)?;
    Ok(nodes.into_iter().any(|one| i64::from(one) == node))
}

/// Returns the nodes whose stores are read-only for the directory of this path.
pub fn read_only_nodes(db: &Connection, path: &str) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT directory, node FROM attachment JOIN remote ON name = remote WHERE read_only";
    let mut statement = db.sql.prepare_cached(sql)?;
    let attached = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
    let mut attached = attached.collect::<Result<Vec<_>, _>>()?;
    attached.retain(|(directory, _)| within(directory, path));
    Ok(attached.into_iter().map(|(_, node)| node).collect())
}

/// Attaches a remote to a directory.
pub fn attach(db: &Connection, remote: &str, attachment: &v1::Attachment) -> Result<(), Fault> {
    let sql = "INSERT INTO attachment(remote, directory, node, every_s, uid, gid, mode) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let row = params![
        remote,
        attachment.directory,
        attachment.node,
        attachment.every_s,
        attachment.uid,
        attachment.gid,
        attachment.mode & 0o777
    ];
    execute(db, sql, row)
}

/// Deletes the attachment of a remote. The known objects of the remote remain.
pub fn detach(db: &Connection, remote: &str) -> Result<(), Fault> {
    execute(db, "DELETE FROM attachment WHERE remote = ?1", [remote])
}

/// Requests another scan of the store of a remote.
pub fn request_scan(db: &Connection, remote: &str) -> Result<(), Fault> {
    let sql = "UPDATE attachment SET asked = asked + 1 WHERE remote = ?1";
    execute(db, sql, [remote])
}

/// Stores the outcome of a scan, which `scan` contains: the request that the scan answers, its time, the number and an example of the
/// objects that it passed over, and the trouble. Counts the known objects of the remote.
pub fn end_scan(db: &Connection, remote: &str, scan: &v1::Attachment) -> Result<(), Fault> {
    let sql =
        "UPDATE attachment SET answered = ?2, looked = ?3, passed = ?4, example = ?5, trouble = ?6,
        files = (SELECT count(*) FROM followed WHERE remote = ?1) WHERE remote = ?1";
    let row = params![
        remote,
        scan.answered.cast_signed(),
        scan.looked,
        scan.passed.cast_signed(),
        scan.example,
        scan.trouble
    ];
    execute(db, sql, row)
}

/// A known object of a remote's store.
#[derive(Debug)]
pub struct FollowedObject {
    /// Number of the row.
    pub number: u64,
    /// Length of the store's object in bytes when the cluster's version was created.
    pub size: u64,
    /// Tag that the store gave the object when the cluster's version was created; the tag changes with the content.
    pub tag: String,
    /// Object of the cluster with the same content.
    pub object: u64,
}

/// Returns the known objects at these paths of a remote, in the order of the paths.
pub fn followed<'a>(
    db: &Connection,
    remote: &str,
    paths: impl Iterator<Item = &'a str>,
) -> Result<Vec<Option<FollowedObject>>, Fault> {
    let sql = "SELECT number, size, tag, object FROM followed WHERE remote = ?1 AND path = ?2";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut one = |path| {
        let found = statement.query_row([remote, path], |row| {
            let number = |at: usize| unsigned(row, at);
            Ok(FollowedObject {
                number: number(0)?,
                size: number(1)?,
                tag: row.get(2)?,
                object: number(3)?,
            })
        });
        Ok(found.optional()?)
    };
    paths.map(&mut one).collect()
}

/// Returns the path and the cluster's object of a known object.
pub fn followed_at(db: &Connection, number: u64) -> Result<Option<(String, u64)>, Fault> {
    let sql = "SELECT path, object FROM followed WHERE number = ?1";
    find(db, sql, [number.cast_signed()], |row| {
        Ok((row.get(0)?, unsigned(row, 1)?))
    })
}

/// Stores objects of a remote as known objects. Returns the numbers of their rows.
pub fn follow(db: &Connection, remote: &str, objects: &[v1::Followed]) -> Result<Vec<u64>, Fault> {
    let sql = "INSERT INTO followed(remote, path, size, tag, object) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT(remote, path) DO UPDATE SET size = ?3, tag = ?4, object = ?5 RETURNING number";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut numbers = Vec::new();
    for followed in objects {
        let at = followed.at.clone().unwrap_or_default();
        let row = params![
            remote,
            at.path,
            at.size.cast_signed(),
            at.tag,
            followed.object.cast_signed()
        ];
        let number: i64 = statement.query_row(row, |row| row.get(0))?;
        numbers.push(number.cast_unsigned());
    }
    Ok(numbers)
}

/// Returns at most `max` known objects of a remote after the row with the number `after`, in the order of their numbers.
pub fn followed_after(
    db: &Connection,
    remote: &str,
    after: u64,
    max: usize,
) -> Result<Vec<v1::MissingOne>, Fault> {
    // This selects by number, instead of all rows of a remote for each page.
    let sql = "SELECT number, path FROM followed WHERE +remote = ?1 AND number > ?2 ORDER BY number LIMIT ?3";
    let mut statement = db.sql.prepare_cached(sql)?;
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![remote, after.cast_signed(), max], |row| {
        Ok(v1::MissingOne {
            number: unsigned(row, 0)?,
            path: row.get(1)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Deletes a known object.
pub fn unfollow(db: &Connection, number: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM followed WHERE number = ?1";
    execute(db, sql, [number.cast_signed()])
}

/// Deletes some of the known objects of a remote. Returns whether more objects may remain.
pub fn unfollow_some(db: &Connection, remote: &str) -> Result<bool, Fault> {
    let sql = "DELETE FROM followed WHERE number IN (SELECT number FROM followed WHERE remote = ?1 LIMIT ?2)";
    let gone = changed(db, sql, params![remote, FORGET_MAX])?;
    Ok(gone == FORGET_MAX as usize)
}
