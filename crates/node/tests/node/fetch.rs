//! Tests of inputs that are stored on another node.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use std::os::unix::fs::MetadataExt;
use tidemill_model::id::ObjectId;
use tidemill_node::RunningNode;
use tidemill_wire::v1;

struct PullPair {
    directories: [tempfile::TempDir; 2],
    nodes: [RunningNode; 2],
    connections: [Connection; 2],
}

async fn two(in_place: bool, input_cache_bytes_max: u64) -> PullPair {
    let directories = [directory(), directory()];
    let mut server = FakeServer::start().await;
    let mut nodes = Vec::new();
    let mut connections = Vec::new();
    for (id, directory) in (1..).zip(&directories) {
        let mut config = config(id, directory.path(), &server);
        config.in_place = in_place;
        config.input_cache_bytes_max = input_cache_bytes_max;
        nodes.push(RunningNode::start(config).await.unwrap());
        connections.push(server.welcomed().await);
    }
    let known: Vec<v1::Node> = connections
        .iter()
        .map(|connection| connection.hello.node.clone().unwrap())
        .collect();
    for connection in &connections {
        connection.peers(known.clone());
    }
    PullPair {
        directories,
        nodes: nodes.try_into().unwrap(),
        connections: connections.try_into().unwrap_or_else(|_| unreachable!()),
    }
}

async fn stop(two: PullPair) {
    for node in two.nodes {
        node.stop().await;
    }
}

fn count(id: u64) -> v1::Label {
    program_label(id, "sh", &["-c", "wc -c < in > out"])
        .input("in", 5, 1)
        .output("out", 100 + id)
}

async fn fetched_is_shared(in_place: bool) {
    let mut two = two(in_place, 1 << 30).await;
    let data = vec![b'x'; 3_000_000];
    put(&two.nodes[0], 5, &data).await;
    let connection = &mut two.connections[1];
    let labels: Vec<v1::Label> = (1..=6).map(count).collect();
    connection.labels(&labels);
    let mut moved = 0;
    for id in 1..=6 {
        let outcome = connection.finished(id).await;
        assert_eq!(sealed(&outcome), [(100 + id, 8)]);
        assert_eq!(outcome.read_bytes, 3_000_000);
        moved += outcome.transferred_bytes;
        assert_eq!(get(&two.nodes[1], 100 + id).await, b"3000000\n");
    }
    assert_eq!(moved, 3_000_000, "only the first of them moves it");
    let fetched = two.directories[1]
        .path()
        .join("input-cache")
        .join(format!("{:016x}", 5));
    let original = two.directories[0].path().join(ObjectId(5).relative_path());
    let same =
        std::fs::metadata(fetched).unwrap().ino() == std::fs::metadata(original).unwrap().ino();
    assert_eq!(same, in_place);
    stop(two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_fetched_once_for_all_tasks_over_http() {
    fetched_is_shared(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_linked_once_for_all_tasks_on_one_host() {
    fetched_is_shared(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_fetched_inputs_are_dropped_beyond_limit() {
    let mut two = two(false, 100).await;
    put(&two.nodes[0], 5, &[b'x'; 1000]).await;
    let connection = &mut two.connections[1];
    for id in [1, 2] {
        connection.labels(&[count(id)]);
        assert_eq!(connection.finished(id).await.transferred_bytes, 1000);
    }
    let fetched = two.directories[1].path().join("input-cache");
    assert_eq!(std::fs::read_dir(fetched).unwrap().count(), 0);
    stop(two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_label_stores_object_on_other_node() {
    for in_place in [false, true] {
        let mut two = two(in_place, 0).await;
        put(&two.nodes[0], 5, b"worth a copy").await;
        let connection = &mut two.connections[1];
        connection.labels(&[copy_label(1, 5, 1, 50), copy_label(2, 6, 1, 60)]);
        let outcome = connection.finished(1).await;
        assert_eq!(sealed(&outcome), [(50, 12)]);
        assert_eq!(outcome.transferred_bytes, 12);
        assert_eq!(get(&two.nodes[1], 50).await, b"worth a copy");
        let missing = connection.finished(2).await;
        assert_eq!(failure(&missing).kind, "input");
        stop(two).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fetch_requires_capability_and_connected_peer() {
    let mut two = two(false, 0).await;
    put(&two.nodes[0], 5, b"x").await;
    let mut label = count(1);
    analyse(&mut label).inputs[0].capability = capability(1, 6, 1);
    let connection = &mut two.connections[1];
    connection.labels(&[label]);
    let refused = connection.finished(1).await;
    assert_eq!(failure(&refused).kind, "input");
    assert!(failure(&refused).message.contains("403"), "{refused:?}");
    let [first, second] = two.nodes;
    first.stop().await;
    connection.labels(&[count(2)]);
    let lost = connection.finished(2).await;
    assert_eq!(failure(&lost).kind, "input");
    second.stop().await;
}
