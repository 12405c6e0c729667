//! Client for the bytes of objects: transfers to and from nodes over HTTP (next: `node/src`). `tidemill_wire::route` describes the routes.

use crate::answer_timeout::{Broken, Silence, TimedBody};
use crate::error::{Error, deepest};
use crate::tls::{self, Connector, InnerProtocol, TlsProblem, Trust};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, BodyStream, Full};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_wire::replicas::{self, ReplicaItem};
use tidemill_wire::route::{
    self, CAPABILITY_HEADER, ListedObject, SOURCE_HEADER, SealBody, SealItem, SealReply,
    SealResult, SizeReply,
};

/// Size in bytes of one range request when an object is read from an offset to its end.
const RANGE_BYTES: u64 = 4 << 20;

/// Query of a request for the bytes of a corrupt object.
const CORRUPT: &str = "?corrupt=true";

/// Pool of connections to nodes. A clone is cheap and shares the connections, which are kept and used again.
#[derive(Clone, Debug)]
pub struct Objects {
    client: Client<Connector, Full<Bytes>>,
    silence: Silence,
}

/// A connection that is not shared with other requests.
pub type DedicatedConnection = TokioIo<hyper::upgrade::Upgraded>;

/// An object and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectAddress {
    /// Node that stores the object.
    pub node: NodeId,
    /// URL of the node, `https://host:port` or `http://host:port`.
    pub url: Arc<str>,
    /// Id of the object.
    pub object: ObjectId,
    /// Capability for the object, signed by the server.
    pub capability: Vec<u8>,
}

/// An object that a node has sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Final length of the object in bytes.
    pub size: u64,
    /// The node's receipt for that length, which the server asks for.
    pub receipt: Vec<u8>,
}

impl Objects {
    /// Returns a pool that opens connections when they are needed. `trust` verifies nodes that use TLS; else requests to them fail.
    #[must_use]
    pub fn new(trust: Option<&Trust>) -> Self {
        let connector = Connector::new(trust, InnerProtocol::Http1, "");
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            silence: Silence::default(),
        }
    }

    /// Sets other time limits for silent connections.
    #[cfg(test)]
    pub(crate) fn with_silence(mut self, silence: Silence) -> Self {
        self.silence = silence;
        self
    }

    /// Reads up to `length` bytes of an object at `offset`. Returns fewer bytes only at the object's end.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn read(
        &self,
        remote: &ObjectAddress,
        offset: u64,
        length: u64,
    ) -> Result<Bytes, Error> {
        self.read_range_as(remote, "", (offset, length)).await
    }

    /// Reads bytes of a corrupt object, like [`Self::read`].
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub async fn read_corrupt_range(
        &self,
        remote: &ObjectAddress,
        offset: u64,
        length: u64,
    ) -> Result<Bytes, Error> {
        self.read_range_as(remote, CORRUPT, (offset, length)).await
    }

    /// Reads several ranges of a sealed object (at most [`route::RANGES_MAX`] and [`route::RANGES_BYTES_MAX`] bytes) in one request.
    /// Returns the bytes of each range, in order.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request; a range is beyond the object's end.
    pub async fn read_ranges(
        &self,
        remote: &ObjectAddress,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>, Error> {
        let pairs: Vec<_> = ranges
            .iter()
            .map(|range| (range.start, range.end))
            .collect();
        let body = serde_json::to_vec(&pairs).map_err(|_| Error::Answer("ranges"))?;
        let request =
            base(remote, Method::POST, "/ranges").header("content-type", "application/json");
        let response = self.send(remote, request, body.into()).await?;
        let mut rest = body_of(remote, response).await?;
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            if rest.len() < length {
                return Err(Error::Answer("ranges"));
            }
            parts.push(rest.split_to(length));
        }
        Ok(parts)
    }

    async fn read_range_as(
        &self,
        remote: &ObjectAddress,
        suffix: &str,
        (offset, length): (u64, u64),
    ) -> Result<Bytes, Error> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let range = format!("bytes={offset}-{}", offset.saturating_add(length) - 1);
        let request = base(remote, Method::GET, suffix).header("range", range);
        let response = self.send(remote, request, Bytes::new()).await;
        match response {
            Err(Error::NodeRefused { status: 416, .. }) => Ok(Bytes::new()),
            Err(error) => Err(error),
            Ok(response) => Ok(response
                .into_body()
                .collect()
                .await
                .map_err(|e| lost(remote, &e))?
                .to_bytes()),
        }
    }

    /// Reads a whole object, and passes each received chunk of bytes to `piece`. Returns the number of bytes.
    ///
    /// # Errors
    /// The node cannot be reached, refuses the request, or sends fewer bytes than it announced; or `piece` returned an error.
    pub async fn read_all(
        &self,
        remote: &ObjectAddress,
        piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        self.read_as(remote, "", piece).await
    }

    async fn read_as(
        &self,
        remote: &ObjectAddress,
        suffix: &str,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let response = self
            .send(remote, base(remote, Method::GET, suffix), Bytes::new())
            .await?;
        let mut stream = BodyStream::new(response.into_body());
        let mut total = 0;
        while let Some(frame) = stream.next().await {
            if let Ok(data) = frame.map_err(|error| lost(remote, &error))?.into_data() {
                total += data.len() as u64;
                piece(data)?;
            }
        }
        Ok(total)
    }

    /// Reads an object from `offset` to its end, like [`Self::read_all`].
    ///
    /// # Errors
    /// The errors of [`Self::read_all`].
    pub async fn read_from(
        &self,
        remote: &ObjectAddress,
        mut offset: u64,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if offset == 0 {
            return self.read_all(remote, piece).await.map(drop);
        }
        loop {
            let bytes = self.read(remote, offset, RANGE_BYTES).await?;
            if bytes.is_empty() {
                return Ok(());
            }
            offset += bytes.len() as u64;
            piece(bytes)?;
        }
    }

    /// Writes bytes at `offset` of an unsealed object.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn write(
        &self,
        remote: &ObjectAddress,
        offset: u64,
        data: Bytes,
    ) -> Result<(), Error> {
        let request = base(remote, Method::PUT, &format!("?offset={offset}"));
        self.send(remote, request, data).await.map(drop)
    }

    /// Sets the length of an unsealed object.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn truncate(&self, remote: &ObjectAddress, size: u64) -> Result<(), Error> {
        let request = base(remote, Method::POST, &format!("/truncate?size={size}"));
        self.send(remote, request, Bytes::new()).await.map(drop)
    }

    /// Creates an unsealed object from the first `bytes` bytes of a sealed object on the same node.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn copy(
        &self,
        remote: &ObjectAddress,
        from: ObjectId,
        capability: &[u8],
        bytes: u64,
    ) -> Result<(), Error> {
        let path = format!("/copy?from={:016x}&bytes={bytes}", from.0);
        let request =
            base(remote, Method::POST, &path).header(SOURCE_HEADER, route::hex(capability));
        self.send_work(remote, request, Bytes::new())
            .await
            .map(drop)
    }

    /// Creates a sealed object from a file in the backend of the node.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn make_stub(&self, remote: &ObjectAddress, path: &str) -> Result<(), Error> {
        let request = base(remote, Method::POST, "/backend");
        let response = self.send_work(remote, request, Bytes::from(path.to_owned()));
        response.await.map(drop)
    }

    /// Calls `fallocate(2)` on an unsealed object. Returns the object's length in bytes.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn allocate(
        &self,
        remote: &ObjectAddress,
        (offset, length): (u64, u64),
        mode: u32,
    ) -> Result<u64, Error> {
        let path = format!("/allocate?offset={offset}&length={length}&mode={mode}");
        let request = base(remote, Method::POST, &path);
        let response = self.send_work(remote, request, Bytes::new()).await?;
        size_of(remote, response, "allocate").await
    }

    /// Reserves space for an unsealed object of `size` bytes, on a node that counts space.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request (status 507: the node has too little space).
    pub async fn reserve(&self, remote: &ObjectAddress, size: u64) -> Result<(), Error> {
        let request = base(remote, Method::POST, &format!("/reserve?size={size}"));
        self.send(remote, request, Bytes::new()).await.map(drop)
    }

    /// Makes a node reduce, for a user, a data array that is partly in an object. Only the node and the caller know the formats of the
    /// request and the answer.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn reduce(
        &self,
        remote: &ObjectAddress,
        (uid, gid): (u32, u32),
        order: Bytes,
    ) -> Result<Bytes, Error> {
        let path = format!("/reduce?uid={uid}&gid={gid}");
        self.work(remote, &path, order).await
    }

    /// Makes a node fold, for a user, chunks of a variable that are partly in an object, like [`Self::reduce`].
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn fold(
        &self,
        remote: &ObjectAddress,
        (uid, gid): (u32, u32),
        batch: Bytes,
    ) -> Result<Bytes, Error> {
        let path = format!("/fold?uid={uid}&gid={gid}");
        self.work(remote, &path, batch).await
    }

    async fn work(&self, remote: &ObjectAddress, path: &str, order: Bytes) -> Result<Bytes, Error> {
        let request = base(remote, Method::POST, path);
        let response = self.send_work(remote, request, order).await?;
        body_of(remote, response).await
    }

    /// Opens a dedicated connection to the node of an object. Only the node and the caller know the protocol of the connection.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn connection(
        &self,
        remote: &ObjectAddress,
        path: &str,
    ) -> Result<DedicatedConnection, Error> {
        let request = base(remote, Method::POST, path)
            .header("connection", "upgrade")
            .header("upgrade", route::RANK_PROTOCOL);
        let response = self.send_work(remote, request, Bytes::new()).await?;
        let upgraded = hyper::upgrade::on(response).await;
        Ok(TokioIo::new(
            upgraded.map_err(|error| lost(remote, &error))?,
        ))
    }

    /// Makes an object, sealed or not, durable: its bytes survive power loss.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn sync(&self, remote: &ObjectAddress) -> Result<(), Error> {
        let request = base(remote, Method::POST, "/sync");
        self.send_work(remote, request, Bytes::new())
            .await
            .map(drop)
    }

    /// Seals an object. Returns its final length in bytes, and the node's receipt for the server.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn seal(&self, remote: &ObjectAddress, body: &SealBody) -> Result<Sealed, Error> {
        let body = serde_json::to_vec(body).map_err(|_| Error::Answer("seal"))?;
        let request =
            base(remote, Method::POST, "/seal").header("content-type", "application/json");
        let response = self.send_work(remote, request, body.into()).await?;
        let bytes = body_of(remote, response).await?;
        let reply: SealReply = serde_json::from_slice(&bytes).map_err(|_| Error::Answer("seal"))?;
        Ok(Sealed {
            size: reply.size,
            receipt: route::parse_hex(&reply.receipt).ok_or(Error::Answer("seal"))?,
        })
    }

    /// Seals many objects of one node in one request (at most `route::SEAL_ALL_MAX`). Returns the result for each object, in order.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the whole request.
    pub async fn seal_all(
        &self,
        node: NodeId,
        url: &Arc<str>,
        items: &[SealItem],
    ) -> Result<Vec<SealResult>, Error> {
        let capability = items.first().map_or("", |item| &item.capability);
        let to = (node, url);
        let bytes = self
            .post_all(to, route::SEAL_ALL, capability, serde_json::to_vec(items))
            .await?;
        serde_json::from_slice(&bytes).map_err(|_| Error::Answer("seal"))
    }

    /// Whether the node has the object with this BLAKE3 hash, as it was sealed. The node may have to read the object first.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request; its object may be corrupt.
    pub async fn confirm(&self, remote: &ObjectAddress, hash: &[u8]) -> Result<bool, Error> {
        let request = base(
            remote,
            Method::POST,
            &format!("/confirm?hash={}", route::hex(hash)),
        );
        match self.send_work(remote, request, Bytes::new()).await {
            Ok(_) => Ok(true),
            Err(Error::NodeRefused { status: 409, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fetches the data for replicas of many small objects of one node (at most `replicas::OBJECTS_MAX`), in the format of
    /// `tidemill_wire::replicas`: the objects' hashes and, if requested, their bytes.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the whole request.
    pub async fn replicas(
        &self,
        node: NodeId,
        url: &Arc<str>,
        items: &[ReplicaItem],
        with_bytes: bool,
    ) -> Result<Bytes, Error> {
        let capability = items.first().map_or("", |item| &item.capability);
        let path = format!("{}?bytes={with_bytes}", replicas::REPLICAS);
        self.post_all((node, url), &path, capability, serde_json::to_vec(items))
            .await
    }

    /// Sends a request about many objects of one node. Returns the body of the answer.
    async fn post_all(
        &self,
        (node, url): (NodeId, &Arc<str>),
        path: &str,
        capability: &str,
        body: serde_json::Result<Vec<u8>>,
    ) -> Result<Bytes, Error> {
        let remote = ObjectAddress {
            node,
            url: Arc::clone(url),
            object: ObjectId::STATUS,
            capability: Vec::new(),
        };
        let body = body.map_err(|_| Error::Answer("list"))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", address(&remote)))
            // Each request needs a capability in its header; the node checks the capabilities of all objects in the body.
            .header(CAPABILITY_HEADER, capability)
            .header("content-type", "application/json");
        let response = self.send_work(&remote, request, body.into()).await?;
        body_of(&remote, response).await
    }

    /// Reads a corrupt object, like [`Self::read_all`].
    ///
    /// # Errors
    /// The errors of [`Self::read_all`].
    pub async fn read_corrupt(
        &self,
        remote: &ObjectAddress,
        piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        self.read_as(remote, CORRUPT, piece).await
    }

    /// Returns the objects in one of a node's directories. `remote` is object 0 with the right to remove it, which only the server has.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the request.
    pub async fn list(
        &self,
        remote: &ObjectAddress,
        directory: u32,
    ) -> Result<Vec<ListedObject>, Error> {
        let request = Request::builder()
            .method(Method::GET)
            .uri(format!("{}/objects?directory={directory}", address(remote)))
            .header(CAPABILITY_HEADER, route::hex(&remote.capability));
        let response = self.send(remote, request, Bytes::new()).await?;
        let bytes = body_of(remote, response).await?;
        serde_json::from_slice(&bytes).map_err(|_| Error::Answer("list"))
    }

    /// Sends a request that a node answers without delay. The request fails if the node is silent for a minute.
    pub(crate) async fn send(
        &self,
        remote: &ObjectAddress,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<Response<TimedBody>, Error> {
        self.send_within(self.silence.answer, remote, request, body)
            .await
    }

    /// Sends a request like [`Self::send`], but for a request for which a node processes whole objects before it answers.
    async fn send_work(
        &self,
        remote: &ObjectAddress,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<Response<TimedBody>, Error> {
        self.send_within(self.silence.work, remote, request, body)
            .await
    }

    /// Sends a request with a time limit. All requests to nodes use this function, so that each wait for a node has a limit.
    async fn send_within(
        &self,
        limit: Duration,
        remote: &ObjectAddress,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<Response<TimedBody>, Error> {
        let request = request.body(Full::new(body)).map_err(|error| Error::Node {
            url: remote.url.to_string(),
            reason: error.to_string(),
        })?;
        let answered = tokio::time::timeout(limit, self.client.request(request)).await;
        let response = answered
            .map_err(|_| lost(remote, &Broken::Silent(limit)))?
            .map_err(|error| lost(remote, &error))?;
        let response = response.map(|body| TimedBody::new(body, self.silence.body));
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let body = response
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        Err(Error::NodeRefused {
            url: remote.url.to_string(),
            status: status.as_u16(),
            message: refusal(status, &body.unwrap_or_default()),
        })
    }
}

/// Returns the length in bytes from an answer that is a [`SizeReply`].
async fn size_of(
    remote: &ObjectAddress,
    response: Response<TimedBody>,
    what: &'static str,
) -> Result<u64, Error> {
    let bytes = body_of(remote, response).await?;
    let reply: SizeReply = serde_json::from_slice(&bytes).map_err(|_| Error::Answer(what))?;
    Ok(reply.size)
}

async fn body_of(remote: &ObjectAddress, response: Response<TimedBody>) -> Result<Bytes, Error> {
    let body = response.into_body().collect().await;
    Ok(body.map_err(|e| lost(remote, &e))?.to_bytes())
}

fn base(remote: &ObjectAddress, method: Method, suffix: &str) -> hyper::http::request::Builder {
    Request::builder()
        .method(method)
        .uri(format!(
            "{}{}{suffix}",
            address(remote),
            route::object(remote.object)
        ))
        .header(CAPABILITY_HEADER, route::hex(&remote.capability))
}

/// Returns a node's URL with the name that the node's certificate must have; see [`Connector`].
pub(crate) fn address(remote: &ObjectAddress) -> String {
    match remote.url.strip_prefix("https://") {
        Some(rest) => format!("https://{}@{rest}", tls::node(remote.node)),
        None => remote.url.to_string(),
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body).trim().to_owned();
    if text.is_empty() {
        status
            .canonical_reason()
            .unwrap_or("no reason given")
            .into()
    } else {
        text
    }
}

pub(crate) fn lost(remote: &ObjectAddress, error: &(dyn std::error::Error + 'static)) -> Error {
    let reason = match TlsProblem::of(error) {
        Some(problem) => problem.to_string(),
        None => deepest(error),
    };
    Error::Node {
        url: remote.url.to_string(),
        reason,
    }
}
