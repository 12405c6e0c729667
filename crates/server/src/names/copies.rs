//! Copies of versions, as the namespace knows them: how many are wanted, and which elements have them.
//!
//! All copies of a version are one object under one id. The first is in `inode` and `version`, as that of a version with one
//! copy; the others are rows of the table `copy`. Versions that may have fewer than wanted are rows of `short`, which
//! [`crate::copies`] works off.

use super::attribute::FOLDER_COPIES;
use super::fault::Fault;
use super::node::Node;
use super::transaction::Tx;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};
use tidemill_core::copies::{COPIES_MAX, CopyState};
use tidemill_core::id::{ElementId, Inode, ObjectId};
use tidemill_core::layout::{self, Layout, Part};

/// States of a copy (`copy.state`).
pub(crate) const COMING: i64 = 0;
pub(crate) const CURRENT: i64 = 1;

impl Tx<'_> {
    /// How many copies there are to be of the version that a file has now.
    pub(crate) fn copies_wanted(&self, node: &Node, named: Option<u32>) -> Result<u32, Fault> {
        if let Some(named) = named {
            if !(1..=COPIES_MAX).contains(&named) {
                return Err(Fault::BadCopies(named.to_string()));
            }
            return Ok(named);
        }
        // What no file has as its version goes soon.
        if node.version == 0 {
            return Ok(1);
        }
        let folders = if self.shared.folder_copies() {
            self.folder_copies(node.ino)?
        } else {
            None
        };
        Ok(folders.unwrap_or_else(|| self.shared.copies()))
    }

    fn folder_copies(&self, ino: u64) -> Result<Option<u32>, Fault> {
        let sql = "SELECT parent FROM dirent WHERE ino = ?1 LIMIT 1";
        let mut statement = self.db.prepare_cached(sql)?;
        let dir: Option<i64> = statement
            .query_row([ino.cast_signed()], |row| row.get(0))
            .optional()?;
        let dir = Node::get(self.db, dir.map_or(Inode::ROOT.0, i64::cast_unsigned))?;
        self.folder_attribute(&dir, FOLDER_COPIES)
    }

    /// Has copies made of a version that was just recorded.
    pub(crate) fn want_copies(&self, object: u64) -> Result<(), Fault> {
        look_again(self.db, object, self.now)
    }

    /// How many copies of a version are wanted, and the elements that have one beside the first or will.
    pub(crate) fn copies_of(&self, object: u64) -> Result<(u32, Vec<(u32, CopyState)>), Fault> {
        let sql = "SELECT copies FROM version WHERE object = ?1";
        let mut statement = self.db.prepare_cached(sql)?;
        let wanted = statement.query_row([object.cast_signed()], |row| row.get(0));
        Ok((wanted.optional()?.unwrap_or(1), others(self.db, object)?))
    }

    /// The element that an object is to be read from: the first, or one that has a copy, if the first does not answer or has
    /// not answered the one who asks.
    pub(crate) fn readable(&self, object: u64, first: u32, avoid: &[u32]) -> Result<u32, Fault> {
        if object == 0 || (self.shared.answers(first) && !avoid.contains(&first)) {
            return Ok(first);
        }
        let others = others(self.db, object)?.into_iter();
        let others = others.filter(|(_, state)| *state == CopyState::Current);
        let all: Vec<u32> = std::iter::once(first)
            .chain(others.map(|(element, _)| element))
            .collect();
        let mut better = all.iter().filter(|element| !avoid.contains(element));
        let answering = better
            .clone()
            .find(|&&element| self.shared.answers(element));
        let up = answering.or_else(|| better.find(|&&element| self.shared.is_up(element)));
        Ok(up.copied().unwrap_or(first))
    }

    /// A version goes: its copies go with it. One that is being made is removed when it is there.
    pub(crate) fn drop_copies(&self, object: u64) -> Result<(), Fault> {
        let object = object.cast_signed();
        let sql = "INSERT OR IGNORE INTO removal(object, element, queued) \
                   SELECT object, element, ?2 FROM copy WHERE object = ?1 AND state = ?3";
        self.db
            .prepare_cached(sql)?
            .execute(params![object, self.now, CURRENT])?;
        for sql in [
            "DELETE FROM copy WHERE object = ?1",
            "DELETE FROM short WHERE object = ?1",
            "DELETE FROM move WHERE object = ?1",
        ] {
            self.db.prepare_cached(sql)?.execute([object])?;
        }
        Ok(())
    }

    /// Where the bytes of a file are, as JSON: the answer of the attribute `user.tidemill.layout`.
    pub(crate) fn layout(&self, node: &Node) -> Result<String, Fault> {
        let mut parts = Vec::new();
        let mut wanted = 1;
        if let (Some(first), true) = (node.element(), node.object != 0) {
            let (copies, others) = self.copies_of(node.object)?;
            wanted = copies;
            let mut part = Part::on(ObjectId(node.object), node.size, ElementId(first));
            let others = others.into_iter().map(|(element, state)| layout::Copy {
                element: ElementId(element),
                state,
            });
            part.copies.extend(others);
            parts = self.told(&Layout::Whole(part));
        }
        let layout = json!({
            "layout": "whole",
            "version": node.version,
            "size": node.size,
            "copies": wanted,
            "parts": parts,
        });
        Ok(layout.to_string())
    }

    fn told(&self, layout: &Layout) -> Vec<Value> {
        let copy = |copy: &layout::Copy| {
            let leaves = self.shared.leaving.is_emptied(copy.element.0);
            let state = match copy.state {
                CopyState::Current if leaves && self.shared.is_up(copy.element.0) => "leaving",
                CopyState::Coming => "coming",
                CopyState::Lost => "lost",
                _ if self.shared.is_up(copy.element.0) => "current",
                _ => "away",
            };
            json!({ "element": copy.element.0, "state": state })
        };
        let part = |(index, part): (usize, &Part)| {
            let pieces = layout.pieces_of(index, 0..part.size);
            json!({
                "object": format!("{:016x}", part.object.0),
                "offset": pieces.first().map_or(0, |piece| piece.offset),
                "size": part.size,
                "copies": part.copies.iter().map(copy).collect::<Vec<_>>(),
            })
        };
        layout.parts().iter().enumerate().map(part).collect()
    }
}

/// The elements that have a copy beside the first, or will.
pub(crate) fn others(db: &Connection, object: u64) -> Result<Vec<(u32, CopyState)>, Fault> {
    let sql = "SELECT element, state FROM copy WHERE object = ?1 ORDER BY element";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([object.cast_signed()], |row| {
        let state = match row.get(1)? {
            COMING => CopyState::Coming,
            _ => CopyState::Current,
        };
        Ok((row.get(0)?, state))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Has it looked at whether a version has enough copies; what has only one is looked at first.
pub(crate) fn look_again(db: &Connection, object: u64, at: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO short VALUES (?1, 1, ?2) ON CONFLICT DO UPDATE SET at = min(at, ?2)";
    db.prepare_cached(sql)?
        .execute(params![object.cast_signed(), at])?;
    Ok(())
}

/// What has to be done for a version is only to move it: nothing of it is missing, and it is looked at after all that
/// has too few copies (`short.has`).
pub(crate) const MOVES: i64 = COPIES_MAX as i64 + 1;
/// Why an object moves (`move.why`).
pub(crate) const DRAIN: i64 = 0;
pub(crate) const MOVE: i64 = 1;
pub(crate) const REBALANCE: i64 = 2;

/// Has an object that was just put on an element leave it: the element is being emptied.
pub(crate) fn leaves(db: &Connection, object: u64, element: u32, at: i64) -> Result<(), Fault> {
    let object = object.cast_signed();
    let sql = "INSERT OR IGNORE INTO move SELECT ?2, object, NULL, size, ?3 FROM version WHERE object = ?1";
    db.prepare_cached(sql)?
        .execute(params![object, element, DRAIN])?;
    let sql = "INSERT INTO short VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET at = min(at, ?3)";
    db.prepare_cached(sql)?
        .execute(params![object, MOVES, at])?;
    Ok(())
}

/// Another copy of a version is the first from now on, if it is there; whether it is.
pub(crate) fn switch_first(db: &Connection, object: u64, first: u32) -> Result<bool, Fault> {
    let row = params![object.cast_signed(), first, CURRENT];
    let sql = "DELETE FROM copy WHERE object = ?1 AND element = ?2 AND state = ?3";
    if db.prepare_cached(sql)?.execute(row)? == 0 {
        return Ok(false);
    }
    for sql in [
        "UPDATE version SET element = ?2 WHERE object = ?1",
        "UPDATE inode SET element = ?2 WHERE object = ?1 AND ino = (SELECT ino FROM version WHERE object = ?1)",
    ] {
        db.prepare_cached(sql)?
            .execute(params![object.cast_signed(), first])?;
    }
    Ok(true)
}

/// Has one copy of an object removed, or an object that no version is.
pub(crate) fn remove_copy(
    db: &Connection,
    object: u64,
    element: u32,
    now: i64,
) -> Result<(), Fault> {
    let row = params![object.cast_signed(), element, now];
    db.prepare_cached("DELETE FROM copy WHERE object = ?1 AND element = ?2")?
        .execute(params![object.cast_signed(), element])?;
    db.prepare_cached(
        "INSERT OR IGNORE INTO removal(object, element, queued) VALUES (?1, ?2, ?3)",
    )?
    .execute(row)?;
    Ok(())
}
