//! The kernel's caches of names and pages, told when something changed elsewhere.

use crate::fs::watch::Kernel;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::sync::{Arc, OnceLock};

/// The kernel's caches; silent until the file system is attached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caches(pub(crate) Arc<OnceLock<Notifier>>);

impl Kernel for Caches {
    fn forget_entry(&self, parent: u64, name: &OsStr) {
        if let Some(notifier) = self.0.get() {
            // The kernel may have forgotten already.
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
            // An offset below zero leaves the pages. The kernel may have forgotten already.
            let _ = notifier.inval_inode(INodeNo(number), -1, 0);
        }
    }
}
