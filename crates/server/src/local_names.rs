//! The namespace for peers on this host that wait for each answer, such as mounts. Each connection has a thread, and the code between the
//! socket and the database is minimal. Next: `server/src/lease_recall.rs`, which applies the requests.

use crate::access::{Access, Peer};
use crate::leadership::Lease;
use crate::lease_recall::LeaseRecalls;
use crate::namespace_service::reply;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::log_limit::LogLimit;
use tidemill_client::tls::ACCEPT_PAUSE;
use tidemill_meta::NamesRequest;
use tidemill_wire::local::ShortPath;
use tidemill_wire::size_limits::SizeLimitError;
use tidemill_wire::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION, USER_MESSAGE_BYTES_MAX, local, v1};

/// Maximum number of connections. A peer beyond the limit is refused and uses gRPC instead.
const CONNECTIONS_MAX: usize = 256;
/// Maximum number of connections of all ordinary users, so that the rest remains for mounts, and (`EACH_MAX`) of each user.
const USERS_MAX: usize = 128;
const EACH_MAX: usize = 8;
/// Time limit for a peer to send its protocol version or to receive an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The open socket of the namespace. Dropping this value closes the socket and all its connections.
#[derive(Debug)]
pub(crate) struct LocalNamesService {
    listener: Arc<UnixListener>,
    path: PathBuf,
    service: Arc<Service>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Service {
    lease_recalls: LeaseRecalls,
    access: Arc<Access>,
    /// Right of this server to answer; `None` without a replicated log.
    lease: Option<Arc<Lease>>,
    /// Open connections; `None` after the socket was closed.
    open: Mutex<Option<BTreeMap<u64, LocalConnection>>>,
    /// Rate limit of log entries about invalid peers and failed connections.
    logged: LogLimit,
}

/// A connection of a peer to the socket.
#[derive(Debug)]
struct LocalConnection {
    stream: UnixStream,
    /// Ordinary user to whom the connection belongs; `None` for an administrator or a daemon.
    user: Option<u32>,
}

impl LocalNamesService {
    /// Starts to accept connections on the socket.
    pub(crate) fn start(
        path: &Path,
        lease_recalls: LeaseRecalls,
        (access, lease): (Arc<Access>, Option<Arc<Lease>>),
    ) -> io::Result<Self> {
        // This process holds the directory's lock, so an existing socket file was left by a server that has ended.
        let _ = std::fs::remove_file(path);
        let listener = Arc::new(UnixListener::bind(ShortPath::of(path)?)?);
        // Every user may connect: the server knows the user of each connection.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let service = Arc::new(Service {
            lease_recalls,
            access,
            lease,
            open: Mutex::new(Some(BTreeMap::new())),
            logged: LogLimit::new(),
        });
        let acceptor = std::thread::Builder::new().name("names".into()).spawn({
            let (listener, service) = (listener.clone(), service.clone());
            move || accept(&listener, &service)
        })?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            service,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for LocalNamesService {
    fn drop(&mut self) {
        let open = self.service.open.lock().take().unwrap_or_default();
        // This wakes the thread that waits for connections.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        let _ = self.acceptor.take().map(std::thread::JoinHandle::join);
        for held in open.values() {
            let _ = held.stream.shutdown(Shutdown::Both);
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether the limits allow another connection of a peer.
fn has_space(open: &BTreeMap<u64, LocalConnection>, peer: &Peer) -> bool {
    let users = || open.values().filter_map(|held| held.user);
    open.len() < CONNECTIONS_MAX
        && (peer.administrator
            || (users().count() < USERS_MAX
                && users().filter(|uid| *uid == peer.uid).count() < EACH_MAX))
}

fn accept(listener: &UnixListener, service: &Arc<Service>) {
    let mut number = 0;
    loop {
        let accepted = listener.accept();
        if service.open.lock().is_none() {
            return;
        }
        number += 1;
        let begun = accepted.and_then(|(stream, _)| service.begin(number, stream));
        if let Err(error) = begun {
            if let Some(left_out) = service.logged.may() {
                tracing::warn!(%error, left_out, "a local connection to the namespace can't be accepted");
            }
            std::thread::sleep(ACCEPT_PAUSE);
        }
    }
}

impl Service {
    /// Starts the thread of a connection, unless there are too many connections.
    fn begin(self: &Arc<Self>, number: u64, mut stream: UnixStream) -> io::Result<()> {
        let cred = rustix::net::sockopt::socket_peercred(&stream)?;
        let peer = self.access.local_peer(cred.uid.as_raw(), cred.gid.as_raw());
        stream.set_write_timeout(Some(PATIENCE))?;
        {
            let mut guard = self.open.lock();
            let Some(open) = guard.as_mut() else {
                return Ok(());
            };
            if !has_space(open, &peer) {
                // The peer behaves equally whether it receives this answer or the end of the connection.
                let _ =
                    local::send_bytes(&mut stream, &[local::EXHAUSTED], b"too many connections");
                return Ok(());
            }
            let held = LocalConnection {
                stream: stream.try_clone()?,
                user: (!peer.administrator).then_some(peer.uid),
            };
            open.insert(number, held);
        }
        let service = self.clone();
        let thread = std::thread::Builder::new().name("local".into());
        let spawned = thread.spawn(move || {
            // An idle connection of a user is closed without a log entry.
            if let Err(error) = service.serve(stream, &peer)
                && error.kind() != io::ErrorKind::WouldBlock
                && let Some(left_out) = service.logged.may()
            {
                tracing::warn!(%error, left_out, uid = peer.uid, "a local connection to the namespace is closed");
            }
            service.ended(number);
        });
        if spawned.is_err() {
            self.ended(number);
        }
        spawned.map(drop)
    }

    fn ended(&self, number: u64) {
        if let Some(open) = self.open.lock().as_mut() {
            open.remove(&number);
        }
    }

    /// Answers the requests on a connection one after the other until the peer disconnects.
    fn serve(&self, stream: UnixStream, peer: &Peer) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut input = BufReader::new(stream);
        let Some(hello) = local::receive(&mut input)? else {
            return Ok(());
        };
        let theirs = local::greeted(&hello).ok_or(io::ErrorKind::InvalidData)?;
        let status = if theirs == PROTOCOL_VERSION {
            local::OK
        } else {
            local::WRONG_VERSION
        };
        local::send_bytes(input.get_mut(), &[status], &local::greeting())?;
        if status != local::OK {
            if let Some(left_out) = self.logged.may() {
                tracing::warn!(
                    theirs,
                    ours = PROTOCOL_VERSION,
                    left_out,
                    "a peer of another version is refused"
                );
            }
            return Ok(());
        }
        let mut bytes_max = USER_MESSAGE_BYTES_MAX;
        if peer.administrator {
            // Mounts keep idle connections.
            input.get_mut().set_read_timeout(None)?;
            bytes_max = MESSAGE_BYTES_MAX;
        }
        while let Some(frame) = local::receive_at_most(&mut input, bytes_max)? {
            let answer = match local::request(&frame) {
                Ok(request) => self.answer(peer, request),
                Err(SizeLimitError::Nonsense) => return Err(io::ErrorKind::InvalidData.into()),
                Err(excess) => Err(tonic::Status::invalid_argument(excess.to_string())),
            };
            drop(frame);
            if self
                .lease
                .as_ref()
                .is_some_and(|lease| !lease.wait_until_valid())
            {
                return Ok(());
            }
            let stream = input.get_mut();
            match answer {
                Ok(reply) => local::send(stream, &[local::OK], &reply)?,
                Err(status) => {
                    let code = u8::try_from(status.code() as i32).unwrap_or(u8::MAX);
                    local::send_bytes(stream, &[code], status.message().as_bytes())?;
                }
            }
        }
        Ok(())
    }

    fn answer(
        &self,
        peer: &Peer,
        message: v1::NameRequest,
    ) -> Result<v1::NameReply, tonic::Status> {
        let caller = self.access.caller_of(peer, message.credentials.as_ref())?;
        reply(
            self.lease_recalls
                .apply_blocking(NamesRequest::of(caller, message)),
        )
    }
}
