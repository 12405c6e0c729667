//! What is written on an element in memory, in place on this host. The memory is bounded: when there is no more room, what was
//! written goes to another element and is written there from then on, by the same handles, and no write fails.
//!
//! So the kernel does not write such files by itself. Once they are sealed it reads them as all others, in place.

use super::backend::Backend;
use super::object::{Data, Object, Stat};
use super::remote::Remote;
use super::right::Right;
use super::takeover::{UNSEALED_MODE, open_to_writers};
use super::version::{make_object_file, object_path};
use super::{Caller, Fs, Pace};
use crate::error::Error;
use parking_lot::{Mutex, RwLock};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tidemill_client::{Error as ClientError, object_file};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Bytes copied at once to another element.
const COPY_BYTES: usize = 4 << 20;
/// Room is asked for ahead of what is written, where it has to be asked for: twice as much, and at most so much more.
const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// HTTP status of an element that has no more room.
const FULL: u16 = 507;

/// See the module.
#[derive(Debug)]
pub(crate) struct Memory {
    backend: Arc<Backend>,
    caller: Caller,
    ino: u64,
    first: Arc<Object>,
    /// Where it is written since there was no more room.
    spilled: OnceLock<Arc<Object>>,
    /// Held by each who reads or writes, and alone by who takes what was written elsewhere.
    turns: RwLock<()>,
    /// The length for which there is room, where that has to be asked for.
    room: Option<Mutex<u64>>,
    /// How long it may become, in a room with a quota.
    size_max: Option<u64>,
}

impl Memory {
    /// Where it is now.
    pub(crate) fn now(&self) -> &Arc<Object> {
        self.spilled.get().unwrap_or(&self.first)
    }

    /// Whether it can go elsewhere.
    pub(crate) fn spills(&self) -> bool {
        self.spilled.get().is_none()
    }

    /// Whether it has to ask for room.
    pub(crate) fn asks(&self) -> bool {
        self.room.is_some() && self.spills()
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.need(offset.saturating_add(bytes.len() as u64))?;
        let turn = self.turns.read();
        let now = self.now();
        let Some(file) = now.local().filter(|_| self.spills()) else {
            return now.write(offset, bytes);
        };
        self.reserve(offset.saturating_add(bytes.len() as u64))?;
        let before = file.metadata()?.len();
        let written = write_at(file, offset, bytes);
        drop(turn);
        if written.1.is_err() && self.spills() {
            // What is appended again must not come behind half of itself.
            let _alone = self.turns.write();
            let end = offset + written.0;
            if end > before && file.metadata()?.len() == end {
                file.set_len(before)?;
            }
        }
        written.1
    }

    /// Refuses to become longer than the room has a quota for.
    fn need(&self, size: u64) -> Result<(), Error> {
        match self.size_max {
            Some(most) if size > most => Err(Errno::DQUOT.into()),
            _ => Ok(()),
        }
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<(), Error> {
        self.need(size)?;
        let _turn = self.turns.read();
        self.now().truncate(size)
    }

    pub(crate) fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<(), Error> {
        let _turn = self.turns.read();
        if !FallocateFlags::from_bits_retain(mode).contains(FallocateFlags::PUNCH_HOLE) {
            let end = offset.saturating_add(length);
            self.need(end)?;
            self.reserve(end)?;
        }
        self.now().allocate(offset, length, mode)
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let _turn = self.turns.read();
        self.now().read(offset, length)
    }

    pub(crate) fn seek(&self, offset: u64, data: bool) -> Result<u64, Error> {
        let _turn = self.turns.read();
        self.now().seek(offset, data)
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        let _turn = self.turns.read();
        self.now().sync()
    }

    pub(crate) fn stat(&self) -> Result<Stat, Error> {
        let _turn = self.turns.read();
        self.now().stat()
    }

    /// Has room set aside for that many bytes, where the file system does not say when there is no more.
    fn reserve(&self, size: u64) -> Result<(), Error> {
        let Some(room) = self.room.as_ref().filter(|_| self.spills()) else {
            return Ok(());
        };
        let mut room = room.lock();
        if size <= *room {
            return Ok(());
        }
        let ahead = size.saturating_add(size.min(AHEAD_BYTES_MAX));
        let objects = &self.backend.objects;
        let ask = |size| {
            let ask = |address| async move { objects.reserve(&address, size).await };
            let until = Some(super::patience::deadline());
            let asked = self.first.right.ask(&self.backend, until, ask);
            self.backend.runtime.block_on(asked).map(|()| size)
        };
        *room = match ask(ahead).or_else(|_| ask(size)) {
            Ok(size) => size,
            Err(ClientError::ElementRefused { status: FULL, .. }) => {
                return Err(Errno::NOSPC.into());
            }
            Err(error) => return Err(error.into()),
        };
        Ok(())
    }

    /// Takes what was written to another element, where it is written from now on.
    fn spill(&self) -> Result<(), Error> {
        let _alone = self.turns.write();
        if !self.spills() {
            // Another writer was first.
            return Ok(());
        }
        let stat = self.first.stat()?;
        let opened = self.ask(stat.size, None)?;
        let (target, path) = self.make(&opened)?;
        self.copy(&target, stat)?;
        // Nothing may be on its way when the version is said to be there.
        target.flush()?;
        if let (Some(path), Some(file)) = (path, target.local()) {
            // An earlier try that failed may have left one.
            let _ = std::fs::remove_file(&path);
            object_file::name(file, &path)?;
        }
        self.settle(stat.size, opened.element)?;
        tracing::info!(
            ino = self.ino,
            bytes = stat.size,
            from = self.first.element,
            to = opened.element,
            "a file that is written goes on elsewhere: there is no more room in memory"
        );
        // There was nothing in it before.
        let _ = self.spilled.set(Arc::new(target));
        if let Some(file) = self.first.local() {
            // Its room is given back now; the server has the rest of it removed.
            file.set_len(0)?;
        }
        Ok(())
    }

    /// Says that all that was written is there. Whether that has been heard must be known before anything else is written, so
    /// this is repeated for as long as the server is away.
    fn settle(&self, bytes: u64, element: u32) -> Result<(), Error> {
        loop {
            match self.ask(bytes, Some(element)) {
                Err(Error::Client(error)) if error.is_lost() => {
                    tracing::warn!(
                        ino = self.ino,
                        "a file that goes on elsewhere waits: {error}"
                    );
                    super::patience::renew();
                }
                settled => return settled.map(drop),
            }
        }
    }

    fn ask(&self, bytes: u64, element: Option<u32>) -> Result<v1::Opened, Error> {
        let op = Op::Spill(v1::Spill {
            ino: self.ino,
            object: self.first.id,
            element,
            bytes,
        });
        match self.backend.one_placed(self.caller, &op)? {
            Answer::Opened(opened) => Ok(opened),
            _ => Err(ClientError::Answer("Spill").into()),
        }
    }

    /// The object at its new place. In place it has no name before it has all bytes, where that can be: if this mount ends
    /// meanwhile nothing is left. Gives the path that it is to have then.
    fn make(&self, opened: &v1::Opened) -> Result<(Object, Option<PathBuf>), Error> {
        let mut unnamed = None;
        let right = Right::new(self.caller, opened, None);
        let place = self.backend.place(opened.element, Pace::MayWait)?;
        let data = match &place.folder {
            None => Data::Remote(Remote::new(
                self.backend.clone(),
                opened.element,
                right.clone(),
                0,
            )),
            Some(folder) => {
                let path = object_path(folder, opened.object);
                let file = match object_file::nameless(&path, UNSEALED_MODE) {
                    Some(file) => {
                        unnamed = Some(path);
                        file
                    }
                    None => make_object_file(&path)?,
                };
                // Without locks on this device nobody takes files.
                let _ = object_file::hold(&file);
                if place.owner.is_some() {
                    open_to_writers(&file, place.owner)?;
                }
                Data::Local(Arc::new(file))
            }
        };
        let object = Object::new(opened.object, opened.element, data, right);
        object.truncate(0)?;
        Ok((object, unnamed))
    }

    fn copy(&self, target: &Object, stat: Stat) -> Result<(), Error> {
        let mut at = 0;
        while at < stat.size {
            at = match self.first.seek(at, true) {
                Ok(data) => data,
                // Nothing but a hole up to the end.
                Err(error) if error.is(Errno::NXIO) => break,
                Err(error) => return Err(error),
            };
            let end = self.first.seek(at, false)?.min(stat.size);
            while at < end {
                let piece = usize::try_from(end - at).unwrap_or(COPY_BYTES);
                let bytes = self.first.read(at, piece.min(COPY_BYTES))?;
                if bytes.is_empty() {
                    return Err(Errno::IO.into());
                }
                target.write(at, &bytes)?;
                at += bytes.len() as u64;
                super::patience::renew();
            }
        }
        target.truncate(stat.size)?;
        target.set_mtime(stat.mtime)
    }
}

/// Writes as much as can be: how much that was, and why it was not all.
fn write_at(file: &File, offset: u64, bytes: &[u8]) -> (u64, Result<(), Error>) {
    use std::os::unix::fs::FileExt;
    let mut written = 0;
    while written < bytes.len() {
        match file.write_at(&bytes[written..], offset + written as u64) {
            Ok(0) => return (written as u64, Err(Errno::IO.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return (written as u64, Err(error.into())),
        }
    }
    (written as u64, Ok(()))
}

impl Fs {
    /// A version that is begun on an element in memory, in place, or in a room with a quota.
    pub(super) fn begin_bounded(
        &self,
        caller: Caller,
        object: Object,
        opened: &v1::Opened,
        counts_room: bool,
    ) -> Object {
        let (id, element, right) = (object.id, object.element, object.right.clone());
        let memory = Memory {
            backend: self.backend.clone(),
            caller,
            ino: opened.attr.map_or(0, |attr| attr.ino),
            first: Arc::new(object),
            spilled: OnceLock::new(),
            turns: RwLock::default(),
            room: counts_room.then(Mutex::default),
            size_max: opened.size_max,
        };
        Object::new(id, element, Data::Memory(Box::new(memory)), right)
    }

    /// There was no room for a change of an object: if it is written in place here it goes elsewhere, and the change is to be
    /// made again.
    pub(super) fn make_room(&self, object: &Object, error: Error, pace: Pace) -> Result<(), Error> {
        match &object.data {
            Data::Memory(memory) if error.is(Errno::NOSPC) && memory.first.local().is_some() => {
                pace.wait()?;
                memory.spill()
            }
            _ => Err(error),
        }
    }
}
