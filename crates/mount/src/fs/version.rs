//! Beginning and ending versions of files, and opening the objects that hold them.

use super::backend::attr_of;
use super::object::{Data, Object};
use super::remote::{Remote, now_ns};
use super::right::Right;
use super::seal::{Ending, Job};
use super::table::{Bound, Key, Node, Phase, State, Writing};
use super::{Caller, Found, Fs, Pace};
use crate::error::Error;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_core::id::ObjectId;
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

/// How long an open for writing waits for another writer's seal.
const WRITER_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a busy file is asked for again.
const WRITER_PAUSE: Duration = Duration::from_millis(20);
/// How long an operation waits for a seal of this mount.
const SEAL_PATIENCE: Duration = Duration::from_secs(60);
/// Bytes copied at once from a version that is not on this host.
const COPY_BYTES: usize = 4 << 20;
/// An mtime younger than this can't tell whether a copy was written to: clocks of file systems are coarse.
const MTIME_GRAIN_NS: i64 = 1_000_000_000;
/// Mode of an object file before its seal.
const UNSEALED_MODE: u32 = 0o600;

impl Fs {
    /// The object that a reader of the file gets now: the one being written here, or the sealed one.
    pub(super) fn reading_object(
        &self,
        caller: Caller,
        node: &Node,
        pace: Pace,
    ) -> Result<Arc<Object>, Error> {
        let mut tries = 3;
        loop {
            self.fetch(caller, node, pace)?;
            if node.state.lock().is_written_elsewhere() {
                pace.wait()?;
                self.ask_what_was_closed(caller, node)?;
            }
            let (id, element) = {
                let mut state = node.state.lock();
                if let Some(object) = state.writing.as_ref().and_then(|w| w.object.clone()) {
                    return Ok(object);
                }
                let id = state.attr.object;
                if let Some(object) = state.open_object(id) {
                    return Ok(object);
                }
                (id, state.attr.element)
            };
            match self.open_sealed(caller, node.ino, id, element, pace) {
                Ok(object) => {
                    let object = Arc::new(object);
                    let mut state = node.state.lock();
                    if let Some(other) = state.open_object(id) {
                        return Ok(other);
                    }
                    state.objects.push(Arc::downgrade(&object));
                    return Ok(object);
                }
                // Another version was sealed meanwhile, or the element moved.
                Err(error) if error.is(Errno::NOENT) && tries > 0 => {
                    pace.wait()?;
                    tries -= 1;
                    node.state.lock().fresh = None;
                    self.backend.forget_elements();
                }
                Err(error) if error.is(Errno::NOENT) => return Err(Errno::IO.into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks for a file that somebody else writes: which object has what was closed last.
    fn ask_what_was_closed(&self, caller: Caller, node: &Node) -> Result<(), Error> {
        let asked = self.table.now();
        let op = Op::GetAttr(v1::GetAttr {
            ino: node.ino,
            content: true,
        });
        let attr = attr_of(self.backend.one(caller, op)?)?;
        self.adopt(&mut node.state.lock(), attr, asked);
        Ok(())
    }

    fn open_sealed(
        &self,
        caller: Caller,
        ino: u64,
        id: u64,
        element: u32,
        pace: Pace,
    ) -> Result<Object, Error> {
        let in_place = Right::none(ino, id);
        let (data, right) = if id == 0 {
            (Data::Nothing, in_place)
        } else {
            let place = self.backend.place(element, pace)?;
            match &place.folder {
                Some(folder) => {
                    let file = File::open(folder.join(ObjectId(id).relative_path()))?;
                    (Data::Local(Arc::new(file)), in_place)
                }
                None => self.open_remote(caller, ino, id, pace)?,
            }
        };
        Ok(Object {
            id,
            element,
            data,
            right,
        })
    }

    fn open_remote(
        &self,
        caller: Caller,
        ino: u64,
        id: u64,
        pace: Pace,
    ) -> Result<(Data, Arc<Right>), Error> {
        pace.wait()?;
        let op = Op::Open(v1::Open { ino, version: 0 });
        let Answer::Opened(opened) = self.backend.one(caller, op)? else {
            return Err(ClientError::Answer("Open").into());
        };
        if opened.object != id {
            return Err(Errno::NOENT.into());
        }
        let right = Right::new(caller, &opened, opened.attr.map(|attr| attr.version));
        Ok((self.remote(&opened, right.clone()), right))
    }

    fn remote(&self, opened: &v1::Opened, right: Arc<Right>) -> Data {
        Data::Remote(Remote::new(
            self.backend.clone(),
            opened.element,
            right,
            opened.size,
        ))
    }

    /// The object that a version is written to, empty.
    fn writable(&self, caller: Caller, opened: &v1::Opened) -> Result<Object, Error> {
        let right = Right::new(caller, opened, None);
        let place = self.backend.place(opened.element, Pace::MayWait)?;
        let data = match &place.folder {
            Some(folder) => {
                let path = folder.join(ObjectId(opened.object).relative_path());
                let file = make_object_file(&path)?;
                if let Some((uid, gid)) = place.owner {
                    std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
                }
                Data::Local(Arc::new(file))
            }
            None => {
                let data = self.remote(opened, right.clone());
                if let Data::Remote(remote) = &data {
                    // The object has to exist even if nothing is ever written.
                    remote.truncate(0)?;
                }
                data
            }
        };
        Ok(Object {
            id: opened.object,
            element: opened.element,
            data,
            right,
        })
    }

    /// Makes a file and opens its first version for writing. The new node is bound to its object.
    pub(super) fn create_open(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<(Arc<Node>, Arc<Object>, Found), Error> {
        let (ino, object) = self.backend.ids()?;
        let time = now_ns();
        let create = v1::Create {
            parent,
            name: name.to_vec(),
            kind: Kind::File.into(),
            mode,
            ino,
            object,
            uid: caller.uid,
            gid: caller.gid,
            time,
            ..v1::Create::default()
        };
        let change = self.table.begin(&[(parent, name)]);
        let Answer::Opened(opened) = self.backend.one_placed(caller, &Op::Create(create))? else {
            return Err(ClientError::Answer("Create").into());
        };
        let object = match self.writable(caller, &opened) {
            Ok(object) => Arc::new(object),
            Err(error) => {
                self.undo_create(caller, parent, name, &opened);
                return Err(error);
            }
        };
        let node = self.node(ino);
        {
            let mut state = node.state.lock();
            state.writing = Some(Writing {
                object: Some(object.clone()),
                phase: Phase::Open,
                writers: 1,
                untouched: None,
            });
            state.objects.push(Arc::downgrade(&object));
            state.opens += 1;
            let bound = Bound {
                object: object.clone(),
                opens: 1,
                frozen: None,
            };
            state.bound.insert(0, bound);
        }
        self.touched(parent, time, 0);
        // Written here, so known here: `writing` marks what somebody else is about to change.
        let attr = opened.attr.map(|attr| v1::Attr {
            writing: false,
            ..attr
        });
        let entry = v1::Entry {
            attr,
            ..v1::Entry::default()
        };
        let found = self.learn_made(parent, name, entry, change)?;
        Ok((node, object, found))
    }

    fn undo_create(&self, caller: Caller, parent: u64, name: &[u8], opened: &v1::Opened) {
        let ino = opened.attr.map_or(0, |attr| attr.ino);
        let ops = vec![
            Op::Abandon(v1::Abandon {
                ino,
                object: opened.object,
            }),
            Op::Unlink(v1::Unlink {
                parent,
                name: name.to_vec(),
                directory: false,
                time: 0,
            }),
        ];
        if let Err(error) = self.backend.apply(caller, ops, false) {
            tracing::warn!(ino, "a file that can't be written was left empty: {error}");
        }
    }

    /// Opens a file for writing: joins the version being written here or begins one.
    pub(super) fn writing_object(
        &self,
        caller: Caller,
        key: Key,
        node: &Node,
        truncate: bool,
        pace: Pace,
    ) -> Result<Arc<Object>, Error> {
        {
            let mut state = node.state.lock();
            if let Some(object) = self.join(&mut state, key, node, truncate, pace)? {
                return Ok(object);
            }
        }
        let keep = (!truncate).then_some(u64::MAX);
        let begun = self.begin(caller, node, keep);
        let mut state = node.state.lock();
        node.changed.notify_all();
        let (object, untouched) = begun.inspect_err(|_| state.writing = None)?;
        state.objects.push(Arc::downgrade(&object));
        state.writing = Some(Writing {
            object: Some(object.clone()),
            phase: Phase::Open,
            writers: 1,
            untouched,
        });
        if let Err(error) = state.bind(key, &object) {
            // A reader took the alias for the version before: the kernel comes again with the next one.
            self.end_writing(caller, node, &mut state, Some(Ending::Abandon));
            return Err(error);
        }
        Ok(object)
    }

    /// Takes part in the version that is being written here. `None`: there is none, and the caller has to
    /// begin one, as is noted in the state.
    fn join(
        &self,
        state: &mut parking_lot::MutexGuard<'_, State>,
        key: Key,
        node: &Node,
        truncate: bool,
        pace: Pace,
    ) -> Result<Option<Arc<Object>>, Error> {
        let deadline = Instant::now() + SEAL_PATIENCE;
        loop {
            if key.alias != state.alias {
                return Err(Errno::STALE.into());
            }
            let current = state.writing.as_ref().map(|w| (w.phase, w.object.clone()));
            match current {
                Some((Phase::Open, Some(object))) => {
                    if truncate && object.waits() {
                        pace.wait()?;
                    }
                    state.bind(key, &object)?;
                    if let Some(writing) = state.writing.as_mut() {
                        writing.writers += 1;
                    }
                    if truncate {
                        object.truncate(0)?;
                    }
                    return Ok(Some(object));
                }
                Some(_) => {
                    pace.wait()?;
                    self.sealer.hurry();
                    if node.changed.wait_until(state, deadline).timed_out() {
                        return Err(Errno::TXTBSY.into());
                    }
                }
                None => {
                    pace.wait()?;
                    state.make_room(key)?;
                    state.writing = Some(Writing {
                        object: None,
                        phase: Phase::Starting,
                        writers: 0,
                        untouched: None,
                    });
                    return Ok(None);
                }
            }
        }
    }

    /// Begins a version; keeps that many bytes of the version before. Gives the mtime by which one can see
    /// later whether the copy was written to, if one can.
    fn begin(
        &self,
        caller: Caller,
        node: &Node,
        keep: Option<u64>,
    ) -> Result<(Arc<Object>, Option<i64>), Error> {
        self.fetch(caller, node, Pace::MayWait)?;
        let attr = node.state.lock().attr;
        let (_, id) = self.backend.ids()?;
        let new = v1::NewVersion {
            ino: node.ino,
            object: id,
            element: (keep.is_some() && attr.object != 0).then_some(attr.element),
            steal: false,
        };
        let opened = self.ask_version(caller, new)?;
        // The answer is newer than what was known: somebody else may have sealed a version meanwhile.
        let base = opened.attr.unwrap_or(attr);
        let copied = self
            .writable(caller, &opened)
            .and_then(|object| match keep {
                Some(bytes) => {
                    self.copy_base(caller, &base, bytes.min(base.size), &object)?;
                    Ok(object)
                }
                None => Ok(object),
            });
        let object = copied.inspect_err(|_| {
            let (ino, object) = (node.ino, id);
            let _ = self
                .backend
                .one(caller, Op::Abandon(v1::Abandon { ino, object }));
        })?;
        let whole = keep.is_some_and(|bytes| bytes >= base.size) && base.object != 0;
        let old = now_ns() - base.mtime > MTIME_GRAIN_NS;
        let untouched = (whole && old).then_some(base.mtime);
        if let Some(mtime) = untouched {
            object.set_mtime(mtime)?;
        }
        Ok((Arc::new(object), untouched))
    }

    /// Asks to write a version; another writer may be about to finish.
    fn ask_version(&self, caller: Caller, new: v1::NewVersion) -> Result<v1::Opened, Error> {
        let deadline = Instant::now() + WRITER_PATIENCE;
        loop {
            match self.backend.one_placed(caller, &Op::NewVersion(new)) {
                Ok(Answer::Opened(opened)) => return Ok(opened),
                Ok(_) => return Err(ClientError::Answer("NewVersion").into()),
                Err(error) if error.is(Errno::TXTBSY) && Instant::now() < deadline => {
                    std::thread::sleep(WRITER_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn copy_base(
        &self,
        caller: Caller,
        base: &v1::Attr,
        bytes: u64,
        to: &Object,
    ) -> Result<(), Error> {
        if bytes == 0 || base.object == 0 {
            return Ok(());
        }
        let from = self.open_sealed(caller, base.ino, base.object, base.element, Pace::MayWait)?;
        let mut copied = match to.copy_from(&from, 0, 0, bytes) {
            Ok(copied) => copied,
            Err(error) if error.is(Errno::OPNOTSUPP) || error.is(Errno::XDEV) => 0,
            Err(error) => return Err(error),
        };
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

    /// Sets the size: of the version being written, else of a new one that is sealed at once.
    pub(super) fn set_size(
        &self,
        caller: Caller,
        key: Key,
        node: &Node,
        size: u64,
    ) -> Result<(), Error> {
        {
            let mut state = node.state.lock();
            let deadline = Instant::now() + SEAL_PATIENCE;
            loop {
                if key.alias != state.alias && !state.bound.contains_key(&key.alias) {
                    return Err(Errno::STALE.into());
                }
                match state.writing.as_ref().map(|w| (w.phase, w.object.clone())) {
                    Some((Phase::Open, Some(object))) => return object.truncate(size),
                    Some(_) => {
                        self.sealer.hurry();
                        if node.changed.wait_until(&mut state, deadline).timed_out() {
                            return Err(Errno::TXTBSY.into());
                        }
                    }
                    None => break,
                }
            }
            state.writing = Some(Writing {
                object: None,
                phase: Phase::Starting,
                writers: 0,
                untouched: None,
            });
        }
        let begun = self
            .begin(caller, node, Some(size))
            .and_then(|(object, _)| {
                object.truncate(size)?;
                object.set_mtime(now_ns())?;
                Ok(object)
            });
        let mut state = node.state.lock();
        node.changed.notify_all();
        let object = begun.inspect_err(|_| state.writing = None)?;
        state.objects.push(Arc::downgrade(&object));
        state.writing = Some(Writing {
            object: Some(object),
            phase: Phase::Open,
            writers: 0,
            untouched: None,
        });
        self.end_writing(caller, node, &mut state, None);
        Ok(())
    }

    /// A handle that could write was closed.
    pub(super) fn close_writer(&self, caller: Caller, node: &Node, alias: u16) {
        let mut state = node.state.lock();
        state.unbind(alias);
        let Some(writing) = state.writing.as_mut() else {
            return;
        };
        writing.writers = writing.writers.saturating_sub(1);
        if writing.writers == 0 {
            self.end_writing(caller, node, &mut state, None);
        }
    }

    /// The last writer is gone: the version is to be sealed, or given up if it says nothing new.
    fn end_writing(&self, caller: Caller, node: &Node, state: &mut State, ending: Option<Ending>) {
        let gone = state.gone;
        let Some(writing) = state.writing.as_mut() else {
            return;
        };
        let Some(object) = writing.object.clone() else {
            return;
        };
        writing.phase = Phase::Sealing;
        let unchanged = writing.untouched.is_some_and(|mtime| {
            object
                .stat()
                .is_ok_and(|stat| stat.mtime == mtime && stat.size == state.attr.size)
        });
        let ending = match ending {
            Some(ending) => ending,
            None if gone || unchanged => Ending::Abandon,
            None => Ending::Seal,
        };
        self.sealer.submit(Job {
            ino: node.ino,
            object,
            caller,
            ending,
            attr: state.attr,
        });
    }

    /// Ends all versions that are still being written, as they are now. Writers that go on write to bytes
    /// that are no longer the object's.
    pub(crate) fn close_all(&self) {
        for node in self.table.all() {
            let mut state = node.state.lock();
            let open = state.writing.as_ref().filter(|w| w.phase == Phase::Open);
            let Some(object) = open.and_then(|w| w.object.clone()) else {
                continue;
            };
            if let Err(error) = self.part_from_writers(&object) {
                tracing::error!(
                    ino = node.ino,
                    "a file still being written can't be sealed: {error}"
                );
                continue;
            }
            self.end_writing(Caller::default(), &node, &mut state, None);
        }
    }

    /// Gives the object a file of its own, if the kernel may still write to the one it has.
    fn part_from_writers(&self, object: &Object) -> Result<(), Error> {
        let Data::Local(file) = &object.data else {
            return Ok(());
        };
        let place = self.backend.place(object.element, Pace::MayWait)?;
        let folder = place.folder.ok_or(Errno::HOSTUNREACH)?;
        let path = folder.join(ObjectId(object.id).relative_path());
        let parted = path.with_extension("parted");
        let copy = make_object_file(&parted)?;
        if let Some((uid, gid)) = place.owner {
            std::os::unix::fs::fchown(&copy, Some(uid), Some(gid))?;
        }
        let stat = object.stat()?;
        let target = Object {
            id: object.id,
            element: object.element,
            data: Data::Local(Arc::new(copy)),
            right: object.right.clone(),
        };
        let source = Object {
            data: Data::Local(file.clone()),
            right: object.right.clone(),
            ..*object
        };
        target.copy_from(&source, 0, 0, stat.size)?;
        target.truncate(stat.size)?;
        target.set_mtime(stat.mtime)?;
        Ok(std::fs::rename(parted, path)?)
    }

    /// Waits until a version that was closed here is sealed.
    pub(super) fn wait_sealed(&self, node: &Node) -> Result<(), Error> {
        let deadline = Instant::now() + SEAL_PATIENCE;
        let mut state = node.state.lock();
        self.sealer.hurry();
        while state
            .writing
            .as_ref()
            .is_some_and(|w| w.phase == Phase::Sealing)
        {
            if node.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(Errno::IO.into());
            }
        }
        Ok(())
    }
}

impl State {
    /// Makes sure that a new object can be bound to the alias.
    fn make_room(&mut self, key: Key) -> Result<(), Error> {
        if self.bound.contains_key(&key.alias) {
            let nothing = Arc::new(Object {
                id: u64::MAX,
                element: 0,
                data: Data::Nothing,
                right: Right::none(key.ino, u64::MAX),
            });
            return self.bind(key, &nothing);
        }
        Ok(())
    }
}

/// Makes an object file; the folder of its lowest byte as well if it is not there yet.
fn make_object_file(path: &Path) -> Result<File, Error> {
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
