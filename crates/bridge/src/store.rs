//! One store, of whichever kind.

use crate::folder::Folder;
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

/// Bytes of a file that are read at once.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;
/// Longest that a store may say nothing.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// Files that are listed before anybody asks.
const LISTED_AHEAD: usize = 1000;

/// A file of a store, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where, below the store.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Another one when the file is: its `ETag`, else its size and time.
    pub tag: String,
    /// The store itself refuses to read another one than this.
    pub checked_by_store: bool,
}

/// What a file that is written may take the place of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// Of whatever is there.
    #[default]
    Anything,
    /// Of nothing.
    Nothing,
    /// Of this file only.
    This(Object),
}

/// What a listing gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// A file.
    Object(Object),
    /// What is no file, or can be none elsewhere, and why.
    Passed(String, &'static str),
}

/// A store.
#[derive(Clone, Debug)]
pub struct Bridge(pub(crate) Store);

#[derive(Clone, Debug)]
pub(crate) enum Store {
    Folder(Folder),
    Remote(Remote),
    Tree(Tree),
}

/// A listing that goes on.
#[derive(Debug)]
pub struct Lister(mpsc::Receiver<Result<Listed, Error>>);

impl Lister {
    /// The next file.
    ///
    /// # Errors
    /// If the store can't be listed, or not any further.
    pub async fn next(&mut self) -> Result<Option<Listed>, Error> {
        self.0.recv().await.transpose()
    }
}

/// A file that is read from its begin to its end.
#[derive(Debug)]
pub struct Reader {
    bridge: Bridge,
    object: Object,
    file: Option<File>,
    done: u64,
}

/// A file that is being written; nobody sees it before it is finished.
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

/// Does what waits for a disk.
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
    /// Goes to a store; asks it for nothing yet, unless it is a folder.
    ///
    /// # Errors
    /// If it makes no sense, or the folder can't be opened.
    pub fn open(place: &Place, keys: &Keys) -> Result<Self, Error> {
        Ok(Self(match &place.kind {
            Kind::Folder(path) => Store::Folder(Folder::open(path)?),
            Kind::Sftp { host, port, root } => Store::Tree(sftp::open((host, *port, root), keys)?),
            Kind::WebHdfs(host, root) => Store::Tree(webhdfs::open(host, root, keys)),
            #[cfg(feature = "hdfs")]
            Kind::Hdfs(host, root) => Store::Tree(crate::hdfs::open(host, root, keys)?),
            _ => Store::Remote(Remote::open(place, keys)?),
        }))
    }

    /// What is known of a file.
    ///
    /// # Errors
    /// If it is not there, is no file, or may not be asked for.
    pub async fn stat(&self, path: &str) -> Result<Object, Error> {
        let path = checked(path)?.to_owned();
        match &self.0 {
            Store::Folder(folder) => {
                let folder = folder.clone();
                aside(move || folder.stat(&path)).await
            }
            Store::Remote(remote) => remote.stat(&path).await,
            Store::Tree(tree) => tree.stat(&path).await,
        }
    }

    /// Whether it can be listed.
    #[must_use]
    pub fn lists(&self) -> bool {
        match &self.0 {
            Store::Folder(_) | Store::Tree(_) => true,
            Store::Remote(remote) => remote.lists,
        }
    }

    /// All files below a folder, however deep; of the whole store if it is empty. A folder that is not there is empty in some stores.
    #[must_use]
    pub fn list(&self, folder: &str) -> Lister {
        let (told, listed) = mpsc::channel(LISTED_AHEAD);
        let below = folder.to_owned();
        match &self.0 {
            Store::Folder(folder) => {
                let folder = folder.clone();
                tokio::task::spawn_blocking(move || {
                    let mut tell = |listed| told.blocking_send(Ok(listed)).is_ok();
                    if let Err(error) = folder.list(&below, &mut tell) {
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

    /// Begins to read a file, and no other one that has its name later.
    ///
    /// # Errors
    /// If it is not there any more, is another one, or may not be read.
    pub async fn read(&self, object: &Object) -> Result<Reader, Error> {
        let path = checked(&object.path)?.to_owned();
        let mut file = None;
        if let Store::Folder(folder) = &self.0 {
            let folder = folder.clone();
            let (opened, now) = aside(move || folder.file(&path)).await?;
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

    /// Begins to write a file.
    ///
    /// # Errors
    /// If it can't be written there, or is written by another process.
    pub async fn write(&self, path: &str) -> Result<Writer, Error> {
        self.write_over(path, Over::Anything).await
    }

    /// As [`Self::write`], if nothing else than that is there in the end, as far as the store can be asked for that.
    ///
    /// # Errors
    /// As those of [`Self::write`]; and then, or at the end, [`Error::Changed`].
    pub async fn write_over(&self, path: &str, over: Over) -> Result<Writer, Error> {
        let path = checked(path)?.to_owned();
        Ok(Writer(match &self.0 {
            Store::Folder(folder) => {
                let folder = folder.clone();
                Writing::Part(aside(move || folder.create(&path)).await?.over(over))
            }
            Store::Remote(remote) => Writing::Remote(Box::new(remote.write(&path, &over).await?)),
            Store::Tree(tree) => Writing::Tree(tree.write(&path, over).await?),
        }))
    }

    /// Writes a file that is here as a whole, if nothing else than that is there.
    ///
    /// # Errors
    /// If the store does not take it: then what had its name before still has it.
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

    /// Makes another file of the bytes of one, in place of what is there: a name of its own in a folder, a copy elsewhere.
    ///
    /// # Errors
    /// If the store can't, or the file is not there.
    pub async fn also(&self, path: &str, other: &str) -> Result<Object, Error> {
        let (path, other) = (checked(path)?.to_owned(), checked(other)?.to_owned());
        match &self.0 {
            Store::Folder(folder) => {
                let folder = folder.clone();
                aside(move || folder.also(&path, &other)).await
            }
            Store::Remote(remote) => remote.also(&path, &other).await,
            Store::Tree(tree) => tree.also(&path, &other).await,
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If it may not be.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        let path = checked(path)?.to_owned();
        match &self.0 {
            Store::Folder(folder) => {
                let folder = folder.clone();
                aside(move || folder.remove(&path)).await
            }
            Store::Remote(remote) => remote.remove(&path).await,
            Store::Tree(tree) => tree.remove(&path).await,
        }
    }

    /// Whether a file whose writing does not end, as this process is killed, leaves something there that only [`Self::give_up`] finds.
    #[must_use]
    pub fn leaves(&self) -> bool {
        matches!(&self.0, Store::Remote(remote) if remote.leaves())
    }

    /// Gives up what is left there of writing a file, if that was begun since then, by the clock of the store, and did not end. Who
    /// writes it now is told that it failed.
    ///
    /// # Errors
    /// If the store can't be asked, or does not do it.
    pub async fn give_up(&self, path: &str, since: SystemTime) -> Result<(), Error> {
        match &self.0 {
            Store::Remote(remote) => remote.give_up(checked(path)?, since).await,
            Store::Folder(_) | Store::Tree(_) => Ok(()),
        }
    }

    /// A folder that is not there, or another one since, is opened anew if it can be.
    pub fn renew(&self) {
        if let Store::Folder(folder) = &self.0 {
            folder.renew();
        }
    }

    /// Whether the store answers, and takes the keys.
    ///
    /// # Errors
    /// If it does not.
    pub async fn check(&self) -> Result<(), Error> {
        match &self.0 {
            Store::Remote(remote) => remote.check().await,
            Store::Tree(tree) => tree.check().await,
            Store::Folder(_) => self.list("").next().await.map(|_| ()),
        }
    }
}

impl Reader {
    /// The next piece; nothing when all was read, and is still the same file.
    ///
    /// # Errors
    /// If it was changed, or can't be read on.
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
            (Store::Folder(_), file) => {
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
            // Each piece was of it.
            (Store::Tree(_), _) if self.object.size > 0 => true,
            (Store::Tree(tree), _) => tree.stat(path).await? == self.object,
            (Store::Folder(_), None) => false,
            // The file that was opened: another one may have its name by now.
            (Store::Folder(_), Some(file)) => {
                let stat = rustix::fs::fstat(file).map_err(Error::of(path))?;
                // Its name, and with it its time of change, may have gone: what counts is what was written.
                crate::folder::is_content(&self.object.tag, &stat)
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
    /// Writes on.
    ///
    /// # Errors
    /// If the store does not take it: nothing of the file will be seen.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        match &mut self.0 {
            // The page cache takes it.
            Writing::Part(part) => part.write(&bytes),
            Writing::Remote(writer) => writer.write(bytes).await,
            Writing::Tree(writer) => writer.write(bytes).await,
        }
    }

    /// Has the file seen, whole.
    ///
    /// # Errors
    /// If it can't be: then what had its name before still has it.
    pub async fn finish(self) -> Result<Object, Error> {
        match self.0 {
            Writing::Part(part) => aside(move || part.finish()).await,
            Writing::Remote(writer) => writer.finish().await,
            Writing::Tree(writer) => writer.finish().await,
        }
    }

    /// Gives it up: nothing of it is left.
    pub async fn abort(self) {
        match self.0 {
            Writing::Part(_) => {}
            Writing::Remote(writer) => writer.abort().await,
            Writing::Tree(writer) => writer.abort().await,
        }
    }
}
