//! One store, of any kind. The module passes each request to the implementation of the kind.

use crate::directory::Directory;
use crate::part::Part;
use crate::place::{Kind, Place, checked};
use crate::remote::{self, Remote};
use crate::tree::{self, Tree};
use crate::{Error, Keys, sftp, webhdfs};
use bytes::Bytes;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// Bytes of a file per read.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;
/// Maximum time without an answer of a store.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// Maximum number of listed files that wait for the reader of the listing.
const LISTED_AHEAD: usize = 1000;

/// File of a store, as the last `stat` or listing saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Path below the root of the store.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Tag that changes when the file changes: its `ETag`, else its size and time.
    pub tag: String,
    /// Whether the store itself refuses to read a file with another tag.
    pub checked_by_store: bool,
}

/// Files that a write may replace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// Any file.
    #[default]
    Anything,
    /// No file: the write fails if the name is taken.
    Nothing,
    /// Only this file.
    This(Object),
}

/// Item of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// File.
    Object(Object),
    /// Skipped path and the reason: the path is no file, or its name is not valid on other systems.
    Passed(String, &'static str),
}

/// Connection to a store.
#[derive(Clone, Debug)]
pub struct Bridge(pub(crate) Store);

#[derive(Clone, Debug)]
pub(crate) enum Store {
    Directory(Directory),
    Remote(Remote),
    Tree(Tree),
}

/// Running listing.
#[derive(Debug)]
pub struct Lister(mpsc::Receiver<Result<Listed, Error>>);

impl Lister {
    /// Returns the next item; `None` at the end.
    ///
    /// # Errors
    /// If the store can't be listed, or does not continue the listing.
    pub async fn next(&mut self) -> Result<Option<Listed>, Error> {
        self.0.recv().await.transpose()
    }
}

/// Reader of a file, from its start to its end.
#[derive(Debug)]
pub struct Reader {
    bridge: Bridge,
    object: Object,
    file: Option<File>,
    done: u64,
}

/// File that is being written. It is not visible before it is finished.
pub struct Writer(Writing);

impl fmt::Debug for Writer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Writer").finish_non_exhaustive()
    }
}

enum Writing {
    Part(Part),
    Remote(Box<remote::Writer>),
    Tree(tree::Writer),
}

/// Runs work that waits for a disk, on a thread that may block.
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

impl Bridge {
    /// Opens a store. No request is sent yet, except that a directory is opened.
    ///
    /// # Errors
    /// If the address or the keys are invalid, or the directory can't be opened.
    pub fn open(place: &Place, keys: &Keys) -> Result<Self, Error> {
        Ok(Self(match &place.kind {
            Kind::Directory(path) => Store::Directory(Directory::open(path)?),
            Kind::Sftp { host, port, root } => Store::Tree(sftp::open((host, *port, root), keys)?),
            Kind::WebHdfs(host, root) => Store::Tree(webhdfs::open(host, root, keys)),
            #[cfg(feature = "hdfs")]
            Kind::Hdfs(host, root) => Store::Tree(crate::hdfs::open(host, root, keys)?),
            _ => Store::Remote(Remote::open(place, keys)?),
        }))
    }

    /// Returns the present version of a file.
    ///
    /// # Errors
    /// If it does not exist, is no file, or may not be accessed.
    pub async fn stat(&self, path: &str) -> Result<Object, Error> {
        let path = checked(path)?.to_owned();
        match &self.0 {
            Store::Directory(directory) => {
                let directory = directory.clone();
                aside(move || directory.stat(&path)).await
            }
            Store::Remote(remote) => remote.stat(&path).await,
            Store::Tree(tree) => tree.stat(&path).await,
        }
    }

    /// Returns whether the store can be listed.
    #[must_use]
    pub fn lists(&self) -> bool {
        match &self.0 {
            Store::Directory(_) | Store::Tree(_) => true,
            Store::Remote(remote) => remote.lists,
        }
    }

    /// Lists all files below a directory, at any depth; of the whole store if `directory` is empty. Some stores treat a missing directory as empty.
    #[must_use]
    pub fn list(&self, directory: &str) -> Lister {
        let (told, listed) = mpsc::channel(LISTED_AHEAD);
        let below = directory.to_owned();
        match &self.0 {
            Store::Directory(directory) => {
                let directory = directory.clone();
                tokio::task::spawn_blocking(move || {
                    let mut tell = |listed| told.blocking_send(Ok(listed)).is_ok();
                    if let Err(error) = directory.list(&below, &mut tell) {
                        let _ = told.blocking_send(Err(error));
                    }
                });
            }
            Store::Remote(remote) => {
                let remote = remote.clone();
                tokio::spawn(async move {
                    if let Err(error) = remote.list(&below, &told).await {
                        let _ = told.send(Err(error)).await;
                    }
                });
            }
            Store::Tree(tree) => {
                let tree = tree.clone();
                tokio::spawn(async move {
                    if let Err(error) = tree.list(&below, &told).await {
                        let _ = told.send(Err(error)).await;
                    }
                });
            }
        }
        Lister(listed)
    }

    /// Starts to read exactly this version of a file.
    ///
    /// # Errors
    /// If the file does not exist, has changed, or may not be read.
    pub async fn read(&self, object: &Object) -> Result<Reader, Error> {
        let path = checked(&object.path)?.to_owned();
        let mut file = None;
        if let Store::Directory(directory) = &self.0 {
            let directory = directory.clone();
            let (opened, now) = aside(move || directory.file(&path)).await?;
            if now != *object {
                return Err(Error::Changed(object.path.clone()));
            }
            file = Some(opened);
        }
        Ok(Reader {
            bridge: self.clone(),
            object: object.clone(),
            file,
            done: 0,
        })
    }

    /// Starts to write a file.
    ///
    /// # Errors
    /// If the store does not accept it, or another process is writing the file.
    pub async fn write(&self, path: &str) -> Result<Writer, Error> {
        self.write_over(path, Over::Anything).await
    }

    /// Starts to write like [`Self::write`]. The file replaces only the files that `over` permits, if the store supports such a condition.
    ///
    /// # Errors
    /// As those of [`Self::write`]; also, at the start or at the end, [`Error::Changed`].
    pub async fn write_over(&self, path: &str, over: Over) -> Result<Writer, Error> {
        let path = checked(path)?.to_owned();
        Ok(Writer(match &self.0 {
            Store::Directory(directory) => {
                let directory = directory.clone();
                Writing::Part(aside(move || directory.create(&path)).await?.over(over))
            }
            Store::Remote(remote) => Writing::Remote(Box::new(remote.write(&path, &over).await?)),
            Store::Tree(tree) => Writing::Tree(tree.write(&path, over).await?),
        }))
    }

    /// Writes a whole file, if `over` permits it.
    ///
    /// # Errors
    /// If the store does not accept it: then an existing file stays.
    pub async fn put(&self, path: &str, bytes: Bytes, over: Over) -> Result<Object, Error> {
        if let Store::Remote(remote) = &self.0
            && remote.puts()
        {
            return remote.put(checked(path)?, bytes, &over).await;
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

    /// Makes `other` another file with the bytes of `path`, in place of an existing one: a hard link in a directory, a copy in other stores.
    ///
    /// # Errors
    /// If the store does not support it, or the file does not exist.
    pub async fn also(&self, path: &str, other: &str) -> Result<Object, Error> {
        let (path, other) = (checked(path)?.to_owned(), checked(other)?.to_owned());
        match &self.0 {
            Store::Directory(directory) => {
                let directory = directory.clone();
                aside(move || directory.also(&path, &other)).await
            }
            Store::Remote(remote) => remote.also(&path, &other).await,
            Store::Tree(tree) => tree.also(&path, &other).await,
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If the file may not be removed.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        let path = checked(path)?.to_owned();
        match &self.0 {
            Store::Directory(directory) => {
                let directory = directory.clone();
                aside(move || directory.remove(&path)).await
            }
            Store::Remote(remote) => remote.remove(&path).await,
            Store::Tree(tree) => tree.remove(&path).await,
        }
    }

    /// Returns whether the end of this process during a write may leave data in the store that only [`Self::abandon`] finds.
    #[must_use]
    pub fn leaves(&self) -> bool {
        matches!(&self.0, Store::Remote(remote) if remote.leaves())
    }

    /// Removes the data of interrupted writes of a file that were started at or after `since`, by the store's clock. A running write fails.
    ///
    /// # Errors
    /// If the store does not answer or refuses.
    pub async fn abandon(&self, path: &str, since: SystemTime) -> Result<(), Error> {
        match &self.0 {
            Store::Remote(remote) => remote.abandon(checked(path)?, since).await,
            Store::Directory(_) | Store::Tree(_) => Ok(()),
        }
    }

    /// Opens a directory again, which may be missing or may have been replaced. Keeps the old one if this fails.
    pub fn renew(&self) {
        if let Store::Directory(directory) = &self.0 {
            directory.renew();
        }
    }

    /// Checks that the store answers and accepts the keys.
    ///
    /// # Errors
    /// If it does not.
    pub async fn check(&self) -> Result<(), Error> {
        match &self.0 {
            Store::Remote(remote) => remote.check().await,
            Store::Tree(tree) => tree.check().await,
            Store::Directory(_) => self.list("").next().await.map(|_| ()),
        }
    }
}

impl Reader {
    /// Returns the next piece; `None` after the last one, if the file is still the same.
    ///
    /// # Errors
    /// If the file has changed, or can't be read further.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let left = self.object.size - self.done;
        if left == 0 {
            self.is_same().await?;
            return Ok(None);
        }
        let count = left.min(PIECE_BYTES);
        let piece = match (&self.bridge.0, self.file.take()) {
            (Store::Remote(remote), _) => remote.read(&self.object, self.done, count).await?,
            (Store::Tree(tree), _) => tree.range(&self.object, self.done, count).await?,
            (Store::Directory(_), file) => {
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
        let same = match (&self.bridge.0, &self.file) {
            (Store::Remote(remote), _)
                if remote.checks() && self.object.checked_by_store && self.object.size > 0 =>
            {
                true
            }
            (Store::Remote(remote), _) => remote.stat(path).await?.tag == self.object.tag,
            // Each piece was checked when it was read.
            (Store::Tree(_), _) if self.object.size > 0 => true,
            (Store::Tree(tree), _) => tree.stat(path).await? == self.object,
            (Store::Directory(_), None) => false,
            // The open file is checked: another file may have its name by now.
            (Store::Directory(_), Some(file)) => {
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

impl Writer {
    /// Writes the next bytes.
    ///
    /// # Errors
    /// If the store does not accept them: then nothing of the file becomes visible.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        match &mut self.0 {
            // The write only fills the page cache, so it does not block.
            Writing::Part(part) => part.write(&bytes),
            Writing::Remote(writer) => writer.write(bytes).await,
            Writing::Tree(writer) => writer.write(bytes).await,
        }
    }

    /// Finishes the file and makes it visible.
    ///
    /// # Errors
    /// If the store refuses: then an existing file stays.
    pub async fn finish(self) -> Result<Object, Error> {
        match self.0 {
            Writing::Part(part) => aside(move || part.finish()).await,
            Writing::Remote(writer) => writer.finish().await,
            Writing::Tree(writer) => writer.finish().await,
        }
    }

    /// Aborts the write and removes its data.
    pub async fn abort(self) {
        match self.0 {
            Writing::Part(_) => {}
            Writing::Remote(writer) => writer.abort().await,
            Writing::Tree(writer) => writer.abort().await,
        }
    }
}
