//! Tests workspaces, directories with a limited lifetime.

use crate::cluster::{Cluster, OtherMount, wait};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::Duration;

const OTHER_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

/// Starts a cluster with a node of the memory tier, node 2, that the mount knows.
fn start() -> Option<Cluster> {
    let mut cluster = Cluster::start()?;
    cluster.add_node(&["--tier", "memory", "--capacity", "128MiB"]);
    cluster.run(&["workspace", "create", "probe"]);
    wait("the mount knows the node of the memory tier", || {
        cluster.sh("echo x > workspaces/probe/f");
        node_of(&cluster, "/workspaces/probe/f") == 2
    });
    Some(cluster)
}

fn node_of(cluster: &Cluster, path: &str) -> u64 {
    let layout = cluster.json(&["stat", path]);
    layout["parts"][0]["replicas"][0]["node"].as_u64().unwrap()
}

fn members(cluster: &Cluster, workspace: &str) -> usize {
    let listed = cluster.json(&["workspace", "list"]);
    let mut listed = listed.as_array().unwrap().iter();
    let workspace = listed.find(|one| one["workspace"] == workspace).unwrap();
    workspace["members"].as_array().unwrap().len()
}

/// A workspace is a directory in memory of its creator. It outlives every process of the cluster, and is removed whole, with its
/// objects.
#[test]
fn workspace_is_memory_directory_of_owner_and_is_removed_whole() {
    let Some(mut cluster) = start() else { return };
    for wrong in ["", "..", ".hidden", "a/b", "ü", &"a".repeat(65)] {
        let printed = cluster.run(&["workspace", "create", wrong]);
        assert!(
            !printed.ok && printed.err.contains("can't be the name of a workspace"),
            "{wrong}: {}",
            printed.err
        );
    }
    let made = cluster.json(&["workspace", "create", "r"]);
    assert_eq!(
        (&made["path"], &made["mode"]),
        (&"/workspaces/r".into(), &"700".into())
    );
    let again = cluster.run(&["workspace", "create", "r"]);
    assert!(!again.ok && again.err.contains("already"), "{}", again.err);
    cluster.sh("mkdir -p workspaces/r/below; echo x > workspaces/r/below/f; dd if=/dev/zero of=workspaces/r/large bs=1M count=30");
    assert_eq!(node_of(&cluster, "/workspaces/r/below/f"), 2);
    // Other users neither see it nor change any other entry, with the command line, too.
    for script in [
        "cat workspaces/r/below/f",
        "mkdir workspaces/mine",
        "mv workspaces/r workspaces/s",
        "rmdir workspaces/probe",
    ] {
        assert!(
            !cluster.try_sh(&format!("{OTHER_USER} {script}")).ok,
            "{script}"
        );
    }
    let tidemill = format!("{OTHER_USER} {:?}", cluster.tidemill());
    let get = "get r below/f --wait --timeout 1s";
    for command in ["delete r", "join r", "leave r 1", get] {
        let printed = cluster.try_sh(&format!("{tidemill} workspace {command}"));
        assert!(!printed.ok, "{command}: {}{}", printed.out, printed.err);
    }
    let theirs = cluster.sh(&format!(
        "{tidemill} workspace create theirs >/dev/null; {tidemill} --json workspace list"
    ));
    let theirs: serde_json::Value = serde_json::from_str(&theirs).unwrap();
    assert_eq!(
        (&theirs[0]["workspace"], &theirs[0]["uid"]),
        (&"theirs".into(), &65534.into())
    );
    assert_eq!(theirs.as_array().unwrap().len(), 1, "{theirs}");
    // The server keeps the workspace, like all names.
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(3);
    let listed = cluster.json(&["workspace", "list"]);
    assert_eq!(
        (&listed[1]["workspace"], &listed[1]["files"]),
        (&"r".into(), &2.into())
    );
    let open = std::fs::File::open(cluster.at("workspaces/r/below/f")).unwrap();
    assert!(cluster.run(&["workspace", "delete", "r"]).ok);
    wait("it is not there", || !cluster.at("workspaces/r").exists());
    // A reader with an open file of the workspace can continue to read.
    let mut read = [0; 2];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"x\n");
    let unknown = cluster.run(&["workspace", "delete", "r"]);
    assert!(
        !unknown.ok && unknown.err.contains("workspace r does not exist"),
        "{}",
        unknown.err
    );
    wait("its objects are removed", || {
        let status = cluster.json(&["status"]);
        let free = status["nodes"][2]["free_bytes"].as_u64();
        free > Some(110 << 20) && cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
}

/// A quota holds in the middle of a write, wherever the bytes are, and for the command line.
#[test]
fn workspace_takes_at_most_its_quota() {
    let Some(cluster) = start() else { return };
    cluster.run(&["workspace", "create", "m", "--quota", "8MiB"]);
    cluster.run(&["workspace", "create", "d", "--quota", "8MiB"]);
    cluster.sh("setfattr -n user.tidemill.tier -v disk workspaces/d");
    let local = cluster.path("local");
    std::fs::write(&local, vec![7; 9_000_000]).unwrap();
    for workspace in ["m", "d"] {
        for script in [
            "head -c 9000000 /dev/zero > workspaces/WORKSPACE/a",
            "truncate -s 9000000 workspaces/WORKSPACE/b",
            "fallocate -l 9000000 workspaces/WORKSPACE/c",
        ] {
            let script = script.replace("WORKSPACE", workspace);
            let printed = cluster.try_sh(&script);
            let full = printed.err.to_lowercase().contains("quota exceeded");
            assert!(!printed.ok && full, "{script}: {}", printed.err);
        }
        cluster.sh(&format!("rm -f workspaces/{workspace}/*"));
        let put = cluster.run(&[
            "put",
            local.to_str().unwrap(),
            &format!("/workspaces/{workspace}/put"),
        ]);
        assert!(
            !put.ok && put.err.contains("workspace is full"),
            "{}",
            put.err
        );
        assert_eq!(cluster.json(&["status"])["unsealed"], serde_json::json!([]));
        wait("removed files are no longer counted", || {
            cluster
                .try_sh(&format!(
                    "head -c 8388608 /dev/zero > workspaces/{workspace}/fits"
                ))
                .ok
        });
        wait("no file can be created in it", || {
            let more = cluster.try_sh(&format!(
                "rm -f workspaces/{workspace}/more; echo > workspaces/{workspace}/more"
            ));
            !more.ok && more.err.contains("quota exceeded")
        });
        // An existing file can be rewritten up to its previous length, and other workspaces have their own quota.
        cluster.sh(&format!(
            "head -c 8388608 /dev/urandom > workspaces/{workspace}/fits; echo > workspaces/probe/more"
        ));
        assert!(
            cluster
                .at(&format!("workspaces/{workspace}/fits"))
                .metadata()
                .unwrap()
                .len()
                == 8 << 20
        );
        cluster.sh(&format!("rm workspaces/{workspace}/fits"));
    }
    assert_eq!(node_of(&cluster, "/workspaces/probe/more"), 2);
    // Another mount cannot write the same amount again within the quota.
    wait("removed files are no longer counted", || {
        cluster
            .try_sh("head -c 4000000 /dev/zero > workspaces/d/f")
            .ok
    });
    let other = OtherMount::start(&cluster, "other");
    let mut file = std::fs::File::create(cluster.at("workspaces/d/f")).unwrap();
    file.write_all(b"one").unwrap();
    let second = std::fs::File::options()
        .write(true)
        .open(other.path.join("workspaces/d/f"));
    let error = second.unwrap_err().raw_os_error();
    assert_eq!(error, Some(rustix::io::Errno::TXTBSY.raw_os_error()));
    drop(file);
    wait("it can be written when it is closed", || {
        std::fs::write(other.path.join("workspaces/d/f"), "two").is_ok()
    });
    // No part of the refused files is left.
    assert!(cluster.run(&["cluster", "fsck", "--age", "0s"]).ok);
}

/// Starts a get in its own process.
fn get(cluster: &Cluster, key: &str, wait: &str) -> Child {
    let mut command = cluster.tidemill();
    command.args(["workspace", "get", "r", key, "--wait", "--timeout", wait]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn got(child: Child) -> Vec<u8> {
    let out = child.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{why}");
    out.stdout
}

/// A get waits for a put as long as it was asked to, whether the file is created, moved or created under another name.
#[test]
fn workspace_get_waits_for_put() {
    let Some(mut cluster) = start() else { return };
    cluster.run(&["workspace", "create", "r"]);
    cluster.sh("ln -s target workspaces/r/link");
    let waits = ["later", "moved", "link", "by/task", "put"].map(|key| get(&cluster, key, "60s"));
    let never = get(&cluster, "never", "1s").wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&never.stderr);
    assert!(
        !never.status.success() && why.contains("the file did not appear"),
        "{why}"
    );
    // They continue to wait when the server is online again.
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(3);
    // A file that is still being written does not count.
    let mut file = std::fs::File::create(cluster.at("workspaces/r/later")).unwrap();
    file.write_all(b"half ").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    file.write_all(b"whole").unwrap();
    drop(file);
    cluster.sh("echo other > workspaces/r/x; mv workspaces/r/x workspaces/r/moved; echo linked > workspaces/r/target");
    let job = cluster.submit(
        r#"name = "j"; workdir = "/workspaces/r"; tasks = (
            { name = "t"; kernel = "/bin/cat"; args = ["moved"]; input = ["moved"]; output = ["by/task"]; stdout = "by/task"; } );"#,
    );
    cluster.done(job);
    let local = cluster.path("local");
    std::fs::write(&local, "put").unwrap();
    assert!(
        cluster
            .run(&["put", local.to_str().unwrap(), "/workspaces/r/put"])
            .ok
    );
    let all = waits.map(got);
    let expected: [&[u8]; 5] = [b"half whole", b"other\n", b"linked\n", b"other\n", b"put"];
    assert_eq!(all, expected);
    // A get does not wait indefinitely for a key that cannot appear.
    let directory = cluster.run(&["workspace", "get", "r", "by", "--wait", "--timeout", "60s"]);
    assert!(
        !directory.ok && directory.err.contains("is not a file"),
        "{}",
        directory.err
    );
}

/// A workspace ends with its time, and with the last of its lease holders, whether the lease holder leaves, ends or is killed. It does
/// not end because the server is offline.
#[test]
fn workspace_ends_with_its_time_and_last_member() {
    let Some(mut cluster) = start() else { return };
    cluster.run(&["workspace", "create", "short", "--ttl", "1s"]);
    cluster.run(&["workspace", "create", "r"]);
    cluster.sh("echo x > workspaces/r/f");
    // One lease holder stays until it leaves, one as long as its program runs.
    let member = cluster.json(&["workspace", "join", "r"])["member"].to_string();
    let ran = cluster.run(&["workspace", "join", "r", "--", "/bin/sh", "-c", "exit 7"]);
    assert_eq!(ran.code, Some(7));
    let missing = cluster.run(&["workspace", "join", "r", "--", "/no/such/program"]);
    assert!(!missing.ok && missing.err.contains("/no/such/program"));
    assert!(
        cluster.at("workspaces/r/f").exists(),
        "there is another lease holder"
    );
    assert_eq!(members(&cluster, "r"), 1);
    let nobody = cluster.run(&["workspace", "leave", "r", "99"]);
    assert!(
        !nobody.ok && nobody.err.contains("no lease holder 99"),
        "{}",
        nobody.err
    );
    // Ending the lease holder's process ends its program, too, and the lease holder leaves.
    let mut command = cluster.tidemill();
    let mut child = command
        .args(["workspace", "join", "r", "--", "sleep", "1000"])
        .spawn()
        .unwrap();
    wait("it has joined", || members(&cluster, "r") == 2);
    assert!(cluster.run(&["workspace", "leave", "r", &member]).ok);
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(3);
    assert!(cluster.at("workspaces/r/f").exists());
    assert_eq!(members(&cluster, "r"), 1);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    wait("both workspaces have ended", || {
        !cluster.at("workspaces/r").exists() && !cluster.at("workspaces/short").exists()
    });
}
