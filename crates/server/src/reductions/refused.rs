//! Reasons why a reduction has no result, as JSON with the words that clients of reductionist expect.

use crate::files::{BytesUnreadable, FileRefusal as FilesRefused};
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use tidemill_compute::array::ArrayError;

/// Seconds after which a client may retry a request that the server refused because of load.
const RETRY_SECS: &str = "1";

/// Reason why a reduction is refused or fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReductionRefusal {
    #[error("unsupported operation: the operations are count, min, max, sum and select")]
    Operation,
    #[error("a reduction needs the method POST")]
    Method,
    #[error("request data is not valid")]
    Json(String),
    #[error("the request took too long, or has more than {0} bytes")]
    Body(usize),
    #[error("request data is not valid")]
    Array(#[from] ArrayError),
    #[error("request data is not valid")]
    Size { size: u64, expected: usize },
    #[error("request data is not valid")]
    Empty,
    #[error("the URL {0} names no file of this cluster")]
    Url(String, String),
    #[error("bytes {from} to {to} are beyond the end of {path}, which has {size} bytes")]
    Range {
        path: String,
        from: u64,
        to: u64,
        size: u64,
    },
    #[error("{0} can't be reduced")]
    Request(String, String),
    #[error("bytes {from} to {to} of {path} can't be decoded")]
    Data {
        path: String,
        from: u64,
        to: u64,
        why: String,
    },
    #[error("the server is running the maximum number of reductions: try again")]
    Full,
    #[error(transparent)]
    File(#[from] FilesRefused),
}

impl From<BytesUnreadable> for ReductionRefusal {
    fn from(why: BytesUnreadable) -> Self {
        Self::File(why.into())
    }
}

impl ReductionRefusal {
    fn cause(&self) -> Option<String> {
        match self {
            Self::Json(why)
            | Self::Url(_, why)
            | Self::Request(_, why)
            | Self::Data { why, .. } => Some(why.clone()),
            Self::Array(error) => Some(error.to_string()),
            Self::Size { size, expected } => Some(format!(
                "size is {size} bytes, but shape and dtype need {expected} without compression or filters"
            )),
            Self::Empty => Some("size must be greater than 0".to_owned()),
            _ => None,
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Operation => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Full => StatusCode::SERVICE_UNAVAILABLE,
            Self::File(refused) => refused.status(),
            _ => StatusCode::BAD_REQUEST,
        }
    }

    pub(super) fn body(&self) -> Value {
        let message = self.to_string();
        match self.cause() {
            Some(cause) => json!({"error": {"message": message, "caused_by": [cause]}}),
            None => json!({"error": {"message": message}}),
        }
    }

    /// Returns the HTTP response with the reason of the refusal.
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.status();
        if let Self::File(refused) = self {
            *response.headers_mut() = refused.response().headers().clone();
        }
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        match self {
            Self::Full => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_SECS));
            }
            Self::Method => {
                headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
            }
            _ => {}
        }
        response
    }
}
