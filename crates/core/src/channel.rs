//! The log of a channel: decides the positions of messages in a ring of bytes, in order of arrival, and stores consumers' positions.
//!
//! The messages of a request form a record of the ring, and a record is stored completely or not at all. This module decides where each
//! record is stored, which messages are duplicates, and which records may be overwritten. It does no I/O: the caller stores the bytes.

use std::collections::{BTreeMap, VecDeque};

/// Maximum number of records in a channel.
pub const RECORDS_MAX: usize = 65_536;
/// Maximum number of consumers of a channel.
pub const CONSUMERS_MAX: usize = 64;
/// Maximum number of senders of a channel whose last request is remembered, so that a sender can repeat its request.
pub const PRODUCERS_MAX: usize = 1024;
/// Maximum size of a message, in bytes.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of messages in a request. `BATCH_BYTES_MAX` limits the size of the messages and of their length fields.
pub const BATCH_MESSAGES_MAX: u32 = 16_384;
/// Maximum size of the messages of a request together with their length fields, in bytes.
pub const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Minimum size of a channel's ring, in bytes.
pub const CAPACITY_BYTES_MIN: u64 = 64 << 10;
/// Maximum size of a channel's ring, in bytes.
pub const CAPACITY_BYTES_MAX: u64 = 4 << 30;
/// Default size of a channel's ring, in bytes.
pub const CAPACITY_BYTES: u64 = 16 << 20;
/// Maximum length of a consumer's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Returns whether `name` may be the name of a channel or of a consumer.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.chars().all(allowed)
}

/// Messages that a sender sent in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageBatch {
    /// Id of the sender: a random number.
    pub producer: u64,
    /// Number of messages that the producer sent before this batch.
    pub sequence: u64,
    /// Number of messages in the batch.
    pub count: u32,
}

/// Record of a batch in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRecord {
    /// Position in the ring at which the record begins.
    pub at: u64,
    /// Length of the record, in bytes.
    pub bytes: u64,
    /// Number of the first message in the record.
    pub first: u64,
    /// Batch of messages that the record stores.
    pub batch: MessageBatch,
}

impl RingRecord {
    /// Returns the number after that of its last message.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first.saturating_add(self.batch.count.into())
    }
}

/// Result of appending a batch of messages to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The batch is new: the caller must write it to the ring as this record.
    Here(RingRecord),
    /// The batch is a duplicate; its first message is stored under this number.
    Known(u64),
    /// The ring has no free space for the batch now.
    Full,
}

/// Reason for which a channel refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelRefusal {
    /// The batch of messages is larger than the channel's ring.
    #[error(
        "the message takes {bytes} bytes with its header: the channel holds {capacity}; send less at once, or create a larger channel"
    )]
    TooLong {
        /// Size of the record, in bytes.
        bytes: u64,
        /// Size of the ring, in bytes.
        capacity: u64,
    },
    /// The batch of messages does not follow the producer's last batch.
    #[error(
        "the sender's message {sequence} is out of order: send {expected}, or repeat the last request"
    )]
    Sequence {
        /// Sequence number of the refused batch.
        sequence: u64,
        /// Sequence number that the channel expects from the producer.
        expected: u64,
    },
    /// No consumer of the channel has this name.
    #[error("the channel has no consumer {0}: `tidemill channel list WORKSPACE`")]
    NoConsumer(String),
    /// The channel has the maximum number of consumers.
    #[error(
        "the channel has {CONSUMERS_MAX} consumers, the maximum: delete unused consumers with `tidemill channel delete-consumer`"
    )]
    TooManyConsumers,
    /// A consumer acknowledges a message number that has not been sent yet.
    #[error("message {0} has not been sent yet and can't be acknowledged")]
    NotSent(u64),
}

/// Consumer of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Slot in which the consumer is stored: a number below [`CONSUMERS_MAX`] that no other consumer uses.
    pub slot: usize,
    /// Number of the message that the consumer reads next.
    pub next: u64,
}

/// Last batch that a producer sent to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Slot in which the producer is stored: a number below [`PRODUCERS_MAX`] that no other producer uses.
    pub slot: usize,
    /// Number of the first message of the producer's last batch.
    pub first: u64,
    /// Last batch of the producer.
    pub batch: MessageBatch,
}

/// State of a channel: its records, consumers and producers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelLog {
    capacity: u64,
    records: VecDeque<RingRecord>,
    next: u64,
    consumers: BTreeMap<String, Consumer>,
    producers: BTreeMap<u64, Producer>,
}

impl ChannelLog {
    /// Returns an empty channel with a ring of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            records: VecDeque::new(),
            next: 0,
            consumers: BTreeMap::new(),
            producers: BTreeMap::new(),
        }
    }

    /// Restores a channel from its stored state: the position of its first record with the number of that record's first message, the
    /// consumers and the producers. `record` returns the record at a position of the ring if a whole record is stored there. Batches that
    /// are not stored as whole records were never acknowledged. Before the channel is used, the caller must store its current head and its
    /// producers, because some producers may be known only from records that are dropped next.
    #[must_use]
    pub fn recover(
        capacity: u64,
        (mut at, first): (u64, u64),
        consumers: impl IntoIterator<Item = (String, Consumer)>,
        producers: impl IntoIterator<Item = Producer>,
        mut record: impl FnMut(u64) -> Option<RingRecord>,
    ) -> Self {
        let head = at;
        let mut log = Self::new(capacity);
        log.next = first;
        log.consumers = consumers.into_iter().collect();
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
        for consumer in log.consumers.values_mut() {
            consumer.next = consumer.next.min(log.next);
        }
        log.trim();
        log
    }

    /// Returns the position of the first record, or of the next record if the channel is empty, and the number of its first message.
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

    /// Returns the number that the next message of the channel gets.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the size of all records in the channel, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.records.iter().map(|record| record.bytes).sum()
    }

    /// Returns the last batch of each producer of the channel.
    pub fn producers(&self) -> impl Iterator<Item = &Producer> {
        self.producers.values()
    }

    /// Returns the consumers of the channel by name.
    #[must_use]
    pub fn consumers(&self) -> &BTreeMap<String, Consumer> {
        &self.consumers
    }

    /// Returns the position in the ring for a record of `bytes` bytes, or `None` if the ring has no free space for the record.
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

    /// Returns the result of appending a batch whose record has `bytes` bytes. This function changes nothing: the caller writes the record
    /// and then calls [`Self::kept`].
    ///
    /// # Errors
    /// If the record is larger than the ring, or the batch does not follow the producer's last batch.
    pub fn append(&self, batch: MessageBatch, bytes: u64) -> Result<AppendOutcome, ChannelRefusal> {
        if let Some(last) = self.producers.get(&batch.producer) {
            if last.batch == batch {
                return Ok(AppendOutcome::Known(last.first));
            }
            let expected = last.batch.sequence.saturating_add(last.batch.count.into());
            if batch.sequence != expected {
                let sequence = batch.sequence;
                return Err(ChannelRefusal::Sequence { sequence, expected });
            }
        }
        if bytes > self.capacity {
            let capacity = self.capacity;
            return Err(ChannelRefusal::TooLong { bytes, capacity });
        }
        Ok(match self.place(bytes) {
            None => AppendOutcome::Full,
            Some(at) => AppendOutcome::Here(RingRecord {
                at,
                bytes,
                first: self.next,
                batch,
            }),
        })
    }

    /// Adds the record from [`Self::append`] after the caller has written it. Returns the producer's state, which the caller must store
    /// before it acknowledges the batch.
    pub fn kept(&mut self, record: RingRecord) -> Producer {
        self.push(record)
    }

    fn push(&mut self, record: RingRecord) -> Producer {
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

    /// Returns a slot for a producer. If all slots are in use, the slot of the producer that has been silent longest is reused.
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

    /// Returns the records from the one with message `number` on. The records have at most `bytes_max` bytes together, but at least one
    /// record is returned if any is stored.
    pub fn from(&self, number: u64, bytes_max: u64) -> impl Iterator<Item = RingRecord> {
        let begin = self
            .records
            .partition_point(|record| record.next() <= number);
        let mut sum = 0_u64;
        let fits = move |record: &&RingRecord| {
            let first = sum == 0;
            sum = sum.saturating_add(record.bytes);
            first || sum <= bytes_max
        };
        self.records.range(begin..).take_while(fits).copied()
    }

    /// Adds a consumer that begins at message `from`, or at the first stored message if `from` is `None`. An existing consumer continues at
    /// message `from`.
    ///
    /// # Errors
    /// If the channel has the maximum number of consumers.
    pub fn begin(&mut self, name: &str, from: Option<u64>) -> Result<Consumer, ChannelRefusal> {
        let (_, first) = self.head();
        let known = self.consumers.get(name).copied();
        let slot = match known {
            Some(known) => known.slot,
            None => {
                let mut free = 0..CONSUMERS_MAX;
                let used = |slot: &usize| self.consumers.values().any(|one| one.slot == *slot);
                free.find(|slot| !used(slot))
                    .ok_or(ChannelRefusal::TooManyConsumers)?
            }
        };
        let next = match (from, known) {
            (Some(from), _) => from.clamp(first, self.next),
            (None, Some(known)) => known.next,
            (None, None) => first,
        };
        let consumer = Consumer { slot, next };
        self.consumers.insert(name.to_owned(), consumer);
        Ok(consumer)
    }

    /// Records that a consumer has read all messages before `next`. After the caller has stored the consumer, [`Self::trim`] drops the records
    /// that no consumer needs.
    ///
    /// # Errors
    /// If the consumer does not exist, or if the message has not been sent.
    pub fn acknowledge(&mut self, name: &str, next: u64) -> Result<Consumer, ChannelRefusal> {
        if next > self.next {
            return Err(ChannelRefusal::NotSent(next - 1));
        }
        let consumer = self.consumers.get_mut(name);
        let consumer = consumer.ok_or_else(|| ChannelRefusal::NoConsumer(name.to_owned()))?;
        consumer.next = consumer.next.max(next);
        Ok(*consumer)
    }

    /// Removes a consumer and returns the slot in which it was stored.
    ///
    /// # Errors
    /// If the consumer does not exist.
    pub fn forget(&mut self, name: &str) -> Result<usize, ChannelRefusal> {
        let gone = self.consumers.remove(name);
        let gone = gone.ok_or_else(|| ChannelRefusal::NoConsumer(name.to_owned()))?;
        Ok(gone.slot)
    }

    /// Drops the records that all consumers have read, and returns whether it dropped any. Without consumers no record counts as read.
    pub fn trim(&mut self) -> bool {
        let Some(least) = self.consumers.values().map(|consumer| consumer.next).min() else {
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

    /// Ring of a channel and the state stored next to the ring, as a device holds them.
    #[derive(Clone, Default)]
    struct StoredRing {
        /// Whole records by their position in the ring; a torn record is not included.
        ring: BTreeMap<u64, RingRecord>,
        head: (u64, u64),
        consumers: BTreeMap<usize, (String, Consumer)>,
        producers: BTreeMap<usize, Producer>,
    }

    impl StoredRing {
        /// Writes a record to the ring and removes the records that the new record overwrites.
        fn write(&mut self, record: RingRecord, torn: bool) {
            let end = record.at + record.bytes;
            self.ring
                .retain(|&at, other| at >= end || at + other.bytes <= record.at);
            if !torn {
                self.ring.insert(record.at, record);
            }
        }

        fn recover(&mut self, capacity: u64) -> ChannelLog {
            let consumers = self.consumers.values().cloned();
            let producers = self.producers.values().copied();
            let record = |at| self.ring.get(&at).copied();
            let log = ChannelLog::recover(capacity, self.head, consumers, producers, record);
            self.head = log.head();
            for producer in log.producers() {
                self.producers.insert(producer.slot, *producer);
            }
            log
        }
    }

    fn batch(producer: u64, sequence: u64, count: u32) -> MessageBatch {
        MessageBatch {
            producer,
            sequence,
            count,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// After a crash at any moment, in the middle of a write or between two writes, the channel log holds every acknowledged message.
        /// No message is duplicated or lost, and the positions of stored records never overlap.
        #[test]
        fn channel_log_after_any_crash_keeps_acknowledged_messages(
            seeds in proptest::collection::vec((0_u32..100, 0_u64..4, 1_u64..40), 1..200),
        ) {
            const CAPACITY: u64 = 100;
            let mut kept = StoredRing::default();
            let mut log = ChannelLog::new(CAPACITY);
            // Number of messages sent by each producer, and the numbers of all messages that have not been dropped.
            let mut sent = [0_u64; 4];
            let mut recorded: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            for (what, who, size) in seeds {
                let name = format!("r{}", who % 2);
                match what {
                    0..60 => {
                        let count = u32::try_from(size % 3 + 1).unwrap();
                        let one = batch(who, sent[who as usize], count);
                        match log.append(one, size).unwrap() {
                            AppendOutcome::Here(record) => {
                                // The record is torn, or the process crashes before it acknowledges the batch; the producer then repeats
                                // the batch.
                                if what < 10 {
                                    kept.write(record, what < 5);
                                    log = kept.recover(CAPACITY);
                                    let again = log.append(one, size).unwrap();
                                    match again {
                                        AppendOutcome::Known(first) => prop_assert!(what >= 5 && first == record.first),
                                        AppendOutcome::Here(again) => {
                                            prop_assert!(what < 5 && again.first == record.first);
                                            kept.write(again, false);
                                            let producer = log.kept(again);
                                            kept.producers.insert(producer.slot, producer);
                                        }
                                        AppendOutcome::Full => prop_assert!(false, "there was space"),
                                    }
                                } else {
                                    kept.write(record, false);
                                    let producer = log.kept(record);
                                    kept.producers.insert(producer.slot, producer);
                                }
                                for n in 0..u64::from(count) {
                                    recorded.insert(record.first + n, (who, sent[who as usize] + n));
                                }
                                sent[who as usize] += u64::from(count);
                                prop_assert_eq!(log.append(one, size).unwrap(), AppendOutcome::Known(record.first));
                            }
                            AppendOutcome::Full => prop_assert!(log.held_bytes() > 0, "an empty one takes all that it can hold"),
                            AppendOutcome::Known(_) => prop_assert!(false, "it is new"),
                        }
                    }
                    60..70 => {
                        let consumer = log.begin(&name, None).unwrap();
                        kept.consumers.insert(consumer.slot, (name, consumer));
                    }
                    70..90 => {
                        let next = log.consumers().get(&name).map(|consumer| consumer.next + size.min(4));
                        if let Some(next) = next.filter(|&next| next <= log.next()) {
                            let consumer = log.acknowledge(&name, next).unwrap();
                            kept.consumers.insert(consumer.slot, (name, consumer));
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
                            kept.consumers.remove(&slot);
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
                let held: Vec<RingRecord> = log.from(0, u64::MAX).collect();
                let mut covered = [false; CAPACITY as usize];
                let mut number = log.head().1;
                for record in &held {
                    prop_assert_eq!(record.first, number);
                    number = record.next();
                    for n in 0..u64::from(record.batch.count) {
                        prop_assert_eq!(recorded[&(record.first + n)], (record.batch.producer, record.batch.sequence + n));
                    }
                    for byte in record.at..record.at + record.bytes {
                        prop_assert!(!std::mem::replace(&mut covered[byte as usize], true));
                    }
                }
                prop_assert_eq!(number, log.next());
                prop_assert_eq!(log.next(), recorded.len() as u64);
                // No consumer misses a message that it has not read.
                for consumer in log.consumers().values() {
                    prop_assert!(consumer.next >= log.head().1 || log.consumers().len() > 1 || held.is_empty());
                }
            }
        }
    }

    #[test]
    fn channel_log_reads_from_any_message_and_trims_after_all_read() {
        let mut log = ChannelLog::new(100);
        for (producer, count) in [(1, 3), (2, 1), (1, 2)] {
            let sequence = if producer == 1 && count == 2 { 3 } else { 0 };
            let AppendOutcome::Here(record) =
                log.append(batch(producer, sequence, count), 30).unwrap()
            else {
                panic!("there is space");
            };
            log.kept(record);
        }
        assert_eq!(
            log.append(batch(3, 0, 1), 30).unwrap(),
            AppendOutcome::Full,
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
        assert_eq!(log.acknowledge("a", 7), Err(ChannelRefusal::NotSent(6)));
        assert_eq!(
            log.acknowledge("b", 1),
            Err(ChannelRefusal::NoConsumer("b".to_owned()))
        );
        log.acknowledge("a", 4).unwrap();
        assert!(log.trim());
        assert_eq!(log.head(), (60, 4));
        // A record that does not fit at the end of the ring is stored at its beginning.
        assert!(matches!(
            log.append(batch(3, 0, 1), 30).unwrap(),
            AppendOutcome::Here(RingRecord { at: 0, .. })
        ));
        // A consumer can go neither back to a dropped message nor forward to a message that does not exist.
        assert_eq!(log.begin("a", Some(0)).unwrap().next, 4);
        assert_eq!(log.begin("a", Some(99)).unwrap().next, 6);
        log.forget("late").unwrap();
        assert!(log.trim());
        assert_eq!(log.head(), (0, 6));
        assert!(matches!(
            log.append(batch(3, 0, 1), 101),
            Err(ChannelRefusal::TooLong { .. })
        ));
    }

    #[test]
    fn channel_log_bounds_consumers_and_remembered_producers() {
        let mut log = ChannelLog::new(1 << 20);
        for number in 0..CONSUMERS_MAX {
            log.begin(&number.to_string(), None).unwrap();
        }
        assert_eq!(
            log.begin("more", None),
            Err(ChannelRefusal::TooManyConsumers)
        );
        let slot = log.forget("7").unwrap();
        assert_eq!(log.begin("more", None).unwrap().slot, slot);
        for producer in 0..=PRODUCERS_MAX as u64 {
            let AppendOutcome::Here(record) = log.append(batch(producer, 0, 1), 10).unwrap() else {
                panic!("there is space");
            };
            log.kept(record);
        }
        let known = |producer| {
            matches!(
                log.append(batch(producer, 0, 1), 10),
                Ok(AppendOutcome::Known(_))
            )
        };
        assert!(!known(0) && known(1) && known(PRODUCERS_MAX as u64));
        assert_eq!(
            log.append(batch(5, 4, 1), 10),
            Err(ChannelRefusal::Sequence {
                sequence: 4,
                expected: 1
            })
        );
    }
}
