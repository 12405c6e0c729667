//! TLS between the processes of a cluster.
//!
//! Every cluster has a CA of its own, whose key the server keeps. It signs one certificate for the server and one for each node.
//! Peers are verified by that CA and by their role, [`SERVER`] or [`node`], not by an address: hosts may move. Clients are
//! identified by token and capabilities, not by certificates.
//!
//! [`Trust`] is for processes that connect, [`Listener`] for processes that accept connections; [`SocketStream`] is a connection.

mod connect;
mod listen;
mod problem;
mod stream;

pub(crate) use connect::Connector;
pub use listen::{ACCEPT_PAUSE, Listener, ServerIdentity, could_not_accept};
pub use problem::TlsProblem;
pub use stream::SocketStream;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;
use tidemill_core::id::NodeId;

/// Name in the certificate of a server.
pub const SERVER: &str = "server.tidemill";

/// Name in the certificate of a node.
#[must_use]
pub fn node(node: NodeId) -> String {
    format!("node-{node}.tidemill")
}

/// Protocol inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// gRPC.
    Http2,
    /// Bytes of objects.
    Http1,
    /// Either, as the client chooses: gRPC, and files by URL.
    Both,
}

impl Inside {
    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http2 => vec![b"h2".to_vec()],
            Self::Http1 => vec![b"http/1.1".to_vec()],
            Self::Both => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        }
    }
}

/// The CA of a cluster, for clients that trust it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Trust {
    ca: Arc<[u8]>,
    roots: Arc<RootCertStore>,
}

impl Trust {
    /// Trusts certificates that this certificate (DER) has signed, and no others.
    ///
    /// # Errors
    /// It is not a certificate.
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

    fn client(&self, inside: Inside) -> ClientConfig {
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
/// The two do not belong together.
pub fn identity(
    certificate: &[u8],
    key: &[u8],
    inside: Inside,
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

/// TLS 1.3 with AES-128-GCM first: it is the fastest if the processor supports AES, as all do here.
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
