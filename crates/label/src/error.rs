//! Errors of labels.

use std::path::{Path, PathBuf};

/// Error of a label, or of its application.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The label was carried out and failed as the system call would have.
    #[error("{what} {path}: {source}")]
    Failed {
        /// Operation of the label.
        what: &'static str,
        /// Path of the file.
        path: String,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The job of the label was refused, or failed.
    #[error("the analysis failed: {why}")]
    Analysis {
        /// Errno of the failure: `EINVAL` if the cluster refused the job, `EIO` if the job failed.
        errno: i32,
        /// Answer of the cluster about the job.
        why: String,
    },
    /// The label cannot wait for files.
    #[error("can't wait for files: {why}")]
    Await {
        /// Errno of the failed wait.
        errno: i32,
        /// Reason why the wait failed.
        why: String,
    },
    /// The cluster has dropped the oldest file events that a subscription requests.
    #[error(
        "some file events were discarded: the cluster remembers a limited number of file events; ask again to continue with the remaining events"
    )]
    Missed,
    /// The label was cancelled before it began.
    #[error("the label was cancelled")]
    Cancelled,
    /// The label or option is invalid.
    #[error("{0}")]
    Invalid(String),
    /// Unfinished labels take all of the application's buffer quota.
    #[error(
        "{needed} bytes of labels don't fit into the buffer quota of {capacity} bytes; wait for labels, or register \
         with a larger quota"
    )]
    Full {
        /// Number of bytes that the label takes.
        needed: u64,
        /// Buffer quota of the application in bytes.
        capacity: u64,
    },
    /// The limits that the host's administrator has set allow no larger buffer quota.
    #[error("{0}")]
    Quota(String),
    /// The log of an application cannot be created or opened.
    #[error("can't use {path} for labels: {source}")]
    Log {
        /// Path of the log.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The log of an application is corrupt.
    #[error("{path} is corrupt: {why}")]
    Corrupt {
        /// Path of the log.
        path: PathBuf,
        /// Description of the corruption.
        why: &'static str,
    },
    /// No agent can be started.
    #[error(
        "can't start `{program} agent`, which executes labels: {why}; put tidemill in PATH, or set TIDEMILL to it"
    )]
    Agent {
        /// Program of the agent.
        program: String,
        /// Reason why the program cannot be started.
        why: String,
    },
    /// No cluster is mounted on this host, or several are and the caller named none.
    #[error("{0}")]
    Mount(String),
    /// The time limit of a wait has passed. The label still exists.
    #[error("the label is not done yet")]
    Timeout,
    /// The process is a forked child of the registered application.
    #[error("this process was forked from the application that registered: register again here")]
    Forked,
}

impl Error {
    pub(crate) fn corrupt(path: &Path, why: &'static str) -> Self {
        Self::Corrupt {
            path: path.to_owned(),
            why,
        }
    }

    /// Returns the errno of the error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Failed { source, .. } | Self::Log { source, .. } => {
                return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            }
            Self::Analysis { errno, .. } | Self::Await { errno, .. } => return *errno,
            Self::Missed => Errno::OVERFLOW,
            Self::Cancelled => Errno::CANCELED,
            Self::Invalid(_) => Errno::INVAL,
            Self::Full { .. } => Errno::AGAIN,
            Self::Quota(_) => Errno::DQUOT,
            Self::Corrupt { .. } => Errno::IO,
            Self::Agent { .. } => Errno::NOEXEC,
            Self::Mount(_) => Errno::NODEV,
            Self::Timeout => Errno::TIMEDOUT,
            Self::Forked => Errno::CHILD,
        };
        errno.raw_os_error()
    }
}
