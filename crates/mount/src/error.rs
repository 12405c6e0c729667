//! The one error type of the mount. At the boundary to the kernel it becomes an errno.

use rustix::io::Errno;

/// Why an operation of the file system, or the mount itself, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What a system call would say.
    #[error("{0}")]
    System(#[from] Errno),
    /// The server or an element.
    #[error(transparent)]
    Client(#[from] tidemill_client::Error),
    /// An object file opened in place.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// The file system can't be attached.
    #[error("can't mount on {path}: {source}; see `tidemill help mount`")]
    Mount {
        /// The mountpoint.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something is mounted there.
    #[error(
        "can't mount on {path}: {by} is mounted there already; unmount that first, or choose another folder"
    )]
    Taken {
        /// The mountpoint.
        path: String,
        /// What its mount calls itself.
        by: String,
    },
    /// The mountpoint holds files.
    #[error(
        "can't mount on {path}: it holds files that the mount would hide, as {name}; they may have been \
         written while nothing was mounted: move them away and copy them in afterwards, or choose another folder"
    )]
    Files {
        /// The mountpoint.
        path: String,
        /// One of them.
        name: String,
    },
    /// The mount ends before all that was closed is sealed.
    #[error(
        "{versions} closed files could not be sealed before the mount ended ({why}); the server seals what \
         reached their elements: see `tidemill status`"
    )]
    Unsealed {
        /// How many.
        versions: usize,
        /// Why the last try failed.
        why: String,
    },
    /// The folder of the socket is somebody else's, or others may change it.
    #[error(
        "{path} is not a folder that only this user can change: remove it, or choose another with --folder"
    )]
    Folder {
        /// The folder.
        path: String,
    },
    /// Somebody serves there.
    #[error("{path} is served by another process; end that first, or choose another with --folder")]
    Served {
        /// The folder.
        path: String,
    },
    /// What was given away is not what the file is to have any more.
    #[error("another process has written the file since")]
    Overtaken,
    /// A store outside of the array.
    #[error("{reason}")]
    Store {
        /// What programs are told.
        errno: Errno,
        /// What it said, or did not.
        reason: String,
    },
    /// The answer can't be given without waiting for another process: ask again where waiting is allowed.
    #[error("the operation has to wait for a server")]
    Later,
}

impl Error {
    /// The errno that the system call gives.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::System(errno) => errno.raw_os_error(),
            // What was waited for in vain, as a hard mount would go on to do.
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
            Self::Folder { .. } => Errno::PERM.raw_os_error(),
            Self::Unsealed { .. } => Errno::IO.raw_os_error(),
            Self::Store { errno, .. } => errno.raw_os_error(),
            Self::Later => Errno::AGAIN.raw_os_error(),
        }
    }

    /// Whether it is this errno.
    #[must_use]
    pub fn is(&self, errno: Errno) -> bool {
        self.errno() == errno.raw_os_error()
    }
}
