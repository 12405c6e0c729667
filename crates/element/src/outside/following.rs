//! Folders of the array that have what is in the store outside, and it what is written there. Who looks at the store and makes files of
//! what is there asks here what is known of it, and says what is a version now.

use super::rows::{self, How};
use super::settling::beside_what;
use super::{Failure, Far as _, Outside, Placed};
use crate::db::DbError;
use crate::records;
use crate::store::{Store as _, StoreError};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidemill_core::id::ObjectId;

/// The key of the table `identity`.
const BOUND: &str = "outside bound";
/// What is remembered of objects that are no more and compared with the store at once.
const REMEMBERED_MAX: u32 = 100;

/// A folder that is bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Its full path in the array.
    pub folder: String,
    /// Where it is in the store; empty: all of that.
    pub prefix: String,
}

impl Bound {
    /// What a path of the store is called in the folder, if it is below it.
    #[must_use]
    pub fn name<'a>(&self, path: &'a str) -> Option<&'a str> {
        match self.prefix.as_str() {
            "" => Some(path),
            prefix => path.strip_prefix(prefix)?.strip_prefix('/'),
        }
    }

    /// Where a file of the folder is in the store.
    fn inside(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(&self.folder)?.strip_prefix('/')?;
        Some(self.at(name))
    }

    /// Where what has that name in the folder is in the store.
    #[must_use]
    pub fn at(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        }
    }
}

/// The folders that were bound when the element ended.
pub(super) fn kept(db: &Connection) -> rusqlite::Result<Vec<Bound>> {
    let kept = records::identity(db, BOUND)?.unwrap_or_default();
    Ok(serde_json::from_slice(&kept).unwrap_or_default())
}

/// What an element knows of what is in its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The element has put it there itself: it is this version.
    pub ours: Option<ObjectId>,
    /// It is these versions by now.
    pub versions: Vec<ObjectId>,
    /// These were there before.
    pub before: Vec<ObjectId>,
}

/// An element's store, for who looks at it.
#[derive(Clone, Debug)]
pub struct Follower(Arc<Outside>);

impl Follower {
    pub(crate) fn new(outside: Arc<Outside>) -> Self {
        Self(outside)
    }

    /// From now on these folders are bound: what is written there goes to where it is in the store.
    ///
    /// # Errors
    /// If that can't be kept.
    pub async fn bind(&self, bound: Vec<Bound>) -> Result<(), DbError> {
        if *self.0.bound.read() == bound {
            return Ok(());
        }
        let kept = serde_json::to_vec(&bound).unwrap_or_default();
        let put = move |db: &Connection| records::set_identity(db, BOUND, &kept);
        self.0.db.write(true, put).await?;
        *self.0.bound.write() = bound;
        Ok(())
    }

    /// What is known of a file of the store. Waits for who puts something there; not for threads of a runtime.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn known(&self, placed: &Placed) -> Result<Known, DbError> {
        let _turn = self.0.turn(&placed.path);
        let held = self.0.db.read(|db| rows::at(db, &placed.path))?;
        let mut known = Known::default();
        if let Some((path, object)) = beside_what(&placed.path) {
            // It is there, or is being moved there: a folder's file has another tag by that.
            let moving = self.0.db.read(|db| rows::at(db, path))?;
            let moved = |held: &rows::Held| held.object == object;
            known.ours = moving.iter().chain(&held).any(moved).then_some(object);
        }
        for held in held {
            if (held.placed.size, &held.placed.tag) != (placed.size, &placed.tag) {
                if !held.gone && held.how != How::Linked {
                    known.before.push(held.object);
                }
                continue;
            }
            if held.how == How::Put && known.ours.is_none() {
                known.ours = Some(held.object);
            }
            if !held.gone {
                known.versions.push(held.object);
            }
        }
        Ok(known)
    }

    /// Whether a name may be one that the element itself gives, and takes away, so that what was listed may be gone.
    #[must_use]
    pub fn may_be_own(path: &str) -> bool {
        beside_what(path).is_some()
    }

    /// Makes a file of the store this version. Not for threads of a runtime.
    ///
    /// # Errors
    /// If that can't be kept.
    pub fn follow(&self, object: ObjectId, placed: Placed) -> Result<(), StoreError> {
        self.0.writable(object)?;
        self.0.keep(object, placed, How::Followed)?;
        self.0.near.remove(object).map(drop)
    }

    /// Whether the store is the one that the element has put files into, before what is not there is believed to be gone. Where it has
    /// put none, nobody can say.
    ///
    /// # Errors
    /// If it is not, or can't be asked.
    pub async fn is_there(&self) -> Result<(), Failure> {
        let any = self.0.db.read(rows::any_put);
        match any.map_err(|error| Failure::Other(error.to_string()))? {
            true => self.0.reach.far.look().await,
            false => Ok(()),
        }
    }

    /// Whether a version is on its way to the store.
    #[must_use]
    pub fn is_waiting(&self, object: ObjectId) -> bool {
        let waits = {
            let known = self.0.known.lock();
            known.waiting.contains(&object) || known.unnamed.contains(&object)
        };
        waits || (self.0.near.stat(object).is_ok() && !self.0.is_far(object))
    }

    /// Paths of the store where something else was found than a version, since this was asked last.
    #[must_use]
    pub fn changed(&self) -> BTreeSet<String> {
        self.0.reach.take_changed()
    }

    /// Why it is not known what a bridge leads to; empty if it is.
    pub fn say(&self, bridge: &str, trouble: &str) {
        let unseen = &mut self.0.known.lock().unseen;
        match trouble {
            "" => drop(unseen.remove(bridge)),
            trouble => drop(unseen.insert(bridge.to_owned(), trouble.to_owned())),
        }
    }

    /// Of bridges that are bound no more nothing is told.
    pub fn say_only_of(&self, is_bound: impl Fn(&str) -> bool) {
        let mut known = self.0.known.lock();
        known.unseen.retain(|bridge, _| is_bound(bridge));
    }

    /// Forgets some of what is remembered of versions that are no more, if it is not in the store any more either; gives where to go
    /// on the next time. Not for threads of a runtime.
    ///
    /// # Errors
    /// If the database fails.
    pub fn forget_some(&self, after: ObjectId) -> Result<ObjectId, DbError> {
        let outside = &self.0;
        let some = outside
            .db
            .read(|db| rows::remembered(db, after, REMEMBERED_MAX))?;
        let last = some.last().map_or(ObjectId(0), |held| held.object);
        let mut gone = Vec::new();
        for held in some {
            match outside
                .reach
                .wait(outside.reach.far.stat(&held.placed.path))
            {
                Ok(now) if now == held.placed => {}
                Ok(_) | Err(Failure::Missing | Failure::Changed) => gone.push(held.object),
                Err(Failure::Silent | Failure::Other(_)) => {}
            }
        }
        if !gone.is_empty() {
            let forget = move |db: &Connection| {
                let mut removed = gone.iter();
                removed.try_for_each(|object| rows::removed(db, *object))
            };
            outside.db.write_blocking(false, forget)?;
        }
        Ok(last)
    }
}

impl Outside {
    /// Where a file of the array is in the store, if its folder is bound.
    pub(super) fn inside(&self, path: &str) -> Option<String> {
        let bound = self.bound.read();
        bound.iter().find_map(|bound| bound.inside(path))
    }

    /// Whether what is at a path of the store is a file of a folder that is bound.
    pub(super) fn is_bound(&self, path: &str) -> bool {
        let bound = self.bound.read();
        bound.iter().any(|bound| bound.name(path).is_some())
    }
}
