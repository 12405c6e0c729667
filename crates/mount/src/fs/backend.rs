//! The mount's connection to the server: namespace operations with bounded patience, and where elements are.

use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_client::ids::Ids;
use tidemill_client::local::{LocalError, LocalNames};
use tidemill_client::{Error as ClientError, Objects, Server};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tokio::runtime::Handle;

/// How long one request may take before it is sent again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an operation waits for a server that can't be reached.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first pause before a request is sent again; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the list of elements is believed when something is missing from it.
const ELEMENTS_TTL: Duration = Duration::from_millis(200);
/// How long an operation waits for an element that is away.
const ELEMENT_PATIENCE: Duration = Duration::from_secs(15);

/// Whether an operation may wait for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Answer from what is known here, or say [`Error::Later`].
    Now,
    /// Waiting is allowed.
    MayWait,
}

impl Pace {
    /// Goes on only where waiting is allowed.
    pub(crate) fn wait(self) -> Result<(), Error> {
        match self {
            Self::Now => Err(Error::Later),
            Self::MayWait => Ok(()),
        }
    }
}

/// Who asks for an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// User id.
    pub(crate) uid: u32,
    /// Group id.
    pub(crate) gid: u32,
    /// Process; 0 if the kernel does it by itself.
    pub(crate) pid: u32,
}

/// Where an element's objects are.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// `https://host:port`, or `http://` without TLS.
    pub(crate) url: Arc<str>,
    /// Its folder, if object files can be opened in place.
    pub(crate) folder: Option<PathBuf>,
    /// Who owns the folder: what is made there is given to them.
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) up: bool,
}

/// Server and elements as the mount uses them. Calls block; they may not be made from async code.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) server: Server,
    pub(crate) objects: Objects,
    pub(crate) runtime: Handle,
    /// The short way to a server on this host.
    local: Option<LocalNames>,
    ids: Ids,
    session: AtomicU64,
    in_place: bool,
    elements: Mutex<Elements>,
}

#[derive(Debug, Default)]
struct Elements {
    places: HashMap<u32, Place>,
    asked: Option<Instant>,
}

impl Backend {
    pub(crate) fn new(server: Server, runtime: Handle, in_place: bool) -> Self {
        Self {
            objects: server.objects(),
            ids: Ids::new(server.clone()),
            local: LocalNames::new(server.endpoint()),
            server,
            runtime,
            session: AtomicU64::new(0),
            in_place,
            elements: Mutex::default(),
        }
    }

    /// The session that changes are made in, so that this mount is not told of its own.
    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Acquire)
    }

    pub(crate) fn set_session(&self, session: u64) {
        self.session.store(session, Ordering::Release);
    }

    /// A new inode and a new object id.
    pub(crate) fn ids(&self) -> Result<(u64, u64), Error> {
        let (inode, object) = self.runtime.block_on(self.patiently(|| self.ids.take()))?;
        Ok((inode.0, object.0))
    }

    /// Carries out one namespace operation.
    pub(crate) fn one(&self, caller: Caller, op: Op) -> Result<Answer, Error> {
        match self.apply(caller, vec![op], false)?.pop() {
            Some(Answer::Error(error)) => Err(ClientError::from(error).into()),
            Some(answer) => Ok(answer),
            None => Err(ClientError::Answer("Apply").into()),
        }
    }

    /// As [`Self::one`], for what needs an element to be placed on: waits a while if there is none, as after
    /// a restart of the server.
    pub(crate) fn one_placed(&self, caller: Caller, op: &Op) -> Result<Answer, Error> {
        let deadline = Instant::now() + ELEMENT_PATIENCE;
        loop {
            match self.one(caller, op.clone()) {
                Err(error) if error.is(Errno::HOSTUNREACH) && Instant::now() < deadline => {
                    std::thread::sleep(ELEMENTS_TTL);
                }
                other => return other,
            }
        }
    }

    /// Carries out operations in order; the answer ends with the first error.
    pub(crate) fn apply(
        &self,
        caller: Caller,
        ops: Vec<Op>,
        durable: bool,
    ) -> Result<Vec<Answer>, Error> {
        let request = self.request(caller, ops, durable);
        if let Some(local) = &self.local {
            match local.apply(&request) {
                Ok(answers) => return Ok(answers),
                // The server may be starting again.
                Err(LocalError::Refused(ClientError::Unreachable { .. })) => {}
                Err(LocalError::Refused(error)) => return Err(error.into()),
                Err(LocalError::Lost(error)) => tracing::debug!("no answer on this host: {error}"),
            }
        }
        let asked = self.patiently(|| self.server.apply(request.clone()));
        Ok(self.runtime.block_on(asked)?)
    }

    fn request(&self, caller: Caller, ops: Vec<Op>, durable: bool) -> v1::NameRequest {
        v1::NameRequest {
            credentials: Some(credentials(caller)),
            ops: ops
                .into_iter()
                .map(|op| v1::NameOp { op: Some(op) })
                .collect(),
            session: self.session(),
            durable,
        }
    }

    /// As [`Self::apply`], from async code.
    pub(crate) async fn apply_async(
        &self,
        caller: Caller,
        ops: Vec<Op>,
        durable: bool,
    ) -> Result<Vec<Answer>, ClientError> {
        let request = self.request(caller, ops, durable);
        self.patiently(|| self.server.apply(request.clone())).await
    }

    /// Repeats a request while the server can't be reached, for a bounded time. Requests can be repeated:
    /// what makes something carries ids reserved for it.
    async fn patiently<T, F>(&self, request: impl Fn() -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let start = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let answer = tokio::time::timeout(REQUEST_TIMEOUT, request()).await;
            let error = match answer {
                Ok(Err(error @ ClientError::Unreachable { .. })) => error,
                Ok(answer) => return answer,
                Err(_) => ClientError::Unreachable {
                    endpoint: self.server.endpoint().to_string(),
                    reason: format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()),
                },
            };
            if start.elapsed() + pause > PATIENCE {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Where an element is; asks the server if that is not known here, and waits a while for an element
    /// that is away: it may be about to come back.
    pub(crate) fn place(&self, element: u32, pace: Pace) -> Result<Place, Error> {
        let deadline = Instant::now() + ELEMENT_PATIENCE;
        loop {
            let known = self.elements.lock().places.get(&element).cloned();
            if let Some(place) = known.filter(|place| place.up || place.folder.is_some()) {
                return Ok(place);
            }
            pace.wait()?;
            let recent = self
                .elements
                .lock()
                .asked
                .is_some_and(|at| at.elapsed() < ELEMENTS_TTL);
            if Instant::now() > deadline {
                let id = tidemill_core::id::ElementId(element);
                return Err(ClientError::ElementDown(id).into());
            }
            if recent {
                std::thread::sleep(ELEMENTS_TTL / 4);
            } else {
                self.refresh_elements()?;
            }
        }
    }

    /// As [`Self::place`], from async code: the element's URL.
    pub(crate) async fn url(self: &Arc<Self>, element: u32) -> Result<Arc<str>, ClientError> {
        if let Ok(place) = self.place(element, Pace::Now) {
            return Ok(place.url);
        }
        let backend = self.clone();
        let ask = move || backend.place(element, Pace::MayWait);
        let place = tokio::task::spawn_blocking(ask)
            .await
            .unwrap_or(Err(Error::Later));
        let down = ClientError::ElementDown(tidemill_core::id::ElementId(element));
        Ok(place.map_err(|_| down)?.url)
    }

    /// Forgets where an element is: it may have come back elsewhere.
    pub(crate) fn forget_element(&self, element: u32) {
        self.elements.lock().places.remove(&element);
    }

    /// Forgets where elements are: they may have come back elsewhere.
    pub(crate) fn forget_elements(&self) {
        *self.elements.lock() = Elements::default();
    }

    /// Asks the server for its elements.
    pub(crate) fn refresh_elements(&self) -> Result<(), Error> {
        let status = self
            .runtime
            .block_on(self.patiently(|| self.server.status()))?;
        let host = tidemill_client::host::id();
        let places = status.elements.into_iter().map(|element| {
            let folder = (self.in_place && element.host == host)
                .then(|| usable(Path::new(&element.folder)))
                .flatten();
            let place = Place {
                url: element.url.into(),
                owner: folder.as_deref().and_then(foreign_owner),
                folder,
                up: element.up,
            };
            (element.element, place)
        });
        let mut elements = self.elements.lock();
        elements.places = places.collect();
        elements.asked = Some(Instant::now());
        Ok(())
    }
}

/// An element's folder, if objects can be written there.
fn usable(folder: &Path) -> Option<PathBuf> {
    use rustix::fs::{Access, access};
    let objects = folder.join("objects");
    access(
        &objects,
        Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK,
    )
    .ok()?;
    Some(folder.to_owned())
}

/// The folder's owner, unless that is us.
fn foreign_owner(folder: &Path) -> Option<(u32, u32)> {
    let stat = rustix::fs::stat(folder).ok()?;
    (stat.st_uid != rustix::process::geteuid().as_raw()).then_some((stat.st_uid, stat.st_gid))
}

/// The caller's rights as they are sent: the kernel has checked permissions.
pub(crate) fn credentials(caller: Caller) -> v1::Credentials {
    v1::Credentials {
        uid: caller.uid,
        gid: caller.gid,
        groups: Vec::new(),
        checked: true,
    }
}

/// The attributes in an answer that has some.
pub(crate) fn attr_of(answer: Answer) -> Result<v1::Attr, Error> {
    let attr = match answer {
        Answer::Attr(attr) => Some(attr),
        Answer::Entry(entry) => entry.attr,
        Answer::Opened(opened) => opened.attr,
        _ => None,
    };
    attr.ok_or_else(|| ClientError::Answer("Apply").into())
}

/// The error for an operation that this kind of file does not have.
pub(crate) fn unsupported() -> Error {
    Error::System(Errno::OPNOTSUPP)
}
