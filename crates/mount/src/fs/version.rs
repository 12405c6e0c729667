//! Begins and ends versions of files, and opens the objects that hold them. The module asks the server through `backend` and writes object
//! files on this host. The module sends closed versions to the sealer (next: `mount/src/fs/seal.rs`).

use super::backend::attr_of;
use super::deadline;
use super::file::OpenHow;
use super::multi_writer::MultiWriter;
use super::object::{ObjectData, OpenObject};
use super::remote::{NodeObject, now_ns};
use super::right::Right;
use super::seal::{Ending, SealJob};
use super::table::{CachedInode, InodeKey, InodeState, VersionPhase, WrittenVersion};
use super::takeover::{UNSEALED_MODE, open_to_writers};
use super::{Caller, Fs, LookupResult, WaitPolicy};
use crate::error::Error;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidemill_client::{Error as ClientError, object_file};
use tidemill_model::id::ObjectId;
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

/// Maximum time for which an open for writing waits for another writer's seal.
pub(super) const WRITER_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the mount asks the server again for a busy file.
const WRITER_PAUSE: Duration = Duration::from_millis(20);
/// Maximum silence of a node that is chosen for a new file. After that time the mount asks the server for another node.
const PASS_OVER: Duration = Duration::from_secs(3);
/// Maximum silence of a node that was chosen a second time: the server is about to notice the failure.
const PASS_AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of openers that wait for busy files at once; others are refused. Each opener takes a thread, and other operations need
/// threads.
const BUSY_WAITERS_MAX: usize = 32;
/// Bytes copied at once from a version that is not on this host.
const COPY_BYTES: usize = 4 << 20;

/// Version that was begun and has no writer yet.
pub(super) struct BegunVersion {
    pub(super) object: Arc<OpenObject>,
    /// The mtime that the object got, in nanoseconds; `None` if a later comparison could not show whether the object was written to.
    untouched: Option<i64>,
    /// Object of the previous version, or of the version that other mounts write, too.
    base: u64,
    /// Object of the previous version that programs on this mount have open, if its file now belongs to the new version.
    taken: Option<Arc<OpenObject>>,
    /// Whether the cluster has other mounts.
    others: bool,
}

impl Fs {
    /// Returns the object that a reader of the file gets now: the version being written on this mount, or the sealed version.
    pub(super) fn reading_object(
        &self,
        caller: Caller,
        vnode: &CachedInode,
        pace: WaitPolicy,
    ) -> Result<Arc<OpenObject>, Error> {
        let mut tries = 3;
        loop {
            self.fetch(caller, vnode, pace)?;
            if vnode.state.lock().is_written_elsewhere() {
                pace.wait()?;
                self.ask_what_was_closed(caller, vnode)?;
            }
            let (id, place) = {
                let state = vnode.state.lock();
                if let Some(object) = state.written() {
                    return Ok(object.clone());
                }
                match state.attr.multi_writer {
                    0 => (state.attr.object, node_of(&state.attr)),
                    multi_writer => (multi_writer, None),
                }
            };
            match self.sealed_object(caller, vnode, (id, place), pace) {
                Ok(object) => return Ok(object),
                // Another version was sealed in the meantime, or the node moved.
                Err(error) if error.is(Errno::NOENT) && tries > 0 => {
                    pace.wait()?;
                    tries -= 1;
                    vnode.state.lock().fresh = None;
                    self.backend.forget_nodes();
                }
                Err(error) if error.is(Errno::NOENT) => return Err(Errno::IO.into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the open sealed object of the file, or opens the object.
    fn sealed_object(
        &self,
        caller: Caller,
        vnode: &CachedInode,
        (id, node): (u64, Option<u32>),
        pace: WaitPolicy,
    ) -> Result<Arc<OpenObject>, Error> {
        // The node may have sealed a replica of the object, so the object itself may still have a writer.
        let is_its_own =
            |object: &Arc<OpenObject>| !self.backend.hands_out() || !object.is_replaced();
        if let Some(object) = vnode.state.lock().open_object(id)
            && is_its_own(&object)
        {
            return Ok(object);
        }
        let asked = self.table.now();
        let object = Arc::new(self.open_sealed(caller, vnode.ino, id, node, pace)?);
        {
            let mut state = vnode.state.lock();
            if let Some(other) = state.open_object(id)
                && is_its_own(&other)
            {
                return Ok(other);
            }
            state.objects.push(Arc::downgrade(&object));
        }
        self.keep(vnode, &object, asked);
        Ok(object)
    }

    /// Asks the server for the object with the last closed content of a file that another client writes.
    fn ask_what_was_closed(&self, caller: Caller, vnode: &CachedInode) -> Result<(), Error> {
        let asked = self.table.now();
        let op = Op::GetAttr(v1::GetAttr {
            ino: vnode.ino,
            content: true,
        });
        let attr = attr_of(self.backend.one(caller, op)?)?;
        self.adopt(&mut vnode.state.lock(), attr, asked);
        Ok(())
    }

    fn open_sealed(
        &self,
        caller: Caller,
        ino: u64,
        id: u64,
        node: Option<u32>,
        pace: WaitPolicy,
    ) -> Result<OpenObject, Error> {
        let in_place = Right::none(ino, id);
        if id == 0 {
            return Ok(OpenObject::new(id, 0, ObjectData::Nothing, in_place));
        }
        let mut avoid = Vec::new();
        if let Some(node) = node
            && let Some(directory) = self.backend.directory(node, pace)?
        {
            match object_file::open(&object_path(&directory, id)) {
                Ok(file) => {
                    let data = ObjectData::Local(Arc::new(file));
                    return Ok(OpenObject::new(id, node, data, in_place));
                }
                // Another node may have a replica.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => avoid.push(node),
                Err(error) => return Err(error.into()),
            }
        }
        self.open_asked(caller, (ino, id), avoid, pace)
    }

    /// Opens an object for reading at the node that the server names.
    fn open_asked(
        &self,
        caller: Caller,
        (ino, id): (u64, u64),
        avoid: Vec<u32>,
        pace: WaitPolicy,
    ) -> Result<OpenObject, Error> {
        pace.wait()?;
        let missing = avoid.clone();
        let open = v1::Open {
            ino,
            version: 0,
            avoid,
            multi_writer: true,
            ..v1::Open::default()
        };
        let Answer::Opened(opened) = self.backend.one(caller, Op::Open(open))? else {
            return Err(ClientError::Answer("Open").into());
        };
        let right = Right::new(caller, &opened, opened.attr.map(|attr| attr.version));
        if opened.object == id
            && let Some(reported) = opened.multi_writer
        {
            let file = (opened.attr.map_or(0, |attr| attr.ino), caller);
            let seen = MultiWriter::new(self.backend.clone(), file, None, reported);
            let seen = seen.inspect_err(|_| self.backend.released(right.release()))?;
            return Ok(OpenObject::new(
                id,
                0,
                ObjectData::MultiWriter(Box::new(seen)),
                right,
            ));
        }
        if opened.object == id
            && let Some(layout) = &opened.layout
        {
            return self.open_striped(caller, (&opened, layout), right, pace);
        }
        let node = opened.node;
        if opened.object != id {
            self.backend.released(right.release());
            return Err(Errno::NOENT.into());
        }
        if missing.contains(&node) {
            // Intermediate results that tasks keep in memory have no path that this mount knows.
            let data = ObjectData::Remote(self.remote(&opened, right.clone()));
            let object = OpenObject::new(id, node, data, right.clone());
            return match object.read(0, 1) {
                Ok(_) => Ok(object),
                Err(_) => {
                    self.backend.released(right.release());
                    Err(Errno::NOENT.into())
                }
            };
        }
        let place = match self.backend.place(node, pace) {
            Ok(place) => place,
            Err(error) => {
                self.backend.released(right.release());
                return Err(error);
            }
        };
        let Some(directory) = &place.directory else {
            let remote = self.remote(&opened, right.clone());
            return Ok(OpenObject::new(id, node, ObjectData::Remote(remote), right));
        };
        let file = object_file::open(&object_path(directory, id));
        // An open file does not need the right that keeps its object alive.
        self.backend.released(right.release());
        let data = ObjectData::Local(Arc::new(file?));
        Ok(OpenObject::new(id, node, data, Right::none(ino, id)))
    }

    fn remote(&self, opened: &v1::Opened, right: Arc<Right>) -> NodeObject {
        NodeObject::new(self.backend.clone(), opened.node, right, opened.size)
    }

    /// Creates the empty object for a version that is about to be written.
    pub(super) fn writable(
        &self,
        caller: Caller,
        opened: &v1::Opened,
    ) -> Result<OpenObject, Error> {
        self.writable_from(caller, opened, None)
    }

    /// Creates the part that this mount writes of a version that other mounts write, too.
    fn writable_multi_writer(
        &self,
        caller: Caller,
        opened: &v1::Opened,
        reported: v1::MultiWriter,
    ) -> Result<OpenObject, Error> {
        let part = Arc::new(self.writable(caller, opened)?);
        let (right, node) = (part.right.clone(), part.node);
        let file = (opened.attr.map_or(0, |attr| attr.ino), caller);
        let multi_writer = MultiWriter::new(self.backend.clone(), file, Some(part), reported)?;
        let data = ObjectData::MultiWriter(Box::new(multi_writer));
        Ok(OpenObject::new(opened.object, node, data, right))
    }

    /// Creates the object for a version that is about to be written. The object begins with the given number of bytes of the previous
    /// version, and exists only after it has all of these bytes. So if this mount ends too early, no incomplete version exists.
    fn writable_from(
        &self,
        caller: Caller,
        opened: &v1::Opened,
        begin: Option<(&v1::Attr, u64)>,
    ) -> Result<OpenObject, Error> {
        let right = Right::new(caller, opened, None);
        if let Some(layout) = &opened.layout {
            return self.writable_striped(caller, (opened, layout), right, begin);
        }
        let place = self.backend.place(opened.node, WaitPolicy::MayWait)?;
        let object = |data| OpenObject::new(opened.object, opened.node, data, right.clone());
        let Some(directory) = &place.directory else {
            let remote = self.remote(opened, right.clone());
            let object = self.begin_remote(caller, object(ObjectData::Remote(remote)), begin)?;
            return Ok(match opened.size_max {
                Some(_) => self.begin_bounded(caller, object, opened, false),
                None => object,
            });
        };
        let path = object_path(directory, opened.object);
        let nameless = begin.and_then(|_| object_file::nameless(&path, UNSEALED_MODE));
        let named = nameless.is_none();
        let file = nameless.map_or_else(|| make_object_file(&path), Ok)?;
        // On a device without locks, no other process can take files over.
        let _ = object_file::hold(&file);
        if place.owner.is_some() {
            open_to_writers(&file, place.owner)?;
        }
        let file = Arc::new(file);
        let mut object = object(ObjectData::Local(file.clone()));
        if let Some((base, bytes)) = begin {
            self.copy_base(caller, base, bytes, &object)?;
        }
        if !named {
            object_file::name(&file, &path)?;
        }
        if place.memory || opened.size_max.is_some() {
            return Ok(self.begin_bounded(caller, object, opened, place.counts_space));
        }
        if self.backend.hands_out() {
            object.let_go()?;
        }
        Ok(object)
    }

    /// Prepares an object on another host for a new version: empty, or with the content of the previous version.
    fn begin_remote(
        &self,
        caller: Caller,
        object: OpenObject,
        begin: Option<(&v1::Attr, u64)>,
    ) -> Result<OpenObject, Error> {
        let Some((base, bytes)) = begin else {
            // The object has to exist even if nothing is ever written.
            object.truncate(0)?;
            return Ok(object);
        };
        let before = self.base_object(caller, base)?;
        if before.node == object.node && !base.parts {
            return Ok(object.begin_as(before, bytes, base.mtime));
        }
        object.truncate(0)?;
        self.copy_base(caller, base, bytes, &object)?;
        Ok(object)
    }

    /// Creates a file and opens its first version for writing. The new inode is bound to its object.
    pub(super) fn create_open(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<(Arc<CachedInode>, LookupResult), Error> {
        let time = now_ns();
        let here = self.backend.here();
        let create = |ino, object| {
            Op::Create(v1::Create {
                parent,
                name: name.to_vec(),
                kind: Kind::File.into(),
                mode,
                ino,
                object,
                uid: caller.uid,
                gid: caller.gid,
                time,
                here: here.clone(),
                ..v1::Create::default()
            })
        };
        let change = self.table.begin(&[(parent, name)]);
        let ask = |op: &Op| self.ask_placed(caller, op);
        let make = |opened: &v1::Opened| self.writable(caller, opened);
        let (opened, object) = self.begin_somewhere(caller, create, ask, make)?;
        let (ino, object) = (opened.attr.map_or(0, |attr| attr.ino), Arc::new(object));
        let vnode = self.vnode(ino);
        {
            let mut state = vnode.state.lock();
            state.writing = Some(WrittenVersion::open(object.clone(), 1, None));
            state.objects.push(Arc::downgrade(&object));
            // If the kernel writes the file by itself, this mount cannot report those writes to other mounts.
            state.bind_new(object.clone(), self.way(&object, opened.others));
        }
        self.touched(parent, time, 0);
        // This mount is the writer and knows the content. `writing` only marks a file that another client is about to change.
        let attr = opened.attr.map(|attr| v1::Attr {
            writing: false,
            ..attr
        });
        let entry = v1::Entry {
            attr,
            ..v1::Entry::default()
        };
        let found = self.learn_made(parent, name, entry, change)?;
        Ok((vnode, found))
    }

    /// Begins a version by an operation with new ids. If the chosen node does not answer, the function repeats the operation with new ids:
    /// the server then chooses another node, unless the directory's settings name the node. No byte has been written before.
    fn begin_somewhere<T>(
        &self,
        caller: Caller,
        begin: impl Fn(u64, u64) -> Op,
        ask: impl Fn(&Op) -> Result<v1::Opened, Error>,
        make: impl Fn(&v1::Opened) -> Result<T, Error>,
    ) -> Result<(v1::Opened, T), Error> {
        let deadline = deadline::deadline();
        let mut limit = PASS_OVER;
        loop {
            let (ino, object) = self.backend.ids()?;
            let op = begin(ino, object);
            let opened = ask(&op)?;
            let error = match deadline::at_most(limit, || make(&opened)) {
                Ok(made) => return Ok((opened, made)),
                Err(error) => error,
            };
            self.backend.undo_now(caller, &op)?;
            if !error.is(Errno::HOSTUNREACH) || deadline::now() >= deadline {
                return Err(error);
            }
            let node = opened.node;
            tracing::info!(node, "a new version is placed on another node: {error}");
            limit = PASS_AGAIN;
        }
    }

    /// Asks the server to create a file.
    fn ask_placed(&self, caller: Caller, op: &Op) -> Result<v1::Opened, Error> {
        match self.backend.one_placed(caller, op)? {
            Answer::Opened(opened) => Ok(opened),
            _ => Err(ClientError::Answer("Create").into()),
        }
    }

    /// Abandons a version that was begun and has no bytes.
    fn drop_version(&self, caller: Caller, ino: u64, object: u64) {
        let new = v1::NewVersion {
            ino,
            object,
            ..v1::NewVersion::default()
        };
        self.backend.undo(caller, &Op::NewVersion(new));
    }

    /// Opens a file for writing: joins the version being written on this mount or begins a version. If another mount writes the file and
    /// shares its locks, the version begins with the first write. Returns whether the first write has to truncate the file.
    pub(super) fn bind_writer(
        &self,
        caller: Caller,
        key: InodeKey,
        vnode: &CachedInode,
        how: OpenHow,
        pace: WaitPolicy,
    ) -> Result<bool, Error> {
        let truncate = how.truncate;
        let (until, at_once) = (deadline::now() + WRITER_PATIENCE, deadline::now());
        {
            // A truncation excludes that the version is published to other mounts at the same time.
            let turn = truncate.then(|| Self::write_turn(vnode, pace));
            let _turn = turn.transpose()?;
            if self.join(&mut vnode.state.lock(), key, vnode, truncate, until, pace)? {
                if truncate {
                    self.forget_aliases_soon(vnode, key.alias);
                }
                return Ok(false);
            }
        }
        let keep = if truncate { 0 } else { u64::MAX };
        let begun = if self.readers_can_follow(vnode) {
            self.begin(caller, vnode, keep, true, (until, at_once))
        } else {
            Err(Errno::STALE.into())
        };
        let mut state = vnode.state.lock();
        vnode.changed.notify_all();
        let begun = match begun {
            Err(error) if error.is(Errno::BUSY) => {
                state.begin_failed(&error);
                drop(state);
                self.bind_idle(caller, key, vnode)?;
                return Ok(truncate);
            }
            begun => begun.inspect_err(|error| state.begin_failed(error))?,
        };
        let idle = state.idle_writers > 0;
        state.begin(&begun, 1);
        if idle {
            drop(state);
            self.follow(vnode, &begun.object);
            state = vnode.state.lock();
        }
        let shared = begun.others || state.attr.locked;
        let way = self.way(&begun.object, shared);
        if let Err(error) = state.bind(key, &begun.object, way) {
            // The version before is open here in a way that does not allow this version: the kernel opens the file again with the next
            // alias. Writers without a version stay without a version.
            let others = state
                .writing
                .as_mut()
                .map_or(0, |w| w.writers.saturating_sub(1));
            self.end_writing(caller, vnode, &mut state, Some(Ending::Abandon));
            state.idle_writers += others;
            return Err(error);
        }
        drop(state);
        if truncate {
            self.forget_aliases_soon(vnode, key.alias);
        }
        Ok(false)
    }

    /// Joins the version that is being written on this mount. Returns whether such a version exists. If none exists, the inode's state is
    /// set to a starting version, which the caller has to begin.
    fn join(
        &self,
        state: &mut parking_lot::MutexGuard<'_, InodeState>,
        key: InodeKey,
        vnode: &CachedInode,
        truncate: bool,
        until: Instant,
        pace: WaitPolicy,
    ) -> Result<bool, Error> {
        let deadline = deadline::deadline();
        loop {
            if key.alias != state.alias {
                return Err(Errno::STALE.into());
            }
            let current = state.writing.as_ref().map(|w| (w.phase, w.object.clone()));
            match current {
                Some((VersionPhase::Open, Some(object))) => {
                    if truncate && object.waits() {
                        pace.wait()?;
                    }
                    state.bind(key, &object, self.way(&object, false))?;
                    if let Some(writing) = state.writing.as_mut() {
                        writing.writers += 1;
                    }
                    if truncate {
                        // The handle counts as a writer, so the object stays open. No other operation may have to wait for the state.
                        let cut = || object.truncate(0);
                        let cut = parking_lot::MutexGuard::unlocked(state, cut);
                        if let Err(error) = cut {
                            self.undo_join(vnode, state, key.alias);
                            return Err(error);
                        }
                    }
                    return Ok(true);
                }
                Some((VersionPhase::Busy, _)) => {
                    pace.wait()?;
                    self.wait_busy(vnode, state, until)?;
                }
                Some(_) => {
                    pace.wait()?;
                    self.sealer.hurry();
                    if deadline::wait(&vnode.changed, state, deadline) {
                        return Err(self.sealer.errno(vnode.ino).into());
                    }
                }
                None => {
                    pace.wait()?;
                    state.writing = Some(WrittenVersion::starting());
                    return Ok(false);
                }
            }
        }
    }

    /// Undoes the join of a handle to a version.
    fn undo_join(&self, vnode: &CachedInode, state: &mut InodeState, alias: u16) {
        state.unbind(alias);
        let Some(writing) = state.writing.as_mut() else {
            return;
        };
        writing.writers = writing.writers.saturating_sub(1);
        if writing.writers == 0 && writing.phase == VersionPhase::Open {
            self.end_writing(Caller::default(), vnode, state, None);
        }
    }

    /// Waits until this mount may write a file that another client writes, or until the time `until`.
    fn wait_busy(
        &self,
        vnode: &CachedInode,
        state: &mut parking_lot::MutexGuard<'_, InodeState>,
        until: Instant,
    ) -> Result<(), Error> {
        let waiting = self.busy_waiters.fetch_add(1, Ordering::Relaxed);
        let over = waiting >= BUSY_WAITERS_MAX || deadline::wait(&vnode.changed, state, until);
        self.busy_waiters.fetch_sub(1, Ordering::Relaxed);
        if over {
            return Err(Errno::TXTBSY.into());
        }
        Ok(())
    }

    /// Begins a version with up to `keep` bytes of the previous version. If the bytes `follow`, programs that have the previous version
    /// open on this mount continue with the new version, as [`InodeState::begin`] records. The call waits for another writer until the
    /// first of the two times, and until the second time if the other writer shares the file's locks.
    pub(super) fn begin(
        &self,
        caller: Caller,
        vnode: &CachedInode,
        keep: u64,
        follow: bool,
        until: (Instant, Instant),
    ) -> Result<BegunVersion, Error> {
        self.fetch(caller, vnode, WaitPolicy::MayWait)?;
        let attr = vnode.state.lock().attr;
        let reader = vnode.state.lock().bound_now().filter(|_| follow);
        let stays = (keep > 0 || reader.is_some()) && attr.object != 0 && !attr.parts;
        let here = self.backend.here();
        let new = |_, object| {
            Op::NewVersion(v1::NewVersion {
                ino: vnode.ino,
                object,
                node: stays.then_some(attr.node),
                near: self.backend.near(),
                here: here.clone(),
                bytes: keep.min(attr.size),
                ..v1::NewVersion::default()
            })
        };
        let ask = |op: &Op| self.ask_version(caller, vnode, op, until);
        let make = |opened: &v1::Opened| {
            // The answer is newer than the cached attributes: another client may have sealed a version in the meantime.
            let base = opened.attr.unwrap_or(attr);
            self.begin_from(caller, opened, &base, keep, reader.clone())
        };
        let (_, begun) = self.begin_somewhere(caller, new, ask, make)?;
        Ok(begun)
    }

    fn begin_from(
        &self,
        caller: Caller,
        opened: &v1::Opened,
        base: &v1::Attr,
        keep: u64,
        reader: Option<(Arc<OpenObject>, bool)>,
    ) -> Result<BegunVersion, Error> {
        if let Some(reported) = opened.multi_writer.clone() {
            let version = reported.version;
            let object = self.writable_multi_writer(caller, opened, reported)?;
            if keep == 0 {
                object.truncate(0)?;
            }
            return Ok(BegunVersion {
                object: Arc::new(object),
                untouched: None,
                base: version,
                taken: None,
                others: true,
            });
        }
        let kept = if base.object == 0 {
            0
        } else {
            keep.min(base.size)
        };
        let begin = (kept > 0).then_some((base, kept));
        let mut object = self.writable_from(caller, opened, begin)?;
        let reader = reader.filter(|(reader, direct)| *direct && reader.id == base.object);
        let mut taken = None;
        if let Some((reader, _)) = reader
            && let Some(same) = self.take_over(&object, kept, &reader)?
        {
            object = same;
            taken = Some(reader);
        }
        let mut untouched = None;
        if keep >= base.size && base.object != 0 {
            object.set_mtime(base.mtime)?;
            untouched = Some(base.mtime).filter(|&mtime| object.tells_writes(mtime));
        }
        Ok(BegunVersion {
            object: Arc::new(object),
            untouched,
            base: base.object,
            taken,
            others: opened.others,
        })
    }

    /// Asks the server for the right to write a version, and waits for another writer that may be about to finish. Other openers of the
    /// same file wait for the outcome of this call.
    fn ask_version(
        &self,
        caller: Caller,
        vnode: &CachedInode,
        op: &Op,
        (until, until_shared): (Instant, Instant),
    ) -> Result<v1::Opened, Error> {
        let left = |until: Instant| deadline::now() < until.min(deadline::deadline());
        let note = |phase| {
            if let Some(writing) = vnode.state.lock().writing.as_mut() {
                writing.phase = phase;
            }
            vnode.changed.notify_all();
        };
        let mut busy = false;
        loop {
            match self.backend.one_placed(caller, op) {
                Ok(Answer::Opened(opened)) => {
                    if busy {
                        note(VersionPhase::Starting);
                    }
                    return Ok(opened);
                }
                Ok(_) => return Err(ClientError::Answer("NewVersion").into()),
                Err(error)
                    if error.is(Errno::TXTBSY) && left(until)
                        || error.is(Errno::BUSY) && left(until_shared) =>
                {
                    if !std::mem::replace(&mut busy, true) {
                        note(VersionPhase::Busy);
                    }
                    std::thread::sleep(WRITER_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn base_object(&self, caller: Caller, base: &v1::Attr) -> Result<Arc<OpenObject>, Error> {
        let (vnode, object) = (self.vnode(base.ino), (base.object, node_of(base)));
        self.sealed_object(caller, &vnode, object, WaitPolicy::MayWait)
    }

    pub(super) fn copy_base(
        &self,
        caller: Caller,
        base: &v1::Attr,
        bytes: u64,
        to: &OpenObject,
    ) -> Result<(), Error> {
        if bytes == 0 || base.object == 0 {
            return Ok(());
        }
        let from = self.base_object(caller, base)?;
        match to.copy_data(&from, 0, bytes) {
            Err(error) if error.is(Errno::OPNOTSUPP) || error.is(Errno::XDEV) => {}
            other => return other,
        }
        let mut copied = 0;
        while copied < bytes {
            let piece = usize::try_from(bytes - copied)
                .unwrap_or(COPY_BYTES)
                .min(COPY_BYTES);
            let data = from.read(copied, piece)?;
            if data.is_empty() {
                return Err(Errno::IO.into());
            }
            to.write(copied, &data)?;
            copied += data.len() as u64;
        }
        Ok(())
    }

    /// Sets the size of the version being written, or, without such a version, of a new version that is sealed at once.
    pub(super) fn set_size(
        &self,
        caller: Caller,
        key: InodeKey,
        vnode: &Arc<CachedInode>,
        size: u64,
    ) -> Result<(), Error> {
        let until = deadline::now() + WRITER_PATIENCE;
        let turn = Self::write_turn(vnode, WaitPolicy::MayWait)?;
        {
            let mut state = vnode.state.lock();
            let deadline = deadline::deadline();
            loop {
                if key.alias != state.alias && !state.bound.contains_key(&key.alias) {
                    return Err(Errno::STALE.into());
                }
                match state.writing.as_ref().map(|w| (w.phase, w.object.clone())) {
                    Some((VersionPhase::Open, Some(object))) => {
                        return self.truncate_open(caller, vnode, &mut state, &object, size);
                    }
                    Some((VersionPhase::Busy, _)) => self.wait_busy(vnode, &mut state, until)?,
                    Some(_) => {
                        self.sealer.hurry();
                        if deadline::wait(&vnode.changed, &mut state, deadline) {
                            return Err(self.sealer.errno(vnode.ino).into());
                        }
                    }
                    None => break,
                }
            }
            state.writing = Some(WrittenVersion::starting());
        }
        let follow = self.readers_can_follow(vnode);
        let begun = self
            .begin(caller, vnode, size, follow, (until, until))
            .and_then(|begun| {
                let set = begun.object.truncate(size);
                let set = set.and_then(|()| begun.object.set_mtime(now_ns()));
                set.inspect_err(|_| self.drop_version(caller, vnode.ino, begun.object.id))?;
                Ok(BegunVersion {
                    untouched: None,
                    ..begun
                })
            });
        let mut state = vnode.state.lock();
        vnode.changed.notify_all();
        let begun = begun.inspect_err(|error| state.begin_failed(error))?;
        state.begin(&begun, 0);
        if state.writing.as_ref().is_some_and(|w| w.writers == 0) {
            self.end_writing(caller, vnode, &mut state, None);
            return Ok(());
        }
        drop(state);
        drop(turn);
        self.follow(vnode, &begun.object);
        self.forget_aliases_soon(vnode, key.alias);
        Ok(())
    }

    /// Sets the size of the version being written. The caller counts as a writer, so the version stays open, and the state is unlocked
    /// during the truncation.
    fn truncate_open(
        &self,
        caller: Caller,
        vnode: &Arc<CachedInode>,
        state: &mut parking_lot::MutexGuard<'_, InodeState>,
        object: &OpenObject,
        size: u64,
    ) -> Result<(), Error> {
        if let Some(writing) = state.writing.as_mut() {
            writing.writers += 1;
        }
        let cut = || object.truncate(size);
        let outcome = parking_lot::MutexGuard::unlocked(state, cut);
        self.left(caller, vnode, state, true);
        outcome
    }

    pub(super) fn close_handle(
        &self,
        caller: Caller,
        vnode: &Arc<CachedInode>,
        alias: u16,
        write: bool,
    ) {
        let mut state = vnode.state.lock();
        state.unbind(alias);
        state.rest();
        self.left(caller, vnode, &mut state, write);
    }

    /// Records that a handle no longer has the file open. `write` is whether the handle could write.
    pub(super) fn left(
        &self,
        caller: Caller,
        vnode: &Arc<CachedInode>,
        state: &mut InodeState,
        write: bool,
    ) {
        let deleted = state.deleted;
        let read = state
            .written()
            .is_some_and(|object| state.bound.values().any(|b| b.object.id == object.id));
        let open = state
            .writing
            .as_mut()
            .filter(|w| w.phase == VersionPhase::Open);
        let Some(writing) = open else {
            state.idle_writers = state.idle_writers.saturating_sub(u32::from(write));
            return;
        };
        writing.writers = writing.writers.saturating_sub(u32::from(write));
        // A version that will never have a name exists as long as a program here has it open.
        if writing.writers > 0 || (deleted && read) {
            return;
        }
        let object = writing.object.clone().filter(|object| object.waits());
        self.end_writing(caller, vnode, state, None);
        if let Some(object) = object.filter(|_| read) {
            self.hold_after_seal(caller, vnode.clone(), object.id);
        }
    }

    /// Reports to the server, after the seal of a version, that programs on this mount read the version. Its node then keeps the version
    /// until they close it, even if a newer version exists.
    pub(super) fn hold_after_seal(&self, caller: Caller, vnode: Arc<CachedInode>, object: u64) {
        let backend = self.backend.clone();
        self.backend.runtime.spawn_blocking(move || {
            let mut state = vnode.state.lock();
            while state.written().is_some_and(|written| written.id == object) {
                if vnode
                    .changed
                    .wait_for(&mut state, deadline::PATIENCE)
                    .timed_out()
                {
                    return;
                }
            }
            drop(state);
            let ino = vnode.ino;
            let open = v1::Open {
                ino,
                ..v1::Open::default()
            };
            match backend.one(caller, Op::Open(open)) {
                // The file was closed in the meantime, and no other code would release the right.
                Ok(Answer::Opened(v1::Opened { object, .. }))
                    if vnode.state.lock().open_object(object).is_none() =>
                {
                    backend.released(v1::Release { ino, object });
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(ino, "programs that read may lose their version: {error}")
                }
            }
        });
    }

    /// Ends a version after its last close: seals the version, or abandons a version that changed nothing.
    pub(super) fn end_writing(
        &self,
        caller: Caller,
        vnode: &CachedInode,
        state: &mut InodeState,
        ending: Option<Ending>,
    ) {
        let deleted = state.deleted;
        let Some(writing) = state.writing.as_mut() else {
            return;
        };
        let Some(object) = writing.object.clone() else {
            return;
        };
        writing.phase = VersionPhase::Sealing;
        let readers: Vec<_> = state
            .bound
            .values_mut()
            .filter(|bound| bound.object.id == object.id)
            .collect();
        let unchanged = if let Some(before) = object.begun_as() {
            for reader in readers {
                reader.object = before.clone();
            }
            true
        } else {
            // Programs that read the file of the new version continue to read it.
            readers.is_empty()
                && writing.untouched.is_some_and(|mtime| {
                    object
                        .stat()
                        .is_ok_and(|stat| stat.mtime == mtime && stat.size == state.attr.size)
                })
        };
        let ending = match ending {
            Some(ending) => ending,
            None if deleted || unchanged => Ending::Abandon,
            None => Ending::Seal,
        };
        writing.abandoned = unchanged && ending == Ending::Abandon;
        let pending = writing.pending;
        self.sealer.submit(SealJob {
            ino: vnode.ino,
            object,
            caller,
            ending,
            attr: state.attr,
            pending,
        });
    }

    /// Ends all versions that are still being written, in their current state. Programs that continue to write change bytes that no longer
    /// belong to the object.
    pub(crate) fn close_all(&self) {
        for vnode in self.table.all() {
            let mut state = vnode.state.lock();
            let open = state
                .writing
                .as_ref()
                .filter(|w| w.phase == VersionPhase::Open);
            let Some(object) = open.and_then(|w| w.object.clone()) else {
                continue;
            };
            if let Err(error) = self.part_from_writers(&object) {
                tracing::error!(
                    ino = vnode.ino,
                    "a file still being written can't be sealed: {error}"
                );
                continue;
            }
            self.end_writing(Caller::default(), &vnode, &mut state, None);
        }
    }

    /// Copies the object to a separate file, if the Linux kernel may still write to the current file.
    fn part_from_writers(&self, object: &OpenObject) -> Result<(), Error> {
        if object.local().is_none() {
            return Ok(());
        }
        let place = self.backend.place(object.node, WaitPolicy::MayWait)?;
        let directory = place.directory.ok_or(Errno::HOSTUNREACH)?;
        let path = object_path(&directory, object.id);
        let parted = path.with_extension("parted");
        let copy = make_object_file(&parted)?;
        open_to_writers(&copy, place.owner)?;
        let stat = object.stat()?;
        let copy = ObjectData::Local(Arc::new(copy));
        let target = OpenObject::new(object.id, object.node, copy, object.right.clone());
        target.copy_data(object, 0, stat.size)?;
        target.set_mtime(stat.mtime)?;
        Ok(std::fs::rename(parted, path)?)
    }

    /// Waits until a version that was closed on this mount is sealed.
    pub(super) fn wait_sealed(&self, vnode: &CachedInode) -> Result<(), Error> {
        let deadline = deadline::deadline();
        let mut state = vnode.state.lock();
        while state
            .writing
            .as_ref()
            .is_some_and(|w| w.phase == VersionPhase::Sealing)
        {
            self.sealer.hurry();
            if deadline::wait(&vnode.changed, &mut state, deadline) {
                return Err(self.sealer.errno(vnode.ino).into());
            }
        }
        Ok(())
    }
}

impl InodeState {
    /// Records that no version could be begun. If handles of the previous version are the reason, they keep their version.
    pub(super) fn begin_failed(&mut self, error: &Error) {
        self.writing = None;
        if error.is(Errno::STALE) {
            self.next_alias();
            // The file of those handles may no longer be the one at the version's path.
            self.objects.clear();
        }
    }

    /// Marks the version as being written by `writers` handles. Handles of the previous version now have the new version open.
    pub(super) fn begin(&mut self, begun: &BegunVersion, writers: u32) {
        let writers = writers + std::mem::take(&mut self.idle_writers);
        for bound in self.bound.values_mut() {
            let follows = match &begun.taken {
                Some(taken) => Arc::ptr_eq(taken, &bound.object),
                None => !bound.is_direct() && bound.object.version() == begun.base,
            };
            if follows {
                bound.object = begun.object.clone();
            }
        }
        if begun.taken.is_some() {
            // The file of that object belongs to the new version.
            self.objects.retain(|weak| {
                let object = weak.upgrade();
                object.is_some_and(|object| object.id != begun.base)
            });
        }
        self.objects.push(Arc::downgrade(&begun.object));
        if let Some(multi_writer) = begun.object.multi_writer() {
            // This mount does not know which writes others published before the version was in the table.
            multi_writer.mark_stale();
        }
        self.writing = Some(WrittenVersion::open(
            begun.object.clone(),
            writers,
            begun.untouched,
        ));
    }
}

/// Returns the node that stores all of a file's version; `None` if the version is spread over several nodes.
fn node_of(attr: &v1::Attr) -> Option<u32> {
    (!attr.parts).then_some(attr.node)
}

/// Returns the path at which a node stores an object.
pub(super) fn object_path(directory: &Path, object: u64) -> PathBuf {
    directory.join(ObjectId(object).relative_path())
}

/// Creates an object file, and the directory of its lowest byte if that directory does not exist yet.
pub(super) fn make_object_file(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(UNSEALED_MODE)
        .custom_flags(libc::O_NOFOLLOW);
    match options.open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                let mut builder = std::fs::DirBuilder::new();
                builder.recursive(true).mode(0o700).create(parent)?;
            }
            Ok(options.open(path)?)
        }
        other => Ok(other?),
    }
}
