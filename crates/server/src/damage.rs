//! Copies that are damaged, as elements told: the table `damage`. Such a copy counts as none until it was made anew in its
//! place.

use crate::copies::reprieve;
use crate::jobs::store::json;
use crate::names::Fault;
use crate::names::copies::{CURRENT, look_again};
use crate::names::shared::Shared;
use rusqlite::{Connection, params};
use tidemill_core::id::{ElementId, ObjectId};
use tidemill_core::label::Damaged;

/// An element has told that objects are damaged there. Those that are no version's, or go, are of no concern; gives how many
/// others there are.
pub(crate) fn found(
    db: &Connection,
    shared: &Shared,
    element: ElementId,
    damaged: &[Damaged],
    now: i64,
) -> Result<u64, Fault> {
    let sql = "INSERT OR IGNORE INTO damage(object, element, what, at) SELECT object, ?2, ?3, ?4 FROM held \
               WHERE object = ?1 AND removed = 0 AND (element = ?2 OR EXISTS \
               (SELECT 1 FROM copy WHERE copy.object = ?1 AND copy.element = ?2 AND state = ?5))";
    let mut insert = db.prepare_cached(sql)?;
    let mut count = 0;
    for Damaged { object, what } in damaged {
        let id = object.0.cast_signed();
        if insert.execute(params![id, element.0, what, now, CURRENT])? > 0 {
            tracing::error!(%element, "object {object} {what}: it is made anew of another copy, if there is one");
            shared.set_damage();
            look_again(db, object.0, now)?;
            reprieve(db, object.0, (&shared.leaving, now))?;
        }
        count += u64::from(is(db, object.0, element.0)?);
    }
    Ok(count)
}

/// Of these objects of an element all but those in `damaged` were found to be what they should be.
pub(crate) fn verified(
    db: &Connection,
    element: ElementId,
    objects: &[ObjectId],
    damaged: &[Damaged],
    now: i64,
) -> Result<(), Fault> {
    let ids = |ids: &mut dyn Iterator<Item = u64>| json(&ids.collect::<Vec<_>>());
    let sql = "DELETE FROM damage WHERE element = ?1 AND mending = 0 \
               AND object IN (SELECT value FROM json_each(?2)) \
               AND object NOT IN (SELECT value FROM json_each(?3)) RETURNING object";
    let mut statement = db.prepare_cached(sql)?;
    let good = ids(&mut objects.iter().map(|object| object.0));
    let bad = ids(&mut damaged.iter().map(|one| one.object.0));
    let rows = statement.query_map(params![element.0, good, bad], |row| row.get(0))?;
    for object in rows.collect::<Result<Vec<i64>, _>>()? {
        look_again(db, object.cast_unsigned(), now)?;
    }
    Ok(())
}

/// Whether an element's copy is damaged.
pub(crate) fn is(db: &Connection, object: u64, element: u32) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM damage WHERE object = ?1 AND element = ?2";
    Ok(db
        .prepare_cached(sql)?
        .exists(params![object.cast_signed(), element])?)
}

/// Those of some objects that are damaged somewhere, and where.
pub(crate) fn of_all(
    db: &Connection,
    objects: &[ObjectId],
) -> Result<Vec<(ObjectId, ElementId)>, Fault> {
    let objects: Vec<u64> = objects.iter().map(|object| object.0).collect();
    let sql = "SELECT damage.object, element FROM json_each(?1) AS wanted \
               CROSS JOIN damage ON damage.object = wanted.value";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([json(&objects)], |row| {
        let object = ObjectId(row.get::<_, i64>(0)?.cast_unsigned());
        Ok((object, ElementId(row.get(1)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Where an object is damaged, and what is wrong with it.
pub(crate) fn of(db: &Connection, object: u64) -> Result<Vec<(u32, String)>, Fault> {
    let sql = "SELECT element, what FROM damage WHERE object = ?1 ORDER BY element";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([object.cast_signed()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// A label makes a damaged copy anew.
pub(crate) fn mending(db: &Connection, object: u64, element: ElementId) -> Result<(), Fault> {
    let sql = "UPDATE damage SET mending = 1 WHERE object = ?1 AND element = ?2";
    db.prepare_cached(sql)?
        .execute(params![object.cast_signed(), element.0])?;
    Ok(())
}

/// A label that was to make a copy has ended; whether that was one in the place of a damaged one.
pub(crate) fn mended(
    db: &Connection,
    object: ObjectId,
    element: ElementId,
    well: bool,
) -> Result<bool, Fault> {
    let sql = if well {
        "DELETE FROM damage WHERE object = ?1 AND element = ?2"
    } else {
        "UPDATE damage SET mending = 0 WHERE object = ?1 AND element = ?2"
    };
    let row = params![object.0.cast_signed(), element.0];
    Ok(db.prepare_cached(sql)?.execute(row)? > 0)
}

/// Whether any copy is damaged.
pub(crate) fn any(db: &Connection) -> Result<bool, Fault> {
    Ok(db.prepare("SELECT 1 FROM damage LIMIT 1")?.exists([])?)
}
