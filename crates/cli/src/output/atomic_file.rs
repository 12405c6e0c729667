//! Local files that commands write. A file gets its name when it is complete: after a failure the previous file is unchanged.

use anyhow::Context as _;
use std::fs::{Permissions, canonicalize, metadata};
use std::io::{self, BufWriter, IntoInnerError, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// File without a name so far.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    to: PathBuf,
    file: BufWriter<NamedTempFile>,
}

impl AtomicFile {
    /// Creates a file that replaces `to`, or the target of the link `to`.
    ///
    /// # Errors
    /// If no file can be made in the directory of `to`.
    pub(crate) fn create(to: &Path) -> anyhow::Result<Self> {
        let to = canonicalize(to).unwrap_or_else(|_| to.to_owned());
        let directory = to.parent().filter(|directory| *directory != Path::new(""));
        let mut file = tempfile::Builder::new();
        file.prefix(".tidemill-")
            .permissions(Permissions::from_mode(0o666));
        let file = file.tempfile_in(directory.unwrap_or(Path::new(".")));
        let file = file.with_context(|| unwritten(&to))?;
        if let Ok(there) = metadata(&to) {
            let kept = file.as_file().set_permissions(there.permissions());
            kept.with_context(|| unwritten(&to))?;
        }
        let file = BufWriter::new(file);
        Ok(Self { to, file })
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If the last bytes can't be written, or the file can't be renamed to `to`.
    pub(crate) fn keep(self) -> anyhow::Result<()> {
        let unwritten = || unwritten(&self.to);
        let file = self
            .file
            .into_inner()
            .map_err(IntoInnerError::into_error)
            .with_context(unwritten)?;
        file.persist(&self.to).with_context(unwritten)?;
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

fn unwritten(to: &Path) -> String {
    format!("{} can't be written", to.display())
}

/// Writes a whole file. A device or a pipe is written directly.
///
/// # Errors
/// If the file can't be written; the previous file is then unchanged.
pub(crate) fn write(to: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if metadata(to).is_ok_and(|there| !there.is_file()) {
        return std::fs::write(to, bytes).with_context(|| unwritten(to));
    }
    let mut file = AtomicFile::create(to)?;
    file.write_all(bytes).with_context(|| unwritten(to))?;
    file.keep()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn file_replaces_previous_one_only_when_complete() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (
            directory.path().join("a.csv"),
            directory.path().join("link"),
        );
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("a.csv", &link).unwrap();
        let mut broken = AtomicFile::create(&file).unwrap();
        broken.write_all(b"half").unwrap();
        drop(broken);
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        write(&link, b"new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        write(Path::new("/dev/null"), b"text").unwrap();
        let printed = write(&directory.path().join("none/a.csv"), b"text").unwrap_err();
        assert!(
            printed.to_string().contains("none/a.csv can't be written"),
            "{printed}"
        );
    }
}
