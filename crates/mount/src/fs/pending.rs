//! Changes of attributes that the mount sends to the server with the seal (next: `mount/src/fs/seal.rs`).
//!
//! Programs that copy and unpack set mode and times of a file while they have it open. Before its first seal no other client can read the
//! file, so no other client has to know of these changes: the seal sets them all at once, and a change costs no request of its own. A
//! change that could revoke a permission is sent at once, as is a change of the owner: if this mount is killed, the server seals the file
//! with the attributes that it knows. If another client changes the mode or owner in the meantime, that change stays, and the earlier
//! changes from this mount are dropped.

use super::names::AttributeChanges;
use super::remote::now_ns;
use super::table::{CachedInode, InodeState, VersionPhase, WrittenVersion};
use super::{Caller, Fs};
use crate::error::Error;
use std::sync::Arc;
use tidemill_wire::v1::{self, Attr, name_op::Op};

/// Attributes of a file that is being written that this mount has changed and has not sent yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingAttributes {
    mode: Option<u32>,
    atime: Option<i64>,
    /// Time of the change, in nanoseconds since the Unix epoch.
    ctime: i64,
    /// Permission bits and owner in the last answer of the server.
    since: v1::Rights,
}

impl PendingAttributes {
    /// Returns the request with the changes for the server; the mtime is the version's mtime.
    pub(crate) fn reported(&self, ino: u64) -> v1::SetAttr {
        v1::SetAttr {
            ino,
            mode: self.mode,
            atime: self.atime,
            ctime: self.ctime,
            only_if: Some(self.since),
            ..v1::SetAttr::default()
        }
    }

    fn applied(&self, mut attr: Attr) -> Attr {
        attr.mode = self.mode.unwrap_or(attr.mode);
        attr.atime = self.atime.unwrap_or(attr.atime);
        attr.ctime = attr.ctime.max(self.ctime);
        attr
    }
}

fn rights(attr: &Attr) -> v1::Rights {
    v1::Rights {
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
    }
}

/// Whether a user may lose a permission by the changes.
fn take(changes: &AttributeChanges, attr: &Attr) -> bool {
    changes.mode.is_some_and(|mode| attr.mode & !mode != 0)
        || changes.uid.is_some_and(|uid| uid != attr.uid)
        || changes.gid.is_some_and(|gid| gid != attr.gid)
}

impl InodeState {
    /// Holds changes back, if the file has never been sealed, is open for writing, and no user loses a permission by them. Returns whether
    /// the changes are held back.
    fn keep_back(&mut self, changes: &AttributeChanges) -> Result<bool, Error> {
        let attr = self.attr;
        if attr.object != 0 || self.deleted || take(changes, &attr) {
            return Ok(false);
        }
        let writing = self
            .writing
            .as_mut()
            .filter(|w| w.phase == VersionPhase::Open);
        let Some((writing, object)) = writing.and_then(|w| w.object.clone().map(|o| (w, o))) else {
            return Ok(false);
        };
        if let Some(mtime) = changes.mtime {
            object.set_mtime(mtime)?;
            writing.untouched = None;
        }
        let before = writing.pending;
        let pending = PendingAttributes {
            mode: changes.mode.or(before.and_then(|before| before.mode)),
            atime: changes.atime.or(before.and_then(|before| before.atime)),
            ctime: now_ns(),
            since: before.map_or_else(|| rights(&attr), |before| before.since),
        };
        writing.pending = Some(pending);
        self.attr = pending.applied(attr);
        Ok(true)
    }

    /// Adds the pending changes to attributes that the server sent without the changes.
    pub(crate) fn add_pending(&mut self) {
        let Some(writing) = self.writing.as_mut() else {
            return;
        };
        let reported = rights(&self.attr);
        writing.pending = writing.pending.filter(|pending| pending.since == reported);
        if let Some(pending) = &writing.pending {
            self.attr = pending.applied(self.attr);
        }
    }
}

impl Fs {
    /// Holds changes back for the seal, if that is possible. Returns whether the changes are held back.
    pub(super) fn keep_back(
        &self,
        caller: Caller,
        vnode: &Arc<CachedInode>,
        changes: &AttributeChanges,
    ) -> Result<bool, Error> {
        let sealing = {
            let mut state = vnode.state.lock();
            if state.keep_back(changes)? {
                state.stamp = self.table.tick();
                return Ok(true);
            }
            let writing = state.writing.as_ref();
            writing.is_some_and(|w| w.phase == VersionPhase::Sealing && w.pending.is_some())
        };
        if sealing {
            // The attributes of the seal are older than these.
            self.wait_sealed(vnode)?;
        }
        self.tell_pending(caller, vnode)?;
        Ok(false)
    }

    /// Sends the changes that were held back for a file that stays open.
    pub(super) fn tell_pending(
        &self,
        caller: Caller,
        vnode: &Arc<CachedInode>,
    ) -> Result<(), Error> {
        let kept = {
            let mut state = vnode.state.lock();
            let open = state
                .writing
                .as_mut()
                .filter(|w| w.phase == VersionPhase::Open);
            let Some((writing, kept)) = open.and_then(|w| w.pending.map(|kept| (w, kept))) else {
                return Ok(());
            };
            // Counted as a writer, so that the file stays open: the seal has to follow this.
            writing.writers += 1;
            kept
        };
        let reported = self.tell_kept(caller, vnode, &kept);
        self.left(caller, vnode, &mut vnode.state.lock(), true);
        reported
    }

    fn tell_kept(
        &self,
        caller: Caller,
        vnode: &CachedInode,
        kept: &PendingAttributes,
    ) -> Result<(), Error> {
        let asked = self.table.now();
        let answer = self
            .backend
            .one(caller, Op::SetAttr(kept.reported(vnode.ino)));
        let attr = answer.and_then(super::backend::attr_of)?;
        let mut state = vnode.state.lock();
        if let Some(writing) = state.writing.as_mut() {
            writing.not_reported(kept, &attr);
        }
        self.adopt_change(&mut state, attr, asked);
        Ok(())
    }
}

impl WrittenVersion {
    /// Records that held-back changes were sent, and the attributes in the server's answer: later changes stay pending.
    fn not_reported(&mut self, reported: &PendingAttributes, attr: &Attr) {
        let later = self
            .pending
            .filter(|pending| pending.ctime != reported.ctime);
        self.pending = later.map(|pending| PendingAttributes {
            since: rights(attr),
            ..pending
        });
    }
}
