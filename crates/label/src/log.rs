//! The log of an application: a file that both the application and the agent map. So the application publishes a label by a copy in memory,
//! and published labels outlive both processes (next: `label/src/agent.rs`).
//!
//! The log is a header page, then a ring of records. The application appends records and moves `head`, which alone publishes the records.
//! The agent settles a record by a final status. The application moves `tail` over settled records whose outcome is not needed any more. No
//! record crosses the end of the ring: a filler record takes the remaining space.

use crate::app::{DURABLE, IF_DONE, IF_FAILED, PART};
use crate::directory::lies_at;
use crate::error::Error;
use crate::intent::Intent;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"tidelbl1");
const RECORD: u32 = u32::from_le_bytes(*b"labl");
/// Size in bytes of the header before the ring.
pub(crate) const HEADER: u64 = 4096;
/// Alignment of records in bytes, which is also the size of a record's head.
pub(crate) const ALIGN: u64 = 64;
/// Maximum length of an application's name, in bytes.
pub(crate) const NAME_MAX: usize = 128;
/// Size in bytes from which the data of a durable label is written directly from the log, in whole pages.
pub(crate) const DIRECT_MIN: u64 = 256 << 10;
pub(crate) const PAGE: u64 = 4096;
/// Minimum and maximum size of the ring, in bytes.
pub(crate) const CAPACITY_MIN: u64 = 1 << 16;
pub(crate) const CAPACITY_MAX: u64 = 1 << 36;
/// Maximum total length of the paths of a label, in bytes.
pub(crate) const PATHS_MAX: usize = 8 << 10;

/// How the agent sleeps: until a label is published, or while it gathers several labels.
const ASLEEP: u32 = 1;
const GATHERING: u32 = 2;

/// Status of a record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RecordStatus {
    Pending,
    Running,
    Done,
    Failed,
    Cancelled,
    /// The record is running, but the application has cancelled it: the agent stops it if possible.
    Stopping,
}

impl RecordStatus {
    fn of(number: u32) -> Self {
        match number {
            0 => Self::Pending,
            1 => Self::Running,
            2 => Self::Done,
            4 => Self::Cancelled,
            5 => Self::Stopping,
            _ => Self::Failed,
        }
    }

    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum RequestKind {
    /// The record is no request: it fills the end of the ring.
    Filler,
    Write,
    Append,
    Read,
    Delete,
    Move,
    /// The record has no effect; it orders the labels before it and after it.
    Fence,
    /// The record is a job of the cluster: `offset` bytes of script, then space for the result. The record's paths are those of [`Paths`].
    Analyse,
    Copy,
    /// The record waits for file events: at most `offset` of them, or for 0 as many as fit. The record's paths are a pattern and a cursor.
    Await,
}

impl RequestKind {
    fn of(number: u16) -> Option<Self> {
        [
            Self::Filler,
            Self::Write,
            Self::Append,
            Self::Read,
            Self::Delete,
            Self::Move,
            Self::Fence,
            Self::Analyse,
            Self::Copy,
            Self::Await,
        ]
        .into_iter()
        .find(|kind| *kind as u16 == number)
    }

    /// Whether a record of this kind has bytes for the agent after its paths.
    pub(crate) fn carries(self) -> bool {
        matches!(self, Self::Write | Self::Append | Self::Analyse)
    }
}

#[repr(C)]
struct LogHead {
    magic: AtomicU64,
    capacity: AtomicU64,
    /// Number of bytes published, and number of bytes freed, since the log was created.
    head: AtomicU64,
    tail: AtomicU64,
    /// Id up to which all labels are in closed files, or have failed.
    stored: AtomicU64,
    /// Id up to which a call waits until all labels are stored.
    wanted: AtomicU64,
    /// Counter that changes whenever a label is settled, and the number of threads that wait for a change.
    settled: AtomicU32,
    waiters: AtomicU32,
    /// Counter that changes whenever a label is published or wanted, and whether the agent sleeps.
    bell: AtomicU32,
    asleep: AtomicU32,
    pid: AtomicU32,
    umask: AtomicU32,
    failed: AtomicU64,
    bytes: AtomicU64,
    labels: AtomicU64,
    /// Boot id of the boot in which the log was created: memory that was not written to its device is lost with the boot.
    boot: [AtomicU64; 2],
    /// Type of the file system that contains the labels' paths, as in `statfs`.
    system: AtomicU64,
    name_length: AtomicU64,
    root_length: AtomicU64,
    /// QoS goal of the application.
    intent: AtomicU32,
    /// Id up to which a call waits until all labels are done.
    hurried: AtomicU64,
    /// Position of `head` at which a gathering agent is woken.
    enough: AtomicU64,
    /// Not 0 if a process that knows the log's name may resume the log, so that the log is kept for a while after its application ended.
    keyed: AtomicU32,
    /// Energy of the kernel runs of the application's jobs, as in [`Drew`].
    microjoules: AtomicU64,
    runs: AtomicU64,
    unknown: AtomicU64,
}

/// Energy that kernel runs used above the idle power of their nodes, as the cluster estimates it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drew {
    /// Energy of the runs with a known value, in microjoules.
    pub microjoules: u64,
    /// Number of the runs with a known value.
    pub runs: u64,
    /// Number of the runs without a known value.
    pub unknown: u64,
}

#[repr(C)]
struct RecordHead {
    magic: u32,
    kind: u16,
    flags: u16,
    length: u64,
    id: u64,
    after: u64,
    offset: u64,
    size: u64,
    paths: u32,
    status: AtomicU32,
    value: AtomicU64,
}

const _: () = assert!(size_of::<RecordHead>() == 64 && size_of::<LogHead>() <= NAME_AT);
const NAME_AT: usize = 512;
const ROOT_AT: usize = 1024;
/// Maximum length in bytes of the path of the directory that contains all paths of the labels.
pub(crate) const ROOT_MAX: usize = 3072;

/// Mapping of a file that several processes map.
pub(crate) struct MappedMemory {
    base: *mut u8,
    length: usize,
}

// SAFETY: all shared data in it is atomic, or is published by an atomic.
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Maps the first `length` bytes of a file, which must be at least that long. With `now` all pages are mapped at once.
    pub(crate) fn of(file: &File, length: usize, now: bool) -> std::io::Result<Self> {
        let pages = if now {
            MapFlags::POPULATE
        } else {
            MapFlags::empty()
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let how = MapFlags::SHARED | pages;
        // SAFETY: a new mapping, of a file that has this length.
        let base = unsafe { mmap(std::ptr::null_mut(), length, protection, how, file, 0) };
        let base = base?.cast();
        Ok(Self { base, length })
    }

    /// Returns the address of the first byte of the mapping.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `mmap` returned, and no reference into it exists any more.
        let _ = unsafe { munmap(self.base.cast(), self.length) };
    }
}

/// Request of a record, as it is appended to the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRequest<'a> {
    pub(crate) kind: RequestKind,
    pub(crate) flags: u16,
    pub(crate) status: RecordStatus,
    pub(crate) id: u64,
    /// Position plus one of the last record of the label that has to be settled before this record runs; 0 if there is no such label.
    pub(crate) after: u64,
    pub(crate) offset: u64,
    /// Number of bytes to write or to read.
    pub(crate) size: u64,
    /// One path, or two paths with a zero between them.
    pub(crate) paths: &'a [u8],
}

/// Options of a new log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) capacity: u64,
    pub(crate) intent: Intent,
    /// Umask of the application; by default the umask of the process.
    pub(crate) umask: Option<u32>,
    pub(crate) keyed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRecord {
    /// Position of the record in bytes since the log was created.
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) kind: RequestKind,
    pub(crate) flags: u16,
    pub(crate) id: u64,
    pub(crate) after: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// Whether an earlier agent began the record and did not end it.
    pub(crate) again: bool,
    paths: u32,
}

impl LogRecord {
    pub(crate) fn begun_again(self, again: bool) -> Self {
        Self { again, ..self }
    }

    /// Whether the record runs alone: all labels before it are done before it begins, and all labels after it begin after it is done.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(
            self.kind,
            RequestKind::Delete | RequestKind::Move | RequestKind::Copy | RequestKind::Fence
        )
    }

    /// Whether the cluster, not the agent, carries out the record.
    pub(crate) fn is_job(&self) -> bool {
        self.kind == RequestKind::Analyse
    }

    /// Whether the agent only waits for the actions of other clients.
    pub(crate) fn is_await(&self) -> bool {
        self.kind == RequestKind::Await
    }

    /// Whether the record may run at the same time as other records from this position on.
    pub(crate) fn is_free_from(&self, at: u64) -> bool {
        self.flags & PART != 0 || self.after <= at
    }

    /// Returns the value of `after` for records that depend on this record.
    pub(crate) fn as_after(&self) -> u64 {
        self.at + 1
    }

    /// Returns the number of bytes that the application added to the record.
    fn given(&self) -> usize {
        let given = match self.kind {
            RequestKind::Analyse => self.offset,
            _ => self.size,
        };
        usize::try_from(given).unwrap_or(usize::MAX)
    }
}

/// The mapped log of an application.
pub(crate) struct Log {
    map: MappedMemory,
    file: File,
    path: PathBuf,
    capacity: u64,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("path", &self.path).finish()
    }
}

/// Returns the id of the host's current boot.
fn boot() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |range| {
        let digits = digits.get(range).unwrap_or("0");
        u64::from_str_radix(digits, 16).unwrap_or(0)
    };
    [half(0..16), half(16..32)]
}

/// Returns the number of bytes in a record before its data or its answer.
fn lead_of(paths: usize) -> u64 {
    ALIGN + (paths as u64).next_multiple_of(ALIGN)
}

/// Returns the length in bytes of a record.
pub(crate) fn length_of(paths: usize, size: u64) -> u64 {
    lead_of(paths) + size.next_multiple_of(ALIGN)
}

impl Log {
    /// Creates the log of an application and locks the log for as long as the application has it open. `path` must not exist.
    pub(crate) fn make(
        path: &Path,
        name: &str,
        (root, system): (&Path, u64),
        Terms {
            capacity,
            intent,
            umask,
            keyed,
        }: Terms,
    ) -> Result<Self, Error> {
        let at = |source: std::io::Error| Error::Log {
            path: path.to_owned(),
            source,
        };
        let capacity = capacity.clamp(CAPACITY_MIN, CAPACITY_MAX);
        let capacity = capacity.next_multiple_of(HEADER);
        // Under another name first: the agent never sees half a log.
        let begun = path.with_extension("new");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&begun)
            .map_err(at)?;
        // All of it now: a write to memory of a file whose device is full ends the program.
        let made = rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            HEADER + capacity,
        );
        let made = made.and_then(|()| flock(&file, FlockOperation::NonBlockingLockExclusive));
        let log = made
            .map_err(|errno| at(errno.into()))
            .and_then(|()| Self::map(file, path, HEADER + capacity, true));
        let log = log.and_then(|log| {
            log.head().intent.store(intent as u32, Ordering::Relaxed);
            log.head().keyed.store(keyed.into(), Ordering::Relaxed);
            let umask = umask.unwrap_or_else(self::umask);
            log.head().umask.store(umask & 0o777, Ordering::Relaxed);
            log.begin(name, (root, system), capacity);
            std::fs::rename(&begun, path).map_err(at)?;
            Ok(log)
        });
        if log.is_err() {
            let _ = std::fs::remove_file(&begun);
        }
        log
    }

    fn begin(&self, name: &str, (root, system): (&Path, u64), capacity: u64) {
        let head = self.head();
        head.capacity.store(capacity, Ordering::Relaxed);
        head.pid.store(std::process::id(), Ordering::Relaxed);
        for (place, half) in head.boot.iter().zip(boot()) {
            place.store(half, Ordering::Relaxed);
        }
        head.system.store(system, Ordering::Relaxed);
        let (name, root) = (name.as_bytes(), root.as_os_str().as_bytes());
        let texts = [
            (name, &head.name_length, NAME_AT, NAME_MAX),
            (root, &head.root_length, ROOT_AT, ROOT_MAX),
        ];
        for (text, length, at, max) in texts {
            let text = &text[..text.len().min(max)];
            length.store(text.len() as u64, Ordering::Relaxed);
            // SAFETY: within the header page, which no other process has yet.
            unsafe {
                let place = self.map.base.add(at);
                std::ptr::copy_nonoverlapping(text.as_ptr(), place, text.len());
            }
        }
        head.magic.store(MAGIC, Ordering::Release);
    }

    /// Resumes the log of an ended application and locks it; `None` if another process has locked the log or is removing it.
    pub(crate) fn take_up(path: &Path) -> Result<Option<Self>, Error> {
        let log = Self::open(path)?;
        if !log.is_keyed() || !log.is_of_this_boot() || !log.lock() {
            return Ok(None);
        }
        // Its name is removed with the lock held.
        if !log.is_at_its_path() {
            return Ok(None);
        }
        log.head().pid.store(std::process::id(), Ordering::Relaxed);
        Ok(Some(log))
    }

    /// Whether the log is still the file at its path; the directory may have been removed and created again.
    pub(crate) fn is_at_its_path(&self) -> bool {
        lies_at(&self.file, self.path())
    }

    /// Locks the log, unless another process has locked it. Returns whether the log is locked.
    pub(crate) fn lock(&self) -> bool {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    pub(crate) fn is_keyed(&self) -> bool {
        self.head().keyed.load(Ordering::Relaxed) != 0
    }

    /// Opens the log of another process, to carry out its records.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Self::of_other(path, true)
    }

    /// Opens the log of another process, to read its counters.
    pub(crate) fn look(path: &Path) -> Result<Self, Error> {
        Self::of_other(path, false)
    }

    fn of_other(path: &Path, now: bool) -> Result<Self, Error> {
        let at = |source: std::io::Error| Error::Log {
            path: path.to_owned(),
            source,
        };
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .map_err(at)?;
        let length = file.metadata().map_err(at)?.len();
        if !(HEADER + CAPACITY_MIN..=HEADER + CAPACITY_MAX).contains(&length) {
            return Err(Error::corrupt(path, "its length is not that of a log"));
        }
        let log = Self::map(file, path, length, now)?;
        let head = log.head();
        if head.magic.load(Ordering::Acquire) != MAGIC
            || head.capacity.load(Ordering::Relaxed) != length - HEADER
        {
            return Err(Error::corrupt(path, "its header is not that of a log"));
        }
        Ok(log)
    }

    /// Maps the file of a log. With `now` all pages are mapped at once, so that publishing does not wait for page faults.
    fn map(file: File, path: &Path, length: u64, now: bool) -> Result<Self, Error> {
        let at = |source: std::io::Error| Error::Log {
            path: path.to_owned(),
            source,
        };
        let bytes = usize::try_from(length).map_err(|_| at(Errno::NOMEM.into()))?;
        Ok(Self {
            map: MappedMemory::of(&file, bytes, now).map_err(at)?,
            file,
            path: path.to_owned(),
            capacity: length - HEADER,
        })
    }

    fn head(&self) -> &LogHead {
        // SAFETY: the header page is mapped for as long as this lives, is aligned, and all of it is atomic.
        unsafe { &*self.map.base.cast::<LogHead>() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn pid(&self) -> u32 {
        self.head().pid.load(Ordering::Relaxed)
    }

    pub(crate) fn umask(&self) -> u32 {
        self.head().umask.load(Ordering::Relaxed)
    }

    fn text(&self, length: &AtomicU64, at: usize, max: usize) -> &[u8] {
        let length = usize::try_from(length.load(Ordering::Relaxed)).unwrap_or(0);
        // SAFETY: within the header page; written before the log got its name, and never again.
        unsafe { std::slice::from_raw_parts(self.map.base.add(at), length.min(max)) }
    }

    pub(crate) fn name(&self) -> String {
        let name = self.text(&self.head().name_length, NAME_AT, NAME_MAX);
        String::from_utf8_lossy(name).into_owned()
    }

    /// Returns the directory that the labels' paths are relative to, and the type of its file system.
    pub(crate) fn root(&self) -> (&Path, u64) {
        let head = self.head();
        let root = self.text(&head.root_length, ROOT_AT, ROOT_MAX);
        let root = Path::new(std::ffi::OsStr::from_bytes(root));
        (root, head.system.load(Ordering::Relaxed))
    }

    pub(crate) fn intent(&self) -> Intent {
        Intent::of(self.head().intent.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Whether the log was created since the last start of the host.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        let made = &self.head().boot;
        let made = [&made[0], &made[1]].map(|half| half.load(Ordering::Relaxed));
        made == boot()
    }

    /// Whether the file of the log is deleted.
    pub(crate) fn is_removed(&self) -> bool {
        self.file.metadata().map_or(true, |file| file.nlink() == 0)
    }

    /// Whether the application of the log has ended.
    pub(crate) fn is_left(&self) -> bool {
        let left = flock(&self.file, FlockOperation::NonBlockingLockShared).is_ok();
        if left {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
        left
    }

    fn place(&self, at: u64, offset: u64) -> *mut u8 {
        let place = HEADER + at % self.capacity + offset;
        debug_assert!(place <= HEADER + self.capacity);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "less than the length of the mapping, a usize"
        )]
        let place = place as usize;
        // SAFETY: within the mapping.
        unsafe { self.map.base.add(place) }
    }

    fn record_head(&self, at: u64) -> *mut RecordHead {
        self.place(at, 0).cast()
    }

    pub(crate) fn published(&self) -> u64 {
        self.head().head.load(Ordering::Acquire)
    }

    pub(crate) fn freed(&self) -> u64 {
        self.head().tail.load(Ordering::Acquire)
    }

    /// Frees the space of the ring before `to`. Only the application calls this function, or the agent after the application has ended.
    pub(crate) fn free(&self, to: u64) {
        self.head().tail.store(to, Ordering::Release);
    }

    /// Returns the number of bytes to skip after the last record before a new record, if the ring has space for both.
    pub(crate) fn space(&self, asked: &LogRequest<'_>) -> Option<u64> {
        let (head, tail) = (self.published(), self.freed());
        let (lead, length) = (lead_of(asked.paths.len()), asked.length());
        let begin = |at: u64| match asked.is_direct() {
            // The bytes of direct I/O fill whole pages.
            true => (at + lead).next_multiple_of(PAGE) - lead,
            false => at,
        };
        let end = head - head % self.capacity + self.capacity;
        let mut at = begin(head);
        if at + length > end {
            at = begin(end);
        }
        (at + length - tail <= self.capacity).then_some(at - head)
    }

    /// Appends a record and publishes it, after skipping `left_out` bytes, the result of [`Self::space`]. Returns its position.
    pub(crate) fn append(&self, asked: &LogRequest<'_>, bytes: &[u8], left_out: u64) -> u64 {
        let head = self.published();
        let (at, length) = (head + left_out, asked.length());
        let end = head - head % self.capacity + self.capacity;
        for (from, to) in [(head, at.min(end)), (at.min(end), at)] {
            if from < to {
                self.write_head(from, to - from, &LogRequest::filler());
            }
        }
        self.write_head(at, length, asked);
        let paths = asked.paths;
        // SAFETY: the caller has checked that there is space for the record, so no process reads there.
        unsafe {
            let place = self.place(at, ALIGN);
            std::ptr::copy_nonoverlapping(paths.as_ptr(), place, paths.len());
            let place = self.place(at, lead_of(paths.len()));
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
        let header = self.head();
        header.labels.fetch_add(1, Ordering::Relaxed);
        header
            .bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        header.head.store(at + length, Ordering::Release);
        at
    }

    fn write_head(&self, at: u64, length: u64, asked: &LogRequest<'_>) {
        let head = RecordHead {
            magic: RECORD,
            kind: asked.kind as u16,
            flags: asked.flags,
            length,
            id: asked.id,
            after: asked.after,
            offset: asked.offset,
            size: asked.size,
            #[expect(clippy::cast_possible_truncation, reason = "at most PATHS_MAX")]
            paths: asked.paths.len() as u32,
            status: AtomicU32::new(asked.status as u32),
            value: AtomicU64::new(0),
        };
        // SAFETY: aligned, within the ring, and free.
        unsafe { self.record_head(at).write(head) };
    }

    /// Returns the published record at a position, or an error if no record starts at this position.
    pub(crate) fn record(&self, at: u64) -> Result<LogRecord, Error> {
        let (to_end, to_head) = (
            self.capacity - at % self.capacity,
            self.published().saturating_sub(at),
        );
        if !at.is_multiple_of(ALIGN) || to_head < ALIGN || to_end < ALIGN {
            return Err(Error::corrupt(
                &self.path,
                "the position of a record is out of range",
            ));
        }
        // SAFETY: aligned and within the ring. Another process may write to the log at any time: the head is read once, and that copy is
        // checked and used.
        let head = unsafe { self.record_head(at).read_volatile() };
        let fits = head.length >= ALIGN && head.length <= to_end.min(to_head);
        let kind = RequestKind::of(head.kind).filter(|_| {
            let paths = head.paths as usize;
            let needed = || length_of(paths, head.size);
            head.magic == RECORD
                && fits
                && (head.kind == RequestKind::Filler as u16
                    || paths <= PATHS_MAX && head.size <= self.capacity && needed() == head.length)
                && head.after <= at
                && (head.kind != RequestKind::Analyse as u16 || head.offset <= head.size)
        });
        let kind = kind.ok_or_else(|| Error::corrupt(&self.path, "a record is malformed"))?;
        // The other fields of a filler are not checked.
        let (size, paths) = match kind {
            RequestKind::Filler => (0, 0),
            _ => (head.size, head.paths),
        };
        Ok(LogRecord {
            at,
            length: head.length,
            kind,
            flags: head.flags,
            id: head.id,
            after: head.after,
            offset: head.offset,
            size,
            again: false,
            paths,
        })
    }

    /// Whether a record is to be carried out, given the outcome of the label that it follows; `None` if the outcome is not known yet.
    pub(crate) fn is_due(&self, record: &LogRecord) -> Result<Option<bool>, Error> {
        let wanted = record.flags & (IF_DONE | IF_FAILED);
        if wanted == 0 {
            return Ok(Some(true));
        }
        let (mut part, mut done) = (*record, true);
        // Parts that have no place any more were done: otherwise the application would have known.
        while let Some(at) = part.after.checked_sub(1).filter(|&at| at >= self.freed()) {
            part = self.record(at)?;
            let status = self.status(at).0;
            if !status.is_settled() {
                return Ok(None);
            }
            done &= status == RecordStatus::Done;
            if part.flags & PART == 0 {
                break;
            }
        }
        Ok(Some(done == (wanted == IF_DONE)))
    }

    pub(crate) fn paths(&self, record: &LogRecord) -> &[u8] {
        // SAFETY: within the record, which was checked; the record does not change while it is not free.
        unsafe { std::slice::from_raw_parts(self.place(record.at, ALIGN), record.paths as usize) }
    }

    /// Returns the bytes that the application added to a record after its paths.
    pub(crate) fn data(&self, record: &LogRecord) -> &[u8] {
        let before = lead_of(record.paths as usize);
        let size = usize::try_from(record.size).unwrap_or(0);
        // SAFETY: as for paths.
        let bytes = unsafe { std::slice::from_raw_parts(self.place(record.at, before), size) };
        &bytes[..size.min(record.given())]
    }

    pub(crate) fn answered(&self, record: &LogRecord) -> &[u8] {
        self.answer(record)
    }

    /// Returns the space of a record's answer. Only one thread of the agent uses the space while the record is running.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is shared; the status shows who may write it"
    )]
    pub(crate) fn answer(&self, record: &LogRecord) -> &mut [u8] {
        let before = lead_of(record.paths as usize);
        let given = match record.kind {
            RequestKind::Analyse => record.offset,
            _ => 0,
        };
        let size = usize::try_from(record.size - given).unwrap_or(0);
        // SAFETY: within the record; the application reads it only when the record is settled.
        unsafe { std::slice::from_raw_parts_mut(self.place(record.at, before + given), size) }
    }

    /// Whether the slice `bytes` is inside the ring.
    #[cfg(fuzzing)]
    pub(crate) fn has(&self, bytes: &[u8]) -> bool {
        let ring = self.place(0, 0).cast_const()..=self.place(0, self.capacity).cast_const();
        let bytes = bytes.as_ptr_range();
        ring.contains(&bytes.start) && ring.contains(&bytes.end)
    }

    pub(crate) fn status(&self, at: u64) -> (RecordStatus, u64) {
        // SAFETY: a record that the caller has not freed.
        let head = unsafe { &*self.record_head(at) };
        let status = RecordStatus::of(head.status.load(Ordering::Acquire));
        (status, head.value.load(Ordering::Relaxed))
    }

    /// Notes the file offset at which a running record is about to write its bytes, so that an agent does not write them twice.
    pub(crate) fn note(&self, at: u64, place: u64) {
        // SAFETY: as above.
        let head = unsafe { &*self.record_head(at) };
        head.value.store(place + 1, Ordering::Release);
    }

    /// Returns the file offset that [`Self::note`] noted for a record, if any.
    pub(crate) fn noted(&self, at: u64) -> Option<u64> {
        self.status(at).1.checked_sub(1)
    }

    /// Changes the status of a record if it is `from`. Returns whether it changed.
    pub(crate) fn turn(&self, at: u64, from: RecordStatus, to: RecordStatus) -> bool {
        // SAFETY: as above.
        let status = unsafe { &(*self.record_head(at)).status };
        let (from, to) = (from as u32, to as u32);
        let turned = status.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        turned.is_ok()
    }

    /// Sets the outcome of a record. The caller must then call [`Self::notify`].
    pub(crate) fn settle(&self, at: u64, outcome: Result<u64, i32>) {
        let (status, value) = match outcome {
            Ok(value) => (RecordStatus::Done, value),
            Err(errno) => (RecordStatus::Failed, u64::from(errno.unsigned_abs())),
        };
        self.settle_as(at, status, value);
    }

    /// Sets the outcome of a record like [`Self::settle`], also with the status of a stopped record.
    pub(crate) fn settle_as(&self, at: u64, status: RecordStatus, value: u64) {
        // SAFETY: as above.
        let head = unsafe { &*self.record_head(at) };
        if status == RecordStatus::Failed {
            self.head().failed.fetch_add(1, Ordering::Relaxed);
        }
        head.value.store(value, Ordering::Relaxed);
        head.status.store(status as u32, Ordering::Release);
    }

    pub(crate) fn stored(&self) -> u64 {
        self.head().stored.load(Ordering::Acquire)
    }

    pub(crate) fn store(&self, id: u64) {
        self.head().stored.fetch_max(id, Ordering::AcqRel);
    }

    pub(crate) fn wanted(&self) -> u64 {
        self.head().wanted.load(Ordering::Acquire)
    }

    /// Records that a call waits until a label is stored.
    pub(crate) fn want(&self, id: u64) {
        if self.head().wanted.fetch_max(id, Ordering::SeqCst) < id {
            self.wake();
        }
    }

    /// Records that a call waits until a label is done.
    pub(crate) fn hurry(&self, id: u64) {
        if self.head().hurried.fetch_max(id, Ordering::SeqCst) < id {
            self.wake();
        }
    }

    /// Returns the id of the last label that a call waits for, until it is stored or until it is done.
    pub(crate) fn awaited(&self) -> u64 {
        let head = self.head();
        let hurried = head.hurried.load(Ordering::Acquire);
        hurried.max(head.wanted.load(Ordering::Acquire))
    }

    /// Returns the number of labels, the number of their bytes, and the number of failed labels, since the log was created.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let head = self.head();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&head.labels), of(&head.bytes), of(&head.failed))
    }

    /// Returns the energy of the ended jobs of the log's labels.
    pub(crate) fn drawn(&self) -> Drew {
        let head = self.head();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Drew {
            microjoules: of(&head.microjoules),
            runs: of(&head.runs),
            unknown: of(&head.unknown),
        }
    }

    /// Adds the energy of a record's job only once, whichever agent finds that the job has ended. If an agent is killed during the
    /// function, the energy is not counted.
    pub(crate) fn drew(&self, at: u64, drew: Drew) {
        if self.noted(at).is_some() {
            return;
        }
        self.note(at, 0);
        let head = self.head();
        let add = |count: &AtomicU64, more| {
            let sum = |count: u64| Some(count.saturating_add(more));
            // The closure always returns a sum.
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        };
        add(&head.microjoules, drew.microjoules);
        add(&head.runs, drew.runs);
        add(&head.unknown, drew.unknown);
    }

    /// Wakes a sleeping agent because a label was published, unless the agent gathers labels.
    pub(crate) fn ring(&self) {
        let head = self.head();
        head.bell.fetch_add(1, Ordering::SeqCst);
        let asleep = head.asleep.load(Ordering::SeqCst);
        let enough = || self.published() >= head.enough.load(Ordering::Relaxed);
        if asleep == ASLEEP || asleep == GATHERING && enough() {
            let _ = futex::wake(&head.bell, futex::Flags::empty(), 1);
        }
    }

    /// Wakes a sleeping agent, even if the agent gathers labels.
    pub(crate) fn wake(&self) {
        let head = self.head();
        head.bell.fetch_add(1, Ordering::SeqCst);
        if head.asleep.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&head.bell, futex::Flags::empty(), 1);
        }
    }

    pub(crate) fn bell(&self) -> u32 {
        self.head().bell.load(Ordering::SeqCst)
    }

    /// Makes the agent sleep until another process wakes it, unless a process has done so since `bell` was read.
    pub(crate) fn sleep(&self, bell: u32, limit: Duration) {
        self.sleep_as(ASLEEP, bell, limit);
    }

    /// Makes the agent sleep while labels are published, until a call waits or `head` reaches `enough`.
    pub(crate) fn gather(&self, bell: u32, enough: u64, limit: Duration) {
        self.head().enough.store(enough, Ordering::Relaxed);
        self.sleep_as(GATHERING, bell, limit);
    }

    fn sleep_as(&self, how: u32, bell: u32, limit: Duration) {
        let head = self.head();
        head.asleep.store(how, Ordering::SeqCst);
        wait(&head.bell, bell, limit);
        head.asleep.store(0, Ordering::SeqCst);
    }

    /// Wakes all threads that wait for settled labels.
    pub(crate) fn notify(&self) {
        let head = self.head();
        head.settled.fetch_add(1, Ordering::SeqCst);
        if head.waiters.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&head.settled, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    pub(crate) fn settled(&self) -> u32 {
        self.head().settled.load(Ordering::SeqCst)
    }

    /// Waits until a label is settled after the counter `settled` was read, or until `limit` has passed.
    pub(crate) fn wait_settled(&self, settled: u32, limit: Duration) {
        let head = self.head();
        head.waiters.fetch_add(1, Ordering::SeqCst);
        wait(&head.settled, settled, limit);
        head.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = rustix::thread::Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
}

/// Returns the umask of this process, which no system call reads without changing it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o022)
}

impl LogRequest<'_> {
    /// Returns the length in bytes of the request's record.
    pub(crate) fn length(&self) -> u64 {
        length_of(self.paths.len(), self.size)
    }

    /// Whether the request is written by direct I/O, without a copy in the page cache.
    fn is_direct(&self) -> bool {
        self.kind == RequestKind::Write && self.flags & DURABLE != 0 && self.size >= DIRECT_MIN
    }

    fn filler() -> Self {
        Self {
            kind: RequestKind::Filler,
            flags: 0,
            status: RecordStatus::Done,
            id: 0,
            after: 0,
            offset: 0,
            size: 0,
            paths: &[],
        }
    }
}

/// Shared memory that wakes the agent of a directory when an application has registered in the directory.
pub(crate) struct Bell(MappedMemory);

impl Bell {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let at = |source: std::io::Error| Error::Log {
            path: path.to_owned(),
            source,
        };
        let mut how = File::options();
        let how = how.read(true).write(true).create(true).truncate(false);
        let file = how.open(path).map_err(at)?;
        let all = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, all, 0, HEADER).map_err(|errno| at(errno.into()))?;
        let bytes = usize::try_from(HEADER).unwrap_or(0);
        Ok(Self(MappedMemory::of(&file, bytes, true).map_err(at)?))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped for as long as this lives, and aligned.
        unsafe { &*self.0.base.cast::<AtomicU32>() }
    }

    pub(crate) fn ring(&self) {
        self.word().fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
    }

    pub(crate) fn rung(&self) -> u32 {
        self.word().load(Ordering::SeqCst)
    }

    pub(crate) fn wait(&self, rung: u32, limit: Duration) {
        wait(self.word(), rung, limit);
    }
}
