//! Tests of stores that fail, change and deceive.
#![allow(clippy::unwrap_used, reason = "tests")]

mod files;
mod stand_in;

use bytes::Bytes;
use files::{noise, read, write};
use stand_in::{Fault, StandIn, Upload};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use tidemill_remote::{Error, Keys, ListedItem, PathType, Remote, RemoteAddress};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SECRET: &str = "hush-hush-hush";

fn keys(id: &str) -> Keys {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let text = format!("access_key_id = \"{id}\"\nsecret_access_key = \"{SECRET}\"\n");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    Keys::read(&path).unwrap()
}

fn open(uri: &str) -> Remote {
    tidemill_remote::open(&RemoteAddress::parse(uri).unwrap(), &Keys::default()).unwrap()
}

fn open_directory(path: &Path) -> Remote {
    open(&format!("file://{}", path.display()))
}

async fn names(remote: &Remote, directory: &str) -> (Vec<String>, Vec<String>) {
    let (mut files, mut passed) = (Vec::new(), Vec::new());
    let mut listed = remote.list(directory);
    while let Some(one) = listed.next().await.unwrap() {
        match one {
            ListedItem::Object(object) => files.push(object.path),
            ListedItem::Passed(path, _) => passed.push(path),
        }
    }
    files.sort();
    (files, passed)
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_read_retries_if_store_is_busy_or_cuts_connection() {
    let server = StandIn::start().await;
    let content = noise(9 << 20, 1);
    server.put("a/big", content.clone());
    for uri in [server.s3(), format!("http://{}/", server.address)] {
        let remote = open(&uri);
        let object = remote.stat("a/big").await.unwrap();
        assert_eq!(object.size, content.len() as u64);
        let faults = [Fault::Status(503), Fault::Status(429), Fault::Cut];
        server.state().faults.extend(faults);
        assert!(read(&remote, &object).await.unwrap() == content, "{uri}");
        assert!(server.state().faults.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_read_of_replaced_object_reports_change() {
    let server = StandIn::start().await;
    for uri in [server.s3(), format!("http://{}/", server.address)] {
        server.put("big", noise(9 << 20, 1));
        let remote = open(&uri);
        let object = remote.stat("big").await.unwrap();
        let mut reader = remote.read(&object).await.unwrap();
        assert!(reader.next().await.unwrap().is_some());
        server.put("big", vec![7; 9 << 20]);
        let error = reader.next().await.unwrap_err();
        assert!(matches!(error, Error::Changed(_)), "{uri}: {error}");
        server.state().objects.remove("big");
        assert!(read(&remote, &object).await.unwrap_err().is_missing());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_refuses_wrong_keys_and_error_hides_them() {
    let server = StandIn::start().await;
    server.put("a", vec![1]);
    server.state().key = Some("good".into());
    let place = RemoteAddress::parse(&server.s3()).unwrap();
    let good = tidemill_remote::open(&place, &keys("good")).unwrap();
    good.check().await.unwrap();
    assert_eq!(good.stat("a").await.unwrap().size, 1);
    for wrong in [keys("bad-bad"), Keys::default()] {
        let remote = tidemill_remote::open(&place, &wrong).unwrap();
        for error in [
            remote.check().await.unwrap_err(),
            write(&remote, "b", &[1]).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::Refused { .. }), "{error}");
            let reported = format!("{error} {error:?} {remote:?}");
            assert!(
                !reported.contains(SECRET) && !reported.contains("bad-bad"),
                "{reported}"
            );
        }
    }
    // Keys are revoked while they are used, and granted again.
    let object = good.stat("a").await.unwrap();
    server.state().key = Some("other".into());
    assert!(matches!(
        read(&good, &object).await.unwrap_err(),
        Error::Refused { .. }
    ));
    server.state().key = Some("good".into());
    assert_eq!(read(&good, &object).await.unwrap(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_error_distinguishes_wrong_clock_from_wrong_keys() {
    let server = StandIn::start().await;
    server.put("a", vec![1]);
    let remote =
        tidemill_remote::open(&RemoteAddress::parse(&server.s3()).unwrap(), &keys("good")).unwrap();
    let object = remote.stat("a").await.unwrap();
    server.state().deny = Some((403, "RequestTimeTooSkewed"));
    for error in [
        read(&remote, &object).await.unwrap_err(),
        write(&remote, "b", &[1]).await.unwrap_err(),
        remote.check().await.unwrap_err(),
        remote.stat("a").await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Clock { .. }), "{error}");
        assert!(error.to_string().contains("set this host's clock"));
    }
    server.state().deny = None;
    assert_eq!(read(&remote, &object).await.unwrap(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_multipart_write_leaves_no_object_and_no_upload() {
    let server = StandIn::start().await;
    let remote = open(&server.s3());
    let content = noise(40 << 20, 1);
    let written = write(&remote, "d/big", &content).await.unwrap();
    assert_eq!(written, remote.stat("d/big").await.unwrap());
    assert!(server.state().objects["d/big"].0 == content);
    server.state().bad_part = Some(2);
    assert!(write(&remote, "d/other", &content).await.is_err());
    let state = server.state();
    assert!(!state.objects.contains_key("d/other"));
    assert!(state.uploads.is_empty(), "{:?}", state.uploads.keys());
}

/// Uploads of other files, and uploads that began before, are kept.
#[tokio::test(flavor = "multi_thread")]
async fn abandon_aborts_only_uploads_of_its_file() {
    let server = StandIn::start().await;
    let remote = open(&format!(
        "s3://bucket/top?endpoint=http://{}",
        server.address
    ));
    assert!(remote.leaves());
    let begin = |id: &str, key: &str, begun: &str| {
        let upload = Upload {
            key: key.into(),
            begun: begun.into(),
            ..Upload::default()
        };
        server.state().uploads.insert(id.into(), upload);
    };
    // This is 2026-05-01, midnight.
    let since = UNIX_EPOCH + Duration::from_secs(1_777_593_600);
    let (later, before) = ("2026-05-01T00:00:01.000Z", "2026-04-30T23:59:59Z");
    begin("1", "top/ä b", later);
    begin("2", "top/ä b", before);
    begin("3", "top/ä bc", later);
    begin("4", "top/ä b", later);
    begin("5", "ä b", later);
    remote.abandon("ä b", since).await.unwrap();
    assert!(server.state().uploads.keys().eq(["2", "3", "5"]));
    remote.abandon("nothing", since).await.unwrap();
    server.state().deny = Some((403, "AccessDenied"));
    let error = remote.abandon("ä b", since).await.unwrap_err().to_string();
    assert!(error.contains("AccessDenied"), "{error}");
}

/// A path below a file is an error, because the parent of the path is not a directory.
async fn below_a_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "a").unwrap();
    let remote = open_directory(directory.path());
    let below = remote.stat("a/b").await.unwrap_err();
    assert!(matches!(below, Error::NoFile { .. }), "{below}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_list_reads_all_pages_and_skips_invalid_names() {
    let server = StandIn::start().await;
    for number in 0..3500 {
        server.put(&format!("d/{number:04}"), Vec::new());
    }
    for key in ["d/x/../../../etc/passwd", "d//twice", "e/out"] {
        server.put(key, vec![1]);
    }
    let (files, passed) = names(&open(&server.s3()), "d").await;
    assert_eq!((files.len(), passed.len()), (3500, 2), "{passed:?}");
    assert!(server.state().lists >= 4);
    let error = open(&format!("http://{}/", server.address))
        .list("")
        .next()
        .await;
    assert!(matches!(error, Err(Error::Unable(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn local_remote_never_escapes_root_by_links_dots_or_pipes() {
    below_a_file().await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "s").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir(root.join("d")).unwrap();
    std::fs::write(root.join("d/a"), "abc").unwrap();
    symlink(outside.path(), root.join("way")).unwrap();
    symlink(outside.path().join("secret"), root.join("d/link")).unwrap();
    let pipe = root.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let remote = open_directory(root);
    let (files, mut passed) = names(&remote, "").await;
    passed.sort();
    assert_eq!(files, ["d/a"]);
    assert_eq!(passed, ["d/link", "pipe", "way"]);
    for path in [
        "way/secret",
        "d/link",
        "pipe",
        "d",
        "../x",
        "d/../d/a",
        "/etc/passwd",
        "",
    ] {
        assert!(remote.stat(path).await.is_err(), "{path}");
    }
    for path in ["way/new", "../new", "d/a/new", "/new"] {
        assert!(write(&remote, path, b"x").await.is_err(), "{path}");
    }
    assert!(!outside.path().join("new").exists());
    // The write replaces a link and does not follow it.
    write(&remote, "d/link", b"mine").await.unwrap();
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"s");
    assert_eq!(std::fs::read(root.join("d/link")).unwrap(), b"mine");
    let object = remote.stat("d/a").await.unwrap();
    std::fs::write(root.join("d/a"), "abcd").unwrap();
    assert!(matches!(
        read(&remote, &object).await.unwrap_err(),
        Error::Changed(_)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn local_remote_write_is_exclusive_and_visible_when_complete() {
    let directory = tempfile::tempdir().unwrap();
    let remote = open_directory(directory.path());
    let mut first = remote.write("x/y/file").await.unwrap();
    first.write(Bytes::from_static(b"first")).await.unwrap();
    assert!(remote.stat("x/y/file").await.unwrap_err().is_missing());
    assert!(names(&remote, "").await.0.is_empty());
    assert!(matches!(
        remote.write("x/y/file").await.unwrap_err(),
        Error::Busy(_)
    ));
    let written = first.finish().await.unwrap();
    assert_eq!(written, remote.stat("x/y/file").await.unwrap());
    assert_eq!(read(&remote, &written).await.unwrap(), b"first");
    let mut second = remote.write("x/y/file").await.unwrap();
    second.write(Bytes::from_static(b"second")).await.unwrap();
    second.abort().await;
    let left: Vec<_> = std::fs::read_dir(directory.path().join("x/y"))
        .unwrap()
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(read(&remote, &written).await.unwrap(), b"first");
}

async fn tree(remote: &Remote, directory: &str) -> Vec<String> {
    let mut entries = remote.entries(directory).await.unwrap();
    let mut names = Vec::new();
    loop {
        let page = entries.next(300).await.unwrap();
        assert!(page.len() <= 300);
        if page.is_empty() {
            return names;
        }
        let name = |entry: tidemill_remote::ListingEntry| match entry.seen {
            PathType::File(..) => entry.name,
            PathType::Directory => entry.name + "/",
        };
        names.extend(page.into_iter().map(name));
    }
}

#[tokio::test]
async fn store_lists_as_tree_and_range_read_returns_one_version() {
    let store = StandIn::start().await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
    symlink("/etc/passwd", directory.path().join("a/link")).unwrap();
    let put = |content: &[u8]| {
        // A new file has another inode: the clocks of file systems are coarse.
        let part = directory.path().join("part");
        std::fs::write(&part, content).unwrap();
        std::fs::rename(&part, directory.path().join("a/b/x")).unwrap();
        for key in ["a/b/x", "a//y", "a/../z", "a/"] {
            store.put(key, content.to_vec());
        }
    };
    put(b"0123456789");
    for number in 0..2500 {
        store.put(&format!("many/{number:04}"), Vec::new());
    }
    let s3 = open(&store.s3());
    let web = open(&format!("http://{}/", store.address));
    let stores = [open_directory(directory.path()), s3, web];
    for (number, remote) in stores.iter().enumerate() {
        let listed = |names: &[&str]| {
            if number == 2 {
                Vec::new()
            } else {
                names.to_vec()
            }
            .join(" ")
        };
        assert_eq!(tree(remote, "a").await.join(" "), listed(&["b/"]));
        assert_eq!(tree(remote, "a/b").await.join(" "), listed(&["x"]));
        assert_eq!(remote.look("a/b").await.unwrap(), PathType::Directory);
        assert!(remote.look("a/none").await.unwrap_err().is_missing());
        assert!(remote.look("a/../a").await.is_err() && remote.look("a/link").await.is_err());
        let PathType::File(object, Some(_)) = remote.look("a/b/x").await.unwrap() else {
            panic!("{remote:?}: no file with a time");
        };
        assert_eq!(remote.read_at(&object, 3, 4).await.unwrap(), &b"3456"[..]);
        put(b"9876543210");
        for range in [(3, 4), (0, 10)] {
            let read = remote.read_at(&object, range.0, range.1).await;
            assert!(
                matches!(read, Err(Error::Changed(_))),
                "{remote:?}: {read:?}"
            );
        }
        put(b"0123456789");
    }
    assert_eq!(tree(&stores[1], "many").await.len(), 2500);
}

/// Starts a server that returns the answer `answer` to all requests and counts them. Returns the server's address and the counter.
async fn answers(host: &str, answer: String) -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind((host, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (answer, count) = (answer.clone(), count.clone());
            tokio::spawn(async move {
                let mut question = [0; 8192];
                if stream.read(&mut question).await.unwrap_or(0) > 0 {
                    count.fetch_add(1, Ordering::SeqCst);
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    (address, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn store_read_does_not_follow_redirect_to_other_server() {
    let secret =
        "HTTP/1.1 200 OK\r\ncontent-length: 6\r\netag: \"1\"\r\nconnection: close\r\n\r\nsecret";
    let (inside, asked) = answers("127.0.0.1", secret.into()).await;
    let redirect = format!(
        "HTTP/1.1 302 Found\r\nlocation: http://{inside}/x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    let (outside, _) = answers("127.0.0.2", redirect).await;
    let remote = open(&format!("http://{outside}/"));
    let error = remote.stat("x").await.unwrap_err().to_string();
    assert!(error.contains("redirects to another server"), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_refused_connection_names_store_and_cause() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let remote = open(&format!("s3://bucket?endpoint=http://{address}"));
    let error = remote.check().await.unwrap_err().to_string();
    assert!(error.contains(&address), "{error}");
    assert!(error.to_lowercase().contains("refused"), "{error}");
}
