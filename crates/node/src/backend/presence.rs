//! Check that the external store is the store that holds the node's files. A file system that is not mounted is an empty directory; files
//! that are missing from this directory are not lost.
//!
//! The node writes a marker file together with its first file. If neither the marker file nor any other known file exists, the store is
//! treated as offline: the node declares no file lost, and writes nothing.

use super::rows;
use super::{Error, Overwrite, Remote, StoreFile};
use crate::db::{Db, DbError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Name of the marker file.
pub(super) const MARK: &str = ".tidemill-store";
const TEXT: &str = "Nodes of a Tidemill cluster have files here. A store without this file may be treated as offline.\n";
/// Largest file in bytes that is written at once, from memory.
const WHOLE_BYTES_MAX: u64 = 32 << 20;
/// Time for which writers trust a successful check.
const BELIEVED: Duration = Duration::from_secs(2);
/// Maximum time without an answer of the external store.
const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// Number of known files, of the oldest and of the newest, that are looked up if the marker file is missing.
const LOOKED_FOR: u32 = 4;

const OFFLINE: &str = "none of the known files exists: is it mounted? No file is changed. If the files are deleted for good, create an empty file \
    .tidemill-store in the store";

/// Source of the next bytes to write to an external store; returns `None` at the end.
pub(super) type BackendBytes<'a> = Box<dyn FnMut() -> std::io::Result<Option<Bytes>> + Send + 'a>;

/// External store that is checked before it is used.
#[derive(Debug)]
pub(super) struct CheckedStore {
    far: Remote,
    db: Db,
    believed: Mutex<Option<Instant>>,
    is_offline: Mutex<bool>,
    /// Whether the store has reported that it does not support conditional writes.
    unconditional: AtomicBool,
}

impl CheckedStore {
    pub(super) fn new(far: Remote, db: Db) -> Self {
        Self {
            far,
            db,
            believed: Mutex::default(),
            is_offline: Mutex::default(),
            unconditional: AtomicBool::default(),
        }
    }

    /// Returns the reason why the content of the external store is unknown, if the last check did not find the store.
    pub(super) fn trouble(&self) -> Option<&'static str> {
        self.is_offline.lock().then_some(OFFLINE)
    }

    /// Checks whether the external store is present.
    pub(super) async fn look(&self) -> Result<(), Error> {
        self.is_marked().await.map(drop)
    }

    /// Returns whether the marker file exists. Fails if the external store is offline.
    async fn is_marked(&self) -> Result<bool, Error> {
        let mut marked = self.found().await?;
        if marked.is_none() {
            // The store may be mounted again.
            self.far.renew();
            marked = self.found().await?;
        }
        let was_offline = std::mem::replace(&mut *self.is_offline.lock(), marked.is_none());
        match (marked, was_offline) {
            (None, false) => tracing::error!("the backend is offline: {OFFLINE}"),
            (Some(_), true) => tracing::info!("the backend is online again"),
            _ => {}
        }
        marked.ok_or_else(|| Error::Other(OFFLINE.to_owned()))
    }

    /// Returns the file at `path`. If the file is missing, checks the store first and then asks again.
    pub(super) async fn stat_surely(&self, path: &str) -> Result<StoreFile, Error> {
        match timely(self.far.stat(path)).await {
            Err(Error::Missing(_)) => {
                self.look().await?;
                timely(self.far.stat(path)).await
            }
            answer => answer,
        }
    }

    /// Returns whether the marker file exists; `None` if at least one file is known, but neither the marker file nor any checked file
    /// exists.
    async fn found(&self) -> Result<Option<bool>, Error> {
        if self.has(MARK).await? {
            return Ok(Some(true));
        }
        let some = self.db.read(|db| rows::some_paths(db, LOOKED_FOR));
        let some = some.map_err(|error: DbError| Error::Other(error.to_string()))?;
        for path in &some {
            if self.has(path).await? {
                return Ok(Some(false));
            }
        }
        Ok(some.is_empty().then_some(false))
    }

    async fn has(&self, path: &str) -> Result<bool, Error> {
        match timely(self.far.stat(path)).await {
            Ok(_) | Err(Error::Changed(_)) => Ok(true),
            Err(Error::Missing(_)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Checks the external store before a write or a removal, and writes a missing marker file.
    async fn ready(&self) -> Result<(), Error> {
        if self.is_believed() {
            return Ok(());
        }
        if !self.is_marked().await? {
            let text = Bytes::from_static(TEXT.as_bytes());
            let put = self.far.put(MARK, text, Overwrite::Anything).await;
            if let Err(failure) = put {
                // The write that follows reports the reason.
                tracing::debug!(%failure, "the backend has no mark");
                return Ok(());
            }
        }
        *self.believed.lock() = Some(Instant::now());
        Ok(())
    }

    fn is_believed(&self) -> bool {
        let believed = *self.believed.lock();
        !*self.is_offline.lock() && believed.is_some_and(|since| since.elapsed() < BELIEVED)
    }

    /// Returns whether a request for a missing file must be repeated, because the external store may have been offline until now.
    async fn again<T>(&self, answer: &Result<T, Error>) -> Result<bool, Error> {
        if !matches!(answer, Err(Error::Missing(_))) || self.is_believed() {
            return Ok(false);
        }
        self.look().await.map(|()| true)
    }
}

/// Waits for an answer of the external store, for at most [`SILENCE`], because stores retry without end. A path that is no file any more
/// has changed.
async fn timely<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = tokio::time::timeout(SILENCE, asked).await;
    answer.unwrap_or(Err(Error::Silent)).map_err(no_file)
}

fn no_file(error: Error) -> Error {
    match error {
        Error::NoFile { path, .. } => Error::Changed(path),
        error => error,
    }
}

/// Returns whether the store answers that it does not support conditional writes.
fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Store { reason, .. } if reason.contains("NotImplemented"))
}

impl CheckedStore {
    pub(super) async fn stat(&self, path: &str) -> Result<StoreFile, Error> {
        let answer = timely(self.far.stat(path)).await;
        match self.again(&answer).await? {
            true => timely(self.far.stat(path)).await,
            false => answer,
        }
    }

    /// Reads `count` bytes from offset `from` of a file, if its tag has not changed.
    pub(super) async fn read(&self, of: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        let answer = timely(self.far.read_at(of, from, count)).await;
        match self.again(&answer).await? {
            true => timely(self.far.read_at(of, from, count)).await,
            false => answer,
        }
    }

    /// Writes a file of `size` bytes if `over` permits it. Readers never see an incomplete file.
    pub(super) async fn write(
        &self,
        path: &str,
        size: u64,
        pieces: BackendBytes<'_>,
        over: Overwrite,
    ) -> Result<StoreFile, Error> {
        self.ready().await?;
        let over = match self.unconditional.load(Ordering::Relaxed) {
            true => Overwrite::Anything,
            false => over,
        };
        let conditional = over != Overwrite::Anything;
        let written = self.write_pieces(path, size, pieces, over).await;
        let written = written.map_err(|error| {
            // The retry has no condition.
            let unknown = conditional && is_unknown(&error);
            self.unconditional.fetch_or(unknown, Ordering::Relaxed);
            no_file(error)
        })?;
        match written.size == size {
            true => Ok(written),
            false => Err(Error::Changed(path.to_owned())),
        }
    }

    async fn write_pieces(
        &self,
        path: &str,
        size: u64,
        mut pieces: BackendBytes<'_>,
        over: Overwrite,
    ) -> Result<StoreFile, Error> {
        let mut next = || pieces().map_err(|error| Error::Other(error.to_string()));
        if size <= WHOLE_BYTES_MAX {
            let mut all = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
            while let Some(piece) = next()? {
                all.extend_from_slice(&piece);
            }
            return self.far.put(path, all.into(), over).await;
        }
        let mut writer = self.far.write_over(path, over).await?;
        loop {
            let written = match next() {
                Ok(Some(piece)) => writer.write(piece).await,
                Ok(None) => return writer.finish().await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                writer.abort().await;
                return Err(error);
            }
        }
    }

    /// Creates a file at `other` with the bytes of the file at `path`, in place of a file that exists at `other`.
    pub(super) async fn also(&self, path: &str, other: &str) -> Result<StoreFile, Error> {
        self.ready().await?;
        self.far.also(path, other).await.map_err(no_file)
    }

    /// Removes a file. If the file does not exist, the function succeeds.
    pub(super) async fn remove(&self, path: &str) -> Result<(), Error> {
        self.ready().await?;
        match self.far.remove(path).await {
            Err(error) if !error.is_missing() => Err(no_file(error)),
            _ => Ok(()),
        }
    }

    /// Returns whether an interrupted write of `size` bytes may leave data in the external store that only [`Self::abandon`] finds.
    pub(super) fn leaves(&self, size: u64) -> bool {
        size > WHOLE_BYTES_MAX && self.far.leaves()
    }

    /// Removes the data of interrupted writes to `path` that started at or after `since`, by the external store's clock.
    pub(super) async fn abandon(&self, path: &str, since: SystemTime) -> Result<(), Error> {
        self.far.abandon(path, since).await.map_err(no_file)
    }
}
