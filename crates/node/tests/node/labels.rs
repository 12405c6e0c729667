//! Tests of labels from the server's side: their execution by a node, and the node's reports.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use tidemill_node::RunningNode;
use tidemill_wire::v1;

const SHELL: &str = "sh";

async fn node() -> (tempfile::TempDir, FakeServer, RunningNode, Connection) {
    node_with(b"three\nwords\nhere\n").await
}

#[tokio::test(flavor = "multi_thread")]
async fn program_reads_input_and_output_is_sealed() {
    let (directory, _server, node, mut connection) = node().await;
    let label = program_label(1, SHELL, &["-c", "wc -l < in.txt > counts/out.txt; id -u"])
        .input("in.txt", 1, 1)
        .output("counts/out.txt", 2)
        .output("who", 3)
        .stdout("who");
    connection.labels(&[label]);
    let outcome = connection.finished(1).await;
    assert_eq!(
        sealed(&outcome).iter().map(|s| s.0).collect::<Vec<_>>(),
        [2, 3]
    );
    assert_eq!(get(&node, 2).await, b"3\n");
    assert_eq!(get(&node, 3).await, format!("{}\n", user()).as_bytes());
    assert_eq!(outcome.read_bytes, 17);
    assert_eq!(outcome.transferred_bytes, 0);
    assert_eq!(outcome.kernel_hash.len(), 64);
    assert!(outcome.start <= outcome.kernel_start && outcome.kernel_start <= outcome.end);
    let run = directory.path().join("run").join("1");
    while run.exists() {
        tokio::task::yield_now().await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chained_labels_run_in_order_and_fail_together() {
    let (_directory, _server, node, mut connection) = node().await;
    connection.labels(&[
        program_label(1, SHELL, &["-c", "cat in > out"])
            .input("in", 1, 1)
            .output("out", 2),
        program_label(2, SHELL, &["-c", "cat in in > out"])
            .input("in", 2, 1)
            .output("out", 3)
            .after(&[1]),
        program_label(3, SHELL, &["-c", "echo no luck >&2; exit 3"]).after(&[2]),
        program_label(4, "true", &[]).after(&[3]),
        program_label(5, "true", &[]).after(&[4]),
        program_label(6, "true", &[]),
    ]);
    assert_eq!(sealed(&connection.finished(1).await), [(2, 17)]);
    assert_eq!(sealed(&connection.finished(2).await), [(3, 34)]);
    let failed = connection.finished(3).await;
    assert_eq!(
        (failure(&failed).kind.as_str(), failure(&failed).code),
        ("exit", 3)
    );
    assert_eq!(failed.stderr, "no luck\n");
    for dependant in [4, 5] {
        let outcome = connection.finished(dependant).await;
        assert_eq!(failure(&outcome).kind, "dependency");
    }
    assert!(sealed(&connection.finished(6).await).is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outcome_is_resent_until_acknowledged() {
    let (_directory, mut server, node, mut connection) = node().await;
    // The output contains the time, so a second run would be visible.
    let label = program_label(1, SHELL, &["-c", "date +%N > out"]).output("out", 2);
    connection.labels(std::slice::from_ref(&label));
    let first = connection.finished(1).await;
    let bytes = get(&node, 2).await;
    drop(connection);

    let mut connection = server.connection().await;
    assert_eq!(connection.hello.labels, [1]);
    assert_eq!(connection.hello.cluster_id, CLUSTER);
    connection.welcome(CLUSTER);
    assert_eq!(connection.finished(1).await, first);
    // The server sends the label once more: it does not run again.
    connection.labels(std::slice::from_ref(&label));
    assert_eq!(connection.finished(1).await, first);
    assert_eq!(get(&node, 2).await, bytes);
    connection.ack(&[1]);
    // The hello message leaves out an acknowledged label, which still does not run again.
    connection.labels(std::slice::from_ref(&label));
    assert_eq!(connection.finished(1).await, first);
    drop(connection);
    let connection = server.connection().await;
    assert!(connection.hello.labels.is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_or_invalid_outputs_fail_task_with_reason() {
    let (directory, _server, node, mut connection) = node().await;
    let run = |id, script: &str| {
        program_label(id, SHELL, &["-c", script])
            .input("in", 1, 1)
            .output("out", 10 + id)
    };
    connection.labels(&[
        run(1, "true"),
        run(2, "ln -s /etc/passwd out"),
        run(3, "mkdir out"),
        run(4, "mkdir d; echo x > d/f; ln d/f out"),
        run(
            5,
            "head -c 3000 /dev/zero > out; head -c 3000 /dev/zero > other",
        ),
        run(6, "mkfifo out"),
    ]);
    let mut messages = Vec::new();
    for id in [1, 2, 3, 6] {
        let outcome = connection.finished(id).await;
        assert_eq!(failure(&outcome).kind, "missing-output", "{outcome:?}");
        messages.push(failure(&outcome).message.clone());
    }
    assert!(messages[0].contains("did not write"), "{messages:?}");
    assert!(messages[1].contains("not a plain file"), "{messages:?}");
    // A file with another name is stored as a copy that no other name refers to.
    assert_eq!(sealed(&connection.finished(4).await), [(14, 2)]);
    assert_eq!(sealed(&connection.finished(5).await), [(15, 3000)]);
    for object in [11_u64, 12, 13, 16] {
        let path = tidemill_model::id::ObjectId(object).relative_path();
        assert!(!directory.path().join(path).exists());
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unrunnable_label_fails_with_reason() {
    let (_directory, _server, node, mut connection) = node().await;
    let mut builtin = program_label(4, "", &[]);
    analyse(&mut builtin).kernel = Some(v1::Kernel {
        code: Some(v1::kernel::Code::Builtin("no-such-kernel".into())),
    });
    let mut empty = program_label(5, "true", &[]);
    empty.operation = None;
    connection.labels(&[
        program_label(1, "no-such-program", &[]),
        program_label(2, "true", &[]).input("gone", 99, 1),
        program_label(3, "true", &[]).input("far", 98, 7),
        builtin,
        empty,
        program_label(6, "true", &[]).after(&[5]),
    ]);
    for (id, kind, word) in [
        (1, "unfit", "no-such-program"),
        (2, "input", "is not on node 1"),
        (3, "input", "node 7"),
        (4, "kernel", "no-such-kernel"),
        (5, "kernel", "operation"),
        (6, "dependency", "5"),
    ] {
        let outcome = connection.finished(id).await;
        let failure = failure(&outcome);
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(failure.message.contains(word), "{failure:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_can_be_aborted_before_and_during_run() {
    let (_directory, _server, node, mut connection) = node().await;
    let long = |id| program_label(id, "sleep", &["1000"]);
    connection.labels(&[
        long(1),
        long(2),
        program_label(3, "true", &[]),
        program_label(4, "true", &[]).after(&[3]),
        program_label(5, "true", &[]).after(&[1]),
    ]);
    connection.running(1).await;
    connection.running(2).await;
    // Both cores are in use, so this label waits.
    connection.abort(3);
    assert_eq!(failure(&connection.finished(3).await).kind, "cancelled");
    assert_eq!(failure(&connection.finished(4).await).kind, "dependency");
    connection.abort(1);
    assert_eq!(failure(&connection.finished(1).await).kind, "cancelled");
    assert_eq!(failure(&connection.finished(5).await).kind, "dependency");
    connection.abort(2);
    assert_eq!(failure(&connection.finished(2).await).kind, "cancelled");
    // A cancellation may arrive with or after its label, or for an unknown label.
    connection.labels(&[long(6)]);
    connection.abort(6);
    connection.abort(7);
    assert_eq!(failure(&connection.finished(6).await).kind, "cancelled");
    node.stop().await;
}

/// The input's writer never begins, so the kernel gets no byte: neither an abort nor the end of the node waits for the writer.
#[tokio::test(flavor = "multi_thread")]
async fn label_ends_although_writer_of_its_input_never_begins() {
    let (_directory, _server, node, mut connection) = node().await;
    let waits = |id: u64| {
        let mut label = program_label(id, "cat", &[]).input("in", 70 + id, 1);
        analyse(&mut label).inputs[0].streaming = true;
        let out = format!("out{id}");
        label.stdin("in").output(&out, 80 + id).stdout(&out)
    };
    connection.labels(&[waits(1), waits(2)]);
    connection.running(1).await;
    connection.running(2).await;
    connection.abort(1);
    let ended = connection.finished(1).await;
    assert_eq!(failure(&ended).kind, "cancelled");
    soon(node.stop()).await;
}

fn needing(mut label: v1::Label, cores: u32, gpus: u64) -> v1::Label {
    let analysis = analyse(&mut label);
    analysis.cores = Some(cores);
    if gpus > 0 {
        analysis.resources.insert("gpu".into(), gpus);
    }
    label
}

#[tokio::test(flavor = "multi_thread")]
async fn label_starts_when_all_its_resources_are_free() {
    let (_directory, _server, node, mut connection) = node().await;
    let long = |id| program_label(id, "sleep", &["1000"]);
    let status = connection.status(|status| status.memory_bytes > 0).await;
    assert_eq!((status.cores, status.memory_bytes), (2, 4 << 30));
    assert_eq!(status.resources, [("gpu".to_owned(), 1)].into());
    let cores = program_label(3, SHELL, &["-c", "printf $TIDEMILL_CORES > out"]);
    connection.labels(&[
        needing(long(1), 1, 1),
        needing(long(2), 1, 1),
        needing(cores.output("out", 9), 2, 0),
        needing(program_label(4, "true", &[]), 0, 0),
        needing(long(5), 1, 2),
        needing(long(6), 3, 0),
    ]);
    connection.running(1).await;
    // A label without a core runs while others wait. A label that this node can never run is returned.
    assert!(connection.finished(4).await.failure.is_none());
    for (id, what) in [(5, "gpu = 1"), (6, "cores = 2")] {
        let outcome = connection.finished(id).await;
        assert_eq!(failure(&outcome).kind, "unfit");
        assert!(failure(&outcome).message.contains(what), "{outcome:?}");
    }
    let counts = node.daemon().labels().counts();
    assert_eq!(
        counts,
        (1, 2),
        "a core is free, but 2 has no GPU and 3 too few cores"
    );
    connection.abort(1);
    assert_eq!(failure(&connection.finished(1).await).kind, "cancelled");
    connection.running(2).await;
    assert_eq!(node.daemon().labels().counts(), (1, 1));
    connection.abort(2);
    assert_eq!(failure(&connection.finished(2).await).kind, "cancelled");
    assert_eq!(sealed(&connection.finished(3).await), [(9, 1)]);
    assert_eq!(get(&node, 9).await, b"2");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn label_is_returned_to_server_if_its_program_was_removed() {
    let (_directory, _server, node, mut connection) = node().await;
    let place = directory();
    let program = place.path().join("tool");
    let name = program.to_str().unwrap().to_owned();
    connection.send(v1::to_node::Message::FindPrograms(v1::FindPrograms {
        request: 4,
        names: vec![name.clone()],
    }));
    let reported = |message: &v1::from_node::Message| match message {
        v1::from_node::Message::Programs(programs) => Some(programs.clone()),
        _ => None,
    };
    let first = connection.find(reported).await;
    assert_eq!((first.request, first.missing), (4, vec![name.clone()]));
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let news = connection.find(reported).await;
    assert_eq!((news.request, news.found), (0, vec![name.clone()]));
    std::fs::remove_file(&program).unwrap();
    connection.labels(&[program_label(1, &name, &[])]);
    let outcome = connection.finished(1).await;
    assert_eq!(failure(&outcome).kind, "unfit");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_directory_changes_are_reported_and_links_out_hidden() {
    let (directory, place) = (directory(), directory());
    let mut server = FakeServer::start().await;
    let mut config = config(1, directory.path(), &server);
    let sw = place.path().join("sw");
    config.task_dirs = vec![sw.clone()];
    let node = RunningNode::start(config).await.unwrap();
    let mut connection = server.welcomed().await;
    let [sw_name, inner, etc] = [
        format!("{}/", sw.display()),
        format!("{}/inner/", sw.display()),
        "/etc/".to_owned(),
    ];
    connection.send(v1::to_node::Message::FindPrograms(v1::FindPrograms {
        request: 4,
        names: vec![inner.clone(), etc.clone()],
    }));
    let reported = |message: &v1::from_node::Message| match message {
        v1::from_node::Message::Programs(programs) => Some(programs.clone()),
        _ => None,
    };
    let first = connection.find(reported).await;
    assert_eq!(first.found, Vec::<String>::new());
    assert_eq!(first.missing, [inner.clone(), etc, sw_name.clone()]);
    std::fs::create_dir_all(sw.join("inner")).unwrap();
    let news = connection.find(reported).await;
    assert_eq!(news.found, [sw_name, inner.clone()]);
    let asks = |id, asked: &str| {
        let mut label = program_label(id, "ls", &[asked]);
        analyse(&mut label).runtime_environment = Some(v1::RuntimeEnvironment {
            directories: vec![asked.to_owned()],
            ..v1::RuntimeEnvironment::default()
        });
        label
    };
    let asked = sw.join("inner").display().to_string();
    connection.labels(&[asks(1, &asked)]);
    assert!(connection.finished(1).await.failure.is_none());
    // A user with write access to the parent replaces the directory by a link.
    std::fs::remove_dir(&asked).unwrap();
    std::os::unix::fs::symlink("/etc", &asked).unwrap();
    for (id, asked) in [(2, &*asked), (3, "/etc"), (4, &format!("{asked}/../../.."))] {
        connection.labels(&[asks(id, asked)]);
        let outcome = connection.finished(id).await;
        assert_eq!(failure(&outcome).kind, "unfit", "{asked}");
    }
    assert_eq!(connection.find(reported).await.missing, [inner]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel_over_time_or_output_limit_is_killed() {
    let (_directory, _server, node, mut connection) = node().await;
    let mut slow = program_label(1, "sleep", &["1000"]);
    analyse(&mut slow).time_ns_max = 200_000_000;
    let mut big =
        program_label(2, SHELL, &["-c", "head -c 100000 /dev/zero > out"]).output("out", 2);
    analyse(&mut big).output_bytes_max = 10_000;
    connection.labels(&[slow, big, program_label(3, SHELL, &["-c", "kill -SEGV $$"])]);
    assert_eq!(failure(&connection.finished(1).await).kind, "timeout");
    assert_eq!(failure(&connection.finished(2).await).kind, "output-limit");
    let crash = connection.finished(3).await;
    assert_eq!(
        (failure(&crash).kind.as_str(), failure(&crash).code),
        ("signal", 11)
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_ends_thousand_queued_tasks() {
    let (_directory, _server, node, mut connection) = node().await;
    let labels: Vec<v1::Label> = (1..=1000)
        .map(|id| program_label(id, "true", &[]))
        .collect();
    for batch in labels.chunks(100) {
        connection.labels(batch);
    }
    for id in 1..=1000 {
        assert!(sealed(&connection.finished(id).await).is_empty());
    }
    connection.ack(&(1..=1000).collect::<Vec<u64>>());
    let status = connection
        .status(|status| status.history.get("true").is_some_and(|h| h.runs == 1000))
        .await;
    assert_eq!((status.running, status.queued), (0, 0));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_query_reports_found_and_missing_programs() {
    let (_directory, _server, node, mut connection) = node().await;
    connection.send(v1::to_node::Message::FindPrograms(v1::FindPrograms {
        request: 4,
        names: vec!["true".into(), "no-such-program".into(), "sh".into()],
    }));
    let found = connection
        .find(|message| match message {
            v1::from_node::Message::Programs(programs) => Some(programs.clone()),
            _ => None,
        })
        .await;
    assert_eq!(found.missing, ["no-such-program"]);
    assert_eq!(
        (found.request, found.found),
        (4, vec!["true".into(), "sh".into()])
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn remove_and_copy_run_while_kernels_use_all_cores() {
    let (_directory, _server, node, mut connection) = node().await;
    put(&node, 2, b"x").await;
    let busy: Vec<v1::Label> = (1..=2)
        .map(|id| program_label(id, "sleep", &["1000"]))
        .collect();
    connection.labels(&busy);
    for label in &busy {
        connection.running(label.id).await;
    }
    connection.labels(&[copy_label(3, 2, 1, 4)]);
    assert_eq!(sealed(&connection.finished(3).await), [(4, 1)]);
    // A missing object counts as removed.
    let removed = connection.remove(&[1, 2, 77]).await;
    assert_eq!((removed.failure, removed.sealed), (None, vec![]));
    let store = &node.daemon().parts().store;
    for object in [1, 2] {
        assert!(store.stat(tidemill_model::id::ObjectId(object)).is_err());
    }
    node.stop().await;
}

/// Shell script that computes clearly longer than the few bytes of its input take to hash.
const DEAR: &str = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; date +%s%N | cat in - > out";

#[tokio::test(flavor = "multi_thread")]
async fn cached_result_is_reused_if_inputs_have_required_hashes() {
    let (_directory, _server, node, mut connection) = node().await;
    let dear = |id, input| {
        program_label(id, SHELL, &["-c", DEAR])
            .input("in", input, 1)
            .output("out", 100 + id)
    };
    connection.labels(&[dear(1, 1)]);
    let first = connection.finished(1).await;
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let contents = vec![hash(b"three\nwords\nhere\n")];
    assert_eq!(first.contents, contents);
    // The outcome reports the time of hashing, which is part of the task's time.
    let span = u64::try_from(first.end - first.kernel_start).unwrap();
    assert!((1..span).contains(&first.hash_ns), "{first:?}");
    let result = get(&node, 101).await;

    let cached_result = v1::CachedResult {
        task: 1001,
        kernel_hash: first.kernel_hash,
        outputs: analyse(&mut dear(9, 101)).inputs.clone(),
        contents: contents.clone(),
        ..v1::CachedResult::default()
    };
    let offered = |id, input, cached_result: &v1::CachedResult| {
        let mut label = dear(id, input);
        analyse(&mut label).cached_result = Some(cached_result.clone());
        label
    };
    put(&node, 2, b"three\nwords\nhere\n").await;
    connection.labels(&[offered(2, 2, &cached_result)]);
    let same = connection.finished(2).await;
    assert_eq!((same.reused_task, &same.contents), (1001, &contents));
    assert_eq!(get(&node, 102).await, result);

    // One label has other bytes, the other an invalid condition.
    put(&node, 3, b"seven\nwords\nhere\n").await;
    let two = v1::CachedResult {
        contents: [contents.clone(), contents].concat(),
        ..cached_result.clone()
    };
    connection.labels(&[offered(3, 3, &cached_result), offered(4, 2, &two)]);
    let other = connection.finished(3).await;
    assert_eq!(other.reused_task, 0);
    assert_eq!(other.contents, [hash(b"seven\nwords\nhere\n")]);
    assert!(get(&node, 103).await.starts_with(b"seven"));
    assert_eq!(connection.finished(4).await.reused_task, 0);
    assert_ne!(get(&node, 104).await, result);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_of_cheap_task_are_not_hashed() {
    let (_directory, _server, node, mut connection) = node().await;
    put(&node, 2, &vec![0; 64 << 20]).await;
    let label = program_label(1, SHELL, &["-c", "ls > out"]);
    connection.labels(&[label.input("in", 2, 1).output("out", 3)]);
    let outcome = connection.finished(1).await;
    assert_eq!(outcome.read_bytes, 64 << 20);
    assert!(outcome.contents.is_empty(), "{:?}", outcome.contents);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_reports_clock_difference_to_server() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let started = RunningNode::start(config(1, directory.path(), &server)).await;
    let _node = started.unwrap();
    let mut connection = server.connection().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.unwrap().as_nanos()).unwrap();
    connection.welcome_at(server.cluster, now + 600_000_000_000);
    let reported = connection.status(|status| !status.trouble.is_empty()).await;
    assert!(
        reported.trouble.contains("behind the server's"),
        "{}",
        reported.trouble
    );
    // The clocks are synchronous again.
    connection.welcome_at(server.cluster, now);
    connection.status(|status| status.trouble.is_empty()).await;
}
