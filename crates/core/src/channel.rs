//! A channel: messages in the order in which they came, in a ring of bytes, and who has read how far.
//!
//! What comes in one request is one record of the ring and is kept as a whole or not at all. This says where in the ring what
//! lies, what is a message twice, and what may be written over; whoever keeps the bytes writes them down.

use std::collections::{BTreeMap, VecDeque};

/// Records that a channel holds at most.
pub const RECORDS_MAX: usize = 65_536;
/// Readers of a channel.
pub const READERS_MAX: usize = 64;
/// Senders whose last request is remembered, so that it can be repeated.
pub const PRODUCERS_MAX: usize = 1024;
/// Bytes of a message.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Messages of a request, and the bytes that they and their lengths have together.
pub const BATCH_MESSAGES_MAX: u32 = 16_384;
/// See [`BATCH_MESSAGES_MAX`].
pub const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Bytes of the ring.
pub const CAPACITY_BYTES_MIN: u64 = 64 << 10;
/// See [`CAPACITY_BYTES_MIN`].
pub const CAPACITY_BYTES_MAX: u64 = 4 << 30;
/// Bytes of the ring if nothing else is said.
pub const CAPACITY_BYTES: u64 = 16 << 20;
/// Bytes of a reader's name.
pub const NAME_BYTES_MAX: usize = 64;

/// Whether this may be the name of a channel or a reader.
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
    /// Who sent them: a random number.
    pub producer: u64,
    /// How many messages the producer had sent before.
    pub sequence: u64,
    /// How many these are.
    pub count: u32,
}

/// What lies in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it begins.
    pub at: u64,
    /// Its length.
    pub bytes: u64,
    /// Number of its first message.
    pub first: u64,
    /// Its messages.
    pub batch: Batch,
}

impl Record {
    /// The number after that of its last message.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first.saturating_add(self.batch.count.into())
    }
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It is to be written there.
    Here(Record),
    /// It was sent before, and its first message has this number.
    Known(u64),
    /// There is no room now.
    Full,
}

/// Why a channel does not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It never fits.
    #[error(
        "the message takes {bytes} bytes with its header: the channel holds {capacity}; send less at once, or make a larger channel"
    )]
    TooLong {
        /// Bytes of the record.
        bytes: u64,
        /// Bytes of the ring.
        capacity: u64,
    },
    /// The producer is somewhere else.
    #[error(
        "the sender's message {sequence} can't be taken: {expected} is the next, or its last request once more"
    )]
    Sequence {
        /// What was sent.
        sequence: u64,
        /// What can be.
        expected: u64,
    },
    /// Nobody of that name reads.
    #[error("the channel has no reader {0}: `tidemill channel list ROOM`")]
    NoReader(String),
    /// There can be no more.
    #[error(
        "the channel has {READERS_MAX} readers, the maximum: `tidemill channel forget` unused readers"
    )]
    TooManyReaders,
    /// What nobody has sent can't have been read.
    #[error("message {0} has not been sent yet and can't be acknowledged")]
    NotSent(u64),
}

/// A reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Where it is kept: a number below [`READERS_MAX`] that no other reader has.
    pub slot: usize,
    /// Number of the message that it reads next.
    pub next: u64,
}

/// What a producer sent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Where it is kept: a number below [`PRODUCERS_MAX`] that no other producer has.
    pub slot: usize,
    /// The number of the first message.
    pub first: u64,
    /// What it was.
    pub batch: Batch,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    capacity: u64,
    records: VecDeque<Record>,
    next: u64,
    readers: BTreeMap<String, Reader>,
    producers: BTreeMap<u64, Producer>,
}

impl Log {
    /// An empty channel with a ring of so many bytes.
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

    /// A channel as it was kept: where its first record lies and which number that has, readers and producers, and `record`,
    /// which says what lies at a place of the ring, if that is a whole record. What was sent and is not a whole record was
    /// never acknowledged. Where its first record lies now, and its producers, are to be kept before it is used: they may be known
    /// by records only that are let go next.
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

    /// Where its first record lies, or the next will, and the number of its first message.
    #[must_use]
    pub fn head(&self) -> (u64, u64) {
        match self.records.front() {
            Some(front) => (front.at, front.first),
            None => (0, self.next),
        }
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Number of the next message that is sent.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Bytes of what it holds.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.records.iter().map(|record| record.bytes).sum()
    }

    /// What each producer has sent last.
    pub fn producers(&self) -> impl Iterator<Item = &Producer> {
        self.producers.values()
    }

    /// Its readers.
    #[must_use]
    pub fn readers(&self) -> &BTreeMap<String, Reader> {
        &self.readers
    }

    /// Where a record of so many bytes can lie, if anywhere.
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

    /// What becomes of a batch that takes so many bytes. Nothing has changed before [`Self::kept`] is told that it is written.
    ///
    /// # Errors
    /// If it never fits, or the producer has sent something else last.
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

    /// The record that [`Self::append`] gave is written. Gives what is to be kept of its producer before anybody is told.
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

    /// A place for a producer; who has sent nothing for longest is forgotten if there is none.
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

    /// Records from the one with a message on, of so many bytes together at most, but one at least if there is one.
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

    /// Somebody reads from now on, from a message on or from the first that there is; or a reader goes on there.
    ///
    /// # Errors
    /// If there are too many.
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

    /// A reader has read what is before a message. [`Self::trim`] says what that frees, after this is kept.
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

    /// Somebody reads no more. Gives the place where that was kept.
    ///
    /// # Errors
    /// If there is no such reader.
    pub fn forget(&mut self, name: &str) -> Result<usize, Refusal> {
        let gone = self.readers.remove(name);
        let gone = gone.ok_or_else(|| Refusal::NoReader(name.to_owned()))?;
        Ok(gone.slot)
    }

    /// Lets go of what all readers have read; gives whether that is anything. Without a reader nobody has read anything.
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

    /// A ring and what is kept beside it, as a device has them.
    #[derive(Clone, Default)]
    struct Kept {
        /// Whole records by where they begin; a torn one is none.
        ring: BTreeMap<u64, Record>,
        head: (u64, u64),
        readers: BTreeMap<usize, (String, Reader)>,
        producers: BTreeMap<usize, Producer>,
    }

    impl Kept {
        /// What is written over is no record any more.
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
        /// After a crash at any moment, in the middle of a write or between two writes, the log holds every
        /// acknowledged message. No message is duplicated or lost, and the places of kept messages never overlap.
        #[test]
        fn channel_log_after_any_crash_keeps_acknowledged_messages(
            seeds in proptest::collection::vec((0_u32..100, 0_u64..4, 1_u64..40), 1..200),
        ) {
            const CAPACITY: u64 = 100;
            let mut kept = Kept::default();
            let mut log = Log::new(CAPACITY);
            // What each producer has sent, and the numbers of messages that nobody has let go.
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
                                // Torn, or dead before it was told and sent once more.
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
                            // It may die here, too.
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
                // Nobody misses what they have not read.
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
        // What does not fit behind lies before.
        assert!(matches!(
            log.append(batch(3, 0, 1), 30).unwrap(),
            Placed::Here(Record { at: 0, .. })
        ));
        // Nobody goes back to what is gone, nor on to what is not there.
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
