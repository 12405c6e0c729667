//! TLS between the processes of a cluster.
//!
//! Every cluster has a CA of its own, whose key the server keeps. The CA signs one certificate for the server and one for each node. Peers
//! are verified by the CA and by their role, [`SERVER`] or [`node`], not by an address, because hosts may move. Clients are identified by
//! token and capabilities, not by certificates.
//!
//! [`Trust`] is for processes that connect, [`Listener`] for processes that accept connections; [`SocketStream`] is a connection.

mod connect;
mod listen;
mod problem;
mod stream;

pub(crate) use connect::{Connector, SeveralConnector};
pub use listen::{ACCEPT_PAUSE, Listener, ServerIdentity, could_not_accept};
pub use problem::TlsProblem;
pub use stream::SocketStream;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;
use tidemill_model::id::NodeId;

/// Name in the certificate of a server.
pub const SERVER: &str = "server.tidemill";

/// Returns the name in the certificate of a node.
#[must_use]
pub fn node(node: NodeId) -> String {
    format!("node-{node}.tidemill")
}

/// Protocol that a TLS connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerProtocol {
    /// HTTP/2, for gRPC.
    Http2,
    /// HTTP/1, for bytes of objects.
    Http1,
    /// HTTP/2 or HTTP/1, as the client chooses: gRPC, or files by URL.
    Both,
}

impl InnerProtocol {
    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http2 => vec![b"h2".to_vec()],
            Self::Http1 => vec![b"http/1.1".to_vec()],
            Self::Both => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        }
    }
}

/// CA of a cluster, for clients that trust it. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Trust {
    ca: Arc<[u8]>,
    roots: Arc<RootCertStore>,
}

impl Trust {
    /// Returns a trust in certificates that the certificate `ca` (DER) has signed, and in no others.
    ///
    /// # Errors
    /// The bytes are not a certificate.
    pub fn new(ca: &[u8]) -> Result<Self, TlsProblem> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(ca.to_vec()))?;
        Ok(Self {
            ca: ca.into(),
            roots: Arc::new(roots),
        })
    }

    /// Returns the CA's certificate in DER.
    #[must_use]
    pub fn ca(&self) -> &[u8] {
        &self.ca
    }

    fn client(&self, inside: InnerProtocol) -> ClientConfig {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for TLS 1.3")
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = inside.alpn();
        // Connections are kept for long, and a ticket may belong to a certificate that was replaced.
        config.resumption = Resumption::disabled();
        config
    }
}

/// Returns a listener's identity: a certificate (DER) and its key (PKCS #8).
///
/// # Errors
/// The certificate and the key do not belong together.
pub fn identity(
    certificate: &[u8],
    key: &[u8],
    inside: InnerProtocol,
) -> Result<ServerIdentity, TlsProblem> {
    let chain = vec![CertificateDer::from(certificate.to_vec())];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.to_vec()));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = inside.alpn();
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns the TLS provider: TLS 1.3 with AES-128-GCM first, the fastest cipher if the processor supports AES.
fn provider() -> Arc<CryptoProvider> {
    let suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider {
        cipher_suites: suites,
        ..ring::default_provider()
    })
}

#[cfg(test)]
mod tests;
