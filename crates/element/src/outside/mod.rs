//! The store of an element whose files stay outside of the array: in a file system of others, or in an object store.
//!
//! What is written comes **near** first, as files of the element's folder, and is **settled** when the store outside has it, under
//! the name of its file. What has settled is kept near as long as there is room, and read from outside when it is not.
//!
//! ```text
//!   written, pulled ──► near (folder) ──settle──► far
//!   readers ◄──────────── near, else blocks ◄────── far
//! ```
//!
//! The table `outside` has a row for each object that is there, from when it is whole. A store outside is others' as well: nothing
//! is written over, and nothing is removed, that is not what was put there.
//!
//! | module | |
//! |---|---|
//! | `packs` | files as chunks in packs |
//! | `attempts` | what was begun to be written there |
//! | `following` | folders of the array that have what is there |
//! | `presence` | whether the store is there |
//! | `reading` | bytes of what is not near |
//! | `rows` | the table |
//! | `settling` | how an object gets there, and what goes there without anybody waiting |

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
use crate::folder::FolderStore;
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

/// What an element can hold whose store outside has no bound that anybody said: 1 PiB.
const CAPACITY_BYTES_DEFAULT: u64 = 1 << 50;

/// Bytes that have settled and are kept near.
pub const NEAR_BYTES_MAX_DEFAULT: u64 = 4 << 30;

/// What Linux calls the time since the host was started.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The key of the table `identity`.
const BOOT: &str = "outside boot";

/// What the store has refused is told for so long: it is tried again sooner.
const REFUSED: Duration = Duration::from_secs(60);

/// Objects with the same name are settled one after the other; so many names at once.
const TURNS: usize = 64;

/// An answer that is waited for.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// The next bytes of what is written; none at the end.
pub type Pieces<'a> = Box<dyn FnMut() -> std::io::Result<Option<Bytes>> + Send + 'a>;

/// A file of a store outside, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where, below the store.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Another one when the file is.
    pub tag: String,
    /// The store itself refuses to read another one than this.
    pub checked: bool,
}

/// What a file that is written may take the place of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Of whatever is there: the name is of nobody else.
    Anything,
    /// Of nothing.
    Nothing,
    /// Of this file only.
    This(Placed),
}

/// Why a store outside did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It has no such file.
    #[error("it does not exist")]
    Missing,
    /// It has another file of that name.
    #[error("it has been replaced by another file")]
    Changed,
    /// It says nothing.
    #[error("the store did not answer within one minute")]
    Silent,
    /// All else, for people.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Whether it is sure that what was there is not there any more.
    fn is_loss(&self) -> bool {
        matches!(self, Self::Missing | Self::Changed)
    }
}

/// A store outside. What it is asked ends, with a failure if need be.
pub trait Far: Debug + Send + Sync {
    /// What is there.
    fn stat<'a>(&'a self, path: &'a str) -> Asked<'a, Placed>;
    /// A range of this file and no other one, from a byte on, of so many.
    fn read<'a>(&'a self, of: &'a Placed, from: u64, count: u64) -> Asked<'a, Bytes>;
    /// Writes a file of that length, if nothing else than that is there; nothing of it is seen before it is whole.
    fn write<'a>(
        &'a self,
        path: &'a str,
        size: u64,
        pieces: Pieces<'a>,
        over: Over,
    ) -> Asked<'a, Placed>;
    /// Makes another file of the same bytes, in place of what is there.
    fn also<'a>(&'a self, path: &'a str, other: &'a str) -> Asked<'a, Placed>;
    /// Removes a file; it is no error if there is none.
    fn remove<'a>(&'a self, path: &'a str) -> Asked<'a, ()>;
    /// Whether a file of that length may leave something there, if its writing does not end, that only [`Self::give_up`] finds.
    fn leaves(&self, _size: u64) -> bool {
        false
    }
    /// Gives up what is left of writing a file that was begun since then, by the store's clock, and did not end.
    fn give_up<'a>(&'a self, _path: &'a str, _since: SystemTime) -> Asked<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// What was not there may be by now, as a file system that is mounted: it is opened anew.
    fn renew(&self) {}
}

/// Where an element's files stay, if that is outside.
#[derive(Clone, Debug)]
pub struct Where {
    /// The store.
    pub far: Arc<dyn Far>,
    /// Its address, for people.
    pub uri: String,
    /// How what comes is put there.
    pub packing: Packing,
    /// Bytes that have settled and are kept near.
    pub near_bytes_max: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Outside {
    near: FolderStore,
    reach: Arc<Reach>,
    uri: String,
    packing: Packing,
    packs: Packs,
    near_bytes_max: u64,
    capacity_bytes: u64,
    db: Db,
    known: Mutex<Here>,
    turns: Vec<Mutex<()>>,
    /// Names of which something may be left, and that are worked on.
    claimed: Mutex<HashSet<String>>,
    bound: RwLock<Vec<Bound>>,
}

/// What is known without asking the database.
#[derive(Debug, Default)]
struct Here {
    /// What has settled.
    far: HashSet<ObjectId>,
    /// Its bytes, as files have them; those of it that are in packs; and what the packs take.
    far_bytes: u64,
    packed_bytes: u64,
    pack_bytes: u64,
    /// What has settled and is near, longest first, and its bytes.
    near: VecDeque<(ObjectId, u64)>,
    near_bytes: u64,
    /// What has to be settled and nobody waits for.
    waiting: BTreeSet<ObjectId>,
    /// Objects that settle when a note of the server has named their file.
    unnamed: BTreeSet<ObjectId>,
    /// What is on its way there, how often at once, and whether it was removed meanwhile.
    going: HashMap<ObjectId, (usize, bool)>,
    /// Why nothing settles.
    trouble: String,
    /// Why something did not that somebody waited for, and when.
    refused: Option<(String, Instant)>,
    /// Why it is not known what is there, of each bridge.
    unseen: BTreeMap<String, String>,
}

impl Here {
    /// Bytes that the store has.
    fn sent_bytes(&self) -> u64 {
        self.far_bytes.saturating_sub(self.packed_bytes) + self.pack_bytes
    }
}

/// Whether the host has been up since this was last asked.
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
    /// Takes up what an earlier process left.
    ///
    /// # Errors
    /// If the folder or the database can't be read.
    pub(crate) fn open(
        near: FolderStore,
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
        // What has settled was never synced here: a host that went down may have anything in its place.
        let same_boot = is_same_boot(&db)?;
        for folder in 0..=u8::MAX {
            for entry in near.list(folder)? {
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

    /// How far it is.
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

    /// Why nothing settles, or it is not known what is there; `None` if all is well.
    fn trouble(&self) -> Option<(condition::Kind, String)> {
        let known = self.known.lock();
        if let Some(away) = self.reach.far.trouble() {
            return Some((condition::STORE_AWAY, format!("{}: {away}", self.uri)));
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

    /// The state of the store.
    pub(crate) fn condition(&self, element: u32) -> Option<v1::Condition> {
        let (kind, why) = self.trouble()?;
        Some(kind.of(Some(element), why))
    }

    fn is_far(&self, object: ObjectId) -> bool {
        self.known.lock().far.contains(&object)
    }

    /// Where an object is outside.
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

    /// What is far can't be written any more, though there may be no file of it.
    fn writable(&self, object: ObjectId) -> Result<(), StoreError> {
        match self.is_far(object) {
            true => Err(StoreError::Sealed { object }),
            false => Ok(()),
        }
    }

    /// It was made anew, or for the first time: nobody waits for it to settle.
    fn made(&self, object: ObjectId) {
        let mut known = self.known.lock();
        if known.far.contains(&object) {
            drop(known);
            // What is there is written over when this settles.
            self.forget(object);
            known = self.known.lock();
        }
        known.waiting.insert(object);
    }

    /// Nothing of an object is known to be outside any more; what is there goes, unless another one takes its name.
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

    /// What has settled goes from here, longest first, when there is too much of it.
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
                tracing::warn!(%error, %object, "a file that the external store has can't be removed from the folder");
            }
        }
    }

    /// What the store has refused is told, until it takes something.
    fn note_refused(&self, settled: &[Result<(), StoreError>]) {
        let refused = settled.iter().find_map(|settled| match settled {
            Err(error @ StoreError::Outside { .. }) => Some(error.to_string()),
            _ => None,
        });
        if refused.is_some() || settled.iter().any(Result::is_ok) {
            self.known.lock().refused = refused.map(|why| (why, Instant::now()));
        }
    }

    /// Objects are on their way there. Who wants one that was removed has it again.
    fn go(&self, objects: &[(ObjectId, Named)]) {
        let mut known = self.known.lock();
        for (object, _) in objects {
            let (times, removed) = known.going.entry(*object).or_default();
            (*times, *removed) = (*times + 1, false);
        }
    }

    /// They are there, or not; what was removed meanwhile goes from there, too.
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
        // In a folder that has what is there, a file is there under its name.
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

    /// What is here of an object, else what is outside.
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
        // One that is damaged here is read from outside.
        if self.near.stat(object).is_err() {
            self.forget(object);
        }
        self.near.set_aside(object)
    }

    fn open_damaged(&self, object: ObjectId) -> Result<Opened, StoreError> {
        self.near.open_damaged(object)
    }

    fn forget_damaged(&self, object: ObjectId) -> Result<(), StoreError> {
        self.near.forget_damaged(object)
    }

    fn stat(&self, object: ObjectId) -> Result<Stat, StoreError> {
        self.near_or(object, self.near.stat(object), |there| {
            Ok(Stat {
                size: there.placed.size,
                sealed: true,
            })
        })
    }

    fn list(&self, folder: u8) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.near.list(folder)?;
        let here: HashSet<ObjectId> = entries.iter().map(|entry| entry.object).collect();
        let rows = self.db.read(|db| rows::of_folder(db, folder));
        for (object, size) in rows.map_err(|error| self.failed(&error))? {
            if !here.contains(&object) {
                entries.push(Entry {
                    object,
                    size,
                    sealed: true,
                    // What is sealed was before anybody asks.
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

    /// None: what has settled may go from here at any time, so all who want it as a file have it brought.
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
