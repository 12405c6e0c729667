//! Interface between a node and the store of its objects. The module itself has no effects.
//!
//! The trait [`Store`] names no files and no directory; [`crate::directory`] is the embedded implementation.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tidemill_model::id::ObjectId;
use tidemill_sandbox::PrivateFile;
use tidemill_sandbox::locks::ProcFile;

/// Store of a node's objects. All functions block; several threads may call them concurrently.
///
/// An object is unsealed from its first write until it is sealed. A sealed object never changes and can only be read or removed. An object
/// that a mount on the same host wrote directly into the object's file also never changes.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Creates an empty unsealed object. If the object exists, the function changes nothing and succeeds.
    ///
    /// # Errors
    /// [`StoreError::Sealed`], [`StoreError::Full`] or [`StoreError::Device`].
    fn create(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Writes `data` at `offset` of an unsealed object, creating the object if necessary. A gap before `offset` reads as zeros.
    ///
    /// # Errors
    /// The errors of [`Store::create`].
    fn write_at(&self, object: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError>;

    /// Sets the length in bytes of an unsealed object, which is created if it does not exist.
    ///
    /// # Errors
    /// The errors of [`Store::create`].
    fn truncate(&self, object: ObjectId, size: u64) -> Result<(), StoreError>;

    /// Creates an unsealed object from the first `bytes` bytes of the sealed object `from`, with its holes. The new object appears only
    /// when it is complete. An existing unsealed object stays unchanged.
    ///
    /// # Errors
    /// The errors of [`Store::create`]; [`StoreError::NotFound`] if `from` does not exist or is not sealed.
    fn copy(&self, object: ObjectId, from: ObjectId, bytes: u64) -> Result<(), StoreError>;

    /// Allocates or frees space in a range of an unsealed object, as `fallocate(2)` with `mode` does. Returns the object's length in bytes.
    ///
    /// # Errors
    /// The errors of [`Store::create`].
    fn allocate(
        &self,
        object: ObjectId,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<u64, StoreError>;

    /// Reserves `size` bytes of space for an unsealed object, if this store counts space. The seal of the object releases the unused bytes.
    ///
    /// # Errors
    /// The errors of [`Store::create`].
    fn reserve(&self, object: ObjectId, size: u64) -> Result<(), StoreError>;

    /// Makes an object, sealed or not, durable: its bytes and its name survive power loss.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn sync(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Seals an object and returns its length in bytes. The seal of a sealed object changes nothing.
    ///
    /// With `durable`, the object's bytes and its name survive power loss when the function returns.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn seal(&self, object: ObjectId, durable: bool) -> Result<u64, StoreError>;

    /// Returns the bytes of an object that take space on this node's device. Holes and objects only in the backend take no space.
    fn allocated(&self, object: ObjectId) -> u64;

    /// Seals, like [`Store::seal`], an object whose writer is lost. If a process may still have the object's file open for writing, the
    /// store copies the bytes into a new file for the object. `shown` is the file whose version the object is.
    ///
    /// # Errors
    /// The errors of [`Store::seal`], and [`StoreError::Full`].
    fn seal_lost(
        &self,
        object: ObjectId,
        durable: bool,
        shown: ProcFile<'_>,
    ) -> Result<u64, StoreError>;

    /// Stores the file `made` as a sealed object, in place of an existing object. The file must be on the same device as the store, in a
    /// directory that only this process can change. Returns the object's length in bytes.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::Device`].
    fn adopt(&self, object: ObjectId, made: &PrivateFile) -> Result<u64, StoreError>;

    /// Stores a file like [`Store::adopt`], but in the memory for intermediate files. Returns `None` and changes nothing if the store has
    /// no such memory or if the memory is full.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn adopt_in_memory(
        &self,
        object: ObjectId,
        made: &PrivateFile,
    ) -> Result<Option<u64>, StoreError>;

    /// Creates a sealed object of these bytes. The store must not have the object yet. After an error, the object still does not exist.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::Device`].
    fn put(&self, object: ObjectId, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes sealed objects durable in the store's final place for them: the objects' bytes and names survive power loss.
    fn make_durable(&self, objects: &[(ObjectId, ObjectFile)]) -> Vec<Result<(), StoreError>>;

    /// Creates a stub object for a file in the backend, without fetching the file. Returns the length of the object in bytes.
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

    /// Opens an object for reading. The returned handle can read the object even after the object is removed.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn open(&self, object: ObjectId) -> Result<ReadableObject, StoreError>;

    /// Opens an object like [`Store::open`]. If possible, reads bypass the page cache.
    ///
    /// # Errors
    /// The errors of [`Store::open`].
    fn open_cold(&self, object: ObjectId) -> Result<ReadableObject, StoreError>;

    /// Sets the file of a corrupt object aside. The object no longer exists in the store. The store keeps the file until the object is
    /// removed or until [`Store::forget_corrupt`] is called.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn set_aside(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Opens the file of a corrupt object that [`Store::set_aside`] has set aside.
    ///
    /// # Errors
    /// The errors of [`Store::open`].
    fn open_corrupt(&self, object: ObjectId) -> Result<ReadableObject, StoreError>;

    /// Removes the file of a corrupt object that [`Store::set_aside`] has set aside.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn forget_corrupt(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Returns the length and the state of an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn stat(&self, object: ObjectId) -> Result<ObjectStat, StoreError>;

    /// Returns the objects whose ids have `directory` as their lowest byte, in no particular order.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn list(&self, directory: u8) -> Result<Vec<StoreEntry>, StoreError>;

    /// Removes an object and the file that [`Store::set_aside`] has set aside for the object. Returns whether the object existed.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn remove(&self, object: ObjectId) -> Result<bool, StoreError>;

    /// Returns the path of the file that holds an object's bytes, if the store keeps the object in one file on this host.
    fn local_path(&self, object: ObjectId) -> Option<PathBuf>;

    /// Returns the capacity and the free space of the store.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn space(&self) -> Result<StoreSpace, StoreError>;
}

/// File to which an object belongs, for a store whose directory tree other programs see.
#[derive(Clone, Debug, Default)]
pub struct ObjectFile {
    /// Path of the file whose version the object is; empty if the object belongs to no file.
    pub path: String,
    /// Whether the object is only a part of the file's version.
    pub part: bool,
    /// BLAKE3 hash of the object's bytes, if known.
    pub hash: Option<[u8; 32]>,
}

/// Bytes that several threads can read at any offset.
pub trait ReadAt: Send + Sync + std::fmt::Debug {
    /// Reads bytes at `offset` into `buffer` and returns their number. Only at the end, it is smaller than the buffer's length.
    ///
    /// # Errors
    /// The error of the system call.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize>;

    /// Returns the open file that holds the bytes, if one file holds all of them.
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
    /// Id of the object.
    pub object: ObjectId,
    /// Length in bytes.
    pub size: u64,
    /// Whether the object is sealed.
    pub sealed: bool,
    /// Time of the last change of the object.
    pub modified: SystemTime,
}

/// Capacity and free space of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSpace {
    /// Total size of the store in bytes.
    pub capacity_bytes: u64,
    /// Free space of the store in bytes.
    pub free_bytes: u64,
    /// File system that contains the store; other programs may use the same file system.
    pub disk: Disk,
}

impl StoreSpace {
    /// Value for a store whose space can't be determined: all sizes are 0.
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

/// File system of this host, with its size and its free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Device number of the file system, as in `st_dev`.
    pub device: u64,
    /// Total size of the file system in bytes.
    pub capacity_bytes: u64,
    /// Free space of the file system in bytes.
    pub free_bytes: u64,
}

/// Reason why a store can't execute a request.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object does not exist.
    #[error("this node has no object {0:016x}", object.0)]
    NotFound {
        /// Id of the missing object.
        object: ObjectId,
    },
    /// The object is sealed and can't be written.
    #[error("object {0:016x} is sealed and never changes; write a new version of its file", object.0)]
    Sealed {
        /// Id of the sealed object.
        object: ObjectId,
    },
    /// The device of this node is full, or the node has used up its quota.
    #[error("this node is full; remove files on it or name another node")]
    Full,
    /// The device's file system does not support the operation.
    #[error("the device of this node can't do that: {source}")]
    Unsupported {
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The backend of this node returned an error for the file of the object.
    #[error("{path} in the backend of this node: {}", why.reason())]
    Backend {
        /// Path of the file in the backend.
        path: String,
        /// Reason of the failure.
        why: tidemill_remote::Error,
    },
    /// The device of this node returned an I/O error.
    #[error("the device of this node failed at {path}: {source}")]
    Device {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
}

impl StoreError {
    /// Converts an error of a system call: a full device becomes [`StoreError::Full`], other errors name the failed path.
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
