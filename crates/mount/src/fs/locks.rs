//! Locks of programs here (`flock`, `fcntl`) and their agreement with those on other mounts, which
//! [`tidemill_core::locks`] decides: this carries messages to the server and answers to programs.
//!
//! Messages go to the server one after the other, in the order in which they arose. What the server says comes by
//! its stream, after the changes that were made before it, so that who gets a lock sees what the one before has done.
//! See `docs/decisions/0013-locks-between-mounts.md`.

use super::backend::attr_of;
use super::table::{Key, Node};
use super::watch::Kernel;
use super::{Caller, Fs, patience};
use crate::error::Error;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidemill_core::locks::{Answer, Effect, Holder, How, Lock, Owner, Space};
use tidemill_wire::v1::{
    self, lock_news::What, lock_op::Op, name_op, name_result::Result as Reply,
};

/// How long this mount may decide about locks after the server has heard from it. The server gives them to others no
/// sooner than 10 s after it has lost the mount's stream.
const LEASE: Duration = Duration::from_secs(8);
/// How often the server is told that the mount is there, if it has locks.
const RENEWAL: Duration = Duration::from_secs(2);
/// Messages sent with one request.
const BATCH_MAX: usize = 256;

/// What a program is told: nothing, or who hinders it; or why not.
pub(crate) type Told = Box<dyn FnOnce(Result<Option<Lock>, Errno>) + Send>;

/// A program that asked for a lock.
struct Asker {
    ino: u64,
    /// The lock and the open file it was asked with.
    lock: Lock,
    handle: u64,
    told: Told,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    inner: Mutex<Inner>,
    kernel: OnceLock<Arc<dyn Kernel + Sync>>,
    forgetting: Arc<Forgetting>,
}

/// How many times the kernel is still to be told that its pages of a file are old.
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
        let until = patience::deadline();
        while counts.contains_key(&ino) {
            if patience::wait(&self.fewer, &mut counts, until) {
                tracing::warn!(
                    ino,
                    "the Linux kernel is busy: reads under a lock may be old"
                );
                return;
            }
        }
    }
}

impl std::fmt::Debug for Locks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locks").finish_non_exhaustive()
    }
}

/// A file that is being looked at.
#[derive(Default)]
struct Stale {
    /// Who has a lock of it and is not told before.
    askers: Vec<Asker>,
    /// It has to be looked at again: what was seen may be from before the last lock was given.
    again: bool,
}

#[derive(Default)]
struct Inner {
    holder: Holder,
    askers: BTreeMap<u64, Asker>,
    last: u64,
    /// Messages to the server.
    queue: VecDeque<Op>,
    sending: bool,
    /// Whether the server knows what there is here.
    joined: bool,
    /// Whether the server is told now and then that this mount is there.
    renewing: bool,
    /// Until when it is decided here about what was lent.
    valid: Option<Instant>,
    /// What is not decided because that is over, or the one who asks is still giving free what it had.
    late: Vec<(u64, u64, Lock, How)>,
    /// Those whose locks are about to be free. The kernel may call the next one the same.
    ending: BTreeMap<(u64, Owner), usize>,
    /// Files of which programs here may know less than others wrote.
    stale: BTreeMap<u64, Stale>,
    /// How many streams of the server there were: what an earlier one said counts no more.
    stream: u64,
    /// The server knows less than was said. It has to be said anew, when a new stream has begun.
    broken: bool,
    /// The open files that locks were asked with, and by whom.
    used: BTreeSet<(u64, u64, Owner)>,
}

impl Inner {
    /// Whether a request can't be decided, or asked for, yet.
    fn is_late(&self, ino: u64, lock: &Lock) -> bool {
        let over = || self.valid.is_none_or(|until| until <= Instant::now());
        self.ending.contains_key(&(ino, lock.owner)) || (self.holder.decides(ino) && over())
    }

    /// An owner is about to give locks free: what it asks for next comes after that.
    fn begin_ending(&mut self, ino: u64, owner: Owner) {
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
                        How::Wait => v1::LockHow::LockWait,
                        How::Try => v1::LockHow::LockTry,
                        How::Test => v1::LockHow::LockTest,
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

    fn answer(&mut self, request: u64, answer: Answer) {
        let Some(asker) = self.askers.remove(&request) else {
            return;
        };
        let outcome = match answer {
            Answer::Granted => match self.stale.get_mut(&asker.ino) {
                Some(stale) => return stale.askers.push(asker),
                None => Ok(None),
            },
            Answer::Denied(by) => Ok(by),
            Answer::Deadlock => Err(Errno::DEADLK),
            Answer::TooMany => Err(Errno::NOLCK),
        };
        (asker.told)(outcome);
    }

    /// The messages to be sent now. If the server has to know first what there is here, that.
    fn next(&mut self) -> Vec<Op> {
        if self.broken {
            return Vec::new();
        }
        if !self.joined {
            let mut effects = Vec::new();
            let (lent, locks) = self.holder.join(&mut effects);
            let locks = locks.iter().map(|(ino, lock)| v1::Lock {
                ino: *ino,
                ..lock.into()
            });
            // Whatever there was to be said is said by this.
            self.queue.clear();
            self.queue.push_back(Op::Join(v1::LockJoin {
                lent,
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

    /// Decides what had to wait, if it has no longer.
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

/// A lock that a program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) ino: u64,
    /// The open file that it is asked with.
    pub(crate) handle: u64,
    pub(crate) lock: Lock,
    pub(crate) how: How,
}

impl Locks {
    /// To be told which pages are not current any more.
    pub(crate) fn set_kernel(&self, kernel: impl Kernel + Sync) {
        // Set once.
        let _ = self.kernel.set(Arc::new(kernel));
    }

    /// Waits until the kernel has been told what it was to be told of a file soon.
    pub(super) fn wait_forgotten(&self, ino: u64) {
        self.forgetting.wait(ino);
    }

    /// Whether locks of the file were taken here.
    pub(crate) fn knows(&self, ino: u64) -> bool {
        self.inner.lock().holder.knows(ino)
    }

    /// Takes who asked for locks with an open file.
    fn take_used(&self, ino: u64, handle: u64) -> Vec<Owner> {
        let mut inner = self.inner.lock();
        let with = |used: &&(u64, u64, Owner)| (used.0, used.1) == (ino, handle);
        let from = inner.used.range((ino, handle, Owner::FIRST)..);
        let used: Vec<_> = from.take_while(with).copied().collect();
        for one in &used {
            inner.used.remove(one);
        }
        used.into_iter().map(|(_, _, owner)| owner).collect()
    }

    /// A process has no locks of a file any more, whichever open file it had them with.
    fn forget_used(&self, ino: u64, owner: Owner) {
        let mut inner = self.inner.lock();
        let from = inner.used.range((ino, 0, Owner::FIRST)..);
        let used = from.take_while(|used| used.0 == ino).copied();
        let used: Vec<_> = used.filter(|used| used.2 == owner).collect();
        for one in &used {
            inner.used.remove(one);
        }
    }

    /// The server's stream that is heard now.
    pub(crate) fn stream(&self) -> u64 {
        self.inner.lock().stream
    }

    /// Whether a process, or an open file, has locks of the file.
    fn has(&self, ino: u64, owner: Owner) -> bool {
        self.inner.lock().holder.has(ino, owner)
    }
}

impl Fs {
    /// A program that waits for a lock is interrupted; nothing happens if it has been told, or is about to be.
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
            (asker.told)(Err(Errno::INTR));
        }
    }

    /// A program wants a lock, or to know who has it; it is told at once or later. Gives the number of its request if
    /// it has to wait.
    pub(crate) fn lock(self: &Arc<Self>, wanted: Wanted, told: Told) -> Option<u64> {
        let Wanted {
            ino,
            handle,
            lock,
            how,
        } = wanted;
        let has_twins = self.has_twins(ino);
        let first = how != How::Test && !self.locks.has(ino, lock.owner);
        let told = match first && self.is_shared_memory(ino) {
            true => self.told_if_alone(ino, lock, told),
            false => told,
        };
        let mut inner = self.locks.inner.lock();
        inner.last += 1;
        let request = inner.last;
        let asker = Asker {
            ino,
            lock,
            handle,
            told,
        };
        inner.askers.insert(request, asker);
        if how != How::Test {
            inner.used.insert((ino, handle, lock.owner));
        }
        let weaker = how != How::Test && !lock.exclusive;
        let shown_first = has_twins || !inner.holder.decides(ino);
        if weaker && shown_first && inner.holder.has_exclusive(ino, lock.owner) {
            // Others get what was written under the exclusive lock.
            inner.late.push((request, ino, lock, how));
            inner.begin_ending(ino, lock.owner);
            drop(inner);
            let fs = self.clone();
            self.backend.runtime.spawn_blocking(move || {
                fs.report(ino, patience::serve(|| fs.make_visible(ino)));
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

    /// Whether a file holds what programs share by mapping it into their memory, by its name: SQLite's index of a write-ahead
    /// log. Mounts share no memory.
    fn is_shared_memory(&self, ino: u64) -> bool {
        let name = self.table.name_of(ino);
        name.is_some_and(|(_, name)| name.ends_with(b"-shm"))
    }

    /// As `told`, but that a lock was granted only if no other mount has locks of the file. Of two mounts that lock it at the
    /// same time each looks after it has its lock, so that one of them is refused at least.
    fn told_if_alone(self: &Arc<Self>, ino: u64, lock: Lock, told: Told) -> Told {
        let fs = self.clone();
        Box::new(move |outcome| {
            if !matches!(outcome, Ok(None)) {
                return told(outcome);
            }
            let runtime = fs.backend.runtime.clone();
            runtime.spawn_blocking(move || {
                let alone = patience::serve(|| fs.locks_alone(ino));
                if alone.is_err() {
                    let _ = fs.unlock_now(ino, lock.owner, (lock.start, lock.end));
                }
                told(alone.map(|()| None));
            });
        })
    }

    /// Whether only this mount has locks of a file.
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

    /// A program gives bytes of a file free. Others see first what was written here under the lock.
    pub(crate) fn unlock(
        self: &Arc<Self>,
        ino: u64,
        owner: Owner,
        range: (u64, u64),
        told: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        if !self.locks.has(ino, owner) {
            return told(Ok(()));
        }
        if self.decides_alone(ino) {
            return told(self.unlock_now(ino, owner, range));
        }
        let fs = self.clone();
        self.locks.inner.lock().begin_ending(ino, owner);
        self.backend.runtime.spawn_blocking(move || {
            let published = patience::serve(|| fs.make_visible(ino));
            let done = fs.unlock_now(ino, owner, range);
            fs.has_ended(ino, owner);
            told(done.and(published.map_err(|error| Errno::from_raw_os_error(error.errno()))));
        });
    }

    /// Whether the kernel has pages of a file more than once.
    fn has_twins(&self, ino: u64) -> bool {
        let node = self.table.get(ino);
        node.is_some_and(|node| !node.state.lock().twins().is_empty())
    }

    /// Whether a lock can be given free at once: nobody elsewhere waits for what was written, and the kernel has it once.
    fn decides_alone(&self, ino: u64) -> bool {
        let decides = self.locks.inner.lock().holder.decides(ino);
        decides && !self.has_twins(ino)
    }

    /// What was written here is to be seen by whoever gets the lock next.
    fn make_visible(&self, ino: u64) -> Result<(), Error> {
        if let Some(node) = self.table.get(ino) {
            self.forget_twins(&node);
        }
        if self.locks.inner.lock().holder.decides(ino) {
            return Ok(());
        }
        self.publish(ino)
    }

    fn report(&self, ino: u64, published: Result<(), Error>) {
        if let Err(error) = published {
            tracing::warn!(ino, "others may read old bytes under a lock: {error}");
        }
    }

    fn has_ended(self: &Arc<Self>, ino: u64, owner: Owner) {
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
        owner: Owner,
        range: (u64, u64),
    ) -> Result<(), Errno> {
        let mut inner = self.locks.inner.lock();
        let mut effects = Vec::new();
        let done = inner.holder.unlock(ino, owner, range, &mut effects);
        inner.carry_out(effects);
        self.send_locks(&mut inner);
        done.then_some(()).ok_or(Errno::NOLCK)
    }

    /// A process closed a file: its locks are free, whichever descriptor they were taken by.
    pub(crate) fn unlock_closed(
        self: &Arc<Self>,
        ino: u64,
        id: u64,
        told: impl FnOnce() + Send + 'static,
    ) {
        let owner = Owner {
            mount: 0,
            space: Space::Ranges,
            id,
        };
        self.locks.forget_used(ino, owner);
        if !self.locks.has(ino, owner) {
            return told();
        }
        if self.decides_alone(ino) {
            let _ = self.unlock_now(ino, owner, (0, u64::MAX));
            return told();
        }
        let fs = self.clone();
        self.locks.inner.lock().begin_ending(ino, owner);
        self.backend.runtime.spawn_blocking(move || {
            // The program's close goes on, so that what it has written is sealed before others get the lock.
            told();
            let close = || {
                fs.hear_close(ino);
                fs.make_visible(ino)
            };
            fs.report(ino, patience::serve(close));
            let _ = fs.unlock_now(ino, owner, (0, u64::MAX));
            fs.has_ended(ino, owner);
        });
    }

    /// An open file is gone: what it had locked, and what a process had locked with it whose closing is not told.
    pub(crate) fn unlock_released(self: &Arc<Self>, ino: u64, handle: u64, id: Option<u64>) {
        let file = id.map(|id| Owner {
            mount: 0,
            space: Space::Files,
            id,
        });
        for owner in self.locks.take_used(ino, handle).into_iter().chain(file) {
            self.unlock(ino, owner, (0, u64::MAX), |_| {});
        }
    }

    /// Sends what there is to be said to the server.
    fn send_locks(self: &Arc<Self>, inner: &mut Inner) {
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
                // What was said to the server's stream before, it has to be told again.
                continue;
            }
            inner.joined = refused.is_none();
            let Some(refused) = refused else {
                inner.valid = Some(sent + LEASE);
                inner.decide_late();
                continue;
            };
            // What comes after it is refused as well if the stream has ended meanwhile: nothing is lost then.
            if joins && refused == (0, Errno::STALE) {
                self.lose(&mut inner);
            }
            // What the server says until it knows what there is here may be of what it has taken back since.
            inner.broken = true;
            inner.sending = false;
            self.backend.doubt();
            return;
        }
    }

    /// The server has given this mount's locks to others: it was away for too long.
    fn lose(&self, inner: &mut Inner) {
        inner.valid = None;
        for (ino, lock) in inner.holder.lose() {
            let path = self.table.path(ino).unwrap_or_default();
            tracing::error!(
                path = %String::from_utf8_lossy(&path),
                process = lock.pid,
                "a lock is lost: the server had not heard of this mount for too long and others may have it"
            );
        }
    }

    /// The server's stream has begun anew.
    pub(super) fn rejoin_locks(self: &Arc<Self>) {
        let mut inner = self.locks.inner.lock();
        (inner.joined, inner.broken) = (false, false);
        inner.stream += 1;
        // A server that starts anew waits for all that ever had locks: whoever has none any more says so, too.
        if inner.renewing {
            inner.queue.push_back(Op::Renew(v1::Empty {}));
            self.send_locks(&mut inner);
        }
    }

    /// The mount ends: others need not wait until the server notices.
    pub(crate) fn leave_locks(&self) {
        if self.locks.inner.lock().renewing {
            let join = Op::Join(v1::LockJoin::default());
            let op = name_op::Op::Lock(v1::LockOp { op: Some(join) });
            let until = Some(Instant::now() + LEASE);
            let left = self.backend.apply_async(Caller::default(), vec![op], until);
            if let Err(error) = self.backend.runtime.block_on(left) {
                tracing::debug!("locks are free when the server notices: {error}");
            }
        }
    }

    /// What the server says about locks; the kernel has been told of all changes before.
    pub(crate) fn on_lock_news(self: &Arc<Self>, news: &v1::LockNews, stream: u64) {
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
            What::Lent | What::Granted => {
                // Who gets it sees what others wrote.
                match inner.stale.entry(ino) {
                    Entry::Vacant(none) => {
                        none.insert(Stale::default());
                        self.become_current(ino);
                    }
                    Entry::Occupied(mut stale) => stale.get_mut().again = true,
                }
                if news.what() == What::Lent {
                    inner.holder.on_lent(ino, request, number, &mut effects);
                    if let Some(ino) = inner.holder.one_too_many()
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
            fs.report(ino, patience::serve(|| fs.publish(ino)));
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
                let refreshed = patience::serve(|| fs.refresh(ino));
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
                (asker.told)(outcome.map(|()| None));
            }
        });
    }

    /// Whether somebody would read what is old under a lock: of a file that is open in place for reading only, and was
    /// before it had locks, a later version can't be shown. A lock of the whole file may be about anything.
    fn is_outdated(&self, lock: &Lock, handle: u64) -> bool {
        !lock.exclusive && lock.owner.space == Space::Ranges && self.has_old_version(handle)
    }

    /// The kernel is to ask for an inode's attributes again.
    pub(super) fn forget_attributes(&self, number: u64) {
        if let Some(kernel) = self.locks.kernel.get() {
            kernel.forget_attributes(number);
        }
    }

    /// Tells the kernel that its pages of an inode are old.
    pub(super) fn forget_pages(&self, number: u64) {
        if let Some(kernel) = self.locks.kernel.get() {
            kernel.forget_inode(number);
        }
    }

    /// As [`Self::forget_pages`], of a file for which it has several inodes: each has pages of its own.
    pub(super) fn forget_twins(&self, node: &Node) {
        let twins = node.state.lock().twins();
        for alias in twins {
            let ino = node.ino;
            self.forget_pages(Key { ino, alias }.pack());
        }
    }

    /// As [`Self::forget_twins`], soon, and not those of the alias that was written by.
    pub(super) fn forget_twins_soon(&self, node: &Node, but: u16) {
        for alias in node.state.lock().twins() {
            let ino = node.ino;
            if alias != but {
                self.forget_pages_soon(Key { ino, alias }.pack());
            }
        }
    }

    /// Another mount wants to write.
    pub(super) fn publish_soon(self: &Arc<Self>, ino: u64) {
        let fs = self.clone();
        self.backend
            .runtime
            .spawn_blocking(move || fs.report(ino, patience::serve(|| fs.publish(ino))));
    }

    /// As [`Self::forget_pages`], soon. For what the kernel waits for itself: it holds pages meanwhile.
    pub(super) fn forget_pages_soon(&self, number: u64) {
        if let Some(kernel) = self.locks.kernel.get().cloned() {
            let (forgetting, ino) = (self.locks.forgetting.clone(), Key::unpack(number).ino);
            forgetting.begin(ino);
            self.backend.runtime.spawn_blocking(move || {
                kernel.forget_inode(number);
                forgetting.end(ino);
            });
        }
    }
}
