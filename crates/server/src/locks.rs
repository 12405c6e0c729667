//! File locks between mounts. This module sends and receives the messages of [`tidemill_model::locks`], which decides about locks. The
//! module stores which mounts may hold locks, so that a restarted server waits for these mounts before it grants locks to other mounts.

use crate::session::Sessions;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_meta::{Fault, Names, NamesRequest};
use tidemill_model::locks::{Arbiter, Lock, LockMessage, LockMode};
use tidemill_wire::v1::{
    self, lock_news::What, lock_op::Op as LockOp, name_op::Op, name_result::Result as Answer,
};
use tokio::sync::mpsc;

/// Maximum number of messages that wait for a mount. A mount that reads more slowly is disconnected and reports its locks again.
const NEWS_MAX: usize = 16_384;
/// Maximum number of locks and files in one message of a mount.
const LOCKS_MAX: usize = 1 << 20;

/// The lock service for mounts, as described in the module's documentation. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Locks(Arc<LockServiceState>);

#[derive(Debug)]
struct LockServiceState {
    names: Arc<dyn Names>,
    sessions: Sessions,
    arbiter: Mutex<Arbiter>,
    /// Channel to each mount by session, with the number of the mount's connection.
    lines: Mutex<BTreeMap<u64, (u64, mpsc::Sender<v1::Invalidation>)>>,
    next: AtomicU64,
}

/// Lock messages to a mount; the subscription ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct LockSubscription {
    locks: Locks,
    session: u64,
    number: u64,
    news: mpsc::Receiver<v1::Invalidation>,
}

impl LockSubscription {
    /// Returns the next lock message to the mount; `None` if messages were lost.
    pub(crate) async fn next(&mut self) -> Option<v1::Invalidation> {
        self.news.recv().await
    }
}

impl Drop for LockSubscription {
    fn drop(&mut self) {
        // The two locks are taken in the same order as elsewhere.
        let mut arbiter = self.locks.0.arbiter.lock();
        let mut lines = self.locks.0.lines.lock();
        let line = lines.get(&self.session);
        if line.is_some_and(|(number, _)| *number == self.number) {
            lines.remove(&self.session);
            arbiter.on_broken(self.session);
        }
    }
}

impl Locks {
    pub(crate) fn new(names: Arc<dyn Names>, sessions: Sessions) -> Result<Self, Fault> {
        let lockers = names.lockers()?;
        for &session in &lockers {
            sessions.expect(session);
        }
        Ok(Self(Arc::new(LockServiceState {
            names,
            sessions,
            arbiter: Mutex::new(Arbiter::awaiting(lockers)),
            lines: Mutex::default(),
            next: AtomicU64::new(1),
        })))
    }

    /// Begins the stream of lock messages to a mount. Messages of the mount's previous stream may be lost.
    pub(crate) fn listen(&self, session: u64) -> LockSubscription {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (sender, news) = mpsc::channel(NEWS_MAX);
        {
            let mut arbiter = self.0.arbiter.lock();
            arbiter.on_broken(session);
            self.0.lines.lock().insert(session, (number, sender));
        }
        LockSubscription {
            locks: self.clone(),
            session,
            number,
            news,
        }
    }

    /// Whether a request to the namespace is about locks.
    pub(crate) fn are_asked(request: &NamesRequest) -> bool {
        matches!(
            request.ops.first().map(|op| &op.op),
            Some(Some(Op::Lock(_)))
        )
    }

    /// Executes a request about locks.
    pub(crate) async fn take(&self, request: &NamesRequest) -> Result<Vec<v1::NameResult>, Fault> {
        if request.session == 0 {
            return Err(Fault::Malformed("only mounts have locks"));
        }
        let mut results = Vec::new();
        for op in &request.ops {
            let answer = match &op.op {
                Some(Op::Lock(v1::LockOp { op: Some(op) })) => self.on(request.session, op).await,
                _ => Err(Fault::Malformed("locks need a request of their own")),
            };
            let failed = answer.is_err();
            let result = Some(match answer {
                Ok(()) => Answer::Empty(v1::Empty {}),
                Err(fault) => Answer::Error((&fault).into()),
            });
            results.push(v1::NameResult { result });
            if failed {
                break;
            }
        }
        Ok(results)
    }

    async fn on(&self, mount: u64, op: &LockOp) -> Result<(), Fault> {
        let lost = |_| Fault::NotJoined(mount);
        let mut out = Vec::new();
        let done = match op {
            LockOp::Join(join) => {
                let locks = join.locks.iter().map(|lock| (lock.ino, lock.into()));
                let locks: Vec<_> = locks.take(LOCKS_MAX).collect();
                self.0.names.set_locker(mount, true).await?;
                // An offline mount is declared lost after its timeout. A mount that the sessions do not know would never be.
                self.0.sessions.expect(mount);
                let mut arbiter = self.0.arbiter.lock();
                let joined = arbiter.on_join(mount, &join.delegated, &locks, &mut out);
                self.carry_out(&mut arbiter, &out);
                joined
            }
            LockOp::Want(want) => {
                let lock = want.lock.as_ref().map(Lock::from);
                let lock = lock.ok_or(Fault::Malformed("the request has no lock"))?;
                let how = match want.how() {
                    v1::LockHow::LockWait => LockMode::Wait,
                    v1::LockHow::LockTry => LockMode::Try,
                    v1::LockHow::LockTest => LockMode::Test,
                };
                let request = (mount, want.request);
                let mut arbiter = self.0.arbiter.lock();
                let wanted = arbiter.on_want(request, want.ino, lock, how, &mut out);
                self.carry_out(&mut arbiter, &out);
                wanted
            }
            LockOp::Cancel(cancel) => {
                let mut arbiter = self.0.arbiter.lock();
                arbiter.on_cancel(mount, cancel.ino, cancel.request, &mut out);
                self.carry_out(&mut arbiter, &out);
                Ok(())
            }
            LockOp::State(state) => {
                let locks: Vec<Lock> = state.locks.iter().take(LOCKS_MAX).map(Lock::from).collect();
                let mut arbiter = self.0.arbiter.lock();
                let known = arbiter.on_state((mount, state.seen), state.ino, &locks, &mut out);
                self.carry_out(&mut arbiter, &out);
                known
            }
            LockOp::Renew(_) => {
                let here = self.0.sessions.is_present(mount);
                let member = self.0.arbiter.lock().is_member(mount);
                return (here && member)
                    .then_some(())
                    .ok_or(Fault::NotJoined(mount));
            }
        };
        done.map_err(lost)
    }

    /// Sends lock messages to mounts while the arbiter is locked, so that mounts receive them in the order of the arbiter's decisions.
    fn carry_out(&self, arbiter: &mut Arbiter, actions: &[LockMessage]) {
        for &action in actions {
            let (mount, message) = news_of(action);
            if !self.tell(mount, message) {
                arbiter.on_broken(mount);
            }
            if let LockMessage::Delegate { mount, ino, .. } = action {
                let others = self.0.lines.lock();
                for (&other, (_, line)) in others.iter().filter(|(other, _)| **other != mount) {
                    if line
                        .try_send(invalidation(news(What::Locked, ino)))
                        .is_err()
                    {
                        tracing::debug!(
                            other,
                            ino,
                            "a mount is not notified that a file has locks"
                        );
                    }
                }
            }
        }
    }

    /// Sends a lock message to a mount. A mount with too many waiting messages is disconnected, so that it reports its locks again.
    fn tell(&self, mount: u64, news: v1::LockNews) -> bool {
        let mut lines = self.0.lines.lock();
        let sent = lines
            .get(&mount)
            .is_some_and(|(_, line)| line.try_send(invalidation(news)).is_ok());
        if !sent {
            lines.remove(&mount);
        }
        sent
    }

    /// Asks the mount that writes a file to seal as much of the file as possible.
    pub(crate) fn publish(&self, writer: u64, ino: u64) {
        if let Some((_, line)) = self.0.lines.lock().get(&writer) {
            let _ = line.try_send(invalidation(news(What::Publish, ino)));
        }
    }

    /// Whether any mount holds, or may take, locks on the file.
    pub(crate) fn are_known(&self, ino: u64) -> bool {
        self.0.arbiter.lock().is_locked(ino)
    }

    /// Sets the flag in an inode's attributes that other mounts hold locks on the inode.
    pub(crate) fn mark(&self, session: u64, attr: Option<&mut v1::Attr>) {
        if let Some(attr) = attr {
            attr.locked = self.0.arbiter.lock().is_locked_elsewhere(attr.ino, session);
        }
    }

    /// Sends a message to a mount after all earlier lock messages. Returns whether the message was queued.
    pub(crate) fn tell_in_order(&self, mount: u64, message: v1::Invalidation) -> bool {
        let lines = self.0.lines.lock();
        let line = lines.get(&mount);
        line.is_some_and(|(_, line)| line.try_send(message).is_ok())
    }

    /// Returns the mounts that may hold locks.
    pub(crate) fn mounts(&self) -> Vec<u64> {
        self.0.arbiter.lock().mounts().collect()
    }

    /// Whether any mount other than `session` may hold locks.
    pub(crate) fn has_others(&self, session: u64) -> bool {
        self.0.arbiter.lock().mounts().any(|mount| mount != session)
    }

    /// Releases the locks of a lost mount, after all its open files were sealed or aborted.
    pub(crate) async fn abandon(&self, session: u64) -> Result<(), Fault> {
        let mut out = Vec::new();
        {
            let mut arbiter = self.0.arbiter.lock();
            arbiter.on_gone(session, &mut out);
            self.carry_out(&mut arbiter, &out);
        }
        tracing::info!(session, "the locks of a lost mount are released");
        self.0.names.set_locker(session, false).await
    }
}

fn invalidation(news: v1::LockNews) -> v1::Invalidation {
    v1::Invalidation {
        lock: Some(news),
        ..v1::Invalidation::default()
    }
}

fn news(what: What, ino: u64) -> v1::LockNews {
    v1::LockNews {
        what: what.into(),
        ino,
        ..v1::LockNews::default()
    }
}

fn news_of(action: LockMessage) -> (u64, v1::LockNews) {
    match action {
        LockMessage::Recall { mount, ino } => (mount, news(What::Recall, ino)),
        LockMessage::Delegate {
            mount,
            ino,
            request,
            number,
        } => {
            let delegated = v1::LockNews {
                request,
                number,
                ..news(What::Delegated, ino)
            };
            (mount, delegated)
        }
        LockMessage::Grant {
            mount,
            ino,
            request,
            number,
        } => {
            let granted = v1::LockNews {
                request,
                number,
                ..news(What::Granted, ino)
            };
            (mount, granted)
        }
        LockMessage::Deny { mount, request, by } => {
            let denied = v1::LockNews {
                request,
                by: by.as_ref().map(Into::into),
                ..news(What::Denied, 0)
            };
            (mount, denied)
        }
    }
}
