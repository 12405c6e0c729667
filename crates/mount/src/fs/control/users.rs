//! Users of this host by `/etc/passwd` and `/etc/group`. Users that are not there go by their number.

use std::fs::read_to_string;

fn passwd() -> String {
    read_to_string("/etc/passwd").unwrap_or_default()
}

/// Name, uid and gid of each line.
fn entries(text: &str) -> impl Iterator<Item = (&str, u32, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some((name, uid, gid))
    })
}

/// The uid of a user's name or number.
pub(super) fn uid(user: &str) -> Option<u32> {
    let text = passwd();
    let known = entries(&text).find(|(name, ..)| *name == user);
    known.map(|(_, uid, _)| uid).or_else(|| user.parse().ok())
}

/// The name of a user, or the number.
pub(super) fn name(uid: u32) -> String {
    let text = passwd();
    let known = entries(&text).find(|(_, id, _)| *id == uid);
    known.map_or_else(|| uid.to_string(), |(name, ..)| name.to_owned())
}

/// The user's own group.
pub(super) fn gid(uid: u32) -> u32 {
    let text = passwd();
    let known = entries(&text).find(|(_, id, _)| *id == uid);
    known.map_or(uid, |(_, _, gid)| gid)
}

/// The groups a user is a member of beside their own.
pub(super) fn groups(uid: u32) -> Vec<u32> {
    let name = name(uid);
    let text = read_to_string("/etc/group").unwrap_or_default();
    let member = |line: &str| {
        let mut fields = line.split(':');
        let gid = fields.nth(2)?.parse().ok()?;
        fields
            .next()?
            .split(',')
            .any(|member| member == name)
            .then_some(gid)
    };
    text.lines().filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_go_by_name_or_number() {
        assert_eq!(uid("root"), Some(0));
        assert_eq!(name(0), "root");
        assert_eq!(uid("4000000001"), Some(4_000_000_001));
        assert_eq!(name(4_000_000_001), "4000000001");
        assert_eq!(uid("no such user"), None);
    }

    #[test]
    fn lines_of_passwd_give_name_uid_and_gid() {
        let text = "a:x:7:8:A:/home/a:/bin/sh\nbroken\n# note\nb:x:9:10::/:/bin/false\n";
        let all: Vec<_> = entries(text).collect();
        assert_eq!(all, [("a", 7, 8), ("b", 9, 10)]);
    }
}
