//! A folder as a store. Nothing outside of it is ever opened, whoever puts links into it meanwhile: all is opened below its
//! descriptor, and no link is followed.

use crate::Error;
use crate::part::Part;
use crate::place::{PART, checked};
use crate::store::{Listed, Object};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;

/// Folders within folders.
const DEPTH_MAX: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct Folder(Arc<OwnedFd>);

/// Tells a version of a file from all others.
pub(crate) fn object(path: &str, stat: &Stat) -> Object {
    Object {
        path: path.to_owned(),
        size: stat.st_size.cast_unsigned(),
        tag: format!("{}-{}.{}", content(stat), stat.st_ctime, stat.st_ctime_nsec),
        checked_by_store: false,
    }
}

/// Of a tag what tells of writes only, not of new names.
fn content(stat: &Stat) -> String {
    format!(
        "{}-{}-{}.{}",
        stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec
    )
}

/// Whether an open file is still as it was when it got a tag, whatever it is called.
pub(crate) fn is_content(tag: &str, stat: &Stat) -> bool {
    tag.strip_prefix(&content(stat))
        .is_some_and(|rest| rest.starts_with('-'))
}

fn kind(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a folder"),
        FileType::Symlink => Some("a link"),
        FileType::Fifo => Some("a pipe"),
        _ => Some("a device or socket"),
    }
}

impl Folder {
    pub(crate) fn open(path: &str) -> Result<Self, Error> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(Error::of(path))?;
        Ok(Self(Arc::new(root)))
    }

    fn below(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // It gives up when something is renamed meanwhile.
        loop {
            match rustix::fs::openat2(&*self.0, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
    }

    pub(crate) fn file(&self, path: &str) -> Result<(File, Object), Error> {
        // A pipe that nobody writes is not waited for.
        let opened = self.below(checked(path)?, OFlags::RDONLY | OFlags::NONBLOCK);
        let file = opened.map_err(Error::of(path))?;
        let stat = rustix::fs::fstat(&file).map_err(Error::of(path))?;
        if let Some(what) = kind(&stat) {
            let path = path.to_owned();
            return Err(Error::NoFile { path, what });
        }
        Ok((File::from(file), object(path, &stat)))
    }

    pub(crate) fn stat(&self, path: &str) -> Result<Object, Error> {
        self.file(path).map(|(_, object)| object)
    }

    /// Tells all files below a folder, and what is passed by, until nobody listens.
    pub(crate) fn list(
        &self,
        prefix: &str,
        tell: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<(), Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let start = if prefix.is_empty() {
            "."
        } else {
            checked(prefix)?
        };
        let folder = self.below(start, flags).map_err(Error::of(prefix))?;
        self.walk(&folder, prefix, 0, tell).map(|_| ())
    }

    fn walk(
        &self,
        folder: &OwnedFd,
        above: &str,
        depth: usize,
        tell: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<bool, Error> {
        let at = Error::of(above);
        let mut folders = Vec::new();
        for entry in Dir::read_from(folder).map_err(&at)? {
            let entry = entry.map_err(&at)?;
            let Ok(name) = entry.file_name().to_str() else {
                let path = format!("{above}/{}", entry.file_name().to_string_lossy());
                if !tell(Listed::Passed(path, "its name is no UTF-8")) {
                    return Ok(false);
                }
                continue;
            };
            if name == "." || name == ".." || name.starts_with(PART) {
                continue;
            }
            let path = match above {
                "" => name.to_owned(),
                above => format!("{above}/{name}"),
            };
            let stat = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                // It has gone meanwhile.
                Err(Errno::NOENT) => continue,
                stat => stat.map_err(Error::of(&path))?,
            };
            let listed = match kind(&stat) {
                None => Listed::Object(object(&path, &stat)),
                Some("a folder") if depth < DEPTH_MAX => {
                    folders.push(path);
                    continue;
                }
                Some(what) => Listed::Passed(path, what),
            };
            if !tell(listed) {
                return Ok(false);
            }
        }
        for path in folders {
            let opened = self.below(&path, OFlags::RDONLY | OFlags::DIRECTORY);
            let below = match opened {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                opened => opened.map_err(Error::of(&path))?,
            };
            if !self.walk(&below, &path, depth + 1, tell)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Begins a file, which is seen when it is finished.
    pub(crate) fn create(&self, path: &str) -> Result<Part, Error> {
        let (above, name) = checked(path)?.rsplit_once('/').unwrap_or(("", path));
        if name.starts_with(PART) {
            return Err(Error::Path(path.to_owned()));
        }
        let mut folder = ".".to_owned();
        for part in above.split('/').filter(|part| !part.is_empty()) {
            let at = Error::of(path);
            let parent = self.below(&folder, OFlags::PATH | OFlags::DIRECTORY);
            let parent = parent.map_err(&at)?;
            match rustix::fs::mkdirat(&parent, part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(at(errno)),
            }
            folder = format!("{folder}/{part}");
        }
        let parent = self.below(&folder, OFlags::RDONLY | OFlags::DIRECTORY);
        Part::begin(parent.map_err(Error::of(path))?, name, path)
    }

    pub(crate) fn remove(&self, path: &str) -> Result<(), Error> {
        let (above, name) = checked(path)?.rsplit_once('/').unwrap_or((".", path));
        let parent = self.below(above, OFlags::PATH | OFlags::DIRECTORY);
        let removed =
            rustix::fs::unlinkat(parent.map_err(Error::of(path))?, name, AtFlags::empty());
        removed.map_err(Error::of(path))
    }
}
