//! Database of the node: schema, migrations, and one writer thread that commits many changes in one transaction. The module reads and
//! writes the database files in the node's directory.
//!
//! The module runs SQL; [`crate::records`] defines the meaning of the rows. With `synchronous=NORMAL` in WAL mode, a commit survives `kill
//! -9`. A durable change syncs its whole group. Commits need no free space on the device: `reserve.rs`.

use crate::reserve::{self, CheckpointKind, ReserveKeeper, SpaceState};
use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use tokio::sync::oneshot;

/// Version of the schema (`PRAGMA user_version`).
pub const SCHEMA_VERSION: u32 = 1;

/// Maximum number of changes that one transaction commits.
const GROUP_MAX: usize = 2000;

/// Maximum number of prepared statements that each connection keeps.
const STATEMENTS_MAX: usize = 256;

/// Maximum number of changes that wait for the commit of another change.
const RIDERS_MAX: usize = 1000;

/// Number of connections for reading; an additional reader waits.
const READERS: usize = 2;

/// Length of the write-ahead log, in pages, at which it is checkpointed.
const LOG_PAGES: i64 = 1000;

/// Length of the write-ahead log, in pages, at which SQLite itself checkpoints the log, if the writer has not done so before.
const LOG_PAGES_MAX: u32 = 3000;

/// Number of changes between two checks of the write-ahead log's length.
const CHANGES_PER_LOOK: usize = 32;

/// Migrations of the schema. Number `n` converts a database from version `n` to version `n + 1`. A released migration never changes.
const MIGRATIONS: [&str; SCHEMA_VERSION as usize] = [TABLES];

// `object_unhashed` leaves out stub objects: hashing one would fetch all of it.
const TABLES: &str = "
    CREATE TABLE object (
        id INTEGER PRIMARY KEY,
        kind INTEGER NOT NULL,
        state INTEGER NOT NULL,
        hash BLOB,
        corruption TEXT,
        stub INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX object_unhashed ON object (id)
        WHERE kind = 0 AND hash IS NULL AND corruption IS NULL AND stub = 0;
    CREATE INDEX object_corrupt ON object (id) WHERE corruption IS NOT NULL;
    CREATE TABLE membership (
        collection INTEGER NOT NULL,
        position INTEGER NOT NULL,
        object INTEGER NOT NULL,
        PRIMARY KEY (collection, position)
    ) WITHOUT ROWID;
    CREATE INDEX membership_object ON membership (object);
    CREATE TABLE attribute (
        object INTEGER NOT NULL,
        page INTEGER NOT NULL,
        number INTEGER NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (object, page, number)
    ) WITHOUT ROWID;
    CREATE TABLE label (
        id INTEGER PRIMARY KEY,
        seq INTEGER NOT NULL UNIQUE,
        payload BLOB NOT NULL,
        state INTEGER NOT NULL,
        outcome BLOB,
        acked INTEGER NOT NULL
    );
    CREATE INDEX label_known ON label (seq) WHERE acked = 0;
    CREATE TABLE identity (
        key TEXT PRIMARY KEY,
        value BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE backend (
        object INTEGER PRIMARY KEY,
        path TEXT NOT NULL,
        size INTEGER NOT NULL,
        tag TEXT NOT NULL,
        checked INTEGER NOT NULL,
        stub INTEGER NOT NULL,
        deleted INTEGER NOT NULL DEFAULT 0,
        packed INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX backend_path ON backend (path);
    CREATE INDEX backend_deleted ON backend (object) WHERE deleted = 1;
    CREATE INDEX backend_unpacked ON backend (object) WHERE deleted > 0 AND packed = 1;
    CREATE TABLE pack (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        path TEXT NOT NULL UNIQUE,
        state INTEGER NOT NULL,
        size INTEGER NOT NULL,
        tag TEXT NOT NULL,
        checked INTEGER NOT NULL,
        total INTEGER NOT NULL,
        live INTEGER NOT NULL,
        since INTEGER NOT NULL
    );
    CREATE INDEX pack_begun ON pack (id) WHERE state = 0;
    CREATE INDEX pack_deleted ON pack (id) WHERE state = 2;
    CREATE INDEX pack_dead ON pack (since) WHERE state = 1 AND live = 0;
    CREATE INDEX pack_sparse ON pack (id) WHERE state = 1 AND live > 0 AND total > live * 2;
    CREATE INDEX pack_size ON pack (size) WHERE state = 1 AND live > 0;
    CREATE TABLE chunk (
        hash BLOB PRIMARY KEY,
        pack INTEGER NOT NULL,
        frame INTEGER NOT NULL,
        stored INTEGER NOT NULL,
        plain INTEGER NOT NULL,
        at INTEGER NOT NULL,
        size INTEGER NOT NULL,
        count INTEGER NOT NULL,
        bad INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX chunk_pack ON chunk (pack, frame, at);
    CREATE TABLE manifest (
        object INTEGER NOT NULL,
        at INTEGER NOT NULL,
        pack INTEGER NOT NULL,
        part BLOB NOT NULL,
        PRIMARY KEY (object, at)
    );
    CREATE INDEX manifest_pack ON manifest (pack);
    CREATE TABLE backend_attempt (
        path TEXT NOT NULL,
        object INTEGER NOT NULL,
        since INTEGER NOT NULL,
        again INTEGER NOT NULL DEFAULT 0,
        size INTEGER,
        tag TEXT,
        checked INTEGER,
        aside INTEGER,
        PRIMARY KEY (path, object)
    ) WITHOUT ROWID;
    CREATE INDEX backend_attempt_object ON backend_attempt (object);
";

/// Error of the node's database.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// SQLite returned an error.
    #[error("the node's database {path} failed: {source}")]
    Sqlite {
        /// Path of the database file.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// The transaction that contains the change could not be committed.
    #[error("the node's database could not commit: {0}; is its device full?")]
    Commit(Arc<rusqlite::Error>),
    /// A newer release of Tidemill created the database.
    #[error(
        "{path} has version {found} of the node's schema, this program knows {SCHEMA_VERSION}: use the newer release"
    )]
    Newer {
        /// Path of the database file.
        path: PathBuf,
        /// Version of the database's schema.
        found: u32,
    },
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopped,
}

/// Handle of the node's database. A clone is cheap and refers to the same database.
///
/// The queue of changes has no limit of its own: each change belongs to a label or to a request that waits for the change, and labels and
/// requests are limited. A limit of the queue would let the writer's own follow-up changes block the writer.
#[derive(Clone, Debug)]
pub struct Db {
    path: Arc<Path>,
    writes: mpsc::Sender<DbMessage>,
    riders: Arc<Riders>,
    commits: Arc<AtomicU64>,
    readers: Arc<[SharedConnection]>,
    writer: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
    left: Arc<SpaceState>,
    /// File that stays open until the last connection is closed; see [`reserve::hold_index`].
    _index: Option<Arc<File>>,
}

/// Changes that wait for the commit of another change.
#[derive(Default)]
struct Riders(Mutex<Vec<Box<dyn GroupedChange>>>);

impl std::fmt::Debug for Riders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Riders").field(&self.0.lock().len()).finish()
    }
}

/// SQLite connection that several threads use one after the other.
pub type SharedConnection = Arc<Mutex<Connection>>;

/// Writer of the database, which commits changes. The writer has a thread of its own, or a simulation calls the writer for each commit.
#[derive(Debug)]
pub struct DbWriter {
    connection: SharedConnection,
    incoming: mpsc::Receiver<DbMessage>,
    riders: Arc<Riders>,
    /// Reserved disk space; `None` for a database without a file.
    reserve: Option<ReserveKeeper>,
    left: Arc<SpaceState>,
    /// Number of changes since the last check of the write-ahead log's length.
    changes: usize,
    _index: Option<Arc<File>>,
}

enum DbMessage {
    Change(Box<dyn GroupedChange>),
    Stop,
}

/// Change that is committed together with other changes.
trait GroupedChange: Send {
    fn durable(&self) -> bool;
    fn apply(&mut self, connection: &Connection);
    fn failed(&mut self) -> bool;
    fn done(self: Box<Self>, commit: Result<(), Arc<rusqlite::Error>>);
}

struct QueuedChange<T, F, D> {
    durable: bool,
    change: Option<F>,
    result: Option<Result<T, rusqlite::Error>>,
    done: D,
}

impl<T, F, D> QueuedChange<T, F, D> {
    fn new(durable: bool, change: F, done: D) -> Self {
        Self {
            durable,
            change: Some(change),
            result: None,
            done,
        }
    }
}

impl<T, F, D> GroupedChange for QueuedChange<T, F, D>
where
    T: Send,
    F: FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send,
    D: FnOnce(Result<T, DbError>) + Send,
{
    fn durable(&self) -> bool {
        self.durable
    }

    fn apply(&mut self, connection: &Connection) {
        self.result = self.change.take().map(|change| change(connection));
    }

    fn failed(&mut self) -> bool {
        matches!(self.result, Some(Err(_)))
    }

    fn done(self: Box<Self>, commit: Result<(), Arc<rusqlite::Error>>) {
        let result = match (commit, self.result) {
            (Ok(()), Some(Ok(value))) => Ok(value),
            (Err(error), Some(Ok(_)) | None) => Err(DbError::Commit(error)),
            (_, Some(Err(error))) => Err(DbError::Commit(Arc::new(error))),
            (Ok(()), None) => Err(DbError::Stopped),
        };
        (self.done)(result);
    }
}

impl Db {
    /// Opens or creates the database and migrates its schema.
    ///
    /// # Errors
    /// The database can't be opened, or a newer release created it.
    pub fn open(path: &Path) -> Result<Self, DbError> {
        let failed = |source| DbError::Sqlite {
            path: path.to_owned(),
            source,
        };
        // The database holds the cluster's key: it must be private before anything is written to it.
        let options = std::os::unix::fs::OpenOptionsExt::mode(
            std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false),
            0o600,
        )
        .open(path);
        drop(options);
        let index = reserve::hold_index(path)
            .inspect_err(
                |error| tracing::warn!(%error, "space for the database's index can't be reserved"),
            )
            .ok()
            .map(Arc::new);
        let connection = connect(path).map_err(failed)?;
        migrate(path, &connection)?;
        let readers: Result<_, _> = (0..READERS)
            .map(|_| connect(path).map(|reader| Arc::new(Mutex::new(reader))))
            .collect();
        let readers = readers.map_err(failed)?;
        let reserve = ReserveKeeper::new(path, &connection);
        if let Err(error) = reserve::fold(&connection, CheckpointKind::Restart) {
            tracing::warn!(%error, "a copy of the database without its log can't be recognised");
        }
        let connection = Arc::new(Mutex::new(connection));
        let (db, writer) = Self::of(path, connection, readers, Some(reserve), index);
        let thread = std::thread::Builder::new()
            .name("node-db".into())
            .spawn(move || writer.run())
            .expect("a thread can be started when the node starts");
        *db.writer.lock() = Some(thread);
        Ok(db)
    }

    /// Returns a database that reads and writes through one connection, and the database's writer, which commits only when it is called.
    /// First migrates the schema of the connection's database.
    ///
    /// # Errors
    /// The database can't be used, or a newer release created it.
    pub fn without_thread(connection: SharedConnection) -> Result<(Self, DbWriter), DbError> {
        let path = Path::new(":memory:");
        migrate(path, &connection.lock())?;
        let readers = Arc::new([Arc::clone(&connection)]);
        Ok(Self::of(path, connection, readers, None, None))
    }

    fn of(
        path: &Path,
        connection: SharedConnection,
        readers: Arc<[SharedConnection]>,
        reserve: Option<ReserveKeeper>,
        index: Option<Arc<File>>,
    ) -> (Self, DbWriter) {
        let (writes, incoming) = mpsc::channel();
        let riders = Arc::<Riders>::default();
        let left = reserve
            .as_ref()
            .map(ReserveKeeper::left)
            .unwrap_or_default();
        let db = Self {
            path: path.into(),
            writes,
            riders: Arc::clone(&riders),
            commits: Arc::default(),
            readers,
            writer: Arc::default(),
            left: Arc::clone(&left),
            _index: index.clone(),
        };
        let writer = DbWriter {
            connection,
            incoming,
            riders,
            reserve,
            left,
            changes: 0,
            _index: index,
        };
        (db, writer)
    }

    /// Returns the state of the disk space for the database.
    pub(crate) fn left(&self) -> &SpaceState {
        &self.left
    }

    /// Sends a change to the writer. The writer's thread calls `done` with the result of the change after the commit. The writer applies
    /// changes in the order of the calls.
    pub fn submit<T, F, D>(&self, durable: bool, change: F, done: D)
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
        D: FnOnce(Result<T, DbError>) + Send + 'static,
    {
        let job = QueuedChange::new(durable, change, done);
        self.commits.fetch_add(1, Ordering::Relaxed);
        if let Err(mpsc::SendError(DbMessage::Change(job))) =
            self.writes.send(DbMessage::Change(Box::new(job)))
        {
            job.done(Ok(()));
        }
    }

    /// Adds a change to the next commit, without a commit of its own: the change waits for another change or for [`Self::flush`]. The writer
    /// calls `done` as for [`Self::submit`]. A killed process loses the change, so something must repeat it.
    pub fn ride<T, F, D>(&self, durable: bool, change: F, done: D)
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
        D: FnOnce(Result<T, DbError>) + Send + 'static,
    {
        let waiting = {
            let mut riders = self.riders.0.lock();
            riders.push(Box::new(QueuedChange::new(durable, change, done)));
            riders.len()
        };
        if waiting >= RIDERS_MAX {
            self.flush();
        }
    }

    /// Commits the changes that wait for another change, if there are any.
    pub fn flush(&self) {
        if !self.riders.0.lock().is_empty() {
            self.submit(false, |_| Ok(()), drop);
        }
    }

    /// Returns the number of changes that asked for a commit so far. Changes that wait for others ask for none.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Applies a change and waits until it is committed.
    ///
    /// # Errors
    /// The change failed and nothing of it was stored, or the transaction that contains the change could not be committed.
    pub async fn write<T, F>(&self, durable: bool, change: F) -> Result<T, DbError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.submit(durable, change, move |result| {
            // The caller may have stopped waiting; the change is valid anyway.
            let _ = reply.send(result);
        });
        answer.await.unwrap_or(Err(DbError::Stopped))
    }

    /// Applies a change like [`Self::write`], for threads that may block.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    pub fn write_blocking<T, F>(&self, durable: bool, change: F) -> Result<T, DbError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    {
        let (reply, answer) = mpsc::channel();
        self.submit(durable, change, move |result| {
            // The caller may have stopped waiting; the change is valid anyway.
            let _ = reply.send(result);
        });
        answer.recv().unwrap_or(Err(DbError::Stopped))
    }

    /// Runs a function that reads the database, on the caller's thread.
    ///
    /// # Errors
    /// SQLite returns an error.
    pub fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, DbError> {
        let connection = self
            .readers
            .iter()
            .find_map(|reader| reader.try_lock())
            .unwrap_or_else(|| self.readers[0].lock());
        read(&connection).map_err(|source| DbError::Sqlite {
            path: self.path.to_path_buf(),
            source,
        })
    }

    /// Commits the waiting changes and ends the writer. Later changes fail.
    pub fn stop(&self) {
        if let Some(writer) = self.writer.lock().take() {
            self.flush();
            // An error means that the writer has already ended.
            let _ = self.writes.send(DbMessage::Stop);
            let _ = writer.join();
        }
    }
}

fn connect(path: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES_MAX)?;
    // Rollback data of statements is not kept in files on another device, which may be full, too.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // The log's blocks are kept, see `reserve`: the last connection would remove the log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    keep_statements(&connection)?;
    Ok(connection)
}

/// Makes SQLite prepare each statement once, for all bound values. So a query that needs a partial index must contain literals.
///
/// # Errors
/// SQLite does not support the setting.
pub fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn migrate(path: &Path, connection: &Connection) -> Result<(), DbError> {
    let failed = |source| DbError::Sqlite {
        path: path.to_owned(),
        source,
    };
    let found: u32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(failed)?;
    if found > SCHEMA_VERSION {
        return Err(DbError::Newer {
            path: path.to_owned(),
            found,
        });
    }
    for (version, step) in (1..)
        .zip(MIGRATIONS)
        .filter(|(version, _)| *version > found)
    {
        let sql = format!("BEGIN IMMEDIATE; {step} PRAGMA user_version = {version}; COMMIT;");
        connection.execute_batch(&sql).map_err(failed)?;
    }
    Ok(())
}

impl DbWriter {
    /// Commits changes until the writer receives the stop message.
    fn run(mut self) {
        while let Ok(DbMessage::Change(first)) = self.incoming.recv() {
            if self.group(first).is_break() {
                break;
            }
        }
        // A copy of the database file without its log is then complete. A failure loses nothing.
        let _ = reserve::restart_log(&self.connection.lock());
    }

    /// Commits one group of waiting changes. Returns whether there was a group.
    pub fn turn(&mut self) -> bool {
        match self.incoming.try_recv() {
            Ok(DbMessage::Change(first)) => {
                // A writer without thread receives no stop message.
                let _ = self.group(first);
                true
            }
            _ => false,
        }
    }

    fn group(&mut self, first: Box<dyn GroupedChange>) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        let mut group = std::mem::take(&mut *self.riders.0.lock());
        group.push(first);
        while group.len() < GROUP_MAX {
            match self.incoming.try_recv() {
                Ok(DbMessage::Change(change)) => group.push(change),
                Ok(DbMessage::Stop) => {
                    flow = ControlFlow::Break(());
                    break;
                }
                Err(_) => break,
            }
        }
        let committed = commit(&self.connection.lock(), &mut group).map_err(Arc::new);
        let failed = committed.as_ref().err().map(AsRef::as_ref);
        self.left.committed(failed);
        if committed.is_err() && self.reserve.is_some() {
            // The next commit has all of the log's space again. If this fails, the next commit reports the error.
            let _ = reserve::restart_log(&self.connection.lock());
        }
        let changes = group.len();
        for change in group {
            change.done(committed.clone());
        }
        if let Some(reserve) = &mut self.reserve {
            reserve.look(&self.connection.lock(), changes);
            self.changes += changes;
            if self.changes >= CHANGES_PER_LOOK {
                self.changes = 0;
                self.fold_long_log();
            }
        }
        flow
    }

    fn fold_long_log(&self) {
        let connection = self.connection.lock();
        let folded = match reserve::log_pages(&connection) {
            Ok(pages) if pages >= LOG_PAGES => reserve::fold(&connection, CheckpointKind::Passive),
            other => other.map(drop),
        };
        if let Err(error) = folded {
            tracing::warn!(%error, "the log of the node's database can't be checkpointed now");
        }
    }
}

fn commit(
    connection: &Connection,
    group: &mut [Box<dyn GroupedChange>],
) -> Result<(), rusqlite::Error> {
    let durable = group.iter().any(|change| change.durable());
    if durable {
        connection.execute_batch("PRAGMA synchronous=FULL")?;
    }
    let result = transaction(connection, group);
    if result.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    if durable {
        connection.execute_batch("PRAGMA synchronous=NORMAL")?;
    }
    result
}

fn transaction(
    connection: &Connection,
    group: &mut [Box<dyn GroupedChange>],
) -> Result<(), rusqlite::Error> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    for change in group {
        connection.prepare_cached("SAVEPOINT change")?.execute([])?;
        change.apply(connection);
        if change.failed() {
            connection
                .prepare_cached("ROLLBACK TO change")?
                .execute([])?;
        }
        connection.prepare_cached("RELEASE change")?.execute([])?;
    }
    connection.execute_batch("COMMIT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> (tempfile::TempDir, Db) {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(&directory.path().join("node.db")).unwrap();
        (directory, db)
    }

    fn insert(id: i64) -> impl FnOnce(&Connection) -> Result<(), rusqlite::Error> + Send {
        move |connection| {
            let sql = "INSERT INTO object (id, kind, state) VALUES (?1, 0, 1)";
            connection.execute(sql, [id])?;
            Ok(())
        }
    }

    fn ids(db: &Db) -> Vec<i64> {
        db.read(|connection| {
            let mut statement = connection.prepare("SELECT id FROM object ORDER BY id")?;
            statement.query_map([], |row| row.get(0))?.collect()
        })
        .unwrap()
    }

    #[tokio::test]
    async fn failed_database_change_does_not_affect_its_group() {
        let (_directory, db) = open();
        let (one, again, two) = tokio::join!(
            db.write(false, insert(1)),
            db.write(false, move |connection| {
                insert(5)(connection)?;
                insert(1)(connection)
            }),
            db.write(true, insert(2)),
        );
        one.unwrap();
        two.unwrap();
        assert!(matches!(again, Err(DbError::Commit(_))), "{again:?}");
        assert_eq!(ids(&db), [1, 2]);
    }

    #[tokio::test]
    async fn stopped_database_keeps_committed_changes_and_refuses_more() {
        let (directory, db) = open();
        for id in 0..100 {
            db.submit(false, insert(id), drop);
        }
        db.stop();
        assert!(matches!(
            db.write(false, insert(1000)).await,
            Err(DbError::Stopped)
        ));
        let again = Db::open(&directory.path().join("node.db")).unwrap();
        assert_eq!(ids(&again).len(), 100);
    }

    #[test]
    fn change_without_urgency_waits_for_another_change() {
        let disk = Arc::new(Mutex::new(Connection::open_in_memory().unwrap()));
        let (db, mut writer) = Db::without_thread(disk).unwrap();
        let (told, heard) = mpsc::channel();
        let ride = |id: i64| {
            let told = told.clone();
            db.ride(false, insert(id), move |result| {
                told.send((id, result.is_ok())).unwrap();
            });
        };
        ride(1);
        assert!(!writer.turn() && db.commits() == 0);
        db.submit(false, insert(2), drop);
        assert!(writer.turn());
        assert_eq!((ids(&db), db.commits()), (vec![1, 2], 1));
        // Each change fails or succeeds alone.
        ride(2);
        ride(3);
        db.flush();
        assert!(writer.turn());
        assert_eq!(ids(&db), [1, 2, 3]);
        db.flush();
        assert!(!writer.turn(), "nothing waits");
        let all: Vec<_> = heard.try_iter().collect();
        assert_eq!(all, [(1, true), (2, false), (3, true)]);
    }

    #[test]
    fn stop_commits_changes_that_wait_for_others() {
        let (directory, db) = open();
        db.ride(true, insert(1), drop);
        db.stop();
        let again = Db::open(&directory.path().join("node.db")).unwrap();
        assert_eq!(ids(&again), [1]);
    }

    /// Returns the value of the row `log` in a copy of the database file alone, without its write-ahead log.
    fn copied(directory: &Path) -> Vec<u8> {
        let copy = directory.join("copy.db");
        std::fs::copy(directory.join("node.db"), &copy).unwrap();
        let copy = Connection::open(copy).unwrap();
        let sql = "SELECT value FROM identity WHERE key = 'log'";
        copy.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn database_copy_without_write_ahead_log_is_detected() {
        let (directory, db) = open();
        let inside = |db: &Db| db.read(|db| crate::records::identity(db, "log")).unwrap();
        assert_eq!(copied(directory.path()), [1]);
        assert_eq!(inside(&db).as_deref(), Some(&[0][..]));
        // This is many times the size at which the log is checkpointed.
        for round in 0..40 {
            let value = move |connection: &Connection| {
                let sql = "INSERT INTO attribute VALUES (?1, 1, 1, zeroblob(20000))";
                for row in 0..20 {
                    connection.execute(sql, [round * 20 + row])?;
                }
                Ok(())
            };
            db.write_blocking(false, value).unwrap();
            for id in 0..4 {
                let change = insert(round * 4 + id);
                db.write_blocking(false, change).unwrap();
            }
            assert_eq!(copied(directory.path()), [1]);
            assert_eq!(inside(&db).as_deref(), Some(&[0][..]));
        }
        let log = directory.path().join("node.db-wal");
        assert!(std::fs::metadata(log).unwrap().len() < 16 << 20);
        db.stop();
        assert_eq!(copied(directory.path()), [0]);
    }

    #[test]
    fn unhashed_lists_objects_without_hash_only() {
        let (_directory, db) = open();
        let insert = |connection: &Connection| {
            let sql = "INSERT INTO object(id, kind, state, hash) VALUES
                       (7, 0, 1, NULL), (8, 0, 1, x'01'), (1152921504606846977, 1, 1, NULL)";
            connection.execute(sql, []).map(|_| ())
        };
        db.write_blocking(false, insert).unwrap();
        let unhashed = db.read(|connection| crate::records::unhashed(connection, 10));
        assert_eq!(unhashed.unwrap(), [tidemill_model::id::ObjectId(7)]);
    }

    #[test]
    fn database_of_newer_release_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.db");
        Connection::open(&path)
            .unwrap()
            .pragma_update(None, "user_version", 99)
            .unwrap();
        assert!(matches!(
            Db::open(&path),
            Err(DbError::Newer { found: 99, .. })
        ));
    }
}
