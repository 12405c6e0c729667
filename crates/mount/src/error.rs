//! Error type of the mount. At the interface to the Linux kernel the error becomes an errno.

use rustix::io::Errno;

/// Error of an operation of the file system, or of the mount itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Error of a system call.
    #[error("{0}")]
    System(#[from] Errno),
    /// Error of a request to the server or a node.
    #[error(transparent)]
    Client(#[from] tidemill_client::Error),
    /// Error of an object file that the mount opened directly.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// The file system cannot be attached.
    #[error("can't mount on {path}: {source}; see `tidemill help mount`")]
    Mount {
        /// Path of the mountpoint.
        path: String,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// Another file system is mounted on the mountpoint.
    #[error(
        "can't mount on {path}: {by} is mounted there already; unmount that first, or choose another directory"
    )]
    Taken {
        /// Path of the mountpoint.
        path: String,
        /// Source name of the other mount.
        by: String,
    },
    /// The mountpoint contains files.
    #[error(
        "can't mount on {path}: it holds files that the mount would hide, as {name}; these files may have been \
         written while nothing was mounted: move them away and copy them in afterwards, or choose another directory"
    )]
    Files {
        /// Path of the mountpoint.
        path: String,
        /// Name of one of the files.
        name: String,
    },
    /// The mount ends before all closed versions are sealed.
    #[error(
        "{versions} closed files could not be sealed before the mount ended ({why}); the server seals what \
         reached their nodes: see `tidemill status`"
    )]
    Unsealed {
        /// Number of unsealed versions.
        versions: usize,
        /// Error of the last attempt to seal a version.
        why: String,
    },
    /// The directory of the socket belongs to another user, or other users may change it.
    #[error(
        "{path} is not a directory that only this user can change: remove it, or choose another directory with --data-dir"
    )]
    Directory {
        /// Path of the directory.
        path: String,
    },
    /// Another process serves in the directory of the socket.
    #[error(
        "{path} is served by another process; end that process first, or choose another directory with --data-dir"
    )]
    Served {
        /// Path of the directory.
        path: String,
    },
    /// Another client has written the file since, so the asynchronously written content is not stored.
    #[error("another process has written the file since")]
    Overtaken,
    /// Error of a remote's store.
    #[error("{reason}")]
    Store {
        /// Errno that programs get.
        errno: Errno,
        /// Answer of the store, or the message that no answer arrived.
        reason: String,
    },
    /// The operation needs another process and must be repeated by a caller that may wait.
    #[error("the operation has to wait for a server")]
    Later,
}

impl Error {
    /// Returns the errno that the system call returns for the error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::System(errno) => errno.raw_os_error(),
            // The wait has ended in vain, while a hard mount would continue to wait.
            Self::Client(tidemill_client::Error::Unreachable { .. }) => {
                Errno::TIMEDOUT.raw_os_error()
            }
            Self::Client(error) => error.errno(),
            Self::File(source) | Self::Mount { source, .. } => {
                source.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
            }
            Self::Taken { .. } | Self::Served { .. } => Errno::BUSY.raw_os_error(),
            Self::Files { .. } => Errno::NOTEMPTY.raw_os_error(),
            Self::Overtaken => Errno::STALE.raw_os_error(),
            Self::Directory { .. } => Errno::PERM.raw_os_error(),
            Self::Unsealed { .. } => Errno::IO.raw_os_error(),
            Self::Store { errno, .. } => errno.raw_os_error(),
            Self::Later => Errno::AGAIN.raw_os_error(),
        }
    }

    /// Whether the error has this errno.
    #[must_use]
    pub fn is(&self, errno: Errno) -> bool {
        self.errno() == errno.raw_os_error()
    }
}
