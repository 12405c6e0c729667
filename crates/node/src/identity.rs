//! Key and certificate with which the node identifies itself to its clients. The module stores them in the node's database.
//!
//! The key is created once and stays in `node.db`. The server certifies the key whenever the node connects. The node stores the last
//! certificate, so that it can serve when it starts before its server.

use crate::db::{Db, DbError};
use crate::error::Error;
use crate::records;
use rcgen::{KeyPair, PublicKeyData};
use tidemill_client::tls::{self, InnerProtocol};
use tokio::sync::watch;

/// Key of the database table `identity` with the private key of the node.
const PRIVATE_KEY: &str = "private key";
const CERTIFICATE: &str = "certificate";

/// TLS identity of a node: its key and its certificate.
#[derive(Debug)]
pub struct NodeIdentity {
    key: Vec<u8>,
    public_key: Vec<u8>,
    current: watch::Sender<Option<tls::ServerIdentity>>,
}

impl NodeIdentity {
    /// Loads the key and the certificate, or creates a key.
    ///
    /// # Errors
    /// The database can't be read or contains invalid data.
    pub fn open(db: &Db) -> Result<Self, Error> {
        let (kept, certificate) = db.read(|connection| {
            Ok((
                records::identity(connection, PRIVATE_KEY)?,
                records::identity(connection, CERTIFICATE)?,
            ))
        })?;
        let key = match &kept {
            Some(key) => KeyPair::try_from(key.as_slice())?,
            None => KeyPair::generate()?,
        };
        let identity = Self {
            public_key: key.der_bytes().to_vec(),
            key: key.serialize_der(),
            current: watch::Sender::new(None),
        };
        if kept.is_none() {
            let key = identity.key.clone();
            db.submit(
                true,
                move |connection| records::set_identity(connection, PRIVATE_KEY, &key),
                |result| {
                    if let Err(error) = result {
                        tracing::error!(%error, "the node's key could not be stored");
                    }
                },
            );
        }
        if let Some(certificate) = certificate {
            identity.show(&certificate)?;
        }
        Ok(identity)
    }

    /// Returns the public key that the server certifies: an uncompressed point of the curve P-256.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// Returns the TLS identity for new connections, which changes with each certificate.
    #[must_use]
    pub fn current(&self) -> watch::Receiver<Option<tls::ServerIdentity>> {
        self.current.subscribe()
    }

    /// Uses the certificate `certificate` (DER) from now on, and stores it.
    ///
    /// # Errors
    /// The certificate is for another key, or the database returns an error.
    pub async fn renew(&self, db: &Db, certificate: &[u8]) -> Result<(), Error> {
        self.show(certificate)?;
        let certificate = certificate.to_vec();
        let change = move |connection: &rusqlite::Connection| {
            records::set_identity(connection, CERTIFICATE, &certificate)
        };
        // A lost certificate is issued again at the next attachment.
        db.write(false, change).await.map_err(DbError::into)
    }

    fn show(&self, certificate: &[u8]) -> Result<(), Error> {
        let identity = tls::identity(certificate, &self.key, InnerProtocol::Http1)?;
        self.current.send_replace(Some(identity));
        Ok(())
    }
}
