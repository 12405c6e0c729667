//! The server's permission to read or write an object, which is renewed when it expires, and requests to the node that survive the node's
//! restart (next: `client/src/reader.rs`).

use super::Caller;
use super::backend::Backend;
use super::deadline::{self, Pauses};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_client::objects::ObjectAddress as Address;
use tidemill_client::reader::{self, Grant, OTHERS_AFTER, Turn};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Time after which a node that does not answer counts as unreachable.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A right to read or write one object.
#[derive(Debug)]
pub(crate) struct Right {
    ino: u64,
    /// Object id of the version.
    object: u64,
    /// Part of the version that the right is for; `None` if the version has no parts.
    part: Option<u64>,
    /// Number of the version to read; `None` for a version to write.
    version: Option<u64>,
    /// Whether the right is for reading a version while several mounts write it.
    multi_writer: bool,
    caller: Caller,
    /// The node to which requests are sent, and the capability for the node.
    place: Mutex<(u32, Vec<u8>)>,
}

impl Right {
    /// Returns the right that the server gave in `opened`. `version` is the number of the object's version, `None` if it is being written.
    pub(crate) fn new(caller: Caller, opened: &v1::Opened, version: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            ino: opened.attr.map_or(0, |attr| attr.ino),
            object: opened.object,
            part: None,
            version,
            multi_writer: false,
            caller,
            place: Mutex::new((opened.node, opened.capability.clone())),
        })
    }

    /// Returns the right to one of the parts of a version.
    pub(crate) fn of_part(
        caller: Caller,
        opened: &v1::Opened,
        part: &v1::LayoutPart,
        version: Option<u64>,
    ) -> Arc<Self> {
        Arc::new(Self {
            ino: opened.attr.map_or(0, |attr| attr.ino),
            object: opened.object,
            part: Some(part.object),
            version,
            multi_writer: false,
            caller,
            place: Mutex::new((part.node, part.capability.clone())),
        })
    }

    /// Returns the right to read one of the parts of a version of extents. A part that is not `sealed` may become sealed soon.
    pub(crate) fn of_extent(
        caller: Caller,
        opened: &v1::Opened,
        part: &v1::LayoutPart,
        sealed: bool,
    ) -> Arc<Self> {
        let version = opened.attr.map_or(0, |attr| attr.version);
        Arc::new(Self {
            ino: opened.attr.map_or(0, |attr| attr.ino),
            object: opened.object,
            part: Some(part.object),
            version: Some(version),
            multi_writer: !sealed,
            caller,
            place: Mutex::new((part.node, part.capability.clone())),
        })
    }

    /// Whether the server keeps the version as long as the right is held. A right to a part does not keep the version.
    pub(crate) fn holds(&self) -> bool {
        self.part.is_none()
    }

    /// Returns the right to an object file that is opened directly, for which the file's own mode counts.
    pub(crate) fn none(ino: u64, object: u64) -> Arc<Self> {
        Arc::new(Self {
            ino,
            object,
            part: None,
            version: Some(0),
            multi_writer: false,
            caller: Caller::default(),
            place: Mutex::default(),
        })
    }

    /// Returns the capability for requests to the node.
    pub(crate) fn capability(&self) -> Vec<u8> {
        self.place.lock().1.clone()
    }

    /// Asks the server for a new capability.
    pub(crate) async fn renew(
        &self,
        backend: &Backend,
        until: Option<Instant>,
    ) -> Result<(), ClientError> {
        self.ask_again(backend, until, Vec::new()).await
    }

    async fn ask_again(
        &self,
        backend: &Backend,
        until: Option<Instant>,
        avoid: Vec<u32>,
    ) -> Result<(), ClientError> {
        let op = match self.version {
            Some(version) => Op::Open(v1::Open {
                ino: self.ino,
                version,
                avoid,
                multi_writer: self.multi_writer,
                ..v1::Open::default()
            }),
            // The server returns the same answer for an object that is being written already.
            None => Op::NewVersion(v1::NewVersion {
                ino: self.ino,
                object: self.object,
                ..v1::NewVersion::default()
            }),
        };
        match backend
            .apply_async(self.caller, vec![op], until)
            .await?
            .pop()
        {
            Some(Answer::Opened(opened)) if opened.object == self.object => {
                let place = self.place_in(opened);
                *self.place.lock() = place.ok_or(ClientError::Answer("Open"))?;
                Ok(())
            }
            Some(Answer::Error(error)) => Err(error.into()),
            _ => Err(ClientError::Answer("Open")),
        }
    }

    fn place_in(&self, opened: v1::Opened) -> Option<(u32, Vec<u8>)> {
        let Some(object) = self.part else {
            return Some((opened.node, opened.capability));
        };
        let parts = match (opened.layout, opened.multi_writer) {
            (Some(layout), _) => layout.parts,
            (None, multi_writer) => multi_writer?.parts,
        };
        let part = parts.into_iter().find(|part| part.object == object)?;
        Some((part.node, part.capability))
    }

    /// Returns the message to the server that the object is no longer read on this mount.
    pub(crate) fn release(&self) -> v1::Release {
        v1::Release {
            ino: self.ino,
            object: self.object,
        }
    }

    /// Sends a request to a node that holds the object. Repeats the request if the node is offline or the right has expired. If another
    /// node has a replica of the version to read, the request is sent to the other node at once. Without a deadline the request is repeated
    /// for as long as the mount runs.
    pub(crate) async fn ask<T, F>(
        &self,
        backend: &Backend,
        until: Option<Instant>,
        request: impl Fn(Address) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let grant = MountGrant {
            right: self,
            backend,
            until,
            pauses: Mutex::new(Pauses::until(until)),
        };
        let request = |address: Address, patience: Option<Duration>| {
            let url = address.url.clone();
            let answer = request(address);
            async move {
                let patience = patience.unwrap_or(REQUEST_TIMEOUT);
                let last = deadline::now() + patience;
                let end = until.map_or(last, |until| until.min(last));
                let answer = deadline::within(end, answer).await;
                answer.unwrap_or_else(|| Err(silent(&url)))
            }
        };
        reader::ask(&grant, request).await
    }
}

/// A mount's right to an object, for the requests of one operation.
struct MountGrant<'a> {
    right: &'a Right,
    backend: &'a Backend,
    until: Option<Instant>,
    pauses: Mutex<Pauses>,
}

impl Grant for MountGrant<'_> {
    async fn next(&self, turn: &Turn) -> Result<Option<NodeId>, ClientError> {
        let found = || {
            let node = NodeId(self.right.place.lock().0);
            (!turn.tried().contains(&node)).then_some(node)
        };
        // Another read of the object may have found another node.
        if found().is_some() || self.right.version.is_none() {
            return Ok(found());
        }
        let avoid = turn.tried().iter().map(|node| node.0).collect();
        let asked = self.right.ask_again(self.backend, self.until, avoid).await;
        Ok(asked.ok().and_then(|()| found()))
    }

    async fn address(&self, node: NodeId) -> Result<Address, ClientError> {
        let right = self.right;
        let found = match right.version {
            Some(_) => self.backend.look(node.0, self.until).await,
            None => self.backend.find(node.0, self.until).await,
        };
        let url = found?.url;
        let (now, capability) = right.place.lock().clone();
        // Another read has found another node in the meantime.
        if now != node.0 {
            return Err(ClientError::NodeDown(node));
        }
        Ok(Address {
            node,
            url,
            object: ObjectId(right.part.unwrap_or(right.object)),
            capability,
        })
    }

    fn patience(&self, _node: NodeId, turn: &Turn) -> Option<Duration> {
        let patient = self.right.version.is_none() || turn.round() > 0;
        Some(if patient {
            REQUEST_TIMEOUT
        } else {
            OTHERS_AFTER
        })
    }

    async fn renew(&self) -> Result<bool, ClientError> {
        self.right.renew(self.backend, self.until).await?;
        Ok(true)
    }

    /// A node may have lost an object that is read, but not an object that is being written.
    fn is_node_error(&self, error: &ClientError) -> bool {
        error.is_lost() || (error.is_elsewhere() && self.right.version.is_some())
    }

    async fn again(&self, turn: &Turn) -> bool {
        if !turn.last().is_some_and(ClientError::is_lost) {
            return false;
        }
        let Some(pause) = self.pauses.lock().next() else {
            return false;
        };
        deadline::pause(pause).await;
        for node in turn.tried() {
            self.backend.forget_node(node.0);
        }
        true
    }
}

/// Returns the error for a node that does not answer.
pub(super) fn silent(url: &str) -> ClientError {
    ClientError::Node {
        url: url.to_owned(),
        reason: "it does not answer".into(),
    }
}
