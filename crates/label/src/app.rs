//! The application's side of labels: publishing a label by a copy into the log, and waiting for a label (next: `label/src/agent.rs`).

use crate::analysis::{FileAnalysis, Paths, TEXT_MAX};
use crate::directory::{self, LogDirectory};
use crate::error::Error;
use crate::events;
use crate::intent::Intent;
use crate::jobs::CONTROL;
use crate::limits::{self, BufferLimits};
use crate::log::{self, Log, LogRequest, PATHS_MAX, RecordStatus, RequestKind, Terms};
use crate::notices::{Callback, CallbackLabels};
use crate::root::MountRoot;
use crate::shared_index::{self, SharedIndex};
use std::borrow::{Borrow, Cow};
use std::collections::{HashMap, VecDeque};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Default capacity of an application's log, in bytes.
const CAPACITY: u64 = 64 << 20;
/// Maximum size of a label in bytes; a longer request becomes several labels.
const LABEL_MAX: u64 = 4 << 20;
/// Interval at which a waiting call checks whether an agent runs.
const LOOK: Duration = Duration::from_millis(100);
/// Path of the directory of workspaces, below the mountpoint.
const WORKSPACES: &str = "workspaces";
/// Interval at which a put checks whether another application's put of the same file is stored.
const PUT_CHECK: Duration = Duration::from_micros(500);
/// Maximum number of bytes that one label reads.
const READ_MAX: u64 = 1 << 30;

pub(crate) const DURABLE: u16 = 1;
pub(crate) const CUT: u16 = 2;
/// Flag of a label that runs only if the label that it follows is done (or, depending on the request, has failed or was cancelled).
pub(crate) const IF_DONE: u16 = 4;
pub(crate) const IF_FAILED: u16 = 8;
/// Flag of a label that is a part of a split request: the label follows the part before it, and runs after that part is done.
pub(crate) const PART: u16 = 16;
/// Flag of a label whose outcome the application does not request.
pub(crate) const FORGET: u16 = 32;
/// Flag of a label that contains the whole content of a file, which other applications may read before the label is stored.
pub(crate) const PUT: u16 = 64;
/// Permitted length of an application's key in bytes.
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 8..=64;
/// Time that a registration waits for another process that is closing the same application.
const REGISTER_WAIT: Duration = Duration::from_secs(3);

/// Options of a registration.
#[derive(Clone, Debug, Default)]
pub struct RegistrationOptions {
    /// Mountpoint of the cluster; by default the only mountpoint of this host.
    pub mount: Option<PathBuf>,
    /// Space for unfinished labels in bytes; 0 means 64 MiB.
    pub capacity: u64,
    /// Directory that contains the logs of applications; by default `TIDEMILL_LABELS`, else `/dev/shm/tidemill-labels-UID`.
    pub directory: Option<PathBuf>,
    /// QoS goal of the application.
    pub intent: Intent,
    /// Mode bits that new files of the application do not have; by default the umask of the process.
    pub umask: Option<u32>,
    /// Whether the library starts no agent because the caller provides the agent.
    pub no_agent: bool,
}

/// A registered application. A clone refers to the same application. The labels of an ended application are also carried out.
#[derive(Clone, Debug)]
pub struct App(Arc<AppState>);

#[derive(Debug)]
struct AppState {
    log: Log,
    directory: LogDirectory,
    mount: PathBuf,
    starts_agent: bool,
    label_max: u64,
    /// Whether outcomes of labels stay in the log until the application requests them, because the application may be resumed.
    keeps: bool,
    ring: Mutex<Ring>,
    notices: Mutex<CallbackLabels>,
    /// Shared index that makes puts visible to other applications; the first put or get of this application opens the index.
    shared_index: OnceLock<SharedIndex>,
    root: MountRoot,
    /// Set after the library has checked that the application's directory is the mountpoint of a cluster.
    is_cluster: OnceLock<()>,
}

/// A label in the encoding of the log.
struct Encoded<'a> {
    /// Name of the label in error messages.
    name: String,
    paths: Vec<u8>,
    bytes: Cow<'a, [u8]>,
    offset: u64,
    size: u64,
    after: u64,
}

/// The application's own state of its log, outside the mapped file.
#[derive(Debug, Default)]
struct Ring {
    last: u64,
    slots: VecDeque<LogSlot>,
    /// Outcomes that the application may still request of labels whose space in the log is free.
    outcomes: HashMap<u64, AppOutcome>,
}

#[derive(Clone, Copy, Debug)]
struct LogSlot {
    at: u64,
    length: u64,
    id: u64,
    /// Whether the application can no longer request the outcome of the label.
    left: bool,
    /// Hash of the path of the label's file in the shared index; 0 if the label is not in the shared index.
    put: u64,
    /// Id of the last label that depends on this label's outcome; 0 if no label depends on the outcome.
    asked_by: u64,
}

#[derive(Debug)]
struct AppOutcome {
    status: RecordStatus,
    value: u64,
    bytes: Vec<u8>,
}

/// A request of the application, before it is published as a label.
#[derive(Clone, Copy, Debug)]
#[must_use = "a label does nothing before it is published"]
pub struct LabelRequest<'a> {
    kind: RequestKind,
    path: &'a str,
    other: &'a str,
    offset: u64,
    size: u64,
    bytes: &'a [u8],
    flags: u16,
    after: Option<&'a Ticket>,
    patient: bool,
    analysis: Option<&'a FileAnalysis<'a>>,
}

impl<'a> LabelRequest<'a> {
    fn new(kind: RequestKind, path: &'a str) -> Self {
        Self {
            kind,
            path,
            other: "",
            offset: 0,
            size: 0,
            bytes: &[],
            flags: 0,
            after: None,
            patient: true,
            analysis: None,
        }
    }

    /// Returns a request that writes bytes into a file at an offset. A missing file is created.
    pub fn write(path: &'a str, offset: u64, bytes: &'a [u8]) -> Self {
        Self {
            offset,
            size: bytes.len() as u64,
            bytes,
            ..Self::new(RequestKind::Write, path)
        }
    }

    /// Returns a request that creates a file with these bytes, in place of an existing file. [`App::get`] in this user's applications on
    /// this host returns the bytes as soon as the label is published; all other clients see the bytes when the label is stored.
    pub fn put(path: &'a str, bytes: &'a [u8]) -> Self {
        let mut label = Self::write(path, 0, bytes);
        label.flags |= PUT | CUT;
        label
    }

    /// Returns a request that writes bytes at the end of a file. A missing file is created.
    pub fn append(path: &'a str, bytes: &'a [u8]) -> Self {
        Self {
            size: bytes.len() as u64,
            bytes,
            ..Self::new(RequestKind::Append, path)
        }
    }

    /// Returns a request that reads up to `size` bytes of a file from an offset. The read sees labels that were published before.
    pub fn read(path: &'a str, offset: u64, size: u64) -> Self {
        Self {
            offset,
            size,
            ..Self::new(RequestKind::Read, path)
        }
    }

    /// Returns a request that deletes a file.
    pub fn delete(path: &'a str) -> Self {
        Self::new(RequestKind::Delete, path)
    }

    /// Returns a request that renames a file, in place of an existing file.
    pub fn rename(path: &'a str, to: &'a str) -> Self {
        Self {
            other: to,
            ..Self::new(RequestKind::Move, path)
        }
    }

    /// Returns a request that copies a file, in place of an existing file. Of the metadata the copy gets only the mode, less the umask.
    pub fn copy(path: &'a str, to: &'a str) -> Self {
        Self {
            other: to,
            ..Self::new(RequestKind::Copy, path)
        }
    }

    /// Returns a request without an effect: its label is done when all labels before it are done.
    pub fn fence() -> Self {
        Self::new(RequestKind::Fence, "tidemill:/")
    }

    /// Returns a request that runs a kernel on files in the cluster, after the writes that were published before are stored.
    pub fn analyse(analysis: &'a FileAnalysis<'a>) -> Self {
        Self {
            analysis: Some(analysis),
            ..Self::new(RequestKind::Analyse, "")
        }
    }

    /// Returns a request that runs the job of a script in the cluster, after the writes that were published before are stored. The library
    /// does not know the files that the script reads and writes, so labels that have to wait for the job use [`Self::after`].
    pub fn job(script: &'a str) -> Self {
        Self {
            bytes: script.as_bytes(),
            ..Self::new(RequestKind::Analyse, "")
        }
    }

    /// Returns a request that waits for a file of any user whose path matches a pattern and that is closed with new content or renamed to
    /// this path after the publication. The wait for the label returns the address of the file.
    pub fn file_event(pattern: &'a str) -> Self {
        Self::events(pattern, "", (1, events::ONE_BYTES))
    }

    /// Makes a request of [`Self::file_event`] wait for file events after a cursor: see [`App::subscribe`].
    pub fn since(self, cursor: &'a str) -> Self {
        Self {
            other: cursor,
            ..self
        }
    }

    /// Returns a request that waits for up to `limit` file events, which take up to `size` bytes.
    pub(crate) fn events(pattern: &'a str, since: &'a str, (limit, size): (u64, u64)) -> Self {
        Self {
            other: since,
            offset: limit,
            size,
            ..Self::new(RequestKind::Await, pattern)
        }
    }

    /// Makes the wait for a job return the first bytes of the file at `path`, at most `size` bytes.
    pub fn result(self, path: &'a str, size: u64) -> Self {
        Self { path, size, ..self }
    }

    /// Makes the label durable: it is done only when its effect survives power loss.
    pub fn durable(mut self) -> Self {
        self.flags |= DURABLE;
        self
    }

    /// Makes the label truncate the file to 0 bytes before the label writes.
    pub fn truncate(mut self) -> Self {
        self.flags |= CUT;
        self
    }

    /// Runs the label only after the label of `ticket` is done, whichever files both labels use.
    pub fn after(mut self, ticket: &'a Ticket) -> Self {
        self.after = Some(ticket);
        self
    }

    /// Runs the label after the label of `ticket` is done; cancels it if the label of `ticket` has failed or was cancelled.
    pub fn if_done(mut self, ticket: &'a Ticket) -> Self {
        self.flags = self.flags & !IF_FAILED | IF_DONE;
        self.after(ticket)
    }

    /// Runs the label after the label of `ticket` has failed or was cancelled; cancels it if the label of `ticket` is done.
    pub fn if_failed(mut self, ticket: &'a Ticket) -> Self {
        self.flags = self.flags & !IF_DONE | IF_FAILED;
        self.after(ticket)
    }

    /// Declares that the application does not request the outcome of the label: the ticket then has no outcome.
    pub fn forgotten(mut self) -> Self {
        self.flags |= FORGET;
        self
    }

    /// Makes the publication fail with [`Error::Full`] instead of waiting for space in the log.
    pub fn impatient(mut self) -> Self {
        self.patient = false;
        self
    }
}

impl App {
    /// Registers this process as an application under a name that users see.
    ///
    /// # Errors
    /// There is no mountpoint, there is no directory for the application's labels, or no agent can be started.
    pub fn register(name: &str, settings: &RegistrationOptions) -> Result<Self, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_nanos());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = format!("{now:x}-{}-{number}.{}", std::process::id(), directory::LOG);
        let directory = LogDirectory::open(settings.directory.as_deref())?;
        let log = make(&directory, &file, name, (settings, false))?;
        Self::begin(directory, log, settings)
    }

    /// Registers an application with a key of at least 8 characters. The call resumes an application that was registered with this key and
    /// ended less than a minute ago in any process, else creates a new application. Outcomes of its labels are kept until the application
    /// requests them.
    ///
    /// # Errors
    /// The errors of [`Self::register`]; another process has the application open.
    pub fn register_by_key(
        name: &str,
        key: &str,
        settings: &RegistrationOptions,
    ) -> Result<Self, Error> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !KEY_LENGTH.contains(&key.len()) || !key.bytes().all(good) {
            let (least, most) = (KEY_LENGTH.start(), KEY_LENGTH.end());
            return Err(Error::Invalid(format!(
                "{key:?} is not a key: give {least} to {most} letters, digits, dashes and underscores"
            )));
        }
        let directory = LogDirectory::open(settings.directory.as_deref())?;
        let file = format!("key-{key}.{}", directory::LOG);
        let path = directory.path().join(&file);
        let begun = Instant::now();
        let log = loop {
            if !path.exists() {
                break make(&directory, &file, name, (settings, true))?;
            }
            match Log::take_up(&path) {
                Ok(Some(log)) => break log,
                // It may have been removed at this moment.
                Err(Error::Log { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                }
                Err(error) => return Err(error),
                Ok(None) if begun.elapsed() > REGISTER_WAIT => {
                    let why = format!("another process uses the application of the key {key:?}");
                    return Err(Error::Invalid(why));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        Self::begin(directory, log, settings)
    }

    fn begin(
        directory: LogDirectory,
        log: Log,
        settings: &RegistrationOptions,
    ) -> Result<Self, Error> {
        let (keeps, (mount, system)) = (log.is_keyed(), log.root());
        let (mount, root) = (mount.to_owned(), MountRoot::new(mount, system, log.umask()));
        let inner = AppState {
            label_max: LABEL_MAX.min(log.capacity() / 4),
            ring: Mutex::new(Ring::of(&log, keeps)?),
            log,
            directory,
            mount,
            keeps,
            starts_agent: !settings.no_agent,
            notices: Mutex::default(),
            shared_index: OnceLock::new(),
            is_cluster: OnceLock::new(),
            root,
        };
        inner.find_agent()?;
        inner.directory.bell()?.ring();
        Ok(Self(Arc::new(inner)))
    }

    /// Returns the number of the last published label, from 1 on. A request longer than [`Self::label_max`] takes several numbers.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.0.ring().last
    }

    /// Returns the maximum size in bytes of a request that becomes a single label.
    #[must_use]
    pub fn label_max(&self) -> u64 {
        self.0.label_max
    }

    /// Returns the ticket of the label with this number, if the label's outcome is kept.
    #[must_use]
    pub fn ticket(&self, number: u64) -> Option<Ticket> {
        let inner = &self.0;
        let at = inner.ring().slot(number)?.at;
        let record = inner.log.record(at).ok()?;
        let path = String::from_utf8_lossy(inner.log.paths(&record)).replace('\0', " -> ");
        Some(Ticket {
            inner: inner.clone(),
            kind: record.kind,
            path,
            first: number,
            rest: Vec::new(),
            at,
        })
    }

    /// Returns the tickets of the labels of a resumed application whose outcomes the application can still request.
    #[must_use]
    pub fn kept(&self) -> Vec<Ticket> {
        let numbers: Vec<u64> = {
            let ring = self.0.ring();
            let kept = ring.slots.iter().filter(|slot| !slot.left);
            kept.map(|slot| slot.id).collect()
        };
        numbers
            .into_iter()
            .filter_map(|number| self.ticket(number))
            .collect()
    }

    /// Publishes a label. When the function returns, the label survives the end of every process. Waits for space in the log if necessary.
    ///
    /// # Errors
    /// The label is invalid; or the log has no space for the label and the label does not wait for space.
    pub fn publish(&self, label: &LabelRequest<'_>) -> Result<Ticket, Error> {
        let inner = &self.0;
        if inner.log.pid() != std::process::id() {
            return Err(Error::Forked);
        }
        let asked = inner.ask(label)?;
        let puts = label.flags & PUT != 0;
        let max = inner.size_max(label, asked.size)?;
        let mut ticket = Ticket {
            inner: inner.clone(),
            kind: label.kind,
            path: asked.name,
            first: 0,
            rest: Vec::new(),
            at: 0,
        };
        let put = match puts {
            true => Some(inner.begin_put(&asked.paths, label)?),
            false => None,
        };
        let mut done = 0;
        loop {
            let size = (asked.size - done).min(max);
            let (flags, after) = match done {
                0 => (label.flags, asked.after),
                _ => (label.flags & DURABLE | PART, ticket.at + 1),
            };
            let part = LogRequest {
                kind: label.kind,
                flags,
                status: RecordStatus::Pending,
                id: 0,
                after,
                offset: asked.offset + done,
                size,
                paths: &asked.paths,
            };
            let range = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            let bytes = if label.kind.carries() {
                let end = asked.bytes.len().min(range(done + size));
                &asked.bytes[range(done)..end]
            } else {
                &[]
            };
            // A label that has begun is completed: half a label would have no meaning.
            let first = label.after.filter(|_| done == 0);
            let (id, at) = inner.append(part, bytes, first, label.patient || done > 0)?;
            if done == 0 {
                ticket.first = id;
            } else {
                ticket.rest.push(id);
            }
            ticket.at = at;
            done += size;
            if done >= asked.size {
                break;
            }
        }
        if let Some(hash) = put {
            inner.end_put(hash, &ticket)?;
        }
        Ok(ticket)
    }

    /// Publishes a label, and waits until the label is stored, as [`Ticket::wait`] does.
    ///
    /// # Errors
    /// The errors of [`Self::publish`] and of [`Ticket::wait`].
    pub fn publish_wait(&self, label: &LabelRequest<'_>) -> Result<Vec<u8>, Error> {
        self.publish(label)?.wait()
    }

    /// Waits until all published labels are stored. The function does not report failed labels.
    ///
    /// # Errors
    /// No agent can be started.
    pub fn flush(&self) -> Result<(), Error> {
        self.publish(&LabelRequest::fence())?.wait().map(drop)
    }

    /// Returns the options with which the application was registered.
    pub(crate) fn settings(&self) -> RegistrationOptions {
        let inner = &self.0;
        RegistrationOptions {
            mount: Some(inner.mount.clone()),
            capacity: inner.log.capacity(),
            directory: Some(inner.directory.path().to_owned()),
            intent: inner.log.intent(),
            umask: Some(inner.log.umask()),
            no_agent: !inner.starts_agent,
        }
    }

    pub(crate) fn name(&self) -> String {
        self.0.log.name()
    }

    /// Converts a pattern of addresses into a pattern of paths below the mountpoint.
    pub(crate) fn pattern<'a>(&self, pattern: &'a str) -> Result<Cow<'a, str>, Error> {
        self.0.need_cluster()?;
        self.0.path(pattern)
    }

    /// Returns the directory that the application's addresses are relative to.
    #[must_use]
    pub fn mount(&self) -> &Path {
        &self.0.mount
    }

    pub(crate) fn root(&self) -> &MountRoot {
        &self.0.root
    }

    pub(crate) fn shared_index(&self) -> Result<&SharedIndex, Error> {
        self.0.shared_index()
    }

    /// Converts an address into a path below the mountpoint.
    pub(crate) fn path<'a>(&self, address: &'a str) -> Result<Cow<'a, str>, Error> {
        self.0.path(address)
    }
}

/// Checks the name of an application and returns an error if the name is invalid.
fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > log::NAME_MAX || name.contains(char::is_control) {
        let max = log::NAME_MAX;
        return Err(Error::Invalid(format!(
            "{name:?} can't be the name of an application: give 1 to {max} bytes, on one line"
        )));
    }
    Ok(())
}

/// Creates the log of an application.
fn make(
    directory: &LogDirectory,
    file: &str,
    name: &str,
    (settings, keyed): (&RegistrationOptions, bool),
) -> Result<Log, Error> {
    check_name(name)?;
    let mount = match &settings.mount {
        Some(mount) => mount.clone(),
        None => directory::mounted()?,
    };
    let at = |source| Error::Mount(format!("{}: {source}", mount.display()));
    let mount = mount.canonicalize().map_err(at)?;
    let system = directory::system(&mount).map_err(at)?;
    let limits = BufferLimits::read(Path::new(limits::FILE))?;
    let (capacity, _lock) = limits.allow(directory, settings.capacity, CAPACITY)?;
    let terms = Terms {
        capacity,
        intent: settings.intent,
        umask: settings.umask,
        keyed,
    };
    Log::make(&directory.path().join(file), name, (&mount, system), terms)
}

impl AppState {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        // A panic here leaves no half-made change.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notices(&self) -> MutexGuard<'_, CallbackLabels> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the callbacks of ended labels, until no label with a callback has ended.
    fn tell(&self) {
        loop {
            let settled = self.log.settled();
            let ended = self.notices().ended();
            let Some(ended) = ended else { return };
            let none = ended.is_empty();
            for (ticket, callback) in ended {
                let outcome = ticket.outcome();
                // A panic of a callback is not this library's, and other callbacks have to run.
                let call = std::panic::AssertUnwindSafe(|| callback(outcome));
                let _ = std::panic::catch_unwind(call);
            }
            if none {
                self.log.wait_settled(settled, LOOK);
                // A waiting or publishing call reports the error.
                let _ = self.find_agent();
            }
        }
    }

    fn find_agent(&self) -> Result<(), Error> {
        if self.starts_agent && !self.directory.has_agent() {
            self.directory.start_agent()?;
        }
        Ok(())
    }

    /// Converts an address into a path below the mountpoint.
    fn path<'a>(&self, address: &'a str) -> Result<Cow<'a, str>, Error> {
        if let Some(inside) = address.strip_prefix("workspace:/") {
            self.need_cluster()?;
            let inside = Path::new(inside).components();
            let plain = inside
                .clone()
                .all(|part| matches!(part, Component::Normal(_)));
            if !plain || inside.count() < 2 || address.contains('\0') {
                return Err(Error::Invalid(format!(
                    "{address:?} is not an address: give workspace:/WORKSPACE/FILE, without .."
                )));
            }
            return Ok(address.replacen("workspace:", WORKSPACES, 1).into());
        }
        let inside = match address.strip_prefix("tidemill:") {
            Some(inside) => inside.starts_with('/').then_some(inside),
            None => {
                let path = Path::new(address).strip_prefix(&self.mount).ok();
                path.and_then(Path::to_str)
            }
        };
        let inside = inside.map(|inside| inside.trim_start_matches('/'));
        let up = |path| {
            Path::new(path)
                .components()
                .any(|part| part == Component::ParentDir)
        };
        match inside {
            Some(path) if !path.contains('\0') && !up(path) => Ok(path.into()),
            _ => {
                let mount = self.mount.display();
                Err(Error::Invalid(format!(
                    "{address:?} is not an address: give tidemill:/PATH, workspace:/WORKSPACE/FILE, or a path below {mount}, where the cluster is mounted; without .."
                )))
            }
        }
    }

    /// Encodes a request as a label of the log.
    fn ask<'a>(&self, label: &LabelRequest<'a>) -> Result<Encoded<'a>, Error> {
        let invalid = |why: String| Err(Error::Invalid(why));
        let end = label.offset.checked_add(label.size);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            let (size, offset) = (label.size, label.offset);
            return invalid(format!(
                "{size} bytes at offset {offset} end beyond the largest possible file"
            ));
        }
        if matches!(label.kind, RequestKind::Read | RequestKind::Analyse) && label.size > READ_MAX {
            let size = label.size;
            return invalid(format!(
                "one label reads at most {READ_MAX} bytes, not {size}"
            ));
        }
        let after = match label.after {
            Some(ticket) if !std::ptr::eq(&*ticket.inner, self) => {
                return invalid("a label can only depend on labels of its own application".into());
            }
            after => after.map_or(0, |ticket| ticket.at + 1),
        };
        let encoded = match label.kind {
            RequestKind::Analyse => self.ask_job(label, after)?,
            RequestKind::Await => self.ask_events(label, after)?,
            kind => {
                let mut paths = self.path(label.path)?.as_bytes().to_vec();
                if matches!(kind, RequestKind::Move | RequestKind::Copy) {
                    let other = self.path(label.other)?;
                    let other = other.as_bytes();
                    if kind == RequestKind::Copy && other == paths {
                        return invalid(format!("{} can't be copied to itself", label.path));
                    }
                    paths.push(0);
                    paths.extend_from_slice(other);
                }
                Encoded {
                    name: label.path.to_owned(),
                    paths,
                    bytes: Cow::Borrowed(label.bytes),
                    offset: label.offset,
                    size: label.size,
                    after,
                }
            }
        };
        if encoded.paths.len() > PATHS_MAX {
            let max = PATHS_MAX;
            return invalid(format!(
                "{:?}: the paths of a label have at most {max} bytes",
                encoded.name
            ));
        }
        Ok(encoded)
    }

    /// Returns an error for requests that need the cluster itself, if the application's directory is a directory inside a cluster.
    fn need_cluster(&self) -> Result<(), Error> {
        if self.is_cluster.get().is_some() || self.mount.join(CONTROL).is_dir() {
            self.is_cluster.get_or_init(|| ());
            return Ok(());
        }
        let mount = self.mount.display();
        Err(Error::Invalid(format!(
            "no cluster is mounted on {mount}: register with the directory of a mount for workspaces, jobs, and labels that wait for files"
        )))
    }

    fn ask_events<'a>(&self, label: &LabelRequest<'a>, after: u64) -> Result<Encoded<'a>, Error> {
        self.need_cluster()?;
        let pattern = self.path(label.path)?;
        let since = match label.other {
            "" => events::now(&self.mount, &pattern)?,
            since if since.contains('\0') => {
                return Err(Error::Invalid(format!("{since:?} is not a cursor")));
            }
            since => since.to_owned(),
        };
        Ok(Encoded {
            name: label.path.to_owned(),
            paths: format!("{pattern}\0{since}").into_bytes(),
            bytes: Cow::Borrowed(&[]),
            offset: label.offset,
            size: label.size,
            after,
        })
    }

    fn ask_job<'a>(&self, label: &LabelRequest<'a>, after: u64) -> Result<Encoded<'a>, Error> {
        self.need_cluster()?;
        let result = match label.path {
            "" => Cow::Borrowed(""),
            path => self.path(path)?,
        };
        let (paths, bytes) = match label.analysis {
            Some(analysis) => {
                let known = analysis.within(|address| self.path(address))?;
                let script = known.script(&self.log.name(), self.log.intent())?;
                (known.paths(&result), Cow::Owned(script.into_bytes()))
            }
            None => (Paths::of_result(&result), Cow::Borrowed(label.bytes)),
        };
        let offset = bytes.len() as u64;
        Ok(Encoded {
            name: label.analysis.map_or("a job", |it| it.kernel).to_owned(),
            paths,
            bytes,
            offset,
            size: offset + label.size.max(TEXT_MAX),
            after,
        })
    }

    fn shared_index(&self) -> Result<&SharedIndex, Error> {
        if let Some(shared_index) = self.shared_index.get() {
            return Ok(shared_index);
        }
        let shared_index = SharedIndex::open(self.directory.path())?;
        Ok(self.shared_index.get_or_init(|| shared_index))
    }

    /// Returns the maximum size in bytes of a request that is not split. Returns an error if the request is too large.
    fn size_max(&self, label: &LabelRequest<'_>, size: u64) -> Result<u64, Error> {
        let what = match label.kind {
            RequestKind::Analyse => "the script and the result of a job have",
            _ if label.flags & PUT != 0 => "the content of a put has",
            _ => return Ok(self.label_max),
        };
        let max = self.log.capacity() / 4;
        if size <= max {
            return Ok(max);
        }
        Err(Error::Invalid(format!(
            "{what} at most {max} bytes, a quarter of the application's buffer quota, not {size}"
        )))
    }

    /// Waits until another application's put of the same file is stored, so that the put of `label` is the later put.
    fn begin_put(&self, path: &[u8], label: &LabelRequest<'_>) -> Result<u64, Error> {
        if label.after.is_some() {
            let why = "a put is visible at once: it can't depend on another label";
            return Err(Error::Invalid(why.into()));
        }
        let (shared_index, hash) = (self.shared_index()?, shared_index::hash(&self.mount, path));
        while shared_index.is_others(&self.log, hash) {
            if !label.patient {
                return Err(Error::Full {
                    needed: label.size,
                    capacity: self.log.capacity(),
                });
            }
            self.find_agent()?;
            std::thread::sleep(PUT_CHECK);
        }
        Ok(hash)
    }

    /// Makes a put visible to all applications of the user. If that is impossible, waits until the put is stored.
    fn end_put(&self, hash: u64, ticket: &Ticket) -> Result<(), Error> {
        let (shared_index, log) = (self.shared_index()?, &self.log);
        if !shared_index.put(log, hash, ticket.at) {
            return ticket.wait_until(None);
        }
        let mut ring = self.ring();
        if log.stored() >= ticket.first {
            // The agent finished it before it was visible.
            shared_index.remove(log, hash, ticket.at);
        } else if let Some(slot) = ring.slot(ticket.first) {
            slot.put = hash;
        }
        Ok(())
    }

    /// Appends a record to the log when the log has space. Returns the record's id and position.
    fn append(
        &self,
        part: LogRequest<'_>,
        bytes: &[u8],
        after: Option<&Ticket>,
        patient: bool,
    ) -> Result<(u64, u64), Error> {
        let length = part.length();
        loop {
            let settled = self.log.settled();
            {
                let mut ring = self.ring();
                let mut filled = self.log.space(&part);
                if filled.is_none() {
                    ring.collect(&self.log, self.shared_index.get(), self.keeps);
                    filled = self.log.space(&part);
                }
                if let Some(filled) = filled {
                    ring.last += 1;
                    let id = ring.last;
                    let part = ring.depend(LogRequest { id, ..part }, after);
                    let at = self.log.append(&part, bytes, filled);
                    ring.slots.push_back(LogSlot {
                        at,
                        length,
                        id,
                        left: part.flags & FORGET != 0,
                        put: 0,
                        asked_by: 0,
                    });
                    drop(ring);
                    self.log.ring();
                    return Ok((id, at));
                }
            }
            if !patient || length > self.log.capacity() {
                return Err(Error::Full {
                    needed: length,
                    capacity: self.log.capacity(),
                });
            }
            // Gathered labels are carried out now.
            self.log.wake();
            self.log.wait_settled(settled, LOOK);
            self.find_agent()?;
        }
    }
}

impl Ring {
    fn slot(&mut self, id: u64) -> Option<&mut LogSlot> {
        let first = self.slots.front()?.id;
        let index = usize::try_from(id.checked_sub(first)?).ok()?;
        self.slots.get_mut(index)
    }

    /// Returns the state of a log that is resumed: its labels whose space is not free.
    fn of(log: &Log, keeps: bool) -> Result<Self, Error> {
        let mut ring = Self::default();
        if !keeps {
            return Ok(ring);
        }
        let mut at = log.freed();
        while at < log.published() {
            let record = log.record(at)?;
            at += record.length;
            if record.kind == RequestKind::Filler {
                continue;
            }
            ring.last = record.id;
            ring.slots.push_back(LogSlot {
                at: record.at,
                length: record.length,
                id: record.id,
                left: record.flags & FORGET != 0,
                put: match record.flags & PUT {
                    0 => 0,
                    _ => shared_index::hash(log.root().0, log.paths(&record)),
                },
                asked_by: 0,
            });
            if record.flags & (IF_DONE | IF_FAILED) != 0 {
                let asked = ring
                    .slots
                    .iter_mut()
                    .find(|slot| slot.at + 1 == record.after);
                if let Some(asked) = asked {
                    asked.asked_by = record.id;
                }
            }
        }
        Ok(ring)
    }

    /// Frees the space of settled labels, from the oldest on. Outcomes that the application may request are kept in memory, or stay in the
    /// log. The number of the last label is known from its record.
    fn collect(&mut self, log: &Log, shared_index: Option<&SharedIndex>, keeps: bool) {
        while let Some(slot) = self.slots.front().copied() {
            if keeps && (!slot.left || self.slots.len() == 1) {
                return;
            }
            let (status, value) = log.status(slot.at);
            if !status.is_settled() || !self.is_settled(log, slot.asked_by) {
                return;
            }
            // A reader that looks for the put in the shared index must find the stored file otherwise.
            if slot.put != 0 && status == RecordStatus::Done && log.stored() < slot.id {
                return;
            }
            if !slot.left {
                let outcome = AppOutcome::of(log, slot.at, (status, value));
                self.outcomes.insert(slot.id, outcome);
            }
            if let Some(shared_index) = shared_index.filter(|_| slot.put != 0) {
                shared_index.remove(log, slot.put, slot.at);
            }
            self.slots.pop_front();
            log.free(slot.at + slot.length);
        }
    }

    /// Keeps the outcome of the label `after` until the label that depends on it is settled. If the outcome of `after` is known and its
    /// space in the log is free, the function itself decides whether the dependent label is cancelled.
    fn depend<'a>(&mut self, part: LogRequest<'a>, after: Option<&Ticket>) -> LogRequest<'a> {
        let Some(after) = after.filter(|_| part.flags & (IF_DONE | IF_FAILED) != 0) else {
            return part;
        };
        let outcome = |id| self.outcomes.get(&id).map(|outcome| outcome.status);
        let done = after
            .ids()
            .all(|id| outcome(id).is_none_or(|status| status == RecordStatus::Done));
        if done && self.slot(after.last()).is_some() {
            for id in after.ids() {
                if let Some(slot) = self.slot(id) {
                    slot.asked_by = part.id;
                }
            }
            return part;
        }
        let status = if done == (part.flags & IF_DONE != 0) {
            RecordStatus::Pending
        } else {
            RecordStatus::Cancelled
        };
        let flags = part.flags & !(IF_DONE | IF_FAILED);
        let after = 0;
        LogRequest {
            flags,
            status,
            after,
            ..part
        }
    }

    /// Returns the outcome of a label; a second call for the same label returns `None`.
    fn take(&mut self, log: &Log, id: u64) -> Option<AppOutcome> {
        if let Some(outcome) = self.outcomes.remove(&id) {
            return Some(outcome);
        }
        let slot = self.slot(id)?;
        let status = log.status(slot.at);
        if !status.0.is_settled() {
            return None;
        }
        slot.left = true;
        let at = slot.at;
        Some(AppOutcome::of(log, at, status))
    }

    fn is_settled(&mut self, log: &Log, id: u64) -> bool {
        let at = self.slot(id).map(|slot| slot.at);
        // A label without a place is settled.
        at.is_none_or(|at| log.status(at).0.is_settled())
    }
}

impl AppOutcome {
    fn of(log: &Log, at: u64, (status, value): (RecordStatus, u64)) -> Self {
        let record = log.record(at).ok();
        let bytes = record.and_then(|record| {
            let answer = || log.answered(&record);
            match (record.kind, status) {
                (
                    RequestKind::Read | RequestKind::Analyse | RequestKind::Await,
                    RecordStatus::Done,
                ) => {
                    let size = usize::try_from(value).unwrap_or(usize::MAX);
                    Some(answer()[..size.min(answer().len())].to_vec())
                }
                // The reason of the failure, up to the first zero.
                (RequestKind::Analyse | RequestKind::Await, RecordStatus::Failed) => {
                    answer().split(|&byte| byte == 0).next().map(<[u8]>::to_vec)
                }
                _ => None,
            }
        });
        Self {
            status,
            value,
            bytes: bytes.unwrap_or_default(),
        }
    }
}

/// Handle of a published label. After its drop the outcome cannot be requested; the label is carried out all the same.
#[derive(Debug)]
pub struct Ticket {
    inner: Arc<AppState>,
    kind: RequestKind,
    path: String,
    /// Number of the first label of the request in the log; other labels may have been published between the labels of the request.
    first: u64,
    rest: Vec<u64>,
    /// Position in the log of the last label of the request.
    at: u64,
}

impl Ticket {
    fn last(&self) -> u64 {
        self.rest.last().copied().unwrap_or(self.first)
    }

    fn ids(&self) -> impl Iterator<Item = u64> {
        [self.first].into_iter().chain(self.rest.iter().copied())
    }

    /// Whether a wait for the label ends when the label has an outcome, even before its files are closed.
    fn is_answer(&self) -> bool {
        matches!(
            self.kind,
            RequestKind::Read | RequestKind::Analyse | RequestKind::Await
        )
    }

    /// Whether the label is stored, has failed, or was cancelled.
    #[must_use]
    pub fn test(&self) -> bool {
        let log = &self.inner.log;
        let mut ring = self.inner.ring();
        let settled = self.ids().all(|id| ring.is_settled(log, id));
        settled && (self.is_answer() || log.stored() >= self.last())
    }

    /// Returns the label's number among the labels of its application; the number of the first label, if the request has several labels.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.first
    }

    /// Returns the result that [`Self::wait`] would return, without waiting.
    ///
    /// # Errors
    /// The label failed, or, with [`Error::Timeout`], has not ended.
    pub fn take(&self) -> Result<Vec<u8>, Error> {
        match self.test() {
            true => self.outcome(),
            false => Err(Error::Timeout),
        }
    }

    /// Waits until the label is stored: the written bytes are in a closed file, which all clients see. Returns the bytes that the label
    /// read.
    ///
    /// # Errors
    /// The label failed, or no agent can be started.
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        self.wait_until(None)?;
        self.outcome()
    }

    /// Waits like [`Self::wait`], for at most `limit`; the application can wait for the label again afterwards.
    ///
    /// # Errors
    /// No agent can be started, or with [`Error::Timeout`].
    pub fn wait_for(&self, limit: Duration) -> Result<(), Error> {
        self.wait_until(Some(Instant::now() + limit))
    }

    /// Records in the log that a call waits for the label.
    fn ask_for(&self) {
        let log = &self.inner.log;
        if self.is_answer() {
            log.hurry(self.last());
        } else {
            log.want(self.last());
        }
    }

    pub(crate) fn wait_until(&self, end: Option<Instant>) -> Result<(), Error> {
        let log = &self.inner.log;
        self.ask_for();
        loop {
            let settled = log.settled();
            if self.test() {
                return Ok(());
            }
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(Error::Timeout);
            }
            log.wait_settled(settled, left.min(LOOK));
            if log.settled() == settled {
                self.inner.find_agent()?;
            }
        }
    }

    /// Returns the outcome of the label after the label is settled.
    pub(crate) fn outcome(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let mut ring = self.inner.ring();
        for id in self.ids() {
            let outcome = ring.take(&self.inner.log, id).ok_or(Error::Timeout)?;
            match outcome.status {
                RecordStatus::Cancelled => return Err(Error::Cancelled),
                RecordStatus::Failed
                    if matches!(self.kind, RequestKind::Analyse | RequestKind::Await) =>
                {
                    let errno = i32::try_from(outcome.value).unwrap_or(0);
                    let why = String::from_utf8_lossy(&outcome.bytes).into_owned();
                    return Err(match self.kind {
                        RequestKind::Await => Error::Await { errno, why },
                        _ => Error::Analysis { errno, why },
                    });
                }
                RecordStatus::Failed => {
                    let errno = i32::try_from(outcome.value).unwrap_or(0);
                    return Err(Error::Failed {
                        what: self.kind.verb(),
                        path: self.path.clone(),
                        source: std::io::Error::from_raw_os_error(errno),
                    });
                }
                _ if bytes.is_empty() => bytes = outcome.bytes,
                _ => bytes.extend(outcome.bytes),
            }
        }
        Ok(bytes)
    }

    /// Calls `callback` when the label is stored, has failed or was cancelled, with the result of [`Self::wait`]. Callbacks run one after
    /// the other on a thread of the application: a slow callback delays the others. A forked child gets no calls.
    pub fn on_done(self, callback: impl FnOnce(Result<Vec<u8>, Error>) + Send + 'static) {
        self.ask_for();
        let inner = self.inner.clone();
        let callback: Callback = Box::new(callback);
        if inner.notices().add(self, callback) {
            let notified = inner.clone();
            std::thread::spawn(move || notified.tell());
        }
    }

    /// Cancels the label. Returns whether the label was cancelled. A label that is already running is finished, except that jobs and waits
    /// for files are requested to stop: the wait for such a label reports whether it was cancelled.
    #[must_use]
    pub fn cancel(&self) -> bool {
        let log = &self.inner.log;
        let mut ring = self.inner.ring();
        let mut all = true;
        for id in self.ids() {
            let at = ring.slot(id).map(|slot| slot.at);
            all &= at.is_some_and(|at| {
                let (begun, stop) = (RecordStatus::Running, RecordStatus::Stopping);
                log.turn(at, RecordStatus::Pending, RecordStatus::Cancelled)
                    || matches!(self.kind, RequestKind::Analyse | RequestKind::Await)
                        && log.turn(at, begun, stop)
            });
        }
        drop(ring);
        log.wake();
        all
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut ring = self.inner.ring();
        for id in self.ids() {
            ring.outcomes.remove(&id);
            if let Some(slot) = ring.slot(id) {
                slot.left = true;
            }
        }
    }
}

/// Waits until one of the labels ends. Returns the index of the label's ticket.
///
/// # Errors
/// The errors of [`Ticket::wait_for`]; `tickets` is empty.
pub fn wait_any(tickets: &[Ticket]) -> Result<usize, Error> {
    wait_some(tickets, false, None)?;
    let first = tickets.iter().position(Ticket::test);
    first.ok_or(Error::Timeout)
}

/// Waits until one of the labels ends, or until all end, but not beyond the time `until`.
///
/// # Errors
/// The errors of [`Ticket::wait_for`]; there are no tickets, or the tickets belong to several applications.
pub fn wait_some<T: Borrow<Ticket>>(
    tickets: &[T],
    all: bool,
    until: Option<Instant>,
) -> Result<(), Error> {
    let tickets = || tickets.iter().map(Borrow::borrow);
    let none = || Error::Invalid("there is no label to wait for".into());
    let inner = &tickets().next().ok_or_else(none)?.inner;
    if tickets().any(|ticket| !Arc::ptr_eq(&ticket.inner, inner)) {
        let why = "labels of several applications can't be waited for together";
        return Err(Error::Invalid(why.into()));
    }
    // Whichever is first: a request for one label does not delay another.
    tickets().for_each(Ticket::ask_for);
    loop {
        let settled = inner.log.settled();
        let over = match all {
            true => tickets().all(Ticket::test),
            false => tickets().any(Ticket::test),
        };
        if over {
            return Ok(());
        }
        let left = until.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(Error::Timeout);
        }
        inner.log.wait_settled(settled, left.min(LOOK));
        inner.find_agent()?;
    }
}

/// Waits for all labels. Returns, for each label, the bytes that the label read, or the label's error.
#[must_use]
pub fn wait_all(tickets: Vec<Ticket>) -> Vec<Result<Vec<u8>, Error>> {
    tickets.into_iter().map(Ticket::wait).collect()
}

impl RequestKind {
    fn verb(self) -> &'static str {
        match self {
            Self::Write => "can't write",
            Self::Append => "can't append to",
            Self::Read => "can't read",
            Self::Delete => "can't remove",
            Self::Move => "can't rename",
            Self::Copy => "can't copy",
            Self::Fence | Self::Filler => "can't wait at",
            Self::Analyse => "can't analyse by",
            Self::Await => "can't wait for",
        }
    }
}
