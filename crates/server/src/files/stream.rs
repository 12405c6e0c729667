//! Streams of a version's bytes from nodes to a client: the server sends one window while it reads the next window. If a node does not
//! answer, the server reads from the next replica.

use crate::cluster::Cluster;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::Error;
use tidemill_client::log_limit::LogLimit;
use tidemill_client::objects::{ObjectAddress, Objects};
use tidemill_client::reader::{self, Grant, OTHERS_AFTER, Turn};
use tidemill_meta::read_pins::ReadVersion;
use tidemill_meta::shared::NamesShared;
use tidemill_model::id::NodeId;
use tidemill_model::layout::{Fetch, Layout, Part};
use tidemill_wire::capability::rights;
use tokio::sync::mpsc;

/// Maximum wait for a suspended node to resume.
const RESUME_MAX: Duration = Duration::from_secs(30);

/// Size of one read of a file in bytes. Each stream holds two such windows.
pub(crate) const WINDOW_BYTES: u64 = 2 << 20;

/// Number of bytes sent at once. The number is small, so that the server notices when a slow client still reads.
const FRAME_BYTES: usize = 64 << 10;

/// Time after which the server ends the stream to a client that reads nothing.
const STALLED_MAX: Duration = Duration::from_secs(300);

/// Maximum silence of a node if there is no other replica.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Time limit for a reduction on a node, including the wait in the node's queue.
const REDUCED_MAX: Duration = Duration::from_secs(100);

/// Interval at which the server checks that the node of a running reduction is up.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Rate limit of log entries about aborted streams.
static BROKEN: LogLimit = LogLimit::new();

/// Reason why no node can deliver bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("can't be read now: {0}; see `tidemill status`")]
pub(crate) struct BytesUnreadable(String);

impl BytesUnreadable {
    /// Returns the cause of the failure, without any advice.
    pub(crate) fn why(&self) -> &str {
        &self.0
    }

    /// Converts an error that interrupts a stream.
    pub(crate) fn of(error: &dyn std::error::Error) -> Self {
        Self(error.to_string())
    }
}

/// Item of a stream: bytes, or the reason why the stream ends early.
pub(crate) type StreamItem = Result<Bytes, BytesUnreadable>;

/// State for reading bytes from the nodes of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct SourceNodes {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) shared: Arc<NamesShared>,
    pub(crate) objects: Objects,
}

/// A version whose bytes are being read.
#[derive(Debug)]
pub(crate) struct VersionStream {
    nodes: SourceNodes,
    layout: Layout,
    /// Nodes that failed to deliver bytes: they are asked last.
    failed: Mutex<BTreeSet<NodeId>>,
    /// Registration of the read, which keeps the version from being removed.
    _reading: Option<ReadVersion>,
}

impl VersionStream {
    /// Creates the stream of a version. Returns `None` if the version has no bytes.
    pub(crate) fn new(nodes: &SourceNodes, mut reading: ReadVersion) -> Option<Self> {
        Some(Self {
            nodes: nodes.clone(),
            layout: reading.layout.take()?,
            failed: Mutex::default(),
            _reading: Some(reading),
        })
    }

    /// Creates the stream of a version that the caller keeps from being removed.
    pub(crate) fn of_kept(nodes: &SourceNodes, layout: Layout) -> Self {
        Self {
            nodes: nodes.clone(),
            layout,
            failed: Mutex::default(),
            _reading: None,
        }
    }

    /// Reads a range of the version's bytes from nodes.
    pub(crate) async fn window(&self, range: Range<u64>) -> StreamItem {
        let fetch = |fetch: Fetch| async move {
            let grant = self.grant(&self.layout.parts()[fetch.part], fetch.nodes);
            reader::read(&grant, &self.nodes.objects, fetch.bytes).await
        };
        let read = reader::window(&self.layout, range, |node| self.rank(node), fetch).await;
        read.map_err(|error| BytesUnreadable::of(&error))
    }

    /// Returns the layout of the version.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Sends the reduction `order` for a part to a node that holds the part, for a user, and returns the answer. If a node fails, the
    /// server asks the next node with a replica, except after status 400, which means that the request itself is invalid.
    ///
    /// # Errors
    /// If no node answers: the HTTP status of the last node, if that node sent a status, and the cause.
    pub(crate) async fn reduce(
        &self,
        part: usize,
        user: (u32, u32),
        order: Bytes,
    ) -> Result<Bytes, (Option<u16>, BytesUnreadable)> {
        let part = &self.layout.parts()[part];
        let grant = self.grant(part, part.nodes_by(|node| self.rank(node)));
        let request = |remote: ObjectAddress, _| {
            let order = order.clone();
            async move {
                let asked = self.nodes.objects.reduce(&remote, user, order);
                let asked = reader::within(Some(REDUCED_MAX), &remote, asked);
                tokio::select! {
                    asked = asked => asked,
                    () = self.until_offline(remote.node) => Err(Error::NodeDown(remote.node)),
                }
            }
        };
        let answered = reader::ask(&grant, request).await;
        answered.map_err(|error| match error.into_last() {
            Error::NodeRefused {
                status, message, ..
            } => (Some(status), BytesUnreadable(message)),
            error => (None, BytesUnreadable::of(&error)),
        })
    }

    /// Returns the order of the nodes: nodes that are likely to answer are first.
    fn rank(&self, node: NodeId) -> impl Ord + use<> {
        let shared = &self.nodes.shared;
        let failed = self.failed.lock().contains(&node);
        (failed, !shared.answers(node.0), !shared.is_up(node.0))
    }

    fn grant<'a>(&'a self, part: &'a Part, nodes: Vec<NodeId>) -> ServerGrant<'a> {
        ServerGrant {
            stream: self,
            part,
            nodes,
        }
    }

    /// Waits until a node is offline.
    async fn until_offline(&self, node: NodeId) {
        while self.nodes.shared.is_up(node.0) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// The server's own right to a part: the rights of the request's user were checked when the version was opened.
struct ServerGrant<'a> {
    stream: &'a VersionStream,
    part: &'a Part,
    /// Nodes with a replica, in the order in which they are asked.
    nodes: Vec<NodeId>,
}

impl Grant for ServerGrant<'_> {
    async fn next(&self, turn: &Turn) -> Result<Option<NodeId>, Error> {
        self.stream.failed.lock().extend(turn.tried());
        let mut nodes = self.nodes.iter();
        Ok(nodes.find(|node| !turn.tried().contains(node)).copied())
    }

    async fn address(&self, node: NodeId) -> Result<ObjectAddress, Error> {
        let SourceNodes {
            cluster, shared, ..
        } = &self.stream.nodes;
        let url = cluster.url(node.0).ok_or(Error::NodeDown(node))?;
        let object = self.part.object;
        Ok(ObjectAddress {
            node,
            url: url.into(),
            object,
            capability: shared.sign(node.0, object.0, rights::READ, 0),
        })
    }

    fn patience(&self, _node: NodeId, turn: &Turn) -> Option<Duration> {
        let last = turn.tried().len() + 1 >= self.nodes.len();
        Some(if last { ANSWER_MAX } else { OTHERS_AFTER })
    }

    /// Status 400 means that the request itself is invalid.
    fn is_node_error(&self, error: &Error) -> bool {
        !matches!(error, Error::NodeRefused { status: 400, .. })
    }

    /// If all nodes with the part are suspended, one of them is resumed.
    async fn again(&self, turn: &Turn) -> bool {
        let suspensions = &self.stream.nodes.shared.suspensions;
        let mut nodes = self.nodes.iter();
        let suspended = nodes.find(|node| suspensions.is_suspended(node.0));
        let Some(node) = suspended.filter(|_| turn.round() == 0) else {
            return false;
        };
        let resumed = suspensions.until_resumed(node.0, RESUME_MAX).await;
        if resumed {
            self.stream.failed.lock().remove(node);
        }
        resumed
    }
}

/// Sending end of a stream of bytes to a client.
#[derive(Clone, Debug)]
pub(crate) struct StreamSender(mpsc::Sender<StreamItem>);

impl StreamSender {
    /// Creates the sending and the receiving end of a stream.
    pub(crate) fn new() -> (Self, mpsc::Receiver<StreamItem>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// Sends bytes. Returns whether the client has received all of them.
    pub(crate) async fn send(&self, mut bytes: Bytes) -> bool {
        while !bytes.is_empty() {
            let frame = bytes.split_to(bytes.len().min(FRAME_BYTES));
            if !self.put(Ok(frame)).await {
                return false;
            }
        }
        true
    }

    async fn put(&self, frame: StreamItem) -> bool {
        let sent = tokio::time::timeout(STALLED_MAX, self.0.send(frame)).await;
        sent.is_ok_and(|sent| sent.is_ok())
    }

    /// Ends the stream with an error, so that the client does not mistake the bytes so far for the whole file.
    pub(crate) async fn end_with_error(&self, why: BytesUnreadable) {
        if let Some(left_out) = BROKEN.may() {
            tracing::warn!(left_out, "a file that was being sent {why}");
        }
        self.put(Err(why)).await;
    }

    /// Waits until the client has closed the receiving end.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Sends the bytes in `first` and then the bytes `rest` of the file, as fast as the client reads them.
pub(crate) async fn send(source: VersionStream, first: Bytes, rest: Range<u64>, to: &StreamSender) {
    let step = usize::try_from(WINDOW_BYTES).unwrap_or(usize::MAX);
    let mut starts = rest.clone().step_by(step);
    let mut window = first;
    loop {
        let next = async {
            let start = starts.next()?;
            let end = rest.end.min(start + WINDOW_BYTES);
            Some(source.window(start..end).await)
        };
        let (taken, next) = tokio::join!(to.send(window), next);
        match next {
            Some(Ok(bytes)) if taken => window = bytes,
            Some(Err(why)) if taken => return to.end_with_error(why).await,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn outlet_drops_stalled_reader_and_waits_for_slow_reader() {
        let (outlet, mut taken) = StreamSender::new();
        let bytes = Bytes::from(vec![7; 5 * FRAME_BYTES + 1]);
        let slow = tokio::spawn(async move {
            let mut count = 0;
            while let Some(frame) = taken.recv().await {
                count += frame.unwrap().len();
                tokio::time::sleep(STALLED_MAX - Duration::from_secs(1)).await;
            }
            count
        });
        assert!(outlet.send(bytes.clone()).await);
        drop(outlet);
        assert_eq!(slow.await.unwrap(), bytes.len());

        let (outlet, taken) = StreamSender::new();
        let begun = tokio::time::Instant::now();
        assert!(!outlet.send(bytes.clone()).await);
        assert!(begun.elapsed() >= STALLED_MAX);
        // A client that has disconnected.
        drop(taken);
        outlet.closed().await;
        let begun = tokio::time::Instant::now();
        assert!(!outlet.send(bytes).await);
        assert!(begun.elapsed() < STALLED_MAX);
    }
}
