//! Direct access to object files, on the host where their node stores them. The module opens, locks, copies and names object files.
//!
//! A sealed file never changes for its openers. But a mount whose programs read a version may reuse the version's file for the next version
//! that they write, if it is not open elsewhere (`docs/decisions/0007-one-inode-per-file.md`). The earlier version then continues in a
//! copy. So each direct opener of an object file holds a shared lock on the file, and checks whether the file still belongs to the object.
//!
//! A program with a descriptor of a file can hold a conflicting lock on the file for as long as it likes. Readers that find such a lock put
//! a mark on the file instead: a lock of a byte that needs more than such a descriptor. A mount that wants to reuse the file looks for
//! marks as well.

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, SeekFrom, copy_file_range, flock, linkat,
    open as open_file, seek,
};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Maximum number of attempts to open a file that a mount is reusing.
const TRIES_MAX: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);
/// Number of attempts after which a lock that refuses a reader is a program's lock: the locks of a mount that reuses a file are short.
const TRIES_OF_LOCK_MAX: u32 = 100;
/// Offset of the byte whose lock is the mark: the last byte, after the bytes that mark open files as open (`HANDLES_AT`).
const MARK_AT: i64 = i64::MAX - 1;

/// Opens the file of a sealed object. The file's bytes do not change for as long as it is open.
///
/// # Errors
/// The error of the open; `ResourceBusy` if the file is replaced during each attempt.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for tried in 0..TRIES_MAX {
        let file = File::from(open_file(path, flags, Mode::empty())?);
        match hold(&file) {
            Ok(()) if is_at(&file, path)? => return Ok(file),
            Err(Errno::WOULDBLOCK)
                if tried >= TRIES_OF_LOCK_MAX && mark(&file) && is_at(&file, path)? =>
            {
                return Ok(file);
            }
            // The file became another object's file, or is about to.
            Ok(()) | Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            // Without locks no mount takes files.
            Err(_) => return Ok(file),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Returns the lock of the byte [`MARK_AT`].
fn lock_of_mark(kind: i32) -> nix::libc::flock {
    nix::libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: i16::try_from(nix::libc::SEEK_SET).unwrap_or(0),
        l_start: MARK_AT,
        l_len: 1,
        l_pid: 0,
    }
}

/// Marks a file for as long as it is open. Returns whether it is marked. Only a process that may write the file could prevent the mark.
fn mark(file: &File) -> bool {
    let lock = lock_of_mark(nix::libc::F_RDLCK);
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).is_ok()
}

/// Whether another process has marked the file. If the file system has no such locks, there are no marks.
fn is_marked(file: &File) -> bool {
    let mut lock = lock_of_mark(nix::libc::F_WRLCK);
    let seen = fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock));
    seen.is_ok() && i32::from(lock.l_type) != nix::libc::F_UNLCK
}

/// Locks the file as open, for as long as it is open in this process.
///
/// # Errors
/// `EWOULDBLOCK` if a mount is about to reuse the file; other errors if the file system has no locks.
pub fn hold(file: &File) -> Result<(), Errno> {
    flock(file, FlockOperation::NonBlockingLockShared)
}

/// Whether only these descriptors of a file have locked it by [`hold`]. The descriptors keep their locks.
#[must_use]
pub fn alone(openings: &[&File]) -> bool {
    let Some((first, rest)) = openings.split_first() else {
        return false;
    };
    let mut alone = true;
    for other in rest {
        alone &= flock(other, FlockOperation::Unlock).is_ok();
    }
    alone &= flock(first, FlockOperation::NonBlockingLockExclusive).is_ok();
    // In either case: a failed attempt loses the shared lock. The exclusive lock is always short.
    for opening in openings {
        alone &= flock(opening, FlockOperation::LockShared).is_ok();
    }
    alone && !is_marked(first)
}

/// Whether the path still leads to the file, or to no file because the object was removed.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match path.symlink_metadata() {
        Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Copies the bytes `from..to` to the same offsets of another file, and skips holes. The other file is at least `to` bytes long afterwards.
///
/// # Errors
/// The error of the system call; `EXDEV` if the device cannot copy between the two files.
pub fn copy_data(source: &File, target: &File, from: u64, to: u64) -> Result<(), Errno> {
    let mut at = from;
    while at < to {
        at = match seek(source, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole up to the end.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        if at >= to {
            break;
        }
        let hole = seek(source, SeekFrom::Hole(at))?.min(to);
        let mut out = at;
        while at < hole {
            let rest = usize::try_from(hole - at).unwrap_or(usize::MAX);
            if copy_file_range(source, Some(&mut at), target, Some(&mut out), rest)? == 0 {
                return Err(Errno::IO);
            }
        }
    }
    let size = target.metadata().map_err(|_| Errno::IO)?.len();
    if size < to {
        rustix::fs::ftruncate(target, to)?;
    }
    Ok(())
}

/// Creates a file without a name that will get the name `path`; `None` if the file system does not support such files.
#[must_use]
pub fn nameless(path: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open_file(path.parent()?, flags, Mode::from_raw_mode(mode)).ok()?;
    Some(File::from(file))
}

/// Gives a file of [`nameless`] its name.
///
/// # Errors
/// The error of the system call.
pub fn name(file: &File, path: &Path) -> Result<(), Errno> {
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_file_is_not_alone_while_open_in_other_process() {
        let path = std::env::temp_dir().join(format!("tidemill-sealed-{}", std::process::id()));
        std::fs::write(&path, "text").unwrap();
        let (one, two) = (open(&path).unwrap(), open(&path).unwrap());
        assert!(!alone(&[&one]));
        assert!(alone(&[&one, &two]));
        // The second opening still holds it.
        assert!(!alone(&[&one]));
        drop(two);
        assert!(alone(&[&one]));
        // A copy that takes its place is opened from then on.
        let copy = path.with_extension("copy");
        std::fs::write(&copy, "copy").unwrap();
        std::fs::rename(&copy, &path).unwrap();
        assert!(!is_at(&one, &path).unwrap());
        assert!(is_at(&open(&path).unwrap(), &path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(is_at(&one, &path).unwrap());
    }
    #[test]
    fn object_file_lock_of_reader_never_blocks_other_readers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("object");
        std::fs::write(&path, "text").unwrap();
        let own = open(&path).unwrap();
        flock(&own, FlockOperation::Unlock).unwrap();
        let hostile = File::open(&path).unwrap();
        flock(&hostile, FlockOperation::NonBlockingLockExclusive).unwrap();
        let reader = open(&path).unwrap();
        let another = open(&path).unwrap();
        assert_eq!(std::io::read_to_string(&reader).unwrap(), "text");
        // After the end of that lock, no mount takes the file from its readers.
        drop(hostile);
        assert!(!alone(&[&own]));
        drop(reader);
        assert!(!alone(&[&own]));
        drop(another);
        assert!(alone(&[&own]));
    }

    #[test]
    fn object_file_copy_keeps_holes_and_appears_complete() {
        use std::os::unix::fs::FileExt;
        let path = std::env::temp_dir().join(format!("tidemill-copy-{}", std::process::id()));
        let Some(source) = nameless(&path, 0o600) else {
            eprintln!("SKIPPED: no nameless files here");
            return;
        };
        source.write_all_at(b"begin", 0).unwrap();
        source.write_all_at(b"end", 64 << 20).unwrap();
        source.set_len(128 << 20).unwrap();
        let copy = nameless(&path, 0o600).unwrap();
        copy_data(&source, &copy, 0, 128 << 20).unwrap();
        assert!(!path.exists());
        name(&copy, &path).unwrap();
        let stat = path.metadata().unwrap();
        assert_eq!(stat.len(), 128 << 20);
        assert!(stat.blocks() * 512 < 1 << 20, "{}", stat.blocks());
        let mut bytes = [0; 8];
        copy.read_exact_at(&mut bytes, (64 << 20) - 5).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0\0end");
        // A part of it.
        let part = nameless(&path, 0o600).unwrap();
        copy_data(&source, &part, 0, 3).unwrap();
        assert_eq!(part.metadata().unwrap().len(), 3);
        std::fs::remove_file(&path).unwrap();
    }
}
