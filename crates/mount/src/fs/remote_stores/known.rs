//! Cache of the list of remotes, which the mount regularly fetches from the server (next: `server/src`), and of their opened stores.

use super::{RemoteStores, TTL};
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_remote::{Error as StoreError, Keys, Remote, RemoteAddress};
use tidemill_wire::v1;
use tokio::sync::Semaphore;

/// Time for which the list of remotes is valid.
const REMOTES_TTL: Duration = Duration::from_secs(1);
/// Maximum number of blocks of one store that are requested at once.
const READS_AT_ONCE: usize = 8;

/// Addresses of all remotes by name.
pub(super) type Remotes = Arc<BTreeMap<String, String>>;

#[derive(Debug)]
pub(super) struct OpenedStore {
    pub(super) id: u64,
    pub(super) store: Remote,
    pub(super) turns: Semaphore,
    uri: String,
    keys: KeysState,
}

/// State of a file of keys when it was read; `None` for a missing file.
type KeysState = Option<(u64, u64, i64, i64, u32)>;

fn keys_state(path: Option<&Path>) -> KeysState {
    let about = std::fs::metadata(path?).ok()?;
    let (seconds, nanoseconds) = (about.ctime(), about.ctime_nsec());
    Some((
        about.ino(),
        about.size(),
        seconds,
        nanoseconds,
        about.mode(),
    ))
}

#[derive(Debug, Default)]
pub(super) struct KnownRemotes {
    remotes: tokio::sync::Mutex<Option<(Instant, Remotes)>>,
    opened: Mutex<HashMap<String, (Instant, Arc<OpenedStore>)>>,
    /// Names of remotes whose stores did not answer, with the time of the last failure.
    offline: Mutex<HashMap<String, Instant>>,
}

impl KnownRemotes {
    pub(super) fn is_offline(&self, name: &str) -> bool {
        let offline = self.offline.lock();
        offline.get(name).is_some_and(|since| since.elapsed() < TTL)
    }

    pub(super) fn set_offline(&self, name: &str) {
        let mut offline = self.offline.lock();
        offline.retain(|_, since| since.elapsed() < TTL);
        offline.insert(name.to_owned(), Instant::now());
    }
}

impl RemoteStores {
    /// Returns all remotes. If the server does not answer, returns the last known remotes.
    pub(super) async fn remotes(&self) -> Result<Remotes, Error> {
        let mut known = self.known.remotes.lock().await;
        if let Some((since, remotes)) = &*known
            && since.elapsed() < REMOTES_TTL
        {
            return Ok(remotes.clone());
        }
        let server = &self.backend.server;
        let asked = async {
            let listed = server.remotes().list(v1::ListRemotesRequest {}).await;
            listed.map_err(|status| StoreError::Other(server.explain(status).to_string()))
        };
        let remotes = match (self.within(("of the server", ""), asked).await, &*known) {
            (Ok(listed), _) => {
                let all = listed.into_inner().remotes.into_iter();
                let named = all.filter(|remote| is_name(&remote.name));
                Arc::new(named.map(|remote| (remote.name, remote.uri)).collect())
            }
            (Err(_), Some((_, remotes))) => remotes.clone(),
            (Err(error), None) => return Err(error),
        };
        *known = Some((Instant::now(), remotes.clone()));
        Ok(remotes)
    }

    /// Returns the store of a remote, opened with the remote's current address and keys.
    pub(super) async fn store(&self, name: &str) -> Result<Arc<OpenedStore>, Error> {
        let remotes = self.remotes().await?;
        let uri = remotes.get(name).ok_or(Errno::NOENT)?;
        let before = self.known.opened.lock().get(name).cloned();
        if let Some((since, opened)) = &before
            && since.elapsed() < TTL
        {
            return Ok(opened.clone());
        }
        let before = before.map(|(_, opened)| opened);
        let (id, uri, keys) = (self.number(), uri.clone(), (self.keys)(name));
        // A directory may be on a disk that never answers.
        let open = tokio::task::spawn_blocking(move || reopened(before, id, uri, keys.as_deref()));
        let open = async {
            let opened = open.await;
            opened.unwrap_or_else(|error| Err(StoreError::Other(error.to_string())))
        };
        let opened = self.within((name, ""), open).await?;
        let mut all = self.known.opened.lock();
        all.insert(name.to_owned(), (Instant::now(), opened.clone()));
        all.retain(|name, _| remotes.contains_key(name));
        Ok(opened)
    }
}

/// Returns the store at an address, opened again if the address or the keys have changed.
fn reopened(
    before: Option<Arc<OpenedStore>>,
    id: u64,
    uri: String,
    path: Option<&Path>,
) -> Result<Arc<OpenedStore>, StoreError> {
    let keys = keys_state(path);
    if let Some(before) = before.filter(|before| (&before.uri, before.keys) == (&uri, keys)) {
        return Ok(before);
    }
    let address = RemoteAddress::parse(&uri)?;
    Ok(Arc::new(OpenedStore {
        id,
        store: tidemill_remote::open(&address, &Keys::read_if_exists(path)?)?,
        turns: Semaphore::new(READS_AT_ONCE),
        uri,
        keys,
    }))
}

/// Whether a remote's name can be the name of a directory.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
