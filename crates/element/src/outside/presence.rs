//! Whether the store outside is the one that files were put into: a file system that is not mounted is an empty folder, and what is not
//! found there is not lost.
//!
//! With the first file that is put there goes a mark. Where neither the mark is nor anything else that is known to be there, the store is
//! away: nothing is believed to be gone, and nothing is written there.

use super::rows;
use super::{Asked, Failure, Far, Over, Pieces, Placed};
use crate::db::{Db, DbError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The mark.
pub(super) const MARK: &str = ".tidemill-store";
const TEXT: &str = "Elements of a Tidemill array have files here. A store without this file may be taken for one that is away.\n";
/// A store that was found to be there is believed for so long by who writes.
const BELIEVED: Duration = Duration::from_secs(2);
/// Longest that a question may be without an answer.
const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// Files that are looked for where there is no mark: the first and the last of those that are known.
const LOOKED_FOR: u32 = 4;

const AWAY: &str = "nothing is there that was before: is it mounted? Files stay as they are; if that is right, put an empty file \
    .tidemill-store there";

/// A store, and whether it is there.
#[derive(Debug)]
pub(super) struct Guarded {
    far: Arc<dyn Far>,
    db: Db,
    believed: Mutex<Option<Instant>>,
    is_away: Mutex<bool>,
}

impl Guarded {
    pub(super) fn new(far: Arc<dyn Far>, db: Db) -> Self {
        Self {
            far,
            db,
            believed: Mutex::default(),
            is_away: Mutex::default(),
        }
    }

    /// Why nothing is known of what is there, if it was not when it was last asked.
    pub(super) fn trouble(&self) -> Option<&'static str> {
        self.is_away.lock().then_some(AWAY)
    }

    /// Asks whether it is there.
    pub(super) async fn look(&self) -> Result<(), Failure> {
        self.is_marked().await.map(drop)
    }

    /// Whether the mark is there; a failure if the store is not.
    async fn is_marked(&self) -> Result<bool, Failure> {
        let mut marked = self.found().await?;
        if marked.is_none() {
            // It may be there again.
            self.far.renew();
            marked = self.found().await?;
        }
        let was_away = std::mem::replace(&mut *self.is_away.lock(), marked.is_none());
        match (marked, was_away) {
            (None, false) => tracing::error!("the store outside is away: {AWAY}"),
            (Some(_), true) => tracing::info!("the store outside is there again"),
            _ => {}
        }
        marked.ok_or_else(|| Failure::Other(AWAY.to_owned()))
    }

    /// What is there, which is not where the store is only: that is asked for now.
    pub(super) async fn stat_surely(&self, path: &str) -> Result<Placed, Failure> {
        match timely(self.far.stat(path)).await {
            Err(Failure::Missing) => {
                self.look().await?;
                timely(self.far.stat(path)).await
            }
            answer => answer,
        }
    }

    /// Whether the mark is there; nothing if nothing else is, either, and something should be.
    async fn found(&self) -> Result<Option<bool>, Failure> {
        if self.has(MARK).await? {
            return Ok(Some(true));
        }
        let some = self.db.read(|db| rows::some_paths(db, LOOKED_FOR));
        let some = some.map_err(|error: DbError| Failure::Other(error.to_string()))?;
        for path in &some {
            if self.has(path).await? {
                return Ok(Some(false));
            }
        }
        Ok(some.is_empty().then_some(false))
    }

    async fn has(&self, path: &str) -> Result<bool, Failure> {
        match timely(self.far.stat(path)).await {
            Ok(_) | Err(Failure::Changed) => Ok(true),
            Err(Failure::Missing) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Before something is written there, or removed.
    async fn ready(&self) -> Result<(), Failure> {
        if self.is_believed() {
            return Ok(());
        }
        if !self.is_marked().await? {
            let mut text = Some(Bytes::from_static(TEXT.as_bytes()));
            let pieces = Box::new(move || Ok(text.take()));
            let size = TEXT.len() as u64;
            let put = self.far.write(MARK, size, pieces, Over::Anything).await;
            if let Err(failure) = put {
                // Who writes something else finds out why.
                tracing::debug!(%failure, "the store outside has no mark");
                return Ok(());
            }
        }
        *self.believed.lock() = Some(Instant::now());
        Ok(())
    }

    fn is_believed(&self) -> bool {
        let believed = *self.believed.lock();
        !*self.is_away.lock() && believed.is_some_and(|since| since.elapsed() < BELIEVED)
    }

    /// Something is not there: whether it is to be asked for again, as the store may not have been there, either, until now.
    async fn again<T>(&self, answer: &Result<T, Failure>) -> Result<bool, Failure> {
        if !matches!(answer, Err(Failure::Missing)) || self.is_believed() {
            return Ok(false);
        }
        self.look().await.map(|()| true)
    }
}

/// An answer, or none in a minute: stores try again and again by themselves.
async fn timely<T>(asked: Asked<'_, T>) -> Result<T, Failure> {
    let answer = tokio::time::timeout(SILENCE, asked).await;
    answer.unwrap_or(Err(Failure::Silent))
}

impl Far for Guarded {
    fn stat<'a>(&'a self, path: &'a str) -> Asked<'a, Placed> {
        Box::pin(async move {
            let answer = timely(self.far.stat(path)).await;
            match self.again(&answer).await? {
                true => timely(self.far.stat(path)).await,
                false => answer,
            }
        })
    }

    fn read<'a>(&'a self, of: &'a Placed, from: u64, count: u64) -> Asked<'a, Bytes> {
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
        pieces: Pieces<'a>,
        over: Over,
    ) -> Asked<'a, Placed> {
        Box::pin(async move {
            self.ready().await?;
            self.far.write(path, size, pieces, over).await
        })
    }

    fn also<'a>(&'a self, path: &'a str, other: &'a str) -> Asked<'a, Placed> {
        Box::pin(async move {
            self.ready().await?;
            self.far.also(path, other).await
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> Asked<'a, ()> {
        Box::pin(async move {
            self.ready().await?;
            self.far.remove(path).await
        })
    }

    fn leaves(&self, size: u64) -> bool {
        self.far.leaves(size)
    }

    fn give_up<'a>(&'a self, path: &'a str, since: SystemTime) -> Asked<'a, ()> {
        self.far.give_up(path, since)
    }

    fn renew(&self) {
        self.far.renew();
    }
}
