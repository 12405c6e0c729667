//! Limit of the number of files that the mount knows because the Linux kernel knows them. The Linux kernel drops an inode only if it needs
//! memory, and the mount has a record of about 1 KB for each of them.
//!
//! Above the limit, this thread makes the Linux kernel drop the names of files that no program has open here. The kernel then drops the
//! inodes, and the mount their records. A program that uses such a file later looks its name up again. Directories stay as long as files
//! below them are known.

use super::Fs;
use super::watch::KernelCache;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Number of names that the Linux kernel drops between two looks.
const BATCH: usize = 1024;
/// Pause after a look, in which the Linux kernel reports the inodes that it dropped.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause after a look that found no file to drop, and the longest wait for more files.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Starts the thread that keeps the number of files of a file system at `most`. The thread ends with the file system.
pub(crate) fn limit(fs: &Arc<Fs>, kernel: impl KernelCache, most: usize) -> std::io::Result<()> {
    fs.table.limit(most);
    let fs = Arc::downgrade(fs);
    std::thread::Builder::new()
        .name("cached-files".into())
        .spawn(move || while look(&fs, &kernel) {})?;
    Ok(())
}

/// Drops some files if there are too many. Returns whether the file system still exists.
fn look(fs: &Weak<Fs>, kernel: &impl KernelCache) -> bool {
    let Some(fs) = fs.upgrade() else {
        return false;
    };
    let excess = fs.table.excess(PAUSE_MAX);
    if excess == 0 {
        return true;
    }
    let unused = fs.table.unused(excess.min(BATCH));
    let found = !unused.is_empty();
    for (parent, name) in unused {
        kernel.forget_entry(parent, OsStr::from_bytes(&name));
    }
    std::thread::sleep(if found { PAUSE } else { PAUSE_MAX });
    true
}
