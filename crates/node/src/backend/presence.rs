//! Check that the external store is the store that holds the node's files. A file system that is not mounted is an empty directory; files
//! that are missing from this directory are not lost.
//!
//! The node writes a marker file together with its first file. If neither the marker file nor any other known file exists, the store is
//! treated as offline: the node declares no file lost, and writes nothing.

use super::rows;
use super::{BackendBytes, BackendFailure, BackendFile, BackendFuture, BackendOverwrite, Far};
use crate::db::{Db, DbError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Name of the marker file.
pub(super) const MARK: &str = ".tidemill-store";
const TEXT: &str = "Nodes of a Tidemill cluster have files here. A store without this file may be treated as offline.\n";
/// Time for which writers trust a successful check.
const BELIEVED: Duration = Duration::from_secs(2);
/// Maximum time without an answer of the external store.
const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// Number of known files, of the oldest and of the newest, that are looked up if the marker file is missing.
const LOOKED_FOR: u32 = 4;

const OFFLINE: &str = "none of the known files exists: is it mounted? No file is changed. If the files are deleted for good, create an empty file \
    .tidemill-store in the store";

/// External store that is checked before it is used.
#[derive(Debug)]
pub(super) struct CheckedStore {
    far: Arc<dyn Far>,
    db: Db,
    believed: Mutex<Option<Instant>>,
    is_offline: Mutex<bool>,
}

impl CheckedStore {
    pub(super) fn new(far: Arc<dyn Far>, db: Db) -> Self {
        Self {
            far,
            db,
            believed: Mutex::default(),
            is_offline: Mutex::default(),
        }
    }

    /// Returns the reason why the content of the external store is unknown, if the last check did not find the store.
    pub(super) fn trouble(&self) -> Option<&'static str> {
        self.is_offline.lock().then_some(OFFLINE)
    }

    /// Checks whether the external store is present.
    pub(super) async fn look(&self) -> Result<(), BackendFailure> {
        self.is_marked().await.map(drop)
    }

    /// Returns whether the marker file exists. Fails if the external store is offline.
    async fn is_marked(&self) -> Result<bool, BackendFailure> {
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
        marked.ok_or_else(|| BackendFailure::Other(OFFLINE.to_owned()))
    }

    /// Returns the file at `path`. If the file is missing, checks the store first and then asks again.
    pub(super) async fn stat_surely(&self, path: &str) -> Result<BackendFile, BackendFailure> {
        match timely(self.far.stat(path)).await {
            Err(BackendFailure::Missing) => {
                self.look().await?;
                timely(self.far.stat(path)).await
            }
            answer => answer,
        }
    }

    /// Returns whether the marker file exists; `None` if at least one file is known, but neither the marker file nor any checked file
    /// exists.
    async fn found(&self) -> Result<Option<bool>, BackendFailure> {
        if self.has(MARK).await? {
            return Ok(Some(true));
        }
        let some = self.db.read(|db| rows::some_paths(db, LOOKED_FOR));
        let some = some.map_err(|error: DbError| BackendFailure::Other(error.to_string()))?;
        for path in &some {
            if self.has(path).await? {
                return Ok(Some(false));
            }
        }
        Ok(some.is_empty().then_some(false))
    }

    async fn has(&self, path: &str) -> Result<bool, BackendFailure> {
        match timely(self.far.stat(path)).await {
            Ok(_) | Err(BackendFailure::Changed) => Ok(true),
            Err(BackendFailure::Missing) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Checks the external store before a write or a removal, and writes a missing marker file.
    async fn ready(&self) -> Result<(), BackendFailure> {
        if self.is_believed() {
            return Ok(());
        }
        if !self.is_marked().await? {
            let mut text = Some(Bytes::from_static(TEXT.as_bytes()));
            let pieces = Box::new(move || Ok(text.take()));
            let size = TEXT.len() as u64;
            let put = self
                .far
                .write(MARK, size, pieces, BackendOverwrite::Anything)
                .await;
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
    async fn again<T>(&self, answer: &Result<T, BackendFailure>) -> Result<bool, BackendFailure> {
        if !matches!(answer, Err(BackendFailure::Missing)) || self.is_believed() {
            return Ok(false);
        }
        self.look().await.map(|()| true)
    }
}

/// Waits for an answer of the external store, for at most [`SILENCE`], because stores retry without end.
async fn timely<T>(asked: BackendFuture<'_, T>) -> Result<T, BackendFailure> {
    let answer = tokio::time::timeout(SILENCE, asked).await;
    answer.unwrap_or(Err(BackendFailure::Silent))
}

impl Far for CheckedStore {
    fn stat<'a>(&'a self, path: &'a str) -> BackendFuture<'a, BackendFile> {
        Box::pin(async move {
            let answer = timely(self.far.stat(path)).await;
            match self.again(&answer).await? {
                true => timely(self.far.stat(path)).await,
                false => answer,
            }
        })
    }

    fn read<'a>(&'a self, of: &'a BackendFile, from: u64, count: u64) -> BackendFuture<'a, Bytes> {
        Box::pin(async move {
            let answer = timely(self.far.read(of, from, count)).await;
            match self.again(&answer).await? {
                true => timely(self.far.read(of, from, count)).await,
                false => answer,
            }
        })
    }

    fn write<'a>(
        &'a self,
        path: &'a str,
        size: u64,
        pieces: BackendBytes<'a>,
        over: BackendOverwrite,
    ) -> BackendFuture<'a, BackendFile> {
        Box::pin(async move {
            self.ready().await?;
            self.far.write(path, size, pieces, over).await
        })
    }

    fn also<'a>(&'a self, path: &'a str, other: &'a str) -> BackendFuture<'a, BackendFile> {
        Box::pin(async move {
            self.ready().await?;
            self.far.also(path, other).await
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> BackendFuture<'a, ()> {
        Box::pin(async move {
            self.ready().await?;
            self.far.remove(path).await
        })
    }

    fn leaves(&self, size: u64) -> bool {
        self.far.leaves(size)
    }

    fn abandon<'a>(&'a self, path: &'a str, since: SystemTime) -> BackendFuture<'a, ()> {
        self.far.abandon(path, since)
    }

    fn renew(&self) {
        self.far.renew();
    }
}
