//! Leases and open-file locks: reports whether other processes have a file open.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// Maximum number of processes that a list of writers names.
const NAMED_MAX: usize = 8;

/// Command that chooses the signal for a broken lease (`fcntl(2)`).
const F_SETSIG: libc::c_int = 10;

/// Returns whether any process has the file open for writing: by a descriptor, by a map into memory, or through a file system that passes
/// reads and writes on to the file (FUSE passthrough). `file` must be open for reading only. Returns `None` if the file system, or the
/// owner of the file, does not let this process ask.
///
/// The system grants a lease for reading only while there is no writer. The lease is released at once.
#[must_use]
pub fn has_writers(file: &File) -> Option<bool> {
    let set = |what: libc::c_int, value: libc::c_int| {
        // SAFETY: the descriptor is open as long as `file` is, and the call takes a number and touches no memory of ours.
        match unsafe { libc::fcntl(file.as_raw_fd(), what, value) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // A process that opens the file for writing while this process has the lease waits until the lease is released, and this process gets
    // a signal. That signal must do nothing, because the usual signal (SIGIO) would end this process.
    set(F_SETSIG, libc::SIGURG).ok()?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => set(libc::F_SETLEASE, libc::F_UNLCK)
            .is_ok()
            .then_some(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(true),
        Err(_) => None,
    }
}

/// A file that is identified as in `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct ProcFile<'a> {
    /// Inode of the file.
    pub inode: u64,
    /// Last component of the file's path.
    pub name: &'a OsStr,
}

/// Returns the processes that have any of these files open for writing, as far as `/proc` shows them. The text is for people, and is empty
/// if no process is found.
///
/// The function does not access the files themselves, because a file system that hangs would block it.
#[must_use]
pub fn who_writes(files: &[ProcFile<'_>]) -> String {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name();
        let Some(pid) = pid.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let open = std::fs::read_dir(process.path().join("fdinfo"));
        let writes = open.into_iter().flatten().flatten().any(|about| {
            let text = std::fs::read_to_string(about.path()).unwrap_or_default();
            let Some(inode) = written_inode(&text) else {
                return false;
            };
            let link = process.path().join("fd").join(about.file_name());
            let path = std::fs::read_link(link).unwrap_or_default();
            files
                .iter()
                .any(|file| file.inode == inode && path.file_name() == Some(file.name))
        });
        if writes && pid != std::process::id() {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} ({pid})", name.trim_end()));
        }
        if found.len() == NAMED_MAX {
            break;
        }
    }
    found.join(", ")
}

/// Returns the inode of a descriptor that is open for writing, according to its `fdinfo`.
fn written_inode(text: &str) -> Option<u64> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let flags = i32::from_str_radix(field("flags:")?.trim(), 8).ok()?;
    let inode = field("ino:")?.trim().parse().ok()?;
    (flags & libc::O_ACCMODE != libc::O_RDONLY).then_some(inode)
}

/// Kind of a lock on a byte of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockType {
    /// At most one open file holds the lock.
    Exclusive,
    /// Any number of open files hold the lock.
    Shared,
}

/// Locks one byte of a file for as long as this process has the file open. Returns `false` if another process, or another open file of this
/// process, holds the lock. If `file` holds the lock already, the lock changes its kind.
///
/// # Errors
/// If the file system does not support open-file locks.
pub fn try_lock_byte(file: &File, byte: i64, lock: LockType) -> io::Result<bool> {
    let kind = match lock {
        LockType::Exclusive => libc::F_WRLCK,
        LockType::Shared => libc::F_RDLCK,
    };
    // SAFETY: all fields of the structure are integers, for which zero is a value.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::c_short::try_from(kind).unwrap_or_default();
    request.l_whence = libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default();
    request.l_start = byte;
    request.l_len = 1;
    // SAFETY: the descriptor is open as long as `file` is, and the structure lives longer than the call, which reads it.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_writers_detects_open_and_mapped_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        if has_writers(&reader).is_none() {
            eprintln!("SKIPPED: no leases on {}", directory.path().display());
            return;
        }
        assert_eq!(has_writers(&reader), Some(true));
        let other = File::options().append(true).open(&path).unwrap();
        drop(writer);
        assert_eq!(has_writers(&reader), Some(true));
        drop(other);
        assert_eq!(has_writers(&reader), Some(false));
        // The lease is released, so a process that opens the file for writing does not wait.
        let again = File::options().write(true).open(&path).unwrap();
        assert_eq!(has_writers(&reader), Some(true));
        drop(again);
    }

    #[test]
    fn has_writers_does_not_disturb_concurrent_opener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let mut opener = std::process::Command::new("python3")
            .args([
                "-c",
                "import os,sys\nwhile True: os.close(os.open(sys.argv[1],os.O_WRONLY))",
            ])
            .arg(&path)
            .spawn()
            .unwrap();
        let mut seen = 0;
        for _ in 0..200_000 {
            seen += usize::from(has_writers(&reader) == Some(true));
            if seen > 100 {
                break;
            }
        }
        opener.kill().unwrap();
        opener.wait().unwrap();
    }

    #[test]
    fn list_of_writers_names_process_that_writes_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let file = File::create(&path).unwrap();
        let shown = |name: &'static str| ProcFile {
            inode: std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()),
            name: OsStr::new(name),
        };
        assert_eq!(who_writes(&[shown("f")]), "");
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .stdout(file.try_clone().unwrap())
            .spawn()
            .unwrap();
        let (who, other) = (who_writes(&[shown("f")]), who_writes(&[shown("g")]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            (who, other),
            (format!("sleep ({})", child.id()), String::new())
        );
        let about = |flags: &str| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t9\nino:\t77\n");
        assert_eq!(written_inode(&about("0100001")), Some(77));
        assert_eq!(written_inode(&about("0100000")), None);
    }

    #[test]
    fn byte_lock_excludes_other_open_files_of_process() {
        let directory = tempfile::tempdir().unwrap();
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.open(directory.path().join("f")).unwrap()
        };
        let (first, second) = (open(), open());
        assert!(try_lock_byte(&first, 128, LockType::Exclusive).unwrap());
        assert!(!try_lock_byte(&second, 128, LockType::Shared).unwrap());
        assert!(try_lock_byte(&first, 128, LockType::Shared).unwrap());
        assert!(try_lock_byte(&second, 128, LockType::Shared).unwrap());
        assert!(!try_lock_byte(&first, 128, LockType::Exclusive).unwrap());
        drop(second);
        assert!(try_lock_byte(&first, 128, LockType::Exclusive).unwrap());
    }
}
