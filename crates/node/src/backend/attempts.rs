//! Write attempts in the external store. The database has a row for an attempt before any byte is sent. The transaction that records the
//! finished file deletes the row.
//!
//! A process may find the bytes of an object under the object's name. The row shows whether an earlier, killed process wrote the bytes or
//! another program. The external store keeps the parts of interrupted multipart uploads. This module aborts such uploads when the file
//! exists or when the object no longer exists.

use super::packs::now_s;
use super::rows::{self, Attempt};
use super::uploading::is_own;
use super::{Backend, Error, StoreFile};
use crate::store::StoreError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_model::id::ObjectId;

/// Maximum difference between the external store's clock and the host's clock in seconds. S3 accepts no larger difference.
const CLOCKS_S: i64 = 16 * 60;
/// Time in seconds before the attempts of a missing object are cleaned up, because a repeated label may create the object again.
const UNUSED_S: i64 = 3600;
/// Interval at which a thread checks whether a claimed name is free again.
const PERIOD: Duration = Duration::from_millis(10);

/// Exclusive claim of a name in the external store.
struct NameClaim<'a>(&'a Backend, &'a str);

impl Drop for NameClaim<'_> {
    fn drop(&mut self) {
        self.0.claimed.lock().remove(self.1);
    }
}

impl Backend {
    fn claim<'a>(&'a self, path: &'a str) -> Option<NameClaim<'a>> {
        let is_free = self.claimed.lock().insert(path.to_owned());
        is_free.then_some(NameClaim(self, path))
    }

    /// Records that the node is about to write objects under these names.
    pub(super) fn attempt(&self, all: Vec<(String, ObjectId)>) -> Result<(), StoreError> {
        self.attempt_since(all, now_s() - CLOCKS_S)
    }

    /// Records that an existing object is about to get another name. If the object has been removed, the function does not create it again.
    pub(super) fn attempt_aside(&self, path: &str, object: ObjectId) -> Result<(), StoreError> {
        self.attempt_since(vec![(path.to_owned(), object)], 0)
    }

    fn attempt_since(&self, all: Vec<(String, ObjectId)>, since_s: i64) -> Result<(), StoreError> {
        let attempt = move |db: &rusqlite::Connection| {
            all.iter()
                .try_for_each(|(path, object)| rows::attempt(db, path, *object, since_s))
        };
        let noted = self.db.write_blocking(false, attempt);
        noted.map_err(|error| self.failed(&error))
    }

    /// Returns whether a write of an object under this name was started before the current attempt.
    pub(super) fn is_again(&self, path: &str, object: ObjectId) -> Result<bool, StoreError> {
        let again = self.db.read(|db| rows::again(db, path, object));
        again.map_err(|error| self.failed(&error))
    }

    /// Returns whether a write of an object under this name was started.
    pub(super) fn has_attempt(&self, path: &str, object: ObjectId) -> Result<bool, StoreError> {
        let known = self.db.read(|db| rows::has_attempt(db, path, object));
        known.map_err(|error| self.failed(&error))
    }

    /// Calls `write` while holding the claim of a name under which data of an interrupted write may exist.
    pub(super) fn writing<T>(&self, path: &str, write: impl FnOnce() -> T) -> T {
        let _claim = loop {
            match self.claim(path) {
                Some(claim) => break claim,
                // Another thread cleans up an attempt under this name.
                None => std::thread::sleep(PERIOD),
            }
        };
        write()
    }

    /// Removes the data of ended attempts from the external store. Returns whether all data could be removed.
    pub(super) fn tidy_attempts(&self) -> bool {
        let before_s = now_s() - CLOCKS_S - UNUSED_S;
        let attempts = self.db.read(|db| rows::attempts(db, before_s));
        let mut well = true;
        for attempt in attempts.unwrap_or_default() {
            let Some(_claim) = self.claim(&attempt.path) else {
                continue;
            };
            if let Err(why) = self.end(&attempt) {
                let path = &attempt.path;
                tracing::debug!(path, %why, "data of an interrupted write can't be removed yet");
                well = false;
            }
        }
        well
    }

    fn end(&self, attempt: &Attempt) -> Result<(), Error> {
        let far = &self.reach.far;
        let unsure = attempt.again || attempt.size.is_none();
        if unsure && far.leaves(attempt.size.unwrap_or(u64::MAX)) {
            let since = u64::try_from(attempt.since_s).unwrap_or(0);
            let since: SystemTime = UNIX_EPOCH + Duration::from_secs(since);
            self.reach.wait(far.abandon(&attempt.path, since))?;
        }
        if let Some(left) = attempt.left.as_ref().filter(|_| attempt.size.is_none()) {
            self.remove_left(left)?;
            self.look_aside(&attempt.path)
                .map_err(|error| Error::Other(error.to_string()))?;
        }
        if is_own(&attempt.path, attempt.object) {
            let held = self.db.read(|db| rows::at(db, &attempt.path));
            let held = held.map_err(|error| Error::Other(error.to_string()))?;
            if held.is_empty() {
                // The node wrote this file, and the object does not use it.
                self.reach.wait(far.remove(&attempt.path))?;
            }
        }
        let (path, object) = (attempt.path.clone(), attempt.object);
        let forget = move |db: &rusqlite::Connection| rows::forget_attempt(db, &path, object);
        let forgotten = self.db.write_blocking(false, forget);
        forgotten.map_err(|error| Error::Other(error.to_string()))
    }

    /// Removes the file that an object should have replaced, if the object was not written.
    fn remove_left(&self, left: &StoreFile) -> Result<(), Error> {
        let far = &self.reach.far;
        match self.reach.wait(far.stat(&left.path)) {
            Ok(now) if now == *left => self.reach.wait(far.remove(&left.path)),
            Ok(_) => Ok(()),
            Err(why) if why.is_loss() => Ok(()),
            Err(why) => Err(why),
        }
    }
}
