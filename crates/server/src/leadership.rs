//! Leadership of a server, and its right to answer, if other servers may take over (next: `server/src/replication/lease.rs`).

#[cfg(feature = "nats")]
use crate::replication::Leading;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidemill_wire::v1;
use tokio::sync::Notify;

/// Time after a renewal for which the leader answers.
#[cfg(feature = "nats")]
const VALID: Duration = Duration::from_millis(1000);
/// Time limit for the log to have the last changes at the end of a server.
#[cfg(feature = "nats")]
const LAST: Duration = Duration::from_millis(900);
/// Interval at which a thread looks at an ended lease.
const LOOK: Duration = Duration::from_millis(5);

/// Right of the leader to answer. Before the first renewal the leader may not.
#[derive(Debug)]
pub(crate) struct Lease {
    /// End of the right, in nanoseconds of the clock that also counts the time in which the host is suspended.
    until: AtomicU64,
    /// Whether any server may take over.
    required: AtomicBool,
    /// Whether the server ends and answers nothing any more.
    ended: AtomicBool,
    renewed: Notify,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(0),
            required: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            renewed: Notify::new(),
        }
    }
}

/// Returns the time of the clock of leases.
pub(crate) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Lease {
    fn is_valid(&self) -> bool {
        !self.required.load(Ordering::Acquire) || clock() < self.until.load(Ordering::Acquire)
    }

    /// Waits until the leader may answer. A server that does not lead any more waits until it ends.
    pub(crate) async fn valid(&self) {
        loop {
            let renewed = self.renewed.notified();
            tokio::pin!(renewed);
            renewed.as_mut().enable();
            if self.is_valid() {
                return;
            }
            renewed.await;
        }
    }

    /// Waits as [`Self::valid`] does, for threads outside the runtime. Returns whether the server may answer; not if it ends.
    pub(crate) fn wait_until_valid(&self) -> bool {
        while !self.is_valid() {
            if self.ended.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Makes all threads return that wait for the right.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Makes the right necessary from now on.
    #[cfg(feature = "nats")]
    pub(crate) fn require(&self) {
        self.required.store(true, Ordering::Release);
    }

    /// Extends the right, which was renewed by a request sent at a time.
    #[cfg(feature = "nats")]
    pub(crate) fn renew(&self, sent: u64, required: bool) {
        let valid = u64::try_from(VALID.as_nanos()).unwrap_or(0);
        self.until.store(sent + valid, Ordering::Release);
        self.required.store(required, Ordering::Release);
        self.renewed.notify_waiters();
    }
}

/// Leadership of this server, if it has a replicated log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leadership(#[cfg(feature = "nats")] pub(crate) Option<Arc<Leading>>);

#[cfg(feature = "nats")]
impl Leadership {
    /// Returns the right of this server to answer; `None` if it always may.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        self.0.as_ref().map(|leading| leading.lease.clone())
    }

    /// Returns the reason why no change is acknowledged now.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.0.as_ref()?.trouble()
    }

    /// Returns the state of the replicated log.
    pub(crate) fn state(&self) -> Option<v1::Replication> {
        Some(self.0.as_ref()?.state())
    }

    /// Ends the leadership at the end of the server, after the log has all changes, but in less than a second.
    pub(crate) fn end(&self) {
        if let Some(leading) = &self.0 {
            leading.lease.end();
            leading.replicator.close(LAST);
        }
    }

    /// Waits until this server does not lead any more. Returns the reason, and whether another server leads. Never returns without a
    /// replicated log.
    pub(crate) async fn deposed(&self) -> (String, bool) {
        match &self.0 {
            Some(leading) => {
                let deposed = leading.deposed().await;
                (deposed.to_string(), deposed.by_other)
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(not(feature = "nats"))]
impl Leadership {
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        None
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        None
    }

    pub(crate) fn state(&self) -> Option<v1::Replication> {
        None
    }

    pub(crate) fn end(&self) {}

    pub(crate) async fn deposed(&self) -> (String, bool) {
        std::future::pending().await
    }
}
