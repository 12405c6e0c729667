//! Tests of state that survives: a node that is killed at work, restarts, and directories of other nodes.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidemill_model::id::ObjectId;
use tidemill_node::{Error, RunningNode};
use tidemill_wire::v1;

fn spawn(directory: &Path, server: &FakeServer) -> Child {
    Command::new(program())
        .args(["1".as_ref(), directory.as_os_str(), server.url.as_ref()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_node_loses_no_label_and_repeats_no_outcome() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let child = spawn(directory.path(), &server);
    let mut connection = server.welcomed().await;
    connection.labels(&[
        program_label(1, "sh", &["-c", "echo one > out"]).output("out", 11),
        program_label(2, "sh", &["-c", "sleep 1; cat in > out"])
            .input("in", 11, 1)
            .output("out", 12)
            .after(&[1]),
        program_label(3, "sh", &["-c", "cat in in > out"])
            .input("in", 12, 1)
            .output("out", 13)
            .after(&[2]),
    ]);
    let first = connection.finished(1).await;
    connection.running(2).await;
    // A directory that an interrupted run left must not disturb later runs.
    while !directory.path().join("run/2").exists() {
        tokio::task::yield_now().await;
    }
    kill(child);
    drop(connection);

    let child = spawn(directory.path(), &server);
    let mut connection = server.connection().await;
    let mut known = connection.hello.labels.clone();
    known.sort_unstable();
    assert_eq!(known, [1, 2, 3]);
    connection.welcome(CLUSTER);
    assert_eq!(connection.finished(1).await, first);
    assert_eq!(sealed(&connection.finished(2).await), [(12, 4)]);
    assert_eq!(sealed(&connection.finished(3).await), [(13, 8)]);
    let bytes = std::fs::read(directory.path().join(ObjectId(13).relative_path())).unwrap();
    assert_eq!(bytes, b"one\none\n");
    connection.ack(&[1, 2, 3]);
    // The acknowledgement is in the database once the outcome of a later label is.
    connection.labels(&[program_label(4, "true", &[])]);
    connection.finished(4).await;
    kill(child);
    drop(connection);

    let child = spawn(directory.path(), &server);
    let connection = server.connection().await;
    assert_eq!(connection.hello.labels, [4]);
    kill(child);
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_sent_during_kill_of_node_are_known_or_not_run() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let labels: Vec<v1::Label> = (1..=300)
        .map(|id| {
            program_label(id, "sh", &["-c", "echo $TIDEMILL_TASK > out"]).output("out", 1000 + id)
        })
        .collect();
    let mut child = spawn(directory.path(), &server);
    let mut connection = server.welcomed().await;
    connection.labels(&labels);
    let mut finished = std::collections::BTreeMap::new();
    for round in 0..3 {
        // The node is killed in the middle of its work.
        for id in 20 * round + 1..=20 * (round + 1) {
            finished.insert(id, connection.finished(id).await);
        }
        kill(child);
        drop(connection);
        child = spawn(directory.path(), &server);
        connection = server.connection().await;
        let known: std::collections::BTreeSet<u64> =
            connection.hello.labels.iter().copied().collect();
        connection.welcome(CLUSTER);
        let missing: Vec<v1::Label> = labels
            .iter()
            .filter(|label| !known.contains(&label.id))
            .cloned()
            .collect();
        assert!(
            missing.is_empty(),
            "labels that were accepted are forgotten: {missing:?}"
        );
        // The same outcome is reported again.
        for (&id, outcome) in &finished {
            assert_eq!(&connection.finished(id).await, outcome);
        }
    }
    for id in 1..=300 {
        let outcome = match finished.remove(&id) {
            Some(outcome) => outcome,
            None => connection.finished(id).await,
        };
        assert_eq!(sealed(&outcome)[0].0, 1000 + id);
        let path = directory.path().join(ObjectId(1000 + id).relative_path());
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            format!("{}\n", 1000 + id)
        );
    }
    kill(child);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_node_resumes_its_labels() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let mut connection = server.welcomed().await;
    put(&node, 5, b"kept").await;
    connection.labels(&[program_label(1, "sh", &["-c", "sleep 0.5; cat in > out"])
        .input("in", 5, 1)
        .output("out", 6)]);
    connection.running(1).await;
    node.stop().await;
    drop(connection);
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let mut connection = server.welcomed().await;
    assert_eq!(connection.hello.labels, [1]);
    assert_eq!(sealed(&connection.finished(1).await), [(6, 4)]);
    // The key is stored, so the request does not wait for the server.
    assert_eq!(get(&node, 6).await, b"kept");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_directory_belongs_to_one_node_of_one_cluster() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    drop(server.welcomed().await);
    let twice = RunningNode::start(config(1, directory.path(), &server)).await;
    assert!(matches!(twice, Err(Error::InUse(_))), "{twice:?}");
    // The database has recorded the membership when the next hello contains it.
    let connection = server.connection().await;
    connection.welcome(CLUSTER);
    assert_eq!(connection.hello.cluster_id, CLUSTER);
    node.stop().await;
    drop(connection);

    let other = RunningNode::start(config(2, directory.path(), &server)).await;
    assert!(matches!(other, Err(Error::OtherNode { .. })), "{other:?}");

    let mut server = FakeServer::start().await;
    let mut node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let connection = server.connection().await;
    connection.welcome(CLUSTER + 1);
    let error = soon(node.failed()).await;
    assert!(
        matches!(error, Error::OtherCluster { ours: CLUSTER, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("belongs to cluster"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_attaches_when_missing_server_appears() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let address = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let mut config = config(1, directory.path(), &server);
    config.server = format!("http://{address}").parse().unwrap();
    let node = RunningNode::start(config).await.unwrap();
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let target = server.url.strip_prefix("http://").unwrap().to_owned();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = tokio::net::TcpStream::connect(&target).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let mut connection = server.welcomed().await;
    connection.labels(&[program_label(1, "true", &[])]);
    assert!(sealed(&connection.finished(1).await).is_empty());
    node.stop().await;
}
