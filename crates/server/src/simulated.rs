//! The server of a simulated cluster: names, jobs, driver, nodes and all background work, as in [`crate::RunningServer`], but without
//! connections and threads, on one database connection, in virtual time and with random numbers from a seed.
//!
//! The server's timers run on a runtime of its own whose clock is moved by [`Simulated::advance`]. Time has a resolution of one
//! millisecond. No other code of the server is duplicated here: the simulation calls the same functions as the services.

use crate::ca::Ca;
use crate::chores::ChoreParts;
use crate::cluster::{Cluster, ClusterSettings, outbox};
use crate::elastic::Elastic;
use crate::elastic::manager::Manager;
use crate::jobs::DriverMessage;
use crate::jobs::driver::{Driver, Repairing, Signals};
use crate::jobs::inbox::Inbox;
use crate::jobs::mapper_jobs::ProgramMappers;
use crate::jobs::submit::{JobRefusal, Submission, submit};
use crate::lease_recall::LeaseRecalls;
use crate::locks::Locks;
use crate::migrator::Migrator;
use crate::queue::{DatabaseQueue, LabelQueue};
use crate::removal::Garbage;
use crate::rules::driver::RuleRunner;
use crate::session::Sessions;
use crate::{chores, clock, namespace_service, workspaces};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_meta::commit::SimulatedDisk;
use tidemill_meta::jobs::output_paths::Links;
use tidemill_meta::transaction::Tx;
use tidemill_meta::workspaces::WorkspaceResult;
use tidemill_meta::{
    Caller, Fault, Names, NamesRequest, OpenError, SqliteError, SqliteNames, Unfinished,
    cluster_id, random,
};
use tidemill_model::id::JobId;
use tidemill_model::replicas::WantedReplicas;
use tidemill_sched::burst::TierLimits;
use tidemill_wire::capability::CapabilityKey;
use tidemill_wire::v1::{self, from_node::Message as From};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};

/// Maximum number of unfinished versions that are read for one mount and one node when the mount's session ends.
const UNFINISHED_MAX: usize = 4096;

/// Time limit for a resumed node to connect.
const RESUME_LIMIT: Duration = Duration::from_secs(5);

/// Pauses of a simulated server.
pub mod time {
    use std::cell::Cell;

    thread_local! {
        static REST: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    /// Sets the function that is called instead of letting the driver sleep after a failed commit. `rest` may unwind: the server is then
    /// killed at that point.
    pub fn set_commit_failure_hook(rest: fn()) {
        REST.set(Some(rest));
    }

    /// Calls the function set by `set_commit_failure_hook` if this thread simulates a server. Returns whether this thread simulates one.
    pub(crate) fn rest() -> bool {
        REST.get().map(|rest| rest()).is_some()
    }
}

/// Settings of a simulated server.
#[derive(Clone, Debug)]
pub struct SimulatedOptions {
    /// Seed of all random numbers of the simulation.
    pub seed: u64,
    /// Time for which a node may be offline before its labels are assigned to other nodes.
    pub node_timeout: Duration,
    /// Scheduling policy of jobs that name no policy.
    pub policy: String,
    /// Wanted number of replicas of each version.
    pub replicas: u32,
    /// Time for which a node may be offline before its replicas are recreated.
    pub repair_after: Duration,
    /// Interval at which a scrub reads all objects of each node and compares them with their hashes.
    pub scrub_every: Duration,
    /// Rate limit of repairs and migrations in bytes per second; 0 means no limit.
    pub move_bytes_per_sec: u64,
    /// Idle time after which a node is suspended; `None`: nodes are suspended only on request.
    pub suspend_after: Option<Duration>,
    /// Fill levels at which the burst tier evicts files.
    pub burst: TierLimits,
    /// Queue in which labels wait for their nodes; `None` for the server's own database.
    pub queue: Option<Arc<dyn LabelQueue>>,
}

/// Reason why a simulated server can't be started.
#[derive(Debug, thiserror::Error)]
pub enum SimulatedStartError {
    /// The database can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The content of the database can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Stream of messages to one simulated node.
#[derive(Debug)]
pub struct NodeStream {
    /// Number of the node's connection.
    pub epoch: u64,
    /// Messages from the server to the node.
    pub outbox: mpsc::Receiver<v1::ToNode>,
    /// Signal that the server ends the node's stream.
    pub ended: watch::Receiver<bool>,
}

/// Pending answer to a mount's request for namespace operations.
pub type PendingNames = oneshot::Receiver<Result<Vec<v1::NameResult>, Fault>>;

/// Stream of namespace changes to a mount.
#[derive(Debug)]
pub struct ChangeStream(mpsc::Receiver<Result<v1::Invalidation, tonic::Status>>);

impl ChangeStream {
    /// Returns the next change of the namespace, or `None` if no change has arrived.
    pub fn next_now(&mut self) -> Option<v1::Invalidation> {
        self.0.try_recv().ok()?.ok()
    }
}

/// Pending answer to a job submission: the job's number, or the reason why the server refused the job.
pub type Submitted = oneshot::Receiver<Result<u64, String>>;

/// A simulated server, as described in the module's documentation.
#[derive(Debug)]
pub struct Simulated {
    names: Arc<SqliteNames>,
    lease_recalls: LeaseRecalls,
    sessions: Sessions,
    cluster: Arc<Cluster>,
    manager: Manager,
    driver: Driver,
    inbox: Inbox,
    rule_runner: RuleRunner,
    /// Whether the driver has processed the events of the unfinished jobs that it read at its start.
    begun: bool,
    sender: Sender<DriverMessage>,
    /// The runtime is dropped last, so that its tasks end after all other fields are dropped.
    runtime: Runtime,
    started: tokio::time::Instant,
}

impl Simulated {
    /// Starts a simulated server on the database in `disk`, at the time `since_epoch` after the Unix epoch.
    ///
    /// # Errors
    /// If the database can't be used. The error returns the database.
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the disk, at most once for each start"
    )]
    pub fn start(
        disk: SimulatedDisk,
        since_epoch: Duration,
        options: &SimulatedOptions,
    ) -> Result<Self, (SimulatedDisk, SimulatedStartError)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without threads and sockets can always be built");
        let entered = runtime.enter();
        clock::start(since_epoch);
        random::simulated::seed(options.seed);
        let names = match SqliteNames::without_thread(disk, (0, 0)) {
            Ok(names) => Arc::new(names),
            Err((disk, error)) => return Err((disk, error.into())),
        };
        let (sender, incoming) = std::sync::mpsc::channel();
        match Self::parts(&names, options, sender.clone()) {
            Ok((cluster, manager, driver)) => {
                let started = tokio::time::Instant::now();
                // Mounts of the simulation take no locks, so there are no locks to read.
                let sessions = Sessions::new(Duration::MAX, names.database().wakes().clone());
                let names_of_locks = names.clone() as Arc<dyn Names>;
                let locks = match Locks::new(names_of_locks, sessions.clone()) {
                    Ok(locks) => locks,
                    Err(fault) => return Err((names.database().take_connection(), fault.into())),
                };
                let lease_recalls = LeaseRecalls::new(names.clone() as Arc<dyn Names>, locks);
                // The rule runner runs on the runtime for as long as the runtime exists.
                let rule_runner =
                    RuleRunner::start((&names, &lease_recalls, &cluster), None, &sender);
                drop(entered);
                Ok(Self {
                    names,
                    lease_recalls,
                    sessions,
                    cluster,
                    manager,
                    driver,
                    inbox: Inbox::new(incoming),
                    rule_runner,
                    begun: false,
                    sender,
                    runtime,
                    started,
                })
            }
            Err(fault) => Err((names.database().take_connection(), fault.into())),
        }
    }

    /// Creates the parts of a simulated server in the same way as a real server does at its start.
    fn parts(
        names: &Arc<SqliteNames>,
        options: &SimulatedOptions,
        sender: Sender<DriverMessage>,
    ) -> Result<(Arc<Cluster>, Manager, Driver), Fault> {
        let settings = ClusterSettings {
            cluster_id: names.database().read(cluster_id)?,
            node_timeout: options.node_timeout,
            link_bytes_per_sec: 125_000_000,
            tls: false,
            ca: ca(),
        };
        names.shared().set_replicas(WantedReplicas {
            replicas: options.replicas,
            now: false,
        });
        names.shared().bursts.set_limits(options.burst);
        let cluster = Arc::new(Cluster::new(names, settings, sender.clone())?);
        let signals = Signals::default();
        let database = names.database().clone();
        let garbage = Garbage::new(database.clone(), names.shared().clone());
        let repairing = Repairing {
            after: options.repair_after,
            bytes_per_sec: options.move_bytes_per_sec,
        };
        let own = || Arc::new(DatabaseQueue::new(database.clone())) as Arc<dyn LabelQueue>;
        let driver = Driver::new(
            names.clone(),
            cluster.clone(),
            options.queue.clone().unwrap_or_else(own),
            garbage.clone(),
            signals.clone(),
            (&options.policy, repairing),
        )?;
        let elastic = Elastic {
            after: options.suspend_after,
            resume_limit: RESUME_LIMIT,
            ..Elastic::default()
        };
        let manager = Manager::new(names, &cluster, elastic);
        cluster.expect_known();
        let _ = sender.send(DriverMessage::NamesChanged);
        let parts = ChoreParts {
            names: names.clone(),
            cluster: cluster.clone(),
            manager: manager.clone(),
            garbage,
            driver: sender.clone(),
            repair_after: options.repair_after,
            scrub_every: Some(options.scrub_every),
        };
        tokio::spawn(chores::run(
            parts.chores(),
            names.database().wakes().clone(),
        ));
        let teller = names.teller().clone();
        tokio::spawn(crate::serve::forward_changes(teller, signals, sender));
        Ok((cluster, manager, driver))
    }

    /// Advances the virtual time to `since_start` after the server's start, and runs the work that is due.
    pub fn advance(&self, since_start: Duration) {
        let until = self.started + since_start;
        self.runtime.block_on(async {
            tokio::time::sleep_until(until).await;
            // Tasks that were started in this time proceed as far as they can.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Whether messages wait for the dispatcher's driver.
    pub fn has_messages(&mut self) -> bool {
        !self.begun || self.inbox.has_more()
    }

    /// Lets the driver process its messages and store and send its decisions. Without messages, the driver checks the waiting jobs.
    pub fn turn(&mut self) {
        let _entered = self.runtime.enter();
        // A server that stops is dropped instead.
        if std::mem::replace(&mut self.begun, true) {
            let _ = self.driver.turn(&mut self.inbox, Duration::ZERO);
        } else {
            let _ = self.driver.begin(&mut self.inbox);
        }
    }

    /// Begins a node's stream.
    ///
    /// # Errors
    /// If the cluster rejects the node.
    pub fn join(&self, hello: v1::Hello) -> Result<NodeStream, String> {
        let _entered = self.runtime.enter();
        let (sender, outbox) = outbox();
        let joined = self.cluster.join(hello, sender);
        let (_, epoch, ended) = joined.map_err(|status| status.to_string())?;
        Ok(NodeStream {
            epoch,
            outbox,
            ended,
        })
    }

    /// Handles a message from a node.
    pub fn hear(&self, node: u32, epoch: u64, message: From) {
        let _entered = self.runtime.enter();
        self.cluster.on_message(node, epoch, message);
    }

    /// Ends a node's stream, as a lost connection does.
    pub fn leave(&self, node: u32, epoch: u64) {
        let _entered = self.runtime.enter();
        self.cluster.leave(node, epoch);
    }

    /// Connects a process that stays connected while its node is suspended.
    ///
    /// # Errors
    /// If the cluster rejects the process.
    pub fn keep(&self, hello: &v1::Hello) -> Result<NodeStream, String> {
        let _entered = self.runtime.enter();
        let (sender, outbox) = outbox();
        let kept = self.cluster.keep(hello, sender);
        let (_, epoch, ended) = kept.map_err(|status| status.to_string())?;
        Ok(NodeStream {
            epoch,
            outbox,
            ended,
        })
    }

    /// Disconnects a process that waits to resume a suspended node.
    pub fn unkeep(&self, node: u32, number: u64) {
        self.cluster.unkeep(node, number);
    }

    /// Requests that a node is suspended. The server suspends the node only if no work needs the node.
    pub fn suspend_node(&self, node: u32) {
        let manager = self.manager.clone();
        self.runtime
            .spawn(async move { manager.suspend(node).await });
    }

    /// Requests that a node is resumed.
    pub fn resume_node(&self, node: u32) {
        let _entered = self.runtime.enter();
        self.names.shared().suspensions.want(node);
    }

    /// Whether a node is up.
    #[must_use]
    pub fn is_active(&self, node: u32) -> bool {
        self.cluster.up().contains(&node)
    }

    /// Applies a mount's namespace operations.
    ///
    /// # Errors
    /// If the server could not commit the operations of the request.
    pub fn apply(&self, request: NamesRequest) -> Result<Vec<v1::NameResult>, Fault> {
        let _entered = self.runtime.enter();
        self.names.apply_blocking(request)
    }

    /// Begins to apply a mount's namespace operations as `lease_recall` does. The answer arrives when virtual time advances.
    pub fn ask(&self, request: NamesRequest) -> PendingNames {
        let (answer, answered) = oneshot::channel();
        let lease_recalls = self.lease_recalls.clone();
        self.runtime.spawn(async move {
            // The caller may have disconnected.
            let _ = answer.send(lease_recalls.apply(request).await);
        });
        answered
    }

    /// Opens a mount's stream of namespace changes.
    ///
    /// # Errors
    /// If the database fails.
    pub fn watch(&self, session: u64) -> Result<ChangeStream, Fault> {
        let request = v1::WatchRequest {
            session,
            ..v1::WatchRequest::default()
        };
        let (names, lease_recalls) = (&*self.names, &self.lease_recalls);
        let watched = namespace_service::watch(names, lease_recalls, &self.sessions, request);
        self.runtime.block_on(watched).map(ChangeStream)
    }

    /// Repeats a mount's report that the mount writes a version, as a mount does after a restart of the server.
    pub fn hold(&self, session: u64, version: (u64, u64), node: u32) {
        self.names.shared().hold(session, version, node);
    }

    /// Reserves inode ids and object ids for a mount. Returns the first id of each kind.
    ///
    /// # Errors
    /// If the server can't store the reservation.
    pub fn reserve(&self, inodes: u32, objects: u32) -> Result<(u64, u64), Fault> {
        let reserved = self.names.reserve(Caller::root(), inodes, objects);
        self.runtime.block_on(reserved)
    }

    /// Returns a new session number for a mount.
    ///
    /// # Errors
    /// If the server can't store the session number.
    pub fn new_session(&self) -> Result<u64, Fault> {
        self.runtime.block_on(self.names.new_session())
    }

    /// Ends the session of a mount. Returns the versions that the mount was writing, each with its node.
    ///
    /// # Errors
    /// If the database fails.
    pub fn end_session(&self, session: u64) -> Result<Vec<(u32, Unfinished)>, Fault> {
        self.runtime.block_on(self.names.end_session(session))?;
        let mut versions = Vec::new();
        for group in self.names.unsealed()? {
            if session == 0 || group.session != session {
                continue;
            }
            let writer = (session, group.node);
            let unfinished = self.names.unfinished(writer, 0, UNFINISHED_MAX)?;
            versions.extend(unfinished.into_iter().map(|one| (group.node, one)));
        }
        Ok(versions)
    }

    /// Submits a job script as the user `uid`. The answer arrives when virtual time advances.
    pub fn submit(&self, uid: u32, script: String) -> Submitted {
        let submission = Submission {
            caller: Caller {
                uid,
                gid: uid,
                groups: Vec::new(),
                checked: false,
                administrator: true,
            },
            script,
            source: String::new(),
            policy: String::new(),
            replace: false,
            strict: false,
            no_cache: false,
            bounded: false,
            programs: ProgramMappers::Refused,
            links: Links::All,
        };
        let (answer, answered) = oneshot::channel();
        let (names, lease_recalls) = (self.names.clone(), self.lease_recalls.clone());
        let (cluster, sender) = (self.cluster.clone(), self.sender.clone());
        self.runtime.spawn(async move {
            let result = match submit(&names, &lease_recalls, &cluster, submission).await {
                Ok((accepted, _)) => {
                    let job = accepted.spec.job.0;
                    let _ = sender.send(DriverMessage::Submitted(Box::new(accepted)));
                    Ok(job)
                }
                Err(JobRefusal::Script(errors) | JobRefusal::Claimed(errors)) => {
                    Err(errors.join("\n"))
                }
                Err(JobRefusal::Known(job)) => Ok(job.0),
                Err(JobRefusal::Fault(fault)) => Err(fault.to_string()),
            };
            // The caller may have disconnected.
            let _ = answer.send(result);
        });
        answered
    }

    /// Stores a rule owned by root, which replaces any rule of the same name. Returns the rule's number, or `None` on failure.
    pub fn put_rule(&self, text: &str) -> Option<u64> {
        self.runtime.block_on(self.rule_runner.put_rule(text)).ok()
    }

    /// Removes a rule owned by root. Returns whether the server removed the rule.
    pub fn remove_rule(&self, name: &str) -> bool {
        self.runtime
            .block_on(self.rule_runner.remove_rule(name))
            .is_ok()
    }

    /// Retries the failed runs of a rule.
    pub fn retry_rule(&self, name: &str) {
        // The database may be full.
        let _ = self.runtime.block_on(self.rule_runner.retry_rule(name));
    }

    /// Closes the open batch of a hook. Returns whether there was an open batch.
    pub fn end_batch(&self, name: &str) -> bool {
        let ended = self.runtime.block_on(self.rule_runner.end_batch(name));
        ended.is_ok_and(|batch| batch.is_some())
    }

    fn in_workspaces<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> WorkspaceResult<T> + Send + 'static,
    ) -> Option<T> {
        let written = workspaces::write(&self.names, Caller::root(), work);
        self.runtime.block_on(written).ok()?.ok()
    }

    /// Creates a workspace in which everybody may write. Returns the inode of its directory, or `None` on failure.
    pub fn create_workspace(&self, name: &str, ttl: Option<Duration>) -> Option<u64> {
        let ttl_ns = ttl.map_or(0, |ttl| ttl.as_nanos());
        let workspace = v1::CreateWorkspaceRequest {
            name: name.into(),
            mode: 0o777,
            ttl_ns: i64::try_from(ttl_ns).unwrap_or(i64::MAX),
            ..v1::CreateWorkspaceRequest::default()
        };
        let path = format!("/workspaces/{name}");
        self.in_workspaces(move |tx| {
            let made = tx.create_workspace(&workspace)?;
            let ino = tx.resolve(path.as_bytes(), true)?.ino;
            Ok(made.map(|_| ino))
        })
    }

    /// Removes a workspace. Returns whether the workspace existed.
    pub fn end_workspace(&self, name: &str) -> bool {
        let name = name.to_owned();
        self.in_workspaces(move |tx| tx.end_workspace(&name))
            .is_some()
    }

    fn member(&self, name: &str, member: u64) -> Option<u64> {
        let join = v1::JoinWorkspaceRequest {
            name: name.into(),
            member,
            ..v1::JoinWorkspaceRequest::default()
        };
        let joined = self.in_workspaces(move |tx| tx.join_workspace(&join))?;
        Some(joined.member)
    }

    /// Adds a lease holder to a workspace. Returns the lease holder's number, or `None` if the workspace does not exist.
    pub fn join_workspace(&self, name: &str) -> Option<u64> {
        self.member(name, 0)
    }

    /// Renews a lease holder's lease on a workspace. Returns whether `member` is still a lease holder.
    pub fn renew_lease(&self, name: &str, member: u64) -> bool {
        self.member(name, member).is_some()
    }

    /// Removes a lease holder from a workspace.
    pub fn leave_workspace(&self, name: &str, member: u64) {
        let leave = v1::LeaveWorkspaceRequest {
            name: name.into(),
            member,
            ..v1::LeaveWorkspaceRequest::default()
        };
        // The workspace may have ended.
        let _ = self.in_workspaces(move |tx| tx.leave_workspace(&leave));
    }

    /// Starts draining a node, or cancels the drain. Returns whether the server stored the change.
    pub fn drain(&self, node: u32, cancel: bool) -> bool {
        let request = v1::DrainRequest { node, cancel };
        self.runtime
            .block_on(self.migrator().drain(request))
            .is_ok()
    }

    /// Requests the migration of all files to a node. Returns whether the server stored the request.
    pub fn move_all(&self, node: u32) -> bool {
        let request = v1::MoveRequest {
            path: b"/".to_vec(),
            node,
            ..v1::MoveRequest::default()
        };
        let moved = self.migrator();
        let moved = moved.move_files(Caller::root(), request);
        self.runtime.block_on(moved).is_ok()
    }

    /// Whether a node that is being drained is empty; `None` if the node is not being drained.
    #[must_use]
    pub fn is_empty(&self, node: u32) -> Option<bool> {
        let migrations = self.migrator().migrations().ok()?;
        let drain = migrations.drains.iter().find(|drain| drain.node == node)?;
        let left = drain.files_left + drain.removals + drain.writing + drain.labels;
        Some(!drain.listing && left == 0)
    }

    fn migrator(&self) -> Migrator {
        Migrator::new(&self.names, &self.cluster, &self.sender, Arc::default())
    }

    /// Cancels a job with the rights of the job's owner.
    pub fn cancel(&self, job: u64) {
        let _ = self.sender.send(DriverMessage::Cancel(JobId(job)));
    }

    /// Reads committed data from the server's database.
    ///
    /// # Errors
    /// If SQLite returns an error.
    pub fn read<T>(
        &self,
        read: impl FnOnce(&SimulatedDisk) -> Result<T, SqliteError>,
    ) -> Result<T, Fault> {
        Ok(self.names.database().with_connection(read)?)
    }

    /// Returns the number of commits since the start.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.names.database().commits()
    }

    /// Returns the key with which nodes sign receipts.
    pub fn key(&self) -> CapabilityKey {
        self.names.shared().key().clone()
    }

    /// Calls `with` on the database connection; no other code uses the connection during the call.
    pub fn with_connection<T>(&self, with: impl FnOnce(&SimulatedDisk) -> T) -> T {
        self.names.database().with_connection(with)
    }

    /// Kills the server without a shutdown. Returns its database connection.
    #[must_use]
    pub fn kill(self) -> SimulatedDisk {
        let Self { names, runtime, .. } = self;
        drop(runtime);
        clock::stop();
        names.database().take_connection()
    }
}

/// Returns one CA that all simulations share, since a simulation certifies no keys.
fn ca() -> Arc<Ca> {
    static CA: std::sync::OnceLock<Arc<Ca>> = std::sync::OnceLock::new();
    let made = CA.get_or_init(|| {
        let ca = Ca::in_memory();
        Arc::new(ca.expect("a key can always be created"))
    });
    made.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Unavailable;
    use parking_lot::Mutex;
    use rusqlite::trace::{TraceEvent, TraceEventCodes};
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tidemill_model::id::{LabelId, NodeId};
    use tidemill_model::label::Label;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    /// A label queue that fails until `is_available` is set.
    #[derive(Debug, Default)]
    struct Offline {
        is_available: AtomicBool,
        tries: AtomicUsize,
        fetched: AtomicUsize,
    }

    impl LabelQueue for Offline {
        fn enqueue(&self, _: NodeId, _: Vec<Label>) -> Result<(), Unavailable> {
            Ok(())
        }

        fn fetch(&self, _: NodeId) -> Result<Vec<Label>, Unavailable> {
            self.fetched.fetch_add(1, Ordering::Relaxed);
            Ok(Vec::new())
        }

        fn acknowledge(&self, _: NodeId, _: &[LabelId]) -> Result<(), Unavailable> {
            Ok(())
        }

        fn redeliver(&self, _: NodeId, _: &BTreeSet<LabelId>) -> Result<(), Unavailable> {
            self.tries.fetch_add(1, Ordering::Relaxed);
            let available = self.is_available.load(Ordering::Relaxed);
            available.then_some(()).ok_or(Unavailable("offline".into()))
        }
    }

    /// Counts the error messages in the log.
    struct Errors(Arc<AtomicUsize>);

    impl Subscriber for Errors {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let is_error = *event.metadata().level() == Level::ERROR;
            self.0.fetch_add(is_error.into(), Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    fn options() -> SimulatedOptions {
        SimulatedOptions {
            seed: 1,
            node_timeout: Duration::from_secs(10),
            policy: tidemill_sched::policy::DEFAULT.into(),
            replicas: 1,
            repair_after: Duration::from_secs(600),
            scrub_every: Duration::from_secs(7 * 86_400),
            move_bytes_per_sec: 0,
            suspend_after: None,
            burst: TierLimits::default(),
            queue: None,
        }
    }

    fn hello(node: u32) -> v1::Hello {
        v1::Hello {
            version: tidemill_wire::PROTOCOL_VERSION,
            node: Some(v1::Node {
                node,
                role: "store".into(),
                scrub_bytes_per_sec: 1,
                watts_milli: 100_000,
                idle_milli: 50_000,
                ..v1::Node::default()
            }),
            ..v1::Hello::default()
        }
    }

    #[test]
    fn unreachable_label_queue_is_logged_once_and_retried() {
        let queue = Arc::new(Offline::default());
        let options = SimulatedOptions {
            queue: Some(queue.clone()),
            ..options()
        };
        let errors = Arc::new(AtomicUsize::new(0));
        let _log = tracing::subscriber::set_default(Errors(errors.clone()));
        let disk = SimulatedDisk::open_in_memory().unwrap();
        let begun = Simulated::start(disk, Duration::from_secs(1_000_000), &options);
        let mut server = begun.map_err(|(_, error)| error).unwrap();
        let _link = server.join(hello(1)).unwrap();
        while server.has_messages() {
            server.turn();
        }
        for job in 0..100 {
            server.cancel(job);
            server.turn();
        }
        assert_eq!(queue.tries.load(Ordering::Relaxed), 1);
        assert_eq!(errors.load(Ordering::Relaxed), 1);
        server.advance(Duration::from_secs(2));
        server.turn();
        assert_eq!(queue.tries.load(Ordering::Relaxed), 2);
        queue.is_available.store(true, Ordering::Relaxed);
        server.advance(Duration::from_secs(4));
        server.turn();
        server.turn();
        assert_eq!(queue.tries.load(Ordering::Relaxed), 3);
        assert_eq!(errors.load(Ordering::Relaxed), 1);
        assert_eq!(queue.fetched.load(Ordering::Relaxed), 1);
        let _disk = server.kill();
    }

    /// Nodes of the idle cluster, and (`IDLE_S`) the time for which it is watched.
    const IDLE_NODES: u32 = 200;
    const IDLE_S: u64 = 60;

    /// Lets the nodes report their state once a second, as real nodes do, and the driver process its messages.
    fn idle(server: &mut Simulated, links: &mut [NodeStream], seconds: std::ops::Range<u64>) {
        for second in seconds {
            for (node, link) in (1..).zip(&mut *links) {
                while link.outbox.try_recv().is_ok() {}
                let standing = v1::Standing {
                    free_bytes: (1 << 30) + second,
                    ..v1::Standing::default()
                };
                server.hear(node, link.epoch, From::Standing(standing));
            }
            server.advance(Duration::from_secs(second));
            while server.has_messages() {
                server.turn();
            }
            server.turn();
        }
    }

    #[test]
    fn idle_cluster_of_200_nodes_runs_less_than_three_statements_per_second() {
        let mut disk = SimulatedDisk::open_in_memory().unwrap();
        let counts = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
        let counted = counts.clone();
        let trace = move |event: TraceEvent<'_>| {
            // The statements of triggers are comments in the trace.
            if let TraceEvent::Stmt(_, sql) = event
                && !sql.starts_with("--")
            {
                let begin: String = sql.chars().take(80).collect();
                *counted.lock().entry(begin).or_default() += 1;
            }
        };
        disk.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(trace))
            .unwrap();
        let begun = Simulated::start(disk, Duration::from_secs(1_000_000), &options());
        let mut server = begun.map_err(|(_, error)| error).unwrap();
        let mut links: Vec<NodeStream> = (1..=IDLE_NODES)
            .map(|node| server.join(hello(node)).unwrap())
            .collect();
        let created = server.create_workspace("w", None);
        assert!(created.is_some());
        idle(&mut server, &mut links, 1..65);
        counts.lock().clear();
        idle(&mut server, &mut links, 65..65 + IDLE_S);
        let statements: u64 = counts.lock().values().sum();
        assert!(
            statements <= 3 * IDLE_S,
            "{statements}: {:#?}",
            counts.lock()
        );
        let _disk = server.kill();
    }

    #[test]
    fn chore_finds_work_of_a_later_commit_and_of_an_earlier_run() {
        let start = |disk: SimulatedDisk, second: u64| {
            let at = Duration::from_secs(1_000_000 + second);
            let begun = Simulated::start(disk, at, &options());
            begun.map_err(|(_, error)| error).unwrap()
        };
        let workspaces = |server: &Simulated| {
            let count = |disk: &SimulatedDisk| {
                disk.query_row("SELECT count(*) FROM workspace", [], |row| row.get(0))
            };
            server.read::<u32>(count).unwrap()
        };
        let ttl = Some(Duration::from_secs(5));
        let server = start(SimulatedDisk::open_in_memory().unwrap(), 0);
        // No chore has work before the workspace is created.
        server.advance(Duration::from_secs(100));
        assert!(server.create_workspace("w", ttl).is_some());
        server.advance(Duration::from_secs(104));
        assert_eq!(workspaces(&server), 1);
        server.advance(Duration::from_secs(106));
        assert_eq!(workspaces(&server), 0);
        // The lifetime ends while the server is down.
        assert!(server.create_workspace("w", ttl).is_some());
        let server = start(server.kill(), 200);
        server.advance(Duration::from_secs(1));
        assert_eq!(workspaces(&server), 0);
        let _disk = server.kill();
    }
}
