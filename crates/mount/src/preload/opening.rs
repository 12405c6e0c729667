//! Opens of files and directories by programs (next: `mount/src/preload/open_files.rs`).

use super::answer::{Answers, OPEN_TRIES, ProgramRequest, Replied, Reply, low, plain};
use super::open_files::FileOpener;
use super::path_resolution::{Fail, PathTarget};
use super::peer_process;
use super::rights::{self, READ, SEARCH, WRITE};
use crate::error::Error;
use crate::fs::file::{OpenHow, OpenedFile};
use crate::fs::{InodeKey, LookupResult, WaitPolicy};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tidemill_preload_api::ASYNCHRONOUS;
use tidemill_wire::v1::Kind;

impl Answers {
    pub(super) fn open(&self, asked: ProgramRequest<'_>) -> Replied {
        let flags = OFlags::from_bits_retain(low(asked.request.flags));
        if flags.contains(OFlags::TMPFILE) {
            return Err(Errno::OPNOTSUPP.into());
        }
        if flags.contains(OFlags::RWMODE) {
            return Err(Errno::INVAL.into());
        }
        let create = flags.contains(OFlags::CREATE);
        let exclusive = create && flags.contains(OFlags::EXCL);
        let follow = !flags.contains(OFlags::NOFOLLOW) && !exclusive;
        for _ in 0..OPEN_TRIES {
            let place = self.walk(&asked, asked.path(), follow)?;
            let opened = match place.found {
                None if create => self.create(&asked, &place, flags),
                Some(_) if exclusive => return Err(Errno::EXIST.into()),
                _ => self.open_found(&asked, place.there()?, flags),
            };
            match opened {
                // Another client created it.
                Err(Fail::Error(error)) if !exclusive && create && error.is(Errno::EXIST) => {}
                // Another version is the current one by now, or this version is open with another way of access.
                Err(Fail::Error(error)) if error.is(Errno::STALE) => {}
                opened => return opened,
            }
        }
        Err(Errno::STALE.into())
    }

    fn create(&self, asked: &ProgramRequest<'_>, place: &PathTarget, flags: OFlags) -> Replied {
        if place.directory {
            return Err(Errno::ISDIR.into());
        }
        let parent = plain(&place.parent)?;
        rights::may(asked.caller, &place.parent.attr, WRITE | SEARCH)?;
        let how = OpenHow {
            write: true,
            update: flags & OFlags::RWMODE == OFlags::RDWR,
            truncate: false,
            follows: false,
        };
        let new = (asked.new_mode(), how);
        let made = self.fs.create(
            asked.caller,
            parent.ino,
            &place.name,
            new,
            WaitPolicy::MayWait,
        );
        let (found, opened) = made?;
        self.walker.keep(&self.fs, &found);
        self.hand_out(asked, found.key, how, &opened, flags)
    }

    fn hand_out(
        &self,
        asked: &ProgramRequest<'_>,
        key: InodeKey,
        how: OpenHow,
        opened: &OpenedFile,
        flags: OFlags,
    ) -> Replied {
        let made_here = OFlags::CREATE
            | OFlags::EXCL
            | OFlags::TRUNC
            | OFlags::NOCTTY
            | OFlags::NOFOLLOW
            | OFlags::NOATIME;
        let by = FileOpener {
            caller: asked.caller,
            flags: flags.difference(made_here),
            how,
            write_behind: asked.request.a & ASYNCHRONOUS != 0,
        };
        let (descriptor, reported) = self.open_files.hand_out(by, key, opened)?;
        let mut reply = Reply {
            descriptor: Some(descriptor),
            ..Reply::default()
        };
        // Whether changes have to be transferred at the close.
        reply.answer.value = u64::from(reported);
        Ok(reply)
    }

    fn open_found(
        &self,
        asked: &ProgramRequest<'_>,
        found: LookupResult,
        flags: OFlags,
    ) -> Replied {
        let mode = flags & OFlags::RWMODE;
        let how = OpenHow {
            write: mode != OFlags::RDONLY,
            update: mode == OFlags::RDWR,
            truncate: flags.contains(OFlags::TRUNC),
            follows: false,
        };
        let writes = how.write || how.truncate;
        let path_only = flags.contains(OFlags::PATH);
        match found.attr.kind() {
            Kind::Directory if writes || flags.contains(OFlags::CREATE) => {
                return Err(Errno::ISDIR.into());
            }
            Kind::Directory => {
                if !path_only {
                    rights::may(asked.caller, &found.attr, READ)?;
                }
                return self.open_directory(found.key, flags);
            }
            Kind::Symlink => return Err(Errno::LOOP.into()),
            _ if flags.contains(OFlags::DIRECTORY) => return Err(Errno::NOTDIR.into()),
            Kind::File => {}
            Kind::Socket => return Err(Errno::NXIO.into()),
            // No program can have it open for reading.
            Kind::Fifo if mode == OFlags::WRONLY && flags.contains(OFlags::NONBLOCK) => {
                return Err(Errno::NXIO.into());
            }
            _ => return Err(Errno::OPNOTSUPP.into()),
        }
        let read = mode != OFlags::WRONLY;
        let want = [(read && !path_only, READ), (writes, WRITE)];
        let want = want.iter().filter(|(wanted, _)| *wanted);
        let want = want.fold(0, |all, (_, right)| all | right);
        rights::may(asked.caller, &found.attr, want)?;
        if flags.contains(OFlags::NOATIME) {
            rights::owns(asked.caller, &found.attr)?;
        }
        let key = found.key;
        if key.is_special() {
            let handle = self.fs.control_open(asked.caller, key.ino, writes)?;
            // The open has examined the sender by its process number.
            if writes && !peer_process::is(asked.caller) {
                self.fs.control_release(handle);
                return Err(Errno::ACCESS.into());
            }
            let opened = OpenedFile {
                handle,
                local: None,
                object: u64::MAX - handle,
                cached: false,
                write: writes,
                flush: true,
                followed: false,
            };
            return self.hand_out(asked, key, how, &opened, flags);
        }
        self.open_files.settle_to_open(key.ino, writes);
        let opened = self.fs.open(asked.caller, key, how, WaitPolicy::MayWait)?;
        self.hand_out(asked, key, how, &opened, flags)
    }

    /// Returns a descriptor of an empty local directory whose name is the inode of the cluster's directory.
    fn open_directory(&self, key: InodeKey, flags: OFlags) -> Replied {
        let directory = self.directories.lock();
        let path = directory.join(key.pack().to_string());
        std::fs::create_dir(&path).map_err(Error::from)?;
        let kept = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(
            &path,
            (flags & kept) | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let removed = std::fs::remove_dir(&path);
        drop(directory);
        removed.map_err(Error::from)?;
        Ok(Reply {
            descriptor: Some(descriptor?),
            ..Reply::default()
        })
    }
}
