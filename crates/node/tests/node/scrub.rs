//! Tests of corrupt objects: their detection, the refusal of reads, and their recreation.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tidemill_client::{Error, Objects};
use tidemill_model::id::ObjectId;
use tidemill_node::RunningNode;
use tidemill_wire::capability::rights;
use tidemill_wire::v1::{self, from_node::Message};

const BYTES: &[u8] = b"what was sealed";

/// Function that damages the file of a sealed object.
type Spoil = fn(&Path);

fn writable(path: &Path) -> std::fs::File {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o444)).unwrap();
    file
}

fn flip(path: &Path) {
    writable(path).write_all_at(b"W", 0).unwrap();
}

fn cut(path: &Path) {
    writable(path).set_len(3).unwrap();
}

fn lengthen(path: &Path) {
    writable(path).set_len(5000).unwrap();
}

fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

fn directory_instead(path: &Path) {
    remove(path);
    std::fs::create_dir(path).unwrap();
    std::fs::write(path.join("file"), b"x").unwrap();
}

fn link_instead(path: &Path) {
    let other = path.with_extension("other");
    std::fs::rename(path, &other).unwrap();
    std::os::unix::fs::symlink(other, path).unwrap();
}

fn unreadable(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap();
    // Root can read any file, so the content is changed for root.
    if rustix::process::geteuid().is_root() {
        flip(path);
    }
}

const SPOILS: [Spoil; 7] = [
    flip,
    cut,
    lengthen,
    remove,
    directory_instead,
    link_instead,
    unreadable,
];

fn verify(id: u64, idle: bool, objects: &[u64]) -> v1::Label {
    let verify = v1::Verify {
        scrub: 1,
        idle,
        objects: objects.to_vec(),
    };
    v1::Label {
        id,
        operation: Some(v1::label::Operation::Verify(verify)),
        ..v1::Label::default()
    }
}

fn file(directory: &Path, object: u64) -> PathBuf {
    directory.join(ObjectId(object).relative_path())
}

fn aside(directory: &Path, object: u64) -> PathBuf {
    directory.join("corrupt").join(format!("{object:016x}"))
}

/// Returns the objects in the node's next report of corrupt objects.
async fn reported(connection: &mut Connection) -> Vec<u64> {
    connection
        .find(|message| match message {
            Message::Corrupt(corrupt) => {
                Some(corrupt.objects.iter().map(|one| one.object).collect())
            }
            _ => None,
        })
        .await
}

/// Compares objects by a label. Returns the corrupt objects.
async fn compare(connection: &mut Connection, id: u64, objects: &[u64]) -> Vec<u64> {
    connection.labels(&[verify(id, false, objects)]);
    let outcome = connection.finished(id).await;
    assert!(outcome.failure.is_none(), "{outcome:?}");
    outcome.corrupt.iter().map(|one| one.object).collect()
}

async fn status_of(node: &RunningNode, object: u64) -> u16 {
    let remote = remote(node, object, rights::READ);
    match Objects::new(None).read(&remote, 0, 100).await {
        Ok(_) => 200,
        Err(Error::NodeRefused { status, .. }) => status,
        Err(other) => panic!("{other}"),
    }
}

fn row<T: rusqlite::types::FromSql>(directory: &Path, sql: &str) -> T {
    let db = rusqlite::Connection::open(directory.join("node.db")).unwrap();
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn change(directory: &Path, sql: &str) {
    let db = rusqlite::Connection::open(directory.join("node.db")).unwrap();
    db.execute_batch(sql).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_hashes_sealed_object_soon_and_after_restart() {
    let (directory, mut server, node, _connection) = node_with(BYTES).await;
    put(&node, 5, BYTES).await;
    let unhashed = "SELECT count(*) FROM object WHERE kind = 0 AND hash IS NULL";
    let hashed = async || {
        while row::<i64>(directory.path(), unhashed) > 0 {
            tokio::task::yield_now().await;
        }
    };
    soon(hashed()).await;
    let kept: Vec<u8> = row(directory.path(), "SELECT hash FROM object WHERE id = 5");
    assert_eq!(kept, blake3::hash(BYTES).as_bytes());
    node.stop().await;
    // A release without hashes, or a node that was killed earlier, leaves objects without hash.
    change(directory.path(), "UPDATE object SET hash = NULL");
    let config = config(1, directory.path(), &server);
    let node = RunningNode::start(config).await.unwrap();
    let _connection = server.welcomed().await;
    soon(hashed()).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_object_is_reported_and_refuses_reads() {
    for spoil in SPOILS {
        let (directory, mut server, node, mut connection) = node_with(BYTES).await;
        for object in [5, 6] {
            put(&node, object, BYTES).await;
        }
        assert_eq!(compare(&mut connection, 10, &[5, 6]).await, [] as [u64; 0]);
        spoil(&file(directory.path(), 5));
        assert_eq!(compare(&mut connection, 11, &[5, 6, 77]).await, [5, 77]);
        assert_eq!(reported(&mut connection).await, [5]);
        assert!(file(directory.path(), 5).symlink_metadata().is_err());
        assert_eq!(
            (status_of(&node, 5).await, status_of(&node, 6).await),
            (410, 200)
        );
        // A corrupt object can be neither the input of a task nor the source of a replica.
        let task = program_label(12, "cat", &["in"]).input("in", 5, 1);
        connection.labels(&[task, copy_label(13, 5, 1, 50)]);
        for label in [12, 13] {
            let outcome = connection.finished(label).await;
            assert_eq!(failure(&outcome).kind, "input", "{outcome:?}");
        }
        assert_eq!(compare(&mut connection, 14, &[5]).await, [5]);
        node.stop().await;
        // The corruption is reported again to the next server.
        let node = RunningNode::start(config(1, directory.path(), &server))
            .await
            .unwrap();
        let mut connection = server.welcomed().await;
        assert_eq!(reported(&mut connection).await, [5]);
        assert_eq!(status_of(&node, 5).await, 410);
        connection.remove(&[5]).await;
        assert!(aside(directory.path(), 5).symlink_metadata().is_err());
        assert_eq!(status_of(&node, 5).await, 404);
        node.stop().await;
    }
}

/// Reads that bypass the page cache read whole blocks, and objects end at any offset.
#[tokio::test(flavor = "multi_thread")]
async fn scrub_compares_objects_of_any_length_to_last_byte() {
    const LENGTHS: [usize; 8] = [
        0,
        1,
        4095,
        4096,
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
        (3 << 20) + 4097,
    ];
    let (directory, _server, node, mut connection) = node_with(BYTES).await;
    let objects: Vec<u64> = (10..).take(LENGTHS.len()).collect();
    for (&object, length) in objects.iter().zip(LENGTHS) {
        put(&node, object, &vec![b'x'; length]).await;
    }
    // The first label hashes the objects, the second compares them.
    for label in [1, 2] {
        connection.labels(&[verify(label, false, &objects)]);
        let outcome = connection.finished(label).await;
        assert!(outcome.corrupt.is_empty(), "{outcome:?}");
        assert_eq!(outcome.read_bytes, LENGTHS.iter().sum::<usize>() as u64);
    }
    for (&object, length) in objects.iter().zip(LENGTHS).skip(1) {
        let file = writable(&file(directory.path(), object));
        file.write_all_at(b"y", length as u64 - 1).unwrap();
    }
    assert_eq!(compare(&mut connection, 3, &objects).await, objects[1..]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_of_missing_object_reports_it_as_corrupt() {
    let (directory, _server, node, mut connection) = node_with(BYTES).await;
    for object in [5, 6, 7] {
        put(&node, object, BYTES).await;
    }
    remove(&file(directory.path(), 5));
    assert_eq!(status_of(&node, 5).await, 410);
    assert_eq!(reported(&mut connection).await, [5]);
    directory_instead(&file(directory.path(), 6));
    let task = program_label(12, "cat", &["in"]).input("in", 6, 1);
    connection.labels(&[task]);
    // The corruption is reported before the label ends, so that the server does not send the task to this node again.
    assert_eq!(reported(&mut connection).await, [6]);
    let outcome = connection.finished(12).await;
    assert_eq!(failure(&outcome).kind, "input");
    // An object that never existed here is not corrupt.
    assert_eq!(status_of(&node, 8).await, 404);
    assert_eq!(status_of(&node, 7).await, 200);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_bytes_are_readable_on_request() {
    let (directory, _server, node, mut connection) = node_with(BYTES).await;
    put(&node, 5, BYTES).await;
    assert_eq!(compare(&mut connection, 10, &[5]).await, [] as [u64; 0]);
    flip(&file(directory.path(), 5));
    assert_eq!(compare(&mut connection, 11, &[5]).await, [5]);
    let mut bytes = Vec::new();
    let remote = remote(&node, 5, rights::READ);
    let objects = Objects::new(None);
    let read = objects.read_corrupt(&remote, |piece| {
        bytes.extend_from_slice(&piece);
        Ok(())
    });
    read.await.unwrap();
    assert_eq!(bytes, b"What was sealed");
    // An administrator restores the sealed content.
    std::fs::write(aside(directory.path(), 5).with_extension("own"), BYTES).unwrap();
    let own = aside(directory.path(), 5).with_extension("own");
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o444)).unwrap();
    std::fs::rename(own, file(directory.path(), 5)).unwrap();
    assert_eq!(compare(&mut connection, 12, &[5]).await, [] as [u64; 0]);
    assert_eq!(get(&node, 5).await, BYTES);
    assert!(!aside(directory.path(), 5).exists());
    node.stop().await;
}

/// The node was killed before it set a corrupt object aside, or after the object was repaired and before the repair was recorded.
#[tokio::test(flavor = "multi_thread")]
async fn starting_node_checks_objects_marked_corrupt() {
    let (directory, mut server, node, mut connection) = node_with(BYTES).await;
    for object in [5, 6, 7] {
        put(&node, object, BYTES).await;
    }
    assert_eq!(
        compare(&mut connection, 10, &[5, 6, 7]).await,
        [] as [u64; 0]
    );
    node.stop().await;
    flip(&file(directory.path(), 5));
    let marked = "UPDATE object SET corruption = 'has another content' WHERE id IN (5, 6)";
    change(directory.path(), marked);
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let mut connection = server.welcomed().await;
    assert_eq!(reported(&mut connection).await, [5]);
    let mut found = Vec::new();
    for object in [5, 6, 7] {
        found.push(status_of(&node, object).await);
    }
    assert_eq!(found, [410, 200, 200]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_scrub_compares_all_objects_again() {
    let (directory, mut server, node, mut connection) = node_with(BYTES).await;
    put(&node, 5, BYTES).await;
    assert_eq!(compare(&mut connection, 10, &[5]).await, [] as [u64; 0]);
    flip(&file(directory.path(), 5));
    // The label waits: all other work has priority.
    connection.labels(&[program_label(11, "sleep", &["1000"])]);
    connection.running(11).await;
    connection.labels(&[verify(12, true, &[1, 5])]);
    connection.running(12).await;
    node.stop().await;
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let mut connection = server.welcomed().await;
    connection.abort(11);
    // An object is removed while it waits for its comparison. The server decides whether the missing object is corrupt.
    connection.remove(&[1]).await;
    let outcome = connection.finished(12).await;
    let corrupt: Vec<u64> = outcome.corrupt.iter().map(|one| one.object).collect();
    assert!(corrupt == [5] || corrupt == [1, 5], "{outcome:?}");
    node.stop().await;
}

/// Two nodes that know each other's addresses.
struct ScrubPair {
    directories: [tempfile::TempDir; 2],
    nodes: [RunningNode; 2],
    connections: [Connection; 2],
}

async fn two(in_place: bool) -> ScrubPair {
    let directories = [directory(), directory()];
    let mut server = FakeServer::start().await;
    let (mut nodes, mut connections) = (Vec::new(), Vec::new());
    for (id, directory) in (1..).zip(&directories) {
        let mut config = config(id, directory.path(), &server);
        config.in_place = in_place;
        nodes.push(RunningNode::start(config).await.unwrap());
        connections.push(server.welcomed().await);
    }
    let known = connections
        .iter()
        .map(|one| one.hello.node.clone().unwrap());
    let known: Vec<v1::Node> = known.collect();
    for connection in &connections {
        connection.peers(known.clone());
    }
    ScrubPair {
        directories,
        nodes: nodes.try_into().unwrap(),
        connections: connections.try_into().unwrap_or_else(|_| unreachable!()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_replica_is_recreated_from_other_node() {
    for (in_place, spoil) in [true, false].into_iter().zip([flip as Spoil, remove]) {
        let mut two = two(in_place).await;
        for node in &two.nodes {
            put(node, 5, BYTES).await;
        }
        let connection = &mut two.connections[1];
        assert_eq!(compare(connection, 10, &[5]).await, [] as [u64; 0]);
        spoil(&file(two.directories[1].path(), 5));
        assert_eq!(compare(connection, 11, &[5]).await, [5]);
        connection.labels(&[copy_label(12, 5, 1, 5)]);
        assert_eq!(sealed(&connection.finished(12).await), [(5, 15)]);
        assert_eq!(get(&two.nodes[1], 5).await, BYTES);
        assert!(!aside(two.directories[1].path(), 5).exists());
        assert_eq!(compare(connection, 13, &[5]).await, [] as [u64; 0]);
        // The replica is a file of its own, with its recorded hash.
        let kept: Vec<u8> = row(
            two.directories[1].path(),
            "SELECT hash FROM object WHERE id = 5",
        );
        assert_eq!(kept, blake3::hash(BYTES).as_bytes());
        flip(&file(two.directories[1].path(), 5));
        assert_eq!(get(&two.nodes[0], 5).await, BYTES);
        for node in two.nodes {
            node.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_object_is_never_copied() {
    for in_place in [true, false] {
        let mut two = two(in_place).await;
        put(&two.nodes[0], 5, BYTES).await;
        let [first, second] = &mut two.connections;
        assert_eq!(compare(first, 10, &[5]).await, [] as [u64; 0]);
        // No scrub has read the object since.
        flip(&file(two.directories[0].path(), 5));
        second.labels(&[copy_label(11, 5, 1, 5)]);
        let outcome = second.finished(11).await;
        assert_eq!(failure(&outcome).kind, "input", "{outcome:?}");
        assert_eq!(status_of(&two.nodes[1], 5).await, 404);
        assert_eq!(reported(first).await, [5]);
        assert_eq!(status_of(&two.nodes[0], 5).await, 410);
        for node in two.nodes {
            node.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn confirm_request_with_malformed_hash_is_refused() {
    let (_directory, _server, node, _connection) = node_with(BYTES).await;
    put(&node, 5, BYTES).await;
    let remote = remote(&node, 5, rights::READ);
    let objects = Objects::new(None);
    for bad in [&b""[..], &[1; 31], &[1; 33]] {
        let refused = objects.confirm(&remote, bad).await.unwrap_err();
        assert!(
            matches!(refused, Error::NodeRefused { status: 400, .. }),
            "{refused}"
        );
    }
    assert!(!objects.confirm(&remote, &[1; 32]).await.unwrap());
    let same = blake3::hash(BYTES);
    assert!(objects.confirm(&remote, same.as_bytes()).await.unwrap());
    node.stop().await;
}
