//! The seam to stores outside of the array: what the mount asks of them. The program that mounts knows them and their keys; the
//! mount knows neither addresses nor what speaks to them ([0063](../../../docs/decisions/0063-bridges-in-the-mount.md)).

use bytes::Bytes;
use rustix::io::Errno;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

/// An answer that is waited for.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Why a store did not do what it was asked, without any key in it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What programs are told. A file that is another one now is `ESTALE`.
    pub errno: Errno,
    /// What the log is told.
    pub reason: String,
}

/// A version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Bytes.
    pub size: u64,
    /// Another one for each version.
    pub tag: String,
    /// The store itself refuses to read another version than that of the tag.
    pub checked_by_store: bool,
    /// When it was changed, if the store says.
    pub modified: Option<SystemTime>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A file.
    File(Content),
    /// A folder.
    Folder,
}

/// One name of a folder.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Without any slash.
    pub name: String,
    /// What it is.
    pub seen: Seen,
}

/// All stores that have names.
pub trait Stores: Debug + Send + Sync {
    /// The store at an address, with the keys for its name: the same one as before unless its address or its keys have changed.
    fn open<'a>(&'a self, name: &'a str, uri: &'a str) -> Asked<'a, Arc<dyn Store>>;
}

/// One store. Paths have no slash at their ends; the empty one is its whole.
pub trait Store: Debug + Send + Sync {
    /// What is at a path.
    fn look<'a>(&'a self, path: &'a str) -> Asked<'a, Seen>;
    /// What is in a folder.
    fn entries<'a>(&'a self, path: &'a str) -> Asked<'a, Box<dyn Entries>>;
    /// A range of this version of a file, from a byte on, of so many; an empty one says whether the file may be read.
    fn read<'a>(
        &'a self,
        path: &'a str,
        content: &'a Content,
        range: (u64, u64),
    ) -> Asked<'a, Bytes>;
}

/// A listing that goes on.
pub trait Entries: Debug + Send {
    /// Some more names, so many at most; none at the end.
    fn next(&mut self, most: usize) -> Asked<'_, Vec<Entry>>;
}
