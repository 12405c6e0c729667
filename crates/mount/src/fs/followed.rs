//! Files that another mount writes, opened by programs that wait for later bytes. Such files have separate handles, which are bound to no
//! alias: the Linux kernel caches none of their bytes. Reads of these files use the client crate (next: `client/src/follow.rs`).

use super::backend::credentials;
use super::table::CachedInode;
use super::{Caller, Fs, WaitPolicy};
use crate::error::Error;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_client::follow::Following;
use tidemill_client::transfer::Transfer;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Open followed files by handle.
#[derive(Debug, Default)]
pub(super) struct FollowedHandles {
    by_handle: Mutex<HashMap<u64, Arc<Following>>>,
    count: AtomicUsize,
}

impl Fs {
    /// Opens a file that another mount writes, if its reader is to wait for the writer; `None` if the file is to be opened normally.
    pub(super) fn follow_writer(
        &self,
        caller: Caller,
        vnode: &CachedInode,
        pace: WaitPolicy,
    ) -> Result<Option<u64>, Error> {
        self.fetch(caller, vnode, pace)?;
        if !vnode.state.lock().is_written_elsewhere() {
            return Ok(None);
        }
        pace.wait()?;
        let open = v1::Open {
            ino: vnode.ino,
            streaming: true,
            waits: true,
            ..v1::Open::default()
        };
        let Answer::Opened(opened) = self.backend.one(caller, Op::Open(open))? else {
            return Ok(None);
        };
        let sealed = opened.attr.as_ref().map(|attr| attr.object);
        if opened.layout.is_some() || sealed == Some(opened.object) || opened.object == 0 {
            return Ok(None);
        }
        let transfer = Transfer::new(self.backend.server.clone(), credentials(caller));
        let following = Arc::new(Following::new(transfer, vnode.ino, opened)?);
        let handle = self.handle_number();
        self.followed.by_handle.lock().insert(handle, following);
        self.followed.count.fetch_add(1, Ordering::Release);
        Ok(Some(handle))
    }

    /// Returns the followed file of a handle; `None` if the handle follows no file.
    pub(crate) fn followed(&self, handle: u64) -> Option<Arc<Following>> {
        if self.followed.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.followed.by_handle.lock().get(&handle).cloned()
    }

    /// Closes a followed file. Returns whether the handle was the handle of a followed file.
    pub(super) fn follow_no_more(&self, handle: u64) -> bool {
        if self.followed.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let was = self.followed.by_handle.lock().remove(&handle).is_some();
        if was {
            self.followed.count.fetch_sub(1, Ordering::Release);
        }
        was
    }
}
