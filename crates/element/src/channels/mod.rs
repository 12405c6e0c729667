//! Channels of rooms that this element keeps: each a file of the folder `channels`, whose messages programs send and receive over
//! HTTP ([`http`]). What channels there are is the server's word, which comes with each change: a file of another is removed.

pub(crate) mod http;
mod kept;

use crate::store::{Store, StoreError};
use kept::{Kept, RING_AT, Trouble};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_core::channel::Refusal;
use tidemill_core::id::ObjectId;
use tidemill_wire::v1;
use tokio::sync::Notify;

/// How long it is waited for the server's word about a channel that is to be made.
const WORD_MAX: Duration = Duration::from_secs(5);
/// The end of the name of a file that is being made.
const NEW: &str = "new";

/// See the module.
#[derive(Debug)]
pub(crate) struct Channels {
    folder: PathBuf,
    store: Arc<dyn Store>,
    /// The channels that there are to be, and the bytes of each; `None` before the server has said so.
    told: Mutex<Option<BTreeMap<ObjectId, u64>>>,
    news: Notify,
    making: Mutex<()>,
    open: Mutex<HashMap<ObjectId, Arc<Channel>>>,
}

/// A channel that is used.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    /// `None` before it is opened, and after it could not be written.
    kept: Mutex<Option<Kept>>,
    /// Something was sent, read, or it has ended.
    changed: Notify,
    ended: AtomicBool,
}

/// Why a channel does not do something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error(
        "this element has no such channel: it has ended with its room, was removed, or is lost with its memory or element (`tidemill channel list ROOM`)"
    )]
    None,
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the channel's file {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path}: the channel is damaged: remove it")]
    Damaged { path: PathBuf },
}

impl Channels {
    /// Takes up what is there.
    pub(crate) fn open(folder: &Path, store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let folder = folder.join("channels");
        let channels = Self {
            folder: folder.clone(),
            store,
            told: Mutex::default(),
            news: Notify::new(),
            making: Mutex::default(),
            open: Mutex::default(),
        };
        let failed = |source| StoreError::Device {
            path: folder.clone(),
            source,
        };
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder);
        made.map_err(failed)?;
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).map_err(failed)?;
        for (object, path) in channels.files().map_err(failed)? {
            match object {
                Some(_) => {
                    let bytes = path.metadata().map_err(failed)?.len();
                    channels.store.count_room(bytes);
                }
                // Half made.
                None => std::fs::remove_file(&path).map_err(failed)?,
            }
        }
        Ok(channels)
    }

    fn path(&self, object: ObjectId) -> PathBuf {
        self.folder.join(format!("{:016x}", object.0))
    }

    fn files(&self) -> io::Result<Vec<(Option<ObjectId>, PathBuf)>> {
        let entries = std::fs::read_dir(&self.folder)?;
        let file = |entry: io::Result<std::fs::DirEntry>| {
            let entry = entry?;
            let name = entry.file_name();
            let object = tidemill_wire::route::parse_object(&name.to_string_lossy());
            Ok((object, entry.path()))
        };
        entries.map(file).collect()
    }

    /// Whether there is any: then the element may not sleep.
    pub(crate) fn any(&self) -> bool {
        self.files().is_ok_and(|files| !files.is_empty())
    }

    /// The server's word which channels there are to be.
    pub(crate) fn on_told(&self, channels: &v1::Channels) {
        let told = channels.channels.iter();
        let told = told.map(|one| (ObjectId(one.object), one.capacity_bytes));
        *self.told.lock() = Some(told.collect());
        self.news.notify_waiters();
    }

    /// Removes those that are to be no more.
    pub(crate) fn sweep(&self) {
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => {
                tracing::warn!(%error, "channels can't be looked through");
                return;
            }
        };
        for (object, path) in files {
            let Some(object) = object else { continue };
            // Held, so that none is made again meanwhile.
            let told = self.told.lock();
            if told.as_ref().is_none_or(|told| told.contains_key(&object)) {
                continue;
            }
            if let Some(channel) = self.open.lock().remove(&object) {
                channel.ended.store(true, Ordering::Release);
                *channel.kept.lock() = None;
                channel.changed.notify_waiters();
            }
            let bytes = path.metadata().map_or(0, |metadata| metadata.len());
            match std::fs::remove_file(&path) {
                Ok(()) => self.store.give_room(bytes),
                Err(error) => tracing::warn!(%error, "a channel's file stays for now"),
            }
        }
    }

    /// Waits until the server has said of a channel that it is to be; gives the bytes of its ring.
    async fn awaited(&self, object: ObjectId) -> Option<u64> {
        let told = async {
            loop {
                let mut news = std::pin::pin!(self.news.notified());
                news.as_mut().enable();
                let told = self
                    .told
                    .lock()
                    .as_ref()
                    .and_then(|told| told.get(&object).copied());
                match told {
                    Some(capacity) => return capacity,
                    None => news.await,
                }
            }
        };
        tokio::time::timeout(WORD_MAX, told).await.ok()
    }

    /// Makes the file of a channel that is to be; it is no error if it is there.
    fn make(&self, object: ObjectId, capacity: u64) -> Result<(), ChannelError> {
        let (path, new) = (self.path(object), self.path(object).with_extension(NEW));
        // It takes long in memory, where every page is cleared: who is told of channels meanwhile must not wait.
        let making = self.making.lock();
        if !path.exists() {
            let bytes = RING_AT + capacity;
            self.store.take_room(bytes)?;
            let made = Kept::make(&new, capacity).and_then(|()| std::fs::rename(&new, &path));
            made.map_err(|source| {
                // It takes nothing from those that are there.
                let _ = std::fs::remove_file(&new);
                self.store.give_room(bytes);
                ChannelError::Store(StoreError::from_io(object, &new, source))
            })?;
        }
        drop(making);
        // It may not be wanted any more.
        self.sweep();
        Ok(())
    }

    /// A channel that is there.
    fn find(&self, object: ObjectId) -> Result<Arc<Channel>, ChannelError> {
        let mut open = self.open.lock();
        if let Some(channel) = open.get(&object) {
            return Ok(Arc::clone(channel));
        }
        if !self.path(object).exists() {
            return Err(ChannelError::None);
        }
        Ok(Arc::clone(open.entry(object).or_default()))
    }

    /// Does something with a channel. After an error of the system it is opened anew, and is what the device has.
    fn with<T>(
        &self,
        object: ObjectId,
        channel: &Channel,
        work: impl FnOnce(&mut Kept) -> Result<T, Trouble>,
    ) -> Result<T, ChannelError> {
        let path = self.path(object);
        let told = |trouble| match trouble {
            Trouble::Refused(refusal) => ChannelError::Refused(refusal),
            Trouble::Damaged => ChannelError::Damaged { path: path.clone() },
            Trouble::System(source) if source.kind() == io::ErrorKind::NotFound => {
                ChannelError::None
            }
            Trouble::System(source) => ChannelError::File {
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
            None => kept.insert(Kept::open(&path).map_err(told)?),
        };
        let done = work(open);
        if matches!(done, Err(Trouble::System(_))) {
            *kept = None;
        }
        done.map_err(told)
    }
}
