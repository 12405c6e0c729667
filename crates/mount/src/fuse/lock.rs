//! Locks as the kernel asks for them.
//!
//! The kernel says of each lock whether it is one of `flock`; the FUSE library does not hand that on. So a program that
//! locks a whole file is looked at: its thread is in one of the two system calls. Where that can't be seen, both kinds
//! hinder each other, as on NFS.

use super::waiting::Interrupt;
use super::{Adapter, key};
use crate::error::Error;
use crate::fs::locks::Wanted;
use crate::fs::{Fs, Key};
use fuser::{FileHandle, INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::Arc;
use tidemill_core::locks::{How, Lock, Owner, Space};

/// The last byte of a lock that has no end.
const END: u64 = i64::MAX as u64;

/// What a thread asks.
pub(super) struct Asked {
    thread: u32,
    key: Key,
    handle: u64,
    lock: Lock,
}

impl Asked {
    pub(super) fn new(
        request: &Request,
        (ino, handle, owner): (INodeNo, FileHandle, LockOwner),
        (start, end): (u64, u64),
        typ: i32,
        pid: u32,
    ) -> Self {
        let owner = Owner {
            mount: 0,
            space: Space::Ranges,
            id: owner.0,
        };
        let lock = Lock {
            owner,
            start,
            end,
            exclusive: typ == libc::F_WRLCK,
            pid,
            uid: request.uid(),
        };
        Self {
            thread: request.pid(),
            key: key(ino),
            handle: handle.0,
            lock,
        }
    }

    fn wanted(&self, how: How) -> Wanted {
        Wanted {
            ino: self.key.ino,
            handle: self.handle,
            lock: self.lock,
            how,
        }
    }
}

/// Whether a thread is in `flock`.
fn is_flock(thread: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{thread}/syscall")).unwrap_or_default();
    let number = call.split_ascii_whitespace().next();
    number.and_then(|number| number.parse().ok()) == Some(libc::SYS_flock)
}

/// A program that waits for a lock, or is about to be told.
struct Waiter {
    fs: Arc<Fs>,
    request: Mutex<Option<u64>>,
}

impl Interrupt for Waiter {
    fn interrupt(&self) {
        if let Some(request) = *self.request.lock() {
            self.fs.cancel_lock(request);
        }
    }
}

impl Adapter {
    pub(super) fn test_lock(&self, asked: Asked, reply: ReplyLock) {
        if asked.key.is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        let (start, end) = (asked.lock.start, asked.lock.end);
        let told = move |outcome: Result<Option<Lock>, Errno>| match outcome {
            Ok(Some(by)) => {
                let typ = if by.exclusive {
                    libc::F_WRLCK
                } else {
                    libc::F_RDLCK
                };
                reply.locked(by.start, by.end.min(END), typ, by.pid);
            }
            Ok(None) => reply.locked(start, end, libc::F_UNLCK, 0),
            Err(errno) => reply.error(super::errno(&Error::System(errno))),
        };
        self.0.fs.lock(asked.wanted(How::Test), Box::new(told));
    }

    pub(super) fn set_lock(&self, mut asked: Asked, wait: bool, reply: ReplyEmpty) {
        if asked.key.is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        if (asked.lock.start, asked.lock.end) == (0, END) && is_flock(asked.thread) {
            asked.lock.owner.space = Space::Files;
        }
        let waiter = Arc::new(Waiter {
            fs: self.0.fs.clone(),
            request: Mutex::new(None),
        });
        // Looked at for as long as it is not told.
        let waits = waiter.clone();
        let told = move |outcome: Result<Option<Lock>, Errno>| {
            drop(waits);
            match outcome {
                Ok(None) => reply.ok(),
                Ok(Some(_)) => reply.error(fuser::Errno::EAGAIN),
                Err(errno) => reply.error(super::errno(&Error::System(errno))),
            }
        };
        let how = if wait { How::Wait } else { How::Try };
        let request = self.0.fs.lock(asked.wanted(how), Box::new(told));
        if request.is_some() {
            *waiter.request.lock() = request;
            let waiter: Arc<dyn Interrupt> = waiter;
            let weak = Arc::downgrade(&waiter);
            self.0.waiting.watch_over(asked.thread, true, weak);
        }
    }

    pub(super) fn unlock(&self, asked: Asked, reply: ReplyEmpty) {
        let Asked { key, lock, .. } = asked;
        let range = (lock.start, lock.end);
        let files = Owner {
            space: Space::Files,
            ..lock.owner
        };
        let fs = self.0.fs.clone();
        // An owner is a process or an open file, and only a kind of lock has each of them.
        self.0.fs.unlock(key.ino, lock.owner, range, move |first| {
            let told = move |second: Result<(), Errno>| match first.and(second) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(super::errno(&Error::System(errno))),
            };
            fs.unlock(key.ino, files, range, told);
        });
    }
}
