//! Table of the locks of one file.

use super::{Lock, LockHolder};

/// Locks of a file that do not conflict with each other. An owner has at most one lock on each byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockTable(pub(super) Vec<Lock>);

impl LockTable {
    /// Returns whether the table contains no locks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all locks of the table.
    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.iter()
    }

    /// Returns a lock that conflicts with the lock `wanted`.
    #[must_use]
    pub fn conflict(&self, wanted: &Lock) -> Option<Lock> {
        self.0.iter().find(|held| held.hinders(wanted)).copied()
    }

    /// Sets a lock, which replaces all locks of the owner on these bytes. Equal adjacent locks are merged.
    pub fn set(&mut self, lock: Lock) {
        self.clear(lock.owner, lock.start, lock.end);
        let mut whole = lock;
        self.0.retain(|held| {
            let adjacent = held.owner == whole.owner
                && held.exclusive == whole.exclusive
                && held.start <= whole.end.saturating_add(1)
                && whole.start <= held.end.saturating_add(1);
            if adjacent {
                whole.start = whole.start.min(held.start);
                whole.end = whole.end.max(held.end);
            }
            !adjacent
        });
        self.0.push(whole);
    }

    /// Removes all locks of the owner on these bytes. A lock that extends beyond the bytes is cut or split.
    pub fn clear(&mut self, owner: LockHolder, start: u64, end: u64) {
        let mut rests = Vec::new();
        self.0.retain(|held| {
            if held.owner != owner || held.end < start || end < held.start {
                return true;
            }
            if held.start < start {
                let end = start - 1;
                rests.push(Lock { end, ..*held });
            }
            if held.end > end {
                let start = end + 1;
                rests.push(Lock { start, ..*held });
            }
            false
        });
        self.0.append(&mut rests);
    }

    /// Returns whether the lock's owner holds all of its bytes already, at least as strongly.
    #[must_use]
    pub fn covers(&self, lock: &Lock) -> bool {
        let own = |held: &&Lock| held.owner == lock.owner && (held.exclusive || !lock.exclusive);
        let mut own: Vec<&Lock> = self.0.iter().filter(own).collect();
        own.sort_by_key(|held| held.start);
        let mut next = Some(lock.start);
        for held in own {
            match next {
                Some(byte) if byte <= lock.end && held.start <= byte && byte <= held.end => {
                    next = held.end.checked_add(1);
                }
                _ => {}
            }
        }
        next.is_none_or(|byte| byte > lock.end)
    }

    /// Turns the owner's exclusive locks on the bytes of `lock` into shared locks. Returns whether there were exclusive locks.
    pub fn weaken(&mut self, lock: &Lock) -> bool {
        let own = |held: &&Lock| held.owner == lock.owner && held.exclusive && held.overlaps(lock);
        let exclusive: Vec<Lock> = self.0.iter().filter(own).copied().collect();
        for held in &exclusive {
            self.set(Lock {
                start: held.start.max(lock.start),
                end: held.end.min(lock.end),
                exclusive: false,
                ..*held
            });
        }
        !exclusive.is_empty()
    }

    /// Keeps the locks for which `keep` returns true, and removes all other locks.
    pub fn retain(&mut self, keep: impl Fn(&Lock) -> bool) {
        self.0.retain(keep);
    }

    /// Returns the number of locks that count for a user.
    #[must_use]
    pub fn count(&self, uid: u32) -> usize {
        self.0.iter().filter(|held| held.uid == uid).count()
    }
}
