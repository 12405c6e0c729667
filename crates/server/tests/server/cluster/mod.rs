//! A server in a temporary directory, and fake nodes that speak the protocol and store no bytes.
#![allow(
    dead_code,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "shared by tests, and each test uses a part"
)]

pub mod replicas;

use std::collections::VecDeque;
use std::path::Path;
use tidemill_client::{Endpoint, Server as Client};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_server::queue::QueueLocation;
use tidemill_server::{RunningServer, ServeConfig};
use tidemill_wire::capability::CapabilityKey;
use tidemill_wire::v1::{self, from_node::Message as From, name_op::Op, to_node::Message as To};
use tokio::sync::mpsc;
use tonic::Streaming;

/// A running server in a temporary directory.
pub struct Running {
    server: RunningServer,
}

/// Returns the credentials of root, for which the server checks no permissions.
pub fn root() -> v1::Credentials {
    v1::Credentials {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        checked: true,
    }
}

/// Returns the credentials of an ordinary user whose permissions the server must check.
pub fn user(uid: u32) -> v1::Credentials {
    v1::Credentials {
        uid,
        gid: uid,
        groups: Vec::new(),
        checked: false,
    }
}

/// Returns the operation that creates an empty file in the root directory.
pub fn file_op(name: &str) -> Op {
    Op::Create(v1::Create {
        parent: 1,
        name: name.as_bytes().to_vec(),
        kind: v1::Kind::File.into(),
        mode: 0o644,
        ..v1::Create::default()
    })
}

impl Running {
    pub async fn start(dir: &Path) -> Self {
        Self::start_with(ServeConfig {
            node_timeout: std::time::Duration::from_millis(300),
            mount_timeout: std::time::Duration::from_millis(300),
            // The nodes of these tests serve nothing, or plain HTTP.
            tls: false,
            ..ServeConfig::new(dir)
        })
        .await
    }

    pub async fn start_with(mut config: ServeConfig) -> Self {
        if matches!(config.queue, QueueLocation::Own) {
            config.queue = queue(&config.dir);
        }
        Self {
            server: RunningServer::start(config).await.unwrap(),
        }
    }

    pub fn server(&self) -> &RunningServer {
        &self.server
    }

    pub async fn client(&self) -> Client {
        Client::connect(&Endpoint::Unix(self.server.socket().into()), None)
            .await
            .unwrap()
    }

    /// Ends the server without a shutdown, as a crash does.
    pub async fn crash(self) {
        drop(self.server);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }

    pub async fn stop(self) {
        self.server.shutdown().await;
    }

    /// Attaches a new storage node that knows no labels.
    pub async fn node(&self, id: u32) -> FakeNode {
        FakeNode::attach(&self.client().await, id, Vec::new()).await
    }
}

/// Returns the location of the label queue. With `TIDEMILL_TEST_QUEUE=memory`, the queue is in memory: one queue for each directory, which
/// survives a restart of the server. With the address of a NATS server, labels wait in NATS.
fn queue(dir: &Path) -> QueueLocation {
    match std::env::var("TIDEMILL_TEST_QUEUE").as_deref() {
        Err(_) => QueueLocation::Own,
        #[cfg(feature = "simulation")]
        Ok("memory") => {
            use std::collections::BTreeMap;
            use std::sync::{Arc, Mutex};
            use tidemill_server::queue::MemoryQueue;
            static QUEUES: Mutex<BTreeMap<std::path::PathBuf, Arc<MemoryQueue>>> =
                Mutex::new(BTreeMap::new());
            let queue = QUEUES
                .lock()
                .unwrap()
                .entry(dir.into())
                .or_default()
                .clone();
            QueueLocation::Given(queue)
        }
        Ok(address) if address.contains("://") => QueueLocation::Nats(address.parse().unwrap()),
        Ok(other) => {
            panic!(
                "there is no queue `{other}` for {}; feature `simulation` has `memory`, and nats:// is one",
                dir.display()
            )
        }
    }
}

/// A storage node whose messages the test reads and sends.
pub struct FakeNode {
    pub id: u32,
    /// Received removals that the test has not examined yet: labels and their objects.
    pub removals: VecDeque<(u64, Vec<u64>)>,
    /// Labels that arrived together with an examined label.
    pub waiting: VecDeque<v1::Label>,
    /// Key with which the node checks capabilities.
    pub key: Vec<u8>,
    pub out: mpsc::Sender<v1::FromNode>,
    pub stream: Streaming<v1::ToNode>,
}

/// Returns the status message of an idle node with much free space.
pub fn status(id: u32) -> v1::Node {
    v1::Node {
        node: id,
        role: "store".into(),
        url: format!("http://127.0.0.1:{}", 40_000 + id),
        host: "test".into(),
        directory: format!("/none/{id}"),
        cores: 2,
        memory_bytes: 4 << 30,
        resources: [("gpu".to_owned(), u64::from(id))].into(),
        capacity_bytes: 1 << 40,
        free_bytes: 1 << 39,
        ..v1::Node::default()
    }
}

impl FakeNode {
    pub async fn attach(client: &Client, id: u32, labels: Vec<u64>) -> Self {
        Self::attach_as(client, status(id), labels).await
    }

    pub async fn attach_as(client: &Client, status: v1::Node, labels: Vec<u64>) -> Self {
        let id = status.node;
        let (out, receiver) = mpsc::channel(10_000);
        let hello = v1::Hello {
            version: tidemill_wire::PROTOCOL_VERSION,
            node: Some(status),
            cluster_id: 0,
            labels,
            suspended: false,
            used: None,
            public_key: Vec::new(),
        };
        out.send(v1::FromNode {
            message: Some(From::Hello(hello)),
        })
        .await
        .unwrap();
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut stream = client.cluster().attach(stream).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap().message;
        let Some(To::Welcome(welcome)) = first else {
            panic!("{first:?}")
        };
        Self {
            id,
            key: welcome.key,
            removals: VecDeque::new(),
            waiting: VecDeque::new(),
            out,
            stream,
        }
    }

    /// Returns the next message to the node that is not about other nodes, names or removals.
    pub async fn next(&mut self) -> To {
        loop {
            if let Some(message) = self.hear().await {
                return message;
            }
        }
    }

    async fn hear(&mut self) -> Option<To> {
        let message = within(self.stream.message()).await.unwrap();
        self.take(message.expect("the server ended the stream"))
            .await
    }

    async fn take(&mut self, message: v1::ToNode) -> Option<To> {
        match message.message {
            Some(To::Peers(_)) => None,
            Some(To::Log(copy)) => {
                let copied = v1::LogCopied {
                    name: copy.name,
                    ..v1::LogCopied::default()
                };
                self.send(From::Log(copied)).await;
                None
            }
            Some(To::Labels(mut labels)) => {
                labels.labels.retain(|label| match &label.operation {
                    Some(v1::label::Operation::Remove(remove)) => {
                        let removal = (label.id, remove.objects.clone());
                        self.removals.push_back(removal);
                        false
                    }
                    _ => true,
                });
                (!labels.labels.is_empty()).then_some(To::Labels(labels))
            }
            Some(message) => Some(message),
            None => panic!("an empty message"),
        }
    }

    /// Returns the next removal: its label and the objects to remove.
    pub async fn removal(&mut self) -> (u64, Vec<u64>) {
        loop {
            if let Some(removal) = self.removals.pop_front() {
                return removal;
            }
            self.hear().await;
        }
    }

    /// Confirms the next removal. Returns the removed objects.
    pub async fn removed(&mut self) -> Vec<u64> {
        let (label, objects) = self.removal().await;
        self.finished(label, v1::LabelOutcome::default()).await;
        objects
    }

    /// Confirms removals until `count` objects are removed. Returns the objects in ascending order.
    pub async fn removed_of(&mut self, count: usize) -> Vec<u64> {
        let mut removed = Vec::new();
        while removed.len() < count {
            removed.extend(self.removed().await);
        }
        removed.sort_unstable();
        removed
    }

    /// Sends a message to the server. If the connection has ended, the message is dropped, and the next read reports the end.
    pub async fn send(&self, message: From) {
        let message = v1::FromNode {
            message: Some(message),
        };
        drop(self.out.send(message).await);
    }
}

/// Returns the labels in a message that run tasks.
pub fn analyses(message: To) -> Vec<(u64, v1::Analyse)> {
    let To::Labels(labels) = message else {
        panic!("no labels: {message:?}")
    };
    let analyse = |label: v1::Label| match label.operation {
        Some(v1::label::Operation::Analyse(analyse)) => (label.id, analyse),
        other => panic!("no analysis: {other:?}"),
    };
    labels.labels.into_iter().map(analyse).collect()
}

/// Returns a successful outcome of a task, with every output `size` bytes long.
pub fn success(analyse: &v1::Analyse, size: u64) -> v1::LabelOutcome {
    let sealed = |output: &v1::Output| v1::SealedObject {
        object: output.object,
        size,
        name: String::new(),
    };
    v1::LabelOutcome {
        sealed: analyse.outputs.iter().map(sealed).collect(),
        start: 10,
        kernel_start: 20,
        end: 30,
        read_bytes: 7,
        written_bytes: size,
        kernel_hash: "hash".into(),
        stdout: "all is well".into(),
        ..v1::LabelOutcome::default()
    }
}

/// Returns the outcome of a task that failed permanently.
pub fn failure(kind: &str, message: &str) -> v1::LabelOutcome {
    let failure = v1::FailureReport {
        kind: kind.into(),
        code: 1,
        message: message.into(),
    };
    v1::LabelOutcome {
        failure: Some(failure),
        stderr: "the end of its standard error".into(),
        ..v1::LabelOutcome::default()
    }
}

impl FakeNode {
    /// Returns the next labels that run tasks. Questions about programs are answered with all requested programs.
    pub async fn labels(&mut self) -> Vec<(u64, v1::Analyse)> {
        loop {
            match self.next().await {
                To::FindPrograms(question) => self.answer(question).await,
                To::Ack(_) => {}
                message => return analyses(message),
            }
        }
    }

    pub async fn answer(&self, question: v1::FindPrograms) {
        let names = question.names.into_iter();
        let own = format!("only-on-{}", self.id);
        let others = |name: &str| name.contains("only-on-") && name != own;
        let (missing, found) = names.partition(|name| name.contains("missing") || others(name));
        self.send(From::Programs(v1::Programs {
            request: question.request,
            found,
            missing,
        }))
        .await;
    }

    pub async fn started(&self, label: u64) {
        self.send(From::Started(v1::Started {
            label,
            time: 1,
            state: "running".into(),
        }))
        .await;
    }

    pub async fn finished(&self, label: u64, outcome: v1::LabelOutcome) {
        self.send(From::Finished(v1::Finished {
            label,
            outcome: Some(outcome),
        }))
        .await;
    }

    /// Waits until the server has acknowledged the outcomes of these labels.
    pub async fn acknowledged(&mut self, mut labels: Vec<u64>) {
        while !labels.is_empty() {
            match self.next().await {
                To::Ack(ack) => labels.retain(|label| !ack.labels.contains(label)),
                To::FindPrograms(question) => self.answer(question).await,
                _ => {}
            }
        }
    }

    /// Reports success for every received label until the connection ends. Returns the labels in the order of their arrival.
    pub fn serve(mut self) -> tokio::task::JoinHandle<Vec<(u64, v1::Analyse)>> {
        tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Ok(Some(message)) = self.stream.message().await {
                match self.take(message).await {
                    Some(To::FindPrograms(question)) => self.answer(question).await,
                    Some(message @ To::Labels(_)) => {
                        for (label, analyse) in analyses(message) {
                            self.started(label).await;
                            self.finished(label, success(&analyse, 5)).await;
                            seen.push((label, analyse));
                        }
                    }
                    _ => {}
                }
                while let Some((label, _)) = self.removals.pop_front() {
                    self.finished(label, v1::LabelOutcome::default()).await;
                }
            }
            seen
        })
    }
}

/// Returns the key of the cluster, from the server's directory.
pub fn key(client: &Client) -> CapabilityKey {
    let Endpoint::Unix(socket) = client.endpoint() else {
        panic!("the server of a test has a socket in its directory")
    };
    let key = std::fs::read_to_string(socket.with_file_name("cluster.key")).unwrap();
    let key = tidemill_wire::route::parse_hex(key.trim()).unwrap();
    CapabilityKey::from_slice(&key).unwrap()
}

/// Returns the receipt of a node for an object that it sealed.
pub fn receipt(client: &Client, node: u32, object: u64, size: u64) -> Vec<u8> {
    key(client).receipt(NodeId(node), ObjectId(object), size)
}

/// Returns the operation that seals a version of one object, with the receipt of the object's node.
pub async fn sealing(client: &Client, (ino, object): (u64, u64), size: u64) -> v1::Seal {
    use tidemill_wire::v1::name_result::Result as Answer;
    let again = v1::NewVersion {
        ino,
        object,
        ..v1::NewVersion::default()
    };
    let node = match client.one(&root(), Op::NewVersion(again)).await {
        Ok(Answer::Opened(opened)) => opened.node,
        _ => 0,
    };
    v1::Seal {
        ino,
        object,
        size,
        receipts: vec![receipt(client, node, object, size)],
        ..v1::Seal::default()
    }
}

/// Creates a sealed file of `size` bytes at a path of the cluster, as the user `uid`. Returns the file's object.
pub async fn write_file(client: &Client, path: &str, size: u64, uid: u32) -> u64 {
    use tidemill_wire::v1::name_result::Result as Answer;
    let (ino, object) = client.reserve(1, 1).await.unwrap();
    let create = v1::Create {
        name: path.as_bytes().to_vec(),
        kind: v1::Kind::File.into(),
        mode: 0o600,
        ino: ino.0,
        object: object.0,
        uid,
        gid: uid,
        make_parents: true,
        ..v1::Create::default()
    };
    let Answer::Opened(_) = client.one(&root(), Op::Create(create)).await.unwrap() else {
        panic!()
    };
    let seal = sealing(client, (ino.0, object.0), size).await;
    client.one(&root(), Op::Seal(seal)).await.unwrap();
    object.0
}

/// Returns the attributes of the file at a path, or `None` if the path does not exist.
pub async fn stat(client: &Client, path: &str) -> Option<v1::Attr> {
    use tidemill_wire::v1::name_result::Result as Answer;
    let resolve = v1::Resolve {
        path: path.as_bytes().to_vec(),
        follow: true,
        advise: false,
    };
    match client.one(&root(), Op::Resolve(resolve)).await {
        Ok(Answer::Entry(entry)) => entry.attr,
        Ok(other) => panic!("{other:?}"),
        Err(error) if error.is(rustix::io::Errno::NOENT) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Submits a job script as the user `uid`. Returns the server's reply.
pub async fn submit(client: &Client, uid: u32, script: &str) -> v1::SubmitReply {
    let credentials = v1::Credentials {
        uid,
        gid: uid,
        groups: Vec::new(),
        checked: false,
    };
    let request = v1::SubmitRequest {
        credentials: Some(credentials),
        script: script.into(),
        source: "test.job".into(),
        ..v1::SubmitRequest::default()
    };
    client.jobs().submit(request).await.unwrap().into_inner()
}

/// Opens the stream of changes of a mount. Returns the mount's session and the stream, which keeps the session open.
pub async fn mount(client: &Client) -> (u64, Streaming<v1::Invalidation>) {
    let watch = v1::WatchRequest::default();
    let mut stream = client.names().watch(watch).await.unwrap().into_inner();
    let session = stream.message().await.unwrap().unwrap().session;
    (session, stream)
}

/// Waits for a future, for at most one minute.
async fn within<T>(what: impl Future<Output = T>) -> T {
    let patience = std::time::Duration::from_secs(60);
    let came = tokio::time::timeout(patience, what).await;
    came.expect("nothing has arrived within a minute")
}

/// Waits until a job has ended. Returns the job with its tasks.
pub async fn ended(client: &Client, job: u64) -> v1::Job {
    let get = v1::GetJobRequest {
        credentials: Some(root()),
        job,
    };
    let mut events = client.jobs().watch(get.clone()).await.unwrap().into_inner();
    while within(events.message()).await.unwrap().is_some() {}
    client.jobs().get(get).await.unwrap().into_inner()
}

/// Returns the present state of a job.
pub async fn job(client: &Client, job: u64) -> v1::Job {
    let get = v1::GetJobRequest {
        credentials: Some(root()),
        job,
    };
    client.jobs().get(get).await.unwrap().into_inner()
}
