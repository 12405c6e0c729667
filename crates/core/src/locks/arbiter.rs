//! The server's side: which mount's table a file's locks are in, and who waits for whom between mounts.

use super::{How, Lock, Table};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a mount is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give the file's table back.
    Recall {
        /// Who.
        mount: u64,
        /// The file.
        ino: u64,
    },
    /// The file's table is yours; decide the request yourself.
    Lend {
        /// Who.
        mount: u64,
        /// The file.
        ino: u64,
        /// What it had asked.
        request: u64,
        /// See [`Arbiter::on_state`].
        number: u64,
    },
    /// The lock that was asked for is had.
    Grant {
        /// Who.
        mount: u64,
        /// The file.
        ino: u64,
        /// What it had asked.
        request: u64,
        /// See [`Arbiter::on_state`].
        number: u64,
    },
    /// The lock is not had: `by` hinders it, or it was only asked whether something would.
    Deny {
        /// Who.
        mount: u64,
        /// What it had asked.
        request: u64,
        /// What hinders it.
        by: Option<Lock>,
    },
}

/// The mount's locks are not known here: it has to join, and what it had is lost if it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAMember;

/// See the module.
#[derive(Debug, Default)]
pub struct Arbiter {
    members: BTreeSet<u64>,
    /// Members that may have missed messages: they keep what they have, and have to join before anything else.
    absent: BTreeSet<u64>,
    /// Mounts that had locks in an earlier life of the server and have not said which. Nobody else is given any
    /// until they have, or are gone.
    awaited: BTreeSet<u64>,
    files: BTreeMap<u64, File>,
    number: u64,
}

#[derive(Debug, Default)]
struct File {
    /// The mount that decides alone, and the number of the message that told it so.
    lent: Option<(u64, u64)>,
    recalled: bool,
    /// The locks of all mounts, if no one decides alone.
    table: Table,
    /// Locks that a mount may not know yet that it has, by the number of the message.
    told: BTreeMap<u64, Lock>,
    queue: VecDeque<Want>,
}

#[derive(Clone, Copy, Debug)]
struct Want {
    mount: u64,
    request: u64,
    lock: Lock,
    how: How,
}

impl Arbiter {
    /// After a restart: these mounts had locks.
    #[must_use]
    pub fn awaiting(mounts: impl IntoIterator<Item = u64>) -> Self {
        Self {
            awaited: mounts.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Mounts that have locks, or had.
    pub fn mounts(&self) -> impl Iterator<Item = u64> {
        let known = self.members.iter().chain(&self.absent);
        known.chain(&self.awaited).copied()
    }

    /// Whether a mount's locks are known here.
    #[must_use]
    pub fn is_member(&self, mount: u64) -> bool {
        self.members.contains(&mount)
    }

    /// Whether another mount has, or may take, locks of the file.
    #[must_use]
    pub fn is_locked_elsewhere(&self, ino: u64, mount: u64) -> bool {
        self.files.get(&ino).is_some_and(|file| {
            file.lent.is_some_and(|(holder, _)| holder != mount)
                || file.table.iter().any(|held| held.owner.mount != mount)
                || file.queue.iter().any(|want| want.mount != mount)
        })
    }

    /// Whether any mount has, or may take, locks of the file.
    #[must_use]
    pub fn is_locked(&self, ino: u64) -> bool {
        self.files.contains_key(&ino)
    }

    /// A mount says all that it has, for the first time or because messages may have been lost: files that are
    /// lent to it, and its locks on others.
    ///
    /// # Errors
    /// If it has something and was given up meanwhile. What it had is lost.
    pub fn on_join(
        &mut self,
        mount: u64,
        lent: &[u64],
        locks: &[(u64, Lock)],
        out: &mut Vec<Action>,
    ) -> Result<(), NotAMember> {
        let known = self.mounts().any(|known| known == mount);
        self.forget(mount);
        let accepted = (known || (lent.is_empty() && locks.is_empty()))
            && lent.iter().all(|&ino| self.take_lent(mount, ino))
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

    fn take_lent(&mut self, mount: u64, ino: u64) -> bool {
        let file = self.files.entry(ino).or_default();
        let free = file.lent.is_none() && file.table.is_empty();
        if free {
            file.lent = Some((mount, 0));
        }
        free
    }

    fn take_lock(&mut self, mount: u64, ino: u64, lock: Lock) -> bool {
        let file = self.files.entry(ino).or_default();
        let lock = of(mount, lock);
        let free = file.lent.is_none() && file.table.conflict(&lock).is_none();
        if free {
            file.table.set(lock);
        }
        free
    }

    /// Messages to a mount may have been lost.
    pub fn on_broken(&mut self, mount: u64) {
        if self.members.remove(&mount) {
            self.absent.insert(mount);
            for file in self.files.values_mut() {
                file.queue.retain(|want| want.mount != mount);
            }
        }
    }

    /// A mount wants a lock. The answer is an action, now or later.
    ///
    /// # Errors
    /// See [`NotAMember`].
    pub fn on_want(
        &mut self,
        (mount, request): (u64, u64),
        ino: u64,
        lock: Lock,
        how: How,
        out: &mut Vec<Action>,
    ) -> Result<(), NotAMember> {
        self.check(mount)?;
        let queue = &mut self.files.entry(ino).or_default().queue;
        let lock = of(mount, lock);
        if !queue
            .iter()
            .any(|want| (want.mount, want.request) == (mount, request))
        {
            queue.push_back(Want {
                mount,
                request,
                lock,
                how,
            });
        }
        self.settle(ino, out);
        Ok(())
    }

    /// Nobody waits for what a mount wanted. If it was granted already, the mount hears so and gives it back.
    pub fn on_cancel(&mut self, mount: u64, ino: u64, request: u64, out: &mut Vec<Action>) {
        if let Some(file) = self.files.get_mut(&ino) {
            let it = |want: &Want| (want.mount, want.request) == (mount, request);
            file.queue.retain(|want| !it(want));
        }
        self.settle(ino, out);
    }

    /// A mount says which locks of a file it has, having heard all messages up to that number; the file is not
    /// lent to it then.
    ///
    /// # Errors
    /// See [`NotAMember`].
    pub fn on_state(
        &mut self,
        (mount, seen): (u64, u64),
        ino: u64,
        locks: &[Lock],
        out: &mut Vec<Action>,
    ) -> Result<(), NotAMember> {
        self.check(mount)?;
        let Some(file) = self.files.get_mut(&ino) else {
            return Ok(());
        };
        match file.lent {
            Some((holder, number)) if holder == mount && number <= seen => {
                file.lent = None;
                file.recalled = false;
            }
            // It was lent meanwhile, to this mount, which does not know yet and says then what it has.
            Some(_) => return Ok(()),
            None => {}
        }
        file.table.retain(|held| held.owner.mount != mount);
        for &lock in locks {
            file.table.set(of(mount, lock));
        }
        file.told
            .retain(|&number, lock| lock.owner.mount != mount || number > seen);
        for lock in file.told.values().filter(|l| l.owner.mount == mount) {
            file.table.set(*lock);
        }
        self.settle(ino, out);
        Ok(())
    }

    /// A mount is gone, and can't do any more what its locks allowed.
    pub fn on_gone(&mut self, mount: u64, out: &mut Vec<Action>) {
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
            if file.lent.is_some_and(|(holder, _)| holder == mount) {
                file.lent = None;
                file.recalled = false;
            }
            file.table.retain(|held| held.owner.mount != mount);
            file.told.retain(|_, lock| lock.owner.mount != mount);
            file.queue.retain(|want| want.mount != mount);
        }
    }

    fn settle_all(&mut self, out: &mut Vec<Action>) {
        let files: Vec<u64> = self.files.keys().copied().collect();
        for ino in files {
            self.settle(ino, out);
        }
    }

    /// Does what can be done about a file.
    fn settle(&mut self, ino: u64, out: &mut Vec<Action>) {
        if !self.awaited.is_empty() {
            return;
        }
        let Some(file) = self.files.get_mut(&ino) else {
            return;
        };
        if file.lent.is_none()
            && let Some(first) = file.queue.front().map(|want| want.mount)
            && file.table.iter().all(|held| held.owner.mount == first)
            && file.queue.iter().all(|want| want.mount == first)
        {
            // Of its own locks it knows itself.
            file.table = Table::default();
            file.told.clear();
            file.lent = Some((first, 0));
        }
        match file.lent {
            Some((mount, _)) if !file.recalled => {
                file.queue.retain(|want| {
                    if want.mount == mount {
                        // It may be giving the table back at this moment, and has not heard of this.
                        self.number += 1;
                        file.lent = Some((mount, self.number));
                        out.push(Action::Lend {
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
                    out.push(Action::Recall { mount, ino });
                }
            }
            Some(_) => {}
            None => self.number = file.decide(ino, self.number, out),
        }
        if file.lent.is_none() && file.queue.is_empty() && file.table.is_empty() {
            self.files.remove(&ino);
        }
    }
}

impl File {
    /// Answers those whose answer is known, first come, first served; gives the last message's number.
    fn decide(&mut self, ino: u64, mut number: u64, out: &mut Vec<Action>) -> u64 {
        loop {
            let before = number;
            number = self.decide_once(ino, number, out);
            // Who gets a shared lock may have had an exclusive one.
            if number == before {
                return number;
            }
        }
    }

    fn decide_once(&mut self, ino: u64, mut number: u64, out: &mut Vec<Action>) -> u64 {
        for want in std::mem::take(&mut self.queue) {
            let Want {
                mount,
                request,
                lock,
                how,
            } = want;
            let by = self.table.conflict(&lock);
            match (how, by) {
                (How::Wait, Some(_)) => self.queue.push_back(want),
                (How::Test, _) | (How::Try, Some(_)) => {
                    out.push(Action::Deny { mount, request, by });
                }
                (_, None) => {
                    number += 1;
                    self.table.set(lock);
                    self.told.insert(number, lock);
                    out.push(Action::Grant {
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
