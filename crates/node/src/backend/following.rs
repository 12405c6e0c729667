//! Attached directories of the cluster, which mirror a part of the external store in both directions. The follower, which scans the store
//! and creates files, asks this module for the known objects, and records new versions in this module.

use super::rows::{self, FileOrigin};
use super::uploading::alternative_of;
use super::{Backend, Error, StoreFile};
use crate::db::DbError;
use crate::records;
use crate::store::{Store as _, StoreError};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidemill_model::follow::KnownVersions;
use tidemill_model::id::ObjectId;

/// Key of the list of attached directories in the database table `identity`.
const ATTACHED: &str = "backend attached";
/// Maximum number of remembered, removed objects that one call of [`Follower::forget_some`] compares with the store.
const REMEMBERED_MAX: u32 = 100;

/// Directory of the cluster that mirrors a part of the external store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttachedDirectory {
    /// Full path of the directory in the cluster.
    pub(crate) directory: String,
    /// Path of the attached part in the external store; empty for the whole store.
    pub(crate) prefix: String,
}

impl AttachedDirectory {
    /// Returns the name in the attached directory for a path of the store; `None` if the path is not below the prefix.
    pub(crate) fn name<'a>(&self, path: &'a str) -> Option<&'a str> {
        match self.prefix.as_str() {
            "" => Some(path),
            prefix => path.strip_prefix(prefix)?.strip_prefix('/'),
        }
    }

    /// Returns the path in the external store for a file of the attached directory.
    fn inside(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(&self.directory)?.strip_prefix('/')?;
        Some(self.at(name))
    }

    /// Returns the path in the external store for a name in the attached directory.
    pub(crate) fn at(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        }
    }
}

/// Returns the directories that were attached when the node stopped.
pub(super) fn kept(db: &Connection) -> rusqlite::Result<Vec<AttachedDirectory>> {
    let kept = records::identity(db, ATTACHED)?.unwrap_or_default();
    Ok(serde_json::from_slice(&kept).unwrap_or_default())
}

/// Interface to a node's external store for the follower that scans the store.
#[derive(Clone, Debug)]
pub(crate) struct Follower(Arc<Backend>);

impl Follower {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        Self(backend)
    }

    /// Attaches exactly these directories. The node writes new files of the directories to their paths in the external store.
    pub(crate) async fn attach(&self, attached: Vec<AttachedDirectory>) -> Result<(), DbError> {
        if *self.0.attached.read() == attached {
            return Ok(());
        }
        let kept = serde_json::to_vec(&attached).unwrap_or_default();
        let put = move |db: &Connection| records::set_identity(db, ATTACHED, &kept);
        self.0.db.write(true, put).await?;
        *self.0.attached.write() = attached;
        Ok(())
    }

    /// Returns the versions that the node knows for a file of the store. Blocks until concurrent writes to this path end. Must not be
    /// called on a runtime thread.
    pub(crate) fn known(&self, placed: &StoreFile) -> Result<KnownVersions, DbError> {
        let _turn = self.0.turn(&placed.path);
        let held = self.0.db.read(|db| rows::at(db, &placed.path))?;
        let mut known = KnownVersions::default();
        if let Some((path, object)) = alternative_of(&placed.path) {
            // The object is at this path or is being moved there. In a file system, the move gives the file another tag.
            let moving = self.0.db.read(|db| rows::at(db, path))?;
            let moved = |held: &rows::StoredObject| held.object == object;
            known.ours = moving.iter().chain(&held).any(moved).then_some(object);
        }
        for held in held {
            if (held.placed.size, &held.placed.tag) != (placed.size, &placed.tag) {
                if !held.deleted && held.how != FileOrigin::Stub {
                    known.before.push(held.object);
                }
                continue;
            }
            if held.how == FileOrigin::Put && known.ours.is_none() {
                known.ours = Some(held.object);
            }
            if !held.deleted {
                known.versions.push(held.object);
            }
        }
        Ok(known)
    }

    /// Returns whether the node itself may have given a file this name. The node may also remove such a file, so that a listed name may no
    /// longer exist.
    pub(crate) fn may_be_own(path: &str) -> bool {
        alternative_of(path).is_some()
    }

    /// Makes a file of the external store the content of a version. Must not be called on a runtime thread.
    pub(crate) fn follow(&self, object: ObjectId, placed: StoreFile) -> Result<(), StoreError> {
        self.0.writable(object)?;
        self.0.keep(object, placed, FileOrigin::Followed)?;
        self.0.cache.remove(object).map(drop)
    }

    /// Checks that the external store is the store that holds the node's files. Must be called before missing files are treated as deleted.
    /// If the node has put no file into the store, the check can't detect another store and succeeds.
    pub(crate) async fn is_there(&self) -> Result<(), Error> {
        let any = self.0.db.read(rows::any_put);
        match any.map_err(|error| Error::Other(error.to_string()))? {
            true => self.0.reach.far.look().await,
            false => Ok(()),
        }
    }

    /// Returns whether the upload of a version to the external store is pending.
    pub(crate) fn is_waiting(&self, object: ObjectId) -> bool {
        let waits = self.0.known.lock().waiting.contains(&object);
        waits || (self.0.cache.stat(object).is_ok() && !self.0.is_far(object))
    }

    /// Returns the paths of the external store at which a read found another file than the version's, since the last call.
    pub(crate) fn changed(&self) -> BTreeSet<String> {
        self.0.reach.take_changed()
    }

    /// Sets the reason why the content of a remote is unknown; empty if it is known.
    pub(crate) fn say(&self, remote: &str, trouble: &str) {
        let unseen = &mut self.0.known.lock().unseen;
        match trouble {
            "" => drop(unseen.remove(remote)),
            trouble => drop(unseen.insert(remote.to_owned(), trouble.to_owned())),
        }
    }

    /// Removes the reasons of remotes that are no longer attached.
    pub(crate) fn keep_problems_of(&self, is_attached: impl Fn(&str) -> bool) {
        let mut known = self.0.known.lock();
        known.unseen.retain(|remote, _| is_attached(remote));
    }

    /// Forgets some remembered rows of removed versions whose files no longer exist in the store. Returns the start of the next call. Must
    /// not be called on a runtime thread.
    pub(crate) fn forget_some(&self, after: ObjectId) -> Result<ObjectId, DbError> {
        let backend = &self.0;
        let some = backend
            .db
            .read(|db| rows::remembered(db, after, REMEMBERED_MAX))?;
        let last = some.last().map_or(ObjectId(0), |held| held.object);
        let mut deleted = Vec::new();
        for held in some {
            match backend
                .reach
                .wait(backend.reach.far.stat(&held.placed.path))
            {
                Ok(now) if now == held.placed => {}
                Err(failure) if !failure.is_loss() => {}
                _ => deleted.push(held.object),
            }
        }
        if !deleted.is_empty() {
            let forget = move |db: &Connection| {
                let mut removed = deleted.iter();
                removed.try_for_each(|object| rows::removed(db, *object))
            };
            backend.db.write_blocking(false, forget)?;
        }
        Ok(last)
    }
}

impl Backend {
    /// Returns the path in the external store of a file of the cluster, if the file's directory is attached.
    pub(super) fn inside(&self, path: &str) -> Option<String> {
        let attached = self.attached.read();
        attached.iter().find_map(|attached| attached.inside(path))
    }

    /// Returns whether a path of the store belongs to an attached directory.
    pub(super) fn is_attached(&self, path: &str) -> bool {
        let attached = self.attached.read();
        attached
            .iter()
            .any(|attached| attached.name(path).is_some())
    }
}
