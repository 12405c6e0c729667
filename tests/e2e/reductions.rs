//! Tests reductions by URL, with requests by curl like those of reductionist's clients.

use crate::cluster::{Cluster, Options, wait};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use tidemill_client::Credential;

const ALICE: u32 = 4_000_001;
const BOB: u32 = 4_000_002;

/// Number of concurrent requests, as PyActiveStorage sends them; more than a user may have in progress.
const AT_ONCE: usize = 100;

/// Body of an answer, and its status.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Answer {
    /// Returns the bytes of the result, the text of its type, its shape and its counts: these items have known places in a map whose keys
    /// have a fixed order.
    fn result(&self) -> (Vec<u8>, String, Vec<u64>, Vec<u64>) {
        assert_eq!(self.status, 200, "{}", self.text());
        let mut cbor = Cbor(&self.body);
        assert_eq!(cbor.head(), (5, 7));
        assert_eq!(cbor.text(), "bytes");
        let bytes = cbor.bytes();
        assert_eq!(cbor.text(), "dtype");
        let dtype = cbor.text();
        assert_eq!(cbor.text(), "shape");
        let shape = cbor.list();
        assert_eq!(cbor.text(), "shape_as_bytes");
        cbor.bytes();
        assert_eq!(cbor.text(), "count");
        let counts = cbor.list();
        (bytes, dtype, shape, counts)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the message of a refusal and its causes.
    fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let printed: Value = serde_json::from_slice(&self.body).unwrap();
        let error = &printed["error"];
        let causes = error["caused_by"].as_array();
        let causes = causes
            .map(|all| all[0].as_str().unwrap())
            .unwrap_or_default();
        format!("{}: {causes}", error["message"].as_str().unwrap())
    }
}

/// Rest of an encoding.
struct Cbor<'a>(&'a [u8]);

impl Cbor<'_> {
    fn head(&mut self) -> (u8, u64) {
        let first = self.take(1)[0];
        let more = match first & 31 {
            short @ 0..24 => return (first >> 5, short.into()),
            long => 1 << (long - 24),
        };
        let number = self.take(more);
        (
            first >> 5,
            number
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let (now, later) = self.0.split_at(count);
        self.0 = later;
        now.to_vec()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let (_, length) = self.head();
        self.take(usize::try_from(length).unwrap())
    }

    fn text(&mut self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }

    fn list(&mut self) -> Vec<u64> {
        let (_, length) = self.head();
        (0..length).map(|_| self.head().1).collect()
    }
}

fn cluster(nodes: usize, flags: &[&str]) -> Option<Cluster> {
    Cluster::with(Options {
        nodes,
        mount: false,
        flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        ..Options::default()
    })
}

fn token(cluster: &Cluster) -> String {
    Credential::read(&cluster.token_file()).unwrap().token
}

fn user_token(cluster: &Cluster, uid: u32) -> (u64, String) {
    let path = cluster.path(&format!("token-{uid}"));
    let (user, shown) = (uid.to_string(), path.display().to_string());
    let made = cluster.json(&["token", "create", "--user", &user, "--output", &shown]);
    let token = Credential::read(&path).unwrap().token;
    (made["token"]["token"].as_u64().unwrap(), token)
}

/// Returns a request with all required fields, and `more`.
fn request(cluster: &Cluster, path: &str, dtype: &str, more: Value) -> Value {
    let url = format!("{}/files{path}", cluster.address());
    let mut all = json!({"interface_type": "https", "url": url, "dtype": dtype});
    let more = more.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(more);
    all
}

fn post(cluster: &Cluster, args: &[&str], operation: &str, body: &Value) -> Answer {
    let (sent, came) = (cluster.path("sent"), cluster.path("came"));
    std::fs::write(&sent, body.to_string()).unwrap();
    let mut command = Command::new("curl");
    command.args(["-sS", "-w", "%{http_code}", "--cacert"]);
    command.arg(cluster.token_file()).arg("-o").arg(&came);
    command.args(["-H", "Content-Type: application/json", "--data-binary"]);
    let url = format!("{}/v2/{operation}", cluster.address());
    command
        .arg(format!("@{}", sent.display()))
        .args(args)
        .arg(url);
    let printed = command.output().unwrap();
    assert!(
        printed.status.success(),
        "{}",
        String::from_utf8_lossy(&printed.stderr)
    );
    Answer {
        status: String::from_utf8(printed.stdout).unwrap().parse().unwrap(),
        body: std::fs::read(came).unwrap(),
    }
}

fn put(cluster: &Cluster, bytes: &[u8], flags: &[&str], path: &str) {
    let local = cluster.path("local");
    std::fs::write(&local, bytes).unwrap();
    std::fs::set_permissions(&local, PermissionsExt::from_mode(0o644)).unwrap();
    let printed = cluster.run(&[&["put"], flags, &[local.to_str().unwrap(), path]].concat());
    assert!(printed.ok, "{}", printed.err);
}

fn numbers(count: i32) -> Vec<u8> {
    (0..count).flat_map(i32::to_le_bytes).collect()
}

/// Returns a zlib stream of uncompressed blocks.
fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![0x78, 0x01];
    let blocks: Vec<&[u8]> = bytes.chunks(65_535).collect();
    for (place, block) in blocks.iter().enumerate() {
        let length = u16::try_from(block.len()).unwrap();
        all.push(u8::from(place + 1 == blocks.len()));
        all.extend(length.to_le_bytes());
        all.extend((!length).to_le_bytes());
        all.extend(*block);
    }
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    all.extend((high << 16 | low).to_be_bytes());
    all
}

fn shuffled(bytes: &[u8]) -> Vec<u8> {
    let plane = |byte: usize| bytes.iter().skip(byte).step_by(4);
    (0..4).flat_map(plane).copied().collect()
}

#[test]
fn files_of_any_layout_are_reduced_for_current_clients() {
    let Some(cluster) = cluster(3, &[]) else {
        return;
    };
    let bearer = format!("Authorization: Bearer {}", token(&cluster));
    let basic = format!("root:{}", token(&cluster));
    let bytes = numbers(300_000);
    put(&cluster, &bytes, &[], "/whole");
    put(&cluster, &bytes, &["--stripe", "64KiB,3"], "/striped");
    let packed = zlib(&shuffled(&bytes));
    put(
        &cluster,
        &[b"head".as_slice(), &packed].concat(),
        &["--stripe", "64KiB,2"],
        "/packed",
    );
    let sum: i32 = (0..300_000).fold(0, i32::wrapping_add);
    let codecs = json!({
        "compression": {"id": "zlib"}, "filters": [{"id": "shuffle", "element_size": 4}], "offset": 4,
        "size": packed.len(), "shape": [300_000],
    });
    for (path, more) in [
        ("/whole", json!({})),
        ("/striped", json!({})),
        ("/packed", codecs),
    ] {
        for args in [["--http1.1", "-H", &bearer], ["--http2", "-u", &basic]] {
            for operation in ["sum/", "sum"] {
                let asked = request(&cluster, path, "int32", more.clone());
                let result = post(&cluster, &args, operation, &asked).result();
                let expected = (
                    sum.to_le_bytes().to_vec(),
                    "int32".to_owned(),
                    vec![],
                    vec![300_000],
                );
                assert_eq!(result, expected, "{path}");
            }
        }
    }
    let some = json!({
        "shape": [300, 1000], "offset": 0, "size": 1_200_000, "axis": [0], "order": "C",
        "selection": [[10, 290, 7], [999, 0, -300]], "missing": {"valid_max": 250_000},
    });
    for path in ["/whole", "/striped"] {
        let asked = request(&cluster, path, "int32", some.clone());
        let (bytes, dtype, shape, counts) = post(&cluster, &["-u", &basic], "max", &asked).result();
        let columns = [999, 699, 399, 99];
        let valid = |column: i32| {
            (10..290)
                .step_by(7)
                .map(move |row| row * 1000 + column)
                .filter(|value| *value <= 250_000)
        };
        let greatest = columns.map(|column| valid(column).max().unwrap());
        assert_eq!(bytes, greatest.map(i32::to_le_bytes).concat());
        assert_eq!((dtype.as_str(), shape), ("int32", vec![4]));
        assert_eq!(counts, columns.map(|column| valid(column).count() as u64));
    }
}

#[test]
fn reduction_requires_read_permission() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    put(&cluster, &numbers(10), &[], "/own");
    cluster.sh(&format!(
        "chown {ALICE} own; chmod 600 own; mkdir -m 700 closed; cp own closed; chmod 644 closed/own"
    ));
    let root = format!("root:{}", token(&cluster));
    let (number, alice) = user_token(&cluster, ALICE);
    let (_, bob) = user_token(&cluster, BOB);
    let asked = request(&cluster, "/own", "int32", json!({}));
    assert_eq!(
        post(&cluster, &["-u", &root], "count", &asked).result().3,
        [10]
    );
    let bob = format!("{BOB}:{bob}");
    post(&cluster, &["-u", &bob], "count", &asked).refused(403);
    // A token is the password of its own user, and the server never asks for a password that a browser would store.
    let stolen = format!("{BOB}:{alice}");
    assert!(
        post(&cluster, &["-u", &stolen], "count", &asked)
            .refused(401)
            .contains("token")
    );
    post(&cluster, &[], "count", &asked).refused(401);
    post(
        &cluster,
        &["-u", &root, "-H", "Sec-Fetch-Site: cross-site"],
        "count",
        &asked,
    )
    .refused(401);
    let alice = format!("{ALICE}:{alice}");
    assert_eq!(
        post(&cluster, &["-u", &alice], "count", &asked).result().3,
        [10]
    );
    let closed = request(&cluster, "/closed/own", "int32", json!({}));
    post(&cluster, &["-u", &alice], "count", &closed).refused(403);
    assert!(cluster.run(&["token", "revoke", &number.to_string()]).ok);
    post(&cluster, &["-u", &alice], "count", &asked).refused(401);
}

#[test]
fn invalid_reduction_is_refused_with_reason_and_status() {
    let Some(cluster) = cluster(1, &[]) else {
        return;
    };
    let root = format!("root:{}", token(&cluster));
    put(&cluster, &numbers(100), &[], "/f");
    let mut corrupt = zlib(&numbers(100));
    corrupt[50] ^= 1;
    put(&cluster, &corrupt, &[], "/corrupt");
    let ask = |path: &str, more: Value| {
        let asked = request(&cluster, path, "int32", more);
        post(&cluster, &["-u", &root], "sum/", &asked)
    };
    for (path, status, more, words) in [
        ("/none", 404, json!({}), "/none"),
        ("/", 403, json!({}), "directory"),
        ("/f", 400, json!({"offset": 396, "size": 8}), "400 bytes"),
        ("/f", 400, json!({"shape": [99]}), "400"),
        ("/f", 400, json!({"shape": [100], "axis": 1}), "axis 1"),
        ("/f", 400, json!({"size": 6}), "6"),
        ("/f", 400, json!({"compression": {"id": "lzma"}}), "lzma"),
        (
            "/f",
            400,
            json!({"url": "https://elsewhere.example/files/f"}),
            "tls-names",
        ),
        ("/f", 400, json!({"url": "/files/f"}), "host"),
        ("/f", 400, json!({"dtype": "float16"}), "float16"),
        (
            "/corrupt",
            400,
            json!({"compression": {"id": "zlib"}, "shape": [100]}),
            "of /corrupt",
        ),
        ("/f", 400, json!({"shape": [1_u64 << 40]}), "268435456"),
    ] {
        let printed = ask(path, more.clone()).refused(status);
        assert!(printed.contains(words), "{path} {more}: {printed}");
    }
    // Neither affects the next request.
    assert_eq!(ask("/f", json!({})).result().3, [100]);
    let nothing = request(&cluster, "/f", "int32", json!({}));
    assert_eq!(
        post(&cluster, &["-u", &root], "mean/", &nothing).status,
        404
    );
    assert_eq!(
        post(&cluster, &["-u", &root, "-X", "PUT"], "sum/", &nothing).status,
        405
    );
}

#[test]
fn reduction_uses_other_replica_if_one_is_lost_or_corrupt() {
    let Some(mut cluster) = cluster(2, &[]) else {
        return;
    };
    let root = format!("root:{}", token(&cluster));
    let packed = zlib(&numbers(50_000));
    for path in ["/a", "/b"] {
        put(&cluster, &packed, &["--replicas", "2"], path);
        wait("the file is copied", || {
            let layout = cluster.json(&["stat", path]);
            let replicas = layout["parts"][0]["replicas"].as_array().unwrap();
            replicas.len() == 2 && replicas.iter().all(|replica| replica["state"] == "current")
        });
    }
    let codecs = json!({"compression": {"id": "zlib"}, "shape": [50_000]});
    let count = |cluster: &Cluster, path: &str| {
        let asked = request(cluster, path, "int32", codecs.clone());
        post(cluster, &["-u", &root], "count", &asked).result().3
    };
    assert_eq!(count(&cluster, "/a"), [50_000]);
    // Some bits of one replica change.
    let file = &cluster.object_files("/a")[0];
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(b"rot", 1000).unwrap();
    for _ in 0..4 {
        assert_eq!(count(&cluster, "/a"), [50_000]);
    }
    cluster.kill_node(0);
    assert_eq!(count(&cluster, "/b"), [50_000]);
}

/// Sends a request on a connection of its own, without TLS.
fn by_hand(address: &str, token: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v2/sum/ HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn hundred_concurrent_reductions_wait_for_their_turn() {
    let Some(cluster) = cluster(2, &["--tls", "off"]) else {
        return;
    };
    put(&cluster, &numbers(1 << 20), &["--stripe", "1MiB,2"], "/f");
    let (_, alice) = user_token(&cluster, ALICE);
    let address = cluster.address();
    let address = address.strip_prefix("http://").unwrap();
    let asked = request(&cluster, "/f", "int32", json!({})).to_string();
    std::thread::scope(|scope| {
        let ask = || scope.spawn(|| by_hand(address, &alice, &asked));
        let all: Vec<_> = (0..AT_ONCE).map(|_| ask()).collect();
        for one in all {
            let answer = one.join().unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    });
    // The number of processes that serve them is at most the number of a node's cores.
    for node in 0..2 {
        let directory = cluster.node_directory(node).join("run");
        let children = std::fs::read_dir(directory).unwrap();
        let children = children.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with("reduce-")
        });
        assert!(children.count() <= 2);
    }
}

#[test]
fn reduction_does_not_wait_for_stopped_node() {
    let Some(cluster) = cluster(2, &[]) else {
        return;
    };
    put(&cluster, &numbers(50_000), &["--replicas", "2"], "/a");
    wait("the file is copied", || {
        let layout = cluster.json(&["stat", "/a"]);
        let replicas = layout["parts"][0]["replicas"].as_array().unwrap();
        replicas.len() == 2 && replicas.iter().all(|replica| replica["state"] == "current")
    });
    let first = cluster.json(&["stat", "/a"])["parts"][0]["replicas"][0]["node"]
        .as_u64()
        .unwrap();
    cluster.signal_node(
        usize::try_from(first).unwrap(),
        rustix::process::Signal::STOP,
    );
    let root = format!("root:{}", token(&cluster));
    let asked = request(&cluster, "/a", "int32", json!({}));
    assert_eq!(
        post(&cluster, &["-u", &root], "count", &asked).result().3,
        [50_000]
    );
}
