//! The directory of the logs of a user's applications, and the lock of the user's agent. The module creates the directory and starts
//! agents.

use crate::error::Error;
use crate::log::Bell;
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time for the start of an agent.
const START: Duration = Duration::from_secs(10);
const LOCK: &str = "agent.lock";
const BELL: &str = "bell";
/// File name extension of logs.
pub(crate) const LOG: &str = "labels";

/// A user's directory of logs: on this host, so that the logs outlive every process, and private to the user.
#[derive(Clone, Debug)]
pub(crate) struct LogDirectory(PathBuf);

impl LogDirectory {
    /// Opens the directory `named`, or the user's default directory: `TIDEMILL_LABELS`, or `/dev/shm/tidemill-labels-UID`.
    pub(crate) fn open(named: Option<&Path>) -> Result<Self, Error> {
        let user = rustix::process::geteuid().as_raw();
        let path = match (named, std::env::var_os("TIDEMILL_LABELS")) {
            (Some(named), _) => named.to_owned(),
            (None, Some(named)) => named.into(),
            // Memory that no process owns: no byte is written to a disk twice.
            (None, None) => PathBuf::from(format!("/dev/shm/tidemill-labels-{user}")),
        };
        let at = |source| Error::Log {
            path: path.clone(),
            source,
        };
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(at(error));
            }
            _ => {}
        }
        let is = path.symlink_metadata().map_err(at)?;
        match refusal_reason(&is, user) {
            Some(why) => Err(at(std::io::Error::other(why))),
            None => Ok(Self(path)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn logs(&self) -> std::io::Result<Vec<PathBuf>> {
        let mut logs = Vec::new();
        let entries = match std::fs::read_dir(&self.0) {
            // The directory was removed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(logs),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == LOG) {
                logs.push(path);
            }
        }
        logs.sort();
        Ok(logs)
    }

    pub(crate) fn bell(&self) -> Result<Bell, Error> {
        Bell::open(&self.0.join(BELL))
    }

    /// Makes this process the agent, for as long as the returned file is open; `None` if another process is the agent.
    pub(crate) fn lock(&self) -> Result<Option<File>, Error> {
        let path = self.0.join(LOCK);
        let at = |source| Error::Log {
            path: path.clone(),
            source,
        };
        let mut how = File::options();
        let how = how.write(true).create(true).truncate(false);
        let file = how.open(&path).map_err(at)?;
        // A process that checks for an agent holds the lock for a moment.
        for _ in 0..20 {
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                if !self.is_locked_by(&file) {
                    // Another file has the path by now.
                    return self.lock();
                }
                file.set_len(0).map_err(at)?;
                file.write_all_at(std::process::id().to_string().as_bytes(), 0)
                    .map_err(at)?;
                return Ok(Some(file));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }

    /// Whether `lock` is the lock that other agents see. The lock is another one if the directory was removed, and perhaps created again,
    /// as happens with a user's memory at logout: then another agent may run.
    pub(crate) fn is_locked_by(&self, lock: &File) -> bool {
        lies_at(lock, &self.0.join(LOCK))
    }

    /// Whether an agent of the user runs.
    pub(crate) fn has_agent(&self) -> bool {
        let file = File::options().write(true).open(self.0.join(LOCK));
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Returns the process id of the agent, if an agent runs.
    pub(crate) fn agent(&self) -> Option<u32> {
        let pid = std::fs::read_to_string(self.0.join(LOCK)).ok()?;
        pid.parse().ok().filter(|_| self.has_agent())
    }

    /// Starts an agent if none runs.
    pub(crate) fn start_agent(&self) -> Result<(), Error> {
        if self.has_agent() {
            return Ok(());
        }
        let program = std::env::var("TIDEMILL").unwrap_or_else(|_| "tidemill".into());
        let failed = |why: String| Error::Agent {
            program: program.clone(),
            why,
        };
        let mut command = Command::new(&program);
        command
            .args(["async", "agent", "--detach", "--data-dir"])
            .arg(&self.0);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let output = command
            .stderr(Stdio::piped())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let reported = String::from_utf8_lossy(&output.stderr);
            return Err(failed(reported.trim().to_owned()));
        }
        let begun = Instant::now();
        while !self.has_agent() {
            if begun.elapsed() > START {
                return Err(failed("it does not start".into()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Whether an open file is still the file at a path.
pub(crate) fn lies_at(file: &File, path: &Path) -> bool {
    let id = |is: std::fs::Metadata| (is.dev(), is.ino());
    let named = path.symlink_metadata().map(id);
    named.is_ok_and(|named| file.metadata().map(id).is_ok_and(|own| own == named))
}

/// Returns the reason why a directory cannot be the directory of a user's logs; `None` if it can.
fn refusal_reason(is: &std::fs::Metadata, user: u32) -> Option<String> {
    let instead =
        "or set TIDEMILL_LABELS to a directory of yours that no other user can access (chmod 700)";
    if is.uid() != user {
        let whose = is.uid();
        return Some(format!(
            "it belongs to user {whose}: ask that user or root to remove it, {instead}"
        ));
    }
    if !is.is_dir() {
        return Some(format!("it is not a directory: remove it, {instead}"));
    }
    (is.mode() & 0o077 != 0)
        .then(|| "it must be a directory of yours that no other user can access (chmod 700)".into())
}

/// Returns the mountpoint of the cluster: `TIDEMILL_MOUNT`, or the only mountpoint of this host.
pub(crate) fn mounted() -> Result<PathBuf, Error> {
    if let Some(named) = std::env::var_os("TIDEMILL_MOUNT") {
        return Ok(named.into());
    }
    let mut found = mounts().into_iter();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Error::Mount(
            "no cluster is mounted here: see `tidemill up` and `tidemill mount`".into(),
        )),
        (Some(_), Some(_)) => Err(Error::Mount(
            "several clusters are mounted here: set TIDEMILL_MOUNT to the directory of one cluster"
                .into(),
        )),
    }
}

/// Returns the mountpoints of clusters on this host.
#[must_use]
pub fn mounts() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut words = after.split(' ');
        // A mount by root has no type except FUSE.
        let is_fuse = words.next()?.starts_with("fuse");
        let is_cluster = is_fuse && words.next() == Some("tidemill");
        is_cluster.then(|| before.split(' ').nth(4))?
    });
    let name = |found: &str| {
        let escapes = [
            ("\\040", " "),
            ("\\011", "\t"),
            ("\\012", "\n"),
            ("\\134", "\\"),
        ];
        let plain = |text: String, (code, is): (&str, &str)| text.replace(code, is);
        PathBuf::from(escapes.into_iter().fold(found.to_owned(), plain))
    };
    found.map(name).collect()
}

/// Returns the type of the file system that contains a directory.
pub(crate) fn system(directory: &Path) -> std::io::Result<u64> {
    let system = rustix::fs::statfs(directory)?.f_type;
    // A number of 32 bits, whatever type the system uses for it.
    Ok(system as u64 & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, LogDirectory) {
        let place = tempfile::tempdir().unwrap();
        let directory = LogDirectory::open(Some(&place.path().join("logs"))).unwrap();
        (place, directory)
    }

    #[test]
    fn agent_lock_of_deleted_log_directory_is_not_held() {
        let (_place, directory) = directory();
        let lock = directory.lock().unwrap().unwrap();
        assert!(directory.is_locked_by(&lock) && directory.has_agent());
        assert!(directory.lock().unwrap().is_none());
        std::fs::remove_dir_all(directory.path()).unwrap();
        assert!(!directory.is_locked_by(&lock));
        let again = LogDirectory::open(Some(directory.path())).unwrap();
        assert!(!directory.is_locked_by(&lock) && !again.has_agent());
        let other = again.lock().unwrap().unwrap();
        assert!(again.is_locked_by(&other) && !again.is_locked_by(&lock));
    }

    #[test]
    fn log_directory_of_other_user_is_refused_with_remedy() {
        let (place, directory) = directory();
        let is = directory.path().metadata().unwrap();
        assert_eq!(refusal_reason(&is, is.uid()), None);
        let why = refusal_reason(&is, is.uid() + 1).unwrap();
        let owner = format!("belongs to user {}", is.uid());
        assert!(
            why.contains(&owner) && why.contains("TIDEMILL_LABELS"),
            "{why}"
        );
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        let is = file.metadata().unwrap();
        assert!(
            refusal_reason(&is, is.uid())
                .unwrap()
                .contains("not a directory")
        );
    }
}
