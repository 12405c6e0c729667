//! Namespace requests to a server on this host by threads that wait for the answer, without a runtime or HTTP (next: `server/src`).

use crate::{Endpoint, Error};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_wire::v1::{self, name_result::Result as Answer};
use tidemill_wire::{PROTOCOL_VERSION, local};

/// Time after which the connection of a request counts as lost.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Minimum wait for an answer, so that a running server can answer.
const WAIT_MIN: Duration = Duration::from_millis(10);
/// Maximum number of idle connections that are kept.
const KEPT_MAX: usize = 32;

/// Pool of connections, each for one request at a time. Its functions block, so async code must not call them.
#[derive(Debug)]
pub struct LocalNames {
    path: PathBuf,
    /// Address of the gRPC server, for error messages.
    endpoint: Endpoint,
    idle: Mutex<Vec<BufReader<UnixStream>>>,
}

/// Reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// There is no connection of this kind, and no request was sent: use [`Server::apply`](crate::Server::apply) instead.
    #[error("no connection to the namespace: {0}")]
    Absent(io::Error),
    /// No answer arrived, because the connection broke or the time limit passed. The server may have executed the request.
    #[error("no answer from the namespace: {0}")]
    Lost(io::Error),
    /// The server refuses the request, or speaks another version.
    #[error(transparent)]
    Refused(#[from] Error),
}

impl LocalNames {
    /// Returns a pool of connections to a server with a Unix socket; `None` for any other server.
    #[must_use]
    pub fn new(endpoint: &Endpoint) -> Option<Self> {
        match endpoint {
            Endpoint::Unix(path) => Some(Self {
                path: local::socket(path),
                endpoint: endpoint.clone(),
                idle: Mutex::default(),
            }),
            Endpoint::Https(_) | Endpoint::Http(_) | Endpoint::Several(_) => None,
        }
    }

    /// Executes namespace operations like [`Server::apply`](crate::Server::apply). Waits for the answer until `until`, and no longer than a
    /// running server needs.
    ///
    /// # Errors
    /// See [`LocalError`].
    pub fn apply(
        &self,
        request: &v1::NameRequest,
        until: Instant,
    ) -> Result<Vec<Answer>, LocalError> {
        let left = until.saturating_duration_since(Instant::now());
        let patience = left.clamp(WAIT_MIN, REQUEST_TIMEOUT);
        let mut connection = self.connection(patience)?;
        let reply = ask(&mut connection, request).map_err(LocalError::Lost)?;
        if patience == REQUEST_TIMEOUT {
            let mut idle = self.idle();
            if idle.len() < KEPT_MAX {
                idle.push(connection);
            }
        }
        let reply = reply.map_err(|status| self.refused(status))?;
        let answers = reply.results.into_iter();
        let answers = answers.map(|result| result.result.ok_or(Error::Answer("Apply")));
        Ok(answers.collect::<Result<_, _>>()?)
    }

    /// Returns an idle connection, if it is still valid, or a new connection.
    fn connection(&self, patience: Duration) -> Result<BufReader<UnixStream>, LocalError> {
        let kept = self.idle().pop();
        match kept {
            Some(connection) if !closed(&connection) => {
                if patience < REQUEST_TIMEOUT {
                    let set = connection.get_ref().set_read_timeout(Some(patience));
                    set.map_err(LocalError::Absent)?;
                }
                return Ok(connection);
            }
            // The server was restarted, so all other connections are invalid, too.
            Some(_) => self.idle().clear(),
            None => {}
        }
        let mut connection = self.connect(patience).map_err(LocalError::Absent)?;
        let greeting = local::receive(&mut connection).and_then(|frame| frame.ok_or_else(cut));
        let greeting = greeting.map_err(LocalError::Absent)?;
        match greeting.split_first() {
            Some((&local::OK, _)) => Ok(connection),
            Some((&local::WRONG_VERSION, rest)) => Err(Error::Version {
                theirs: local::greeted(rest).unwrap_or(0),
                ours: PROTOCOL_VERSION,
            }
            .into()),
            Some((_, reason)) => {
                let reason = String::from_utf8_lossy(reason).into_owned();
                Err(LocalError::Absent(io::Error::other(reason)))
            }
            None => Err(LocalError::Absent(cut())),
        }
    }

    fn connect(&self, patience: Duration) -> io::Result<BufReader<UnixStream>> {
        // A stopped server accepts no connections: that wait has a limit, too.
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
        let path = local::ShortPath::of(&self.path)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_ref())?)?;
        let mut stream = UnixStream::from(socket);
        local::send_bytes(&mut stream, &[], &local::greeting())?;
        Ok(BufReader::new(stream))
    }

    fn refused(&self, (status, message): (u8, String)) -> Error {
        match tonic::Code::from_i32(status.into()) {
            tonic::Code::Unavailable => Error::Unreachable {
                endpoint: self.endpoint.to_string(),
                reason: message,
            },
            code => tonic::Status::new(code, message).into(),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<BufReader<UnixStream>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ask(
    connection: &mut BufReader<UnixStream>,
    request: &v1::NameRequest,
) -> io::Result<Result<v1::NameReply, (u8, String)>> {
    local::send(connection.get_mut(), &[], request)?;
    local::reply(&local::receive(connection)?.ok_or_else(cut)?)
}

fn cut() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// Whether the server has closed an idle connection, on which it never sends without a request.
fn closed(connection: &BufReader<UnixStream>) -> bool {
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    let mut byte = [0_u8; 1];
    !matches!(
        rustix::net::recv(connection.get_ref(), &mut byte[..], flags),
        Err(rustix::io::Errno::AGAIN)
    )
}
