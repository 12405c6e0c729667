//! Operations on the namespace, which the server executes: look-up, creation, links, renames, removal, attributes (next: `server/src`).

use super::backend::{attr_of, unsupported};
use super::entries::{CachedName, ChangeSlot};
use super::remote::now_ns;
use super::table::{AliasObject, CachedInode, InodeState, NameChange, is_dir};
use super::{Caller, Fs, InodeKey, LookupResult, WaitPolicy};
use crate::error::Error;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::Error as ClientError;
use tidemill_model::id::Inode;
use tidemill_wire::control;
use tidemill_wire::v1::{self, Attr, Kind, name_op::Op, name_result::Result as Answer};

const NAME_BYTES_MAX: usize = 255;
/// Number of failed look-ups in a directory after which the mount lists the directory.
const MISSES_MIN: u32 = 4;
/// Maximum number of entries of a directory that the mount lists because of failed look-ups.
const LISTED_ENTRIES_MAX: u32 = 4096;
/// Mode bits: set-user-id, set-group-id, and the group's execute bit.
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Changes of attributes that one call requests. Times are nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttributeChanges {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<i64>,
    pub(crate) mtime: Option<i64>,
}

/// Entry that a call creates in a directory.
#[derive(Clone, Debug)]
pub(crate) struct NewEntry {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) rdev: u32,
    pub(crate) target: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Renaming {
    pub(crate) no_replace: bool,
    pub(crate) exchange: bool,
}

fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(())
}

/// Returns an error if a change would create or remove a name that is reserved for the control directory.
pub(super) fn check_change(parent: u64, name: &[u8], refusal: Errno) -> Result<(), Error> {
    check_name(name)?;
    if parent == Inode::ROOT.0 && control::is_reserved(name) {
        return Err(refusal.into());
    }
    Ok(())
}

impl Fs {
    pub(crate) fn lookup(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        check_name(name)?;
        if name == b"." {
            let key = InodeKey {
                ino: parent,
                alias: 0,
            };
            let found = self.getattr(caller, key, pace)?;
            self.table.hold(parent);
            return Ok(found);
        }
        if let Some(known) = self.lookup_here(parent, name) {
            return known;
        }
        pace.wait()?;
        let asked = self.table.now();
        let op = Op::Lookup(v1::Lookup {
            parent,
            name: name.to_vec(),
        });
        match self.backend.one(caller, op) {
            Ok(Answer::Entry(entry)) => self.learn(parent, name, entry, asked),
            Ok(_) => Err(ClientError::Answer("Lookup").into()),
            Err(error) => {
                if error.is(Errno::NOENT) {
                    let missed = self.table.absent(parent, name, asked);
                    if missed >= MISSES_MIN && missed.is_power_of_two() {
                        self.list_for_missed(caller, parent);
                    }
                }
                Err(error)
            }
        }
    }

    /// Returns the answer to a look-up, if it is cached.
    pub(super) fn lookup_here(
        &self,
        parent: u64,
        name: &[u8],
    ) -> Option<Result<LookupResult, Error>> {
        let (known, vnode, asked) = self.table.hold_entry(parent, name);
        if known == CachedName::Nothing && name != b".." {
            return Some(Err(Errno::NOENT.into()));
        }
        let vnode = vnode?;
        let state = vnode.state.lock();
        if !state.is_fresh() {
            drop(state);
            self.table.let_go(vnode.ino, 1);
            return None;
        }
        let mut found = self.found(&vnode, &state);
        found.asked = asked;
        found.entry = Some(ChangeSlot::of(parent, name));
        Some(Ok(found))
    }

    /// Lists a directory in which look-ups fail often, so that the next failing look-up needs no server.
    fn list_for_missed(&self, caller: Caller, directory: u64) {
        let asked = self.table.now();
        let op = Op::ReadDir(v1::ReadDir {
            ino: directory,
            after: Vec::new(),
            limit: LISTED_ENTRIES_MAX,
        });
        // Only an optimisation: without the listing, the server is asked for each name.
        if let Ok(Answer::Entries(entries)) = self.backend.one(caller, op)
            && entries.end
        {
            self.learn_listing(directory, entries.entries.iter(), asked);
        }
    }

    /// Adds all entries of a directory to the cache.
    pub(super) fn learn_listing<'a>(
        &self,
        directory: u64,
        entries: impl Iterator<Item = &'a v1::Entry>,
        asked: u64,
    ) {
        let entries = entries.filter_map(|entry| Some((&entry.name[..], entry.attr?.ino)));
        self.table.listed(directory, entries, asked);
    }

    /// Caches an entry that the Linux kernel is going to know.
    pub(super) fn learn(
        &self,
        parent: u64,
        name: &[u8],
        entry: v1::Entry,
        asked: u64,
    ) -> Result<LookupResult, Error> {
        let attr = entry.attr.ok_or(ClientError::Answer("Apply"))?;
        let mut found = self.hold(attr, entry.target, asked);
        found.asked = asked;
        found.entry = Some(ChangeSlot::of(parent, name));
        if name != b".." {
            self.table.learned(parent, name, attr.ino, asked);
        }
        Ok(found)
    }

    /// Caches an entry like [`Self::learn`], for an entry that this mount has created.
    pub(super) fn learn_made(
        &self,
        parent: u64,
        name: &[u8],
        entry: v1::Entry,
        change: NameChange<'_>,
    ) -> Result<LookupResult, Error> {
        let attr = entry.attr.ok_or(ClientError::Answer("Apply"))?;
        let mut found = self.hold(attr, entry.target, change.asked);
        found.entry = Some(ChangeSlot::of(parent, name));
        // Without a settled time the kernel has to ask for the entry again.
        found.asked = change.settle(&[CachedName::Is(attr.ino)]).unwrap_or(0);
        Ok(found)
    }

    /// Returns the description of an inode that the Linux kernel is going to know, from the answer to a request of the time `asked`.
    pub(super) fn hold(&self, attr: Attr, target: Vec<u8>, asked: u64) -> LookupResult {
        let vnode = self.table.hold(attr.ino);
        let mut state = vnode.state.lock();
        self.adopt(&mut state, attr, asked);
        if !target.is_empty() {
            state.target = target;
        }
        self.found(&vnode, &state)
    }

    /// Drops references of the Linux kernel to an inode.
    pub(crate) fn forget(&self, key: InodeKey, lookups: u64) {
        if !key.is_special() {
            self.table.let_go(key.ino, lookups);
        }
    }

    /// Fetches the inode's attributes if they are not cached.
    pub(super) fn fetch(
        &self,
        caller: Caller,
        vnode: &CachedInode,
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        if vnode.state.lock().is_fresh() {
            return Ok(());
        }
        pace.wait()?;
        let asked = self.table.now();
        let op = Op::GetAttr(v1::GetAttr {
            ino: vnode.ino,
            content: false,
        });
        match self.backend.one(caller, op).and_then(attr_of) {
            Ok(attr) => {
                let mut state = vnode.state.lock();
                self.adopt(&mut state, attr, asked);
                Ok(())
            }
            Err(error) if error.is(Errno::NOENT) => {
                let mut state = vnode.state.lock();
                if state.opens == 0 && state.writing.is_none() {
                    return Err(Errno::STALE.into());
                }
                // Removed by another client while it is open here.
                state.deleted = true;
                state.attr.nlink = 0;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn getattr(
        &self,
        caller: Caller,
        key: InodeKey,
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        let vnode = self.vnode(key.ino);
        // Other mounts may have published writes to the open version.
        let open = vnode
            .state
            .lock()
            .bound
            .get(&key.alias)
            .map(|bound| bound.object.clone());
        if let Some(multi_writer) = open.as_ref().and_then(|object| object.multi_writer())
            && multi_writer.is_stale()
        {
            pace.wait()?;
            multi_writer.refresh(false)?;
        }
        {
            let state = vnode.state.lock();
            if key.alias != state.alias
                && let Some(bound) = state.bound.get(&key.alias)
            {
                return self.found_before(&vnode, &state, bound);
            }
        }
        self.fetch(caller, &vnode, pace)?;
        let state = vnode.state.lock();
        match state.bound.get(&key.alias) {
            Some(bound) if !state.is_current(bound.object.id) => {
                self.found_before(&vnode, &state, bound)
            }
            _ => Ok(self.found(&vnode, &state)),
        }
    }

    /// Returns the attributes of a version that is open on this mount and no longer the file's current version.
    fn found_before(
        &self,
        vnode: &CachedInode,
        state: &InodeState,
        bound: &AliasObject,
    ) -> Result<LookupResult, Error> {
        let mut found = self.found(vnode, state);
        let stat = bound.object.stat()?;
        found.attr.size = stat.size;
        found.attr.mtime = bound.seen.mtime;
        found.blocks = stat.blocks;
        found.ttl = Duration::ZERO;
        Ok(found)
    }

    pub(crate) fn setattr(
        &self,
        caller: Caller,
        key: InodeKey,
        mut changes: AttributeChanges,
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        pace.wait()?;
        let vnode = self.vnode(key.ino);
        self.fetch(caller, &vnode, pace)?;
        if let Some(size) = changes.size {
            self.set_size(caller, key, &vnode, size)?;
        }
        drop_privileges(&mut changes, &vnode.state.lock().attr, caller);
        if changes.mtime.is_some() {
            self.wait_sealed(&vnode)?;
        }
        self.set_plain(caller, &vnode, &changes)?;
        let state = vnode.state.lock();
        Ok(self.found(&vnode, &state))
    }

    /// Removes set-user-id and set-group-id when a user other than root opens the file for writing, because the Linux kernel does not
    /// report its direct writes to a file.
    pub(super) fn drop_privileges(
        &self,
        caller: Caller,
        vnode: &Arc<CachedInode>,
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        let mode = without_privileges(&vnode.state.lock().attr);
        if caller.uid == 0 || mode.is_none() {
            return Ok(());
        }
        pace.wait()?;
        let changes = AttributeChanges {
            mode,
            ..AttributeChanges::default()
        };
        self.set_plain(caller, vnode, &changes)
    }

    /// Sets all requested attributes except the size.
    fn set_plain(
        &self,
        caller: Caller,
        vnode: &Arc<CachedInode>,
        changes: &AttributeChanges,
    ) -> Result<(), Error> {
        let set = v1::SetAttr {
            ino: vnode.ino,
            mode: changes.mode,
            uid: changes.uid,
            gid: changes.gid,
            atime: changes.atime,
            mtime: changes.mtime,
            ..v1::SetAttr::default()
        };
        let nothing = v1::SetAttr {
            ino: vnode.ino,
            ..v1::SetAttr::default()
        };
        if set == nothing || self.keep_back(caller, vnode, changes)? {
            return Ok(());
        }
        let asked = self.table.now();
        let deleted = {
            let state = vnode.state.lock();
            if let Some(mtime) = changes.mtime
                && let Some(object) = state.writing.as_ref().and_then(|w| w.object.as_ref())
            {
                object.set_mtime(mtime)?;
            }
            state.deleted
        };
        let answer = if deleted {
            Err(Errno::NOENT.into())
        } else {
            self.backend.one(caller, Op::SetAttr(set))
        };
        let attr = match answer.and_then(attr_of) {
            Ok(attr) => attr,
            // The file has no name any more but is open here: only this mount can see it.
            Err(error) if error.is(Errno::NOENT) && vnode.state.lock().opens > 0 => {
                changed_here(vnode.state.lock().attr, changes)
            }
            Err(error) => return Err(error),
        };
        let mut state = vnode.state.lock();
        if let Some(writing) = state.writing.as_mut()
            && changes.mtime.is_some()
        {
            writing.untouched = None;
        }
        self.adopt_change(&mut state, attr, asked);
        Ok(())
    }

    /// Applies attributes from the answer to a change that was requested at `asked`. If another change happened concurrently, such as a
    /// seal, the answer is incomplete: the mount then has to fetch the other attributes.
    pub(super) fn adopt_change(&self, state: &mut InodeState, attr: Attr, asked: u64) {
        if state.stamp > asked || attr.version < state.attr.version {
            let before = state.attr;
            state.attr.mode = attr.mode;
            state.attr.uid = attr.uid;
            state.attr.gid = attr.gid;
            state.attr.atime = attr.atime;
            state.attr.nlink = attr.nlink;
            state.attr.ctime = state.attr.ctime.max(attr.ctime);
            state.fresh = None;
            state.add_pending();
            state.check_kept(&before);
        } else {
            self.adopt(state, attr, asked);
        }
        state.stamp = self.table.tick();
    }

    /// Records that this mount changed the entries of a directory at `time`.
    pub(super) fn touched(&self, directory: u64, time: i64, subdirectories: i32) {
        if let Some(vnode) = self.table.get(directory) {
            let mut state = vnode.state.lock();
            state.stamp = self.table.tick();
            state.attr.mtime = state.attr.mtime.max(time);
            state.attr.ctime = state.attr.ctime.max(time);
            state.attr.nlink = state.attr.nlink.saturating_add_signed(subdirectories);
        }
    }

    pub(crate) fn readlink(
        &self,
        caller: Caller,
        ino: u64,
        pace: WaitPolicy,
    ) -> Result<Vec<u8>, Error> {
        let vnode = self.vnode(ino);
        let target = vnode.state.lock().target.clone();
        if !target.is_empty() {
            return Ok(target);
        }
        pace.wait()?;
        // Only entries contain the target: look the link up again by one of its names.
        let (parent, name) = self.table.name_of(ino).ok_or(Errno::STALE)?;
        match self
            .backend
            .one(caller, Op::Lookup(v1::Lookup { parent, name }))?
        {
            Answer::Entry(entry) => Ok(entry.target),
            _ => Err(ClientError::Answer("Lookup").into()),
        }
    }

    /// Creates a directory, link, special file, or an empty regular file that is not open.
    pub(crate) fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: &NewEntry,
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        check_change(parent, name, Errno::EXIST)?;
        pace.wait()?;
        let (ino, _) = self.backend.ids()?;
        let time = now_ns();
        let create = v1::Create {
            parent,
            name: name.to_vec(),
            kind: new.kind.into(),
            mode: new.mode,
            ino,
            rdev: new.rdev,
            target: new.target.clone(),
            uid: caller.uid,
            gid: caller.gid,
            time,
            ..v1::Create::default()
        };
        let change = self.table.begin(&[(parent, name)]);
        let asked = change.asked;
        let Answer::Entry(mut entry) = self.backend.one(caller, Op::Create(create))? else {
            return Err(ClientError::Answer("Create").into());
        };
        entry.target.clone_from(&new.target);
        self.touched(parent, time, i32::from(new.kind == Kind::Directory));
        if new.kind == Kind::Directory {
            self.table.made(ino, asked);
        }
        self.learn_made(parent, name, entry, change)
    }

    pub(crate) fn link(
        &self,
        caller: Caller,
        ino: u64,
        parent: u64,
        name: &[u8],
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        check_change(parent, name, Errno::EXIST)?;
        pace.wait()?;
        self.wait_published(caller, ino)?;
        let time = now_ns();
        let op = Op::Link(v1::Link {
            ino,
            parent,
            name: name.to_vec(),
            time,
        });
        let change = self.table.begin(&[(parent, name)]);
        let attr = self.backend.one(caller, op).and_then(attr_of)?;
        self.touched(parent, time, 0);
        let vnode = self.table.hold(ino);
        let mut state = vnode.state.lock();
        self.adopt_change(&mut state, attr, change.asked);
        let mut found = self.found(&vnode, &state);
        drop(state);
        found.entry = Some(ChangeSlot::of(parent, name));
        found.asked = change.settle(&[CachedName::Is(ino)]).unwrap_or(0);
        Ok(found)
    }

    /// Waits until versions that were closed on this mount are sealed, before their file gets another name, so that a client that finds the
    /// new name finds the written content. For a directory the call waits for all files below it. For a file that is still open, the call
    /// sends the attributes that the mount has not sent yet.
    fn wait_published(&self, caller: Caller, ino: u64) -> Result<(), Error> {
        // This mount knows all files that it is sealing.
        let Some(vnode) = self.table.get(ino) else {
            return Ok(());
        };
        if !is_dir(&vnode.state.lock().attr) {
            self.tell_pending(caller, &vnode)?;
            return self.wait_if_sealing(&vnode);
        }
        let sealing = |vnode: &CachedInode| vnode.state.lock().is_sealing();
        let below = |vnode: &CachedInode| self.table.may_be_below(vnode.ino, ino);
        for vnode in self.table.all() {
            if sealing(&vnode) && below(&vnode) {
                self.wait_if_sealing(&vnode)?;
            }
        }
        Ok(())
    }

    fn wait_if_sealing(&self, vnode: &CachedInode) -> Result<(), Error> {
        if vnode.state.lock().is_sealing() {
            self.wait_sealed(vnode)?;
        }
        Ok(())
    }

    pub(crate) fn unlink(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        directory: bool,
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        check_change(parent, name, Errno::PERM)?;
        pace.wait()?;
        let time = now_ns();
        let op = Op::Unlink(v1::Unlink {
            parent,
            name: name.to_vec(),
            directory,
            time,
        });
        let (before, _) = self.table.known(parent, name);
        let change = self.table.begin(&[(parent, name)]);
        let asked = change.asked;
        let answer = self.backend.one(caller, op)?;
        self.touched(parent, time, -i32::from(directory));
        change.settle(&[CachedName::Nothing]);
        if matches!(answer, Answer::Empty(_)) {
            self.done_before(&[before]);
            return Ok(());
        }
        let attr = attr_of(answer)?;
        self.changed_names(attr, asked);
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        how: Renaming,
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        check_change(from.0, from.1, Errno::PERM)?;
        check_change(to.0, to.1, Errno::PERM)?;
        pace.wait()?;
        self.wait_published(caller, self.inode_of(caller, from)?)?;
        if how.exchange {
            self.wait_published(caller, self.inode_of(caller, to)?)?;
        }
        let time = now_ns();
        let op = Op::Rename(v1::Rename {
            parent: from.0,
            name: from.1.to_vec(),
            new_parent: to.0,
            new_name: to.1.to_vec(),
            no_replace: how.no_replace,
            exchange: how.exchange,
            time,
        });
        let same = from == to;
        let names = [from, to];
        let before = names.map(|(parent, name)| self.table.known(parent, name).0);
        let change = self.table.begin(if same { &names[..1] } else { &names });
        let asked = change.asked;
        let answer = match self.backend.one(caller, op)? {
            Answer::Entries(answer) => answer,
            Answer::Empty(_) => {
                self.done_before(&before);
                return Ok(());
            }
            _ => return Err(ClientError::Answer("Rename").into()),
        };
        // The moved inode, and the inode that it replaced or was exchanged for, with their new attributes.
        let mut attrs = answer.entries.into_iter().filter_map(|entry| entry.attr);
        let moved = attrs.next().ok_or(ClientError::Answer("Rename"))?;
        let other = attrs.next();
        if other.is_some_and(|other| other.ino == moved.ino) || same {
            // Two names of one inode: rename changes nothing.
            change.settle(&[CachedName::Is(moved.ino); 2]);
            return Ok(());
        }
        let left = match other {
            Some(other) if how.exchange => CachedName::Is(other.ino),
            _ => CachedName::Nothing,
        };
        change.settle(&[left, CachedName::Is(moved.ino)]);
        let (came, went) = (
            i32::from(is_dir(&moved)),
            other.map_or(0, |a| i32::from(is_dir(&a))),
        );
        let back = if how.exchange { went } else { 0 };
        self.touched(from.0, time, back - came);
        self.touched(to.0, time, came - went);
        self.changed_names(moved, asked);
        if let Some(other) = other {
            self.changed_names(other, asked);
        }
        Ok(())
    }

    /// Returns the inode of a name, from the cache or else from the server.
    fn inode_of(&self, caller: Caller, (parent, name): (u64, &[u8])) -> Result<u64, Error> {
        if let (CachedName::Is(ino), _) = self.table.known(parent, name) {
            return Ok(ino);
        }
        let op = Op::Lookup(v1::Lookup {
            parent,
            name: name.to_vec(),
        });
        Ok(self.backend.one(caller, op).and_then(attr_of)?.ino)
    }

    /// Marks the attributes of an inode as outdated, because only the server knows them.
    fn outdate(&self, ino: u64) {
        if let Some(vnode) = self.table.get(ino) {
            let mut state = vnode.state.lock();
            state.stamp = self.table.tick();
            state.fresh = None;
        }
    }

    /// Records that the inode got or lost a name by a change that this mount requested at `asked`.
    fn changed_names(&self, attr: Attr, asked: u64) {
        let Some(vnode) = self.table.get(attr.ino) else {
            return;
        };
        {
            let mut state = vnode.state.lock();
            self.adopt_change(&mut state, attr, asked);
            state.deleted = attr.nlink == 0;
            if state.deleted {
                state.kept = None;
            }
        }
        self.table.drop_unused(attr.ino);
    }

    /// Handles a change that an earlier attempt made, whose answer was lost: the mount has to fetch the attributes of the inodes in
    /// `before`, or all attributes if it does not know the inodes.
    fn done_before(&self, before: &[CachedName]) {
        let known = before.iter().map(|known| match known {
            CachedName::Is(ino) => self
                .table
                .get(*ino)
                .map_or_else(Vec::new, |vnode| vec![vnode]),
            _ => self.table.all(),
        });
        for vnode in known.flatten() {
            let mut state = vnode.state.lock();
            state.stamp = self.table.tick();
            state.fresh = None;
        }
    }

    pub(crate) fn getxattr(
        &self,
        caller: Caller,
        ino: u64,
        name: &[u8],
        pace: WaitPolicy,
    ) -> Result<Vec<u8>, Error> {
        known_attribute(name, Errno::NODATA)?;
        pace.wait()?;
        if name.starts_with(b"user.tidemill.") {
            // The server knows these attributes only after the file is sealed.
            self.wait_sealed(&self.vnode(ino))?;
        }
        let op = Op::GetXattr(v1::GetXattr {
            ino,
            name: name.to_vec(),
        });
        match self.backend.one(caller, op)? {
            Answer::Bytes(bytes) => Ok(bytes.value),
            _ => Err(ClientError::Answer("GetXattr").into()),
        }
    }

    pub(crate) fn setxattr(
        &self,
        caller: Caller,
        ino: u64,
        name: &[u8],
        value: &[u8],
        (create, replace): (bool, bool),
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        known_attribute(name, Errno::OPNOTSUPP)?;
        pace.wait()?;
        self.tell_pending(caller, &self.vnode(ino))?;
        let op = Op::SetXattr(v1::SetXattr {
            ino,
            name: name.to_vec(),
            value: value.to_vec(),
            create,
            replace,
        });
        self.backend.one(caller, op)?;
        self.outdate(ino);
        Ok(())
    }

    /// Returns the names of a file's extended attributes, each ended by a zero byte.
    pub(crate) fn listxattr(
        &self,
        caller: Caller,
        ino: u64,
        pace: WaitPolicy,
    ) -> Result<Vec<u8>, Error> {
        pace.wait()?;
        match self
            .backend
            .one(caller, Op::ListXattr(v1::ListXattr { ino }))?
        {
            Answer::Names(list) => {
                let mut names = Vec::new();
                for name in list.names {
                    names.extend_from_slice(&name);
                    names.push(0);
                }
                Ok(names)
            }
            _ => Err(ClientError::Answer("ListXattr").into()),
        }
    }

    pub(crate) fn removexattr(
        &self,
        caller: Caller,
        ino: u64,
        name: &[u8],
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        known_attribute(name, Errno::NODATA)?;
        pace.wait()?;
        self.tell_pending(caller, &self.vnode(ino))?;
        let op = Op::RemoveXattr(v1::RemoveXattr {
            ino,
            name: name.to_vec(),
        });
        self.backend.one(caller, op)?;
        self.outdate(ino);
        Ok(())
    }

    pub(crate) fn statfs(
        &self,
        caller: Caller,
        pace: WaitPolicy,
    ) -> Result<v1::StatFsReply, Error> {
        pace.wait()?;
        match self.backend.one(caller, Op::StatFs(v1::StatFs {}))? {
            Answer::StatFs(reply) => Ok(reply),
            _ => Err(ClientError::Answer("StatFs").into()),
        }
    }

    /// Makes all acknowledged changes of names durable: they survive power loss.
    pub(crate) fn sync_names(&self, caller: Caller) -> Result<(), Error> {
        let op = Op::GetAttr(v1::GetAttr {
            ino: Inode::ROOT.0,
            content: false,
        });
        self.backend.apply(caller, vec![op], true).map(drop)
    }
}

/// Returns an error for attributes that users cannot set: access control lists and file capabilities do not exist, and the Linux kernel
/// asks for file capabilities at many writes.
fn known_attribute(name: &[u8], otherwise: Errno) -> Result<(), Error> {
    if name.starts_with(b"user.") || name.starts_with(b"trusted.") {
        Ok(())
    } else if name.starts_with(b"security.") {
        Err(otherwise.into())
    } else {
        Err(unsupported())
    }
}

/// Removes set-user-id and set-group-id at a change of owner or size, as local file systems do.
fn drop_privileges(changes: &mut AttributeChanges, attr: &Attr, caller: Caller) {
    let owner = changes.uid.is_some() || changes.gid.is_some();
    let truncated = changes.size.is_some() && caller.uid != 0;
    if attr.kind() != Kind::File || !(owner || truncated) || changes.mode.is_some() {
        return;
    }
    changes.mode = without_privileges(attr);
}

/// Returns the mode without set-user-id and set-group-id, if the mode has one of these bits.
fn without_privileges(attr: &Attr) -> Option<u32> {
    let mut mode = attr.mode & !SETUID;
    if mode & GROUP_EXECUTE != 0 {
        mode &= !SETGID;
    }
    (mode != attr.mode).then_some(mode)
}

/// Returns the attributes after a change that the server does not need to know.
fn changed_here(mut attr: Attr, changes: &AttributeChanges) -> Attr {
    attr.mode = changes.mode.unwrap_or(attr.mode);
    attr.uid = changes.uid.unwrap_or(attr.uid);
    attr.gid = changes.gid.unwrap_or(attr.gid);
    attr.atime = changes.atime.unwrap_or(attr.atime);
    attr.mtime = changes.mtime.unwrap_or(attr.mtime);
    attr.ctime = now_ns();
    attr
}
