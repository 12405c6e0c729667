//! Takeover of a file: the file of a version that programs on this mount have open becomes the file of the next version, which this mount
//! writes. The module renames object files in a node's directory on this host.
//!
//! The Linux kernel reads and writes files directly, and lets an inode have one file only. For readers and writers to share the inode, the
//! writer must get the file that the readers have. So the new version's file is made a copy of the old file, and the two files exchange
//! their names: the old version continues in the copy, which no program has open, and the new version in the file that is open on this
//! mount. Both files have the same bytes at that moment, so readers see no difference, even if this process ends in between.

use super::file_users::held_by_others;
use super::object::{ObjectData, OpenObject};
use super::table::CachedInode;
use super::version::object_path;
use super::{Fs, WaitPolicy};
use crate::error::Error;
use rustix::fs::{CWD, OFlags, RenameFlags, fcntl_getfl, renameat_with};
use rustix::io::Errno;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::Arc;
use tidemill_client::object_file;

/// Mode of an object file before its seal.
pub(super) const UNSEALED_MODE: u32 = 0o600;

impl Fs {
    /// Whether programs on this mount that have the file open directly can continue with the next version.
    pub(super) fn readers_can_follow(&self, vnode: &CachedInode) -> bool {
        let reader = vnode.state.lock().bound_now();
        match reader {
            Some((object, true)) => object
                .local()
                .is_some_and(|file| is_ours(file, &object) && !held_by_others(file)),
            _ => true,
        }
    }

    /// Moves the new version `to`, whose file holds the first `kept` bytes of the version `from`, into the file of `from`. Returns `None`
    /// if that is impossible; `to` is then unchanged.
    ///
    /// # Errors
    /// Another process was found too late to read the file: the caller has to abandon `to`.
    pub(super) fn take_over(
        &self,
        to: &OpenObject,
        kept: u64,
        from: &OpenObject,
    ) -> Result<Option<OpenObject>, Error> {
        let (ObjectData::Local(copy), ObjectData::Local(read)) = (&to.data, &from.data) else {
            return Ok(None);
        };
        if self.backend.hands_out() {
            // Programs may have kept descriptors of the old version.
            return Ok(None);
        }
        let place = self.backend.place(to.node, WaitPolicy::MayWait)?;
        let Some(directory) = place.directory.filter(|_| to.node == from.node) else {
            return Ok(None);
        };
        if !is_ours(read, from) {
            return Ok(None);
        }
        to.copy_data(from, kept, from.stat()?.size)?;
        look_like(copy, read)?;
        // Bytes that were durable under the old name have to be durable after the exchange.
        copy.sync_all()?;
        let (new, old) = (
            object_path(&directory, to.id),
            object_path(&directory, from.id),
        );
        if let Err(errno) = renameat_with(CWD, &new, CWD, &old, RenameFlags::EXCHANGE) {
            tracing::debug!("files can't be exchanged on this device: {errno}");
            open_to_writers(copy, place.owner)?;
            to.truncate(kept)?;
            return Ok(None);
        }
        // From here on no process can open the file by its old name. Processes that opened it before are visible now.
        if !is_ours(read, from) || held_by_others(read) {
            return Err(Errno::STALE.into());
        }
        let (file, opened_first) = writable(read, from, &new)?;
        open_to_writers(&file, place.owner)?;
        let mut object = OpenObject::new(to.id, to.node, ObjectData::Local(file), to.right.clone());
        object.opened_first = opened_first;
        if object.stat()?.size != kept {
            object.truncate(kept)?;
        }
        Ok(Some(object))
    }
}

/// Whether the file has one name, and this mount is the only program of this cluster that has it open.
fn is_ours(file: &File, object: &OpenObject) -> bool {
    let openings: Vec<_> = std::iter::once(file)
        .chain(object.opened_first.as_deref())
        .collect();
    file.metadata().is_ok_and(|stat| stat.nlink() == 1) && object_file::alone(&openings)
}

/// Returns the file of `object`, which is at `path` now, opened for writing, and the previous descriptor, if it is another one.
fn writable(
    read: &Arc<File>,
    object: &OpenObject,
    path: &Path,
) -> Result<(Arc<File>, Option<Arc<File>>), Error> {
    let (is, was) = (path.symlink_metadata()?, read.metadata()?);
    if (is.dev(), is.ino()) != (was.dev(), was.ino()) {
        return Err(Errno::STALE.into());
    }
    if fcntl_getfl(read)? & OFlags::RWMODE == OFlags::RDWR {
        return Ok((read.clone(), object.opened_first.clone()));
    }
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    object_file::hold(&file)?;
    Ok((Arc::new(file), Some(read.clone())))
}

/// Gives a copy the owner, mode and time of the original.
fn look_like(copy: &File, original: &File) -> Result<(), Error> {
    let stat = original.metadata()?;
    fchown(copy, Some(stat.uid()), Some(stat.gid()))?;
    copy.set_permissions(Permissions::from_mode(stat.mode() & 0o7777))?;
    Ok(copy.set_modified(stat.modified()?)?)
}

/// Gives a file the owner and mode of an object that is being written.
pub(super) fn open_to_writers(file: &File, owner: Option<(u32, u32)>) -> Result<(), Error> {
    let us = || {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        (uid.as_raw(), gid.as_raw())
    };
    let (uid, gid) = owner.unwrap_or_else(us);
    fchown(file, Some(uid), Some(gid))?;
    Ok(file.set_permissions(Permissions::from_mode(UNSEALED_MODE))?)
}
