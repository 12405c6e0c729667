//! File that is being written into a directory. The file has a temporary name until it is complete. The next writer of the same file reuses
//! the temporary file of a killed writer. Two concurrent writers of one file are not possible.

use crate::Error;
use crate::address::part_of;
use crate::directory::{is_content, object};
use crate::store::{Overwrite, StoreFile};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

#[derive(Debug)]
pub(crate) struct PartialFile {
    directory: OwnedFd,
    /// Temporary file, locked while it is written.
    file: File,
    part: String,
    name: String,
    path: String,
    over: Overwrite,
    finished: bool,
}

impl PartialFile {
    pub(crate) fn begin(directory: OwnedFd, name: &str, path: &str) -> Result<Self, Error> {
        let at = Error::of(path);
        let part = part_of(name);
        let flags =
            OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            let opened = rustix::fs::openat(&directory, &part, flags, Mode::from_raw_mode(0o666));
            let file = opened.map_err(&at)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Err(Error::Busy(path.to_owned())),
                locked => locked.map_err(&at)?,
            }
            // Its writer may have finished the file before it was locked: then it is not temporary any more.
            let (ours, there) = (
                rustix::fs::fstat(&file).map_err(&at)?,
                rustix::fs::statat(&directory, &part, AtFlags::SYMLINK_NOFOLLOW),
            );
            let same =
                there.is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino));
            if !same {
                continue;
            }
            // Another user may have created the file, to write into it later.
            let own = ours.st_uid == rustix::process::geteuid().as_raw();
            let plain = FileType::from_raw_mode(ours.st_mode) == FileType::RegularFile;
            if !own || !plain || ours.st_nlink != 1 {
                return Err(Error::Busy(path.to_owned()));
            }
            rustix::fs::ftruncate(&file, 0).map_err(&at)?;
            return Ok(Self {
                directory,
                file: File::from(file),
                part,
                name: name.to_owned(),
                path: path.to_owned(),
                over: Overwrite::Anything,
                finished: false,
            });
        }
    }

    /// Sets which existing file the new file may replace.
    pub(crate) fn over(mut self, over: Overwrite) -> Self {
        self.over = over;
        self
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| Error::Store {
            path: self.path.clone(),
            reason: error.to_string(),
        })
    }

    /// Makes the temporary file a hard link of `file`, if the file system supports hard links. Returns whether it does.
    pub(crate) fn link(&mut self, file: &File, path: &str) -> Result<bool, Error> {
        let at = Error::of(path);
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link_name = format!("{}-link", self.part);
        let _ = rustix::fs::unlinkat(&self.directory, &link_name, AtFlags::empty());
        let linked = rustix::fs::linkat(
            rustix::fs::CWD,
            &name,
            &self.directory,
            &link_name,
            AtFlags::SYMLINK_FOLLOW,
        );
        if linked.is_err() {
            return Ok(false);
        }
        rustix::fs::renameat(&self.directory, &link_name, &self.directory, &self.part)
            .map_err(&at)?;
        self.file = file.try_clone().map_err(|error| Error::Store {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(true)
    }

    /// Copies all bytes of `file` into the temporary file.
    pub(crate) fn fill(&mut self, mut file: File) -> Result<(), Error> {
        let copied = std::io::copy(&mut file, &mut self.file);
        copied.map(drop).map_err(|error| Error::Store {
            path: self.path.clone(),
            reason: error.to_string(),
        })
    }

    /// Syncs the temporary file and renames it to its final name.
    pub(crate) fn complete(mut self) -> Result<StoreFile, Error> {
        let at = Error::of(&self.path);
        rustix::fs::fdatasync(&self.file).map_err(&at)?;
        self.take_name()?;
        self.finished = true;
        rustix::fs::fsync(&self.directory).map_err(&at)?;
        let stat = rustix::fs::fstat(&self.file).map_err(&at)?;
        Ok(object(&self.path, &stat))
    }
}

impl PartialFile {
    fn rename(&self, flags: RenameFlags) -> rustix::io::Result<()> {
        let (directory, part, name) = (&self.directory, &self.part, &self.name);
        match rustix::fs::renameat_with(directory, part, directory, name, flags) {
            // The file system does not support the flags.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::renameat(directory, part, directory, name)
            }
            renamed => renamed,
        }
    }

    fn take_name(&self) -> Result<(), Error> {
        let at = Error::of(&self.path);
        let changed = || Error::Changed(self.path.clone());
        match &self.over {
            Overwrite::Anything => self.rename(RenameFlags::empty()).map_err(&at),
            Overwrite::Nothing => match self.rename(RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => Err(changed()),
                renamed => renamed.map_err(&at),
            },
            Overwrite::This(object) => {
                match self.rename(RenameFlags::EXCHANGE) {
                    Err(Errno::NOENT) => return Err(changed()),
                    renamed => renamed.map_err(&at)?,
                }
                let was =
                    rustix::fs::statat(&self.directory, &self.part, AtFlags::SYMLINK_NOFOLLOW);
                match was {
                    Ok(was) if !is_content(&object.tag, &was) => {
                        // Another program has written the file in the meantime. Its file gets its name back.
                        self.rename(RenameFlags::EXCHANGE).map_err(&at)?;
                        Err(changed())
                    }
                    Ok(_) => rustix::fs::unlinkat(&self.directory, &self.part, AtFlags::empty())
                        .map_err(&at),
                    // The file system has not exchanged the files, as it does not support it.
                    Err(_) => Ok(()),
                }
            }
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.finished {
            let _ = rustix::fs::unlinkat(&self.directory, &self.part, AtFlags::empty());
        }
    }
}
