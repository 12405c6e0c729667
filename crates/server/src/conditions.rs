//! Conditions that require an administrator. `tidemill status` and `tidemill cluster health` show the conditions, and the log has one line
//! when a condition begins and one line when it ends. The names of the conditions are in `tidemill_wire::condition`.

use crate::chores::{Chore, Due, Step};
use crate::clock;
use crate::cluster::Cluster;
use crate::cluster::conditions::ReachableNodes;
use crate::health::unavailable;
use crate::jobs::driver::Signals;
use crate::leadership::Leadership;
use crate::orphaned_versions::{ABOUT_TO_BE_SEALED, OrphanedVersions};
use crate::rules::{self, batches};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_meta::placement::under_replicated;
use tidemill_meta::settings::Rebuilt;
use tidemill_meta::wakes::{COMMIT, MOUNTS, NODES};
use tidemill_meta::{Connection, Fault, SqliteNames, health, settings};
use tidemill_model::display::line;
use tidemill_model::timers::Signals as Wakings;
use tidemill_wire::condition::{self, ConditionKind};
use tidemill_wire::v1;

/// Shortest time between two checks of conditions for the log, and (`REST_MAX`) longest time. Some conditions begin without a signal.
const REST: Duration = Duration::from_secs(2);
const REST_MAX: Duration = Duration::from_secs(20);
/// Number of consecutive equal checks before a log entry, so that short conditions are not logged.
const LOOKS: u32 = 3;
/// Times for which a count of unavailable files is reused: at least this long, and (`COUNTED_TIMES`) this many times the counting time.
const COUNTED: Duration = Duration::from_secs(10);
const COUNTED_TIMES: u32 = 20;
/// Time in nanoseconds for which an incomplete recovery of the database is a condition. `tidemill cluster fsck` removes no orphan then.
const REBUILT_NS: i64 = 7 * 86_400 * 1_000_000_000;

/// The service that determines conditions, as described in the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct ConditionService {
    names: Arc<SqliteNames>,
    cluster: Arc<Cluster>,
    orphaned_versions: Arc<OrphanedVersions>,
    pub(crate) signals: Signals,
    pub(crate) leadership: Leadership,
    counted: Arc<Mutex<Option<UnavailableFiles>>>,
}

/// Result of counting the unavailable files, with its time.
#[derive(Clone, Debug)]
struct UnavailableFiles {
    presence: ReachableNodes,
    files: u64,
    until: Instant,
}

/// Returns the condition of a database that can't store a change.
pub(crate) fn database_state(fault: &Fault) -> ConditionKind {
    match fault.is_full() {
        true => condition::SERVER_FULL,
        false => condition::SERVER_DATABASE,
    }
}

impl ConditionService {
    pub(crate) fn new(
        (names, cluster, orphaned_versions): (
            &Arc<SqliteNames>,
            &Arc<Cluster>,
            &Arc<OrphanedVersions>,
        ),
        (signals, leadership): (&Signals, &Leadership),
    ) -> Self {
        Self {
            names: names.clone(),
            cluster: cluster.clone(),
            orphaned_versions: orphaned_versions.clone(),
            signals: signals.clone(),
            leadership: leadership.clone(),
            counted: Arc::default(),
        }
    }

    /// Returns all present conditions, the worst first. The function reads the database, so it must not be called on threads of a runtime.
    pub(crate) fn now(&self) -> Result<Vec<v1::Condition>, Fault> {
        let mut found = Vec::new();
        let database = self.names.database();
        if let Some(fault) = database.trouble() {
            found.push(database_state(&fault).of(None, fault.to_string()));
        }
        if let Some((kind, why)) = &*self.signals.trouble.lock()
            && found.is_empty()
        {
            found.push(kind.of(None, why.clone()));
        }
        if let Some(why) = self.leadership.trouble() {
            let cause = format!("no change is acknowledged: {why}");
            found.push(condition::LOG_UNREACHABLE.of(None, cause));
        }
        found.extend(self.cluster.copied_logs().condition(database.log()));
        let failed_nodes = database.read(|db| {
            self.add_files(db, &mut found)?;
            self.add_rules(db, &mut found)?;
            if let Some((at, Rebuilt::Incomplete)) = settings::rebuilt(db)?
                && clock::now_ns() - at < REBUILT_NS
            {
                let cause = "the database was recovered, and not all of its content was found";
                found.push(condition::REBUILT_INCOMPLETE.of(None, cause));
            }
            Ok(under_replicated::health(db)?.failed_nodes)
        })?;
        found.extend(self.cluster.conditions(&failed_nodes));
        for one in self.orphaned_versions.unsealed()? {
            if one.ended && one.why != ABOUT_TO_BE_SEALED {
                let cause = format!(
                    "{} versions of writers that are offline: {}",
                    one.versions, one.why
                );
                found.push(condition::FILES_UNSEALED.of(Some(one.node), cause));
            }
        }
        found.sort_by_key(|one| Reverse(one.exit));
        Ok(found)
    }

    /// Adds the conditions of files and their replicas.
    fn add_files(&self, db: &Connection, found: &mut Vec<v1::Condition>) -> Result<(), Fault> {
        let shared = self.names.shared();
        let unavailable = self.unavailable(db)?;
        if unavailable > 0 {
            let cause = format!("{unavailable} files are only on nodes that do not answer");
            found.push(condition::DATA_UNAVAILABLE.of(None, cause));
        }
        let lost = health::lost_for_good(db, &shared.nodes.removed())?;
        if lost > 0 {
            let cause =
                format!("{lost} files were only on nodes that were removed from the cluster");
            found.push(condition::DATA_LOST.of(None, cause));
        }
        let few = under_replicated::health(db)?;
        if few.short + few.corrupt == 0 {
            return Ok(());
        }
        let counts = health::counted(db, clock::now_ns())?;
        if counts.all_corrupt > 0 {
            let cause = format!(
                "{} files are corrupt and have no other replica",
                counts.all_corrupt
            );
            found.push(condition::DATA_LOST.of(None, cause));
        }
        if counts.corrupt > counts.all_corrupt {
            let cause = format!("{} replicas are corrupt", counts.corrupt);
            found.push(condition::FILES_CORRUPT.of(None, cause));
        }
        let stuck = counts.resting >= counts.short && counts.repairing == 0;
        if counts.short > 0 && stuck {
            let cause = format!(
                "{} files lack replicas, and no other node that is up has space",
                counts.short
            );
            found.push(condition::REPLICAS_NO_SPACE.of(None, cause));
        } else if counts.short > 0 {
            let cause = format!("{} files have fewer replicas than wanted", counts.short);
            found.push(condition::REPLICAS_MISSING.of(None, cause));
        }
        Ok(())
    }

    /// Returns the number of files that are only on nodes that do not answer. The number may be old, since counting reads all versions.
    fn unavailable(&self, db: &Connection) -> Result<u64, Fault> {
        let presence = self.cluster.presence();
        let mut counted = self.counted.lock();
        if let Some(known) = &*counted
            && known.presence == presence
            && Instant::now() < known.until
        {
            return Ok(known.files);
        }
        let began = Instant::now();
        let removed = self.names.shared().nodes.removed();
        let files = unavailable(db, &presence, &removed)?;
        *counted = Some(UnavailableFiles {
            presence,
            files,
            until: Instant::now() + COUNTED.max(began.elapsed() * COUNTED_TIMES),
        });
        Ok(files)
    }

    /// Adds the conditions of rules and hooks that require an administrator.
    fn add_rules(&self, db: &Connection, found: &mut Vec<v1::Condition>) -> Result<(), Fault> {
        let known = &self.names.shared().rules;
        for hook in batches::behind(db, known)? {
            let name = line(&hook.name);
            let cause = format!(
                "hook {name} of user {}: {} files wait",
                hook.uid, hook.files
            );
            found.push(condition::HOOK_BEHIND.of(None, cause));
        }
        let (rules, runs) = rules::failed(db, known)?;
        if runs > 0 {
            let cause = format!("{runs} runs of {rules} rules have failed");
            found.push(condition::RULE_FAILED.of(None, cause));
        }
        Ok(())
    }
}

/// Logs the begin and the end of conditions.
pub(crate) struct LoggedConditions {
    service: ConditionService,
    log: ConditionLog,
}

impl LoggedConditions {
    pub(crate) fn new(service: &ConditionService) -> Self {
        Self {
            service: service.clone(),
            log: ConditionLog::default(),
        }
    }
}

impl Chore for LoggedConditions {
    fn delays(&self) -> &'static str {
        "the states of the cluster can't be read now"
    }

    fn woken_by(&self) -> Wakings {
        COMMIT.and(NODES).and(MOUNTS)
    }

    fn rest(&self) -> Duration {
        REST
    }

    fn due(&mut self, _: i64) -> Result<Due, Fault> {
        Ok(Due::NOW)
    }

    fn step(&mut self, _: i64) -> Step<'_> {
        let service = self.service.clone();
        Box::pin(async {
            let found = tokio::task::spawn_blocking(move || service.now()).await;
            self.log.on_look(&found.map_err(|_| Fault::Closed)??);
            Ok(Due::After(match self.log.is_settled() {
                true => REST_MAX,
                false => REST,
            }))
        })
    }
}

/// Name of a condition, and the node that has the condition.
type ConditionKey = (String, Option<u32>);

/// Conditions that are logged, and the checks since the last log entry.
#[derive(Debug, Default)]
struct ConditionLog {
    known: BTreeMap<ConditionKey, ConditionState>,
}

#[derive(Debug, Default)]
struct ConditionState {
    /// Number of consecutive checks whose result differed from the logged conditions.
    looks: u32,
    logged: bool,
}

impl ConditionLog {
    /// Whether the last checks agree with the log.
    fn is_settled(&self) -> bool {
        self.known.values().all(|seen| seen.looks == 0)
    }

    fn on_look(&mut self, found: &[v1::Condition]) {
        let key = |one: &v1::Condition| (one.name.clone(), one.node);
        let mut now: BTreeMap<ConditionKey, &v1::Condition> = BTreeMap::new();
        for one in found {
            now.entry(key(one)).or_insert(one);
        }
        for key in now.keys() {
            self.known.entry(key.clone()).or_default();
        }
        self.known.retain(|key, seen| {
            let condition = now.get(key);
            if condition.is_some() == seen.logged {
                seen.looks = 0;
                return seen.logged;
            }
            seen.looks += 1;
            if seen.looks < LOOKS {
                return seen.logged || condition.is_some();
            }
            *seen = ConditionState {
                looks: 0,
                logged: condition.is_some(),
            };
            tell(key, condition.copied());
            seen.logged
        });
    }
}

/// Logs that a condition has begun or ended.
fn tell((name, node): &ConditionKey, condition: Option<&v1::Condition>) {
    let node = node
        .map(|node| format!("node {node}: "))
        .unwrap_or_default();
    match condition {
        Some(one) => tracing::warn!("state {name}: {node}{}; {}", one.cause, one.remedy),
        None => tracing::info!("state {name}: {node}has ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(log: &ConditionLog) -> Vec<&str> {
        let known = log.known.iter().filter(|(_, seen)| seen.logged);
        known.map(|((name, _), _)| name.as_str()).collect()
    }

    #[test]
    fn condition_log_reports_lasting_condition_once() {
        let mut log = ConditionLog::default();
        let offline = [condition::NODE_OFFLINE.of(Some(1), "it has had no connection for 3 s")];
        log.on_look(&offline);
        log.on_look(&[]);
        log.on_look(&offline);
        log.on_look(&offline);
        assert!(logged(&log).is_empty(), "{log:?}");
        let later = [condition::NODE_OFFLINE.of(Some(1), "it has had no connection for 9 s")];
        log.on_look(&later);
        assert_eq!(logged(&log), ["node-offline"]);
        log.on_look(&[]);
        log.on_look(&later);
        assert_eq!(log.known[&("node-offline".into(), Some(1))].looks, 0);
        for _ in 0..LOOKS {
            log.on_look(&[]);
        }
        assert!(log.known.is_empty(), "{log:?}");
    }
}
