//! Notifies watchers of namespace changes. The session that caused a change is not notified, so a change by the only mount wakes no task.

use super::{Change, Changed};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{self, Receiver};
use tokio::sync::{Notify, futures::Notified};

/// Maximum number of commits that a watcher may lag. A watcher that lags further must drop its whole cache.
const CHANGES_MAX: usize = 4096;

/// Number of watchers of each session.
type SessionWatchers = Mutex<BTreeMap<u64, usize>>;

/// Sender of namespace changes to all watchers.
#[derive(Clone, Debug)]
pub struct ChangeSender {
    sender: broadcast::Sender<Arc<Changed>>,
    own: Arc<SessionWatchers>,
    files: Arc<Notify>,
    rights: Arc<AtomicBool>,
}

/// Stream of namespace changes for one watcher.
#[derive(Debug)]
pub struct Changes {
    receiver: Receiver<Arc<Changed>>,
    own: Arc<SessionWatchers>,
    session: Option<u64>,
}

impl ChangeSender {
    /// Returns a sender without watchers.
    pub(crate) fn new() -> Self {
        Self {
            sender: broadcast::channel(CHANGES_MAX).0,
            own: Arc::default(),
            files: Arc::default(),
            rights: Arc::default(),
        }
    }

    /// Sends the changes of a commit to all watchers; called after the commit.
    pub fn tell(&self, changed: Changed) {
        if changed.changes.is_empty() {
            return;
        }
        let of_rights = |change: &Change| matches!(change, Change::Rights(_));
        let of_files = |change: &Change| matches!(change, Change::Sealed(_) | Change::Moved);
        if changed.changes.iter().any(of_rights) {
            self.rights.store(true, Ordering::Release);
            self.files.notify_one();
        } else if changed.changes.iter().any(of_files) {
            self.files.notify_one();
        }
        let knowing = self.own.lock().get(&changed.session).copied();
        if knowing.unwrap_or(0) < self.sender.receiver_count() {
            // Without receivers no notice is needed.
            let _ = self.sender.send(Arc::new(changed));
        }
    }

    /// Returns a stream of all namespace changes from now on.
    pub fn changes(&self) -> Changes {
        Changes {
            receiver: self.sender.subscribe(),
            own: self.own.clone(),
            session: None,
        }
    }

    /// Waits until the feed has new rows or permissions have changed since the last call. Only one task may wait.
    pub fn files(&self) -> Notified<'_> {
        self.files.notified()
    }

    /// Returns whether permissions have changed since the last call. The feed has no rows about them.
    pub fn rights_changed(&self) -> bool {
        self.rights.swap(false, Ordering::AcqRel)
    }
}

impl Changes {
    /// Excludes the changes that this session causes. Call this once.
    pub fn leave_out(&mut self, session: u64) {
        self.session = Some(session);
        *self.own.lock().entry(session).or_default() += 1;
    }

    /// Returns the next change, or `None` if no change has arrived.
    pub fn next_now(&mut self) -> Option<Result<Arc<Changed>, RecvError>> {
        loop {
            match self.receiver.try_recv() {
                Ok(received) if self.session == Some(received.session) => {}
                Ok(received) => return Some(Ok(received)),
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Closed) => return Some(Err(RecvError::Closed)),
                Err(TryRecvError::Lagged(count)) => return Some(Err(RecvError::Lagged(count))),
            }
        }
    }

    /// Waits for the next change.
    pub async fn next(&mut self) -> Result<Arc<Changed>, RecvError> {
        loop {
            let received = self.receiver.recv().await?;
            if self.session != Some(received.session) {
                return Ok(received);
            }
        }
    }
}

impl Drop for Changes {
    // Runs before the receiver is dropped: the count of a session's watchers must never exceed their real number.
    fn drop(&mut self) {
        let Some(session) = self.session else { return };
        let mut own = self.own.lock();
        if let Some(count) = own.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                own.remove(&session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(session: u64, ino: u64) -> Changed {
        Changed {
            session,
            changes: vec![Change::Vnode(ino)],
        }
    }

    #[tokio::test]
    async fn change_stream_skips_changes_of_own_session() {
        let teller = ChangeSender::new();
        let mut first = teller.changes();
        first.leave_out(1);
        teller.tell(changed(1, 10));
        assert!(first.receiver.is_empty());
        let mut second = teller.changes();
        teller.tell(changed(1, 11));
        second.leave_out(2);
        teller.tell(changed(2, 12));
        assert_eq!(second.next().await.unwrap().session, 1);
        assert_eq!(first.next().await.unwrap().session, 2);
        drop(first);
        teller.tell(changed(1, 13));
        assert_eq!(second.next().await.unwrap().session, 1);
        assert!(second.receiver.is_empty());
    }
}
