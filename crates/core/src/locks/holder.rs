//! A mount's side: the locks that its programs have and wait for.

use super::{How, LEASES_MAX, LOCKS_PER_USER_MAX, Lock, Owner, Space, Table};
use std::collections::{BTreeMap, BTreeSet};

/// What a program is told that asked for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has it.
    Granted,
    /// It has it not: this one hinders it, or nothing would.
    Denied(Option<Lock>),
    /// Those who hinder it wait for what this program has.
    Deadlock,
    /// The user has too many.
    TooMany,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell a program.
    Answer(u64, Answer),
    /// Ask the server for a lock.
    Ask {
        /// Its number.
        request: u64,
        /// The file.
        ino: u64,
        /// The lock.
        lock: Lock,
        /// What about it.
        how: How,
    },
    /// Tell the server that nobody waits for a lock of that file any more.
    Cancel {
        /// The number of the request for it.
        request: u64,
        /// The file.
        ino: u64,
    },
    /// Tell the server which locks of that file there are here ([`Holder::state`]).
    State(u64),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Holder {
    files: BTreeMap<u64, File>,
    /// Programs that wait, by the numbers of their requests.
    waits: BTreeMap<u64, Wait>,
    locks_by_user: BTreeMap<u32, usize>,
    lent: usize,
    /// The last of the server's numbers that was heard.
    seen: u64,
}

#[derive(Debug, Default)]
struct File {
    table: Table,
    /// Whether no other mount has a lock, so that it is decided here who gets one.
    lent: bool,
    /// It is about to be given back: nothing is decided any more.
    returning: bool,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    ino: u64,
    lock: Lock,
    how: How,
    /// Whether the server was asked.
    asked: bool,
}

impl Wait {
    /// Whether the server was asked to make a part of what the owner of that lock has shared.
    fn shares(&self, ino: u64, lock: &Lock) -> bool {
        self.asked
            && (self.ino, self.lock.owner, self.lock.exclusive) == (ino, lock.owner, false)
            && self.lock.overlaps(lock)
    }
}

impl Holder {
    /// Whether it is decided here who gets a lock of the file.
    #[must_use]
    pub fn decides(&self, ino: u64) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.lent && !file.returning)
    }

    /// Whether the file's locks are known here.
    #[must_use]
    pub fn knows(&self, ino: u64) -> bool {
        self.files.contains_key(&ino)
    }

    /// Whether there is anything that the server must not give to others.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether an owner has locks of a file.
    #[must_use]
    pub fn has(&self, ino: u64, owner: Owner) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.table.iter().any(|held| held.owner == owner))
    }

    /// The owners of a file's locks that programs here have.
    #[must_use]
    pub fn owners(&self, ino: u64) -> BTreeSet<(Owner, u32)> {
        let held = self.files.get(&ino).into_iter();
        held.flat_map(|file| file.table.iter())
            .map(|held| (held.owner, held.pid))
            .collect()
    }

    /// A program wants a lock.
    pub fn want(&mut self, request: u64, ino: u64, lock: Lock, how: How, out: &mut Vec<Effect>) {
        if how != How::Test && self.would_be_too_many(ino, lock.uid, |table| table.set(lock)) {
            return out.push(Effect::Answer(request, Answer::TooMany));
        }
        let wait = Wait {
            ino,
            lock,
            how,
            asked: false,
        };
        let file = self.files.get(&ino);
        // What is being made shared may be others' too before it is heard of here.
        let shares = lock.exclusive && self.waits.values().any(|wait| wait.shares(ino, &lock));
        if how != How::Test && !shares && file.is_some_and(|file| file.table.covers(&lock)) {
            // It need not be asked for, and never waits.
            self.set(ino, lock);
            out.push(Effect::Answer(request, Answer::Granted));
            self.changed(ino, out);
            return;
        }
        self.decide(request, wait, out);
        self.wake(ino, out);
    }

    /// Somebody has less of a file than before.
    fn changed(&mut self, ino: u64, out: &mut Vec<Effect>) {
        self.wake(ino, out);
        if !self.files.get(&ino).is_some_and(|file| file.lent) {
            out.push(Effect::State(ino));
        }
    }

    fn decide(&mut self, request: u64, wait: Wait, out: &mut Vec<Effect>) {
        let Wait { ino, lock, how, .. } = wait;
        let file = self.files.get(&ino);
        let (lent, returning) = file.map_or((false, false), |file| (file.lent, file.returning));
        let by = file.and_then(|file| file.table.conflict(&lock));
        let answer = match (how, by) {
            (How::Try | How::Test, Some(_)) => Some(Answer::Denied(by)),
            (How::Wait, Some(_)) if self.is_circle(lock.owner, ino, &lock) => {
                Some(Answer::Deadlock)
            }
            (How::Test, None) if lent => Some(Answer::Denied(None)),
            (How::Wait | How::Try, None) if lent && !returning => {
                self.set(ino, lock);
                Some(Answer::Granted)
            }
            _ => None,
        };
        if let Some(answer) = answer {
            return out.push(Effect::Answer(request, answer));
        }
        let asked = !lent;
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

    /// A program gives bytes of a file free. Says whether it could: where that splits a lock, its user may have
    /// too many.
    pub fn unlock(
        &mut self,
        ino: u64,
        owner: Owner,
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

    /// Gives those who wait what is free, if that is decided here. A shared lock may be given to one who had an
    /// exclusive one, which frees others.
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
                // The question may be on its way: its answer would say what was so when it was put.
                out.push(Effect::Cancel { request, ino });
            }
            self.decide(request, wait, out);
        }
    }

    /// A program waits no longer. Says whether it still did.
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

    /// The server has given a lock.
    pub fn on_granted(&mut self, ino: u64, request: u64, number: u64, out: &mut Vec<Effect>) {
        self.seen = self.seen.max(number);
        match self.waits.remove(&request) {
            Some(wait) => {
                self.set(ino, wait.lock);
                out.push(Effect::Answer(request, Answer::Granted));
            }
            // Nobody waits for it any more.
            None => out.push(Effect::State(ino)),
        }
    }

    /// The server has not given a lock, or says who hinders it.
    pub fn on_denied(&mut self, request: u64, by: Option<Lock>, out: &mut Vec<Effect>) {
        if let Some(wait) = self.waits.remove(&request) {
            self.drop_unused(wait.ino);
            out.push(Effect::Answer(request, Answer::Denied(by)));
        }
    }

    /// The server lets this mount decide, about this request to begin with.
    pub fn on_lent(&mut self, ino: u64, request: u64, number: u64, out: &mut Vec<Effect>) {
        self.seen = self.seen.max(number);
        let file = self.files.entry(ino).or_default();
        if !std::mem::replace(&mut file.lent, true) {
            self.lent += 1;
        }
        if let Some(wait) = self.waits.remove(&request) {
            self.decide(request, wait, out);
        }
        self.wake(ino, out);
    }

    /// The server wants to decide itself. What was written under locks here is to be made visible to others, and
    /// then [`Self::returned`]. Says whether there is something to be given back.
    pub fn on_recall(&mut self, ino: u64) -> bool {
        let file = self.files.get_mut(&ino).filter(|file| file.lent);
        file.is_some_and(|file| !std::mem::replace(&mut file.returning, true))
    }

    /// The server decides from now on.
    pub fn returned(&mut self, ino: u64, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&ino).filter(|file| file.lent) else {
            return;
        };
        (file.lent, file.returning) = (false, false);
        self.lent -= 1;
        out.push(Effect::State(ino));
        self.ask_again(ino, out);
    }

    fn ask_again(&mut self, ino: u64, out: &mut Vec<Effect>) {
        // Twice asked is twice answered: the second time after it may have changed.
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

    /// The locks of a file, and the last message of the server that was heard: to be sent for [`Effect::State`].
    pub fn state(&mut self, ino: u64) -> (Vec<Lock>, u64) {
        let file = self.files.get(&ino);
        let locks = file.map(|file| file.table.iter().copied().collect());
        self.drop_unused(ino);
        (locks.unwrap_or_default(), self.seen)
    }

    /// All that there is, to be told to a server that may not know it: files that are lent, and locks of others.
    /// What is asked for is asked again.
    pub fn join(&mut self, out: &mut Vec<Effect>) -> (Vec<u64>, Vec<(u64, Lock)>) {
        // Another life of the server counts anew.
        self.seen = 0;
        let waits: Vec<Wait> = self.waits.values().copied().collect();
        for wait in waits.iter().filter(|wait| wait.asked) {
            self.weaken(wait);
        }
        let lent = self.files.iter().filter(|(_, file)| file.lent);
        let lent: Vec<u64> = lent.map(|(&ino, _)| ino).collect();
        let others = self.files.iter().filter(|(_, file)| !file.lent);
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
        (lent, locks)
    }

    /// The server has given all of this mount's locks up. Gives those that programs believe to have; who waits is
    /// asked for again with [`Self::join`].
    pub fn lose(&mut self) -> Vec<(u64, Lock)> {
        let files = std::mem::take(&mut self.files);
        self.locks_by_user.clear();
        self.lent = 0;
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

    /// A shared lock that the server was asked for may have been granted unheard: others have the bytes too. Says
    /// whether they were had alone.
    fn weaken(&mut self, wait: &Wait) -> bool {
        let Wait { ino, lock, how, .. } = *wait;
        let mut weaker = false;
        if !lock.exclusive && how != How::Test {
            self.change(ino, lock.uid, |table| weaker = table.weaken(&lock));
        }
        weaker
    }

    fn change(&mut self, ino: u64, uid: u32, change: impl FnOnce(&mut Table)) {
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

    fn would_be_too_many(&self, ino: u64, uid: u32, change: impl FnOnce(&mut Table)) -> bool {
        let all = self.locks_by_user.get(&uid).copied().unwrap_or(0);
        // No change makes more than two of one.
        if all + 2 <= LOCKS_PER_USER_MAX {
            return false;
        }
        let file = self.files.get(&ino);
        let mut table = file.map_or_else(Table::default, |file| file.table.clone());
        let before = table.count(uid);
        change(&mut table);
        let after = table.count(uid);
        after > before && all + after - before > LOCKS_PER_USER_MAX
    }

    /// Whether somebody who hinders the lock waits, in the end, for its owner. Only processes can't help each other
    /// out of that: an open file's lock may be given free by others.
    fn is_circle(&self, owner: Owner, ino: u64, lock: &Lock) -> bool {
        if owner.space != Space::Ranges {
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
        let used = |file: &File| file.lent || !file.table.is_empty();
        let waited = || self.waits.values().any(|wait| wait.ino == ino);
        if !self.files.get(&ino).is_some_and(used) && !waited() {
            self.files.remove(&ino);
        }
    }

    /// A file whose table is to be given back, as after [`Self::on_recall`], because too many are lent.
    #[must_use]
    pub fn one_too_many(&self) -> Option<u64> {
        if self.lent <= LEASES_MAX {
            return None;
        }
        let waited: BTreeSet<u64> = self.waits.values().map(|wait| wait.ino).collect();
        let unused = self.files.iter().find(|(ino, file)| {
            file.lent && !file.returning && file.table.is_empty() && !waited.contains(ino)
        });
        unused.map(|(&ino, _)| ino)
    }

    /// Whether an owner has an exclusive lock of a file.
    #[must_use]
    pub fn has_exclusive(&self, ino: u64, owner: Owner) -> bool {
        let held = self.files.get(&ino).into_iter();
        let mut held = held.flat_map(|file| file.table.iter());
        held.any(|held| held.owner == owner && held.exclusive)
    }
}
