//! Blocks of files of stores, kept in memory as long as there is room: whoever wants one that is on its way waits for that.

use crate::stores::Failure;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Bytes of a block; the last one of a file may be shorter.
pub(super) const BLOCK_BYTES: u64 = 4 << 20;
/// Blocks that are kept.
const KEPT_MAX: usize = 32;

/// A block of a version of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockKey {
    pub(super) store: u64,
    pub(super) path: Arc<str>,
    pub(super) tag: Arc<str>,
    pub(super) index: u64,
}

type Cell = Arc<OnceCell<Result<Bytes, Failure>>>;

#[derive(Debug, Default)]
pub(super) struct Blocks(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// With the time of their last use.
    all: HashMap<BlockKey, (Cell, u64)>,
    uses: u64,
}

impl Kept {
    fn cell(&mut self, key: &BlockKey) -> Cell {
        self.uses += 1;
        let (cell, used) = self.all.entry(key.clone()).or_default();
        *used = self.uses;
        let cell = cell.clone();
        self.make_room();
        cell
    }

    /// Drops what was used longest ago of what is whole. What is on its way is bounded by its store.
    fn make_room(&mut self) {
        let whole = |(cell, _): &(Cell, u64)| cell.initialized();
        while self.all.values().filter(|kept| whole(kept)).count() > KEPT_MAX {
            let whole = self.all.iter().filter(|(_, kept)| whole(kept));
            let oldest = whole.min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.all.remove(&oldest);
        }
    }
}

impl Blocks {
    /// A block that is here.
    pub(super) fn now(&self, key: &BlockKey) -> Option<Bytes> {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let uses = kept.uses;
        let (cell, used) = kept.all.get_mut(key)?;
        *used = uses;
        cell.get()?.as_ref().ok().cloned()
    }

    /// A block, which is asked for if nobody has. A failure is told to all who wait and is not kept.
    pub(super) async fn get(
        &self,
        key: &BlockKey,
        ask: impl Future<Output = Result<Bytes, Failure>>,
    ) -> Result<Bytes, Failure> {
        let cell = self.0.lock().cell(key);
        let told = cell.get_or_init(|| ask).await.clone();
        let mut kept = self.0.lock();
        if told.is_err()
            && kept
                .all
                .get(key)
                .is_some_and(|(now, _)| Arc::ptr_eq(now, &cell))
        {
            kept.all.remove(key);
        }
        kept.make_room();
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(index: u64) -> BlockKey {
        BlockKey {
            store: 1,
            path: "x".into(),
            tag: "1".into(),
            index,
        }
    }

    #[tokio::test]
    async fn a_block_is_asked_for_once_and_a_failure_is_not_kept() {
        let (blocks, asked) = (Blocks::default(), AtomicUsize::new(0));
        let ask = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(Bytes::from_static(b"x"))
        };
        let key = key(0);
        let (one, two) = tokio::join!(blocks.get(&key, ask()), blocks.get(&key, ask()));
        assert!(one.is_ok() && two.is_ok() && asked.load(Ordering::Relaxed) == 1);
        let other = BlockKey {
            tag: "2".into(),
            ..key
        };
        let failure = Failure {
            errno: Errno::IO,
            reason: "gone".into(),
        };
        assert!(blocks.get(&other, async { Err(failure) }).await.is_err());
        assert!(blocks.now(&other).is_none());
        assert!(blocks.get(&other, ask()).await.is_ok());
        assert!(blocks.now(&other).is_some());
    }

    #[tokio::test]
    async fn no_more_blocks_are_kept_than_there_is_room_for() {
        let (blocks, first) = (Blocks::default(), key(0));
        for index in 0..100 {
            let key = key(index);
            let block = blocks.get(&key, async { Ok(Bytes::from_static(b"x")) });
            assert!(block.await.is_ok());
            assert!(blocks.now(&first).is_some(), "it is used all the time");
        }
        assert_eq!(blocks.0.lock().all.len(), KEPT_MAX);
        assert!(blocks.now(&key(50)).is_none() && blocks.now(&key(99)).is_some());
    }
}
