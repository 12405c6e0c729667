//! Labels in NATS JetStream: one stream for the cluster, one subject for each node. This module sends labels to and receives labels from
//! the NATS servers.
//!
//! A separate task keeps a [session](session::NatsSession) with the NATS servers. When a call fails, the session is closed and the task
//! opens another session, retrying as often as necessary. Until then calls fail at once, so that a caller waits only once, and briefly, for
//! a server that hangs. A session begins by receiving all labels in the stream, so it needs no state of the previous session.

mod in_flight;
mod sealed;
mod session;

use super::{Address, LabelQueue, Unavailable};
use crate::nats::CallError;
use parking_lot::{Condvar, Mutex};
use sealed::Seal;
use session::NatsSession;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::Label;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

/// Pause before another attempt to open a session with the NATS servers.
const REST: Duration = Duration::from_millis(500);

/// Maximum wait of the first call until the first session is open.
const FIRST: Duration = Duration::from_secs(2);

/// Identity of the cluster and of its queue in NATS.
#[derive(Clone)]
struct QueueIdentity {
    address: Address,
    cluster: u64,
    seal: Seal,
}

/// The queue of labels in NATS, as described in the module's documentation.
pub struct Nats {
    address: Address,
    calls: Mutex<NatsCalls>,
    opener: Arc<SessionOpener>,
    runtime: Option<Runtime>,
}

#[derive(Debug, Default)]
struct NatsCalls {
    session: Option<NatsSession>,
    /// Reason why no session is open.
    why: Option<CallError>,
}

/// State that callers share with the task that opens sessions.
#[derive(Debug, Default)]
struct SessionOpener {
    /// Last result of opening a session, until a caller takes the result.
    news: Mutex<Option<Result<NatsSession, CallError>>>,
    signal: Condvar,
    wanted: Notify,
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nats")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Nats {
    /// Starts the queue of a cluster. Only daemons of the cluster know `key`: labels that were not signed with `key` are removed from the
    /// queue and not delivered.
    ///
    /// # Errors
    /// If the operating system can't create threads for the queue. Unreachable NATS servers are no error.
    pub fn start(address: Address, cluster: u64, key: &[u8]) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("queue")
            .enable_all()
            .build()?;
        let opener = Arc::new(SessionOpener::default());
        let seal = Seal::new(key);
        let place = QueueIdentity {
            address: address.clone(),
            cluster,
            seal,
        };
        runtime.spawn(keep_open(place, opener.clone()));
        Ok(Self {
            address,
            calls: Mutex::default(),
            opener,
            runtime: Some(runtime),
        })
    }

    fn call<T>(
        &self,
        what: impl AsyncFnOnce(&mut NatsSession) -> Result<T, CallError>,
    ) -> Result<T, Unavailable> {
        let mut calls = self.calls.lock();
        let unavailable = |why: &str| Unavailable(format!("{}: {why}", self.address));
        let runtime = self
            .runtime
            .as_ref()
            .ok_or_else(|| unavailable("it has ended"))?;
        self.look(&mut calls);
        let Some(session) = &mut calls.session else {
            return Err(unavailable(
                calls.why.as_deref().unwrap_or("it does not answer"),
            ));
        };
        match runtime.block_on(what(session)) {
            Ok(done) => Ok(done),
            Err(why) => {
                let failed = unavailable(&why);
                calls.session = None;
                calls.why = Some(why);
                self.opener.wanted.notify_one();
                Err(failed)
            }
        }
    }

    /// Takes a session that the task has opened, if the caller has no session.
    fn look(&self, calls: &mut NatsCalls) {
        if calls.session.is_some() {
            return;
        }
        let mut news = self.opener.news.lock();
        if news.is_none() && calls.why.is_none() {
            self.opener.signal.wait_for(&mut news, FIRST);
        }
        match news.take() {
            Some(Ok(session)) => calls.session = Some(session),
            Some(Err(why)) => calls.why = Some(why),
            None => {}
        }
    }
}

/// Opens a session, and opens another session whenever a caller requests it.
async fn keep_open(place: QueueIdentity, opener: Arc<SessionOpener>) {
    loop {
        loop {
            let opened = NatsSession::open(&place).await;
            let is_open = opened.is_ok();
            *opener.news.lock() = Some(opened);
            opener.signal.notify_all();
            if is_open {
                break;
            }
            tokio::time::sleep(REST).await;
        }
        opener.wanted.notified().await;
    }
}

impl LabelQueue for Nats {
    fn enqueue(&self, node: NodeId, labels: Vec<Label>) -> Result<(), Unavailable> {
        self.call(async |session| session.enqueue(node, labels).await)
    }

    fn fetch(&self, node: NodeId) -> Result<Vec<Label>, Unavailable> {
        self.call(async |session| {
            session.pull().await?;
            Ok(session.held.take(node))
        })
    }

    fn acknowledge(&self, node: NodeId, labels: &[LabelId]) -> Result<(), Unavailable> {
        self.call(async |session| session.acknowledge(node, labels).await)
    }

    fn redeliver(&self, node: NodeId, known: &BTreeSet<LabelId>) -> Result<(), Unavailable> {
        self.call(async |session| {
            session.pull().await?;
            session.held.again(node, known);
            Ok(())
        })
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
