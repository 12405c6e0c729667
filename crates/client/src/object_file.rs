//! Object files in place: on the host where their element keeps them.
//!
//! A sealed one never changes, for whoever has it open. But a mount whose programs read a version may take that version's file for the one they write next, if nobody
//! else has it open (`docs/decisions/0007-one-file-while-written.md`); the version itself then goes on in a copy.
//! So whoever opens an object file directly holds a shared lock on it, and looks whether it still is the object's.
//!
//! Programs that were given a descriptor of a file can hold the other kind of lock on it for as long as they like. Readers
//! that meet one put a mark on the file instead, a lock of a byte for which such a descriptor is not enough: who wants
//! to take the file looks for marks as well.

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

/// How often a file that is being taken is opened again, one pause apart.
const TRIES_MAX: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);
/// Tries after which a lock that refuses a reader is not one of a mount that takes the file: those are short.
const TRIES_OF_LOCK_MAX: u32 = 100;
/// The byte that is marked: the last one, behind those that say that open files are open (`HANDLES_AT`).
const MARK_AT: i64 = i64::MAX - 1;

/// Opens the file of a sealed object. Its bytes stay what they are for as long as it is open.
///
/// # Errors
/// What opening it gives; `ResourceBusy` if it is replaced again and again.
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
            // It became another object's file, or is about to.
            Ok(()) | Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            // Nobody takes files where there are no locks.
            Err(_) => return Ok(file),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// A lock of the byte that is marked.
fn lock_of_mark(kind: i32) -> nix::libc::flock {
    nix::libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: i16::try_from(nix::libc::SEEK_SET).unwrap_or(0),
        l_start: MARK_AT,
        l_len: 1,
        l_pid: 0,
    }
}

/// Marks an open file, for as long as it is open; says whether it is. Only who may write to it could refuse that.
fn mark(file: &File) -> bool {
    let lock = lock_of_mark(nix::libc::F_RDLCK);
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).is_ok()
}

/// Whether somebody else has marked the file. Where there are no such locks nobody has.
fn is_marked(file: &File) -> bool {
    let mut lock = lock_of_mark(nix::libc::F_WRLCK);
    let seen = fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock));
    seen.is_ok() && i32::from(lock.l_type) != nix::libc::F_UNLCK
}

/// Says that the file is open here, for as long as it is.
///
/// # Errors
/// `EWOULDBLOCK` if somebody is about to take it, others if the file system has no locks.
pub fn hold(file: &File) -> Result<(), Errno> {
    flock(file, FlockOperation::NonBlockingLockShared)
}

/// Whether nobody holds a file ([`hold`]) but by these openings of it, which hold it afterwards as well.
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
    // Either way: an attempt that fails loses the shared lock. Nobody has the other kind for long.
    for opening in openings {
        alone &= flock(opening, FlockOperation::LockShared).is_ok();
    }
    alone && !is_marked(first)
}

/// Whether the path still leads to the file, or to nothing: the object was removed.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match path.symlink_metadata() {
        Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Copies the bytes `from..to` to the same place of another file, and nothing for holes. The other file is that long
/// at least afterwards.
///
/// # Errors
/// What the system says; `EXDEV` if the device can't copy between the two.
pub fn copy_data(source: &File, target: &File, from: u64, to: u64) -> Result<(), Errno> {
    let mut at = from;
    while at < to {
        at = match seek(source, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole up to the end.
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

/// Makes a file that has no name yet and is to be at `path`; `None` where the file system has no such files.
#[must_use]
pub fn nameless(path: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open_file(path.parent()?, flags, Mode::from_raw_mode(mode)).ok()?;
    Some(File::from(file))
}

/// Gives a [`nameless`] file its name.
///
/// # Errors
/// What the system says.
pub fn name(file: &File, path: &Path) -> Result<(), Errno> {
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_is_false_while_file_is_open_elsewhere() {
        let path = std::env::temp_dir().join(format!("tidemill-sealed-{}", std::process::id()));
        std::fs::write(&path, "text").unwrap();
        let (one, two) = (open(&path).unwrap(), open(&path).unwrap());
        assert!(!alone(&[&one]));
        assert!(alone(&[&one, &two]));
        // The second still holds it.
        assert!(!alone(&[&one]));
        drop(two);
        assert!(alone(&[&one]));
        // A copy that takes its place is what is opened from then on.
        let copy = path.with_extension("copy");
        std::fs::write(&copy, "copy").unwrap();
        std::fs::rename(&copy, &path).unwrap();
        assert!(!is_at(&one, &path).unwrap());
        assert!(is_at(&open(&path).unwrap(), &path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(is_at(&one, &path).unwrap());
    }
    #[test]
    fn reader_lock_never_blocks_other_readers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("object");
        std::fs::write(&path, "text").unwrap();
        let own = open(&path).unwrap();
        flock(&own, FlockOperation::Unlock).unwrap();
        let hostile = File::open(&path).unwrap();
        flock(&hostile, FlockOperation::NonBlockingLockExclusive).unwrap();
        let reader = open(&path).unwrap();
        let another = open(&path).unwrap();
        assert_eq!(std::io::read_to_string(&reader).unwrap(), "text");
        // And when that lock is gone nobody takes the file from those who read it.
        drop(hostile);
        assert!(!alone(&[&own]));
        drop(reader);
        assert!(!alone(&[&own]));
        drop(another);
        assert!(alone(&[&own]));
    }

    #[test]
    fn file_copy_keeps_holes_and_appears_whole() {
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
