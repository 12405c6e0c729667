//! User numbers of kernels: they run as users that no process outside of the sandbox has.
//!
//! A kernel must not reach other processes of its owner: a process with the same user may inspect it, stop it, take its descriptors and
//! enter its directory. So if the node runs as root, the kernels of user `n` run as user [`KERNELS_FROM`]` + n`, which also owns their
//! directories. Within the sandbox's user namespace the number is `n` again. Files that neither a kernel nor its owner may change belong to
//! the last user that the system knows, which is neither the kernel's user nor its owner.

use std::io;
use std::sync::LazyLock;

use crate::error::PrepareError;
use crate::run::User;

/// First of the user numbers for kernels: the upper half, which systems assign to no user.
pub const KERNELS_FROM: u32 = 1 << 31;

/// Last number that a user may have; the next number means no user.
const LAST: u32 = u32::MAX - 1;

/// Number of users that can have kernels: the lower half except the last, whose kernels would have [`STORE_USER`]'s number.
pub(crate) const KERNELS: u32 = LAST - KERNELS_FROM;

/// User and group of sealed objects if the node runs as root: the last number that this process's user namespace knows. In a namespace with
/// few users, kernels of that user can't run.
pub static STORE_USER: LazyLock<User> = LazyLock::new(|| {
    let last = |path| ranges(path).ok().and_then(|all| last_of(&all));
    User {
        uid: last("/proc/self/uid_map").unwrap_or(LAST),
        gid: last("/proc/self/gid_map").unwrap_or(LAST),
    }
});

/// User numbers of kernels outside of their sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Kernels have separate user numbers.
    OfKernels,
    /// Kernels have the numbers of their owners: this process is not root, or this system knows no other numbers.
    OfOwners,
}

impl Ids {
    /// Returns the kind of user numbers that this process can use.
    pub(crate) fn of_this_host() -> Self {
        let maps = |path| ranges(path).is_ok_and(|all| all.iter().any(holds_numbers_for_kernels));
        if rustix::process::geteuid().is_root()
            && maps("/proc/self/uid_map")
            && maps("/proc/self/gid_map")
        {
            Self::OfKernels
        } else {
            Self::OfOwners
        }
    }

    /// Returns the number of a user's kernels outside of the sandbox.
    pub(crate) fn outside(self, user: User) -> Result<User, PrepareError> {
        if self == Self::OfOwners {
            return Ok(user);
        }
        let number = |id: u32| {
            let fits = id < KERNELS;
            fits.then(|| KERNELS_FROM + id)
                .ok_or(PrepareError::UserNumber(id))
        };
        Ok(User {
            uid: number(user.uid)?,
            gid: number(user.gid)?,
        })
    }
}

/// First number of a range inside of a namespace, and the length of the range.
type IdRange = (u64, u64);

/// Returns the ranges of numbers of users or groups in a map of this process.
pub(super) fn ranges(path: &str) -> io::Result<Vec<IdRange>> {
    Ok(std::fs::read_to_string(path)?
        .lines()
        .filter_map(range)
        .collect())
}

/// Parses a line of a user or group map: `inside outside count`.
fn range(line: &str) -> Option<IdRange> {
    let mut numbers = line.split_ascii_whitespace().map(str::parse);
    let (first, _, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
    Some((first.ok()?, count.ok()?))
}

/// Returns the last user number within a namespace.
fn last_of(all: &[IdRange]) -> Option<u32> {
    let last = |&(first, count): &IdRange| first.saturating_add(count.checked_sub(1)?).into();
    let last: u64 = all.iter().filter_map(last).max()?;
    u32::try_from(last.min(LAST.into())).ok()
}

/// Returns whether a range inside of the namespace contains all user numbers for kernels.
fn holds_numbers_for_kernels((first, count): &IdRange) -> bool {
    let (from, to) = (
        u64::from(KERNELS_FROM),
        u64::from(KERNELS_FROM) + u64::from(KERNELS),
    );
    *first <= from && first.saturating_add(*count) >= to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_namespace_needs_full_id_map_for_kernel_ids() {
        let holds = |line| range(line).is_some_and(|range| holds_numbers_for_kernels(&range));
        assert!(holds("         0          0 4294967295"));
        assert!(holds("0 0 4294967296"));
        assert!(!holds("0 100000 65536"));
        assert!(!holds("0 0 2147483649"));
        assert!(!holds(""));
    }

    #[test]
    fn kernel_user_id_is_never_id_of_host_user() {
        let user = |uid| User { uid, gid: uid };
        assert_eq!(Ids::OfOwners.outside(user(7)).unwrap(), user(7));
        let kernels = Ids::OfKernels.outside(user(0)).unwrap();
        assert_eq!(kernels, user(1 << 31));
        let last = Ids::OfKernels.outside(user(KERNELS - 1)).unwrap();
        assert_eq!(last.uid, u32::MAX - 2);
        assert!(Ids::OfKernels.outside(user(KERNELS)).is_err());
        // The owner of sealed objects is neither a kernel nor the kernel's owner, for any user.
        let store = |map: &str| last_of(&map.lines().filter_map(range).collect::<Vec<_>>());
        assert_eq!(store("0 0 4294967295"), Some(u32::MAX - 1));
        assert_eq!(store("0 100000 65536"), Some(65535));
        assert_eq!(store("0 0 2000\n65534 65534 1\n"), Some(65534));
        assert_eq!(store(""), None);
    }
}
