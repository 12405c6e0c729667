//! Attaches the file system to a mountpoint and detaches it: connects to the server, starts threads, and mounts (next:
//! `mount/src/fuse/mod.rs`).

use crate::error::Error;
use crate::fs::Fs;
use crate::fs::backend::Backend;
use crate::fs::remote_stores::{KeysPath, RemoteStores};
use crate::fs::unsealed::UnsealedSummary;
use crate::fs::watch::{KernelCache, KernelNotices};
use crate::fuse::{Adapter, Caches};
use crate::guard::Guard;
use crate::mountpoint::{CoveredDirectory, OwnMount, SOURCE};
use fuser::{BackgroundSession, MountOption, SessionACL};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::{Credential, Endpoint, Server};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Maximum number of threads for operations that wait for a server or a node. If all of these threads wait for an offline node, other
/// operations wait, too.
const WAITING_THREADS_MAX: usize = 1024;
/// Pause before the next attempt to reach the server.
const SERVER_PAUSE: Duration = Duration::from_millis(300);
/// Time limit of the first connection to the server.
const FIRST_CONTACT: Duration = Duration::from_secs(10);
/// Maximum time for which open files delay an unmount.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum time for which seals delay an unmount.
const SEAL_PATIENCE: Duration = Duration::from_secs(60);

/// Default of [`MountConfig::cached_files`].
const CACHED_FILES: usize = 200_000;

/// Configuration of a mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// Address of the server.
    pub endpoint: Endpoint,
    /// Content of the cluster's token file, for a server that is reached over TCP.
    pub credential: Option<Credential>,
    /// Path of an existing directory, which becomes the mountpoint.
    pub mountpoint: PathBuf,
    /// Whether the mount opens object files of nodes on this host directly. Otherwise it transfers all bytes over HTTP, as from other
    /// hosts.
    pub in_place: bool,
    /// Whether users other than the mounting user may use the mount.
    pub allow_other: bool,
    /// Time for which the mount caches attributes and names. The server reports changes, so the time only limits the effect of a lost
    /// message.
    pub attr_ttl: Duration,
    /// Number of files, directories and links above which the mount makes the Linux kernel forget files that nobody has open.
    pub cached_files: usize,
    /// Path of the mounting user's file of keys for a remote, which may be missing. Remotes are shown in `/remotes`, to that user and root;
    /// `None`: the directory does not exist.
    pub remote_keys: Option<KeysPath>,
    /// Maximum time that a remote may take for one answer.
    pub remote_timeout: Duration,
    /// Time that an operation waits for an unreachable server or node; `None`: without limit. The last mount of a process sets the time for
    /// all mounts of the process.
    pub patience: Option<Duration>,
    /// Whether the mount ends with its process, however the process ends, which a small separate process ensures. For a process that has no
    /// open files on its own mounts.
    pub guarded: bool,
}

impl MountConfig {
    /// Returns the default configuration: direct access where possible, and access for all users if root mounts.
    #[must_use]
    pub fn new(endpoint: Endpoint, credential: Option<Credential>, mountpoint: PathBuf) -> Self {
        Self {
            endpoint,
            credential,
            mountpoint,
            in_place: true,
            allow_other: rustix::process::geteuid().is_root(),
            attr_ttl: Duration::from_secs(60),
            cached_files: CACHED_FILES,
            remote_keys: None,
            remote_timeout: Duration::from_secs(30),
            patience: Some(crate::fs::deadline::PATIENCE),
            guarded: false,
        }
    }
}

/// A mounted file system. If this value is dropped, the mount ends without any wait.
#[derive(Debug)]
pub struct MountSession {
    fs: Arc<Fs>,
    fuse: Option<BackgroundSession>,
    mounted: OwnMount,
    guard: Option<Guard>,
    /// Whether another process has unmounted the file system.
    gone: bool,
    runtime: Runtime,
}

/// Mounts the file system, which programs can use when the function returns. Waits for a server that is not reachable yet.
///
/// # Errors
/// The server refuses or cannot be trusted, or the mountpoint cannot be used.
pub fn mount(config: &MountConfig) -> Result<MountSession, Error> {
    let at = |source| Error::Mount {
        path: config.mountpoint.display().to_string(),
        source,
    };
    crate::fs::deadline::set(config.patience);
    let bare = CoveredDirectory::open(&config.mountpoint)?;
    let caches = Caches::default();
    let Attached { runtime, fs } = attach(config, bare.path().to_owned(), caches.clone())?;
    if let Some(keys) = config.remote_keys {
        let remote_stores = RemoteStores::new(keys, fs.backend.clone(), config.remote_timeout);
        // No other code sets it.
        let _ = fs.remote_stores.set(Arc::new(remote_stores));
    }
    let fuse = fuser::Session::new(
        Adapter::new(fs.clone(), caches.clone()),
        bare.path(),
        &options(config),
    )
    .map_err(at)?;
    let mounted = OwnMount::new(bare).map_err(at)?;
    let guard = config.guarded.then(|| mounted.guarded()).flatten();
    // No other code sets it.
    let _ = caches.0.set(fuse.notifier());
    crate::fs::cached_files::limit(&fs, caches, config.cached_files).map_err(at)?;
    let fuse = fuse.spawn().map_err(at)?;
    Ok(MountSession {
        fs,
        fuse: Some(fuse),
        mounted,
        guard,
        gone: false,
        runtime,
    })
}

/// A file system that receives other clients' changes and has no users yet.
pub(crate) struct Attached {
    pub(crate) runtime: Runtime,
    pub(crate) fs: Arc<Fs>,
}

/// Connects to the server. `place` is the path at which programs find the cluster, and `kernel` receives invalidations.
pub(crate) fn attach(
    config: &MountConfig,
    place: PathBuf,
    kernel: impl KernelCache + Sync + Clone,
) -> Result<Attached, Error> {
    let at = |source| Error::Mount {
        path: place.display().to_string(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(WAITING_THREADS_MAX)
        .thread_name("mount")
        .enable_all()
        .build()
        .map_err(at)?;
    let server = runtime.block_on(connect(config))?;
    let backend = Arc::new(Backend::new(
        server,
        runtime.handle().clone(),
        config.in_place,
    ));
    backend.refresh_nodes()?;
    let fs = Arc::new(Fs::new(backend, place.clone(), config.attr_ttl));

    let reported = fs.clone();
    let receipt = move |number| reported.tell(number, false);
    let reported = fs.clone();
    let lock = move |news, stream| reported.on_lock_message(&news, stream);
    let notices = KernelNotices::start(kernel.clone(), receipt, lock).map_err(at)?;
    fs.locks.set_kernel(kernel);
    let (first, mut ready) = mpsc::channel(1);
    runtime.spawn(fs.clone().watch(notices, first));
    // Without a session the mount would receive its own changes: slower, but correct.
    let _ = runtime.block_on(async { tokio::time::timeout(FIRST_CONTACT, ready.recv()).await });
    Ok(Attached { runtime, fs })
}

/// Ends all versions that are being written. Returns a summary of the versions that could not be sealed.
pub(crate) fn finish(fs: &Fs) -> Result<(), UnsealedSummary> {
    let deadline = Instant::now() + CLOSE_PATIENCE;
    while fs.writers() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let left = fs.writers();
    if left > 0 {
        tracing::warn!(
            "{left} files are still open for writing: the mount seals them with their current content"
        );
        fs.close_all();
    }
    let drained = fs.drain(SEAL_PATIENCE);
    if drained.is_ok() {
        fs.leave_locks();
    }
    drained
}

/// Connects to the server and retries while the server is unreachable.
async fn connect(config: &MountConfig) -> Result<Server, Error> {
    let mut reported = false;
    loop {
        let connect = Server::connect(&config.endpoint, config.credential.as_ref());
        let why = match tokio::time::timeout(FIRST_CONTACT, connect).await {
            Ok(Err(error)) if error.is_lost() => error.to_string(),
            Ok(other) => return Ok(other?),
            Err(_) => format!("the server at {} does not answer", config.endpoint),
        };
        if !std::mem::replace(&mut reported, true) {
            tracing::warn!("waiting for the server to mount its cluster: {why}");
        }
        tokio::time::sleep(SERVER_PAUSE).await;
    }
}

fn options(config: &MountConfig) -> fuser::Config {
    let mut options = fuser::Config::default();
    options.mount_options = vec![
        MountOption::FSName(SOURCE.into()),
        MountOption::Subtype(SOURCE.into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    options.acl = if config.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    options
}

impl MountSession {
    /// Returns the number of files, directories and links that the mount has in memory.
    #[must_use]
    pub fn cached_files(&self) -> usize {
        self.fs.table.len()
    }

    /// Returns the path of the mountpoint.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        self.mounted.path()
    }

    /// Serves until another process unmounts the file system, or SIGTERM or SIGINT arrives; then unmounts.
    ///
    /// # Errors
    /// The errors of [`Self::unmount`].
    pub fn run(mut self) -> Result<(), Error> {
        let Some(mut fuse) = self.fuse.take() else {
            return Ok(());
        };
        let (over, mut ended) = mpsc::channel::<()>(1);
        // The guard's thread ends with the mount; another thread replaces it here.
        let watched = std::mem::replace(&mut fuse.guard, std::thread::spawn(|| Ok(())));
        fuse.guard = std::thread::spawn(move || {
            let outcome = watched.join().unwrap_or(Ok(()));
            drop(over);
            outcome
        });
        let outcome = self.runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: unmounting"),
                _ = interrupt.recv() => tracing::info!("SIGINT: unmounting"),
                _ = ended.recv() => {
                    tracing::info!("unmounted by another program");
                    self.gone = true;
                }
            }
            Ok::<_, std::io::Error>(())
        });
        self.fuse = Some(fuse);
        outcome?;
        self.unmount()
    }

    /// Unmounts: waits for open files for a limited time, seals all written versions, and detaches.
    ///
    /// # Errors
    /// The mountpoint cannot be detached, or some versions could not be sealed in time; the server then seals the bytes that reached the
    /// nodes.
    pub fn unmount(mut self) -> Result<(), Error> {
        let Some(fuse) = self.fuse.take() else {
            return Ok(());
        };
        let detached = self.detach(fuse);
        let sealed = finish(&self.fs);
        if let Some(guard) = &self.guard {
            // Programs that still use it get an error, instead of waiting for ending threads.
            guard.abort();
        }
        let at = |source| Error::Mount {
            path: self.mountpoint().display().to_string(),
            source,
        };
        detached.map_err(at)?;
        sealed.map_err(|left| Error::Unsealed {
            versions: left.versions,
            why: left.why,
        })
    }

    /// Unmounts the file system, unless another process has done so.
    fn detach(&self, fuse: BackgroundSession) -> std::io::Result<()> {
        let gone = self.gone || fuse.guard.is_finished();
        // Its drop would unmount any file system that is mounted on the directory at the end of its own mount.
        std::mem::forget(fuse);
        if gone { Ok(()) } else { self.mounted.detach() }
    }
}

impl Drop for MountSession {
    fn drop(&mut self) {
        if let Some(fuse) = self.fuse.take()
            && let Err(error) = self.detach(fuse)
        {
            tracing::warn!("{} stays mounted: {error}", self.mountpoint().display());
        }
    }
}
