//! Time limits for a node that sends nothing while it answers a request.

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Time limits for silence of the peer, for requests of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// Maximum time from the request to the head of its answer.
    pub(crate) answer: Duration,
    /// Maximum time from the request to the head of its answer, if the node processes whole objects before it answers.
    pub(crate) work: Duration,
    /// Maximum time between two pieces of the answer's body.
    pub(crate) body: Duration,
}

impl Default for Silence {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(60),
            work: Duration::from_secs(3600),
            body: Duration::from_secs(60),
        }
    }
}

/// Reason why an answer is missing or incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("it was silent for {} s", .0.as_secs())]
    Silent(Duration),
    #[error(transparent)]
    Connection(#[from] hyper::Error),
}

/// Body of an answer. A read fails if no byte arrives for too long; the time between reads does not count.
#[derive(Debug)]
pub(crate) struct TimedBody {
    body: Incoming,
    limit: Duration,
    end: Pin<Box<Sleep>>,
    waiting: bool,
}

impl TimedBody {
    pub(crate) fn new(body: Incoming, limit: Duration) -> Self {
        Self {
            body,
            limit,
            end: Box::pin(tokio::time::sleep(limit)),
            waiting: false,
        }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(Broken::from)));
        }
        if !this.waiting {
            this.waiting = true;
            this.end.as_mut().reset(Instant::now() + this.limit);
        }
        ready!(this.end.as_mut().poll(cx));
        Poll::Ready(Some(Err(Broken::Silent(this.limit))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::objects::{ObjectAddress, Objects};
    use tidemill_model::id::{NodeId, ObjectId};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(600);

    fn limits(answer: Duration, body: Duration) -> Silence {
        Silence {
            answer,
            work: answer,
            body,
        }
    }

    /// Returns the client's result for a peer that accepts, sends `reported`, and then keeps the connection open or closes it.
    async fn read_from(
        reported: &'static [u8],
        keep: bool,
        silence: Silence,
    ) -> Result<Bytes, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let peer = tokio::spawn(async move {
            let mut kept = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(reported).await;
                if keep {
                    kept.push(stream);
                }
            }
        });
        let remote = ObjectAddress {
            node: NodeId(3),
            url: url.into(),
            object: ObjectId(1),
            capability: vec![1],
        };
        let objects = Objects::new(None).with_silence(silence);
        let read = tokio::time::timeout(LONG, objects.read(&remote, 0, 6)).await;
        peer.abort();
        read.expect("the wait has no end")
    }

    fn lost(read: Result<Bytes, Error>) -> String {
        let error = read.unwrap_err();
        assert!(error.is_lost(), "{error:?}");
        error.to_string()
    }

    #[tokio::test]
    async fn request_fails_if_peer_never_answers() {
        let text = lost(read_from(b"", true, limits(SHORT, LONG)).await);
        assert!(text.contains("silent"), "{text}");
    }

    #[tokio::test]
    async fn request_fails_if_peer_sends_half_of_answer() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nans";
        let text = lost(read_from(head, true, limits(LONG, SHORT)).await);
        assert!(text.contains("silent"), "{text}");
        let part = b"HTTP/1.1 200 OK\r\ncontent-";
        let text = lost(read_from(part, true, limits(SHORT, LONG)).await);
        assert!(text.contains("silent"), "{text}");
    }

    #[tokio::test]
    async fn request_fails_if_peer_closes_connection() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nans";
        for reported in [&b""[..], head] {
            let text = lost(read_from(reported, false, limits(LONG, LONG)).await);
            assert!(!text.contains("silent"), "{text}");
        }
    }

    #[tokio::test]
    async fn request_returns_whole_answer() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nanswer";
        let read = read_from(whole, true, limits(LONG, LONG)).await;
        assert_eq!(read.unwrap(), "answer");
    }
}
