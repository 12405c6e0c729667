//! What was begun to be written outside: a row is there before anything is sent, and goes with the one that says that the file is there.
//!
//! So whoever finds a file of an object's bytes under its name knows whether it was put there, by a process that was killed, or by
//! others. Of a file that goes there in pieces the store keeps those that were sent: they are given up when it is there, or is no object
//! any more.

use super::packs::now_s;
use super::rows::{self, Attempt};
use super::settling::is_own;
use super::{Failure, Far as _, Outside, Placed};
use crate::store::StoreError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_core::id::ObjectId;

/// The store's clock and that of this host may differ by so many seconds: S3 takes nothing else.
const CLOCKS_S: i64 = 16 * 60;
/// What is no object may become one again when its label is run once more: it is waited for so long, in seconds.
const UNUSED_S: i64 = 3600;
/// How often it is looked whether a name is free again.
const PERIOD: Duration = Duration::from_millis(10);

/// A name that is worked on, and by nobody else.
struct Claim<'a>(&'a Outside, &'a str);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.claimed.lock().remove(self.1);
    }
}

impl Outside {
    fn claim<'a>(&'a self, path: &'a str) -> Option<Claim<'a>> {
        let is_free = self.claimed.lock().insert(path.to_owned());
        is_free.then_some(Claim(self, path))
    }

    /// Objects are about to be written under these names.
    pub(super) fn attempt(&self, all: Vec<(String, ObjectId)>) -> Result<(), StoreError> {
        self.attempt_since(all, now_s() - CLOCKS_S)
    }

    /// An object that is there is about to get another name. If it is no object any more it does not become one again.
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

    /// Whether an object was begun to be written under that name before.
    pub(super) fn is_again(&self, path: &str, object: ObjectId) -> Result<bool, StoreError> {
        let again = self.db.read(|db| rows::again(db, path, object));
        again.map_err(|error| self.failed(&error))
    }

    /// Whether an object was begun to be written under that name.
    pub(super) fn has_attempt(&self, path: &str, object: ObjectId) -> Result<bool, StoreError> {
        let known = self.db.read(|db| rows::has_attempt(db, path, object));
        known.map_err(|error| self.failed(&error))
    }

    /// Works on a name that nobody else works on meanwhile, and of which something may be left.
    pub(super) fn writing<T>(&self, path: &str, write: impl FnOnce() -> T) -> T {
        let _claim = loop {
            match self.claim(path) {
                Some(claim) => break claim,
                // What is left of it is being given up.
                None => std::thread::sleep(PERIOD),
            }
        };
        write()
    }

    /// Gives up what is left of what was begun; whether all could be.
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
                tracing::debug!(path, %why, "what is left of a file can't be given up yet");
                well = false;
            }
        }
        well
    }

    fn end(&self, attempt: &Attempt) -> Result<(), Failure> {
        let far = &self.reach.far;
        let unsure = attempt.again || attempt.size.is_none();
        if unsure && far.leaves(attempt.size.unwrap_or(u64::MAX)) {
            let since = u64::try_from(attempt.since_s).unwrap_or(0);
            let since: SystemTime = UNIX_EPOCH + Duration::from_secs(since);
            self.reach.wait(far.give_up(&attempt.path, since))?;
        }
        if let Some(left) = attempt.left.as_ref().filter(|_| attempt.size.is_none()) {
            self.remove_left(left)?;
            self.look_aside(&attempt.path)
                .map_err(|error| Failure::Other(error.to_string()))?;
        }
        if is_own(&attempt.path, attempt.object) {
            let held = self.db.read(|db| rows::at(db, &attempt.path));
            let held = held.map_err(|error| Failure::Other(error.to_string()))?;
            if held.is_empty() {
                // It was put there, and is not what the object has.
                self.reach.wait(far.remove(&attempt.path))?;
            }
        }
        let (path, object) = (attempt.path.clone(), attempt.object);
        let forget = move |db: &rusqlite::Connection| rows::forget_attempt(db, &path, object);
        let forgotten = self.db.write_blocking(false, forget);
        forgotten.map_err(|error| Failure::Other(error.to_string()))
    }

    /// Removes what was to give way to what did not come.
    fn remove_left(&self, left: &Placed) -> Result<(), Failure> {
        let far = &self.reach.far;
        match self.reach.wait(far.stat(&left.path)) {
            Ok(now) if now == *left => self.reach.wait(far.remove(&left.path)),
            Ok(_) | Err(Failure::Missing | Failure::Changed) => Ok(()),
            Err(why) => Err(why),
        }
    }
}
