//! Cache of blocks of files in stores outside of the cluster. A caller that wants a block that is already requested waits for the block.
//! The cache only uses memory; its callers send requests to the stores.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Size of a block in bytes; the last block of a file may be shorter.
pub const BLOCK_BYTES: u64 = 4 << 20;
/// Maximum number of cached blocks.
const KEPT_MAX: usize = 32;

/// Identity of a block of a version of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// Id of the store.
    pub store: u64,
    /// Path of the file in the store.
    pub path: Arc<str>,
    /// Tag of the version of the file.
    pub tag: Arc<str>,
    /// Index of the block in the file.
    pub index: u64,
}

type Cell<E> = Arc<OnceCell<Result<Bytes, E>>>;

/// Cached and requested blocks; `E` is the error type of a request.
#[derive(Debug)]
pub struct BlockCache<E>(Mutex<CachedBlocks<E>>);

#[derive(Debug)]
struct CachedBlocks<E> {
    /// Cached and requested blocks, with the time of their last use.
    all: HashMap<BlockKey, (Cell<E>, u64)>,
    uses: u64,
}

impl<E> Default for BlockCache<E> {
    fn default() -> Self {
        Self(Mutex::new(CachedBlocks {
            all: HashMap::new(),
            uses: 0,
        }))
    }
}

impl<E> CachedBlocks<E> {
    fn cell(&mut self, key: &BlockKey) -> Cell<E> {
        self.uses += 1;
        let (cell, used) = self.all.entry(key.clone()).or_default();
        *used = self.uses;
        let cell = cell.clone();
        self.make_space();
        cell
    }

    /// Drops the least recently used complete blocks while there are too many. The store limits the number of requested blocks.
    fn make_space(&mut self) {
        let whole = |(cell, _): &(Cell<E>, u64)| cell.initialized();
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

impl BlockKey {
    /// Returns the bytes of the block in a file of `size` bytes.
    #[must_use]
    pub fn bytes(&self, size: u64) -> Range<u64> {
        let start = self.index.saturating_mul(BLOCK_BYTES).min(size);
        start..size.min(start + BLOCK_BYTES)
    }
}

/// Fills a buffer with the bytes of a file from `offset` on. `block` returns the blocks of the file by index. Returns the number of bytes up to
/// the end of the first block that is too short.
///
/// # Errors
/// The first error of `block`.
pub fn fill<E>(
    offset: u64,
    buffer: &mut [u8],
    mut block: impl FnMut(u64) -> Result<Bytes, E>,
) -> Result<usize, E> {
    let mut filled = 0;
    while filled < buffer.len() {
        let at = offset + filled as u64;
        let block = block(at / BLOCK_BYTES)?;
        let from = usize::try_from(at % BLOCK_BYTES).unwrap_or(usize::MAX);
        let rest = block.get(from..).unwrap_or_default();
        let count = rest.len().min(buffer.len() - filled);
        if count == 0 {
            break;
        }
        buffer[filled..filled + count].copy_from_slice(&rest[..count]);
        filled += count;
    }
    Ok(filled)
}

impl<E: Clone> BlockCache<E> {
    /// Returns a block if it is cached.
    #[must_use]
    pub fn now(&self, key: &BlockKey) -> Option<Bytes> {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let uses = kept.uses;
        let (cell, used) = kept.all.get_mut(key)?;
        *used = uses;
        cell.get()?.as_ref().ok().cloned()
    }

    /// Returns a block, and requests it by `ask` if no other call has done so. All waiting calls get a failure, which is not cached.
    ///
    /// # Errors
    /// The error of `ask`.
    pub async fn get(
        &self,
        key: &BlockKey,
        ask: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Bytes, E> {
        let cell = self.0.lock().cell(key);
        let reported = cell.get_or_init(|| ask).await.clone();
        let mut kept = self.0.lock();
        if reported.is_err()
            && kept
                .all
                .get(key)
                .is_some_and(|(now, _)| Arc::ptr_eq(now, &cell))
        {
            kept.all.remove(key);
        }
        kept.make_space();
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(index: u64) -> BlockKey {
        BlockKey {
            store: 1,
            path: "x".into(),
            tag: "1".into(),
            index,
        }
    }

    #[test]
    fn file_range_is_filled_from_all_its_blocks() {
        let block = |index: u64| {
            let length = if index == 2 { 10 } else { BLOCK_BYTES };
            let bytes = vec![u8::try_from(index).unwrap(); usize::try_from(length).unwrap()];
            if index > 2 {
                Err(index)
            } else {
                Ok(Bytes::from(bytes))
            }
        };
        let filled = |from: u64, length: usize| {
            let mut bytes = vec![9; length];
            let count = fill(from, &mut bytes, block)?;
            bytes.truncate(count);
            Ok::<_, u64>(bytes)
        };
        assert_eq!(filled(BLOCK_BYTES - 1, 3).unwrap(), [0, 1, 1]);
        assert_eq!(filled(2 * BLOCK_BYTES - 1, 4).unwrap(), [1, 2, 2, 2]);
        assert!(filled(5, 0).unwrap().is_empty());
        assert_eq!(filled(2 * BLOCK_BYTES, 11).unwrap().len(), 10);
        assert_eq!(filled(3 * BLOCK_BYTES, 1), Err(3));
        assert_eq!(
            key(2).bytes(2 * BLOCK_BYTES + 10),
            2 * BLOCK_BYTES..2 * BLOCK_BYTES + 10
        );
    }

    #[tokio::test]
    async fn block_cache_fetches_block_once_and_caches_no_failure() {
        let (blocks, asked) = (BlockCache::<&str>::default(), AtomicUsize::new(0));
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
        assert!(blocks.get(&other, async { Err("gone") }).await.is_err());
        assert!(blocks.now(&other).is_none());
        assert!(blocks.get(&other, ask()).await.is_ok());
        assert!(blocks.now(&other).is_some());
    }

    #[tokio::test]
    async fn block_cache_evicts_least_recently_used() {
        let (blocks, first) = (BlockCache::<()>::default(), key(0));
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
