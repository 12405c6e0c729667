//! Reductions by URL: the server answers `POST /v2/{count,min,max,sum,select}/` as reductionist does
//! (`docs/decisions/0029-reductions-over-http.md`).
//!
//! The server finds the version at a URL, with the rights of the request's user, and the node that has the bytes. That node decodes and
//! reduces the bytes, in a process of that user, and returns the values. The server never decodes users' data. Next: `node/src`, which
//! reduces.

mod answer;
mod refused;
mod request;

pub(crate) use refused::ReductionRefusal;

use crate::access::Peer;
use crate::files::{FileRefusal as FilesRefused, FileService, VersionStream, path};
use axum::body::Body;
use axum::extract::State;
use axum::http::uri::{Authority, Uri};
use axum::http::{Method, Request, Response, header};
use axum::routing::any;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, Limited};
use request::ReductionRequest;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tidemill_compute::array::{ArrayError, ArraySpec, Reduced};
use tidemill_compute::work::{
    ArrayReduction, PIECES_MAX, SENT_BYTES_MAX, STORED_BYTES_MAX, StoredBytes,
};
use tidemill_meta::Fault;
use tidemill_meta::read_pins::ReadVersion;
use tidemill_model::display::line;
use tidemill_model::layout::Layout;
use tokio::sync::Semaphore;

/// Prefix of the URL paths of reductions.
const PREFIX: &str = "/v2/";

/// Maximum number of simultaneous reductions of all users. The limit on connections bounds the reductions of each user.
const ALL_MAX: usize = 64;

/// Maximum time for which a request waits until another reduction has ended.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum size of a request's body in bytes, and (`BODY_MAX`) time limit for its arrival.
const BODY_BYTES_MAX: usize = 256 << 10;
const BODY_MAX: Duration = Duration::from_secs(10);

/// Number of byte ranges that a node fetches at once from other nodes.
const FETCHED_AT_ONCE: usize = 4;

/// Whether a request asks for a reduction.
pub(crate) fn is_reduction(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// The service of reductions by URL, as described in the module's documentation. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Reductions {
    files: FileService,
    /// Host names by which clients reach the server.
    hosts: Arc<[String]>,
    turns: Arc<Semaphore>,
}

impl Reductions {
    pub(crate) fn new(files: &FileService, hosts: Vec<String>) -> Self {
        Self {
            files: files.clone(),
            hosts: hosts.into(),
            turns: Arc::new(Semaphore::new(ALL_MAX)),
        }
    }

    /// Returns the HTTP routes of the service.
    pub(crate) fn routes(self) -> axum::Router {
        axum::Router::new()
            .route(&format!("{PREFIX}{{*operation}}"), any(serve))
            .with_state(self)
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, ReductionRefusal> {
        let (parts, body) = request.into_parts();
        // The body is read before any refusal, since a client that is still sending may not see the answer.
        let json = collected(body).await?;
        let operation = request::operation(parts.uri.path()).ok_or(ReductionRefusal::Operation)?;
        if parts.method != Method::POST {
            return Err(ReductionRefusal::Method);
        }
        let peer = parts.extensions.get::<Peer>();
        let peer = peer.ok_or(FilesRefused::Name((&Fault::Closed).into()))?;
        let turn = tokio::time::timeout(PATIENCE, self.turns.acquire()).await;
        let _turn = turn
            .ok()
            .and_then(Result::ok)
            .ok_or(ReductionRefusal::Full)?;
        let asked = ReductionRequest::parse(operation, &json)?;
        let own = parts
            .headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        let own = own.or(parts.uri.authority().map(Authority::as_str));
        let path = self.path(&asked.url, own)?;
        let shown = line(&String::from_utf8_lossy(&path));
        let reading = self.files.version(peer, &path).await?;
        let range = range(&asked, &shown, reading.vnode.size)?;
        let reduced = self
            .reduce(peer, asked.spec, (&shown, range), reading)
            .await?;
        let cbor = answer::cbor(&reduced, (asked.shape_as_bytes, asked.count_as_bytes));
        let response = Response::builder()
            .header(header::CONTENT_TYPE, "application/cbor")
            .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
            .header(header::CACHE_CONTROL, "private, no-cache")
            .body(Body::from(cbor));
        response.map_err(|_| FilesRefused::from(Fault::Malformed("no answer can be made")).into())
    }

    /// Returns the path in the cluster for a URL. The URL's host must be this server, by one of its names or by the request's host name.
    fn path(&self, url: &str, own: Option<&str>) -> Result<Vec<u8>, ReductionRefusal> {
        let bad = |why: &str| ReductionRefusal::Url(line(url), why.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad("it is not a URL"))?;
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let known = self
            .hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(host))
            || own.is_some_and(|own| own.eq_ignore_ascii_case(authority.as_str()));
        if !known {
            let hosts = self.hosts.join(", ");
            return Err(bad(&format!(
                "its host is not this server: ask the server that has the file, or use one of {hosts}; an \
                 administrator adds names with --tls-names"
            )));
        }
        if !path::is_file(uri.path()) {
            return Err(bad("files of the cluster are at /files/PATH"));
        }
        path::of(&uri).map_err(|error| bad(&error.to_string()))
    }

    /// Reduces the bytes on the node that has most of the bytes. That node receives the other bytes.
    async fn reduce(
        &self,
        peer: &Peer,
        spec: ArraySpec,
        (shown, range): (&str, Range<u64>),
        reading: ReadVersion,
    ) -> Result<Reduced, ReductionRefusal> {
        let source =
            VersionStream::new(self.files.nodes(), reading).ok_or(ReductionRefusal::Empty)?;
        let (part, body) = ordered(&source, spec, range.clone()).await?;
        let answered = source.reduce(part, (peer.uid, peer.gid), body).await;
        let answer = answered.map_err(|(status, why)| match status {
            Some(400) => ReductionRefusal::Request(shown.to_owned(), why.why().to_owned()),
            Some(422) => ReductionRefusal::Data {
                path: shown.to_owned(),
                from: range.start,
                to: range.end,
                why: why.why().to_owned(),
            },
            _ => why.into(),
        })?;
        let unfit = |_| FilesRefused::from(Fault::Malformed("a node's answer is invalid"));
        Ok(postcard::from_bytes(&answer).map_err(unfit)?)
    }
}

/// Returns the order for the reducing node, with the bytes that the node lacks, and the part from which the node has most bytes.
pub(crate) async fn ordered(
    source: &VersionStream,
    spec: ArraySpec,
    range: Range<u64>,
) -> Result<(usize, Bytes), ReductionRefusal> {
    let operation = spec.operation;
    let (part, pieces) = pieces(source.layout(), range)?;
    let is_sent = |(_, piece): &&ByteSource| matches!(piece, StoredBytes::Sent(_));
    let elsewhere: Vec<_> = (pieces.iter().filter(is_sent))
        .map(|(bytes, _)| source.window(bytes.clone()))
        .collect();
    let sent: Vec<Bytes> = stream::iter(elsewhere)
        .buffered(FETCHED_AT_ONCE)
        .try_collect()
        .await?;
    let pieces = pieces.into_iter().map(|(_, piece)| piece).collect();
    let order = ArrayReduction { spec, pieces };
    order.check().map_err(|trouble| {
        ReductionRefusal::Request(format!("{operation:?}").to_lowercase(), trouble.message)
    })?;
    let order = postcard::to_allocvec(&order).map_err(|_| ArrayError::TooLarge)?;
    let length = u32::try_from(order.len()).map_err(|_| ArrayError::TooLarge)?;
    let body = Bytes::from([&length.to_le_bytes()[..], &order, &sent.concat()].concat());
    Ok((part, body))
}

async fn serve(State(reductions): State<Reductions>, request: Request<Body>) -> Response<Body> {
    let answer = reductions.answer(request).await;
    answer.unwrap_or_else(|refused| refused.response())
}

async fn collected(body: Body) -> Result<Bytes, ReductionRefusal> {
    let all = Limited::new(body, BODY_BYTES_MAX).collect();
    let all = tokio::time::timeout(BODY_MAX, all).await;
    let all = all.ok().and_then(Result::ok);
    Ok(all
        .ok_or(ReductionRefusal::Body(BODY_BYTES_MAX))?
        .to_bytes())
}

/// Returns the byte range of the file that a request selects.
fn range(asked: &ReductionRequest, shown: &str, size: u64) -> Result<Range<u64>, ReductionRefusal> {
    let to = match asked.size {
        Some(length) => asked.offset.saturating_add(length),
        None => size.max(asked.offset),
    };
    if to > size || asked.offset >= size {
        return Err(ReductionRefusal::Range {
            path: shown.to_owned(),
            from: asked.offset,
            to,
            size,
        });
    }
    if to - asked.offset > STORED_BYTES_MAX {
        return Err(ArrayError::TooLarge.into());
    }
    Ok(asked.offset..to)
}

/// A byte range of the file, and how the reducing node gets the bytes.
type ByteSource = (Range<u64>, StoredBytes);

/// Returns the part with most bytes of the range, and the byte ranges in this part and in other parts. Adjacent ranges are merged.
fn pieces(layout: &Layout, range: Range<u64>) -> Result<(usize, Vec<ByteSource>), ArrayError> {
    let mut held = BTreeMap::<usize, u64>::new();
    for piece in layout.segments(range.clone()).take(PIECES_MAX) {
        if let Some(at) = piece.at {
            *held.entry(at.part).or_default() += piece.length;
        }
    }
    let most = held.iter().max_by_key(|(_, bytes)| **bytes);
    let part = most.map_or(0, |(part, _)| *part);
    let others: u64 = held
        .iter()
        .filter(|(other, _)| **other != part)
        .map(|(_, bytes)| bytes)
        .sum();
    let mut pieces: Vec<ByteSource> = Vec::new();
    for piece in layout.segments(range) {
        let bytes = piece.offset..piece.offset + piece.length;
        let next = match piece.at {
            Some(at) if at.part == part => {
                // Missing bytes of the part are zeros.
                let there = layout.parts()[part]
                    .size
                    .clamp(at.offset, at.offset + piece.length);
                let length = there - at.offset;
                if length < piece.length {
                    let held = bytes.start..bytes.start + length;
                    let offset = at.offset;
                    pieces.push((held.clone(), StoredBytes::Held { offset, length }));
                    pieces.push((
                        held.end..bytes.end,
                        StoredBytes::Hole(piece.length - length),
                    ));
                    continue;
                }
                StoredBytes::Held {
                    offset: at.offset,
                    length,
                }
            }
            Some(_) => StoredBytes::Sent(piece.length),
            None => StoredBytes::Hole(piece.length),
        };
        match (pieces.last_mut(), next) {
            (Some((before, StoredBytes::Sent(length))), StoredBytes::Sent(more)) => {
                (before.end, *length) = (bytes.end, *length + more);
            }
            (
                Some((before, StoredBytes::Held { offset, length })),
                StoredBytes::Held {
                    offset: next,
                    length: more,
                },
            ) if *offset + *length == next => {
                (before.end, *length) = (bytes.end, *length + more);
            }
            _ => pieces.push((bytes, next)),
        }
        if pieces.len() > PIECES_MAX {
            return Err(ArrayError::TooLarge);
        }
    }
    match others > SENT_BYTES_MAX as u64 {
        true => Err(ArrayError::TooLarge),
        false => Ok((part, pieces)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_model::id::{NodeId, ObjectId};
    use tidemill_model::layout::{Part, StripedLayout};

    #[test]
    fn reduction_node_has_most_bytes_and_receives_other_ranges() {
        let part = |object, size| Part::on(ObjectId(object), size, NodeId(0));
        let whole = Layout::Whole(part(1, 100));
        let held = |offset, length| StoredBytes::Held { offset, length };
        assert_eq!(
            pieces(&whole, 10..90).unwrap(),
            (0, vec![(10..90, held(10, 80))])
        );
        let unit = 4096;
        let parts = vec![part(1, 2 * unit - 96), part(2, unit)];
        let size = 3 * unit;
        let striped = Layout::Striped(StripedLayout { unit, size, parts });
        let found = pieces(&striped, 100..3 * unit).unwrap();
        let expected = vec![
            (100..unit, held(100, unit - 100)),
            (unit..2 * unit, StoredBytes::Sent(unit)),
            (2 * unit..3 * unit - 96, held(unit, unit - 96)),
            (3 * unit - 96..3 * unit, StoredBytes::Hole(96)),
        ];
        assert_eq!(found, (0, expected));
        let found = pieces(&striped, unit..2 * unit).unwrap();
        assert_eq!(found, (1, vec![(unit..2 * unit, held(0, unit))]));
    }
}
