//! Limits on the work of one request, and limits on the simultaneous database accesses of users.
//!
//! An ordinary user may make any request within the user's rights. A [`Budget`] ends a request that looks up or answers too much;
//! operations before the limit keep their results. [`AccessLimits`] prevent one user's requests from occupying all connections.

use super::fault::Fault;
use super::vnode::Caller;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_wire::MESSAGE_BYTES_MAX;
use tokio::sync::Notify;

/// Number of encoded bytes of results after which no further operation of a user's request is executed.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Number of encoded bytes of results for daemons of the cluster: a longer message could not be delivered.
const ADMINISTRATOR_ANSWER_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (4 << 20);
/// Maximum total cost of the lookups of one request.
const LOOK_UPS_MAX: u64 = 1_000_000;
/// Maximum total cost of the lookups of one job script.
const SCRIPT_LOOK_UPS_MAX: u64 = 100_000_000;
/// Cost of looking up one component of a path: one request can contain 100 000 components.
pub const COMPONENT: u64 = 10;
/// Cost of looking up one directory on the path from an inode up to the root.
pub const UPWARDS: u64 = 2;
/// Time after which no further operation of a user's request starts. The cost of lookups ends requests much earlier, unless the machine is
/// very busy.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Remaining work that one request may cause.
#[derive(Debug)]
pub struct Budget {
    bytes: Cell<usize>,
    look_ups: Cell<u64>,
    until: Option<Instant>,
}

impl Budget {
    /// Returns the budget of a request by this caller.
    pub fn of(caller: &Caller) -> Self {
        if caller.administrator {
            return Self {
                bytes: Cell::new(ADMINISTRATOR_ANSWER_BYTES_MAX),
                ..Self::unbounded()
            };
        }
        Self {
            bytes: Cell::new(ANSWER_BYTES_MAX),
            look_ups: Cell::new(LOOK_UPS_MAX),
            until: Some(Instant::now() + TIME_MAX),
        }
    }

    /// Returns a budget without limits, for the server's own work, which is limited in other ways.
    pub(crate) fn unbounded() -> Self {
        Self {
            bytes: Cell::new(usize::MAX),
            look_ups: Cell::new(u64::MAX),
            until: None,
        }
    }

    /// Returns the budget of a user's job script, which may name a million files.
    pub fn of_script() -> Self {
        Self {
            look_ups: Cell::new(SCRIPT_LOOK_UPS_MAX),
            ..Self::unbounded()
        }
    }

    /// Adds the cost of a lookup. After one lookup has failed, all further lookups fail.
    ///
    /// # Errors
    /// If the request has used up its budget for lookups.
    pub fn look_up(&self, cost: u64) -> Result<(), Fault> {
        let left = self.look_ups.get().saturating_sub(cost);
        self.look_ups.set(left);
        if left == 0 {
            Err(Fault::TooMuch)
        } else {
            Ok(())
        }
    }

    /// Adds the size of an encoded result in bytes.
    pub fn answered(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }

    /// Checks that the request may execute another operation.
    ///
    /// # Errors
    /// If the request has used up its bytes of results or its time.
    pub fn next(&self) -> Result<(), Fault> {
        let over = self.until.is_some_and(|until| Instant::now() >= until);
        if over || self.bytes.get() == 0 {
            return Err(Fault::TooMuch);
        }
        Ok(())
    }
}

/// Limits on the number of ordinary users' simultaneous accesses: one limit for all users together, and one limit for each user.
#[derive(Debug)]
pub struct AccessLimits {
    all_max: usize,
    each_max: usize,
    taken: Mutex<TurnCounts>,
    /// Wakes waiting threads outside the runtime when an access ends.
    freed: Condvar,
    /// Wakes waiting asynchronous tasks when an access ends.
    signal: Notify,
}

#[derive(Debug, Default)]
struct TurnCounts {
    all: usize,
    each: HashMap<u32, usize>,
}

/// Permission for one access, which ends when this value is dropped.
#[derive(Debug)]
pub struct BudgetTurn {
    shares: Arc<AccessLimits>,
    uid: u32,
}

impl AccessLimits {
    /// Returns limits of `all_max` simultaneous accesses of all ordinary users together and `each_max` of each user.
    pub fn new(all_max: usize, each_max: usize) -> Arc<Self> {
        Arc::new(Self {
            all_max,
            each_max,
            taken: Mutex::default(),
            freed: Condvar::new(),
            signal: Notify::new(),
        })
    }

    /// Waits until the caller may have another access; daemons of the cluster need no permission.
    pub async fn take(self: &Arc<Self>, caller: &Caller) -> Option<BudgetTurn> {
        if caller.administrator {
            return None;
        }
        loop {
            let signal = self.signal.notified();
            tokio::pin!(signal);
            signal.as_mut().enable();
            if let Some(share) = self.try_take(&mut self.taken.lock(), caller.uid) {
                return Some(share);
            }
            signal.await;
        }
    }

    /// Waits as [`Self::take`] does, for threads outside the runtime.
    pub(crate) fn take_blocking(self: &Arc<Self>, caller: &Caller) -> Option<BudgetTurn> {
        if caller.administrator {
            return None;
        }
        let mut taken = self.taken.lock();
        loop {
            if let Some(share) = self.try_take(&mut taken, caller.uid) {
                return Some(share);
            }
            self.freed.wait(&mut taken);
        }
    }

    /// Takes permission for a user's access at once, if the limits allow another access. Root only needs to meet the limit for all users.
    pub fn enter(self: &Arc<Self>, uid: u32) -> Option<BudgetTurn> {
        let mut taken = self.taken.lock();
        if uid == 0 && taken.all < self.all_max {
            return Some(self.add(&mut taken, uid));
        }
        self.try_take(&mut taken, uid)
    }

    fn try_take(self: &Arc<Self>, taken: &mut TurnCounts, uid: u32) -> Option<BudgetTurn> {
        let own = taken.each.get(&uid).copied().unwrap_or(0);
        if taken.all >= self.all_max || own >= self.each_max {
            return None;
        }
        Some(self.add(taken, uid))
    }

    fn add(self: &Arc<Self>, taken: &mut TurnCounts, uid: u32) -> BudgetTurn {
        taken.all += 1;
        *taken.each.entry(uid).or_default() += 1;
        let shares = self.clone();
        BudgetTurn { shares, uid }
    }

    /// Returns whether any user has an access in progress.
    pub fn any(&self) -> bool {
        self.taken.lock().all > 0
    }
}

impl Drop for BudgetTurn {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock();
        taken.all -= 1;
        let own = taken.each.get(&self.uid).copied().unwrap_or(1) - 1;
        if own == 0 {
            taken.each.remove(&self.uid);
        } else {
            taken.each.insert(self.uid, own);
        }
        drop(taken);
        self.shares.freed.notify_all();
        self.shares.signal.notify_waiters();
    }
}

/// Runs long work on this thread, and lets other asynchronous tasks of the thread continue on another thread.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::{Names, NamesRequest, SqliteNames, ids};
    use prost::Message;
    use rustix::io::Errno;
    use std::sync::mpsc;
    use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

    fn user(uid: u32) -> Caller {
        Caller {
            uid,
            ..Caller::default()
        }
    }

    fn names() -> (tempfile::TempDir, SqliteNames) {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (7, 7)).unwrap();
        (directory, names)
    }

    fn apply(names: &SqliteNames, caller: Caller, ops: Vec<Op>) -> Vec<v1::NameResult> {
        let ops = ops.into_iter().map(|op| v1::NameOp { op: Some(op) });
        let request = NamesRequest {
            caller,
            ops: ops.collect(),
            ..NamesRequest::default()
        };
        names.apply_blocking(request).unwrap()
    }

    /// Creates symbolic links in the root with these names and targets.
    fn link_all(names: &SqliteNames, links: &[(String, String)]) {
        let count = u32::try_from(links.len()).unwrap();
        let reserve = move |db: &_| ids::reserve_for(db, &Caller::root(), count, 0);
        let (first, _) = names.database().write_blocking(reserve).unwrap();
        let link = |(ino, (name, target)): (u64, &(String, String))| {
            Op::Create(v1::Create {
                parent: 1,
                name: name.as_bytes().to_vec(),
                target: target.as_bytes().to_vec(),
                kind: Kind::Symlink.into(),
                ino,
                ..v1::Create::default()
            })
        };
        let made = apply(
            names,
            Caller::root(),
            (first..).zip(links).map(link).collect(),
        );
        let is_made = |one: &v1::NameResult| matches!(one.result, Some(Answer::Entry(_)));
        assert!(made.len() == links.len() && made.iter().all(is_made));
    }

    fn is_too_much(result: &v1::NameResult) -> bool {
        matches!(&result.result, Some(Answer::Error(error)) if error.errno == Errno::AGAIN.raw_os_error())
    }

    #[test]
    fn request_with_too_large_answer_ends_with_page_that_continues() {
        let (_directory, names) = names();
        let target = "x/".repeat(2000);
        let links: Vec<_> = (0..1500)
            .map(|number| (format!("{number:0200}"), target.clone()))
            .collect();
        link_all(&names, &links);
        let list = |after: &[u8]| {
            Op::ReadDir(v1::ReadDir {
                ino: 1,
                after: after.to_vec(),
                limit: 4096,
            })
        };
        let results = apply(&names, user(7), vec![list(b""); 2000]);
        let bytes: usize = results.iter().map(Message::encoded_len).sum();
        assert!(bytes <= ANSWER_BYTES_MAX + (4 << 20), "{bytes}");
        let (last, before) = results.split_last().unwrap();
        assert!(is_too_much(last) && !before.is_empty());
        assert!(!before.iter().any(is_too_much));
        // The whole listing arrives page by page.
        let (mut found, mut after) = (Vec::new(), Vec::new());
        loop {
            let page = apply(&names, user(7), vec![list(&after)]).remove(0);
            assert!(page.encoded_len() < 4 << 20);
            let Some(Answer::Entries(page)) = page.result else {
                panic!("no page")
            };
            after = page.entries.last().unwrap().name.clone();
            found.extend(page.entries);
            if page.end {
                break;
            }
        }
        found.retain(|entry| !entry.target.is_empty());
        assert_eq!(found.len(), links.len());
    }

    #[test]
    fn request_with_too_many_lookups_fails() {
        let (_directory, names) = names();
        // Each link leads to the next, 800 steps later.
        let links: Vec<_> = (0..20)
            .map(|number| match number {
                19 => ("L19".to_owned(), "/".to_owned()),
                _ => (
                    format!("L{number}"),
                    format!("{}L{}", "./".repeat(800), number + 1),
                ),
            })
            .collect();
        link_all(&names, &links);
        let resolve = Op::Resolve(v1::Resolve {
            path: b"/L0".to_vec(),
            follow: true,
            advise: false,
        });
        // One look-up alone succeeds, and so does another request.
        for _ in 0..2 {
            let one = apply(&names, user(7), vec![resolve.clone()]);
            assert!(matches!(one[0].result, Some(Answer::Entry(_))), "{one:?}");
        }
        let results = apply(&names, user(7), vec![resolve.clone(); 10_000]);
        assert!(results.len() < 10 && is_too_much(results.last().unwrap()));
        // If the request has changes, the changes before the failed operation stay.
        let directory = Op::Create(v1::Create {
            parent: 1,
            name: b"kept".to_vec(),
            kind: Kind::Directory.into(),
            ..v1::Create::default()
        });
        let mut ops = vec![resolve.clone(); 10_000];
        ops.insert(0, directory);
        let results = apply(&names, user(7), ops);
        assert!(is_too_much(results.last().unwrap()));
        let found = Op::Resolve(v1::Resolve {
            path: b"/kept".to_vec(),
            ..v1::Resolve::default()
        });
        let found = apply(&names, Caller::root(), vec![found]);
        assert!(
            matches!(found[0].result, Some(Answer::Entry(_))),
            "{found:?}"
        );
    }

    #[test]
    fn reads_of_one_user_leave_connections_for_others_and_daemons() {
        let (_directory, names) = names();
        let database = names.database().clone();
        let (began, begun) = mpsc::channel();
        let hold = |uid: u32| {
            let (database, began) = (database.clone(), began.clone());
            let (end, ended) = mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                let read = database.read_for_blocking(&user(uid), |_| {
                    began.send(uid).unwrap();
                    let _ = ended.recv();
                    Ok(())
                });
                read.unwrap();
            });
            (end, thread)
        };
        // One user asks for more readers than exist.
        let greedy: Vec<_> = (0..8).map(|_| hold(7)).collect();
        for _ in 0..2 {
            assert_eq!(begun.recv().unwrap(), 7);
        }
        let other = hold(8);
        assert_eq!(begun.recv().unwrap(), 8);
        database.read(|_| Ok(())).unwrap();
        assert!(begun.try_recv().is_err());
        let (ends, threads): (Vec<_>, Vec<_>) = greedy.into_iter().chain([other]).unzip();
        drop(ends);
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn request_budget_limits_ordinary_users_and_no_daemons() {
        let budget = Budget::of(&user(7));
        for _ in 1..LOOK_UPS_MAX / COMPONENT {
            budget.look_up(COMPONENT).unwrap();
        }
        assert!(matches!(budget.look_up(COMPONENT), Err(Fault::TooMuch)));
        budget.next().unwrap();
        budget.answered(ANSWER_BYTES_MAX);
        assert!(matches!(budget.next(), Err(Fault::TooMuch)));
        let root = Budget::of(&Caller::root());
        root.look_up(100 * LOOK_UPS_MAX).unwrap();
        root.answered(ANSWER_BYTES_MAX);
        root.next().unwrap();
        root.answered(ADMINISTRATOR_ANSWER_BYTES_MAX);
        root.next().unwrap_err();
    }

    #[tokio::test]
    async fn simultaneous_accesses_of_one_user_are_bounded() {
        let shares = AccessLimits::new(3, 2);
        let first = shares.take(&user(7)).await;
        let second = shares.take_blocking(&user(7));
        assert!(shares.try_take(&mut shares.taken.lock(), 7).is_none());
        let other = shares.take(&user(8)).await;
        // All turns are taken; daemons of the cluster need none.
        assert!(shares.try_take(&mut shares.taken.lock(), 9).is_none());
        assert!(shares.take(&Caller::root()).await.is_none() && shares.any());
        let waits = tokio::spawn({
            let shares = shares.clone();
            async move { shares.take(&user(9)).await.is_some() }
        });
        let blocks = std::thread::spawn({
            let shares = shares.clone();
            move || shares.take_blocking(&user(7)).is_some()
        });
        drop((first, second));
        assert!(waits.await.unwrap());
        assert!(blocks.join().unwrap());
        drop(other);
        assert!(!shares.any());
        let own: Vec<_> = (0..3).map_while(|_| shares.enter(7)).collect();
        assert_eq!(own.len(), 2);
        drop(own);
        let root: Vec<_> = (0..4).map_while(|_| shares.enter(0)).collect();
        assert_eq!(root.len(), 3);
    }
}
