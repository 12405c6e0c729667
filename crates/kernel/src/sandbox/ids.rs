//! Under whose numbers kernels run: as users of the system that are nobody outside of the sandbox.
//!
//! A kernel must not meet its owner's other processes: what has the same user may look into it, stop it, take its
//! descriptors and walk into its folder. So where the element is root, the kernels of user `n` run as user
//! [`KERNELS_FROM`]` + n`, and their folders belong to that. Within the sandbox's namespace of users it is `n` again.

use std::io;

use crate::error::PrepareError;
use crate::run::User;

/// The first of the numbers for kernels: the upper half, which systems give to no user.
pub const KERNELS_FROM: u32 = 1 << 31;

/// How many users have such a number; the very last stands for none.
pub(crate) const KERNELS: u32 = u32::MAX - KERNELS_FROM;

/// Whose numbers kernels have outside of their sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Numbers that nobody else has.
    OfKernels,
    /// Those of their owners: this process is not root, or the system knows no others here.
    OfOwners,
}

impl Ids {
    /// What this process can do.
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

    /// The user as the system knows a kernel's.
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

/// Where a range of numbers begins inside of a namespace, and how many there are.
type Range = (u64, u64);

/// The numbers of users or groups in a map of this process.
pub(super) fn ranges(path: &str) -> io::Result<Vec<Range>> {
    Ok(std::fs::read_to_string(path)?
        .lines()
        .filter_map(range)
        .collect())
}

/// A line of a map: `inside outside count`.
fn range(line: &str) -> Option<Range> {
    let mut numbers = line.split_ascii_whitespace().map(str::parse);
    let (first, _, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
    Some((first.ok()?, count.ok()?))
}

/// Whether a range has all numbers for kernels inside.
fn holds_numbers_for_kernels((first, count): &Range) -> bool {
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
    fn only_a_whole_map_has_numbers_for_kernels() {
        let holds = |line| range(line).is_some_and(|range| holds_numbers_for_kernels(&range));
        assert!(holds("         0          0 4294967295"));
        assert!(holds("0 0 4294967296"));
        assert!(!holds("0 100000 65536"));
        assert!(!holds("0 0 2147483649"));
        assert!(!holds(""));
    }

    #[test]
    fn no_user_of_a_kernel_is_a_user_outside() {
        let user = |uid| User { uid, gid: uid };
        assert_eq!(Ids::OfOwners.outside(user(7)).unwrap(), user(7));
        let kernels = Ids::OfKernels.outside(user(0)).unwrap();
        assert_eq!(kernels, user(1 << 31));
        let last = Ids::OfKernels.outside(user(KERNELS - 1)).unwrap();
        assert_eq!(last.uid, u32::MAX - 1);
        assert!(Ids::OfKernels.outside(user(KERNELS)).is_err());
    }
}
