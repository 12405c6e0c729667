//! A version that several mounts write, or have written. A reader sees the published writes of every mount, and all writes of this mount at
//! once. Each writing mount has an object of its own, its part, to which it appends its writes
//! (`docs/decisions/0025-concurrent-writers.md`). The mount publishes writes to the server (next: `server/src`).

use super::backend::{Backend, NodeLocation};
use super::object::{ObjectData, OpenObject, WriteStat};
use super::remote::{NodeObject, now_ns};
use super::right::Right;
use super::version::object_path;
use super::{Caller, WaitPolicy};
use crate::error::Error;
use crate::extents::{Freshness, WriteLog, all_of};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_client::published::Visible;
use tidemill_client::{Error as ClientError, object_file};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{Extent, Part, UNPUBLISHED_MAX};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Number of unpublished extents at which this mount publishes its writes without a request. Writes that are in progress at that time may
/// add some extents.
const PENDING_MAX: usize = UNPUBLISHED_MAX - 1024;

/// A version that several mounts write, or have written.
#[derive(Debug)]
pub(crate) struct MultiWriter {
    ino: u64,
    caller: Caller,
    backend: Arc<Backend>,
    /// The part that this mount writes, if this mount is one of the writers.
    own: Option<OwnPart>,
    seen: RwLock<PublishedState>,
    freshness: Freshness,
}

/// State of the version that the writers have published.
#[derive(Debug, Default)]
struct PublishedState {
    visible: Visible,
    parts: Vec<Arc<OpenObject>>,
}

/// The part of the version that this mount writes.
#[derive(Debug)]
struct OwnPart {
    object: Arc<OpenObject>,
    /// For the mount that first wrote the file alone: number of bytes with which its object began. The bytes are the file's first bytes.
    base: Option<u64>,
    log: Mutex<WriteLog>,
    /// Whether the server has sealed the part, so that all writes of this mount are published.
    sealed: AtomicBool,
    /// Lock that is held shared during a write, so that a publication contains only complete writes.
    turn: RwLock<()>,
    /// Lock that is held during a publication.
    telling: Mutex<()>,
}

impl MultiWriter {
    /// Returns a version that only this mount has written up to now, into an object of `size` bytes.
    pub(crate) fn sharing(
        backend: Arc<Backend>,
        (ino, caller): (u64, Caller),
        object: Arc<OpenObject>,
        stat: WriteStat,
    ) -> Self {
        let mut seen = PublishedState::default();
        seen.visible.mtime = stat.mtime;
        let (id, node) = (ObjectId(object.id), NodeId(object.node));
        let extents = &mut seen.visible.extents;
        extents.parts.push(Part::on(id, stat.size, node));
        seen.parts.push(object.clone());
        if all_of(stat.size).is_some_and(|all| extents.put(all).is_err()) {
            tracing::error!(ino, size = stat.size, "a file of an impossible size");
        }
        let own = OwnPart {
            object,
            base: Some(stat.size),
            log: Mutex::new(WriteLog::new(0, stat.size, now_ns())),
            sealed: AtomicBool::new(false),
            turn: RwLock::default(),
            telling: Mutex::default(),
        };
        Self {
            ino,
            caller,
            backend,
            own: Some(own),
            seen: RwLock::new(seen),
            freshness: Freshness::default(),
        }
    }

    /// Returns a version that other mounts write; `own` is the part that this mount writes.
    pub(crate) fn new(
        backend: Arc<Backend>,
        (ino, caller): (u64, Caller),
        own: Option<Arc<OpenObject>>,
        reported: v1::MultiWriter,
    ) -> Result<Self, Error> {
        let index = usize::try_from(reported.mine).unwrap_or(0);
        let own = own.map(|object| OwnPart {
            object,
            base: None,
            log: Mutex::new(WriteLog::new(index, 0, now_ns())),
            sealed: AtomicBool::new(false),
            turn: RwLock::default(),
            telling: Mutex::default(),
        });
        let multi_writer = Self {
            ino,
            caller,
            backend,
            own,
            seen: RwLock::default(),
            freshness: Freshness::default(),
        };
        multi_writer.adopt(reported)?;
        Ok(multi_writer)
    }

    /// Returns a sealed version that consists of extents, as it was opened.
    pub(crate) fn sealed(
        backend: Arc<Backend>,
        (ino, caller): (u64, Caller),
        opened: &v1::Opened,
        layout: v1::Layout,
    ) -> Result<Self, Error> {
        let reported = v1::MultiWriter {
            version: opened.object,
            size: opened.size,
            mtime: opened.attr.map_or(0, |attr| attr.mtime),
            sealed: Some(layout),
            ..v1::MultiWriter::default()
        };
        Self::new(backend, (ino, caller), None, reported)
    }

    /// Returns the object that this mount writes.
    pub(crate) fn own(&self) -> Option<&Arc<OpenObject>> {
        self.own.as_ref().map(|own| &own.object)
    }

    /// Returns the object id of the version, or 0 if the server has not reported it yet.
    pub(crate) fn version(&self) -> u64 {
        self.seen.read().visible.version
    }

    /// Returns whether the object that this mount writes is a part of the version.
    pub(crate) fn is_part(&self) -> bool {
        self.own.is_some() && self.version() != 0
    }

    /// Records that other mounts have published writes.
    pub(crate) fn mark_stale(&self) {
        self.freshness.mark();
    }

    /// Records that the server has sealed the part. Programs that still have the file open on this mount see other mounts' writes over this
    /// part.
    pub(crate) fn part_sealed(&self) {
        if let Some(own) = &self.own {
            own.sealed.store(true, Ordering::Release);
            self.mark_stale();
        }
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.freshness.is_stale()
    }

    /// Fetches the writes that other mounts have published; with `closed` also the writes that they have closed, or made before now.
    /// Returns whether the version can still change.
    pub(crate) fn refresh(&self, closed: bool) -> Result<bool, Error> {
        // A later version has replaced this one, which is read in its last state.
        let is_over = |error: &Error| error.is(Errno::STALE) || error.is(Errno::NOENT);
        // Taken before the question: changes that arrive during it are fetched again.
        let asks = self.freshness.asks();
        let over = || {
            self.freshness.answered(asks);
            Ok(false)
        };
        if self.version() == 0
            && let Err(error) = self.publish()
        {
            return if is_over(&error) { over() } else { Err(error) };
        }
        let (version, since) = {
            let seen = &self.seen.read().visible;
            if seen.sealed {
                return Ok(false);
            }
            (seen.version, seen.last)
        };
        let own = self.own.as_ref();
        let own = own.filter(|own| own.sealed.load(Ordering::Acquire));
        let publications = v1::Publications {
            ino: self.ino,
            version,
            since,
            closed,
        };
        let asked = self
            .backend
            .one(self.caller, Op::Publications(publications));
        match asked {
            Ok(Answer::MultiWriter(reported)) => self.adopt(reported)?,
            Ok(_) => return Err(ClientError::Answer("Publications").into()),
            Err(error) if is_over(&error) => return over(),
            Err(error) => return Err(error),
        }
        if let Some(own) = own {
            own.log.lock().acknowledge_all();
        }
        self.freshness.answered(asks);
        Ok(!self.seen.read().visible.sealed)
    }

    /// Publishes the writes of this mount to all mounts.
    pub(crate) fn publish(&self) -> Result<(), Error> {
        self.tell(None)
    }

    fn tell(&self, cut: Option<u64>) -> Result<(), Error> {
        let Some(own) = &self.own else {
            return Ok(());
        };
        let _one = own.telling.lock();
        {
            let _all_written = own.turn.write();
            own.log.lock().tell(cut);
        }
        let (version, since) = {
            let seen = &self.seen.read().visible;
            (seen.version, seen.last)
        };
        let publications = own.log.lock().publications();
        if publications.is_empty() && version != 0 {
            return Ok(());
        }
        own.object.flush()?;
        let publish = v1::Publish {
            ino: self.ino,
            object: own.object.id,
            publications: publications.clone(),
            since,
            base: own.base,
        };
        // The answer contains the writes that others have published, too. Changes that arrive during the call are fetched again.
        let asks = self.freshness.asks();
        let Answer::MultiWriter(news) = self.backend.one(self.caller, Op::Publish(publish))? else {
            return Err(ClientError::Answer("Publish").into());
        };
        self.adopt(news)?;
        own.log.lock().heard(&publications);
        self.freshness.answered(asks);
        Ok(())
    }

    /// Returns the extents that the server may not know, for the seal of the part. If this mount first wrote the version alone, also
    /// returns the number of bytes with which the part began.
    pub(crate) fn last_word(&self) -> (Vec<v1::MountPublication>, Option<u64>) {
        let Some(own) = &self.own else {
            return (Vec::new(), None);
        };
        let mut log = own.log.lock();
        log.tell(None);
        (log.publications(), own.base)
    }

    /// Applies the server's description of the version.
    fn adopt(&self, reported: v1::MultiWriter) -> Result<(), Error> {
        let mut seen = self.seen.write();
        let is_first = seen.visible.version == 0;
        let wrong = |_| ClientError::Answer("Publications");
        let is_newer = seen.visible.adopt(&reported).map_err(wrong)?;
        if is_first {
            self.backend.enter_multi_writer(reported.version);
        }
        if is_newer {
            let (sealed, parts) = match &reported.sealed {
                Some(layout) => (true, &layout.parts),
                None => (false, &reported.parts),
            };
            seen.parts = self.opened(&seen, (reported.version, sealed), parts);
            seen.grow();
        }
        Ok(())
    }

    /// Returns the objects of the parts, and reuses objects that are open.
    fn opened(
        &self,
        seen: &PublishedState,
        (version, sealed): (u64, bool),
        parts: &[v1::LayoutPart],
    ) -> Vec<Arc<OpenObject>> {
        let own = self.own.as_ref().map(|own| &own.object);
        let open = |part: &v1::LayoutPart| {
            let mut known = own.into_iter().chain(&seen.parts);
            if let Some(known) = known.find(|known| known.id == part.object) {
                return known.clone();
            }
            let opened = v1::Opened {
                attr: Some(v1::Attr {
                    ino: self.ino,
                    ..v1::Attr::default()
                }),
                object: version,
                ..v1::Opened::default()
            };
            let right = Right::of_extent(self.caller, &opened, part, sealed);
            let local = match self.backend.place(part.node, WaitPolicy::MayWait) {
                Ok(NodeLocation {
                    directory: Some(directory),
                    ..
                }) => object_file::open(&object_path(&directory, part.object)).ok(),
                _ => None,
            };
            let data = match local {
                Some(file) => ObjectData::Local(Arc::new(file)),
                None => ObjectData::Remote(NodeObject::new(
                    self.backend.clone(),
                    part.node,
                    right.clone(),
                    part.size,
                )),
            };
            Arc::new(OpenObject::new(part.object, part.node, data, right))
        };
        parts.iter().map(open).collect()
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        if self.is_stale() {
            self.refresh(false)?;
        }
        match self.read_seen(offset, length) {
            // Its parts may have changed with the seal.
            Err(error) if !error.is(Errno::HOSTUNREACH) && !self.seen.read().visible.sealed => {
                tracing::debug!(
                    ino = self.ino,
                    "bytes written by other mounts are read again: {error}"
                );
                self.refresh(false)?;
                self.read_seen(offset, length)
            }
            read => read,
        }
    }

    fn read_seen(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let end = offset.saturating_add(length as u64).min(self.size());
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; length_of(&(offset..end))];
        let seen = self.seen.read();
        let extents: Vec<Extent> = seen.visible.extents.within(offset..end).collect();
        for extent in extents.iter().skip(1) {
            if let ObjectData::Remote(remote) = &seen.parts[extent.at.part].data {
                remote.ask_for(extent.at.offset..extent.end_within());
            }
        }
        for extent in extents {
            let part = seen.parts.get(extent.at.part).ok_or(Errno::IO)?;
            fill(&mut bytes, offset, &extent, part)?;
        }
        let Some(own) = &self.own else {
            return Ok(bytes);
        };
        // The log is not locked during the reads: writers would have to wait for them.
        let over = own.log.lock().over(&(offset..end));
        for (cut, extents) in over {
            if let Some(cut) = cut.filter(|&cut| cut < end) {
                let from = usize::try_from(cut.saturating_sub(offset)).unwrap_or(0);
                bytes[from..].fill(0);
            }
            for extent in extents {
                fill(&mut bytes, offset, &extent, &own.object)?;
            }
        }
        Ok(bytes)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let own = self.own.as_ref().ok_or(Errno::BADF)?;
        let length = bytes.len() as u64;
        if length == 0 {
            return Ok(());
        }
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        if own.log.lock().count() >= PENDING_MAX {
            self.publish()?;
        }
        // From now on offsets in the object may differ from offsets in the file. As long as the server does not know that, it would seal
        // the object as the file if this mount died. Until then only writes at the end of both are accepted.
        let unheard = match self.version() {
            0 => self.publish().err(),
            _ => None,
        };
        let range = offset..end;
        let _turn = own.turn.read();
        let (at, is_new) = {
            let mut log = own.log.lock();
            match unheard {
                Some(error) if log.moves(&range) => return Err(error),
                _ => log.place(&range),
            }
        };
        own.object.write(at, bytes)?;
        let mut log = own.log.lock();
        log.mtime = now_ns();
        if is_new {
            let noted = log.written(&range, at);
            noted.map_err(|_| Errno::FBIG)?;
        }
        Ok(())
    }

    /// Sets the length of the file for all its writers.
    pub(crate) fn truncate(&self, size: u64) -> Result<(), Error> {
        let own = self.own.as_ref().ok_or(Errno::BADF)?;
        own.log.lock().mtime = now_ns();
        self.tell(Some(size))
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        if let Some(own) = &self.own {
            own.object.sync()?;
        }
        self.publish()
    }

    fn size(&self) -> u64 {
        let seen = self.seen.read().visible.extents.size;
        self.size_over(seen)
    }

    /// Returns the length of the file for writers on this mount, if all other mounts see the length `seen`.
    fn size_over(&self, seen: u64) -> u64 {
        let own = self.own.as_ref();
        own.map_or(seen, |own| own.log.lock().size_over(seen))
    }

    pub(crate) fn stat(&self) -> WriteStat {
        let (size, mtime) = {
            let seen = &self.seen.read().visible;
            (seen.extents.size, seen.mtime)
        };
        self.stat_over(size, mtime)
    }

    /// Returns size and mtime like [`Self::stat`], if `attr` is the server's description of the published state.
    pub(crate) fn stat_by(&self, attr: &v1::Attr) -> WriteStat {
        if attr.multi_writer == 0 || !self.is_stale() {
            return self.stat();
        }
        self.stat_over(attr.size, attr.mtime)
    }

    fn stat_over(&self, size: u64, mtime: i64) -> WriteStat {
        let size = self.size_over(size);
        let own = self.own.as_ref().map(|own| own.log.lock().mtime);
        WriteStat {
            size,
            mtime: own.map_or(mtime, |own| own.max(mtime)),
            blocks: size.div_ceil(512),
        }
    }

    pub(crate) fn set_mtime(&self, mtime: i64) {
        if let Some(own) = &self.own {
            own.log.lock().mtime = mtime;
        }
    }

    /// Drops the cached reads of all parts.
    pub(crate) fn rest(&self) {
        for part in &self.seen.read().parts {
            part.rest();
        }
    }
}

impl PublishedState {
    /// Extends each part's readable length to its known length.
    fn grow(&self) {
        for (part, reported) in self.parts.iter().zip(&self.visible.extents.parts) {
            if let ObjectData::Remote(remote) = &part.data {
                remote.grow(reported.size);
            }
        }
    }
}

impl Drop for MultiWriter {
    fn drop(&mut self) {
        let object = self.version();
        if object != 0 {
            self.backend.leave_multi_writer(self.ino, object);
        }
    }
}

/// Copies the bytes of an extent to their place in a buffer that begins at offset `start` of the file.
fn fill(bytes: &mut [u8], start: u64, extent: &Extent, object: &OpenObject) -> Result<(), Error> {
    let length = length_of(&(0..extent.length));
    let read = object.read(extent.at.offset, length)?;
    let from = length_of(&(start..extent.offset));
    let read = &read[..read.len().min(length)];
    bytes[from..from + read.len()].copy_from_slice(read);
    // Bytes that the object does not have are zeros, whatever the buffer contained before.
    bytes[from + read.len()..from + length].fill(0);
    Ok(())
}

fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(0)
}
