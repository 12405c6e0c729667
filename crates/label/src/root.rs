//! The directory on which a cluster is mounted. Operations wait for an unreachable cluster (next: `mount/src/fuse/mod.rs`).

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, makedev, openat, statx};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time for which a label is retried while the server, a node or the mount is unreachable.
const PATIENCE: Duration = Duration::from_secs(600);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The directory that contains all paths of labels.
#[derive(Debug)]
pub(crate) struct MountRoot {
    path: PathBuf,
    system: u64,
    umask: u32,
    /// Device number of the mount that was last checked to have the type `system`; each mount is checked once.
    known: AtomicU64,
}

/// Repeats an operation while the cluster is unreachable, because no other process can repeat an asynchronous request.
pub(crate) fn patiently<T>(mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    let (begun, mut pause) = (Instant::now(), PAUSE_MIN);
    loop {
        let outcome = operation();
        let offline = outcome.as_ref().err().is_some_and(is_offline);
        if !offline || begun.elapsed() > PATIENCE {
            return outcome;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether an error means that a server, a node or the mount is unreachable.
pub(crate) fn is_offline(error: &Error) -> bool {
    let offline = [
        Errno::COMM,
        Errno::HOSTUNREACH,
        Errno::TIMEDOUT,
        Errno::NOTCONN,
        Errno::CONNABORTED,
        Errno::TXTBSY,
        Errno::BUSY,
    ];
    let code = error.raw_os_error();
    offline
        .iter()
        .any(|errno| Some(errno.raw_os_error()) == code)
}

impl MountRoot {
    pub(crate) fn new(path: &Path, system: u64, umask: u32) -> Self {
        Self {
            path: path.to_owned(),
            system,
            umask,
            known: AtomicU64::new(u64::MAX),
        }
    }

    /// Opens the root directory; fails if the mount has ended, instead of opening the directory below it.
    pub(crate) fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, &self.path, flags, Mode::empty())?;
        // From the kernel's cache: otherwise the mount would be asked for attributes that are not used.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let known = statx(&root, c"", flags, StatxFlags::TYPE)?;
        let device = makedev(known.stx_dev_major, known.stx_dev_minor);
        if self.known.load(Relaxed) != device {
            let system = rustix::fs::fstatfs(&root)?.f_type as u64 & 0xffff_ffff;
            if system != self.system {
                return Err(Errno::NOTCONN.into());
            }
            self.known.store(device, Relaxed);
        }
        Ok(root)
    }

    /// Returns the mode of new files, less the application's umask.
    pub(crate) fn new_mode(&self) -> u64 {
        u64::from(0o666 & !self.umask)
    }

    pub(crate) fn open_file(&self, path: &Path, flags: OFlags) -> Result<File> {
        self.open_file_as(path, flags, 0o666)
    }

    /// Opens a file like [`Self::open_file`]; a new file gets the mode `mode`, less the umask.
    pub(crate) fn open_file_as(&self, path: &Path, flags: OFlags, mode: u32) -> Result<File> {
        let root = self.open()?;
        let mode = Mode::from_raw_mode(mode & !self.umask);
        Ok(File::from(openat(
            root.as_fd(),
            path,
            flags | OFlags::CLOEXEC,
            mode,
        )?))
    }
}
