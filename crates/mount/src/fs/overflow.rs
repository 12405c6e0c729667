//! Files that are written directly on a node of the memory tier of this host. The memory is limited: when it is full, the written bytes are
//! copied to another node. The same handles then write to the other node, and no write fails. The module sends requests for space to the
//! node, and reports a move to the server (next: `node/src`, `server/src`).
//!
//! So the Linux kernel does not write such files directly. Once they are sealed, it reads them directly, like all other files.

use super::backend::Backend;
use super::object::{ObjectData, OpenObject, WriteStat};
use super::remote::NodeObject;
use super::right::Right;
use super::takeover::{UNSEALED_MODE, open_to_writers};
use super::version::{make_object_file, object_path};
use super::{Caller, Fs, WaitPolicy};
use crate::error::Error;
use parking_lot::{Mutex, RwLock};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tidemill_client::{Error as ClientError, object_file};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Number of bytes that are copied at once to another node.
const COPY_BYTES: usize = 4 << 20;
/// Maximum number of bytes that a request for space adds to the written size; the request asks for twice the size, up to this limit.
const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// HTTP status of a node that has no more space.
const FULL: u16 = 507;

/// A version on a node with limited space.
#[derive(Debug)]
pub(crate) struct SpillState {
    backend: Arc<Backend>,
    caller: Caller,
    ino: u64,
    first: Arc<OpenObject>,
    /// Object on the other node, after the first node was full.
    overflowed: OnceLock<Arc<OpenObject>>,
    /// Lock that each reader and writer holds shared, and that the copy to another node holds exclusively.
    turns: RwLock<()>,
    /// Length in bytes for which space is reserved, on a node from which space has to be requested.
    space: Option<Mutex<u64>>,
    /// Maximum length in bytes, in a workspace with a quota.
    size_max: Option<u64>,
}

impl SpillState {
    /// Returns the object that handles write now.
    pub(crate) fn now(&self) -> &Arc<OpenObject> {
        self.overflowed.get().unwrap_or(&self.first)
    }

    /// Whether the version can still move to another node.
    pub(crate) fn overflows(&self) -> bool {
        self.overflowed.get().is_none()
    }

    /// Whether the version has to request space from its node.
    pub(crate) fn asks(&self) -> bool {
        self.space.is_some() && self.overflows()
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.need(offset.saturating_add(bytes.len() as u64))?;
        let turn = self.turns.read();
        let now = self.now();
        let Some(file) = now.local().filter(|_| self.overflows()) else {
            return now.write(offset, bytes);
        };
        self.reserve(offset.saturating_add(bytes.len() as u64))?;
        let before = file.metadata()?.len();
        let written = write_at(file, offset, bytes);
        drop(turn);
        if written.1.is_err() && self.overflows() {
            // Bytes that are appended again must not follow half of themselves.
            let _alone = self.turns.write();
            let end = offset + written.0;
            if end > before && file.metadata()?.len() == end {
                file.set_len(before)?;
            }
        }
        written.1
    }

    /// Returns an error if the length `size` would exceed the workspace's quota.
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

    pub(crate) fn stat(&self) -> Result<WriteStat, Error> {
        let _turn = self.turns.read();
        self.now().stat()
    }

    /// Reserves space for `size` bytes, on a node whose file system does not report that it is full.
    fn reserve(&self, size: u64) -> Result<(), Error> {
        let Some(space) = self.space.as_ref().filter(|_| self.overflows()) else {
            return Ok(());
        };
        let mut space = space.lock();
        if size <= *space {
            return Ok(());
        }
        let ahead = size.saturating_add(size.min(AHEAD_BYTES_MAX));
        let objects = &self.backend.objects;
        let ask = |size| {
            let ask = |address| async move { objects.reserve(&address, size).await };
            let until = Some(super::deadline::deadline());
            let asked = self.first.right.ask(&self.backend, until, ask);
            self.backend.runtime.block_on(asked).map(|()| size)
        };
        *space = match ask(ahead).or_else(|_| ask(size)) {
            Ok(size) => size,
            Err(ClientError::NodeRefused { status: FULL, .. }) => {
                return Err(Errno::NOSPC.into());
            }
            Err(error) => return Err(error.into()),
        };
        Ok(())
    }

    /// Copies the written bytes to another node, to which later writes are sent.
    fn overflow(&self) -> Result<(), Error> {
        let _alone = self.turns.write();
        if !self.overflows() {
            // Another writer was first.
            return Ok(());
        }
        let stat = self.first.stat()?;
        let opened = self.ask(stat.size, None)?;
        let (target, path) = self.make(&opened)?;
        self.copy(&target, stat)?;
        // All bytes must have arrived before the new place is reported to the server.
        target.flush()?;
        if let (Some(path), Some(file)) = (path, target.local()) {
            // An earlier attempt that failed may have left a file.
            let _ = std::fs::remove_file(&path);
            object_file::name(file, &path)?;
        }
        self.settle(stat.size, opened.node)?;
        tracing::info!(
            ino = self.ino,
            bytes = stat.size,
            from = self.first.node,
            to = opened.node,
            "a file that is being written moves to the capacity tier: the memory tier is full"
        );
        // The value is set for the first time.
        let _ = self.overflowed.set(Arc::new(target));
        if let Some(file) = self.first.local() {
            // Its space is freed now; the server removes the rest of the object.
            file.set_len(0)?;
        }
        Ok(())
    }

    /// Reports to the server that all written bytes are at the new node. The result must be known before the next write, so the report is
    /// repeated for as long as the server is unreachable.
    fn settle(&self, bytes: u64, node: u32) -> Result<(), Error> {
        loop {
            match self.ask(bytes, Some(node)) {
                Err(Error::Client(error)) if error.is_lost() => {
                    tracing::warn!(
                        ino = self.ino,
                        "a file that moves to the capacity tier waits: {error}"
                    );
                    super::deadline::renew();
                }
                settled => return settled.map(drop),
            }
        }
    }

    fn ask(&self, bytes: u64, node: Option<u32>) -> Result<v1::Opened, Error> {
        let op = Op::Overflow(v1::Overflow {
            ino: self.ino,
            object: self.first.id,
            node,
            bytes,
        });
        match self.backend.one_placed(self.caller, &op)? {
            Answer::Opened(opened) => Ok(opened),
            _ => Err(ClientError::Answer("Overflow").into()),
        }
    }

    /// Creates the object on its new node. On this host the object's file has no name before it has all bytes, if the file system supports
    /// this, so that nothing is left if this mount ends too early. Returns the path that the file gets afterwards.
    fn make(&self, opened: &v1::Opened) -> Result<(OpenObject, Option<PathBuf>), Error> {
        let mut unnamed = None;
        let right = Right::new(self.caller, opened, None);
        let place = self.backend.place(opened.node, WaitPolicy::MayWait)?;
        let data = match &place.directory {
            None => ObjectData::Remote(NodeObject::new(
                self.backend.clone(),
                opened.node,
                right.clone(),
                0,
            )),
            Some(directory) => {
                let path = object_path(directory, opened.object);
                let file = match object_file::nameless(&path, UNSEALED_MODE) {
                    Some(file) => {
                        unnamed = Some(path);
                        file
                    }
                    None => make_object_file(&path)?,
                };
                // On a device without locks, no other process can take files over.
                let _ = object_file::hold(&file);
                if place.owner.is_some() {
                    open_to_writers(&file, place.owner)?;
                }
                ObjectData::Local(Arc::new(file))
            }
        };
        let object = OpenObject::new(opened.object, opened.node, data, right);
        object.truncate(0)?;
        Ok((object, unnamed))
    }

    fn copy(&self, target: &OpenObject, stat: WriteStat) -> Result<(), Error> {
        let mut at = 0;
        while at < stat.size {
            at = match self.first.seek(at, true) {
                Ok(data) => data,
                // Only a hole up to the end.
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
                super::deadline::renew();
            }
        }
        target.truncate(stat.size)?;
        target.set_mtime(stat.mtime)
    }
}

/// Writes as many bytes as possible. Returns their number, and the error if some bytes could not be written.
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
    /// Wraps the object of a version that is begun directly on a node of the memory tier, or in a workspace with a quota.
    pub(super) fn begin_bounded(
        &self,
        caller: Caller,
        object: OpenObject,
        opened: &v1::Opened,
        counts_space: bool,
    ) -> OpenObject {
        let (id, node, right) = (object.id, object.node, object.right.clone());
        let memory = SpillState {
            backend: self.backend.clone(),
            caller,
            ino: opened.attr.map_or(0, |attr| attr.ino),
            first: Arc::new(object),
            overflowed: OnceLock::new(),
            turns: RwLock::default(),
            space: counts_space.then(Mutex::default),
            size_max: opened.size_max,
        };
        OpenObject::new(id, node, ObjectData::Memory(Box::new(memory)), right)
    }

    /// Handles a lack of space for a change of an object: moves an object that is written directly on this host to another node; the caller
    /// then repeats the change.
    pub(super) fn make_space(
        &self,
        object: &OpenObject,
        error: Error,
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        match &object.data {
            ObjectData::Memory(memory)
                if error.is(Errno::NOSPC) && memory.first.local().is_some() =>
            {
                pace.wait()?;
                memory.overflow()
            }
            _ => Err(error),
        }
    }
}
