//! Start and shutdown of a server. This module opens the server's directory, database and sockets, and starts the threads and tasks of the
//! other modules.

use crate::access::Access;
use crate::authentication::Gates;
use crate::ca::{Ca, CaError};
use crate::check::Check;
use crate::chores::ChoreParts;
use crate::cluster::{Cluster, ClusterSettings};
use crate::cluster_service::ClusterService;
use crate::conditions::{ConditionService, LoggedConditions};
use crate::elastic::Elastic;
use crate::elastic::manager::Manager;
use crate::events::EventService;
use crate::files::FileService;
use crate::find::FindService;
use crate::health::HealthService;
use crate::jobs::DriverMessage;
use crate::jobs::driver::{Driver, Repairing, Signals};
use crate::jobs::finished::OldJobs;
use crate::jobs::service::JobService;
use crate::leadership::Leadership;
use crate::lease_recall::LeaseRecalls;
use crate::lineage::LineageService;
use crate::local_names::LocalNamesService;
use crate::locks::Locks;
use crate::log_copies::LogCopies;
use crate::migrator::{Migrator, PlaceService};
use crate::namespace_service::NamespaceService;
use crate::orphaned_versions::{LostWriters, OrphanedVersions};
#[cfg(feature = "nats")]
use crate::queue::Nats;
use crate::queue::{Address, DatabaseQueue, LabelQueue, QueueLocation};
use crate::reductions::Reductions;
use crate::remotes::RemoteService;
use crate::removal::Garbage;
#[cfg(feature = "nats")]
use crate::replication::{self, ReplicationError};
use crate::rules::driver::RuleRunner;
use crate::rules::service::RuleService;
use crate::session::Sessions;
use crate::token_service::TokenService;
use crate::tokens::{Tokens, TokensError};
use crate::workspaces::WorkspaceService;
use crate::{chores, clock, log_copies};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tidemill_client::Trust;
use tidemill_client::concurrency_limit::UserPermits;
use tidemill_client::connections::{Guests, Seated};
use tidemill_client::credential::CredentialError;
use tidemill_client::objects::Objects;
use tidemill_client::tls::{self, Listener, ServerIdentity, SocketStream, TlsProblem};
use tidemill_meta::UserLimits;
use tidemill_meta::changes::ChangeSender;
use tidemill_meta::{Fault, OpenError, SqliteNames};
use tidemill_model::replicas::WantedReplicas;
use tidemill_sched::burst;
use tidemill_wire::MESSAGE_BYTES_MAX;
use tidemill_wire::local::ShortPath;
use tidemill_wire::v1::cluster_server::ClusterServer;
use tidemill_wire::v1::events_server::EventsServer;
use tidemill_wire::v1::find_server::FindServer;
use tidemill_wire::v1::health_server::HealthServer;
use tidemill_wire::v1::jobs_server::JobsServer;
use tidemill_wire::v1::lineage_server::LineageServer;
use tidemill_wire::v1::names_server::NamesServer;
use tidemill_wire::v1::places_server::PlacesServer;
use tidemill_wire::v1::remotes_server::RemotesServer;
use tidemill_wire::v1::rules_server::RulesServer;
use tidemill_wire::v1::tokens_server::TokensServer;
use tidemill_wire::v1::workspaces_server::WorkspacesServer;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tonic::service::Routes;

/// Maximum numbers of simultaneous connections of one ordinary user: over the Unix socket, and over TCP. Over TCP, a client that asks for
/// a hundred reductions at once has one connection for each.
const CONNECTIONS_EACH_MAX: usize = 32;
const CONNECTIONS_BY_TCP_EACH_MAX: usize = 128;

/// Interval after which changes of names are reported to waiting jobs together.
const COALESCE: Duration = Duration::from_millis(5);

/// Time limit for nodes to receive the end of the log at the shutdown of the server.
const LOG_COPIES_MAX: Duration = Duration::from_secs(1);

/// Time limit for another process to release the lock on the server's directory.
const ENDING: Duration = Duration::from_secs(1);

/// Default rate of copying between nodes for repairs and migrations, in bytes per second: twice the rate of a link of 1 Gbit/s.
pub const MOVE_BYTES_PER_SEC: u64 = 250_000_000;

/// Whether a server with a replicated log tries to lead at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The server leads as soon as no other server does.
    Leader,
    /// The server leads only after a leader that knew it as a standby.
    Standby,
}

/// Settings of a replicated log.
#[derive(Clone, Debug)]
pub struct ReplicationConfig {
    /// The NATS servers.
    pub address: Address,
    /// Whether the server tries to lead at its start.
    pub role: Role,
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Directory of the server: database, token, socket. The server creates it if it is missing.
    pub dir: PathBuf,
    /// TCP address on which the server listens. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// Path of the server's Unix socket; `None` for `server.sock` in the directory.
    pub socket: Option<PathBuf>,
    /// Whether TCP connections to the server and to its nodes use TLS.
    pub tls: bool,
    /// Additional names, of hosts or addresses, in the server's certificate, for programs that fetch files by URL.
    pub tls_names: Vec<String>,
    /// Scheduling policy of jobs that name no policy.
    pub default_policy: String,
    /// Time for which a node may be offline before its labels are assigned to other nodes.
    pub node_timeout: Duration,
    /// Time for which a mount may be offline before the server closes the mount's open files.
    pub mount_timeout: Duration,
    /// Time for which finished jobs stay in the job list; `None`: finished jobs stay until a user deletes them.
    pub keep_jobs: Option<Duration>,
    /// Assumed rate at which nodes fetch from each other if they report none, in bytes per second.
    pub link_bytes_per_sec: u64,
    /// Wanted number of replicas of versions for which no directory sets a number.
    pub replicas: WantedReplicas,
    /// Time for which a node may be offline before its replicas are recreated on other nodes.
    pub repair_after: Duration,
    /// Interval at which a scrub reads all objects of each node and compares them with their hashes; `None`: only on request.
    pub scrub_every: Option<Duration>,
    /// Rate limit of recreated replicas and of migrations in the whole cluster, in bytes per second; 0 means no limit.
    pub move_bytes_per_sec: u64,
    /// Place where labels wait for their nodes: the database or NATS.
    pub queue: QueueLocation,
    /// Log in NATS that has each change before it is acknowledged, and that standby servers follow.
    pub log: Option<ReplicationConfig>,
    /// Settings of suspending idle nodes.
    pub elastic: Elastic,
    /// Limits of each user.
    pub limits: UserLimits,
    /// Fill levels at which the burst tier evicts files.
    pub burst: burst::TierLimits,
}

/// Default interval at which a scrub reads all objects of a node.
const SCRUB_EVERY_DEFAULT: Duration = Duration::from_secs(7 * 86_400);

impl ServeConfig {
    /// Returns the settings of a server in `dir` with default values for all other settings: a free port on the loopback address, 10 s node
    /// timeout, 1 Gbit/s links.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            socket: None,
            tls: true,
            tls_names: Vec::new(),
            default_policy: tidemill_sched::policy::DEFAULT.into(),
            node_timeout: Duration::from_secs(10),
            mount_timeout: Duration::from_secs(10),
            keep_jobs: None,
            link_bytes_per_sec: 125_000_000,
            replicas: WantedReplicas::ONE,
            repair_after: Duration::from_secs(600),
            scrub_every: Some(SCRUB_EVERY_DEFAULT),
            move_bytes_per_sec: MOVE_BYTES_PER_SEC,
            queue: QueueLocation::Own,
            log: None,
            elastic: Elastic::default(),
            limits: UserLimits::default(),
            burst: burst::TierLimits::default(),
        }
    }
}

/// Reason why a server can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A file or directory of the server can't be used.
    #[error("{path}: {source}")]
    File {
        /// Path of the file or directory.
        path: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The TCP address can't be used.
    #[error("can't listen on {address}: {source}; is another server running there?")]
    Listen {
        /// The TCP address.
        address: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The cluster's CA can't be used.
    #[error("{path}: {reason}")]
    Ca {
        /// File of the CA.
        path: String,
        /// Reason of the failure.
        reason: CaError,
    },
    /// The cluster's token can't be used.
    #[error(transparent)]
    Token(#[from] CredentialError),
    /// The tokens other than the cluster's token can't be used.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The server's own certificate can't be used.
    #[error(transparent)]
    Tls(#[from] TlsProblem),
    /// Another server uses the directory.
    #[error("{0}: another server runs in this directory; stop it first")]
    InUse(String),
    /// The database can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The queue of labels can't be used, for example because NATS can't be reached.
    #[cfg(feature = "nats")]
    #[error("the queue of labels can't be used: {0}")]
    Queue(std::io::Error),
    /// The settings require NATS for labels, and this program was built without NATS.
    #[cfg(not(feature = "nats"))]
    #[error(
        "this program was built without NATS; build it with `cargo build --release -p tidemill-cli --features nats`, or start it without \
         --queue and --log"
    )]
    NoNats,
    /// The replicated log can't be used.
    #[cfg(feature = "nats")]
    #[error("the replicated log can't be used: {0}")]
    Replication(#[from] ReplicationError),
    /// The name of the default policy is unknown.
    #[error(transparent)]
    Policy(#[from] tidemill_sched::policy::UnknownPolicy),
    /// The content of the database can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A running server. Dropping it without [`RunningServer::shutdown`] leaves the state that a crash would leave.
#[derive(Debug)]
pub struct RunningServer {
    address: SocketAddr,
    socket: PathBuf,
    token: PathBuf,
    runtime: Option<tokio::runtime::Runtime>,
    local: Option<LocalNamesService>,
    names: Arc<SqliteNames>,
    cluster: Arc<Cluster>,
    driver: Sender<DriverMessage>,
    worker: Option<std::thread::JoinHandle<()>>,
    leadership: Leadership,
    // The lock is held as long as the server runs.
    _lock: std::fs::File,
}

impl RunningServer {
    /// Opens the server's directory and starts to serve.
    ///
    /// # Errors
    /// If the directory, its database, the socket or the address can't be used.
    pub async fn start(config: ServeConfig) -> Result<Self, StartError> {
        // The server has a runtime of its own, so that no task of the server outlives it. Ending only the tasks that accept connections
        // would leave the tasks that serve them.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("server")
            .enable_all()
            .build()
            .map_err(|source| file(&config.dir, source))?;
        let mut runtime = StartingRuntime(Some(runtime));
        let begun = runtime.spawn(Self::begin(config)).await;
        let mut server = begun.unwrap_or(Err(StartError::Fault(Fault::Closed)))?;
        server.runtime = runtime.0.take();
        Ok(server)
    }

    async fn begin(config: ServeConfig) -> Result<Self, StartError> {
        let dir = config.dir.clone();
        let lock = prepare(&dir)?;
        let log = ReplicatedLog::prepare(&config).await?;
        let (ca, identity) = open_ca(&dir.join("ca.pem"), &config)?;
        let trust = Trust::new(ca.der())?;
        let identity = config.tls.then_some(identity);
        let access = open_access(&dir, &ca)?;
        let names = open_names(&config).await?;
        let leadership = log.lead(&names, &config).await?;
        let (driver, incoming) = std::sync::mpsc::channel();
        let settings = settings(&names, &config, &ca)?;
        let cluster = Arc::new(Cluster::new(&names, settings, driver.clone())?);
        cluster.read_by(Objects::new(Some(&trust)));
        let signals = Signals::default();
        let garbage = Garbage::new(names.database().clone(), names.shared().clone());
        let parts = (&names, &cluster, &garbage);
        let worker = start_driver(parts, &signals, DriverSettings::of(&config), incoming).await?;
        cluster.expect_known();
        // Files that jobs wait for may have appeared while the server was down.
        let _ = driver.send(DriverMessage::NamesChanged);
        let manager = Manager::new(&names, &cluster, config.elastic.clone());
        let of_mounts = (&names, &cluster, &trust);
        let (sessions, orphaned_versions, lease_recalls) = mounts(of_mounts, &config)?;
        let files = FileService::new(&names, &lease_recalls, &access, &cluster, &trust);
        let uses = (&names, &lease_recalls, &cluster);
        let looked_at = (&names, &cluster, &orphaned_versions);
        let conditions = ConditionService::new(looked_at, (&signals, &leadership));
        let worked_on = (names.clone(), cluster.clone(), manager.clone());
        let chore_parts = chore_parts(worked_on, garbage, &driver, &config);
        let parts = ServiceParts {
            rule_runner: RuleRunner::start(uses, Some(&files), &driver),
            files,
            names: names.clone(),
            lease_recalls: lease_recalls.clone(),
            cluster: cluster.clone(),
            access: access.clone(),
            driver: driver.clone(),
            signals: signals.clone(),
            conditions: conditions.clone(),
            sessions,
            orphaned_versions: orphaned_versions.clone(),
            check: Check::new(names.clone(), cluster.clone(), &trust),
            migrator: Migrator::new(&names, &cluster, &driver, signals.running.clone()),
            manager: manager.clone(),
        };
        let routes = parts.routes(hosts(&config), config.default_policy);
        let socket = config.socket.unwrap_or_else(|| dir.join("server.sock"));
        let gates = Gates::new(access, leadership.lease());
        let address = listen(config.listen, identity, &socket, routes, &gates).await?;
        let local = start_local(&socket, lease_recalls, &gates)?;
        start_background_tasks(
            (chore_parts, config.keep_jobs),
            orphaned_versions,
            &conditions,
        );
        tracing::info!(%address, socket = %socket.display(), "server is up");
        Ok(Self {
            address,
            socket,
            token: dir.join("token"),
            runtime: None,
            local: Some(local),
            names,
            cluster,
            driver,
            worker: Some(worker),
            leadership,
            _lock: lock,
        })
    }

    /// Returns the TCP address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the Unix socket on which the server listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the number of changes that were committed since the start, for tests that count the commits of an operation.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.names.database().commits()
    }

    /// Returns the path of the file with the cluster's token.
    #[must_use]
    pub fn token_file(&self) -> &Path {
        &self.token
    }

    /// Waits until this server does not lead the cluster any more. Returns the reason, and whether another server leads. Never returns without
    /// a replicated log.
    pub async fn deposed(&self) -> (String, bool) {
        self.leadership.deposed().await
    }

    /// Ends all connections, commits the accepted changes and closes the database.
    pub async fn shutdown(mut self) {
        if let Some(log) = self.names.database().log() {
            self.cluster.copied_logs().finish(log, LOG_COPIES_MAX).await;
        }
        let _ = self.driver.send(DriverMessage::Stop);
        let (names, worker) = (self.names.clone(), self.worker.take());
        let local = self.local.take();
        let (runtime, leadership) = (self.runtime.take(), self.leadership.clone());
        let close = move || {
            // Callers that wait for the log would never end otherwise.
            leadership.end();
            drop(local);
            let _ = worker.map(std::thread::JoinHandle::join);
            if let Some(runtime) = runtime {
                runtime.shutdown_timeout(Duration::from_secs(1));
            }
            names.database().close();
        };
        let _ = tokio::task::spawn_blocking(close).await;
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Runtime of a server that starts. A start that is abandoned ends it without a wait.
struct StartingRuntime(Option<tokio::runtime::Runtime>);

impl StartingRuntime {
    fn spawn<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match &self.0 {
            Some(runtime) => runtime.spawn(future),
            None => tokio::spawn(future),
        }
    }
}

impl Drop for StartingRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.driver.send(DriverMessage::Stop);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns the sessions of mounts, and the services for files that mounts have open.
fn mounts(
    (names, cluster, trust): (&Arc<SqliteNames>, &Arc<Cluster>, &Trust),
    config: &ServeConfig,
) -> Result<(Sessions, Arc<OrphanedVersions>, LeaseRecalls), StartError> {
    let wakes = names.database().wakes();
    let sessions = Sessions::new(config.mount_timeout, wakes.clone());
    let locks = Locks::new(names.clone(), sessions.clone())?;
    let orphaned_versions =
        OrphanedVersions::new(names.clone(), &locks, cluster, &sessions, (trust, wakes));
    let lease_recalls = LeaseRecalls::new(names.clone(), locks);
    Ok((sessions, orphaned_versions, lease_recalls))
}

/// Opens the namespace, and applies the settings of the server to it.
async fn open_names(config: &ServeConfig) -> Result<Arc<SqliteNames>, StartError> {
    let (owner, database) = (own_user(), config.dir.join("server.db"));
    let names = tokio::task::spawn_blocking(move || SqliteNames::open(&database, owner));
    let names = Arc::new(names.await.map_err(|_| Fault::Closed)??);
    log_copies::start(names.database(), &config.dir).await?;
    names.keep_kernels_directory(owner).await?;
    tell(&names, config);
    Ok(names)
}

/// Returns the parts of the server on which its chores work.
fn chore_parts(
    (names, cluster, manager): (Arc<SqliteNames>, Arc<Cluster>, Manager),
    garbage: Garbage,
    driver: &Sender<DriverMessage>,
    config: &ServeConfig,
) -> ChoreParts {
    ChoreParts {
        names,
        cluster,
        manager,
        garbage,
        driver: driver.clone(),
        repair_after: config.repair_after,
        scrub_every: config.scrub_every,
    }
}

fn settings(
    names: &SqliteNames,
    config: &ServeConfig,
    ca: &Arc<Ca>,
) -> Result<ClusterSettings, StartError> {
    Ok(ClusterSettings {
        cluster_id: names.database().read(tidemill_meta::cluster_id)?,
        node_timeout: config.node_timeout,
        link_bytes_per_sec: config.link_bytes_per_sec,
        tls: config.tls,
        ca: ca.clone(),
    })
}

/// Starts the timed work and the other background tasks, which run as long as the server runs.
fn start_background_tasks(
    (parts, keep_jobs): (ChoreParts, Option<Duration>),
    orphaned_versions: Arc<OrphanedVersions>,
    conditions: &ConditionService,
) {
    let (names, driver) = (parts.names.clone(), parts.driver.clone());
    let cluster = parts.cluster.clone();
    let mut chores = parts.chores();
    if let Some(log) = names.database().log() {
        match LogCopies::new((&cluster, names.database()), log) {
            Ok(copies) => chores.push(Box::new(copies)),
            Err(fault) => fault.log_delay("the log of the database is not copied"),
        }
    }
    chores.push(Box::new(LostWriters(orphaned_versions)));
    chores.push(Box::new(LoggedConditions::new(conditions)));
    if let Some(keep) = keep_jobs {
        chores.push(Box::new(OldJobs {
            names: names.clone(),
            keep_ns: i64::try_from(keep.as_nanos()).unwrap_or(i64::MAX),
        }));
    }
    tokio::spawn(chores::run(chores, names.database().wakes().clone()));
    let (teller, signals) = (names.teller().clone(), conditions.signals.clone());
    tokio::spawn(forward_changes(teller, signals, driver));
}

fn start_local(
    socket: &Path,
    lease_recalls: LeaseRecalls,
    gates: &Gates,
) -> Result<LocalNamesService, StartError> {
    let path = tidemill_wire::local::socket(socket);
    let gates = (gates.access().clone(), gates.lease().cloned());
    LocalNamesService::start(&path, lease_recalls, gates).map_err(|source| file(&path, source))
}

/// The replicated log of a server, if it has one.
#[cfg(feature = "nats")]
struct ReplicatedLog(Option<replication::Prepared>);

#[cfg(feature = "nats")]
impl ReplicatedLog {
    /// Waits until this server leads, with its database made from the log.
    async fn prepare(config: &ServeConfig) -> Result<Self, StartError> {
        let Some(log) = &config.log else {
            replication::check_unused(&config.dir)?;
            return Ok(Self(None));
        };
        let address = leader_address(config);
        let prepared = replication::prepare(log, &config.dir, &address).await?;
        Ok(Self(Some(prepared)))
    }

    /// Starts the leadership.
    async fn lead(
        self,
        names: &SqliteNames,
        config: &ServeConfig,
    ) -> Result<Leadership, StartError> {
        let (Some(prepared), Some(log)) = (self.0, &config.log) else {
            return Ok(Leadership::default());
        };
        let address = leader_address(config);
        let of = (log, &*config.dir, &*address);
        let leading = replication::lead(prepared, names.database(), of).await?;
        Ok(Leadership(Some(leading)))
    }
}

/// Returns the address under which people know this server, for messages.
#[cfg(feature = "nats")]
fn leader_address(config: &ServeConfig) -> String {
    let ip = config.listen.ip();
    match ip.is_unspecified() || ip.is_loopback() {
        true => {
            let system = rustix::system::uname();
            let host = system.nodename().to_string_lossy();
            format!("{host}:{}", config.listen.port())
        }
        false => config.listen.to_string(),
    }
}

#[cfg(not(feature = "nats"))]
struct ReplicatedLog;

#[cfg(not(feature = "nats"))]
impl ReplicatedLog {
    async fn prepare(config: &ServeConfig) -> Result<Self, StartError> {
        // This file marks a database that is a copy of a log.
        match config.log.is_some() || config.dir.join("replicated").exists() {
            true => Err(StartError::NoNats),
            false => Ok(Self),
        }
    }

    async fn lead(self, _: &SqliteNames, _: &ServeConfig) -> Result<Leadership, StartError> {
        Ok(Leadership::default())
    }
}

/// Settings for the decisions of the driver, and the queue to which the driver adds labels.
struct DriverSettings {
    policy: String,
    repairing: Repairing,
    queue: QueueLocation,
}

impl DriverSettings {
    fn of(config: &ServeConfig) -> Self {
        Self {
            policy: config.default_policy.clone(),
            repairing: Repairing {
                after: config.repair_after,
                bytes_per_sec: config.move_bytes_per_sec,
            },
            queue: config.queue.clone(),
        }
    }
}

/// Starts the driver. The driver first reads unfinished jobs, which may take a while, and then runs on its own thread.
async fn start_driver(
    (names, cluster, garbage): (&Arc<SqliteNames>, &Arc<Cluster>, &Garbage),
    signals: &Signals,
    decides: DriverSettings,
    incoming: std::sync::mpsc::Receiver<DriverMessage>,
) -> Result<std::thread::JoinHandle<()>, StartError> {
    let DriverSettings {
        policy,
        repairing,
        queue,
    } = decides;
    tidemill_sched::policy::by_name(&policy, 0)?;
    let (names, cluster, signals) = (names.clone(), cluster.clone(), signals.clone());
    let garbage = garbage.clone();
    let queue = open_queue(queue, &names)?;
    let made = tokio::task::spawn_blocking(move || {
        Driver::new(
            names,
            cluster,
            queue,
            garbage,
            signals,
            (&policy, repairing),
        )
    });
    let driver = made.await.map_err(|_| Fault::Closed)??;
    Ok(std::thread::spawn(move || driver.run(incoming)))
}

fn open_queue(
    place: QueueLocation,
    names: &Arc<SqliteNames>,
) -> Result<Arc<dyn LabelQueue>, StartError> {
    Ok(match place {
        QueueLocation::Own => Arc::new(DatabaseQueue::new(names.database().clone())),
        QueueLocation::Given(queue) => queue,
        #[cfg(feature = "nats")]
        QueueLocation::Nats(address) => {
            let cluster = names.database().read(tidemill_meta::cluster_id)?;
            let queue = Nats::start(address, cluster, names.shared().key().as_bytes());
            Arc::new(queue.map_err(StartError::Queue)?)
        }
        #[cfg(not(feature = "nats"))]
        QueueLocation::Nats(_) => return Err(StartError::NoNats),
    })
}

/// Objects from which the services are built.
struct ServiceParts {
    names: Arc<SqliteNames>,
    lease_recalls: LeaseRecalls,
    cluster: Arc<Cluster>,
    access: Arc<Access>,
    driver: Sender<DriverMessage>,
    signals: Signals,
    conditions: ConditionService,
    sessions: Sessions,
    orphaned_versions: Arc<OrphanedVersions>,
    check: Check,
    migrator: Migrator,
    manager: Manager,
    files: FileService,
    rule_runner: RuleRunner,
}

impl ServiceParts {
    fn namespace(&self) -> NamespaceService {
        NamespaceService {
            names: self.names.clone(),
            access: self.access.clone(),
            sessions: self.sessions.clone(),
            lease_recalls: self.lease_recalls.clone(),
        }
    }

    fn tokens(&self) -> TokenService {
        TokenService {
            access: self.access.clone(),
            ca: self.cluster.ca().clone(),
            database: self.names.database().clone(),
        }
    }

    fn routes(self, hosts: Vec<String>, default_policy: String) -> Routes {
        let (namespace, tokens) = (self.namespace(), self.tokens());
        let names = self.names.clone();
        let jobs = JobService {
            names: self.names.clone(),
            lease_recalls: self.lease_recalls.clone(),
            cluster: self.cluster.clone(),
            access: self.access.clone(),
            driver: self.driver,
            signals: self.signals,
            submissions: Arc::new(UserPermits::new(1)),
        };
        let lineage = lineage(names.clone(), &self.access);
        let (workspaces, events) = waits(&jobs.names, &self.access);
        let remotes = remotes(&jobs.names, &self.access);
        let health = HealthService {
            names: jobs.names.clone(),
            cluster: self.cluster.clone(),
            access: self.access.clone(),
        };
        let (rule_runner, access) = (self.rule_runner, self.access.clone());
        let rules = RuleService {
            rule_runner,
            access,
        };
        let find = FindService::start(&health.names, &self.access, &self.files);
        let places = PlaceService::new(
            self.migrator,
            self.manager,
            self.lease_recalls,
            self.access.clone(),
        );
        let cluster = ClusterService {
            cluster: self.cluster,
            access: self.access,
            default_policy,
            policies: policies(),
            started: clock::now_ns(),
            sessions: self.sessions,
            orphaned_versions: self.orphaned_versions,
            check: self.check,
            names,
            conditions: self.conditions,
        };
        let max = MESSAGE_BYTES_MAX;
        let namespace = NamesServer::new(namespace)
            .max_decoding_message_size(max)
            .max_encoding_message_size(max);
        let jobs = JobsServer::new(jobs)
            .max_decoding_message_size(max)
            .max_encoding_message_size(max);
        let cluster = ClusterServer::new(cluster)
            .max_decoding_message_size(max)
            .max_encoding_message_size(max);
        let routes = Routes::new(namespace)
            .add_service(jobs)
            .add_service(LineageServer::new(lineage).max_encoding_message_size(max))
            .add_service(FindServer::new(find).max_encoding_message_size(max))
            .add_service(TokensServer::new(tokens))
            .add_service(remotes)
            .add_service(HealthServer::new(health).max_encoding_message_size(max))
            .add_service(PlacesServer::new(places))
            .add_service(workspaces)
            .add_service(events)
            .add_service(RulesServer::new(rules).max_encoding_message_size(max))
            .add_service(cluster);
        let reductions = Reductions::new(&self.files, hosts).routes();
        let routes = routes.into_axum_router().merge(reductions);
        routes.merge(self.files.routes()).into()
    }
}

/// Applies the settings of the server to the namespace.
fn tell(names: &SqliteNames, config: &ServeConfig) {
    names.shared().set_replicas(config.replicas);
    names.shared().bursts.set_limits(config.burst);
    names.shared().limits.set(config.limits);
}

fn lineage(names: Arc<SqliteNames>, access: &Arc<Access>) -> LineageService {
    let access = access.clone();
    LineageService { names, access }
}

fn remotes(names: &Arc<SqliteNames>, access: &Arc<Access>) -> RemotesServer<RemoteService> {
    let (names, access) = (names.clone(), access.clone());
    let looks = Arc::default();
    RemotesServer::new(RemoteService {
        names,
        access,
        looks,
    })
}

/// Returns the services through which clients wait for changes.
fn waits(
    names: &Arc<SqliteNames>,
    access: &Arc<Access>,
) -> (
    WorkspacesServer<WorkspaceService>,
    EventsServer<EventService>,
) {
    let waiters = Arc::default();
    (
        WorkspacesServer::new(WorkspaceService::new(names, access, &waiters)),
        EventsServer::new(EventService::new(names, access, &waiters)),
    )
}

fn policies() -> Vec<String> {
    let names = tidemill_sched::policy::NAMES.iter();
    names.map(|&name| name.to_owned()).collect()
}

/// Notifies the driver of changes in the namespace while jobs wait for files. Many changes at once cause one notification.
pub(crate) async fn forward_changes(
    teller: ChangeSender,
    signals: Signals,
    driver: Sender<DriverMessage>,
) {
    loop {
        teller.files().await;
        if !signals.awaiting.load(std::sync::atomic::Ordering::Relaxed) {
            continue;
        }
        tokio::time::sleep(COALESCE).await;
        let message = match teller.rights_changed() {
            true => DriverMessage::RightsChanged,
            false => DriverMessage::NamesChanged,
        };
        if driver.send(message).is_err() {
            return;
        }
    }
}

/// Opens the cluster's CA, and the server's identity signed by the CA.
fn open_ca(path: &Path, config: &ServeConfig) -> Result<(Arc<Ca>, ServerIdentity), StartError> {
    let at = |reason| StartError::Ca {
        path: path.display().to_string(),
        reason,
    };
    let ca = Ca::open(path).map_err(at)?;
    let identity = ca.server(&hosts(config)).map_err(at)?;
    Ok((Arc::new(ca), identity))
}

/// Opens the access rules: the cluster's token and the other tokens.
fn open_access(dir: &Path, ca: &Ca) -> Result<Arc<Access>, StartError> {
    let tokens = Tokens::open(&dir.join("tokens"))?;
    let access = Access::open(&dir.join("token"), ca, tokens)?;
    Ok(Arc::new(access))
}

/// Returns the user and group of this process.
fn own_user() -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw(), gid.as_raw())
}

/// Returns the host names and addresses by which programs that know no clusters may reach the server.
fn hosts(config: &ServeConfig) -> Vec<String> {
    let mut hosts = vec!["localhost".into(), "127.0.0.1".into(), "::1".into()];
    let address = config.listen.ip();
    if !address.is_unspecified() {
        hosts.push(address.to_string());
    }
    let system = rustix::system::uname();
    hosts.push(system.nodename().to_string_lossy().into_owned());
    hosts.extend(config.tls_names.iter().cloned());
    hosts.retain(|host| !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic()));
    let mut seen = BTreeSet::new();
    hosts.retain(|host| seen.insert(host.clone()));
    hosts
}

fn file(path: &Path, source: std::io::Error) -> StartError {
    StartError::File {
        path: path.display().to_string(),
        source,
    }
}

/// Creates the server's directory with a private database file and locks the directory against a second server.
fn prepare(dir: &Path) -> Result<std::fs::File, StartError> {
    std::fs::create_dir_all(dir).map_err(|source| file(dir, source))?;
    let lock = lock(dir)?;
    let database = dir.join("server.db");
    private()
        .open(&database)
        .map_err(|source| file(&database, source))?;
    Ok(lock)
}

/// Locks the directory against other servers for as long as the returned file is open. The function waits for a server that is ending now:
/// a forked child of that server, on its way to execute a program, holds the lock for a moment longer.
pub(crate) fn lock(dir: &Path) -> Result<std::fs::File, StartError> {
    let path = dir.join("server.lock");
    let lock = private()
        .open(&path)
        .map_err(|source| file(&path, source))?;
    let until = Instant::now() + ENDING;
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= until {
            return Err(StartError::InUse(dir.display().to_string()));
        }
        std::thread::sleep(ENDING / 100);
    }
    Ok(lock)
}

/// Returns the options for opening and creating files that only the server's user may read.
pub(crate) fn private() -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    options
}

async fn listen(
    address: SocketAddr,
    identity: Option<ServerIdentity>,
    socket: &Path,
    routes: Routes,
    gates: &Gates,
) -> Result<SocketAddr, StartError> {
    let refused = |source| StartError::Listen {
        address: address.to_string(),
        source,
    };
    let tcp = TcpListener::bind(address).await.map_err(refused)?;
    let bound = tcp.local_addr().map_err(refused)?;
    // This process holds the directory's lock, so an existing socket file was left by a server that has ended.
    let _ = std::fs::remove_file(socket);
    let short = ShortPath::of(socket).map_err(|source| file(socket, source))?;
    let unix = UnixListener::bind(&short).map_err(|source| file(socket, source))?;
    // Every user may connect: the server knows the user of each connection.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))
        .map_err(|source| file(socket, source))?;
    let identity = identity.map(|identity| tokio::sync::watch::channel(Some(identity)).1);
    let tcp = Listener::new(tcp, identity, CONNECTIONS_BY_TCP_EACH_MAX);
    let tcp = futures_util::stream::unfold(tcp, async |mut tcp| {
        let (stream, _) = tcp.accept().await;
        Some((Ok::<Seated<SocketStream>, std::io::Error>(stream), tcp))
    });
    let access = gates.access().clone();
    let local = (unix, Guests::new(CONNECTIONS_EACH_MAX), access);
    let local = futures_util::stream::unfold(local, async |(unix, guests, access)| {
        let stream = accept_local(&unix, &guests, &access).await;
        Some((Ok::<_, std::io::Error>(stream), (unix, guests, access)))
    });
    let over_tcp = builder()
        .layer(gates.clone())
        .add_routes(routes.clone())
        .serve_with_incoming(tcp);
    let over_unix = builder()
        .layer(gates.clone())
        .add_routes(routes)
        .serve_with_incoming(local);
    tokio::spawn(async move { log(over_tcp.await) });
    tokio::spawn(async move { log(over_unix.await) });
    Ok(bound)
}

/// Accepts the next connection from this host. The Linux kernel reports the connecting user at once.
async fn accept_local(unix: &UnixListener, guests: &Guests, access: &Access) -> Seated<UnixStream> {
    loop {
        let accepted = match unix.accept().await {
            Ok((stream, _)) => stream.peer_cred().map(|cred| (stream, cred)),
            Err(error) => Err(error),
        };
        match accepted {
            Ok((stream, cred)) => {
                let peer = access.local_peer(cred.uid(), cred.gid());
                return guests.seat(stream, peer.who());
            }
            Err(error) => tls::could_not_accept(&error).await,
        }
    }
}

fn builder() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        // HTTP/1 only serves files by URL: see the gate.
        .accept_http1(true)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        // These windows limit the bytes that a peer may send before the server has examined the request.
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(1 << 20)
}

fn log(result: Result<(), tonic::transport::Error>) {
    if let Err(error) = result {
        tracing::error!(%error, "serving ended");
    }
}
