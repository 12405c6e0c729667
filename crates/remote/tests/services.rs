//! Behaviour that all stores have in common, tested with real servers of each kind. `docs/remotes.md` and [`Able`] list the differences.
#![allow(clippy::unwrap_used, reason = "tests")]

mod files;
#[path = "../../../tests/require.rs"]
mod require;
mod servers;

use bytes::Bytes;
use files::{noise, read, write};
use futures_util::{StreamExt, stream};
use servers::Server;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};
use tidemill_remote::{Error, ListedItem, Overwrite, PathType, Remote, RemoteAddress, StoreFile};

/// Names that are unusual on some operating systems and valid on all.
const ODD: [&str; 10] = [
    "a b",
    "100%",
    "%41",
    "a+b",
    "ü",
    "a&b=c,d",
    "a;b",
    "quo'te\"s",
    "~tilde#hash?",
    "[1]{2}",
];

async fn put(remote: &Remote, path: &str, content: &[u8]) -> StoreFile {
    let content = Bytes::copy_from_slice(content);
    let put = remote.put(path, content, Overwrite::Anything).await;
    put.unwrap_or_else(|error| panic!("{path}: {error}"))
}

async fn content(remote: &Remote, path: &str) -> Vec<u8> {
    let object = remote.stat(path).await.unwrap();
    read(remote, &object).await.unwrap()
}

/// Lists a directory. Returns the files below the directory, and the skipped paths.
async fn listed(remote: &Remote, directory: &str) -> (BTreeSet<String>, Vec<String>) {
    let (mut files, mut passed) = (BTreeSet::new(), Vec::new());
    let mut all = remote.list(directory);
    loop {
        match all.next().await {
            Ok(Some(ListedItem::Object(object))) => assert!(files.insert(object.path)),
            Ok(Some(ListedItem::Passed(path, _))) => passed.push(path),
            // In some stores, a missing directory is an empty one.
            Err(error) if error.is_missing() => break,
            end => break assert!(end.unwrap().is_none()),
        }
    }
    (files, passed)
}

async fn entries(remote: &Remote, directory: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut all = match remote.entries(directory).await {
        Err(error) if error.is_missing() => return names,
        all => all.unwrap(),
    };
    loop {
        let page = all.next(70).await.unwrap();
        assert!(page.len() <= 70);
        if page.is_empty() {
            return names;
        }
        for entry in page {
            let slash = if entry.seen == PathType::Directory {
                "/"
            } else {
                ""
            };
            assert!(names.insert(entry.name + slash));
        }
    }
}

/// Checks that no incomplete file exists, neither in listings nor, if its files are visible, on the server's disk.
async fn nothing_is_left(server: &Server, remote: &Remote, directory: &str) {
    assert_eq!(listed(remote, directory).await.0, BTreeSet::new());
    if let Some(files) = &server.files {
        let left = files.join(directory);
        let left = || std::fs::read_dir(&left).map_or(0, Iterator::count);
        // Data of dropped writers is removed shortly after.
        for _ in 0..200 {
            if left() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(left(), 0, "{directory}");
    }
}

/// Waits for the next second, if the store's tags have a resolution of one second.
async fn later(server: &Server) {
    if !server.able.tells_all {
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
}

async fn files_are_written_read_and_removed(server: &Server) {
    let remote = server.open();
    remote.check().await.unwrap();
    let first = put(&remote, "w/x/a", b"0123456789").await;
    assert_eq!(first, remote.stat("w/x/a").await.unwrap());
    assert_eq!(remote.read_at(&first, 3, 4).await.unwrap(), &b"3456"[..]);
    let PathType::File(seen, Some(_)) = remote.look("w/x/a").await.unwrap() else {
        panic!("no file with a time");
    };
    assert_eq!(
        (seen, read(&remote, &first).await.unwrap().len()),
        (first, 10)
    );
    assert_eq!(remote.look("w/x").await.unwrap(), PathType::Directory);
    // Some servers reject a path below a file as invalid.
    assert!(remote.stat("w/x/a/below").await.is_err());
    for path in ["w/none", "none/none"] {
        let error = remote.stat(path).await.unwrap_err();
        assert!(error.is_missing(), "{path}: {error}");
        let error = remote.look(path).await.unwrap_err();
        assert!(error.is_missing(), "{path}: {error}");
    }
    let empty = put(&remote, "w/x/empty", b"").await;
    assert_eq!(read(&remote, &empty).await.unwrap(), b"");
    let large = noise(server.able.large + 5, 1);
    let written = write(&remote, "w/large", &large).await.unwrap();
    assert_eq!(written, remote.stat("w/large").await.unwrap());
    assert!(read(&remote, &written).await.unwrap() == large);
    let (from, count) = (large.len() / 2 - 3, 5 << 20);
    let part = remote.read_at(&written, from as u64, count as u64).await;
    assert!(part.unwrap() == large[from..from + count]);
    let also = remote.also("w/large", "w/x/also").await.unwrap();
    assert!(read(&remote, &also).await.unwrap() == large);
    remote.remove("w/large").await.unwrap();
    assert!(remote.stat("w/large").await.unwrap_err().is_missing());
    assert!(read(&remote, &also).await.unwrap() == large);
    // Removing a missing file may succeed or fail; removing a directory always fails.
    if let Err(error) = remote.remove("w/large").await {
        assert!(error.is_missing(), "{error}");
    }
    if server.able.directories {
        assert!(remote.remove("w/x").await.is_err());
        assert!(remote.stat("w/x").await.is_err());
    }
    let names = ["w/x/a", "w/x/also", "w/x/empty"].map(str::to_owned);
    assert_eq!(listed(&remote, "w").await.0, names.into());
    for path in ["w/../x", "/w", "w//x", "w/x/"] {
        assert!(remote.stat(path).await.is_err(), "{path}");
        assert!(
            remote
                .put(path, Bytes::new(), Overwrite::Anything)
                .await
                .is_err()
        );
        assert!(remote.remove(path).await.is_err(), "{path}");
    }
}

async fn what_is_changed_is_another_one(server: &Server) {
    let remote = server.open();
    let content = noise(9 << 20, 2);
    let old = put(&remote, "c/big", &content).await;
    let mut reader = remote.read(&old).await.unwrap();
    assert!(reader.next().await.unwrap().is_some());
    later(server).await;
    put(&remote, "c/big", &vec![7; 9 << 20]).await;
    // The error occurs at the next piece or at the end.
    let error = loop {
        match reader.next().await {
            Ok(piece) => assert!(piece.is_some(), "it was read as a whole"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Changed(_)), "{error}");
    let error = remote.read_at(&old, 5, 5).await.unwrap_err();
    assert!(matches!(error, Error::Changed(_)), "{error}");
    // The new file is shorter, then longer.
    for length in [10, 10 << 20] {
        let old = remote.stat("c/big").await.unwrap();
        put(&remote, "c/big", &vec![8; length]).await;
        let error = remote.read_at(&old, 0, 10).await.unwrap_err();
        assert!(matches!(error, Error::Changed(_)), "{error}");
    }
    let old = remote.stat("c/big").await.unwrap();
    remote.remove("c/big").await.unwrap();
    let error = read(&remote, &old).await.unwrap_err();
    let gone = matches!(error, Error::Changed(_) | Error::Missing(_));
    assert!(gone, "{error}");
}

async fn only_that_is_replaced_which_was_to_be(server: &Server) {
    let remote = server.open();
    let put_over = |content: &'static [u8], over: Overwrite| {
        let remote = remote.clone();
        async move { remote.put("o/x", Bytes::from_static(content), over).await }
    };
    let first = put_over(b"first", Overwrite::Nothing).await.unwrap();
    let error = put_over(b"second", Overwrite::Nothing).await.unwrap_err();
    assert!(matches!(error, Error::Changed(_)), "{error}");
    let mut writer = remote.write_over("o/x", Overwrite::Nothing).await.unwrap();
    writer.write(Bytes::from_static(b"third")).await.unwrap();
    let error = writer.finish().await.unwrap_err();
    assert!(matches!(error, Error::Changed(_)), "{error}");
    assert_eq!(content(&remote, "o/x").await, b"first");
    let second = put_over(b"2nd", Overwrite::This(first.clone()))
        .await
        .unwrap();
    let error = put_over(b"third", Overwrite::This(first))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Changed(_)), "{error}");
    assert_eq!(content(&remote, "o/x").await, b"2nd");
    remote.remove("o/x").await.unwrap();
    let error = put_over(b"third", Overwrite::This(second))
        .await
        .unwrap_err();
    let gone = matches!(error, Error::Changed(_) | Error::Missing(_));
    assert!(gone, "{error}");
    nothing_is_left(server, &remote, "o").await;
}

async fn nothing_half_is_seen_and_writers_do_not_mix(server: &Server) {
    let remote = server.open();
    let mut writer = remote.write("h/x").await.unwrap();
    for _ in 0..5 {
        writer.write(Bytes::from(vec![1; 4 << 20])).await.unwrap();
        assert!(remote.stat("h/x").await.unwrap_err().is_missing());
    }
    assert_eq!(listed(&remote, "h").await.0, BTreeSet::new());
    assert_eq!(entries(&remote, "h").await, BTreeSet::new());
    writer.abort().await;
    nothing_is_left(server, &remote, "h").await;
    let mut dropped = remote.write("h/x").await.unwrap();
    dropped.write(Bytes::from(vec![1; 1 << 20])).await.unwrap();
    drop(dropped);
    nothing_is_left(server, &remote, "h").await;
    let other = server.open();
    let (mut one, mut two) = (
        remote.write("h/y").await.unwrap(),
        other.write("h/y").await.unwrap(),
    );
    for _ in 0..5 {
        one.write(Bytes::from(vec![1; 4 << 20])).await.unwrap();
        two.write(Bytes::from(vec![2; 4 << 20])).await.unwrap();
    }
    one.finish().await.unwrap();
    assert!(content(&remote, "h/y").await == vec![1; 20 << 20]);
    // A server that has lost its parts to the other writer reports an error.
    let last = if two.finish().await.is_ok() { 2 } else { 1 };
    assert!(content(&remote, "h/y").await == vec![last; 20 << 20]);
    remote.remove("h/y").await.unwrap();
    nothing_is_left(server, &remote, "h").await;
}

async fn names_of_all_kinds_are_reported_by_pages(server: &Server) {
    let remote = server.open();
    let many = stream::iter(0..server.able.many).map(|number| {
        let remote = remote.clone();
        async move { put(&remote, &format!("n/many/{number:05}"), b"").await }
    });
    many.buffer_unordered(16).collect::<Vec<_>>().await;
    assert_eq!(listed(&remote, "n/many").await.0.len(), server.able.many);
    assert_eq!(entries(&remote, "n/many").await.len(), server.able.many);
    let long = "l".repeat(server.able.name_bytes_max);
    let able = |name: &&str| !name.contains(server.able.never_in_names);
    let odd = ODD.into_iter().filter(able);
    let odd: Vec<&str> = odd.chain([long.as_str()]).collect();
    let directory = |name: &str| format!("n/odd {}", name.chars().take(20).collect::<String>());
    for name in &odd {
        let path = format!("{}/{name}", directory(name));
        let written = put(&remote, &path, name.as_bytes()).await;
        assert_eq!(written, remote.stat(&path).await.unwrap());
        assert_eq!(read(&remote, &written).await.unwrap(), name.as_bytes());
        let copy = format!("{}/copy", directory(name));
        remote.also(&path, &copy).await.unwrap();
        assert_eq!(content(&remote, &copy).await, name.as_bytes());
        remote.remove(&copy).await.unwrap();
    }
    let (files, passed) = listed(&remote, "n").await;
    let found = files.into_iter().filter(|path| !path.starts_with("n/many"));
    let wanted = odd.iter().map(|name| format!("{}/{name}", directory(name)));
    assert_eq!(found.collect::<BTreeSet<_>>(), wanted.collect());
    assert!(passed.is_empty(), "{passed:?}");
    let wanted = odd.iter().map(|name| format!("{}/", &directory(name)[2..]));
    let wanted: BTreeSet<_> = wanted.chain(["many/".to_owned()]).collect();
    assert_eq!(entries(&remote, "n").await, wanted);
    for name in &odd {
        let names = entries(&remote, &directory(name)).await;
        assert_eq!(names, [(*name).to_owned()].into());
    }
}

async fn wrong_keys_are_refused_and_never_reported(server: &Server) {
    let Some(wrong) = &server.wrong else {
        return;
    };
    let remote = server.open_with(wrong);
    let secrets = wrong.split('"').skip(1).step_by(2);
    let secrets: Vec<_> = secrets
        .filter(|secret| !server.uri.contains(secret))
        .collect();
    for error in [
        remote.check().await.unwrap_err(),
        remote.stat("w/x/a").await.unwrap_err(),
        remote
            .put("k", Bytes::new(), Overwrite::Anything)
            .await
            .unwrap_err(),
    ] {
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let reported = format!("{error} {error:?} {remote:?}");
        for secret in &secrets {
            assert!(secret.len() < 4 || !reported.contains(secret), "{reported}");
        }
    }
    assert!(server.open().stat("k").await.unwrap_err().is_missing());
}

/// Stops the server in the middle of reads and writes, and starts it again.
async fn a_server_that_goes_takes_nothing_along(server: &Server) {
    let remote = server.open();
    let large = noise(server.able.large, 3);
    let object = put(&remote, "g/x", &large).await;
    let mut reader = remote.read(&object).await.unwrap();
    let mut all = reader.next().await.unwrap().unwrap().to_vec();
    server.gate.shut();
    let gate = server.gate.clone();
    let opened = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(700)).await;
        gate.open();
    });
    // The reader continues when the server is available again.
    while let Some(piece) = reader.next().await.unwrap() {
        all.extend_from_slice(&piece);
    }
    opened.await.unwrap();
    assert!(all == large);
    let other = noise(server.able.large, 4);
    let mut writer = remote.write("g/x").await.unwrap();
    let mut written = Ok(());
    for (number, piece) in other.chunks(4 << 20).enumerate() {
        if number == 2 {
            server.gate.shut();
        }
        written = writer.write(Bytes::copy_from_slice(piece)).await;
        if written.is_err() {
            break;
        }
    }
    let failed = match written {
        Ok(()) => writer.finish().await.unwrap_err(),
        Err(error) => {
            writer.abort().await;
            error
        }
    };
    assert!(matches!(failed, Error::Store { .. }), "{failed:?}");
    server.gate.open();
    let other_remote = server.open();
    assert!(content(&other_remote, "g/x").await == large);
    let names = ["g/x"].map(str::to_owned);
    assert_eq!(listed(&other_remote, "g").await.0, names.into());
    // The same remote works again.
    write(&remote, "g/x", &other).await.unwrap();
    assert!(content(&remote, "g/x").await == other);
}

async fn all_that_stores_do(server: Option<Server>) {
    let Some(server) = &server else {
        return;
    };
    files_are_written_read_and_removed(server).await;
    what_is_changed_is_another_one(server).await;
    only_that_is_replaced_which_was_to_be(server).await;
    nothing_half_is_seen_and_writers_do_not_mix(server).await;
    names_of_all_kinds_are_reported_by_pages(server).await;
    wrong_keys_are_refused_and_never_reported(server).await;
    a_server_that_goes_takes_nothing_along(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sftp_passes_store_conformance() {
    all_that_stores_do(servers::sftp()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sftp_never_follows_links_or_blocks_on_pipes() {
    let Some(server) = servers::sftp() else {
        return;
    };
    let (files, remote) = (server.files.as_ref().unwrap(), server.open());
    std::fs::write(server.directory().join("secret"), "s").unwrap();
    symlink(server.directory(), files.join("way")).unwrap();
    symlink(server.directory().join("secret"), files.join("link")).unwrap();
    let pipe = files.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    std::fs::write(files.join(OsStr::from_bytes(b"odd\xff")), "").unwrap();
    put(&remote, "d/a", b"abc").await;
    let (found, mut passed) = listed(&remote, "").await;
    passed.sort();
    assert_eq!(found, ["d/a".to_owned()].into());
    assert_eq!(passed, ["link", "odd\u{fffd}", "pipe", "way"]);
    assert_eq!(entries(&remote, "").await, ["d/".to_owned()].into());
    let made_up = |path: &str| StoreFile {
        path: path.to_owned(),
        size: 1,
        tag: "1-1".into(),
        checked_by_store: false,
    };
    for path in ["link", "way/secret", "way/files/d/a", "pipe"] {
        let errors = [
            remote.stat(path).await.unwrap_err(),
            remote.look(path).await.unwrap_err(),
            read(&remote, &made_up(path)).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::NoFile { .. }), "{path}: {error:?}");
        }
    }
    for path in ["way/new", "way/deep/new", "d/a/new"] {
        assert!(write(&remote, path, b"x").await.is_err(), "{path}");
        assert!(remote.also("d/a", path).await.is_err(), "{path}");
    }
    assert!(remote.remove("way/secret").await.is_err());
    assert!(remote.entries("way").await.is_err());
    assert!(!server.directory().join("new").exists() && !server.directory().join("deep").exists());
    // The write replaces a link and does not follow it.
    put(&remote, "link", b"mine").await;
    assert_eq!(
        std::fs::read(server.directory().join("secret")).unwrap(),
        b"s"
    );
    assert_eq!(std::fs::read(files.join("link")).unwrap(), b"mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn sftp_hard_link_creates_missing_directories() {
    let Some(server) = servers::sftp() else {
        return;
    };
    let remote = server.open();
    put(&remote, "a", b"abc").await;
    for other in ["b", "new/b", "new/and/deep/b"] {
        remote.also("a", other).await.unwrap();
    }
    let file = server.files.as_ref().unwrap().join("a");
    assert_eq!(std::fs::metadata(file).unwrap().nlink(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn list_removes_stale_part_files_of_killed_writers() {
    let Some(server) = servers::sftp() else {
        return;
    };
    let files = server.files.as_ref().unwrap();
    std::fs::create_dir(files.join("d")).unwrap();
    let [old, new, other] =
        ["d/.tidemill-part-old", "d/.tidemill-part-new", "d/old"].map(|name| files.join(name));
    let two_days_ago = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    for (path, is_old) in [(&old, true), (&new, false), (&other, true)] {
        let file = std::fs::File::create(path).unwrap();
        if is_old {
            file.set_modified(two_days_ago).unwrap();
        }
    }
    let remote = server.open();
    put(&remote, "d/x", b"x").await;
    assert!(!old.exists() && new.exists() && other.exists());
    let names = ["d/old", "d/x"].map(str::to_owned);
    assert_eq!(listed(&remote, "").await.0, names.into());
}

#[tokio::test(flavor = "multi_thread")]
async fn sftp_requires_known_host_and_uses_named_keys_only() {
    let Some(server) = servers::sftp() else {
        return;
    };
    let known = server.directory().join("known");
    let lines = std::fs::read_to_string(&known).unwrap();
    let another = std::fs::read_to_string(server.directory().join("other.pub")).unwrap();
    let host = lines.split(' ').next().unwrap();
    for wrong in [String::new(), format!("{host} {another}")] {
        std::fs::write(&known, wrong).unwrap();
        let error = server.open().check().await.unwrap_err();
        assert!(matches!(error, Error::Store { .. }), "{error:?}");
        assert!(error.to_string().contains("known hosts"), "{error}");
    }
    std::fs::write(&known, lines).unwrap();
    server.open().check().await.unwrap();
    // The keys of the user who runs the tests are not used.
    let known_only = format!("known_hosts = \"{}\"\n", known.display());
    let error = server.open_with(&known_only).check().await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let identity = server.directory().join("user");
    std::fs::set_permissions(&identity, PermissionsExt::from_mode(0o640)).unwrap();
    let place = RemoteAddress::parse(&server.uri).unwrap();
    let error = tidemill_remote::open(&place, &servers::keys(&server.keys)).unwrap_err();
    assert!(error.to_string().contains("chmod 600"), "{error}");
    std::fs::set_permissions(&identity, PermissionsExt::from_mode(0o600)).unwrap();
    // Revoked keys are valid until the connection ends.
    let remote = server.open();
    put(&remote, "a", b"a").await;
    std::fs::write(server.directory().join("authorized"), "").unwrap();
    server.gate.shut();
    server.gate.open();
    let error = remote.stat("a").await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn webhdfs_passes_store_conformance() {
    all_that_stores_do(servers::webhdfs()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webdav_passes_store_conformance() {
    all_that_stores_do(servers::webdav()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webdav_by_apache_passes_store_conformance() {
    all_that_stores_do(servers::apache()).await;
}

#[cfg(feature = "hdfs")]
#[tokio::test(flavor = "multi_thread")]
async fn hdfs_passes_store_conformance() {
    all_that_stores_do(servers::hdfs()).await;
}

#[cfg(feature = "azblob")]
#[tokio::test(flavor = "multi_thread")]
async fn azblob_passes_store_conformance() {
    all_that_stores_do(servers::azblob()).await;
}

#[cfg(feature = "gcs")]
#[tokio::test(flavor = "multi_thread")]
async fn gcs_passes_store_conformance() {
    all_that_stores_do(servers::gcs()).await;
}
