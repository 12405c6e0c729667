//! How the server ends versions and objects after the mount that wrote them, or the node that holds them, has disconnected.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_client::Server as Client;
use tidemill_wire::v1::{
    self, Kind, from_node::Message as From, name_op::Op, name_result::Result as Answer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Streaming;

/// Answer of a fake node to the request to seal one object.
#[derive(Clone, Copy)]
enum Sealing {
    Done(u64),
    NotThere,
    Full,
}

/// HTTP service of a fake node.
struct Nodes {
    url: String,
    sealing: Arc<Mutex<Sealing>>,
    asked: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl Nodes {
    async fn start(first: Sealing, client: &Client) -> Self {
        let client = client.clone();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, asked) = tokio::sync::mpsc::unbounded_channel();
        let sealing = Arc::new(Mutex::new(first));
        let answer = sealing.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = vec![0; 1 << 16];
                let count = stream.read(&mut buffer).await.unwrap();
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                let (size, status, message) = match *answer.lock().unwrap() {
                    Sealing::Done(size) => (size, 200, ""),
                    Sealing::NotThere => (0, 404, "no such object"),
                    Sealing::Full => (0, 507, "this node is full"),
                };
                let object = text.split("\"object\":").nth(1).unwrap_or_default();
                let object = object.split(',').next().unwrap_or_default();
                let receipt = receipt(&client, 0, object.parse().unwrap_or(0), size);
                let receipt = tidemill_wire::route::hex(&receipt);
                let body = format!(
                    r#"[{{"object":0,"size":{size},"receipt":"{receipt}","status":{status},"message":"{message}"}}]"#
                );
                let reply = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(reply.as_bytes()).await.unwrap();
                let _ = sender.send(text);
            }
        });
        Self {
            url,
            sealing,
            asked,
        }
    }

    fn now(&self, sealing: Sealing) {
        *self.sealing.lock().unwrap() = sealing;
    }

    async fn attach(&self, client: &Client) -> FakeNode {
        let like = v1::Node {
            url: self.url.clone(),
            ..status(0)
        };
        FakeNode::attach_as(client, like, Vec::new()).await
    }
}

/// Opens the stream of changes of a mount. Returns the mount's session and the stream, which keeps the session open.
async fn mount(client: &Client) -> (u64, Streaming<v1::Invalidation>) {
    let watch = v1::WatchRequest {
        host: "ship".into(),
        path: "/mnt/tide".into(),
        ..v1::WatchRequest::default()
    };
    let mut stream = client.names().watch(watch).await.unwrap().into_inner();
    let session = stream.message().await.unwrap().unwrap().session;
    (session, stream)
}

async fn by(client: &Client, session: u64, op: Op) -> Result<Answer, i32> {
    let request = v1::NameRequest {
        credentials: Some(root()),
        ops: vec![v1::NameOp { op: Some(op) }],
        session,
        durable: false,
    };
    match client.apply(request).await.unwrap().remove(0) {
        Answer::Error(error) => Err(error.errno),
        answer => Ok(answer),
    }
}

/// Begins to write a new file. Returns the file's object and its node.
async fn begin(client: &Client, session: u64, name: &str) -> (u64, u32) {
    let (ino, object) = client.reserve(1, 1).await.unwrap();
    let create = Op::Create(v1::Create {
        parent: 1,
        name: name.as_bytes().to_vec(),
        kind: Kind::File.into(),
        mode: 0o640,
        ino: ino.0,
        object: object.0,
        ..v1::Create::default()
    });
    match by(client, session, create).await.unwrap() {
        Answer::Opened(opened) => (opened.object, opened.node),
        other => panic!("{other:?}"),
    }
}

async fn until<T>(what: &str, mut ready: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..6000 {
        if let Some(value) = ready().await {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("gave up waiting until {what}")
}

async fn sealed(client: &Client, path: &str) -> v1::Attr {
    until("the file is sealed", async || {
        stat(client, path).await.filter(|attr| !attr.writing)
    })
    .await
}

async fn unsealed(client: &Client) -> Vec<v1::Unsealed> {
    client.status().await.unwrap().unsealed
}

#[tokio::test(flavor = "multi_thread")]
async fn file_of_killed_mount_is_sealed_up_to_written_length() {
    for (sealing, expected) in [(Sealing::Done(42), (42, 1)), (Sealing::NotThere, (0, 1))] {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path()).await;
        let client = running.client().await;
        let mut nodes = Nodes::start(sealing, &client).await;
        let _node = nodes.attach(&client).await;
        let (session, stream) = mount(&client).await;
        let (object, _) = begin(&client, session, "f").await;
        drop(stream);
        let asked = nodes.asked.recv().await.unwrap();
        // The node has to look for writers that outlived the mount, and to store the owner of the file.
        for part in [
            "POST /seal",
            &format!("\"object\":{object}"),
            "\"lost\":true",
        ] {
            assert!(asked.contains(part), "{part} is not in {asked}");
        }
        let right = asked.split("\"capability\":\"").nth(1).unwrap();
        let right = tidemill_wire::route::parse_hex(right.split('"').next().unwrap()).unwrap();
        let signed = key(&client).read(&right).unwrap().attributes.unwrap();
        assert_eq!((signed.mode, signed.path), (0o640, b"/f".to_vec()));
        let attr = sealed(&client, "/f").await;
        assert_eq!((attr.size, attr.version), expected);
        assert!(unsealed(&client).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn file_of_lost_mount_is_sealed_when_node_returns() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let nodes = Nodes::start(Sealing::Full, &client).await;
    let node = nodes.attach(&client).await;
    let (session, stream) = mount(&client).await;
    begin(&client, session, "f").await;
    let open = &unsealed(&client).await[0];
    assert_eq!(
        (open.versions, open.ended, open.why.as_str()),
        (1, false, "being written")
    );
    drop((node, stream));
    let waits = async |part: &str| {
        let left = unsealed(&client).await;
        let so = |one: &v1::Unsealed| one.ended && one.why.contains(part);
        left.iter().any(so).then_some(())
    };
    until("it waits for the node", async || {
        waits("node 0 is offline").await
    })
    .await;
    let _node = nodes.attach(&client).await;
    until("the node can't seal", async || {
        waits("this node is full").await
    })
    .await;
    assert!(stat(&client, "/f").await.unwrap().writing);
    nodes.now(Sealing::Done(7));
    assert_eq!(sealed(&client, "/f").await.size, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_server_seals_open_versions_of_lost_mounts() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let nodes = Nodes::start(Sealing::Done(9), &client).await;
    let node = nodes.attach(&client).await;
    let (session, stream) = mount(&client).await;
    begin(&client, session, "f").await;
    running.crash().await;
    drop((node, stream));
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let _node = nodes.attach(&client).await;
    assert_eq!(sealed(&client, "/f").await.size, 9);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_of_connected_mount_are_not_sealed_by_server() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let nodes = Nodes::start(Sealing::Done(1), &client).await;
    let _node = nodes.attach(&client).await;
    let (session, first) = mount(&client).await;
    begin(&client, session, "mine").await;
    // The mount's stream breaks, and the mount reconnects before it is missed.
    drop(first);
    let again = v1::WatchRequest {
        session,
        ..v1::WatchRequest::default()
    };
    let mut second = client.names().watch(again).await.unwrap().into_inner();
    second.message().await.unwrap();
    // Another mount, which connected later, is offline for the same time, and its file is sealed.
    let (other, stream) = mount(&client).await;
    begin(&client, other, "theirs").await;
    drop(stream);
    sealed(&client, "/theirs").await;
    assert!(stat(&client, "/mine").await.unwrap().writing);
    let mounts = client.status().await.unwrap().mounts;
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    assert_eq!(mounts[0].session, session);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_lists_connected_mounts() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let (session, stream) = mount(&client).await;
    let mounts = client.status().await.unwrap().mounts;
    assert_eq!(
        (
            mounts[0].session,
            mounts[0].host.as_str(),
            mounts[0].path.as_str()
        ),
        (session, "ship", "/mnt/tide")
    );
    assert!(mounts[0].since > 0);
    drop(stream);
    until("the mount is offline", async || {
        let status = client.status().await.unwrap();
        status.mounts.is_empty().then_some(())
    })
    .await;
}

/// Returns the server's list of removals: each object, and the label that removes it.
fn removals(dir: &std::path::Path) -> Vec<(i64, i64)> {
    let db = rusqlite::Connection::open(dir.join("server.db")).unwrap();
    let mut rows = db
        .prepare("SELECT object, label FROM replica WHERE want = 2")
        .unwrap();
    let rows = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn object_removal_is_resent_until_node_confirms_it() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut node = running.node(0).await;
    let mut objects = [0; 3];
    for (object, name) in objects.iter_mut().zip(["/f", "/g", "/h"]) {
        *object = write_file(&client, name, 5, 0).await;
    }
    let unlink = |name: &str| v1::NameOp {
        op: Some(Op::Unlink(v1::Unlink {
            parent: 1,
            name: name.as_bytes().to_vec(),
            ..v1::Unlink::default()
        })),
    };
    let request = v1::NameRequest {
        credentials: Some(root()),
        ops: ["f", "g", "h"].map(unlink).to_vec(),
        ..v1::NameRequest::default()
    };
    client.apply(request).await.unwrap();
    let first = node.removal().await;
    assert_eq!(first.1, objects, "all in one label");
    // First the node dies before the removal is done, and then the server.
    drop(node);
    let mut node = running.node(0).await;
    assert_eq!(node.removal().await, first);
    drop((node, client));
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let mut node = running.node(0).await;
    assert_eq!(node.removal().await, first);
    // The node reports the failure twice, as after a broken connection.
    let mut outcome = failure("device", "not permitted");
    outcome.removed = vec![objects[0], objects[2]];
    for _ in 0..2 {
        node.finished(first.0, outcome.clone()).await;
    }
    node.acknowledged(vec![first.0]).await;
    assert_eq!(removals(dir.path()), [(objects[1].cast_signed(), 0)]);
    // The remaining object becomes part of a label again after a while.
    let db = rusqlite::Connection::open(dir.path().join("server.db")).unwrap();
    let sooner = "UPDATE replica SET since = since - 29000000000";
    db.execute(sooner, []).unwrap();
    // A label may arrive twice; the node then reports its result again.
    let (again, left) = loop {
        let removal = node.removal().await;
        if removal != first {
            break removal;
        }
    };
    assert!(again > first.0);
    assert_eq!(left, [objects[1]]);
    node.finished(again, v1::LabelOutcome::default()).await;
    node.acknowledged(vec![again]).await;
    assert_eq!(removals(dir.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_node_gets_no_new_files_until_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let hung = running.node(0).await;
    let well = running.node(1).await;
    let mut names = 0_u32..;
    let mut two = async || {
        let mut nodes = Vec::new();
        for name in names.by_ref().take(2) {
            nodes.push(begin(&client, 0, &format!("f{name}")).await.1);
        }
        nodes.sort_unstable();
        nodes
    };
    assert_eq!(two().await, [0, 1]);
    until("the silent node is reported", async || {
        well.send(From::Status(status(1))).await;
        let nodes = client.status().await.unwrap().nodes;
        nodes[0].trouble.contains("has not answered").then_some(())
    })
    .await;
    until("files go elsewhere", async || {
        well.send(From::Status(status(1))).await;
        (two().await == [1, 1]).then_some(())
    })
    .await;
    hung.send(From::Status(status(0))).await;
    until("it gets files again", async || {
        (two().await == [0, 1]).then_some(())
    })
    .await;
    assert_eq!(client.status().await.unwrap().nodes[0].trouble, "");
}
