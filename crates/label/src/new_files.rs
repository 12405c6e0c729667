//! Many new small files, created by one call of the mount (next: `mount/src/fs/control/new_files.rs`).
//!
//! A file that cannot be created in this way is written as a single file, which reports the reason: its name exists, its directory is not
//! writable, a node is full or the mount is unreachable. So the result of an unanswered call need not be known: a label that is carried out
//! again writes the same bytes to the same offset.

use crate::app::{CUT, DURABLE};
use crate::log::{Log, LogRecord, RequestKind};
use crate::root::MountRoot;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, makedev, openat, statx};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// First bytes of a call, with the version of its format.
const MAGIC: &[u8; 4] = b"TMNF";
const VERSION: u32 = 1;
/// Maximum number of files of one call, which is the number of files that one request seals.
pub(crate) const FILES_MAX: usize = 256;
/// Maximum size in bytes of a file that is created by a call, because the Linux kernel writes larger files faster.
const DATA_BYTES_MAX: u64 = 64 << 10;
/// Size in bytes of a call from which no file is added. With the last file, the call stays below the largest write of the Linux kernel.
const CALL_BYTES_FULL: usize = 512 << 10;
/// Number of bytes of a call, and of each file in it, in addition to the file's name and data.
const HEAD: usize = 12;
const FILE_HEAD: usize = 20;
/// The inode of a mount's root, and the maximum depth of an application's directory below it.
const ROOT: u64 = 1;
const DEPTH_MAX: usize = 64;
/// Flags for opening a directory from which look-ups start.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The mount's file that accepts calls: one open file for each calling thread.
#[derive(Default)]
pub(crate) struct MountCalls(Mutex<Vec<(File, u64)>>);

/// An open file of the mount, and the number of its device.
type MountFile = (File, u64);

/// Whether the labels of one file, in their order, create a whole new file that is small enough.
pub(crate) fn fits(log: &Log, records: &[LogRecord]) -> bool {
    let mut end = 0;
    for record in records {
        let cuts = record.flags & CUT != 0 && end > 0;
        let apart =
            record.kind != RequestKind::Write || record.again || record.flags & DURABLE != 0;
        if apart || cuts || record.offset != end {
            return false;
        }
        end += record.size;
    }
    let named = records
        .first()
        .is_some_and(|first| split(log.paths(first)).is_some());
    named && end <= DATA_BYTES_MAX
}

/// Returns the parent directory of a path and its last name; `None` if the path has no name.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|&byte| byte == b'/');
    let (directory, name) = match at {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    };
    let named = !name.is_empty() && name != b"." && name != b"..";
    named.then_some((directory, name))
}

impl MountCalls {
    /// Creates the files of labels, from the first label on. Returns the number of files with a known result, and which of them exist.
    pub(crate) fn make(
        &self,
        root: &MountRoot,
        log: &Log,
        files: &[Vec<LogRecord>],
    ) -> (usize, Vec<bool>) {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let opened = match kept {
            Some(kept) => kept,
            None => match open(root) {
                Ok(opened) => opened,
                Err(_) => return (files.len(), vec![false; files.len()]),
            },
        };
        let (call, taken, held) = call(root, log, files, opened.1);
        let mut made = vec![false; taken];
        let reported = tell(&opened.0, &call, held.len());
        for (at, errno) in held.iter().zip(reported.iter().flatten()) {
            made[*at] = *errno == 0;
        }
        // A call without an answer may belong to a mount that has ended.
        if reported.is_some() {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(opened);
        }
        (taken, made)
    }
}

fn open(root: &MountRoot) -> Result<MountFile> {
    let user = rustix::process::geteuid().as_raw();
    let path = format!("{}/{user}/new-files", crate::jobs::CONTROL);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(openat(top(root)?, path, flags, Mode::empty())?);
    let device = device(&file)?.0;
    Ok((file, device))
}

/// Opens the root of the mount. The application's directory may be deeper, where users can imitate the control directory.
fn top(root: &MountRoot) -> Result<OwnedFd> {
    let mut directory = root.open()?;
    let (mount, mut inode) = device(&directory)?;
    for _ in 0..DEPTH_MAX {
        if inode == ROOT {
            return Ok(directory);
        }
        directory = openat(&directory, c"..", DIRECTORY, Mode::empty())?;
        let above = device(&directory)?;
        if above.0 != mount {
            break;
        }
        inode = above.1;
    }
    Err(Errno::NOENT.into())
}

/// Returns the device number and inode of a file, as the Linux kernel reports them.
fn device(file: impl AsFd) -> Result<(u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let is = statx(file, c"", flags, StatxFlags::INO)?;
    Ok((makedev(is.stx_dev_major, is.stx_dev_minor), is.stx_ino))
}

/// Returns the inode of a directory, if it is on the device `wanted` and can be reached.
fn directory(root: &MountRoot, path: &[u8], wanted: u64) -> Option<u64> {
    let root = root.open().ok()?;
    let directory = if path.is_empty() {
        root
    } else {
        let path = Path::new(OsStr::from_bytes(path));
        openat(&root, path, DIRECTORY, Mode::empty()).ok()?
    };
    let (device, inode) = device(&directory).ok()?;
    (device == wanted).then_some(inode)
}

/// Returns the bytes of a call for as many files as one call may have, the number of files that were considered, and the files in the call.
fn call(
    root: &MountRoot,
    log: &Log,
    files: &[Vec<LogRecord>],
    device: u64,
) -> (Vec<u8>, usize, Vec<usize>) {
    let mut directories: HashMap<&[u8], Option<u64>> = HashMap::new();
    let (mut call, mut held) = (vec![0; HEAD], Vec::new());
    let mut taken = 0;
    for records in files.iter().take(FILES_MAX) {
        if call.len() >= CALL_BYTES_FULL {
            break;
        }
        let at = taken;
        taken += 1;
        let Some((path, name)) = records.first().and_then(|first| split(log.paths(first))) else {
            continue;
        };
        let inode = directories
            .entry(path)
            .or_insert_with(|| directory(root, path, device));
        let Some(inode) = *inode else { continue };
        held.push(at);
        let size: u64 = records.iter().map(|record| record.size).sum();
        let numbers = [root.new_mode(), name.len() as u64, size];
        call.reserve(FILE_HEAD + name.len() + usize::try_from(size).unwrap_or(0));
        call.extend_from_slice(&inode.to_le_bytes());
        for number in numbers {
            call.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        }
        call.extend_from_slice(name);
        records
            .iter()
            .for_each(|record| call.extend_from_slice(log.data(record)));
    }
    let count = u32::try_from(held.len()).unwrap_or(0);
    call[..4].copy_from_slice(MAGIC);
    call[4..8].copy_from_slice(&VERSION.to_le_bytes());
    call[8..HEAD].copy_from_slice(&count.to_le_bytes());
    (call, taken, held)
}

/// Sends a call for `count` files. Returns an errno for each file, 0 if the file exists; `None` if the results are unknown.
fn tell(file: &File, call: &[u8], count: usize) -> Option<Vec<i32>> {
    if count == 0 {
        return Some(Vec::new());
    }
    match file.write_at(call, 0) {
        Ok(written) => return (written == call.len()).then(|| vec![0; count]),
        // The mount may have received the call, or not.
        Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => return None,
        Err(_) => {}
    }
    let mut reported = vec![0; count * 4 + 1];
    let read = crate::execute::read_at(file, &mut reported, 0).ok()?;
    let errnos = reported[..read].chunks_exact(4);
    let errnos = errnos.filter_map(|errno| Some(i32::from_le_bytes(errno.try_into().ok()?)));
    (read == count * 4).then(|| errnos.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_split_returns_directory_and_last_name() {
        assert_eq!(split(b"a"), Some((&b""[..], &b"a"[..])));
        assert_eq!(split(b"a/b/c"), Some((&b"a/b"[..], &b"c"[..])));
        for path in [&b""[..], b"a/", b".", b"a/..", b".."] {
            assert_eq!(split(path), None, "{path:?}");
        }
    }
}
