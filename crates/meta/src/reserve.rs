//! Reserves space on the device of the server's directory, so that clients can still remove files when the device is full.
//!
//! A file next to the database occupies the reserved space. The server deletes the file when the device is nearly full, or when SQLite
//! reports a full device. From then on the server refuses new names and jobs, and the space remains for operations that free space. The
//! server creates the file again when the device has space again.

use crate::Connection;
use rustix::fs::{FallocateFlags, fallocate};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidemill_log::LogWriter;

/// Number of bytes to reserve, unless that is more than the fraction 1/[`PART`] of the device.
const BYTES: u64 = 16 << 20;
/// Divisor for the maximum fraction of the device that is reserved.
const PART: u64 = 8;
/// Minimum size in bytes of a device on which space is reserved: a smaller device has space only for the database.
const DEVICE_BYTES_MIN: u64 = 32 << 20;
/// Number of free bytes below which the device counts as nearly full.
const FULL_BYTES: u64 = 1 << 20;
/// Interval at which the write-ahead log is truncated while the device is nearly full.
const PERIOD: Duration = Duration::from_secs(1);
/// SQLite's timeout for locks, which is set again after the log was truncated.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reserved space on the device of the database.
#[derive(Debug)]
pub(super) struct DatabaseReserve {
    path: PathBuf,
    bytes: u64,
    low: Arc<AtomicBool>,
    shortened: Option<Instant>,
}

impl DatabaseReserve {
    /// Reserves space for a database, unless the space is reserved already; returns `None` on a small device.
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

    /// Returns whether the device has space for the reserved file and a margin.
    fn has_space(&self) -> bool {
        let needed = self.bytes + 2 * FULL_BYTES;
        self.free().is_none_or(|free| free >= needed)
    }

    /// Returns the number of free bytes on the device.
    fn free(&self) -> Option<u64> {
        let space = rustix::fs::statvfs(self.path.parent()?).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// Creates the file that reserves the space. If the file system can't allocate the file, no space is reserved.
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

    /// Deletes the reserved file, which frees its space for the database.
    pub(super) fn give(&self) {
        self.set_low(true);
        let _ = std::fs::remove_file(&self.path);
    }

    /// Checks the free space of the device before each transaction. The check costs one system call while there is enough space.
    pub(super) fn look(
        &mut self,
        connection: &Connection,
        (log, replicated): (Option<&LogWriter>, bool),
    ) {
        if self.is_low() {
            if self.has_space() {
                self.take();
                self.set_low(false);
            } else {
                self.shorten(connection, (log, replicated));
            }
        } else if self.free().is_some_and(|free| free < FULL_BYTES) {
            self.give();
        }
    }

    /// Copies the write-ahead log into the database and truncates the log, since the database may have free pages.
    fn shorten(&mut self, connection: &Connection, (log, replicated): (Option<&LogWriter>, bool)) {
        if self.shortened.is_some_and(|last| last.elapsed() < PERIOD) {
            return;
        }
        if let Some(log) = log {
            if replicated {
                // The replicated log must have read everything first.
                return log.checkpoint();
            }
            log.disturb();
        }
        self.shortened = Some(Instant::now());
        // Does not wait for readers.
        let _ = connection.sql.busy_timeout(Duration::ZERO);
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        if let Err(error) = connection.sql.query_row(sql, [], |_| Ok(())) {
            tracing::debug!(%error, "the write-ahead log can't be made shorter");
        }
        let _ = connection.sql.busy_timeout(PATIENCE);
    }
}
