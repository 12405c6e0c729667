//! Which applications are registered.

use crate::error::Error;
use crate::folder::Folder;
pub use crate::log::Drew;
use crate::log::Log;
use std::path::{Path, PathBuf};

/// An application, or what is left of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// The name it registered with.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Whether that still has it registered.
    pub runs: bool,
    /// Where its array is mounted.
    pub mount: PathBuf,
    /// Labels and their bytes since it registered, and how many labels failed.
    pub labels: u64,
    /// Bytes that came with them.
    pub bytes: u64,
    /// Labels that failed.
    pub failed: u64,
    /// Bytes that its labels take now, of those it may have.
    pub used: u64,
    /// Bytes that it may have.
    pub capacity: u64,
    /// What the kernels of its labels that analyse drew.
    pub drew: Drew,
}

/// What is known of a user's applications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applications {
    /// The process that carries their labels out, if one does.
    pub agent: Option<u32>,
    /// The folder of their logs.
    pub folder: PathBuf,
    /// In the order in which they registered.
    pub applications: Vec<Application>,
    /// Logs that can't be carried out, and why not is in the agent's log.
    pub damaged: Vec<PathBuf>,
}

/// The applications of this user.
///
/// # Errors
/// If the folder of logs can't be used.
pub fn list(folder: Option<&Path>) -> Result<Applications, Error> {
    let folder = Folder::open(folder)?;
    let read = |source| Error::Log {
        path: folder.path().to_owned(),
        source,
    };
    let mut all = Applications {
        agent: folder.agent(),
        folder: folder.path().to_owned(),
        ..Applications::default()
    };
    for path in folder.logs().map_err(read)? {
        // It may have ended meanwhile.
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
    for entry in std::fs::read_dir(folder.path()).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|end| end == "bad") {
            all.damaged.push(path);
        }
    }
    all.damaged.sort();
    Ok(all)
}
