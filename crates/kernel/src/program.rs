//! Finds programs and hashes the code of kernels.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use parking_lot::Mutex;

use crate::builtin;
use crate::run::User;

/// Hashes that are remembered; when full, all are forgotten.
const HASHES_MAX: usize = 4096;

/// Longest first line of a script that the operating system reads.
const FIRST_LINE_BYTES: usize = 256;

/// What tells one state of a file from another.
type Version = (PathBuf, u64, u64, u64, i64, i64, i64, i64);

static HASHES: LazyLock<Mutex<HashMap<Version, String>>> = LazyLock::new(Mutex::default);

/// Finds a program: an absolute path as it is, a name in the folders of `path`, in their order. Only plain
/// files with a right to be executed are found.
#[must_use]
pub fn find_program(name: &str, path: &[PathBuf]) -> Option<PathBuf> {
    let executable = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|data| data.is_file() && data.mode() & 0o111 != 0)
    };
    if name.is_empty() {
        return None;
    }
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| file.is_absolute() && executable(file));
    }
    path.iter().map(|folder| folder.join(name)).find(executable)
}

/// The blake3 hash of a file, in hexadecimal. Remembered as long as device, inode, size, time of change
/// and of status change stay the same.
///
/// # Errors
/// If it cannot be read.
pub fn hash_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let data = file.metadata()?;
    let version = version(path, &data);
    if let Some(hash) = HASHES.lock().get(&version) {
        return Ok(hash.clone());
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut file)?;
    let hash = hasher.finalize().to_hex().to_string();
    let mut hashes = HASHES.lock();
    if hashes.len() >= HASHES_MAX {
        hashes.clear();
    }
    hashes.insert(version, hash.clone());
    Ok(hash)
}

fn version(path: &Path, data: &Metadata) -> Version {
    let changed = (
        data.mtime(),
        data.mtime_nsec(),
        data.ctime(),
        data.ctime_nsec(),
    );
    (
        path.to_owned(),
        data.dev(),
        data.ino(),
        data.len(),
        changed.0,
        changed.1,
        changed.2,
        changed.3,
    )
}

/// The hash that stands for a built-in kernel, in hexadecimal: of its name, its revision and the version
/// of this crate, so that it is the same on all elements of one release. `None` if there is no such kernel.
#[must_use]
pub fn builtin_hash(name: &str) -> Option<String> {
    let revision = builtin::revision(name)?;
    let text = format!(
        "tidemill {} builtin {name} {revision}",
        env!("CARGO_PKG_VERSION")
    );
    Some(blake3::hash(text.as_bytes()).to_hex().to_string())
}

/// The hash that stands for a stack of kernels with these hashes, in hexadecimal.
#[must_use]
pub fn stack_hash(hashes: &[String]) -> String {
    let text = format!("tidemill stack {}", hashes.join(" "));
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// Opens a program for reading with the rights of a user, of whose groups only one is known, if that may also execute it.
///
/// # Errors
/// If it may not, or it is no plain file.
pub(crate) fn open_as(user: User, path: &Path) -> io::Result<File> {
    let open = || -> io::Result<File> {
        take_rights(user)?;
        let file = File::open(path)?;
        let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
        let (call, at, none) = (libc::SYS_faccessat2, file.as_raw_fd(), c"".as_ptr());
        // SAFETY: reads an empty path that is terminated, and asks for the rights of this thread.
        if unsafe { libc::syscall(call, at, none, libc::X_OK, flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(file)
    };
    // The rights of a thread are its own, and these end with it.
    let opened = thread::scope(|scope| scope.spawn(open).join());
    let file = opened.map_err(|_| io::Error::other("a thread failed"))??;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// Gives this thread the rights over files that a user has, for good.
fn take_rights(user: User) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // SAFETY: bare system calls with numbers, which concern this thread only; no list of groups is read.
    unsafe {
        if libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::syscall(libc::SYS_setfsgid, user.gid);
        libc::syscall(libc::SYS_setfsuid, user.uid);
        // Both say what was before; asking for nobody changes nothing.
        let nobody = u32::MAX;
        let (gid, uid) = (
            libc::syscall(libc::SYS_setfsgid, nobody),
            libc::syscall(libc::SYS_setfsuid, nobody),
        );
        if (uid, gid) != (user.uid.into(), user.gid.into()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    Ok(())
}

/// Whether everybody may read and execute a file, and pass through all folders above it.
pub(crate) fn open_to_all(path: &Path) -> bool {
    let has = |path: &Path, bits: u32| {
        fs::symlink_metadata(path).is_ok_and(|data| data.mode() & bits == bits)
    };
    // Folders above the link matter as well as those above the file.
    let passed = |path: &Path| path.ancestors().skip(1).all(|folder| has(folder, 0o001));
    let Ok(file) = path.canonicalize() else {
        return false;
    };
    (file == path || passed(path)) && passed(&file) && has(&file, 0o005)
}

/// The interpreter that a script names in its first line; `None` if it is no script.
pub(crate) fn interpreter(file: &File) -> io::Result<Option<String>> {
    let mut line = [0; FIRST_LINE_BYTES];
    let length = file.read_at(&mut line, 0)?;
    let line = &line[..length];
    let Some(rest) = line.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let rest = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let name = String::from_utf8_lossy(rest);
    Ok(Some(
        name.split_ascii_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned(),
    ))
}

/// Whether `user` may do all of `bits` (4 read, 2 write, 1 execute) with a file, without capabilities.
pub(crate) fn may(data: &Metadata, user: User, bits: u32) -> bool {
    let shift = if data.uid() == user.uid {
        6
    } else if data.gid() == user.gid {
        3
    } else {
        0
    };
    (data.mode() >> shift) & bits == bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_path() {
        let path = [
            PathBuf::from("/nowhere"),
            PathBuf::from("/usr/bin"),
            PathBuf::from("/bin"),
        ];
        assert!(find_program("sh", &path).unwrap().ends_with("sh"));
        assert_eq!(find_program("/bin/sh", &[]), Some("/bin/sh".into()));
        assert_eq!(find_program("no-such-program", &path), None);
        assert_eq!(find_program("bin/sh", &["/".into()]), None);
        assert_eq!(find_program("/etc/passwd", &path), None);
        assert_eq!(find_program("", &path), None);
    }

    #[test]
    fn a_hash_follows_the_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("code");
        fs::write(&file, "one").unwrap();
        let one = hash_file(&file).unwrap();
        assert_eq!(one, blake3::hash(b"one").to_hex().to_string());
        assert_eq!(hash_file(&file).unwrap(), one);
        fs::write(&file, "three").unwrap();
        assert_eq!(
            hash_file(&file).unwrap(),
            blake3::hash(b"three").to_hex().to_string()
        );
    }

    #[test]
    fn every_builtin_has_its_own_hash() {
        let mut hashes: Vec<_> = builtin::builtin_names()
            .iter()
            .map(|name| builtin_hash(name).unwrap())
            .collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), builtin::builtin_names().len());
        assert_eq!(builtin_hash("nothing"), None);
    }

    #[test]
    fn interpreters_are_read_from_the_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        fs::write(&file, "#! /usr/bin/env python3\nprint()\n").unwrap();
        let read = || interpreter(&File::open(&file).unwrap()).unwrap();
        assert_eq!(read().as_deref(), Some("/usr/bin/env"));
        fs::write(&file, "echo").unwrap();
        assert_eq!(read(), None);
    }
}
