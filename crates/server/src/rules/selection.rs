//! Selection of the next rule run: fair among users, then among a user's rules, then among the users whose files match a rule. This module
//! only reads the database.

use super::deferred::Deferred;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_lang::rule::FileGrouping;
use tidemill_meta::rules::runs::{self, RuleRun};
use tidemill_meta::rules::{StoredRule, jobs};
use tidemill_meta::{Connection, Fault};

/// Maximum number of files that one job of a rule processes.
pub(super) const FILES_MAX: usize = 1000;
/// Maximum number of running jobs of one rule for one user.
const JOBS_EACH_MAX: u32 = 16;
/// Maximum number of running jobs of all rules.
const JOBS_MAX: u32 = 64;
/// Number of running jobs that a user may have even beyond `JOBS_MAX`, so that no user waits for the jobs of others.
const JOBS_ALWAYS: u32 = 4;
/// Number of running tasks of a user from which no further jobs are started, since other users would wait for the tasks.
const TASKS_EACH_MAX: u32 = 2000;
/// Maximum number of users that are examined for one job of a rule.
const LANES_MAX: usize = 100;
/// Number of running jobs from which the next job waits until it has `FILES_MAX` files or [`GATHER_NS`] have passed.
const JOBS_AT_ONCE: u32 = 4;
const GATHER_NS: i64 = 100_000_000;

/// Files that one task processes.
pub(super) type TaskRuns = Vec<RuleRun>;

/// Contents of the next job of a rule.
#[derive(Clone, Debug)]
pub(super) struct PickedJob {
    pub(super) kept: Arc<StoredRule>,
    /// User with whose rights the job runs.
    pub(super) uid: u32,
    pub(super) tasks: Vec<TaskRuns>,
}

/// State of the fair selection: when each rule and each user was last selected.
#[derive(Debug, Default)]
pub(super) struct SelectionState {
    /// Number of the last selection of each rule.
    last: BTreeMap<u64, u64>,
    /// Number of the last selection of each owner of rules.
    last_of: BTreeMap<u32, u64>,
    /// User of the files for which each rule was last selected.
    uids: BTreeMap<u64, u32>,
    turn: u64,
}

/// Next step of the driver.
#[derive(Debug)]
pub(super) enum DriverStep {
    Trigger(PickedJob),
    /// No rule run is due before this time, in nanoseconds since the Unix epoch; `None`: the driver waits for an event.
    Wait(Option<i64>),
}

impl SelectionState {
    /// Returns the next job to start, of a rule that is not in `busy`.
    pub(super) fn next(
        &mut self,
        db: &Connection,
        rules: &[Arc<StoredRule>],
        busy: &BTreeSet<u64>,
        (held, now): (&Deferred, i64),
    ) -> Result<DriverStep, Fault> {
        let open = OpenJobs {
            jobs: jobs::open(db)?,
            tasks: runs::running_tasks(db)?,
        };
        let mut wait = None;
        let mut order: Vec<&Arc<StoredRule>> = rules.iter().filter(|kept| !kept.paused).collect();
        let last = |kept: &StoredRule| {
            let user = self.last_of.get(&kept.owner.uid).copied().unwrap_or(0);
            (user, self.last.get(&kept.id).copied().unwrap_or(0), kept.id)
        };
        order.sort_by_key(|kept| last(kept));
        for kept in order {
            if busy.contains(&kept.id) {
                continue;
            }
            let after = self.uids.get(&kept.id).copied();
            match of_rule(db, kept, after, &open, (held, now))? {
                Ok((uid, tasks)) => {
                    self.turn += 1;
                    self.last.insert(kept.id, self.turn);
                    self.last_of.insert(kept.owner.uid, self.turn);
                    self.uids.insert(kept.id, uid);
                    let kept = Arc::clone(kept);
                    return Ok(DriverStep::Trigger(PickedJob { kept, uid, tasks }));
                }
                Err(at) => wait = [wait, at].into_iter().flatten().min(),
            }
        }
        Ok(DriverStep::Wait(wait))
    }

    /// Removes the state of rules that no longer exist.
    pub(super) fn keep(&mut self, rules: &[Arc<StoredRule>]) {
        self.last
            .retain(|id, _| rules.iter().any(|kept| kept.id == *id));
        self.uids
            .retain(|id, _| rules.iter().any(|kept| kept.id == *id));
        self.last_of
            .retain(|uid, _| rules.iter().any(|kept| kept.owner.uid == *uid));
    }
}

/// Number of running jobs by rule and user with whose rights the jobs run, and number of running tasks of each user.
struct OpenJobs {
    jobs: BTreeMap<(u64, u32), u32>,
    tasks: BTreeMap<u32, u32>,
}

impl OpenJobs {
    fn of(&self, rule: u64, uid: u32) -> u32 {
        self.jobs.get(&(rule, uid)).copied().unwrap_or(0)
    }

    /// Whether another job of a rule may start for a user.
    fn takes(&self, rule: u64, uid: u32) -> bool {
        let tasks = self.tasks.get(&uid).copied().unwrap_or(0);
        let all: u32 = self.jobs.values().sum();
        let users = self.jobs.iter().filter(|((_, other), _)| *other == uid);
        let users: u32 = users.map(|(_, jobs)| jobs).sum();
        let few = self.of(rule, uid) < JOBS_EACH_MAX && tasks < TASKS_EACH_MAX;
        few && (all < JOBS_MAX || users < JOBS_ALWAYS)
    }
}

/// Work that is due, or the time at which work may be due, in nanoseconds since the Unix epoch.
type DueWork<T> = Result<T, Option<i64>>;

/// Returns the next job of a rule, for the next of the users whose files match.
fn of_rule(
    db: &Connection,
    kept: &StoredRule,
    mut after: Option<u32>,
    open: &OpenJobs,
    (held, now): (&Deferred, i64),
) -> Result<DueWork<(u32, Vec<TaskRuns>)>, Fault> {
    let mut wait: Option<i64> = None;
    let mut first = None;
    for _ in 0..LANES_MAX {
        let Some((uid, queued)) = runs::next_user(db, kept.id, after)? else {
            break;
        };
        if first == Some(uid) {
            break;
        }
        first.get_or_insert(uid);
        after = Some(uid);
        if !open.takes(kept.id, uid) {
            continue;
        }
        match of_lane(db, kept, uid, (open.of(kept.id, uid), queued), (held, now))? {
            Ok(tasks) => return Ok(Ok((uid, tasks))),
            Err(at) => wait = [wait, at].into_iter().flatten().min(),
        }
    }
    Ok(Err(wait))
}

/// Returns the tasks of a rule's next job for one user, or the time at which tasks may be due.
#[allow(
    clippy::type_complexity,
    reason = "work that is not due yet is not an error"
)]
fn of_lane(
    db: &Connection,
    kept: &StoredRule,
    uid: u32,
    (jobs, queued): (u32, i64),
    (held, now): (&Deferred, i64),
) -> Result<DueWork<Vec<TaskRuns>>, Fault> {
    let batch = kept.rule.batch;
    let each = batch.map_or(1, |batch| batch.files as usize);
    // An abandoned file ends a job, so the job has only one file.
    let most = if kept.rule.streaming { 1 } else { FILES_MAX };
    let rule_runs = match queued_of(db, kept, uid, each.max(most), (held, now))? {
        Ok(rule_runs) => rule_runs,
        Err(at) => return Ok(Err(Some(at))),
    };
    let full = rule_runs.len() / each;
    let late = |at: i64| if at <= now { None } else { Some(at) };
    let tasks = match batch {
        None if jobs >= JOBS_AT_ONCE && full < most => {
            if let Some(at) = late(queued.saturating_add(GATHER_NS)) {
                return Ok(Err(Some(at)));
            }
            full
        }
        None => full,
        Some(FileGrouping { after, .. }) => {
            match after.map(|after| queued.saturating_add_unsigned(after.0)) {
                Some(at) if late(at).is_none() => rule_runs.len().div_ceil(each),
                at if full == 0 => return Ok(Err(at)),
                _ => full,
            }
        }
    };
    let mut rule_runs = rule_runs.into_iter();
    let tasks = (0..tasks).map(|_| rule_runs.by_ref().take(each).collect());
    Ok(Ok(tasks.collect()))
}

/// Returns the files that are queued for a rule and a user, the oldest first, without files that wait for the end of a burst. If all files
/// wait, returns the earliest time at which a file may be mapped.
fn queued_of(
    db: &Connection,
    kept: &StoredRule,
    uid: u32,
    limit: usize,
    (held, now): (&Deferred, i64),
) -> Result<Result<Vec<RuleRun>, i64>, Fault> {
    let (mut rule_runs, mut first, mut of_batch) = (Vec::new(), None::<i64>, None);
    runs::read_queued(db, (kept.id, uid), limit.max(FILES_MAX), |one| {
        match held.until(kept, one.since, now) {
            Some(at) => first = first.into_iter().chain([at]).min(),
            // Files that are mapped together are reduced together.
            None if kept.rule.batch.is_some()
                && *of_batch.get_or_insert(one.batch) != one.batch => {}
            None => rule_runs.push(one),
        }
        rule_runs.len() < limit
    })?;
    Ok(match first {
        Some(at) if rule_runs.is_empty() => Err(at),
        _ => Ok(rule_runs),
    })
}
