//! Remotes as directories, `/remotes/NAME/…`: read-only, for the mount's own user and root
//! ([0061](../../../../../docs/decisions/0061-remotes-in-the-mount.md)). The module sends requests to the remotes' stores (next:
//! `remote/src/store.rs`).
//!
//! Each version of a file has an inode of its own. So the Linux kernel never uses cached pages of one version for another version,
//! whichever programs have them open. A name gets another inode when its file changes. No thread waits for a store: a dead store only
//! delays programs that use it, and for a limited time.
//!
//! | file | subject |
//! |---|---|
//! | `vnodes` | inodes that the kernel knows |
//! | `known` | the list of remotes, and their stores |
//! | `reading` | open files |
//! | `blocks` | bytes that are kept, and requested once |
//! | `listing` | open directories |

mod known;
mod listing;
mod reading;
mod vnodes;

pub(crate) use listing::NameRange;

use super::backend::Backend;
use super::{Caller, Fs, LookupResult, WaitPolicy};
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tidemill_client::blocks::BlockCache;
use tidemill_model::id::Inode;
use tidemill_remote::Error as StoreError;
use vnodes::{InodeTarget, Vnodes};

/// Name of the directory of remotes in the root. A directory of the cluster with this name takes precedence.
pub(crate) const DIRECTORY: &[u8] = b"remotes";
/// Time for which the mount caches names, sizes and times of a store's files.
pub(crate) const TTL: Duration = Duration::from_secs(5);
/// Maximum length of a file name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Returns the path of the file with the mounting user's keys for a remote.
pub type KeysPath = fn(&str) -> Option<PathBuf>;

/// Stores of the remotes that one mount shows.
#[derive(Debug)]
pub(crate) struct RemoteStores {
    keys: KeysPath,
    backend: Arc<Backend>,
    /// Maximum time that a store may take for one answer.
    patience: Duration,
    vnodes: Mutex<Vnodes>,
    known: known::KnownRemotes,
    blocks: BlockCache<StoreError>,
    files: Mutex<HashMap<u64, Arc<reading::RemoteReader>>>,
    listings: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<listing::AttachedListing>>>>,
    next: AtomicU64,
}

impl RemoteStores {
    pub(crate) fn new(keys: KeysPath, backend: Arc<Backend>, patience: Duration) -> Self {
        Self {
            keys,
            backend,
            patience,
            vnodes: Mutex::default(),
            known: known::KnownRemotes::default(),
            blocks: BlockCache::default(),
            files: Mutex::default(),
            listings: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns an error unless the caller is root or the user with whose keys and rights the mount reads the store. Requests of this
    /// process itself are refused, because they would loop.
    fn check(caller: Caller) -> Result<(), Error> {
        let own = rustix::process::geteuid().as_raw();
        if caller.uid != own && caller.uid != 0 {
            return Err(Errno::ACCESS.into());
        }
        let thread = format!("/proc/self/task/{}", caller.pid);
        match caller.pid != 0 && std::path::Path::new(&thread).exists() {
            true => Err(Errno::LOOP.into()),
            false => Ok(()),
        }
    }

    /// Returns the answer of a store, or an error after the store's time limit. Shortly after such a timeout, requests fail at once,
    /// because the Linux kernel makes programs that look up the same name ask one after the other.
    async fn bounded<T>(
        &self,
        name: &str,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let silent = || StoreError::Other(format!("no answer for {} s", self.patience.as_secs()));
        if self.known.is_offline(name) {
            return Err(silent());
        }
        let answer = tokio::time::timeout(self.patience, asked).await;
        answer.unwrap_or_else(|_| {
            self.known.set_offline(name);
            Err(silent())
        })
    }

    async fn within<T>(
        &self,
        (name, path): (&str, &str),
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Error> {
        let answer = self.bounded(name, asked).await;
        answer.map_err(|failure| remote_error(&failure, name, path))
    }

    /// Returns the directory of all remotes, if any remote exists.
    async fn top(&self, caller: Caller) -> Result<LookupResult, Error> {
        if self.remotes().await?.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if caller.pid != 0 && matches!(Self::check(caller), Err(error) if error.is(Errno::LOOP)) {
            return Err(Errno::LOOP.into());
        }
        let mut found = self.vnodes.lock().hold(&InodeTarget::Top, None);
        // A directory of the cluster may have the name by now, and access is checked each time.
        found.ttl = Duration::ZERO;
        Ok(found)
    }

    /// Looks up a name in a directory.
    pub(crate) async fn lookup(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
    ) -> Result<LookupResult, Error> {
        Self::check(caller)?;
        let place = self.vnodes.lock().place(parent)?;
        if name == b"." {
            return Ok(self.vnodes.lock().hold(&place, None));
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        let (remote, path) = match place {
            InodeTarget::Top => {
                let known = self.remotes().await?;
                known.get(name).ok_or(Errno::NOENT)?;
                let place = InodeTarget::Directory(name.to_owned(), String::new());
                return Ok(self.vnodes.lock().hold(&place, None));
            }
            InodeTarget::Directory(remote, path) => (remote, join(&path, name)),
            InodeTarget::File(_) => return Err(Errno::NOTDIR.into()),
        };
        let store = self.store(&remote).await?;
        let seen = self
            .within((&remote, &path), store.store.look(&path))
            .await?;
        Ok(self.vnodes.lock().found(&remote, &path, store.id, seen))
    }

    /// Returns the attributes of an inode, which never change because a version does not change.
    pub(crate) fn getattr(&self, number: u64) -> Result<LookupResult, Error> {
        self.vnodes.lock().at(number)
    }

    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        self.vnodes.lock().let_go(number, lookups);
    }
}

/// Returns the error for a failed request to a store, with its errno. Missing files are not logged.
fn remote_error(failure: &StoreError, name: &str, path: &str) -> Error {
    let reason = format!("remote {name}: {path:?}: {failure}");
    let errno = match failure {
        // Links, pipes and devices are not shown.
        StoreError::Missing(_) | StoreError::Path(_) | StoreError::NoFile { .. } => Errno::NOENT,
        StoreError::Refused { .. } | StoreError::Denied { .. } | StoreError::Keys { .. } => {
            tracing::warn!("{reason}");
            Errno::ACCESS
        }
        StoreError::Changed(_) => Errno::STALE,
        _ => Errno::IO,
    };
    Error::Store { errno, reason }
}

fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

impl Fs {
    /// Returns the state of the remotes, if an inode belongs to a remote.
    pub(crate) fn remote_stores_at(&self, number: u64) -> Option<&Arc<RemoteStores>> {
        match number & (Inode::SPECIAL | vnodes::REMOTE) == Inode::SPECIAL | vnodes::REMOTE {
            true => self.remote_stores.get(),
            false => None,
        }
    }

    /// Looks up a name in the root. The directory of remotes exists if the cluster has no directory with the same name.
    pub(crate) fn lookup_at_root(
        &self,
        caller: Caller,
        name: &[u8],
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        match (
            self.lookup(caller, Inode::ROOT.0, name, pace),
            self.remote_stores.get(),
        ) {
            (Err(error), Some(remote_stores)) if name == DIRECTORY && error.is(Errno::NOENT) => {
                pace.wait()?;
                self.backend.runtime.block_on(remote_stores.top(caller))
            }
            (found, _) => found,
        }
    }
}
