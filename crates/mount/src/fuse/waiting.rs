//! Requests of the Linux kernel that wait for a server or a node. If a program has to end, the module answers its waiting requests with
//! EINTR. The module reads `/proc` and answers the kernel.
//!
//! The Linux kernel reports signals by INTERRUPT requests. The FUSE library answers the first such request itself, with ENOSYS, and the
//! kernel sends no more. So a thread regularly examines the waiting programs, and answers EINTR to programs that have to end. The requested
//! operation continues; its outcome is dropped.

use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval at which the module examines waiting programs. A request that is answered sooner is never examined.
const PERIOD: Duration = Duration::from_millis(100);
/// Signals that a program may handle and that ask it to end: HUP, INT, QUIT, TERM.
const ENDING: u64 = bit(libc::SIGHUP) | bit(libc::SIGINT) | bit(libc::SIGQUIT) | bit(libc::SIGTERM);
/// Flag of a Linux task that is ending.
const PF_EXITING: u64 = 0x4;

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Reply to a request that can be an error.
pub(super) trait Refuse: Send + 'static {
    fn refuse(self, errno: fuser::Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => {
        $(impl Refuse for $reply {
            fn refuse(self, errno: fuser::Errno) {
                self.error(errno);
            }
        })*
    };
}

refuse!(
    fuser::ReplyAttr,
    fuser::ReplyCreate,
    fuser::ReplyData,
    fuser::ReplyDirectory,
    fuser::ReplyDirectoryPlus,
    fuser::ReplyEmpty,
    fuser::ReplyEntry,
    fuser::ReplyOpen,
    fuser::ReplyStatfs,
    fuser::ReplyWrite,
    fuser::ReplyXattr
);

/// Reply to a waiting request; the thread that takes the reply answers the request.
pub(super) struct WaitSlot<R>(Mutex<Option<R>>);

impl<R> WaitSlot<R> {
    /// Returns the reply, unless the request was answered already.
    pub(super) fn take(&self) -> Option<R> {
        self.0.lock().take()
    }

    /// Whether the request is not answered yet.
    pub(super) fn waits(&self) -> bool {
        self.0.lock().is_some()
    }
}

pub(super) trait Interrupt: Send + Sync {
    fn interrupt(&self);
}

impl<R: Refuse> Interrupt for WaitSlot<R> {
    fn interrupt(&self) {
        if let Some(reply) = self.take() {
            reply.refuse(fuser::Errno::EINTR);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct WaitingRequests(Arc<WaitingShared>);

#[derive(Debug, Default)]
struct WaitingShared {
    requests: Mutex<Requests>,
    /// Condition variable that is signalled when there is a first request, or the mount has ended.
    some: Condvar,
}

#[derive(Debug, Default)]
struct Requests {
    all: Vec<ThreadRequest>,
    watched: bool,
    over: bool,
}

/// A request and the thread of the program that made the request.
struct ThreadRequest {
    thread: u32,
    since: Instant,
    /// Whether every signal that the thread handles interrupts the request.
    by_any: bool,
    slot: Weak<dyn Interrupt>,
}

impl std::fmt::Debug for ThreadRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} since {:?}", self.thread, self.since)
    }
}

impl WaitingRequests {
    /// Adds a waiting request of a thread; requests of thread 0 cannot be interrupted.
    pub(super) fn enter<R: Refuse>(&self, thread: u32, reply: R) -> Arc<WaitSlot<R>> {
        self.enter_as(thread, false, reply)
    }

    /// Adds a request like [`Self::enter`] that every signal that the thread handles interrupts.
    pub(super) fn enter_for_any<R: Refuse>(&self, thread: u32, reply: R) -> Arc<WaitSlot<R>> {
        self.enter_as(thread, true, reply)
    }

    fn enter_as<R: Refuse>(&self, thread: u32, by_any: bool, reply: R) -> Arc<WaitSlot<R>> {
        let slot = Arc::new(WaitSlot(Mutex::new(Some(reply))));
        if thread == 0 {
            return slot;
        }
        let weak: Weak<WaitSlot<R>> = Arc::downgrade(&slot);
        self.watch_over(thread, by_any, weak);
        slot
    }

    /// Watches a waiting thread, for as long as its request can be interrupted: with `by_any` by every signal that the thread handles, else
    /// only by signals that end the thread.
    pub(super) fn watch_over(&self, thread: u32, by_any: bool, slot: Weak<dyn Interrupt>) {
        let asked = ThreadRequest {
            thread,
            since: Instant::now(),
            by_any,
            slot,
        };
        let mut requests = self.0.requests.lock();
        let first = requests.all.is_empty();
        requests.all.push(asked);
        if !std::mem::replace(&mut requests.watched, true) {
            let shared = self.0.clone();
            let watch = std::thread::Builder::new().name("interrupts".into());
            if let Err(error) = watch.spawn(move || shared.watch()) {
                requests.watched = false;
                tracing::warn!("programs can't be interrupted while they wait: {error}");
            }
        } else if first {
            self.0.some.notify_one();
        }
    }
}

impl Drop for WaitingRequests {
    fn drop(&mut self) {
        self.0.requests.lock().over = true;
        self.0.some.notify_one();
    }
}

impl WaitingShared {
    /// Watches the waiting threads until the mount ends.
    fn watch(&self) {
        loop {
            {
                let mut requests = self.requests.lock();
                while requests.all.is_empty() && !requests.over {
                    self.some.wait(&mut requests);
                }
                if requests.over {
                    return;
                }
            }
            std::thread::sleep(PERIOD);
            for (thread, by_any, slot) in self.old() {
                if is_ending(thread, by_any) {
                    slot.interrupt();
                }
            }
        }
    }

    /// Returns the requests that have waited for a while; drops requests that were answered.
    fn old(&self) -> Vec<(u32, bool, Arc<dyn Interrupt>)> {
        let mut requests = self.requests.lock();
        requests.all.retain(|asked| asked.slot.strong_count() > 0);
        let old = requests.all.iter().filter(|a| a.since.elapsed() >= PERIOD);
        old.filter_map(|a| Some((a.thread, a.by_any, a.slot.upgrade()?)))
            .collect()
    }
}

/// Whether a thread has to end: it is killed, has received a signal that asks it to end, is ending, or has ended.
fn is_ending(thread: u32, by_any: bool) -> bool {
    let read = |file| std::fs::read_to_string(format!("/proc/{thread}/{file}"));
    let (Ok(status), Ok(stat)) = (read("status"), read("stat")) else {
        return is_gone(thread);
    };
    is_asked_to_end(&status, by_any) || is_exiting(&stat)
}

/// Whether a thread has ended. `/proc` may hide the threads of other users.
fn is_gone(thread: u32) -> bool {
    let thread = i32::try_from(thread).ok();
    let thread = thread.and_then(rustix::process::Pid::from_raw);
    let exists = thread.map(rustix::process::test_kill_process);
    exists == Some(Err(rustix::io::Errno::SRCH))
}

/// Whether a pending signal asks a thread to end. Ignored and blocked signals do not count; the signals in `ENDING` count whether or not
/// the program handles them. A program that does not end continues by itself after the interruption.
fn is_asked_to_end(status: &str, by_any: bool) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok())
            .unwrap_or(0)
    };
    let own = mask("SigPnd:");
    // The kernel gives SIGKILL to every thread of a process that a signal ends, whichever signal it is.
    if own & bit(libc::SIGKILL) != 0 {
        return true;
    }
    let taken = !(mask("SigBlk:") | mask("SigIgn:"));
    let signals = if by_any {
        mask("SigCgt:") | ENDING
    } else {
        ENDING
    };
    (own | mask("ShdPnd:")) & taken & signals != 0
}

/// Whether a thread is ending, so that it closes its files and waits for them without a signal that could wake it.
fn is_exiting(stat: &str) -> bool {
    // The fields after the name, which may hold anything: state, parent, group, session, terminal, its group, flags.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let flags = fields.and_then(|fields| fields.split_whitespace().nth(6));
    let flags = flags.and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(own: u64, shared: u64, blocked: u64, ignored: u64) -> String {
        format!(
            "Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n"
        )
    }

    #[test]
    fn only_signals_that_end_program_interrupt_wait() {
        let (kill, int) = (bit(libc::SIGKILL), bit(libc::SIGINT));
        assert!(is_asked_to_end(&status(kill, 0, 0, 0), false));
        assert!(is_asked_to_end(&status(0, int, 0, 0), false));
        assert!(!is_asked_to_end(&status(0, int, int, 0), false));
        assert!(!is_asked_to_end(&status(0, int, 0, int), false));
        // A timer or the end of a child is no reason to fail.
        let others = bit(libc::SIGALRM) | bit(libc::SIGCHLD) | bit(libc::SIGWINCH);
        assert!(!is_asked_to_end(&status(others, others, 0, 0), false));
        assert!(!is_asked_to_end("", false));
        // A signal handler interrupts a wait for a lock: in this way a program limits its wait.
        let alarm = format!(
            "{}SigCgt:\t{:016x}\n",
            status(0, others, 0, 0),
            bit(libc::SIGALRM)
        );
        assert!(is_asked_to_end(&alarm, true) && !is_asked_to_end(&alarm, false));
        assert!(!is_asked_to_end(&status(0, others, 0, 0), true));
    }

    #[test]
    fn running_thread_is_not_reported_as_ending() {
        let me = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        assert!(!is_ending(me, true));
        assert!(is_exiting("7 (a) b) R 1 7 7 0 -1 4194308 0"));
        assert!(!is_exiting("7 (a) b) R 1 7 7 0 -1 4194304 0"));
        let ended = std::thread::spawn(|| rustix::thread::gettid().as_raw_pid().cast_unsigned());
        let ended = ended.join().unwrap();
        // The thread's number disappears a moment after it was joined.
        while !is_ending(ended, false) {
            std::thread::yield_now();
        }
    }
}
