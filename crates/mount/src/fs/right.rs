//! The server's permission to read or write an object, which is renewed when it expires, and requests to the node that survive the node's
//! restart (next: `node/src`).

use super::Caller;
use super::backend::Backend;
use super::deadline::{self, Pauses};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_client::objects::ObjectAddress as Address;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Time after which a node that does not answer counts as unreachable.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Time that a reader waits for a node's answer before it asks whether another node has a replica.
const OTHERS_AFTER: Duration = Duration::from_secs(6);

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

    /// Whether another node has a replica of the version to read. If so, later requests are sent to the other node.
    async fn switch_replica(
        &self,
        backend: &Backend,
        until: Option<Instant>,
        avoid: &[u32],
    ) -> bool {
        if self.version.is_none() {
            return false;
        }
        // Another read of the object may have found it.
        let found = || !avoid.contains(&self.place.lock().0);
        found() || {
            let asked = self.ask_again(backend, until, avoid.to_vec()).await;
            asked.is_ok() && found()
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
        let mut pauses = Pauses::until(until);
        let mut renewed = false;
        // Nodes that did not answer since the last pause.
        let mut silent = Vec::new();
        let mut patient = self.version.is_none();
        loop {
            let node = self.place.lock().0;
            let attempt = self.attempt(backend, patient, until, &request).await;
            let error = match attempt {
                Ok(answer) => return Ok(answer),
                Err(ClientError::NodeRefused { status: 403, .. }) if !renewed => {
                    renewed = true;
                    self.renew(backend, until).await?;
                    continue;
                }
                Err(error) if error.is_lost() => error,
                // The node may have lost the object.
                Err(error) if error.is_elsewhere() && self.version.is_some() => {
                    silent.push(node);
                    if self.switch_replica(backend, until, &silent).await {
                        continue;
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            silent.push(node);
            if self.switch_replica(backend, until, &silent).await {
                tracing::info!(node, "reading a replica on another node: {error}");
                continue;
            }
            patient = true;
            let Some(pause) = pauses.next() else {
                return Err(error);
            };
            tracing::debug!("waiting for a node: {error}");
            deadline::pause(pause).await;
            for node in silent.drain(..) {
                backend.forget_node(node);
            }
        }
    }

    async fn attempt<T, F>(
        &self,
        backend: &Backend,
        patient: bool,
        until: Option<Instant>,
        request: &impl Fn(Address) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let (node, capability) = self.place.lock().clone();
        let found = match self.version {
            Some(_) => backend.look(node, until).await,
            None => backend.find(node, until).await,
        };
        let url = found?.url;
        let address = Address {
            node: NodeId(node),
            url: url.clone(),
            object: ObjectId(self.part.unwrap_or(self.object)),
            capability,
        };
        let last = if patient {
            REQUEST_TIMEOUT
        } else {
            OTHERS_AFTER
        };
        let last = deadline::now() + last;
        let end = until.map_or(last, |until| until.min(last));
        let answer = deadline::within(end, request(address)).await;
        answer.unwrap_or_else(|| Err(silent(&url)))
    }
}

/// Returns the error for a node that does not answer.
pub(super) fn silent(url: &str) -> ClientError {
    ClientError::Node {
        url: url.to_owned(),
        reason: "it does not answer".into(),
    }
}
