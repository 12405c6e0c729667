//! Markers, which close batches of hooks. A file that was closed before a marker belongs to the marker's batch, though the server may see
//! the file after the marker: a version is sealed a moment after its file was closed, or later if its node is offline, and files of a moved
//! directory are examined one after the other. The server therefore records the marker with the open batch, and closes the batch when all
//! these files are queued.

use super::driver::RuleRunner;
use crate::clock;
use std::collections::BTreeSet;
use std::time::Duration;
use tidemill_meta::rules::{self, batches, walks};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Connection, Fault};
use tokio::task::JoinSet;

/// Pause before another check whether a batch with a marker can be closed.
const PAUSE: Duration = Duration::from_millis(100);

/// Closes batches whose marker was sealed, as long as the server runs.
pub(super) async fn run(rule_runner: RuleRunner) {
    let mut ending: JoinSet<u64> = JoinSet::new();
    let mut busy = BTreeSet::new();
    loop {
        // The query runs as a write, so that it follows the transaction that woke the task.
        match rule_runner
            .names
            .database()
            .write(batches::marked_rules)
            .await
        {
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
    batch: u64,
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
    let (Some(kept), Some(open)) = (kept, batches::open(db, rule)?.filter(|open| open.marked))
    else {
        return Ok(None);
    };
    let walks = walks::any(db, rule)?;
    let written = batches::files_written(db, shared, i64::MAX)?.into_iter();
    let written = written.filter(|(_, path)| kept.rule.matches(path));
    Ok(Some(PendingMarker {
        batch: open.batch,
        walks,
        written: written.map(|(ino, _)| ino).collect(),
    }))
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
        let look = move |db: &Connection| {
            rules::take_all(db, &shared, clock::now_ns())?;
            before(db, &shared, rule)
        };
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
        let shared = self.names.shared().clone();
        let end = move |db: &Connection| {
            // Files that were sealed since the first look belong to the batch.
            rules::take_all(db, &shared, clock::now_ns())?;
            batches::end_marked(db, rule, before.batch)
        };
        self.names.database().write(end).await?;
        self.names.shared().rules.wake();
        Ok(true)
    }
}
