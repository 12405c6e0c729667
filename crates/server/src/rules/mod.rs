//! Rules: work that runs when a version of a matching file becomes visible. The modules write the tables of rules in the server's
//! database. Next: `server/src/jobs`, whose driver runs the jobs of rules.
//!
//! - `queue` writes a row for each version that matches a rule, in the transaction that makes the version visible.
//! - `driver` turns rows into jobs. The transaction that stores a job also updates the rows, so that even a server that is killed at any
//!   moment triggers each rule exactly once per version.
//! - `run_outcome` records the outcomes of the jobs that rules have started.
//! - `batches` starts the jobs that reduce the results of a hook's map tasks.
//! - `markers` closes a batch when a marker file appears.
//! - `deferred` delays map tasks of hooks until the end of a burst of writes.
//! - `store` reads and writes the tables of rules.
//! - `service` answers clients' requests about rules.

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
use tidemill_client::users;
use tidemill_lang::rule::Rule;
use tidemill_lang::rule::hook::InputAction;
use tokio::sync::Notify;

/// Maximum number of rules of one ordinary user.
pub(crate) const RULES_EACH_MAX: usize = 100;
/// Maximum number of rules of all users.
pub(crate) const RULES_MAX: usize = 1000;

/// State of a version that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub(crate) enum MatchState {
    /// The version is queued and will trigger the rule.
    Queued = 0,
    /// The rule run for an earlier version of the same path has not ended.
    Waiting = 1,
    /// The job of the rule run is running.
    Running = 2,
    /// The task of the rule run has succeeded.
    Done = 3,
    /// The task of the rule run failed, or the server refused its job.
    Failed = 4,
    /// The file was deleted before the rule ran.
    Deleted = 5,
    /// The version results from a chain of rule runs that exceeds the recursion limit.
    Loop = 6,
    /// The content of the version does not have the type that the rule requires.
    Other = 7,
}

/// Looks up the users in a rule's conditions. Returns an error if a user does not exist.
fn check_users(source: &str, rule: &mut Rule) -> Result<(), String> {
    let unknown = rule.conditions.find_users(users::uid);
    match unknown.first() {
        Some(user) => Err(format!(
            "{source}: setting \"where\": user {user} does not exist; write the name or number of a user of the server's host"
        )),
        None => Ok(()),
    }
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

    /// Returns the number that represents the state in the database.
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

/// A rule as stored in the database.
#[derive(Clone, Debug)]
pub(crate) struct StoredRule {
    pub(crate) id: u64,
    /// Owner of the rule, with the owner's groups at the time of the rule's creation.
    pub(crate) owner: Caller,
    pub(crate) revision: u64,
    /// Whether the rule runs for the files of all users, with the rights of the file's owner.
    pub(crate) for_all: bool,
    pub(crate) paused: bool,
    pub(crate) source: String,
    pub(crate) text: String,
    pub(crate) changed: i64,
    /// Inode of the directory that has the rule as its attribute; 0 for a rule without such a directory.
    pub(crate) directory: u64,
    pub(crate) rule: Rule,
}

/// All rules, compiled so that each seal of a version can be compared with them.
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
    /// Whether there are rules, or jobs of removed rules. If not, seals need no check.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<StoredRule>>> {
        self.kept.read().clone()
    }

    /// Whether there are rules that start while a file is still being written.
    pub(crate) fn any_streaming(&self) -> bool {
        self.any_streaming.load(Ordering::Acquire)
    }

    /// Whether there are hooks that delete or evict their input files.
    pub(crate) fn any_input_action(&self) -> bool {
        self.any_input_action.load(Ordering::Acquire)
    }

    /// Whether there are hooks that reduce the results of their map tasks.
    fn any_batches(&self) -> bool {
        self.any_batches.load(Ordering::Acquire)
    }

    /// Whether any directory has a rule as its attribute.
    pub(crate) fn any_of_directory(&self) -> bool {
        self.any() && self.all().iter().any(|kept| kept.directory != 0)
    }

    /// Reads all rules in a transaction that may still fail. The driver reads the rules again after the transaction.
    pub(crate) fn load_within(&self, db: &Connection) -> Result<(), Fault> {
        self.unsure.store(true, Ordering::Release);
        self.woken.notify_one();
        self.load(db)
    }

    /// Whether the driver has to read the rules again. The call resets this flag.
    fn unsure(&self) -> bool {
        self.unsure.swap(false, Ordering::AcqRel)
    }

    /// Reads all rules from the database.
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

    /// Wakes the driver after a rule run was queued or a job has ended. The driver writes to the database first, so the driver runs after
    /// the transaction that calls this function.
    pub(crate) fn wake(&self) {
        if self.any() {
            self.woken.notify_one();
        }
    }

    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Wakes the task that processes marker files, after a marker file was sealed.
    fn wake_for_marker(&self) {
        self.marked.notify_one();
    }

    async fn woken_for_marker(&self) {
        self.marked.notified().await;
    }
}
