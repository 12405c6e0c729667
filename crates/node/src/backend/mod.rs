//! Store of a node whose files are kept in a backend: in an external file system or in an object store. The module uses the node's
//! directory, its database and the external store.
//!
//! New data first becomes a file of the node's directory: it is in the **cache**. An object is **durable** when the external store has the
//! object, under the name of its file. Durable objects stay in the cache up to the limit of cached bytes. Reads of other objects use the
//! external store.
//!
//! ```text
//!    written, fetched ─► cache (directory) ──upload──► external store
//!    readers ◄──────────── cache, else blocks ◄────── external store
//! ```
//!
//! The table `backend` has a row for each object in the external store, from the moment the object is complete. Other programs use the
//! external store, too: this module overwrites and removes only files that it wrote itself.
//!
//! | module | contents |
//! |---|---|
//! | `packs` | files as chunks in packs |
//! | `attempts` | writes that were started in the external store |
//! | `following` | directories of the cluster that mirror the external store |
//! | `presence` | whether the external store is reachable and mounted |
//! | `reading` | bytes of objects that are not in the cache |
//! | `rows` | the table |
//! | `uploading` | writing objects to the store, in the foreground and in the background |

mod attempts;
mod following;
pub mod packs;
mod presence;
mod reading;
mod rows;
#[cfg(test)]
mod tests;
mod uploading;

pub(crate) use following::{AttachedDirectory, Follower};
pub(crate) use uploading::keep_uploading;

use crate::db::Db;
use crate::directory::DirectoryStore;
use crate::records;
use crate::store::{
    ObjectFile, ObjectStat, ReadableObject, Store, StoreEntry, StoreError, StoreSpace,
};
use packs::{Packing, Packs};
use parking_lot::{Mutex, RwLock};
use presence::CheckedStore;
use reading::{BackendLocation, BackendObject, ExternalReader};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tidemill_model::backoff::Backoff;
use tidemill_model::id::ObjectId;
use tidemill_remote::{Error, Overwrite, Remote, RemoteAddress, RemoteStore, StoreFile};
use tidemill_sandbox::PrivateFile;
use tidemill_sandbox::locks::ProcFile;
use tidemill_wire::{condition, v1};

/// Capacity in bytes of a node whose external store has no configured limit: 1 PiB.
const CAPACITY_BYTES_DEFAULT: u64 = 1 << 50;

/// Default limit of the bytes of durable objects in the cache.
pub const CACHE_BYTES_MAX_DEFAULT: u64 = 4 << 30;

/// Key of the last seen boot identifier in the database table `identity`.
const BOOT: &str = "backend boot";

/// Time for which the node reports a refusal of the external store. The node retries sooner.
const REFUSED: Duration = Duration::from_secs(60);

/// Number of locks for file names. Objects with the same name are uploaded one after the other.
const TURNS: usize = 64;

/// Settings of a node's backend.
#[derive(Clone, Debug)]
pub struct BackendSettings {
    /// External store.
    pub far: Remote,
    /// Second connection to the external store, for scans.
    pub scans: Remote,
    /// Address of the external store.
    pub address: RemoteAddress,
    /// Storage format of new objects.
    pub packing: Packing,
    /// Limit of the bytes of durable objects in the cache.
    pub cache_bytes_max: u64,
}

/// Store that combines the node's directory with an external store; see the module.
#[derive(Debug)]
pub(crate) struct Backend {
    cache: DirectoryStore,
    reach: Arc<ExternalReader>,
    uri: String,
    packing: Packing,
    packs: Packs,
    cache_bytes_max: u64,
    capacity_bytes: u64,
    db: Db,
    known: Mutex<BackendState>,
    turns: Vec<Mutex<()>>,
    /// File names that a thread works on and for which the external store may have data of interrupted writes.
    claimed: Mutex<HashSet<String>>,
    attached: RwLock<Vec<AttachedDirectory>>,
}

/// State in memory, for requests that need no query of the database.
#[derive(Debug, Default)]
struct BackendState {
    /// Objects that are durable in the backend.
    far: HashSet<ObjectId>,
    /// Total bytes of all durable files, bytes of the durable files in packs, and bytes of the packs.
    far_bytes: u64,
    packed_bytes: u64,
    pack_bytes: u64,
    /// Durable objects in the cache, oldest first, each with its size, and their total bytes.
    cached: VecDeque<(ObjectId, u64)>,
    cached_bytes: u64,
    /// Objects that wait to be uploaded by the background threads.
    waiting: BTreeSet<ObjectId>,
    /// Waiting objects, each with the time before which the server is not asked for its file again, and the pauses before later questions.
    asked: HashMap<ObjectId, (Instant, Backoff)>,
    /// Files of waiting objects, as the server named them.
    files: HashMap<ObjectId, v1::FileOfObject>,
    /// Objects that are being uploaded, each with the number of concurrent attempts and whether the object was removed during them.
    going: HashMap<ObjectId, (usize, bool)>,
    /// Reason why the background threads cannot upload objects; empty if they can.
    trouble: String,
    /// Reason and time of the last refused upload for which a caller waited.
    refused: Option<(String, Instant)>,
    /// Reason why the content of the external store is unknown, for each remote.
    unseen: BTreeMap<String, String>,
}

impl BackendState {
    /// Removes an object from the objects that wait for their upload.
    fn stop_waiting(&mut self, object: ObjectId) {
        self.waiting.remove(&object);
        self.asked.remove(&object);
        self.files.remove(&object);
    }

    /// Returns the number of bytes in the external store.
    fn sent_bytes(&self) -> u64 {
        self.far_bytes.saturating_sub(self.packed_bytes) + self.pack_bytes
    }
}

/// Returns whether the host has not been restarted since the last call.
fn is_same_boot(db: &Db) -> Result<bool, crate::Error> {
    let now = tidemill_client::host_id::boot().into_bytes();
    let before = db.read(|db| records::identity(db, BOOT))?;
    if !now.is_empty() && before.as_ref() == Some(&now) {
        return Ok(true);
    }
    db.write_blocking(false, move |db| records::set_identity(db, BOOT, &now))?;
    Ok(false)
}

impl Backend {
    /// Opens the backend and resumes the uploads of an earlier process.
    ///
    /// # Errors
    /// If the directory or the database can't be read.
    pub(crate) fn open(
        cache: DirectoryStore,
        at: &BackendSettings,
        capacity_bytes: Option<u64>,
        (db, runtime): (Db, tokio::runtime::Handle),
    ) -> Result<Self, crate::Error> {
        let mut known = BackendState::default();
        for (object, size, packed) in db.read(rows::all)? {
            known.far.insert(object);
            known.far_bytes += size;
            known.packed_bytes += if packed { size } else { 0 };
        }
        known.waiting = db.read(rows::not_durable)?.into_iter().collect();
        let attached = db.read(following::kept)?;
        // Cached files of durable objects were never synced. After a crash of the host they may have any content.
        let same_boot = is_same_boot(&db)?;
        for directory in 0..=u8::MAX {
            for entry in cache.list(directory)? {
                match known.far.contains(&entry.object) {
                    true if same_boot => {
                        known.cached.push_back((entry.object, entry.size));
                        known.cached_bytes += entry.size;
                    }
                    true => drop(cache.remove(entry.object)?),
                    false => {}
                }
            }
        }
        let far = CheckedStore::new(Arc::clone(&at.far), db.clone());
        let backend = Self {
            cache,
            reach: Arc::new(ExternalReader::new(far, db.clone(), runtime)),
            uri: at.address.uri().to_owned(),
            packing: at.packing,
            packs: Packs::default(),
            cache_bytes_max: at.cache_bytes_max,
            capacity_bytes: capacity_bytes.unwrap_or(CAPACITY_BYTES_DEFAULT),
            db,
            known: Mutex::new(known),
            claimed: Mutex::default(),
            turns: (0..TURNS).map(|_| Mutex::default()).collect(),
            attached: RwLock::new(attached),
        };
        backend.count_packs();
        Ok(backend)
    }

    /// Returns the progress of the uploads, for the node's status.
    pub(crate) fn reported(&self) -> v1::Backend {
        let known = self.known.lock();
        v1::Backend {
            uri: self.uri.clone(),
            files: known.far.len() as u64,
            bytes: known.far_bytes,
            waiting: known.waiting.len() as u64,
            sent: known.sent_bytes(),
            packing: self.packing.to_string(),
        }
    }

    /// Returns the reason why nothing is uploaded or why the content of the external store is unknown; `None` if there is no problem.
    fn trouble(&self) -> Option<(condition::ConditionKind, String)> {
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

    /// Returns the condition of the external store, as the node reports it to the server.
    pub(crate) fn condition(&self, node: u32) -> Option<v1::Condition> {
        let (kind, why) = self.trouble()?;
        Some(kind.of(Some(node), why))
    }

    fn is_far(&self, object: ObjectId) -> bool {
        self.known.lock().far.contains(&object)
    }

    /// Returns the location of an object in the external store; `None` if the object is not durable.
    fn placed(&self, object: ObjectId) -> Result<Option<BackendLocation>, StoreError> {
        if !self.is_far(object) {
            return Ok(None);
        }
        let row = self.db.read(|db| rows::find(db, object));
        row.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &crate::db::DbError) -> StoreError {
        StoreError::Backend {
            path: self.uri.clone(),
            why: Error::Other(error.to_string()),
        }
    }

    /// Returns an error if an object is durable in the backend. A durable object can't be written, even if it has no cached file.
    fn writable(&self, object: ObjectId) -> Result<(), StoreError> {
        match self.is_far(object) {
            true => Err(StoreError::Sealed { object }),
            false => Ok(()),
        }
    }

    /// Records that an object was created or recreated, so that a background thread uploads the object.
    fn made(&self, object: ObjectId) {
        let mut known = self.known.lock();
        if known.far.contains(&object) {
            drop(known);
            // The next upload replaces the file in the external store.
            self.forget(object);
            known = self.known.lock();
        }
        known.waiting.insert(object);
    }

    /// Forgets the location of an object in the external store. Its external file is removed later, unless another object takes the name.
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
            Err(error) => tracing::warn!(%error, %object, "can't remove an object in the backend"),
        }
        self.reach.clear(object);
        if let Some(at) = known
            .cached
            .iter()
            .position(|(cached, _)| *cached == object)
            && let Some((_, size)) = known.cached.remove(at)
        {
            known.cached_bytes -= size;
        }
    }

    /// Removes cached files of durable objects, oldest first, while their bytes exceed the limit.
    fn make_space(&self) {
        loop {
            let mut known = self.known.lock();
            if known.cached_bytes <= self.cache_bytes_max {
                return;
            }
            let Some((object, size)) = known.cached.pop_front() else {
                return;
            };
            known.cached_bytes -= size;
            drop(known);
            if let Err(error) = self.cache.remove(object) {
                tracing::warn!(%error, %object, "the cached file of a durable object can't be removed");
            }
        }
    }

    /// Records a refusal of the external store, which the node reports until the store accepts an object.
    fn note_refused(&self, uploaded: &[Result<(), StoreError>]) {
        let refused = uploaded.iter().find_map(|uploaded| match uploaded {
            Err(error @ StoreError::Backend { .. }) => Some(error.to_string()),
            _ => None,
        });
        if refused.is_some() || uploaded.iter().any(Result::is_ok) {
            self.known.lock().refused = refused.map(|why| (why, Instant::now()));
        }
    }

    /// Records that the upload of these objects starts. If an object was removed before, a caller that uploads the object makes it exist
    /// again.
    fn go(&self, objects: &[(ObjectId, ObjectFile)]) {
        let mut known = self.known.lock();
        for (object, _) in objects {
            let (times, removed) = known.going.entry(*object).or_default();
            (*times, *removed) = (*times + 1, false);
        }
    }

    /// Records that the upload of these objects ended, with any result. Objects removed during the upload are also removed from the
    /// external store.
    fn uploads_ended(&self, objects: &[(ObjectId, ObjectFile)]) {
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

    fn upload_each(&self, objects: &[(ObjectId, ObjectFile)]) -> Vec<Result<(), StoreError>> {
        let Packing::Chunks { compress } = self.packing else {
            return self.upload_at_once(objects);
        };
        // In an attached directory, each file is stored in the backend under its own name.
        let attached: Vec<bool> = objects
            .iter()
            .map(|(_, named)| self.inside(&named.path).is_some())
            .collect();
        let those = |wanted: bool| -> Vec<(ObjectId, ObjectFile)> {
            let all = objects.iter().zip(&attached);
            let those = all.filter(|(_, attached)| **attached == wanted);
            those.map(|(one, _)| one.clone()).collect()
        };
        let mut files = self.upload_at_once(&those(true)).into_iter();
        let mut packed = self.pack(compress, those(false)).into_iter();
        let ended = objects
            .iter()
            .zip(&attached)
            .map(|((object, _), attached)| {
                let ended = match attached {
                    true => files.next(),
                    false => packed.next(),
                };
                ended.unwrap_or(Err(StoreError::NotFound { object: *object }))
            });
        ended.collect()
    }

    /// Returns the cache's result for an object, or, if the object is not in the cache, the result of a function for the object's location.
    fn cached_or<T>(
        &self,
        object: ObjectId,
        cached: Result<T, StoreError>,
        far: impl FnOnce(BackendLocation) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match cached {
            Err(StoreError::NotFound { .. }) => match self.placed(object)? {
                Some(there) => far(there),
                None => Err(StoreError::NotFound { object }),
            },
            cached => cached,
        }
    }
}

impl Store for Backend {
    fn create(&self, object: ObjectId) -> Result<(), StoreError> {
        self.writable(object)?;
        self.cache.create(object)
    }

    fn write_at(&self, object: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.writable(object)?;
        self.cache.write_at(object, offset, data)
    }

    fn truncate(&self, object: ObjectId, size: u64) -> Result<(), StoreError> {
        self.writable(object)?;
        self.cache.truncate(object, size)
    }

    fn copy(&self, object: ObjectId, from: ObjectId, bytes: u64) -> Result<(), StoreError> {
        let copied = self.cache.copy(object, from, bytes);
        self.cached_or(from, copied, |there| {
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
        self.cache.allocate(object, offset, length, mode)
    }

    fn reserve(&self, object: ObjectId, size: u64) -> Result<(), StoreError> {
        self.cache.reserve(object, size)
    }

    fn sync(&self, object: ObjectId) -> Result<(), StoreError> {
        let synced = self.cache.sync(object);
        self.cached_or(object, synced, |_| Ok(()))
    }

    fn seal(&self, object: ObjectId, durable: bool) -> Result<u64, StoreError> {
        let size = self.cache.seal(object, durable);
        self.sealed(object, size)
    }

    fn allocated(&self, object: ObjectId) -> u64 {
        self.cache.allocated(object)
    }

    fn seal_lost(
        &self,
        object: ObjectId,
        durable: bool,
        shown: ProcFile<'_>,
    ) -> Result<u64, StoreError> {
        let size = self.cache.seal_lost(object, durable, shown);
        self.sealed(object, size)
    }

    fn adopt(&self, object: ObjectId, made: &PrivateFile) -> Result<u64, StoreError> {
        let size = self.cache.adopt(object, made)?;
        self.made(object);
        Ok(size)
    }

    fn adopt_in_memory(
        &self,
        object: ObjectId,
        made: &PrivateFile,
    ) -> Result<Option<u64>, StoreError> {
        self.cache.adopt_in_memory(object, made)
    }

    fn put(&self, object: ObjectId, bytes: &[u8]) -> Result<(), StoreError> {
        self.cache.put(object, bytes)?;
        self.made(object);
        Ok(())
    }

    fn make_durable(&self, objects: &[(ObjectId, ObjectFile)]) -> Vec<Result<(), StoreError>> {
        self.go(objects);
        let uploaded = self.upload_each(objects);
        self.uploads_ended(objects);
        self.note_refused(&uploaded);
        uploaded
    }

    fn make_stub(&self, object: ObjectId, path: &str) -> Result<u64, StoreError> {
        self.make_stub_at(object, path)
    }

    fn vouch(&self, object: ObjectId) -> Option<Result<(), StoreError>> {
        if self.cache.stat(object).is_ok() {
            return None;
        }
        let there = match self.placed(object) {
            Ok(there) => there?,
            Err(error) => return Some(Err(error)),
        };
        Some(self.still(object, &there))
    }

    fn open(&self, object: ObjectId) -> Result<ReadableObject, StoreError> {
        self.cached_or(object, self.cache.open(object), |there| {
            if self.reach.is_suspect(object) {
                self.still(object, &there)?;
            }
            let stat = ObjectStat {
                size: there.placed.size,
                sealed: true,
            };
            let bytes = Box::new(BackendObject::new(Arc::clone(&self.reach), object, there));
            Ok(ReadableObject { stat, bytes })
        })
    }

    fn open_cold(&self, object: ObjectId) -> Result<ReadableObject, StoreError> {
        let cached = self.cache.open_cold(object);
        match cached {
            Err(StoreError::NotFound { .. }) => self.open(object),
            cached => cached,
        }
    }

    fn set_aside(&self, object: ObjectId) -> Result<(), StoreError> {
        // A cached file that is corrupt is read from the external store.
        if self.cache.stat(object).is_err() {
            self.forget(object);
        }
        self.cache.set_aside(object)
    }

    fn open_corrupt(&self, object: ObjectId) -> Result<ReadableObject, StoreError> {
        self.cache.open_corrupt(object)
    }

    fn forget_corrupt(&self, object: ObjectId) -> Result<(), StoreError> {
        self.cache.forget_corrupt(object)
    }

    fn stat(&self, object: ObjectId) -> Result<ObjectStat, StoreError> {
        self.cached_or(object, self.cache.stat(object), |there| {
            Ok(ObjectStat {
                size: there.placed.size,
                sealed: true,
            })
        })
    }

    fn list(&self, directory: u8) -> Result<Vec<StoreEntry>, StoreError> {
        let mut entries = self.cache.list(directory)?;
        let here: HashSet<ObjectId> = entries.iter().map(|entry| entry.object).collect();
        let rows = self.db.read(|db| rows::of_directory(db, directory));
        for (object, size) in rows.map_err(|error| self.failed(&error))? {
            if !here.contains(&object) {
                entries.push(StoreEntry {
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
        let cached = self.cache.remove(object)?;
        self.known.lock().stop_waiting(object);
        if let Some((_, removed)) = self.known.lock().going.get_mut(&object) {
            *removed = true;
        }
        let far = self.is_far(object);
        if far {
            self.forget(object);
        }
        Ok(cached || far)
    }

    /// Returns `None`: the cached file of a durable object may be removed at any time. Callers that need a file fetch the object.
    fn local_path(&self, _object: ObjectId) -> Option<PathBuf> {
        None
    }

    fn space(&self) -> Result<StoreSpace, StoreError> {
        let StoreSpace { disk, .. } = self.cache.space()?;
        let known = self.known.lock();
        let left = self.capacity_bytes.saturating_sub(known.sent_bytes());
        let here = disk.free_bytes.saturating_add(known.cached_bytes);
        Ok(StoreSpace {
            capacity_bytes: self.capacity_bytes,
            free_bytes: left.min(here),
            disk,
        })
    }
}
