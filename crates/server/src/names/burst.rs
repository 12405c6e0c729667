//! The burst tier: which objects lie on its elements (`burst`), so that they are copied to others in time, and go from there when
//! room is wanted. All else is what is done for copies: an object there is none of those that are wanted
//! ([`tidemill_core::copies::CopyState::Burst`]), so one is made elsewhere, and a row of `move` has it removed.

use super::attribute::FOLDER_DURABLE;
use super::copies::{BURST, CURRENT, MOVES, NOWHERE, STAGE, moves_at};
use super::fault::Fault;
use super::node::Node;
use super::promises;
use super::shared::Shared;
use super::transaction::Tx;
use parking_lot::RwLock;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_core::burst::{Durable, Fill, Limits};
use tidemill_core::layout::RESERVE_BYTES;
use tidemill_wire::convert::BURST as TIER;
use tidemill_wire::v1::{self, name_result::Result as Answer};

/// How far an object is (`burst.state`): it waits for its time, is to be copied now, is elsewhere, too.
pub(super) const WAITS: i64 = 0;
pub(super) const DUE: i64 = 1;
const DRAINED: i64 = 2;
/// What was sealed before that is counted in what an element says.
pub(super) const HEARD_NS: i64 = 2 * 1_000_000_000;
/// Objects that are had go, or drain sooner, at once.
const OBJECTS_MAX: u32 = 4096;

/// Which elements are of the tier. Once one was known, whether it is up or not.
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    elements: RwLock<BTreeSet<u32>>,
    any: AtomicBool,
    limits: RwLock<Limits>,
    /// Something was promised since the start, or before.
    promised: AtomicBool,
}

impl Bursts {
    pub(crate) fn set(&self, elements: BTreeSet<u32>) {
        if !elements.is_empty() {
            self.any.store(true, Ordering::Relaxed);
        }
        *self.elements.write() = elements;
    }

    /// Whether there are such elements, or have been.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn has(&self, element: u32) -> bool {
        self.any() && self.elements.read().contains(&element)
    }

    /// Percent of its processors that maps leave to who writes on an element.
    pub(crate) fn leaves(&self, element: u32) -> u8 {
        match self.has(element) {
            true => self.limits().share,
            false => 0,
        }
    }

    /// Whether some of their room may be promised.
    pub(crate) fn promised(&self) -> bool {
        self.promised.load(Ordering::Relaxed)
    }

    pub(crate) fn set_promised(&self) {
        self.promised.store(true, Ordering::Relaxed);
    }

    pub(crate) fn limits(&self) -> Limits {
        *self.limits.read()
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        *self.limits.write() = limits;
    }
}

impl Tx<'_> {
    /// An object that was just sealed lies on an element of the burst tier: it is to be copied from there, some time later, and
    /// still later if it may go before that.
    pub(super) fn staged(&self, object: u64, element: u32, held_ns: i64) -> Result<(), Fault> {
        let object = object.cast_signed();
        let sql = "INSERT OR IGNORE INTO burst SELECT object, ?2, size, ?3, 0, 0 FROM held WHERE object = ?1";
        self.db
            .prepare_cached(sql)?
            .execute(params![object, element, self.now])?;
        let after = self.shared.bursts.limits().after.0;
        let at = self
            .now
            .saturating_add(i64::try_from(after).unwrap_or(i64::MAX))
            .saturating_add(held_ns);
        moves_at(self.db, object, at)
    }

    /// Whether who syncs a folder waits for what is below it to drain.
    pub(super) fn drains(&self, op: &v1::Drains) -> Result<Answer, Fault> {
        let waits = self.shared.bursts.any() && self.waits_for_drain(op.ino)?;
        let value = if waits {
            b"drained".to_vec()
        } else {
            Vec::new()
        };
        Ok(Answer::Bytes(v1::Bytes { value }))
    }

    /// Whether a folder, or the nearest above it that says anything, says so.
    pub(crate) fn waits_for_drain(&self, ino: u64) -> Result<bool, Fault> {
        let folder = Node::get(self.db, ino)?;
        let said = self.folder_attribute::<Durable>(&folder, FOLDER_DURABLE)?;
        Ok(folder.is_dir() && said == Some(Durable::Drained))
    }

    /// Whether an object is in the burst tier: it stays there, if it was about to go. Gives the bytes that could have gone.
    pub(crate) fn stays_in_burst(&self, object: u64) -> Result<Option<u64>, Fault> {
        let object = object.cast_signed();
        let sql = "SELECT CASE state WHEN ?2 THEN size ELSE 0 END FROM burst WHERE object = ?1";
        let mut statement = self.db.prepare_cached(sql)?;
        let bytes: Option<i64> = statement
            .query_row([object, DRAINED], |row| row.get(0))
            .optional()?;
        if bytes.is_some() {
            let sql = "DELETE FROM move WHERE object = ?1 AND why = ?2";
            let row = params![object, BURST];
            self.db.prepare_cached(sql)?.execute(row)?;
            let sql = "UPDATE burst SET at = ?2 WHERE object = ?1 AND state = ?3";
            let row = params![object, self.now, DRAINED];
            self.db.prepare_cached(sql)?.execute(row)?;
        }
        Ok(bytes.map(i64::cast_unsigned))
    }

    /// Which element of the burst tier an object is about to be copied to.
    pub(crate) fn comes_to_burst(&self, object: u64) -> Result<Option<u32>, Fault> {
        let sql = "SELECT target FROM move WHERE source = ?1 AND object = ?2";
        let mut statement = self.db.prepare_cached(sql)?;
        let row = params![NOWHERE, object.cast_signed()];
        Ok(statement.query_row(row, |row| row.get(0)).optional()?)
    }

    /// Has an object that is stored copied to an element of the burst tier.
    pub(crate) fn bring(&self, object: u64, element: u32) -> Result<(), Fault> {
        let object = object.cast_signed();
        let sql = "INSERT OR IGNORE INTO move SELECT ?2, object, ?3, size, ?4 FROM held WHERE object = ?1";
        let row = params![object, NOWHERE, element, STAGE];
        self.db.prepare_cached(sql)?.execute(row)?;
        moves_at(self.db, object, self.now)
    }

    /// Bytes that are about to be copied to an element of the burst tier.
    pub(crate) fn coming_to_burst(&self, element: u32) -> Result<u64, Fault> {
        let sql = "SELECT coalesce(sum(size), 0) FROM move WHERE why = ?1 AND target = ?2";
        let mut statement = self.db.prepare_cached(sql)?;
        let bytes: i64 = statement.query_row([STAGE, element.into()], |row| row.get(0))?;
        Ok(bytes.cast_unsigned())
    }

    /// Bytes on an element of the tier that are stored, and will go if room is wanted.
    pub(crate) fn may_go(&self, element: u32) -> Result<u64, Fault> {
        let sql = "SELECT coalesce(sum(size), 0) FROM burst WHERE element = ?1 AND state = ?2";
        let mut statement = self.db.prepare_cached(sql)?;
        let bytes: i64 = statement.query_row([i64::from(element), DRAINED], |row| row.get(0))?;
        Ok(bytes.cast_unsigned())
    }

    /// Has the oldest of what is stored go from an element until so many bytes are free.
    pub(crate) fn give_room(&self, element: u32, mut bytes: u64) -> Result<(), Fault> {
        let sql = "SELECT object, size FROM burst WHERE element = ?1 AND state = ?2 ORDER BY at, object LIMIT ?3";
        let mut statement = self.db.prepare_cached(sql)?;
        let oldest = statement.query_map(params![element, DRAINED, OBJECTS_MAX], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
        for (object, size) in oldest.collect::<Result<Vec<_>, _>>()? {
            if bytes == 0 {
                break;
            }
            bytes = bytes.saturating_sub(size);
            goes(self.db, object, element, self.now)?;
        }
        Ok(())
    }

    /// Has what lies in the burst tier of these objects drained now, and go from there if that is wanted; counts what has still to.
    pub(crate) fn drain_now(
        &self,
        objects: &[(u64, u64)],
        free: bool,
        reply: &mut v1::StageReply,
    ) -> Result<(), Fault> {
        let sql = "SELECT element, state FROM burst WHERE object = ?1";
        let mut lies = self.db.prepare_cached(sql)?;
        for &(object, size) in objects {
            let object = object.cast_signed();
            let found = lies.query_row([object], |row| {
                Ok((row.get::<_, u32>(0)?, row.get::<_, i64>(1)?))
            });
            let Some((element, state)) = found.optional()? else {
                continue;
            };
            if state != DRAINED {
                reply.objects += 1;
                reply.bytes += size;
                moves_at(self.db, object, self.now)?;
                if !self.shared.is_up(element) {
                    reply.away = reply.away.max(element + 1);
                }
            } else if free {
                reply.held += 1;
                goes(self.db, object, element, self.now)?;
            }
        }
        Ok(())
    }
}

/// An object that is elsewhere, too, is to go from an element.
fn goes(db: &Connection, object: i64, element: u32, now: i64) -> Result<(), Fault> {
    let sql =
        "INSERT OR IGNORE INTO move SELECT ?2, object, NULL, size, ?3 FROM burst WHERE object = ?1";
    db.prepare_cached(sql)?
        .execute(params![object, element, BURST])?;
    moves_at(db, object, now)
}

/// There are as many copies of an object elsewhere as are wanted.
pub(crate) fn drained(db: &Connection, object: i64) -> Result<(), Fault> {
    let sql = "UPDATE burst SET state = ?2 WHERE object = ?1 RETURNING element, goes";
    let mut statement = db.prepare_cached(sql)?;
    let lies = statement.query_row([object, DRAINED], |row| {
        Ok((row.get::<_, u32>(0)?, row.get::<_, bool>(1)?))
    });
    match lies.optional()? {
        Some((element, true)) => goes(db, object, element, 0),
        _ => Ok(()),
    }
}

/// An object is to go from the burst tier as soon as it is elsewhere, too.
pub(super) fn goes_when_drained(db: &Connection, object: i64) -> Result<(), Fault> {
    let sql = "UPDATE burst SET goes = 1 WHERE object = ?1 RETURNING element, state";
    let mut statement = db.prepare_cached(sql)?;
    let lies = statement.query_row([object], |row| {
        Ok((row.get::<_, u32>(0)?, row.get::<_, i64>(1)?))
    });
    match lies.optional()? {
        Some((element, DRAINED)) => goes(db, object, element, 0),
        _ => Ok(()),
    }
}

/// A copy has come to an element, perhaps because somebody wanted it in the burst tier.
pub(crate) fn brought(db: &Connection, object: i64, element: u32, now: i64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO burst SELECT object, target, size, ?3, ?4, 0 FROM move \
               WHERE source = ?5 AND object = ?1 AND target = ?2";
    let row = params![object, element, now, DRAINED, NOWHERE];
    db.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// An object is not on an element any more.
pub(crate) fn left(db: &Connection, object: i64, element: u32) -> Result<(), Fault> {
    let sql = "DELETE FROM burst WHERE object = ?1 AND element = ?2";
    db.prepare_cached(sql)?.execute(params![object, element])?;
    Ok(())
}

/// An element of the tier, and what its device has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) element: u32,
    pub(crate) bytes: u64,
    /// Of the whole device.
    pub(crate) capacity: u64,
}

/// Bytes that are to go from an element so that there is room. What others have on its device can't go, and is no part of it.
pub(crate) fn to_go(
    db: &Connection,
    limits: Limits,
    (free, now): (Free, i64),
) -> Result<u64, Fault> {
    let aside = promises::aside(db, free.element, now)?;
    let fill = Fill {
        capacity: free.capacity,
        used: free.capacity.saturating_sub(free.bytes),
        going: 0,
        aside,
        least: RESERVE_BYTES,
    };
    // Known without counting what is there: others' files make it fuller.
    if limits.to_go(fill) == 0 {
        return Ok(0);
    }
    let sum = |sql: &str| -> Result<u64, Fault> {
        let mut statement = db.prepare_cached(sql)?;
        let sum: i64 = statement.query_row([free.element], |row| row.get(0))?;
        Ok(sum.cast_unsigned())
    };
    let held = sum("SELECT coalesce(sum(size), 0) FROM burst WHERE element = ?1")?;
    let going = sum("SELECT coalesce(sum(size), 0) FROM move WHERE source = ?1")?;
    // They are no longer counted as held, and are there still.
    let removed = sum(
        "SELECT coalesce(sum(held.size), 0) FROM removal CROSS JOIN held ON held.object = removal.object \
         WHERE removal.element = ?1",
    )?;
    let has = held.saturating_add(removed);
    let capacity = has.saturating_add(free.bytes);
    Ok(limits.to_go(Fill {
        capacity,
        used: has,
        going: going.saturating_add(removed),
        ..fill
    }))
}

/// Makes room on an element: of what has drained the oldest goes, and if that is not enough, what has not drains now.
pub(crate) fn make_room(
    db: &Connection,
    shared: &Shared,
    free: Free,
    now: i64,
) -> Result<(), Fault> {
    let mut wanted = to_go(db, shared.bursts.limits(), (free, now))?;
    let sql = "SELECT object, size FROM burst WHERE element = ?1 AND state = ?2 \
               AND NOT EXISTS (SELECT 1 FROM move WHERE move.object = burst.object) ORDER BY at, object LIMIT ?3";
    for state in [DRAINED, WAITS] {
        let mut statement = db.prepare_cached(sql)?;
        let oldest = statement.query_map(params![free.element, state, OBJECTS_MAX], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
        for (object, size) in oldest.collect::<Result<Vec<_>, _>>()? {
            if wanted == 0 {
                return Ok(());
            }
            wanted = wanted.saturating_sub(size);
            match state {
                DRAINED => goes(db, object, free.element, now)?,
                _ => sooner(db, object, now)?,
            }
        }
    }
    Ok(())
}

/// What waits for its time on an element drains now, the oldest first, until that makes so many bytes.
pub(crate) fn drain_sooner(
    db: &Connection,
    (element, mut bytes): (u32, u64),
    now: i64,
) -> Result<(), Fault> {
    let sql = "SELECT object, size FROM burst WHERE element = ?1 AND state = ?2 ORDER BY at, object LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let oldest = statement.query_map(params![element, WAITS, OBJECTS_MAX], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
    })?;
    for (object, size) in oldest.collect::<Result<Vec<_>, _>>()? {
        if bytes == 0 {
            break;
        }
        bytes = bytes.saturating_sub(size);
        sooner(db, object, now)?;
    }
    Ok(())
}

/// What waits for its time drains now.
fn sooner(db: &Connection, object: i64, now: i64) -> Result<(), Fault> {
    let sql = "UPDATE burst SET state = ?2 WHERE object = ?1";
    db.prepare_cached(sql)?.execute([object, DUE])?;
    moves_at(db, object, now)
}

/// An element came: if it is of the tier and was not, or is known anew, it may have versions already.
pub(crate) fn met(
    db: &Connection,
    (known, came): (Option<&v1::Element>, &v1::Element),
    now: i64,
) -> Result<(), Fault> {
    let (was, is) = (
        known.is_some_and(|known| known.tier == TIER),
        came.tier == TIER,
    );
    match (was, is) {
        (false, true) => list(db, came.element, now),
        (true, false) => stores(db, came.element, now),
        _ => Ok(()),
    }
}

/// What an element has counts from now on: it is no longer of the tier.
fn stores(db: &Connection, element: u32, now: i64) -> Result<(), Fault> {
    let sql = "DELETE FROM move WHERE (source = ?1 AND why = ?2) OR (target = ?1 AND why = ?3)";
    db.execute(sql, params![element, BURST, STAGE])?;
    let sql = "INSERT INTO short SELECT object, ?3, ?2 FROM burst WHERE element = ?1 \
               ON CONFLICT DO UPDATE SET at = min(at, ?2)";
    db.execute(sql, params![element, now, MOVES])?;
    for sql in [
        "DELETE FROM burst WHERE element = ?1",
        "DELETE FROM promise WHERE element = ?1",
    ] {
        db.execute(sql, [element])?;
    }
    Ok(())
}

fn list(db: &Connection, element: u32, now: i64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO burst SELECT object, ?1, size, ?2, 0, 0 FROM held WHERE element = ?1 AND removed = 0 \
               UNION ALL SELECT copy.object, ?1, held.size, ?2, 0, 0 FROM copy CROSS JOIN held ON held.object = copy.object \
               WHERE copy.element = ?1 AND copy.state = ?3 AND held.removed = 0";
    db.execute(sql, params![element, now, CURRENT])?;
    let sql = "INSERT INTO short SELECT object, ?3, ?2 FROM burst WHERE element = ?1 AND state != 2 \
               ON CONFLICT DO UPDATE SET at = min(at, ?2)";
    db.execute(sql, params![element, now, MOVES])?;
    Ok(())
}

/// What an element of the tier holds, for people.
pub(crate) fn told(db: &Connection, element: u32, now: i64) -> Result<v1::Staged, Fault> {
    let (promised, promised_left) = promises::told(db, element, now)?;
    let sql = "SELECT count(*), coalesce(sum(size), 0), coalesce(sum(state = 2), 0), \
               coalesce(sum(CASE WHEN state = 2 THEN 0 ELSE size END), 0), coalesce(min(CASE WHEN state = 2 THEN NULL ELSE at END), 0) \
               FROM burst WHERE element = ?1";
    let mut statement = db.prepare_cached(sql)?;
    Ok(statement.query_row([element], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok(v1::Staged {
            objects: number(0)?,
            bytes: number(1)?,
            drained: number(2)?,
            bytes_left: number(3)?,
            oldest: row.get(4)?,
            promised,
            promised_left,
        })
    })?)
}

/// The objects of a version that was just recorded, and where they are.
pub(super) fn places(db: &Connection, node: &Node) -> Result<Vec<(u64, i64)>, Fault> {
    if !node.has_parts() {
        return Ok(vec![(node.object, node.element)]);
    }
    let parts = super::parts::parts(db, node.object)?.into_iter();
    let parts = parts.flat_map(|(_, parts)| parts);
    Ok(parts
        .map(|part| (part.object, part.element.into()))
        .collect())
}
