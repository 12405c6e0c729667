//! Listing of the files of an output directory, after the kernel has ended and this process owns the directory again.
//!
//! The listing follows no links. This process becomes the owner of each directory when the listing enters it, so an entry that was listed
//! still exists when its file is moved. The result contains only names and lengths.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode};
use rustix::io::Errno;

use crate::error::OutputError;
use crate::private::{OWN_USER, enter, next, reclaim};

/// Maximum contents of an output directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryBounds {
    /// Maximum number of files.
    pub files: usize,
    /// Maximum depth of nested directories.
    pub depth: usize,
}

/// Returns the files of an output directory; see [`crate::Prepared::output_files`].
pub(crate) fn list(
    root: &Arc<OwnedFd>,
    output: &str,
    most: DirectoryBounds,
) -> Result<Vec<(String, u64)>, OutputError> {
    let mut walk = DirectoryWalk {
        output,
        most,
        found: Vec::new(),
        entries: 0,
    };
    reclaim(root).map_err(|error| walk.failed(error))?;
    let mut directory = Arc::clone(root);
    for part in output.split('/').filter(|part| !part.is_empty()) {
        directory = Arc::new(walk.enter(&directory, part)?);
    }
    walk.directory(&directory, output, 0)?;
    if walk.found.is_empty() {
        return Err(OutputError::Empty(output.to_owned()));
    }
    walk.found.sort_unstable();
    Ok(walk.found)
}

struct DirectoryWalk<'a> {
    output: &'a str,
    most: DirectoryBounds,
    found: Vec<(String, u64)>,
    /// Number of files and directories found so far.
    entries: usize,
}

impl DirectoryWalk<'_> {
    fn failed(&self, source: io::Error) -> OutputError {
        let name = self.output.to_owned();
        OutputError::Io { name, source }
    }

    /// Opens one component of the path to the output directory.
    fn enter(&self, directory: &Arc<OwnedFd>, part: &str) -> Result<OwnedFd, OutputError> {
        let name = std::ffi::CString::new(part).map_err(|error| self.failed(error.into()))?;
        let directory: &OwnedFd = directory;
        enter(directory.as_fd(), &name).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                OutputError::NotADirectory(self.output.to_owned())
            }
            _ => self.failed(error),
        })
    }

    /// Records the contents of a directory; `name` ends in a slash.
    fn directory(
        &mut self,
        directory: &OwnedFd,
        name: &str,
        depth: usize,
    ) -> Result<(), OutputError> {
        let again = rustix::io::fcntl_dupfd_cloexec(directory, 0);
        let again = again.map_err(|error| self.failed(error.into()))?;
        let mut entries = Dir::new(again).map_err(|error| self.failed(error.into()))?;
        while let Some(entry) = next(&mut entries) {
            let entry = entry.map_err(|error| self.failed(error))?;
            self.entries += 1;
            // The limit is doubled, because directories count here too.
            if self.entries > 2 * self.most.files {
                return Err(self.too_many());
            }
            self.entry(directory.as_fd(), name, entry.file_name(), depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        directory: BorrowedFd<'_>,
        above: &str,
        name: &CStr,
        depth: usize,
    ) -> Result<(), OutputError> {
        let called = |name: &str| format!("{above}{name}");
        let Ok(text) = name.to_str() else {
            return Err(OutputError::NoText(called(&name.to_string_lossy())));
        };
        let data = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| self.failed(error.into()))?;
        match FileType::from_raw_mode(data.st_mode) {
            FileType::RegularFile => {
                if self.found.len() == self.most.files {
                    return Err(self.too_many());
                }
                // Root can read the file with any mode.
                if OWN_USER.uid != 0 && data.st_mode & Mode::RUSR.bits() == 0 {
                    let mode = Mode::RUSR | Mode::WUSR;
                    rustix::fs::chmodat(directory, name, mode, AtFlags::empty())
                        .map_err(|error| self.failed(error.into()))?;
                }
                let size = u64::try_from(data.st_size).unwrap_or(0);
                self.found.push((called(text), size));
                Ok(())
            }
            FileType::Directory if depth == self.most.depth => Err(self.too_many()),
            FileType::Directory => {
                let inner = enter(directory, name).map_err(|error| self.failed(error))?;
                self.directory(&inner, &format!("{above}{text}/"), depth + 1)
            }
            _ => Err(OutputError::Strange(called(text))),
        }
    }

    fn too_many(&self) -> OutputError {
        OutputError::TooMany {
            name: self.output.to_owned(),
            files_max: self.most.files,
            depth_max: self.most.depth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::open_directory;
    use rustix::fs::CWD;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    const MOST: DirectoryBounds = DirectoryBounds { files: 4, depth: 2 };

    /// Returns the listing of the output `o/p/` after `fill` has created its contents.
    fn listed(fill: impl FnOnce(&Path)) -> Result<Vec<(String, u64)>, OutputError> {
        let root = tempfile::tempdir().unwrap();
        let output = root.path().join("o/p");
        fs::create_dir_all(&output).unwrap();
        fill(&output);
        let open = Arc::new(open_directory(CWD, root.path()).unwrap());
        list(&open, "o/p/", MOST)
    }

    #[test]
    fn output_directory_lists_files_in_order_of_names() {
        let found = listed(|output| {
            for directory in ["a/b", "empty/very"] {
                fs::create_dir_all(output.join(directory)).unwrap();
            }
            for (file, content) in [("z", ""), (".zattrs", "{}"), ("a/b/0.0", "x"), ("a!", "y")] {
                fs::write(output.join(file), content).unwrap();
            }
            // The kernel has removed its own rights to these directories.
            for closed in ["z", "a/b"] {
                fs::set_permissions(output.join(closed), fs::Permissions::from_mode(0o000))
                    .unwrap();
            }
        });
        let expected = [
            ("o/p/.zattrs", 2),
            ("o/p/a!", 1),
            ("o/p/a/b/0.0", 1),
            ("o/p/z", 0),
        ];
        let expected = expected.map(|(name, size)| (name.to_owned(), size));
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn invalid_or_too_large_output_directory_is_refused() {
        let write = |path: &Path| fs::write(path, "x").unwrap();
        let empty = listed(|output| fs::create_dir_all(output.join("a/b")).unwrap());
        assert!(matches!(empty, Err(OutputError::Empty(_))), "{empty:?}");
        let gone = listed(|output| fs::remove_dir(output).unwrap());
        assert!(
            matches!(gone, Err(OutputError::NotADirectory(_))),
            "{gone:?}"
        );
        for (at, to) in [("o/p", "/"), ("o", "/usr"), ("o", ".")] {
            let other = listed(|output| {
                let root = output.parent().unwrap().parent().unwrap();
                fs::remove_dir_all(root.join(at)).unwrap();
                symlink(to, root.join(at)).unwrap();
            });
            assert!(
                matches!(other, Err(OutputError::NotADirectory(_))),
                "{other:?}"
            );
        }
        let link = listed(|output| symlink("/etc/passwd", output.join("l")).unwrap());
        assert_eq!(
            link.unwrap_err().to_string(),
            "\"o/p/l\", which the kernel wrote, is neither a plain file nor a directory: links, pipes and devices can't be kept"
        );
        let pipe = listed(|output| {
            let mode = Mode::RUSR;
            rustix::fs::mknodat(CWD, output.join("p"), FileType::Fifo, mode, 0).unwrap();
        });
        assert!(matches!(pipe, Err(OutputError::Strange(_))), "{pipe:?}");
        let bytes = listed(|output| write(&output.join(OsStr::from_bytes(b"a\xff"))));
        assert!(matches!(bytes, Err(OutputError::NoText(_))), "{bytes:?}");
        let four = |output: &Path| (0..4).for_each(|n| write(&output.join(n.to_string())));
        assert_eq!(listed(four).unwrap().len(), 4);
        let five = listed(|output| {
            four(output);
            write(&output.join("x"));
        });
        assert!(matches!(five, Err(OutputError::TooMany { .. })), "{five:?}");
        let directories = listed(|output| {
            (0..9).for_each(|n| fs::create_dir(output.join(n.to_string())).unwrap());
        });
        assert!(
            matches!(directories, Err(OutputError::TooMany { .. })),
            "{directories:?}"
        );
        let deep = listed(|output| fs::create_dir_all(output.join("a/b/c")).unwrap());
        assert!(matches!(deep, Err(OutputError::TooMany { .. })), "{deep:?}");
    }
}
