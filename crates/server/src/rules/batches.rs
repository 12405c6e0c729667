//! Batches of hooks: the sets of files that are reduced together. A file belongs to the batch that is open when the file is queued. When a
//! batch is closed and all its files are mapped, a job reduces the batch. The transaction that stores the job also records the start of the
//! reduction. Next: `server/src/jobs`, whose driver runs the job.

use super::driver::RuleRunner;
use crate::clock;
use crate::jobs::SubmittedJob;
use crate::jobs::submit::{JobRefusal, PinnedVersions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_lang::rule::hook::{BatchEnd, HookSpec, LAG_FILES};
use tidemill_meta::rules::batches::{self, MappedBatch};
use tidemill_meta::rules::{Rules, StoredRule, input_deletion, runs};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Connection, Fault};
use tidemill_model::id::ObjectId;
use tidemill_wire::v1;

/// A batch whose map tasks' results are to be reduced.
#[derive(Clone, Debug)]
pub(super) struct Reduce {
    pub(super) kept: Arc<StoredRule>,
    mapped: MappedBatch,
}

/// Closes batches that are complete. Returns the next batch to reduce, of a rule that is not in `skipped`.
pub(super) fn next(
    db: &Connection,
    shared: &NamesShared,
    skipped: &BTreeSet<u64>,
    now: i64,
) -> Result<Option<Reduce>, Fault> {
    let rules = shared.rules.all();
    if !rules.iter().any(|kept| kept.batch_end().is_some()) {
        return Ok(None);
    }
    batches::settle(db, now)?;
    let mut written = None;
    for kept in rules.iter().filter(|kept| !skipped.contains(&kept.id)) {
        match kept.batch_end() {
            None => continue,
            Some(BatchEnd::Close) => end_when_quiet(db, shared, kept, &mut written)?,
            Some(BatchEnd::Files(_) | BatchEnd::Marker(_)) => {}
        }
        if let Some(mapped) = batches::next_mapped(db, kept.id, now)? {
            let kept = kept.clone();
            return Ok(Some(Reduce { kept, mapped }));
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
    if !batches::open_batch_is_mapped(db, kept.id)? {
        return Ok(());
    }
    if written.is_none() {
        *written = Some(batches::files_written(db, shared, i64::MAX)?);
    }
    let mut written = written.iter().flatten();
    if !written.any(|(_, path)| kept.rule.matches(path)) {
        batches::end_open(db, kept.id)?;
    }
    Ok(())
}

impl RuleRunner {
    /// Starts the job that reduces a batch. Returns whether the batch needs no further attempt.
    pub(super) async fn reduce(&self, reduce: Reduce) -> bool {
        let kept = &reduce.kept;
        let batch = (kept.id, reduce.mapped.batch);
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
        let write = move |db: &Connection| batches::fail(db, batch, (&refused, now));
        self.names.database().write(write).await.is_ok()
    }

    async fn try_reduce(&self, reduce: &Reduce) -> Result<(), JobRefusal> {
        let Reduce { kept, mapped } = reduce;
        let MappedBatch { batch, parts } = mapped;
        let paths: Vec<String> = parts.iter().map(|(path, _)| path.clone()).collect();
        let script = kept.rule.reduce_script(kept.revision, *batch, &paths);
        let source = format!("hook {}@{}", kept.rule.name, kept.revision);
        let job = (script.unwrap_or_default(), source);
        let given = parts
            .iter()
            .map(|(path, object)| (path.clone(), ObjectId(*object)));
        let given: PinnedVersions = given.collect::<BTreeMap<_, _>>();
        let (rule, batch) = (kept.id, *batch);
        let also = move |db: &Connection, accepted: &SubmittedJob| {
            batches::begin_reduction(db, accepted.spec.job.0, (rule, batch))
        };
        self.submit(&kept.owner, job, &given, also).await
    }
}

/// Returns the hooks whose map tasks lag.
pub(crate) fn behind(db: &Connection, rules: &Rules) -> Result<Vec<v1::HookLag>, Fault> {
    let mut behind = Vec::new();
    for kept in rules.all().iter() {
        if !runs::lags(db, kept)? {
            continue;
        }
        let (files, bytes) = runs::lag(db, kept.id)?;
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
    let (lag_files, lag_bytes) = runs::lag(db, kept.id)?;
    let batches = match whole {
        true => batches::latest(db, kept.id)?,
        false => Vec::new(),
    };
    let limit = |name: &str| kept.rule.limit(name);
    let section = HookSpec {
        name: kept.rule.name.clone(),
        time: limit("time"),
        size: limit("output"),
        ..spec.clone()
    };
    Ok(Some(v1::Hook {
        section: section.to_string(),
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
        time: section.time,
        size: section.size,
        lag_files,
        lag_bytes,
        lags: lag_files > LAG_FILES,
        dropped: input_deletion::count(db, kept.id)?,
        batches,
    }))
}
