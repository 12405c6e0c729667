//! The private folder of a run as it goes to the task's user and comes back.
//!
//! While it is filled, all of it is this process's own; it is handed over at the very end. When the kernel has ended it is
//! taken back from the top: a folder that belongs to this process can't be changed by others, whatever they have open, so
//! what was opened in it stays where it is. After that no path is looked up twice: files are opened within folders that
//! are open, through no link and on one device.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::OutputError;

/// The name of the file that takes the place of one with several names, while it is written.
const COPY: &str = ".tidemill-copy";

/// Names of folders on their way out; a number follows.
const GONE: &str = ".tidemill-gone-";

const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A file with the folder that it lies in, which only this process can change. Whoever has it by this does not look for it
/// by its path again.
#[derive(Debug)]
pub struct Made {
    file: File,
    folder: OwnedFd,
    name: OsString,
}

impl Made {
    /// A file in a folder that only this process can change.
    ///
    /// # Errors
    /// If it can't be opened, or is no plain file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder = open_folder(CWD, folder)?;
        let file = open_file(&folder, name)?;
        let name = name.to_owned();
        Ok(Self { file, folder, name })
    }

    /// The file, open for reading.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// If the system can't tell.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Gives it another place on the same device, where it takes that of another file.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn move_to(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.folder, &self.name, CWD, path)?)
    }

    /// Removes it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove(&self) -> io::Result<()> {
        let none = AtFlags::empty();
        Ok(rustix::fs::unlinkat(&self.folder, &self.name, none)?)
    }
}

/// Takes what a kernel wrote as `name` in its folder, with the folders on the way there. It is a plain file that has no
/// other name.
pub(crate) fn take(folder: &OwnedFd, name: &str) -> Result<Made, OutputError> {
    take_file(folder, name).map_err(|error| {
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

fn take_file(folder: &OwnedFd, name: &str) -> io::Result<Made> {
    take_back(folder)?;
    let mut folder = folder.try_clone()?;
    let mut rest = name;
    while let Some((first, others)) = rest.split_once('/') {
        let next = open_folder(&folder, first)?;
        take_back(&next)?;
        (folder, rest) = (next, others);
    }
    let mut file = open_file(&folder, rest)?;
    if file.metadata()?.nlink() > 1 {
        // The kernel made a second name, perhaps of an input: the output must be a file of its own.
        file = replace_by_copy(&folder, rest, &file)?;
    }
    let name = rest.into();
    Ok(Made { file, folder, name })
}

fn replace_by_copy(folder: &OwnedFd, name: &str, file: &File) -> io::Result<File> {
    match rustix::fs::unlinkat(folder, COPY, AtFlags::empty()) {
        Err(error) if error != Errno::NOENT => return Err(error.into()),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = rustix::fs::openat(folder, COPY, flags, Mode::RUSR | Mode::WUSR)?;
    io::copy(&mut &*file, &mut File::from(copy))?;
    rustix::fs::renameat(folder, COPY, folder, name)?;
    open_file(folder, name)
}

/// Opens a plain file that lies in a folder, without waiting for the writer of a pipe.
fn open_file(folder: &OwnedFd, name: impl AsRef<OsStr>) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(folder, name.as_ref(), flags, Mode::empty(), WITHIN)?;
    let file = File::from(file);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(Errno::ISDIR.into())
    }
}

/// Opens a folder that lies in another, or in that of this process: then its path may have links above it.
pub(crate) fn open_folder(at: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Makes a folder this process's own again.
pub(crate) fn take_back(folder: &OwnedFd) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if rustix::fs::fstat(folder)?.st_uid != uid.as_raw() {
        rustix::fs::fchown(folder, Some(uid), Some(gid))?;
    }
    Ok(rustix::fs::fchmod(folder, Mode::RWXU)?)
}

/// Removes a folder with all that is in it, which others may have filled, however deep: nothing of it is followed, and
/// there are never more than three folders open.
///
/// # Errors
/// If it is none, or the system refuses.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    let root = open_folder(CWD, path)?;
    take_back(&root)?;
    let mut gone = 0_u64;
    loop {
        let mut folders = Vec::new();
        for entry in Dir::read_from(&root)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if rustix::fs::unlinkat(&root, name, AtFlags::empty()) == Err(Errno::ISDIR) {
                folders.push(name.to_owned());
            }
        }
        if folders.is_empty() {
            break;
        }
        for name in folders {
            flatten(&root, &name, &mut gone)?;
        }
    }
    std::fs::remove_dir(path)
}

/// Opens a folder within another that is this process's own, whatever rights it was made with.
fn enter(at: &OwnedFd, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let open = || -> io::Result<OwnedFd> {
        let folder = open_folder(at, name)?;
        take_back(&folder)?;
        Ok(folder)
    };
    open().or_else(|error| {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        // Nobody else can have put a link here.
        rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::empty())?;
        open()
    })
}

/// Removes a folder of `root`, whose own folders come into `root`.
fn flatten(root: &OwnedFd, name: &std::ffi::CStr, gone: &mut u64) -> io::Result<()> {
    let folder = enter(root, name)?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let inner = entry.file_name();
        if matches!(inner.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() != FileType::Directory {
            rustix::fs::unlinkat(&folder, inner, AtFlags::empty())?;
            continue;
        }
        // To be moved it must be this process's own too.
        drop(enter(&folder, inner)?);
        loop {
            *gone += 1;
            let place = format!("{GONE}{gone}");
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&folder, inner, root, &place, flags) {
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
        let folder = root.join("folder");
        std::fs::create_dir(&folder).unwrap();
        (outside, folder)
    }

    #[test]
    fn outputs_are_taken_through_no_link() {
        let root = tempfile::tempdir().unwrap();
        let (outside, folder) = kept(root.path());
        symlink(&outside, folder.join("linked")).unwrap();
        symlink(outside.join("kept"), folder.join("link")).unwrap();
        std::fs::hard_link(outside.join("kept"), folder.join("twice")).unwrap();
        std::fs::create_dir(folder.join("sub")).unwrap();
        std::fs::write(folder.join("sub/own"), "own").unwrap();
        let open = open_folder(CWD, &folder).unwrap();
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
    fn a_folder_is_removed_however_deep_it_is() {
        let root = tempfile::tempdir().unwrap();
        let (outside, folder) = kept(root.path());
        symlink(&outside, folder.join("linked")).unwrap();
        std::fs::create_dir(folder.join(format!("{GONE}2"))).unwrap();
        // Deeper than a path may be long, and than this process may have folders open.
        let mut deepest = open_folder(CWD, &folder).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&deepest, "deep", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(&outside, &deepest, "out").unwrap();
            deepest = open_folder(&deepest, "deep").unwrap();
        }
        remove_folder(&folder).unwrap();
        assert!(!folder.exists() && outside.join("kept").exists());
    }
}
