//! Directory as a store. The module opens files only below the directory's descriptor and follows no link. So it never opens a file outside
//! of the directory, even if other users add links concurrently.

use crate::Error;
use crate::address::{DEPTH_MAX, PART, checked, checked_directory, join, shown};
use crate::partial_file::PartialFile;
use crate::store::{
    DirectoryPages, FileReader, FileSource, ListedItem, Lister, ListingEntry, Overwrite, PathType,
    RemoteStore, StoreFile, StoreWriter,
};
use async_trait::async_trait;
use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of threads that wait for the disk of one directory on behalf of readers.
const TURNS: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct LocalStore {
    path: Arc<str>,
    root: Arc<Mutex<Arc<OwnedFd>>>,
    turns: Arc<Semaphore>,
}

/// Listing in progress of one directory below the root.
#[derive(Debug)]
struct DirectoryPage {
    path: String,
    directory: OwnedFd,
    names: Dir,
}

/// Returns the description of a file. The description's tag distinguishes this version of the file from all other versions.
pub(crate) fn object(path: &str, stat: &Stat) -> StoreFile {
    StoreFile {
        path: path.to_owned(),
        size: stat.st_size.cast_unsigned(),
        tag: format!("{}-{}.{}", content(stat), stat.st_ctime, stat.st_ctime_nsec),
        checked_by_store: false,
    }
}

/// Returns the part of a tag that changes with writes, but not with new names of the file.
fn content(stat: &Stat) -> String {
    format!(
        "{}-{}-{}.{}",
        stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec
    )
}

/// Returns whether an open file has the same content as when it got its tag, even if its name has changed.
pub(crate) fn is_content(tag: &str, stat: &Stat) -> bool {
    tag.strip_prefix(&content(stat))
        .is_some_and(|rest| rest.starts_with('-'))
}

fn kind(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some("a link"),
        FileType::Fifo => Some("a pipe"),
        _ => Some("a device or socket"),
    }
}

fn seen(path: &str, stat: &Stat) -> Result<PathType, Error> {
    match kind(stat) {
        None => {
            let since = Duration::new(
                u64::try_from(stat.st_mtime).unwrap_or_default(),
                u32::try_from(stat.st_mtime_nsec).unwrap_or_default(),
            );
            let time: Option<SystemTime> = UNIX_EPOCH.checked_add(since);
            Ok(PathType::File(object(path, stat), time))
        }
        Some("a directory") => Ok(PathType::Directory),
        Some(what) => Err(Error::NoFile {
            path: path.to_owned(),
            what,
        }),
    }
}

fn opened(path: &str) -> Result<OwnedFd, Error> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(Error::of(path))
}

impl DirectoryPage {
    /// Returns up to `most` further names; an empty list at the end.
    fn next(&mut self, most: usize) -> Result<Vec<ListingEntry>, Error> {
        let at = Error::of(&self.path);
        let mut entries = Vec::new();
        while entries.len() < most
            && let Some(entry) = self.names.next()
        {
            let entry = entry.map_err(&at)?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name == "." || name == ".." || name.starts_with(PART) {
                continue;
            }
            let path = join(&self.path, name);
            // The file may have been deleted since it was listed.
            if let Ok(stat) = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)
                && let Ok(seen) = seen(&path, &stat)
            {
                let name = name.to_owned();
                entries.push(ListingEntry { name, seen });
            }
        }
        Ok(entries)
    }
}

impl LocalStore {
    pub(crate) fn open(path: &str) -> Result<Self, Error> {
        Ok(Self {
            root: Arc::new(Mutex::new(Arc::new(opened(path)?))),
            path: path.into(),
            turns: Arc::new(Semaphore::new(TURNS)),
        })
    }

    /// Runs blocking work on the directory's disk, in a limited number of threads per directory.
    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = self.turns.clone().acquire_owned().await;
        let directory = self.clone();
        aside(move || {
            // The caller may have stopped waiting. The thread still holds its turn, so a disk without answer blocks few threads.
            let _turn: Option<OwnedSemaphorePermit> = turn.ok();
            work(&directory)
        })
        .await
    }

    fn below(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let root = Arc::clone(&self.root.lock().unwrap_or_else(PoisonError::into_inner));
        // The call is interrupted when something is renamed at the same time.
        loop {
            match rustix::fs::openat2(&*root, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
    }

    fn file(&self, path: &str) -> Result<(File, StoreFile), Error> {
        // With this flag, opening a pipe without writer does not block.
        let opened = self.below(checked(path)?, OFlags::RDONLY | OFlags::NONBLOCK);
        let file = opened.map_err(Error::of(path))?;
        let stat = rustix::fs::fstat(&file).map_err(Error::of(path))?;
        if let Some(what) = kind(&stat) {
            let path = path.to_owned();
            return Err(Error::NoFile { path, what });
        }
        Ok((File::from(file), object(path, &stat)))
    }

    /// Returns the type of a path, which may be unreadable nevertheless.
    fn path_type(&self, path: &str) -> Result<PathType, Error> {
        let found = self
            .below(checked(path)?, OFlags::PATH)
            .map_err(|errno| match errno {
                // A parent of the path is a file.
                Errno::NOTDIR => Error::Missing(path.to_owned()),
                errno => Error::of(path)(errno),
            })?;
        let stat = rustix::fs::fstat(&found).map_err(Error::of(path))?;
        seen(path, &stat)
    }

    fn page(&self, path: &str) -> Result<DirectoryPage, Error> {
        let at = Error::of(path);
        let start = if path.is_empty() { "." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = self.below(start, flags).map_err(&at)?;
        Ok(DirectoryPage {
            path: path.to_owned(),
            names: Dir::read_from(&directory).map_err(&at)?,
            directory,
        })
    }

    /// Reads a byte range of a file. Fails unless the file is the version `object` before and after the read.
    fn range(&self, wanted: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        let path = wanted.path.as_str();
        let changed = || Error::Changed(path.to_owned());
        let (file, now) = self.file(path)?;
        if now != *wanted {
            return Err(changed());
        }
        let mut bytes = vec![0; usize::try_from(count).unwrap_or_default()];
        file.read_exact_at(&mut bytes, from)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => changed(),
                _ => Error::Store {
                    path: path.to_owned(),
                    reason: error.to_string(),
                },
            })?;
        let stat = rustix::fs::fstat(&file).map_err(Error::of(path))?;
        match is_content(&wanted.tag, &stat) {
            true => Ok(bytes.into()),
            false => Err(changed()),
        }
    }

    /// Passes all files below a directory, and all skipped paths, to `report` until it returns false.
    fn all_below(
        &self,
        prefix: &str,
        report: &mut dyn FnMut(ListedItem) -> bool,
    ) -> Result<(), Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let start = if prefix.is_empty() {
            "."
        } else {
            checked(prefix)?
        };
        let directory = self.below(start, flags).map_err(Error::of(prefix))?;
        self.walk(&directory, prefix, 0, report).map(|_| ())
    }

    fn walk(
        &self,
        directory: &OwnedFd,
        above: &str,
        depth: usize,
        report: &mut dyn FnMut(ListedItem) -> bool,
    ) -> Result<bool, Error> {
        let at = Error::of(above);
        let mut directories = Vec::new();
        for entry in Dir::read_from(directory).map_err(&at)? {
            let entry = entry.map_err(&at)?;
            let Ok(name) = entry.file_name().to_str() else {
                let path = join(above, &entry.file_name().to_string_lossy());
                if !report(ListedItem::Passed(path, "its name is not UTF-8")) {
                    return Ok(false);
                }
                continue;
            };
            if name == "." || name == ".." || name.starts_with(PART) {
                continue;
            }
            let path = join(above, name);
            let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                // The file was deleted since it was listed.
                Err(Errno::NOENT) => continue,
                stat => stat.map_err(Error::of(&path))?,
            };
            let listed = match kind(&stat) {
                None => ListedItem::Object(object(&path, &stat)),
                Some("a directory") if depth < DEPTH_MAX => {
                    directories.push(path);
                    continue;
                }
                Some(what) => ListedItem::Passed(path, what),
            };
            if !report(listed) {
                return Ok(false);
            }
        }
        for path in directories {
            let opened = self.below(&path, OFlags::RDONLY | OFlags::DIRECTORY);
            let below = match opened {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                opened => opened.map_err(Error::of(&path))?,
            };
            if !self.walk(&below, &path, depth + 1, report)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Starts to write a file, which becomes visible when it is finished.
    fn create(&self, path: &str) -> Result<PartialFile, Error> {
        let (above, name) = checked(path)?.rsplit_once('/').unwrap_or(("", path));
        if name.starts_with(PART) {
            return Err(Error::Path(path.to_owned()));
        }
        let mut directory = ".".to_owned();
        for part in above.split('/').filter(|part| !part.is_empty()) {
            let at = Error::of(path);
            let parent = self.below(&directory, OFlags::PATH | OFlags::DIRECTORY);
            let parent = parent.map_err(&at)?;
            match rustix::fs::mkdirat(&parent, part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(at(errno)),
            }
            directory = format!("{directory}/{part}");
        }
        let parent = self.below(&directory, OFlags::RDONLY | OFlags::DIRECTORY);
        PartialFile::begin(parent.map_err(Error::of(path))?, name, path)
    }

    /// Gives a file another name in addition to its own name, in place of a file with the other name.
    fn link(&self, path: &str, other: &str) -> Result<StoreFile, Error> {
        let (file, _) = self.file(path)?;
        let mut copy = self.create(other)?;
        match copy.link(&file, path)? {
            true => {}
            false => copy.fill(file)?,
        }
        copy.complete()
    }

    fn unlink(&self, path: &str) -> Result<(), Error> {
        let (above, name) = checked(path)?.rsplit_once('/').unwrap_or((".", path));
        let parent = self.below(above, OFlags::PATH | OFlags::DIRECTORY);
        let removed =
            rustix::fs::unlinkat(parent.map_err(Error::of(path))?, name, AtFlags::empty());
        removed.map_err(Error::of(path))
    }
}

/// Runs a blocking function that uses a disk, on a thread that may block.
async fn aside<T: Send + 'static>(
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

#[async_trait]
impl RemoteStore for LocalStore {
    async fn stat(&self, path: &str) -> Result<StoreFile, Error> {
        let (directory, path) = (self.clone(), path.to_owned());
        aside(move || directory.file(&path).map(|(_, object)| object)).await
    }

    async fn look(&self, path: &str) -> Result<PathType, Error> {
        if path.is_empty() {
            return Ok(PathType::Directory);
        }
        let path = shown(path)?.to_owned();
        self.in_turn(move |directory| directory.path_type(&path))
            .await
    }

    async fn entries(&self, path: &str) -> Result<Box<dyn DirectoryPages>, Error> {
        let path = checked_directory(path)?.to_owned();
        let page = self.in_turn(move |directory| directory.page(&path)).await?;
        Ok(Box::new(LocalPages(self.clone(), Some(page))))
    }

    fn list(&self, directory: &str) -> Lister {
        let (sender, listed) = Lister::new();
        let (store, directory) = (self.clone(), directory.to_owned());
        tokio::task::spawn_blocking(move || {
            let mut report = |listed| sender.blocking_send(Ok(listed)).is_ok();
            if let Err(error) = store.all_below(&directory, &mut report) {
                let _ = sender.blocking_send(Err(error));
            }
        });
        listed
    }

    async fn read(&self, object: &StoreFile) -> Result<FileReader, Error> {
        let (directory, path) = (self.clone(), object.path.clone());
        let (opened, now) = aside(move || directory.file(&path)).await?;
        match now == *object {
            true => Ok(FileReader::new(object, LocalSource(Some(opened)))),
            false => Err(Error::Changed(object.path.clone())),
        }
    }

    async fn read_at(&self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        let object = object.clone();
        self.in_turn(move |directory| directory.range(&object, from, count))
            .await
    }

    async fn write_over(&self, path: &str, over: Overwrite) -> Result<Box<dyn StoreWriter>, Error> {
        let (directory, path) = (self.clone(), path.to_owned());
        let part = aside(move || directory.create(&path)).await?;
        Ok(Box::new(part.over(over)))
    }

    async fn also(&self, path: &str, other: &str) -> Result<StoreFile, Error> {
        let (directory, path, other) = (self.clone(), path.to_owned(), other.to_owned());
        aside(move || directory.link(&path, &other)).await
    }

    async fn remove(&self, path: &str) -> Result<(), Error> {
        let (directory, path) = (self.clone(), path.to_owned());
        aside(move || directory.unlink(&path)).await
    }

    /// Opens the store's root again, because another file system may have been mounted on it.
    fn renew(&self) {
        if let Ok(root) = opened(&self.path) {
            *self.root.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(root);
        }
    }

    async fn check(&self) -> Result<(), Error> {
        self.list("").next().await.map(|_| ())
    }
}

struct LocalPages(LocalStore, Option<DirectoryPage>);

#[async_trait]
impl DirectoryPages for LocalPages {
    async fn next(&mut self, most: usize) -> Result<Vec<ListingEntry>, Error> {
        let Some(mut page) = self.1.take() else {
            return Ok(Vec::new());
        };
        let next = move |_: &LocalStore| Ok((page.next(most)?, page));
        let (entries, page) = self.0.in_turn(next).await?;
        self.1 = Some(page);
        Ok(entries)
    }
}

/// Open file that is read in order; `None` after a failed read.
struct LocalSource(Option<File>);

#[async_trait]
impl FileSource for LocalSource {
    async fn piece(&mut self, object: &StoreFile, _: u64, count: u64) -> Result<Bytes, Error> {
        let path = object.path.clone();
        let failed = move |reason: String| Error::Store { path, reason };
        let Some(mut file) = self.0.take() else {
            return Err(failed("an earlier piece could not be read".into()));
        };
        let (file, piece) = aside(move || {
            let mut bytes = Vec::with_capacity(usize::try_from(count).unwrap_or_default());
            let read = (&mut file).take(count).read_to_end(&mut bytes);
            read.map_err(|error| failed(error.to_string()))?;
            Ok((file, Bytes::from(bytes)))
        })
        .await?;
        self.0 = Some(file);
        Ok(piece)
    }

    /// Checks the open file, because another file may have its name by now.
    async fn is_same(&mut self, object: &StoreFile) -> Result<bool, Error> {
        let Some(file) = &self.0 else {
            return Ok(false);
        };
        let stat = rustix::fs::fstat(file).map_err(Error::of(&object.path))?;
        // Removing the name changes the time of change. So only the content is compared.
        Ok(is_content(&object.tag, &stat))
    }
}

#[async_trait]
impl StoreWriter for PartialFile {
    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        // The write only fills the page cache, so it does not block.
        self.append(&bytes)
    }

    async fn finish(self: Box<Self>) -> Result<StoreFile, Error> {
        aside(move || self.complete()).await
    }

    async fn abort(self: Box<Self>) {}
}
