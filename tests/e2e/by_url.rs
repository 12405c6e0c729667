//! Tests files by URL, with requests of programs that know nothing of Tidemill: by curl, and byte by byte.

use crate::cluster::{Cluster, Options, wait};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use tidemill_client::Credential;

const ALICE: u32 = 4_000_001;
const BOB: u32 = 4_000_002;

/// Number of bytes that exceeds all buffers between a node and a client that does not read.
const MUCH: u32 = 10_000_000;

/// Answer to a request.
struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.headers.lines().filter_map(|line| line.split_once(':'));
        let mut same = headers.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        same.next().map(|(_, value)| value.trim())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn token(cluster: &Cluster) -> String {
    Credential::read(&cluster.token_file()).unwrap().token
}

/// Requests `/files` with a path, with a token.
fn curl(cluster: &Cluster, token: &str, args: &[&str], path: &str) -> Answer {
    let (headers, body) = (cluster.path("headers"), cluster.path("body"));
    let _ = std::fs::remove_file(&body);
    let mut command = Command::new("curl");
    command.args(["-sS", "--path-as-is", "-w", "%{http_code}", "--cacert"]);
    command
        .arg(cluster.token_file())
        .arg("-D")
        .arg(&headers)
        .arg("-o")
        .arg(&body);
    if !token.is_empty() {
        command.args(["-H", &format!("Authorization: Bearer {token}")]);
    }
    let url = format!("{}/files{path}", cluster.address());
    let printed = command.args(args).arg(&url).output().unwrap();
    let status = String::from_utf8(printed.stdout).unwrap();
    assert!(
        printed.status.success(),
        "{url}: {}",
        String::from_utf8_lossy(&printed.stderr)
    );
    Answer {
        status: status.parse().unwrap(),
        headers: std::fs::read_to_string(headers).unwrap(),
        body: std::fs::read(body).unwrap_or_default(),
    }
}

/// Request by HTTP/1.1 whose answer is read byte by byte.
struct Begun<S> {
    stream: S,
    head: String,
    body: Vec<u8>,
}

impl<S: Read + Write> Begun<S> {
    fn with(mut stream: S, path: &str, headers: &str) -> Self {
        let request =
            format!("GET /files{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut body = Vec::new();
        loop {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&body));
            body.extend_from_slice(&buffer[..count]);
            if let Some(end) = body.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8(body.drain(..end + 4).collect()).unwrap();
                return Self { stream, head, body };
            }
        }
    }

    fn ok(self) -> Self {
        assert!(self.head.starts_with("HTTP/1.1 200 "), "{}", self.head);
        self
    }

    /// Reads all bytes until the connection ends or is cut.
    fn rest(mut self) -> Vec<u8> {
        let _ = self.stream.read_to_end(&mut self.body);
        self.body
    }
}

/// Sends a request to the server's socket, as the user of the test.
fn begin(cluster: &Cluster, path: &str) -> Begun<UnixStream> {
    let stream = UnixStream::connect(cluster.path("server/server.sock")).unwrap();
    Begun::with(stream, path, "").ok()
}

/// Sends a request by TCP without TLS, as the bearer of a token.
fn begin_as(cluster: &Cluster, token: &str, path: &str) -> Begun<TcpStream> {
    let address = cluster.address();
    let stream = TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
    Begun::with(stream, path, &format!("Authorization: Bearer {token}\r\n"))
}

fn without_mount(nodes: usize) -> Options {
    Options {
        nodes,
        mount: false,
        ..Options::default()
    }
}

fn without_tls(options: Options) -> Options {
    Options {
        flags: ["--tls", "off"].map(String::from).into(),
        ..options
    }
}

fn numbers(from: u32, count: u32) -> Vec<u8> {
    (from..from + count).flat_map(u32::to_le_bytes).collect()
}

fn put(cluster: &Cluster, bytes: &[u8], flags: &[&str], path: &str) {
    let local = cluster.path("local");
    std::fs::write(&local, bytes).unwrap();
    std::fs::set_permissions(&local, PermissionsExt::from_mode(0o644)).unwrap();
    let printed = cluster.run(&[&["put"], flags, &[local.to_str().unwrap(), path]].concat());
    assert!(printed.ok, "{}", printed.err);
}

/// Waits until each part of a file has `count` replicas.
fn copied(cluster: &Cluster, path: &str, count: usize) {
    wait("the file is copied", || {
        let layout = cluster.json(&["stat", path]);
        layout["parts"].as_array().unwrap().iter().all(|part| {
            let replicas = part["replicas"].as_array().unwrap();
            replicas.len() == count && replicas.iter().all(|replica| replica["state"] == "current")
        })
    });
}

#[test]
fn url_returns_file_and_any_range_of_it() {
    let Some(cluster) = Cluster::with(without_mount(3)) else {
        return;
    };
    let token = token(&cluster);
    let bytes = numbers(7, 1_500_000);
    put(&cluster, &bytes, &[], "/whole");
    put(&cluster, &bytes, &["--stripe", "64KiB,3"], "/striped");
    put(&cluster, b"", &[], "/empty");
    assert!(cluster.run(&["mkdir", "/d"]).ok);
    put(&cluster, b"odd", &[], "/d/a b?#%é");
    let size = bytes.len();
    for protocol in ["--http1.1", "--http2"] {
        for path in ["/whole", "/striped"] {
            let all = curl(&cluster, &token, &[protocol], path);
            assert!(
                all.status == 200 && all.body == bytes,
                "{path}: {}",
                all.headers
            );
            assert_eq!(all.header("content-length").unwrap(), size.to_string());
            assert_eq!(all.header("accept-ranges"), Some("bytes"));
            let head = curl(&cluster, &token, &[protocol, "-I"], path);
            assert_eq!(
                (head.status, head.header("etag")),
                (200, all.header("etag"))
            );
            assert_eq!(head.header("content-length").unwrap(), size.to_string());
            assert_eq!(head.header("last-modified"), all.header("last-modified"));
            for (start, end) in [
                (0, 1),
                (65_535, 65_537),
                (1_999_999, 5_000_000),
                (size - 1, size),
            ] {
                let range = format!("{start}-{}", end - 1);
                let some = curl(&cluster, &token, &[protocol, "-r", &range], path);
                assert!(
                    some.status == 206 && some.body == bytes[start..end],
                    "{range}"
                );
                let printed = format!("bytes {range}/{size}");
                assert_eq!(some.header("content-range"), Some(printed.as_str()));
            }
            let last = curl(&cluster, &token, &[protocol, "-r", "-9"], path);
            assert!(last.status == 206 && last.body == bytes[size - 9..]);
            let beyond = curl(&cluster, &token, &[protocol, "-r", "6000000-"], path);
            let printed = format!("bytes */{size}");
            assert_eq!(
                (beyond.status, beyond.header("content-range")),
                (416, Some(printed.as_str()))
            );
            let many = curl(&cluster, &token, &[protocol, "-r", "0-1,5-6"], path);
            assert!(many.status == 200 && many.body == bytes);
        }
    }
    let empty = curl(&cluster, &token, &[], "/empty");
    assert_eq!((empty.status, empty.body.len()), (200, 0));
    assert_eq!(curl(&cluster, &token, &["-r", "0-"], "/empty").status, 416);
    assert_eq!(
        curl(&cluster, &token, &[], "/d/a%20b%3f%23%25%C3%A9").text(),
        "odd"
    );
    // By the server's socket, for which the Linux kernel reports the user, without a token.
    assert!(begin(&cluster, "/whole").rest() == bytes);
    versions_have_tags(&cluster, &token);
    directories_are_listed(&cluster, &token);
}

fn versions_have_tags(cluster: &Cluster, token: &str) {
    put(cluster, b"first", &[], "/v");
    let first = curl(cluster, token, &[], "/v");
    let tag = first.header("etag").unwrap();
    let asked = |name: &str, more: &[&str]| {
        let condition = format!("{name}: {tag}");
        curl(
            cluster,
            token,
            &[&["-H", condition.as_str()], more].concat(),
            "/v",
        )
    };
    let known = asked("If-None-Match", &[]);
    assert_eq!((known.status, known.body.len()), (304, 0));
    assert_eq!(known.header("etag"), Some(tag));
    assert_eq!(asked("If-Range", &["-r", "1-2"]).status, 206);
    assert_eq!(asked("If-Match", &[]).status, 200);
    put(cluster, b"second", &[], "/v");
    assert_eq!(asked("If-None-Match", &[]).text(), "second");
    // If the version has changed, a request for a range returns the whole present content.
    let all = asked("If-Range", &["-r", "1-2"]);
    assert_eq!((all.status, all.text().as_str()), (200, "second"));
    assert_eq!(asked("If-Match", &[]).status, 412);
    // A moved file has the same tag.
    let tag = curl(cluster, token, &["-I"], "/v")
        .header("etag")
        .unwrap()
        .to_owned();
    assert!(cluster.run(&["mv", "/v", "/w"]).ok);
    assert_eq!(
        curl(cluster, token, &["-I"], "/w").header("etag"),
        Some(tag.as_str())
    );
}

fn directories_are_listed(cluster: &Cluster, token: &str) {
    for directory in ["/d", "/d/"] {
        let listed = curl(cluster, token, &[], directory);
        assert_eq!(listed.header("content-type"), Some("application/json"));
        let listed: Value = serde_json::from_slice(&listed.body).unwrap();
        let entry = &listed["entries"][0];
        assert_eq!(entry["name"], "a b?#%é");
        assert_eq!(
            (entry["kind"].as_str(), entry["size"].as_u64()),
            (Some("file"), Some(3))
        );
        let url = entry["url"]
            .as_str()
            .unwrap()
            .strip_prefix("/files")
            .unwrap();
        assert_eq!(curl(cluster, token, &[], url).text(), "odd");
    }
    let root: Value = serde_json::from_slice(&curl(cluster, token, &[], "").body).unwrap();
    let names = root["entries"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(
        names.contains(&"d") && names.contains(&"whole"),
        "{names:?}"
    );
    // A file is no directory.
    assert_eq!(curl(cluster, token, &[], "/whole/").status, 404);
    assert_eq!(curl(cluster, token, &[], "/whole/x").status, 404);
}

/// A URL never returns content that is still being written, and returns closed content at once.
#[test]
fn url_returns_last_closed_content() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let token = token(&cluster);
    for number in 0..20 {
        std::fs::write(cluster.at("f"), format!("{number}")).unwrap();
        assert_eq!(curl(&cluster, &token, &[], "/f").text(), number.to_string());
    }
    let mut file = std::fs::File::create(cluster.at("g")).unwrap();
    file.write_all(b"not yet").unwrap();
    let early = curl(&cluster, &token, &[], "/g");
    assert_eq!(
        (early.status, early.header("retry-after")),
        (503, Some("2")),
        "{}",
        early.text()
    );
    drop(file);
    assert_eq!(curl(&cluster, &token, &[], "/g").text(), "not yet");
    let mut file = std::fs::File::options()
        .append(true)
        .open(cluster.at("g"))
        .unwrap();
    file.write_all(b"!").unwrap();
    assert_eq!(curl(&cluster, &token, &[], "/g").text(), "not yet");
    drop(file);
    assert_eq!(curl(&cluster, &token, &[], "/g").text(), "not yet!");
    cluster.sh("ln -s g link; mkfifo pipe; ln -s loop loop");
    assert_eq!(curl(&cluster, &token, &[], "/link").text(), "not yet!");
    assert_eq!(curl(&cluster, &token, &[], "/pipe").status, 403);
    assert_eq!(curl(&cluster, &token, &[], "/loop").status, 404);
}

fn user_token(cluster: &Cluster, uid: u32, flags: &[&str]) -> (u64, String) {
    let path = cluster.path("user-token");
    let _ = std::fs::remove_file(&path);
    let (user, shown) = (uid.to_string(), path.display().to_string());
    let args = [
        &["token", "create", "--user", &user, "--output", &shown],
        flags,
    ]
    .concat();
    let made = cluster.json(&args);
    let token = Credential::read(&path).unwrap().token;
    (made["token"]["token"].as_u64().unwrap(), token)
}

/// Checks that HTTP/1.1 serves only files, to any user.
fn serves_nothing_else(cluster: &Cluster) {
    let address = cluster.address();
    let other = TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
    let header = format!("Authorization: Bearer {}\r\n", token(cluster));
    let other = Begun::with(other, "/../tidemill.v1.Cluster/Status", &header);
    assert!(other.head.starts_with("HTTP/1.1 400"), "{}", other.head);
    let mut other = TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
    let request = format!(
        "POST /tidemill.v1.Cluster/Status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n"
    );
    other.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[test]
fn url_refuses_file_without_read_permission() {
    let Some(cluster) = Cluster::with(without_tls(Options::default())) else {
        return;
    };
    let bytes = numbers(0, MUCH);
    put(&cluster, &bytes, &[], "/much");
    cluster.sh(&format!(
        "echo own > own; chmod 600 own; chown {ALICE} own; mkdir -m 700 closed; echo secret > closed/f; chmod 644 closed/f"
    ));
    let (number, alice) = user_token(&cluster, ALICE, &[]);
    let (_, reader) = user_token(&cluster, ALICE, &["--read-only"]);
    let (_, bob) = user_token(&cluster, BOB, &[]);
    let status = |token: &str, args: &[&str], path: &str| curl(&cluster, token, args, path).status;
    for token in [&alice, &reader] {
        assert_eq!(curl(&cluster, token, &[], "/own").text(), "own\n");
        assert_eq!(status(token, &[], "/closed/f"), 403);
        assert_eq!(status(token, &[], "/closed"), 403);
    }
    let refused = curl(&cluster, &bob, &[], "/own");
    assert_eq!(refused.status, 403, "{}", refused.text());
    for (args, path) in [
        (&["-I"][..], "/own"),
        (&["-r", "0-0"], "/own"),
        (&[], "/closed/f"),
    ] {
        assert_eq!(status(&bob, args, path), 403, "{path}");
    }
    // The answer does not tell whether the file exists.
    assert_eq!(status(&bob, &[], "/closed/none"), 403);
    for wrong in ["", "0123", &bob[1..]] {
        let unauthenticated = curl(&cluster, wrong, &[], "/much");
        assert_eq!(
            (
                unauthenticated.status,
                unauthenticated.header("www-authenticate")
            ),
            (401, Some("Bearer"))
        );
        assert_eq!(status(wrong, &[], "/none"), 401);
    }
    for path in [
        "/../own",
        "/%2e%2e/own",
        "/closed%2ff",
        "/own%00",
        "/own?x=1",
        "/%zz",
        "/.",
    ] {
        assert_eq!(status(&alice, &[], path), 400, "{path}");
    }
    assert_eq!(status(&alice, &[], &format!("/{}", "x".repeat(5000))), 414);
    assert_eq!(status(&alice, &[], &format!("/{}", "x/".repeat(2000))), 404);
    for method in ["PUT", "POST", "DELETE", "OPTIONS"] {
        let answer = curl(&cluster, &alice, &["-X", method, "-d", "x"], "/own");
        assert_eq!(
            (answer.status, answer.header("allow")),
            (405, Some("GET, HEAD")),
            "{method}"
        );
    }
    assert_eq!(cluster.sh("cat own"), "own\n");
    serves_nothing_else(&cluster);
    // A running download with a token ends with the token.
    let begun = begin_as(&cluster, &alice, "/much").ok();
    assert!(cluster.run(&["token", "revoke", &number.to_string()]).ok);
    let rest = begun.rest();
    assert!(rest.len() < bytes.len() && bytes.starts_with(&rest));
    assert_eq!(status(&alice, &[], "/own"), 401);
}

#[test]
fn url_streams_of_one_user_are_bounded_in_number() {
    let Some(cluster) = Cluster::with(without_tls(without_mount(1))) else {
        return;
    };
    let bytes = numbers(0, MUCH);
    put(&cluster, &bytes, &[], "/much");
    let (_, alice) = user_token(&cluster, ALICE, &[]);
    let (_, bob) = user_token(&cluster, BOB, &[]);
    let mut begun: Vec<_> = (0..16)
        .map(|_| begin_as(&cluster, &alice, "/much").ok())
        .collect();
    let more = curl(&cluster, &alice, &[], "/much");
    assert_eq!(
        (more.status, more.header("retry-after")),
        (429, Some("2")),
        "{}",
        more.text()
    );
    // Requests that need no stream continue.
    assert_eq!(curl(&cluster, &alice, &["-I"], "/much").status, 200);
    assert_eq!(
        curl(&cluster, &bob, &["-r", "0-9"], "/much").body,
        bytes[..10]
    );
    // A stream that is closed frees a place, and so does one that is read to its end.
    drop(begun.pop());
    assert!(begun.pop().unwrap().rest() == bytes);
    wait("there is space for two", || {
        let one = begin_as(&cluster, &alice, "/much");
        if one.head.starts_with("HTTP/1.1 200 ") {
            begun.push(one);
        }
        begun.len() == 16
    });
    assert_eq!(curl(&cluster, &alice, &[], "/much").status, 429);
}

#[test]
fn url_stream_switches_replica_when_node_is_lost() {
    for stripes in [&[][..], &["--stripe", "64KiB,2"]] {
        for stopped in [false, true] {
            let Some(mut cluster) = Cluster::with(without_mount(3)) else {
                return;
            };
            let bytes = numbers(3, MUCH);
            put(
                &cluster,
                &bytes,
                &[&["--replicas", "2"], stripes].concat(),
                "/f",
            );
            copied(&cluster, "/f", 2);
            let begun = begin(&cluster, "/f");
            let layout = cluster.json(&["stat", "/f"]);
            let first = layout["parts"][0]["replicas"][0]["node"].as_u64().unwrap();
            let first = usize::try_from(first).unwrap();
            if stopped {
                cluster.signal_node(first, rustix::process::Signal::STOP);
            } else {
                cluster.kill_node(first);
                std::fs::rename(cluster.node_directory(first), cluster.path("lost")).unwrap();
            }
            let rest = begun.rest();
            assert!(rest == bytes, "{stripes:?} {stopped}: {} bytes", rest.len());
            let again = curl(
                &cluster,
                &token(&cluster),
                &["-r", "30000000-30000009"],
                "/f",
            );
            assert_eq!(
                (again.status, &again.body[..]),
                (206, &bytes[30_000_000..30_000_010])
            );
        }
    }
}

#[test]
fn url_stream_cut_before_its_end_is_an_error() {
    let Some(mut cluster) = Cluster::with(without_mount(1)) else {
        return;
    };
    let bytes = numbers(5, MUCH);
    put(&cluster, &bytes, &[], "/f");
    let begun = begin(&cluster, "/f");
    let length = format!("content-length: {}\r\n", bytes.len());
    assert!(begun.head.contains(&length), "{}", begun.head);
    cluster.kill_node(0);
    let rest = begun.rest();
    assert!(rest.len() < bytes.len() && bytes.starts_with(&rest));
    let refused = curl(&cluster, &token(&cluster), &[], "/f");
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("2"))
    );
    assert!(
        refused.text().contains("tidemill status"),
        "{}",
        refused.text()
    );
    // Attributes that need no node are returned all the same.
    assert_eq!(curl(&cluster, &token(&cluster), &["-I"], "/f").status, 200);
    cluster.start_node(0);
    wait("the file can be read again", || {
        let again = curl(&cluster, &token(&cluster), &[], "/f");
        again.status == 200 && again.body == bytes
    });
    // An object that is corrupt on the node's disk is reported, not sent.
    let object = cluster.object_files("/f").remove(0);
    std::fs::File::options()
        .write(true)
        .open(&object)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let corrupt = curl(&cluster, &token(&cluster), &[], "/f");
    assert!(
        [500, 503].contains(&corrupt.status),
        "{} {}",
        corrupt.status,
        corrupt.text()
    );
}

/// The bytes of a version stay while a URL reads them, and no longer.
#[test]
fn url_stream_continues_with_the_version_at_its_start() {
    let Some(cluster) = Cluster::with(without_mount(2)) else {
        return;
    };
    for stripes in [&[][..], &["--stripe", "64KiB,2"]] {
        let (old, new) = (numbers(1, MUCH), numbers(9, MUCH));
        for path in ["/read", "/left", "/unread", "/gone"] {
            put(&cluster, &old, stripes, path);
        }
        let of = |path: &str| cluster.object_files(path);
        let (read, left, unread, gone) = (of("/read"), of("/left"), of("/unread"), of("/gone"));
        let begun = begin(&cluster, "/read");
        let kept = begin(&cluster, "/gone");
        let leaving = begin(&cluster, "/left");
        for path in ["/read", "/left", "/unread"] {
            put(&cluster, &new, stripes, path);
        }
        assert!(cluster.run(&["rm", "/gone"]).ok);
        let all_gone = |objects: &[PathBuf]| objects.iter().all(|object| !object.exists());
        wait("bytes without a reader are removed", || all_gone(&unread));
        assert!(
            !all_gone(&left),
            "a client that takes no bytes has requested it"
        );
        drop(leaving);
        wait(
            "bytes are removed after their reader has disconnected",
            || all_gone(&left),
        );
        assert!(
            [&read, &gone]
                .into_iter()
                .flatten()
                .all(|object| object.exists())
        );
        assert!(begun.rest() == old && kept.rest() == old);
        assert!(begin(&cluster, "/read").rest() == new);
        wait("read bytes are removed", || {
            all_gone(&read) && all_gone(&gone)
        });
    }
}
