//! Files that the Linux kernel reads and writes directly: the kernel has one backing per file, shared by all openers of the file.
//!
//! **Invariant**: a backing is used only for the file that it was created for; all open handles of one kernel inode have the same backing;
//! a writer never gets a sealed file.

use super::caches::Caches;
use super::convert::{attr_of, errno};
use super::waiting::WaitingRequests;
use crate::error::Error;
use crate::fs::file::OpenedFile;
use crate::fs::watch::KernelCache as _;
use crate::fs::{Caller, Fs, LookupResult};
use fuser::{BackingId, FileHandle, FopenFlags, Generation, ReplyCreate, ReplyOpen};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Returns the flags of a file that the Linux kernel reads and writes directly: a close has nothing to flush, unless it may release locks.
fn in_place(opened: &OpenedFile) -> FopenFlags {
    if opened.flush {
        FopenFlags::empty()
    } else {
        FopenFlags::FOPEN_NOFLUSH
    }
}

/// Mode bits that a sealed file never has.
const WRITABLE: u32 = 0o222;

#[derive(Debug)]
pub(super) struct BackingState {
    pub(super) fs: Arc<Fs>,
    pub(super) waiting: WaitingRequests,
    caches: Caches,
    backings: Mutex<Backings>,
    /// Whether the Linux kernel can map files into memory without caching other pages of them.
    maps_uncached: AtomicBool,
}

/// Identity of a file on its device, which does not change as long as the file is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileId {
    device: u64,
    inode: u64,
}

/// Backing that the Linux kernel has for one handle.
#[derive(Debug)]
struct HandleBacking {
    number: u64,
    file: FileId,
    backing: Arc<BackingId>,
}

#[derive(Debug, Default)]
struct Backings {
    by_file: HashMap<FileId, Weak<BackingId>>,
    by_handle: HashMap<u64, HandleBacking>,
    /// File of each kernel inode that has a backing, and the number of its handles.
    by_inode: HashMap<u64, (FileId, usize)>,
    /// Object whose pages the Linux kernel holds for an inode without a backing.
    cached: HashMap<u64, u64>,
}

impl Backings {
    /// Records the backing of a handle. Refuses a backing whose file differs from the file of the inode's other handles.
    fn give(&mut self, handle: u64, given: HandleBacking) -> Result<(), Error> {
        let (file, handles) = self.by_inode.entry(given.number).or_insert((given.file, 0));
        if *file != given.file {
            debug_assert!(false, "two files with inode {:#x}", given.number);
            tracing::error!(
                number = given.number,
                "an open was refused: the inode is still open with the file of another version"
            );
            return Err(Errno::IO.into());
        }
        *handles += 1;
        self.by_handle.insert(handle, given);
        Ok(())
    }

    fn release(&mut self, handle: u64) {
        let Some(HandleBacking {
            number,
            file,
            backing,
        }) = self.by_handle.remove(&handle)
        else {
            return;
        };
        drop(backing);
        if let Some((_, handles)) = self.by_inode.get_mut(&number) {
            *handles -= 1;
            if *handles == 0 {
                self.by_inode.remove(&number);
            }
        }
        if self
            .by_file
            .get(&file)
            .is_some_and(|weak| weak.strong_count() == 0)
        {
            self.by_file.remove(&file);
        }
    }
}

impl BackingState {
    pub(super) fn new(fs: Arc<Fs>, caches: Caches) -> Self {
        Self {
            fs,
            waiting: WaitingRequests::default(),
            caches,
            backings: Mutex::default(),
            maps_uncached: AtomicBool::new(true),
        }
    }

    /// Records that the Linux kernel cannot map files into memory without caching them.
    pub(super) fn caches_all(&self) {
        self.maps_uncached.store(false, Ordering::Relaxed);
    }

    /// Records that the Linux kernel holds no pages of an inode any more.
    pub(super) fn forget_pages(&self, number: u64) {
        self.backings.lock().cached.remove(&number);
    }

    /// Returns the backing of a file that is open on this mount, or creates it by `make`; `None` if the Linux kernel cannot read and write
    /// the file directly.
    fn backing(
        &self,
        number: u64,
        opened: &OpenedFile,
        make: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Result<Option<Arc<BackingId>>, Error> {
        let Some(local) = &opened.local else {
            return Ok(None);
        };
        let file = identify(local, opened)?;
        let mut backings = self.backings.lock();
        let shared = backings.by_file.get(&file).and_then(Weak::upgrade);
        let backing = match shared {
            Some(backing) => backing,
            None => match make(local) {
                Ok(backing) => Arc::new(backing),
                Err(error) if backings.by_handle.is_empty() => {
                    tracing::info!(
                        "no direct access: files are read and written through the mount's process: {error}"
                    );
                    self.fs.not_direct();
                    return Ok(None);
                }
                // The file is on a stacked file system, unlike the files of other nodes.
                Err(error) if is_stacked(&error) && !backings.by_inode.contains_key(&number) => {
                    tracing::debug!("a file is read and written through the mount: {error}");
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            },
        };
        let given = HandleBacking {
            number,
            file,
            backing: backing.clone(),
        };
        backings.by_file.insert(file, Arc::downgrade(&backing));
        backings.give(opened.handle, given)?;
        Ok(Some(backing))
    }

    /// Returns the flags of a file that this process reads and writes. The Linux kernel's pages stay valid if they are pages of the same
    /// object.
    fn flags(&self, number: u64, opened: &OpenedFile) -> FopenFlags {
        let before = self.backings.lock().cached.insert(number, opened.object);
        let mut flags = FopenFlags::empty();
        flags.set(FopenFlags::FOPEN_KEEP_CACHE, before == Some(opened.object));
        let uncached = !opened.cached && self.maps_uncached.load(Ordering::Relaxed);
        flags.set(FopenFlags::FOPEN_DIRECT_IO, uncached);
        flags
    }

    pub(super) fn answer_open(&self, number: u64, reply: ReplyOpen, opened: &OpenedFile) {
        let handle = FileHandle(opened.handle);
        if opened.followed {
            return self.answer_followed(number, reply, handle);
        }
        if opened.write {
            // Memory mapped writes change size and times without notice of the kernel.
            self.caches.forget_attributes(number);
        }
        match self.backing(number, opened, |file| reply.open_backing(file)) {
            Ok(Some(backing)) => reply.opened_passthrough(handle, in_place(opened), &backing),
            Ok(None) => reply.opened(handle, self.flags(number, opened)),
            Err(error) => {
                self.fs.release(Caller::default(), opened.handle);
                reply.error(errno(&error));
            }
        }
    }

    /// Answers an open of a followed file: the Linux kernel sends all reads to this process, whatever length it knows. The kernel does not
    /// allow this for a file that it also reads directly.
    fn answer_followed(&self, number: u64, reply: ReplyOpen, handle: FileHandle) {
        if self.backings.lock().by_inode.contains_key(&number) {
            tracing::info!(
                "a file can't be followed: programs on this host have its previous version open"
            );
            self.fs.release(Caller::default(), handle.0);
            return reply.error(fuser::Errno::EBUSY);
        }
        reply.opened(
            handle,
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH,
        );
    }

    pub(super) fn answer_create(
        &self,
        reply: ReplyCreate,
        found: &LookupResult,
        opened: &OpenedFile,
    ) {
        let number = found.key.pack();
        let attr = attr_of(found, number);
        let handle = FileHandle(opened.handle);
        let _gate = self.fs.table.gate.read();
        // The kernel takes one time for both: it drops attributes with its own writes.
        let (_, ttl) = self.fs.ttls(found);
        match self.backing(number, opened, |file| reply.open_backing(file)) {
            Ok(Some(backing)) => {
                reply.created_passthrough(
                    &ttl,
                    &attr,
                    Generation(0),
                    handle,
                    in_place(opened),
                    &backing,
                );
            }
            Ok(None) => {
                let flags = self.flags(number, opened);
                reply.created(&ttl, &attr, Generation(0), handle, flags);
            }
            Err(error) => {
                self.fs.release(Caller::default(), opened.handle);
                reply.error(errno(&error));
            }
        }
    }

    pub(super) fn release(&self, handle: u64) {
        self.backings.lock().release(handle);
    }
}

/// Whether the error means that the Linux kernel cannot read and write this file directly, while it can do so for other files.
fn is_stacked(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ELOOP | libc::EOPNOTSUPP | libc::ENOSYS)
    )
}

/// Returns the identity of a file. Returns an error for a sealed file that is opened for writing.
fn identify(local: &File, opened: &OpenedFile) -> Result<FileId, Error> {
    let stat = local.metadata()?;
    if opened.write && stat.mode() & WRITABLE == 0 {
        debug_assert!(false, "object {:016x} is sealed", opened.object);
        tracing::error!(
            object = opened.object,
            "an open for writing was refused: the object's file is sealed"
        );
        return Err(Errno::IO.into());
    }
    Ok(FileId {
        device: stat.dev(),
        inode: stat.ino(),
    })
}
