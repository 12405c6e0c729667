//! Cache of directories' entries: which names exist, which inodes they have, and which names do not exist. It only changes memory.
//!
//! An answer of the server is as old as its question, and others change entries without asking. So every cached value needs a proof: an
//! answer is used only if its name has not changed since the question, either from here ([`Entries::changed`]) or by another client, as the
//! server reports ([`Entries::foreign`]). The cache answers that a name does not exist only if every entry of the directory is cached or
//! noted as unsure. Where a proof fails, the name is [`Known::Unsure`]: the server is asked, which is slow but never wrong. Therefore state
//! that several names share may only make names unsure.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry as Place};
use std::hash::{Hash, Hasher};

/// Number of slots that names share for the time of their last change.
const SLOTS: usize = 4096;
/// Maximum number of entries of a directory whose names are all cached.
pub(crate) const ENTRIES_MAX: usize = 65_536;

/// Cached value of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The name has this inode.
    Is(u64),
    /// The name does not exist.
    Nothing,
    /// Only the server knows.
    Unsure,
}

/// Slot that holds the time of a name's last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u64);

impl Slot {
    pub(crate) fn of(directory: u64, name: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        (directory, name).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// All cached entries. Times are those of one clock that never runs backwards.
#[derive(Debug)]
pub(crate) struct Entries {
    contents: HashMap<u64, Content>,
    /// Names of inodes, as far as they were seen.
    paths: HashMap<u64, Vec<(u64, Vec<u8>)>>,
    /// Time of the last change of the names of each slot.
    names: Vec<u64>,
    /// Time of the last change of entries in the directories of each slot.
    directories: Vec<u64>,
    /// Time since which others' changes are received. Answers to earlier questions are not used.
    heard: u64,
}

#[derive(Debug, Default)]
struct Content {
    entries: HashMap<Vec<u8>, Entry>,
    /// Whether a name that is missing from `entries` does not exist.
    complete: bool,
    /// Number of failed look-ups since the last listing.
    missed: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Inode of the name, or the last known inode; 0 if there never was one.
    ino: u64,
    sure: bool,
}

impl Entry {
    const UNSURE: Self = Self {
        ino: 0,
        sure: false,
    };
}

impl Default for Entries {
    fn default() -> Self {
        Self::with_slots(SLOTS)
    }
}

impl Entries {
    fn with_slots(slots: usize) -> Self {
        Self {
            contents: HashMap::new(),
            paths: HashMap::new(),
            names: vec![0; slots],
            directories: vec![0; slots],
            heard: 0,
        }
    }

    /// Whether a name of the slot may have changed since `asked`.
    pub(crate) fn changed_since(&self, slot: Slot, asked: u64) -> bool {
        self.names[at(&self.names, slot.0)] > asked || self.heard > asked
    }

    fn stamp(&mut self, directory: u64, slot: Slot, now: u64) {
        let (name, entries) = (at(&self.names, slot.0), at(&self.directories, directory));
        self.names[name] = now;
        self.directories[entries] = now;
    }

    /// Returns the cached value of a name.
    pub(crate) fn known(&self, directory: u64, name: &[u8]) -> Known {
        let Some(content) = self.contents.get(&directory) else {
            return Known::Unsure;
        };
        match content.entries.get(name) {
            Some(entry) if entry.sure => Known::Is(entry.ino),
            Some(_) => Known::Unsure,
            None if content.complete => Known::Nothing,
            None => Known::Unsure,
        }
    }

    /// Notes the result of a look-up. Returns whether the result can be cached.
    pub(crate) fn learned(&mut self, directory: u64, name: &[u8], ino: u64, asked: u64) -> bool {
        let believed = !self.changed_since(Slot::of(directory, name), asked);
        if believed {
            self.set(directory, name, Known::Is(ino));
        }
        believed
    }

    /// Notes that a looked-up name does not exist. Returns the number of such answers since the directory was listed.
    pub(crate) fn absent(&mut self, directory: u64, name: &[u8], asked: u64) -> u32 {
        if !self.changed_since(Slot::of(directory, name), asked) {
            self.set(directory, name, Known::Nothing);
        }
        let content = self.contents.entry(directory).or_default();
        content.missed = content.missed.saturating_add(1);
        content.missed
    }

    /// Ends a change from here that was requested at `asked`, with the new value of the name. Returns whether that value can be cached.
    pub(crate) fn changed(
        &mut self,
        directory: u64,
        name: &[u8],
        asked: u64,
        truth: Known,
        now: u64,
    ) -> bool {
        let slot = Slot::of(directory, name);
        let alone = !self.changed_since(slot, asked);
        self.stamp(directory, slot, now);
        self.set(directory, name, if alone { truth } else { Known::Unsure });
        alone && truth != Known::Unsure
    }

    /// Notes that another client changed a name.
    pub(crate) fn foreign(&mut self, directory: u64, name: &[u8], now: u64) {
        self.stamp(directory, Slot::of(directory, name), now);
        self.set(directory, name, Known::Unsure);
    }

    /// Notes that entries of a directory were listed.
    pub(crate) fn listed<'a>(
        &mut self,
        directory: u64,
        entries: impl Iterator<Item = (&'a [u8], u64)>,
        asked: u64,
    ) {
        let untouched = self.directories[at(&self.directories, directory)] <= asked;
        let complete = untouched && self.heard <= asked;
        for (name, ino) in entries {
            let believed = !self.changed_since(Slot::of(directory, name), asked);
            let entry = match (believed, complete) {
                (true, _) => Entry { ino, sure: true },
                // The name shares its slot with a name that has changed. No name may be missing.
                (false, true) => Entry::UNSURE,
                (false, false) => continue,
            };
            let content = self.contents.entry(directory).or_default();
            match content.entries.entry(name.to_vec()) {
                Place::Vacant(place) => {
                    place.insert(entry);
                }
                Place::Occupied(mut place) if believed => {
                    let old = place.insert(entry).ino;
                    if old != ino {
                        self.forget_path(old, directory, name);
                    }
                }
                Place::Occupied(_) => {}
            }
        }
        let content = self.contents.entry(directory).or_default();
        content.complete |= complete;
        if complete {
            content.missed = 0;
        }
    }

    /// Notes that a directory was created from here, at a time after `asked`: it has no entries.
    pub(crate) fn made(&mut self, directory: u64, asked: u64) {
        self.listed(directory, std::iter::empty(), asked);
    }

    /// Whether the cache knows of every name whether the directory has it.
    #[cfg(test)]
    fn is_complete(&self, directory: u64) -> bool {
        self.contents.get(&directory).is_some_and(|f| f.complete)
    }

    fn set(&mut self, directory: u64, name: &[u8], truth: Known) {
        if let Known::Is(ino) = truth
            && self.known(directory, name) == truth
            && self
                .name_of(ino)
                .is_some_and(|(d, n)| *d == directory && n == name)
        {
            return;
        }
        let content = self.contents.entry(directory).or_default();
        let room = content.entries.len() < ENTRIES_MAX || content.entries.contains_key(name);
        let new = match truth {
            Known::Is(ino) => Some(Entry { ino, sure: true }),
            Known::Unsure if content.complete && room => Some(Entry::UNSURE),
            Known::Unsure | Known::Nothing => None,
        };
        content.complete &= truth != Known::Unsure || new.is_some();
        let old = match new {
            Some(entry) => content.entries.insert(name.to_vec(), entry),
            None => content.entries.remove(name),
        };
        if content.entries.is_empty() && !content.complete && content.missed == 0 {
            self.contents.remove(&directory);
        }
        let (old, new) = (old.map_or(0, |old| old.ino), new.map_or(0, |new| new.ino));
        if old != new {
            self.forget_path(old, directory, name);
        }
        if new != 0 {
            let paths = self.paths.entry(new).or_default();
            paths.retain(|(parent, known)| *parent != directory || known != name);
            // The name that was seen last is shown.
            paths.push((directory, name.to_vec()));
        }
    }

    fn forget_path(&mut self, ino: u64, directory: u64, name: &[u8]) {
        if let Place::Occupied(mut paths) = self.paths.entry(ino) {
            paths
                .get_mut()
                .retain(|(p, n)| *p != directory || n != name);
            if paths.get().is_empty() {
                paths.remove();
            }
        }
    }

    /// Returns one of the names of an inode: the name that was seen last.
    pub(crate) fn name_of(&self, ino: u64) -> Option<&(u64, Vec<u8>)> {
        self.paths.get(&ino)?.last()
    }

    /// Returns the inodes of a directory's entries, including entries that are unsure now.
    pub(crate) fn within(&self, directory: u64) -> impl Iterator<Item = u64> {
        let content = self.contents.get(&directory).into_iter();
        content.flat_map(|content| content.entries.values().map(|entry| entry.ino))
    }

    /// Drops an inode: its names are unsure from now on, and for a directory all its entries are dropped.
    pub(crate) fn forget(&mut self, ino: u64) {
        for (directory, name) in self.paths.remove(&ino).unwrap_or_default() {
            self.set(directory, &name, Known::Unsure);
        }
        let content = self.contents.remove(&ino).unwrap_or_default();
        for (name, entry) in content.entries {
            self.forget_path(entry.ino, ino, &name);
        }
    }

    /// Invalidates all answers to questions from before `heard`, the time since which others' changes are received. Returns all names that
    /// were cached.
    pub(crate) fn doubt(&mut self, heard: u64) -> Vec<(u64, Vec<u8>)> {
        self.heard = heard;
        let mut names = Vec::new();
        for (directory, content) in &mut self.contents {
            content.complete = false;
            for (name, entry) in &mut content.entries {
                entry.sure = false;
                names.push((*directory, name.clone()));
            }
        }
        names
    }
}

/// Returns the slot that a number uses.
fn at(slots: &[u64], number: u64) -> usize {
    usize::try_from(number % slots.len() as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
    /// The second directory is created during the test.
    const DIRECTORIES: [u64; 2] = [1, 2];
    const NOTHING: u64 = 0;

    type Name = (u64, usize);

    /// A request between this mount and the server.
    #[derive(Clone, Debug)]
    enum Flight {
        Lookup {
            name: Name,
            asked: u64,
            answer: Option<u64>,
        },
        /// Names that the request changes, and their new inodes.
        Change {
            names: Vec<Name>,
            asked: u64,
            truths: Option<Vec<u64>>,
            how: Change,
        },
        List {
            directory: u64,
            asked: u64,
            seen: Vec<(usize, u64)>,
            next: usize,
        },
        Make {
            asked: u64,
            done: bool,
        },
    }

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Create,
        Unlink,
        Rename,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Lookup(Name),
        Change(Change, Name, Name),
        List(u64),
        Make,
        /// The server handles a request, or the next page of a listing.
        Serve(usize, bool),
        /// An answer arrives.
        Arrive(usize),
        /// An answer is lost.
        Lose(usize),
        /// Another client creates, replaces or removes a name.
        Foreign(Name, bool),
        /// The oldest notice of such a change arrives.
        Hear,
        /// Notices are lost, until they are received again.
        Deafen,
        Listen,
        Forget(Name),
        ForgetDirectory(u64),
    }

    /// Server, stream of changes, and cache.
    struct World {
        truth: BTreeMap<Name, u64>,
        exists: bool,
        flights: Vec<Flight>,
        notices: VecDeque<Name>,
        deaf: bool,
        known: Entries,
        clock: u64,
        inode: u64,
    }

    impl World {
        /// The directory is either new, so that the whole content is cached, or full of entries that others created before.
        fn new(slots: usize, own: bool) -> Self {
            let mut world = Self {
                truth: BTreeMap::new(),
                exists: false,
                flights: Vec::new(),
                notices: VecDeque::new(),
                deaf: false,
                known: Entries::with_slots(slots),
                clock: 0,
                inode: 10,
            };
            if own {
                world.known.made(1, 0);
            } else {
                world.exists = true;
                for directory in DIRECTORIES {
                    for name in 0..NAMES.len() {
                        world.put((directory, name), 3 * directory + name as u64);
                    }
                }
            }
            world
        }

        fn tick(&mut self) -> u64 {
            self.clock += 1;
            self.clock
        }

        fn has(&self, name: Name) -> bool {
            name.0 == 1 || self.exists
        }

        fn at(&self, name: Name) -> u64 {
            self.truth.get(&name).copied().unwrap_or(NOTHING)
        }

        fn put(&mut self, name: Name, ino: u64) {
            self.truth.insert(name, ino);
        }

        fn step(&mut self, step: Step) {
            let now = self.tick();
            match step {
                Step::Lookup(name) if self.has(name) => self.flights.push(Flight::Lookup {
                    name,
                    asked: now,
                    answer: None,
                }),
                Step::Change(how, one, other) if self.has(one) && self.has(other) => {
                    let mut names = vec![one];
                    if matches!(how, Change::Rename) && one != other {
                        names.push(other);
                    }
                    self.flights.push(Flight::Change {
                        names,
                        asked: now,
                        truths: None,
                        how,
                    });
                }
                Step::List(directory) if self.has((directory, 0)) => {
                    self.flights.push(Flight::List {
                        directory,
                        asked: now,
                        seen: Vec::new(),
                        next: 0,
                    });
                }
                Step::Make if !self.exists => self.flights.push(Flight::Make {
                    asked: now,
                    done: false,
                }),
                Step::Serve(which, page) if !self.flights.is_empty() => {
                    self.serve(which % self.flights.len(), page);
                }
                Step::Arrive(which) if !self.flights.is_empty() => {
                    self.arrive(which % self.flights.len(), now, true);
                }
                Step::Lose(which) if !self.flights.is_empty() => {
                    self.arrive(which % self.flights.len(), now, false);
                }
                Step::Foreign(name, make) if self.has(name) => {
                    self.inode += 1;
                    let ino = if make { self.inode } else { NOTHING };
                    self.put(name, ino);
                    if !self.deaf {
                        self.notices.push_back(name);
                    }
                }
                other => self.befall(other, now),
            }
        }

        /// Handles an event that this mount did not request.
        fn befall(&mut self, step: Step, now: u64) {
            match step {
                Step::Hear => {
                    if let Some((dir, name)) = self.notices.pop_front() {
                        self.known.foreign(dir, NAMES[name], now);
                    }
                }
                Step::Deafen => {
                    self.deaf = true;
                    self.notices.clear();
                    self.known.doubt(u64::MAX);
                }
                Step::Listen if self.deaf => {
                    self.deaf = false;
                    self.known.doubt(now);
                }
                Step::Forget((dir, name)) => {
                    if let Known::Is(ino) = self.known.known(dir, NAMES[name]) {
                        self.known.forget(ino);
                    }
                }
                Step::ForgetDirectory(directory) => self.known.forget(directory),
                _ => {}
            }
        }

        fn serve(&mut self, which: usize, page: bool) {
            let mut flight = self.flights[which].clone();
            match &mut flight {
                Flight::Lookup { name, answer, .. } => *answer = Some(self.at(*name)),
                Flight::Change {
                    names,
                    truths: truths @ None,
                    how,
                    ..
                } => {
                    let one = names[0];
                    let old = self.at(one);
                    match how {
                        Change::Create if old == NOTHING => {
                            self.inode += 1;
                            self.put(one, self.inode);
                        }
                        Change::Unlink => self.put(one, NOTHING),
                        Change::Rename if names.len() == 2 && old != NOTHING => {
                            self.put(one, NOTHING);
                            self.put(names[1], old);
                        }
                        _ => {}
                    }
                    *truths = Some(names.iter().map(|name| self.at(*name)).collect());
                }
                Flight::List {
                    directory,
                    seen,
                    next,
                    ..
                } => {
                    let end = if page { *next + 1 } else { NAMES.len() };
                    for name in *next..end.min(NAMES.len()) {
                        let ino = self.at((*directory, name));
                        if ino != NOTHING {
                            seen.push((name, ino));
                        }
                        *next = name + 1;
                    }
                }
                Flight::Make { done, .. } if !self.exists => {
                    *done = true;
                    self.exists = true;
                }
                _ => {}
            }
            self.flights[which] = flight;
        }

        fn arrive(&mut self, which: usize, now: u64, whole: bool) {
            let known = &mut self.known;
            match &self.flights[which] {
                Flight::Lookup {
                    name: (dir, name),
                    asked,
                    answer: Some(answer),
                } if whole => {
                    if *answer == NOTHING {
                        known.absent(*dir, NAMES[*name], *asked);
                    } else {
                        known.learned(*dir, NAMES[*name], *answer, *asked);
                    }
                }
                Flight::Change {
                    names,
                    asked,
                    truths,
                    ..
                } if truths.is_some() || !whole => {
                    for (at, (dir, name)) in names.iter().enumerate() {
                        let truth = match truths.as_ref().filter(|_| whole).map(|all| all[at]) {
                            None => Known::Unsure,
                            Some(NOTHING) => Known::Nothing,
                            Some(ino) => Known::Is(ino),
                        };
                        known.changed(*dir, NAMES[*name], *asked, truth, now);
                    }
                }
                Flight::List {
                    directory,
                    asked,
                    seen,
                    next,
                } if *next == NAMES.len() && whole => {
                    let entries = seen.iter().map(|(name, ino)| (NAMES[*name], *ino));
                    known.listed(*directory, entries, *asked);
                }
                Flight::Make { asked, done: true } if whole => known.made(2, *asked),
                _ if !whole => {}
                // The server has not answered yet.
                _ => return,
            }
            self.flights.remove(which);
        }

        /// Whether the server knows a change of the name that has not arrived here yet.
        fn is_about_to_be_told(&self, name: Name) -> bool {
            let under_way = |flight: &Flight| match flight {
                Flight::Change { names, truths, .. } => truths.is_some() && names.contains(&name),
                _ => false,
            };
            self.notices.contains(&name) || self.flights.iter().any(under_way)
        }

        fn check(&self) {
            for directory in DIRECTORIES {
                for (number, text) in NAMES.iter().enumerate() {
                    let name = (directory, number);
                    let said = match self.known.known(directory, text) {
                        Known::Unsure => continue,
                        Known::Nothing => NOTHING,
                        Known::Is(ino) => ino,
                    };
                    assert!(
                        !self.deaf,
                        "{name:?}: {said} is believed though nobody told"
                    );
                    if !self.is_about_to_be_told(name) {
                        assert_eq!(said, self.at(name), "{name:?}");
                    }
                }
            }
        }
    }

    fn names() -> impl Strategy<Value = Name> {
        (prop::sample::select(&DIRECTORIES[..]), 0..NAMES.len())
    }

    fn steps() -> impl Strategy<Value = Step> {
        let how = prop::sample::select(vec![Change::Create, Change::Unlink, Change::Rename]);
        prop_oneof![
            4 => names().prop_map(Step::Lookup),
            6 => (how, names(), names()).prop_map(|(how, a, b)| Step::Change(how, a, b)),
            3 => prop::sample::select(&DIRECTORIES[..]).prop_map(Step::List),
            1 => Just(Step::Make),
            12 => (0..4usize, any::<bool>()).prop_map(|(which, page)| Step::Serve(which, page)),
            8 => (0..4usize).prop_map(Step::Arrive),
            1 => (0..4usize).prop_map(Step::Lose),
            3 => (names(), any::<bool>()).prop_map(|(name, make)| Step::Foreign(name, make)),
            3 => Just(Step::Hear),
            1 => Just(Step::Deafen),
            2 => Just(Step::Listen),
            2 => names().prop_map(Step::Forget),
            1 => prop::sample::select(&DIRECTORIES[..]).prop_map(Step::ForgetDirectory),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Each known entry equals the server's entry, unless a change is on its way to this mount. The steps
        /// interleave questions, answers, own changes, foreign changes, listings and forgetting in any order, and names
        /// share slots in any combination.
        #[test]
        fn known_entries_match_server_in_any_order(
            slots in prop::sample::select(vec![1, 2, 3, SLOTS]),
            own in any::<bool>(),
            steps in prop::collection::vec(steps(), 1..60),
        ) {
            let mut world = World::new(slots, own);
            for step in steps {
                world.step(step);
                world.check();
            }
        }
    }

    /// A program makes changes one after the other. Each own change is known without a question, whatever others change
    /// on other names of the directory.
    #[test]
    fn own_changes_are_known_at_once() {
        let mut known = Entries::default();
        let mut now = 0;
        let mut tick = || {
            now += 1;
            now
        };
        known.made(7, tick());
        for number in 0..200_u64 {
            let name = format!("mine {number}");
            let asked = tick();
            known.foreign(7, format!("theirs {number}").as_bytes(), tick());
            let believed = known.changed(7, name.as_bytes(), asked, Known::Is(number + 10), tick());
            let shared =
                Slot::of(7, name.as_bytes()) == Slot::of(7, format!("theirs {number}").as_bytes());
            assert!(believed || shared, "{name}");
        }
        assert!(known.is_complete(7));
        assert_eq!(known.known(7, b"neither"), Known::Nothing);
        assert_eq!(known.known(7, b"theirs 0"), Known::Unsure);
    }

    #[test]
    fn name_of_inode_follows_latest_look_up() {
        let mut known = Entries::default();
        known.learned(1, b"d", 5, 1);
        known.learned(5, b"f", 6, 2);
        assert_eq!(known.name_of(6).unwrap(), &(5, b"f".to_vec()));
        known.learned(1, b"g", 6, 3);
        known.changed(5, b"f", 4, Known::Nothing, 5);
        assert_eq!(known.name_of(6).unwrap(), &(1, b"g".to_vec()));
        known.forget(6);
        assert_eq!(known.known(1, b"g"), Known::Unsure);
        assert!(known.name_of(6).is_none());
    }

    #[test]
    fn directory_with_too_many_unsure_names_is_not_complete() {
        let mut known = Entries::default();
        known.made(7, 1);
        for number in 0..=ENTRIES_MAX as u64 {
            known.foreign(7, &number.to_le_bytes(), number + 2);
        }
        assert!(!known.is_complete(7));
        assert!(known.contents[&7].entries.len() <= ENTRIES_MAX);
    }
}
