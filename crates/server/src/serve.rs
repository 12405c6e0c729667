//! Starting and stopping a server.

use crate::access::Access;
use crate::array::{Array, Settings};
use crate::array_service::ArrayService;
use crate::arrivals::ArrivalService;
use crate::authority::{Authority, AuthorityError};
use crate::bridges::BridgeService;
use crate::check::Check;
use crate::conditions::Conditions;
use crate::elastic::Elastic;
use crate::elastic::manager::Manager;
use crate::ends::Ends;
use crate::files::Files;
use crate::find::FindService;
use crate::gate::Gates;
use crate::health::HealthService;
use crate::jobs::Incoming;
use crate::jobs::driver::{Driver, Mending, Signals};
use crate::jobs::service::JobService;
use crate::jobs::{expiry, finished};
use crate::limits::Limits;
use crate::lineage::LineageService;
use crate::local_names::LocalNames;
use crate::locks::Locks;
use crate::mover::{Mover, PlaceService};
use crate::moves::promises;
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
use crate::{clock, copies, names, notes, scrub};
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
use tidemill_core::copies::Wanted;
use tidemill_wire::MESSAGE_BYTES_MAX;
use tidemill_wire::local::Short;
use tidemill_wire::v1::array_server::ArrayServer;
use tidemill_wire::v1::arrivals_server::ArrivalsServer;
use tidemill_wire::v1::bridges_server::BridgesServer;
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

/// Connections of one ordinary user at once: over the Unix socket, and over TCP, where clients that ask for a hundred
/// reductions at once have one for each.
const CONNECTIONS_EACH_MAX: usize = 32;
const CONNECTIONS_BY_TCP_EACH_MAX: usize = 128;

/// Changes of names within this time reach waiting jobs at once.
const COALESCE: Duration = Duration::from_millis(5);

/// How long whoever holds the folder may take to end.
const ENDING: Duration = Duration::from_secs(1);

/// What elements copy for repairs and moves, if nothing else is said: twice what a link of 1 Gbit/s carries.
pub const MOVE_BYTES_PER_SEC: u64 = 250_000_000;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its folder: database, token, socket. Made if it is missing.
    pub dir: PathBuf,
    /// TCP address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The Unix socket; `None` for `server.sock` in the folder.
    pub socket: Option<PathBuf>,
    /// Whether TCP connections use TLS, to the server and to its elements.
    pub tls: bool,
    /// Further names, of hosts or addresses, that its certificate is to have, for programs that fetch files by URL.
    pub tls_names: Vec<String>,
    /// Policy of jobs that name none.
    pub default_policy: String,
    /// How long an element may be away before its labels are given elsewhere.
    pub element_timeout: Duration,
    /// How long a mount may be away before what it had open is given up.
    pub mount_timeout: Duration,
    /// How long jobs that have ended stay on the list; `None` for as long as nobody deletes them.
    pub keep_jobs: Option<Duration>,
    /// Rate at which elements that do not say so are taken to pull from each other, in bytes per second.
    pub link_bytes_per_sec: u64,
    /// How many copies there are to be of versions of which no folder says so.
    pub copies: Wanted,
    /// How long an element may be away before the copies that it has are made again elsewhere.
    pub repair_after: Duration,
    /// How often all objects of each element are read and compared with their hashes; `None`: when somebody asks.
    pub scrub_every: Option<Duration>,
    /// Bytes in a second of copies that are made again and of moves, in all the array; 0 for no bound.
    pub move_bytes_per_sec: u64,
    /// Where labels wait for their elements.
    pub queue: Place,
    /// How elements are suspended.
    pub elastic: Elastic,
    /// What each user may have.
    pub limits: Limits,
    /// When the burst tier drains.
    pub burst: burst::Limits,
}

/// How often all objects of an element are read, unless something else is said.
const SCRUB_EVERY_DEFAULT: Duration = Duration::from_secs(7 * 86_400);

impl Config {
    /// A server in `dir` with all else at its default: a free port on the loopback address, 10 s element
    /// timeout, 1 Gbit/s links.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            socket: None,
            tls: true,
            tls_names: Vec::new(),
            default_policy: tidemill_core::policy::DEFAULT.into(),
            element_timeout: Duration::from_secs(10),
            mount_timeout: Duration::from_secs(10),
            keep_jobs: None,
            link_bytes_per_sec: 125_000_000,
            copies: Wanted::ONE,
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

/// A server can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A file or folder of the server.
    #[error("{path}: {source}")]
    File {
        /// Which one.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The TCP address.
    #[error("can't listen on {address}: {source}; is another server running there?")]
    Listen {
        /// Which one.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The array's authority.
    #[error("{path}: {reason}")]
    Authority {
        /// Its file.
        path: String,
        /// What is wrong.
        reason: AuthorityError,
    },
    /// The array's token.
    #[error(transparent)]
    Token(#[from] CredentialError),
    /// The other tokens.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The server's own certificate.
    #[error(transparent)]
    Tls(#[from] Problem),
    /// Another server uses the folder.
    #[error("{0}: another server runs in this folder; stop it first")]
    InUse(String),
    /// The database.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The queue of labels.
    #[cfg(feature = "nats")]
    #[error("the queue of labels can't be used: {0}")]
    Queue(std::io::Error),
    /// Labels are to wait in NATS.
    #[cfg(not(feature = "nats"))]
    #[error(
        "labels can't wait in NATS: this program was built without it; build it with `cargo build --release -p tidemill-cli --features nats`, \
         or start it without --queue"
    )]
    NoNats,
    /// The default policy.
    #[error(transparent)]
    Policy(#[from] tidemill_core::policy::UnknownPolicy),
    /// The content of the database.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A running server. Dropping it without [`Server::shutdown`] leaves what a crash would leave.
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
    // Held as long as the server runs.
    _lock: std::fs::File,
}

impl Server {
    /// Opens the folder and begins to serve.
    ///
    /// # Errors
    /// If the folder, its database, the socket or the address can't be used.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        // A runtime of its own, so that nothing of the server outlives it: ending the tasks that accept
        // connections would leave those that serve them.
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
        let (authority, identity) = open_authority(&dir.join("authority.pem"), &config)?;
        let trust = Trust::new(authority.der())?;
        let identity = config.tls.then_some(identity);
        let access = open_access(&dir, &authority)?;
        let owner = own_user();
        let database = dir.join("server.db");
        let names = tokio::task::spawn_blocking(move || SqliteNames::open(&database, owner));
        let names = Arc::new(names.await.map_err(|_| Fault::Closed)??);
        names.keep_kernels_folder(owner).await?;
        tell(&names, &config);
        let settings = settings(&names, &config, &authority)?;
        let (driver, incoming) = std::sync::mpsc::channel();
        let array = Arc::new(Array::new(&names, settings, driver.clone())?);
        array.read_by(Objects::new(Some(&trust)));
        let signals = Signals::default();
        let told = (driver.clone(), incoming);
        let worker = start_driver(&names, &array, &signals, Decides::of(&config), told).await?;
        array.expect_known();
        // Files that jobs wait for may have come while the server was down.
        let _ = driver.send(Incoming::NamesChanged);
        let manager = Manager::start(&names, &array, config.elastic.clone());
        let sessions = Sessions::new(config.mount_timeout);
        let locks = Locks::new(names.clone(), sessions.clone())?;
        let ends = Ends::new(names.clone(), &locks, &array, &sessions, &trust);
        let recalls = Recalls::new(names.clone(), locks);
        let files = Files::new(&names, &recalls, &access, &array, &trust);
        let parts = Parts {
            firer: Firer::start((&names, &recalls, &array), Some(&files), &driver),
            files,
            names: names.clone(),
            recalls: recalls.clone(),
            array: array.clone(),
            access: access.clone(),
            driver: driver.clone(),
            signals: signals.clone(),
            conditions: Conditions::start((&names, &array, &ends), &signals),
            sessions,
            ends: ends.clone(),
            check: Check::new(names.clone(), array.clone(), &trust),
            mover: Mover::new(&names, &array, &driver, signals.running.clone()),
            manager: manager.clone(),
        };
        let routes = parts.routes(hosts(&config), config.default_policy);
        let socket = config.socket.unwrap_or_else(|| dir.join("server.sock"));
        let address = listen(config.listen, identity, &socket, routes, &access).await?;
        let local = start_local(&socket, recalls, access)?;
        keep_up(
            (&names, config.keep_jobs),
            array,
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

    /// The TCP address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The Unix socket it listens on.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The file with the array's token.
    #[must_use]
    pub fn token_file(&self) -> &Path {
        &self.token
    }

    /// Ends all connections, commits what was accepted and closes the database.
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

fn settings(
    names: &SqliteNames,
    config: &Config,
    authority: &Arc<Authority>,
) -> Result<Settings, StartError> {
    Ok(Settings {
        array_id: names.database().read(names::array_id)?,
        element_timeout: config.element_timeout,
        link_bytes_per_sec: config.link_bytes_per_sec,
        tls: config.tls,
        authority: authority.clone(),
    })
}

/// Begins what the server does by itself, for as long as it runs.
fn keep_up(
    (names, keep_jobs): (&Arc<SqliteNames>, Option<Duration>),
    array: Arc<Array>,
    ends: Arc<Ends>,
    (signals, driver): (Signals, Sender<Incoming>),
) {
    if let Some(keep) = keep_jobs {
        tokio::spawn(finished::run(names.clone(), keep));
    }
    let teller = names.teller().clone();
    tokio::spawn(forward_changes(teller, signals, driver));
    tokio::spawn(notes::run(names.database().clone(), array.clone()));
    tokio::spawn(lent::run(names.shared().clone(), array.clone()));
    tokio::spawn(rooms::channels::run(names.clone(), array));
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

/// What the driver decides by, and where it puts labels.
struct Decides {
    policy: String,
    mending: Mending,
    scrub_every: Option<Duration>,
    queue: Place,
}

impl Decides {
    fn of(config: &Config) -> Self {
        Self {
            policy: config.default_policy.clone(),
            scrub_every: config.scrub_every,
            mending: Mending {
                after: config.repair_after,
                bytes_per_sec: config.move_bytes_per_sec,
            },
            queue: config.queue.clone(),
        }
    }
}

/// The driver reads unfinished jobs first, which may take a while, and then lives on a thread of its own.
async fn start_driver(
    names: &Arc<SqliteNames>,
    array: &Arc<Array>,
    signals: &Signals,
    decides: Decides,
    (driver, incoming): (Sender<Incoming>, std::sync::mpsc::Receiver<Incoming>),
) -> Result<std::thread::JoinHandle<()>, StartError> {
    let Decides {
        policy,
        mending,
        scrub_every,
        queue,
    } = decides;
    tidemill_core::policy::by_name(&policy, 0)?;
    let (names, array, signals) = (names.clone(), array.clone(), signals.clone());
    let database = names.database().clone();
    let garbage = Garbage::new(database.clone(), names.shared().clone());
    tokio::spawn(garbage.clone().watch(array.clone(), driver.clone()));
    let watched = |driver: &Sender<Incoming>| (database.clone(), array.clone(), driver.clone());
    let (of, on, told) = watched(&driver);
    tokio::spawn(copies::watch(of, on, mending.after, told));
    let (of, on, told) = watched(&driver);
    tokio::spawn(scrub::watch(of, on, scrub_every, told));
    let queue = open_queue(queue, &names)?;
    let made = tokio::task::spawn_blocking(move || {
        Driver::new(names, array, queue, garbage, signals, (&policy, mending))
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
            let array = names.database().read(names::array_id)?;
            let queue = Nats::start(address, array, names.shared().key().as_bytes());
            Arc::new(queue.map_err(StartError::Queue)?)
        }
        #[cfg(not(feature = "nats"))]
        Place::Nats(_) => return Err(StartError::NoNats),
    })
}

/// What the services are made of.
struct Parts {
    names: Arc<SqliteNames>,
    recalls: Recalls,
    array: Arc<Array>,
    access: Arc<Access>,
    driver: Sender<Incoming>,
    signals: Signals,
    conditions: Conditions,
    sessions: Sessions,
    ends: Arc<Ends>,
    check: Check,
    mover: Mover,
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
            array: self.array.clone(),
            access: self.access.clone(),
            driver: self.driver,
            signals: self.signals,
            submissions: Arc::new(Turns::new(1)),
        };
        let lineage = lineage(self.names, &self.access);
        let (rooms, arrivals) = waits(&jobs.names, &self.access, &self.array);
        let tokens = TokenService {
            access: self.access.clone(),
            authority: self.array.authority().clone(),
        };
        let bridges = bridges(&jobs.names, &self.access);
        let health = HealthService {
            names: jobs.names.clone(),
            array: self.array.clone(),
            access: self.access.clone(),
        };
        let (firer, access) = (self.firer, self.access.clone());
        let rules = RuleService { firer, access };
        let find = FindService::start(&health.names, &self.access, &self.files);
        let places = PlaceService::new(self.mover, self.manager, self.recalls, self.access.clone());
        let array = ArrayService {
            array: self.array,
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
        let array = ArrayServer::new(array)
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
            .add_service(array);
        let reductions = Reductions::new(&self.files, hosts).routes();
        let routes = routes.into_axum_router().merge(reductions);
        routes.merge(self.files.routes()).into()
    }
}

/// What operations on names have to know of the settings.
fn tell(names: &SqliteNames, config: &Config) {
    names.shared().set_copies(config.copies);
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

/// What others wait at.
fn waits(
    names: &Arc<SqliteNames>,
    access: &Arc<Access>,
    array: &Arc<Array>,
) -> (RoomsServer<RoomService>, ArrivalsServer<ArrivalService>) {
    (
        RoomsServer::new(RoomService::new(names, access, array)),
        ArrivalsServer::new(ArrivalService::new(names, access)),
    )
}

fn policies() -> Vec<String> {
    let names = tidemill_core::policy::NAMES.iter();
    names.map(|&name| name.to_owned()).collect()
}

/// Tells the driver of changes in the namespace while jobs wait for files. Many changes at once are told
/// once.
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

/// Who signs for the array, and what it has signed for this server.
fn open_authority(path: &Path, config: &Config) -> Result<(Arc<Authority>, Identity), StartError> {
    let at = |reason| StartError::Authority {
        path: path.display().to_string(),
        reason,
    };
    let authority = Authority::open(path).map_err(at)?;
    let identity = authority.server(&hosts(config)).map_err(at)?;
    Ok((Arc::new(authority), identity))
}

/// Who may do what, by the array's token and those beside it.
fn open_access(dir: &Path, authority: &Authority) -> Result<Arc<Access>, StartError> {
    let tokens = Tokens::open(&dir.join("tokens"))?;
    let access = Access::open(&dir.join("token"), authority, tokens)?;
    Ok(Arc::new(access))
}

/// User and group that this process runs as.
fn own_user() -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw(), gid.as_raw())
}

/// The names by which programs that know nothing of arrays may reach the server.
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

/// Makes the folder with a private database file and locks it against a second server.
fn prepare(dir: &Path) -> Result<std::fs::File, StartError> {
    std::fs::create_dir_all(dir).map_err(|source| file(dir, source))?;
    let lock = lock(dir)?;
    let database = dir.join("server.db");
    private()
        .open(&database)
        .map_err(|source| file(&database, source))?;
    Ok(lock)
}

/// Keeps every other server out of the folder for as long as the file is open. One that ends now is waited for: a copy
/// of its process, made to start a program, holds what it held for a moment more.
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

/// How files are opened, and made, that only the server's user may read.
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
    // The folder's lock is ours, so a socket file that is there was left by a server that is gone.
    let _ = std::fs::remove_file(socket);
    let short = Short::of(socket).map_err(|source| file(socket, source))?;
    let unix = UnixListener::bind(&short).map_err(|source| file(socket, source))?;
    // Everyone may connect: the server knows who they are.
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

/// The next connection from this host, whose user the kernel tells at once.
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
        // Only files by URL, see the gate.
        .accept_http1(true)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        // What a peer may send before anybody has looked at it.
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(1 << 20)
}

fn log(result: Result<(), tonic::transport::Error>) {
    if let Err(error) = result {
        tracing::error!(%error, "serving ended");
    }
}
