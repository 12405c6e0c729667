//! Suspension of a node: detection that the node is idle, and the wait of the suspended process. The suspended process keeps only one
//! connection to the server open.

use crate::attach::RECONNECT;
use crate::config::NodeConfig;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tidemill_client::Server;
use tidemill_wire::PROTOCOL_VERSION;
use tidemill_wire::condition;
use tidemill_wire::convert::role_name;
use tidemill_wire::v1::{self, from_node, to_node};
use tokio_stream::StreamExt as _;

/// Number of requests in progress, and the time when the last request ended.
#[derive(Debug)]
pub(crate) struct Traffic(Mutex<(usize, Instant)>);

impl Default for Traffic {
    fn default() -> Self {
        Self(Mutex::new((0, Instant::now())))
    }
}

/// Request in progress, until its answer has been sent.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Traffic>);

impl Traffic {
    pub(crate) fn begin(self: &Arc<Self>) -> Answering {
        self.0.lock().0 += 1;
        Answering(self.clone())
    }

    /// Returns the time since the last request ended; `None` while a request is in progress.
    pub(crate) fn quiet(&self) -> Option<Duration> {
        let (open, last) = *self.0.lock();
        (open == 0).then(|| last.elapsed())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut traffic = self.0.0.lock();
        *traffic = (traffic.0 - 1, Instant::now());
    }
}

/// Body of an answer, whose request ends when the body is dropped.
#[derive(Debug)]
struct CountedBody {
    body: Body,
    _answering: Answering,
}

/// Returns a body that keeps its request in progress until the answer has been sent.
pub(crate) fn counted(body: Body, answering: Answering) -> Body {
    Body::new(CountedBody {
        body,
        _answering: answering,
    })
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Waits until the server resumes the node with this configuration. Must not be called while the node runs.
pub async fn until_resumed(config: &NodeConfig) {
    let mut pauses = RECONNECT;
    let mut logged = None;
    loop {
        match wait(config).await {
            Ok(true) => return,
            Ok(false) => pauses.reset(),
            Err(why) if logged.as_ref() == Some(&why) => {}
            Err(why) => {
                tracing::warn!(node = %config.node, "{why}; retrying without end");
                logged = Some(why);
            }
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}

/// Waits during one connection to the server. Returns whether the node has to resume.
async fn wait(config: &NodeConfig) -> Result<bool, String> {
    let server = Server::connect(&config.server, config.credential.as_ref()).await;
    let server = server.map_err(|error| error.to_string())?;
    let directory = config.directory.canonicalize();
    let directory = directory.unwrap_or_else(|_| config.directory.clone());
    let hello = v1::Hello {
        version: PROTOCOL_VERSION,
        suspended: true,
        node: Some(v1::Node {
            node: config.node.0,
            role: role_name(config.role).into(),
            host: config.host.clone(),
            directory: directory.display().to_string(),
            ..v1::Node::default()
        }),
        ..v1::Hello::default()
    };
    let hello = v1::FromNode {
        message: Some(from_node::Message::Hello(hello)),
    };
    // The outgoing stream stays open: its end would end the connection.
    let outgoing = tokio_stream::once(hello).chain(tokio_stream::pending());
    let mut incoming = match server.cluster().attach(outgoing).await {
        Ok(incoming) => incoming.into_inner(),
        // The node resumes to receive the message of its removal, and then ends.
        Err(status) if condition::NODE_REMOVED.is_cause_of(&status) => return Ok(true),
        Err(status) => return Err(server.explain(status).to_string()),
    };
    tracing::info!(node = %config.node, "suspended");
    while let Ok(Some(message)) = incoming.message().await {
        if let Some(to_node::Message::Resume(_)) = message.message {
            return Ok(true);
        }
    }
    Ok(false)
}
