//! Rules: every matching version triggers a rule exactly once, whatever happens to the server and to the file in the meantime.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cluster::{
    FakeNode, Running, failure, job, mount, root, sealing, stat, success, user, write_file,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tidemill_client::Server as Client;
use tidemill_wire::v1::{self, name_op::Op};

// User id of the rule's owner. No user who runs these tests has it.
const OWNER: u32 = 31_000;
const RULE: &str = r#"
name = "count"; workdir = "/w"; pattern = "in/{n}.dat";
task = { kernel = "max"; output = [ "out/{n}.txt" ]; };
"#;

fn request(uid: u32, text: &str) -> v1::AddRuleRequest {
    v1::AddRuleRequest {
        credentials: Some(user(uid)),
        text: text.into(),
        source: "r.conf".into(),
        ..v1::AddRuleRequest::default()
    }
}

async fn add(client: &Client, request: v1::AddRuleRequest) -> v1::Rule {
    let reply = client.rules().add(request).await.unwrap().into_inner();
    assert_eq!(reply.errors, Vec::<String>::new());
    reply.rule.unwrap()
}

/// Sends a text as a mount does for writes to `.tidemill/hooks`.
async fn write_hooks(client: &Client, text: &str, unfinished: bool) -> v1::AddRuleReply {
    let hooks = v1::AddRuleRequest {
        source: ".tidemill/hooks".into(),
        hooks: true,
        unfinished,
        ..request(OWNER, text)
    };
    client.rules().add(hooks).await.unwrap().into_inner()
}

#[tokio::test]
async fn hooks_in_text_are_created_once_and_only_if_all_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = &running.client().await;
    let hook = "</run/*.dat>\nop: func\nlib_path: max\noutput: /out/{stem}\n";
    let begun = write_hooks(client, hook, true).await;
    assert!(begun.unfinished && begun.rule.is_none() && begun.errors.is_empty());
    let cut = write_hooks(client, hook, false).await;
    assert!(cut.errors[0].contains("has no end"), "{:?}", cut.errors);
    let whole = format!("{hook}</run/*.dat>\n");
    let made = write_hooks(client, &whole, true).await.rule.unwrap();
    assert_eq!(made.revision, 1);
    let again = write_hooks(client, &whole, false).await;
    assert!(again.rule.is_none() && !again.unfinished);
    // The hook of another user with the same name is another rule.
    let foreign = v1::AddRuleRequest {
        hooks: true,
        ..request(OWNER + 1, &whole.replace("/out/", "/other/"))
    };
    let foreign = client.rules().add(foreign).await.unwrap().into_inner();
    assert_eq!(foreign.rule.unwrap().uid, OWNER + 1);
    // A second hook that is invalid: the change of the first one is not carried out either.
    let broken = whole.replace("/out/", "/other/") + "</b/{x>\nop: func\nlib_path: max\n</b/{x>\n";
    assert!(!write_hooks(client, &broken, false).await.errors.is_empty());
    let long = "#".repeat((256 << 10) + 1);
    let refused = write_hooks(client, &long, false).await.errors;
    assert!(refused[0].contains("split it"), "{refused:?}");
    let own = v1::ListRulesRequest {
        credentials: Some(user(OWNER)),
        name: String::new(),
    };
    let rules = client.rules().list(own).await.unwrap().into_inner().rules;
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].revision, 1);
    let section = &rules[0].hook.as_ref().unwrap().section;
    assert!(
        section.contains("</run/*.dat>") && section.contains("/out/{stem}"),
        "{section}"
    );
}

async fn log_of(client: &Client, uid: u32, name: &str) -> Vec<v1::RuleRun> {
    let request = v1::RuleLogRequest {
        credentials: Some(user(uid)),
        name: name.into(),
        ..v1::RuleLogRequest::default()
    };
    let reply = client.rules().log(request).await.unwrap();
    let mut rule_runs = reply.into_inner().rule_runs;
    rule_runs.reverse();
    rule_runs
}

async fn log(client: &Client) -> Vec<v1::RuleRun> {
    log_of(client, OWNER, "count").await
}

/// Waits until `count` rule runs have ended, and no rule run is left.
async fn settled(client: &Client, count: usize) -> Vec<v1::RuleRun> {
    loop {
        let log = log(client).await;
        let open =
            |one: &v1::RuleRun| ["queued", "waiting", "running"].contains(&one.state.as_str());
        if log.len() >= count && !log.iter().any(open) {
            return log;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn states(log: &[v1::RuleRun]) -> Vec<(&str, &str)> {
    let state = |one| {
        let one: &v1::RuleRun = one;
        (one.path.as_str(), one.state.as_str())
    };
    log.iter().map(state).collect()
}

async fn pause(client: &Client, paused: bool) {
    let request = v1::PauseRuleRequest {
        credentials: Some(user(OWNER)),
        name: "count".into(),
        paused,
    };
    client.rules().pause(request).await.unwrap();
}

async fn retry(client: &Client, path: &str) -> u64 {
    let request = v1::RetryRuleRequest {
        credentials: Some(user(OWNER)),
        name: "count".into(),
        path: path.into(),
    };
    client
        .rules()
        .retry(request)
        .await
        .unwrap()
        .into_inner()
        .rule_runs
}

async fn mkdir(client: &Client, path: &str) {
    let create = v1::Create {
        name: path.as_bytes().to_vec(),
        kind: v1::Kind::Directory.into(),
        mode: 0o755,
        uid: OWNER,
        gid: OWNER,
        make_parents: true,
        ..v1::Create::default()
    };
    client.one(&root(), Op::Create(create)).await.unwrap();
}

async fn rename(client: &Client, from: &str, to: &str) {
    rename_as(client, &root(), from, to).await;
}

async fn rename_as(client: &Client, user: &v1::Credentials, from: &str, to: &str) {
    let (parent, name) = at(client, from).await;
    let (new_parent, new_name) = at(client, to).await;
    let rename = v1::Rename {
        parent,
        name,
        new_parent,
        new_name,
        ..v1::Rename::default()
    };
    client.one(user, Op::Rename(rename)).await.unwrap();
}

async fn at(client: &Client, path: &str) -> (u64, Vec<u8>) {
    let (dir, name) = path.rsplit_once('/').unwrap();
    let dir = if dir.is_empty() { "/" } else { dir };
    let dir = stat(client, dir).await.unwrap().ino;
    (dir, name.as_bytes().to_vec())
}

async fn unlink(client: &Client, path: &str) {
    let (parent, name) = at(client, path).await;
    let unlink = v1::Unlink {
        parent,
        name,
        ..v1::Unlink::default()
    };
    client.one(&root(), Op::Unlink(unlink)).await.unwrap();
}

/// Seals the next version of a file. Returns the version's object.
async fn overwrite(client: &Client, path: &str, size: u64) -> u64 {
    let ino = stat(client, path).await.unwrap().ino;
    let (_, object) = client.reserve(0, 1).await.unwrap();
    let new = v1::NewVersion {
        ino,
        object: object.0,
        ..v1::NewVersion::default()
    };
    client.one(&root(), Op::NewVersion(new)).await.unwrap();
    let seal = sealing(client, (ino, object.0), size).await;
    client.one(&root(), Op::Seal(seal)).await.unwrap();
    object.0
}

async fn with_directories(dir: &Path) -> (Running, FakeNode, Client) {
    let running = Running::start(dir).await;
    let node = running.node(0).await;
    let client = running.client().await;
    for directory in ["/w", "/w/in", "/w/out", "/w/tmp"] {
        mkdir(&client, directory).await;
    }
    (running, node, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn sealed_matching_file_triggers_rule_with_rights_of_rule_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_directories(dir.path()).await;
    let worker = node.serve();
    write_file(&client, "/w/in/before.dat", 1, OWNER).await;
    let rule = add(&client, request(OWNER, RULE)).await;
    assert_eq!((rule.revision, rule.paused), (1, false));
    write_file(&client, "/w/in/a.dat", 7, OWNER).await;
    write_file(&client, "/w/in/a.txt", 7, OWNER).await;
    write_file(&client, "/w/in/others.dat", 7, OWNER + 1).await;
    let done = settled(&client, 1).await;
    assert_eq!(states(&done), [("/w/in/a.dat", "done")]);
    let out = stat(&client, "/w/out/a.txt").await.unwrap();
    assert_eq!((out.uid, out.version), (OWNER, 1));
    let of = job(&client, done[0].job).await;
    assert_eq!((of.name.as_str(), of.uid), ("count@1", OWNER));
    assert_eq!(of.source, "rule count@1");

    // The next version of the file triggers the rule again, and creates the next version of its result.
    overwrite(&client, "/w/in/a.dat", 9).await;
    settled(&client, 2).await;
    assert_eq!(stat(&client, "/w/out/a.txt").await.unwrap().version, 2);
    // Other users can neither see nor change the rule.
    let other = v1::RuleRequest {
        credentials: Some(user(OWNER + 1)),
        name: rule.rule.to_string(),
    };
    let refused = client.rules().remove(other).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn rename_link_and_directory_move_trigger_rule_once_per_version() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_directories(dir.path()).await;
    let worker = node.serve();
    add(&client, request(OWNER, RULE)).await;
    write_file(&client, "/w/in/.a.dat.part", 7, OWNER).await;
    write_file(&client, "/w/tmp/b.dat", 7, OWNER).await;
    assert_eq!(log(&client).await.len(), 0);
    rename(&client, "/w/in/.a.dat.part", "/w/in/a.dat").await;
    rename(&client, "/w/tmp/b.dat", "/w/in/b.dat").await;
    // The file is moved out and in again, and under another name: it is the same version.
    rename(&client, "/w/in/b.dat", "/w/tmp/b.dat").await;
    rename(&client, "/w/tmp/b.dat", "/w/in/b2.dat").await;
    write_file(&client, "/w/tmp/c", 7, OWNER).await;
    let (parent, name) = at(&client, "/w/in/c.dat").await;
    let ino = stat(&client, "/w/tmp/c").await.unwrap().ino;
    let link = v1::Link {
        ino,
        parent,
        name,
        ..v1::Link::default()
    };
    client.one(&root(), Op::Link(link)).await.unwrap();
    settled(&client, 3).await;
    // The directory has more files than are examined in one transaction.
    mkdir(&client, "/w/tmp/in").await;
    for index in 0..230 {
        write_file(&client, &format!("/w/tmp/in/d{index}.dat"), 1, OWNER).await;
    }
    rename(&client, "/w/in", "/w/tmp/old").await;
    rename(&client, "/w/tmp/in", "/w/in").await;
    let done = settled(&client, 233).await;
    assert_eq!(done.len(), 233);
    assert!(done.iter().all(|one| one.state == "done"));
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_version_triggers_rule_separately_with_its_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = with_directories(dir.path()).await;
    add(&client, request(OWNER, RULE)).await;
    pause(&client, true).await;
    let first = write_file(&client, "/w/in/a.dat", 7, OWNER).await;
    let second = overwrite(&client, "/w/in/a.dat", 8).await;
    write_file(&client, "/w/in/moved.dat", 7, OWNER).await;
    rename(&client, "/w/in/moved.dat", "/w/tmp/elsewhere").await;
    write_file(&client, "/w/in/removed.dat", 7, OWNER).await;
    // A file that is deleted before the rules see it has no entry in the log.
    while log(&client).await.len() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unlink(&client, "/w/in/removed.dat").await;
    assert_eq!(
        states(&log(&client).await),
        [
            ("/w/in/a.dat", "queued"),
            ("/w/in/a.dat", "waiting"),
            ("/w/in/moved.dat", "queued"),
            ("/w/in/removed.dat", "queued"),
        ]
    );
    // A version that is to trigger a rule is kept, though it has no name any more.
    tokio::time::sleep(Duration::from_millis(1800)).await;
    pause(&client, false).await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(node.labels().await);
    }
    let inputs = |labels: &[(u64, v1::Analyse)]| -> Vec<u64> {
        labels.iter().map(|(_, one)| one.inputs[0].object).collect()
    };
    assert!(inputs(&seen).contains(&first) && !inputs(&seen).contains(&second));
    assert!(
        !node
            .removals
            .iter()
            .any(|(_, objects)| objects.contains(&first))
    );
    for (label, analyse) in &seen {
        node.finished(*label, success(analyse, 5)).await;
    }
    let next = node.labels().await;
    assert_eq!(inputs(&next), [second]);
    for (label, analyse) in &next {
        node.finished(*label, success(analyse, 5)).await;
    }
    let done = settled(&client, 4).await;
    let ends: Vec<_> = done.iter().map(|one| one.state.as_str()).collect();
    assert_eq!(ends, ["done", "done", "done", "deleted"]);
    assert_eq!(done[3].error, "the file was removed before the rule run");
    while !node.removal().await.1.contains(&first) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn server_killed_at_any_step_triggers_rule_once_per_version() {
    let dir = tempfile::tempdir().unwrap();
    let (mut running, mut node, mut client) = with_directories(dir.path()).await;
    add(&client, request(OWNER, RULE)).await;
    let mut sealed = BTreeSet::new();
    for round in 0..12_u64 {
        for index in 0..5 {
            let path = format!("/w/in/{round}-{index}.dat");
            sealed.insert(write_file(&client, &path, 7, OWNER).await);
        }
        // The crash happens at another step each time: before the job is created, during it, and after it; with ended tasks, and without.
        let worker = (round % 3 == 0).then(|| node.serve());
        tokio::time::sleep(Duration::from_micros(700 * (round % 7))).await;
        running.crash().await;
        worker.inspect(tokio::task::JoinHandle::abort);
        running = Running::start(dir.path()).await;
        client = running.client().await;
        node = running.node(0).await;
    }
    drop(node);
    let worker = running.node(0).await.serve();
    let done = settled(&client, sealed.len()).await;
    assert_eq!(done.len(), sealed.len());
    let triggered: BTreeSet<u64> = done.iter().map(|one| one.object).collect();
    assert_eq!(triggered, sealed);
    assert!(done.iter().all(|one| one.state == "done"), "{done:?}");
    let all = v1::ListJobsRequest {
        credentials: Some(root()),
        everyone: true,
        ..v1::ListJobsRequest::default()
    };
    let jobs = client.jobs().list(all).await.unwrap().into_inner().jobs;
    let tasks: u64 = jobs
        .iter()
        .flat_map(|job| job.tasks_by_state.values().map(|n| u64::from(*n)))
        .sum();
    assert_eq!(tasks, sealed.len() as u64);
    for path in done
        .iter()
        .map(|one| one.path.replace("/in/", "/out/").replace(".dat", ".txt"))
    {
        assert_eq!(stat(&client, &path).await.unwrap().version, 1, "{path}");
    }
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_that_triggers_itself_stops_at_recursion_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_directories(dir.path()).await;
    let worker = node.serve();
    let text = RULE
        .replace("out/{n}.txt", "in/{n}x.dat")
        .replace("task =", "depth = 3; task =");
    add(&client, request(OWNER, &text)).await;
    write_file(&client, "/w/in/a.dat", 7, OWNER).await;
    let done = settled(&client, 4).await;
    assert_eq!(
        states(&done),
        [
            ("/w/in/a.dat", "done"),
            ("/w/in/ax.dat", "done"),
            ("/w/in/axx.dat", "done"),
            ("/w/in/axxx.dat", "loop"),
        ]
    );
    assert_eq!(done[2].depth, 2);
    assert!(
        done[3]
            .error
            .contains("a chain of 3 rule runs led to this file, and rule count allows 3")
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(log(&client).await.len(), 4);
    // A retry begins a new chain.
    assert_eq!(retry(&client, "").await, 1);
    let done = settled(&client, 7).await;
    assert_eq!(done.last().unwrap().state, "loop");
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_rule_runs_are_listed_and_can_be_retried() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = with_directories(dir.path()).await;
    let text = RULE.replace("kernel =", "retries = 0; kernel =");
    add(&client, request(OWNER, &text)).await;
    write_file(&client, "/w/in/a.dat", 7, OWNER).await;
    let labels = node.labels().await;
    node.finished(labels[0].0, failure("exit", "it did not like it"))
        .await;
    let failed = settled(&client, 1).await;
    assert_eq!(
        (
            failed[0].state.as_str(),
            failed[0].error.contains("it did not like it")
        ),
        ("failed", true)
    );
    // A file blocks the output of this job.
    write_file(&client, "/w/out/b.txt/in-the-way", 7, OWNER).await;
    write_file(&client, "/w/in/b.dat", 7, OWNER).await;
    let failed = settled(&client, 2).await;
    assert_eq!(failed[1].state, "failed");
    assert!(
        failed[1].error.contains("/w/out/b.txt"),
        "{}",
        failed[1].error
    );
    unlink(&client, "/w/out/b.txt/in-the-way").await;
    rename(&client, "/w/out/b.txt", "/w/tmp/gone").await;
    let worker = node.serve();
    assert_eq!(retry(&client, "/w/in/b.dat").await, 1);
    assert_eq!(retry(&client, "").await, 1);
    let done = settled(&client, 2).await;
    assert!(done.iter().all(|one| one.state == "done"), "{done:?}");
    assert_eq!(retry(&client, "").await, 0);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_for_all_uses_rights_of_each_file_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_directories(dir.path()).await;
    let worker = node.serve();
    let text = RULE
        .replace("out/{n}.txt", "{n}.txt")
        .replace("\"/w\"", "\"/\"")
        .replace("in/", "home[12]/");
    let for_all = |uid| v1::AddRuleRequest {
        for_all: true,
        ..request(uid, &text)
    };
    let refused = client.rules().add(for_all(OWNER)).await;
    assert!(refused.is_err() || is_administrator(OWNER));
    let text_all = text.replace("\"{n}.txt\"", "\"{dir}/{n}.txt\"");
    add(
        &client,
        v1::AddRuleRequest {
            text: text_all,
            ..for_all(0)
        },
    )
    .await;
    for (directory, uid) in [("/home1", 2001), ("/home2", 2002)] {
        let create = v1::Create {
            name: directory.as_bytes().to_vec(),
            kind: v1::Kind::Directory.into(),
            mode: 0o700,
            uid,
            gid: uid,
            ..v1::Create::default()
        };
        client.one(&root(), Op::Create(create)).await.unwrap();
        write_file(&client, &format!("{directory}/a.dat"), 7, uid).await;
    }
    loop {
        let log = log_of(&client, 0, "count").await;
        if log.iter().filter(|one| one.state == "done").count() == 2 {
            let mut owners = BTreeSet::new();
            for one in &log {
                owners.insert(job(&client, one.job).await.uid);
            }
            assert_eq!(owners, BTreeSet::from([2001, 2002]));
            break;
        }
        assert!(!log.iter().any(|one| one.state == "failed"), "{log:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (path, uid) in [("/home1/a.txt", 2001), ("/home2/a.txt", 2002)] {
        assert_eq!(stat(&client, path).await.unwrap().uid, uid);
    }
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_for_all_skips_files_that_another_user_moved() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, _node, client) = with_directories(dir.path()).await;
    let text = RULE.replace(
        "pattern = \"in/{n}.dat\"",
        "regex = \"(?:in|in/other|in/one)/(?<n>[^/]*)[.]dat\"",
    );
    let for_all = v1::AddRuleRequest {
        for_all: true,
        ..request(0, &text)
    };
    add(&client, for_all).await;
    for (path, uid) in [("/drop", 0), ("/drop/other", 2002), ("/drop/one", 2001)] {
        let create = v1::Create {
            name: path.as_bytes().to_vec(),
            kind: v1::Kind::Directory.into(),
            mode: 0o777,
            uid,
            gid: uid,
            ..v1::Create::default()
        };
        client.one(&root(), Op::Create(create)).await.unwrap();
    }
    let chmod = v1::SetAttr {
        ino: stat(&client, "/w/in").await.unwrap().ino,
        mode: Some(0o777),
        ..v1::SetAttr::default()
    };
    client.one(&root(), Op::SetAttr(chmod)).await.unwrap();
    for path in [
        "/drop/a.dat",
        "/drop/b.dat",
        "/drop/other/c.dat",
        "/drop/one/d.dat",
    ] {
        write_file(&client, path, 7, 2001).await;
    }
    rename_as(&client, &user(2002), "/drop/a.dat", "/w/in/a.dat").await;
    rename_as(&client, &user(2001), "/drop/b.dat", "/w/in/b.dat").await;
    let triggered = async || -> Vec<String> {
        let log = log_of(&client, 0, "count").await;
        log.into_iter().map(|one| one.path).collect()
    };
    assert_eq!(triggered().await, ["/w/in/b.dat"]);
    // Directories are walked later, the older directory first.
    rename_as(&client, &user(2002), "/drop/other", "/w/in/other").await;
    rename_as(&client, &user(2001), "/drop/one", "/w/in/one").await;
    while triggered().await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(triggered().await, ["/w/in/b.dat", "/w/in/one/d.dat"]);
}

fn is_administrator(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_files_trigger_new_rule_and_removed_rule_leaves_no_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (running, node, client) = with_directories(dir.path()).await;
    for index in 0..210 {
        write_file(&client, &format!("/w/in/{index}.dat"), 7, OWNER).await;
    }
    let existing = v1::AddRuleRequest {
        existing: true,
        ..request(OWNER, RULE)
    };
    add(&client, existing).await;
    running.crash().await;
    drop(node);
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let worker = running.node(0).await.serve();
    let done = settled(&client, 210).await;
    assert_eq!(done.len(), 210);
    let twice = client.rules().add(request(OWNER, RULE)).await.unwrap_err();
    assert_eq!(twice.code(), tonic::Code::AlreadyExists);
    let replaced = v1::AddRuleRequest {
        replace: true,
        ..request(OWNER, RULE)
    };
    assert_eq!(add(&client, replaced).await.revision, 2);
    // Queued rule runs are deleted with their rule.
    pause(&client, true).await;
    write_file(&client, "/w/in/last.dat", 7, OWNER).await;
    let request = v1::RuleRequest {
        credentials: Some(user(OWNER)),
        name: "count".into(),
    };
    let removed = client.rules().remove(request).await.unwrap().into_inner();
    assert_eq!(removed.rule_runs["queued"], 1);
    write_file(&client, "/w/in/later.dat", 7, OWNER).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(stat(&client, "/w/out/last.txt").await.is_none());
    worker.abort();
    running.stop().await;
    let database = rusqlite::Connection::open(dir.path().join("server.db")).unwrap();
    let left: i64 = database
        .query_row("SELECT count(*) FROM rule_run", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_batch_passes_files_to_one_task() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, mut node, client) = with_directories(dir.path()).await;
    let text = RULE
        .replace("task =", "batch = { files = 3; after = \"1s\"; }; task =")
        .replace("out/{n}.txt", "out/{batch}.txt");
    add(&client, request(OWNER, &text)).await;
    for index in 0..4 {
        write_file(&client, &format!("/w/in/{index}.dat"), 7, OWNER).await;
    }
    let mut sizes = Vec::new();
    while sizes.len() < 2 {
        for (label, analyse) in node.labels().await {
            sizes.push(analyse.inputs.len());
            node.finished(label, success(&analyse, 5)).await;
        }
    }
    assert_eq!(sizes, [3, 1]);
    let done = settled(&client, 4).await;
    let mut tasks: BTreeMap<u64, usize> = BTreeMap::new();
    for one in &done {
        *tasks.entry(one.task).or_default() += 1;
    }
    assert_eq!(tasks.into_values().collect::<Vec<_>>(), [3, 1]);
}

/// Many sealed files at once cause few jobs, and rules of other users do not wait for these jobs.
#[tokio::test(flavor = "multi_thread")]
async fn burst_of_files_causes_few_rule_jobs_and_delays_no_other_rules() {
    const FILES: usize = 2000;
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_directories(dir.path()).await;
    add(&client, request(OWNER, RULE)).await;
    let other = RULE
        .replace("\"count\"", "\"others\"")
        .replace("in/", "tmp/");
    add(&client, request(OWNER, &other)).await;
    pause(&client, true).await;
    let write = |index: usize| {
        let client = client.clone();
        async move { write_file(&client, &format!("/w/in/{index}.dat"), 1, OWNER).await }
    };
    for start in (0..FILES).step_by(100) {
        futures_util::future::join_all((start..start + 100).map(write)).await;
    }
    pause(&client, false).await;
    write_file(&client, "/w/tmp/a.dat", 1, OWNER).await;
    let worker = node.serve();
    while log_of(&client, OWNER, "others").await[0].state != "done" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let done = settled(&client, FILES).await;
    assert!(done.iter().all(|one| one.state == "done"));
    let jobs: BTreeSet<u64> = done.iter().map(|one| one.job).collect();
    assert!(jobs.len() <= 3, "{}", jobs.len());
    worker.abort();
}

/// The number of running jobs for one user's files is bounded, and another user's rule does not wait for the end of these jobs.
#[tokio::test(flavor = "multi_thread")]
async fn burst_of_one_user_does_not_delay_rules_of_others() {
    const FILES: usize = 1000;
    const OTHER: u32 = 2000;
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_directories(dir.path()).await;
    let create = v1::Create {
        name: b"/theirs".to_vec(),
        kind: v1::Kind::Directory.into(),
        mode: 0o755,
        uid: OTHER,
        gid: OTHER,
        ..v1::Create::default()
    };
    client.one(&root(), Op::Create(create)).await.unwrap();
    // One user has enough rules that each could fill the limit of all users.
    for number in 0..8 {
        let name = format!("\"count{number}\"");
        let text = RULE.replace("\"count\"", &name);
        let text = text.replace("out/{n}", &format!("out/{number}-{{n}}"));
        add(&client, request(OWNER, &text)).await;
    }
    let other = RULE
        .replace("/w", "/theirs")
        .replace("in/", "")
        .replace("out/", "");
    add(&client, request(OTHER, &other)).await;
    let write = |index: usize| {
        let client = client.clone();
        async move { write_file(&client, &format!("/w/in/{index}.dat"), 1, OWNER).await }
    };
    for start in (0..FILES).step_by(100) {
        futures_util::future::join_all((start..start + 100).map(write)).await;
    }
    write_file(&client, "/theirs/a.dat", 1, OTHER).await;
    let worker = node.serve();
    while log_of(&client, OTHER, "count").await[0].state != "done" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut open = 0;
    for number in 0..8 {
        let log = log_of(&client, OWNER, &format!("count{number}")).await;
        open += log.iter().filter(|one| one.state != "done").count();
    }
    assert!(
        open > FILES,
        "{open}: these rules were first, and most of them still wait"
    );
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_rules_are_refused_and_rule_test_stores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, _node, client) = with_directories(dir.path()).await;
    let reply = client
        .rules()
        .add(request(OWNER, "name = 1;"))
        .await
        .unwrap()
        .into_inner();
    assert!(
        reply.errors[0].starts_with("r.conf:1:"),
        "{:?}",
        reply.errors
    );
    assert!(reply.rule.is_none());
    let test = |path: &str| v1::TestRuleRequest {
        credentials: Some(user(OWNER)),
        text: RULE.into(),
        path: path.into(),
        ..v1::TestRuleRequest::default()
    };
    let reply = client
        .rules()
        .test(test("in/x.dat"))
        .await
        .unwrap()
        .into_inner();
    assert!(reply.matches);
    assert_eq!(reply.captures["n"], "x");
    assert!(reply.script.contains("out/x.txt"));
    let reply = client
        .rules()
        .test(test("/w/x.dat"))
        .await
        .unwrap()
        .into_inner();
    assert!(!reply.matches && reply.why.contains("does not match"));
    let list = v1::ListRulesRequest {
        credentials: Some(user(OWNER)),
        ..v1::ListRulesRequest::default()
    };
    assert_eq!(
        client
            .rules()
            .list(list)
            .await
            .unwrap()
            .into_inner()
            .rules
            .len(),
        0
    );
}

const HOOK: &str = r#"
name = "count"; workdir = "/w"; pattern = "in/*.dat"; depth = 1;
hook = { map = "max"; reduce = "max"; output = "/w/out/r{batch}.txt"; };
"#;

/// Returns the hook as the service returns it to clients.
async fn hook(client: &Client) -> v1::Hook {
    let request = v1::ListRulesRequest {
        credentials: Some(user(OWNER)),
        name: "count".into(),
    };
    let mut rules = client.rules().list(request).await.unwrap().into_inner();
    rules.rules.remove(0).hook.unwrap()
}

/// Waits until the batch with this number is the last batch and has this state. Returns the batch.
async fn batch(client: &Client, number: u64, state: &str) -> v1::HookBatch {
    loop {
        let batches = hook(client).await.batches;
        let last = batches.into_iter().next();
        if let Some(last) = last.filter(|last| last.batch == number && last.state == state) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Changes the tables in the database of a stopped server.
fn change(dir: &Path, sql: &str) {
    let db = rusqlite::Connection::open(dir.join("server.db")).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute(sql, []).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hook_batch_fails_at_recursion_limit_until_retried() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_directories(dir.path()).await;
    let worker = node.serve();
    let text = HOOK.replace("out/r{batch}.txt", "in/r{batch}.dat");
    add(&client, request(OWNER, &text)).await;
    write_file(&client, "/w/in/a.dat", 7, OWNER).await;
    let failed = batch(&client, 2, "failed").await;
    assert!(
        failed.error.contains("/w/in/r1.dat was not mapped"),
        "{}",
        failed.error
    );
    assert_eq!((failed.files, failed.mapped), (1, 0));
    assert_eq!(
        states(&log(&client).await),
        [("/w/in/a.dat", "done"), ("/w/in/r1.dat", "loop")]
    );
    // The two are the file and its batch.
    assert_eq!(retry(&client, "").await, 2);
    batch(&client, 3, "failed").await;
    // Rule runs of an earlier server belong to no batch.
    change(dir.path(), "UPDATE rule_run SET batch = 0 WHERE state = 6");
    change(dir.path(), "DELETE FROM batch WHERE state = 4");
    assert_eq!(retry(&client, "").await, 1);
    batch(&client, 4, "failed").await;
    let batches = hook(&client).await.batches;
    let done: Vec<_> = batches
        .iter()
        .map(|batch| (batch.batch, batch.state.as_str(), batch.mapped))
        .collect();
    assert_eq!(
        done,
        [
            (4, "failed", 0),
            (3, "done", 1),
            (2, "done", 1),
            (1, "done", 1)
        ]
    );
    worker.abort();
}

/// The name of the marker sorts before the names of the files. There are more files than one transaction examines.
#[tokio::test(flavor = "multi_thread")]
async fn hook_batch_includes_all_files_moved_with_their_marker() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, node, client) = with_directories(dir.path()).await;
    let worker = node.serve();
    let text = HOOK
        .replace("in/*.dat", "in/*/*.dat")
        .replace("map =", "marker = \"in/*/DONE\"; map =");
    add(&client, request(OWNER, &text)).await;
    mkdir(&client, "/w/tmp/run").await;
    write_file(&client, "/w/tmp/run/DONE", 0, OWNER).await;
    for index in 0..230 {
        write_file(&client, &format!("/w/tmp/run/step-{index}.dat"), 1, OWNER).await;
    }
    rename(&client, "/w/tmp/run", "/w/in/run").await;
    let done = batch(&client, 1, "done").await;
    assert_eq!((done.files, done.mapped), (230, 230));
    // A marker without files ends nothing.
    write_file(&client, "/w/in/other/DONE", 0, OWNER).await;
    write_file(&client, "/w/in/other/later.dat", 1, OWNER).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(hook(&client).await.batches[0].state, "open");
    worker.abort();
}

/// A mount has closed the file, and reports nothing before it seals the file.
#[tokio::test(flavor = "multi_thread")]
async fn hook_batch_with_marker_waits_for_files_closed_before_marker() {
    let dir = tempfile::tempdir().unwrap();
    let (running, node, client) = with_directories(dir.path()).await;
    let text = HOOK.replace("map =", "marker = \"in/DONE\"; map =");
    add(&client, request(OWNER, &text)).await;
    let (session, stream) = mount(&client).await;
    let (ino, object) = client.reserve(1, 1).await.unwrap();
    let create = v1::Create {
        name: b"/w/in/step-8.dat".to_vec(),
        kind: v1::Kind::File.into(),
        mode: 0o600,
        ino: ino.0,
        object: object.0,
        uid: OWNER,
        gid: OWNER,
        ..v1::Create::default()
    };
    let begin = v1::NameRequest {
        credentials: Some(root()),
        ops: vec![v1::NameOp {
            op: Some(Op::Create(create)),
        }],
        session,
        durable: false,
    };
    client.apply(begin).await.unwrap();
    write_file(&client, "/w/in/step-7.dat", 1, OWNER).await;
    write_file(&client, "/w/in/DONE", 0, OWNER).await;
    let waits = async |client: &Client| {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let last = hook(client).await.batches.remove(0);
        let state = (last.batch, last.state.as_str(), last.ended);
        assert_eq!(state, (1, "open", 0));
    };
    waits(&client).await;
    let end = v1::RuleRequest {
        credentials: Some(root()),
        name: "count".into(),
    };
    let refused = client.rules().end_batch(end).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    assert!(refused.message().contains("/w/in/step-8.dat"), "{refused}");
    waits(&client).await;
    running.crash().await;
    drop((stream, node));
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let worker = running.node(0).await.serve();
    waits(&client).await;
    let seal = sealing(&client, (ino.0, object.0), 1).await;
    client.one(&root(), Op::Seal(seal)).await.unwrap();
    let done = batch(&client, 1, "done").await;
    assert_eq!((done.files, done.mapped), (2, 2));
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn hook_with_too_many_pending_files_lags_and_queues_files_when_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, _node, client) = with_directories(dir.path()).await;
    let text = HOOK.replace("map =", "on = \"write\"; map =");
    add(&client, request(OWNER, &text)).await;
    pause(&client, true).await;
    for index in 0..17 {
        assert!(!hook(&client).await.lags);
        write_file(&client, &format!("/w/in/{index}.dat"), 1 << 61, OWNER).await;
    }
    let shown = hook(&client).await;
    assert!(shown.lags && shown.lag_files == 17);
    assert!(shown.lag_bytes > 1 << 62, "{}", shown.lag_bytes);
    let status = client.cluster().status(v1::StatusRequest {}).await.unwrap();
    assert_eq!(status.into_inner().hooks_behind.len(), 1);
    // This file is queued when it is closed.
    let (ino, object) = client.reserve(1, 1).await.unwrap();
    let create = v1::Create {
        name: b"/w/in/begun.dat".to_vec(),
        kind: v1::Kind::File.into(),
        mode: 0o600,
        ino: ino.0,
        object: object.0,
        uid: OWNER,
        gid: OWNER,
        ..v1::Create::default()
    };
    client.one(&root(), Op::Create(create)).await.unwrap();
    assert_eq!(log(&client).await.len(), 17);
}
