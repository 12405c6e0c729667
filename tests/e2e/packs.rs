//! Tests nodes that store their files in a backend as chunks in packs: they need fewer bytes, and are read like all others.

use crate::backend::{BYTES, backend, bare, nodes, noise};
use crate::cluster::{Cluster, Device, wait};
use crate::stand_in::StandIn;
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

const OTHER_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const PACKED: [&str; 4] = [
    "--backend-format",
    "dedup | zstd",
    "--backend-cache",
    "1MiB",
];

/// File that marks a store.
const MARK: &str = ".tidemill-store";

/// Returns the files below a directory, except the mark of a store.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false if path.ends_with(MARK) => {}
            false => files.push(path),
        }
    }
    files.sort();
    files
}

fn sent(cluster: &Cluster) -> u64 {
    backend(cluster, 3)["sent"].as_u64().unwrap()
}

/// Waits until all closed files of a directory are stored in the backend and nowhere else.
fn stage_out(cluster: &Cluster, directory: &str, names: &[String]) {
    wait("all is in the backend only", || {
        let printed = cluster.run(&["stage", "out", directory, "--evict", "--wait"]);
        assert!(printed.ok, "{}", printed.err);
        let only = |name: &String| nodes(cluster, &format!("{directory}/{name}")) == [3];
        names.iter().all(only)
    });
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Starts a cluster in which node 2 is in the burst tier, and node 3 has its files in a backend.
fn with_packs(uri: &str, more: &[&str]) -> Option<Cluster> {
    let mut cluster = bare()?;
    cluster.add_node(&["--tier", "burst"]);
    cluster.add_node(&[&["--backend", uri], more, &PACKED].concat());
    cluster.start_mount();
    Some(cluster)
}

fn directory() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("file://{}", directory.path().display());
    (directory, uri)
}

#[test]
fn packs_are_sent_once_and_read_and_recovered() {
    let (pfs, uri) = directory();
    let Some(mut cluster) = with_packs(&uri, &[]) else {
        return;
    };
    let large = noise(1);
    cluster.sh("mkdir d; chmod 777 d; seq 100000 > d/text; : > d/empty");
    std::fs::write(cluster.at("d/large"), &large).unwrap();
    let all = names(&["text", "empty", "large"]);
    stage_out(&cluster, "/d", &all);
    // A node reports its counts several times a second.
    wait("it is reported", || sent(&cluster) > 9_000_000);
    let before = sent(&cluster);
    assert!(before < BYTES as u64 + 300_000, "{before}");
    assert_eq!(backend(&cluster, 3)["format"], "dedup | zstd");
    // Another user has the same content.
    cluster.sh(&format!(
        "{OTHER_USER} sh -c 'cp d/large d/theirs; cp d/text d/again'"
    ));
    stage_out(&cluster, "/d", &names(&["theirs", "again"]));
    wait("that is reported", || sent(&cluster) > before);
    let after = sent(&cluster);
    assert!(after < before + 10_000, "{after} {before}");
    assert!(
        files_below(pfs.path())
            .iter()
            .all(|path| path.starts_with(pfs.path().join(".tidemill-packs")))
    );

    cluster.kill_mount();
    cluster.start_mount();
    assert!(std::fs::read(cluster.at("d/theirs")).unwrap() == large);
    cluster.sh("seq 100000 | cmp - d/text; cmp d/text d/again; test ! -s d/empty");
    let job = r#"name = "count"; workdir = "/"; tasks = ( { name = "count"; kernel = "/bin/sh";
        args = ["-c", "cat d/large d/text | wc -c > count"]; input = ["d/large", "d/text"]; output = ["count"]; } );"#;
    cluster.done(cluster.submit(job));
    assert_eq!(cluster.sh("cat count"), format!("{}\n", BYTES + 588_895));
    assert!(cluster.run(&["cluster", "scrub", "/d", "--wait"]).ok);
    assert!(!cluster.run(&["cluster", "health"]).out.contains("/d/"));

    // With another setting, new files are plain files there, and old files stay readable.
    cluster.restart_node(3, &["--backend", &uri, "--backend-cache", "1MiB"]);
    cluster.wait_for_nodes(4);
    cluster.sh("echo plain > d/plain");
    stage_out(&cluster, "/d", &names(&["plain"]));
    assert_eq!(
        std::fs::read(pfs.path().join("d/plain")).unwrap(),
        b"plain\n"
    );
    cluster.sh("seq 100000 | cmp - d/text");
    cluster.recover_database();
    cluster.sh("seq 100000 | cmp - d/again; cat d/plain");
    cluster.sh("rm d/large d/text d/again d/empty count");
    wait("one file still has the bytes", || {
        backend(&cluster, 3)["objects"] == 2
    });
    let got = cluster.path("got");
    let get = || cluster.run(&["get", "/d/theirs", &got.display().to_string()]);
    assert!(get().ok && std::fs::read(&got).unwrap() == large);
    cluster.sh("rm d/theirs");
    wait("no pack is left", || files_below(pfs.path()).len() == 1);
}

#[test]
fn packs_of_lost_node_suffice_for_recovery() {
    let (pfs, uri) = directory();
    let Some(mut cluster) = with_packs(&uri, &[]) else {
        return;
    };
    let large = noise(7);
    cluster.sh("mkdir -p d/deep; echo old > d/deep/small");
    std::fs::write(cluster.at("d/large"), &large).unwrap();
    stage_out(&cluster, "/d", &names(&["large", "deep/small"]));
    cluster.sh("echo new > d/deep/small; echo more > d/more");
    stage_out(&cluster, "/d", &names(&["large", "deep/small", "more"]));
    cluster.kill_node(3);
    std::fs::remove_dir_all(cluster.node_directory(3)).unwrap();
    let reported = cluster.json(&["node", "recover-files", &uri]);
    let reported: Vec<_> = reported
        .as_array()
        .unwrap()
        .iter()
        .map(|file| (file["file"].as_str().unwrap(), file["whole"] == true))
        .collect();
    assert_eq!(
        reported,
        [("d/deep/small", true), ("d/large", true), ("d/more", true)]
    );
    let back = cluster.path("back");
    let into = back.display().to_string();
    let copied = cluster.json(&["node", "recover-files", &uri, "d/l*", "--into", &into]);
    assert_eq!(
        (&copied["files"], &copied["failed"]),
        (&1.into(), &0.into())
    );
    std::fs::write(back.join("d/more"), "mine").unwrap();
    let copied = cluster.json(&["node", "recover-files", &uri, "--into", &into]);
    assert_eq!((&copied["files"], &copied["same"]), (&1.into(), &2.into()));
    assert!(std::fs::read(back.join("d/large")).unwrap() == large);
    assert_eq!(std::fs::read(back.join("d/deep/small")).unwrap(), b"new\n");
    assert_eq!(std::fs::read(back.join("d/more")).unwrap(), b"mine");
    // One pack is truncated: files without bytes in it still exist, and the others are reported.
    let packs = files_below(pfs.path());
    let largest = packs
        .iter()
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    std::fs::File::options()
        .write(true)
        .open(largest)
        .unwrap()
        .set_len(1000)
        .unwrap();
    let printed = cluster.run(&[
        "node",
        "recover-files",
        &uri,
        "--into",
        &cluster.path("less").display().to_string(),
    ]);
    assert!(
        !printed.ok && printed.err.contains("corrupt"),
        "{} {}",
        printed.out,
        printed.err
    );
    assert_eq!(
        std::fs::read(cluster.path("less").join("d/more")).unwrap(),
        b"more\n"
    );
}

#[test]
fn changed_pack_is_corruption_of_its_files() {
    let (pfs, uri) = directory();
    let Some(cluster) = with_packs(&uri, &[]) else {
        return;
    };
    cluster.sh("mkdir d");
    std::fs::write(cluster.at("d/mine"), noise(3)).unwrap();
    stage_out(&cluster, "/d", &names(&["mine"]));
    let cached = &cluster.object_files("/d/mine")[0];
    let object = cached.strip_prefix(cluster.node_directory(3)).unwrap();
    let burst = cluster.node_directory(2).join(object);
    wait("it is nowhere else", || !cached.exists() && !burst.exists());
    let packs = files_below(pfs.path());
    let largest = packs
        .iter()
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let file = std::fs::File::options().write(true).open(largest).unwrap();
    file.write_all_at(b"something else", 5000).unwrap();
    cluster.run(&["cluster", "scrub", "/d", "--wait"]);
    wait("it is reported", || {
        cluster.run(&["cluster", "health"]).out.contains("/d/mine")
            || cluster.run(&["status"]).out.contains("corrupt")
    });
    let got = cluster.path("got").display().to_string();
    assert!(!cluster.run(&["get", "/d/mine", &got]).ok);
    // A node that still has a chunk stores it again.
    std::fs::write(cluster.at("d/again"), noise(3)).unwrap();
    stage_out(&cluster, "/d", &names(&["again"]));
    assert!(cluster.run(&["get", "/d/again", &got]).ok);
    assert!(std::fs::read(&got).unwrap() == noise(3));
}

#[test]
fn killed_packing_and_refusing_store_lose_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(StandIn::start());
    let uri = format!("s3://bucket/top?endpoint=http://{}", store.address);
    let key = |key: &str| store.state().key = Some(key.into());
    key("me");
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        keys.path(),
        "access_key_id = \"me\"\nsecret_access_key = \"hush\"\n",
    )
    .unwrap();
    let more = ["--backend-keys", keys.path().to_str().unwrap()];
    let Some(mut cluster) = with_packs(&uri, &more) else {
        return;
    };
    key("nobody");
    cluster.sh("mkdir k; for i in $(seq 60); do head -c 400000 /dev/urandom > k/$i; done; sha256sum k/* > sums");
    assert!(cluster.run(&["stage", "out", "/k"]).ok);
    wait("the store refuses", || {
        cluster.log("node-3.log").contains(".tidemill-packs/")
    });
    assert!(store.state().objects.is_empty());
    cluster.sh("sha256sum --quiet -c sums");
    key("me");
    wait("some exist", || store.state().objects.len() > 1);
    cluster.kill_node(3);
    let arguments = [&["--backend", &uri], &more[..], &PACKED].concat();
    cluster.restart_node(3, &arguments);
    cluster.wait_for_nodes(4);
    let all: Vec<String> = (1..=60).map(|number| number.to_string()).collect();
    stage_out(&cluster, "/k", &all);
    cluster.kill_mount();
    cluster.start_mount();
    cluster.sh("sha256sum --quiet -c sums");
    // The content before and after consists of the same chunks, each stored once.
    let taken = || {
        store
            .state()
            .objects
            .iter()
            .filter(|(key, _)| !key.ends_with(MARK))
            .map(|(_, (content, _))| content.len() as u64)
            .sum::<u64>()
    };
    wait("no unknown pack exists", || taken() == sent(&cluster));
    let recovered = cluster.run(&[
        "node",
        "recover-files",
        &uri,
        "--keys",
        more[1],
        "--into",
        &cluster.path("back").display().to_string(),
    ]);
    assert!(recovered.ok, "{}", recovered.err);
    cluster.sh(&format!(
        "cd {} && sha256sum --quiet -c {}",
        cluster.path("back").display(),
        cluster.at("sums").display()
    ));
    cluster.sh("rm -r k sums");
    wait("all is deleted there", || {
        store.state().objects.keys().all(|key| key.ends_with(MARK))
    });
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// The directory of the node is full, with its database in it.
#[test]
fn full_node_keeps_its_packs_and_waits_for_space() {
    let Some(mut cluster) = bare() else {
        return;
    };
    cluster.add_node(&["--tier", "burst"]);
    let (pfs, uri) = directory();
    let device = Device::new(cluster.node_directory(3), "64m");
    cluster.add_node(&[&["--backend", &uri][..], &PACKED].concat());
    cluster.start_mount();
    cluster.sh("mkdir d");
    let (one, other) = (noise(8), noise(9));
    std::fs::write(cluster.at("d/one"), &one).unwrap();
    stage_out(&cluster, "/d", &names(&["one"]));
    device.fill();
    let trouble = || cluster.json(&["status"])["nodes"][3]["trouble"] != "";
    wait("the node reports that it has no space", trouble);
    let got = cluster.path("got");
    let get = |name: &str| {
        let got = got.display().to_string();
        let printed = cluster.run(&["get", &format!("/d/{name}"), &got]);
        assert!(printed.ok, "{}", printed.err);
        std::fs::read(&got).unwrap()
    };
    assert!(get("one") == one);
    std::fs::write(cluster.at("d/other"), &other).unwrap();
    wait("it is stored elsewhere", || {
        let staged_out = cluster.run(&["stage", "out", "/d", "--evict", "--wait"]);
        let there = nodes(&cluster, "/d/other");
        staged_out.ok && there.iter().all(|one| [0, 1].contains(one))
    });
    assert!(get("other") == other && get("one") == one);
    cluster.sh("rm d/one");
    wait("removed files are deleted there", || {
        files_below(pfs.path()).is_empty()
    });
    device.free();
    wait("it has space again", || !trouble());
    std::fs::write(cluster.at("d/later"), &one).unwrap();
    stage_out(&cluster, "/d", &names(&["later"]));
    assert!(get("later") == one);
}

/// The next `tidemill up` uses the same format of the backend, until a flag changes it.
#[test]
fn up_keeps_packing_of_backend() {
    let (pfs, uri) = directory();
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let tidemill = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tidemill"));
        command.args([&["--dir", dir], args].concat());
        crate::cluster::printed(command.output().unwrap())
    };
    let up = ["up", "--nodes", "1", "--no-mount"];
    let wrong = tidemill(&[&up[..], &["--backend", &uri, "--backend-format", "zstd"]].concat());
    assert!(
        !wrong.ok && wrong.err.contains("dedup | zstd"),
        "{}",
        wrong.err
    );
    let mut reported = Vec::new();
    for more in [
        &["--backend", &uri, "--backend-format", "dedup|zstd"][..],
        &[],
        &["--backend", &uri],
        &["--backend", &uri, "--backend-format", "files"],
    ] {
        let printed = tidemill(&[&up[..], more].concat());
        let status = tidemill(&["--json", "status"]);
        std::fs::write(directory.path().join("f"), "content").unwrap();
        let name = format!("/f{}", reported.len());
        let put = tidemill(&["put", "--node", "997", &format!("{dir}/f"), &name]);
        let read = tidemill(&["cat", &name]);
        let down = tidemill(&["down"]);
        assert!(
            printed.ok && put.ok && down.ok,
            "{}{}{}",
            printed.err,
            put.err,
            down.err
        );
        assert_eq!(read.out, "content");
        let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
        let nodes = status["nodes"].as_array().unwrap();
        let backend = nodes.iter().find(|one| one["node"] == 997).unwrap();
        reported.push(backend["backend"]["format"].as_str().unwrap().to_owned());
    }
    assert_eq!(
        reported,
        ["dedup | zstd", "dedup | zstd", "dedup | zstd", "files"]
    );
    assert!(!pfs.path().join("f0").exists());
    // The same applies to keys: they are used again without a flag.
    let keys = directory.path().join("keys");
    std::fs::write(&keys, "token = \"hush\"\n").unwrap();
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
    let named = ["--backend", &uri, "--backend-keys", keys.to_str().unwrap()];
    assert!(tidemill(&[&up[..], &named].concat()).ok && tidemill(&["down"]).ok);
    std::fs::remove_file(&keys).unwrap();
    for more in [&[][..], &["--backend", &uri]] {
        let printed = tidemill(&[&up[..], more].concat());
        tidemill(&["down"]);
        assert!(
            !printed.ok && printed.err.contains("keys"),
            "{}",
            printed.err
        );
    }
}
