//! Permissions of callers. On a mount the Linux kernel checks permissions; for programs without a mount this module does. The module reads
//! `/proc` of the connected process.

use super::peer_process;
use crate::error::Error;
use crate::fs::Caller;
use rustix::io::Errno;
use tidemill_wire::v1::{Attr, Kind};

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const SEARCH: u32 = 1;
/// Mode bit of a directory by which only the owner of an entry, or of the directory, may remove the entry.
const STICKY: u32 = 0o1000;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTABLE: u32 = 0o010;
/// Mode bits of all execute permissions.
const EXECUTABLE: u32 = 0o111;

/// Returns the numbers in the line `field` of `/proc/PID/status`.
fn numbers(status: &str, field: &str, radix: u32) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let numbers = line.unwrap_or_default().split_ascii_whitespace();
    numbers
        .filter_map(|word| u32::from_str_radix(word, radix).ok())
        .collect()
}

/// Returns the mode bits that a process removes from new files. If the umask cannot be read, all bits of other users are removed.
pub(super) fn umask(caller: Caller) -> u32 {
    let status = peer_process::read(caller, "status").unwrap_or_default();
    let umask = numbers(&status, "Umask:", 8);
    umask.first().copied().unwrap_or(0o077)
}

/// Whether a process that acts as the caller's user now is in a group. After a change of its user, as by a set-user-id program, a process
/// has the groups of the new user.
fn is_member(status: &str, caller: Caller, gid: u32) -> bool {
    let acts_as = numbers(status, "Uid:", 10).get(1).copied();
    acts_as == Some(caller.uid) && numbers(status, "Groups:", 10).contains(&gid)
}

fn in_group(caller: Caller, gid: u32) -> bool {
    caller.gid == gid
        || peer_process::read(caller, "status")
            .is_some_and(|status| is_member(&status, caller, gid))
}

/// Returns an error unless the caller has all permissions in `want` ([`READ`], [`WRITE`], [`SEARCH`]).
pub(super) fn may(caller: Caller, attr: &Attr, want: u32) -> Result<(), Error> {
    if caller.uid == 0 {
        let runs = attr.kind() == Kind::Directory || attr.mode & EXECUTABLE != 0;
        return if want & SEARCH == 0 || runs {
            Ok(())
        } else {
            Err(Errno::ACCESS.into())
        };
    }
    let all = |shift: u32| (attr.mode >> shift) & want == want;
    let allowed = if caller.uid == attr.uid {
        all(6)
    } else if all(3) == all(0) {
        // The same for both: the groups are not needed.
        all(0)
    } else if in_group(caller, attr.gid) {
        all(3)
    } else {
        all(0)
    };
    if allowed {
        Ok(())
    } else {
        Err(Errno::ACCESS.into())
    }
}

/// Returns an error unless the caller may remove an entry from a directory.
pub(super) fn may_remove(caller: Caller, directory: &Attr, entry: &Attr) -> Result<(), Error> {
    may(caller, directory, WRITE | SEARCH)?;
    let sticky = directory.mode & STICKY != 0;
    if sticky && ![0, entry.uid, directory.uid].contains(&caller.uid) {
        return Err(Errno::PERM.into());
    }
    Ok(())
}

/// Returns an error unless the caller is the owner of the file, or root.
pub(super) fn owns(caller: Caller, attr: &Attr) -> Result<(), Error> {
    if caller.uid == 0 || caller.uid == attr.uid {
        Ok(())
    } else {
        Err(Errno::PERM.into())
    }
}

/// Returns an error unless the caller may give a file another name, as Linux decides with `fs.protected_hardlinks`.
pub(super) fn may_link(caller: Caller, attr: &Attr) -> Result<(), Error> {
    if owns(caller, attr).is_ok() {
        return Ok(());
    }
    let runs_as_group = attr.mode & (SETGID | GROUP_EXECUTABLE) == SETGID | GROUP_EXECUTABLE;
    let plain = attr.kind() == Kind::File && attr.mode & SETUID == 0 && !runs_as_group;
    if plain && may(caller, attr, READ | WRITE).is_ok() {
        Ok(())
    } else {
        Err(Errno::PERM.into())
    }
}

/// Returns the mode that the caller may set, as the owner of the file.
pub(super) fn settable(caller: Caller, attr: &Attr, mode: u32) -> Result<u32, Error> {
    owns(caller, attr)?;
    let foreign_group = caller.uid != 0 && mode & SETGID != 0 && !in_group(caller, attr.gid);
    Ok(if foreign_group { mode & !SETGID } else { mode })
}

/// Returns an error unless the caller may set the file's user and group.
pub(super) fn may_give(
    caller: Caller,
    attr: &Attr,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<(), Error> {
    if caller.uid == 0 {
        return Ok(());
    }
    owns(caller, attr)?;
    let user = uid.is_none_or(|uid| uid == attr.uid);
    let group = gid.is_none_or(|gid| gid == attr.gid || in_group(caller, gid));
    if user && group {
        Ok(())
    } else {
        Err(Errno::PERM.into())
    }
}

/// Returns an error unless the caller may read or, with `change`, write an extended attribute.
pub(super) fn may_annotate(
    caller: Caller,
    attr: &Attr,
    name: &[u8],
    change: bool,
) -> Result<(), Error> {
    if name.starts_with(b"trusted.") && caller.uid != 0 {
        return Err(if change { Errno::PERM } else { Errno::NODATA }.into());
    }
    if name.starts_with(b"user.") {
        let kept = matches!(attr.kind(), Kind::File | Kind::Directory);
        if !kept {
            return Err(if change { Errno::PERM } else { Errno::NODATA }.into());
        }
        if change && attr.kind() == Kind::Directory && attr.mode & STICKY != 0 {
            owns(caller, attr)?;
        }
        return may(caller, attr, if change { WRITE } else { READ });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(mode: u32, uid: u32) -> Attr {
        Attr {
            mode,
            uid,
            gid: 77,
            kind: Kind::File.into(),
            ..Attr::default()
        }
    }

    fn user(uid: u32, gid: u32) -> Caller {
        Caller { uid, gid, pid: 0 }
    }

    #[test]
    fn permission_check_uses_first_matching_class() {
        // Fewer permissions for the owner than for all others, and fewer for the group.
        let file = attr(0o027, 5);
        assert!(may(user(5, 1), &file, READ).is_err());
        assert!(may(user(6, 77), &file, WRITE).is_ok());
        assert!(may(user(6, 77), &file, READ).is_err());
        assert!(may(user(6, 78), &file, READ | WRITE | SEARCH).is_ok());
        assert!(may(user(0, 0), &attr(0, 5), READ | WRITE).is_ok());
        assert!(may(user(0, 0), &attr(0o600, 5), SEARCH).is_err());
    }

    #[test]
    fn group_check_uses_groups_of_connected_process() {
        let directory = tempfile::tempdir().unwrap();
        let own = peer_process::tests::own(directory.path());
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let caller = |pid| Caller {
            uid,
            gid: u32::MAX,
            pid,
        };
        for gid in numbers(&status, "Groups:", 10) {
            let pid = std::process::id();
            assert!(peer_process::serve(&own, || in_group(caller(pid), gid)));
            assert!(!peer_process::serve(&own, || in_group(caller(1), gid)));
            assert!(!in_group(caller(pid), gid));
        }
        let text = "Umask:\t0022\nUid:\t5\t6\t6\t6\nGroups:\t7 77 \n";
        assert!(is_member(text, user(6, 1), 77));
        assert!(!is_member(text, user(6, 1), 78));
        assert!(!is_member(text, user(5, 1), 77));
    }

    #[test]
    fn removal_check_respects_sticky_directory_and_owner() {
        let directory = Attr {
            kind: Kind::Directory.into(),
            ..attr(0o1777, 9)
        };
        for (uid, removes) in [(0, true), (5, true), (9, true), (6, false)] {
            let allowed = may_remove(user(uid, 1), &directory, &attr(0o666, 5));
            assert_eq!(allowed.is_ok(), removes, "{uid}");
        }
        assert!(settable(user(6, 1), &attr(0o666, 5), 0o600).is_err());
        assert_eq!(settable(user(5, 1), &attr(0, 5), 0o2755).unwrap(), 0o755);
        assert_eq!(settable(user(5, 77), &attr(0, 5), 0o2755).unwrap(), 0o2755);
        assert!(may_give(user(5, 77), &attr(0, 5), Some(6), None).is_err());
        assert!(may_give(user(5, 1), &attr(0, 5), Some(5), Some(77)).is_ok());
    }

    #[test]
    fn link_to_foreign_file_needs_read_and_write_permission() {
        for (mode, uid, allowed) in [
            (0o600, 5, true),
            (0o600, 0, true),
            (0o600, 6, false),
            (0o644, 6, false),
            (0o622, 6, false),
            (0o666, 6, true),
            (0o4666, 6, false),
            (0o2676, 6, false),
            (0o2666, 6, true),
        ] {
            let file = attr(mode, 5);
            assert_eq!(
                may_link(user(uid, 1), &file).is_ok(),
                allowed,
                "{mode:o} {uid}"
            );
        }
        let link = Attr {
            kind: Kind::Symlink.into(),
            ..attr(0o777, 5)
        };
        assert!(may_link(user(6, 1), &link).is_err());
        assert!(may_link(user(5, 1), &link).is_ok());
    }
}
