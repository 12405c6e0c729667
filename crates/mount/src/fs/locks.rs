//! Locks of programs on this mount (`flock`, `fcntl`) and their agreement with the locks on other mounts. [`tidemill_model::locks`] decides;
//! this module sends messages to the server (next: `server/src`) and answers to programs.
//!
//! Messages are sent to the server one after the other, in the order in which they arose. The server's messages arrive on its stream, after
//! the changes that were made before them. So the next holder of a lock sees the changes of the previous holder. See
//! `docs/decisions/0013-lock-leases.md`.

use super::backend::attr_of;
use super::table::{CachedInode, InodeKey};
use super::watch::KernelCache;
use super::{Caller, Fs, deadline};
use crate::error::Error;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidemill_model::locks::{Effect, Holder, Lock, LockAnswer, LockHolder, LockMode, LockSpace};
use tidemill_wire::v1::{
    self, lock_news::What, lock_op::Op, name_op, name_result::Result as Reply,
};

/// Time after the server's last answer during which this mount may decide about locks. The server gives the locks to other mounts no sooner
/// than 10 s after it has lost the mount's stream.
const LEASE: Duration = Duration::from_secs(8);
/// Interval at which this mount renews its lease at the server, if the mount has locks.
const RENEWAL: Duration = Duration::from_secs(2);
/// Maximum number of lock messages in one request.
const BATCH_MAX: usize = 256;

/// Callback that receives the result for a program: success, a conflicting lock, or an error.
pub(crate) type Callback = Box<dyn FnOnce(Result<Option<Lock>, Errno>) + Send>;

/// Program that requested a lock.
struct LockRequester {
    ino: u64,
    /// Requested lock, and the open file through which the program requested it.
    lock: Lock,
    handle: u64,
    callback: Callback,
}

#[derive(Default)]
pub(crate) struct MountLocks {
    inner: Mutex<MountLockState>,
    kernel: OnceLock<Arc<dyn KernelCache + Sync>>,
    forgetting: Arc<Forgetting>,
}

/// Number of pending invalidations of the Linux kernel's pages, per file.
#[derive(Default)]
struct Forgetting {
    counts: Mutex<BTreeMap<u64, usize>>,
    fewer: Condvar,
}

impl Forgetting {
    fn begin(&self, ino: u64) {
        *self.counts.lock().entry(ino).or_default() += 1;
    }

    fn end(&self, ino: u64) {
        let mut counts = self.counts.lock();
        if let Entry::Occupied(mut count) = counts.entry(ino) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.fewer.notify_all();
    }

    fn wait(&self, ino: u64) {
        let mut counts = self.counts.lock();
        let until = deadline::deadline();
        while counts.contains_key(&ino) {
            if deadline::wait(&self.fewer, &mut counts, until) {
                tracing::warn!(
                    ino,
                    "the Linux kernel is busy: reads under a lock may be old"
                );
                return;
            }
        }
    }
}

impl std::fmt::Debug for MountLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locks").finish_non_exhaustive()
    }
}

/// File whose cached content is being brought up to date.
#[derive(Default)]
struct Stale {
    /// Requests that hold a lock of the file and get their answer after the update.
    askers: Vec<LockRequester>,
    /// Whether the update has to be repeated, because the content may have been read before the last lock was granted.
    again: bool,
}

#[derive(Default)]
struct MountLockState {
    holder: Holder,
    askers: BTreeMap<u64, LockRequester>,
    last: u64,
    /// Messages that are to be sent to the server.
    queue: VecDeque<Op>,
    sending: bool,
    /// Whether the server knows the locks of this mount.
    joined: bool,
    /// Whether a task renews the lease at the server.
    renewing: bool,
    /// Time until which this mount decides about locks that the server delegated to it.
    valid: Option<Instant>,
    /// Requests that are not decided yet, because the lease has expired or their owner is still releasing locks.
    late: Vec<(u64, u64, Lock, LockMode)>,
    /// Owners that are about to release locks. The Linux kernel may give the next owner the same id.
    ending: BTreeMap<(u64, LockHolder), usize>,
    /// Files for which programs on this mount may not see all writes of other mounts.
    stale: BTreeMap<u64, Stale>,
    /// Number of the server's current stream; messages of an earlier stream are ignored.
    stream: u64,
    /// Whether a message failed, so that the server lacks locks of this mount. The messages are repeated when a new stream has begun.
    broken: bool,
    /// Open files through which locks were requested, and the owners of the requests.
    used: BTreeSet<(u64, u64, LockHolder)>,
}

impl MountLockState {
    /// Whether the mount cannot decide or send a request yet.
    fn is_late(&self, ino: u64, lock: &Lock) -> bool {
        let over = || self.valid.is_none_or(|until| until <= Instant::now());
        self.ending.contains_key(&(ino, lock.owner)) || (self.holder.decides(ino) && over())
    }

    /// Records that an owner is about to release locks, so that its next requests are decided after the release.
    fn begin_ending(&mut self, ino: u64, owner: LockHolder) {
        *self.ending.entry((ino, owner)).or_default() += 1;
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(request, answer) => self.answer(request, answer),
                Effect::Ask {
                    request,
                    ino,
                    lock,
                    how,
                } => {
                    let how = match how {
                        LockMode::Wait => v1::LockHow::LockWait,
                        LockMode::Try => v1::LockHow::LockTry,
                        LockMode::Test => v1::LockHow::LockTest,
                    };
                    self.queue.push_back(Op::Want(v1::LockWant {
                        ino,
                        request,
                        lock: Some((&lock).into()),
                        how: how.into(),
                    }));
                }
                Effect::Cancel { request, ino } => {
                    self.queue
                        .push_back(Op::Cancel(v1::LockCancel { ino, request }));
                }
                Effect::State(ino) => {
                    let (locks, seen) = self.holder.state(ino);
                    let locks = locks.iter().map(Into::into).collect();
                    self.queue
                        .push_back(Op::State(v1::LockState { ino, seen, locks }));
                }
            }
        }
    }

    fn answer(&mut self, request: u64, answer: LockAnswer) {
        let Some(asker) = self.askers.remove(&request) else {
            return;
        };
        let outcome = match answer {
            LockAnswer::Granted => match self.stale.get_mut(&asker.ino) {
                Some(stale) => return stale.askers.push(asker),
                None => Ok(None),
            },
            LockAnswer::Denied(by) => Ok(by),
            LockAnswer::Deadlock => Err(Errno::DEADLK),
            LockAnswer::TooMany => Err(Errno::NOLCK),
        };
        (asker.callback)(outcome);
    }

    /// Returns the messages to send now. If the server does not know this mount's locks yet, the first message lists the locks.
    fn next(&mut self) -> Vec<Op> {
        if self.broken {
            return Vec::new();
        }
        if !self.joined {
            let mut effects = Vec::new();
            let (delegated, locks) = self.holder.join(&mut effects);
            let locks = locks.iter().map(|(ino, lock)| v1::Lock {
                ino: *ino,
                ..lock.into()
            });
            // The join replaces all queued messages.
            self.queue.clear();
            self.queue.push_back(Op::Join(v1::LockJoin {
                delegated,
                locks: locks.collect(),
            }));
            self.carry_out(effects);
        }
        let count = self.queue.len().min(BATCH_MAX);
        let mut ops: Vec<Op> = self.queue.drain(..count).collect();
        if !ops.is_empty() {
            ops.push(Op::Renew(v1::Empty {}));
        }
        ops
    }

    /// Decides the late requests that no longer have a reason to wait.
    fn decide_late(&mut self) {
        let mut effects = Vec::new();
        for (request, ino, lock, how) in std::mem::take(&mut self.late) {
            if self.is_late(ino, &lock) {
                self.late.push((request, ino, lock, how));
            } else if self.askers.contains_key(&request) {
                self.holder.want(request, ino, lock, how, &mut effects);
            }
        }
        self.carry_out(effects);
    }
}

/// Lock that a program requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedLock {
    pub(crate) ino: u64,
    /// Open file through which the program requests the lock.
    pub(crate) handle: u64,
    pub(crate) lock: Lock,
    pub(crate) how: LockMode,
}

impl MountLocks {
    /// Sets the Linux kernel's cache, which the mount notifies about outdated pages.
    pub(crate) fn set_kernel(&self, kernel: impl KernelCache + Sync) {
        // Set once.
        let _ = self.kernel.set(Arc::new(kernel));
    }

    /// Waits until the Linux kernel has received the pending invalidations of a file.
    pub(super) fn wait_forgotten(&self, ino: u64) {
        self.forgetting.wait(ino);
    }

    /// Whether a program on this mount has taken locks of the file.
    pub(crate) fn knows(&self, ino: u64) -> bool {
        self.inner.lock().holder.knows(ino)
    }

    /// Removes and returns the owners that requested locks through an open file.
    fn take_used(&self, ino: u64, handle: u64) -> Vec<LockHolder> {
        let mut inner = self.inner.lock();
        let with = |used: &&(u64, u64, LockHolder)| (used.0, used.1) == (ino, handle);
        let from = inner.used.range((ino, handle, LockHolder::FIRST)..);
        let used: Vec<_> = from.take_while(with).copied().collect();
        for one in &used {
            inner.used.remove(one);
        }
        used.into_iter().map(|(_, _, owner)| owner).collect()
    }

    /// Records that a process has no locks of a file any more, whichever open file it requested them through.
    fn forget_used(&self, ino: u64, owner: LockHolder) {
        let mut inner = self.inner.lock();
        let from = inner.used.range((ino, 0, LockHolder::FIRST)..);
        let used = from.take_while(|used| used.0 == ino).copied();
        let used: Vec<_> = used.filter(|used| used.2 == owner).collect();
        for one in &used {
            inner.used.remove(one);
        }
    }

    /// Returns the number of the server's current stream.
    pub(crate) fn stream(&self) -> u64 {
        self.inner.lock().stream
    }

    /// Whether a process, or an open file, has locks of the file.
    fn has(&self, ino: u64, owner: LockHolder) -> bool {
        self.inner.lock().holder.has(ino, owner)
    }
}

impl Fs {
    /// Interrupts a program that waits for a lock. Does nothing if the program has its answer, or is about to get it.
    pub(crate) fn cancel_lock(self: &Arc<Self>, request: u64) {
        let mut inner = self.locks.inner.lock();
        let mut effects = Vec::new();
        let late = inner.late.len();
        inner.late.retain(|late| late.0 != request);
        let waited = inner.late.len() < late || inner.holder.cancel(request, &mut effects);
        let asker = if waited {
            inner.askers.remove(&request)
        } else {
            None
        };
        inner.carry_out(effects);
        self.send_locks(&mut inner);
        drop(inner);
        if let Some(asker) = asker {
            (asker.callback)(Err(Errno::INTR));
        }
    }

    /// Requests a lock for a program, or asks for the holder of a lock. The program gets its answer at once or later. Returns the number of
    /// the request if the program has to wait.
    pub(crate) fn lock(self: &Arc<Self>, wanted: WantedLock, callback: Callback) -> Option<u64> {
        let WantedLock {
            ino,
            handle,
            lock,
            how,
        } = wanted;
        let has_other_aliases = self.has_other_aliases(ino);
        let first = how != LockMode::Test && !self.locks.has(ino, lock.owner);
        let callback = match first && self.is_shared_memory(ino) {
            true => self.callback_if_alone(ino, lock, callback),
            false => callback,
        };
        let mut inner = self.locks.inner.lock();
        inner.last += 1;
        let request = inner.last;
        let asker = LockRequester {
            ino,
            lock,
            handle,
            callback,
        };
        inner.askers.insert(request, asker);
        if how != LockMode::Test {
            inner.used.insert((ino, handle, lock.owner));
        }
        let weaker = how != LockMode::Test && !lock.exclusive;
        let shown_first = has_other_aliases || !inner.holder.decides(ino);
        if weaker && shown_first && inner.holder.has_exclusive(ino, lock.owner) {
            // Other mounts get the writes that were made under the exclusive lock.
            inner.late.push((request, ino, lock, how));
            inner.begin_ending(ino, lock.owner);
            drop(inner);
            let fs = self.clone();
            self.backend.runtime.spawn_blocking(move || {
                fs.report(ino, deadline::serve(|| fs.make_visible(ino)));
                fs.has_ended(ino, lock.owner);
            });
            return Some(request);
        }
        if inner.is_late(ino, &lock) {
            inner.late.push((request, ino, lock, how));
            inner.queue.push_back(Op::Renew(v1::Empty {}));
        } else {
            let mut effects = Vec::new();
            inner.holder.want(request, ino, lock, how, &mut effects);
            inner.carry_out(effects);
        }
        self.send_locks(&mut inner);
        inner.askers.contains_key(&request).then_some(request)
    }

    /// Whether a file contains memory that programs share by `mmap`, as its name shows: SQLite's index of a write-ahead log. Mounts do not
    /// share memory with each other.
    fn is_shared_memory(&self, ino: u64) -> bool {
        let name = self.table.name_of(ino);
        name.is_some_and(|(_, name)| name.ends_with(b"-shm"))
    }

    /// Wraps `callback` so that the lock is granted only if no other mount has locks of the file. If two mounts lock the file at the same
    /// time, each checks after it has its lock, so at least one of the mounts is refused.
    fn callback_if_alone(self: &Arc<Self>, ino: u64, lock: Lock, callback: Callback) -> Callback {
        let fs = self.clone();
        Box::new(move |outcome| {
            if !matches!(outcome, Ok(None)) {
                return callback(outcome);
            }
            let runtime = fs.backend.runtime.clone();
            runtime.spawn_blocking(move || {
                let alone = deadline::serve(|| fs.locks_alone(ino));
                if alone.is_err() {
                    let _ = fs.unlock_now(ino, lock.owner, (lock.start, lock.end));
                }
                callback(alone.map(|()| None));
            });
        })
    }

    /// Returns an error if another mount has locks of a file.
    fn locks_alone(&self, ino: u64) -> Result<(), Errno> {
        if self.locks.inner.lock().holder.decides(ino) {
            return Ok(());
        }
        let content = false;
        let op = name_op::Op::GetAttr(v1::GetAttr { ino, content });
        let attr = self.backend.one(Caller::default(), op).and_then(attr_of);
        match attr {
            Ok(attr) if attr.locked => Err(Errno::AGAIN),
            Ok(_) => Ok(()),
            Err(error) => Err(Errno::from_raw_os_error(error.errno())),
        }
    }

    /// Releases the lock of a byte range for a program. Before the release, other mounts see the writes that this mount made under the
    /// lock.
    pub(crate) fn unlock(
        self: &Arc<Self>,
        ino: u64,
        owner: LockHolder,
        range: (u64, u64),
        callback: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        if !self.locks.has(ino, owner) {
            return callback(Ok(()));
        }
        if self.decides_alone(ino) {
            return callback(self.unlock_now(ino, owner, range));
        }
        let fs = self.clone();
        self.locks.inner.lock().begin_ending(ino, owner);
        self.backend.runtime.spawn_blocking(move || {
            let published = deadline::serve(|| fs.make_visible(ino));
            let done = fs.unlock_now(ino, owner, range);
            fs.has_ended(ino, owner);
            callback(done.and(published.map_err(|error| Errno::from_raw_os_error(error.errno()))));
        });
    }

    /// Whether the Linux kernel has several sets of cached pages of a file.
    fn has_other_aliases(&self, ino: u64) -> bool {
        let vnode = self.table.get(ino);
        vnode.is_some_and(|vnode| !vnode.state.lock().aliases().is_empty())
    }

    /// Whether a lock can be released at once: no other mount waits for the writes, and the Linux kernel has one set of cached pages.
    fn decides_alone(&self, ino: u64) -> bool {
        let decides = self.locks.inner.lock().holder.decides(ino);
        decides && !self.has_other_aliases(ino)
    }

    /// Publishes the writes made on this mount, so that the next holder of the lock sees them.
    fn make_visible(&self, ino: u64) -> Result<(), Error> {
        if let Some(vnode) = self.table.get(ino) {
            self.forget_aliases(&vnode);
        }
        if self.locks.inner.lock().holder.decides(ino) {
            return Ok(());
        }
        self.publish(ino)
    }

    fn report(&self, ino: u64, published: Result<(), Error>) {
        if let Err(error) = published {
            tracing::warn!(ino, "other mounts may read old bytes under a lock: {error}");
        }
    }

    fn has_ended(self: &Arc<Self>, ino: u64, owner: LockHolder) {
        let mut inner = self.locks.inner.lock();
        if let Some(count) = inner.ending.get_mut(&(ino, owner)) {
            *count -= 1;
            if *count == 0 {
                inner.ending.remove(&(ino, owner));
            }
        }
        inner.decide_late();
        self.send_locks(&mut inner);
    }

    fn unlock_now(
        self: &Arc<Self>,
        ino: u64,
        owner: LockHolder,
        range: (u64, u64),
    ) -> Result<(), Errno> {
        let mut inner = self.locks.inner.lock();
        let mut effects = Vec::new();
        let done = inner.holder.unlock(ino, owner, range, &mut effects);
        inner.carry_out(effects);
        self.send_locks(&mut inner);
        done.then_some(()).ok_or(Errno::NOLCK)
    }

    /// Releases the locks that a process has on a file it closed, whichever descriptor the locks were requested through.
    pub(crate) fn unlock_closed(
        self: &Arc<Self>,
        ino: u64,
        id: u64,
        callback: impl FnOnce() + Send + 'static,
    ) {
        let owner = LockHolder {
            mount: 0,
            space: LockSpace::Ranges,
            id,
        };
        self.locks.forget_used(ino, owner);
        if !self.locks.has(ino, owner) {
            return callback();
        }
        if self.decides_alone(ino) {
            let _ = self.unlock_now(ino, owner, (0, u64::MAX));
            return callback();
        }
        let fs = self.clone();
        self.locks.inner.lock().begin_ending(ino, owner);
        self.backend.runtime.spawn_blocking(move || {
            // The program's close continues here, so that its writes are sealed before others get the lock.
            callback();
            let close = || {
                fs.wait_for_close(ino);
                fs.make_visible(ino)
            };
            fs.report(ino, deadline::serve(close));
            let _ = fs.unlock_now(ino, owner, (0, u64::MAX));
            fs.has_ended(ino, owner);
        });
    }

    /// Releases the locks of an open file at its last close, and locks that processes requested through it and whose closes are not
    /// reported.
    pub(crate) fn unlock_released(self: &Arc<Self>, ino: u64, handle: u64, id: Option<u64>) {
        let file = id.map(|id| LockHolder {
            mount: 0,
            space: LockSpace::Files,
            id,
        });
        for owner in self.locks.take_used(ino, handle).into_iter().chain(file) {
            self.unlock(ino, owner, (0, u64::MAX), |_| {});
        }
    }

    /// Sends the queued messages to the server.
    fn send_locks(self: &Arc<Self>, inner: &mut MountLockState) {
        if inner.queue.is_empty() || std::mem::replace(&mut inner.sending, true) {
            return;
        }
        if !std::mem::replace(&mut inner.renewing, true) {
            self.backend.runtime.spawn(self.clone().renew());
        }
        self.backend.runtime.spawn(self.clone().say());
    }

    async fn renew(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RENEWAL).await;
            let mut inner = self.locks.inner.lock();
            if !inner.holder.is_empty() {
                inner.queue.push_back(Op::Renew(v1::Empty {}));
                self.send_locks(&mut inner);
            }
        }
    }

    async fn say(self: Arc<Self>) {
        loop {
            let (ops, stream) = {
                let mut inner = self.locks.inner.lock();
                let ops = inner.next();
                if ops.is_empty() {
                    inner.sending = false;
                    return;
                }
                (ops, inner.stream)
            };
            let joins = matches!(ops.first(), Some(Op::Join(_)));
            let requests = ops
                .into_iter()
                .map(|op| name_op::Op::Lock(v1::LockOp { op: Some(op) }));
            let sent = Instant::now();
            let caller = Caller::default();
            let answers = self.backend.apply_async(caller, requests.collect(), None);
            let refusal = |(at, answer): (usize, &Reply)| match answer {
                Reply::Empty(_) => None,
                Reply::Error(error) => Some((at, Errno::from_raw_os_error(error.errno))),
                _ => Some((at, Errno::PROTO)),
            };
            let refused = match answers.await {
                Ok(answers) => answers.iter().enumerate().find_map(refusal),
                Err(error) => {
                    tracing::debug!("the server takes no locks: {error}");
                    Some((0, Errno::IO))
                }
            };
            let mut inner = self.locks.inner.lock();
            if inner.stream != stream {
                // The message was sent during an earlier stream of the server and has to be repeated.
                continue;
            }
            inner.joined = refused.is_none();
            let Some(refused) = refused else {
                inner.valid = Some(sent + LEASE);
                inner.decide_late();
                continue;
            };
            // If the stream has ended in the meantime, later messages are refused as well, and nothing is lost.
            if joins && refused == (0, Errno::STALE) {
                self.lose(&mut inner);
            }
            // Until the server knows this mount's locks, its messages may be about locks that it has revoked since.
            inner.broken = true;
            inner.sending = false;
            self.backend.doubt();
            return;
        }
    }

    /// Drops locks that the server has given to other mounts, because this mount was disconnected for too long.
    fn lose(&self, inner: &mut MountLockState) {
        inner.valid = None;
        for (ino, lock) in inner.holder.lose() {
            let path = self.table.path(ino).unwrap_or_default();
            tracing::error!(
                path = %String::from_utf8_lossy(&path),
                process = lock.pid,
                "a lock is lost: the lease of this mount expired and other mounts may hold the lock"
            );
        }
    }

    /// Sends the locks of this mount to the server again, after a new stream of the server has begun.
    pub(super) fn rejoin_locks(self: &Arc<Self>) {
        let mut inner = self.locks.inner.lock();
        (inner.joined, inner.broken) = (false, false);
        inner.stream += 1;
        // A restarted server waits for all mounts that ever held locks: a mount without locks reports, too.
        if inner.renewing {
            inner.queue.push_back(Op::Renew(v1::Empty {}));
            self.send_locks(&mut inner);
        }
    }

    /// Reports to the server that the mount ends, so that other mounts need not wait until the server notices.
    pub(crate) fn leave_locks(&self) {
        if self.locks.inner.lock().renewing {
            let join = Op::Join(v1::LockJoin::default());
            let op = name_op::Op::Lock(v1::LockOp { op: Some(join) });
            let until = Some(Instant::now() + LEASE);
            let left = self.backend.apply_async(Caller::default(), vec![op], until);
            if let Err(error) = self.backend.runtime.block_on(left) {
                tracing::debug!(
                    "locks are released only when the lease of this mount expires: {error}"
                );
            }
        }
    }

    /// Handles a message of the server about locks. The Linux kernel has already received all earlier invalidations.
    pub(crate) fn on_lock_message(self: &Arc<Self>, news: &v1::LockNews, stream: u64) {
        let mut inner = self.locks.inner.lock();
        if inner.stream != stream {
            return;
        }
        let (ino, request, number) = (news.ino, news.request, news.number);
        let mut effects = Vec::new();
        match news.what() {
            What::Recall => {
                if inner.holder.on_recall(ino) {
                    self.give_back(ino);
                }
            }
            What::Delegated | What::Granted => {
                // The new holder sees the writes of others.
                match inner.stale.entry(ino) {
                    Entry::Vacant(none) => {
                        none.insert(Stale::default());
                        self.become_current(ino);
                    }
                    Entry::Occupied(mut stale) => stale.get_mut().again = true,
                }
                if news.what() == What::Delegated {
                    inner
                        .holder
                        .on_delegated(ino, request, number, &mut effects);
                    if let Some(ino) = inner.holder.table_to_return()
                        && inner.holder.on_recall(ino)
                    {
                        self.give_back(ino);
                    }
                } else {
                    inner.holder.on_granted(ino, request, number, &mut effects);
                }
            }
            What::Denied => {
                let by = news.by.as_ref().map(Lock::from);
                inner.holder.on_denied(request, by, &mut effects);
            }
            What::Publish | What::Locked => {}
        }
        inner.carry_out(effects);
        self.send_locks(&mut inner);
    }

    fn give_back(self: &Arc<Self>, ino: u64) {
        let fs = self.clone();
        self.backend.runtime.spawn_blocking(move || {
            fs.report(ino, deadline::serve(|| fs.publish(ino)));
            let mut inner = fs.locks.inner.lock();
            let mut effects = Vec::new();
            inner.holder.returned(ino, &mut effects);
            inner.carry_out(effects);
            fs.send_locks(&mut inner);
        });
    }

    fn become_current(self: &Arc<Self>, ino: u64) {
        let fs = self.clone();
        self.backend.runtime.spawn_blocking(move || {
            let (refreshed, stale) = loop {
                let refreshed = deadline::serve(|| fs.refresh(ino));
                let mut inner = fs.locks.inner.lock();
                let again = inner.stale.get_mut(&ino).map(|stale| &mut stale.again);
                if !again.is_some_and(std::mem::take) {
                    break (refreshed, inner.stale.remove(&ino));
                }
            };
            for asker in stale.unwrap_or_default().askers {
                let outcome = match &refreshed {
                    Err(error) => Err(Errno::from_raw_os_error(error.errno())),
                    Ok(()) if fs.is_outdated(&asker.lock, asker.handle) => Err(Errno::STALE),
                    Ok(()) => Ok(()),
                };
                if outcome.is_err() {
                    let range = (asker.lock.start, asker.lock.end);
                    let _ = fs.unlock_now(ino, asker.lock.owner, range);
                }
                (asker.callback)(outcome.map(|()| None));
            }
        });
    }

    /// Whether a lock would let a program read outdated bytes. A file that was opened directly for reading only, before it got locks,
    /// cannot show a later version. A lock of the whole file may protect anything, so it is not refused.
    fn is_outdated(&self, lock: &Lock, handle: u64) -> bool {
        !lock.exclusive && lock.owner.space == LockSpace::Ranges && self.has_old_version(handle)
    }

    /// Invalidates an inode's attributes in the Linux kernel's cache.
    pub(super) fn forget_attributes(&self, number: u64) {
        if let Some(kernel) = self.locks.kernel.get() {
            kernel.forget_attributes(number);
        }
    }

    /// Invalidates the Linux kernel's cached pages of an inode.
    pub(super) fn forget_pages(&self, number: u64) {
        if let Some(kernel) = self.locks.kernel.get() {
            kernel.forget_inode(number);
        }
    }

    /// Invalidates the cached pages of a file with several kernel inodes, like [`Self::forget_pages`]: each inode has pages of its own.
    pub(super) fn forget_aliases(&self, vnode: &CachedInode) {
        let aliases = vnode.state.lock().aliases();
        for alias in aliases {
            let ino = vnode.ino;
            self.forget_pages(InodeKey { ino, alias }.pack());
        }
    }

    /// Invalidates pages like [`Self::forget_aliases`], in the background, and without the alias that was used for the write.
    pub(super) fn forget_aliases_soon(&self, vnode: &CachedInode, but: u16) {
        for alias in vnode.state.lock().aliases() {
            let ino = vnode.ino;
            if alias != but {
                self.forget_pages_soon(InodeKey { ino, alias }.pack());
            }
        }
    }

    /// Publishes the writes made on this mount in the background, because another mount wants to write.
    pub(super) fn publish_soon(self: &Arc<Self>, ino: u64) {
        let fs = self.clone();
        self.backend
            .runtime
            .spawn_blocking(move || fs.report(ino, deadline::serve(|| fs.publish(ino))));
    }

    /// Invalidates pages like [`Self::forget_pages`], in the background, for operations during which the Linux kernel has pages locked.
    pub(super) fn forget_pages_soon(&self, number: u64) {
        if let Some(kernel) = self.locks.kernel.get().cloned() {
            let (forgetting, ino) = (self.locks.forgetting.clone(), InodeKey::unpack(number).ino);
            forgetting.begin(ino);
            self.backend.runtime.spawn_blocking(move || {
                kernel.forget_inode(number);
                forgetting.end(ino);
            });
        }
    }
}
