//! Directory of a node of the memory tier. The module creates and mounts such directories.
//!
//! If the node runs as root, its directory is a file system in memory (tmpfs) of the node, mounted on the directory. The size of the file
//! system is a hard limit, also for direct writers. The file system stays mounted when the node ends, so that a killed process loses
//! nothing. The content of the file system is lost when the host restarts or when the file system is unmounted. Without root, the directory
//! is a link to a directory of the host's shared memory, and the node counts the used bytes.
//!
//! Intermediate files in memory are in such a directory, too, which kernels open by path. If the node runs as root, kernels run as other
//! users; if these users can't pass through the parent directories, the directory is also in the host's shared memory.

use crate::config::{NodeConfig, machine_memory_bytes};
use crate::db::{Db, DbError};
use crate::error::Error;
use crate::memory_outputs;
use crate::records;
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use std::ffi::CString;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Path of the host's shared memory.
const SHARED: &str = "/dev/shm";
/// Type of a file system in memory, as `statfs` returns it (`TMPFS_MAGIC` of Linux).
const TMPFS: i64 = 0x0102_1994;
/// Minimum capacity in bytes: the database reserves 12 MiB, and no file is placed on a node with less than 16 MiB of free space.
pub const CAPACITY_BYTES_MIN: u64 = 64 << 20;
/// Mode of a directory of shared memory that only its user can enter.
const PRIVATE: u32 = 0o700;
/// Mode of a directory of shared memory that other users can pass through but not list.
const PASSED: u32 = 0o711;
/// Mode bit that allows all users to pass through a directory.
const OTHERS_PASS: u32 = 0o001;
/// Key of the memory's number in the database table `identity`.
const MEMORY: &str = "memory";

/// Creates or finds the directory of a node of the memory tier. Returns whether the node must count the used bytes itself.
///
/// # Errors
/// [`Error::Memory`] with the reason.
pub(crate) fn prepare(config: &NodeConfig) -> Result<bool, Error> {
    let directory = &config.directory;
    let capacity = config.capacity_bytes.ok_or_else(|| Error::Memory {
        path: directory.clone(),
        why: "give its maximum size with --capacity".into(),
    })?;
    fits(directory, capacity, "--capacity")?;
    own_or_shared(directory, capacity, PRIVATE).map_err(|trouble| refused(directory, &trouble))
}

/// Creates or finds the directory, in the node's directory, for intermediate files in memory, with this capacity in bytes.
///
/// # Errors
/// [`Error::Memory`] with the reason.
pub(crate) fn prepare_memory_outputs(node: &Path, capacity: u64) -> Result<(), Error> {
    let directory = node.join(memory_outputs::DIRECTORY);
    fits(&directory, capacity, "--intermediate-memory")?;
    let root = rustix::process::geteuid().is_root();
    let closed = if root { closed_to_users(node) } else { None };
    let mode = if root { PASSED } else { PRIVATE };
    let linked = directory.is_symlink();
    let made = match closed {
        Some(closed) => leave_own(&directory, closed).and_then(|()| shared(&directory, mode)),
        // The link was created when users could not pass through, and its target may contain files.
        None if linked => shared(&directory, mode),
        None => own_or_shared(&directory, capacity, mode).map(drop),
    };
    made.map_err(|trouble| refused(&directory, &trouble))
}

fn refused(directory: &Path, trouble: &MemoryTierError) -> Error {
    Error::Memory {
        path: directory.to_owned(),
        why: trouble.to_string(),
    }
}

fn fits(directory: &Path, capacity: u64, flag: &str) -> Result<(), Error> {
    let most = machine_memory_bytes();
    if (CAPACITY_BYTES_MIN..=most).contains(&capacity) {
        return Ok(());
    }
    Err(Error::Memory {
        path: directory.to_owned(),
        why: format!(
            "{flag} is {capacity} bytes: give {CAPACITY_BYTES_MIN} at least and {most} at most, seven eighths of this machine's memory"
        ),
    })
}

/// Mounts a separate file system in memory on the directory or, if that is not allowed, creates a directory of shared memory with `mode`.
/// Returns whether the directory is in shared memory.
fn own_or_shared(directory: &Path, capacity: u64, mode: u32) -> Result<bool, MemoryTierError> {
    let own = match rustix::process::geteuid().is_root() {
        true => own(directory, capacity),
        false => Err(MemoryTierError::System(Errno::PERM.into())),
    };
    match own {
        Ok(()) => Ok(false),
        // Root of a container may not be allowed to mount either.
        Err(MemoryTierError::System(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            shared(directory, mode).map(|()| true)
        }
        Err(trouble) => Err(trouble),
    }
}

/// Returns the first directory on the path, from the root, that other users can't pass through.
fn closed_to_users(directory: &Path) -> Option<&Path> {
    let above: Vec<_> = directory.ancestors().collect();
    let closed = |directory: &&&Path| {
        let mode = directory.metadata().map(|data| data.mode());
        mode.is_ok_and(|mode| mode & OTHERS_PASS == 0)
    };
    above.iter().rev().find(closed).copied()
}

/// Unmounts the memory on the node's own directory, which kernels can no longer reach. Fails if the memory contains files.
fn leave_own(directory: &Path, closed: &Path) -> Result<(), MemoryTierError> {
    if directory.is_symlink() || !directory.is_dir() || !in_memory(directory)? {
        return Ok(());
    }
    if std::fs::read_dir(directory)?.next().is_some() {
        return Err(MemoryTierError::Closed(closed.to_owned()));
    }
    if is_own(directory)? {
        unmount(directory, UnmountFlags::DETACH).map_err(io::Error::from)?;
    }
    Ok(std::fs::remove_dir(directory)?)
}

/// Reason why the directory can't be in memory.
#[derive(Debug, thiserror::Error)]
enum MemoryTierError {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("it holds files on a disk, such as {0}: give another directory")]
    OnDisk(String),
    #[error(
        "{0} belongs to another user, or is no directory: remove it, or give another directory"
    )]
    Foreign(PathBuf),
    #[error(
        "users can't pass through {0} any more, so kernels can't reach the intermediate files in it: `chmod o+x {0}`, or unmount it, \
         and jobs recompute the files"
    )]
    Closed(PathBuf),
}

/// Mounts a separate file system in memory on the directory.
fn own(directory: &Path, capacity: u64) -> Result<(), MemoryTierError> {
    std::fs::create_dir_all(directory)?;
    let size = CString::new(format!("size={capacity},mode=0711")).map_err(io::Error::other)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    if is_own(directory)? {
        // The configured size may have changed.
        return Ok(mount_remount(directory, flags, &size).map_err(io::Error::from)?);
    }
    if let Some(file) = std::fs::read_dir(directory)?.next() {
        return Err(MemoryTierError::OnDisk(file?.path().display().to_string()));
    }
    Ok(mount("tidemill", directory, "tmpfs", flags, size.as_c_str()).map_err(io::Error::from)?)
}

/// Returns whether a file system in memory is mounted on the directory.
fn is_own(directory: &Path) -> io::Result<bool> {
    let above = directory.join("..");
    Ok(in_memory(directory)? && directory.metadata()?.dev() != above.metadata()?.dev())
}

fn in_memory(directory: &Path) -> io::Result<bool> {
    Ok(i128::from(statfs(directory)?.f_type) == i128::from(TMPFS))
}

/// Creates a directory of the host's shared memory with `mode`, and makes `directory` a link to it.
fn shared(directory: &Path, mode: u32) -> Result<(), MemoryTierError> {
    let uid = rustix::process::geteuid().as_raw();
    let ours = |metadata: &Metadata| metadata.is_dir() && metadata.uid() == uid;
    match directory.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => {
            if in_memory(directory)? {
                return Ok(());
            }
            if let Some(file) = std::fs::read_dir(directory)?.next() {
                return Err(MemoryTierError::OnDisk(file?.path().display().to_string()));
            }
            std::fs::remove_dir(directory)?;
        }
        Ok(metadata) if metadata.is_symlink() => std::fs::remove_file(directory)?,
        Ok(_) => return Err(MemoryTierError::Foreign(directory.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let path = std::path::absolute(directory)?;
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
    let target = Path::new(SHARED).join(format!("tidemill-{uid}-{}", &hash[..16]));
    match DirBuilder::new().mode(PRIVATE).create(&target) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    // Any user can create directories in shared memory, so the owner is checked.
    if !target.symlink_metadata().is_ok_and(|found| ours(&found)) {
        return Err(MemoryTierError::Foreign(target));
    }
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode))?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    Ok(std::os::unix::fs::symlink(&target, directory)?)
}

/// Returns the number of this memory. A changed number shows that the former content is lost. The node stores it, then reports it.
///
/// # Errors
/// The database can't store the number.
pub(crate) async fn id(db: &Db) -> Result<u64, DbError> {
    let kept = db.read(|connection| records::identity(connection, MEMORY))?;
    if let Some(bytes) = kept.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok()) {
        return Ok(u64::from_le_bytes(bytes));
    }
    let mut bytes = [0; 8];
    // The system has random numbers whenever a node can start. Memory with the former content always has the former number.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let id = u64::from_le_bytes(bytes).max(1);
    let keep = move |connection: &rusqlite::Connection| {
        records::set_identity(connection, MEMORY, &id.to_le_bytes())
    };
    db.write(false, keep).await?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    /// The node never uses the memory of another user, even if a link leads to it. The node repairs a dangling link.
    #[test]
    fn shared_memory_directory_must_be_own_and_is_reused() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("node-999");
        shared(&directory, PRIVATE).unwrap();
        let target = std::fs::read_link(&directory).unwrap();
        std::fs::write(directory.join("node.db"), "kept").unwrap();
        shared(&directory, PRIVATE).unwrap();
        assert_eq!(std::fs::read(directory.join("node.db")).unwrap(), b"kept");
        assert_eq!(target.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::remove_dir_all(&target).unwrap();
        assert!(directory.metadata().is_err(), "the host was restarted");
        shared(&directory, PRIVATE).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&target).unwrap();
        std::os::unix::fs::symlink(above.path(), &target).unwrap();
        assert!(matches!(
            shared(&directory, PRIVATE),
            Err(MemoryTierError::Foreign(_))
        ));
        std::fs::remove_file(&target).unwrap();
        let disk = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        if !in_memory(&disk).unwrap() {
            assert!(matches!(
                shared(&disk, PRIVATE),
                Err(MemoryTierError::OnDisk(_))
            ));
        }
    }

    /// Kernels of nodes that run as root run as other users. Kernels reach the memory with any modes of its parent directories.
    #[test]
    fn directory_of_intermediates_is_reachable_by_all_users() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let above = tempfile::tempdir().unwrap();
        let above_path = above.path().canonicalize().unwrap();
        let node = above_path.join("node");
        std::fs::create_dir(&node).unwrap();
        let mode = |directory: &Path, mode| {
            std::fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        };
        mode(&node, 0o755);
        mode(&above_path, 0o700);
        let memory_outputs = node.join(memory_outputs::DIRECTORY);
        let prepare = || prepare_memory_outputs(&node, CAPACITY_BYTES_MIN);
        prepare().unwrap();
        let target = std::fs::read_link(&memory_outputs).unwrap();
        assert_eq!(closed_to_users(&target), None);
        assert_eq!(target.metadata().unwrap().mode() & 0o777, PASSED);
        std::fs::write(memory_outputs.join("file"), "kept").unwrap();
        // The file stays in its place when the parent directory is opened, and when it is closed again.
        for open in [0o711, 0o700] {
            mode(&above_path, open);
            prepare().unwrap();
            assert_eq!(std::fs::read(target.join("file")).unwrap(), b"kept");
        }
        std::fs::remove_dir_all(&target).unwrap();
        std::fs::remove_file(&memory_outputs).unwrap();
        mode(&above_path, 0o711);
        prepare().unwrap();
        if memory_outputs.is_symlink() {
            // Root of a container can't mount.
            std::fs::remove_dir_all(std::fs::read_link(&memory_outputs).unwrap()).unwrap();
            return;
        }
        std::fs::write(memory_outputs.join("file"), "there").unwrap();
        mode(&above_path, 0o700);
        let reported = prepare().unwrap_err().to_string();
        let wanted = format!("chmod o+x {}", above_path.display());
        assert!(reported.contains(&wanted), "{reported}");
        std::fs::remove_file(memory_outputs.join("file")).unwrap();
        prepare().unwrap();
        std::fs::remove_dir(std::fs::read_link(&memory_outputs).unwrap()).unwrap();
    }
}
