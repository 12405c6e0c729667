//! Bridges in the mount: each store with the keys of the user of the mount, opened again when its address or its keys
//! change.

use crate::command::bridge::KeysFile;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use tidemill_bridge::{Bridge, Error, Object, Place};
use tidemill_mount::stores::{self, Asked, Content, Failure, Store, Stores};

/// Which file of keys it was, and as it was then.
type KeysAre = Option<(u64, u64, i64, i64, u32)>;

#[derive(Debug, Default)]
pub(super) struct Bridges(Arc<Mutex<HashMap<String, Opened>>>);

#[derive(Debug)]
struct Opened {
    uri: String,
    keys: KeysAre,
    store: Arc<dyn Store>,
}

#[derive(Debug)]
struct Seen(Bridge);

#[derive(Debug)]
struct Names(tidemill_bridge::Entries);

fn failure(error: &Error) -> Failure {
    let errno = match error {
        // Links, pipes and devices are not shown.
        Error::Missing(_) | Error::Path(_) | Error::NoFile { .. } => Errno::NOENT,
        Error::Refused { .. } | Error::Denied { .. } | Error::Keys { .. } => Errno::ACCESS,
        Error::Changed(_) => Errno::STALE,
        _ => Errno::IO,
    };
    Failure {
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
    all: &Mutex<HashMap<String, Opened>>,
    name: &str,
    uri: &str,
) -> Result<Arc<dyn Store>, Failure> {
    let path = KeysFile::usual(name);
    let keys = keys_are(path.as_deref());
    if let Some(opened) = all.lock().get(name)
        && (opened.uri.as_str(), opened.keys) == (uri, keys)
    {
        return Ok(opened.store.clone());
    }
    let place = Place::parse(uri).map_err(|error| failure(&error))?;
    let read = KeysFile::of_bridge(name).map_err(|error| failure(&error))?;
    let bridge = Bridge::open(&place, &read).map_err(|error| failure(&error))?;
    let store: Arc<dyn Store> = Arc::new(Seen(bridge));
    let opened = Opened {
        uri: uri.to_owned(),
        keys,
        store: store.clone(),
    };
    all.lock().insert(name.to_owned(), opened);
    Ok(store)
}

impl Stores for Bridges {
    fn open<'a>(&'a self, name: &'a str, uri: &'a str) -> Asked<'a, Arc<dyn Store>> {
        let (all, name, uri) = (self.0.clone(), name.to_owned(), uri.to_owned());
        Box::pin(async move {
            // A directory may be on a disk that never answers.
            let opened = tokio::task::spawn_blocking(move || open(&all, &name, &uri)).await;
            opened.unwrap_or_else(|error| {
                Err(Failure {
                    errno: Errno::IO,
                    reason: error.to_string(),
                })
            })
        })
    }
}

fn seen(seen: tidemill_bridge::Seen) -> stores::Seen {
    match seen {
        tidemill_bridge::Seen::Directory => stores::Seen::Directory,
        tidemill_bridge::Seen::File(object, modified) => stores::Seen::File(Content {
            size: object.size,
            tag: object.tag,
            checked_by_store: object.checked_by_store,
            modified,
        }),
    }
}

impl Store for Seen {
    fn look<'a>(&'a self, path: &'a str) -> Asked<'a, stores::Seen> {
        Box::pin(async move {
            let found = self.0.look(path).await;
            found.map(seen).map_err(|error| failure(&error))
        })
    }

    fn entries<'a>(&'a self, path: &'a str) -> Asked<'a, Box<dyn stores::Entries>> {
        Box::pin(async move {
            let entries = self.0.entries(path).await;
            let entries = entries.map_err(|error| failure(&error))?;
            Ok(Box::new(Names(entries)) as Box<dyn stores::Entries>)
        })
    }

    fn read<'a>(
        &'a self,
        path: &'a str,
        content: &'a Content,
        (from, count): (u64, u64),
    ) -> Asked<'a, bytes::Bytes> {
        Box::pin(async move {
            let object = Object {
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

impl stores::Entries for Names {
    fn next(&mut self, most: usize) -> Asked<'_, Vec<stores::Entry>> {
        Box::pin(async move {
            let page = self.0.next(most).await.map_err(|error| failure(&error))?;
            let entry = |entry: tidemill_bridge::Entry| stores::Entry {
                name: entry.name,
                seen: seen(entry.seen),
            };
            Ok(page.into_iter().map(entry).collect())
        })
    }
}
