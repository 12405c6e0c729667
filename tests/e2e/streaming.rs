//! Tests tasks that read the output of other running tasks of their job.

use crate::cluster::{Cluster, Options, wait};
use serde_json::Value;

/// Starts a node with `cores` cores, and makes a directory whose files let its tasks continue.
fn start(cores: u32) -> Option<(Cluster, tempfile::TempDir)> {
    use std::os::unix::fs::PermissionsExt as _;
    let gates = tempfile::tempdir().unwrap();
    std::fs::set_permissions(gates.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let cluster = Cluster::with(Options {
        nodes: 1,
        cores,
        node_args: vec![
            "--intermediate-memory".into(),
            "64MiB".into(),
            "--task-dirs".into(),
            gates.path().display().to_string(),
        ],
        ..Options::default()
    })?;
    cluster.sh("mkdir w");
    Some((cluster, gates))
}

/// Returns a task that makes `NAME`, and a task that makes `NAME.out` from it as it is written.
fn pair(name: &str, make: &str, read: &str) -> String {
    format!(
        r#"{{ name = "{name}"; kernel = "/bin/sh"; args = ["-c", "{make}"]; output = ["{name}"]; stdout = "{name}"; }},
           {{ name = "{name}.read"; kernel = "/bin/sh"; args = ["-c", "{read}"]; input = ["{name}"]; stdin = "{name}";
              streaming = ["{name}"]; output = ["{name}.out"]; stdout = "{name}.out"; }}"#
    )
}

fn job(gates: &tempfile::TempDir, all: &str, tasks: &[String]) -> String {
    let gates = gates.path().display();
    let tasks = tasks.join(",\n").replace('%', &gates.to_string());
    format!(
        "name = \"j\"; workdir = \"/w\"; cache = false; directories = [\"{gates}\"]; {all} tasks = ( {tasks} );"
    )
}

const READ: &str = "while read -r line; do echo got $line; done";

/// Returns a command that prints the first line, and the second after the gate opens.
fn two(gate: &str) -> String {
    format!("echo one; until [ -e %/{gate} ]; do sleep 0.05; done; echo two")
}

/// Waits until a reader has written a line, which no other process sees yet.
fn until_read(cluster: &Cluster, line: &str) {
    let run = cluster.node_directory(0).join("run");
    let find = format!("find {run:?} -type f -exec grep -qsx 'got {line}' {{}} \\; -print");
    wait(line, || !cluster.try_sh(&find).out.is_empty());
}

fn open(gates: &tempfile::TempDir, gate: &str) {
    std::fs::write(gates.path().join(gate), "").unwrap();
}

fn task<'a>(job: &'a Value, name: &str) -> &'a Value {
    let mut tasks = job["tasks"].as_array().unwrap().iter();
    tasks.find(|task| task["name"] == name).unwrap()
}

/// Output is read at once, whichever daemon is killed in between, and the result equals the result of the whole input.
/// Tries that fail in the middle leave nothing, and are no failure of the reader.
#[test]
fn task_reads_output_of_running_task() {
    let Some((mut cluster, gates)) = start(2) else {
        return;
    };
    let both = "got one\ngot two\n";
    let id = cluster.submit(&job(&gates, "", &[pair("a", &two("a"), READ)]));
    until_read(&cluster, "one");
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(1);
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.wait_for_nodes(1);
    until_read(&cluster, "one");
    open(&gates, "a");
    cluster.done(id);
    assert_eq!(cluster.sh("cat w/a.out"), both);
    let explained = cluster.run(&["job", "explain", &id.to_string()]).out;
    assert!(explained.contains("(streaming)"), "{explained}");
    assert!(
        explained.contains("1 input while the task that made it ran"),
        "{explained}"
    );
    let lineage = cluster.run(&["lineage", "show", "/w/a.out"]).out;
    assert!(lineage.contains("/w/a"), "{lineage}");

    // The task fails in the middle until the test allows it to succeed.
    let make = "echo one; until [ -e %/b ]; do sleep 0.05; done; [ -e %/c ] || exit 7; echo two";
    let id = cluster.submit(&job(
        &gates,
        "retries = 100; intermediate = \"memory\";",
        &[pair("b", make, READ)],
    ));
    until_read(&cluster, "one");
    open(&gates, "b");
    wait("it fails", || {
        task(&cluster.job(id), "b")["tries"].as_u64() >= Some(2)
    });
    assert!(!cluster.at("w/b.out").exists());
    open(&gates, "c");
    let done = cluster.done(id);
    assert_eq!(cluster.sh("cat w/b.out"), both);
    assert_eq!(task(&done, "b.read")["tries"], 1);

    // The reader cannot read a streaming input: it runs again, and reports this.
    let read = "[ -f c ] || exit 3; cat";
    let id = cluster.submit(&job(&gates, "retries = 0;", &[pair("c", &two("d"), read)]));
    wait("both run", || {
        let job = cluster.job(id);
        ["c", "c.read"].map(|name| task(&job, name)["state"] == "running") == [true; 2]
    });
    open(&gates, "d");
    cluster.done(id);
    assert_eq!(cluster.sh("cat w/c.out"), "one\ntwo\n");
    let printed = cluster.run(&["job", "logs", &id.to_string()]).out;
    assert!(printed.contains("leave this input out"), "{printed}");

    // The task fails permanently.
    let make = "echo one; sleep 0.3; exit 7";
    let id = cluster.submit(&job(&gates, "retries = 0;", &[pair("d", make, READ)]));
    let ended = cluster.ended(id);
    assert_eq!(task(&ended, "d")["state"], "failed");
    assert_eq!(task(&ended, "d.read")["state"], "cancelled");
    assert!(!cluster.at("w/d.out").exists());
    assert!(cluster.run(&["cluster", "fsck", "--age", "0s"]).ok);
}

/// Programs that cannot read a pipe, or do not read all of it, give the same result as without it. No task waits for a
/// missing core.
#[test]
fn streaming_result_is_same_for_any_reader_and_node() {
    // One core is not enough for two tasks.
    for cores in [2, 1] {
        let Some((cluster, gates)) = start(cores) else {
            return;
        };
        let long = "seq 300000";
        let over =
            "printf 'head body'; sleep 0.3; printf HEAD | dd of=over conv=notrunc 2> /dev/null";
        let chain = pair("chain2", "true", "grep 77").replace("\"chain2\"", "\"chain.out\"");
        let whole = format!("cores = {cores}; input =");
        let tasks = [
            pair("early", long, "head -n 1"),
            pair("over", over, "cat"),
            pair("file", long, "[ -f file ] || exit 3; cat"),
            pair("whole", long, "cat").replace("input =", &whole),
            pair("chain", long, "grep 7"),
            chain.split_once("},").unwrap().1.to_owned(),
        ];
        let text = job(&gates, "retries = 0;", &tasks);
        let id = cluster.submit(&text);
        let done = cluster.done(id);
        cluster.sh(
            "cd w; echo 1 | cmp - early.out; printf 'HEAD body' | cmp - over.out; cmp file file.out; cmp whole whole.out; \
             seq 300000 | grep 7 | cmp - chain.out; seq 300000 | grep 77 | cmp - chain2.out",
        );
        assert_eq!(task(&done, "file.read")["tries"], 1);
        let explained = cluster.run(&["job", "explain", &id.to_string()]).out;
        let streamed = explained.contains("while the task that made it ran\n");
        assert!(cores > 1 || !streamed, "{explained}");

        let wrong = text.replace("streaming = [\"early\"]", "streaming = [\"erly\"]");
        let printed = cluster.try_submit(&wrong);
        let why = "\"streaming\" is \"erly\"";
        assert!(!printed.ok && printed.err.contains(why), "{}", printed.err);
    }
}
