//! Attributes of files, including size and times, as programs read and set them (next: `mount/src/fs/names.rs`).

use super::answer::{Answers, ProgramRequest, Replied, Reply, done, low, type_of};
use super::copies;
use super::rights::{self, WRITE};
use crate::error::Error;
use crate::fs::names::AttributeChanges;
use crate::fs::{LookupResult, WaitPolicy};
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_preload_api::{NOBODY, Op, Stat, TIME_NOW, TIME_OMITTED};
use tidemill_wire::v1::Kind;

/// Mode bits that a program can set.
pub(super) const MODE_BITS: u64 = 0o7777;
/// Maximum size and offset of files in bytes, as on Linux.
const OFFSET_MAX: u64 = i64::MAX as u64;

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
}

impl Answers {
    pub(super) fn stat(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, asked.follows())?;
        let mut reply = Reply::default();
        reply.answer.stat = self.shown(&asked, &found);
        Ok(reply)
    }

    fn shown(&self, asked: &ProgramRequest<'_>, found: &LookupResult) -> Stat {
        let attr = &found.attr;
        let mode = type_of(attr.kind()).as_raw_mode() | (attr.mode & 0o7777);
        let mut stat = Stat {
            ino: attr.ino,
            mode: mode.into(),
            nlink: attr.nlink.into(),
            uid: attr.uid.into(),
            gid: attr.gid.into(),
            rdev: attr.rdev.into(),
            size: attr.size,
            blocks: found.blocks,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
        };
        // The file system does not know writes to a copy yet.
        let open = if attr.kind() == Kind::File {
            self.open_files.of_inode(found.key.ino)
        } else {
            Vec::new()
        };
        let by_file = asked.request.inode != 0;
        let copy = open.iter().find_map(|open_file| {
            let same = open_file.key.alias == found.key.alias && !open_file.key.is_special();
            let copy = open_file.written_copy().filter(|_| same);
            copy.or(open_file.copy.as_ref().filter(|_| by_file && same))
        });
        let there = match copy {
            Some(copy) => copy.file.metadata().ok(),
            None => self.open_files.write_behind.left_of(found.key.ino),
        };
        if let Some(there) = there {
            (stat.size, stat.blocks) = (there.len(), there.blocks());
            stat.mtime = there.mtime() * 1_000_000_000 + there.mtime_nsec();
            stat.ctime = stat.ctime.max(stat.mtime);
        }
        stat
    }

    /// Changes attributes of a file.
    fn change(
        &self,
        asked: &ProgramRequest<'_>,
        found: &LookupResult,
        changes: AttributeChanges,
    ) -> Replied {
        if found.key.is_special() {
            return done();
        }
        self.fs
            .setattr(asked.caller, found.key, changes, WaitPolicy::MayWait)?;
        done()
    }

    pub(super) fn truncate(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, true)?;
        let size = asked.request.a;
        if size > OFFSET_MAX {
            return Err(Errno::INVAL.into());
        }
        match found.attr.kind() {
            Kind::File => {}
            Kind::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        rights::may(asked.caller, &found.attr, WRITE)?;
        self.open_files.settle_stored(found.key.ino)?;
        let open = self.open_files.of_inode(found.key.ino);
        if let Some(copy) = open.iter().find_map(|open_file| open_file.written_copy()) {
            copy.file.set_len(size).map_err(Error::from)?;
            return done();
        }
        let changes = AttributeChanges {
            size: Some(size),
            ..AttributeChanges::default()
        };
        self.change(&asked, &found, changes)
    }

    pub(super) fn set_mode(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, asked.follows())?;
        if found.attr.kind() == Kind::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let mode = low(asked.request.mode & MODE_BITS);
        let mode = rights::settable(asked.caller, &found.attr, mode)?;
        let changes = AttributeChanges {
            mode: Some(mode),
            ..AttributeChanges::default()
        };
        self.change(&asked, &found, changes)
    }

    pub(super) fn set_owner(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, asked.follows())?;
        let id = |number| (number & NOBODY != NOBODY).then(|| low(number));
        let (uid, gid) = (id(asked.request.a), id(asked.request.b));
        rights::may_give(asked.caller, &found.attr, uid, gid)?;
        let changes = AttributeChanges {
            uid,
            gid,
            ..AttributeChanges::default()
        };
        if uid.is_none() && gid.is_none() {
            return done();
        }
        self.change(&asked, &found, changes)
    }

    pub(super) fn set_times(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, asked.follows())?;
        let (atime, mtime) = (asked.request.a.cast_signed(), asked.request.b.cast_signed());
        if atime == TIME_OMITTED && mtime == TIME_OMITTED {
            return done();
        }
        if atime == TIME_NOW && mtime == TIME_NOW {
            let owner = rights::owns(asked.caller, &found.attr);
            owner.or_else(|_| rights::may(asked.caller, &found.attr, WRITE))?;
        } else {
            rights::owns(asked.caller, &found.attr)?;
        }
        self.open_files.settle_stored(found.key.ino)?;
        for open_file in self.open_files.of_inode(found.key.ino) {
            // A later transfer of the copy would change the time.
            if let Some(copy) = open_file.written_copy() {
                self.open_files.hand_over(&open_file, copy)?;
            }
        }
        let time = |time| match time {
            TIME_OMITTED => None,
            TIME_NOW => Some(now_ns()),
            time => Some(time),
        };
        let changes = AttributeChanges {
            atime: time(atime),
            mtime: time(mtime),
            ..AttributeChanges::default()
        };
        let done = self.change(&asked, &found, changes)?;
        for open_file in self.open_files.of_inode(found.key.ino) {
            if let (Some(copy), Some(mtime)) = (open_file.written_copy(), changes.mtime) {
                copies::set_mtime(&copy.file, mtime)?;
            }
        }
        Ok(done)
    }

    pub(super) fn read_attribute(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, asked.follows())?;
        let (caller, key) = (asked.caller, found.key);
        let names = Op::of(asked.request.op) == Some(Op::ListAttributes);
        let text = if names && key.is_special() {
            Vec::new()
        } else if names {
            let all = self.fs.listxattr(caller, key.ino, WaitPolicy::MayWait)?;
            let shown = all.split_inclusive(|&byte| byte == 0);
            shown
                .filter(|name| caller.uid == 0 || !name.starts_with(b"trusted."))
                .flatten()
                .copied()
                .collect()
        } else if key.is_special() {
            return Err(Errno::OPNOTSUPP.into());
        } else {
            let name = asked.texts[1];
            rights::may_annotate(caller, &found.attr, name, false)?;
            self.open_files.settle(key.ino);
            self.fs
                .getxattr(caller, key.ino, name, WaitPolicy::MayWait)?
        };
        let mut reply = Reply::default();
        reply.answer.value = text.len() as u64;
        match asked.request.a {
            0 => Ok(reply),
            space if text.len() as u64 > space => Err(Errno::RANGE.into()),
            _ => {
                reply.text = text;
                Ok(reply)
            }
        }
    }

    pub(super) fn change_attribute(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, asked.follows())?;
        if found.key.is_special() {
            return Err(Errno::OPNOTSUPP.into());
        }
        let (caller, ino, name) = (asked.caller, found.key.ino, asked.texts[1]);
        rights::may_annotate(caller, &found.attr, name, true)?;
        if Op::of(asked.request.op) == Some(Op::RemoveAttribute) {
            self.fs
                .removexattr(caller, ino, name, WaitPolicy::MayWait)?;
            return done();
        }
        // Flags of `setxattr` are above those of paths.
        let flags = low(asked.request.mode);
        let how = (
            flags & libc::XATTR_CREATE.unsigned_abs() != 0,
            flags & libc::XATTR_REPLACE.unsigned_abs() != 0,
        );
        let value = asked.texts[2];
        self.fs
            .setxattr(caller, ino, name, value, how, WaitPolicy::MayWait)?;
        done()
    }
}
