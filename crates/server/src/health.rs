//! gRPC service of health: reports unavailable files, files that lack replicas, repairs in progress, and scrubs.

use crate::access::Access;
use crate::clock;
use crate::cluster::Cluster;
use crate::cluster::conditions::ReachableNodes;
use crate::namespace_service::refused;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_meta::commit::Database;
use tidemill_meta::holdings::objects_below;
use tidemill_meta::placement::{nodes, scrub};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Connection, Fault, SqliteNames, health, parts, settings};
use tidemill_wire::v1;
use tonic::{Request, Response, Status};

/// Default number of files whose names are reported, and (`PAGE`) maximum number per page.
const FEW: u32 = 10;
const PAGE: u32 = 1000;

/// The gRPC service of health.
#[derive(Clone, Debug)]
pub(crate) struct HealthService {
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) access: Arc<Access>,
}

/// Nodes that answer or are suspended, and nodes that were removed from the cluster.
struct AnsweringNodes {
    presence: ReachableNodes,
    removed: BTreeSet<u32>,
}

impl HealthService {
    fn database(&self) -> &Arc<Database> {
        self.names.database()
    }

    /// Returns the nodes to scrub: the requested node, or all nodes that store data.
    fn nodes(&self, named: Option<u32>) -> Result<Vec<v1::Node>, Status> {
        let mut nodes = self.cluster.nodes();
        nodes.retain(|one| match named {
            Some(named) => one.node == named,
            None => one.role == "store",
        });
        match (named, nodes.is_empty()) {
            (Some(named), true) => Err(Status::not_found(format!(
                "node {named} does not exist; see `tidemill status`"
            ))),
            _ => Ok(nodes),
        }
    }
}

#[tonic::async_trait]
impl v1::health_server::Health for HealthService {
    async fn show(
        &self,
        request: Request<v1::HealthRequest>,
    ) -> Result<Response<v1::HealthReply>, Status> {
        let administrator = self.access.peer(&request)?.administrator;
        let request = request.into_inner();
        let (database, shared) = (self.database().clone(), self.names.shared().clone());
        let known = AnsweringNodes {
            presence: self.cluster.presence(),
            removed: shared.nodes.removed(),
        };
        let look = move || database.read(|db| show(db, &shared, &request, &known));
        let looked = tokio::task::spawn_blocking(look).await;
        let mut reply = looked
            .map_err(|_| refused(&Fault::Closed))?
            .map_err(|fault| refused(&fault))?;
        if !administrator {
            reply.ailing.clear();
        }
        Ok(Response::new(reply))
    }

    async fn scrub(
        &self,
        request: Request<v1::ScrubRequest>,
    ) -> Result<Response<v1::ScrubReply>, Status> {
        self.access.need_administrator(&request)?;
        let v1::ScrubRequest { path, node } = request.into_inner();
        let nodes = self.nodes(node)?;
        let now = clock::now_ns();
        let mut objects = 0;
        let mut reading: BTreeSet<u32> = nodes.iter().map(|one| one.node).collect();
        let asked = if path.is_empty() {
            let all: Vec<u32> = reading.iter().copied().collect();
            let ask = move |db: &Connection| scrub::ask_for_all(db, &all, now);
            self.database().write(ask).await
        } else {
            let names = self.names.clone();
            let find = move || names.database().read(|db| lists(db, names.shared(), &path));
            let found = tokio::task::spawn_blocking(find).await;
            let lists = found.map_err(|_| refused(&Fault::Closed))?;
            let mut lists = lists.map_err(|fault| refused(&fault))?;
            lists.retain(|listed, _| node.is_none_or(|node| node == *listed));
            objects = lists.values().map(|list| list.len() as u64).sum();
            reading = lists.keys().copied().collect();
            scrub::ask_for(self.database(), lists.into_iter().collect(), now).await
        };
        let up: BTreeSet<u32> = self.cluster.up().into_iter().collect();
        Ok(Response::new(v1::ScrubReply {
            request: asked.map_err(|fault| refused(&fault))?,
            offline: reading.difference(&up).copied().collect(),
            nodes: reading.into_iter().collect(),
            objects,
        }))
    }

    async fn scrubs(
        &self,
        request: Request<v1::ScrubsRequest>,
    ) -> Result<Response<v1::ScrubsReply>, Status> {
        self.access.need_administrator(&request)?;
        let request = request.into_inner().request;
        let look = |db: &Connection| {
            Ok(v1::ScrubsReply {
                scrubs: scrub::list(db, Some(request))?,
                corrupt: health::corrupt(db, (0, FEW))?,
            })
        };
        let reply = self.database().read(look);
        Ok(Response::new(reply.map_err(|fault| refused(&fault))?))
    }
}

/// Returns the objects of the files at and below a path, by the nodes that have replicas of the objects, intact or corrupt.
fn lists(
    db: &Connection,
    shared: &NamesShared,
    path: &[u8],
) -> Result<BTreeMap<u32, Vec<u64>>, Fault> {
    let mut lists: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut objects = Vec::new();
    for object in objects_below(db, shared, path)? {
        match parts::parts(db, object)? {
            Some((_, parts)) => objects.extend(parts.iter().map(|part| part.object)),
            None => objects.push(object),
        }
    }
    for object in objects {
        for node in health::holders(db, object)? {
            lists.entry(node).or_default().push(object);
        }
    }
    Ok(lists)
}

fn show(
    db: &Connection,
    shared: &NamesShared,
    request: &v1::HealthRequest,
    known: &AnsweringNodes,
) -> Result<v1::HealthReply, Fault> {
    let mut reply = health::counted(db, clock::now_ns())?;
    reply.unavailable = unavailable(db, &known.presence, &known.removed)?;
    reply.lost = health::lost_for_good(db, &known.removed)?;
    reply.bytes_per_sec = shared.copied_bytes_per_sec().unwrap_or(0);
    reply.scrubs = scrub::list(db, None)?;
    reply.failed_nodes = nodes::lost(db)?;
    let unavailable = |page| match may_be_offline(db, &known.presence)? {
        true => health::offline(db, &reached(&known.presence, &known.removed), page),
        false => Ok(Vec::new()),
    };
    let lists: [(&str, &AilingQuery<'_>); 4] = [
        ("lost", &|page| health::lost(db, &known.removed, page)),
        ("unavailable", &unavailable),
        ("corrupt", &|page| health::corrupt(db, page)),
        ("short", &|page| health::short(db, page)),
    ];
    for (kind, list) in lists {
        if request.kind.is_empty() {
            reply.ailing.extend(list((0, FEW))?);
        } else if request.kind == kind {
            let page = list((request.after, PAGE))?;
            reply.more = page.len() as u64 >= u64::from(PAGE);
            reply.ailing = page;
        }
    }
    Ok(reply)
}

type AilingQuery<'a> = dyn Fn((u64, u32)) -> Result<Vec<v1::Ailing>, Fault> + 'a;

/// Returns the number of files whose replicas are only on nodes that do not answer. The function reads all versions if any node may be
/// offline.
pub(crate) fn unavailable(
    db: &Connection,
    presence: &ReachableNodes,
    removed: &BTreeSet<u32>,
) -> Result<u64, Fault> {
    if !may_be_offline(db, presence)? {
        return Ok(0);
    }
    health::unavailable(db, &reached(presence, removed))
}

/// Returns the nodes whose files are not unavailable: a removed node's files are lost.
fn reached(presence: &ReachableNodes, removed: &BTreeSet<u32>) -> Vec<u32> {
    let nodes = presence.present.iter().chain(removed);
    nodes.copied().collect()
}

/// Whether any node may be offline. A recovered database does not know the nodes whose data was not given for the recovery.
fn may_be_offline(db: &Connection, presence: &ReachableNodes) -> Result<bool, Fault> {
    Ok(presence.any_offline || settings::rebuilt(db)?.is_some())
}
