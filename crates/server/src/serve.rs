//! Start and shutdown of a server. This module opens the server's directory, database and sockets, and starts the threads and tasks of the
//! other modules.

use crate::access::Access;
use crate::arrivals::ArrivalService;
use crate::bridges::BridgeService;
use crate::ca::{Ca, CaError};
use crate::check::Check;
use crate::cluster::{Cluster, Settings};
use crate::cluster_service::ClusterService;
use crate::conditions::Conditions;
use crate::elastic::Elastic;
use crate::elastic::manager::Manager;
use crate::ends::Ends;
use crate::files::Files;
use crate::find::FindService;
use crate::gate::Gates;
use crate::health::HealthService;
use crate::jobs::Incoming;
use crate::jobs::driver::{Driver, Repairing, Signals};
use crate::jobs::service::JobService;
use crate::jobs::{expiry, finished};
use crate::limits::Limits;
use crate::lineage::LineageService;
use crate::local_names::LocalNames;
use crate::locks::Locks;
use crate::migrations::promises;
use crate::migrator::{Migrator, PlaceService};
use crate::names::changes::Teller;
use crate::names::{Fault, OpenError, SqliteNames, lent};
use crate::namespace_service::NamespaceService;
#[cfg(feature = "nats")]
use crate::queue::Nats;
use crate::queue::{Journal, Place, Queue};
use crate::recall::Recalls;
use crate::reductions::Reductions;
use crate::removal::Garbage;
use crate::rooms::{self, RoomService};
use crate::rules::driver::Firer;
use crate::rules::service::RuleService;
use crate::session::Sessions;
use crate::token_service::TokenService;
use crate::tokens::{Tokens, TokensError};
use crate::{clock, names, notes, replicas, scrub};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tidemill_client::Trust;
use tidemill_client::credential::CredentialError;
use tidemill_client::guests::{Guests, Seated};
use tidemill_client::objects::Objects;
use tidemill_client::tls::{self, Identity, Listener, Problem, Stream};
use tidemill_client::turns::Turns;
use tidemill_core::burst;
use tidemill_core::replicas::Wanted;
use tidemill_wire::MESSAGE_BYTES_MAX;
use tidemill_wire::local::Short;
use tidemill_wire::v1::arrivals_server::ArrivalsServer;
use tidemill_wire::v1::bridges_server::BridgesServer;
use tidemill_wire::v1::cluster_server::ClusterServer;
use tidemill_wire::v1::find_server::FindServer;
use tidemill_wire::v1::health_server::HealthServer;
use tidemill_wire::v1::jobs_server::JobsServer;
use tidemill_wire::v1::lineage_server::LineageServer;
use tidemill_wire::v1::names_server::NamesServer;
use tidemill_wire::v1::places_server::PlacesServer;
use tidemill_wire::v1::rooms_server::RoomsServer;
use tidemill_wire::v1::rules_server::RulesServer;
use tidemill_wire::v1::tokens_server::TokensServer;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tonic::service::Routes;

/// Maximum numbers of simultaneous connections of one ordinary user: over the Unix socket, and over TCP. Over TCP, a client that asks for
/// a hundred reductions at once has one connection for each.
const CONNECTIONS_EACH_MAX: usize = 32;
const CONNECTIONS_BY_TCP_EACH_MAX: usize = 128;

/// Interval within which changes of names reach waiting jobs together.
const COALESCE: Duration = Duration::from_millis(5);

/// Time limit for the process that holds the directory to end.
const ENDING: Duration = Duration::from_secs(1);

/// Default rate of copying between nodes for repairs and migrations, in bytes per second: twice the rate of a link of 1 Gbit/s.
pub const MOVE_BYTES_PER_SEC: u64 = 250_000_000;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the server: database, token, socket. The server creates it if it is missing.
    pub dir: PathBuf,
    /// TCP address to listen on. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// Path of the Unix socket; `None` for `server.sock` in the directory.
    pub socket: Option<PathBuf>,
    /// Whether TCP connections to the server and to its nodes use TLS.
    pub tls: bool,
    /// Additional names, of hosts or addresses, in the server's certificate, for programs that fetch files by URL.
    pub tls_names: Vec<String>,
    /// Policy of jobs that name none.
    pub default_policy: String,
    /// Time for which a node may be offline before its labels are assigned to other nodes.
    pub node_timeout: Duration,
    /// Time for which a mount may be offline before its open files are closed by the server.
    pub mount_timeout: Duration,
    /// Time for which finished jobs stay on the list; `None` for until somebody deletes them.
    pub keep_jobs: Option<Duration>,
    /// Assumed rate at which nodes pull from each other if they report none, in bytes per second.
    pub link_bytes_per_sec: u64,
    /// Wanted number of replicas of versions for which no directory sets a number.
    pub replicas: Wanted,
    /// Time for which a node may be offline before its replicas are recreated on other nodes.
    pub repair_after: Duration,
    /// Interval in which all objects of each node are read and compared with their hashes; `None`: only on request.
    pub scrub_every: Option<Duration>,
    /// Rate limit of recreated replicas and of migrations in the whole cluster, in bytes per second; 0 for no limit.
    pub move_bytes_per_sec: u64,
    /// Place where labels wait for their nodes.
    pub queue: Place,
    /// Settings of suspending nodes.
    pub elastic: Elastic,
    /// Limits of each user.
    pub limits: Limits,
    /// Fill levels at which the burst tier drains.
    pub burst: burst::Limits,
}

/// Default interval in which all objects of a node are read.
const SCRUB_EVERY_DEFAULT: Duration = Duration::from_secs(7 * 86_400);

impl Config {
    /// Returns the settings of a server in `dir` with all else at its default: a free port on the loopback address, 10 s node timeout,
    /// 1 Gbit/s links.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            socket: None,
            tls: true,
            tls_names: Vec::new(),
            default_policy: tidemill_core::policy::DEFAULT.into(),
            node_timeout: Duration::from_secs(10),
            mount_timeout: Duration::from_secs(10),
            keep_jobs: None,
            link_bytes_per_sec: 125_000_000,
            replicas: Wanted::ONE,
            repair_after: Duration::from_secs(600),
            scrub_every: Some(SCRUB_EVERY_DEFAULT),
            move_bytes_per_sec: MOVE_BYTES_PER_SEC,
            queue: Place::Own,
            elastic: Elastic::default(),
            limits: Limits::default(),
            burst: burst::Limits::default(),
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
        /// Error of the system.
        source: std::io::Error,
    },
    /// The TCP address can't be used.
    #[error("can't listen on {address}: {source}; is another server running there?")]
    Listen {
        /// The address.
        address: String,
        /// Error of the system.
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
    /// The other tokens can't be used.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The server's own certificate can't be used.
    #[error(transparent)]
    Tls(#[from] Problem),
    /// Another server uses the directory.
    #[error("{0}: another server runs in this directory; stop it first")]
    InUse(String),
    /// The database can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The queue of labels can't be used.
    #[cfg(feature = "nats")]
    #[error("the queue of labels can't be used: {0}")]
    Queue(std::io::Error),
    /// Labels are to wait in NATS, and this program was built without NATS.
    #[cfg(not(feature = "nats"))]
    #[error(
        "labels can't wait in NATS: this program was built without it; build it with `cargo build --release -p tidemill-cli --features nats`, \
         or start it without --queue"
    )]
    NoNats,
    /// The default policy is not known.
    #[error(transparent)]
    Policy(#[from] tidemill_core::policy::UnknownPolicy),
    /// The content of the database can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A running server. Dropping it without [`Server::shutdown`] leaves the state that a crash would leave.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    socket: PathBuf,
    token: PathBuf,
    runtime: Option<tokio::runtime::Runtime>,
    local: Option<LocalNames>,
    names: Arc<SqliteNames>,
    driver: Sender<Incoming>,
    worker: Option<std::thread::JoinHandle<()>>,
    // The lock is held as long as the server runs.
    _lock: std::fs::File,
}

impl Server {
    /// Opens the directory and begins to serve.
    ///
    /// # Errors
    /// If the directory, its database, the socket or the address can't be used.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        // The server has a runtime of its own, so that no task of the server outlives it. Ending only the tasks that accept connections
        // would leave the tasks that serve them.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("server")
            .enable_all()
            .build()
            .map_err(|source| file(&config.dir, source))?;
        let begun = runtime.spawn(Self::begin(config)).await;
        match begun.unwrap_or(Err(StartError::Fault(Fault::Closed))) {
            Ok(mut server) => {
                server.runtime = Some(runtime);
                Ok(server)
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    async fn begin(config: Config) -> Result<Self, StartError> {
        let dir = config.dir.clone();
        let lock = prepare(&dir)?;
        let (ca, identity) = open_ca(&dir.join("ca.pem"), &config)?;
        let trust = Trust::new(ca.der())?;
        let identity = config.tls.then_some(identity);
        let access = open_access(&dir, &ca)?;
        let owner = own_user();
        let database = dir.join("server.db");
        let names = tokio::task::spawn_blocking(move || SqliteNames::open(&database, owner));
        let names = Arc::new(names.await.map_err(|_| Fault::Closed)??);
        names.keep_kernels_directory(owner).await?;
        tell(&names, &config);
        let settings = settings(&names, &config, &ca)?;
        let (driver, incoming) = std::sync::mpsc::channel();
        let cluster = Arc::new(Cluster::new(&names, settings, driver.clone())?);
        cluster.read_by(Objects::new(Some(&trust)));
        let signals = Signals::default();
        let told = (driver.clone(), incoming);
        let worker = start_driver(&names, &cluster, &signals, Decides::of(&config), told).await?;
        cluster.expect_known();
        // Files that jobs wait for may have appeared while the server was down.
        let _ = driver.send(Incoming::NamesChanged);
        let manager = Manager::start(&names, &cluster, config.elastic.clone());
        let sessions = Sessions::new(config.mount_timeout);
        let locks = Locks::new(names.clone(), sessions.clone())?;
        let ends = Ends::new(names.clone(), &locks, &cluster, &sessions, &trust);
        let recalls = Recalls::new(names.clone(), locks);
        let files = Files::new(&names, &recalls, &access, &cluster, &trust);
        let parts = Parts {
            firer: Firer::start((&names, &recalls, &cluster), Some(&files), &driver),
            files,
            names: names.clone(),
            recalls: recalls.clone(),
            cluster: cluster.clone(),
            access: access.clone(),
            driver: driver.clone(),
            signals: signals.clone(),
            conditions: Conditions::start((&names, &cluster, &ends), &signals),
            sessions,
            ends: ends.clone(),
            check: Check::new(names.clone(), cluster.clone(), &trust),
            migrator: Migrator::new(&names, &cluster, &driver, signals.running.clone()),
            manager: manager.clone(),
        };
        let routes = parts.routes(hosts(&config), config.default_policy);
        let socket = config.socket.unwrap_or_else(|| dir.join("server.sock"));
        let address = listen(config.listen, identity, &socket, routes, &access).await?;
        let local = start_local(&socket, recalls, access)?;
        keep_up(
            (&names, config.keep_jobs),
            cluster,
            ends,
            (signals, driver.clone()),
        );
        tracing::info!(%address, socket = %socket.display(), "server is up");
        Ok(Self {
            address,
            socket,
            token: dir.join("token"),
            runtime: None,
            local: Some(local),
            names,
            driver,
            worker: Some(worker),
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

    /// Returns the path of the file with the cluster's token.
    #[must_use]
    pub fn token_file(&self) -> &Path {
        &self.token
    }

    /// Ends all connections, commits the accepted changes and closes the database.
    pub async fn shutdown(mut self) {
        let _ = self.driver.send(Incoming::Stop);
        let (names, worker) = (self.names.clone(), self.worker.take());
        let local = self.local.take();
        let runtime = self.runtime.take();
        let close = move || {
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

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.driver.send(Incoming::Stop);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn settings(names: &SqliteNames, config: &Config, ca: &Arc<Ca>) -> Result<Settings, StartError> {
    Ok(Settings {
        cluster_id: names.database().read(names::cluster_id)?,
        node_timeout: config.node_timeout,
        link_bytes_per_sec: config.link_bytes_per_sec,
        tls: config.tls,
        ca: ca.clone(),
    })
}

/// Starts the background tasks of the server, which run as long as the server.
fn keep_up(
    (names, keep_jobs): (&Arc<SqliteNames>, Option<Duration>),
    cluster: Arc<Cluster>,
    ends: Arc<Ends>,
    (signals, driver): (Signals, Sender<Incoming>),
) {
    if let Some(keep) = keep_jobs {
        tokio::spawn(finished::run(names.clone(), keep));
    }
    let teller = names.teller().clone();
    tokio::spawn(forward_changes(teller, signals, driver));
    tokio::spawn(notes::run(names.database().clone(), cluster.clone()));
    tokio::spawn(lent::run(names.shared().clone(), cluster.clone()));
    tokio::spawn(rooms::channels::run(names.clone(), cluster));
    tokio::spawn(ends.run());
    tokio::spawn(expiry::run(names.clone()));
    tokio::spawn(rooms::run(names.clone()));
    tokio::spawn(promises::run(names.clone()));
}

fn start_local(
    socket: &Path,
    recalls: Recalls,
    access: Arc<Access>,
) -> Result<LocalNames, StartError> {
    let path = tidemill_wire::local::socket(socket);
    LocalNames::start(&path, recalls, access).map_err(|source| file(&path, source))
}

/// Settings by which the driver decides, and the place where it puts labels.
struct Decides {
    policy: String,
    repairing: Repairing,
    scrub_every: Option<Duration>,
    queue: Place,
}

impl Decides {
    fn of(config: &Config) -> Self {
        Self {
            policy: config.default_policy.clone(),
            scrub_every: config.scrub_every,
            repairing: Repairing {
                after: config.repair_after,
                bytes_per_sec: config.move_bytes_per_sec,
            },
            queue: config.queue.clone(),
        }
    }
}

/// Starts the driver. It reads unfinished jobs first, which may take a while, and then runs on a thread of its own.
async fn start_driver(
    names: &Arc<SqliteNames>,
    cluster: &Arc<Cluster>,
    signals: &Signals,
    decides: Decides,
    (driver, incoming): (Sender<Incoming>, std::sync::mpsc::Receiver<Incoming>),
) -> Result<std::thread::JoinHandle<()>, StartError> {
    let Decides {
        policy,
        repairing,
        scrub_every,
        queue,
    } = decides;
    tidemill_core::policy::by_name(&policy, 0)?;
    let (names, cluster, signals) = (names.clone(), cluster.clone(), signals.clone());
    let database = names.database().clone();
    let garbage = Garbage::new(database.clone(), names.shared().clone());
    tokio::spawn(garbage.clone().watch(cluster.clone(), driver.clone()));
    let watched = |driver: &Sender<Incoming>| (database.clone(), cluster.clone(), driver.clone());
    let (of, on, told) = watched(&driver);
    tokio::spawn(replicas::watch(of, on, repairing.after, told));
    let (of, on, told) = watched(&driver);
    tokio::spawn(scrub::watch(of, on, scrub_every, told));
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

fn open_queue(place: Place, names: &Arc<SqliteNames>) -> Result<Arc<dyn Queue>, StartError> {
    Ok(match place {
        Place::Own => Arc::new(Journal::new(names.database().clone())),
        Place::Given(queue) => queue,
        #[cfg(feature = "nats")]
        Place::Nats(address) => {
            let cluster = names.database().read(names::cluster_id)?;
            let queue = Nats::start(address, cluster, names.shared().key().as_bytes());
            Arc::new(queue.map_err(StartError::Queue)?)
        }
        #[cfg(not(feature = "nats"))]
        Place::Nats(_) => return Err(StartError::NoNats),
    })
}

/// Objects from which the services are built.
struct Parts {
    names: Arc<SqliteNames>,
    recalls: Recalls,
    cluster: Arc<Cluster>,
    access: Arc<Access>,
    driver: Sender<Incoming>,
    signals: Signals,
    conditions: Conditions,
    sessions: Sessions,
    ends: Arc<Ends>,
    check: Check,
    migrator: Migrator,
    manager: Manager,
    files: Files,
    firer: Firer,
}

impl Parts {
    fn routes(self, hosts: Vec<String>, default_policy: String) -> Routes {
        let namespace = NamespaceService {
            names: self.names.clone(),
            access: self.access.clone(),
            sessions: self.sessions.clone(),
            recalls: self.recalls.clone(),
        };
        let names = self.names.clone();
        let jobs = JobService {
            names: self.names.clone(),
            recalls: self.recalls.clone(),
            cluster: self.cluster.clone(),
            access: self.access.clone(),
            driver: self.driver,
            signals: self.signals,
            submissions: Arc::new(Turns::new(1)),
        };
        let lineage = lineage(self.names, &self.access);
        let (rooms, arrivals) = waits(&jobs.names, &self.access, &self.cluster);
        let tokens = TokenService {
            access: self.access.clone(),
            ca: self.cluster.ca().clone(),
        };
        let bridges = bridges(&jobs.names, &self.access);
        let health = HealthService {
            names: jobs.names.clone(),
            cluster: self.cluster.clone(),
            access: self.access.clone(),
        };
        let (firer, access) = (self.firer, self.access.clone());
        let rules = RuleService { firer, access };
        let find = FindService::start(&health.names, &self.access, &self.files);
        let places = PlaceService::new(
            self.migrator,
            self.manager,
            self.recalls,
            self.access.clone(),
        );
        let cluster = ClusterService {
            cluster: self.cluster,
            access: self.access,
            default_policy,
            policies: policies(),
            started: clock::now_ns(),
            sessions: self.sessions,
            ends: self.ends,
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
            .add_service(bridges)
            .add_service(HealthServer::new(health).max_encoding_message_size(max))
            .add_service(PlacesServer::new(places))
            .add_service(rooms)
            .add_service(arrivals)
            .add_service(RulesServer::new(rules).max_encoding_message_size(max))
            .add_service(cluster);
        let reductions = Reductions::new(&self.files, hosts).routes();
        let routes = routes.into_axum_router().merge(reductions);
        routes.merge(self.files.routes()).into()
    }
}

/// Passes the settings to the operations on names.
fn tell(names: &SqliteNames, config: &Config) {
    names.shared().set_replicas(config.replicas);
    names.shared().bursts.set_limits(config.burst);
    names.shared().limits.set(config.limits);
}

fn lineage(names: Arc<SqliteNames>, access: &Arc<Access>) -> LineageService {
    let access = access.clone();
    LineageService { names, access }
}

fn bridges(names: &Arc<SqliteNames>, access: &Arc<Access>) -> BridgesServer<BridgeService> {
    let (names, access) = (names.clone(), access.clone());
    let looks = Arc::default();
    BridgesServer::new(BridgeService {
        names,
        access,
        looks,
    })
}

/// Returns the services at which clients wait for changes.
fn waits(
    names: &Arc<SqliteNames>,
    access: &Arc<Access>,
    cluster: &Arc<Cluster>,
) -> (RoomsServer<RoomService>, ArrivalsServer<ArrivalService>) {
    (
        RoomsServer::new(RoomService::new(names, access, cluster)),
        ArrivalsServer::new(ArrivalService::new(names, access)),
    )
}

fn policies() -> Vec<String> {
    let names = tidemill_core::policy::NAMES.iter();
    names.map(|&name| name.to_owned()).collect()
}

/// Notifies the driver of changes in the namespace while jobs wait for files. Many changes at once cause one notification.
pub(crate) async fn forward_changes(teller: Teller, signals: Signals, driver: Sender<Incoming>) {
    loop {
        teller.files().await;
        if !signals.awaiting.load(std::sync::atomic::Ordering::Relaxed) {
            continue;
        }
        tokio::time::sleep(COALESCE).await;
        if driver.send(Incoming::NamesChanged).is_err() {
            return;
        }
    }
}

/// Opens the cluster's CA and the identity that it has signed for this server.
fn open_ca(path: &Path, config: &Config) -> Result<(Arc<Ca>, Identity), StartError> {
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

/// Returns the names by which programs without knowledge of clusters may reach the server.
fn hosts(config: &Config) -> Vec<String> {
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

/// Creates the directory with a private database file and locks it against a second server.
fn prepare(dir: &Path) -> Result<std::fs::File, StartError> {
    std::fs::create_dir_all(dir).map_err(|source| file(dir, source))?;
    let lock = lock(dir)?;
    let database = dir.join("server.db");
    private()
        .open(&database)
        .map_err(|source| file(&database, source))?;
    Ok(lock)
}

/// Keeps every other server out of the directory for as long as the returned file is open. The function waits for a server that is ending
/// now: a forked copy of its process, made to start a program, holds the lock for a moment longer.
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
    identity: Option<Identity>,
    socket: &Path,
    routes: Routes,
    access: &Arc<Access>,
) -> Result<SocketAddr, StartError> {
    let refused = |source| StartError::Listen {
        address: address.to_string(),
        source,
    };
    let tcp = TcpListener::bind(address).await.map_err(refused)?;
    let bound = tcp.local_addr().map_err(refused)?;
    // This process holds the directory's lock, so an existing socket file was left by a server that has ended.
    let _ = std::fs::remove_file(socket);
    let short = Short::of(socket).map_err(|source| file(socket, source))?;
    let unix = UnixListener::bind(&short).map_err(|source| file(socket, source))?;
    // Every user may connect: the server knows the user of each connection.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))
        .map_err(|source| file(socket, source))?;
    let identity = identity.map(|identity| tokio::sync::watch::channel(Some(identity)).1);
    let tcp = Listener::new(tcp, identity, CONNECTIONS_BY_TCP_EACH_MAX);
    let tcp = futures_util::stream::unfold(tcp, async |mut tcp| {
        let (stream, _) = tcp.accept().await;
        Some((Ok::<Seated<Stream>, std::io::Error>(stream), tcp))
    });
    let local = (unix, Guests::new(CONNECTIONS_EACH_MAX), access.clone());
    let local = futures_util::stream::unfold(local, async |(unix, guests, access)| {
        let stream = accept_local(&unix, &guests, &access).await;
        Some((Ok::<_, std::io::Error>(stream), (unix, guests, access)))
    });
    let gates = Gates::new(access.clone());
    let over_tcp = builder()
        .layer(gates.clone())
        .add_routes(routes.clone())
        .serve_with_incoming(tcp);
    let over_unix = builder()
        .layer(gates)
        .add_routes(routes)
        .serve_with_incoming(local);
    tokio::spawn(async move { log(over_tcp.await) });
    tokio::spawn(async move { log(over_unix.await) });
    Ok(bound)
}

/// Accepts the next connection from this host. The Linux kernel reports its user at once.
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
