//! Group commit: one thread takes all waiting pieces of work and commits them together. A thread that adds work while no other work waits
//! commits its own work. Only this module writes the server's database; readers use their own connections and see the last commit.
//!
//! If a piece of work fails, SQLite rolls back to the savepoint of that piece, and the other pieces of the commit are unaffected. If the
//! commit itself fails, no piece of work is stored, each caller receives the reason, and the next commit is attempted normally.

mod log;

use super::budget::{AccessLimits, BudgetTurn, in_place};
use super::clock;
use super::connection::Connection;
use super::fault::Fault;
use super::reserve::DatabaseReserve;
use super::schema::{self, OpenError};
use super::vnode::Caller;
use super::wakes::{COMMIT, Wakes};
use parking_lot::Mutex;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};
use tidemill_log::{LogWriter, Replicator};
use tokio::sync::oneshot;

/// Maximum number of pieces of work in one commit.
const BATCH_MAX: usize = 512;
/// Maximum duration for which new work is added to a commit.
const BATCH_TIME_MAX: Duration = Duration::from_millis(4);
/// Maximum number of pieces of work that wait for the writer. Further callers block.
const QUEUE_MAX: usize = 8192;
/// Number of reading connections. Ordinary users share all except the first connection, and one user has at most `READERS_EACH`.
const READERS: usize = 6;
const READERS_EACH: usize = 2;
/// Maximum duration of a reading statement of an ordinary user; a longer statement is interrupted. The clock is checked every
/// `STEPS` steps of SQLite.
const USER_READ_MAX: Duration = Duration::from_secs(30);
const STEPS: i32 = 100_000;
/// Maximum number of pieces of work of one ordinary user that wait for the writer.
const WRITES_EACH_MAX: usize = 4;

/// Time limit for the replicated log to have the last commits at the end of the database.
const REPLICATED_MAX: Duration = Duration::from_secs(1);

/// Reason why a transaction was not committed; every caller with work in the transaction receives the reason.
type Cause = Arc<rusqlite::Error>;

/// Result of a committed piece of work.
#[derive(Debug)]
pub struct Committed<T> {
    /// Value that the work returned.
    pub value: T,
    /// Whether the work is synced to disk, if the caller asked for a sync. The work is committed even if the sync failed.
    pub on_disk: Result<(), Fault>,
}

impl<T> Committed<T> {
    /// Builds the result of work that was committed, with the result of the sync.
    fn new(value: T, durable: bool, synced: &Result<(), String>) -> Self {
        let on_disk = match synced {
            Err(reason) if durable => Err(Fault::Unsynced(reason.clone())),
            _ => Ok(()),
        };
        Self { value, on_disk }
    }
}

/// State that the writing connection shares with the database.
type WriterShares<'a> = (&'a WriteFailure, &'a Arc<Wakes>, &'a Arc<AtomicU64>);

/// End of a transaction: whether SQLite committed the transaction and, if any caller asked for a sync, whether the sync succeeded.
struct TransactionEnd {
    committed: Result<(), Cause>,
    synced: Result<(), String>,
}

impl From<Cause> for TransactionEnd {
    fn from(cause: Cause) -> Self {
        Self {
            committed: Err(cause),
            synced: Ok(()),
        }
    }
}

/// A caller's piece of work that is part of a transaction.
trait TransactionWork: Send {
    fn durable(&self) -> bool;
    /// Executes the work. The error is the error with which SQLite ended the whole transaction.
    fn work(&mut self, connection: &Connection) -> Result<(), Cause>;
    fn answer(self: Box<Self>, end: &TransactionEnd);
}

struct CommitRequest<T, F> {
    durable: bool,
    work: Option<F>,
    result: Option<Result<T, Fault>>,
    caller: oneshot::Sender<Result<Committed<T>, Fault>>,
}

impl<T, F> TransactionWork for CommitRequest<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> Result<T, Fault> + Send,
{
    fn durable(&self) -> bool {
        self.durable
    }

    fn work(&mut self, connection: &Connection) -> Result<(), Cause> {
        let Some(work) = self.work.take() else {
            return Ok(());
        };
        match unless_ended(connection, savepoint(connection, work)) {
            Ok(result) => {
                self.result = Some(result);
                Ok(())
            }
            Err(cause) => Err(cause),
        }
    }

    fn answer(self: Box<Self>, end: &TransactionEnd) {
        let answer = match (self.result, &end.committed) {
            // The piece was rolled back alone; the other pieces of its transaction are not concerned.
            (Some(Err(fault)), _) => Err(fault),
            (_, Err(cause)) => Err(Fault::NotKept(cause.clone())),
            (Some(Ok(value)), Ok(())) => Ok(Committed::new(value, self.durable, &end.synced)),
            (None, Ok(())) => Err(Fault::Closed),
        };
        // The caller may no longer wait for the answer.
        let _ = self.caller.send(answer);
    }
}

/// The server's database: all writes use one thread, and reads use a few connections.
pub struct Database {
    queue: Mutex<Option<mpsc::SyncSender<Box<dyn TransactionWork>>>>,
    readers: Vec<Mutex<Connection>>,
    next_reader: std::sync::atomic::AtomicUsize,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Connection that a writer locks for a whole transaction; `None` once the database is closed.
    writing: Arc<Mutex<Option<WritingConnection>>>,
    /// Number of pieces of work in the writer's queue.
    waiting: Arc<AtomicUsize>,
    /// Number of committed pieces of work.
    commits: Arc<AtomicU64>,
    trouble: WriteFailure,
    /// Whether the device of the database's directory is nearly full.
    low: Arc<AtomicBool>,
    /// Limits on the number of simultaneous reads of each user.
    reads: Arc<AccessLimits>,
    writes: Arc<AccessLimits>,
    /// Signals to the server's timed work.
    wakes: Arc<Wakes>,
    /// Whether all work is done on the caller's thread, with one connection, as in a simulation.
    alone: bool,
    /// The log of the database, which is dropped after all connections.
    log: OnceLock<Arc<LogWriter>>,
    /// The log that other servers follow, which is dropped after all connections, too.
    replicator: OnceLock<Arc<Replicator>>,
}

/// Database of a simulated server.
#[cfg(feature = "simulation")]
pub type SimulatedDisk = rusqlite::Connection;

/// Reason why changes can't be committed now; `None` if changes can be committed.
type WriteFailure = Arc<Mutex<Option<Cause>>>;

/// The connection that writes the database.
struct WritingConnection {
    connection: Connection,
    /// Whether the writer itself is committing; [`guard`] prevents every other commit.
    committing: Arc<AtomicBool>,
    /// Path of the write-ahead log; `None` for a database in memory.
    wal: Option<PathBuf>,
    wal_file: Option<File>,
    /// Whether a sync of the write-ahead log failed and the content of the log has not been written again since.
    doubtful: bool,
    /// Reason why transactions can't be committed, as long as commits fail.
    trouble: WriteFailure,
    failing: bool,
    wakes: Arc<Wakes>,
    /// Number of rows changed on this connection at the last commit.
    changed: u64,
    commits: Arc<AtomicU64>,
    /// Reserved space for the database; `None` in memory and on a small device.
    reserve: Option<DatabaseReserve>,
    log: Option<Arc<LogWriter>>,
    replicator: Option<Arc<Replicator>>,
    #[cfg(test)]
    syncs: usize,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("readers", &self.readers.len())
            .finish_non_exhaustive()
    }
}

impl Database {
    /// Opens or creates the database, runs `first` in a transaction of its own and starts the writer.
    pub fn open<T>(
        path: &Path,
        first: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<(Self, T), OpenError> {
        let mut connection = schema::open_writer(path)?;
        let (done, committing) = begin(&mut connection, path, first)?;
        let readers: Result<Vec<_>, _> = (0..READERS)
            .map(|_| schema::open_reader(path).map(Mutex::new))
            .collect();
        let (sender, receiver) = mpsc::sync_channel(QUEUE_MAX);
        let mut wal = path.as_os_str().to_owned();
        wal.push("-wal");
        let trouble = WriteFailure::default();
        let wal = Some(PathBuf::from(wal));
        let low = Arc::default();
        let reserve = DatabaseReserve::new(path, &low);
        let (commits, wakes) = (Arc::default(), Arc::default());
        let shared = (&trouble, &wakes, &commits);
        let writing = WritingConnection::new((connection, committing), wal, shared, reserve);
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
            commits,
            trouble,
            low,
            reads: AccessLimits::new(READERS - 1, READERS_EACH),
            writes: AccessLimits::new(usize::MAX, WRITES_EACH_MAX),
            wakes,
            alone: false,
            log: OnceLock::new(),
            replicator: OnceLock::new(),
        };
        Ok((database, done))
    }

    /// Opens a database that does all work on the caller's thread with one connection, which may be in memory. A simulation uses such a
    /// database, since its commits do not depend on threads.
    #[cfg(feature = "simulation")]
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the disk, at most once for each start"
    )]
    pub fn without_thread<T>(
        mut disk: SimulatedDisk,
        first: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<(Self, T), (SimulatedDisk, OpenError)> {
        let path = Path::new(":memory:");
        if let Err(error) = schema::prepare(&mut disk, path) {
            return Err((disk, error));
        }
        let mut connection = Connection::new(disk);
        let (done, committing) = match begin(&mut connection, path, first) {
            Ok(begun) => begun,
            Err(error) => return Err((connection.sql, error)),
        };
        let trouble = WriteFailure::default();
        let (commits, wakes) = (Arc::default(), Arc::default());
        let shared = (&trouble, &wakes, &commits);
        let writing = WritingConnection::new((connection, committing), None, shared, None);
        let database = Self {
            queue: Mutex::default(),
            readers: Vec::new(),
            next_reader: AtomicUsize::new(0),
            writer: Mutex::default(),
            writing,
            waiting: Arc::default(),
            commits,
            trouble,
            low: Arc::default(),
            reads: AccessLimits::new(READERS - 1, READERS_EACH),
            writes: AccessLimits::new(usize::MAX, WRITES_EACH_MAX),
            wakes,
            alone: true,
            log: OnceLock::new(),
            replicator: OnceLock::new(),
        };
        Ok((database, done))
    }

    /// Closes the database and returns its connection.
    #[cfg(feature = "simulation")]
    pub fn take_connection(&self) -> SimulatedDisk {
        let writing = self.writing.lock().take();
        let mut connection = writing
            .expect("a simulated server is killed at most once")
            .connection;
        if !connection.sql.is_autocommit() {
            let _ = connection.sql.execute_batch("ROLLBACK");
        }
        // Later commits on this connection are not this server's.
        let _ = connection.sql.commit_hook(None::<fn() -> bool>);
        connection.sql
    }

    /// Calls `with` on the writing connection.
    #[cfg(feature = "simulation")]
    pub fn with_connection<T>(&self, with: impl FnOnce(&SimulatedDisk) -> T) -> T {
        let writing = self.writing.lock();
        with(
            &writing
                .as_ref()
                .expect("a simulated server runs while it is used")
                .connection
                .sql,
        )
    }

    fn submit<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<Committed<T>, Fault>>, Fault> {
        let (caller, receiver) = oneshot::channel();
        let piece = CommitRequest {
            durable,
            work: Some(work),
            result: None,
            caller,
        };
        if self.alone {
            let mut writing = self.writing.lock();
            let writing = writing.as_mut().ok_or(Fault::Closed)?;
            writing.together(Box::new(piece), |_| None);
            return Ok(receiver);
        }
        let queue = self.queue.lock().clone().ok_or(Fault::Closed)?;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        queue.send(Box::new(piece)).map_err(|_| Fault::Closed)?;
        Ok(receiver)
    }

    /// Runs work as [`Self::write_durable`] does, for threads outside the runtime. If no other writer runs or waits, the caller's own
    /// thread runs the work, since two thread switches cost more than a small commit.
    pub fn write_here<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<Committed<T>, Fault> {
        if self.waiting.load(Ordering::Acquire) == 0
            && let Some(mut writing) = self.writing.try_lock()
        {
            let committed = match writing.as_mut() {
                Some(writing) => writing.alone(durable, work),
                None => Err(Fault::Closed),
            };
            drop(writing);
            // A refusal may be due to a change that only this server knows.
            self.replicated()?;
            return committed;
        }
        self.submit(durable, work)?
            .blocking_recv()
            .map_err(|_| Fault::Closed)?
    }

    /// Runs `work` in the next commit. The future completes when the work is committed and, if `durable`, synced.
    ///
    /// # Errors
    /// If no change was committed. If the commit succeeded and the sync failed, the returned value reports the failed sync.
    pub async fn write_durable<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<Committed<T>, Fault> {
        self.submit(durable, work)?
            .await
            .map_err(|_| Fault::Closed)?
    }

    /// Runs `work` in the next commit. The future completes when the work is committed.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        Ok(self.write_durable(false, work).await?.value)
    }

    /// Returns the number of pieces of work that were committed since the database was opened. If the number is the same as before an earlier read, the database has not changed since that read.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// Runs work as [`Self::write`] does, for threads outside the runtime.
    pub fn write_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let answer = self.submit(false, work)?.blocking_recv();
        Ok(answer.map_err(|_| Fault::Closed)??.value)
    }

    /// Waits until all committed changes are on the disk.
    pub async fn synced(&self) -> Result<(), Fault> {
        self.write_durable(true, |_| Ok(())).await?.on_disk
    }

    /// Waits as [`Self::synced`] does, for threads outside the runtime.
    pub(crate) fn synced_here(&self) -> Result<(), Fault> {
        self.write_here(true, |_| Ok(()))?.on_disk
    }

    /// Returns the number of syncs of the write-ahead log.
    #[cfg(test)]
    pub fn syncs(&self) -> usize {
        self.writing.lock().as_ref().map_or(0, |one| one.syncs)
    }

    /// Runs `work` on a reading connection within one read transaction.
    pub fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.alone {
            let writing = self.writing.lock();
            return view(&writing.as_ref().ok_or(Fault::Closed)?.connection, work);
        }
        let value = view(&self.reader(), work);
        self.replicated()?;
        value
    }

    /// Returns a reading connection, a free one if possible.
    fn reader(&self) -> parking_lot::MutexGuard<'_, Connection> {
        let start = self.next_reader.fetch_add(1, Ordering::Relaxed);
        let free = (0..READERS).find_map(|i| self.readers[(start + i) % READERS].try_lock());
        // Users never get the first connection.
        let wait = || match self.reads.any() {
            true => self.readers[0].lock(),
            false => self.readers[start % READERS].lock(),
        };
        free.unwrap_or_else(wait)
    }

    /// Reads as [`Self::read`] does, for a caller's request: an ordinary user first waits until the user's budget allows another read, and
    /// a long read does not block other asynchronous tasks.
    pub async fn read_for<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        match self.turn(caller).await {
            None => self.read(work),
            share => in_place(|| self.read_with(share.as_ref(), work)),
        }
    }

    /// Waits until the caller's budget allows another read; daemons of the cluster have no such limit.
    pub async fn turn(&self, caller: &Caller) -> Option<BudgetTurn> {
        match self.alone {
            true => None,
            false => self.reads.take(caller).await,
        }
    }

    /// Reads as [`Self::read`] does, with the permit `share` from the user's budget, if the user needs one.
    pub fn read_with<T>(
        &self,
        share: Option<&BudgetTurn>,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        match share {
            None => self.read(work),
            Some(_) => self.read_of_user(work),
        }
    }

    /// Reads as [`Self::read_for`] does, for threads outside the runtime.
    pub(crate) fn read_for_blocking<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let share = match self.alone {
            true => None,
            false => self.reads.take_blocking(caller),
        };
        self.read_with(share.as_ref(), work)
    }

    fn read_of_user<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let start = self.next_reader.fetch_add(1, Ordering::Relaxed) % READERS;
        let others = &self.readers[1..];
        let at = |i| &others[(start + i) % others.len()];
        let free = (0..others.len()).find_map(|i| at(i).try_lock());
        let mut connection = free.unwrap_or_else(|| at(0).lock());
        let until = Instant::now() + USER_READ_MAX;
        let over = move || Instant::now() >= until;
        connection.sql.progress_handler(STEPS, Some(over))?;
        let read = view(&connection, work);
        connection.sql.progress_handler(0, None::<fn() -> bool>)?;
        drop(connection);
        self.replicated()?;
        read.map_err(Fault::unless_interrupted)
    }

    /// Returns the limits on the users' work in the queue of the writer.
    pub fn writes(&self) -> &Arc<AccessLimits> {
        &self.writes
    }

    /// Returns the reason why the last change could not be committed; `None` after the next successful commit.
    pub fn trouble(&self) -> Option<Fault> {
        let trouble = self.trouble.lock().clone().map(Fault::NotKept);
        trouble.or_else(|| self.low.load(Ordering::Relaxed).then_some(Fault::Low))
    }

    /// Returns the signals to the server's timed work.
    pub fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }

    /// Returns whether the device of the database's directory is nearly full.
    pub fn low(&self) -> &Arc<AtomicBool> {
        &self.low
    }

    /// Ends the writer after it has done the waiting work.
    pub fn close(&self) {
        drop(self.queue.lock().take());
        let writer = self.writer.lock().take();
        // The last piece of work may own the database, so its thread may drop it.
        let own = std::thread::current().id();
        if let Some(writer) = writer.filter(|writer| writer.thread().id() != own) {
            let _ = writer.join();
        }
        // No transaction can follow, so the last segment has everything.
        let writing = self.writing.lock().take();
        if let Some(log) = self.log.get() {
            log.close();
        }
        if let Some(replicator) = self.replicator.get() {
            replicator.close(REPLICATED_MAX);
        }
        drop(writing);
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs `work` within one read transaction of the database.
fn view<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let _transaction = connection.sql.unchecked_transaction()?;
    work(connection)
}

/// Runs `first` in a transaction of its own. From then on, [`guard`] prevents every commit except the writer's own commits.
fn begin<T>(
    connection: &mut Connection,
    path: &Path,
    first: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<(T, Arc<AtomicBool>), OpenError> {
    let begin = || {
        let transaction = connection.sql.unchecked_transaction()?;
        let done = first(connection)?;
        transaction.commit()?;
        Ok((done, guard(connection)?))
    };
    begin().map_err(|fault: Fault| OpenError::Content {
        path: path.display().to_string(),
        reason: fault.to_string(),
    })
}

/// Prevents every commit except the writer's own COMMIT. If SQLite has ended the transaction itself (disk full, input/output error), SQLite
/// would otherwise commit each later statement of the same piece of work as a transaction of its own.
fn guard(connection: &mut Connection) -> rusqlite::Result<Arc<AtomicBool>> {
    let committing = Arc::new(AtomicBool::new(false));
    let allowed = committing.clone();
    connection
        .sql
        .commit_hook(Some(move || !allowed.load(Ordering::Relaxed)))?;
    Ok(committing)
}

/// Runs a piece of work in a savepoint; if the work fails, all of its changes are rolled back.
fn savepoint<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, Fault> {
    execute(connection, "SAVEPOINT piece")?;
    let result = work(connection);
    if connection.sql.is_autocommit() {
        return result;
    }
    if result.is_err() {
        execute(connection, "ROLLBACK TO piece")?;
    }
    execute(connection, "RELEASE piece")?;
    result
}

/// Returns the result of a piece of work. If SQLite has ended the whole transaction, returns the reason instead.
fn unless_ended<T>(
    connection: &Connection,
    result: Result<T, Fault>,
) -> Result<Result<T, Fault>, Cause> {
    if !connection.sql.is_autocommit() {
        return Ok(result);
    }
    Err(Arc::new(match result {
        Err(Fault::Database(error)) => error,
        _ => rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT_ROLLBACK),
            Some("the transaction was ended after an error".into()),
        ),
    }))
}

fn write_loop(
    writing: &Mutex<Option<WritingConnection>>,
    queue: &mpsc::Receiver<Box<dyn TransactionWork>>,
    waiting: &AtomicUsize,
) {
    while let Ok(first) = queue.recv() {
        let mut writing = writing.lock();
        let Some(writing) = writing.as_mut() else {
            return;
        };
        let started = Instant::now();
        waiting.fetch_sub(1, Ordering::AcqRel);
        writing.together(first, |taken| {
            let more = taken < BATCH_MAX && started.elapsed() < BATCH_TIME_MAX;
            let next = more.then(|| queue.try_recv().ok()).flatten()?;
            waiting.fetch_sub(1, Ordering::AcqRel);
            Some(next)
        });
    }
    tracing::debug!(at = clock::now_ns(), "database closed");
}

impl WritingConnection {
    fn new(
        (connection, committing): (Connection, Arc<AtomicBool>),
        wal: Option<PathBuf>,
        (trouble, wakes, commits): WriterShares<'_>,
        reserve: Option<DatabaseReserve>,
    ) -> Arc<Mutex<Option<Self>>> {
        Arc::new(Mutex::new(Some(Self {
            changed: connection.sql.total_changes(),
            wakes: wakes.clone(),
            connection,
            committing,
            wal,
            wal_file: None,
            doubtful: false,
            trouble: trouble.clone(),
            failing: false,
            commits: commits.clone(),
            reserve,
            log: None,
            replicator: None,
            #[cfg(test)]
            syncs: 0,
        })))
    }

    /// Runs one piece of work in a transaction of its own.
    fn alone<T>(
        &mut self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<Committed<T>, Fault> {
        self.begin().map_err(|cause| self.lost(cause))?;
        // A failed operation rolls back only itself; an error that breaks the whole piece ends the transaction.
        let result = work(&self.connection);
        let result = unless_ended(&self.connection, result).map_err(|cause| self.lost(cause))?;
        let value = match result {
            Ok(value) => value,
            Err(fault) => {
                self.roll_back();
                return Err(fault);
            }
        };
        self.commit(1).map_err(|error| self.lost(error.into()))?;
        let synced = if durable { self.sync() } else { Ok(()) };
        Ok(Committed::new(value, durable, &synced))
    }

    /// Runs pieces of work in one transaction, as many as `more` supplies, and sends each caller its result.
    fn together(
        &mut self,
        first: Box<dyn TransactionWork>,
        more: impl FnMut(usize) -> Option<Box<dyn TransactionWork>>,
    ) {
        let mut pieces = vec![first];
        let end = self.attempt(&mut pieces, more).unwrap_or_else(|cause| {
            self.lost(cause.clone());
            TransactionEnd::from(cause)
        });
        let answer = move || pieces.into_iter().for_each(|piece| piece.answer(&end));
        match &self.replicator {
            Some(replicator) => replicator.then(replicator.last_commit(), answer),
            None => answer(),
        }
    }

    fn attempt(
        &mut self,
        pieces: &mut Vec<Box<dyn TransactionWork>>,
        mut more: impl FnMut(usize) -> Option<Box<dyn TransactionWork>>,
    ) -> Result<TransactionEnd, Cause> {
        self.begin()?;
        let mut done = 0;
        while let Some(piece) = pieces.get_mut(done) {
            piece.work(&self.connection)?;
            done += 1;
            if done == pieces.len() {
                pieces.extend(more(done));
            }
        }
        self.commit(done)?;
        let durable = pieces.iter().any(|piece| piece.durable());
        let synced = if durable { self.sync() } else { Ok(()) };
        Ok(TransactionEnd {
            committed: Ok(()),
            synced,
        })
    }

    /// Records that a transaction was not committed; the log reports only the first of many failures.
    fn lost(&mut self, cause: Cause) -> Fault {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::error!(error = %cause, "the database can't store changes; each change is refused until it can");
        }
        *self.trouble.lock() = Some(cause.clone());
        let fault = Fault::NotKept(cause);
        if let Some(reserve) = self.reserve.as_ref().filter(|_| fault.is_full()) {
            reserve.give();
        }
        fault
    }

    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), Cause> {
        // A transaction is still open if its rollback failed before.
        if !self.connection.sql.is_autocommit() {
            self.connection.sql.execute_batch("ROLLBACK")?;
        }
        if let Some(reserve) = &mut self.reserve {
            let replicated = self.replicator.is_some();
            reserve.look(&self.connection, (self.log.as_deref(), replicated));
        }
        execute(&self.connection, "BEGIN IMMEDIATE")?;
        Ok(())
    }
    /// Commits the transaction, which contains this number of pieces of work.
    fn commit(&mut self, pieces: usize) -> rusqlite::Result<()> {
        let changed = self.connection.sql.total_changes();
        let changes = self.changed != changed;
        let replicator = self.replicator.clone().filter(|_| changes);
        if let Some(replicator) = &replicator {
            replicator.committing();
        }
        self.committing.store(true, Ordering::Relaxed);
        let committed = execute(&self.connection, "COMMIT");
        self.committing.store(false, Ordering::Relaxed);
        if let Some(replicator) = &replicator {
            replicator.ended(committed.is_ok());
        }
        if committed.is_err() {
            self.roll_back();
            return committed.map(drop);
        }
        self.commits.fetch_add(pieces as u64, Ordering::Release);
        if std::mem::take(&mut self.failing) {
            tracing::info!("the database can store changes again");
            *self.trouble.lock() = None;
        }
        if changes {
            self.changed = changed;
            self.wakes.wake(COMMIT);
            if let Some(log) = &self.log {
                log.committed();
            }
        }
        Ok(())
    }

    /// Rolls back a transaction. If the rollback fails, the next transaction starts with another rollback.
    fn roll_back(&self) {
        if !self.connection.sql.is_autocommit() {
            let _ = self.connection.sql.execute_batch("ROLLBACK");
        }
    }

    /// Syncs the write-ahead log. SQLite in WAL mode with `synchronous=NORMAL` leaves the log to the page cache. If a commit must survive
    /// power loss, the log itself must be on the disk.
    ///
    /// A failed sync can't be repeated: the Linux kernel may have dropped data that could not be written, and the next sync succeeds
    /// without that data. After a failed sync no commit counts as durable until the whole content of the log has been written to the
    /// database itself, and the database was synced.
    fn sync(&mut self) -> Result<(), String> {
        if !self.doubtful {
            let Err(error) = self.sync_log() else {
                return Ok(());
            };
            tracing::error!(%error, "can't sync the write-ahead log; its content is rewritten");
            self.doubtful = true;
        }
        self.rewrite()
            .inspect_err(|error| tracing::error!(%error, "can't rewrite the log's content"))?;
        self.doubtful = false;
        Ok(())
    }

    fn sync_log(&mut self) -> std::io::Result<()> {
        let Some(wal) = &self.wal else {
            return Ok(());
        };
        let file = if let Some(file) = &self.wal_file {
            file
        } else {
            // The log may be new, and recovery needs its name on the disk.
            let directory = wal.parent().unwrap_or(Path::new("."));
            File::open(directory)?.sync_all()?;
            self.wal_file.insert(File::open(wal)?)
        };
        file.sync_data()?;
        #[cfg(test)]
        {
            self.syncs += 1;
        }
        Ok(())
    }

    fn rewrite(&self) -> Result<(), String> {
        if let Some(log) = &self.log {
            log.disturb();
        }
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        let busy = self
            .connection
            .sql
            .query_row(sql, [], |row| row.get::<_, bool>(0));
        match busy {
            Ok(false) => Ok(()),
            Ok(true) => Err("readers blocked a checkpoint".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<usize> {
    connection.sql.prepare_cached(sql)?.execute([])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};

    const INSERT: &str = "INSERT INTO content VALUES (?1, ?1, NULL)";

    /// Step of a transaction at which SQLite is made to fail.
    #[derive(Clone, Copy, Debug)]
    enum FailingStep {
        Begin,
        Statement,
        Commit,
    }

    fn open() -> (tempfile::TempDir, Database) {
        let directory = tempfile::tempdir().unwrap();
        let (database, ()) =
            Database::open(&directory.path().join("server.db"), |_| Ok(())).unwrap();
        (directory, database)
    }

    impl Database {
        fn with<T>(&self, change: impl FnOnce(&mut WritingConnection) -> T) -> T {
            change(self.writing.lock().as_mut().unwrap())
        }

        fn trip(&self, trip: FailingStep) {
            self.with(|writing| {
                let denied = move |context: AuthContext<'_>| {
                    let denied = match (trip, context.action) {
                        (FailingStep::Begin, AuthAction::Transaction { operation }) => {
                            operation == TransactionOperation::Begin
                        }
                        (FailingStep::Statement, AuthAction::Insert { .. }) => true,
                        _ => false,
                    };
                    if denied {
                        Authorization::Deny
                    } else {
                        Authorization::Allow
                    }
                };
                writing.connection.sql.authorizer(Some(denied)).unwrap();
                if matches!(trip, FailingStep::Commit) {
                    writing.connection.sql.commit_hook(Some(|| true)).unwrap();
                }
            });
        }

        fn repair(&self) {
            self.with(|writing| {
                let none = None::<fn(AuthContext<'_>) -> Authorization>;
                writing.connection.sql.authorizer(none).unwrap();
                writing.committing = guard(&mut writing.connection).unwrap();
                writing.wal_file = None;
            });
        }

        fn kept(&self) -> Vec<i64> {
            self.read(|db| {
                let mut statement = db
                    .sql
                    .prepare("SELECT object FROM content ORDER BY object")?;
                let rows = statement.query_map([], |row| row.get(0))?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
            .unwrap()
        }
    }

    fn insert(id: i64) -> impl FnOnce(&Connection) -> Result<(), Fault> + Send + 'static {
        move |db| {
            db.sql.prepare_cached(INSERT)?.execute([id])?;
            Ok(())
        }
    }

    /// Makes the database full: every change that needs another page fails, and SQLite ends the transaction.
    fn fill(database: &Database) {
        database.write_blocking(insert(100)).unwrap();
        database.with(|writing| {
            let pages: i64 = writing
                .connection
                .sql
                .pragma_query_value(None, "page_count", |row| row.get(0))
                .unwrap();
            let max = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
            writing
                .connection
                .sql
                .pragma_update_and_check(None, "max_page_count", pages, max)
                .unwrap();
        });
    }

    fn large(db: &Connection) -> Result<(), Fault> {
        let sql = "INSERT INTO setting VALUES ('large', zeroblob(1000000))";
        db.sql.execute(sql, [])?;
        Ok(())
    }

    #[test]
    fn failed_commit_reports_cause_and_next_commit_succeeds() {
        let (_directory, database) = open();
        for (round, trip) in (0..).zip([
            FailingStep::Begin,
            FailingStep::Statement,
            FailingStep::Commit,
        ]) {
            database.trip(trip);
            let here = database.write_here(true, insert(10 * round)).unwrap_err();
            let queued = database.write_blocking(insert(10 * round + 1)).unwrap_err();
            for fault in [here, queued] {
                assert!(fault.is_database_failure(), "{trip:?}: {fault:?}");
                assert!(!matches!(fault, Fault::Closed), "{trip:?}: {fault:?}");
            }
            assert_eq!(
                database.trouble().is_some(),
                !matches!(trip, FailingStep::Statement)
            );
            database.repair();
            database.write_blocking(insert(10 * round + 2)).unwrap();
            assert!(database.trouble().is_none());
        }
        assert_eq!(database.kept(), [2, 12, 22]);
        database.close();
        assert!(matches!(
            database.write_blocking(insert(99)),
            Err(Fault::Closed)
        ));
    }

    #[test]
    fn full_database_fails_whole_transaction() {
        let (_directory, database) = open();
        fill(&database);
        // All three pieces are in the queue before the writer can take the first.
        let held = database.writing.lock();
        let first = database.submit(false, insert(1)).unwrap();
        let full = database.submit(false, large).unwrap();
        let last = database.submit(false, insert(3)).unwrap();
        drop(held);
        let ends = [first, full, last].map(|answer| answer.blocking_recv().unwrap().map(drop));
        for end in &ends[..2] {
            let fault = end.as_ref().unwrap_err();
            assert_eq!(fault.errno(), rustix::io::Errno::NOSPC, "{fault}");
            assert!(matches!(fault, Fault::NotKept(_)), "{fault:?}");
            assert!(fault.to_string().contains("free some space"), "{fault}");
        }
        // The third piece arrived after the transaction ended and was in a transaction of its own, or it failed with the others.
        let kept = if ends[2].is_ok() {
            vec![3, 100]
        } else {
            vec![100]
        };
        assert_eq!(database.kept(), kept);
        database.write_blocking(insert(4)).unwrap();
    }

    #[test]
    fn full_database_releases_reserve_and_restores_it() {
        let (directory, database) = open();
        let reserve = directory.path().join("server.reserve");
        let low = || database.low().load(Ordering::Relaxed);
        assert!(std::fs::metadata(&reserve).unwrap().len() > 0 && !low());
        fill(&database);
        database.write_blocking(large).unwrap_err();
        assert!(!reserve.exists() && low());
        assert!(matches!(database.trouble(), Some(Fault::NotKept(_))));
        // The device has space.
        database.write_blocking(insert(1)).unwrap();
        assert!(reserve.exists() && !low());
        assert!(database.trouble().is_none());
    }

    #[test]
    fn statements_after_failed_transaction_are_not_kept() {
        let (_directory, database) = open();
        fill(&database);
        let careless = |db: &Connection| {
            let _ = large(db);
            let _ = insert(1)(db);
            Ok(())
        };
        for fault in [
            database.write_blocking(careless).unwrap_err(),
            database.write_here(false, careless).unwrap_err(),
        ] {
            assert!(matches!(fault, Fault::NotKept(_)), "{fault:?}");
        }
        assert_eq!(database.kept(), [100]);
    }

    #[test]
    fn failed_sync_blocks_durability_until_full_rewrite() {
        let (directory, database) = open();
        let path = directory.path().join("server.db");
        let no_sync = || {
            database.with(|writing| {
                // This file can't be synced.
                writing.wal_file = Some(File::open("/dev/null").unwrap());
                writing.connection.sql.busy_timeout(Duration::ZERO).unwrap();
            });
        };
        // No reader blocks the checkpoint: the content of the log is written to the database at once.
        no_sync();
        let kept = database.write_here(true, insert(1)).unwrap();
        assert!(kept.on_disk.is_ok(), "{kept:?}");
        assert_eq!(
            std::fs::metadata(directory.path().join("server.db-wal"))
                .unwrap()
                .len(),
            0
        );
        // A reader blocks the checkpoint: the change was made, but its durability is not confirmed.
        let reader = schema::open_reader(&path).unwrap();
        reader
            .sql
            .execute_batch("BEGIN; SELECT count(*) FROM content;")
            .unwrap();
        no_sync();
        let held = database.writing.lock();
        let durable = database.submit(true, insert(2)).unwrap();
        let other = database.submit(false, insert(3)).unwrap();
        drop(held);
        let fault = durable
            .blocking_recv()
            .unwrap()
            .unwrap()
            .on_disk
            .unwrap_err();
        assert!(matches!(fault, Fault::Unsynced(_)), "{fault:?}");
        assert_eq!(fault.errno(), rustix::io::Errno::IO);
        assert!(other.blocking_recv().unwrap().unwrap().on_disk.is_ok());
        assert_eq!(database.kept(), [1, 2, 3]);
        // A sync that succeeds now would prove nothing about the data that failed before.
        database.repair();
        let still = database.write_here(true, insert(4)).unwrap();
        assert!(
            matches!(still.on_disk, Err(Fault::Unsynced(_))),
            "{still:?}"
        );
        drop(reader);
        let kept = database.write_here(true, insert(5)).unwrap();
        assert!(kept.on_disk.is_ok(), "{kept:?}");
        assert_eq!(database.kept(), [1, 2, 3, 4, 5]);
    }
}
