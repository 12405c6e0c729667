//! Uploads of objects to the external store, under the names of their files. An upload never replaces a file of another program.

use super::reading::BackendLocation;
use super::rows::FileOrigin;
use super::{Backend, Error, Overwrite, StoreFile, rows};
use crate::db::DbError;
use crate::executor::ExecutorParts;
use crate::labels::NodeLabels;
use crate::records;
use crate::store::{ObjectFile, ReadAt as _, ReadableObject, Store as _, StoreError};
use bytes::Bytes;
use parking_lot::MutexGuard;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidemill_model::attribute::object;
use tidemill_model::backoff::Backoff;
use tidemill_model::display::escaped;
use tidemill_model::id::ObjectId;
use tidemill_wire::v1::{self, from_node};

/// Maximum number of bytes per read of an object.
const PIECE_BYTES: usize = 8 << 20;
/// Maximum number of objects that are uploaded concurrently.
pub(super) const AT_ONCE: usize = 8;
/// Maximum number of files that one upload pass removes.
const DELETED_MAX: u32 = 256;
/// Maximum number of objects that one upload pass examines.
const BATCH_MAX: usize = 1024;
/// Interval between two upload passes.
const PERIOD: Duration = Duration::from_millis(500);
/// Pauses before the server is asked again for the file of an object. It may not have sealed the file at the first question.
const ASK_AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Pause after an upload pass with a failure.
const PAUSE: Duration = Duration::from_secs(5);
/// Maximum length in bytes of an external path and of each name in the path. Object stores and file systems all accept these lengths.
const PATH_BYTES_MAX: usize = 900;
const NAME_BYTES_MAX: usize = 220;
/// Prefix of names that are not names of files. An object gets such a name if it belongs to no file, or if its file name is not valid in
/// the backend.
pub(super) const OWN: &str = ".tidemill-";

/// Result of the search for a path in the external store for an object.
enum BackendPlace {
    /// The path is free: the object may be written to this path, in place of the given file.
    Free(String, Overwrite),
    /// The external store already holds the object, as this file.
    Taken(StoreFile),
}

/// Returns the path that an object should have in the external store, if no other file has the path.
pub(super) fn key(object: ObjectId, path: &str, part: bool) -> String {
    let path = path.trim_start_matches('/');
    let good = |name: &str| {
        let dots = name == "." || name == "..";
        !name.is_empty() && !dots && name.len() <= NAME_BYTES_MAX && !name.starts_with(OWN)
    };
    let able = path.len() <= PATH_BYTES_MAX
        && path.split('/').all(good)
        && !path.chars().any(char::is_control);
    match (able, part) {
        (true, false) => path.to_owned(),
        (true, true) => alternative(path, object),
        (false, _) => format!("{OWN}objects/{:016x}", object.0),
    }
}

/// Returns an alternative path, which only this object can get.
fn alternative(path: &str, object: ObjectId) -> String {
    format!("{path}.{:016x}", object.0)
}

/// Returns a function that adds `path` to a failure of the external store.
fn failed_at(path: &str) -> impl Fn(Error) -> StoreError {
    move |why| StoreError::Backend {
        path: path.to_owned(),
        why,
    }
}

/// Returns alternative paths for an object whose wanted path is taken, in order of preference.
fn names_of(object: ObjectId, wanted: &str) -> [String; 3] {
    let own = key(object, "", false);
    let fresh = format!("{own}-{:016x}", crate::task::now().0);
    [alternative(wanted, object), own, fresh]
}

/// Returns whether only this object can get the path.
pub(super) fn is_own(path: &str, object: ObjectId) -> bool {
    let alternative = alternative_of(path).is_some_and(|(_, other)| other == object);
    alternative || path.starts_with(&key(object, "", false))
}

/// Returns the path and the object from which [`alternative`] made a path; `None` if it did not make the path.
pub(super) fn alternative_of(path: &str) -> Option<(&str, ObjectId)> {
    let (path, number) = path.rsplit_once('.')?;
    let plain = number.len() == 16 && number.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u64::from_str_radix(number, 16).ok().filter(|_| plain)?;
    Some((path, ObjectId(number)))
}

impl Backend {
    /// Records that an object was sealed on this node, or that it was durable before.
    pub(super) fn sealed(
        &self,
        object: ObjectId,
        size: Result<u64, StoreError>,
    ) -> Result<u64, StoreError> {
        let far = self.is_far(object);
        if size.is_ok() && !far && object.is_data() {
            self.known.lock().waiting.insert(object);
        }
        self.cached_or(object, size, |there| Ok(there.placed.size))
    }

    /// Makes a file that the external store already holds the content of an object. Returns the length of the file in bytes.
    pub(super) fn make_stub_at(&self, object: ObjectId, path: &str) -> Result<u64, StoreError> {
        self.writable(object)?;
        let placed = self.reach.wait(self.reach.far.stat(path));
        let placed = placed.map_err(failed_at(path))?;
        let size = placed.size;
        self.keep(object, placed, FileOrigin::Stub)?;
        // A writer that opened the object earlier may have created a cached file.
        self.cache.remove(object)?;
        Ok(size)
    }

    pub(super) fn keep(
        &self,
        object: ObjectId,
        placed: StoreFile,
        how: FileOrigin,
    ) -> Result<(), StoreError> {
        let size = placed.size;
        // The object may be stored in packs, completely or partly.
        self.release(object)?;
        let put = move |db: &rusqlite::Connection| rows::put(db, object, &placed, how);
        let kept = self.db.write_blocking(true, put);
        kept.map_err(|error| self.failed(&error))?;
        match how {
            FileOrigin::Put => self.is_kept(object, size, false),
            FileOrigin::Stub | FileOrigin::Followed => self.is_far_now(object, size, false),
        }
        Ok(())
    }

    /// Records that an object is in the external store and no longer waits for its upload.
    fn is_far_now(&self, object: ObjectId, size: u64, packed: bool) {
        let mut known = self.known.lock();
        if known.far.insert(object) {
            known.far_bytes += size;
            known.packed_bytes += if packed { size } else { 0 };
        }
        known.stop_waiting(object);
    }

    /// Records that a cached object is also in the external store.
    pub(super) fn is_kept(&self, object: ObjectId, size: u64, packed: bool) {
        self.is_far_now(object, size, packed);
        let mut known = self.known.lock();
        known.cached.push_back((object, size));
        known.cached_bytes += size;
    }

    /// Uploads objects, several of them concurrently.
    pub(super) fn upload_at_once(
        &self,
        objects: &[(ObjectId, ObjectFile)],
    ) -> Vec<Result<(), StoreError>> {
        let new = objects.iter().filter(|(object, _)| !self.is_far(*object));
        let new = new.map(|(object, named)| (self.wanted(*object, named).0, *object));
        let new: Vec<(String, ObjectId)> = new.collect();
        if !new.is_empty()
            && let Err(error) = self.attempt(new)
        {
            let failed = failed_at(&self.uri);
            let why = || Error::Other(error.to_string());
            return objects.iter().map(|_| Err(failed(why()))).collect();
        }
        let silent = AtomicBool::default();
        at_once(objects, |(object, named)| {
            if silent.load(Ordering::Relaxed) {
                return Err(failed_at(&named.path)(Error::Silent));
            }
            let uploaded = self.upload_one(*object, named);
            if let Err(StoreError::Backend { why, .. }) = &uploaded {
                silent.fetch_or(matches!(why, Error::Silent), Ordering::Relaxed);
            }
            uploaded
        })
    }

    /// Returns the wanted external path of an object, and whether the path is in an attached directory.
    fn wanted(&self, object: ObjectId, named: &ObjectFile) -> (String, bool) {
        let inside = self.inside(&named.path);
        let path = inside.as_deref().unwrap_or(&named.path);
        (key(object, path, named.part), inside.is_some())
    }

    /// Locks an external path. Only the holder of the lock works on a file at this path.
    pub(super) fn turn(&self, path: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let turn = hasher.finish() % self.turns.len() as u64;
        self.turns[usize::try_from(turn).unwrap_or(0)].lock()
    }

    fn upload_one(&self, object: ObjectId, named: &ObjectFile) -> Result<(), StoreError> {
        if self.is_far(object) {
            return Ok(());
        }
        let opened = self.cache.open(object)?;
        let (wanted, attached) = self.wanted(object, named);
        let turn = self.turn(&wanted);
        let placed = match self.place((object, attached), wanted, &opened)? {
            BackendPlace::Taken(placed) => placed,
            BackendPlace::Free(path, over) => self.write((&path, over), &opened, named.hash)?,
        };
        self.look_aside(&placed.path)?;
        self.keep(object, placed, FileOrigin::Put)?;
        drop(turn);
        self.make_space();
        Ok(())
    }

    /// Returns an external path for an object: its wanted path, if possible. If the node's own file has the path, it moves aside. A file of
    /// another program stays, unless its attached directory knows the file as an earlier version of the same file.
    fn place(
        &self,
        (object, attached): (ObjectId, bool),
        wanted: String,
        opened: &ReadableObject,
    ) -> Result<BackendPlace, StoreError> {
        let far = &self.reach.far;
        let held = self.db.read(|db| rows::at(db, &wanted));
        let held = held.map_err(|error| self.failed(&error))?;
        let now = match self.reach.wait(far.stat(&wanted)) {
            Ok(now) => now,
            Err(Error::Missing(_)) => {
                return Ok(BackendPlace::Free(wanted, Overwrite::Nothing));
            }
            // The path is a directory or is below a file: no file can be written there.
            Err(Error::Changed(_)) => return self.elsewhere(object, &wanted, opened),
            Err(why) => return Err(failed_at(&wanted)(why)),
        };
        // The name belongs to an attached directory, and the object's file is not in that directory. It must not replace another file there.
        let strange = !attached && self.is_attached(&wanted);
        let gives_way = self.db.read(|db| rows::gives_way(db, &now));
        if !strange && gives_way.map_err(|error| self.failed(&error))? {
            return Ok(BackendPlace::Free(wanted, Overwrite::This(now)));
        }
        let ours = |held: &rows::StoredObject| match held.how {
            FileOrigin::Put if strange => self.is_same_file(held.object, object),
            FileOrigin::Put => true,
            FileOrigin::Followed => attached,
            FileOrigin::Stub => false,
        };
        let held = held
            .into_iter()
            .filter(ours)
            .find(|held| held.placed == now);
        match held {
            Some(held) if held.deleted => Ok(BackendPlace::Free(wanted, Overwrite::This(now))),
            Some(held) if held.object != object => {
                let left = self.move_aside(held.object, &now, object)?;
                Ok(BackendPlace::Free(wanted, Overwrite::This(left)))
            }
            // This file was written before the former process was killed.
            _ if self.is_again(&wanted, object)? && self.is_same(&now, opened)? => {
                Ok(BackendPlace::Taken(now))
            }
            _ => {
                tracing::warn!(
                    path = wanted,
                    "another program has a file of this name in the backend: the node's file gets another name"
                );
                self.elsewhere(object, &wanted, opened)
            }
        }
    }

    /// Returns whether two objects are versions of one file.
    fn is_same_file(&self, one: ObjectId, other: ObjectId) -> bool {
        let inode =
            |db: &rusqlite::Connection, id| records::attribute(db, id, object::PAGE, object::INODE);
        let both = self.db.read(|db| Ok((inode(db, one)?, inode(db, other)?)));
        both.is_ok_and(|(one, other)| one.is_some() && one == other)
    }

    /// Moves an object's external file to another path, so that the object `instead` can use its current path. Returns the file that is
    /// left at the old path.
    fn move_aside(
        &self,
        object: ObjectId,
        now: &StoreFile,
        instead: ObjectId,
    ) -> Result<StoreFile, StoreError> {
        let failed = failed_at(&now.path);
        let far = &self.reach.far;
        let mut names = names_of(object, &now.path).into_iter();
        let aside = loop {
            let Some(name) = names.next() else {
                return Err(failed(Error::Changed(now.path.clone())));
            };
            match self.reach.wait(far.stat(&name)) {
                Err(Error::Missing(_)) => break name,
                Ok(_) if self.has_attempt(&name, object)? => break name,
                Ok(_) | Err(Error::Changed(_)) => {}
                Err(why) => return Err(failed(why)),
            }
        };
        self.writing(&aside, || self.move_to(&aside, (object, now), instead))
    }

    fn move_to(
        &self,
        aside: &str,
        (object, now): (ObjectId, &StoreFile),
        instead: ObjectId,
    ) -> Result<StoreFile, StoreError> {
        let failed = failed_at(&now.path);
        let far = &self.reach.far;
        self.attempt_aside(aside, object)?;
        let moved = self.reach.wait(far.also(&now.path, aside));
        let moved = moved.map_err(&failed)?;
        // In a file system, the new name (a hard link) changes the tag of the file.
        let left = self.reach.wait(far.stat(&now.path)).map_err(&failed)?;
        if moved.size != now.size || left.size != now.size {
            return Err(failed(Error::Changed(now.path.clone())));
        }
        let location = left.clone();
        let note = move |db: &rusqlite::Connection| {
            rows::give_way(db, (object, instead), &location)?;
            rows::aside(db, object, &moved)
        };
        let known = self.db.write_blocking(true, note);
        if !known.map_err(|error| self.failed(&error))? {
            // The object was removed in the meantime.
            let removed = self.reach.wait(far.remove(aside));
            removed.map_err(failed)?;
        }
        Ok(left)
    }

    /// Returns an external path for an object whose wanted path is taken or not valid in the backend.
    fn elsewhere(
        &self,
        object: ObjectId,
        wanted: &str,
        opened: &ReadableObject,
    ) -> Result<BackendPlace, StoreError> {
        let far = &self.reach.far;
        for name in names_of(object, wanted) {
            let known = self.has_attempt(&name, object)?;
            match self.reach.wait(far.stat(&name)) {
                Err(Error::Missing(_)) => {
                    self.attempt(vec![(name.clone(), object)])?;
                    return Ok(BackendPlace::Free(name, Overwrite::Nothing));
                }
                Ok(now) if known && self.is_same(&now, opened)? => {
                    return Ok(BackendPlace::Taken(now));
                }
                Ok(_) | Err(Error::Changed(_)) => {}
                Err(why) => return Err(failed_at(&name)(why)),
            }
        }
        Err(failed_at(wanted)(Error::Changed(wanted.to_owned())))
    }

    /// Updates the tags of objects whose files moved aside from `path`. In a file system, the tag changes when the file loses its first
    /// name.
    pub(super) fn look_aside(&self, path: &str) -> Result<(), StoreError> {
        let moved = self.db.read(|db| rows::moved_aside(db, path));
        for object in moved.map_err(|error| self.failed(&error))? {
            let Some(aside) = self.placed(object)?.map(|there| there.placed) else {
                continue;
            };
            if let Ok(now) = self.reach.wait(self.reach.far.stat(&aside.path))
                && now.size == aside.size
            {
                let retag = move |db: &rusqlite::Connection| rows::retag(db, object, &now);
                let looked = self.db.write_blocking(true, retag);
                looked.map_err(|error| self.failed(&error))?;
            }
        }
        Ok(())
    }

    /// Returns whether an external file has the same bytes as an object.
    fn is_same(&self, there: &StoreFile, opened: &ReadableObject) -> Result<bool, StoreError> {
        if there.size != opened.stat.size {
            return Ok(false);
        }
        let placed = there.clone();
        let packed = false;
        let theirs = BackendLocation { placed, packed };
        let far = super::BackendObject::new(Arc::clone(&self.reach), ObjectId(0), theirs);
        let failed = |error: std::io::Error| StoreError::Backend {
            path: there.path.clone(),
            why: Error::Other(error.to_string()),
        };
        let (mut ours, mut theirs) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        let mut at = 0;
        while at < there.size {
            let count = opened.bytes.read_at(at, &mut ours).map_err(failed)?;
            let same = far.read_at(at, &mut theirs).map_err(failed)?;
            if count != same || count == 0 || ours[..count] != theirs[..count] {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(true)
    }

    /// Writes an object to the external store if its bytes have the sealed hash. If another writer was faster, the object is not durable
    /// yet and a later pass searches for a path again.
    fn write(
        &self,
        (path, over): (&str, Overwrite),
        opened: &ReadableObject,
        hash: Option<[u8; 32]>,
    ) -> Result<StoreFile, StoreError> {
        let (size, mut at, mut hasher) = (opened.stat.size, 0, blake3::Hasher::new());
        let pieces = Box::new(move || {
            let left = usize::try_from(size - at).unwrap_or(usize::MAX);
            let mut piece = vec![0; left.min(PIECE_BYTES)];
            let count = opened.bytes.read_at(at, &mut piece)?;
            if count < piece.len() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if hash.is_some() {
                hasher.update(&piece);
            }
            at += count as u64;
            let changed = hash.is_some_and(|hash| at == size && hasher.finalize() != hash);
            match (changed, count) {
                (true, _) => Err(std::io::Error::other(
                    "its content differs from the sealed content",
                )),
                (false, 0) => Ok(None),
                (false, _) => Ok(Some(Bytes::from(piece))),
            }
        });
        let far = &self.reach.far;
        let write = || {
            let written = self.reach.wait(far.write(path, size, pieces, over));
            written.map_err(failed_at(path))
        };
        match far.leaves(size) {
            true => self.writing(path, write),
            false => write(),
        }
    }

    /// Returns the objects whose files the node asks the server for now. Most of them were never asked for, so that objects whose files the
    /// server does not know delay no others.
    pub(crate) fn unnamed(&self) -> Vec<u64> {
        let mut known = self.known.lock();
        let known = &mut *known;
        let now = Instant::now();
        let unnamed = known.waiting.iter().copied();
        let unnamed = unnamed.filter(|object| !known.files.contains_key(object));
        let (again, mut due): (Vec<_>, Vec<_>) =
            unnamed.partition(|object| known.asked.contains_key(object));
        let again = again.into_iter();
        // Each question has space for objects that were asked for before.
        due.truncate(BATCH_MAX - BATCH_MAX / 4);
        due.extend(
            again.filter(|object| known.asked.get(object).is_some_and(|(at, _)| *at <= now)),
        );
        due.truncate(BATCH_MAX);
        for object in &due {
            let (at, pauses) = known.asked.entry(*object).or_insert((now, ASK_AGAIN));
            *at = now + pauses.pause();
        }
        due.into_iter().map(|object| object.0).collect()
    }

    /// Forgets the files that the server named: by the time that the store can be reached again, they may have other names.
    fn forget_files(&self) {
        self.known.lock().files.clear();
    }

    /// Takes the server's answer: the named objects can be uploaded now.
    pub(crate) fn on_files(&self, files: Vec<v1::FileOfObject>) {
        let mut known = self.known.lock();
        for file in files {
            let object = ObjectId(file.object);
            if known.waiting.contains(&object) {
                known.files.insert(object, file);
            }
        }
    }

    /// Returns some of the objects that can be uploaded, with their files. Objects that were removed wait no longer.
    fn named(&self) -> Result<Vec<(ObjectId, ObjectFile)>, DbError> {
        let some: Vec<v1::FileOfObject> = {
            let known = self.known.lock();
            known.files.values().take(BATCH_MAX).cloned().collect()
        };
        let mut named = Vec::with_capacity(some.len());
        for file in some {
            let object = ObjectId(file.object);
            let sum = self.db.read(move |db| records::sum(db, object))?;
            // The server may have another name for the object at the next attempt.
            self.known.lock().files.remove(&object);
            match sum {
                Some(sum) if sum.corruption.is_none() => named.push((
                    object,
                    ObjectFile {
                        path: escaped(&file.path),
                        part: file.part,
                        hash: sum.hash,
                    },
                )),
                _ if self.cache.stat(object).is_ok() => {}
                _ => self.known.lock().stop_waiting(object),
            }
        }
        Ok(named)
    }

    /// Uploads some of the waiting objects. Returns whether no upload failed.
    pub(super) fn upload_some(&self) -> bool {
        let (next, mut trouble) = match self.named() {
            Ok(next) => (next, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let results = self.make_durable(&next);
        for ((object, _), result) in next.into_iter().zip(results) {
            match result {
                Ok(()) => {}
                Err(StoreError::NotFound { .. }) => self.known.lock().stop_waiting(object),
                // The object still waits.
                Err(error) => _ = trouble.get_or_insert_with(|| error.to_string()),
            }
        }
        let well = trouble.is_none();
        let mut known = self.known.lock();
        if let Some(trouble) = &trouble
            && known.trouble.is_empty()
        {
            tracing::warn!(
                trouble,
                "files can't be uploaded to the backend; they stay on this node, which retries"
            );
        }
        known.trouble = trouble.unwrap_or_default();
        well
    }

    /// Removes some external files of removed objects. Returns whether more such files may exist.
    pub(super) fn remove_some(&self) -> bool {
        let deleted = self
            .db
            .read(|db| rows::deleted(db, DELETED_MAX))
            .unwrap_or_default();
        let ended = at_once(&deleted, |(_, placed)| self.remove_one(placed));
        let removed = deleted.iter().zip(ended).filter(|(_, ended)| *ended);
        let removed: Vec<ObjectId> = removed.map(|((object, _), _)| *object).collect();
        let more = removed.len() == DELETED_MAX as usize;
        if !removed.is_empty() {
            let forget = move |db: &rusqlite::Connection| {
                removed
                    .iter()
                    .try_for_each(|object| rows::removed(db, *object))
            };
            if let Err(error) = self.db.write_blocking(false, forget) {
                tracing::warn!(%error, "external files of removed objects can't be removed now; the node retries");
            }
        }
        more
    }

    /// Removes an external file if the node wrote it. Returns whether nothing remains to be done.
    fn remove_one(&self, placed: &StoreFile) -> bool {
        let _turn = self.turn(&placed.path);
        let held = self.db.read(|db| rows::at(db, &placed.path));
        // Another object may have taken the name, or the path may now hold a file of another program.
        let still = |held: Vec<rows::StoredObject>| {
            let put = held.iter().any(|held| held.how == FileOrigin::Put);
            put && held
                .iter()
                .all(|held| held.deleted || held.how == FileOrigin::Stub)
        };
        match held.map(still) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(_) => return false,
        }
        let far = &self.reach.far;
        match self.reach.wait(far.stat(&placed.path)) {
            Ok(now) if now == *placed => self.reach.wait(far.remove(&placed.path)).is_ok(),
            Ok(_) => true,
            Err(failure) => failure.is_loss(),
        }
    }
}

/// Calls `work` for all items, several concurrently. Returns the results in the order of the items.
fn at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else {
                return done;
            };
            done.push((index, work(item)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let others = 1..AT_ONCE.min(items.len());
        let others: Vec<_> = others.map(|_| scope.spawn(some)).collect();
        let mut done = some();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Uploads objects and removes files in the background, until the node stops.
pub(crate) fn keep_uploading(parts: &ExecutorParts, labels: &NodeLabels) {
    let Some(backend) = &parts.backend else {
        return;
    };
    let (mut pause, mut unsure) = (PERIOD, true);
    while !labels.pause(pause) {
        if unsure {
            // A caller that uses the store reports other problems.
            let _ = backend.reach.wait(backend.reach.far.look());
        }
        unsure = backend.reach.far.trouble().is_some();
        if unsure {
            backend.forget_files();
            pause = PAUSE;
            continue;
        }
        let objects = backend.unnamed();
        if !objects.is_empty() {
            let find = from_node::Message::FindFiles(v1::FindFiles { objects });
            parts.reports.send(find);
        }
        let well = backend.upload_some();
        let removed = backend.remove_some();
        let abandoned = backend.tidy_attempts();
        let tidied = backend.tidy();
        let (well, more) = (
            well && abandoned && tidied.is_some(),
            removed || tidied == Some(true),
        );
        pause = match (well, more) {
            (false, _) => PAUSE,
            (true, true) => Duration::ZERO,
            (true, false) => PERIOD,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_key_is_path_of_file_or_object_id() {
        let key = |path: &str, part| key(ObjectId(0xab), path, part);
        assert_eq!(key("/run/a.nc", false), "run/a.nc");
        assert_eq!(key("/run/a.nc", true), "run/a.nc.00000000000000ab");
        let long = format!("/{}", "x".repeat(NAME_BYTES_MAX + 1));
        for path in [
            "",
            "/",
            "/a//b",
            "/../x",
            "/a/./b",
            "/a\nb",
            "/.tidemill-objects/x",
            &long,
        ] {
            assert_eq!(
                key(path, false),
                ".tidemill-objects/00000000000000ab",
                "{path}"
            );
        }
    }
}
