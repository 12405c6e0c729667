//! Streaming inputs: inputs that are still being written. A thread passes the bytes of an input to kernels through a pipe as they arrive,
//! in order, until the input is sealed. The module reads the store and writes the pipe.
//!
//! The inputs are versions that a mount or a client writes, or outputs of another running task. No event reports a write to an open file,
//! so the thread examines the file periodically. At the end it compares the delivered bytes with the sealed file, because a writer may have
//! overwritten bytes that were already delivered.
//!
//! The threads have a low priority and pause while files grow ([`tidemill_model::processor_share`]), so that writers get the processors. The
//! priority of the threads is not lower than that: a writer may wait for a lock that such a thread holds.

use crate::scrub::lower_priority;
use crate::store::{Store, StoreError};
use crate::streaming_inputs::GrowingOutput;
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use tidemill_model::id::ObjectId;
use tidemill_model::processor_share::ProcessorPace;
use tidemill_model::time::{Span, Time};
use tidemill_sandbox::STORE_USER;

/// Interval of checks of a file that has not grown.
const PERIOD: Duration = Duration::from_millis(10);
/// Interval of attempts to write to a full pipe.
const FULL: Duration = Duration::from_millis(1);
const PIECE_BYTES: usize = 1 << 20;
/// Maximum time that the thread delays a sealed file in favour of writers of other files.
const SEALED_MAX: Span = Span::from_secs(600);

/// Result of streaming an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streamed {
    /// The input is sealed and begins with all delivered bytes.
    Same,
    /// The input is sealed and differs from the delivered bytes.
    Changed,
    /// The label was cancelled.
    Abandoned,
}

/// Share of an input in the processor time that kernels may use while files are written.
#[derive(Clone, Debug)]
pub(crate) struct StreamingShare {
    pace: Arc<Mutex<ProcessorPace>>,
    leaves: u8,
    /// Size of the file in bytes at the last check.
    size: u64,
    /// Time at which a check first found the file sealed.
    sealed: Option<Time>,
}

impl StreamingShare {
    /// Returns the share of an input that leaves `leaves` percent of the processors to writers.
    pub(crate) const fn new(pace: Arc<Mutex<ProcessorPace>>, leaves: u8) -> Self {
        Self {
            pace,
            leaves,
            size: 0,
            sealed: None,
        }
    }

    /// Records the size of the file and whether the file is sealed.
    fn on_seen(&mut self, (size, sealed): (u64, bool), now: Time) {
        if sealed {
            self.sealed.get_or_insert(now);
        } else if size > self.size {
            self.pace.lock().on_grown(now);
        }
        self.size = size;
    }

    /// Returns whether the thread has to wait.
    fn rests(&self, now: Time) -> bool {
        let overdue = |sealed| now.since(sealed) >= SEALED_MAX;
        !self.sealed.is_some_and(overdue) && self.pace.lock().rest(self.leaves, now).is_some()
    }

    /// Records the processor time of work on a piece since `began`, without the time in which the thread waited.
    fn on_worked(&self, began: Time, waited: Duration) {
        let now = now();
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let worked = Span(now.since(began).0.saturating_sub(waited));
        self.pace.lock().on_worked(worked, now);
    }
}

/// Returns the monotonic time since the first call.
fn now() -> Time {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Time(u64::try_from(BEGUN.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Input that a thread delivers through a pipe.
#[derive(Debug)]
pub(crate) struct StreamingPipe {
    pipe: PathBuf,
    signs: Arc<Signs>,
    streamer: Option<JoinHandle<Result<Streamed, StoreError>>>,
}

#[derive(Debug, Default)]
struct Signs {
    /// Whether the kernel has ended, so that the thread delivers no more bytes.
    ended: AtomicBool,
    abandoned: AtomicBool,
}

impl StreamingPipe {
    /// Creates the pipe and starts the thread that writes it.
    pub(crate) fn begin(
        (store, object): (Arc<dyn Store>, ObjectId),
        is_recorded: impl Fn() -> bool + Send + 'static,
        making: Option<GrowingOutput>,
        pipe: PathBuf,
        turn: StreamingShare,
    ) -> std::io::Result<Self> {
        make_pipe(&pipe)?;
        let signs = Arc::new(Signs::default());
        let mut streamer = Streamer {
            store,
            object,
            is_recorded: Box::new(is_recorded),
            making,
            pipe: pipe.clone(),
            signs: signs.clone(),
            turn,
            out: PipeOutput::Closed,
            seen: false,
            at: 0,
            hasher: blake3::Hasher::new(),
            buffer: vec![0; PIECE_BYTES],
        };
        let streamer = Some(spawn(move || streamer.run()));
        Ok(Self {
            pipe,
            signs,
            streamer,
        })
    }

    /// Waits for the seal of the input, after the kernel has ended. Returns whether the kernel received the sealed bytes.
    pub(crate) fn end(mut self, abandoned: impl Fn() -> bool) -> Result<Streamed, StoreError> {
        self.signs.ended.store(true, Ordering::Release);
        let Some(streamer) = self.streamer.take() else {
            return Ok(Streamed::Abandoned);
        };
        while !streamer.is_finished() {
            if abandoned() {
                self.signs.abandoned.store(true, Ordering::Release);
            }
            sleep(FULL);
        }
        streamer.join().unwrap_or(Ok(Streamed::Abandoned))
    }
}

impl Drop for StreamingPipe {
    fn drop(&mut self) {
        self.signs.abandoned.store(true, Ordering::Release);
        let _ = std::fs::remove_file(&self.pipe);
    }
}

/// Creates a pipe that kernels of any user can read. Only its owner can write to it.
fn make_pipe(path: &Path) -> std::io::Result<()> {
    let _ = std::fs::remove_file(path);
    mknodat(CWD, path, FileType::Fifo, Mode::from(0o600), 0)?;
    let root = rustix::process::geteuid().is_root();
    if root {
        chown(path, Some(STORE_USER.uid), Some(STORE_USER.gid))?;
    }
    let mode = if root { 0o444 } else { 0o644 };
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

enum PipeOutput {
    /// No reader has opened the pipe yet.
    Closed,
    Open(File),
    /// The reader has closed the pipe.
    Left,
}

struct Streamer {
    store: Arc<dyn Store>,
    object: ObjectId,
    /// Returns whether the node has a record of the sealed object.
    is_recorded: Box<dyn Fn() -> bool + Send>,
    /// Source of the bytes until the label that writes them has ended.
    making: Option<GrowingOutput>,
    pipe: PathBuf,
    signs: Arc<Signs>,
    turn: StreamingShare,
    out: PipeOutput,
    /// Whether the object existed at an earlier check.
    seen: bool,
    /// Number of delivered bytes.
    at: u64,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl Streamer {
    fn run(&mut self) -> Result<Streamed, StoreError> {
        lower_priority();
        let streamed = self.stream();
        // A reader that opens the pipe from now on finds its end.
        self.out = PipeOutput::Left;
        while !self.over() {
            drop(self.open());
            sleep(PERIOD);
        }
        streamed
    }

    /// Returns whether the kernel has ended.
    fn over(&self) -> bool {
        self.signs.ended.load(Ordering::Acquire) || self.abandoned()
    }

    fn abandoned(&self) -> bool {
        self.signs.abandoned.load(Ordering::Acquire)
    }

    fn stream(&mut self) -> Result<Streamed, StoreError> {
        while !self.abandoned() {
            if self
                .making
                .as_ref()
                .is_some_and(|making| making.fate().is_bad())
            {
                // The pipe must be opened in any case: its reader waits for that.
                return Ok(Streamed::Abandoned);
            }
            // Before the file is looked for: the node itself may wait for a writer of the pipe, where no cancellation ends the wait.
            if matches!(self.out, PipeOutput::Closed) {
                self.out = self.open().map_or(PipeOutput::Closed, PipeOutput::Open);
            }
            let Some((size, sealed)) = self.look()? else {
                sleep(PERIOD);
                continue;
            };
            self.seen = true;
            // Outputs of tasks are no bursts.
            let bursts = self.making.is_none();
            if bursts {
                self.turn.on_seen((size, sealed), now());
            }
            let rests = bursts && self.turn.rests(now());
            let moved = !self.over() && !rests && self.deliver(size)?;
            let deaf = self.over() || matches!(self.out, PipeOutput::Left);
            if sealed && (deaf || self.at >= size) {
                return self.compare(size);
            }
            if !moved {
                sleep(PERIOD);
            }
        }
        Ok(Streamed::Abandoned)
    }

    /// Returns the length of the file in bytes and whether the file is sealed; `None` if the file does not exist yet.
    fn look(&mut self) -> Result<Option<(u64, bool)>, StoreError> {
        if let Some(making) = &mut self.making {
            if !making.fate().has_succeeded() {
                return Ok(Some((making.size(self.at > 0), false)));
            }
            self.making = None;
            self.seen = true;
        }
        // The object is recorded as sealed after its file exists.
        let awaited = !self.seen && !(self.is_recorded)();
        match self.store.stat(self.object) {
            Ok(stat) => Ok(Some((stat.size, stat.sealed))),
            // The writer has not started yet. If it never starts, the server cancels the label.
            Err(StoreError::NotFound { .. }) if awaited => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the next bytes of the file into the first `most` bytes of the buffer.
    fn fill(&mut self, most: usize) -> Result<usize, StoreError> {
        let buffer = &mut self.buffer[..most];
        if let Some(making) = &self.making {
            return making.read_at(self.at, buffer);
        }
        let opened = self.store.open(self.object)?;
        read(&*opened.bytes, self.at, buffer, &self.pipe)
    }

    fn open(&self) -> Option<File> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = OpenOptions::new();
        options
            .write(true)
            .custom_flags(flags)
            .open(&self.pipe)
            .ok()
    }

    /// Delivers some of the available bytes to the pipe. Returns whether bytes were available.
    fn deliver(&mut self, size: u64) -> Result<bool, StoreError> {
        if !matches!(self.out, PipeOutput::Open(_)) {
            return Ok(false);
        }
        let most = size.saturating_sub(self.at).min(PIECE_BYTES as u64);
        let most = usize::try_from(most).unwrap_or(PIECE_BYTES);
        if most == 0 {
            return Ok(false);
        }
        let began = now();
        let count = self.fill(most)?;
        let mut waited = Duration::ZERO;
        let written = self.write(count, &mut waited);
        if self.making.is_none() {
            self.turn.on_worked(began, waited);
        }
        written
    }

    /// Writes the bytes of the buffer to the pipe and waits for a slow kernel. Returns whether `count` is not 0.
    fn write(&mut self, count: usize, waited: &mut Duration) -> Result<bool, StoreError> {
        let PipeOutput::Open(pipe) = &mut self.out else {
            return Ok(false);
        };
        let mut left = &self.buffer[..count];
        while !left.is_empty() {
            match pipe.write(left) {
                Ok(written) => {
                    self.hasher.update(&left[..written]);
                    self.at += written as u64;
                    left = &left[written..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    sleep(FULL);
                    *waited += FULL;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.out = PipeOutput::Left;
                    return Ok(false);
                }
            }
            let signs = &self.signs;
            if signs.ended.load(Ordering::Acquire) || signs.abandoned.load(Ordering::Acquire) {
                return Ok(false);
            }
        }
        Ok(count > 0)
    }

    /// Returns whether the sealed file begins with the delivered bytes.
    fn compare(&mut self, size: u64) -> Result<Streamed, StoreError> {
        // The reader has received all bytes and need not wait.
        self.out = PipeOutput::Left;
        if self.at > size {
            return Ok(Streamed::Changed);
        }
        let opened = self.store.open(self.object)?;
        let (mut hasher, mut at) = (blake3::Hasher::new(), 0);
        while at < self.at {
            if self.abandoned() {
                return Ok(Streamed::Abandoned);
            }
            if self.turn.rests(now()) {
                sleep(PERIOD);
                continue;
            }
            let began = now();
            let most = usize::try_from(self.at - at)
                .unwrap_or(PIECE_BYTES)
                .min(PIECE_BYTES);
            let count = read(&*opened.bytes, at, &mut self.buffer[..most], &self.pipe)?;
            if count == 0 {
                return Ok(Streamed::Changed);
            }
            hasher.update(&self.buffer[..count]);
            at += count as u64;
            self.turn.on_worked(began, Duration::ZERO);
        }
        Ok(match hasher.finalize() == self.hasher.finalize() {
            true => Streamed::Same,
            false => Streamed::Changed,
        })
    }
}

fn read(
    bytes: &dyn crate::store::ReadAt,
    at: u64,
    buffer: &mut [u8],
    path: &Path,
) -> Result<usize, StoreError> {
    bytes
        .read_at(at, buffer)
        .map_err(|source| StoreError::Device {
            path: path.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::DirectoryStore;

    /// Begins to stream an object without a file.
    fn begin(directory: &Path, pipe: &Path, recorded: bool) -> StreamingPipe {
        let store = DirectoryStore::open(directory, None).unwrap();
        let turn = StreamingShare::new(Arc::new(Mutex::new(ProcessorPace::new(1))), 0);
        let from = (Arc::new(store) as Arc<dyn Store>, ObjectId(1));
        StreamingPipe::begin(from, move || recorded, None, pipe.to_owned(), turn).unwrap()
    }

    /// The file of a sealed object vanishes from the disk before the thread has found it.
    #[test]
    fn recorded_object_without_file_is_not_awaited() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let begun = Instant::now();
        let ends = |recorded: bool, patience: Duration| {
            let streaming = begin(directory.path(), &pipe, recorded);
            let until = begun.elapsed() + patience;
            streaming.end(|| begun.elapsed() > until)
        };
        let ended = ends(true, Duration::from_secs(20));
        assert!(
            matches!(ended, Err(StoreError::NotFound { .. })),
            "{ended:?}"
        );
        // Without a record, the writer has not begun: only an abort ends the wait.
        let ended = ends(false, Duration::from_millis(300));
        assert!(matches!(ended, Ok(Streamed::Abandoned)), "{ended:?}");
    }

    /// The writer never begins. The node opens the pipe before it starts the kernel, and no cancellation reaches it there.
    #[test]
    fn pipe_opens_before_writer_begins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let pipe = begin(directory.path(), &path, false);
        let reader = spawn(move || File::open(path));
        let begun = Instant::now();
        while !reader.is_finished() && begun.elapsed() < Duration::from_secs(20) {
            sleep(PERIOD);
        }
        assert!(reader.is_finished(), "the reader still waits for a writer");
        assert_eq!(pipe.end(|| true).unwrap(), Streamed::Abandoned);
    }
}
