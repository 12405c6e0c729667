//! Tests nodes that are suspended while idle: their files are available all the time, and each access waits until the node has
//! resumed.

use crate::cluster::{Cluster, Options, printed, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;

/// Starts a cluster whose server has these settings. All processes communicate as if each were on a host of its own.
fn start(settings: &str) -> Option<(tempfile::TempDir, Cluster)> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tidemill.toml");
    std::fs::write(&file, settings).unwrap();
    let cluster = Cluster::with(Options {
        remote: true,
        node_args: [
            "--busy-power=100 W",
            "--idle-power=50 W",
            "--suspended-power=5 W",
        ]
        .map(str::to_owned)
        .into(),
        flags: vec!["--config".into(), file.display().to_string()],
        ..Options::default()
    })?;
    Some((directory, cluster))
}

fn node(cluster: &Cluster, id: usize) -> Value {
    cluster.json(&["status"])["nodes"][id].clone()
}

fn is_suspended(cluster: &Cluster, id: usize) -> bool {
    let shown = node(cluster, id);
    shown["suspension"]["suspended"] == true && shown["up"] == false
}

fn suspend(cluster: &Cluster, id: usize) {
    let number = id.to_string();
    wait("the node has nothing to do", || {
        cluster.run(&["node", "suspend", &number]).ok
    });
    assert!(is_suspended(cluster, id), "{:#}", node(cluster, id));
}

fn put(cluster: &Cluster, node: usize, path: &str) {
    let local = cluster.path("local");
    std::fs::write(&local, format!("what is in {path}\n")).unwrap();
    let (node, local) = (node.to_string(), local.display().to_string());
    let printed = cluster.run(&["put", "--node", &node, &local, path]);
    assert!(printed.ok, "{}{}", printed.out, printed.err);
}

fn cat(cluster: &Cluster, path: &str) {
    let printed = cluster.run(&["cat", path]);
    assert_eq!(
        printed.out,
        format!("what is in {path}\n"),
        "{}",
        printed.err
    );
}

/// Checks that the energy of a job with one task is the same for the task and the job, and is not called measured.
fn check_reported(cluster: &Cluster, job: u64) {
    let job = job.to_string();
    let reported = cluster.json(&["job", "report", &job])["energy"].clone();
    assert_eq!(
        (&reported["runs"], &reported["runs_unknown"]),
        (&1.into(), &0.into())
    );
    assert!(
        reported["by"].as_str().unwrap().contains("estimated"),
        "{reported}"
    );
    assert_eq!(cluster.json(&["job", "show", &job])["energy"], reported);
    // There may be several decisions: the last one has the energy.
    let explained = cluster.json(&["job", "explain", &job]);
    let last = explained["decisions"].as_array().unwrap().last();
    assert_eq!(last.unwrap()["energy"], reported, "{explained:#}");
    assert!(
        cluster
            .run(&["job", "explain", &job])
            .out
            .contains("J above idle (estimated")
    );
}

/// Clients, the mount and jobs read and write files whose only replica is on a suspended node: each access resumes the
/// node. Access to other files does not. A server that was killed knows the suspended nodes.
#[test]
fn suspended_node_resumes_on_read_or_write() {
    let Some((_directory, mut cluster)) = start("") else {
        return;
    };
    put(&cluster, 0, "/a");
    put(&cluster, 1, "/b");
    suspend(&cluster, 0);
    cat(&cluster, "/b");
    cluster.sh("echo new > new");
    assert_eq!(
        cluster.json(&["stat", "/new"])["parts"][0]["replicas"][0]["node"],
        1
    );
    assert!(is_suspended(&cluster, 0));
    assert!(cluster.run(&["status"]).out.contains("suspended"));
    cat(&cluster, "/a");
    let shown = node(&cluster, 0);
    assert_eq!(
        (&shown["up"], &shown["suspension"]["resumes"]),
        (&true.into(), &1.into())
    );
    assert!(shown["suspension"]["resume_ns"].as_u64().unwrap() > 0);

    suspend(&cluster, 0);
    cluster.kill_server();
    cluster.start_server();
    assert!(is_suspended(&cluster, 0), "{:#}", node(&cluster, 0));
    assert_eq!(cluster.sh("cat a"), "what is in /a\n");
    assert_eq!(node(&cluster, 0)["suspension"]["resumes"], 2);

    suspend(&cluster, 0);
    let job = cluster.submit(
        r#"name = "j"; workdir = "/"; tasks = ( { name = "t"; kernel = "/bin/cat"; args = ["a"];
            input = ["a"]; output = ["out"]; stdout = "out"; } );"#,
    );
    cluster.done(job);
    assert_eq!(cluster.sh("cat out"), "what is in /a\n");
    // No node has a meter here.
    wait("its energy is counted", || {
        let energy = node(&cluster, 0)["energy"].clone();
        energy["by"] == "estimated by configured power" && energy["joules"].as_f64() > Some(0.0)
    });
    check_reported(&cluster, job);

    suspend(&cluster, 0);
    put(&cluster, 0, "/c");
    // A writer on the node keeps it active.
    cluster.sh("mkdir d; setfattr -n user.tidemill.node -v 0 d");
    suspend(&cluster, 0);
    let mut file = std::fs::File::create(cluster.at("d/f")).unwrap();
    file.write_all(b"half").unwrap();
    let refused = cluster.run(&["node", "suspend", "0"]);
    assert!(
        !refused.ok && refused.err.contains("being written"),
        "{}",
        refused.err
    );
    drop(file);
    suspend(&cluster, 0);
    assert_eq!(cluster.sh("cat d/f"), "half");
}

/// The process of a suspended node was killed, so it does not resume. That is reported, the node counts as offline,
/// and its files are available after its start. A suspended node does not count as lost, however long it is
/// suspended.
#[test]
fn node_that_never_resumes_counts_as_offline_but_suspended_does_not() {
    let Some((_directory, mut cluster)) = start("[server]\nreplicas = 2\nrepair-after = \"1s\"\n")
    else {
        return;
    };
    cluster.sh("echo text > f");
    wait("the file has its replicas", || {
        cluster.json(&["status"])["replicas"]["short"] == 0
    });
    // A file that was just written may still be scrubbed there, which resumes the node.
    wait(
        "it is suspended for longer than nodes may be offline",
        || {
            suspend(&cluster, 0);
            std::thread::sleep(std::time::Duration::from_secs(4));
            is_suspended(&cluster, 0)
        },
    );
    let replicas = &cluster.json(&["status"])["replicas"];
    assert_eq!(
        replicas["failed_nodes"],
        serde_json::json!([]),
        "{replicas}"
    );
    assert_eq!(cluster.sh("cat f"), "text\n");
    assert!(is_suspended(&cluster, 0), "there is a replica on the other");
    cluster.kill_node(0);
    assert!(is_suspended(&cluster, 0));
    let resumed = cluster.run(&["node", "resume", "0"]);
    assert!(
        !resumed.ok && resumed.err.contains("start the node"),
        "{}",
        resumed.err
    );
    let not_resumed = || {
        let printed = printed(
            cluster
                .tidemill()
                .args(["--json", "cluster", "health"])
                .output()
                .unwrap(),
        );
        printed.code == Some(3) && printed.out.contains("node-not-resumed")
    };
    wait("its state is reported", not_resumed);
    wait("it counts as offline", || !is_suspended(&cluster, 0));
    assert_eq!(cluster.sh("cat f"), "text\n");
    wait("its replicas are reported as missing", || {
        cluster.json(&["status"])["replicas"]["failed_nodes"] == serde_json::json!([0])
    });
    cluster.start_node(0);
    cluster.wait_for_nodes(2);
    wait("it is not lost", || {
        cluster.json(&["status"])["replicas"]["short"] == 0
    });
    suspend(&cluster, 0);
    // A signal ends the waiting process, like that of a node that is active.
    cluster.signal_node(0, Signal::TERM);
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.wait_for_nodes(2);
}

/// Idle nodes are suspended automatically by the configured commands, and resumed by them.
#[test]
fn idle_nodes_are_suspended_and_resumed_by_commands() {
    let scripts = tempfile::tempdir().unwrap();
    let at = |name: &str| scripts.path().join(name).display().to_string();
    let settings = format!(
        "[server]\nsuspend-after = \"2s\"\n\n[server.nodes.1]\nsuspend = \"touch {}\"\nresume = \"sh {}\"\n",
        at("suspended"),
        at("resume")
    );
    // The first attempt fails, and prints more than the server keeps.
    let resume = format!(
        "if test -e {failed}; then touch {resumed}; else touch {failed}; yes no | head -c 10000000 >&2; exit 1; fi",
        failed = at("failed"),
        resumed = at("resumed")
    );
    std::fs::write(at("resume"), resume).unwrap();
    let Some((_directory, cluster)) = start(&settings) else {
        return;
    };
    put(&cluster, 1, "/b");
    wait("both are suspended", || {
        is_suspended(&cluster, 0) && is_suspended(&cluster, 1)
    });
    wait("the command was run", || {
        std::fs::exists(at("suspended")).unwrap()
    });
    cat(&cluster, "/b");
    assert!(std::fs::exists(at("failed")).unwrap());
    // New files resume a node if none is active.
    wait("both are suspended", || {
        is_suspended(&cluster, 0) && is_suspended(&cluster, 1)
    });
    cluster.sh("echo text > f; cat f");
    assert!(cluster.run(&["cluster", "fsck", "--age", "0s"]).out.len() < 100_000);
}
