//! The log of the database in NATS JetStream, which standby servers follow (next: `log/src/replicator.rs`).
//!
//! With such a log, the log is the state of the cluster, and a server's database is a copy of it. A server that starts makes its database
//! from the log, follows the log while another server leads, and leads when the lease of the leader ends. The log accepts the records of one
//! leader: each message names the message that it must follow, and a leadership begins with a message of its own. A leader whose message
//! is refused does not lead any more. It acknowledges a change only after the log has its record, so no acknowledged change is lost.

pub(crate) mod lease;
mod publisher;
mod standby;
mod streams;

use crate::leadership::Lease;
use crate::log_copies::{ATTACHED, KEY_FILE};
use crate::nats::CallError;
use crate::serve::ReplicationConfig;
use lease::{HeldLease, Holder, LeaseState};
use parking_lot::Mutex;
use publisher::{Orders, Publisher};
use standby::{Following, Won};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use streams::{Streams, Term};
use tidemill_log::{Deposed, FileProblem, LogKey, RecordBase, Replicator, ReplicatorSettings};
use tidemill_meta::commit::Database;
use tidemill_meta::random::random;
use tidemill_meta::{Connection, Fault, settings};
use tidemill_wire::{route, v1};

/// File in the server's directory for a snapshot on its way from or to the log.
const SNAPSHOT_FILE: &str = "replicated.snapshot";
/// File in the server's directory that shows that the database is a copy of a log, with the number of the last message that it has seen.
const MARKER_FILE: &str = "replicated";
/// File in the server's directory by which an administrator makes a standby the leader.
const PROMOTE_FILE: &str = "promote";
/// Pause before a server tries again to reach the log.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval at which the number of the last message is noted.
const NOTE: Duration = Duration::from_secs(1);

/// Reason why a server can't use its replicated log.
#[derive(Debug, thiserror::Error)]
pub enum ReplicationError {
    /// The NATS servers don't answer, or refuse a request.
    #[error("{0}")]
    Call(CallError),
    /// The log has records and no snapshot.
    #[error(
        "the log has no snapshot: its streams were purged; make a new log from this server's database or from `tidemill server recover`, with \
         other NATS streams"
    )]
    NoSnapshot,
    /// The log has lost messages.
    #[error(
        "the log ends at message {last}, but this server has seen message {known}: the NATS servers were purged or restored from an older \
         state; if this was the last leader, its database has everything: delete `replicated` in its directory and the streams \
         TIDEMILL-LOG-*, TIDEMILL-SNAPSHOTS-* and TIDEMILL-LEASE-*"
    )]
    Lost {
        /// Last message of the log.
        last: u64,
        /// Last message that this server has seen.
        known: u64,
    },
    /// Messages that this server needs are not in the log any more.
    #[error("this server needs a newer snapshot of the log")]
    Behind,
    /// The database of the server is not a copy of the log.
    #[error(
        "the directory has a database that is not a copy of the log; move server.db elsewhere if the log has the cluster's present state, or \
         delete the log's streams if the database has it"
    )]
    OtherDatabase,
    /// The database is a copy of a log, which was not named.
    #[error(
        "the database is a copy of a replicated log: start the server with --log; or delete the file `replicated` in its directory, to go on \
         without the log"
    )]
    Unnamed,
    /// Another server began to lead.
    #[error("another server has begun to use the log at the same time; start this server again")]
    Raced,
    /// A snapshot or record can't be used.
    #[error("the log can't be applied: {0}")]
    Problem(#[from] FileProblem),
    /// A file of the server's directory can't be used.
    #[error("a file of the server's directory can't be used: {0}")]
    Io(#[from] io::Error),
    /// The server's own database can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Another server leads.
    #[error(transparent)]
    Deposed(#[from] Deposed),
    /// The server ends.
    #[error("the server ends")]
    Ended,
}

impl From<CallError> for ReplicationError {
    fn from(why: CallError) -> Self {
        Self::Call(why)
    }
}

/// Refuses a database that is a copy of a log, for a server without a log.
pub(crate) fn check_unused(directory: &Path) -> Result<(), ReplicationError> {
    match directory.join(MARKER_FILE).exists() {
        true => Err(ReplicationError::Unnamed),
        false => Ok(()),
    }
}

/// The file that marks a copy of a log.
#[derive(Clone, Debug)]
struct Marker {
    /// Number of the last message of the log that the server has seen; 0 before the first snapshot.
    sequence: u64,
    /// Random name of the server's directory.
    name: String,
}

impl Marker {
    /// Reads the file; `None` if the database is no copy of a log.
    fn read(directory: &Path) -> io::Result<Option<Self>> {
        let text = match std::fs::read_to_string(directory.join(MARKER_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let mut words = text.split_whitespace();
        let sequence = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let name = words.next().map_or_else(new_name, str::to_owned);
        Ok(Some(Self { sequence, name }))
    }

    fn write(&self, directory: &Path) -> io::Result<()> {
        let part = directory.join("replicated.part");
        std::fs::write(&part, format!("{} {}\n", self.sequence, self.name))?;
        std::fs::rename(part, directory.join(MARKER_FILE))
    }

    /// Notes a later message. An error delays the note.
    fn note(&mut self, directory: &Path, sequence: u64) {
        if sequence > self.sequence {
            self.sequence = sequence;
            if let Err(error) = self.write(directory) {
                tracing::warn!(%error, "can't note the last message of the log");
            }
        }
    }
}

fn new_name() -> String {
    format!("{:016x}", u64::from_le_bytes(random()))
}

/// Returns the runtime of all connections to logs. Callers that wait for a log can't occupy its threads.
fn runtime() -> io::Result<&'static tokio::runtime::Runtime> {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("replication")
        .enable_all()
        .build()?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// Database of a server that may lead.
pub(crate) enum Prepared {
    /// The database was made from the log, and this server leads.
    Won(Box<(Won, RecordBase)>),
    /// The log is new.
    New,
}

/// Makes the database of a server from the log, and waits until the server leads.
pub(crate) async fn prepare(
    config: &ReplicationConfig,
    directory: &Path,
    address: &str,
) -> Result<Prepared, ReplicationError> {
    let key = match std::fs::read_to_string(directory.join(KEY_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Prepared::New),
        Err(error) => return Err(error.into()),
    };
    let bad = || io::Error::other(format!("{KEY_FILE} has no key"));
    let key = route::parse_hex(key.trim()).ok_or_else(bad)?;
    for left in std::fs::read_dir(directory)?.flatten() {
        let name = left.file_name();
        if name.to_string_lossy().starts_with("replicated.") {
            let _ = std::fs::remove_file(left.path());
        }
    }
    let streams = connect(config, &key).await?;
    let known = Marker::read(directory)?;
    let database = directory.join("server.db").metadata();
    let exists = database.is_ok_and(|found| found.len() > 0);
    let (_, last) = retried(|| streams.ends()).await;
    if let Some(known) = known.as_ref().filter(|known| known.sequence > last) {
        let known = known.sequence;
        return Err(ReplicationError::Lost { last, known });
    }
    while retried(|| streams.newest()).await.is_none() {
        match &known {
            Some(known) if known.sequence > 0 => return Err(ReplicationError::NoSnapshot),
            // No server has acknowledged anything before the first snapshot.
            _ if exists => return Ok(Prepared::New),
            _ => tracing::warn!(
                "the log has no snapshot yet, and this server has no database: it waits for the first server"
            ),
        }
        tokio::time::sleep(AGAIN).await;
    }
    if exists && known.is_none() {
        return Err(ReplicationError::OtherDatabase);
    }
    let marker = known.unwrap_or_else(|| Marker {
        sequence: 0,
        name: new_name(),
    });
    marker.write(directory)?;
    let log_key = LogKey::new(&key);
    loop {
        let of = (&marker, address);
        let following = Following::begin(streams.clone(), directory, &log_key, of).await;
        let won = match following {
            Ok(following) => following.follow(config.role).await,
            Err(error) => Err(error),
        };
        match won {
            Ok(won) => {
                let base = RecordBase::open(&directory.join("server.db"))?;
                return Ok(Prepared::Won(Box::new((won, base))));
            }
            Err(
                error @ (ReplicationError::Call(_)
                | ReplicationError::Behind
                | ReplicationError::Problem(FileProblem::Database(_))),
            ) => {
                tracing::warn!(%error, "the log can't be followed now");
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn connect(config: &ReplicationConfig, key: &[u8]) -> Result<Streams, ReplicationError> {
    let (address, key) = (config.address.clone(), key.to_owned());
    let open = async move { retried(|| Streams::open(&address, &key)).await };
    let opened = runtime()?.spawn(open).await;
    opened.map_err(|_| ReplicationError::Ended)
}

/// Repeats a call until it succeeds.
async fn retried<T, F>(call: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, CallError>> + Send,
{
    let mut told = false;
    loop {
        match call().await {
            Ok(done) => return done,
            Err(why) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(
                        why,
                        "the replicated log can't be reached: this server waits"
                    );
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// A server that leads.
#[derive(Debug)]
pub(crate) struct Leading {
    pub(crate) replicator: Arc<Replicator>,
    pub(crate) lease: Arc<Lease>,
    /// Number of the leadership, and address of this server.
    term: u64,
    address: String,
    /// Sequence number of the last message that the log has confirmed.
    confirmed: Arc<AtomicU64>,
    trouble: Arc<Mutex<Option<String>>>,
    state: Arc<Mutex<LeaseState>>,
}

impl Leading {
    /// Returns the reason why no change is acknowledged now.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().clone();
        trouble.or_else(|| self.state.lock().trouble.clone())
    }

    /// Returns the state of the log.
    pub(crate) fn state(&self) -> v1::Replication {
        let last = self.confirmed.load(Ordering::Acquire);
        let standbys = self.state.lock().standbys.clone();
        let standbys = standbys.into_iter().map(|standby| v1::Standby {
            behind: last.saturating_sub(standby.sequence),
            address: standby.address,
        });
        v1::Replication {
            leader: self.address.clone(),
            term: self.term,
            standbys: standbys.collect(),
            trouble: self.trouble().unwrap_or_default(),
        }
    }

    /// Waits until this server does not lead any more, and returns the reason.
    pub(crate) async fn deposed(&self) -> Deposed {
        loop {
            if let Some(deposed) = self.replicator.deposed() {
                return deposed;
            }
            tokio::time::sleep(AGAIN / 20).await;
        }
    }
}

/// Notes the last message of the log from time to time, while this server leads.
async fn note(
    directory: PathBuf,
    mut marker: Marker,
    (confirmed, replicator): (Arc<AtomicU64>, Arc<Replicator>),
) {
    while replicator.deposed().is_none() {
        marker.note(&directory, confirmed.load(Ordering::Acquire));
        tokio::time::sleep(NOTE).await;
    }
}

/// Leadership whose start is in the log.
struct Begun {
    streams: Streams,
    term: Term,
    /// Sequence numbers of the start, and of the lease.
    sequence: u64,
    lease: HeldLease,
    /// Lease of the leader before.
    before: Option<Holder>,
    replicator: Replicator,
}

/// Prepares the records of a leader with an open database. Begins the log if it is new.
async fn begin(
    prepared: Prepared,
    database: &Arc<Database>,
    sender: Arc<Orders>,
    (config, directory, address): (&ReplicationConfig, &Path, &str),
) -> Result<Begun, ReplicationError> {
    let (key, cluster) =
        database.read(|db: &Connection| Ok((settings::key(db)?, settings::cluster_id(db)?)))?;
    let settings = |term: &Term| ReplicatorSettings {
        key: LogKey::new(key.as_bytes()),
        cluster,
        term: term.term,
        log: term.log,
        attached: ATTACHED.map(|name| directory.join(name)).to_vec(),
        snapshot: directory.join(SNAPSHOT_FILE),
    };
    if let Prepared::Won(won) = prepared {
        let (won, base) = *won;
        if won.cluster != cluster {
            return Err(ReplicationError::OtherDatabase);
        }
        return Ok(Begun {
            replicator: Replicator::new(settings(&won.term), base, sender)?,
            streams: won.streams,
            term: won.term,
            sequence: won.sequence,
            lease: won.lease,
            before: won.before,
        });
    }
    let streams = connect(config, key.as_bytes()).await?;
    let (_, last) = retried(|| streams.ends()).await;
    if retried(|| streams.newest()).await.is_some() {
        return Err(ReplicationError::OtherDatabase);
    }
    let before = retried(|| streams.last_term()).await;
    let term = Term {
        term: before.map_or(0, |term| term.term) + 1,
        log: u32::from_le_bytes(random()),
        address: address.into(),
    };
    let known = Marker::read(directory)?;
    let mut marker = known.unwrap_or_else(|| Marker {
        sequence: 0,
        name: new_name(),
    });
    marker.write(directory)?;
    let present = retried(|| streams.lease::<Holder>()).await;
    let holder = Holder::of(&term, &marker.name, None);
    let present = present.map_or(0, |(present, _)| present);
    let lease = streams.renew_lease(&holder, present).await?;
    let lease = lease.ok_or(ReplicationError::Raced)?;
    let begun = streams.begin_term(&term, last).await?;
    let sequence = begun.ok_or(ReplicationError::Raced)?;
    let lease = HeldLease::hold(streams.clone(), holder, lease);
    let base = RecordBase::open(&directory.join("server.db"))?;
    let replicator = Replicator::new(settings(&term), base, sender)?;
    let snapshot = tokio::task::block_in_place(|| replicator.write_base())?;
    streams.store_snapshot(&snapshot, sequence).await?;
    let _ = std::fs::remove_file(&snapshot.path);
    marker.note(directory, sequence);
    Ok(Begun {
        streams,
        term,
        sequence,
        lease,
        before: None,
        replicator,
    })
}

/// Starts the leadership of a server with an open database.
pub(crate) async fn lead(
    prepared: Prepared,
    database: &Arc<Database>,
    of: (&ReplicationConfig, &Path, &str),
) -> Result<Arc<Leading>, ReplicationError> {
    let (sender, orders) = tokio::sync::mpsc::unbounded_channel();
    let begun = begin(prepared, database, Arc::new(Orders(sender)), of).await?;
    let Begun {
        streams,
        term,
        sequence,
        lease: present,
        before,
        replicator,
    } = begun;
    let (config, directory, _) = of;
    let replicator = Arc::new(replicator);
    let leading = Arc::new(Leading {
        replicator: replicator.clone(),
        lease: Arc::default(),
        term: term.term,
        address: term.address.clone(),
        confirmed: Arc::new(AtomicU64::new(sequence)),
        trouble: Arc::default(),
        state: Arc::default(),
    });
    let shared = (leading.confirmed.clone(), leading.trouble.clone());
    let leader = (term.term, term.log);
    let publisher = Publisher::new(streams.clone(), replicator.clone(), leader, shared);
    let runtime = runtime()?;
    runtime.spawn(publisher.run(orders));
    let marker = Marker::read(directory)?.ok_or(ReplicationError::OtherDatabase)?;
    let holder = Holder::of(&term, &marker.name, before.as_ref());
    let holder = (holder, present.sequence());
    drop(present);
    // It is for a standby.
    let _ = std::fs::remove_file(directory.join(PROMOTE_FILE));
    let lease = (leading.lease.clone(), leading.state.clone());
    runtime.spawn(lease::keep(streams, holder, lease, replicator.clone()));
    let noted = (leading.confirmed.clone(), replicator.clone());
    runtime.spawn(note(directory.to_owned(), marker, noted));
    database.replicate(replicator.clone())?;
    replicator.start()?;
    let all = move || replicator.wait(replicator.last_commit());
    let waited = tokio::task::spawn_blocking(all).await;
    waited.map_err(|_| ReplicationError::Ended)??;
    tracing::info!(term = leading.term, log = %config.address, "this server leads");
    Ok(leading)
}
