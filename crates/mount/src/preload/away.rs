//! Files that programs have given away (`tidemill preload --async`): closed, and stored by this process while the program goes on.
//!
//! Where their bytes are until then is `shelf`. What is tried again, by whom and for how long is here: what is away is waited for, and what is refused is tried
//! again, too, with the reason for who asks (`tidemill preload --wait`). Nothing is given up but what somebody else has written since.

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

/// Threads that store: one element that is away takes one for a while.
pub(super) const WORKERS: usize = 4;
/// Files that are given away and not stored at most: each is open here.
const FILES_MAX: usize = 1024;
/// The part of them, and of the room for their bytes, that each user may have who is neither root nor the one who serves.
const SHARE_OF_OTHERS: usize = 4;
/// Pause before a file is tried again, doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether a version is sealed.
const SEAL_PAUSE: Duration = Duration::from_millis(20);
/// How long a worker waits for something to do before it looks again.
const REST: Duration = Duration::from_millis(500);
/// How long who asks for a file on behalf of others waits for its bytes.
const OTHERS_PATIENCE: Duration = Duration::from_secs(10);

/// What is to be stored.
#[derive(Clone, Debug)]
enum What {
    /// What is open for it.
    Open(Arc<Lent>),
    /// A file on the shelf: nothing is open for it any more, or not yet.
    Left(Arc<(Record, File)>),
}

#[derive(Debug)]
struct Item {
    what: What,
    ino: u64,
    uid: u32,
    bytes: u64,
    /// Somebody is at it.
    busy: bool,
    /// A program that had it open when the file system was killed has it open still.
    held: bool,
    /// It was tried in vain, for that reason.
    why: Option<(Errno, String)>,
    /// It is not tried any more.
    ended: bool,
    due: Instant,
    pause: Duration,
}

/// All of it is with its element, and is being sealed as that object.
#[derive(Debug)]
struct Sealing {
    copy: Arc<Copy>,
    object: u64,
    ino: u64,
    uid: u32,
    bytes: u64,
}

/// How a try went.
#[derive(Debug)]
enum Outcome {
    /// Nothing is left to do.
    Done,
    Sealing(Arc<Copy>, u64),
    Held,
    /// The error, and what there is to do now if that is something else.
    Failed(Option<What>, Error),
}

/// All that is to be stored.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) shelf: Shelf,
    room_bytes: u64,
    items: Mutex<Items>,
    /// There is something to do, or something was done.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Items {
    by_number: BTreeMap<u64, Item>,
    last: u64,
    sealing: Vec<Sealing>,
    /// When it was looked whether those are sealed.
    looked: Option<Instant>,
}

/// What is said of a file that is not stored.
#[derive(Debug)]
pub(super) struct Told {
    /// It is waited for.
    pub(super) waits: bool,
    pub(super) path: Vec<u8>,
    pub(super) why: String,
    /// Where its bytes are.
    pub(super) file: Vec<u8>,
}

impl Items {
    fn enter(&mut self, item: Item) {
        self.last += 1;
        self.by_number.insert(self.last, item);
    }

    /// Files and bytes of a user, or of all.
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

    /// Whether there is room for one more; of a `stranger` within their share, too.
    fn have_room(&self, room_bytes: u64, stranger: Option<u32>) -> bool {
        let within = |user, share: usize| {
            let (files, bytes) = self.of(user);
            files < FILES_MAX / share && bytes < room_bytes / share as u64
        };
        within(None, 1) && (stranger.is_none() || within(stranger, SHARE_OF_OTHERS))
    }

    /// What programs had open when the file system was killed may be closed by now.
    fn look_at_held(&mut self) {
        for item in self.by_number.values_mut().filter(|item| item.held) {
            if let What::Left(left) = &item.what
                && is_closed(&left.1)
            {
                (item.held, item.due) = (false, Instant::now());
            }
        }
    }

    /// Somebody is at the first that is `wanted`, from now on.
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

    /// Whether it was refused, and not only kept waiting.
    fn is_refused(&self) -> bool {
        self.why.as_ref().is_some_and(|(why, _)| !is_passing(*why))
    }
}

/// Whether an error says that something is away: what is under way is waited for then, and not begun anew.
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

    /// Files that are stored sooner or later.
    pub(super) fn count(&self) -> usize {
        let items = self.items.lock();
        let live = items.by_number.values().filter(|item| !item.ended);
        live.count() + items.sealing.len()
    }

    /// Waits until something more may be given away, as long as that can help and there is time; whether it may. A `stranger`
    /// is one of the users who have a share only.
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

    /// Whether there is room for what a file has that is about to be closed.
    pub(super) fn takes(&self, copy: &Copy, stranger: Option<u32>) -> bool {
        let bytes = copy.file.metadata().map_or(0, |stat| stat.len());
        let items = self.items.lock();
        let fits = |user, share| items.of(user).1.saturating_add(bytes) <= self.room_bytes / share;
        fits(None, 1) && (stranger.is_none() || fits(stranger, SHARE_OF_OTHERS as u64))
    }

    /// An open file was closed; it is stored from now on.
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

    /// Takes up what one before this has left.
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

    /// Whether that is the file of something that one before this has left.
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

    /// The file with what one before this has left of an inode.
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

    /// A user's files, or all, that are not stored: how many are on their way, and what is known of those that were tried in vain.
    /// `again`: what was refused is tried once more before it is told.
    pub(super) fn standing(&self, uid: u32, again: bool) -> (u64, Vec<Told>) {
        let mut items = self.items.lock();
        items.look_at_held();
        // Who has removed the bytes does not want to hear of them any more.
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

    /// Notes how a try went.
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

    /// Waits until the bytes of a file that are here now are with its element, or fails as the last try of it has.
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

    /// A file is about to be opened: what one before this has left of it is stored first, if that can be. Who writes it anew ends what could not.
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
    /// Stores what is given away, for as long as `goes_on`.
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

    /// Has a file ready for who opens the next one.
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

    /// Has the element take what was written to a file that is closed.
    fn store_open(&self, lent: &Arc<Lent>) -> Outcome {
        let Some(copy) = lent.written_copy() else {
            return Outcome::Done;
        };
        let handed = self.hand_over(lent, copy);
        let handed = handed.and_then(|()| self.fs.flush(lent.handle, Pace::MayWait));
        match handed {
            Ok(()) => {
                if let Ok(mtime) = mtime_of(&copy.file) {
                    // Without it the file has the time at which it was stored.
                    let _ = self.fs.date(lent.handle, mtime);
                }
                self.leave(lent);
                Outcome::Sealing(copy.clone(), lent.object)
            }
            Err(error) if is_passing(errno_of(&error)) || self.is_written_elsewhere(lent) => {
                Outcome::Failed(None, error)
            }
            Err(error) => {
                // By what is open no more comes through: it is begun anew, for all who have closed it.
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

    /// What is on the shelf of a copy, which has no part in it any more.
    fn shelved(&self, copy: &Copy) -> Option<What> {
        let record = copy.give_up_record()?;
        let file = copy.file.try_clone().ok()?;
        Some(What::Left(Arc::new((record, file))))
    }

    /// Versions that are sealed need their bytes here no more.
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

    /// Stores a file of the shelf, by a version that is begun for it.
    fn store_left(&self, record: &Record, file: &File) -> Outcome {
        if !is_closed(file) {
            return Outcome::Held;
        }
        let mut begun = record.clone();
        match self.store_anew(&mut begun, file) {
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

    /// Gives the copy and the object that is being sealed; nothing if the file is gone.
    fn store_anew(
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
            // It is open in another way.
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

    /// Waits until what was closed of a file is with its element; fails if it can't be.
    pub(super) fn settle_stored(&self, ino: u64) -> Result<(), Error> {
        self.settle(ino);
        self.away.wait(ino, |number, what| self.store(number, what))
    }

    /// The same, for who asks on behalf of others.
    pub(super) fn settle_for_others(&self, ino: u64) {
        let stored = patience::at_most(OTHERS_PATIENCE, || self.settle_stored(ino));
        if let Err(error) = stored {
            tracing::debug!(ino, "what was given away is not stored yet: {error}");
        }
    }

    /// A file is about to be opened, perhaps to `write`.
    pub(super) fn settle_to_open(&self, ino: u64, write: bool) {
        self.settle(ino);
        let store = |number, what| self.store(number, what);
        self.away.clear(ino, write, store);
    }

    /// Waits until what was closed is with its elements, as far as that can be.
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
