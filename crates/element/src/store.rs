//! What an element asks of the place where its objects are: DESIGN §6, trait `Store`.
//!
//! Names no files and no folder; [`crate::folder`] is the embedded implementation.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tidemill_core::id::ObjectId;
use tidemill_kernel::Made;
use tidemill_kernel::locks::Shown;

/// Where an element keeps objects. Calls block; all may be made from several threads at once.
///
/// An object is unsealed from its first write until it is sealed; then it never changes and can only be
/// read or removed. An object that a mount on the same host wrote in place is like any other.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Makes an empty unsealed object; it is no error if there is one already.
    ///
    /// # Errors
    /// [`StoreError::Sealed`], [`StoreError::Full`] or [`StoreError::Device`].
    fn create(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Writes at `offset` of an unsealed object, which is made if need be. What lies between its end and
    /// `offset` reads as zeros.
    ///
    /// # Errors
    /// As for [`Store::create`].
    fn write_at(&self, object: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError>;

    /// Sets the length in bytes of an unsealed object, which is made if need be.
    ///
    /// # Errors
    /// As for [`Store::create`].
    fn truncate(&self, object: ObjectId, size: u64) -> Result<(), StoreError>;

    /// Makes an unsealed object of the first `bytes` of a sealed one, holes kept. It does not exist before it has
    /// them all; if it exists already, it stays as it is.
    ///
    /// # Errors
    /// As for [`Store::create`]; [`StoreError::NotFound`] if `from` is not there or not sealed.
    fn copy(&self, object: ObjectId, from: ObjectId, bytes: u64) -> Result<(), StoreError>;

    /// Allocates or frees the space of a range of an unsealed object, as `fallocate(2)` does by `mode`; gives the
    /// object's length in bytes.
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

    /// Sets room aside for an unsealed object of that many bytes, where room is counted; what it turns out not to need is given
    /// back with its seal.
    ///
    /// # Errors
    /// As for [`Store::create`].
    fn reserve(&self, object: ObjectId, size: u64) -> Result<(), StoreError>;

    /// Takes room for what is no object, where room is counted.
    ///
    /// # Errors
    /// [`StoreError::Full`].
    fn take_room(&self, bytes: u64) -> Result<(), StoreError>;

    /// Counts what is there of that, be there room or not.
    fn count_room(&self, bytes: u64);

    /// Gives room back that was taken so.
    fn give_room(&self, bytes: u64);

    /// Makes the bytes of an object, sealed or not, and its name survive power loss.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn sync(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Seals an object and gives its length in bytes. Sealing it again changes nothing.
    ///
    /// With `durable`, its bytes and its name survive power loss when this returns.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn seal(&self, object: ObjectId, durable: bool) -> Result<u64, StoreError>;

    /// Bytes that an object takes on this element's device, of its length: its holes take none, nor does an object that is only
    /// in the store outside.
    fn allocated(&self, object: ObjectId) -> u64;

    /// As [`Store::seal`], for an object whose writer is lost: if anybody may still have its file open for writing, the
    /// object becomes another file with the same bytes. `shown` is the file that it is a version of.
    ///
    /// # Errors
    /// As for [`Store::seal`], and [`StoreError::Full`].
    fn seal_lost(
        &self,
        object: ObjectId,
        durable: bool,
        shown: Shown<'_>,
    ) -> Result<u64, StoreError>;

    /// Takes a file on the same device, in a folder that only this process can change, as a sealed object, in place of
    /// what was there. Gives its length in bytes.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::Device`].
    fn adopt(&self, object: ObjectId, made: &Made) -> Result<u64, StoreError>;

    /// As [`Store::adopt`], into memory that is for what tasks hand to each other; `None`: there is none, or no room, and nothing
    /// has changed.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn hand_on(&self, object: ObjectId, made: &Made) -> Result<Option<u64>, StoreError>;

    /// Makes a sealed object of these bytes, of which nothing was kept here before. If it can't, there is none.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::Device`].
    fn put(&self, object: ObjectId, bytes: &[u8]) -> Result<(), StoreError>;

    /// Brings sealed objects to where they are to stay, so that they and their names survive power loss.
    fn settle(&self, objects: &[(ObjectId, Named)]) -> Vec<Result<(), StoreError>>;

    /// Makes an object of a file of the store outside, without fetching it; gives its length in bytes.
    ///
    /// # Errors
    /// [`StoreError::Outside`]; [`StoreError::Unsupported`] if this element has no such store.
    fn link(&self, object: ObjectId, path: &str) -> Result<u64, StoreError> {
        let _ = (object, path);
        Err(StoreError::Unsupported {
            source: std::io::ErrorKind::Unsupported.into(),
        })
    }

    /// Whether an object that is in a store outside is still what was put there, as that says; `None`: it is here.
    fn vouch(&self, object: ObjectId) -> Option<Result<(), StoreError>> {
        let _ = object;
        None
    }

    /// Opens an object for reading. It stays readable through this even if it is removed.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn open(&self, object: ObjectId) -> Result<Opened, StoreError>;

    /// As [`Store::open`], to read what the device has rather than what the system still has in memory, where that
    /// can be, and to leave nothing more in memory.
    ///
    /// # Errors
    /// As for [`Store::open`].
    fn open_cold(&self, object: ObjectId) -> Result<Opened, StoreError>;

    /// Takes a damaged object, or whatever is in its place, out of the way: nobody finds it any more as an object. It
    /// is kept until the object is removed or [`Store::forget_damaged`].
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn set_aside(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Opens an object that was set aside.
    ///
    /// # Errors
    /// As for [`Store::open`].
    fn open_damaged(&self, object: ObjectId) -> Result<Opened, StoreError>;

    /// Removes what was set aside of an object.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn forget_damaged(&self, object: ObjectId) -> Result<(), StoreError>;

    /// Length and state of an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::Device`].
    fn stat(&self, object: ObjectId) -> Result<Stat, StoreError>;

    /// The objects whose ids have this lowest byte, in no order.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn list(&self, folder: u8) -> Result<Vec<Entry>, StoreError>;

    /// Removes an object, and what was set aside of it; gives whether there was one.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn remove(&self, object: ObjectId) -> Result<bool, StoreError>;

    /// The file that holds an object's bytes, if the store keeps it in one on this host.
    fn local_path(&self, object: ObjectId) -> Option<PathBuf>;

    /// How much it can hold.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    fn space(&self) -> Result<Space, StoreError>;
}

/// What an object is of, for a store that others see.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Path of the file that it is a version of; empty: of none.
    pub path: String,
    /// Whether it is only a part of that.
    pub part: bool,
    /// What its bytes hash to, where that is known.
    pub hash: Option<[u8; 32]>,
}

/// Bytes that can be read at any offset from several threads.
pub trait ReadAt: Send + Sync + std::fmt::Debug {
    /// Reads into `buffer` from `offset` and gives the count; fewer than asked for only at the end.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize>;

    /// The open file that they are in, if they are in one.
    fn file(&self) -> Option<&std::fs::File> {
        None
    }
}

/// An object opened for reading.
#[derive(Debug)]
pub struct Opened {
    /// Its length and state when it was opened.
    pub stat: Stat,
    /// Its bytes.
    pub bytes: Box<dyn ReadAt>,
}

/// Length and state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Length in bytes.
    pub size: u64,
    /// Whether it is sealed.
    pub sealed: bool,
}

/// An object as [`Store::list`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The object.
    pub object: ObjectId,
    /// Length in bytes.
    pub size: u64,
    /// Whether it is sealed.
    pub sealed: bool,
    /// When it was last changed.
    pub modified: SystemTime,
}

/// How much a store can hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All.
    pub capacity_bytes: u64,
    /// Not yet taken.
    pub free_bytes: u64,
    /// The file system it is on, which may be others' too.
    pub disk: Disk,
}

impl Space {
    /// That of a store that can't be used.
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

/// A file system of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its number, as in `st_dev`.
    pub device: u64,
    /// Bytes in all.
    pub capacity_bytes: u64,
    /// Bytes not yet taken.
    pub free_bytes: u64,
}

/// Why a store can't do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such object.
    #[error("this element has no object {0:016x}", object.0)]
    NotFound {
        /// Which.
        object: ObjectId,
    },
    /// It can't be written any more.
    #[error("object {0:016x} is sealed and never changes; write a new version of its file", object.0)]
    Sealed {
        /// Which.
        object: ObjectId,
    },
    /// The device, or the quota of this element, is used up.
    #[error("this element is full; remove files on it or name another element")]
    Full,
    /// The device's file system can't do that.
    #[error("the device of this element can't do that: {source}")]
    Unsupported {
        /// What the system said.
        source: std::io::Error,
    },
    /// The store outside, where the object is or is to be.
    #[error("{path} in the store outside of this element: {why}")]
    Outside {
        /// Where in it.
        path: String,
        /// Why.
        why: crate::outside::Failure,
    },
    /// The device failed.
    #[error("the device of this element failed at {path}: {source}")]
    Device {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl StoreError {
    /// Sorts an error of the system: a full device is told apart from a failed one.
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
