//! Finds programs and hashes the code of kernels.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use parking_lot::Mutex;

/// Maximum number of cached hashes of files; when the cache is full, it is cleared.
const HASHES_MAX: usize = 4096;

/// Properties that distinguish two states of a file.
type FileStamp = ([u64; 3], [i64; 2], [i64; 2]);

static HASHES: LazyLock<Mutex<HashMap<FileStamp, String>>> = LazyLock::new(Mutex::default);

/// Finds a program: an absolute path directly, a name in the directories of `path`, in their order. Only plain files with a right to be
/// executed are found.
#[must_use]
pub fn find_program(name: &str, path: &[PathBuf]) -> Option<PathBuf> {
    let executable = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|data| data.is_file() && data.mode() & 0o111 != 0)
    };
    if name.is_empty() {
        return None;
    }
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| file.is_absolute() && executable(file));
    }
    path.iter()
        .map(|directory| directory.join(name))
        .find(executable)
}

/// Returns the blake3 hash of a file, in hexadecimal. The hash is cached as long as the file's device, inode, size, time of change and time
/// of status change stay the same.
///
/// # Errors
/// If the file cannot be read.
pub fn hash_file(path: &Path) -> io::Result<String> {
    hash_open(&File::open(path)?)
}

/// Returns the blake3 hash of an open file like [`hash_file`]; afterwards the file's position is its beginning.
pub(crate) fn hash_open(mut file: &File) -> io::Result<String> {
    let data = file.metadata()?;
    let version = (
        [data.dev(), data.ino(), data.len()],
        [data.mtime(), data.mtime_nsec()],
        [data.ctime(), data.ctime_nsec()],
    );
    if let Some(hash) = HASHES.lock().get(&version) {
        return Ok(hash.clone());
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    file.rewind()?;
    let hash = hasher.finalize().to_hex().to_string();
    let mut hashes = HASHES.lock();
    if hashes.len() >= HASHES_MAX {
        hashes.clear();
    }
    hashes.insert(version, hash.clone());
    Ok(hash)
}

/// Returns the hash of a pipeline of kernels with these hashes, in hexadecimal.
pub(crate) fn pipeline_hash(hashes: &[String]) -> String {
    let text = format!("tidemill pipeline {}", hashes.join(" "));
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_program_finds_program_by_name_and_path() {
        let path = [
            PathBuf::from("/nowhere"),
            PathBuf::from("/usr/bin"),
            PathBuf::from("/bin"),
        ];
        assert!(find_program("sh", &path).unwrap().ends_with("sh"));
        assert_eq!(find_program("/bin/sh", &[]), Some("/bin/sh".into()));
        assert_eq!(find_program("no-such-program", &path), None);
        assert_eq!(find_program("bin/sh", &["/".into()]), None);
        assert_eq!(find_program("/etc/passwd", &path), None);
        assert_eq!(find_program("", &path), None);
    }

    #[test]
    fn hash_file_changes_with_content() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("code");
        fs::write(&file, "one").unwrap();
        let one = hash_file(&file).unwrap();
        assert_eq!(one, blake3::hash(b"one").to_hex().to_string());
        assert_eq!(hash_file(&file).unwrap(), one);
        fs::write(&file, "three").unwrap();
        assert_eq!(
            hash_file(&file).unwrap(),
            blake3::hash(b"three").to_hex().to_string()
        );
    }
}
