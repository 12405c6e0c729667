//! Tests files with several replicas, in a cluster of real processes.

use crate::cluster::{Cluster, Options, wait};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;

/// Returns the nodes that have a file and the states of its replicas, from `tidemill stat`.
fn replicas(cluster: &Cluster, path: &str) -> Vec<(u64, String)> {
    let layout = cluster.json(&["stat", path]);
    let replicas = layout["parts"][0]["replicas"].as_array().cloned();
    let replica = |replica: &Value| {
        let state = replica["state"].as_str().unwrap().to_owned();
        (replica["node"].as_u64().unwrap(), state)
    };
    replicas.unwrap_or_default().iter().map(replica).collect()
}

/// Waits until a file has `count` replicas that can be read.
fn copied(cluster: &Cluster, path: &str, count: usize) {
    wait("the file is copied", || {
        let replicas = replicas(cluster, path);
        replicas.len() == count && replicas.iter().all(|(_, state)| state == "current")
    });
}

/// Returns the paths at which the nodes would store the bytes of a file.
fn objects(cluster: &Cluster, path: &str) -> [PathBuf; 2] {
    let layout = cluster.json(&["stat", path]);
    let object = layout["parts"][0]["object"].as_str().unwrap().to_owned();
    let below = format!("objects/{}/{object}", &object[14..]);
    [0, 1].map(|index| cluster.node_directory(index).join(&below))
}

#[test]
fn replica_is_created_on_another_node_and_deleted_with_file() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir d; setfattr -n user.tidemill.replicas -v 2 d; echo bytes > d/f; mkdir d/sub; echo x > d/sub/g");
    copied(&cluster, "/d/f", 2);
    copied(&cluster, "/d/sub/g", 2);
    let both = objects(&cluster, "/d/f");
    for object in &both {
        assert_eq!(std::fs::read_to_string(object).unwrap(), "bytes\n");
    }
    let printed = cluster.sh("getfattr --only-values -n user.tidemill.layout d/f; getfattr --only-values -n user.tidemill.replicas d/f");
    assert!(
        printed.contains("current") && printed.ends_with('2'),
        "{printed}"
    );
    let text = cluster.run(&["stat", "/d/f"]);
    assert!(
        text.out.contains("all replicas are on one host"),
        "{}",
        text.out
    );
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(check.ok, "{}{}", check.out, check.err);
    // First a new version, then none.
    cluster.sh("echo more >> d/f");
    wait("the first version is removed", || {
        both.iter().all(|object| !object.exists())
    });
    copied(&cluster, "/d/f", 2);
    let both = objects(&cluster, "/d/f");
    assert_eq!(std::fs::read_to_string(&both[1]).unwrap(), "bytes\nmore\n");
    cluster.sh("rm d/f");
    wait("both are removed", || {
        both.iter().all(|object| !object.exists())
    });
    // A user of `put` may request replicas for a single file, without a directory.
    let local = cluster.path("local");
    std::fs::write(&local, "put").unwrap();
    let local = local.to_str().unwrap();
    assert!(cluster.run(&["put", "--replicas", "2", local, "/h"]).ok);
    copied(&cluster, "/h", 2);
    for bad in ["0", "9", "x"] {
        let printed = cluster.run(&["put", "--replicas", bad, local, "/i"]);
        assert!(
            !printed.ok && printed.err.contains("--replicas"),
            "{}",
            printed.err
        );
        let set = format!("setfattr -n user.tidemill.replicas -v {bad} d");
        assert!(!cluster.try_sh(&set).ok);
    }
    assert!(
        !cluster
            .try_sh("setfattr -n user.tidemill.replicas -v 2 h")
            .ok
    );
}

#[test]
fn replicas_now_waits_until_replicas_exist() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let local = cluster.path("local");
    std::fs::write(&local, vec![7; 1 << 20]).unwrap();
    let local = local.to_str().unwrap();
    let both = |cluster: &Cluster, path: &str| {
        let replicas = replicas(cluster, path);
        assert!(
            replicas.len() == 2 && replicas.iter().all(|(_, state)| state == "current"),
            "{path}: {replicas:?}"
        );
    };
    assert!(
        cluster
            .run(&["put", "--replicas", "2,now", local, "/put"])
            .ok
    );
    both(&cluster, "/put");
    cluster
        .sh("mkdir d; setfattr -n user.tidemill.replicas -v 2,now d; echo bytes > d/f; sync d/f");
    both(&cluster, "/d/f");
    // Several files, and a striped file with two replicas of each part.
    cluster.sh("for i in 1 2 3 4 5 6; do echo $i > d/$i; done; sync d/1 d/2 d/3 d/4 d/5 d/6");
    for name in 1..=6 {
        both(&cluster, &format!("/d/{name}"));
    }
    assert!(
        cluster
            .run(&[
                "put",
                "--replicas",
                "2,now",
                "--stripe",
                "64KiB,2",
                local,
                "/striped"
            ])
            .ok
    );
    for part in cluster.json(&["stat", "/striped"])["parts"]
        .as_array()
        .unwrap()
    {
        let replicas = part["replicas"].as_array().unwrap();
        assert!(
            replicas.len() == 2 && replicas.iter().all(|replica| replica["state"] == "current"),
            "{part}"
        );
    }
    // An offline node delays no operation for long, and its missing replicas are made when it is online again.
    cluster.kill_node(1);
    cluster.sh("echo alone > d/alone; timeout 60 sync d/alone; cat d/alone");
    cluster.start_node(1);
    copied(&cluster, "/d/alone", 2);
}

/// A node is killed and its directory is deleted while readers and a job use it: neither the readers nor the job fail.
#[test]
fn readers_and_jobs_use_another_replica_when_node_is_lost() {
    for remote in [true, false] {
        let Some(mut cluster) = Cluster::with(Options {
            remote,
            ..Options::default()
        }) else {
            return;
        };
        let text: String = (0..4_000_000).map(|line| format!("{line}\n")).collect();
        let local = cluster.path("local");
        std::fs::write(&local, &text).unwrap();
        let local = local.to_str().unwrap();
        cluster.sh("mkdir d");
        let put = ["put", "--replicas", "2", "--node", "0", local, "/d/f"];
        assert!(cluster.run(&put).ok);
        cluster.sh("setfattr -n user.tidemill.replicas -v 2 d; setfattr -n user.tidemill.node -v 0 d; echo small > d/g");
        copied(&cluster, "/d/f", 2);
        copied(&cluster, "/d/g", 2);
        let mut open = std::fs::File::open(cluster.at("d/f")).unwrap();
        let mut read = vec![0; 1 << 20];
        open.read_exact(&mut read).unwrap();
        cluster.kill_node(0);
        std::fs::rename(cluster.node_directory(0), cluster.path("lost")).unwrap();
        open.read_to_end(&mut read).unwrap();
        assert!(read == text.as_bytes(), "{} bytes", read.len());
        // The file was not open before.
        assert_eq!(cluster.sh("cat d/g"), "small\n");
        assert_eq!(cluster.run(&["cat", "/d/g"]).out, "small\n");
        let back = cluster.path("back");
        assert!(cluster.run(&["get", "/d/f", back.to_str().unwrap()]).ok);
        assert!(std::fs::read(&back).unwrap() == text.as_bytes());
        let job = r#"name = "j"; workdir = "/d"; tasks = ( { name = "t"; kernel = "/bin/cat"; args = ["g"];
            input = ["g"]; output = ["out"]; stdout = "out"; node = 1; } );"#;
        cluster.done(cluster.submit(job));
        // Writes continue, too, from content that only the replica has.
        cluster.sh("setfattr -x user.tidemill.node d; echo more >> d/g");
        assert_eq!(cluster.sh("cat d/g"), "small\nmore\n");
        let replicas = replicas(&cluster, "/d/f");
        assert_eq!(
            replicas,
            [(0, "offline".to_owned()), (1, "current".to_owned())]
        );
    }
}

/// The server still counts the node as up, and the client has sent its request to the node.
#[test]
fn client_uses_another_replica_when_node_hangs() {
    let Some(cluster) = Cluster::with(Options {
        remote: true,
        ..Options::default()
    }) else {
        return;
    };
    let local = cluster.path("local");
    std::fs::write(&local, "bytes\n").unwrap();
    let local = local.to_str().unwrap();
    let put = ["put", "--replicas", "2", "--node", "0", local, "/f"];
    assert!(cluster.run(&put).ok);
    copied(&cluster, "/f", 2);
    cluster.signal_node(0, rustix::process::Signal::STOP);
    assert_eq!(cluster.run(&["cat", "/f"]).out, "bytes\n");
    cluster.signal_node(0, rustix::process::Signal::CONT);
}

/// Changes the first byte of an object on its node's disk.
fn spoil(object: &std::path::Path) {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    let mode = |mode| std::fs::set_permissions(object, std::fs::Permissions::from_mode(mode));
    mode(0o600).unwrap();
    let file = std::fs::File::options().write(true).open(object).unwrap();
    file.write_all_at(b"X", 0).unwrap();
    mode(0o444).unwrap();
}

#[test]
fn corruption_is_found_reported_and_repaired_or_readable() {
    for remote in [false, true] {
        let Some(cluster) = Cluster::with(Options {
            remote,
            ..Options::default()
        }) else {
            return;
        };
        cluster.sh("mkdir d; setfattr -n user.tidemill.replicas -v 2 d; echo bytes > d/f; echo others > d/g; echo alone > h");
        copied(&cluster, "/d/f", 2);
        copied(&cluster, "/d/g", 2);
        // All objects are hashed, then two of them are corrupt.
        let scrub = cluster.run(&["cluster", "scrub", "--wait"]);
        assert!(scrub.ok, "{}{}", scrub.out, scrub.err);
        spoil(&objects(&cluster, "/d/f")[0]);
        std::fs::remove_file(&objects(&cluster, "/d/g")[1]).unwrap();
        let found = cluster.run(&["cluster", "scrub", "--wait", "/d"]);
        assert!(
            !found.ok && found.out.contains("2 corrupt"),
            "{}",
            found.out
        );
        wait("both are repaired", || {
            cluster.run(&["cluster", "health"]).ok
        });
        for (name, bytes) in [("f", "bytes\n"), ("g", "others\n")] {
            for object in objects(&cluster, &format!("/d/{name}")) {
                assert_eq!(std::fs::read_to_string(object).unwrap(), bytes);
            }
            assert_eq!(cluster.sh(&format!("cat d/{name}")), bytes);
        }
        let again = cluster.run(&["cluster", "scrub", "--wait", "/d"]);
        assert!(again.ok, "{}{}", again.out, again.err);
        // The third file has no other replica.
        let layout = cluster.json(&["stat", "/h"]);
        let on = layout["parts"][0]["replicas"][0]["node"].as_u64().unwrap();
        let alone = &objects(&cluster, "/h")[usize::try_from(on).unwrap()];
        spoil(alone);
        assert!(!cluster.run(&["cluster", "scrub", "--wait", "/h"]).ok);
        assert!(!alone.exists());
        let health = cluster.run(&["cluster", "health"]);
        assert_eq!(health.code, Some(4), "{}", health.out);
        assert!(
            health.out.contains("/h") && health.out.contains("--corrupt"),
            "{}",
            health.out
        );
        let printed = cluster.try_sh("cat h");
        assert!(
            !printed.ok && printed.err.contains("Input/output error"),
            "{}",
            printed.err
        );
        let cat = cluster.run(&["cat", "/h"]);
        assert!(!cat.ok && cat.err.contains("is corrupt"), "{}", cat.err);
        let back = cluster.path("back");
        let get = ["get", "--corrupt", "/h", back.to_str().unwrap()];
        assert!(cluster.run(&get).ok);
        assert_eq!(std::fs::read_to_string(&back).unwrap(), "Xlone\n");
        let check = cluster.run(&["cluster", "fsck"]);
        assert!(check.out.contains("corrupt"), "{}", check.out);
        cluster.sh("echo anew > h");
        wait("nothing is corrupt", || {
            cluster.run(&["cluster", "health"]).ok
        });
        assert_eq!(cluster.sh("cat h"), "anew\n");
    }
}

/// Nodes and the server are killed during the scrub and the repairs.
#[test]
fn scrub_and_its_repairs_survive_kills() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir d; setfattr -n user.tidemill.replicas -v 2 d; for i in $(seq 40); do head -c 300000 /dev/urandom > d/$i; done");
    let sums = cluster.sh("cd d; sha256sum $(seq 40)");
    for i in 1..=40 {
        copied(&cluster, &format!("/d/{i}"), 2);
    }
    assert!(cluster.run(&["cluster", "scrub", "--wait"]).ok);
    for i in 1..=40 {
        let both = objects(&cluster, &format!("/d/{i}"));
        spoil(&both[i % 2]);
    }
    assert!(cluster.run(&["cluster", "scrub"]).ok);
    for round in 0..4 {
        match round % 2 {
            0 => {
                cluster.kill_node(0);
                cluster.start_node(0);
            }
            _ => {
                cluster.kill_server();
                cluster.start_server();
            }
        }
        cluster.wait_for_nodes(2);
    }
    wait("all is repaired", || {
        cluster.run(&["cluster", "scrub", "--wait"]).ok && cluster.run(&["cluster", "health"]).ok
    });
    assert_eq!(cluster.sh("cd d; sha256sum $(seq 40)"), sums);
}
