//! What can go wrong with labels.

use std::path::{Path, PathBuf};

/// Why a label, or its application, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The label was carried out and failed as the system call would have.
    #[error("{what} {path}: {source}")]
    Failed {
        /// What was asked.
        what: &'static str,
        /// Of which file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The job of the label was refused, or failed.
    #[error("the analysis failed: {why}")]
    Analysis {
        /// What a system call would say: `EINVAL` if the array refused it, `EIO` if it failed.
        errno: i32,
        /// What the array said.
        why: String,
    },
    /// The label waits for a file and can't.
    #[error("can't wait for files: {why}")]
    Await {
        /// What a system call would say.
        errno: i32,
        /// What is wrong.
        why: String,
    },
    /// Some of what a subscription asks for came so long ago that the array does not know it any more.
    #[error(
        "some arrivals are not known any more: the array remembers a bounded number of arrivals; ask again to continue with the known arrivals"
    )]
    Missed,
    /// It was cancelled before it was begun.
    #[error("the label was cancelled")]
    Cancelled,
    /// What it says can't be meant.
    #[error("{0}")]
    Invalid(String),
    /// All of the application's room for labels is taken by those that are not done.
    #[error(
        "{needed} bytes of labels don't fit: {capacity} bytes are the application's, and taken; wait for labels, or register \
         with more"
    )]
    Full {
        /// Bytes that the label takes.
        needed: u64,
        /// Bytes that the application has.
        capacity: u64,
    },
    /// The host's administrator allows no more room for labels.
    #[error("{0}")]
    Quota(String),
    /// The file of labels can't be made or opened.
    #[error("can't use {path} for labels: {source}")]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file of labels is not one.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nobody carries labels out.
    #[error(
        "can't start `{program} agent`, which carries labels out: {why}; put tidemill in PATH, or set TIDEMILL to it"
    )]
    Agent {
        /// The program.
        program: String,
        /// What happened.
        why: String,
    },
    /// No array is mounted here, or several are.
    #[error("{0}")]
    Mount(String),
    /// The time that was given is over. The label is still there.
    #[error("the label is not done yet")]
    Timeout,
    /// A child of the application that was registered.
    #[error("this process was forked from the application that registered: register again here")]
    Forked,
}

impl Error {
    pub(crate) fn damaged(path: &Path, why: &'static str) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            why,
        }
    }

    /// The errno that says the same.
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
            Self::Damaged { .. } => Errno::IO,
            Self::Agent { .. } => Errno::NOEXEC,
            Self::Mount(_) => Errno::NODEV,
            Self::Timeout => Errno::TIMEDOUT,
            Self::Forked => Errno::CHILD,
        };
        errno.raw_os_error()
    }
}
