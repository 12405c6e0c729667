//! Handlers of the node's HTTP routes, which `tidemill_wire::route` lists. The handlers use the node's store, database and labels.
//!
//! Every request for an object carries a capability. File work runs on blocking threads, in pieces of one mebibyte, since files are written
//! and read fastest in large pieces.

use crate::daemon::Daemon;
use crate::db::DbError;
use crate::hash_checks::HashChecks;
use crate::identity::NodeIdentity;
use crate::ranks;
use crate::records::{self, ObjectRecord};
use crate::reduce::{self, ReduceTrouble, Reducers};
use crate::response_body::{self, Pool};
use crate::scrub;
use crate::store::{Store, StoreError};
use crate::suspended::counted;
use crate::task::now;
use crate::tracker;
use axum::Extension;
use axum::body::Body;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::concurrency_limit::{Busy, UserPermits};
use tidemill_client::connections::{PeerKind, Seated, UserConnection};
use tidemill_client::log_limit::LogLimit;
use tidemill_client::tls::{Listener, SocketStream};
use tidemill_model::id::{ObjectId, TaskId};
use tidemill_model::label::Owner;
use tidemill_sandbox::locks::ProcFile;
use tidemill_wire::capability::{Attributes, Capability, CapabilityRefusal, rights};
use tidemill_wire::replicas::{OBJECTS_MAX, REPLICAS, ReplicaItem, encode};
use tidemill_wire::route::{
    self, CAPABILITY_HEADER, ListedObject, SEAL_ALL_MAX, SOURCE_HEADER, SealBody, SealItem,
    SealReply, SealResult, SizeReply,
};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Maximum number of bytes per read or write of a file.
pub const PIECE_BYTES: usize = 1 << 20;

/// Maximum length in bytes of an attribute that clients set.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Maximum length in bytes of an external path.
const PATH_BYTES_MAX: usize = 4096;

/// Maximum length in bytes of a request's body that does not consist of an object's bytes.
const BODY_BYTES_MAX: usize = 8 << 20;

/// Time limit for the transfer of a body that does not consist of an object's bytes.
const BODY_MAX: Duration = Duration::from_secs(10);

/// First attribute page for clients. Lower pages belong to the node.
const CLIENT_PAGES: u32 = 0x100;

/// Maximum number of concurrent connections of one ordinary user. The connections of a mount count for the user of its last request.
const CONNECTIONS_EACH_MAX: usize = 256;

/// Maximum number of request bodies of one user that the node keeps in memory concurrently.
const BODIES_EACH_MAX: usize = 4;

/// State that all handlers share.
#[derive(Clone, Debug)]
pub(crate) struct HttpContext {
    daemon: Arc<Daemon>,
    pool: Arc<Pool>,
    bodies: Arc<UserPermits>,
    reducers: Arc<Reducers>,
    confirms: Arc<HashChecks>,
}

/// Listener of the node, as axum needs it.
struct HttpListener(Listener);

impl axum::serve::Listener for HttpListener {
    type Io = Seated<SocketStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Seated<SocketStream>, SocketAddr) {
        self.0.accept().await
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Entry of a connection in the connection limit of its user.
#[derive(Clone, Debug)]
struct ConnectionEntry(UserConnection);

impl Connected<IncomingStream<'_, HttpListener>> for ConnectionEntry {
    fn connect_info(stream: IncomingStream<'_, HttpListener>) -> Self {
        Self(stream.io().guest().clone())
    }
}

/// Serves HTTP requests until the stop signal.
pub(crate) async fn serve(
    daemon: Arc<Daemon>,
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
) {
    let identity = daemon.identity.as_ref().map(NodeIdentity::current);
    let listener = HttpListener(Listener::new(listener, identity, CONNECTIONS_EACH_MAX));
    let router = router(daemon).into_make_service_with_connect_info::<ConnectionEntry>();
    let served = axum::serve(listener, router).with_graceful_shutdown(async move {
        // A node that was dropped stops serving, too.
        let _ = stop.wait_for(|stop| *stop).await;
    });
    if let Err(error) = served.await {
        tracing::error!(%error, "the node has stopped serving");
    }
}

fn router(daemon: Arc<Daemon>) -> axum::Router {
    let reducers = Reducers::new(Arc::clone(daemon.executor.parts()), daemon.config.cores);
    let context = HttpContext {
        reducers: Arc::new(reducers),
        daemon,
        pool: Arc::default(),
        bodies: Arc::new(UserPermits::new(BODIES_EACH_MAX)),
        confirms: Arc::default(),
    };
    axum::Router::new()
        .route("/objects/{id}", get(read).head(head).put(write))
        .route("/objects/{id}/ranges", post(ranges))
        .route("/objects", get(list))
        .route("/objects/{id}/truncate", post(truncate))
        .route("/objects/{id}/copy", post(copy))
        .route("/objects/{id}/backend", post(make_stub))
        .route("/objects/{id}/allocate", post(allocate))
        .route("/objects/{id}/reserve", post(reserve))
        .route("/objects/{id}/sync", post(sync))
        .route("/objects/{id}/confirm", post(confirm))
        .route("/objects/{id}/seal", post(seal))
        .route("/objects/{id}/reduce", post(reduced))
        .route("/objects/{id}/fold", post(folded))
        .route("/objects/{id}/attributes", get(attributes))
        .route("/objects/{id}/members", get(members))
        .route(
            "/objects/{id}/attributes/{page}/{number}",
            get(attribute).put(set_attribute),
        )
        .route(route::SEAL_ALL, post(seal_all))
        .route(REPLICAS, post(replicas))
        .route("/status", get(status))
        .route("/tasks", get(tasks))
        .route("/tasks/{id}", get(task))
        .merge(ranks::routes())
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(context.clone(), gate))
        .with_state(context)
}

/// Rejects a request without a valid capability of this node, before the node reads the request's body. Each handler checks whether the
/// capability allows the request.
async fn gate(
    State(context): State<HttpContext>,
    ConnectInfo(ConnectionEntry(guest)): ConnectInfo<ConnectionEntry>,
    mut request: Request,
    next: Next,
) -> HttpResult {
    let shown = request.headers().get(CAPABILITY_HEADER).cloned();
    let shown = shown.ok_or(HttpRefusal::NoCapability)?;
    let shown = context.read(shown.as_bytes()).await?;
    let by = shown.uid;
    guest.introduce(if by == 0 {
        PeerKind::Daemon
    } else {
        PeerKind::User(by)
    });
    request.extensions_mut().insert(shown);
    let answering = context.daemon.traffic.begin();
    let answer = next.run(request).await;
    Ok(answer.map(|body| counted(body, answering)))
}

/// Reason why the node refuses a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpRefusal {
    #[error("{0}")]
    Bad(&'static str),
    #[error("the request has no capability (header {CAPABILITY_HEADER}); ask the server for one")]
    NoCapability,
    #[error(transparent)]
    Capability(#[from] CapabilityRefusal),
    #[error("this node has not joined a cluster yet; try again")]
    NotJoined,
    #[error("object {0:016x} is still being written; it can be read when it is sealed")]
    Unsealed(u64),
    #[error("object {0:016x} is corrupt on this node: it {1}")]
    Corrupt(u64, String),
    #[error("hash mismatch: the object's bytes do not have the expected hash")]
    OtherHash,
    #[error(transparent)]
    Unknown(#[from] scrub::ScrubError),
    #[error("this node has no {0}")]
    Missing(&'static str),
    #[error("attribute pages below {CLIENT_PAGES:#x} are the node's own")]
    OwnPage,
    #[error(
        "only an administrator can import a file of the backend with --no-copy; import it with its bytes"
    )]
    NotYours,
    #[error("the request's body is larger than {0} bytes")]
    TooLong(usize),
    #[error("the body of the request took longer than {} s", BODY_MAX.as_secs())]
    Slow,
    #[error(transparent)]
    Busy(#[from] Busy),
    #[error("the range is beyond the object's {0} bytes")]
    Range(u64),
    #[error(transparent)]
    Reduce(#[from] ReduceTrouble),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Db(#[from] DbError),
    #[error("the request's body ended early: {0}")]
    Body(#[from] axum::Error),
    #[error("the node failed on this request: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

impl HttpRefusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Bad(_) | Self::Body(_) | Self::Capability(CapabilityRefusal::Malformed) => {
                StatusCode::BAD_REQUEST
            }
            Self::NoCapability | Self::Capability(_) | Self::OwnPage | Self::NotYours => {
                StatusCode::FORBIDDEN
            }
            Self::NotJoined | Self::Db(DbError::Stopped) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unsealed(_) | Self::Missing(_) | Self::Store(StoreError::NotFound { .. }) => {
                StatusCode::NOT_FOUND
            }
            Self::Store(StoreError::Sealed { .. }) | Self::OtherHash => StatusCode::CONFLICT,
            Self::Corrupt(..) => StatusCode::GONE,
            Self::Reduce(trouble) => match trouble {
                ReduceTrouble::Malformed | ReduceTrouble::Request(_) => StatusCode::BAD_REQUEST,
                ReduceTrouble::Data(..) => StatusCode::UNPROCESSABLE_ENTITY,
                ReduceTrouble::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
                ReduceTrouble::Full => StatusCode::SERVICE_UNAVAILABLE,
                ReduceTrouble::Store(StoreError::NotFound { .. }) => StatusCode::NOT_FOUND,
                ReduceTrouble::Store(_) | ReduceTrouble::Child(_) => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
            },
            Self::Store(StoreError::Full) => StatusCode::INSUFFICIENT_STORAGE,
            Self::Store(StoreError::Device { source, .. })
                if source.kind() == std::io::ErrorKind::FileTooLarge =>
            {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            Self::Range(_) => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Store(StoreError::Unsupported { .. }) => StatusCode::NOT_IMPLEMENTED,
            Self::Unknown(_)
            | Self::Store(StoreError::Device { .. } | StoreError::Backend { .. })
            | Self::Db(_)
            | Self::Thread(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for HttpRefusal {
    fn into_response(self) -> Response {
        let status = self.status();
        if status.is_server_error()
            && let Some(left_out) = FAILED.may()
        {
            tracing::warn!(error = %self, left_out, "a request could not be served");
        }
        let mut response = (status, format!("{self}\n")).into_response();
        if let Self::Range(size) = self
            && let Ok(value) = format!("bytes */{size}").parse()
        {
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
        response
    }
}

/// Limit of the rate of log messages about failed requests.
static FAILED: LogLimit = LogLimit::new();

pub(crate) type HttpResult = Result<Response, HttpRefusal>;

impl HttpContext {
    /// Returns the object of a path, if the request's capability allows the rights `wanted` on the object.
    pub(crate) fn authorize(
        &self,
        shown: &Capability,
        id: &str,
        wanted: u32,
    ) -> Result<ObjectId, HttpRefusal> {
        let object = route::parse_object(id)
            .ok_or(HttpRefusal::Bad("an object id has 16 hexadecimal digits"))?;
        if wanted & rights::WRITE != 0 && !object.is_data() {
            return Err(HttpRefusal::Bad("only data objects can be written"));
        }
        self.check(shown, object, wanted)?;
        Ok(object)
    }

    pub(crate) fn shared_daemon(&self) -> Arc<Daemon> {
        Arc::clone(&self.daemon)
    }

    fn check(&self, shown: &Capability, object: ObjectId, wanted: u32) -> Result<(), HttpRefusal> {
        let node = self.daemon.config.node;
        shown.allows(node, object, wanted, now().0)?;
        Ok(self.daemon.revoked.check(shown)?)
    }

    /// Decodes a hexadecimal capability and verifies that this cluster signed it.
    async fn read(&self, hex: &[u8]) -> Result<Capability, HttpRefusal> {
        let text = std::str::from_utf8(hex).ok();
        let capability = text
            .and_then(route::parse_hex)
            .ok_or(CapabilityRefusal::Malformed)?;
        let key = self.daemon.key().await.ok_or(HttpRefusal::NotJoined)?;
        Ok(key.read(&capability)?)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, HttpRefusal> {
    Ok(tokio::task::spawn_blocking(work).await??)
}

#[derive(serde::Deserialize)]
struct ReadQuery {
    #[serde(default)]
    corrupt: bool,
}

async fn read(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(ReadQuery { corrupt }): Query<ReadQuery>,
    Extension(shown): Extension<Capability>,
    headers: HeaderMap,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    let open = move |store: &dyn Store| match corrupt {
        true => store.open_corrupt(object),
        false => store.open(object),
    };
    let opened = find(&context, object, open).await?;
    // The writer may read back its own bytes; for all others an unsealed object does not exist yet.
    if !opened.stat.sealed && shown.rights & (rights::WRITE | rights::UNSEALED) == 0 {
        return Err(HttpRefusal::Unsealed(object.0));
    }
    let size = opened.stat.size;
    let range = headers.get(header::RANGE).and_then(|v| v.to_str().ok());
    let range = range.and_then(|text| route::parse_range(text, size));
    let (range, partial) = match range {
        None => (0..size, false),
        Some(None) => return Err(HttpRefusal::Range(size)),
        Some(Some(range)) => (range, true),
    };
    let mut response = Response::builder()
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::CONTENT_LENGTH, range.end - range.start);
    if partial {
        let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        response = response
            .status(StatusCode::PARTIAL_CONTENT)
            .header(header::CONTENT_RANGE, text);
    }
    let body = response_body::stream(opened.bytes.into(), range, &context.pool);
    response
        .body(Body::from_stream(body))
        .map_err(|_| HttpRefusal::Bad("the answer can't be encoded"))
}

async fn ranges(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    let turn = context.bodies.take(shown.uid).await?;
    let body = collect(body, BODY_BYTES_MAX).await?;
    let ranges: Vec<(u64, u64)> = serde_json::from_slice(&body)
        .map_err(|_| HttpRefusal::Bad("the body is not a JSON list of ranges"))?;
    let opened = find(&context, object, move |store| store.open(object)).await?;
    if !opened.stat.sealed {
        return Err(HttpRefusal::Unsealed(object.0));
    }
    let size = opened.stat.size;
    if ranges.iter().any(|(start, end)| start > end || *end > size) {
        return Err(HttpRefusal::Range(size));
    }
    let total = ranges.iter().map(|(start, end)| end - start);
    let total = total.fold(0, u64::saturating_add);
    if ranges.len() > route::RANGES_MAX || total > route::RANGES_BYTES_MAX {
        return Err(HttpRefusal::Bad("more ranges than one request may read"));
    }
    let read = move || {
        let _turn = turn;
        response_body::gather(&*opened.bytes, &ranges).map_err(|source| StoreError::Device {
            path: object.relative_path().into(),
            source,
        })
    };
    Ok(blocking(read).await?.into_response())
}

async fn head(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    let stat = find(&context, object, move |store| store.stat(object)).await?;
    if !stat.sealed && shown.rights & (rights::WRITE | rights::UNSEALED) == 0 {
        return Err(HttpRefusal::Unsealed(object.0));
    }
    let headers = [
        (header::CONTENT_LENGTH, stat.size.to_string()),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
    ];
    Ok((headers, Body::empty()).into_response())
}

/// Calls `look` for an object. If the object is recorded but not readable, records its corruption, for other clients.
async fn find<T: Send + 'static>(
    context: &HttpContext,
    object: ObjectId,
    look: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, HttpRefusal> {
    let daemon = Arc::clone(&context.daemon);
    let found = move || {
        look(daemon.parts().store.as_ref()).map_err(|error| {
            match scrub::look(daemon.parts(), object) {
                Some(what) => HttpRefusal::Corrupt(object.0, what),
                None => error.into(),
            }
        })
    };
    tokio::task::spawn_blocking(found).await?
}

#[derive(serde::Deserialize)]
struct Theirs {
    hash: String,
}

async fn confirm(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(theirs): Query<Theirs>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    let hash = route::parse_hex(&theirs.hash).and_then(|hash| hash.try_into().ok());
    let hash = hash.ok_or(HttpRefusal::Bad("a hash has 64 hexadecimal digits"))?;
    find(&context, object, move |store| store.stat(object)).await?;
    let parts = context.daemon.executor.parts();
    let asked = (shown.uid, object);
    match context.confirms.confirm(parts, asked, hash).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(HttpRefusal::OtherHash),
    }
}

#[derive(serde::Deserialize)]
struct Offset {
    #[serde(default)]
    offset: u64,
}

async fn write(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(Offset { mut offset }): Query<Offset>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::WRITE)?;
    let mut body = body.into_data_stream();
    let mut pending = BytesMut::new();
    let mut wrote = false;
    loop {
        let chunk = body.next().await.transpose()?;
        let end = chunk.is_none();
        pending.extend_from_slice(&chunk.unwrap_or_default());
        if pending.len() >= PIECE_BYTES || (end && (!pending.is_empty() || !wrote)) {
            let piece = pending.split().freeze();
            let length = piece.len() as u64;
            let store = Arc::clone(&context.daemon.parts().store);
            blocking(move || store.write_at(object, offset, &piece)).await?;
            context.daemon.parts().counters.on_arrived(object, length);
            offset = offset.saturating_add(length);
            wrote = true;
        }
        if end {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
}

#[derive(serde::Deserialize)]
struct SizeQuery {
    size: u64,
}

async fn truncate(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(SizeQuery { size }): Query<SizeQuery>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::WRITE)?;
    let store = Arc::clone(&context.daemon.parts().store);
    blocking(move || store.truncate(object, size)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(serde::Deserialize)]
struct SourceQuery {
    from: String,
    bytes: u64,
}

async fn copy(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(SourceQuery { from, bytes }): Query<SourceQuery>,
    Extension(shown): Extension<Capability>,
    headers: HeaderMap,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::WRITE)?;
    let from = route::parse_object(&from)
        .ok_or(HttpRefusal::Bad("an object id has 16 hexadecimal digits"))?;
    let capability = headers
        .get(SOURCE_HEADER)
        .ok_or(HttpRefusal::NoCapability)?;
    let source = context.read(capability.as_bytes()).await?;
    context.check(&source, from, rights::READ)?;
    let store = Arc::clone(&context.daemon.parts().store);
    blocking(move || store.copy(object, from, bytes)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Creates a stub object. The node's keys give access to the whole external store, so only administrators may use this route.
async fn make_stub(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::WRITE)?;
    if shown.uid != 0 && shown.uid != rustix::process::geteuid().as_raw() {
        return Err(HttpRefusal::NotYours);
    }
    let body = collect(body, PATH_BYTES_MAX).await?;
    let path = String::from_utf8(body.into());
    let path = path.map_err(|_| HttpRefusal::Bad("the path is not UTF-8"))?;
    let store = Arc::clone(&context.daemon.parts().store);
    let size = blocking(move || store.make_stub(object, &path)).await?;
    Ok(axum::Json(SizeReply { size }).into_response())
}

#[derive(serde::Deserialize)]
struct RangeQuery {
    offset: u64,
    length: u64,
    mode: u32,
}

async fn allocate(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(range): Query<RangeQuery>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::WRITE)?;
    let store = Arc::clone(&context.daemon.parts().store);
    let allocate = move || store.allocate(object, range.offset, range.length, range.mode);
    let size = blocking(allocate).await?;
    Ok(axum::Json(SizeReply { size }).into_response())
}

async fn reserve(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(SizeQuery { size }): Query<SizeQuery>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::WRITE)?;
    let store = Arc::clone(&context.daemon.parts().store);
    blocking(move || store.reserve(object, size)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn sync(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    let store = Arc::clone(&context.daemon.parts().store);
    blocking(move || store.sync(object)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn seal(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::WRITE)?;
    let _turn = context.bodies.take(shown.uid).await?;
    let body = collect(body, BODY_BYTES_MAX).await?;
    let body: SealBody = serde_json::from_slice(&body)
        .map_err(|_| HttpRefusal::Bad("the body is not a SealBody in JSON"))?;
    let sealed = seal_objects(&context, vec![signed(&shown, object, body)?]).await?;
    match sealed.into_iter().next() {
        Some(sealed) => {
            let (size, receipt) = sealed?;
            Ok(axum::Json(SealReply { size, receipt }).into_response())
        }
        None => Err(HttpRefusal::Bad("the answer can't be encoded")),
    }
}

async fn seal_all(
    State(context): State<HttpContext>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> HttpResult {
    let _turn = context.bodies.take(shown.uid).await?;
    let body = collect(body, BODY_BYTES_MAX).await?;
    let items: Vec<SealItem> = serde_json::from_slice(&body)
        .map_err(|_| HttpRefusal::Bad("the body is not a JSON list of SealItem"))?;
    if items.len() > SEAL_ALL_MAX {
        return Err(HttpRefusal::Bad("more objects than one request may seal"));
    }
    let mut results = Vec::with_capacity(items.len());
    let (mut allowed, mut indexes) = (Vec::with_capacity(items.len()), Vec::new());
    for (index, item) in items.into_iter().enumerate() {
        let object = ObjectId(item.object);
        let checked = if object.is_data() {
            let shown = context.read(item.capability.as_bytes()).await;
            shown.and_then(|shown| {
                context.check(&shown, object, rights::WRITE)?;
                Ok(signed(&shown, object, item.body)?)
            })
        } else {
            Err(HttpRefusal::Bad("only data objects can be written"))
        };
        results.push(SealResult {
            object: item.object,
            size: 0,
            receipt: String::new(),
            status: 200,
            message: String::new(),
        });
        match checked {
            Ok(object) => {
                indexes.push(index);
                allowed.push(object);
            }
            Err(refused) => refuse(&mut results[index], &refused),
        }
    }
    let sealed = seal_objects(&context, allowed).await?;
    for (index, sealed) in indexes.into_iter().zip(sealed) {
        match sealed {
            Ok((size, receipt)) => {
                results[index].size = size;
                results[index].receipt = receipt;
            }
            Err(error) => refuse(&mut results[index], &error.into()),
        }
    }
    Ok(axum::Json(results).into_response())
}

#[derive(serde::Deserialize)]
struct WithBytes {
    bytes: bool,
}

/// Returns the hashes and bytes with which another node makes replicas of many objects.
async fn replicas(
    State(context): State<HttpContext>,
    Query(WithBytes { bytes }): Query<WithBytes>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> HttpResult {
    let _turn = context.bodies.take(shown.uid).await?;
    let body = collect(body, BODY_BYTES_MAX).await?;
    let items: Vec<ReplicaItem> = serde_json::from_slice(&body)
        .map_err(|_| HttpRefusal::Bad("the body is not a JSON list of ReplicaItem"))?;
    if items.len() > OBJECTS_MAX {
        return Err(HttpRefusal::Bad("more objects than one request may copy"));
    }
    let mut objects = Vec::with_capacity(items.len());
    for item in items {
        let object = ObjectId(item.object);
        let shown = context.read(item.capability.as_bytes()).await;
        let allowed = shown.and_then(|shown| context.check(&shown, object, rights::READ));
        objects.push(allowed.is_ok().then_some(object));
    }
    let daemon = Arc::clone(&context.daemon);
    let given = move || encode(&crate::replicas::give(daemon.parts(), &objects, bytes));
    Ok(tokio::task::spawn_blocking(given).await?.into_response())
}

fn refuse(result: &mut SealResult, refused: &HttpRefusal) {
    result.status = refused.status().as_u16();
    result.message = refused.to_string();
}

/// An object to seal: the attributes that the server has signed, and the request of the client.
struct ObjectToSeal {
    object: ObjectId,
    signed: Attributes,
    body: SealBody,
}

/// Returns the object that a client with this capability may seal.
///
/// # Errors
/// [`CapabilityRefusal::Rights`] if the capability has no attributes.
fn signed(
    shown: &Capability,
    object: ObjectId,
    body: SealBody,
) -> Result<ObjectToSeal, CapabilityRefusal> {
    let mut signed = shown.attributes.clone().ok_or(CapabilityRefusal::Rights)?;
    // Only the server knows the place of such a part in the file.
    if signed.part.is_none() && body.part {
        signed.inode = 0;
    }
    Ok(ObjectToSeal {
        object,
        signed,
        body,
    })
}

/// Seals objects with one transaction of the database. An object that was sealed before keeps its attributes. Returns the length of each
/// object, and the receipt for it.
async fn seal_objects(
    context: &HttpContext,
    objects: Vec<ObjectToSeal>,
) -> Result<Vec<Result<(u64, String), StoreError>>, HttpRefusal> {
    let parts = context.daemon.parts();
    let key = context.daemon.key().await.ok_or(HttpRefusal::NotJoined)?;
    let node = context.daemon.config.node;
    let durable = objects.iter().any(|to_seal| to_seal.body.durable);
    let store = Arc::clone(&parts.store);
    let counters = Arc::clone(&parts.counters);
    let sealed_at = now();
    let seal_files = move || {
        let mut results = Vec::with_capacity(objects.len());
        let mut rows = Vec::with_capacity(objects.len());
        for to_seal in objects {
            let ObjectToSeal {
                object,
                signed,
                body,
            } = to_seal;
            let sealed = if body.lost {
                let path = std::path::Path::new(OsStr::from_bytes(&signed.path));
                let shown = ProcFile {
                    inode: signed.inode,
                    name: path.file_name().unwrap_or_default(),
                };
                store.seal_lost(object, body.durable, shown)
            } else {
                store.seal(object, body.durable)
            };
            if let Ok(size) = sealed {
                let row = ObjectRecord::written(object, size, signed, sealed_at);
                rows.push((row, store.allocated(object)));
            }
            results.push((object, sealed));
        }
        (results, rows)
    };
    let (results, rows) = tokio::task::spawn_blocking(seal_files).await?;
    let change = move |connection: &rusqlite::Connection| {
        let mut new = Vec::with_capacity(rows.len());
        for (row, written) in rows {
            if !records::has_object(connection, row.id)? {
                records::put_object(connection, &row)?;
                new.push((row.id, written));
            }
        }
        Ok(new)
    };
    for (object, written) in parts.db.write(durable, change).await? {
        counters.on_sealed(object, written);
        parts.flash.on_written(object, written);
    }
    let receipt = |(object, sealed): (ObjectId, Result<u64, StoreError>)| {
        sealed.map(|size| (size, route::hex(&key.receipt(node, object, size))))
    };
    Ok(results.into_iter().map(receipt).collect())
}

#[derive(serde::Deserialize)]
struct For {
    uid: u32,
    gid: u32,
}

async fn reduced(
    state: State<HttpContext>,
    id: Path<String>,
    of: Query<For>,
    shown: Extension<Capability>,
    body: Body,
) -> HttpResult {
    made(state, (id, of), shown, (body, false)).await
}

async fn folded(
    state: State<HttpContext>,
    id: Path<String>,
    of: Query<For>,
    shown: Extension<Capability>,
    body: Body,
) -> HttpResult {
    made(state, (id, of), shown, (body, true)).await
}

/// Reduces arrays for a user. The server may reduce for any user; other callers reduce only for themselves.
async fn made(
    State(context): State<HttpContext>,
    (Path(id), Query(For { uid, gid })): (Path<String>, Query<For>),
    Extension(shown): Extension<Capability>,
    (body, batch): (Body, bool),
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    // A batch belongs to the user in the capability.
    let uid = if batch { shown.uid } else { uid };
    if shown.uid != 0 && shown.uid != uid {
        return Err(CapabilityRefusal::Rights.into());
    }
    let (owner, reducers) = (Owner { uid, gid }, Arc::clone(&context.reducers));
    let turn = reducers.turn(owner).await?;
    let body = collect(body, reduce::BODY_BYTES_MAX).await?;
    reducers.watch();
    let work = move || {
        let made = reducers.reduce(owner, object, (&body, batch));
        drop(turn);
        made
    };
    match tokio::task::spawn_blocking(work).await? {
        // `find` determines whether the object is corrupt.
        Err(ReduceTrouble::Store(error)) => {
            find(&context, object, move |_| Err::<(), _>(error)).await?;
            Err(HttpRefusal::Missing("such object"))
        }
        made => Ok(made?.into_response()),
    }
}

#[derive(serde::Deserialize)]
struct Directory {
    directory: u8,
}

/// Lists the objects of one directory, with the right to remove object 0, which only the server has.
async fn list(
    State(context): State<HttpContext>,
    Query(Directory { directory }): Query<Directory>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    context.check(&shown, ObjectId::STATUS, rights::REMOVE)?;
    let parts = context.daemon.parts();
    let (store, db) = (Arc::clone(&parts.store), parts.db.clone());
    let listed = tokio::task::spawn_blocking(move || -> Result<Vec<ListedObject>, HttpRefusal> {
        let now = std::time::SystemTime::now();
        let entries = store.list(directory)?.into_iter();
        let entries = entries.filter(|entry| entry.object != ObjectId::STATUS);
        let known = db.read(|connection| {
            entries
                .map(|entry| Ok((entry, records::has_object(connection, entry.object)?)))
                .collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let listed = known.into_iter().map(|(entry, known)| ListedObject {
            object: entry.object.0,
            size: entry.size,
            sealed: entry.sealed && known,
            age_ns: now
                .duration_since(entry.modified)
                .map_or(0, |age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
        });
        Ok(listed.collect())
    });
    Ok(axum::Json(listed.await??).into_response())
}

async fn attributes(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    let read = move |connection: &rusqlite::Connection| records::attributes(connection, object);
    let rows = read_rows(&context, read).await?;
    let list: Vec<serde_json::Value> = rows
        .iter()
        .map(|(page, number, value)| tracker::attribute_json(*page, *number, value))
        .collect();
    Ok(axum::Json(list).into_response())
}

async fn attribute(
    State(context): State<HttpContext>,
    Path((id, page, number)): Path<(String, u32, u32)>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    let read = move |connection: &rusqlite::Connection| {
        records::attribute(connection, object, page, number)
    };
    let value = read_rows(&context, read).await?;
    let value = value.ok_or(HttpRefusal::Missing("such attribute"))?;
    Ok(value.into_response())
}

async fn set_attribute(
    State(context): State<HttpContext>,
    Path((id, page, number)): Path<(String, u32, u32)>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::ATTRIBUTES)?;
    if page < CLIENT_PAGES {
        return Err(HttpRefusal::OwnPage);
    }
    let _turn = context.bodies.take(shown.uid).await?;
    let value = collect(body, ATTRIBUTE_BYTES_MAX).await?;
    let change = move |connection: &rusqlite::Connection| {
        let known = records::has_object(connection, object)?;
        if known {
            records::set_attribute(connection, object, page, number, &value)?;
        }
        Ok(known)
    };
    if context.daemon.parts().db.write(false, change).await? {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(StoreError::NotFound { object }.into())
    }
}

async fn members(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ)?;
    let read = move |connection: &rusqlite::Connection| records::members(connection, object);
    let members = read_rows(&context, read).await?;
    let ids: Vec<String> = members.iter().map(|id| format!("{:016x}", id.0)).collect();
    Ok(axum::Json(ids).into_response())
}

async fn status(
    State(context): State<HttpContext>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    context.check(&shown, ObjectId::STATUS, rights::READ)?;
    let daemon = Arc::clone(&context.daemon);
    let node = tokio::task::spawn_blocking(move || daemon.describe()).await?;
    Ok(axum::Json(tracker::status_json(&node)).into_response())
}

async fn tasks(
    State(context): State<HttpContext>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    context.check(&shown, ObjectId::STATUS, rights::READ)?;
    let live = context.daemon.labels().live();
    let list: Vec<serde_json::Value> = live.iter().map(tracker::live_json).collect();
    Ok(axum::Json(list).into_response())
}

async fn task(
    State(context): State<HttpContext>,
    Path(id): Path<u64>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let task = TaskId(id);
    let collection = ObjectId::task_collection(task);
    context.check(&shown, collection, rights::READ)?;
    let live = context.daemon.labels().live();
    if let Some(live) = live.iter().find(|live| tracker::is_of(live, task)) {
        return Ok(axum::Json(tracker::live_json(live)).into_response());
    }
    let read = move |connection: &rusqlite::Connection| {
        Ok((
            records::attributes(connection, collection)?,
            records::members(connection, ObjectId::input_collection(task))?,
            records::members(connection, ObjectId::output_collection(task))?,
        ))
    };
    let (attributes, inputs, outputs) = read_rows(&context, read).await?;
    if attributes.is_empty() {
        return Err(HttpRefusal::Missing("such task"));
    }
    let json = tracker::ended_json(task, &attributes, &inputs, &outputs);
    Ok(axum::Json(json).into_response())
}

async fn read_rows<T: Send + 'static>(
    context: &HttpContext,
    read: impl FnOnce(&rusqlite::Connection) -> Result<T, rusqlite::Error> + Send + 'static,
) -> Result<T, HttpRefusal> {
    let db = context.daemon.parts().db.clone();
    Ok(tokio::task::spawn_blocking(move || db.read(read)).await??)
}

/// Reads a request's body into memory, within a time limit, because the body counts against the limit of concurrent bodies.
async fn collect(body: Body, bytes_max: usize) -> Result<Bytes, HttpRefusal> {
    let mut body = body.into_data_stream();
    let all = async {
        let mut all = BytesMut::new();
        while let Some(chunk) = body.next().await.transpose()? {
            if all.len() + chunk.len() > bytes_max {
                return Err(HttpRefusal::TooLong(bytes_max));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    };
    let all = tokio::time::timeout(BODY_MAX, all).await;
    all.unwrap_or(Err(HttpRefusal::Slow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_status_of_too_large_file_differs_from_failed_device() {
        let status = |errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            let path = std::path::Path::new("/f");
            HttpRefusal::from(StoreError::from_io(ObjectId(1), path, source)).status()
        };
        assert_eq!(status(libc::EFBIG), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(status(libc::EIO), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
