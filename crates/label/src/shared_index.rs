//! Index of the files that a user's applications on this host have put and that are not stored yet, which makes the files visible to all of
//! these applications at once. The shared index is a file that the applications map.
//!
//! The index is a table in shared memory: for each path the log and the record with the bytes of the put. The bytes are not copied into the
//! table. An entry exists from the publication of its record until the file is closed; a reader that finds no entry reads the file. One
//! process at a time changes an entry, and marks the change by an odd `turn`. A process that is killed during a change leaves an unusable
//! entry, which the agent frees.

use crate::app::PUT;
use crate::directory::LOG;
use crate::error::Error;
use crate::log::{self, Log, LogRecord, MappedMemory, RecordStatus, RequestKind};
use rustix::thread::futex;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const NAME: &str = "shared-index";
const PAGE: usize = 4096;
const HEAD: usize = 2 * PAGE;
/// Number of entries of the table, and number of entries that each path can use.
const ENTRIES: usize = 4096;
const WAYS: usize = 8;
const BUCKETS: usize = ENTRIES / WAYS;
const NAME_WORDS: usize = 13;
/// Maximum number of other applications' logs that stay mapped.
const LOGS_MAX: usize = 8;

#[repr(C)]
struct BoardHead {
    /// Counter that changes with each put, and number of threads that wait for a put.
    puts: AtomicU32,
    waiters: AtomicU32,
}

/// Puts that found no free entry in a bucket: number of puts whose storing began, and number of puts whose storing ended.
#[repr(C)]
struct Unseen {
    begun: AtomicU32,
    ended: AtomicU32,
}

#[repr(C)]
struct BoardEntry {
    /// Sequence number that is odd during a change of the entry.
    turn: AtomicU64,
    /// Hash of the path of the file; 0 if the entry is free.
    hash: AtomicU64,
    /// Position of the put's record in its log.
    at: AtomicU64,
    /// Name of the log's file, padded with zeros.
    name: [AtomicU64; NAME_WORDS],
}

const _: () = assert!(size_of::<BoardEntry>() == 128 && size_of::<Unseen>() * BUCKETS <= PAGE);

/// Copy of an entry's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot {
    turn: u64,
    hash: u64,
    at: u64,
    name: [u64; NAME_WORDS],
}

pub(crate) struct SharedIndex {
    map: MappedMemory,
    directory: PathBuf,
    logs: Mutex<HashMap<[u64; NAME_WORDS], Arc<Log>>>,
}

impl std::fmt::Debug for SharedIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedIndex")
            .field("in", &self.directory)
            .finish()
    }
}

/// Returns the hash of a path below a root, which is the same in all builds of the library.
pub(crate) fn hash(root: &Path, path: &[u8]) -> u64 {
    let bytes = root.as_os_str().as_bytes().iter().chain(&[0]).chain(path);
    let mixed = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Its low bits alone choose the bucket.
    (mixed ^ mixed >> 32) | 1
}

fn bucket(hash: u64) -> usize {
    usize::try_from(hash >> 1).unwrap_or(0) % BUCKETS
}

fn words(name: &[u8]) -> Option<[u64; NAME_WORDS]> {
    let mut words = [0; NAME_WORDS];
    if name.len() > NAME_WORDS * 8 {
        return None;
    }
    for (word, bytes) in words.iter_mut().zip(name.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    Some(words)
}

fn name(words: &[u64; NAME_WORDS]) -> Option<String> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = bytes.split(|&byte| byte == 0).next()?;
    let name = String::from_utf8(text.to_vec()).ok()?;
    // The memory may contain any bytes: the name must not lead out of the directory.
    let is_log = Path::new(&name).extension().is_some_and(|end| end == LOG);
    (is_log && !name.contains('/')).then_some(name)
}

impl SharedIndex {
    /// Opens the shared index of a directory of logs. The function does not trust the content of the file: readers check each entry.
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(NAME);
        let at = |source: std::io::Error| Error::Log {
            path: path.clone(),
            source,
        };
        let mut how = File::options();
        let how = how.read(true).write(true).create(true).truncate(false);
        let file = how.open(&path).map_err(at)?;
        let bytes = HEAD + ENTRIES * size_of::<BoardEntry>();
        let all = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, all, 0, bytes as u64).map_err(|errno| at(errno.into()))?;
        Ok(Self {
            map: MappedMemory::of(&file, bytes, true).map_err(at)?,
            directory: directory.to_owned(),
            logs: Mutex::default(),
        })
    }

    fn head(&self) -> &BoardHead {
        // SAFETY: mapped for as long as this lives, aligned, and all of it is atomic.
        unsafe { &*self.map.base().cast::<BoardHead>() }
    }

    fn entries(&self) -> &[BoardEntry] {
        // SAFETY: as above, after the head.
        unsafe {
            std::slice::from_raw_parts(self.map.base().add(HEAD).cast::<BoardEntry>(), ENTRIES)
        }
    }

    fn ways(&self, hash: u64) -> &[BoardEntry] {
        let place = bucket(hash) * WAYS;
        &self.entries()[place..place + WAYS]
    }

    fn unseen(&self, hash: u64) -> &Unseen {
        // SAFETY: as above, in the page between head and entries.
        unsafe { &*self.map.base().add(PAGE).cast::<Unseen>().add(bucket(hash)) }
    }

    /// Returns a number that changes whenever a put of a path with this hash begins or is stored; `None` if a put without an entry that may
    /// have this path is being stored now.
    pub(crate) fn mark(&self, hash: u64) -> Option<u64> {
        let unseen = self.unseen(hash);
        let begun = unseen.begun.load(Ordering::SeqCst);
        let turns = self
            .ways(hash)
            .iter()
            .map(|way| way.turn.load(Ordering::SeqCst));
        let sum = turns.fold(u64::from(begun), u64::wrapping_add);
        (unseen.ended.load(Ordering::SeqCst) == begun).then_some(sum)
    }

    /// Records that the storing of a put without an entry begins, until [`Self::ends_unseen`].
    pub(crate) fn begins_unseen(&self, hash: u64) {
        self.unseen(hash).begun.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn ends_unseen(&self, hash: u64) {
        self.unseen(hash).ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that no put without an entry is being stored, for an agent that starts.
    pub(crate) fn forget_unseen(&self) {
        for bucket in 0..BUCKETS {
            let unseen = self.unseen((bucket as u64) << 1);
            let begun = unseen.begun.load(Ordering::SeqCst);
            unseen.ended.store(begun, Ordering::SeqCst);
        }
    }

    /// Returns the log that an entry names, if the log exists.
    fn log(&self, words: &[u64; NAME_WORDS]) -> Option<Arc<Log>> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = logs.get(words) {
            return Some(log.clone());
        }
        let log = Arc::new(Log::look(&self.directory.join(name(words)?)).ok()?);
        if logs.len() >= LOGS_MAX {
            logs.clear();
        }
        logs.retain(|_, log| !log.is_removed());
        logs.insert(*words, log.clone());
        Some(log)
    }

    /// Makes a record's put visible, if it is not visible yet. Returns false if no entry is free, or another application has just put it.
    pub(crate) fn put(&self, log: &Log, hash: u64, at: u64) -> bool {
        let Some(own) = file_of(log) else {
            return false;
        };
        loop {
            let snapshot: Vec<_> = self.ways(hash).iter().map(BoardEntry::snapshot).collect();
            let of = |wanted: u64| {
                let is = |it: &Option<Snapshot>| it.is_some_and(|it| it.hash == wanted);
                snapshot.iter().position(is)
            };
            let way = of(hash).or_else(|| of(0)).or_else(|| self.stale(&snapshot));
            let Some((way, before)) = way.and_then(|way| Some((way, snapshot[way]?))) else {
                return false;
            };
            if before.hash == hash {
                let same = before.name == own;
                if same && before.at >= at {
                    return true;
                }
                if !same && self.is_live(&before) {
                    return false;
                }
            }
            if self.ways(hash)[way].change(before.turn, (hash, at, &own)) {
                self.puts_more();
                return true;
            }
        }
    }

    fn puts_more(&self) {
        let head = self.head();
        head.puts.fetch_add(1, Ordering::SeqCst);
        if head.waiters.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&head.puts, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Whether another application has put the same file and the put is not stored yet. If so, the storing of that put is hurried.
    pub(crate) fn is_others(&self, log: &Log, hash: u64) -> bool {
        let own = file_of(log);
        let snapshot = self.ways(hash).iter().filter_map(BoardEntry::snapshot);
        let others = |it: &Snapshot| it.hash == hash && Some(it.name) != own && self.is_live(it);
        let Some(snapshot) = snapshot.into_iter().find(others) else {
            return false;
        };
        if let Some(log) = self.log(&snapshot.name)
            && let Some(record) = put_at(&log, snapshot.at)
        {
            log.want(record.id);
        }
        true
    }

    /// Returns the index of an outdated entry that no process has freed.
    fn stale(&self, snapshot: &[Option<Snapshot>]) -> Option<usize> {
        let stale = |it: &Option<Snapshot>| it.is_some_and(|it| !self.is_live(&it));
        snapshot.iter().position(stale)
    }

    /// Whether a reader may still find a put through the entry.
    fn is_live(&self, snapshot: &Snapshot) -> bool {
        let log = self.log(&snapshot.name);
        log.is_some_and(|log| {
            !log.is_removed() && log.freed() <= snapshot.at && put_at(&log, snapshot.at).is_some()
        })
    }

    /// Removes the entry of a put that is stored or failed, so that readers read the file from now on.
    pub(crate) fn remove(&self, log: &Log, hash: u64, at: u64) {
        let own = file_of(log);
        let same = |it: &Snapshot| it.hash == hash && it.at == at && Some(it.name) == own;
        for way in self.ways(hash) {
            if let Some(snapshot) = way.snapshot().filter(same) {
                way.change(snapshot.turn, (0, 0, &[0; NAME_WORDS]));
            }
        }
    }

    /// Passes the bytes of an unstored put to `take`; returns `None` if there is no such put, or if it ended during the call.
    pub(crate) fn get<T>(
        &self,
        (root, path): (&Path, &[u8]),
        hash: u64,
        take: impl Fn(&[u8]) -> T,
    ) -> Option<T> {
        for way in self.ways(hash) {
            let Some(snapshot) = way.snapshot().filter(|it| it.hash == hash) else {
                continue;
            };
            let Some(log) = self.log(&snapshot.name) else {
                continue;
            };
            let Some(record) = put_at(&log, snapshot.at) else {
                continue;
            };
            if log.root().0 != root || log.paths(&record) != path {
                continue;
            }
            let taken = take(log.data(&record));
            // A place is freed, and so written again, only after its entry is removed.
            std::sync::atomic::fence(Ordering::Acquire);
            if way.snapshot() == Some(snapshot) && log.freed() <= snapshot.at {
                return Some(taken);
            }
        }
        None
    }

    /// Returns the counter that changes with each put.
    pub(crate) fn puts(&self) -> u32 {
        self.head().puts.load(Ordering::SeqCst)
    }

    /// Waits until a put happens after `puts` was read, or another process wakes the waiters.
    pub(crate) fn wait(&self, puts: u32, limit: Duration) {
        let head = self.head();
        head.waiters.fetch_add(1, Ordering::SeqCst);
        log::wait(&head.puts, puts, limit);
        head.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the indices of the entries that are being changed, with their sequence numbers.
    pub(crate) fn changing(&self) -> Vec<(usize, u64)> {
        let turns = self
            .entries()
            .iter()
            .map(|entry| entry.turn.load(Ordering::Acquire));
        turns
            .enumerate()
            .filter(|(_, turn)| turn % 2 == 1)
            .collect()
    }

    /// Frees entries whose change has taken too long.
    pub(crate) fn repair<'a>(&self, stuck: impl IntoIterator<Item = &'a (usize, u64)>) {
        for &(at, turn) in stuck {
            let entry = &self.entries()[at];
            if entry.turn.load(Ordering::Acquire) == turn {
                entry.hash.store(0, Ordering::Relaxed);
                let (now, then) = (turn, turn.wrapping_add(1));
                let _ = entry
                    .turn
                    .compare_exchange(now, then, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

fn file_of(log: &Log) -> Option<[u64; NAME_WORDS]> {
    words(log.path().file_name()?.as_bytes())
}

/// Returns the record of a put at a position of a log, if the put is not stored yet.
fn put_at(log: &Log, at: u64) -> Option<LogRecord> {
    let record = log.record(at).ok()?;
    let counts = record.kind == RequestKind::Write && record.flags & PUT != 0;
    let failed = [RecordStatus::Cancelled, RecordStatus::Failed].contains(&log.status(at).0);
    (counts && !failed).then_some(record)
}

impl BoardEntry {
    /// Returns a copy of the entry's content; `None` if the entry is being changed.
    fn snapshot(&self) -> Option<Snapshot> {
        let turn = self.turn.load(Ordering::Acquire);
        let mut name = [0; NAME_WORDS];
        for (word, there) in name.iter_mut().zip(&self.name) {
            *word = there.load(Ordering::Relaxed);
        }
        let (hash, at) = (
            self.hash.load(Ordering::Relaxed),
            self.at.load(Ordering::Relaxed),
        );
        std::sync::atomic::fence(Ordering::Acquire);
        let same = self.turn.load(Ordering::Relaxed) == turn && turn.is_multiple_of(2);
        same.then_some(Snapshot {
            turn,
            hash,
            at,
            name,
        })
    }

    /// Changes the entry, unless it was changed since its sequence number was `turn`. Returns whether it changed.
    fn change(&self, turn: u64, (hash, at, name): (u64, u64, &[u64; NAME_WORDS])) -> bool {
        let mine = turn.wrapping_add(1);
        let has = self
            .turn
            .compare_exchange(turn, mine, Ordering::AcqRel, Ordering::Relaxed);
        if has.is_err() {
            return false;
        }
        std::sync::atomic::fence(Ordering::Release);
        self.hash.store(hash, Ordering::Relaxed);
        self.at.store(at, Ordering::Relaxed);
        for (there, word) in self.name.iter().zip(name) {
            there.store(*word, Ordering::Relaxed);
        }
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
        true
    }
}
