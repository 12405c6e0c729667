//! The mount's connection to the server: namespace operations that wait for an unreachable server, and the addresses of nodes. The module
//! sends requests to the server and the nodes (next: `server/src`, `node/src`).

use super::deadline::{self, Pauses};
use super::retry;
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_client::id_pool::IdStock;
use tidemill_client::local::{LocalError, LocalNames};
use tidemill_client::{Error as ClientError, Objects, Server};
use tidemill_model::id::NodeId;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Time without an answer after which the mount sends a request again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum age of the list of nodes when a node is missing from the list.
const NODES_TTL: Duration = Duration::from_millis(200);
/// Maximum age of the list of this host's nodes when a file is created.
const HERE_TTL: Duration = Duration::from_secs(5);
/// Maximum number of objects whose release one request reports.
const RELEASED_MAX: usize = 1_000;

/// Whether an operation may wait for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// The operation answers from the cache, or returns [`Error::Later`].
    Now,
    /// The operation may wait.
    MayWait,
}

impl WaitPolicy {
    /// Returns [`Error::Later`] unless waiting is allowed.
    pub(crate) fn wait(self) -> Result<(), Error> {
        match self {
            Self::Now => Err(Error::Later),
            Self::MayWait => Ok(()),
        }
    }
}

/// Identity of the process that requests an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// User id.
    pub(crate) uid: u32,
    /// Group id.
    pub(crate) gid: u32,
    /// Process id; 0 if the Linux kernel acts by itself.
    pub(crate) pid: u32,
}

/// Location of a node and its object files.
#[derive(Clone, Debug)]
pub(crate) struct NodeLocation {
    /// URL of the node: `https://host:port`, or `http://host:port` without TLS.
    pub(crate) url: Arc<str>,
    /// Directory of the node, if the mount can open object files directly.
    pub(crate) directory: Option<PathBuf>,
    /// User and group that own the node's directory, if they are not this process's user: new files in the directory get this owner.
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) up: bool,
    /// Whether the node stores objects in memory. If the node counts its space, its file system does not limit that memory.
    pub(crate) memory: bool,
    pub(crate) counts_space: bool,
    /// Whether the node's address may be outdated.
    stale: bool,
}

/// Connections of the mount to the server and the nodes. Its functions block, so async code must not call them.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) server: Server,
    pub(crate) objects: Objects,
    pub(crate) runtime: Handle,
    /// Direct connection to a server on this host.
    local: Option<LocalNames>,
    ids: IdStock,
    session: AtomicU64,
    in_place: bool,
    nodes: Mutex<NodePlaces>,
    /// Notification that a request was left without an answer.
    doubt: Notify,
    /// Objects that this mount no longer reads and whose release is to be reported to the server. `None` while no task sends releases.
    released: Mutex<Option<Vec<v1::Release>>>,
    /// Number of opens of each version with several writers on this mount.
    multi_writer: Mutex<HashMap<u64, usize>>,
    /// Whether programs of unprivileged users get descriptors of object files for writing.
    hands_out: AtomicBool,
}

#[derive(Debug, Default)]
struct NodePlaces {
    places: HashMap<u32, NodeLocation>,
    asked: Option<Instant>,
}

/// Maximum time that the creation of a file waits for space in the burst tier.
const FULL_PATIENCE: Duration = Duration::from_secs(600);
/// Pause before the next request for space in the burst tier.
const FULL_PAUSE: Duration = Duration::from_millis(100);

impl Backend {
    pub(crate) fn new(server: Server, runtime: Handle, in_place: bool) -> Self {
        Self {
            objects: server.objects(),
            ids: IdStock::new(server.clone()),
            local: LocalNames::new(server.endpoint()),
            server,
            runtime,
            session: AtomicU64::new(0),
            in_place,
            nodes: Mutex::default(),
            doubt: Notify::new(),
            released: Mutex::default(),
            multi_writer: Mutex::default(),
            hands_out: AtomicBool::new(false),
        }
    }

    /// Declares that programs of unprivileged users get descriptors of object files, and may keep them after they reported a close. So this
    /// process opens such files for reading only, and their nodes seal a copy if the operating system cannot show that no writer is left.
    pub(crate) fn set_hands_out(&self) {
        self.hands_out.store(true, Ordering::Relaxed);
    }

    pub(crate) fn hands_out(&self) -> bool {
        self.hands_out.load(Ordering::Relaxed)
    }

    /// Returns the session that the mount uses for its changes, so that this mount gets no notifications of its own changes.
    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Acquire)
    }

    pub(crate) fn set_session(&self, session: u64) {
        self.session.store(session, Ordering::Release);
    }

    /// Returns an unused inode and an unused object id.
    pub(crate) fn ids(&self) -> Result<(u64, u64), Error> {
        let (inode, object) = self.ask_server(|| self.ids.take())?;
        Ok((inode.0, object.0))
    }

    /// Sends a request that can be repeated, until this thread's operation reaches its deadline.
    pub(crate) fn ask_server<T, F>(&self, request: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let until = Some(deadline::deadline());
        Ok(self.runtime.block_on(self.patiently(until, request))?)
    }

    /// Sends a request that cannot be repeated. Returns its result, unless this thread's operation reaches its deadline.
    pub(crate) fn ask_once<T>(
        &self,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let outcome = self
            .runtime
            .block_on(deadline::within(deadline::deadline(), work));
        outcome.unwrap_or_else(|| Err(self.lost("it does not answer".into())))
    }

    /// Executes one namespace operation.
    pub(crate) fn one(self: &Arc<Self>, caller: Caller, op: Op) -> Result<Answer, Error> {
        match self.apply(caller, vec![op], false)?.pop() {
            Some(Answer::Error(error)) => Err(ClientError::from(error).into()),
            Some(answer) => Ok(answer),
            None => Err(ClientError::Answer("Apply").into()),
        }
    }

    /// Executes, like [`Self::one`], an operation that needs a node for an object. Waits if no node exists, such as after a restart of the
    /// server, or if no node has space before files of the burst tier are staged out.
    pub(crate) fn one_placed(self: &Arc<Self>, caller: Caller, op: &Op) -> Result<Answer, Error> {
        let deadline = deadline::deadline();
        let full = deadline::now() + FULL_PATIENCE;
        loop {
            match self.one(caller, op.clone()) {
                Err(error) if error.is(Errno::AGAIN) => {
                    if deadline::now() >= full {
                        return Err(Errno::NOSPC.into());
                    }
                    deadline::renew();
                    deadline::sleep(FULL_PAUSE);
                }
                Err(error) if error.is(Errno::HOSTUNREACH) && deadline::now() < deadline => {
                    deadline::sleep(NODES_TTL);
                }
                other => return other,
            }
        }
    }

    /// Executes operations in order; the answer ends with the first error. While the server is unreachable, the mount sends the request
    /// again, until this thread's operation reaches its deadline.
    pub(crate) fn apply(
        self: &Arc<Self>,
        caller: Caller,
        ops: Vec<Op>,
        durable: bool,
    ) -> Result<Vec<Answer>, Error> {
        let request = self.request(credentials(caller), ops, durable);
        let answers = self.send_until_answered(caller, &request);
        answers.inspect_err(|error| {
            if matches!(error, Error::Client(ClientError::Unreachable { .. })) {
                self.unanswered(caller, &request);
            }
        })
    }

    /// Executes operations that can be repeated unchanged, like [`Self::apply`], with rights that the server checks.
    pub(crate) fn apply_as(
        &self,
        credentials: v1::Credentials,
        ops: Vec<Op>,
    ) -> Result<Vec<Answer>, Error> {
        let request = self.request(credentials, ops, false);
        self.send_until_answered(Caller::default(), &request)
    }

    /// Sends a request until an answer arrives, or this thread's operation reaches its deadline.
    fn send_until_answered(
        &self,
        caller: Caller,
        request: &v1::NameRequest,
    ) -> Result<Vec<Answer>, Error> {
        let until = deadline::deadline();
        let mut pauses = Pauses::until(Some(until));
        let mut repeated = false;
        loop {
            let error = match self.attempt(caller, request, repeated, until) {
                Err(error @ ClientError::Unreachable { .. }) => error,
                other => return Ok(other?),
            };
            let Some(pause) = pauses.next() else {
                return Err(error.into());
            };
            deadline::sleep(pause);
            repeated = true;
        }
    }

    /// Sends a request once. If the request was sent before, the server may have executed the first attempt.
    fn attempt(
        &self,
        caller: Caller,
        request: &v1::NameRequest,
        repeated: bool,
        until: Instant,
    ) -> Result<Vec<Answer>, ClientError> {
        if let Some(op) = single(request)
            && repeated
            && let Some(question) = retry::question(op)
        {
            let found = self.send(&self.request(credentials(caller), question, false), until)?;
            if let Some(answer) = retry::done(op, &found) {
                return Ok(vec![answer]);
            }
        }
        self.send(request, until)
    }

    fn send(&self, request: &v1::NameRequest, until: Instant) -> Result<Vec<Answer>, ClientError> {
        if let Some(local) = &self.local {
            let until = deadline::real(until);
            let last = until.min(Instant::now() + REQUEST_TIMEOUT);
            let answer = local.apply(request, until);
            deadline::woken(last);
            match answer {
                Ok(answers) => return Ok(answers),
                Err(LocalError::Refused(error)) => return Err(error),
                Err(LocalError::Absent(error)) => {
                    tracing::debug!("the file can't be accessed directly on this host: {error}")
                }
                // Not by the other connection at once: the state is examined before a request is sent again.
                Err(error @ LocalError::Lost(_)) => return Err(self.lost(error.to_string())),
            }
        }
        let sent = self.in_time(Some(until), self.server.apply(request.clone()));
        self.runtime.block_on(sent)
    }

    /// Handles a request whose answer no caller waits for any longer. If the request began a version, the mount abandons the version, since
    /// no caller would end it. Cached values may be wrong if the server still executes the request.
    fn unanswered(self: &Arc<Self>, caller: Caller, request: &v1::NameRequest) {
        if let Some(op) = single(request) {
            self.undo(caller, op);
        }
        self.doubt();
    }

    /// Undoes a request that began an unwanted version, before another version is begun.
    pub(crate) fn undo_now(self: &Arc<Self>, caller: Caller, op: &Op) -> Result<(), Error> {
        let ops = retry::undoing(op).unwrap_or_default();
        let undone = self.apply(caller, ops, false);
        undone.map(drop).inspect_err(|_| self.undo(caller, op))
    }

    /// Undoes many requests at once, like [`Self::undo_now`]. Requests that cannot be undone now are undone in the background.
    pub(crate) fn undo_all(self: &Arc<Self>, caller: Caller, ops: &[&Op]) {
        let all = ops.iter().filter_map(|op| retry::undoing(op)).flatten();
        let all: Vec<Op> = all.collect();
        let count = all.len();
        let undone = self.apply(caller, all, false).is_ok_and(|answers| {
            let failed = matches!(answers.last(), Some(Answer::Error(_)));
            answers.len() == count && !failed
        });
        if !undone {
            ops.iter().for_each(|op| self.undo(caller, op));
        }
    }

    /// Undoes a request that began an unused version, in the background and without a time limit.
    pub(crate) fn undo(self: &Arc<Self>, caller: Caller, op: &Op) {
        let Some(ops) = retry::undoing(op) else {
            return;
        };
        let backend = self.clone();
        self.runtime.spawn(async move {
            match backend.apply_async(caller, ops, None).await {
                Ok(answers) => tracing::debug!("undone: {:?}", answers.last()),
                Err(error) => tracing::warn!("an unused new version stays: {error}"),
            }
        });
    }

    /// Records that cached values may be wrong.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Waits until a request is left without an answer.
    pub(crate) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    fn request(
        &self,
        credentials: v1::Credentials,
        ops: Vec<Op>,
        durable: bool,
    ) -> v1::NameRequest {
        v1::NameRequest {
            credentials: Some(credentials),
            ops: ops
                .into_iter()
                .map(|op| v1::NameOp { op: Some(op) })
                .collect(),
            session: self.session(),
            durable,
        }
    }

    /// Executes operations that can be repeated unchanged, like [`Self::apply`], from async code. Without a deadline the operations are
    /// repeated for as long as the mount runs.
    pub(crate) async fn apply_async(
        &self,
        caller: Caller,
        ops: Vec<Op>,
        until: Option<Instant>,
    ) -> Result<Vec<Answer>, ClientError> {
        let request = self.request(credentials(caller), ops, false);
        self.patiently(until, || self.server.apply(request.clone()))
            .await
    }

    /// Reports to the server, in the background, that an object is no longer read on this mount.
    pub(crate) fn released(self: &Arc<Self>, release: v1::Release) {
        let mut waiting = self.released.lock();
        if let Some(waiting) = waiting.as_mut() {
            waiting.push(release);
            return;
        }
        *waiting = Some(vec![release]);
        let backend = self.clone();
        self.runtime.spawn(async move {
            while let Some(released) = backend.next_released() {
                backend.tell_released(released).await;
            }
        });
    }

    /// Counts another open of a version that several mounts write or have written.
    pub(crate) fn enter_multi_writer(&self, version: u64) {
        *self.multi_writer.lock().entry(version).or_default() += 1;
    }

    /// Counts a close of a version that several mounts write or have written. The server gets a release after the last close.
    pub(crate) fn leave_multi_writer(self: &Arc<Self>, ino: u64, object: u64) {
        let mut open = self.multi_writer.lock();
        let Some(count) = open.get_mut(&object) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            open.remove(&object);
            self.released(v1::Release { ino, object });
        }
    }

    /// Returns the releases that are not sent yet; `None` if there are none, and then the sending task ends.
    fn next_released(&self) -> Option<Vec<v1::Release>> {
        let mut waiting = self.released.lock();
        if waiting.as_ref()?.is_empty() {
            *waiting = None;
        }
        waiting.as_mut().map(std::mem::take)
    }

    async fn tell_released(&self, released: Vec<v1::Release>) {
        // Many rights can end together, such as those of all versions that were read before a restart.
        for some in released.chunks(RELEASED_MAX) {
            let ops = some.iter().map(|release| Op::Release(*release)).collect();
            let until = Some(deadline::now() + deadline::PATIENCE);
            if let Err(error) = self.apply_async(Caller::default(), ops, until).await {
                let objects = some.len();
                tracing::debug!(
                    objects,
                    "the server keeps objects until this mount ends: {error}"
                );
            }
        }
    }

    /// Repeats a request while the server is unreachable.
    async fn patiently<T, F>(
        &self,
        until: Option<Instant>,
        request: impl Fn() -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut pauses = Pauses::until(until);
        loop {
            let error = match self.in_time(until, request()).await {
                Err(error @ ClientError::Unreachable { .. }) => error,
                answer => return answer,
            };
            let Some(pause) = pauses.next() else {
                return Err(error);
            };
            deadline::pause(pause).await;
        }
    }

    /// Returns the answer to a request, or an error if no answer arrived in time.
    async fn in_time<T>(
        &self,
        until: Option<Instant>,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let last = deadline::now() + REQUEST_TIMEOUT;
        let end = until.map_or(last, |until| until.min(last));
        let answer = deadline::within(end, request).await;
        answer.unwrap_or_else(|| Err(self.lost("it does not answer".into())))
    }

    fn lost(&self, reason: String) -> ClientError {
        ClientError::Unreachable {
            endpoint: self.server.endpoint().to_string(),
            reason,
        }
    }

    /// Returns the location of a node. Asks the server if the location is not cached, and waits for an offline node, which may return.
    pub(crate) fn place(&self, node: u32, pace: WaitPolicy) -> Result<NodeLocation, Error> {
        if let Some(place) = self.known(node) {
            return Ok(place);
        }
        pace.wait()?;
        let found = self.find(node, Some(deadline::deadline()));
        Ok(self.runtime.block_on(found)?)
    }

    /// Whether the mount opens a node's object files directly.
    pub(crate) fn is_here(&self, node: u32) -> bool {
        self.known(node)
            .is_some_and(|place| place.directory.is_some())
    }

    /// Returns the node of this host, if any, on which this mount writes its parts of files with several writers.
    pub(crate) fn near(&self) -> Option<u32> {
        let nodes = self.nodes.lock();
        let here = nodes.places.iter();
        let here = here.filter(|(_, place)| place.up && place.directory.is_some() && !place.memory);
        let mut here: Vec<u32> = here.map(|(&node, _)| node).collect();
        here.sort_unstable();
        let turn = usize::try_from(self.session()).unwrap_or(0);
        (!here.is_empty()).then(|| here[turn % here.len()])
    }

    /// Returns the nodes of this host on which the mount can write object files directly. A new node appears some seconds later.
    pub(crate) fn here(self: &Arc<Self>) -> Vec<u32> {
        let mut nodes = self.nodes.lock();
        if nodes.asked.is_none_or(|at| at.elapsed() > HERE_TTL) {
            nodes.asked = Some(Instant::now());
            let backend = self.clone();
            self.runtime.spawn(async move {
                let until = Some(deadline::now() + deadline::PATIENCE);
                if let Err(error) = backend.refresh(until).await {
                    tracing::debug!("the list of this host's nodes can't be read: {error}");
                }
            });
        }
        let places = nodes.places.iter();
        let here = places.filter(|(_, place)| place.up && place.directory.is_some());
        here.map(|(&node, _)| node).collect()
    }

    fn known(&self, node: u32) -> Option<NodeLocation> {
        let known = self.nodes.lock().places.get(&node).cloned();
        known.filter(|place| !place.stale && (place.up || place.directory.is_some()))
    }

    /// Returns the last known URL of a node, because a server that has just started may not know the node yet.
    pub(crate) fn last_url(&self, node: u32) -> Option<Arc<str>> {
        let nodes = self.nodes.lock();
        Some(nodes.places.get(&node)?.url.clone())
    }

    /// Returns the location of a node, like [`Self::place`], from async code. Without a deadline it waits while the mount runs.
    pub(crate) async fn find(
        &self,
        node: u32,
        until: Option<Instant>,
    ) -> Result<NodeLocation, ClientError> {
        let mut pauses = Pauses::until(until);
        loop {
            let error = match self.look(node, until).await {
                Err(error @ (ClientError::Unreachable { .. } | ClientError::NodeDown(_))) => error,
                found => return found,
            };
            let Some(pause) = pauses.next() else {
                return Err(error);
            };
            deadline::pause(pause.min(NODES_TTL)).await;
        }
    }

    /// Returns the location of a node, like [`Self::find`], without waiting for an offline node, because another node may have the data.
    pub(crate) async fn look(
        &self,
        node: u32,
        until: Option<Instant>,
    ) -> Result<NodeLocation, ClientError> {
        if let Some(place) = self.known(node) {
            return Ok(place);
        }
        let asked = self.nodes.lock().asked;
        let recently = asked.is_some_and(|at| at.elapsed() < NODES_TTL);
        if !recently {
            self.refresh(until).await?;
        }
        let down = ClientError::NodeDown(NodeId(node));
        self.known(node).ok_or(down)
    }

    /// Returns the directory of a node, if the node is on this host and the mount opens its object files directly.
    pub(crate) fn directory(&self, node: u32, pace: WaitPolicy) -> Result<Option<PathBuf>, Error> {
        if let Some(place) = self.known(node) {
            return Ok(place.directory);
        }
        pace.wait()?;
        let found = self.look(node, Some(deadline::deadline()));
        match self.runtime.block_on(found) {
            Ok(place) => Ok(place.directory),
            Err(ClientError::NodeDown(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the next use of a node request its address again, which may have changed.
    pub(crate) fn forget_node(&self, node: u32) {
        if let Some(place) = self.nodes.lock().places.get_mut(&node) {
            place.stale = true;
        }
    }

    /// Makes the next use of each node request its address again.
    pub(crate) fn forget_nodes(&self) {
        let mut nodes = self.nodes.lock();
        nodes.asked = None;
        for place in nodes.places.values_mut() {
            place.stale = true;
        }
    }

    /// Requests the list of nodes from the server.
    pub(crate) fn refresh_nodes(&self) -> Result<(), Error> {
        let refreshed = self.refresh(Some(deadline::deadline()));
        Ok(self.runtime.block_on(refreshed)?)
    }

    async fn refresh(&self, until: Option<Instant>) -> Result<(), ClientError> {
        let status = self.in_time(until, self.server.status()).await?;
        let host = tidemill_client::host_id::id();
        let places = status.nodes.into_iter().map(|node| {
            let directory = (self.in_place && node.host == host)
                .then(|| usable(Path::new(&node.directory)))
                .flatten();
            let place = NodeLocation {
                url: node.url.into(),
                owner: directory.as_deref().and_then(foreign_owner),
                directory,
                up: node.up,
                memory: node.tier == "memory",
                counts_space: node.counts_space,
                stale: false,
            };
            (node.node, place)
        });
        let mut nodes = self.nodes.lock();
        nodes.places = places.collect();
        nodes.asked = Some(Instant::now());
        Ok(())
    }
}

/// Returns the operation of a request that has only one operation.
fn single(request: &v1::NameRequest) -> Option<&Op> {
    match request.ops.as_slice() {
        [op] => op.op.as_ref(),
        _ => None,
    }
}

/// Returns a node's directory, if the mount can write object files in the directory.
fn usable(directory: &Path) -> Option<PathBuf> {
    use rustix::fs::{Access, access};
    let objects = directory.join("objects");
    access(
        &objects,
        Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK,
    )
    .ok()?;
    Some(directory.to_owned())
}

/// Returns the owner of a directory, unless the owner is the user of this process.
fn foreign_owner(directory: &Path) -> Option<(u32, u32)> {
    let stat = rustix::fs::stat(directory).ok()?;
    (stat.st_uid != rustix::process::geteuid().as_raw()).then_some((stat.st_uid, stat.st_gid))
}

/// Returns the caller's credentials for a request whose permissions the Linux kernel has checked.
pub(crate) fn credentials(caller: Caller) -> v1::Credentials {
    v1::Credentials {
        uid: caller.uid,
        gid: caller.gid,
        groups: Vec::new(),
        checked: true,
    }
}

/// Returns the attributes in an answer, or an error if the answer has none.
pub(crate) fn attr_of(answer: Answer) -> Result<v1::Attr, Error> {
    let attr = match answer {
        Answer::Attr(attr) => Some(attr),
        Answer::Entry(entry) => entry.attr,
        Answer::Opened(opened) => opened.attr,
        _ => None,
    };
    attr.ok_or_else(|| ClientError::Answer("Apply").into())
}

/// Returns the error for an operation that this kind of file does not support.
pub(crate) fn unsupported() -> Error {
    Error::System(Errno::OPNOTSUPP)
}
