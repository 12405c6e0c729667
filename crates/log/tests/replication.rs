//! A leader's database, its records, and a follower.
#![allow(clippy::unwrap_used, reason = "tests")]

use parking_lot::Mutex;
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tidemill_log::{
    Deposed, FileProblem, Follower, LogKey, Record, RecordBase, RecordSender, Replicator,
    ReplicatorSettings, SnapshotFile,
};

/// Log that stores records and confirms them when the test says so.
#[derive(Debug, Default)]
struct Stored(Mutex<Vec<Record>>);

impl RecordSender for Stored {
    fn send(&self, record: Record) {
        self.0.lock().push(record);
    }

    fn store(&self, _: SnapshotFile) {}
}

impl Stored {
    /// Waits for a number of records, and returns their contents.
    fn records(&self, count: usize) -> Vec<Vec<u8>> {
        let until = Instant::now() + Duration::from_secs(20);
        while self.0.lock().len() < count {
            assert!(Instant::now() < until, "{} records", self.0.lock().len());
            std::thread::sleep(Duration::from_millis(2));
        }
        let records = self.0.lock();
        records.iter().map(|record| record.bytes.clone()).collect()
    }
}

struct Leader {
    directory: tempfile::TempDir,
    connection: Connection,
    replicator: Replicator,
    stored: Arc<Stored>,
    key: LogKey,
    base: SnapshotFile,
}

impl Leader {
    fn new(log: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leader.db");
        let connection = Connection::open(&path).unwrap();
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .unwrap();
        connection
            .pragma_update(None, "wal_autocheckpoint", 0)
            .unwrap();
        connection
            .execute_batch("CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)")
            .unwrap();
        let key = LogKey::new(b"key");
        let settings = ReplicatorSettings {
            key: key.clone(),
            cluster: 7,
            term: 1,
            log,
            attached: Vec::new(),
            snapshot: directory.path().join("snapshot"),
        };
        let stored = Arc::new(Stored::default());
        let base = RecordBase::open(&path).unwrap();
        let replicator = Replicator::new(settings, base, stored.clone()).unwrap();
        let base = replicator.write_base().unwrap();
        replicator.start().unwrap();
        Self {
            directory,
            connection,
            replicator,
            stored,
            key,
            base,
        }
    }

    fn commit(&self, sql: &str) -> u64 {
        self.connection.execute_batch(sql).unwrap();
        self.replicator.committed();
        self.replicator.last_commit()
    }

    fn follower(&self, name: &str) -> Follower {
        let path = self.directory.path().join(name);
        Follower::restore(&path, &self.key, (self.base.name, &self.base.path)).unwrap()
    }

    fn rows(&self, name: &str) -> Vec<(i64, Vec<u8>)> {
        rows(&Connection::open(self.directory.path().join(name)).unwrap())
    }
}

fn rows(connection: &Connection) -> Vec<(i64, Vec<u8>)> {
    let check: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
    let mut rows = connection.prepare("SELECT a, b FROM t ORDER BY a").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.unwrap().map(Result::unwrap).collect()
}

/// Fills a table, so that many pages change.
const MANY: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
                    INSERT INTO t SELECT i, randomblob(300) FROM n";

#[test]
fn answers_wait_for_the_log_and_follower_equals_leader() {
    let leader = Leader::new(9);
    let answered = Arc::new(AtomicU32::new(0));
    let answer = |commit| {
        let answered = answered.clone();
        leader.replicator.then(commit, move || {
            answered.fetch_add(1, Ordering::SeqCst);
        });
    };
    answer(leader.commit(MANY));
    leader.stored.records(1);
    // At most four records are on their way; later commits share the next one.
    for a in 1000..1040 {
        answer(leader.commit(&format!("INSERT INTO t VALUES ({a}, x'00')")));
    }
    leader.stored.records(4);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(leader.stored.0.lock().len(), 4);
    assert_eq!(answered.load(Ordering::SeqCst), 0);
    assert!(!leader.replicator.is_complete());
    leader.replicator.acknowledge(1);
    assert!(answered.load(Ordering::SeqCst) >= 1);
    let sent = leader.stored.records(5).len();
    leader.replicator.acknowledge(sent as u64);
    leader
        .replicator
        .wait(leader.replicator.last_commit())
        .unwrap();
    assert_eq!(answered.load(Ordering::SeqCst), 41);
    // A checkpoint needs no record, and changes nothing for the follower.
    let copied = leader.replicator.checkpoint(|| {
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        let copied = leader
            .connection
            .query_row(sql, [], |row| row.get::<_, bool>(0));
        Ok(!copied.unwrap())
    });
    assert!(copied.unwrap());
    leader.commit("DELETE FROM t WHERE a % 3 = 0; INSERT INTO t VALUES (-1, x'01')");
    let mut follower = leader.follower("follower.db");
    for record in leader.stored.records(sent + 1) {
        follower.apply(&record).unwrap();
    }
    follower.end().unwrap();
    assert_eq!(leader.rows("follower.db"), rows(&leader.connection));
}

#[test]
fn damaged_missing_repeated_and_foreign_records_are_refused() {
    let leader = Leader::new(9);
    leader.commit(MANY);
    let first = leader.stored.records(1).remove(0);
    leader.commit("DELETE FROM t WHERE a > 100");
    let second = leader.stored.records(2).remove(1);
    let mut follower = leader.follower("follower.db");
    assert!(matches!(follower.apply(&second), Err(FileProblem::Name)));
    for at in [0, 9, 40, 85, first.len() / 2, first.len() - 1] {
        let mut changed = first.clone();
        changed[at] ^= 1;
        assert!(follower.apply(&changed).is_err(), "byte {at}");
    }
    assert!(follower.apply(&first[..first.len() - 1]).is_err());
    assert!(follower.apply(&[]).is_err());
    let other = Leader::new(8);
    other.commit("INSERT INTO t VALUES (5, x'05')");
    let foreign = other.stored.records(1).remove(0);
    assert!(follower.apply(&foreign).is_err());
    follower.apply(&first).unwrap();
    assert!(follower.apply(&first).is_err());
    follower.apply(&second).unwrap();
    follower.end().unwrap();
    assert_eq!(leader.rows("follower.db"), rows(&leader.connection));
    // A snapshot under another name, with another key, or cut, is no state.
    let (name, path) = (leader.base.name, &leader.base.path);
    let restore = |key: &LogKey, name, path: &Path| {
        Follower::restore(&leader.directory.path().join("no.db"), key, (name, path))
    };
    let renamed = tidemill_log::FileName { term: 2, ..name };
    assert!(restore(&leader.key, renamed, path).is_err());
    assert!(restore(&LogKey::new(b"other"), name, path).is_err());
    let cut = leader.directory.path().join("cut");
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    assert!(restore(&leader.key, name, &cut).is_err());
}

#[test]
fn deposed_leader_answers_nobody() {
    let leader = Leader::new(9);
    let answered = Arc::new(AtomicU32::new(0));
    let told = answered.clone();
    let commit = leader.commit(MANY);
    leader.replicator.then(commit, move || {
        told.fetch_add(1, Ordering::SeqCst);
    });
    leader.stored.records(1);
    leader.replicator.depose(Deposed {
        why: "another server leads".into(),
        by_other: true,
    });
    leader.replicator.acknowledge(1);
    assert!(leader.replicator.wait(commit).is_err());
    assert!(!leader.replicator.is_complete());
    let told = answered.clone();
    leader.replicator.then(commit, move || {
        told.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(answered.load(Ordering::SeqCst), 0);
    assert_eq!(Arc::strong_count(&answered), 1, "no answer is kept");
}
