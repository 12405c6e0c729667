//! Private folders that are used again.
//!
//! Making and removing three folders a task costs more than starting it: some file systems (ext4) go
//! through all inodes that were removed in the last minutes each time they make a new one. So a folder that
//! a kernel left empty is kept, bare but for its reserved part, for the next run of the same user.
//!
//! The folder and those in it belonged to a kernel's user. They are this process's own again before they are looked into,
//! and emptied by descriptor, following no link.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::prepare::{RESERVED, TEMPORARY};
use crate::private::{next, open_taken, remove_folder};
use crate::run::{Run, User};

/// Spare folders kept for each user.
const SPARES_MAX: usize = 64;

/// The spare folders of one [`crate::Launcher`].
#[derive(Debug, Default)]
pub(crate) struct Spares {
    shelf: Mutex<Shelf>,
}

/// The folder that spares lie in, and the user and group they are for.
type Key = (PathBuf, Option<(u32, u32)>);

#[derive(Debug, Default)]
struct Shelf {
    used: HashMap<PathBuf, Option<User>>,
    free: BTreeMap<Key, Vec<PathBuf>>,
    next: u64,
}

fn key(folder: &Path, user: Option<User>) -> Key {
    let parent = folder.parent().unwrap_or(Path::new("/")).to_owned();
    (parent, user.map(|user| (user.uid, user.gid)))
}

impl Spares {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a spare folder where the run wants its private folder; whether there was one.
    pub(crate) fn take(&self, run: &Run) -> bool {
        let mut shelf = self.shelf();
        shelf.used.insert(run.folder.clone(), run.user);
        let spare = shelf
            .free
            .get_mut(&key(&run.folder, run.user))
            .and_then(Vec::pop);
        drop(shelf);
        // What is there already must not be replaced.
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let cwd = rustix::fs::CWD;
        spare.is_some_and(|spare| {
            rustix::fs::renameat_with(cwd, &spare, cwd, &run.folder, flags)
                .inspect_err(|_| drop(remove_folder(&spare)))
                .is_ok()
        })
    }

    /// Empties a private folder and keeps it; `false` if it is left for the caller to remove.
    pub(crate) fn put(&self, folder: &Path) -> bool {
        let mut shelf = self.shelf();
        let Some(user) = shelf.used.remove(folder) else {
            return false;
        };
        let key = key(folder, user);
        if shelf
            .free
            .get(&key)
            .is_some_and(|free| free.len() >= SPARES_MAX)
        {
            return false;
        }
        shelf.next += 1;
        let spare = key.0.join(format!("spare-{}", shelf.next));
        drop(shelf);
        if empty(folder).is_err() || std::fs::rename(folder, &spare).is_err() {
            return false;
        }
        self.shelf().free.entry(key).or_default().push(spare);
        true
    }
}

/// Takes a private folder back and removes all but the reserved folders, which are left as they were made.
fn empty(folder: &Path) -> io::Result<()> {
    let root = open_taken(rustix::fs::CWD, folder)?;
    let reserved = open_taken(&root, RESERVED)?;
    clear(open_taken(&reserved, TEMPORARY)?, None)?;
    clear(reserved, Some(TEMPORARY))?;
    clear(root, Some(RESERVED))
}

/// Removes the entries of a folder but `keep`. A folder among them is an error: then all goes.
fn clear(folder: OwnedFd, keep: Option<&str>) -> io::Result<()> {
    let mut entries = Dir::new(folder)?;
    while let Some(entry) = next(&mut entries) {
        let entry = entry?;
        let name = entry.file_name();
        if keep.is_some_and(|keep| name.to_bytes() == keep.as_bytes()) {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            return Err(Errno::ISDIR.into());
        }
        rustix::fs::unlinkat(entries.fd()?, name, AtFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Code;

    fn made(folder: &Path) -> Run {
        std::fs::create_dir_all(folder.join(RESERVED).join(TEMPORARY)).unwrap();
        Run::new(Code::Program("/bin/true".into()), folder)
    }

    #[test]
    fn an_emptied_folder_comes_back_bare() {
        let all = tempfile::tempdir().unwrap();
        let spares = Spares::default();
        let run = made(&all.path().join("1"));
        assert!(!spares.take(&run), "there is none yet");
        for file in ["a", ".tidemill/b", ".tidemill/tmp/c"] {
            std::fs::write(run.folder.join(file), "x").unwrap();
        }
        assert!(spares.put(&run.folder));
        assert!(!run.folder.exists());
        let next = Run::new(run.code.clone(), all.path().join("2"));
        assert!(spares.take(&next));
        let names: Vec<_> = std::fs::read_dir(&next.folder)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, [RESERVED]);
        assert_eq!(
            std::fs::read_dir(next.folder.join(".tidemill/tmp"))
                .unwrap()
                .count(),
            0
        );
    }

    #[test]
    fn a_folder_that_was_tampered_with_is_left_and_no_link_is_followed() {
        let all = tempfile::tempdir().unwrap();
        let outside = all.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let spares = Spares::default();
        for (name, tamper) in [("folder", 0), ("link", 1), ("no-tmp", 2)] {
            let run = made(&all.path().join(name));
            spares.take(&run);
            match tamper {
                0 => std::fs::create_dir(run.folder.join("d")).unwrap(),
                1 => {
                    std::fs::remove_dir_all(run.folder.join(RESERVED)).unwrap();
                    std::os::unix::fs::symlink(&outside, run.folder.join(RESERVED)).unwrap();
                }
                _ => std::fs::remove_dir(run.folder.join(".tidemill/tmp")).unwrap(),
            }
            assert!(!spares.put(&run.folder), "{name}");
        }
        assert!(outside.join("kept").exists());
    }
}
