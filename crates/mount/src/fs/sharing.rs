//! Files that several mounts have open for writing, because the mounts share the files' locks. One mount writes a version at a time. The
//! other mounts have the file open as well, and begin their version with their first write. A mount that gets a lock continues with the
//! writes of the previous holder, whose version is sealed for this although the file stays open (next: `mount/src/fs/seal.rs`).
//!
//! Files that the Linux kernel reads and writes directly are excluded, because the file that the kernel uses cannot be exchanged.

use super::backend::attr_of;
use super::file::FileHandle;
use super::multi_writer::MultiWriter;
use super::object::{ObjectData, OpenObject};
use super::table::{CachedInode, CachingMode, InodeKey, VersionPhase, WrittenVersion};
use super::version::WRITER_PATIENCE;
use super::{Caller, Fs, WaitPolicy, deadline};
use crate::error::Error;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1::{self, name_op::Op};

/// Pause between checks for the end of a close whose beginning was recorded.
const CLOSE_PAUSE: Duration = Duration::from_millis(5);
const CLOSE_PAUSES: u32 = 20;
/// Maximum number of times that a file is refreshed while other mounts continue to write it.
const REFRESH_TRIES: u32 = 40;

impl Fs {
    /// Opens a file for writing that another mount writes now: until the first write, the file is open as for reading.
    pub(super) fn bind_idle(
        &self,
        caller: Caller,
        key: InodeKey,
        vnode: &CachedInode,
    ) -> Result<(), Error> {
        let mut tries = 0;
        let (mut state, object) = loop {
            let object = self.reading_object(caller, vnode, WaitPolicy::MayWait)?;
            self.follow(vnode, &object);
            let state = vnode.state.lock();
            tries += 1;
            if state.is_current(object.id) || tries == REFRESH_TRIES {
                break (state, object);
            }
        };
        let direct = state.bound_now().is_some_and(|(_, direct)| direct);
        if direct && key.alias == state.alias {
            state.next_alias();
        }
        state.bind(key, &object, CachingMode::Uncached)?;
        state.idle_writers += 1;
        Ok(())
    }

    /// Waits until the handle may write, because writes are blocked while a version is passed to other mounts.
    pub(super) fn write_turn(
        vnode: &CachedInode,
        pace: WaitPolicy,
    ) -> Result<parking_lot::RwLockReadGuard<'_, ()>, Error> {
        match vnode.writes.try_read() {
            Some(turn) => Ok(turn),
            None => {
                pace.wait()?;
                Ok(vnode.writes.read())
            }
        }
    }

    /// Begins the version that a handle is about to write, if no version is open on this mount. The previous version may have to be sealed
    /// first, on this or another mount, and its node may be offline, so a program that has the file open waits longer than a program that
    /// opens it.
    pub(super) fn resume(&self, file: &FileHandle, keep: u64) -> Result<(), Error> {
        let vnode = &file.vnode;
        let (until, until_shared) = (deadline::deadline(), deadline::now() + WRITER_PATIENCE);
        {
            let mut state = vnode.state.lock();
            loop {
                let phase = state.writing.as_ref().map(|writing| writing.phase);
                match phase {
                    None if state.idle_writers > 0 => break,
                    None => return Err(Errno::IO.into()),
                    Some(VersionPhase::Open) => {
                        let written = state.written().cloned().ok_or(Errno::IO)?;
                        drop(state);
                        self.follow(vnode, &written);
                        return Ok(());
                    }
                    Some(_) => {
                        self.sealer.hurry();
                        if deadline::wait(&vnode.changed, &mut state, until) {
                            return Err(self.sealer.errno(vnode.ino).into());
                        }
                    }
                }
            }
            state.writing = Some(WrittenVersion::starting());
        }
        let follow = self.readers_can_follow(vnode);
        let begun = self.begin(file.caller, vnode, keep, follow, (until, until_shared));
        let mut state = vnode.state.lock();
        vnode.changed.notify_all();
        let begun = begun.inspect_err(|error| state.begin_failed(error))?;
        state.begin(&begun, 0);
        drop(state);
        self.follow(vnode, &begun.object);
        Ok(())
    }

    /// Moves idle handles that could write to an object: the version that is written on this mount, or the version that they are going to
    /// write.
    pub(super) fn follow(&self, vnode: &CachedInode, object: &Arc<OpenObject>) {
        let aliases = self.aliases_of_writers(vnode.ino);
        let mut state = vnode.state.lock();
        if !state.is_current(object.id) {
            return;
        }
        for alias in aliases {
            if state.rebind(alias, object) {
                let ino = vnode.ino;
                self.forget_pages_soon(InodeKey { ino, alias }.pack());
            }
        }
    }

    /// Seals the writes of programs on this mount, if they have the file open in a way that lets them continue with a later version.
    pub(super) fn publish(&self, ino: u64) -> Result<(), Error> {
        let Some(vnode) = self.table.get(ino) else {
            return Ok(());
        };
        let arrived = {
            let all_written = vnode.writes.write();
            let aliases = self.aliases_of_writers(ino);
            let mut state = vnode.state.lock();
            let direct = |alias| {
                state
                    .bound
                    .get(alias)
                    .is_some_and(|bound| bound.is_direct())
            };
            let direct = aliases.iter().any(direct);
            // A file without a name keeps its version until it is closed.
            let stays = direct || state.deleted;
            if let Some(object) = state.open_multi_writer() {
                drop(state);
                drop(all_written);
                return object.multi_writer().map_or(Ok(()), MultiWriter::publish);
            }
            let open = state
                .writing
                .as_mut()
                .filter(|w| w.phase == VersionPhase::Open);
            let Some(object) = open.filter(|_| !stays).and_then(|w| w.object.clone()) else {
                drop(state);
                return self.wait_sealed(&vnode);
            };
            drop(state);
            // A failed write is reported now: its writers continue with another version.
            let arrived = object.flush();
            let mut state = vnode.state.lock();
            if let Some(writing) = state
                .writing
                .as_mut()
                .filter(|w| w.phase == VersionPhase::Open)
            {
                let idle = std::mem::take(&mut writing.writers);
                state.idle_writers += idle;
                self.end_writing(Caller::default(), &vnode, &mut state, None);
            }
            arrived
        };
        self.wait_sealed(&vnode)?;
        arrived
    }

    /// Lets another mount write the file that this mount writes: from now on this mount records each write and reports it to the server.
    /// Excludes files that the Linux kernel writes directly, and files with locks, whose versions are passed on as a whole.
    pub(super) fn share(&self, ino: u64) {
        let Some(vnode) = self.table.get(ino) else {
            return;
        };
        let _all_written = vnode.writes.write();
        let mut state = vnode.state.lock();
        let open = state
            .writing
            .as_ref()
            .filter(|w| w.phase == VersionPhase::Open);
        let Some(object) = open.and_then(|writing| writing.object.clone()) else {
            return;
        };
        let mut bound = state.bound.values();
        let direct = bound.any(|bound| bound.is_direct() && bound.object.id == object.id);
        // Nor for a version that may have to move to another node, or has a limit of its size.
        let one = !object.is_striped() && object.multi_writer().is_none() && !object.is_bounded();
        if direct || !one || state.deleted || state.idle_writers > 0 || self.locks.knows(ino) {
            return;
        }
        // The part begins in its state before the first write.
        let made = parking_lot::MutexGuard::unlocked(&mut state, || object.make(u64::MAX));
        let stat = made.and_then(|()| object.stat());
        let stat = match stat {
            Ok(stat) => stat,
            Err(error) => {
                tracing::warn!(ino, "a file can't be shared with other writers: {error}");
                return;
            }
        };
        if !state.is_current(object.id) {
            return;
        }
        let (id, node, right) = (object.id, object.node, object.right.clone());
        let file = (ino, Caller::default());
        let multi_writer = MultiWriter::sharing(self.backend.clone(), file, object, stat);
        let data = ObjectData::MultiWriter(Box::new(multi_writer));
        state.share(&Arc::new(OpenObject::new(id, node, data, right)));
    }

    /// Returns the aliases under which programs have a file open for writing.
    fn aliases_of_writers(&self, ino: u64) -> Vec<u16> {
        let files = self.files.lock();
        let writers = files.values().filter(|file| file.writes(ino));
        writers.map(|file| file.key.alias).collect()
    }

    /// Waits briefly for a close that has begun, so that the version that the close ends is sealed.
    pub(super) fn wait_for_close(&self, ino: u64) {
        let Some(vnode) = self.table.get(ino) else {
            return;
        };
        for _ in 0..CLOSE_PAUSES {
            let state = vnode.state.lock();
            let open = state.writing.as_ref().map(|w| w.phase) == Some(VersionPhase::Open);
            if !open || !state.bound.values().any(|bound| bound.is_direct()) {
                return;
            }
            drop(state);
            std::thread::sleep(CLOSE_PAUSE);
        }
    }

    /// Updates a file that is open on this mount to the version that was sealed last, on any mount.
    pub(super) fn refresh(&self, ino: u64) -> Result<(), Error> {
        let Some(vnode) = self.table.get(ino) else {
            return Ok(());
        };
        let multi_writer = vnode.state.lock().open_multi_writer();
        if let Some(multi_writer) = multi_writer
            .as_ref()
            .and_then(|object| object.multi_writer())
        {
            multi_writer.refresh(false)?;
            let aliases: Vec<u16> = vnode.state.lock().bound.keys().copied().collect();
            for alias in aliases {
                self.forget_pages(InodeKey { ino, alias }.pack());
            }
            return Ok(());
        }
        let mut tries = 0;
        loop {
            tries += 1;
            match self.refresh_once(ino, &vnode) {
                // Another version was sealed in the meantime, and the one before was removed.
                Err(error) if tries < REFRESH_TRIES => {
                    tracing::debug!(ino, "a file is checked again: {error}");
                    std::thread::sleep(CLOSE_PAUSE);
                }
                other => {
                    // Another open file may have started an invalidation in the meantime.
                    self.locks.wait_forgotten(ino);
                    return other;
                }
            }
        }
    }

    fn refresh_once(&self, ino: u64, vnode: &CachedInode) -> Result<(), Error> {
        // Others may have written since the version that was closed here, though its seal is not known here yet.
        self.wait_sealed(vnode)?;
        let asked = self.table.now();
        let content = true;
        let op = Op::GetAttr(v1::GetAttr { ino, content });
        let attr = attr_of(self.backend.one(Caller::default(), op)?)?;
        {
            let mut state = vnode.state.lock();
            self.adopt(&mut state, attr, asked);
            if state.written().is_none() && state.attr.object != attr.object {
                // A concurrent change from here keeps the answer from being used.
                return Err(Errno::STALE.into());
            }
            // A version that is still being asked for is not read.
            let newest = state.newest();
            if !state.bound.values().any(|bound| bound.is_old(newest)) {
                return Ok(());
            }
        }
        // Another version may be sealed in the meantime.
        let object = self.reading_object(Caller::default(), vnode, WaitPolicy::MayWait)?;
        let aliases: Vec<u16> = vnode.state.lock().bound.keys().copied().collect();
        for alias in aliases {
            let mut state = vnode.state.lock();
            if !state.is_current(object.id) {
                return Err(Errno::STALE.into());
            }
            let changed = state.rebind(alias, &object);
            drop(state);
            if changed {
                self.forget_pages(InodeKey { ino, alias }.pack());
            }
        }
        Ok(())
    }

    /// Whether a handle shows an old version, and cannot be updated to the newest version.
    pub(super) fn has_old_version(&self, handle: u64) -> bool {
        let Ok(file) = self.file(handle) else {
            return false;
        };
        let state = file.vnode.state.lock();
        let bound = state.bound.get(&file.key.alias);
        bound.is_some_and(|bound| bound.is_direct() && !state.is_current(bound.object.id))
    }
}
