//! The locks of one file.

use super::{Lock, Owner};

/// Locks that don't hinder each other. An owner has at most one on each byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub(super) Vec<Lock>);

impl Table {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.iter()
    }

    /// A lock that hinders the wanted one.
    #[must_use]
    pub fn conflict(&self, wanted: &Lock) -> Option<Lock> {
        self.0.iter().find(|held| held.hinders(wanted)).copied()
    }

    /// The owner has this lock now, whatever it had on these bytes before. It joins its like beside it.
    pub fn set(&mut self, lock: Lock) {
        self.clear(lock.owner, lock.start, lock.end);
        let mut whole = lock;
        self.0.retain(|held| {
            let beside = held.owner == whole.owner
                && held.exclusive == whole.exclusive
                && held.start <= whole.end.saturating_add(1)
                && whole.start <= held.end.saturating_add(1);
            if beside {
                whole.start = whole.start.min(held.start);
                whole.end = whole.end.max(held.end);
            }
            !beside
        });
        self.0.push(whole);
    }

    /// The owner has nothing on these bytes any more. A lock that goes beyond them is cut or split.
    pub fn clear(&mut self, owner: Owner, start: u64, end: u64) {
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

    /// Whether the owner has all of these bytes already, at least as the lock says.
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

    /// What the owner has exclusively of these bytes is shared from now on. Says whether that was anything.
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

    /// Keeps some of them.
    pub fn retain(&mut self, keep: impl Fn(&Lock) -> bool) {
        self.0.retain(keep);
    }

    /// How many of them are counted for a user.
    #[must_use]
    pub fn count(&self, uid: u32) -> usize {
        self.0.iter().filter(|held| held.uid == uid).count()
    }
}
