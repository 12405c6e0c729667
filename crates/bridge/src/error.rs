//! What goes wrong with a store, as the user is to read it.

/// Longest part of what a store says that is told.
const REASON_CHARS: usize = 300;

/// As much of what a store says as is told.
pub(crate) fn cut(said: &str) -> String {
    said.chars().take(REASON_CHARS).collect()
}

/// Why something was not done. None of it says a key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address of a store.
    #[error("bad address {uri}: {what}")]
    Place {
        /// As it was given.
        uri: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The file of keys.
    #[error("keys in {file}: {what}")]
    Keys {
        /// Which one.
        file: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A path that leads out of the store, or could.
    #[error("bad path {0:?}: give names with one slash between them, without `.` and `..`")]
    Path(String),
    /// There is nothing.
    #[error("not there: {0}")]
    Missing(String),
    /// The store does not know who asks.
    #[error(
        "the store refuses {path}: the keys are wrong, have ended, or may not do this ({reason}); see `--keys`"
    )]
    Refused {
        /// Of what.
        path: String,
        /// What the store said.
        reason: String,
    },
    /// What is signed has a time in it.
    #[error(
        "the store does not take {path}, since the clocks of this host and of the store differ by too much ({reason}): set this host's clock"
    )]
    Clock {
        /// Of what.
        path: String,
        /// What the store said.
        reason: String,
    },
    /// It became another one while it was read.
    #[error("{0} was changed while it was read: nothing of it was kept, try again")]
    Changed(String),
    /// Somebody else writes it.
    #[error("{0} is being written by another process: wait until it is closed")]
    Busy(String),
    /// No file: a link, a pipe, a folder.
    #[error("{path} is {what}, no file: it is not followed")]
    NoFile {
        /// Where.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// This store has no such thing.
    #[error("stores of this kind can't {0}")]
    Unable(&'static str),
    /// This user may not.
    #[error("{path}: {reason}")]
    Denied {
        /// Of what.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// All else.
    #[error("{path}: {reason}")]
    Store {
        /// Of what.
        path: String,
        /// What the store said.
        reason: String,
    },
}

impl Error {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    pub(crate) fn of(path: &str) -> impl Fn(rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        move |errno| match errno {
            Errno::NOENT => Self::Missing(path.to_owned()),
            Errno::LOOP => Self::NoFile {
                path: path.to_owned(),
                what: "a link, or behind one",
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
