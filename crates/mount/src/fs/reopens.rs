//! Opens that found their file removed, since another mount had replaced it after the kernel had looked the name up. The
//! kernel then looks the name up once more, asks for the rights of the file that it finds and opens it, and tells the program
//! `ESTALE` if that file was replaced as well. So the mount opens what the same thread looks up next along with the look-up,
//! again and again until that succeeds, and serves the kernel's open with it.

use super::object::Object;
use super::{Caller, Found, Fs, Key, Pace};
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidemill_wire::v1::Kind;

/// Opens that are known at most.
const REOPENS_MAX: usize = 64;
/// How long the kernel may take to come again.
const WAITS: Duration = Duration::from_secs(1);
/// How often a name is looked up that is replaced before its file is open.
const TRIES: u32 = 64;

/// The opens that are to come again.
#[derive(Debug, Default)]
pub(crate) struct Reopens {
    all: Mutex<VecDeque<Reopen>>,
    /// How many there are.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Reopen {
    thread: u32,
    until: Instant,
    /// The file that was looked up for it, with what it opens.
    found: Option<(u64, Arc<Object>)>,
}

impl Reopens {
    fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Reopen>) -> T) -> T {
        let mut all = self.all.lock();
        let now = Instant::now();
        all.retain(|one| one.until > now);
        let changed = change(&mut all);
        self.count.store(all.len(), Ordering::Relaxed);
        changed
    }

    fn of<T>(&self, thread: u32, of: impl FnOnce(&mut Reopen) -> Option<T>) -> Option<T> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.change(|all| all.iter_mut().find(|one| one.thread == thread).and_then(of))
    }

    fn enter(&self, thread: u32) {
        self.change(|all| {
            all.retain(|one| one.thread != thread);
            all.truncate(REOPENS_MAX - 1);
            all.push_front(Reopen {
                thread,
                until: Instant::now() + WAITS,
                found: None,
            });
        });
    }

    fn end(&self, thread: u32) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.change(|all| all.retain(|one| one.thread != thread));
        }
    }
}

impl Fs {
    /// A thread is told that its file is removed, or another one under another number: it looks the name up again.
    pub(super) fn comes_again(&self, caller: Caller) {
        if caller.pid == 0 {
            return;
        }
        self.reopens.enter(caller.pid);
        let reopens = Arc::clone(&self.reopens);
        self.backend.runtime.spawn(async move {
            tokio::time::sleep(WAITS).await;
            reopens.change(|_| ());
        });
    }

    /// An open to read has ended so.
    pub(super) fn reopen<T>(&self, caller: Caller, opened: &Result<T, Error>) {
        match opened {
            Ok(_) => self.reopens.end(caller.pid),
            Err(error) if error.is(Errno::STALE) => self.comes_again(caller),
            Err(_) => {}
        }
    }

    /// Whether a thread is to open again what it looks up.
    pub(super) fn reopens(&self, caller: Caller) -> bool {
        self.reopens.of(caller.pid, |_| Some(())).is_some()
    }

    /// Looks a name up, and opens the file so that it can be read though it is removed then.
    pub(super) fn lookup_to_reopen(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
    ) -> Result<Found, Error> {
        let mut tries = 0;
        loop {
            let found = self.lookup_once(caller, parent, name, Pace::MayWait)?;
            let Key { ino, .. } = found.key;
            if found.key.is_special() || found.attr.kind() != Kind::File {
                return Ok(found);
            }
            tries += 1;
            match self.reading_object(caller, &self.node(ino), Pace::MayWait) {
                Ok(object) => {
                    self.reopens.of(caller.pid, |one| {
                        one.found = Some((ino, object));
                        None::<()>
                    });
                    return Ok(found);
                }
                Err(error) if error.is(Errno::STALE) && tries < TRIES => self.forget(found.key, 1),
                // Opening it tells why it can't be read.
                Err(_) => return Ok(found),
            }
        }
    }

    /// What was opened for a thread along with a file that is removed now.
    pub(super) fn reopened(&self, caller: Caller, ino: u64) -> Option<Arc<Object>> {
        let found = |one: &mut Reopen| one.found.clone().filter(|(found, _)| *found == ino);
        let (_, object) = self.reopens.of(caller.pid, found)?;
        Some(object)
    }
}
