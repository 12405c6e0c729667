//! Capabilities that ordinary users hold, so that a change of a file's mode or owner ends them at once, not only with
//! their time. Mounts' are not among them: a mount gives bytes to those only who have the file open.
//!
//! An element is told of each that is ended, and again when it comes back, until all such capabilities are over by
//! themselves. What a server knew before it was started again it has forgotten: those end with their time.

use crate::array::Array;
use crate::clock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_wire::v1::{self, to_element::Message as To};
use tokio::sync::Notify;

/// Files of which users hold capabilities, at most; of those that are too many they end with their time.
const FILES_MAX: usize = 100_000;

/// How often it is looked for elements that have come back.
const LOOK: Duration = Duration::from_secs(1);

/// An object on an element.
type Held = (u32, u64);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    files: Mutex<HashMap<u64, Vec<(Held, u64)>>>,
    /// How many files there are, so that it costs nothing to see that there is none.
    count: AtomicUsize,
    ended: Mutex<Ended>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Ended {
    /// Capabilities for these are no good that expire at this time or before.
    until: BTreeMap<Held, u64>,
    /// What has not been told yet.
    fresh: Vec<Held>,
}

impl Lent {
    /// A capability for an object of a file was given to a user.
    pub(crate) fn on_lent(&self, ino: u64, held: Held, expires_ns: u64) {
        let mut files = self.files.lock();
        if files.len() >= FILES_MAX && !files.contains_key(&ino) {
            let now = clock::now_ns().unsigned_abs();
            files.retain(|_, lent| lent.iter().any(|(_, expires)| *expires > now));
            if files.len() >= FILES_MAX {
                return;
            }
        }
        let lent = files.entry(ino).or_default();
        lent.retain(|(known, _)| *known != held);
        lent.push((held, expires_ns));
        self.count.store(files.len(), Ordering::Release);
    }

    /// Who may do what with a file has changed, and everybody who asks from now on is answered by that.
    pub(crate) fn on_rights_changed(&self, ino: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut files = self.files.lock();
        let lent = files.remove(&ino).unwrap_or_default();
        self.count.store(files.len(), Ordering::Release);
        drop(files);
        let now = clock::now_ns().unsigned_abs();
        let lent = lent.into_iter().filter(|(_, expires)| *expires > now);
        let mut ended = self.ended.lock();
        for (held, expires) in lent {
            ended.until.insert(held, expires);
            ended.fresh.push(held);
        }
        self.news.notify_one();
    }

    /// What elements are to be told, once: all that ended on those that are there anew, else what ended since.
    fn to_tell(&self, anew: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<v1::Revoked>> {
        let now = clock::now_ns().unsigned_abs();
        let mut ended = self.ended.lock();
        ended.until.retain(|_, until| *until > now);
        let fresh = std::mem::take(&mut ended.fresh);
        let mut tell: BTreeMap<u32, Vec<v1::Revoked>> = BTreeMap::new();
        for (held, until_ns) in &ended.until {
            if anew(held.0) || fresh.contains(held) {
                tell.entry(held.0).or_default().push(v1::Revoked {
                    object: held.1,
                    until_ns: *until_ns,
                });
            }
        }
        tell
    }
}

/// Tells elements what has ended, for as long as the server runs.
pub(crate) async fn run(lent: impl AsRef<Lent>, array: Arc<Array>) {
    let lent = lent.as_ref();
    let mut epochs: BTreeMap<u32, u64> = BTreeMap::new();
    loop {
        let _ = tokio::time::timeout(LOOK, lent.news.notified()).await;
        let up = array.up().into_iter();
        let up: BTreeMap<u32, u64> = up
            .filter_map(|element| Some((element, array.epoch(element)?)))
            .collect();
        let anew = |element| up.get(&element) != epochs.get(&element);
        for (element, revoked) in lent.to_tell(anew) {
            array.send(element, To::Revoke(v1::Revoke { revoked }));
        }
        epochs = up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lent_ends_with_the_rights_and_is_told_once_to_each() {
        let lent = Lent::default();
        let soon = clock::now_ns().unsigned_abs() + 1_000_000_000_000;
        lent.on_lent(7, (0, 70), soon);
        lent.on_lent(7, (1, 71), soon + 5);
        lent.on_lent(8, (0, 80), soon);
        lent.on_rights_changed(7);
        lent.on_rights_changed(9);
        let told = lent.to_tell(|_| false);
        assert_eq!(told.len(), 2);
        assert_eq!((told[&0].len(), told[&0][0].object), (1, 70));
        assert_eq!((told[&1][0].object, told[&1][0].until_ns), (71, soon + 5));
        assert!(lent.to_tell(|_| false).is_empty());
        // One that comes back may have forgotten.
        assert_eq!(lent.to_tell(|element| element == 1).len(), 1);
    }

    #[test]
    fn what_is_over_by_itself_is_not_told() {
        let lent = Lent::default();
        lent.on_lent(7, (0, 70), 1);
        lent.on_rights_changed(7);
        assert!(lent.to_tell(|_| true).is_empty());
    }
}
