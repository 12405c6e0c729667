//! Space set aside on the device of the server's folder, so that files can be removed when the device is full.
//!
//! A file beside the database holds the space. It is removed when the device is nearly full, or when SQLite says that it
//! is full: from then on new names and jobs are refused, and the space is left for what makes room. The file is made again
//! when the device has room again.

use rusqlite::Connection;
use rustix::fs::{FallocateFlags, fallocate};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Space set aside, unless the device is small.
const BYTES: u64 = 16 << 20;
/// A small device's part of what is free.
const PART: u64 = 4;
/// The device is nearly full with less than this free.
const FULL_BYTES: u64 = 1 << 20;
/// How often the log is made shorter while the device is nearly full.
const PERIOD: Duration = Duration::from_secs(1);
/// As long as SQLite waits for others at other times.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
    low: Arc<AtomicBool>,
    shortened: Option<Instant>,
}

impl Reserve {
    /// Sets the space aside beside a database, unless it is already.
    pub(super) fn new(database: &Path, low: &Arc<AtomicBool>) -> Self {
        let path = database.with_extension("reserve");
        let mut reserve = Self {
            path,
            bytes: BYTES,
            low: low.clone(),
            shortened: None,
        };
        let held = std::fs::metadata(&reserve.path).map_or(0, |file| file.len());
        if held > 0 {
            reserve.bytes = held;
            return reserve;
        }
        let Some(free) = reserve.free() else {
            return reserve;
        };
        reserve.bytes = BYTES.min(free / PART);
        if reserve.bytes < FULL_BYTES {
            reserve.bytes = FULL_BYTES;
            reserve.set_low(true);
        } else {
            reserve.take();
        }
        reserve
    }

    /// Bytes that are free on the device.
    fn free(&self) -> Option<u64> {
        let space = rustix::fs::statvfs(self.path.parent()?).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// Makes the file. Where the file system can't, nothing is set aside.
    fn take(&self) {
        let made = self.allocate();
        if let Err(error) = made {
            tracing::warn!(%error, "no space can be set aside for the server's database");
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
                "the device of the server's folder is nearly full: new names and jobs are refused until there is room"
            );
        } else {
            tracing::info!("the device of the server's folder has room again");
        }
    }

    /// Gives the space back to the database.
    pub(super) fn give(&self) {
        self.set_low(true);
        let _ = std::fs::remove_file(&self.path);
    }

    /// To be called before each transaction: one system call while there is room.
    pub(super) fn look(&mut self, connection: &Connection) {
        let Some(free) = self.free() else {
            return;
        };
        if !self.is_low() {
            if free < FULL_BYTES {
                self.give();
            }
            return;
        }
        if free < 2 * self.bytes + FULL_BYTES {
            self.shorten(connection);
            return;
        }
        self.take();
        self.set_low(false);
    }

    /// Folds the log back and cuts it off: the database may have pages that are free.
    fn shorten(&mut self, connection: &Connection) {
        if self.shortened.is_some_and(|last| last.elapsed() < PERIOD) {
            return;
        }
        self.shortened = Some(Instant::now());
        // Readers are not waited for.
        let _ = connection.busy_timeout(Duration::ZERO);
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        if let Err(error) = connection.query_row(sql, [], |_| Ok(())) {
            tracing::debug!(%error, "the write-ahead log can't be made shorter");
        }
        let _ = connection.busy_timeout(PATIENCE);
    }
}
