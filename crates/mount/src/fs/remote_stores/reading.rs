//! Open files of remotes. An open file reads the version that exists at the open, or fails (next: `remote/src/store.rs`).

use super::known::OpenedStore;
use super::vnodes::StoreVersion;
use super::{RemoteStores, remote_error};
use crate::error::Error;
use crate::fs::Caller;
use bytes::Bytes;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_client::blocks::{BLOCK_BYTES, BlockKey, fill};
use tidemill_remote::{Error as StoreError, PathType, StoreFile};

/// Number of blocks that are read ahead for sequential reads.
const BLOCKS_AHEAD: u64 = 2;
/// Maximum time that a read waits for a free request to the store, as a multiple of the store's time limit.
const TURN_PATIENCES: u32 = 4;
/// Block number that means that no block has been read yet.
const NONE: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct RemoteReader {
    store: Arc<OpenedStore>,
    remote: String,
    path: Arc<str>,
    tag: Arc<str>,
    content: StoreFile,
    /// Index of the block that was read last.
    last: AtomicU64,
}

impl RemoteReader {
    fn key(&self, index: u64) -> BlockKey {
        BlockKey {
            store: self.store.id,
            path: self.path.clone(),
            tag: self.tag.clone(),
            index,
        }
    }

    fn blocks(&self) -> u64 {
        self.content.size.div_ceil(BLOCK_BYTES)
    }

    /// Returns the bytes of a range within the file from its blocks.
    fn cut<E>(
        &self,
        (offset, length): (u64, usize),
        block: impl FnMut(u64) -> Result<Bytes, E>,
    ) -> Result<Vec<u8>, E> {
        let left = self.content.size.saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(left).unwrap_or(length).min(length)];
        // Blocks are complete.
        fill(offset, &mut bytes, block)?;
        Ok(bytes)
    }
}

impl RemoteStores {
    /// Opens the version of an inode, if its name still has this version. Otherwise the Linux kernel looks the name up again.
    pub(crate) async fn open(
        &self,
        caller: Caller,
        number: u64,
        write: bool,
    ) -> Result<u64, Error> {
        Self::check(caller)?;
        if write {
            return Err(Errno::ROFS.into());
        }
        let (version, content) = self.vnodes.lock().file(number)?;
        let StoreVersion { remote, path, .. } = &version;
        let store = match self.store(remote).await {
            Err(error) if error.is(Errno::NOENT) => return Err(Errno::STALE.into()),
            store => store?,
        };
        if store.id != version.store {
            return Err(Errno::STALE.into());
        }
        let asked = async {
            let seen = store.store.look(path).await?;
            let same = matches!(&seen, PathType::File(now, _) if now.tag == version.tag);
            if same {
                store.store.read_at(&content, 0, 0).await?;
            }
            Ok(same)
        };
        match self.within((remote, path), asked).await {
            Ok(true) => {}
            Ok(false) => return Err(Errno::STALE.into()),
            Err(error) if error.is(Errno::NOENT) => return Err(Errno::STALE.into()),
            Err(error) => return Err(error),
        }
        let handle = self.number();
        let file = RemoteReader {
            store,
            remote: version.remote,
            path: version.path.into(),
            tag: version.tag.into(),
            content,
            last: AtomicU64::new(NONE),
        };
        self.files.lock().insert(handle, Arc::new(file));
        Ok(handle)
    }

    fn file(&self, handle: u64) -> Result<Arc<RemoteReader>, Error> {
        let files = self.files.lock();
        files
            .get(&handle)
            .cloned()
            .ok_or_else(|| Errno::BADF.into())
    }

    pub(crate) fn release(&self, handle: u64) {
        self.files.lock().remove(&handle);
    }

    /// Returns the bytes of a range whose blocks are all cached; otherwise `None`.
    pub(crate) fn read_now(&self, handle: u64, offset: u64, length: usize) -> Option<Vec<u8>> {
        let file = self.file(handle).ok()?;
        // The first read of a block may start the read-ahead.
        if offset < file.content.size && file.last.load(Ordering::Relaxed) != offset / BLOCK_BYTES {
            return None;
        }
        let block = |index| self.blocks.now(&file.key(index)).ok_or(());
        file.cut((offset, length), block).ok()
    }

    pub(crate) async fn read(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Error> {
        let file = self.file(handle)?;
        let end = (file.content.size).min(offset.saturating_add(length as u64));
        let mut blocks = Vec::new();
        if offset < end {
            for index in offset / BLOCK_BYTES..=(end - 1) / BLOCK_BYTES {
                let before = file.last.swap(index, Ordering::Relaxed);
                if before != NONE && index == before.wrapping_add(1) {
                    self.read_ahead(&file, index);
                }
                let block = self.block(&file, index).await;
                let failed = |failure: StoreError| remote_error(&failure, &file.remote, &file.path);
                blocks.push((index, block.map_err(failed)?));
            }
        }
        let block = |index| {
            let found = blocks.iter().find(|(at, _)| *at == index);
            found.map(|(_, block)| block.clone()).ok_or(Errno::IO)
        };
        Ok(file.cut((offset, length), block)?)
    }

    /// Requests the blocks that follow a block.
    fn read_ahead(self: &Arc<Self>, file: &Arc<RemoteReader>, index: u64) {
        for ahead in index + 1..(index + 1 + BLOCKS_AHEAD).min(file.blocks()) {
            let (remote_stores, file) = (self.clone(), file.clone());
            self.backend.runtime.spawn(async move {
                // A reader of the block gets the error.
                let _ = remote_stores.block(&file, ahead).await;
            });
        }
    }

    async fn block(&self, file: &RemoteReader, index: u64) -> Result<Bytes, StoreError> {
        let (store, key) = (&file.store, file.key(index));
        let Range { start: from, end } = key.bytes(file.content.size);
        let count = end - from;
        let ask = async {
            let turn = tokio::time::timeout(self.patience * TURN_PATIENCES, store.turns.acquire());
            let _turn = turn
                .await
                .map_err(|_| StoreError::Other("too many reads wait for the remote".into()))?;
            let read = store.store.read_at(&file.content, from, count);
            let bytes = self.bounded(&file.remote, read).await?;
            match bytes.len() as u64 == count {
                true => Ok(bytes),
                false => Err(StoreError::Other(format!(
                    "received {} bytes, expected {count}",
                    bytes.len()
                ))),
            }
        };
        self.blocks.get(&key, ask).await
    }

    /// Returns the offset at which data or a hole begins: the only hole is at the end of the file.
    pub(crate) fn seek(&self, handle: u64, offset: u64, data: bool) -> Result<u64, Error> {
        let size = self.file(handle)?.content.size;
        match offset < size {
            true => Ok(if data { offset } else { size }),
            false => Err(Errno::NXIO.into()),
        }
    }
}
