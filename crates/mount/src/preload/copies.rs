//! Files whose bytes are not in a folder of this host: programs get a copy, which is fetched when it is opened and
//! handed over, as far as it has changed, when it is closed or synced.

use super::shelf::{Record, Shelf};
use crate::error::Error;
use crate::fs::names::Changes;
use crate::fs::{Caller, Fs, Key, Pace};
use parking_lot::Mutex;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes that are compared at once to find out what has changed.
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes fetched, or handed over, at once: a whole number of blocks.
const PIECE_BYTES: usize = 4 << 20;
/// Bytes of copies of sealed versions that are kept when nobody has them open.
const KEPT_BYTES_MAX: u64 = 256 << 20;
/// The part of the device with the copies that each user may have who is neither root nor the one who serves.
const SHARE_OF_OTHERS: u64 = 4;
/// A change younger than this may be followed by another one that looks the same, where the file system's clock is coarse.
const GRAIN: Duration = Duration::from_millis(20);
/// How often it is tried whether it is.
const GRAIN_TRIES: usize = 8;

/// A copy.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) file: File,
    known: Mutex<Known>,
    shelved: Mutex<Shelved>,
}

/// What is on the shelf of a copy that may be given away.
#[derive(Debug, Default)]
struct Shelved {
    /// Who has it open, and what is being sealed of it.
    users: usize,
    /// The number of its file; none if that has no name.
    number: Option<u64>,
    record: Option<Record>,
}

/// What the array has of it.
#[derive(Debug, Default)]
struct Known {
    /// When the copy had changed last; `None`: that can't be relied on.
    changed: Option<(i64, i64)>,
    size: u64,
    /// Of each block.
    hashes: Vec<u64>,
}

type Id = (u64, u64);

/// All copies.
#[derive(Debug)]
pub(super) struct Copies {
    folder: PathBuf,
    next: AtomicU64,
    hasher: RandomState,
    /// By inode and object.
    open: Mutex<HashMap<Id, Arc<Mutex<Weak<Copy>>>>>,
    kept: Mutex<VecDeque<(Id, Arc<Copy>)>>,
    grain: Duration,
}

impl Copies {
    pub(super) fn new(folder: PathBuf) -> Self {
        let grain = if is_fine(&folder) {
            Duration::ZERO
        } else {
            GRAIN
        };
        Self {
            folder,
            grain,
            next: AtomicU64::new(0),
            hasher: RandomState::new(),
            open: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Bytes that the copies may have which one of several users has open.
    pub(super) fn share(&self) -> u64 {
        let device = rustix::fs::statvfs(&self.folder);
        device.map_or(u64::MAX, |device| {
            device.f_blocks.saturating_mul(device.f_frsize) / SHARE_OF_OTHERS
        })
    }

    /// Forgets what nobody has open.
    fn forget(&self) {
        self.kept.lock().clear();
    }

    /// The copy of what is open as `handle`, shared by all who have the same version open; fetched if there is none, to a `shelf` if it may be
    /// given away.
    pub(super) fn of(
        &self,
        id: Id,
        mtime: i64,
        shelf: Option<&Shelf>,
        fetch: impl Fn(u64, usize) -> Result<Vec<u8>, Error>,
    ) -> Result<Arc<Copy>, Error> {
        let place = self.open.lock().entry(id).or_default().clone();
        let mut place = place.lock();
        if let Some(copy) = place.upgrade() {
            return Ok(copy);
        }
        let (number, file) = match shelf {
            Some(shelf) => shelf.make().map(|(number, file)| (Some(number), file))?,
            None => (None, self.nameless(id.0)?),
        };
        let fetched = match self.fetched(&file, mtime, &fetch) {
            Err(error) if error.is(Errno::NOSPC) => {
                self.forget();
                self.fetched(&file, mtime, &fetch)
            }
            fetched => fetched,
        };
        let fetched = fetched.map(|known| Copy {
            file,
            known: Mutex::new(known),
            shelved: Mutex::default(),
        });
        let copy = fetched.inspect_err(|_| {
            if let (Some(shelf), Some(number)) = (shelf, number) {
                shelf.remove(number);
            }
        })?;
        copy.shelved.lock().number = number;
        let copy = Arc::new(copy);
        *place = Arc::downgrade(&copy);
        Ok(copy)
    }

    fn nameless(&self, ino: u64) -> Result<File, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{ino}-{number}"));
        let mut how = File::options();
        let file = how.read(true).write(true).create_new(true).mode(0o600);
        let file = file.open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }

    fn fetched(
        &self,
        file: &File,
        mtime: i64,
        fetch: impl Fn(u64, usize) -> Result<Vec<u8>, Error>,
    ) -> Result<Known, Error> {
        let mut known = Known::default();
        loop {
            let piece = fetch(known.size, PIECE_BYTES)?;
            file.write_all_at(&piece, known.size)?;
            let blocks = piece.chunks(BLOCK_BYTES);
            known
                .hashes
                .extend(blocks.map(|block| self.hasher.hash_one(block)));
            known.size += piece.len() as u64;
            if piece.len() < PIECE_BYTES {
                break;
            }
        }
        set_mtime(file, mtime)?;
        known.changed = settled(file, self.grain)?;
        Ok(known)
    }

    /// Who opens that from now on gets a copy of their own: that of others may still have a writer.
    pub(super) fn let_go(&self, id: Id) {
        self.open.lock().remove(&id);
        self.kept.lock().retain(|(other, _)| *other != id);
    }

    /// Nobody has it open any more. It may serve again if it is of a sealed version.
    pub(super) fn closed(&self, id: Id, copy: Arc<Copy>, keep: bool) {
        let size = |copy: &Copy| copy.file.metadata().map_or(0, |stat| stat.len());
        if keep && size(&copy) <= KEPT_BYTES_MAX {
            let mut kept = self.kept.lock();
            kept.retain(|(other, _)| *other != id);
            kept.push_back((id, copy));
            let mut bytes: u64 = kept.iter().map(|(_, copy)| size(copy)).sum();
            while bytes > KEPT_BYTES_MAX
                && let Some((_, oldest)) = kept.pop_front()
            {
                bytes = bytes.saturating_sub(size(&oldest));
            }
        } else {
            drop(copy);
        }
        let mut open = self.open.lock();
        open.retain(|_, place| {
            Arc::strong_count(place) > 1
                || place
                    .try_lock()
                    .is_none_or(|place| place.strong_count() > 0)
        });
    }

    /// Writes what has changed to the version that is open as `handle`.
    pub(super) fn hand_over(
        &self,
        fs: &Fs,
        (caller, key, handle): (Caller, Key, u64),
        copy: &Copy,
    ) -> Result<(), Error> {
        let mut known = copy.known.lock();
        let stat = copy.file.metadata()?;
        let at = (stat.ctime(), stat.ctime_nsec());
        if known.changed == Some(at) && known.size == stat.len() {
            return Ok(());
        }
        let now = settled(&copy.file, self.grain)?;
        // Until all is there, nothing is known.
        known.changed = None;
        let size = stat.len();
        let cut = |size| {
            let changes = Changes {
                size: Some(size),
                ..Changes::default()
            };
            fs.setattr(caller, key, changes, Pace::MayWait).map(drop)
        };
        if size < known.size {
            cut(size)?;
            known.size = size;
            known
                .hashes
                .truncate(usize::try_from(size / BLOCK_BYTES as u64).unwrap_or(usize::MAX));
        }
        let mut written = known.size;
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < size {
            let block = usize::try_from(at / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
            if block >= known.hashes.len() {
                at = next_data(&copy.file, at)?.min(size);
            }
            let count = read(&copy.file, &mut piece, at)?;
            if count == 0 {
                break;
            }
            for (index, bytes) in piece[..count].chunks(BLOCK_BYTES).enumerate() {
                let offset = at + (index * BLOCK_BYTES) as u64;
                let block = usize::try_from(offset / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
                let hash = self.hasher.hash_one(bytes);
                if known.hashes.get(block) == Some(&hash) {
                    continue;
                }
                fs.write(handle, offset, bytes, Pace::MayWait)?;
                written = written.max(offset + bytes.len() as u64);
                if known.hashes.len() <= block {
                    // A hole: 0 is the hash of nothing that was seen.
                    known.hashes.resize(block + 1, 0);
                }
                known.hashes[block] = hash;
            }
            at += count as u64;
        }
        if written < size {
            cut(size)?;
        }
        known.size = size;
        known.changed = now;
        Ok(())
    }
}

impl Copy {
    /// What one before this has left on the shelf: nothing of it is in the version that was begun for it.
    pub(super) fn taken_up(file: File, record: Record) -> Self {
        let shelved = Shelved {
            users: 1,
            number: Some(record.number),
            record: Some(record),
        };
        Self {
            file,
            known: Mutex::default(),
            shelved: Mutex::new(shelved),
        }
    }

    /// One more has it open.
    pub(super) fn enter(&self) {
        self.shelved.lock().users += 1;
    }

    /// One less has it open, or it is sealed. What nobody needs any more goes from the shelf.
    pub(super) fn leave(&self, shelf: &Shelf) {
        let mut shelved = self.shelved.lock();
        shelved.users = shelved.users.saturating_sub(1);
        if shelved.users == 0
            && let Some(number) = shelved.number.take()
        {
            shelved.record = None;
            shelf.remove(number);
        }
    }

    /// Has it survive whoever dies; whether it does. It does not if it was opened by somebody who gives nothing away, or can't be stored
    /// as it is open.
    pub(super) fn survives(
        &self,
        shelf: &Shelf,
        record: impl FnOnce(u64) -> Record,
    ) -> Result<bool, Error> {
        let mut shelved = self.shelved.lock();
        let Some(number) = shelved.number else {
            return Ok(false);
        };
        if shelved.record.is_none() {
            let record = record(number);
            shelf.keep(&record)?;
            shelved.record = Some(record);
        }
        Ok(true)
    }

    pub(super) fn record(&self) -> Option<Record> {
        self.shelved.lock().record.clone()
    }

    /// What it has on the shelf is somebody else's affair from now on.
    pub(super) fn give_up_record(&self) -> Option<Record> {
        let mut shelved = self.shelved.lock();
        shelved.number = None;
        shelved.record.take()
    }

    /// Whether it was changed since the array was told of all.
    pub(super) fn has_changed(&self) -> bool {
        let known = self.known.lock();
        self.file.metadata().is_ok_and(|stat| {
            known.changed != Some((stat.ctime(), stat.ctime_nsec())) || known.size != stat.len()
        })
    }
}

/// Whether two changes, one after the other, always have two times, if somebody has looked in between.
fn is_fine(folder: &std::path::Path) -> bool {
    let path = folder.join("clock");
    let Ok(file) = File::create(&path) else {
        return false;
    };
    let mut last = None;
    let fine = (0..GRAIN_TRIES).all(|_| {
        let written = file.write_at(b"x", 0).is_ok();
        let at = file
            .metadata()
            .map(|stat| (stat.ctime(), stat.ctime_nsec()));
        let at = at.ok();
        written && std::mem::replace(&mut last, at) != at
    });
    let _ = std::fs::remove_file(path);
    fine
}

/// Sets when a copy was changed last, in nanoseconds since the Unix epoch.
pub(super) fn set_mtime(file: &File, mtime: i64) -> Result<(), Error> {
    const SECOND_NS: i64 = 1_000_000_000;
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: mtime.div_euclid(SECOND_NS),
            tv_nsec: mtime.rem_euclid(SECOND_NS),
        },
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

/// When a file was changed last, if a change that comes now would be seen by that.
fn settled(file: &File, grain: Duration) -> Result<Option<(i64, i64)>, Error> {
    let stat = file.metadata()?;
    let at = Duration::new(
        u64::try_from(stat.ctime()).unwrap_or(0),
        u32::try_from(stat.ctime_nsec()).unwrap_or(0),
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let old = now.is_ok_and(|now| now.saturating_sub(at) >= grain);
    Ok(old.then(|| (stat.ctime(), stat.ctime_nsec())))
}

/// The first block at or after `at` with bytes that are not a hole.
fn next_data(file: &File, at: u64) -> Result<u64, Error> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data - data % BLOCK_BYTES as u64),
        Err(Errno::NXIO) => Ok(u64::MAX),
        Err(errno) => Err(errno.into()),
    }
}

fn read(file: &File, into: &mut [u8], at: u64) -> Result<usize, Error> {
    let mut filled = 0;
    while filled < into.len() {
        match file.read_at(&mut into[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}
