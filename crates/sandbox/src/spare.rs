//! Spare private directories, for reuse.
//!
//! Making and removing several directories for each task costs more than starting it: when some file systems (ext4 without a journal) make
//! an inode, they search all inodes that were removed in the last minutes. So if a kernel left the directories of its private directory
//! unchanged, the directory is emptied of files and kept for the next run of the same user with the same subdirectories.
//!
//! The private directory and its subdirectories belonged to a kernel's user. This process becomes their owner before it reads them, and
//! empties them by descriptor, without following links.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::private::{next, open_taken, remove_directory};
use crate::run::{Run, User};

/// Maximum number of spare private directories.
const SPARES_MAX: usize = 128;

/// Maximum number of subdirectories of a spare directory.
const DIRECTORIES_MAX: usize = 16;

/// Spare directories of one [`crate::Launcher`].
#[derive(Debug, Default)]
pub(crate) struct Spares {
    held: Mutex<SpareDirectories>,
}

/// Parent of a private directory, its user and group, and its subdirectories.
type SpareKey = (PathBuf, Option<(u32, u32)>, BTreeSet<String>);

#[derive(Debug, Default)]
struct SpareDirectories {
    used: HashMap<PathBuf, SpareKey>,
    /// Spare private directories; those added last are at the end.
    free: VecDeque<(SpareKey, PathBuf)>,
    next: u64,
}

fn key(directory: &Path, user: Option<User>, directories: &BTreeSet<String>) -> SpareKey {
    let parent = directory.parent().unwrap_or(Path::new("/")).to_owned();
    let user = user.map(|user| (user.uid, user.gid));
    (parent, user, directories.clone())
}

impl Spares {
    fn held(&self) -> MutexGuard<'_, SpareDirectories> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a spare directory with these subdirectories to the path of the run's private directory. Returns whether there was a spare directory.
    pub(crate) fn take(&self, run: &Run, directories: &BTreeSet<String>) -> bool {
        let key = key(&run.directory, run.user, directories);
        let mut held = self.held();
        let place = held.free.iter().rposition(|(other, _)| *other == key);
        let spare = place.and_then(|place| held.free.remove(place));
        if directories.len() <= DIRECTORIES_MAX {
            held.used.insert(run.directory.clone(), key);
        }
        drop(held);
        // An existing directory must not be replaced.
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let cwd = rustix::fs::CWD;
        spare.is_some_and(|(_, spare)| {
            rustix::fs::renameat_with(cwd, &spare, cwd, &run.directory, flags)
                .inspect_err(|_| drop(remove_directory(&spare)))
                .is_ok()
        })
    }

    /// Empties a private directory and keeps it as a spare one; returns `false` if the caller must remove the directory.
    pub(crate) fn put(&self, directory: &Path) -> bool {
        let mut held = self.held();
        let Some(key) = held.used.remove(directory) else {
            return false;
        };
        held.next += 1;
        let spare = key.0.join(format!("spare-{}", held.next));
        drop(held);
        if empty(directory, &key.2).is_err() || std::fs::rename(directory, &spare).is_err() {
            return false;
        }
        let mut held = self.held();
        held.free.push_back((key, spare));
        let most = held.free.len() > SPARES_MAX;
        let oldest = if most { held.free.pop_front() } else { None };
        drop(held);
        if let Some((_, oldest)) = oldest
            && let Err(error) = remove_directory(&oldest)
        {
            tracing::warn!(path = %oldest.display(), %error, "a spare directory can't be removed");
        }
        true
    }
}

/// Makes this process the owner of a private directory, and removes all files in it and in its subdirectories, which must all exist.
fn empty(directory: &Path, directories: &BTreeSet<String>) -> io::Result<()> {
    let found = clear(open_taken(rustix::fs::CWD, directory)?, "", directories)?;
    match found == directories.len() {
        true => Ok(()),
        false => Err(Errno::NOENT.into()),
    }
}

/// Removes the files in a directory and in its listed subdirectories; returns the number of these subdirectories. Any other subdirectory is
/// an error, after which the caller removes the whole directory.
fn clear(directory: OwnedFd, within: &str, directories: &BTreeSet<String>) -> io::Result<usize> {
    let mut entries = Dir::new(directory)?;
    let mut found = 0;
    while let Some(entry) = next(&mut entries) {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() != FileType::Directory {
            rustix::fs::unlinkat(entries.fd()?, name, AtFlags::empty())?;
            continue;
        }
        let path = name.to_str().map(|name| format!("{within}{name}"));
        let path = path.ok().filter(|path| directories.contains(path));
        let path = path.ok_or(Errno::ISDIR)?;
        let inner = open_taken(entries.fd()?, name)?;
        found += 1 + clear(inner, &format!("{path}/"), directories)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::RESERVED;
    use crate::run::CodeSource;

    fn directories() -> BTreeSet<String> {
        [".tidemill", ".tidemill/tmp", "in", "in/deep"]
            .map(str::to_owned)
            .into()
    }

    fn made(directory: &Path) -> Run {
        directories()
            .iter()
            .for_each(|name| std::fs::create_dir_all(directory.join(name)).unwrap());
        Run::new(CodeSource::Program("/bin/true".into()), directory)
    }

    #[test]
    fn emptied_spare_directory_is_reused() {
        let all = tempfile::tempdir().unwrap();
        let spares = Spares::default();
        let run = made(&all.path().join("1"));
        assert!(!spares.take(&run, &directories()), "there is none yet");
        for file in ["a", ".tidemill/b", ".tidemill/tmp/c", "in/deep/d"] {
            std::fs::write(run.directory.join(file), "x").unwrap();
        }
        assert!(spares.put(&run.directory));
        assert!(!run.directory.exists());
        let next = Run::new(run.code.clone(), all.path().join("2"));
        // A spare directory is not used for a run with other subdirectories or another user.
        assert!(!spares.take(&next, &BTreeSet::from(["in".to_owned()])));
        let user = User { uid: 7, gid: 7 };
        assert!(!spares.take(
            &Run {
                user: Some(user),
                ..next.clone()
            },
            &directories()
        ));
        assert!(spares.take(&next, &directories()));
        let mut left = BTreeSet::new();
        let mut open = vec![next.directory.clone()];
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                left.insert(
                    path.strip_prefix(&next.directory)
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                );
                open.extend(path.is_dir().then_some(path));
            }
        }
        assert_eq!(left, directories());
    }

    #[test]
    fn spare_directories_are_bounded_in_number() {
        let all = tempfile::tempdir().unwrap();
        let spares = Spares::default();
        for number in 0..SPARES_MAX + 5 {
            let run = made(&all.path().join(number.to_string()));
            let own = BTreeSet::from([number.to_string()]);
            let all: BTreeSet<String> = directories().union(&own).cloned().collect();
            std::fs::create_dir(run.directory.join(number.to_string())).unwrap();
            assert!(!spares.take(&run, &all));
            assert!(spares.put(&run.directory));
        }
        assert_eq!(std::fs::read_dir(all.path()).unwrap().count(), SPARES_MAX);
        // A directory with too many subdirectories is not kept.
        let run = made(&all.path().join("many"));
        let many: BTreeSet<String> = (0..=DIRECTORIES_MAX)
            .map(|number| number.to_string())
            .collect();
        assert!(!spares.take(&run, &many) && !spares.put(&run.directory));
    }

    #[test]
    fn tampered_private_directory_is_not_recycled() {
        let all = tempfile::tempdir().unwrap();
        let outside = all.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let spares = Spares::default();
        for (name, tamper) in [
            ("directory", 0),
            ("link", 1),
            ("no-tmp", 2),
            ("deep link", 3),
            ("moved", 4),
        ] {
            let run = made(&all.path().join(name));
            spares.take(&run, &directories());
            match tamper {
                3 => {
                    std::fs::remove_dir(run.directory.join("in/deep")).unwrap();
                    std::os::unix::fs::symlink(&outside, run.directory.join("in/deep")).unwrap();
                }
                4 => std::fs::rename(run.directory.join("in/deep"), run.directory.join("deep"))
                    .unwrap(),
                0 => std::fs::create_dir(run.directory.join("d")).unwrap(),
                1 => {
                    std::fs::remove_dir_all(run.directory.join(RESERVED)).unwrap();
                    std::os::unix::fs::symlink(&outside, run.directory.join(RESERVED)).unwrap();
                }
                _ => std::fs::remove_dir(run.directory.join(".tidemill/tmp")).unwrap(),
            }
            assert!(!spares.put(&run.directory), "{name}");
        }
        assert!(outside.join("kept").exists());
    }
}
