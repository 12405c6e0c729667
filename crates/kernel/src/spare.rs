//! Spare private folders, for reuse.
//!
//! Making and removing several folders for each task costs more than starting it: when some file systems (ext4 without a journal) make an
//! inode, they search all inodes that were removed in the last minutes. So if a kernel left the folders of its private folder unchanged,
//! the folder is emptied of files and kept for the next run of the same user with the same subfolders.
//!
//! The private folder and its subfolders belonged to a kernel's user. This process becomes their owner before it reads them, and empties
//! them by descriptor, without following links.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::private::{next, open_taken, remove_folder};
use crate::run::{Run, User};

/// Maximum number of spare folders.
const SPARES_MAX: usize = 128;

/// Maximum number of subfolders of a spare folder.
const FOLDERS_MAX: usize = 16;

/// Spare folders of one [`crate::Launcher`].
#[derive(Debug, Default)]
pub(crate) struct Spares {
    shelf: Mutex<Shelf>,
}

/// Parent of a private folder, its user and group, and its subfolders.
type Key = (PathBuf, Option<(u32, u32)>, BTreeSet<String>);

#[derive(Debug, Default)]
struct Shelf {
    used: HashMap<PathBuf, Key>,
    /// Spare folders; those added last are at the end.
    free: VecDeque<(Key, PathBuf)>,
    next: u64,
}

fn key(folder: &Path, user: Option<User>, folders: &BTreeSet<String>) -> Key {
    let parent = folder.parent().unwrap_or(Path::new("/")).to_owned();
    let user = user.map(|user| (user.uid, user.gid));
    (parent, user, folders.clone())
}

impl Spares {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a spare folder with these subfolders to the path of the run's private folder. Returns whether there was a spare folder.
    pub(crate) fn take(&self, run: &Run, folders: &BTreeSet<String>) -> bool {
        let key = key(&run.folder, run.user, folders);
        let mut shelf = self.shelf();
        let place = shelf.free.iter().rposition(|(other, _)| *other == key);
        let spare = place.and_then(|place| shelf.free.remove(place));
        if folders.len() <= FOLDERS_MAX {
            shelf.used.insert(run.folder.clone(), key);
        }
        drop(shelf);
        // An existing folder must not be replaced.
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let cwd = rustix::fs::CWD;
        spare.is_some_and(|(_, spare)| {
            rustix::fs::renameat_with(cwd, &spare, cwd, &run.folder, flags)
                .inspect_err(|_| drop(remove_folder(&spare)))
                .is_ok()
        })
    }

    /// Empties a private folder and keeps it; returns `false` if the caller must remove it.
    pub(crate) fn put(&self, folder: &Path) -> bool {
        let mut shelf = self.shelf();
        let Some(key) = shelf.used.remove(folder) else {
            return false;
        };
        shelf.next += 1;
        let spare = key.0.join(format!("spare-{}", shelf.next));
        drop(shelf);
        if empty(folder, &key.2).is_err() || std::fs::rename(folder, &spare).is_err() {
            return false;
        }
        let mut shelf = self.shelf();
        shelf.free.push_back((key, spare));
        let most = shelf.free.len() > SPARES_MAX;
        let oldest = if most { shelf.free.pop_front() } else { None };
        drop(shelf);
        if let Some((_, oldest)) = oldest
            && let Err(error) = remove_folder(&oldest)
        {
            tracing::warn!(path = %oldest.display(), %error, "a spare folder can't be removed");
        }
        true
    }
}

/// Takes a private folder back, and removes all files in it and in its listed subfolders. Each subfolder must exist.
fn empty(folder: &Path, folders: &BTreeSet<String>) -> io::Result<()> {
    let found = clear(open_taken(rustix::fs::CWD, folder)?, "", folders)?;
    match found == folders.len() {
        true => Ok(()),
        false => Err(Errno::NOENT.into()),
    }
}

/// Removes the files in a folder and in its listed subfolders; returns the number of these subfolders. Any other subfolder is an error,
/// after which the caller removes the whole folder.
fn clear(folder: OwnedFd, within: &str, folders: &BTreeSet<String>) -> io::Result<usize> {
    let mut entries = Dir::new(folder)?;
    let mut found = 0;
    while let Some(entry) = next(&mut entries) {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() != FileType::Directory {
            rustix::fs::unlinkat(entries.fd()?, name, AtFlags::empty())?;
            continue;
        }
        let path = name.to_str().map(|name| format!("{within}{name}"));
        let path = path.ok().filter(|path| folders.contains(path));
        let path = path.ok_or(Errno::ISDIR)?;
        let inner = open_taken(entries.fd()?, name)?;
        found += 1 + clear(inner, &format!("{path}/"), folders)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::RESERVED;
    use crate::run::Code;

    fn folders() -> BTreeSet<String> {
        [".tidemill", ".tidemill/tmp", "in", "in/deep"]
            .map(str::to_owned)
            .into()
    }

    fn made(folder: &Path) -> Run {
        folders()
            .iter()
            .for_each(|name| std::fs::create_dir_all(folder.join(name)).unwrap());
        Run::new(Code::Program("/bin/true".into()), folder)
    }

    #[test]
    fn emptied_spare_folder_is_reused() {
        let all = tempfile::tempdir().unwrap();
        let spares = Spares::default();
        let run = made(&all.path().join("1"));
        assert!(!spares.take(&run, &folders()), "there is none yet");
        for file in ["a", ".tidemill/b", ".tidemill/tmp/c", "in/deep/d"] {
            std::fs::write(run.folder.join(file), "x").unwrap();
        }
        assert!(spares.put(&run.folder));
        assert!(!run.folder.exists());
        let next = Run::new(run.code.clone(), all.path().join("2"));
        // A spare folder is not used for a run with other subfolders or another user.
        assert!(!spares.take(&next, &BTreeSet::from(["in".to_owned()])));
        let user = User { uid: 7, gid: 7 };
        assert!(!spares.take(
            &Run {
                user: Some(user),
                ..next.clone()
            },
            &folders()
        ));
        assert!(spares.take(&next, &folders()));
        let mut left = BTreeSet::new();
        let mut open = vec![next.folder.clone()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                left.insert(
                    path.strip_prefix(&next.folder)
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                );
                open.extend(path.is_dir().then_some(path));
            }
        }
        assert_eq!(left, folders());
    }

    #[test]
    fn spare_folders_are_bounded() {
        let all = tempfile::tempdir().unwrap();
        let spares = Spares::default();
        for number in 0..SPARES_MAX + 5 {
            let run = made(&all.path().join(number.to_string()));
            let own = BTreeSet::from([number.to_string()]);
            let all: BTreeSet<String> = folders().union(&own).cloned().collect();
            std::fs::create_dir(run.folder.join(number.to_string())).unwrap();
            assert!(!spares.take(&run, &all));
            assert!(spares.put(&run.folder));
        }
        assert_eq!(std::fs::read_dir(all.path()).unwrap().count(), SPARES_MAX);
        // A folder with too many subfolders is not kept.
        let run = made(&all.path().join("many"));
        let many: BTreeSet<String> = (0..=FOLDERS_MAX).map(|number| number.to_string()).collect();
        assert!(!spares.take(&run, &many) && !spares.put(&run.folder));
    }

    #[test]
    fn tampered_folder_is_not_recycled_and_links_not_followed() {
        let all = tempfile::tempdir().unwrap();
        let outside = all.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let spares = Spares::default();
        for (name, tamper) in [
            ("folder", 0),
            ("link", 1),
            ("no-tmp", 2),
            ("deep link", 3),
            ("moved", 4),
        ] {
            let run = made(&all.path().join(name));
            spares.take(&run, &folders());
            match tamper {
                3 => {
                    std::fs::remove_dir(run.folder.join("in/deep")).unwrap();
                    std::os::unix::fs::symlink(&outside, run.folder.join("in/deep")).unwrap();
                }
                4 => std::fs::rename(run.folder.join("in/deep"), run.folder.join("deep")).unwrap(),
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
