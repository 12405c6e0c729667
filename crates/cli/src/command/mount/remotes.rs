//! Remotes in the mount: each store with the keys of the user of the mount, opened again when its address or its keys
//! change.

use crate::command::remote::KeysFile;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use tidemill_mount::stores::{self, Content, MountStore, MountStores, StoreFailure, StoreFuture};
use tidemill_remote::{Error, Remote, RemoteAddress, StoreFile};

/// A file of keys, and its state when it was read.
type KeysAre = Option<(u64, u64, i64, i64, u32)>;

#[derive(Debug, Default)]
pub(super) struct Remotes(Arc<Mutex<HashMap<String, ConnectedStore>>>);

#[derive(Debug)]
struct ConnectedStore {
    uri: String,
    keys: KeysAre,
    store: Arc<dyn MountStore>,
}

#[derive(Debug)]
struct VisibleRemote(Remote);

#[derive(Debug)]
struct RemoteNames(tidemill_remote::DirectoryPages);

fn failure(error: &Error) -> StoreFailure {
    let errno = match error {
        // Links, pipes and devices are not shown.
        Error::Missing(_) | Error::Path(_) | Error::NoFile { .. } => Errno::NOENT,
        Error::Refused { .. } | Error::Denied { .. } | Error::Keys { .. } => Errno::ACCESS,
        Error::Changed(_) => Errno::STALE,
        _ => Errno::IO,
    };
    StoreFailure {
        errno,
        reason: error.to_string(),
    }
}

fn keys_are(path: Option<&Path>) -> KeysAre {
    let about = std::fs::metadata(path?).ok()?;
    let changed = (about.ctime(), about.ctime_nsec());
    Some((
        about.ino(),
        about.size(),
        changed.0,
        changed.1,
        about.mode(),
    ))
}

/// Opens a store, unless it is open with the same keys.
fn open(
    all: &Mutex<HashMap<String, ConnectedStore>>,
    name: &str,
    uri: &str,
) -> Result<Arc<dyn MountStore>, StoreFailure> {
    let path = KeysFile::usual(name);
    let keys = keys_are(path.as_deref());
    if let Some(opened) = all.lock().get(name)
        && (opened.uri.as_str(), opened.keys) == (uri, keys)
    {
        return Ok(opened.store.clone());
    }
    let place = RemoteAddress::parse(uri).map_err(|error| failure(&error))?;
    let read = KeysFile::of_remote(name).map_err(|error| failure(&error))?;
    let remote = Remote::open(&place, &read).map_err(|error| failure(&error))?;
    let store: Arc<dyn MountStore> = Arc::new(VisibleRemote(remote));
    let opened = ConnectedStore {
        uri: uri.to_owned(),
        keys,
        store: store.clone(),
    };
    all.lock().insert(name.to_owned(), opened);
    Ok(store)
}

impl MountStores for Remotes {
    fn open<'a>(&'a self, name: &'a str, uri: &'a str) -> StoreFuture<'a, Arc<dyn MountStore>> {
        let (all, name, uri) = (self.0.clone(), name.to_owned(), uri.to_owned());
        Box::pin(async move {
            // A directory may be on a disk that never answers.
            let opened = tokio::task::spawn_blocking(move || open(&all, &name, &uri)).await;
            opened.unwrap_or_else(|error| {
                Err(StoreFailure {
                    errno: Errno::IO,
                    reason: error.to_string(),
                })
            })
        })
    }
}

fn seen(seen: tidemill_remote::PathType) -> stores::PathContent {
    match seen {
        tidemill_remote::PathType::Directory => stores::PathContent::Directory,
        tidemill_remote::PathType::File(object, modified) => stores::PathContent::File(Content {
            size: object.size,
            tag: object.tag,
            checked_by_store: object.checked_by_store,
            modified,
        }),
    }
}

impl MountStore for VisibleRemote {
    fn look<'a>(&'a self, path: &'a str) -> StoreFuture<'a, stores::PathContent> {
        Box::pin(async move {
            let found = self.0.look(path).await;
            found.map(seen).map_err(|error| failure(&error))
        })
    }

    fn entries<'a>(&'a self, path: &'a str) -> StoreFuture<'a, Box<dyn stores::EntryPages>> {
        Box::pin(async move {
            let entries = self.0.entries(path).await;
            let entries = entries.map_err(|error| failure(&error))?;
            Ok(Box::new(RemoteNames(entries)) as Box<dyn stores::EntryPages>)
        })
    }

    fn read<'a>(
        &'a self,
        path: &'a str,
        content: &'a Content,
        (from, count): (u64, u64),
    ) -> StoreFuture<'a, bytes::Bytes> {
        Box::pin(async move {
            let object = StoreFile {
                path: path.to_owned(),
                size: content.size,
                tag: content.tag.clone(),
                checked_by_store: content.checked_by_store,
            };
            let read = self.0.read_at(&object, from, count).await;
            read.map_err(|error| failure(&error))
        })
    }
}

impl stores::EntryPages for RemoteNames {
    fn next(&mut self, most: usize) -> StoreFuture<'_, Vec<stores::DirectoryEntry>> {
        Box::pin(async move {
            let page = self.0.next(most).await.map_err(|error| failure(&error))?;
            let entry = |entry: tidemill_remote::ListingEntry| stores::DirectoryEntry {
                name: entry.name,
                seen: seen(entry.seen),
            };
            Ok(page.into_iter().map(entry).collect())
        })
    }
}
