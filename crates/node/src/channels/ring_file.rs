//! File of a channel: a header with the offset of its first record, its consumers and its producers, and the ring (`docs/formats-node.md`).
//!
//! The whole file is allocated when it is created, so that later messages and reads need no space on the device. The file is never synced:
//! acknowledged messages survive the end of any process, but not of the host.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use tidemill_core::channel::{
    AppendOutcome, BATCH_BYTES_MAX, CAPACITY_BYTES_MAX, CAPACITY_BYTES_MIN, CONSUMERS_MAX,
    ChannelLog, ChannelRefusal, Consumer, MessageBatch, NAME_BYTES_MAX, Producer, RingRecord,
    is_name,
};

/// First bytes of the file of a channel: the kind of file and the version of the format.
const MAGIC: [u8; 8] = *b"TMCHAN\x00\x01";
const HEAD_AT: u64 = 64;
const CONSUMERS_AT: u64 = 4096;
const CONSUMER_BYTES: u64 = 128;
const PRODUCERS_AT: u64 = CONSUMERS_AT + CONSUMER_BYTES * CONSUMERS_MAX as u64;
const PRODUCER_BYTES: u64 = 64;
/// Offset of the ring in the file, in bytes.
pub(super) const RING_AT: u64 =
    PRODUCERS_AT + PRODUCER_BYTES * tidemill_core::channel::PRODUCERS_MAX as u64;
/// Number of bytes of a record before its messages.
pub(super) const RECORD_BYTES: u64 = 40;
const CHECK_BYTES: usize = 8;

#[derive(Debug)]
pub(super) struct OpenChannel {
    file: File,
    pub(super) log: ChannelLog,
}

/// Reason why the file of a channel can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenChannelError {
    #[error(transparent)]
    Refused(#[from] ChannelRefusal),
    #[error(transparent)]
    System(#[from] io::Error),
    #[error(
        "the file is not a channel's file, or a later release wrote it: have the channel removed"
    )]
    Corrupt,
}

/// Result of sending messages to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// The channel has the messages: the number of the first message, and whether the messages are new.
    As(u64, bool),
    Full,
}

impl OpenChannel {
    /// Creates the file of a channel, under a temporary name.
    pub(super) fn make(path: &Path, capacity: u64) -> io::Result<()> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.mode(0o600).open(path)?;
        let all = RING_AT.saturating_add(capacity);
        fallocate(&file, FallocateFlags::empty(), 0, all)?;
        let mut begin = MAGIC.to_vec();
        begin.extend(capacity.to_le_bytes());
        file.write_all_at(&begin, 0)?;
        let kept = Self {
            file,
            log: ChannelLog::new(capacity),
        };
        kept.keep_head()
    }

    /// Opens the file of a channel. The messages of an interrupted request are stored completely or not at all.
    pub(super) fn open(path: &Path) -> Result<Self, OpenChannelError> {
        let file = File::options().read(true).write(true).open(path)?;
        let mut begin = [0; 16];
        file.read_exact_at(&mut begin, 0)?;
        let (magic, capacity) = begin.split_at(8);
        let capacity = long(capacity);
        let fits = (CAPACITY_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&capacity);
        if magic != MAGIC || !fits || file.metadata()?.len() < RING_AT + capacity {
            return Err(OpenChannelError::Corrupt);
        }
        let head = checked(&file, HEAD_AT, 24)?.ok_or(OpenChannelError::Corrupt)?;
        let mut consumers = Vec::new();
        let mut producers = Vec::new();
        for slot in 0..CONSUMERS_MAX {
            consumers.extend(read_consumer(&file, slot)?);
        }
        for slot in 0..tidemill_core::channel::PRODUCERS_MAX {
            producers.extend(read_producer(&file, slot)?);
        }
        let mut buffer = Vec::new();
        let record = |at| read_record(&file, (at, capacity), &mut buffer);
        let head = (long(&head[..8]), long(&head[8..16]));
        let log = ChannelLog::recover(capacity, head, consumers, producers.clone(), record);
        let kept = Self { file, log };
        for producer in kept.log.producers() {
            if !producers.contains(producer) {
                kept.keep_producer(*producer)?;
            }
        }
        // Freed records may be overwritten from now on.
        kept.keep_head()?;
        Ok(kept)
    }

    fn keep_head(&self) -> io::Result<()> {
        let (at, first) = self.log.head();
        let mut head = at.to_le_bytes().to_vec();
        head.extend(first.to_le_bytes());
        write_checked(&self.file, HEAD_AT, head)
    }

    fn keep_consumer(&self, name: &str, consumer: Consumer) -> io::Result<()> {
        let mut row = consumer.next.to_le_bytes().to_vec();
        row.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        row.extend(name.as_bytes());
        row.resize(8 + 1 + NAME_BYTES_MAX, 0);
        let at = CONSUMERS_AT + CONSUMER_BYTES * consumer.slot as u64;
        write_checked(&self.file, at, row)
    }

    fn keep_producer(&self, Producer { slot, first, batch }: Producer) -> io::Result<()> {
        let mut row = Vec::with_capacity(64);
        for number in [batch.producer, batch.sequence, first] {
            row.extend(number.to_le_bytes());
        }
        row.extend(batch.count.to_le_bytes());
        let at = PRODUCERS_AT + PRODUCER_BYTES * slot as u64;
        write_checked(&self.file, at, row)
    }

    /// Appends messages to the ring as one record.
    pub(super) fn send(
        &mut self,
        batch: MessageBatch,
        frames: &[u8],
    ) -> Result<SendOutcome, OpenChannelError> {
        let record = match self.log.append(batch, RECORD_BYTES + frames.len() as u64)? {
            AppendOutcome::Known(first) => return Ok(SendOutcome::As(first, false)),
            AppendOutcome::Full => return Ok(SendOutcome::Full),
            AppendOutcome::Here(record) => record,
        };
        let mut bytes = Vec::with_capacity(frames.len() + 64);
        bytes.extend(
            u32::try_from(frames.len())
                .unwrap_or(u32::MAX)
                .to_le_bytes(),
        );
        bytes.extend(batch.count.to_le_bytes());
        for number in [record.first, batch.producer, batch.sequence] {
            bytes.extend(number.to_le_bytes());
        }
        let check = check(&[&bytes, frames]);
        bytes.extend(check);
        bytes.extend(frames);
        self.file.write_all_at(&bytes, RING_AT + record.at)?;
        let producer = self.log.kept(record);
        self.keep_producer(producer)?;
        Ok(SendOutcome::As(record.first, true))
    }

    /// Starts a consumer; see [`ChannelLog::begin`].
    pub(super) fn begin(&mut self, name: &str, from: Option<u64>) -> Result<u64, OpenChannelError> {
        let before = self.log.consumers().get(name).copied();
        let consumer = self.log.begin(name, from)?;
        if before != Some(consumer) {
            self.keep_consumer(name, consumer)?;
            self.trim()?;
        }
        Ok(consumer.next)
    }

    /// Records that a consumer has read all messages before `next`. Returns whether space was freed.
    pub(super) fn acknowledge(&mut self, name: &str, next: u64) -> Result<bool, OpenChannelError> {
        let before = self.log.consumers().get(name).copied();
        let consumer = self.log.acknowledge(name, next)?;
        if before != Some(consumer) {
            self.keep_consumer(name, consumer)?;
        }
        self.trim()
    }

    /// Removes a consumer. Returns whether space was freed.
    pub(super) fn forget(&mut self, name: &str) -> Result<bool, OpenChannelError> {
        let slot = self.log.forget(name)?;
        let at = CONSUMERS_AT + CONSUMER_BYTES * slot as u64;
        self.file.write_all_at(&[0; 128], at)?;
        self.trim()
    }

    fn trim(&mut self) -> Result<bool, OpenChannelError> {
        let freed = self.log.trim();
        if freed {
            self.keep_head()?;
        }
        Ok(freed)
    }

    /// Returns messages from number `from` on: the number of the first message, then each message with its length before it. Empty if there
    /// is none.
    pub(super) fn read(&self, from: u64, bytes_max: u64) -> Result<Vec<u8>, OpenChannelError> {
        let mut out = Vec::new();
        let bytes_max = bytes_max.min(BATCH_BYTES_MAX + RECORD_BYTES);
        for record in self.log.from(from, bytes_max) {
            let length = usize::try_from(record.bytes - RECORD_BYTES).unwrap_or(usize::MAX);
            let mut frames = vec![0; length];
            let at = RING_AT + record.at + RECORD_BYTES;
            self.file.read_exact_at(&mut frames, at)?;
            let skipped = from.saturating_sub(record.first);
            let begin = after_frames(&frames, skipped).ok_or(OpenChannelError::Corrupt)?;
            if out.is_empty() {
                out.extend((record.first + skipped).to_le_bytes());
            }
            out.extend(&frames[begin..]);
        }
        Ok(out)
    }
}

/// Returns the end of the first `count` messages in `frames`, in bytes.
fn after_frames(frames: &[u8], count: u64) -> Option<usize> {
    let mut at = 0_usize;
    for _ in 0..count {
        let length = frames.get(at..at.checked_add(4)?)?;
        let length = u32::from_le_bytes(length.try_into().ok()?);
        at = at
            .checked_add(4)?
            .checked_add(usize::try_from(length).ok()?)?;
    }
    (at <= frames.len()).then_some(at)
}

fn long(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| {
        bytes.get(at).copied().unwrap_or(0)
    }))
}

fn check(parts: &[&[u8]]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let hash = hasher.finalize();
    std::array::from_fn(|at| hash.as_bytes()[at])
}

/// Writes a row with its checksum. The row is within one page, so a killed process never leaves an incomplete row.
fn write_checked(file: &File, at: u64, mut row: Vec<u8>) -> io::Result<()> {
    let check = check(&[&row]);
    row.extend(check);
    file.write_all_at(&row, at)
}

/// Reads a row of `bytes` bytes and its checksum; `None` if the checksum is wrong.
fn checked(file: &File, at: u64, bytes: usize) -> io::Result<Option<Vec<u8>>> {
    let mut row = vec![0; bytes];
    file.read_exact_at(&mut row, at)?;
    let proof = row.split_off(bytes - CHECK_BYTES);
    Ok((check(&[&row]) == proof[..]).then_some(row))
}

fn read_consumer(file: &File, slot: usize) -> io::Result<Option<(String, Consumer)>> {
    let at = CONSUMERS_AT + CONSUMER_BYTES * slot as u64;
    let Some(row) = checked(file, at, 8 + 1 + NAME_BYTES_MAX + CHECK_BYTES)? else {
        return Ok(None);
    };
    let name = row[9..].get(..usize::from(row[8]));
    let name = name.and_then(|name| std::str::from_utf8(name).ok());
    let name = name.filter(|name| is_name(name)).map(str::to_owned);
    let next = long(&row[..8]);
    Ok(name.map(|name| (name, Consumer { slot, next })))
}

fn read_producer(file: &File, slot: usize) -> io::Result<Option<Producer>> {
    let at = PRODUCERS_AT + PRODUCER_BYTES * slot as u64;
    let row = checked(file, at, 28 + CHECK_BYTES)?;
    Ok(row.map(|row| Producer {
        slot,
        first: long(&row[16..24]),
        batch: MessageBatch {
            producer: long(&row[..8]),
            sequence: long(&row[8..16]),
            count: u32::from_le_bytes(std::array::from_fn(|at| row[24 + at])),
        },
    }))
}

/// Returns the record at an offset of the ring, if it is complete.
fn read_record(
    file: &File,
    (at, capacity): (u64, u64),
    buffer: &mut Vec<u8>,
) -> Option<RingRecord> {
    let end = at.checked_add(RECORD_BYTES)?;
    if end > capacity {
        return None;
    }
    let mut begin = [0; 40];
    file.read_exact_at(&mut begin, RING_AT + at).ok()?;
    let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| begin[at + i]));
    let length = u64::from(short(0));
    if length > BATCH_BYTES_MAX || end + length > capacity {
        return None;
    }
    buffer.resize(usize::try_from(length).ok()?, 0);
    file.read_exact_at(buffer, RING_AT + end).ok()?;
    let whole = check(&[&begin[..32], buffer]) == begin[32..];
    whole.then_some(RingRecord {
        at,
        bytes: RECORD_BYTES + length,
        first: long(&begin[8..16]),
        batch: MessageBatch {
            producer: long(&begin[16..24]),
            sequence: long(&begin[24..32]),
            count: short(4),
        },
    })
}

// Each row is within one page and not longer than its slot.
const _: () = assert!((8 + 1 + NAME_BYTES_MAX + CHECK_BYTES) as u64 <= CONSUMER_BYTES);
const _: () =
    assert!(4096_u64.is_multiple_of(CONSUMER_BYTES) && 4096_u64.is_multiple_of(PRODUCER_BYTES));
const _: () = assert!(RING_AT.is_multiple_of(4096));

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(texts: &[&[u8]]) -> Vec<u8> {
        let mut frames = Vec::new();
        for text in texts {
            frames.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
            frames.extend(*text);
        }
        frames
    }

    fn one(sequence: u64, count: u32) -> MessageBatch {
        MessageBatch {
            producer: 9,
            sequence,
            count,
        }
    }

    /// Truncates the file after each byte of a record. Complete records are kept, the torn record is dropped, and sending continues.
    #[test]
    fn channel_drops_torn_record_and_keeps_acknowledged_records() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("channel");
        OpenChannel::make(&path, CAPACITY_BYTES_MIN).unwrap();
        let mut kept = OpenChannel::open(&path).unwrap();
        let first = frames(&[b"one", b"", b"three"]);
        assert_eq!(
            kept.send(one(0, 3), &first).unwrap(),
            SendOutcome::As(0, true)
        );
        let at = RING_AT + RECORD_BYTES + first.len() as u64;
        let second = frames(&[&[7; 5000]]);
        let whole = {
            kept.send(one(3, 1), &second).unwrap();
            let mut whole = vec![0; 5044];
            kept.file.read_exact_at(&mut whole, at).unwrap();
            whole
        };
        for torn in (0..whole.len()).step_by(13).chain([5043]) {
            kept.file.write_all_at(&vec![0; whole.len()], at).unwrap();
            kept.file.write_all_at(&whole[..torn], at).unwrap();
            // The producer's row is written after the record.
            kept.file.write_all_at(&[0; 64], PRODUCERS_AT).unwrap();
            kept = OpenChannel::open(&path).unwrap();
            assert_eq!(kept.log.next(), 3, "{torn}");
            let read = kept.read(1, u64::MAX).unwrap();
            assert_eq!(read[..8], 1_u64.to_le_bytes());
            assert_eq!(read[8..], first[7..]);
            assert_eq!(
                kept.send(one(3, 1), &second).unwrap(),
                SendOutcome::As(3, true)
            );
        }
        let mut again = OpenChannel::open(&path).unwrap();
        assert_eq!(
            again.send(one(3, 1), &second).unwrap(),
            SendOutcome::As(3, false)
        );
        assert_eq!(again.log, kept.log);
    }

    #[test]
    fn channel_consumers_resume_after_reopen_and_bad_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("channel");
        OpenChannel::make(&path, CAPACITY_BYTES_MIN).unwrap();
        let mut kept = OpenChannel::open(&path).unwrap();
        kept.begin("slow", None).unwrap();
        kept.begin("gone", None).unwrap();
        for round in 0..200_u64 {
            let long = frames(&[&vec![u8::try_from(round).unwrap(); 20_000]]);
            assert_eq!(
                kept.send(one(round, 1), &long).unwrap(),
                SendOutcome::As(round, true)
            );
            kept.acknowledge("slow", round + 1).unwrap();
            if round == 0 {
                kept.forget("gone").unwrap();
            }
            kept = OpenChannel::open(&path).unwrap();
            let next = kept.log.consumers().values().map(|consumer| consumer.next);
            assert_eq!(next.collect::<Vec<_>>(), [round + 1]);
        }
        assert!(matches!(
            kept.acknowledge("slow", 999),
            Err(OpenChannelError::Refused(ChannelRefusal::NotSent(998)))
        ));
        assert!(kept.read(200, u64::MAX).unwrap().is_empty());
        kept.file.write_all_at(b"x", 0).unwrap();
        assert!(matches!(
            OpenChannel::open(&path),
            Err(OpenChannelError::Corrupt)
        ));
    }
}
