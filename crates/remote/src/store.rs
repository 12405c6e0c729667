//! Connection to one store of any kind. The module passes each request to the implementation of the store's kind.

use crate::address::{RemoteAddress, RemoteKind, checked};
use crate::directory::LocalStore;
use crate::object_store::{self, ObjectStore};
use crate::partial_file::PartialFile;
use crate::tree::{self, TreeStore};
use crate::{Error, Keys, sftp, webhdfs};
use bytes::Bytes;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// Maximum number of bytes per read of a file.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;
/// Maximum time that a request waits without an answer from a store.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// Maximum number of listed files that are buffered for the reader of the listing.
const LISTED_AHEAD: usize = 1000;

/// File of a store, as the last `stat` or listing returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFile {
    /// Path of the file below the root of the store.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// Tag that changes when the file changes: its `ETag`, else its size and time.
    pub tag: String,
    /// Whether the store itself refuses to read the file if its tag has changed.
    pub checked_by_store: bool,
}

/// Existing file that a write may replace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// The write may replace any file.
    #[default]
    Anything,
    /// The write may replace no file: it fails if the name is taken.
    Nothing,
    /// The write may replace only this file.
    This(StoreFile),
}

/// Item of a listing of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedItem {
    /// File of the store.
    Object(StoreFile),
    /// Path that the listing skips, with the reason: the path is no file, or its name is not valid on other systems.
    Passed(String, &'static str),
}

/// Connection to a store.
#[derive(Clone, Debug)]
pub struct Remote(pub(crate) RemoteStore);

#[derive(Clone, Debug)]
pub(crate) enum RemoteStore {
    Directory(LocalStore),
    ObjectStore(ObjectStore),
    Tree(TreeStore),
}

/// Listing of a store in progress.
#[derive(Debug)]
pub struct Lister(mpsc::Receiver<Result<ListedItem, Error>>);

impl Lister {
    /// Returns the next item of the listing; `None` at its end.
    ///
    /// # Errors
    /// The store can't be listed, or does not continue the listing.
    pub async fn next(&mut self) -> Result<Option<ListedItem>, Error> {
        self.0.recv().await.transpose()
    }
}

/// Reader of a file of a store, from the file's start to its end.
#[derive(Debug)]
pub struct FileReader {
    remote: Remote,
    object: StoreFile,
    file: Option<File>,
    done: u64,
}

/// Writer of a file of a store. The file becomes visible when [`Self::finish`] returns.
pub struct StoreWriter(WriterKind);

impl fmt::Debug for StoreWriter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Writer").finish_non_exhaustive()
    }
}

enum WriterKind {
    Part(PartialFile),
    ObjectStore(Box<object_store::ObjectWriter>),
    Tree(tree::TreeWriter),
}

/// Runs a blocking function that uses a disk, on a thread that may block.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(Error::Store {
            path: "a task".into(),
            reason: error.to_string(),
        })
    })
}

impl Remote {
    /// Opens a store. The function sends no request, but opens the directory of a store that is a directory.
    ///
    /// # Errors
    /// The address or the keys are invalid, or the directory can't be opened.
    pub fn open(place: &RemoteAddress, keys: &Keys) -> Result<Self, Error> {
        Ok(Self(match &place.kind {
            RemoteKind::Directory(path) => RemoteStore::Directory(LocalStore::open(path)?),
            RemoteKind::Sftp { host, port, root } => {
                RemoteStore::Tree(sftp::open((host, *port, root), keys)?)
            }
            RemoteKind::WebHdfs(host, root) => RemoteStore::Tree(webhdfs::open(host, root, keys)),
            #[cfg(feature = "hdfs")]
            RemoteKind::Hdfs(host, root) => RemoteStore::Tree(crate::hdfs::open(host, root, keys)?),
            _ => RemoteStore::ObjectStore(ObjectStore::open(place, keys)?),
        }))
    }

    /// Returns the size and tag of the current version of a file.
    ///
    /// # Errors
    /// The path does not exist, is no file, or may not be accessed.
    pub async fn stat(&self, path: &str) -> Result<StoreFile, Error> {
        let path = checked(path)?.to_owned();
        match &self.0 {
            RemoteStore::Directory(directory) => {
                let directory = directory.clone();
                aside(move || directory.stat(&path)).await
            }
            RemoteStore::ObjectStore(object_store) => object_store.stat(&path).await,
            RemoteStore::Tree(tree) => tree.stat(&path).await,
        }
    }

    /// Returns whether stores of this kind can be listed.
    #[must_use]
    pub fn lists(&self) -> bool {
        match &self.0 {
            RemoteStore::Directory(_) | RemoteStore::Tree(_) => true,
            RemoteStore::ObjectStore(object_store) => object_store.lists,
        }
    }

    /// Lists all files below a directory, at any depth; an empty `directory` is the whole store. A missing directory may count as empty.
    #[must_use]
    pub fn list(&self, directory: &str) -> Lister {
        let (sender, listed) = mpsc::channel(LISTED_AHEAD);
        let below = directory.to_owned();
        match &self.0 {
            RemoteStore::Directory(directory) => {
                let directory = directory.clone();
                tokio::task::spawn_blocking(move || {
                    let mut tell = |listed| sender.blocking_send(Ok(listed)).is_ok();
                    if let Err(error) = directory.list(&below, &mut tell) {
                        let _ = sender.blocking_send(Err(error));
                    }
                });
            }
            RemoteStore::ObjectStore(object_store) => {
                let object_store = object_store.clone();
                tokio::spawn(async move {
                    if let Err(error) = object_store.list(&below, &sender).await {
                        let _ = sender.send(Err(error)).await;
                    }
                });
            }
            RemoteStore::Tree(tree) => {
                let tree = tree.clone();
                tokio::spawn(async move {
                    if let Err(error) = tree.list(&below, &sender).await {
                        let _ = sender.send(Err(error)).await;
                    }
                });
            }
        }
        Lister(listed)
    }

    /// Starts to read a file in exactly the version `object`.
    ///
    /// # Errors
    /// The file does not exist, has changed, or may not be read.
    pub async fn read(&self, object: &StoreFile) -> Result<FileReader, Error> {
        let path = checked(&object.path)?.to_owned();
        let mut file = None;
        if let RemoteStore::Directory(directory) = &self.0 {
            let directory = directory.clone();
            let (opened, now) = aside(move || directory.file(&path)).await?;
            if now != *object {
                return Err(Error::Changed(object.path.clone()));
            }
            file = Some(opened);
        }
        Ok(FileReader {
            remote: self.clone(),
            object: object.clone(),
            file,
            done: 0,
        })
    }

    /// Starts to write a file.
    ///
    /// # Errors
    /// The store does not accept the file, or another process is writing the file.
    pub async fn write(&self, path: &str) -> Result<StoreWriter, Error> {
        self.write_over(path, Overwrite::Anything).await
    }

    /// Starts to write a file like [`Self::write`]. The write replaces only the file that `over` permits, if the store can check that.
    ///
    /// # Errors
    /// The errors of [`Self::write`]; also [`Error::Changed`], at the start or at the end of the write.
    pub async fn write_over(&self, path: &str, over: Overwrite) -> Result<StoreWriter, Error> {
        let path = checked(path)?.to_owned();
        Ok(StoreWriter(match &self.0 {
            RemoteStore::Directory(directory) => {
                let directory = directory.clone();
                WriterKind::Part(aside(move || directory.create(&path)).await?.over(over))
            }
            RemoteStore::ObjectStore(object_store) => {
                WriterKind::ObjectStore(Box::new(object_store.write(&path, &over).await?))
            }
            RemoteStore::Tree(tree) => WriterKind::Tree(tree.write(&path, over).await?),
        }))
    }

    /// Writes a whole file, if `over` permits the write.
    ///
    /// # Errors
    /// The store does not accept the file: an existing file then stays unchanged.
    pub async fn put(&self, path: &str, bytes: Bytes, over: Overwrite) -> Result<StoreFile, Error> {
        if let RemoteStore::ObjectStore(object_store) = &self.0
            && object_store.puts()
        {
            return object_store.put(checked(path)?, bytes, &over).await;
        }
        let mut writer = self.write_over(path, over).await?;
        match writer.write(bytes).await {
            Ok(()) => writer.finish().await,
            Err(error) => {
                writer.abort().await;
                Err(error)
            }
        }
    }

    /// Creates a file `other` with the bytes of the file `path`, in place of an existing file: a hard link or a copy.
    ///
    /// # Errors
    /// The store does not support the operation, or the file does not exist.
    pub async fn also(&self, path: &str, other: &str) -> Result<StoreFile, Error> {
        let (path, other) = (checked(path)?.to_owned(), checked(other)?.to_owned());
        match &self.0 {
            RemoteStore::Directory(directory) => {
                let directory = directory.clone();
                aside(move || directory.also(&path, &other)).await
            }
            RemoteStore::ObjectStore(object_store) => object_store.also(&path, &other).await,
            RemoteStore::Tree(tree) => tree.also(&path, &other).await,
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The file may not be removed.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        let path = checked(path)?.to_owned();
        match &self.0 {
            RemoteStore::Directory(directory) => {
                let directory = directory.clone();
                aside(move || directory.remove(&path)).await
            }
            RemoteStore::ObjectStore(object_store) => object_store.remove(&path).await,
            RemoteStore::Tree(tree) => tree.remove(&path).await,
        }
    }

    /// Returns whether the end of this process during a write may leave data in the store that only [`Self::abandon`] finds.
    #[must_use]
    pub fn leaves(&self) -> bool {
        matches!(&self.0, RemoteStore::ObjectStore(object_store) if object_store.leaves())
    }

    /// Removes the data of interrupted writes of a file that began at or after `since`, by the store's clock. A write in progress fails.
    ///
    /// # Errors
    /// The store does not answer or refuses the request.
    pub async fn abandon(&self, path: &str, since: SystemTime) -> Result<(), Error> {
        match &self.0 {
            RemoteStore::ObjectStore(object_store) => {
                object_store.abandon(checked(path)?, since).await
            }
            RemoteStore::Directory(_) | RemoteStore::Tree(_) => Ok(()),
        }
    }

    /// Opens the directory of a store again, which may be missing or replaced. If this fails, the store keeps the directory that is open.
    pub fn renew(&self) {
        if let RemoteStore::Directory(directory) = &self.0 {
            directory.renew();
        }
    }

    /// Checks that the store answers and accepts the keys.
    ///
    /// # Errors
    /// The store does not answer or does not accept the keys.
    pub async fn check(&self) -> Result<(), Error> {
        match &self.0 {
            RemoteStore::ObjectStore(object_store) => object_store.check().await,
            RemoteStore::Tree(tree) => tree.check().await,
            RemoteStore::Directory(_) => self.list("").next().await.map(|_| ()),
        }
    }
}

impl FileReader {
    /// Returns the next bytes of the file; `None` after the last bytes, if the file is unchanged.
    ///
    /// # Errors
    /// The file has changed, or can't be read further.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let left = self.object.size - self.done;
        if left == 0 {
            self.is_same().await?;
            return Ok(None);
        }
        let count = left.min(PIECE_BYTES);
        let piece = match (&self.remote.0, self.file.take()) {
            (RemoteStore::ObjectStore(object_store), _) => {
                object_store.read(&self.object, self.done, count).await?
            }
            (RemoteStore::Tree(tree), _) => tree.range(&self.object, self.done, count).await?,
            (RemoteStore::Directory(_), file) => {
                let path = self.object.path.clone();
                let (file, piece) = aside(move || piece(file, &path, count)).await?;
                self.file = Some(file);
                piece
            }
        };
        if piece.len() as u64 != count {
            return Err(Error::Changed(self.object.path.clone()));
        }
        self.done += count;
        Ok(Some(piece))
    }

    async fn is_same(&mut self) -> Result<(), Error> {
        let path = &self.object.path;
        let same = match (&self.remote.0, &self.file) {
            (RemoteStore::ObjectStore(object_store), _)
                if object_store.checks()
                    && self.object.checked_by_store
                    && self.object.size > 0 =>
            {
                true
            }
            (RemoteStore::ObjectStore(object_store), _) => {
                object_store.stat(path).await?.tag == self.object.tag
            }
            // Each piece was checked when it was read.
            (RemoteStore::Tree(_), _) if self.object.size > 0 => true,
            (RemoteStore::Tree(tree), _) => tree.stat(path).await? == self.object,
            (RemoteStore::Directory(_), None) => false,
            // The open file is checked: another file may have its name by now.
            (RemoteStore::Directory(_), Some(file)) => {
                let stat = rustix::fs::fstat(file).map_err(Error::of(path))?;
                // Removing the name changes the time of change. So only the content is compared.
                crate::directory::is_content(&self.object.tag, &stat)
            }
        };
        match same {
            true => Ok(()),
            false => Err(Error::Changed(path.clone())),
        }
    }
}

fn piece(file: Option<File>, path: &str, count: u64) -> Result<(File, Bytes), Error> {
    let failed = |reason: String| Error::Store {
        path: path.to_owned(),
        reason,
    };
    let mut file = file.ok_or_else(|| failed("an earlier piece could not be read".into()))?;
    let mut bytes = Vec::with_capacity(usize::try_from(count).unwrap_or_default());
    let read = (&mut file).take(count).read_to_end(&mut bytes);
    read.map_err(|error| failed(error.to_string()))?;
    Ok((file, bytes.into()))
}

impl StoreWriter {
    /// Writes the next bytes of the file.
    ///
    /// # Errors
    /// The store does not accept the bytes: nothing of the file then becomes visible.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        match &mut self.0 {
            // The write only fills the page cache, so it does not block.
            WriterKind::Part(part) => part.write(&bytes),
            WriterKind::ObjectStore(writer) => writer.write(bytes).await,
            WriterKind::Tree(writer) => writer.write(bytes).await,
        }
    }

    /// Finishes the file and makes it visible.
    ///
    /// # Errors
    /// The store refuses the file: an existing file then stays unchanged.
    pub async fn finish(self) -> Result<StoreFile, Error> {
        match self.0 {
            WriterKind::Part(part) => aside(move || part.finish()).await,
            WriterKind::ObjectStore(writer) => writer.finish().await,
            WriterKind::Tree(writer) => writer.finish().await,
        }
    }

    /// Aborts the write and removes its data.
    pub async fn abort(self) {
        match self.0 {
            WriterKind::Part(_) => {}
            WriterKind::ObjectStore(writer) => writer.abort().await,
            WriterKind::Tree(writer) => writer.abort().await,
        }
    }
}
