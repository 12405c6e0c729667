//! What is outside, in the element's database.

use super::Placed;
use super::reading::There;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use tidemill_core::attribute::object as attribute;
use tidemill_core::id::ObjectId;

fn object(row: &Row<'_>, at: usize) -> Result<ObjectId> {
    Ok(ObjectId(row.get::<_, i64>(at)?.cast_unsigned()))
}

fn size(row: &Row<'_>, at: usize) -> Result<u64> {
    Ok(row.get::<_, i64>(at)?.cast_unsigned())
}

fn placed(row: &Row<'_>) -> Result<Placed> {
    Ok(Placed {
        path: row.get(0)?,
        size: size(row, 1)?,
        tag: row.get(2)?,
        checked: row.get(3)?,
    })
}

/// All that is there, its lengths in bytes, and whether it is in packs.
pub(super) fn all(db: &Connection) -> Result<Vec<(ObjectId, u64, bool)>> {
    db.prepare("SELECT object, size, packed FROM outside WHERE gone = 0")?
        .query_map([], |row| Ok((object(row, 0)?, size(row, 1)?, row.get(2)?)))?
        .collect()
}

/// What of it has ids of this lowest byte.
pub(super) fn of_folder(db: &Connection, folder: u8) -> Result<Vec<(ObjectId, u64)>> {
    db.prepare_cached("SELECT object, size FROM outside WHERE gone = 0 AND object & 255 = ?1")?
        .query_map([folder], |row| Ok((object(row, 0)?, size(row, 1)?)))?
        .collect()
}

/// What is kept here and is not there, but for what tasks only hand to each other.
pub(super) fn unsettled(db: &Connection) -> Result<Vec<ObjectId>> {
    let sql = "SELECT id FROM object WHERE kind = 0 AND damage IS NULL
                   AND id NOT IN (SELECT object FROM outside WHERE gone = 0)
                   AND id NOT IN (SELECT object FROM attribute WHERE page = ?1 AND number = ?2)";
    db.prepare(sql)?
        .query_map([attribute::PAGE, attribute::MEMORY], |row| object(row, 0))?
        .collect()
}

/// Where an object is.
pub(super) fn find(db: &Connection, object: ObjectId) -> Result<Option<There>> {
    let sql = "SELECT path, size, tag, checked, packed FROM outside WHERE object = ?1 AND gone = 0";
    let there = |row: &Row<'_>| {
        Ok(There {
            placed: placed(row)?,
            packed: row.get(4)?,
        })
    };
    db.prepare_cached(sql)?
        .query_row([object.0.cast_signed()], there)
        .optional()
}

/// The object that was put at a path, and whether it is one no more.
pub(super) fn holder(db: &Connection, path: &str) -> Result<Option<(ObjectId, Placed, bool)>> {
    let sql = "SELECT path, size, tag, checked, object, gone FROM outside
                   WHERE path = ?1 AND linked = 0 AND packed = 0 ORDER BY gone";
    db.prepare_cached(sql)?
        .query_row([path], |row| {
            Ok((object(row, 4)?, placed(row)?, row.get(5)?))
        })
        .optional()
}

/// An object is at a path now; what was there and is to go is written over by it.
pub(super) fn put(db: &Connection, object: ObjectId, at: &Placed, linked: bool) -> Result<()> {
    if !linked {
        db.prepare_cached("DELETE FROM outside WHERE path = ?1 AND gone = 1 AND packed = 0")?
            .execute([&at.path])?;
    }
    let sql = "INSERT OR REPLACE INTO outside (object, path, size, tag, checked, linked)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    db.prepare_cached(sql)?.execute(params![
        object.0.cast_signed(),
        at.path,
        at.size.cast_signed(),
        at.tag,
        at.checked,
        linked
    ])?;
    Ok(())
}

/// An object is no more: what was only linked is forgotten, all else is to be removed. Gives where it was.
pub(super) fn leave(db: &Connection, object: ObjectId) -> Result<Option<There>> {
    let id = object.0.cast_signed();
    let found = find(db, object)?;
    db.prepare_cached("DELETE FROM outside WHERE object = ?1 AND linked = 1")?
        .execute([id])?;
    db.prepare_cached("UPDATE outside SET gone = 1 WHERE object = ?1")?
        .execute([id])?;
    Ok(found)
}

/// Some of what is to be removed and has a file of its own.
pub(super) fn gone(db: &Connection, max: u32) -> Result<Vec<(ObjectId, Placed)>> {
    let sql = "SELECT path, size, tag, checked, object FROM outside
                   WHERE gone = 1 AND packed = 0 LIMIT ?1";
    db.prepare_cached(sql)?
        .query_map([max], |row| Ok((object(row, 4)?, placed(row)?)))?
        .collect()
}

/// What was to be removed is.
pub(super) fn removed(db: &Connection, object: ObjectId) -> Result<()> {
    db.prepare_cached("DELETE FROM outside WHERE object = ?1 AND gone > 0")?
        .execute([object.0.cast_signed()])?;
    Ok(())
}
