//! Lock requests of the Linux kernel (next: `mount/src/fs/locks.rs`).
//!
//! The Linux kernel marks locks of `flock`; the FUSE library does not pass the mark on. So the adapter examines a thread that locks a whole
//! file: the thread is in `flock` or in `fcntl`. If the adapter cannot see the system call, both kinds of locks conflict, as on NFS.

use super::backing::BackingState;
use super::waiting::Interrupt;
use super::{Adapter, key};
use crate::error::Error;
use crate::fs::locks::WantedLock;
use crate::fs::{Fs, InodeKey};
use fuser::{FileHandle, INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_model::locks::{Lock, LockHolder, LockMode, LockSpace};

/// Maximum time for which the adapter checks a thread that has requested a lock and does not sleep yet.
const SLEEP_PATIENCE: Duration = Duration::from_secs(10);
const SLEEP_PAUSE: Duration = Duration::from_micros(200);
/// Last byte of a lock that has no end.
const END: u64 = i64::MAX as u64;

pub(super) struct LockRequest {
    thread: u32,
    key: InodeKey,
    handle: u64,
    lock: Lock,
}

impl LockRequest {
    pub(super) fn new(
        request: &Request,
        (ino, handle, owner): (INodeNo, FileHandle, LockOwner),
        (start, end): (u64, u64),
        typ: i32,
        pid: u32,
    ) -> Self {
        let owner = LockHolder {
            mount: 0,
            space: LockSpace::Ranges,
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

    fn wanted(&self, how: LockMode) -> WantedLock {
        WantedLock {
            ino: self.key.ino,
            handle: self.handle,
            lock: self.lock,
            how,
        }
    }
}

/// Whether a thread is in `flock`; `None` if the thread does not sleep yet, so that its system call is not visible. A thread that cannot be
/// examined counts as outside.
fn is_flock(thread: u32) -> Option<bool> {
    let Ok(call) = std::fs::read_to_string(format!("/proc/{thread}/syscall")) else {
        return Some(false);
    };
    let number: i64 = call.split_ascii_whitespace().next()?.parse().ok()?;
    Some(number == libc::SYS_flock)
}

/// A program that waits for a lock, or is about to get the answer to its request.
struct LockWaiter {
    fs: Arc<Fs>,
    request: Mutex<Option<u64>>,
}

impl Interrupt for LockWaiter {
    fn interrupt(&self) {
        if let Some(request) = *self.request.lock() {
            self.fs.cancel_lock(request);
        }
    }
}

impl Adapter {
    pub(super) fn test_lock(&self, asked: LockRequest, reply: ReplyLock) {
        if asked.key.is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        let (start, end) = (asked.lock.start, asked.lock.end);
        let callback = move |outcome: Result<Option<Lock>, Errno>| match outcome {
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
        self.0.ask(&asked, LockMode::Test, callback);
    }

    pub(super) fn set_lock(&self, asked: LockRequest, wait: bool, reply: ReplyEmpty) {
        if asked.key.is_special() {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        let whole = (asked.lock.start, asked.lock.end) == (0, END);
        match is_flock(asked.thread)
            .filter(|_| whole)
            .or((!whole).then_some(false))
        {
            Some(flock) => self.0.set_lock(asked, flock, wait, reply),
            None => {
                let inner = self.0.clone();
                self.0.fs.backend.runtime.spawn_blocking(move || {
                    let end = Instant::now() + SLEEP_PATIENCE;
                    let mut flock = None;
                    while flock.is_none() && Instant::now() < end {
                        std::thread::sleep(SLEEP_PAUSE);
                        flock = is_flock(asked.thread);
                    }
                    match flock {
                        Some(flock) => inner.set_lock(asked, flock, wait, reply),
                        None => reply.error(fuser::Errno::EAGAIN),
                    }
                });
            }
        }
    }

    pub(super) fn unlock(&self, asked: LockRequest, reply: ReplyEmpty) {
        let LockRequest { key, lock, .. } = asked;
        let range = (lock.start, lock.end);
        let files = LockHolder {
            space: LockSpace::Files,
            ..lock.owner
        };
        let fs = self.0.fs.clone();
        if range != (0, END) {
            // `flock` only releases whole files.
            return self
                .0
                .fs
                .unlock(key.ino, lock.owner, range, move |done| match done {
                    Ok(()) => reply.ok(),
                    Err(errno) => reply.error(super::errno(&Error::System(errno))),
                });
        }
        // An owner is a process or an open file, and each kind of lock has only one kind of owner.
        self.0.fs.unlock(key.ino, lock.owner, range, move |first| {
            let callback = move |second: Result<(), Errno>| match first.and(second) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(super::errno(&Error::System(errno))),
            };
            fs.unlock(key.ino, files, range, callback);
        });
    }
}

impl BackingState {
    fn set_lock(&self, mut asked: LockRequest, flock: bool, wait: bool, reply: ReplyEmpty) {
        if flock {
            asked.lock.owner.space = LockSpace::Files;
        }
        let callback = move |outcome: Result<Option<Lock>, Errno>| match outcome {
            Ok(None) => reply.ok(),
            Ok(Some(_)) => reply.error(fuser::Errno::EAGAIN),
            Err(errno) => reply.error(super::errno(&Error::System(errno))),
        };
        self.ask(
            &asked,
            if wait { LockMode::Wait } else { LockMode::Try },
            callback,
        );
    }

    /// Requests a lock, and watches the thread until its program gets the answer or is interrupted.
    fn ask(
        &self,
        asked: &LockRequest,
        how: LockMode,
        callback: impl FnOnce(Result<Option<Lock>, Errno>) + Send + 'static,
    ) {
        let waiter = Arc::new(LockWaiter {
            fs: self.fs.clone(),
            request: Mutex::new(None),
        });
        // The thread is watched until the answer is sent.
        let waits = waiter.clone();
        let callback = move |outcome| {
            drop(waits);
            callback(outcome);
        };
        let request = self.fs.lock(asked.wanted(how), Box::new(callback));
        if request.is_some() {
            *waiter.request.lock() = request;
            let waiter: Arc<dyn Interrupt> = waiter;
            let weak = Arc::downgrade(&waiter);
            self.waiting.watch_over(asked.thread, true, weak);
        }
    }
}
