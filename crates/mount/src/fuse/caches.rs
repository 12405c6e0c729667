//! Invalidates the Linux kernel's caches of names and pages after changes by other clients. The module only sends notifications to the
//! kernel.

use crate::fs::watch::KernelCache;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::sync::{Arc, OnceLock};

/// The Linux kernel's caches. Invalidations have no effect until the file system is attached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caches(pub(crate) Arc<OnceLock<Notifier>>);

impl KernelCache for Caches {
    fn forget_entry(&self, parent: u64, name: &OsStr) {
        if let Some(notifier) = self.0.get() {
            // The kernel may have dropped the entry already.
            let _ = notifier.inval_entry(INodeNo(parent), name);
        }
    }

    fn forget_inode(&self, number: u64) {
        if let Some(notifier) = self.0.get() {
            let _ = notifier.inval_inode(INodeNo(number), 0, 0);
        }
    }

    fn forget_attributes(&self, number: u64) {
        if let Some(notifier) = self.0.get() {
            // An offset below zero keeps the pages. The kernel may have dropped the inode already.
            let _ = notifier.inval_inode(INodeNo(number), -1, 0);
        }
    }
}
