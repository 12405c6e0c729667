//! Descriptors that programs have received, and the detection of the last close of each open file (next: `mount/src/fs/file.rs`).
//!
//! A program gets a descriptor of the object's own file, or of a local copy, and reads and writes the file without further requests. The
//! operating system shows whether any process still has the file open, even if that process got it by `dup`, `fork`, `exec` or a socket, or
//! mapped it. The open file itself holds a lock of a byte that no program uses (an *open file description lock*), which ends with the open
//! file. So no program has to report a close, and a killed program cannot fail to. This process checks the lock whenever the answer
//! matters, and regularly. The process then transfers changes of a closed file, or passes them to `write_behind`.

use super::copies::{LocalFile, LocalFiles};
use super::path_resolution::Walker;
use super::spool::SpoolRecord;
use super::write_behind::WriteBehind;
use crate::error::Error;
use crate::fs::file::{OpenHow, OpenedFile};
use crate::fs::{Caller, Fs, InodeKey, WaitPolicy, deadline};
use nix::fcntl::{FcntlArg, fcntl};
use parking_lot::{Condvar, Mutex};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::hash::Hash;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidemill_preload_api::HANDLES_AT;

/// Maximum number of descriptors that programs have at once.
const GIVEN_MAX: usize = 65_536;
/// Divisor of each limit for each user, except root and the serving user.
pub(super) const SHARE_OF_OTHERS: usize = 4;
/// Minimum interval at which the process searches for closed files without a request.
const SWEEP_PAUSE: Duration = Duration::from_millis(20);
/// Divisor of the time that the search for closed files may take.
const SWEEP_SHARE: u32 = 50;
/// Interval at which the process retries a lock of a whole file.
const FLOCK_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of bytes that a program may write to a control file.
const CONTROL_BYTES_MAX: u64 = 64 << 10;

/// An open file whose descriptor a program has.
#[derive(Debug)]
pub(super) struct OpenFile {
    number: u64,
    pub(super) key: InodeKey,
    pub(super) handle: u64,
    pub(super) caller: Caller,
    pub(super) write: bool,
    /// Type of the lock that marks the file as open.
    marked: i32,
    /// Another descriptor of the file, for queries of its locks.
    file: Arc<File>,
    pub(super) object: u64,
    pub(super) copy: Option<Arc<LocalFile>>,
    /// Whether the file's bytes are stored after its close.
    write_behind: bool,
    /// Whether the file is closed and waits to be stored.
    given: AtomicBool,
}

/// Caller that opens a file, and the options of the open.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileOpener {
    pub(super) caller: Caller,
    /// Flags of `open` for the program's descriptor.
    pub(super) flags: OFlags,
    pub(super) how: OpenHow,
    /// Whether a close of the file need not wait until its bytes are stored.
    pub(super) write_behind: bool,
}

impl OpenFile {
    /// Returns the file's local copy, if the copy may contain changes.
    pub(super) fn written_copy(&self) -> Option<&Arc<LocalFile>> {
        self.copy.as_ref().filter(|_| self.write)
    }

    /// Whether the file is closed and waits to be stored.
    pub(super) fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }
}

#[derive(Debug, Default)]
struct OpenTables {
    by_number: BTreeMap<u64, Arc<OpenFile>>,
    by_file: HashMap<(u64, u64), BTreeSet<u64>>,
    by_inode: HashMap<u64, BTreeSet<u64>>,
    by_user: HashMap<u32, BTreeSet<u64>>,
    /// Bytes of the local copies that are being fetched for each user.
    fetched: HashMap<u32, u64>,
    /// Number of open files of each inode that are being closed.
    ending: HashMap<u64, usize>,
    /// Locks of whole files by inode: the numbers of the open files with locks, and whether each lock is exclusive.
    flocks: HashMap<u64, BTreeMap<u64, bool>>,
}

impl OpenTables {
    /// Returns the open files with these numbers.
    fn of(&self, numbers: Option<&BTreeSet<u64>>) -> impl Iterator<Item = &Arc<OpenFile>> {
        let numbers = numbers.into_iter().flatten();
        numbers.filter_map(|number| self.by_number.get(number))
    }

    /// Whether a program may still write the file that a handle has closed.
    fn is_written(&self, open_file: &OpenFile) -> bool {
        let mut open = self.of(self.by_inode.get(&open_file.key.ino));
        open.any(|other| other.write && !other.is_given())
    }

    /// Returns the number of files that a user has open.
    fn of_user(&self, uid: u32) -> usize {
        self.by_user.get(&uid).map_or(0, BTreeSet::len)
    }

    /// Returns the bytes of the local copies that a user has open, and of copies that are being fetched for the user.
    fn copied(&self, uid: u32) -> u64 {
        let open_files = self.of(self.by_user.get(&uid));
        let copies = open_files.filter_map(|open_file| open_file.copy.as_ref());
        // Several open files may share a copy.
        let copies: BTreeMap<_, _> = copies.map(|copy| (Arc::as_ptr(copy), copy)).collect();
        let used =
            |copy: &Arc<LocalFile>| copy.file.metadata().map_or(0, |stat| stat.blocks() * 512);
        let fetched = self.fetched.get(&uid).copied().unwrap_or(0);
        copies.into_values().map(used).sum::<u64>() + fetched
    }

    fn unlock(&mut self, open_file: &OpenFile) {
        if let Some(locks) = self.flocks.get_mut(&open_file.key.ino) {
            locks.remove(&open_file.number);
            if locks.is_empty() {
                self.flocks.remove(&open_file.key.ino);
            }
        }
    }
}

/// All files that programs have open.
#[derive(Debug)]
pub(super) struct OpenFiles {
    pub(super) fs: Arc<Fs>,
    pub(super) copies: LocalFiles,
    pub(super) write_behind: WriteBehind,
    open: Mutex<OpenTables>,
    changed: Condvar,
    next: AtomicU64,
    /// User id of the serving process.
    own_uid: u32,
}

/// Bytes of a local copy that is being fetched, counted until this value is dropped.
struct FetchingBytes<'a> {
    open_files: &'a OpenFiles,
    uid: u32,
    bytes: u64,
}

impl Drop for FetchingBytes<'_> {
    fn drop(&mut self) {
        let mut open = self.open_files.open.lock();
        if let Some(bytes) = open.fetched.get_mut(&self.uid) {
            *bytes = bytes.saturating_sub(self.bytes);
            if *bytes == 0 {
                open.fetched.remove(&self.uid);
            }
        }
    }
}

/// Removes the number of an open file from an index.
fn remove<K: Eq + Hash>(index: &mut HashMap<K, BTreeSet<u64>>, key: K, open_file: &OpenFile) {
    if let Entry::Occupied(mut numbers) = index.entry(key) {
        numbers.get_mut().remove(&open_file.number);
        if numbers.get().is_empty() {
            numbers.remove();
        }
    }
}

/// Returns the lock that marks the open file with this number as open, or, without a number, the lock that matches any open file.
fn mark(number: Option<u64>, kind: i32) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or(0),
        l_start: i64::try_from(HANDLES_AT + number.unwrap_or(0)).unwrap_or(i64::MAX),
        l_len: i64::from(number.is_some()),
        l_pid: 0,
    }
}

/// Returns the type of the lock that marks a file as open if the file was opened with these flags.
fn kind_of(flags: OFlags) -> i32 {
    if flags & OFlags::RWMODE == OFlags::RDONLY {
        libc::F_RDLCK
    } else {
        libc::F_WRLCK
    }
}

/// Whether no program has the file open any more.
pub(super) fn is_closed(file: &File) -> bool {
    is_unmarked(file, None, libc::F_RDLCK)
}

/// Whether the file has no lock of this type. A read-only descriptor can test for the locks of writers, but cannot hold such a lock.
fn is_unmarked(file: &File, number: Option<u64>, kind: i32) -> bool {
    let opposite = if kind == libc::F_RDLCK {
        libc::F_WRLCK
    } else {
        libc::F_RDLCK
    };
    let mut lock = mark(number, opposite);
    match fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)) {
        Ok(_) => i32::from(lock.l_type) == libc::F_UNLCK,
        Err(errno) => {
            tracing::warn!("can't see whether a file is still open: {errno}");
            false
        }
    }
}

impl OpenFiles {
    pub(super) fn new(fs: Arc<Fs>, copies: LocalFiles, write_behind: WriteBehind) -> Self {
        Self {
            fs,
            copies,
            write_behind,
            open: Mutex::default(),
            changed: Condvar::new(),
            next: AtomicU64::new(0),
            own_uid: rustix::process::geteuid().as_raw(),
        }
    }

    /// Returns the caller's user id, if the user has only a share of the limits.
    fn other_user(&self, caller: Caller) -> Option<u32> {
        Some(caller.uid).filter(|uid| ![0, self.own_uid].contains(uid))
    }

    /// Counts a copy that is about to be fetched for another user, if it is within the user's share of the device.
    fn fetches(&self, by: FileOpener, bytes: u64) -> Result<Option<FetchingBytes<'_>>, Error> {
        let Some(uid) = self.other_user(by.caller) else {
            return Ok(None);
        };
        let mut open = self.open.lock();
        if open.copied(uid).saturating_add(bytes) > self.copies.share() {
            return Err(Errno::NOSPC.into());
        }
        *open.fetched.entry(uid).or_default() += bytes;
        let open_files = self;
        Ok(Some(FetchingBytes {
            open_files,
            uid,
            bytes,
        }))
    }

    /// Returns a descriptor of an opened file, for a program, and whether the program has to report its close. The opened file is released
    /// at its close, or when this function fails.
    pub(super) fn hand_out(
        &self,
        by: FileOpener,
        key: InodeKey,
        opened: &OpenedFile,
    ) -> Result<(OwnedFd, bool), Error> {
        let open_file = self.made(by, key, opened);
        let open_file = open_file.inspect_err(|_| self.fs.release(by.caller, opened.handle))?;
        let given = match self.reopened(&open_file, by.flags) {
            Ok(given) => given,
            Err(error) => {
                self.end(&open_file);
                return Err(error);
            }
        };
        let reported = opened.write && opened.local.is_none();
        let mut open = self.open.lock();
        let stat = open_file.file.metadata()?;
        let (file, ino) = ((stat.dev(), stat.ino()), open_file.key.ino);
        open.by_file
            .entry(file)
            .or_default()
            .insert(open_file.number);
        open.by_inode
            .entry(ino)
            .or_default()
            .insert(open_file.number);
        let uid = open_file.caller.uid;
        open.by_user
            .entry(uid)
            .or_default()
            .insert(open_file.number);
        open.by_number.insert(open_file.number, Arc::new(open_file));
        Ok((given, reported))
    }

    fn made(&self, by: FileOpener, key: InodeKey, opened: &OpenedFile) -> Result<OpenFile, Error> {
        let (count, other_user) = (self.count(), self.other_user(by.caller));
        let own = other_user.map_or(0, |uid| self.open.lock().of_user(uid));
        if count >= GIVEN_MAX || own >= GIVEN_MAX / SHARE_OF_OTHERS {
            return Err(Errno::NFILE.into());
        }
        let mut open_file = OpenFile {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            key,
            handle: opened.handle,
            caller: by.caller,
            write: opened.write,
            marked: kind_of(by.flags),
            file: Arc::new(File::open("/dev/null")?),
            object: opened.object,
            copy: None,
            write_behind: false,
            given: AtomicBool::new(false),
        };
        if let Some(local) = &opened.local {
            open_file.file = local.clone();
            return Ok(open_file);
        }
        let attr = Walker::at(&self.fs, by.caller, key)?.attr;
        let write_behind =
            by.write_behind && opened.write && !key.is_special() && opened.object < u64::MAX / 2;
        let write_behind = write_behind && self.write_behind.has_space(other_user);
        let size = if key.is_special() { 0 } else { attr.size };
        let record = write_behind.then(|| SpoolRecord {
            inode: key.ino,
            uid: by.caller.uid,
            gid: by.caller.gid,
            follows: vec![attr.object, opened.object],
            path: self.fs.table.path(key.ino).unwrap_or_default(),
            ..SpoolRecord::default()
        });
        let fetched = self.fetches(by, size)?;
        let copy = self.copy_of(by, key, opened, (attr.mtime, record))?;
        drop(fetched);
        copy.enter();
        let mut prepare = || {
            // Otherwise the prepared memory after its end would be lost.
            if by.how.truncate && copy.file.metadata()?.len() > 0 {
                copy.file.set_len(0)?;
            }
            open_file.file = Arc::new(copy.file.try_clone()?);
            open_file.write_behind = write_behind && copy.record().is_some();
            Ok::<_, Error>(())
        };
        prepare().inspect_err(|_| copy.leave(&self.write_behind.spool))?;
        open_file.copy = Some(copy);
        Ok(open_file)
    }

    fn copy_of(
        &self,
        by: FileOpener,
        key: InodeKey,
        opened: &OpenedFile,
        (mtime, record): (i64, Option<SpoolRecord>),
    ) -> Result<Arc<LocalFile>, Error> {
        let (fs, handle, special) = (&self.fs, opened.handle, key.is_special());
        let id = (key.pack(), opened.object);
        let spool = record.map(|record| (&self.write_behind.spool, record));
        self.copies.of(id, mtime, spool, |at, bytes| {
            if special && by.how.write {
                return Ok(Vec::new());
            }
            if special {
                return fs.control_read(handle, at, bytes, WaitPolicy::MayWait);
            }
            deadline::renew();
            fs.read(handle, at, bytes, WaitPolicy::MayWait)
        })
    }

    /// Opens the file again, with a separate offset and flags, and marks it as open.
    fn reopened(&self, open_file: &OpenFile, flags: OFlags) -> Result<OwnedFd, Error> {
        let path = format!("/proc/self/fd/{}", open_file.file.as_raw_fd());
        let given = open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
        let lock = mark(Some(open_file.number), open_file.marked);
        // Without such locks the close could not be detected.
        fcntl(given.as_fd(), FcntlArg::F_OFD_SETLK(&lock))
            .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        Ok(given)
    }

    pub(super) fn count(&self) -> usize {
        self.open.lock().by_number.len()
    }

    /// Returns the open files of a local file with this device number and inode.
    pub(super) fn of_file(&self, file: (u64, u64)) -> Vec<Arc<OpenFile>> {
        let open = self.open.lock();
        open.of(open.by_file.get(&file)).cloned().collect()
    }

    pub(super) fn of_inode(&self, ino: u64) -> Vec<Arc<OpenFile>> {
        let open = self.open.lock();
        open.of(open.by_inode.get(&ino)).cloned().collect()
    }

    /// Finishes the closed open files of an inode: when the function returns, it has processed all closes that returned before.
    pub(super) fn settle(&self, ino: u64) {
        self.sweep(&self.of_inode(ino));
        self.wait_while(|open| open.ending.contains_key(&ino));
    }

    /// Finishes the closed open files of all inodes, like [`Self::settle`].
    pub(super) fn settle_all(&self) {
        let all: Vec<_> = self.open.lock().by_number.values().cloned().collect();
        self.sweep(&all);
        self.wait_while(|open| !open.ending.is_empty());
    }

    /// Waits until a condition of the open files is false, at most until the deadline.
    fn wait_while(&self, holds: impl Fn(&OpenTables) -> bool) {
        let deadline = deadline::deadline();
        let mut open = self.open.lock();
        while holds(&open) && !deadline::wait(&self.changed, &mut open, deadline) {}
    }

    fn sweep(&self, open_file: &[Arc<OpenFile>]) {
        let closed = |open_file: &&Arc<OpenFile>| {
            !open_file.is_given()
                && is_unmarked(&open_file.file, Some(open_file.number), open_file.marked)
        };
        for open_file in open_file.iter().filter(closed) {
            if open_file.write_behind {
                self.give(open_file);
            } else if self.take(open_file) {
                self.end(open_file);
                self.ended(open_file.key.ino);
            }
        }
    }

    /// Passes a closed file to `write_behind`, which stores it later. Until then its bytes are visible.
    fn give(&self, open_file: &Arc<OpenFile>) {
        if open_file.given.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut open = self.open.lock();
        open.unlock(open_file);
        if !open.is_written(open_file)
            && let Some(copy) = &open_file.copy
            && let Err(error) = self.write_behind.spool.trim(&copy.file)
        {
            tracing::debug!("memory can't be freed: {error}");
        }
        drop(open);
        self.changed.notify_all();
        self.write_behind.give(open_file);
    }

    /// Finishes an open file that is stored.
    pub(super) fn leave(&self, open_file: &OpenFile) {
        if self.take(open_file) {
            self.finish(open_file);
            self.ended(open_file.key.ino);
        }
    }

    /// Removes an open file from the tables. Returns whether this call removed it.
    fn take(&self, open_file: &OpenFile) -> bool {
        let mut open = self.open.lock();
        if open.by_number.remove(&open_file.number).is_none() {
            return false;
        }
        if let Ok(stat) = open_file.file.metadata() {
            remove(&mut open.by_file, (stat.dev(), stat.ino()), open_file);
        }
        let (ino, uid) = (open_file.key.ino, open_file.caller.uid);
        remove(&mut open.by_inode, ino, open_file);
        remove(&mut open.by_user, uid, open_file);
        open.unlock(open_file);
        *open.ending.entry(ino).or_default() += 1;
        true
    }

    fn ended(&self, ino: u64) {
        let mut open = self.open.lock();
        if let Some(count) = open.ending.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                open.ending.remove(&ino);
            }
        }
        drop(open);
        self.changed.notify_all();
    }

    fn end(&self, open_file: &OpenFile) {
        if let Some(copy) = open_file.written_copy()
            && let Err(error) = self.hand_over(open_file, copy)
        {
            let path = self.fs.table.path(open_file.key.ino).unwrap_or_default();
            let path = String::from_utf8_lossy(&path);
            tracing::error!(
                ino = open_file.key.ino,
                object = open_file.object,
                "{path} was written and closed, but not all of its bytes could be stored: {error}"
            );
        }
        self.finish(open_file);
        if let Some(copy) = &open_file.copy {
            copy.leave(&self.write_behind.spool);
        }
    }

    /// Releases an open file that no program has open any more, and whose changes were transferred.
    fn finish(&self, open_file: &OpenFile) {
        if open_file.key.is_special() {
            self.fs.control_release(open_file.handle);
        } else {
            self.fs.release(open_file.caller, open_file.handle);
        }
        if let Some(copy) = &open_file.copy {
            let keep = !open_file.key.is_special()
                && open_file.object != 0
                && open_file.object < u64::MAX / 2;
            let id = (open_file.key.pack(), open_file.object);
            // A program reports itself that it has closed its descriptor, and may continue to write.
            let is_let_go = open_file.write && self.fs.backend.hands_out();
            if is_let_go && !self.open.lock().is_written(open_file) {
                self.copies.let_go(id);
            }
            let keep = keep && !is_let_go;
            self.copies
                .closed(id, copy.clone(), keep && !copy.has_changed());
        }
    }

    /// Transfers the changes of a local copy to the file's node.
    pub(super) fn hand_over(&self, open_file: &OpenFile, copy: &LocalFile) -> Result<(), Error> {
        if !open_file.key.is_special() {
            let to = (open_file.caller, open_file.key, open_file.handle);
            return self.copies.hand_over(&self.fs, to, copy);
        }
        if !copy.has_changed() {
            return Ok(());
        }
        let size = copy.file.metadata()?.len().min(CONTROL_BYTES_MAX);
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        std::os::unix::fs::FileExt::read_exact_at(&copy.file, &mut bytes, 0)?;
        copy.file.set_len(0)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.fs
            .control_write(open_file.handle, &bytes, WaitPolicy::MayWait)?;
        self.fs.control_flush(open_file.handle, WaitPolicy::MayWait)
    }

    /// Prepares the close of a descriptor: transfers changes, so that errors can be reported, unless the file is written asynchronously and
    /// the limits allow its bytes.
    pub(super) fn flush(&self, file: (u64, u64)) -> Result<(), Error> {
        for open_file in self.of_file(file) {
            if let Some(copy) = open_file.written_copy() {
                if open_file.is_given()
                    || open_file.write_behind
                        && self
                            .write_behind
                            .takes(copy, self.other_user(open_file.caller))
                {
                    continue;
                }
                self.hand_over(&open_file, copy)?;
                if !open_file.key.is_special() {
                    self.fs.flush(open_file.handle, WaitPolicy::MayWait)?;
                }
            }
        }
        Ok(())
    }

    /// Makes an open file durable: its bytes survive power loss.
    pub(super) fn sync(&self, caller: Caller, file: (u64, u64)) -> Result<(), Error> {
        let open = self.of_file(file);
        let written = open.iter().filter(|open_file| open_file.write);
        let open_file = written.max_by_key(|open_file| !open_file.is_given());
        let Some(open_file) = open_file.or(open.first()) else {
            // A file that was opened by an earlier process cannot be stored before its close.
            let left = self.write_behind.has_left(file);
            return Err(if left { Errno::NOTCONN } else { Errno::BADF }.into());
        };
        if open_file.key.is_special() {
            return Ok(());
        }
        if let Some(copy) = open_file.written_copy() {
            self.hand_over(open_file, copy)?;
        }
        self.fs.fsync(caller, open_file.handle, WaitPolicy::MayWait)
    }

    /// Locks a whole file, or unlocks it (`None`), for the open file with this number.
    pub(super) fn flock(
        &self,
        (file, number): ((u64, u64), u64),
        alone: Option<bool>,
        wait: bool,
        gone: impl Fn() -> bool,
    ) -> Result<(), Error> {
        let open_file = self.open.lock().by_number.get(&number).cloned();
        let open_file = open_file.ok_or(Errno::BADF)?;
        let stat = open_file.file.metadata()?;
        if (stat.dev(), stat.ino()) != file {
            return Err(Errno::BADF.into());
        }
        let ino = open_file.key.ino;
        loop {
            {
                let mut open = self.open.lock();
                let locks = open.flocks.entry(ino).or_default();
                let Some(alone) = alone else {
                    locks.remove(&number);
                    drop(open);
                    self.changed.notify_all();
                    return Ok(());
                };
                let others = locks.iter().filter(|(other, _)| **other != number);
                if others.into_iter().all(|(_, other)| !alone && !other) {
                    locks.insert(number, alone);
                    return Ok(());
                }
                // As with the system's locks: a program that waits for another kind has no lock in the meantime.
                locks.remove(&number);
            }
            self.sweep(&self.of_inode(ino));
            if !wait {
                return Err(Errno::WOULDBLOCK.into());
            }
            if gone() || !self.open.lock().by_number.contains_key(&number) {
                return Err(Errno::INTR.into());
            }
            let mut open = self.open.lock();
            let _ = self.changed.wait_for(&mut open, FLOCK_PAUSE);
        }
    }

    /// Searches for closed files while `goes_on` returns true.
    pub(super) fn keep_sweeping(&self, goes_on: impl Fn() -> bool) {
        while goes_on() {
            let began = std::time::Instant::now();
            let all: Vec<_> = self.open.lock().by_number.values().cloned().collect();
            deadline::serve(|| self.sweep(&all));
            std::thread::sleep(SWEEP_PAUSE.max(began.elapsed() * SWEEP_SHARE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_writer_is_detected_while_reader_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("object");
        let own = File::create_new(&path).unwrap();
        let set = |file: &File, number, kind| {
            let lock = mark(number, kind);
            fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).is_ok()
        };
        let closed = |kind| is_unmarked(&own, Some(5), kind);
        let writer = File::options().write(true).open(&path).unwrap();
        assert!(set(&writer, Some(5), libc::F_WRLCK));
        assert!(!closed(libc::F_WRLCK) && !is_closed(&own));
        drop(writer);
        assert!(closed(libc::F_WRLCK) && is_closed(&own));
        let reader = File::open(&path).unwrap();
        assert!(set(&reader, None, libc::F_RDLCK) && !set(&reader, Some(5), libc::F_WRLCK));
        assert!(closed(libc::F_WRLCK) && !closed(libc::F_RDLCK));
    }
}
