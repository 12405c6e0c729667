//! An object on another host. Reads fetch large pieces ahead, and writes are sent later in large pieces. The module sends requests to the
//! object's node (next: `node/src`).
//!
//! All functions may wait for the node.

mod state;

use super::backend::Backend;
use super::deadline;
use super::object::WriteStat;
use super::right::Right;
use crate::error::Error;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use state::{RequestedBytes, SentWrite, TransferState};
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_client::objects::ObjectAddress as Address;
use tidemill_model::id::ObjectId;
use tokio::sync::Notify;

/// An object on another host.
#[derive(Debug)]
pub(crate) struct NodeObject {
    backend: Arc<Backend>,
    node: u32,
    right: Arc<Right>,
    out: Arc<BytesInFlight>,
}

/// Buffered and requested bytes of the object. No thread holds the lock while it waits for them.
#[derive(Debug)]
struct BytesInFlight {
    state: Mutex<TransferState>,
    /// Condition variable that is signalled when bytes have arrived at the node or failed.
    changed: Condvar,
    /// Notification for async code when bytes have arrived at the node or failed.
    settled: Notify,
}

/// Returns the current time in nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |t| i64::try_from(t.as_nanos()).unwrap_or(i64::MAX))
}

impl NodeObject {
    /// Returns an object of `size` bytes.
    pub(crate) fn new(backend: Arc<Backend>, node: u32, right: Arc<Right>, size: u64) -> Self {
        Self {
            backend,
            node,
            right,
            out: Arc::new(BytesInFlight {
                state: Mutex::new(TransferState::new(size, now_ns())),
                changed: Condvar::new(),
                settled: Notify::new(),
            }),
        }
    }

    /// Sets the size and mtime with which the object begins.
    pub(crate) fn begin_at(&self, size: u64, mtime: i64) {
        let mut state = self.out.state.lock();
        (state.size, state.mtime) = (size, mtime);
    }

    /// Records that another client has written the object up to `size` bytes.
    pub(crate) fn grow(&self, size: u64) {
        let mut state = self.out.state.lock();
        state.size = state.size.max(size);
    }

    pub(crate) fn stat(&self) -> WriteStat {
        let state = self.out.state.lock();
        WriteStat {
            size: state.size,
            mtime: state.mtime,
            blocks: state.size.div_ceil(512),
        }
    }

    pub(crate) fn set_mtime(&self, mtime: i64) {
        self.out.state.lock().mtime = mtime;
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.out.state.lock();
        loop {
            check(&state)?;
            if state.take(offset, bytes) {
                break;
            }
            self.send(&mut state)?;
        }
        state.mtime = now_ns();
        Ok(())
    }

    /// Sends the buffered bytes, without waiting for their arrival. May release the lock temporarily.
    fn send(&self, state: &mut MutexGuard<'_, TransferState>) -> Result<(), Error> {
        while !state.is_sent() {
            check(state)?;
            if state.has_space() {
                self.dispatch(state);
            } else {
                self.wait(state)?;
            }
        }
        Ok(())
    }

    /// Waits until bytes arrive, or until the operation's deadline.
    fn wait(&self, state: &mut MutexGuard<'_, TransferState>) -> Result<(), Error> {
        let before = state.on_their_way();
        let began = deadline::now();
        let in_vain =
            state.stalled || { deadline::wait(&self.out.changed, state, deadline::deadline()) };
        if in_vain {
            state.stalled |= (deadline::now() - began) > deadline::limit() / 2;
            // No byte is lost: bytes on their way are sent again until they arrive.
            return Err(rustix::io::Errno::HOSTUNREACH.into());
        }
        if state.on_their_way() < before {
            deadline::renew();
        }
        Ok(())
    }

    /// Sends the bytes of the buffer to the node.
    fn dispatch(&self, state: &mut TransferState) {
        let SentWrite {
            number,
            start,
            bytes,
        } = state.dispatch();
        let (backend, right, node) = (self.backend.clone(), self.right.clone(), self.node);
        let out = self.out.clone();
        self.backend.runtime.spawn(async move {
            let objects = &backend.objects;
            let write = |address| {
                let piece = bytes.clone();
                async move { objects.write(&address, start, piece).await }
            };
            let outcome = right.ask(&backend, None, write).await;
            if let Err(error) = &outcome {
                tracing::warn!(node, "a write failed: {error}");
            }
            out.arrived(number, outcome.err().map(|error| error.errno()));
        });
    }

    /// Sends the buffered bytes, if they can be sent now.
    pub(crate) fn begin_flush(&self) {
        let mut state = self.out.state.lock();
        if !state.is_sent() && state.has_space() {
            self.dispatch(&mut state);
        }
    }

    /// Sends the buffered bytes and waits until they have arrived, or until the operation's deadline.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let mut state = self.out.state.lock();
        self.send(&mut state)?;
        while state.on_their_way() > 0 {
            self.wait(&mut state)?;
        }
        check(&state)
    }

    /// Sends the buffered bytes like [`Self::flush`], retrying for as long as the mount runs.
    pub(crate) async fn flushed(&self) -> Result<(), Error> {
        loop {
            let arrived = self.out.settled.notified();
            tokio::pin!(arrived);
            // Enabled before the check, so that no arrival is missed in between.
            arrived.as_mut().enable();
            {
                let mut state = self.out.state.lock();
                check(&state)?;
                if !state.is_sent() && state.has_space() {
                    self.dispatch(&mut state);
                }
                if state.is_clean() {
                    return Ok(());
                }
            }
            arrived.await;
        }
    }

    /// Sends the buffered bytes and makes the node store them durably.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.flush()?;
        let objects = &self.backend.objects;
        let sync = |address| async move { objects.sync(&address).await };
        self.ask_now(sync)
    }

    /// Sends a request to the node on behalf of this thread's operation, which waits for the answer.
    fn ask_now<T, F>(&self, request: impl Fn(Address) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, tidemill_client::Error>>,
    {
        let until = Some(deadline::deadline());
        let asked = self.right.ask(&self.backend, until, request);
        Ok(self.backend.runtime.block_on(asked)?)
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<(), Error> {
        let number = {
            let mut state = self.out.state.lock();
            self.send(&mut state)?;
            while state.on_their_way() > 0 {
                self.wait(&mut state)?;
            }
            check(&state)?;
            // Writes that start during the request follow it.
            state.enter(0, u64::MAX)
        };
        let objects = &self.backend.objects;
        let truncate = |address| async move { objects.truncate(&address, size).await };
        let outcome = self.ask_now(truncate);
        {
            let mut state = self.out.state.lock();
            if outcome.is_ok() {
                state.size = size;
                state.mtime = now_ns();
            }
        }
        self.out.arrived(number, None);
        outcome
    }

    /// Makes the node create the object, which does not exist yet, from the first bytes of a sealed object on the same node.
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
                // The right to read the source may have expired, too.
                Err(error) if error.is(rustix::io::Errno::ACCESS) && !renewed => {
                    renewed = true;
                    let until = Some(deadline::deadline());
                    let again = right.renew(&self.backend, until);
                    self.backend.runtime.block_on(again)?;
                }
                copied => return copied,
            }
        }
    }

    /// Allocates or frees the space of a range, as `fallocate(2)` does with `mode`.
    pub(crate) fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<(), Error> {
        self.flush()?;
        let objects = &self.backend.objects;
        let allocate =
            |address| async move { objects.allocate(&address, (offset, length), mode).await };
        let size = self.ask_now(allocate)?;
        let mut state = self.out.state.lock();
        // The node may not have received the last bytes: they are a hole.
        state.size = state.size.max(size);
        state.mtime = now_ns();
        // Pieces may have been requested before.
        state.forget();
        Ok(())
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut state = self.all_arrived()?;
        let end = offset.saturating_add(length as u64).min(state.size);
        let mut out = Vec::with_capacity(length);
        let mut at = offset;
        // The object may be truncated in the meantime.
        loop {
            let end = end.min(state.size);
            if at >= end {
                break;
            }
            let (piece, asked) = state.piece(at, end);
            drop(state);
            self.ask(asked);
            let data = wait_for(&piece).inspect_err(|_| self.forget())?;
            at = piece.append(&data, (at, end), &mut out);
            state = self.out.state.lock();
        }
        Ok(out)
    }

    /// Returns the state after all bytes written before have arrived; fails at the operation's deadline.
    fn all_arrived(&self) -> Result<MutexGuard<'_, TransferState>, Error> {
        let mut state = self.out.state.lock();
        if !state.is_clean() {
            self.send(&mut state)?;
            let mark = state.mark();
            while !state.settled(mark) {
                self.wait(&mut state)?;
            }
            check(&state)?;
        }
        Ok(state)
    }

    /// Requests bytes that are about to be read.
    pub(crate) fn ask_for(&self, range: Range<u64>) {
        let mut state = self.out.state.lock();
        let end = range.end.min(state.size);
        if state.is_clean() && range.start < end {
            let (_, asked) = state.piece(range.start, end);
            drop(state);
            self.ask(asked);
        }
    }

    fn ask(&self, pieces: Vec<Arc<RequestedBytes>>) {
        for piece in pieces {
            let (backend, right, node) = (self.backend.clone(), self.right.clone(), self.node);
            let until = Some(deadline::deadline());
            self.backend.runtime.spawn(async move {
                let (objects, start, length) =
                    (&backend.objects, piece.start, piece.end - piece.start);
                let read = |address| async move { objects.read(&address, start, length).await };
                let answer = right.ask(&backend, until, read).await;
                piece.answer(answer.map_err(|error| {
                    tracing::warn!(node, "a read failed: {error}");
                    error.errno()
                }));
            });
        }
    }

    /// Drops cached pieces, so that they are requested again when they are read.
    pub(crate) fn forget(&self) {
        self.out.state.lock().forget();
    }
}

impl Drop for NodeObject {
    fn drop(&mut self) {
        if self.right.holds() {
            self.backend.released(self.right.release());
        }
    }
}

impl BytesInFlight {
    /// Records that a written piece has arrived, or has failed for good.
    fn arrived(&self, number: u64, failed: Option<i32>) {
        self.state.lock().arrived(number, failed);
        self.changed.notify_all();
        self.settled.notify_waiters();
    }
}

fn check(state: &TransferState) -> Result<(), Error> {
    match state.failed {
        Some(errno) => Err(rustix::io::Errno::from_raw_os_error(errno).into()),
        None => Ok(()),
    }
}

/// Waits for the bytes of a requested piece, and returns them.
fn wait_for(piece: &RequestedBytes) -> Result<Bytes, Error> {
    let mut data = piece.data.lock();
    loop {
        match &*data {
            Some(Ok(bytes)) => return Ok(bytes.clone()),
            Some(Err(errno)) => {
                return Err(rustix::io::Errno::from_raw_os_error(*errno).into());
            }
            None => {
                if deadline::wait(&piece.ready, &mut data, deadline::deadline()) {
                    return Err(rustix::io::Errno::HOSTUNREACH.into());
                }
                deadline::renew();
            }
        }
    }
}
