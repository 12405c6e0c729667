//! Files that programs hand over (`tidemill preload --async`): this process stores them after their close (next: `mount/src/fs/seal.rs`).
//!
//! Until then their bytes are in `shelf`. This module decides which files are stored again, by which thread and for how long. If a node
//! or the server is offline, the file waits. If the file is refused, it is tried again as well, and `tidemill preload --wait` reports the
//! reason. A file is abandoned only if another client has written it since.

use super::copies::Copy;
use super::given::{Given, Lent, is_closed};
use super::shelf::{Found, Record, Shelf};
use super::walk::Walker;
use crate::error::Error;
use crate::fs::file::OpenHow;
use crate::fs::unsealed::Fate;
use crate::fs::{Key, Pace, patience};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_wire::v1::Kind;

/// Number of threads that store: an offline node blocks one of them for a while.
pub(super) const WORKERS: usize = 4;
/// Maximum number of handed-over files that are not stored: each is open here.
const FILES_MAX: usize = 1024;
/// Part of these files, and of the room for their bytes, that each user may have, except root and the serving user.
const SHARE_OF_OTHERS: usize = 4;
/// Pause before a file is tried again, doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Interval at which the module checks whether a version is sealed.
const SEAL_PAUSE: Duration = Duration::from_millis(20);
/// Time that a worker waits for work before it checks again.
const REST: Duration = Duration::from_millis(500);
/// Time that a request on behalf of other clients waits for the bytes of a file.
const OTHERS_PATIENCE: Duration = Duration::from_secs(10);

/// Content to store.
#[derive(Clone, Debug)]
enum What {
    /// The handle that is open for it.
    Open(Arc<Lent>),
    /// A file on the shelf: no handle is open for it any more, or not yet.
    Left(Arc<(Record, File)>),
}

#[derive(Debug)]
struct Item {
    what: What,
    ino: u64,
    uid: u32,
    bytes: u64,
    /// Whether a worker stores it now.
    busy: bool,
    /// Whether a program still has the file open, from before the file system was killed.
    held: bool,
    /// Error of the last failed attempt.
    why: Option<(Errno, String)>,
    /// Whether it is not tried any more.
    ended: bool,
    due: Instant,
    pause: Duration,
}

/// File whose bytes are all at its node, and which is being sealed as that object.
#[derive(Debug)]
struct Sealing {
    copy: Arc<Copy>,
    object: u64,
    ino: u64,
    uid: u32,
    bytes: u64,
}

/// Outcome of an attempt.
#[derive(Debug)]
enum Outcome {
    /// No work is left.
    Done,
    Sealing(Arc<Copy>, u64),
    Held,
    /// The error, and the content to store next, if that has changed.
    Failed(Option<What>, Error),
}

/// All files to store.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) shelf: Shelf,
    room_bytes: u64,
    items: Mutex<Items>,
    /// Signalled when there is work, or when work was done.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Items {
    by_number: BTreeMap<u64, Item>,
    last: u64,
    sealing: Vec<Sealing>,
    /// Time of the last check of those seals.
    looked: Option<Instant>,
}

/// Report about a file that is not stored.
#[derive(Debug)]
pub(super) struct Told {
    /// Whether the file waits for a node or the server.
    pub(super) waits: bool,
    pub(super) path: Vec<u8>,
    pub(super) why: String,
    /// Path of the file with its bytes.
    pub(super) file: Vec<u8>,
}

impl Items {
    fn enter(&mut self, item: Item) {
        self.last += 1;
        self.by_number.insert(self.last, item);
    }

    /// Returns the numbers of files and bytes of a user, or of all users.
    fn of(&self, user: Option<u32>) -> (usize, u64) {
        let items = self.by_number.values().map(|item| (item.uid, item.bytes));
        let sealing = self.sealing.iter().map(|one| (one.uid, one.bytes));
        let of = items
            .chain(sealing)
            .filter(|(uid, _)| user.is_none_or(|user| user == *uid));
        of.fold((0, 0_u64), |(files, all), (_, bytes)| {
            (files + 1, all.saturating_add(bytes))
        })
    }

    /// Whether there is room for one more file; for a `stranger` within that user's share, too.
    fn have_room(&self, room_bytes: u64, stranger: Option<u32>) -> bool {
        let within = |user, share: usize| {
            let (files, bytes) = self.of(user);
            files < FILES_MAX / share && bytes < room_bytes / share as u64
        };
        within(None, 1) && (stranger.is_none() || within(stranger, SHARE_OF_OTHERS))
    }

    /// Checks whether programs have closed the files that were open when the file system was killed.
    fn look_at_held(&mut self) {
        for item in self.by_number.values_mut().filter(|item| item.held) {
            if let What::Left(left) = &item.what
                && is_closed(&left.1)
            {
                (item.held, item.due) = (false, Instant::now());
            }
        }
    }

    /// Marks the first `wanted` file as busy, and returns it.
    fn begin(&mut self, wanted: impl Fn(&Item) -> bool) -> Option<(u64, What)> {
        let mut all = self.by_number.iter_mut();
        let (&number, item) = all.find(|(_, item)| !item.busy && !item.ended && wanted(item))?;
        item.busy = true;
        Some((number, item.what.clone()))
    }
}

impl Item {
    fn new(what: What, (ino, uid): (u64, u32), bytes: u64) -> Self {
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
            pause: PAUSE_MIN,
        }
    }

    /// Whether the file was refused, not only delayed.
    fn is_refused(&self) -> bool {
        self.why.as_ref().is_some_and(|(why, _)| !is_passing(*why))
    }
}

/// Whether an error means that a node or the server is offline: the present attempt then continues later, and does not start over.
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

impl Away {
    pub(super) fn new(shelf: Shelf, room_bytes: u64) -> Self {
        Self {
            shelf,
            room_bytes,
            items: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns the number of files that will be stored.
    pub(super) fn count(&self) -> usize {
        let items = self.items.lock();
        let live = items.by_number.values().filter(|item| !item.ended);
        live.count() + items.sealing.len()
    }

    /// Waits until another file may be handed over, as long as that can help and there is time. Returns whether it may. A `stranger` is a
    /// user who only has a share.
    pub(super) fn has_room(&self, stranger: Option<u32>) -> bool {
        let deadline = patience::deadline();
        let mut items = self.items.lock();
        loop {
            if items.have_room(self.room_bytes, stranger) {
                return true;
            }
            let hopeless = |user: Option<u32>| {
                let whose = |uid: u32| user.is_none_or(|user| user == uid);
                let mut tried = items.by_number.values().filter(|item| whose(item.uid));
                let sealing = items.sealing.iter().any(|one| whose(one.uid));
                !sealing && tried.all(|item| item.why.is_some())
            };
            let share = stranger.filter(|_| items.have_room(self.room_bytes, None));
            let hopeless = hopeless(share);
            if hopeless || patience::wait(&self.changed, &mut items, deadline) {
                return false;
            }
        }
    }

    /// Whether there is room for the bytes of a file that is about to be closed.
    pub(super) fn takes(&self, copy: &Copy, stranger: Option<u32>) -> bool {
        let bytes = copy.file.metadata().map_or(0, |stat| stat.len());
        let items = self.items.lock();
        let fits = |user, share| items.of(user).1.saturating_add(bytes) <= self.room_bytes / share;
        fits(None, 1) && (stranger.is_none() || fits(stranger, SHARE_OF_OTHERS as u64))
    }

    /// Adds an open file that was closed, to be stored from now on.
    pub(super) fn give(&self, lent: &Arc<Lent>) {
        let size = lent
            .written_copy()
            .and_then(|copy| copy.file.metadata().ok());
        let bytes = size.map_or(0, |stat| stat.len());
        let of = (lent.key.ino, lent.caller.uid);
        let item = Item::new(What::Open(lent.clone()), of, bytes);
        self.items.lock().enter(item);
        self.changed.notify_all();
    }

    /// Takes over the files of an earlier process.
    pub(super) fn take_up(&self) -> Result<(), Error> {
        for found in self.shelf.find()? {
            let Found {
                record,
                file,
                foreign,
            } = found;
            let bytes = file.metadata()?.len();
            let of = (record.inode, record.uid);
            let mut item = Item::new(What::Left(Arc::new((record, file))), of, bytes);
            if let Some(why) = foreign {
                item.ended = true;
                item.why = Some((Errno::STALE, why.to_owned()));
            }
            self.items.lock().enter(item);
        }
        Ok(())
    }

    /// Whether an earlier process has left the file with this device and inode.
    pub(super) fn has_left(&self, (device, inode): (u64, u64)) -> bool {
        let items = self.items.lock();
        items.by_number.values().any(|item| match &item.what {
            What::Left(left) => {
                let stat = left.1.metadata();
                stat.is_ok_and(|stat| (stat.dev(), stat.ino()) == (device, inode))
            }
            What::Open(_) => false,
        })
    }

    /// Returns the file with the bytes that an earlier process has left of an inode.
    pub(super) fn left_of(&self, ino: u64) -> Option<Metadata> {
        let items = self.items.lock();
        let mut of = items
            .by_number
            .values()
            .rev()
            .filter(|item| item.ino == ino && !item.ended);
        of.find_map(|item| match &item.what {
            What::Left(left) => left.1.metadata().ok(),
            What::Open(_) => None,
        })
    }

    /// Returns a user's files, or all, that are not stored: the number of files on their way, and reports about failed files. `again`:
    /// refused files are tried once more before they are reported.
    pub(super) fn standing(&self, uid: u32, again: bool) -> (u64, Vec<Told>) {
        let mut items = self.items.lock();
        items.look_at_held();
        // A user who removed the bytes does not want reports about them.
        items.by_number.retain(|_, item| match &item.what {
            What::Left(left) => !item.ended || self.shelf.path(left.0.number).exists(),
            What::Open(_) => true,
        });
        let own = |other: u32| uid == 0 || other == uid;
        let refused = |item: &&mut Item| own(item.uid) && !item.ended && item.is_refused();
        for item in items
            .by_number
            .values_mut()
            .filter(|_| again)
            .filter(refused)
        {
            (item.why, item.due, item.pause) = (None, Instant::now(), PAUSE_MIN);
        }
        self.changed.notify_all();
        let all = || items.by_number.values().filter(|item| own(item.uid));
        let waits = |item: &&Item| !item.ended && !item.held && !item.is_refused();
        let sealing = items.sealing.iter().filter(|one| own(one.uid));
        let waiting = all().filter(waits).count() + sealing.count();
        let told = all().filter_map(|item| {
            let (_, why) = item.why.as_ref()?;
            let record = match &item.what {
                What::Open(lent) => lent.copy.as_ref().and_then(|copy| copy.record()),
                What::Left(left) => Some(left.0.clone()),
            }?;
            Some(Told {
                waits: waits(&item),
                file: super::shelf::shown(&self.shelf.path(record.number)),
                path: record.path,
                why: why.clone(),
            })
        });
        (waiting as u64, told.collect())
    }

    /// Notes the outcome of an attempt.
    fn end(&self, number: u64, outcome: Outcome) {
        let mut items = self.items.lock();
        let Some(item) = items.by_number.get_mut(&number) else {
            return;
        };
        item.busy = false;
        item.due = Instant::now() + item.pause;
        item.held = matches!(outcome, Outcome::Held);
        match outcome {
            Outcome::Done => {
                items.by_number.remove(&number);
            }
            Outcome::Sealing(copy, object) => {
                let (ino, uid, bytes) = (item.ino, item.uid, item.bytes);
                items.by_number.remove(&number);
                items.sealing.push(Sealing {
                    copy,
                    object,
                    ino,
                    uid,
                    bytes,
                });
            }
            Outcome::Held => {}
            Outcome::Failed(what, error) => {
                if item.why.is_none() {
                    tracing::warn!("a file that was given away can't be stored now: {error}");
                }
                item.why = Some((errno_of(&error), error.to_string()));
                item.ended = matches!(error, Error::Overtaken);
                item.pause = (item.pause * 2).min(PAUSE_MAX);
                if let Some(what) = what {
                    item.what = what;
                }
            }
        }
        drop(items);
        self.changed.notify_all();
    }

    /// Waits until the present bytes of a file are at its node, or returns the error of the file's last attempt.
    fn wait(&self, ino: u64, store: impl Fn(u64, What)) -> Result<(), Error> {
        let deadline = patience::deadline();
        let mut items = self.items.lock();
        items.look_at_held();
        let (last, mut tried) = (items.last, false);
        let ours = |item: &Item| item.ino == ino && !item.ended && !item.held;
        loop {
            let wanted = |item: &Item| ours(item) && (!tried || item.due <= Instant::now());
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
            if patience::wait(&self.changed, &mut items, deadline) {
                return Err(Errno::HOSTUNREACH.into());
            }
        }
    }

    /// Prepares an open: bytes that an earlier process has left are stored first, if possible. An open for writing ends files that failed.
    fn clear(&self, ino: u64, write: bool, store: impl Fn(u64, What)) {
        let deadline = patience::deadline();
        let mut items = self.items.lock();
        let left = |item: &Item| {
            item.ino == ino && !item.ended && !item.held && matches!(item.what, What::Left(_))
        };
        items.look_at_held();
        loop {
            let due = |item: &Item| {
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
            if !waits || patience::wait(&self.changed, &mut items, deadline) {
                return;
            }
        }
    }
}

impl Given {
    /// Stores handed-over files, for as long as `goes_on`.
    pub(super) fn keep_storing(&self, goes_on: impl Fn() -> bool) {
        while goes_on() {
            self.look_at_seals();
            self.make_ready();
            let mut items = self.away.items.lock();
            let now = Instant::now();
            let Some((number, what)) = items.begin(|item| item.due <= now) else {
                let rest = if items.sealing.is_empty() {
                    REST
                } else {
                    SEAL_PAUSE
                };
                let idle = items.by_number.values();
                let idle = idle.filter(|item| !item.busy && !item.ended);
                let next = idle.map(|item| item.due).min().unwrap_or(now + rest);
                let until = next.min(now + rest);
                self.away.changed.wait_until(&mut items, until);
                continue;
            };
            drop(items);
            patience::serve(|| self.store(number, what));
        }
    }

    /// Prepares a file for the next open.
    fn make_ready(&self) {
        if self.away.shelf.wants_one()
            && let Err(error) = self.away.shelf.prepare()
        {
            tracing::debug!("no file can be made ready: {error}");
        }
    }

    fn store(&self, number: u64, what: What) {
        let outcome = match what {
            What::Open(lent) => self.store_open(&lent),
            What::Left(left) => self.store_left(&left.0, &left.1),
        };
        self.away.end(number, outcome);
    }

    /// Sends the bytes written to a closed file to its node.
    fn store_open(&self, lent: &Arc<Lent>) -> Outcome {
        let Some(copy) = lent.written_copy() else {
            return Outcome::Done;
        };
        let handed = self.hand_over(lent, copy);
        let handed = handed.and_then(|()| self.fs.flush(lent.handle, Pace::MayWait));
        match handed {
            Ok(()) => {
                if let Ok(mtime) = mtime_of(&copy.file) {
                    // If this fails, the file has the time at which it was stored.
                    let _ = self.fs.date(lent.handle, mtime);
                }
                self.leave(lent);
                Outcome::Sealing(copy.clone(), lent.object)
            }
            Err(error) if is_passing(errno_of(&error)) || self.is_written_elsewhere(lent) => {
                Outcome::Failed(None, error)
            }
            Err(error) => {
                // The open handle can transfer no more bytes: the file starts over, for all handles that have closed it.
                let left = self.shelved(copy);
                self.leave(lent);
                match left {
                    Some(left) => Outcome::Failed(Some(left), error),
                    None => Outcome::Done,
                }
            }
        }
    }

    /// Whether a program has the same copy open for writing.
    fn is_written_elsewhere(&self, lent: &Lent) -> bool {
        let open = self.of_inode(lent.key.ino);
        let mut others = open.iter().filter(|other| other.handle != lent.handle);
        others.any(|other| other.write && !other.is_given())
    }

    /// Removes the shelf's file from a copy, and returns it.
    fn shelved(&self, copy: &Copy) -> Option<What> {
        let record = copy.give_up_record()?;
        let file = copy.file.try_clone().ok()?;
        Some(What::Left(Arc::new((record, file))))
    }

    /// Drops the bytes of versions that are sealed.
    fn look_at_seals(&self) {
        let mut items = self.away.items.lock();
        let looked = items.looked.is_some_and(|at| at.elapsed() < SEAL_PAUSE);
        if items.sealing.is_empty() || looked {
            return;
        }
        items.looked = Some(Instant::now());
        let before = items.sealing.len();
        let mut lost = Vec::new();
        let fates = std::mem::take(&mut items.sealing).into_iter();
        let fates = fates.map(|one| (self.fs.fate(one.object), one));
        for (fate, one) in fates.collect::<Vec<_>>() {
            match fate {
                Fate::Unsealed => items.sealing.push(one),
                Fate::Done => one.copy.leave(&self.away.shelf),
                Fate::Lost(why) => lost.push((why, one)),
            }
        }
        for (why, one) in lost {
            if let Some(left) = self.shelved(&one.copy) {
                let mut item = Item::new(left, (one.ino, one.uid), one.bytes);
                item.why = Some((Errno::IO, why));
                items.enter(item);
            }
        }
        let fewer = items.sealing.len() < before;
        drop(items);
        if fewer {
            self.away.changed.notify_all();
        }
    }

    /// Stores a file of the shelf, in a version that is begun for it.
    fn store_left(&self, record: &Record, file: &File) -> Outcome {
        if !is_closed(file) {
            return Outcome::Held;
        }
        let mut begun = record.clone();
        match self.store_again(&mut begun, file) {
            Ok(None) => {
                self.away.shelf.remove(record.number);
                Outcome::Done
            }
            Ok(Some((copy, object))) => Outcome::Sealing(copy, object),
            Err(error) => {
                let left = file.try_clone().ok();
                let left = left.map(|file| What::Left(Arc::new((begun, file))));
                Outcome::Failed(left, error)
            }
        }
    }

    /// Returns the copy and the object that is being sealed; `None` if the file is deleted.
    fn store_again(
        &self,
        record: &mut Record,
        file: &File,
    ) -> Result<Option<(Arc<Copy>, u64)>, Error> {
        let caller = record.caller();
        let key = Key {
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
        if self.of_inode(record.inode).iter().any(|lent| lent.write) {
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
        let opened = match self.fs.open(caller, found.key, how, Pace::MayWait) {
            // The file is open with another way of access.
            Err(error) if error.is(Errno::STALE) => return Err(Errno::TXTBSY.into()),
            opened => opened?,
        };
        let stored = (|| {
            record.follows.push(opened.object);
            self.away.shelf.keep(record)?;
            let copy = Copy::taken_up(file.try_clone()?, record.clone());
            let to = (caller, found.key, opened.handle);
            self.copies.hand_over(&self.fs, to, &copy)?;
            self.fs.flush(opened.handle, Pace::MayWait)?;
            self.fs.date(opened.handle, mtime_of(file)?)?;
            Ok(copy)
        })();
        self.fs.release(caller, opened.handle);
        stored.map(|copy| Some((Arc::new(copy), opened.object)))
    }

    /// Waits until the closed bytes of a file are at its node; fails if that is impossible.
    pub(super) fn settle_stored(&self, ino: u64) -> Result<(), Error> {
        self.settle(ino);
        self.away.wait(ino, |number, what| self.store(number, what))
    }

    /// As `settle_stored`, on behalf of other clients.
    pub(super) fn settle_for_others(&self, ino: u64) {
        let stored = patience::at_most(OTHERS_PATIENCE, || self.settle_stored(ino));
        if let Err(error) = stored {
            tracing::debug!(ino, "what was given away is not stored yet: {error}");
        }
    }

    /// Prepares the open of a file, perhaps to `write`.
    pub(super) fn settle_to_open(&self, ino: u64, write: bool) {
        self.settle(ino);
        let store = |number, what| self.store(number, what);
        self.away.clear(ino, write, store);
    }

    /// Waits until all closed bytes are at their nodes, as far as possible.
    pub(super) fn store_all(&self) {
        self.settle_all();
        let inodes: BTreeSet<_> = {
            let items = self.away.items.lock();
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
    use super::*;

    #[test]
    fn user_over_share_leaves_space_of_others() {
        let record = Record {
            number: 1,
            inode: 1,
            uid: 5,
            gid: 5,
            follows: Vec::new(),
            path: Vec::new(),
        };
        let left = Arc::new((record, File::open("/dev/null").unwrap()));
        let item = |uid, bytes| Item::new(What::Left(left.clone()), (1, uid), bytes);
        let mut items = Items::default();
        items.enter(item(5, 25));
        assert!(!items.have_room(100, Some(5)));
        assert!(items.have_room(100, Some(6)) && items.have_room(100, None));
        items.enter(item(0, 74));
        assert!(items.have_room(100, Some(6)) && items.have_room(100, None));
        items.enter(item(0, 1));
        assert!(!items.have_room(100, Some(6)) && !items.have_room(100, None));
        let mut items = Items::default();
        for _ in 0..FILES_MAX / SHARE_OF_OTHERS {
            assert!(items.have_room(100, Some(5)));
            items.enter(item(5, 0));
        }
        assert!(!items.have_room(100, Some(5)));
        assert!(items.have_room(100, Some(6)) && items.have_room(100, None));
    }
}
