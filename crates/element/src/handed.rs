//! Memory beside the objects of an element on a disk, for what the tasks of a job hand to each other.
//!
//! A task writes where all tasks do, so that no kernel ever finds memory full; what it has made is then copied here, if there is
//! room, and is never on its way to the disk again. The file system in memory is the element's own or, without root and where users
//! can't pass through the element's folder, a folder of the host's shared memory (`crate::memory`); what is taken is counted here either way.
//!
//! Kernels find their inputs by hard links elsewhere, which lead into no other file system. So they get a symbolic link here, and have
//! to pass through the folder, which nobody can list: a file's name has 128 bits that only its readers come to know.

use crate::folder::{close_for_ever, copy_with_holes};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use tidemill_core::id::ObjectId;

/// The folder, in that of the element.
pub(crate) const FOLDER: &str = "handed";

/// See the module.
#[derive(Debug)]
pub(crate) struct Handed {
    folder: PathBuf,
    capacity_bytes: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    objects: HashMap<ObjectId, (PathBuf, u64)>,
}

/// A name that nobody can guess, which begins with the object's.
fn new_name(object: ObjectId) -> io::Result<String> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let secret = tidemill_wire::route::hex(&secret);
    Ok(format!("{:016x}-{secret}", object.0))
}

/// The object of a name, if it is that of a whole one.
fn object_of(name: &str) -> Option<ObjectId> {
    let (object, secret) = name.split_once('-')?;
    let whole = secret.len() == 32 && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    tidemill_wire::route::parse_object(object).filter(|_| whole)
}

impl Handed {
    /// Finds what is there; what was being copied is removed.
    pub(crate) fn open(element: &Path, capacity_bytes: u64) -> io::Result<Self> {
        // Kernels are given paths of it, and may not pass through the folder of the element.
        let folder = element.join(FOLDER).canonicalize()?;
        let mut held = Held::default();
        for file in std::fs::read_dir(&folder)? {
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
            folder,
            capacity_bytes,
            held: Mutex::new(held),
        })
    }

    /// The file of an object that is here.
    pub(crate) fn find(&self, object: ObjectId) -> Option<PathBuf> {
        let held = self.held.lock();
        held.objects.get(&object).map(|(path, _)| path.clone())
    }

    /// The objects that are here.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        self.held.lock().objects.keys().copied().collect()
    }

    /// Bytes that are taken, and that there are.
    #[cfg(test)]
    fn space(&self) -> (u64, u64) {
        (self.held.lock().bytes, self.capacity_bytes)
    }

    /// Makes a copy of a file the sealed object, if there is room; whether there was.
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
        let path = self.folder.join(new_name(object)?);
        let new = path.with_extension("new");
        let copied = copy_with_holes(file, &new)
            .and_then(|copy| close_for_ever(&copy))
            .and_then(|()| std::fs::rename(&new, &path));
        if copied.is_err() {
            // The error of the copy is the one to tell.
            let _ = std::fs::remove_file(&new);
        }
        copied.map(|()| path)
    }

    /// An object is here no more; whether it was.
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

    /// A file that does not fit is refused, a removal frees its memory, and files from before are found again.
    #[test]
    fn handed_memory_is_bounded_and_found_after_restart() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FOLDER)).unwrap();
        let made = folder.path().join("made");
        std::fs::write(&made, vec![7; 600]).unwrap();
        let file = File::open(&made).unwrap();
        let handed = Handed::open(folder.path(), 1000).unwrap();
        assert!(handed.take(ObjectId(1), &file, 600));
        assert!(!handed.take(ObjectId(2), &file, 600), "full");
        assert!(
            handed.take(ObjectId(1), &file, 600),
            "a label that ran again"
        );
        assert_eq!(handed.space(), (600, 1000));
        assert_eq!(handed.find(ObjectId(2)), None);
        std::fs::write(
            folder.path().join(FOLDER).join("0000000000000002-0.new"),
            "x",
        )
        .unwrap();
        let handed = Handed::open(folder.path(), 1000).unwrap();
        assert_eq!(
            (handed.objects(), handed.space().0),
            (vec![ObjectId(1)], 600)
        );
        let path = handed.find(ObjectId(1)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 600]);
        assert!(path.metadata().unwrap().permissions().readonly());
        assert!(handed.forget(ObjectId(1)) && !handed.forget(ObjectId(1)));
        assert!(!path.exists());
        // Nowhere to copy to: it is no failure.
        std::fs::remove_dir(folder.path().join(FOLDER)).unwrap();
        assert!(!handed.take(ObjectId(3), &file, 600));
        assert_eq!(handed.space().0, 0);
    }
}
