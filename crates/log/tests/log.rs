//! The log of real databases: restored databases are equal byte for byte, whatever happens to the database and to the files.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_log::{
    Checkpoints, FileKind, FileName, FileProblem, LogKey, LogSettings, LogWriter, RestoreError,
    Restored, restore,
};

struct Writer(Arc<Mutex<Connection>>);

impl Checkpoints for Writer {
    fn checkpoint(&self, before: &mut dyn FnMut() -> bool) -> io::Result<bool> {
        let db = self.0.lock().unwrap();
        Ok(before() && checkpoint(&db, "PASSIVE"))
    }
}

fn checkpoint(db: &Connection, mode: &str) -> bool {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let (busy, log, done): (i64, i64, i64) = db.query_row(&sql, [], row).unwrap();
    busy == 0 && log == done
}

/// A database with its log.
struct Logged {
    // The log is dropped after the connection.
    db: Option<Arc<Mutex<Connection>>>,
    log: LogWriter,
    directory: tempfile::TempDir,
}

impl Logged {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::open(directory, 1)
    }

    fn open(directory: tempfile::TempDir, term: u64) -> Self {
        let path = directory.path().join("a.db");
        let db = Connection::open(&path).unwrap();
        db.pragma_update(None, "journal_mode", "WAL").unwrap();
        db.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        db.pragma_update(None, "synchronous", "OFF").unwrap();
        db.busy_timeout(Duration::ZERO).unwrap();
        db.execute_batch("CREATE TABLE IF NOT EXISTS t(k INTEGER PRIMARY KEY, v BLOB)")
            .unwrap();
        let db = Arc::new(Mutex::new(db));
        let log = start(directory.path(), term, &db);
        Self {
            db: Some(db),
            log,
            directory,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, sql: &str) {
        let db = self.db.as_ref().unwrap().lock().unwrap();
        db.execute_batch(sql).unwrap();
        drop(db);
        self.log.committed();
    }

    fn fill(&self, k: u32, bytes: u32) {
        self.run(&format!(
            "INSERT OR REPLACE INTO t VALUES ({k}, randomblob({bytes}))"
        ));
    }

    fn flush(&self) {
        let status = self.log.flush(Duration::from_secs(60));
        assert_eq!(status.trouble, None);
    }

    /// Closes the log and the database, whose file then has everything.
    fn close(&mut self) -> Vec<u8> {
        self.log.close();
        self.db = None;
        std::fs::read(self.path("a.db")).unwrap()
    }

    fn files(&self) -> BTreeMap<FileName, PathBuf> {
        files(&self.path("log"))
    }

    fn restore(&self, until: Option<i64>) -> Result<(Vec<u8>, Restored), RestoreError> {
        restore_from(&[self.path("log")], until)
    }
}

/// Makes the ids of logs differ.
static NEXT: AtomicU32 = AtomicU32::new(1);

fn start(directory: &Path, term: u64, db: &Arc<Mutex<Connection>>) -> LogWriter {
    let attached = directory.join("token");
    std::fs::write(&attached, "secret").unwrap();
    let settings = LogSettings {
        directory: directory.join("log"),
        database: directory.join("a.db"),
        key: key(),
        cluster: 7,
        term,
        log: NEXT.fetch_add(0x1_0001, Ordering::Relaxed),
        retention: Duration::from_secs(3600),
        attached: vec![attached, directory.join("absent")],
    };
    let writer = Arc::new(Writer(db.clone()));
    LogWriter::start(settings, writer, Box::new(|| ())).unwrap()
}

fn key() -> LogKey {
    LogKey::new(b"key of the cluster")
}

fn files(log: &Path) -> BTreeMap<FileName, PathBuf> {
    let entries = std::fs::read_dir(log).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let named = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        (name.parse().expect(name), path)
    };
    paths.map(named).collect()
}

fn restore_from(logs: &[PathBuf], until: Option<i64>) -> Result<(Vec<u8>, Restored), RestoreError> {
    let into = tempfile::tempdir().unwrap();
    let path = into.path().join("b.db");
    let restored = restore(logs, &key(), until, &path)?;
    let db = Connection::open(&path).unwrap();
    let check: String = db
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
    drop(db);
    Ok((std::fs::read(&path).unwrap(), restored))
}

#[derive(Clone, Debug)]
enum Step {
    Fill(u32, u32),
    Delete(u32),
    RolledBack(u32),
    Vacuum,
    Table(u8),
    Flush,
    Checkpoint,
    /// Another program makes a checkpoint.
    Foreign(&'static str),
    /// The owner makes a checkpoint and tells the log.
    Told,
    Reader,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u32..40, 0_u32..30_000).prop_map(|(k, bytes)| Step::Fill(k, bytes)),
        3 => (0_u32..40).prop_map(Step::Delete),
        1 => (0_u32..40).prop_map(Step::RolledBack),
        1 => Just(Step::Vacuum),
        1 => any::<u8>().prop_map(Step::Table),
        4 => Just(Step::Flush),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Foreign("PASSIVE")),
        1 => Just(Step::Foreign("TRUNCATE")),
        1 => Just(Step::Told),
        1 => Just(Step::Reader),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn restored_database_equals_logged_database(steps in prop::collection::vec(step(), 1..40)) {
        let mut logged = Logged::new();
        let (mut term, mut reader) = (1, None);
        for step in steps {
            match step {
                Step::Fill(k, bytes) => logged.fill(k, bytes),
                Step::Delete(k) => logged.run(&format!("DELETE FROM t WHERE k = {k}")),
                // The pages exceed the cache, so they reach the write-ahead log before the end of the transaction.
                Step::RolledBack(k) => logged.run(&format!(
                    "PRAGMA cache_size = 10; BEGIN; INSERT OR REPLACE INTO t VALUES ({k}, randomblob(300000)); ROLLBACK"
                )),
                Step::Vacuum => {
                    reader = None;
                    logged.run("VACUUM");
                }
                Step::Table(n) => logged.run(&format!("CREATE TABLE IF NOT EXISTS t{n}(a, b)")),
                Step::Flush => logged.flush(),
                Step::Checkpoint => logged.log.checkpoint(),
                Step::Foreign(mode) => {
                    logged.flush();
                    if mode == "PASSIVE" {
                        // The checkpoint copies transactions that the log has not read.
                        logged.fill(1, 3000);
                        logged.flush();
                        logged.fill(2, 3000);
                    }
                    let other = Connection::open(logged.path("a.db")).unwrap();
                    other.busy_timeout(Duration::ZERO).unwrap();
                    checkpoint(&other, mode);
                }
                Step::Told => {
                    logged.log.disturb();
                    checkpoint(&logged.db.as_ref().unwrap().lock().unwrap(), "TRUNCATE");
                }
                Step::Reader => {
                    let other = Connection::open(logged.path("a.db")).unwrap();
                    other.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
                    reader = Some(other);
                }
                Step::Restart => {
                    reader = None;
                    logged.close();
                    term += 1;
                    let Logged { directory, .. } = logged;
                    logged = Logged::open(directory, term);
                }
            }
        }
        drop(reader);
        logged.flush();
        let expected = logged.close();
        let (found, restored) = logged.restore(None).unwrap();
        prop_assert_eq!(restored.gap, None);
        prop_assert!(restored.unusable.is_empty());
        prop_assert!(found == expected, "the database of {} bytes differs", expected.len());
    }
}

#[test]
fn each_earlier_state_can_be_restored() {
    let mut logged = Logged::new();
    logged.flush();
    let mut states = Vec::new();
    for k in 0..12 {
        logged.fill(k % 5, 9000 * (k % 4));
        logged.flush();
        let status = logged.log.status();
        let (bytes, restored) = logged.restore(None).unwrap();
        assert_eq!((restored.time, restored.cluster), (status.time, 7));
        assert_eq!(restored.attached[0].content, b"secret");
        assert_eq!(restored.attached.len(), 1);
        states.push((status.time, bytes));
    }
    for (time, bytes) in &states {
        for until in [*time, time + 1] {
            let (found, restored) = logged.restore(Some(until)).unwrap();
            assert!(found == *bytes && restored.time == *time);
        }
    }
    // A changed file of the server's directory is part of the next segment, also without a changed page.
    std::fs::write(logged.path("token"), "other").unwrap();
    logged.flush();
    let (bytes, restored) = logged.restore(None).unwrap();
    assert!(bytes == states[11].1);
    assert_eq!(restored.attached[0].content, b"other");
    let before = logged.restore(Some(1)).unwrap_err();
    assert!(
        matches!(before, RestoreError::NoSnapshot { .. }),
        "{before}"
    );
    logged.close();
}

#[test]
fn shrunk_and_grown_database_is_restored() {
    let mut logged = Logged::new();
    logged.fill(1, 500_000);
    logged.flush();
    for _ in 0..2 {
        logged.run("DELETE FROM t; VACUUM");
        logged.flush();
        logged.log.checkpoint();
        logged.fill(2, 400_000);
        logged.flush();
        logged.run("DELETE FROM t; VACUUM");
        logged.flush();
        logged.fill(3, 600_000);
        logged.flush();
    }
    let expected = logged.close();
    let (found, restored) = logged.restore(None).unwrap();
    assert!(found == expected && restored.gap.is_none());
}

#[test]
fn small_commits_share_segments_also_after_a_checkpoint() {
    let mut logged = Logged::new();
    logged.fill(1, 9_000_000);
    logged.flush();
    logged.log.checkpoint();
    logged.flush();
    let before = logged.files().len();
    for k in 0..40 {
        logged.fill(2, 10 + k);
        std::thread::sleep(Duration::from_millis(5));
    }
    logged.flush();
    assert!(logged.files().len() < before + 10);
    logged.close();
}

#[test]
fn damaged_files_are_refused_and_replaced_by_copies() {
    let mut logged = Logged::new();
    logged.flush();
    for k in 0..5 {
        logged.fill(k, 5000);
        logged.flush();
    }
    let expected = logged.close();
    let copy = logged.path("copy");
    for (name, path) in logged.files() {
        let content = std::fs::read(&path).unwrap();
        let length = content.len();
        let change = |at: usize| {
            let mut changed = content.clone();
            changed[at] ^= 1;
            changed
        };
        let mut damaged = vec![
            Vec::new(),
            content[..length - 1].to_vec(),
            [&content[..], b"x"].concat(),
        ];
        damaged.extend((0..length).step_by((length / 97).max(1)).map(change));
        for changed in damaged {
            std::fs::write(&path, &changed).unwrap();
            match logged.restore(None) {
                Ok((found, restored)) => {
                    assert_ne!(name.kind, FileKind::Snapshot);
                    assert!(found != expected);
                    assert_eq!(restored.last.number, name.number - 1);
                    assert_eq!(restored.gap, Some((name.number, 5)));
                    assert_eq!(restored.unusable.len(), 1);
                }
                Err(error) => {
                    assert_eq!(name.kind, FileKind::Snapshot, "{error}");
                    assert!(
                        matches!(&error, RestoreError::NoSnapshot { unusable } if unusable.len() == 1),
                        "{error}"
                    );
                }
            }
            // Another node has a good copy.
            std::fs::create_dir_all(&copy).unwrap();
            std::fs::write(copy.join(name.to_string()), &content).unwrap();
            let (found, restored) =
                restore_from(&[logged.path("log"), copy.clone()], None).unwrap();
            assert!(found == expected);
            assert_eq!(restored.unusable.len(), 1);
            std::fs::remove_dir_all(&copy).unwrap();
        }
        std::fs::write(&path, content).unwrap();
    }
}

#[test]
fn swapped_missing_and_foreign_files_are_refused() {
    let mut logged = Logged::new();
    logged.flush();
    for k in 0..4 {
        logged.fill(k, 5000);
        logged.flush();
    }
    logged.close();
    let segments: Vec<_> = logged
        .files()
        .into_iter()
        .filter(|(name, _)| name.kind == FileKind::Segment)
        .collect();
    let read = |at: usize| std::fs::read(&segments[at].1).unwrap();
    let (second, third) = (read(1), read(2));
    // Two files with each other's names.
    std::fs::write(&segments[1].1, &third).unwrap();
    std::fs::write(&segments[2].1, &second).unwrap();
    let (_, restored) = logged.restore(None).unwrap();
    assert_eq!(restored.last.number, 1);
    assert!(matches!(restored.unusable[0].1, FileProblem::Name));
    // A missing file.
    std::fs::remove_file(&segments[1].1).unwrap();
    std::fs::write(&segments[2].1, &third).unwrap();
    let (_, restored) = logged.restore(None).unwrap();
    assert_eq!((restored.last.number, restored.gap), (1, Some((2, 4))));
    // Files of other kinds.
    let mut newer = second.clone();
    newer[8] = 2;
    for (content, expected) in [
        (b"no file of a log".repeat(9), "is not a file of a log"),
        (newer, "use a later release"),
    ] {
        std::fs::write(&segments[1].1, content).unwrap();
        let (_, restored) = logged.restore(None).unwrap();
        let problem = restored.unusable[0].1.to_string();
        assert!(problem.contains(expected), "{problem}");
    }
    // The key of another cluster.
    let other = restore(
        &[logged.path("log")],
        &LogKey::new(b"other"),
        None,
        &logged.path("b.db"),
    );
    let text = other.unwrap_err().to_string();
    assert!(text.contains("another key"), "{text}");
}

#[test]
fn two_servers_with_one_database_are_noticed() {
    let mut logged = Logged::new();
    logged.flush();
    logged.close();
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(logged.path("a.db"), copy.path().join("a.db")).unwrap();
    let mut second = Logged::open(copy, 1);
    second.fill(1, 100);
    second.flush();
    let second_state = second.close();
    let both = [logged.path("log"), second.path("log")];
    let error = restore_from(&both, None).unwrap_err();
    assert!(
        matches!(&error, RestoreError::TwoLogs(logs) if logs.len() == 2),
        "{error}"
    );
    // If one of them can't be restored, the other one is, whatever their order.
    let first_state = std::fs::read(logged.path("a.db")).unwrap();
    for (damaged, expected) in [(&logged, &second_state), (&second, &first_state)] {
        let snapshot = damaged
            .files()
            .into_iter()
            .find(|(name, _)| name.kind == FileKind::Snapshot);
        let path = snapshot.unwrap().1;
        let content = std::fs::read(&path).unwrap();
        std::fs::write(&path, &content[..content.len() - 1]).unwrap();
        let (found, _) = restore_from(&both, None).unwrap();
        assert!(found == *expected);
        std::fs::write(&path, content).unwrap();
    }
    // A later term wins.
    let Logged { directory, .. } = logged;
    let mut logged = Logged::open(directory, 2);
    logged.fill(2, 100);
    logged.flush();
    let expected = logged.close();
    let (found, restored) = restore_from(&[logged.path("log"), second.path("log")], None).unwrap();
    assert!(found == expected && found != second_state);
    assert_eq!(
        (restored.term_max, restored.later, restored.logs.len()),
        (2, false, 3)
    );
    // A log of a later term without its snapshot is reported.
    for (name, path) in logged.files() {
        if name.term == 2 && name.kind == FileKind::Snapshot {
            std::fs::remove_file(path).unwrap();
        }
    }
    let (_, restored) = restore_from(&[logged.path("log")], None).unwrap();
    assert!(restored.later && restored.last.term == 1);
}

#[test]
fn log_that_can_not_be_written_is_reported_and_continues() {
    let mut logged = Logged::new();
    logged.flush();
    let (log, away) = (logged.path("log"), logged.path("away"));
    std::fs::rename(&log, &away).unwrap();
    std::fs::write(&log, "").unwrap();
    logged.fill(1, 5000);
    let status = logged.log.flush(Duration::from_secs(60));
    assert!(status.pending && status.trouble.is_some(), "{status:?}");
    std::fs::remove_file(&log).unwrap();
    std::fs::rename(&away, &log).unwrap();
    logged.fill(2, 5000);
    logged.flush();
    let expected = logged.close();
    let (found, restored) = logged.restore(None).unwrap();
    assert!(found == expected && restored.gap.is_none());
}

#[test]
fn log_has_no_plain_text() {
    let mut logged = Logged::new();
    logged.run(
        "INSERT INTO t VALUES (1, 'a very secret name of a file, a very secret name of a file')",
    );
    logged.flush();
    logged.close();
    for path in logged.files().values() {
        let content = std::fs::read(path).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        let plain = content.windows(6).any(|part| part == b"secret");
        assert!(!plain, "{}", path.display());
    }
    let file = std::fs::File::open(logged.path("a.db")).unwrap();
    let mut page = vec![0; 16];
    file.read_exact_at(&mut page, 0).unwrap();
    assert_eq!(&page, b"SQLite format 3\0");
}
