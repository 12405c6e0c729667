//! Answers requests of programs: converts them, makes the checks that the Linux kernel makes on a mount, and decides nothing else (next:
//! `mount/src/fs/mod.rs`).

use super::attributes::MODE_BITS;
use super::open_files::{OpenFile, OpenFiles};
use super::path_resolution::{Fail, PathTarget, ProgramPath, Walker};
use super::peer_process;
use super::rights::{self, READ, SEARCH, WRITE};
use crate::fs::names::{NewEntry, Renaming};
use crate::fs::{Caller, Fs, InodeKey, LookupResult, WaitPolicy, kind_of_mode};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, RenameFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_model::id::Inode;
use tidemill_preload_api::{Answer, Entry, HANDLES_AT, LISTING_BYTES_MAX, Op, Request, Stat};
use tidemill_wire::v1::Kind;

/// Maximum number of times that an open looks for the current version.
pub(super) const OPEN_TRIES: u32 = 32;
/// Maximum number of open listings in total and of each user; beyond the limits the oldest listing ends.
const LISTINGS_MAX: usize = 4096;
const LISTINGS_OF_USER_MAX: usize = LISTINGS_MAX / 4;
/// Number of directory entries that are requested at once.
const LIST_ENTRIES: usize = 512;
const DEPTH_MAX: usize = 4096;

/// Answers programs' requests from the file system.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) fs: Arc<Fs>,
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) walker: Walker,
    /// Whether the process serves several users, whose files have to be protected from each other.
    other_users: bool,
    /// Listings of open directories, by number.
    listings: Mutex<Listings>,
    /// Path of the directory that has an empty directory for each open directory of the cluster.
    pub(super) directories: Mutex<PathBuf>,
}

/// An open directory that is being listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProgramListing {
    handle: u64,
    /// Inode of the directory, as the program named it.
    base: u64,
    /// User id of the user who lists the directory.
    uid: u32,
}

#[derive(Debug, Default)]
struct Listings {
    by_number: BTreeMap<u64, ProgramListing>,
    last: u64,
}

impl Listings {
    /// Gives the listing a number. Returns the number, and the listing that ends because of the limits.
    fn enter(&mut self, listing: ProgramListing) -> (u64, Option<ProgramListing>) {
        let numbers = self.by_number.iter();
        let own: Vec<_> = numbers
            .filter(|(_, other)| other.uid == listing.uid)
            .map(|(number, _)| *number)
            .collect();
        let oldest = if own.len() >= LISTINGS_OF_USER_MAX {
            own.first().copied()
        } else if self.by_number.len() >= LISTINGS_MAX {
            self.by_number.keys().next().copied()
        } else {
            None
        };
        let ended = oldest.and_then(|number| self.by_number.remove(&number));
        // A position in a listing has this number as its upper half.
        self.last = self.last % u64::from(u32::MAX) + 1;
        while self.by_number.contains_key(&self.last) {
            self.last = self.last % u64::from(u32::MAX) + 1;
        }
        self.by_number.insert(self.last, listing);
        (self.last, ended)
    }

    /// Returns the listing with a number, if the same user began the listing for the same directory.
    fn of(&self, number: u64, base: u64, uid: u32) -> Option<ProgramListing> {
        let listing = self.by_number.get(&number).copied();
        listing.filter(|listing| listing.base == base && [0, listing.uid].contains(&uid))
    }
}

/// Answer to a request.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) answer: Answer,
    pub(super) text: Vec<u8>,
    pub(super) descriptor: Option<OwnedFd>,
}

pub(super) type Replied = Result<Reply, Fail>;

#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramRequest<'a> {
    pub(super) caller: Caller,
    pub(super) request: Request,
    pub(super) texts: [&'a [u8]; 4],
}

impl ProgramRequest<'_> {
    pub(super) fn path(&self) -> ProgramPath<'_> {
        ProgramPath {
            base: self.request.base,
            text: self.texts[0],
            prefix: self.texts[3],
        }
    }

    fn second(&self) -> ProgramPath<'_> {
        ProgramPath {
            base: self.request.base2,
            text: self.texts[1],
            prefix: self.texts[3],
        }
    }

    pub(super) fn follows(&self) -> bool {
        !self.at_flags().contains(AtFlags::SYMLINK_NOFOLLOW)
    }

    fn at_flags(&self) -> AtFlags {
        AtFlags::from_bits_retain(low(self.request.flags))
    }

    fn file(&self) -> (u64, u64) {
        (self.request.device, self.request.inode)
    }

    pub(super) fn mode(&self) -> u32 {
        low(self.request.mode)
    }

    /// Returns the mode of a new file, less the program's umask.
    pub(super) fn new_mode(&self) -> u32 {
        low(self.request.mode & MODE_BITS) & !rights::umask(self.caller)
    }
}

/// Returns the lower 32 bits of a number, which are all that system calls use.
pub(super) fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0)
}

pub(super) fn done() -> Replied {
    Ok(Reply::default())
}

/// Returns the last name of a path if it is `.` or `..`, which is not an entry.
fn dots(path: &[u8]) -> Option<&'static [u8]> {
    let last = path
        .rsplit(|&byte| byte == b'/')
        .find(|name| !name.is_empty());
    match last {
        Some(b".") => Some(b"."),
        Some(b"..") => Some(b".."),
        _ => None,
    }
}

pub(super) fn type_of(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::File | Kind::Unspecified => FileType::RegularFile,
    }
}

fn dirent_type(kind: Kind) -> u8 {
    u8::try_from(type_of(kind).as_raw_mode() >> 12).unwrap_or(0)
}

fn is_dir(found: &LookupResult) -> bool {
    found.attr.kind() == Kind::Directory
}

/// Returns an error for changes of the control directory.
pub(super) fn plain(found: &LookupResult) -> Result<InodeKey, Fail> {
    if found.key.is_special() {
        return Err(Errno::PERM.into());
    }
    Ok(found.key)
}

impl Answers {
    pub(super) fn new(
        fs: Arc<Fs>,
        open_files: Arc<OpenFiles>,
        directories: PathBuf,
        other_users: bool,
    ) -> Self {
        Self {
            fs,
            open_files,
            other_users,
            walker: Walker::default(),
            listings: Mutex::default(),
            directories: Mutex::new(directories),
        }
    }

    pub(super) fn answer(&self, asked: ProgramRequest<'_>) -> Reply {
        let fail = match self.serve(asked) {
            Ok(reply) => return reply,
            Err(fail) => fail,
        };
        let mut reply = Reply::default();
        match fail {
            Fail::Leaves(path) => {
                reply.answer.errno = tidemill_preload_api::LEAVES;
                reply.text = path;
            }
            Fail::Error(error) => {
                let errno = error.errno();
                if errno == libc::EIO {
                    tracing::warn!("an operation failed: {error}");
                }
                reply.answer.errno = u64::from(errno.unsigned_abs());
            }
        }
        reply
    }

    fn serve(&self, asked: ProgramRequest<'_>) -> Replied {
        match Op::of(asked.request.op).ok_or(Errno::NOSYS)? {
            Op::Open => self.open(asked),
            Op::Stat => self.stat(asked),
            Op::Access => self.access(asked),
            Op::List => self.list(asked),
            Op::MakeDirectory => self.make(asked, Kind::Directory, &[]),
            Op::MakeNode => self.make_node(asked),
            Op::Symlink => self.symlink(asked),
            Op::ReadLink => self.read_link(asked),
            Op::Link => self.link(asked),
            Op::Unlink => self.unlink(asked),
            Op::Rename => self.rename(asked),
            Op::Truncate => self.truncate(asked),
            Op::SetMode => self.set_mode(asked),
            Op::SetOwner => self.set_owner(asked),
            Op::SetTimes => self.set_times(asked),
            Op::StatFs => self.stat_fs(asked),
            Op::GetAttribute | Op::ListAttributes => self.read_attribute(asked),
            Op::SetAttribute | Op::RemoveAttribute => self.change_attribute(asked),
            Op::Sync => self.sync(asked),
            Op::Flush => {
                self.open_files.flush(asked.file())?;
                done()
            }
            Op::Resolve => self.resolve(asked),
            Op::Flock => self.flock(asked),
            Op::Wait => self.standing(asked),
        }
    }

    /// Returns the file that a request is about: the target of its path, a directory or an open file.
    pub(super) fn target(
        &self,
        asked: &ProgramRequest<'_>,
        follow: bool,
    ) -> Result<LookupResult, Fail> {
        if asked.request.inode != 0 {
            let open_file = self.open_file(asked)?;
            return Ok(Walker::at(&self.fs, asked.caller, open_file.key)?);
        }
        if asked.texts[0].is_empty() && asked.request.base != 0 {
            let key = InodeKey::unpack(asked.request.base);
            self.entitled(asked.caller, key)?;
            return Ok(Walker::at(&self.fs, asked.caller, key)?);
        }
        self.walk(asked, asked.path(), follow)?.there()
    }

    fn open_file(&self, asked: &ProgramRequest<'_>) -> Result<Arc<OpenFile>, Fail> {
        let mut open = self.open_files.of_file(asked.file());
        // A program may name a file that it has not opened.
        let caller = asked.caller.uid;
        open.retain(|open_file| !self.other_users || [0, open_file.caller.uid].contains(&caller));
        let open_file = open
            .iter()
            .find(|open_file| open_file.write)
            .or(open.first());
        Ok(open_file.cloned().ok_or(Errno::BADF)?)
    }

    /// Checks that the caller may reach a directory by its path, because any program can name a directory by its inode.
    pub(super) fn entitled(&self, caller: Caller, key: InodeKey) -> Result<(), Fail> {
        if !self.other_users || caller.uid == 0 || key.is_special() {
            return Ok(());
        }
        let mut at = key.ino;
        for _ in 0..DEPTH_MAX {
            if at == Inode::ROOT.0 {
                return Ok(());
            }
            let (ino, _) = self.fs.table.name_of(at).ok_or(Errno::ACCESS)?;
            let above = Walker::at(&self.fs, caller, InodeKey { ino, alias: 0 })?;
            rights::may(caller, &above.attr, SEARCH)?;
            at = ino;
        }
        Err(Errno::ACCESS.into())
    }

    pub(super) fn walk(
        &self,
        asked: &ProgramRequest<'_>,
        path: ProgramPath<'_>,
        follow: bool,
    ) -> Result<PathTarget, Fail> {
        if !path.text.starts_with(b"/") && path.base != 0 {
            self.entitled(asked.caller, InodeKey::unpack(path.base))?;
        }
        self.walker.walk(&self.fs, asked.caller, path, follow)
    }

    fn access(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, asked.follows())?;
        let want = asked.mode() & 7;
        if want != 0 {
            rights::may(asked.caller, &found.attr, want)?;
        }
        done()
    }

    fn list(&self, asked: ProgramRequest<'_>) -> Replied {
        let key = InodeKey::unpack(asked.request.base);
        let (number, mut from) = (asked.request.a >> 32, low(asked.request.a) as usize);
        let mut reply = Reply::default();
        let mut add = |ino: u64, kind: Kind, name: &[u8]| {
            let kind = dirent_type(kind);
            let entry = Entry { ino, kind, name };
            let Some(head) = entry.encode() else {
                return true;
            };
            let fits = reply.text.len() + head.len() + name.len() <= LISTING_BYTES_MAX;
            if fits {
                reply.text.extend_from_slice(&head);
                reply.text.extend_from_slice(name);
            }
            fits
        };
        let number = if asked.request.a == 0 {
            self.entitled(asked.caller, key)?;
            let found = Walker::at(&self.fs, asked.caller, key)?;
            if !is_dir(&found) {
                return Err(Errno::NOTDIR.into());
            }
            rights::may(asked.caller, &found.attr, READ)?;
            add(found.attr.ino, Kind::Directory, b".");
            add(found.attr.ino, Kind::Directory, b"..");
            if key.is_special() {
                let entries = self
                    .fs
                    .control_list(asked.caller, key.ino, WaitPolicy::MayWait)?;
                for (name, found) in entries {
                    add(found.attr.ino, found.attr.kind(), &name);
                }
                return Ok(reply);
            }
            self.begin_listing(&asked, key)
        } else {
            number
        };
        let uid = asked.caller.uid;
        let listing = self.listings.lock().of(number, asked.request.base, uid);
        let handle = listing.ok_or(Errno::STALE)?.handle;
        loop {
            let listed = self.fs.list(
                asked.caller,
                handle,
                from,
                LIST_ENTRIES,
                WaitPolicy::MayWait,
            )?;
            if listed.is_empty() {
                self.listings.lock().by_number.remove(&number);
                self.fs.releasedir(handle);
                return Ok(reply);
            }
            for (at, entry) in listed {
                if !add(entry.attr.ino, entry.attr.kind(), &entry.name) {
                    let next = u32::try_from(at).map_err(|_| Errno::OVERFLOW)?;
                    reply.answer.value = number << 32 | u64::from(next);
                    return Ok(reply);
                }
                let found = self.fs.list_found(key.ino, &entry);
                self.walker.keep(&self.fs, &found);
                from = at + 1;
            }
        }
    }

    fn begin_listing(&self, asked: &ProgramRequest<'_>, key: InodeKey) -> u64 {
        let listing = ProgramListing {
            handle: self.fs.opendir(key.ino),
            base: asked.request.base,
            uid: asked.caller.uid,
        };
        let (number, ended) = self.listings.lock().enter(listing);
        if let Some(ended) = ended {
            self.fs.releasedir(ended.handle);
        }
        number
    }

    /// Returns the parent directory and the name of an entry that a request creates.
    fn vacant(
        &self,
        asked: &ProgramRequest<'_>,
        path: ProgramPath<'_>,
        directory: bool,
    ) -> Result<PathTarget, Fail> {
        let place = self.walk(asked, path, false)?;
        if place.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        if place.directory && !directory {
            return Err(Errno::NOENT.into());
        }
        plain(&place.parent)?;
        rights::may(asked.caller, &place.parent.attr, WRITE | SEARCH)?;
        Ok(place)
    }

    fn make(&self, asked: ProgramRequest<'_>, kind: Kind, target: &[u8]) -> Replied {
        let directory = kind == Kind::Directory;
        let place = self.vacant(&asked, asked.path(), directory)?;
        let new = NewEntry {
            kind,
            mode: match kind {
                Kind::Symlink => 0o777,
                _ => asked.new_mode(),
            },
            rdev: low(asked.request.a),
            target: target.to_vec(),
        };
        let parent = place.parent.key.ino;
        let made = self
            .fs
            .make(asked.caller, parent, &place.name, &new, WaitPolicy::MayWait)?;
        self.walker.keep(&self.fs, &made);
        done()
    }

    fn make_node(&self, asked: ProgramRequest<'_>) -> Replied {
        let kind = match asked.mode() & libc::S_IFMT {
            0 => Kind::File,
            _ => kind_of_mode(asked.mode()).ok_or(Errno::INVAL)?,
        };
        match kind {
            Kind::Directory | Kind::Symlink => return Err(Errno::PERM.into()),
            Kind::CharDevice | Kind::BlockDevice if asked.caller.uid != 0 => {
                return Err(Errno::PERM.into());
            }
            _ => {}
        }
        self.make(asked, kind, &[])
    }

    fn symlink(&self, asked: ProgramRequest<'_>) -> Replied {
        let target = asked.texts[1];
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        self.make(asked, Kind::Symlink, target)
    }

    fn read_link(&self, asked: ProgramRequest<'_>) -> Replied {
        let found = self.target(&asked, false)?;
        if found.attr.kind() != Kind::Symlink {
            return Err(Errno::INVAL.into());
        }
        let text = if found.key.is_special() {
            self.fs.control_readlink(found.key.ino)?
        } else {
            self.fs
                .readlink(asked.caller, found.key.ino, WaitPolicy::MayWait)?
        };
        Ok(Reply {
            text,
            ..Reply::default()
        })
    }

    fn link(&self, asked: ProgramRequest<'_>) -> Replied {
        let follow = asked.at_flags().contains(AtFlags::SYMLINK_FOLLOW);
        let source = self.target(&asked, follow)?;
        if is_dir(&source) {
            return Err(Errno::PERM.into());
        }
        let key = plain(&source)?;
        let place = self.vacant(&asked, asked.second(), false)?;
        rights::may_link(asked.caller, &source.attr)?;
        self.open_files.settle_stored(key.ino)?;
        let parent = place.parent.key.ino;
        let made = self.fs.link(
            asked.caller,
            key.ino,
            parent,
            &place.name,
            WaitPolicy::MayWait,
        )?;
        self.walker.keep(&self.fs, &made);
        done()
    }

    fn unlink(&self, asked: ProgramRequest<'_>) -> Replied {
        let directory = asked.at_flags().contains(AtFlags::REMOVEDIR);
        match (dots(asked.texts[0]), directory) {
            (Some(b"."), true) => return Err(Errno::INVAL.into()),
            (Some(_), true) => return Err(Errno::NOTEMPTY.into()),
            (Some(_), false) => return Err(Errno::ISDIR.into()),
            (None, _) => {}
        }
        let place = self.walk(&asked, asked.path(), false)?;
        let found = place.found.ok_or(Errno::NOENT)?;
        if found.key.ino == Inode::ROOT.0 {
            return Err(Errno::BUSY.into());
        }
        rights::may_remove(asked.caller, &place.parent.attr, &found.attr)?;
        match (is_dir(&found), directory || place.directory) {
            (true, _) if !directory => return Err(Errno::ISDIR.into()),
            (false, true) => return Err(Errno::NOTDIR.into()),
            _ => {}
        }
        let parent = plain(&place.parent)?.ino;
        self.fs.unlink(
            asked.caller,
            parent,
            &place.name,
            directory,
            WaitPolicy::MayWait,
        )?;
        done()
    }

    fn rename(&self, asked: ProgramRequest<'_>) -> Replied {
        let flags = RenameFlags::from_bits_retain(low(asked.request.flags));
        let how = Renaming {
            no_replace: flags.contains(RenameFlags::NOREPLACE),
            exchange: flags.contains(RenameFlags::EXCHANGE),
        };
        let known = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
        if !flags.difference(known).is_empty() || how.no_replace && how.exchange {
            return Err(Errno::INVAL.into());
        }
        if dots(asked.texts[0]).or(dots(asked.texts[1])).is_some() {
            return Err(Errno::BUSY.into());
        }
        let from = self.walk(&asked, asked.path(), false)?;
        let to = self.walk(&asked, asked.second(), false)?;
        let source = from.there()?;
        let root = |found: &LookupResult| found.key.ino == Inode::ROOT.0;
        if root(&source) || to.found.is_some_and(|found| root(&found)) {
            return Err(Errno::BUSY.into());
        }
        if how.no_replace && to.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        if to.directory && !is_dir(&source) && !how.exchange {
            return Err(Errno::NOTDIR.into());
        }
        self.may_rename(&asked, (&from, &source), &to, how)?;
        if is_dir(&source) {
            self.open_files.settle_all();
        } else {
            self.open_files.settle_stored(source.key.ino)?;
        }
        let (parent, new_parent) = (plain(&from.parent)?.ino, plain(&to.parent)?.ino);
        let names = ((parent, &from.name[..]), (new_parent, &to.name[..]));
        let (from, to) = names;
        self.fs
            .rename(asked.caller, from, to, how, WaitPolicy::MayWait)?;
        done()
    }

    fn may_rename(
        &self,
        asked: &ProgramRequest<'_>,
        (from, source): (&PathTarget, &LookupResult),
        to: &PathTarget,
        how: Renaming,
    ) -> Result<(), Fail> {
        let caller = asked.caller;
        rights::may_remove(caller, &from.parent.attr, &source.attr)?;
        let elsewhere = from.parent.key.ino != to.parent.key.ino;
        let moves = |found: &LookupResult| {
            // Its entry `..` changes.
            if elsewhere && is_dir(found) {
                rights::may(caller, &found.attr, WRITE)?;
            }
            Ok::<_, Fail>(())
        };
        let Some(target) = to.found else {
            rights::may(caller, &to.parent.attr, WRITE | SEARCH)?;
            return if how.exchange {
                Err(Errno::NOENT.into())
            } else {
                moves(source)
            };
        };
        rights::may_remove(caller, &to.parent.attr, &target.attr)?;
        if how.exchange {
            moves(&target)?;
        } else if is_dir(source) && !is_dir(&target) {
            return Err(Errno::NOTDIR.into());
        } else if !is_dir(source) && is_dir(&target) {
            return Err(Errno::ISDIR.into());
        }
        moves(source)
    }

    fn stat_fs(&self, asked: ProgramRequest<'_>) -> Replied {
        self.target(&asked, true)?;
        let space = self.fs.statfs(asked.caller, WaitPolicy::MayWait)?;
        let mut reply = Reply::default();
        reply.answer.stat = Stat {
            blocks: space.capacity / 4096,
            size: space.free / 4096,
            nlink: space.files,
            ..Stat::default()
        };
        Ok(reply)
    }

    fn sync(&self, asked: ProgramRequest<'_>) -> Replied {
        if asked.request.inode == 0 {
            self.open_files.store_all();
            self.fs.sync_names(asked.caller)?;
        } else {
            self.open_files.sync(asked.caller, asked.file())?;
        }
        done()
    }

    /// Answers with the sender's asynchronously written files that are not stored.
    fn standing(&self, asked: ProgramRequest<'_>) -> Replied {
        self.open_files.settle_all();
        let (waiting, failed) = self
            .open_files
            .write_behind
            .standing(asked.caller.uid, asked.request.a != 0);
        let mut reply = Reply::default();
        reply.answer.value = waiting;
        reply.answer.stat.size = failed.len() as u64;
        for one in failed {
            let state: &[u8] = if one.waits { b"waits" } else { b"refused" };
            let [path, file] = [&one.path, &one.file].map(|path| path.as_os_str().as_bytes());
            let texts = [state, path, one.why.as_bytes(), file];
            let bytes: usize = texts.iter().map(|text| text.len() + 1).sum();
            if reply.text.len() + bytes > LISTING_BYTES_MAX {
                break;
            }
            for text in texts {
                reply.text.extend_from_slice(text);
                reply.text.push(0);
            }
        }
        Ok(reply)
    }

    fn resolve(&self, asked: ProgramRequest<'_>) -> Replied {
        let directory = asked.request.mode != 0;
        let base = asked.texts[0].is_empty();
        let (found, place) = if base {
            (self.target(&asked, true)?, None)
        } else {
            let place = self.walk(&asked, asked.path(), asked.follows())?;
            (place.there()?, Some(place))
        };
        if directory {
            if !is_dir(&found) {
                return Err(Errno::NOTDIR.into());
            }
            rights::may(asked.caller, &found.attr, SEARCH)?;
        }
        let path = |key: InodeKey| self.fs.table.path(key.ino).ok_or(Errno::NOENT);
        let text = match place {
            Some(place) if !is_dir(&found) => {
                let mut text = path(place.parent.key)?;
                if text.len() > 1 {
                    text.push(b'/');
                }
                text.extend_from_slice(&place.name);
                text
            }
            _ => path(found.key)?,
        };
        Ok(Reply {
            text,
            ..Reply::default()
        })
    }

    fn flock(&self, asked: ProgramRequest<'_>) -> Replied {
        let operation = low(asked.request.flags).cast_signed();
        let alone = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Some(false),
            libc::LOCK_EX => Some(true),
            libc::LOCK_UN => None,
            _ => return Err(Errno::INVAL.into()),
        };
        let number = number_of(asked.caller, asked.request.a).ok_or(Errno::BADF)?;
        let process = format!("/proc/{}", asked.caller.pid);
        let gone = || !std::path::Path::new(&process).exists();
        let wait = operation & libc::LOCK_NB == 0;
        self.open_files
            .flock((asked.file(), number), alone, wait, gone)?;
        done()
    }
}

/// Returns the number of the open file to which a process's descriptor refers, from the lock of the file.
fn number_of(caller: Caller, descriptor: u64) -> Option<u64> {
    let info = peer_process::read(caller, &format!("fdinfo/{descriptor}"))?;
    let locks = info.lines().filter(|line| line.starts_with("lock:"));
    locks
        .filter_map(|line| {
            let start = line.split_ascii_whitespace().rev().nth(1)?;
            start.parse::<u64>().ok()?.checked_sub(HANDLES_AT)
        })
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_listing_is_refused_to_other_users() {
        let listing = |handle, uid| ProgramListing {
            handle,
            base: 7,
            uid,
        };
        let mut listings = Listings::default();
        let (first, ended) = listings.enter(listing(1, 5));
        assert_eq!(ended, None);
        assert_eq!(listings.of(first, 7, 5), Some(listing(1, 5)));
        assert_eq!(listings.of(first, 7, 0), Some(listing(1, 5)));
        assert_eq!(listings.of(first, 7, 6), None);
        assert_eq!(listings.of(first, 8, 5), None);
        // Another user only ends own listings.
        for handle in 0..LISTINGS_OF_USER_MAX as u64 {
            assert_eq!(listings.enter(listing(handle, 6)).1, None);
        }
        assert_eq!(listings.enter(listing(9, 6)).1, Some(listing(0, 6)));
        assert!(listings.of(first, 7, 5).is_some());
        assert_eq!(listings.by_number.len(), LISTINGS_OF_USER_MAX + 1);
    }

    #[test]
    fn last_name_dots_are_found_before_trailing_slashes() {
        assert_eq!(dots(b"a/./"), Some(&b"."[..]));
        assert_eq!(dots(b".."), Some(&b".."[..]));
        assert_eq!(dots(b"../a"), None);
        assert_eq!(dots(b"/"), None);
    }
}
