//! Cache of the bridges, which it regularly fetches from the server (next: `server/src`), and their opened stores.

use super::{Bridged, TTL};
use crate::error::Error;
use crate::stores::{Failure, Store};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_wire::v1;
use tokio::sync::Semaphore;

/// Time for which the list of bridges is valid.
const BRIDGES_TTL: Duration = Duration::from_secs(1);
/// Number of blocks of one store that are on their way at once.
const READS_AT_ONCE: usize = 8;

/// Addresses by name.
pub(super) type Bridges = Arc<BTreeMap<String, String>>;

/// A store that has been opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) id: u64,
    pub(super) store: Arc<dyn Store>,
    pub(super) turns: Semaphore,
}

#[derive(Debug, Default)]
pub(super) struct Known {
    bridges: tokio::sync::Mutex<Option<(Instant, Bridges)>>,
    opened: Mutex<HashMap<String, (Instant, Arc<Opened>)>>,
    /// Stores that did not answer, and the time of that.
    offline: Mutex<HashMap<String, Instant>>,
}

impl Known {
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

impl Bridged {
    /// Returns all bridges. If the server does not answer, returns the last known bridges.
    pub(super) async fn bridges(&self) -> Result<Bridges, Error> {
        let mut known = self.known.bridges.lock().await;
        if let Some((since, bridges)) = &*known
            && since.elapsed() < BRIDGES_TTL
        {
            return Ok(bridges.clone());
        }
        let server = &self.backend.server;
        let asked = async {
            let listed = server.bridges().list(v1::ListBridgesRequest {}).await;
            listed.map_err(|status| Failure {
                errno: Errno::IO,
                reason: server.explain(status).to_string(),
            })
        };
        let bridges = match (self.within(("of the server", ""), asked).await, &*known) {
            (Ok(listed), _) => {
                let all = listed.into_inner().bridges.into_iter();
                let named = all.filter(|bridge| is_name(&bridge.name));
                Arc::new(named.map(|bridge| (bridge.name, bridge.uri)).collect())
            }
            (Err(_), Some((_, bridges))) => bridges.clone(),
            (Err(error), None) => return Err(error),
        };
        *known = Some((Instant::now(), bridges.clone()));
        Ok(bridges)
    }

    /// Returns the store of a bridge, for its present address and keys.
    pub(super) async fn store(&self, name: &str) -> Result<Arc<Opened>, Error> {
        let bridges = self.bridges().await?;
        let uri = bridges.get(name).ok_or(Errno::NOENT)?;
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
            None => Arc::new(Opened {
                id: self.number(),
                store,
                turns: Semaphore::new(READS_AT_ONCE),
            }),
        };
        all.insert(name.to_owned(), (Instant::now(), opened.clone()));
        all.retain(|name, _| bridges.contains_key(name));
        Ok(opened)
    }
}

/// Whether a name can be the name of a directory, whatever its origin.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
