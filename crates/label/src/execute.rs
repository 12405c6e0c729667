//! Carries labels out, by system calls on files below the mount (next: `mount/src/fuse/mod.rs`).

use crate::app::{CUT, DURABLE};
use crate::log::{DIRECT_MIN, Log, LogRecord, PAGE, RequestKind};
use crate::new_files::{FILES_MAX, MountCalls, fits};
use crate::request_scheduler::{OperationKind, ShuffleOp, supertasks};
use crate::root::{MountRoot, is_offline, patiently};
use rustix::fs::{AtFlags, OFlags, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, IoSlice, Result};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of files that stay open for an application between its labels.
const OPEN_MAX: usize = 256;
unsafe extern "C" {
    fn close(fd: std::ffi::c_int) -> std::ffi::c_int;
}

/// Flags for opening files that are written by direct I/O, without a copy in the page cache.
const DIRECT: OFlags = OFlags::WRONLY.union(OFlags::DIRECT);
/// Maximum number of calls that create files and that run at the same time.
const CALLS: usize = 2;

/// Open files of an application.
pub(crate) struct AppFiles {
    root: Arc<MountRoot>,
    calls: MountCalls,
    open: HashMap<PathBuf, WrittenFile>,
}

struct WrittenFile {
    file: File,
    readable: bool,
    appends: bool,
    /// The same file, open for direct I/O; `None` before it is needed, or if direct I/O is impossible.
    direct: Option<File>,
    can_direct: bool,
}

/// Labels of one file, and the file if it is open.
pub(crate) struct FileLabels {
    root: Arc<MountRoot>,
    path: PathBuf,
    open: Option<WrittenFile>,
    records: Vec<LogRecord>,
    /// Whether some of the labels read the file.
    reads: bool,
}

impl AppFiles {
    pub(crate) fn new(root: &Path, system: u64, umask: u32) -> Self {
        Self {
            root: Arc::new(MountRoot::new(root, system, umask)),
            calls: MountCalls::default(),
            open: HashMap::new(),
        }
    }

    pub(crate) fn root(&self) -> &Arc<MountRoot> {
        &self.root
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn close_all(&mut self) {
        self.open.clear();
    }

    /// Whether `more` files are closed after they are written, because they are too many to stay open.
    pub(crate) fn are_many(&self, more: usize) -> bool {
        more > OPEN_MAX || self.open.len() + more > OPEN_MAX
    }

    /// Creates new, small files that would not stay open, and settles their labels. Returns the labels of all other files.
    pub(crate) fn make_new(
        &self,
        log: &Log,
        groups: Vec<Vec<LogRecord>>,
        settle: impl Fn(&LogRecord, Result<u64>) + Sync,
    ) -> Vec<Vec<LogRecord>> {
        let closed = |records: &Vec<LogRecord>| {
            let path = records.first().map_or(&[][..], |first| log.paths(first));
            !self.open.contains_key(Path::new(OsStr::from_bytes(path)))
        };
        let new = |records: &Vec<LogRecord>| closed(records) && fits(log, records);
        let (new, mut others): (Vec<_>, Vec<_>) = groups.into_iter().partition(new);
        let parts: Vec<_> = new.chunks(FILES_MAX).collect();
        let (next, left) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let worker = || {
            while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let not = self.make_part(log, part, &settle);
                left.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend(not);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..parts.len().min(CALLS) {
                scope.spawn(worker);
            }
            worker();
        });
        others.append(&mut left.into_inner().unwrap_or_else(PoisonError::into_inner));
        others
    }

    /// Creates files like [`Self::make_new`], by one call after the other.
    fn make_part(
        &self,
        log: &Log,
        mut files: &[Vec<LogRecord>],
        settle: &impl Fn(&LogRecord, Result<u64>),
    ) -> Vec<Vec<LogRecord>> {
        let mut not = Vec::new();
        while !files.is_empty() {
            let (taken, made) = self.calls.make(&self.root, log, files);
            let (reported, rest) = files.split_at(taken.clamp(1, files.len()));
            for (at, records) in reported.iter().enumerate() {
                match made.get(at) {
                    Some(true) => records
                        .iter()
                        .for_each(|record| settle(record, Ok(record.size))),
                    _ => not.push(records.clone()),
                }
            }
            files = rest;
        }
        not
    }

    /// Returns the labels of one file, with the file if it is open.
    pub(crate) fn take(&mut self, log: &Log, records: Vec<LogRecord>) -> FileLabels {
        let path = records.first().map_or(&[][..], |first| log.paths(first));
        let path = PathBuf::from(OsStr::from_bytes(path));
        FileLabels {
            root: self.root.clone(),
            open: self.open.remove(&path),
            path,
            reads: records
                .iter()
                .any(|record| record.kind == RequestKind::Read),
            records,
        }
    }

    /// Keeps files open that may be written again soon.
    pub(crate) fn give_back(&mut self, works: Vec<FileLabels>) {
        let many = self.are_many(works.len());
        if many {
            self.open.clear();
        }
        for work in works.into_iter().take(if many { 0 } else { OPEN_MAX }) {
            if let Some(open) = work.open {
                self.open.insert(work.path, open);
            }
        }
    }

    /// Carries out a label that changes names.
    pub(crate) fn change_names(&mut self, log: &Log, record: &LogRecord) -> Result<u64> {
        let mut paths = log.paths(record).split(|byte| *byte == 0);
        let mut path = || Path::new(OsStr::from_bytes(paths.next().unwrap_or_default()));
        let (from, to) = (path(), path());
        if record.kind == RequestKind::Fence {
            return Ok(0);
        }
        // Written bytes belong to the name that they were written to.
        self.open.remove(from);
        self.open.remove(to);
        let root = self.root.clone();
        if record.kind == RequestKind::Copy {
            return patiently(|| copy(&root, from, to, record.flags & DURABLE != 0));
        }
        patiently(|| {
            let root = root.open()?;
            let changed = match record.kind {
                RequestKind::Move => renameat(&root, from, &root, to),
                _ => unlinkat(&root, from, AtFlags::empty()),
            };
            match changed {
                // The agent before has done it.
                Err(Errno::NOENT) if record.again => Ok(0),
                changed => Ok(changed.map(|()| 0)?),
            }
        })
    }
}

/// Copies a file from its beginning, because an agent that was killed during the copy has left an incomplete file.
fn copy(root: &MountRoot, from: &Path, to: &Path, durable: bool) -> Result<u64> {
    let mut from = root.open_file(from, OFlags::RDONLY)?;
    let is = from.metadata()?;
    if !is.is_file() {
        return Err(Errno::INVAL.into());
    }
    // Another name may belong to the same file.
    let there = statat(root.open()?, to, AtFlags::empty());
    if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (is.dev(), is.ino())) {
        return Err(Errno::INVAL.into());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut to = root.open_file_as(to, flags, is.mode() & 0o777)?;
    let copied = std::io::copy(&mut from, &mut to)?;
    if durable {
        to.sync_data()?;
    }
    Ok(copied)
}

/// Returns the description of a label that reads or writes, for the request scheduler.
fn op(record: &LogRecord) -> ShuffleOp {
    let cuts = record.flags & CUT != 0;
    let deed = match record.kind {
        RequestKind::Read => OperationKind::Read,
        _ if cuts => OperationKind::Cut,
        RequestKind::Append => OperationKind::Append,
        _ => OperationKind::Write,
    };
    ShuffleOp {
        deed,
        offset: record.offset,
        size: record.size,
        alone: record.again || cuts && record.kind == RequestKind::Append,
    }
}

impl FileLabels {
    /// Carries the labels out and settles each with its outcome.
    pub(crate) fn run(mut self, log: &Log, settle: impl Fn(&LogRecord, Result<u64>)) -> Self {
        let records = std::mem::take(&mut self.records);
        let ops: Vec<ShuffleOp> = records.iter().map(op).collect();
        let tasks = supertasks(&ops, self.open.is_some());
        // Written labels that are reported once they survive power loss. One sync serves all; a supertask of several steps has its own.
        let mut unsynced: Vec<LogRecord> = Vec::new();
        for task in tasks {
            let alone = task.len() > 1;
            for step in task {
                let run: Vec<LogRecord> = step.into_iter().map(|at| records[at]).collect();
                if alone
                    || self
                        .open
                        .as_ref()
                        .is_some_and(|open| open.appends != appends(&run))
                {
                    self.sync(log, &mut unsynced, &settle);
                }
                self.step(log, run, &mut unsynced, &settle);
            }
        }
        self.sync(log, &mut unsynced, &settle);
        self
    }

    /// Carries out consecutive labels of one group.
    fn step(
        &mut self,
        log: &Log,
        run: Vec<LogRecord>,
        unsynced: &mut Vec<LogRecord>,
        settle: &impl Fn(&LogRecord, Result<u64>),
    ) {
        let first = &run[0];
        let alone = match first.kind {
            RequestKind::Read => Some(self.read(log, first)),
            RequestKind::Append if first.again => self.append_again(log, first).transpose(),
            _ => None,
        };
        if let Some(outcome) = alone {
            return settle(first, outcome);
        }
        match self.write(log, &run) {
            Ok(()) if durable(&run) => unsynced.extend(run),
            Ok(()) => run
                .iter()
                .for_each(|record| settle(record, Ok(record.size))),
            Err(_) => {
                unsynced.extend(run);
                self.write_each(log, &std::mem::take(unsynced), settle);
            }
        }
    }

    /// Makes written bytes of the file survive power loss.
    fn sync(
        &mut self,
        log: &Log,
        unsynced: &mut Vec<LogRecord>,
        settle: &impl Fn(&LogRecord, Result<u64>),
    ) {
        let written = std::mem::take(unsynced);
        if written.is_empty() {
            return;
        }
        match self.sync_data() {
            Ok(()) => written
                .iter()
                .for_each(|record| settle(record, Ok(record.size))),
            Err(_) => self.write_each(log, &written, settle),
        }
    }

    fn sync_data(&mut self) -> Result<()> {
        let open = self.open.take().ok_or(Errno::BADF)?;
        open.file.sync_data()?;
        self.open = Some(open);
        Ok(())
    }

    /// Writes consecutive labels. If the write fails, the outcome of all the labels is unknown: bytes that a file on another host has
    /// accepted may be lost until its close or a sync has returned.
    fn write(&mut self, log: &Log, run: &[LogRecord]) -> Result<()> {
        let tried = self.try_to_write(log, run);
        if tried.is_err() {
            // The file may belong to a mount that has ended.
            self.open = None;
        }
        tried
    }

    fn try_to_write(&mut self, log: &Log, run: &[LogRecord]) -> Result<()> {
        let appends = appends(run);
        self.writer(appends, &mut (run[0].flags & CUT != 0))?;
        let open = self.open.as_mut().ok_or(Errno::BADF)?;
        if appends {
            note_ends(&open.file, log, run)?;
        }
        let mut done = match durable(run) {
            true => open.write_direct(log, run, || self.root.open_file(&self.path, DIRECT)),
            false => 0,
        };
        let total: u64 = run.iter().map(|record| record.size).sum();
        while done < total {
            done += write_some(&open.file, log, run, done)?;
        }
        match durable(run) {
            true => Ok(()),
            false => hear(&open.file),
        }
    }

    /// Writes a single label.
    fn write_one(&mut self, log: &Log, record: &LogRecord) -> Result<u64> {
        if record.kind == RequestKind::Append
            && let Some(size) = self.append_again(log, record)?
        {
            return Ok(size);
        }
        self.write(log, &[*record])?;
        if durable(&[*record]) {
            self.sync_data()?;
        }
        Ok(record.size)
    }

    /// Writes labels one by one that could not be written together, so that each label gets its own outcome.
    fn write_each(
        &mut self,
        log: &Log,
        run: &[LogRecord],
        settle: &impl Fn(&LogRecord, Result<u64>),
    ) {
        let mut offline: Option<Error> = None;
        for record in run {
            let outcome = match offline.as_ref().and_then(Error::raw_os_error) {
                // One label has waited for all.
                Some(errno) => Err(Error::from_raw_os_error(errno)),
                None => patiently(|| self.write_one(log, record)),
            };
            match outcome {
                Err(error) if is_offline(&error) => {
                    settle(
                        record,
                        Err(Error::from_raw_os_error(error.raw_os_error().unwrap_or(5))),
                    );
                    offline = Some(error);
                }
                outcome => settle(record, outcome),
            }
        }
    }

    /// Completes an append that an earlier agent began, if some of its bytes may exist in the file.
    fn append_again(&mut self, log: &Log, record: &LogRecord) -> Result<Option<u64>> {
        let Some(place) = log.noted(record.at) else {
            return Ok(None);
        };
        let data = log.data(record);
        let there = patiently(|| {
            let mut there = vec![0; data.len()];
            let file = self.root.open_file(&self.path, OFlags::RDONLY)?;
            let read = read_at(&file, &mut there, place)?;
            there.truncate(read);
            Ok(there)
        });
        let there = match there {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            there => there?,
        };
        if there.is_empty() && !data.is_empty() || !data.starts_with(&there) {
            return Ok(None);
        }
        let durable = record.flags & DURABLE != 0;
        patiently(|| {
            let open = self.writer(false, &mut false)?;
            open.file
                .write_all_at(&data[there.len()..], place + there.len() as u64)?;
            if durable {
                open.file.sync_data()
            } else {
                hear(&open.file)
            }
        })?;
        Ok(Some(record.size))
    }

    fn writer(&mut self, appends: bool, cut: &mut bool) -> Result<&WrittenFile> {
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.appends != appends)
        {
            self.open = None;
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let end = if appends {
                    OFlags::APPEND
                } else {
                    OFlags::empty()
                };
                let none = if *cut { OFlags::TRUNC } else { OFlags::empty() };
                let flags = OFlags::CREATE | end | none;
                // A mount takes note of each close of a file that is open for both.
                let both = self
                    .reads
                    .then(|| self.root.open_file(&self.path, OFlags::RDWR | flags));
                let (file, readable) = match both {
                    Some(Err(error)) if error.kind() != std::io::ErrorKind::PermissionDenied => {
                        return Err(error);
                    }
                    Some(Ok(file)) => (file, true),
                    _ => (
                        self.root.open_file(&self.path, OFlags::WRONLY | flags)?,
                        false,
                    ),
                };
                *cut = false;
                WrittenFile {
                    file,
                    readable,
                    appends,
                    direct: None,
                    can_direct: !appends,
                }
            }
        };
        let open = self.open.insert(open);
        if std::mem::take(cut) {
            open.file.set_len(0)?;
        }
        Ok(open)
    }

    /// Reads bytes into the label's space in the log. Returns the number of bytes.
    fn read(&self, log: &Log, record: &LogRecord) -> Result<u64> {
        let into = log.answer(record);
        patiently(|| {
            let opened;
            let file = match &self.open {
                Some(open) if open.readable => &open.file,
                _ => {
                    opened = self.root.open_file(&self.path, OFlags::RDONLY)?;
                    &opened
                }
            };
            Ok(read_at(file, into, record.offset)? as u64)
        })
    }
}

impl WrittenFile {
    /// Writes the first of consecutive labels from the log by direct I/O, without a copy in the page cache, because page-cache memory that
    /// was never used before is slower than a device. Returns the number of bytes. The caller writes the remaining labels as usual.
    fn write_direct(
        &mut self,
        log: &Log,
        run: &[LogRecord],
        open: impl FnOnce() -> Result<File>,
    ) -> u64 {
        let whole = |number: u64| number.is_multiple_of(PAGE);
        let able = |record: &&LogRecord| {
            let large = record.size >= DIRECT_MIN && whole(record.size);
            large && whole(log.data(record).as_ptr() as u64)
        };
        let many = run.iter().take_while(able).count();
        let total: u64 = run[..many].iter().map(|record| record.size).sum();
        if !self.can_direct || many == 0 || !whole(run[0].offset) {
            return 0;
        }
        if self.direct.is_none() {
            self.direct = open().ok();
        }
        let mut done = 0;
        while let Some(file) = self.direct.as_ref().filter(|_| done < total) {
            match write_some(file, log, &run[..many], done) {
                Ok(more) if whole(more) => done += more,
                // The file system may not support it.
                _ => self.direct = None,
            }
        }
        self.can_direct = self.direct.is_some();
        done
    }
}

fn appends(run: &[LogRecord]) -> bool {
    run[0].kind == RequestKind::Append
}

fn durable(run: &[LogRecord]) -> bool {
    run.iter().any(|record| record.flags & DURABLE != 0)
}

/// Returns the error that a close would return: a file on another host reports errors at its close, and a label that was reported as done
/// cannot fail any more.
fn hear(file: &File) -> Result<()> {
    loop {
        let duplicate = file.try_clone()?.into_raw_fd();
        // SAFETY: the descriptor belongs to this function, and no other code has it afterwards.
        let closed = unsafe { close(duplicate) };
        let error = Error::last_os_error();
        if closed == 0 {
            return Ok(());
        }
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reads until the buffer is full, or to the end of the file.
pub(crate) fn read_at(file: &File, into: &mut [u8], offset: u64) -> Result<usize> {
    let mut read = 0;
    while read < into.len() {
        match file.read_at(&mut into[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Records in the log the offsets at which labels will be appended.
fn note_ends(file: &File, log: &Log, run: &[LogRecord]) -> Result<()> {
    let mut end = file.metadata()?.len();
    for record in run {
        log.note(record.at, end);
        end += record.size;
    }
    Ok(())
}

/// Writes consecutive labels without their first `skip` bytes, as far as one system call does. Returns the number of bytes.
fn write_some(file: &File, log: &Log, run: &[LogRecord], skip: u64) -> Result<u64> {
    let mut before = skip;
    let mut pieces = Vec::with_capacity(run.len());
    for record in run {
        let skipped = before.min(record.size);
        before -= skipped;
        if skipped < record.size {
            let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
            pieces.push(IoSlice::new(&log.data(record)[skipped..]));
        }
    }
    // If the file is open for appending, the offset is ignored.
    match rustix::io::pwritev(file, &pieces, run[0].offset + skip) {
        Ok(0) => Err(Errno::IO.into()),
        Ok(written) => Ok(written as u64),
        Err(Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}
