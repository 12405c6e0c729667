//! Folders of files, wherever they lie.

use std::io;

/// A folder of files, each with a path below it (`tas/c/0/1`).
pub trait Folder {
    /// The length of a file; none if there is no such file.
    ///
    /// # Errors
    /// If that can't be known.
    fn size(&self, path: &str) -> io::Result<Option<u64>>;
    /// Fills `into` with what lies at `offset` of a file.
    ///
    /// # Errors
    /// If it can't be had.
    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// The names of what is in a folder below it (`""`: in itself), in any order.
    ///
    /// # Errors
    /// If that can't be known.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Which file the bytes of `path` are in, and where they begin there: none and an offset if all is one file.
    ///
    /// # Errors
    /// If that can't be known.
    fn place(&self, path: &str) -> io::Result<(Option<String>, u64)> {
        Ok((Some(path.to_owned()), 0))
    }
}

impl Folder for std::path::PathBuf {
    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        match self.join(path).metadata() {
            Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
            Ok(_) => Ok(None),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(
            &std::fs::File::open(self.join(path))?,
            into,
            offset,
        )
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        std::fs::read_dir(self.join(path))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }
}
