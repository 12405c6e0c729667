//! Reads of objects that are not in the cache, by blocks, with read-ahead for sequential readers. The module reads the external store
//! through a cache in memory.

use super::presence::CheckedStore;
use super::{Backend, Error, StoreFile, rows};
use crate::db::Db;
use crate::store::{ReadAt, Store as _, StoreError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use tidemill_client::blocks::{BLOCK_BYTES, BlockCache, BlockKey, fill};
use tidemill_model::id::ObjectId;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

const BLOCKS_AHEAD: u64 = 3;
/// Maximum number of concurrent requests to the external store.
const ON_THEIR_WAY: usize = 32;
/// Maximum number of remembered paths whose files other programs have changed.
const CHANGED_MAX: usize = 1000;

/// External location of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackendLocation {
    /// File of the object. For an object in packs, only its name and length are valid.
    pub(super) placed: StoreFile,
    /// Whether the object is stored as chunks in packs.
    pub(super) packed: bool,
}

/// Access to the external store for reads.
#[derive(Debug)]
pub(super) struct ExternalReader {
    pub(super) far: CheckedStore,
    pub(super) db: Db,
    pub(super) runtime: Handle,
    blocks: BlockCache<Error>,
    /// Cache of frames of packs, by the frames' offsets.
    pub(super) frames: BlockCache<Error>,
    turns: Semaphore,
    /// Objects whose file was found changed or missing. The next reader of such an object asks the store first.
    suspects: Mutex<HashSet<ObjectId>>,
    /// Paths of files that other programs have changed; the number of paths is limited.
    changed: Mutex<BTreeSet<String>>,
}

/// Reader of the bytes of one object.
#[derive(Debug)]
pub(super) struct BackendObject {
    reach: Arc<ExternalReader>,
    object: ObjectId,
    there: Arc<BackendLocation>,
}

impl ExternalReader {
    pub(super) fn new(far: CheckedStore, db: Db, runtime: Handle) -> Self {
        Self {
            far,
            db,
            runtime,
            blocks: BlockCache::default(),
            frames: BlockCache::default(),
            turns: Semaphore::new(ON_THEIR_WAY),
            suspects: Mutex::default(),
            changed: Mutex::default(),
        }
    }

    /// Waits for an answer of the external store. Must not be called on a thread of the runtime.
    pub(super) fn wait<T>(&self, asked: impl Future<Output = T>) -> T {
        self.runtime.block_on(asked)
    }

    pub(super) fn is_suspect(&self, object: ObjectId) -> bool {
        self.suspects.lock().contains(&object)
    }

    /// Returns the paths where other programs have changed a file since the last call.
    pub(super) fn take_changed(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed.lock())
    }

    fn note_changed(&self, path: &str) {
        let mut changed = self.changed.lock();
        if changed.len() < CHANGED_MAX {
            changed.insert(path.to_owned());
        }
    }

    pub(super) fn clear(&self, object: ObjectId) {
        self.suspects.lock().remove(&object);
    }

    /// Reads a byte range of an external file.
    pub(super) async fn range(
        &self,
        placed: &StoreFile,
        from: u64,
        count: u64,
    ) -> Result<Bytes, Error> {
        let turn = self.turns.acquire().await;
        let _turn = turn.map_err(|error| Error::Other(error.to_string()))?;
        let bytes = self.far.read(placed, from, count).await?;
        match bytes.len() as u64 == count {
            true => Ok(bytes),
            false => Err(Error::Changed(placed.path.clone())),
        }
    }

    async fn block(
        &self,
        object: ObjectId,
        there: &BackendLocation,
        key: &BlockKey,
    ) -> Result<Bytes, Error> {
        let Range { start: from, end } = key.bytes(there.placed.size);
        let count = end - from;
        let ask = async {
            match there.packed {
                true => self.packed(object, from, count).await,
                false => self.range(&there.placed, from, count).await,
            }
        };
        self.blocks.get(key, ask).await
    }
}

impl BackendObject {
    pub(super) fn new(
        reach: Arc<ExternalReader>,
        object: ObjectId,
        there: BackendLocation,
    ) -> Self {
        Self {
            reach,
            object,
            there: Arc::new(there),
        }
    }

    fn key(&self, index: u64) -> BlockKey {
        let placed = &self.there.placed;
        BlockKey {
            // Objects in packs have no tag, but their content never changes.
            store: if self.there.packed { self.object.0 } else { 0 },
            path: placed.path.as_str().into(),
            tag: placed.tag.as_str().into(),
            index,
        }
    }

    /// Reads blocks ahead if the previous block is cached, which means that the reader is most likely sequential.
    fn read_ahead(&self, index: u64) {
        let before = index.checked_sub(1);
        if before.is_none_or(|before| self.reach.blocks.now(&self.key(before)).is_none()) {
            return;
        }
        let blocks = self.there.placed.size.div_ceil(BLOCK_BYTES);
        for ahead in index + 1..(index + 1 + BLOCKS_AHEAD).min(blocks) {
            let (reach, there, key) = (self.reach.clone(), self.there.clone(), self.key(ahead));
            let object = self.object;
            if reach.blocks.now(&key).is_none() {
                self.reach.runtime.spawn(async move {
                    // The reader of the block receives the error.
                    let _ = reach.block(object, &there, &key).await;
                });
            }
        }
    }

    fn block(&self, index: u64) -> Result<Bytes, Error> {
        self.read_ahead(index);
        let key = self.key(index);
        if let Some(here) = self.reach.blocks.now(&key) {
            return Ok(here);
        }
        let asked = self.reach.block(self.object, &self.there, &key);
        self.reach.wait(asked).inspect_err(|failure| {
            if failure.is_loss() {
                self.reach.suspects.lock().insert(self.object);
                if !self.there.packed {
                    self.reach.note_changed(&self.there.placed.path);
                }
            }
        })
    }
}

impl ReadAt for BackendObject {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.there.placed.size.saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX);
        let length = length.min(buffer.len());
        let filled = fill(offset, &mut buffer[..length], |index| self.block(index));
        let filled = filled.map_err(|failure| {
            let path = &self.there.placed.path;
            std::io::Error::other(format!("{path} in the backend: {}", failure.reason()))
        })?;
        match filled == length {
            true => Ok(filled),
            false => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Backend {
    /// Checks that the file of an external object is unchanged.
    pub(super) fn still(
        &self,
        object: ObjectId,
        there: &BackendLocation,
    ) -> Result<(), StoreError> {
        let placed = &there.placed;
        let found = match there.packed {
            true => self.has_packed(object, there),
            false => match self.reach.wait(self.reach.far.stat_surely(&placed.path)) {
                Ok(now) if now == *placed => Ok(()),
                Ok(_) => Err(Error::Changed(placed.path.clone())),
                Err(failure) => Err(failure),
            },
        };
        if found.is_ok() {
            self.reach.clear(object);
        }
        found.map_err(|why| {
            // An object in packs has no file of its own.
            let why = match why.is_loss() && !there.packed {
                true => self.lost(placed, why),
                false => why,
            };
            let path = placed.path.clone();
            StoreError::Backend { path, why }
        })
    }

    /// Converts the loss of a file. In an attached directory, a change by another program is no corruption, but the next version of the
    /// file. If that version is already known, the request for the former version belongs to a file that was renamed since, and the loss is
    /// real.
    fn lost(&self, placed: &StoreFile, why: Error) -> Error {
        self.reach.note_changed(&placed.path);
        let other = |held: &rows::StoredObject| !held.deleted && held.placed != *placed;
        let held = self.reach.db.read(|db| rows::at(db, &placed.path));
        let followed = held.is_ok_and(|held| held.iter().any(other));
        match self.is_attached(&placed.path) && !followed {
            true => Error::Other(format!(
                "{}; the directory has the new version soon: read the file again",
                why.reason()
            )),
            false => why,
        }
    }

    /// Creates an unsealed object from the first bytes of an external object.
    pub(super) fn fetch(
        &self,
        object: ObjectId,
        from: ObjectId,
        there: &BackendLocation,
        bytes: u64,
    ) -> Result<(), StoreError> {
        let external = BackendObject::new(Arc::clone(&self.reach), from, there.clone());
        let placed = &there.placed;
        let fetch = || {
            let mut buffer = vec![0; usize::try_from(BLOCK_BYTES).unwrap_or(1 << 20)];
            let (mut at, end) = (0, bytes.min(placed.size));
            self.cache.create(object)?;
            while at < end {
                let count = usize::try_from((end - at).min(BLOCK_BYTES)).unwrap_or(buffer.len());
                let read = external.read_at(at, &mut buffer[..count]);
                let read = read.map_err(|error| StoreError::Backend {
                    path: placed.path.clone(),
                    why: Error::Other(error.to_string()),
                })?;
                self.cache.write_at(object, at, &buffer[..read])?;
                at += read as u64;
            }
            self.cache.truncate(object, bytes.min(placed.size))
        };
        fetch().inspect_err(|_| {
            // The caller reports the first error.
            let _ = self.cache.remove(object);
        })
    }
}
