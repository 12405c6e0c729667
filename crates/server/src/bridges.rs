//! Addresses of stores outside of the cluster, by name. Clients access the stores themselves, with keys that the cluster never sees. This
//! module writes the table of bridges.

use crate::access::{Access, aside};
use crate::bound::{self, Looks, Refusal};
use crate::clock;
use crate::names::{Fault, SqliteNames};
use crate::namespace_service::refused;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;
use tidemill_wire::v1;
use tonic::{Request, Response, Status};

/// Maximum number of bridges.
const BRIDGES_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 64;
const URI_BYTES_MAX: usize = 2000;

/// gRPC service of bridges.
#[derive(Clone, Debug)]
pub(crate) struct BridgeService {
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) access: Arc<Access>,
    pub(crate) looks: Arc<Looks>,
}

fn read(row: &Row<'_>) -> rusqlite::Result<v1::Bridge> {
    Ok(v1::Bridge {
        name: row.get(0)?,
        uri: row.get(1)?,
        read_only: row.get(2)?,
        uid: row.get(3)?,
        added: row.get(4)?,
        binding: None,
    })
}

/// Returns all bridges, with their bindings.
pub(crate) fn all(db: &Connection) -> Result<Vec<v1::Bridge>, Fault> {
    let mut statement = db.prepare_cached("SELECT * FROM bridge ORDER BY name")?;
    let rows = statement.query_map([], read)?;
    let mut bridges = rows.collect::<Result<Vec<_>, _>>()?;
    let mut bindings = bound::all(db)?;
    for bridge in &mut bridges {
        bridge.binding = bindings.remove(&bridge.name);
    }
    Ok(bridges)
}

pub(crate) fn one(db: &Connection, name: &str) -> Result<Option<v1::Bridge>, Fault> {
    let mut statement = db.prepare_cached("SELECT * FROM bridge WHERE name = ?1")?;
    Ok(statement.query_row([name], read).optional()?)
}

/// Checks that a name is one component of a path and of a file's name, and that an address has no user, password or key, since all users
/// may read it here.
fn checked(asked: &v1::AddBridgeRequest) -> Result<(), Status> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = &asked.name;
    if name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.starts_with('.')
        || !name.chars().all(allowed)
    {
        return Err(Status::invalid_argument(format!(
            "{name:?} is no name of a bridge: give up to 64 letters, digits, dots, dashes and underscores, not a dot first"
        )));
    }
    let uri = &asked.uri;
    let host = uri.split_once("://").map(|(_, rest)| rest);
    let host = host.and_then(|rest| rest.split(['/', '?']).next());
    if host.is_none() || uri.len() > URI_BYTES_MAX || uri.chars().any(char::is_control) {
        return Err(Status::invalid_argument(
            "the bridge's address is none: give scheme://…, of 2000 bytes at most",
        ));
    }
    if host.is_some_and(|host| host.contains('@')) {
        return Err(Status::invalid_argument(
            "the bridge's address has a user or password in it, which all would read: put them into the file of keys",
        ));
    }
    Ok(())
}

#[tonic::async_trait]
impl v1::bridges_server::Bridges for BridgeService {
    async fn add(
        &self,
        request: Request<v1::AddBridgeRequest>,
    ) -> Result<Response<v1::Bridge>, Status> {
        self.access.need_administrator(&request)?;
        let uid = self.access.peer(&request)?.uid;
        let asked = request.into_inner();
        checked(&asked)?;
        let bridge = v1::Bridge {
            name: asked.name,
            uri: asked.uri,
            read_only: asked.read_only,
            uid,
            added: clock::now_ns(),
            binding: None,
        };
        let row = bridge.clone();
        let added = self.names.database().write(move |db| {
            if one(db, &row.name)?.is_some() {
                return Ok(Err(
                    "there is a bridge of this name: remove it first, or give another name",
                ));
            }
            if all(db)?.len() >= BRIDGES_MAX {
                return Ok(Err(
                    "there are 256 bridges, which is as many as may be: remove some",
                ));
            }
            let mut insert = db.prepare_cached("INSERT INTO bridge VALUES (?1, ?2, ?3, ?4, ?5)")?;
            insert.execute(params![
                row.name,
                row.uri,
                row.read_only,
                row.uid,
                row.added
            ])?;
            Ok(Ok(()))
        });
        let added = added.await.map_err(|fault| refused(&fault))?;
        added.map_err(Status::already_exists)?;
        tracing::info!(bridge = bridge.name, by = uid, "a bridge was added");
        Ok(Response::new(bridge))
    }

    async fn list(
        &self,
        request: Request<v1::ListBridgesRequest>,
    ) -> Result<Response<v1::ListBridgesReply>, Status> {
        let administrator = self.access.peer(&request)?.administrator;
        let bridges = self.names.database().read(all);
        let mut bridges = bridges.map_err(|fault| refused(&fault))?;
        if !administrator {
            // The example contains the name of a file.
            let bound = bridges.iter_mut().filter_map(|one| one.binding.as_mut());
            bound.for_each(|binding| binding.example.clear());
        }
        Ok(Response::new(v1::ListBridgesReply { bridges }))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveBridgeRequest>,
    ) -> Result<Response<v1::Bridge>, Status> {
        self.access.need_administrator(&request)?;
        let name = request.into_inner().name;
        let unknown = Status::not_found(format!(
            "bridge {name} does not exist: `tidemill bridge list`"
        ));
        let removed = self.names.database().write(move |db| {
            if let Some(binding) = bound::one(db, &name)? {
                return Ok(Err(Refusal::Bound(name, binding.directory)));
            }
            let found = one(db, &name)?;
            db.prepare_cached("DELETE FROM bridge WHERE name = ?1")?
                .execute([&name])?;
            Ok(Ok(found))
        });
        let removed = answered(removed.await)?.into_inner();
        Ok(Response::new(removed.ok_or(unknown)?))
    }

    async fn bind(
        &self,
        request: Request<v1::BindBridgeRequest>,
    ) -> Result<Response<v1::Bridge>, Status> {
        self.access.need_administrator(&request)?;
        let v1::BindBridgeRequest { name, binding } = request.into_inner();
        answered(bound::bind(&self.names, name, binding.unwrap_or_default()).await)
    }

    async fn unbind(
        &self,
        request: Request<v1::UnbindBridgeRequest>,
    ) -> Result<Response<v1::Bridge>, Status> {
        self.access.need_administrator(&request)?;
        let name = request.into_inner().name;
        answered(bound::unbind((&self.names, &self.looks), name).await)
    }

    async fn refresh(
        &self,
        request: Request<v1::RefreshBridgeRequest>,
    ) -> Result<Response<v1::Bridge>, Status> {
        self.access.need_administrator(&request)?;
        answered(bound::refresh(&self.names, request.into_inner().name).await)
    }

    async fn bound(
        &self,
        request: Request<v1::BoundRequest>,
    ) -> Result<Response<v1::BoundReply>, Status> {
        self.access.need_administrator(&request)?;
        let node = request.into_inner().node;
        let bridges = self.names.database().read(|db| bound::of_node(db, node));
        let bridges = bridges.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::BoundReply { bridges }))
    }

    async fn look(
        &self,
        request: Request<v1::LookRequest>,
    ) -> Result<Response<v1::LookReply>, Status> {
        self.access.need_administrator(&request)?;
        let request = request.into_inner();
        let work = |db: &Connection| bound::look((db, &self.looks), &request);
        let differ = answered(aside(|| self.names.database().read(work)))?.into_inner();
        Ok(Response::new(v1::LookReply { differ }))
    }

    async fn follow(
        &self,
        request: Request<v1::FollowRequest>,
    ) -> Result<Response<v1::FollowReply>, Status> {
        self.access.need_administrator(&request)?;
        answered(bound::follow((&self.names, &self.looks), request.into_inner()).await)?;
        Ok(Response::new(v1::FollowReply {}))
    }

    async fn missing(
        &self,
        request: Request<v1::MissingRequest>,
    ) -> Result<Response<v1::MissingReply>, Status> {
        self.access.need_administrator(&request)?;
        let request = request.into_inner();
        let work = |db: &Connection| bound::missing((db, &self.looks), &request);
        answered(aside(|| self.names.database().read(work)))
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveReply>, Status> {
        self.access.need_administrator(&request)?;
        answered(bound::leave((&self.names, &self.looks), request.into_inner()).await)?;
        Ok(Response::new(v1::LeaveReply {}))
    }

    async fn looked(
        &self,
        request: Request<v1::LookedRequest>,
    ) -> Result<Response<v1::LookedReply>, Status> {
        self.access.need_administrator(&request)?;
        answered(bound::looked((&self.names, &self.looks), request.into_inner()).await)?;
        Ok(Response::new(v1::LookedReply {}))
    }
}

/// Converts the result of a request to an answer.
fn answered<T>(came: Result<Result<T, Refusal>, Fault>) -> Result<Response<T>, Status> {
    let came = came.map_err(|fault| refused(&fault))?;
    came.map(Response::new).map_err(|refusal| {
        let text = refusal.to_string();
        match refusal {
            Refusal::NoBridge(_) | Refusal::NotBound(_) => Status::not_found(text),
            Refusal::Look => Status::aborted(text),
            Refusal::Bound(..) => Status::already_exists(text),
            Refusal::Directory(_) | Refusal::Nested(..) | Refusal::Page => {
                Status::invalid_argument(text)
            }
        }
    })
}
