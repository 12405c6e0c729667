//! Tests nodes that are drained and removed, in a cluster of real processes under load.

use crate::cluster::{Cluster, Options, wait};
use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the node with the first replica of a file, from `tidemill stat`.
fn node_of(cluster: &Cluster, path: &str) -> u64 {
    let layout = cluster.json(&["stat", path]);
    layout["parts"][0]["replicas"][0]["node"].as_u64().unwrap()
}

/// Reads files repeatedly, through the mount and with new lookups of their names, until `end` is set; returns the number of repetitions.
fn read_on(cluster: &Cluster, end: &Arc<AtomicBool>) -> std::thread::JoinHandle<usize> {
    let (directory, end) = (cluster.at("d"), end.clone());
    std::thread::spawn(move || {
        let mut open = std::fs::File::open(directory.join("large")).unwrap();
        let mut rounds = 0;
        while !end.load(Ordering::Relaxed) || rounds == 0 {
            for number in 0..40 {
                let text = std::fs::read_to_string(directory.join(format!("f{number}"))).unwrap();
                assert_eq!(text, format!("{number}\n"));
            }
            let mut bytes = Vec::new();
            open.rewind().unwrap();
            open.read_to_end(&mut bytes).unwrap();
            assert!(bytes == vec![7; 3_000_000], "{} bytes", bytes.len());
            rounds += 1;
        }
        rounds
    })
}

/// Reads, writes and tasks during the drain of a node succeed. Then the node is removed and killed, its directory
/// is deleted, and nothing is lost.
#[test]
fn node_is_drained_and_removed_under_load() {
    for remote in [false, true] {
        let options = Options {
            remote,
            ..Options::default()
        };
        let Some(mut cluster) = Cluster::with(options) else {
            return;
        };
        cluster.sh("mkdir d; setfattr -n user.tidemill.node -v 0 d; for i in $(seq 0 39); do echo $i > d/f$i; done");
        std::fs::write(cluster.at("d/large"), vec![7; 3_000_000]).unwrap();
        let script = r#"name = "j"; workdir = "/d"; tasks = (
            { name = "slow"; kernel = "/bin/sh"; args = ["-c", "sleep 1; cat f1"]; input = ["f1"]; output = ["one"];
              stdout = "one"; node = 0; },
            { name = "next"; kernel = "/bin/cat"; args = ["one", "f2"]; input = ["one", "f2"]; output = ["two"];
              stdout = "two"; } );"#;
        let job = cluster.submit(script);
        let end = Arc::new(AtomicBool::new(false));
        let reader = read_on(&cluster, &end);
        let mut written = std::fs::File::create(cluster.at("d/written")).unwrap();
        std::io::Write::write_all(&mut written, b"half ").unwrap();
        let began = cluster.run(&["node", "drain", "0"]);
        assert!(
            began.ok && began.out.contains("node 0 is being drained"),
            "{}{}",
            began.out,
            began.err
        );
        assert!(cluster.run(&["status"]).out.contains("up, draining"));
        // The directory names the node; the file is created anyway, on another node.
        cluster.sh("echo new > d/new");
        assert_eq!(node_of(&cluster, "/d/new"), 1);
        assert_eq!(cluster.sh("cat d/new"), "new\n");
        std::io::Write::write_all(&mut written, b"whole").unwrap();
        drop(written);
        cluster.done(job);
        assert_eq!(cluster.sh("cat d/two d/written"), "1\n2\nhalf whole");
        end.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
        let drained = cluster.run(&["node", "drain", "0", "--wait"]);
        assert!(
            drained.ok && drained.out.contains("node 0 is empty"),
            "{}{}",
            drained.out,
            drained.err
        );
        let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
        assert!(
            !cluster.run(&["node", "remove", "1"]).ok,
            "it has everything"
        );
        taken_out(&mut cluster);
    }
}

/// The drained node is removed and killed, and its directory is deleted: no file is lost.
fn taken_out(cluster: &mut Cluster) {
    let removed = cluster.run(&["node", "remove", "0"]);
    assert!(removed.ok, "{}", removed.err);
    cluster.kill_node(0);
    std::fs::rename(cluster.node_directory(0), cluster.path("gone")).unwrap();
    for number in 0..40 {
        assert_eq!(
            cluster.sh(&format!("cat d/f{number}")),
            format!("{number}\n")
        );
        assert_eq!(node_of(cluster, &format!("/d/f{number}")), 1);
    }
    assert!(std::fs::read(cluster.at("d/large")).unwrap() == vec![7; 3_000_000]);
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(check.ok, "{}{}", check.out, check.err);
    let status = cluster.json(&["status"]);
    assert_eq!(status["nodes"].as_array().unwrap().len(), 1);
    let last = cluster.run(&["node", "drain", "1"]);
    assert!(
        !last.ok && last.err.contains("the last one that keeps data"),
        "{}",
        last.err
    );
    assert!(
        cluster
            .run(&["lineage", "show", "/d/two"])
            .out
            .contains("/d/one")
    );
}

#[test]
fn migrate_and_rebalance_survive_server_kills() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir d; setfattr -n user.tidemill.node -v 0 d; for i in $(seq 0 99); do head -c 20000 /dev/zero > d/f$i; done");
    wait("all are sealed", || {
        let listed = cluster.json(&["ls", "/d"]);
        let files = listed["entries"].as_array().unwrap();
        files.len() == 100 && files.iter().all(|file| file["writing"] != true)
    });
    let mut open = std::fs::File::open(cluster.at("d/f7")).unwrap();
    let moved = cluster.run(&["migrate", "/d", "--node", "1"]);
    assert!(
        moved.ok && moved.out.contains("100 files"),
        "{}{}",
        moved.out,
        moved.err
    );
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(2);
    wait("all are moved", || {
        let printed = cluster.json(&["cluster", "tasks"]);
        printed["pending"].as_array().is_some_and(Vec::is_empty)
    });
    let mut read = Vec::new();
    open.read_to_end(&mut read).unwrap();
    assert_eq!(read.len(), 20_000);
    drop(open);
    assert_eq!(node_of(&cluster, "/d/f99"), 1);
    let again = cluster.json(&["migrate", "/d", "--node", "1"]);
    assert_eq!(
        (again["files"].as_u64(), again["already_placed"].as_u64()),
        (Some(0), Some(100))
    );
    for (bad, why) in [
        (["migrate", "/d", "--node", "9"], "not part of the cluster"),
        (["migrate", "/none", "--node", "0"], "no such file"),
    ] {
        let printed = cluster.run(&bad);
        assert!(!printed.ok && printed.err.contains(why), "{}", printed.err);
    }
    assert!(!cluster.run(&["migrate", "/d"]).ok, "where to?");
    let planned = cluster.json(&["cluster", "rebalance", "--dry-run", "--within", "1"]);
    // Their files are small compared with their capacity.
    assert_eq!(planned["flows"].as_array().map(Vec::len), Some(0));
    assert_eq!(planned["nodes"][1]["held_bytes"].as_u64(), Some(2_000_000));
    let bad = cluster.run(&["cluster", "rebalance", "--within", "0"]);
    assert!(!bad.ok && bad.err.contains("give 1 to 100"), "{}", bad.err);
    wait("its previous files are removed", || {
        let labels = cluster.json(&["cluster", "tasks"]);
        labels["labels"].as_array().is_some_and(Vec::is_empty)
    });
    assert!(cluster.run(&["cluster", "tasks"]).ok);
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(check.ok, "{}{}", check.out, check.err);
}

/// Returns the nodes of the first replicas of a file's parts, in the order of the parts.
fn nodes_of(cluster: &Cluster, path: &str) -> Vec<u64> {
    let layout = cluster.json(&["stat", path]);
    let parts = layout["parts"].as_array().unwrap().iter();
    let first = |part: &serde_json::Value| part["replicas"][0]["node"].as_u64().unwrap();
    parts.map(first).collect()
}

#[test]
fn striped_files_move_to_named_nodes_by_part() {
    let options = Options {
        nodes: 4,
        mount: false,
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    let bytes: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    let (local, back) = (cluster.path("local"), cluster.path("back"));
    std::fs::write(&local, &bytes).unwrap();
    let (local, back) = (local.to_str().unwrap(), back.to_str().unwrap());
    let is_whole = || {
        assert!(cluster.run(&["get", "/f", back]).ok);
        assert!(std::fs::read(back).unwrap() == bytes);
    };
    assert!(cluster.run(&["put", "--stripe", "64KiB,2", local, "/f"]).ok);
    let begun = nodes_of(&cluster, "/f");
    let others: Vec<u64> = (0..4).filter(|one| !begun.contains(one)).collect();
    let move_to = |nodes: &[u64]| {
        let named: Vec<String> = nodes.iter().map(u64::to_string).collect();
        cluster.run(&["--json", "migrate", "/f", "--node", &named.join(",")])
    };
    for wrong in [&[others[0], 9][..], &[9]] {
        let refused = move_to(wrong);
        assert!(
            !refused.ok && refused.err.contains("node 9"),
            "{}",
            refused.err
        );
    }
    assert_eq!(nodes_of(&cluster, "/f"), begun);
    // First one part stays, then none.
    for named in [[others[0], begun[1]], [others[0], others[1]]] {
        let printed = move_to(&named);
        let reported: serde_json::Value = serde_json::from_str(&printed.out).unwrap();
        assert!(
            printed.ok && reported["files"] == 1,
            "{}{}",
            printed.out,
            printed.err
        );
        wait("the parts exist", || nodes_of(&cluster, "/f") == named);
        is_whole();
        let again = move_to(&[named[1], named[0]]);
        let reported: serde_json::Value = serde_json::from_str(&again.out).unwrap();
        assert!(again.ok && reported["already_placed"] == 1, "{}", again.out);
    }
    assert!(move_to(&others[..1]).ok);
    wait("all is on one node", || {
        nodes_of(&cluster, "/f") == [others[0]; 2]
    });
    is_whole();
    wait("the previous objects are removed", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
}
