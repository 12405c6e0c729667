//! Files that are removed after map tasks have read them, as hooks with `inputs = "delete"` require. A file is removed only after every
//! rule run for its version has succeeded, with the rights of the hook's owner. Lineage records the hook and task that caused the removal.

use super::runs::{LEFT, MatchState};
use super::{StoredRule, runs};
use crate::Connection;
use crate::Fault;
use crate::placement::burst;
use crate::query::{execute, find, rows, unsigned};
use crate::shared::NamesShared;
use crate::transaction::{Change, Tx};
use crate::vnode::InodeRecord;
use rusqlite::{OptionalExtension as _, params};
use tidemill_lang::rule::hook::InputAction;
use tidemill_wire::v1;

/// Maximum number of versions processed in one transaction.
const OBJECTS_MAX: u32 = 200;
/// Maximum delay in nanoseconds of the stage-out of a version that may be removed soon.
const HELD_NS: i64 = 600 * 1_000_000_000;

/// A rule run for a version, with the rule that it belongs to.
struct TriggeredRun<'a> {
    kept: &'a StoredRule,
    rule_run: u64,
    state: MatchState,
    task: u64,
    ino: u64,
    path: String,
}

/// Processes versions whose rule runs have ended. Returns whether more versions may follow, and the changes in the namespace.
pub fn page(db: &Connection, shared: &NamesShared, now: i64) -> Result<(bool, Vec<Change>), Fault> {
    let sql = "SELECT object FROM mapped LIMIT ?1";
    let objects: Vec<u64> = rows(db, sql, [OBJECTS_MAX], |row| unsigned(row, 0))?;
    let mut changes = Vec::new();
    for object in &objects {
        changes.extend(look(db, shared, *object, now)?);
        let sql = "DELETE FROM mapped WHERE object = ?1";
        execute(db, sql, [object.cast_signed()])?;
    }
    Ok((objects.len() == OBJECTS_MAX as usize, changes))
}

fn look(
    db: &Connection,
    shared: &NamesShared,
    object: u64,
    now: i64,
) -> Result<Vec<Change>, Fault> {
    let rules = shared.rules.all();
    let mut all = Vec::new();
    let sql =
        "SELECT rule_run, state, task, ino, path FROM rule_run WHERE rule = ?1 AND object = ?2";
    let mut statement = db.sql.prepare_cached(sql)?;
    for kept in rules.iter() {
        let key = [kept.id.cast_signed(), object.cast_signed()];
        let found = statement.query_row(key, |row| {
            Ok(TriggeredRun {
                kept,
                rule_run: unsigned(row, 0)?,
                state: row.get(1)?,
                task: unsigned(row, 2)?,
                ino: unsigned(row, 3)?,
                path: row.get(4)?,
            })
        });
        all.extend(found.optional()?);
    }
    // A rule that was refused, or has still to see the version, may need it later. The end of that rule run checks again.
    let well = |one: &TriggeredRun<'_>| {
        ![
            MatchState::Queued,
            MatchState::Waiting,
            MatchState::Running,
            MatchState::Failed,
            MatchState::Loop,
        ]
        .contains(&one.state)
    };
    if !all.iter().all(well) {
        return Ok(Vec::new());
    }
    let mut done = all.iter().filter(|one| one.state == MatchState::Done);
    // Hooks may have mapped the version under several names; one name still leads to it.
    for one in done
        .clone()
        .filter(|one| one.kept.input_action() == InputAction::Delete)
    {
        let changes = drop_file(db, shared, (object, one), now)?;
        if !changes.is_empty() {
            return Ok(changes);
        }
    }
    if done.any(|one| one.kept.input_action() == InputAction::Evict)
        && let Some(one) = all.first()
        && let Some(vnode) = InodeRecord::find(db, one.ino)?
        && vnode.object == object
    {
        for (object, _) in burst::places(db, &vnode)? {
            burst::evict_when_staged_out(db, object)?;
        }
    }
    Ok(Vec::new())
}

/// Removes a file's name if the file's present version is the mapped version and no client writes the next version.
fn drop_file(
    db: &Connection,
    shared: &NamesShared,
    (object, one): (u64, &TriggeredRun<'_>),
    now: i64,
) -> Result<Vec<Change>, Fault> {
    let owner = &one.kept.owner;
    let mut tx = Tx::new(db, shared, owner, 0, now);
    let vnode = match tx.resolve(one.path.as_bytes(), false) {
        Ok(vnode) => vnode,
        Err(fault) if fault.is_database_failure() => return Err(fault),
        Err(_) => return Ok(Vec::new()),
    };
    let (directory, name) = one.path.rsplit_once('/').unwrap_or(("", &one.path));
    if vnode.ino != one.ino || vnode.object != object || vnode.writing != 0 {
        return Ok(Vec::new());
    }
    let directory = if directory.is_empty() { "/" } else { directory };
    let parent = tx.resolve(directory.as_bytes(), true);
    let gone = parent.and_then(|parent| {
        tx.unlink(&v1::Unlink {
            parent: parent.ino,
            name: name.as_bytes().to_vec(),
            directory: false,
            time: now,
        })
    });
    match gone {
        Ok(_) => {
            let hook = format!("{}@{}", one.kept.rule.name, one.kept.revision);
            let sql = "INSERT OR REPLACE INTO dropped VALUES (?1, ?2, ?3, ?4, ?5)";
            let (rule, task) = (one.kept.id.cast_signed(), one.task.cast_signed());
            let row = params![object.cast_signed(), rule, hook, task, now];
            execute(db, sql, row)?;
            Ok(tx.changes)
        }
        Err(fault) if fault.is_database_failure() => Err(fault),
        Err(fault) => {
            runs::set_error(db, one.rule_run, &format!("the file stays: {fault}"))?;
            Ok(Vec::new())
        }
    }
}

/// Returns the names of the hook and the task that caused the removal of a version's file; empty if no hook caused it.
pub fn reported(db: &Connection, object: u64) -> Result<String, Fault> {
    let sql = "SELECT hook, task FROM dropped WHERE object = ?1";
    let found = find(db, sql, [object.cast_signed()], |row| {
        let (hook, task): (String, i64) = (row.get(0)?, row.get(1)?);
        Ok(format!("by hook {hook} after task {task}"))
    })?;
    Ok(found.unwrap_or_default())
}

/// Returns the number of files that a hook has removed.
pub fn count(db: &Connection, rule: u64) -> Result<u64, Fault> {
    let sql = "SELECT count(*) FROM dropped WHERE rule = ?1";
    Ok(find(db, sql, [rule.cast_signed()], |row| unsigned(row, 0))?.unwrap_or(0))
}

/// Requests a check whether the file of a version can be removed.
pub(super) fn examine(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO mapped VALUES (?1)";
    execute(db, sql, [object.cast_signed()])
}

/// Requests a check of the versions that only runs of a removed rule have kept, for the runs that are deleted next.
pub(super) fn examine_left(db: &Connection, rule: u64, limit: i64) -> Result<(), Fault> {
    let sql = format!(
        "INSERT OR IGNORE INTO mapped SELECT object FROM rule_run WHERE {LEFT} AND state NOT IN (?3, ?4, ?5) AND EXISTS \
         (SELECT 1 FROM rule_run AS other WHERE other.rule IN (SELECT rule FROM rule) AND other.object = rule_run.object)"
    );
    let (done, deleted, other) = (MatchState::Done, MatchState::Deleted, MatchState::Other);
    let row = params![rule.cast_signed(), limit, done, deleted, other];
    execute(db, &sql, row)
}

impl Tx<'_> {
    /// Requests another check of a version: its file may have been mapped while it could not be removed, and can be removed now.
    pub(crate) fn may_go_by_now(&self, object: u64) -> Result<(), Fault> {
        if object != 0 && self.shared.rules.any_input_action() {
            examine(self.db, object)?;
            self.shared.rules.wake();
        }
        Ok(())
    }

    /// Returns the extra delay in nanoseconds before a version that was just sealed is staged out of the burst tier. If a hook removes the
    /// version after its map task, the version need not be staged out.
    pub fn held_back(&self, vnode: &InodeRecord, path: &[u8]) -> Result<i64, Fault> {
        match self.shared.rules.any_input_action() && self.is_deleted_by_hook(vnode, path)? {
            true => Ok(HELD_NS),
            false => Ok(0),
        }
    }
}
