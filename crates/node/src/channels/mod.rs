//! Channels of workspaces on this node. Each channel is a file of the directory `channels`; programs send and receive its messages over
//! HTTP ([`http`]). The server sends the list of channels with each change; the node removes files of other channels.

pub(crate) mod http;
mod ring_file;

use crate::store::{Store, StoreError};
use parking_lot::Mutex;
use ring_file::{OpenChannel, OpenChannelError, RING_AT};
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_core::channel::ChannelRefusal;
use tidemill_core::id::ObjectId;
use tidemill_wire::v1;
use tokio::sync::Notify;

/// Maximum time to wait for the server's announcement of a channel that is to be created.
const WORD_MAX: Duration = Duration::from_secs(5);
/// File name extension of a file that is being created.
const NEW: &str = "new";

/// Channels that a node stores.
#[derive(Debug)]
pub(crate) struct Channels {
    directory: PathBuf,
    store: Arc<dyn Store>,
    /// Channels that the server has announced, with the capacity of each in bytes; `None` before the first list.
    listed: Mutex<Option<BTreeMap<ObjectId, u64>>>,
    news: Notify,
    making: Mutex<()>,
    open: Mutex<HashMap<ObjectId, Arc<UsedChannel>>>,
}

/// Channel that requests use.
#[derive(Debug, Default)]
pub(crate) struct UsedChannel {
    /// Open file; `None` before the channel is opened, and after a write failed.
    kept: Mutex<Option<OpenChannel>>,
    /// Notification after each send, after each read, and at the end of the channel.
    changed: Notify,
    ended: AtomicBool,
}

/// Reason why a channel refuses a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error(
        "this node has no such channel: it has ended with its workspace, was removed, or is lost with its memory or node (`tidemill channel list WORKSPACE`)"
    )]
    None,
    #[error(transparent)]
    Refused(#[from] ChannelRefusal),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the channel's file {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path}: the channel is corrupt: remove it")]
    Corrupt { path: PathBuf },
}

impl Channels {
    /// Opens the directory of channels, counts the existing channels, and removes incomplete files.
    pub(crate) fn open(directory: &Path, store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let directory = directory.join("channels");
        let channels = Self {
            directory: directory.clone(),
            store,
            listed: Mutex::default(),
            news: Notify::new(),
            making: Mutex::default(),
            open: Mutex::default(),
        };
        let failed = |source| StoreError::Device {
            path: directory.clone(),
            source,
        };
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory);
        made.map_err(failed)?;
        std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).map_err(failed)?;
        for (object, path) in channels.files().map_err(failed)? {
            match object {
                Some(_) => {
                    let bytes = path.metadata().map_err(failed)?.len();
                    channels.store.count_space(bytes);
                }
                // The file is incomplete.
                None => std::fs::remove_file(&path).map_err(failed)?,
            }
        }
        Ok(channels)
    }

    fn path(&self, object: ObjectId) -> PathBuf {
        self.directory.join(format!("{:016x}", object.0))
    }

    fn files(&self) -> io::Result<Vec<(Option<ObjectId>, PathBuf)>> {
        let entries = std::fs::read_dir(&self.directory)?;
        let file = |entry: io::Result<std::fs::DirEntry>| {
            let entry = entry?;
            let name = entry.file_name();
            let object = tidemill_wire::route::parse_object(&name.to_string_lossy());
            Ok((object, entry.path()))
        };
        entries.map(file).collect()
    }

    /// Returns whether the node has any channel, so that it may not suspend.
    pub(crate) fn any(&self) -> bool {
        self.files().is_ok_and(|files| !files.is_empty())
    }

    /// Stores the server's list of channels.
    pub(crate) fn on_list(&self, channels: &v1::Channels) {
        let listed = channels.channels.iter();
        let listed = listed.map(|one| (ObjectId(one.object), one.capacity_bytes));
        *self.listed.lock() = Some(listed.collect());
        self.news.notify_waiters();
    }

    /// Removes the channels that are no longer in the list.
    pub(crate) fn sweep(&self) {
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => {
                tracing::warn!(%error, "the directory of channels can't be read");
                return;
            }
        };
        for (object, path) in files {
            let Some(object) = object else { continue };
            // The lock is held so that no removed channel is created again at this time.
            let listed = self.listed.lock();
            if listed
                .as_ref()
                .is_none_or(|listed| listed.contains_key(&object))
            {
                continue;
            }
            if let Some(channel) = self.open.lock().remove(&object) {
                channel.ended.store(true, Ordering::Release);
                *channel.kept.lock() = None;
                channel.changed.notify_waiters();
            }
            let bytes = path.metadata().map_or(0, |metadata| metadata.len());
            match std::fs::remove_file(&path) {
                Ok(()) => self.store.give_space(bytes),
                Err(error) => {
                    tracing::warn!(%error, "the file of a removed channel can't be removed yet")
                }
            }
        }
    }

    /// Waits until the server has announced a channel. Returns the capacity of the channel in bytes.
    async fn awaited(&self, object: ObjectId) -> Option<u64> {
        let listed = async {
            loop {
                let mut news = std::pin::pin!(self.news.notified());
                news.as_mut().enable();
                let listed = self
                    .listed
                    .lock()
                    .as_ref()
                    .and_then(|listed| listed.get(&object).copied());
                match listed {
                    Some(capacity) => return capacity,
                    None => news.await,
                }
            }
        };
        tokio::time::timeout(WORD_MAX, listed).await.ok()
    }

    /// Creates the file of an announced channel. If the file exists, the function succeeds.
    fn make(&self, object: ObjectId, capacity: u64) -> Result<(), ChannelError> {
        let (path, new) = (self.path(object), self.path(object).with_extension(NEW));
        // In memory this takes long, as every page is cleared. A new list of channels must not wait for it, so this is a lock of its own.
        let making = self.making.lock();
        if !path.exists() {
            let bytes = RING_AT + capacity;
            self.store.take_space(bytes)?;
            let made =
                OpenChannel::make(&new, capacity).and_then(|()| std::fs::rename(&new, &path));
            made.map_err(|source| {
                // The failed file is temporary: existing channels are not affected.
                let _ = std::fs::remove_file(&new);
                self.store.give_space(bytes);
                ChannelError::Store(StoreError::from_io(object, &new, source))
            })?;
        }
        drop(making);
        // The channel may have been removed from the list.
        self.sweep();
        Ok(())
    }

    /// Returns an existing channel of the node.
    fn find(&self, object: ObjectId) -> Result<Arc<UsedChannel>, ChannelError> {
        let mut open = self.open.lock();
        if let Some(channel) = open.get(&object) {
            return Ok(Arc::clone(channel));
        }
        if !self.path(object).exists() {
            return Err(ChannelError::None);
        }
        Ok(Arc::clone(open.entry(object).or_default()))
    }

    /// Runs `work` on a channel. After an I/O error, the channel is opened again from the device.
    fn with<T>(
        &self,
        object: ObjectId,
        channel: &UsedChannel,
        work: impl FnOnce(&mut OpenChannel) -> Result<T, OpenChannelError>,
    ) -> Result<T, ChannelError> {
        let path = self.path(object);
        let listed = |trouble| match trouble {
            OpenChannelError::Refused(refusal) => ChannelError::Refused(refusal),
            OpenChannelError::Corrupt => ChannelError::Corrupt { path: path.clone() },
            OpenChannelError::System(source) if source.kind() == io::ErrorKind::NotFound => {
                ChannelError::None
            }
            OpenChannelError::System(source) => ChannelError::File {
                path: path.clone(),
                source,
            },
        };
        let mut kept = channel.kept.lock();
        if channel.ended.load(Ordering::Acquire) {
            return Err(ChannelError::None);
        }
        let open = match kept.take() {
            Some(open) => kept.insert(open),
            None => kept.insert(OpenChannel::open(&path).map_err(listed)?),
        };
        let done = work(open);
        if matches!(done, Err(OpenChannelError::System(_))) {
            *kept = None;
        }
        done.map_err(listed)
    }
}
