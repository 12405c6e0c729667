//! Open files.

use super::object::Object;
use super::table::Node;
use super::{Caller, Found, Fs, Key, Pace};
use crate::error::Error;
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;

/// An open file.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) key: Key,
    pub(crate) node: Arc<Node>,
    pub(crate) object: Arc<Object>,
    write: bool,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenHow {
    pub(crate) write: bool,
    pub(crate) truncate: bool,
}

/// What the kernel is told about an open file.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) handle: u64,
    /// The file that the kernel may read and write by itself.
    pub(crate) local: Option<Arc<File>>,
    /// The object, so that the kernel keeps the pages it has of it.
    pub(crate) object: u64,
    /// Whether it is open for writing.
    pub(crate) write: bool,
}

impl Fs {
    pub(crate) fn open(
        &self,
        caller: Caller,
        key: Key,
        how: OpenHow,
        pace: Pace,
    ) -> Result<Opened, Error> {
        let node = self.node(key.ino);
        let write = how.write || how.truncate;
        let object = if write {
            self.writing_object(caller, key, &node, how.truncate, pace)?
        } else {
            let object = self.reading_object(caller, &node, pace)?;
            node.state.lock().bind(key, &object)?;
            object
        };
        Ok(self.opened(key, node, object, write))
    }

    /// Makes a file and opens it.
    pub(crate) fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        pace: Pace,
    ) -> Result<(Found, Opened), Error> {
        super::names::check_change(parent, name, Errno::EXIST)?;
        pace.wait()?;
        let (node, object, found) = self.create_open(caller, parent, name, mode)?;
        let opened = self.opened(found.key, node, object, true);
        Ok((found, opened))
    }

    fn opened(&self, key: Key, node: Arc<Node>, object: Arc<Object>, write: bool) -> Opened {
        let handle = self.handle_number();
        let opened = Opened {
            handle,
            local: object.local().cloned(),
            object: object.id,
            write,
        };
        let file = Handle {
            key,
            node,
            object,
            write,
        };
        self.files.lock().insert(handle, Arc::new(file));
        opened
    }

    fn file(&self, handle: u64) -> Result<Arc<Handle>, Error> {
        let files = self.files.lock();
        files
            .get(&handle)
            .cloned()
            .ok_or_else(|| Errno::BADF.into())
    }

    pub(crate) fn read(
        &self,
        handle: u64,
        offset: u64,
        length: usize,
        pace: Pace,
    ) -> Result<Vec<u8>, Error> {
        let file = self.file(handle)?;
        if file.object.waits() {
            pace.wait()?;
        }
        file.object.read(offset, length)
    }

    /// Writes; an appending writer writes at the end, wherever that is now.
    pub(crate) fn write(
        &self,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        pace: Pace,
    ) -> Result<(), Error> {
        let file = self.file(handle)?;
        if !file.write {
            return Err(Errno::BADF.into());
        }
        if file.object.waits() {
            pace.wait()?;
        }
        file.object.write(offset, bytes)
    }

    /// One of the descriptors of an open file was closed: errors of writing can be told now.
    pub(crate) fn flush(&self, handle: u64, pace: Pace) -> Result<(), Error> {
        let file = self.file(handle)?;
        if !file.write || !file.object.waits() {
            return Ok(());
        }
        pace.wait()?;
        file.object.flush()
    }

    /// Makes the bytes and the name of the file survive power loss.
    pub(crate) fn fsync(&self, caller: Caller, handle: u64, pace: Pace) -> Result<(), Error> {
        let file = self.file(handle)?;
        pace.wait()?;
        if file.write {
            file.object.sync()?;
        }
        self.sync_names(caller)
    }

    /// The last descriptor of an open file is gone.
    pub(crate) fn release(&self, caller: Caller, handle: u64) {
        let Some(file) = self.files.lock().remove(&handle) else {
            return;
        };
        if file.write {
            self.close_writer(caller, &file.node, file.key.alias);
        } else {
            file.node.state.lock().unbind(file.key.alias);
        }
        self.table.drop_unused(file.key.ino);
    }

    pub(crate) fn allocate(
        &self,
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<(), Error> {
        let file = self.file(handle)?;
        if !file.write {
            return Err(Errno::BADF.into());
        }
        file.object.allocate(offset, length, mode)
    }

    /// Where data (or a hole) begins at or after `offset`.
    pub(crate) fn seek(&self, handle: u64, offset: u64, data: bool) -> Result<u64, Error> {
        self.file(handle)?.object.seek(offset, data)
    }

    /// Copies within the element's device, without the bytes passing through here.
    pub(crate) fn copy_range(
        &self,
        from: (u64, u64),
        to: (u64, u64),
        length: u64,
    ) -> Result<u64, Error> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        if !target.write {
            return Err(Errno::BADF.into());
        }
        target
            .object
            .copy_from(&source.object, from.1, to.1, length)
    }

    /// Handles that could write, of all files.
    pub(crate) fn writers(&self) -> usize {
        self.files.lock().values().filter(|file| file.write).count()
    }
}
