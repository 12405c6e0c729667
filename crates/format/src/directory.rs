//! Directories of files on any kind of storage.

use std::io;

/// Directory of files, each with a path relative to the directory (`tas/c/0/1`).
pub trait Directory {
    /// Returns the size of a file in bytes; `None` if the file does not exist.
    ///
    /// # Errors
    /// If the size of the file cannot be determined.
    fn size(&self, path: &str) -> io::Result<Option<u64>>;
    /// Fills `into` with the bytes at `offset` of a file.
    ///
    /// # Errors
    /// If the bytes of the file cannot be read.
    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Returns the names of the entries of a subdirectory (`""` for the directory itself), in any order.
    ///
    /// # Errors
    /// If the subdirectory cannot be read.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Returns the file that stores the bytes of `path`, and their offset in this file; `None` and an offset if one file stores all paths.
    ///
    /// # Errors
    /// If the location of the bytes cannot be determined.
    fn place(&self, path: &str) -> io::Result<(Option<String>, u64)> {
        Ok((Some(path.to_owned()), 0))
    }
}

impl Directory for std::path::PathBuf {
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
