//! File events: the requests of labels that wait for files, and a stream of all file events (next: `mount/src/fs/control/events.rs`).
//!
//! The mount's control directory has the file [`FILE`] for requests: a write sends a request, and a read waits for the answer.

use crate::agent::Tell;
use crate::analysis::TEXT_MAX;
use crate::app::{App, LabelRequest, RegistrationOptions, Ticket};
use crate::error::Error;
use crate::jobs::CONTROL;
use crate::log::{Log, LogRecord, RecordStatus};
use crate::root::{MountRoot, is_offline};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const FILE: &str = "events";
/// Maximum number of labels of an application that wait for files at the same time.
pub(crate) const AWAITED_MAX: usize = 64;
/// Limit of file events in one answer that stands for as many as the cluster sends.
const MANY: u64 = 0;
/// Size in bytes of the space for the answer to a label that waits for one file.
pub(crate) const ONE_BYTES: u64 = 4096 + 64;
const MANY_BYTES: u64 = 64 << 10;
/// Buffer quota of the application of a stream, in bytes.
const CAPACITY: u64 = 1 << 20;
/// Pause before a request is repeated, if the limit of waiting requests was reached or the mount was unreachable.
const PAUSE: Duration = Duration::from_millis(200);

/// File event: a version was closed at this path, or a file was renamed to this path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEvent {
    /// Path of the file as an address: `tidemill:/…`.
    pub path: String,
    /// Number of the file's version, which counts the closes with new content.
    pub version: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// Cursor for later file events: see [`App::subscribe`].
    pub cursor: String,
}

/// Stream of all file events, in order, from a cursor on. The stream's labels belong to a separate application, so that they delay no other
/// labels.
#[derive(Debug)]
pub struct Subscription {
    app: App,
    pattern: String,
    cursor: String,
    asked: Option<Ticket>,
    ready: VecDeque<FileEvent>,
}

/// Answer of the cluster to a request for file events.
#[derive(Debug, Default, PartialEq, Eq)]
struct EventBatch {
    cursor: String,
    missed: bool,
    events: Vec<FileEvent>,
}

impl EventBatch {
    fn of(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut parts = text.strip_suffix('\0')?.split('\0');
        let cursor = parts.next()?.to_owned();
        let missed = parts.next()? == "1";
        let mut events = Vec::new();
        while let Some(path) = parts.next() {
            events.push(FileEvent {
                path: format!("tidemill:{path}"),
                cursor: parts.next()?.to_owned(),
                version: parts.next()?.parse().ok()?,
                size: parts.next()?.parse().ok()?,
            });
        }
        Some(Self {
            cursor,
            missed,
            events,
        })
    }
}

/// Sends a request for file events, and waits for the answer.
fn ask(mut file: File, limit: u64, since: &str, pattern: &str) -> std::io::Result<Vec<u8>> {
    file.write_all(format!("{limit}\0{since}\0{pattern}").as_bytes())?;
    file.rewind()?;
    let mut answer = vec![0; usize::try_from(MANY_BYTES).unwrap_or(0)];
    let mut read = 0;
    loop {
        match file.read(&mut answer[read..])? {
            0 => break,
            more => read += more,
        }
    }
    answer.truncate(read);
    Ok(answer)
}

fn directory() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    format!("{CONTROL}/{user}").into()
}

/// Returns the current cursor of the cluster on `mount`, or an error if the pattern is invalid.
pub(crate) fn now(mount: &std::path::Path, pattern: &str) -> Result<String, Error> {
    let directory = mount.join(directory());
    let opened = File::options()
        .read(true)
        .write(true)
        .open(directory.join(FILE));
    let answer = opened.and_then(|file| ask(file, MANY, "", pattern));
    let answer = answer.map_err(|source| {
        let reported = std::fs::read_to_string(directory.join("last-error"));
        match reported {
            Ok(reported)
                if source.kind() == std::io::ErrorKind::InvalidInput && !reported.is_empty() =>
            {
                Error::Invalid(reported.trim().to_owned())
            }
            _ => Error::Failed {
                what: "can't wait for",
                path: pattern.to_owned(),
                source,
            },
        }
    })?;
    let answer = EventBatch::of(&answer);
    let strange = || Error::Invalid("the mount is of another release".into());
    answer.map(|answer| answer.cursor).ok_or_else(strange)
}

/// State that a waiting label shares with its thread: whether the label was cancelled, so that the thread does not write its answer.
type CancelFlag = Arc<Mutex<bool>>;

struct WaitingLabel {
    record: LogRecord,
    up: CancelFlag,
    thread: std::thread::JoinHandle<()>,
}

/// The labels of an application that wait for files.
#[derive(Default)]
pub(crate) struct Awaiting(Vec<WaitingLabel>);

impl Awaiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a label must not run before a label that waits for a file.
    pub(crate) fn hold_up(&self, record: &LogRecord) -> bool {
        let after = |one: &WaitingLabel| one.record.as_after() == record.after;
        self.0.iter().any(after) || record.is_await() && self.0.len() >= AWAITED_MAX
    }

    /// Drops labels that have ended, and ends cancelled labels; with `all`, because the application has ended, ends all labels.
    pub(crate) fn look(&mut self, log: &Log, all: bool) {
        let mut changed = false;
        self.0.retain(|one| {
            let mut up = one.up.lock().unwrap_or_else(PoisonError::into_inner);
            if !*up && (all || log.status(one.record.at).0 == RecordStatus::Stopping) {
                *up = true;
                log.settle_as(one.record.at, RecordStatus::Cancelled, 0);
                changed = true;
            }
            !*up && !one.thread.is_finished()
        });
        if changed {
            log.notify();
        }
    }

    /// Starts a thread that waits for a file on behalf of a label.
    pub(crate) fn start(
        &mut self,
        log: &Arc<Log>,
        root: &Arc<MountRoot>,
        record: &LogRecord,
        tell: Tell,
    ) {
        let (log, root, record) = (log.clone(), root.clone(), *record);
        let up = CancelFlag::default();
        let thread = std::thread::spawn({
            let up = up.clone();
            move || wait(&log, &root, &record, (&up, tell))
        });
        self.0.push(WaitingLabel { record, up, thread });
    }
}

/// Waits until a file event happens, the label is cancelled, or the wait fails; then settles the label.
fn wait(log: &Log, root: &MountRoot, record: &LogRecord, (up, tell): (&CancelFlag, Tell)) {
    let texts = String::from_utf8_lossy(log.paths(record)).into_owned();
    let (pattern, since) = texts.split_once('\0').unwrap_or((&texts, ""));
    let mut since = since.to_owned();
    loop {
        if *up.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        let file = root.open_file(&directory().join(FILE), OFlags::RDWR);
        let outcome = match file.and_then(|file| ask(file, record.offset, &since, pattern)) {
            Ok(bytes) => match EventBatch::of(&bytes) {
                Some(answer) if answer.events.is_empty() && !answer.missed => {
                    since = answer.cursor;
                    continue;
                }
                Some(answer) => outcome_of(record, answer, bytes),
                None => Err((Errno::IO, "the mount is of another release".into())),
            },
            Err(error) if is_offline(&error) || error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err((errno, why(root, pattern, &error)))
            }
        };
        settle(log, record, up, outcome, tell);
        return;
    }
}

/// Returns the reason why the cluster refused a request, in the cluster's words if it gave a reason.
fn why(root: &MountRoot, pattern: &str, error: &std::io::Error) -> String {
    let reported = || {
        let mut reported = String::new();
        let file = root.open_file(&directory().join("last-error"), OFlags::RDONLY);
        file.ok()?
            .take(TEXT_MAX)
            .read_to_string(&mut reported)
            .ok()?;
        Some(reported.trim().to_owned())
    };
    let reported = reported().filter(|_| error.kind() == std::io::ErrorKind::InvalidInput);
    let reported = reported.filter(|reported| !reported.is_empty());
    reported.unwrap_or_else(|| format!("{pattern}: {error}"))
}

/// Returns the outcome of a label for the result of its wait.
fn outcome_of(
    record: &LogRecord,
    answer: EventBatch,
    bytes: Vec<u8>,
) -> Result<Vec<u8>, (Errno, String)> {
    if record.offset == MANY {
        return Ok(bytes);
    }
    if answer.missed {
        let why = "the first file events were discarded: the cluster remembers a limited number of file events";
        return Err((Errno::OVERFLOW, why.into()));
    }
    let first = answer.events.into_iter().next();
    Ok(first.map(|one| one.path.into_bytes()).unwrap_or_default())
}

fn settle(
    log: &Log,
    record: &LogRecord,
    up: &CancelFlag,
    outcome: Result<Vec<u8>, (Errno, String)>,
    tell: Tell,
) {
    let mut up = up.lock().unwrap_or_else(PoisonError::into_inner);
    if *up {
        return;
    }
    *up = true;
    let answer = log.answer(record);
    let put = |answer: &mut [u8], bytes: &[u8]| {
        let length = bytes.len().min(answer.len());
        answer[..length].copy_from_slice(&bytes[..length]);
        length as u64
    };
    match outcome {
        Ok(bytes) => {
            let length = put(answer, &bytes);
            log.settle(record.at, Ok(length));
        }
        Err((errno, why)) => {
            tell(&format!("{}: label {}: {why}", log.name(), record.id));
            answer.fill(0);
            let most = usize::try_from(TEXT_MAX).unwrap_or(0).min(why.len());
            put(answer, &why.as_bytes()[..most]);
            log.settle(record.at, Err(errno.raw_os_error()));
        }
    }
    drop(up);
    log.notify();
    // Other labels may wait for it.
    log.wake();
}

impl App {
    /// Returns a stream of all file events whose paths match a pattern: versions that are closed, and files that are renamed to such a
    /// path. The stream begins now, or at a cursor from a [`FileEvent`] or [`Subscription::cursor`]: then no later file event is missed.
    ///
    /// # Errors
    /// The pattern is invalid, or the cluster cannot be asked.
    pub fn subscribe(&self, pattern: &str, since: Option<&str>) -> Result<Subscription, Error> {
        let settings = RegistrationOptions {
            capacity: CAPACITY,
            ..self.settings()
        };
        let within = self.pattern(pattern)?;
        let cursor = match since {
            Some(since) => since.to_owned(),
            None => now(self.mount(), &within)?,
        };
        Ok(Subscription {
            app: Self::register(&self.name(), &settings)?,
            pattern: pattern.to_owned(),
            cursor,
            asked: None,
            ready: VecDeque::new(),
        })
    }
}

impl Subscription {
    /// Returns the next file event. Waits for the event, for at most `limit` if given.
    ///
    /// # Errors
    /// [`Error::Timeout`], after which the call can be repeated. [`Error::Missed`] once, if the cluster has dropped the oldest file events:
    /// the stream then continues with the oldest event that the cluster still has.
    pub fn next(&mut self, limit: Option<Duration>) -> Result<FileEvent, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.cursor.clone_from(&event.cursor);
                return Ok(event);
            }
            let asked = match self.asked.take() {
                Some(asked) => asked,
                None => self.app.publish(&LabelRequest::events(
                    &self.pattern,
                    &self.cursor,
                    (MANY, MANY_BYTES),
                ))?,
            };
            let until = limit.and_then(|limit| Instant::now().checked_add(limit));
            if let Err(error) = asked.wait_until(until) {
                self.asked = Some(asked);
                return Err(error);
            }
            let answer = asked.outcome()?;
            let strange = || Error::Invalid("the mount is of another release".into());
            let answer = EventBatch::of(&answer).ok_or_else(strange)?;
            self.ready = answer.events.into();
            if self.ready.is_empty() {
                self.cursor = answer.cursor;
            }
            if answer.missed {
                return Err(Error::Missed);
            }
        }
    }

    /// Returns the cursor after the last returned file event.
    #[must_use]
    pub fn cursor(&self) -> &str {
        &self.cursor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_events_answer_decodes_and_refuses_malformed_text() {
        let one = "7\x000\0/a b\x006:/a b\x003\x0012\0";
        let answer = EventBatch::of(one.as_bytes()).unwrap();
        assert_eq!((answer.cursor.as_str(), answer.missed), ("7", false));
        let event = &answer.events[0];
        assert_eq!(
            (event.path.as_str(), event.version, event.size),
            ("tidemill:/a b", 3, 12)
        );
        assert_eq!(event.cursor, "6:/a b");
        assert!(EventBatch::of(b"7\x001\0").unwrap().missed);
        for wrong in [
            &b""[..],
            b"7",
            b"7\0",
            b"7\x000\0/a\0",
            b"7\x000\0/a\x001\0x\x001\0",
            b"\xff\0",
        ] {
            assert_eq!(EventBatch::of(wrong), None, "{wrong:?}");
        }
    }
}
