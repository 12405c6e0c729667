//! Rules: what is run when a version of a file that matches a pattern becomes visible.
//!
//! `queue` writes a row for each version that matches, in the transaction that makes it visible; `driver` turns rows into
//! jobs, each with its rows in the transaction that keeps the job, so that a server that is killed at any moment fires each
//! version exactly once; `ends` sees what became of them; `rounds` has what hooks have mapped reduced, `markers` end rounds, `held` what they are to map wait for the end of a burst; `store` has the tables; `service` answers clients.

pub(crate) mod driver;
pub(crate) mod ends;
mod folder;
pub(crate) mod held;
mod inside;
mod markers;
pub(crate) mod noted;
mod pick;
mod queue;
pub(crate) mod rounds;
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
use tidemill_core::rule::hook::Keep;
use tokio::sync::Notify;

/// Rules of one ordinary user.
pub(crate) const RULES_EACH_MAX: usize = 100;
/// Rules of all users.
pub(crate) const RULES_MAX: usize = 1000;

/// What became of a version that matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub(crate) enum State {
    /// It is to be fired.
    Queued = 0,
    /// An earlier version of the same path has not ended.
    Waiting = 1,
    /// Its job is under way.
    Running = 2,
    /// Its task has ended well.
    Done = 3,
    /// Its task failed, or its job was refused.
    Failed = 4,
    /// The file was removed before it was fired.
    Gone = 5,
    /// The chain of firings that led to it was too long.
    Loop = 6,
    /// It holds something else than the rule is for.
    Other = 7,
}

/// How many rules have runs that failed, and how many runs these are.
pub(crate) fn failed(db: &Connection, rules: &Rules) -> Result<(u64, u64), Fault> {
    let sql = "SELECT count(*) FROM firing WHERE rule = ?1 AND state = ?2";
    let mut count = db.prepare_cached(sql)?;
    let (mut failing, mut runs) = (0, 0);
    for kept in rules.all().iter() {
        let key = params![kept.id.cast_signed(), State::Failed.number()];
        let failed: i64 = count.query_row(key, |row| row.get(0))?;
        failing += u64::from(failed > 0);
        runs += failed.cast_unsigned();
    }
    Ok((failing, runs))
}

impl State {
    pub(crate) const ALL: [(Self, &str); 8] = [
        (Self::Queued, "queued"),
        (Self::Waiting, "waiting"),
        (Self::Running, "running"),
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Gone, "gone"),
        (Self::Loop, "loop"),
        (Self::Other, "other"),
    ];

    /// The number that it is stored as.
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

/// A rule as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) id: u64,
    /// Whose it is, with the groups that they had when they made it.
    pub(crate) owner: Caller,
    pub(crate) revision: u64,
    /// Whether it fires for everybody's files, with the rights of the file's owner.
    pub(crate) for_all: bool,
    pub(crate) paused: bool,
    pub(crate) source: String,
    pub(crate) text: String,
    pub(crate) changed: i64,
    /// The folder whose attribute it is; 0: none.
    pub(crate) folder: u64,
    pub(crate) rule: Rule,
}

/// All rules, compiled, as whoever seals a version needs them.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    any: AtomicBool,
    any_growing: AtomicBool,
    any_keep: AtomicBool,
    any_rounds: AtomicBool,
    /// They were read within a transaction, which may not have been kept.
    unsure: AtomicBool,
    kept: RwLock<Arc<Vec<Arc<Kept>>>>,
    woken: Notify,
    marked: Notify,
}

impl Rules {
    /// Whether there are rules, or jobs of such that were removed: if not, nobody has to look.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<Kept>>> {
        self.kept.read().clone()
    }

    /// Whether there are rules that begin with what is still being written.
    pub(crate) fn any_growing(&self) -> bool {
        self.any_growing.load(Ordering::Acquire)
    }

    /// Whether there are hooks that have files go.
    pub(crate) fn any_keep(&self) -> bool {
        self.any_keep.load(Ordering::Acquire)
    }

    /// Whether there are hooks that reduce what they have mapped.
    fn any_rounds(&self) -> bool {
        self.any_rounds.load(Ordering::Acquire)
    }

    /// Whether the attribute of some folder is a rule.
    pub(crate) fn any_of_folder(&self) -> bool {
        self.any() && self.all().iter().any(|kept| kept.folder != 0)
    }

    /// Reads all rules anew, as they are in a transaction that may not be kept: the driver does so again behind it.
    pub(crate) fn load_within(&self, db: &Connection) -> Result<(), Fault> {
        self.unsure.store(true, Ordering::Release);
        self.woken.notify_one();
        self.load(db)
    }

    /// Whether they are to be read again; asks once.
    fn unsure(&self) -> bool {
        self.unsure.swap(false, Ordering::AcqRel)
    }

    /// Reads all rules anew.
    pub(crate) fn load(&self, db: &Connection) -> Result<(), Fault> {
        let kept = store::load(db, &self.all())?;
        let left = store::any_left(db)?;
        self.any.store(left || !kept.is_empty(), Ordering::Release);
        let growing = left || kept.iter().any(|kept| kept.rule.growing);
        self.any_growing.store(growing, Ordering::Release);
        let hooks = || kept.iter().filter_map(|kept| kept.rule.hook.as_ref());
        let keep = hooks().any(|hook| hook.spec.keep != Keep::All);
        self.any_keep.store(keep, Ordering::Release);
        let rounds = hooks().any(|hook| hook.rounds.is_some());
        self.any_rounds.store(rounds, Ordering::Release);
        *self.kept.write() = Arc::new(kept);
        Ok(())
    }

    /// Has the driver look: something was queued, or a job has ended. It writes first of all, so it comes after whoever
    /// calls this in a transaction.
    pub(crate) fn wake(&self) {
        if self.any() {
            self.woken.notify_one();
        }
    }

    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The same of whoever sees to markers of rounds: one has come.
    fn wake_for_marker(&self) {
        self.marked.notify_one();
    }

    async fn woken_for_marker(&self) {
        self.marked.notified().await;
    }
}
