//! Batches of hooks: the sets of files that are reduced together. A file belongs to the batch that is open when the file is queued.

use super::runs::{self, MatchState};
use crate::Connection;
use crate::jobs::records;
use crate::query::stored_enum;
use crate::query::{changed, execute, exists, find, rows, unsigned};
use crate::shared::NamesShared;
use crate::transaction::Tx;
use crate::{Caller, Fault, version};
use rusqlite::params;
use std::collections::BTreeSet;
use tidemill_lang::rule::hook::file_order;
use tidemill_wire::v1;

/// Number of batches of a hook that clients see: the latest.
const SHOWN: u32 = 20;

stored_enum! {
    /// State of a batch.
    BatchState {
        /// The batch accepts files.
        Open = 0,
        /// The batch accepts no file, and some of its files are not mapped yet.
        Ending = 1,
        /// A job reduces the results of the batch.
        Reducing = 2,
        /// The reduction succeeded.
        Done = 3,
        /// The reduction failed.
        Failed = 4,
        /// The batch ended without mapped files.
        Empty = 5,
    }
}

const STATES: [&str; 6] = ["open", "ending", "reducing", "done", "failed", "empty"];

/// The batch to which new files of a hook are added.
#[derive(Clone, Copy, Debug)]
pub struct OpenBatch {
    /// Number of the batch, counted from 1 for each hook.
    pub batch: u64,
    /// Whether the batch's marker was sealed.
    pub marked: bool,
}

/// Returns the open batch of a hook.
pub fn open(db: &Connection, rule: u64) -> Result<Option<OpenBatch>, Fault> {
    let sql = "SELECT batch, ended != 0 FROM batch WHERE state = ?2 AND state <= 2 AND rule = ?1";
    let key = params![rule.cast_signed(), BatchState::Open];
    find(db, sql, key, |row| {
        let (batch, marked) = (unsigned(row, 0)?, row.get(1)?);
        Ok(OpenBatch { batch, marked })
    })
}

/// Returns the number of the open batch of a hook, and opens a batch if necessary.
pub(super) fn open_or_begin(db: &Connection, rule: u64, now: i64) -> Result<u64, Fault> {
    if let Some(open) = open(db, rule)? {
        return Ok(open.batch);
    }
    let sql = "INSERT INTO batch(rule, batch, state, begun) \
               SELECT ?1, 1 + coalesce(max(batch), 0), ?2, ?3 FROM batch WHERE rule = ?1";
    execute(db, sql, params![rule.cast_signed(), BatchState::Open, now])?;
    Ok(open(db, rule)?.map_or(0, |open| open.batch))
}

/// Records with the open batch of a hook that the batch's marker was sealed.
pub(super) fn mark(db: &Connection, rule: u64, now: i64) -> Result<(), Fault> {
    let batch = open_or_begin(db, rule, now)?;
    let sql = "UPDATE batch SET ended = ?3 WHERE rule = ?1 AND batch = ?2 AND ended = 0";
    let row = [rule.cast_signed(), batch.cast_signed(), now.max(1)];
    execute(db, sql, row)
}

/// Returns the hooks with an open batch whose marker was sealed.
pub fn marked_rules(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT rule FROM batch WHERE state = ?1 AND state <= 2 AND ended != 0";
    rows(db, sql, [BatchState::Open], |row| unsigned(row, 0))
}

/// Closes the open batch of a hook. Returns the number of the batch; `None` if no batch is open.
pub fn end_open(db: &Connection, rule: u64) -> Result<Option<u64>, Fault> {
    let sql = "UPDATE batch SET state = ?2, ended = 0 WHERE state = ?3 AND state <= 2 AND rule = ?1 RETURNING batch";
    let key = params![rule.cast_signed(), BatchState::Ending, BatchState::Open];
    find(db, sql, key, |row| unsigned(row, 0))
}

/// Closes an open batch after its marker. A batch without files is deleted.
pub fn end_marked(db: &Connection, rule: u64, batch: u64) -> Result<(), Fault> {
    let (rule, batch) = (rule.cast_signed(), batch.cast_signed());
    let sql = "DELETE FROM batch WHERE rule = ?1 AND batch = ?2 AND state = ?3 AND NOT EXISTS (SELECT 1 FROM rule_run \
               WHERE rule_run.rule = ?1 AND rule_run.batch = ?2 AND rule_run.batch != 0)";
    execute(db, sql, params![rule, batch, BatchState::Open])?;
    let sql =
        "UPDATE batch SET state = ?4, ended = 0 WHERE rule = ?1 AND batch = ?2 AND state = ?3";
    let row = params![rule, batch, BatchState::Open, BatchState::Ending];
    execute(db, sql, row)
}

/// Whether a hook has an open batch whose files are all mapped.
pub fn open_batch_is_mapped(db: &Connection, rule: u64) -> Result<bool, Fault> {
    match open(db, rule)? {
        Some(open) => Ok(!has_unmapped(db, rule, open.batch)?),
        None => Ok(false),
    }
}

/// Whether a batch has files that are not mapped yet.
fn has_unmapped(db: &Connection, rule: u64, batch: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM rule_run WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state <= 2";
    let key = [rule.cast_signed(), batch.cast_signed()];
    exists(db, sql, key)
}

/// Returns the inodes and paths of the files that are being written, if their write began at the time `until` or before.
pub fn files_written(
    db: &Connection,
    shared: &NamesShared,
    until: i64,
) -> Result<Vec<(u64, String)>, Fault> {
    let root = Caller::root();
    let tx = Tx::new(db, shared, &root, 0, 0);
    let mut paths = Vec::new();
    let sql = "SELECT DISTINCT ino FROM writing WHERE started <= ?1";
    let open: Vec<u64> = rows(db, sql, [until], |row| unsigned(row, 0))?;
    for ino in open {
        let path = tx.path_of(ino)?;
        let path = path.and_then(|path| String::from_utf8(path).ok());
        paths.extend(path.map(|path| (ino, path)));
    }
    Ok(paths)
}

/// A closed batch whose files are all mapped.
#[derive(Clone, Debug)]
pub struct MappedBatch {
    /// Number of the batch, counted from 1 for each hook.
    pub batch: u64,
    /// Paths and objects of the results of the map tasks, in the order of the files that were mapped.
    pub parts: Vec<(String, u64)>,
}

/// Returns the next closed batch of a hook whose files are all mapped. Batches that can't be reduced end.
pub fn next_mapped(db: &Connection, rule: u64, now: i64) -> Result<Option<MappedBatch>, Fault> {
    let sql =
        "SELECT batch FROM batch WHERE state = ?2 AND state <= 2 AND rule = ?1 ORDER BY batch";
    let key = params![rule.cast_signed(), BatchState::Ending];
    let ending: Vec<u64> = rows(db, sql, key, |row| unsigned(row, 0))?;
    for batch in ending {
        if has_unmapped(db, rule, batch)? {
            continue;
        }
        let sql = "SELECT path, error FROM rule_run WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state IN (?3, ?4) LIMIT 1";
        let (failed, looped) = (MatchState::Failed, MatchState::Loop);
        let key = params![rule.cast_signed(), batch.cast_signed(), failed, looped];
        let unmapped = find(db, sql, key, |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })?;
        if let Some((path, why)) = unmapped {
            let why = format!("{path} was not mapped, so the batch has no result: {why}");
            fail(db, (rule, batch), (&why, now))?;
            continue;
        }
        let parts = parts(db, rule, batch)?;
        if let Some(path) = removed(db, &parts)? {
            let why =
                format!("{path}, which was to be reduced, was removed, so the batch has no result");
            fail(db, (rule, batch), (&why, now))?;
            continue;
        }
        if parts.is_empty() {
            end(db, (rule, batch), BatchState::Empty, ("", now))?;
            continue;
        }
        return Ok(Some(MappedBatch { batch, parts }));
    }
    Ok(None)
}

/// Returns the results of a batch's map tasks, in the order of the mapped files.
fn parts(db: &Connection, rule: u64, batch: u64) -> Result<Vec<(String, u64)>, Fault> {
    let sql = "SELECT rule_run.path, rule_run.rule_run, version.path, made.object FROM rule_run \
               CROSS JOIN task_output AS made ON made.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
               CROSS JOIN version ON version.object = made.object \
               WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state = ?3 ORDER BY rule_run.rule_run, made.task, seq";
    let key = params![rule.cast_signed(), batch.cast_signed(), MatchState::Done];
    let mut found: Vec<_> = rows(db, sql, key, |row| {
        let (file, rule_run): (String, i64) = (row.get(0)?, row.get(1)?);
        let path = String::from_utf8_lossy(&row.get::<_, Vec<u8>>(2)?).into_owned();
        Ok((file, rule_run, path, unsigned(row, 3)?))
    })?;
    found.sort_by(|one, other| file_order(&one.0, &other.0).then(one.1.cmp(&other.1)));
    // Several files may have been mapped together.
    let mut seen = BTreeSet::new();
    let parts = found.into_iter().map(|(_, _, path, object)| (path, object));
    Ok(parts.filter(|(_, object)| seen.insert(*object)).collect())
}

/// Returns the path of the first result that was deleted, or `None` if all results exist.
fn removed(db: &Connection, parts: &[(String, u64)]) -> Result<Option<String>, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("SELECT 1 FROM version WHERE object = ?1 AND removed = 0")?;
    for (path, object) in parts {
        if !statement.exists([object.cast_signed()])? {
            return Ok(Some(path.clone()));
        }
    }
    Ok(None)
}

/// Records that a batch that was to be reduced has failed.
pub fn fail(db: &Connection, batch: (u64, u64), (why, now): (&str, i64)) -> Result<(), Fault> {
    end(db, batch, BatchState::Failed, (why, now))
}

fn end(
    db: &Connection,
    (rule, batch): (u64, u64),
    state: BatchState,
    (why, now): (&str, i64),
) -> Result<(), Fault> {
    let sql = "UPDATE batch SET state = ?3, error = ?4, ended = ?5 WHERE rule = ?1 AND batch = ?2 AND state IN (?6, ?7)";
    let row = params![
        rule.cast_signed(),
        batch.cast_signed(),
        state,
        why,
        now,
        BatchState::Ending,
        BatchState::Reducing
    ];
    execute(db, sql, row)
}

/// Records, in the transaction that stores a job, that the job reduces a batch.
pub fn begin_reduction(db: &Connection, job: u64, (rule, batch): (u64, u64)) -> Result<(), Fault> {
    let sql = "UPDATE batch SET state = ?3, job = ?4 WHERE rule = ?1 AND batch = ?2 AND state = ?5";
    let row = params![
        rule.cast_signed(),
        batch.cast_signed(),
        BatchState::Reducing,
        job.cast_signed(),
        BatchState::Ending
    ];
    if changed(db, sql, row)? != 1 {
        return Err(Fault::Stale(batch));
    }
    // The outputs are one rule run further from external input than the files of the batch.
    let sql = "SELECT coalesce(max(depth), 0) + 1 FROM rule_run WHERE rule = ?1 AND batch = ?2 AND batch != 0";
    let depth = find(db, sql, [rule, batch].map(u64::cast_signed), |row| {
        row.get(0)
    })?;
    records::set_rule(db, job, rule, depth.unwrap_or(1))
}

/// Records the outcomes of reducing jobs. The results of the map tasks expire after a successful reduction.
pub fn settle(db: &Connection, now: i64) -> Result<(), Fault> {
    let sql = "SELECT batch.rule, batch.batch, task.state, task.error FROM batch LEFT JOIN job ON job.job = batch.job \
               LEFT JOIN task ON task.job = batch.job WHERE batch.state = ?1 AND batch.state <= 2 AND job.state IS NOT ?2";
    let running = i32::from(v1::State::Running);
    let ended: Vec<(_, _, _)> = rows(db, sql, params![BatchState::Reducing, running], |row| {
        let state: Option<i32> = row.get(2)?;
        let error: Option<String> = row.get(3)?;
        Ok(((unsigned(row, 0)?, unsigned(row, 1)?), state, error))
    })?;
    for (batch, state, error) in ended {
        if state == Some(v1::State::Done.into()) {
            end(db, batch, BatchState::Done, ("", now))?;
            for object in runs::mapped_objects(db, batch)? {
                version::set_expiry(db, object, now)?;
            }
            continue;
        }
        let why = error.filter(|error| !error.is_empty());
        let why = why.unwrap_or_else(|| "its job has ended without a result".into());
        fail(db, batch, (&why, now))?;
    }
    Ok(())
}

/// Retries failed batches. Each batch is reduced as soon as all its files are mapped. Returns the number of batches.
pub(super) fn retry(db: &Connection, rule: u64) -> Result<usize, Fault> {
    let sql = "UPDATE batch SET state = ?2, job = 0, ended = 0, error = '' WHERE rule = ?1 AND state = ?3";
    let row = params![rule.cast_signed(), BatchState::Ending, BatchState::Failed];
    changed(db, sql, row)
}

/// Deletes the batches of a removed hook.
pub(super) fn forget(db: &Connection, rule: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM batch WHERE rule = ?1";
    execute(db, sql, [rule.cast_signed()])
}

/// Returns the latest batches of a hook.
pub fn latest(db: &Connection, rule: u64) -> Result<Vec<v1::HookBatch>, Fault> {
    let sql = "SELECT batch, state, job, begun, iif(state = ?4, 0, ended), error, \
               (SELECT count(*) FROM rule_run WHERE rule_run.rule = ?1 AND rule_run.batch = batch.batch AND rule_run.batch != 0), \
               (SELECT count(*) FROM rule_run WHERE rule_run.rule = ?1 AND rule_run.batch = batch.batch AND rule_run.batch != 0 AND rule_run.state = ?3) \
               FROM batch WHERE rule = ?1 ORDER BY batch DESC LIMIT ?2";
    let (done, open) = (MatchState::Done, BatchState::Open);
    let key = params![rule.cast_signed(), SHOWN, done, open];
    rows(db, sql, key, |row| {
        let state = STATES.get(usize::from(row.get::<_, u16>(1)?));
        Ok(v1::HookBatch {
            batch: unsigned(row, 0)?,
            state: (*state.unwrap_or(&"unknown")).to_owned(),
            job: unsigned(row, 2)?,
            begun: row.get(3)?,
            ended: row.get(4)?,
            error: row.get(5)?,
            files: unsigned(row, 6)?,
            mapped: unsigned(row, 7)?,
        })
    })
}
