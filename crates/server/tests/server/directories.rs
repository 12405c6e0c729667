//! Directories as outputs of tasks, with nodes whose protocol messages the test sends.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cluster::{FakeNode, Running, ended, failure, root, stat, submit, success, write_file};
use tidemill_wire::v1::{self, State, name_op::Op};

const SCRIPT: &str = r#"
name = "cube"; workdir = "/w";
tasks = (
  { name = "make"; kernel = "k.so"; type = "native"; input = ["in"]; output = ["log", "out/cube.zarr/"]; },
  { name = "read"; kernel = "k.so"; type = "native"; args = ["{inputs}"]; input = ["out/cube.zarr/", "log"]; output = ["sum"]; }
);
"#;

async fn mkdir(client: &tidemill_client::Server, path: &str, uid: u32) {
    let create = v1::Create {
        name: path.as_bytes().to_vec(),
        kind: v1::Kind::Directory.into(),
        mode: 0o755,
        uid,
        gid: uid,
        ..v1::Create::default()
    };
    client.one(&root(), Op::Create(create)).await.unwrap();
}

async fn started(dir: &std::path::Path) -> (Running, FakeNode, tidemill_client::Server) {
    let running = Running::start(dir).await;
    let node = running.node(0).await;
    let client = running.client().await;
    mkdir(&client, "/w", 1000).await;
    write_file(&client, "/w/in", 100, 1000).await;
    write_file(&client, "/w/k.so", 100, 1000).await;
    (running, node, client)
}

/// Returns a successful outcome with these files in the directory that is the task's second output.
fn filled(analyse: &v1::Analyse, files: &[&str]) -> v1::LabelOutcome {
    let mut outcome = success(analyse, 5);
    outcome.sealed.truncate(1);
    let first = analyse.outputs[1].object;
    assert_eq!(analyse.outputs[1].name, "out/cube.zarr/");
    for (object, name) in (first + 1..).zip(files) {
        outcome.sealed.push(v1::SealedObject {
            object,
            size: 7,
            name: (*name).into(),
        });
    }
    outcome
}

fn names(analyse: &v1::Analyse) -> Vec<&str> {
    let inputs = analyse.inputs.iter();
    inputs.map(|input| input.name.as_str()).collect()
}

/// Returns the next label, which must run the task with this name.
async fn next(node: &mut FakeNode, task: &str) -> (u64, v1::Analyse) {
    let mut labels = node.labels().await;
    assert_eq!(labels.len(), 1, "{labels:?}");
    let (label, analyse) = labels.remove(0);
    assert_eq!(analyse.name, task);
    (label, analyse)
}

const FILES: [&str; 3] = [".zattrs", "0/0.0", "0/0.1"];

#[tokio::test(flavor = "multi_thread")]
async fn directory_output_is_published_and_read_by_next_task_completely() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = started(dir.path()).await;
    let reply = submit(&client, 1000, SCRIPT).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    // The reader is not sent together with its producer, since its inputs are still unknown.
    let (label, analyse) = next(&mut node, "make").await;
    let inside = r#"name = "x"; workdir = "/w"; tasks = ( { name = "x"; kernel = "k.so"; type = "native"; output = ["out/cube.zarr/x"]; } );"#;
    let other = submit(&client, 1000, inside).await;
    assert!(
        other.errors[0].contains("is also an output of job"),
        "{:?}",
        other.errors
    );
    node.finished(label, filled(&analyse, &FILES)).await;
    let (label, reader) = next(&mut node, "read").await;
    assert_eq!(reader.args, ["out/cube.zarr", "log"]);
    let whole = FILES.map(|file| format!("out/cube.zarr/{file}"));
    assert_eq!(names(&reader)[..3], whole);
    let first = analyse.outputs[1].object;
    let within = &reader.inputs[..3];
    let objects: Vec<u64> = within.iter().map(|input| input.object - first).collect();
    assert_eq!(objects, [1, 2, 3]);
    assert_eq!(stat(&client, "/w/sum").await, None);
    node.finished(label, success(&reader, 5)).await;
    node.acknowledged(vec![label]).await;
    assert_eq!(
        ended(&client, reply.job).await.state,
        i32::from(State::Done)
    );
    let file = stat(&client, "/w/out/cube.zarr/0/0.1").await.unwrap();
    assert_eq!((file.uid, file.size, file.mode), (1000, 7, 0o644));
    assert_eq!(file.ino, analyse.outputs[1].ino + 3);
    assert_eq!(stat(&client, "/w/out/cube.zarr/0").await.unwrap().uid, 1000);
    let question = v1::LineageRequest {
        credentials: Some(crate::cluster::user(1000)),
        path: b"/w/sum".to_vec(),
        up: true,
        ..v1::LineageRequest::default()
    };
    let lineage = client.lineage().query(question).await.unwrap().into_inner();
    let made: Vec<_> = lineage.runs[0]
        .outputs
        .iter()
        .map(|one| one.name.clone())
        .collect();
    assert_eq!(made[1..], whole);
    assert_eq!(lineage.runs[1].inputs.len(), 5);
    // A repeated submission finds cached results, file by file.
    let again = SCRIPT.replace("tasks =", "replace = true; tasks =");
    let reply = submit(&client, 1000, &again).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let (_, analyse) = next(&mut node, "make").await;
    let cached_result = analyse.cached_result.unwrap();
    let offered: Vec<_> = cached_result
        .outputs
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(offered[1..], whole);
    assert_eq!(cached_result.outputs[3].object, first + 3);
}

async fn dry_run(client: &tidemill_client::Server, script: &str) -> v1::SubmitReply {
    let request = v1::SubmitRequest {
        credentials: Some(crate::cluster::user(1000)),
        script: script.into(),
        dry_run: true,
        replace: true,
        ..v1::SubmitRequest::default()
    };
    client.jobs().submit(request).await.unwrap().into_inner()
}

/// A dry run resolves a directory input as the job would: the task that writes it, and the files in it.
#[tokio::test(flavor = "multi_thread")]
async fn dry_run_resolves_files_in_directory_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = started(dir.path()).await;
    let planned = dry_run(&client, SCRIPT).await.planned.unwrap();
    assert_eq!(planned.tasks[0].output_sizes, Vec::<u64>::new());
    let reply = submit(&client, 1000, SCRIPT).await;
    let (label, analyse) = next(&mut node, "make").await;
    let refused = dry_run(&client, SCRIPT).await.errors;
    assert!(
        refused[1].contains("is also an output of job"),
        "{refused:?}"
    );
    node.finished(label, filled(&analyse, &FILES)).await;
    let (label, reader) = next(&mut node, "read").await;
    node.finished(label, success(&reader, 5)).await;
    ended(&client, reply.job).await;
    let planned = dry_run(&client, SCRIPT).await.planned.unwrap();
    assert_eq!(planned.tasks[0].output_sizes, [5, 21]);
    // The reader is recognised by the files that it would get.
    let tasks = planned.job.unwrap().tasks;
    let reused: Vec<u64> = tasks.iter().map(|task| task.reused_job).collect();
    assert_eq!(reused, [reply.job, reply.job]);
}

/// All files of a directory output are published, or no file is, whatever the node reports and whatever blocks the output's path.
#[tokio::test(flavor = "multi_thread")]
async fn directory_output_is_not_replaced_unless_job_sets_replace() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = started(dir.path()).await;
    for hostile in [
        &["../in"][..],
        &["a/../../in"],
        &["b", "a"],
        &["a", "a"],
        &["/in"],
        &[""],
        &[],
    ] {
        let reply = submit(&client, 1000, SCRIPT).await;
        let (label, analyse) = next(&mut node, "make").await;
        node.finished(label, filled(&analyse, hostile)).await;
        let failed = ended(&client, reply.job).await;
        assert_eq!(failed.state, i32::from(State::Failed));
        assert!(
            failed.tasks[0]
                .error
                .contains("did not report all of its outputs")
        );
    }
    assert_eq!(stat(&client, "/w/out").await, None);
    // A file appears in the directory while the task runs.
    let reply = submit(&client, 1000, SCRIPT).await;
    let (label, analyse) = next(&mut node, "make").await;
    let kept = write_file(&client, "/w/out/cube.zarr/mine", 3, 1000).await;
    node.finished(label, filled(&analyse, &FILES)).await;
    let failed = ended(&client, reply.job).await;
    let error = &failed.tasks[0].error;
    assert!(
        error.contains("output /w/out/cube.zarr/ is not empty"),
        "{error}"
    );
    assert_eq!(stat(&client, "/w/out/cube.zarr/.zattrs").await, None);
    let refused = submit(&client, 1000, SCRIPT).await;
    assert!(
        refused.errors[0].contains("/w/out/cube.zarr/\" exists already"),
        "{:?}",
        refused.errors
    );
    // A replaced directory is removed at the moment at which the new one appears.
    let replacing = SCRIPT.replace("tasks =", "replace = true; tasks =");
    write_file(&client, "/w/out/cube.zarr/deep/er/still", 3, 1000).await;
    let reply = submit(&client, 1000, &replacing).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let (label, _) = next(&mut node, "make").await;
    node.finished(label, failure("exit", "no luck")).await;
    let (label, analyse) = next(&mut node, "make").await;
    let mine = stat(&client, "/w/out/cube.zarr/mine").await.unwrap();
    assert_eq!(mine.object, kept);
    node.finished(label, filled(&analyse, &FILES)).await;
    next(&mut node, "read").await;
    for gone in ["mine", "deep/er/still", "deep"] {
        let path = format!("/w/out/cube.zarr/{gone}");
        assert_eq!(stat(&client, &path).await, None, "{path}");
    }
    assert!(stat(&client, "/w/out/cube.zarr/.zattrs").await.is_some());
}

/// A file of another user in the existing directory prevents its replacement.
#[tokio::test(flavor = "multi_thread")]
async fn directory_with_unremovable_file_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, _node, client) = started(dir.path()).await;
    write_file(&client, "/w/out/cube.zarr/mine", 3, 1000).await;
    mkdir(&client, "/w/out/cube.zarr/theirs", 2000).await;
    write_file(&client, "/w/out/cube.zarr/theirs/file", 3, 2000).await;
    let replacing = SCRIPT.replace("tasks =", "replace = true; tasks =");
    let refused = submit(&client, 1000, &replacing).await;
    assert!(
        refused.errors[0].contains("output /w/out/cube.zarr/ can't be made"),
        "{:?}",
        refused.errors
    );
}

/// A server that is killed between the two tasks of a job knows the files of the directory after its restart.
#[tokio::test(flavor = "multi_thread")]
async fn directory_output_of_killed_server_is_read_by_next_task() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut node, client) = started(dir.path()).await;
    let script = SCRIPT.replace("tasks =", "lifetime = \"used\"; tasks =");
    let reply = submit(&client, 1000, &script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let (label, analyse) = next(&mut node, "make").await;
    node.finished(label, filled(&analyse, &FILES)).await;
    let (label, _) = next(&mut node, "read").await;
    // Its node must not disconnect first: the server might have the time to reschedule the label.
    running.crash().await;
    drop((node, client));
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut node = FakeNode::attach(&client, 0, Vec::new()).await;
    let (again, reader) = next(&mut node, "read").await;
    assert_eq!((again, names(&reader).len()), (label, 5));
    // A retry creates a new label. The label before may have arrived twice.
    node.finished(again, failure("exit", "no luck")).await;
    let (label, reader) = loop {
        let (label, reader) = next(&mut node, "read").await;
        if label != again {
            break (label, reader);
        }
    };
    assert_eq!(names(&reader)[2], "out/cube.zarr/0/0.1");
    node.finished(label, success(&reader, 5)).await;
    assert_eq!(
        ended(&client, reply.job).await.state,
        i32::from(State::Done)
    );
    // Nobody reads the directory any more: all its files are removed.
    let removed = node.removed_of(4).await;
    let first = analyse.outputs[1].object;
    assert_eq!(
        removed,
        [analyse.outputs[0].object, first + 1, first + 2, first + 3]
    );
    assert_eq!(stat(&client, "/w/out/cube.zarr/0/0.1").await, None);
}
