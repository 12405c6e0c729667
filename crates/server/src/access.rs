//! Authentication of callers: by socket credentials on the Unix socket, and by the cluster's token or one of [`Tokens`] over TCP; and the
//! check of the rights that a caller claims.

use crate::ca::{Ca, write_private};
use crate::tokens::{Token, Tokens};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::connections::{Met, PeerKind, UserConnection};
use tidemill_client::credential::CredentialError;
use tidemill_client::{Credential, users};
use tidemill_meta::Caller;
use tidemill_meta::random::random;
use tidemill_wire::{route, v1};
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::codegen::http::{Extensions, HeaderMap};
use tonic::transport::server::{TcpConnectInfo, UdsConnectInfo};
use tonic::{Request, Status};

/// Time for which the server caches an answer of the name service.
const GROUPS_KEPT: Duration = Duration::from_secs(30);

/// State for identifying callers by sockets and tokens.
#[derive(Debug)]
pub(crate) struct Access {
    token: String,
    tokens: Tokens,
    own_uid: u32,
    groups: Mutex<HashMap<u32, (Instant, UserEntry)>>,
}

/// The name service's data about a user: name and groups.
#[derive(Clone, Debug)]
struct UserEntry {
    name: String,
    gid: u32,
    groups: Vec<u32>,
}

/// Identity of a caller, as proved by the caller's connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Whether the caller has an administrator's rights, as daemons of the cluster have: such a caller may act for any user.
    pub(crate) administrator: bool,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Token of the caller; `None` for the cluster's own token and for the Unix socket.
    pub(crate) token: Option<Arc<Token>>,
}

impl Peer {
    /// Returns the identity of an administrator or a daemon of the cluster.
    fn administrator(token: Option<Arc<Token>>) -> Self {
        Self {
            administrator: true,
            uid: 0,
            gid: 0,
            token,
        }
    }

    /// Whether the caller may only read.
    pub(crate) fn read_only(&self) -> bool {
        self.token.as_ref().is_some_and(|token| token.read_only())
    }

    /// Returns the user to whom the connection belongs.
    pub(crate) fn who(&self) -> PeerKind {
        if self.administrator {
            PeerKind::Daemon
        } else {
            PeerKind::User(self.uid)
        }
    }
}

impl Access {
    /// Reads the file with the cluster's token, or creates the file. Only the server's user can read the file, which also contains the
    /// certificate of the cluster's CA.
    pub(crate) fn open(
        token_file: &Path,
        ca: &Ca,
        tokens: Tokens,
    ) -> Result<Self, CredentialError> {
        let before = match Credential::read(token_file) {
            Err(CredentialError::Read { reason, .. })
                if reason.kind() == std::io::ErrorKind::NotFound =>
            {
                None
            }
            other => Some(other?),
        };
        let same = |held: &Credential| held.ca == ca.der();
        let written = before.as_ref().is_some_and(same);
        let token = before.map_or_else(new_token, |held| held.token);
        if !written {
            let text = Credential::text(&token, ca.pem());
            write_private(token_file, &text).map_err(|reason| CredentialError::Read {
                path: token_file.display().to_string(),
                reason,
            })?;
        }
        let own_uid = rustix::process::geteuid().as_raw();
        Ok(Self {
            token,
            tokens,
            own_uid,
            groups: Mutex::default(),
        })
    }

    /// Returns all tokens except the cluster's own token.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Identifies the peer of a connection by its socket and by its headers: a token, or, where passwords are allowed, a user name with a
    /// token as the password.
    pub(crate) fn identify(
        &self,
        (headers, extensions): (&HeaderMap, &Extensions),
        takes_passwords: bool,
    ) -> Result<Peer, Status> {
        let shown = headers
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        let bearer = shown
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::trim);
        let password = shown.filter(|_| takes_passwords).and_then(password);
        if bearer.is_none()
            && let Some((user, secret)) = password
        {
            let peer = self.bearer(&secret).filter(|_| !is_cross_site(headers));
            let peer = peer.filter(|peer| peer.administrator || self.is_called(peer.uid, &user));
            return store_peer(peer.ok_or_else(nobody)?, extensions);
        }
        let local = extensions.get::<Met<UdsConnectInfo>>();
        let cred = local.and_then(|met| met.info.peer_cred);
        let by_socket = cred.map(|cred| self.local_peer(cred.uid(), cred.gid()));
        let peer = match (by_socket, bearer) {
            // A token may add to the rights that the Linux kernel's credentials give, and never reduces them.
            (Some(peer), bearer) => bearer
                .filter(|_| !peer.administrator)
                .and_then(|bearer| self.bearer(bearer))
                .filter(|shown| shown.administrator)
                .unwrap_or(peer),
            (None, Some(bearer)) => self.bearer(bearer).ok_or_else(nobody)?,
            (None, None) => return Err(nobody()),
        };
        store_peer(peer, extensions)
    }

    /// Whether `user` is the name or the number of the user `uid`.
    fn is_called(&self, uid: u32, user: &str) -> bool {
        user == uid.to_string() || user == self.member(uid).name
    }

    /// Returns the identity that a token proves; `None` for an invalid token.
    fn bearer(&self, secret: &str) -> Option<Peer> {
        if same(secret.as_bytes(), self.token.as_bytes()) {
            return Some(Peer::administrator(None));
        }
        let token = self.tokens.find(secret)?;
        Some(match token.uid() {
            None => Peer::administrator(Some(token)),
            Some(uid) => Peer {
                administrator: false,
                uid,
                gid: self.member(uid).gid,
                token: Some(token),
            },
        })
    }

    /// Returns the identity of the connection's peer, which was determined before the request was read.
    pub(crate) fn peer<T>(&self, request: &Request<T>) -> Result<Peer, Status> {
        request.extensions().get().cloned().ok_or_else(nobody)
    }

    /// Rejects all callers except administrators and daemons such as nodes and mounts, which have the same rights.
    pub(crate) fn need_administrator<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if self.peer(request)?.administrator {
            Ok(())
        } else {
            Err(Status::permission_denied(
                "only an administrator may do this: root, the server's own user or a holder of the cluster's token",
            ))
        }
    }

    /// Returns the caller with whose rights a request is executed, from the request's claimed credentials.
    pub(crate) fn caller<T>(
        &self,
        request: &Request<T>,
        claimed: Option<&v1::Credentials>,
    ) -> Result<Caller, Status> {
        self.caller_of(&self.peer(request)?, claimed)
    }

    /// Whether a user is an administrator, to whom the limits of users do not apply.
    pub(crate) fn is_administrator(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// Returns the identity of the peer of a plain Unix socket.
    pub(crate) fn local_peer(&self, uid: u32, gid: u32) -> Peer {
        Peer {
            administrator: self.is_administrator(uid),
            uid,
            gid,
            token: None,
        }
    }

    /// Returns the caller as [`Self::caller`] does, for a peer whose identity is known.
    pub(crate) fn caller_of(
        &self,
        peer: &Peer,
        claimed: Option<&v1::Credentials>,
    ) -> Result<Caller, Status> {
        match claimed {
            Some(claimed) if peer.administrator => Ok(Caller {
                uid: claimed.uid,
                gid: claimed.gid,
                groups: claimed.groups.clone(),
                checked: claimed.checked,
                administrator: true,
            }),
            Some(claimed) if claimed.uid != peer.uid => Err(Status::permission_denied(format!(
                "user {} can't act as user {}; only an administrator can",
                peer.uid, claimed.uid
            ))),
            _ => Ok(Caller {
                uid: peer.uid,
                gid: peer.gid,
                groups: self.groups_of(peer.uid),
                checked: false,
                administrator: peer.administrator,
            }),
        }
    }

    /// Returns the group ids of a user of this host.
    pub(crate) fn groups_of(&self, uid: u32) -> Vec<u32> {
        self.member(uid).groups
    }

    fn member(&self, uid: u32) -> UserEntry {
        if let Some((read, member)) = self.groups.lock().get(&uid)
            && read.elapsed() < GROUPS_KEPT
        {
            return member.clone();
        }
        let member = asked(uid);
        let known = (Instant::now(), member.clone());
        self.groups.lock().insert(uid, known);
        member
    }
}

/// Returns the record of the connection over which a request arrived.
fn guest(extensions: &Extensions) -> Option<&UserConnection> {
    let local = extensions.get::<Met<UdsConnectInfo>>();
    let distant = extensions.get::<Met<TcpConnectInfo>>();
    let local = local.map(|met| &met.guest);
    local.or_else(|| distant.map(|met| &met.guest))
}

/// Stores the peer's identity in the record of its connection.
fn store_peer(peer: Peer, extensions: &Extensions) -> Result<Peer, Status> {
    if let Some(guest) = guest(extensions) {
        guest.introduce(peer.who());
    }
    Ok(peer)
}

/// Returns the user and the password of `Basic` authentication (RFC 7617).
fn password(shown: &str) -> Option<(String, String)> {
    let (scheme, encoded) = shown.split_once(' ')?;
    let decoded = STANDARD.decode(encoded.trim()).ok();
    let decoded = decoded.filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Whether a page of another web site made a browser send the request. Browsers add stored passwords to such requests.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

fn nobody() -> Status {
    Status::unauthenticated(
        "no cluster token, or a wrong one, or one that was revoked or has expired: ask the cluster's administrator for a \
         token of your own (`tidemill token create`); for a mount or a node copy `token` from the server's directory; \
         name either with --token-file",
    )
}

/// Asks the name service for the groups of a user. The call may take as long as the name service needs to answer over the network.
fn asked(uid: u32) -> UserEntry {
    aside(|| UserEntry {
        name: users::name(uid),
        gid: users::gid(uid),
        groups: users::groups(uid),
    })
}

/// Runs slow work without blocking the other asynchronous tasks of this thread.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Returns a secret that can't be guessed.
pub(crate) fn new_token() -> String {
    route::hex(&random::<32>())
}

/// Compares two byte strings in a time that does not depend on the number of equal bytes.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |seen, (a, b)| seen | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn opened(token_file: &Path, ca: &Ca) -> Access {
        let tokens = Tokens::open(&token_file.with_file_name("tokens")).unwrap();
        Access::open(token_file, ca, tokens).unwrap()
    }

    #[test]
    fn cluster_token_file_is_private_and_keeps_token_when_reopened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let ca = Ca::open(&dir.path().join("ca.pem")).unwrap();
        let first = opened(&path, &ca);
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(first.token, opened(&path, &ca).token);
        let text = fs::read_to_string(&path).unwrap();
        let credential = Credential::parse(&text).unwrap();
        assert_eq!(credential.token, first.token);
        assert_eq!(credential.ca, ca.der());
    }

    #[test]
    fn cluster_token_stays_same_after_ca_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let first = opened(&path, &Ca::open(&dir.path().join("a.pem")).unwrap()).token;
        for name in ["a.pem", "b.pem"] {
            let ca = Ca::open(&dir.path().join(name)).unwrap();
            let access = opened(&path, &ca);
            assert_eq!(access.token, first);
            let credential = Credential::read(&path).unwrap();
            assert_eq!(credential.ca, ca.der());
        }
    }

    fn shown(access: &Access, secret: &str) -> Result<Peer, Status> {
        let mut headers = HeaderMap::new();
        let value = format!("Bearer {secret}").parse().unwrap();
        headers.insert("authorization", value);
        access.identify((&headers, &Extensions::new()), true)
    }

    #[test]
    fn access_without_socket_credentials_or_valid_token_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::open(&dir.path().join("ca.pem")).unwrap();
        let access = opened(&dir.path().join("token"), &ca);
        let nothing = access.identify((&HeaderMap::new(), &Extensions::new()), true);
        assert_eq!(nothing.unwrap_err().code(), tonic::Code::Unauthenticated);
        assert!(shown(&access, "nonsense").is_err() && shown(&access, "").is_err());
        assert!(
            access.peer(&Request::new(())).is_err(),
            "no way past the gate"
        );

        let claimed = v1::Credentials {
            uid: 5,
            gid: 6,
            groups: vec![7],
            checked: true,
        };
        let peer = shown(&access, &access.token).unwrap();
        assert!(peer.administrator);
        let caller = access.caller_of(&peer, Some(&claimed)).unwrap();
        assert_eq!(
            (caller.uid, caller.checked, caller.administrator),
            (5, true, true)
        );
    }

    /// Opens the access rules with a token of an ordinary user, and returns the token's secret.
    fn with_user() -> (tempfile::TempDir, Access, String) {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::open(&dir.path().join("ca.pem")).unwrap();
        let access = opened(&dir.path().join("token"), &ca);
        let wanted = crate::tokens::NewToken {
            uid: Some(4_000_000_001),
            ..crate::tokens::NewToken::default()
        };
        let (_, secret) = access.tokens().create(wanted).unwrap();
        (dir, access, secret)
    }

    #[test]
    fn user_token_allows_requests_of_its_user_only() {
        let (_dir, access, secret) = with_user();
        let peer = shown(&access, &secret).unwrap();
        assert!(!peer.administrator);
        let claim = |uid, groups: &[u32]| {
            let claimed = v1::Credentials {
                uid,
                gid: 0,
                groups: groups.to_vec(),
                checked: true,
            };
            access.caller_of(&peer, Some(&claimed))
        };
        for uid in [0, 5] {
            let refused = claim(uid, &[]).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        }
        let own = claim(4_000_000_001, &[0, 5]).unwrap();
        assert_eq!((own.uid, own.gid), (4_000_000_001, 4_000_000_001));
        assert!(!own.checked && !own.administrator && own.groups.is_empty());
        let unclaimed = access.caller_of(&peer, None).unwrap();
        assert_eq!(unclaimed.uid, own.uid);
    }

    #[test]
    fn basic_auth_accepts_own_token_and_refuses_cross_site_request() {
        let (_dir, access, secret) = with_user();
        let ask = |user: &str, secret: &str, site: Option<&str>, taken: bool| {
            let mut headers = HeaderMap::new();
            let text = STANDARD.encode(format!("{user}:{secret}"));
            headers.insert("authorization", format!("basic {text}").parse().unwrap());
            if let Some(site) = site {
                headers.insert("sec-fetch-site", site.parse().unwrap());
            }
            let peer = access.identify((&headers, &Extensions::new()), taken);
            peer.ok().map(|peer| (peer.uid, peer.administrator))
        };
        let own = Some((4_000_000_001, false));
        assert_eq!(ask("4000000001", &secret, None, true), own);
        assert_eq!(ask("4000000001", &secret, Some("none"), true), own);
        assert_eq!(ask("4000000001", &secret, Some("cross-site"), true), None);
        assert_eq!(ask("4000000001", &secret, None, false), None, "of gRPC");
        assert_eq!(ask("root", &secret, None, true), None);
        assert_eq!(ask("4000000001", "nonsense", None, true), None);
        assert_eq!(ask("any", &access.token, None, true), Some((0, true)));
    }
}
