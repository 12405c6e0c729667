//! Reserves space on the device of the server's directory, so that files can be removed when the device is full.
//!
//! A file next to the database holds the space. The file is deleted when the device is nearly full, or when SQLite reports a full
//! device: from then on new names and jobs are refused, and the space is left for operations that free space. The file is created
//! again when the device has space again.

use rusqlite::Connection;
use rustix::fs::{FallocateFlags, fallocate};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes to reserve, unless that is more than [`PART`] of the device.
const BYTES: u64 = 16 << 20;
/// Divisor for the part of a device that is reserved at most.
const PART: u64 = 8;
/// Minimum size of a device with a reserve, in bytes: a smaller device has space only for the database.
const DEVICE_BYTES_MIN: u64 = 32 << 20;
/// Free bytes below which the device counts as nearly full.
const FULL_BYTES: u64 = 1 << 20;
/// Interval at which the log is shortened while the device is nearly full.
const PERIOD: Duration = Duration::from_secs(1);
/// Timeout of SQLite at other times.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reserved space of a database.
#[derive(Debug)]
pub(super) struct DatabaseReserve {
    path: PathBuf,
    bytes: u64,
    low: Arc<AtomicBool>,
    shortened: Option<Instant>,
}

impl DatabaseReserve {
    /// Reserves the space for a database, unless it is reserved already; `None` on a small device.
    pub(super) fn new(database: &Path, low: &Arc<AtomicBool>) -> Option<Self> {
        let space = rustix::fs::statvfs(database.parent()?).ok()?;
        let device = space.f_blocks.saturating_mul(space.f_frsize);
        if device < DEVICE_BYTES_MIN {
            return None;
        }
        let mut reserve = Self {
            path: database.with_extension("reserve"),
            bytes: BYTES.min(device / PART),
            low: low.clone(),
            shortened: None,
        };
        let held = std::fs::metadata(&reserve.path).map_or(0, |file| file.len());
        if held > 0 {
            reserve.bytes = held;
        } else if reserve.has_space() {
            reserve.take();
        } else {
            reserve.set_low(true);
        }
        Some(reserve)
    }

    /// Returns whether the device has space for the file and more.
    fn has_space(&self) -> bool {
        let needed = self.bytes + 2 * FULL_BYTES;
        self.free().is_none_or(|free| free >= needed)
    }

    /// Returns the free bytes of the device.
    fn free(&self) -> Option<u64> {
        let space = rustix::fs::statvfs(self.path.parent()?).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// Creates the file. If the file system can't allocate it, no space is reserved.
    fn take(&self) {
        let made = self.allocate();
        if let Err(error) = made {
            tracing::warn!(%error, "space can't be reserved for the server's database");
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn allocate(&self) -> io::Result<()> {
        let mut options = std::fs::File::options();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)?;
        Ok(fallocate(&file, FallocateFlags::empty(), 0, self.bytes)?)
    }

    fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    fn set_low(&self, low: bool) {
        if self.low.swap(low, Ordering::Relaxed) == low {
            return;
        }
        if low {
            tracing::warn!(
                "the device of the server's directory is nearly full: new names and jobs are refused until there is space"
            );
        } else {
            tracing::info!("the device of the server's directory has space again");
        }
    }

    /// Releases the space for the database.
    pub(super) fn give(&self) {
        self.set_low(true);
        let _ = std::fs::remove_file(&self.path);
    }

    /// Checks the device; called before each transaction. It costs one system call while there is space.
    pub(super) fn look(&mut self, connection: &Connection) {
        if self.is_low() {
            if self.has_space() {
                self.take();
                self.set_low(false);
            } else {
                self.shorten(connection);
            }
        } else if self.free().is_some_and(|free| free < FULL_BYTES) {
            self.give();
        }
    }

    /// Copies the log into the database and truncates it: the database may have free pages.
    fn shorten(&mut self, connection: &Connection) {
        if self.shortened.is_some_and(|last| last.elapsed() < PERIOD) {
            return;
        }
        self.shortened = Some(Instant::now());
        // Does not wait for readers.
        let _ = connection.busy_timeout(Duration::ZERO);
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        if let Err(error) = connection.query_row(sql, [], |_| Ok(())) {
            tracing::debug!(%error, "the write-ahead log can't be made shorter");
        }
        let _ = connection.busy_timeout(PATIENCE);
    }
}
