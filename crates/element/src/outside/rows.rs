//! What is outside, in the element's database.

use super::Placed;
use super::reading::There;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use tidemill_core::attribute::object as attribute;
use tidemill_core::id::ObjectId;

fn object(row: &Row<'_>, at: usize) -> Result<ObjectId> {
    Ok(ObjectId(row.get::<_, i64>(at)?.cast_unsigned()))
}

pub(super) fn size(row: &Row<'_>, at: usize) -> Result<u64> {
    Ok(row.get::<_, i64>(at)?.cast_unsigned())
}

pub(super) fn placed(row: &Row<'_>, from: usize) -> Result<Placed> {
    Ok(Placed {
        path: row.get(from)?,
        size: size(row, from + 1)?,
        tag: row.get(from + 2)?,
        checked: row.get(from + 3)?,
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
            placed: placed(row, 0)?,
            packed: row.get(4)?,
        })
    };
    db.prepare_cached(sql)?
        .query_row([object.0.cast_signed()], there)
        .optional()
}

/// Where some of what is there is, or is to be removed from there: of the first and of the last objects, and of packs.
pub(super) fn some_paths(db: &Connection, each: u32) -> Result<Vec<String>> {
    let sql = "SELECT path FROM (SELECT path FROM outside WHERE (gone = 0 OR linked = 0) AND packed = 0 ORDER BY object LIMIT ?1)
               UNION SELECT path FROM (SELECT path FROM outside WHERE (gone = 0 OR linked = 0) AND packed = 0 ORDER BY object DESC LIMIT ?1)
               UNION SELECT path FROM (SELECT path FROM pack WHERE state = 1 OR (state = 2 AND tag != '') ORDER BY id DESC LIMIT ?1)";
    db.prepare_cached(sql)?
        .query_map([each], |row| row.get(0))?
        .collect()
}

/// Whether anything is there that was put there.
pub(super) fn any_put(db: &Connection) -> Result<bool> {
    let mut statement = db.prepare_cached("SELECT 1 FROM outside WHERE linked = 0 AND gone = 0")?;
    statement.exists([])
}

/// How an object got where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It was put there, and goes from there with the object.
    Put = 0,
    /// Somebody else has put it there, and somebody said that it is a file.
    Linked = 1,
    /// The same, in a folder that has what is there: what it was is remembered when the object is no more.
    Followed = 2,
}

impl How {
    fn of(number: i64) -> Self {
        match number {
            0 => Self::Put,
            1 => Self::Linked,
            _ => Self::Followed,
        }
    }
}

/// What is or was at a path.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) object: ObjectId,
    pub(super) placed: Placed,
    /// The object is no more.
    pub(super) gone: bool,
    pub(super) how: How,
}

fn held(row: &Row<'_>) -> Result<Held> {
    Ok(Held {
        object: object(row, 4)?,
        placed: placed(row, 0)?,
        gone: row.get(5)?,
        how: How::of(row.get(6)?),
    })
}

/// All that is or was at a path, what is first.
pub(super) fn at(db: &Connection, path: &str) -> Result<Vec<Held>> {
    let sql = "SELECT path, size, tag, checked, object, gone, linked FROM outside
                   WHERE path = ?1 AND packed = 0 ORDER BY gone, linked";
    db.prepare_cached(sql)?.query_map([path], held)?.collect()
}

/// An object is at a path now. What was put there and is to go is written over by what is put there; what was remembered of it is not
/// so any more.
pub(super) fn put(db: &Connection, object: ObjectId, at: &Placed, how: How) -> Result<()> {
    let forget = match how {
        How::Put => "DELETE FROM outside WHERE path = ?1 AND gone = 1 AND packed = 0",
        How::Linked | How::Followed => {
            "DELETE FROM outside WHERE path = ?1 AND gone = 1 AND linked = 2"
        }
    };
    db.prepare_cached(forget)?.execute([&at.path])?;
    if how == How::Put {
        ended(db, &at.path, object)?;
    }
    let sql = "INSERT OR REPLACE INTO outside (object, path, size, tag, checked, linked)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    db.prepare_cached(sql)?.execute(params![
        object.0.cast_signed(),
        at.path,
        at.size.cast_signed(),
        at.tag,
        at.checked,
        how as i64
    ])?;
    Ok(())
}

/// What was moved aside is told by this tag from now on.
pub(super) fn retag(db: &Connection, object: ObjectId, at: &Placed) -> Result<()> {
    let sql = "UPDATE outside SET tag = ?3 WHERE object = ?1 AND path = ?2";
    db.prepare_cached(sql)?
        .execute(params![object.0.cast_signed(), at.path, at.tag])?;
    db.prepare_cached("UPDATE outside_attempt SET aside = NULL WHERE aside = ?1")?
        .execute([object.0.cast_signed()])?;
    Ok(())
}

/// An object is no more: what was only linked is forgotten, what was put there is to be removed. Gives where it was.
pub(super) fn leave(db: &Connection, object: ObjectId) -> Result<Option<There>> {
    let id = object.0.cast_signed();
    let found = find(db, object)?;
    db.prepare_cached("DELETE FROM outside WHERE object = ?1 AND linked = 1")?
        .execute([id])?;
    db.prepare_cached("UPDATE outside SET gone = 1 WHERE object = ?1")?
        .execute([id])?;
    Ok(found)
}

/// Some of what is remembered of objects that are no more, from an object on.
pub(super) fn remembered(db: &Connection, after: ObjectId, max: u32) -> Result<Vec<Held>> {
    let sql = "SELECT path, size, tag, checked, object, gone, linked FROM outside
                   WHERE gone = 1 AND linked = 2 AND object > ?1 ORDER BY object LIMIT ?2";
    db.prepare_cached(sql)?
        .query_map(params![after.0.cast_signed(), max], held)?
        .collect()
}

/// Some of what is to be removed and has a file of its own.
pub(super) fn gone(db: &Connection, max: u32) -> Result<Vec<(ObjectId, Placed)>> {
    let sql = "SELECT path, size, tag, checked, object FROM outside 
                   WHERE gone = 1 AND linked = 0 AND packed = 0 LIMIT ?1";
    db.prepare_cached(sql)?
        .query_map([max], |row| Ok((object(row, 4)?, placed(row, 0)?)))?
        .collect()
}

/// What was to be removed is.
pub(super) fn removed(db: &Connection, object: ObjectId) -> Result<()> {
    db.prepare_cached("DELETE FROM outside WHERE object = ?1 AND gone > 0")?
        .execute([object.0.cast_signed()])?;
    Ok(())
}

/// An object that had a path has another one now, if it is still known.
pub(super) fn aside(db: &Connection, object: ObjectId, at: &Placed) -> Result<bool> {
    let sql = "UPDATE outside SET path = ?2, size = ?3, tag = ?4, checked = ?5, linked = 0 WHERE object = ?1";
    let row = params![
        object.0.cast_signed(),
        at.path,
        at.size.cast_signed(),
        at.tag,
        at.checked
    ];
    Ok(db.prepare_cached(sql)?.execute(row)? > 0)
}

/// Writing an object there is begun, since then in seconds.
pub(super) fn attempt(db: &Connection, path: &str, object: ObjectId, since_s: i64) -> Result<()> {
    let sql = "INSERT INTO outside_attempt (path, object, since) VALUES (?1, ?2, ?3)
                   ON CONFLICT (path, object) DO UPDATE SET again = 1";
    db.prepare_cached(sql)?
        .execute(params![path, object.0.cast_signed(), since_s])?;
    Ok(())
}

/// Whether it was begun before, too, and nobody knows how that ended.
pub(super) fn again(db: &Connection, path: &str, object: ObjectId) -> Result<bool> {
    let sql = "SELECT again FROM outside_attempt WHERE path = ?1 AND object = ?2";
    let again = db
        .prepare_cached(sql)?
        .query_row(params![path, object.0.cast_signed()], |row| row.get(0));
    Ok(again.optional()?.unwrap_or(false))
}

/// Whether it was begun.
pub(super) fn has_attempt(db: &Connection, path: &str, object: ObjectId) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM outside_attempt WHERE path = ?1 AND object = ?2")?
        .exists(params![path, object.0.cast_signed()])
}

/// What is at that path is that of one object, which has another name, too, and has to give way to another.
pub(super) fn give_way(
    db: &Connection,
    (aside, object): (ObjectId, ObjectId),
    at: &Placed,
) -> Result<()> {
    let sql = "UPDATE outside_attempt SET size = ?3, tag = ?4, checked = ?5, aside = ?6 WHERE path = ?1 AND object = ?2";
    db.prepare_cached(sql)?.execute(params![
        at.path,
        object.0.cast_signed(),
        at.size.cast_signed(),
        at.tag,
        at.checked,
        aside.0.cast_signed()
    ])?;
    Ok(())
}

/// Whether what is at a path has to give way to whoever wants it.
pub(super) fn gives_way(db: &Connection, at: &Placed) -> Result<bool> {
    let sql = "SELECT 1 FROM outside_attempt WHERE path = ?1 AND size = ?2 AND tag = ?3";
    db.prepare_cached(sql)?
        .exists(params![at.path, at.size.cast_signed(), at.tag])
}

/// Objects that were at a path before, and are elsewhere now.
pub(super) fn moved_aside(db: &Connection, path: &str) -> Result<Vec<ObjectId>> {
    let sql = "SELECT DISTINCT aside FROM outside_attempt WHERE path = ?1 AND aside IS NOT NULL";
    db.prepare_cached(sql)?
        .query_map([path], |row| object(row, 0))?
        .collect()
}

/// An object is there: of writing it nothing is left, if it was begun once.
fn ended(db: &Connection, path: &str, object: ObjectId) -> Result<()> {
    let sql = "DELETE FROM outside_attempt WHERE path = ?1 AND object = ?2 AND again = 0";
    db.prepare_cached(sql)?
        .execute(params![path, object.0.cast_signed()])?;
    Ok(())
}

/// Writing an object that has ended, or that nobody wants any more.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) path: String,
    pub(super) object: ObjectId,
    pub(super) since_s: i64,
    /// It was begun before, and nobody knows how that ended.
    pub(super) again: bool,
    /// How long it is, if it is there.
    pub(super) size: Option<u64>,
    /// What was there and had to give way.
    pub(super) left: Option<Placed>,
}

/// Those of which something may be left: of what is there now, and of what is no object since then.
pub(super) fn attempts(db: &Connection, before_s: i64) -> Result<Vec<Attempt>> {
    let sql = "SELECT path, size, tag, checked, object, since, again,
                   (SELECT size FROM outside WHERE outside.object = outside_attempt.object AND gone = 0)
                   FROM outside_attempt
                   WHERE EXISTS (SELECT 1 FROM outside WHERE outside.object = outside_attempt.object AND gone = 0)
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

/// Nothing is left of it.
pub(super) fn forget_attempt(db: &Connection, path: &str, object: ObjectId) -> Result<()> {
    db.prepare_cached("DELETE FROM outside_attempt WHERE path = ?1 AND object = ?2")?
        .execute(params![path, object.0.cast_signed()])?;
    Ok(())
}
