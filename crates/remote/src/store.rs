//! The trait of stores and its types, with [`open`]. Each kind of store implements the trait in a module of its own.

use crate::address::{RemoteAddress, RemoteKind};
use crate::directory::LocalStore;
use crate::{Error, Keys, sftp};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
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

/// Type of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathType {
    /// The path is a file, with its time of modification if the store returns the time.
    File(StoreFile, Option<SystemTime>),
    /// The path is a directory, or a common prefix of keys.
    Directory,
}

impl PathType {
    /// Returns the file at the path. Fails for a directory.
    pub(crate) fn file(self, path: &str) -> Result<StoreFile, Error> {
        match self {
            Self::File(object, _) => Ok(object),
            Self::Directory => Err(Error::NoFile {
                path: path.to_owned(),
                what: "a directory",
            }),
        }
    }

    /// Fails unless the path is a directory.
    pub(crate) fn directory(&self, path: &str) -> Result<(), Error> {
        match self {
            Self::Directory => Ok(()),
            Self::File(..) => Err(Error::NoFile {
                path: path.to_owned(),
                what: "a file",
            }),
        }
    }

    /// Fails unless the file is unchanged since `object` was returned.
    pub(crate) fn still(&self, object: &StoreFile) -> Result<(), Error> {
        match self {
            Self::File(now, _) if now == object => Ok(()),
            _ => Err(Error::Changed(object.path.clone())),
        }
    }
}

/// Entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingEntry {
    /// Name of the entry, without slash.
    pub name: String,
    /// Type of the entry.
    pub seen: PathType,
}

/// Connection to a store. Clones share the connection.
pub type Remote = Arc<dyn RemoteStore>;

/// Store outside of the cluster. Paths have no slash at their ends; the empty path is the root of the store. A store refuses paths that
/// lead out of it.
#[async_trait]
pub trait RemoteStore: fmt::Debug + Send + Sync {
    /// Returns the size and tag of the current version of a file.
    ///
    /// # Errors
    /// The path does not exist, is no file, or may not be accessed.
    async fn stat(&self, path: &str) -> Result<StoreFile, Error>;

    /// Returns the type of a path.
    ///
    /// # Errors
    /// The path does not exist, is of a type that is never followed, or may not be accessed.
    async fn look(&self, path: &str) -> Result<PathType, Error>;

    /// Returns whether stores of this kind can be listed.
    fn lists(&self) -> bool {
        true
    }

    /// Starts to list a directory. The listing is empty for a store that can't be listed.
    ///
    /// # Errors
    /// The path is no directory, or may not be listed.
    async fn entries(&self, path: &str) -> Result<Box<dyn DirectoryPages>, Error>;

    /// Lists all files below a directory, at any depth; an empty `directory` is the whole store. A missing directory may count as empty.
    fn list(&self, directory: &str) -> Lister;

    /// Starts to read a file in exactly the version `object`.
    ///
    /// # Errors
    /// The file does not exist, has changed, or may not be read.
    async fn read(&self, object: &StoreFile) -> Result<FileReader, Error>;

    /// Reads a byte range of exactly the version `object` of a file. An empty range checks whether a directory's file may be read.
    ///
    /// # Errors
    /// The file has changed, or can't be read.
    async fn read_at(&self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error>;

    /// Starts to write a file.
    ///
    /// # Errors
    /// The store does not accept the file, or another process is writing the file.
    async fn write(&self, path: &str) -> Result<Box<dyn StoreWriter>, Error> {
        self.write_over(path, Overwrite::Anything).await
    }

    /// Starts to write a file like [`Self::write`]. The write replaces only the file that `over` permits, if the store can check that.
    ///
    /// # Errors
    /// The errors of [`Self::write`]; also [`Error::Changed`], at the start or at the end of the write.
    async fn write_over(&self, path: &str, over: Overwrite) -> Result<Box<dyn StoreWriter>, Error>;

    /// Writes a whole file, if `over` permits the write.
    ///
    /// # Errors
    /// The store does not accept the file: an existing file then stays unchanged.
    async fn put(&self, path: &str, bytes: Bytes, over: Overwrite) -> Result<StoreFile, Error> {
        written(self.write_over(path, over).await?, bytes).await
    }

    /// Creates a file `other` with the bytes of the file `path`, in place of an existing file: a hard link or a copy.
    ///
    /// # Errors
    /// The store does not support the operation, or the file does not exist.
    async fn also(&self, path: &str, other: &str) -> Result<StoreFile, Error>;

    /// Removes a file.
    ///
    /// # Errors
    /// The file may not be removed.
    async fn remove(&self, path: &str) -> Result<(), Error>;

    /// Returns whether the end of this process during a write may leave data in the store that only [`Self::abandon`] finds.
    fn leaves(&self) -> bool {
        false
    }

    /// Removes the data of interrupted writes of a file that began at or after `since`, by the store's clock. A write in progress fails.
    ///
    /// # Errors
    /// The store does not answer or refuses the request.
    async fn abandon(&self, _path: &str, _since: SystemTime) -> Result<(), Error> {
        Ok(())
    }

    /// Opens the directory of a store again, which may be missing or replaced. If this fails, the store keeps the directory that is open.
    fn renew(&self) {}

    /// Checks that the store answers and accepts the keys.
    ///
    /// # Errors
    /// The store does not answer or does not accept the keys.
    async fn check(&self) -> Result<(), Error>;
}

/// Listing of one directory, in pages. No thread works on the listing between two pages.
#[async_trait]
pub trait DirectoryPages: Send {
    /// Returns up to `most` further entries; an empty list at the end. Invalid file names, and types that are never followed, are left out.
    ///
    /// # Errors
    /// The store does not continue the listing.
    async fn next(&mut self, most: usize) -> Result<Vec<ListingEntry>, Error>;
}

impl fmt::Debug for dyn DirectoryPages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("DirectoryPages")
    }
}

/// Writer of a file of a store. The file becomes visible when [`Self::finish`] returns.
#[async_trait]
pub trait StoreWriter: Send {
    /// Writes the next bytes of the file.
    ///
    /// # Errors
    /// The store does not accept the bytes: nothing of the file then becomes visible.
    async fn write(&mut self, bytes: Bytes) -> Result<(), Error>;

    /// Finishes the file and makes it visible.
    ///
    /// # Errors
    /// The store refuses the file: an existing file then stays unchanged.
    async fn finish(self: Box<Self>) -> Result<StoreFile, Error>;

    /// Aborts the write and removes its data.
    async fn abort(self: Box<Self>);
}

impl fmt::Debug for dyn StoreWriter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("StoreWriter")
    }
}

/// Writes all bytes of a file that was begun.
pub(crate) async fn written(
    mut writer: Box<dyn StoreWriter>,
    bytes: Bytes,
) -> Result<StoreFile, Error> {
    match writer.write(bytes).await {
        Ok(()) => writer.finish().await,
        Err(error) => {
            writer.abort().await;
            Err(error)
        }
    }
}

/// Source of the bytes of one version of a file, which are read in order.
#[async_trait]
pub(crate) trait FileSource: Send {
    /// Returns the `count` bytes from `from` on.
    async fn piece(&mut self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error>;
    /// Returns whether the file is unchanged after all its bytes were read.
    async fn is_same(&mut self, object: &StoreFile) -> Result<bool, Error>;
}

/// Reader of a file of a store, from the file's start to its end.
pub struct FileReader {
    source: Box<dyn FileSource>,
    object: StoreFile,
    done: u64,
}

impl fmt::Debug for FileReader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("FileReader");
        out.field("object", &self.object).finish_non_exhaustive()
    }
}

impl FileReader {
    pub(crate) fn new(object: &StoreFile, source: impl FileSource + 'static) -> Self {
        Self {
            source: Box::new(source),
            object: object.clone(),
            done: 0,
        }
    }

    /// Returns the next bytes of the file; `None` after the last bytes, if the file is unchanged.
    ///
    /// # Errors
    /// The file has changed, or can't be read further.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let object = &self.object;
        let count = PIECE_BYTES.min(object.size - self.done);
        let (piece, same) = match count {
            0 => (None, self.source.is_same(object).await?),
            count => {
                let piece = self.source.piece(object, self.done, count).await?;
                let same = piece.len() as u64 == count;
                (Some(piece), same)
            }
        };
        self.done += count;
        match same {
            true => Ok(piece),
            false => Err(Error::Changed(object.path.clone())),
        }
    }
}

/// Listing of a store in progress.
#[derive(Debug)]
pub struct Lister(mpsc::Receiver<Result<ListedItem, Error>>);

/// Receiver of the items of a listing. A listing ends early when its reader is dropped.
pub(crate) type ListingSender = mpsc::Sender<Result<ListedItem, Error>>;

impl Lister {
    pub(crate) fn new() -> (ListingSender, Self) {
        let (sender, listed) = mpsc::channel(LISTED_AHEAD);
        (sender, Self(listed))
    }

    /// Returns the listing whose items `list` sends.
    pub(crate) fn of<L>(list: impl FnOnce(ListingSender) -> L) -> Self
    where
        L: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (sender, listed) = Self::new();
        let listing = list(sender.clone());
        tokio::spawn(async move {
            if let Err(error) = listing.await {
                let _ = sender.send(Err(error)).await;
            }
        });
        listed
    }

    /// Returns the next item of the listing; `None` at its end.
    ///
    /// # Errors
    /// The store can't be listed, or does not continue the listing.
    pub async fn next(&mut self) -> Result<Option<ListedItem>, Error> {
        self.0.recv().await.transpose()
    }
}

/// Opens a store. The function sends no request, but opens the directory of a store that is a directory.
///
/// # Errors
/// The address or the keys are invalid, the directory can't be opened, or this build does not support the kind of the store.
pub fn open(place: &RemoteAddress, keys: &Keys) -> Result<Remote, Error> {
    Ok(match &place.kind {
        RemoteKind::Directory(path) => Arc::new(LocalStore::open(path)?),
        RemoteKind::Sftp { host, port, root } => Arc::new(sftp::open((host, *port, root), keys)?),
        #[cfg(feature = "hdfs")]
        RemoteKind::Hdfs(host, root) => Arc::new(crate::hdfs::open(host, root, keys)?),
        #[cfg(feature = "services")]
        RemoteKind::WebHdfs(host, root) => Arc::new(crate::webhdfs::open(host, root, keys)),
        #[cfg(feature = "services")]
        _ => Arc::new(crate::object_store::ObjectStore::open(place, keys)?),
        #[cfg(not(feature = "services"))]
        _ => return Err(place.unsupported()),
    })
}

#[cfg(all(test, not(feature = "services")))]
mod tests {
    use super::*;

    #[test]
    fn build_without_services_names_feature_of_refused_address() {
        for (uri, feature) in [
            ("s3://bucket", "dist"),
            ("webhdfs://host", "dist"),
            ("gs://bucket", "full"),
        ] {
            let place = RemoteAddress::parse(uri).unwrap();
            let error = open(&place, &Keys::default()).unwrap_err().to_string();
            assert!(error.contains(&format!("--features {feature}")), "{error}");
        }
    }
}
