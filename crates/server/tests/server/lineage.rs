//! Lineage: answers show each version and task according to the caller's rights, omissions are reported, and a corrupt row is an error.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cluster::{Running, ended, root, sealing, stat, submit, user, write_file};
use rusqlite::Connection;
use std::path::Path;
use tidemill_client::Server as Client;
use tidemill_wire::v1::{self, State, name_op::Op};

/// Ids of two users: Bob reads the output of Alice's task, whose input is secret.
const ALICE: u32 = 1000;
const BOB: u32 = 2000;

fn script(name: &str, args: &str, input: &str, output: &str) -> String {
    format!(
        "name = \"{name}\"; workdir = \"/\"; tasks = ({{ name = \"{name}-task\"; kernel = \"max\"; \
         args = [{args}]; input = [\"{input}\"]; output = [\"{output}\"]; }});"
    )
}

async fn mkdir(client: &Client, path: &str, uid: u32, mode: u32) {
    let create = v1::Create {
        name: path.as_bytes().to_vec(),
        kind: v1::Kind::Directory.into(),
        mode,
        uid,
        gid: uid,
        ..v1::Create::default()
    };
    client.one(&root(), Op::Create(create)).await.unwrap();
}

async fn run(client: &Client, uid: u32, script: &str) {
    let reply = submit(client, uid, script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    let job = ended(client, reply.job).await;
    assert_eq!(job.state, i32::from(State::Done), "{job:?}");
}

async fn ask(
    client: &Client,
    credentials: v1::Credentials,
    path: &str,
) -> Result<v1::LineageReply, tonic::Status> {
    let question = v1::LineageRequest {
        credentials: Some(credentials),
        path: path.as_bytes().to_vec(),
        up: true,
        down: true,
        ..v1::LineageRequest::default()
    };
    Ok(client.lineage().query(question).await?.into_inner())
}

/// Creates a chain of files, each made from the file before: Alice's secret file, her secret intermediate file, a file that everybody may
/// read, and a file of Bob's.
async fn chain(directory: &Path) -> (Running, Client) {
    let running = Running::start(directory).await;
    let node = running.node(0).await;
    let client = running.client().await;
    node.serve();
    mkdir(&client, "/secret", ALICE, 0o700).await;
    mkdir(&client, "/open", ALICE, 0o755).await;
    mkdir(&client, "/bob", BOB, 0o700).await;
    write_file(&client, "/secret/in", 100, ALICE).await;
    run(
        &client,
        ALICE,
        &script("covert", "\"dtype=int32\"", "/secret/in", "/secret/mid"),
    )
    .await;
    run(
        &client,
        ALICE,
        &script("public", "", "/secret/mid", "/open/out"),
    )
    .await;
    run(&client, BOB, &script("own", "", "/open/out", "/bob/mine")).await;
    (running, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn lineage_hides_all_but_numbers_of_foreign_versions() {
    let directory = tempfile::tempdir().unwrap();
    let (_running, client) = chain(directory.path()).await;
    // The Linux kernel of a mount's host has checked the requested file, but not the files from which it was made.
    let mounted = v1::Credentials {
        checked: true,
        ..user(BOB)
    };
    for credentials in [user(BOB), mounted] {
        let seen = ask(&client, credentials, "/bob/mine").await.unwrap();
        assert_eq!((seen.versions.len(), seen.runs.len()), (4, 3), "{seen:?}");
        let text = format!("{seen:?}");
        for secret in ["secret", "covert", "\"mid\"", "\"in\"", "dtype"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        let hidden: Vec<bool> = seen.runs.iter().map(|run| run.hidden).collect();
        assert_eq!(hidden, [true, false, false], "{seen:?}");
        let hidden = seen.versions.iter().filter(|version| version.hidden);
        assert_eq!(hidden.count(), 2);
        // The answer has only owner, time and built-in kernel of Alice's task that made the public file.
        let public = &seen.runs[1];
        assert_eq!((public.uid, public.kernel.as_str()), (ALICE, "max"));
        assert_eq!((public.job, public.job_name.as_str()), (0, ""));
        assert!(public.name.is_empty() && public.args.is_empty());
        let own = &seen.runs[2];
        assert_eq!(
            (own.name.as_str(), own.inputs[0].name.as_str()),
            ("own-task", "open/out")
        );
        // The graph is still complete.
        assert_eq!(
            seen.runs[0].outputs[0].object,
            seen.runs[1].inputs[0].object
        );
    }
    // Alice does not see the file that Bob made of hers; root sees all files.
    let alice = ask(&client, user(ALICE), "/open/out").await.unwrap();
    assert!(!format!("{alice:?}").contains("mine"), "{alice:?}");
    assert!(
        alice.runs.iter().any(|run| run.name == "covert-task"),
        "{alice:?}"
    );
    let all = ask(&client, root(), "/bob/mine").await.unwrap();
    assert!(
        all.versions.iter().all(|version| !version.hidden),
        "{all:?}"
    );
    assert!(all.runs.iter().all(|run| !run.hidden), "{all:?}");
    let denied = ask(&client, user(BOB), "/secret/mid").await.unwrap_err();
    assert_eq!(denied.code(), tonic::Code::PermissionDenied);
    // The attribute of a file shows no more.
    let get = v1::GetXattr {
        ino: stat(&client, "/open/out").await.unwrap().ino,
        name: b"user.tidemill.lineage".to_vec(),
    };
    let reported = client.one(&user(BOB), Op::GetXattr(get)).await.unwrap();
    let v1::name_result::Result::Bytes(reported) = reported else {
        panic!("{reported:?}")
    };
    let reported = String::from_utf8(reported.value).unwrap();
    assert!(
        reported.contains("\"max\"")
            && !reported.contains("public")
            && !reported.contains("secret"),
        "{reported}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lineage_shows_earlier_path_only_to_writer() {
    let directory = tempfile::tempdir().unwrap();
    let (_running, client) = chain(directory.path()).await;
    let from = stat(&client, "/secret").await.unwrap().ino;
    let to = stat(&client, "/open").await.unwrap().ino;
    let rename = v1::Rename {
        parent: from,
        name: b"mid".to_vec(),
        new_parent: to,
        new_name: b"published".to_vec(),
        ..v1::Rename::default()
    };
    client.one(&root(), Op::Rename(rename)).await.unwrap();
    let seen = ask(&client, user(BOB), "/open/published").await.unwrap();
    let text = format!("{seen:?}");
    for secret in ["secret", "covert", "\"mid\"", "dtype"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let path = |reply: &v1::LineageReply| {
        let asked = reply.versions.iter().find(|one| one.object == reply.object);
        asked.unwrap().path.clone()
    };
    assert_eq!(path(&seen), "/open/published");
    let alice = ask(&client, user(ALICE), "/open/published").await.unwrap();
    assert_eq!(path(&alice), "/secret/mid");
}

#[tokio::test(flavor = "multi_thread")]
async fn lineage_answer_reports_that_tasks_beyond_depth_exist() {
    let directory = tempfile::tempdir().unwrap();
    let (_running, client) = chain(directory.path()).await;
    let mut question = v1::LineageRequest {
        credentials: Some(root()),
        path: b"/bob/mine".to_vec(),
        up: true,
        depth: 2,
        ..v1::LineageRequest::default()
    };
    let reply = client.lineage().query(question.clone()).await.unwrap();
    let reply = reply.into_inner();
    assert_eq!(reply.runs.len(), 2, "{reply:?}");
    assert!(reply.cut.contains("beyond 2"), "{reply:?}");
    question.depth = 3;
    let whole = client.lineage().query(question).await.unwrap().into_inner();
    assert_eq!((whole.runs.len(), whole.cut.as_str()), (3, ""), "{whole:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_lineage_row_is_error_that_names_task() {
    let directory = tempfile::tempdir().unwrap();
    let (_running, client) = chain(directory.path()).await;
    let db = Connection::open(directory.path().join("server.db")).unwrap();
    let task: i64 = db
        .query_row("SELECT min(task) FROM task", [], |row| row.get(0))
        .unwrap();
    db.execute(
        "UPDATE task SET spec = '{\"name\":' WHERE task = ?1",
        [task],
    )
    .unwrap();
    let error = ask(&client, root(), "/bob/mine").await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::DataLoss);
    assert!(error.message().contains(&format!("task {task}")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lineage_search_finds_own_tasks_and_visible_versions() {
    let directory = tempfile::tempdir().unwrap();
    let (_running, client) = chain(directory.path()).await;
    for (path, owner) in [
        ("/secret/in", ALICE),
        ("/open/out", ALICE),
        ("/bob/mine", BOB),
    ] {
        let set = v1::SetXattr {
            ino: stat(&client, path).await.unwrap().ino,
            name: b"user.kind".to_vec(),
            value: b"marked".to_vec(),
            ..v1::SetXattr::default()
        };
        client.one(&user(owner), Op::SetXattr(set)).await.unwrap();
    }
    let kernel = v1::LineageSearch {
        kernel: "max".into(),
        ..v1::LineageSearch::default()
    };
    let mark = v1::LineageSearch {
        annotations: vec![v1::AnnotationSearch {
            name: "kind".into(),
            values: vec!["marked".into()],
        }],
        ..v1::LineageSearch::default()
    };
    let found = async |credentials: v1::Credentials, search: &v1::LineageSearch| {
        let question = v1::LineageRequest {
            credentials: Some(credentials),
            search: Some(search.clone()),
            ..v1::LineageRequest::default()
        };
        client.lineage().query(question).await.unwrap().into_inner()
    };
    let mounted = v1::Credentials {
        checked: true,
        ..user(BOB)
    };
    for (who, runs, marked) in [
        (user(BOB), 1, 2),
        (mounted, 1, 2),
        (user(ALICE), 2, 2),
        (root(), 3, 3),
    ] {
        let by_kernel = found(who.clone(), &kernel).await;
        assert_eq!(by_kernel.runs.len(), runs, "{by_kernel:?}");
        let by_mark = found(who, &mark).await;
        let seen = by_mark.versions.iter().filter(|version| !version.hidden);
        assert_eq!(seen.count(), marked, "{by_mark:?}");
        assert!(
            by_mark
                .versions
                .iter()
                .all(|version| version.hidden || version.annotations.len() == 1)
        );
    }
    // Another user's task shows no lineage.
    let task = found(user(ALICE), &kernel).await.runs[0].task;
    let question = v1::LineageRequest {
        credentials: Some(user(BOB)),
        task,
        up: true,
        ..v1::LineageRequest::default()
    };
    let denied = client.lineage().query(question).await.unwrap_err();
    assert_eq!(denied.code(), tonic::Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn annotation_set_during_write_belongs_to_next_sealed_version() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::start(directory.path()).await;
    let node = running.node(0).await;
    let client = running.client().await;
    node.serve();
    write_file(&client, "/file", 10, ALICE).await;
    let ino = stat(&client, "/file").await.unwrap().ino;
    let annotate = async |value: &str| {
        let set = v1::SetXattr {
            ino,
            name: b"user.is".to_vec(),
            value: value.into(),
            ..v1::SetXattr::default()
        };
        client.one(&user(ALICE), Op::SetXattr(set)).await.unwrap();
    };
    let reported = async || {
        let question = v1::LineageRequest {
            credentials: Some(root()),
            path: b"/file".to_vec(),
            versions: true,
            ..v1::LineageRequest::default()
        };
        let reply = client.lineage().query(question).await.unwrap().into_inner();
        let values = |version: &v1::Version| -> Vec<String> {
            let annotations = version.annotations.iter();
            annotations
                .map(|one| String::from_utf8(one.value.clone()).unwrap())
                .collect()
        };
        reply.versions.iter().map(values).collect::<Vec<_>>()
    };
    let write = async || {
        let (_, object) = client.reserve(0, 1).await.unwrap();
        let new = v1::NewVersion {
            ino,
            object: object.0,
            ..v1::NewVersion::default()
        };
        client.one(&user(ALICE), Op::NewVersion(new)).await.unwrap();
        object.0
    };
    annotate("first").await;
    // The version is abandoned: an annotation that was set during the write belongs to the remaining version.
    let object = write().await;
    annotate("meanwhile").await;
    assert_eq!(reported().await, [["first"]]);
    let abandon = v1::Abandon { ino, object };
    client
        .one(&user(ALICE), Op::Abandon(abandon))
        .await
        .unwrap();
    assert_eq!(reported().await, [["meanwhile"]]);
    // The version is sealed: the annotation belongs to the new version.
    let object = write().await;
    annotate("second").await;
    let seal = sealing(&client, (ino, object), 5).await;
    client.one(&user(ALICE), Op::Seal(seal)).await.unwrap();
    annotate("later").await;
    assert_eq!(reported().await, [["meanwhile"], ["later"]]);
    let unlink = v1::Unlink {
        parent: 1,
        name: b"file".to_vec(),
        ..v1::Unlink::default()
    };
    client.one(&root(), Op::Unlink(unlink)).await.unwrap();
    assert_eq!(reported().await, [["meanwhile"], ["later"]]);
}
