//! Tests of the HTTP routes with real requests: bytes, ranges, seals, refusals, attributes, quota.

#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "a test that fails here has failed"
)]

use crate::cluster::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use tidemill_client::Objects;
use tidemill_client::objects::ObjectAddress;
use tidemill_model::attribute::object as number;
use tidemill_model::id::{NodeId, ObjectId, TaskId};
use tidemill_model::layout::PartOf;
use tidemill_node::{RunningNode, config::NodeConfig};
use tidemill_wire::capability::{Attributes, Capability, CapabilityKey, rights};
use tidemill_wire::route::{SealBody, SealItem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ALL: u32 = rights::READ | rights::WRITE | rights::REMOVE | rights::ATTRIBUTES;

struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Reply {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

async fn started(
    change: impl FnOnce(&mut NodeConfig),
) -> (tempfile::TempDir, RunningNode, Connection) {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let mut config = config(1, directory.path(), &server);
    change(&mut config);
    let node = RunningNode::start(config).await.unwrap();
    let connection = server.welcomed().await;
    (directory, node, connection)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

async fn request(
    node: &RunningNode,
    method: &str,
    path: &str,
    capability: Option<&[u8]>,
    header: &str,
    body: &[u8],
) -> Reply {
    let address = node.url().strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n{header}",
        body.len()
    );
    if let Some(capability) = capability {
        let _ = write!(head, "x-tidemill-capability: {}\r\n", hex(capability));
    }
    stream
        .write_all(format!("{head}\r\n").as_bytes())
        .await
        .unwrap();
    stream.write_all(body).await.unwrap();
    let mut reply = Vec::new();
    soon(stream.read_to_end(&mut reply)).await.unwrap();
    let end = reply.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(reply[..end].to_vec())
        .unwrap()
        .to_lowercase();
    Reply {
        status: head[9..12].parse().unwrap(),
        head,
        body: reply[end + 4..].to_vec(),
    }
}

fn path(object: u64) -> String {
    format!("/objects/{object:016x}")
}

#[tokio::test(flavor = "multi_thread")]
async fn object_is_written_sealed_and_read_in_ranges() {
    let (directory, node, _connection) = started(|_| ()).await;
    let all = capability(1, 5, ALL);
    let read = capability(1, 5, rights::READ);
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (first, second) = data.split_at(1_700_000);
    let put = |offset: usize| format!("{}?offset={offset}", path(5));
    let done = request(&node, "PUT", &put(1_700_000), Some(&all), "", second).await;
    assert_eq!(done.status, 204);
    let done = request(&node, "PUT", &path(5), Some(&all), "", first).await;
    assert_eq!(done.status, 204);
    // The writer can read the object back; for others it does not exist yet.
    let unsealed = request(&node, "GET", &path(5), Some(&read), "", b"").await;
    assert_eq!(unsealed.status, 404);
    assert!(unsealed.text().contains("still being written"));
    let own = request(
        &node,
        "GET",
        &path(5),
        Some(&all),
        "range: bytes=0-9\r\n",
        b"",
    )
    .await;
    assert_eq!((own.status, &*own.body), (206, &data[..10]));

    let body = serde_json::to_vec(&SealBody::default()).unwrap();
    for _ in 0..2 {
        let sealed = request(
            &node,
            "POST",
            &format!("{}/seal", path(5)),
            Some(&all),
            "",
            &body,
        )
        .await;
        assert_eq!(
            (sealed.status, sealed.json()["size"].as_u64()),
            (200, Some(3_000_000))
        );
    }
    let file = directory.path().join(ObjectId(5).relative_path());
    let metadata = std::fs::metadata(&file).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o444);
    if rustix::process::geteuid().is_root() {
        assert_eq!(metadata.uid(), tidemill_sandbox::STORE_USER.uid);
    }
    let whole = request(&node, "GET", &path(5), Some(&read), "", b"").await;
    assert!(whole.status == 200 && whole.body == data);
    let range = "range: bytes=1048570-2097160\r\n";
    let part = request(&node, "GET", &path(5), Some(&read), range, b"").await;
    assert_eq!(part.status, 206);
    assert!(
        part.head
            .contains("content-range: bytes 1048570-2097160/3000000")
    );
    assert!(part.body == data[1_048_570..=2_097_160]);
    let beyond = request(
        &node,
        "GET",
        &path(5),
        Some(&read),
        "range: bytes=3000000-\r\n",
        b"",
    )
    .await;
    assert_eq!(beyond.status, 416);
    assert!(beyond.head.contains("content-range: bytes */3000000"));
    let head = request(&node, "HEAD", &path(5), Some(&read), "", b"").await;
    assert!(head.head.contains("content-length: 3000000") && head.body.is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_request_returns_all_ranges_in_one_answer() {
    let (_directory, node, _connection) = started(|_| ()).await;
    put(&node, 5, b"0123456789").await;
    let read = capability(1, 5, rights::READ);
    let target = format!("{}/ranges", path(5));
    let asked = async |shown: &[u8], ranges: &str| {
        request(&node, "POST", &target, Some(shown), "", ranges.as_bytes()).await
    };
    let reply = asked(&read, "[[8,10],[0,1],[3,3],[0,2]]").await;
    assert_eq!((reply.status, reply.text()), (200, "89001"));
    assert_eq!(asked(&read, "[]").await.body, b"");
    let many = serde_json::to_string(&vec![(0, 1); 1025]).unwrap();
    let refused = [
        ("[[9,11]]", 416),
        ("[[2,1]]", 416),
        ("[[0,18446744073709551615]]", 416),
        ("[[-1,1]]", 400),
        ("[[0,1],[0", 400),
        (&many, 400),
    ];
    for (ranges, status) in refused {
        assert_eq!(asked(&read, ranges).await.status, status, "{ranges:.40}");
    }
    assert_eq!(
        asked(&capability(1, 6, rights::READ), "[]").await.status,
        403
    );
    let wrote = request(
        &node,
        "PUT",
        &path(7),
        Some(&capability(1, 7, ALL)),
        "",
        b"new",
    )
    .await;
    assert_eq!(wrote.status, 204);
    let target = format!("{}/ranges", path(7));
    let unsealed = request(
        &node,
        "POST",
        &target,
        Some(&capability(1, 7, ALL)),
        "",
        b"[[0,1]]",
    )
    .await;
    assert_eq!(unsealed.status, 404);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsealed_object_can_be_synced_and_extended() {
    let (_directory, node, _connection) = started(|_| ()).await;
    let all = capability(1, 5, ALL);
    let target = format!("{}/sync", path(5));
    for piece in ["one", "two"] {
        let offset = if piece == "one" { 0 } else { 3 };
        let write = format!("{}?offset={offset}", path(5));
        let wrote = request(&node, "PUT", &write, Some(&all), "", piece.as_bytes()).await;
        assert_eq!(wrote.status, 204);
        assert_eq!(
            request(&node, "POST", &target, Some(&all), "", b"")
                .await
                .status,
            204
        );
    }
    let back = request(&node, "GET", &path(5), Some(&all), "", b"").await;
    assert_eq!(back.text(), "onetwo");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_request_creates_object_from_start_of_sealed_object() {
    let (_directory, node, _connection) = started(|_| ()).await;
    put(&node, 5, b"one and two").await;
    let all = capability(1, 6, ALL);
    let source = |rights| format!("x-tidemill-source: {}\r\n", hex(&capability(1, 5, rights)));
    let from = |from: u64, bytes: u64| format!("{}/copy?from={from:016x}&bytes={bytes}", path(6));
    let copy = async |target: String, source: String| {
        let reply = request(&node, "POST", &target, Some(&all), &source, b"").await;
        reply.status
    };
    assert_eq!(copy(from(5, 3), String::new()).await, 403);
    assert_eq!(copy(from(5, 3), source(rights::WRITE)).await, 403);
    // An unsealed object can't be copied.
    assert_eq!(copy(from(6, 3), source(ALL)).await, 403);
    let bytes = async || {
        let reply = request(&node, "GET", &path(6), Some(&all), "", b"").await;
        (reply.status, reply.text().to_owned())
    };
    assert_eq!(bytes().await.0, 404);
    assert_eq!(copy(from(5, 3), source(rights::READ)).await, 204);
    assert_eq!(bytes().await, (200, "one".to_owned()));
    let end = format!("{}?offset=3", path(6));
    let wrote = request(&node, "PUT", &end, Some(&all), "", b"!").await;
    assert_eq!(wrote.status, 204);
    // A repeated request does not undo later writes.
    assert_eq!(copy(from(5, 3), source(rights::READ)).await, 204);
    assert_eq!(bytes().await.1, "one!");
    let longer = format!("{}/allocate?offset=0&length=6&mode=0", path(6));
    let allocated = request(&node, "POST", &longer, Some(&all), "", b"").await;
    assert_eq!(
        (allocated.status, bytes().await.1),
        (200, "one!\0\0".to_owned())
    );
    assert_eq!(get(&node, 5).await, b"one and two");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sealed_object_refuses_writes_and_truncation() {
    let (_directory, node, mut connection) = started(|_| ()).await;
    put(&node, 5, b"for ever").await;
    let all = capability(1, 5, ALL);
    for (method, path) in [
        ("PUT", path(5)),
        ("PUT", format!("{}?offset=3", path(5))),
        ("POST", format!("{}/truncate?size=0", path(5))),
        (
            "POST",
            format!("{}/allocate?offset=0&length=99&mode=0", path(5)),
        ),
    ] {
        let refused = request(&node, method, &path, Some(&all), "", b"x").await;
        assert_eq!(refused.status, 409, "{method} {path}");
        assert!(refused.text().contains("never changes"));
    }
    // Any client that may read the object may make it durable.
    let (read, sync) = (capability(1, 5, rights::READ), format!("{}/sync", path(5)));
    let synced = request(&node, "POST", &sync, Some(&read), "", b"").await;
    assert_eq!(synced.status, 204);
    assert_eq!(get(&node, 5).await, b"for ever");
    // Only the server can remove the object, with a label.
    let refused = request(&node, "DELETE", &path(5), Some(&all), "", b"").await;
    assert_eq!(refused.status, 405);
    connection.remove(&[5]).await;
    let gone = request(&node, "GET", &path(5), Some(&all), "", b"").await;
    assert_eq!(gone.status, 404);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_without_matching_capability_is_refused() {
    let (_directory, node, _connection) = started(|_| ()).await;
    put(&node, 5, b"secret").await;
    let key = tidemill_wire::capability::CapabilityKey::new(KEY);
    let old = key.sign(&tidemill_wire::capability::Capability {
        object: ObjectId(5),
        node: tidemill_model::id::NodeId(1),
        rights: ALL,
        uid: 0,
        expires_at_ns: 1,
        attributes: None,
    });
    let mut forged = capability(1, 5, ALL);
    forged[30] ^= 1;
    let read_only = capability(1, 5, rights::READ);
    let cases: [(&str, &str, Option<&[u8]>, u16); 12] = [
        ("GET", "", None, 403),
        ("GET", "", Some(&old), 403),
        ("GET", "", Some(&forged), 403),
        ("GET", "", Some(&capability(1, 6, ALL)), 403),
        ("GET", "", Some(&capability(2, 5, ALL)), 403),
        ("GET", "", Some(b"garbage"), 400),
        ("PUT", "", Some(&read_only), 403),
        ("POST", "/truncate?size=0", Some(&read_only), 403),
        ("POST", "/seal", Some(&read_only), 403),
        ("POST", "/sync", None, 403),
        (
            "GET",
            "/attributes",
            Some(&capability(1, 5, rights::WRITE)),
            403,
        ),
        ("PUT", "/attributes/256/1", Some(&read_only), 403),
    ];
    for (method, rest, capability, status) in cases {
        let target = format!("{}{rest}", path(5));
        let refused = request(&node, method, &target, capability, "", b"").await;
        assert_eq!(
            refused.status,
            status,
            "{method} {rest}: {}",
            refused.text()
        );
        assert!(!refused.text().contains("secret"));
    }
    for target in ["/tasks", "/tasks/1"] {
        let refused = request(&node, "GET", target, Some(&read_only), "", b"").await;
        assert_eq!(refused.status, 403, "{target}");
    }
    assert_eq!(
        request(&node, "GET", "/objects/5", Some(&old), "", b"")
            .await
            .status,
        400
    );
    // Clients can't write collections or the status object.
    let collection = ObjectId::task_collection(TaskId(3)).0;
    let all = capability(1, collection, ALL);
    assert_eq!(
        request(&node, "PUT", &path(collection), Some(&all), "", b"")
            .await
            .status,
        400
    );
    assert_eq!(get(&node, 5).await, b"secret");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_written_in_place_are_sealed_in_batch() {
    let (directory, node, _connection) = started(|_| ()).await;
    let mut items = Vec::new();
    for object in 10..200_u64 {
        let file = directory.path().join(ObjectId(object).relative_path());
        std::fs::write(&file, vec![b'x'; usize::try_from(object).unwrap()]).unwrap();
        let body = SealBody {
            durable: object == 20,
            ..SealBody::default()
        };
        items.push(SealItem {
            object,
            capability: hex(&capability(1, object, rights::WRITE)),
            body,
        });
    }
    let item = |object: u64, capability: Vec<u8>| SealItem {
        object,
        capability: hex(&capability),
        body: SealBody::default(),
    };
    items.push(item(300, capability(1, 300, rights::WRITE)));
    items.push(item(10, capability(1, 10, rights::READ)));
    items.push(item(0, capability(1, 0, rights::WRITE)));
    let url: Arc<str> = node.url().into();
    let results = Objects::new(None)
        .seal_all(node.daemon().config.node, &url, &items)
        .await
        .unwrap();
    assert_eq!(results.len(), items.len());
    for (result, item) in results.iter().zip(&items).take(190) {
        assert_eq!(
            (result.status, result.size),
            (200, item.object),
            "{}",
            result.message
        );
        let receipt =
            CapabilityKey::new(KEY).receipt(NodeId(1), ObjectId(item.object), item.object);
        assert_eq!(result.receipt, hex(&receipt));
    }
    let statuses: Vec<u16> = results[190..].iter().map(|result| result.status).collect();
    assert_eq!(statuses, [404, 403, 400]);
    assert_eq!(get(&node, 150).await, vec![b'x'; 150]);
    let read = capability(1, 150, rights::READ);
    let listed = request(
        &node,
        "GET",
        &format!("{}/attributes", path(150)),
        Some(&read),
        "",
        b"",
    )
    .await;
    let listed = listed.json();
    let value = |number: u64| {
        let all = listed.as_array().unwrap();
        all.iter().find(|a| a["number"] == number).unwrap()["value"].clone()
    };
    use tidemill_model::attribute::object;
    assert_eq!(value(object::SIZE.into()), 150);
    assert_eq!(value(object::PATH.into()), "/in");
    assert_eq!(value(object::INODE.into()), 17);
    assert_eq!(value(object::UID.into()), user());
    assert_eq!(value(object::MODE.into()), 0o640);
    node.stop().await;
}

/// Returns the attributes in the page that describes an object.
fn recorded(node: &RunningNode, object: u64) -> BTreeMap<u32, Vec<u8>> {
    let db = rusqlite::Connection::open(node.daemon().config.directory.join("node.db")).unwrap();
    let sql = "SELECT number, value FROM attribute WHERE object = ?1 AND page = 1";
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query_map([object.cast_signed()], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.unwrap().map(Result::unwrap).collect()
}

/// A node records the attributes that the server has signed, whatever attributes the client sends with its seal.
#[tokio::test(flavor = "multi_thread")]
async fn seal_records_attributes_signed_by_server_only() {
    let (_directory, node, _connection) = started(|_| ()).await;
    let part = PartOf {
        version: ObjectId(70),
        index: 1,
        width: 2,
        unit: 4096,
    };
    let right = |object, attributes| {
        CapabilityKey::new(KEY).sign(&Capability {
            object: ObjectId(object),
            node: NodeId(1),
            rights: rights::READ | rights::WRITE,
            uid: user(),
            expires_at_ns: u64::MAX,
            attributes,
        })
    };
    let signed = Attributes {
        inode: 23,
        uid: 7001,
        gid: 7002,
        mode: 0o600,
        part: Some(part.to_bytes()),
        path: b"/ours/f\xff".to_vec(),
    };
    let whole = Attributes {
        part: None,
        ..signed.clone()
    };
    let of_whole = SealBody::default();
    let of_part = SealBody {
        part: true,
        ..of_whole
    };
    let word = |value: u64| Some(value.to_le_bytes().to_vec());
    let no_part: Option<Vec<u8>> = None;
    for (object, attributes, body, inode, owner, mode, kept_part) in [
        (
            51,
            Some(signed),
            &of_whole,
            23,
            (7001, 7002),
            0o600,
            Some(part.to_bytes().to_vec()),
        ),
        (
            52,
            Some(whole.clone()),
            &of_whole,
            23,
            (7001, 7002),
            0o600,
            no_part.clone(),
        ),
        // The object may be one of several parts by now: only the server knows its file.
        (
            53,
            Some(whole),
            &of_part,
            0,
            (7001, 7002),
            0o600,
            no_part.clone(),
        ),
    ] {
        let remote = ObjectAddress {
            capability: right(object, attributes),
            ..remote(&node, object, rights::READ)
        };
        let objects = Objects::new(None);
        objects
            .write(&remote, 0, b"x".to_vec().into())
            .await
            .unwrap();
        objects.seal(&remote, body).await.unwrap();
        let kept = recorded(&node, object);
        let found = |number: u32| kept.get(&number).cloned();
        assert_eq!(found(number::INODE), word(inode), "{object}");
        assert_eq!(found(number::UID), word(owner.0), "{object}");
        assert_eq!(found(number::GID), word(owner.1), "{object}");
        assert_eq!(found(number::MODE), word(mode), "{object}");
        assert_eq!(found(number::PART), kept_part, "{object}");
        assert_eq!(
            found(number::PATH),
            Some(b"/ours/f\xff".to_vec()),
            "{object}"
        );
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seal_with_capability_without_attributes_is_refused() {
    let (_directory, node, _connection) = started(|_| ()).await;
    let key = tidemill_wire::capability::CapabilityKey::new(KEY);
    let bare = key.sign(&tidemill_wire::capability::Capability {
        object: ObjectId(54),
        node: tidemill_model::id::NodeId(1),
        rights: ALL,
        uid: user(),
        expires_at_ns: u64::MAX,
        attributes: None,
    });
    let body = br#"{"durable":true}"#;
    let seal = format!("{}/seal", path(54));
    let refused = request(&node, "POST", &seal, Some(&bare), "", body).await;
    assert_eq!(refused.status, 403);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_can_set_attributes_only_on_their_own_pages() {
    let (_directory, node, _connection) = started(|_| ()).await;
    put(&node, 5, b"x").await;
    let all = capability(1, 5, ALL);
    let at = |page: u32, number: u32| format!("{}/attributes/{page}/{number}", path(5));
    assert_eq!(
        request(&node, "PUT", &at(256, 7), Some(&all), "", b"mine")
            .await
            .status,
        204
    );
    let got = request(&node, "GET", &at(256, 7), Some(&all), "", b"").await;
    assert_eq!((got.status, got.text()), (200, "mine"));
    assert_eq!(
        request(&node, "PUT", &at(1, 1), Some(&all), "", b"9")
            .await
            .status,
        403
    );
    assert_eq!(
        request(&node, "GET", &at(256, 8), Some(&all), "", b"")
            .await
            .status,
        404
    );
    let long = vec![0; (64 << 10) + 1];
    assert_eq!(
        request(&node, "PUT", &at(256, 7), Some(&all), "", &long)
            .await
            .status,
        413
    );
    let other = capability(1, 6, ALL);
    let missing = format!("{}/attributes/256/1", path(6));
    assert_eq!(
        request(&node, "PUT", &missing, Some(&other), "", b"x")
            .await
            .status,
        404
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_node_refuses_writes_until_space_is_freed() {
    let (_directory, node, mut connection) =
        started(|config| config.capacity_bytes = Some(100_000)).await;
    put(&node, 5, &vec![1; 60_000]).await;
    let six = capability(1, 6, ALL);
    let refused = request(&node, "PUT", &path(6), Some(&six), "", &vec![1; 50_000]).await;
    assert_eq!(refused.status, 507);
    assert!(refused.text().contains("full"));
    let target = format!("{}/truncate?size=50000", path(6));
    assert_eq!(
        request(&node, "POST", &target, Some(&six), "", b"")
            .await
            .status,
        507
    );
    let full = connection
        .status(|status| status.free_bytes == 40_000)
        .await;
    assert_eq!(full.capacity_bytes, 100_000);
    let task = |id: u64| {
        program_label(
            id,
            "sh",
            &[
                "-c",
                "head -c 30000 /dev/zero > a; head -c 30000 /dev/zero > b",
            ],
        )
        .output("a", 10 * id)
        .output("b", 10 * id + 1)
    };
    connection.labels(&[task(1)]);
    let outcome = connection.finished(1).await;
    assert_eq!(failure(&outcome).kind, "device");
    assert!(failure(&outcome).message.contains("full"), "{outcome:?}");
    // The space of the failed outputs is released.
    connection
        .status(|status| status.free_bytes == 40_000 && status.running == 0)
        .await;
    connection.remove(&[5]).await;
    connection.labels(&[task(2)]);
    assert_eq!(
        sealed(&connection.finished(2).await),
        [(20, 30_000), (21, 30_000)]
    );
    assert_eq!(
        request(&node, "PUT", &path(6), Some(&six), "", &vec![1; 40_000])
            .await
            .status,
        204
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_tracker_lists_running_and_ended_tasks() {
    let (_directory, node, mut connection) = started(|_| ()).await;
    put(&node, 5, b"x").await;
    let script = "echo begun >&2; cat gate > out; exec sleep 1000";
    connection.labels(&[program_label(1, "sh", &["-c", script])
        .input("gate", 5, 1)
        .output("out", 6)]);
    connection.running(1).await;
    let task = 1001;
    let collection = ObjectId::task_collection(TaskId(task)).0;
    let may = capability(1, collection, rights::READ);
    let ask = || request(&node, "GET", "/tasks/1001", Some(&may), "", b"");
    let running = loop {
        let json = ask().await.json();
        if json["stderr"] == "begun\n" {
            break json;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(running["state"], "running");
    assert!(running["start"].as_u64().unwrap() > 0);
    let all = capability(1, 0, rights::READ);
    let list = request(&node, "GET", "/tasks", Some(&all), "", b"").await;
    assert_eq!(list.json().as_array().unwrap().len(), 1);
    connection.abort(1);
    connection.finished(1).await;
    let ended = ask().await.json();
    assert_eq!(ended["state"], "failed");
    assert_eq!(ended["name"], "task 1");
    assert_eq!(ended["args"][1], script);
    assert_eq!(ended["inputs"][0], "0000000000000005");
    assert_eq!(ended["stderr"], "begun\n");
    // The collections and attributes of the paper's Fig. 3 contain the same data.
    let inputs = ObjectId::input_collection(TaskId(task)).0;
    let may_inputs = capability(1, inputs, rights::READ);
    let members = request(
        &node,
        "GET",
        &format!("{}/members", path(inputs)),
        Some(&may_inputs),
        "",
        b"",
    )
    .await;
    assert_eq!(members.json(), serde_json::json!(["0000000000000005"]));
    let one = format!("{}/attributes/2/1", path(collection));
    let value = request(&node, "GET", &one, Some(&may), "", b"").await.body;
    assert_eq!(value, inputs.to_le_bytes());
    let none = capability(1, ObjectId::task_collection(TaskId(9)).0, rights::READ);
    assert_eq!(
        request(&node, "GET", "/tasks/9", Some(&none), "", b"")
            .await
            .status,
        404
    );
    let may = capability(1, ObjectId::STATUS.0, rights::READ);
    let status = request(&node, "GET", "/status", Some(&may), "", b"")
        .await
        .json();
    assert_eq!(
        (status["node"].as_u64(), status["cores"].as_u64()),
        (Some(1), Some(2))
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_with_invalid_capability_is_refused_before_its_body() {
    let (_directory, node, _connection) = started(|_| ()).await;
    let address = node.url().strip_prefix("http://").unwrap();
    let forged = {
        let mut capability = capability(1, 5, ALL);
        capability[40] ^= 1;
        format!("x-tidemill-capability: {}\r\n", hex(&capability))
    };
    let object = path(5);
    for (method, path) in [("POST", "/seal"), ("PUT", &object), ("GET", "/status")] {
        for shown in ["", &forged] {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 8000000\r\n{shown}\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            // The client sends no body, and the node does not wait for it.
            let mut start = [0; 12];
            soon(stream.read_exact(&mut start)).await.unwrap();
            assert_eq!(&start[9..], b"403", "{method} {path}");
        }
    }
    node.stop().await;
}
