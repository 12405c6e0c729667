//! Remotes: names for addresses of stores outside of the cluster. Clients access the stores themselves, with keys that the cluster never
//! sees.

use crate::access::{Access, aside};
use crate::attached::{self, AttachRefusal, StoreScans};
use crate::clock;
use crate::namespace_service::refused;
use std::sync::Arc;
use tidemill_meta::{Connection, Fault, SqliteNames, remotes};
use tidemill_wire::v1;
use tonic::{Request, Response, Status};

/// Maximum number of remotes in the cluster.
const REMOTES_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 64;
const URI_BYTES_MAX: usize = 2000;

/// gRPC service of remotes.
#[derive(Clone, Debug)]
pub(crate) struct RemoteService {
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) access: Arc<Access>,
    pub(crate) looks: Arc<StoreScans>,
}

/// Checks that the name of a remote is valid in paths and in file names, and that the address has no user, password or key, since all users
/// may read the address.
fn checked(asked: &v1::AddRemoteRequest) -> Result<(), Status> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = &asked.name;
    if name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.starts_with('.')
        || !name.chars().all(allowed)
    {
        return Err(Status::invalid_argument(format!(
            "{name:?} is not a name of a remote: give up to 64 letters, digits, dots, dashes and underscores, not a dot first"
        )));
    }
    let uri = &asked.uri;
    let host = uri.split_once("://").map(|(_, rest)| rest);
    let host = host.and_then(|rest| rest.split(['/', '?']).next());
    if host.is_none() || uri.len() > URI_BYTES_MAX || uri.chars().any(char::is_control) {
        return Err(Status::invalid_argument(
            "the remote's address is invalid: give scheme://…, with at most 2000 bytes",
        ));
    }
    if host.is_some_and(|host| host.contains('@')) {
        return Err(Status::invalid_argument(
            "the remote's address contains a user or password, which all users could read: put them into the key file",
        ));
    }
    Ok(())
}

#[tonic::async_trait]
impl v1::remotes_server::Remotes for RemoteService {
    async fn add(
        &self,
        request: Request<v1::AddRemoteRequest>,
    ) -> Result<Response<v1::Remote>, Status> {
        self.access.need_administrator(&request)?;
        let uid = self.access.peer(&request)?.uid;
        let asked = request.into_inner();
        checked(&asked)?;
        let remote = v1::Remote {
            name: asked.name,
            uri: asked.uri,
            read_only: asked.read_only,
            uid,
            added: clock::now_ns(),
            attachment: None,
        };
        let row = remote.clone();
        let added = self.names.database().write(move |db| {
            if remotes::one(db, &row.name)?.is_some() {
                return Ok(Err(
                    "a remote of this name exists already: remove it first, or give another name",
                ));
            }
            if remotes::all(db)?.len() >= REMOTES_MAX {
                return Ok(Err(
                    "there are 256 remotes, which is the maximum: remove some",
                ));
            }
            remotes::insert(db, &row)?;
            Ok(Ok(()))
        });
        let added = added.await.map_err(|fault| refused(&fault))?;
        added.map_err(Status::already_exists)?;
        tracing::info!(remote = remote.name, by = uid, "a remote was added");
        Ok(Response::new(remote))
    }

    async fn list(
        &self,
        request: Request<v1::ListRemotesRequest>,
    ) -> Result<Response<v1::ListRemotesReply>, Status> {
        let administrator = self.access.peer(&request)?.administrator;
        let all = self.names.database().read(remotes::all);
        let mut remotes = all.map_err(|fault| refused(&fault))?;
        if !administrator {
            // The example contains the name of a file.
            let attached = remotes.iter_mut().filter_map(|one| one.attachment.as_mut());
            attached.for_each(|attachment| attachment.example.clear());
        }
        Ok(Response::new(v1::ListRemotesReply { remotes }))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveRemoteRequest>,
    ) -> Result<Response<v1::Remote>, Status> {
        self.access.need_administrator(&request)?;
        let name = request.into_inner().name;
        let unknown = Status::not_found(format!(
            "remote {name} does not exist: `tidemill remote list`"
        ));
        let removed = self.names.database().write(move |db| {
            if let Some(attachment) = remotes::attachment(db, &name)? {
                return Ok(Err(AttachRefusal::Attached(name, attachment.directory)));
            }
            let found = remotes::one(db, &name)?;
            remotes::remove(db, &name)?;
            Ok(Ok(found))
        });
        let removed = answered(removed.await)?.into_inner();
        Ok(Response::new(removed.ok_or(unknown)?))
    }

    async fn attach(
        &self,
        request: Request<v1::AttachRemoteRequest>,
    ) -> Result<Response<v1::Remote>, Status> {
        self.access.need_administrator(&request)?;
        let v1::AttachRemoteRequest { name, attachment } = request.into_inner();
        answered(attached::attach(&self.names, name, attachment.unwrap_or_default()).await)
    }

    async fn detach(
        &self,
        request: Request<v1::DetachRemoteRequest>,
    ) -> Result<Response<v1::Remote>, Status> {
        self.access.need_administrator(&request)?;
        let name = request.into_inner().name;
        answered(attached::detach((&self.names, &self.looks), name).await)
    }

    async fn refresh(
        &self,
        request: Request<v1::RefreshRemoteRequest>,
    ) -> Result<Response<v1::Remote>, Status> {
        self.access.need_administrator(&request)?;
        answered(attached::refresh(&self.names, request.into_inner().name).await)
    }

    async fn attached(
        &self,
        request: Request<v1::AttachedRequest>,
    ) -> Result<Response<v1::AttachedReply>, Status> {
        self.access.need_administrator(&request)?;
        let node = request.into_inner().node;
        let remotes = self.names.database().read(|db| attached::of_node(db, node));
        let remotes = remotes.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::AttachedReply { remotes }))
    }

    async fn look(
        &self,
        request: Request<v1::LookRequest>,
    ) -> Result<Response<v1::LookReply>, Status> {
        self.access.need_administrator(&request)?;
        let request = request.into_inner();
        let work = |db: &Connection| attached::look((db, &self.looks), &request);
        let differ = answered(aside(|| self.names.database().read(work)))?.into_inner();
        Ok(Response::new(v1::LookReply { differ }))
    }

    async fn follow(
        &self,
        request: Request<v1::FollowRequest>,
    ) -> Result<Response<v1::FollowReply>, Status> {
        self.access.need_administrator(&request)?;
        answered(attached::follow((&self.names, &self.looks), request.into_inner()).await)?;
        Ok(Response::new(v1::FollowReply {}))
    }

    async fn missing(
        &self,
        request: Request<v1::MissingRequest>,
    ) -> Result<Response<v1::MissingReply>, Status> {
        self.access.need_administrator(&request)?;
        let request = request.into_inner();
        let work = |db: &Connection| attached::missing((db, &self.looks), &request);
        answered(aside(|| self.names.database().read(work)))
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveReply>, Status> {
        self.access.need_administrator(&request)?;
        answered(attached::leave((&self.names, &self.looks), request.into_inner()).await)?;
        Ok(Response::new(v1::LeaveReply {}))
    }

    async fn looked(
        &self,
        request: Request<v1::LookedRequest>,
    ) -> Result<Response<v1::LookedReply>, Status> {
        self.access.need_administrator(&request)?;
        answered(attached::looked((&self.names, &self.looks), request.into_inner()).await)?;
        Ok(Response::new(v1::LookedReply {}))
    }
}

/// Converts the result of a request about a remote to a gRPC answer.
fn answered<T>(came: Result<Result<T, AttachRefusal>, Fault>) -> Result<Response<T>, Status> {
    let came = came.map_err(|fault| refused(&fault))?;
    came.map(Response::new).map_err(|refusal| {
        let text = refusal.to_string();
        match refusal {
            AttachRefusal::NoRemote(_) | AttachRefusal::NotAttached(_) => Status::not_found(text),
            AttachRefusal::Look => Status::aborted(text),
            AttachRefusal::Attached(..) => Status::already_exists(text),
            AttachRefusal::Directory(_) | AttachRefusal::Nested(..) | AttachRefusal::Page => {
                Status::invalid_argument(text)
            }
        }
    })
}
