//! The file `token` in the server's directory, which a node or a mount on another host needs. The file contains the cluster's token, which
//! authorises daemons at the server, and the certificate of the cluster's CA, by which daemons verify the server and its nodes. `tidemill
//! token create` writes files of the same form for users. This module only reads such files.
//!
//! ```text
//! tidemill credential 1
//! token: 64 hexadecimal digits
//! -----BEGIN CERTIFICATE-----
//! …
//! -----END CERTIFICATE-----
//! ```
//!
//! The certificate is PEM in its usual form, so that the file can also serve as the CA file of `curl` and `openssl`.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::path::Path;

/// Version of the credential file.
pub const CREDENTIAL_VERSION: u32 = 1;

const TITLE: &str = "tidemill credential";
const TOKEN: &str = "token:";

/// Content of a credential file. The bearer of the cluster's token may act for any of the cluster's users.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Token that authenticates the bearer to the server.
    pub token: String,
    /// Certificate of the cluster's CA in DER form.
    pub ca: Vec<u8>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret, and messages end up in logs.
        f.debug_struct("Credential")
            .field("ca_bytes", &self.ca.len())
            .finish_non_exhaustive()
    }
}

/// Error of reading or writing a credential file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The credential file cannot be read or, by the server, be written.
    #[error(
        "can't use the token: {path}: {reason}; ask the cluster's administrator for one of your own (`tidemill token create`), \
         or, for a mount or a node, copy `token` from the server's directory; name it with --token-file"
    )]
    Read {
        /// Path of the credential file.
        path: String,
        /// Error of the system call.
        reason: std::io::Error,
    },
    /// Other users may read the credential file.
    #[error(
        "{path}: other users may read this token and act as you: `chmod 600` it, and consider having it revoked"
    )]
    Public {
        /// Path of the credential file.
        path: String,
    },
    /// The content of the file is not a credential.
    #[error("bad token file: {path}: {what}; copy `token` from the server's directory again")]
    Parse {
        /// Path of the credential file.
        path: String,
        /// Flaw of the file's content.
        what: Flaw,
    },
}

impl CredentialError {
    /// Whether the error is that no credential file exists for this user.
    #[must_use]
    pub fn is_absent_or_private(&self) -> bool {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        matches!(self, Self::Read { reason, .. } if [NotFound, PermissionDenied].contains(&reason.kind()))
    }
}

/// Flaw of the text of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The credential was written by another release of Tidemill.
    #[error("line 1: not `{TITLE} {CREDENTIAL_VERSION}`: it was made by another release")]
    Version,
    /// The credential has no token.
    #[error("it has no line `{TOKEN} …`")]
    Token,
    /// The credential has no certificate, or a broken certificate.
    #[error("it has no complete certificate")]
    Certificate,
}

impl Credential {
    /// Reads a credential file.
    ///
    /// # Errors
    /// The file cannot be read or is not a credential.
    pub fn read(path: &Path) -> Result<Self, CredentialError> {
        let shown = || path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|reason| CredentialError::Read {
            path: shown(),
            reason,
        })?;
        Self::parse(&text).map_err(|what| CredentialError::Parse {
            path: shown(),
            what,
        })
    }

    /// Checks that no other user may read a user's own credential file.
    ///
    /// # Errors
    /// [`CredentialError::Public`], or the file cannot be examined.
    pub fn check_private(path: &Path) -> Result<(), CredentialError> {
        use std::os::unix::fs::PermissionsExt;
        let shown = || path.display().to_string();
        let metadata = std::fs::metadata(path).map_err(|reason| CredentialError::Read {
            path: shown(),
            reason,
        })?;
        if metadata.permissions().mode() & 0o077 == 0 {
            Ok(())
        } else {
            Err(CredentialError::Public { path: shown() })
        }
    }

    /// Parses the text of a credential.
    ///
    /// # Errors
    /// The first flaw of the text.
    pub fn parse(text: &str) -> Result<Self, Flaw> {
        let text = text.trim();
        let Some((title, rest)) = text.split_once('\n') else {
            return Err(Flaw::Version);
        };
        if title.trim_end() != format!("{TITLE} {CREDENTIAL_VERSION}") {
            return Err(Flaw::Version);
        }
        let token = rest.lines().find_map(|line| line.strip_prefix(TOKEN));
        let token = token.map(str::trim).filter(|token| !token.is_empty());
        let token = token.ok_or(Flaw::Token)?.to_owned();
        let ca = CertificateDer::from_pem_slice(rest.as_bytes());
        let ca = ca.map_err(|_| Flaw::Certificate)?.to_vec();
        Ok(Self { token, ca })
    }

    /// Returns the text of a credential, from a token and the CA's certificate as PEM.
    #[must_use]
    pub fn text(token: &str, ca_pem: &str) -> String {
        format!(
            "{TITLE} {CREDENTIAL_VERSION}\n{TOKEN} {token}\n{}\n",
            ca_pem.trim()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem() -> String {
        let made = rcgen::generate_simple_self_signed(vec!["a".into()]).unwrap();
        made.cert.pem()
    }

    #[test]
    fn credential_text_round_trips() {
        let text = Credential::text("abc", &pem());
        let read = Credential::parse(&text).unwrap();
        assert_eq!(read.token, "abc");
        let der = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
        assert_eq!(read.ca, der.as_ref());
        assert!(!format!("{read:?}").contains("abc"));
    }

    #[test]
    fn invalid_credential_reports_its_flaw() {
        let text = Credential::text("abc", &pem());
        let cases = [
            (String::new(), Flaw::Version),
            ("00ff\n".into(), Flaw::Version),
            (text.replace("credential 1", "credential 2"), Flaw::Version),
            (text.replace("token: abc", "token:"), Flaw::Token),
            (text.replace("-----END", "----"), Flaw::Certificate),
        ];
        for (text, flaw) in cases {
            assert_eq!(Credential::parse(&text), Err(flaw), "{text}");
        }
        let missing = Credential::read(Path::new("/no/such/token")).unwrap_err();
        assert!(missing.to_string().contains("/no/such/token"), "{missing}");
    }
}
