//! Files that programs write asynchronously (`tidemill exec --async`) and this process stores after their close (next:
//! `mount/src/fs/seal.rs`).
//!
//! Until a file is stored, its bytes are in `spool`. This module decides when, by which thread and for how long a file is retried. If a
//! node or the server is offline, the file waits. If the file is refused, it is retried as well, and `tidemill exec --wait` reports the
//! reason. A file is abandoned only if another client has written it since.

use super::NotStored;
use super::copies::LocalFile;
use super::open_files::{OpenFile, OpenFiles, SHARE_OF_OTHERS, is_closed};
use super::path_resolution::Walker;
use super::spool::{Spool, SpoolFile};
use crate::error::Error;
use crate::fs::file::OpenHow;
use crate::fs::unsealed::CloseOutcome;
use crate::fs::{InodeKey, WaitPolicy, deadline};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_model::backoff::Backoff;
use tidemill_wire::v1::Kind;

/// Number of threads that store files: an offline node blocks a thread for a while.
pub(super) const WORKERS: usize = 4;
/// Maximum number of asynchronously written files that are not stored; this process has each file open.
const FILES_MAX: usize = 1024;
/// Pauses before a failed file is retried.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
/// Interval at which the module checks whether a version is sealed.
const SEAL_PAUSE: Duration = Duration::from_millis(20);
/// Maximum time that a worker waits for work before it checks for work again.
const REST: Duration = Duration::from_millis(500);
/// Maximum time that a request of another client waits until the bytes of a file are stored.
const OTHERS_PATIENCE: Duration = Duration::from_secs(10);

/// Content of a file that is to be stored.
#[derive(Clone, Debug)]
enum UnstoredContent {
    /// The bytes of a handle that is still open in this process.
    Open(Arc<OpenFile>),
    /// The bytes of a spool file, for which no handle is open.
    Left(Arc<LocalFile>),
    /// The bytes are all at their node, and this object is being sealed.
    Sealing(Arc<LocalFile>, u64),
}

impl UnstoredContent {
    fn copy(&self) -> Option<&Arc<LocalFile>> {
        match self {
            Self::Open(open_file) => open_file.copy.as_ref(),
            Self::Left(copy) | Self::Sealing(copy, _) => Some(copy),
        }
    }

    /// Returns the metadata of a spool file for which no handle is open.
    fn left(&self) -> Option<Metadata> {
        match self {
            Self::Left(copy) => copy.file.metadata().ok(),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct BacklogItem {
    what: UnstoredContent,
    ino: u64,
    uid: u32,
    bytes: u64,
    /// Whether a worker is storing the file now.
    busy: bool,
    /// Whether a program still has the file open, since before the file system was killed.
    held: bool,
    /// Error of the last failed attempt to store the file.
    why: Option<(Errno, String)>,
    /// Whether the file is not retried any more.
    ended: bool,
    due: Instant,
    pauses: Backoff,
}

/// Outcome of an attempt to store a file.
#[derive(Debug)]
enum AttemptOutcome {
    /// The file is stored or abandoned.
    Done,
    /// The bytes are at their node.
    Sealing(Arc<LocalFile>, u64),
    Held,
    /// The attempt failed with this error; with the content to store next, if the content has changed.
    Failed(Option<UnstoredContent>, Error),
}

/// All asynchronously written files that are not stored.
#[derive(Debug)]
pub(super) struct WriteBehind {
    pub(super) spool: Spool,
    space_bytes: u64,
    items: Mutex<Items>,
    /// Condition variable that is signalled when a file is added or its attempt ends.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Items {
    by_number: BTreeMap<u64, BacklogItem>,
    last: u64,
    /// Time of the last check of the files that are being sealed.
    looked: Option<Instant>,
}

impl Items {
    fn enter(&mut self, item: BacklogItem) {
        self.last += 1;
        self.by_number.insert(self.last, item);
    }

    /// Returns the number of unstored files and their bytes, of a user or of all users.
    fn of(&self, user: Option<u32>) -> (usize, u64) {
        let items = self.by_number.values();
        let of = items.filter(|item| user.is_none_or(|user| user == item.uid));
        of.fold((0, 0_u64), |(files, all), item| {
            (files + 1, all.saturating_add(item.bytes))
        })
    }

    /// Whether the limits allow one more file of this size; for an `other_user`, also the limits of that user's share.
    fn have_space(&self, space_bytes: u64, other_user: Option<u32>, more: u64) -> bool {
        let within = |user, share: usize| {
            let (files, bytes) = self.of(user);
            let fits = bytes.saturating_add(more) <= space_bytes / share as u64;
            fits && files < FILES_MAX / share
        };
        within(None, 1) && (other_user.is_none() || within(other_user, SHARE_OF_OTHERS))
    }

    /// Checks whether programs have closed the files that were open when an earlier file system was killed.
    fn look_at_held(&mut self) {
        for item in self.by_number.values_mut().filter(|item| item.held) {
            if item.what.copy().is_some_and(|copy| is_closed(&copy.file)) {
                (item.held, item.due) = (false, Instant::now());
            }
        }
    }

    /// Marks the first file for which `wanted` is true as busy, and returns its number and content.
    fn begin(&mut self, wanted: impl Fn(&BacklogItem) -> bool) -> Option<(u64, UnstoredContent)> {
        let mut all = self.by_number.iter_mut();
        let (&number, item) = all.find(|(_, item)| item.is_idle() && wanted(item))?;
        item.busy = true;
        Some((number, item.what.clone()))
    }
}

impl BacklogItem {
    fn new(what: UnstoredContent, (ino, uid): (u64, u32), bytes: u64) -> Self {
        Self {
            what,
            ino,
            uid,
            bytes,
            busy: false,
            held: false,
            why: None,
            ended: false,
            due: Instant::now(),
            pauses: AGAIN,
        }
    }

    fn is_sealing(&self) -> bool {
        matches!(self.what, UnstoredContent::Sealing(..))
    }

    /// Whether a worker may store the file.
    fn is_idle(&self) -> bool {
        !self.busy && !self.ended && !self.is_sealing()
    }

    /// Whether the store refused the file, so that the file is not only delayed.
    fn is_refused(&self) -> bool {
        self.why.as_ref().is_some_and(|(why, _)| !is_passing(*why))
    }
}

/// Whether an error means that a node or the server is offline, so that the attempt continues later instead of starting over.
fn is_passing(errno: Errno) -> bool {
    [
        Errno::HOSTUNREACH,
        Errno::TIMEDOUT,
        Errno::NOTCONN,
        Errno::CONNREFUSED,
        Errno::CONNRESET,
        Errno::AGAIN,
        Errno::INTR,
        Errno::TXTBSY,
        Errno::BUSY,
    ]
    .contains(&errno)
}

fn errno_of(error: &Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

fn mtime_of(file: &File) -> Result<i64, Error> {
    let stat = file.metadata()?;
    Ok(stat.mtime() * 1_000_000_000 + stat.mtime_nsec())
}

impl WriteBehind {
    pub(super) fn new(spool: Spool, space_bytes: u64) -> Self {
        Self {
            spool,
            space_bytes,
            items: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns the number of files that will be stored.
    pub(super) fn count(&self) -> usize {
        let items = self.items.lock();
        items.by_number.values().filter(|item| !item.ended).count()
    }

    /// Waits, as long as a wait can help, until another file may be written asynchronously. Returns whether it may. `other_user` is the
    /// user if the user has only a share of the limits.
    pub(super) fn has_space(&self, other_user: Option<u32>) -> bool {
        let deadline = deadline::deadline();
        let mut items = self.items.lock();
        loop {
            if items.have_space(self.space_bytes, other_user, 1) {
                return true;
            }
            let hopeless = |user: Option<u32>| {
                let whose = |uid: u32| user.is_none_or(|user| user == uid);
                let mut tried = items.by_number.values().filter(|item| whose(item.uid));
                tried.all(|item| item.why.is_some())
            };
            let share = other_user.filter(|_| items.have_space(self.space_bytes, None, 1));
            let hopeless = hopeless(share);
            if hopeless || deadline::wait(&self.changed, &mut items, deadline) {
                return false;
            }
        }
    }

    /// Whether the limits allow the bytes of a file that is about to be closed.
    pub(super) fn takes(&self, copy: &LocalFile, other_user: Option<u32>) -> bool {
        let bytes = copy.file.metadata().map_or(0, |stat| stat.len());
        let items = self.items.lock();
        items.have_space(self.space_bytes, other_user, bytes)
    }

    /// Adds an open file that was closed, to be stored from now on.
    pub(super) fn give(&self, open_file: &Arc<OpenFile>) {
        let size = open_file
            .written_copy()
            .and_then(|copy| copy.file.metadata().ok());
        let bytes = size.map_or(0, |stat| stat.len());
        let of = (open_file.key.ino, open_file.caller.uid);
        let item = BacklogItem::new(UnstoredContent::Open(open_file.clone()), of, bytes);
        self.items.lock().enter(item);
        self.changed.notify_all();
    }

    /// Takes over the unstored files of an earlier process.
    pub(super) fn take_up(&self) -> Result<(), Error> {
        for found in self.spool.find()? {
            let SpoolFile {
                record,
                file,
                foreign,
            } = found;
            let bytes = file.metadata()?.len();
            let of = (record.inode, record.uid);
            let left = Arc::new(LocalFile::taken_up(file, record));
            let mut item = BacklogItem::new(UnstoredContent::Left(left), of, bytes);
            if let Some(why) = foreign {
                item.ended = true;
                item.why = Some((Errno::STALE, why.to_owned()));
            }
            self.items.lock().enter(item);
        }
        Ok(())
    }

    /// Whether an earlier process has left an unstored local file with this device number and inode.
    pub(super) fn has_left(&self, (device, inode): (u64, u64)) -> bool {
        let items = self.items.lock();
        let mut left = items.by_number.values().filter_map(|item| item.what.left());
        left.any(|stat| (stat.dev(), stat.ino()) == (device, inode))
    }

    /// Returns the metadata of the local file with bytes of an inode that an earlier process has left.
    pub(super) fn left_of(&self, ino: u64) -> Option<Metadata> {
        let items = self.items.lock();
        let mut of = items
            .by_number
            .values()
            .rev()
            .filter(|item| item.ino == ino && !item.ended);
        of.find_map(|item| item.what.left())
    }

    /// Returns the unstored files of a user (of all users for root): the number of files being stored, and reports about failed files. With
    /// `again`, refused files are retried once before they are reported.
    pub(super) fn standing(&self, uid: u32, again: bool) -> (u64, Vec<NotStored>) {
        let mut items = self.items.lock();
        items.look_at_held();
        // A user who removed the bytes does not want reports about them.
        let path = |item: &BacklogItem| {
            let record = item.what.copy()?.record()?;
            Some((self.spool.path(record.number), record.path))
        };
        let exists = |item: &BacklogItem| path(item).is_some_and(|(file, _)| file.exists());
        items
            .by_number
            .retain(|_, item| !item.ended || exists(item));
        let own = |other: u32| uid == 0 || other == uid;
        let refused = |item: &&mut BacklogItem| own(item.uid) && !item.ended && item.is_refused();
        for item in items
            .by_number
            .values_mut()
            .filter(|_| again)
            .filter(refused)
        {
            (item.why, item.due, item.pauses) = (None, Instant::now(), AGAIN);
        }
        self.changed.notify_all();
        let all = || items.by_number.values().filter(|item| own(item.uid));
        let waits = |item: &&BacklogItem| !item.ended && !item.held && !item.is_refused();
        let waiting = all().filter(waits).count();
        let failed = all().filter_map(|item| {
            let (_, why) = item.why.as_ref()?;
            let (file, shown) = path(item)?;
            Some(NotStored {
                waits: waits(&item),
                path: OsString::from_vec(shown).into(),
                why: why.clone(),
                file,
            })
        });
        (waiting as u64, failed.collect())
    }

    /// Records the outcome of an attempt to store a file.
    fn end(&self, number: u64, outcome: AttemptOutcome) {
        let mut items = self.items.lock();
        let Some(item) = items.by_number.get_mut(&number) else {
            return;
        };
        item.busy = false;
        item.due = Instant::now() + item.pauses.next();
        item.held = matches!(outcome, AttemptOutcome::Held);
        match outcome {
            AttemptOutcome::Done => {
                items.by_number.remove(&number);
            }
            AttemptOutcome::Sealing(copy, object) => {
                item.what = UnstoredContent::Sealing(copy, object);
                item.why = None;
            }
            AttemptOutcome::Held => {}
            AttemptOutcome::Failed(what, error) => {
                if item.why.is_none() {
                    tracing::warn!("an asynchronously written file can't be stored now: {error}");
                }
                item.why = Some((errno_of(&error), error.to_string()));
                item.ended = matches!(error, Error::Overtaken);
                item.pauses.pause();
                if let Some(what) = what {
                    item.what = what;
                }
            }
        }
        drop(items);
        self.changed.notify_all();
    }

    /// Waits until the current bytes of a file are at its node, or returns the error of the file's last attempt.
    fn wait(&self, ino: u64, store: impl Fn(u64, UnstoredContent)) -> Result<(), Error> {
        let deadline = deadline::deadline();
        let mut items = self.items.lock();
        items.look_at_held();
        let (last, mut tried) = (items.last, false);
        let ours =
            |item: &BacklogItem| item.ino == ino && !item.ended && !item.held && !item.is_sealing();
        loop {
            let wanted = |item: &BacklogItem| ours(item) && (!tried || item.due <= Instant::now());
            if let Some((number, what)) = items.begin(wanted) {
                tried = true;
                MutexGuard::unlocked(&mut items, || store(number, what));
                continue;
            }
            let mut all = items.by_number.range(..=last).map(|(_, item)| item);
            let Some(item) = all.find(|item| ours(item)) else {
                return Ok(());
            };
            if tried && !item.busy && item.is_refused() {
                let why = item.why.as_ref().map_or(Errno::IO, |(errno, _)| *errno);
                return Err(why.into());
            }
            if deadline::wait(&self.changed, &mut items, deadline) {
                return Err(Errno::HOSTUNREACH.into());
            }
        }
    }

    /// Prepares the open of a file: stores bytes that an earlier process has left, if possible. An open for writing drops failed bytes of
    /// the file.
    fn clear(&self, ino: u64, write: bool, store: impl Fn(u64, UnstoredContent)) {
        let deadline = deadline::deadline();
        let mut items = self.items.lock();
        let left = |item: &BacklogItem| {
            item.ino == ino
                && !item.ended
                && !item.held
                && matches!(item.what, UnstoredContent::Left(_))
        };
        items.look_at_held();
        loop {
            let due = |item: &BacklogItem| {
                item.why.is_none() || !item.is_refused() && item.due <= Instant::now()
            };
            if let Some((number, what)) = items.begin(|item| left(item) && due(item)) {
                MutexGuard::unlocked(&mut items, || store(number, what));
                continue;
            }
            let mut waits = false;
            for item in items.by_number.values_mut().filter(|item| left(item)) {
                waits |= item.busy && write || !item.is_refused();
                if write && !item.busy && item.is_refused() {
                    item.ended = true;
                    item.why = Some((Errno::STALE, Error::Overtaken.to_string()));
                }
            }
            if !waits || deadline::wait(&self.changed, &mut items, deadline) {
                return;
            }
        }
    }
}

impl OpenFiles {
    /// Stores asynchronously written files while `goes_on` returns true.
    pub(super) fn keep_storing(&self, goes_on: impl Fn() -> bool) {
        while goes_on() {
            self.look_at_seals();
            if let Err(error) = self.write_behind.spool.prepare() {
                tracing::debug!("no file can be prepared: {error}");
            }
            let mut items = self.write_behind.items.lock();
            let now = Instant::now();
            let Some((number, what)) = items.begin(|item| item.due <= now) else {
                let all = || items.by_number.values();
                let rest = if all().any(BacklogItem::is_sealing) {
                    SEAL_PAUSE
                } else {
                    REST
                };
                let idle = all().filter(|item| item.is_idle());
                let next = idle.map(|item| item.due).min().unwrap_or(now + rest);
                let until = next.min(now + rest);
                self.write_behind.changed.wait_until(&mut items, until);
                continue;
            };
            drop(items);
            deadline::serve(|| self.store(number, what));
        }
    }

    fn store(&self, number: u64, what: UnstoredContent) {
        let outcome = match what {
            UnstoredContent::Open(open_file) => self.store_open(&open_file),
            UnstoredContent::Left(copy) => self.store_left(&copy),
            UnstoredContent::Sealing(copy, object) => AttemptOutcome::Sealing(copy, object),
        };
        self.write_behind.end(number, outcome);
    }

    /// Sends the bytes written to a closed file to its node.
    fn store_open(&self, open_file: &Arc<OpenFile>) -> AttemptOutcome {
        let Some(copy) = open_file.written_copy() else {
            return AttemptOutcome::Done;
        };
        let outcome = self.hand_over(open_file, copy);
        let outcome = outcome.and_then(|()| self.fs.flush(open_file.handle, WaitPolicy::MayWait));
        match outcome {
            Ok(()) => {
                if let Ok(mtime) = mtime_of(&copy.file) {
                    // If this fails, the file has the time at which it was stored.
                    let _ = self.fs.date(open_file.handle, mtime);
                }
                self.leave(open_file);
                AttemptOutcome::Sealing(copy.clone(), open_file.object)
            }
            Err(error) if is_passing(errno_of(&error)) || self.is_written_elsewhere(open_file) => {
                AttemptOutcome::Failed(None, error)
            }
            Err(error) => {
                // The open handle can transfer no more bytes: the file starts over, for all handles that have closed it.
                let left = copy.start_over();
                self.leave(open_file);
                match left {
                    Some(left) => AttemptOutcome::Failed(Some(UnstoredContent::Left(left)), error),
                    None => AttemptOutcome::Done,
                }
            }
        }
    }

    /// Whether a program has the same local copy open for writing.
    fn is_written_elsewhere(&self, open_file: &OpenFile) -> bool {
        let open = self.of_inode(open_file.key.ino);
        let mut others = open.iter().filter(|other| other.handle != open_file.handle);
        others.any(|other| other.write && !other.is_given())
    }

    /// Drops the local bytes of versions that are sealed.
    fn look_at_seals(&self) {
        let mut items = self.write_behind.items.lock();
        if items.looked.is_some_and(|at| at.elapsed() < SEAL_PAUSE) {
            return;
        }
        items.looked = Some(Instant::now());
        let mut ended = false;
        items.by_number.retain(|_, item| {
            let UnstoredContent::Sealing(copy, object) = &item.what else {
                return true;
            };
            let fate = self.fs.fate(*object);
            ended |= fate != CloseOutcome::Unsealed;
            match fate {
                CloseOutcome::Unsealed => return true,
                CloseOutcome::Done => copy.leave(&self.write_behind.spool),
                CloseOutcome::Lost(why) => {
                    if let Some(left) = copy.start_over() {
                        let of = (item.ino, item.uid);
                        *item = BacklogItem::new(UnstoredContent::Left(left), of, item.bytes);
                        item.why = Some((Errno::IO, why));
                        return true;
                    }
                }
            }
            false
        });
        drop(items);
        if ended {
            self.write_behind.changed.notify_all();
        }
    }

    /// Stores the bytes of a spool file, in a new version of its file.
    fn store_left(&self, copy: &Arc<LocalFile>) -> AttemptOutcome {
        if !is_closed(&copy.file) {
            return AttemptOutcome::Held;
        }
        match self.store_again(copy) {
            Ok(Some(object)) => AttemptOutcome::Sealing(copy.clone(), object),
            Ok(None) => {
                copy.leave(&self.write_behind.spool);
                AttemptOutcome::Done
            }
            Err(error) => AttemptOutcome::Failed(None, error),
        }
    }

    /// Returns the object that is being sealed; `None` if the file is deleted.
    fn store_again(&self, copy: &LocalFile) -> Result<Option<u64>, Error> {
        let Some(record) = copy.record() else {
            return Ok(None);
        };
        let caller = record.caller();
        let key = InodeKey {
            ino: record.inode,
            alias: 0,
        };
        let found = match Walker::at(&self.fs, caller, key) {
            Err(error) if error.is(Errno::NOENT) || error.is(Errno::STALE) => return Ok(None),
            found => found?,
        };
        if found.attr.kind() != Kind::File || found.attr.nlink == 0 {
            return Ok(None);
        }
        if self
            .of_inode(record.inode)
            .iter()
            .any(|open_file| open_file.write)
        {
            return Err(Errno::TXTBSY.into());
        }
        if !record.follows.contains(&found.attr.object) {
            return Err(Error::Overtaken);
        }
        let how = OpenHow {
            write: true,
            update: true,
            truncate: true,
            follows: false,
        };
        let opened = match self.fs.open(caller, found.key, how, WaitPolicy::MayWait) {
            // The file is open with another way of access.
            Err(error) if error.is(Errno::STALE) => return Err(Errno::TXTBSY.into()),
            opened => opened?,
        };
        let stored = (|| {
            copy.begins(opened.object, &self.write_behind.spool)?;
            let to = (caller, found.key, opened.handle);
            self.copies.hand_over(&self.fs, to, copy)?;
            self.fs.flush(opened.handle, WaitPolicy::MayWait)?;
            self.fs.date(opened.handle, mtime_of(&copy.file)?)?;
            Ok(Some(opened.object))
        })();
        self.fs.release(caller, opened.handle);
        stored
    }

    /// Waits until the closed bytes of a file are at its node; fails if this is impossible.
    pub(super) fn settle_stored(&self, ino: u64) -> Result<(), Error> {
        self.settle(ino);
        self.write_behind
            .wait(ino, |number, what| self.store(number, what))
    }

    /// Waits like `settle_stored`, on behalf of other clients and with a time limit.
    pub(super) fn settle_for_others(&self, ino: u64) {
        let stored = deadline::at_most(OTHERS_PATIENCE, || self.settle_stored(ino));
        if let Err(error) = stored {
            tracing::debug!(
                ino,
                "an asynchronously written file is not stored yet: {error}"
            );
        }
    }

    /// Prepares the open of a file, perhaps to `write`.
    pub(super) fn settle_to_open(&self, ino: u64, write: bool) {
        self.settle(ino);
        let store = |number, what| self.store(number, what);
        self.write_behind.clear(ino, write, store);
    }

    /// Waits until all closed files are at their nodes, as far as possible.
    pub(super) fn store_all(&self) {
        self.settle_all();
        let inodes: BTreeSet<_> = {
            let items = self.write_behind.items.lock();
            let live = items.by_number.values().filter(|item| !item.ended);
            live.map(|item| item.ino).collect()
        };
        for ino in inodes {
            if let Err(error) = self.settle_stored(ino) {
                tracing::warn!(ino, "an asynchronously closed file is not stored: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spool::SpoolRecord;
    use super::*;

    #[test]
    fn write_behind_limits_user_to_share_of_space() {
        let file = File::open("/dev/null").unwrap();
        let left = Arc::new(LocalFile::taken_up(file, SpoolRecord::default()));
        let item =
            |uid, bytes| BacklogItem::new(UnstoredContent::Left(left.clone()), (1, uid), bytes);
        let mut items = Items::default();
        items.enter(item(5, 25));
        assert!(!items.have_space(100, Some(5), 1));
        assert!(items.have_space(100, Some(6), 1) && items.have_space(100, None, 1));
        items.enter(item(0, 74));
        assert!(items.have_space(100, Some(6), 1) && items.have_space(100, None, 1));
        items.enter(item(0, 1));
        assert!(!items.have_space(100, Some(6), 1) && !items.have_space(100, None, 1));
        let mut items = Items::default();
        for _ in 0..FILES_MAX / SHARE_OF_OTHERS {
            assert!(items.have_space(100, Some(5), 1));
            items.enter(item(5, 0));
        }
        assert!(!items.have_space(100, Some(5), 1));
        assert!(items.have_space(100, Some(6), 1) && items.have_space(100, None, 1));
    }
}
