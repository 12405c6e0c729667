//! Users and groups of this host, looked up in the operating system's name service (NSS), which may use files, LDAP or other sources.
//! Unknown users are named by their number.
//!
//! A look-up may take as long as a request to the network service that the name service uses.

use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::ffi::CString;

fn known(uid: u32) -> Option<User> {
    User::from_uid(Uid::from_raw(uid)).ok().flatten()
}

/// Returns the user id for a user's name or number.
#[must_use]
pub fn uid(user: &str) -> Option<u32> {
    let known = User::from_name(user).ok().flatten();
    known
        .map(|known| known.uid.as_raw())
        .or_else(|| user.parse().ok())
}

/// Returns the name of a user; the number as text if the user is unknown.
#[must_use]
pub fn name(uid: u32) -> String {
    known(uid).map_or_else(|| uid.to_string(), |user| user.name)
}

/// Returns the user's primary group; the group with the same number if the user is unknown.
#[must_use]
pub fn gid(uid: u32) -> u32 {
    known(uid).map_or(uid, |user| user.gid.as_raw())
}

/// Returns the groups of a user, including the primary group; an empty list for an unknown user.
#[must_use]
pub fn groups(uid: u32) -> Vec<u32> {
    let listed = known(uid).and_then(|user| {
        let name = CString::new(user.name).ok()?;
        getgrouplist(&name, user.gid).ok()
    });
    let groups = listed.unwrap_or_default();
    groups.into_iter().map(Gid::as_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn users_resolve_by_name_or_number() {
        assert_eq!(uid("root"), Some(0));
        assert_eq!(name(0), "root");
        assert_eq!(uid("4000000001"), Some(4_000_000_001));
        assert_eq!(name(4_000_000_001), "4000000001");
        assert_eq!(uid("no such user"), None);
        assert_eq!(gid(4_000_000_001), 4_000_000_001);
        assert_eq!(groups(4_000_000_001), [0; 0]);
    }

    /// The program `id` asks the name service as well.
    #[test]
    fn groups_match_name_service() {
        for user in ["root", "nobody"] {
            let reported = Command::new("id").args(["-G", user]).output().unwrap();
            let reported = String::from_utf8(reported.stdout).unwrap();
            let mut reported: Vec<u32> = reported
                .split_whitespace()
                .map(|gid| gid.parse().unwrap())
                .collect();
            reported.sort_unstable();
            let mut groups = groups(uid(user).unwrap());
            groups.sort_unstable();
            assert_eq!(groups, reported, "{user}");
        }
    }
}
