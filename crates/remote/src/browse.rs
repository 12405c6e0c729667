//! Read access to a store as a tree, without a cache: type of a path, listing of one directory, reads of ranges of a file.

use crate::address::checked;
use crate::directory::{DirectoryPage, LocalStore};
use crate::store::{Remote, RemoteStore, StoreFile};
use crate::{Error, store::aside};
use crate::{object_store, tree};
use bytes::Bytes;
use std::fmt;
use std::time::SystemTime;
use tokio::sync::OwnedSemaphorePermit;

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

/// Listing of one directory, in pages. No thread works on the listing between two pages.
pub struct DirectoryPages(StoreListing);

impl fmt::Debug for DirectoryPages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Entries").finish_non_exhaustive()
    }
}

enum StoreListing {
    /// The listing has no further entries: the store has no listings, or all entries were returned.
    Nothing,
    Directory(LocalStore, Option<Box<DirectoryPage>>),
    ObjectStore(Box<object_store::RemoteListing>),
    Tree(Box<tree::TreeListing>),
}

/// Runs blocking work on a directory's disk, in a limited number of threads per directory.
async fn in_turn<T: Send + 'static>(
    directory: &LocalStore,
    work: impl FnOnce(&LocalStore) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let turn = directory.turns.clone().acquire_owned().await;
    let directory = directory.clone();
    aside(move || {
        // The caller may have stopped waiting. The thread still holds its turn, so a disk without answer blocks few threads.
        let _turn: Option<OwnedSemaphorePermit> = turn.ok();
        work(&directory)
    })
    .await
}

impl Remote {
    /// Returns the type of a path.
    ///
    /// # Errors
    /// The path does not exist, is of a type that is never followed, or may not be accessed.
    pub async fn look(&self, path: &str) -> Result<PathType, Error> {
        if path.is_empty() {
            return Ok(PathType::Directory);
        }
        let path = checked(path)?.to_owned();
        if crate::address::is_part(&path) {
            return Err(Error::Missing(path));
        }
        match &self.0 {
            RemoteStore::Directory(directory) => {
                in_turn(directory, move |directory| directory.look(&path)).await
            }
            RemoteStore::ObjectStore(object_store) => object_store.look(&path).await,
            RemoteStore::Tree(tree) => tree.look(&path).await,
        }
    }

    /// Starts to list a directory. The listing is empty for a store that can't be listed.
    ///
    /// # Errors
    /// The path is no directory, or may not be listed.
    pub async fn entries(&self, path: &str) -> Result<DirectoryPages, Error> {
        let path = match path {
            "" => String::new(),
            path => checked(path)?.to_owned(),
        };
        Ok(DirectoryPages(match &self.0 {
            RemoteStore::Directory(directory) => {
                let page = in_turn(directory, move |directory| directory.page(&path)).await?;
                StoreListing::Directory(directory.clone(), Some(Box::new(page)))
            }
            RemoteStore::ObjectStore(object_store) if !object_store.lists => StoreListing::Nothing,
            RemoteStore::ObjectStore(object_store) => {
                StoreListing::ObjectStore(Box::new(object_store.level(&path).await?))
            }
            RemoteStore::Tree(tree) => StoreListing::Tree(Box::new(tree.level(&path).await?)),
        }))
    }

    /// Reads a byte range of exactly the version `object` of a file. An empty range checks whether a directory's file may be read.
    ///
    /// # Errors
    /// The file has changed, or can't be read.
    pub async fn read_at(&self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        let path = checked(&object.path)?.to_owned();
        match &self.0 {
            RemoteStore::ObjectStore(_) | RemoteStore::Tree(_) if count == 0 => Ok(Bytes::new()),
            RemoteStore::Tree(tree) => tree.range(object, from, count).await,
            RemoteStore::ObjectStore(object_store) => object_store.range(object, from, count).await,
            RemoteStore::Directory(directory) => {
                let object = object.clone();
                in_turn(directory, move |directory| {
                    directory.range(&path, &object, from, count)
                })
                .await
            }
        }
    }
}

impl DirectoryPages {
    /// Returns up to `most` further entries; an empty list at the end. Invalid file names, and types that are never followed, are left out.
    ///
    /// # Errors
    /// The store does not continue the listing.
    pub async fn next(&mut self, most: usize) -> Result<Vec<ListingEntry>, Error> {
        match &mut self.0 {
            StoreListing::Nothing => Ok(Vec::new()),
            StoreListing::ObjectStore(level) => level.next(most).await,
            StoreListing::Tree(level) => level.next(most).await,
            StoreListing::Directory(directory, page) => {
                let Some(mut now) = page.take() else {
                    return Ok(Vec::new());
                };
                let (entries, left) = in_turn(directory, move |_| {
                    let entries = now.next(most)?;
                    Ok((entries, now))
                })
                .await?;
                *page = Some(left);
                Ok(entries)
            }
        }
    }
}
