//! Files that several mounts have open for writing, because they share its locks: one of them writes a version at a
//! time. The others have it open all the same, and begin theirs with their first write; whoever gets a lock goes on with
//! what the one before has written and is sealed for that, though it stays open.
//!
//! Not for files that the kernel reads and writes in place by itself: what it was given can't be exchanged.

use super::backend::attr_of;
use super::file::Handle;
use super::object::{Data, Object};
use super::table::{Key, Node, Phase, Way, Writing};
use super::together::Together;
use super::version::WRITER_PATIENCE;
use super::{Caller, Fs, Pace, patience};
use crate::error::Error;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1::{self, name_op::Op};

/// How long, and how often, the end of a close is waited for whose beginning was heard.
const CLOSE_PAUSE: Duration = Duration::from_millis(5);
const CLOSE_PAUSES: u32 = 20;
/// How often a file is looked at that others go on writing.
const REFRESH_TRIES: u32 = 40;

impl Fs {
    /// Opens a file for writing that another mount writes now: as for reading, until something is written.
    pub(super) fn bind_idle(&self, caller: Caller, key: Key, node: &Node) -> Result<(), Error> {
        let mut tries = 0;
        let (mut state, object) = loop {
            let object = self.reading_object(caller, node, Pace::MayWait)?;
            self.follow(node, &object);
            let state = node.state.lock();
            tries += 1;
            if state.is_current(object.id) || tries == REFRESH_TRIES {
                break (state, object);
            }
        };
        let direct = state.bound_now().is_some_and(|(_, direct)| direct);
        if direct && key.alias == state.alias {
            state.next_alias();
        }
        state.bind(key, &object, Way::Uncached)?;
        state.idle_writers += 1;
        Ok(())
    }

    /// Waits for its turn to write: not while a version is being handed on.
    pub(super) fn write_turn(
        node: &Node,
        pace: Pace,
    ) -> Result<parking_lot::RwLockReadGuard<'_, ()>, Error> {
        match node.writes.try_read() {
            Some(turn) => Ok(turn),
            None => {
                pace.wait()?;
                Ok(node.writes.read())
            }
        }
    }

    /// Begins the version that a handle is about to write, if none is open here. The version before may have to be sealed
    /// first, here or by another mount, and its element be away: a program that has the file open is patient for longer
    /// than one that opens it.
    pub(super) fn resume(&self, file: &Handle, keep: u64) -> Result<(), Error> {
        let node = &file.node;
        let (until, until_shared) = (patience::deadline(), patience::now() + WRITER_PATIENCE);
        {
            let mut state = node.state.lock();
            loop {
                let phase = state.writing.as_ref().map(|writing| writing.phase);
                match phase {
                    None if state.idle_writers > 0 => break,
                    None => return Err(Errno::IO.into()),
                    Some(Phase::Open) => {
                        let written = state.written().cloned().ok_or(Errno::IO)?;
                        drop(state);
                        self.follow(node, &written);
                        return Ok(());
                    }
                    Some(_) => {
                        self.sealer.hurry();
                        if patience::wait(&node.changed, &mut state, until) {
                            return Err(self.sealer.errno(node.ino).into());
                        }
                    }
                }
            }
            state.writing = Some(Writing::starting());
        }
        let follow = self.readers_can_follow(node);
        let begun = self.begin(file.caller, node, keep, follow, (until, until_shared));
        let mut state = node.state.lock();
        node.changed.notify_all();
        let begun = begun.inspect_err(|error| state.not_begun(error))?;
        state.begin(&begun, 0);
        drop(state);
        self.follow(node, &begun.object);
        Ok(())
    }

    /// Handles that could write go on with an object: the version that is written here, or will be theirs.
    pub(super) fn follow(&self, node: &Node, object: &Arc<Object>) {
        let aliases = self.aliases_of_writers(node.ino);
        let mut state = node.state.lock();
        if !state.is_current(object.id) {
            return;
        }
        for alias in aliases {
            if state.rebind(alias, object) {
                let ino = node.ino;
                self.forget_pages_soon(Key { ino, alias }.pack());
            }
        }
    }

    /// Seals what programs here have written, if they have it open in a way that lets them go on with a later version.
    pub(super) fn publish(&self, ino: u64) -> Result<(), Error> {
        let Some(node) = self.table.get(ino) else {
            return Ok(());
        };
        let arrived = {
            let all_written = node.writes.write();
            let aliases = self.aliases_of_writers(ino);
            let mut state = node.state.lock();
            let direct = |alias| {
                state
                    .bound
                    .get(alias)
                    .is_some_and(|bound| bound.is_direct())
            };
            let direct = aliases.iter().any(direct);
            // What has no name any more stays what it is until it is closed.
            let stays = direct || state.gone;
            if let Some(object) = state.open_together() {
                drop(state);
                drop(all_written);
                return object.together().map_or(Ok(()), Together::publish);
            }
            let open = state.writing.as_mut().filter(|w| w.phase == Phase::Open);
            let Some(object) = open.filter(|_| !stays).and_then(|w| w.object.clone()) else {
                drop(state);
                return self.wait_sealed(&node);
            };
            drop(state);
            // What can't be written is told now: those who wrote it go on with another version.
            let arrived = object.flush();
            let mut state = node.state.lock();
            if let Some(writing) = state.writing.as_mut().filter(|w| w.phase == Phase::Open) {
                let idle = std::mem::take(&mut writing.writers);
                state.idle_writers += idle;
                self.end_writing(Caller::default(), &node, &mut state, None);
            }
            arrived
        };
        self.wait_sealed(&node)?;
        arrived
    }

    /// Another mount wants to write what is written here: from now on it is noted what is written, and told. Not what the
    /// kernel writes by itself, nor what has locks: that is handed on as a whole.
    pub(super) fn share(&self, ino: u64) {
        let Some(node) = self.table.get(ino) else {
            return;
        };
        let _all_written = node.writes.write();
        let mut state = node.state.lock();
        let open = state.writing.as_ref().filter(|w| w.phase == Phase::Open);
        let Some(object) = open.and_then(|writing| writing.object.clone()) else {
            return;
        };
        let mut bound = state.bound.values();
        let direct = bound.any(|bound| bound.is_direct() && bound.object.id == object.id);
        // Nor what may have to go elsewhere, or has a bound.
        let one = !object.is_striped() && object.together().is_none() && !object.is_bounded();
        if direct || !one || state.gone || state.idle_writers > 0 || self.locks.knows(ino) {
            return;
        }
        // As it is before its first byte is written.
        let made = parking_lot::MutexGuard::unlocked(&mut state, || object.make(u64::MAX));
        let stat = made.and_then(|()| object.stat());
        let stat = match stat {
            Ok(stat) => stat,
            Err(error) => {
                tracing::warn!(ino, "a file can't be written by others, too: {error}");
                return;
            }
        };
        if !state.is_current(object.id) {
            return;
        }
        let (id, element, right) = (object.id, object.element, object.right.clone());
        let file = (ino, Caller::default());
        let together = Together::sharing(self.backend.clone(), file, object, stat);
        let data = Data::Together(Box::new(together));
        state.share(&Arc::new(Object::new(id, element, data, right)));
    }

    /// The aliases by which programs have a file open for writing.
    fn aliases_of_writers(&self, ino: u64) -> Vec<u16> {
        let files = self.files.lock();
        let writers = files.values().filter(|file| file.writes(ino));
        writers.map(|file| file.key.alias).collect()
    }

    /// Waits a moment for a close that has begun, so that what it ends is sealed.
    pub(super) fn hear_close(&self, ino: u64) {
        let Some(node) = self.table.get(ino) else {
            return;
        };
        for _ in 0..CLOSE_PAUSES {
            let state = node.state.lock();
            let open = state.writing.as_ref().map(|w| w.phase) == Some(Phase::Open);
            if !open || !state.bound.values().any(|bound| bound.is_direct()) {
                return;
            }
            drop(state);
            std::thread::sleep(CLOSE_PAUSE);
        }
    }

    /// Brings a file that is open here up to what was sealed last, wherever that was.
    pub(super) fn refresh(&self, ino: u64) -> Result<(), Error> {
        let Some(node) = self.table.get(ino) else {
            return Ok(());
        };
        let together = node.state.lock().open_together();
        if let Some(together) = together.as_ref().and_then(|object| object.together()) {
            together.refresh(false)?;
            let aliases: Vec<u16> = node.state.lock().bound.keys().copied().collect();
            for alias in aliases {
                self.forget_pages(Key { ino, alias }.pack());
            }
            return Ok(());
        }
        let mut tries = 0;
        loop {
            tries += 1;
            match self.refresh_once(ino, &node) {
                // Another version was sealed meanwhile, and the one before removed.
                Err(error) if tries < REFRESH_TRIES => {
                    tracing::debug!(ino, "a file is looked at again: {error}");
                    std::thread::sleep(CLOSE_PAUSE);
                }
                other => {
                    // What another open file has brought up to it meanwhile.
                    self.locks.wait_forgotten(ino);
                    return other;
                }
            }
        }
    }

    fn refresh_once(&self, ino: u64, node: &Node) -> Result<(), Error> {
        // Others may have written since the version that was closed here, though its seal is not known here yet.
        self.wait_sealed(node)?;
        let asked = self.table.now();
        let content = true;
        let op = Op::GetAttr(v1::GetAttr { ino, content });
        let attr = attr_of(self.backend.one(Caller::default(), op)?)?;
        {
            let mut state = node.state.lock();
            self.adopt(&mut state, attr, asked);
            if state.written().is_none() && state.attr.object != attr.object {
                // What was changed from here meanwhile keeps the answer from being believed.
                return Err(Errno::STALE.into());
            }
            // A version that is still asked for is not what is to be read.
            let newest = state.newest();
            if !state.bound.values().any(|bound| bound.is_old(newest)) {
                return Ok(());
            }
        }
        // Another version may be sealed meanwhile.
        let object = self.reading_object(Caller::default(), node, Pace::MayWait)?;
        let aliases: Vec<u16> = node.state.lock().bound.keys().copied().collect();
        for alias in aliases {
            let mut state = node.state.lock();
            if !state.is_current(object.id) {
                return Err(Errno::STALE.into());
            }
            let changed = state.rebind(alias, &object);
            drop(state);
            if changed {
                self.forget_pages(Key { ino, alias }.pack());
            }
        }
        Ok(())
    }

    /// Whether a handle shows a version that is not the newest, and can't be brought up to it.
    pub(super) fn has_old_version(&self, handle: u64) -> bool {
        let Ok(file) = self.file(handle) else {
            return false;
        };
        let state = file.node.state.lock();
        let bound = state.bound.get(&file.key.alias);
        bound.is_some_and(|bound| bound.is_direct() && !state.is_current(bound.object.id))
    }
}
