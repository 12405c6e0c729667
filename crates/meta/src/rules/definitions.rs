//! Rules as users added them.

use super::{StoredRule, batches, directory, walks};
use crate::Connection;
use crate::jobs::records;
use crate::json::{json, parse};
use crate::paths::path_of;
use crate::query;
use crate::{Caller, Fault, ids};
use rusqlite::{Params, params};
use std::sync::Arc;
use tidemill_client::users;
use tidemill_lang::rule::Rule;

/// Row of the table `rule`, without the owner.
struct RuleRow {
    rule: u64,
    revision: u64,
    for_all: bool,
    paused: bool,
    changed: i64,
    source: String,
    text: String,
    /// Inode of the directory whose attribute the rule is; 0 if the rule is no attribute.
    directory: u64,
    /// Supplementary groups of the owner.
    groups: Vec<u32>,
}

/// Returns the rules that a clause of SQL selects, each with the user and group of its owner.
fn select(
    db: &Connection,
    clause: &str,
    key: impl Params,
) -> Result<Vec<(u32, u32, RuleRow)>, Fault> {
    let sql = format!(
        "SELECT uid, gid, groups, rule, revision, for_all, paused, changed, source, text, directory FROM rule {clause}"
    );
    let found: Vec<_> = query::rows(db, &sql, key, |row| {
        let groups: String = row.get(2)?;
        let rule = RuleRow {
            rule: query::unsigned(row, 3)?,
            revision: query::unsigned(row, 4)?,
            for_all: row.get(5)?,
            paused: row.get(6)?,
            changed: row.get(7)?,
            source: row.get(8)?,
            text: row.get(9)?,
            directory: query::unsigned(row, 10)?,
            groups: Vec::new(),
        };
        Ok((row.get(0)?, row.get(1)?, groups, rule))
    })?;
    let found = found.into_iter().map(|(uid, gid, groups, mut row)| {
        row.groups = parse(&groups, "groups of rule", row.rule)?;
        Ok((uid, gid, row))
    });
    found.collect()
}

/// Returns all readable rules, in the order of their numbers. Rules in `known` that have not changed are not read again.
pub(super) fn read(
    db: &Connection,
    known: &[Arc<StoredRule>],
) -> Result<Vec<Arc<StoredRule>>, Fault> {
    let mut rules = Vec::new();
    for (uid, gid, row) in select(db, "ORDER BY rule", [])? {
        let path = match row.directory {
            0 => None,
            directory => Some((directory, path_of(db, directory)?)),
        };
        let known = known.iter().find(|kept| kept.id == row.rule);
        let rule = match compile((&row.source, &row.text), path, known) {
            Ok(rule) => rule,
            Err(error) => {
                tracing::error!(
                    rule = row.rule,
                    error,
                    "a rule can't be read and does nothing"
                );
                continue;
            }
        };
        rules.push(Arc::new(StoredRule {
            id: row.rule,
            owner: Caller {
                uid,
                gid,
                groups: row.groups,
                checked: false,
                administrator: true,
            },
            revision: row.revision,
            for_all: row.for_all,
            paused: row.paused,
            source: row.source,
            text: row.text,
            changed: row.changed,
            directory: row.directory,
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
    Ok(id)
}

/// Pauses or resumes a rule.
pub fn pause(db: &Connection, rule: u64, paused: bool) -> Result<(), Fault> {
    let sql = "UPDATE rule SET paused = ?2 WHERE rule = ?1";
    query::execute(db, sql, params![rule.cast_signed(), paused])
}

/// Deletes a rule; [`super::runs::forget`] deletes its rule runs. Jobs that the rule has started continue.
pub(super) fn remove(db: &Connection, rule: u64) -> Result<(), Fault> {
    query::execute(db, "DELETE FROM rule WHERE rule = ?1", [rule.cast_signed()])?;
    walks::forget(db, rule)?;
    records::close_reductions(db, rule)?;
    batches::forget(db, rule)
}
