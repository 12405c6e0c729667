//! Waiting for files that are still to come. Who waits is woken by what may have brought its file, not by every change.

use crate::names::changes::Changes;
use crate::names::rooms::Found;
use crate::names::{Change, Changed, SqliteNames};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::AbortHandle;

/// What somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A name appears, in whichever folder.
    Name(Vec<u8>),
    /// A file is sealed.
    Sealed(u64),
    /// Any is.
    AnySealed,
    /// Names move, as do those who wait for a name or a file.
    Moved,
}

impl Key {
    /// What may bring the file of a path at which there is this now.
    pub(super) fn of(path: &[u8], found: &Found) -> Self {
        match found {
            Found::Unsealed(ino) => Self::Sealed(*ino),
            Found::Link => Self::AnySealed,
            _ => {
                let mut parts = path.split(|&byte| byte == b'/');
                let name = parts.rfind(|part| !part.is_empty());
                Self::Name(name.unwrap_or_default().to_vec())
            }
        }
    }
}

/// All who wait.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    count: usize,
    bells: HashMap<Key, Weak<Notify>>,
    /// Hears changes as long as anybody waits: a mount that is alone is woken by none of its own.
    listener: Option<AbortHandle>,
}

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    waits: Arc<Waits>,
    /// Kept, so that it is not looked for in vain: names move seldom.
    pub(super) moved: Arc<Notify>,
}

impl Waits {
    /// One more waits: from now on changes are heard.
    pub(super) fn enter(self: &Arc<Self>, names: &SqliteNames) -> Waiter {
        let mut waiting = self.0.lock();
        waiting.count += 1;
        if waiting.listener.is_none() {
            let listen = listen(names.teller().changes(), self.clone());
            waiting.listener = Some(tokio::spawn(listen).abort_handle());
        }
        drop(waiting);
        Waiter {
            waits: self.clone(),
            moved: self.bell(&Key::Moved),
        }
    }

    fn bell(&self, key: &Key) -> Arc<Notify> {
        let mut waiting = self.0.lock();
        if let Some(bell) = waiting.bells.get(key).and_then(Weak::upgrade) {
            return bell;
        }
        if waiting.bells.len() > 2 * waiting.count + 16 {
            waiting.bells.retain(|_, bell| bell.strong_count() > 0);
        }
        let bell = Arc::new(Notify::new());
        waiting.bells.insert(key.clone(), Arc::downgrade(&bell));
        bell
    }

    fn ring(&self, key: &Key) {
        let bell = self.0.lock().bells.get(key).and_then(Weak::upgrade);
        if let Some(bell) = bell {
            bell.notify_waiters();
        }
    }

    fn ring_all(&self) {
        let bells: Vec<_> = self.0.lock().bells.values().cloned().collect();
        let bells = bells.iter().filter_map(Weak::upgrade);
        bells.for_each(|bell| bell.notify_waiters());
    }

    fn on_changed(&self, changed: &Changed) {
        for change in &changed.changes {
            match change {
                Change::Entry(_, name) => self.ring(&Key::Name(name.clone())),
                Change::Sealed(ino) => {
                    self.ring(&Key::Sealed(*ino));
                    self.ring(&Key::AnySealed);
                }
                Change::Moved => self.ring(&Key::Moved),
                Change::Node(_) | Change::Closed(_) | Change::Rights(_) => {}
            }
        }
    }
}

impl Waiter {
    /// What rings when such a change was committed.
    pub(super) fn bell(&self, key: &Key) -> Arc<Notify> {
        self.waits.bell(key)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waits.0.lock();
        waiting.count -= 1;
        if waiting.count == 0 {
            waiting.bells.clear();
            if let Some(listener) = waiting.listener.take() {
                listener.abort();
            }
        }
    }
}

async fn listen(mut changes: Changes, waits: Arc<Waits>) {
    loop {
        match changes.next().await {
            Ok(changed) => waits.on_changed(&changed),
            // What was missed may be what anybody waits for.
            Err(RecvError::Lagged(_)) => waits.ring_all(),
            Err(RecvError::Closed) => return,
        }
    }
}
