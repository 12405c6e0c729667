//! Jobs from the script to output names and lineage, with nodes whose protocol messages the test sends.
#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "tests")]

use crate::cluster::{
    FakeNode, Running, ended, failure, job, root, sealing, stat, submit, success, write_file,
};
use std::collections::BTreeSet;
use std::time::Duration;
use tidemill_wire::v1::{self, State, name_op::Op, to_node::Message as To};

const CHAIN: &str = r#"
name = "chain"; workdir = "/w";
tasks = (
  { name = "first"; kernel = "max"; input = ["in"]; output = ["mid"]; },
  { name = "second"; kernel = "min"; input = ["mid"]; output = ["out"]; }
);
"#;

/// Whether lineage shows this test the data of other users, which is true if the test runs as root.
fn may_read_all() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        crate::require::skip("data of other users is shown only to root");
    }
    root
}

async fn with_input(dir: &std::path::Path) -> (Running, FakeNode, tidemill_client::Server) {
    let running = Running::start(dir).await;
    let node = running.node(0).await;
    let client = running.client().await;
    mkdir(&client, "/w", 1000).await;
    write_file(&client, "/w/in", 100, 1000).await;
    (running, node, client)
}

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

async fn unlink(client: &tidemill_client::Server, parent: u64, name: &str) {
    let unlink = v1::Unlink {
        parent,
        name: name.as_bytes().to_vec(),
        directory: false,
        time: 0,
    };
    client.one(&root(), Op::Unlink(unlink)).await.unwrap();
}

async fn until(
    client: &tidemill_client::Server,
    id: u64,
    what: impl Fn(&v1::Job) -> bool,
) -> v1::Job {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let now = job(client, id).await;
        if what(&now) {
            return now;
        }
        assert!(std::time::Instant::now() < end, "{now:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_lineage_survives_renames_and_rewrites_of_its_files() {
    if !may_read_all() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_input(dir.path()).await;
    let input = stat(&client, "/w/in").await.unwrap().object;
    let worker = node.serve();
    let reply = submit(&client, 1000, CHAIN).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done));
    assert_eq!(done.tasks_by_state["done"], 2);
    assert_eq!(
        (done.tasks[0].kernel_hash.as_str(), done.tasks[0].end),
        ("hash", 30)
    );
    let out = stat(&client, "/w/out").await.unwrap();
    assert_eq!(
        (out.uid, out.mode, out.size, out.version),
        (1000, 0o644, 5, 1)
    );

    // A rename, and a new version of the input, do not change the recorded origin of the output.
    let parent = stat(&client, "/w").await.unwrap().ino;
    let rename = v1::Rename {
        parent,
        name: b"out".to_vec(),
        new_parent: 1,
        new_name: b"moved".to_vec(),
        ..v1::Rename::default()
    };
    client.one(&root(), Op::Rename(rename)).await.unwrap();
    unlink(&client, parent, "in").await;
    let question = v1::LineageRequest {
        credentials: Some(crate::cluster::user(1000)),
        path: b"/moved".to_vec(),
        up: true,
        ..v1::LineageRequest::default()
    };
    let lineage = client.lineage().query(question).await.unwrap().into_inner();
    assert_eq!(lineage.object, out.object);
    let names: Vec<_> = lineage.runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
    assert_eq!(
        lineage.runs[0].inputs,
        [v1::NamedObject {
            name: "in".into(),
            object: input,
            selection: String::new(),
        }]
    );
    let of = |object| {
        lineage
            .versions
            .iter()
            .find(|version| version.object == object)
            .unwrap()
    };
    assert_eq!(
        (
            of(out.object).path.as_str(),
            of(out.object).current_path.as_str()
        ),
        ("/w/out", "/moved")
    );
    // The former path of another user's version is not shown.
    assert_eq!(
        (of(input).path.as_str(), of(input).current_path.as_str()),
        ("", "")
    );
    let down = v1::LineageRequest {
        object: input,
        down: true,
        depth: 1,
        ..v1::LineageRequest::default()
    };
    let down = client.lineage().query(down).await.unwrap().into_inner();
    assert_eq!(down.runs.len(), 1);
    let explained = v1::GetJobRequest {
        credentials: Some(root()),
        job: reply.job,
    };
    let explained = client
        .jobs()
        .explain(explained)
        .await
        .unwrap()
        .into_inner()
        .decisions;
    assert_eq!(
        explained
            .iter()
            .map(|d| d.name.as_str())
            .collect::<Vec<_>>(),
        ["first", "second"]
    );
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn job_waits_for_nodes_and_unwritten_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    mkdir(&client, "/w", 1000).await;
    let reply = submit(&client, 1000, CHAIN).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let waiting = until(&client, reply.job, |job| !job.tasks[0].awaited.is_empty()).await;
    assert_eq!(waiting.tasks[0].awaited, ["/w/in"]);
    let worker = running.node(3).await.serve();
    // The file is written by another user at another place. Files that the job's owner may not read do not count.
    write_file(&client, "/other", 9, 2000).await;
    let rename = |name: &str, new_parent: u64| v1::Rename {
        parent: 1,
        name: name.as_bytes().to_vec(),
        new_parent,
        new_name: b"in".to_vec(),
        ..v1::Rename::default()
    };
    let parent = stat(&client, "/w").await.unwrap().ino;
    client
        .one(&root(), Op::Rename(rename("other", parent)))
        .await
        .unwrap();
    write_file(&client, "/mine", 9, 1000).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(job(&client, reply.job).await.tasks[0].awaited, ["/w/in"]);
    let object = stat(&client, "/mine").await.unwrap().object;
    client
        .one(&root(), Op::Rename(rename("mine", parent)))
        .await
        .unwrap();
    assert_eq!(
        ended(&client, reply.job).await.state,
        i32::from(State::Done)
    );
    let inputs = v1::LineageRequest {
        path: b"/w/mid".to_vec(),
        up: true,
        ..v1::LineageRequest::default()
    };
    let runs = client
        .lineage()
        .query(inputs)
        .await
        .unwrap()
        .into_inner()
        .runs;
    assert_eq!(runs[0].inputs[0].object, object);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_jobs_continue_after_server_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut node, client) = with_input(dir.path()).await;
    let reply = submit(&client, 1000, CHAIN).await;
    let labels = node.labels().await;
    let (first, analyse) = labels[0].clone();
    node.started(first).await;
    until(&client, reply.job, |job| {
        job.tasks[0].state == i32::from(State::Running)
    })
    .await;
    drop((node, client));
    running.crash().await;

    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let known: Vec<u64> = labels.iter().map(|(label, _)| *label).collect();
    let mut node = FakeNode::attach(&client, 0, known.clone()).await;
    // Only the node knows that the task has started.
    assert_eq!(
        job(&client, reply.job).await.tasks[0].state,
        i32::from(State::Sent)
    );
    node.started(first).await;
    until(&client, reply.job, |job| {
        job.tasks[0].state == i32::from(State::Running)
            && job.tasks_by_state.get("running") == Some(&1)
            && job.tasks_by_state.values().sum::<u32>() == job.tasks_total
    })
    .await;
    // The label ended while the server was down. The node reports the end until it is acknowledged.
    node.finished(first, success(&analyse, 5)).await;
    node.finished(first, success(&analyse, 5)).await;
    node.acknowledged(vec![first]).await;
    assert!(stat(&client, "/w/mid").await.is_some());
    let second = match labels.get(1) {
        Some(label) => label.clone(),
        None => node.labels().await.remove(0),
    };
    drop((node, client));
    running.crash().await;

    // A node that lost the label receives it again.
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut node = FakeNode::attach(&client, 0, Vec::new()).await;
    let again = node.labels().await.remove(0);
    assert_eq!(again.0, second.0, "the same label, not a new try");
    assert_eq!(again.1.inputs[0].object, analyse.outputs[0].object);
    node.finished(again.0, success(&again.1, 6)).await;
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done));
    assert_eq!(stat(&client, "/w/out").await.unwrap().size, 6);
    assert_eq!(
        done.tasks.iter().map(|task| task.tries).collect::<Vec<_>>(),
        [1, 1]
    );
}

/// The server stores the job, but without a message to the driver the job would wait for the next start of the server.
#[tokio::test(flavor = "multi_thread")]
async fn job_is_scheduled_after_submitter_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = with_input(dir.path()).await;
    let script = CHAIN.replace("kernel = \"max\"", "kernel = \"wc\"");
    let submitting = tokio::spawn({
        let client = client.clone();
        async move { submit(&client, 1000, &script).await }
    });
    let To::FindPrograms(question) = node.next().await else {
        panic!("no question");
    };
    submitting.abort();
    submitting.await.unwrap_err();
    // The server has noticed the disconnection when it answers a later request.
    job_count(&client).await;
    node.answer(question).await;
    let labels = node.labels().await;
    assert_eq!(labels[0].1.name, "first");
    assert_eq!(job_count(&client).await, 1);
}

async fn job_count(client: &tidemill_client::Server) -> usize {
    let all = v1::ListJobsRequest {
        credentials: Some(root()),
        everyone: true,
        ..v1::ListJobsRequest::default()
    };
    let listed = client.jobs().list(all).await.unwrap();
    listed.into_inner().jobs.len()
}

/// The dispatcher places a task again if its label is not in the server's database, and the node aborts the unknown label.
#[tokio::test(flavor = "multi_thread")]
async fn task_without_stored_label_is_placed_again_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut node, client) = with_input(dir.path()).await;
    let reply = submit(&client, 1000, CHAIN).await;
    let (old, first) = node.labels().await.remove(0);
    node.started(old).await;
    until(&client, reply.job, |job| {
        job.tasks[0].state() == State::Running
    })
    .await;
    running.stop().await;
    let database = rusqlite::Connection::open(dir.path().join("server.db")).unwrap();
    database.execute("DELETE FROM label", []).unwrap();
    drop(database);

    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut node = FakeNode::attach(&client, 0, vec![old]).await;
    let (mut aborted, mut placed) = (false, Vec::new());
    while !aborted || placed.is_empty() {
        match node.next().await {
            To::Abort(abort) => aborted |= abort.label == old,
            message @ To::Labels(_) => placed.extend(crate::cluster::analyses(message)),
            _ => {}
        }
    }
    assert_eq!(placed[0].1.task, first.task);
    for (label, analyse) in placed {
        assert_ne!(label, old);
        node.finished(label, success(&analyse, 5)).await;
    }
    let worker = node.serve();
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done));
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_ended_job_are_aborted_on_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut node, client) = with_input(dir.path()).await;
    let reply = submit(&client, 1000, CHAIN).await;
    let (label, analyse) = node.labels().await.remove(0);
    let get = v1::GetJobRequest {
        credentials: Some(crate::cluster::user(1000)),
        job: reply.job,
    };
    let cancelled = client.jobs().cancel(get).await.unwrap().into_inner();
    assert_eq!(cancelled.state, i32::from(State::Cancelled));
    loop {
        if let To::Abort(abort) = node.next().await {
            assert_eq!(abort.label, label);
            break;
        }
    }
    drop((node, client));
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut node = FakeNode::attach(&client, 0, vec![label]).await;
    assert!(matches!(node.next().await, To::Abort(abort) if abort.label == label));
    node.finished(label, success(&analyse, 5)).await;
    node.acknowledged(vec![label]).await;
    assert!(
        stat(&client, "/w/mid").await.is_none(),
        "a cancelled job creates no files"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_lost_node_run_on_another_node() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut first, client) = with_input(dir.path()).await;
    let script = r#"name = "j"; workdir = "/w"; policy = "round-robin";
        tasks = ({ name = "t"; kernel = "max"; output = ["o"]; input = []; });"#;
    let reply = submit(&client, 1000, script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let (label, _) = first.labels().await.remove(0);
    let worker = running.node(1).await.serve();
    drop(first);
    let done = ended(&client, reply.job).await;
    assert_eq!(
        (done.state, done.tasks[0].node),
        (i32::from(State::Done), 1)
    );
    // The node reconnects and reports that it ran the task, too. Nobody needs that result any more.
    let mut first = FakeNode::attach(&client, 0, vec![label]).await;
    assert!(matches!(first.next().await, To::Abort(abort) if abort.label == label));
    worker.abort();
}

fn drawing(watts_milli: u64, idle_milli: u64) -> v1::Node {
    v1::Node {
        watts_milli,
        idle_milli,
        ..crate::cluster::status(0)
    }
}

/// The clocks of kernels differ by years. Servers and nodes restart, and nodes change their power, report twice and report wrong values.
#[tokio::test(flavor = "multi_thread")]
async fn energy_of_run_is_counted_once_as_reported_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(dir.path()).await;
    let mut client = running.client().await;
    let mut node = FakeNode::attach_as(&client, drawing(100_000, 50_000), vec![]).await;
    mkdir(&client, "/w", 1000).await;
    write_file(&client, "/w/in", 100, 1000).await;
    let estimated = |microjoules, runs, unknown| v1::Estimated {
        microjoules,
        runs,
        unknown,
    };
    let most = tidemill_sched::elastic::RUN_MICROJOULES_MAX;
    let lie = i64::MAX.cast_unsigned();
    let mut known = BTreeSet::new();
    let second = 1_000_000_000;
    for (round, (draws, cpu_ns, last)) in [
        (
            drawing(200_000, 50_000),
            4 * second,
            estimated(300_000_000, 1, 0),
        ),
        (drawing(200_000, 0), 4 * second, estimated(0, 0, 1)),
        (drawing(u64::MAX / 2, 1), lie, estimated(most, 1, 0)),
    ]
    .into_iter()
    .enumerate()
    {
        let script = CHAIN.replace("out\"", &format!("out{round}\""));
        let script = script.replace("mid", &format!("mid{round}"));
        let reply = submit(&client, 1000, &script).await;
        let mut labels = Vec::new();
        while labels.len() < 2 {
            // A label that was sent before the server was stopped may arrive again.
            let come = node.labels().await.into_iter();
            labels.extend(come.filter(|(label, _)| known.insert(*label)));
        }
        let ran = |analyse: &v1::Analyse, cpu_ns| v1::LabelOutcome {
            cpu_ns,
            ..success(analyse, 5)
        };
        let (first, analyse) = &labels[0];
        for _ in 0..2 {
            node.finished(*first, ran(analyse, second)).await;
        }
        let before = until(&client, reply.job, |job| job.tasks[0].energy.is_some()).await;
        running.stop().await;
        running = Running::start(dir.path()).await;
        client = running.client().await;
        let (label, analyse) = &labels[1];
        node = FakeNode::attach_as(&client, draws, vec![*label]).await;
        node.finished(*label, ran(analyse, cpu_ns)).await;
        let done = ended(&client, reply.job).await;
        let (before, after) = (before.tasks[0].energy.unwrap(), done.tasks[0].energy);
        assert_eq!((Some(before), done.tasks[1].energy), (after, Some(last)));
        let sum = estimated(
            before.microjoules + last.microjoules,
            before.runs + last.runs,
            before.unknown + last.unknown,
        );
        assert_eq!(done.energy, Some(sum));
        if round == 0 {
            assert_eq!(before, estimated(25_000_000, 1, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_failure_is_reported_and_cancels_dependent_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = with_input(dir.path()).await;
    let reply = submit(&client, 1000, CHAIN).await;
    let (label, _) = node.labels().await.remove(0);
    node.finished(label, failure("timeout", "it ran out of time"))
        .await;
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Failed));
    assert_eq!(done.tasks[0].error, "it ran out of time");
    assert_eq!(done.tasks[0].stderr, "the end of its standard error");
    assert_eq!(done.tasks[1].state, i32::from(State::Cancelled));
    assert!(stat(&client, "/w/mid").await.is_none());
    let get = |uid| v1::GetJobRequest {
        credentials: Some(crate::cluster::user(uid)),
        job: reply.job,
    };
    let refused = client.jobs().logs(get(2000)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    let mut logs = client.jobs().logs(get(1000)).await.unwrap().into_inner();
    let first = logs.message().await.unwrap().unwrap();
    assert_eq!(first.name, "first");
    assert_eq!(first.stderr, "the end of its standard error");
    assert_eq!(logs.message().await.unwrap().unwrap().name, "second");
    assert!(logs.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn output_does_not_replace_file_created_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = with_input(dir.path()).await;
    let reply = submit(&client, 1000, CHAIN).await;
    let (label, analyse) = node.labels().await.remove(0);
    let theirs = write_file(&client, "/w/mid", 77, 1000).await;
    node.finished(label, success(&analyse, 5)).await;
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Failed));
    assert!(
        done.tasks[0].error.contains("output /w/mid exists"),
        "{}",
        done.tasks[0].error
    );
    assert_eq!(stat(&client, "/w/mid").await.unwrap().object, theirs);
    // The object that the task sealed is removed.
    assert_eq!(node.removed().await, [analyse.outputs[0].object]);
}

async fn dry_run(
    client: &tidemill_client::Server,
    script: &str,
    change: impl FnOnce(&mut v1::SubmitRequest),
) -> v1::SubmitReply {
    let mut request = v1::SubmitRequest {
        credentials: Some(crate::cluster::user(1000)),
        script: script.into(),
        source: "test.job".into(),
        dry_run: true,
        ..v1::SubmitRequest::default()
    };
    change(&mut request);
    client.jobs().submit(request).await.unwrap().into_inner()
}

async fn listed(client: &tidemill_client::Server, list: v1::ListJobsRequest) -> usize {
    let reply = client.jobs().list(list).await.unwrap();
    reply.into_inner().jobs.len()
}

async fn jobs(client: &tidemill_client::Server) -> usize {
    let list = v1::ListJobsRequest {
        credentials: Some(root()),
        everyone: true,
        ..v1::ListJobsRequest::default()
    };
    listed(client, list).await
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_returns_plan_of_job_and_stores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_input(dir.path()).await;
    let first = dry_run(&client, CHAIN, |_| {}).await;
    assert_eq!((first.job, &first.errors), (0, &Vec::new()));
    let planned = first.planned.unwrap();
    let job = planned.job.unwrap();
    assert_eq!(
        (job.name.as_str(), job.policy.as_str()),
        ("chain", "min-wait")
    );
    assert_eq!(job.tasks[1].inputs, ["/w/mid"]);
    assert!(job.tasks.iter().all(|task| task.reused_task == 0));
    // The task never ran, so the sizes of its outputs are unknown.
    assert!(
        planned
            .tasks
            .iter()
            .all(|task| task.output_sizes.is_empty())
    );
    let input = stat(&client, "/w/in").await.unwrap();
    let file = &planned.files[0];
    assert_eq!(
        (file.path.as_str(), file.size, file.object),
        ("/w/in", 100, input.object)
    );
    assert_eq!(planned.nodes.len(), 1);
    assert_eq!(jobs(&client).await, 0);
    assert_eq!(stat(&client, "/w/mid").await.map(|attr| attr.size), None);

    // The dry run claimed and counted nothing.
    let worker = node.serve();
    let reply = submit(&client, 1000, CHAIN).await;
    assert_eq!((reply.job, reply.errors), (1, Vec::new()));
    ended(&client, reply.job).await;
    // A dry run is refused for the same reasons as a submission.
    let refused = submit(&client, 1000, CHAIN).await.errors;
    assert!(refused[0].contains("/w/mid"), "{refused:?}");
    let dry = dry_run(&client, CHAIN, |_| {}).await;
    assert_eq!((dry.errors, dry.planned), (refused, None));

    let again = dry_run(&client, CHAIN, |request| request.replace = true).await;
    let planned = again.planned.unwrap();
    let tasks = planned.job.unwrap().tasks;
    let reused: Vec<u64> = tasks.iter().map(|task| task.reused_job).collect();
    assert_eq!(reused, [1, 1], "both results are cached");
    let recomputed = |request: &mut v1::SubmitRequest| {
        request.replace = true;
        request.no_cache = true;
    };
    let planned = dry_run(&client, CHAIN, recomputed).await.planned.unwrap();
    assert!(
        planned
            .job
            .unwrap()
            .tasks
            .iter()
            .all(|task| task.reused_task == 0)
    );
    assert!(
        planned
            .tasks
            .iter()
            .all(|task| task.output_sizes.len() == 1),
        "as they were before"
    );
    assert_eq!(jobs(&client).await, 1);
    assert_eq!(stat(&client, "/w/out").await.unwrap().version, 1);
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_reports_awaited_inputs_and_claims_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, _node, client) = with_input(dir.path()).await;
    let dry = dry_run(&client, WAITING, |_| {}).await;
    assert_eq!(
        (dry.awaited_total, dry.awaited[0].nearest.as_str()),
        (1, "/w/in")
    );
    let planned = dry.planned.unwrap();
    assert_eq!(planned.job.unwrap().tasks[0].awaited, ["/w/inn"]);
    let file = &planned.files[0];
    assert_eq!((file.path.as_str(), file.object), ("/w/inn", 0));
    let strict = dry_run(&client, WAITING, |request| request.strict = true).await;
    assert!(
        strict.errors[0].contains("did you mean \"/w/in\"?"),
        "{:?}",
        strict.errors
    );

    let first = submit(&client, 1000, WAITING).await;
    assert_eq!((first.job, first.errors), (1, Vec::new()));
    let taken = dry_run(&client, WAITING, |_| {}).await.errors;
    assert_eq!(taken, submit(&client, 1000, WAITING).await.errors);
    assert!(taken[0].contains("an output of job 1"), "{taken:?}");
    let other = dry_run(&client, WAITING, |request| {
        request.credentials = Some(crate::cluster::user(1001));
        request.script = WAITING.replace("[\"out\"]", "[\"theirs\"]");
    });
    let errors = other.await.errors;
    assert!(errors[0].contains("permission denied"), "{errors:?}");
}

/// Script of a job that waits for a file that no client writes.
const WAITING: &str = r#"
name = "waiting"; workdir = "/w";
tasks = ( { name = "only"; kernel = "max"; input = ["inn"]; output = ["out"]; } );
"#;

#[tokio::test(flavor = "multi_thread")]
async fn job_whose_output_another_job_writes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (running, node, client) = with_input(dir.path()).await;
    let first = submit(&client, 1000, WAITING).await;
    let waits = v1::AwaitedInput {
        path: "/w/inn".into(),
        task: "only".into(),
        nearest: "/w/in".into(),
    };
    assert_eq!((first.awaited, first.awaited_total), (vec![waits], 1));
    let now = job(&client, first.job).await;
    assert_eq!(
        (&*now.awaited, now.awaited_total),
        (&["/w/inn".to_owned()][..], 1)
    );
    let refused = [format!(
        "test.job:3:71: task \"only\": output \"/w/out\" is also an output of job {0}, which has not ended; \
         wait for it (`tidemill job watch {0}`), cancel it, or write to another name",
        first.job
    )];
    assert_eq!(submit(&client, 1000, WAITING).await.errors, refused);
    // The outputs of jobs are known after a restart, too.
    drop((node, client));
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    assert_eq!(submit(&client, 1000, WAITING).await.errors, refused);
    let get = v1::GetJobRequest {
        credentials: Some(root()),
        job: first.job,
    };
    client.jobs().cancel(get).await.unwrap();
    assert_eq!(submit(&client, 1000, WAITING).await.errors, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_job_script_is_refused_with_all_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_input(dir.path()).await;
    let worker = node.serve();
    let script = r#"name = "j"; workdir = "/w"; strict = true;
        tasks = (
          { name = "a"; kernel = "missing-program"; input = ["in"]; output = ["x"]; },
          { name = "b"; kernel = "max"; input = ["nothing"]; output = ["in"]; },
          { name = "c"; kernel = "echo"; input = ["in"]; output = ["z"]; }
        );"#;
    let errors = submit(&client, 1000, script).await.errors.join("\n");
    for part in [
        "test.job:3",
        "\"missing-program\" was not found",
        "nothing",
        "exists already",
    ] {
        assert!(errors.contains(part), "{part} is not in:\n{errors}");
    }
    assert!(!errors.contains("task \"c\""), "{errors}");
    // Another user may neither read the input nor write there.
    let errors = submit(&client, 2000, CHAIN).await.errors.join("\n");
    assert!(errors.contains("may not read"), "{errors}");
    let policy = CHAIN.replace("workdir", "policy = \"best\"; workdir");
    let errors = submit(&client, 1000, &policy).await.errors.join("\n");
    assert!(errors.contains("best"), "{errors}");
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_private_to_their_users() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, _node, client) = with_input(dir.path()).await;
    let id = submit(&client, 1000, CHAIN).await.job;
    let get = |uid| v1::GetJobRequest {
        credentials: Some(crate::cluster::user(uid)),
        job: id,
    };
    assert_eq!(
        client.jobs().get(get(2000)).await.unwrap_err().code(),
        tonic::Code::PermissionDenied
    );
    assert_eq!(
        client.jobs().cancel(get(2000)).await.unwrap_err().code(),
        tonic::Code::PermissionDenied
    );
    assert_eq!(
        client.jobs().get(get(1)).await.unwrap_err().code(),
        tonic::Code::PermissionDenied
    );
    client.jobs().get(get(1000)).await.unwrap();
    let list = v1::ListJobsRequest {
        credentials: Some(crate::cluster::user(2000)),
        ..v1::ListJobsRequest::default()
    };
    assert_eq!(listed(&client, list).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn successful_job_has_trace_for_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_input(dir.path()).await;
    let job = submit(&client, 1000, CHAIN).await.job;
    let request = |uid| v1::GetJobRequest {
        credentials: Some(crate::cluster::user(uid)),
        job,
    };
    let early = client.jobs().trace(request(1000)).await.unwrap_err();
    assert_eq!(early.code(), tonic::Code::FailedPrecondition);
    let worker = node.serve();
    ended(&client, job).await;
    let other = client.jobs().trace(request(2000)).await.unwrap_err();
    assert_eq!(other.code(), tonic::Code::PermissionDenied);
    let trace = client.jobs().trace(request(1000)).await.unwrap();
    let trace = trace.into_inner();
    let of = trace.job.unwrap();
    assert_eq!((of.policy.as_str(), of.tasks.len()), ("min-wait", 2));
    let file = v1::TracedFile {
        path: "/w/in".into(),
        size: 100,
        node: 0,
        object: trace.files[0].object,
        layout: None,
    };
    assert_eq!(trace.files, [file]);
    assert_eq!((trace.nodes.len(), trace.nodes[0].cores), (1, 2));
    for task in &trace.tasks {
        assert_eq!(task.kernel_kind, "builtin");
        assert_eq!(task.output_sizes, [5]);
        assert!(task.sent >= of.submitted, "{task:?}");
    }
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_outputs_are_removed_after_use_and_inputs_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = with_input(dir.path()).await;
    let script = CHAIN.replace(
        "output = [\"mid\"];",
        "output = [\"mid\"]; lifetime = \"used\";",
    );
    let reply = submit(&client, 1000, &script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let mut labels = node.labels().await;
    let (first, analyse) = labels.remove(0);
    // The input loses its name while the job runs: its bytes stay.
    let input = stat(&client, "/w/in").await.unwrap().object;
    let parent = stat(&client, "/w").await.unwrap().ino;
    unlink(&client, parent, "in").await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    node.finished(first, success(&analyse, 5)).await;
    let (second, analyse) = match labels.pop() {
        Some(label) => label,
        None => node.labels().await.remove(0),
    };
    assert_eq!(node.removals, [], "removed while needed");
    node.finished(second, success(&analyse, 6)).await;
    assert_eq!(
        ended(&client, reply.job).await.state,
        i32::from(State::Done)
    );
    let removed = node.removed_of(2).await;
    assert_eq!(removed, [input, analyse.inputs[0].object]);
    assert!(stat(&client, "/w/mid").await.is_none());
    assert!(stat(&client, "/w/out").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_node_missing_after_server_restart_are_rescheduled() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut node, client) = with_input(dir.path()).await;
    let script = r#"name = "j"; workdir = "/w";
        tasks = ({ name = "t"; kernel = "max"; output = ["o"]; input = []; });"#;
    let reply = submit(&client, 1000, script).await;
    node.labels().await;
    until(&client, reply.job, |job| {
        job.tasks[0].state == i32::from(State::Sent)
    })
    .await;
    drop((node, client));
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let status = client.status().await.unwrap();
    assert_eq!(
        status
            .nodes
            .iter()
            .map(|e| (e.node, e.up))
            .collect::<Vec<_>>(),
        [(0, false)]
    );
    let worker = running.node(1).await.serve();
    let done = ended(&client, reply.job).await;
    assert_eq!(
        (done.state, done.tasks[0].node),
        (i32::from(State::Done), 1)
    );
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn job_with_thousand_tasks_runs_each_task_once() {
    let dir = tempfile::tempdir().unwrap();
    let (running, node, client) = with_input(dir.path()).await;
    let tasks: Vec<String> = (0..1000)
        .map(|i| {
            format!(
                "{{ name = \"t{i}\"; kernel = \"max\"; input = [\"in\"]; output = [\"o{i}\"]; }}"
            )
        })
        .collect();
    let script = format!(
        "name = \"many\"; workdir = \"/w\"; tasks = ({});",
        tasks.join(",")
    );
    let worker = node.serve();
    let started = std::time::Instant::now();
    let reply = submit(&client, 1000, &script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let done = ended(&client, reply.job).await;
    println!("1000 tasks in {:?}", started.elapsed());
    assert_eq!(done.tasks_by_state["done"], 1000);
    running.stop().await;
    let seen = worker.await.unwrap();
    let names: std::collections::BTreeSet<_> =
        seen.iter().map(|(_, analyse)| &analyse.name).collect();
    assert_eq!((seen.len(), names.len()), (1000, 1000), "each task once");
}

const DIAMOND: &str = r#"
name = "again"; workdir = "/w"; policy = "round-robin";
tasks = (
  { name = "make"; kernel = "max"; input = []; output = ["a", "b", "c"]; },
  { name = "wait"; kernel = "min"; input = ["late"]; output = ["w"]; },
  { name = "use"; kernel = "min"; input = ["a", "b", "c", "w"]; output = ["out"]; }
);
"#;

async fn runs_above(client: &tidemill_client::Server, path: &str) -> Vec<v1::Run> {
    let question = v1::LineageRequest {
        path: path.as_bytes().to_vec(),
        up: true,
        ..v1::LineageRequest::default()
    };
    client
        .lineage()
        .query(question)
        .await
        .unwrap()
        .into_inner()
        .runs
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_of_rerun_job_become_new_versions_of_their_files() {
    if !may_read_all() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let mut first = running.node(0).await;
    let client = running.client().await;
    mkdir(&client, "/w", 1000).await;
    let reply = submit(&client, 1000, DIAMOND).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let (label, make) = first.labels().await.remove(0);
    first.finished(label, success(&make, 5)).await;
    first.acknowledged(vec![label]).await;
    let old = [
        stat(&client, "/w/a").await.unwrap(),
        stat(&client, "/w/b").await.unwrap(),
    ];
    // One output is renamed, one is deleted and its name taken by another file, and one is written to.
    let parent = stat(&client, "/w").await.unwrap().ino;
    let rename = v1::Rename {
        parent,
        name: b"a".to_vec(),
        new_parent: 1,
        new_name: b"moved".to_vec(),
        ..v1::Rename::default()
    };
    client.one(&root(), Op::Rename(rename)).await.unwrap();
    unlink(&client, parent, "b").await;
    let theirs = write_file(&client, "/w/b", 77, 1000).await;
    let changed = stat(&client, "/w/c").await.unwrap().ino;
    let (_, object) = client.reserve(0, 1).await.unwrap();
    let version = v1::NewVersion {
        ino: changed,
        object: object.0,
        ..v1::NewVersion::default()
    };
    client.one(&root(), Op::NewVersion(version)).await.unwrap();
    let seal = sealing(&client, (changed, object.0), 9).await;
    client.one(&root(), Op::Seal(seal)).await.unwrap();

    // The node with the outputs is lost before they are read.
    let worker = running.node(1).await.serve();
    drop(first);
    write_file(&client, "/w/late", 9, 1000).await;
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done), "{done:?}");
    let moved = stat(&client, "/moved").await.unwrap();
    assert_eq!((moved.ino, moved.version, moved.node), (old[0].ino, 2, 1));
    assert_ne!(moved.object, old[0].object);
    assert!(stat(&client, "/w/a").await.is_none());
    assert_eq!(stat(&client, "/w/b").await.unwrap().object, theirs);
    let kept = stat(&client, "/w/c").await.unwrap();
    assert_eq!((kept.object, kept.version), (object.0, 2));
    let runs = runs_above(&client, "/w/out").await;
    let make = runs.iter().find(|run| run.name == "make").unwrap();
    assert!(
        make.outputs
            .iter()
            .any(|output| output.object == moved.object)
    );
    let read = runs.iter().find(|run| run.name == "use").unwrap();
    for output in &make.outputs {
        assert!(
            read.inputs
                .iter()
                .any(|input| input.object == output.object),
            "{output:?}"
        );
    }
    assert_eq!(runs_above(&client, "/moved").await[0].name, "make");
    worker.abort();
}

/// Runs `CHAIN` again and answers its labels with the hashes in `contents`. If the server offers a cached result and `same` states that the
/// result's condition is fulfilled, the answer reuses the result. Returns the offer for each label.
async fn again(
    cluster: (&mut FakeNode, &tidemill_client::Server),
    contents: [&str; 2],
    same: bool,
) -> [Option<v1::CachedResult>; 2] {
    let (node, client) = cluster;
    let script = CHAIN.replace("workdir", "replace = true; workdir");
    let reply = submit(client, 1000, &script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let mut labels = Vec::new();
    let mut offers = Vec::new();
    while offers.len() < 2 {
        if labels.is_empty() {
            labels = node.labels().await;
        }
        let (label, analyse) = labels.remove(0);
        let mut outcome = success(&analyse, 5);
        outcome.contents = vec![contents[offers.len()].to_owned()];
        if let Some(offer) = analyse.cached_result.as_ref().filter(|_| same) {
            outcome.reused_task = offer.task;
        }
        offers.push(analyse.cached_result.clone());
        node.finished(label, outcome).await;
    }
    let done = ended(client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done), "{done:?}");
    [offers[0].clone(), offers[1].clone()]
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_result_is_reused_for_equal_bytes_in_another_object() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = with_input(dir.path()).await;
    let parent = stat(&client, "/w").await.unwrap().ino;
    let rewrite = async |size| {
        unlink(&client, parent, "in").await;
        write_file(&client, "/w/in", size, 1000).await;
    };
    let conditions = |offers: &[Option<v1::CachedResult>; 2]| {
        let conditions = offers.iter().map(|offer| offer.clone().map(|o| o.contents));
        conditions.collect::<Vec<_>>()
    };
    let hashed = ["one", "two"];
    let nothing: Vec<String> = Vec::new();
    let first = again((&mut node, &client), hashed, true).await;
    assert_eq!(first, [None, None]);

    // The input is another object of that size: the second result is offered on condition that the first is reused.
    rewrite(100).await;
    let second = again((&mut node, &client), ["one", ""], true).await;
    let expected = [Some(vec!["one".to_owned()]), Some(nothing.clone())];
    assert_eq!(conditions(&second), expected);
    assert!(!second[1].as_ref().unwrap().if_reused.is_empty());
    // Now both contents are known to be equal, and no bytes have to be read.
    let third = again((&mut node, &client), ["", ""], true).await;
    assert_eq!(conditions(&third), [Some(nothing.clone()), Some(nothing)]);
    // The input has other bytes of that size. Then its result is the newest one, and an input of another size is no candidate.
    rewrite(100).await;
    let fourth = again((&mut node, &client), ["three", ""], false).await;
    assert_eq!(conditions(&fourth)[0], Some(vec!["one".to_owned()]));
    rewrite(100).await;
    let fifth = again((&mut node, &client), ["one", "two"], false).await;
    assert_eq!(conditions(&fifth)[0], Some(vec!["three".to_owned()]));
    rewrite(101).await;
    let sixth = again((&mut node, &client), ["", ""], false).await;
    assert_eq!(sixth[0], None);
    // That input was not hashed, so no bytes are read to compare it.
    rewrite(101).await;
    let seventh = again((&mut node, &client), ["", ""], false).await;
    assert_eq!(seventh[0], None);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_only_on_nodes_with_their_requirements() {
    let dir = tempfile::tempdir().unwrap();
    let (running, first, client) = with_input(dir.path()).await;
    let (_first, second) = (first.serve(), running.node(1).await);
    let _second = second.serve();
    let script = r#"name = "many"; workdir = "/w"; policy = "round-robin"; tasks = (
        { name = "p{i}"; foreach = { i = "1..6"; }; kernel = "only-on-1"; output = [ "p{i}" ]; },
        { name = "g{i}"; foreach = { i = "1..6"; }; kernel = "max"; input = [ "in" ]; output = [ "g{i}" ];
          resources = { gpu = 1; }; } );"#;
    let reply = submit(&client, 1000, script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done));
    assert!(
        done.tasks.iter().all(|task| task.node == 1),
        "{:?}",
        done.tasks
    );
    for (task, why) in [
        (
            r#"kernel = "only-on-1"; node = 0;"#,
            "no node can run it: node 0 does not have the program `only-on-1`; node 1 does",
        ),
        (
            r#"kernel = "max"; resources = { gpu = 2; };"#,
            "no node can run it: it needs gpu = 2, and the most that a node offers is 1;",
        ),
        (
            r#"kernel = "max"; cores = 3;"#,
            "no node can run it: it needs cores = 3, and the most that a node offers is 2;",
        ),
    ] {
        let script = format!(
            "name = \"no\"; workdir = \"/w\"; tasks = ( {{ name = \"a\"; output = [ \"no\" ]; {task} }} );"
        );
        let reply = submit(&client, 1000, &script).await;
        assert!(reply.errors[0].contains(why), "{:?}", reply.errors);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_without_its_program_waits_and_reports_why() {
    let dir = tempfile::tempdir().unwrap();
    let (running, first, client) = with_input(dir.path()).await;
    let _first = first.serve();
    let mut second = running.node(1).await;
    let script = r#"name = "late"; workdir = "/w"; tasks = (
        { name = "a"; kernel = "only-on-1"; input = [ "later" ]; output = [ "out" ]; } );"#;
    let submitted = tokio::spawn({
        let client = running.client().await;
        async move { submit(&client, 1000, script).await }
    });
    let To::FindPrograms(question) = second.next().await else {
        panic!("it was not asked");
    };
    second.answer(question).await;
    let reply = submitted.await.unwrap();
    assert_eq!(reply.errors, Vec::<String>::new());
    let news = |found: &[&str], missing: &[&str]| {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect();
        v1::from_node::Message::Programs(v1::Programs {
            request: 0,
            found: names(found),
            missing: names(missing),
        })
    };
    second.send(news(&[], &["only-on-1"])).await;
    // The file is written on a node that is up.
    write_file(&client, "/w/later", 10, 1000).await;
    let waits = until(&client, reply.job, |job| !job.held_up.is_empty()).await;
    assert_eq!(waits.held_up_total, 1);
    assert!(
        waits.held_up[0].contains("the program `only-on-1`"),
        "{waits:?}"
    );
    assert!(
        waits.tasks[0]
            .error
            .contains("no node that is up can run it"),
        "{waits:?}"
    );
    second.send(news(&["only-on-1"], &[])).await;
    let labels = second.labels().await;
    assert_eq!(labels.len(), 1);
    let (label, analysis) = &labels[0];
    second.started(*label).await;
    second.finished(*label, success(analysis, 5)).await;
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done));
    assert_eq!(done.held_up, Vec::<String>::new());
}
