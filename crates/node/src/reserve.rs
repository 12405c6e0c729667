//! Space on the device that is reserved for the database. With this space, a node whose device is full can still seal, remove and report.
//! The module changes the files of the database.
//!
//! Three files grow when SQLite commits. None of them may need to grow when the device is full:
//!
//! - The write-ahead log has blocks allocated beyond its end ([`WAL_BYTES`]) and is never truncated.
//! - The log's index (`-shm`) is filled once. At the start of the node the index is cleared but not truncated, since other programs could
//!   take the freed blocks at once.
//! - The database itself has free pages ([`POOL_BYTES`]), created while the device was not full. SQLite uses them before it grows the file.

use parking_lot::Mutex;
use rusqlite::Connection;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_sandbox::locks::{LockType, try_lock_byte};
use tidemill_wire::{condition, v1};

/// Bytes allocated for the write-ahead log. SQLite checkpoints the log at half of this size.
const WAL_BYTES: u64 = 8 << 20;

/// Length of the write-ahead log, in pages, at which the log is restarted before further writes, if the device is nearly full.
const WAL_PAGES_MAX: i64 = 1500;

/// Size in bytes of the write-ahead log's index: enough for a log four times as long.
const INDEX_BYTES: u64 = 64 << 10;

/// Total size in bytes of the free pages in the database.
const POOL_BYTES: u64 = 4 << 20;

/// Number of temporary rows that fill the pool of free pages.
const PIECES: i64 = 8;

/// Size in bytes of the pool of free pages below which the pool is filled again, if the device has space.
const POOL_REFILL_BYTES: u64 = POOL_BYTES / 4 * 3;

/// Size in bytes of the pool of free pages below which the node gets no new files.
const POOL_SHORT_BYTES: u64 = POOL_BYTES / 4;

/// Free bytes of the device below which the device is nearly full, so that the pool of free pages is not filled.
const PLENTY_BYTES: u64 = 16 << 20;

/// Free bytes of the device below which the device is full.
const FULL_BYTES: u64 = 1 << 20;

/// Number of changes between two checks of the pool of free pages while the device has much space.
const CHANGES_PER_LOOK: usize = 256;

/// Byte in the write-ahead log's index with which processes signal that they use the index (`UNIX_SHM_DMS` of SQLite).
const INDEX_IN_USE: i64 = 128;

/// State of the database's space, shared with all readers.
#[derive(Debug)]
pub(crate) struct SpaceState {
    pool_bytes: AtomicU64,
    device_bytes: AtomicU64,
    /// Error of the last commit, until a commit succeeds.
    failed: Mutex<Option<String>>,
}

impl Default for SpaceState {
    /// Returns the state before the first check: unlimited space.
    fn default() -> Self {
        Self {
            pool_bytes: AtomicU64::new(u64::MAX),
            device_bytes: AtomicU64::new(u64::MAX),
            failed: Mutex::default(),
        }
    }
}

impl SpaceState {
    fn is_full(&self) -> bool {
        self.device_bytes.load(Ordering::Relaxed) < FULL_BYTES
    }

    /// Returns whether the database may soon be unable to commit.
    pub(crate) fn is_short(&self) -> bool {
        self.device_bytes.load(Ordering::Relaxed) < PLENTY_BYTES
            && self.pool_bytes.load(Ordering::Relaxed) < POOL_SHORT_BYTES
    }

    /// Records the result of a commit. Logs one line when commits start to fail and one line when they succeed again.
    pub(crate) fn committed(&self, failed: Option<&rusqlite::Error>) {
        let why = failed.map(ToString::to_string);
        let mut failed = self.failed.lock();
        match (&why, &*failed) {
            (Some(error), None) => {
                tracing::error!(error, "the node's database could not commit");
            }
            (None, Some(_)) => tracing::info!("the node's database commits again"),
            _ => {}
        }
        *failed = why;
    }

    /// Returns the conditions of the database and of its device.
    pub(crate) fn conditions(&self, node: u32) -> Vec<v1::Condition> {
        let full = self.trouble();
        let mut found = Vec::new();
        if !full.is_empty() {
            found.push(condition::NODE_FULL.of(Some(node), full));
        } else if let Some(failed) = &*self.failed.lock() {
            let cause = format!("its database can't commit: {failed}");
            found.push(condition::NODE_DATABASE.of(Some(node), cause));
        }
        found
    }

    /// Returns a human-readable description of the database's problem; empty if no problem exists.
    fn trouble(&self) -> String {
        if !self.is_full() && !self.is_short() {
            return String::new();
        }
        let kib = self.pool_bytes.load(Ordering::Relaxed) >> 10;
        let soon = if self.is_short() {
            ": soon it can neither seal nor remove files"
        } else {
            ""
        };
        format!("its device is full, its database has {kib} KiB reserved{soon}")
    }
}

/// Keeper of the space that is reserved for the database.
#[derive(Debug)]
pub(crate) struct ReserveKeeper {
    directory: PathBuf,
    left: Arc<SpaceState>,
    changes: usize,
    /// Problems that were logged last.
    reported: (bool, bool),
}

impl ReserveKeeper {
    /// Allocates the missing space, as far as the device has free space. The database must be open and have its tables.
    pub(crate) fn new(path: &Path, connection: &Connection) -> Self {
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        if let Err(error) = hold_log(path) {
            tracing::warn!(%error, "space for the database's log can't be reserved");
        }
        let mut reserve = Self {
            directory,
            left: Arc::default(),
            changes: CHANGES_PER_LOOK,
            reported: (false, false),
        };
        if let Err(error) = drop_pieces(connection) {
            tracing::warn!(%error, "space that a killed node had partly reserved can't be released");
        }
        reserve.look(connection, 0);
        reserve
    }

    /// Returns the state of the database's space for other modules.
    pub(crate) fn left(&self) -> Arc<SpaceState> {
        Arc::clone(&self.left)
    }

    /// Checks the space. Must be called after each commit with the number of its changes. Costs one system call while much space is free.
    pub(crate) fn look(&mut self, connection: &Connection, changes: usize) {
        self.changes += changes;
        let Ok(space) = rustix::fs::statvfs(&self.directory) else {
            return;
        };
        let device_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        self.left
            .device_bytes
            .store(device_bytes, Ordering::Relaxed);
        let plenty = device_bytes >= PLENTY_BYTES;
        if plenty && self.changes < CHANGES_PER_LOOK {
            return;
        }
        self.changes = 0;
        if let Err(error) = self.keep(connection, plenty) {
            tracing::warn!(%error, "the reserved space of the database can't be checked");
        }
        let state = (self.left.is_full(), self.left.is_short());
        if state != self.reported {
            let trouble = self.left.trouble();
            if trouble.is_empty() {
                tracing::info!("the node's device has space again");
            } else {
                tracing::warn!(device_bytes, "this node has a problem: {trouble}");
            }
            self.reported = state;
        }
    }

    fn keep(&self, connection: &Connection, plenty: bool) -> rusqlite::Result<()> {
        let mut pool_bytes = pool_bytes(connection)?;
        if plenty && pool_bytes < POOL_REFILL_BYTES {
            let filled = fill(connection);
            drop_pieces(connection)?;
            filled?;
            pool_bytes = self::pool_bytes(connection)?;
        }
        self.left.pool_bytes.store(pool_bytes, Ordering::Relaxed);
        if !plenty && log_pages(connection)? > WAL_PAGES_MAX {
            restart_log(connection)?;
        }
        Ok(())
    }
}

/// Checkpoints the write-ahead log, so that the next commit writes at the log's start. Waits for readers.
pub(crate) fn restart_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))
}

/// Checkpoints the write-ahead log into the database file. Before the checkpoint, the function writes a row that says "the log has more
/// changes", which reaches the database file. After the checkpoint, the row is reset in the log. So the row identifies a copy of the
/// database file without its log.
pub(crate) fn fold(connection: &Connection, mode: CheckpointKind) -> rusqlite::Result<()> {
    mark(connection, true)?;
    let folded = match mode {
        CheckpointKind::Restart => restart_log(connection),
        CheckpointKind::Passive => {
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
        }
    };
    mark(connection, false)?;
    folded
}

/// Kind of checkpoint of the write-ahead log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CheckpointKind {
    /// Checkpoints the whole log and waits for readers.
    Restart,
    /// Checkpoints as much of the log as possible without waiting for readers.
    Passive,
}

fn mark(connection: &Connection, log_has_more: bool) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO identity VALUES ('log', ?1)";
    let value = [u8::from(log_has_more)];
    connection.prepare_cached(sql)?.execute([&value[..]])?;
    Ok(())
}

fn pool_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size";
    let bytes = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let bytes = connection.prepare_cached(sql)?.query_row([], bytes)?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Returns the number of pages in the write-ahead log.
pub(crate) fn log_pages(connection: &Connection) -> rusqlite::Result<i64> {
    let sql = "PRAGMA wal_checkpoint(NOOP)";
    connection.query_row(sql, [], |row| row.get(1))
}

/// Extends the database to its full size. The new pages are free after [`drop_pieces`], and SQLite never returns them to the file system.
fn fill(connection: &Connection) -> rusqlite::Result<()> {
    let bytes = i64::try_from(POOL_BYTES).unwrap_or(i64::MAX) / PIECES;
    for piece in 0..PIECES {
        connection.execute(
            "INSERT INTO identity VALUES ('set aside ' || ?1, zeroblob(?2))",
            [piece, bytes],
        )?;
    }
    Ok(())
}

fn drop_pieces(connection: &Connection) -> rusqlite::Result<usize> {
    connection.execute("DELETE FROM identity WHERE key LIKE 'set aside %'", [])
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Allocates blocks beyond the end of the write-ahead log, for SQLite's later writes.
fn hold_log(path: &Path) -> io::Result<()> {
    let log = open(&with_suffix(path, "-wal"))?;
    Ok(fallocate(&log, FallocateFlags::KEEP_SIZE, 0, WAL_BYTES)?)
}

/// Fills the write-ahead log's index with zeros and marks it as used, so that SQLite does not truncate and extend it. Must be called before
/// the database is opened. The file must stay open until all connections are closed: closing it earlier would release SQLite's own locks.
///
/// SQLite fills the index in the same way (`unixLockSharedMemory`), but does not allocate the blocks.
///
/// # Errors
/// The device is full, or the file system does not support such locks: SQLite then creates the index as usual.
pub(crate) fn hold_index(path: &Path) -> io::Result<File> {
    let index = open(&with_suffix(path, "-shm"))?;
    if try_lock_byte(&index, INDEX_IN_USE, LockType::Exclusive)? {
        let length = index.metadata()?.len().max(INDEX_BYTES);
        let zeros = vec![0; usize::try_from(INDEX_BYTES).unwrap_or_default()];
        for offset in (0..length).step_by(zeros.len()) {
            index.write_all_at(&zeros, offset)?;
        }
    }
    // If another process uses the index, the index is valid.
    try_lock_byte(&index, INDEX_IN_USE, LockType::Shared)?;
    Ok(index)
}
