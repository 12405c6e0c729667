//! The gate in front of all services. Before the gate reads a byte of a request's body, it identifies the caller, checks the right to make
//! the request, and limits the caller's requests in progress. Next: the services, to which the gate passes the request.
//!
//! Requests of the cluster's daemons pass at once. A user may have [`REQUESTS_EACH_MAX`] requests in progress, of
//! [`USER_MESSAGE_BYTES_MAX`] bytes each. Watched streams count, but waits for files do not. Requests with a token end with the token.

use crate::access::{Access, Peer};
use crate::files::{self, FileRefusal};
use crate::leadership::Lease;
use crate::reductions::{self, ReductionRefusal as NoReduction};
use futures_util::{StreamExt, future};
use http_body_util::{BodyStream, Limited, StreamBody};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tidemill_client::concurrency_limit::UserPermits;
use tidemill_wire::USER_MESSAGE_BYTES_MAX;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response, Version};
use tower::{Layer, Service};

/// Maximum number of simultaneous requests of one user.
const REQUESTS_EACH_MAX: usize = 32;

/// Maximum number of simultaneous reductions of one user, since each reduction occupies a process on a node.
const REDUCTIONS_EACH_MAX: usize = 16;

/// Limits on reading the body of a refused request, in bytes and (`REFUSED_MAX`) in time.
const REFUSED_BYTES_MAX: usize = 256 << 10;
const REFUSED_MAX: Duration = Duration::from_secs(1);

/// gRPC methods that a token with read-only rights may call. Of `Apply`, such a token may only use operations that change nothing.
const READS: [&str; 19] = [
    "/tidemill.v1.Names/Apply",
    "/tidemill.v1.Jobs/List",
    "/tidemill.v1.Jobs/Get",
    "/tidemill.v1.Jobs/Watch",
    "/tidemill.v1.Jobs/Explain",
    "/tidemill.v1.Jobs/Logs",
    "/tidemill.v1.Jobs/Trace",
    "/tidemill.v1.Lineage/Query",
    "/tidemill.v1.Find/Query",
    "/tidemill.v1.Cluster/Status",
    "/tidemill.v1.Health/Show",
    "/tidemill.v1.Tokens/List",
    "/tidemill.v1.Rules/List",
    "/tidemill.v1.Rules/Test",
    "/tidemill.v1.Rules/Log",
    "/tidemill.v1.Workspaces/List",
    "/tidemill.v1.Remotes/List",
    WAIT,
    NEXT,
];

/// Maximum number of simultaneous waits for files of one user. Waits last long, and must not block the user's other requests.
const WAITS_EACH_MAX: usize = 256;
const WAIT: &str = "/tidemill.v1.Workspaces/Wait";
/// gRPC method of waits for file events, which last long and count like waits for files.
const NEXT: &str = "/tidemill.v1.Events/Next";

/// Factory that puts a [`FrontGate`] in front of services.
#[derive(Clone, Debug)]
pub(crate) struct Gates {
    access: Arc<Access>,
    /// Right of this server to answer; `None` without a replicated log.
    lease: Option<Arc<Lease>>,
    turns: Arc<UserPermits>,
    reductions: Arc<UserPermits>,
    waits: Arc<UserPermits>,
}

impl Gates {
    pub(crate) fn new(access: Arc<Access>, lease: Option<Arc<Lease>>) -> Self {
        Self {
            access,
            lease,
            turns: Arc::new(UserPermits::new(REQUESTS_EACH_MAX)),
            reductions: Arc::new(UserPermits::with_patience(
                REDUCTIONS_EACH_MAX,
                reductions::PATIENCE,
            )),
            waits: Arc::new(UserPermits::new(WAITS_EACH_MAX)),
        }
    }
}

impl Gates {
    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref()
    }
}

impl<S> Layer<S> for Gates {
    type Service = FrontGate<S>;

    fn layer(&self, inner: S) -> FrontGate<S> {
        FrontGate {
            inner,
            gates: self.clone(),
        }
    }
}

/// The gate in front of a service, as described in the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct FrontGate<S> {
    inner: S,
    gates: Gates,
}

type GateFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S> Service<Request<Body>> for FrontGate<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = GateFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> GateFuture {
        let speaks = Speaks::of(&request);
        if request.version() < Version::HTTP_2 && speaks == Speaks::Grpc {
            return Box::pin(future::ready(Ok(FileRefusal::NotHere
                .response()
                .map(Body::new))));
        }
        let asks = (request.headers(), request.extensions());
        let peer = self.gates.access.identify(asks, speaks != Speaks::Grpc);
        let peer = match peer {
            Ok(peer) => peer,
            Err(status) => return refuse(request, status, speaks),
        };
        request.extensions_mut().insert(peer.clone());
        if peer.administrator && peer.token.is_none() {
            let answer = self.inner.call(request);
            return match &self.gates.lease {
                None => Box::pin(answer),
                Some(lease) => Box::pin(within(lease.clone(), answer)),
            };
        }
        let reads = speaks != Speaks::Grpc || READS.contains(&request.uri().path());
        if peer.read_only() && !reads {
            let status = Status::permission_denied("this token may only read");
            return refuse(request, status, speaks);
        }
        // The request uses the ready service, since its clone may not be ready.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let turns = match speaks {
            Speaks::Reduction => self.gates.reductions.clone(),
            _ if [WAIT, NEXT].contains(&request.uri().path()) => self.gates.waits.clone(),
            _ => self.gates.turns.clone(),
        };
        let answer = bounded(inner, request, peer, turns);
        match &self.gates.lease {
            None => Box::pin(answer),
            Some(lease) => Box::pin(within(lease.clone(), answer)),
        }
    }
}

/// Protocol of a request, which determines the form of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Grpc,
    /// Files by URL, a protocol with which clients only read.
    Http,
    /// Reductions by URL, a protocol with which clients only read.
    Reduction,
}

impl Speaks {
    fn of(request: &Request<Body>) -> Self {
        match request.uri().path() {
            path if files::is_file(path) => Self::Http,
            path if reductions::is_reduction(path) => Self::Reduction,
            _ => Self::Grpc,
        }
    }

    fn refusal(self, status: Status) -> Response<Body> {
        match self {
            Self::Grpc => status.into_http(),
            Self::Http => FileRefusal::from(status).response().map(Body::new),
            Self::Reduction => NoReduction::from(FileRefusal::from(status))
                .response()
                .map(Body::new),
        }
    }
}

fn refuse(request: Request<Body>, status: Status, speaks: Speaks) -> GateFuture {
    if speaks != Speaks::Reduction {
        return Box::pin(future::ready(Ok(speaks.refusal(status))));
    }
    Box::pin(async move {
        // A program that is still sending would not see the answer, so the rest of the request is read and discarded.
        let mut frames = BodyStream::new(Limited::new(request.into_body(), REFUSED_BYTES_MAX));
        let all = async { while let Some(Ok(_)) = frames.next().await {} };
        let _ = tokio::time::timeout(REFUSED_MAX, all).await;
        Ok(speaks.refusal(status))
    })
}

/// Holds an answer back until the server may answer.
async fn within<T>(lease: Arc<Lease>, answer: impl Future<Output = T>) -> T {
    let answer = answer.await;
    lease.valid().await;
    answer
}

/// Handles a request of an ordinary user when the user's limit permits, or a request of a caller with a token. The request is in progress
/// until the client has received the whole answer, or the token has ended.
async fn bounded<S>(
    mut inner: S,
    mut request: Request<Body>,
    peer: Peer,
    turns: Arc<UserPermits>,
) -> Result<Response<Body>, Infallible>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let (mut turn, speaks) = (None, Speaks::of(&request));
    if !peer.administrator {
        match turns.take(peer.uid).await {
            Ok(taken) => turn = Some(taken),
            Err(busy) => return Ok(speaks.refusal(Status::resource_exhausted(busy.to_string()))),
        }
        request = request.map(|body| Body::new(Limited::new(body, USER_MESSAGE_BYTES_MAX)));
    }
    let response = inner.call(request).await?;
    Ok(response.map(|body| {
        let ended = async move {
            match peer.token {
                Some(token) => token.ended().await,
                None => future::pending().await,
            }
        };
        let frames = BodyStream::new(body).take_until(Box::pin(ended));
        Body::new(StreamBody::new(frames.inspect(move |_| {
            let _under_way = &turn;
        })))
    }))
}
