//! Store of a node whose files stay outside of the cluster: in an external file system or in an object store. The module uses the
//! node's directory, its database and the external store.
//!
//! New data first becomes a file of the node's directory: it is **near**. An object is **settled** when the store outside holds it, under
//! the name of its file. Settled objects stay near as long as the limit of near bytes allows. Other reads use the store outside.
//!
//! ```text
//!    written, pulled ──► near (directory) ──settle──► far
//!    readers ◄──────────── near, else blocks ◄────── far
//! ```
//!
//! The table `outside` has a row for each object in the external store, from the moment the object is complete. Other programs use the
//! external store, too: this module overwrites and removes only files that it wrote itself.
//!
//! | module | contents |
//! |---|---|
//! | `packs` | files as chunks in packs |
//! | `attempts` | writes that were started in the external store |
//! | `following` | directories of the cluster that mirror the external store |
//! | `presence` | whether the external store is reachable and mounted |
//! | `reading` | bytes of objects that are not near |
//! | `rows` | the table |
//! | `settling` | writing objects to the store, in the foreground and in the background |

mod attempts;
mod following;
pub mod packs;
mod presence;
mod reading;
mod rows;
mod settling;
#[cfg(test)]
mod tests;

pub use following::{Bound, Follower, Known};
pub(crate) use settling::keep_settling;

use crate::db::Db;
use crate::directory::DirectoryStore;
use crate::records;
use crate::store::{Entry, Named, Opened, Space, Stat, Store, StoreError};
use bytes::Bytes;
use packs::{Packing, Packs};
use parking_lot::{Mutex, RwLock};
use presence::Guarded;
use reading::{Away, Reach, There};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tidemill_core::id::ObjectId;
use tidemill_kernel::Made;
use tidemill_kernel::locks::Shown;
use tidemill_wire::{condition, v1};

/// Capacity of a node whose external store has no configured limit: 1 PiB.
const CAPACITY_BYTES_DEFAULT: u64 = 1 << 50;

/// Default limit of settled bytes that are kept near.
pub const NEAR_BYTES_MAX_DEFAULT: u64 = 4 << 30;

/// Linux's identifier of the current boot of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Key of the last seen boot identifier in the table `identity`.
const BOOT: &str = "outside boot";

/// Time for which a refusal of the store is reported. The store is retried sooner.
const REFUSED: Duration = Duration::from_secs(60);

/// Number of locks for names. Objects with the same name are settled one after the other.
const TURNS: usize = 64;

/// Pending answer of a store.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Source of the next bytes to write. It returns `None` at the end.
pub type Pieces<'a> = Box<dyn FnMut() -> std::io::Result<Option<Bytes>> + Send + 'a>;

/// File of an external store, as the last `stat` saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Path below the root of the store.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Tag that changes when the file changes.
    pub tag: String,
    /// Whether the store itself refuses to read a file with another tag.
    pub checked: bool,
}

/// Files that a write may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Any file: no other program uses the name.
    Anything,
    /// No file: the write fails if the name is taken.
    Nothing,
    /// Only this file.
    This(Placed),
}

/// Reason why an external store did not execute a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The store has no such file.
    #[error("it does not exist")]
    Missing,
    /// The store has another file of that name.
    #[error("it has been replaced by another file")]
    Changed,
    /// The store does not answer.
    #[error("the store did not answer within one minute")]
    Silent,
    /// Any other failure, as human-readable text.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Returns whether the expected file certainly no longer exists.
    fn is_loss(&self) -> bool {
        matches!(self, Self::Missing | Self::Changed)
    }
}

/// External store. Each request ends, with a failure if necessary.
pub trait Far: Debug + Send + Sync {
    /// Returns the file at `path`.
    fn stat<'a>(&'a self, path: &'a str) -> Asked<'a, Placed>;
    /// Reads `count` bytes from offset `from` of exactly this file.
    fn read<'a>(&'a self, of: &'a Placed, from: u64, count: u64) -> Asked<'a, Bytes>;
    /// Writes a file of `size` bytes if `over` permits it. Readers never see an incomplete file.
    fn write<'a>(
        &'a self,
        path: &'a str,
        size: u64,
        pieces: Pieces<'a>,
        over: Over,
    ) -> Asked<'a, Placed>;
    /// Makes `other` another file with the bytes of `path`, in place of a file that exists at `other`.
    fn also<'a>(&'a self, path: &'a str, other: &'a str) -> Asked<'a, Placed>;
    /// Removes a file. A missing file is no error.
    fn remove<'a>(&'a self, path: &'a str) -> Asked<'a, ()>;
    /// Returns whether an interrupted write of that size may leave data in the store that only [`Self::abandon`] finds.
    fn leaves(&self, _size: u64) -> bool {
        false
    }
    /// Removes the data of interrupted writes to `_path` that started at or after `_since`, by the store's clock.
    fn abandon<'a>(&'a self, _path: &'a str, _since: SystemTime) -> Asked<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Opens the store again. A file system may have been mounted since the store was opened.
    fn renew(&self) {}
}

/// External location of a node's files.
#[derive(Clone, Debug)]
pub struct Where {
    /// External store.
    pub far: Arc<dyn Far>,
    /// Human-readable address of the store.
    pub uri: String,
    /// Storage format of new objects.
    pub packing: Packing,
    /// Limit of settled bytes that are kept near.
    pub near_bytes_max: u64,
}

/// Store that combines the node's directory with an external store; see the module.
#[derive(Debug)]
pub(crate) struct Outside {
    near: DirectoryStore,
    reach: Arc<Reach>,
    uri: String,
    packing: Packing,
    packs: Packs,
    near_bytes_max: u64,
    capacity_bytes: u64,
    db: Db,
    known: Mutex<Here>,
    turns: Vec<Mutex<()>>,
    /// Names that a thread works on and that may have data of interrupted writes.
    claimed: Mutex<HashSet<String>>,
    bound: RwLock<Vec<Bound>>,
}

/// State in memory, for questions that need no query of the database.
#[derive(Debug, Default)]
struct Here {
    /// Settled objects.
    far: HashSet<ObjectId>,
    /// Bytes of all settled files, bytes of those files that are in packs, and bytes of the packs.
    far_bytes: u64,
    packed_bytes: u64,
    pack_bytes: u64,
    /// Settled objects that are near, oldest first, and their total bytes.
    near: VecDeque<(ObjectId, u64)>,
    near_bytes: u64,
    /// Objects that wait to be settled in the background.
    waiting: BTreeSet<ObjectId>,
    /// Objects that settle when a note of the server has named their file.
    unnamed: BTreeSet<ObjectId>,
    /// Objects that are being settled, each with the number of concurrent attempts and whether it was removed during them.
    going: HashMap<ObjectId, (usize, bool)>,
    /// Reason why the background cannot settle objects; empty if it can.
    trouble: String,
    /// Reason and time of the last refusal of a settlement that a caller waited for.
    refused: Option<(String, Instant)>,
    /// Reason why the content of the store is unknown, for each bridge.
    unseen: BTreeMap<String, String>,
}

impl Here {
    /// Returns the bytes that the store holds.
    fn sent_bytes(&self) -> u64 {
        self.far_bytes.saturating_sub(self.packed_bytes) + self.pack_bytes
    }
}

/// Returns whether the host has not been restarted since the last call.
fn is_same_boot(db: &Db) -> Result<bool, crate::Error> {
    let now = std::fs::read(BOOT_ID).unwrap_or_default();
    let before = db.read(|db| records::identity(db, BOOT))?;
    if !now.is_empty() && before.as_ref() == Some(&now) {
        return Ok(true);
    }
    db.write_blocking(false, move |db| records::set_identity(db, BOOT, &now))?;
    Ok(false)
}

impl Outside {
    /// Opens the store and resumes the work of an earlier process.
    ///
    /// # Errors
    /// If the directory or the database can't be read.
    pub(crate) fn open(
        near: DirectoryStore,
        at: &Where,
        capacity_bytes: Option<u64>,
        (db, runtime): (Db, tokio::runtime::Handle),
    ) -> Result<Self, crate::Error> {
        let mut known = Here::default();
        for (object, size, packed) in db.read(rows::all)? {
            known.far.insert(object);
            known.far_bytes += size;
            known.packed_bytes += if packed { size } else { 0 };
        }
        known.waiting = db.read(rows::unsettled)?.into_iter().collect();
        let bound = db.read(following::kept)?;
        // Near files of settled objects were never synced. After a crash of the host they may have any content.
        let same_boot = is_same_boot(&db)?;
        for directory in 0..=u8::MAX {
            for entry in near.list(directory)? {
                match known.far.contains(&entry.object) {
                    true if same_boot => {
                        known.near.push_back((entry.object, entry.size));
                        known.near_bytes += entry.size;
                    }
                    true => drop(near.remove(entry.object)?),
                    false => {}
                }
            }
        }
        let far = Guarded::new(Arc::clone(&at.far), db.clone());
        let outside = Self {
            near,
            reach: Arc::new(Reach::new(far, db.clone(), runtime)),
            uri: at.uri.clone(),
            packing: at.packing,
            packs: Packs::default(),
            near_bytes_max: at.near_bytes_max,
            capacity_bytes: capacity_bytes.unwrap_or(CAPACITY_BYTES_DEFAULT),
            db,
            known: Mutex::new(known),
            claimed: Mutex::default(),
            turns: (0..TURNS).map(|_| Mutex::default()).collect(),
            bound: RwLock::new(bound),
        };
        outside.count_packs();
        Ok(outside)
    }

    /// Returns the progress of settling, for the node's status.
    pub(crate) fn told(&self) -> v1::Outside {
        let known = self.known.lock();
        v1::Outside {
            uri: self.uri.clone(),
            files: known.far.len() as u64,
            bytes: known.far_bytes,
            waiting: (known.waiting.len() + known.unnamed.len()) as u64,
            sent: known.sent_bytes(),
            packing: self.packing.to_string(),
        }
    }

    /// Returns the reason why nothing settles or why the content of the store is unknown; `None` if there is no problem.
    fn trouble(&self) -> Option<(condition::Kind, String)> {
        let known = self.known.lock();
        if let Some(offline) = self.reach.far.trouble() {
            return Some((condition::STORE_OFFLINE, format!("{}: {offline}", self.uri)));
        }
        let refused = known.refused.as_ref();
        let refused = refused.filter(|(_, since)| since.elapsed() < REFUSED);
        let failing = match known.trouble.as_str() {
            "" => refused.map(|(why, _)| why.clone()),
            trouble => Some(trouble.to_owned()),
        };
        let failing = failing.map(|why| (condition::STORE_FAILING, why));
        let unseen = known.unseen.values().next().cloned();
        failing.or_else(|| unseen.map(|why| (condition::STORE_UNSEEN, why)))
    }

    /// Returns the condition of the store, for the server.
    pub(crate) fn condition(&self, node: u32) -> Option<v1::Condition> {
        let (kind, why) = self.trouble()?;
        Some(kind.of(Some(node), why))
    }

    fn is_far(&self, object: ObjectId) -> bool {
        self.known.lock().far.contains(&object)
    }

    /// Returns the location of an object in the external store.
    fn placed(&self, object: ObjectId) -> Result<Option<There>, StoreError> {
        if !self.is_far(object) {
            return Ok(None);
        }
        let row = self.db.read(|db| rows::find(db, object));
        row.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &crate::db::DbError) -> StoreError {
        StoreError::Outside {
            path: self.uri.clone(),
            why: Failure::Other(error.to_string()),
        }
    }

    /// Fails if an object is settled. A settled object can't be written, even if it has no near file.
    fn writable(&self, object: ObjectId) -> Result<(), StoreError> {
        match self.is_far(object) {
            true => Err(StoreError::Sealed { object }),
            false => Ok(()),
        }
    }

    /// Records that an object was created or recreated. The background settles it.
    fn made(&self, object: ObjectId) {
        let mut known = self.known.lock();
        if known.far.contains(&object) {
            drop(known);
            // The next settlement replaces the file in the external store.
            self.forget(object);
            known = self.known.lock();
        }
        known.waiting.insert(object);
    }

    /// Forgets the external location of an object. Its external file is removed later, unless another object takes the name.
    fn forget(&self, object: ObjectId) {
        let left = self
            .db
            .write_blocking(false, move |db| rows::leave(db, object));
        let mut known = self.known.lock();
        match left {
            Ok(there) if known.far.remove(&object) => {
                let packed = there.as_ref().is_some_and(|there| there.packed);
                let size = there.map_or(0, |there| there.placed.size);
                known.far_bytes -= size;
                known.packed_bytes -= if packed { size } else { 0 };
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, %object, "can't remove an object outside"),
        }
        self.reach.clear(object);
        if let Some(at) = known.near.iter().position(|(near, _)| *near == object)
            && let Some((_, size)) = known.near.remove(at)
        {
            known.near_bytes -= size;
        }
    }

    /// Removes near files of settled objects, oldest first, while they exceed the limit.
    fn make_room(&self) {
        loop {
            let mut known = self.known.lock();
            if known.near_bytes <= self.near_bytes_max {
                return;
            }
            let Some((object, size)) = known.near.pop_front() else {
                return;
            };
            known.near_bytes -= size;
            drop(known);
            if let Err(error) = self.near.remove(object) {
                tracing::warn!(%error, %object, "a file that the external store has can't be removed from the directory");
            }
        }
    }

    /// Records the store's refusal. It is reported until the store accepts an object.
    fn note_refused(&self, settled: &[Result<(), StoreError>]) {
        let refused = settled.iter().find_map(|settled| match settled {
            Err(error @ StoreError::Outside { .. }) => Some(error.to_string()),
            _ => None,
        });
        if refused.is_some() || settled.iter().any(Result::is_ok) {
            self.known.lock().refused = refused.map(|why| (why, Instant::now()));
        }
    }

    /// Records that settling these objects starts. A caller that settles a removed object makes it exist again.
    fn go(&self, objects: &[(ObjectId, Named)]) {
        let mut known = self.known.lock();
        for (object, _) in objects {
            let (times, removed) = known.going.entry(*object).or_default();
            (*times, *removed) = (*times + 1, false);
        }
    }

    /// Records that settling these objects ended, with any result. Objects removed during this time are also removed from the store.
    fn gone(&self, objects: &[(ObjectId, Named)]) {
        for (object, _) in objects {
            let mut known = self.known.lock();
            let Some((times, removed)) = known.going.get_mut(object) else {
                continue;
            };
            *times -= 1;
            if *times > 0 {
                continue;
            }
            let removed = *removed;
            known.going.remove(object);
            let far = removed && known.far.contains(object);
            drop(known);
            if far {
                self.forget(*object);
            }
        }
    }

    fn settle_each(&self, objects: &[(ObjectId, Named)]) -> Vec<Result<(), StoreError>> {
        let Packing::Chunks { compress } = self.packing else {
            return self.settle_at_once(objects);
        };
        // In a bound directory, each file is stored outside under its own name.
        let bound: Vec<bool> = objects
            .iter()
            .map(|(_, named)| self.inside(&named.path).is_some())
            .collect();
        let those = |wanted: bool| -> Vec<(ObjectId, Named)> {
            let all = objects.iter().zip(&bound);
            let those = all.filter(|(_, bound)| **bound == wanted);
            those.map(|(one, _)| one.clone()).collect()
        };
        let mut files = self.settle_at_once(&those(true)).into_iter();
        let mut packed = self.pack(compress, those(false)).into_iter();
        let ended = objects.iter().zip(&bound).map(|((object, _), bound)| {
            let ended = match bound {
                true => files.next(),
                false => packed.next(),
            };
            ended.unwrap_or(Err(StoreError::NotFound { object: *object }))
        });
        ended.collect()
    }

    /// Returns the near result for an object. If the object is not near, the result for its external location.
    fn near_or<T>(
        &self,
        object: ObjectId,
        near: Result<T, StoreError>,
        far: impl FnOnce(There) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match near {
            Err(StoreError::NotFound { .. }) => match self.placed(object)? {
                Some(there) => far(there),
                None => Err(StoreError::NotFound { object }),
            },
            near => near,
        }
    }
}

impl Store for Outside {
    fn create(&self, object: ObjectId) -> Result<(), StoreError> {
        self.writable(object)?;
        self.near.create(object)
    }

    fn write_at(&self, object: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.writable(object)?;
        self.near.write_at(object, offset, data)
    }

    fn truncate(&self, object: ObjectId, size: u64) -> Result<(), StoreError> {
        self.writable(object)?;
        self.near.truncate(object, size)
    }

    fn copy(&self, object: ObjectId, from: ObjectId, bytes: u64) -> Result<(), StoreError> {
        let copied = self.near.copy(object, from, bytes);
        self.near_or(from, copied, |there| {
            self.fetch(object, from, &there, bytes)
        })
    }

    fn allocate(
        &self,
        object: ObjectId,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<u64, StoreError> {
        self.writable(object)?;
        self.near.allocate(object, offset, length, mode)
    }

    fn reserve(&self, object: ObjectId, size: u64) -> Result<(), StoreError> {
        self.near.reserve(object, size)
    }

    fn take_room(&self, bytes: u64) -> Result<(), StoreError> {
        self.near.take_room(bytes)
    }

    fn count_room(&self, bytes: u64) {
        self.near.count_room(bytes);
    }

    fn give_room(&self, bytes: u64) {
        self.near.give_room(bytes);
    }

    fn sync(&self, object: ObjectId) -> Result<(), StoreError> {
        let synced = self.near.sync(object);
        self.near_or(object, synced, |_| Ok(()))
    }

    fn seal(&self, object: ObjectId, durable: bool) -> Result<u64, StoreError> {
        let size = self.near.seal(object, durable);
        self.sealed(object, size)
    }

    fn allocated(&self, object: ObjectId) -> u64 {
        self.near.allocated(object)
    }

    fn seal_lost(
        &self,
        object: ObjectId,
        durable: bool,
        shown: Shown<'_>,
    ) -> Result<u64, StoreError> {
        let size = self.near.seal_lost(object, durable, shown);
        self.sealed(object, size)
    }

    fn adopt(&self, object: ObjectId, made: &Made) -> Result<u64, StoreError> {
        let size = self.near.adopt(object, made)?;
        self.made(object);
        Ok(size)
    }

    fn hand_on(&self, object: ObjectId, made: &Made) -> Result<Option<u64>, StoreError> {
        self.near.hand_on(object, made)
    }

    fn put(&self, object: ObjectId, bytes: &[u8]) -> Result<(), StoreError> {
        self.near.put(object, bytes)?;
        self.made(object);
        Ok(())
    }

    fn settle(&self, objects: &[(ObjectId, Named)]) -> Vec<Result<(), StoreError>> {
        self.go(objects);
        let settled = self.settle_each(objects);
        self.gone(objects);
        self.note_refused(&settled);
        settled
    }

    fn link(&self, object: ObjectId, path: &str) -> Result<u64, StoreError> {
        self.link_to(object, path)
    }

    fn vouch(&self, object: ObjectId) -> Option<Result<(), StoreError>> {
        if self.near.stat(object).is_ok() {
            return None;
        }
        let there = match self.placed(object) {
            Ok(there) => there?,
            Err(error) => return Some(Err(error)),
        };
        Some(self.still(object, &there))
    }

    fn open(&self, object: ObjectId) -> Result<Opened, StoreError> {
        self.near_or(object, self.near.open(object), |there| {
            if self.reach.is_suspect(object) {
                self.still(object, &there)?;
            }
            let stat = Stat {
                size: there.placed.size,
                sealed: true,
            };
            let bytes = Box::new(Away::new(Arc::clone(&self.reach), object, there));
            Ok(Opened { stat, bytes })
        })
    }

    fn open_cold(&self, object: ObjectId) -> Result<Opened, StoreError> {
        let near = self.near.open_cold(object);
        match near {
            Err(StoreError::NotFound { .. }) => self.open(object),
            near => near,
        }
    }

    fn set_aside(&self, object: ObjectId) -> Result<(), StoreError> {
        // A near file that is corrupt is read from the external store.
        if self.near.stat(object).is_err() {
            self.forget(object);
        }
        self.near.set_aside(object)
    }

    fn open_corrupt(&self, object: ObjectId) -> Result<Opened, StoreError> {
        self.near.open_corrupt(object)
    }

    fn forget_corrupt(&self, object: ObjectId) -> Result<(), StoreError> {
        self.near.forget_corrupt(object)
    }

    fn stat(&self, object: ObjectId) -> Result<Stat, StoreError> {
        self.near_or(object, self.near.stat(object), |there| {
            Ok(Stat {
                size: there.placed.size,
                sealed: true,
            })
        })
    }

    fn list(&self, directory: u8) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.near.list(directory)?;
        let here: HashSet<ObjectId> = entries.iter().map(|entry| entry.object).collect();
        let rows = self.db.read(|db| rows::of_directory(db, directory));
        for (object, size) in rows.map_err(|error| self.failed(&error))? {
            if !here.contains(&object) {
                entries.push(Entry {
                    object,
                    size,
                    sealed: true,
                    // Sealed objects have no time of modification that matters.
                    modified: SystemTime::UNIX_EPOCH,
                });
            }
        }
        Ok(entries)
    }

    fn remove(&self, object: ObjectId) -> Result<bool, StoreError> {
        let near = self.near.remove(object)?;
        self.known.lock().unnamed.remove(&object);
        if let Some((_, removed)) = self.known.lock().going.get_mut(&object) {
            *removed = true;
        }
        let far = self.is_far(object);
        if far {
            self.forget(object);
        }
        Ok(near || far)
    }

    /// Always `None`: the near file of a settled object may be removed at any time. Callers that need a file fetch it.
    fn local_path(&self, _object: ObjectId) -> Option<PathBuf> {
        None
    }

    fn space(&self) -> Result<Space, StoreError> {
        let Space { disk, .. } = self.near.space()?;
        let known = self.known.lock();
        let left = self.capacity_bytes.saturating_sub(known.sent_bytes());
        let here = disk.free_bytes.saturating_add(known.near_bytes);
        Ok(Space {
            capacity_bytes: self.capacity_bytes,
            free_bytes: left.min(here),
            disk,
        })
    }
}
