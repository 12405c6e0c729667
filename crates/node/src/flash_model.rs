//! Model of the flash device of a node, which estimates the effect of the node's writes on a device of its capacity. The module reads the
//! database and keeps one snapshot file.
//!
//! The node reports writes and removals by appending events to a list. Once per status period the events are added to a `FlashLedger`,
//! whose report is part of the status object. So no writer waits for the model. A snapshot in the directory preserves the wear over restarts.
//! The snapshot is only bookkeeping: if it is missing or corrupt, the model restarts from the objects in the database, and nothing else
//! depends on it. `docs/formats-node.md` defines its layout and the counted writes.

use crate::db::Db;
use crate::flash::{FlashLedger, LedgerError, LedgerReport, SnapshotError};
use crate::records;
use crate::store::Store;
use crate::task::now;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_model::id::ObjectId;
use tidemill_model::time::Time;
use tidemill_wire::v1;

/// Version of the snapshot's layout around the ledger, which has a separate version.
pub const SNAPSHOT_VERSION: u32 = 1;

/// First bytes of a snapshot.
const MAGIC: [u8; 8] = *b"TMFLASH\n";

/// Number of bytes before the ledger: magic, version, capacity, since, left out.
const HEADER_BYTES: usize = 8 + 4 + 8 + 8 + 8;

/// Number of bytes after the ledger: the hash of all bytes before.
const HASH_BYTES: usize = 32;

/// Interval of snapshots while the node writes.
const SNAPSHOT_PERIOD: Duration = Duration::from_secs(60);

/// Maximum number of waiting events. The model leaves out the bytes of further events.
const EVENTS_MAX: usize = 1 << 20;

/// Bit that is set in the id of an object that was fetched from another node. Ids of data objects do not have this bit.
const FETCHED: u64 = 1 << 63;

/// Model of the flash device of one node. Reporting an event takes well below a microsecond.
#[derive(Debug)]
pub struct FlashModel {
    path: PathBuf,
    capacity_bytes: u64,
    events: Mutex<Vec<FlashEvent>>,
    /// Bytes of events that exceeded the maximum number of waiting events.
    dropped_bytes: AtomicU64,
    state: Mutex<FlashState>,
    report: Mutex<Option<v1::FlashModel>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlashEvent {
    Wrote { object: u64, bytes: u64 },
    Removed { object: u64 },
}

#[derive(Debug)]
enum FlashState {
    /// The snapshot was not read yet.
    Unread,
    /// The model is in use.
    Open(Box<Book>),
    /// The model was stopped, or no model exists for this capacity.
    Off,
}

/// Ledger of the device, and the state of its snapshots.
#[derive(Debug)]
struct Book {
    ledger: FlashLedger,
    /// Time at which the ledger started.
    since: Time,
    /// Bytes that did not fit into the ledger.
    left_out_bytes: u64,
    /// Whether the ledger has changed since the last snapshot.
    changed: bool,
    /// Time at which the last snapshot was written.
    kept: Option<Instant>,
}

/// Reason why the model can't use a snapshot.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// The file is truncated or is no snapshot.
    #[error("it is not a snapshot of a flash model")]
    Foreign,
    /// Another release wrote it.
    #[error("it has version {0}, this program knows {SNAPSHOT_VERSION}")]
    Version(u32),
    /// The bytes of the snapshot have changed.
    #[error("it is corrupt")]
    Hash,
    /// The snapshot is for a device with another capacity.
    #[error("it is for a device with a capacity of {0} bytes")]
    Capacity(u64),
    /// The ledger in the snapshot is invalid.
    #[error(transparent)]
    Ledger(#[from] SnapshotError),
}

impl FlashModel {
    /// Returns the model of a device of `capacity_bytes` whose snapshot is in `directory`. Reads no file.
    #[must_use]
    pub fn new(directory: &Path, capacity_bytes: u64) -> Self {
        Self {
            path: directory.join("flash"),
            capacity_bytes,
            events: Mutex::default(),
            dropped_bytes: AtomicU64::new(0),
            state: Mutex::new(FlashState::Unread),
            report: Mutex::default(),
        }
    }

    /// Records that an object was sealed and stored in the database.
    pub fn on_written(&self, object: ObjectId, bytes: u64) {
        let object = object.0;
        self.push(FlashEvent::Wrote { object, bytes });
    }

    /// Records that an object was removed from the database.
    pub fn on_removed(&self, object: ObjectId) {
        self.push(FlashEvent::Removed { object: object.0 });
    }

    /// Records that another node's object was fetched to this node, with `bytes` written for it: 0 for a link.
    pub fn on_fetched(&self, object: ObjectId, bytes: u64) {
        let object = object.0 | FETCHED;
        self.push(FlashEvent::Wrote { object, bytes });
    }

    /// Records that a fetched object was removed.
    pub fn on_fetched_removed(&self, object: ObjectId) {
        let object = object.0 | FETCHED;
        self.push(FlashEvent::Removed { object });
    }

    fn push(&self, event: FlashEvent) {
        let mut events = self.events.lock();
        if events.len() < EVENTS_MAX {
            events.push(event);
        } else if let FlashEvent::Wrote { bytes, .. } = event {
            self.dropped_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the report of the last [`Self::settle`]; `None` before the first, and if no model exists.
    #[must_use]
    pub fn report(&self) -> Option<v1::FlashModel> {
        *self.report.lock()
    }

    /// Adds the waiting events to the model and writes a snapshot if one is due. The first call reads the last snapshot and compares it
    /// with the objects of `db`, which are in `store`. Blocks.
    pub fn settle(&self, db: &Db, store: &dyn Store) {
        let mut state = self.state.lock();
        if let FlashState::Unread = *state {
            // The database is read before the events are taken. Each event is reported after its transaction, so no event is missed.
            match db.read(records::data_objects) {
                Ok(objects) => *state = self.open(&objects, store),
                Err(error) => tracing::warn!(%error, "the flash model waits for the database"),
            }
        }
        self.take_events(&mut state);
        if let FlashState::Open(book) = &mut *state
            && book.changed
            && book
                .kept
                .is_none_or(|kept| kept.elapsed() >= SNAPSHOT_PERIOD)
        {
            self.keep(book);
        }
    }

    /// Writes a final snapshot and ends the model. Blocks.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        self.take_events(&mut state);
        if let FlashState::Open(book) = &mut *state
            && book.changed
        {
            self.keep(book);
        }
        *state = FlashState::Off;
    }

    fn take_events(&self, state: &mut FlashState) {
        match state {
            FlashState::Unread => {}
            FlashState::Off => self.events.lock().clear(),
            FlashState::Open(book) => {
                let events = std::mem::take(&mut *self.events.lock());
                for event in events {
                    match event {
                        FlashEvent::Wrote { object, bytes } => book.wrote(object, bytes),
                        FlashEvent::Removed { object } => book.removed(object),
                    }
                }
                book.left_out_bytes += self.dropped_bytes.swap(0, Ordering::Relaxed);
                *self.report.lock() = Some(book.report());
            }
        }
    }

    fn open(&self, objects: &[ObjectId], store: &dyn Store) -> FlashState {
        let kept = match std::fs::read(&self.path) {
            Ok(bytes) => Book::decode(&bytes, self.capacity_bytes).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the flash model can't be read");
                Ok(None)
            }
        };
        let kept = kept.unwrap_or_else(|error| {
            tracing::warn!(path = %self.path.display(), %error, "the flash model restarts from the stored objects");
            None
        });
        let mut book = match kept.map_or_else(|| Book::new(self.capacity_bytes), Ok) {
            Ok(book) => book,
            Err(error) => {
                tracing::warn!(%error, "this node has no flash model");
                return FlashState::Off;
            }
        };
        book.reconcile(objects, |object| store.allocated(object));
        FlashState::Open(Box::new(book))
    }

    fn keep(&self, book: &mut Book) {
        let bytes = book.encode(self.capacity_bytes);
        let new = self.path.with_extension("new");
        let written = std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, &self.path));
        book.kept = Some(Instant::now());
        match written {
            Ok(()) => book.changed = false,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the flash model can't be stored");
            }
        }
    }
}

impl Book {
    fn new(capacity_bytes: u64) -> Result<Self, LedgerError> {
        Ok(Self {
            ledger: FlashLedger::new(capacity_bytes)?,
            since: now(),
            left_out_bytes: 0,
            changed: false,
            kept: None,
        })
    }

    /// Records a written object. Objects never change and ids are never reused, so the function skips a known object.
    fn wrote(&mut self, object: u64, bytes: u64) {
        if bytes == 0 || self.ledger.contains(object) {
            return;
        }
        self.changed = true;
        if let Err(error) = self.ledger.wrote(object, bytes) {
            tracing::debug!(%error, "the flash model leaves an object out");
            self.left_out_bytes += bytes;
        }
    }

    fn removed(&mut self, object: u64) {
        self.changed |= self.ledger.removed(object);
    }

    /// Adds the changes since the snapshot, as far as the existing objects show the changes.
    fn reconcile(&mut self, objects: &[ObjectId], allocated: impl Fn(ObjectId) -> u64) {
        let there: BTreeSet<u64> = objects.iter().map(|object| object.0).collect();
        let known = self.ledger.objects();
        let deleted: Vec<u64> = known.filter(|object| !there.contains(object)).collect();
        for object in deleted {
            self.removed(object);
        }
        for &object in objects {
            if !self.ledger.contains(object.0) {
                self.wrote(object.0, allocated(object));
            }
        }
    }

    fn report(&self) -> v1::FlashModel {
        let LedgerReport {
            host_bytes,
            flash_bytes,
            write_amplification,
            used_bytes,
            block_bytes,
            wear,
            collection,
        } = self.ledger.report();
        v1::FlashModel {
            since: i64::try_from(self.since.0).unwrap_or(i64::MAX),
            host_bytes,
            flash_bytes,
            write_amplification_milli: scaled(write_amplification, 1e3),
            used_bytes,
            left_out_bytes: self.left_out_bytes,
            block_bytes,
            free_blocks: collection.free_blocks,
            collection_wanted: collection.wanted,
            collection_forced: collection.forced,
            collection_under_way: collection.under_way,
            erases_min: wear.erases_min,
            erases_mean_milli: scaled(wear.erases_mean, 1e3),
            erases_max: wear.erases_max,
            worn_ppb: scaled(wear.used, 1e9),
        }
    }

    fn encode(&self, capacity_bytes: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(SNAPSHOT_VERSION.to_le_bytes());
        for number in [capacity_bytes, self.since.0, self.left_out_bytes] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.ledger.save());
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8], capacity_bytes: u64) -> Result<Self, Unusable> {
        let (content, hash) = bytes
            .split_last_chunk::<HASH_BYTES>()
            .ok_or(Unusable::Foreign)?;
        let (header, ledger) = content
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(Unusable::Foreign)?;
        let rest = header.strip_prefix(&MAGIC).ok_or(Unusable::Foreign)?;
        let (version, rest) = rest.split_first_chunk().ok_or(Unusable::Foreign)?;
        let version = u32::from_le_bytes(*version);
        if version != SNAPSHOT_VERSION {
            return Err(Unusable::Version(version));
        }
        if blake3::hash(content) != blake3::Hash::from_bytes(*hash) {
            return Err(Unusable::Hash);
        }
        let (numbers, _) = rest.as_chunks::<8>();
        let &[capacity, since, left_out] = numbers else {
            return Err(Unusable::Foreign);
        };
        let capacity = u64::from_le_bytes(capacity);
        if capacity != capacity_bytes {
            return Err(Unusable::Capacity(capacity));
        }
        Ok(Self {
            ledger: FlashLedger::restore(ledger)?,
            since: Time(u64::from_le_bytes(since)),
            left_out_bytes: u64::from_le_bytes(left_out),
            changed: false,
            kept: None,
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded; larger values saturate"
)]
fn scaled(ratio: f64, by: f64) -> u64 {
    (ratio * by).round() as u64
}

/// Returns a report of the model as JSON, with the field names of the protocol.
#[must_use]
pub fn json(model: &v1::FlashModel) -> Value {
    json!({
        "since": model.since,
        "host_bytes": model.host_bytes,
        "flash_bytes": model.flash_bytes,
        "write_amplification_milli": model.write_amplification_milli,
        "used_bytes": model.used_bytes,
        "left_out_bytes": model.left_out_bytes,
        "block_bytes": model.block_bytes,
        "free_blocks": model.free_blocks,
        "collection_wanted": model.collection_wanted,
        "collection_forced": model.collection_forced,
        "collection_under_way": model.collection_under_way,
        "erases_min": model.erases_min,
        "erases_mean_milli": model.erases_mean_milli,
        "erases_max": model.erases_max,
        "worn_ppb": model.worn_ppb,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::DirectoryStore;

    const MIB: u64 = 1 << 20;

    fn book() -> Book {
        let mut book = Book::new(64 * MIB).unwrap();
        book.since = Time(1_700_000_000_000_000_000);
        for object in 1..=20 {
            book.wrote(object, 3 * MIB + object);
        }
        for object in 1..=5 {
            book.removed(object);
        }
        book.wrote(30 | FETCHED, 5000);
        book
    }

    fn refused(bytes: &[u8], capacity: u64) -> String {
        Book::decode(bytes, capacity).unwrap_err().to_string()
    }

    #[test]
    fn flash_model_continues_equally_from_decoded_snapshot() {
        let mut book = book();
        let mut again = Book::decode(&book.encode(64 * MIB), 64 * MIB).unwrap();
        assert_eq!(again.report(), book.report());
        for book in [&mut book, &mut again] {
            book.wrote(40, 10 * MIB);
        }
        assert_eq!(again.report(), book.report());
        assert_eq!(again.encode(64 * MIB), book.encode(64 * MIB));
    }

    #[test]
    fn flash_snapshot_of_version_1_is_read() {
        let kept = include_bytes!("../tests/fixtures/flash.v1");
        let book = Book::decode(kept, 64 * MIB).unwrap();
        assert_eq!(book.report(), self::book().report());
    }

    #[test]
    fn truncated_or_foreign_flash_snapshot_is_refused() {
        let good = book().encode(64 * MIB);
        for length in [0, 20, 60, good.len() - 1] {
            Book::decode(&good[..length], 64 * MIB).unwrap_err();
        }
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            Book::decode(&bad, 64 * MIB).unwrap_err();
        }
        assert!(refused(&good, 65 * MIB).contains("capacity of 67108864 bytes"));
        let mut newer = good.clone();
        newer[8] = 2;
        assert!(refused(&newer, 64 * MIB).contains("version 2"));
    }

    #[test]
    fn flash_model_counts_bytes_of_object_beyond_ledger_capacity() {
        let mut book = Book::new(MIB).unwrap();
        book.wrote(1, MIB / 2);
        book.wrote(2, MIB);
        let report = book.report();
        assert_eq!((report.host_bytes, report.left_out_bytes), (MIB / 2, MIB));
        book.removed(2);
        assert_eq!(book.report(), report);
    }

    #[test]
    fn reconcile_adds_missed_changes_to_flash_ledger() {
        let mut book = book();
        let before = book.report();
        let objects: Vec<_> = (10..=21).map(ObjectId).collect();
        book.reconcile(&objects, |_| 4096);
        let after = book.report();
        assert_eq!(after.host_bytes, before.host_bytes + 4096, "21 is new");
        let known: Vec<u64> = book.ledger.objects().collect();
        assert_eq!(
            known,
            (10..=21).collect::<Vec<_>>(),
            "no fetched copy is left"
        );
    }

    #[test]
    fn flash_model_counts_bytes_of_events_over_limit() {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(&directory.path().join("node.db")).unwrap();
        let store = DirectoryStore::open(directory.path(), None).unwrap();
        let model = FlashModel::new(directory.path(), 64 * MIB);
        for _ in 0..EVENTS_MAX {
            model.on_removed(ObjectId(1));
        }
        model.on_written(ObjectId(2), 100);
        model.settle(&db, &store);
        let report = model.report().unwrap();
        assert_eq!((report.host_bytes, report.left_out_bytes), (0, 100));
        model.on_written(ObjectId(3), 100);
        model.settle(&db, &store);
        assert_eq!(model.report().unwrap().host_bytes, 100);
    }

    #[test]
    fn flash_model_without_capacity_reports_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(&directory.path().join("node.db")).unwrap();
        let store = DirectoryStore::open(directory.path(), None).unwrap();
        let model = FlashModel::new(directory.path(), 0);
        model.on_written(ObjectId(2), 100);
        model.settle(&db, &store);
        assert_eq!(model.report(), None);
        model.stop();
        assert!(!directory.path().join("flash").exists());
    }
}
