//! Copies the log of the database to nodes (next: `node/src/log_copies.rs`).
//!
//! Two nodes have a copy, on different hosts if possible. The server compares the names of its own files with those on a node, sends the
//! missing files in pieces, and removes files that it does not have any more. One message to a node is in flight at a time, so a slow node
//! delays only its own copy.

use crate::StartError;
use crate::chores::{Chore, Due, Step};
use crate::cluster::Cluster;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_log::{FileKind, FileName, LogKey, LogSettings, LogWriter, names_in};
use tidemill_meta::commit::Database;
use tidemill_meta::random::random;
use tidemill_meta::wakes::{LOGGED, NODES, Wakes};
use tidemill_meta::{Connection, Fault, settings};
use tidemill_model::timers::Signals;
use tidemill_wire::v1::{self, to_node::Message as To};
use tidemill_wire::{condition, route};
use tonic::Status;

/// Number of nodes that have a copy.
const COPIES: usize = 2;
/// Time for which a node may be offline before another node gets its copy, and time for which a copy may be incomplete before this is a
/// condition.
const ABSENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum length of the content of a message.
const PIECE: u64 = 256 << 10;
/// Shortest time between two looks at the copies.
const REST: Duration = Duration::from_millis(5);
/// Pause after a node could not store a file.
const AGAIN: Duration = Duration::from_secs(2);
/// Maximum time for which a backup waits for the last changes and the first snapshot.
const BACKUP_FLUSH_MAX: Duration = Duration::from_secs(60);
/// Time for which the log keeps earlier states of the database.
const RETENTION: Duration = Duration::from_secs(3600);
/// File with the cluster's key in hexadecimal digits, in the server's directory.
pub(crate) const KEY_FILE: &str = "cluster.key";
/// Files of the server's directory that are part of the log.
pub(crate) const ATTACHED: [&str; 3] = ["ca.pem", "token", "tokens"];

/// Starts the log of a server's database, in the directory `log` of the server's directory.
pub(crate) async fn start(database: &Arc<Database>, dir: &Path) -> Result<(), StartError> {
    let id = u32::from_le_bytes(random());
    // After a power loss the files may be of a later term than the database. A new server has none.
    let names = names_in(&dir.join("log")).unwrap_or_default();
    let above = names.iter().map(|name| name.term).max().unwrap_or(0);
    let begin = move |db: &Connection| settings::begin_log(db, above, id);
    let begun = database.write_durable(true, begin).await?;
    begun.on_disk?;
    let term = begun.value;
    let (key, cluster) = database.read(|db| Ok((settings::key(db)?, settings::cluster_id(db)?)))?;
    let at = |path: &Path, source| StartError::File {
        path: path.display().to_string(),
        source,
    };
    keep_key(&dir.join(KEY_FILE), key.as_bytes())
        .map_err(|source| at(&dir.join(KEY_FILE), source))?;
    let log = LogSettings {
        directory: dir.join("log"),
        database: dir.join("server.db"),
        key: LogKey::new(key.as_bytes()),
        cluster,
        term,
        log: id,
        retention: RETENTION,
        attached: ATTACHED.map(|name| dir.join(name)).to_vec(),
    };
    let started = database.start_log(log, LOGGED);
    started.map_err(|source| at(&dir.join("log"), source))
}

/// Writes the cluster's key to a file that administrators copy to a safe place.
fn keep_key(path: &Path, key: &[u8]) -> std::io::Result<()> {
    let text = route::hex(key);
    if std::fs::read_to_string(path).is_ok_and(|known| known.trim() == text) {
        return Ok(());
    }
    let part = path.with_extension("part");
    let mut file = crate::serve::private().truncate(true).open(&part)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    std::fs::rename(part, path)
}

/// State of the copies, as of the last look.
#[derive(Clone, Debug, Default)]
struct CopiesState {
    /// Nodes whose copies have been incomplete for too long, each with the reason.
    delayed: BTreeMap<u32, String>,
    /// Node that has a log unknown to the database.
    foreign: Option<u32>,
    /// Last file of the log when all copies were complete; `None` if they are not.
    complete: Option<FileName>,
    /// Reason why fewer copies than wanted have existed for too long.
    few: Option<String>,
    /// Number of connected nodes that have a copy or receive one.
    copies: usize,
}

/// Answers of nodes about copies of the log.
#[derive(Debug)]
pub(crate) struct CopiedLogs {
    answers: Mutex<BTreeMap<u32, (u64, v1::LogCopied)>>,
    state: Mutex<CopiesState>,
    wakes: Arc<Wakes>,
}

impl CopiedLogs {
    pub(crate) fn new(wakes: Arc<Wakes>) -> Self {
        Self {
            answers: Mutex::default(),
            state: Mutex::default(),
            wakes,
        }
    }

    pub(crate) fn on_copied(&self, node: u32, epoch: u64, copied: v1::LogCopied) {
        self.answers.lock().insert(node, (epoch, copied));
        self.wakes.wake(LOGGED);
    }

    /// Returns the condition of the log; `None` if the log and its copies are complete.
    pub(crate) fn condition(&self, log: Option<&Arc<LogWriter>>) -> Option<v1::Condition> {
        let state = self.state.lock().clone();
        if let Some(node) = state.foreign {
            let cause = format!(
                "node {node} has a log that this database does not know: the database may be an old copy"
            );
            return Some(condition::DATABASE_OLD.of(Some(node), cause));
        }
        if let Some(trouble) = log?.status().trouble {
            return Some(condition::LOG_DELAYED.of(None, trouble));
        }
        if let Some(why) = state.few {
            return Some(condition::LOG_DELAYED.of(None, why));
        }
        let (&node, why) = state.delayed.first_key_value()?;
        Some(condition::LOG_DELAYED.of(Some(node), why.clone()))
    }

    /// Writes the last changes to the log and waits until the copies have them, at most for a time.
    pub(crate) async fn finish(&self, log: &Arc<LogWriter>, at_most: Duration) {
        let until = Instant::now() + at_most;
        let flushed = log.clone();
        let _ = tokio::task::spawn_blocking(move || flushed.flush(at_most)).await;
        let last = log.status().last;
        while self.state.lock().copies > 0
            && self.state.lock().complete < last
            && Instant::now() < until
        {
            tokio::time::sleep(REST).await;
        }
    }
}

/// Copy of the log on one node.
#[derive(Debug)]
struct NodeCopy {
    /// Number of the connection to which the other fields belong.
    epoch: u64,
    /// Files on the node; `None` until the node has listed them.
    known: Option<BTreeSet<FileName>>,
    /// Message in flight: the file, the end of the sent content, and whether the file ends there. `None` for a list of files.
    sent: Option<Option<(FileName, u64, bool)>>,
    /// File that is being sent, and the number of bytes that the node has.
    sending: Option<(FileName, u64)>,
    /// Reason why the node could not store a file, and the time from which on the server tries again.
    failed: Option<(String, Instant)>,
    /// Time since which the copy is incomplete.
    behind: Option<Instant>,
}

impl NodeCopy {
    fn new(epoch: u64) -> Self {
        Self {
            epoch,
            known: None,
            sent: None,
            sending: None,
            failed: None,
            behind: None,
        }
    }

    /// Handles the answer to the message in flight. Another answer belongs to a connection that has ended.
    fn answered(&mut self, copied: v1::LogCopied) {
        let Some(sent) = self.sent.take() else {
            return;
        };
        if sent.map_or(String::new(), |(name, ..)| name.to_string()) != copied.name {
            self.sent = Some(sent);
            return;
        }
        if !copied.error.is_empty() {
            self.sending = None;
            self.failed = Some((copied.error, Instant::now() + AGAIN));
            return;
        }
        self.failed = None;
        let Some((name, end, last)) = sent else {
            let files = copied.files.iter();
            self.known = Some(files.filter_map(|name| name.parse().ok()).collect());
            return;
        };
        self.sending = (!last).then_some((name, end));
        if last && let Some(known) = &mut self.known {
            known.insert(name);
        }
    }

    /// Records that the copy is incomplete. Returns the reason if it has been incomplete for too long.
    fn delay(&mut self) -> Option<String> {
        let since = *self.behind.get_or_insert_with(Instant::now);
        let why = self.failed.as_ref().map_or("it is slow", |(why, _)| why);
        (since.elapsed() >= ABSENCE_MAX)
            .then(|| format!("it can't store the log of the server's database: {why}"))
    }

    /// Returns the next missing file: the last snapshot of the log and what follows it before all others.
    fn missing(&self, (files, base): (&BTreeMap<FileName, u64>, FileName)) -> Option<FileName> {
        let known = self.known.as_ref()?;
        let mut all = files.range(base..).chain(files.range(..base));
        all.find_map(|(name, _)| (!known.contains(name)).then_some(*name))
    }

    /// Returns the files on the node that are not needed, once the copies are complete. A file of an earlier log stays on the node for the
    /// retention, so that a database that was recovered wrongly can be recovered again.
    fn unneeded(
        &self,
        files: &BTreeMap<FileName, u64>,
        (wanted, log, of): (bool, (u64, u32), &LogFacts),
    ) -> Vec<FileName> {
        let known = self.known.iter().flatten();
        let unneeded = known.filter(|&name| {
            let id = name.log_id();
            let kept = wanted && files.contains_key(name);
            !kept && (id == log || of.known.contains(&id) && of.began.elapsed() >= of.retention)
        });
        unneeded.copied().collect()
    }
}

/// Facts about the logs of the database.
struct LogFacts {
    /// Terms and ids of the logs that the database knows.
    known: BTreeSet<(u64, u32)>,
    /// Start of the server.
    began: Instant,
    /// Time for which earlier states are kept.
    retention: Duration,
}

/// Copies the log to nodes.
pub(crate) struct LogCopies {
    cluster: Arc<Cluster>,
    log: Arc<LogWriter>,
    nodes: BTreeMap<u32, NodeCopy>,
    /// Nodes that have the copies, each with the time since which it is offline.
    holders: BTreeMap<u32, Option<Instant>>,
    /// Time since which there are fewer copies than wanted.
    few: Option<Instant>,
    facts: LogFacts,
}

impl LogCopies {
    pub(crate) fn new(
        (cluster, database): (&Arc<Cluster>, &Arc<Database>),
        log: &Arc<LogWriter>,
    ) -> Result<Self, Fault> {
        Ok(Self {
            cluster: cluster.clone(),
            log: log.clone(),
            nodes: BTreeMap::new(),
            holders: BTreeMap::new(),
            few: None,
            facts: LogFacts {
                known: database.read(settings::logs)?.into_iter().collect(),
                began: Instant::now(),
                retention: log.retention(),
            },
        })
    }

    /// Chooses the nodes that have the copies. A node keeps its copy as long as it is connected.
    fn choose(&mut self, stores: &BTreeMap<u32, (String, Option<u64>)>) {
        let now = Instant::now();
        self.holders.retain(|node, offline| {
            let Some((_, epoch)) = stores.get(node) else {
                return false;
            };
            match epoch {
                Some(_) => *offline = None,
                None => _ = offline.get_or_insert(now),
            }
            offline.is_none_or(|since| since.elapsed() < ABSENCE_MAX)
        });
        let host = |node: &u32| stores.get(node).map(|(host, _)| host);
        let up = || stores.iter().filter(|(_, (_, epoch))| epoch.is_some());
        let mut hosts: BTreeSet<_> = self.holders.keys().filter_map(host).collect();
        // Two copies on one host are as good as one, if another host has a node.
        if self.holders.len() == COPIES
            && hosts.len() == 1
            && up().any(|(node, _)| host(node).is_some_and(|host| !hosts.contains(host)))
        {
            self.holders.pop_last();
        }
        while self.holders.len() < COPIES {
            let free = || up().filter(|(node, _)| !self.holders.contains_key(node));
            let other = free().find(|(_, (host, _))| !hosts.contains(host));
            let Some((node, (host, _))) = other.or_else(|| free().next()) else {
                break;
            };
            hosts.insert(host);
            self.holders.insert(*node, None);
        }
    }

    /// Takes the answers of nodes, and forgets what belonged to connections that have ended.
    fn hear(&mut self, stores: &BTreeMap<u32, (String, Option<u64>)>) {
        let mut answers = std::mem::take(&mut *self.cluster.copied_logs().answers.lock());
        self.nodes.retain(|node, _| stores.contains_key(node));
        for (node, (_, epoch)) in stores {
            let Some(epoch) = *epoch else {
                self.nodes.remove(node);
                continue;
            };
            let copy = self
                .nodes
                .entry(*node)
                .or_insert_with(|| NodeCopy::new(epoch));
            if copy.epoch != epoch {
                *copy = NodeCopy::new(epoch);
            }
            if let Some((_, copied)) = answers.remove(node).filter(|(of, _)| *of == epoch) {
                copy.answered(copied);
            }
        }
    }

    /// Sends each node its next message. Returns the time after which a failed node is asked again.
    fn send(&mut self, stores: usize) -> Option<Instant> {
        let files = self.log.files();
        let (base, last) = ends(&files, self.log.id()).unzip();
        let mut again = None;
        let mut state = CopiesState::default();
        let holders = self
            .nodes
            .keys()
            .filter(|node| self.holders.contains_key(node));
        state.copies = holders.count();
        let mut incomplete = state.copies;
        let complete = self.cluster.copied_logs().state.lock().complete.is_some();
        for (&node, copy) in &mut self.nodes {
            let wanted = self.holders.contains_key(&node);
            let missing = base
                .filter(|_| wanted)
                .and_then(|base| copy.missing((&files, base)));
            if wanted && base.is_some() && copy.known.is_some() && missing.is_none() {
                copy.behind = None;
                incomplete -= 1;
            } else if wanted && let Some(why) = copy.delay() {
                state.delayed.insert(node, why);
            }
            let mut names = copy.known.iter().flatten();
            if names.any(|name| !self.facts.known.contains(&name.log_id())) {
                state.foreign = Some(node);
            }
            if copy.sent.is_some() {
                continue;
            }
            if let Some((_, at)) = copy.failed
                && Instant::now() < at
            {
                again = Some(again.map_or(at, |known: Instant| known.min(at)));
                continue;
            }
            let message = match (&copy.known, missing) {
                (None, _) => Some((v1::LogCopy::default(), None)),
                (_, Some(name)) => piece(&self.log, (name, files.get(&name)), copy.sending),
                // Nothing is removed before the new copies are complete.
                (Some(_), None) if complete => {
                    removal(copy.unneeded(&files, (wanted, self.log.id(), &self.facts)))
                }
                (Some(_), None) => None,
            };
            if let Some((message, sent)) = message
                && self.cluster.send(node, To::Log(message))
            {
                copy.sent = Some(sent);
            }
        }
        let few = self.holders.len() < COPIES.min(stores);
        self.few = few.then(|| self.few.unwrap_or_else(Instant::now));
        if self.few.is_some_and(|since| since.elapsed() >= ABSENCE_MAX) {
            let why = format!(
                "{} of {} copies of the log exist",
                self.holders.len(),
                COPIES
            );
            state.few = Some(why);
        }
        state.complete = last.filter(|_| incomplete == 0 && state.copies > 0);
        *self.cluster.copied_logs().state.lock() = state;
        again
    }
}

/// Returns the last snapshot and the last file of a log; `None` before its first snapshot is complete. Files of other logs may be in the same
/// directory, also of later terms.
fn ends(files: &BTreeMap<FileName, u64>, log: (u64, u32)) -> Option<(FileName, FileName)> {
    let own = || files.keys().rev().filter(|name| name.log_id() == log);
    let base = own().find(|name| name.kind == FileKind::Snapshot)?;
    Some((*base, *own().next()?))
}

/// Returns the message that removes files from a node; `None` if there are none.
fn removal(names: Vec<FileName>) -> Option<(v1::LogCopy, SentPiece)> {
    let removed: Vec<_> = names.iter().map(ToString::to_string).collect();
    let copy = v1::LogCopy {
        removed,
        ..v1::LogCopy::default()
    };
    (!copy.removed.is_empty()).then_some((copy, None))
}

/// Sent content: the file, the end of the content, and whether the file ends there.
type SentPiece = Option<(FileName, u64, bool)>;

/// Returns the message with the next piece of a file; `None` if the file does not exist any more.
fn piece(
    log: &LogWriter,
    (name, length): (FileName, Option<&u64>),
    sending: Option<(FileName, u64)>,
) -> Option<(v1::LogCopy, SentPiece)> {
    let length = *length?;
    let offset = sending.filter(|(file, _)| *file == name);
    let offset = offset.map_or(0, |(_, offset)| offset);
    let count = length.saturating_sub(offset).min(PIECE);
    let mut content = vec![0; usize::try_from(count).ok()?];
    let file = std::fs::File::open(log.path(name));
    let read = file.and_then(|file| file.read_exact_at(&mut content, offset));
    if let Err(error) = read {
        tracing::warn!(%error, %name, "can't read a file of the database's log");
        return None;
    }
    let end = offset + count;
    let last = end == length;
    let copy = v1::LogCopy {
        name: name.to_string(),
        offset,
        content,
        last,
        removed: Vec::new(),
    };
    Some((copy, Some((name, end, last))))
}

/// Sends the last snapshot and the segments after it to a client that has the files `known`. Runs on a thread outside the runtime.
pub(crate) fn send(
    log: &LogWriter,
    known: &[String],
    to: &tokio::sync::mpsc::Sender<Result<v1::LogPiece, Status>>,
) {
    let status = log.flush(BACKUP_FLUSH_MAX);
    if let Some(trouble) = status.trouble {
        let refused = format!("the log of the server's database can't be written: {trouble}");
        let _ = to.blocking_send(Err(Status::unavailable(refused)));
        return;
    }
    let files = log.files();
    let Some((base, _)) = ends(&files, log.id()) else {
        let _ = to.blocking_send(Err(Status::unavailable(
            "no snapshot is complete; try again",
        )));
        return;
    };
    for (name, length) in files.range(base..) {
        if known.contains(&name.to_string()) {
            continue;
        }
        let mut sending = None;
        loop {
            let Some((copy, sent)) = piece(log, (*name, Some(length)), sending) else {
                let refused = Status::unavailable("a file of the log can't be read; try again");
                let _ = to.blocking_send(Err(refused));
                return;
            };
            let last = copy.last;
            let piece = v1::LogPiece {
                name: copy.name,
                content: copy.content,
                last,
                time_ns: status.time,
            };
            if to.blocking_send(Ok(piece)).is_err() {
                return;
            }
            if last {
                break;
            }
            sending = sent.map(|(name, end, _)| (name, end));
        }
    }
}

impl Chore for LogCopies {
    fn delays(&self) -> &'static str {
        "the log of the database is copied later"
    }

    fn woken_by(&self) -> Signals {
        LOGGED.and(NODES)
    }

    fn rest(&self) -> Duration {
        REST
    }

    fn due(&mut self, _now: i64) -> Result<Due, Fault> {
        Ok(Due::NOW)
    }

    fn step(&mut self, _now: i64) -> Step<'_> {
        Box::pin(async move {
            let stores = self.cluster.stores_on_disk();
            self.hear(&stores);
            self.choose(&stores);
            let again = self.send(stores.len());
            let left = again.map(|at| at.saturating_duration_since(Instant::now()));
            // A node that does not come back is replaced without a signal.
            let absent = self.holders.values().any(Option::is_some);
            let behind = self.nodes.values().any(|copy| copy.behind.is_some());
            let waits = absent || behind || self.few.is_some();
            let left = left.or_else(|| waits.then_some(AGAIN));
            Ok(left.map_or(Due::Woken, Due::After))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(term: u64, log: u32, number: u64, kind: FileKind) -> FileName {
        FileName {
            term,
            log,
            number,
            kind,
        }
    }

    fn snapshot(term: u64, log: u32, number: u64) -> FileName {
        name(term, log, number, FileKind::Snapshot)
    }

    fn segment(term: u64, log: u32, number: u64) -> FileName {
        name(term, log, number, FileKind::Segment)
    }

    fn copied(name: &str, error: &str, files: &[FileName]) -> v1::LogCopied {
        v1::LogCopied {
            name: name.into(),
            error: error.into(),
            files: files.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn files_of_other_logs_are_no_base_of_copies_and_backups() {
        // An older database was put back: the directory has a log of a later term, and one of the same term.
        let mut files = BTreeMap::from([
            (snapshot(2, 5, 3), 1),
            (segment(2, 5, 4), 1),
            (snapshot(2, 9, 8), 1),
            (snapshot(3, 1, 0), 1),
        ]);
        assert_eq!(
            ends(&files, (2, 5)),
            Some((snapshot(2, 5, 3), segment(2, 5, 4)))
        );
        // Segments without a snapshot are no copy.
        files.remove(&snapshot(2, 5, 3));
        assert_eq!(ends(&files, (2, 5)), None);
        assert_eq!(ends(&files, (4, 1)), None);
    }

    #[test]
    fn answer_of_an_ended_connection_is_ignored() {
        let mut copy = NodeCopy::new(1);
        copy.sent = Some(None);
        let sent = segment(1, 7, 1);
        copy.answered(copied(&sent.to_string(), "", &[]));
        assert_eq!((copy.sent, &copy.known), (Some(None), &None));
        copy.answered(copied("", "", &[snapshot(1, 7, 0)]));
        assert_eq!(copy.known, Some(BTreeSet::from([snapshot(1, 7, 0)])));
        // A file counts as stored only after its last piece, and not if the node failed.
        for (last, error, stored) in [(false, "", false), (true, "full", false), (true, "", true)] {
            copy.sent = Some(Some((sent, 9, last)));
            copy.answered(copied(&sent.to_string(), error, &[]));
            assert_eq!(copy.known.as_ref().unwrap().contains(&sent), stored);
            assert_eq!(copy.failed.is_some(), !error.is_empty());
        }
    }

    #[test]
    fn logs_that_may_be_needed_stay_on_nodes() {
        let (own, older, unknown) = (segment(3, 1, 1), segment(2, 1, 1), segment(4, 1, 1));
        let mut copy = NodeCopy::new(1);
        copy.known = Some(BTreeSet::from([own, older, unknown]));
        let facts = |age| LogFacts {
            known: BTreeSet::from([(3, 1), (2, 1)]),
            began: Instant::now() - age,
            retention: Duration::from_secs(60),
        };
        let files = BTreeMap::from([(own, 1)]);
        let unneeded = |wanted, age| copy.unneeded(&files, (wanted, (3, 1), &facts(age)));
        let (young, old) = (Duration::ZERO, Duration::from_secs(60));
        assert_eq!(unneeded(true, young), []);
        assert_eq!(unneeded(true, old), [older]);
        assert_eq!(unneeded(false, young), [own]);
        assert_eq!(unneeded(false, old), [older, own]);
    }
}
