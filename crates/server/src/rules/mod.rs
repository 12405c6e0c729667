//! Rules: work that runs when a version of a matching file becomes visible. The modules write the tables of rules in the server's
//! database. Next: `server/src/jobs`, whose driver runs the jobs of rules.
//!
//! - `queue` writes a row for each matching version, in the transaction that makes the version visible.
//! - `driver` turns rows into jobs. The transaction that stores a job also updates its rows, so that a server that is killed at any
//!   moment triggers each rule exactly once per version.
//! - `run_outcome` records the ends of the jobs.
//! - `batches` has the results of hooks' maps reduced.
//! - `markers` ends batches.
//! - `deferred` makes maps of hooks wait for the end of a burst.
//! - `store` has the tables.
//! - `service` answers clients.

pub(crate) mod batches;
mod content_check;
pub(crate) mod deferred;
mod directory;
pub(crate) mod driver;
mod markers;
pub(crate) mod noted;
mod queue;
pub(crate) mod run_outcome;
mod selection;
pub(crate) mod service;
#[cfg(feature = "simulation")]
mod simulated;
mod store;
mod walk;

use crate::names::{Caller, Fault};
use parking_lot::RwLock;
use rusqlite::{Connection, params};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_core::rule::Rule;
use tidemill_core::rule::hook::InputAction;
use tokio::sync::Notify;

/// Maximum number of rules of one ordinary user.
pub(crate) const RULES_EACH_MAX: usize = 100;
/// Maximum number of rules of all users.
pub(crate) const RULES_MAX: usize = 1000;

/// State of a matching version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub(crate) enum MatchState {
    /// The version is to trigger the rule.
    Queued = 0,
    /// An earlier version of the same path has not ended.
    Waiting = 1,
    /// Its job is running.
    Running = 2,
    /// Its task has succeeded.
    Done = 3,
    /// Its task failed, or its job was refused.
    Failed = 4,
    /// The file was deleted before the rule run.
    Deleted = 5,
    /// The chain of rule runs that led to the version was too long.
    Loop = 6,
    /// The content of the version is not of the kind for which the rule is.
    Other = 7,
}

/// Returns the number of rules with failed runs, and the number of these runs.
pub(crate) fn failed(db: &Connection, rules: &Rules) -> Result<(u64, u64), Fault> {
    let sql = "SELECT count(*) FROM rule_run WHERE rule = ?1 AND state = ?2";
    let mut count = db.prepare_cached(sql)?;
    let (mut failing, mut runs) = (0, 0);
    for kept in rules.all().iter() {
        let key = params![kept.id.cast_signed(), MatchState::Failed.number()];
        let failed: i64 = count.query_row(key, |row| row.get(0))?;
        failing += u64::from(failed > 0);
        runs += failed.cast_unsigned();
    }
    Ok((failing, runs))
}

impl MatchState {
    pub(crate) const ALL: [(Self, &str); 8] = [
        (Self::Queued, "queued"),
        (Self::Waiting, "waiting"),
        (Self::Running, "running"),
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Deleted, "deleted"),
        (Self::Loop, "loop"),
        (Self::Other, "other"),
    ];

    /// Returns the number that is stored for the state.
    pub(crate) fn number(self) -> i64 {
        self as i64
    }

    pub(crate) fn name_of(number: i64) -> &'static str {
        let found = Self::ALL.iter().find(|(state, _)| state.number() == number);
        found.map_or("unknown", |(_, name)| name)
    }

    pub(crate) fn called(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(_, known)| *known == name)
            .map(|(state, _)| *state)
    }
}

/// A stored rule.
#[derive(Clone, Debug)]
pub(crate) struct StoredRule {
    pub(crate) id: u64,
    /// Owner of the rule, with the groups at the time of its creation.
    pub(crate) owner: Caller,
    pub(crate) revision: u64,
    /// Whether the rule runs for the files of all users, with the rights of the file's owner.
    pub(crate) for_all: bool,
    pub(crate) paused: bool,
    pub(crate) source: String,
    pub(crate) text: String,
    pub(crate) changed: i64,
    /// Directory that has the rule as its attribute; 0: none.
    pub(crate) directory: u64,
    pub(crate) rule: Rule,
}

/// All rules, compiled for the check at each seal.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    any: AtomicBool,
    any_streaming: AtomicBool,
    any_input_action: AtomicBool,
    any_batches: AtomicBool,
    /// Whether the rules were read within a transaction that may have failed.
    unsure: AtomicBool,
    kept: RwLock<Arc<Vec<Arc<StoredRule>>>>,
    woken: Notify,
    marked: Notify,
}

impl Rules {
    /// Whether there are rules, or jobs of removed rules. If not, no check is necessary.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<StoredRule>>> {
        self.kept.read().clone()
    }

    /// Whether there are rules that begin while a file is still being written.
    pub(crate) fn any_streaming(&self) -> bool {
        self.any_streaming.load(Ordering::Acquire)
    }

    /// Whether there are hooks that delete files.
    pub(crate) fn any_input_action(&self) -> bool {
        self.any_input_action.load(Ordering::Acquire)
    }

    /// Whether there are hooks that reduce the results of their maps.
    fn any_batches(&self) -> bool {
        self.any_batches.load(Ordering::Acquire)
    }

    /// Whether any directory has a rule as its attribute.
    pub(crate) fn any_of_directory(&self) -> bool {
        self.any() && self.all().iter().any(|kept| kept.directory != 0)
    }

    /// Reads all rules in a transaction that may still fail. The driver reads them again after the transaction.
    pub(crate) fn load_within(&self, db: &Connection) -> Result<(), Fault> {
        self.unsure.store(true, Ordering::Release);
        self.woken.notify_one();
        self.load(db)
    }

    /// Whether the rules have to be read again. The call resets the flag.
    fn unsure(&self) -> bool {
        self.unsure.swap(false, Ordering::AcqRel)
    }

    /// Reads all rules.
    pub(crate) fn load(&self, db: &Connection) -> Result<(), Fault> {
        let kept = store::load(db, &self.all())?;
        let left = store::any_left(db)?;
        self.any.store(left || !kept.is_empty(), Ordering::Release);
        let streaming = left || kept.iter().any(|kept| kept.rule.streaming);
        self.any_streaming.store(streaming, Ordering::Release);
        let hooks = || kept.iter().filter_map(|kept| kept.rule.hook.as_ref());
        let input_action = hooks().any(|hook| hook.spec.inputs != InputAction::Keep);
        self.any_input_action.store(input_action, Ordering::Release);
        let batches = hooks().any(|hook| hook.batches.is_some());
        self.any_batches.store(batches, Ordering::Release);
        *self.kept.write() = Arc::new(kept);
        Ok(())
    }

    /// Wakes the driver after a rule run was queued or a job has ended. The driver writes to the database first, so it runs after a
    /// transaction that calls this function.
    pub(crate) fn wake(&self) {
        if self.any() {
            self.woken.notify_one();
        }
    }

    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Wakes the task for the markers of batches after a marker has arrived.
    fn wake_for_marker(&self) {
        self.marked.notify_one();
    }

    async fn woken_for_marker(&self) {
        self.marked.notified().await;
    }
}
