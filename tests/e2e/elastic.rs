//! Tests nodes that are suspended while idle: their files are available all the time, and each access waits until the node has
//! resumed.

use crate::array::{Array, Options, said, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;

/// Starts an array whose server has these settings. All processes communicate as if each were on a host of its own.
fn start(settings: &str) -> Option<(tempfile::TempDir, Array)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidemill.toml");
    std::fs::write(&file, settings).unwrap();
    let array = Array::with(Options {
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
    Some((folder, array))
}

fn node(array: &Array, id: usize) -> Value {
    array.json(&["status"])["nodes"][id].clone()
}

fn is_suspended(array: &Array, id: usize) -> bool {
    let shown = node(array, id);
    shown["sleep"]["suspended"] == true && shown["up"] == false
}

fn suspend(array: &Array, id: usize) {
    let number = id.to_string();
    wait("the node has nothing to do", || {
        array.run(&["node", "suspend", &number]).ok
    });
    assert!(is_suspended(array, id), "{:#}", node(array, id));
}

fn put(array: &Array, node: usize, path: &str) {
    let local = array.path("local");
    std::fs::write(&local, format!("what is in {path}\n")).unwrap();
    let (node, local) = (node.to_string(), local.display().to_string());
    let said = array.run(&["put", "--node", &node, &local, path]);
    assert!(said.ok, "{}{}", said.out, said.err);
}

fn cat(array: &Array, path: &str) {
    let said = array.run(&["cat", path]);
    assert_eq!(said.out, format!("what is in {path}\n"), "{}", said.err);
}

/// Checks that the energy of a job with one task is the same for the task and the job, and is not called measured.
fn check_told(array: &Array, job: u64) {
    let job = job.to_string();
    let told = array.json(&["report", &job])["energy"].clone();
    assert_eq!(
        (&told["runs"], &told["runs_unknown"]),
        (&1.into(), &0.into())
    );
    assert!(told["by"].as_str().unwrap().contains("reckoned"), "{told}");
    assert_eq!(array.json(&["jobs", &job])["energy"], told);
    // There may be several decisions: the last one has the energy.
    let explained = array.json(&["explain", &job]);
    let last = explained["decisions"].as_array().unwrap().last();
    assert_eq!(last.unwrap()["energy"], told, "{explained:#}");
    assert!(
        array
            .run(&["explain", &job])
            .out
            .contains("J above idle (reckoned")
    );
}

/// Clients, the mount and jobs read and write files whose only copy is on a suspended node: each access wakes the
/// node. Access to other files does not. A server that was killed knows the suspended nodes.
#[test]
fn read_or_write_wakes_the_suspended_node() {
    let Some((_folder, mut array)) = start("") else {
        return;
    };
    put(&array, 0, "/a");
    put(&array, 1, "/b");
    suspend(&array, 0);
    cat(&array, "/b");
    array.sh("echo new > new");
    assert_eq!(
        array.json(&["layout", "/new"])["parts"][0]["copies"][0]["node"],
        1
    );
    assert!(is_suspended(&array, 0));
    assert!(array.run(&["status"]).out.contains("suspended"));
    cat(&array, "/a");
    let shown = node(&array, 0);
    assert_eq!(
        (&shown["up"], &shown["sleep"]["wakes"]),
        (&true.into(), &1.into())
    );
    assert!(shown["sleep"]["wake_ns"].as_u64().unwrap() > 0);

    suspend(&array, 0);
    array.kill_server();
    array.start_server();
    assert!(is_suspended(&array, 0), "{:#}", node(&array, 0));
    assert_eq!(array.sh("cat a"), "what is in /a\n");
    assert_eq!(node(&array, 0)["sleep"]["wakes"], 2);

    suspend(&array, 0);
    let job = array.submit(
        r#"name = "j"; workdir = "/"; tasks = ( { name = "t"; kernel = "/bin/cat"; args = ["a"];
            input = ["a"]; output = ["out"]; stdout = "out"; } );"#,
    );
    array.done(job);
    assert_eq!(array.sh("cat out"), "what is in /a\n");
    // No node has a meter here.
    wait("what it has drawn is counted", || {
        let energy = node(&array, 0)["energy"].clone();
        energy["by"] == "reckoned by configured power" && energy["joules"].as_f64() > Some(0.0)
    });
    check_told(&array, job);

    suspend(&array, 0);
    put(&array, 0, "/c");
    // A writer on the node keeps it awake.
    array.sh("mkdir d; setfattr -n user.tidemill.node -v 0 d");
    suspend(&array, 0);
    let mut file = std::fs::File::create(array.at("d/f")).unwrap();
    file.write_all(b"half").unwrap();
    let refused = array.run(&["node", "suspend", "0"]);
    assert!(
        !refused.ok && refused.err.contains("being written"),
        "{}",
        refused.err
    );
    drop(file);
    suspend(&array, 0);
    assert_eq!(array.sh("cat d/f"), "half");
}

/// The process of a suspended node was killed, so it does not wake. That is reported, the node counts as offline,
/// and its files are available after its start. A suspended node does not count as lost, however long it is
/// suspended.
#[test]
fn node_that_never_wakes_is_reported_suspended_is_not() {
    let Some((_folder, mut array)) = start("[server]\ncopies = 2\nrepair-after = \"1s\"\n") else {
        return;
    };
    array.sh("echo text > f");
    wait("the file has its copies", || {
        array.json(&["status"])["copies"]["short"] == 0
    });
    // A file that was just written may still be scrubbed there, which wakes the node.
    wait("it sleeps for longer than nodes may be away", || {
        suspend(&array, 0);
        std::thread::sleep(std::time::Duration::from_secs(4));
        is_suspended(&array, 0)
    });
    let copies = &array.json(&["status"])["copies"];
    assert_eq!(copies["lost_nodes"], serde_json::json!([]), "{copies}");
    assert_eq!(array.sh("cat f"), "text\n");
    assert!(is_suspended(&array, 0), "there is a copy on the other");
    array.kill_node(0);
    assert!(is_suspended(&array, 0));
    let woken = array.run(&["node", "wake", "0"]);
    assert!(!woken.ok && woken.err.contains("start it"), "{}", woken.err);
    let not_woken = || {
        let said = said(
            array
                .tidemill()
                .args(["--json", "health"])
                .output()
                .unwrap(),
        );
        said.code == Some(3) && said.out.contains("node-not-woken")
    };
    wait("its state is told", not_woken);
    wait("it counts as away", || !is_suspended(&array, 0));
    assert_eq!(array.sh("cat f"), "text\n");
    wait("what it had is missed", || {
        array.json(&["status"])["copies"]["lost_nodes"] == serde_json::json!([0])
    });
    array.start_node(0);
    array.wait_for_nodes(2);
    wait("it is not lost", || {
        array.json(&["status"])["copies"]["short"] == 0
    });
    suspend(&array, 0);
    // A signal ends the waiting process, like that of a node that is awake.
    array.signal_node(0, Signal::TERM);
    array.kill_node(0);
    array.start_node(0);
    array.wait_for_nodes(2);
}

/// Idle nodes are suspended automatically by the configured commands, and woken by them.
#[test]
fn idle_nodes_are_suspended_and_woken_by_commands() {
    let scripts = tempfile::tempdir().unwrap();
    let at = |name: &str| scripts.path().join(name).display().to_string();
    let settings = format!(
        "[server]\nsuspend-after = \"2s\"\n\n[server.nodes.1]\nsuspend = \"touch {}\"\nwake = \"sh {}\"\n",
        at("suspended"),
        at("wake")
    );
    // The first attempt fails, and prints more than the server keeps.
    let wake = format!(
        "if test -e {failed}; then touch {woken}; else touch {failed}; yes no | head -c 10000000 >&2; exit 1; fi",
        failed = at("failed"),
        woken = at("woken")
    );
    std::fs::write(at("wake"), wake).unwrap();
    let Some((_folder, array)) = start(&settings) else {
        return;
    };
    put(&array, 1, "/b");
    wait("both are suspended", || {
        is_suspended(&array, 0) && is_suspended(&array, 1)
    });
    wait("the command was run", || {
        std::fs::exists(at("suspended")).unwrap()
    });
    cat(&array, "/b");
    assert!(std::fs::exists(at("failed")).unwrap());
    // New files wake a node if none is awake.
    wait("both are suspended", || {
        is_suspended(&array, 0) && is_suspended(&array, 1)
    });
    array.sh("echo text > f; cat f");
    assert!(array.run(&["check", "--age", "0"]).out.len() < 100_000);
}
