//! Buffered and requested bytes of an object on another host: written bytes that are sent to the node, and read bytes that are requested
//! from it.
//!
//! The state uses neither clock nor network. One lock protects the whole state, so that a read knows of every write before it. The rules:
//!
//! - A read first waits for the writes that were being sent when it began ([`TransferState::mark`], [`TransferState::settled`]).
//! - A piece is requested under the lock. When a write arrives or fails, pieces of the same bytes are dropped, because they may have been
//!   requested before the write.
//!
//! So a read that begins after a write finds no piece that was requested before the write arrived.

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum size in bytes of a piece that is requested or sent at once.
pub(super) const PIECE_BYTES_MAX: u64 = 4 << 20;
/// Size in bytes of the first piece of a read that looks sequential.
const PIECE_BYTES_MIN: u64 = 512 << 10;
/// Size in bytes of a piece for a read that looks random.
const RANDOM_BYTES: u64 = 64 << 10;
/// Maximum number of read pieces that are kept for one object.
const PIECES_MAX: usize = 6;
/// Maximum number of written pieces that are being sent to the node at once.
const IN_FLIGHT_MAX: usize = 3;
/// Distance from the expected offset up to which a read counts as sequential, because the Linux kernel reads ahead out of order.
const SLACK_BYTES: u64 = 1 << 20;

/// Size and mtime of the object, and its buffered and requested bytes.
#[derive(Debug)]
pub(super) struct TransferState {
    pub(super) size: u64,
    pub(super) mtime: i64,
    start: u64,
    buffer: Vec<u8>,
    in_flight: Vec<InFlight>,
    next: u64,
    /// Whether an operation has waited in vain since the last write arrived, so that other operations fail without a wait.
    pub(super) stalled: bool,
    /// Errno of the first failure; later calls return the same errno, since bytes were lost.
    pub(super) failed: Option<i32>,
    pieces: VecDeque<Arc<RequestedBytes>>,
    expected: u64,
    window: u64,
}

/// A written piece that is sent until it has arrived, however long its node is offline.
#[derive(Debug)]
struct InFlight {
    start: u64,
    end: u64,
    number: u64,
}

/// Written bytes that are to be sent to the node.
#[derive(Debug)]
pub(super) struct SentWrite {
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) bytes: Bytes,
}

/// Piece of bytes that is requested from the node.
#[derive(Debug)]
pub(super) struct RequestedBytes {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) data: Mutex<Option<Result<Bytes, i32>>>,
    pub(super) ready: Condvar,
}

impl TransferState {
    pub(super) fn new(size: u64, mtime: i64) -> Self {
        Self {
            size,
            mtime,
            start: 0,
            buffer: Vec::new(),
            in_flight: Vec::new(),
            next: 0,
            stalled: false,
            failed: None,
            pieces: VecDeque::new(),
            expected: 0,
            window: 0,
        }
    }

    /// Adds bytes to the buffer, if they continue it. Returns whether they were added.
    pub(super) fn take(&mut self, offset: u64, bytes: &[u8]) -> bool {
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
            self.size = self.size.max(end);
            return true;
        }
        let small = (self.buffer.len() + bytes.len()) as u64 <= PIECE_BYTES_MAX;
        if offset != buffered || !(small || self.buffer.is_empty()) {
            return false;
        }
        self.buffer.extend_from_slice(bytes);
        self.size = self.size.max(end);
        true
    }

    /// Whether the buffer is empty.
    pub(super) fn is_sent(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Whether all written bytes have arrived at the node.
    pub(super) fn is_clean(&self) -> bool {
        self.is_sent() && self.in_flight.is_empty()
    }

    /// Returns the number of written pieces that are being sent to the node.
    pub(super) fn on_their_way(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether the buffer may be sent now, because pieces of the same bytes are sent one after the other.
    pub(super) fn has_space(&self) -> bool {
        let (start, end) = (self.start, self.start + self.buffer.len() as u64);
        self.in_flight.len() < IN_FLIGHT_MAX
            && !self.in_flight.iter().any(|piece| piece.meets(start, end))
    }

    /// Takes the buffer, which the caller has to send now.
    pub(super) fn dispatch(&mut self) -> SentWrite {
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        let start = self.start;
        let number = self.enter(start, start + bytes.len() as u64);
        SentWrite {
            number,
            start,
            bytes,
        }
    }

    /// Records that written bytes are being sent. Returns the number of the piece.
    pub(super) fn enter(&mut self, start: u64, end: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.in_flight.push(InFlight { start, end, number });
        number
    }

    /// Records that the piece with this number has arrived, or has failed for good.
    pub(super) fn arrived(&mut self, number: u64, failed: Option<i32>) {
        if let Some(at) = self.in_flight.iter().position(|one| one.number == number) {
            let arrived = self.in_flight.remove(at);
            self.pieces
                .retain(|piece| !arrived.meets(piece.start, piece.end));
        }
        self.stalled = false;
        self.failed = self.failed.or(failed);
    }

    /// Returns a mark of the pieces that were sent until now, for [`Self::settled`].
    pub(super) fn mark(&self) -> u64 {
        self.next
    }

    /// Whether all pieces that were sent before [`Self::mark`] returned `mark` have arrived.
    pub(super) fn settled(&self, mark: u64) -> bool {
        self.in_flight.iter().all(|one| one.number >= mark)
    }

    /// Returns the piece that contains `at`, and the pieces to request from the node now: this piece if it was not requested, and the next
    /// piece if reads look sequential. `at` and `end` are within the object.
    pub(super) fn piece(
        &mut self,
        at: u64,
        end: u64,
    ) -> (Arc<RequestedBytes>, Vec<Arc<RequestedBytes>>) {
        let mut asked = Vec::new();
        let sequential = at.abs_diff(self.expected) <= SLACK_BYTES;
        self.expected = end;
        let piece = if let Some(piece) = self.held(at) {
            piece
        } else {
            self.window = if sequential {
                (self.window * 2).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
            } else {
                RANDOM_BYTES
            };
            let piece = self.ask(at, self.window.max(end - at));
            asked.push(piece.clone());
            piece
        };
        let next = piece.end;
        if sequential && next < self.size && self.held(next).is_none() {
            self.window = (self.window * 2).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
            asked.push(self.ask(next, self.window));
        }
        (piece, asked)
    }

    fn held(&self, at: u64) -> Option<Arc<RequestedBytes>> {
        let held = self.pieces.iter().find(|p| p.start <= at && at < p.end);
        held.cloned()
    }

    fn ask(&mut self, start: u64, length: u64) -> Arc<RequestedBytes> {
        let piece = Arc::new(RequestedBytes {
            start,
            end: start + length.min(self.size - start),
            data: Mutex::new(None),
            ready: Condvar::new(),
        });
        self.pieces.push_back(piece.clone());
        if self.pieces.len() > PIECES_MAX {
            self.pieces.pop_front();
        }
        piece
    }

    /// Drops the read pieces, so that they are requested again when they are read.
    pub(super) fn forget(&mut self) {
        self.pieces.clear();
    }
}

impl InFlight {
    fn meets(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

impl RequestedBytes {
    /// Sets the node's answer to the request for the piece.
    pub(super) fn answer(&self, answer: Result<Bytes, i32>) {
        *self.data.lock() = Some(answer);
        self.ready.notify_all();
    }

    /// Appends the bytes of this piece from `at` to `end`. Returns the end of the appended bytes.
    pub(super) fn append(&self, data: &Bytes, (at, end): (u64, u64), out: &mut Vec<u8>) -> u64 {
        let skip = usize::try_from(at - self.start).unwrap_or(usize::MAX);
        let take = usize::try_from(end.min(self.end) - at).unwrap_or(0);
        let held = data.get(skip..data.len().min(skip.saturating_add(take)));
        let held = held.unwrap_or_default();
        out.extend_from_slice(held);
        // The object's last bytes may never have been written: they are a hole.
        out.resize(out.len() + take - held.len(), 0);
        at + take as u64
    }
}

#[cfg(test)]
mod tests;
