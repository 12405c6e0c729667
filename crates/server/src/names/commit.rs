//! Group commit: one thread takes all the work that waits and commits it at once; work that meets nobody
//! else is committed by the thread that brings it. Readers use connections of their own and see the last commit.
//!
//! A piece of work that fails is rolled back to its own savepoint and harms no other of the same commit.

use super::fault::Fault;
use super::schema::{self, OpenError};
use crate::clock;
use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Pieces of work in one commit at most.
const BATCH_MAX: usize = 512;
/// No new work is taken into a commit after this long.
const BATCH_TIME_MAX: Duration = Duration::from_millis(4);
/// Work that may wait for the writer; more makes callers wait.
const QUEUE_MAX: usize = 8192;
/// Reading connections.
const READERS: usize = 4;

type Work = Box<dyn FnOnce(&Connection) -> Box<dyn FnOnce(bool) + Send> + Send>;

struct Piece {
    work: Work,
    durable: bool,
}

/// The database: writes go through one thread, reads through a few connections.
pub(crate) struct Database {
    queue: Mutex<Option<mpsc::SyncSender<Piece>>>,
    readers: Vec<Mutex<Connection>>,
    next_reader: std::sync::atomic::AtomicUsize,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Whoever writes holds it for a whole transaction; `None` once it is closed.
    writing: Arc<Mutex<Option<Writing>>>,
    /// Pieces of work in the queue.
    waiting: Arc<AtomicUsize>,
    /// All is done on the caller's thread, by one connection.
    alone: bool,
}

/// The writing connection.
struct Writing {
    connection: Connection,
    /// `None` for a database in memory.
    wal: Option<PathBuf>,
    wal_file: Option<File>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("readers", &self.readers.len())
            .finish_non_exhaustive()
    }
}

impl Database {
    /// Opens or makes it, does `first` in a transaction of its own and starts the writer.
    pub(crate) fn open<T>(
        path: &Path,
        first: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<(Self, T), OpenError> {
        let mut connection = schema::open_writer(path)?;
        let at = |fault: Fault| OpenError::Content {
            path: path.display().to_string(),
            reason: fault.to_string(),
        };
        let transaction = connection.transaction().map_err(|error| at(error.into()))?;
        let done = first(&transaction).map_err(at)?;
        transaction.commit().map_err(|error| at(error.into()))?;
        let readers: Result<Vec<_>, _> = (0..READERS)
            .map(|_| schema::open_reader(path).map(Mutex::new))
            .collect();
        let (sender, receiver) = mpsc::sync_channel(QUEUE_MAX);
        let mut wal = path.as_os_str().to_owned();
        wal.push("-wal");
        let writing = Arc::new(Mutex::new(Some(Writing {
            connection,
            wal: Some(PathBuf::from(wal)),
            wal_file: None,
        })));
        let waiting = Arc::new(AtomicUsize::new(0));
        let writer = std::thread::spawn({
            let (writing, waiting) = (writing.clone(), waiting.clone());
            move || write_loop(&writing, &receiver, &waiting)
        });
        let database = Self {
            queue: Mutex::new(Some(sender)),
            readers: readers?,
            next_reader: std::sync::atomic::AtomicUsize::new(0),
            writer: Mutex::new(Some(writer)),
            writing,
            waiting,
            alone: false,
        };
        Ok((database, done))
    }

    /// A database that does all on the caller's thread and by one connection, which may be one in memory, for a
    /// simulation: what is committed does not depend on threads.
    #[cfg(feature = "simulation")]
    #[allow(
        clippy::result_large_err,
        reason = "the disk is given back, once a start"
    )]
    pub(crate) fn without_thread<T>(
        mut connection: Connection,
        first: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<(Self, T), (Connection, OpenError)> {
        let path = Path::new(":memory:");
        let at = |fault: Fault| OpenError::Content {
            path: path.display().to_string(),
            reason: fault.to_string(),
        };
        let begun = schema::prepare(&mut connection, path).and_then(|()| {
            let transaction = connection.transaction().map_err(|error| at(error.into()))?;
            let done = first(&transaction).map_err(at)?;
            transaction.commit().map_err(|error| at(error.into()))?;
            Ok(done)
        });
        let done = match begun {
            Ok(done) => done,
            Err(error) => return Err((connection, error)),
        };
        let writing = Writing {
            connection,
            wal: None,
            wal_file: None,
        };
        let database = Self {
            queue: Mutex::default(),
            readers: Vec::new(),
            next_reader: AtomicUsize::new(0),
            writer: Mutex::default(),
            writing: Arc::new(Mutex::new(Some(writing))),
            waiting: Arc::default(),
            alone: true,
        };
        Ok((database, done))
    }

    /// Closes it and gives what it was on.
    #[cfg(feature = "simulation")]
    pub(crate) fn take_connection(&self) -> Connection {
        let writing = self.writing.lock().take();
        let connection = writing
            .expect("a simulated server is killed once")
            .connection;
        if !connection.is_autocommit() {
            let _ = connection.execute_batch("ROLLBACK");
        }
        connection
    }

    /// Does something to the connection.
    #[cfg(feature = "simulation")]
    pub(crate) fn with_connection<T>(&self, with: impl FnOnce(&Connection) -> T) -> T {
        let writing = self.writing.lock();
        with(
            &writing
                .as_ref()
                .expect("a simulated server is asked while it runs")
                .connection,
        )
    }

    fn submit<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, Fault>>, Fault> {
        let (sender, receiver) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            let result = savepoint(connection, work);
            Box::new(move |committed| {
                let result = if committed {
                    result
                } else {
                    result.and(Err(Fault::Closed))
                };
                let _ = sender.send(result);
            })
        });
        if self.alone {
            let mut writing = self.writing.lock();
            let writing = writing.as_mut().ok_or(Fault::Closed)?;
            together(writing, Piece { work, durable }, || None);
            return Ok(receiver);
        }
        let queue = self.queue.lock().clone().ok_or(Fault::Closed)?;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        queue
            .send(Piece { work, durable })
            .map_err(|_| Fault::Closed)?;
        Ok(receiver)
    }

    /// As [`Self::write_blocking`], but on the caller's own thread if nobody else writes or waits to: two
    /// changes of threads cost more than a small commit.
    pub(crate) fn write_here<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        if self.waiting.load(Ordering::Acquire) == 0
            && let Some(mut writing) = self.writing.try_lock()
        {
            let writing = writing.as_mut().ok_or(Fault::Closed)?;
            execute(&writing.connection, "BEGIN IMMEDIATE")?;
            // An operation that fails undoes only itself; what breaks the whole piece ends the transaction.
            let result = work(&writing.connection);
            if result.is_err() {
                let _ = writing.connection.execute_batch("ROLLBACK");
                return result;
            }
            return if writing.commit(durable) {
                result
            } else {
                Err(Fault::Closed)
            };
        }
        self.submit(durable, work)?
            .blocking_recv()
            .map_err(|_| Fault::Closed)?
    }

    /// Runs `work` in the next commit; resolves when it is committed (and, if `durable`, on the disk).
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        self.submit(durable, work)?
            .await
            .map_err(|_| Fault::Closed)?
    }

    /// As [`Self::write`], for threads outside the runtime.
    pub(crate) fn write_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        self.submit(false, work)?
            .blocking_recv()
            .map_err(|_| Fault::Closed)?
    }

    /// Runs `work` on a reading connection within one view of the database.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.alone {
            let mut writing = self.writing.lock();
            let writing = writing.as_mut().ok_or(Fault::Closed)?;
            let transaction = writing.connection.transaction()?;
            return work(&transaction);
        }
        let start = self
            .next_reader
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let free = (0..READERS).find_map(|i| self.readers[(start + i) % READERS].try_lock());
        let mut connection = free.unwrap_or_else(|| self.readers[start % READERS].lock());
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
        work(&transaction)
    }

    /// Ends the writer after the work that waits.
    pub(crate) fn close(&self) {
        drop(self.queue.lock().take());
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            let _ = writer.join();
        }
        drop(self.writing.lock().take());
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.close();
    }
}

fn savepoint<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, Fault> {
    connection.prepare_cached("SAVEPOINT piece")?.execute([])?;
    let result = work(connection);
    if result.is_err() {
        connection
            .prepare_cached("ROLLBACK TO piece")?
            .execute([])?;
    }
    connection.prepare_cached("RELEASE piece")?.execute([])?;
    result
}

fn write_loop(
    writing: &Mutex<Option<Writing>>,
    queue: &mpsc::Receiver<Piece>,
    waiting: &AtomicUsize,
) {
    while let Ok(first) = queue.recv() {
        let mut writing = writing.lock();
        let Some(writing) = writing.as_mut() else {
            return;
        };
        let started = Instant::now();
        waiting.fetch_sub(1, Ordering::AcqRel);
        together(writing, first, || {
            let piece = (started.elapsed() < BATCH_TIME_MAX).then(|| queue.try_recv());
            let piece = piece?.ok()?;
            waiting.fetch_sub(1, Ordering::AcqRel);
            Some(piece)
        });
    }
    tracing::debug!(at = clock::now_ns(), "database closed");
}

/// Does pieces of work in one transaction.
fn together(writing: &mut Writing, first: Piece, mut more: impl FnMut() -> Option<Piece>) {
    let mut durable = first.durable;
    if let Err(error) = execute(&writing.connection, "BEGIN IMMEDIATE") {
        // Dropping the piece tells its caller.
        tracing::error!(%error, "can't begin a transaction");
        return;
    }
    let mut answers = vec![(first.work)(&writing.connection)];
    // SQLite may have ended the transaction itself (disk full): nothing more may go in then.
    while answers.len() < BATCH_MAX && !writing.connection.is_autocommit() {
        let Some(piece) = more() else { break };
        durable |= piece.durable;
        answers.push((piece.work)(&writing.connection));
    }
    let committed = writing.commit(durable);
    for answer in answers {
        answer(committed);
    }
}

impl Writing {
    /// Commits what was begun; says whether it is kept.
    fn commit(&mut self, durable: bool) -> bool {
        commit(&self.connection) && (!durable || sync(&mut self.wal_file, self.wal.as_deref()))
    }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql)?.execute([])
}

fn commit(connection: &Connection) -> bool {
    match execute(connection, "COMMIT") {
        Ok(_) => true,
        Err(error) => {
            tracing::error!(%error, "can't commit");
            let _ = connection.execute_batch("ROLLBACK");
            false
        }
    }
}

/// SQLite in WAL mode with `synchronous=NORMAL` leaves the log to the page cache; a caller who wants a commit
/// to survive power loss needs the log itself on the disk.
fn sync(file: &mut Option<File>, wal: Option<&Path>) -> bool {
    let Some(wal) = wal else { return true };
    if file.is_none() {
        *file = File::open(wal).ok();
    }
    match file.as_ref().map(File::sync_data) {
        Some(Ok(())) => true,
        Some(Err(error)) => {
            tracing::error!(%error, "can't sync the write-ahead log");
            false
        }
        None => false,
    }
}
