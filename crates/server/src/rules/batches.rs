//! Batches of hooks: the sets of files that are reduced together. A file belongs to the batch that is open when the file is queued. When a
//! batch is closed and all its files are mapped, a job reduces the batch. The transaction that stores the job also records the start of the
//! reduction. Next: `server/src/jobs`, whose driver runs the job.

use super::driver::RuleRunner;
use super::store::one;
use super::{MatchState, Rules, StoredRule, markers};
use crate::clock;
use crate::jobs::mapper_jobs::ProgramMappers;
use crate::jobs::output_paths::Links;
use crate::jobs::store::state_number;
use crate::jobs::submit::{JobRefusal, PinnedVersions, Submission, submit_given};
use crate::jobs::{DriverMessage, SubmittedJob};
use crate::names::Fault;
use crate::names::shared::NamesShared;
use crate::names::transaction::Tx;
use crate::names::vnode::Caller;
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_lang::rule::hook::{BATCH_FILES_MAX, BatchEnd, LAG_FILES, file_order};
use tidemill_model::id::ObjectId;
use tidemill_wire::v1;

/// Number of batches of a hook that clients see: the latest.
const SHOWN: u32 = 20;

/// State of a batch, as stored in the database.
pub(super) const OPEN: i64 = 0;
pub(super) const ENDING: i64 = 1;
const REDUCING: i64 = 2;
const DONE: i64 = 3;
const FAILED: i64 = 4;
const EMPTY: i64 = 5;
const STATES: [&str; 6] = ["open", "ending", "reducing", "done", "failed", "empty"];

/// Results of the map tasks of a batch, which are to be reduced.
#[derive(Clone, Debug)]
pub(super) struct Reduce {
    pub(super) kept: Arc<StoredRule>,
    batch: u64,
    /// Paths and objects of the results, in the order of the files that were mapped.
    parts: Vec<(String, u64)>,
}

pub(super) fn ends(kept: &StoredRule) -> Option<&BatchEnd> {
    kept.rule.hook.as_ref()?.batches.as_ref()
}

fn open_batch(db: &Connection, rule: u64) -> Result<Option<i64>, Fault> {
    let sql = "SELECT batch FROM batch WHERE state = ?2 AND state <= 2 AND rule = ?1";
    one(db, sql, params![rule.cast_signed(), OPEN], |row| row.get(0))
}

/// Closes the open batch of a hook. Returns the number of the batch; `None` if no batch is open.
pub(super) fn end_open(db: &Connection, rule: u64) -> Result<Option<u64>, Fault> {
    let sql = "UPDATE batch SET state = ?2, ended = 0 WHERE state = ?3 AND state <= 2 AND rule = ?1 RETURNING batch";
    let key = params![rule.cast_signed(), ENDING, OPEN];
    let ended = one(db, sql, key, |row| row.get::<_, i64>(0))?;
    Ok(ended.map(i64::cast_unsigned))
}

impl Tx<'_> {
    /// Adds a version that was queued for a hook to the hook's open batch.
    pub(super) fn add_to_batch(&self, kept: &StoredRule, object: u64) -> Result<(), Fault> {
        let Some(ends) = ends(kept) else {
            return Ok(());
        };
        let rule = kept.id.cast_signed();
        let batch = self.open_batch(kept.id)?;
        let sql = "UPDATE rule_run SET batch = ?3 WHERE rule = ?1 AND object = ?2";
        self.db
            .prepare_cached(sql)?
            .execute(params![rule, object.cast_signed(), batch])?;
        let most = match ends {
            BatchEnd::Files(files) => *files,
            BatchEnd::Close | BatchEnd::Marker(_) => BATCH_FILES_MAX,
        };
        // Deleted and abandoned files do not count as files of the batch. A file at the end of a chain counts, and makes the batch fail.
        let sql = "SELECT count(*) FROM rule_run WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND (state < ?3 OR state = ?4)";
        let (deleted, looped) = (MatchState::Deleted.number(), MatchState::Loop.number());
        let key = params![rule, batch, deleted, looped];
        let files = one(self.db, sql, key, |row| row.get::<_, u32>(0))?;
        if files.unwrap_or(0) >= most {
            let marked = markers::marked(self.db, kept.id)?.is_some();
            end_open(self.db, kept.id)?;
            if marked {
                // Files that were closed before the batch's marker may still arrive.
                self.mark(kept.id)?;
            }
        }
        Ok(())
    }

    /// Returns the number of the open batch of a hook, and opens a batch if necessary.
    pub(super) fn open_batch(&self, rule: u64) -> Result<i64, Fault> {
        if let Some(batch) = open_batch(self.db, rule)? {
            return Ok(batch);
        }
        let sql = "INSERT INTO batch(rule, batch, state, begun) \
                   SELECT ?1, 1 + coalesce(max(batch), 0), ?2, ?3 FROM batch WHERE rule = ?1";
        self.db
            .prepare_cached(sql)?
            .execute(params![rule.cast_signed(), OPEN, self.now])?;
        Ok(open_batch(self.db, rule)?.unwrap_or(0))
    }
}

/// Closes batches that are complete. Returns the next batch to reduce, of a rule that is not in `skipped`.
pub(super) fn next(
    db: &Connection,
    shared: &NamesShared,
    skipped: &BTreeSet<u64>,
    now: i64,
) -> Result<Option<Reduce>, Fault> {
    let rules = shared.rules.all();
    if !rules.iter().any(|kept| ends(kept).is_some()) {
        return Ok(None);
    }
    reduced(db, now)?;
    let mut written = None;
    for kept in rules.iter().filter(|kept| !skipped.contains(&kept.id)) {
        match ends(kept) {
            None => continue,
            Some(BatchEnd::Close) => end_when_quiet(db, shared, kept, &mut written)?,
            Some(BatchEnd::Files(_) | BatchEnd::Marker(_)) => {}
        }
        if let Some(reduce) = due(db, kept, now)? {
            return Ok(Some(reduce));
        }
    }
    Ok(None)
}

/// Closes the batch of a hook if all files of the batch are mapped, and no matching file is being written.
fn end_when_quiet(
    db: &Connection,
    shared: &NamesShared,
    kept: &StoredRule,
    written: &mut Option<Vec<(u64, String)>>,
) -> Result<(), Fault> {
    let Some(batch) = open_batch(db, kept.id)? else {
        return Ok(());
    };
    if is_open(db, kept.id, batch)? {
        return Ok(());
    }
    if written.is_none() {
        *written = Some(files_written(db, shared)?);
    }
    let mut written = written.iter().flatten();
    if !written.any(|(_, path)| kept.rule.matches(path)) {
        end_open(db, kept.id)?;
    }
    Ok(())
}

/// Whether a batch has files that are not mapped yet.
fn is_open(db: &Connection, rule: u64, batch: i64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM rule_run WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state <= 2";
    Ok(db
        .prepare_cached(sql)?
        .exists(params![rule.cast_signed(), batch])?)
}

/// Returns the inodes and paths of all files that are being written.
pub(super) fn files_written(
    db: &Connection,
    shared: &NamesShared,
) -> Result<Vec<(u64, String)>, Fault> {
    let root = Caller::root();
    let tx = Tx::new(db, shared, &root, 0, 0);
    let mut statement = db.prepare_cached("SELECT DISTINCT ino FROM writing")?;
    let rows = statement.query_map([], |row| Ok(row.get::<_, i64>(0)?.cast_unsigned()))?;
    let mut paths = Vec::new();
    for ino in rows.collect::<Result<Vec<_>, _>>()? {
        let path = tx.path_of(ino)?;
        let path = path.and_then(|path| String::from_utf8(path).ok());
        paths.extend(path.map(|path| (ino, path)));
    }
    Ok(paths)
}

/// Returns the next closed batch of a hook whose files are all mapped.
fn due(db: &Connection, kept: &Arc<StoredRule>, now: i64) -> Result<Option<Reduce>, Fault> {
    let sql =
        "SELECT batch FROM batch WHERE state = ?2 AND state <= 2 AND rule = ?1 ORDER BY batch";
    let mut statement = db.prepare_cached(sql)?;
    let key = params![kept.id.cast_signed(), ENDING];
    let batches = statement.query_map(key, |row| row.get::<_, i64>(0))?;
    for batch in batches.collect::<Result<Vec<_>, _>>()? {
        if is_open(db, kept.id, batch)? {
            continue;
        }
        let sql = "SELECT path, error FROM rule_run WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state IN (?3, ?4) LIMIT 1";
        let (failed, looped) = (MatchState::Failed.number(), MatchState::Loop.number());
        let key = params![kept.id.cast_signed(), batch, failed, looped];
        let read =
            |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
        if let Some((path, why)) = one(db, sql, key, read)? {
            let why = format!("{path} was not mapped, so the batch has no result: {why}");
            ended(db, (kept.id, batch), FAILED, (&why, now))?;
            continue;
        }
        let parts = parts(db, kept.id, batch)?;
        if let Some(path) = removed(db, &parts)? {
            let why =
                format!("{path}, which was to be reduced, was removed, so the batch has no result");
            ended(db, (kept.id, batch), FAILED, (&why, now))?;
            continue;
        }
        if parts.is_empty() {
            ended(db, (kept.id, batch), EMPTY, ("", now))?;
            continue;
        }
        let (kept, batch) = (kept.clone(), batch.cast_unsigned());
        return Ok(Some(Reduce { kept, batch, parts }));
    }
    Ok(None)
}

/// Returns the results of a batch's map tasks, in the order of the mapped files.
fn parts(db: &Connection, rule: u64, batch: i64) -> Result<Vec<(String, u64)>, Fault> {
    let sql = "SELECT rule_run.path, rule_run.rule_run, version.path, made.object FROM rule_run \
               CROSS JOIN task_output AS made ON made.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
               CROSS JOIN version ON version.object = made.object \
               WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state = ?3 ORDER BY rule_run.rule_run, made.task, seq";
    let mut statement = db.prepare_cached(sql)?;
    let key = params![rule.cast_signed(), batch, MatchState::Done.number()];
    let rows = statement.query_map(key, |row| {
        let (file, rule_run): (String, i64) = (row.get(0)?, row.get(1)?);
        let path = String::from_utf8_lossy(&row.get::<_, Vec<u8>>(2)?).into_owned();
        Ok((file, rule_run, path, row.get::<_, i64>(3)?.cast_unsigned()))
    })?;
    let mut found = rows.collect::<Result<Vec<_>, _>>()?;
    found.sort_by(|one, other| file_order(&one.0, &other.0).then(one.1.cmp(&other.1)));
    // Several files may have been mapped together.
    let mut seen = BTreeSet::new();
    let parts = found.into_iter().map(|(_, _, path, object)| (path, object));
    Ok(parts.filter(|(_, object)| seen.insert(*object)).collect())
}

/// Returns the path of the first result that was deleted, or `None` if all results exist.
fn removed(db: &Connection, parts: &[(String, u64)]) -> Result<Option<String>, Fault> {
    let mut statement =
        db.prepare_cached("SELECT 1 FROM version WHERE object = ?1 AND removed = 0")?;
    for (path, object) in parts {
        if !statement.exists([object.cast_signed()])? {
            return Ok(Some(path.clone()));
        }
    }
    Ok(None)
}

fn ended(
    db: &Connection,
    (rule, batch): (u64, i64),
    state: i64,
    (why, now): (&str, i64),
) -> Result<(), Fault> {
    let sql = "UPDATE batch SET state = ?3, error = ?4, ended = ?5 WHERE rule = ?1 AND batch = ?2 AND state IN (?6, ?7)";
    db.prepare_cached(sql)?.execute(params![
        rule.cast_signed(),
        batch,
        state,
        why,
        now,
        ENDING,
        REDUCING
    ])?;
    Ok(())
}

/// Records the outcomes of reducing jobs. The results of the map tasks expire after a successful reduction.
fn reduced(db: &Connection, now: i64) -> Result<(), Fault> {
    let sql = "SELECT batch.rule, batch.batch, task.state, task.error FROM batch LEFT JOIN job ON job.job = batch.job \
               LEFT JOIN task ON task.job = batch.job WHERE batch.state = ?1 AND batch.state <= 2 AND job.state IS NOT ?2";
    let running = state_number(v1::State::Running);
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![REDUCING, running], |row| {
        let id = (row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?);
        let state: Option<i32> = row.get(2)?;
        Ok((id, state, row.get::<_, Option<String>>(3)?))
    })?;
    for (id, state, error) in rows.collect::<Result<Vec<_>, _>>()? {
        if state != Some(v1::State::Done.into()) {
            let why = error.filter(|error| !error.is_empty());
            let why = why.unwrap_or_else(|| "its job has ended without a result".into());
            ended(db, id, FAILED, (&why, now))?;
            continue;
        }
        ended(db, id, DONE, ("", now))?;
        let sql = "INSERT OR REPLACE INTO expiry SELECT made.ino, made.object, ?3 FROM rule_run CROSS JOIN task_output AS made \
                   ON made.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
                   WHERE rule = ?1 AND batch = ?2 AND batch != 0 AND state = ?4";
        db.prepare_cached(sql)?.execute(params![
            id.0.cast_signed(),
            id.1,
            now,
            MatchState::Done.number()
        ])?;
    }
    Ok(())
}

/// Adds failed rule runs without a batch to the open batch before a retry: all rule runs, or the rule runs of one path.
pub(super) fn add_failed_runs(
    db: &Connection,
    shared: &NamesShared,
    (rule, path): (u64, &str),
    now: i64,
) -> Result<(), Fault> {
    let rules = shared.rules.all();
    let Some(kept) = rules.iter().find(|kept| kept.id == rule) else {
        return Ok(());
    };
    if ends(kept).is_none() {
        return Ok(());
    }
    let sql = "SELECT object FROM rule_run WHERE rule = ?1 AND batch = 0 AND state IN (?3, ?4) AND (?2 = '' OR path = ?2)";
    let (failed, looped) = (MatchState::Failed.number(), MatchState::Loop.number());
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![rule.cast_signed(), path, failed, looped], |row| {
        row.get::<_, i64>(0).map(i64::cast_unsigned)
    })?;
    let root = Caller::root();
    let tx = Tx::new(db, shared, &root, 0, now);
    for object in rows.collect::<Result<Vec<_>, _>>()? {
        tx.add_to_batch(kept, object)?;
    }
    Ok(())
}

/// Retries failed batches. Each batch is reduced as soon as all its files are mapped. Returns the number of batches.
pub(super) fn retry(db: &Connection, rule: u64) -> Result<u64, Fault> {
    let sql = "UPDATE batch SET state = ?2, job = 0, ended = 0, error = '' WHERE rule = ?1 AND state = ?3";
    let count = db
        .prepare_cached(sql)?
        .execute(params![rule.cast_signed(), ENDING, FAILED])?;
    Ok(count as u64)
}

impl RuleRunner {
    /// Starts the job that reduces a batch. Returns whether the batch needs no further attempt.
    pub(super) async fn reduce(&self, reduce: Reduce) -> bool {
        let kept = &reduce.kept;
        let id = (kept.id, reduce.batch.cast_signed());
        let refused = match self.try_reduce(&reduce).await {
            Ok(()) => return true,
            Err(JobRefusal::Script(errors)) => errors.join("; "),
            Err(why @ JobRefusal::Known(_)) => why.to_string(),
            Err(JobRefusal::Claimed(_)) => return false,
            Err(JobRefusal::Fault(fault)) => {
                tracing::warn!(rule = kept.id, %fault, "a batch of a hook waits");
                return false;
            }
        };
        let now = clock::now_ns();
        let write = move |db: &Connection| ended(db, id, FAILED, (&refused, now));
        self.names.database().write(write).await.is_ok()
    }

    async fn try_reduce(&self, reduce: &Reduce) -> Result<(), JobRefusal> {
        let Reduce { kept, batch, parts } = reduce;
        let paths: Vec<String> = parts.iter().map(|(path, _)| path.clone()).collect();
        let script = kept.rule.reduce_script(kept.revision, *batch, &paths);
        let submission = Submission {
            caller: kept.owner.clone(),
            script: script.unwrap_or_default(),
            source: format!("hook {}@{}", kept.rule.name, kept.revision),
            policy: String::new(),
            replace: false,
            strict: false,
            no_cache: false,
            bounded: false,
            programs: ProgramMappers::Refused,
            links: Links::Own,
        };
        let given = parts
            .iter()
            .map(|(path, object)| (path.clone(), ObjectId(*object)));
        let given: PinnedVersions = given.collect::<BTreeMap<_, _>>();
        let (rule, revision, batch) = (kept.id, kept.revision, *batch);
        let also = move |db: &Connection, accepted: &SubmittedJob| {
            begun(db, (rule, revision, batch), accepted)
        };
        let cluster = (&self.names, &self.lease_recalls, &self.cluster);
        let submitted =
            submit_given(cluster.0, cluster.1, cluster.2, (submission, &given), also).await;
        let (accepted, _) = submitted?;
        // The driver only stops when the server shuts down.
        let _ = self
            .driver
            .send(DriverMessage::Submitted(Box::new(accepted)));
        Ok(())
    }
}

/// Records, in the transaction that stores a job, that the job reduces a batch. The outputs of the job are one rule run further from
/// external input than the files of the batch.
fn begun(
    db: &Connection,
    (rule, revision, batch): (u64, u64, u64),
    accepted: &SubmittedJob,
) -> Result<(), Fault> {
    let (rule, job) = (rule.cast_signed(), accepted.spec.job.0.cast_signed());
    let sql = "UPDATE batch SET state = ?3, job = ?4 WHERE rule = ?1 AND batch = ?2 AND state = ?5";
    let key = params![rule, batch.cast_signed(), REDUCING, job, ENDING];
    if db.prepare_cached(sql)?.execute(key)? != 1 {
        return Err(Fault::Stale(batch));
    }
    let sql = "INSERT INTO rule_job(job, rule, revision, depth, open) SELECT ?1, ?2, ?3, \
               1 + coalesce(max(depth), 0), 1 FROM rule_run WHERE rule = ?2 AND batch = ?4 AND batch != 0";
    db.prepare_cached(sql)?.execute(params![
        job,
        rule,
        revision.cast_signed(),
        batch.cast_signed()
    ])?;
    Ok(())
}

/// Returns the number of sealed versions that match a hook and are not mapped yet, and their total size in bytes, capped near the largest
/// file size.
fn lag(db: &Connection, rule: u64) -> Result<(u64, u64), Fault> {
    let sql = "SELECT count(*), CAST(min(total(size), 9.2e18) AS INTEGER) FROM rule_run \
               CROSS JOIN version ON version.object = rule_run.object WHERE rule = ?1 AND state <= ?2";
    let key = params![rule.cast_signed(), MatchState::Running.number()];
    let read = |row: &rusqlite::Row<'_>| {
        let count = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok((count(0)?, count(1)?))
    };
    Ok(one(db, sql, key, read)?.unwrap_or_default())
}

/// Whether the map tasks of a hook lag; then files are mapped when they are closed. Each client that begins to write a file waits for this
/// query, which therefore counts no more rows than necessary.
pub(super) fn lags(db: &Connection, kept: &StoredRule) -> Result<bool, Fault> {
    if kept.rule.hook.is_none() {
        return Ok(false);
    }
    let sql = "SELECT count(*) FROM (SELECT 1 FROM rule_run CROSS JOIN version ON version.object = rule_run.object \
               WHERE rule = ?1 AND state <= ?2 LIMIT ?3)";
    let most = (LAG_FILES + 1).cast_signed();
    let key = params![kept.id.cast_signed(), MatchState::Running.number(), most];
    let count: i64 = db.prepare_cached(sql)?.query_row(key, |row| row.get(0))?;
    Ok(count == most)
}

/// Returns the hooks whose map tasks lag.
pub(crate) fn behind(db: &Connection, rules: &Rules) -> Result<Vec<v1::HookLag>, Fault> {
    let mut behind = Vec::new();
    for kept in rules.all().iter() {
        if !lags(db, kept)? {
            continue;
        }
        let (files, bytes) = lag(db, kept.id)?;
        let (name, uid) = (kept.rule.name.clone(), kept.owner.uid);
        behind.push(v1::HookLag {
            name,
            uid,
            files,
            bytes,
        });
    }
    Ok(behind)
}

/// Returns the data of a hook for clients, with the hook's last batches if `whole` is set.
pub(super) fn shown(
    db: &Connection,
    kept: &StoredRule,
    whole: bool,
) -> Result<Option<v1::Hook>, Fault> {
    let Some(hook) = &kept.rule.hook else {
        return Ok(None);
    };
    let spec = hook.spec.clone();
    let (lag_files, lag_bytes) = lag(db, kept.id)?;
    let sql = "SELECT count(*) FROM dropped WHERE rule = ?1";
    let dropped = one(db, sql, [kept.id.cast_signed()], |row| row.get::<_, i64>(0))?;
    let batches = match whole {
        true => batches(db, kept.id)?,
        false => Vec::new(),
    };
    let limit = |name: &str| kept.rule.limit(name);
    Ok(Some(v1::Hook {
        pattern: spec.pattern,
        map: spec.map,
        output: spec.output,
        reduce: spec.reduce,
        parts: spec.parts,
        group: spec.group,
        marker: spec.marker,
        on: spec.on.word().into(),
        inputs: spec.inputs.word().into(),
        mpi: spec.mpi,
        time: limit("time"),
        size: limit("output"),
        lag_files,
        lag_bytes,
        lags: lag_files > LAG_FILES,
        dropped: dropped.unwrap_or(0).cast_unsigned(),
        batches,
    }))
}

fn batches(db: &Connection, rule: u64) -> Result<Vec<v1::HookBatch>, Fault> {
    let sql = "SELECT batch, state, job, begun, iif(state = ?4, 0, ended), error, \
               (SELECT count(*) FROM rule_run WHERE rule_run.rule = ?1 AND rule_run.batch = batch.batch AND rule_run.batch != 0), \
               (SELECT count(*) FROM rule_run WHERE rule_run.rule = ?1 AND rule_run.batch = batch.batch AND rule_run.batch != 0 AND rule_run.state = ?3) \
               FROM batch WHERE rule = ?1 ORDER BY batch DESC LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let key = params![rule.cast_signed(), SHOWN, MatchState::Done.number(), OPEN];
    let rows = statement.query_map(key, |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let state = usize::try_from(row.get::<_, i64>(1)?).ok();
        let state = state.and_then(|state| STATES.get(state));
        Ok(v1::HookBatch {
            batch: number(0)?,
            state: (*state.unwrap_or(&"unknown")).to_owned(),
            job: number(2)?,
            begun: row.get(3)?,
            ended: row.get(4)?,
            error: row.get(5)?,
            files: number(6)?,
            mapped: number(7)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
