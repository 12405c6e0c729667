//! The agent carries out the labels of its user's applications, also after the applications have ended (next: `mount/src/fuse/mod.rs`).
//!
//! The agent is a process of the user, and works through the mount, by ordinary system calls. So the agent has the same rights as the
//! application, and labels have the effects of system calls on the mount. One thread serves each log. The thread carries out the labels of
//! a batch file by file: it merges consecutive writes, processes different files at the same time, and the labels of one file take effect
//! in the order of their publication.

use crate::app::PUT;
use crate::directory::LogDirectory;
use crate::error::Error;
use crate::events::Awaiting;
use crate::execute::AppFiles;
use crate::intent::AgentSettings;
use crate::jobs::Jobs;
use crate::log::{Log, LogRecord, RecordStatus, RequestKind};
use crate::shared_index::{self, SharedIndex};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of labels of a log that are taken into one batch.
const BATCH_MAX: usize = 8192;
/// Interval at which an idle agent checks whether its applications exist.
const LOOK: Duration = Duration::from_millis(500);
/// Time for which a resumable application's log is kept after the application ended.
const KEPT: Duration = Duration::from_secs(60);
/// Time for which an agent without applications continues to run.
const LINGER: Duration = Duration::from_secs(30);
/// Maximum number of applications of a user.
const LOGS_MAX: usize = 1024;
/// Number of files that are processed at the same time for an application with many files.
const WORKERS: usize = 4;
/// Number of files up to which one thread is as fast as several threads.
const FEW: usize = 8;

/// Function that reports an event, such as a failure, that has no other recipient.
pub type Tell = fn(&str);

/// Carries labels out until no application has existed for a while, or forever if `stays`. Returns at once if another agent already serves
/// the directory of logs. Otherwise calls `begins` with this directory.
///
/// # Errors
/// The directory of logs cannot be used.
pub fn run(
    directory: Option<&Path>,
    stays: bool,
    tell: Tell,
    begins: impl FnOnce(&Path),
) -> Result<(), Error> {
    let directory = LogDirectory::open(directory)?;
    let mut begins = Some(begins);
    // Modes are those that the application would set.
    rustix::process::umask(rustix::fs::Mode::empty());
    while let Some(lock) = directory.lock()? {
        if let Some(begins) = begins.take() {
            begins(directory.path());
        }
        serve(&directory, &lock, stays, tell)?;
        drop(lock);
        // An application that registered just now has seen the lock, and started no agent.
        if logs(&directory)?.is_empty() {
            break;
        }
    }
    Ok(())
}

fn logs(directory: &LogDirectory) -> Result<Vec<PathBuf>, Error> {
    directory.logs().map_err(|source| Error::Log {
        path: directory.path().to_owned(),
        source,
    })
}

fn serve(directory: &LogDirectory, lock: &File, stays: bool, tell: Tell) -> Result<(), Error> {
    let (bell, shared_index) = (
        directory.bell()?,
        Arc::new(SharedIndex::open(directory.path())?),
    );
    shared_index.forget_unseen();
    let mut stuck = Vec::new();
    let mut kept: HashMap<PathBuf, JoinHandle<()>> = HashMap::new();
    let (mut idle, mut begun) = (Instant::now(), Instant::now());
    loop {
        let rung = bell.rung();
        kept.retain(|_, thread| !thread.is_finished());
        // Otherwise the logs there belong to another agent.
        let is_ours = directory.is_locked_by(lock);
        for path in is_ours
            .then(|| logs(directory))
            .transpose()?
            .into_iter()
            .flatten()
        {
            if kept.contains_key(&path) || kept.len() >= LOGS_MAX {
                continue;
            }
            match take_up(&path) {
                // Checked again: the log may be in a directory that was created since.
                _ if !directory.is_locked_by(lock) => break,
                Ok(log) => {
                    let shared_index = shared_index.clone();
                    let keeper = move || LogKeeper::new(log, shared_index, tell).run();
                    kept.insert(path, std::thread::spawn(keeper));
                }
                Err(error) => set_aside(&path, &error.to_string(), tell),
            }
        }
        if kept.is_empty() && !is_ours {
            return Ok(());
        }
        if !kept.is_empty() || stays {
            idle = Instant::now();
        } else if idle.elapsed() > LINGER {
            return Ok(());
        }
        bell.wait(rung, LOOK);
        // A change of an entry takes far less than the time between two checks.
        if begun.elapsed() > LOOK {
            let changing = shared_index.changing();
            let both: Vec<_> = changing.iter().filter(|one| stuck.contains(*one)).collect();
            shared_index.repair(both);
            (stuck, begun) = (changing, Instant::now());
        }
    }
}

fn take_up(path: &Path) -> Result<Log, Error> {
    let log = Log::open(path)?;
    if log.is_of_this_boot() {
        return Ok(log);
    }
    let why =
        "the machine was restarted since: it is not known which of its labels reached the device";
    Err(Error::corrupt(path, why))
}

/// Sets a corrupt log aside for inspection, under a name that no agent takes up.
fn set_aside(path: &Path, why: &str, tell: Tell) {
    let aside = path.with_extension("bad");
    let kept = std::fs::rename(path, &aside);
    let aside = aside.display();
    match kept {
        Ok(()) => tell(&format!("{why}; the log is kept as {aside}")),
        Err(error) => tell(&format!("{why}, and the log can't be renamed: {error}")),
    }
}

/// Thread state for serving one log.
struct LogKeeper {
    log: Arc<Log>,
    tell: Tell,
    files: AppFiles,
    jobs: Jobs,
    awaiting: Awaiting,
    /// Position in the log up to which all labels are settled.
    at: u64,
    /// Id of the last settled label.
    last: u64,
    written: Instant,
    manner: AgentSettings,
    /// Shared index in which put files are visible until they are stored.
    shared_index: Arc<SharedIndex>,
    /// Puts that are not stored: hash of the path, position of the record, and whether the put is visible in the shared index.
    puts: Vec<(u64, u64, bool)>,
    /// Time since which the agent gathers labels.
    gathers: Option<Instant>,
    /// Time since which no application has the log open.
    left: Option<Instant>,
}

impl LogKeeper {
    fn new(log: Log, shared_index: Arc<SharedIndex>, tell: Tell) -> Self {
        let (root, system) = log.root();
        let files = AppFiles::new(root, system, log.umask());
        let (at, last) = (log.freed(), log.stored());
        let manner = log.intent().manner();
        Self {
            log: Arc::new(log),
            tell,
            files,
            jobs: Jobs::default(),
            awaiting: Awaiting::default(),
            at,
            last,
            written: Instant::now(),
            manner,
            shared_index,
            puts: Vec::new(),
            gathers: None,
            left: None,
        }
    }

    /// Whether no application has the log open, or will resume it.
    fn is_left(&mut self) -> bool {
        if !self.log.is_left() {
            self.left = None;
            return false;
        }
        let since = *self.left.get_or_insert_with(Instant::now);
        !self.log.is_keyed() || since.elapsed() > KEPT
    }

    fn run(mut self) {
        match self.serve() {
            // Another log has its path, or none.
            Ok(()) if !self.log.is_at_its_path() => {}
            Err(error) if !self.log.is_at_its_path() => {
                (self.tell)(&format!("{}: {error}", self.log.path().display()));
            }
            Ok(()) => {
                if let Err(error) = std::fs::remove_file(self.log.path()) {
                    (self.tell)(&format!("{}: {error}", self.log.path().display()));
                }
            }
            Err(error) => set_aside(self.log.path(), &error.to_string(), self.tell),
        }
    }

    /// Serves the log until the application has ended and all its labels are stored.
    fn serve(&mut self) -> Result<(), Error> {
        loop {
            let bell = self.log.bell();
            self.jobs.look();
            if !self.awaiting.is_empty() {
                // No application is left that wants the answer.
                let left = self.is_left();
                self.awaiting.look(&self.log, left);
            }
            let enough = self.at + self.manner.gather_bytes.min(self.log.capacity() / 4);
            if let Some(left) = self.gathers_for(enough) {
                self.log.gather(bell, enough, left);
                continue;
            }
            let batch = self.take()?;
            if !batch.is_empty() {
                self.carry_out(&batch);
                self.written = Instant::now();
                let wanted = self.log.wanted();
                if self.manner.rest.is_zero() || wanted > self.log.stored() && self.last >= wanted {
                    self.store();
                }
                self.log.notify();
                continue;
            }
            let resting = self.written.elapsed() >= self.manner.rest;
            let wanted = self.log.wanted() > self.log.stored();
            if self.last > self.log.stored() && (wanted || resting || self.files.is_empty()) {
                self.store();
                self.log.notify();
            }
            let idle = self.files.is_empty() && self.jobs.is_empty() && self.awaiting.is_empty();
            // With the lock, so that no application takes it up at this moment.
            if idle
                && self.log.published() == self.at
                && self.is_left()
                && self.log.lock()
                && self.log.published() == self.at
            {
                return Ok(());
            }
            let limit = if self.files.is_empty() {
                LOOK
            } else {
                self.manner.rest.saturating_sub(self.written.elapsed())
            };
            self.log.sleep(bell, limit);
        }
    }

    /// Returns how long the agent still gathers labels before it carries them out, unless they have reached `enough` bytes.
    fn gathers_for(&mut self, enough: u64) -> Option<Duration> {
        let (log, manner) = (&self.log, self.manner);
        let published = log.published();
        let enough = published == self.at
            || manner.gather.is_zero()
            || published >= enough
            || log.awaited() > self.last
            || log.is_left();
        if enough {
            self.gathers = None;
            return None;
        }
        let since = *self.gathers.get_or_insert_with(Instant::now);
        let left = manner.gather.checked_sub(since.elapsed());
        let left = left.filter(|left| !left.is_zero());
        if left.is_none() {
            self.gathers = None;
        }
        left
    }

    fn store(&mut self) {
        self.files.close_all();
        self.log.store(self.last);
        self.end_puts();
    }

    /// Ends puts, so that readers find their bytes in files from now on.
    fn end_puts(&mut self) {
        for (hash, at, seen) in self.puts.drain(..) {
            match seen {
                true => self.shared_index.remove(&self.log, hash, at),
                false => self.shared_index.ends_unseen(hash),
            }
        }
    }

    /// Returns the labels that were published since the last call. A label that an earlier agent began is carried out again.
    fn take(&mut self) -> Result<Vec<LogRecord>, Error> {
        let mut batch = Vec::new();
        let head = self.log.published();
        while self.at < head && batch.len() < BATCH_MAX {
            let record = self.log.record(self.at)?;
            // The label stays where it can be cancelled; labels after it keep their places.
            let over =
                record.kind == RequestKind::Filler || self.log.status(record.at).0.is_settled();
            let due = match over {
                true => Some(true),
                false if self.awaiting.hold_up(&record) => None,
                false if self.jobs.hold_up(&self.log, &record) => None,
                false => self.log.is_due(&record)?,
            };
            let Some(due) = due else { break };
            self.at += record.length;
            if record.kind == RequestKind::Filler {
                continue;
            }
            if record.flags & PUT != 0 {
                // Before the file is written: the application may not have entered the put yet.
                let hash = shared_index::hash(self.log.root().0, self.log.paths(&record));
                let seen = self.shared_index.put(&self.log, hash, record.at);
                if !seen {
                    self.shared_index.begins_unseen(hash);
                }
                self.puts.push((hash, record.at, seen));
            }
            if !due {
                self.log
                    .turn(record.at, RecordStatus::Pending, RecordStatus::Cancelled);
            }
            let fresh = self
                .log
                .turn(record.at, RecordStatus::Pending, RecordStatus::Running);
            let begun = [RecordStatus::Running, RecordStatus::Stopping];
            if fresh || begun.contains(&self.log.status(record.at).0) {
                batch.push(record.begun_again(!fresh));
                if record.is_job() || record.is_await() {
                    // Labels after it may have to wait for it.
                    break;
                }
            } else {
                self.last = self.last.max(record.id);
            }
        }
        Ok(batch)
    }

    /// Carries labels out, in groups; each group begins when all earlier groups are done.
    fn carry_out(&mut self, batch: &[LogRecord]) {
        let mut rest = batch;
        while let Some(first) = rest.first() {
            let alone =
                |record: &LogRecord| record.is_alone() || record.is_job() || record.is_await();
            let together = |record: &&LogRecord| !alone(record) && record.is_free_from(first.at);
            let many = rest.iter().take_while(together).count();
            if first.is_job() {
                // The job has to read earlier writes.
                self.files.close_all();
                let root = self.files.root().clone();
                self.jobs.start(&self.log, &root, first, self.tell);
                rest = &rest[1..];
            } else if first.is_await() {
                let root = self.files.root().clone();
                self.awaiting.start(&self.log, &root, first, self.tell);
                rest = &rest[1..];
            } else if many == 0 {
                let log = self.log.clone();
                let outcome = self.files.change_names(&log, first);
                self.settle(first, outcome);
                rest = &rest[1..];
            } else {
                self.carry_out_files(&rest[..many]);
                rest = &rest[many..];
            }
        }
        self.last = batch
            .last()
            .map_or(self.last, |record| self.last.max(record.id));
    }

    fn settle(&self, record: &LogRecord, outcome: std::io::Result<u64>) {
        settle(&self.log, record, outcome, self.tell);
    }

    /// Carries out labels that only read and write, file by file.
    fn carry_out_files(&mut self, records: &[LogRecord]) {
        let log = self.log.clone();
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        let mut groups: Vec<Vec<LogRecord>> = Vec::new();
        for record in records {
            let place = *places.entry(log.paths(record)).or_insert(groups.len());
            match groups.get_mut(place) {
                Some(group) => group.push(*record),
                None => groups.push(vec![*record]),
            }
        }
        let tell = self.tell;
        let reported = |record: &LogRecord, outcome| settle(&log, record, outcome, tell);
        // A file that is to be closed at once need not be opened.
        let wanted = log.wanted() > log.stored()
            && records.last().is_some_and(|last| last.id <= log.wanted());
        if wanted || self.manner.rest.is_zero() || self.files.are_many(groups.len()) {
            groups = self.files.make_new(&log, groups, reported);
        }
        let work: Vec<_> = groups
            .into_iter()
            .map(|group| Mutex::new(Some(self.files.take(&log, group))))
            .collect();
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        let worker = || {
            while let Some(work) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                let work = work.lock().ok().and_then(|mut work| work.take());
                let Some(work) = work else { continue };
                let ended = work.run(&log, reported);
                if let Ok(mut done) = done.lock() {
                    done.push(ended);
                }
            }
        };
        if work.len() < FEW {
            worker();
        } else {
            std::thread::scope(|scope| {
                for _ in 1..WORKERS {
                    scope.spawn(worker);
                }
                worker();
            });
        }
        let done = done.into_inner().unwrap_or_default();
        self.files.give_back(done);
    }
}

impl Drop for LogKeeper {
    /// Ends all puts of the log, however the thread ends, so that no reader waits for puts that the thread was storing.
    fn drop(&mut self) {
        self.end_puts();
    }
}

fn settle(log: &Log, record: &LogRecord, outcome: std::io::Result<u64>, tell: Tell) {
    if let Err(error) = &outcome {
        let path = String::from_utf8_lossy(log.paths(record)).replace('\0', " -> ");
        let (name, id, kind) = (log.name(), record.id, record.kind);
        tell(&format!("{name}: label {id} ({kind:?} of {path}): {error}"));
    }
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(5);
    log.settle(record.at, outcome.map_err(errno));
}
