//! Errors of requests to a cluster.

use tidemill_model::id::NodeId;

/// Error of a request to a server or a node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be reached.
    #[error(
        "can't reach the server at {endpoint}: {reason}; start it there, or give the address of another one with `--server`"
    )]
    Unreachable {
        /// Address of the server.
        endpoint: String,
        /// Error of the connection.
        reason: String,
    },
    /// An endpoint is neither `unix:PATH` nor `https://HOST:PORT` nor `http://HOST:PORT`.
    #[error("`{0}` is not an endpoint: give unix:PATH or https://HOST:PORT")]
    BadEndpoint(String),
    /// The answering peer is not the cluster's server, or its certificate cannot be verified.
    #[error("can't trust the server at {endpoint}: {problem}")]
    Untrusted {
        /// Address of the server.
        endpoint: String,
        /// Problem of the TLS connection and its remedy.
        problem: crate::tls::TlsProblem,
    },
    /// The client has no certificate by which to verify the server.
    #[error(
        "can't trust the server at {0}: no certificate of the cluster's CA to verify it by; give --token-file a copy of `token` in the server's directory"
    )]
    NoCa(String),
    /// The server speaks another version of the protocol than this program.
    #[error(
        "the server speaks protocol version {theirs}, this program {ours}: use the same release"
    )]
    Version {
        /// Protocol version of the server.
        theirs: u32,
        /// Protocol version of this program.
        ours: u32,
    },
    /// The server refused a request.
    #[error("the server refused: {}", .0.message())]
    Refused(Box<tonic::Status>),
    /// A namespace operation failed.
    #[error("{message}")]
    Name {
        /// Linux errno of the failure.
        errno: i32,
        /// Message with the problem, its place, and its remedy.
        message: String,
    },
    /// A namespace operation needs a suspended node, which is resuming: repeat the request in a moment.
    #[error("{0}")]
    Resuming(String),
    /// The server's or node's answer does not match the request.
    #[error(
        "the server's answer to {0} does not fit: the peer speaks another version or is broken"
    )]
    Answer(&'static str),
    /// A version that was read during its write was abandoned or replaced.
    #[error(
        "{path}: the version that was read while it was written has been aborted or replaced after {bytes} bytes were read; read the file again"
    )]
    Abandoned {
        /// Path of the file.
        path: String,
        /// Number of bytes that were read before.
        bytes: u64,
    },
    /// Bytes of a version were changed after they were read.
    #[error(
        "{0}: the writer went back and changed bytes after they were read; read the file again, now that it is closed"
    )]
    WrittenOver(String),
    /// A node cannot be reached.
    #[error("can't reach node at {url}: {reason}")]
    Node {
        /// URL of the node.
        url: String,
        /// Error of the connection.
        reason: String,
    },
    /// A node refused a request.
    #[error("node at {url} answered {status}: {message}")]
    NodeRefused {
        /// URL of the node.
        url: String,
        /// HTTP status of the answer.
        status: u16,
        /// Message of the node.
        message: String,
    },
    /// The file's node is not part of the cluster or is offline.
    #[error("node {0} is down: its files are unavailable until it is up (`tidemill status`)")]
    NodeDown(NodeId),
    /// All nodes with a replica of an object failed; the last failure is the last in the list.
    #[error("no replica can be read: {}", listed(.0))]
    NoReplica(Vec<(NodeId, Error)>),
    /// Error of a local file.
    #[error("{path}: {source}")]
    Local {
        /// Path of the file.
        path: String,
        /// Error of the system call.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns the errno that a system call should return for this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        match self {
            Self::Name { errno, .. } => *errno,
            Self::Local { source, .. } => source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            Self::NodeRefused { status: 404, .. } => Errno::NOENT.raw_os_error(),
            Self::NodeRefused { status: 403, .. } => Errno::ACCESS.raw_os_error(),
            Self::NodeRefused { status: 413, .. } => Errno::FBIG.raw_os_error(),
            Self::NodeRefused { status: 501, .. } => Errno::OPNOTSUPP.raw_os_error(),
            Self::NodeRefused { status: 507, .. } => Errno::NOSPC.raw_os_error(),
            Self::Refused(status) if status.code() == tonic::Code::ResourceExhausted => {
                Errno::NOSPC.raw_os_error()
            }
            Self::Unreachable { .. } => Errno::COMM.raw_os_error(),
            Self::NodeDown(_) | Self::Node { .. } | Self::Resuming(_) => {
                Errno::HOSTUNREACH.raw_os_error()
            }
            // A node that could not be reached may have a replica.
            Self::NoReplica(failures) => {
                let lost = failures.iter().find(|(_, error)| error.is_lost());
                let error = lost.or(failures.last()).map(|(_, error)| error.errno());
                error.unwrap_or(Errno::IO.raw_os_error())
            }
            _ => Errno::IO.raw_os_error(),
        }
    }

    /// Whether the server or node could not be reached, so that a later retry may help.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Node { .. } | Self::NodeDown(_) => true,
            Self::NodeRefused { status, .. } => *status == 503,
            Self::NoReplica(failures) => failures.iter().any(|(_, error)| error.is_lost()),
            _ => false,
        }
    }

    /// Whether a node refuses a capability, or no longer accepts the capability.
    #[must_use]
    pub fn is_no_right(&self) -> bool {
        matches!(self, Self::NodeRefused { status: 403, .. })
    }

    /// Returns the error of the node that was asked last.
    #[must_use]
    pub fn into_last(self) -> Self {
        match self {
            Self::NoReplica(mut failures) => match failures.pop() {
                Some((_, last)) => last,
                None => Self::NoReplica(failures),
            },
            error => error,
        }
    }

    /// Whether the asked node does not have the object (any more), while another node may have it.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        matches!(
            self,
            Self::NodeRefused {
                status: 404 | 410,
                ..
            }
        )
    }

    /// Whether the error is a failed namespace operation with this errno.
    #[must_use]
    pub fn is(&self, errno: rustix::io::Errno) -> bool {
        match self {
            Self::Name {
                errno: reported, ..
            } => *reported == errno.raw_os_error(),
            Self::Resuming(_) => errno == rustix::io::Errno::HOSTUNREACH,
            _ => false,
        }
    }
}

/// Returns the nodes that failed and their errors.
fn listed(failures: &[(NodeId, Error)]) -> String {
    let one = |(node, error): &(NodeId, Error)| format!("node {node}: {error}");
    match failures {
        [] => "no node has one".to_owned(),
        all => all.iter().map(one).collect::<Vec<_>>().join("; "),
    }
}

/// Returns the innermost cause of an error, which has the most information.
pub(crate) fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    // The text of a status is its name and all its details.
    match last.downcast_ref::<tonic::Status>() {
        Some(status) => status.message().to_owned(),
        None => last.to_string(),
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn client_error_maps_refusal_status_to_errno() {
        let errno = |status| {
            let (url, message) = (String::new(), String::new());
            let refused = Error::NodeRefused {
                url,
                status,
                message,
            };
            Errno::from_raw_os_error(refused.errno())
        };
        assert_eq!(errno(413), Errno::FBIG);
        assert_eq!(errno(507), Errno::NOSPC);
        assert_eq!(errno(500), Errno::IO);
    }
}
