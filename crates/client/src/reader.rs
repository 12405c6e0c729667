//! The one driver of requests for stored objects: it asks one node with a replica after the other, renews a right that has expired, and
//! reports the nodes that failed. It sends requests to nodes (next: `node/src/http.rs`).
//!
//! A [`Grant`] names the nodes and signs the requests: the server's answer to an open, a mount's right, a label's capability, or the
//! server's key. The [`Turn`] of a request is its state. [`ask`] drives it in async code, [`block_on`] on threads that may block.

use crate::error::Error;
use crate::objects::{ObjectAddress, Objects};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::ops::Range;
use std::time::Duration;
use tidemill_model::id::NodeId;
use tidemill_model::layout::{Fetch, Layout};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Time without an answer from a node after which a reader asks another node with a replica.
pub const OTHERS_AFTER: Duration = Duration::from_secs(6);

/// Maximum number of nodes that are asked for one object in a round.
const NODES_MAX: usize = 16;

/// Maximum number of concurrent requests of one window.
const REQUESTS: usize = 16;

/// Source of the addresses and the rights of the requests for one object.
pub trait Grant {
    /// Returns the node to ask next, which is none of the nodes that failed in this round; `None` if no other node has a replica.
    ///
    /// # Errors
    /// The object cannot be read at all; no further node is asked.
    fn next(&self, turn: &Turn) -> impl Future<Output = Result<Option<NodeId>, Error>>;

    /// Returns the address of the object on a node, with the right to the object.
    ///
    /// # Errors
    /// The node has no address; the error counts as an error of the node.
    fn address(&self, node: NodeId) -> impl Future<Output = Result<ObjectAddress, Error>>;

    /// Returns the maximum time for which a node may be silent; `None` if only the connection limits the time.
    fn patience(&self, node: NodeId, turn: &Turn) -> Option<Duration>;

    /// Renews the right, which has expired. Returns false if this grant cannot renew the right.
    ///
    /// # Errors
    /// The right cannot be renewed; no further node is asked.
    fn renew(&self) -> impl Future<Output = Result<bool, Error>> {
        async { Ok(false) }
    }

    /// Whether another node, or a later request, may succeed after this error.
    fn is_node_error(&self, error: &Error) -> bool {
        error.is_lost() || error.is_elsewhere()
    }

    /// Waits until all nodes can be asked once more, after each of them has failed. Returns false if the request fails.
    fn again(&self, _turn: &Turn) -> impl Future<Output = bool> {
        async { false }
    }
}

/// State of one request: the nodes that failed.
#[derive(Debug, Default)]
pub struct Turn {
    round: u32,
    tried: Vec<NodeId>,
    failures: Vec<(NodeId, Error)>,
    renewed: bool,
}

impl Turn {
    /// Returns the number of completed rounds: in each round all nodes have failed.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Returns the nodes that failed in this round.
    #[must_use]
    pub fn tried(&self) -> &[NodeId] {
        &self.tried
    }

    /// Returns the last error of a node.
    #[must_use]
    pub fn last(&self) -> Option<&Error> {
        self.failures.last().map(|(_, error)| error)
    }

    /// Whether the error is an expired right that has not been renewed for this request.
    fn expires(&mut self, error: &Error) -> bool {
        error.is_no_right() && !std::mem::replace(&mut self.renewed, true)
    }

    fn fail(&mut self, node: NodeId, error: Error) {
        self.tried.push(node);
        self.failures.retain(|(failed, _)| *failed != node);
        self.failures.push((node, error));
    }

    fn begin_round(&mut self) {
        self.round += 1;
        self.tried.clear();
    }

    /// Returns the error of the request after the last node has failed: the error of the only node, or the errors of all nodes.
    fn into_error(mut self) -> Error {
        match self.failures.pop() {
            Some((_, only)) if self.failures.is_empty() => only,
            last => {
                self.failures.extend(last);
                Error::NoReplica(self.failures)
            }
        }
    }
}

/// Sends a request for an object to one node after the other until a node answers. `request` receives the address of the object, and the
/// time for which the node may be silent.
///
/// # Errors
/// The first error that no other node can correct; [`Error::NoReplica`] if several nodes failed.
pub async fn ask<G: Grant, T, F>(
    grant: &G,
    request: impl Fn(ObjectAddress, Option<Duration>) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut turn = Turn::default();
    loop {
        let next = match turn.tried.len() < NODES_MAX {
            true => grant.next(&turn).await?,
            false => None,
        };
        let Some(node) = next else {
            if !grant.again(&turn).await {
                return Err(turn.into_error());
            }
            turn.begin_round();
            continue;
        };
        let answer = match grant.address(node).await {
            Ok(address) => request(address, grant.patience(node, &turn)).await,
            Err(error) => Err(error),
        };
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if turn.expires(&error) && grant.renew().await? {
            continue;
        }
        if !grant.is_node_error(&error) {
            return Err(error);
        }
        tracing::debug!(%node, "another replica is looked for: {error}");
        turn.fail(node, error);
    }
}

/// Runs requests on a thread that may block, until they have ended or `stop` ends with the reason to abandon them.
///
/// # Errors
/// The error of the requests, or the reason.
pub fn block_on<T, E>(
    runtime: &Handle,
    requests: impl Future<Output = Result<T, E>>,
    stop: impl Future<Output = E>,
) -> Result<T, E> {
    runtime.block_on(async {
        tokio::select! {
            biased;
            answer = requests => answer,
            why = stop => Err(why),
        }
    })
}

/// Returns the result of a request to a node; an error if the node is silent for too long.
///
/// # Errors
/// The error of the request, or [`silent`].
pub async fn within<T>(
    patience: Option<Duration>,
    remote: &ObjectAddress,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(patience) = patience else {
        return request.await;
    };
    let answered = tokio::time::timeout(patience, request).await;
    answered.unwrap_or_else(|_| Err(silent(&remote.url, patience)))
}

/// Returns the error for a node that has not answered for a time.
#[must_use]
pub fn silent(url: &str, patience: Duration) -> Error {
    Error::Node {
        url: url.to_owned(),
        reason: format!("it has not answered for {} s", patience.as_secs()),
    }
}

/// Reads a range of an object that ends at the object's end or before.
///
/// # Errors
/// The errors of [`ask`]. A node that returns another number of bytes does not have the object.
pub async fn read<G: Grant>(
    grant: &G,
    objects: &Objects,
    bytes: Range<u64>,
) -> Result<Bytes, Error> {
    let (start, length) = (bytes.start, bytes.end.saturating_sub(bytes.start));
    let request = |remote: ObjectAddress, patience| async move {
        let read = within(patience, &remote, objects.read(&remote, start, length)).await?;
        ends_at(read.len() as u64, length, &remote)?;
        Ok(read)
    };
    ask(grant, request).await
}

/// Passes the bytes of an object from offset `from` on to `piece`, with one request for all bytes. After a failure another node is asked for
/// the rest. `size` is the length of the object, if it is known. Returns the end of the bytes.
///
/// # Errors
/// The errors of [`ask`], and the errors of `piece`.
pub async fn stream<G: Grant>(
    grant: &G,
    objects: &Objects,
    (from, size): (u64, Option<u64>),
    piece: impl FnMut(Bytes) -> Result<(), Error>,
) -> Result<u64, Error> {
    let sink = Mutex::new((from, Instant::now(), piece));
    let request = |remote: ObjectAddress, patience| {
        let sink = &sink;
        async move {
            let begun = sink.lock().0;
            sink.lock().1 = Instant::now();
            let pass_on = |bytes: Bytes| {
                let (done, last, piece) = &mut *sink.lock();
                *done += bytes.len() as u64;
                let passed = piece(bytes);
                // The time that the receiver takes does not count.
                *last = Instant::now();
                passed
            };
            let read = tokio::select! {
                biased;
                read = objects.read_from(&remote, begun, pass_on) => read,
                () = silence(patience, || sink.lock().1) => {
                    Err(silent(&remote.url, patience.unwrap_or_default()))
                }
            };
            let done = sink.lock().0;
            match read {
                Ok(()) => ends_at(done, size.unwrap_or(done), &remote).map(|()| true),
                // The right is renewed once for each request.
                Err(error) if error.is_no_right() && done > begun => Ok(false),
                Err(error) => Err(error),
            }
        }
    };
    loop {
        let done = sink.lock().0;
        if Some(done) == size || ask(grant, request).await? {
            return Ok(sink.into_inner().0);
        }
    }
}

/// Waits until no byte has arrived for a time; without a limit it waits for ever. `last` returns the time of the last byte.
async fn silence(patience: Option<Duration>, last: impl Fn() -> Instant) {
    let Some(patience) = patience else {
        return std::future::pending().await;
    };
    while last() + patience > Instant::now() {
        tokio::time::sleep_until(last() + patience).await;
    }
}

/// Checks the end of the returned bytes: an object of another length is not the sealed object.
fn ends_at(end: u64, expected: u64, remote: &ObjectAddress) -> Result<(), Error> {
    let difference = match end.cmp(&expected) {
        Ordering::Equal => return Ok(()),
        Ordering::Less => "shorter",
        Ordering::Greater => "longer",
    };
    let object = remote.object.0;
    Err(Error::Node {
        url: remote.url.to_string(),
        reason: format!("object {object:016x} is {difference} there than it was sealed"),
    })
}

/// Returns the bytes of a range of a file. The function calls `fetch` concurrently for the requests of the range's plan.
///
/// # Errors
/// The first error of `fetch`.
pub async fn window<K: Ord, F, E>(
    layout: &Layout,
    range: Range<u64>,
    rank: impl Fn(NodeId) -> K,
    fetch: impl Fn(Fetch) -> F,
) -> Result<Bytes, E>
where
    F: Future<Output = Result<Bytes, E>>,
{
    let length = range.end.saturating_sub(range.start);
    let ask = |wanted: Fetch| {
        let fetched = fetch(wanted.clone());
        async move { Ok((wanted, fetched.await?)) }
    };
    let plan = layout.plan_read(range.clone(), rank);
    let all: Vec<(Fetch, Bytes)> = stream::iter(plan.into_iter().map(ask))
        .buffered(REQUESTS)
        .try_collect()
        .await?;
    // The bytes of one request that are in order in the file are not copied.
    if let [(_, bytes)] = &all[..]
        && bytes.len() as u64 == length
        && layout.segments(range.clone()).nth(1).is_none()
    {
        return Ok(bytes.clone());
    }
    Ok(layout.assemble(range, &all).into())
}

#[cfg(test)]
mod tests;
