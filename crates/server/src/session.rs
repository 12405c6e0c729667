//! Sessions of mounts: what a mount had open is given up when it has been away for a while.

use crate::array::Array;
use crate::names::{Names, Request, Unfinished};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::Trust;
use tidemill_client::objects::{Objects, Remote};
use tidemill_core::id::{ElementId, ObjectId};
use tidemill_wire::route::SealBody;
use tidemill_wire::v1::{self, name_op::Op};

/// The mounts that are there.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    present: Arc<Mutex<BTreeMap<u64, u32>>>,
    names: Arc<dyn Names>,
    array: Arc<Array>,
    objects: Objects,
    timeout: Duration,
}

/// A mount's stream; when it is dropped the mount is away.
#[derive(Debug)]
pub(crate) struct Presence {
    session: u64,
    sessions: Sessions,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let sessions = self.sessions.clone();
        sessions.leave(self.session);
    }
}

impl Sessions {
    pub(crate) fn new(
        names: Arc<dyn Names>,
        array: Arc<Array>,
        trust: &Trust,
        timeout: Duration,
    ) -> Self {
        Self {
            present: Arc::default(),
            names,
            array,
            objects: Objects::new(Some(trust)),
            timeout,
        }
    }

    /// A mount's stream begins.
    pub(crate) fn arrive(&self, session: u64) -> Presence {
        *self.present.lock().entry(session).or_default() += 1;
        Presence {
            session,
            sessions: self.clone(),
        }
    }

    fn leave(self, session: u64) {
        if let Some(count) = self.present.lock().get_mut(&session) {
            *count = count.saturating_sub(1);
        }
        // No runtime: the server itself is going down, and the session is looked at when it starts again.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { self.end_if_away(session).await });
        }
    }

    /// Gives up what a session had open, unless its mount comes back in time.
    pub(crate) async fn end_if_away(&self, session: u64) {
        tokio::time::sleep(self.timeout).await;
        {
            let mut present = self.present.lock();
            if present.get(&session).is_some_and(|&count| count > 0) {
                return;
            }
            present.remove(&session);
        }
        match self.names.end_session(session).await {
            Err(fault) => tracing::warn!(session, %fault, "can't end the session of a mount"),
            Ok(unfinished) => {
                for version in unfinished {
                    self.finish(version).await;
                }
            }
        }
    }

    /// A mount died while it was writing: what reached the element is sealed, as if it had closed the file.
    async fn finish(&self, version: Unfinished) {
        let Unfinished {
            ino,
            object,
            element,
        } = version;
        let Some(url) = self.array.url(element) else {
            return;
        };
        let body = SealBody {
            inode: ino,
            path: String::new(),
            uid: 0,
            gid: 0,
            mode: 0o644,
            durable: false,
        };
        let capability = self.array.sign_for_server(element, object);
        let remote = Remote {
            element: ElementId(element),
            url: url.into(),
            object: ObjectId(object),
            capability,
        };
        let op = match self.objects.seal(&remote, &body).await {
            Ok(size) => Op::Seal(v1::Seal {
                ino,
                object,
                size,
                mtime: 0,
            }),
            Err(tidemill_client::Error::ElementRefused { status: 404, .. }) => {
                Op::Abandon(v1::Abandon { ino, object })
            }
            Err(error) => {
                tracing::warn!(ino, object, %error, "a version that a lost mount was writing can't be sealed");
                return;
            }
        };
        let request = Request {
            caller: crate::names::Caller::root(),
            ops: vec![v1::NameOp { op: Some(op) }],
            ..Request::default()
        };
        if let Err(fault) = self.names.apply(request).await {
            tracing::warn!(ino, object, %fault, "a version that a lost mount was writing can't be kept");
        }
    }
}
