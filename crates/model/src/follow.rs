//! Attached stores: decides the step for a changed file of a store whose objects appear as files in a directory of the cluster. This module
//! does no I/O: a node compares store and directory and carries out the steps
//! ([0067](../../../docs/decisions/0067-attached-directories.md)).

use crate::id::ObjectId;
use ExistingEntry::File;

/// Known versions of the current content of a store's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownVersions {
    /// Version that the cluster itself has written to the store, if the current content is such a version.
    pub ours: Option<ObjectId>,
    /// Versions that have the current content of the store's file.
    pub versions: Vec<ObjectId>,
    /// Versions that have the earlier content of the store's file.
    pub before: Vec<ObjectId>,
}

/// Entry of the directory with the same name as the store's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingEntry {
    /// The directory has no entry with this name.
    Nothing,
    /// The entry is a directory.
    Directory,
    /// The entry is a link, a pipe or a device.
    Other,
    /// The entry is a file.
    File {
        /// Current version of the file; 0 if the file has none yet.
        object: ObjectId,
        /// Whether the next version of the file is being written.
        writing: bool,
        /// Whether the current version is waiting to be written to the store.
        waiting: bool,
    },
}

/// Reason for which a store's file does not become a file of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The directory contains a directory of this name.
    Directory,
    /// The directory contains a special file of this name.
    Other,
    /// Both the store's file and the directory's file have been written since they were equal.
    Both,
}

/// Step for a changed file of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// Record that the content of the store's file is this version.
    Note(ObjectId),
    /// Create a new file with the content of the store's file.
    Make,
    /// Add the content as the next version of the file, if the file's current version is still this version.
    Next(ObjectId),
    /// Compare the store's file with the directory again later.
    Later,
    /// Change nothing: store and directory stay as they are.
    Pass(Passed),
}

/// Returns the mode of directories whose files have this mode: users with read access to the files may search the directories.
#[must_use]
pub fn directory_mode(mode: u32) -> u32 {
    0o700 | mode | (mode & 0o444) >> 2
}

/// Decides the step for a changed file. A version that was written in the cluster is never replaced, unless the store contained it, too.
#[must_use]
pub fn step(seen: &KnownVersions, there: ExistingEntry) -> FollowStep {
    let ours = seen.ours.map(FollowStep::Note);
    let File {
        object,
        writing,
        waiting,
    } = there
    else {
        return ours.unwrap_or(match there {
            ExistingEntry::Directory => FollowStep::Pass(Passed::Directory),
            ExistingEntry::Other => FollowStep::Pass(Passed::Other),
            _ => FollowStep::Make,
        });
    };
    if seen.versions.contains(&object) {
        return FollowStep::Note(object);
    }
    let follows = seen.before.contains(&object);
    match ours {
        Some(ours) if !follows => ours,
        _ if writing => FollowStep::Later,
        _ if follows || object == ObjectId(0) => FollowStep::Next(object),
        _ if waiting => FollowStep::Later,
        _ => FollowStep::Pass(Passed::Both),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(object: u64) -> ExistingEntry {
        File {
            object: ObjectId(object),
            writing: false,
            waiting: false,
        }
    }

    fn seen(ours: Option<u64>, versions: &[u64], before: Option<u64>) -> KnownVersions {
        KnownVersions {
            ours: ours.map(ObjectId),
            versions: versions.iter().copied().map(ObjectId).collect(),
            before: before.into_iter().map(ObjectId).collect(),
        }
    }

    #[test]
    fn follow_step_separates_outer_changes_from_own_writes() {
        let (new, changed) = (seen(None, &[], None), seen(None, &[], Some(5)));
        assert_eq!(step(&new, ExistingEntry::Nothing), FollowStep::Make);
        assert_eq!(step(&changed, file(5)), FollowStep::Next(ObjectId(5)));
        assert_eq!(step(&changed, file(6)), FollowStep::Pass(Passed::Both));
        assert_eq!(step(&new, file(6)), FollowStep::Pass(Passed::Both));
        assert_eq!(
            step(&new, ExistingEntry::Directory),
            FollowStep::Pass(Passed::Directory)
        );
        // The cluster has written or linked the file, and was killed before it recorded the version.
        assert_eq!(
            step(&seen(Some(7), &[7], Some(5)), file(7)),
            FollowStep::Note(ObjectId(7))
        );
        assert_eq!(
            step(&seen(None, &[7], Some(5)), file(7)),
            FollowStep::Note(ObjectId(7))
        );
        // The store has again a content that the cluster wrote there earlier.
        assert_eq!(
            step(&seen(Some(3), &[3], Some(5)), file(5)),
            FollowStep::Next(ObjectId(5))
        );
        let writing = File {
            object: ObjectId(5),
            writing: true,
            waiting: false,
        };
        assert_eq!(step(&changed, writing), FollowStep::Later);
        let waiting = File {
            object: ObjectId(6),
            writing: false,
            waiting: true,
        };
        assert_eq!(step(&changed, waiting), FollowStep::Later);
    }

    /// State of one name in a store and in its attached directory.
    #[derive(Debug, Default)]
    struct FollowedName {
        /// Content of the store's file: its tag, and the version that the cluster wrote to the store.
        store: Option<(u64, Option<u64>)>,
        /// Version of the directory's file, and whether the cluster wrote the version.
        file: Option<(u64, bool)>,
        /// Tag and version that were recorded last.
        noted: Option<(u64, u64)>,
        /// Tags with the versions that have their content.
        tags: Vec<(u64, u64)>,
        next: u64,
        /// Tags whose content became versions of the directory's file.
        made: Vec<u64>,
    }

    impl FollowedName {
        fn new_number(&mut self) -> u64 {
            self.next += 1;
            self.next
        }

        fn store_writes(&mut self) {
            let tag = self.new_number();
            self.store = Some((tag, None));
        }

        fn cluster_writes(&mut self) {
            let object = self.new_number();
            self.file = Some((object, true));
        }

        /// Writes the file to the store as a node does, if the store holds an earlier version of the file.
        fn settles(&mut self) {
            let Some((object, true)) = self.file else {
                return;
            };
            let known = |tag: u64| self.tags.iter().any(|&(known, _)| known == tag);
            if self.store.is_none_or(|(tag, _)| known(tag)) {
                let tag = self.new_number();
                self.store = Some((tag, Some(object)));
                self.tags.push((tag, object));
                self.file = Some((object, false));
            }
        }

        /// Returns the recorded version, and other versions that the node knows to have been in the store.
        fn before(&self, tag: u64) -> Vec<ObjectId> {
            let others = self.tags.iter().filter(|&&(known, _)| known != tag);
            let noted = self.noted.iter().chain(others);
            noted.map(|&(_, object)| ObjectId(object)).collect()
        }

        /// Compares store and file. With `killed`, the node is killed before it records the version.
        fn looks(&mut self, killed: bool) -> Option<FollowStep> {
            let (tag, ours) = self.store?;
            if self.noted.is_some_and(|(noted, _)| noted == tag) {
                return None;
            }
            let versions = self.tags.iter().filter(|&&(known, _)| known == tag);
            let seen = KnownVersions {
                ours: ours.map(ObjectId),
                versions: versions.map(|&(_, object)| ObjectId(object)).collect(),
                before: self.before(tag),
            };
            let there = self
                .file
                .map_or(ExistingEntry::Nothing, |(object, _)| file(object));
            let step = step(&seen, there);
            let object = match step {
                FollowStep::Note(ObjectId(object)) => object,
                FollowStep::Make | FollowStep::Next(_) => {
                    let object = self.new_number();
                    self.tags.push((tag, object));
                    self.file = Some((object, false));
                    self.made.push(tag);
                    object
                }
                FollowStep::Later | FollowStep::Pass(_) => return Some(step),
            };
            if !killed {
                self.noted = Some((tag, object));
            }
            Some(step)
        }
    }

    proptest! {
        #[test]
        fn follow_never_loses_own_writes_or_repeats_versions(
            steps in proptest::collection::vec(0..5_u8, 1..40),
        ) {
            let mut name = FollowedName::default();
            for one in steps {
                let written = name.file.filter(|&(_, ours)| ours);
                match one {
                    0 => name.store_writes(),
                    1 => name.cluster_writes(),
                    2 => name.settles(),
                    one => {
                        name.looks(one == 3);
                        // A version that exists only in the cluster stays the file's version.
                        prop_assert!(written.is_none() || name.file == written);
                    }
                }
            }
            let mut made = name.made.clone();
            made.dedup();
            prop_assert_eq!(&made, &name.made);
            // In the end store and file are equal, or both have been written.
            name.settles();
            let last = name.looks(false);
            let again = name.looks(false);
            let both = matches!(last, Some(FollowStep::Pass(Passed::Both)));
            prop_assert_eq!(again.is_some(), both);
            if let (Some((tag, _)), Some((object, _)), false) = (name.store, name.file, both) {
                prop_assert!(name.tags.contains(&(tag, object)));
            }
        }
    }
}
