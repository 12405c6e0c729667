//! Markers, which end rounds of hooks. A file that was closed before a marker belongs to its round, though it may be seen after the
//! marker: a version is sealed a moment after its file was closed, or later if its node is offline, and files of a moved directory are
//! examined one after the other. A marker is therefore recorded with the open round, and the round ends when all these files have
//! arrived.

use super::Kept;
use super::driver::Firer;
use super::rounds::{ENDING, OPEN, ends, files_written};
use super::store::one;
use crate::names::Fault;
use crate::names::shared::Shared;
use crate::names::transaction::Tx;
use crate::names::vnode::Vnode;
use rusqlite::{Connection, params};
use std::collections::BTreeSet;
use std::time::Duration;
use tidemill_core::rule::hook::Ends;
use tokio::task::JoinSet;

/// Pause before another check whether a round can end.
const PAUSE: Duration = Duration::from_millis(100);

impl Tx<'_> {
    /// Checks whether a file is the marker of a hook's round, and records the marker.
    pub(super) fn marks(&self, kept: &Kept, vnode: &Vnode, path: &str) -> Result<(), Fault> {
        let Some(Ends::Marker(marker)) = ends(kept) else {
            return Ok(());
        };
        let below = kept.rule.below(path);
        if below.is_some_and(|below| marker.matches(below)) && self.seen_by(kept, vnode)? {
            self.mark(kept.id)?;
        }
        Ok(())
    }

    /// Records with the open round of a hook that its marker has arrived.
    pub(super) fn mark(&self, rule: u64) -> Result<(), Fault> {
        let round = self.open_round(rule)?;
        let sql = "UPDATE round SET ended = ?3 WHERE rule = ?1 AND round = ?2 AND ended = 0";
        let key = params![rule.cast_signed(), round, self.now.max(1)];
        self.db.prepare_cached(sql)?.execute(key)?;
        self.shared.rules.wake_for_marker();
        Ok(())
    }
}

/// Returns the number of a hook's open round if its marker has arrived, or `None`.
pub(super) fn marked(db: &Connection, rule: u64) -> Result<Option<i64>, Fault> {
    let sql =
        "SELECT round FROM round WHERE state = ?2 AND state <= 2 AND rule = ?1 AND ended != 0";
    one(db, sql, params![rule.cast_signed(), OPEN], |row| row.get(0))
}

/// Returns the hooks whose open round has its marker.
fn all_marked(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT rule FROM round WHERE state = ?1 AND state <= 2 AND ended != 0";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([OPEN], |row| row.get::<_, i64>(0))?;
    let rules = rows.map(|rule| rule.map(i64::cast_unsigned));
    Ok(rules.collect::<Result<_, _>>()?)
}

/// Ends rounds that have their marker, for as long as the server runs.
pub(super) async fn run(firer: Firer) {
    let mut ending: JoinSet<u64> = JoinSet::new();
    let mut busy = BTreeSet::new();
    loop {
        // The query runs as a write, so that it follows the transaction that woke the task.
        match firer.names.database().write(all_marked).await {
            Ok(rules) => {
                for rule in rules.into_iter().filter(|rule| busy.insert(*rule)) {
                    let firer = firer.clone();
                    ending.spawn(async move {
                        firer.end_marked(rule).await;
                        rule
                    });
                }
            }
            Err(Fault::Closed) => return,
            Err(fault) => {
                fault.put_off("markers of hooks wait");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        }
        tokio::select! {
            () = firer.names.shared().rules.woken_for_marker() => {}
            Some(ended) = ending.join_next() => match ended {
                Ok(rule) => { busy.remove(&rule); }
                Err(_) => busy.clear(),
            },
        }
    }
}

/// Files that must arrive before an open round with a marker can end.
struct Before {
    round: i64,
    /// Whether existing or moved files are still being examined.
    walks: bool,
    /// Files that are being written, or were written and closed.
    written: Vec<u64>,
}

fn before(db: &Connection, shared: &Shared, rule: u64) -> Result<Option<Before>, Fault> {
    let rules = shared.rules.all();
    let kept = rules.iter().find(|kept| kept.id == rule);
    let (Some(kept), Some(round)) = (kept, marked(db, rule)?) else {
        return Ok(None);
    };
    let sql = "SELECT 1 FROM rule_walk WHERE rule IN (0, ?1)";
    let walks = db.prepare_cached(sql)?.exists([rule.cast_signed()])?;
    let written = files_written(db, shared)?.into_iter();
    let written = written.filter(|(_, path)| kept.rule.matches(path));
    Ok(Some(Before {
        round,
        walks,
        written: written.map(|(ino, _)| ino).collect(),
    }))
}

/// Ends a round. A round without files is deleted.
fn end(db: &Connection, (rule, round): (u64, i64)) -> Result<(), Fault> {
    let key = params![rule.cast_signed(), round, OPEN];
    let sql = "DELETE FROM round WHERE rule = ?1 AND round = ?2 AND state = ?3 AND NOT EXISTS (SELECT 1 FROM firing \
               WHERE firing.rule = ?1 AND firing.round = ?2 AND firing.round != 0)";
    db.prepare_cached(sql)?.execute(key)?;
    let sql =
        "UPDATE round SET state = ?4, ended = 0 WHERE rule = ?1 AND round = ?2 AND state = ?3";
    let key = params![rule.cast_signed(), round, OPEN, ENDING];
    db.prepare_cached(sql)?.execute(key)?;
    Ok(())
}

impl Firer {
    async fn end_marked(&self, rule: u64) {
        loop {
            match self.try_end_marked(rule).await {
                Ok(true) | Err(Fault::Closed) => return,
                Ok(false) => {}
                Err(fault) => tracing::warn!(rule, %fault, "a round that has its marker waits"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Ends the open round of a hook if all files closed before its marker have arrived. Returns whether the round was handled.
    async fn try_end_marked(&self, rule: u64) -> Result<bool, Fault> {
        let shared = self.names.shared().clone();
        let look = move |db: &Connection| before(db, &shared, rule);
        let Some(before) = self.names.database().write(look).await? else {
            return Ok(true);
        };
        if before.walks {
            return Ok(false);
        }
        if !self.recalls.unsettled(&before.written).await?.is_empty() {
            return Ok(false);
        }
        let id = (rule, before.round);
        self.names
            .database()
            .write(move |db: &Connection| end(db, id))
            .await?;
        self.names.shared().rules.wake();
        Ok(true)
    }
}
