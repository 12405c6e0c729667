//! Rights to read that outlive the last close of a file on another host, so that the next open asks nobody.
//!
//! The server keeps the version for as long as the right is kept. So it goes when anything of the file changes, here
//! or elsewhere, and when many others came after it.

use super::Fs;
use super::object::Object;
use super::table::State;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tidemill_wire::v1::Attr;

/// Files whose rights are kept at most.
const KEPT_MAX: usize = 65_536;

/// Files whose rights are kept, those of longest ago first.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<VecDeque<u64>>);

impl Kept {
    /// One more; gives the one that has to go for it.
    fn enter(&self, ino: u64) -> Option<u64> {
        let mut order = self.0.lock();
        order.push_back(ino);
        (order.len() > KEPT_MAX).then(|| order.pop_front())?
    }
}

impl Fs {
    /// A sealed object of the file was opened: keeps the right to read it.
    pub(super) fn keep(&self, ino: u64, state: &mut State, object: &Arc<Object>) {
        if !object.waits() || state.attr.object != object.id {
            return;
        }
        let before = state.kept.replace(object.clone());
        if before.is_none()
            && let Some(oldest) = self.kept.enter(ino).filter(|oldest| *oldest != ino)
        {
            // Not on this thread: another file's state is never waited for while one is held.
            let table = self.table.clone();
            self.backend.runtime.spawn_blocking(move || {
                if let Some(node) = table.get(oldest) {
                    node.state.lock().kept = None;
                }
            });
        }
    }
}

impl State {
    /// The attributes were these before: a right that was given by them, or to another version, is not kept.
    pub(crate) fn check_kept(&mut self, before: &Attr) {
        let rights = |attr: &Attr| (attr.object, attr.mode, attr.uid, attr.gid);
        if self.kept.is_some() && rights(before) != rights(&self.attr) {
            self.kept = None;
        }
    }

    /// Nobody has the file open any more: of what was read nothing is kept here, the kernel has it.
    pub(super) fn rest(&self) {
        if let Some(kept) = self.kept.as_ref().filter(|_| self.opens == 0) {
            kept.rest();
        }
    }
}
