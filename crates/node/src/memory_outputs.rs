//! Memory for intermediate files of jobs, on a node that stores its other files on a disk. The module writes only files below its
//! directory.
//!
//! A task writes its outputs to its private directory as always, so that no kernel ever finds the memory full. The node then copies the
//! output to the memory if it fits, without writing it back to the disk. The memory is a file system of the node or, without root or if
//! users can't pass through the node's directory, a directory of the host's shared memory (`crate::memory`). The module counts the used
//! bytes in both cases.
//!
//! Kernels find other inputs through hard links, which can't cross file systems. For inputs in memory they get a symbolic link and must
//! pass through the directory. Nobody can list the directory: the name of a file has 128 random bits that only its readers learn.

use crate::directory::{close_for_ever, copy_with_holes};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use tidemill_model::id::ObjectId;

/// Name of the directory of intermediate files in the node's directory.
pub(crate) const DIRECTORY: &str = "intermediates";

/// Memory for intermediate outputs of tasks.
#[derive(Debug)]
pub(crate) struct MemoryOutputs {
    directory: PathBuf,
    capacity_bytes: u64,
    held: Mutex<InMemoryObjects>,
}

#[derive(Debug, Default)]
struct InMemoryObjects {
    bytes: u64,
    objects: HashMap<ObjectId, (PathBuf, u64)>,
}

/// Returns a random file name that begins with the object's id.
fn new_name(object: ObjectId) -> io::Result<String> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let secret = tidemill_wire::route::hex(&secret);
    Ok(format!("{:016x}-{secret}", object.0))
}

/// Returns the object to which a file name belongs, if it is the name of a complete file.
fn object_of(name: &str) -> Option<ObjectId> {
    let (object, secret) = name.split_once('-')?;
    let whole = secret.len() == 32 && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    tidemill_wire::route::parse_object(object).filter(|_| whole)
}

impl MemoryOutputs {
    /// Opens the memory, finds its existing files and removes incomplete files.
    pub(crate) fn open(node: &Path, capacity_bytes: u64) -> io::Result<Self> {
        // Kernels get paths in this directory, and may not pass through the directory of the node.
        let directory = node.join(DIRECTORY).canonicalize()?;
        let mut held = InMemoryObjects::default();
        for file in std::fs::read_dir(&directory)? {
            let file = file?;
            match object_of(&file.file_name().to_string_lossy()) {
                Some(object) if !held.objects.contains_key(&object) => {
                    let bytes = file.metadata()?.len();
                    held.bytes += bytes;
                    held.objects.insert(object, (file.path(), bytes));
                }
                _ => std::fs::remove_file(file.path())?,
            }
        }
        Ok(Self {
            directory,
            capacity_bytes,
            held: Mutex::new(held),
        })
    }

    /// Returns the path of an object's file in memory.
    pub(crate) fn find(&self, object: ObjectId) -> Option<PathBuf> {
        let held = self.held.lock();
        held.objects.get(&object).map(|(path, _)| path.clone())
    }

    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        self.held.lock().objects.keys().copied().collect()
    }

    /// Returns the used bytes and the capacity of the memory, in bytes.
    #[cfg(test)]
    fn space(&self) -> (u64, u64) {
        (self.held.lock().bytes, self.capacity_bytes)
    }

    /// Copies a file into memory as the sealed object, if it fits. Returns whether the file was copied.
    pub(crate) fn take(&self, object: ObjectId, file: &File, bytes: u64) -> bool {
        self.forget(object);
        {
            let mut held = self.held.lock();
            let all = held.bytes.saturating_add(bytes);
            if all > self.capacity_bytes {
                return false;
            }
            held.bytes = all;
        }
        let copied = self.copy(object, file);
        let mut held = self.held.lock();
        match copied {
            Ok(path) => {
                held.objects.insert(object, (path, bytes));
                true
            }
            Err(error) => {
                held.bytes = held.bytes.saturating_sub(bytes);
                tracing::warn!(%error, %object, "an intermediate file is stored on the disk");
                false
            }
        }
    }

    fn copy(&self, object: ObjectId, file: &File) -> io::Result<PathBuf> {
        let path = self.directory.join(new_name(object)?);
        let new = path.with_extension("new");
        let copied = copy_with_holes(file, &new)
            .and_then(|copy| close_for_ever(&copy))
            .and_then(|()| std::fs::rename(&new, &path));
        if copied.is_err() {
            // The caller logs the error of the copy.
            let _ = std::fs::remove_file(&new);
        }
        copied.map(|()| path)
    }

    /// Removes an object from memory. Returns whether it existed.
    pub(crate) fn forget(&self, object: ObjectId) -> bool {
        let mut held = self.held.lock();
        let Some((path, bytes)) = held.objects.remove(&object) else {
            return false;
        };
        held.bytes = held.bytes.saturating_sub(bytes);
        drop(held);
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, %object, "an intermediate file can't be removed");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that does not fit is refused, a removal frees its memory, and the memory is reopened with its earlier files.
    #[test]
    fn memory_of_intermediates_has_limit_and_is_found_after_restart() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(DIRECTORY)).unwrap();
        let made = directory.path().join("made");
        std::fs::write(&made, vec![7; 600]).unwrap();
        let file = File::open(&made).unwrap();
        let memory_outputs = MemoryOutputs::open(directory.path(), 1000).unwrap();
        assert!(memory_outputs.take(ObjectId(1), &file, 600));
        assert!(!memory_outputs.take(ObjectId(2), &file, 600), "full");
        assert!(
            memory_outputs.take(ObjectId(1), &file, 600),
            "a label that ran again"
        );
        assert_eq!(memory_outputs.space(), (600, 1000));
        assert_eq!(memory_outputs.find(ObjectId(2)), None);
        std::fs::write(
            directory
                .path()
                .join(DIRECTORY)
                .join("0000000000000002-0.new"),
            "x",
        )
        .unwrap();
        let memory_outputs = MemoryOutputs::open(directory.path(), 1000).unwrap();
        assert_eq!(
            (memory_outputs.objects(), memory_outputs.space().0),
            (vec![ObjectId(1)], 600)
        );
        let path = memory_outputs.find(ObjectId(1)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 600]);
        assert!(path.metadata().unwrap().permissions().readonly());
        assert!(memory_outputs.forget(ObjectId(1)) && !memory_outputs.forget(ObjectId(1)));
        assert!(!path.exists());
        // Without the directory, `take` only returns false.
        std::fs::remove_dir(directory.path().join(DIRECTORY)).unwrap();
        assert!(!memory_outputs.take(ObjectId(3), &file, 600));
        assert_eq!(memory_outputs.space().0, 0);
    }
}
