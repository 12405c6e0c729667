//! The interface to stores outside of the cluster: requests that the mount makes. The mounting program implements it, and knows the stores
//! and their keys. The mount knows neither addresses nor protocols ([0061](../../../docs/decisions/0061-remotes-in-the-mount.md)).

use bytes::Bytes;
use rustix::io::Errno;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

/// A pending answer.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreFailure>> + Send + 'a>>;

/// Reason why a store failed, without any key in it.
#[derive(Clone, Debug)]
pub struct StoreFailure {
    /// Errno for programs. `ESTALE`: the file has another version now.
    pub errno: Errno,
    /// Text for the log.
    pub reason: String,
}

/// Version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Size in bytes.
    pub size: u64,
    /// Tag that differs for each version.
    pub tag: String,
    /// Whether the store itself refuses to read another version than that of the tag.
    pub checked_by_store: bool,
    /// Time of the last change, if the store reports it.
    pub modified: Option<SystemTime>,
}

/// Content at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathContent {
    /// A file.
    File(Content),
    /// A directory.
    Directory,
}

/// One name of a directory.
#[derive(Clone, Debug)]
pub struct DirectoryEntry {
    /// Name without any slash.
    pub name: String,
    /// Content of the name.
    pub seen: PathContent,
}

/// All stores that have names.
pub trait MountStores: Debug + Send + Sync {
    /// Returns the store at an address, with the keys for its name: the same store as before unless its address or its keys have changed.
    fn open<'a>(&'a self, name: &'a str, uri: &'a str) -> StoreFuture<'a, Arc<dyn MountStore>>;
}

/// One store. Paths have no slash at their ends; the empty path is the whole store.
pub trait MountStore: Debug + Send + Sync {
    /// Returns the content at a path.
    fn look<'a>(&'a self, path: &'a str) -> StoreFuture<'a, PathContent>;
    /// Returns the entries of a directory.
    fn entries<'a>(&'a self, path: &'a str) -> StoreFuture<'a, Box<dyn EntryPages>>;
    /// Reads a range of this version of a file: offset and length. An empty range only checks whether the file may be read.
    fn read<'a>(
        &'a self,
        path: &'a str,
        content: &'a Content,
        range: (u64, u64),
    ) -> StoreFuture<'a, Bytes>;
}

/// A listing that is read page by page.
pub trait EntryPages: Debug + Send {
    /// Returns up to `most` more names; none at the end.
    fn next(&mut self, most: usize) -> StoreFuture<'_, Vec<DirectoryEntry>>;
}
