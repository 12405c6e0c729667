//! Rights to read that outlive the last close of a file on another host, so that the next open needs no request.
//!
//! The server keeps the version for as long as the mount keeps the right. So the mount releases the right when an attribute of the file
//! changes, on this or another mount, and when many other files are opened later.

use super::Fs;
use super::object::OpenObject;
use super::table::{CachedInode, InodeState};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tidemill_wire::v1::Attr;

const KEPT_MAX: usize = 65_536;

/// Inodes and objects whose rights are kept, or were kept, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct KeptRights(Mutex<VecDeque<(u64, u64)>>);

impl KeptRights {
    /// Adds a right. Returns the right that must be dropped because the limit is reached.
    fn enter(&self, ino: u64, object: u64) -> Option<(u64, u64)> {
        let mut order = self.0.lock();
        order.push_back((ino, object));
        (order.len() > KEPT_MAX).then(|| order.pop_front())?
    }
}

impl Fs {
    /// Keeps the right to read an object that was opened by an answer to a request of the time `asked`, unless the file has changed since.
    pub(super) fn keep(&self, vnode: &CachedInode, object: &Arc<OpenObject>, asked: u64) {
        {
            let mut state = vnode.state.lock();
            let current = state.attr.object == object.id && !state.deleted;
            if !object.waits() || !current || self.table.changed_since(vnode.ino, asked) {
                return;
            }
            state.kept = Some(object.clone());
        }
        // Not while a state is locked: the state belongs to another file.
        if let Some((ino, object)) = self.kept.enter(vnode.ino, object.id)
            && let Some(vnode) = self.table.get(ino)
        {
            let mut state = vnode.state.lock();
            if state.kept.as_ref().is_some_and(|kept| kept.id == object) {
                state.kept = None;
            }
        }
    }
}

impl InodeState {
    /// Compares the attributes with the attributes `before`, and drops a right that depends on other attributes, or on another version.
    pub(crate) fn check_kept(&mut self, before: &Attr) {
        let rights = |attr: &Attr| (attr.object, attr.mode, attr.uid, attr.gid);
        if rights(before) != rights(&self.attr) {
            self.kept = None;
        }
    }

    /// Drops cached reads when no program has the file open any more, because the Linux kernel has the bytes.
    pub(super) fn rest(&self) {
        if let Some(kept) = self.kept.as_ref().filter(|_| self.opens == 0) {
            kept.rest();
        }
    }
}
