//! Calls that wait for changes: of files that match a pattern, or of one file. Only changes that concern a call wake it: while any call
//! waits, one task reads the new rows of the feed for all calls.

use crate::namespace_service::refused;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tidemill_meta::changes::Changes;
use tidemill_meta::feed::{self, AwaitedPath, FeedRow};
use tidemill_meta::{Change, SqliteNames};
use tidemill_model::glob::Pattern;
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::AbortHandle;
use tonic::Status;

/// Number of rows of the feed that are read at once for the waiting calls.
const ROWS: i64 = 4096;

/// Changes for which a call waits.
#[derive(Debug)]
pub(crate) enum Interest {
    /// Versions under paths that match a pattern.
    Events(Pattern),
    /// A sealed version at one path.
    File(AwaitedPath),
}

impl Interest {
    fn concerns(&self, row: &FeedRow) -> bool {
        match self {
            Self::Events(pattern) => row.concerns(pattern),
            Self::File(awaited) => awaited.is_concerned(row),
        }
    }
}

/// All calls that wait for changes.
#[derive(Debug, Default)]
pub(crate) struct FeedWaiters(Mutex<WaitingCalls>);

#[derive(Debug, Default)]
struct WaitingCalls {
    next: u64,
    all: HashMap<u64, (Interest, Arc<Notify>)>,
    /// Task that reads the feed as long as any call waits. A single mount's own changes do not wake it.
    listener: Option<AbortHandle>,
}

/// A call that waits for changes; dropping this value ends the wait.
#[derive(Debug)]
pub(crate) struct CallWaiter {
    waiters: Arc<FeedWaiters>,
    number: u64,
    bell: Arc<Notify>,
}

impl FeedWaiters {
    /// Adds a waiting call. Changes that are committed from now on wake the call.
    pub(crate) fn enter(
        self: &Arc<Self>,
        names: &Arc<SqliteNames>,
        interest: Interest,
    ) -> Result<CallWaiter, Status> {
        let mut waiting = self.0.lock();
        if waiting.listener.is_none() {
            let changes = names.teller().changes();
            let last = names.database().read(feed::last);
            let last = last.map_err(|fault| refused(&fault))?;
            let listen = listen(changes, names.clone(), last, self.clone());
            waiting.listener = Some(tokio::spawn(listen).abort_handle());
        }
        waiting.next += 1;
        let (number, bell) = (waiting.next, Arc::new(Notify::new()));
        waiting.all.insert(number, (interest, bell.clone()));
        let waiters = self.clone();
        Ok(CallWaiter {
            waiters,
            number,
            bell,
        })
    }

    fn ring(&self, row: &FeedRow) {
        let waiting = self.0.lock();
        let concerned = waiting
            .all
            .values()
            .filter(|(interest, _)| interest.concerns(row));
        concerned.for_each(|(_, bell)| bell.notify_one());
    }

    fn ring_all(&self) {
        let waiting = self.0.lock();
        waiting.all.values().for_each(|(_, bell)| bell.notify_one());
    }
}

impl CallWaiter {
    /// Waits until a change concerns the call. A change since the last wait ends the wait at once.
    pub(crate) async fn woken(&self) {
        self.bell.notified().await;
    }

    /// Sets the state of the path of a call that waits for a file. Returns whether the state is another one than before.
    pub(crate) fn set(&self, awaited: AwaitedPath) -> bool {
        let mut waiting = self.waiters.0.lock();
        match waiting.all.get_mut(&self.number) {
            Some((Interest::File(known), _)) if *known != awaited => {
                *known = awaited;
                true
            }
            _ => false,
        }
    }
}

impl Drop for CallWaiter {
    fn drop(&mut self) {
        let mut waiting = self.waiters.0.lock();
        waiting.all.remove(&self.number);
        if waiting.all.is_empty()
            && let Some(listener) = waiting.listener.take()
        {
            listener.abort();
        }
    }
}

/// Reads the committed rows of the feed, once for all waiting calls.
async fn listen(
    mut changes: Changes,
    names: Arc<SqliteNames>,
    mut last: i64,
    waiters: Arc<FeedWaiters>,
) {
    loop {
        let came = match changes.next().await {
            Ok(changed) => {
                let came = |change: &Change| matches!(change, Change::Sealed(_) | Change::Moved);
                changed.changes.iter().any(came)
            }
            Err(RecvError::Lagged(_)) => true,
            Err(RecvError::Closed) => return,
        };
        if !came {
            continue;
        }
        loop {
            let rows = names.database().read(|db| {
                let floor = feed::floor(db)?;
                Ok((floor, feed::rows(db, (last, i64::MAX), ROWS)?))
            });
            let Ok((floor, rows)) = rows else {
                // The missed rows may concern any call.
                waiters.ring_all();
                break;
            };
            if last < floor {
                waiters.ring_all();
            }
            let Some(newest) = rows.last() else { break };
            last = newest.seq;
            rows.iter().for_each(|row| waiters.ring(row));
            tokio::task::yield_now().await;
        }
    }
}
