//! Files by URL: `GET` and `HEAD /files/PATH`, for programs that know nothing of Tidemill (`docs/decisions/0024-files-over-http.md`). Only
//! this module sends bytes of files through the server to a client.
//!
//! [`crate::authentication`] determines the user of a request before this module. The request has the rights of that user to the file at
//! the time of the request. The server sends the version that was current at that time.

mod conditions;
mod listing;
pub(crate) mod path;
mod refused;
pub(crate) mod stream;

pub(crate) use path::is_file;
pub(crate) use refused::FileRefusal;
pub(crate) use stream::{BytesUnreadable, SourceNodes, VersionStream};

use crate::access::{Access, Peer};
use crate::clock;
use crate::cluster::Cluster;
use crate::lease_recall::LeaseRecalls;
use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::response::Builder;
use axum::http::{Method, Request, Response, StatusCode, header};
use axum::routing::any;
use bytes::Bytes;
use conditions::{ResponseKind, VersionTag};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use stream::{StreamSender, WINDOW_BYTES};
use tidemill_client::Trust;
use tidemill_client::concurrency_limit::UserPermits;
use tidemill_client::objects::Objects;
use tidemill_meta::read_pins::ReadVersion;
use tidemill_meta::{Caller, Fault, NamesRequest, SqliteNames};
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::wrappers::ReceiverStream;

/// Maximum number of files that are sent to one user at once, and (`STREAMS_MAX`) to all users.
const STREAMS_EACH_MAX: usize = 16;
const STREAMS_MAX: usize = 64;

/// Maximum time for which a request waits until another stream has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// The service of files by URL, as described in the module's documentation. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct FileService(Arc<FileServiceState>);

#[derive(Debug)]
struct FileServiceState {
    names: Arc<SqliteNames>,
    lease_recalls: LeaseRecalls,
    access: Arc<Access>,
    nodes: SourceNodes,
    of_each: UserPermits,
    of_all: Arc<Semaphore>,
}

/// Permission to send a file, which ends when this value is dropped.
#[derive(Debug)]
struct SendPermit {
    _own: Option<OwnedSemaphorePermit>,
    _any: OwnedSemaphorePermit,
}

impl FileService {
    pub(crate) fn new(
        names: &Arc<SqliteNames>,
        lease_recalls: &LeaseRecalls,
        access: &Arc<Access>,
        cluster: &Arc<Cluster>,
        trust: &Trust,
    ) -> Self {
        Self(Arc::new(FileServiceState {
            names: names.clone(),
            lease_recalls: lease_recalls.clone(),
            access: access.clone(),
            nodes: SourceNodes {
                cluster: cluster.clone(),
                shared: names.shared().clone(),
                objects: Objects::new(Some(trust)),
            },
            of_each: UserPermits::new(STREAMS_EACH_MAX),
            of_all: Arc::new(Semaphore::new(STREAMS_MAX)),
        }))
    }

    /// Returns the HTTP routes of the service.
    pub(crate) fn routes(self) -> axum::Router {
        let below = format!("{}/{{*path}}", path::FILES);
        let directory = format!("{}/", path::FILES);
        axum::Router::new()
            .route(path::FILES, any(serve))
            .route(&directory, any(serve))
            .route(&below, any(serve))
            .with_state(self)
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, FileRefusal> {
        let (asked, _) = request.into_parts();
        let bytes = match asked.method {
            Method::GET => true,
            Method::HEAD => false,
            _ => return Err(FileRefusal::Method),
        };
        let path = path::of(&asked.uri)?;
        let peer = asked.extensions.get::<Peer>();
        let peer = peer.ok_or(FileRefusal::Name((&Fault::Closed).into()))?;
        let caller = self.0.access.caller_of(peer, None)?;
        let attr = self.found(&caller, &path).await?;
        let shown = || String::from_utf8_lossy(&path).into_owned();
        match attr.kind() {
            Kind::File => self.file(&asked, (peer, &caller), attr.ino, shown()).await,
            Kind::Directory => {
                let turn = self.turn(peer).await?;
                self.directory(bytes, (caller, turn), attr.ino, path).await
            }
            other => Err(FileRefusal::NoFile(shown(), called(other))),
        }
    }

    /// Returns the attributes of the file at a path.
    async fn found(&self, caller: &Caller, path: &[u8]) -> Result<v1::Attr, FileRefusal> {
        let resolve = Op::Resolve(v1::Resolve {
            path: path.to_vec(),
            follow: true,
            advise: true,
        });
        match self.one(caller, resolve).await? {
            Answer::Entry(v1::Entry {
                attr: Some(attr), ..
            }) => Ok(attr),
            _ => Err(Fault::Malformed("the path is invalid").into()),
        }
    }

    /// Returns the present version of a file, and keeps the version from being removed while it is read.
    pub(crate) async fn version(
        &self,
        peer: &Peer,
        path: &[u8],
    ) -> Result<ReadVersion, FileRefusal> {
        let caller = self.0.access.caller_of(peer, None)?;
        let attr = self.found(&caller, path).await?;
        let shown = || String::from_utf8_lossy(path).into_owned();
        match attr.kind() {
            Kind::File => self.read(&caller, attr.ino, shown).await,
            other => Err(FileRefusal::NoFile(shown(), called(other))),
        }
    }

    /// Returns the access to the nodes from which bytes of versions are read.
    pub(crate) fn nodes(&self) -> &SourceNodes {
        &self.0.nodes
    }

    async fn read(
        &self,
        caller: &Caller,
        ino: u64,
        shown: impl FnOnce() -> String,
    ) -> Result<ReadVersion, FileRefusal> {
        // This request settles the file, so that closed content is visible.
        let content = v1::GetAttr { ino, content: true };
        self.one(caller, Op::GetAttr(content)).await?;
        let reading = self.0.names.read_version(caller, ino)?;
        let vnode = &reading.vnode;
        match vnode.object == 0 && vnode.version == 0 && vnode.writing != 0 {
            true => Err(FileRefusal::NotYet(shown())),
            false => Ok(reading),
        }
    }

    /// Executes one namespace operation with the rights of the caller.
    async fn one(&self, caller: &Caller, op: Op) -> Result<Answer, FileRefusal> {
        let request = NamesRequest {
            caller: caller.clone(),
            ops: vec![v1::NameOp { op: Some(op) }],
            ..NamesRequest::default()
        };
        let results = self.0.lease_recalls.apply(request).await?;
        match results.into_iter().next().and_then(|result| result.result) {
            Some(Answer::Error(error)) => Err(FileRefusal::Name(error)),
            Some(answer) => Ok(answer),
            None => Err(Fault::Closed.into()),
        }
    }

    async fn file(
        &self,
        asked: &Parts,
        (peer, caller): (&Peer, &Caller),
        ino: u64,
        shown: String,
    ) -> Result<Response<Body>, FileRefusal> {
        let bytes = asked.method == Method::GET;
        let reading = self.read(caller, ino, || shown).await?;
        let vnode = &reading.vnode;
        let cluster = self.0.nodes.cluster.id();
        let version = VersionTag::new(
            cluster,
            vnode.object,
            vnode.size,
            vnode.mtime,
            clock::now_ns(),
        );
        let (status, range) = match version.wanted(&asked.headers, bytes) {
            ResponseKind::All => (StatusCode::OK, 0..version.size),
            ResponseKind::Some(range) => (StatusCode::PARTIAL_CONTENT, range),
            ResponseKind::Known => {
                return built(
                    known_by(&version).status(StatusCode::NOT_MODIFIED),
                    Body::empty(),
                );
            }
            ResponseKind::Other => return Err(FileRefusal::Other),
            ResponseKind::Beyond => return Err(FileRefusal::Range(version.size)),
        };
        let mut response = known_by(&version)
            .status(status)
            .header(header::ACCEPT_RANGES, "bytes")
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
            .header(header::CONTENT_LENGTH, range.end - range.start);
        if status == StatusCode::PARTIAL_CONTENT {
            let text = format!("bytes {}-{}/{}", range.start, range.end - 1, version.size);
            response = response.header(header::CONTENT_RANGE, text);
        }
        if !bytes || range.is_empty() {
            return built(response, Body::empty());
        }
        let Some(source) = VersionStream::new(&self.0.nodes, reading) else {
            return built(response, Body::empty());
        };
        let turn = self.turn(peer).await?;
        // The first window is read before the answer begins, so that an unreadable file results in an error and not in an aborted answer.
        let begun = range.end.min(range.start + WINDOW_BYTES);
        let first = source.window(range.start..begun).await?;
        let body = streamed(turn, async move |to| {
            stream::send(source, first, begun..range.end, &to).await;
        });
        built(response, body)
    }

    /// Returns the names and kinds of the entries of a directory.
    async fn directory(
        &self,
        bytes: bool,
        (caller, turn): (Caller, SendPermit),
        ino: u64,
        path: Vec<u8>,
    ) -> Result<Response<Body>, FileRefusal> {
        let first = self.page(&caller, ino, Vec::new()).await?;
        let response = Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
            .header(header::CACHE_CONTROL, "private, no-cache");
        if !bytes {
            return built(response, Body::empty());
        }
        let files = self.clone();
        let body = streamed(turn, async move |to| {
            let next = |after| files.page(&caller, ino, after);
            listing::send(&path, first, &to, next).await;
        });
        built(response, body)
    }

    async fn page(
        &self,
        caller: &Caller,
        ino: u64,
        after: Vec<u8>,
    ) -> Result<v1::Entries, FileRefusal> {
        let limit = listing::ENTRIES;
        let read = Op::ReadDir(v1::ReadDir { ino, after, limit });
        match self.one(caller, read).await? {
            Answer::Entries(entries) => Ok(entries),
            _ => Err(Fault::Malformed("it is not a directory").into()),
        }
    }

    /// Waits until the limits permit that another file is sent to the peer.
    async fn turn(&self, peer: &Peer) -> Result<SendPermit, FileRefusal> {
        let own = match peer.administrator {
            true => None,
            false => Some(self.0.of_each.take(peer.uid).await?),
        };
        let any = self.0.of_all.clone().acquire_owned();
        let any = tokio::time::timeout(PATIENCE, any).await;
        let any = any.ok().and_then(Result::ok).ok_or(FileRefusal::Full)?;
        Ok(SendPermit {
            _own: own,
            _any: any,
        })
    }
}

async fn serve(State(files): State<FileService>, request: Request<Body>) -> Response<Body> {
    let answer = files.answer(request).await;
    answer.unwrap_or_else(|refused| refused.response())
}

/// Returns the readable name of an inode's kind, for inodes without bytes.
fn called(kind: Kind) -> &'static str {
    match kind {
        Kind::Directory => "a directory",
        Kind::Fifo => "a pipe",
        Kind::Socket => "a socket",
        _ => "a special file",
    }
}

/// Returns the head of an HTTP response with the headers by which clients recognise the version.
fn known_by(version: &VersionTag) -> Builder {
    let response = Response::builder()
        .header(header::ETAG, &version.tag)
        // The response belongs to one user, and may differ the next time.
        .header(header::CACHE_CONTROL, "private, no-cache");
    match version.modified {
        Some(modified) => response.header(header::LAST_MODIFIED, httpdate::fmt_http_date(modified)),
        None => response,
    }
}

fn built(response: Builder, body: Body) -> Result<Response<Body>, FileRefusal> {
    let built = response.body(body);
    built.map_err(|_| Fault::Malformed("the response can't be built").into())
}

/// Returns an HTTP body with the bytes that `work` sends. The work ends when the client disconnects.
fn streamed<F>(turn: SendPermit, work: impl FnOnce(StreamSender) -> F) -> Body
where
    F: Future<Output = ()> + Send + 'static,
{
    let (to, frames) = StreamSender::new();
    let work = work(to.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = work => {}
            () = to.closed() => {}
        }
        drop(turn);
    });
    Body::from_stream(ReceiverStream::<Result<Bytes, _>>::new(frames))
}
