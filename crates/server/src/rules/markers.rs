//! Markers, which close batches of hooks. A file that was closed before a marker belongs to the marker's batch, though the server may see
//! the file after the marker: a version is sealed a moment after its file was closed, or later if its node is offline, and files of a moved
//! directory are examined one after the other. The server therefore records the marker with the open batch, and closes the batch when all
//! these files are queued.

use super::StoredRule;
use super::batches::{ENDING, OPEN, ends, files_written};
use super::driver::RuleRunner;
use super::store::one;
use crate::names::Fault;
use crate::names::shared::NamesShared;
use crate::names::transaction::Tx;
use crate::names::vnode::InodeRecord;
use rusqlite::{Connection, params};
use std::collections::BTreeSet;
use std::time::Duration;
use tidemill_lang::rule::hook::BatchEnd;
use tokio::task::JoinSet;

/// Pause before another check whether a batch with a marker can be closed.
const PAUSE: Duration = Duration::from_millis(100);

impl Tx<'_> {
    /// Checks whether a file is the marker of a hook's batch, and records the marker if it is.
    pub(super) fn marks(
        &self,
        kept: &StoredRule,
        vnode: &InodeRecord,
        path: &str,
    ) -> Result<(), Fault> {
        let Some(BatchEnd::Marker(marker)) = ends(kept) else {
            return Ok(());
        };
        let below = kept.rule.below(path);
        if below.is_some_and(|below| marker.matches(below)) && self.seen_by(kept, vnode)? {
            self.mark(kept.id)?;
        }
        Ok(())
    }

    /// Records with the open batch of a hook that the batch's marker was sealed.
    pub(super) fn mark(&self, rule: u64) -> Result<(), Fault> {
        let batch = self.open_batch(rule)?;
        let sql = "UPDATE batch SET ended = ?3 WHERE rule = ?1 AND batch = ?2 AND ended = 0";
        let key = params![rule.cast_signed(), batch, self.now.max(1)];
        self.db.prepare_cached(sql)?.execute(key)?;
        self.shared.rules.wake_for_marker();
        Ok(())
    }
}

/// Returns the number of a hook's open batch if the batch's marker was sealed, or `None`.
pub(super) fn marked(db: &Connection, rule: u64) -> Result<Option<i64>, Fault> {
    let sql =
        "SELECT batch FROM batch WHERE state = ?2 AND state <= 2 AND rule = ?1 AND ended != 0";
    one(db, sql, params![rule.cast_signed(), OPEN], |row| row.get(0))
}

/// Returns the hooks with an open batch whose marker was sealed.
fn all_marked(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT rule FROM batch WHERE state = ?1 AND state <= 2 AND ended != 0";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([OPEN], |row| row.get::<_, i64>(0))?;
    let rules = rows.map(|rule| rule.map(i64::cast_unsigned));
    Ok(rules.collect::<Result<_, _>>()?)
}

/// Closes batches whose marker was sealed, as long as the server runs.
pub(super) async fn run(rule_runner: RuleRunner) {
    let mut ending: JoinSet<u64> = JoinSet::new();
    let mut busy = BTreeSet::new();
    loop {
        // The query runs as a write, so that it follows the transaction that woke the task.
        match rule_runner.names.database().write(all_marked).await {
            Ok(rules) => {
                for rule in rules.into_iter().filter(|rule| busy.insert(*rule)) {
                    let rule_runner = rule_runner.clone();
                    ending.spawn(async move {
                        rule_runner.end_marked(rule).await;
                        rule
                    });
                }
            }
            Err(Fault::Closed) => return,
            Err(fault) => {
                fault.log_delay("markers of hooks wait");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        }
        tokio::select! {
            () = rule_runner.names.shared().rules.woken_for_marker() => {}
            Some(ended) = ending.join_next() => match ended {
                Ok(rule) => { busy.remove(&rule); }
                Err(_) => busy.clear(),
            },
        }
    }
}

/// Conditions that an open batch with a marker has to meet before it is closed.
struct PendingMarker {
    batch: i64,
    /// Whether existing or moved files are still being examined for the rule.
    walks: bool,
    /// Matching files that are being written, or were closed and are not sealed yet.
    written: Vec<u64>,
}

fn before(
    db: &Connection,
    shared: &NamesShared,
    rule: u64,
) -> Result<Option<PendingMarker>, Fault> {
    let rules = shared.rules.all();
    let kept = rules.iter().find(|kept| kept.id == rule);
    let (Some(kept), Some(batch)) = (kept, marked(db, rule)?) else {
        return Ok(None);
    };
    let sql = "SELECT 1 FROM rule_walk WHERE rule IN (0, ?1)";
    let walks = db.prepare_cached(sql)?.exists([rule.cast_signed()])?;
    let written = files_written(db, shared)?.into_iter();
    let written = written.filter(|(_, path)| kept.rule.matches(path));
    Ok(Some(PendingMarker {
        batch,
        walks,
        written: written.map(|(ino, _)| ino).collect(),
    }))
}

/// Closes a batch. A batch without files is deleted.
fn end(db: &Connection, (rule, batch): (u64, i64)) -> Result<(), Fault> {
    let key = params![rule.cast_signed(), batch, OPEN];
    let sql = "DELETE FROM batch WHERE rule = ?1 AND batch = ?2 AND state = ?3 AND NOT EXISTS (SELECT 1 FROM rule_run \
               WHERE rule_run.rule = ?1 AND rule_run.batch = ?2 AND rule_run.batch != 0)";
    db.prepare_cached(sql)?.execute(key)?;
    let sql =
        "UPDATE batch SET state = ?4, ended = 0 WHERE rule = ?1 AND batch = ?2 AND state = ?3";
    let key = params![rule.cast_signed(), batch, OPEN, ENDING];
    db.prepare_cached(sql)?.execute(key)?;
    Ok(())
}

impl RuleRunner {
    async fn end_marked(&self, rule: u64) {
        loop {
            match self.try_end_marked(rule).await {
                Ok(true) | Err(Fault::Closed) => return,
                Ok(false) => {}
                Err(fault) => tracing::warn!(rule, %fault, "a batch that has its marker waits"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Closes the open batch of a hook if all files closed before its marker are queued. Returns whether the batch needs no further check.
    async fn try_end_marked(&self, rule: u64) -> Result<bool, Fault> {
        let shared = self.names.shared().clone();
        let look = move |db: &Connection| before(db, &shared, rule);
        let Some(before) = self.names.database().write(look).await? else {
            return Ok(true);
        };
        if before.walks {
            return Ok(false);
        }
        if !self
            .lease_recalls
            .unsettled(&before.written)
            .await?
            .is_empty()
        {
            return Ok(false);
        }
        let id = (rule, before.batch);
        self.names
            .database()
            .write(move |db: &Connection| end(db, id))
            .await?;
        self.names.shared().rules.wake();
        Ok(true)
    }
}
