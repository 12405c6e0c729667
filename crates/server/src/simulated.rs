//! The server of a simulated array: names, jobs, driver, elements and all that it does by itself, as in [`crate::Server`],
//! but without connections and threads, on one database connection, in virtual time and with chance from a seed.
//!
//! What the server does on timers runs on a runtime of its own whose clock is moved by [`Simulated::advance`]. Time has
//! a resolution of one millisecond. Nothing else of the server is written anew here: whoever simulates calls what the
//! services call.

use crate::array::{Array, Settings, outbox};
use crate::authority::Authority;
use crate::elastic::Elastic;
use crate::elastic::manager::Manager;
use crate::jobs::asked::Programs;
use crate::jobs::driver::{Driver, Mending, Signals};
use crate::jobs::inbox::Inbox;
use crate::jobs::submit::{Refused, Submission, submit};
use crate::jobs::way::Links;
use crate::jobs::{Incoming, expiry};
use crate::locks::Locks;
use crate::mover::Mover;
use crate::names::rooms::Done;
use crate::names::transaction::Tx;
use crate::names::{Caller, Fault, Names, OpenError, Request, SqliteNames, Unfinished, array_id};
use crate::queue::{Journal, Queue};
use crate::recall::Recalls;
use crate::removal::Garbage;
use crate::rules::driver::Firer;
use crate::session::Sessions;
use crate::{copies, namespace_service, notes, rooms, scrub};
use rusqlite::Connection;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_core::burst::Limits;
use tidemill_core::copies::Wanted;
use tidemill_core::id::JobId;
use tidemill_wire::v1::{self, from_element::Message as From};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};

/// Versions that a mount writes at most on one element.
const UNFINISHED_MAX: usize = 4096;

/// How long an element that is woken may take to come.
const WAKE_LIMIT: Duration = Duration::from_secs(5);

/// Virtual time.
pub mod time {
    use std::cell::Cell;
    use std::time::Duration;
    use tokio::time::Instant;

    thread_local! {
        /// When the server of this thread started, and what its runtime's clock said then.
        static START: Cell<Option<(Duration, Instant)>> = const { Cell::new(None) };
        static REST: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    pub(super) fn start(at: Duration) {
        START.set(Some((at, Instant::now())));
    }

    pub(super) fn stop() {
        START.set(None);
    }

    pub(crate) fn since_epoch() -> Option<Duration> {
        let (at, start) = START.get()?;
        Some(at + start.elapsed())
    }

    /// Has `rest` called instead of letting the driver sleep after a failed commit. It may unwind: the server is then
    /// killed right there.
    pub fn on_rest(rest: fn()) {
        REST.set(Some(rest));
    }

    /// Whether this thread simulates; then it has rested.
    pub(crate) fn rest() -> bool {
        REST.get().map(|rest| rest()).is_some()
    }
}

/// Chance from a seed.
pub(crate) mod chance {
    use std::cell::RefCell;
    use tidemill_core::random::Source;

    thread_local! {
        static SOURCE: RefCell<Option<Source>> = const { RefCell::new(None) };
    }

    pub(super) fn seed(seed: u64) {
        SOURCE.set(Some(Source::seeded(seed)));
    }

    /// Fills in bytes if this thread simulates.
    pub(crate) fn fill(bytes: &mut [u8]) -> bool {
        SOURCE.with_borrow_mut(|source| {
            let Some(source) = source else { return false };
            for chunk in bytes.chunks_mut(8) {
                chunk.copy_from_slice(&source.next_u64().to_le_bytes()[..chunk.len()]);
            }
            true
        })
    }
}

/// How a simulated server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of all that is drawn.
    pub seed: u64,
    /// How long an element may be away before its labels are given elsewhere.
    pub element_timeout: Duration,
    /// Policy of jobs that name none.
    pub policy: String,
    /// How many copies there are to be of versions.
    pub copies: u32,
    /// How long an element may be away before its copies are made again.
    pub repair_after: Duration,
    /// How often all objects of each element are read and compared.
    pub scrub_every: Duration,
    /// Bytes in a second of repairs and moves; 0 for no bound.
    pub move_bytes_per_sec: u64,
    /// How long nothing must have needed an element for it to be suspended; `None`: that happens only when it is asked for.
    pub suspend_after: Option<Duration>,
    /// When the burst tier drains.
    pub burst: Limits,
    /// Where labels wait; `None` for the server's own database.
    pub queue: Option<Arc<dyn Queue>>,
}

/// A server that can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its content.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// The stream of one element.
#[derive(Debug)]
pub struct Link {
    /// Counts the connections of the element.
    pub epoch: u64,
    /// What the server sends.
    pub outbox: mpsc::Receiver<v1::ToElement>,
    /// Set when the server ends the stream.
    pub ended: watch::Receiver<bool>,
}

/// The answer to a mount's request.
pub type Answered = oneshot::Receiver<Result<Vec<v1::NameResult>, Fault>>;

/// A mount's stream of changes.
#[derive(Debug)]
pub struct Changes(mpsc::Receiver<Result<v1::Invalidation, tonic::Status>>);

impl Changes {
    /// What came next, if there is something.
    pub fn next_now(&mut self) -> Option<v1::Invalidation> {
        self.0.try_recv().ok()?.ok()
    }
}

/// The answer to a submission: the job's number, or why there is none.
pub type Submitted = oneshot::Receiver<Result<u64, String>>;

/// See the module.
#[derive(Debug)]
pub struct Simulated {
    names: Arc<SqliteNames>,
    recalls: Recalls,
    sessions: Sessions,
    array: Arc<Array>,
    manager: Manager,
    driver: Driver,
    inbox: Inbox,
    firer: Firer,
    /// The driver has done what follows from the jobs that were brought back.
    begun: bool,
    told: Sender<Incoming>,
    /// Last, so that what runs on it is dropped after all else.
    runtime: Runtime,
    started: tokio::time::Instant,
}

impl Simulated {
    /// Starts a server on what `disk` holds, `since_epoch` after the epoch.
    ///
    /// # Errors
    /// If the database can't be used; it is given back.
    #[allow(
        clippy::result_large_err,
        reason = "the disk is given back, once a start"
    )]
    pub fn start(
        disk: Connection,
        since_epoch: Duration,
        options: &Options,
    ) -> Result<Self, (Connection, StartError)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without threads and sockets can always be built");
        let entered = runtime.enter();
        time::start(since_epoch);
        chance::seed(options.seed);
        let names = match SqliteNames::without_thread(disk, (0, 0)) {
            Ok(names) => Arc::new(names),
            Err((disk, error)) => return Err((disk, error.into())),
        };
        let (told, incoming) = std::sync::mpsc::channel();
        match Self::parts(&names, options, told.clone()) {
            Ok((array, manager, driver)) => {
                let started = tokio::time::Instant::now();
                // Mounts of the simulation take no locks, so there are none to be read.
                let sessions = Sessions::new(Duration::MAX);
                let names_of_locks = names.clone() as Arc<dyn Names>;
                let locks = match Locks::new(names_of_locks, sessions.clone()) {
                    Ok(locks) => locks,
                    Err(fault) => return Err((names.database().take_connection(), fault.into())),
                };
                let recalls = Recalls::new(names.clone() as Arc<dyn Names>, locks);
                // It fires on the runtime for as long as that lives.
                let firer = Firer::start((&names, &recalls, &array), None, &told);
                drop(entered);
                Ok(Self {
                    names,
                    recalls,
                    sessions,
                    array,
                    manager,
                    driver,
                    inbox: Inbox::new(incoming),
                    firer,
                    begun: false,
                    told,
                    runtime,
                    started,
                })
            }
            Err(fault) => Err((names.database().take_connection(), fault.into())),
        }
    }

    /// As a server does it when it begins.
    fn parts(
        names: &Arc<SqliteNames>,
        options: &Options,
        told: Sender<Incoming>,
    ) -> Result<(Arc<Array>, Manager, Driver), Fault> {
        let settings = Settings {
            array_id: names.database().read(array_id)?,
            element_timeout: options.element_timeout,
            link_bytes_per_sec: 125_000_000,
            tls: false,
            authority: authority(),
        };
        names.shared().set_copies(Wanted {
            copies: options.copies,
            now: false,
        });
        names.shared().bursts.set_limits(options.burst);
        let array = Arc::new(Array::new(names, settings, told.clone())?);
        let signals = Signals::default();
        let database = names.database().clone();
        let garbage = Garbage::new(database.clone(), names.shared().clone());
        let mending = Mending {
            after: options.repair_after,
            bytes_per_sec: options.move_bytes_per_sec,
        };
        let own = || Arc::new(Journal::new(database.clone())) as Arc<dyn Queue>;
        let driver = Driver::new(
            names.clone(),
            array.clone(),
            options.queue.clone().unwrap_or_else(own),
            garbage.clone(),
            signals.clone(),
            (&options.policy, mending),
        )?;
        let elastic = Elastic {
            after: options.suspend_after,
            wake_limit: WAKE_LIMIT,
            ..Elastic::default()
        };
        let manager = Manager::start(names, &array, elastic);
        array.expect_known();
        let _ = told.send(Incoming::NamesChanged);
        let after = options.repair_after;
        let copying = copies::watch(database.clone(), array.clone(), after, told.clone());
        tokio::spawn(copying);
        let every = Some(options.scrub_every);
        let scrubbing = scrub::watch(database.clone(), array.clone(), every, told.clone());
        tokio::spawn(scrubbing);
        tokio::spawn(notes::run(database, array.clone()));
        tokio::spawn(garbage.watch(array.clone(), told.clone()));
        tokio::spawn(expiry::run(names.clone()));
        tokio::spawn(rooms::run(names.clone()));
        let teller = names.teller().clone();
        tokio::spawn(crate::serve::forward_changes(teller, signals, told));
        Ok((array, manager, driver))
    }

    /// Lets time pass until so long after the start, and what is due be done.
    pub fn advance(&self, since_start: Duration) {
        let until = self.started + since_start;
        self.runtime.block_on(async {
            tokio::time::sleep_until(until).await;
            // What was begun meanwhile goes as far as it can.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Whether the driver has been told something.
    pub fn told(&mut self) -> bool {
        !self.begun || self.inbox.has_more()
    }

    /// Lets the driver take what it has been told, decide, keep and send; or look around if that is nothing.
    pub fn turn(&mut self) {
        let _entered = self.runtime.enter();
        // A server that stops is dropped instead.
        if std::mem::replace(&mut self.begun, true) {
            let _ = self.driver.turn(&mut self.inbox, Duration::ZERO);
        } else {
            let _ = self.driver.begin(&mut self.inbox);
        }
    }

    /// An element's stream begins.
    ///
    /// # Errors
    /// If the array does not take it.
    pub fn join(&self, hello: v1::Hello) -> Result<Link, String> {
        let _entered = self.runtime.enter();
        let (sender, outbox) = outbox();
        let joined = self.array.join(hello, sender);
        let (_, epoch, ended) = joined.map_err(|status| status.to_string())?;
        Ok(Link {
            epoch,
            outbox,
            ended,
        })
    }

    /// An element said something.
    pub fn hear(&self, element: u32, epoch: u64, message: From) {
        let _entered = self.runtime.enter();
        self.array.on_message(element, epoch, message);
    }

    /// An element's stream ended.
    pub fn leave(&self, element: u32, epoch: u64) {
        let _entered = self.runtime.enter();
        self.array.leave(element, epoch);
    }

    /// A process comes that is there while its element sleeps.
    ///
    /// # Errors
    /// If the array does not take it.
    pub fn keep(&self, hello: &v1::Hello) -> Result<Link, String> {
        let _entered = self.runtime.enter();
        let (sender, outbox) = outbox();
        let kept = self.array.keep(hello, sender);
        let (_, epoch, ended) = kept.map_err(|status| status.to_string())?;
        Ok(Link {
            epoch,
            outbox,
            ended,
        })
    }

    /// Such a process is gone.
    pub fn unkeep(&self, element: u32, number: u64) {
        self.array.unkeep(element, number);
    }

    /// Somebody wants an element to sleep; it does if nothing needs it.
    pub fn suspend_element(&self, element: u32) {
        let manager = self.manager.clone();
        self.runtime
            .spawn(async move { manager.suspend(element).await });
    }

    /// Somebody wants an element awake.
    pub fn wake_element(&self, element: u32) {
        let _entered = self.runtime.enter();
        self.names.shared().sleepers.want(element);
    }

    /// Whether an element is up.
    #[must_use]
    pub fn is_awake(&self, element: u32) -> bool {
        self.array.up().contains(&element)
    }

    /// Carries out a mount's request.
    ///
    /// # Errors
    /// If it could not be carried out as a whole.
    pub fn apply(&self, request: Request) -> Result<Vec<v1::NameResult>, Fault> {
        let _entered = self.runtime.enter();
        self.names.apply_blocking(request)
    }

    /// Begins to carry out a mount's request as `recall` does it; the answer comes as time passes.
    pub fn ask(&self, request: Request) -> Answered {
        let (answer, answered) = oneshot::channel();
        let recalls = self.recalls.clone();
        self.runtime.spawn(async move {
            // Who asked may have gone away.
            let _ = answer.send(recalls.apply(request).await);
        });
        answered
    }

    /// A mount opens its stream of changes.
    ///
    /// # Errors
    /// If the database fails.
    pub fn watch(&self, session: u64) -> Result<Changes, Fault> {
        let request = v1::WatchRequest {
            session,
            ..v1::WatchRequest::default()
        };
        let (names, recalls) = (&*self.names, &self.recalls);
        let watched = namespace_service::watch(names, recalls, &self.sessions, request);
        self.runtime.block_on(watched).map(Changes)
    }

    /// A mount says again what it writes, as it does after a start.
    pub fn hold(&self, session: u64, version: (u64, u64), element: u32) {
        self.names.shared().hold(session, version, element);
    }

    /// Reserves ids for a mount.
    ///
    /// # Errors
    /// If that can't be kept.
    pub fn reserve(&self, inodes: u32, objects: u32) -> Result<(u64, u64), Fault> {
        let reserved = self.names.reserve(Caller::root(), inodes, objects);
        self.runtime.block_on(reserved)
    }

    /// A number for a mount.
    ///
    /// # Errors
    /// If that can't be kept.
    pub fn new_session(&self) -> Result<u64, Fault> {
        self.runtime.block_on(self.names.new_session())
    }

    /// A mount is gone; gives what it was writing, and on which elements.
    ///
    /// # Errors
    /// If the database fails.
    pub fn end_session(&self, session: u64) -> Result<Vec<(u32, Unfinished)>, Fault> {
        self.runtime.block_on(self.names.end_session(session))?;
        let mut versions = Vec::new();
        for group in self.names.unsealed()? {
            if session == 0 || group.session != session {
                continue;
            }
            let writer = (session, group.element);
            let unfinished = self.names.unfinished(writer, 0, UNFINISHED_MAX)?;
            versions.extend(unfinished.into_iter().map(|one| (group.element, one)));
        }
        Ok(versions)
    }

    /// Submits a job script as a user; the answer comes as time passes.
    pub fn submit(&self, uid: u32, script: String) -> Submitted {
        let submission = Submission {
            caller: Caller {
                uid,
                gid: uid,
                groups: Vec::new(),
                checked: false,
                trusted: true,
            },
            script,
            source: String::new(),
            policy: String::new(),
            replace: false,
            strict: false,
            no_cache: false,
            bounded: false,
            programs: Programs::Refused,
            links: Links::All,
        };
        let (answer, answered) = oneshot::channel();
        let (names, recalls) = (self.names.clone(), self.recalls.clone());
        let (array, told) = (self.array.clone(), self.told.clone());
        self.runtime.spawn(async move {
            let result = match submit(&names, &recalls, &array, submission).await {
                Ok((accepted, _)) => {
                    let job = accepted.spec.job.0;
                    let _ = told.send(Incoming::Submitted(Box::new(accepted)));
                    Ok(job)
                }
                Err(Refused::Script(errors) | Refused::Claimed(errors)) => Err(errors.join("\n")),
                Err(Refused::Known(job)) => Ok(job.0),
                Err(Refused::Fault(fault)) => Err(fault.to_string()),
            };
            // Who asked may have gone away.
            let _ = answer.send(result);
        });
        answered
    }

    /// Keeps a rule of root's, new or in the place of the one of its name; gives its number, if that was possible.
    pub fn put_rule(&self, text: &str) -> Option<u64> {
        self.runtime.block_on(self.firer.put_rule(text)).ok()
    }

    /// Removes a rule of root's; whether it is gone.
    pub fn remove_rule(&self, name: &str) -> bool {
        self.runtime.block_on(self.firer.remove_rule(name)).is_ok()
    }

    /// Has tried again what did not end well of a rule.
    pub fn retry_rule(&self, name: &str) {
        // The database may be full.
        let _ = self.runtime.block_on(self.firer.retry_rule(name));
    }

    /// Ends the open round of a hook; whether there was one.
    pub fn end_round(&self, name: &str) -> bool {
        let ended = self.runtime.block_on(self.firer.end_round(name));
        ended.is_ok_and(|round| round.is_some())
    }

    fn in_rooms<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> Done<T> + Send + 'static,
    ) -> Option<T> {
        let written = rooms::write(&self.names, Caller::root(), work);
        self.runtime.block_on(written).ok()?.ok()
    }

    /// Makes a room that everybody may write in; the inode of its folder, if that was possible.
    pub fn create_room(&self, name: &str, ttl: Option<Duration>) -> Option<u64> {
        let ttl_ns = ttl.map_or(0, |ttl| ttl.as_nanos());
        let room = v1::CreateRoomRequest {
            name: name.into(),
            mode: 0o777,
            ttl_ns: i64::try_from(ttl_ns).unwrap_or(i64::MAX),
            ..v1::CreateRoomRequest::default()
        };
        let path = format!("/rooms/{name}");
        self.in_rooms(move |tx| {
            let made = tx.create_room(&room)?;
            let ino = tx.resolve(path.as_bytes(), true)?.ino;
            Ok(made.map(|_| ino))
        })
    }

    /// Has a room removed; whether it was there.
    pub fn end_room(&self, name: &str) -> bool {
        let name = name.to_owned();
        self.in_rooms(move |tx| tx.end_room(&name)).is_some()
    }

    fn member(&self, name: &str, member: u64) -> Option<u64> {
        let join = v1::JoinRoomRequest {
            name: name.into(),
            member,
            ..v1::JoinRoomRequest::default()
        };
        let joined = self.in_rooms(move |tx| tx.join_room(&join))?;
        Some(joined.member)
    }

    /// A member more; its number, if the room is there.
    pub fn join_room(&self, name: &str) -> Option<u64> {
        self.member(name, 0)
    }

    /// A member says that it is still there; whether it is one.
    pub fn stay_in_room(&self, name: &str, member: u64) -> bool {
        self.member(name, member).is_some()
    }

    /// A member goes.
    pub fn leave_room(&self, name: &str, member: u64) {
        let leave = v1::LeaveRoomRequest {
            name: name.into(),
            member,
            ..v1::LeaveRoomRequest::default()
        };
        // The room may have ended.
        let _ = self.in_rooms(move |tx| tx.leave_room(&leave));
    }

    /// Has an element emptied, or not any more; whether that was possible.
    pub fn drain(&self, element: u32, cancel: bool) -> bool {
        let request = v1::DrainRequest { element, cancel };
        self.runtime.block_on(self.mover().drain(request)).is_ok()
    }

    /// Has all files moved to an element; whether that was possible.
    pub fn move_all(&self, element: u32) -> bool {
        let request = v1::MoveRequest {
            path: b"/".to_vec(),
            element,
            ..v1::MoveRequest::default()
        };
        let moved = self.mover();
        let moved = moved.move_files(Caller::root(), request);
        self.runtime.block_on(moved).is_ok()
    }

    /// Whether nothing is left of an element that is being emptied; `None` if it is not.
    #[must_use]
    pub fn is_empty(&self, element: u32) -> Option<bool> {
        let moves = self.mover().moves().ok()?;
        let drain = moves.drains.iter().find(|drain| drain.element == element)?;
        let left = drain.files_left + drain.removals + drain.writing + drain.labels;
        Some(!drain.listing && left == 0)
    }

    fn mover(&self) -> Mover {
        Mover::new(&self.names, &self.array, &self.told, Arc::default())
    }

    /// The owner of a job gives it up.
    pub fn cancel(&self, job: u64) {
        let _ = self.told.send(Incoming::Cancel(JobId(job)));
    }

    /// Reads what is committed.
    ///
    /// # Errors
    /// If SQLite refuses.
    pub fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, Fault> {
        self.names.database().read(|db| Ok(read(db)?))
    }

    /// Does something to the connection, which nobody uses meanwhile.
    pub fn with_connection<T>(&self, with: impl FnOnce(&Connection) -> T) -> T {
        self.names.database().with_connection(with)
    }

    /// Kills the server; gives what is left of it.
    #[must_use]
    pub fn kill(self) -> Connection {
        let Self { names, runtime, .. } = self;
        drop(runtime);
        time::stop();
        names.database().take_connection()
    }
}

/// Nothing is certified in a simulation, so one authority will do for all.
fn authority() -> Arc<Authority> {
    static AUTHORITY: std::sync::OnceLock<Arc<Authority>> = std::sync::OnceLock::new();
    let made = AUTHORITY.get_or_init(|| {
        let authority = Authority::in_memory();
        Arc::new(authority.expect("a key can always be made"))
    });
    made.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Unavailable;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tidemill_core::id::{ElementId, LabelId};
    use tidemill_core::label::Label;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    /// A queue that can't be used before it is there.
    #[derive(Debug, Default)]
    struct Away {
        is_there: AtomicBool,
        tries: AtomicUsize,
        fetched: AtomicUsize,
    }

    impl Queue for Away {
        fn enqueue(&self, _: ElementId, _: Vec<Label>) -> Result<(), Unavailable> {
            Ok(())
        }

        fn fetch(&self, _: ElementId) -> Result<Vec<Label>, Unavailable> {
            self.fetched.fetch_add(1, Ordering::Relaxed);
            Ok(Vec::new())
        }

        fn acknowledge(&self, _: ElementId, _: &[LabelId]) -> Result<(), Unavailable> {
            Ok(())
        }

        fn redeliver(&self, _: ElementId, _: &BTreeSet<LabelId>) -> Result<(), Unavailable> {
            self.tries.fetch_add(1, Ordering::Relaxed);
            let there = self.is_there.load(Ordering::Relaxed);
            there.then_some(()).ok_or(Unavailable("away".into()))
        }
    }

    /// Counts errors in the log.
    struct Errors(Arc<AtomicUsize>);

    impl Subscriber for Errors {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let is_error = *event.metadata().level() == Level::ERROR;
            self.0.fetch_add(is_error.into(), Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn unreachable_queue_is_logged_once_and_retried() {
        let queue = Arc::new(Away::default());
        let options = Options {
            seed: 1,
            element_timeout: Duration::from_secs(10),
            policy: tidemill_core::policy::DEFAULT.into(),
            copies: 1,
            repair_after: Duration::from_secs(600),
            scrub_every: Duration::from_secs(7 * 86_400),
            move_bytes_per_sec: 0,
            suspend_after: None,
            burst: Limits::default(),
            queue: Some(queue.clone()),
        };
        let errors = Arc::new(AtomicUsize::new(0));
        let _log = tracing::subscriber::set_default(Errors(errors.clone()));
        let disk = Connection::open_in_memory().unwrap();
        let begun = Simulated::start(disk, Duration::from_secs(1_000_000), &options);
        let mut server = begun.map_err(|(_, error)| error).unwrap();
        let hello = v1::Hello {
            version: tidemill_wire::PROTOCOL_VERSION,
            element: Some(v1::Element {
                element: 1,
                role: "store".into(),
                ..v1::Element::default()
            }),
            ..v1::Hello::default()
        };
        let _link = server.join(hello).unwrap();
        while server.told() {
            server.turn();
        }
        for job in 0..100 {
            server.cancel(job);
            server.turn();
        }
        assert_eq!(queue.tries.load(Ordering::Relaxed), 1);
        assert_eq!(errors.load(Ordering::Relaxed), 1);
        server.advance(Duration::from_secs(2));
        server.turn();
        assert_eq!(queue.tries.load(Ordering::Relaxed), 2);
        queue.is_there.store(true, Ordering::Relaxed);
        server.advance(Duration::from_secs(4));
        server.turn();
        server.turn();
        assert_eq!(queue.tries.load(Ordering::Relaxed), 3);
        assert_eq!(errors.load(Ordering::Relaxed), 1);
        assert_eq!(queue.fetched.load(Ordering::Relaxed), 1);
        let _disk = server.kill();
    }
}
