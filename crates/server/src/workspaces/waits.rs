//! Waits for files that do not exist yet. A waiter is woken by changes that may have created its file, not by every change.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tidemill_meta::changes::Changes;
use tidemill_meta::workspaces::PathObject;
use tidemill_meta::{Change, Changed, SqliteNames};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::AbortHandle;

/// Event in the namespace that wakes waiters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum AwaitedEvent {
    /// A name was created, in any directory.
    Name(Vec<u8>),
    /// A version of the file with this inode was sealed.
    Sealed(u64),
    /// A version of any file was sealed.
    AnySealed,
    /// Names were moved. Waiters for a name or a file wait for this event, too.
    Moved,
}

impl AwaitedEvent {
    /// Returns the event that may create the file at a path, given the present state of the path.
    pub(super) fn of(path: &[u8], found: &PathObject) -> Self {
        match found {
            PathObject::Unsealed(ino) => Self::Sealed(*ino),
            PathObject::Link => Self::AnySealed,
            _ => {
                let mut parts = path.split(|&byte| byte == b'/');
                let name = parts.rfind(|part| !part.is_empty());
                Self::Name(name.unwrap_or_default().to_vec())
            }
        }
    }
}

/// All waiters for files.
#[derive(Debug, Default)]
pub(super) struct FileWaiters(Mutex<WaiterIndex>);

#[derive(Debug, Default)]
struct WaiterIndex {
    count: usize,
    bells: HashMap<AwaitedEvent, Weak<Notify>>,
    /// Task that receives namespace changes as long as any client waits for a file. A single mount's own changes do not wake it.
    listener: Option<AbortHandle>,
}

/// A registered waiter for a file; dropping this value removes the waiter.
#[derive(Debug)]
pub(super) struct WorkspaceWaiter {
    waits: Arc<FileWaiters>,
    /// Notification of moved names. The waiter stores it, since names are seldom moved.
    pub(super) moved: Arc<Notify>,
}

impl FileWaiters {
    /// Adds a waiter. From now on the task receives namespace changes.
    pub(super) fn enter(self: &Arc<Self>, names: &SqliteNames) -> WorkspaceWaiter {
        let mut waiting = self.0.lock();
        waiting.count += 1;
        if waiting.listener.is_none() {
            let listen = listen(names.teller().changes(), self.clone());
            waiting.listener = Some(tokio::spawn(listen).abort_handle());
        }
        drop(waiting);
        WorkspaceWaiter {
            waits: self.clone(),
            moved: self.bell(&AwaitedEvent::Moved),
        }
    }

    fn bell(&self, key: &AwaitedEvent) -> Arc<Notify> {
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

    fn ring(&self, key: &AwaitedEvent) {
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
                Change::Entry(_, name) => self.ring(&AwaitedEvent::Name(name.clone())),
                Change::Sealed(ino) => {
                    self.ring(&AwaitedEvent::Sealed(*ino));
                    self.ring(&AwaitedEvent::AnySealed);
                }
                Change::Moved => self.ring(&AwaitedEvent::Moved),
                Change::Vnode(_) | Change::Closed(_) | Change::Rights(_) => {}
            }
        }
    }
}

impl WorkspaceWaiter {
    /// Returns the notification that is signalled when an event of this kind was committed.
    pub(super) fn bell(&self, key: &AwaitedEvent) -> Arc<Notify> {
        self.waits.bell(key)
    }
}

impl Drop for WorkspaceWaiter {
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

async fn listen(mut changes: Changes, waits: Arc<FileWaiters>) {
    loop {
        match changes.next().await {
            Ok(changed) => waits.on_changed(&changed),
            // Missed changes may concern any waiter.
            Err(RecvError::Lagged(_)) => waits.ring_all(),
            Err(RecvError::Closed) => return,
        }
    }
}
