//! Nodes that are drained and removed, and files that migrate: all other work continues, and a restart continues the remaining work.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cluster::replicas::{at, copy, file, made, node, one, replicas, rows, seal, unlink};
use crate::cluster::{FakeNode, Running, failure, root, sealing, status, submit, success, user};
use serde_json::json;
use std::path::Path;
use tidemill_client::Server as Client;
use tidemill_wire::v1::{
    self, from_node::Message as From, name_op::Op, name_result::Result as Answer,
};
use tonic::{Code, Status};

async fn drain(client: &Client, node: u32, cancel: bool) -> Result<v1::Drain, Status> {
    let request = v1::DrainRequest { node, cancel };
    let drain = client.places().drain(request).await;
    drain.map(tonic::Response::into_inner)
}

async fn remove(client: &Client, node: u32, lose: bool) -> Result<u64, Status> {
    let request = v1::RemoveNodeRequest { node, lose };
    let removed = client.places().remove(request).await;
    removed.map(|reply| reply.into_inner().files_lost)
}

async fn move_to(
    client: &Client,
    (by, path): (v1::Credentials, &str),
    node: u32,
) -> Result<v1::MoveReply, Status> {
    let request = v1::MoveRequest {
        credentials: Some(by),
        path: path.into(),
        node,
        ..v1::MoveRequest::default()
    };
    let moved = client.places().r#move(request).await;
    moved.map(tonic::Response::into_inner)
}

async fn listed(client: &Client) -> v1::MigrationsReply {
    let listed = client.places().list(v1::MigrationsRequest {}).await;
    listed.unwrap().into_inner()
}

/// Waits until the drain of a node has the expected progress.
async fn drained(client: &Client, expected: impl Fn(&v1::Drain) -> bool) -> v1::Drain {
    loop {
        let drains = listed(client).await.drains;
        if let Some(drain) = drains.into_iter().find(&expected) {
            return drain;
        }
        tokio::task::yield_now().await;
    }
}

fn is_empty(drain: &v1::Drain) -> bool {
    let left = drain.files_left + drain.removals + drain.writing + drain.labels;
    !drain.listing && left == 0
}

async fn open(client: &Client, ino: u64) -> v1::Opened {
    let open = v1::Open {
        ino,
        ..v1::Open::default()
    };
    match one(client, Op::Open(open)).await.unwrap() {
        Answer::Opened(opened) => opened,
        other => panic!("{other:?}"),
    }
}

/// Begins to write a new file. Returns the file's inode, object and node.
async fn begun(client: &Client, path: &str, named: Option<u32>) -> Result<(u64, u64, u32), String> {
    let (ino, object) = client.reserve(1, 1).await.unwrap();
    let create = v1::Create {
        name: path.into(),
        kind: v1::Kind::File.into(),
        mode: 0o644,
        ino: ino.0,
        object: object.0,
        node: named,
        ..v1::Create::default()
    };
    match one(client, Op::Create(create)).await {
        Ok(Answer::Opened(opened)) => Ok((ino.0, object.0, opened.node)),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_node_is_removed_and_cannot_rejoin() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut old = node(&client, 0, "a").await;
    let mut new = node(&client, 1, "b").await;
    let (ino, object) = file(&client, "/f").await;
    let (writing, written, on) = begun(&client, "/w", Some(0)).await.unwrap();
    assert_eq!(on, 0);
    let began = drain(&client, 0, false).await.unwrap();
    assert!(began.began > 0, "{began:?}");
    // No new file is placed there: a client that names the node gets an error, and other clients get another node.
    let refused = begun(&client, "/g", Some(0)).await.unwrap_err();
    assert!(refused.contains("node 0 is being drained"), "{refused}");
    for name in ["/h", "/i"] {
        assert_eq!(begun(&client, name, None).await.unwrap().2, 1);
    }
    let sent = copy(&mut new).await;
    let from = sent.1.from.clone().unwrap();
    assert_eq!((from.object, from.node), (object, 0));
    made(&mut new, sent).await;
    assert_eq!(old.removed().await, [object]);
    assert_eq!(replicas(&client, ino).await, json!([at(1, "current")]));
    assert_eq!(open(&client, ino).await.node, 1);
    // The file that is being written there is finished there, and moves then.
    let left = drained(&client, |drain| drain.files_moved == 1).await;
    assert_eq!((left.writing, is_empty(&left)), (1, false));
    let refused = remove(&client, 0, false).await.unwrap_err();
    assert!(
        refused
            .message()
            .contains("still in use: 1 files that are being written"),
        "{refused}"
    );
    seal(&client, writing, written, "").await.unwrap();
    let refused = remove(&client, 0, false).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.message().contains("has 1 files, such as /w"),
        "{refused}"
    );
    let sent = copy(&mut new).await;
    made(&mut new, sent).await;
    assert_eq!(old.removed().await, [written]);
    let end = drained(&client, is_empty).await;
    assert_eq!((end.files_moved, end.bytes_moved), (2, 10));
    assert_eq!(remove(&client, 0, false).await.unwrap(), 0);
    let nodes = client.status().await.unwrap().nodes;
    assert_eq!(nodes.iter().map(|one| one.node).collect::<Vec<_>>(), [1]);
    assert!(
        refused_to_join(&client, 0)
            .await
            .contains("was removed from the cluster")
    );
    drop(client);
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    assert!(
        refused_to_join(&client, 0)
            .await
            .contains("was removed from the cluster")
    );
    assert!(listed(&client).await.drains.is_empty());
}

async fn refused_to_join(client: &Client, id: u32) -> String {
    let (out, receiver) = tokio::sync::mpsc::channel(1);
    let hello = v1::Hello {
        version: tidemill_wire::PROTOCOL_VERSION,
        node: Some(status(id)),
        ..v1::Hello::default()
    };
    let message = Some(v1::from_node::Message::Hello(hello));
    out.send(v1::FromNode { message }).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let joined = client.cluster().attach(stream).await;
    joined.unwrap_err().message().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn node_drain_continues_after_server_restart_at_any_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(dir.path()).await;
    let mut client = running.client().await;
    let mut old = node(&client, 0, "a").await;
    let mut new = node(&client, 1, "b").await;
    let (ino, object) = file(&client, "/f").await;
    drain(&client, 0, false).await.unwrap();
    let mut sent = copy(&mut new).await;
    for step in 0..3 {
        drop((client, old, new));
        running.crash().await;
        running = Running::start(dir.path()).await;
        client = running.client().await;
        old = node(&client, 0, "a").await;
        new = node(&client, 1, "b").await;
        assert!(client.status().await.unwrap().nodes[0].emptied);
        match step {
            0 => {
                let again = copy(&mut new).await;
                assert_eq!((again.0, again.1.to), (sent.0, object));
                sent = again;
            }
            1 => {
                let again = copy(&mut new).await;
                made(&mut new, again).await;
                while replicas(&client, ino).await != json!([at(1, "current")]) {
                    tokio::task::yield_now().await;
                }
            }
            _ => {
                assert_eq!(replicas(&client, ino).await, json!([at(1, "current")]));
                // Objects to remove wait until mounts have reported their open files. This changes their time as if they were listed now.
                let sql =
                    "UPDATE replica SET since = CAST(unixepoch('subsec') * 1000000000 AS INTEGER)";
                change(dir.path(), sql);
                assert_eq!(old.removed().await, [object]);
            }
        }
    }
    drained(&client, is_empty).await;
    assert_eq!(open(&client, ino).await.object, object);
}

#[tokio::test(flavor = "multi_thread")]
async fn version_removed_during_migration_is_removed_on_both_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut old = node(&client, 0, "a").await;
    let mut new = node(&client, 1, "b").await;
    let (ino, object) = file(&client, "/f").await;
    let (_, kept) = file(&client, "/g").await;
    drain(&client, 0, false).await.unwrap();
    let first = copy(&mut new).await;
    let second = copy(&mut new).await;
    assert_eq!((first.1.to, second.1.to), (object, kept));
    // One file is deleted, and the other is overwritten.
    unlink(&client, 1, "f").await;
    assert_eq!(old.removed().await, [object]);
    made(&mut new, first).await;
    assert_eq!(new.removed().await, [object]);
    let vnode = crate::cluster::stat(&client, "/g").await.unwrap();
    let (_, next) = client.reserve(0, 1).await.unwrap();
    let version = v1::NewVersion {
        ino: vnode.ino,
        object: next.0,
        ..v1::NewVersion::default()
    };
    match one(&client, Op::NewVersion(version)).await.unwrap() {
        Answer::Opened(opened) => assert_eq!(opened.node, 1, "not on its former node"),
        other => panic!("{other:?}"),
    }
    seal(&client, vnode.ino, next.0, "").await.unwrap();
    made(&mut new, second).await;
    assert_eq!(new.removed().await, [kept]);
    assert_eq!(old.removed().await, [kept]);
    drained(&client, is_empty).await;
    let left =
        "SELECT (SELECT count(*) FROM replica WHERE want != 2) + (SELECT count(*) FROM short)";
    assert_eq!(rows(dir.path(), left), 0);
    assert_eq!(
        replicas(&client, vnode.ino).await,
        json!([at(1, "current")])
    );
    assert!(
        crate::cluster::stat(&client, "/f")
            .await
            .is_none_or(|attr| attr.ino != ino)
    );
}

/// Opens the stream of a mount that has a file open.
async fn reader(client: &Client, ino: u64) -> tonic::Streaming<v1::Invalidation> {
    let request = v1::WatchRequest::default();
    let mut stream = client.names().watch(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let session = first.session;
    let op = v1::NameOp {
        op: Some(Op::Open(v1::Open {
            ino,
            ..v1::Open::default()
        })),
    };
    let request = v1::NameRequest {
        credentials: Some(root()),
        session,
        ops: vec![op],
        ..v1::NameRequest::default()
    };
    client.names().apply(request).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn migrated_object_is_removed_from_source_after_its_last_reader() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut old = node(&client, 0, "a").await;
    let mut new = node(&client, 1, "b").await;
    let (ino, object) = file(&client, "/f").await;
    let (_, other) = file(&client, "/g").await;
    let reading = reader(&client, ino).await;
    drain(&client, 0, false).await.unwrap();
    for _ in 0..2 {
        let sent = copy(&mut new).await;
        made(&mut new, sent).await;
    }
    assert_eq!(old.removed().await, [other], "the other is read");
    let left = drained(&client, |drain| drain.removals == 1).await;
    assert_eq!((left.files_left, left.files_moved), (0, 2));
    let refused = remove(&client, 0, false).await.unwrap_err();
    assert!(
        refused
            .message()
            .contains("1 objects that are still to be removed"),
        "{refused}"
    );
    // A client that opens the file now reads it on the other node, and keeps no object on this one.
    let _later = reader(&client, ino).await;
    drop(reading);
    assert_eq!(old.removed().await, [object]);
    drained(&client, is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_removal_is_cancelled_if_other_replicas_are_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut old = node(&client, 0, "a").await;
    let mut new = node(&client, 1, "b").await;
    let (ino, object) = file(&client, "/f").await;
    let reader = reader(&client, ino).await;
    drain(&client, 0, false).await.unwrap();
    let sent = copy(&mut new).await;
    made(&mut new, sent).await;
    while rows(dir.path(), "SELECT count(*) FROM replica WHERE want = 2") == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(replicas(&client, ino).await, json!([at(1, "current")]));
    // A client reads the replica there, so it is not removed yet.
    let corrupt = v1::CorruptObjects {
        objects: vec![v1::CorruptObject {
            object,
            what: "is missing".into(),
        }],
    };
    new.send(From::Corrupt(corrupt)).await;
    let sent = copy(&mut new).await;
    assert_eq!(sent.1.from.as_ref().unwrap().node, 0);
    assert_eq!(
        rows(dir.path(), "SELECT count(*) FROM replica WHERE want = 2"),
        0
    );
    made(&mut new, sent).await;
    drop(reader);
    assert_eq!(old.removed().await, [object]);
    assert_eq!(replicas(&client, ino).await, json!([at(1, "current")]));
    drained(&client, is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_node_finishes_tasks_and_gets_no_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut old = node(&client, 0, "a").await;
    let mut new = node(&client, 1, "b").await;
    let (_, object) = file(&client, "/f").await;
    let script = |name: &str, pin: &str| {
        format!(
            r#"name = "{name}"; workdir = "/"; tasks = ( {{ name = "t"; kernel = "wordcount"; {pin}
            input = ["f"]; output = ["{name}.out"]; stdout = "{name}.out"; }} );"#
        )
    };
    let first = submit(&client, 0, &script("one", "node = 0;")).await;
    let (label, analyse) = old.labels().await.remove(0);
    drain(&client, 0, false).await.unwrap();
    drained(&client, |drain| drain.labels == 1).await;
    let sent = copy(&mut new).await;
    assert_eq!(sent.1.to, object);
    made(&mut new, sent).await;
    drained(&client, |drain| drain.files_moved == 1).await;
    // The file is on the other node, and tasks run there. The input of a running task stays until its job has ended.
    let second = submit(&client, 0, &script("two", "")).await;
    let (other, read) = new.labels().await.remove(0);
    assert_eq!((read.inputs[0].object, read.inputs[0].node), (object, 1));
    new.finished(other, success(&read, 5)).await;
    crate::cluster::ended(&client, second.job).await;
    let third = submit(&client, 0, &script("three", "node = 0;")).await;
    let waits = loop {
        let job = crate::cluster::job(&client, third.job).await;
        if let Some(task) = job.tasks.iter().find(|task| !task.error.is_empty()) {
            break task.error.clone();
        }
        tokio::task::yield_now().await;
    };
    assert!(waits.contains("node 0, which is being drained"), "{waits}");
    old.finished(label, success(&analyse, 5)).await;
    let made_there = copy(&mut new).await;
    assert_eq!(made_there.1.path, "/one.out");
    made(&mut new, made_there).await;
    crate::cluster::ended(&client, first.job).await;
    // The node may have tasks again.
    drain(&client, 0, true).await.unwrap();
    let (_, analyse) = old.labels().await.remove(0);
    assert_eq!(analyse.outputs[0].path, "/three.out");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_drain_or_removal_is_refused_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let _first = node(&client, 0, "a").await;
    file(&client, "/f").await;
    let reported = |refused: Result<v1::Drain, Status>| refused.unwrap_err().message().to_owned();
    assert!(reported(drain(&client, 0, false).await).contains("the last one that keeps data"));
    assert!(reported(drain(&client, 7, false).await).contains("not part of the cluster"));
    assert!(reported(drain(&client, 0, true).await).contains("is not being emptied"));
    let compute = v1::Node {
        role: "server-cores".into(),
        ..status(1000)
    };
    let _compute = FakeNode::attach_as(&client, compute, Vec::new()).await;
    assert!(reported(drain(&client, 0, false).await).contains("the last one that keeps data"));
    let full = v1::Node {
        free_bytes: 1000,
        ..status(1)
    };
    let _full = FakeNode::attach_as(&client, full, Vec::new()).await;
    let third = node(&client, 2, "c").await;
    drop(third);
    while client.status().await.unwrap().nodes[2].up {
        tokio::task::yield_now().await;
    }
    for (target, why) in [
        (9, "not part of the cluster"),
        (1000, "keeps no data"),
        (2, "is down"),
        (1, "has 1000 bytes free, and 16777221 are needed"),
    ] {
        let refused = move_to(&client, (root(), "/f"), target).await.unwrap_err();
        assert!(refused.message().contains(why), "{refused}");
    }
    let missing = move_to(&client, (root(), "/none"), 1).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let there = move_to(&client, (root(), "/f"), 0).await.unwrap();
    assert_eq!((there.files, there.there), (0, 1));
    let strange = move_to(&client, (user(1000), "/f"), 0).await.unwrap_err();
    assert!(
        strange.message().contains("only its owner or root"),
        "{strange}"
    );
    // Two nodes can be emptied at once, but not the last.
    drain(&client, 1, false).await.unwrap();
    drain(&client, 1, false).await.unwrap();
    let onto = move_to(&client, (root(), "/f"), 1).await.unwrap_err();
    assert!(onto.message().contains("being emptied"), "{onto}");
    drain(&client, 2, false).await.unwrap();
    assert!(reported(drain(&client, 0, false).await).contains("the last one that keeps data"));
    drain(&client, 2, true).await.unwrap();
    drain(&client, 0, false).await.unwrap();
    // All remaining nodes are full or offline: the emptying waits, and reports that.
    let waits = drained(&client, |drain| drain.files_waiting == 1).await;
    assert_eq!((waits.node, waits.files_left, waits.bytes_left), (0, 1, 5));
    assert_eq!(
        client.status().await.unwrap().replicas.unwrap().unavailable,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_of_dead_node_reports_files_without_other_replica_as_lost() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let dead = node(&client, 0, "a").await;
    let _other = node(&client, 1, "b").await;
    let (ino, _) = file(&client, "/f").await;
    begun(&client, "/w", Some(0)).await.unwrap();
    let up = remove(&client, 0, true).await.unwrap_err();
    assert!(up.message().contains("is up"), "{up}");
    drop(dead);
    while client.status().await.unwrap().nodes[0].up {
        tokio::task::yield_now().await;
    }
    let refused = remove(&client, 0, false).await.unwrap_err();
    assert!(
        refused.message().contains("1 files, such as /f"),
        "{refused}"
    );
    assert_eq!(remove(&client, 0, true).await.unwrap(), 1);
    let health = loop {
        let health = client.status().await.unwrap().replicas.unwrap();
        if health.unavailable == 1 {
            break health;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(health.unavailable_paths, [b"/f".to_vec()]);
    // The name exists until a client deletes or overwrites the file.
    assert_eq!(crate::cluster::stat(&client, "/f").await.unwrap().ino, ino);
    unlink(&client, 1, "f").await;
    assert_eq!(rows(dir.path(), "SELECT count(*) FROM short"), 0);
    let written = crate::cluster::stat(&client, "/w").await.unwrap();
    assert!(!written.writing, "it is abandoned, too");
    assert!(
        remove(&client, 1, true)
            .await
            .unwrap_err()
            .message()
            .contains("the last one")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_migrates_to_node_unless_migration_is_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut old = node(&client, 0, "a").await;
    let _between = node(&client, 1, "b").await;
    let mut new = node(&client, 2, "c").await;
    let (ino, object) = file(&client, "/f").await;
    let (other, abandoned) = file(&client, "/g").await;
    let moved = move_to(&client, (root(), "/"), 2).await.unwrap();
    assert_eq!((moved.files, moved.bytes, moved.there), (2, 10, 0));
    let first = copy(&mut new).await;
    let second = copy(&mut new).await;
    let labels = listed(&client).await;
    let reported: Vec<_> = labels
        .labels
        .iter()
        .map(|one| (one.kind.as_str(), one.why.as_str(), one.from))
        .collect();
    assert_eq!(reported, [("copy", "move", 0), ("copy", "move", 0)]);
    assert_eq!(labels.labels[0].path, b"/f");
    assert_eq!(
        (labels.pending[0].why.as_str(), labels.pending[0].files),
        ("move", 2)
    );
    let cancel = v1::MoveRequest {
        credentials: Some(root()),
        path: "/g".into(),
        cancel: true,
        ..v1::MoveRequest::default()
    };
    let cancelled = client.places().r#move(cancel).await.unwrap().into_inner();
    assert_eq!(cancelled.files, 1);
    made(&mut new, first).await;
    made(&mut new, second).await;
    assert_eq!(old.removed().await, [object]);
    assert_eq!(
        new.removed().await,
        [abandoned],
        "more replicas exist than wanted"
    );
    assert_eq!(replicas(&client, ino).await, json!([at(2, "current")]));
    assert_eq!(replicas(&client, other).await, json!([at(0, "current")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_migration_leaves_version_on_its_node() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let _old = node(&client, 0, "a").await;
    let mut new = node(&client, 1, "b").await;
    let (ino, _) = file(&client, "/f").await;
    drain(&client, 0, false).await.unwrap();
    let sent = copy(&mut new).await;
    new.finished(sent.0, failure("device", "the disk is full"))
        .await;
    new.acknowledged(vec![sent.0]).await;
    assert_eq!(replicas(&client, ino).await, json!([at(0, "leaving")]));
    let replicas = client.status().await.unwrap().replicas.unwrap();
    assert_eq!(
        (replicas.short, replicas.unavailable),
        (0, 0),
        "nothing is in danger"
    );
    change(dir.path(), "UPDATE short SET at = 0");
    let sent = copy(&mut new).await;
    made(&mut new, sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_created_after_migration_was_cancelled_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let _old = node(&client, 0, "a").await;
    let mut new = node(&client, 1, "b").await;
    let (_, object) = file(&client, "/f").await;
    drain(&client, 0, false).await.unwrap();
    let sent = copy(&mut new).await;
    new.finished(sent.0, failure("device", "no space for the label"))
        .await;
    new.acknowledged(vec![sent.0]).await;
    drain(&client, 0, true).await.unwrap();
    // The message that carried the replica arrived twice.
    made(&mut new, sent).await;
    assert_eq!(new.removed().await, [object]);
}

/// Stages out the objects at a path from the burst tier. Returns the number of objects that are not staged out yet.
async fn staged(client: &Client, path: &str) -> u64 {
    let request = v1::StageRequest {
        credentials: Some(root()),
        path: path.into(),
        ..v1::StageRequest::default()
    };
    let staged = client.places().stage(request).await;
    staged.unwrap().into_inner().objects
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_lost_storage_node_are_staged_out_again() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut dead = node(&client, 0, "a").await;
    let status = v1::Node {
        tier: tidemill_wire::convert::BURST.into(),
        ..status(2)
    };
    let _tier = FakeNode::attach_as(&client, status, Vec::new()).await;
    let (ino, object, _) = begun(&client, "/f", Some(2)).await.unwrap();
    seal(&client, ino, object, "").await.unwrap();
    assert_eq!(staged(&client, "/f").await, 1);
    let sent = copy(&mut dead).await;
    made(&mut dead, sent).await;
    while staged(&client, "/f").await > 0 {
        tokio::task::yield_now().await;
    }
    let mut other = node(&client, 1, "b").await;
    drop(dead);
    while client.status().await.unwrap().nodes[0].up {
        tokio::task::yield_now().await;
    }
    assert_eq!(remove(&client, 0, true).await.unwrap(), 1);
    assert_eq!(staged(&client, "/f").await, 1, "it is stored nowhere");
    let sent = copy(&mut other).await;
    made(&mut other, sent).await;
    while staged(&client, "/f").await > 0 {
        tokio::task::yield_now().await;
    }
    let both = json!([at(2, "burst"), at(1, "current")]);
    assert_eq!(replicas(&client, ino).await, both);
}

fn change(dir: &Path, sql: &str) {
    let db = rusqlite::Connection::open(dir.join("server.db")).unwrap();
    db.execute(sql, []).unwrap();
}

/// Creates a file of 1 MiB on node 0. Returns the file's object.
async fn large(client: &Client, path: &str) -> u64 {
    let (ino, object, _) = begun(client, path, Some(0)).await.unwrap();
    let seal = sealing(client, (ino, object), 1 << 20).await;
    one(client, Op::Seal(seal)).await.unwrap();
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn rebalance_migrates_files_from_fullest_to_emptiest_node() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let small = |id, free_bytes| v1::Node {
        free_bytes,
        ..status(id)
    };
    let _full = FakeNode::attach_as(&client, small(0, 17 << 20), Vec::new()).await;
    let mut empty = FakeNode::attach_as(&client, small(1, 60 << 20), Vec::new()).await;
    let object = large(&client, "/f").await;
    large(&client, "/g").await;
    let request = |dry_run, cancel| v1::RebalanceRequest {
        dry_run,
        cancel,
        within_percent: 1,
    };
    let planned = client.places().rebalance(request(true, false)).await;
    let flow = v1::Flow {
        source: 0,
        target: 1,
        files: 1,
        bytes: 1 << 20,
    };
    assert_eq!(planned.unwrap().into_inner().flows, [flow]);
    assert_eq!(
        rows(dir.path(), "SELECT count(*) FROM replica WHERE want = 1"),
        0,
        "it was only asked"
    );
    client
        .places()
        .rebalance(request(false, false))
        .await
        .unwrap();
    let sent = copy(&mut empty).await;
    assert_eq!(sent.1.to, object);
    client
        .places()
        .rebalance(request(false, true))
        .await
        .unwrap();
    made(&mut empty, sent).await;
    assert_eq!(empty.removed().await, [object], "it was abandoned");
    let bad = v1::RebalanceRequest::default();
    let refused = client.places().rebalance(bad).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}
