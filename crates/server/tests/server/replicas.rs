//! Replicas of files on several nodes: the wanted number, their creation, and their removal with their version.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cluster::replicas::{
    at, attribute, copy, file, made, node, one, replicas, rows, seal, unlink,
};
use crate::cluster::{
    FakeNode, Running, ended, failure, root, stat, status, submit, success, user,
};
use rustix::io::Errno;
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use tidemill_client::Server as Client;
use tidemill_server::ServeConfig;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Creates a directory with this wanted number of replicas for its files. Returns the directory's inode.
async fn directory(client: &Client, name: &str, replicas: &str) -> u64 {
    let (ino, _) = client.reserve(1, 0).await.unwrap();
    let create = v1::Create {
        parent: 1,
        name: name.into(),
        kind: v1::Kind::Directory.into(),
        mode: 0o755,
        ino: ino.0,
        ..v1::Create::default()
    };
    one(client, Op::Create(create)).await.unwrap();
    set(client, ino.0, replicas).await.unwrap();
    ino.0
}

async fn set(client: &Client, ino: u64, replicas: &str) -> Result<Answer, tidemill_client::Error> {
    let set = v1::SetXattr {
        ino,
        name: b"user.tidemill.replicas".to_vec(),
        value: replicas.into(),
        ..v1::SetXattr::default()
    };
    one(client, Op::SetXattr(set)).await
}

/// Two nodes of different hosts, and a file with two wanted replicas.
struct Two {
    client: Client,
    first: FakeNode,
    other: FakeNode,
    directory: u64,
    ino: u64,
    object: u64,
}

/// Creates a file on the first of two nodes of different hosts. The server is to create a replica of the file on the second node.
async fn two(running: &Running) -> Two {
    let client = running.client().await;
    let first = node(&client, 0, "a").await;
    let other = node(&client, 1, "b").await;
    let directory = directory(&client, "d", "2").await;
    let (ino, object) = file(&client, "/d/f").await;
    Two {
        client,
        first,
        other,
        directory,
        ino,
        object,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_is_created_on_other_host_and_removed_with_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut first = node(&client, 0, "a").await;
    let mut same_host = node(&client, 1, "a").await;
    let mut other_host = node(&client, 2, "b").await;
    let directory = directory(&client, "d", "2").await;
    let (ino, object) = file(&client, "/d/f").await;
    let (label, sent) = copy(&mut other_host).await;
    let from = sent.from.as_ref().unwrap();
    assert_eq!((from.object, from.node, sent.to), (object, 0, object));
    assert!(!from.capability.is_empty());
    assert_eq!((sent.ino, sent.path.as_str()), (ino, "/d/f"));
    let coming = json!([at(0, "current"), at(2, "coming")]);
    assert_eq!(replicas(&client, ino).await, coming);
    made(&mut other_host, (label, sent)).await;
    let current = json!([at(0, "current"), at(2, "current")]);
    assert_eq!(replicas(&client, ino).await, current);
    assert_eq!(attribute(&client, ino, "user.tidemill.replicas").await, "2");
    // After the next version is begun, the version before is removed from both nodes.
    let (_, next) = client.reserve(0, 1).await.unwrap();
    let new = v1::NewVersion {
        ino,
        object: next.0,
        ..v1::NewVersion::default()
    };
    one(&client, Op::NewVersion(new)).await.unwrap();
    // The writer of this version wants three replicas.
    seal(&client, ino, next.0, "3").await.unwrap();
    let (second, third) = tokio::join!(copy(&mut other_host), copy(&mut same_host));
    made(&mut other_host, second).await;
    made(&mut same_host, third).await;
    let all = json!([at(0, "current"), at(1, "current"), at(2, "current")]);
    assert_eq!(replicas(&client, ino).await, all);
    assert_eq!(first.removed().await, [object]);
    assert_eq!(other_host.removed().await, [object]);
    unlink(&client, directory, "f").await;
    for node in [&mut first, &mut same_host, &mut other_host] {
        assert_eq!(node.removed().await, [next.0]);
    }
    assert_eq!(
        rows(dir.path(), "SELECT count(*) FROM replica WHERE want != 2"),
        0
    );
}

/// Returns the node from which the server directs a client to read a version, if the nodes in `avoid` did not answer the client.
async fn read_from(client: &Client, ino: u64, avoid: &[u32]) -> u32 {
    let open = v1::Open {
        ino,
        avoid: avoid.to_vec(),
        ..v1::Open::default()
    };
    match one(client, Op::Open(open)).await.unwrap() {
        Answer::Opened(opened) => {
            assert!(!opened.capability.is_empty());
            opened.node
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn version_is_read_from_any_available_replica() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let Two {
        client,
        first,
        mut other,
        ino,
        ..
    } = two(&running).await;
    let sent = copy(&mut other).await;
    assert_eq!(read_from(&client, ino, &[0]).await, 0, "it is being made");
    made(&mut other, sent).await;
    for (avoid, expected) in [
        (vec![], 0),
        (vec![1], 0),
        (vec![0], 1),
        (vec![0, 1], 0),
        (vec![u32::MAX, 7], 0),
    ] {
        let node = read_from(&client, ino, &avoid).await;
        assert_eq!(node, expected, "{avoid:?}");
    }
    drop(first);
    while replicas(&client, ino).await[0] != at(0, "offline") {
        tokio::task::yield_now().await;
    }
    for avoid in [vec![], vec![0]] {
        assert_eq!(read_from(&client, ino, &avoid).await, 1);
    }
    // A new version that begins with the content of the version before is placed on a node with that content.
    let (_, object) = client.reserve(0, 1).await.unwrap();
    let new = v1::NewVersion {
        ino,
        object: object.0,
        node: Some(0),
        ..v1::NewVersion::default()
    };
    match one(&client, Op::NewVersion(new)).await.unwrap() {
        Answer::Opened(opened) => assert_eq!(opened.node, 1),
        other => panic!("{other:?}"),
    }
    drop(other);
    while replicas(&client, ino).await[1] != at(1, "offline") {
        tokio::task::yield_now().await;
    }
    assert_eq!(read_from(&client, ino, &[]).await, 0, "no node is up");
}

#[tokio::test(flavor = "multi_thread")]
async fn job_reads_replica_of_input_on_absent_node() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let Two {
        client,
        first,
        mut other,
        object,
        ..
    } = two(&running).await;
    let sent = copy(&mut other).await;
    made(&mut other, sent).await;
    drop(first);
    let mut third = node(&client, 2, "c").await;
    let script = r#"name = "j"; workdir = "/d"; tasks = ( { name = "t"; kernel = "wordcount"; node = 2;
        input = ["f"]; output = ["out"]; stdout = "out"; } );"#;
    let reply = submit(&client, 0, script).await;
    assert!(reply.job > 0, "{reply:?}");
    let (_, analyse) = third.labels().await.remove(0);
    let input = &analyse.inputs[0];
    assert_eq!((input.object, input.node), (object, 1));
    assert!(!input.capability.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_result_is_read_from_replica_if_node_is_offline() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let Two {
        client,
        mut first,
        mut other,
        ..
    } = two(&running).await;
    let sent = copy(&mut other).await;
    made(&mut other, sent).await;
    let script = |node: u32| {
        format!(
            r#"name = "j"; workdir = "/d"; tasks = ( {{ name = "t"; kernel = "wordcount"; node = {node};
            input = ["f"]; output = ["out"]; stdout = "out"; }} );"#
        )
    };
    let reply = submit(&client, 0, &script(0)).await;
    let (label, analyse) = first.labels().await.remove(0);
    first.finished(label, success(&analyse, 5)).await;
    ended(&client, reply.job).await;
    let sent = copy(&mut other).await;
    let result = sent.1.to;
    made(&mut other, sent).await;
    drop(first);
    let ino = stat(&client, "/d/out").await.unwrap().ino;
    while replicas(&client, ino).await != json!([at(0, "offline"), at(1, "current")]) {
        tokio::task::yield_now().await;
    }
    let again = v1::SubmitRequest {
        credentials: Some(root()),
        script: script(1),
        replace: true,
        ..v1::SubmitRequest::default()
    };
    client.jobs().submit(again).await.unwrap();
    let (_, analyse) = other.labels().await.remove(0);
    let cached_result = analyse.cached_result.unwrap();
    let output = &cached_result.outputs[0];
    assert_eq!((output.object, output.node), (result, 1));
}

/// Waits until the server reports the expected state of replicas.
async fn health(
    client: &Client,
    expected: impl Fn(&v1::ReplicaHealth) -> bool,
) -> v1::ReplicaHealth {
    loop {
        let replicas = client.status().await.unwrap().replicas.unwrap();
        if expected(&replicas) {
            return replicas;
        }
        tokio::task::yield_now().await;
    }
}

fn soon(dir: &Path) -> ServeConfig {
    ServeConfig {
        node_timeout: Duration::from_millis(300),
        repair_after: Duration::from_millis(300),
        tls: false,
        ..ServeConfig::new(dir)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_lost_node_are_recreated_and_removed_when_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start_with(soon(dir.path())).await;
    let Two {
        client,
        mut first,
        other: mut lost,
        ino,
        object,
        ..
    } = two(&running).await;
    let sent = copy(&mut lost).await;
    made(&mut lost, sent).await;
    let (other_ino, other) = file(&client, "/d/g").await;
    let sent = copy(&mut lost).await;
    made(&mut lost, sent).await;
    health(&client, |replicas| replicas.short == 0).await;
    let mut third = node(&client, 2, "c").await;
    drop(lost);
    let reported = health(&client, |replicas| replicas.failed_nodes == [1]).await;
    assert_eq!(
        (reported.unavailable, reported.unavailable_paths.len()),
        (0, 0)
    );
    let sent = copy(&mut third).await;
    let from = sent.1.from.as_ref().unwrap();
    assert_eq!((from.object, from.node), (object, 0));
    // The server dies, and still knows the loss afterwards.
    drop((first, third, client));
    running.crash().await;
    let slow = ServeConfig {
        repair_after: Duration::from_secs(3600),
        ..soon(dir.path())
    };
    let running = Running::start_with(slow).await;
    let client = running.client().await;
    first = node(&client, 0, "a").await;
    third = node(&client, 2, "c").await;
    let mut objects = Vec::new();
    for _ in 0..2 {
        let sent = copy(&mut third).await;
        objects.push(sent.1.to);
        made(&mut third, sent).await;
    }
    assert_eq!(objects, [object, other]);
    health(&client, |replicas| replicas.short == 0).await;
    let three = json!([at(0, "current"), at(1, "offline"), at(2, "current")]);
    assert_eq!(replicas(&client, ino).await, three);
    // The node reconnects with its replica. One of three replicas is too many, and the first replica is not on this node.
    let back = node(&client, 1, "b").await;
    assert_eq!(third.removed().await, [object, other]);
    let two = json!([at(0, "current"), at(1, "current")]);
    assert_eq!(replicas(&client, ino).await, two);
    assert_eq!(replicas(&client, other_ino).await, two);
    health(&client, |replicas| {
        replicas.short == 0 && replicas.failed_nodes.is_empty()
    })
    .await;
    drop((first, back));
}

#[tokio::test(flavor = "multi_thread")]
async fn file_without_remaining_replica_is_reported_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start_with(soon(dir.path())).await;
    let client = running.client().await;
    let first = node(&client, 0, "a").await;
    let mut second = node(&client, 1, "b").await;
    let mut third = node(&client, 2, "c").await;
    directory(&client, "d", "2").await;
    let (_, object) = file(&client, "/d/f").await;
    let sent = tokio::select! {
        sent = copy(&mut second) => sent,
        sent = copy(&mut third) => sent,
    };
    assert_eq!(sent.1.to, object);
    drop((second, third, first));
    let reported = health(&client, |replicas| replicas.unavailable == 1).await;
    assert_eq!(reported.unavailable_paths, [b"/d/f".to_vec()]);
    assert_eq!((reported.short, reported.failed_nodes), (1, vec![0, 1, 2]));
    // The loss ends when a node with the file reconnects.
    let _first = node(&client, 0, "a").await;
    health(&client, |replicas| replicas.unavailable == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_is_completed_after_server_and_node_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let Two {
        client,
        first: _first,
        mut other,
        ino,
        ..
    } = two(&running).await;
    let sent = copy(&mut other).await;
    drop(other);
    let mut other = node(&client, 1, "b").await;
    assert_eq!(copy(&mut other).await.0, sent.0);
    drop((other, client));
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let _first = node(&client, 0, "a").await;
    let mut other = node(&client, 1, "b").await;
    let again = copy(&mut other).await;
    assert_eq!((again.0, again.1.to), (sent.0, sent.1.to));
    // The replica can't be created. Nothing is left of it, and the creation is retried.
    let full = failure("device", "the disk is full");
    other.finished(again.0, full).await;
    other.acknowledged(vec![again.0]).await;
    assert_eq!(replicas(&client, ino).await, json!([at(0, "current")]));
    let db = rusqlite::Connection::open(dir.path().join("server.db")).unwrap();
    db.execute("UPDATE short SET at = 0", []).unwrap();
    let third = copy(&mut other).await;
    assert!(third.0 > again.0);
    made(&mut other, third).await;
    let both = json!([at(0, "current"), at(1, "current")]);
    assert_eq!(replicas(&client, ino).await, both);
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_created_after_removal_of_its_version_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let Two {
        client,
        mut first,
        mut other,
        directory,
        object,
        ..
    } = two(&running).await;
    let sent = copy(&mut other).await;
    unlink(&client, directory, "f").await;
    assert_eq!(first.removed().await, [object]);
    made(&mut other, sent).await;
    assert_eq!(other.removed().await, [object]);
    let left =
        "SELECT (SELECT count(*) FROM replica WHERE want != 2) + (SELECT count(*) FROM short)";
    assert_eq!(rows(dir.path(), left), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_replicas_wait_for_node_that_can_store_them() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let _first = node(&client, 0, "a").await;
    directory(&client, "d", "2").await;
    let (ino, object) = file(&client, "/d/f").await;
    // The server has looked for a node.
    let rested = "SELECT count(*) FROM short WHERE at > 1000000000 * (1 + unixepoch('subsec'))";
    while rows(dir.path(), rested) == 0 {
        tokio::task::yield_now().await;
    }
    // A compute node stores no replica, but the same host is better than no replica.
    let host = v1::Node {
        role: "server-cores".into(),
        ..status(1000)
    };
    let _host = FakeNode::attach_as(&client, host, Vec::new()).await;
    let mut second = node(&client, 1, "a").await;
    let sent = copy(&mut second).await;
    assert_eq!(sent.1.to, object);
    made(&mut second, sent).await;
    let both = json!([at(0, "current"), at(1, "current")]);
    assert_eq!(replicas(&client, ino).await, both);
    drop(second);
    while replicas(&client, ino).await[1] != at(1, "offline") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_replica_count_is_refused_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let _node = node(&client, 0, "a").await;
    let directory = directory(&client, "d", " 8\n").await;
    for bad in [
        "0",
        "9",
        "",
        "-1",
        "two",
        "4294967297",
        "2,",
        "2,NOW",
        "now",
    ] {
        let error = set(&client, directory, bad).await.unwrap_err();
        assert!(error.is(Errno::INVAL), "{bad}: {error}");
        assert!(error.to_string().contains("give 1 to 8"), "{error}");
    }
    let (ino, object) = file(&client, "/f").await;
    let error = set(&client, ino, "2").await.unwrap_err();
    assert!(
        error.to_string().contains("user.tidemill.replicas"),
        "{error}"
    );
    let (new, object_2) = client.reserve(1, 1).await.unwrap();
    let create = v1::Create {
        name: b"/g".to_vec(),
        kind: v1::Kind::File.into(),
        ino: new.0,
        object: object_2.0,
        ..v1::Create::default()
    };
    one(&client, Op::Create(create)).await.unwrap();
    for bad in ["0", "9", "2,later"] {
        let error = seal(&client, new.0, object_2.0, bad).await;
        assert!(error.unwrap_err().is(Errno::INVAL));
    }
    // The version is not affected: it can still be sealed.
    assert!(stat(&client, "/g").await.unwrap().writing);
    seal(&client, new.0, object_2.0, "1").await.unwrap();
    // A user who may not write a directory may not set its number of replicas.
    let strange = v1::SetXattr {
        ino: directory,
        name: b"user.tidemill.replicas".to_vec(),
        value: b"2".to_vec(),
        ..v1::SetXattr::default()
    };
    let refused = client.one(&user(1000), Op::SetXattr(strange)).await;
    assert!(refused.unwrap_err().is(Errno::ACCESS));
    assert_eq!(replicas(&client, ino).await, json!([at(0, "current")]));
    assert_eq!(stat(&client, "/f").await.unwrap().object, object);
}

/// Seals a file's next version on the node that its directory selects. Returns the object, and whether the server creates replicas.
async fn next_version(client: &Client, ino: u64) -> (u64, bool) {
    let (_, object) = client.reserve(0, 1).await.unwrap();
    let new = v1::NewVersion {
        ino,
        object: object.0,
        ..v1::NewVersion::default()
    };
    one(client, Op::NewVersion(new)).await.unwrap();
    (object.0, waits(client, ino, object.0).await)
}

/// Seals a version, possibly again. Returns whether the client has to wait for replicas.
async fn waits(client: &Client, ino: u64, object: u64) -> bool {
    match seal(client, ino, object, "").await.unwrap() {
        Answer::Copying(_) => true,
        Answer::Attr(_) => false,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn seal_waits_for_replicas_if_wanted_and_possible() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let mut two = two(&running).await;
    let (client, ino) = (two.client.clone(), two.ino);
    let earlier = copy(&mut two.other).await;
    made(&mut two.other, earlier).await;
    set(&client, two.directory, "2,now").await.unwrap();
    let (object, waiting) = next_version(&client, ino).await;
    assert!(waiting);
    // The file is sealed for all clients except the waiting one.
    assert_eq!(stat(&client, "/d/f").await.unwrap().object, object);
    let label = copy(&mut two.other).await;
    assert!(waits(&client, ino, object).await);
    made(&mut two.other, label).await;
    assert!(!waits(&client, ino, object).await);
    // No client waits for replicas of a version that another version has replaced.
    let (old, waiting) = next_version(&client, ino).await;
    assert!(waiting);
    let label = copy(&mut two.other).await;
    let (object, _) = next_version(&client, ino).await;
    assert!(!waits(&client, ino, old).await);
    made(&mut two.other, label).await;
    // No client waits for a replica that can't be created, but the replica is still wanted.
    let (label, _) = copy(&mut two.other).await;
    assert!(waits(&client, ino, object).await);
    two.other
        .finished(label, failure("input", "it is not there"))
        .await;
    two.other.acknowledged(vec![label]).await;
    assert!(!waits(&client, ino, object).await);
    assert_eq!(attribute(&client, ino, "user.tidemill.replicas").await, "2");
    // If more replicas are wanted than there are nodes, as many as possible are created.
    set(&client, two.directory, "3,now").await.unwrap();
    let (object, waiting) = next_version(&client, ino).await;
    assert!(waiting);
    let label = copy(&mut two.other).await;
    made(&mut two.other, label).await;
    for _ in 0..100 {
        if !waits(&client, ino, object).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("a client waits for an impossible replica");
}
