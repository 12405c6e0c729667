//! Open files: reads, writes, syncs and closes by handle, through `object`. The mount seals closed versions (next: `mount/src/fs/seal.rs`).

use super::object::OpenObject;
use super::table::{AliasObject, CachedInode, CachingMode, VersionPhase, WrittenVersion};
use super::version::object_path;
use super::{Caller, Fs, InodeKey, LookupResult, WaitPolicy};
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An open file. The file's bytes are the bytes of the object that its alias is bound to. The object changes when programs on this mount
/// continue with the next version.
#[derive(Debug)]
pub(crate) struct FileHandle {
    pub(crate) key: InodeKey,
    pub(crate) vnode: Arc<CachedInode>,
    write: bool,
    /// Caller that opened the file.
    pub(super) caller: Caller,
    /// Whether the open still has to truncate the file.
    cut: Mutex<bool>,
}

impl FileHandle {
    fn object(&self) -> Result<Arc<OpenObject>, Error> {
        let state = self.vnode.state.lock();
        let bound = state.bound.get(&self.key.alias).ok_or(Errno::BADF)?;
        Ok(bound.object.clone())
    }

    /// Returns the object that the handle writes. A version that is sealed, or about to be sealed, is never written.
    fn written(&self) -> Result<Arc<OpenObject>, Error> {
        if !self.write {
            return Err(Errno::BADF.into());
        }
        let object = self.object()?;
        let state = self.vnode.state.lock();
        let writing = state
            .writing
            .as_ref()
            .filter(|w| w.phase == VersionPhase::Open);
        let written = writing.and_then(|w| w.object.as_ref());
        if written.is_some_and(|written| written.id == object.id) {
            return Ok(object);
        }
        drop(state);
        tracing::error!(
            ino = self.key.ino,
            object = object.id,
            "a write was refused: the version is sealed, or the mount is being unmounted"
        );
        Err(Errno::IO.into())
    }

    /// Whether the handle has the file `ino` open for writing.
    pub(super) fn writes(&self, ino: u64) -> bool {
        self.write && self.key.ino == ino
    }

    /// Whether the handle is for writing and has no version yet.
    fn is_idle(&self) -> bool {
        let state = self.vnode.state.lock();
        let written = state
            .writing
            .as_ref()
            .filter(|w| w.phase == VersionPhase::Open);
        let bound = state.bound.get(&self.key.alias);
        let bound = bound.filter(|bound| !bound.is_direct());
        let follows = |bound: &AliasObject, written: &WrittenVersion| {
            let written = written.object.as_ref();
            written.is_some_and(|written| written.id == bound.object.id)
        };
        match (bound, written) {
            (Some(bound), Some(written)) => self.write && !follows(bound, written),
            (Some(_), None) => self.write && state.idle_writers > 0,
            (None, _) => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenHow {
    pub(crate) write: bool,
    /// Whether the file is opened for reading and writing.
    pub(crate) update: bool,
    pub(crate) truncate: bool,
    /// Whether the open may [follow](OpenedFile::followed) the writer of a file.
    pub(crate) follows: bool,
}

/// Description of an open file for the Linux kernel.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) handle: u64,
    /// File that the Linux kernel may read and write directly.
    pub(crate) local: Option<Arc<File>>,
    /// Object id, so that the Linux kernel keeps the pages that it has of the object.
    pub(crate) object: u64,
    /// Whether the Linux kernel may keep all pages; otherwise it may keep only pages of mapped memory.
    pub(crate) cached: bool,
    /// Whether the file is open for writing.
    pub(crate) write: bool,
    /// Whether the Linux kernel has to report the close of each descriptor, because the close may release locks.
    pub(crate) flush: bool,
    /// Whether the handle uses none of the file's versions, but follows the version that is being written.
    pub(crate) followed: bool,
}

impl OpenedFile {
    /// Returns the description of a followed file, for which the Linux kernel keeps no pages.
    fn followed(handle: u64) -> Self {
        Self {
            handle,
            local: None,
            object: 0,
            cached: false,
            write: false,
            flush: false,
            followed: true,
        }
    }
}

/// Maximum number of attempts of an open for reading to find the current version, which other clients change.
const READ_TRIES: u32 = 16;

impl Fs {
    pub(crate) fn open(
        &self,
        caller: Caller,
        key: InodeKey,
        how: OpenHow,
        pace: WaitPolicy,
    ) -> Result<OpenedFile, Error> {
        let vnode = self.vnode(key.ino);
        let write = how.write || how.truncate;
        if how.follows
            && !write
            && let Some(handle) = self.follow_writer(caller, &vnode, pace)?
        {
            return Ok(OpenedFile::followed(handle));
        }
        let cut = if write {
            self.bind_writer(caller, key, &vnode, how, pace)?
        } else {
            self.bind_reader(caller, key, &vnode, pace)?;
            false
        };
        let opened = self.opened(caller, (key, vnode), OpenHow { write, ..how }, cut)?;
        if write && let Err(error) = self.drop_privileges_of(caller, opened.handle, pace) {
            self.release(caller, opened.handle);
            return Err(error);
        }
        Ok(opened)
    }

    fn drop_privileges_of(
        &self,
        caller: Caller,
        handle: u64,
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        let vnode = self.file(handle)?.vnode.clone();
        self.drop_privileges(caller, &vnode, pace)
    }

    /// Binds the alias to the object that a reader of the file gets now.
    fn bind_reader(
        &self,
        caller: Caller,
        key: InodeKey,
        vnode: &Arc<CachedInode>,
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let object = self.reading_object(caller, vnode, pace)?;
            if let Some(multi_writer) = object.multi_writer() {
                pace.wait()?;
                // If the server has sealed the version that is being sealed here, others may have written a later version.
                if !multi_writer.refresh(true)? && vnode.state.lock().is_sealing() {
                    self.wait_sealed(vnode)?;
                    continue;
                }
            }
            let mut state = vnode.state.lock();
            tries += 1;
            // A version may have been begun or sealed in the meantime.
            if state.is_current(object.id) || tries == READ_TRIES {
                // A file that others lock may have to show a later version.
                let shared = state.attr.locked || object.multi_writer().is_some();
                state.bind(key, &object, self.way(&object, shared))?;
                if state.is_sealing() && object.waits() {
                    self.hold_after_seal(caller, vnode.clone(), object.id);
                }
                return Ok(());
            }
        }
    }

    /// Creates a file and opens it.
    pub(crate) fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        (mode, how): (u32, OpenHow),
        pace: WaitPolicy,
    ) -> Result<(LookupResult, OpenedFile), Error> {
        super::names::check_change(parent, name, Errno::EXIST)?;
        pace.wait()?;
        let (vnode, found) = self.create_open(caller, parent, name, mode)?;
        let opened = self.opened(caller, (found.key, vnode), how, false)?;
        Ok((found, opened))
    }

    /// Returns the handle of a file whose alias was bound before.
    fn opened(
        &self,
        caller: Caller,
        (key, vnode): (InodeKey, Arc<CachedInode>),
        how: OpenHow,
        cut: bool,
    ) -> Result<OpenedFile, Error> {
        let write = how.write;
        let handle = self.handle_number();
        let (object, way, locked) = {
            let state = vnode.state.lock();
            let bound = state.bound.get(&key.alias).ok_or(Errno::BADF)?;
            (bound.object.clone(), bound.way, state.attr.locked)
        };
        let direct = way == CachingMode::Direct;
        let flush = !direct || how.update || locked || self.locks.knows(key.ino);
        let opened = OpenedFile {
            handle,
            local: object.local().filter(|_| direct).cloned(),
            object: match object.multi_writer() {
                Some(_) => u64::MAX - handle,
                None => object.id,
            },
            cached: way != CachingMode::Uncached,
            write,
            flush,
            followed: false,
        };
        let file = FileHandle {
            key,
            vnode,
            write,
            caller,
            cut: Mutex::new(cut),
        };
        self.files.lock().insert(handle, Arc::new(file));
        Ok(opened)
    }

    /// Returns the object that a handle writes; begins a version if the file's handles have none yet.
    fn to_write(&self, file: &FileHandle, pace: WaitPolicy) -> Result<Arc<OpenObject>, Error> {
        if file.is_idle() {
            pace.wait()?;
            self.resume(file, if *file.cut.lock() { 0 } else { u64::MAX })?;
        }
        let object = file.written()?;
        let mut cut = file.cut.lock();
        if *cut {
            pace.wait()?;
            // The version may have been begun for another handle, without truncation.
            object.truncate(0)?;
            *cut = false;
        }
        drop(cut);
        Ok(object)
    }

    pub(super) fn file(&self, handle: u64) -> Result<Arc<FileHandle>, Error> {
        let files = self.files.lock();
        files
            .get(&handle)
            .cloned()
            .ok_or_else(|| Errno::BADF.into())
    }

    pub(crate) fn read(
        &self,
        handle: u64,
        offset: u64,
        length: usize,
        pace: WaitPolicy,
    ) -> Result<Vec<u8>, Error> {
        let object = self.file(handle)?.object()?;
        if object.waits() {
            pace.wait()?;
        }
        object.read(offset, length)
    }

    /// Writes bytes at `offset` of an open file.
    pub(crate) fn write(
        &self,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        let file = self.file(handle)?;
        self.change(&file, pace, |object| object.write(offset, bytes))
    }

    /// Writes at the end of the file, which other clients may have moved; the Linux kernel assumes that the end is at `offset`.
    pub(crate) fn append(
        &self,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        let file = self.file(handle)?;
        let end = self.change(&file, pace, |object| {
            let _one = file.vnode.appends.lock();
            let end = object.stat()?.size;
            object.write(end, bytes).map(|()| end)
        })?;
        if end != offset {
            // The kernel has these bytes in the wrong place.
            self.forget_pages_soon(file.key.pack());
        }
        Ok(())
    }

    /// Executes a change of an open file's bytes.
    fn change<T>(
        &self,
        file: &FileHandle,
        pace: WaitPolicy,
        change: impl Fn(&OpenObject) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let turn = Self::write_turn(&file.vnode, pace)?;
        let object = self.to_write(file, pace)?;
        if object.waits() {
            pace.wait()?;
        }
        let changed = match change(&object) {
            Ok(changed) => changed,
            Err(error) => {
                self.make_space(&object, error, pace)?;
                change(&object)?
            }
        };
        drop(turn);
        // In the background, because another alias may be written, too: the kernel holds its pages until that write is answered. The next holder
        // of a lock waits for it.
        self.forget_aliases_soon(&file.vnode, file.key.alias);
        Ok(changed)
    }

    /// Handles the close of one descriptor of an open file, which is the last time to report write errors.
    pub(crate) fn flush(&self, handle: u64, pace: WaitPolicy) -> Result<(), Error> {
        let file = self.file(handle)?;
        if *file.cut.lock() {
            // No program wrote; the file has to be truncated all the same.
            pace.wait()?;
            let _turn = Self::write_turn(&file.vnode, pace)?;
            self.to_write(&file, pace)?;
        }
        let object = file.object()?;
        if !file.write || !object.waits() {
            return Ok(());
        }
        pace.wait()?;
        object.flush()
    }

    /// Sets the mtime of the open version, for its seal.
    pub(crate) fn date(&self, handle: u64, mtime: i64) -> Result<(), Error> {
        self.file(handle)?.object()?.set_mtime(mtime)
    }

    /// Makes the bytes and the name of the file survive power loss, whichever client wrote them: the bytes of the open version, the bytes
    /// of the version that is being written on this mount, and its seal if it was closed already.
    pub(crate) fn fsync(&self, caller: Caller, handle: u64, pace: WaitPolicy) -> Result<(), Error> {
        let file = self.file(handle)?;
        pace.wait()?;
        let object = file.object()?;
        self.sync_object(&object)?;
        let written = file.vnode.state.lock().written().cloned();
        if let Some(written) = written.filter(|written| written.id != object.id) {
            self.sync_object(&written)?;
        }
        self.wait_sealed(&file.vnode)?;
        self.tell_pending(caller, &file.vnode)?;
        self.sync_names(caller)
    }

    fn sync_object(&self, object: &OpenObject) -> Result<(), Error> {
        object.sync()?;
        for part in object.parts() {
            if part.local().is_none() || part.entry_durable.load(Ordering::Acquire) {
                continue;
            }
            let place = self.backend.place(part.node, WaitPolicy::MayWait)?;
            let path = place
                .directory
                .map(|directory| object_path(&directory, part.id));
            if let Some(directory) = path.as_deref().and_then(std::path::Path::parent) {
                File::open(directory)?.sync_all()?;
                part.entry_durable.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Handles the close of the last descriptor of an open file.
    pub(crate) fn release(&self, caller: Caller, handle: u64) {
        let Some(file) = self.files.lock().remove(&handle) else {
            self.follow_no_more(handle);
            return;
        };
        self.close_handle(caller, &file.vnode, file.key.alias, file.write);
        self.table.drop_unused(file.key.ino);
    }

    pub(crate) fn allocate(
        &self,
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        let file = self.file(handle)?;
        self.change(&file, pace, |object| object.allocate(offset, length, mode))
    }

    /// Returns the offset at or after `offset` at which data (or a hole) begins.
    pub(crate) fn seek(&self, handle: u64, offset: u64, data: bool) -> Result<u64, Error> {
        if self.followed(handle).is_some() {
            // The end of the file is not known yet.
            return if data {
                Ok(offset)
            } else {
                Err(Errno::INVAL.into())
            };
        }
        self.file(handle)?.object()?.seek(offset, data)
    }

    /// Copies bytes within the node's device, without moving the bytes through this process.
    pub(crate) fn copy_range(
        &self,
        from: (u64, u64),
        to: (u64, u64),
        length: u64,
    ) -> Result<u64, Error> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        self.change(&target, WaitPolicy::MayWait, |object| {
            object.copy_from(&*source.object()?, from.1, to.1, length)
        })
    }

    /// Returns the number of handles for writing, of all files.
    pub(crate) fn writers(&self) -> usize {
        self.files.lock().values().filter(|file| file.write).count()
    }
}
