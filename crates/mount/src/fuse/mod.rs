//! The adapter between the Linux kernel and [`crate::fs`]: converts requests and answers, and decides nothing else (next:
//! `mount/src/fs/mod.rs`).
//!
//! One thread reads requests. The thread answers a request itself if the answer needs no wait. A request that has to wait for a server is
//! given to a thread pool, so that a slow node delays no other requests.

mod backing;
mod caches;
mod convert;
mod followed;
mod list;
mod lock;
mod remote_stores;
mod waiting;

pub(crate) use caches::Caches;

use crate::error::Error;
use crate::fs::file::OpenHow;
use crate::fs::names::{AttributeChanges, NewEntry, Renaming};
use crate::fs::{Caller, Fs, InodeKey, LookupResult, WaitPolicy, deadline, kind_of_mode};
use backing::BackingState;
use convert::{attr_of, caller, errno, file_type, nanoseconds};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidemill_model::id::Inode;
use tidemill_wire::v1::Kind;
use waiting::Refuse;

/// Maximum size of a write that the Linux kernel sends at once, in bytes.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of background requests of the Linux kernel: read-ahead, and releases, which must not lag after the opens that follow
/// them.
const BACKGROUND_MAX: u16 = 1024;
/// FUSE features that the mount requests from the Linux kernel, if the kernel has them.
const WANTED: [InitFlags; 12] = [
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
    InitFlags::FUSE_PASSTHROUGH,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    // Always: after a listing without attributes the kernel asks for each of them.
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

/// Adapter for the requests of the Linux kernel to one mount.
#[derive(Debug)]
pub(crate) struct Adapter(Arc<BackingState>);

impl Adapter {
    pub(crate) fn new(fs: Arc<Fs>, caches: Caches) -> Self {
        Self(Arc::new(BackingState::new(fs, caches)))
    }

    /// Answers a request at once if `op` can, else gives the request to the thread pool. `unheard` releases the result if the Linux kernel
    /// no longer waits for the answer.
    fn serve<R, T>(
        &self,
        thread: u32,
        reply: R,
        op: impl Fn(&Fs, WaitPolicy) -> Result<T, Error> + Send + 'static,
        answer: impl FnOnce(&BackingState, R, Result<T, Error>) + Send + 'static,
        unheard: impl FnOnce(&BackingState, T) + Send + 'static,
    ) where
        R: Refuse,
    {
        match op(&self.0.fs, WaitPolicy::Now) {
            Err(Error::Later) => {
                let op = move |fs: &Fs| op(fs, WaitPolicy::MayWait);
                self.serve_later(thread, reply, op, answer, unheard);
            }
            outcome => answer(&self.0, reply, outcome),
        }
    }

    /// Gives a request to the thread pool.
    fn serve_later<R, T>(
        &self,
        thread: u32,
        reply: R,
        op: impl FnOnce(&Fs) -> Result<T, Error> + Send + 'static,
        answer: impl FnOnce(&BackingState, R, Result<T, Error>) + Send + 'static,
        unheard: impl FnOnce(&BackingState, T) + Send + 'static,
    ) where
        R: Refuse,
    {
        let inner = self.0.clone();
        let slot = self.0.waiting.enter(thread, reply);
        self.0.fs.backend.runtime.spawn_blocking(move || {
            let outcome = deadline::serve(|| op(&inner.fs));
            match (slot.take(), outcome) {
                (Some(reply), outcome) => answer(&inner, reply, outcome),
                (None, Ok(outcome)) => unheard(&inner, outcome),
                (None, Err(error)) => tracing::debug!("no request waits for this error: {error}"),
            }
        });
    }

    fn serve_empty(
        &self,
        thread: u32,
        reply: ReplyEmpty,
        op: impl Fn(&Fs, WaitPolicy) -> Result<(), Error> + Send + 'static,
    ) {
        let answer = |_: &BackingState, reply: ReplyEmpty, outcome| match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        };
        self.serve(thread, reply, op, answer, |_, ()| {});
    }

    fn serve_entry(
        &self,
        thread: u32,
        reply: ReplyEntry,
        op: impl Fn(&Fs, WaitPolicy) -> Result<LookupResult, Error> + Send + 'static,
    ) {
        let answer = |inner: &BackingState,
                      reply: ReplyEntry,
                      outcome: Result<LookupResult, Error>| match outcome {
            Ok(found) => {
                let attr = attr_of(&found, found.key.pack());
                let _gate = inner.fs.table.gate.read();
                let (attr_ttl, entry_ttl) = inner.fs.ttls(&found);
                reply.entry_with_ttls(&attr_ttl, &entry_ttl, &attr, Generation(0));
            }
            Err(error) => reply.error(errno(&error)),
        };
        self.serve(thread, reply, op, answer, |inner, found| {
            inner.fs.forget(found.key, 1);
        });
    }

    fn serve_bytes(
        &self,
        thread: u32,
        reply: ReplyData,
        op: impl Fn(&Fs, WaitPolicy) -> Result<Vec<u8>, Error> + Send + 'static,
    ) {
        let answer =
            |_: &BackingState, reply: ReplyData, outcome: Result<Vec<u8>, Error>| match outcome {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(errno(&error)),
            };
        self.serve(thread, reply, op, answer, |_, _| {});
    }

    fn serve_xattr(
        &self,
        thread: u32,
        reply: ReplyXattr,
        size: u32,
        op: impl Fn(&Fs, WaitPolicy) -> Result<Vec<u8>, Error> + Send + 'static,
    ) {
        let answer = move |_: &BackingState, reply: ReplyXattr, outcome: Result<Vec<u8>, Error>| {
            match outcome {
                Ok(bytes) => match u32::try_from(bytes.len()) {
                    Ok(length) if size == 0 => reply.size(length),
                    Ok(length) if length <= size => reply.data(&bytes),
                    _ => reply.error(fuser::Errno::ERANGE),
                },
                Err(error) => reply.error(errno(&error)),
            }
        };
        self.serve(thread, reply, op, answer, |_, _| {});
    }

    fn serve_attr(
        &self,
        thread: u32,
        reply: ReplyAttr,
        op: impl Fn(&Fs, WaitPolicy) -> Result<LookupResult, Error> + Send + 'static,
    ) {
        let answer = |inner: &BackingState,
                      reply: ReplyAttr,
                      outcome: Result<LookupResult, Error>| match outcome {
            Ok(found) => {
                let attr = attr_of(&found, found.attr.ino);
                let _gate = inner.fs.table.gate.read();
                let known = !inner.fs.table.changed_since(found.key.ino, found.asked);
                let ttl = if known { found.ttl } else { Duration::ZERO };
                reply.attr(&ttl, &attr);
            }
            Err(error) => reply.error(errno(&error)),
        };
        self.serve(thread, reply, op, answer, |_, _| {});
    }
}

fn key(ino: INodeNo) -> InodeKey {
    InodeKey::unpack(ino.0)
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!("the Linux kernel lacks {flag:?}");
                match flag {
                    InitFlags::FUSE_PASSTHROUGH => self.0.fs.not_direct(),
                    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP => self.0.caches_all(),
                    _ => {}
                }
            }
        }
        // If the kernel refuses a value, the nearest allowed value is equally good.
        let _ = config.set_max_stack_depth(1);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(parent.0) {
            return self.remote_lookup(remote_stores, request, (parent, name), reply);
        }
        let (caller, parent, name) = (caller(request), key(parent), name.to_owned());
        self.serve_entry(request.pid(), reply, move |fs, pace| {
            let name = name.as_bytes();
            if parent.is_special() {
                return fs.control_lookup(caller, parent.ino, name, pace);
            }
            if parent.ino == Inode::ROOT.0 {
                let own = fs.control.at_root(name);
                return own.map_or_else(|| fs.lookup_at_root(caller, name, pace), Ok);
            }
            fs.lookup(caller, parent.ino, name, pace)
        });
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            return remote_stores.forget(ino.0, lookups);
        }
        self.0.fs.forget(key(ino), lookups);
        if self.0.fs.table.get(key(ino).ino).is_none() {
            self.0.forget_pages(ino.0);
        }
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            return remote_stores::getattr(remote_stores, ino, reply);
        }
        let (caller, key) = (caller(request), key(ino));
        self.serve_attr(request.pid(), reply, move |fs, pace| {
            if key.is_special() {
                fs.control_getattr(caller, key.ino, pace)
            } else {
                fs.getattr(caller, key, pace)
            }
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if self.0.fs.remote_stores_at(ino.0).is_some() {
            return reply.error(fuser::Errno::EROFS);
        }
        let (caller, key) = (caller(request), key(ino));
        let changes = AttributeChanges {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(nanoseconds),
            mtime: mtime.map(nanoseconds),
        };
        self.serve_attr(request.pid(), reply, move |fs, pace| {
            if key.is_special() {
                // Shells truncate `submit` before they write to it.
                return fs.control_getattr(caller, key.ino, pace);
            }
            fs.setattr(caller, key, changes, pace)
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let (caller, key) = (caller(request), key(ino));
        self.serve_bytes(request.pid(), reply, move |fs, pace| {
            if key.is_special() {
                fs.control_readlink(key.ino)
            } else {
                fs.readlink(caller, key.ino, pace)
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let kind = kind_of_mode(mode).unwrap_or(Kind::File);
        let new = NewEntry {
            kind,
            mode: mode & 0o7777 & !umask,
            rdev,
            target: Vec::new(),
        };
        self.make(request, parent, name, new, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = NewEntry {
            kind: Kind::Directory,
            mode: mode & 0o7777 & !umask,
            rdev: 0,
            target: Vec::new(),
        };
        self.make(request, parent, name, new, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let new = NewEntry {
            kind: Kind::Symlink,
            mode: 0o777,
            rdev: 0,
            target: target.as_os_str().as_bytes().to_vec(),
        };
        self.make(request, parent, name, new, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(request, parent, name, false, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(request, parent, name, true, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (key(parent), key(newparent));
        if from.is_special() || to.is_special() {
            return reply.error(self.not_here(&[from, to]));
        }
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return reply.error(fuser::Errno::EINVAL);
        }
        let how = Renaming {
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
        };
        let (caller, name, newname) = (caller(request), name.to_owned(), newname.to_owned());
        self.serve_empty(request.pid(), reply, move |fs, pace| {
            let (from, to) = ((from.ino, name.as_bytes()), (to.ino, newname.as_bytes()));
            fs.rename(caller, from, to, how, pace)
        });
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (vnode, parent) = (key(ino), key(newparent));
        if vnode.is_special() || parent.is_special() {
            return reply.error(self.not_here(&[vnode, parent]));
        }
        let (caller, name) = (caller(request), newname.to_owned());
        self.serve_entry(request.pid(), reply, move |fs, pace| {
            fs.link(caller, vnode.ino, parent.ino, name.as_bytes(), pace)
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            return self.remote_open(remote_stores, request, (ino, flags), reply);
        }
        let (caller, key) = (caller(request), key(ino));
        let how = OpenHow {
            write: flags.acc_mode() != OpenAccMode::O_RDONLY,
            update: flags.acc_mode() == OpenAccMode::O_RDWR,
            truncate: flags.0 & libc::O_TRUNC != 0,
            follows: true,
        };
        if key.is_special() {
            return match self.0.fs.control_open(caller, key.ino, how.write) {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
                Err(error) => reply.error(errno(&error)),
            };
        }
        self.serve(
            caller.pid,
            reply,
            move |fs, pace| fs.open(caller, key, how, pace),
            move |inner, reply, outcome| match outcome {
                Ok(opened) => inner.answer_open(ino.0, reply, &opened),
                Err(error) => reply.error(errno(&error)),
            },
            |inner, opened| inner.fs.release(Caller::default(), opened.handle),
        );
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (caller, parent, name) = (caller(request), key(parent), name.to_owned());
        if parent.is_special() {
            return reply.error(self.not_here(&[parent]));
        }
        let mode = mode & 0o7777 & !umask;
        let exclusive = flags & libc::O_EXCL != 0;
        let how = OpenHow {
            write: true,
            update: flags & libc::O_ACCMODE == libc::O_RDWR,
            truncate: false,
            follows: false,
        };
        self.serve(
            caller.pid,
            reply,
            move |fs, pace| fs.create(caller, parent.ino, name.as_bytes(), (mode, how), pace),
            move |inner, reply, outcome| match outcome {
                Ok((found, opened)) => inner.answer_create(reply, &found, &opened),
                // Another client created it after the kernel's look-up: the kernel has to look again.
                Err(error) if !exclusive && error.is(rustix::io::Errno::EXIST) => {
                    reply.error(fuser::Errno::ESTALE);
                }
                Err(error) => reply.error(errno(&error)),
            },
            |inner, (found, opened)| {
                inner.fs.release(Caller::default(), opened.handle);
                inner.fs.forget(found.key, 1);
            },
        );
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            return self.remote_read(remote_stores, request, (fh, offset, size), reply);
        }
        let special = key(ino).is_special();
        if !special && let Some(following) = self.0.fs.followed(fh.0) {
            return self.read_followed(following, request.pid(), (offset, size), reply);
        }
        self.serve_bytes(request.pid(), reply, move |fs, pace| {
            if special {
                fs.control_read(fh.0, offset, size as usize, pace)
            } else {
                fs.read(fh.0, offset, size as usize, pace)
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write: WriteFlags,
        open: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let special = key(ino).is_special();
        // Bytes from mapped memory have a fixed offset.
        let append = open.0 & libc::O_APPEND != 0 && !write.contains(WriteFlags::FUSE_WRITE_CACHE);
        let write = move |fs: &Fs, data: &[u8], pace| {
            if special {
                fs.control_write(fh.0, data, pace)
            } else if append {
                fs.append(fh.0, offset, data, pace)
            } else {
                fs.write(fh.0, offset, data, pace)
            }
        };
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let answer = move |reply: ReplyWrite, outcome: Result<(), Error>| match outcome {
            Ok(()) => reply.written(length),
            Err(error) => reply.error(errno(&error)),
        };
        match write(&self.0.fs, data, WaitPolicy::Now) {
            Err(Error::Later) => {
                let data = data.to_vec();
                let op = move |fs: &Fs| write(fs, &data, WaitPolicy::MayWait);
                let answer = move |_: &BackingState, reply, outcome| answer(reply, outcome);
                self.serve_later(request.pid(), reply, op, answer, |_, ()| {});
            }
            outcome => answer(reply, outcome),
        }
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let key = key(ino);
        if self.0.fs.remote_stores_at(ino.0).is_some() {
            return reply.ok();
        }
        if key.is_special() {
            return self.serve_empty(request.pid(), reply, move |fs, pace| {
                fs.control_flush(fh.0, pace)
            });
        }
        let closed = move |inner: &BackingState, reported: Box<dyn FnOnce() + Send>| {
            inner.fs.unlock_closed(key.ino, owner.0, reported);
        };
        let answer = move |inner: &BackingState, reply: ReplyEmpty, outcome: Result<(), Error>| {
            let reported = Box::new(move || match outcome {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            });
            closed(inner, reported);
        };
        let op = move |fs: &Fs, pace| fs.flush(fh.0, pace);
        self.serve(request.pid(), reply, op, answer, move |inner, ()| {
            closed(inner, Box::new(|| {}));
        });
    }

    fn release(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        owner: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            remote_stores.release(fh.0);
        } else if key(ino).is_special() {
            self.0.fs.control_release(fh.0);
        } else {
            self.0.release(fh.0);
            self.0.fs.release(caller(request), fh.0);
            let owner = owner.map(|owner| owner.0);
            self.0.fs.unlock_released(key(ino).ino, fh.0, owner);
        }
        reply.ok();
    }

    fn getlk(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        if self.0.fs.remote_stores_at(ino.0).is_some() {
            return reply.locked(start, end, libc::F_UNLCK, 0);
        }
        let asked = lock::LockRequest::new(request, (ino, fh, owner), (start, end), typ, pid);
        self.test_lock(asked, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        if self.0.fs.remote_stores_at(ino.0).is_some() && typ != libc::F_WRLCK {
            // These files are never written.
            return reply.ok();
        }
        let asked = lock::LockRequest::new(request, (ino, fh, owner), (start, end), typ, pid);
        if typ == libc::F_UNLCK {
            self.unlock(asked, reply);
        } else {
            self.set_lock(asked, sleep, reply);
        }
    }

    fn fsync(&self, request: &Request, ino: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        let (caller, special) = (caller(request), key(ino).is_special());
        self.serve_empty(request.pid(), reply, move |fs, pace| {
            if special {
                Ok(())
            } else {
                fs.fsync(caller, fh.0, pace)
            }
        });
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let (caller, key) = (caller(request), key(ino));
        self.serve_empty(request.pid(), reply, move |fs, pace| {
            if key.is_special() {
                return Ok(());
            }
            pace.wait()?;
            fs.sync_directory(caller, key.ino)
        });
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            return remote_stores::opendir(remote_stores, request, ino, reply);
        }
        let key = key(ino);
        let handle = if key.is_special() {
            0
        } else {
            self.0.fs.opendir(key.ino)
        };
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            return self.remote_readdir(remote_stores, request, (ino, fh, offset), reply);
        }
        self.list(request, ino, fh, offset, reply, |_, mut reply, lines| {
            for line in lines {
                let kind = file_type(line.attr.kind());
                if reply.add(
                    INodeNo(line.attr.ino),
                    line.next,
                    kind,
                    OsStr::from_bytes(&line.name),
                ) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            return self.remote_readdirplus(remote_stores, request, (ino, fh, offset), reply);
        }
        self.list(
            request,
            ino,
            fh,
            offset,
            reply,
            move |inner, mut reply, lines| {
                for line in lines {
                    if inner.add_plus(&mut reply, ino, line) {
                        break;
                    }
                }
                reply.ok();
            },
        );
    }

    fn releasedir(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        match self.0.fs.remote_stores_at(ino.0) {
            Some(remote_stores) => remote_stores.releasedir(fh.0),
            None => self.0.fs.releasedir(fh.0),
        }
        reply.ok();
    }

    fn statfs(&self, request: &Request, _: INodeNo, reply: ReplyStatfs) {
        let caller = caller(request);
        self.serve(
            caller.pid,
            reply,
            move |fs, pace| fs.statfs(caller, pace),
            |_, reply, outcome| match outcome {
                Ok(space) => {
                    let (blocks, free) = (space.capacity / 4096, space.free / 4096);
                    let left = u64::from(u32::MAX);
                    reply.statfs(
                        blocks,
                        free,
                        free,
                        space.files + left,
                        left,
                        4096,
                        255,
                        4096,
                    );
                }
                Err(error) => reply.error(errno(&error)),
            },
            |_, _| {},
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (caller, key) = (caller(request), key(ino));
        let (name, value) = (name.to_owned().into_vec(), value.to_vec());
        let how = (
            flags & libc::XATTR_CREATE != 0,
            flags & libc::XATTR_REPLACE != 0,
        );
        if key.is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        self.serve_empty(request.pid(), reply, move |fs, pace| {
            fs.setxattr(caller, key.ino, &name, &value, how, pace)
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let (caller, key, name) = (caller(request), key(ino), name.to_owned());
        if key.is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        self.serve_xattr(request.pid(), reply, size, move |fs, pace| {
            fs.getxattr(caller, key.ino, name.as_bytes(), pace)
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let (caller, key) = (caller(request), key(ino));
        self.serve_xattr(request.pid(), reply, size, move |fs, pace| {
            if key.is_special() {
                Ok(Vec::new())
            } else {
                fs.listxattr(caller, key.ino, pace)
            }
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, key, name) = (caller(request), key(ino), name.to_owned());
        if key.is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        self.serve_empty(request.pid(), reply, move |fs, pace| {
            fs.removexattr(caller, key.ino, name.as_bytes(), pace)
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if key(ino).is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        let mode = mode.cast_unsigned();
        self.serve_empty(request.pid(), reply, move |fs, pace| {
            fs.allocate(fh.0, offset, length, mode, pace)
        });
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let data = match whence {
            libc::SEEK_DATA => true,
            libc::SEEK_HOLE => false,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(fuser::Errno::ENXIO);
        };
        if let Some(remote_stores) = self.0.fs.remote_stores_at(ino.0) {
            return remote_stores::lseek(remote_stores, fh, (offset, data), reply);
        }
        match self.0.fs.seek(fh.0, offset, data) {
            Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if key(ino_in).is_special() || key(ino_out).is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        // The answer holds 32 bits; the caller repeats the call for the rest.
        let length = length.min(1 << 30);
        let op = move |fs: &Fs| fs.copy_range((fh_in.0, offset_in), (fh_out.0, offset_out), length);
        let answer = |_: &BackingState, reply: ReplyWrite, outcome| match outcome {
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno(&error)),
        };
        self.serve_later(request.pid(), reply, op, answer, |_, _: u64| {});
    }
}

impl Adapter {
    /// Returns the error for creating, naming or removing an entry of a special directory.
    fn not_here(&self, keys: &[InodeKey]) -> fuser::Errno {
        let remote_stores = |key: &InodeKey| self.0.fs.remote_stores_at(key.ino).is_some();
        match keys.iter().any(remote_stores) {
            true => fuser::Errno::EROFS,
            false => fuser::Errno::EPERM,
        }
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new: NewEntry,
        reply: ReplyEntry,
    ) {
        let (caller, parent, name) = (caller(request), key(parent), name.to_owned());
        if parent.is_special() {
            return reply.error(self.not_here(&[parent]));
        }
        self.serve_entry(request.pid(), reply, move |fs, pace| {
            fs.make(caller, parent.ino, name.as_bytes(), &new, pace)
        });
    }

    fn remove(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        directory: bool,
        reply: ReplyEmpty,
    ) {
        let (caller, parent, name) = (caller(request), key(parent), name.to_owned());
        if parent.is_special() {
            return reply.error(self.not_here(&[parent]));
        }
        self.serve_empty(request.pid(), reply, move |fs, pace| {
            fs.unlink(caller, parent.ino, name.as_bytes(), directory, pace)
        });
    }
}
