//! Tests of replicas of many small objects in one batch: after failed copies, and after kills at any time.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use std::fs::Permissions;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidemill_client::Objects;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_node::{NodeConfig, RunningNode};
use tidemill_wire::capability::rights;
use tidemill_wire::replicas::{OBJECTS_MAX, ReplicaItem, decode};
use tidemill_wire::{route, v1};

/// Source node that has objects, and a node that copies the objects.
struct ReplicaPair {
    directories: [tempfile::TempDir; 2],
    nodes: [RunningNode; 2],
    connections: [Connection; 2],
}

async fn two(change: impl Fn(&mut NodeConfig)) -> ReplicaPair {
    let directories = [directory(), directory()];
    let mut server = FakeServer::start().await;
    let (mut nodes, mut connections) = (Vec::new(), Vec::new());
    for (id, directory) in (1..).zip(&directories) {
        let mut config = config(id, directory.path(), &server);
        change(&mut config);
        nodes.push(RunningNode::start(config).await.unwrap());
        connections.push(server.welcomed().await);
    }
    tell_peers(&connections);
    ReplicaPair {
        directories,
        nodes: nodes.try_into().unwrap(),
        connections: connections.try_into().unwrap_or_else(|_| unreachable!()),
    }
}

fn tell_peers(connections: &[Connection]) {
    let nodes = connections.iter().map(|one| one.hello.node.clone());
    let nodes: Vec<v1::Node> = nodes.map(Option::unwrap).collect();
    for connection in connections {
        connection.peers(nodes.clone());
    }
}

impl ReplicaPair {
    async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
    }
}

/// Returns the test bytes of an object, whose length may be any, including 0.
fn bytes(object: u64) -> Vec<u8> {
    let length = usize::try_from(object * 37 % 5000).unwrap();
    object.to_le_bytes().repeat(length / 8)
}

fn file(directory: &Path, object: u64) -> std::path::PathBuf {
    directory.join(ObjectId(object).relative_path())
}

/// Returns the hash that a node has recorded for an object.
fn hash(directory: &Path, object: u64) -> Option<Vec<u8>> {
    let db = rusqlite::Connection::open(directory.join("node.db")).unwrap();
    let sql = "SELECT hash FROM object WHERE id = ?1";
    db.query_row(sql, [object.cast_signed()], |row| row.get(0))
        .ok()
}

/// Changes bytes of an object's file without the node's knowledge.
fn spoil(path: &Path) {
    let mode = |mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(0o600);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(b"other", 0).unwrap();
    mode(0o444);
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_of_replicas_continues_after_one_failed_copy() {
    for in_place in [false, true] {
        let mut two = two(|config| config.in_place = in_place).await;
        let objects: Vec<u64> = (0x100..0x200).collect();
        for &object in &objects {
            put(&two.nodes[0], object, &bytes(object)).await;
        }
        let large = vec![b'x'; 3 << 20];
        put(&two.nodes[0], 0x300, &large).await;
        // One source is lost, one differs from its recorded hash, and one belongs to another user.
        let second = &mut two.connections[1];
        let spoilt = file(two.directories[0].path(), 0x120);
        second.labels(&[copy_label(1, 0x120, 1, 0x120)]);
        assert!(!sealed(&second.finished(1).await).is_empty());
        second.remove(&[0x120]).await;
        spoil(&spoilt);
        std::fs::remove_file(file(two.directories[0].path(), 0x121)).unwrap();
        let copy = |&object: &u64| copy_label(0x1000 + object, object, 1, object);
        let mut labels: Vec<v1::Label> = objects.iter().chain(&[0x300]).map(copy).collect();
        let Some(v1::label::Operation::Copy(wrong)) = &mut labels[0x22].operation else {
            unreachable!()
        };
        wrong.from.as_mut().unwrap().capability = capability(1, 0x123, rights::READ);
        second.labels(&labels);
        for object in objects {
            let outcome = second.finished(0x1000 + object).await;
            if (0x120..=0x122).contains(&object) {
                assert_eq!(failure(&outcome).kind, "input", "{object:x}");
                assert!(!file(two.directories[1].path(), object).exists());
                continue;
            }
            let expected = bytes(object);
            assert_eq!(sealed(&outcome), [(object, expected.len() as u64)]);
            assert_eq!(get(&two.nodes[1], object).await, expected);
            let kept = hash(two.directories[1].path(), object).unwrap();
            assert_eq!(kept, blake3::hash(&expected).as_bytes());
        }
        assert_eq!(sealed(&second.finished(0x1300).await)[0].1, 3 << 20);
        assert_eq!(get(&two.nodes[1], 0x300).await, large);
        two.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_node_stores_replicas_that_fit_and_reports_others() {
    let mut two = two(|config| {
        config.capacity_bytes = (config.node == NodeId(2)).then_some(100_000);
    })
    .await;
    for object in 1..=50 {
        put(&two.nodes[0], object, &[7; 5000]).await;
    }
    let connection = &mut two.connections[1];
    let labels: Vec<v1::Label> = (1..=50)
        .map(|object| copy_label(object, object, 1, object))
        .collect();
    connection.labels(&labels);
    let mut made = 0;
    for object in 1..=50 {
        let outcome = connection.finished(object).await;
        let there = file(two.directories[1].path(), object).exists();
        assert_eq!(there, outcome.failure.is_none(), "{object}");
        made += u64::from(there);
        if !there {
            assert!(failure(&outcome).message.contains("full"), "{outcome:?}");
        }
    }
    assert_eq!(made, 20);
    connection.status(|status| status.free_bytes == 0).await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_copy_label_of_batch_can_be_aborted() {
    let mut two = two(|_| {}).await;
    for object in 1..=100 {
        put(&two.nodes[0], object, &bytes(object)).await;
    }
    let connection = &mut two.connections[1];
    let labels: Vec<v1::Label> = (1..=100)
        .map(|object| copy_label(object, object, 1, object))
        .collect();
    connection.labels(&labels);
    for object in (10..=100).step_by(10) {
        connection.abort(object);
    }
    for object in 1..=100 {
        let outcome = connection.finished(object).await;
        if outcome.failure.is_some() {
            assert_eq!(object % 10, 0);
            assert_eq!(failure(&outcome).kind, "cancelled");
        }
        let there = file(two.directories[1].path(), object).exists();
        assert_eq!(there, outcome.failure.is_none(), "{object}");
    }
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_without_capability_is_refused() {
    let (_directory, _server, node, _connection) = node_with(b"own").await;
    for object in [5, 6, 7] {
        put(&node, object, &bytes(object)).await;
    }
    let item = |object, of| ReplicaItem {
        object,
        capability: route::hex(&capability(1, of, rights::READ)),
    };
    let items = [item(5, 5), item(6, 5), item(7, 7), item(8, 8)];
    let (objects, url) = (Objects::new(None), node.url().into());
    for with_bytes in [false, true] {
        let body = objects.replicas(NodeId(1), &url, &items, with_bytes).await;
        let body = body.unwrap();
        let mut rest = &*body;
        for (object, given) in [(5, true), (6, false), (7, true), (8, false)] {
            let (one, after) = decode(rest).unwrap();
            rest = after;
            let expected = given.then(|| {
                let bytes = bytes(object);
                (
                    blake3::hash(&bytes).into(),
                    if with_bytes { bytes } else { Vec::new() },
                )
            });
            assert_eq!(one.map(|(hash, bytes)| (*hash, bytes.to_vec())), expected);
        }
        assert!(rest.is_empty());
    }
    let many = vec![item(5, 5); OBJECTS_MAX + 1];
    let refused = objects.replicas(NodeId(1), &url, &many, false).await;
    assert!(refused.unwrap_err().to_string().contains("more objects"));
    node.stop().await;
}

/// Node in a separate process, which is killed when this value is dropped.
struct Killed(Child);

impl Killed {
    fn spawn(directory: &Path, server: &FakeServer) -> Self {
        let mut command = Command::new(program());
        command.args(["2".as_ref(), directory.as_os_str(), server.url.as_ref()]);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatedly_killed_node_finally_has_all_replicas() {
    let directories = [directory(), directory()];
    let mut server = FakeServer::start().await;
    let source = RunningNode::start(config(1, directories[0].path(), &server)).await;
    let source = source.unwrap();
    let first = server.welcomed().await;
    let objects: Vec<u64> = (1..=400).collect();
    for &object in &objects {
        put(&source, object, &bytes(object)).await;
    }
    let target = directories[1].path();
    let mut left = objects.clone();
    for round in 1.. {
        let child = Killed::spawn(target, &server);
        let mut second = server.welcomed().await;
        let nodes = [&first, &second].map(|one| one.hello.node.clone().unwrap());
        second.peers(nodes.to_vec());
        // Labels of an earlier round may run before the node knows the addresses of others, and fail.
        let copy = |&object: &u64| copy_label(1000 * round + object, object, 1, object);
        let labels: Vec<v1::Label> = left.iter().map(copy).collect();
        second.labels(&labels);
        if round > 8 {
            for &object in &left {
                let outcome = second.finished(1000 * round + object).await;
                assert_eq!(sealed(&outcome), [(object, bytes(object).len() as u64)]);
            }
        } else {
            tokio::time::sleep(Duration::from_millis(5 << (round % 6))).await;
        }
        drop(child);
        // A recorded replica must exist: its source may be removed as soon as the outcome was reported.
        left = objects.clone();
        left.retain(|&object| match hash(target, object) {
            Some(kept) => {
                assert_eq!(kept, blake3::hash(&bytes(object)).as_bytes());
                let there = std::fs::read(file(target, object)).unwrap();
                assert_eq!(there, bytes(object), "{object}");
                false
            }
            None => true,
        });
        if round > 8 {
            break;
        }
    }
    assert_eq!(left, [] as [u64; 0]);
    source.stop().await;
}
