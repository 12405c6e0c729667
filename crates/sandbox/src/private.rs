//! Private directory of a run: its transfer to the task's user and back.
//!
//! While the directory is filled, all of it belongs to this process; the transfer to the user is the last step. After the kernel has ended,
//! this process takes the directory back from the top. Other processes cannot change a directory that belongs to this process, whatever
//! they have open, so an opened entry stays in its place. After that no path is resolved twice: files are opened within open directories,
//! through no link and on one device.

use std::ffi::{CStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustix::fs::{
    AtFlags, CWD, Dir, DirEntry, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid,
};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::error::OutputError;
use crate::run::User;

/// Prefix of the names of directories that are being removed; a number follows.
const DELETED: &str = ".tidemill-deleted-";

pub(crate) const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The user of this process, which never changes.
pub(crate) static OWN_USER: LazyLock<User> = LazyLock::new(|| User {
    uid: rustix::process::geteuid().as_raw(),
    gid: rustix::process::getegid().as_raw(),
});

/// A file together with its directory, which only this process can change. The holder of this value need not resolve the file's path again.
#[derive(Debug)]
pub struct PrivateFile {
    file: File,
    directory: Arc<OwnedFd>,
    name: OsString,
}

impl PrivateFile {
    /// Opens a file in a directory that only this process can change.
    ///
    /// # Errors
    /// If the file cannot be opened, or is not a plain file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let directory = Arc::new(open_directory(CWD, directory)?);
        let (file, _) = open_plain(&directory, name, WITHIN)?;
        let name = name.to_owned();
        Ok(Self {
            file,
            directory,
            name,
        })
    }

    /// The file, open for reading.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the length of the file in bytes.
    ///
    /// # Errors
    /// If the operating system cannot report the length.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Moves the file to another path on the same device, where it replaces an existing file.
    ///
    /// # Errors
    /// If the operating system refuses to move the file.
    pub fn move_to(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::renameat(
            &self.directory,
            &self.name,
            CWD,
            path,
        )?)
    }

    /// Removes the file.
    ///
    /// # Errors
    /// If the operating system refuses to remove the file.
    pub fn remove(&self) -> io::Result<()> {
        let none = AtFlags::empty();
        Ok(rustix::fs::unlinkat(&self.directory, &self.name, none)?)
    }
}

/// Takes the output `name` that a kernel wrote in its directory, with the directories on its path. The output is a plain file that has no
/// other name.
pub(crate) fn take(directory: &Arc<OwnedFd>, name: &str) -> Result<PrivateFile, OutputError> {
    take_file(directory, name).map_err(|error| {
        let missing = || OutputError::Missing(name.to_owned());
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => missing(),
            Some(Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO | Errno::XDEV) => {
                OutputError::NotAFile(name.to_owned())
            }
            _ => OutputError::Io {
                name: name.to_owned(),
                source: error,
            },
        }
    })
}

fn take_file(directory: &Arc<OwnedFd>, name: &str) -> io::Result<PrivateFile> {
    reclaim(directory)?;
    let mut directory = Arc::clone(directory);
    let mut rest = name;
    while let Some((first, others)) = rest.split_once('/') {
        (directory, rest) = (Arc::new(open_taken(&directory, first)?), others);
    }
    let (mut file, data) = open_plain(&directory, rest, WITHIN)?;
    if data.nlink() > 1 {
        // The kernel made a second name for the file, or used an input: the output must be a file of its own.
        file = replace_by_copy(&directory, rest, &file)?;
    }
    let name = rest.into();
    Ok(PrivateFile {
        file,
        directory,
        name,
    })
}

/// Replaces a file by a copy. Only this name of the file is removed: another name in the directory may belong to another output.
fn replace_by_copy(directory: &OwnedFd, name: &str, mut file: &File) -> io::Result<File> {
    rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
    io::copy(&mut file, &mut File::from(copy))?;
    Ok(open_plain(directory, name, WITHIN)?.0)
}

/// Opens a plain file for reading, without waiting for the writer of a pipe or the holder of a lease.
pub(crate) fn open_plain(
    at: impl AsFd,
    name: impl Arg,
    resolve: ResolveFlags,
) -> io::Result<(File, Metadata)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(at, name, flags, Mode::empty(), resolve)?;
    let file = File::from(file);
    let data = file.metadata()?;
    if data.is_file() {
        Ok((file, data))
    } else {
        Err(Errno::ISDIR.into())
    }
}

/// Opens a plain file in the private directory of a running kernel, in its present state: through no link, and without waiting.
///
/// # Errors
/// If the file does not exist, or is not a plain file.
pub fn open_as_made(directory: &Path, name: &str) -> io::Result<File> {
    Ok(open_plain(open_directory(CWD, directory)?, name, WITHIN)?.0)
}

/// Opens a directory in another directory, or at a path of this process; in the second case the path may contain links above the directory.
pub(crate) fn open_directory(at: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Makes this process the owner of a directory again.
pub(crate) fn reclaim(directory: &OwnedFd) -> io::Result<()> {
    let data = rustix::fs::fstat(directory)?;
    let own = data.st_uid == OWN_USER.uid;
    if !own {
        let (uid, gid) = (Uid::from_raw(OWN_USER.uid), Gid::from_raw(OWN_USER.gid));
        rustix::fs::fchown(directory, Some(uid), Some(gid))?;
    }
    // Between the check and the change, the directory's user may have changed the mode.
    if !own || Mode::from_raw_mode(data.st_mode) != Mode::RWXU {
        rustix::fs::fchmod(directory, Mode::RWXU)?;
    }
    Ok(())
}

/// Opens a directory within a directory that belongs to this process, and makes this process its owner.
pub(crate) fn open_taken(at: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let directory = open_directory(at, name)?;
    reclaim(&directory)?;
    Ok(directory)
}

/// Returns the next entry of a directory, except `.` and `..`.
pub(crate) fn next(entries: &mut Dir) -> Option<io::Result<DirEntry>> {
    loop {
        match entries.read()? {
            Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            entry => return Some(entry.map_err(io::Error::from)),
        }
    }
}

/// Removes a directory with all its contents, of any depth, which other users may have made. This function follows no link, and never has
/// more than three directories open.
///
/// # Errors
/// If the path is not a directory, or if the operating system refuses.
pub fn remove_directory(path: &Path) -> io::Result<()> {
    let mut root = Dir::new(open_taken(CWD, path)?)?;
    let mut deleted = 0_u64;
    loop {
        let mut directories = Vec::new();
        while let Some(entry) = next(&mut root) {
            let entry = entry?;
            let name = entry.file_name();
            if rustix::fs::unlinkat(root.fd()?, name, AtFlags::empty()) == Err(Errno::ISDIR) {
                directories.push(name.to_owned());
            }
        }
        if directories.is_empty() {
            break;
        }
        for name in directories {
            flatten(root.fd()?, &name, &mut deleted)?;
        }
        root.rewind();
    }
    std::fs::remove_dir(path)
}

/// Opens a directory within a directory that belongs to this process, with any mode.
pub(crate) fn enter(at: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    open_taken(at, name).or_else(|error| {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        // No other process can have put a link here.
        rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::empty())?;
        open_taken(at, name)
    })
}

/// Removes a directory of `root`, after moving its subdirectories to `root`.
fn flatten(root: BorrowedFd<'_>, name: &CStr, deleted: &mut u64) -> io::Result<()> {
    let mut entries = Dir::new(enter(root, name)?)?;
    while let Some(entry) = next(&mut entries) {
        let entry = entry?;
        let (directory, inner) = (entries.fd()?, entry.file_name());
        if entry.file_type() != FileType::Directory {
            rustix::fs::unlinkat(directory, inner, AtFlags::empty())?;
            continue;
        }
        // This process can move the directory only if it owns it.
        drop(enter(directory, inner)?);
        loop {
            *deleted += 1;
            let place = format!("{DELETED}{deleted}");
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(directory, inner, root, &place, flags) {
                Err(Errno::EXIST) => {}
                moved => break moved?,
            }
        }
    }
    Ok(rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn kept(root: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
        let outside = root.join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let directory = root.join("directory");
        std::fs::create_dir(&directory).unwrap();
        (outside, directory)
    }

    #[test]
    fn outputs_are_never_taken_through_links() {
        let root = tempfile::tempdir().unwrap();
        let (outside, directory) = kept(root.path());
        symlink(&outside, directory.join("linked")).unwrap();
        symlink(outside.join("kept"), directory.join("link")).unwrap();
        std::fs::hard_link(outside.join("kept"), directory.join("twice")).unwrap();
        std::fs::create_dir(directory.join("sub")).unwrap();
        std::fs::write(directory.join("sub/own"), "own").unwrap();
        let open = Arc::new(open_directory(CWD, &directory).unwrap());
        for name in ["linked/kept", "link", "sub"] {
            let refused = take(&open, name).unwrap_err();
            assert!(matches!(refused, OutputError::NotAFile(_)), "{refused}");
        }
        let missing = take(&open, "nothing/there").unwrap_err();
        assert!(matches!(missing, OutputError::Missing(_)), "{missing}");
        let own = take(&open, "sub/own").unwrap();
        assert_eq!(own.size().unwrap(), 3);
        own.move_to(&root.path().join("moved")).unwrap();
        assert_eq!(std::fs::read(root.path().join("moved")).unwrap(), b"own");
        let twice = take(&open, "twice").unwrap();
        assert_eq!(twice.file().metadata().unwrap().nlink(), 1);
        let original = outside.join("kept").metadata().unwrap();
        assert_ne!(twice.file().metadata().unwrap().ino(), original.ino());
    }

    #[test]
    fn output_with_second_hard_link_leaves_original_unchanged() {
        let root = tempfile::tempdir().unwrap();
        let (outside, directory) = kept(root.path());
        let names = ["first", ".tidemill-copy", ".tidemill-deleted-1"];
        for name in names {
            std::fs::hard_link(outside.join("kept"), directory.join(name)).unwrap();
        }
        let open = Arc::new(open_directory(CWD, &directory).unwrap());
        for name in names {
            let made = take(&open, name).unwrap();
            assert_eq!(std::io::read_to_string(made.file()).unwrap(), "x", "{name}");
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), names.len());
    }

    #[test]
    fn remove_directory_removes_directories_of_any_depth() {
        let root = tempfile::tempdir().unwrap();
        let (outside, directory) = kept(root.path());
        symlink(&outside, directory.join("linked")).unwrap();
        std::fs::create_dir(directory.join(format!("{DELETED}2"))).unwrap();
        // Deeper than the longest path, and than the number of directories that this process may have open.
        let mut deepest = open_directory(CWD, &directory).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&deepest, "deep", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(&outside, &deepest, "out").unwrap();
            deepest = open_directory(&deepest, "deep").unwrap();
        }
        remove_directory(&directory).unwrap();
        assert!(!directory.exists() && outside.join("kept").exists());
    }
}
