//! Rules as users added them, and the notes about rules on nodes, from which a lost server database is recovered. The notes have inode
//! numbers that no file has. Next: `server/src/notes.rs`, which sends the notes.

use super::{StoredRule, batches, directory, walks};
use crate::Connection;
use crate::jobs::records;
use crate::json::{json, parse};
use crate::paths::path_of;
use crate::query;
use crate::{Caller, Fault, ids, notes};
use rusqlite::{Params, params};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_client::users;
use tidemill_lang::rule::Rule;
use tidemill_wire::v1::{NameNote, NamePlace, RuleNote};

/// First inode number for notes about rules. Inode numbers of files never reach this number, and nodes store 60 bits.
const FIRST: u64 = 1 << 59;

/// Returns the rules that a clause of SQL selects, each with the user and group of its owner.
fn select(
    db: &Connection,
    clause: &str,
    key: impl Params,
) -> Result<Vec<(u32, u32, RuleNote)>, Fault> {
    let sql = format!(
        "SELECT uid, gid, groups, rule, revision, for_all, paused, changed, name, source, text, directory FROM rule {clause}"
    );
    let found: Vec<_> = query::rows(db, &sql, key, |row| {
        let groups: String = row.get(2)?;
        let note = RuleNote {
            rule: query::unsigned(row, 3)?,
            revision: query::unsigned(row, 4)?,
            for_all: row.get(5)?,
            paused: row.get(6)?,
            changed: row.get(7)?,
            name: row.get(8)?,
            source: row.get(9)?,
            text: row.get(10)?,
            directory: query::unsigned(row, 11)?,
            groups: Vec::new(),
        };
        Ok((row.get(0)?, row.get(1)?, groups, note))
    })?;
    let found = found.into_iter().map(|(uid, gid, groups, mut note)| {
        note.groups = parse(&groups, "groups of rule", note.rule)?;
        Ok((uid, gid, note))
    });
    found.collect()
}

/// Returns all readable rules, in the order of their numbers. Rules in `known` that have not changed are not read again.
pub(super) fn read(
    db: &Connection,
    known: &[Arc<StoredRule>],
) -> Result<Vec<Arc<StoredRule>>, Fault> {
    let mut rules = Vec::new();
    for (uid, gid, note) in select(db, "ORDER BY rule", [])? {
        let path = match note.directory {
            0 => None,
            directory => Some((directory, path_of(db, directory)?)),
        };
        let known = known.iter().find(|kept| kept.id == note.rule);
        let rule = match compile((&note.source, &note.text), path, known) {
            Ok(rule) => rule,
            Err(error) => {
                tracing::error!(
                    rule = note.rule,
                    error,
                    "a rule can't be read and does nothing"
                );
                continue;
            }
        };
        rules.push(Arc::new(StoredRule {
            id: note.rule,
            owner: Caller {
                uid,
                gid,
                groups: note.groups,
                checked: false,
                administrator: true,
            },
            revision: note.revision,
            for_all: note.for_all,
            paused: note.paused,
            source: note.source,
            text: note.text,
            changed: note.changed,
            directory: note.directory,
            rule,
        }));
    }
    Ok(rules)
}

/// Compiles the text of a rule. With `directory`, the rule belongs to that directory, whose present path is given.
fn compile(
    (source, text): (&str, &str),
    directory: Option<(u64, Option<Vec<u8>>)>,
    known: Option<&Arc<StoredRule>>,
) -> Result<Rule, String> {
    let path = match &directory {
        None => None,
        Some((ino, Some(path))) => Some((*ino, directory::shown_path(path)?)),
        Some((ino, None)) => return Err(format!("its directory, inode {ino}, was deleted")),
    };
    let same = |kept: &&Arc<StoredRule>| {
        let place = path.is_none_or(|(_, path)| kept.rule.workdir == path);
        kept.text == text && kept.source == source && place
    };
    if let Some(kept) = known.filter(same) {
        return Ok(kept.rule.clone());
    }
    let rule = match path {
        None => Rule::read(source, text),
        Some((ino, path)) => Rule::read_of_directory(source, text, path, &directory::name_of(ino)),
    };
    let mut rule = rule.map_err(|error| error.to_string())?;
    // Versions of users who do not exist any more trigger nothing.
    rule.conditions.find_users(users::uid);
    Ok(rule)
}

/// Stores a rule, which is new or replaces the rule with the number `before`. The replaced rule's number and log are kept.
pub fn put(db: &Connection, kept: &StoredRule, before: Option<u64>) -> Result<u64, Fault> {
    let id = match before {
        Some(id) => id,
        None => ids::reserve(db, "rule", 1)?,
    };
    let owner = &kept.owner;
    let sql =
        "INSERT OR REPLACE INTO rule VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    let row = params![
        id.cast_signed(),
        owner.uid,
        owner.gid,
        json(&owner.groups),
        kept.rule.name,
        kept.revision.cast_signed(),
        kept.for_all,
        kept.paused,
        kept.changed,
        kept.source,
        kept.text,
        kept.directory.cast_signed(),
    ];
    query::execute(db, sql, row)?;
    changed(db, id)?;
    Ok(id)
}

/// Pauses or resumes a rule.
pub fn pause(db: &Connection, rule: u64, paused: bool) -> Result<(), Fault> {
    let sql = "UPDATE rule SET paused = ?2 WHERE rule = ?1";
    query::execute(db, sql, params![rule.cast_signed(), paused])?;
    changed(db, rule)
}

/// Deletes a rule; [`super::runs::forget`] deletes its rule runs. Jobs that the rule has started continue.
pub(super) fn remove(db: &Connection, rule: u64) -> Result<(), Fault> {
    query::execute(db, "DELETE FROM rule WHERE rule = ?1", [rule.cast_signed()])?;
    walks::forget(db, rule)?;
    records::close_reductions(db, rule)?;
    batches::forget(db, rule)?;
    changed(db, rule)
}

/// Records that a rule was changed or removed, so that nodes receive a note.
fn changed(db: &Connection, rule: u64) -> Result<(), Fault> {
    notes::changed_for_all(db, FIRST + rule)
}

/// Returns the note for an inode number that represents a rule; `None` for the inode number of a file.
pub fn note(db: &Connection, ino: u64) -> Result<Option<NameNote>, Fault> {
    let Some(rule) = ino.checked_sub(FIRST) else {
        return Ok(None);
    };
    let found = select(db, "WHERE rule = ?1", [rule.cast_signed()])?.pop();
    // The rule may have been removed.
    let note = found.map(|(uid, gid, rule)| NameNote {
        uid,
        gid,
        places: vec![NamePlace {
            parent: 0,
            name: rule.name.clone().into_bytes(),
        }],
        rule: Some(rule),
        ..NameNote::default()
    });
    let note = note.unwrap_or_default();
    Ok(Some(NameNote { ino, ..note }))
}

/// Whether a note is about a rule.
pub fn is_rule(note: &NameNote) -> bool {
    note.ino >= FIRST
}

/// Returns the number of the rule that a note describes.
pub fn number(note: &NameNote) -> u64 {
    note.ino.saturating_sub(FIRST)
}

/// Stores the rules from the last note of each rule. Returns their number, and the names of the rules whose directory does not exist.
pub fn restore<'a>(
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
        let row = params![
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
        ];
        let kept = query::changed(db, sql, row)?;
        count += kept;
        if kept == 0 {
            left.push(rule.name.clone());
        }
    }
    Ok((count, left))
}
