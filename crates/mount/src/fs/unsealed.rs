//! Which versions were closed here and are not sealed yet, since when, and why not.

use super::patience;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;

/// Versions that are not all in the array and that are remembered at most.
const LOST_MAX: usize = 1024;

/// What has become of a version that was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Unsealed,
    /// It is sealed, or nobody wants it any more.
    Done,
    /// It will never be as it was written.
    Lost(String),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unsealed {
    versions: Mutex<Versions>,
    /// Signalled when there is one less.
    fewer: Condvar,
}

#[derive(Debug, Default)]
struct Versions {
    by_object: BTreeMap<u64, Waiting>,
    /// Of which not all is in the array, and why: as far as nobody has asked for them.
    lost: BTreeMap<u64, String>,
    /// Why one of them could not be sealed the last time.
    why: String,
}

#[derive(Debug)]
struct Waiting {
    ino: u64,
    since: Instant,
    /// What an operation is told that has waited in vain; `None`: it was not tried in vain yet.
    errno: Option<Errno>,
}

/// What is not sealed yet, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) versions: usize,
    /// Age of the oldest.
    pub(crate) oldest: Duration,
    /// Why the last try failed; empty if none did.
    pub(crate) why: String,
}

impl Unsealed {
    /// A version was closed.
    pub(crate) fn enter(&self, object: u64, ino: u64) {
        let waiting = Waiting {
            ino,
            since: Instant::now(),
            errno: None,
        };
        self.versions.lock().by_object.insert(object, waiting);
    }

    /// A try failed; says whether it was the first since all was well.
    pub(crate) fn failed(&self, object: u64, why: &ClientError) -> bool {
        let mut versions = self.versions.lock();
        let Some(waiting) = versions.by_object.get_mut(&object) else {
            return false;
        };
        waiting.errno = Some(Errno::from_raw_os_error(why.errno()));
        std::mem::replace(&mut versions.why, why.to_string()).is_empty()
    }

    /// A version is sealed, or never will be.
    pub(crate) fn done(&self, object: u64) {
        let mut versions = self.versions.lock();
        versions.by_object.remove(&object);
        if versions.by_object.is_empty() {
            versions.why.clear();
        }
        self.fewer.notify_all();
    }

    /// Not all of a version will be in the array.
    pub(crate) fn lost(&self, object: u64, why: &str) {
        let lost = &mut self.versions.lock().lost;
        lost.insert(object, why.to_owned());
        if lost.len() > LOST_MAX {
            lost.pop_first();
        }
    }

    /// What has become of a version; that it is lost is told once.
    pub(crate) fn fate(&self, object: u64) -> Fate {
        let mut versions = self.versions.lock();
        if versions.by_object.contains_key(&object) {
            return Fate::Unsealed;
        }
        versions.lost.remove(&object).map_or(Fate::Done, Fate::Lost)
    }

    /// Waits until there are fewer than so many; says whether there are.
    pub(crate) fn wait_below(&self, most: usize, until: Instant) -> bool {
        let mut versions = self.versions.lock();
        while versions.by_object.len() >= most {
            if patience::wait(&self.fewer, &mut versions, until) {
                return false;
            }
        }
        true
    }

    pub(crate) fn standing(&self) -> Standing {
        let versions = self.versions.lock();
        let oldest = versions.by_object.values().map(|waiting| waiting.since);
        Standing {
            versions: versions.by_object.len(),
            oldest: oldest.min().map_or(Duration::ZERO, |since| since.elapsed()),
            why: versions.why.clone(),
        }
    }

    /// Waits until there are none, or gives what there is.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), Standing> {
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

    /// Why a version of this inode is not sealed: the file is busy, unless there is a better reason.
    pub(crate) fn errno(&self, ino: u64) -> Errno {
        let versions = self.versions.lock();
        let mut own = versions.by_object.values().filter(|w| w.ino == ino);
        own.find_map(|waiting| waiting.errno)
            .unwrap_or(Errno::TXTBSY)
    }
}

impl fmt::Display for Standing {
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
    fn unsealed_version_is_reported_until_done() {
        let unsealed = Unsealed::default();
        assert_eq!(unsealed.standing(), Standing::default());
        unsealed.enter(7, 70);
        assert_eq!(unsealed.errno(70), Errno::TXTBSY);
        let why = ClientError::ElementDown(tidemill_core::id::ElementId(3));
        assert!(unsealed.failed(7, &why));
        assert!(!unsealed.failed(7, &why));
        assert_eq!(unsealed.errno(70), Errno::HOSTUNREACH);
        let left = unsealed.wait(Duration::ZERO).unwrap_err();
        assert_eq!((left.versions, left.why), (1, why.to_string()));
        assert_eq!(unsealed.fate(7), Fate::Unsealed);
        unsealed.lost(7, "cut");
        unsealed.done(7);
        assert_eq!(unsealed.fate(7), Fate::Lost("cut".into()));
        assert_eq!(unsealed.fate(7), Fate::Done);
        assert!(!unsealed.failed(7, &why));
        unsealed.wait(Duration::ZERO).unwrap();
        assert_eq!(unsealed.errno(70), Errno::TXTBSY);
    }

    #[test]
    fn wait_below_blocks_until_version_is_done() {
        let unsealed = Unsealed::default();
        unsealed.enter(1, 10);
        assert!(unsealed.wait_below(2, patience::now()));
        unsealed.enter(2, 20);
        assert!(!unsealed.wait_below(2, patience::now()));
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| unsealed.wait_below(2, patience::now() + patience::PATIENCE));
            unsealed.done(1);
            assert!(waits.join().unwrap());
        });
    }
}
