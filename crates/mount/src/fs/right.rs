//! The server's word that we may read or write an object, got anew when it runs out, and requests to the
//! element that outlast its restart.

use super::Caller;
use super::backend::Backend;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_client::objects::Remote as Address;
use tidemill_core::id::{ElementId, ObjectId};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// How long a request to an element that can't be reached is repeated.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before that, doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

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
    pub(crate) async fn renew(&self, backend: &Backend) -> Result<(), ClientError> {
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
            .apply_async(self.caller, vec![op], false)
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

    /// Tells the server that the object is no longer read here.
    pub(crate) async fn release(&self, backend: &Backend) {
        let (ino, object) = (self.ino, self.object);
        let op = Op::Release(v1::Release { ino, object });
        if let Err(error) = backend.apply_async(self.caller, vec![op], false).await {
            tracing::debug!(
                object,
                "the server keeps an object until this mount ends: {error}"
            );
        }
    }

    /// Makes a request to the element that holds the object; repeats it if the element is away for a moment
    /// or the right has run out.
    pub(crate) async fn ask<T, F>(
        &self,
        backend: &Arc<Backend>,
        element: u32,
        request: impl Fn(Address) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let start = Instant::now();
        let mut pause = PAUSE_MIN;
        let mut renewed = false;
        loop {
            let address = Address {
                element: ElementId(element),
                url: backend.url(element).await?,
                object: ObjectId(self.object),
                capability: self.capability(),
            };
            match request(address).await {
                Err(ClientError::ElementRefused { status: 403, .. }) if !renewed => {
                    renewed = true;
                    self.renew(backend).await?;
                }
                Err(error) if error.is_lost() && start.elapsed() < PATIENCE => {
                    tracing::debug!("waiting for an element: {error}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    backend.forget_element(element);
                }
                other => return other,
            }
        }
    }
}
