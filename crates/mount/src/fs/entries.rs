//! Cache of directories' entries: which names exist, which inodes they have, and which names do not exist. The cache only changes memory.
//!
//! An answer of the server is as old as its request, and other clients change entries without asking this mount. So every cached value
//! needs a proof: the cache uses an answer only if its name has not changed since the request, either on this mount
//! ([`EntryCache::changed`]) or by another client, as the server reports ([`EntryCache::foreign`]). The cache answers that a name does not
//! exist only if every entry of the directory is cached or recorded as unsure. If a proof fails, the name is [`CachedName::Unsure`]: the
//! mount asks the server, which is slow but never wrong. Therefore state that several names share may only make names unsure.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry as Place};
use std::hash::{Hash, Hasher};

/// Number of slots that record when names last changed; several names share a slot.
const SLOTS: usize = 4096;
/// Maximum number of entries of a directory that the cache contains completely.
pub(crate) const ENTRIES_MAX: usize = 65_536;

/// Cached value of a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachedName {
    /// The name has this inode.
    Is(u64),
    /// The name does not exist.
    Nothing,
    /// The cache does not know the name's value; the mount must ask the server.
    Unsure,
}

/// Slot that holds the time of a name's last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangeSlot(u64);

impl ChangeSlot {
    pub(crate) fn of(directory: u64, name: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        (directory, name).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// All cached entries. All times are times of one clock that never runs backwards.
#[derive(Debug)]
pub(crate) struct EntryCache {
    contents: HashMap<u64, CachedDirectory>,
    /// Names of each inode, as far as the cache has seen them.
    paths: HashMap<u64, Vec<(u64, Vec<u8>)>>,
    /// Time of the last change of the names of each slot.
    names: Vec<u64>,
    /// Time of the last change of entries in the directories of each slot.
    directories: Vec<u64>,
    /// Time since which the mount receives other clients' changes. Answers to earlier requests are not used.
    heard: u64,
}

#[derive(Debug, Default)]
struct CachedDirectory {
    entries: HashMap<Vec<u8>, CachedEntry>,
    /// Whether a name that is missing from `entries` does not exist.
    complete: bool,
    /// Number of failed look-ups in the directory since its last listing.
    missed: u32,
}

#[derive(Clone, Copy, Debug)]
struct CachedEntry {
    /// Inode of the name, or its last known inode; 0 if no inode was ever known.
    ino: u64,
    sure: bool,
}

impl CachedEntry {
    const UNSURE: Self = Self {
        ino: 0,
        sure: false,
    };
}

impl Default for EntryCache {
    fn default() -> Self {
        Self::with_slots(SLOTS)
    }
}

impl EntryCache {
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
    pub(crate) fn changed_since(&self, slot: ChangeSlot, asked: u64) -> bool {
        self.names[at(&self.names, slot.0)] > asked || self.heard > asked
    }

    fn stamp(&mut self, directory: u64, slot: ChangeSlot, now: u64) {
        let (name, entries) = (at(&self.names, slot.0), at(&self.directories, directory));
        self.names[name] = now;
        self.directories[entries] = now;
    }

    pub(crate) fn known(&self, directory: u64, name: &[u8]) -> CachedName {
        let Some(content) = self.contents.get(&directory) else {
            return CachedName::Unsure;
        };
        match content.entries.get(name) {
            Some(entry) if entry.sure => CachedName::Is(entry.ino),
            Some(_) => CachedName::Unsure,
            None if content.complete => CachedName::Nothing,
            None => CachedName::Unsure,
        }
    }

    /// Records the result of a look-up. Returns whether the Linux kernel may cache the result.
    pub(crate) fn learned(&mut self, directory: u64, name: &[u8], ino: u64, asked: u64) -> bool {
        let believed = !self.changed_since(ChangeSlot::of(directory, name), asked);
        if believed {
            self.set(directory, name, CachedName::Is(ino));
        }
        believed
    }

    /// Records that a looked-up name does not exist. Returns the number of missing names that were looked up since the directory was
    /// listed.
    pub(crate) fn absent(&mut self, directory: u64, name: &[u8], asked: u64) -> u32 {
        if !self.changed_since(ChangeSlot::of(directory, name), asked) {
            self.set(directory, name, CachedName::Nothing);
        }
        let content = self.contents.entry(directory).or_default();
        content.missed = content.missed.saturating_add(1);
        content.missed
    }

    /// Ends a change by this mount that was requested at `asked`, with the new value of the name. Returns whether that value can be cached.
    pub(crate) fn changed(
        &mut self,
        directory: u64,
        name: &[u8],
        asked: u64,
        truth: CachedName,
        now: u64,
    ) -> bool {
        let slot = ChangeSlot::of(directory, name);
        let alone = !self.changed_since(slot, asked);
        self.stamp(directory, slot, now);
        self.set(
            directory,
            name,
            if alone { truth } else { CachedName::Unsure },
        );
        alone && truth != CachedName::Unsure
    }

    /// Records that another client changed a name.
    pub(crate) fn foreign(&mut self, directory: u64, name: &[u8], now: u64) {
        self.stamp(directory, ChangeSlot::of(directory, name), now);
        self.set(directory, name, CachedName::Unsure);
    }

    /// Records entries of a listed directory.
    pub(crate) fn listed<'a>(
        &mut self,
        directory: u64,
        entries: impl Iterator<Item = (&'a [u8], u64)>,
        asked: u64,
    ) {
        let untouched = self.directories[at(&self.directories, directory)] <= asked;
        let complete = untouched && self.heard <= asked;
        for (name, ino) in entries {
            let believed = !self.changed_since(ChangeSlot::of(directory, name), asked);
            let entry = match (believed, complete) {
                (true, _) => CachedEntry { ino, sure: true },
                // The name shares its slot with a name that has changed. No name may be missing.
                (false, true) => CachedEntry::UNSURE,
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

    /// Records that this mount created a directory, at a time after `asked`, which therefore has no entries.
    pub(crate) fn made(&mut self, directory: u64, asked: u64) {
        self.listed(directory, std::iter::empty(), asked);
    }

    /// Whether the cache knows, for every name, whether the directory has it.
    #[cfg(test)]
    fn is_complete(&self, directory: u64) -> bool {
        self.contents.get(&directory).is_some_and(|f| f.complete)
    }

    fn set(&mut self, directory: u64, name: &[u8], truth: CachedName) {
        if let CachedName::Is(ino) = truth
            && self.known(directory, name) == truth
            && self
                .name_of(ino)
                .is_some_and(|(d, n)| *d == directory && n == name)
        {
            return;
        }
        let content = self.contents.entry(directory).or_default();
        let space = content.entries.len() < ENTRIES_MAX || content.entries.contains_key(name);
        let new = match truth {
            CachedName::Is(ino) => Some(CachedEntry { ino, sure: true }),
            CachedName::Unsure if content.complete && space => Some(CachedEntry::UNSURE),
            CachedName::Unsure | CachedName::Nothing => None,
        };
        content.complete &= truth != CachedName::Unsure || new.is_some();
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

    /// Returns one of the names of an inode: the name that the cache saw last.
    pub(crate) fn name_of(&self, ino: u64) -> Option<&(u64, Vec<u8>)> {
        self.paths.get(&ino)?.last()
    }

    /// Returns the inodes of a directory's entries, including entries that are unsure now.
    pub(crate) fn within(&self, directory: u64) -> impl Iterator<Item = u64> {
        let content = self.contents.get(&directory).into_iter();
        content.flat_map(|content| content.entries.values().map(|entry| entry.ino))
    }

    /// Drops an inode: its names are unsure from now on, and for a directory all its entries are dropped. Without `keeps_names` the names
    /// are dropped, too, and the cache doesn't know all entries of their directories any more.
    pub(crate) fn forget(&mut self, ino: u64, keeps_names: bool) {
        for (directory, name) in self.paths.remove(&ino).unwrap_or_default() {
            if let Some(content) = self.contents.get_mut(&directory) {
                content.complete &= keeps_names;
            }
            self.set(directory, &name, CachedName::Unsure);
        }
        let content = self.contents.remove(&ino).unwrap_or_default();
        for (name, entry) in content.entries {
            self.forget_path(entry.ino, ino, &name);
        }
    }

    /// Invalidates all answers to requests from before `heard`, the time since which the mount receives other clients' changes. Returns all
    /// names that were cached.
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

/// Returns the index of the slot that a number uses.
fn at(slots: &[u64], number: u64) -> usize {
    usize::try_from(number % slots.len() as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
    /// Directories of the test; the second directory is created during the test.
    const DIRECTORIES: [u64; 2] = [1, 2];
    const NOTHING: u64 = 0;

    type CacheName = (u64, usize);

    /// A request between this mount and the server that is in flight.
    #[derive(Clone, Debug)]
    enum CacheFlight {
        Lookup {
            name: CacheName,
            asked: u64,
            answer: Option<u64>,
        },
        /// The mount changes names; with the names and their new inodes.
        Change {
            names: Vec<CacheName>,
            asked: u64,
            truths: Option<Vec<u64>>,
            how: CacheChange,
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
    enum CacheChange {
        Create,
        Unlink,
        Rename,
    }

    #[derive(Clone, Debug)]
    enum EntryStep {
        Lookup(CacheName),
        Change(CacheChange, CacheName, CacheName),
        List(u64),
        Make,
        /// The server handles a request, or the next page of a listing.
        Serve(usize, bool),
        /// The answer to a request arrives at the mount.
        Arrive(usize),
        /// The answer to a request is lost.
        Lose(usize),
        /// Another client creates, replaces or removes a name.
        Foreign(CacheName, bool),
        /// The oldest notification of another client's change arrives at the mount.
        Hear,
        /// Notifications of other clients' changes are lost, until the mount receives them again.
        Deafen,
        Listen,
        Forget(CacheName, bool),
        ForgetDirectory(u64, bool),
    }

    /// Server, stream of its notifications, and cache of the mount.
    struct EntryWorld {
        truth: BTreeMap<CacheName, u64>,
        exists: bool,
        flights: Vec<CacheFlight>,
        notices: VecDeque<CacheName>,
        deaf: bool,
        known: EntryCache,
        clock: u64,
        inode: u64,
    }

    impl EntryWorld {
        /// Returns a world whose directory is either new, so that the cache knows its whole content, or full of entries that others created
        /// before.
        fn new(slots: usize, own: bool) -> Self {
            let mut world = Self {
                truth: BTreeMap::new(),
                exists: false,
                flights: Vec::new(),
                notices: VecDeque::new(),
                deaf: false,
                known: EntryCache::with_slots(slots),
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

        fn has(&self, name: CacheName) -> bool {
            name.0 == 1 || self.exists
        }

        fn at(&self, name: CacheName) -> u64 {
            self.truth.get(&name).copied().unwrap_or(NOTHING)
        }

        fn put(&mut self, name: CacheName, ino: u64) {
            self.truth.insert(name, ino);
        }

        fn step(&mut self, step: EntryStep) {
            let now = self.tick();
            match step {
                EntryStep::Lookup(name) if self.has(name) => {
                    self.flights.push(CacheFlight::Lookup {
                        name,
                        asked: now,
                        answer: None,
                    })
                }
                EntryStep::Change(how, one, other) if self.has(one) && self.has(other) => {
                    let mut names = vec![one];
                    if matches!(how, CacheChange::Rename) && one != other {
                        names.push(other);
                    }
                    self.flights.push(CacheFlight::Change {
                        names,
                        asked: now,
                        truths: None,
                        how,
                    });
                }
                EntryStep::List(directory) if self.has((directory, 0)) => {
                    self.flights.push(CacheFlight::List {
                        directory,
                        asked: now,
                        seen: Vec::new(),
                        next: 0,
                    });
                }
                EntryStep::Make if !self.exists => self.flights.push(CacheFlight::Make {
                    asked: now,
                    done: false,
                }),
                EntryStep::Serve(which, page) if !self.flights.is_empty() => {
                    self.serve(which % self.flights.len(), page);
                }
                EntryStep::Arrive(which) if !self.flights.is_empty() => {
                    self.arrive(which % self.flights.len(), now, true);
                }
                EntryStep::Lose(which) if !self.flights.is_empty() => {
                    self.arrive(which % self.flights.len(), now, false);
                }
                EntryStep::Foreign(name, make) if self.has(name) => {
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

        /// Executes a step that this mount did not request.
        fn befall(&mut self, step: EntryStep, now: u64) {
            match step {
                EntryStep::Hear => {
                    if let Some((dir, name)) = self.notices.pop_front() {
                        self.known.foreign(dir, NAMES[name], now);
                    }
                }
                EntryStep::Deafen => {
                    self.deaf = true;
                    self.notices.clear();
                    self.known.doubt(u64::MAX);
                }
                EntryStep::Listen if self.deaf => {
                    self.deaf = false;
                    self.known.doubt(now);
                }
                EntryStep::Forget((dir, name), keeps_names) => {
                    if let CachedName::Is(ino) = self.known.known(dir, NAMES[name]) {
                        self.known.forget(ino, keeps_names);
                    }
                }
                EntryStep::ForgetDirectory(directory, keeps_names) => {
                    self.known.forget(directory, keeps_names);
                }
                _ => {}
            }
        }

        fn serve(&mut self, which: usize, page: bool) {
            let mut flight = self.flights[which].clone();
            match &mut flight {
                CacheFlight::Lookup { name, answer, .. } => *answer = Some(self.at(*name)),
                CacheFlight::Change {
                    names,
                    truths: truths @ None,
                    how,
                    ..
                } => {
                    let one = names[0];
                    let old = self.at(one);
                    match how {
                        CacheChange::Create if old == NOTHING => {
                            self.inode += 1;
                            self.put(one, self.inode);
                        }
                        CacheChange::Unlink => self.put(one, NOTHING),
                        CacheChange::Rename if names.len() == 2 && old != NOTHING => {
                            self.put(one, NOTHING);
                            self.put(names[1], old);
                        }
                        _ => {}
                    }
                    *truths = Some(names.iter().map(|name| self.at(*name)).collect());
                }
                CacheFlight::List {
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
                CacheFlight::Make { done, .. } if !self.exists => {
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
                CacheFlight::Lookup {
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
                CacheFlight::Change {
                    names,
                    asked,
                    truths,
                    ..
                } if truths.is_some() || !whole => {
                    for (at, (dir, name)) in names.iter().enumerate() {
                        let truth = match truths.as_ref().filter(|_| whole).map(|all| all[at]) {
                            None => CachedName::Unsure,
                            Some(NOTHING) => CachedName::Nothing,
                            Some(ino) => CachedName::Is(ino),
                        };
                        known.changed(*dir, NAMES[*name], *asked, truth, now);
                    }
                }
                CacheFlight::List {
                    directory,
                    asked,
                    seen,
                    next,
                } if *next == NAMES.len() && whole => {
                    let entries = seen.iter().map(|(name, ino)| (NAMES[*name], *ino));
                    known.listed(*directory, entries, *asked);
                }
                CacheFlight::Make { asked, done: true } if whole => known.made(2, *asked),
                _ if !whole => {}
                // The server has not answered yet.
                _ => return,
            }
            self.flights.remove(which);
        }

        /// Whether the server knows a change of the name whose notification has not arrived at the mount yet.
        fn is_about_to_be_reported(&self, name: CacheName) -> bool {
            let under_way = |flight: &CacheFlight| match flight {
                CacheFlight::Change { names, truths, .. } => {
                    truths.is_some() && names.contains(&name)
                }
                _ => false,
            };
            self.notices.contains(&name) || self.flights.iter().any(under_way)
        }

        fn check(&self) {
            for directory in DIRECTORIES {
                for (number, text) in NAMES.iter().enumerate() {
                    let name = (directory, number);
                    let cached = match self.known.known(directory, text) {
                        CachedName::Unsure => continue,
                        CachedName::Nothing => NOTHING,
                        CachedName::Is(ino) => ino,
                    };
                    assert!(
                        !self.deaf,
                        "{name:?}: {cached} is cached though no answer reported it"
                    );
                    if !self.is_about_to_be_reported(name) {
                        assert_eq!(cached, self.at(name), "{name:?}");
                    }
                }
            }
        }
    }

    fn names() -> impl Strategy<Value = CacheName> {
        (prop::sample::select(&DIRECTORIES[..]), 0..NAMES.len())
    }

    fn steps() -> impl Strategy<Value = EntryStep> {
        let how = prop::sample::select(vec![
            CacheChange::Create,
            CacheChange::Unlink,
            CacheChange::Rename,
        ]);
        prop_oneof![
            4 => names().prop_map(EntryStep::Lookup),
            6 => (how, names(), names()).prop_map(|(how, a, b)| EntryStep::Change(how, a, b)),
            3 => prop::sample::select(&DIRECTORIES[..]).prop_map(EntryStep::List),
            1 => Just(EntryStep::Make),
            12 => (0..4usize, any::<bool>()).prop_map(|(which, page)| EntryStep::Serve(which, page)),
            8 => (0..4usize).prop_map(EntryStep::Arrive),
            1 => (0..4usize).prop_map(EntryStep::Lose),
            3 => (names(), any::<bool>()).prop_map(|(name, make)| EntryStep::Foreign(name, make)),
            3 => Just(EntryStep::Hear),
            1 => Just(EntryStep::Deafen),
            2 => Just(EntryStep::Listen),
            2 => (names(), any::<bool>()).prop_map(|(name, keeps)| EntryStep::Forget(name, keeps)),
            1 => (prop::sample::select(&DIRECTORIES[..]), any::<bool>()).prop_map(|(directory, keeps)| EntryStep::ForgetDirectory(directory, keeps)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Each known entry equals the server's entry, unless a change is on its way to this mount. The steps interleave requests, answers,
        /// own changes, other clients' changes, listings and forgetting in any order, and names share slots in any combination.
        #[test]
        fn cached_entries_match_server_for_any_order_of_events(
            slots in prop::sample::select(vec![1, 2, 3, SLOTS]),
            own in any::<bool>(),
            steps in prop::collection::vec(steps(), 1..60),
        ) {
            let mut world = EntryWorld::new(slots, own);
            for step in steps {
                world.step(step);
                world.check();
            }
        }
    }

    /// Checks, for a program that makes changes one after the other, that the cache knows each own change without a request, whatever other
    /// clients change on other names of the directory.
    #[test]
    fn entry_cache_knows_own_changes_without_request() {
        let mut known = EntryCache::default();
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
            let believed = known.changed(
                7,
                name.as_bytes(),
                asked,
                CachedName::Is(number + 10),
                tick(),
            );
            let shared = ChangeSlot::of(7, name.as_bytes())
                == ChangeSlot::of(7, format!("theirs {number}").as_bytes());
            assert!(believed || shared, "{name}");
        }
        assert!(known.is_complete(7));
        assert_eq!(known.known(7, b"neither"), CachedName::Nothing);
        assert_eq!(known.known(7, b"theirs 0"), CachedName::Unsure);
    }

    #[test]
    fn entry_cache_returns_latest_looked_up_name_of_inode() {
        let mut known = EntryCache::default();
        known.learned(1, b"d", 5, 1);
        known.learned(5, b"f", 6, 2);
        assert_eq!(known.name_of(6).unwrap(), &(5, b"f".to_vec()));
        known.learned(1, b"g", 6, 3);
        known.changed(5, b"f", 4, CachedName::Nothing, 5);
        assert_eq!(known.name_of(6).unwrap(), &(1, b"g".to_vec()));
        known.forget(6, true);
        assert_eq!(known.known(1, b"g"), CachedName::Unsure);
        assert!(known.name_of(6).is_none());
    }

    #[test]
    fn entry_cache_of_too_many_unsure_names_is_incomplete() {
        let mut known = EntryCache::default();
        known.made(7, 1);
        for number in 0..=ENTRIES_MAX as u64 {
            known.foreign(7, &number.to_le_bytes(), number + 2);
        }
        assert!(!known.is_complete(7));
        assert!(known.contents[&7].entries.len() <= ENTRIES_MAX);
    }
}
