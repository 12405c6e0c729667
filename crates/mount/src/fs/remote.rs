//! An object on another host: read ahead in large pieces, written behind in large pieces.
//!
//! All calls may wait for the element.

use super::backend::Backend;
use super::object::Stat;
use super::right::Right;
use crate::error::Error;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_client::Error as ClientError;
use tidemill_core::id::ObjectId;
use tokio::task::JoinHandle;

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
    writing: Mutex<Writing>,
    reading: Mutex<Reading>,
}

#[derive(Debug)]
struct Writing {
    size: u64,
    mtime: i64,
    start: u64,
    buffer: Vec<u8>,
    in_flight: VecDeque<InFlight>,
    /// The first failure: later calls repeat it, since bytes were lost.
    failed: Option<i32>,
}

#[derive(Debug)]
struct InFlight {
    start: u64,
    end: u64,
    task: JoinHandle<Result<(), tidemill_client::Error>>,
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
            writing: Mutex::new(Writing {
                size,
                mtime: now_ns(),
                start: 0,
                buffer: Vec::new(),
                in_flight: VecDeque::new(),
                failed: None,
            }),
            reading: Mutex::default(),
        }
    }

    /// It begins with that many bytes, which were last changed at `mtime`.
    pub(crate) fn begin_at(&self, size: u64, mtime: i64) {
        let mut writing = self.writing.lock();
        (writing.size, writing.mtime) = (size, mtime);
    }

    pub(crate) fn stat(&self) -> Stat {
        let writing = self.writing.lock();
        Stat {
            size: writing.size,
            mtime: writing.mtime,
            blocks: writing.size.div_ceil(512),
        }
    }

    pub(crate) fn set_mtime(&self, mtime: i64) {
        self.writing.lock().mtime = mtime;
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut writing = self.writing.lock();
        writing.check()?;
        let end = offset + bytes.len() as u64;
        let buffered = writing.start + writing.buffer.len() as u64;
        if offset >= writing.start && end <= buffered {
            let at = usize::try_from(offset - writing.start).unwrap_or(0);
            writing.buffer[at..at + bytes.len()].copy_from_slice(bytes);
        } else {
            let follows = offset == buffered
                && writing.buffer.len() as u64 + bytes.len() as u64 <= PIECE_BYTES_MAX;
            if !follows {
                self.send(&mut writing)?;
                writing.start = offset;
            }
            writing.buffer.extend_from_slice(bytes);
        }
        writing.size = writing.size.max(end);
        writing.mtime = now_ns();
        drop(writing);
        self.reading.lock().pieces.clear();
        Ok(())
    }

    /// Sends what is buffered, without waiting for its arrival.
    fn send(&self, writing: &mut Writing) -> Result<(), Error> {
        if writing.buffer.is_empty() {
            return Ok(());
        }
        let buffer = std::mem::take(&mut writing.buffer);
        let (start, end) = (writing.start, writing.start + buffer.len() as u64);
        let overlaps = writing
            .in_flight
            .iter()
            .any(|f| f.start < end && start < f.end);
        let leave = if overlaps { 0 } else { IN_FLIGHT_MAX - 1 };
        self.settle(writing, leave)?;
        let (backend, right, element) = (self.backend.clone(), self.right.clone(), self.element);
        let buffer = Bytes::from(buffer);
        let task = self.backend.runtime.spawn(async move {
            let objects = &backend.objects;
            let write = |address| {
                let piece = buffer.clone();
                async move { objects.write(&address, start, piece).await }
            };
            right.ask(&backend, element, write).await
        });
        writing.in_flight.push_back(InFlight { start, end, task });
        Ok(())
    }

    /// Waits until no more than `leave` pieces are on their way.
    fn settle(&self, writing: &mut Writing, leave: usize) -> Result<(), Error> {
        while writing.in_flight.len() > leave {
            let Some(first) = writing.in_flight.pop_front() else {
                break;
            };
            let outcome = match self.backend.runtime.block_on(first.task) {
                Ok(outcome) => outcome.map_err(Error::from),
                Err(_) => Err(rustix::io::Errno::IO.into()),
            };
            if let Err(error) = outcome {
                tracing::warn!(element = self.element, "a write failed: {error}");
                writing.failed = Some(error.errno());
                return Err(error);
            }
        }
        writing.check()
    }

    pub(crate) fn flush(&self) -> Result<(), Error> {
        let mut writing = self.writing.lock();
        writing.check()?;
        self.send(&mut writing)?;
        self.settle(&mut writing, 0)
    }

    /// Sends what is buffered and has the element make it durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.flush()?;
        let objects = &self.backend.objects;
        let sync = |address| async move { objects.sync(&address).await };
        let asked = self.right.ask(&self.backend, self.element, sync);
        Ok(self.backend.runtime.block_on(asked)?)
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<(), Error> {
        let mut writing = self.writing.lock();
        writing.check()?;
        self.send(&mut writing)?;
        self.settle(&mut writing, 0)?;
        let objects = &self.backend.objects;
        let truncate = |address| async move { objects.truncate(&address, size).await };
        let asked = self.right.ask(&self.backend, self.element, truncate);
        self.backend.runtime.block_on(asked)?;
        writing.size = size;
        writing.mtime = now_ns();
        drop(writing);
        self.reading.lock().pieces.clear();
        Ok(())
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
            let asked = self.right.ask(&self.backend, self.element, copy);
            match self.backend.runtime.block_on(asked) {
                // The right to read the source may have run out too.
                Err(ClientError::ElementRefused { status: 403, .. }) if !renewed => {
                    renewed = true;
                    self.backend.runtime.block_on(right.renew(&self.backend))?;
                }
                copied => return Ok(copied?),
            }
        }
    }

    /// Allocates or frees the space of a range, as `fallocate(2)` does by `mode`.
    pub(crate) fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<(), Error> {
        self.flush()?;
        let objects = &self.backend.objects;
        let allocate =
            |address| async move { objects.allocate(&address, (offset, length), mode).await };
        let asked = self.right.ask(&self.backend, self.element, allocate);
        let size = self.backend.runtime.block_on(asked)?;
        let mut writing = self.writing.lock();
        // The element may not have been sent the last bytes: they are a hole.
        writing.size = writing.size.max(size);
        writing.mtime = now_ns();
        drop(writing);
        self.reading.lock().pieces.clear();
        Ok(())
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let size = {
            let mut writing = self.writing.lock();
            if !writing.buffer.is_empty() || !writing.in_flight.is_empty() {
                self.send(&mut writing)?;
                self.settle(&mut writing, 0)?;
            }
            writing.size
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
        self.backend.runtime.spawn(async move {
            let objects = &backend.objects;
            let read = |address| async move { objects.read(&address, start, length).await };
            let answer = right.ask(&backend, element, read).await;
            let answer = answer.map_err(|error| {
                tracing::warn!(element, "a read failed: {error}");
                error.errno()
            });
            *asked.data.lock() = Some(answer);
            asked.ready.notify_all();
        });
        piece
    }

    /// Forgets pieces, so that a failed one is asked for again.
    fn forget(&self) {
        self.reading.lock().pieces.clear();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let (backend, right) = (self.backend.clone(), self.right.clone());
        self.backend
            .runtime
            .spawn(async move { right.release(&backend).await });
    }
}

impl Writing {
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
                None => self.ready.wait(&mut data),
            }
        }
    }
}
