//! Fake server of a cluster. The server accepts a node's connection, sends labels, breaks the connection, and examines messages.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test uses its own part of this"
)]
#![allow(
    missing_debug_implementations,
    clippy::unwrap_used,
    reason = "a test that fails here has failed"
)]

use std::collections::VecDeque;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;
use tidemill_client::Objects;
use tidemill_client::objects::ObjectAddress;
use tidemill_model::id::{LabelId, NodeId, ObjectId};
use tidemill_node::{NodeConfig, RunningNode};
use tidemill_wire::capability::{Attributes, Capability, CapabilityKey, rights};
use tidemill_wire::route::SealBody;
use tidemill_wire::v1::cluster_server::{Cluster, ClusterServer};
use tidemill_wire::v1::{self, from_node, to_node};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

pub const CLUSTER: u64 = 0xa44a;
pub const KEY: [u8; 32] = [7; 32];

/// Time limit of all waits; a test that reaches the limit has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("it takes too long")
}

pub struct FakeServer {
    pub url: String,
    pub cluster: u64,
    incoming: mpsc::UnboundedReceiver<Connection>,
}

/// Connection of a node to the fake server. Dropping it breaks the connection.
pub struct Connection {
    pub hello: v1::Hello,
    to: mpsc::UnboundedSender<Result<v1::ToNode, Status>>,
    from: Streaming<v1::FromNode>,
    kept: VecDeque<from_node::Message>,
}

struct Service(mpsc::UnboundedSender<Connection>);

type Outgoing = Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::ToNode, Status>> + Send>>;

#[tonic::async_trait]
impl Cluster for Service {
    type AttachStream = Outgoing;

    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        Ok(Response::new(v1::StatusReply {
            version: tidemill_wire::PROTOCOL_VERSION,
            ..v1::StatusReply::default()
        }))
    }

    async fn load(&self, _: Request<v1::LoadRequest>) -> Result<Response<v1::LoadReply>, Status> {
        Err(Status::unimplemented("a node asks for no load"))
    }

    type CheckStream = tokio_stream::Empty<Result<v1::CheckReply, Status>>;

    async fn check(
        &self,
        _: Request<v1::CheckRequest>,
    ) -> Result<Response<Self::CheckStream>, Status> {
        Err(Status::unimplemented("a node asks for no check"))
    }

    type BackupStream = tokio_stream::Empty<Result<v1::LogPiece, Status>>;

    async fn backup(
        &self,
        _: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        Err(Status::unimplemented("a node asks for no backup"))
    }

    async fn attach(
        &self,
        request: Request<Streaming<v1::FromNode>>,
    ) -> Result<Response<Outgoing>, Status> {
        let (to, outgoing) = mpsc::unbounded_channel();
        let connections = self.0.clone();
        let mut from = request.into_inner();
        tokio::spawn(async move {
            let first = from.message().await.unwrap().unwrap();
            let Some(from_node::Message::Hello(hello)) = first.message else {
                panic!("the first message is {first:?}");
            };
            let kept = VecDeque::new();
            let _ = connections.send(Connection {
                hello,
                to,
                from,
                kept,
            });
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(
            outgoing,
        ))))
    }
}

impl FakeServer {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, incoming) = mpsc::unbounded_channel();
        let stream = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(ClusterServer::new(Service(sender)))
                .serve_with_incoming(stream),
        );
        Self {
            url,
            cluster: CLUSTER,
            incoming,
        }
    }

    /// Returns the next connection of any node, before the welcome message.
    pub async fn connection(&mut self) -> Connection {
        soon(self.incoming.recv()).await.unwrap()
    }

    /// Returns the next connection of any node, after the welcome message.
    pub async fn welcomed(&mut self) -> Connection {
        let connection = self.connection().await;
        connection.welcome(self.cluster);
        connection
    }
}

/// Next id of a label that removes objects, larger than the ids that tests use.
static NEXT_REMOVAL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1_000_000);

impl Connection {
    pub fn send(&self, message: to_node::Message) {
        let message = v1::ToNode {
            message: Some(message),
        };
        let _ = self.to.send(Ok(message));
    }

    pub fn welcome(&self, cluster_id: u64) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now_ns = i64::try_from(now.unwrap().as_nanos()).unwrap();
        self.welcome_at(cluster_id, now_ns);
    }

    /// Sends the welcome message of a server whose clock shows the time `time_ns`.
    pub fn welcome_at(&self, cluster_id: u64, time_ns: i64) {
        self.send(to_node::Message::Welcome(v1::Welcome {
            cluster_id,
            key: KEY.to_vec(),
            certificate: Vec::new(),
            time_ns,
        }));
    }

    pub fn labels(&self, labels: &[v1::Label]) {
        self.send(to_node::Message::Labels(v1::Labels {
            labels: labels.to_vec(),
        }));
    }

    /// Removes objects with a separate label. Returns the label's outcome.
    pub async fn remove(&mut self, objects: &[u64]) -> v1::LabelOutcome {
        let id = NEXT_REMOVAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.labels(&[remove_label(id, objects)]);
        let outcome = self.finished(id).await;
        self.ack(&[id]);
        outcome
    }

    pub fn ack(&self, labels: &[u64]) {
        self.send(to_node::Message::Ack(v1::Ack {
            labels: labels.to_vec(),
        }));
    }

    pub fn abort(&self, label: u64) {
        self.send(to_node::Message::Abort(v1::AbortLabel { label }));
    }

    pub fn peers(&self, nodes: Vec<v1::Node>) {
        let whole = v1::Peers {
            nodes,
            whole: true,
            ..v1::Peers::default()
        };
        self.send(to_node::Message::Peers(whole));
    }

    async fn next(&mut self) -> from_node::Message {
        let message = self.from.message().await.unwrap();
        message.expect("the node is connected").message.unwrap()
    }

    /// Returns the first result of `wanted` for the node's messages, from the first message on.
    pub async fn find<T>(&mut self, wanted: impl Fn(&from_node::Message) -> Option<T>) -> T {
        let kept = self
            .kept
            .iter()
            .position(|message| wanted(message).is_some());
        if let Some(message) = kept.and_then(|at| self.kept.remove(at)) {
            return wanted(&message).unwrap();
        }
        soon(async {
            loop {
                let message = self.next().await;
                if let Some(found) = wanted(&message) {
                    return found;
                }
                self.kept.push_back(message);
            }
        })
        .await
    }

    /// Waits for the outcome of a label and returns it.
    pub async fn finished(&mut self, label: u64) -> v1::LabelOutcome {
        self.find(|message| match message {
            from_node::Message::Finished(finished) if finished.label == label => {
                finished.outcome.clone()
            }
            _ => None,
        })
        .await
    }

    /// Waits until a label runs.
    pub async fn running(&mut self, label: u64) {
        self.find(|message| match message {
            from_node::Message::Started(started) => {
                (started.label == label && started.state == "running").then_some(())
            }
            _ => None,
        })
        .await;
    }

    /// Waits for a status that fulfils the condition `wanted` and returns it.
    pub async fn status(&mut self, wanted: impl Fn(&v1::Node) -> bool) -> v1::Node {
        self.find(|message| match message {
            from_node::Message::Status(status) if wanted(status) => Some(status.clone()),
            _ => None,
        })
        .await
    }
}

/// Creates a directory that tasks of other users can pass through.
pub fn directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    directory
}

/// Returns the program of `examples/node.rs`, which `cargo test` builds, too.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().join("../examples/node");
    assert!(
        program.exists(),
        "{} is not built: run `cargo test -p tidemill-node` without a selection of targets, or \
         `cargo build -p tidemill-node --example node`",
        program.display()
    );
    program.canonicalize().unwrap()
}

pub fn config(id: u32, directory: &Path, server: &FakeServer) -> NodeConfig {
    let mut config = NodeConfig::new(NodeId(id), directory, server.url.parse().unwrap());
    config.cores = 2;
    config.memory_bytes = Some(4 << 30);
    config.resources = [("gpu".to_owned(), 1)].into();
    config.status_period = Duration::from_millis(50);
    config.program = program();
    config
}

/// Returns the user id that the tasks of these tests run as: a user without privileges, if possible.
pub fn user() -> u32 {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 { 1000 } else { uid }
}

pub fn capability(node: u32, object: u64, rights: u32) -> Vec<u8> {
    let attributes = Attributes {
        inode: 17,
        uid: user(),
        gid: user(),
        mode: 0o640,
        part: None,
        path: b"/in".to_vec(),
    };
    CapabilityKey::new(KEY).sign(&Capability {
        object: ObjectId(object),
        node: NodeId(node),
        rights,
        uid: user(),
        expires_at_ns: u64::MAX,
        attributes: (rights & rights::WRITE != 0).then_some(attributes),
    })
}

pub fn remote(node: &RunningNode, object: u64, rights: u32) -> ObjectAddress {
    let id = node.daemon().config.node.0;
    ObjectAddress {
        node: NodeId(id),
        url: node.url().into(),
        object: ObjectId(object),
        capability: capability(id, object, rights),
    }
}

/// Writes and seals an object over HTTP.
pub async fn put(node: &RunningNode, object: u64, bytes: &[u8]) {
    let remote = remote(node, object, rights::READ | rights::WRITE);
    let objects = Objects::new(None);
    objects
        .write(&remote, 0, bytes.to_vec().into())
        .await
        .unwrap();
    objects.seal(&remote, &SealBody::default()).await.unwrap();
}

/// Reads an object over HTTP.
pub async fn get(node: &RunningNode, object: u64) -> Vec<u8> {
    let remote = remote(node, object, rights::READ);
    let mut all = Vec::new();
    Objects::new(None)
        .read_all(&remote, |piece| {
            all.extend_from_slice(&piece);
            Ok(())
        })
        .await
        .unwrap();
    all
}

/// Returns a label that runs a program, without inputs and outputs.
pub fn program_label(id: u64, name: &str, args: &[&str]) -> v1::Label {
    let analyse = v1::Analyse {
        task: 1000 + id,
        job: 5,
        name: format!("task {id}"),
        kernel: Some(v1::Kernel {
            code: Some(v1::kernel::Code::Program(name.into())),
        }),
        args: args.iter().map(|&arg| arg.into()).collect(),
        time_ns_max: 60_000_000_000,
        memory_bytes_max: 1 << 30,
        output_bytes_max: 1 << 30,
        ..v1::Analyse::default()
    };
    v1::Label {
        id,
        uid: user(),
        gid: user(),
        after: Vec::new(),
        operation: Some(v1::label::Operation::Analyse(analyse)),
    }
}

pub fn analyse(label: &mut v1::Label) -> &mut v1::Analyse {
    match &mut label.operation {
        Some(v1::label::Operation::Analyse(analyse)) => analyse,
        other => panic!("{other:?} is no analysis"),
    }
}

pub trait Build {
    fn input(self, name: &str, object: u64, node: u32) -> Self;
    fn output(self, name: &str, object: u64) -> Self;
    fn after(self, labels: &[u64]) -> Self;
    fn stdin(self, name: &str) -> Self;
    fn stdout(self, name: &str) -> Self;
}

impl Build for v1::Label {
    fn input(mut self, name: &str, object: u64, node: u32) -> Self {
        analyse(&mut self).inputs.push(v1::Input {
            name: name.into(),
            object,
            node,
            size: 0,
            capability: capability(node, object, rights::READ),
            layout: None,
            selection: None,
            streaming: false,
            leaves: 0,
        });
        self
    }

    fn output(mut self, name: &str, object: u64) -> Self {
        analyse(&mut self).outputs.push(v1::Output {
            name: name.into(),
            object,
            ino: 100 + object,
            path: format!("/scratch/{name}"),
            memory: false,
        });
        self
    }

    fn after(mut self, labels: &[u64]) -> Self {
        self.after = labels.to_vec();
        self
    }

    fn stdin(mut self, name: &str) -> Self {
        analyse(&mut self).stdin = Some(name.into());
        self
    }

    fn stdout(mut self, name: &str) -> Self {
        analyse(&mut self).stdout = Some(name.into());
        self
    }
}

pub fn remove_label(id: u64, objects: &[u64]) -> v1::Label {
    let remove = v1::Remove {
        objects: objects.to_vec(),
    };
    v1::Label {
        id,
        operation: Some(v1::label::Operation::Remove(remove)),
        ..v1::Label::default()
    }
}

pub fn copy_label(id: u64, from: u64, node: u32, to: u64) -> v1::Label {
    v1::Label {
        id,
        uid: user(),
        gid: user(),
        after: Vec::new(),
        operation: Some(v1::label::Operation::Copy(v1::Copy {
            from: Some(v1::Input {
                name: String::new(),
                object: from,
                node,
                size: 0,
                capability: capability(node, from, rights::READ),
                layout: None,
                selection: None,
                streaming: false,
                leaves: 0,
            }),
            to,
            ..v1::Copy::default()
        })),
    }
}

/// Returns the failure in an outcome.
pub fn failure(outcome: &v1::LabelOutcome) -> &v1::FailureReport {
    outcome
        .failure
        .as_ref()
        .unwrap_or_else(|| panic!("the label should have failed: {outcome:?}"))
}

/// Returns the sealed objects in a successful outcome, with their sizes.
pub fn sealed(outcome: &v1::LabelOutcome) -> Vec<(u64, u64)> {
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    outcome.sealed.iter().map(|s| (s.object, s.size)).collect()
}

pub fn ids(ids: &[u64]) -> Vec<LabelId> {
    ids.iter().copied().map(LabelId).collect()
}

/// Starts a node whose object 1 has the bytes `input`. Returns the node with the server's end of its connection.
pub async fn node_with(input: &[u8]) -> (tempfile::TempDir, FakeServer, RunningNode, Connection) {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let connection = server.welcomed().await;
    put(&node, 1, input).await;
    (directory, server, node, connection)
}
