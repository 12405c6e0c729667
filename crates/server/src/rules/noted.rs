//! Notes about rules on nodes, from which a lost server database is recovered. The notes have inode numbers that no file has. Next:
//! `server/src/notes.rs`, which sends them.

use crate::jobs::store::{json, parse};
use crate::names::{Fault, notes};
use rusqlite::{Connection, OptionalExtension as _, params};
use std::collections::BTreeMap;
use tidemill_wire::v1::{NameNote, NamePlace, RuleNote};

/// First inode number for notes about rules. Inode numbers of files never reach this number, and nodes store 60 bits.
const FIRST: u64 = 1 << 59;

/// Records that a rule was changed or removed, so that nodes receive a note.
pub(super) fn changed(db: &Connection, rule: u64) -> Result<(), Fault> {
    notes::changed_for_all(db, FIRST + rule)
}

/// Returns the note for an inode number that represents a rule; `None` for the inode number of a file.
pub(crate) fn note(db: &Connection, ino: u64) -> Result<Option<NameNote>, Fault> {
    let Some(rule) = ino.checked_sub(FIRST) else {
        return Ok(None);
    };
    let sql = "SELECT uid, gid, groups, revision, for_all, paused, changed, name, source, text, directory FROM rule WHERE rule = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        let name: String = row.get(7)?;
        let place = NamePlace {
            parent: 0,
            name: name.clone().into_bytes(),
        };
        let groups: String = row.get(2)?;
        let kept = RuleNote {
            rule,
            revision: row.get::<_, i64>(3)?.cast_unsigned(),
            for_all: row.get(4)?,
            paused: row.get(5)?,
            changed: row.get(6)?,
            name,
            source: row.get(8)?,
            text: row.get(9)?,
            directory: row.get::<_, i64>(10)?.cast_unsigned(),
            groups: Vec::new(),
        };
        let note = NameNote {
            ino,
            uid: row.get(0)?,
            gid: row.get(1)?,
            places: vec![place],
            ..NameNote::default()
        };
        Ok((note, kept, groups))
    };
    let found = statement.query_row([rule.cast_signed()], read).optional()?;
    let Some((mut note, mut kept, groups)) = found else {
        // The rule was removed.
        let note = NameNote::default();
        return Ok(Some(NameNote { ino, ..note }));
    };
    kept.groups = parse(&groups, "groups of rule", rule)?;
    note.rule = Some(kept);
    Ok(Some(note))
}

/// Whether a note is about a rule.
pub(crate) fn is_rule(note: &NameNote) -> bool {
    note.ino >= FIRST
}

/// Returns the number of the rule that a note describes.
pub(crate) fn number(note: &NameNote) -> u64 {
    note.ino.saturating_sub(FIRST)
}

/// Stores the rules from the last note of each rule. Returns their number, and the names of the rules whose directory does not exist.
pub(crate) fn bring_back<'a>(
    db: &Connection,
    notes: impl Iterator<Item = &'a NameNote>,
) -> Result<(usize, Vec<String>), Fault> {
    let mut last: BTreeMap<u64, &NameNote> = BTreeMap::new();
    for note in notes.filter(|note| is_rule(note)) {
        let known = last.entry(note.ino).or_insert(note);
        if note.change > known.change {
            *known = note;
        }
    }
    let (mut count, mut left) = (0, Vec::new());
    for note in last.values() {
        let Some(rule) = &note.rule else { continue };
        let sql = "INSERT OR IGNORE INTO rule SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 \
                   WHERE ?12 = 0 OR EXISTS (SELECT 1 FROM xattr WHERE ino = ?12 AND name = CAST('user.tidemill.rule' AS BLOB) \
                   AND CAST(value AS TEXT) = ?11)";
        let kept = db.prepare_cached(sql)?.execute(params![
            rule.rule.cast_signed(),
            note.uid,
            note.gid,
            json(&rule.groups),
            rule.name,
            rule.revision.cast_signed(),
            rule.for_all,
            rule.paused,
            rule.changed,
            rule.source,
            rule.text,
            rule.directory.cast_signed(),
        ])?;
        count += kept;
        if kept == 0 {
            left.push(rule.name.clone());
        }
    }
    Ok((count, left))
}
