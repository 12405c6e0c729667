//! Changes of attributes that the server is told with the seal.
//!
//! Programs that copy and unpack set owner, mode and times of a file while they have it open. Before its first seal
//! nobody else can read anything of it, so nobody else has to know of them before: the seal sets both at once, and
//! each change costs no request of its own. What takes permissions away is told at once: if this mount is killed, the
//! server seals the file as far as it knows. If somebody else changes attributes meanwhile, that stands, and what was
//! changed here before is dropped: the file's ctime tells.

use super::names::Changes;
use super::remote::now_ns;
use super::table::{Node, Phase, State, Writing};
use super::{Caller, Fs, Pace};
use crate::error::Error;
use std::sync::Arc;
use tidemill_wire::v1::{self, Attr, name_op::Op};

/// What was changed of a file that is being written, and not told yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    changes: Changes,
    /// When, in nanoseconds since the Unix epoch.
    ctime: i64,
    /// The ctime that the server told last.
    pub(crate) since: i64,
}

impl Pending {
    /// As the server is told; the mtime is that of the version.
    pub(crate) fn told(&self, ino: u64) -> v1::SetAttr {
        v1::SetAttr {
            ino,
            mode: self.changes.mode,
            uid: self.changes.uid,
            gid: self.changes.gid,
            atime: self.changes.atime,
            mtime: None,
            ctime: self.ctime,
        }
    }

    fn applied(&self, mut attr: Attr) -> Attr {
        let changes = &self.changes;
        attr.mode = changes.mode.unwrap_or(attr.mode);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        attr.atime = changes.atime.unwrap_or(attr.atime);
        attr.ctime = attr.ctime.max(self.ctime);
        attr
    }
}

impl State {
    /// Keeps changes back, if the file has never been sealed and is open for writing, and nobody loses a permission
    /// by them; says whether it does.
    fn keep_back(&mut self, changes: &Changes) -> Result<bool, Error> {
        let attr = self.attr;
        let takes = |mode: u32| attr.mode & !mode != 0;
        if attr.object != 0 || self.gone || changes.mode.is_some_and(takes) {
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
        let before = writing.pending.map(|pending| pending.changes);
        let before = before.unwrap_or_default();
        let since = writing.pending.map_or(attr.ctime, |pending| pending.since);
        let pending = Pending {
            changes: Changes {
                mode: changes.mode.or(before.mode),
                uid: changes.uid.or(before.uid),
                gid: changes.gid.or(before.gid),
                atime: changes.atime.or(before.atime),
                ..Changes::default()
            },
            ctime: now_ns(),
            since,
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
        writing.pending = writing.pending.filter(|p| p.since == self.attr.ctime);
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
        {
            let mut state = node.state.lock();
            match state.writing.as_mut() {
                // As a writer, so that it stays open: the seal has to come after this.
                Some(writing) if writing.pending_open().is_some() => writing.writers += 1,
                _ => return Ok(()),
            }
        }
        let told = self.tell_as_writer(caller, node);
        self.left(caller, node, &mut node.state.lock(), true);
        told
    }

    fn tell_as_writer(&self, caller: Caller, node: &Node) -> Result<(), Error> {
        // If somebody else has changed attributes meanwhile, nothing is left to be told.
        self.fetch(caller, node, Pace::MayWait)?;
        let kept = {
            let state = node.state.lock();
            state.writing.as_ref().and_then(Writing::pending_open)
        };
        let Some(kept) = kept else {
            return Ok(());
        };
        self.backend.one(caller, Op::SetAttr(kept.told(node.ino)))?;
        let mut state = node.state.lock();
        if let Some(writing) = state.writing.as_mut()
            && let Some(now) = writing.pending.as_mut()
        {
            now.since = kept.ctime;
            if now.ctime == kept.ctime {
                writing.pending = None;
            }
        }
        Ok(())
    }
}

impl Writing {
    /// What was kept back, if it may still be told before the seal.
    fn pending_open(&self) -> Option<Pending> {
        self.pending.filter(|_| self.phase == Phase::Open)
    }
}
