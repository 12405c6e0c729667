//! The server's side of file locks: decides which mount holds the lock table of a file, and queues conflicting requests of different
//! mounts. This module does no I/O: the server sends its actions to the mounts.

use super::{Lock, LockMode, LockTable};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Message of the server to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMessage {
    /// The mount must return the file's lock table.
    Recall {
        /// Id of the mount.
        mount: u64,
        /// Inode of the file.
        ino: u64,
    },
    /// The mount now holds the file's lock table and decides its request itself.
    Delegate {
        /// Id of the mount.
        mount: u64,
        /// Inode of the file.
        ino: u64,
        /// Number of the mount's request that is decided.
        request: u64,
        /// Number of this message; see [`Arbiter::on_state`].
        number: u64,
    },
    /// The requested lock is granted.
    Grant {
        /// Id of the mount.
        mount: u64,
        /// Inode of the file.
        ino: u64,
        /// Number of the mount's request that is granted.
        request: u64,
        /// Number of this message; see [`Arbiter::on_state`].
        number: u64,
    },
    /// The lock is not granted: the lock `by` conflicts with it, or the mount only asked for a conflict.
    Deny {
        /// Id of the mount.
        mount: u64,
        /// Number of the mount's request that is denied.
        request: u64,
        /// Conflicting lock; `None` if the mount only asked for a conflict and none exists.
        by: Option<Lock>,
    },
}

/// The arbiter does not know the mount's locks: the mount must join again, and loses its locks if the arbiter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAMember;

/// State of the locks of all files at the server.
#[derive(Debug, Default)]
pub struct Arbiter {
    members: BTreeSet<u64>,
    /// Mounts that may have missed messages: they keep their locks, and must join again before they do anything else.
    absent: BTreeSet<u64>,
    /// Mounts that held locks before the server restarted and have not reported these locks. No other mount gets a lock until the mounts
    /// have reported their locks or are removed.
    awaited: BTreeSet<u64>,
    files: BTreeMap<u64, ArbiterFile>,
    number: u64,
}

#[derive(Debug, Default)]
struct ArbiterFile {
    /// Mount that holds the file's lock table, and the number of the message that delegated the table.
    delegated: Option<(u64, u64)>,
    recalled: bool,
    /// Locks of all mounts on the file, if no mount holds the table.
    table: LockTable,
    /// Granted locks that their mount may not know yet, by the number of the grant message.
    reported: BTreeMap<u64, Lock>,
    queue: VecDeque<WaitingLock>,
}

#[derive(Clone, Copy, Debug)]
struct WaitingLock {
    mount: u64,
    request: u64,
    lock: Lock,
    how: LockMode,
}

impl Arbiter {
    /// Returns the state after a restart of the server; `mounts` held locks before.
    #[must_use]
    pub fn awaiting(mounts: impl IntoIterator<Item = u64>) -> Self {
        Self {
            awaited: mounts.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Returns the mounts that hold or may hold locks.
    pub fn mounts(&self) -> impl Iterator<Item = u64> {
        let known = self.members.iter().chain(&self.absent);
        known.chain(&self.awaited).copied()
    }

    /// Returns whether the arbiter knows the mount's locks.
    #[must_use]
    pub fn is_member(&self, mount: u64) -> bool {
        self.members.contains(&mount)
    }

    /// Returns whether another mount than `mount` holds, or may take, locks of the file.
    #[must_use]
    pub fn is_locked_elsewhere(&self, ino: u64, mount: u64) -> bool {
        self.files.get(&ino).is_some_and(|file| {
            file.delegated.is_some_and(|(holder, _)| holder != mount)
                || file.table.iter().any(|held| held.owner.mount != mount)
                || file.queue.iter().any(|want| want.mount != mount)
        })
    }

    /// Returns whether any mount holds, or may take, locks of the file.
    #[must_use]
    pub fn is_locked(&self, ino: u64) -> bool {
        self.files.contains_key(&ino)
    }

    /// Handles a mount's report of its complete state, which the mount sends first and when messages may have been lost: the files whose
    /// lock tables are delegated to the mount, and its locks on other files.
    ///
    /// # Errors
    /// If the mount was removed since it took its locks or tables, or if these conflict with other mounts' locks: the mount loses them.
    pub fn on_join(
        &mut self,
        mount: u64,
        delegated: &[u64],
        locks: &[(u64, Lock)],
        out: &mut Vec<LockMessage>,
    ) -> Result<(), NotAMember> {
        let known = self.mounts().any(|known| known == mount);
        self.forget(mount);
        let accepted = (known || (delegated.is_empty() && locks.is_empty()))
            && delegated.iter().all(|&ino| self.take_delegated(mount, ino))
            && locks
                .iter()
                .all(|&(ino, lock)| self.take_lock(mount, ino, lock));
        if accepted {
            self.members.insert(mount);
        } else {
            self.forget(mount);
        }
        self.settle_all(out);
        accepted.then_some(()).ok_or(NotAMember)
    }

    fn take_delegated(&mut self, mount: u64, ino: u64) -> bool {
        let file = self.files.entry(ino).or_default();
        let free = file.delegated.is_none() && file.table.is_empty();
        if free {
            file.delegated = Some((mount, 0));
        }
        free
    }

    fn take_lock(&mut self, mount: u64, ino: u64, lock: Lock) -> bool {
        let file = self.files.entry(ino).or_default();
        let lock = of(mount, lock);
        let free = file.delegated.is_none() && file.table.conflict(&lock).is_none();
        if free {
            file.table.set(lock);
        }
        free
    }

    /// Records that messages to a mount may have been lost.
    pub fn on_broken(&mut self, mount: u64) {
        if self.members.remove(&mount) {
            self.absent.insert(mount);
            for file in self.files.values_mut() {
                file.queue.retain(|want| want.mount != mount);
            }
        }
    }

    /// Handles a mount's request for a lock. The answer is a message in `out`, now or later.
    ///
    /// # Errors
    /// See [`NotAMember`].
    pub fn on_want(
        &mut self,
        (mount, request): (u64, u64),
        ino: u64,
        lock: Lock,
        how: LockMode,
        out: &mut Vec<LockMessage>,
    ) -> Result<(), NotAMember> {
        self.check(mount)?;
        let queue = &mut self.files.entry(ino).or_default().queue;
        let lock = of(mount, lock);
        if !queue
            .iter()
            .any(|want| (want.mount, want.request) == (mount, request))
        {
            queue.push_back(WaitingLock {
                mount,
                request,
                lock,
                how,
            });
        }
        self.settle(ino, out);
        Ok(())
    }

    /// Cancels a request of a mount. If the lock was granted already, the mount receives the grant and returns the lock.
    pub fn on_cancel(&mut self, mount: u64, ino: u64, request: u64, out: &mut Vec<LockMessage>) {
        if let Some(file) = self.files.get_mut(&ino) {
            let it = |want: &WaitingLock| (want.mount, want.request) == (mount, request);
            file.queue.retain(|want| !it(want));
        }
        self.settle(ino, out);
    }

    /// Handles a mount's report of its locks on a file after the mount received all messages up to number `seen`. After this report, the
    /// file's table is not delegated to the mount any more.
    ///
    /// # Errors
    /// See [`NotAMember`].
    pub fn on_state(
        &mut self,
        (mount, seen): (u64, u64),
        ino: u64,
        locks: &[Lock],
        out: &mut Vec<LockMessage>,
    ) -> Result<(), NotAMember> {
        self.check(mount)?;
        let Some(file) = self.files.get_mut(&ino) else {
            return Ok(());
        };
        match file.delegated {
            Some((holder, number)) if holder == mount && number <= seen => {
                file.delegated = None;
                file.recalled = false;
            }
            // The table was delegated since, possibly to this mount, which does not know it yet and will report its locks then.
            Some(_) => return Ok(()),
            None => {}
        }
        file.table.retain(|held| held.owner.mount != mount);
        for &lock in locks {
            file.table.set(of(mount, lock));
        }
        file.reported
            .retain(|&number, lock| lock.owner.mount != mount || number > seen);
        for lock in file.reported.values().filter(|l| l.owner.mount == mount) {
            file.table.set(*lock);
        }
        self.settle(ino, out);
        Ok(())
    }

    /// Removes a mount that has ended and can't use its locks any more.
    pub fn on_gone(&mut self, mount: u64, out: &mut Vec<LockMessage>) {
        self.forget(mount);
        self.settle_all(out);
    }

    fn check(&self, mount: u64) -> Result<(), NotAMember> {
        self.is_member(mount).then_some(()).ok_or(NotAMember)
    }

    fn forget(&mut self, mount: u64) {
        self.members.remove(&mount);
        self.absent.remove(&mount);
        self.awaited.remove(&mount);
        for file in self.files.values_mut() {
            if file.delegated.is_some_and(|(holder, _)| holder == mount) {
                file.delegated = None;
                file.recalled = false;
            }
            file.table.retain(|held| held.owner.mount != mount);
            file.reported.retain(|_, lock| lock.owner.mount != mount);
            file.queue.retain(|want| want.mount != mount);
        }
    }

    fn settle_all(&mut self, out: &mut Vec<LockMessage>) {
        let files: Vec<u64> = self.files.keys().copied().collect();
        for ino in files {
            self.settle(ino, out);
        }
    }

    /// Answers all requests for a file that can be answered now.
    fn settle(&mut self, ino: u64, out: &mut Vec<LockMessage>) {
        if !self.awaited.is_empty() {
            return;
        }
        let Some(file) = self.files.get_mut(&ino) else {
            return;
        };
        if file.delegated.is_none()
            && let Some(first) = file.queue.front().map(|want| want.mount)
            && file.table.iter().all(|held| held.owner.mount == first)
            && file.queue.iter().all(|want| want.mount == first)
        {
            // The mount knows its own locks.
            file.table = LockTable::default();
            file.reported.clear();
            file.delegated = Some((first, 0));
        }
        match file.delegated {
            Some((mount, _)) if !file.recalled => {
                file.queue.retain(|want| {
                    if want.mount == mount {
                        // The mount may be returning the table at this moment and does not know of this request.
                        self.number += 1;
                        file.delegated = Some((mount, self.number));
                        out.push(LockMessage::Delegate {
                            mount,
                            ino,
                            request: want.request,
                            number: self.number,
                        });
                    }
                    want.mount != mount
                });
                if !file.queue.is_empty() {
                    file.recalled = true;
                    out.push(LockMessage::Recall { mount, ino });
                }
            }
            Some(_) => {}
            None => self.number = file.decide(ino, self.number, out),
        }
        if file.delegated.is_none() && file.queue.is_empty() && file.table.is_empty() {
            self.files.remove(&ino);
        }
    }
}

impl ArbiterFile {
    /// Answers the requests for a file that can be answered, first come, first served. Returns the number of the last message.
    fn decide(&mut self, ino: u64, mut number: u64, out: &mut Vec<LockMessage>) -> u64 {
        loop {
            let before = number;
            number = self.decide_once(ino, number, out);
            // A mount that gets a shared lock may thereby release an exclusive one.
            if number == before {
                return number;
            }
        }
    }

    fn decide_once(&mut self, ino: u64, mut number: u64, out: &mut Vec<LockMessage>) -> u64 {
        for want in std::mem::take(&mut self.queue) {
            let WaitingLock {
                mount,
                request,
                lock,
                how,
            } = want;
            let by = self.table.conflict(&lock);
            match (how, by) {
                (LockMode::Wait, Some(_)) => self.queue.push_back(want),
                (LockMode::Test, _) | (LockMode::Try, Some(_)) => {
                    out.push(LockMessage::Deny { mount, request, by });
                }
                (_, None) => {
                    number += 1;
                    self.table.set(lock);
                    self.reported.insert(number, lock);
                    out.push(LockMessage::Grant {
                        mount,
                        ino,
                        request,
                        number,
                    });
                }
            }
        }
        number
    }
}

fn of(mount: u64, mut lock: Lock) -> Lock {
    lock.owner.mount = mount;
    lock
}
