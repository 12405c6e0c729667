//! Tables of rules. This module reads and writes the tables within transactions of its callers.

use super::{MatchState, StoredRule, batches, directory, noted};
use crate::jobs::store::{json, parse};
use crate::names::shared::NamesShared;
use crate::names::transaction::path_of;
use crate::names::{Caller, Fault, ids};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;
use tidemill_client::users;
use tidemill_lang::rule::Rule;
use tidemill_wire::v1;

/// Maximum number of rule runs deleted in one transaction.
const FORGET_MAX: i64 = 10_000;

/// Returns all readable rules, in the order of their numbers. Rules in `known` that have not changed are not read again.
pub(super) fn load(
    db: &Connection,
    known: &[Arc<StoredRule>],
) -> Result<Vec<Arc<StoredRule>>, Fault> {
    let sql = "SELECT rule, uid, gid, groups, revision, for_all, paused, source, text, changed, directory FROM rule ORDER BY rule";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let id = row.get::<_, i64>(0)?.cast_unsigned();
        let (source, text): (String, String) = (row.get(7)?, row.get(8)?);
        let directory = row.get::<_, i64>(10)?.cast_unsigned();
        let path = match directory {
            0 => None,
            directory => Some((directory, path_of(db, directory)?)),
        };
        let known = known.iter().find(|kept| kept.id == id);
        let rule = match read((&source, &text), path, known) {
            Ok(rule) => rule,
            Err(error) => {
                tracing::error!(rule = id, error, "a rule can't be read and does nothing");
                continue;
            }
        };
        let groups: String = row.get(3)?;
        all.push(Arc::new(StoredRule {
            id,
            owner: Caller {
                uid: row.get(1)?,
                gid: row.get(2)?,
                groups: parse(&groups, "groups of rule", id)?,
                checked: false,
                administrator: true,
            },
            revision: row.get::<_, i64>(4)?.cast_unsigned(),
            for_all: row.get(5)?,
            paused: row.get(6)?,
            source,
            text,
            changed: row.get(9)?,
            directory,
            rule,
        }));
    }
    Ok(all)
}

/// Reads a rule from a row. With `directory`, the rule belongs to that directory, whose present path is given.
fn read(
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
pub(super) fn put(db: &Connection, kept: &StoredRule, before: Option<u64>) -> Result<u64, Fault> {
    let row = |id: u64| {
        let owner = &kept.owner;
        let sql = "INSERT OR REPLACE INTO rule VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        db.prepare_cached(sql)?.execute(params![
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
        ])
    };
    let id = match before {
        Some(id) => id,
        None => ids::reserve(db, "rule", 1)?,
    };
    row(id)?;
    noted::changed(db, id)?;
    Ok(id)
}

pub(super) fn pause(db: &Connection, rule: u64, paused: bool) -> Result<(), Fault> {
    let sql = "UPDATE rule SET paused = ?2 WHERE rule = ?1";
    db.prepare_cached(sql)?
        .execute(params![rule.cast_signed(), paused])?;
    noted::changed(db, rule)
}

/// Whether jobs of removed rules still run.
pub(super) fn any_left(db: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM rule_job WHERE open = 1 AND rule NOT IN (SELECT rule FROM rule)";
    Ok(db.prepare_cached(sql)?.exists([])?)
}

/// Deletes a rule; [`forget`] deletes its rule runs. Jobs that the rule has started continue.
pub(super) fn remove(db: &Connection, rule: u64) -> Result<(), Fault> {
    for sql in [
        "DELETE FROM rule WHERE rule = ?1",
        "DELETE FROM rule_walk WHERE rule = ?1",
        // Mapping jobs stay open until they have ended, as their inputs may be abandoned.
        "UPDATE rule_job SET open = 0 WHERE rule = ?1 AND open = 1 AND EXISTS (SELECT 1 FROM batch \
         WHERE batch.job = rule_job.job AND batch.job != 0)",
        "DELETE FROM batch WHERE rule = ?1",
    ] {
        db.prepare_cached(sql)?.execute([rule.cast_signed()])?;
    }
    noted::changed(db, rule)
}

/// Deletes some rule runs of a removed rule. Returns whether more may remain. Files that stayed only because of this rule, and that other
/// rules have mapped, may be deleted then. A rule run whose job still runs is deleted after the end of the job.
pub(super) fn forget(db: &Connection, rule: u64) -> Result<bool, Fault> {
    let some = "rule_run IN (SELECT rule_run FROM rule_run WHERE rule = ?1 AND NOT (state = 2 AND EXISTS \
                (SELECT 1 FROM rule_job WHERE rule_job.job = rule_run.job AND open = 1)) LIMIT ?2) \
                AND NOT EXISTS (SELECT 1 FROM rule WHERE rule.rule = ?1)";
    let sql = format!(
        "INSERT OR IGNORE INTO mapped SELECT object FROM rule_run WHERE {some} AND state NOT IN (?3, ?4, ?5) AND EXISTS \
         (SELECT 1 FROM rule_run AS other WHERE other.rule IN (SELECT rule FROM rule) AND other.object = rule_run.object)"
    );
    let (rule, most) = (rule.cast_signed(), FORGET_MAX);
    let [done, deleted, other] =
        [MatchState::Done, MatchState::Deleted, MatchState::Other].map(MatchState::number);
    let row = params![rule, most, done, deleted, other];
    db.prepare_cached(&sql)?.execute(row)?;
    let sql = format!("DELETE FROM rule_run WHERE {some}");
    let deleted = db.prepare_cached(&sql)?.execute(params![rule, most])?;
    Ok(deleted > 0)
}

/// Deletes some rule runs of removed rules. Returns whether more rule runs may remain.
pub(super) fn forget_deleted(db: &Connection) -> Result<bool, Fault> {
    let mut more = false;
    for rule in deleted(db)? {
        more |= forget(db, rule)?;
    }
    Ok(more)
}

/// Returns the removed rules that still have rule runs in the database.
pub(super) fn deleted(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT DISTINCT rule FROM rule_run WHERE rule NOT IN (SELECT rule FROM rule)";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
    let rules = rows.map(|rule| rule.map(i64::cast_unsigned));
    Ok(rules.collect::<Result<_, _>>()?)
}

/// Returns a rule in the form for clients; with its text and the counts of its runs if `whole` is set.
pub(super) fn shown(db: &Connection, kept: &StoredRule, whole: bool) -> Result<v1::Rule, Fault> {
    let mut rule = v1::Rule {
        rule: kept.id,
        name: kept.rule.name.clone(),
        uid: kept.owner.uid,
        revision: kept.revision,
        paused: kept.paused,
        for_all: kept.for_all,
        workdir: kept.rule.workdir.clone(),
        pattern: kept.rule.pattern.text().to_owned(),
        changed: kept.changed,
        of_directory: kept.directory != 0,
        ..v1::Rule::default()
    };
    let id = kept.id.cast_signed();
    let count = |sql: &str| -> Result<u32, Fault> {
        Ok(db.prepare_cached(sql)?.query_row([id], |row| row.get(0))?)
    };
    rule.hook = batches::shown(db, kept, whole)?;
    rule.jobs = count("SELECT count(*) FROM rule_job WHERE rule = ?1 AND open = 1")?;
    if !whole {
        return Ok(rule);
    }
    rule.text.clone_from(&kept.text);
    rule.walking = count("SELECT count(*) FROM rule_walk WHERE rule = ?1 OR rule = 0")? > 0;
    let sql = "SELECT state, count(*) FROM rule_run WHERE rule = ?1 GROUP BY state";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([id], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
    for row in rows {
        let (state, count) = row?;
        let name = MatchState::name_of(state).to_owned();
        rule.rule_runs.insert(name, count.cast_unsigned());
    }
    Ok(rule)
}

/// Returns rule runs of a rule before the rule run `before`, the last first.
pub(super) fn log(
    db: &Connection,
    rule: u64,
    (before, limit): (u64, u32),
    states: &[MatchState],
) -> Result<Vec<v1::RuleRun>, Fault> {
    let before = match before {
        0 => i64::MAX,
        before => i64::try_from(before).unwrap_or(i64::MAX),
    };
    let states: Vec<i64> = states.iter().map(|state| state.number()).collect();
    let sql = "SELECT rule_run, path, object, state, job, task, depth, queued, ended, error FROM rule_run \
               WHERE rule = ?1 AND rule_run < ?2 AND (?3 = '[]' OR state IN (SELECT value FROM json_each(?3))) \
               ORDER BY rule_run DESC LIMIT ?4";
    let mut statement = db.prepare_cached(sql)?;
    let key = params![rule.cast_signed(), before, json(&states), limit];
    let rows = statement.query_map(key, |row| {
        let id = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(at)?.cast_unsigned());
        Ok(v1::RuleRun {
            rule_run: id(0)?,
            path: row.get(1)?,
            object: id(2)?,
            state: MatchState::name_of(row.get(3)?).to_owned(),
            job: id(4)?,
            task: id(5)?,
            depth: row.get(6)?,
            queued: row.get(7)?,
            ended: row.get(8)?,
            error: row.get(9)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Queues failed runs of a rule again: all failed runs, or those of one path. Returns the number of queued runs.
pub(super) fn retry(
    db: &Connection,
    shared: &NamesShared,
    (rule, path): (u64, &str),
    now: i64,
) -> Result<u64, Fault> {
    batches::add_failed_runs(db, shared, (rule, path), now)?;
    // Of several failed versions of a path the first is queued, and the others follow it.
    let sql = "UPDATE rule_run SET state = ?4, error = '', job = 0, task = 0, ended = 0, depth = 0, queued = ?5 \
               WHERE rule = ?1 AND state IN (?6, ?7) AND (?2 = '' OR path = ?3)";
    let (failed, looped) = (MatchState::Failed.number(), MatchState::Loop.number());
    let count = db.prepare_cached(sql)?.execute(params![
        rule.cast_signed(),
        path,
        path,
        MatchState::Waiting.number(),
        now,
        failed,
        looped
    ])?;
    let sql = "UPDATE rule_run SET state = ?2 WHERE rule = ?1 AND state = ?3 AND NOT EXISTS (SELECT 1 FROM rule_run AS other \
               WHERE other.rule = ?1 AND other.path = rule_run.path AND other.state <= 2 \
               AND (other.state != ?3 OR other.rule_run < rule_run.rule_run))";
    db.prepare_cached(sql)?.execute(params![
        rule.cast_signed(),
        MatchState::Queued.number(),
        MatchState::Waiting.number()
    ])?;
    Ok(count as u64 + batches::retry(db, rule)?)
}

/// Returns the value of a query that returns at most one row; `None` without a row.
pub(super) fn one<T>(
    db: &Connection,
    sql: &str,
    key: impl rusqlite::Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, Fault> {
    Ok(db.prepare_cached(sql)?.query_row(key, read).optional()?)
}
