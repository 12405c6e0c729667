//! The loss of the server's host: everything is recovered from the log on nodes.

use crate::cluster::{Cluster, Device, Options, wait};
use crate::stand_in::StandIn;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Returns the names of the log's files in a directory.
fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".part"))
        .collect();
    names.sort();
    names
}

impl Cluster {
    /// Returns the directories of the three nodes.
    fn all_nodes(&self) -> [String; 3] {
        [0, 1, 2].map(|node| self.node_directory(node).display().to_string())
    }

    fn log_of(&self, node: usize) -> PathBuf {
        self.node_directory(node).join("log")
    }

    /// Waits until two nodes have the whole log of the server.
    fn wait_for_copies(&self) -> Vec<usize> {
        let mut holders = Vec::new();
        wait("two nodes have the log", || {
            // The last changes are written half a second later.
            std::thread::sleep(std::time::Duration::from_millis(700));
            let own = files(&self.path("server/log"));
            // Nodes keep the files of earlier logs for some time.
            let has = |node: &usize| {
                let copy = files(&self.log_of(*node));
                !own.is_empty() && own.iter().all(|name| copy.contains(name))
            };
            holders = (0..3).filter(has).collect();
            holders.len() == 2
        });
        holders
    }

    /// Kills the server and the mount, and removes the server's directory.
    fn lose_server(&mut self) {
        self.kill_mount();
        self.kill_server();
        std::fs::remove_dir_all(self.path("server")).unwrap();
    }

    fn recover(&self, args: &[&str]) -> Value {
        let server = self.path("server").display().to_string();
        let mut all = vec!["server", "recover", "--data-dir", &server];
        all.extend(args);
        self.json(&all)
    }

    fn continue_with(&mut self, nodes: usize) {
        self.start_server();
        self.wait_for_nodes(nodes);
        self.start_mount();
    }
}

fn options() -> Options {
    Options {
        nodes: 3,
        server_args: vec!["--replicas".into(), "2".into()],
        ..Options::default()
    }
}

#[test]
fn lost_host_of_server_loses_nothing_that_the_log_has() {
    let Some(mut cluster) = Cluster::with(options()) else {
        return;
    };
    let nodes = cluster.all_nodes();
    let nodes = nodes.each_ref().map(String::as_str);
    cluster.sh("mkdir in && echo one > in/a && ln in/a in/b && ln -s a in/c && setfattr -n user.x -v y in/a && chmod 640 in/a");
    cluster.sh("mkdir keep && setfattr -n user.tidemill.ttl -v 1h keep 2>/dev/null; echo short > keep/x; seq 1 9 > in/n");
    let job = cluster.submit(
        "[job]\nname = \"largest\"\nworkdir = \"/in\"\n[[task]]\nname = \"one\"\nkernel = \"max\"\n\
         args = [\"dtype=text\"]\ninput = [\"n\"]\noutput = [\"out\"]\n",
    );
    cluster.done(job);
    assert!(cluster.run(&["token", "create", "--note", "kept"]).ok);
    assert!(
        cluster
            .run(&["workspace", "create", "w", "--quota", "1MiB", "--ttl", "2h"])
            .ok
    );
    let asked: &[&[&str]] = &[
        &["job", "list"],
        &["token", "list"],
        &["workspace", "list"],
        &["lineage", "show", "/in/out"],
        &["stat", "/in/a"],
        &["ls", "-l", "/in"],
        &["node", "list"],
    ];
    // Free space and load of the nodes change by themselves.
    let state = |cluster: &Cluster| -> Vec<Value> {
        let mut all: Vec<Value> = asked[..6].iter().map(|args| cluster.json(args)).collect();
        all.push(
            cluster.json(asked[6])["nodes"]
                .as_array()
                .unwrap()
                .len()
                .into(),
        );
        all
    };
    wait("a file has two replicas", || {
        let stat = cluster.json(&["stat", "/in/a"]);
        stat["parts"][0]["replicas"].as_array().unwrap().len() == 2
    });
    let before = state(&cluster);
    let holders = cluster.wait_for_copies();
    cluster.lose_server();
    let dry = cluster.recover(&[&["--dry-run"], &nodes[..]].concat());
    assert_eq!(dry["dry_run"], true);
    assert!(!cluster.path("server/server.db").exists());
    // One of the two copies is enough.
    let recovered = cluster.recover(&[nodes[holders[1]]]);
    assert_eq!(
        recovered["log"]["missing_segments"],
        Value::Null,
        "{recovered}"
    );
    assert_eq!(recovered["log"]["unusable"].as_array().unwrap().len(), 0);
    cluster.continue_with(3);
    let after = state(&cluster);
    for (args, (before, after)) in asked.iter().zip(before.iter().zip(&after)) {
        assert_eq!(before, after, "{args:?}");
    }
    assert_eq!(cluster.sh("cat in/b"), "one\n");
    // The recovered cluster works, has a log of a later term, and can be lost again.
    cluster.sh("echo two > in/d");
    cluster.wait_for_copies();
    cluster.lose_server();
    let recovered = cluster.recover(&nodes);
    assert_eq!(recovered["log"]["term"], 2);
    cluster.continue_with(3);
    assert_eq!(cluster.sh("cat in/d"), "two\n");
    let checked = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(checked.ok, "{}{}{recovered}", checked.out, checked.err);
}

#[test]
fn file_that_was_sealed_after_the_end_of_the_log_is_added() {
    let Some(mut cluster) = Cluster::with(options()) else {
        return;
    };
    cluster.sh("mkdir d && echo old > d/old && echo first > d/changed");
    let holders = cluster.wait_for_copies();
    let logs: Vec<_> = holders.iter().map(|node| cluster.log_of(*node)).collect();
    let kept: Vec<_> = logs.iter().map(|log| files(log)).collect();
    cluster.sh("echo new > d/new && echo second > d/changed && sync d/new d/changed");
    cluster.lose_server();
    // The segments with the new files are lost.
    for (log, kept) in logs.iter().zip(&kept) {
        for name in files(log) {
            if !kept.contains(&name) {
                std::fs::remove_file(log.join(name)).unwrap();
            }
        }
    }
    let nodes = cluster.all_nodes();
    let nodes = nodes.each_ref().map(String::as_str);
    let recovered = cluster.recover(&nodes);
    let added = recovered["added"].to_string();
    assert!(
        added.contains("/d/new") && added.contains("/d/changed"),
        "{recovered}"
    );
    cluster.continue_with(3);
    assert_eq!(
        cluster.sh("cat d/old d/new d/changed"),
        "old\nnew\nsecond\n"
    );
}

#[test]
fn file_that_was_open_at_the_end_of_the_log_is_sealed() {
    let Some(mut cluster) = Cluster::with(options()) else {
        return;
    };
    let nodes = cluster.all_nodes();
    let nodes = nodes.each_ref().map(String::as_str);
    let mut file = std::fs::File::create(cluster.at("late")).unwrap();
    std::io::Write::write_all(&mut file, b"late").unwrap();
    Cluster::wait_for_log();
    drop(file);
    wait("the file is sealed", || {
        cluster.run(&["cat", "/late"]).out == "late"
    });
    // The mount lives on. The lost server has acknowledged the seal.
    cluster.kill_server();
    std::fs::remove_dir_all(cluster.path("server")).unwrap();
    cluster.recover(&nodes);
    cluster.start_server();
    cluster.wait_for_nodes(3);
    assert_eq!(cluster.run(&["cat", "/late"]).out, "late");
    assert_eq!(cluster.sh("cat late"), "late");
}

#[test]
fn restored_files_without_bytes_are_named() {
    let Some(mut cluster) = Cluster::with(options()) else {
        return;
    };
    let nodes = cluster.all_nodes();
    cluster.sh("mkdir d && echo gone > d/gone && echo kept > d/kept");
    Cluster::wait_for_log();
    let until = cluster.sh("date -u +%FT%T");
    let until = until.trim();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let gone = cluster.object_files("/d/gone");
    cluster.sh("rm d/gone");
    wait("the bytes are removed", || {
        gone.iter().all(|file| !file.exists())
    });
    Cluster::wait_for_log();
    cluster.lose_server();
    let server = cluster.path("server").display().to_string();
    let mut args = vec![
        "--json",
        "server",
        "recover",
        "--data-dir",
        &server,
        "--until",
        until,
    ];
    args.extend(nodes.iter().map(String::as_str));
    let printed = cluster.run(&args);
    assert_eq!(printed.code, Some(1), "{}{}", printed.out, printed.err);
    let recovered: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(recovered["missing"], serde_json::json!(["/d/gone"]));
    cluster.continue_with(3);
    assert_eq!(cluster.sh("cat d/kept"), "kept\n");
}

#[test]
fn file_that_moved_after_the_end_of_the_log_is_found() {
    let options = Options {
        nodes: 3,
        ..Options::default()
    };
    let Some(mut cluster) = Cluster::with(options) else {
        return;
    };
    cluster.sh("mkdir d && echo moved > d/f && echo stays > d/g");
    let backup = cluster.path("backup").display().to_string();
    cluster.json(&["cluster", "backup", &backup]);
    let place = |cluster: &Cluster, path: &str| {
        let replicas = cluster.json(&["stat", path])["parts"][0]["replicas"].clone();
        assert_eq!(replicas.as_array().unwrap().len(), 1, "{replicas}");
        replicas[0]["node"].as_u64().unwrap()
    };
    let (from, stays) = (place(&cluster, "/d/f"), place(&cluster, "/d/g"));
    let to = (from + 1) % 3;
    let target = to.to_string();
    assert!(cluster.run(&["migrate", "/d/f", "--node", &target]).ok);
    let objects = |cluster: &Cluster, node: u64| {
        let node = cluster.node_directory(usize::try_from(node).unwrap());
        crate::packs::files_below(&node.join("objects")).len()
    };
    let before = objects(&cluster, from);
    wait("the file has moved", || {
        let printed = cluster.run(&["--json", "stat", "/d/f"]);
        printed.ok && printed.out.contains(&format!("\"node\":{to}"))
    });
    wait("its bytes are gone there", || {
        objects(&cluster, from) < before
    });
    cluster.lose_server();
    for node in 0..3 {
        let _ = std::fs::remove_dir_all(cluster.log_of(node));
    }
    let nodes = cluster.all_nodes();
    let nodes = nodes.each_ref().map(String::as_str);
    let recovered = cluster.recover(&[&[&backup[..]], &nodes[..]].concat());
    assert_eq!(recovered["incomplete"], false, "{recovered}");
    cluster.continue_with(3);
    assert_eq!(cluster.sh("cat d/f d/g"), "moved\nstays\n");
    assert_eq!(
        (place(&cluster, "/d/f"), place(&cluster, "/d/g")),
        (to, stays)
    );
    let checked = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(checked.ok, "{}{}", checked.out, checked.err);
}

#[test]
fn recovery_on_full_device_leaves_nothing_and_succeeds_with_space() {
    let Some(mut cluster) = Cluster::with(options()) else {
        return;
    };
    cluster.sh("mkdir d && for i in $(seq 50); do echo $i > d/$i; done");
    cluster.wait_for_copies();
    cluster.lose_server();
    let nodes = cluster.all_nodes();
    let nodes = nodes.each_ref().map(String::as_str);
    let server = cluster.path("server");
    let device = Device::new(server.clone(), "64m");
    device.fill();
    let directory = server.display().to_string();
    let to_full = [&["server", "recover", "--data-dir", &directory], &nodes[..]].concat();
    let refused = cluster.run(&to_full);
    assert!(
        !refused.ok && refused.err.contains("space"),
        "{}",
        refused.err
    );
    let left = std::fs::read_dir(&server).unwrap().flatten();
    let left = left.map(|entry| entry.file_name().into_string().unwrap());
    let left: Vec<_> = left.filter(|name| name.contains("server.db")).collect();
    assert_eq!(left, [""; 0]);
    device.free();
    assert_eq!(cluster.recover(&nodes)["incomplete"], false);
    cluster.continue_with(3);
    assert_eq!(cluster.sh("ls d | wc -l; cat d/50"), "50\n50\n");
    cluster.kill_mount();
    cluster.kill_server();
    drop(device);
}

#[test]
fn backup_is_incremental_and_restores_an_earlier_moment() {
    let Some(mut cluster) = Cluster::with(options()) else {
        return;
    };
    cluster.sh("mkdir d && echo 1 > d/one");
    let backup = cluster.path("backup").display().to_string();
    let first = cluster.json(&["cluster", "backup", &backup]);
    let moment = first["time"].as_i64().unwrap();
    cluster.sh("echo 2 > d/two");
    let second = cluster.json(&["cluster", "backup", &backup]);
    assert!(
        second["files"].as_u64() < first["files"].as_u64()
            || second["bytes"].as_u64() < first["bytes"].as_u64()
    );
    let key = cluster.path("key").display().to_string();
    std::fs::copy(cluster.path("server/cluster.key"), &key).unwrap();
    cluster.lose_server();
    for node in 0..3 {
        let _ = std::fs::remove_dir_all(cluster.log_of(node));
    }
    let server = cluster.path("server").display().to_string();
    let without = cluster.run(&["server", "recover", "--data-dir", &server, &backup]);
    assert!(
        !without.ok && without.err.contains("--key"),
        "{}",
        without.err
    );
    let (seconds, nanos) = (moment / 1_000_000_000, moment % 1_000_000_000);
    let until = cluster.sh(&format!("date -u -d @{seconds} +%FT%T"));
    let until = format!("{}.{nanos:09}", until.trim());
    let recovered = cluster.recover(&["--key", &key, "--until", &until, &backup]);
    assert_eq!(recovered["log"]["time"], first["time"]);
    cluster.continue_with(3);
    assert_eq!(cluster.sh("ls d"), "one\n");
    cluster.kill_mount();
    cluster.kill_server();
    std::fs::remove_dir_all(cluster.path("server")).unwrap();
    cluster.recover(&["--key", &key, &backup]);
    cluster.continue_with(3);
    assert_eq!(cluster.sh("cat d/one d/two"), "1\n2\n");
}

#[test]
fn backup_in_store_suffices_for_recovery() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(StandIn::start());
    let Some(mut cluster) = Cluster::with(options()) else {
        return;
    };
    store.state().key = Some("me".into());
    let keys = cluster.path("keys");
    std::fs::write(
        &keys,
        "access_key_id = \"me\"\nsecret_access_key = \"hush\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
    let uri = format!("s3://bucket/top?endpoint=http://{}", store.address);
    let of_store = ["--remote-keys", keys.to_str().unwrap(), &uri];
    cluster.sh("mkdir d && echo 1 > d/one");
    let first = cluster.json(&[&["cluster", "backup"], &of_store[..]].concat());
    assert!(first["files"].as_u64() > Some(0), "{first}");
    cluster.sh("echo 2 > d/two");
    let second = cluster.json(&[&["cluster", "backup"], &of_store[..]].concat());
    assert!(
        second["bytes"].as_u64() < first["bytes"].as_u64(),
        "{second}"
    );
    store.state().key = Some("another".into());
    let refused = cluster.run(&[&["cluster", "backup"], &of_store[..]].concat());
    assert!(
        !refused.ok && !refused.err.contains("hush"),
        "{}",
        refused.err
    );
    store.state().key = Some("me".into());
    let key = cluster.path("key").display().to_string();
    std::fs::copy(cluster.path("server/cluster.key"), &key).unwrap();
    cluster.lose_server();
    for node in 0..3 {
        let _ = std::fs::remove_dir_all(cluster.log_of(node));
    }
    let server = cluster.path("server").display().to_string();
    let nothing = format!("s3://bucket/none?endpoint=http://{}", store.address);
    let empty = ["server", "recover", "--data-dir", &server, "--key", &key];
    let empty = [&empty[..], &of_store[..2], &[&nothing]].concat();
    let empty = cluster.run(&empty);
    assert!(
        !empty.ok && empty.err.contains("no file of a log"),
        "{}",
        empty.err
    );
    let recovered = cluster.recover(&[&["--key", &key], &of_store[..]].concat());
    assert_eq!(recovered["incomplete"], false, "{recovered}");
    cluster.continue_with(3);
    assert_eq!(cluster.sh("cat d/one d/two"), "1\n2\n");
}

#[test]
fn old_copy_of_the_database_is_reported() {
    let Some(mut cluster) = Cluster::with(options()) else {
        return;
    };
    cluster.sh("echo 1 > one");
    cluster.wait_for_copies();
    cluster.kill_mount();
    cluster.kill_server();
    let (server, old) = (cluster.path("server"), cluster.path("old"));
    cluster.sh("cp -r ../server ../old");
    cluster.start_server();
    cluster.wait_for_nodes(3);
    cluster.wait_for_copies();
    cluster.kill_server();
    std::fs::remove_dir_all(&server).unwrap();
    std::fs::rename(&old, &server).unwrap();
    // This server has the term of the one before, and another log.
    cluster.start_server();
    cluster.wait_for_nodes(3);
    wait("the older database is reported", || {
        cluster
            .run(&["cluster", "health"])
            .out
            .contains("database-old")
    });
}

#[test]
fn full_device_of_the_log_is_reported_and_delays_no_change() {
    let mut device = None;
    let small = |cluster: &Cluster| device = Some(Device::new(cluster.path("server/log"), "1m"));
    let Some(mut cluster) = Cluster::prepared(options(), small) else {
        return;
    };
    let device = device.unwrap();
    cluster.sh("echo 1 > one");
    cluster.wait_for_copies();
    device.fill();
    cluster.sh("mkdir d && for i in $(seq 1 50); do echo $i > d/$i; done");
    let delayed = |cluster: &Cluster| {
        let health = cluster.run(&["cluster", "health"]);
        health.out.contains("log-delayed")
    };
    wait("the full device is reported", || delayed(&cluster));
    assert_eq!(cluster.sh("cat d/50"), "50\n");
    device.free();
    wait("the log continues", || !delayed(&cluster));
    cluster.wait_for_copies();
    cluster.kill_mount();
    cluster.kill_server();
    drop(device);
    cluster.lose_server();
    let nodes = cluster.all_nodes();
    let nodes = nodes.each_ref().map(String::as_str);
    let recovered = cluster.recover(&nodes);
    assert_eq!(
        recovered["log"]["missing_segments"],
        Value::Null,
        "{recovered}"
    );
    cluster.continue_with(3);
    assert_eq!(cluster.sh("ls d | wc -l; cat d/50"), "50\n50\n");
}
