//! Advisory locks (`flock`, `fcntl`) that reach across mounts.
//!
//! A mount decides alone about the locks of a file as long as no other mount wants one: the server has lent it
//! the file's whole table ([`Holder`] is the mount's side). When another mount asks, the server calls the table
//! back and decides itself, until only one mount is left ([`Arbiter`] is the server's side).
//!
//! Both are state machines that are handed what happened and say what is to be done; messages of one mount
//! arrive in their order, in both directions, or the mount joins anew.

mod arbiter;
mod holder;
mod table;

pub use arbiter::{Action, Arbiter, NotAMember};
pub use holder::{Answer, Effect, Holder};
pub use table::Table;

/// Locks that one user may have through one mount; ranges that were split count one each. What comes beyond is
/// refused with `ENOLCK`.
pub const LOCKS_PER_USER_MAX: usize = 4096;
/// Files whose tables are lent to one mount at once; beyond that it gives back one that has no locks.
pub const LEASES_MAX: usize = 4096;

/// Which calls a lock is made by. The two kinds don't see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// `fcntl`: ranges of bytes.
    Ranges,
    /// `flock`: whole files.
    Files,
}

/// Who has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The mount's session; 0 in the mount itself.
    pub mount: u64,
    /// The kind of the lock.
    pub space: Space,
    /// The process, or the open file, as the mount's kernel calls it.
    pub id: u64,
}

impl Owner {
    /// Before all others of a mount, in their order.
    pub const FIRST: Self = Self {
        mount: 0,
        space: Space::Ranges,
        id: 0,
    };
}

/// A lock that somebody has or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    /// Whose.
    pub owner: Owner,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// Whether nobody else may have even a shared one.
    pub exclusive: bool,
    /// The process that asked for it, for people and `F_GETLK`.
    pub pid: u32,
    /// Its user, who is counted for it.
    pub uid: u32,
}

impl Lock {
    /// Whether this lock keeps somebody from having that one.
    #[must_use]
    pub fn hinders(&self, wanted: &Self) -> bool {
        self.owner != wanted.owner
            && self.owner.space == wanted.owner.space
            && (self.exclusive || wanted.exclusive)
            && self.overlaps(wanted)
    }

    /// Whether they have bytes in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// What is asked about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// To have it, as soon as it is free.
    Wait,
    /// To have it if it is free.
    Try,
    /// Who hinders it.
    Test,
}
