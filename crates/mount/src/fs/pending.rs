//! Changes of attributes that the server is told with the seal.
//!
//! Programs that copy and unpack set mode and times of a file while they have it open. Before its first seal nobody
//! else can read anything of it, so nobody else has to know of them before: the seal sets both at once, and each change
//! costs no request of its own. Whatever could take a permission from somebody is told at once, changes of the owner
//! among them: if this mount is killed, the server seals the file as far as it knows. If somebody else gives the file
//! another mode or owner meanwhile, that stands, and what was changed here before is dropped.

use super::names::Changes;
use super::remote::now_ns;
use super::table::{Node, Phase, State, Writing};
use super::{Caller, Fs};
use crate::error::Error;
use std::sync::Arc;
use tidemill_wire::v1::{self, Attr, name_op::Op};

/// What was changed of a file that is being written, and not told yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    mode: Option<u32>,
    atime: Option<i64>,
    /// When, in nanoseconds since the Unix epoch.
    ctime: i64,
    /// Mode and owner as the server told them last.
    since: v1::Rights,
}

impl Pending {
    /// As the server is told; the mtime is that of the version.
    pub(crate) fn told(&self, ino: u64) -> v1::SetAttr {
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

/// Whether somebody may lose a permission by these changes.
fn take(changes: &Changes, attr: &Attr) -> bool {
    changes.mode.is_some_and(|mode| attr.mode & !mode != 0)
        || changes.uid.is_some_and(|uid| uid != attr.uid)
        || changes.gid.is_some_and(|gid| gid != attr.gid)
}

impl State {
    /// Keeps changes back, if the file has never been sealed and is open for writing, and nobody loses a permission
    /// by them; says whether it does.
    fn keep_back(&mut self, changes: &Changes) -> Result<bool, Error> {
        let attr = self.attr;
        if attr.object != 0 || self.gone || take(changes, &attr) {
            return Ok(false);
        }
        let writing = self.writing.as_mut().filter(|w| w.phase == Phase::Open);
        let Some((writing, object)) = writing.and_then(|w| w.object.clone().map(|o| (w, o))) else {
            return Ok(false);
        };
        if let Some(mtime) = changes.mtime {
            object.set_mtime(mtime)?;
            writing.untouched = None;
        }
        let before = writing.pending;
        let pending = Pending {
            mode: changes.mode.or(before.and_then(|before| before.mode)),
            atime: changes.atime.or(before.and_then(|before| before.atime)),
            ctime: now_ns(),
            since: before.map_or_else(|| rights(&attr), |before| before.since),
        };
        writing.pending = Some(pending);
        self.attr = pending.applied(attr);
        Ok(true)
    }

    /// The server has told attributes, which lack what it was not told.
    pub(crate) fn add_pending(&mut self) {
        let Some(writing) = self.writing.as_mut() else {
            return;
        };
        let told = rights(&self.attr);
        writing.pending = writing.pending.filter(|pending| pending.since == told);
        if let Some(pending) = &writing.pending {
            self.attr = pending.applied(self.attr);
        }
    }
}

impl Fs {
    /// Keeps changes back for the seal, if that is possible; says whether it is.
    pub(super) fn keep_back(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        changes: &Changes,
    ) -> Result<bool, Error> {
        let sealing = {
            let mut state = node.state.lock();
            if state.keep_back(changes)? {
                state.stamp = self.table.tick();
                return Ok(true);
            }
            let writing = state.writing.as_ref();
            writing.is_some_and(|w| w.phase == Phase::Sealing && w.pending.is_some())
        };
        if sealing {
            // What comes with the seal is older than these.
            self.wait_sealed(node)?;
        }
        self.tell_pending(caller, node)?;
        Ok(false)
    }

    /// Tells the server what was kept back of a file that stays open.
    pub(super) fn tell_pending(&self, caller: Caller, node: &Arc<Node>) -> Result<(), Error> {
        let kept = {
            let mut state = node.state.lock();
            let open = state.writing.as_mut().filter(|w| w.phase == Phase::Open);
            let Some((writing, kept)) = open.and_then(|w| w.pending.map(|kept| (w, kept))) else {
                return Ok(());
            };
            // As a writer, so that it stays open: the seal has to come after this.
            writing.writers += 1;
            kept
        };
        let told = self.tell_kept(caller, node, &kept);
        self.left(caller, node, &mut node.state.lock(), true);
        told
    }

    fn tell_kept(&self, caller: Caller, node: &Node, kept: &Pending) -> Result<(), Error> {
        let asked = self.table.now();
        let answer = self.backend.one(caller, Op::SetAttr(kept.told(node.ino)));
        let attr = answer.and_then(super::backend::attr_of)?;
        let mut state = node.state.lock();
        if let Some(writing) = state.writing.as_mut() {
            writing.not_told(kept, &attr);
        }
        self.adopt_change(&mut state, attr, asked);
        Ok(())
    }
}

impl Writing {
    /// What was kept back is told now, and these are the attributes since: what came after it stays.
    fn not_told(&mut self, told: &Pending, attr: &Attr) {
        let later = self.pending.filter(|pending| pending.ctime != told.ctime);
        self.pending = later.map(|pending| Pending {
            since: rights(attr),
            ..pending
        });
    }
}
