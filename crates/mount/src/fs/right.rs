//! The server's word that we may read or write an object, got anew when it runs out, and requests to the
//! element that outlast its restart.

use super::Caller;
use super::backend::Backend;
use super::patience::Pauses;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_client::objects::Remote as Address;
use tidemill_core::id::{ElementId, ObjectId};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// How long an element may take to answer before it counts as one that can't be reached.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A right to one object.
#[derive(Debug)]
pub(crate) struct Right {
    ino: u64,
    object: u64,
    /// The version to be read; `None`: a version to be written.
    version: Option<u64>,
    caller: Caller,
    capability: Mutex<Vec<u8>>,
}

impl Right {
    /// As the server gave it. `version` is that of the object, `None` if it is being written.
    pub(crate) fn new(caller: Caller, opened: &v1::Opened, version: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            ino: opened.attr.map_or(0, |attr| attr.ino),
            object: opened.object,
            version,
            caller,
            capability: Mutex::new(opened.capability.clone()),
        })
    }

    /// To an object file that is opened in place, where the file's own mode counts.
    pub(crate) fn none(ino: u64, object: u64) -> Arc<Self> {
        Arc::new(Self {
            ino,
            object,
            version: Some(0),
            caller: Caller::default(),
            capability: Mutex::default(),
        })
    }

    /// To be shown to the element.
    pub(crate) fn capability(&self) -> Vec<u8> {
        self.capability.lock().clone()
    }

    /// Asks the server again.
    pub(crate) async fn renew(
        &self,
        backend: &Backend,
        until: Option<Instant>,
    ) -> Result<(), ClientError> {
        let op = match self.version {
            Some(version) => Op::Open(v1::Open {
                ino: self.ino,
                version,
            }),
            // The server answers the same for an object that is being written already.
            None => Op::NewVersion(v1::NewVersion {
                ino: self.ino,
                object: self.object,
                element: None,
                steal: false,
            }),
        };
        match backend
            .apply_async(self.caller, vec![op], until)
            .await?
            .pop()
        {
            Some(Answer::Opened(opened)) if opened.object == self.object => {
                *self.capability.lock() = opened.capability;
                Ok(())
            }
            Some(Answer::Error(error)) => Err(error.into()),
            _ => Err(ClientError::Answer("Open")),
        }
    }

    /// What tells the server that the object is no longer read here.
    pub(crate) fn release(&self) -> v1::Release {
        v1::Release {
            ino: self.ino,
            object: self.object,
        }
    }

    /// Makes a request to the element that holds the object; repeats it if the element is away or the right has
    /// run out. Without an end it is repeated for as long as the mount lives.
    pub(crate) async fn ask<T, F>(
        &self,
        backend: &Backend,
        element: u32,
        until: Option<Instant>,
        request: impl Fn(Address) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut pauses = Pauses::until(until);
        let mut renewed = false;
        loop {
            let error = match self.attempt(backend, element, until, &request).await {
                Ok(answer) => return Ok(answer),
                Err(ClientError::ElementRefused { status: 403, .. }) if !renewed => {
                    renewed = true;
                    self.renew(backend, until).await?;
                    continue;
                }
                Err(error) if error.is_lost() => error,
                Err(error) => return Err(error),
            };
            let Some(pause) = pauses.next() else {
                return Err(error);
            };
            tracing::debug!("waiting for an element: {error}");
            tokio::time::sleep(pause).await;
            backend.forget_element(element);
        }
    }

    async fn attempt<T, F>(
        &self,
        backend: &Backend,
        element: u32,
        until: Option<Instant>,
        request: &impl Fn(Address) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let url = backend.find(element, until).await?.url;
        let address = Address {
            element: ElementId(element),
            url: url.clone(),
            object: ObjectId(self.object),
            capability: self.capability(),
        };
        let last = Instant::now() + REQUEST_TIMEOUT;
        let end = until.map_or(last, |until| until.min(last));
        let answer = tokio::time::timeout_at(end.into(), request(address)).await;
        answer.unwrap_or_else(|_| Err(silent(&url)))
    }
}

/// An element that was asked and does not answer.
pub(super) fn silent(url: &str) -> ClientError {
    ClientError::Element {
        url: url.to_owned(),
        reason: "it does not answer".into(),
    }
}
