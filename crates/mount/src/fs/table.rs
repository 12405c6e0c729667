//! Table of the inodes and names that the Linux kernel knows, and of their cached attributes. The table only changes memory; its callers
//! (next: `mount/src/fs/watch.rs`) invalidate the Linux kernel's caches.
//!
//! A file is one kernel inode for all programs that have the file open here, readers and writers, so that they see each other's writes and
//! locks. A program that has a version open continues with the next version that is written here. The program cannot continue if the next
//! version was written elsewhere, or if another program reads the file of the open version. Then several versions are open at the same
//! time. Each version needs a kernel inode of its own, because the Linux kernel lets an inode have one backing file and one page cache
//! only. So the kernel gets [`InodeKey`]s: an inode and an *alias*. Only alias 0 exists until an open needs another version than the open
//! one. Then the next alias becomes the current one, and the kernel is made to look the name up again.

use super::entries::{CachedName, ChangeSlot, EntryCache};
use super::object::OpenObject;
use super::pending::PendingAttributes;
use crate::error::Error;
use parking_lot::{Condvar, Mutex, RwLock};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidemill_model::id::Inode;
use tidemill_wire::v1::{Attr, Kind};

/// Number of bits of an [`InodeKey`] that hold the inode.
const INODE_BITS: u32 = 48;
/// Mask of the bits of an [`InodeKey`] that hold the alias.
const ALIAS_MASK: u64 = 0x7fff;

/// Number of slots that record when inodes were last changed by another client; several inodes share a slot.
const FOREIGN_SLOTS: usize = 4096;
/// Maximum depth of directories in a path.
const DEPTH_MAX: usize = 2048;

/// Number by which the Linux kernel knows an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InodeKey {
    /// Inode of the namespace, or a special inode.
    pub(crate) ino: u64,
    /// Number of the open version among the versions of the inode that are open at the same time.
    pub(crate) alias: u16,
}

impl InodeKey {
    /// Packs the key into one number for the Linux kernel.
    #[must_use]
    pub(crate) fn pack(self) -> u64 {
        self.ino | u64::from(self.alias) << INODE_BITS
    }

    /// Returns the key for a number that [`Self::pack`] made.
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

    /// Whether the inode is one of the mount's own files, such as control files.
    #[must_use]
    pub(crate) fn is_special(self) -> bool {
        self.ino & Inode::SPECIAL != 0
    }
}

/// Inode that the mount knows, with its cached state.
#[derive(Debug)]
pub(crate) struct CachedInode {
    pub(crate) ino: u64,
    /// Number of references that the Linux kernel holds to the inode.
    lookups: AtomicU64,
    pub(crate) state: Mutex<InodeState>,
    /// Condition variable that is signalled when `state.writing` changes.
    pub(crate) changed: Condvar,
    /// Lock that is held shared during a write through this process, so that a version contains all writes when it is passed to other
    /// mounts.
    pub(crate) writes: RwLock<()>,
    /// Lock that is held during an append to the file.
    pub(crate) appends: Mutex<()>,
}

#[derive(Debug, Default)]
pub(crate) struct InodeState {
    pub(crate) attr: Attr,
    /// Time until which the attributes in `attr` are valid.
    pub(crate) fresh: Option<Instant>,
    /// Time of the last change from this mount, on the clock of [`InodeTable::tick`]. An answer to an older request does not overwrite the
    /// state.
    pub(crate) stamp: u64,
    /// Target path of a symbolic link.
    pub(crate) target: Vec<u8>,
    /// Number of open handles of the file.
    pub(crate) opens: u32,
    /// Version that is being written on this mount.
    pub(crate) writing: Option<WrittenVersion>,
    /// Number of handles that could write but have no version: another mount writes the file, or the handles have not written since their
    /// writes were published.
    pub(crate) idle_writers: u32,
    /// Alias that new opens of the file get.
    pub(crate) alias: u16,
    /// Object that the Linux kernel reads under each alias.
    pub(crate) bound: BTreeMap<u16, AliasObject>,
    /// Open objects of the file, which its handles share.
    pub(crate) objects: Vec<Weak<OpenObject>>,
    /// Sealed object of the file, if this mount keeps the right to read the object.
    pub(crate) kept: Option<Arc<OpenObject>>,
    /// Whether the file has lost its last name.
    pub(crate) deleted: bool,
}

/// Version that is being written on this mount.
#[derive(Debug)]
pub(crate) struct WrittenVersion {
    pub(crate) object: Option<Arc<OpenObject>>,
    pub(crate) phase: VersionPhase,
    pub(crate) writers: u32,
    /// For a version that began as a copy: its mtime after the copy, in nanoseconds. If it is unchanged at the last close, no byte was
    /// written.
    pub(crate) untouched: Option<i64>,
    /// Whether the version changes nothing and is abandoned, so that the version sealed before stays current.
    pub(crate) abandoned: bool,
    /// Attributes that the mount sends to the server with the seal.
    pub(crate) pending: Option<PendingAttributes>,
}

impl WrittenVersion {
    /// Returns a version for which the mount is sending a request to the server.
    pub(crate) fn starting() -> Self {
        Self {
            object: None,
            phase: VersionPhase::Starting,
            writers: 0,
            untouched: None,
            abandoned: false,
            pending: None,
        }
    }

    /// Returns an open version that `writers` handles can write.
    pub(crate) fn open(object: Arc<OpenObject>, writers: u32, untouched: Option<i64>) -> Self {
        Self {
            object: Some(object),
            phase: VersionPhase::Open,
            writers,
            untouched,
            abandoned: false,
            pending: None,
        }
    }
}

/// Phase of a version that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionPhase {
    /// The mount is waiting for the server's answer, or is copying the previous version.
    Starting,
    /// Another client is writing the file: one opener sends requests to the server repeatedly on behalf of all openers.
    Busy,
    /// The version is open for writing.
    Open,
    /// The last writer has closed the version; the version is not sealed yet.
    Sealing,
}

/// Way in which the Linux kernel reads and writes an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CachingMode {
    /// The Linux kernel reads and writes the object's file directly.
    Direct,
    /// The Linux kernel reads and writes through this process, and caches pages.
    Cached,
    /// The Linux kernel uses this process for each access because other mounts may write the file, too. The length that the kernel knows
    /// can be outdated for a moment after it was invalidated, and the kernel reads no cached page beyond that length.
    Uncached,
}

/// Object that the Linux kernel reads under an alias; it is the same for all handles of the alias.
#[derive(Debug)]
pub(crate) struct AliasObject {
    pub(crate) object: Arc<OpenObject>,
    pub(crate) opens: u32,
    /// Caching mode, the same for all handles of the object.
    pub(crate) way: CachingMode,
    /// Attributes of the file at the last open. The attributes describe this version if it is no longer the file's current version.
    pub(crate) seen: Attr,
}

impl CachedInode {
    fn new(ino: u64) -> Self {
        Self {
            ino,
            lookups: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            writes: RwLock::new(()),
            appends: Mutex::new(()),
        }
    }
}

impl AliasObject {
    pub(crate) fn is_direct(&self) -> bool {
        self.way == CachingMode::Direct
    }

    /// Whether the alias has to change to another object, and can do so.
    pub(crate) fn is_old(&self, newest: u64) -> bool {
        !self.is_direct() && self.object.id != newest
    }
}

impl InodeState {
    /// Whether the inode's attributes are known and valid.
    pub(crate) fn is_fresh(&self) -> bool {
        self.deleted || self.fresh.is_some_and(|until| Instant::now() < until)
    }

    /// Returns the attributes that users see now, with the size and mtime of the version being written, and the number of 512-byte blocks.
    pub(crate) fn shown(&self) -> (Attr, u64) {
        let mut attr = self.attr;
        let mut blocks = attr.size.div_ceil(512);
        let stat = self
            .written()
            .and_then(|object| match object.multi_writer() {
                Some(multi_writer) => Some(multi_writer.stat_by(&attr)),
                None => object.stat().ok(),
            });
        if let Some(stat) = stat {
            attr.size = stat.size;
            attr.mtime = stat.mtime;
            attr.ctime = attr.ctime.max(stat.mtime.min(super::remote::now_ns()));
            blocks = stat.blocks;
        }
        (attr, blocks)
    }

    /// Whether a version of the file was closed on this mount and is not sealed yet.
    pub(crate) fn is_sealing(&self) -> bool {
        let phase = self.writing.as_ref().map(|writing| writing.phase);
        phase == Some(VersionPhase::Sealing)
    }

    /// Whether a version of the file is being written or sealed on this mount.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether another mount or a client is writing a version of the file, as far as this mount knows.
    pub(crate) fn is_written_elsewhere(&self) -> bool {
        self.attr.writing && self.writing.is_none()
    }

    /// Returns the open object with this id; `None` if the object is not open.
    pub(crate) fn open_object(&mut self, id: u64) -> Option<Arc<OpenObject>> {
        self.objects.retain(|weak| weak.strong_count() > 0);
        let mut live = self.objects.iter().filter_map(Weak::upgrade);
        live.find(|object| object.id == id)
    }

    /// Whether new opens get this object, which is the version being written on this mount, else the sealed version.
    pub(crate) fn is_current(&self, object: u64) -> bool {
        self.newest() == object
    }

    /// Returns the object being written on this mount, if other mounts write the same version and the version is not being sealed.
    pub(crate) fn open_multi_writer(&self) -> Option<Arc<OpenObject>> {
        let open = self
            .writing
            .as_ref()
            .filter(|w| w.phase == VersionPhase::Open);
        let object = open.and_then(|writing| writing.object.as_ref());
        object
            .filter(|object| object.multi_writer().is_some())
            .cloned()
    }

    /// Returns the id of the object that new opens of the file get.
    pub(crate) fn newest(&self) -> u64 {
        let sealed = match self.attr.multi_writer {
            0 => self.attr.object,
            multi_writer => multi_writer,
        };
        self.written().map_or(sealed, |written| written.id)
    }

    /// Records that other mounts published writes to a version that is open on this mount.
    fn mark_stale(&self) {
        let kept = self.objects.iter().filter_map(Weak::upgrade);
        let bound = self.bound.values().map(|bound| bound.object.clone());
        for object in kept.chain(bound).chain(self.written().cloned()) {
            if let Some(multi_writer) = object.multi_writer() {
                multi_writer.mark_stale();
            }
        }
    }

    /// Replaces the object being written on this mount by an object that other mounts write, too. Both objects have the same content, also
    /// for the open handles.
    pub(crate) fn share(&mut self, object: &Arc<OpenObject>) {
        if let Some(writing) = self.writing.as_mut() {
            writing.object = Some(object.clone());
            writing.untouched = None;
        }
        let bound = self.bound.values_mut();
        for bound in bound.filter(|bound| bound.object.id == object.id) {
            bound.object = object.clone();
        }
        self.objects.retain(|weak| {
            let other = weak.upgrade();
            other.is_some_and(|other| other.id != object.id)
        });
        self.objects.push(Arc::downgrade(object));
    }

    /// Returns the object that is being written or sealed on this mount.
    pub(crate) fn written(&self) -> Option<&Arc<OpenObject>> {
        let writing = self.writing.as_ref().filter(|w| !w.abandoned);
        writing.and_then(|w| w.object.as_ref())
    }

    /// Returns the object that is open under the current alias, and whether the Linux kernel reads and writes it directly.
    pub(crate) fn bound_now(&self) -> Option<(Arc<OpenObject>, bool)> {
        let bound = self.bound.get(&self.alias)?;
        Some((bound.object.clone(), bound.is_direct()))
    }

    /// Binds the current alias to an object, with this caching mode if the other users of the object allow the mode. If the alias is in use
    /// for another object, the next alias becomes the current alias and the error is `ESTALE`: the Linux kernel then repeats look-up and
    /// open.
    pub(crate) fn bind(
        &mut self,
        key: InodeKey,
        object: &Arc<OpenObject>,
        way: CachingMode,
    ) -> Result<(), Error> {
        if key.alias != self.alias {
            return Err(Errno::STALE.into());
        }
        let attr = self.attr;
        if let Some(bound) = self.bound.get_mut(&key.alias) {
            // The node may have sealed a copy of the object, since its writer may still exist.
            let same = || Arc::ptr_eq(&bound.object, object) || !bound.object.is_replaced();
            if bound.object.id == object.id && same() {
                bound.opens += 1;
                bound.seen = attr;
                self.opens += 1;
                return Ok(());
            }
            self.next_alias();
            return Err(Errno::STALE.into());
        }
        // All aliases of an object use the same way of access. Otherwise only some of them could show a later version.
        let same = self.bound.values().filter(|b| b.object.id == object.id);
        let way = same.map(|bound| bound.way).fold(way, CachingMode::max);
        self.bind_new(object.clone(), way);
        Ok(())
    }

    /// Binds the current alias, which is unused, to an object.
    pub(crate) fn bind_new(&mut self, object: Arc<OpenObject>, way: CachingMode) {
        let bound = AliasObject {
            object,
            opens: 1,
            way,
            seen: self.attr,
        };
        self.bound.insert(self.alias, bound);
        self.opens += 1;
    }

    /// Binds an alias to another object, unless the Linux kernel reads and writes the file directly. Returns whether the object changed.
    pub(crate) fn rebind(&mut self, alias: u16, object: &Arc<OpenObject>) -> bool {
        let attr = self.attr;
        let bound = self.bound.get_mut(&alias);
        let Some(bound) = bound.filter(|bound| bound.is_old(object.id)) else {
            return false;
        };
        bound.object = object.clone();
        bound.seen = attr;
        true
    }

    /// Returns the aliases under which programs use the object being written here, if there are several: each alias has cached pages.
    pub(crate) fn aliases(&self) -> Vec<u16> {
        let Some(written) = self.written().filter(|_| self.bound.len() > 1) else {
            return Vec::new();
        };
        let bound = self.bound.iter().filter(|(_, bound)| !bound.is_direct());
        let aliases = bound.filter(|(_, bound)| bound.object.id == written.id);
        let aliases: Vec<u16> = aliases.map(|(&alias, _)| alias).collect();
        if aliases.len() < 2 {
            Vec::new()
        } else {
            aliases
        }
    }

    /// Makes later opens of the file use another kernel inode than the handles that are open now.
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

    /// Records that one handle of the alias was closed.
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

/// Table of all inodes and names that this mount knows.
#[derive(Debug, Default)]
pub(crate) struct InodeTable {
    inner: Mutex<TableState>,
    /// Condition variable that is signalled when there are more inodes than the limit.
    crowded: Condvar,
    clock: AtomicU64,
    foreign: Foreign,
    /// Lock that is held shared while the Linux kernel receives a value that it caches, and exclusively while a change by another client is
    /// recorded. So an invalidation reaches the kernel only after the value that it invalidates.
    pub(crate) gate: RwLock<()>,
}

/// Times of the last changes of inodes by other clients, indexed by the low bits of the inode, whether or not the table has the inode. Also
/// the times of the last changes from this mount for inodes that were dropped from the table.
#[derive(Debug)]
struct Foreign {
    slots: [AtomicU64; FOREIGN_SLOTS],
    /// Time since which this mount receives notifications of other clients' changes.
    heard: AtomicU64,
}

impl Default for Foreign {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
            heard: AtomicU64::new(0),
        }
    }
}

impl Foreign {
    fn of(&self, ino: u64) -> &AtomicU64 {
        &self.slots[usize::try_from(ino).unwrap_or(0) % FOREIGN_SLOTS]
    }
}

#[derive(Debug, Default)]
struct TableState {
    vnodes: HashMap<u64, Arc<CachedInode>>,
    entries: EntryCache,
    /// Maximum number of inodes; 0 means no limit.
    most: usize,
}

impl TableState {
    fn vnode(&mut self, ino: u64) -> &Arc<CachedInode> {
        let made = || Arc::new(CachedInode::new(ino));
        self.vnodes.entry(ino).or_insert_with(made)
    }

    /// Returns the number of inodes that are too many, with a reserve for the next ones.
    fn excess(&self) -> usize {
        match self.most {
            0 => 0,
            most if self.vnodes.len() <= most => 0,
            most => self.vnodes.len() - most + most / 8,
        }
    }
}

/// Change of names that this mount requested. If it is dropped before [`Self::settle`], the state of the names is unknown.
#[derive(Debug)]
pub(crate) struct NameChange<'a> {
    table: &'a InodeTable,
    /// Time at which the change was requested.
    pub(crate) asked: u64,
    names: Vec<(u64, Vec<u8>)>,
}

impl NameChange<'_> {
    /// Ends the change: the names now have the values `truths`. Returns the time of the entry; `None` if a concurrent change makes the
    /// values unreliable.
    pub(crate) fn settle(mut self, truths: &[CachedName]) -> Option<u64> {
        self.end(truths)
    }

    fn end(&mut self, truths: &[CachedName]) -> Option<u64> {
        let mut inner = self.table.inner.lock();
        let now = self.table.tick();
        let mut believed = true;
        for (at, (parent, name)) in self.names.drain(..).enumerate() {
            let truth = truths.get(at).copied().unwrap_or(CachedName::Unsure);
            believed &= inner.entries.changed(parent, &name, self.asked, truth, now);
        }
        believed.then_some(now)
    }
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        if !self.names.is_empty() {
            self.end(&[]);
        }
    }
}

impl InodeTable {
    /// Returns the current time of the table's clock, for [`InodeState::stamp`].
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    /// Advances the table's clock. Returns a time later than all times read before.
    pub(crate) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Records that another client changed an inode, so that answers to earlier requests are not used any more.
    pub(crate) fn foreign_change(&self, ino: u64) {
        let slot = self.foreign.of(ino);
        // Set before the change, for answers that create the inode concurrently, and after it, for answers that have read the slot already.
        slot.store(self.tick(), Ordering::Release);
        if let Some(vnode) = self.get(ino) {
            // An answer that is under way is newer than the cached state, though it is not valid for long.
            let mut state = vnode.state.lock();
            state.fresh = None;
            state.kept = None;
            state.mark_stale();
        }
        slot.store(self.tick(), Ordering::Release);
    }

    /// Records that another client changed an entry of a directory.
    pub(crate) fn foreign_entry(&self, parent: u64, name: &[u8]) {
        let mut inner = self.inner.lock();
        inner.entries.foreign(parent, name, self.tick());
    }

    /// Whether another client may have changed the inode since `asked`.
    pub(crate) fn changed_since(&self, ino: u64, asked: u64) -> bool {
        self.foreign.of(ino).load(Ordering::Acquire) > asked
            || self.foreign.heard.load(Ordering::Acquire) > asked
    }

    /// Whether an entry may have changed since `asked`, by this mount or by another client.
    pub(crate) fn entry_changed_since(&self, entry: ChangeSlot, asked: u64) -> bool {
        self.inner.lock().entries.changed_since(entry, asked)
    }

    pub(crate) fn get(&self, ino: u64) -> Option<Arc<CachedInode>> {
        self.inner.lock().vnodes.get(&ino).cloned()
    }

    pub(crate) fn get_or_make(&self, ino: u64) -> Arc<CachedInode> {
        self.inner.lock().vnode(ino).clone()
    }

    /// Returns the number of inodes.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().vnodes.len()
    }

    /// Sets the maximum number of inodes.
    pub(crate) fn limit(&self, most: usize) {
        self.inner.lock().most = most;
    }

    /// Waits until there are too many inodes, at most for `patience`. Returns how many should be dropped.
    pub(crate) fn excess(&self, patience: Duration) -> usize {
        let mut inner = self.inner.lock();
        if inner.excess() == 0 {
            self.crowded.wait_for(&mut inner, patience);
        }
        inner.excess()
    }

    /// Returns names of up to `count` files that no program has open on this mount.
    pub(crate) fn unused(&self, count: usize) -> Vec<(u64, Vec<u8>)> {
        let inner = self.inner.lock();
        let vnodes = inner.vnodes.values().filter(|vnode| {
            let state = vnode.state.try_lock();
            state.is_some_and(|state| {
                let is_file = matches!(state.attr.kind(), Kind::File | Kind::Symlink);
                is_file && state.opens == 0 && !state.is_writing()
            })
        });
        let names = vnodes.filter_map(|vnode| inner.entries.name_of(vnode.ino).cloned());
        names.take(count).collect()
    }

    /// Returns the inode and counts a reference that the Linux kernel is going to hold.
    pub(crate) fn hold(&self, ino: u64) -> Arc<CachedInode> {
        let mut inner = self.inner.lock();
        let vnode = inner.vnode(ino).clone();
        vnode.lookups.fetch_add(1, Ordering::AcqRel);
        if inner.excess() > 0 {
            self.crowded.notify_one();
        }
        vnode
    }

    /// Drops `lookups` references of the Linux kernel to the inode. The table drops the inode with its last reference.
    pub(crate) fn let_go(&self, ino: u64, lookups: u64) {
        let Some(vnode) = self.get(ino) else { return };
        let less = |held: u64| Some(held.saturating_sub(lookups));
        let held = vnode
            .lookups
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        if held.is_ok_and(|held| held <= lookups) {
            self.drop_unused(ino);
        }
    }

    /// Begins a change of names that this mount requests.
    pub(crate) fn begin(&self, names: &[(u64, &[u8])]) -> NameChange<'_> {
        let owned = |&(parent, name): &(u64, &[u8])| (parent, name.to_vec());
        NameChange {
            table: self,
            asked: self.tick(),
            names: names.iter().map(owned).collect(),
        }
    }

    /// Returns the cached value of a directory entry, and the latest time at which the value became known.
    pub(crate) fn known(&self, parent: u64, name: &[u8]) -> (CachedName, u64) {
        let inner = self.inner.lock();
        (inner.entries.known(parent, name), self.now())
    }

    /// Returns the cached value of a directory entry. If the entry exists, counts a reference of the Linux kernel to its inode.
    pub(crate) fn hold_entry(
        &self,
        parent: u64,
        name: &[u8],
    ) -> (CachedName, Option<Arc<CachedInode>>, u64) {
        let inner = self.inner.lock();
        let known = inner.entries.known(parent, name);
        let vnode = match known {
            CachedName::Is(ino) => inner.vnodes.get(&ino).cloned(),
            _ => None,
        };
        if let Some(vnode) = &vnode {
            vnode.lookups.fetch_add(1, Ordering::AcqRel);
        }
        (known, vnode, self.now())
    }

    /// Records the result of a look-up. Returns whether the Linux kernel may cache the result.
    pub(crate) fn learned(&self, parent: u64, name: &[u8], ino: u64, asked: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.entries.learned(parent, name, ino, asked)
    }

    /// Records that a looked-up entry does not exist. Returns the number of missing entries that were looked up since the directory was
    /// listed.
    pub(crate) fn absent(&self, parent: u64, name: &[u8], asked: u64) -> u32 {
        self.inner.lock().entries.absent(parent, name, asked)
    }

    /// Records a complete listing of a directory.
    pub(crate) fn listed<'a>(
        &self,
        directory: u64,
        entries: impl Iterator<Item = (&'a [u8], u64)>,
        asked: u64,
    ) {
        self.inner.lock().entries.listed(directory, entries, asked);
    }

    /// Records that this mount created a directory, which therefore has no entries.
    pub(crate) fn made(&self, directory: u64, asked: u64) {
        self.inner.lock().entries.made(directory, asked);
    }

    /// Drops the inode from the table if nothing refers to it, and then the unused directories above it.
    pub(crate) fn drop_unused(&self, ino: u64) {
        let mut inner = self.inner.lock();
        let mut next = Some(ino);
        while let Some(ino) = next {
            next = self.drop_one(&mut inner, ino);
        }
    }

    /// Drops an inode from the table if nothing refers to it. Returns the directory that contained the inode.
    fn drop_one(&self, inner: &mut TableState, ino: u64) -> Option<u64> {
        let vnode = inner.vnodes.get(&ino)?;
        let state = vnode.state.lock();
        let held = vnode.lookups.load(Ordering::Acquire) > 0 || ino == Inode::ROOT.0;
        if held || state.opens > 0 || state.writing.is_some() {
            return None;
        }
        // Files below the directory that are not sealed yet keep their path.
        let is_kept = |child| inner.vnodes.contains_key(&child);
        if inner.entries.within(ino).any(is_kept) {
            return None;
        }
        // An older answer must not restore the state before a change from here.
        self.foreign
            .of(ino)
            .fetch_max(state.stamp, Ordering::AcqRel);
        drop(state);
        let parent = inner.entries.name_of(ino).map(|&(parent, _)| parent);
        let is_full = inner.most > 0 && inner.vnodes.len() > inner.most / 2;
        inner.vnodes.remove(&ino);
        inner.entries.forget(ino, !is_full);
        parent
    }

    /// Invalidates all answers to requests from before `heard`, the time since which this mount receives notifications of other clients'
    /// changes ([`u64::MAX`] if it receives none). Returns all inodes and entries that the Linux kernel may have cached.
    pub(crate) fn doubt(&self, heard: u64) -> (Vec<u64>, Vec<(u64, Vec<u8>)>) {
        self.foreign.heard.store(heard, Ordering::Release);
        let mut inner = self.inner.lock();
        for vnode in inner.vnodes.values() {
            let mut state = vnode.state.lock();
            state.fresh = None;
            state.kept = None;
            state.mark_stale();
        }
        let inodes = inner.vnodes.keys().copied().collect();
        (inodes, inner.entries.doubt(heard))
    }

    pub(crate) fn all(&self) -> Vec<Arc<CachedInode>> {
        self.inner.lock().vnodes.values().cloned().collect()
    }

    /// Returns the path of an inode, if the table has all names up to the root.
    pub(crate) fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let inner = self.inner.lock();
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != Inode::ROOT.0 {
            let (parent, name) = inner.entries.name_of(at)?;
            parts.push(name);
            if parts.len() > DEPTH_MAX {
                return None;
            }
            at = *parent;
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }

    /// Whether an inode may be below a directory, as far as the table has its names.
    pub(crate) fn may_be_below(&self, ino: u64, directory: u64) -> bool {
        let inner = self.inner.lock();
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            if at == directory {
                return true;
            }
            if at == Inode::ROOT.0 {
                return false;
            }
            match inner.entries.name_of(at) {
                Some((parent, _)) => at = *parent,
                None => return true,
            }
        }
        true
    }

    /// Returns one of the names of an inode, if the table has a name.
    pub(crate) fn name_of(&self, ino: u64) -> Option<(u64, Vec<u8>)> {
        self.inner.lock().entries.name_of(ino).cloned()
    }
}

/// Whether the attributes belong to a directory.
pub(crate) fn is_dir(attr: &Attr) -> bool {
    attr.kind() == Kind::Directory
}

#[cfg(test)]
mod tests {
    use super::super::object::ObjectData;
    use super::super::right::Right;
    use super::*;

    fn object(id: u64) -> Arc<OpenObject> {
        Arc::new(OpenObject::new(
            id,
            0,
            ObjectData::Nothing,
            Right::none(0, id),
        ))
    }

    #[test]
    fn inode_key_packs_and_unpacks_inode_and_alias() {
        for key in [
            InodeKey { ino: 1, alias: 0 },
            InodeKey {
                ino: (1 << 48) - 1,
                alias: 0x7fff,
            },
        ] {
            assert_eq!(InodeKey::unpack(key.pack()), key);
            assert!(!key.is_special());
        }
        let special = InodeKey {
            ino: Inode::SPECIAL | 1 << 50,
            alias: 0,
        };
        assert_eq!(InodeKey::unpack(special.pack()), special);
        assert!(special.is_special());
    }

    #[test]
    fn inode_table_gives_other_version_of_open_file_new_alias() {
        let mut state = InodeState::default();
        let key = |alias| InodeKey { ino: 7, alias };
        state.bind(key(0), &object(1), CachingMode::Cached).unwrap();
        state.bind(key(0), &object(1), CachingMode::Cached).unwrap();
        let refused = state
            .bind(key(0), &object(2), CachingMode::Cached)
            .unwrap_err();
        assert!(refused.is(Errno::STALE));
        assert_eq!(state.alias, 1);
        // The stale alias is not opened again, the new one is.
        assert!(
            state
                .bind(key(0), &object(1), CachingMode::Cached)
                .unwrap_err()
                .is(Errno::STALE)
        );
        state.bind(key(1), &object(2), CachingMode::Cached).unwrap();
        assert_eq!(state.opens, 3);
        state.unbind(0);
        state.unbind(0);
        assert!(!state.bound.contains_key(&0));
        state.unbind(1);
        assert_eq!(state.opens, 0);
        // With nothing open, the alias serves any version.
        state.bind(key(1), &object(3), CachingMode::Cached).unwrap();
    }

    #[test]
    fn inode_table_ignores_answer_older_than_forgotten_inode() {
        let table = InodeTable::default();
        let asked = table.now();
        table.hold(5);
        let vnode = table.hold(6);
        table.learned(1, b"d", 5, asked);
        table.learned(5, b"f", 6, asked);
        assert_eq!(table.path(6).unwrap(), b"/d/f");
        assert_eq!(table.path(1).unwrap(), b"/");
        vnode.state.lock().stamp = table.tick();
        table.hold(6);
        table.let_go(6, 1);
        assert!(table.get(6).is_some());
        table.let_go(6, 1);
        assert!(table.get(6).is_none());
        assert_eq!(table.known(5, b"f").0, CachedName::Unsure);
        assert!(table.changed_since(6, asked));
    }

    /// The Linux kernel forgets a closed file and the directories above it before the file is sealed.
    #[test]
    fn inode_table_keeps_path_of_file_during_seal() {
        let table = InodeTable::default();
        let asked = table.now();
        for ino in [5, 6, 7, 8] {
            table.hold(ino);
        }
        table.learned(1, b"d", 5, asked);
        table.learned(5, b"e", 6, asked);
        table.learned(6, b"f", 7, asked);
        table.learned(1, b"other", 8, asked);
        let file = table.get(7).unwrap();
        file.state.lock().writing = Some(WrittenVersion::open(object(9), 0, None));
        for ino in [7, 6, 5] {
            table.let_go(ino, 1);
        }
        assert_eq!(table.path(7).unwrap(), b"/d/e/f");
        assert!(table.may_be_below(7, 5) && !table.may_be_below(7, 8));
        file.state.lock().writing = None;
        table.drop_unused(7);
        assert!([5, 6, 7].iter().all(|&ino| table.get(ino).is_none()));
    }

    #[test]
    fn dropped_name_change_leaves_cached_names_unsure() {
        let table = InodeTable::default();
        table.made(1, table.now());
        let change = table.begin(&[(1, b"a"), (1, b"b")]);
        assert!(
            change
                .settle(&[CachedName::Is(7), CachedName::Nothing])
                .is_some()
        );
        assert_eq!(table.known(1, b"a").0, CachedName::Is(7));
        assert_eq!(table.known(1, b"b").0, CachedName::Nothing);
        drop(table.begin(&[(1, b"a"), (1, b"b")]));
        assert_eq!(table.known(1, b"a").0, CachedName::Unsure);
        assert_eq!(table.known(1, b"b").0, CachedName::Unsure);
        assert_eq!(table.known(1, b"c").0, CachedName::Nothing);
    }
}
