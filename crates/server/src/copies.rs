//! Further copies of versions: which are missing, as the table `short` says, and labels that make them.
//!
//! A copy has the id of the version, on another element. Its row in `copy` is written with its label, and is current when
//! that has ended well; it goes with the version, whatever its label does then. A row of `short` goes when there are as many
//! copies as wanted, so what a restart finds there is what is still to be done.

use crate::clock;
use crate::jobs::Incoming;
use crate::jobs::store::json;
use crate::names::Fault;
use crate::names::commit::Database;
use crate::names::copies::{COMING, CURRENT, look_again, others, remove_copy};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_core::copies::{COPIES_MAX, CopyState, Kept};
use tidemill_core::id::{ElementId, Inode, ObjectId};
use tidemill_core::label::{Input, Operation, Output, Owner};

/// How often it is looked whether copies are missing.
const PERIOD: Duration = Duration::from_millis(500);
/// Versions that are looked at in one go.
pub(crate) const VERSIONS_MAX: usize = 256;
/// How long a version is left alone of which no copy could be made.
pub(crate) const REST_NS: i64 = 10 * 1_000_000_000;

/// A version that may have fewer copies than it should.
#[derive(Clone, Debug)]
pub(crate) struct Short {
    pub(crate) kept: Kept,
    pub(crate) owner: Owner,
    ino: u64,
    path: String,
    /// It is no file's version any more.
    gone: bool,
}

/// What was found out of the copies of a version.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// There are enough, or none are wanted any more.
    Enough,
    /// Nothing can be done now, with so many that are current.
    Rest { has: usize },
    /// These are too many.
    Surplus(Vec<ElementId>),
}

/// Has the driver look, for ever.
pub(crate) async fn watch(database: Arc<Database>, driver: Sender<Incoming>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let due = database.read(|db| Ok(!objects(db, clock::now_ns(), 1)?.is_empty()));
        if due.unwrap_or(false) && driver.send(Incoming::Copies).is_err() {
            return;
        }
    }
}

/// Those to be looked at, which have the fewest copies first.
fn objects(db: &Connection, now: i64, max: usize) -> Result<Vec<i64>, Fault> {
    let sql = "SELECT object FROM short WHERE has = ?1 AND at <= ?2 ORDER BY at LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let mut objects = Vec::new();
    for has in 0..=COPIES_MAX {
        let left = i64::try_from(max - objects.len()).unwrap_or(0);
        let rows = statement.query_map(params![has, now, left], |row| row.get(0))?;
        objects.extend(rows.collect::<Result<Vec<i64>, _>>()?);
    }
    Ok(objects)
}

/// The versions to be looked at until `now`, which have the fewest copies first. `lost` are elements that are no longer
/// waited for.
pub(crate) fn due(db: &Connection, now: i64, lost: &BTreeSet<u32>) -> Result<Vec<Short>, Fault> {
    let objects = objects(db, now, VERSIONS_MAX)?;
    let shorts = objects.into_iter().map(|object| short(db, object, lost));
    shorts.collect()
}

fn short(db: &Connection, object: i64, lost: &BTreeSet<u32>) -> Result<Short, Fault> {
    let sql = "SELECT version.size, copies, version.element, removed, version.ino, path, \
               coalesce(inode.uid, version.uid), coalesce(inode.gid, 0) \
               FROM version LEFT JOIN inode ON inode.ino = version.ino WHERE version.object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let object = object.cast_unsigned();
    let found = statement
        .query_row([object.cast_signed()], |row| {
            let kept = Kept {
                object: ObjectId(object),
                size: row.get::<_, i64>(0)?.cast_unsigned(),
                wanted: row.get::<_, u32>(1)? as usize,
                holders: vec![(ElementId(row.get(2)?), CopyState::Current)],
            };
            Ok(Short {
                kept,
                gone: row.get(3)?,
                ino: row.get::<_, i64>(4)?.cast_unsigned(),
                path: String::from_utf8_lossy(&row.get::<_, Vec<u8>>(5)?).into_owned(),
                owner: Owner {
                    uid: row.get(6)?,
                    gid: row.get(7)?,
                },
            })
        })
        .optional()?;
    let Some(mut short) = found else {
        return Ok(Short::gone(object));
    };
    let others = others(db, object)?.into_iter();
    let others = others.map(|(element, state)| (ElementId(element), state));
    short.kept.holders.extend(others);
    for (element, state) in &mut short.kept.holders {
        if lost.contains(&element.0) {
            *state = CopyState::Lost;
        }
    }
    let mut going = db.prepare_cached("SELECT element FROM removal WHERE object = ?1")?;
    let going = going.query_map([object.cast_signed()], |row| row.get(0))?;
    for element in going.collect::<Result<Vec<u32>, _>>()? {
        let going = (ElementId(element), CopyState::Going);
        short.kept.holders.push(going);
    }
    Ok(short)
}

impl Short {
    fn gone(object: u64) -> Self {
        Self {
            kept: Kept {
                object: ObjectId(object),
                size: 0,
                wanted: 0,
                holders: Vec::new(),
            },
            owner: Owner::default(),
            ino: 0,
            path: String::new(),
            gone: true,
        }
    }

    /// Whether nobody wants copies of it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// What an element is to do that is to have a copy.
    pub(crate) fn operation(&self, from: ElementId) -> Operation {
        Operation::Copy {
            from: Input {
                name: String::new(),
                object: self.kept.object,
                element: from,
                size: self.kept.size,
            },
            to: Output {
                name: String::new(),
                object: self.kept.object,
                inode: Inode(self.ino),
                path: self.path.clone(),
            },
        }
    }
}

/// Copies of some objects that are there, beside the first of each.
pub(crate) fn of_all(
    db: &Connection,
    objects: &[ObjectId],
) -> Result<Vec<(ObjectId, ElementId)>, Fault> {
    let any = db
        .prepare_cached("SELECT 1 FROM copy LIMIT 1")?
        .exists([])?;
    if !any || objects.is_empty() {
        return Ok(Vec::new());
    }
    let objects: Vec<u64> = objects.iter().map(|object| object.0).collect();
    let sql = "SELECT copy.object, element FROM json_each(?1) AS wanted \
               CROSS JOIN copy ON copy.object = wanted.value WHERE state = ?2";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![json(&objects), CURRENT], |row| {
        let object = ObjectId(row.get::<_, i64>(0)?.cast_unsigned());
        Ok((object, ElementId(row.get(1)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// All elements that have an object which is a version, the first before the others.
pub(crate) fn holders(db: &Connection, object: u64) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT element FROM version WHERE object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let first = statement.query_row([object.cast_signed()], |row| row.get::<_, u32>(0));
    let others = others(db, object)?.into_iter();
    let others = others.filter(|(_, state)| *state == CopyState::Current);
    let others = others.map(|(element, _)| element);
    Ok(first.optional()?.into_iter().chain(others).collect())
}

/// A label is to make a copy. There is none of a version that went meanwhile.
pub(crate) fn coming(db: &Connection, object: u64, element: ElementId) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO copy SELECT object, ?2, ?3 FROM version \
               WHERE object = ?1 AND removed = 0 AND element != ?2";
    db.prepare_cached(sql)?
        .execute(params![object.cast_signed(), element.0, COMING])?;
    Ok(())
}

/// A label that was to make a copy has ended.
pub(crate) fn ended(
    db: &Connection,
    object: ObjectId,
    element: ElementId,
    well: bool,
    now: i64,
) -> Result<(), Fault> {
    let row = params![object.0.cast_signed(), element.0];
    if !well {
        let sql = "DELETE FROM copy WHERE object = ?1 AND element = ?2";
        if db.prepare_cached(sql)?.execute(row)? > 0 {
            look_later(db, object, 1, now)?;
        }
        return Ok(());
    }
    let sql = "UPDATE copy SET state = ?3 WHERE object = ?1 AND element = ?2";
    let row = params![object.0.cast_signed(), element.0, CURRENT];
    if db.prepare_cached(sql)?.execute(row)? > 0 {
        return look_again(db, object.0, now);
    }
    // The version went while it was being made.
    remove_copy(db, object.0, element.0, now)
}

/// Keeps what was found out of the copies of a version.
pub(crate) fn found(
    db: &Connection,
    object: ObjectId,
    found: &Found,
    now: i64,
) -> Result<(), Fault> {
    match found {
        Found::Enough => {
            db.prepare_cached("DELETE FROM short WHERE object = ?1")?
                .execute([object.0.cast_signed()])?;
            Ok(())
        }
        Found::Rest { has } => look_later(db, object, *has, now),
        Found::Surplus(elements) => {
            for element in elements {
                remove_copy(db, object.0, element.0, now)?;
            }
            Ok(())
        }
    }
}

fn look_later(db: &Connection, object: ObjectId, has: usize, now: i64) -> Result<(), Fault> {
    let has = i64::try_from(has.min(COPIES_MAX as usize)).unwrap_or(0);
    let sql = "UPDATE short SET at = ?2, has = ?3 WHERE object = ?1";
    db.prepare_cached(sql)?
        .execute(params![object.0.cast_signed(), now + REST_NS, has])?;
    Ok(())
}
