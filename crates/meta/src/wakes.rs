//! Signals that wake the timed work of the server (next: `server/src/chores.rs`).
//!
//! Each commit that changed a row sends [`COMMIT`], so work that looks for its rows when it is woken misses no row. State that is only in
//! memory has signals of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use tidemill_model::timers::Signals;
use tokio::sync::Notify;

/// A commit changed the database.
pub const COMMIT: Signals = Signals(1);
/// A node connected, disconnected, or changed in a way that concerns the placement of work.
pub const NODES: Signals = Signals(1 << 1);
/// A mount connected or disconnected.
pub const MOUNTS: Signals = Signals(1 << 2);
/// A reader or a job released an object.
pub const RELEASED: Signals = Signals(1 << 3);

/// The free space of a node of the burst tier has changed.
pub const FILLED: Signals = Signals(1 << 4);
/// A capability was revoked.
pub const REVOKED: Signals = Signals(1 << 6);
/// The state of a node that is, or may be, suspended has changed.
pub const SUSPENSIONS: Signals = Signals(1 << 7);
/// The log of the database, or the copy of the log on a node, has changed.
pub const LOGGED: Signals = Signals(1 << 8);

/// Signals that have arrived and that no work has handled yet. One task waits for them.
#[derive(Debug, Default)]
pub struct Wakes {
    arrived: AtomicU32,
    news: Notify,
}

impl Wakes {
    /// Sends signals. The state to which the signals belong must have changed before.
    pub fn wake(&self, signals: Signals) {
        let before = self.arrived.fetch_or(signals.0, Ordering::AcqRel);
        if before & signals.0 != signals.0 {
            self.news.notify_one();
        }
    }

    /// Returns the signals that have arrived since the last call.
    pub fn take(&self) -> Signals {
        Signals(self.arrived.swap(0, Ordering::AcqRel))
    }

    /// Waits until a signal arrives after the last call of [`Self::take`].
    pub async fn woken(&self) {
        self.news.notified().await;
    }
}
