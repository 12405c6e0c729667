//! Inodes and names that the kernel knows of, and what is cached of them.
//!
//! A file is one kernel inode for all who have it open here, readers and writers, so that they see each other's
//! writes and locks: who has a version open goes on with the next one that is written here. If that can't be,
//! because the next version comes from elsewhere or somebody else reads the file of this one, versions are open
//! side by side. They need one kernel inode each, because the kernel lets an inode have one backing file and one
//! page cache only. So the kernel is given [`Key`]s: an inode and an *alias*. Alias 0 is all there is until an
//! open needs another version than the one that is open; then the next alias becomes the current one and the
//! kernel is sent to look the name up again.

use super::object::Object;
use crate::error::Error;
use parking_lot::{Condvar, Mutex, RwLock};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tidemill_core::id::Inode;
use tidemill_wire::v1::{Attr, Kind};

/// Bits of a key that hold the inode.
const INODE_BITS: u32 = 48;
/// Bits that hold the alias.
const ALIAS_MASK: u64 = 0x7fff;

/// Slots that inodes share for the time of their last change by somebody else.
const FOREIGN_SLOTS: usize = 1024;

/// What the kernel calls an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The inode of the namespace, or a special one.
    pub(crate) ino: u64,
    /// Which of its versions that are open side by side.
    pub(crate) alias: u16,
}

impl Key {
    /// As one number for the kernel.
    #[must_use]
    pub(crate) fn pack(self) -> u64 {
        self.ino | u64::from(self.alias) << INODE_BITS
    }

    /// Back from the number.
    #[must_use]
    pub(crate) fn unpack(number: u64) -> Self {
        if number & Inode::SPECIAL != 0 {
            return Self {
                ino: number,
                alias: 0,
            };
        }
        let alias = (number >> INODE_BITS) & ALIAS_MASK;
        Self {
            ino: number & ((1 << INODE_BITS) - 1),
            alias: u16::try_from(alias).unwrap_or(0),
        }
    }

    /// Whether it is one of the mount's own files.
    #[must_use]
    pub(crate) fn is_special(self) -> bool {
        self.ino & Inode::SPECIAL != 0
    }
}

/// One inode.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ino: u64,
    pub(crate) state: Mutex<State>,
    /// Signalled when `state.writing` changes.
    pub(crate) changed: Condvar,
}

/// What is known of an inode.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) attr: Attr,
    /// Until when `attr` is believed.
    pub(crate) fresh: Option<Instant>,
    /// When it was last changed from here, on the clock of [`Table::tick`]: an answer to an older question
    /// does not overwrite it.
    pub(crate) stamp: u64,
    /// Of a symbolic link.
    pub(crate) target: Vec<u8>,
    /// References the kernel holds.
    pub(crate) lookups: u64,
    /// Open handles.
    pub(crate) opens: u32,
    /// Its names as far as they are known here.
    pub(crate) names: Vec<(u64, Vec<u8>)>,
    /// The version that is being written here.
    pub(crate) writing: Option<Writing>,
    /// The alias that opens get now.
    pub(crate) alias: u16,
    /// Which object the kernel reads by each alias.
    pub(crate) bound: BTreeMap<u16, Bound>,
    /// Objects that are open, to be shared.
    pub(crate) objects: Vec<Weak<Object>>,
    /// It has lost its last name.
    pub(crate) gone: bool,
    /// Of a directory: all its entries are known here, so that what is not known does not exist.
    pub(crate) complete: bool,
    /// Of a directory: names that were asked for in vain since it was listed last.
    pub(crate) missed: u32,
}

/// A version that is being written here.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) object: Option<Arc<Object>>,
    pub(crate) phase: Phase,
    pub(crate) writers: u32,
    /// Of a copy: what its mtime was set to. If it still is that at the last close, nothing was written.
    pub(crate) untouched: Option<i64>,
    /// It says nothing new and goes away: what was sealed before is the file.
    pub(crate) given_up: bool,
}

impl Writing {
    /// A version that is being asked for.
    pub(crate) fn starting() -> Self {
        Self {
            object: None,
            phase: Phase::Starting,
            writers: 0,
            untouched: None,
            given_up: false,
        }
    }

    /// A version that can be written, by that many handles.
    pub(crate) fn open(object: Arc<Object>, writers: u32, untouched: Option<i64>) -> Self {
        Self {
            object: Some(object),
            phase: Phase::Open,
            writers,
            untouched,
            given_up: false,
        }
    }
}

/// How far a version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Asked for at the server, or being copied from the version before.
    Starting,
    /// Somebody else is writing the file: it is asked for again and again, by one opener for all.
    Busy,
    /// Open for writing.
    Open,
    /// Closed by its last writer, not yet sealed.
    Sealing,
}

/// The object that an alias is used for, the same for all handles of the alias.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) object: Arc<Object>,
    pub(crate) opens: u32,
    /// Whether the kernel reads and writes the object's file by itself, for all of them or for none.
    pub(crate) direct: bool,
    /// Attributes when it was last opened: those of this version if it is no longer the file's current one.
    pub(crate) seen: Attr,
}

impl Node {
    fn new(ino: u64) -> Self {
        Self {
            ino,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl State {
    /// Whether the attributes are known and believed.
    pub(crate) fn is_fresh(&self) -> bool {
        self.gone || self.fresh.is_some_and(|until| Instant::now() < until)
    }

    /// The attributes as users see them now: of the version being written, if there is one.
    pub(crate) fn shown(&self) -> (Attr, u64) {
        let mut attr = self.attr;
        let mut blocks = attr.size.div_ceil(512);
        if let Some(stat) = self.written().and_then(|object| object.stat().ok()) {
            attr.size = stat.size;
            attr.mtime = stat.mtime;
            attr.ctime = attr.ctime.max(stat.mtime.min(super::remote::now_ns()));
            blocks = stat.blocks;
        }
        (attr, blocks)
    }

    /// Whether a version is being written or sealed here.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// An open object with this id.
    pub(crate) fn open_object(&mut self, id: u64) -> Option<Arc<Object>> {
        self.objects.retain(|weak| weak.strong_count() > 0);
        let mut live = self.objects.iter().filter_map(Weak::upgrade);
        live.find(|object| object.id == id)
    }

    /// Whether an object is what opens get now: the version being written here, else the sealed one.
    pub(crate) fn is_current(&self, object: u64) -> bool {
        self.written()
            .map_or(self.attr.object, |written| written.id)
            == object
    }

    /// The object that is being written or sealed here.
    pub(crate) fn written(&self) -> Option<&Arc<Object>> {
        let writing = self.writing.as_ref().filter(|w| !w.given_up);
        writing.and_then(|w| w.object.as_ref())
    }

    /// What is open under the current alias, and whether the kernel reads and writes it by itself.
    pub(crate) fn bound_now(&self) -> Option<(Arc<Object>, bool)> {
        let bound = self.bound.get(&self.alias)?;
        Some((bound.object.clone(), bound.direct))
    }

    /// Uses the current alias for an object; `direct`: the kernel could read and write its file by itself. If the
    /// alias is in use for another object, the next alias becomes the current one and the error is `ESTALE`: the
    /// kernel then looks the name up again and comes back.
    pub(crate) fn bind(
        &mut self,
        key: Key,
        object: &Arc<Object>,
        direct: bool,
    ) -> Result<(), Error> {
        if key.alias != self.alias {
            return Err(Errno::STALE.into());
        }
        let attr = self.attr;
        if let Some(bound) = self.bound.get_mut(&key.alias) {
            if bound.object.id == object.id {
                bound.opens += 1;
                bound.seen = attr;
                self.opens += 1;
                return Ok(());
            }
            self.next_alias();
            return Err(Errno::STALE.into());
        }
        self.bind_new(object.clone(), direct);
        Ok(())
    }

    /// Uses the current alias, which nobody uses, for an object.
    pub(crate) fn bind_new(&mut self, object: Arc<Object>, direct: bool) {
        let bound = Bound {
            object,
            opens: 1,
            direct,
            seen: self.attr,
        };
        self.bound.insert(self.alias, bound);
        self.opens += 1;
    }

    /// Opens from now on get another kernel inode than those that are open.
    pub(crate) fn next_alias(&mut self) {
        let mut next = self.alias;
        loop {
            next = (next + 1) & 0x7fff;
            if !self.bound.contains_key(&next) {
                break;
            }
        }
        self.alias = next;
    }

    /// One open handle less.
    pub(crate) fn unbind(&mut self, alias: u16) {
        self.opens = self.opens.saturating_sub(1);
        if let Some(bound) = self.bound.get_mut(&alias) {
            bound.opens -= 1;
            if bound.opens == 0 {
                self.bound.remove(&alias);
            }
        }
    }
}

impl Inner {
    /// Forgets a name that still exists: the directory's listing is no longer complete here.
    fn forget_entry(&mut self, parent: u64, name: &[u8]) {
        if let Some(entries) = self.names.get_mut(&parent) {
            entries.remove(name);
            if entries.is_empty() {
                self.names.remove(&parent);
            }
        }
        if let Some(directory) = self.nodes.get(&parent) {
            directory.state.lock().complete = false;
        }
    }
}

/// All inodes and names known here.
#[derive(Debug, Default)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
    clock: AtomicU64,
    foreign: Foreign,
    /// Held while the kernel is told something to believe, and, for writing, while a change by somebody else
    /// is taken note of: so the kernel is told to forget only after it was told.
    pub(crate) gate: RwLock<()>,
}

/// When somebody else last changed an inode or its entries, known here or not, by the inode's low bits.
#[derive(Debug)]
struct Foreign([AtomicU64; FOREIGN_SLOTS]);

impl Default for Foreign {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Foreign {
    fn of(&self, ino: u64) -> &AtomicU64 {
        &self.0[usize::try_from(ino).unwrap_or(0) % FOREIGN_SLOTS]
    }
}

#[derive(Debug, Default)]
struct Inner {
    nodes: HashMap<u64, Arc<Node>>,
    names: HashMap<u64, HashMap<Vec<u8>, u64>>,
}

impl Table {
    /// The time now, for [`State::stamp`].
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    /// Somebody else changed an inode or an entry of it: nothing that was asked before is believed.
    pub(crate) fn foreign_change(&self, ino: u64, entry: bool) {
        let slot = self.foreign.of(ino);
        // Before, for answers that make the node meanwhile; after, for those that have read it already.
        slot.store(self.tick(), Ordering::Release);
        if let Some(node) = self.get(ino) {
            let mut state = node.state.lock();
            state.stamp = self.tick();
            state.fresh = None;
            state.complete &= !entry;
        }
        slot.store(self.tick(), Ordering::Release);
    }

    /// Whether somebody else may have changed the inode since `asked`.
    pub(crate) fn changed_since(&self, ino: u64, asked: u64) -> bool {
        self.foreign.of(ino).load(Ordering::Acquire) > asked
    }

    /// Notes that all entries of a directory are known, as of `asked`.
    pub(crate) fn complete(&self, directory: &Node, asked: u64) {
        let mut state = directory.state.lock();
        state.complete = state.stamp <= asked && !self.changed_since(directory.ino, asked);
    }

    /// A later time than all that were read before.
    pub(crate) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Node>> {
        self.inner.lock().nodes.get(&ino).cloned()
    }

    pub(crate) fn get_or_make(&self, ino: u64) -> Arc<Node> {
        let mut inner = self.inner.lock();
        let made = || Arc::new(Node::new(ino));
        inner.nodes.entry(ino).or_insert_with(made).clone()
    }

    /// Notes that a directory has this entry.
    pub(crate) fn name(&self, parent: u64, name: &[u8], ino: u64) {
        let mut inner = self.inner.lock();
        let names = inner.names.entry(parent).or_default();
        let old = names.insert(name.to_vec(), ino);
        if old == Some(ino) {
            return;
        }
        let moved = old.and_then(|old| inner.nodes.get(&old).cloned());
        let node = inner.nodes.get(&ino).cloned();
        drop(inner);
        if let Some(moved) = moved {
            moved.state.lock().forget_name(parent, name);
        }
        if let Some(node) = node {
            let mut state = node.state.lock();
            state.forget_name(parent, name);
            state.names.push((parent, name.to_vec()));
        }
    }

    /// Notes that a directory has no such entry any more; gives what it was.
    pub(crate) fn unname(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let mut inner = self.inner.lock();
        let names = inner.names.get_mut(&parent)?;
        let ino = names.remove(name)?;
        if names.is_empty() {
            inner.names.remove(&parent);
        }
        let node = inner.nodes.get(&ino).cloned();
        drop(inner);
        if let Some(node) = node {
            node.state.lock().forget_name(parent, name);
        }
        Some(ino)
    }

    /// What an entry was when it was last looked up.
    pub(crate) fn named(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let inner = self.inner.lock();
        inner.names.get(&parent)?.get(name).copied()
    }

    /// Forgets the node if nothing holds it.
    pub(crate) fn drop_unused(&self, ino: u64) {
        let mut inner = self.inner.lock();
        let Some(node) = inner.nodes.get(&ino) else {
            return;
        };
        let mut state = node.state.lock();
        if state.lookups > 0 || state.opens > 0 || state.writing.is_some() || ino == Inode::ROOT.0 {
            return;
        }
        let names = std::mem::take(&mut state.names);
        drop(state);
        inner.nodes.remove(&ino);
        inner.names.remove(&ino);
        for (parent, name) in names {
            inner.forget_entry(parent, &name);
        }
    }

    /// Believes nothing any more; gives all that the kernel may have cached.
    pub(crate) fn forget_all(&self) -> (Vec<u64>, Vec<(u64, Vec<u8>)>) {
        let inner = self.inner.lock();
        for node in inner.nodes.values() {
            let mut state = node.state.lock();
            state.fresh = None;
            state.complete = false;
        }
        let inodes = inner.nodes.keys().copied().collect();
        let entries = inner
            .names
            .iter()
            .flat_map(|(parent, names)| names.keys().map(move |name| (*parent, name.clone())));
        (inodes, entries.collect())
    }

    /// Notes a name that the kernel does not know, so that the directory's listing is complete.
    pub(crate) fn name_unseen(&self, parent: u64, name: &[u8], ino: u64) {
        let mut inner = self.inner.lock();
        let names = inner.names.entry(parent).or_default();
        names.entry(name.to_vec()).or_insert(ino);
    }

    /// All nodes.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        self.inner.lock().nodes.values().cloned().collect()
    }

    /// The path of a node, if all names up to the root are known here.
    pub(crate) fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = ino;
        while at != Inode::ROOT.0 {
            let node = self.get(at)?;
            let (parent, name) = node.state.lock().names.last()?.clone();
            parts.push(name);
            if parts.len() > 2048 {
                return None;
            }
            at = parent;
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }
}

impl State {
    fn forget_name(&mut self, parent: u64, name: &[u8]) {
        self.names.retain(|(p, n)| *p != parent || n != name);
    }
}

/// Whether it is a directory.
pub(crate) fn is_dir(attr: &Attr) -> bool {
    attr.kind() == Kind::Directory
}

#[cfg(test)]
mod tests {
    use super::super::object::Data;
    use super::super::right::Right;
    use super::*;

    fn object(id: u64) -> Arc<Object> {
        Arc::new(Object::new(id, 0, Data::Nothing, Right::none(0, id)))
    }

    #[test]
    fn keys_hold_inode_and_alias() {
        for key in [
            Key { ino: 1, alias: 0 },
            Key {
                ino: (1 << 48) - 1,
                alias: 0x7fff,
            },
        ] {
            assert_eq!(Key::unpack(key.pack()), key);
            assert!(!key.is_special());
        }
        let special = Key {
            ino: Inode::SPECIAL | 1 << 50,
            alias: 0,
        };
        assert_eq!(Key::unpack(special.pack()), special);
        assert!(special.is_special());
    }

    #[test]
    fn another_version_beside_an_open_one_gets_another_alias() {
        let mut state = State::default();
        let key = |alias| Key { ino: 7, alias };
        state.bind(key(0), &object(1), false).unwrap();
        state.bind(key(0), &object(1), false).unwrap();
        let refused = state.bind(key(0), &object(2), false).unwrap_err();
        assert!(refused.is(Errno::STALE));
        assert_eq!(state.alias, 1);
        // The stale alias is not opened again, the new one is.
        assert!(
            state
                .bind(key(0), &object(1), false)
                .unwrap_err()
                .is(Errno::STALE)
        );
        state.bind(key(1), &object(2), false).unwrap();
        assert_eq!(state.opens, 3);
        state.unbind(0);
        state.unbind(0);
        assert!(!state.bound.contains_key(&0));
        state.unbind(1);
        assert_eq!(state.opens, 0);
        // With nothing open, the alias serves any version.
        state.bind(key(1), &object(3), false).unwrap();
    }

    #[test]
    fn names_follow_what_was_looked_up_last() {
        let table = Table::default();
        for ino in [1, 5, 6] {
            table.get_or_make(ino).state.lock().lookups = 1;
        }
        table.name(1, b"d", 5);
        table.name(5, b"f", 6);
        assert_eq!(table.path(6).unwrap(), b"/d/f");
        assert_eq!(table.path(1).unwrap(), b"/");
        table.name(1, b"g", 6);
        assert_eq!(table.unname(5, b"f"), Some(6));
        assert_eq!(table.path(6).unwrap(), b"/g");
        table.get(6).unwrap().state.lock().lookups = 0;
        table.drop_unused(6);
        assert_eq!(table.named(1, b"g"), None);
        assert!(table.get(6).is_none());
    }
}
