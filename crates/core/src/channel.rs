//! A channel: decides the positions of messages in a ring of bytes, in the order of their arrival, and keeps the position of each reader.
//!
//! The messages of one request form one record of the ring, which is stored completely or not at all. This module decides where each record
//! is stored, which messages are duplicates, and which records may be overwritten. It does no I/O: the caller stores the bytes.

use std::collections::{BTreeMap, VecDeque};

/// Maximum number of records in a channel.
pub const RECORDS_MAX: usize = 65_536;
/// Maximum number of readers of a channel.
pub const READERS_MAX: usize = 64;
/// Maximum number of senders whose last request is remembered, so that they can repeat the request.
pub const PRODUCERS_MAX: usize = 1024;
/// Maximum size of a message, in bytes.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of messages in a request. `BATCH_BYTES_MAX` bounds the size of the messages and their lengths.
pub const BATCH_MESSAGES_MAX: u32 = 16_384;
/// Maximum size of the messages of a request together with their lengths, in bytes.
pub const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Minimum size of the ring, in bytes.
pub const CAPACITY_BYTES_MIN: u64 = 64 << 10;
/// Maximum size of the ring, in bytes.
pub const CAPACITY_BYTES_MAX: u64 = 4 << 30;
/// Default size of the ring, in bytes.
pub const CAPACITY_BYTES: u64 = 16 << 20;
/// Maximum length of a reader's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Returns whether `name` may be the name of a channel or of a reader.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.chars().all(allowed)
}

/// Messages that were sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Id of the sender: a random number.
    pub producer: u64,
    /// Number of messages that the producer sent before these.
    pub sequence: u64,
    /// Number of messages in the batch.
    pub count: u32,
}

/// Record in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Position at which the record begins.
    pub at: u64,
    /// Length of the record, in bytes.
    pub bytes: u64,
    /// Number of its first message.
    pub first: u64,
    /// Batch of its messages.
    pub batch: Batch,
}

impl Record {
    /// Returns the number after that of its last message.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first.saturating_add(self.batch.count.into())
    }
}

/// Result of appending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The caller must write the batch as this record.
    Here(Record),
    /// The batch is a duplicate, and its first message has this number.
    Known(u64),
    /// The ring has no space now.
    Full,
}

/// Reason for which a channel refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The batch is larger than the ring.
    #[error(
        "the message takes {bytes} bytes with its header: the channel holds {capacity}; send less at once, or make a larger channel"
    )]
    TooLong {
        /// Size of the record, in bytes.
        bytes: u64,
        /// Size of the ring, in bytes.
        capacity: u64,
    },
    /// The batch does not follow the producer's last batch.
    #[error(
        "the sender's message {sequence} can't be taken: {expected} is the next, or its last request once more"
    )]
    Sequence {
        /// Sequence number of the batch.
        sequence: u64,
        /// Sequence number that the channel expects.
        expected: u64,
    },
    /// No reader has this name.
    #[error("the channel has no reader {0}: `tidemill channel list ROOM`")]
    NoReader(String),
    /// The channel has the maximum number of readers.
    #[error(
        "the channel has {READERS_MAX} readers, the maximum: `tidemill channel forget` unused readers"
    )]
    TooManyReaders,
    /// A reader acknowledges a message that has not been sent.
    #[error("message {0} has not been sent yet and can't be acknowledged")]
    NotSent(u64),
}

/// Reader of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Slot in which the reader is stored: a number below [`READERS_MAX`] that no other reader uses.
    pub slot: usize,
    /// Number of the message that the reader reads next.
    pub next: u64,
}

/// Last batch of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Slot in which the producer is stored: a number below [`PRODUCERS_MAX`] that no other producer uses.
    pub slot: usize,
    /// Number of the first message of the batch.
    pub first: u64,
    /// Last batch of the producer.
    pub batch: Batch,
}

/// State of a channel; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    capacity: u64,
    records: VecDeque<Record>,
    next: u64,
    readers: BTreeMap<String, Reader>,
    producers: BTreeMap<u64, Producer>,
}

impl Log {
    /// Returns an empty channel with a ring of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            records: VecDeque::new(),
            next: 0,
            readers: BTreeMap::new(),
            producers: BTreeMap::new(),
        }
    }

    /// Restores a channel from its stored state: the position of its first record with the number of its first message, the readers and the
    /// producers. `record` returns the record at a position of the ring if a whole record is stored there. Batches that are not stored as
    /// whole records were never acknowledged. Before the channel is used, the caller must store its current head and its producers, because
    /// some producers may be known only from records that are dropped next.
    #[must_use]
    pub fn recover(
        capacity: u64,
        (mut at, first): (u64, u64),
        readers: impl IntoIterator<Item = (String, Reader)>,
        producers: impl IntoIterator<Item = Producer>,
        mut record: impl FnMut(u64) -> Option<Record>,
    ) -> Self {
        let head = at;
        let mut log = Self::new(capacity);
        log.next = first;
        log.readers = readers.into_iter().collect();
        for producer in producers {
            log.producers.insert(producer.batch.producer, producer);
        }
        let mut wrapped = false;
        while log.records.len() < RECORDS_MAX {
            let end = if wrapped { head } else { capacity };
            let mut next_at = |at: u64| {
                let found = record(at)?;
                let fits =
                    found.at == at && found.bytes > 0 && found.bytes <= end.checked_sub(at)?;
                (fits && found.first == log.next && found.batch.count > 0).then_some(found)
            };
            match next_at(at) {
                Some(found) => {
                    at += found.bytes;
                    log.push(found);
                }
                None if !wrapped && at != 0 => (wrapped, at) = (true, 0),
                None => break,
            }
        }
        for reader in log.readers.values_mut() {
            reader.next = reader.next.min(log.next);
        }
        log.trim();
        log
    }

    /// Returns the position of the first record, or of the next record if there is none, and the number of its first message.
    #[must_use]
    pub fn head(&self) -> (u64, u64) {
        match self.records.front() {
            Some(front) => (front.at, front.first),
            None => (0, self.next),
        }
    }

    /// Returns the size of the ring, in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of the next message.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the size of all stored records, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.records.iter().map(|record| record.bytes).sum()
    }

    /// Returns the last batch of each producer.
    pub fn producers(&self) -> impl Iterator<Item = &Producer> {
        self.producers.values()
    }

    /// Returns the readers by name.
    #[must_use]
    pub fn readers(&self) -> &BTreeMap<String, Reader> {
        &self.readers
    }

    /// Returns the position for a record of `bytes` bytes, or `None` if the ring has no space for it.
    #[must_use]
    pub fn place(&self, bytes: u64) -> Option<u64> {
        let (Some(front), Some(back)) = (self.records.front(), self.records.back()) else {
            return (bytes <= self.capacity).then_some(0);
        };
        let (head, tail) = (front.at, back.at + back.bytes);
        if self.records.len() >= RECORDS_MAX {
            None
        } else if tail <= head {
            (head - tail >= bytes).then_some(tail)
        } else if self.capacity - tail >= bytes {
            Some(tail)
        } else {
            (head >= bytes).then_some(0)
        }
    }

    /// Returns the result of a batch whose record has `bytes` bytes. This function changes nothing: the caller writes the record and then
    /// calls [`Self::kept`].
    ///
    /// # Errors
    /// If the record is larger than the ring, or the batch does not follow the producer's last batch.
    pub fn append(&self, batch: Batch, bytes: u64) -> Result<Placed, Refusal> {
        if let Some(last) = self.producers.get(&batch.producer) {
            if last.batch == batch {
                return Ok(Placed::Known(last.first));
            }
            let expected = last.batch.sequence.saturating_add(last.batch.count.into());
            if batch.sequence != expected {
                let sequence = batch.sequence;
                return Err(Refusal::Sequence { sequence, expected });
            }
        }
        if bytes > self.capacity {
            let capacity = self.capacity;
            return Err(Refusal::TooLong { bytes, capacity });
        }
        Ok(match self.place(bytes) {
            None => Placed::Full,
            Some(at) => Placed::Here(Record {
                at,
                bytes,
                first: self.next,
                batch,
            }),
        })
    }

    /// Adds the record from [`Self::append`] after it is written. Returns the state of its producer, which the caller must store before it
    /// acknowledges the batch.
    pub fn kept(&mut self, record: Record) -> Producer {
        self.push(record)
    }

    fn push(&mut self, record: Record) -> Producer {
        self.records.push_back(record);
        self.next = record.next();
        let id = record.batch.producer;
        let known = self.producers.get(&id).map(|known| known.slot);
        let slot = known.unwrap_or_else(|| self.free_slot());
        let producer = Producer {
            slot,
            first: record.first,
            batch: record.batch,
        };
        self.producers.insert(id, producer);
        producer
    }

    /// Returns a slot for a producer. If all slots are in use, the producer that has been silent for the longest time is forgotten.
    fn free_slot(&mut self) -> usize {
        if self.producers.len() < PRODUCERS_MAX {
            let used: std::collections::BTreeSet<usize> =
                self.producers.values().map(|one| one.slot).collect();
            return (0..PRODUCERS_MAX)
                .find(|slot| !used.contains(slot))
                .unwrap_or_default();
        }
        let oldest = self.producers.iter().min_by_key(|(_, one)| one.first);
        let Some((&id, &Producer { slot, .. })) = oldest else {
            return 0;
        };
        self.producers.remove(&id);
        slot
    }

    /// Returns the records from the one with message `number` on. Their size together is at most `bytes_max` bytes, but at least one record
    /// is returned if there is one.
    pub fn from(&self, number: u64, bytes_max: u64) -> impl Iterator<Item = Record> {
        let begin = self
            .records
            .partition_point(|record| record.next() <= number);
        let mut sum = 0_u64;
        let fits = move |record: &&Record| {
            let first = sum == 0;
            sum = sum.saturating_add(record.bytes);
            first || sum <= bytes_max
        };
        self.records.range(begin..).take_while(fits).copied()
    }

    /// Adds a reader that begins at message `from`, or at the first stored message if `from` is `None`. An existing reader continues at
    /// that message.
    ///
    /// # Errors
    /// If there are too many readers.
    pub fn begin(&mut self, name: &str, from: Option<u64>) -> Result<Reader, Refusal> {
        let (_, first) = self.head();
        let known = self.readers.get(name).copied();
        let slot = match known {
            Some(known) => known.slot,
            None => {
                let mut free = 0..READERS_MAX;
                let used = |slot: &usize| self.readers.values().any(|one| one.slot == *slot);
                free.find(|slot| !used(slot))
                    .ok_or(Refusal::TooManyReaders)?
            }
        };
        let next = match (from, known) {
            (Some(from), _) => from.clamp(first, self.next),
            (None, Some(known)) => known.next,
            (None, None) => first,
        };
        let reader = Reader { slot, next };
        self.readers.insert(name.to_owned(), reader);
        Ok(reader)
    }

    /// Records that a reader has read all messages before `next`. After the caller has stored the reader, [`Self::trim`] drops the records
    /// that no reader needs.
    ///
    /// # Errors
    /// If there is no such reader or message.
    pub fn acknowledge(&mut self, name: &str, next: u64) -> Result<Reader, Refusal> {
        if next > self.next {
            return Err(Refusal::NotSent(next - 1));
        }
        let reader = self.readers.get_mut(name);
        let reader = reader.ok_or_else(|| Refusal::NoReader(name.to_owned()))?;
        reader.next = reader.next.max(next);
        Ok(*reader)
    }

    /// Removes a reader and returns the slot in which it was stored.
    ///
    /// # Errors
    /// If there is no such reader.
    pub fn forget(&mut self, name: &str) -> Result<usize, Refusal> {
        let gone = self.readers.remove(name);
        let gone = gone.ok_or_else(|| Refusal::NoReader(name.to_owned()))?;
        Ok(gone.slot)
    }

    /// Drops the records that all readers have read, and returns whether any record was dropped. Without a reader no record counts as read.
    pub fn trim(&mut self) -> bool {
        let Some(least) = self.readers.values().map(|reader| reader.next).min() else {
            return false;
        };
        let before = self.records.len();
        while self
            .records
            .front()
            .is_some_and(|front| front.next() <= least)
        {
            self.records.pop_front();
        }
        self.records.len() < before
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "of small numbers")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ring and the state stored next to it, as a device holds them.
    #[derive(Clone, Default)]
    struct Kept {
        /// Whole records by their position; a torn record is not included.
        ring: BTreeMap<u64, Record>,
        head: (u64, u64),
        readers: BTreeMap<usize, (String, Reader)>,
        producers: BTreeMap<usize, Producer>,
    }

    impl Kept {
        /// Writes a record and removes the records that it overwrites.
        fn write(&mut self, record: Record, torn: bool) {
            let end = record.at + record.bytes;
            self.ring
                .retain(|&at, other| at >= end || at + other.bytes <= record.at);
            if !torn {
                self.ring.insert(record.at, record);
            }
        }

        fn recover(&mut self, capacity: u64) -> Log {
            let readers = self.readers.values().cloned();
            let producers = self.producers.values().copied();
            let record = |at| self.ring.get(&at).copied();
            let log = Log::recover(capacity, self.head, readers, producers, record);
            self.head = log.head();
            for producer in log.producers() {
                self.producers.insert(producer.slot, *producer);
            }
            log
        }
    }

    fn batch(producer: u64, sequence: u64, count: u32) -> Batch {
        Batch {
            producer,
            sequence,
            count,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// After a crash at any moment, in the middle of a write or between two writes, the log holds every acknowledged message. No
        /// message is duplicated or lost, and the places of kept messages never overlap.
        #[test]
        fn channel_log_after_any_crash_keeps_acknowledged_messages(
            seeds in proptest::collection::vec((0_u32..100, 0_u64..4, 1_u64..40), 1..200),
        ) {
            const CAPACITY: u64 = 100;
            let mut kept = Kept::default();
            let mut log = Log::new(CAPACITY);
            // Number of messages sent by each producer, and the numbers of all messages that have not been dropped.
            let mut sent = [0_u64; 4];
            let mut told: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            for (what, who, size) in seeds {
                let name = format!("r{}", who % 2);
                match what {
                    0..60 => {
                        let count = u32::try_from(size % 3 + 1).unwrap();
                        let one = batch(who, sent[who as usize], count);
                        match log.append(one, size).unwrap() {
                            Placed::Here(record) => {
                                // The record is torn, or the process crashes before it acknowledges the batch; the producer then repeats
                                // the batch.
                                if what < 10 {
                                    kept.write(record, what < 5);
                                    log = kept.recover(CAPACITY);
                                    let again = log.append(one, size).unwrap();
                                    match again {
                                        Placed::Known(first) => prop_assert!(what >= 5 && first == record.first),
                                        Placed::Here(again) => {
                                            prop_assert!(what < 5 && again.first == record.first);
                                            kept.write(again, false);
                                            let producer = log.kept(again);
                                            kept.producers.insert(producer.slot, producer);
                                        }
                                        Placed::Full => prop_assert!(false, "there was room"),
                                    }
                                } else {
                                    kept.write(record, false);
                                    let producer = log.kept(record);
                                    kept.producers.insert(producer.slot, producer);
                                }
                                for n in 0..u64::from(count) {
                                    told.insert(record.first + n, (who, sent[who as usize] + n));
                                }
                                sent[who as usize] += u64::from(count);
                                prop_assert_eq!(log.append(one, size).unwrap(), Placed::Known(record.first));
                            }
                            Placed::Full => prop_assert!(log.held_bytes() > 0, "an empty one takes all that it can hold"),
                            Placed::Known(_) => prop_assert!(false, "it is new"),
                        }
                    }
                    60..70 => {
                        let reader = log.begin(&name, None).unwrap();
                        kept.readers.insert(reader.slot, (name, reader));
                    }
                    70..90 => {
                        let next = log.readers().get(&name).map(|reader| reader.next + size.min(4));
                        if let Some(next) = next.filter(|&next| next <= log.next()) {
                            let reader = log.acknowledge(&name, next).unwrap();
                            kept.readers.insert(reader.slot, (name, reader));
                            // The process may crash here, too.
                            if what < 75 {
                                log = kept.recover(CAPACITY);
                            }
                            log.trim();
                            kept.head = log.head();
                        }
                    }
                    90..93 => {
                        if let Ok(slot) = log.forget(&name) {
                            kept.readers.remove(&slot);
                            log.trim();
                            kept.head = log.head();
                        }
                    }
                    _ => {
                        let again = kept.recover(CAPACITY);
                        prop_assert_eq!(again.head(), log.head());
                        prop_assert_eq!(&again, &log);
                        log = again;
                    }
                }
                let held: Vec<Record> = log.from(0, u64::MAX).collect();
                let mut covered = [false; CAPACITY as usize];
                let mut number = log.head().1;
                for record in &held {
                    prop_assert_eq!(record.first, number);
                    number = record.next();
                    for n in 0..u64::from(record.batch.count) {
                        prop_assert_eq!(told[&(record.first + n)], (record.batch.producer, record.batch.sequence + n));
                    }
                    for byte in record.at..record.at + record.bytes {
                        prop_assert!(!std::mem::replace(&mut covered[byte as usize], true));
                    }
                }
                prop_assert_eq!(number, log.next());
                prop_assert_eq!(log.next(), told.len() as u64);
                // No reader misses a message that it has not read.
                for reader in log.readers().values() {
                    prop_assert!(reader.next >= log.head().1 || log.readers().len() > 1 || held.is_empty());
                }
            }
        }
    }

    #[test]
    fn channel_log_reads_from_any_message_and_trims_after_all_read() {
        let mut log = Log::new(100);
        for (producer, count) in [(1, 3), (2, 1), (1, 2)] {
            let sequence = if producer == 1 && count == 2 { 3 } else { 0 };
            let Placed::Here(record) = log.append(batch(producer, sequence, count), 30).unwrap()
            else {
                panic!("there is room");
            };
            log.kept(record);
        }
        assert_eq!(
            log.append(batch(3, 0, 1), 30).unwrap(),
            Placed::Full,
            "nobody reads"
        );
        let first = |from, bytes| {
            log.from(from, bytes)
                .map(|record| record.first)
                .collect::<Vec<_>>()
        };
        assert_eq!(first(0, u64::MAX), [0, 3, 4]);
        assert_eq!(first(2, 60), [0, 3]);
        assert_eq!(first(3, 1), [3]);
        assert!(first(6, u64::MAX).is_empty());
        log.begin("a", None).unwrap();
        log.begin("late", Some(5)).unwrap();
        assert_eq!(log.acknowledge("a", 7), Err(Refusal::NotSent(6)));
        assert_eq!(
            log.acknowledge("b", 1),
            Err(Refusal::NoReader("b".to_owned()))
        );
        log.acknowledge("a", 4).unwrap();
        assert!(log.trim());
        assert_eq!(log.head(), (60, 4));
        // A record that does not fit at the end of the ring is stored at its begin.
        assert!(matches!(
            log.append(batch(3, 0, 1), 30).unwrap(),
            Placed::Here(Record { at: 0, .. })
        ));
        // A reader can go neither back to a dropped message nor forward to a message that does not exist.
        assert_eq!(log.begin("a", Some(0)).unwrap().next, 4);
        assert_eq!(log.begin("a", Some(99)).unwrap().next, 6);
        log.forget("late").unwrap();
        assert!(log.trim());
        assert_eq!(log.head(), (0, 6));
        assert!(matches!(
            log.append(batch(3, 0, 1), 101),
            Err(Refusal::TooLong { .. })
        ));
    }

    #[test]
    fn channel_log_bounds_readers_and_remembered_producers() {
        let mut log = Log::new(1 << 20);
        for number in 0..READERS_MAX {
            log.begin(&number.to_string(), None).unwrap();
        }
        assert_eq!(log.begin("more", None), Err(Refusal::TooManyReaders));
        let slot = log.forget("7").unwrap();
        assert_eq!(log.begin("more", None).unwrap().slot, slot);
        for producer in 0..=PRODUCERS_MAX as u64 {
            let Placed::Here(record) = log.append(batch(producer, 0, 1), 10).unwrap() else {
                panic!("there is room");
            };
            log.kept(record);
        }
        let known =
            |producer| matches!(log.append(batch(producer, 0, 1), 10), Ok(Placed::Known(_)));
        assert!(!known(0) && known(1) && known(PRODUCERS_MAX as u64));
        assert_eq!(
            log.append(batch(5, 4, 1), 10),
            Err(Refusal::Sequence {
                sequence: 4,
                expected: 1
            })
        );
    }
}
