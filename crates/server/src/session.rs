//! Sessions of mounts: which mounts are connected, and since when other mounts are offline. [`crate::orphaned_versions`] seals or aborts
//! the versions that lost mounts were writing.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_meta::wakes::{MOUNTS, Wakes};
use tidemill_wire::v1;

/// Connected and offline mounts that the server knows.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    mounts: Arc<Mutex<Mounts>>,
    timeout: Duration,
    wakes: Arc<Wakes>,
}

#[derive(Debug, Default)]
struct Mounts {
    present: BTreeMap<u64, Present>,
    offline: BTreeMap<u64, Offline>,
}

#[derive(Debug)]
struct Present {
    mount: v1::Mount,
    streams: u32,
}

/// A mount that has files open and no connected stream.
#[derive(Debug)]
struct Offline {
    since: Instant,
    /// Whether the mount was offline for so long that the server closed its open files.
    ended: bool,
}

/// Connected stream of a mount. When the mount's last stream is dropped, the mount becomes offline.
#[derive(Debug)]
pub(crate) struct MountStream {
    session: u64,
    sessions: Sessions,
}

impl Drop for MountStream {
    fn drop(&mut self) {
        let mut mounts = self.sessions.mounts.lock();
        let Some(present) = mounts.present.get_mut(&self.session) else {
            return;
        };
        present.streams -= 1;
        if present.streams == 0 {
            mounts.present.remove(&self.session);
            mounts.offline.insert(self.session, Offline::now());
            drop(mounts);
            self.sessions.wakes.wake(MOUNTS);
        }
    }
}

impl Offline {
    fn now() -> Self {
        Self {
            since: Instant::now(),
            ended: false,
        }
    }
}

impl Sessions {
    /// Creates the list of mounts. A mount may be offline for `timeout` before its files are closed.
    pub(crate) fn new(timeout: Duration, wakes: Arc<Wakes>) -> Self {
        let sessions = Self {
            mounts: Arc::default(),
            timeout,
            wakes,
        };
        // No mount has the number 0. Its end stands for the end of all clients that an earlier run of the server knew to have files open.
        sessions.expect(0);
        sessions
    }

    /// Registers the start of a mount's stream.
    pub(crate) fn arrive(&self, mount: v1::Mount) -> MountStream {
        let session = mount.session;
        let mut mounts = self.mounts.lock();
        mounts.offline.remove(&session);
        let known = mounts.present.entry(session);
        known.or_insert(Present { mount, streams: 0 }).streams += 1;
        MountStream {
            session,
            sessions: self.clone(),
        }
    }

    /// Returns the connected mounts.
    pub(crate) fn mounts(&self) -> Vec<v1::Mount> {
        let mounts = self.mounts.lock();
        mounts.present.values().map(|p| p.mount.clone()).collect()
    }

    /// Registers that a mount has files open. If the mount is not connected, it counts as offline from now on.
    pub(crate) fn expect(&self, session: u64) {
        let mut mounts = self.mounts.lock();
        if !mounts.present.contains_key(&session) {
            mounts.offline.entry(session).or_insert_with(Offline::now);
        }
    }

    /// Returns the time until the timeout of another mount has passed, if any mount is offline.
    pub(crate) fn next_end(&self) -> Option<Duration> {
        let mounts = self.mounts.lock();
        let waiting = mounts.offline.values().filter(|offline| !offline.ended);
        let left = waiting.map(|one| self.timeout.saturating_sub(one.since.elapsed()));
        left.min()
    }

    /// Returns the mounts whose timeout has passed since the last call, each mount once.
    pub(crate) fn end(&self) -> Vec<u64> {
        let mut mounts = self.mounts.lock();
        let late = |offline: &Offline| !offline.ended && offline.since.elapsed() >= self.timeout;
        let ending = mounts
            .offline
            .iter_mut()
            .filter(|(_, offline)| late(offline));
        ending
            .map(|(&session, offline)| {
                offline.ended = true;
                session
            })
            .collect()
    }

    /// Whether a mount was offline for longer than the timeout, so that its files were closed.
    pub(crate) fn has_ended(&self, session: u64) -> bool {
        let mounts = self.mounts.lock();
        mounts
            .offline
            .get(&session)
            .is_some_and(|offline| offline.ended)
    }

    /// Whether a mount's stream is open.
    pub(crate) fn is_present(&self, session: u64) -> bool {
        self.mounts.lock().present.contains_key(&session)
    }

    /// Removes mounts from the list that have ended and for which no work is left.
    pub(crate) fn forget_all_but(&self, left: impl Fn(u64) -> bool) {
        let mut mounts = self.mounts.lock();
        mounts
            .offline
            .retain(|&session, offline| !offline.ended || left(session));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(session: u64) -> v1::Mount {
        v1::Mount {
            session,
            ..v1::Mount::default()
        }
    }

    #[test]
    fn mount_is_offline_after_last_stream_and_online_with_next_stream() {
        let sessions = Sessions::new(Duration::ZERO, Arc::default());
        let (first, second) = (sessions.arrive(mount(7)), sessions.arrive(mount(7)));
        assert_eq!(sessions.end(), [0]);
        drop(first);
        assert_eq!((sessions.end(), sessions.is_present(7)), (vec![], true));
        drop(second);
        assert_eq!((sessions.end(), sessions.is_present(7)), (vec![7], false));
        assert_eq!((sessions.end(), sessions.has_ended(7)), (vec![], true));
        sessions.forget_all_but(|session| session == 7);
        assert!(sessions.has_ended(7) && !sessions.has_ended(0));
        let back = sessions.arrive(mount(7));
        assert!(!sessions.has_ended(7) && sessions.mounts().len() == 1);
        drop(back);
        sessions.expect(8);
        assert_eq!(sessions.end(), [7, 8]);
    }

    #[test]
    fn mount_session_offline_for_less_than_timeout_has_not_ended() {
        let sessions = Sessions::new(Duration::from_secs(1000), Arc::default());
        drop(sessions.arrive(mount(7)));
        assert!(sessions.end().is_empty() && !sessions.has_ended(7));
        sessions.forget_all_but(|_| false);
        assert!(sessions.mounts.lock().offline.contains_key(&7));
    }
}
