//! gRPC service of the cluster: status requests, and the streams of nodes. Next: `server/src/cluster.rs`, which handles nodes' messages.

use crate::access::Access;
use crate::check::Check;
use crate::clock;
use crate::cluster::{Cluster, outbox};
use crate::conditions::ConditionService;
use crate::log_copies;
use crate::namespace_service::refused;
use crate::orphaned_versions::OrphanedVersions;
use crate::rules::batches;
use crate::rules::deferred::Deferred;
use crate::session::Sessions;
use futures_util::{Stream, StreamExt};
use std::pin::Pin;
use std::sync::Arc;
use tidemill_compute::is_builtin;
use tidemill_meta::ids;
use tidemill_meta::placement::burst;
use tidemill_meta::placement::under_replicated;
use tidemill_meta::{Fault, SqliteNames};
use tidemill_model::label::Owner;
use tidemill_wire::convert::BURST;
use tidemill_wire::v1::{self, from_node::Message as From};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

/// The gRPC service of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterService {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) access: Arc<Access>,
    pub(crate) default_policy: String,
    pub(crate) policies: Vec<String>,
    pub(crate) started: i64,
    pub(crate) sessions: Sessions,
    pub(crate) orphaned_versions: Arc<OrphanedVersions>,
    pub(crate) check: Check,
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) conditions: ConditionService,
}

impl ClusterService {
    /// Raises the server's counters of ids above all ids that a node of this cluster has stored.
    async fn skip_used_ids(&self, hello: &v1::Hello) -> Result<(), Status> {
        let Some(used) = hello.used.filter(|_| hello.cluster_id == self.cluster.id()) else {
            return Ok(());
        };
        let database = self.names.database();
        let behind = database.read(|db| ids::counters_behind(db, &used));
        let behind = behind.map_err(|fault| refused(&fault))?;
        if behind.is_empty() {
            return Ok(());
        }
        let node = hello.node.as_ref().map_or(0, |node| node.node);
        tracing::warn!(
            node,
            ?behind,
            "the server's database is older than the data of a node; the ids of this data are not issued again"
        );
        let raised = database.write_durable(true, move |db| ids::raise(db, &behind));
        let raised = raised.await.and_then(|committed| committed.on_disk);
        raised.map_err(|fault| refused(&fault))
    }

    /// Opens the stream of a process that waits until its node is to be resumed.
    fn keep(
        &self,
        hello: &v1::Hello,
        sender: mpsc::Sender<v1::ToNode>,
        receiver: mpsc::Receiver<v1::ToNode>,
        mut stream: Streaming<v1::FromNode>,
    ) -> Result<Response<ToNodes>, Status> {
        let (node, number, mut ended) = self.cluster.keep(hello, sender)?;
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            tokio::select! {
                // The process sends nothing, so any message is the end of its stream.
                _ = stream.message() => {}
                _ = ended.changed() => {}
            }
            cluster.unkeep(node, number);
        });
        let receiver = tokio_stream::wrappers::ReceiverStream::new(receiver);
        Ok(Response::new(Box::pin(receiver.map(Ok))))
    }

    /// Returns the hooks whose map tasks lag, and the number of files that are mapped when a burst is over.
    fn hooks(&self) -> Result<(Vec<v1::HookLag>, u64), Fault> {
        let shared = self.names.shared();
        self.names.database().read(|db| {
            let held = Deferred::read(db, shared)?;
            let held = held.count_all(db, &shared.rules, clock::now_ns())?;
            Ok((batches::behind(db, &shared.rules)?, held))
        })
    }

    /// Returns a description of the operations that fail now, and of the reasons; empty if none fails.
    fn trouble(&self) -> String {
        let jobs = self.conditions.signals.trouble.lock().clone();
        let jobs = jobs.map(|(_, why)| why);
        let names = || {
            self.names
                .database()
                .trouble()
                .map(|fault| fault.to_string())
        };
        jobs.or_else(names).unwrap_or_default()
    }
}

/// Maximum number of findings of a check that wait to be sent to a client.
const FINDINGS_MAX: usize = 64;

/// Maximum number of pieces of the log that wait for a slow client.
const PIECES_MAX: usize = 4;

type LogPieces = Pin<Box<dyn Stream<Item = Result<v1::LogPiece, Status>> + Send>>;

type CheckReplies = Pin<Box<dyn Stream<Item = Result<v1::CheckReply, Status>> + Send>>;

type ToNodes = Pin<Box<dyn Stream<Item = Result<v1::ToNode, Status>> + Send>>;

#[tonic::async_trait]
impl v1::cluster_server::Cluster for ClusterService {
    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        let peer = self.access.peer(&request)?;
        let mut nodes = self.cluster.nodes();
        if !peer.administrator {
            // The names of users' own kernels and pipelines are private.
            for node in &mut nodes {
                node.history.retain(|kernel, _| is_builtin(kernel));
            }
        }
        for node in nodes.iter_mut().filter(|one| one.tier == BURST) {
            let staged = self
                .names
                .database()
                .read(|db| burst::reported(db, node.node, clock::now_ns()));
            node.burst_files = Some(staged.map_err(|fault| refused(&fault))?);
        }
        let spaces = self.cluster.spaces();
        let mut replicas = self
            .names
            .database()
            .read(under_replicated::health)
            .map_err(|fault| refused(&fault))?;
        if !peer.administrator {
            replicas.unavailable_paths.clear();
        }
        let conditions = self.conditions.clone();
        let conditions = tokio::task::spawn_blocking(move || conditions.now()).await;
        let conditions = conditions.map_err(|_| refused(&Fault::Closed))?;
        let (hooks_behind, maps_held) = self.hooks().map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::StatusReply {
            capacity_bytes: spaces.capacity_bytes,
            free_bytes: spaces.free_bytes,
            version: tidemill_wire::PROTOCOL_VERSION,
            nodes,
            default_policy: self.default_policy.clone(),
            cluster_id: self.cluster.id(),
            policies: self.policies.clone(),
            started: self.started,
            ca: self.cluster.ca().der().to_vec(),
            mounts: self.sessions.mounts(),
            unsealed: self
                .orphaned_versions
                .unsealed()
                .map_err(|fault| refused(&fault))?,
            trouble: self.trouble(),
            replicas: Some(replicas),
            overflowed: self.cluster.overflowed(),
            hooks_behind,
            maps_held,
            conditions: conditions.map_err(|fault| refused(&fault))?,
            burst_share: self.names.shared().bursts.limits().share.into(),
            replication: self.conditions.leadership.state(),
        }))
    }

    async fn load(
        &self,
        request: Request<v1::LoadRequest>,
    ) -> Result<Response<v1::LoadReply>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let owner = Owner {
            uid: caller.uid,
            gid: caller.gid,
        };
        let node = request.get_ref().node;
        let probed = self.cluster.probe(node, owner).await.unwrap_or_default();
        let loads = self.cluster.loads().await;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let nodes = loads.into_iter().map(|load| v1::NodeLoad {
            node: load.node.0,
            running: count(load.running),
            queued: count(load.queued),
            waiting: count(load.waiting),
            wait_ns: load.wait.0,
            left_ns: load.left.0,
        });
        Ok(Response::new(v1::LoadReply {
            nodes: nodes.collect(),
            share_milli: probed.share_milli,
            processors: probed.processors,
        }))
    }

    type CheckStream = CheckReplies;

    async fn check(
        &self,
        request: Request<v1::CheckRequest>,
    ) -> Result<Response<CheckReplies>, Status> {
        self.access.need_administrator(&request)?;
        let (found, replies) = tokio::sync::mpsc::channel(FINDINGS_MAX);
        let (check, request) = (self.check.clone(), request.into_inner());
        tokio::spawn(async move { check.run(request, found).await });
        let replies = tokio_stream::wrappers::ReceiverStream::new(replies);
        Ok(Response::new(Box::pin(replies)))
    }

    type BackupStream = LogPieces;

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<LogPieces>, Status> {
        self.access.need_administrator(&request)?;
        let log = self.names.database().log().cloned();
        let log = log.ok_or_else(|| Status::unavailable("the server's database has no log"))?;
        let (sender, pieces) = tokio::sync::mpsc::channel(PIECES_MAX);
        let known = request.into_inner().known;
        tokio::task::spawn_blocking(move || log_copies::send(&log, &known, &sender));
        let pieces = tokio_stream::wrappers::ReceiverStream::new(pieces);
        Ok(Response::new(Box::pin(pieces)))
    }

    type AttachStream = ToNodes;

    async fn attach(
        &self,
        request: Request<Streaming<v1::FromNode>>,
    ) -> Result<Response<ToNodes>, Status> {
        self.access.need_administrator(&request)?;
        let mut stream = request.into_inner();
        let first = stream.message().await?.and_then(|message| message.message);
        let Some(From::Hello(hello)) = first else {
            return Err(Status::invalid_argument("a node must say hello first"));
        };
        let (sender, receiver) = outbox();
        if hello.suspended {
            return self.keep(&hello, sender, receiver, stream);
        }
        self.skip_used_ids(&hello).await?;
        let (node, epoch, mut ended) = self.cluster.join(hello, sender)?;
        let (cluster, sending) = (self.cluster.clone(), self.cluster.clone());
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = stream.message() => message,
                    _ = ended.changed() => break,
                };
                match message {
                    Ok(Some(v1::FromNode {
                        message: Some(message),
                    })) => {
                        cluster.on_message(node, epoch, message);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
            cluster.leave(node, epoch);
        });
        let messages = tokio_stream::wrappers::ReceiverStream::new(receiver);
        Ok(Response::new(Box::pin(messages.map(move |mut message| {
            sending.complete_message(node, epoch, &mut message);
            Ok(message)
        }))))
    }
}
