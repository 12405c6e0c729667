//! Tests the burst tier: new files are stored on its nodes, and are staged out to those of the capacity tier.

use crate::cluster::{Cluster, Options, wait};
use serde_json::Value;

/// Starts a cluster with two nodes of the capacity tier, and node 2 of the burst tier.
fn start(args: &[&str]) -> Option<Cluster> {
    configured(&[], args)
}

/// Starts the same with further arguments of the server.
fn configured(server: &[&str], args: &[&str]) -> Option<Cluster> {
    let mut cluster = Cluster::with(Options {
        mount: false,
        server_args: server.iter().map(|&arg| arg.to_owned()).collect(),
        ..Options::default()
    })?;
    let mut all = vec!["--tier", "burst"];
    all.extend(args);
    cluster.add_node(&all);
    cluster.start_mount();
    Some(cluster)
}

/// Returns the nodes that have a file, the first one first, with the states of their replicas.
fn places(cluster: &Cluster, path: &str) -> Vec<(u64, String)> {
    let layout = cluster.json(&["stat", path]);
    let replicas = layout["parts"][0]["replicas"].as_array().unwrap();
    let place = |replica: &Value| {
        let state = replica["state"].as_str().unwrap().to_owned();
        (replica["node"].as_u64().unwrap(), state)
    };
    replicas.iter().map(place).collect()
}

pub(crate) fn nodes(cluster: &Cluster, path: &str) -> Vec<u64> {
    places(cluster, path)
        .into_iter()
        .map(|(node, _)| node)
        .collect()
}

/// New files of any writer are stored in the burst tier and stay there with their replicas. On request they are removed
/// from the tier. All of this survives `kill -9` of the server and the node.
#[test]
fn new_files_go_to_burst_tier_first_and_are_staged_out() {
    let Some(mut cluster) = start(&[]) else {
        return;
    };
    cluster.sh("mkdir d; for i in $(seq 20); do head -c 100000 /dev/urandom > d/$i; done; sha256sum d/* > /tmp/sums-$$; mv /tmp/sums-$$ sums");
    std::fs::write(cluster.path("local"), b"put").unwrap();
    cluster.run(&["put", cluster.path("local").to_str().unwrap(), "/d/put"]);
    for path in ["/d/1", "/d/20", "/d/put", "/sums"] {
        assert_eq!(places(&cluster, path), [(2, "burst".to_owned())], "{path}");
    }
    let reported = cluster.json(&["status"]);
    let burst = &reported["nodes"][2];
    assert_eq!(
        (&burst["tier"], &burst["burst_files"]["staged_out"]),
        (&"burst".into(), &0.into())
    );
    assert_eq!(burst["burst_files"]["objects"], 22);
    // A user who may not change the files may not have them moved either.
    let foreign = cluster.try_sh(&format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups {:?} stage out /d",
        cluster.tidemill()
    ));
    assert!(!foreign.ok && foreign.err.contains("/d"), "{}", foreign.err);
    assert!(!cluster.run(&["migrate", "/d/1", "--node", "2"]).ok);

    let begun = cluster.json(&["stage", "out", "/d"]);
    assert!(begun["objects"].as_u64().unwrap() > 0, "{begun}");
    cluster.kill_server();
    cluster.kill_node(2);
    cluster.start_server();
    cluster.start_node(2);
    cluster.wait_for_nodes(3);
    cluster.run(&["stage", "out", "/d", "--wait"]);
    let both = places(&cluster, "/d/7");
    assert_eq!(
        (both.len(), &both[0]),
        (2, &(2, "burst".to_owned())),
        "{both:?}"
    );
    assert_eq!(both[1].1, "current");
    assert_eq!(places(&cluster, "/sums").len(), 1);
    cluster.sh("sha256sum --quiet -c sums");

    // A file stays in the tier while a program reads it there.
    let reader = std::fs::File::open(cluster.at("d/7")).unwrap();
    cluster.run(&["stage", "out", "/d", "--evict"]);
    wait("the others are evicted from the burst tier", || {
        nodes(&cluster, "/d/8").len() == 1
    });
    assert_ne!(nodes(&cluster, "/d/8"), [2]);
    cluster.sh("sha256sum --quiet -c sums");
    drop(reader);
    cluster.run(&["stage", "out", "/d", "--evict", "--wait"]);
    assert_ne!(nodes(&cluster, "/d/7"), [2]);

    // A changed file is written to the tier again; a file to which data is only appended stays in its place.
    cluster.sh("echo new > d/8; echo more >> d/9");
    assert_eq!(nodes(&cluster, "/d/8"), [2]);
    assert_ne!(nodes(&cluster, "/d/9"), [2]);
    // A deleted version leaves no object.
    cluster.sh("rm -r d sums");
    wait("the burst tier is empty", || {
        cluster.json(&["status"])["nodes"][2]["burst_files"]["objects"] == 0
    });
    let check = cluster.run(&["cluster", "fsck"]);
    assert!(check.ok, "{}{}", check.out, check.err);
}

/// The writers write eight times the capacity: they wait until the tier has space and are not refused.
#[test]
fn writers_wait_for_space_in_burst_tier_and_lose_nothing() {
    let Some(cluster) = start(&["--capacity", "64MiB"]) else {
        return;
    };
    cluster.sh("for i in $(seq 64); do head -c 8M /dev/urandom > f$i; done; sha256sum f* > sums");
    cluster.sh("sha256sum --quiet -c sums");
    let first = nodes(&cluster, "/f1");
    assert!(!first.contains(&2), "{first:?}");
    wait("the tier is emptied to its lower mark", || {
        let free = cluster.json(&["status"])["nodes"][2]["free_bytes"]
            .as_u64()
            .unwrap();
        free >= (64 << 20) / 5
    });
    cluster.run(&["stage", "out", "/", "--wait"]);
    let health = cluster.json(&["cluster", "health"]);
    assert_eq!(health["lost"], 0, "{health}");
    assert_eq!(health["unavailable"], 0, "{health}");
}

/// No node stores, the tier is full, and programs write more at once than fits. Only creators of files wait, until
/// space is free again, and no byte is lost.
#[test]
fn full_burst_tier_without_capacity_tier_blocks_only_creation() {
    let Some(mut cluster) = start(&["--capacity", "128MiB"]) else {
        return;
    };
    cluster.sh("mkdir out; head -c 8M /dev/urandom > first; sha256sum first > sum");
    cluster.kill_node(0);
    cluster.kill_node(1);
    let script = "for i in $(seq 40); do head -c 4M /dev/urandom > g$i & done; wait; sha256sum g* > gsums; ls g[0-9]* | wc -l";
    let mut many = std::process::Command::new("sh");
    many.args(["-ec", script]).current_dir(cluster.at("out"));
    let many = many.stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    cluster.sh(
        "timeout 10 sha256sum --quiet -c sum; timeout 10 ls -l > /dev/null; mkdir d; mv first d/",
    );
    let put = cluster.path("put");
    std::fs::write(&put, b"put").unwrap();
    cluster.kill_server();
    cluster.start_server();
    cluster.restart_node(0, &[]);
    cluster.restart_node(1, &[]);
    let printed = many.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout).trim(), "40");
    cluster.sh("(cd out; sha256sum --quiet -c gsums); cd d; sha256sum --quiet -c ../sum");
    let put = cluster.run(&["put", put.to_str().unwrap(), "/put"]);
    assert!(put.ok, "{}", put.err);
}

/// A node of the tier is lost for good: staged-out files exist, other files of the tier are listed, and no other files are.
#[test]
fn staged_files_survive_lost_burst_node_and_others_are_listed() {
    let Some(mut cluster) = start(&[]) else {
        return;
    };
    cluster.sh("echo kept > kept; echo lost > lost");
    cluster.run(&["stage", "out", "/kept", "--wait"]);
    cluster.kill_node(2);
    let printed = cluster.json(&["stage", "out", "/lost"]);
    assert_eq!(printed["offline"], 2, "{printed}");
    assert_eq!(cluster.sh("cat kept").trim(), "kept");
    let removed = cluster.run(&["node", "remove", "2", "--lose", "--yes"]);
    assert!(removed.ok, "{}", removed.err);
    assert_eq!(cluster.sh("cat kept").trim(), "kept");
    assert!(!cluster.run(&["cat", "/lost"]).ok);
    wait("the lost file is named, and no other", || {
        cluster.json(&["status"])["replicas"]["unavailable_paths"] == serde_json::json!(["/lost"])
    });
    // New files are stored on nodes of the capacity tier from then on.
    cluster.sh("echo new > new");
    assert_ne!(nodes(&cluster, "/new"), [2]);
}

#[test]
fn recovered_database_stages_out_remaining_files() {
    let Some(mut cluster) = start(&[]) else {
        return;
    };
    cluster.sh("mkdir d; echo a > d/a; echo b > d/b");
    cluster.run(&["stage", "out", "/d/a", "--wait"]);
    cluster.recover_database();
    wait("the node has reported what it has", || {
        cluster.json(&["status"])["nodes"][2]["burst_files"]["objects"] == 2
    });
    cluster.run(&["stage", "out", "/d", "--evict", "--wait"]);
    for path in ["/d/a", "/d/b"] {
        let places = nodes(&cluster, path);
        assert!(places.len() == 1 && places != [2], "{places:?}");
    }
}

/// `fsync` of a directory with `staged` waits until all files that were closed below it are stored, whichever user wrote them and whatever
/// process dies.
#[test]
fn fsync_of_staged_directory_waits_until_all_below_staged() {
    let Some(mut cluster) = configured(&["--stage-out-after", "1h"], &[]) else {
        return;
    };
    cluster.sh(
        "mkdir -p d/deep d/here; setfattr -n user.tidemill.durable -v staged d; setfattr -n user.tidemill.durable -v synced d/here
         echo a > d/a; echo b > d/deep/b; echo c > d/here/c; chown 65534 d/deep/b",
    );
    let wrong = cluster.try_sh("setfattr -n user.tidemill.durable -v perhaps d");
    assert!(!wrong.ok && wrong.err.contains("Invalid"), "{}", wrong.err);
    // A directory below that has `synced` waits for nothing.
    cluster.sh("sync d/here");
    assert_eq!(nodes(&cluster, "/d/here/c"), [2]);
    // Files that are open for writing are not waited for, but files that another mount has closed are.
    cluster.sh("exec 9> d/open; echo open >&9; sync d; exec 9>&-");
    for path in ["/d/a", "/d/deep/b", "/d/here/c"] {
        assert_eq!(nodes(&cluster, path).len(), 2, "{path}");
    }
    // Every user who syncs the directory waits for all of its files.
    cluster.sh("mkdir -m 700 d/mine; echo mine > d/mine/f; echo theirs > d/theirs; chmod 755 d");
    cluster.sh("setpriv --reuid 65534 --regid 65534 --clear-groups sync d");
    for path in ["/d/theirs", "/d/mine/f"] {
        assert_eq!(nodes(&cluster, path).len(), 2, "{path}");
    }

    // No node stores, and the server is killed while programs wait.
    cluster.kill_node(0);
    cluster.kill_node(1);
    cluster.sh("echo late > d/late");
    let mut sync = std::process::Command::new("sync");
    let mut sync = sync.arg(cluster.at("d")).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    cluster.kill_server();
    cluster.start_server();
    assert!(sync.try_wait().unwrap().is_none(), "it did not wait");
    cluster.restart_node(0, &[]);
    cluster.restart_node(1, &[]);
    assert!(sync.wait().unwrap().success());
    assert_eq!(nodes(&cluster, "/d/late").len(), 2);
}

/// A file that was closed while its node was down is not sealed, and `fsync` waits for it anyway.
#[test]
fn closed_but_unsealed_file_is_not_staged_out() {
    let Some(mut cluster) = configured(&["--stage-out-after", "1h"], &[]) else {
        return;
    };
    cluster.sh("mkdir d; setfattr -n user.tidemill.durable -v staged d");
    let mut file = std::fs::File::create(cluster.at("d/f")).unwrap();
    std::io::Write::write_all(&mut file, b"late").unwrap();
    cluster.kill_node(2);
    drop(file);
    let mut sync = std::process::Command::new("sync");
    let mut stage_out = cluster.tidemill();
    stage_out.args(["stage", "out", "/d", "--wait"]);
    let mut waiting = [
        sync.arg(cluster.at("d")).spawn().unwrap(),
        stage_out.spawn().unwrap(),
    ];
    // By then the mount was asked whether the file is closed, and its seal did not come.
    std::thread::sleep(std::time::Duration::from_secs(20));
    for one in &mut waiting {
        assert!(one.try_wait().unwrap().is_none(), "it did not wait");
    }
    cluster.restart_node(2, &["--tier", "burst"]);
    for one in &mut waiting {
        assert!(one.wait().unwrap().success());
    }
    assert_eq!(nodes(&cluster, "/d/f").len(), 2);
    assert_eq!(cluster.sh("cat d/f"), "late");
}

/// A program that keeps writing below a directory does not delay waiters for files that were closed there before.
#[test]
fn stage_out_wait_ignores_files_closed_later() {
    let Some(cluster) = configured(&["--stage-out-after", "1h"], &[]) else {
        return;
    };
    cluster.sh("mkdir d; setfattr -n user.tidemill.durable -v staged d");
    let script = "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i > d/$i; sleep 0.02; done";
    let mut writer = std::process::Command::new("sh");
    let mut writer = writer
        .args(["-ec", script])
        .current_dir(cluster.at(""))
        .spawn()
        .unwrap();
    wait("it writes", || cluster.at("d/20").exists());
    let synced = cluster.try_sh("timeout 170 sync d");
    let stored = (1..20).all(|i| nodes(&cluster, &format!("/d/{i}")).len() == 2);
    let staged_out = cluster.try_sh(&format!(
        "timeout 170 {:?} stage out /d --wait",
        cluster.tidemill()
    ));
    cluster.sh("touch stop");
    assert!(writer.wait().unwrap().success());
    assert!(synced.ok && stored, "{} {stored}", synced.err);
    assert!(staged_out.ok, "{}{}", staged_out.out, staged_out.err);
}

/// A file that is lost where it was stored is staged out once more, so that it survives the loss of the tier as well.
#[test]
fn file_lost_in_capacity_tier_is_staged_out_again() {
    let Some(mut cluster) = start(&[]) else {
        return;
    };
    cluster.sh("echo kept > kept");
    cluster.run(&["stage", "out", "/kept", "--wait"]);
    let first = nodes(&cluster, "/kept")[1];
    let other = 1 - first;
    let index = |node: u64| usize::try_from(node).unwrap();
    for node in [first, other] {
        cluster.kill_node(index(node));
        wait("it is known to be offline", || {
            cluster.json(&["status"])["nodes"][index(node)]["up"] == false
        });
    }
    let removed = cluster.run(&["node", "remove", &first.to_string(), "--lose", "--yes"]);
    assert!(removed.ok, "{}", removed.err);
    let printed = cluster.json(&["stage", "out", "/kept"]);
    assert_eq!(printed["objects"], 1, "{printed}");
    cluster.restart_node(index(other), &[]);
    let staged_out = cluster.run(&["stage", "out", "/kept", "--wait"]);
    assert!(staged_out.ok, "{}", staged_out.err);
    assert!(nodes(&cluster, "/kept").contains(&other));
    cluster.kill_node(2);
    wait("the tier is known to be offline", || {
        let status = cluster.json(&["status"]);
        let mut nodes = status["nodes"].as_array().unwrap().iter();
        nodes.any(|one| one["node"] == 2 && one["up"] == false)
    });
    let removed = cluster.run(&["node", "remove", "2", "--lose", "--yes"]);
    assert!(removed.ok, "{}", removed.err);
    assert_eq!(cluster.sh("cat kept").trim(), "kept");
}

/// Stored files get replicas in the tier on request of a user with read permission. These replicas are removed first when
/// space is needed.
#[test]
fn stage_in_copies_stored_files_to_burst_tier_for_readers() {
    let Some(mut cluster) = start(&["--capacity", "96MiB"]) else {
        return;
    };
    cluster.sh("mkdir in; for i in 1 2 3 4; do head -c 4M /dev/urandom > in/$i; done; sha256sum in/* > sums");
    cluster.run(&["stage", "out", "/", "--evict", "--wait"]);
    let stored = nodes(&cluster, "/in/1");
    assert!(stored.len() == 1 && stored != [2], "{stored:?}");

    cluster.sh("chmod 711 in; chmod 600 in/1");
    let foreign = |path: &str| {
        cluster.try_sh(&format!(
            "setpriv --reuid 65534 --regid 65534 --clear-groups {:?} stage in {path}",
            cluster.tidemill()
        ))
    };
    let refused = foreign("/in/1");
    assert!(
        !refused.ok && refused.err.contains("/in/1"),
        "{}",
        refused.err
    );
    assert!(!foreign("/in").ok && foreign("/in/2").ok);
    let refused = cluster.run(&["stage", "in", "/in", "--node", "0"]);
    assert!(
        refused.err.contains("not of the burst tier"),
        "{}",
        refused.err
    );
    assert!(!cluster.run(&["stage", "in", "/in", "--node", "17"]).ok);
    std::fs::write(cluster.path("large"), vec![7; 100 << 20]).unwrap();
    let large = cluster.path("large");
    cluster.run(&["put", large.to_str().unwrap(), "/large", "--node", "0"]);
    let refused = cluster.run(&["stage", "in", "/large"]);
    assert!(
        !refused.ok && refused.err.contains("bytes free"),
        "{}",
        refused.err
    );

    // All are killed between the request and the replicas.
    let begun = cluster.json(&["stage", "in", "/in"]);
    assert_eq!(begun["files"], 4, "{begun}");
    cluster.kill_server();
    cluster.kill_node(2);
    cluster.kill_node(0);
    cluster.start_server();
    cluster.restart_node(2, &["--tier", "burst", "--capacity", "96MiB"]);
    cluster.restart_node(0, &[]);
    cluster.wait_for_nodes(3);
    let done = cluster.run(&["stage", "in", "/in", "--wait"]);
    assert!(
        done.ok && done.out.contains("in the burst tier"),
        "{}{}",
        done.out,
        done.err
    );
    for path in ["/in/1", "/in/4"] {
        let both = places(&cluster, path);
        assert!(
            both.len() == 2 && both.contains(&(2, "burst".into())),
            "{both:?}"
        );
    }
    assert_eq!(
        cluster.json(&["status"])["nodes"][2]["burst_files"]["staged_out"],
        4
    );
    // One file is deleted, one is changed; the others are evicted from the tier when new files fill it.
    cluster.sh("rm in/3; echo new > in/2; sed -i '/[23]$/d' sums");
    cluster.sh(
        "for i in $(seq 12); do head -c 8M /dev/urandom > new$i; done; sha256sum --quiet -c sums",
    );
    wait("staged-in replicas were evicted", || {
        !nodes(&cluster, "/in/1").contains(&2)
    });
    cluster.sh("sha256sum --quiet -c sums");
    cluster.run(&["stage", "out", "/", "--wait"]);
    let health = cluster.json(&["cluster", "health"]);
    assert_eq!(
        [&health["lost"], &health["unavailable"], &health["short"]],
        [0, 0, 0],
        "{health}"
    );
    let check = cluster.run(&["cluster", "fsck"]);
    assert!(check.ok, "{}{}", check.out, check.err);
}

/// Starts the tier for tests of reservations: 256 MiB, from which no file is staged out unless space is needed.
fn reserving() -> Option<Cluster> {
    configured(&["--stage-out-after", "1h"], &["--capacity", "256MiB"])
}

fn reservations(cluster: &Cluster) -> Vec<Value> {
    cluster
        .json(&["stage", "reservations"])
        .as_array()
        .cloned()
        .unwrap_or_default()
}

/// Checks reservations that are refused, whatever space is free.
fn reservations_that_are_refused(cluster: &Cluster) {
    let refused = |size: &str, directory: &str, why: &str| {
        let printed = cluster.run(&["stage", "reserve", size, "--path", directory]);
        assert!(!printed.ok && printed.err.contains(why), "{}", printed.err);
    };
    refused("1GiB", "/a", "has a capacity of");
    refused("0", "/a", "give a size");
    refused("1MiB", "/nowhere", "/nowhere");
    let nobody = |size: &str, directory: &str, why: &str| {
        let printed = cluster.try_sh(&format!(
            "setpriv --reuid 65534 --regid 65534 --clear-groups {:?} stage reserve {size} --path {directory}",
            cluster.tidemill()
        ));
        assert!(!printed.ok && printed.err.contains(why), "{}", printed.err);
    };
    nobody("1MiB", "/mine", "/mine");
    nobody("200MiB", "/theirs", "reserve-max");
    let stores = ["stage", "reserve", "1MiB", "--path", "/a", "--node", "0"];
    assert!(!cluster.run(&stores).ok);
}

/// Reserved space stays available to the holder of the reservation, whatever others write, also if the server is killed and
/// nothing is staged out. The others wait and lose nothing.
#[test]
fn reservation_keeps_space_from_others_until_it_is_used() {
    let Some(mut cluster) = reserving() else {
        return;
    };
    cluster.sh("mkdir a b out; mkdir -m 700 mine; mkdir theirs; chown 65534 theirs");
    let reserve =
        |size: &str, directory: &str| cluster.run(&["stage", "reserve", size, "--path", directory]);
    reservations_that_are_refused(&cluster);
    let kept = reserve("150MiB", "/a");
    assert!(kept.ok, "{}", kept.err);
    // Two reservations exceed the free space.
    let refused = reserve("150MiB", "/b");
    assert!(
        !refused.ok && refused.err.contains("are missing"),
        "{}",
        refused.err
    );

    // Between the reservation and its use, the server is killed, no node stores any more, and others fill the tier.
    cluster.kill_server();
    cluster.start_server();
    cluster.kill_node(0);
    cluster.kill_node(1);
    let script = "for i in $(seq 16); do head -c 8M /dev/urandom > o$i; done; sha256sum o* > osums";
    let mut others = std::process::Command::new("sh");
    let mut others = others
        .args(["-ec", script])
        .current_dir(cluster.at("out"))
        .spawn()
        .unwrap();
    wait("other users have taken the unreserved space", || {
        cluster.at("out/o8").exists()
    });
    cluster.sh("cd a; mkdir deep; for i in $(seq 17); do head -c 8M /dev/urandom > deep/$i; done; sha256sum deep/* > sums");
    assert!(
        others.try_wait().unwrap().is_none(),
        "other users have waited"
    );
    for path in ["/a/deep/1", "/a/deep/17"] {
        assert_eq!(nodes(&cluster, path), [2], "{path}");
    }
    let reserved = reservations(&cluster);
    let used = reserved[0]["used"].as_u64().unwrap();
    assert_eq!(used >> 20, 17 * 8, "{reserved:?}");
    let status = cluster.json(&["status"]);
    let staged = &status["nodes"][2]["burst_files"];
    assert_eq!(staged["reserved_bytes"], 150 << 20, "{staged}");
    assert_eq!(staged["reserved_left"], (150 << 20) - used, "{staged}");
    // Other users have not used the rest of the reservation.
    let free = status["nodes"][2]["free_bytes"].as_u64().unwrap();
    assert!(free >= (150 << 20) - used, "{free}");
    cluster.restart_node(0, &[]);
    cluster.restart_node(1, &[]);
    assert!(others.wait().unwrap().success());
    cluster.sh("(cd out; sha256sum --quiet -c osums); cd a; sha256sum --quiet -c sums");
    cluster.run(&["stage", "out", "/", "--wait"]);
    let check = cluster.run(&["cluster", "fsck"]);
    assert!(check.ok, "{}{}", check.out, check.err);
}

/// A reservation ends at its time, with its directory, at its release and when its node leaves the tier. A waiter for space
/// then gets a reservation. Open files are not affected.
#[test]
fn reservation_ends_by_time_directory_release_or_tier() {
    let Some(mut cluster) = reserving() else {
        return;
    };
    cluster.sh("mkdir a b; for i in $(seq 8); do head -c 8M /dev/urandom > a/$i; done; sha256sum a/* > /tmp/sums-$$; mv /tmp/sums-$$ sums");
    // A file that was closed a moment ago may be counted twice for two seconds.
    let first = cluster.json(&["stage", "reserve", "120MiB", "--path", "/a", "--wait"]);
    assert_eq!((&first["node"], &first["used"]), (&2.into(), &0.into()));
    // Files that wait to be staged out make space for it, too, when the first one has ended.
    let wanted = ["stage", "reserve", "200MiB", "--path", "/b", "--wait"];
    let mut second = cluster.tidemill().args(wanted).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(second.try_wait().unwrap().is_none(), "it did not wait");
    assert!(cluster.run(&["stage", "release", "/a"]).ok);
    assert!(second.wait().unwrap().success());
    cluster.sh("sha256sum --quiet -c sums");
    // The reservation follows its directory, and ends with it.
    cluster.sh("mv b c");
    let reserved = reservations(&cluster);
    assert_eq!(reserved.len(), 1, "{reserved:?}");
    assert_eq!(reserved[0]["directory"], "/c", "{reserved:?}");
    cluster.sh("rmdir c");
    wait("it ends with its directory", || {
        reservations(&cluster).is_empty()
    });

    let timed = ["stage", "reserve", "40MiB", "--path", "/a", "--for", "5s"];
    assert!(cluster.run(&timed).ok);
    use std::io::Write as _;
    let mut open = std::fs::File::create(cluster.at("a/open")).unwrap();
    open.write_all(b"before ").unwrap();
    wait("the reservation has expired", || {
        reservations(&cluster).is_empty()
    });
    open.write_all(b"and after").unwrap();
    drop(open);
    assert_eq!(cluster.sh("cat a/open"), "before and after");
    let gone = cluster.run(&["stage", "release", "/a"]);
    assert!(
        !gone.ok && gone.err.contains("does not exist or is not yours"),
        "{}",
        gone.err
    );

    // Space of files that were written within a reservation and deleted is reserved again, when the files are removed.
    assert!(
        cluster
            .run(&["stage", "reserve", "40MiB", "--path", "/a"])
            .ok
    );
    cluster.sh("head -c 30M /dev/zero > a/large");
    wait("it is used", || {
        reservations(&cluster)[0]["used"] == 30 << 20
    });
    cluster.sh("rm a/large");
    wait("its space is reserved again", || {
        reservations(&cluster)[0]["used"] == 0
    });
    cluster.restart_node(2, &[]);
    cluster.wait_for_nodes(3);
    wait("it ends with the tier", || {
        reservations(&cluster).is_empty()
    });
    cluster.sh("sha256sum --quiet -c sums; echo new > a/new");
}

/// The example for Slurm, with a stand-in for `scontrol`: inputs are staged with the rights of the job's user, and
/// outputs are stored.
#[test]
fn slurm_example_stages_in_and_out_with_rights_of_user() {
    let Some(cluster) = configured(&["--stage-out-after", "1h"], &[]) else {
        return;
    };
    let bin = cluster.path("bin");
    std::fs::create_dir(&bin).unwrap();
    let write = |name: &str, text: String| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(bin.join(name), text).unwrap();
        std::fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    };
    std::fs::set_permissions(
        cluster.path(""),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    write(
        "tidemill",
        format!("#!/bin/sh\nexec {:?} \"$@\"\n", cluster.tidemill()),
    );
    let job = |lines: &str| {
        write(
            "scontrol",
            format!("#!/bin/sh\ncat <<'E'\n#!/bin/sh\n{lines}\nE\n"),
        )
    };
    let burst = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/slurm/burst.sh");
    let run = |when: &str, user: &str| {
        cluster.try_sh(&format!(
            "PATH={}:$PATH SLURM_JOB_ID=7 SLURM_JOB_USER={user} {burst} {when}",
            bin.display()
        ))
    };
    cluster.sh("mkdir in run; echo in > in/f; chmod 700 in");
    cluster.run(&["stage", "out", "/in", "--evict", "--wait"]);
    job("#SBATCH -N 1\n#TM stage /in\n#TM drain /run/%j\n./simulate");
    // If a user may not read the job's inputs, the job does not begin.
    let refused = run("prolog", "nobody");
    assert!(
        !refused.ok && refused.err.contains("/in"),
        "{}",
        refused.err
    );
    let staged = run("prolog", "root");
    assert!(staged.ok, "{}{}", staged.out, staged.err);
    assert!(nodes(&cluster, "/in/f").contains(&2));
    cluster.sh("mkdir run/7; echo out > run/7/out");
    assert!(run("epilog", "root").ok);
    assert_eq!(nodes(&cluster, "/run/7/out").len(), 2);
    job("#TM release /run/%j");
    assert!(run("epilog", "root").ok);
    assert_eq!(nodes(&cluster, "/run/7/out").len(), 1);
    // Space is reserved before the job begins, and is free for all users after it; a job that does not begin keeps no space.
    cluster.sh("chmod 700 in");
    job("#TM reserve 1MiB /run/%j/new\n#TM stage /nowhere");
    let refused = run("prolog", "root");
    assert!(!refused.ok, "{}", refused.out);
    let reservations = || cluster.json(&["stage", "reservations"]);
    assert_eq!(reservations(), serde_json::json!([]));
    job("#TM reserve 1MiB /run/%j/new");
    let reserved = run("prolog", "root");
    assert!(reserved.ok, "{}{}", reserved.out, reserved.err);
    assert_eq!(reservations()[0]["directory"], "/run/7/new");
    assert!(run("epilog", "root").ok);
    assert_eq!(reservations(), serde_json::json!([]));
    job("#TM steal /run");
    let refused = run("prolog", "root");
    assert!(
        !refused.ok && refused.err.contains("steal"),
        "{}",
        refused.err
    );
    assert!(!run("sometimes", "root").ok);
}

/// A node belongs to the tier of its last start, whatever tier it was in before. The tier may pass on files for
/// which it has no space.
#[test]
fn restarted_node_changes_tier_and_full_tier_passes_files_on() {
    let Some(mut cluster) = configured(
        &["--stage-out-after", "1h", "--burst-full", "capacity"],
        &["--capacity", "64MiB"],
    ) else {
        return;
    };
    cluster.sh("echo a > a; echo b > b");
    assert_eq!(nodes(&cluster, "/a"), [2]);
    // The node stores now: its files count, and none is staged out from it.
    cluster.restart_node(2, &[]);
    cluster.wait_for_nodes(3);
    let status = cluster.json(&["status"]);
    assert_eq!(status["nodes"][2]["tier"], "capacity");
    cluster.run(&["stage", "out", "/a", "--wait"]);
    assert_eq!(places(&cluster, "/a"), [(2, "current".to_owned())]);
    // The node is in the tier again: its files are staged out.
    cluster.restart_node(2, &["--tier", "burst", "--capacity", "64MiB"]);
    cluster.wait_for_nodes(3);
    cluster.run(&["stage", "out", "/", "--wait", "--evict"]);
    for path in ["/a", "/b"] {
        let there = nodes(&cluster, path);
        assert!(there.len() == 1 && there != [2], "{path} {there:?}");
    }
    assert_eq!(cluster.sh("cat a b"), "a\nb\n");
    // Files that do not fit are stored at once, without waiting.
    cluster.sh("for i in $(seq 24); do head -c 8M /dev/urandom > f$i; done; sha256sum f* > sums; sha256sum --quiet -c sums");
    let passed = (1..=24).filter(|i| !nodes(&cluster, &format!("/f{i}")).contains(&2));
    assert!(passed.count() > 0);
}

/// `tidemill up` starts a node of the tier and a node with a backend, and the next `up` knows both.
#[test]
fn up_restarts_node_of_burst_tier_and_backend() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let tidemill = |args: &[&str]| {
        let args = [&["--dir", dir], args].concat();
        crate::cluster::printed(
            std::process::Command::new(env!("CARGO_BIN_EXE_tidemill"))
                .args(args)
                .output()
                .unwrap(),
        )
    };
    let fast = directory.path().join("fast disk");
    let fast = fast.to_str().unwrap();
    let backend = format!("file://{dir}/backend");
    let all = ["up", "--nodes", "1", "--no-mount", "--burst", fast];
    let up = [&all[..], &["--backend", &backend]].concat();
    let missing = tidemill(&up);
    assert!(
        !missing.ok && missing.err.contains("--backend"),
        "{}",
        missing.err
    );
    std::fs::create_dir(directory.path().join("backend")).unwrap();
    let up = tidemill(&up);
    std::fs::write(directory.path().join("f"), "burst").unwrap();
    let put = tidemill(&["put", &format!("{dir}/f"), "/f"]);
    let down = tidemill(&["down"]);
    let again = tidemill(&["up", "--no-mount"]);
    let read = tidemill(&["cat", "/f"]);
    let layout = tidemill(&["--json", "stat", "/f"]);
    let elsewhere = tidemill(&["up", "--no-mount", "--burst", "/somewhere/else"]);
    assert!(again.ok, "{}", again.err);
    let other = tidemill(&["up", "--no-mount", "--backend", "file:///tmp"]);
    let staged_out = tidemill(&["stage", "out", "/", "--evict", "--wait"]);
    let gone = std::fs::read_to_string(directory.path().join("backend/f")).unwrap_or_default();
    let down_again = tidemill(&["down"]);
    assert!(staged_out.ok && gone == "burst", "{}{gone}", staged_out.err);
    assert!(!other.ok && other.err.contains(&backend), "{}", other.err);
    assert!(
        up.ok && put.ok && down.ok && again.ok,
        "{}{}{}",
        up.err,
        put.err,
        again.err
    );
    assert_eq!(read.out, "burst");
    let layout: Value = serde_json::from_str(&layout.out).unwrap();
    assert_eq!(layout["parts"][0]["replicas"][0]["node"], 998, "{layout}");
    assert!(
        !elsewhere.ok && elsewhere.err.contains("fast disk"),
        "{}",
        elsewhere.err
    );
    assert!(down_again.ok);
}
