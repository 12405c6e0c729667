//! The embedded [`Store`]: a folder on any local file system, one plain file an object.
//!
//! `objects/<2 hex>/<16 hex>`; unsealed files have mode 0600, sealed ones 0444 and, if the element is root,
//! the owner [`STORE_UID`], so that a task with the rights of any user can read but never change them. The
//! mode is what tells a sealed file from an unsealed one: no look-up in a database is needed.

use crate::store::{Opened, ReadAt, Space, Stat, Store, StoreError};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_core::id::ObjectId;

/// The user that owns sealed objects of an element that is root: `nobody`, as whom no task can run.
pub const STORE_UID: u32 = 65534;

const SEALED_MODE: u32 = 0o444;
const UNSEALED_MODE: u32 = 0o600;

/// Objects as files of one folder.
#[derive(Debug)]
pub struct FolderStore {
    folder: PathBuf,
    root: bool,
    quota: Option<Quota>,
}

/// Counts what the objects take, for an element that is given less than its device holds.
#[derive(Debug)]
struct Quota {
    capacity_bytes: u64,
    used_bytes: AtomicU64,
    /// What was counted for each unsealed object so far.
    unsealed: Mutex<HashMap<ObjectId, u64>>,
}

impl FolderStore {
    /// Opens the object folder under `folder`, making it if need be.
    ///
    /// With `capacity_bytes` all objects together may take that much; the folder is gone through once to
    /// count them.
    ///
    /// # Errors
    /// [`StoreError::Device`] if it can't be made or read.
    pub fn open(folder: &Path, capacity_bytes: Option<u64>) -> Result<Self, StoreError> {
        let at = |path: &Path, source| StoreError::Device {
            path: path.to_owned(),
            source,
        };
        let objects = folder.join("objects");
        for byte in 0..=0xff_u32 {
            let path = objects.join(format!("{byte:02x}"));
            std::fs::create_dir_all(&path).map_err(|source| at(&path, source))?;
        }
        std::fs::set_permissions(&objects, Permissions::from_mode(0o700))
            .map_err(|source| at(&objects, source))?;
        let mut store = Self {
            folder: folder.to_owned(),
            root: rustix::process::geteuid().is_root(),
            quota: None,
        };
        if let Some(capacity_bytes) = capacity_bytes {
            store.quota = Some(count(&objects, capacity_bytes).map_err(|s| at(&objects, s))?);
        }
        Ok(store)
    }

    fn path(&self, object: ObjectId) -> PathBuf {
        self.folder.join(object.relative_path())
    }

    /// Opens an unsealed object for writing.
    fn writable(&self, object: ObjectId) -> Result<(PathBuf, File), StoreError> {
        let path = self.path(object);
        let error = |source| StoreError::from_io(object, &path, source);
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(UNSEALED_MODE)
            .custom_flags(libc::O_NOFOLLOW);
        let file = match options.open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(StoreError::Sealed { object });
            }
            Err(e) => return Err(error(e)),
        };
        // Root may open a file of mode 0444 for writing, so the mode has to be looked at.
        if is_sealed(&file.metadata().map_err(error)?) {
            return Err(StoreError::Sealed { object });
        }
        Ok((path, file))
    }

    /// Gives a file the owner and mode of a sealed object.
    fn close_for_ever(&self, file: &File) -> std::io::Result<()> {
        if self.root {
            std::os::unix::fs::fchown(file, Some(STORE_UID), Some(STORE_UID))?;
        }
        file.set_permissions(Permissions::from_mode(SEALED_MODE))
    }
}

impl Quota {
    fn free(&self) -> u64 {
        let used = self.used_bytes.load(Ordering::Relaxed);
        self.capacity_bytes.saturating_sub(used)
    }

    /// Takes `bytes` if that many are free.
    fn take(&self, bytes: u64) -> Result<(), StoreError> {
        let fits = |used: u64| {
            used.checked_add(bytes)
                .filter(|&sum| bytes == 0 || sum <= self.capacity_bytes)
        };
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map(drop)
            .map_err(|_| StoreError::Full)
    }

    fn give_back(&self, bytes: u64) {
        // The closure never refuses, so there is always a new value.
        let _ = self
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used.saturating_sub(bytes))
            });
    }

    /// Makes sure that an unsealed object is counted with at least `size`.
    fn grow(&self, object: ObjectId, size: u64) -> Result<(), StoreError> {
        let mut unsealed = self.unsealed.lock();
        let counted = unsealed.entry(object).or_default();
        if size > *counted {
            self.take(size - *counted)?;
            *counted = size;
        }
        Ok(())
    }

    /// Counts an unsealed object with exactly `size`, be there room or not.
    fn set(&self, object: ObjectId, size: u64) {
        let mut unsealed = self.unsealed.lock();
        let counted = unsealed.entry(object).or_default();
        self.give_back(*counted);
        self.used_bytes.fetch_add(size, Ordering::Relaxed);
        *counted = size;
    }
}

/// Makes the first bytes of a file another one, which is there when it has them all.
fn copy_whole(source: &File, path: &Path, bytes: u64) -> Result<(), Errno> {
    use tidemill_client::object_file::{copy_data, name, nameless};
    if let Some(file) = nameless(path, UNSEALED_MODE) {
        copy_data(source, &file, 0, bytes)?;
        return name(&file, path);
    }
    let partial = path.with_extension("copy");
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(UNSEALED_MODE);
    let file = options.open(&partial).map_err(|e| system(&e))?;
    let copied = copy_data(source, &file, 0, bytes)
        .and_then(|()| std::fs::rename(&partial, path).map_err(|e| system(&e)));
    if copied.is_err() {
        // The error of the copy is the one to tell.
        let _ = std::fs::remove_file(&partial);
    }
    copied
}

fn system(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Makes a file and its name survive power loss.
fn sync_with_entry(file: &File, path: &Path) -> std::io::Result<()> {
    file.sync_all()?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn is_sealed(metadata: &std::fs::Metadata) -> bool {
    metadata.mode() & 0o222 == 0
}

fn count(objects: &Path, capacity_bytes: u64) -> std::io::Result<Quota> {
    let mut used = 0;
    let mut unsealed = HashMap::new();
    for folder in std::fs::read_dir(objects)? {
        for file in std::fs::read_dir(folder?.path())? {
            let file = file?;
            let metadata = file.metadata()?;
            used += metadata.len();
            let name = file.file_name();
            let id = tidemill_wire::route::parse_object(&name.to_string_lossy());
            if let Some(id) = id.filter(|_| !is_sealed(&metadata)) {
                unsealed.insert(id, metadata.len());
            }
        }
    }
    Ok(Quota {
        capacity_bytes,
        used_bytes: AtomicU64::new(used),
        unsealed: Mutex::new(unsealed),
    })
}

impl Store for FolderStore {
    fn create(&self, object: ObjectId) -> Result<(), StoreError> {
        self.writable(object).map(drop)
    }

    fn write_at(&self, object: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let (path, file) = self.writable(object)?;
        // Writing nothing beyond the end does not make the file longer.
        if let Some(quota) = &self.quota
            && !data.is_empty()
        {
            quota.grow(object, offset.saturating_add(data.len() as u64))?;
        }
        file.write_all_at(data, offset)
            .map_err(|source| StoreError::from_io(object, &path, source))
    }

    fn truncate(&self, object: ObjectId, size: u64) -> Result<(), StoreError> {
        let (path, file) = self.writable(object)?;
        if let Some(quota) = &self.quota {
            quota.grow(object, size)?;
        }
        file.set_len(size)
            .map_err(|source| StoreError::from_io(object, &path, source))?;
        if let Some(quota) = &self.quota {
            quota.set(object, size);
        }
        Ok(())
    }

    fn copy(&self, object: ObjectId, from: ObjectId, bytes: u64) -> Result<(), StoreError> {
        let (path, source) = (self.path(object), self.path(from));
        let error = |e| StoreError::from_io(object, &path, e);
        let opened = tidemill_client::object_file::open(&source);
        let source = opened.map_err(|e| StoreError::from_io(from, &source, e))?;
        let metadata = source.metadata().map_err(error)?;
        if !is_sealed(&metadata) {
            return Err(StoreError::NotFound { object: from });
        }
        if path.symlink_metadata().is_ok() {
            // The request was sent again, and the object may have been written to since.
            return self.writable(object).map(drop);
        }
        let bytes = bytes.min(metadata.len());
        if let Some(quota) = &self.quota {
            quota.grow(object, bytes)?;
        }
        copy_whole(&source, &path, bytes).map_err(|e| error(e.into()))
    }

    fn allocate(
        &self,
        object: ObjectId,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<u64, StoreError> {
        let (path, file) = self.writable(object)?;
        let error = |source| StoreError::from_io(object, &path, source);
        let mode = FallocateFlags::from_bits_retain(mode);
        if let Some(quota) = &self.quota
            && !mode.contains(FallocateFlags::KEEP_SIZE)
        {
            quota.grow(object, offset.saturating_add(length))?;
        }
        fallocate(&file, mode, offset, length).map_err(|e| error(e.into()))?;
        Ok(file.metadata().map_err(error)?.len())
    }

    fn sync(&self, object: ObjectId) -> Result<(), StoreError> {
        let path = self.path(object);
        let error = |source| StoreError::from_io(object, &path, source);
        let file = tidemill_client::object_file::open(&path).map_err(error)?;
        sync_with_entry(&file, &path).map_err(error)
    }

    fn seal(&self, object: ObjectId, durable: bool) -> Result<u64, StoreError> {
        let path = self.path(object);
        let error = |source| StoreError::from_io(object, &path, source);
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(error)?;
        let mut metadata = file.metadata().map_err(error)?;
        if !is_sealed(&metadata) {
            self.close_for_ever(&file).map_err(error)?;
            metadata = file.metadata().map_err(error)?;
            if let Some(quota) = &self.quota {
                // A mount on the same host may have written more than was ever announced here.
                quota.set(object, metadata.len());
                quota.unsealed.lock().remove(&object);
            }
        }
        if durable {
            sync_with_entry(&file, &path).map_err(error)?;
        }
        Ok(metadata.len())
    }

    fn adopt(&self, object: ObjectId, source: &Path) -> Result<u64, StoreError> {
        let error = |e| StoreError::from_io(object, source, e);
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(source)
            .map_err(error)?;
        let size = file.metadata().map_err(error)?.len();
        let path = self.path(object);
        if let Some(quota) = &self.quota {
            // The label may have run before: what its first try left is replaced.
            let before = path.symlink_metadata().map_or(0, |m| m.len());
            quota.give_back(before);
            if let Err(full) = quota.take(size) {
                quota.used_bytes.fetch_add(before, Ordering::Relaxed);
                return Err(full);
            }
            quota.unsealed.lock().remove(&object);
        }
        self.close_for_ever(&file).map_err(error)?;
        std::fs::rename(source, &path).map_err(error)?;
        Ok(size)
    }

    fn open(&self, object: ObjectId) -> Result<Opened, StoreError> {
        let path = self.path(object);
        let error = |source| StoreError::from_io(object, &path, source);
        let file = tidemill_client::object_file::open(&path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        Ok(Opened {
            stat: Stat {
                size: metadata.len(),
                sealed: is_sealed(&metadata),
            },
            bytes: Box::new(file),
        })
    }

    fn stat(&self, object: ObjectId) -> Result<Stat, StoreError> {
        let path = self.path(object);
        let metadata = path
            .symlink_metadata()
            .map_err(|source| StoreError::from_io(object, &path, source))?;
        Ok(Stat {
            size: metadata.len(),
            sealed: is_sealed(&metadata),
        })
    }

    fn remove(&self, object: ObjectId) -> Result<bool, StoreError> {
        let path = self.path(object);
        let size = self
            .quota
            .as_ref()
            .and_then(|_| path.symlink_metadata().ok())
            .map_or(0, |metadata| metadata.len());
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(StoreError::Device { path, source }),
        }
        if let Some(quota) = &self.quota {
            let counted = quota.unsealed.lock().remove(&object);
            quota.give_back(counted.unwrap_or(size));
        }
        Ok(true)
    }

    fn local_path(&self, object: ObjectId) -> Option<PathBuf> {
        Some(self.path(object))
    }

    fn space(&self) -> Result<Space, StoreError> {
        let device = rustix::fs::statvfs(&self.folder).map_err(|errno| StoreError::Device {
            path: self.folder.clone(),
            source: errno.into(),
        })?;
        let device = Space {
            capacity_bytes: device.f_blocks.saturating_mul(device.f_frsize),
            free_bytes: device.f_bavail.saturating_mul(device.f_frsize),
        };
        Ok(self.quota.as_ref().map_or(device, |quota| Space {
            capacity_bytes: quota.capacity_bytes,
            free_bytes: quota.free().min(device.free_bytes),
        }))
    }
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }
}
