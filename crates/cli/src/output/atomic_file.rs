//! Local files that commands write. A file gets its name when it is complete: after a failure the previous file is unchanged.

use anyhow::Context as _;
use std::fs::{File, OpenOptions, Permissions, canonicalize, metadata};
use std::io::{self, BufWriter, IntoInnerError, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// File without a name so far.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    to: PathBuf,
    file: BufWriter<NamedTempFile>,
    /// The previous file, if its directory accepts no new file: the bytes are copied into this file at the end.
    previous: Option<File>,
}

impl AtomicFile {
    /// Creates a file that replaces `to`, or the target of the link `to`.
    ///
    /// # Errors
    /// If no file can be made in the directory of `to`, and `to` is not a file that the caller may write.
    pub(crate) fn create(to: &Path) -> anyhow::Result<Self> {
        let to = canonicalize(to).unwrap_or_else(|_| to.to_owned());
        let directory = to.parent().filter(|directory| *directory != Path::new(""));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tidemill-");
        let in_place = |fault: &io::Error| {
            fault.kind() == io::ErrorKind::PermissionDenied
                && metadata(&to).is_ok_and(|file| file.is_file())
        };
        builder.permissions(Permissions::from_mode(0o666));
        let (file, previous) = match builder.tempfile_in(directory.unwrap_or(Path::new("."))) {
            Err(fault) if in_place(&fault) => {
                let previous = OpenOptions::new().write(true).open(&to);
                let previous = previous.with_context(|| unwritten(&to))?;
                builder.permissions(Permissions::from_mode(0o600));
                let file = builder.tempfile().with_context(|| unwritten(&to))?;
                (file, Some(previous))
            }
            file => (file.with_context(|| unwritten(&to))?, None),
        };
        if let (Ok(there), None) = (metadata(&to), &previous) {
            let kept = file.as_file().set_permissions(there.permissions());
            kept.with_context(|| unwritten(&to))?;
        }
        let file = BufWriter::new(file);
        Ok(Self { to, file, previous })
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If the last bytes can't be written, or the file can't be renamed to `to`.
    pub(crate) fn keep(self) -> anyhow::Result<()> {
        let unwritten = || unwritten(&self.to);
        let mut file = self
            .file
            .into_inner()
            .map_err(IntoInnerError::into_error)
            .with_context(unwritten)?;
        let Some(mut previous) = self.previous else {
            file.persist(&self.to).with_context(unwritten)?;
            return Ok(());
        };
        let copied = file
            .rewind()
            .and_then(|()| previous.set_len(0))
            .and_then(|()| io::copy(&mut file, &mut previous));
        let Err(fault) = copied else { return Ok(()) };
        // The previous content is lost in part, so the new content must not be.
        let (_, complete) = file.keep().with_context(unwritten)?;
        Err(fault).with_context(|| {
            format!(
                "{}; {} has the whole content",
                unwritten(),
                complete.display()
            )
        })
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

    #[test]
    fn content_is_kept_if_previous_file_cannot_be_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("a.csv");
        fs::write(&to, "old").unwrap();
        let mut file = BufWriter::new(NamedTempFile::new_in(&directory).unwrap());
        file.write_all(b"new").unwrap();
        // A descriptor for reading only refuses all writes.
        let previous = Some(File::open(&to).unwrap());
        let refused = AtomicFile { to, file, previous }.keep().unwrap_err();
        let text = refused.to_string();
        let kept = text.split("; ").nth(1).unwrap();
        let kept = kept.strip_suffix(" has the whole content").unwrap();
        assert_eq!(fs::read_to_string(kept).unwrap(), "new");
    }

    #[test]
    fn file_in_directory_that_accepts_no_new_file_is_written_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.csv");
        fs::write(&file, "a longer old text").unwrap();
        let protect = |flag: &str| {
            let chattr = std::process::Command::new("chattr")
                .arg(flag)
                .arg(directory.path())
                .output();
            chattr.is_ok_and(|output| output.status.success())
        };
        if !protect("+i") {
            return; // the file system or the user can't make a directory immutable
        }
        let written = write(&file, b"new");
        let created = write(&directory.path().join("b.csv"), b"new");
        assert!(protect("-i"));
        written.unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(
            created
                .unwrap_err()
                .to_string()
                .contains("b.csv can't be written")
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
