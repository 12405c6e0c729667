//! The thread that writes the log of an open database (next: `log/src/restore.rs`).
//!
//! The thread sleeps while nothing is committed. After a commit it waits for [`SEGMENT_TIME`] and writes one segment with all pages that
//! changed in the meantime. Neither the commits nor their callers wait for the thread. A failure is reported and the segment is tried again;
//! if the thread can't know the former content of a page any more, it begins with a new snapshot.

use crate::file::{AttachedFile, FileWriter, Header, LogKey};
use crate::name::{FileKind, FileName};
use crate::pages::{PageChanges, PageView, Source, SourceProblem};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Time after a commit until its segment is written, and length of the unread part of the write-ahead log that ends the time early.
const SEGMENT_TIME: Duration = Duration::from_millis(500);
const SEGMENT_WAL_BYTES: u64 = 4 << 20;
/// Interval at which the length of the write-ahead log is examined during [`SEGMENT_TIME`].
const TICK: Duration = Duration::from_millis(50);
/// Length of the write-ahead log from which on its content is copied into the database, and from which on this is done although the
/// log can't be written.
const CHECKPOINT_BYTES: u64 = 32 << 20;
const WAL_BYTES_MAX: u64 = 256 << 20;
/// Interval at which a failed step is tried again, a failed snapshot, and at which old files are removed.
const AGAIN: Duration = Duration::from_secs(1);
const SNAPSHOT_AGAIN: Duration = Duration::from_secs(10);
const CLEANING: Duration = Duration::from_secs(60);
/// A snapshot is made when the segments since the last one are as long as that snapshot, but at least this long, or this numerous.
const SNAPSHOT_BYTES_MIN: u64 = 4 << 20;
const SEGMENTS_MAX: u64 = 10_000;
/// The earlier states are removed before the end of the retention if the log has more bytes than this, and than this many snapshots.
const BYTES_MAX_MIN: u64 = 256 << 20;
const BYTES_MAX_SNAPSHOTS: u64 = 8;
/// Number of consecutive snapshots that a checkpoint may spoil before this is reported.
const DISTURBED_MAX: u32 = 3;
/// Maximum length of the files of the server's directory that a snapshot contains.
const ATTACHED_BYTES_MAX: u64 = 1 << 20;

/// Settings of a log.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Directory of the log, which is created if it is missing.
    pub directory: PathBuf,
    /// Path of the database.
    pub database: PathBuf,
    /// Key of the log.
    pub key: LogKey,
    /// Id of the cluster.
    pub cluster: u64,
    /// Number of this start of the server.
    pub term: u64,
    /// Random id of the log.
    pub log: u32,
    /// Time for which the log keeps earlier states.
    pub retention: Duration,
    /// Files of the server's directory that each snapshot contains.
    pub attached: Vec<PathBuf>,
}

/// Checkpoints of the database by its owner.
pub trait Checkpoints: Send + Sync {
    /// Prevents all transactions, calls `before`, and copies the write-ahead log into the database if `before` returned `true`. Returns
    /// whether the whole write-ahead log was copied.
    ///
    /// # Errors
    /// The checkpoint failed.
    fn checkpoint(&self, before: &mut dyn FnMut() -> bool) -> io::Result<bool>;
}

/// State of a log.
#[derive(Clone, Debug, Default)]
pub struct LogStatus {
    /// Last file of the log; `None` before the first.
    pub last: Option<FileName>,
    /// Moment up to which the log is written, in nanoseconds since the epoch.
    pub time: i64,
    /// Whether commits wait for the next segment.
    pub pending: bool,
    /// Reason why the log can't be written now.
    pub trouble: Option<String>,
}

#[derive(Debug, Default)]
struct WriterSignals {
    woken: bool,
    stop: bool,
    /// Number of calls of [`LogWriter::flush`], and of those that the thread has answered.
    flushes: u64,
    flushed: u64,
}

#[derive(Debug, Default)]
struct Shared {
    /// Whether something was committed since the last segment.
    dirty: AtomicBool,
    /// Whether a checkpoint was made that the thread did not expect.
    disturbed: AtomicBool,
    /// Whether a checkpoint was asked for.
    checkpoint: AtomicBool,
    signals: Mutex<WriterSignals>,
    wake: Condvar,
    status: Mutex<LogStatus>,
    /// Complete files with their lengths.
    files: Mutex<BTreeMap<FileName, u64>>,
}

impl Shared {
    fn wake(&self, stop: bool) {
        let mut signals = self.signals.lock();
        signals.woken = true;
        signals.stop |= stop;
        self.wake.notify_all();
    }

    /// Returns the number of calls of [`LogWriter::flush`], and whether the thread has not answered all.
    fn flushes(&self) -> (u64, bool) {
        let signals = self.signals.lock();
        (signals.flushes, signals.flushed < signals.flushes)
    }

    /// Answers the calls of [`LogWriter::flush`] up to this one.
    fn flushed(&self, flush: u64) {
        self.signals.lock().flushed = flush;
        self.wake.notify_all();
    }

    /// Waits for a signal, at most until `until`. Returns whether the thread must end.
    fn wait(&self, until: Option<Instant>) -> bool {
        let mut signals = self.signals.lock();
        while !signals.woken && !signals.stop {
            match until {
                None => self.wake.wait(&mut signals),
                Some(until) => {
                    if self.wake.wait_until(&mut signals, until).timed_out() {
                        break;
                    }
                }
            }
        }
        signals.woken = false;
        signals.stop
    }
}

/// Writer of the log of a database.
#[derive(Debug)]
pub struct LogWriter {
    shared: Arc<Shared>,
    directory: PathBuf,
    id: (u64, u32),
    retention: Duration,
    thread: Mutex<Option<JoinHandle<Source>>>,
    /// Keeps the files of the database open after the thread has ended.
    ended: Mutex<Option<Source>>,
}

impl LogWriter {
    /// Starts the log of a database that is open in this process. The value must be dropped after the connections of SQLite. `changed` is
    /// called after each new or removed file.
    ///
    /// # Errors
    /// The directory or the database can't be used.
    pub fn start(
        settings: LogSettings,
        checkpoints: Arc<dyn Checkpoints>,
        changed: Box<dyn Fn() + Send>,
    ) -> io::Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&settings.directory)?;
        let files = Mutex::new(files_in(&settings.directory)?);
        let source = Source::open(&settings.database)?;
        let shared = Arc::new(Shared {
            files,
            ..Shared::default()
        });
        let (directory, retention) = (settings.directory.clone(), settings.retention);
        let id = (settings.term, settings.log);
        let worker = Worker {
            shared: shared.clone(),
            source,
            checkpoints,
            changed,
            number: 0,
            time: 0,
            attached: attached(&settings.attached)?,
            since_snapshot: (0, 0),
            snapshot_bytes: 0,
            running: None,
            wanted: true,
            failed: None,
            disturbed: 0,
            cleaned: Instant::now(),
            settings,
        };
        let builder = std::thread::Builder::new().name("log".into());
        let thread = builder.spawn(move || worker.run())?;
        Ok(Self {
            shared,
            directory,
            id,
            retention,
            thread: Mutex::new(Some(thread)),
            ended: Mutex::default(),
        })
    }

    /// Returns the path of a file of the log.
    pub fn path(&self, name: FileName) -> PathBuf {
        self.directory.join(name.to_string())
    }

    /// Returns the complete files of this log and of earlier ones, with their lengths.
    pub fn files(&self) -> BTreeMap<FileName, u64> {
        self.shared.files.lock().clone()
    }

    /// Returns the term and the random id of this log.
    pub fn id(&self) -> (u64, u32) {
        self.id
    }

    /// Returns the time for which the log keeps earlier states.
    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// Tells the log that something was committed.
    pub fn committed(&self) {
        if !self.shared.dirty.swap(true, Ordering::AcqRel) {
            self.shared.wake(false);
        }
    }

    /// Tells the log, before it happens, that the write-ahead log is copied into the database without the log's knowledge.
    pub fn disturb(&self) {
        self.shared.disturbed.store(true, Ordering::Release);
        self.shared.dirty.store(true, Ordering::Release);
        self.shared.wake(false);
    }

    /// Returns the state of the log.
    pub fn status(&self) -> LogStatus {
        let mut status = self.shared.status.lock().clone();
        status.pending |= self.shared.dirty.load(Ordering::Acquire);
        status
    }

    /// Writes all that was committed before this call, with the snapshot that it needs, unless that takes longer than `at_most`. Returns the
    /// state of the log.
    pub fn flush(&self, at_most: Duration) -> LogStatus {
        let until = Instant::now() + at_most;
        let mut signals = self.shared.signals.lock();
        signals.flushes += 1;
        signals.woken = true;
        let flush = signals.flushes;
        self.shared.wake.notify_all();
        while signals.flushed < flush && !signals.stop {
            if self.shared.wake.wait_until(&mut signals, until).timed_out() {
                break;
            }
        }
        drop(signals);
        self.status()
    }

    /// Copies the write-ahead log into the database as soon as no snapshot is being written.
    pub fn checkpoint(&self) {
        self.shared.checkpoint.store(true, Ordering::Release);
        self.shared.wake(false);
    }

    /// Writes the last segment and ends the thread. Nothing must be committed from now on.
    pub fn close(&self) {
        self.shared.wake(true);
        let thread = self.thread.lock().take();
        if let Some(source) = thread.and_then(|thread| thread.join().ok()) {
            *self.ended.lock() = Some(source);
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the complete files of a log's directory with their lengths, and removes those that were never completed.
fn files_in(directory: &Path) -> io::Result<BTreeMap<FileName, u64>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Ok(name) = name.parse() {
            files.insert(name, entry.metadata()?.len());
        } else if name.ends_with(".part") {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(files)
}

/// Snapshot that is being written.
#[derive(Debug)]
struct RunningSnapshot {
    name: FileName,
    time: i64,
    view: PageView,
    thread: JoinHandle<io::Result<u64>>,
}

struct Worker {
    settings: LogSettings,
    shared: Arc<Shared>,
    source: Source,
    checkpoints: Arc<dyn Checkpoints>,
    changed: Box<dyn Fn() + Send>,
    /// Number of the last segment.
    number: u64,
    /// Moment of the last segment.
    time: i64,
    /// Attached files that the last segment or snapshot before it has.
    attached: Vec<AttachedFile>,
    /// Number and bytes of the segments since the last snapshot.
    since_snapshot: (u64, u64),
    snapshot_bytes: u64,
    running: Option<RunningSnapshot>,
    /// Whether the next segment needs a snapshot before it.
    wanted: bool,
    /// Reason why the last snapshot could not be written, and the time from which on it is tried again.
    failed: Option<(String, Instant)>,
    /// Number of consecutive snapshots that a checkpoint has spoilt.
    disturbed: u32,
    cleaned: Instant,
}

impl Worker {
    fn run(mut self) -> Source {
        // The database has not changed since it was opened, so no segment is needed before the first snapshot.
        let mut again = match self.begin_snapshot() {
            Ok(()) => Some(Instant::now() + TICK),
            Err(_) => Some(Instant::now()),
        };
        loop {
            let stop = self.shared.wait(again) || self.gather();
            let (flush, _) = self.shared.flushes();
            let done = self.step(stop);
            if stop {
                if let Some(snapshot) = self.running.take() {
                    let end = snapshot.thread.join();
                    self.end_snapshot((snapshot.name, snapshot.time, &snapshot.view), end);
                }
                return self.source;
            }
            again = match &done {
                Ok(()) if self.running.is_some() => Some(Instant::now() + TICK),
                Ok(()) if self.wanted => Some(Instant::now() + AGAIN),
                Ok(()) => None,
                Err(_) => Some(Instant::now() + AGAIN),
            };
            let mut status = self.shared.status.lock();
            status.pending = done.is_err() || self.wanted || self.running.is_some();
            let failed = self.failed.as_ref().map(|(why, _)| why.clone());
            status.trouble = match done {
                Ok(()) => failed,
                Err(error) => {
                    let directory = self.settings.directory.display();
                    tracing::warn!(%error, %directory, "the log of the database is delayed");
                    Some(error.to_string())
                }
            };
            let answered = status.trouble.is_some() || !status.pending;
            drop(status);
            if answered {
                self.shared.flushed(flush);
            }
        }
    }

    /// Waits for more commits after the first. Returns whether the thread must end.
    fn gather(&self) -> bool {
        let until = Instant::now() + SEGMENT_TIME;
        let snapshot_ended = || {
            let running = self.running.as_ref();
            running.is_some_and(|running| running.thread.is_finished())
        };
        while self.shared.dirty.load(Ordering::Acquire)
            && !snapshot_ended()
            && !self.shared.flushes().1
            && Instant::now() < until
            && self.source.wal_bytes().0 < SEGMENT_WAL_BYTES
        {
            if self.shared.wait(Some(Instant::now() + TICK)) {
                return true;
            }
        }
        false
    }

    /// Writes a segment and does the other work that is due.
    fn step(&mut self, last: bool) -> io::Result<()> {
        self.shared.dirty.store(false, Ordering::Release);
        let written = self.segment();
        if written.is_err() {
            self.shared.dirty.store(true, Ordering::Release);
        }
        if let Some(snapshot) = self.running.take_if(|running| running.thread.is_finished()) {
            let end = snapshot.thread.join();
            self.end_snapshot((snapshot.name, snapshot.time, &snapshot.view), end);
        }
        let (segments, bytes) = self.since_snapshot;
        self.wanted |=
            segments >= SEGMENTS_MAX || bytes >= self.snapshot_bytes.max(SNAPSHOT_BYTES_MIN);
        let waits = self
            .failed
            .as_ref()
            .is_some_and(|(_, until)| Instant::now() < *until);
        if self.wanted && self.running.is_none() && !last && !waits {
            self.begin_snapshot()?;
        }
        let read = self.source.wal_bytes().1;
        let asked = self.shared.checkpoint.load(Ordering::Acquire);
        if self.running.is_none() && (read >= CHECKPOINT_BYTES || asked) && written.is_ok() {
            self.shared.checkpoint.store(false, Ordering::Release);
            self.checkpoint()?;
        }
        let (unread, read) = self.source.wal_bytes();
        if self.running.is_none()
            && (written.is_err() || self.wanted)
            && unread + read >= WAL_BYTES_MAX
        {
            // The database must not fill its device, although the log can't be written.
            self.shared.disturbed.store(true, Ordering::Release);
            self.checkpoints.checkpoint(&mut || true)?;
        }
        if self.cleaned.elapsed() >= CLEANING {
            self.clean(self.bytes_max())?;
        }
        // Earlier states take no space that changes need.
        if let Err(error) = &written
            && error.kind() == io::ErrorKind::StorageFull
        {
            self.clean(0)?;
        }
        written
    }

    /// Writes a segment with the changes since the last one. If the changes can't be known, wants a new snapshot.
    fn segment(&mut self) -> io::Result<()> {
        let disturbed = || self.shared.disturbed.load(Ordering::Acquire);
        let changes = match disturbed() {
            true => Err(SourceProblem::Disturbed),
            false => self.source.changes(),
        };
        let changes = match changes {
            Ok(changes) => changes,
            Err(SourceProblem::Io(error)) => return Err(error),
            Err(SourceProblem::Disturbed) => return self.begin_again(),
        };
        let attached = attached(&self.settings.attached)?;
        let attached = (attached != self.attached).then_some(attached);
        if changes.is_none() && attached.is_none() {
            return Ok(());
        }
        let pages = self.source.view().pages;
        let counts = changes.as_ref().map_or((pages, 0), PageChanges::counts);
        let (header, path) = self.header(FileKind::Segment, self.number + 1, counts);
        let write = || {
            let attached = attached.as_deref().unwrap_or_default();
            let mut to = FileWriter::new(create(&path)?, &header, &self.settings.key, attached)?;
            if let Some(changes) = &changes {
                self.source.write(changes, &mut to)?;
            }
            end(to)
        };
        let written = write().inspect_err(|_| {
            let _ = std::fs::remove_file(&path);
        });
        if disturbed() {
            let _ = std::fs::remove_file(&path);
            return self.begin_again();
        }
        let bytes = written?;
        self.keep(&path, header.name, bytes)?;
        if let Some(changes) = changes {
            self.source.advance(changes);
        }
        if let Some(attached) = attached {
            self.attached = attached;
        }
        self.number = header.name.number;
        self.time = header.time;
        self.since_snapshot.0 += 1;
        self.since_snapshot.1 += bytes;
        let mut status = self.shared.status.lock();
        (status.last, status.time) = (Some(header.name), header.time);
        Ok(())
    }

    /// Begins with the present state of the database, to which no segment leads.
    fn begin_again(&mut self) -> io::Result<()> {
        tracing::info!("the log of the database begins again with a snapshot");
        self.shared.disturbed.store(false, Ordering::Release);
        self.source.look_again()?;
        // No file has this number, so nothing can be applied across the gap.
        self.number += 1;
        self.wanted = true;
        Ok(())
    }

    fn header(
        &self,
        kind: FileKind,
        number: u64,
        (pages, stored): (u32, u32),
    ) -> (Header, PathBuf) {
        let name = FileName {
            term: self.settings.term,
            log: self.settings.log,
            number,
            kind,
        };
        let header = Header {
            name,
            cluster: self.settings.cluster,
            time: now().max(self.time + 1),
            page_size: self.source.view().page_size,
            pages,
            stored,
        };
        (header, self.settings.directory.join(format!("{name}.part")))
    }

    /// Gives a complete file its name.
    fn keep(&mut self, part: &Path, name: FileName, bytes: u64) -> io::Result<()> {
        std::fs::rename(part, self.settings.directory.join(name.to_string()))?;
        self.shared.files.lock().insert(name, bytes);
        (self.changed)();
        Ok(())
    }

    fn begin_snapshot(&mut self) -> io::Result<()> {
        let view = self.source.view().clone();
        let (header, path) = self.header(FileKind::Snapshot, self.number, (view.pages, view.pages));
        let attached = self.attached.clone();
        let (key, shared) = (self.settings.key.clone(), self.shared.clone());
        let (pages, into) = (view.clone(), path.clone());
        let write = move || {
            let written = write_snapshot(&into, &header, (&key, &attached), &pages);
            shared.wake(false);
            written
        };
        let builder = std::thread::Builder::new().name("snapshot".into());
        self.running = Some(RunningSnapshot {
            name: header.name,
            time: header.time,
            view,
            thread: builder.spawn(write)?,
        });
        self.time = header.time;
        self.since_snapshot = (0, 0);
        self.wanted = false;
        Ok(())
    }

    fn end_snapshot(
        &mut self,
        (name, time, view): (FileName, i64, &PageView),
        end: std::thread::Result<io::Result<u64>>,
    ) {
        let end = end.unwrap_or_else(|_| Err(io::Error::other("the thread ended early")));
        let path = self.settings.directory.join(format!("{name}.part"));
        let disturbed = self.shared.disturbed.load(Ordering::Acquire)
            || !self.source.is_undisturbed(view).unwrap_or(false);
        if disturbed {
            let _ = std::fs::remove_file(&path);
            self.wanted = true;
            self.disturbed += 1;
            if self.disturbed > DISTURBED_MAX {
                let why = "another program makes checkpoints of the database".into();
                self.failed = Some((why, Instant::now() + SNAPSHOT_AGAIN));
            }
            return;
        }
        match end.and_then(|bytes| self.keep(&path, name, bytes).map(|()| bytes)) {
            Ok(bytes) => {
                (self.failed, self.disturbed) = (None, 0);
                self.snapshot_bytes = bytes;
                let mut status = self.shared.status.lock();
                if status.last.is_none_or(|last| last.number <= name.number) {
                    (status.last, status.time) = (Some(name), time);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "can't write a snapshot of the database");
                let _ = std::fs::remove_file(&path);
                self.wanted = true;
                if error.kind() == io::ErrorKind::StorageFull {
                    let _ = self.clean(0);
                }
                self.failed = Some((error.to_string(), Instant::now() + SNAPSHOT_AGAIN));
            }
        }
        if let Err(error) = self.clean(self.bytes_max()) {
            tracing::warn!(%error, "can't remove old files of the log");
        }
    }

    /// Copies the write-ahead log into the database. No transaction runs during the checkpoint, so the segment before it has all commits.
    fn checkpoint(&mut self) -> io::Result<()> {
        let checkpoints = self.checkpoints.clone();
        let mut written = Ok(());
        let complete = checkpoints.checkpoint(&mut || {
            written = self.segment();
            written.is_ok() && !self.wanted
        })?;
        written?;
        if complete && !self.wanted {
            self.source.checkpointed();
        }
        Ok(())
    }

    /// Removes files that are not needed for a state within the retention, and the oldest of those that have more bytes than `most`. The last
    /// snapshot and what follows it always stay.
    fn clean(&mut self, most: u64) -> io::Result<()> {
        self.cleaned = Instant::now();
        let directory = &self.settings.directory;
        let written = |name: &FileName| -> io::Result<SystemTime> {
            std::fs::metadata(directory.join(name.to_string()))?.modified()
        };
        let oldest = SystemTime::now() - self.settings.retention;
        let mut files = self.shared.files.lock();
        let own = |name: &FileName| name.log_id() == (self.settings.term, self.settings.log);
        let is_snapshot = |name: &&FileName| name.kind == FileKind::Snapshot;
        let last = files
            .keys()
            .rev()
            .filter(is_snapshot)
            .find(|name| own(name));
        let Some(last) = last.copied() else {
            return Ok(());
        };
        let mut base = None;
        for name in files.keys().rev().filter(is_snapshot) {
            if written(name)? <= oldest {
                base = Some((*name, written(name)?));
                break;
            }
        }
        let mut bytes: u64 = files.values().sum();
        let mut removed = Vec::new();
        for (name, length) in files.range(..last) {
            let unneeded = match base {
                Some((base, at)) => *name < base && written(name)? <= at,
                None => false,
            };
            if unneeded || bytes > most {
                std::fs::remove_file(directory.join(name.to_string()))?;
                removed.push(*name);
                bytes -= length;
            }
        }
        files.retain(|name, _| !removed.contains(name));
        drop(files);
        if !removed.is_empty() {
            (self.changed)();
        }
        Ok(())
    }

    /// Returns the number of bytes above which the oldest states are removed before the end of the retention.
    fn bytes_max(&self) -> u64 {
        BYTES_MAX_MIN.max(BYTES_MAX_SNAPSHOTS * self.snapshot_bytes)
    }
}

/// Writes all pages of a database, and returns the number of bytes.
pub(crate) fn write_snapshot(
    path: &Path,
    header: &Header,
    (key, attached): (&LogKey, &[AttachedFile]),
    pages: &PageView,
) -> io::Result<u64> {
    let mut to = FileWriter::new(create(path)?, header, key, attached)?;
    pages.write_all(&mut to)?;
    end(to)
}

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

fn create(path: &Path) -> io::Result<BufWriter<File>> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    Ok(BufWriter::with_capacity(1 << 18, options.open(path)?))
}

fn end(to: FileWriter<BufWriter<File>>) -> io::Result<u64> {
    let (mut file, bytes) = to.finish();
    file.flush()?;
    Ok(bytes)
}

/// Reads the files that a snapshot contains besides the pages. A file that does not exist is left out.
pub(crate) fn attached(paths: &[PathBuf]) -> io::Result<Vec<AttachedFile>> {
    let mut files = Vec::new();
    for path in paths {
        let content = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            content => content?,
        };
        if content.len() as u64 > ATTACHED_BYTES_MAX {
            return Err(io::Error::other(format!("{} is too long", path.display())));
        }
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        files.push(AttachedFile { name, content });
    }
    Ok(files)
}
