//! The log of the server's database (next: `log/src/writer.rs`).

use super::{Database, WritingConnection, in_place};
use crate::fault::Fault;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use tidemill_log::{Checkpoints, Deposed, LogSettings, LogWriter, Replicator};
use tidemill_model::timers::Signals;

/// The writing connection, for checkpoints. `None` once the database is closed.
struct SharedWriter(Arc<Mutex<Option<WritingConnection>>>);

impl Checkpoints for SharedWriter {
    fn checkpoint(&self, before: &mut dyn FnMut() -> bool) -> io::Result<bool> {
        let writing = self.0.lock();
        let Some(writing) = writing.as_ref() else {
            return Ok(false);
        };
        if !before() {
            return Ok(false);
        }
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        let copy = || {
            let copied = writing.connection.sql.query_row(sql, [], |row| {
                let (busy, frames, copied): (bool, i64, i64) =
                    (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(!busy && frames == copied)
            });
            copied.map_err(io::Error::other)
        };
        match &writing.replicator {
            Some(replicator) => replicator.checkpoint(copy),
            None => copy(),
        }
    }
}

impl From<Deposed> for Fault {
    /// Returns the fault of a server that ends: its clients ask the next server.
    fn from(_: Deposed) -> Self {
        Self::Closed
    }
}

impl Database {
    /// Starts the log of the database, which from now on also decides when the write-ahead log is copied into the database. Each new or
    /// removed file of the log sends `signal`.
    ///
    /// # Errors
    /// The directory of the log can't be used.
    pub fn start_log(&self, settings: LogSettings, signal: Signals) -> io::Result<()> {
        let mut writing = self.writing.lock();
        let closed = || io::Error::other("the database is closed");
        let writing = writing.as_mut().ok_or_else(closed)?;
        let sql = &writing.connection.sql;
        sql.pragma_update(None, "wal_autocheckpoint", 0)
            .map_err(io::Error::other)?;
        let wakes = self.wakes.clone();
        let writer = Arc::new(SharedWriter(self.writing.clone()));
        let changed = Box::new(move || wakes.wake(signal));
        let log = Arc::new(LogWriter::start(settings, writer, changed)?);
        writing.log = Some(log.clone());
        let _ = self.log.set(log);
        Ok(())
    }

    /// Makes each change wait until a replicated log has it, from now on. The changes before count as committed now.
    ///
    /// # Errors
    /// The database is closed.
    pub fn replicate(&self, replicator: Arc<Replicator>) -> io::Result<()> {
        let mut writing = self.writing.lock();
        let closed = || io::Error::other("the database is closed");
        writing.as_mut().ok_or_else(closed)?.replicator = Some(replicator.clone());
        replicator.committed();
        let _ = self.replicator.set(replicator);
        Ok(())
    }

    /// Returns the log that other servers follow; `None` if there is none.
    pub fn replicator(&self) -> Option<&Arc<Replicator>> {
        self.replicator.get()
    }

    /// Adds the changed files of the server's directory to the logs, and waits until the replicated log has them.
    ///
    /// # Errors
    /// The server does not lead any more.
    pub fn log_files(&self) -> Result<(), Fault> {
        if let Some(log) = self.log.get() {
            log.committed();
        }
        if let Some(replicator) = self.replicator.get() {
            let _no_commit = self.writing.lock();
            replicator.committed();
        }
        self.replicated()
    }

    /// Waits until the replicated log has all commits so far. Each later leader then knows everything that a caller has read or changed.
    pub(super) fn replicated(&self) -> Result<(), Fault> {
        let Some(replicator) = self.replicator.get() else {
            return Ok(());
        };
        if replicator.is_complete() {
            return Ok(());
        }
        Ok(in_place(|| replicator.wait_for_reads())?)
    }

    /// Returns the log of the database; `None` if it has none.
    pub fn log(&self) -> Option<&Arc<LogWriter>> {
        self.log.get()
    }
}
