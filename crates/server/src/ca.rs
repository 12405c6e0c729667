//! The cluster's CA: the key that signs the certificates of the cluster's server and nodes. This module reads and writes the file of the
//! CA.
//!
//! The key is in `ca.pem` in the server's directory, readable only by the server's user. The server creates the key at its first start. The
//! CA's certificate does not expire, since other hosts recognise the cluster by their copies of the certificate. Signed certificates are
//! valid for ten years, and are renewed at every start of the server and every attachment of a node.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber,
    SignatureAlgorithm, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tidemill_client::tls::{self, InnerProtocol, ServerIdentity};
use tidemill_meta::random::random;
use tidemill_wire::route;

/// Time for which signed certificates are valid.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Maximum expected difference between the clocks of hosts.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Length of an uncompressed point of P-256 (SEC 1, 2.3.3): a marker byte and two coordinates of 32 bytes.
const POINT_BYTES: usize = 65;
const UNCOMPRESSED: u8 = 4;

/// The cluster's CA: its key and its certificate.
#[derive(Debug)]
pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    der: Vec<u8>,
    pem: String,
}

/// Reason why the CA can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The file of the CA can't be read or written.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// The content of the CA's file is invalid.
    #[error(
        "the file has no key with a certificate; restore it from a backup, or remove it and copy the new `token` to all other hosts"
    )]
    Broken,
    /// The public key to certify is not a valid point.
    #[error("the key is not an uncompressed point of P-256")]
    Key,
    /// Signing a certificate failed.
    #[error("can't sign the certificate: {0}")]
    Sign(#[from] rcgen::Error),
    /// The signed certificate can't be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsProblem),
}

/// Public key of a node: a point of P-256, uncompressed.
struct CurvePoint<'a>(&'a [u8]);

impl PublicKeyData for CurvePoint<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl Ca {
    /// Reads the CA of the cluster from a file, or creates a CA and the file.
    pub(crate) fn open(path: &Path) -> Result<Self, CaError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = make()?;
                write_private(path, &text)?;
                text
            }
            other => other?,
        };
        Self::of(&text)
    }

    /// Creates a CA that exists only in memory.
    #[cfg(feature = "simulation")]
    pub(crate) fn in_memory() -> Result<Self, CaError> {
        Self::of(&make()?)
    }

    /// Reads the CA from the text of its file.
    fn of(text: &str) -> Result<Self, CaError> {
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes());
        let key = key.map_err(|_| CaError::Broken)?;
        let key = KeyPair::try_from(&key).map_err(|_| CaError::Broken)?;
        let der = CertificateDer::from_pem_slice(text.as_bytes());
        let der = der.map_err(|_| CaError::Broken)?.to_vec();
        let begin = text.find("-----BEGIN CERTIFICATE-----");
        let pem = text[begin.ok_or(CaError::Broken)?..].to_owned();
        let issuer = Issuer::new(own_params(&key), key);
        Ok(Self { issuer, der, pem })
    }

    /// Returns the CA's certificate in DER.
    pub(crate) fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the CA's certificate in PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns a certificate (DER) which states that the owner of this public key is the node `node`.
    pub(crate) fn certify(
        &self,
        node: tidemill_model::id::NodeId,
        public_key: &[u8],
    ) -> Result<Vec<u8>, CaError> {
        if public_key.len() != POINT_BYTES || public_key[0] != UNCOMPRESSED {
            return Err(CaError::Key);
        }
        self.sign(&[tls::node(node)], &CurvePoint(public_key))
    }

    /// Creates a key with a certificate of the server. `hosts` are additional host names and addresses in the certificate, for programs
    /// that know nothing of clusters.
    pub(crate) fn server(&self, hosts: &[String]) -> Result<ServerIdentity, CaError> {
        let key = KeyPair::generate()?;
        let names = [&[tls::SERVER.to_owned()], hosts].concat();
        let certificate = self.sign(&names, &key)?;
        Ok(tls::identity(
            &certificate,
            &key.serialize_der(),
            InnerProtocol::Both,
        )?)
    }

    /// Signs a certificate for these names. The first name identifies the owner of the certificate.
    fn sign(&self, names: &[String], key: &impl PublicKeyData) -> Result<Vec<u8>, CaError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = called(names.first().map_or("", String::as_str));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from_slice(&random::<16>()));
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = date_time_ymd(1970, 1, 1) + since_1970.unwrap_or_default();
        params.not_before = now - CLOCKS_DIFFER_MAX;
        params.not_after = now + LIFETIME;
        Ok(params.signed_by(key, &self.issuer)?.der().to_vec())
    }
}

/// Returns the parameters of the CA's own certificate. The parameters must be equal each time they are created for the same key.
fn own_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    // Two clusters have different names, so that programs that look CAs up by name can tell them apart.
    let point = key.der_bytes();
    let id = route::hex(&point[1..9]);
    params.distinguished_name = called(&format!("Tidemill cluster {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(9999, 12, 31);
    params
}

fn called(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// Creates a CA and returns the content of its file.
fn make() -> Result<String, CaError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = own_params(&key).self_signed(&key)?;
    Ok(format!("{}{}", key.serialize_pem(), certificate.pem()))
}

/// Replaces a file atomically by a file with this text that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let new = path.with_extension("new");
    // A file that a crash has left may be readable by others.
    let _ = fs::remove_file(&new);
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn ca_key_file_is_private_and_key_is_same_after_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let first = Ca::open(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Ca::open(&path).unwrap();
        assert_eq!(first.der(), again.der());
        assert_eq!(first.pem(), again.pem());
        assert!(!first.pem().contains("PRIVATE"));
        // A certificate that was signed after a restart has the same CA, by name and key.
        assert_eq!(
            own_params(again.issuer.key()),
            own_params(first.issuer.key())
        );
    }

    #[test]
    fn ca_open_refuses_broken_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        Ca::open(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        let error = Ca::open(&path).unwrap_err();
        assert!(matches!(error, CaError::Broken), "{error}");
    }

    #[test]
    fn ca_certify_refuses_keys_that_are_not_curve_points() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::open(&dir.path().join("ca.pem")).unwrap();
        let key = KeyPair::generate().unwrap();
        let node = tidemill_model::id::NodeId(3);
        ca.certify(node, key.der_bytes()).unwrap();
        let wrong: [&[u8]; 3] = [b"", &key.der_bytes()[1..], &[0; POINT_BYTES]];
        for wrong in wrong {
            let error = ca.certify(node, wrong).unwrap_err();
            assert!(matches!(error, CaError::Key), "{error}");
        }
    }
}
