//! Local copies of files whose bytes are not in a node's directory on this host. A copy is fetched at the open, and its changes are
//! transferred at the close or sync (next: `mount/src/fs/file.rs`).

use super::open_files::SHARE_OF_OTHERS;
use super::spool::{Spool, SpoolRecord};
use crate::error::Error;
use crate::fs::names::AttributeChanges;
use crate::fs::{Caller, Fs, InodeKey, WaitPolicy};
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

/// Number of bytes that are compared at once to find changes.
const BLOCK_BYTES: usize = 64 << 10;
/// Number of bytes that are fetched, or transferred, at once: a whole number of blocks.
const PIECE_BYTES: usize = 4 << 20;
/// Maximum number of bytes of copies of sealed versions that are kept when no program has them open.
const KEPT_BYTES_MAX: u64 = 256 << 20;
/// Time after a change in which a second change may get the same time, if the file system's clock is coarse.
const GRAIN: Duration = Duration::from_millis(20);
/// Number of tests that determine the resolution of the file system's clock.
const GRAIN_TRIES: usize = 8;

/// Local copy of a file.
#[derive(Debug)]
pub(super) struct LocalFile {
    pub(super) file: File,
    known: Mutex<KnownContent>,
    spooled: Mutex<Spooled>,
}

/// Spool file of a local copy that may be written asynchronously.
#[derive(Debug, Default)]
struct Spooled {
    /// Number of handles that have the copy open, plus number of pending seals.
    users: usize,
    /// Record of the spool file; `None` if the file has no name.
    record: Option<SpoolRecord>,
}

/// Content of the file that the cluster has.
#[derive(Debug, Default)]
struct KnownContent {
    /// Time of the local copy's last change; `None` if the time is not reliable.
    changed: Option<(i64, i64)>,
    size: u64,
    /// Hash of each block of the content.
    hashes: Vec<u64>,
}

type Id = (u64, u64);

#[derive(Debug)]
pub(super) struct LocalFiles {
    directory: PathBuf,
    next: AtomicU64,
    hasher: RandomState,
    /// Open local copies by inode and object.
    open: Mutex<HashMap<Id, Arc<Mutex<Weak<LocalFile>>>>>,
    kept: Mutex<VecDeque<(Id, Arc<LocalFile>)>>,
    grain: Duration,
}

impl LocalFiles {
    pub(super) fn new(directory: PathBuf) -> Self {
        let grain = if is_fine(&directory) {
            Duration::ZERO
        } else {
            GRAIN
        };
        Self {
            directory,
            grain,
            next: AtomicU64::new(0),
            hasher: RandomState::new(),
            open: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Returns the maximum number of bytes of one user's open local copies.
    pub(super) fn share(&self) -> u64 {
        let device = rustix::fs::statvfs(&self.directory);
        device.map_or(u64::MAX, |device| {
            device.f_blocks.saturating_mul(device.f_frsize) / SHARE_OF_OTHERS as u64
        })
    }

    /// Drops kept local copies that no program has open.
    fn forget(&self) {
        self.kept.lock().clear();
    }

    /// Returns the local copy of the file that is open as `handle`, which all openers of the same version share. If there is no copy,
    /// fetches it, into a spool file if it may be written asynchronously. A spool file survives the end of any process.
    pub(super) fn of(
        &self,
        id: Id,
        mtime: i64,
        spool: Option<(&Spool, SpoolRecord)>,
        fetch: impl Fn(u64, usize) -> Result<Vec<u8>, Error>,
    ) -> Result<Arc<LocalFile>, Error> {
        let place = self.open.lock().entry(id).or_default().clone();
        let mut place = place.lock();
        if let Some(copy) = place.upgrade() {
            return Ok(copy);
        }
        let (made, file) = match spool {
            Some((spool, record)) => {
                let (record, file) = spool.make(record)?;
                (Some((spool, record)), file)
            }
            None => (None, self.nameless(id.0)?),
        };
        let fetched = match self.fetched(&file, mtime, &fetch) {
            Err(error) if error.is(Errno::NOSPC) => {
                self.forget();
                self.fetched(&file, mtime, &fetch)
            }
            fetched => fetched,
        };
        let kept = fetched.and_then(|known| match &made {
            Some((spool, record)) => Ok(spool.keep(record).map(|()| known)?),
            None => Ok(known),
        });
        let known = kept.inspect_err(|_| {
            if let Some((spool, record)) = &made {
                spool.remove(record.number);
            }
        })?;
        let copy = Arc::new(LocalFile {
            file,
            known: Mutex::new(known),
            spooled: Mutex::new(Spooled {
                users: 0,
                record: made.map(|(_, record)| record),
            }),
        });
        *place = Arc::downgrade(&copy);
        Ok(copy)
    }

    fn nameless(&self, ino: u64) -> Result<File, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(format!("{ino}-{number}"));
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
    ) -> Result<KnownContent, Error> {
        let mut known = KnownContent::default();
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

    /// Makes later opens get another local copy, because the current copy may still have a writer.
    pub(super) fn let_go(&self, id: Id) {
        self.open.lock().remove(&id);
        self.kept.lock().retain(|(other, _)| *other != id);
    }

    /// Records that no program has the local copy open any more. A copy of a sealed version may be used again.
    pub(super) fn closed(&self, id: Id, copy: Arc<LocalFile>, keep: bool) {
        let size = |copy: &LocalFile| copy.file.metadata().map_or(0, |stat| stat.len());
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

    /// Writes the changes of the local copy to the version that is open as `handle`.
    pub(super) fn hand_over(
        &self,
        fs: &Fs,
        (caller, key, handle): (Caller, InodeKey, u64),
        copy: &LocalFile,
    ) -> Result<(), Error> {
        let mut known = copy.known.lock();
        let stat = copy.file.metadata()?;
        let at = (stat.ctime(), stat.ctime_nsec());
        if known.changed == Some(at) && known.size == stat.len() {
            return Ok(());
        }
        let now = settled(&copy.file, self.grain)?;
        // Until all bytes are transferred, the state is unknown.
        known.changed = None;
        let size = stat.len();
        let cut = |size| {
            let changes = AttributeChanges {
                size: Some(size),
                ..AttributeChanges::default()
            };
            fs.setattr(caller, key, changes, WaitPolicy::MayWait)
                .map(drop)
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
                fs.write(handle, offset, bytes, WaitPolicy::MayWait)?;
                written = written.max(offset + bytes.len() as u64);
                if known.hashes.len() <= block {
                    // A hole: 0 is the hash of a block that was never compared.
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

impl LocalFile {
    /// Returns a local copy for a spool file whose bytes no version has.
    pub(super) fn taken_up(file: File, record: SpoolRecord) -> Self {
        Self {
            file,
            known: Mutex::default(),
            spooled: Mutex::new(Spooled {
                users: 1,
                record: Some(record),
            }),
        }
    }

    /// Moves the spool file to a local copy of its own, whose bytes no version has.
    pub(super) fn start_over(&self) -> Option<Arc<Self>> {
        let file = self.file.try_clone().ok()?;
        let record = self.spooled.lock().record.take()?;
        Some(Arc::new(Self::taken_up(file, record)))
    }

    /// Records that a version was begun for the bytes of a spool file. The version has none of the bytes yet.
    pub(super) fn begins(&self, object: u64, spool: &Spool) -> Result<(), Error> {
        *self.known.lock() = KnownContent::default();
        if let Some(record) = &mut self.spooled.lock().record {
            record.follows.push(object);
            spool.keep(record)?;
        }
        Ok(())
    }

    /// Counts another opener.
    pub(super) fn enter(&self) {
        self.spooled.lock().users += 1;
    }

    /// Records that an opener has closed the local copy, or that it is sealed. An unused file is removed from the spool.
    pub(super) fn leave(&self, spool: &Spool) {
        let mut spooled = self.spooled.lock();
        spooled.users = spooled.users.saturating_sub(1);
        if spooled.users == 0
            && let Some(record) = spooled.record.take()
        {
            spool.remove(record.number);
        }
    }

    /// Returns the record of the spool file; `None` if the local copy does not survive the end of this process.
    pub(super) fn record(&self) -> Option<SpoolRecord> {
        self.spooled.lock().record.clone()
    }

    /// Whether the local copy was changed since its last transfer.
    pub(super) fn has_changed(&self) -> bool {
        let known = self.known.lock();
        self.file.metadata().is_ok_and(|stat| {
            known.changed != Some((stat.ctime(), stat.ctime_nsec())) || known.size != stat.len()
        })
    }
}

/// Whether two successive changes of a file always have different times, if the time was read in between.
fn is_fine(directory: &std::path::Path) -> bool {
    let path = directory.join("clock");
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

/// Sets the mtime of a local copy, in nanoseconds since the Unix epoch.
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

/// Returns the time of a file's last change, if every later change will have another time.
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

/// Returns the offset of the first block at or after `at` that is not a hole.
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
