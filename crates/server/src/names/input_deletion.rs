//! Files that are removed after map tasks have read them, as hooks with `inputs = "delete"` require. A file is removed only after every
//! rule run for its version has succeeded, with the rights of the hook's owner. Lineage records the hook and task that caused the removal.

use super::Fault;
use super::burst;
use super::shared::NamesShared;
use super::transaction::{Change, Tx};
use super::vnode::InodeRecord;
use crate::rules::{MatchState, StoredRule};
use rusqlite::{Connection, OptionalExtension as _, params};
use tidemill_lang::rule::hook::InputAction;
use tidemill_wire::v1;

/// Maximum number of versions processed in one transaction.
const OBJECTS_MAX: u32 = 200;
/// Maximum delay in nanoseconds of the stage-out of a version that may be removed soon.
const HELD_NS: i64 = 600 * 1_000_000_000;

/// A rule run for a version, with the rule that it belongs to.
struct TriggeredRun<'a> {
    kept: &'a StoredRule,
    rule_run: i64,
    state: i64,
    task: i64,
    ino: i64,
    path: String,
}

fn input_action(kept: &StoredRule) -> InputAction {
    kept.rule
        .hook
        .as_ref()
        .map_or(InputAction::Keep, |hook| hook.spec.inputs)
}

/// Processes versions whose rule runs have ended. Returns whether more versions may follow, and the changes in the namespace.
pub(crate) fn page(
    db: &Connection,
    shared: &NamesShared,
    now: i64,
) -> Result<(bool, Vec<Change>), Fault> {
    let mut statement = db.prepare_cached("SELECT object FROM mapped LIMIT ?1")?;
    let rows = statement.query_map([OBJECTS_MAX], |row| row.get::<_, i64>(0))?;
    let objects = rows.collect::<Result<Vec<_>, _>>()?;
    let mut changes = Vec::new();
    for object in &objects {
        changes.extend(look(db, shared, *object, now)?);
        db.prepare_cached("DELETE FROM mapped WHERE object = ?1")?
            .execute([object])?;
    }
    Ok((objects.len() == OBJECTS_MAX as usize, changes))
}

fn look(
    db: &Connection,
    shared: &NamesShared,
    object: i64,
    now: i64,
) -> Result<Vec<Change>, Fault> {
    let rules = shared.rules.all();
    let mut all = Vec::new();
    let sql =
        "SELECT rule_run, state, task, ino, path FROM rule_run WHERE rule = ?1 AND object = ?2";
    let mut statement = db.prepare_cached(sql)?;
    for kept in rules.iter() {
        let found = statement.query_row(params![kept.id.cast_signed(), object], |row| {
            Ok(TriggeredRun {
                kept,
                rule_run: row.get(0)?,
                state: row.get(1)?,
                task: row.get(2)?,
                ino: row.get(3)?,
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
        .iter()
        .any(|state| state.number() == one.state)
    };
    if !all.iter().all(well) {
        return Ok(Vec::new());
    }
    let mut done = all
        .iter()
        .filter(|one| one.state == MatchState::Done.number());
    // Hooks may have mapped the version under several names; one name still leads to it.
    for one in done
        .clone()
        .filter(|one| input_action(one.kept) == InputAction::Delete)
    {
        let changes = drop_file(db, shared, (object, one), now)?;
        if !changes.is_empty() {
            return Ok(changes);
        }
    }
    if done.any(|one| input_action(one.kept) == InputAction::Evict)
        && let Some(one) = all.first()
        && let Some(vnode) = InodeRecord::find(db, one.ino.cast_unsigned())?
        && vnode.object.cast_signed() == object
    {
        for (object, _) in burst::places(db, &vnode)? {
            burst::evict_when_staged_out(db, object.cast_signed())?;
        }
    }
    Ok(Vec::new())
}

/// Removes a file's name if the file's present version is the mapped version and no client writes the next version.
fn drop_file(
    db: &Connection,
    shared: &NamesShared,
    (object, one): (i64, &TriggeredRun<'_>),
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
    if vnode.ino.cast_signed() != one.ino
        || vnode.object.cast_signed() != object
        || vnode.writing != 0
    {
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
            let row = params![object, one.kept.id.cast_signed(), hook, one.task, now];
            db.prepare_cached(sql)?.execute(row)?;
            Ok(tx.changes)
        }
        Err(fault) if fault.is_database_failure() => Err(fault),
        Err(fault) => {
            let why = format!("the file stays: {fault}");
            db.prepare_cached("UPDATE rule_run SET error = ?2 WHERE rule_run = ?1")?
                .execute(params![one.rule_run, why])?;
            Ok(Vec::new())
        }
    }
}

/// Returns the names of the hook and the task that caused the removal of a version's file; empty if no hook caused it.
pub(super) fn reported(db: &Connection, object: u64) -> Result<String, Fault> {
    let sql = "SELECT hook, task FROM dropped WHERE object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let found = statement.query_row([object.cast_signed()], |row| {
        let (hook, task): (String, i64) = (row.get(0)?, row.get(1)?);
        Ok(format!("by hook {hook} after task {task}"))
    });
    Ok(found.optional()?.unwrap_or_default())
}

impl Tx<'_> {
    /// Requests another check of a version: its file may have been mapped while it could not be removed, and can be removed now.
    pub(crate) fn may_go_by_now(&self, object: u64) -> Result<(), Fault> {
        if object != 0 && self.shared.rules.any_input_action() {
            self.db
                .prepare_cached("INSERT OR IGNORE INTO mapped VALUES (?1)")?
                .execute([object.cast_signed()])?;
            self.shared.rules.wake();
        }
        Ok(())
    }

    /// Returns the extra delay in nanoseconds before a version that was just sealed is staged out of the burst tier. If a hook removes the
    /// version after its map task, the version need not be staged out.
    pub(super) fn held_back(&self, version: u64) -> Result<i64, Fault> {
        if !self.shared.rules.any_input_action() {
            return Ok(0);
        }
        let rules = self.shared.rules.all();
        let sql = "SELECT 1 FROM rule_run WHERE rule = ?1 AND object = ?2 AND state <= 2";
        let mut statement = self.db.prepare_cached(sql)?;
        for kept in rules
            .iter()
            .filter(|kept| input_action(kept) == InputAction::Delete)
        {
            if statement.exists(params![kept.id.cast_signed(), version.cast_signed()])? {
                return Ok(HELD_NS);
            }
        }
        Ok(0)
    }
}
