//! Ends the versions of writers that have disconnected, in all circumstances: this module asks nodes to seal objects, and changes the
//! namespace. Next: `meta/src`, which applies the requests.
//!
//! The table of unsealed versions is the list of open work. A restart of the server therefore loses no version, and each failed step is
//! retried. A version that a lost mount was writing is sealed with the content that reached the node, as after an ordinary close. The
//! server retries the seal until the node is connected and able to seal. A version that another client began is aborted when that client
//! has been silent for too long.

use crate::chores::{Chore, Due, Step};
use crate::clock;
use crate::cluster::Cluster;
use crate::locks::Locks;
use crate::session::Sessions;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::Trust;
use tidemill_client::objects::Objects;
use tidemill_meta::wakes::{COMMIT, MOUNTS, NODES, Wakes};
use tidemill_meta::{
    Caller, Fault, Names, NamesRequest, SILENCE_NS_MAX, Unfinished, UnsealedCount,
};
use tidemill_model::backoff::Backoff;
use tidemill_model::layout::PartOf;
use tidemill_model::timers::Signals;
use tidemill_wire::capability::Attributes;
use tidemill_wire::route::{self, SealResult};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Reason shown for a version of a lost mount that is not sealed yet, if no error occurred.
pub(crate) const ABOUT_TO_BE_SEALED: &str = "about to be sealed for a lost mount";

/// Pauses between two attempts at one node.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Maximum number of versions that a node seals in one request.
const BATCH_MAX: usize = 256;

/// HTTP status of a node's answer about an object that does not exist on the node.
const NOT_FOUND: u16 = 404;
const SEALED: u16 = 200;

/// The task that ends versions of disconnected writers, as described in the module's documentation.
#[derive(Debug)]
pub(crate) struct OrphanedVersions {
    names: Arc<dyn Names>,
    locks: Locks,
    cluster: Arc<Cluster>,
    sessions: Sessions,
    objects: Objects,
    wakes: Arc<Wakes>,
    started: i64,
    /// Nodes with versions to end, and the progress of each node.
    trials: Mutex<BTreeMap<u32, NodeAttempts>>,
}

/// Progress of the attempts to end versions on one node.
#[derive(Debug)]
struct NodeAttempts {
    busy: bool,
    next: Instant,
    pauses: Backoff,
    /// Number of the node's connection at the last attempt; `None` if the node was offline.
    epoch: Option<u64>,
    /// Reason why the last attempt failed.
    why: String,
}

impl OrphanedVersions {
    pub(crate) fn new(
        names: Arc<dyn Names>,
        locks: &Locks,
        cluster: &Arc<Cluster>,
        sessions: &Sessions,
        (trust, wakes): (&Trust, &Arc<Wakes>),
    ) -> Arc<Self> {
        Arc::new(Self {
            names,
            locks: locks.clone(),
            cluster: cluster.clone(),
            sessions: sessions.clone(),
            objects: Objects::new(Some(trust)),
            wakes: wakes.clone(),
            started: clock::now_ns(),
            trials: Mutex::default(),
        })
    }

    /// Returns the unsealed versions. The server waits for the mounts that write them or hold locks, for the time limit of mounts.
    fn unsealed_counts(&self) -> Result<Vec<UnsealedCount>, Fault> {
        let unsealed = self.names.unsealed()?;
        let writers = unsealed.iter().map(|writer| writer.session);
        for session in writers.chain(self.locks.mounts()) {
            if session != 0 {
                self.sessions.expect(session);
            }
        }
        Ok(unsealed)
    }

    /// Returns the time until the next work; `None` if only a signal can cause work.
    fn next(&self, now: i64) -> Result<Option<Duration>, Fault> {
        let unsealed = self.unsealed_counts()?;
        let writes = |session| unsealed.iter().any(|writer| writer.session == session);
        let has_ended = |session: &u64| self.sessions.has_ended(*session);
        let mut held = self.locks.mounts().into_iter().filter(has_ended);
        if held.any(|session| !writes(session)) {
            return Ok(Some(Duration::ZERO));
        }
        let mut next: Vec<Duration> = self.sessions.next_end().into_iter().collect();
        for writer in &unsealed {
            if writer.session == 0 {
                let silent = writer
                    .oldest
                    .max(self.started)
                    .saturating_add(SILENCE_NS_MAX + 1);
                next.extend(Due::At(silent).left(now));
            } else if has_ended(&writer.session) {
                next.extend(self.next_attempt(writer.node));
            }
        }
        Ok(next.into_iter().min())
    }

    /// Returns the time until the next attempt at a node; `None` while an attempt runs or the node is offline.
    fn next_attempt(&self, node: u32) -> Option<Duration> {
        let trials = self.trials.lock();
        let Some(trial) = trials.get(&node) else {
            return Some(Duration::ZERO);
        };
        match self.cluster.epoch(node) {
            epoch if epoch != trial.epoch => Some(Duration::ZERO),
            Some(_) if !trial.busy => Some(trial.next.saturating_duration_since(Instant::now())),
            _ => None,
        }
    }

    async fn look(self: &Arc<Self>) -> Result<(), Fault> {
        let unsealed = self.unsealed_counts()?;
        for session in self.sessions.end() {
            self.names.end_session(session).await?;
        }
        let now = clock::now_ns();
        let silent =
            |writer: &UnsealedCount| writer.session == 0 && now - writer.oldest > SILENCE_NS_MAX;
        // While the server was down, no client could report that it still writes.
        if now - self.started > SILENCE_NS_MAX && unsealed.iter().any(silent) {
            self.names.abandon_silent().await?;
        }
        let mut lost: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for writer in &unsealed {
            if writer.session != 0 && self.sessions.has_ended(writer.session) {
                lost.entry(writer.node).or_default().push(writer.session);
            }
        }
        // The writes that a mount's locks allowed to its programs have ended before other mounts get the locks.
        let writes = |session| unsealed.iter().any(|writer| writer.session == session);
        for session in self.locks.mounts() {
            if self.sessions.has_ended(session) && !writes(session) {
                self.locks.abandon(session).await?;
            }
        }
        self.sessions
            .forget_all_but(|session| unsealed.iter().any(|writer| writer.session == session));
        let mut trials = self.trials.lock();
        trials.retain(|node, trial| trial.busy || lost.contains_key(node));
        drop(trials);
        for (node, sessions) in lost {
            self.try_to_end(node, sessions);
        }
        Ok(())
    }

    /// Starts to end the versions that these mounts were writing on a node, if the node is up and the pause has passed.
    fn try_to_end(self: &Arc<Self>, node: u32, sessions: Vec<u64>) {
        let now = Instant::now();
        let epoch = self.cluster.epoch(node);
        let mut trials = self.trials.lock();
        let trial = trials.entry(node).or_insert(NodeAttempts {
            busy: false,
            next: now,
            pauses: AGAIN,
            epoch,
            why: String::new(),
        });
        if trial.epoch != epoch {
            // The node has reconnected.
            (trial.epoch, trial.pauses, trial.next) = (epoch, AGAIN, now);
        }
        if epoch.is_none() {
            trial.fails(node, format!("node {node} is offline"));
            return;
        }
        if trial.busy || now < trial.next {
            return;
        }
        trial.busy = true;
        drop(trials);
        let ends = self.clone();
        tokio::spawn(async move {
            let why = ends.end(node, &sessions).await;
            let mut trials = ends.trials.lock();
            if let Some(trial) = trials.get_mut(&node) {
                trial.busy = false;
                trial.next = Instant::now() + trial.pauses.pause();
                if let Err(why) = why {
                    trial.fails(node, why);
                }
            }
            drop(trials);
            ends.wakes.wake(MOUNTS);
        });
    }

    /// Ends as many versions as possible on a node. If versions remain, returns the reason as an error.
    async fn end(&self, node: u32, sessions: &[u64]) -> Result<(), String> {
        let mut left = Ok(());
        for &session in sessions {
            let mut after = 0;
            // A mount that has reconnected seals for itself.
            while self.sessions.has_ended(session) {
                let writer = (session, node);
                let unfinished = self.names.unfinished(writer, after, BATCH_MAX);
                let unfinished = unfinished.map_err(|fault| fault.to_string())?;
                let Some(last) = unfinished.last() else { break };
                after = last.object;
                let versions: Vec<_> = unfinished
                    .iter()
                    .map(|version| (version.object, attributes(version)))
                    .collect();
                let results = self
                    .cluster
                    .seal_all(&self.objects, node, &versions)
                    .await?;
                for (version, result) in unfinished.iter().zip(results) {
                    if let Err(why) = self.keep(version, result).await {
                        left = Err(why);
                    }
                }
            }
        }
        left
    }

    /// Applies the result of a node's seal to the namespace.
    async fn keep(&self, version: &Unfinished, result: SealResult) -> Result<(), String> {
        let Unfinished { ino, object, .. } = *version;
        let op = match result.status {
            SEALED => Op::Seal(v1::Seal {
                ino,
                object,
                size: result.size,
                mtime: 0,
                receipts: route::parse_hex(&result.receipt).into_iter().collect(),
                ..v1::Seal::default()
            }),
            // No byte of the version reached the node.
            NOT_FOUND => Op::Abandon(v1::Abandon {
                ino,
                object: version.version,
            }),
            _ => return Err(format!("object {object:016x}: {}", result.message)),
        };
        let path = String::from_utf8_lossy(&version.path);
        match &op {
            Op::Seal(_) => {
                tracing::info!(%path, object, size = result.size, "a version that a lost mount was writing is sealed")
            }
            _ => {
                tracing::info!(%path, object, "a version that a lost mount had not begun to write is aborted")
            }
        }
        let request = NamesRequest {
            caller: Caller::root(),
            ops: vec![v1::NameOp { op: Some(op) }],
            ..NamesRequest::default()
        };
        let answers = self.names.apply(request).await;
        let answers = answers.map_err(|fault| fault.to_string())?;
        match answers.into_iter().next().and_then(|answer| answer.result) {
            Some(Answer::Error(error)) => Err(format!("object {object:016x}: {}", error.message)),
            _ => Ok(()),
        }
    }

    /// Returns the unsealed versions of disconnected writers, with the reason why each is not sealed.
    pub(crate) fn unsealed(&self) -> Result<Vec<v1::Unsealed>, Fault> {
        let unsealed = self.names.unsealed()?;
        let trials = self.trials.lock();
        let shown = unsealed.into_iter().map(|writer| {
            let UnsealedCount { session, node, .. } = writer;
            let ended = session != 0 && self.sessions.has_ended(session);
            let tried = trials
                .get(&node)
                .filter(|trial| ended && !trial.why.is_empty());
            let why = match (tried, self.cluster.trouble(node)) {
                (Some(trial), _) => trial.why.clone(),
                (None, Some(trouble)) => trouble,
                (None, None) if ended => ABOUT_TO_BE_SEALED.into(),
                (None, None) if session == 0 => "being written by a client".into(),
                (None, None) if self.sessions.is_present(session) => "being written".into(),
                (None, None) => "its mount is offline".into(),
            };
            v1::Unsealed {
                node,
                session,
                versions: writer.versions,
                oldest: writer.oldest,
                ended,
                why,
            }
        });
        Ok(shown.collect())
    }
}

/// Ends versions of disconnected writers.
pub(crate) struct LostWriters(pub(crate) Arc<OrphanedVersions>);

impl Chore for LostWriters {
    fn delays(&self) -> &'static str {
        "versions of lost writers can't be ended yet"
    }

    fn woken_by(&self) -> Signals {
        COMMIT.and(NODES).and(MOUNTS)
    }

    fn due(&mut self, now: i64) -> Result<Due, Fault> {
        Ok(self.0.next(now)?.map_or(Due::Woken, Due::After))
    }

    fn step(&mut self, _: i64) -> Step<'_> {
        Box::pin(async { self.0.look().await.map(|()| Due::NOW) })
    }
}

impl NodeAttempts {
    /// Records the reason of a failure at a node. Each reason is logged once.
    fn fails(&mut self, node: u32, why: String) {
        if self.why != why {
            tracing::warn!(
                node,
                why,
                "versions that lost mounts were writing can't be sealed yet; the server retries without limit"
            );
            self.why = why;
        }
    }
}

fn attributes(version: &Unfinished) -> Attributes {
    let (uid, gid) = version.owner;
    Attributes {
        inode: version.ino,
        uid,
        gid,
        mode: version.mode,
        part: version.part.map(PartOf::to_bytes),
        path: version.path.clone(),
    }
}
