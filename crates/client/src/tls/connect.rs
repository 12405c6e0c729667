//! The side that connects.

use super::stream::{SEND_BYTES, Stream, below};
use super::{Inside, Trust};
use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_rustls::TlsConnector;
use tower::{BoxError, Service};

/// How long a connection and its handshake may take each.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A peer that is asked whether it is still there, after this long without a word, and again.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMES: u32 = 3;

/// Opens connections for hyper and tonic: `http://HOST:PORT` plain, `https://NAME@HOST:PORT` to the peer of
/// that name, where NAME is the one of its certificate. The name is a part of the address so that connections
/// to one peer are never used for another.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    tls: Option<Tls>,
    /// Who is expected where the address does not say.
    name: &'static str,
}

#[derive(Clone)]
struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// Why there is no connection, beside what the system and TLS say.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("no certificate of the array's authority is known to check it by")]
    NoTrust,
    #[error("no answer to the TLS handshake within {} s", CONNECT_MAX.as_secs())]
    Silent,
}

impl Connector {
    pub(crate) fn new(trust: Option<&Trust>, inside: Inside, name: &'static str) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        // A host that vanished ends what waits for it.
        tcp.set_keepalive(Some(KEEP_ALIVE));
        tcp.set_keepalive_interval(Some(KEEP_ALIVE_AGAIN));
        tcp.set_keepalive_retries(Some(KEEP_ALIVE_TIMES));
        tcp.enforce_http(false);
        let tls = trust.map(|trust| Tls(Arc::new(trust.client(inside)).into()));
        Self { tcp, tls, name }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
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
                return Ok(TokioIo::new(Stream::Plain(connecting.await?.into_inner())));
            }
            let Tls(tls) = tls.ok_or(ConnectError::NoTrust)?;
            let name = ServerName::try_from(name)?;
            let tcp = connecting.await?.into_inner();
            let limited = |tls: &mut rustls::ClientConnection| {
                tls.set_buffer_limit(Some(SEND_BYTES));
            };
            let greeting = tls.connect_with(name, below(tcp), limited);
            let greeted = tokio::time::timeout(CONNECT_MAX, greeting).await;
            let stream = greeted.map_err(|_| ConnectError::Silent)??;
            Ok(TokioIo::new(Stream::Tls(Box::new(stream.into()))))
        })
    }
}

/// Who is expected at an address.
fn named(uri: &Uri) -> Option<&str> {
    let (name, _) = uri.authority()?.as_str().split_once('@')?;
    Some(name)
}
