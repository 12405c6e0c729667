//! The bytes of one object for open files: an object file on this host, or an object elsewhere (next: `mount/src/fs/remote.rs`).

use super::multi_writer::MultiWriter;
use super::overflow::SpillState;
use super::remote::{NodeObject, now_ns};
use super::right::Right;
use super::striped::OpenStriped;
use crate::error::Error;
use parking_lot::Mutex;
use rustix::fd::AsRawFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, Timespec, fcntl_getfl, open};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tidemill_client::object_file;

const SECOND_NS: i64 = 1_000_000_000;
/// Minimum age of an mtime, in nanoseconds, that can show whether bytes in memory were written.
const MTIME_GRAIN_NS: i64 = SECOND_NS;

fn nanoseconds(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(SECOND_NS).saturating_add(nanos)
}

/// Whether a file's mtime, which was just set to `mtime`, shows every write from now on. A write sets the mtime to the time of the file's
/// last change, or a later time of the same clock.
fn tells_writes(stat: &Metadata, mtime: i64) -> bool {
    let set = nanoseconds(stat.mtime(), stat.mtime_nsec());
    set == mtime && nanoseconds(stat.ctime(), stat.ctime_nsec()) > mtime
}

/// An object that is open in this mount and that all its openers share.
#[derive(Debug)]
pub(crate) struct OpenObject {
    pub(crate) id: u64,
    pub(crate) node: u32,
    pub(crate) data: ObjectData,
    pub(crate) right: Arc<Right>,
    /// Another descriptor of the object's file, which the Linux kernel may use.
    pub(crate) opened_first: Option<Arc<File>>,
    /// For a version on another host that begins as the previous version: the previous version, until the first write. Until then the
    /// object does not exist. Reads use the previous version, and its node copies it when necessary.
    begun_as: Mutex<Option<Begin>>,
    /// Whether the directory entry of the object's file on its node survives power loss.
    pub(crate) entry_durable: AtomicBool,
}

/// First bytes of a sealed object of the same node, with which a new version begins.
#[derive(Debug)]
struct Begin {
    object: Arc<OpenObject>,
    bytes: u64,
}

/// Location of an object's bytes.
#[derive(Debug)]
pub(crate) enum ObjectData {
    /// The bytes are in a file on this host.
    Local(Arc<File>),
    /// The bytes are on a node that the mount reaches by requests.
    Remote(NodeObject),
    /// The bytes are striped over several nodes.
    Striped(OpenStriped),
    /// The bytes are extents that several mounts write.
    MultiWriter(Box<MultiWriter>),
    /// The bytes are on a node of the memory tier of this host, or on another node since the first was full; or in a workspace with a
    /// quota.
    Memory(Box<SpillState>),
    /// There are no bytes, because a file that has no version yet is empty.
    Nothing,
}

/// Attributes that change while an object is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteStat {
    pub(crate) size: u64,
    /// Time of the last write, in nanoseconds since the Unix epoch.
    pub(crate) mtime: i64,
    /// Space of the object on the device, in 512-byte blocks.
    pub(crate) blocks: u64,
}

impl OpenObject {
    pub(crate) fn new(id: u64, node: u32, data: ObjectData, right: Arc<Right>) -> Self {
        Self {
            id,
            node,
            data,
            right,
            opened_first: None,
            begun_as: Mutex::default(),
            entry_durable: AtomicBool::new(false),
        }
    }

    /// Returns the file that the Linux kernel may read and write directly.
    pub(crate) fn local(&self) -> Option<&Arc<File>> {
        match &self.data {
            ObjectData::Local(file) => Some(file),
            _ => None,
        }
    }

    /// Whether reading and writing waits for another process.
    pub(crate) fn waits(&self) -> bool {
        let asks = |part: &Self| match &part.data {
            ObjectData::Remote(_) | ObjectData::MultiWriter(_) => true,
            ObjectData::Memory(memory) => memory.asks(),
            _ => false,
        };
        asks(self) || self.parts().any(asks)
    }

    /// Returns the version that the object is, or is a part of.
    pub(crate) fn version(&self) -> u64 {
        match self.multi_writer().map(MultiWriter::version) {
            None | Some(0) => self.id,
            Some(version) => version,
        }
    }

    /// Returns the state that the object has as a version that several mounts write, or have written.
    pub(crate) fn multi_writer(&self) -> Option<&MultiWriter> {
        match &self.data {
            ObjectData::MultiWriter(multi_writer) => Some(multi_writer),
            _ => None,
        }
    }

    /// Returns the objects that are written and sealed: this object, or its parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Self> {
        let (itself, several) = match &self.data {
            ObjectData::Striped(striped) => (None, striped.parts()),
            ObjectData::MultiWriter(multi_writer) => {
                (multi_writer.own().map(Arc::as_ref), [].as_slice())
            }
            ObjectData::Memory(memory) => (Some(memory.now().as_ref()), [].as_slice()),
            _ => (Some(self), [].as_slice()),
        };
        itself.into_iter().chain(several.iter().map(Arc::as_ref))
    }

    /// Returns the node that stores the object now.
    pub(crate) fn place(&self) -> u32 {
        match &self.data {
            ObjectData::Memory(memory) => memory.now().node,
            _ => self.node,
        }
    }

    /// Whether a limit applies to the object's size.
    pub(crate) fn is_bounded(&self) -> bool {
        matches!(self.data, ObjectData::Memory(_))
    }

    /// Whether the object is striped over several objects.
    pub(crate) fn is_striped(&self) -> bool {
        matches!(self.data, ObjectData::Striped(_))
    }

    /// Returns a version that begins with the first bytes of another version on the same node, with the mtime `mtime`.
    pub(crate) fn begin_as(self, before: Arc<Self>, bytes: u64, mtime: i64) -> Self {
        if let ObjectData::Remote(remote) = &self.data {
            remote.begin_at(bytes, mtime);
            *self.begun_as.lock() = Some(Begin {
                object: before,
                bytes,
            });
        }
        self
    }

    /// Returns the previous version, if this version began as a copy of it and has certainly not been written.
    pub(crate) fn begun_as(&self) -> Option<Arc<Self>> {
        if let ObjectData::Memory(memory) = &self.data {
            return memory.now().begun_as();
        }
        let begin = self.begun_as.lock();
        begin.as_ref().map(|begin| begin.object.clone())
    }

    /// Creates the object before its first write, with the first `keep` bytes of the previous version.
    pub(super) fn make(&self, keep: u64) -> Result<(), Error> {
        let mut begin = self.begun_as.lock();
        let (Some(Begin { object, bytes }), ObjectData::Remote(remote)) = (&*begin, &self.data)
        else {
            return Ok(());
        };
        let bytes = keep.min(*bytes);
        if bytes > 0 {
            remote.copy(object.id, &object.right, bytes)?;
        }
        *begin = None;
        Ok(())
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        if let Some(before) = self.begun_as() {
            return before.read(offset, length);
        }
        match &self.data {
            ObjectData::Local(file) => {
                let mut buffer = vec![0; length];
                let mut filled = 0;
                while filled < length {
                    match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                        Ok(0) => break,
                        Ok(count) => filled += count,
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                buffer.truncate(filled);
                Ok(buffer)
            }
            ObjectData::Remote(remote) => remote.read(offset, length),
            ObjectData::Striped(striped) => striped.read(offset, length),
            ObjectData::MultiWriter(multi_writer) => multi_writer.read(offset, length),
            ObjectData::Memory(memory) => memory.read(offset, length),
            ObjectData::Nothing => Ok(Vec::new()),
        }
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.make(u64::MAX)?;
        match &self.data {
            ObjectData::Local(file) => Ok(writable(file)?.write_all_at(bytes, offset)?),
            ObjectData::Remote(remote) => remote.write(offset, bytes),
            ObjectData::Striped(striped) => striped.write(offset, bytes),
            ObjectData::MultiWriter(multi_writer) => multi_writer.write(offset, bytes),
            ObjectData::Memory(memory) => memory.write(offset, bytes),
            ObjectData::Nothing => Err(Errno::BADF.into()),
        }
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<(), Error> {
        self.make(size)?;
        match &self.data {
            ObjectData::Local(file) => Ok(writable(file)?.set_len(size)?),
            ObjectData::Remote(remote) => remote.truncate(size),
            ObjectData::Striped(striped) => striped.truncate(size),
            ObjectData::MultiWriter(multi_writer) => multi_writer.truncate(size),
            ObjectData::Memory(memory) => memory.truncate(size),
            ObjectData::Nothing => Err(Errno::BADF.into()),
        }
    }

    /// Drops cached reads, because no program has the object open any more.
    pub(crate) fn rest(&self) {
        match &self.data {
            ObjectData::Remote(remote) => remote.forget(),
            ObjectData::Striped(striped) => striped.parts().iter().for_each(|part| part.rest()),
            ObjectData::MultiWriter(multi_writer) => multi_writer.rest(),
            ObjectData::Memory(memory) => memory.now().rest(),
            ObjectData::Local(_) | ObjectData::Nothing => {}
        }
    }

    /// Sends all buffered bytes to the object's node.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        match &self.data {
            ObjectData::Remote(remote) => remote.flush(),
            ObjectData::Striped(striped) => striped.flush(),
            ObjectData::MultiWriter(multi_writer) => {
                multi_writer.own().map_or(Ok(()), |own| own.flush())
            }
            ObjectData::Memory(memory) => memory.now().flush(),
            _ => Ok(()),
        }
    }

    /// Sends all buffered bytes like [`Self::flush`], retrying for as long as the mount runs.
    pub(crate) async fn flushed(&self) -> Result<(), Error> {
        for part in self.parts() {
            if let ObjectData::Remote(remote) = &part.data {
                remote.flushed().await?;
            }
        }
        Ok(())
    }

    /// Makes the bytes that were written so far survive power loss.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        if let Some(before) = self.begun_as() {
            return before.sync();
        }
        match &self.data {
            ObjectData::Local(file) => Ok(file.sync_all()?),
            ObjectData::Remote(remote) => remote.sync(),
            ObjectData::Striped(striped) => striped.sync(),
            ObjectData::MultiWriter(multi_writer) => multi_writer.sync(),
            ObjectData::Memory(memory) => memory.sync(),
            ObjectData::Nothing => Ok(()),
        }
    }

    pub(crate) fn stat(&self) -> Result<WriteStat, Error> {
        match &self.data {
            ObjectData::Local(file) => {
                let stat = file.metadata()?;
                Ok(WriteStat {
                    size: stat.len(),
                    mtime: nanoseconds(stat.mtime(), stat.mtime_nsec()),
                    blocks: stat.blocks(),
                })
            }
            ObjectData::Remote(remote) => Ok(remote.stat()),
            ObjectData::Striped(striped) => striped.stat(),
            ObjectData::MultiWriter(multi_writer) => Ok(multi_writer.stat()),
            ObjectData::Memory(memory) => memory.stat(),
            ObjectData::Nothing => Ok(WriteStat::default()),
        }
    }

    /// Whether every write from now on changes the mtime, which was just set to `mtime`.
    pub(crate) fn tells_writes(&self, mtime: i64) -> bool {
        match &self.data {
            ObjectData::Local(file) => file.metadata().is_ok_and(|stat| tells_writes(&stat, mtime)),
            // This process sets the mtime.
            ObjectData::Remote(_) => now_ns() > mtime,
            ObjectData::Striped(striped) => {
                let mut parts = striped.parts().iter();
                parts.all(|part| part.tells_writes(mtime))
            }
            ObjectData::MultiWriter(_) | ObjectData::Memory(_) | ObjectData::Nothing => {
                now_ns() - mtime > MTIME_GRAIN_NS
            }
        }
    }

    /// Sets the mtime, in nanoseconds since the Unix epoch.
    pub(crate) fn set_mtime(&self, mtime: i64) -> Result<(), Error> {
        match &self.data {
            ObjectData::Local(file) => {
                let times = rustix::fs::Timestamps {
                    last_access: Timespec {
                        tv_sec: 0,
                        tv_nsec: rustix::fs::UTIME_OMIT,
                    },
                    last_modification: Timespec {
                        tv_sec: mtime.div_euclid(SECOND_NS),
                        tv_nsec: mtime.rem_euclid(SECOND_NS),
                    },
                };
                Ok(rustix::fs::futimens(file, &times)?)
            }
            ObjectData::Remote(remote) => {
                remote.set_mtime(mtime);
                Ok(())
            }
            ObjectData::Striped(striped) => {
                let mut parts = striped.parts().iter();
                parts.try_for_each(|part| part.set_mtime(mtime))
            }
            ObjectData::MultiWriter(multi_writer) => {
                multi_writer.set_mtime(mtime);
                Ok(())
            }
            ObjectData::Memory(memory) => memory.now().set_mtime(mtime),
            ObjectData::Nothing => Ok(()),
        }
    }

    pub(crate) fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<(), Error> {
        self.make(u64::MAX)?;
        let file = match &self.data {
            ObjectData::Local(file) => writable(file)?,
            ObjectData::Remote(remote) => return remote.allocate(offset, length, mode),
            ObjectData::Memory(memory) => return memory.allocate(offset, length, mode),
            // A program that needs the space then writes zeros.
            ObjectData::Striped(_) | ObjectData::MultiWriter(_) => {
                return Err(Errno::OPNOTSUPP.into());
            }
            ObjectData::Nothing => return Err(Errno::BADF.into()),
        };
        let flags = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        Ok(rustix::fs::fallocate(file, flags, offset, length)?)
    }

    /// Returns the offset at or after `offset` at which data (or, if `data` is false, a hole) begins.
    pub(crate) fn seek(&self, offset: u64, data: bool) -> Result<u64, Error> {
        if let ObjectData::Memory(memory) = &self.data {
            return memory.seek(offset, data);
        }
        if let ObjectData::Local(file) = &self.data {
            let from = if data {
                rustix::fs::SeekFrom::Data(offset)
            } else {
                rustix::fs::SeekFrom::Hole(offset)
            };
            return Ok(rustix::fs::seek(file, from)?);
        }
        let size = self.stat()?.size;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        Ok(if data { offset } else { size })
    }

    /// Copies bytes from another object on this host. Returns the number of copied bytes.
    pub(crate) fn copy_from(
        &self,
        from: &Self,
        mut from_offset: u64,
        mut offset: u64,
        length: u64,
    ) -> Result<u64, Error> {
        let (ObjectData::Local(source), ObjectData::Local(target)) = (&from.data, &self.data)
        else {
            return Err(Errno::OPNOTSUPP.into());
        };
        let target = writable(target)?;
        let mut copied = 0;
        while copied < length {
            let rest = usize::try_from(length - copied).unwrap_or(usize::MAX);
            match rustix::fs::copy_file_range(
                source,
                Some(&mut from_offset),
                &target,
                Some(&mut offset),
                rest,
            ) {
                Ok(0) => break,
                Ok(count) => copied += count as u64,
                Err(_) if copied > 0 => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(copied)
    }

    /// Copies `from..to` of another object on this host to the same offsets, without holes. Afterwards the object has at least `to` bytes.
    pub(crate) fn copy_data(&self, source: &Self, from: u64, to: u64) -> Result<(), Error> {
        let (ObjectData::Local(source), ObjectData::Local(target)) = (&source.data, &self.data)
        else {
            return Err(Errno::OPNOTSUPP.into());
        };
        let target = writable(target)?;
        Ok(object_file::copy_data(source, &target, from, to)?)
    }

    /// Reopens the object's file for reading only: from now on only the programs that got descriptors of the file are its writers. This
    /// process can still write to the file through [`writable`].
    pub(crate) fn let_go(&mut self) -> Result<(), Error> {
        if let ObjectData::Local(file) = &mut self.data {
            let reading = reopened(file, OFlags::RDONLY)?;
            // On a device without locks, no other process can take files over.
            let _ = object_file::hold(&reading);
            *file = Arc::new(reading);
        }
        Ok(())
    }

    /// Whether the path of the file now leads to another file, or to none.
    pub(crate) fn is_replaced(&self) -> bool {
        let file = self.local();
        file.is_some_and(|file| file.metadata().is_ok_and(|stat| stat.nlink() == 0))
    }
}

fn reopened(file: &File, how: OFlags) -> Result<File, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, how | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Returns a descriptor of the file for writing: reopened if this process has it open for reading only ([`OpenObject::let_go`]). A sealed
/// file is never writable.
fn writable(file: &Arc<File>) -> Result<Arc<File>, Error> {
    if fcntl_getfl(file)? & OFlags::RWMODE != OFlags::RDONLY {
        return Ok(file.clone());
    }
    if file.metadata()?.mode() & 0o222 == 0 {
        return Err(Errno::BADF.into());
    }
    Ok(Arc::new(reopened(file, OFlags::RDWR)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_object_reopens_for_write_until_sealed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("object");
        let mut how = File::options();
        let file = how.read(true).write(true).create_new(true).open(&path);
        let data = ObjectData::Local(Arc::new(file.unwrap()));
        let mut object = OpenObject::new(1, 1, data, Right::none(1, 1));
        object.write(0, b"before").unwrap();
        object.let_go().unwrap();
        let flags = fcntl_getfl(object.local().unwrap()).unwrap();
        assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY);
        object.write(6, b", after").unwrap();
        object.truncate(9).unwrap();
        assert_eq!(object.read(0, 100).unwrap(), b"before, a");
        // A sealed file is not opened for writing again, whatever rights this process has.
        let sealed = std::os::unix::fs::PermissionsExt::from_mode(0o444);
        std::fs::set_permissions(&path, sealed).unwrap();
        assert!(object.write(0, b"B").unwrap_err().is(Errno::BADF));
        assert!(object.truncate(0).unwrap_err().is(Errno::BADF));
        assert!(!object.is_replaced());
        std::fs::write(directory.path().join("copy"), "copy").unwrap();
        std::fs::rename(directory.path().join("copy"), &path).unwrap();
        assert!(object.is_replaced());
    }

    #[test]
    fn mtime_shows_writes_after_clock_has_passed_it() {
        let file = tempfile::tempfile().unwrap();
        let object = OpenObject::new(1, 1, ObjectData::Local(Arc::new(file)), Right::none(1, 1));
        let changed = |mtime| {
            object.set_mtime(mtime).unwrap();
            object.tells_writes(mtime)
        };
        assert!(changed(1_000_000_000));
        assert!(changed(-250_000_000));
        assert!(!changed(now_ns() + 3600 * SECOND_NS));
        let ObjectData::Local(file) = &object.data else {
            unreachable!()
        };
        let stat = file.metadata().unwrap();
        let now = nanoseconds(stat.ctime(), stat.ctime_nsec());
        assert!(!tells_writes(&stat, now), "the time is not set explicitly");
    }
}
