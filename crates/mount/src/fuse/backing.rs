//! Files that the kernel reads and writes by itself: one backing per inode, shared by all who have it open.

use super::convert::{attr_of, errno};
use super::waiting::Waiting;
use crate::error::Error;
use crate::fs::file::Opened;
use crate::fs::{Caller, Found, Fs};
use fuser::{BackingId, FileHandle, FopenFlags, Generation, ReplyCreate, ReplyOpen};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Flags of a file that the kernel reads and writes by itself: there is nothing to hand over at a close.
const IN_PLACE: FopenFlags = FopenFlags::FOPEN_NOFLUSH;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) fs: Arc<Fs>,
    pub(super) waiting: Waiting,
    /// Whether the kernel takes object files to read and write by itself.
    passthrough: AtomicBool,
    backings: Mutex<Backings>,
}

#[derive(Debug, Default)]
struct Backings {
    /// The one backing of each kernel inode that has one.
    by_inode: HashMap<u64, (u64, Weak<BackingId>)>,
    by_handle: HashMap<u64, Arc<BackingId>>,
    /// The object whose pages the kernel holds for an inode that has no backing.
    cached: HashMap<u64, u64>,
}

impl Inner {
    pub(super) fn new(fs: Arc<Fs>) -> Self {
        Self {
            fs,
            waiting: Waiting::default(),
            passthrough: AtomicBool::new(true),
            backings: Mutex::default(),
        }
    }

    /// The kernel can't do it.
    pub(super) fn no_backings(&self) {
        self.passthrough.store(false, Ordering::Relaxed);
    }

    /// The kernel holds no pages of an inode any more.
    pub(super) fn forget_pages(&self, number: u64) {
        self.backings.lock().cached.remove(&number);
    }

    /// The backing of an object that is open here, made by `make` if there is none; `None`: the kernel
    /// can't read and write it by itself.
    fn backing(
        &self,
        number: u64,
        opened: &Opened,
        make: impl FnOnce(&std::fs::File) -> io::Result<BackingId>,
    ) -> Result<Option<Arc<BackingId>>, Error> {
        let Some(file) = &opened.local else {
            return Ok(None);
        };
        if !self.passthrough.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut backings = self.backings.lock();
        let shared = backings
            .by_inode
            .get(&number)
            .and_then(|(_, weak)| weak.upgrade());
        let backing = match shared {
            Some(backing) => backing,
            None => match make(file) {
                Ok(backing) => Arc::new(backing),
                Err(error) if backings.by_handle.is_empty() => {
                    tracing::info!(
                        "files are read and written through the mount's process: {error}"
                    );
                    self.no_backings();
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            },
        };
        let weak = Arc::downgrade(&backing);
        backings.by_inode.insert(number, (opened.object, weak));
        backings.by_handle.insert(opened.handle, backing.clone());
        Ok(Some(backing))
    }

    /// Flags of a file that the kernel caches: its pages are good if they are of the same object.
    fn cached_flags(&self, number: u64, object: u64) -> FopenFlags {
        let before = self.backings.lock().cached.insert(number, object);
        if before == Some(object) {
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        }
    }

    pub(super) fn answer_open(&self, number: u64, reply: ReplyOpen, opened: &Opened) {
        let handle = FileHandle(opened.handle);
        match self.backing(number, opened, |file| reply.open_backing(file)) {
            Ok(Some(backing)) => reply.opened_passthrough(handle, IN_PLACE, &backing),
            Ok(None) => reply.opened(handle, self.cached_flags(number, opened.object)),
            Err(error) => {
                self.fs.release(Caller::default(), opened.handle);
                reply.error(errno(&error));
            }
        }
    }

    pub(super) fn answer_create(&self, reply: ReplyCreate, found: &Found, opened: &Opened) {
        let number = found.key.pack();
        let attr = attr_of(found, number);
        let handle = FileHandle(opened.handle);
        let _gate = self.fs.table.gate.read();
        // The kernel takes one time for both: it drops attributes with its own writes.
        let (_, ttl) = self.fs.ttls(found);
        match self.backing(number, opened, |file| reply.open_backing(file)) {
            Ok(Some(backing)) => {
                reply.created_passthrough(&ttl, &attr, Generation(0), handle, IN_PLACE, &backing);
            }
            Ok(None) => {
                let flags = self.cached_flags(number, opened.object);
                reply.created(&ttl, &attr, Generation(0), handle, flags);
            }
            Err(error) => {
                self.fs.release(Caller::default(), opened.handle);
                reply.error(errno(&error));
            }
        }
    }

    pub(super) fn release(&self, handle: u64) {
        let mut backings = self.backings.lock();
        if backings.by_handle.remove(&handle).is_some() {
            backings
                .by_inode
                .retain(|_, (_, weak)| weak.strong_count() > 0);
        }
    }
}
