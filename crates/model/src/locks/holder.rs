//! A mount's side of file locks: the locks that its programs hold and wait for. This module does no I/O: the mount sends its effects to
//! programs and to the server.

use super::{LEASES_MAX, LOCKS_PER_USER_MAX, Lock, LockHolder, LockMode, LockSpace, LockTable};
use std::collections::{BTreeMap, BTreeSet};

/// Answer of the mount to a program that requested a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAnswer {
    /// The lock is granted.
    Granted,
    /// The lock is not granted: the given lock conflicts with it, or a test found no conflict.
    Denied(Option<Lock>),
    /// The owners of conflicting locks wait for locks of this program, so waiting would never end.
    Deadlock,
    /// The user has the maximum number of locks.
    TooMany,
}

/// Effect that the mount carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer a program.
    Answer(u64, LockAnswer),
    /// Ask the server for a lock.
    Ask {
        /// Number of the request.
        request: u64,
        /// Inode of the file.
        ino: u64,
        /// Requested lock.
        lock: Lock,
        /// Kind of the request.
        how: LockMode,
    },
    /// Inform the server that no program waits for the requested lock of the file any more.
    Cancel {
        /// Number of the request for the lock.
        request: u64,
        /// Inode of the file.
        ino: u64,
    },
    /// Report to the server the locks of the file on this mount ([`Holder::state`]).
    State(u64),
}

/// Locks that the programs of a mount hold and wait for.
#[derive(Debug, Default)]
pub struct Holder {
    files: BTreeMap<u64, HolderFile>,
    /// Waiting programs, by the numbers of their lock requests.
    waits: BTreeMap<u64, Wait>,
    locks_by_user: BTreeMap<u32, usize>,
    delegated: usize,
    /// Number of the last message received from the server.
    seen: u64,
}

#[derive(Debug, Default)]
struct HolderFile {
    table: LockTable,
    /// Whether the file's table is delegated to this mount, so that no other mount has a lock and this mount decides.
    delegated: bool,
    /// Whether the table is about to be returned to the server, so that this mount decides nothing any more.
    returning: bool,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    ino: u64,
    lock: Lock,
    how: LockMode,
    /// Whether the server was asked for the lock.
    asked: bool,
}

impl Wait {
    /// Returns whether the server was asked for a shared lock on a part of the owner's lock.
    fn shares(&self, ino: u64, lock: &Lock) -> bool {
        self.asked
            && (self.ino, self.lock.owner, self.lock.exclusive) == (ino, lock.owner, false)
            && self.lock.overlaps(lock)
    }
}

impl Holder {
    /// Returns whether this mount decides on locks of the file.
    #[must_use]
    pub fn decides(&self, ino: u64) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.delegated && !file.returning)
    }

    /// Returns whether this mount knows the file's locks.
    #[must_use]
    pub fn knows(&self, ino: u64) -> bool {
        self.files.contains_key(&ino)
    }

    /// Returns whether the mount holds no locks and tables, so that the server may grant all locks to other mounts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns whether an owner has locks of a file.
    #[must_use]
    pub fn has(&self, ino: u64, owner: LockHolder) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.table.iter().any(|held| held.owner == owner))
    }

    /// Returns the owners on this mount that have locks of a file.
    #[must_use]
    pub fn owners(&self, ino: u64) -> BTreeSet<(LockHolder, u32)> {
        let held = self.files.get(&ino).into_iter();
        held.flat_map(|file| file.table.iter())
            .map(|held| (held.owner, held.pid))
            .collect()
    }

    /// Handles a program's request for a lock.
    pub fn want(
        &mut self,
        request: u64,
        ino: u64,
        lock: Lock,
        how: LockMode,
        out: &mut Vec<Effect>,
    ) {
        if how != LockMode::Test && self.would_be_too_many(ino, lock.uid, |table| table.set(lock)) {
            return out.push(Effect::Answer(request, LockAnswer::TooMany));
        }
        let wait = Wait {
            ino,
            lock,
            how,
            asked: false,
        };
        let file = self.files.get(&ino);
        // The server may share a part with other mounts before this mount receives the grant.
        let shares = lock.exclusive && self.waits.values().any(|wait| wait.shares(ino, &lock));
        if how != LockMode::Test && !shares && file.is_some_and(|file| file.table.covers(&lock)) {
            // The lock need not be requested from the server, and never waits.
            self.set(ino, lock);
            out.push(Effect::Answer(request, LockAnswer::Granted));
            self.changed(ino, out);
            return;
        }
        self.decide(request, wait, out);
        self.wake(ino, out);
    }

    /// Handles a change after which an owner has fewer or weaker locks on a file.
    fn changed(&mut self, ino: u64, out: &mut Vec<Effect>) {
        self.wake(ino, out);
        if !self.files.get(&ino).is_some_and(|file| file.delegated) {
            out.push(Effect::State(ino));
        }
    }

    fn decide(&mut self, request: u64, wait: Wait, out: &mut Vec<Effect>) {
        let Wait { ino, lock, how, .. } = wait;
        let file = self.files.get(&ino);
        let (delegated, returning) =
            file.map_or((false, false), |file| (file.delegated, file.returning));
        let by = file.and_then(|file| file.table.conflict(&lock));
        let answer = match (how, by) {
            (LockMode::Try | LockMode::Test, Some(_)) => Some(LockAnswer::Denied(by)),
            (LockMode::Wait, Some(_)) if self.is_circle(lock.owner, ino, &lock) => {
                Some(LockAnswer::Deadlock)
            }
            (LockMode::Test, None) if delegated => Some(LockAnswer::Denied(None)),
            (LockMode::Wait | LockMode::Try, None) if delegated && !returning => {
                self.set(ino, lock);
                Some(LockAnswer::Granted)
            }
            _ => None,
        };
        if let Some(answer) = answer {
            return out.push(Effect::Answer(request, answer));
        }
        let asked = !delegated;
        self.waits.insert(request, Wait { asked, ..wait });
        if asked {
            self.files.entry(ino).or_default();
            out.push(Effect::Ask {
                request,
                ino,
                lock,
                how,
            });
        }
    }

    /// Unlocks bytes of a file for a program. Returns whether this was possible: if unlocking splits a lock, the user may exceed the
    /// maximum number of locks.
    pub fn unlock(
        &mut self,
        ino: u64,
        owner: LockHolder,
        (start, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(file) = self.files.get(&ino) else {
            return true;
        };
        let Some(uid) = file.table.iter().find(|held| held.owner == owner) else {
            return true;
        };
        let uid = uid.uid;
        if self.would_be_too_many(ino, uid, |table| table.clear(owner, start, end)) {
            return false;
        }
        self.change(ino, uid, |table| table.clear(owner, start, end));
        self.changed(ino, out);
        true
    }

    /// Grants free locks to waiting programs if this mount decides. A shared lock may replace an owner's exclusive lock, which frees bytes
    /// for other owners.
    fn wake(&mut self, ino: u64, out: &mut Vec<Effect>) {
        while self.decides(ino) {
            let file = self.files.get(&ino);
            let free = |wait: &Wait| {
                wait.ino == ino
                    && file.is_some_and(|file| file.table.conflict(&wait.lock).is_none())
            };
            let next = self.waits.iter().find(|(_, wait)| free(wait));
            let Some((request, wait)) = next.map(|(&request, &wait)| (request, wait)) else {
                return;
            };
            self.waits.remove(&request);
            if wait.asked {
                // The request may still be under way: its answer would describe the state at the time of the request.
                out.push(Effect::Cancel { request, ino });
            }
            self.decide(request, wait, out);
        }
    }

    /// Cancels the wait of a program. Returns whether the program was still waiting.
    pub fn cancel(&mut self, request: u64, out: &mut Vec<Effect>) -> bool {
        let Some(wait) = self.waits.remove(&request) else {
            return false;
        };
        if wait.asked {
            let ino = wait.ino;
            out.push(Effect::Cancel { request, ino });
            if self.weaken(&wait) {
                self.changed(ino, out);
            }
        }
        self.drop_unused(wait.ino);
        true
    }

    /// Handles the server's grant of a lock.
    pub fn on_granted(&mut self, ino: u64, request: u64, number: u64, out: &mut Vec<Effect>) {
        self.seen = self.seen.max(number);
        match self.waits.remove(&request) {
            Some(wait) => {
                self.set(ino, wait.lock);
                out.push(Effect::Answer(request, LockAnswer::Granted));
            }
            // Nobody waits for the lock any more.
            None => out.push(Effect::State(ino)),
        }
    }

    /// Handles the server's refusal of a lock, or its answer to a test.
    pub fn on_denied(&mut self, request: u64, by: Option<Lock>, out: &mut Vec<Effect>) {
        if let Some(wait) = self.waits.remove(&request) {
            self.drop_unused(wait.ino);
            out.push(Effect::Answer(request, LockAnswer::Denied(by)));
        }
    }

    /// Handles the delegation of a file's table: this mount decides from now on, beginning with the pending request.
    pub fn on_delegated(&mut self, ino: u64, request: u64, number: u64, out: &mut Vec<Effect>) {
        self.seen = self.seen.max(number);
        let file = self.files.entry(ino).or_default();
        if !std::mem::replace(&mut file.delegated, true) {
            self.delegated += 1;
        }
        if let Some(wait) = self.waits.remove(&request) {
            self.decide(request, wait, out);
        }
        self.wake(ino, out);
    }

    /// Handles the recall of a file's table. The mount must make the data that was written under its locks visible to all other mounts, and
    /// then call [`Self::returned`]. Returns whether the mount has a table to return.
    pub fn on_recall(&mut self, ino: u64) -> bool {
        let file = self.files.get_mut(&ino).filter(|file| file.delegated);
        file.is_some_and(|file| !std::mem::replace(&mut file.returning, true))
    }

    /// Records that the file's table is returned, so that the server decides from now on.
    pub fn returned(&mut self, ino: u64, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&ino).filter(|file| file.delegated) else {
            return;
        };
        (file.delegated, file.returning) = (false, false);
        self.delegated -= 1;
        out.push(Effect::State(ino));
        self.ask_again(ino, out);
    }

    fn ask_again(&mut self, ino: u64, out: &mut Vec<Effect>) {
        // A request that is sent twice is answered twice; the second answer follows a possible change.
        let unasked = |wait: &Wait| wait.ino == ino && !wait.asked;
        for (&request, wait) in self.waits.iter_mut().filter(|(_, wait)| unasked(wait)) {
            wait.asked = true;
            out.push(Effect::Ask {
                request,
                ino,
                lock: wait.lock,
                how: wait.how,
            });
        }
    }

    /// Returns the locks of a file and the number of the last message received from the server, to be sent for [`Effect::State`].
    pub fn state(&mut self, ino: u64) -> (Vec<Lock>, u64) {
        let file = self.files.get(&ino);
        let locks = file.map(|file| file.table.iter().copied().collect());
        self.drop_unused(ino);
        (locks.unwrap_or_default(), self.seen)
    }

    /// Returns the complete state of the mount's locks for a server that may not know it: the delegated files, and the locks of other
    /// files. Pending requests are sent again.
    pub fn join(&mut self, out: &mut Vec<Effect>) -> (Vec<u64>, Vec<(u64, Lock)>) {
        // A restarted server begins to count at zero.
        self.seen = 0;
        let waits: Vec<Wait> = self.waits.values().copied().collect();
        for wait in waits.iter().filter(|wait| wait.asked) {
            self.weaken(wait);
        }
        let delegated = self.files.iter().filter(|(_, file)| file.delegated);
        let delegated: Vec<u64> = delegated.map(|(&ino, _)| ino).collect();
        let others = self.files.iter().filter(|(_, file)| !file.delegated);
        let locks = others
            .flat_map(|(&ino, file)| file.table.iter().map(move |&lock| (ino, lock)))
            .collect();
        for (&request, wait) in self.waits.iter().filter(|(_, wait)| wait.asked) {
            out.push(Effect::Ask {
                request,
                ino: wait.ino,
                lock: wait.lock,
                how: wait.how,
            });
        }
        (delegated, locks)
    }

    /// Drops all locks of this mount because the server has removed them. Returns the locks that programs believe to hold. [`Self::join`]
    /// repeats the requests of waiting programs.
    pub fn lose(&mut self) -> Vec<(u64, Lock)> {
        let files = std::mem::take(&mut self.files);
        self.locks_by_user.clear();
        self.delegated = 0;
        for wait in self.waits.values_mut() {
            wait.asked = true;
            self.files.entry(wait.ino).or_default();
        }
        files
            .into_iter()
            .flat_map(|(ino, file)| file.table.0.into_iter().map(move |lock| (ino, lock)))
            .collect()
    }

    fn set(&mut self, ino: u64, lock: Lock) {
        self.change(ino, lock.uid, |table| table.set(lock));
    }

    /// Weakens an exclusive lock after a request for a shared lock: the server may have granted the shared lock without this mount's
    /// knowledge, so that other mounts share the bytes. Returns whether the lock was exclusive.
    fn weaken(&mut self, wait: &Wait) -> bool {
        let Wait { ino, lock, how, .. } = *wait;
        let mut weaker = false;
        if !lock.exclusive && how != LockMode::Test {
            self.change(ino, lock.uid, |table| weaker = table.weaken(&lock));
        }
        weaker
    }

    fn change(&mut self, ino: u64, uid: u32, change: impl FnOnce(&mut LockTable)) {
        let table = &mut self.files.entry(ino).or_default().table;
        let before = table.count(uid);
        change(table);
        let after = table.count(uid);
        let all = self.locks_by_user.entry(uid).or_default();
        *all = (*all + after).saturating_sub(before);
        if *all == 0 {
            self.locks_by_user.remove(&uid);
        }
    }

    fn would_be_too_many(&self, ino: u64, uid: u32, change: impl FnOnce(&mut LockTable)) -> bool {
        let all = self.locks_by_user.get(&uid).copied().unwrap_or(0);
        // A change replaces one lock by at most three, which adds two.
        if all + 2 <= LOCKS_PER_USER_MAX {
            return false;
        }
        let file = self.files.get(&ino);
        let mut table = file.map_or_else(LockTable::default, |file| file.table.clone());
        let before = table.count(uid);
        change(&mut table);
        let after = table.count(uid);
        after > before && all + after - before > LOCKS_PER_USER_MAX
    }

    /// Returns whether the owner of a conflicting lock waits, directly or indirectly, for a lock of `owner`. Only process locks can
    /// deadlock: another process may release the lock of an open file.
    fn is_circle(&self, owner: LockHolder, ino: u64, lock: &Lock) -> bool {
        if owner.space != LockSpace::Ranges {
            return false;
        }
        let mut looked = BTreeSet::new();
        let mut next = vec![(ino, *lock)];
        while let Some((ino, lock)) = next.pop() {
            let held = self.files.get(&ino).into_iter();
            let held = held.flat_map(|file| file.table.iter());
            for blocker in held.filter(|held| held.hinders(&lock)) {
                if blocker.owner == owner {
                    return true;
                }
                if looked.insert(blocker.owner) {
                    let waits = self.waits.values();
                    let waits = waits.filter(|wait| wait.lock.owner == blocker.owner);
                    next.extend(waits.map(|wait| (wait.ino, wait.lock)));
                }
            }
        }
        false
    }

    fn drop_unused(&mut self, ino: u64) {
        let used = |file: &HolderFile| file.delegated || !file.table.is_empty();
        let waited = || self.waits.values().any(|wait| wait.ino == ino);
        if !self.files.get(&ino).is_some_and(used) && !waited() {
            self.files.remove(&ino);
        }
    }

    /// Returns a file whose table the mount should return, as after [`Self::on_recall`], because too many tables are delegated.
    #[must_use]
    pub fn table_to_return(&self) -> Option<u64> {
        if self.delegated <= LEASES_MAX {
            return None;
        }
        let waited: BTreeSet<u64> = self.waits.values().map(|wait| wait.ino).collect();
        let unused = self.files.iter().find(|(ino, file)| {
            file.delegated && !file.returning && file.table.is_empty() && !waited.contains(ino)
        });
        unused.map(|(&ino, _)| ino)
    }

    /// Returns whether an owner has an exclusive lock of a file.
    #[must_use]
    pub fn has_exclusive(&self, ino: u64, owner: LockHolder) -> bool {
        let held = self.files.get(&ino).into_iter();
        let mut held = held.flat_map(|file| file.table.iter());
        held.any(|held| held.owner == owner && held.exclusive)
    }
}
