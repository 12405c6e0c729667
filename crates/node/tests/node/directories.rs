//! Tests of a directory as one output: permitted content, resulting objects, and clean-up after a crash of the node or a hostile kernel.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use tidemill_model::directory::{DEPTH_MAX, FILES_MAX};
use tidemill_node::RunningNode;
use tidemill_wire::v1;

/// First object id for the directory's files in these tests.
const DIRECTORY: u64 = 0x10_0000;

async fn node() -> (tempfile::TempDir, FakeServer, RunningNode, Connection) {
    node_with(b"input").await
}

fn label(id: u64, script: &str) -> v1::Label {
    program_label(id, "sh", &["-c", script])
        .input("in", 1, 1)
        .output("out/cube/", DIRECTORY)
}

/// Returns names, objects and sizes of the files in an outcome's directory.
fn files(outcome: &v1::LabelOutcome) -> Vec<(String, u64, u64)> {
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    let within = outcome.sealed.iter().filter(|one| !one.name.is_empty());
    within
        .map(|one| (one.name.clone(), one.object - DIRECTORY, one.size))
        .collect()
}

/// Returns the number of the node's objects, without its status object.
fn objects(directory: &std::path::Path) -> usize {
    let inner = std::fs::read_dir(directory.join("objects")).unwrap();
    let all: usize = inner
        .map(|one| std::fs::read_dir(one.unwrap().path()).unwrap().count())
        .sum();
    all - 1
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_directory_output_are_sealed_with_other_outputs() {
    let (directory, _server, node, mut connection) = node().await;
    let script = "cd out/cube; mkdir -p a/b empty; echo 0 > a/b/0.0; printf '{}' > .zattrs; cp ../../in z; ln z a/copy; \
                  chmod 0 z a/b; cd ../..; echo other > other";
    connection.labels(&[label(1, script).output("other", 7)]);
    let outcome = connection.finished(1).await;
    let expected = [
        (".zattrs", 1, 2),
        ("a/b/0.0", 2, 2),
        ("a/copy", 3, 5),
        ("z", 4, 5),
    ];
    let expected = expected.map(|(name, object, size)| (name.to_owned(), object, size));
    assert_eq!(files(&outcome), expected);
    assert_eq!(outcome.sealed[4].object, 7);
    assert_eq!(outcome.written_bytes, 20);
    assert_eq!(get(&node, DIRECTORY + 2).await, b"0\n");
    assert_eq!(get(&node, DIRECTORY + 3).await, b"input");
    // The directory itself is no object. The input, the files of the directory and the other output are.
    assert_eq!(objects(directory.path()), 6);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_directory_output_fails_task_and_leaves_no_objects() {
    let (directory, _server, node, mut connection) = node().await;
    let deep = "d/".repeat(DEPTH_MAX + 1);
    let long = "x".repeat(250);
    let cases = [
        (
            "true".to_owned(),
            "wrote no file into its output \"out/cube/\"",
        ),
        ("mkdir out/cube/a".to_owned(), "wrote no file"),
        (
            "rmdir out/cube; echo x > out/cube".to_owned(),
            "is not a directory any more",
        ),
        (
            "rmdir out/cube; ln -s /etc out/cube".to_owned(),
            "is not a directory any more",
        ),
        (
            "echo x > out/cube/a; ln -s /etc/passwd out/cube/l".to_owned(),
            "\"out/cube/l\", which the kernel wrote, is neither",
        ),
        (
            "echo x > out/cube/a; mkfifo out/cube/p".to_owned(),
            "is neither a plain file nor a directory",
        ),
        (
            "echo x > out/cube/a; echo x > \"out/cube/$(printf '\\377')\"".to_owned(),
            "a name that is not UTF-8",
        ),
        (
            format!("mkdir -p out/cube/{deep}; echo x > out/cube/{deep}x"),
            "nested directories",
        ),
        (
            format!("cd out/cube; seq 1 {} | xargs touch", FILES_MAX + 1),
            "more than 10000 files",
        ),
        (
            format!(
                "cd out/cube; mkdir {long}; cd {long}; seq -f '{long}%.0f' 1 9000 | xargs touch"
            ),
            "the names in the output \"out/cube/\" are too long",
        ),
        // Each name becomes a file, so one file with many names exceeds the limit.
        (
            "cd out/cube; head -c 600000 /dev/zero > a; for i in 1 2 3; do ln a $i; done"
                .to_owned(),
            "more than the limit of 1000000 bytes",
        ),
    ];
    for (id, (script, message)) in (1..).zip(&cases) {
        let mut label = label(id, script).output("other", 7);
        analyse(&mut label).args[1].push_str("; echo x > other");
        let limits = analyse(&mut label);
        limits.output_bytes_max = if id == 11 { 1_000_000 } else { 1 << 30 };
        connection.labels(&[label]);
        let outcome = connection.finished(id).await;
        let failure = failure(&outcome);
        assert!(
            failure.message.contains(message),
            "{script}: {}",
            failure.message
        );
        let kind = failure.kind.as_str();
        assert!(matches!(kind, "missing-output" | "output-limit"), "{kind}");
        assert_eq!(objects(directory.path()), 1, "{script}");
    }
    node.stop().await;
}

/// The node ends after it has taken one of several files of a directory. The files that it has taken are removed.
#[tokio::test(flavor = "multi_thread")]
async fn directory_output_files_of_first_run_are_removed_after_rerun() {
    let (directory, mut server, node, mut connection) = node().await;
    connection.labels(&[label(1, "sleep 100")]);
    connection.running(1).await;
    drop(connection);
    node.stop().await;
    for object in DIRECTORY + 1..DIRECTORY + 5 {
        let path = tidemill_model::id::ObjectId(object).relative_path();
        std::fs::write(directory.path().join(path), "of the first run").unwrap();
    }
    assert_eq!(objects(directory.path()), 5);
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let connection = server.welcomed().await;
    assert_eq!(objects(directory.path()), 1);
    connection.abort(1);
    node.stop().await;
}

/// The node keeps no file of a directory that exceeds its capacity.
#[tokio::test(flavor = "multi_thread")]
async fn directory_output_over_capacity_releases_all_its_space() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let mut small = config(1, directory.path(), &server);
    small.capacity_bytes = Some(50_000);
    let node = RunningNode::start(small).await.unwrap();
    let mut connection = server.welcomed().await;
    put(&node, 1, b"input").await;
    let fill = |files| {
        format!(
            "cd out/cube; for i in $(seq {files}); do head -c 10000 /dev/zero > $i; done; cd ../..; cat in > other"
        )
    };
    connection.labels(&[label(1, &fill(6)).output("other", 7)]);
    let failed = connection.finished(1).await;
    assert_eq!(failure(&failed).kind, "device", "{failed:?}");
    assert_eq!(objects(directory.path()), 1);
    // A second label with the same ids finds the whole space free.
    connection.labels(&[label(2, &fill(4)).output("other", 7)]);
    assert_eq!(files(&connection.finished(2).await).len(), 4);
    node.stop().await;
}
