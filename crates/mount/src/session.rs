//! Attaches the file system to a mountpoint and detaches it.

use crate::error::Error;
use crate::fs::Fs;
use crate::fs::backend::Backend;
use crate::fs::watch::Notices;
use crate::fuse::{Adapter, Caches};
use fuser::{BackgroundSession, MountOption, SessionACL};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::{Credential, Endpoint, Server};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Threads for operations that wait for a server.
const WAITING_THREADS_MAX: usize = 128;
/// How long the first contact to the server may take.
const FIRST_CONTACT: Duration = Duration::from_secs(10);
/// How long open files may hold up an unmount.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// How long seals may hold up an unmount.
const SEAL_PATIENCE: Duration = Duration::from_secs(60);

/// What to mount, where and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server.
    pub endpoint: Endpoint,
    /// Content of the array's token file, for a server that is reached over TCP.
    pub credential: Option<Credential>,
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// Whether object files of elements on this host are opened in place. Without it all bytes go over HTTP,
    /// as they do to other hosts.
    pub in_place: bool,
    /// Whether other users than the one who mounts may use it.
    pub allow_other: bool,
    /// How long attributes and names are believed without asking. The server tells of changes, so this only
    /// limits how long a lost message can matter.
    pub attr_ttl: Duration,
}

impl Config {
    /// The usual settings: in place where possible, for all users if mounted by root.
    #[must_use]
    pub fn new(endpoint: Endpoint, credential: Option<Credential>, mountpoint: PathBuf) -> Self {
        Self {
            endpoint,
            credential,
            mountpoint,
            in_place: true,
            allow_other: rustix::process::geteuid().is_root(),
            attr_ttl: Duration::from_secs(60),
        }
    }
}

/// A mounted file system. Ends when it is dropped, without waiting for anything.
#[derive(Debug)]
pub struct Session {
    fs: Arc<Fs>,
    fuse: Option<BackgroundSession>,
    mountpoint: PathBuf,
    runtime: Runtime,
}

/// Mounts the file system. It works when this returns.
///
/// # Errors
/// If the server can't be reached or the mountpoint can't be used.
pub fn mount(config: &Config) -> Result<Session, Error> {
    let at = |source| Error::Mount {
        path: config.mountpoint.display().to_string(),
        source,
    };
    detach_stale(&config.mountpoint).map_err(at)?;
    let mountpoint = config.mountpoint.canonicalize().map_err(at)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(WAITING_THREADS_MAX)
        .thread_name("mount")
        .enable_all()
        .build()
        .map_err(at)?;
    let connect = Server::connect(&config.endpoint, config.credential.as_ref());
    let server = runtime.block_on(connect)?;
    let backend = Arc::new(Backend::new(
        server,
        runtime.handle().clone(),
        config.in_place,
    ));
    backend.refresh_elements()?;
    let fs = Arc::new(Fs::new(backend, mountpoint.clone(), config.attr_ttl));

    let caches = Caches::default();
    let notices = Notices::start(caches.clone()).map_err(at)?;
    let (first, mut ready) = mpsc::channel(1);
    runtime.spawn(fs.clone().watch(notices, first));
    // Without a session the mount would be told of its own changes: slower, but right.
    let _ = runtime.block_on(async { tokio::time::timeout(FIRST_CONTACT, ready.recv()).await });

    let fuse = fuser::Session::new(
        Adapter::new(fs.clone(), caches.clone()),
        &mountpoint,
        &options(config),
    )
    .map_err(at)?;
    // Nothing else sets it.
    let _ = caches.0.set(fuse.notifier());
    let fuse = fuse.spawn().map_err(at)?;
    Ok(Session {
        fs,
        fuse: Some(fuse),
        mountpoint,
        runtime,
    })
}

fn options(config: &Config) -> fuser::Config {
    let mut options = fuser::Config::default();
    options.mount_options = vec![
        MountOption::FSName("tidemill".into()),
        MountOption::Subtype("tidemill".into()),
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

/// Detaches what a mount that was killed has left at the mountpoint.
fn detach_stale(mountpoint: &Path) -> std::io::Result<()> {
    match std::fs::metadata(mountpoint) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            tracing::info!(
                "detaching what an earlier mount left at {}",
                mountpoint.display()
            );
            Ok(rustix::mount::unmount(mountpoint, UnmountFlags::DETACH)?)
        }
        Ok(metadata) if !metadata.is_dir() => Err(std::io::ErrorKind::NotADirectory.into()),
        other => other.map(drop),
    }
}

impl Session {
    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Serves until the file system is unmounted from outside, or SIGTERM or SIGINT arrives; then unmounts.
    ///
    /// # Errors
    /// As for [`Self::unmount`].
    pub fn run(mut self) -> Result<(), Error> {
        let Some(mut fuse) = self.fuse.take() else {
            return Ok(());
        };
        let (over, mut ended) = mpsc::channel::<()>(1);
        // The guard's thread ends with the mount; another thread stands in for it here.
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
                _ = ended.recv() => tracing::info!("unmounted from outside"),
            }
            Ok::<_, std::io::Error>(())
        });
        self.fuse = Some(fuse);
        outcome?;
        self.unmount()
    }

    /// Unmounts: waits for open files for a while, seals what was written, and detaches.
    ///
    /// # Errors
    /// If the mountpoint can't be detached, or what was written could not be sealed in time; the server then
    /// seals what reached the elements.
    pub fn unmount(mut self) -> Result<(), Error> {
        let Some(fuse) = self.fuse.take() else {
            return Ok(());
        };
        let at = |source| Error::Mount {
            path: self.mountpoint.display().to_string(),
            source,
        };
        let detached = match rustix::mount::unmount(&self.mountpoint, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => {
                rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH)
            }
            other => other,
        };
        match detached {
            // Not mounted any more: it was unmounted from outside.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            // Only root may do it directly.
            Err(rustix::io::Errno::PERM) => {
                return self.finish(move || fuse.umount_and_join()).map_err(at);
            }
            Err(errno) => return Err(at(errno.into())),
        }
        self.finish(move || {
            drop(fuse);
            Ok(())
        })
        .map_err(at)
    }

    fn finish(&self, end: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while self.fs.writers() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let left = self.fs.writers();
        if left > 0 {
            tracing::warn!(
                "{left} files are still open for writing: they are sealed as they are now"
            );
            self.fs.close_all();
        }
        let sealed = self.fs.drain(SEAL_PATIENCE);
        end()?;
        if sealed {
            Ok(())
        } else {
            Err(std::io::ErrorKind::TimedOut.into())
        }
    }
}
