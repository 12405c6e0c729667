//! An object on another host: read ahead in large pieces, written behind in large pieces.
//!
//! All calls may wait for the element.

use super::backend::Backend;
use super::object::Stat;
use super::patience;
use super::right::Right;
use crate::error::Error;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_client::objects::Remote as Address;
use tidemill_core::id::ObjectId;
use tokio::sync::Notify;

/// Largest piece that is asked for or sent at once.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// First piece of a read that looks sequential.
const PIECE_BYTES_MIN: u64 = 512 << 10;
/// Piece of a read that looks random.
const RANDOM_BYTES: u64 = 64 << 10;
/// Pieces kept for one object.
const PIECES_MAX: usize = 6;
/// Pieces on their way to the element at once.
const IN_FLIGHT_MAX: usize = 3;
/// How far from the expected place a read still counts as sequential: the kernel reads ahead out of order.
const SLACK_BYTES: u64 = 1 << 20;

/// An object on another host.
#[derive(Debug)]
pub(crate) struct Remote {
    backend: Arc<Backend>,
    element: u32,
    right: Arc<Right>,
    out: Arc<Out>,
    reading: Mutex<Reading>,
}

/// What is on its way to the element. Nobody holds the lock while waiting for it.
#[derive(Debug)]
struct Out {
    writing: Mutex<Writing>,
    /// Signalled when something arrived or failed.
    changed: Condvar,
    /// The same, for async code.
    settled: Notify,
}

#[derive(Debug)]
struct Writing {
    size: u64,
    mtime: i64,
    start: u64,
    buffer: Vec<u8>,
    in_flight: Vec<InFlight>,
    next: u64,
    /// An operation has waited in vain since anything arrived: others are told so without another wait.
    stalled: bool,
    /// The first failure: later calls repeat it, since bytes were lost.
    failed: Option<i32>,
}

/// A piece that is sent until it has arrived, however long its element is away.
#[derive(Debug)]
struct InFlight {
    start: u64,
    end: u64,
    number: u64,
}

#[derive(Debug, Default)]
struct Reading {
    pieces: VecDeque<Arc<Piece>>,
    expected: u64,
    window: u64,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    end: u64,
    data: Mutex<Option<Result<Bytes, i32>>>,
    ready: Condvar,
}

/// Now, in nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |t| i64::try_from(t.as_nanos()).unwrap_or(i64::MAX))
}

impl Remote {
    /// An object of that size in bytes.
    pub(crate) fn new(backend: Arc<Backend>, element: u32, right: Arc<Right>, size: u64) -> Self {
        Self {
            backend,
            element,
            right,
            out: Arc::new(Out {
                writing: Mutex::new(Writing {
                    size,
                    mtime: now_ns(),
                    start: 0,
                    buffer: Vec::new(),
                    in_flight: Vec::new(),
                    next: 0,
                    stalled: false,
                    failed: None,
                }),
                changed: Condvar::new(),
                settled: Notify::new(),
            }),
            reading: Mutex::default(),
        }
    }

    /// It begins with that many bytes, which were last changed at `mtime`.
    pub(crate) fn begin_at(&self, size: u64, mtime: i64) {
        let mut writing = self.out.writing.lock();
        (writing.size, writing.mtime) = (size, mtime);
    }

    /// Somebody else has written that much of it.
    pub(crate) fn grow(&self, size: u64) {
        let mut writing = self.out.writing.lock();
        writing.size = writing.size.max(size);
    }

    pub(crate) fn stat(&self) -> Stat {
        let writing = self.out.writing.lock();
        Stat {
            size: writing.size,
            mtime: writing.mtime,
            blocks: writing.size.div_ceil(512),
        }
    }

    pub(crate) fn set_mtime(&self, mtime: i64) {
        self.out.writing.lock().mtime = mtime;
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut writing = self.out.writing.lock();
        loop {
            writing.check()?;
            if writing.take(offset, bytes) {
                break;
            }
            self.send(&mut writing)?;
        }
        writing.size = writing.size.max(offset + bytes.len() as u64);
        writing.mtime = now_ns();
        drop(writing);
        self.reading.lock().pieces.clear();
        Ok(())
    }

    /// Sends what is buffered, without waiting for its arrival. May let go of the lock.
    fn send(&self, writing: &mut MutexGuard<'_, Writing>) -> Result<(), Error> {
        while !writing.buffer.is_empty() {
            writing.check()?;
            if writing.has_room() {
                self.dispatch(writing);
            } else {
                self.wait(writing)?;
            }
        }
        Ok(())
    }

    /// Waits for something to arrive, as long as the operation has time.
    fn wait(&self, writing: &mut MutexGuard<'_, Writing>) -> Result<(), Error> {
        let before = writing.in_flight.len();
        let began = patience::now();
        let in_vain =
            writing.stalled || { patience::wait(&self.out.changed, writing, patience::deadline()) };
        if in_vain {
            writing.stalled |= (patience::now() - began) > patience::PATIENCE / 2;
            // Nothing is lost: what is on its way goes on trying.
            return Err(rustix::io::Errno::HOSTUNREACH.into());
        }
        if writing.in_flight.len() < before {
            patience::renew();
        }
        Ok(())
    }

    /// Sends the buffer.
    fn dispatch(&self, writing: &mut Writing) {
        let buffer = Bytes::from(std::mem::take(&mut writing.buffer));
        let (start, end) = (writing.start, writing.start + buffer.len() as u64);
        let number = writing.enter(start, end);
        let (backend, right, element) = (self.backend.clone(), self.right.clone(), self.element);
        let out = self.out.clone();
        self.backend.runtime.spawn(async move {
            let objects = &backend.objects;
            let write = |address| {
                let piece = buffer.clone();
                async move { objects.write(&address, start, piece).await }
            };
            let outcome = right.ask(&backend, None, write).await;
            if let Err(error) = &outcome {
                tracing::warn!(element, "a write failed: {error}");
            }
            out.arrived(number, outcome.err().map(|error| error.errno()));
        });
    }

    /// Sends what is buffered, if that can go now.
    pub(crate) fn begin_flush(&self) {
        let mut writing = self.out.writing.lock();
        if !writing.buffer.is_empty() && writing.has_room() {
            self.dispatch(&mut writing);
        }
    }

    /// Sends what is buffered and waits until it has arrived, as long as the operation has time.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let mut writing = self.out.writing.lock();
        self.send(&mut writing)?;
        while !writing.in_flight.is_empty() {
            self.wait(&mut writing)?;
        }
        writing.check()
    }

    /// As [`Self::flush`], for as long as the mount lives.
    pub(crate) async fn flushed(&self) -> Result<(), Error> {
        loop {
            let arrived = self.out.settled.notified();
            tokio::pin!(arrived);
            // Before the look, so that no arrival can fall between.
            arrived.as_mut().enable();
            {
                let mut writing = self.out.writing.lock();
                writing.check()?;
                if !writing.buffer.is_empty() && writing.has_room() {
                    self.dispatch(&mut writing);
                }
                if writing.buffer.is_empty() && writing.in_flight.is_empty() {
                    return Ok(());
                }
            }
            arrived.await;
        }
    }

    /// Sends what is buffered and has the element make it durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.flush()?;
        let objects = &self.backend.objects;
        let sync = |address| async move { objects.sync(&address).await };
        self.ask_now(sync)
    }

    /// Makes a request that this thread's operation waits for.
    fn ask_now<T, F>(&self, request: impl Fn(Address) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, tidemill_client::Error>>,
    {
        let until = Some(patience::deadline());
        let asked = self.right.ask(&self.backend, until, request);
        Ok(self.backend.runtime.block_on(asked)?)
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<(), Error> {
        let number = {
            let mut writing = self.out.writing.lock();
            self.send(&mut writing)?;
            while !writing.in_flight.is_empty() {
                self.wait(&mut writing)?;
            }
            writing.check()?;
            // What is written meanwhile goes after it.
            writing.enter(0, u64::MAX)
        };
        let objects = &self.backend.objects;
        let truncate = |address| async move { objects.truncate(&address, size).await };
        let outcome = self.ask_now(truncate);
        {
            let mut writing = self.out.writing.lock();
            if outcome.is_ok() {
                writing.size = size;
                writing.mtime = now_ns();
            }
        }
        self.out.arrived(number, None);
        self.reading.lock().pieces.clear();
        outcome
    }

    /// Has the element make the object, which does not exist yet, of the first bytes of a sealed one that it has.
    pub(crate) fn copy(&self, source: u64, right: &Right, bytes: u64) -> Result<(), Error> {
        let objects = &self.backend.objects;
        let mut renewed = false;
        loop {
            let capability = &right.capability();
            let copy = |address| async move {
                let source = ObjectId(source);
                objects.copy(&address, source, capability, bytes).await
            };
            match self.ask_now(copy) {
                // The right to read the source may have run out too.
                Err(error) if error.is(rustix::io::Errno::ACCESS) && !renewed => {
                    renewed = true;
                    let until = Some(patience::deadline());
                    let again = right.renew(&self.backend, until);
                    self.backend.runtime.block_on(again)?;
                }
                copied => return copied,
            }
        }
    }

    /// Allocates or frees the space of a range, as `fallocate(2)` does by `mode`.
    pub(crate) fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<(), Error> {
        self.flush()?;
        let objects = &self.backend.objects;
        let allocate =
            |address| async move { objects.allocate(&address, (offset, length), mode).await };
        let size = self.ask_now(allocate)?;
        let mut writing = self.out.writing.lock();
        // The element may not have been sent the last bytes: they are a hole.
        writing.size = writing.size.max(size);
        writing.mtime = now_ns();
        drop(writing);
        self.reading.lock().pieces.clear();
        Ok(())
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let size = {
            let writing = self.out.writing.lock();
            let pending = !writing.buffer.is_empty() || !writing.in_flight.is_empty();
            drop(writing);
            if pending {
                self.flush()?;
            }
            self.out.writing.lock().size
        };
        let end = offset.saturating_add(length as u64).min(size);
        let mut out = Vec::with_capacity(length);
        let mut at = offset;
        while at < end {
            let piece = self.piece(at, end, size);
            let data = piece.wait().inspect_err(|_| self.forget())?;
            let skip = usize::try_from(at - piece.start).unwrap_or(usize::MAX);
            let take = usize::try_from(end.min(piece.end) - at).unwrap_or(0);
            let held = data.get(skip..data.len().min(skip.saturating_add(take)));
            let held = held.unwrap_or_default();
            out.extend_from_slice(held);
            // The object's last bytes may never have been written: they are a hole.
            out.resize(out.len() + take - held.len(), 0);
            at += take as u64;
        }
        Ok(out)
    }

    /// Asks for bytes that are about to be read.
    pub(crate) fn ask_for(&self, range: Range<u64>) {
        let size = {
            let writing = self.out.writing.lock();
            if !writing.buffer.is_empty() || !writing.in_flight.is_empty() {
                return;
            }
            writing.size
        };
        let end = range.end.min(size);
        if range.start < end {
            self.piece(range.start, end, size);
        }
    }

    /// The piece that holds `at`, asked for if need be; asks ahead for the next if reads look sequential.
    fn piece(&self, at: u64, end: u64, size: u64) -> Arc<Piece> {
        let mut reading = self.reading.lock();
        let sequential = at.abs_diff(reading.expected) <= SLACK_BYTES;
        reading.expected = end;
        let held = reading.pieces.iter().find(|p| p.start <= at && at < p.end);
        let piece = if let Some(piece) = held {
            piece.clone()
        } else {
            reading.window = if sequential {
                (reading.window * 2).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
            } else {
                RANDOM_BYTES
            };
            let length = reading.window.max(end - at).min(size - at);
            self.ask(&mut reading, at, length)
        };
        let next = piece.end;
        if sequential
            && next < size
            && !reading
                .pieces
                .iter()
                .any(|p| p.start <= next && next < p.end)
        {
            reading.window = (reading.window * 2).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
            let length = reading.window.min(size - next);
            self.ask(&mut reading, next, length);
        }
        piece
    }

    fn ask(&self, reading: &mut Reading, start: u64, length: u64) -> Arc<Piece> {
        let piece = Arc::new(Piece {
            start,
            end: start + length,
            data: Mutex::new(None),
            ready: Condvar::new(),
        });
        reading.pieces.push_back(piece.clone());
        if reading.pieces.len() > PIECES_MAX {
            reading.pieces.pop_front();
        }
        let (backend, right, element) = (self.backend.clone(), self.right.clone(), self.element);
        let asked = piece.clone();
        let until = Some(patience::deadline());
        self.backend.runtime.spawn(async move {
            let objects = &backend.objects;
            let read = |address| async move { objects.read(&address, start, length).await };
            let answer = right.ask(&backend, until, read).await;
            let answer = answer.map_err(|error| {
                tracing::warn!(element, "a read failed: {error}");
                error.errno()
            });
            *asked.data.lock() = Some(answer);
            asked.ready.notify_all();
        });
        piece
    }

    /// Forgets pieces: they are asked for again when they are read.
    pub(crate) fn forget(&self) {
        self.reading.lock().pieces.clear();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.right.holds() {
            self.backend.released(self.right.release());
        }
    }
}

impl Out {
    /// A piece is where it belongs, or never will be.
    fn arrived(&self, number: u64, failed: Option<i32>) {
        let mut writing = self.writing.lock();
        writing.in_flight.retain(|piece| piece.number != number);
        writing.stalled = false;
        writing.failed = writing.failed.or(failed);
        drop(writing);
        self.changed.notify_all();
        self.settled.notify_waiters();
    }
}

impl Writing {
    /// Takes bytes into the buffer, if they belong to what is there.
    fn take(&mut self, offset: u64, bytes: &[u8]) -> bool {
        if self.buffer.is_empty() {
            self.start = offset;
        }
        let (end, buffered) = (
            offset + bytes.len() as u64,
            self.start + self.buffer.len() as u64,
        );
        if offset >= self.start && end <= buffered {
            let at = usize::try_from(offset - self.start).unwrap_or(0);
            self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
            return true;
        }
        let small = (self.buffer.len() + bytes.len()) as u64 <= PIECE_BYTES_MAX;
        if offset != buffered || !(small || self.buffer.is_empty()) {
            return false;
        }
        self.buffer.extend_from_slice(bytes);
        true
    }

    /// Whether the buffer may be sent now: pieces of the same bytes go one after the other.
    fn has_room(&self) -> bool {
        let (start, end) = (self.start, self.start + self.buffer.len() as u64);
        let overlaps = |piece: &InFlight| piece.start < end && start < piece.end;
        self.in_flight.len() < IN_FLIGHT_MAX && !self.in_flight.iter().any(overlaps)
    }

    /// Notes that something is on its way; gives its number.
    fn enter(&mut self, start: u64, end: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.in_flight.push(InFlight { start, end, number });
        number
    }

    fn check(&self) -> Result<(), Error> {
        match self.failed {
            Some(errno) => Err(rustix::io::Errno::from_raw_os_error(errno).into()),
            None => Ok(()),
        }
    }
}

impl Piece {
    fn wait(&self) -> Result<Bytes, Error> {
        let mut data = self.data.lock();
        loop {
            match &*data {
                Some(Ok(bytes)) => return Ok(bytes.clone()),
                Some(Err(errno)) => {
                    return Err(rustix::io::Errno::from_raw_os_error(*errno).into());
                }
                None => {
                    if patience::wait(&self.ready, &mut data, patience::deadline()) {
                        return Err(rustix::io::Errno::HOSTUNREACH.into());
                    }
                    patience::renew();
                }
            }
        }
    }
}
