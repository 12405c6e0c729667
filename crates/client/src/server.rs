//! The control connection to the server (next: `server/src`).

use crate::error::deepest;
use crate::tls::{self, Connector, InnerProtocol, SeveralConnector, TlsProblem, Trust};
use crate::{Credential, Endpoint, Error, Objects};
use std::error::Error as _;
use std::sync::Arc;
use tidemill_model::id::{Inode, ObjectId};
use tidemill_wire::v1::cluster_client::ClusterClient;
use tidemill_wire::v1::events_client::EventsClient;
use tidemill_wire::v1::find_client::FindClient;
use tidemill_wire::v1::health_client::HealthClient;
use tidemill_wire::v1::jobs_client::JobsClient;
use tidemill_wire::v1::lineage_client::LineageClient;
use tidemill_wire::v1::names_client::NamesClient;
use tidemill_wire::v1::places_client::PlacesClient;
use tidemill_wire::v1::remotes_client::RemotesClient;
use tidemill_wire::v1::rules_client::RulesClient;
use tidemill_wire::v1::tokens_client::TokensClient;
use tidemill_wire::v1::workspaces_client::WorkspacesClient;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tidemill_wire::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// Interval of keep-alive requests to a silent server.
const KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(10);

/// Maximum time in which the server must answer a keep-alive request.
const KEEP_ALIVE_ANSWER: std::time::Duration = std::time::Duration::from_secs(20);

/// The same for a cluster of several servers, since another server may lead by then.
const SEVERAL_KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(1);
const SEVERAL_KEEP_ALIVE_ANSWER: std::time::Duration = std::time::Duration::from_millis(1500);

/// Number of entries of a directory in one request.
const LIST_ENTRIES: u32 = 4096;

/// gRPC channel that sends the cluster's token, if the client has a token.
pub type TokenChannel = InterceptedService<Channel, TokenInterceptor>;

/// Adds the cluster's token to every call.
#[derive(Clone, Debug)]
pub struct TokenInterceptor(Option<MetadataValue<Ascii>>);

impl Interceptor for TokenInterceptor {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Client of a server, over one multiplexed connection. A clone is cheap and shares the connection.
#[derive(Clone, Debug)]
pub struct Server {
    channel: TokenChannel,
    endpoint: Arc<Endpoint>,
    trust: Option<Trust>,
}

impl Server {
    /// Connects to a server and checks the protocol version.
    ///
    /// `credential` is the content of the cluster's token file, which only a connection over TCP needs.
    ///
    /// # Errors
    /// No server answers at the address, the server cannot be trusted, or the server speaks another protocol version.
    pub async fn connect(
        endpoint: &Endpoint,
        credential: Option<&Credential>,
    ) -> Result<Self, Error> {
        let unreachable = |reason: String| Error::Unreachable {
            endpoint: endpoint.to_string(),
            reason,
        };
        let ca = credential.map(|credential| credential.ca.as_slice());
        let untrusted = |problem| Error::Untrusted {
            endpoint: endpoint.to_string(),
            problem,
        };
        let trust = ca.map(Trust::new).transpose().map_err(untrusted)?;
        if trust.is_none() && !endpoint.urls().is_empty() && !endpoint.is_plain() {
            return Err(Error::NoCa(endpoint.to_string()));
        }
        let channel = open(endpoint, trust.as_ref())
            .await
            .map_err(|error| lost(endpoint, &error))?;
        let token = match credential.map(|shown| format!("Bearer {}", shown.token).parse()) {
            Some(Ok(value)) => Some(value),
            Some(Err(_)) => {
                return Err(unreachable("the token has invalid characters".into()));
            }
            None => None,
        };
        let channel = InterceptedService::new(channel, TokenInterceptor(token));
        let mut server = Self {
            channel,
            endpoint: Arc::new(endpoint.clone()),
            trust,
        };
        let status = server.status().await?;
        let theirs = status.version;
        if theirs != PROTOCOL_VERSION {
            return Err(Error::Version {
                theirs,
                ours: PROTOCOL_VERSION,
            });
        }
        if server.trust.is_none() && !status.ca.is_empty() {
            server.trust = Some(Trust::new(&status.ca).map_err(untrusted)?);
        }
        Ok(server)
    }

    /// Returns the cluster's CA, from the credential or, on the same host, from the server.
    #[must_use]
    pub fn trust(&self) -> Option<&Trust> {
        self.trust.as_ref()
    }

    /// Returns the pool of connections to the nodes of this cluster.
    #[must_use]
    pub fn objects(&self) -> Objects {
        Objects::new(self.trust.as_ref())
    }

    /// Returns the server's address.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the client of the namespace service.
    #[must_use]
    pub fn names(&self) -> NamesClient<TokenChannel> {
        NamesClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns the client of the service for jobs.
    #[must_use]
    pub fn jobs(&self) -> JobsClient<TokenChannel> {
        JobsClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns the client of the lineage service.
    #[must_use]
    pub fn lineage(&self) -> LineageClient<TokenChannel> {
        LineageClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns the client of the search service.
    #[must_use]
    pub fn finder(&self) -> FindClient<TokenChannel> {
        FindClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns the client of the service for workspaces, which also waits for files.
    #[must_use]
    pub fn workspaces(&self) -> WorkspacesClient<TokenChannel> {
        WorkspacesClient::new(self.channel.clone())
    }

    /// Returns the client of the service for remotes, which are stores outside of the cluster.
    #[must_use]
    pub fn remotes(&self) -> RemotesClient<TokenChannel> {
        RemotesClient::new(self.channel.clone())
    }

    /// Returns the client of the service for file events.
    #[must_use]
    pub fn events(&self) -> EventsClient<TokenChannel> {
        EventsClient::new(self.channel.clone())
    }

    /// Returns the client of the service for tokens, which authenticate clients and daemons on other hosts.
    #[must_use]
    pub fn tokens(&self) -> TokensClient<TokenChannel> {
        TokensClient::new(self.channel.clone())
    }

    /// Returns the client of the service for health and scrubs.
    #[must_use]
    pub fn health(&self) -> HealthClient<TokenChannel> {
        HealthClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns the client of the service for rules, which run when files are sealed.
    #[must_use]
    pub fn rules(&self) -> RulesClient<TokenChannel> {
        RulesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns the client of the service for file placement.
    #[must_use]
    pub fn places(&self) -> PlacesClient<TokenChannel> {
        PlacesClient::new(self.channel.clone())
    }

    /// Returns the client of the service for the cluster's nodes.
    #[must_use]
    pub fn cluster(&self) -> ClusterClient<TokenChannel> {
        ClusterClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns the status of the cluster's nodes and its policies.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn status(&self) -> Result<v1::StatusReply, Error> {
        let reply = self.cluster().status(v1::StatusRequest {}).await;
        reply
            .map(tonic::Response::into_inner)
            .map_err(|status| self.explain(status))
    }

    /// Executes namespace operations in order, in one transaction. The answer has one result for each operation up to and including the
    /// first failed operation.
    ///
    /// # Errors
    /// The server cannot be reached or refuses the whole request.
    pub async fn apply(&self, request: v1::NameRequest) -> Result<Vec<Answer>, Error> {
        let reply = self
            .names()
            .apply(request)
            .await
            .map_err(|status| self.explain(status))?;
        let results = reply.into_inner().results.into_iter();
        results
            .map(|result| result.result.ok_or(Error::Answer("Apply")))
            .collect()
    }

    /// Executes one namespace operation.
    ///
    /// # Errors
    /// [`Error::Name`] if the operation failed.
    pub async fn one(&self, credentials: &v1::Credentials, op: Op) -> Result<Answer, Error> {
        let request = v1::NameRequest {
            credentials: Some(credentials.clone()),
            ops: vec![v1::NameOp { op: Some(op) }],
            session: 0,
            durable: false,
        };
        match self.apply(request).await?.pop() {
            Some(Answer::Error(error)) => Err(error.into()),
            Some(answer) => Ok(answer),
            None => Err(Error::Answer("Apply")),
        }
    }

    /// Executes operations that only read, up to `most` in one request. Returns an answer for each operation, whether others fail or not.
    ///
    /// # Errors
    /// The server cannot be reached or refuses a whole request.
    pub async fn read_all(
        &self,
        credentials: &v1::Credentials,
        ops: impl IntoIterator<Item = Op>,
        most: usize,
    ) -> Result<Vec<Answer>, Error> {
        let ops: Vec<_> = ops
            .into_iter()
            .map(|op| v1::NameOp { op: Some(op) })
            .collect();
        let mut all = Vec::with_capacity(ops.len());
        while all.len() < ops.len() {
            let left = &ops[all.len()..];
            let request = v1::NameRequest {
                credentials: Some(credentials.clone()),
                ops: left[..left.len().min(most)].to_vec(),
                ..v1::NameRequest::default()
            };
            let answers = self.apply(request).await?;
            // A failed operation is the last one that is answered.
            if answers.is_empty() || answers.len() > left.len() {
                return Err(Error::Answer("Apply"));
            }
            all.extend(answers);
        }
        Ok(all)
    }

    /// Reserves consecutive inodes and object ids. Returns the first inode and the first object id.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn reserve(&self, inodes: u32, objects: u32) -> Result<(Inode, ObjectId), Error> {
        let request = v1::ReserveRequest { inodes, objects };
        let reply = self
            .names()
            .reserve(request)
            .await
            .map_err(|status| self.explain(status))?;
        let reply = reply.into_inner();
        Ok((Inode(reply.first_inode), ObjectId(reply.first_object)))
    }

    /// Returns the message of a reply.
    ///
    /// # Errors
    /// The error of the request; for a lost connection it names the server.
    pub fn answer<T>(&self, reply: Result<tonic::Response<T>, tonic::Status>) -> Result<T, Error> {
        let reply = reply.map_err(|status| self.explain(status))?;
        Ok(reply.into_inner())
    }

    /// Looks up a path.
    ///
    /// # Errors
    /// The path does not exist or a directory on the way may not be searched.
    pub async fn resolve(
        &self,
        credentials: &v1::Credentials,
        resolve: v1::Resolve,
    ) -> Result<v1::Entry, Error> {
        match self.one(credentials, Op::Resolve(resolve)).await? {
            Answer::Entry(entry) => Ok(entry),
            _ => Err(Error::Answer("Resolve")),
        }
    }

    /// Returns all entries of a directory except `.` and `..`, sorted by name.
    ///
    /// # Errors
    /// The inode is no directory, or the caller may not read it.
    pub async fn list(
        &self,
        credentials: &v1::Credentials,
        ino: u64,
    ) -> Result<Vec<v1::Entry>, Error> {
        let mut all: Vec<v1::Entry> = Vec::new();
        loop {
            let after = all
                .last()
                .map(|entry| entry.name.clone())
                .unwrap_or_default();
            let read = v1::ReadDir {
                ino,
                after,
                limit: LIST_ENTRIES,
            };
            let Answer::Entries(page) = self.one(credentials, Op::ReadDir(read)).await? else {
                return Err(Error::Answer("ReadDir"));
            };
            let stop = page.end || page.entries.is_empty();
            all.extend(page.entries);
            if stop {
                break;
            }
        }
        all.retain(|entry| entry.name != b"." && entry.name != b"..");
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Converts a gRPC status to an error; the error of a lost connection names the server.
    #[must_use]
    pub fn explain(&self, status: tonic::Status) -> Error {
        if is_lost(&status) {
            return lost(&self.endpoint, &status);
        }
        status.into()
    }
}

impl From<v1::NameError> for Error {
    fn from(error: v1::NameError) -> Self {
        match error.resuming {
            true => Self::Resuming(error.message),
            false => Self::Name {
                errno: error.errno,
                message: error.message,
            },
        }
    }
}

async fn open(
    endpoint: &Endpoint,
    trust: Option<&Trust>,
) -> Result<Channel, tonic::transport::Error> {
    match endpoint {
        Endpoint::Https(url) | Endpoint::Http(url) => {
            let connector = Connector::new(trust, InnerProtocol::Http2, tls::SERVER);
            let endpoint = tonic::transport::Endpoint::from_shared(url.clone())?;
            // Detects a host that vanished silently, so that streams end and can be opened again.
            endpoint
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE_ANSWER)
                .connect_with_connector(connector)
                .await
        }
        Endpoint::Several(urls) => {
            let connector = Connector::new(trust, InnerProtocol::Http2, tls::SERVER);
            let first = urls.first().cloned().unwrap_or_default();
            let endpoint = tonic::transport::Endpoint::from_shared(first)?;
            endpoint
                .http2_keep_alive_interval(SEVERAL_KEEP_ALIVE)
                .keep_alive_timeout(SEVERAL_KEEP_ALIVE_ANSWER)
                .connect_with_connector(SeveralConnector::new(connector, urls))
                .await
        }
        Endpoint::Unix(path) => {
            let path = path.clone();
            let connector = tower::service_fn(move |_| {
                let path = path.clone();
                async move {
                    let path = tidemill_wire::local::ShortPath::of(&path)?;
                    tokio::net::UnixStream::connect(&path)
                        .await
                        .map(hyper_util::rt::TokioIo::new)
                }
            });
            let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
            endpoint.connect_with_connector(connector).await
        }
    }
}

/// Text of the gRPC library for a stream that ended well but without an answer.
const NO_ANSWER: &str = "Missing response message.";

/// Whether a status is not the server's own answer to the request, but was created by this process for another error. A status that arrived
/// over the network has no source. A server that stops reports that it is unavailable, or ends its streams before it has answered.
fn is_lost(status: &tonic::Status) -> bool {
    use tonic::Code;
    status.source().is_some()
        || status.code() == Code::Unavailable
        || (status.code() == Code::Internal && status.message() == NO_ANSWER)
}

/// Returns the error for a connection that cannot be opened or broke.
fn lost(endpoint: &Endpoint, error: &(dyn std::error::Error + 'static)) -> Error {
    if let Some(problem) = TlsProblem::of(error) {
        return Error::Untrusted {
            endpoint: endpoint.to_string(),
            problem,
        };
    }
    let mut reason = deepest(error);
    if endpoint.is_plain() && !reason.contains("refused") {
        reason.push_str(" (a server that was not started with --tls off is reached by https://)");
    }
    Error::Unreachable {
        endpoint: endpoint.to_string(),
        reason,
    }
}
