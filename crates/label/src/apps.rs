//! List of the registered applications. The module only reads logs.

use crate::directory::LogDirectory;
use crate::error::Error;
pub use crate::log::Drew;
use crate::log::Log;
use std::path::{Path, PathBuf};

/// A registered application, or the log of an ended one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// Name under which the application was registered.
    pub name: String,
    /// Process id of the application.
    pub pid: u32,
    /// Whether the process still has the application registered.
    pub runs: bool,
    /// Mountpoint of the application's cluster.
    pub mount: PathBuf,
    /// Number of labels that the application has published.
    pub labels: u64,
    /// Number of bytes of the published labels.
    pub bytes: u64,
    /// Number of labels that have failed.
    pub failed: u64,
    /// Number of bytes that unfinished labels take now.
    pub used: u64,
    /// Buffer quota of the application in bytes.
    pub capacity: u64,
    /// Energy that kernels of the application's analyses used.
    pub drew: Drew,
}

/// State of a user's applications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applications {
    /// Process id of the agent, if an agent runs.
    pub agent: Option<u32>,
    /// Directory of the applications' logs.
    pub directory: PathBuf,
    /// Applications in the order of their registration.
    pub applications: Vec<Application>,
    /// Logs that cannot be carried out; the agent's log has the reason.
    pub corrupt: Vec<PathBuf>,
}

/// Returns the applications of this user.
///
/// # Errors
/// The directory of logs cannot be used.
pub fn list(directory: Option<&Path>) -> Result<Applications, Error> {
    let directory = LogDirectory::open(directory)?;
    let read = |source| Error::Log {
        path: directory.path().to_owned(),
        source,
    };
    let mut all = Applications {
        agent: directory.agent(),
        directory: directory.path().to_owned(),
        ..Applications::default()
    };
    for path in directory.logs().map_err(read)? {
        // The application may have ended in the meantime.
        let Ok(log) = Log::open(&path) else { continue };
        let (labels, bytes, failed) = log.counts();
        all.applications.push(Application {
            name: log.name(),
            pid: log.pid(),
            runs: !log.is_left(),
            mount: log.root().0.to_owned(),
            labels,
            bytes,
            failed,
            used: log.published().saturating_sub(log.freed()),
            capacity: log.capacity(),
            drew: log.drawn(),
        });
    }
    for entry in std::fs::read_dir(directory.path()).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|end| end == "bad") {
            all.corrupt.push(path);
        }
    }
    all.corrupt.sort();
    Ok(all)
}
