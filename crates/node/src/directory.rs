//! Embedded [`Store`]: a directory on any local file system, with one plain file per object. The module uses only files below this directory.
//!
//! Objects are stored as `objects/<2 hex>/<16 hex>`. Unsealed files have mode 0600. Sealed files have mode 0444 and, if the node runs as
//! root, the owner [`STORE_USER`]. So a task with the rights of any user can read but never change them. The mode alone distinguishes
//! sealed from unsealed files: no query of a database is needed. Corrupt objects are set aside as `corrupt/<16 hex>`.
//!
//! A mode does not stop a writer that already has the file open. Where such a writer may exist, the bytes are copied to a new file under
//! `sealing/`, which then takes the object's name; see [`Store::seal_lost`].

use crate::memory_outputs::MemoryOutputs;
use crate::store::{
    Disk, ObjectFile, ObjectStat, ReadAt, ReadableObject, Store, StoreEntry, StoreError, StoreSpace,
};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tidemill_client::object_file;
use tidemill_model::id::ObjectId;
use tidemill_sandbox::locks::{self, ProcFile};
use tidemill_sandbox::{PrivateFile, STORE_USER};

/// Pause of the wait for a file that a starting process has open.
const STARTING_PAUSE: Duration = Duration::from_millis(1);
const STARTING_WAITS: u32 = 5;

const SEALED_MODE: u32 = 0o444;
const UNSEALED_MODE: u32 = 0o600;

/// Store of objects as files of one directory.
#[derive(Debug)]
pub struct DirectoryStore {
    directory: PathBuf,
    /// Device number and inode of the directory when it was opened. Another directory at the same path has another identity.
    identity: (u64, u64),
    quota: Option<Quota>,
    memory_outputs: Option<MemoryOutputs>,
}

/// Counter of the objects' bytes, for a node whose capacity is smaller than its device.
#[derive(Debug)]
struct Quota {
    capacity_bytes: u64,
    used_bytes: AtomicU64,
    /// Bytes that are counted for each unsealed object so far.
    unsealed: Mutex<HashMap<ObjectId, u64>>,
}

impl DirectoryStore {
    /// Opens the object directory under `directory`, or creates it.
    ///
    /// With `capacity_bytes`, all objects together may take at most that many bytes; the function reads the directory once to count them.
    ///
    /// # Errors
    /// [`StoreError::Device`] if the directory can't be created or read.
    pub fn open(directory: &Path, capacity_bytes: Option<u64>) -> Result<Self, StoreError> {
        let at = |path: &Path, source| StoreError::Device {
            path: path.to_owned(),
            source,
        };
        let objects = directory.join("objects");
        for byte in 0..=0xff_u32 {
            let path = objects.join(format!("{byte:02x}"));
            std::fs::create_dir_all(&path).map_err(|source| at(&path, source))?;
        }
        let sealing = directory.join("sealing");
        empty(&sealing).map_err(|source| at(&sealing, source))?;
        let corrupt = directory.join("corrupt");
        std::fs::create_dir_all(&corrupt).map_err(|source| at(&corrupt, source))?;
        for private in [&objects, &sealing, &corrupt] {
            std::fs::set_permissions(private, Permissions::from_mode(0o700))
                .map_err(|source| at(private, source))?;
        }
        let identity = rustix::fs::stat(directory).map_err(|errno| at(directory, errno.into()))?;
        let mut store = Self {
            directory: directory.to_owned(),
            identity: (identity.st_dev, identity.st_ino),
            quota: None,
            memory_outputs: None,
        };
        if let Some(capacity_bytes) = capacity_bytes {
            store.quota = Some(count(&objects, capacity_bytes).map_err(|s| at(&objects, s))?);
        }
        Ok(store)
    }

    /// Adds memory for intermediate files of jobs to the store.
    ///
    /// # Errors
    /// [`StoreError::Device`] if the objects in memory can't be listed.
    pub(crate) fn with_memory(mut self, capacity_bytes: u64) -> Result<Self, StoreError> {
        let memory_outputs = MemoryOutputs::open(&self.directory, capacity_bytes);
        self.memory_outputs = Some(memory_outputs.map_err(|source| StoreError::Device {
            path: self.directory.join(crate::memory_outputs::DIRECTORY),
            source,
        })?);
        Ok(self)
    }

    fn path(&self, object: ObjectId) -> PathBuf {
        let memory_outputs = self
            .memory_outputs
            .as_ref()
            .and_then(|memory_outputs| memory_outputs.find(object));
        memory_outputs.unwrap_or_else(|| self.on_disk(object))
    }

    fn on_disk(&self, object: ObjectId) -> PathBuf {
        self.directory.join(object.relative_path())
    }

    /// Returns the path of the file that is set aside for a corrupt object.
    fn corrupt_path(&self, object: ObjectId) -> PathBuf {
        self.directory
            .join("corrupt")
            .join(format!("{:016x}", object.0))
    }

    /// Opens an object's file for reading.
    fn open_file(&self, object: ObjectId, path: &Path) -> Result<(File, ObjectStat), StoreError> {
        let error = |source| StoreError::from_io(object, path, source);
        let file = object_file::open(path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        let stat = ObjectStat {
            size: metadata.len(),
            sealed: is_sealed(&metadata),
        };
        Ok((file, stat))
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
        // Root can open a file of mode 0444 for writing, so the mode must be checked.
        if is_sealed(&file.metadata().map_err(error)?) {
            return Err(StoreError::Sealed { object });
        }
        Ok((path, file))
    }

    /// Copies an object's sealed file to a new sealed file if a process may have the file open for writing. Returns the path of the new
    /// file; `None` if no copy is needed. `unknown` is the assumption if Linux can't tell, `shown` the file that users see.
    fn copy_for_writers(
        &self,
        object: ObjectId,
        file: &File,
        unknown: bool,
        shown: Option<ProcFile<'_>>,
    ) -> std::io::Result<Option<PathBuf>> {
        let mut writers = locks::has_writers(file);
        let mut waits = 0;
        // A process that is just being started holds the open files of this process until it calls exec.
        while writers == Some(true) && waits < STARTING_WAITS {
            waits += 1;
            std::thread::sleep(STARTING_PAUSE);
            writers = locks::has_writers(file);
        }
        if !writers.unwrap_or(unknown) {
            return Ok(None);
        }
        let own = self
            .directory
            .join("sealing")
            .join(format!("{:016x}", object.0));
        let copied = copy_with_holes(file, &own).and_then(|copy| {
            close_for_ever(&copy)?;
            // Bytes that the writer has synced must stay durable.
            copy.sync_all()
        });
        copied.inspect_err(|_| drop(std::fs::remove_file(&own)))?;
        let name = format!("{:016x}", object.0);
        let own_file = ProcFile {
            inode: file.metadata()?.ino(),
            name: name.as_ref(),
        };
        let files: Vec<ProcFile<'_>> = shown.into_iter().chain([own_file]).collect();
        tracing::warn!(
            object = name,
            writers = locks::who_writes(&files),
            "an object is sealed as a copy: {}",
            if writers.is_some() {
                "a process still has it open for writing"
            } else {
                "this file system can't tell whether a process still has it open for writing"
            }
        );
        Ok(Some(own))
    }

    /// Seals an object and returns its length in bytes. `lost` is the file that users see, if the object's writer is lost.
    fn seal_as(
        &self,
        object: ObjectId,
        durable: bool,
        lost: Option<ProcFile<'_>>,
    ) -> Result<u64, StoreError> {
        let path = self.path(object);
        let error = |source| StoreError::from_io(object, &path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(error)?;
        let fresh = !is_sealed(&file.metadata().map_err(error)?);
        if fresh {
            close_for_ever(&file).map_err(error)?;
        }
        if lost.is_some() {
            // This check follows the change of the mode, so that no process can become a writer between the two.
            let copy = self.copy_for_writers(object, &file, true, lost);
            if let Some(copy) = copy.map_err(error)? {
                std::fs::rename(&copy, &path).map_err(error)?;
                file = File::open(&path).map_err(error)?;
            }
        }
        let size = file.metadata().map_err(error)?.len();
        if let Some(quota) = self.quota.as_ref().filter(|_| fresh) {
            // A mount on the same host may have written more than it announced to this node.
            quota.set(object, size);
            quota.unsealed.lock().remove(&object);
        }
        if durable {
            file.sync_all().map_err(error)?;
            if let Some(parent) = path.parent() {
                File::open(parent)
                    .and_then(|directory| directory.sync_all())
                    .map_err(error)?;
            }
        }
        Ok(size)
    }
}

/// Returns the number of bytes of a file that have space on the device: all bytes except the file's holes.
pub(crate) fn allocated(metadata: &Metadata) -> u64 {
    /// Bytes per unit of `st_blocks`.
    const BLOCK: u64 = 512;
    let blocks = metadata.blocks().saturating_mul(BLOCK);
    metadata.len().min(blocks)
}

/// Gives a file the owner and mode of a sealed object.
pub(crate) fn close_for_ever(file: &File) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::fchown(file, Some(STORE_USER.uid), Some(STORE_USER.gid))?;
    }
    file.set_permissions(Permissions::from_mode(SEALED_MODE))
}

impl Quota {
    fn free(&self) -> u64 {
        let used = self.used_bytes.load(Ordering::Relaxed);
        self.capacity_bytes.saturating_sub(used)
    }

    /// Adds `bytes` to the used bytes if that many bytes are free.
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

    /// Ensures that at least `size` bytes are counted for an unsealed object.
    fn grow(&self, object: ObjectId, size: u64) -> Result<(), StoreError> {
        let mut unsealed = self.unsealed.lock();
        let counted = unsealed.entry(object).or_default();
        if size > *counted {
            self.take(size - *counted)?;
            *counted = size;
        }
        Ok(())
    }

    /// Counts `size` bytes for a new file of an object. If the label ran before, this count replaces the first run's count.
    fn replace(&self, object: ObjectId, path: &Path, size: u64) -> Result<(), StoreError> {
        let before = path.symlink_metadata().map_or(0, |m| m.len());
        self.give_back(before);
        if let Err(full) = self.take(size) {
            self.used_bytes.fetch_add(before, Ordering::Relaxed);
            return Err(full);
        }
        self.unsealed.lock().remove(&object);
        Ok(())
    }

    /// Sets the counted bytes of an unsealed object to `size`, even beyond the capacity.
    fn set(&self, object: ObjectId, size: u64) {
        let mut unsealed = self.unsealed.lock();
        let counted = unsealed.entry(object).or_default();
        self.give_back(*counted);
        self.used_bytes.fetch_add(size, Ordering::Relaxed);
        *counted = size;
    }
}

/// Copies the first `bytes` bytes of a file to a new file, which appears only when it is complete.
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
        // The caller reports the error of the copy.
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
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn is_sealed(metadata: &std::fs::Metadata) -> bool {
    metadata.mode() & 0o222 == 0
}

/// Returns the time of the last change of a file's bytes, mode or name (ctime). Unlike the mtime, a new hard link changes it, too.
fn changed(metadata: &std::fs::Metadata) -> SystemTime {
    let since = std::time::Duration::new(
        u64::try_from(metadata.ctime()).unwrap_or(0),
        u32::try_from(metadata.ctime_nsec()).unwrap_or(0),
    );
    SystemTime::UNIX_EPOCH + since
}

/// Creates a directory, or removes all its content. The directory itself stays: a full device may have no space to create it again.
pub(crate) fn empty(directory: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            tidemill_sandbox::remove_directory(&entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Copies a file to a new file, with its holes and its time of modification.
pub(crate) fn copy_with_holes(from: &File, path: &Path) -> std::io::Result<File> {
    use rustix::fs::SeekFrom::{Data, Hole};
    let to = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(UNSEALED_MODE)
        .open(path)?;
    let metadata = from.metadata()?;
    let mut offset = 0;
    // After the last data, the seek fails.
    while let Ok(start) = rustix::fs::seek(from, Data(offset)) {
        let end = rustix::fs::seek(from, Hole(start))?;
        copy_range(from, &to, start, end)?;
        offset = end;
    }
    to.set_len(metadata.len())?;
    let modified = metadata.modified()?;
    to.set_times(std::fs::FileTimes::new().set_modified(modified))?;
    Ok(to)
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> std::io::Result<()> {
    use rustix::fs::{SeekFrom, copy_file_range, seek, sendfile};
    let (mut read, mut written) = (start, start);
    while read < end {
        let rest = usize::try_from(end - read).unwrap_or(usize::MAX);
        let copied = match copy_file_range(from, Some(&mut read), to, Some(&mut written), rest) {
            // The target is on another file system, such as one in memory.
            Err(Errno::XDEV) => {
                seek(to, SeekFrom::Start(read))?;
                let copied = sendfile(to, from, Some(&mut read), rest)?;
                written = read;
                copied
            }
            copied => copied?,
        };
        if copied == 0 {
            // The source became shorter during the copy.
            break;
        }
    }
    Ok(())
}

fn count(objects: &Path, capacity_bytes: u64) -> std::io::Result<Quota> {
    let mut used = 0;
    let mut unsealed = HashMap::new();
    for directory in std::fs::read_dir(objects)? {
        for file in std::fs::read_dir(directory?.path())? {
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

impl Store for DirectoryStore {
    fn create(&self, object: ObjectId) -> Result<(), StoreError> {
        self.writable(object).map(drop)
    }

    fn write_at(&self, object: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let (path, file) = self.writable(object)?;
        // An empty write beyond the end does not make the file longer.
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
            // The request was sent again, and the object may have been changed since the first copy.
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

    fn reserve(&self, object: ObjectId, size: u64) -> Result<(), StoreError> {
        self.writable(object)?;
        match &self.quota {
            Some(quota) => quota.grow(object, size),
            None => Ok(()),
        }
    }

    fn sync(&self, object: ObjectId) -> Result<(), StoreError> {
        let path = self.path(object);
        let error = |source| StoreError::from_io(object, &path, source);
        let file = tidemill_client::object_file::open(&path).map_err(error)?;
        sync_with_entry(&file, &path).map_err(error)
    }

    fn seal(&self, object: ObjectId, durable: bool) -> Result<u64, StoreError> {
        self.seal_as(object, durable, None)
    }

    fn allocated(&self, object: ObjectId) -> u64 {
        let metadata = self.path(object).symlink_metadata();
        metadata.map_or(0, |metadata| allocated(&metadata))
    }

    fn seal_lost(
        &self,
        object: ObjectId,
        durable: bool,
        shown: ProcFile<'_>,
    ) -> Result<u64, StoreError> {
        self.seal_as(object, durable, Some(shown))
    }

    fn adopt_in_memory(
        &self,
        object: ObjectId,
        made: &PrivateFile,
    ) -> Result<Option<u64>, StoreError> {
        let Some(memory_outputs) = &self.memory_outputs else {
            return Ok(None);
        };
        let path = self.on_disk(object);
        let error = |e| StoreError::from_io(object, &path, e);
        let size = made.size().map_err(error)?;
        if !memory_outputs.take(object, made.file(), size) {
            return Ok(None);
        }
        made.remove().map_err(error)?;
        // The label may have run before, when the memory was full.
        if let Ok(metadata) = path.symlink_metadata() {
            std::fs::remove_file(&path).map_err(error)?;
            if let Some(quota) = &self.quota {
                quota.give_back(metadata.len());
            }
        }
        Ok(Some(size))
    }

    fn adopt(&self, object: ObjectId, made: &PrivateFile) -> Result<u64, StoreError> {
        if let Some(memory_outputs) = &self.memory_outputs {
            memory_outputs.forget(object);
        }
        let path = self.path(object);
        let error = |e| StoreError::from_io(object, &path, e);
        let file = made.file();
        let size = made.size().map_err(error)?;
        if let Some(quota) = &self.quota {
            quota.replace(object, &path, size)?;
        }
        close_for_ever(file).map_err(error)?;
        // The processes of the kernel have ended. If the system can't tell, no writer is assumed.
        match self
            .copy_for_writers(object, file, false, None)
            .map_err(error)?
        {
            None => made.move_to(&path).map_err(error)?,
            Some(copy) => {
                std::fs::rename(copy, &path).map_err(error)?;
                made.remove().map_err(error)?;
            }
        }
        Ok(size)
    }

    fn put(&self, object: ObjectId, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.path(object);
        let size = bytes.len() as u64;
        if let Some(quota) = &self.quota {
            quota.replace(object, &path, size)?;
        }
        let put = || {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // The file is created in its final directory: a file system stores the files of one directory close together.
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(UNSEALED_MODE);
            let file = options.open(&path)?;
            file.write_all_at(bytes, 0)?;
            close_for_ever(&file)
        };
        put().map_err(|error| {
            // The caller reports the error of the write.
            let _ = std::fs::remove_file(&path);
            if let Some(quota) = &self.quota {
                quota.give_back(size);
            }
            StoreError::from_io(object, &path, error)
        })
    }

    fn make_durable(&self, objects: &[(ObjectId, ObjectFile)]) -> Vec<Result<(), StoreError>> {
        if let [(object, _)] = objects {
            return vec![self.sync(*object)];
        }
        let flush = || {
            File::open(&self.directory).and_then(|directory| Ok(rustix::fs::syncfs(&directory)?))
        };
        let flushed = flush().map_err(|error| (error.kind(), error.to_string()));
        let durable = |_| {
            flushed
                .clone()
                .map_err(|(kind, reported)| StoreError::Device {
                    path: self.directory.clone(),
                    source: std::io::Error::new(kind, reported),
                })
        };
        objects.iter().map(durable).collect()
    }

    fn list(&self, directory: u8) -> Result<Vec<StoreEntry>, StoreError> {
        let path = self
            .directory
            .join("objects")
            .join(format!("{directory:02x}"));
        let at = |source| StoreError::Device {
            path: path.clone(),
            source,
        };
        let mut entries = Vec::new();
        for file in std::fs::read_dir(&path).map_err(at)? {
            let file = file.map_err(at)?;
            let name = file.file_name();
            let Some(object) = tidemill_wire::route::parse_object(&name.to_string_lossy()) else {
                continue;
            };
            match file.metadata() {
                Ok(metadata) => entries.push(StoreEntry {
                    object,
                    size: metadata.len(),
                    sealed: is_sealed(&metadata),
                    modified: changed(&metadata),
                }),
                // The file was removed during the listing.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(error)),
            }
        }
        let memory_outputs = self.memory_outputs.as_ref();
        let memory_outputs = memory_outputs
            .map(MemoryOutputs::objects)
            .unwrap_or_default();
        let here = |object: &ObjectId| object.0 & 0xff == u64::from(directory);
        for object in memory_outputs.into_iter().filter(here) {
            if let Ok(metadata) = self.path(object).symlink_metadata() {
                entries.push(StoreEntry {
                    object,
                    size: metadata.len(),
                    sealed: is_sealed(&metadata),
                    modified: changed(&metadata),
                });
            }
        }
        Ok(entries)
    }

    fn open(&self, object: ObjectId) -> Result<ReadableObject, StoreError> {
        let (file, stat) = self.open_file(object, &self.path(object))?;
        Ok(ReadableObject {
            stat,
            bytes: Box::new(file),
        })
    }

    fn open_cold(&self, object: ObjectId) -> Result<ReadableObject, StoreError> {
        let (file, stat) = self.open_file(object, &self.path(object))?;
        Ok(ReadableObject {
            stat,
            bytes: Box::new(Cold::new(file, stat.size)),
        })
    }

    fn set_aside(&self, object: ObjectId) -> Result<(), StoreError> {
        if let Some(memory_outputs) = &self.memory_outputs
            && memory_outputs.forget(object)
        {
            return Ok(());
        }
        let path = self.path(object);
        match std::fs::rename(&path, self.corrupt_path(object)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::from_io(object, &path, e))
            }
            _ => Ok(()),
        }
    }

    fn open_corrupt(&self, object: ObjectId) -> Result<ReadableObject, StoreError> {
        let (file, stat) = self.open_file(object, &self.corrupt_path(object))?;
        Ok(ReadableObject {
            stat,
            bytes: Box::new(file),
        })
    }

    fn forget_corrupt(&self, object: ObjectId) -> Result<(), StoreError> {
        let path = self.corrupt_path(object);
        let Ok(metadata) = path.symlink_metadata() else {
            return Ok(());
        };
        let removed = if metadata.is_dir() {
            tidemill_sandbox::remove_directory(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.map_err(|source| StoreError::Device { path, source })?;
        if let Some(quota) = &self.quota {
            quota.give_back(metadata.len());
        }
        Ok(())
    }

    fn stat(&self, object: ObjectId) -> Result<ObjectStat, StoreError> {
        let path = self.path(object);
        let metadata = path
            .symlink_metadata()
            .map_err(|source| StoreError::from_io(object, &path, source))?;
        Ok(ObjectStat {
            size: metadata.len(),
            sealed: is_sealed(&metadata),
        })
    }

    fn remove(&self, object: ObjectId) -> Result<bool, StoreError> {
        self.forget_corrupt(object)?;
        if let Some(memory_outputs) = &self.memory_outputs
            && memory_outputs.forget(object)
        {
            return Ok(true);
        }
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

    fn space(&self) -> Result<StoreSpace, StoreError> {
        let at = |errno: rustix::io::Errno| StoreError::Device {
            path: self.directory.clone(),
            source: errno.into(),
        };
        let directory = rustix::fs::stat(&self.directory).map_err(at)?;
        if (directory.st_dev, directory.st_ino) != self.identity {
            return Err(StoreError::Device {
                path: self.directory.clone(),
                source: std::io::Error::other(
                    "the path is another directory now: its file system was unmounted, or it was replaced",
                ),
            });
        }
        let counts = rustix::fs::statvfs(&self.directory).map_err(at)?;
        let disk = Disk {
            device: directory.st_dev,
            capacity_bytes: counts.f_blocks.saturating_mul(counts.f_frsize),
            free_bytes: counts.f_bavail.saturating_mul(counts.f_frsize),
        };
        let (capacity_bytes, free_bytes) = match &self.quota {
            Some(quota) => (quota.capacity_bytes, quota.free().min(disk.free_bytes)),
            None => (disk.capacity_bytes, disk.free_bytes),
        };
        Ok(StoreSpace {
            capacity_bytes,
            free_bytes,
            disk,
        })
    }
}

/// File that is read from its device, bypassing the page cache, if the file system supports direct I/O. Otherwise reads use the page cache
/// and drop the pages afterwards.
#[derive(Debug)]
struct Cold {
    file: File,
    size: u64,
    past_memory: AtomicBool,
}

/// Unit of direct reads in bytes: the length, the offset in the file and the address in memory of each read are multiples of it.
const BLOCK_BYTES: usize = 4096;

impl Cold {
    fn new(file: File, size: u64) -> Self {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let direct =
            fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT));
        Self {
            file,
            size,
            past_memory: AtomicBool::new(direct.is_ok()),
        }
    }

    /// Switches to reads through the page cache.
    fn through_memory(&self) -> std::io::Result<()> {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        self.past_memory.store(false, Ordering::Relaxed);
        Ok(fcntl_setfl(
            &self.file,
            fcntl_getfl(&self.file)? - OFlags::DIRECT,
        )?)
    }
}

impl ReadAt for Cold {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.past_memory.load(Ordering::Relaxed) {
            let in_blocks = buffer.as_ptr().align_offset(BLOCK_BYTES) == 0
                && buffer.len().is_multiple_of(BLOCK_BYTES)
                && offset.is_multiple_of(BLOCK_BYTES as u64);
            if in_blocks {
                let rest = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
                match FileExt::read_at(&self.file, buffer, offset) {
                    Ok(count) if count == buffer.len().min(rest) => return Ok(count),
                    // The read was short, or direct reads are not supported here.
                    Ok(_) => {}
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                    Err(error) => return Err(error),
                }
            }
            self.through_memory()?;
        }
        let count = ReadAt::read_at(&self.file, offset, buffer)?;
        let length = std::num::NonZeroU64::new(count as u64);
        // This is only advice.
        let _ = rustix::fs::fadvise(&self.file, offset, length, rustix::fs::Advice::DontNeed);
        Ok(count)
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

    fn file(&self) -> Option<&File> {
        Some(self)
    }
}
