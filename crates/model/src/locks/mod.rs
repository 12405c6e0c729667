//! Advisory locks (`flock`, `fcntl`) across mounts.
//!
//! A mount decides alone about the locks of a file as long as no other mount requests a lock of the file: the server has delegated the
//! file's whole lock table to the mount ([`Holder`] is the mount's side). When another mount requests a lock, the server recalls the table
//! and decides itself, until only one mount is left ([`Arbiter`] is the server's side).
//!
//! `Holder` and `Arbiter` are state machines without I/O: they receive events and return actions. Messages of a mount arrive in order, in
//! both directions, or the mount joins again.

mod arbiter;
mod holder;
mod table;

pub use arbiter::{Arbiter, LockMessage, NotAMember};
pub use holder::{Effect, Holder, LockAnswer};
pub use table::LockTable;

/// Maximum number of locks of one user through one mount; ranges that result from splits count separately. Further locks are refused with
/// `ENOLCK`.
pub const LOCKS_PER_USER_MAX: usize = 4096;
/// Maximum number of files whose lock tables are delegated to one mount; beyond it the mount returns a table without locks.
pub const LEASES_MAX: usize = 4096;

/// System call with which a lock is taken. Locks of different calls do not conflict with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockSpace {
    /// `fcntl`: locks on ranges of bytes.
    Ranges,
    /// `flock`: locks on whole files.
    Files,
}

/// Owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockHolder {
    /// Session of the owner's mount; 0 within the mount itself.
    pub mount: u64,
    /// System call with which the owner locks.
    pub space: LockSpace,
    /// Id of the process, or of the open file, in the mount's Linux kernel.
    pub id: u64,
}

impl LockHolder {
    /// Owner that precedes all other owners of a mount in their order.
    pub const FIRST: Self = Self {
        mount: 0,
        space: LockSpace::Ranges,
        id: 0,
    };
}

/// Lock that is held or requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    /// Owner of the lock.
    pub owner: LockHolder,
    /// Offset of the first locked byte.
    pub start: u64,
    /// Offset of the last locked byte.
    pub end: u64,
    /// Whether the lock is exclusive, so that no other owner may have even a shared lock on the bytes.
    pub exclusive: bool,
    /// Process that requested the lock, for people and `F_GETLK`.
    pub pid: u32,
    /// User whose number of locks includes the lock.
    pub uid: u32,
}

impl Lock {
    /// Returns whether this lock conflicts with the lock `wanted`.
    #[must_use]
    pub fn hinders(&self, wanted: &Self) -> bool {
        self.owner != wanted.owner
            && self.owner.space == wanted.owner.space
            && (self.exclusive || wanted.exclusive)
            && self.overlaps(wanted)
    }

    /// Returns whether the two locks have bytes in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// Kind of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Grant the lock as soon as it is free.
    Wait,
    /// Grant the lock only if it is free now.
    Try,
    /// Report a conflicting lock.
    Test,
}
