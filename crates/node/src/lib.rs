//! The storage node: it stores objects, serves them over HTTP, and runs the labels that the server sends.
//!
//! ```text
//!    http ──► store (directory) ◄── task ◄── executor ◄── attach ◄── server
//!      └────► db (one writer, group commit) ◄──┘  └──► runner (tidemill_sandbox), fetch (other nodes)
//! ```
//!
//! [`RunningNode::start`] starts a node in this process. The node owns its directory and no other state. It knows no names and no jobs, and
//! does not decide where work runs.

mod allowed_dirs;
mod attach;
pub mod backend;
mod clock_check;
pub mod cluster_reduction;
pub mod config;
pub mod daemon;
pub mod db;
pub mod directory;
pub mod error;
pub mod executor;
pub mod fetch;
mod flash;
pub mod flash_model;
mod follow;
mod hash_checks;
pub mod http;
pub mod identity;
mod input_reads;
pub mod labels;
mod log_copies;
pub mod memory;
mod memory_outputs;
mod part_reader;
pub mod power;
pub mod programs;
mod ranks;
mod record_starts;
pub mod records;
mod reduce;
mod replicas;
pub mod reports;
mod reserve;
mod response_body;
mod revoked;
pub mod runner;
mod scrub;
pub mod status;
pub mod store;
mod streaming_inputs;
mod streaming_pipe;
mod suspended;
pub mod task;
mod tracker;

pub use config::NodeConfig;
pub use daemon::{Daemon, is_removed};
pub use error::Error;
pub use suspended::until_resumed;
pub use tracker::status_json;

use crate::backend::Backend;
use crate::db::Db;
use crate::directory::DirectoryStore;
use crate::executor::{Executor, ExecutorParts};
use crate::fetch::Fetcher;
use crate::flash_model::FlashModel;
use crate::programs::KnownPrograms;
use crate::runner::Runner;
use crate::store::Store as _;
use std::fs::{File, Permissions, TryLockError};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_model::id::ObjectId;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Maximum time to wait for a directory's lock: a kernel of a killed node holds the lock until the kernel is killed, too.
const LOCK_MAX: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Node that runs in this process. [`RunningNode::stop`] ends the node; if the value is only dropped, the node's threads continue.
#[derive(Debug)]
pub struct RunningNode {
    daemon: Arc<Daemon>,
    stop: watch::Sender<bool>,
    attached: JoinHandle<Error>,
    refreshing: JoinHandle<()>,
    following: JoinHandle<()>,
    serving: JoinHandle<()>,
    /// Lock file that is held while the directory is in use.
    _lock: File,
}

impl RunningNode {
    /// Starts a node: opens its directory, loads its queue, serves HTTP, and attaches to the server as soon as the server is reachable.
    /// Must be called on a multi-thread tokio runtime.
    ///
    /// # Errors
    /// The node's directory, address or kernels can't be used; see [`Error`].
    pub async fn start(mut config: NodeConfig) -> Result<Self, Error> {
        let in_directory = |source| Error::Directory {
            path: config.directory.clone(),
            source,
        };
        open_many_files();
        let in_memory = config.memory_tier;
        let counts_space = in_memory && memory::prepare(&config)?;
        if in_memory && !counts_space {
            // The node's own file system already has this size.
            config.capacity_bytes = None;
        }
        std::fs::create_dir_all(&config.directory).map_err(in_directory)?;
        let directory = config.directory.canonicalize().map_err(in_directory)?;
        config.directory = directory;
        let lock = lock(&config).await?;
        if let Some(bytes) = config.intermediate_bytes {
            memory::prepare_memory_outputs(&config.directory, bytes)?;
        }
        let listener = listen(&config).await?;
        let scheme = if config.tls { "https" } else { "http" };
        let url = match &config.url {
            Some(url) if !url.starts_with(&format!("{scheme}://")) => {
                return Err(Error::Scheme {
                    url: url.clone(),
                    scheme,
                });
            }
            Some(url) => url.clone(),
            None => format!(
                "{scheme}://{}",
                listener.local_addr().map_err(|source| {
                    Error::Listen {
                        address: config.listen,
                        source,
                    }
                })?
            ),
        };
        let runtime = tokio::runtime::Handle::current();
        let offers = config.offers();
        let (executor, config) = tokio::task::spawn_blocking(move || {
            let parts = open(&config, runtime)?;
            Ok::<_, Error>((Executor::start(parts, offers)?, config))
        })
        .await
        .map_err(|error| Error::Thread(error.into()))??;
        let memory_id = match in_memory {
            true => memory::id(&executor.parts().db).await?,
            false => 0,
        };
        let daemon = Daemon::new(config, url, executor)?;
        let daemon = Arc::new(daemon.in_memory(memory_id, counts_space));
        let (stop, stopped) = watch::channel(false);
        let refreshing = tokio::spawn({
            let daemon = Arc::clone(&daemon);
            async move { daemon.refresh().await }
        });
        Ok(Self {
            serving: tokio::spawn(http::serve(Arc::clone(&daemon), listener, stopped)),
            attached: tokio::spawn(attach::stay(Arc::clone(&daemon))),
            refreshing,
            following: tokio::spawn(follow::stay(Arc::clone(&daemon))),
            daemon,
            stop,
            _lock: lock,
        })
    }

    /// Returns the URL at which other processes reach the node, `https://host:port` or `http://host:port`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.daemon.url
    }

    /// Returns the shared state of the node.
    #[must_use]
    pub fn daemon(&self) -> &Arc<Daemon> {
        &self.daemon
    }

    /// Waits until the node can't continue, and returns the reason. The node must still be stopped.
    pub async fn failed(&mut self) -> Error {
        match (&mut self.attached).await {
            Ok(error) => error,
            Err(error) => Error::Thread(error.into()),
        }
    }

    /// Stops the node. Kills its kernels, which run again at the next start; acknowledged data stays.
    pub async fn stop(self) {
        self.attached.abort();
        self.refreshing.abort();
        self.following.abort();
        // An error means that the HTTP server has already ended.
        let _ = self.stop.send(true);
        let daemon = Arc::clone(&self.daemon);
        let ended = tokio::task::spawn_blocking(move || {
            daemon.executor.stop();
            daemon.parts().flash.stop();
            daemon.parts().db.stop();
        });
        if ended.await.is_err() {
            tracing::error!("the node did not stop in order");
        }
        self.serving.abort();
    }
}

/// Raises the limit of open files of this process to its maximum. A running task has all its inputs open, possibly thousands. Kernels have
/// a separate limit.
fn open_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "tasks with very many inputs may fail");
    }
}

fn open(config: &NodeConfig, runtime: tokio::runtime::Handle) -> Result<ExecutorParts, Error> {
    let db = Db::open(&config.directory.join("node.db"))?;
    daemon::claim(&db, config)?;
    let counters = db.read(status::NodeCounters::load)?;
    let (store, backend) = open_store(config, &db, &runtime)?;
    let capacity_bytes = store.space()?.capacity_bytes;
    let flash = Arc::new(FlashModel::new(&config.directory, capacity_bytes));
    let input_cache = config.directory.join("input-cache");
    let fetcher = Fetcher::new(
        input_cache.clone(),
        config.host.clone(),
        config.in_place,
        config.input_cache_bytes_max,
        runtime,
        Arc::clone(&flash),
    )
    .map_err(|source| Error::Directory {
        path: input_cache,
        source,
    })?;
    Ok(ExecutorParts {
        node: config.node,
        directory: config.directory.clone(),
        store,
        backend,
        db,
        fetcher: Arc::new(fetcher),
        runner: Runner::new(config)?,
        counters: Arc::new(counters),
        flash,
        pace: Arc::new(parking_lot::Mutex::new(
            tidemill_model::processor_share::ProcessorPace::new(config.cores),
        )),
        programs: KnownPrograms::default(),
        reports: Arc::default(),
        scrub_bytes_per_sec: config.scrub_bytes_per_sec,
    })
}

/// Store of objects, and the same store as a backend if the node has a backend.
type StorePair = (Arc<dyn store::Store>, Option<Arc<Backend>>);

/// Opens the store. Stores an empty file under the id of the status object, which has no bytes. A task reads this file for an empty input
/// file, as empty files have no objects.
fn open_store(
    config: &NodeConfig,
    db: &Db,
    runtime: &tokio::runtime::Handle,
) -> Result<StorePair, Error> {
    // Cached files are removed after they have become durable in the backend, so their total is not limited here.
    let capacity = config.capacity_bytes.filter(|_| config.backend.is_none());
    let mut store = DirectoryStore::open(&config.directory, capacity)?;
    if let Some(bytes) = config.intermediate_bytes {
        store = store.with_memory(bytes)?;
    }
    if store.stat(ObjectId::STATUS).is_err() {
        store.create(ObjectId::STATUS)?;
    }
    store.seal(ObjectId::STATUS, false)?;
    let Some(at) = &config.backend else {
        return Ok((Arc::new(store), None));
    };
    let with = (db.clone(), runtime.clone());
    let backend = Arc::new(Backend::open(store, at, config.capacity_bytes, with)?);
    Ok((Arc::clone(&backend) as Arc<dyn store::Store>, Some(backend)))
}

/// Locks the directory, so that no other process uses it.
async fn lock(config: &NodeConfig) -> Result<File, Error> {
    let path = config.directory.join("lock");
    let failed = |source| Error::Directory {
        path: path.clone(),
        source,
    };
    // Tasks can pass through to their private directories but can't list the other files.
    std::fs::set_permissions(&config.directory, Permissions::from_mode(0o711)).map_err(failed)?;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(failed)?;
    let until = Instant::now() + LOCK_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            Err(TryLockError::WouldBlock) => return Err(Error::InUse(config.directory.clone())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

async fn listen(config: &NodeConfig) -> Result<TcpListener, Error> {
    TcpListener::bind(config.listen)
        .await
        .map_err(|source| Error::Listen {
            address: config.listen,
            source,
        })
}
