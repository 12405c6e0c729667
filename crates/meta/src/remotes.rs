//! Remotes, attached directories and the objects found there.

use super::fault::Fault;
use crate::Connection;
use crate::query::{changed, execute, find, number, rows, unsigned};
use prost::Message as _;
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, params};
use std::collections::BTreeMap;
use tidemill_wire::v1;

/// Number of rows with known objects of a remote that are deleted in one transaction.
const FORGET_MAX: u32 = 10_000;

fn remote_of(row: &Row<'_>) -> rusqlite::Result<v1::Remote> {
    let attachment: Option<Vec<u8>> = row.get(5)?;
    let attachment = attachment.map(|stored| v1::Attachment::decode(stored.as_slice()));
    let corrupt = |error| rusqlite::Error::FromSqlConversionFailure(5, Type::Blob, Box::new(error));
    Ok(v1::Remote {
        name: row.get(0)?,
        uri: row.get(1)?,
        read_only: row.get(2)?,
        uid: row.get(3)?,
        added: row.get(4)?,
        attachment: attachment.transpose().map_err(corrupt)?,
    })
}

/// Returns all remotes, with their attachments.
pub fn all(db: &Connection) -> Result<Vec<v1::Remote>, Fault> {
    rows(db, "SELECT * FROM remote ORDER BY name", [], remote_of)
}

/// Returns a remote with its attachment.
pub fn one(db: &Connection, name: &str) -> Result<Option<v1::Remote>, Fault> {
    let sql = "SELECT * FROM remote WHERE name = ?1";
    find(db, sql, [name], remote_of)
}

/// Adds a remote whose name no other remote has.
pub fn insert(db: &Connection, remote: &v1::Remote) -> Result<(), Fault> {
    let sql = "INSERT INTO remote(name, uri, read_only, uid, added) VALUES (?1, ?2, ?3, ?4, ?5)";
    let row = params![
        remote.name,
        remote.uri,
        remote.read_only,
        remote.uid,
        remote.added
    ];
    execute(db, sql, row)
}

/// Removes a remote that is not attached.
pub fn remove(db: &Connection, name: &str) -> Result<(), Fault> {
    execute(db, "DELETE FROM remote WHERE name = ?1", [name])
}

/// Returns all attachments, by the names of the remotes.
pub fn attachments(db: &Connection) -> Result<BTreeMap<String, v1::Attachment>, Fault> {
    let attached = |one: v1::Remote| Some((one.name, one.attachment?));
    Ok(all(db)?.into_iter().filter_map(attached).collect())
}

/// Returns the attachment of a remote.
pub fn attachment(db: &Connection, remote: &str) -> Result<Option<v1::Attachment>, Fault> {
    Ok(one(db, remote)?.and_then(|remote| remote.attachment))
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
    let sql = "SELECT * FROM remote WHERE read_only AND attachment IS NOT NULL";
    let remotes: Vec<v1::Remote> = rows(db, sql, [], remote_of)?;
    let attached = remotes.into_iter().filter_map(|one| one.attachment);
    let attached = attached.filter(|one| within(&one.directory, path));
    Ok(attached.map(|one| one.node).collect())
}

fn set_attachment(
    db: &Connection,
    remote: &str,
    attachment: Option<v1::Attachment>,
) -> Result<(), Fault> {
    let sql = "UPDATE remote SET attachment = ?2 WHERE name = ?1";
    let attachment = attachment.map(|attachment| attachment.encode_to_vec());
    execute(db, sql, params![remote, attachment])
}

/// Attaches a remote to a directory. Requests the first scan of the store.
pub fn attach(db: &Connection, remote: &str, attachment: &v1::Attachment) -> Result<(), Fault> {
    let attachment = v1::Attachment {
        directory: attachment.directory.clone(),
        node: attachment.node,
        every_s: attachment.every_s,
        uid: attachment.uid,
        gid: attachment.gid,
        mode: attachment.mode & 0o777,
        asked: 1,
        ..v1::Attachment::default()
    };
    set_attachment(db, remote, Some(attachment))
}

/// Deletes the attachment of a remote. The known objects of the remote remain.
pub fn detach(db: &Connection, remote: &str) -> Result<(), Fault> {
    set_attachment(db, remote, None)
}

/// Requests another scan of the store of a remote.
pub fn request_scan(db: &Connection, remote: &str) -> Result<(), Fault> {
    let mut attachment = attachment(db, remote)?;
    if let Some(attachment) = &mut attachment {
        attachment.asked += 1;
    }
    set_attachment(db, remote, attachment)
}

/// Stores the outcome of a scan, which `scan` contains: the request that the scan answers, its time, the number and an example of the
/// objects that it passed over, and the trouble. Counts the known objects of the remote.
pub fn end_scan(db: &Connection, remote: &str, scan: &v1::Attachment) -> Result<(), Fault> {
    let Some(attachment) = attachment(db, remote)? else {
        return Ok(());
    };
    let sql = "SELECT count(*) FROM followed WHERE remote = ?1";
    let attachment = v1::Attachment {
        answered: scan.answered,
        looked: scan.looked,
        passed: scan.passed,
        example: scan.example.clone(),
        trouble: scan.trouble.clone(),
        files: number(db, sql, [remote])?,
        ..attachment
    };
    set_attachment(db, remote, Some(attachment))
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
