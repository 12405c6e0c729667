//! Stores that are trees of directories on a server. OpenDAL does not support these protocols, or its clients show incomplete files. A file
//! is written under a temporary name and renamed in one step. A protocol implements [`TreeProtocol`]; this module contains all other code.

use crate::Error;
use crate::address::{
    DEPTH_MAX, NAME_BYTES_MAX, checked, checked_directory, fresh_part_of, is_name, is_part, join,
    shown,
};
use crate::store::{
    DirectoryPages, FileReader, FileSource, ListedItem, Lister, ListingEntry, ListingSender,
    Overwrite, PIECE_BYTES, PathType, RemoteStore, SILENCE, StoreFile, StoreWriter,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Maximum number of names of one directory, and maximum number of consecutive empty pages of a listing.
const NAMES_MAX: usize = 10_000_000;
/// Maximum number of names of one listing, including all its directories.
const LISTED_MAX: usize = 100_000_000;
const EMPTY_PAGES_MAX: usize = 100;

/// Maximum number of attempts of a request with a temporary error.
const TRIES: u32 = 5;
/// Pause before the second attempt; it doubles before each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Age from which the writer of a temporary file must have ended.
const LEFT: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of directories in which one process removes old temporary files, and maximum number of names in each directory.
const SWEPT_DIRECTORIES_MAX: usize = 1000;
const SWEPT_NAMES_MAX: usize = 10_000;

/// Error of a protocol, with whether the error is temporary.
#[derive(Debug)]
pub(crate) struct ProtocolError {
    pub(crate) error: Error,
    pub(crate) passes: bool,
}

impl From<Error> for ProtocolError {
    fn from(error: Error) -> Self {
        let passes = false;
        Self { error, passes }
    }
}

impl ProtocolError {
    /// Returns the error for a server that can't be reached or does not answer.
    pub(crate) fn offline(path: &str, reason: impl Into<String>) -> Self {
        Self {
            error: Error::Store {
                path: path.to_owned(),
                reason: reason.into(),
            },
            passes: true,
        }
    }
}

pub(crate) type TreeFuture<'a, T> = BoxFuture<'a, Result<T, ProtocolError>>;

/// Operations of a protocol. Each path is relative to the store's root and has been [`checked`].
pub(crate) trait TreeProtocol: Send + Sync {
    /// Returns the type of a path. If the path is a link, the type is that of the link itself.
    fn look<'a>(&'a self, path: &'a str) -> TreeFuture<'a, PathType>;
    /// Starts to list a directory; the empty path is the root of the store.
    fn names<'a>(&'a self, path: &'a str) -> TreeFuture<'a, Box<dyn TreeNames>>;
    /// Reads a byte range of exactly the version `object`.
    fn range<'a>(&'a self, object: &'a StoreFile, from: u64, count: u64) -> TreeFuture<'a, Bytes>;
    /// Creates a file that does not exist yet, and its parent directories.
    fn begin<'a>(&'a self, path: &'a str) -> TreeFuture<'a, Box<dyn TreeUpload>>;
    /// Renames a file in one step. With `over`, the rename replaces an existing file; otherwise an existing file causes [`Error::Changed`].
    fn rename<'a>(&'a self, path: &'a str, other: &'a str, over: bool) -> TreeFuture<'a, ()>;
    /// Creates a hard link under an unused path. Returns whether the server supports hard links.
    fn link<'a>(&'a self, _path: &'a str, _other: &'a str) -> TreeFuture<'a, bool> {
        Box::pin(async { Ok(false) })
    }
    /// Removes a file.
    fn remove<'a>(&'a self, path: &'a str) -> TreeFuture<'a, ()>;
}

/// Listing of a directory in progress.
pub(crate) trait TreeNames: Send {
    /// Returns further names of the directory; `None` at the end.
    fn next(&mut self) -> TreeFuture<'_, Option<Vec<TreeName>>>;
}

/// File that is being written to the server.
pub(crate) trait TreeUpload: Send {
    fn write(&mut self, bytes: Bytes) -> TreeFuture<'_, ()>;
    /// Syncs the file to the server's disk, if the protocol supports it.
    fn finish(self: Box<Self>) -> TreeFuture<'static, ()>;
}

/// Name in a directory, with its type or the reason for which it is skipped.
#[derive(Debug)]
pub(crate) struct TreeName {
    pub(crate) name: String,
    pub(crate) seen: Result<PathType, &'static str>,
}

/// Path of the directory on the server that is the store's root.
pub(crate) struct TreeRoot(String);

impl TreeRoot {
    pub(crate) fn new(path: &str) -> Self {
        Self(path.trim_end_matches('/').to_owned())
    }

    /// Returns the server's path for a path below the store's root.
    pub(crate) fn full(&self, path: &str) -> String {
        match (self.0.as_str(), path) {
            ("", "") => "/".to_owned(),
            (root, "") => root.to_owned(),
            (root, path) => format!("{root}/{path}"),
        }
    }
}

#[derive(Clone)]
pub(crate) struct TreeStore {
    host: Arc<str>,
    files: Arc<dyn TreeProtocol>,
    /// Directories in which this process has removed old temporary files.
    swept: Arc<Mutex<BTreeSet<String>>>,
}

impl fmt::Debug for TreeStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("Tree");
        out.field("host", &self.host).finish_non_exhaustive()
    }
}

/// Listing of one directory in progress.
struct TreeListing {
    path: String,
    names: Option<Box<dyn TreeNames>>,
    /// Names that the server has returned and the listing has not returned yet.
    left: std::vec::IntoIter<TreeName>,
    /// Number of returned names, and number of consecutive empty pages.
    listed_names: usize,
    empty: usize,
}

/// File that is being written under a temporary name.
struct TreeWriter {
    tree: TreeStore,
    begun: Option<Box<dyn TreeUpload>>,
    path: String,
    /// Temporary path; `None` once the file has its final path.
    part: Option<String>,
    over: Overwrite,
    written: u64,
}

/// Repeats a request while its error is temporary.
async fn again<'a, T>(work: impl Fn() -> TreeFuture<'a, T>) -> Result<T, Error> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match work().await {
            Err(why) if why.passes => tokio::time::sleep(pause).await,
            done => return done.map_err(|why| why.error),
        }
        pause *= 2;
    }
    work().await.map_err(|why| why.error)
}

/// Waits for a server's answer, at most [`SILENCE`].
pub(crate) async fn timely<T>(
    path: &str,
    work: impl Future<Output = T>,
) -> Result<T, ProtocolError> {
    let done = tokio::time::timeout(SILENCE, work).await;
    done.map_err(|_| ProtocolError::offline(path, "no answer in 60 s"))
}

impl TreeStore {
    pub(crate) fn new(host: &str, files: impl TreeProtocol + 'static) -> Self {
        Self {
            host: host.into(),
            files: Arc::new(files),
            swept: Arc::default(),
        }
    }

    async fn path_type(&self, path: &str) -> Result<PathType, Error> {
        again(|| self.files.look(path)).await
    }

    async fn level(&self, path: &str) -> Result<TreeListing, Error> {
        Ok(TreeListing {
            path: path.to_owned(),
            names: Some(again(|| self.files.names(path)).await?),
            left: Vec::new().into_iter(),
            listed_names: 0,
            empty: 0,
        })
    }

    /// Sends all files below a directory, and all skipped paths, to the receiver, until the receiver is dropped.
    async fn send_all(&self, directory: &str, sender: &ListingSender) -> Result<(), Error> {
        checked_directory(directory)?;
        let (mut levels, mut listed) = (vec![self.level(directory).await?], 0);
        while let Some(level) = levels.last_mut() {
            let Some(TreeName { name, seen }) = level.one().await? else {
                levels.pop();
                continue;
            };
            listed += 1;
            if listed > LISTED_MAX {
                return Err(Error::endless(directory, LISTED_MAX));
            }
            let path = join(&level.path, &name);
            let listed = match seen {
                _ if !is_name(&name) => ListedItem::Passed(path, "not a valid file name"),
                Err(why) => ListedItem::Passed(path, why),
                Ok(PathType::File(object, _)) => ListedItem::Object(object),
                Ok(PathType::Directory) if levels.len() > DEPTH_MAX => {
                    ListedItem::Passed(path, "too many nested directories")
                }
                Ok(PathType::Directory) => {
                    match self.level(&path).await {
                        // The directory was removed during the listing.
                        Err(Error::Missing(_) | Error::NoFile { .. }) => {}
                        level => levels.push(level?),
                    }
                    continue;
                }
            };
            if sender.send(Ok(listed)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn range(&self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        let bytes = again(|| self.files.range(object, from, count)).await?;
        match bytes.len() as u64 == count {
            true => Ok(bytes),
            false => Err(Error::Changed(object.path.clone())),
        }
    }

    async fn writer(&self, path: &str, over: Overwrite) -> Result<TreeWriter, Error> {
        if is_part(checked(path)?) {
            return Err(Error::Path(path.to_owned()));
        }
        // Two concurrent writers have different temporary names.
        let part = fresh_part_of(path);
        Ok(TreeWriter {
            tree: self.clone(),
            begun: Some(again(|| self.files.begin(&part)).await?),
            path: path.to_owned(),
            part: Some(part),
            over,
            written: 0,
        })
    }

    /// Removes temporary files in a directory whose age, by the server's clock, shows that their writers have ended.
    async fn sweep(&self, directory: &str, now: SystemTime) -> Result<(), ProtocolError> {
        {
            let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
            if swept.len() >= SWEPT_DIRECTORIES_MAX || !swept.insert(directory.to_owned()) {
                return Ok(());
            }
        }
        let (mut names, mut seen) = (self.files.names(directory).await?, 0);
        while seen < SWEPT_NAMES_MAX
            && let Some(page) = names.next().await?
        {
            seen += page.len();
            for TreeName { name, seen } in page {
                let time = match seen {
                    Ok(PathType::File(_, Some(time))) if is_part(&name) => time,
                    _ => continue,
                };
                if now.duration_since(time).is_ok_and(|age| age > LEFT) {
                    self.files.remove(&join(directory, &name)).await?;
                }
            }
        }
        Ok(())
    }
}

#[async_trait]
impl RemoteStore for TreeStore {
    async fn stat(&self, path: &str) -> Result<StoreFile, Error> {
        self.path_type(checked(path)?).await?.file(path)
    }

    async fn look(&self, path: &str) -> Result<PathType, Error> {
        if path.is_empty() {
            return Ok(PathType::Directory);
        }
        self.path_type(shown(path)?).await
    }

    async fn entries(&self, path: &str) -> Result<Box<dyn DirectoryPages>, Error> {
        Ok(Box::new(self.level(checked_directory(path)?).await?))
    }

    fn list(&self, directory: &str) -> Lister {
        let (tree, directory) = (self.clone(), directory.to_owned());
        Lister::of(|sender| async move { tree.send_all(&directory, &sender).await })
    }

    async fn read(&self, object: &StoreFile) -> Result<FileReader, Error> {
        checked(&object.path)?;
        Ok(FileReader::new(object, self.clone()))
    }

    async fn read_at(&self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        checked(&object.path)?;
        match count {
            0 => Ok(Bytes::new()),
            count => self.range(object, from, count).await,
        }
    }

    async fn write_over(&self, path: &str, over: Overwrite) -> Result<Box<dyn StoreWriter>, Error> {
        Ok(Box::new(self.writer(path, over).await?))
    }

    async fn also(&self, path: &str, other: &str) -> Result<StoreFile, Error> {
        let object = self.stat(path).await?;
        let part = fresh_part_of(checked(other)?);
        if self
            .files
            .link(path, &part)
            .await
            .map_err(|why| why.error)?
        {
            let renamed = self.files.rename(&part, other, true).await;
            // The temporary name still exists if both were already the same file.
            let _ = self.files.remove(&part).await;
            renamed.map_err(|why| why.error)?;
            return self.stat(other).await;
        }
        let mut copy = self.writer(other, Overwrite::Anything).await?;
        let mut done = 0;
        while done < object.size {
            let count = PIECE_BYTES.min(object.size - done);
            copy.append(self.range(&object, done, count).await?).await?;
            done += count;
        }
        copy.complete().await
    }

    async fn remove(&self, path: &str) -> Result<(), Error> {
        let path = checked(path)?;
        again(|| self.files.remove(path)).await
    }

    async fn check(&self) -> Result<(), Error> {
        self.level("").await?.one().await.map(drop)
    }
}

#[async_trait]
impl FileSource for TreeStore {
    async fn piece(&mut self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        self.range(object, from, count).await
    }

    async fn is_same(&mut self, object: &StoreFile) -> Result<bool, Error> {
        // Each piece was checked when it was read.
        Ok(object.size > 0 || self.stat(&object.path).await? == *object)
    }
}

impl TreeListing {
    /// Returns the next name of the directory, skipping temporary files.
    async fn one(&mut self) -> Result<Option<TreeName>, Error> {
        loop {
            match (self.left.next(), &mut self.names) {
                (Some(name), _) if is_part(&name.name) => {}
                (Some(name), _) => return Ok(Some(name)),
                (None, None) => return Ok(None),
                (None, Some(names)) => match names.next().await.map_err(|why| why.error)? {
                    Some(more) => {
                        self.listed_names += more.len();
                        self.empty = if more.is_empty() { self.empty + 1 } else { 0 };
                        if self.listed_names > NAMES_MAX || self.empty > EMPTY_PAGES_MAX {
                            return Err(Error::endless(&self.path, NAMES_MAX));
                        }
                        self.left = more.into_iter();
                    }
                    None => self.names = None,
                },
            }
        }
    }
}

#[async_trait]
impl DirectoryPages for TreeListing {
    async fn next(&mut self, most: usize) -> Result<Vec<ListingEntry>, Error> {
        let mut entries = Vec::new();
        while entries.len() < most
            && let Some(TreeName { name, seen }) = self.one().await?
        {
            if let Ok(seen) = seen
                && is_name(&name)
                && name.len() <= NAME_BYTES_MAX
            {
                entries.push(ListingEntry { name, seen });
            }
        }
        Ok(entries)
    }
}

impl TreeWriter {
    async fn append(&mut self, bytes: Bytes) -> Result<(), Error> {
        let count = bytes.len() as u64;
        let begun = self.begun.as_mut().ok_or_else(|| Error::Store {
            path: self.path.clone(),
            reason: "an earlier piece could not be written".into(),
        })?;
        let written = begun.write(bytes).await;
        if written.is_err() {
            self.begun = None;
        }
        self.written += count;
        written.map_err(|why| self.named(why))
    }

    /// Returns the error with the path of the file in place of its temporary path.
    fn named(&self, why: ProtocolError) -> Error {
        match why.error {
            Error::Store { reason, .. } => Error::Store {
                path: self.path.clone(),
                reason,
            },
            Error::Denied { reason, .. } => Error::Denied {
                path: self.path.clone(),
                reason,
            },
            Error::Missing(_) => Error::Changed(self.path.clone()),
            error => error,
        }
    }

    async fn complete(mut self) -> Result<StoreFile, Error> {
        let finished = self.take_name().await;
        match finished {
            Ok(_) => self.part = None,
            Err(_) => self.clean().await,
        }
        finished
    }

    async fn take_name(&mut self) -> Result<StoreFile, Error> {
        let (Some(begun), Some(part)) = (self.begun.take(), self.part.clone()) else {
            return Err(Error::Changed(self.path.clone()));
        };
        begun.finish().await.map_err(|why| self.named(why))?;
        let PathType::File(mut object, time) = self.tree.path_type(&part).await? else {
            return Err(Error::Changed(self.path.clone()));
        };
        object.path.clone_from(&self.path);
        let there = match &self.over {
            Overwrite::This(wanted) => match self.tree.stat(&self.path).await {
                Err(Error::Missing(_)) => false,
                now => now? == *wanted,
            },
            _ => true,
        };
        if !there || object.size != self.written {
            return Err(Error::Changed(self.path.clone()));
        }
        let over = self.over != Overwrite::Nothing;
        let renamed = self.tree.files.rename(&part, &self.path, over).await;
        renamed.map_err(|why| self.named(why))?;
        if let Some(time) = time {
            let directory = self
                .path
                .rsplit_once('/')
                .map_or("", |(directory, _)| directory);
            // The next process repeats this.
            let _ = self.tree.sweep(directory, time).await;
        }
        Ok(object)
    }

    async fn clean(&mut self) {
        self.begun = None;
        if let Some(part) = self.part.take() {
            // The caller reports the first error.
            let _ = self.tree.files.remove(&part).await;
        }
    }
}

#[async_trait]
impl StoreWriter for TreeWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.append(bytes).await
    }

    async fn finish(self: Box<Self>) -> Result<StoreFile, Error> {
        self.complete().await
    }

    async fn abort(mut self: Box<Self>) {
        self.clean().await;
    }
}

impl Drop for TreeWriter {
    fn drop(&mut self) {
        let (tree, part) = (self.tree.clone(), self.part.take());
        if let (Some(part), Ok(runtime)) = (part, tokio::runtime::Handle::try_current()) {
            self.begun = None;
            runtime.spawn(async move { tree.files.remove(&part).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directory whose listing never ends and returns no names.
    struct Endless;

    impl TreeNames for Endless {
        fn next(&mut self) -> TreeFuture<'_, Option<Vec<TreeName>>> {
            Box::pin(async { Ok(Some(Vec::new())) })
        }
    }

    #[tokio::test]
    async fn endless_tree_listing_fails() {
        let mut level = TreeListing {
            path: "d".into(),
            names: Some(Box::new(Endless)),
            left: Vec::new().into_iter(),
            listed_names: 0,
            empty: 0,
        };
        let error = level.one().await.unwrap_err().to_string();
        assert!(error.contains("no end"), "{error}");
    }
}
