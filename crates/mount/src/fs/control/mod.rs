//! The control directory `.tidemill` at the root of the mount, like `/proc` for jobs (AnalyzeThis §3.3). The module sends requests to the
//! server (next: `server/src`).
//!
//! [`entries`] has the names. A user's directory is for this user only. `.analyzethis` is a link to the control directory. The root does not
//! list the control directory and the link, so that a copy of the tree does not contain them.

pub(crate) mod entries;
mod events;
mod hooks;
mod new_files;
mod submit;
mod text;

use super::backend::credentials;
use super::directory::ListedEntry;
use super::{Caller, Fs, InodeKey, LookupResult, WaitPolicy};
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use submit::OpenerProcess;
use tidemill_client::{Error as ClientError, users};
use tidemill_model::display;
use tidemill_model::id::Inode;
use tidemill_wire::control::{DIRECTORY, LINK};
use tidemill_wire::v1::{self, Attr, Kind, name_op::Op, name_result::Result as Answer};

/// Time for which the Linux kernel caches attributes of special files.
const TTL: Duration = Duration::ZERO;
/// Prefix of names that only the mount itself looks up.
const QUESTION: &str = "question-";

/// One of the mount's own files or directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Special {
    Directory,
    Link,
    User(u32),
    /// A file that accepts lines, of the user with this id.
    Order(ControlRequest, u32),
    Events(u32),
    NewFiles(u32),
    JobList(u32),
    LastError(u32),
    JobStatus(u32, u64),
    Hooks,
    /// The file with the status of this mount.
    Status,
    Nodes,
    Node(u32),
    NodeStatus(u32),
    /// The mirror in `lineage/` of the directory with this inode.
    Lineage(u64),
    /// The mirror in `lineage/` of the file with this inode.
    LineageOf(u64),
}

/// Request that the mount makes for each written line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum ControlRequest {
    Submit,
    Cancel,
}

#[derive(Debug, Default)]
pub(crate) struct ControlState {
    numbers: Mutex<SpecialNumbers>,
    users: Mutex<BTreeSet<u32>>,
    errors: Mutex<BTreeMap<u32, String>>,
    waiting: events::WaitingReads,
    open: Mutex<HashMap<u64, Arc<OpenSpecial>>>,
    /// Server's requests for which the mount waits for the Linux kernel's queue, and whether the queue has reached the look-up.
    pub(super) asked: Mutex<BTreeMap<u64, bool>>,
}

#[derive(Debug, Default)]
struct SpecialNumbers {
    all: Vec<Special>,
    by_special: HashMap<Special, u64>,
}

#[derive(Debug)]
struct OpenSpecial {
    special: Special,
    caller: Caller,
    /// Process that opened the file for writing.
    opener: Option<OpenerProcess>,
    /// Content for reads; for `new-files` the results of the last call.
    content: Mutex<Option<Vec<u8>>>,
    input: Mutex<Vec<u8>>,
    /// Length of the written text whose hooks the server has created.
    complete: Mutex<usize>,
}

/// Returns the name that the mount looks up to wait for the Linux kernel's queue, for a request of the server.
pub(super) fn question(number: u64) -> String {
    format!("{QUESTION}{number}")
}

pub(crate) type SpecialEntry = (Vec<u8>, LookupResult);

impl ControlState {
    /// Records a look-up for which this mount waits.
    fn on_look_up(&self, name: Option<&str>) {
        let question = name.and_then(|name| name.strip_prefix(QUESTION)?.parse().ok());
        if let Some(number) = question
            && let Some(heard) = self.asked.lock().get_mut(&number)
        {
            *heard = true;
        }
    }

    fn number(&self, special: Special) -> u64 {
        let mut numbers = self.numbers.lock();
        if let Some(number) = numbers.by_special.get(&special) {
            return *number;
        }
        numbers.all.push(special);
        let number = Inode::SPECIAL | numbers.all.len() as u64;
        numbers.by_special.insert(special, number);
        number
    }

    fn special(&self, number: u64) -> Result<Special, Error> {
        let numbers = self.numbers.lock();
        let index = usize::try_from(number & !Inode::SPECIAL).unwrap_or(0);
        let special = index
            .checked_sub(1)
            .and_then(|index| numbers.all.get(index));
        special.copied().ok_or_else(|| Errno::STALE.into())
    }

    fn found(&self, special: Special) -> LookupResult {
        let (kind, mode, uid) = special.looks();
        let ino = self.number(special);
        let gid = if uid == 0 { 0 } else { users::gid(uid) };
        let attr = Attr {
            ino,
            kind: kind.into(),
            mode,
            uid,
            gid,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            mtime: super::remote::now_ns(),
            ctime: super::remote::now_ns(),
            atime: super::remote::now_ns(),
            size: if special == Special::Link {
                DIRECTORY.len() as u64
            } else {
                0
            },
            ..Attr::default()
        };
        LookupResult {
            key: InodeKey { ino, alias: 0 },
            attr,
            blocks: 0,
            ttl: TTL,
            asked: 0,
            entry: None,
        }
    }

    /// Returns the description of the control directory, or of the link to it, if `name` is its name.
    pub(crate) fn at_root(&self, name: &[u8]) -> Option<LookupResult> {
        match name {
            DIRECTORY => Some(self.found(Special::Directory)),
            LINK => Some(self.found(Special::Link)),
            _ => None,
        }
    }
}

impl Special {
    fn looks(self) -> (Kind, u32, u32) {
        match self {
            Self::Directory | Self::Nodes | Self::Node(_) | Self::Lineage(_) => {
                (Kind::Directory, 0o555, 0)
            }
            Self::Link => (Kind::Symlink, 0o777, 0),
            Self::User(uid) => (Kind::Directory, 0o500, uid),
            Self::Order(_, uid) | Self::Events(uid) | Self::NewFiles(uid) => {
                (Kind::File, 0o600, uid)
            }
            // Hooks that a user creates there belong to the user.
            Self::Hooks => (Kind::File, 0o666, 0),
            Self::JobList(uid) | Self::LastError(uid) | Self::JobStatus(uid, _) => {
                (Kind::File, 0o400, uid)
            }
            Self::Status | Self::NodeStatus(_) | Self::LineageOf(_) => (Kind::File, 0o444, 0),
        }
    }
}

impl Fs {
    pub(crate) fn control_lookup(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        let parent = self.control.special(parent)?;
        let text = std::str::from_utf8(name).ok();
        let special = match parent {
            _ if name == b"." => Some(parent),
            Special::Directory => text.and_then(|name| {
                let found = entries::top().find(|(known, _)| *known == name);
                found.map(|(_, special)| special).or_else(|| {
                    let uid = users::uid(name)?;
                    self.control.users.lock().insert(caller.uid);
                    Some(Special::User(uid))
                })
            }),
            Special::User(uid) => text.and_then(|name| {
                let found = entries::of_user(uid).find(|(known, _)| *known == name);
                found.map(|(_, special)| special).or_else(|| {
                    let job = name.strip_suffix("-status")?.parse().ok()?;
                    Some(Special::JobStatus(uid, job))
                })
            }),
            Special::Nodes => {
                self.control.on_look_up(text);
                text.and_then(|n| n.parse().ok()).map(Special::Node)
            }
            Special::Node(node) => (name == b"status").then_some(Special::NodeStatus(node)),
            Special::Lineage(directory) => {
                return self.lineage_lookup(caller, directory, name, pace);
            }
            _ => return Err(Errno::NOTDIR.into()),
        };
        let special = special.ok_or(Errno::NOENT)?;
        match special {
            Special::JobStatus(uid, job) => {
                pace.wait()?;
                self.jobs_of(uid)?
                    .iter()
                    .find(|known| known.job == job)
                    .ok_or(Errno::NOENT)?;
            }
            Special::Node(node) => {
                pace.wait()?;
                self.node(node)?;
            }
            _ => {}
        }
        Ok(self.control.found(special))
    }

    /// Returns the mirror of a name of the namespace, with the permissions of the mirrored file.
    fn lineage_lookup(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        pace.wait()?;
        let op = Op::Lookup(v1::Lookup {
            parent,
            name: name.to_vec(),
        });
        let Answer::Entry(entry) = self.backend.one(caller, op)? else {
            return Err(ClientError::Answer("Lookup").into());
        };
        let attr = entry.attr.ok_or(ClientError::Answer("Lookup"))?;
        self.mirror(&attr).ok_or_else(|| Errno::NOENT.into())
    }

    /// Returns the description of the mirror in `lineage/` of a file or directory; `None` for other kinds of file, which have no lineage.
    fn mirror(&self, attr: &Attr) -> Option<LookupResult> {
        let special = match attr.kind() {
            Kind::Directory => Special::Lineage(attr.ino),
            Kind::File => Special::LineageOf(attr.ino),
            _ => return None,
        };
        let mut found = self.control.found(special);
        let allowed = if attr.kind() == Kind::Directory {
            0o555
        } else {
            0o444
        };
        found.attr.mode = attr.mode & allowed;
        found.attr.uid = attr.uid;
        found.attr.gid = attr.gid;
        found.attr.mtime = attr.mtime;
        Some(found)
    }

    pub(crate) fn control_getattr(
        &self,
        caller: Caller,
        number: u64,
        pace: WaitPolicy,
    ) -> Result<LookupResult, Error> {
        let special = self.control.special(number)?;
        match special {
            Special::Lineage(ino) | Special::LineageOf(ino) => {
                pace.wait()?;
                let op = Op::GetAttr(v1::GetAttr {
                    ino,
                    content: false,
                });
                let attr = super::backend::attr_of(self.backend.one(caller, op)?)?;
                self.mirror(&attr).ok_or_else(|| Errno::STALE.into())
            }
            other => Ok(self.control.found(other)),
        }
    }

    pub(crate) fn control_readlink(&self, number: u64) -> Result<Vec<u8>, Error> {
        match self.control.special(number)? {
            Special::Link => Ok(DIRECTORY.to_vec()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Returns all entries of a special directory.
    pub(crate) fn control_list(
        &self,
        caller: Caller,
        number: u64,
        pace: WaitPolicy,
    ) -> Result<Vec<SpecialEntry>, Error> {
        let named = |name: String, special| (name.into_bytes(), self.control.found(special));
        Ok(match self.control.special(number)? {
            Special::Directory => {
                let seen = {
                    let mut seen = self.control.users.lock();
                    seen.insert(caller.uid);
                    seen.clone()
                };
                let mut entries: Vec<_> = seen
                    .iter()
                    .map(|uid| named(users::name(*uid), Special::User(*uid)))
                    .collect();
                entries.extend(entries::top().map(|(name, special)| named(name.into(), special)));
                entries
            }
            Special::User(uid) => {
                pace.wait()?;
                let own = entries::of_user(uid);
                let mut entries: Vec<_> = own
                    .map(|(name, special)| named(name.into(), special))
                    .collect();
                for job in self.jobs_of(uid)? {
                    let name = format!("{}-status", job.job);
                    entries.push(named(name, Special::JobStatus(uid, job.job)));
                }
                entries
            }
            Special::Nodes => {
                pace.wait()?;
                let nodes = self.nodes()?;
                let name = |e: &v1::Node| named(e.node.to_string(), Special::Node(e.node));
                nodes.iter().map(name).collect()
            }
            Special::Node(node) => {
                vec![named("status".into(), Special::NodeStatus(node))]
            }
            Special::Lineage(ino) => {
                pace.wait()?;
                self.lineage_list(caller, ino)?
            }
            _ => return Err(Errno::NOTDIR.into()),
        })
    }

    fn lineage_list(&self, caller: Caller, ino: u64) -> Result<Vec<SpecialEntry>, Error> {
        let handle = self.opendir(ino);
        let mut entries: Vec<(usize, ListedEntry)> = Vec::new();
        let outcome = loop {
            let from = entries.last().map_or(0, |(number, _)| number + 1);
            match self.list(caller, handle, from, usize::MAX, WaitPolicy::MayWait) {
                Ok(page) if page.is_empty() => break Ok(()),
                Ok(page) => entries.extend(page),
                Err(error) => break Err(error),
            }
        };
        self.releasedir(handle);
        outcome?;
        let mirrored = entries.into_iter().filter_map(|(_, listed)| {
            let found = self.mirror(&listed.attr)?;
            Some((listed.name, found))
        });
        Ok(mirrored.collect())
    }

    pub(crate) fn control_open(
        &self,
        caller: Caller,
        number: u64,
        write: bool,
    ) -> Result<u64, Error> {
        let special = self.control.special(number)?;
        let written = matches!(
            special,
            Special::Order(..) | Special::Events(_) | Special::NewFiles(_) | Special::Hooks
        );
        if write && !written {
            return Err(Errno::ACCESS.into());
        }
        let handle = self.handle_number();
        let open = OpenSpecial {
            special,
            caller,
            opener: write.then(|| OpenerProcess::of(caller)),
            content: Mutex::default(),
            input: Mutex::default(),
            complete: Mutex::default(),
        };
        self.control.open.lock().insert(handle, Arc::new(open));
        Ok(handle)
    }

    fn open_special(&self, handle: u64) -> Result<Arc<OpenSpecial>, Error> {
        let open = self.control.open.lock();
        open.get(&handle).cloned().ok_or_else(|| Errno::BADF.into())
    }

    pub(crate) fn control_read(
        &self,
        handle: u64,
        offset: u64,
        length: usize,
        pace: WaitPolicy,
    ) -> Result<Vec<u8>, Error> {
        let open = self.open_special(handle)?;
        pace.wait()?;
        let mut content = open.content.lock();
        // A read from the start shows the present state; for new files, the outcome of the last call.
        let reported = matches!(open.special, Special::NewFiles(_));
        if content.is_none() || offset == 0 && !reported {
            let asked = open.opener.as_ref();
            let asked = asked.filter(|_| matches!(open.special, Special::Events(_)));
            *content = Some(match asked {
                Some(opener) => {
                    let question = open.input.lock().clone();
                    self.events(opener, &question)?
                }
                None => self.content(open.caller, open.special)?,
            });
        }
        let bytes = content.as_deref().unwrap_or_default();
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let end = start.saturating_add(length).min(bytes.len());
        Ok(bytes[start..end].to_vec())
    }

    fn content(&self, caller: Caller, special: Special) -> Result<Vec<u8>, Error> {
        let text = match special {
            Special::JobList(uid) => text::job_list(&self.jobs_of(uid)?),
            Special::JobStatus(uid, job) => {
                let request = v1::GetJobRequest {
                    credentials: Some(plain_credentials(uid)),
                    job,
                };
                let server = &self.backend.server;
                let ask = || async {
                    let reply = server.jobs().get(request.clone()).await;
                    Ok(reply.map_err(|status| server.explain(status))?.into_inner())
                };
                text::job_status(&self.backend.ask_server(ask)?)
            }
            Special::LastError(uid) => self
                .control
                .errors
                .lock()
                .get(&uid)
                .cloned()
                .unwrap_or_default(),
            Special::Hooks => self.hooks_text(caller)?,
            Special::Status => self.sealer.standing().to_string(),
            Special::NodeStatus(node) => text::node_status(&self.node(node)?),
            Special::LineageOf(ino) => self.lineage_text(caller, ino)?,
            _ => String::new(),
        };
        // The reader is mostly a terminal, and any user may choose the names.
        Ok(display::lines(&text).into_bytes())
    }

    fn lineage_text(&self, caller: Caller, ino: u64) -> Result<String, Error> {
        let op = Op::GetAttr(v1::GetAttr {
            ino,
            content: false,
        });
        let attr = super::backend::attr_of(self.backend.one(caller, op)?)?;
        if attr.object == 0 {
            return Ok("not sealed yet: it has no lineage\n".into());
        }
        let request = v1::LineageRequest {
            credentials: Some(credentials(caller)),
            object: attr.object,
            up: true,
            down: true,
            ..v1::LineageRequest::default()
        };
        let server = &self.backend.server;
        let ask = || async {
            let reply = server.lineage().query(request.clone()).await;
            Ok(reply.map_err(|status| server.explain(status))?.into_inner())
        };
        Ok(text::lineage(&self.backend.ask_server(ask)?))
    }

    fn jobs_of(&self, uid: u32) -> Result<Vec<v1::Job>, Error> {
        let request = v1::ListJobsRequest {
            credentials: Some(plain_credentials(uid)),
            ..v1::ListJobsRequest::default()
        };
        let server = &self.backend.server;
        let ask = || async {
            let reply = server.jobs().list(request.clone()).await;
            Ok(reply.map_err(|status| server.explain(status))?.into_inner())
        };
        Ok(self.backend.ask_server(ask)?.jobs)
    }

    fn nodes(&self) -> Result<Vec<v1::Node>, Error> {
        let server = &self.backend.server;
        Ok(self.backend.ask_server(|| server.status())?.nodes)
    }

    fn node(&self, node: u32) -> Result<v1::Node, Error> {
        let found = self.nodes()?.into_iter().find(|e| e.node == node);
        found.ok_or_else(|| Errno::NOENT.into())
    }

    /// Handles text that was written to a control file: lines for `submit` or `cancel`, a request for events, or files to create.
    pub(crate) fn control_write(
        &self,
        handle: u64,
        bytes: &[u8],
        pace: WaitPolicy,
    ) -> Result<(), Error> {
        let open = self.open_special(handle)?;
        if let (Special::NewFiles(_), Some(opener)) = (open.special, &open.opener) {
            pace.wait()?;
            return self.control_make(&open, opener, bytes);
        }
        if let (Special::Hooks, Some(opener)) = (open.special, &open.opener) {
            pace.wait()?;
            return self.control_hooks((&open, opener), bytes);
        }
        if matches!(open.special, Special::Events(_)) {
            if bytes.len() > events::QUESTION_BYTES_MAX {
                return Err(Errno::NAMETOOLONG.into());
            }
            *open.input.lock() = bytes.to_vec();
            return Ok(());
        }
        let (Special::Order(order, uid), Some(opener)) = (open.special, &open.opener) else {
            return Err(Errno::ACCESS.into());
        };
        pace.wait()?;
        let mut input = open.input.lock();
        if input.len() + bytes.len() > submit::PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        input.extend_from_slice(bytes);
        while let Some(end) = input.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = input.drain(..=end).collect();
            self.take_line(opener, (order, uid), &line)?;
        }
        Ok(())
    }

    /// Creates the files in the text. Fails with the first error of a file; the program can read the result of each file afterwards.
    fn control_make(
        &self,
        open: &OpenSpecial,
        opener: &OpenerProcess,
        bytes: &[u8],
    ) -> Result<(), Error> {
        // Locked until all files are done: a reader gets the outcome of this call.
        let mut content = open.content.lock();
        let files = new_files::parse(bytes).ok_or(Errno::INVAL);
        let files = files.inspect_err(|_| *content = Some(Vec::new()))?;
        let outcomes = self.make_files(opener, &files);
        let reported = outcomes.iter().flat_map(|errno| errno.to_le_bytes());
        *content = Some(reported.collect());
        match outcomes.iter().find(|&&errno| errno != 0) {
            Some(&errno) => Err(Errno::from_raw_os_error(errno).into()),
            None => Ok(()),
        }
    }

    /// Handles the close of a descriptor of a special file: a last line without a line end counts as complete.
    pub(crate) fn control_flush(&self, handle: u64, pace: WaitPolicy) -> Result<(), Error> {
        let open = self.open_special(handle)?;
        if let (Special::Hooks, Some(opener)) = (open.special, &open.opener) {
            pace.wait()?;
            return self.control_hooks_end(&open, opener);
        }
        let (Special::Order(order, uid), Some(opener)) = (open.special, &open.opener) else {
            return Ok(());
        };
        // A submission holds the lock while it waits for the server.
        pace.wait()?;
        let mut input = open.input.lock();
        if input.is_empty() {
            return Ok(());
        }
        let line = std::mem::take(&mut *input);
        self.take_line(opener, (order, uid), &line)
    }

    pub(crate) fn control_release(&self, handle: u64) {
        self.control.open.lock().remove(&handle);
    }
}

/// Returns the credentials of a user, with only the user's own rights, which the server checks.
fn plain_credentials(uid: u32) -> v1::Credentials {
    v1::Credentials {
        uid,
        gid: users::gid(uid),
        groups: users::groups(uid),
        checked: false,
    }
}
