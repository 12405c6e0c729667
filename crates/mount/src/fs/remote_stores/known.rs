//! Cache of the list of remotes, which the mount regularly fetches from the server (next: `server/src`), and of their opened stores.

use super::{RemoteStores, TTL};
use crate::error::Error;
use crate::stores::{MountStore, StoreFailure};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
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
    pub(super) store: Arc<dyn MountStore>,
    pub(super) turns: Semaphore,
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
            listed.map_err(|status| StoreFailure {
                errno: Errno::IO,
                reason: server.explain(status).to_string(),
            })
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
        if let Some((since, opened)) = self.known.opened.lock().get(name)
            && since.elapsed() < TTL
        {
            return Ok(opened.clone());
        }
        let store = self.within((name, ""), self.stores.open(name, uri)).await?;
        let mut all = self.known.opened.lock();
        let before = all.get(name).map(|(_, opened)| opened.clone());
        let opened = match before.filter(|before| Arc::ptr_eq(&before.store, &store)) {
            Some(before) => before,
            None => Arc::new(OpenedStore {
                id: self.number(),
                store,
                turns: Semaphore::new(READS_AT_ONCE),
            }),
        };
        all.insert(name.to_owned(), (Instant::now(), opened.clone()));
        all.retain(|name, _| remotes.contains_key(name));
        Ok(opened)
    }
}

/// Whether a remote's name can be the name of a directory.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
