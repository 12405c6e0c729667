//! Reasons why the server does not send a file, as a line of text for programs that know nothing of gRPC.

use super::path::BadPath;
use super::stream::BytesUnreadable;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use rustix::io::Errno;
use tidemill_client::concurrency_limit::Busy;
use tidemill_meta::Fault;
use tidemill_model::display::line;
use tidemill_wire::v1;
use tonic::{Code, Status};

/// Seconds after which a client may retry a request that the server refused because of load, or because a node is offline.
const RETRY_SECS: &str = "2";

/// Reason why the server does not send a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileRefusal {
    #[error(transparent)]
    Path(#[from] BadPath),
    #[error("only GET and HEAD are supported: write files through a mount or with `tidemill put`")]
    Method,
    #[error("over HTTP/1.1 this server only answers at /files/PATH and /v2/OPERATION")]
    NotHere,
    #[error(
        "no token, or a wrong one, or one that was revoked or has expired: send `Authorization: Bearer TOKEN` with the text that \
         follows `token:` in a file of `tidemill token create`, or send that token as the password of its user"
    )]
    Nobody,
    #[error("{}", .0.message())]
    Peer(Status),
    #[error("{}", .0.message)]
    Name(v1::NameError),
    #[error("{0} is {1}: only files have bytes, and only directories are listed")]
    NoFile(String, &'static str),
    #[error("{0} is being written for the first time: it can be read when it is closed")]
    NotYet(String),
    #[error("the file no longer has the requested version")]
    Other,
    #[error("the range is beyond the file's {0} bytes")]
    Range(u64),
    #[error(transparent)]
    Busy(#[from] Busy),
    #[error("the server is sending the maximum number of files: try again later")]
    Full,
    #[error(transparent)]
    Unreadable(#[from] BytesUnreadable),
}

impl From<Status> for FileRefusal {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unauthenticated => Self::Nobody,
            _ => Self::Peer(status),
        }
    }
}

impl From<Fault> for FileRefusal {
    fn from(fault: Fault) -> Self {
        Self::Name((&fault).into())
    }
}

impl FileRefusal {
    /// Returns the HTTP status of the refusal.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Path(_) => StatusCode::BAD_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotHere => StatusCode::NOT_FOUND,
            Self::Nobody => StatusCode::UNAUTHORIZED,
            Self::Peer(status) => match status.code() {
                Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::FORBIDDEN,
            },
            Self::Name(error) => of_errno(Errno::from_raw_os_error(error.errno)),
            Self::NoFile(..) => StatusCode::FORBIDDEN,
            Self::Other => StatusCode::PRECONDITION_FAILED,
            Self::Range(_) => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NotYet(_) | Self::Full | Self::Unreadable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the HTTP response with the reason of the refusal.
    pub(crate) fn response(&self) -> Response<Body> {
        let status = self.status();
        let text = format!("{}\n", line(&self.to_string()));
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, text);
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_SECS));
            }
            _ => {}
        }
        if let Self::Range(size) = self
            && let Ok(range) = format!("bytes */{size}").parse()
        {
            headers.insert(header::CONTENT_RANGE, range);
        }
        response
    }
}

fn of_errno(errno: Errno) -> StatusCode {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => StatusCode::NOT_FOUND,
        Errno::ACCESS | Errno::PERM => StatusCode::FORBIDDEN,
        Errno::NAMETOOLONG => StatusCode::URI_TOO_LONG,
        Errno::INVAL => StatusCode::BAD_REQUEST,
        Errno::TIMEDOUT | Errno::HOSTUNREACH => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
