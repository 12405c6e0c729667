//! Errors of stores, as texts for users.

/// Maximum length in characters of a store's own message in an error.
const REASON_CHARS: usize = 300;

/// Returns a store's message, cut to the maximum length.
pub(crate) fn cut(reported: &str) -> String {
    reported.chars().take(REASON_CHARS).collect()
}

/// Reason why a request to a store failed. No error contains a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The address of a store is invalid.
    #[error("bad address {uri}: {what}")]
    Place {
        /// Address as it was given.
        uri: String,
        /// Problem of the address, and its remedy.
        what: String,
    },
    /// The file of keys is invalid.
    #[error("keys in {file}: {what}")]
    Keys {
        /// Path of the file of keys.
        file: String,
        /// Problem of the keys, and its remedy.
        what: String,
    },
    /// The path leads out of the store, or could lead out of it.
    #[error("bad path {0:?}: give names with one slash between them, without `.` and `..`")]
    Path(String),
    /// The path does not exist in the store.
    #[error("{0} does not exist")]
    Missing(String),
    /// The store rejects the keys.
    #[error(
        "the store refuses {path}: the keys are wrong, have expired, or do not permit this ({reason}); see `--keys`"
    )]
    Refused {
        /// Path of the request.
        path: String,
        /// Message of the store.
        reason: String,
    },
    /// The store rejects the time in a signed request.
    #[error(
        "the store rejects {path}, because the clocks of this host and of the store differ too much ({reason}): set this host's clock"
    )]
    Clock {
        /// Path of the request.
        path: String,
        /// Message of the store.
        reason: String,
    },
    /// The file changed while it was read.
    #[error("{0} was changed while it was read: no part of it was stored; try again")]
    Changed(String),
    /// Another writer is writing the file.
    #[error("{0} is being written by another process: wait until it is closed")]
    Busy(String),
    /// The path is no file but a link, a pipe or a directory.
    #[error("{path} is {what}, not a file: it is not followed")]
    NoFile {
        /// Path of the request.
        path: String,
        /// Type of the file at the path.
        what: &'static str,
    },
    /// The store does not support the operation.
    #[error("stores of this kind can't {0}")]
    Unable(&'static str),
    /// The user lacks the permission for the request.
    #[error("{path}: {reason}")]
    Denied {
        /// Path of the request.
        path: String,
        /// Message of the operating system.
        reason: String,
    },
    /// Any other error of the store.
    #[error("{path}: {reason}")]
    Store {
        /// Path of the request.
        path: String,
        /// Message of the store.
        reason: String,
    },
    /// The store does not answer.
    #[error("the store did not answer within one minute")]
    Silent,
    /// Error of the program that uses the store.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// Returns whether the error is that the path does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    /// Returns whether the file that a caller knows certainly no longer exists.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Missing(_) | Self::Changed(_) | Self::NoFile { .. }
        )
    }

    /// Returns the reason without the path, for a message that names the path.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Missing(_) => "it does not exist".to_owned(),
            Self::Changed(_) | Self::NoFile { .. } => {
                "it has been replaced by another file".to_owned()
            }
            error => error.to_string(),
        }
    }

    /// Returns the error for a listing with more names than any real directory has.
    pub(crate) fn endless(path: &str, most: usize) -> Self {
        Self::Store {
            path: path.to_owned(),
            reason: format!("the store's listing has no end: more than {most} names"),
        }
    }

    pub(crate) fn of(path: &str) -> impl Fn(rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        move |errno| match errno {
            Errno::NOENT => Self::Missing(path.to_owned()),
            Errno::LOOP => Self::NoFile {
                path: path.to_owned(),
                what: "a link, or below a link",
            },
            Errno::NOTDIR => Self::NoFile {
                path: path.to_owned(),
                what: "below a file",
            },
            Errno::ACCESS | Errno::PERM => Self::Denied {
                path: path.to_owned(),
                reason: std::io::Error::from(errno).to_string(),
            },
            errno => Self::Store {
                path: path.to_owned(),
                reason: std::io::Error::from(errno).to_string(),
            },
        }
    }
}
