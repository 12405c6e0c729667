//! Functions for tests: files with replicas, and fake nodes that create the replicas.

use super::{FakeNode, root, sealing, status};
use serde_json::{Value, json};
use std::path::Path;
use tidemill_client::Server as Client;
use tidemill_wire::v1::{
    self, label::Operation, name_op::Op, name_result::Result as Answer, to_node::Message as To,
};

/// Attaches a node on the host with this name.
pub async fn node(client: &Client, id: u32, host: &str) -> FakeNode {
    let status = v1::Node {
        host: host.into(),
        ..status(id)
    };
    FakeNode::attach_as(client, status, Vec::new()).await
}

pub async fn one(client: &Client, op: Op) -> Result<Answer, tidemill_client::Error> {
    client.one(&root(), op).await
}

/// Creates a sealed file on node 0. Returns the file's inode and object.
pub async fn file(client: &Client, path: &str) -> (u64, u64) {
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
    seal(client, ino.0, object.0, "").await.unwrap();
    (ino.0, object.0)
}

pub async fn seal(
    client: &Client,
    ino: u64,
    object: u64,
    replicas: &str,
) -> Result<Answer, tidemill_client::Error> {
    let seal = v1::Seal {
        replicas: replicas.to_owned(),
        ..sealing(client, (ino, object), 5).await
    };
    one(client, Op::Seal(seal)).await
}

/// Returns the next label that creates a replica on a node.
pub async fn copy(node: &mut FakeNode) -> (u64, v1::Copy) {
    loop {
        if let Some(label) = node.waiting.pop_front() {
            match label.operation {
                Some(Operation::Copy(copy)) => return (label.id, copy),
                other => panic!("no replica: {other:?}"),
            }
        }
        if let To::Labels(labels) = node.next().await {
            node.waiting.extend(labels.labels);
        }
    }
}

/// Reports to the server that the node has created a replica.
pub async fn made(node: &mut FakeNode, (label, copy): (u64, v1::Copy)) {
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

pub async fn attribute(client: &Client, ino: u64, name: &str) -> String {
    let get = v1::GetXattr {
        ino,
        name: name.into(),
    };
    match one(client, Op::GetXattr(get)).await.unwrap() {
        Answer::Bytes(bytes) => String::from_utf8(bytes.value).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Returns the nodes and states of a file's replicas.
pub async fn replicas(client: &Client, ino: u64) -> Value {
    let layout = attribute(client, ino, "user.tidemill.layout").await;
    serde_json::from_str::<Value>(&layout).unwrap()["parts"][0]["replicas"].take()
}

pub fn at(node: u32, state: &str) -> Value {
    json!({ "node": node, "state": state })
}

pub fn rows(dir: &Path, sql: &str) -> i64 {
    let db = rusqlite::Connection::open(dir.join("server.db")).unwrap();
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

pub async fn unlink(client: &Client, parent: u64, name: &str) {
    let unlink = v1::Unlink {
        parent,
        name: name.into(),
        ..v1::Unlink::default()
    };
    one(client, Op::Unlink(unlink)).await.unwrap();
}
