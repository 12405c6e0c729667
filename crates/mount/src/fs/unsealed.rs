//! List of the versions that were closed on this mount and are not sealed yet, with their age and the last error. The list only changes
//! memory.

use super::deadline;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;

/// Maximum number of remembered versions that are incomplete in the cluster.
const LOST_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CloseOutcome {
    Unsealed,
    /// The version is sealed, or is not needed any more.
    Done,
    /// The version will never have all written bytes, for this reason.
    Lost(String),
}

/// Closed versions that are not sealed.
#[derive(Debug, Default)]
pub(crate) struct UnsealedVersions {
    versions: Mutex<Versions>,
    /// Condition variable that is signalled when a version is sealed or dropped.
    fewer: Condvar,
}

#[derive(Debug, Default)]
struct Versions {
    by_object: BTreeMap<u64, WaitingSeal>,
    /// Versions that are incomplete in the cluster, with the reason, until a caller has asked for the reason.
    lost: BTreeMap<u64, String>,
    /// Error of the last attempt to seal a version.
    why: String,
}

#[derive(Debug)]
struct WaitingSeal {
    ino: u64,
    since: Instant,
    /// Errno for an operation that waited in vain for the seal; `None` if no attempt has failed yet.
    errno: Option<Errno>,
}

/// Summary of the unsealed versions, for users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsealedSummary {
    pub(crate) versions: usize,
    /// Age of the oldest unsealed version.
    pub(crate) oldest: Duration,
    /// Error of the last attempt to seal a version; empty if no attempt failed.
    pub(crate) why: String,
}

impl UnsealedVersions {
    /// Adds a closed version.
    pub(crate) fn enter(&self, object: u64, ino: u64) {
        let waiting = WaitingSeal {
            ino,
            since: Instant::now(),
            errno: None,
        };
        self.versions.lock().by_object.insert(object, waiting);
    }

    /// Records a failed attempt to seal a version. Returns whether it was the first failure since all versions were sealed.
    pub(crate) fn failed(&self, object: u64, why: &ClientError) -> bool {
        let mut versions = self.versions.lock();
        let Some(waiting) = versions.by_object.get_mut(&object) else {
            return false;
        };
        waiting.errno = Some(Errno::from_raw_os_error(why.errno()));
        std::mem::replace(&mut versions.why, why.to_string()).is_empty()
    }

    /// Records that a version is sealed, or will never be sealed.
    pub(crate) fn done(&self, object: u64) {
        let mut versions = self.versions.lock();
        versions.by_object.remove(&object);
        if versions.by_object.is_empty() {
            versions.why.clear();
        }
        self.fewer.notify_all();
    }

    /// Records that a version will be incomplete in the cluster.
    pub(crate) fn lost(&self, object: u64, why: &str) {
        let lost = &mut self.versions.lock().lost;
        lost.insert(object, why.to_owned());
        if lost.len() > LOST_MAX {
            lost.pop_first();
        }
    }

    /// Returns the outcome of a version. A second call for a lost version returns [`CloseOutcome::Done`].
    pub(crate) fn fate(&self, object: u64) -> CloseOutcome {
        let mut versions = self.versions.lock();
        if versions.by_object.contains_key(&object) {
            return CloseOutcome::Unsealed;
        }
        versions
            .lost
            .remove(&object)
            .map_or(CloseOutcome::Done, CloseOutcome::Lost)
    }

    /// Waits until fewer than `most` versions are unsealed, or until the time `until`. Returns whether fewer are unsealed.
    pub(crate) fn wait_below(&self, most: usize, until: Instant) -> bool {
        let mut versions = self.versions.lock();
        while versions.by_object.len() >= most {
            if deadline::wait(&self.fewer, &mut versions, until) {
                return false;
            }
        }
        true
    }

    pub(crate) fn standing(&self) -> UnsealedSummary {
        let versions = self.versions.lock();
        let oldest = versions.by_object.values().map(|waiting| waiting.since);
        UnsealedSummary {
            versions: versions.by_object.len(),
            oldest: oldest.min().map_or(Duration::ZERO, |since| since.elapsed()),
            why: versions.why.clone(),
        }
    }

    /// Waits until all versions are sealed. If `timeout` passes first, returns a summary of the unsealed versions.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), UnsealedSummary> {
        let end = Instant::now() + timeout;
        let mut versions = self.versions.lock();
        while !versions.by_object.is_empty() {
            if self.fewer.wait_until(&mut versions, end).timed_out() {
                drop(versions);
                return Err(self.standing());
            }
        }
        Ok(())
    }

    /// Returns the errno that explains why a version of this inode is not sealed; `ETXTBSY` if no attempt has failed.
    pub(crate) fn errno(&self, ino: u64) -> Errno {
        let versions = self.versions.lock();
        let mut own = versions.by_object.values().filter(|w| w.ino == ino);
        own.find_map(|waiting| waiting.errno)
            .unwrap_or(Errno::TXTBSY)
    }
}

impl fmt::Display for UnsealedSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "unsealed {}", self.versions)?;
        writeln!(f, "oldest   {:.1} s", self.oldest.as_secs_f64())?;
        writeln!(f, "reason   {}", self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsealed_version_is_reported_until_sealed() {
        let unsealed = UnsealedVersions::default();
        assert_eq!(unsealed.standing(), UnsealedSummary::default());
        unsealed.enter(7, 70);
        assert_eq!(unsealed.errno(70), Errno::TXTBSY);
        let why = ClientError::NodeDown(tidemill_model::id::NodeId(3));
        assert!(unsealed.failed(7, &why));
        assert!(!unsealed.failed(7, &why));
        assert_eq!(unsealed.errno(70), Errno::HOSTUNREACH);
        let left = unsealed.wait(Duration::ZERO).unwrap_err();
        assert_eq!((left.versions, left.why), (1, why.to_string()));
        assert_eq!(unsealed.fate(7), CloseOutcome::Unsealed);
        unsealed.lost(7, "cut");
        unsealed.done(7);
        assert_eq!(unsealed.fate(7), CloseOutcome::Lost("cut".into()));
        assert_eq!(unsealed.fate(7), CloseOutcome::Done);
        assert!(!unsealed.failed(7, &why));
        unsealed.wait(Duration::ZERO).unwrap();
        assert_eq!(unsealed.errno(70), Errno::TXTBSY);
    }

    #[test]
    fn wait_below_blocks_until_version_is_sealed() {
        let unsealed = UnsealedVersions::default();
        unsealed.enter(1, 10);
        assert!(unsealed.wait_below(2, deadline::now()));
        unsealed.enter(2, 20);
        assert!(!unsealed.wait_below(2, deadline::now()));
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| unsealed.wait_below(2, deadline::now() + deadline::PATIENCE));
            unsealed.done(1);
            assert!(waits.join().unwrap());
        });
    }
}
