//! Corrupt replicas as the server handles them, and scrubs that find corrupt replicas.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cluster::{FakeNode, Running, ended, root, sealing, status, submit, success};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tidemill_client::Server as Client;
use tidemill_server::ServeConfig;
use tidemill_wire::v1::{
    self, from_node::Message as From, label::Operation, name_op::Op, name_result::Result as Answer,
    to_node::Message as To,
};

async fn one(client: &Client, op: Op) -> Result<Answer, tidemill_client::Error> {
    client.one(&root(), op).await
}

/// Attaches nodes, each on a host of its own.
async fn nodes<const N: usize>(client: &Client) -> [FakeNode; N] {
    let mut nodes = Vec::new();
    for id in 0..u32::try_from(N).unwrap() {
        let status = v1::Node {
            host: format!("host {id}"),
            ..status(id)
        };
        nodes.push(FakeNode::attach_as(client, status, Vec::new()).await);
    }
    nodes.try_into().unwrap_or_else(|_| unreachable!())
}

/// Creates a sealed file on node 0 with this wanted number of replicas. Returns the file's inode and object.
async fn file(client: &Client, path: &str, replicas: u32) -> (u64, u64) {
    let (ino, object) = client.reserve(1, 1).await.unwrap();
    let create = v1::Create {
        name: path.into(),
        kind: v1::Kind::File.into(),
        mode: 0o644,
        ino: ino.0,
        object: object.0,
        node: Some(0),
        ..v1::Create::default()
    };
    one(client, Op::Create(create)).await.unwrap();
    let seal = v1::Seal {
        replicas: replicas.to_string(),
        ..sealing(client, (ino.0, object.0), 5).await
    };
    one(client, Op::Seal(seal)).await.unwrap();
    (ino.0, object.0)
}

/// Returns the next label that belongs to no job.
async fn maintenance_task(node: &mut FakeNode) -> (u64, Operation) {
    loop {
        if let Some(label) = node.waiting.pop_front() {
            return (label.id, label.operation.unwrap());
        }
        if let To::Labels(labels) = node.next().await {
            node.waiting.extend(labels.labels);
        }
    }
}

async fn copy(node: &mut FakeNode) -> (u64, v1::Copy) {
    match maintenance_task(node).await {
        (id, Operation::Copy(copy)) => (id, copy),
        other => panic!("no replica: {other:?}"),
    }
}

async fn verify(node: &mut FakeNode) -> (u64, v1::Verify) {
    match maintenance_task(node).await {
        (id, Operation::Verify(verify)) => (id, verify),
        other => panic!("nothing to be compared: {other:?}"),
    }
}

async fn made(node: &mut FakeNode, (label, copy): (u64, v1::Copy)) {
    let outcome = v1::LabelOutcome {
        sealed: vec![v1::SealedObject {
            object: copy.to,
            size: 5,
            ..v1::SealedObject::default()
        }],
        ..v1::LabelOutcome::default()
    };
    node.finished(label, outcome).await;
    node.acknowledged(vec![label]).await;
}

fn corrupt(objects: &[u64]) -> Vec<v1::CorruptObject> {
    let what = || "is missing".to_owned();
    let objects = objects.iter();
    objects
        .map(|&object| v1::CorruptObject {
            object,
            what: what(),
        })
        .collect()
}

async fn tell(node: &FakeNode, objects: &[u64]) {
    let objects = corrupt(objects);
    let reported = v1::CorruptObjects { objects };
    node.send(From::Corrupt(reported)).await;
}

/// Reports that the node has read and compared the objects, and that `objects` are corrupt.
async fn compared(node: &mut FakeNode, label: u64, objects: &[u64]) {
    let outcome = v1::LabelOutcome {
        corrupt: corrupt(objects),
        read_bytes: 7,
        ..v1::LabelOutcome::default()
    };
    node.finished(label, outcome).await;
    node.acknowledged(vec![label]).await;
}

async fn replicas(client: &Client, ino: u64) -> Value {
    let get = v1::GetXattr {
        ino,
        name: b"user.tidemill.layout".to_vec(),
    };
    let Answer::Bytes(layout) = one(client, Op::GetXattr(get)).await.unwrap() else {
        panic!("no layout");
    };
    serde_json::from_slice::<Value>(&layout.value).unwrap()["parts"][0]["replicas"].take()
}

fn at(states: &[&str]) -> Value {
    let states = states.iter().enumerate();
    states
        .map(|(node, state)| json!({ "node": node, "state": state }))
        .collect()
}

async fn until(client: &Client, ino: u64, states: &[&str]) {
    while replicas(client, ino).await != at(states) {
        tokio::task::yield_now().await;
    }
}

async fn open(client: &Client, ino: u64, corrupt: bool) -> Result<u32, tidemill_client::Error> {
    let open = v1::Open {
        ino,
        corrupt,
        ..v1::Open::default()
    };
    match one(client, Op::Open(open)).await? {
        Answer::Opened(opened) => Ok(opened.node),
        other => panic!("{other:?}"),
    }
}

async fn health(client: &Client, kind: &str) -> v1::HealthReply {
    let request = v1::HealthRequest {
        kind: kind.into(),
        after: 0,
    };
    client.health().show(request).await.unwrap().into_inner()
}

async fn scrub(client: &Client, path: &str, node: Option<u32>) -> v1::ScrubReply {
    let path = path.as_bytes().to_vec();
    let request = v1::ScrubRequest { path, node };
    client.health().scrub(request).await.unwrap().into_inner()
}

/// Returns the result of a scrub request, once the scrub has ended.
async fn scrubbed(client: &Client, request: u64) -> v1::ScrubsReply {
    loop {
        let request = v1::ScrubsRequest { request };
        let reply = client.health().scrubs(request).await.unwrap().into_inner();
        if reply.scrubs.iter().all(|one| one.ended > 0) {
            return reply;
        }
        tokio::task::yield_now().await;
    }
}

fn rows(dir: &Path, sql: &str) -> i64 {
    let db = rusqlite::Connection::open(dir.join("server.db")).unwrap();
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

async fn unlink(client: &Client, name: &str) {
    let unlink = v1::Unlink {
        parent: 1,
        name: name.into(),
        ..v1::Unlink::default()
    };
    one(client, Op::Unlink(unlink)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_first_replica_is_read_elsewhere_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let [mut first, mut second] = nodes(&client).await;
    let (ino, object) = file(&client, "/f", 2).await;
    let sent = copy(&mut second).await;
    made(&mut second, sent).await;
    until(&client, ino, &["current", "current"]).await;
    tell(&first, &[object, 12345]).await;
    let (label, sent) = copy(&mut first).await;
    let from = sent.from.as_ref().unwrap();
    assert_eq!((from.object, from.node, sent.to), (object, 1, object));
    assert!(!from.capability.is_empty());
    assert_eq!(replicas(&client, ino).await, at(&["coming", "current"]));
    assert_eq!(open(&client, ino, false).await.unwrap(), 1);
    let now = health(&client, "").await;
    assert_eq!(
        (now.corrupt, now.all_corrupt, now.repairing, now.unavailable),
        (1, 0, 1, 0)
    );
    // The repair fails at first: it is retried, and the replica is not forgotten.
    first
        .finished(label, crate::cluster::failure("device", "full"))
        .await;
    until(&client, ino, &["corrupt", "current"]).await;
    let db = rusqlite::Connection::open(dir.path().join("server.db")).unwrap();
    db.execute("UPDATE short SET at = 0", []).unwrap();
    let again = copy(&mut first).await;
    // The server dies, and still knows the corruption afterwards.
    drop((first, second, client));
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let [mut first, _second] = nodes(&client).await;
    assert_eq!(open(&client, ino, false).await.unwrap(), 1);
    let sent = copy(&mut first).await;
    assert_eq!(sent.0, again.0);
    made(&mut first, sent).await;
    until(&client, ino, &["current", "current"]).await;
    assert_eq!(open(&client, ino, false).await.unwrap(), 0);
    assert_eq!(health(&client, "").await.corrupt, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn file_with_all_replicas_corrupt_is_reported_until_unlinked() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let [mut first] = nodes(&client).await;
    let (ino, object) = file(&client, "/f", 1).await;
    tell(&first, &[object]).await;
    until(&client, ino, &["corrupt"]).await;
    let error = open(&client, ino, false).await.unwrap_err();
    assert!(error.is(Errno::IO), "{error}");
    let reported = error.to_string();
    assert!(
        reported.contains("/f is corrupt: on node 0 it is missing")
            && reported.contains("--corrupt"),
        "{reported}"
    );
    assert_eq!(open(&client, ino, true).await.unwrap(), 0);
    let now = health(&client, "corrupt").await;
    assert_eq!((now.corrupt, now.all_corrupt), (1, 1));
    let [one] = &now.ailing[..] else {
        panic!("{now:?}")
    };
    assert_eq!(
        (one.path.as_slice(), &one.nodes[..]),
        (&b"/f"[..], &[0][..])
    );
    assert!(one.what.contains("no other replica"), "{}", one.what);
    unlink(&client, "f").await;
    assert_eq!(first.removed().await, [object]);
    let now = health(&client, "").await;
    assert_eq!((now.corrupt, now.all_corrupt, now.short), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn job_reads_intact_replica_if_first_is_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let [mut first, mut second] = nodes(&client).await;
    let (_, object) = file(&client, "/f", 2).await;
    let sent = copy(&mut second).await;
    made(&mut second, sent).await;
    let script = |output: &str, node: u32| {
        format!(
            r#"name = "j"; workdir = "/"; tasks = ( {{ name = "t"; kernel = "wordcount"; node = {node};
            input = ["f"]; output = ["{output}"]; stdout = "{output}"; }} );"#
        )
    };
    let reply = submit(&client, 0, &script("one", 0)).await;
    let (label, analyse) = first.labels().await.remove(0);
    assert_eq!(analyse.inputs[0].node, 0);
    // The node finds that its own replica is missing: the next try is sent with the other replica.
    tell(&first, &[object]).await;
    first
        .finished(label, crate::cluster::failure("input", "is missing"))
        .await;
    let (label, analyse) = loop {
        match maintenance_task(&mut first).await {
            (id, Operation::Analyse(analyse)) => break (id, analyse),
            (_, Operation::Copy(copy)) => assert_eq!(copy.to, object),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        (analyse.inputs[0].object, analyse.inputs[0].node),
        (object, 1)
    );
    first.finished(label, success(&analyse, 5)).await;
    assert_eq!(ended(&client, reply.job).await.state(), v1::State::Done);
    // A later job reads the other replica, too.
    let _later = submit(&client, 0, &script("two", 1)).await;
    let (_, analyse) = second.labels().await.remove(0);
    assert_eq!(
        (analyse.inputs[0].object, analyse.inputs[0].node),
        (object, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn scrub_reads_all_objects_and_repairs_corruption() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let [mut first, mut second] = nodes(&client).await;
    let (ino, object) = file(&client, "/f", 2).await;
    let sent = copy(&mut second).await;
    made(&mut second, sent).await;
    let (alone, other) = file(&client, "/g", 1).await;
    let asked = scrub(&client, "", None).await;
    assert_eq!(
        (asked.nodes.as_slice(), asked.offline.len()),
        (&[0, 1][..], 0)
    );
    let (label, sent) = verify(&mut first).await;
    assert_eq!((sent.objects, sent.idle), (vec![object, other], false));
    let (on_second, sent) = verify(&mut second).await;
    assert_eq!(sent.objects, [object]);
    // The server dies, and orders the same comparison again.
    drop((first, second, client));
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let [mut first, mut second] = nodes(&client).await;
    assert_eq!(verify(&mut second).await.0, on_second);
    compared(&mut second, on_second, &[]).await;
    assert_eq!(verify(&mut first).await.0, label);
    compared(&mut first, label, &[object, other, 777]).await;
    let reply = scrubbed(&client, asked.request).await;
    let counts = reply.scrubs.iter();
    let counts: Vec<_> = counts
        .map(|one| (one.objects, one.bytes, one.corrupt))
        .collect();
    assert_eq!(counts, [(2, 7, 2), (1, 7, 0)]);
    assert_eq!(reply.corrupt.len(), 2);
    let sent = copy(&mut first).await;
    made(&mut first, sent).await;
    until(&client, ino, &["current", "current"]).await;
    assert_eq!(replicas(&client, alone).await, at(&["corrupt"]));
    // The owner has restored the file below the node.
    let asked = scrub(&client, "/g", None).await;
    assert_eq!((asked.objects, asked.nodes.as_slice()), (1, &[0][..]));
    let (label, sent) = verify(&mut first).await;
    assert_eq!(sent.objects, [other]);
    compared(&mut first, label, &[]).await;
    scrubbed(&client, asked.request).await;
    assert_eq!(replicas(&client, alone).await, at(&["current"]));
    assert_eq!(health(&client, "").await.corrupt, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn version_removed_during_scrub_or_repair_leaves_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let [mut first, mut second] = nodes(&client).await;
    let (_, object) = file(&client, "/f", 2).await;
    let sent = copy(&mut second).await;
    made(&mut second, sent).await;
    let (_, gone) = file(&client, "/g", 1).await;
    let asked = scrub(&client, "", Some(0)).await;
    let (label, _) = verify(&mut first).await;
    unlink(&client, "g").await;
    assert_eq!(first.removed().await, [gone]);
    compared(&mut first, label, &[object, gone]).await;
    let reply = scrubbed(&client, asked.request).await;
    assert_eq!((reply.scrubs[0].corrupt, reply.corrupt.len()), (1, 1));
    let sent = copy(&mut first).await;
    unlink(&client, "f").await;
    assert_eq!(first.removed().await, [object]);
    assert_eq!(second.removed().await, [object]);
    // The replica arrives after all, and is removed again.
    made(&mut first, sent).await;
    assert_eq!(first.removed().await, [object]);
    let left =
        "SELECT (SELECT count(*) FROM short) + (SELECT count(*) FROM replica WHERE want != 2)";
    assert_eq!(rows(dir.path(), left), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn periodic_scrub_of_idle_nodes_reads_all_objects() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServeConfig {
        scrub_every: Some(Duration::from_millis(1)),
        tls: false,
        ..ServeConfig::new(dir.path())
    };
    let running = Running::start_with(config).await;
    let client = running.client().await;
    let mut reads = FakeNode::attach_as(
        &client,
        v1::Node {
            scrub_bytes_per_sec: 1,
            ..status(0)
        },
        Vec::new(),
    )
    .await;
    // A node without scrubbing is left alone.
    let _other = FakeNode::attach(&client, 1, Vec::new()).await;
    let (_, object) = file(&client, "/f", 1).await;
    for _ in 0..2 {
        let (label, sent) = verify(&mut reads).await;
        assert_eq!((sent.objects, sent.idle), (vec![object], true));
        compared(&mut reads, label, &[]).await;
    }
    let scrubs = health(&client, "").await.scrubs;
    assert!(scrubs.iter().all(|one| one.node == 0 && one.request == 0));
    assert!(scrubs.iter().any(|one| one.objects == 1 && one.ended > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_scrub_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let [_first] = nodes(&client).await;
    for (path, node, what) in [("/no", None, "/no"), ("", Some(9), "node 9 does not exist")] {
        let path = path.as_bytes().to_vec();
        let mut health = client.health();
        let refused = health.scrub(v1::ScrubRequest { path, node });
        let refused = refused.await.unwrap_err();
        assert!(refused.message().contains(what), "{refused}");
    }
    // A directory without files has nothing to read.
    let asked = scrub(&client, "/", None).await;
    assert_eq!((asked.objects, asked.nodes.len()), (0, 0));
    assert_eq!(scrubbed(&client, asked.request).await.scrubs.len(), 0);
}
