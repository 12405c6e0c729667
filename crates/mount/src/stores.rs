//! The interface to stores outside of the cluster: requests that the mount makes. The mounting program implements the interface, and knows
//! the stores and their keys. The mount knows neither addresses nor protocols
//! ([0061](../../../docs/decisions/0061-remotes-in-the-mount.md)).

use bytes::Bytes;
use rustix::io::Errno;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

/// Future of a store's answer.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreFailure>> + Send + 'a>>;

/// Reason why a request to a store failed. The reason contains no key.
#[derive(Clone, Debug)]
pub struct StoreFailure {
    /// Errno that programs get. `ESTALE` means that the file has another version now.
    pub errno: Errno,
    /// Reason for the log.
    pub reason: String,
}

/// Version of a file of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Size of the version in bytes.
    pub size: u64,
    /// Tag that differs for each version.
    pub tag: String,
    /// Whether the store itself refuses to read another version than the version of the tag.
    pub checked_by_store: bool,
    /// Time of the last change, if the store reports it.
    pub modified: Option<SystemTime>,
}

/// Type of the content at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathContent {
    /// The path is a file, in this version.
    File(Content),
    /// The path is a directory.
    Directory,
}

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct DirectoryEntry {
    /// Name of the entry, without any slash.
    pub name: String,
    /// Content at the entry's path.
    pub seen: PathContent,
}

/// Stores that the mount can open by the names of their remotes.
pub trait MountStores: Debug + Send + Sync {
    /// Returns the store at an address, with the keys for its name. Repeated calls return the same store unless its address or keys have
    /// changed.
    fn open<'a>(&'a self, name: &'a str, uri: &'a str) -> StoreFuture<'a, Arc<dyn MountStore>>;
}

/// One store. Paths have no slash at their ends; the empty path is the root of the store.
pub trait MountStore: Debug + Send + Sync {
    /// Returns the content at a path.
    fn look<'a>(&'a self, path: &'a str) -> StoreFuture<'a, PathContent>;
    /// Starts to list the entries of a directory.
    fn entries<'a>(&'a self, path: &'a str) -> StoreFuture<'a, Box<dyn EntryPages>>;
    /// Reads a byte range (offset and length) of this version of a file. An empty range only checks whether the file may be read.
    fn read<'a>(
        &'a self,
        path: &'a str,
        content: &'a Content,
        range: (u64, u64),
    ) -> StoreFuture<'a, Bytes>;
}

/// Listing of a directory that is read page by page.
pub trait EntryPages: Debug + Send {
    /// Returns up to `most` further entries; an empty list at the end.
    fn next(&mut self, most: usize) -> StoreFuture<'_, Vec<DirectoryEntry>>;
}
