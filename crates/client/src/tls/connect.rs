//! Connector: opens TCP connections with or without TLS (next: `client/src/tls/listen.rs`).

use super::stream::{SEND_BYTES, SocketStream, below};
use super::{InnerProtocol, TlsProblem, Trust};
use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio_rustls::TlsConnector;
use tower::{BoxError, Service};

/// Maximum time for opening a TCP connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Maximum time for opening a connection to one of several servers.
const SEVERAL_CONNECT_MAX: Duration = Duration::from_secs(1);

/// Time in which a server may take over, and pause before all are tried again.
const TAKEOVER_MAX: Duration = Duration::from_secs(10);
const SEVERAL_PAUSE: Duration = Duration::from_millis(100);

/// Time until the first keep-alive request to a silent peer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMES: u32 = 3;

/// Connector for hyper and tonic: opens `http://HOST:PORT` without TLS, and `https://NAME@HOST:PORT` to the peer whose certificate has the
/// name NAME. The name is a part of the address so that connections to one peer are never used for another peer.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    tls: Option<TlsClient>,
    /// Name that a peer's certificate must have if the address contains no name.
    name: &'static str,
}

#[derive(Clone)]
struct TlsClient(TlsConnector);

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// Reason why a connection cannot be opened, in addition to errors of the operating system and of TLS.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("no certificate of the cluster's CA is known to check it by")]
    NoTrust,
    #[error("no answer to the TLS handshake within {} s", CONNECT_MAX.as_secs())]
    Silent,
}

impl Connector {
    pub(crate) fn new(trust: Option<&Trust>, inside: InnerProtocol, name: &'static str) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        // Requests to a host that vanished end.
        tcp.set_keepalive(Some(KEEP_ALIVE));
        tcp.set_keepalive_interval(Some(KEEP_ALIVE_AGAIN));
        tcp.set_keepalive_retries(Some(KEEP_ALIVE_TIMES));
        tcp.enforce_http(false);
        let tls = trust.map(|trust| TlsClient(Arc::new(trust.client(inside)).into()));
        Self { tcp, tls, name }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<SocketStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let secure = uri.scheme_str() == Some("https");
        let name = named(&uri).unwrap_or(self.name).to_owned();
        let tls = self.tls.clone();
        let connecting = self.tcp.call(uri);
        Box::pin(async move {
            if !secure {
                return Ok(TokioIo::new(SocketStream::Plain(
                    connecting.await?.into_inner(),
                )));
            }
            let TlsClient(tls) = tls.ok_or(ConnectError::NoTrust)?;
            let name = ServerName::try_from(name)?;
            let tcp = connecting.await?.into_inner();
            let limited = |tls: &mut rustls::ClientConnection| {
                tls.set_buffer_limit(Some(SEND_BYTES));
            };
            let greeting = tls.connect_with(name, below(tcp), limited);
            let greeted = tokio::time::timeout(CONNECT_MAX, greeting).await;
            let stream = greeted.map_err(|_| ConnectError::Silent)??;
            Ok(TokioIo::new(SocketStream::Tls(Box::new(stream.into()))))
        })
    }
}

/// Connector to the one of several servers that answers. Each connection begins with the server after the one of the last connection, which
/// may hang.
#[derive(Clone, Debug)]
pub(crate) struct SeveralConnector {
    connector: Connector,
    urls: Arc<[Uri]>,
    next: Arc<AtomicUsize>,
}

impl SeveralConnector {
    pub(crate) fn new(connector: Connector, urls: &[String]) -> Self {
        Self {
            connector,
            urls: urls.iter().filter_map(|url| url.parse().ok()).collect(),
            next: Arc::default(),
        }
    }
}

impl Service<Uri> for SeveralConnector {
    type Response = TokioIo<SocketStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self {
            connector,
            urls,
            next,
        } = self.clone();
        Box::pin(async move {
            let until = Instant::now() + TAKEOVER_MAX;
            loop {
                let mut failed: BoxError = ConnectError::Silent.into();
                let first = next.load(Ordering::Relaxed);
                for index in (0..urls.len()).map(|offset| (first + offset) % urls.len()) {
                    let connecting = connector.clone().call(urls[index].clone());
                    match tokio::time::timeout(SEVERAL_CONNECT_MAX, connecting).await {
                        Ok(Ok(stream)) => {
                            next.store(index + 1, Ordering::Relaxed);
                            return Ok(stream);
                        }
                        Ok(Err(error)) => failed = error,
                        Err(_) => {}
                    }
                }
                if Instant::now() >= until || TlsProblem::of(&*failed).is_some() {
                    return Err(failed);
                }
                tokio::time::sleep(SEVERAL_PAUSE).await;
            }
        })
    }
}

/// Returns the certificate name that an address contains; `None` if the address contains no name.
fn named(uri: &Uri) -> Option<&str> {
    let (name, _) = uri.authority()?.as_str().split_once('@')?;
    Some(name)
}
