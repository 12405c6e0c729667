//! Rows of external objects in the node's database. The functions use only the given connection.

use super::StoreFile;
use super::reading::BackendLocation;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use tidemill_model::attribute::object as attribute;
use tidemill_model::id::ObjectId;

fn object(row: &Row<'_>, at: usize) -> Result<ObjectId> {
    Ok(ObjectId(row.get::<_, i64>(at)?.cast_unsigned()))
}

pub(super) fn size(row: &Row<'_>, at: usize) -> Result<u64> {
    Ok(row.get::<_, i64>(at)?.cast_unsigned())
}

pub(super) fn placed(row: &Row<'_>, from: usize) -> Result<StoreFile> {
    Ok(StoreFile {
        path: row.get(from)?,
        size: size(row, from + 1)?,
        tag: row.get(from + 2)?,
        checked_by_store: row.get(from + 3)?,
    })
}

/// Returns all objects in the external store, each with its length in bytes and whether it is in packs.
pub(super) fn all(db: &Connection) -> Result<Vec<(ObjectId, u64, bool)>> {
    db.prepare("SELECT object, size, packed FROM backend WHERE deleted = 0")?
        .query_map([], |row| Ok((object(row, 0)?, size(row, 1)?, row.get(2)?)))?
        .collect()
}

/// Returns the external objects whose ids have `directory` as their lowest byte, each with its length in bytes.
pub(super) fn of_directory(db: &Connection, directory: u8) -> Result<Vec<(ObjectId, u64)>> {
    db.prepare_cached("SELECT object, size FROM backend WHERE deleted = 0 AND object & 255 = ?1")?
        .query_map([directory], |row| Ok((object(row, 0)?, size(row, 1)?)))?
        .collect()
}

/// Returns the objects that this node stores and the external store does not. Objects in the memory for intermediate files are left out.
pub(super) fn not_durable(db: &Connection) -> Result<Vec<ObjectId>> {
    let sql = "SELECT id FROM object WHERE kind = 0 AND corruption IS NULL
                   AND id NOT IN (SELECT object FROM backend WHERE deleted = 0)
                   AND id NOT IN (SELECT object FROM attribute WHERE page = ?1 AND number = ?2)";
    db.prepare(sql)?
        .query_map([attribute::PAGE, attribute::MEMORY], |row| object(row, 0))?
        .collect()
}

/// Returns the external location of an object; `None` if the object is not in the external store.
pub(super) fn find(db: &Connection, object: ObjectId) -> Result<Option<BackendLocation>> {
    let sql =
        "SELECT path, size, tag, checked, packed FROM backend WHERE object = ?1 AND deleted = 0";
    let there = |row: &Row<'_>| {
        Ok(BackendLocation {
            placed: placed(row, 0)?,
            packed: row.get(4)?,
        })
    };
    db.prepare_cached(sql)?
        .query_row([object.0.cast_signed()], there)
        .optional()
}

/// Returns paths of some files that should exist in the external store: files of the first and the last objects, and packs. The result
/// includes files that wait for their removal.
pub(super) fn some_paths(db: &Connection, each: u32) -> Result<Vec<String>> {
    let sql = "SELECT path FROM (SELECT path FROM backend WHERE (deleted = 0 OR stub = 0) AND packed = 0 ORDER BY object LIMIT ?1)
               UNION SELECT path FROM (SELECT path FROM backend WHERE (deleted = 0 OR stub = 0) AND packed = 0 ORDER BY object DESC LIMIT ?1)
               UNION SELECT path FROM (SELECT path FROM pack WHERE state = 1 OR (state = 2 AND tag != '') ORDER BY id DESC LIMIT ?1)";
    db.prepare_cached(sql)?
        .query_map([each], |row| row.get(0))?
        .collect()
}

/// Returns whether the external store holds a file that this node wrote.
pub(super) fn any_put(db: &Connection) -> Result<bool> {
    let mut statement =
        db.prepare_cached("SELECT 1 FROM backend WHERE stub = 0 AND deleted = 0")?;
    statement.exists([])
}

/// Origin of an object's external file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOrigin {
    /// The node wrote the file. The file is removed together with the object.
    Put = 0,
    /// Another program wrote the file, and a client imported the file without a copy.
    Stub = 1,
    /// Another program wrote the file, in an attached directory. The row of the object stays when the object is removed.
    Followed = 2,
}

impl FileOrigin {
    fn of(number: i64) -> Self {
        match number {
            0 => Self::Put,
            1 => Self::Stub,
            _ => Self::Followed,
        }
    }
}

/// Object whose external file is or was at a path.
#[derive(Clone, Debug)]
pub(super) struct StoredObject {
    pub(super) object: ObjectId,
    pub(super) placed: StoreFile,
    /// Whether the object was removed.
    pub(super) deleted: bool,
    pub(super) how: FileOrigin,
}

fn held(row: &Row<'_>) -> Result<StoredObject> {
    Ok(StoredObject {
        object: object(row, 4)?,
        placed: placed(row, 0)?,
        deleted: row.get(5)?,
        how: FileOrigin::of(row.get(6)?),
    })
}

/// Returns all objects whose files are or were at a path, existing objects first.
pub(super) fn at(db: &Connection, path: &str) -> Result<Vec<StoredObject>> {
    let sql = "SELECT path, size, tag, checked, object, deleted, stub FROM backend
                   WHERE path = ?1 AND packed = 0 ORDER BY deleted, stub";
    db.prepare_cached(sql)?.query_map([path], held)?.collect()
}

/// Records that an object's file is at a path now. Replaces the row of a file of the node that waited for its removal at this path. Deletes
/// the rows of former objects at the path.
pub(super) fn put(
    db: &Connection,
    object: ObjectId,
    at: &StoreFile,
    how: FileOrigin,
) -> Result<()> {
    let forget = match how {
        FileOrigin::Put => "DELETE FROM backend WHERE path = ?1 AND deleted = 1 AND packed = 0",
        FileOrigin::Stub | FileOrigin::Followed => {
            "DELETE FROM backend WHERE path = ?1 AND deleted = 1 AND stub = 2"
        }
    };
    db.prepare_cached(forget)?.execute([&at.path])?;
    if how == FileOrigin::Put {
        ended(db, &at.path, object)?;
    }
    let sql = "INSERT OR REPLACE INTO backend (object, path, size, tag, checked, stub)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    db.prepare_cached(sql)?.execute(params![
        object.0.cast_signed(),
        at.path,
        at.size.cast_signed(),
        at.tag,
        at.checked_by_store,
        how as i64
    ])?;
    Ok(())
}

/// Records the new tag of an object's file that was moved aside.
pub(super) fn retag(db: &Connection, object: ObjectId, at: &StoreFile) -> Result<()> {
    let sql = "UPDATE backend SET tag = ?3 WHERE object = ?1 AND path = ?2";
    db.prepare_cached(sql)?
        .execute(params![object.0.cast_signed(), at.path, at.tag])?;
    db.prepare_cached("UPDATE backend_attempt SET aside = NULL WHERE aside = ?1")?
        .execute([object.0.cast_signed()])?;
    Ok(())
}

/// Records that an object was removed. The function deletes the row of a stub object, marks a file of the node for removal, and keeps the
/// row of a file in an attached directory. Returns the former location.
pub(super) fn leave(db: &Connection, object: ObjectId) -> Result<Option<BackendLocation>> {
    let id = object.0.cast_signed();
    let found = find(db, object)?;
    db.prepare_cached("DELETE FROM backend WHERE object = ?1 AND stub = 1")?
        .execute([id])?;
    db.prepare_cached("UPDATE backend SET deleted = 1 WHERE object = ?1")?
        .execute([id])?;
    Ok(found)
}

/// Returns up to `max` kept rows of removed objects, with ids greater than `after`.
pub(super) fn remembered(db: &Connection, after: ObjectId, max: u32) -> Result<Vec<StoredObject>> {
    let sql = "SELECT path, size, tag, checked, object, deleted, stub FROM backend
                   WHERE deleted = 1 AND stub = 2 AND object > ?1 ORDER BY object LIMIT ?2";
    db.prepare_cached(sql)?
        .query_map(params![after.0.cast_signed(), max], held)?
        .collect()
}

/// Returns up to `max` removed objects whose external files wait for removal.
pub(super) fn deleted(db: &Connection, max: u32) -> Result<Vec<(ObjectId, StoreFile)>> {
    let sql = "SELECT path, size, tag, checked, object FROM backend 
                   WHERE deleted = 1 AND stub = 0 AND packed = 0 LIMIT ?1";
    db.prepare_cached(sql)?
        .query_map([max], |row| Ok((object(row, 4)?, placed(row, 0)?)))?
        .collect()
}

/// Records that the external file of a removed object was removed.
pub(super) fn removed(db: &Connection, object: ObjectId) -> Result<()> {
    db.prepare_cached("DELETE FROM backend WHERE object = ?1 AND deleted > 0")?
        .execute([object.0.cast_signed()])?;
    Ok(())
}

/// Records the new path of an object's file. Returns whether the object is still known.
pub(super) fn aside(db: &Connection, object: ObjectId, at: &StoreFile) -> Result<bool> {
    let sql = "UPDATE backend SET path = ?2, size = ?3, tag = ?4, checked = ?5, stub = 0 WHERE object = ?1";
    let row = params![
        object.0.cast_signed(),
        at.path,
        at.size.cast_signed(),
        at.tag,
        at.checked_by_store
    ];
    Ok(db.prepare_cached(sql)?.execute(row)? > 0)
}

/// Records that a write of an object to this path starts. `since_s` is a time in seconds.
pub(super) fn attempt(db: &Connection, path: &str, object: ObjectId, since_s: i64) -> Result<()> {
    let sql = "INSERT INTO backend_attempt (path, object, since) VALUES (?1, ?2, ?3)
                   ON CONFLICT (path, object) DO UPDATE SET again = 1";
    db.prepare_cached(sql)?
        .execute(params![path, object.0.cast_signed(), since_s])?;
    Ok(())
}

/// Returns whether a write of the object to this path started more than once, so that the result of the earlier write is unknown.
pub(super) fn again(db: &Connection, path: &str, object: ObjectId) -> Result<bool> {
    let sql = "SELECT again FROM backend_attempt WHERE path = ?1 AND object = ?2";
    let again = db
        .prepare_cached(sql)?
        .query_row(params![path, object.0.cast_signed()], |row| row.get(0));
    Ok(again.optional()?.unwrap_or(false))
}

/// Returns whether a write of the object to this path started.
pub(super) fn has_attempt(db: &Connection, path: &str, object: ObjectId) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM backend_attempt WHERE path = ?1 AND object = ?2")?
        .exists(params![path, object.0.cast_signed()])
}

/// Records that the file at this path belongs to the object `aside`, which also has another path, and that `object` may replace the file.
pub(super) fn give_way(
    db: &Connection,
    (aside, object): (ObjectId, ObjectId),
    at: &StoreFile,
) -> Result<()> {
    let sql = "UPDATE backend_attempt SET size = ?3, tag = ?4, checked = ?5, aside = ?6 WHERE path = ?1 AND object = ?2";
    db.prepare_cached(sql)?.execute(params![
        at.path,
        object.0.cast_signed(),
        at.size.cast_signed(),
        at.tag,
        at.checked_by_store,
        aside.0.cast_signed()
    ])?;
    Ok(())
}

/// Returns whether any object that needs the path may replace the file at the path.
pub(super) fn gives_way(db: &Connection, at: &StoreFile) -> Result<bool> {
    let sql = "SELECT 1 FROM backend_attempt WHERE path = ?1 AND size = ?2 AND tag = ?3";
    db.prepare_cached(sql)?
        .exists(params![at.path, at.size.cast_signed(), at.tag])
}

/// Returns objects whose files were at a path before and were moved to another path.
pub(super) fn moved_aside(db: &Connection, path: &str) -> Result<Vec<ObjectId>> {
    let sql = "SELECT DISTINCT aside FROM backend_attempt WHERE path = ?1 AND aside IS NOT NULL";
    db.prepare_cached(sql)?
        .query_map([path], |row| object(row, 0))?
        .collect()
}

/// Records that an object is in the external store. Deletes its write attempt if the write was started only once.
fn ended(db: &Connection, path: &str, object: ObjectId) -> Result<()> {
    let sql = "DELETE FROM backend_attempt WHERE path = ?1 AND object = ?2 AND again = 0";
    db.prepare_cached(sql)?
        .execute(params![path, object.0.cast_signed()])?;
    Ok(())
}

/// Write attempt that ended or whose object is no longer needed.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) path: String,
    pub(super) object: ObjectId,
    pub(super) since_s: i64,
    /// Whether an earlier write of the object was started, with an unknown result.
    pub(super) again: bool,
    /// Length of the object in bytes; `None` if the external store does not hold the object.
    pub(super) size: Option<u64>,
    /// Former file at the path that the write was to replace.
    pub(super) left: Option<StoreFile>,
}

/// Returns the attempts that may have left data: attempts of objects that the external store holds, and attempts of missing objects from
/// before `before_s`.
pub(super) fn attempts(db: &Connection, before_s: i64) -> Result<Vec<Attempt>> {
    let sql = "SELECT path, size, tag, checked, object, since, again,
                   (SELECT size FROM backend WHERE backend.object = backend_attempt.object AND deleted = 0)
                   FROM backend_attempt
                   WHERE EXISTS (SELECT 1 FROM backend WHERE backend.object = backend_attempt.object AND deleted = 0)
                   OR since < ?1 AND object NOT IN (SELECT id FROM object)";
    db.prepare_cached(sql)?
        .query_map([before_s], |row| {
            let gives_way = row.get::<_, Option<String>>(2)?.is_some();
            Ok(Attempt {
                path: row.get(0)?,
                object: object(row, 4)?,
                since_s: row.get(5)?,
                size: row.get::<_, Option<i64>>(7)?.map(i64::cast_unsigned),
                again: row.get(6)?,
                left: gives_way.then(|| placed(row, 0)).transpose()?,
            })
        })?
        .collect()
}

/// Deletes an attempt that has left no data.
pub(super) fn forget_attempt(db: &Connection, path: &str, object: ObjectId) -> Result<()> {
    db.prepare_cached("DELETE FROM backend_attempt WHERE path = ?1 AND object = ?2")?
        .execute(params![path, object.0.cast_signed()])?;
    Ok(())
}
