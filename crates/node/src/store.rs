//! Interface between a node and the store of its objects. The module itself has no effects.
//!
//! It names no files and no directory; [`crate::directory`] is the embedded implementation.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tidemill_core::id::ObjectId;
use tidemill_kernel::PrivateFile;
use tidemill_kernel::locks::ProcFile;

/// Store of a node's objects. Calls block; several threads may call concurrently.
///
/// An object is unsealed from its first write until it is sealed. Afterwards it never changes and can only be read or removed. An object
/// that a mount on the same host wrote in place is treated like any other.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Creates an empty unsealed object. An existing object is no error.
    ///
    /// # Errors
    /// [`StoreError::Sealed`], [`StoreError::Full`] or [`StoreError::Device`].
    fn create(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Writes at `offset` of an unsealed object, which is created if it does not exist. A gap between its end and `offset` reads as zeros.
    ///
    /// # Errors
    /// As for [`Store::create`].
    fn write_at(&self, object: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError>;

    /// Sets the length in bytes of an unsealed object, which is created if it does not exist.
    ///
    /// # Errors
    /// As for [`Store::create`].
    fn truncate(&self, object: ObjectId, size: u64) -> Result<(), StoreError>;

    /// Creates an unsealed object from the first `bytes` of a sealed one, with its holes. The new object appears only when it is complete.
    /// An existing object stays unchanged.
    ///
    /// # Errors
    /// As for [`Store::create`]; [`StoreError::NotFound`] if `from` does not exist or is not sealed.
    fn copy(&self, object: ObjectId, from: ObjectId, bytes: u64) -> Result<(), StoreError>;

    /// Allocates or frees space in a range of an unsealed object, as `fallocate(2)` with `mode`. Returns the object's length in bytes.
    ///
    /// # Errors
    /// As for [`Store::create`].
    fn allocate(
        &self,
        object: ObjectId,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<u64, StoreError>;

    /// Reserves that many bytes for an unsealed object, if this store counts space. The seal releases unused bytes.
    ///
    /// # Errors
    /// As for [`Store::create`].
    fn reserve(&self, object: ObjectId, size: u64) -> Result<(), StoreError>;

    /// Reserves space for data that is no object, if this store counts space.
    ///
    /// # Errors
    /// [`StoreError::Full`].
    fn take_space(&self, bytes: u64) -> Result<(), StoreError>;

    /// Counts the space of existing data that is no object, even beyond the capacity.
    fn count_space(&self, bytes: u64);

    /// Releases space that `take_space` reserved.
    fn give_space(&self, bytes: u64);

    /// Makes the bytes of an object, sealed or not, and its name survive power loss.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn sync(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Seals an object and returns its length in bytes. Sealing it again changes nothing.
    ///
    /// With `durable`, its bytes and its name survive power loss when the function returns.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn seal(&self, object: ObjectId, durable: bool) -> Result<u64, StoreError>;

    /// Returns the bytes of an object that take space on this node's device. Holes take none, nor do objects that are only in the backend.
    fn allocated(&self, object: ObjectId) -> u64;

    /// Seals like [`Store::seal`] an object whose writer is lost. If a process may still have its file open for writing, the object becomes
    /// another file with the same bytes. `shown` is the file whose version the object is.
    ///
    /// # Errors
    /// As for [`Store::seal`], and [`StoreError::Full`].
    fn seal_lost(
        &self,
        object: ObjectId,
        durable: bool,
        shown: ProcFile<'_>,
    ) -> Result<u64, StoreError>;

    /// Takes a file as a sealed object, in place of an existing one. The file must be on the same device, in a directory that only this
    /// process can change. Returns its length in bytes.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::Device`].
    fn adopt(&self, object: ObjectId, made: &PrivateFile) -> Result<u64, StoreError>;

    /// Takes a file like [`Store::adopt`], into the memory for intermediate files. `None`: the store has no such memory or it is full, and
    /// nothing has changed.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn adopt_in_memory(
        &self,
        object: ObjectId,
        made: &PrivateFile,
    ) -> Result<Option<u64>, StoreError>;

    /// Creates a sealed object of these bytes. The store must not have the object yet. After an error it still has none.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::Device`].
    fn put(&self, object: ObjectId, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes sealed objects durable at their final place: they and their names survive power loss.
    fn make_durable(&self, objects: &[(ObjectId, ObjectFile)]) -> Vec<Result<(), StoreError>>;

    /// Makes a stub object of a file in the backend, without fetching it. Returns its length in bytes.
    ///
    /// # Errors
    /// [`StoreError::Backend`]; [`StoreError::Unsupported`] if this node has no backend.
    fn make_stub(&self, object: ObjectId, path: &str) -> Result<u64, StoreError> {
        let _ = (object, path);
        Err(StoreError::Unsupported {
            source: std::io::ErrorKind::Unsupported.into(),
        })
    }

    /// Returns whether the backend confirms that its file of an object is unchanged; `None` if the object is in the cache.
    fn vouch(&self, object: ObjectId) -> Option<Result<(), StoreError>> {
        let _ = object;
        None
    }

    /// Opens an object for reading. It stays readable through the result even if it is removed.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn open(&self, object: ObjectId) -> Result<ReadableObject, StoreError>;

    /// Opens like [`Store::open`]. If possible, reads come from the device, not from the page cache, and add nothing to the cache.
    ///
    /// # Errors
    /// As for [`Store::open`].
    fn open_cold(&self, object: ObjectId) -> Result<ReadableObject, StoreError>;

    /// Sets a corrupt object aside, or any file in its place. It no longer exists as an object. The file is kept until the object is
    /// removed or until [`Store::forget_corrupt`].
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn set_aside(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Opens an object that was set aside.
    ///
    /// # Errors
    /// As for [`Store::open`].
    fn open_corrupt(&self, object: ObjectId) -> Result<ReadableObject, StoreError>;

    /// Removes the file that was set aside for an object.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn forget_corrupt(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Returns length and state of an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn stat(&self, object: ObjectId) -> Result<ObjectStat, StoreError>;

    /// Returns the objects whose ids have this lowest byte, in no order.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn list(&self, directory: u8) -> Result<Vec<StoreEntry>, StoreError>;

    /// Removes an object, and the file that was set aside for it. Returns whether the object existed.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn remove(&self, object: ObjectId) -> Result<bool, StoreError>;

    /// Returns the file that holds an object's bytes, if the store keeps it in one file on this host.
    fn local_path(&self, object: ObjectId) -> Option<PathBuf>;

    /// Returns the capacity of the store.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn space(&self) -> Result<StoreSpace, StoreError>;
}

/// File of an object, for a store that other programs see.
#[derive(Clone, Debug, Default)]
pub struct ObjectFile {
    /// Path of the file whose version the object is; empty: the object belongs to no file.
    pub path: String,
    /// Whether the object is only a part of the version.
    pub part: bool,
    /// Hash of its bytes, if known.
    pub hash: Option<[u8; 32]>,
}

/// Bytes that several threads can read at any offset.
pub trait ReadAt: Send + Sync + std::fmt::Debug {
    /// Reads into `buffer` from `offset` and returns the count. The count is smaller than the buffer only at the end.
    ///
    /// # Errors
    /// The error of the system.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize>;

    /// Returns the open file that holds the bytes, if they are in one.
    fn file(&self) -> Option<&std::fs::File> {
        None
    }
}

/// Object that is open for reading.
#[derive(Debug)]
pub struct ReadableObject {
    /// Length and state of the object when it was opened.
    pub stat: ObjectStat,
    /// Bytes of the object.
    pub bytes: Box<dyn ReadAt>,
}

/// Length and state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// Length in bytes.
    pub size: u64,
    /// Whether the object is sealed.
    pub sealed: bool,
}

/// Entry of [`Store::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// Object.
    pub object: ObjectId,
    /// Length in bytes.
    pub size: u64,
    /// Whether the object is sealed.
    pub sealed: bool,
    /// Time of the last change.
    pub modified: SystemTime,
}

/// Capacity of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSpace {
    /// Total bytes.
    pub capacity_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// File system of the store, which other programs may use, too.
    pub disk: Disk,
}

impl StoreSpace {
    /// Space of a store that can't be used.
    pub(crate) const NONE: Self = Self {
        capacity_bytes: 0,
        free_bytes: 0,
        disk: Disk {
            device: 0,
            capacity_bytes: 0,
            free_bytes: 0,
        },
    };
}

/// File system of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its number, as in `st_dev`.
    pub device: u64,
    /// Total bytes.
    pub capacity_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
}

/// Reason why a store can't execute a request.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object does not exist.
    #[error("this node has no object {0:016x}", object.0)]
    NotFound {
        /// Missing object.
        object: ObjectId,
    },
    /// The object is sealed and can't be written.
    #[error("object {0:016x} is sealed and never changes; write a new version of its file", object.0)]
    Sealed {
        /// Sealed object.
        object: ObjectId,
    },
    /// The device or the quota of this node is full.
    #[error("this node is full; remove files on it or name another node")]
    Full,
    /// The device's file system does not support the operation.
    #[error("the device of this node can't do that: {source}")]
    Unsupported {
        /// Error of the system.
        source: std::io::Error,
    },
    /// The backend failed, at the path of the object.
    #[error("{path} in the backend of this node: {why}")]
    Backend {
        /// Path in the store.
        path: String,
        /// Reason of the failure.
        why: crate::backend::BackendFailure,
    },
    /// The device failed.
    #[error("the device of this node failed at {path}: {source}")]
    Device {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
}

impl StoreError {
    /// Classifies an error of the system: a full device is distinguished from a failed one.
    #[must_use]
    pub fn from_io(object: ObjectId, path: &Path, source: std::io::Error) -> Self {
        use std::io::ErrorKind;
        match source.kind() {
            ErrorKind::NotFound => Self::NotFound { object },
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full,
            ErrorKind::Unsupported => Self::Unsupported { source },
            _ => Self::Device {
                path: path.to_owned(),
                source,
            },
        }
    }
}
