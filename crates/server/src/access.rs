//! Who is calling: socket credentials on the Unix socket, the array's token over TCP, and whose rights a
//! caller may claim.

use crate::authority::{Authority, write_private};
use crate::names::Caller;
use parking_lot::Mutex;
use rand::TryRngCore;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tidemill_client::credential::CredentialError;
use tidemill_client::{Credential, users};
use tidemill_wire::v1;
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

/// How long what the name service said is believed.
const GROUPS_KEPT: Duration = Duration::from_secs(30);

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[cfg(feature = "simulation")]
    if crate::simulated::chance::fill(&mut bytes) {
        return bytes;
    }
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .expect("the operating system gives random bytes");
    bytes
}

/// Decides who a caller is.
#[derive(Debug)]
pub(crate) struct Access {
    token: String,
    own_uid: u32,
    groups: Mutex<HashMap<u32, (Instant, Vec<u32>)>>,
}

/// A caller as its connection shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// May act for any user.
    pub(crate) trusted: bool,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Access {
    /// Reads the token of the array, or makes one, in a file that only the server's user can read and that
    /// names the array's authority, too.
    pub(crate) fn open(token_file: &Path, authority: &Authority) -> Result<Self, CredentialError> {
        let before = match Credential::read(token_file) {
            Err(CredentialError::Read { reason, .. })
                if reason.kind() == std::io::ErrorKind::NotFound =>
            {
                None
            }
            other => Some(other?),
        };
        let same = |held: &Credential| held.authority.as_deref() == Some(authority.der());
        let written = before.as_ref().is_some_and(same);
        let token = before.map_or_else(new_token, |held| held.token);
        if !written {
            let text = Credential::text(&token, authority.pem());
            write_private(token_file, &text).map_err(|reason| CredentialError::Read {
                path: token_file.display().to_string(),
                reason,
            })?;
        }
        let own_uid = rustix::process::geteuid().as_raw();
        Ok(Self {
            token,
            own_uid,
            groups: Mutex::default(),
        })
    }

    /// Who is at the other end of the connection.
    pub(crate) fn peer<T>(&self, request: &Request<T>) -> Result<Peer, Status> {
        let shown = request
            .metadata()
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        let bearer = shown
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::trim);
        let token = bearer.is_some_and(|token| same(token.as_bytes(), self.token.as_bytes()));
        let local = request
            .extensions()
            .get::<UdsConnectInfo>()
            .and_then(|info| info.peer_cred);
        match local {
            Some(cred) => {
                let mut peer = self.local_peer(cred.uid(), cred.gid());
                peer.trusted |= token;
                Ok(peer)
            }
            None if token => Ok(Peer {
                trusted: true,
                uid: 0,
                gid: 0,
            }),
            None => Err(Status::unauthenticated(
                "no array token, or a wrong one: copy `token` from the server's folder and name it with --token-file",
            )),
        }
    }

    /// Refuses all but elements, mounts and the array's operator.
    pub(crate) fn need_trusted<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if self.peer(request)?.trusted {
            Ok(())
        } else {
            Err(Status::permission_denied(
                "only root, the server's own user or a bearer of the array token may do this",
            ))
        }
    }

    /// Whose rights a request has, given what it claims.
    pub(crate) fn caller<T>(
        &self,
        request: &Request<T>,
        claimed: Option<&v1::Credentials>,
    ) -> Result<Caller, Status> {
        self.caller_of(&self.peer(request)?, claimed)
    }

    /// Who is at the other end of a plain Unix socket.
    pub(crate) fn local_peer(&self, uid: u32, gid: u32) -> Peer {
        Peer {
            trusted: uid == 0 || uid == self.own_uid,
            uid,
            gid,
        }
    }

    /// As [`Self::caller`], for a peer that is known.
    pub(crate) fn caller_of(
        &self,
        peer: &Peer,
        claimed: Option<&v1::Credentials>,
    ) -> Result<Caller, Status> {
        match claimed {
            Some(claimed) if peer.trusted => Ok(Caller {
                uid: claimed.uid,
                gid: claimed.gid,
                groups: claimed.groups.clone(),
                checked: claimed.checked,
                trusted: true,
            }),
            Some(claimed) if claimed.uid != peer.uid => Err(Status::permission_denied(format!(
                "user {} can't act as user {}; only root, the server's own user or a bearer of the array token can",
                peer.uid, claimed.uid
            ))),
            _ => Ok(Caller {
                uid: peer.uid,
                gid: peer.gid,
                groups: self.groups_of(peer.uid),
                checked: false,
                trusted: peer.trusted,
            }),
        }
    }

    /// Groups of a user of this host.
    pub(crate) fn groups_of(&self, uid: u32) -> Vec<u32> {
        if let Some((read, groups)) = self.groups.lock().get(&uid)
            && read.elapsed() < GROUPS_KEPT
        {
            return groups.clone();
        }
        let groups = asked(uid);
        let known = (Instant::now(), groups.clone());
        self.groups.lock().insert(uid, known);
        groups
    }
}

/// What the name service says, which may take as long as its network: nobody else waits meanwhile.
fn asked(uid: u32) -> Vec<u32> {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| users::groups(uid)),
        _ => users::groups(uid),
    }
}

fn new_token() -> String {
    let bytes = random::<32>();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares without telling by its time how much was right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |seen, (a, b)| seen | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_token_is_kept_private_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let authority = Authority::open(&dir.path().join("authority.pem")).unwrap();
        let first = Access::open(&path, &authority).unwrap();
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(first.token, Access::open(&path, &authority).unwrap().token);
        let text = fs::read_to_string(&path).unwrap();
        let credential = Credential::parse(&text).unwrap();
        assert_eq!(credential.token, first.token);
        assert_eq!(credential.authority.as_deref(), Some(authority.der()));
    }

    #[test]
    fn the_token_outlives_the_authority_and_files_of_earlier_releases() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "00ff\n").unwrap();
        for name in ["a.pem", "b.pem"] {
            let authority = Authority::open(&dir.path().join(name)).unwrap();
            let access = Access::open(&path, &authority).unwrap();
            assert_eq!(access.token, "00ff");
            let credential = Credential::read(&path).unwrap();
            assert_eq!(credential.authority.as_deref(), Some(authority.der()));
        }
    }

    #[test]
    fn without_socket_credentials_only_the_token_opens() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(&dir.path().join("authority.pem")).unwrap();
        let access = Access::open(&dir.path().join("token"), &authority).unwrap();
        let mut request = Request::new(());
        assert_eq!(
            access.peer(&request).unwrap_err().code(),
            tonic::Code::Unauthenticated
        );
        request
            .metadata_mut()
            .insert("authorization", "Bearer nonsense".parse().unwrap());
        assert!(access.peer(&request).is_err());
        let good = format!("Bearer {}", access.token).parse().unwrap();
        request.metadata_mut().insert("authorization", good);
        assert!(access.peer(&request).unwrap().trusted);
        let claimed = v1::Credentials {
            uid: 5,
            gid: 6,
            groups: vec![7],
            checked: true,
        };
        let caller = access.caller(&request, Some(&claimed)).unwrap();
        assert_eq!(
            (caller.uid, caller.checked, caller.trusted),
            (5, true, true)
        );
    }
}
