//! Namespace requests to a server on this host by threads that wait for the answer: no runtime, no HTTP.

use crate::{Endpoint, Error};
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_wire::v1::{self, name_result::Result as Answer};
use tidemill_wire::{PROTOCOL_VERSION, local};

/// How long a request may take before its connection counts as lost.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections kept for later.
const KEPT_MAX: usize = 32;

/// A stock of connections, each for one request at a time. Calls block; they may not be made from async code.
#[derive(Debug)]
pub struct LocalNames {
    path: PathBuf,
    /// Where gRPC would go, for messages.
    endpoint: Endpoint,
    idle: Mutex<Vec<BufReader<UnixStream>>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// There is no connection to be had this way, or it broke before an answer came: ask by
    /// [`Server::apply`](crate::Server::apply). The request may have been carried out.
    #[error("no connection to the namespace: {0}")]
    Lost(#[from] std::io::Error),
    /// The server does not do it, or speaks another version.
    #[error(transparent)]
    Refused(#[from] Error),
}

impl LocalNames {
    /// For a server that is reached by a Unix socket; `None` for any other.
    #[must_use]
    pub fn new(endpoint: &Endpoint) -> Option<Self> {
        match endpoint {
            Endpoint::Unix(path) => Some(Self {
                path: local::socket(path),
                endpoint: endpoint.clone(),
                idle: Mutex::default(),
            }),
            Endpoint::Https(_) | Endpoint::Http(_) => None,
        }
    }

    /// Carries out namespace operations as [`Server::apply`](crate::Server::apply) does.
    ///
    /// # Errors
    /// See [`LocalError`].
    pub fn apply(&self, request: &v1::NameRequest) -> Result<Vec<Answer>, LocalError> {
        let kept = self.idle().pop();
        let mut connection = match kept {
            Some(connection) if !closed(&connection) => connection,
            Some(_) => {
                // The server was started again: so were all others.
                self.idle().clear();
                self.connect()?
            }
            None => self.connect()?,
        };
        local::send(connection.get_mut(), &[], request)?;
        let frame = local::receive(&mut connection)?.ok_or_else(cut)?;
        let reply = local::reply(&frame)?;
        {
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

    fn connect(&self) -> Result<BufReader<UnixStream>, LocalError> {
        let mut stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        local::send_bytes(&mut stream, &[], &local::greeting())?;
        let mut connection = BufReader::new(stream);
        let frame = local::receive(&mut connection)?.ok_or_else(cut)?;
        let (&status, rest) = frame.split_first().ok_or_else(cut)?;
        if status == local::WRONG_VERSION {
            let theirs = local::greeted(rest).unwrap_or(0);
            return Err(Error::Version {
                theirs,
                ours: PROTOCOL_VERSION,
            }
            .into());
        }
        if status != local::OK {
            let reason = String::from_utf8_lossy(rest).into_owned();
            return Err(std::io::Error::other(reason).into());
        }
        Ok(connection)
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

fn cut() -> std::io::Error {
    std::io::ErrorKind::UnexpectedEof.into()
}

/// Whether the server has ended a connection while nobody used it: it never speaks first.
fn closed(connection: &BufReader<UnixStream>) -> bool {
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    let mut byte = [0_u8; 1];
    !matches!(
        rustix::net::recv(connection.get_ref(), &mut byte[..], flags),
        Err(rustix::io::Errno::AGAIN)
    )
}
