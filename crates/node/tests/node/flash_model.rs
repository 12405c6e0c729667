//! Tests of the model of the flash device: it counts the actual writes of the node, and survives restarts.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidemill_client::Objects;
use tidemill_client::objects::ObjectAddress;
use tidemill_model::attribute::status;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_node::{NodeConfig, RunningNode, flash_model, records};
use tidemill_wire::capability::rights;
use tidemill_wire::route::SealBody;
use tidemill_wire::v1;

const MIB: usize = 1 << 20;

fn small(directory: &Path, server: &FakeServer) -> NodeConfig {
    let mut config = config(1, directory, server);
    config.capacity_bytes = Some(64 << 20);
    config
}

/// Waits until the model in the node's status fulfils the condition.
async fn model(
    connection: &mut Connection,
    wanted: impl Fn(&v1::FlashModel) -> bool,
) -> v1::FlashModel {
    let has = |node: &v1::Node| node.flash_model.as_ref().is_some_and(&wanted);
    connection.status(has).await.flash_model.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn flash_model_counts_writes_overwrites_and_removals() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let node = RunningNode::start(small(directory.path(), &server))
        .await
        .unwrap();
    let mut connection = server.welcomed().await;
    let empty = model(&mut connection, |_| true).await;
    assert_eq!(
        (empty.host_bytes, empty.used_bytes, empty.erases_max),
        (0, 0, 0)
    );
    assert_eq!(empty.write_amplification_milli, 1000);

    put(&node, 1, &vec![1; 5000]).await;
    connection.labels(&[program_label(1, "sh", &["-c", "cat in in > out"])
        .input("in", 1, 1)
        .output("out", 2)]);
    connection.finished(1).await;
    connection.labels(&[copy_label(2, 2, 1, 3)]);
    connection.finished(2).await;
    let written = model(&mut connection, |model| model.host_bytes == 25_000).await;
    assert_eq!(written.flash_bytes, (2 + 3 + 3) * 4096, "whole sectors");
    assert_eq!(written.used_bytes, written.flash_bytes);
    assert_eq!(written.write_amplification_milli, 1311);

    // A file is overwritten: a new version is sealed, then the old one is removed. The writes are ten times the device's capacity.
    connection.remove(&[1, 2, 3]).await;
    for version in 0..80 {
        put(&node, 100 + version, &vec![7; 8 * MIB]).await;
        if version > 0 {
            connection.remove(&[99 + version]).await;
        }
    }
    let all = 25_000 + 640 * MIB as u64;
    let worn = model(&mut connection, |model| {
        model.host_bytes == all && model.used_bytes == 8 * MIB as u64
    })
    .await;
    assert_eq!(worn.left_out_bytes, 0);
    // Nine tenths of the 640 MiB were written to 64 MiB that needed an erase first.
    let erases = worn.erases_mean_milli;
    assert!((7_000..10_000).contains(&erases), "{worn:?}");
    assert!(
        worn.erases_min <= worn.erases_max && worn.erases_max < 100,
        "{worn:?}"
    );
    assert!(worn.worn_ppb > 0 && worn.worn_ppb < 100_000_000, "{worn:?}");
    assert!(
        (1000..1100).contains(&worn.write_amplification_milli),
        "{worn:?}"
    );

    let kept = node.daemon().parts().db.clone();
    node.stop().await;
    let kept = kept
        .read(|db| records::attribute(db, ObjectId::STATUS, status::PAGE, status::FLASH_MODEL))
        .unwrap();
    let kept: serde_json::Value = serde_json::from_slice(&kept.unwrap()).unwrap();
    assert_eq!(kept.as_object().unwrap().len(), 15);
    assert_eq!(kept["block_bytes"], flash_model::json(&worn)["block_bytes"]);

    let node = RunningNode::start(small(directory.path(), &server))
        .await
        .unwrap();
    let mut connection = server.welcomed().await;
    assert_eq!(
        model(&mut connection, |_| true).await,
        worn,
        "nothing is lost by a stop"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flash_model_does_not_count_holes_of_sealed_files() {
    const DATA: u64 = 8192;
    let directory = directory();
    let mut server = FakeServer::start().await;
    let mut config = small(directory.path(), &server);
    config.capacity_bytes = Some(4 << 40);
    let node = RunningNode::start(config).await.unwrap();
    let mut connection = server.welcomed().await;
    // The file is written in place, like by a mount on the same host.
    let file = std::fs::File::create(directory.path().join(ObjectId(1).relative_path())).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.write_all_at(&[1; 4096], 1 << 30).unwrap();
    file.set_len(1 << 40).unwrap();
    let remote = ObjectAddress {
        node: NodeId(1),
        url: connection.hello.node.clone().unwrap().url.into(),
        object: ObjectId(1),
        capability: capability(1, 1, rights::WRITE),
    };
    let sealed = Objects::new(None).seal(&remote, &SealBody::default()).await;
    assert_eq!(sealed.unwrap().size, 1 << 40);
    let script = "head -c 8192 /dev/urandom > out && truncate -s 512M out";
    connection.labels(&[program_label(1, "sh", &["-c", script]).output("out", 2)]);
    let outcome = connection.finished(1).await;
    assert_eq!(outcome.written_bytes, DATA);
    let model = model(&mut connection, |model| model.host_bytes > DATA).await;
    assert_eq!((model.host_bytes, model.left_out_bytes), (2 * DATA, 0));
    let counted = connection.status(|node| node.bytes_written > DATA);
    assert_eq!(counted.await.bytes_written, 2 * DATA);
    node.stop().await;
}

fn spawn(directory: &Path, server: &FakeServer) -> Child {
    Command::new(program())
        .args(["1".as_ref(), directory.as_os_str(), server.url.as_ref()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

async fn put_there(connection: &Connection, object: u64, bytes: &[u8]) {
    let remote = ObjectAddress {
        node: NodeId(1),
        url: connection.hello.node.clone().unwrap().url.into(),
        object: ObjectId(object),
        capability: capability(1, object, rights::READ | rights::WRITE),
    };
    let objects = Objects::new(None);
    objects
        .write(&remote, 0, bytes.to_vec().into())
        .await
        .unwrap();
    objects.seal(&remote, &SealBody::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn flash_model_of_killed_node_resumes_from_snapshot_and_objects() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let mut child = spawn(directory.path(), &server);
    let mut connection = server.welcomed().await;
    put_there(&connection, 1, &vec![1; MIB]).await;
    put_there(&connection, 2, &vec![2; MIB]).await;
    let before = model(&mut connection, |model| model.host_bytes == 2 * MIB as u64).await;
    // The snapshot is written after the report. Only the content of the snapshot can be expected after the kill.
    while !directory.path().join("flash").exists() {
        tokio::task::yield_now().await;
    }
    connection.remove(&[1]).await;
    put_there(&connection, 3, &vec![3; MIB]).await;
    // The removal is in the database once the outcome of a later label is.
    connection.labels(&[program_label(1, "true", &[])]);
    connection.finished(1).await;
    child.kill().unwrap();
    child.wait().unwrap();
    drop(connection);

    let mut child = spawn(directory.path(), &server);
    let mut connection = server.welcomed().await;
    let after = model(&mut connection, |_| true).await;
    // The snapshot, written after the first write, contains at least object 1; objects 2 and 3 follow from the store.
    assert_eq!(after.host_bytes, 3 * MIB as u64, "{after:?}");
    assert_eq!(
        after.used_bytes,
        2 * MIB as u64,
        "object 1 is deleted: {after:?}"
    );
    assert_eq!(after.since, before.since);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn flash_model_restarts_from_objects_without_valid_snapshot() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let snapshot = directory.path().join("flash");
    let node = RunningNode::start(small(directory.path(), &server))
        .await
        .unwrap();
    let mut connection = server.welcomed().await;
    put(&node, 1, &vec![1; MIB]).await;
    put(&node, 2, &vec![2; MIB]).await;
    connection.remove(&[1]).await;
    let full = model(&mut connection, |model| {
        model.host_bytes == 2 * MIB as u64 && model.used_bytes == MIB as u64
    })
    .await;
    node.stop().await;
    for corruption in [true, false] {
        if corruption {
            let mut bytes = std::fs::read(&snapshot).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&snapshot, bytes).unwrap();
        } else {
            std::fs::remove_file(&snapshot).unwrap();
        }
        let node = RunningNode::start(small(directory.path(), &server))
            .await
            .unwrap();
        let mut connection = server.welcomed().await;
        let restarted = model(&mut connection, |_| true).await;
        assert_eq!(
            (restarted.host_bytes, restarted.used_bytes),
            (MIB as u64, MIB as u64)
        );
        assert!(
            restarted.since > full.since,
            "the report shows that the model restarted"
        );
        node.stop().await;
    }
}

/// Returns the number of bytes that the second of two nodes wrote when it fetched a megabyte and wrote one line of it.
async fn written_by_a_fetch(in_place: bool) -> (u64, u64) {
    let directories = [directory(), directory()];
    let mut server = FakeServer::start().await;
    let mut nodes = Vec::new();
    let mut connections = Vec::new();
    for (id, directory) in (1..).zip(&directories) {
        let mut config = config(id, directory.path(), &server);
        config.in_place = in_place;
        config.input_cache_bytes_max = 0;
        nodes.push(RunningNode::start(config).await.unwrap());
        connections.push(server.welcomed().await);
    }
    let first = connections[0].hello.node.clone().unwrap();
    let mut second = connections.pop().unwrap();
    second.peers(vec![first]);
    put(&nodes[0], 5, &vec![b'x'; MIB]).await;
    second.labels(&[program_label(1, "sh", &["-c", "wc -c < in > out"])
        .input("in", 5, 1)
        .output("out", 6)]);
    sealed(&second.finished(1).await);
    // The fetched object is not kept, so only the output of the label takes space in the end.
    let model = model(&mut second, |model| {
        model.host_bytes > 0 && model.used_bytes == 4096
    })
    .await;
    for node in nodes {
        node.stop().await;
    }
    (model.host_bytes, model.flash_bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn flash_model_counts_fetched_input_and_not_linked_input() {
    let copied = written_by_a_fetch(false).await;
    assert_eq!(copied, (MIB as u64 + 8, MIB as u64 + 4096));
    assert_eq!(written_by_a_fetch(true).await, (8, 4096));
}
