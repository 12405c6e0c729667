//! gRPC service of the namespace: identifies callers, executes their requests, and sends changes to mounts. Next: `meta/src`, which
//! applies the requests.

use crate::access::Access;
use crate::clock;
use crate::lease_recall::LeaseRecalls;
use crate::locks::LockSubscription;
use crate::session::Sessions;
use futures_util::Stream;
use std::pin::Pin;
use std::sync::Arc;
use tidemill_meta::{Change, Changes, Fault, Names, NamesRequest, only_reads};
use tidemill_wire::v1;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Receiver;
use tonic::{Request, Response, Status};

/// Maximum number of invalidations that wait to be sent to a mount.
const INVALIDATIONS_MAX: usize = 1024;

/// The gRPC service of the namespace.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceService {
    pub(crate) names: Arc<dyn Names>,
    pub(crate) access: Arc<Access>,
    pub(crate) sessions: Sessions,
    pub(crate) lease_recalls: LeaseRecalls,
}

/// Converts the failure of a whole request to a gRPC status.
pub(crate) fn refused(fault: &Fault) -> Status {
    match fault {
        _ if fault.is_full() => Status::resource_exhausted(fault.to_string()),
        Fault::Malformed(_) => Status::invalid_argument(fault.to_string()),
        Fault::Corrupt(_) => Status::data_loss(fault.to_string()),
        Fault::TooMuch => Status::resource_exhausted(fault.to_string()),
        Fault::Closed => Status::unavailable(fault.to_string()),
        Fault::NotFound(_) | Fault::Misspelt(..) => Status::not_found(fault.to_string()),
        Fault::Denied(..) | Fault::ForeignLink(..) | Fault::NotOwner(_) => {
            Status::permission_denied(fault.to_string())
        }
        _ => Status::internal(fault.to_string()),
    }
}

/// Returns the answer to a request. A failure of the database is reported as the failure of the first operation, with an errno, since none
/// of the operations has taken effect.
pub(crate) fn reply(results: Result<Vec<v1::NameResult>, Fault>) -> Result<v1::NameReply, Status> {
    let results = match results {
        Err(Fault::Closed) => return Err(refused(&Fault::Closed)),
        Err(fault) if fault.is_database_failure() => vec![v1::NameResult {
            result: Some(v1::name_result::Result::Error((&fault).into())),
        }],
        results => results.map_err(|fault| refused(&fault))?,
    };
    Ok(v1::NameReply { results })
}

type Invalidations = Pin<Box<dyn Stream<Item = Result<v1::Invalidation, Status>> + Send>>;

#[tonic::async_trait]
impl v1::names_server::Names for NamespaceService {
    async fn apply(
        &self,
        request: Request<v1::NameRequest>,
    ) -> Result<Response<v1::NameReply>, Status> {
        let peer = self.access.peer(&request)?;
        let message = request.get_ref();
        if peer.read_only() && !message.ops.iter().all(only_reads) {
            return Err(Status::permission_denied("this token may only read"));
        }
        let caller = self.access.caller_of(&peer, message.credentials.as_ref())?;
        let results = self
            .lease_recalls
            .apply(NamesRequest::of(caller, request.into_inner()))
            .await;
        reply(results).map(Response::new)
    }

    async fn reserve(
        &self,
        request: Request<v1::ReserveRequest>,
    ) -> Result<Response<v1::ReserveReply>, Status> {
        let caller = self.access.caller(&request, None)?;
        let v1::ReserveRequest { inodes, objects } = request.into_inner();
        let ids = self.names.reserve(caller, inodes, objects).await;
        let (first_inode, first_object) = ids.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::ReserveReply {
            first_inode,
            first_object,
        }))
    }

    type WatchStream = Invalidations;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Invalidations>, Status> {
        self.access.need_administrator(&request)?;
        let watched = watch(
            &*self.names,
            &self.lease_recalls,
            &self.sessions,
            request.into_inner(),
        );
        let receiver = watched.await.map_err(|fault| refused(&fault))?;
        Ok(Response::new(Box::pin(
            tokio_stream::wrappers::ReceiverStream::new(receiver),
        )))
    }
}

/// Opens a mount's stream of changes. The first message of the stream contains the mount's session.
pub(crate) async fn watch(
    names: &dyn Names,
    lease_recalls: &LeaseRecalls,
    sessions: &Sessions,
    request: v1::WatchRequest,
) -> Result<Receiver<Result<v1::Invalidation, Status>>, Fault> {
    // The subscription precedes the new session, so that no change is missed between them.
    let mut changes = names.changes();
    let v1::WatchRequest {
        session,
        host,
        path,
    } = request;
    let session = match session {
        0 => names.new_session().await?,
        known => known,
    };
    changes.leave_out(session);
    let (sender, receiver) = tokio::sync::mpsc::channel(INVALIDATIONS_MAX);
    let presence = sessions.arrive(v1::Mount {
        session,
        host,
        path,
        since: clock::now_ns(),
    });
    let lease_recalls = lease_recalls.clone();
    tokio::spawn(async move {
        let first = v1::Invalidation {
            session,
            ..v1::Invalidation::default()
        };
        let news = lease_recalls.locks().listen(session);
        if sender.send(Ok(first)).await.is_ok() {
            let _reachable = lease_recalls.reach(session, sender.clone());
            forward(changes, news, &sender).await;
        }
        drop(presence);
    });
    Ok(receiver)
}

async fn forward(
    mut changes: Changes,
    mut news: LockSubscription,
    sender: &tokio::sync::mpsc::Sender<Result<v1::Invalidation, Status>>,
) {
    loop {
        let (mut received, lock) = tokio::select! {
            received = changes.next() => (Some(received), None),
            lock = news.next() => match lock {
                // A mount that gets a lock, or is asked for a receipt, receives all earlier changes first.
                Some(lock) => (changes.next_now(), Some(lock)),
                None => return,
            },
            () = sender.closed() => return,
        };
        while let Some(changed) = received {
            let messages = match changed {
                Ok(changed) => changed.changes.iter().filter_map(invalidation).collect(),
                Err(RecvError::Lagged(_)) => {
                    vec![v1::Invalidation {
                        everything: true,
                        ..v1::Invalidation::default()
                    }]
                }
                Err(RecvError::Closed) => return,
            };
            for message in messages {
                if sender.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            received = lock.as_ref().and_then(|_| changes.next_now());
        }
        if let Some(message) = lock
            && sender.send(Ok(message)).await.is_err()
        {
            return;
        }
    }
}

fn invalidation(change: &Change) -> Option<v1::Invalidation> {
    match change {
        Change::Vnode(ino) => Some(v1::Invalidation {
            ino: *ino,
            ..v1::Invalidation::default()
        }),
        Change::Entry(parent, name) => Some(v1::Invalidation {
            parent: *parent,
            name: name.clone(),
            ..v1::Invalidation::default()
        }),
        Change::Sealed(_) | Change::Closed(_) | Change::Moved | Change::Rights(_) => None,
    }
}
