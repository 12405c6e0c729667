//! What is to be done about a file of a store whose folder of the array has what is there: it was looked at, and is not as it is known.
//! Pure; an element looks, and carries out what comes of it ([0069](../../../docs/decisions/0069-folders-that-are-stores.md)).

use crate::id::ObjectId;
use There::File;

/// What is known of what is in the store now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The array has put it there: it is this version.
    pub ours: Option<ObjectId>,
    /// It is these versions by now.
    pub versions: Vec<ObjectId>,
    /// What was there before was these versions.
    pub before: Vec<ObjectId>,
}

/// What has its name in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    /// Nothing.
    Nothing,
    /// A folder.
    Folder,
    /// A link, a pipe, a device.
    Other,
    /// A file.
    File {
        /// Its version; 0: it has none yet.
        object: ObjectId,
        /// Somebody writes the next one.
        writing: bool,
        /// It is on its way to the store.
        waiting: bool,
    },
}

/// Why something in a store is no file of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// A folder has its name.
    Folder,
    /// Something else that is no file has it.
    Other,
    /// Both have been written since they were the same.
    Both,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Only to note that it is this version.
    Note(ObjectId),
    /// A new file is made of it.
    Make,
    /// It is the next version of its file, if that still has this one.
    Next(ObjectId),
    /// It is looked at again.
    Later,
    /// Nothing: both stay as they are.
    Pass(Passed),
}

/// The mode of folders whose files have this one: who may read those may go through them.
#[must_use]
pub fn folder_mode(mode: u32) -> u32 {
    0o700 | mode | (mode & 0o444) >> 2
}

/// Decides. What was written in the array is never replaced, unless it is what the store had, too.
#[must_use]
pub fn step(seen: &Seen, there: There) -> Step {
    let ours = seen.ours.map(Step::Note);
    let File {
        object,
        writing,
        waiting,
    } = there
    else {
        return ours.unwrap_or(match there {
            There::Folder => Step::Pass(Passed::Folder),
            There::Other => Step::Pass(Passed::Other),
            _ => Step::Make,
        });
    };
    if seen.versions.contains(&object) {
        return Step::Note(object);
    }
    let follows = seen.before.contains(&object);
    match ours {
        Some(ours) if !follows => ours,
        _ if writing => Step::Later,
        _ if follows || object == ObjectId(0) => Step::Next(object),
        _ if waiting => Step::Later,
        _ => Step::Pass(Passed::Both),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(object: u64) -> There {
        File {
            object: ObjectId(object),
            writing: false,
            waiting: false,
        }
    }

    fn seen(ours: Option<u64>, versions: &[u64], before: Option<u64>) -> Seen {
        Seen {
            ours: ours.map(ObjectId),
            versions: versions.iter().copied().map(ObjectId).collect(),
            before: before.into_iter().map(ObjectId).collect(),
        }
    }

    #[test]
    fn follow_step_separates_outer_changes_from_own_writes() {
        let (new, changed) = (seen(None, &[], None), seen(None, &[], Some(5)));
        assert_eq!(step(&new, There::Nothing), Step::Make);
        assert_eq!(step(&changed, file(5)), Step::Next(ObjectId(5)));
        assert_eq!(step(&changed, file(6)), Step::Pass(Passed::Both));
        assert_eq!(step(&new, file(6)), Step::Pass(Passed::Both));
        assert_eq!(step(&new, There::Folder), Step::Pass(Passed::Folder));
        // Put there by the array, or linked and not noted, as by who was killed.
        assert_eq!(
            step(&seen(Some(7), &[7], Some(5)), file(7)),
            Step::Note(ObjectId(7))
        );
        assert_eq!(
            step(&seen(None, &[7], Some(5)), file(7)),
            Step::Note(ObjectId(7))
        );
        // The store has again what the array had put there once.
        assert_eq!(
            step(&seen(Some(3), &[3], Some(5)), file(5)),
            Step::Next(ObjectId(5))
        );
        let writing = File {
            object: ObjectId(5),
            writing: true,
            waiting: false,
        };
        assert_eq!(step(&changed, writing), Step::Later);
        let waiting = File {
            object: ObjectId(6),
            writing: false,
            waiting: true,
        };
        assert_eq!(step(&changed, waiting), Step::Later);
    }

    /// One name of a store and of its folder.
    #[derive(Debug, Default)]
    struct Name {
        /// What is in the store: its tag, and the version that the array put there.
        store: Option<(u64, Option<u64>)>,
        /// The file's version, and whether the array wrote that.
        file: Option<(u64, bool)>,
        /// Tag and version that were noted.
        noted: Option<(u64, u64)>,
        /// Tags of versions.
        tags: Vec<(u64, u64)>,
        next: u64,
        /// Versions that became the file's.
        made: Vec<u64>,
    }

    impl Name {
        fn new_number(&mut self) -> u64 {
            self.next += 1;
            self.next
        }

        fn store_writes(&mut self) {
            let tag = self.new_number();
            self.store = Some((tag, None));
        }

        fn array_writes(&mut self) {
            let object = self.new_number();
            self.file = Some((object, true));
        }

        /// As an element does: where the store has what the file was, that is replaced.
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

        /// What was noted, and versions that the element knows to have been there.
        fn before(&self, tag: u64) -> Vec<ObjectId> {
            let others = self.tags.iter().filter(|&&(known, _)| known != tag);
            let noted = self.noted.iter().chain(others);
            noted.map(|&(_, object)| ObjectId(object)).collect()
        }

        /// `killed`: before it could be noted.
        fn looks(&mut self, killed: bool) -> Option<Step> {
            let (tag, ours) = self.store?;
            if self.noted.is_some_and(|(noted, _)| noted == tag) {
                return None;
            }
            let versions = self.tags.iter().filter(|&&(known, _)| known == tag);
            let seen = Seen {
                ours: ours.map(ObjectId),
                versions: versions.map(|&(_, object)| ObjectId(object)).collect(),
                before: self.before(tag),
            };
            let there = self.file.map_or(There::Nothing, |(object, _)| file(object));
            let step = step(&seen, there);
            let object = match step {
                Step::Note(ObjectId(object)) => object,
                Step::Make | Step::Next(_) => {
                    let object = self.new_number();
                    self.tags.push((tag, object));
                    self.file = Some((object, false));
                    self.made.push(tag);
                    object
                }
                Step::Later | Step::Pass(_) => return Some(step),
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
            let mut name = Name::default();
            for one in steps {
                let written = name.file.filter(|&(_, ours)| ours);
                match one {
                    0 => name.store_writes(),
                    1 => name.array_writes(),
                    2 => name.settles(),
                    one => {
                        name.looks(one == 3);
                        // What is only in the array is still the file.
                        prop_assert!(written.is_none() || name.file == written);
                    }
                }
            }
            let mut made = name.made.clone();
            made.dedup();
            prop_assert_eq!(&made, &name.made);
            // In the end both are the same, or both have been written.
            name.settles();
            let last = name.looks(false);
            let again = name.looks(false);
            let both = matches!(last, Some(Step::Pass(Passed::Both)));
            prop_assert_eq!(again.is_some(), both);
            if let (Some((tag, _)), Some((object, _)), false) = (name.store, name.file, both) {
                prop_assert!(name.tags.contains(&(tag, object)));
            }
        }
    }
}
