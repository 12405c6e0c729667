//! Compares the feed with the rules and turns queued rule runs into jobs, as long as the server runs. The driver sleeps until a row of the
//! feed concerns a rule or a job of a rule has ended.
//! Next: `server/src/jobs`, whose driver runs the jobs.

use super::deferred::Deferred;
use super::selection::{DriverStep, PickedJob, SelectionState, TaskRuns};
use super::{batches, markers};
use crate::access::aside;
use crate::clock;
use crate::cluster::Cluster;
use crate::files::{FileService, SourceNodes};
use crate::jobs::mapper_jobs::ProgramMappers;
use crate::jobs::submit::{JobRefusal, PinnedVersions, Submission, submit_given};
use crate::jobs::{DriverMessage, SubmittedJob};
use crate::lease_recall::LeaseRecalls;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_client::users;
use tidemill_lang::rule::FillError;
use tidemill_meta::jobs::output_paths::Links;
use tidemill_meta::jobs::records;
use tidemill_meta::rules::runs::{self, ABANDONED, MatchState, RuleRun};
use tidemill_meta::rules::{self, FeedStep, StoredRule, input_deletion, jobs, walks};
use tidemill_meta::vnode::InodeRecord;
use tidemill_meta::{Caller, Change, Changed, Connection, Fault, SqliteNames, version};
use tidemill_model::id::{JobId, ObjectId};
use tokio::task::JoinSet;

/// Maximum number of rules for which jobs are created at the same time.
const RULE_RUNS_MAX: usize = 8;
/// Pause before a rule run is retried because the database fails, or because another job writes the same outputs.
const AGAIN: Duration = Duration::from_secs(1);
/// Pause after each search for due rule runs. Files that are sealed during the pause cause one search together.
const REST: Duration = Duration::from_millis(1);
/// Minimum interval between two searches for due rule runs while map tasks wait for the end of a burst, to save processor time.
const CALM: Duration = Duration::from_millis(50);
/// Maximum size of a job's script in bytes. Tasks beyond this size are put into another job.
const SCRIPT_BYTES_MAX: usize = 4 << 20;

/// Parts of the server that the execution of rules needs.
#[derive(Clone, Debug)]
pub(crate) struct RuleRunner {
    pub(super) names: Arc<SqliteNames>,
    pub(super) lease_recalls: LeaseRecalls,
    pub(super) cluster: Arc<Cluster>,
    /// Access to the contents of files; `None` in a simulation, where rules accept all contents.
    pub(super) nodes: Option<SourceNodes>,
    pub(super) driver: Sender<DriverMessage>,
}

/// Creates jobs for rule runs as long as the server runs.
async fn run(rule_runner: RuleRunner) {
    let turns = Arc::new(Mutex::new(SelectionState::default()));
    let mut busy = BTreeSet::new();
    let mut running: JoinSet<(u64, bool)> = JoinSet::new();
    // Rules that could not run, and the times of their next tries.
    let mut held: BTreeMap<u64, tokio::time::Instant> = BTreeMap::new();
    if let Err(fault) = rule_runner.forget().await {
        fault.log_delay("rows of removed rules are kept for now");
    }
    loop {
        let now = tokio::time::Instant::now();
        held.retain(|_, until| *until > now);
        let mut skipped = busy.clone();
        skipped.extend(held.keys());
        let mut until = held.values().min().copied();
        let next = match running.len() < RULE_RUNS_MAX {
            true => rule_runner.next(&turns, skipped).await,
            false => Ok(RuleAction::Wait(None)),
        };
        let mut rest = REST;
        match next {
            Ok(RuleAction::More) => continue,
            Ok(RuleAction::Reduce(reduce)) => {
                let (id, rule_runner) = (reduce.kept.id, rule_runner.clone());
                busy.insert(id);
                running.spawn(async move { (id, rule_runner.reduce(reduce).await) });
                continue;
            }
            Ok(RuleAction::Trigger(picked)) => {
                let (id, rule_runner) = (picked.kept.id, rule_runner.clone());
                busy.insert(id);
                running.spawn(async move { (id, rule_runner.trigger(picked).await) });
                continue;
            }
            Ok(RuleAction::Deferred(at) | RuleAction::Wait(at)) => {
                if matches!(next, Ok(RuleAction::Deferred(_))) {
                    rest = CALM;
                }
                let at = at.map(|at| at.saturating_sub(clock::now_ns()).max(0).unsigned_abs());
                let at = at.map(|ns| now + Duration::from_nanos(ns));
                until = until.into_iter().chain(at).min();
            }
            Err(Fault::Closed) => return,
            Err(fault) => {
                fault.log_delay("rules wait");
                until = Some(now + AGAIN);
            }
        }
        tokio::select! {
            () = rule_runner.names.shared().rules.woken() => {}
            () = rule_runner.concerned() => {}
            () = sleep_until(until) => {}
            Some(ended) = running.join_next() => {
                // A task that panicked has stored nothing: its rule is no longer busy either way.
                match ended {
                    Ok((id, true)) => { busy.remove(&id); }
                    Ok((id, false)) => {
                        busy.remove(&id);
                        held.insert(id, tokio::time::Instant::now() + AGAIN);
                    }
                    Err(_) => busy.clear(),
                }
            }
        }
        tokio::time::sleep(rest).await;
    }
}

/// Waits until a time; forever if there is none.
async fn sleep_until(until: Option<tokio::time::Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

enum RuleAction {
    /// More work may be due at once.
    More,
    Trigger(PickedJob),
    Reduce(batches::Reduce),
    Wait(Option<i64>),
    /// As `Wait`, while files that match a rule are being written.
    Deferred(Option<i64>),
}

/// Result of one transaction of the driver.
struct NextStep {
    action: RuleAction,
    /// Jobs that are to be cancelled.
    in_vain: Vec<u64>,
    changes: Vec<Change>,
    taken: FeedStep,
}

impl Default for NextStep {
    fn default() -> Self {
        Self {
            action: RuleAction::Wait(None),
            in_vain: Vec::new(),
            changes: Vec::new(),
            taken: FeedStep::default(),
        }
    }
}

impl RuleRunner {
    /// Starts the tasks that create jobs for rule runs, which run as long as the server runs.
    pub(crate) fn start(
        (names, lease_recalls, cluster): (&Arc<SqliteNames>, &LeaseRecalls, &Arc<Cluster>),
        files: Option<&FileService>,
        driver: &Sender<DriverMessage>,
    ) -> Self {
        let rule_runner = Self {
            nodes: files.map(|files| files.nodes().clone()),
            names: names.clone(),
            lease_recalls: lease_recalls.clone(),
            cluster: cluster.clone(),
            driver: driver.clone(),
        };
        tokio::spawn(run(rule_runner.clone()));
        tokio::spawn(markers::run(rule_runner.clone()));
        rule_runner
    }

    /// Waits until a row of the feed concerns a rule. A row that concerns none causes no commit.
    async fn concerned(&self) {
        let shared = self.names.shared();
        loop {
            shared.rules.fed().await;
            tokio::time::sleep(REST).await;
            // The work runs as a write, so that it follows the transaction that wrote the row.
            let taken = shared.clone();
            let take = move |db: &Connection| rules::take(db, &taken, clock::now_ns());
            let Ok(step) = self.names.database().write(take).await else {
                // The driver reports the failure.
                return;
            };
            step.committed(shared);
            if step.due || step.more {
                return;
            }
        }
    }

    /// Compares the feed with the rules, records ended jobs and existing files, and picks the next rule run. The database write in this
    /// function follows the write that woke the driver.
    async fn next(
        &self,
        turns: &Arc<Mutex<SelectionState>>,
        skipped: BTreeSet<u64>,
    ) -> Result<RuleAction, Fault> {
        let (shared, turns) = (self.names.shared().clone(), turns.clone());
        let work = move |db: &Connection| {
            let now = clock::now_ns();
            if shared.rules.unsure() {
                shared.rules.load(db)?;
                let mut more = false;
                for rule in runs::removed_rules(db)? {
                    more |= runs::forget(db, rule)?;
                }
                if more {
                    shared.rules.doubt();
                }
            }
            let rules = shared.rules.all();
            let mut next = NextStep::default();
            if !shared.rules.any() {
                return Ok(next);
            }
            next.taken = rules::take(db, &shared, now)?;
            if next.taken.more {
                next.action = RuleAction::More;
                return Ok(next);
            }
            let more = runs::settle(db, &shared.rules, now)? | walks::page(db, &shared, now)?;
            let (dropping, changes) = input_deletion::page(db, &shared, now)?;
            next.changes = changes;
            let more = more | dropping;
            next.in_vain = match shared.rules.any_streaming()
                || rules.iter().any(|kept| kept.rule.hook.is_some())
            {
                true => {
                    runs::requeue_sealed(db, &shared.rules)?;
                    jobs::in_vain(db)?
                }
                false => Vec::new(),
            };
            if let Some(reduce) = batches::next(db, &shared, &skipped, now)? {
                next.action = RuleAction::Reduce(reduce);
                return Ok(next);
            }
            let mut turns = turns.lock();
            turns.keep(&rules);
            let held = Deferred::read(db, &shared)?;
            next.action = match turns.next(db, &rules, &skipped, (&held, now))? {
                DriverStep::Trigger(picked) => RuleAction::Trigger(picked),
                DriverStep::Wait(_) if more => RuleAction::More,
                DriverStep::Wait(at) if at.is_some() && held.any() => RuleAction::Deferred(at),
                DriverStep::Wait(at) => RuleAction::Wait(at),
            };
            Ok(next)
        };
        let NextStep {
            action,
            in_vain,
            changes,
            taken,
        } = self.names.database().write(work).await?;
        taken.committed(self.names.shared());
        if !changes.is_empty() {
            let session = 0;
            self.names.tell(Changed { session, changes });
        }
        for job in in_vain {
            let _ = self.driver.send(DriverMessage::Cancel(JobId(job)));
        }
        Ok(action)
    }

    /// Deletes the rows of rule runs of removed rules.
    pub(super) async fn forget(&self) -> Result<(), Fault> {
        for rule in self.names.database().read(runs::removed_rules)? {
            let forget = move |db: &Connection| runs::forget(db, rule);
            while self.names.database().write(forget).await? {}
        }
        self.names.shared().rules.wake();
        Ok(())
    }

    /// Creates jobs for the picked rule runs. Returns whether all of these rule runs were handled.
    async fn trigger(&self, picked: PickedJob) -> bool {
        let kept = picked.kept;
        let caller = match kept.for_all {
            true => user(picked.uid),
            false => kept.owner.clone(),
        };
        let mut all_done = true;
        let mut todo = vec![picked.tasks];
        while let Some(tasks) = todo.pop() {
            if tasks.is_empty() {
                continue;
            }
            match self.try_trigger(&kept, &caller, &tasks).await {
                Ok(JobAttempt::Done) => {}
                Ok(JobAttempt::Left(left)) => todo.push(left),
                Ok(JobAttempt::Later) if tasks.len() == 1 => all_done = false,
                Ok(JobAttempt::Refused(reason)) if tasks.len() == 1 => {
                    let count = |tasks: &[TaskRuns]| tasks.iter().flatten().count();
                    match self.there(&tasks).await {
                        // The job was refused because of a file that was deleted in the meantime. Such a rule run has not failed.
                        Ok(there) if count(&there) < count(&tasks) => todo.push(there),
                        Ok(there) => {
                            let failed = there.iter().flatten();
                            let failed = failed.map(|one| (one.rule_run, reason.clone())).collect();
                            let ended = self.end_queued(&there, failed, MatchState::Failed).await;
                            all_done &= ended.is_ok();
                        }
                        Err(_) => all_done = false,
                    }
                }
                // One of the tasks prevents the others.
                Ok(JobAttempt::Refused(_) | JobAttempt::Later) => {
                    let (first, second) = tasks.split_at(tasks.len() / 2);
                    todo.extend([second.to_vec(), first.to_vec()]);
                }
                Err(fault) => {
                    tracing::warn!(rule = kept.id, %fault, "a rule waits");
                    all_done = false;
                }
            }
        }
        all_done
    }

    /// Ends queued rule runs for the given reasons, and returns the tasks without these rule runs.
    pub(super) async fn end_queued(
        &self,
        tasks: &[TaskRuns],
        ended: BTreeMap<u64, String>,
        state: MatchState,
    ) -> Result<Vec<TaskRuns>, Fault> {
        let left = |task: &TaskRuns| {
            let left = task.iter().filter(|one| !ended.contains_key(&one.rule_run));
            left.cloned().collect::<TaskRuns>()
        };
        let left = tasks.iter().map(left).filter(|task| !task.is_empty());
        let left = left.collect();
        if ended.is_empty() {
            return Ok(left);
        }
        let (shared, now) = (self.names.shared().clone(), clock::now_ns());
        let write = move |db: &Connection| {
            for (rule_run, why) in ended {
                let before = (rule_run, MatchState::Queued);
                runs::end(db, &shared.rules, before, state, (&why, now))?;
            }
            Ok(())
        };
        self.names.database().write(write).await?;
        Ok(left)
    }

    /// Records the rule runs whose files no longer exist as deleted, and returns the other rule runs.
    async fn there(&self, tasks: &[TaskRuns]) -> Result<Vec<TaskRuns>, Fault> {
        let deleted = self.names.database().read(|db| {
            let mut deleted = BTreeMap::new();
            for rule_run in tasks.iter().flatten() {
                if let Some(why) = why_deleted(db, rule_run)? {
                    deleted.insert(rule_run.rule_run, why.to_owned());
                }
            }
            Ok(deleted)
        })?;
        self.end_queued(tasks, deleted, MatchState::Deleted).await
    }

    /// Submits a job of a rule, and passes the job to the driver. The writes of `also` are committed together with the job, or neither is
    /// committed.
    pub(super) async fn submit(
        &self,
        caller: &Caller,
        (script, source): (String, String),
        given: &PinnedVersions,
        also: impl FnOnce(&Connection, &SubmittedJob) -> Result<(), Fault> + Send + 'static,
    ) -> Result<(), JobRefusal> {
        let submission = Submission {
            caller: caller.clone(),
            script,
            source,
            policy: String::new(),
            replace: false,
            strict: false,
            no_cache: false,
            bounded: false,
            programs: ProgramMappers::Refused,
            links: Links::Own,
        };
        let cluster = (&self.names, &self.lease_recalls, &self.cluster);
        let submitted =
            submit_given(cluster.0, cluster.1, cluster.2, (submission, given), also).await;
        let (accepted, _) = submitted?;
        // Other tasks run now, or the server ends: the job is stored.
        tokio::task::yield_now().await;
        let submitted = DriverMessage::Submitted(Box::new(accepted));
        // The driver only stops when the server shuts down.
        let _ = self.driver.send(submitted);
        Ok(())
    }

    async fn try_trigger(
        &self,
        kept: &StoredRule,
        caller: &Caller,
        tasks: &[TaskRuns],
    ) -> Result<JobAttempt, Fault> {
        let tasks = self.there(tasks).await?;
        let tasks = match kept.rule.conditions.look_inside() {
            true => self.that_fit(kept, tasks).await?,
            false => tasks,
        };
        if tasks.is_empty() {
            return Ok(JobAttempt::Done);
        }
        let plan = match planned(kept, tasks) {
            Ok(plan) => plan,
            Err(error) => return Ok(JobAttempt::Refused(error.to_string())),
        };
        let NewJob {
            names: tasks_named,
            script,
            given,
            tasks,
            left,
        } = plan;
        let source = format!("rule {}@{}", kept.rule.name, kept.revision);
        let rule = kept.id;
        tokio::task::yield_now().await;
        let also = move |db: &Connection, accepted: &SubmittedJob| {
            begun(db, rule, (&tasks, &tasks_named), accepted)
        };
        match self.submit(caller, (script, source), &given, also).await {
            Ok(()) if left.is_empty() => Ok(JobAttempt::Done),
            Ok(()) => Ok(JobAttempt::Left(left)),
            Err(JobRefusal::Script(errors)) => Ok(JobAttempt::Refused(errors.join("; "))),
            Err(JobRefusal::Claimed(_)) => Ok(JobAttempt::Later),
            // A script of a rule has no submission id.
            Err(why @ JobRefusal::Known(_)) => Ok(JobAttempt::Refused(why.to_string())),
            Err(JobRefusal::Fault(fault)) => Err(fault),
        }
    }
}

/// Returns a user with the groups that this host knows, to act with the user's rights without a request of the user.
fn user(uid: u32) -> Caller {
    aside(|| Caller {
        uid,
        gid: users::gid(uid),
        groups: users::groups(uid),
        checked: false,
        administrator: true,
    })
}

enum JobAttempt {
    Done,
    /// The job was created, and these tasks need another job.
    Left(Vec<TaskRuns>),
    /// The job was not created now because another job writes the same outputs.
    Later,
    Refused(String),
}

/// Returns the reason why a version can't trigger a rule any more, or `None` if it still can.
fn why_deleted(db: &Connection, rule_run: &RuleRun) -> Result<Option<&'static str>, Fault> {
    let vnode = InodeRecord::find(db, rule_run.ino)?;
    if vnode.is_none_or(|vnode| vnode.nlink == 0) {
        return Ok(Some("the file was removed before the rule run"));
    }
    if rule_run.node.is_some() {
        return Ok(None);
    }
    // This also holds for a failed rule run that is retried.
    Ok(match version::is_stored(db, rule_run.object)? {
        Some(true) => None,
        Some(false) => Some("the file has a later version, and this one is deleted"),
        None => Some(ABANDONED),
    })
}

/// A job that is to be created for rule runs.
struct NewJob {
    /// Names of the job's tasks.
    names: Vec<String>,
    script: String,
    given: PinnedVersions,
    tasks: Vec<TaskRuns>,
    /// Tasks that do not fit into the job, or that write the same outputs as other tasks of the job.
    left: Vec<TaskRuns>,
}

fn planned(kept: &StoredRule, picked: Vec<TaskRuns>) -> Result<NewJob, FillError> {
    let (mut outputs, mut paths_seen) = (BTreeSet::new(), BTreeSet::new());
    let (mut tasks, mut left): (Vec<TaskRuns>, Vec<TaskRuns>) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    for task in picked {
        let Some(first) = task.first() else { continue };
        let paths: Vec<&str> = task.iter().map(|one| one.path.as_str()).collect();
        let made = kept.rule.outputs(first.object, &paths)?;
        let length: usize = paths.iter().map(|path| path.len()).sum();
        bytes += length * 2 + kept.text.len();
        let clash = made.iter().any(|output| outputs.contains(output))
            || paths.iter().any(|path| paths_seen.contains(*path));
        if !tasks.is_empty() && (clash || bytes > SCRIPT_BYTES_MAX) {
            left.push(task);
            continue;
        }
        outputs.extend(made);
        paths_seen.extend(paths.iter().map(|path| (*path).to_owned()));
        tasks.push(task);
    }
    // A file that is still being written is only read on the node of its writer.
    let nodes = tasks.iter().flatten();
    let nodes = nodes.filter_map(|one| Some((one.object, one.node?)));
    let nodes = nodes.collect();
    let named = tasks.iter().map(|task| {
        let object = task.first().map_or(0, |one| one.object);
        let paths = task.iter().map(|one| one.path.as_str()).collect();
        let name = format!("{}@{}-{object}", kept.rule.name, kept.revision);
        (name, object, paths)
    });
    let named: Vec<_> = named.collect();
    let script = kept.rule.script_on(kept.revision, &named, &nodes)?;
    let names = named.iter().map(|(name, ..)| name.clone()).collect();
    let rule_runs = tasks.iter().flatten();
    let given = rule_runs.map(|one| (one.path.clone(), ObjectId(one.object)));
    let given = given.collect();
    Ok(NewJob {
        names,
        script,
        given,
        tasks,
        left,
    })
}

/// Records, in the transaction that stores a job, that these rule runs created the job. Fails if one of the rule runs is no longer queued.
fn begun(
    db: &Connection,
    rule: u64,
    (tasks, names): (&[TaskRuns], &[String]),
    accepted: &SubmittedJob,
) -> Result<(), Fault> {
    let job = accepted.spec.job.0;
    let mut specs = accepted.spec.tasks.iter().peekable();
    for (task, name) in tasks.iter().zip(names) {
        // The name belongs to one task, or to its task instances and the task that joins them.
        let own = |other: &str| {
            let rest = other.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
        };
        let Some(spec) = specs.next() else { break };
        let mut last = spec.task;
        while let Some(next) = specs.next_if(|next| own(&next.name)) {
            last = next.task;
        }
        for rule_run in task {
            runs::begin(db, rule_run, job, (spec.task.0, last.0))?;
        }
    }
    let depth = tasks.iter().flatten().map(|one| one.depth).max();
    records::set_rule(db, job, rule, depth.unwrap_or(0))
}
