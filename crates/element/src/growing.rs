//! Inputs that are still being written: fed to kernels through a pipe as their bytes arrive, in order, until they are sealed.
//!
//! They are versions that a mount or a client writes, or what another task is making. Nothing tells when a program writes into a
//! file that it has open, so the file is looked at again and again. What was
//! delivered is compared with what was sealed: who went back and wrote over it has made it another stream.
//!
//! All of that is nice, and rests while files grow ([`tidemill_core::burst::share`]), so that who writes has the processors. The
//! thread that feeds is nice and no more: what it holds for a moment, of the store or of the system, a writer may wait for.

use crate::feeds::Making;
use crate::scrub::be_nice;
use crate::store::{Store, StoreError};
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use tidemill_core::burst::share::Pace;
use tidemill_core::id::ObjectId;
use tidemill_core::time::{Span, Time};
use tidemill_kernel::STORE_USER;

/// How often a file is looked at that did not grow.
const PERIOD: Duration = Duration::from_millis(10);
/// How often a full pipe is.
const FULL: Duration = Duration::from_millis(1);
const PIECE_BYTES: usize = 1 << 20;
/// Who writes on and on elsewhere has a closed file wait no longer than that for its turn.
const SEALED_MAX: Span = Span::from_secs(600);

/// What became of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grown {
    /// It is sealed, and begins with all that was delivered.
    Same,
    /// It is sealed, and other bytes were delivered.
    Changed,
    /// The label was given up.
    GivenUp,
}

/// Its part of what kernels may have while somebody writes.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pace: Arc<Mutex<Pace>>,
    leaves: u8,
    /// The size that was seen last.
    size: u64,
    /// Since when it is known to be sealed.
    sealed: Option<Time>,
}

impl Turn {
    /// The next piece is one of an input that leaves so many percent to who writes.
    pub(crate) const fn new(pace: Arc<Mutex<Pace>>, leaves: u8) -> Self {
        Self {
            pace,
            leaves,
            size: 0,
            sealed: None,
        }
    }

    /// How the file was found.
    fn on_seen(&mut self, (size, sealed): (u64, bool), now: Time) {
        if sealed {
            self.sealed.get_or_insert(now);
        } else if size > self.size {
            self.pace.lock().on_grown(now);
        }
        self.size = size;
    }

    /// Whether it has to wait.
    fn rests(&self, now: Time) -> bool {
        let overdue = |sealed| now.since(sealed) >= SEALED_MAX;
        !self.sealed.is_some_and(overdue) && self.pace.lock().rest(self.leaves, now).is_some()
    }

    /// A piece was worked on since then, but for a time in which nothing was done.
    fn on_worked(&self, began: Time, waited: Duration) {
        let now = now();
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let worked = Span(now.since(began).0.saturating_sub(waited));
        self.pace.lock().on_worked(worked, now);
    }
}

/// The time since the first of these was begun: nobody can set it back.
fn now() -> Time {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Time(u64::try_from(BEGUN.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// An input on its way into a pipe.
#[derive(Debug)]
pub(crate) struct Growing {
    pipe: PathBuf,
    signs: Arc<Signs>,
    feeder: Option<JoinHandle<Result<Grown, StoreError>>>,
}

#[derive(Debug, Default)]
struct Signs {
    /// The kernel has ended: nothing more is delivered.
    ended: AtomicBool,
    given_up: AtomicBool,
}

impl Growing {
    /// Makes the pipe and begins to feed it.
    pub(crate) fn begin(
        (store, object): (Arc<dyn Store>, ObjectId),
        making: Option<Making>,
        pipe: PathBuf,
        turn: Turn,
    ) -> std::io::Result<Self> {
        make_pipe(&pipe)?;
        let signs = Arc::new(Signs::default());
        let mut feeder = Feeder {
            store,
            object,
            making,
            pipe: pipe.clone(),
            signs: signs.clone(),
            turn,
            out: Out::Closed,
            seen: false,
            at: 0,
            hasher: blake3::Hasher::new(),
            buffer: vec![0; PIECE_BYTES],
        };
        let feeder = Some(spawn(move || feeder.run()));
        Ok(Self {
            pipe,
            signs,
            feeder,
        })
    }

    /// Waits for the seal; the kernel has ended.
    pub(crate) fn end(mut self, given_up: impl Fn() -> bool) -> Result<Grown, StoreError> {
        self.signs.ended.store(true, Ordering::Release);
        let Some(feeder) = self.feeder.take() else {
            return Ok(Grown::GivenUp);
        };
        while !feeder.is_finished() {
            if given_up() {
                self.signs.given_up.store(true, Ordering::Release);
            }
            sleep(FULL);
        }
        feeder.join().unwrap_or(Ok(Grown::GivenUp))
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        self.signs.given_up.store(true, Ordering::Release);
        let _ = std::fs::remove_file(&self.pipe);
    }
}

/// A pipe that kernels may read, whatever user they run as, and nobody else may write.
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

enum Out {
    /// Nobody reads yet.
    Closed,
    Open(File),
    /// Whoever read has closed it.
    Left,
}

struct Feeder {
    store: Arc<dyn Store>,
    object: ObjectId,
    /// Where it is until its label has ended.
    making: Option<Making>,
    pipe: PathBuf,
    signs: Arc<Signs>,
    turn: Turn,
    out: Out,
    /// The object was there once.
    seen: bool,
    /// Bytes that were delivered.
    at: u64,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl Feeder {
    fn run(&mut self) -> Result<Grown, StoreError> {
        be_nice();
        let grown = self.feed();
        // Whoever opens the pipe now finds its end.
        self.out = Out::Left;
        while !self.over() {
            drop(self.open());
            sleep(PERIOD);
        }
        grown
    }

    /// Whether the kernel has ended.
    fn over(&self) -> bool {
        self.signs.ended.load(Ordering::Acquire) || self.given_up()
    }

    fn given_up(&self) -> bool {
        self.signs.given_up.load(Ordering::Acquire)
    }

    fn feed(&mut self) -> Result<Grown, StoreError> {
        while !self.given_up() {
            if self
                .making
                .as_ref()
                .is_some_and(|making| making.fate().is_bad())
            {
                // It is to be opened all the same: whoever does waits for that.
                return Ok(Grown::GivenUp);
            }
            let Some((size, sealed)) = self.look()? else {
                sleep(PERIOD);
                continue;
            };
            self.seen = true;
            // What tasks make is no burst.
            let bursts = self.making.is_none();
            if bursts {
                self.turn.on_seen((size, sealed), now());
            }
            let rests = bursts && self.turn.rests(now());
            let moved = !self.over() && !rests && self.deliver(size)?;
            let deaf = self.over() || matches!(self.out, Out::Left);
            if sealed && (deaf || self.at >= size) {
                return self.compare(size);
            }
            if !moved {
                sleep(PERIOD);
            }
        }
        Ok(Grown::GivenUp)
    }

    /// How long it is and whether it is sealed; `None` if it is not there yet.
    fn look(&mut self) -> Result<Option<(u64, bool)>, StoreError> {
        if let Some(making) = &mut self.making {
            if !making.fate().is_well() {
                return Ok(Some((making.size(self.at > 0), false)));
            }
            self.making = None;
            self.seen = true;
        }
        match self.store.stat(self.object) {
            Ok(stat) => Ok(Some((stat.size, stat.sealed))),
            // Its writer has not begun; the server says if it never will.
            Err(StoreError::NotFound { .. }) if !self.seen => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads what comes next into the first `most` bytes of the buffer.
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

    /// Delivers some of what is there; whether there was something.
    fn deliver(&mut self, size: u64) -> Result<bool, StoreError> {
        if matches!(self.out, Out::Closed)
            && let Some(pipe) = self.open()
        {
            self.out = Out::Open(pipe);
        }
        if !matches!(self.out, Out::Open(_)) {
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

    /// Writes what was read into the pipe; whether there was something. A kernel that is slow to read it is waited for.
    fn write(&mut self, count: usize, waited: &mut Duration) -> Result<bool, StoreError> {
        let Out::Open(pipe) = &mut self.out else {
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
                    self.out = Out::Left;
                    return Ok(false);
                }
            }
            let signs = &self.signs;
            if signs.ended.load(Ordering::Acquire) || signs.given_up.load(Ordering::Acquire) {
                return Ok(false);
            }
        }
        Ok(count > 0)
    }

    /// Whether what was sealed begins with what was delivered.
    fn compare(&mut self, size: u64) -> Result<Grown, StoreError> {
        // The reader has all of it, and need not wait.
        self.out = Out::Left;
        if self.at > size {
            return Ok(Grown::Changed);
        }
        let opened = self.store.open(self.object)?;
        let (mut hasher, mut at) = (blake3::Hasher::new(), 0);
        while at < self.at {
            if self.given_up() {
                return Ok(Grown::GivenUp);
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
                return Ok(Grown::Changed);
            }
            hasher.update(&self.buffer[..count]);
            at += count as u64;
            self.turn.on_worked(began, Duration::ZERO);
        }
        Ok(match hasher.finalize() == self.hasher.finalize() {
            true => Grown::Same,
            false => Grown::Changed,
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
