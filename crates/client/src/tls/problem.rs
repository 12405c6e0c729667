//! Problems of a TLS connection, with messages for users.

use rustls::{AlertDescription, CertificateError, InvalidMessage};
use std::error::Error as StdError;

/// Reason why a peer is refused. The message continues "can't trust the server at …: ".
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TlsProblem {
    /// The peer belongs to another cluster, or to this cluster with a new CA.
    #[error(
        "its certificate was not signed by this cluster's CA: it belongs to another cluster, or the CA was replaced; copy `token` from the server's directory again and restart all programs that still use the old one"
    )]
    OtherCa,
    /// The peer belongs to this cluster, but is another daemon than expected.
    #[error(
        "its certificate is for another daemon of the cluster than `{expected}`: check address and port"
    )]
    OtherName {
        /// Name that the certificate must have.
        expected: String,
    },
    /// The peer speaks another protocol: gRPC to a node, or HTTP to the server.
    #[error(
        "it speaks another protocol: check address and port: the server and each node have their own"
    )]
    OtherProtocol,
    /// The peer's certificate has expired.
    #[error(
        "its certificate has expired: restart it, which renews the certificate, and check the clocks of both hosts"
    )]
    Expired,
    /// The peer's certificate is not valid yet.
    #[error("its certificate is not valid yet: check the clocks of both hosts")]
    NotYet,
    /// The peer does not use TLS.
    #[error(
        "it answers without TLS: it was started with --tls off; start it without that flag, or use http:// and --tls off here, too"
    )]
    Plain,
    /// Any other TLS error.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
}

impl From<rustls::Error> for TlsProblem {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage as Invalid};
        match error {
            InvalidCertificate(certificate) => match certificate {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::OtherCa,
                CertificateError::NotValidForNameContext { expected, .. } => Self::OtherName {
                    expected: expected.to_str().into_owned(),
                },
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    Self::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Self::NotYet
                }
                other => Self::Tls(InvalidCertificate(other)),
            },
            Invalid(InvalidMessage::InvalidContentType) => Self::Plain,
            AlertReceived(AlertDescription::NoApplicationProtocol) => Self::OtherProtocol,
            AlertReceived(AlertDescription::UnknownCA) => Self::OtherCa,
            other => Self::Tls(other),
        }
    }
}

impl TlsProblem {
    /// Returns the TLS problem that caused an error, if any.
    #[must_use]
    pub fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(tls) = error.downcast_ref::<rustls::Error>() {
                return Some(tls.clone().into());
            }
            // An I/O error hides its inner error from `source`.
            let held = error.downcast_ref::<std::io::Error>();
            if let Some(problem) = held.and_then(std::io::Error::get_ref).and_then(|held| {
                let held: &(dyn StdError + 'static) = held;
                Self::of(held)
            }) {
                return Some(problem);
            }
            next = error.source();
        }
        None
    }
}
