//! A server whose database can't be written for a while: told as what it is, nothing sent or acknowledged that is
//! not kept, no id used twice, and all goes on by itself when it can be written again.
#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "tests")]

mod array;

use array::{FakeElement, Running, ended, job, root, stat, submit, success, write_file};
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use tidemill_client::Server as Client;
use tidemill_wire::v1::{self, State, name_op::Op};

const JOB: &str = r#"
name = "pair"; workdir = "/w";
tasks = (
  { name = "first"; kernel = "max"; input = ["in"]; output = ["mid"]; },
  { name = "second"; kernel = "min"; input = ["mid"]; output = ["out"]; }
);
"#;

/// How often something that is waited for is looked at.
const PAUSE: Duration = Duration::from_millis(10);

/// How writing to a table fails.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The statement.
    Statement,
    /// The statement, and SQLite ends the transaction with it.
    Transaction,
    /// The commit.
    Commit,
}

/// The server's database, from outside.
struct Database(Mutex<Connection>);

impl Database {
    fn of(folder: &Path) -> Self {
        let db = Connection::open(folder.join("server.db")).unwrap();
        db.busy_timeout(Duration::from_secs(10)).unwrap();
        Self(Mutex::new(db))
    }

    fn run(&self, sql: &str) {
        self.0.lock().unwrap().execute_batch(sql).unwrap();
    }

    /// Makes all writing to a table fail. SQLite checks foreign keys that are deferred with the commit.
    fn fail(&self, table: &str, failure: Failure) {
        let action = match failure {
            Failure::Statement => "SELECT RAISE(ABORT, 'as the test wants it')",
            Failure::Transaction => "SELECT RAISE(ROLLBACK, 'as the test wants it')",
            Failure::Commit => "INSERT INTO dangling VALUES (7)",
        };
        let mut sql = "CREATE TABLE nowhere(id INTEGER PRIMARY KEY); \
                       CREATE TABLE dangling(id REFERENCES nowhere(id) DEFERRABLE INITIALLY DEFERRED);"
            .to_owned();
        for event in ["INSERT", "UPDATE", "DELETE"] {
            sql += &format!(
                "CREATE TRIGGER failing_{event} BEFORE {event} ON {table} BEGIN {action}; END;"
            );
        }
        self.run(&format!("BEGIN; {sql} COMMIT;"));
    }

    fn mend(&self) {
        let sql = "BEGIN; DROP TRIGGER failing_INSERT; DROP TRIGGER failing_UPDATE; DROP TRIGGER failing_DELETE; \
                   DROP TABLE dangling; DROP TABLE nowhere; COMMIT;";
        self.run(sql);
    }

    fn count(&self, sql: &str, id: u64) -> i64 {
        self.0
            .lock()
            .unwrap()
            .query_row(sql, [id.cast_signed()], |row| row.get(0))
            .unwrap()
    }
}

async fn trouble(client: &Client) -> String {
    loop {
        let trouble = client.status().await.unwrap().trouble;
        if !trouble.is_empty() {
            return trouble;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn begin(folder: &Path) -> (Running, Client) {
    let running = Running::start(folder).await;
    let client = running.client().await;
    let element = running.element(0).await;
    write_file(&client, "/w/in", 100, 1000).await;
    let chown = v1::SetAttr {
        ino: stat(&client, "/w").await.unwrap().ino,
        uid: Some(1000),
        ..v1::SetAttr::default()
    };
    client.one(&root(), Op::SetAttr(chown)).await.unwrap();
    drop(element);
    (running, client)
}

/// What an element saw, checked against the database whenever it sees something.
#[derive(Default)]
struct Seen {
    labels: BTreeSet<u64>,
    objects: BTreeSet<u64>,
}

impl Seen {
    /// The next labels: each is in the journal already, and none of its ids was seen before.
    async fn labels(
        &mut self,
        element: &mut FakeElement,
        db: &Database,
    ) -> Vec<(u64, v1::Analyse)> {
        let labels = element.labels().await;
        for (label, analyse) in &labels {
            let journaled = db.count("SELECT count(*) FROM label WHERE label = ?1", *label);
            assert_eq!(journaled, 1, "label {label} was sent before it was kept");
            assert!(self.labels.insert(*label), "label {label} twice");
            for output in &analyse.outputs {
                assert!(self.objects.insert(output.object), "an object twice");
            }
        }
        labels
    }
}

/// Runs a job while a table can't be written, first when its labels are to be sent, then when its first outcome
/// is told.
async fn through(table: &'static str, failure: Failure) {
    let folder = tempfile::tempdir().unwrap();
    let (running, client) = begin(folder.path()).await;
    let db = Database::of(folder.path());
    let submitted = submit(&client, 1000, JOB).await;
    assert_eq!(submitted.errors, Vec::<String>::new());
    let what = format!("{table}, {failure:?}");
    let touched_by_sending = matches!(table, "label" | "decision" | "task");
    if touched_by_sending {
        db.fail(table, failure);
    }
    let mut seen = Seen::default();
    let mut element = running.element(0).await;
    if touched_by_sending {
        let said = trouble(&client).await;
        assert!(said.starts_with("jobs wait: "), "{what}: {said}");
        assert!(!said.contains("shutting down"), "{what}: {said}");
        db.mend();
    }
    // One after the other or chained, as the policy likes it.
    let mut labels = seen.labels(&mut element, &db).await;
    let touched_by_ending = table != "decision";
    if touched_by_ending {
        db.fail(table, failure);
    }
    let (first, analyse) = labels.remove(0);
    element.finished(first, success(&analyse, 5)).await;
    if touched_by_ending {
        trouble(&client).await;
        db.mend();
    }
    element.acknowledged(vec![first]).await;
    let done = db.count(
        "SELECT count(*) FROM task_output JOIN task USING (task) WHERE label = ?1",
        first,
    );
    assert_eq!(done, 1, "{what}: acknowledged before it was kept");
    if labels.is_empty() {
        labels = seen.labels(&mut element, &db).await;
    }
    for (label, analyse) in labels {
        element.finished(label, success(&analyse, 5)).await;
    }
    let ended = ended(&client, submitted.job).await;
    assert_eq!(ended.state, i32::from(State::Done), "{what}: {ended:?}");
    assert!(stat(&client, "/w/out").await.is_some(), "{what}");
    assert_eq!(client.status().await.unwrap().trouble, "", "{what}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_or_acknowledged_that_is_not_kept_wherever_writing_fails() {
    let tables = [
        "label",
        "decision",
        "task",
        "task_output",
        "version",
        "dirent",
    ];
    let failures = [Failure::Statement, Failure::Transaction, Failure::Commit];
    let mut all = tokio::task::JoinSet::new();
    for table in tables {
        for failure in failures {
            all.spawn(through(table, failure));
        }
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_somebody_else_holds_makes_jobs_and_names_wait_or_fail_and_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (running, client) = begin(folder.path()).await;
    let submitted = submit(&client, 1000, JOB).await;
    let db = Database::of(folder.path());
    db.run("BEGIN IMMEDIATE");
    let mut seen = Seen::default();
    let mut element = running.element(0).await;
    let said = trouble(&client).await;
    assert!(said.contains("locked"), "{said}");
    let refused = client.one(&root(), array::file_op("meanwhile")).await;
    assert!(
        refused
            .as_ref()
            .is_err_and(|error| error.is(rustix::io::Errno::IO)),
        "{refused:?}"
    );
    db.run("ROLLBACK");
    let mut labels = seen.labels(&mut element, &db).await;
    while let Some((label, analyse)) = labels.pop() {
        element.finished(label, success(&analyse, 5)).await;
        if job(&client, submitted.job).await.state == i32::from(State::Running)
            && seen.labels.len() < 2
        {
            labels.extend(seen.labels(&mut element, &db).await);
        }
    }
    assert_eq!(
        ended(&client, submitted.job).await.state,
        i32::from(State::Done)
    );
    client
        .one(&root(), array::file_op("meanwhile"))
        .await
        .unwrap();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_database_can_not_be_written_stops_at_once_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (running, client) = begin(folder.path()).await;
    let submitted = submit(&client, 1000, JOB).await;
    let db = Database::of(folder.path());
    db.fail("label", Failure::Commit);
    let element = running.element(0).await;
    trouble(&client).await;
    drop((element, client));
    running.stop().await;
    // It starts all the same, and goes on when it can.
    let running = Running::start(folder.path()).await;
    let client = running.client().await;
    let element = running.element(0).await;
    trouble(&client).await;
    db.mend();
    let worker = element.serve();
    assert_eq!(
        ended(&client, submitted.job).await.state,
        i32::from(State::Done)
    );
    running.stop().await;
    let seen = worker.await.unwrap();
    let labels: BTreeSet<u64> = seen.iter().map(|(label, _)| *label).collect();
    assert_eq!(
        labels.len(),
        seen.len(),
        "a label was sent twice to one element"
    );
}

/// A file system of so many bytes that goes with this.
struct Small(tempfile::TempDir);

impl Small {
    fn new(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"])
            .arg(folder.path())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(folder));
        }
        assert!(std::env::var_os("CI").is_none(), "tmpfs can't be mounted");
        eprintln!("SKIPPED: a full disk needs the right to mount tmpfs");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.0.path())
            .status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_as_one_and_all_goes_on_when_there_is_room() {
    let Some(disk) = Small::new(6 << 20) else {
        return;
    };
    let folder = disk.0.path().join("server");
    let (running, client) = begin(&folder).await;
    let submitted = submit(&client, 1000, JOB).await;
    let filler = disk.0.path().join("filler");
    let mut made = 0;
    for round in 0..3 {
        // What the log has room for still goes in.
        let full = std::fs::write(&filler, vec![0; 8 << 20]);
        assert!(full.is_err(), "the disk is not full");
        let mut names = Vec::new();
        let refused = loop {
            let name = format!("{round}-{made}");
            match client.one(&root(), array::file_op(&name)).await {
                Ok(_) => names.push(name),
                Err(error) => break (name, error),
            }
            made += 1;
        };
        assert!(refused.1.is(rustix::io::Errno::NOSPC), "{}", refused.1);
        assert!(
            refused.1.to_string().contains("free some space"),
            "{}",
            refused.1
        );
        let reserved = client.reserve(1, 1).await.unwrap_err();
        assert!(reserved.to_string().contains("full"), "{reserved}");
        assert_ne!(trouble(&client).await, "");
        std::fs::remove_file(&filler).unwrap();
        // The same again, and nothing of what was acknowledged is gone.
        client
            .one(&root(), array::file_op(&refused.0))
            .await
            .unwrap();
        for name in names {
            assert!(stat(&client, &format!("/{name}")).await.is_some(), "{name}");
        }
    }
    // A job whose end finds the disk full.
    let db = Database::of(&folder);
    let mut seen = Seen::default();
    let mut element = running.element(0).await;
    let mut labels = seen.labels(&mut element, &db).await;
    let _ = std::fs::write(&filler, vec![0; 8 << 20]);
    while client
        .one(&root(), array::file_op(&format!("more-{made}")))
        .await
        .is_ok()
    {
        made += 1;
    }
    let (label, analyse) = labels.remove(0);
    element.finished(label, success(&analyse, 5)).await;
    while !trouble(&client).await.starts_with("jobs wait: ") {
        tokio::time::sleep(PAUSE).await;
    }
    std::fs::remove_file(&filler).unwrap();
    element.acknowledged(vec![label]).await;
    if labels.is_empty() {
        labels = seen.labels(&mut element, &db).await;
    }
    for (label, analyse) in labels {
        element.finished(label, success(&analyse, 5)).await;
    }
    assert_eq!(
        ended(&client, submitted.job).await.state,
        i32::from(State::Done)
    );
    drop(db);
    running.stop().await;
}
