//! The log of a leader that other servers follow: each group of commits becomes a record, and the callers of a commit continue when the log has
//! its record (next: `log/src/follower.rs`).
//!
//! A thread reads the pages that changed since the last record, and gives the record to a [`RecordSender`]. Up to [`IN_FLIGHT_MAX`] records are
//! on their way at once; commits that come in the meantime share the next record. If the log refuses a record, another server leads: then no
//! caller gets an answer any more.

use crate::file::{AttachedFile, FileWriter, Header, LogKey};
use crate::name::{FileKind, FileName};
use crate::pages::{PageChanges, PageView, Source, SourceProblem};
use crate::writer;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of records on their way to the log.
const IN_FLIGHT_MAX: usize = 4;
/// A snapshot is made when the records since the last one are as long as that snapshot, but at least this long: a server that starts reads
/// them one by one.
const SNAPSHOT_BYTES_MIN: u64 = 4 << 20;

/// Number of times that changes are looked for if SQLite has appended some; a transaction may end in between.
const CHANGES_TRIES: u32 = 3;

/// Record of the log: the pages that changed since the record before it.
#[derive(Debug)]
pub struct Record {
    /// Number of the record in its term: 1 for the first.
    pub number: u64,
    /// Content of the record, encrypted.
    pub bytes: Vec<u8>,
}

/// Snapshot in a file, for the log.
#[derive(Debug)]
pub struct SnapshotFile {
    /// Name in the log. The snapshot has the state after the record of this number.
    pub name: FileName,
    /// Path of the file.
    pub path: PathBuf,
}

/// Sender of records to the log. It reports each record that the log has to [`Replicator::acknowledge`].
pub trait RecordSender: Send + Sync + std::fmt::Debug {
    /// Sends a record after those before it, without a wait.
    fn send(&self, record: Record);
    /// Stores a snapshot, and removes its file.
    fn store(&self, snapshot: SnapshotFile);
}

/// The leader has lost its leadership, or can't lead any more; no commit is acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this server does not lead the cluster any more: {why}")]
pub struct Deposed {
    /// Reason.
    pub why: String,
    /// Whether another server leads.
    pub by_other: bool,
}

/// Settings of a replicated log.
#[derive(Clone, Debug)]
pub struct ReplicatorSettings {
    /// Key of the log.
    pub key: LogKey,
    /// Id of the cluster.
    pub cluster: u64,
    /// Number of this leadership: 1 for the first.
    pub term: u64,
    /// Random id of this leadership's records. No other log of the same term may have it.
    pub log: u32,
    /// Files of the server's directory that the log contains.
    pub attached: Vec<PathBuf>,
    /// File in which a snapshot is written before it is stored.
    pub snapshot: PathBuf,
}

/// State of a database from which its records begin.
#[derive(Debug)]
pub struct RecordBase(Source);

impl RecordBase {
    /// Reads the present state of a database. The value must be dropped after the connections of SQLite in this process.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn open(database: &Path) -> io::Result<Self> {
        Source::open(database).map(Self)
    }
}

/// Function that is called when the log has a commit, and dropped if the log will never have it.
type Answer = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Progress {
    /// Whether a transaction may be visible that is not counted yet.
    committing: bool,
    /// Number of commits, of commits in records that were sent, and of commits that the log has.
    commits: u64,
    sent: u64,
    acknowledged: u64,
    /// Number of each record on its way, and of the last commit in it.
    in_flight: VecDeque<(u64, u64)>,
    /// Answers in the order of their commits.
    waiting: VecDeque<(u64, Answer)>,
    deposed: Option<Deposed>,
    stop: bool,
}

impl Progress {
    /// Records that the log has all commits up to this one. Returns the answers that can be given.
    fn advance(&mut self, commit: u64) -> Vec<Answer> {
        self.acknowledged = self.acknowledged.max(commit);
        let ready = |(commit, _): &(u64, Answer)| *commit <= self.acknowledged;
        let count = self.waiting.iter().take_while(|one| ready(one)).count();
        let answers = self.waiting.drain(..count);
        answers.map(|(_, answer)| answer).collect()
    }
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn advance(&self, change: impl FnOnce(&mut Progress) -> Vec<Answer>) {
        let answers = change(&mut self.progress.lock());
        self.changed.notify_all();
        answers.into_iter().for_each(|answer| answer());
    }

    fn depose(&self, deposed: Deposed) {
        let mut progress = self.progress.lock();
        progress.deposed.get_or_insert(deposed);
        let waiting = std::mem::take(&mut progress.waiting);
        drop(progress);
        self.changed.notify_all();
        drop(waiting);
    }
}

/// The database of the leader.
#[derive(Debug)]
struct Recorder {
    source: Source,
    settings: ReplicatorSettings,
    sender: Arc<dyn RecordSender>,
    /// Number and moment of the last record.
    number: u64,
    time: i64,
    attached: Vec<AttachedFile>,
    /// Bytes of the records since the last snapshot, and of that snapshot.
    since_snapshot: u64,
    snapshot_bytes: u64,
    /// Whether a snapshot is being written.
    snapshot: bool,
}

/// Log of a leader, as described in the module's documentation.
#[derive(Debug)]
pub struct Replicator {
    shared: Arc<Shared>,
    recorder: Arc<Mutex<Recorder>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Replicator {
    /// Prepares the log of a database. The value must be dropped after the connections of SQLite in this process.
    ///
    /// # Errors
    /// A file of the server's directory can't be read.
    pub fn new(
        settings: ReplicatorSettings,
        RecordBase(source): RecordBase,
        sender: Arc<dyn RecordSender>,
    ) -> io::Result<Self> {
        let recorder = Recorder {
            source,
            sender,
            number: 0,
            time: 0,
            // The first record has them.
            attached: Vec::new(),
            since_snapshot: 0,
            snapshot_bytes: 0,
            snapshot: false,
            settings,
        };
        Ok(Self {
            shared: Arc::default(),
            recorder: Arc::new(Mutex::new(recorder)),
            thread: Mutex::default(),
        })
    }

    /// Writes a snapshot of the state from which the records begin. Returns its name.
    ///
    /// # Errors
    /// The database can't be read, or the file can't be written.
    pub fn write_base(&self) -> io::Result<SnapshotFile> {
        let mut recorder = self.recorder.lock();
        recorder.attached = writer::attached(&recorder.settings.attached)?;
        let header = recorder.header(FileKind::Snapshot, 0);
        let path = recorder.settings.snapshot.clone();
        let view = recorder.source.view().clone();
        let (key, attached) = (recorder.settings.key.clone(), recorder.attached.clone());
        recorder.snapshot_bytes = writer::write_snapshot(&path, &header, (&key, &attached), &view)?;
        let name = header.name;
        Ok(SnapshotFile { name, path })
    }

    /// Starts to send records.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(&self) -> io::Result<()> {
        let (shared, recorder) = (self.shared.clone(), self.recorder.clone());
        let builder = std::thread::Builder::new().name("replicator".into());
        let thread = builder.spawn(move || {
            while wait_for_commits(&shared) {
                if let Err(error) = record(&recorder, &shared) {
                    return shared.depose(failed(&error));
                }
            }
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Tells the log that a commit begins: readers may see it from now on.
    pub fn committing(&self) {
        self.shared.progress.lock().committing = true;
    }

    /// Tells the log that a commit has ended, and whether something was committed.
    pub fn ended(&self, committed: bool) {
        let mut progress = self.shared.progress.lock();
        progress.committing = false;
        progress.commits += u64::from(committed);
        drop(progress);
        self.shared.changed.notify_all();
    }

    /// Tells the log that something was changed outside of a transaction.
    pub fn committed(&self) {
        self.ended(true);
    }

    /// Returns the number of the last commit.
    #[must_use]
    pub fn last_commit(&self) -> u64 {
        self.shared.progress.lock().commits
    }

    /// Calls `answer` when the log has all commits up to this one. Drops `answer` if the log will never have them.
    pub fn then(&self, commit: u64, answer: impl FnOnce() + Send + 'static) {
        let mut progress = self.shared.progress.lock();
        if progress.deposed.is_some() {
            return;
        }
        if progress.acknowledged < commit {
            progress.waiting.push_back((commit, Box::new(answer)));
            return;
        }
        drop(progress);
        answer();
    }

    /// Returns whether the log has all commits so far.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let progress = self.shared.progress.lock();
        progress.deposed.is_none()
            && !progress.committing
            && progress.acknowledged >= progress.commits
    }

    /// Waits until the log has all commits that a reader may have seen.
    ///
    /// # Errors
    /// The log will never have them.
    pub fn wait_for_reads(&self) -> Result<(), Deposed> {
        let mut progress = self.shared.progress.lock();
        let seen = progress.commits + u64::from(progress.committing);
        loop {
            if let Some(deposed) = &progress.deposed {
                return Err(deposed.clone());
            }
            let failed = !progress.committing && progress.commits < seen;
            if progress.acknowledged >= seen - u64::from(failed) {
                return Ok(());
            }
            self.shared.changed.wait(&mut progress);
        }
    }

    /// Waits until the log has all commits up to this one.
    ///
    /// # Errors
    /// The log will never have them.
    pub fn wait(&self, commit: u64) -> Result<(), Deposed> {
        let mut progress = self.shared.progress.lock();
        loop {
            if let Some(deposed) = &progress.deposed {
                return Err(deposed.clone());
            }
            if progress.acknowledged >= commit {
                return Ok(());
            }
            self.shared.changed.wait(&mut progress);
        }
    }

    /// Records that the log has all records up to this one.
    pub fn acknowledge(&self, number: u64) {
        self.shared.advance(|progress| {
            let mut commit = 0;
            while let Some(&(first, last)) = progress.in_flight.front()
                && first <= number
            {
                commit = last;
                progress.in_flight.pop_front();
            }
            progress.advance(commit)
        });
    }

    /// Ends the leadership.
    pub fn depose(&self, deposed: Deposed) {
        self.shared.depose(deposed);
    }

    /// Returns the reason why this server does not lead any more.
    #[must_use]
    pub fn deposed(&self) -> Option<Deposed> {
        self.shared.progress.lock().deposed.clone()
    }

    /// Copies the write-ahead log into the database by `copy`, which returns whether all of it was copied. No transaction may run. Returns
    /// whether all of it was copied.
    ///
    /// # Errors
    /// The copy failed.
    pub fn checkpoint(&self, copy: impl FnOnce() -> io::Result<bool>) -> io::Result<bool> {
        if self.recorder.lock().snapshot {
            return Ok(false);
        }
        if let Err(error) = record(&self.recorder, &self.shared) {
            self.shared.depose(failed(&error));
            return Ok(false);
        }
        let mut recorder = self.recorder.lock();
        if recorder.snapshot {
            return Ok(false);
        }
        let complete = copy()?;
        if complete {
            recorder.source.checkpointed();
        }
        Ok(complete)
    }

    /// Waits until the log has all commits, at most for a time, and ends the leadership: callers that still wait get no answer.
    pub fn close(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut progress = self.shared.progress.lock();
        progress.stop = true;
        self.shared.changed.notify_all();
        while progress.deposed.is_none() && progress.acknowledged < progress.commits {
            let waited = self.shared.changed.wait_until(&mut progress, until);
            if waited.timed_out() {
                break;
            }
        }
        drop(progress);
        self.shared.depose(Deposed {
            why: "the server ends".into(),
            by_other: false,
        });
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Replicator {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

fn failed(error: &io::Error) -> Deposed {
    Deposed {
        why: error.to_string(),
        by_other: false,
    }
}

/// Waits until a record is due. Returns whether one is due.
fn wait_for_commits(shared: &Shared) -> bool {
    let mut progress = shared.progress.lock();
    loop {
        let is_due = progress.commits > progress.sent;
        if progress.deposed.is_some() || (progress.stop && !is_due) {
            return false;
        }
        if is_due && progress.in_flight.len() < IN_FLIGHT_MAX {
            return true;
        }
        shared.changed.wait(&mut progress);
    }
}

/// Sends a record with all commits so far.
fn record(recorder: &Arc<Mutex<Recorder>>, shared: &Shared) -> io::Result<()> {
    let mut locked = recorder.lock();
    // Read before the pages: a later commit may be in the record, too.
    let last = shared.progress.lock().commits;
    let Some(record) = locked.next()? else {
        shared.advance(|progress| {
            progress.sent = last;
            match progress.in_flight.back_mut() {
                Some((_, commit)) => {
                    *commit = last;
                    Vec::new()
                }
                None => progress.advance(last),
            }
        });
        return Ok(());
    };
    let mut progress = shared.progress.lock();
    progress.sent = last;
    progress.in_flight.push_back((record.number, last));
    drop(progress);
    locked.sender.send(record);
    if !locked.snapshot && locked.since_snapshot >= locked.snapshot_bytes.max(SNAPSHOT_BYTES_MIN) {
        locked.begin_snapshot(recorder.clone())?;
    }
    Ok(())
}

impl Recorder {
    fn header(&self, kind: FileKind, number: u64) -> Header {
        let view = self.source.view();
        Header {
            name: FileName {
                term: self.settings.term,
                log: self.settings.log,
                number,
                kind,
            },
            cluster: self.settings.cluster,
            time: writer::now().max(self.time + 1),
            page_size: view.page_size,
            pages: view.pages,
            stored: view.pages,
        }
    }

    /// Returns the changes since the last record; `None` if there are none.
    fn changes(&mut self) -> io::Result<Option<PageChanges>> {
        for _ in 0..CHANGES_TRIES {
            let changes = self.source.changes().map_err(|problem| match problem {
                SourceProblem::Io(error) => error,
                SourceProblem::Disturbed => io::Error::other(problem.to_string()),
            })?;
            // SQLite knows how many pages it has appended: none may be overlooked.
            if changes.is_some() || self.source.wal_bytes().0 == 0 {
                return Ok(changes);
            }
        }
        Err(io::Error::other("the write-ahead log can't be read"))
    }

    /// Returns the next record; `None` if nothing has changed.
    fn next(&mut self) -> io::Result<Option<Record>> {
        let changes = self.changes()?;
        let attached = writer::attached(&self.settings.attached)?;
        let attached = (attached != self.attached).then_some(attached);
        if changes.is_none() && attached.is_none() {
            return Ok(None);
        }
        let mut header = self.header(FileKind::Segment, self.number + 1);
        (header.pages, header.stored) = match &changes {
            Some(changes) => changes.counts(),
            None => (header.pages, 0),
        };
        let files = attached.as_deref().unwrap_or_default();
        let mut to = FileWriter::new(Vec::new(), &header, &self.settings.key, files)?;
        if let Some(changes) = changes {
            self.source.write(&changes, &mut to)?;
            self.source.advance(changes);
        }
        let (bytes, length) = to.finish();
        if let Some(attached) = attached {
            self.attached = attached;
        }
        (self.number, self.time) = (header.name.number, header.time);
        self.since_snapshot += length;
        let number = self.number;
        Ok(Some(Record { number, bytes }))
    }

    /// Starts to write a snapshot of the state after the last record.
    fn begin_snapshot(&mut self, this: Arc<Mutex<Self>>) -> io::Result<()> {
        let header = self.header(FileKind::Snapshot, self.number);
        let view = self.source.view().clone();
        // An earlier snapshot may still be on its way.
        let path = self
            .settings
            .snapshot
            .with_extension(self.number.to_string());
        let (key, attached) = (self.settings.key.clone(), self.attached.clone());
        self.snapshot = true;
        self.since_snapshot = 0;
        let write = move || {
            let written = writer::write_snapshot(&path, &header, (&key, &attached), &view);
            this.lock()
                .end_snapshot((header.name, path), &view, written);
        };
        let builder = std::thread::Builder::new().name("snapshot".into());
        builder.spawn(write).map(drop)
    }

    fn end_snapshot(
        &mut self,
        (name, path): (FileName, PathBuf),
        view: &PageView,
        written: io::Result<u64>,
    ) {
        self.snapshot = false;
        let undisturbed = self.source.is_undisturbed(view).unwrap_or(false);
        match written {
            Ok(bytes) if undisturbed => {
                self.snapshot_bytes = bytes;
                self.sender.store(SnapshotFile { name, path });
            }
            written => {
                if let Err(error) = written {
                    tracing::warn!(%error, "can't write a snapshot for the replicated log");
                }
                let _ = std::fs::remove_file(path);
                // Tries again earlier than after a success.
                self.since_snapshot += self.snapshot_bytes.max(SNAPSHOT_BYTES_MIN) / 2;
            }
        }
    }
}
