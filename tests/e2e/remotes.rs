//! Tests stores outside of the cluster: imports and exports, permissions, and the places where keys are not stored.

use crate::cluster::{Cluster, printed, wait};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

const OTHER_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const SECRET: &str = "hush-hush-hush";

/// Returns some counts from the output of an import, export or sync.
fn counts(cluster: &Cluster, args: &[&str]) -> [u64; 4] {
    let reported = cluster.json(args);
    ["files", "same", "deleted", "skipped"].map(|what| reported[what].as_u64().unwrap())
}

fn add(cluster: &Cluster, name: &str, directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    cluster.json(&[
        "remote",
        "add",
        name,
        &format!("file://{}", directory.display()),
    ]);
}

#[test]
fn import_and_export_copy_files_and_skip_existing_ones() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (source, out) = (cluster.path("source"), cluster.path("out"));
    add(&cluster, "source", &source);
    add(&cluster, "out", &out);
    std::fs::create_dir_all(source.join("run/deep")).unwrap();
    for (name, content) in [
        ("run/a.nc", "aa"),
        ("run/b.txt", ""),
        ("run/deep/c.nc", "ccc"),
    ] {
        std::fs::write(source.join(name), content).unwrap();
    }
    symlink("/etc/passwd", source.join("run/link")).unwrap();
    assert!(cluster.run(&["remote", "check", "source"]).ok);
    assert_eq!(
        counts(&cluster, &["cp", "source:run", "/raw"]),
        [3, 0, 0, 1]
    );
    assert_eq!(
        cluster.sh("cat raw/a.nc raw/b.txt raw/deep/c.nc; find raw -type l"),
        "aaccc"
    );
    assert_eq!(
        counts(&cluster, &["cp", "source:run", "/raw"]),
        [0, 3, 0, 1]
    );
    // Only files that were changed at either end are copied again.
    std::fs::write(source.join("run/a.nc"), "AA").unwrap();
    cluster.sh("echo mine > raw/b.txt");
    assert_eq!(
        counts(&cluster, &["cp", "source:run/**/*.nc", "/raw"]),
        [1, 1, 0, 1]
    );
    assert_eq!(
        counts(&cluster, &["cp", "source:run/b.txt", "/raw"]),
        [1, 0, 0, 0]
    );
    assert_eq!(cluster.sh("cat raw/a.nc raw/b.txt"), "AA");
    let nothing = cluster.run(&["cp", "source:none", "/raw"]);
    assert!(
        !nothing.ok && nothing.err.contains("none"),
        "{}",
        nothing.err
    );

    assert_eq!(counts(&cluster, &["cp", "/raw", "out:x"]), [3, 0, 0, 0]);
    assert_eq!(std::fs::read(out.join("x/deep/c.nc")).unwrap(), b"ccc");
    assert_eq!(
        counts(&cluster, &["cp", "/raw/*.nc", "out:x"]),
        [0, 1, 0, 0]
    );
    std::fs::write(out.join("x/a.nc"), "no").unwrap();
    std::fs::write(out.join("x/old"), "old").unwrap();
    cluster.sh("rm raw/b.txt");
    assert_eq!(
        counts(&cluster, &["sync", "/raw", "out:x", "--delete"]),
        [1, 1, 2, 0]
    );
    assert_eq!(std::fs::read(out.join("x/a.nc")).unwrap(), b"AA");
    assert!(!out.join("x/old").exists() && !out.join("x/b.txt").exists());
    cluster.sh("echo new > raw/new");
    // Files that came from the cluster are known to be the same.
    assert_eq!(
        counts(&cluster, &["sync", "out:x", "/raw", "--delete"]),
        [0, 2, 1, 0]
    );
    // A file is not a directory whose other files can be deleted.
    assert!(!cluster.run(&["sync", "out:x/a.nc", "/raw", "--delete"]).ok);
    assert_eq!(
        cluster.sh("find raw -type f | sort"),
        "raw/a.nc\nraw/deep/c.nc\n"
    );
    let text = cluster.run(&["remote", "list"]).out;
    assert!(
        text.contains("source") && text.contains("file://"),
        "{text}"
    );
    assert!(cluster.run(&["remote", "delete", "out"]).ok && out.join("x/a.nc").exists());
    assert!(!cluster.run(&["cp", "/raw", "out:x"]).ok);
}

#[test]
fn remote_respects_rights_and_only_administrators_add_it() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (source, out) = (cluster.path("source"), cluster.path("out"));
    add(&cluster, "source", &source);
    add(&cluster, "out", &out);
    let uri = format!("file://{}", source.display());
    cluster.json(&["remote", "add", "kept", &uri, "--read-only"]);
    std::fs::write(source.join("open"), "open").unwrap();
    std::fs::write(source.join("secret"), "secret").unwrap();
    std::fs::set_permissions(source.join("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    cluster.sh("mkdir d theirs; echo x > d/private; chmod 600 d/private; chmod 777 theirs");
    std::fs::set_permissions(&out, PermissionsExt::from_mode(0o777)).unwrap();
    let other_user =
        |args: &str| cluster.try_sh(&format!("{OTHER_USER} {:?} {args}", cluster.tidemill()));
    for args in ["remote add mine file:///tmp", "remote delete source"] {
        let refused = other_user(args);
        assert!(
            !refused.ok && refused.err.contains("only an administrator"),
            "{}",
            refused.err
        );
    }
    assert!(other_user("remote list").out.contains("source"));
    let import = other_user("cp source: /theirs");
    assert!(
        !import.ok && import.err.contains("secret"),
        "{}",
        import.err
    );
    assert_eq!(
        cluster.sh("cat theirs/open; stat -c %u theirs/open; ls theirs"),
        "open65534\nopen\n"
    );
    assert!(!other_user("cp source: /d").ok);
    let export = other_user("cp /d out:");
    assert!(
        !export.ok && export.err.contains("private"),
        "{}",
        export.err
    );
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    cluster.sh("echo x > theirs/new");
    assert!(!other_user("cp /theirs source:").ok && !source.join("new").exists());
    let kept = cluster.run(&["cp", "/d", "kept:"]);
    assert!(!kept.ok && kept.err.contains("read-only"), "{}", kept.err);
    assert!(!cluster.run(&["remote", "add", "source", &uri]).ok);
    assert!(!cluster.run(&["remote", "add", "../x", &uri]).ok);
    assert!(!cluster.run(&["cp", "nowhere:x", "/d"]).ok);
}

#[test]
fn killed_copy_restarts_and_shows_no_partial_file() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (source, out) = (cluster.path("source"), cluster.path("out"));
    add(&cluster, "source", &source);
    add(&cluster, "out", &out);
    for number in 0..12_u8 {
        std::fs::write(source.join(number.to_string()), vec![number + 1; 500_000]).unwrap();
    }
    let begin = |args: &[&str]| {
        let mut command = cluster.tidemill();
        command
            .args(args)
            .args(["--limit-rate", "1MB"])
            .spawn()
            .unwrap()
    };
    let noted = |name: &str| {
        let find = format!(
            "for f in raw/*; do getfattr -n user.remote.{name} $f 2>/dev/null || true; done"
        );
        cluster.sh(&find).contains("tag")
    };
    cluster.sh("mkdir raw");
    let mut import = begin(&["cp", "source:", "/raw"]);
    wait("a file has come", || noted("source"));
    import.kill().unwrap();
    import.wait().unwrap();
    // A file that was just begun may exist, without any content.
    let halves = cluster.sh("find raw -type f -size +0c -not -size 500000c");
    assert_eq!(halves, "");
    let [files, same, ..] = counts(&cluster, &["cp", "source:", "/raw"]);
    assert!(files + same == 12 && same > 0, "{files} {same}");
    cluster.sh(&format!("diff -r {source:?} raw"));

    let mut export = begin(&["cp", "/raw", "out:"]);
    let seen = || {
        let files = std::fs::read_dir(&out).unwrap().map(|file| file.unwrap());
        let files =
            files.filter(|file| !file.file_name().to_str().unwrap().starts_with(".tidemill"));
        files
            .map(|file| file.metadata().unwrap().len())
            .collect::<Vec<_>>()
    };
    wait("a file exists", || noted("out"));
    export.kill().unwrap();
    export.wait().unwrap();
    assert!(seen().iter().all(|&length| length == 500_000));
    let [files, same, ..] = counts(&cluster, &["cp", "/raw", "out:"]);
    assert!(files + same == 12 && same > 0, "{files} {same}");
    cluster.sh(&format!("diff -r {source:?} {out:?}"));
}

/// Starts a store that refuses all keys; it sends the keys that it received.
fn refusing() -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (shown, all) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut text) = (stream.unwrap(), [0; 8192]);
            let count = stream.read(&mut text).unwrap_or_default();
            let _ = shown.send(String::from_utf8_lossy(&text[..count]).into_owned());
            let _ = stream
                .write_all(b"HTTP/1.1 403 no\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            // If unread bytes are left, closing the socket would discard the answer.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.set_read_timeout(Some(std::time::Duration::from_secs(5)));
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    (address, all)
}

#[test]
fn remote_keys_are_sent_only_to_their_store() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (address, shown) = refusing();
    let uri = format!("s3://bucket/x?endpoint=http://{address}");
    cluster.json(&["remote", "add", "cloud", &uri]);
    for bad in [
        format!("https://me:{SECRET}@host/"),
        format!("s3://bucket?secret_access_key={SECRET}"),
        format!("{uri}&token={SECRET}"),
    ] {
        let refused = cluster.run(&["remote", "add", "bad", &bad]);
        assert!(
            !refused.ok && !refused.err.contains(SECRET),
            "{}",
            refused.err
        );
    }
    let keys = cluster.path("config/tidemill/remotes/cloud");
    std::fs::create_dir_all(keys.parent().unwrap()).unwrap();
    let text = format!("access_key_id = \"me-me-me\"\nsecret_access_key = \"{SECRET}\"\n");
    std::fs::write(&keys, text).unwrap();
    let with_keys = |args: &[&str]| {
        let mut command = cluster.tidemill();
        command.env("XDG_CONFIG_HOME", cluster.path("config"));
        printed(command.args(args).output().unwrap())
    };
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o644)).unwrap();
    let open = with_keys(&["remote", "check", "cloud"]);
    assert!(!open.ok && open.err.contains("chmod 600"), "{}", open.err);
    assert!(shown.try_recv().is_err(), "the store was asked");
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
    cluster.sh("mkdir d; echo x > d/f");
    for args in [
        &["remote", "check", "cloud", "-vv"][..],
        &["cp", "cloud:a", "/raw", "-vv"],
        &["cp", "/d", "cloud:", "-vv"],
    ] {
        let refused = with_keys(args);
        let reported = refused.out + &refused.err;
        assert!(
            !refused.ok && reported.contains("keys"),
            "{args:?}: {reported}"
        );
        assert!(!reported.contains(SECRET), "{args:?}: {reported}");
    }
    let asked = shown.try_iter().collect::<String>();
    assert!(asked.contains("me-me-me/") && !asked.contains(SECRET));
    let found = format!(
        "grep -rlF -e {SECRET} -e me-me-me {0:?} --exclude-dir=mnt --exclude-dir=config || true",
        cluster.path(".")
    );
    assert_eq!(cluster.sh(&found), "");
}
