//! Mountpoints. The module finds mounts, detaches mounts of clusters and no others, and protects the bare directory from writes while
//! nothing is mounted on it. The module changes mounts, and the mode and flags of the directory.
//!
//! Programs see the bare directory when the mount has died: their writes are stored on the local disk, and the next mount hides them. So
//! the directory has to be empty, has no write permission in its mode, and is immutable where the file system allows this flag, which stops
//! root as well. The directory stays immutable when the mount is killed or another process unmounts it. An orderly end clears the flag, so
//! that the directory can be removed.

use crate::error::Error;
use crate::guard::{self, Guard};
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Source name of the cluster's mounts.
pub(crate) const SOURCE: &str = "tidemill";
/// Name of a file in the bare directory that explains the directory to root, whom its mode does not stop.
const NOTE: &str = "NOT-MOUNTED";
/// Text of the file [`NOTE`].
const NOTE_TEXT: &str = "Nothing is mounted here. This directory is where a cluster of Tidemill belongs: files that \
are written here are not in the cluster, and prevent the mount.\n";
/// Maximum number of stacked dead mounts that are detached from one directory.
const DEAD_MAX: usize = 16;
/// Time that a mount may take to answer; a mount that does not answer is not considered dead.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// `STATX_MNT_ID_UNIQUE`, since Linux 6.8.
const MOUNT_ID_UNIQUE: u32 = 0x4000;
/// Write permission of owner, group and others.
const WRITE_BITS: u32 = 0o222;
const OWNER_WRITE: u32 = 0o200;

/// A mounted file system and its mountpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mounted {
    /// Id of the mount, and id of the mounted file system.
    id: (u64, String),
    kind: String,
    source: String,
}

impl Mounted {
    fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }

    fn is_tidemill(&self) -> bool {
        self.is_fuse() && self.source == SOURCE
    }
}

/// Returns the file systems that are mounted on exactly this directory, the visible one last.
fn mounts_at(path: &Path) -> io::Result<Vec<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let lines = table.split(|&byte| byte == b'\n');
    Ok(lines
        .filter_map(|line| parse(line, path.as_os_str()))
        .collect())
}

/// Parses one line of `/proc/self/mountinfo`, if it describes a mount on `path`.
fn parse(line: &[u8], path: &OsStr) -> Option<Mounted> {
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    if unescape(fields.nth(1)?) != path.as_bytes() {
        return None;
    }
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    Some(Mounted {
        id: (id, device),
        kind: text(rest.next()?),
        source: text(&unescape(rest.next()?)),
    })
}

/// Decodes a field in which Linux writes spaces and backslashes as octal numbers.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(&byte) = field.get(at) {
        let code = field.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        plain.push(code.unwrap_or(byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    plain
}

/// Whether a path exists. The call does not ask a file system that is mounted on the path: a killed mount that cannot end never answers.
#[must_use]
pub fn is_there(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE);
    !matches!(found, Err(Errno::NOENT))
}

/// Returns the directory's path without symbolic links, even if a dead mount is on the directory.
fn real(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if gone(&error) => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(error);
            };
            Ok(parent.canonicalize()?.join(name))
        }
        other => other,
    }
}

/// Whether an error means that no process serves a mount any more.
fn gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED)
    )
}

/// Whether a file system of a cluster is mounted exactly on this path, and its process has not ended.
#[must_use]
pub fn is_mounted(path: &Path) -> bool {
    let mounted = |path: &PathBuf| {
        let mounts = mounts_at(path).unwrap_or_default();
        mounts.last().is_some_and(Mounted::is_tidemill) && !is_dead(path)
    };
    real(path).is_ok_and(|path| mounted(&path))
}

/// Whether the process that serves the mount has ended. A separate thread asks the mount, because a stopped process never answers.
fn is_dead(path: &Path) -> bool {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let answer = rustix::fs::statfs(&path).map_err(io::Error::from);
        // The receiver no longer waits: the answer took too long.
        let _ = sender.send(answer.is_err_and(|error| gone(&error)));
    });
    receiver.recv_timeout(SIGN_OF_LIFE).unwrap_or(false)
}

/// Detaches the topmost mount of a directory.
fn detach(path: &Path) -> io::Result<()> {
    let detached = match rustix::mount::unmount(path, UnmountFlags::empty()) {
        Err(Errno::BUSY) => rustix::mount::unmount(path, UnmountFlags::DETACH),
        other => other,
    };
    match detached {
        // Only root may do it directly.
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.args(["-u", "-z", "--"]).arg(path);
            let done = command.stdin(Stdio::null()).output()?;
            if done.status.success() {
                return Ok(());
            }
            Err(io::Error::other(
                String::from_utf8_lossy(&done.stderr).trim().to_owned(),
            ))
        }
        other => Ok(other?),
    }
}

/// Returns an error if another file system is mounted on the directory, or if the directory contains files, which a mount would hide. First
/// detaches the remains of a killed mount.
///
/// # Errors
/// The directory cannot be used; the error message explains the remedy.
pub fn check(path: &Path) -> Result<(), Error> {
    CoveredDirectory::open(path).map(drop)
}

/// Detaches the remains of a killed mount from a directory and makes the directory removable again. A live mount is not touched.
///
/// # Errors
/// The operating system refuses a change.
pub fn give_back(path: &Path) -> io::Result<()> {
    let path = match real(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if detach_dead(&path)?.is_none() {
        let directory = open(&path)?;
        set_immutable(&directory, false)?;
    }
    Ok(())
}

/// Aborts the Linux kernel's connection of a cluster's mount on this path: for a mount whose process was killed and cannot end, because one
/// of its threads waits for a program that waits for the thread.
///
/// # Errors
/// No file system of a cluster is mounted on the path, or the operating system refuses the abort.
pub fn abort(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let path = std::path::absolute(parent)?.canonicalize()?.join(name);
    let top = mounts_at(&path)?.pop().filter(Mounted::is_tidemill);
    let Some(top) = top else {
        return Err(io::ErrorKind::NotFound.into());
    };
    guard::abort(&guard::connection(&top.id.1)?);
    Ok(())
}

/// Detaches dead mounts of clusters from a directory. Returns the remaining mount.
fn detach_dead(path: &Path) -> io::Result<Option<Mounted>> {
    for _ in 0..DEAD_MAX {
        match mounts_at(path)?.pop() {
            Some(top) if top.is_tidemill() && is_dead(path) => {
                tracing::info!("detaching what an earlier mount left at {}", path.display());
                detach(path)?;
            }
            top => return Ok(top),
        }
    }
    Ok(mounts_at(path)?.pop())
}

/// Returns the unique number of the topmost mount on a path, if Linux provides one. Does not ask the mounted file system.
fn unique_id(path: &Path) -> Option<u64> {
    let wanted = StatxFlags::from_bits_retain(MOUNT_ID_UNIQUE);
    let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    (found.stx_mask & MOUNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id)
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn set_immutable(directory: &File, immutable: bool) -> io::Result<()> {
    let mut flags = match rustix::fs::ioctl_getflags(directory) {
        // The file system has no such flags.
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) if !immutable => {
            return Ok(());
        }
        other => other?,
    };
    if flags.contains(IFlags::IMMUTABLE) == immutable {
        return Ok(());
    }
    flags.set(IFlags::IMMUTABLE, immutable);
    Ok(rustix::fs::ioctl_setflags(directory, flags)?)
}

/// Directory that a mount covers.
#[derive(Debug)]
pub(crate) struct CoveredDirectory {
    path: PathBuf,
    directory: File,
}

impl CoveredDirectory {
    /// Opens the directory, if a file system can be mounted on it.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let at = |source| Error::Mount {
            path: path.display().to_string(),
            source,
        };
        let real = real(path).map_err(at)?;
        if let Some(top) = detach_dead(&real).map_err(at)?
            && top.is_fuse()
        {
            return Err(Error::Taken {
                path: path.display().to_string(),
                by: top.source,
            });
        }
        let directory = open(&real).map_err(at)?;
        for entry in std::fs::read_dir(&real).map_err(at)? {
            let name = entry.map_err(at)?.file_name();
            if name != NOTE {
                return Err(Error::Files {
                    path: path.display().to_string(),
                    name: name.display().to_string(),
                });
            }
        }
        let bare = Self {
            path: real,
            directory,
        };
        bare.admit_owner();
        Ok(bare)
    }

    /// Returns the path of the covered directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory writable for its owner: `fusermount3`, which users other than root mount with, requires that.
    fn admit_owner(&self) {
        if !rustix::process::geteuid().is_root() {
            // If the directory belongs to another user, mounting reports that.
            let _ = self.change_mode(|mode| mode | OWNER_WRITE);
        }
    }

    fn change_mode(&self, change: impl FnOnce(u32) -> u32) -> io::Result<()> {
        let mut permissions = self.directory.metadata()?.permissions();
        let mode = permissions.mode() & 0o7777;
        let changed = change(mode);
        if changed != mode {
            permissions.set_mode(changed);
            self.directory.set_permissions(permissions)?;
        }
        Ok(())
    }

    /// Makes the directory read-only for all users while nothing is mounted on it.
    pub(crate) fn protect(&self) {
        if let Err(error) = self.try_protect() {
            tracing::info!(
                "the directory {} below the mount can be written to after the unmount: {error}",
                self.path.display()
            );
        }
    }

    fn try_protect(&self) -> io::Result<()> {
        if rustix::process::geteuid().is_root() {
            self.leave_note()?;
        }
        self.change_mode(|mode| mode & !WRITE_BITS)?;
        match set_immutable(&self.directory, true) {
            // Only root may do that, and not on every file system: the mode and the note have to be enough.
            Err(error) => {
                tracing::debug!("{} can't be made immutable: {error}", self.path.display());
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn leave_note(&self) -> io::Result<()> {
        use io::Write;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o444);
        match rustix::fs::openat(&self.directory, NOTE, flags, mode) {
            Ok(file) => File::from(file).write_all(NOTE_TEXT.as_bytes()),
            // The note exists, perhaps in a directory that is immutable already.
            Err(Errno::EXIST | Errno::PERM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the directory removable.
    fn release(&self) {
        if let Err(error) = set_immutable(&self.directory, false) {
            tracing::debug!("{} stays immutable: {error}", self.path.display());
        }
    }
}

#[derive(Debug)]
pub(crate) struct OwnMount {
    bare: CoveredDirectory,
    /// Mount and its unique number; `None` if it was unmounted before this process looked it up.
    mounted: Option<(Mounted, Option<u64>)>,
}

impl OwnMount {
    /// Records the mount on the directory. The caller must have mounted the file system before.
    pub(crate) fn new(bare: CoveredDirectory) -> io::Result<Self> {
        let top = mounts_at(&bare.path)?.pop().filter(Mounted::is_tidemill);
        let mounted = top.map(|top| (top, unique_id(&bare.path)));
        bare.protect();
        Ok(Self { bare, mounted })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.bare.path
    }

    /// Starts the process that ends the mount's connection if this process is killed.
    pub(crate) fn guarded(&self) -> Option<Guard> {
        let (mounted, _) = self.mounted.as_ref()?;
        let guard = Guard::start(&mounted.id.1);
        let why = |error: &io::Error| {
            tracing::debug!("the mount's connection stays open if the mount is killed: {error}");
        };
        guard.inspect_err(why).ok()
    }

    /// Unmounts the file system and makes the directory removable. If another process has unmounted it, the directory stays protected. The
    /// function never touches other file systems on the directory.
    pub(crate) fn detach(&self) -> io::Result<()> {
        let Some((mounted, unique)) = &self.mounted else {
            return Ok(());
        };
        let mounts = mounts_at(&self.bare.path)?;
        match mounts.iter().position(|mount| mount == mounted) {
            None => Ok(()),
            // The system reuses the listed numbers of mounts.
            Some(at) if at + 1 == mounts.len() && unique_id(&self.bare.path) != *unique => Ok(()),
            Some(at) if at + 1 == mounts.len() => {
                detach(&self.bare.path)?;
                self.bare.release();
                Ok(())
            }
            Some(at) => {
                let above = &mounts[at + 1..];
                let names: Vec<&str> = above.iter().map(|mount| mount.source.as_str()).collect();
                Err(io::Error::other(format!(
                    "{} is mounted on top of it; unmount the top file system first, then this one (`umount {}`)",
                    names.join(", "),
                    self.bare.path.display()
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_matched_by_exact_path() {
        let line = b"36 35 0:98 / /a\\040b\\134c\\011 rw,nosuid shared:1 master:2 - fuse.tidemill tidemill rw";
        let found = parse(line, OsStr::new("/a b\\c\t")).unwrap();
        assert_eq!(found.id, (36, "0:98".into()));
        assert!(found.is_tidemill());
        assert!(parse(line, OsStr::new("/a b\\c")).is_none());
        assert!(parse(b"", OsStr::new("/")).is_none());
        let other = b"1 0 8:1 / / rw - ext4 tidemill rw";
        assert!(!parse(other, OsStr::new("/")).unwrap().is_fuse());
        assert!(!is_mounted(Path::new("/no/such/place")));
    }

    #[test]
    fn mountpoint_with_files_is_refused_with_a_file_name() {
        let directory = tempfile::tempdir().unwrap();
        check(directory.path()).unwrap();
        std::fs::write(directory.path().join(NOTE), NOTE_TEXT).unwrap();
        check(directory.path()).unwrap();
        std::fs::write(directory.path().join("results.nc"), "x").unwrap();
        let refused = check(directory.path()).unwrap_err();
        assert!(refused.is(Errno::NOTEMPTY));
        assert!(refused.to_string().contains("results.nc"), "{refused}");
        assert!(check(&directory.path().join("results.nc")).is_err());
    }

    #[test]
    fn protected_mountpoint_refuses_files_until_release() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mnt");
        std::fs::create_dir(&path).unwrap();
        let bare = CoveredDirectory::open(&path).unwrap();
        bare.protect();
        bare.protect();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & WRITE_BITS, 0);
        let immutable = |directory: &File| {
            rustix::fs::ioctl_getflags(directory).is_ok_and(|f| f.contains(IFlags::IMMUTABLE))
        };
        if rustix::process::geteuid().is_root() {
            assert!(path.join(NOTE).exists());
        }
        if immutable(&bare.directory) {
            assert!(std::fs::write(path.join("f"), "x").is_err());
        }
        check(&path).unwrap();
        give_back(&path).unwrap();
        assert!(!immutable(&bare.directory));
        std::fs::remove_dir_all(&path).unwrap();
        give_back(&path).unwrap();
    }
}
