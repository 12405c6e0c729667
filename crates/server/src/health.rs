//! gRPC service of health: reports unavailable files, files that lack replicas, repairs in progress, and scrubs.

use crate::access::Access;
use crate::clock;
use crate::cluster::Cluster;
use crate::cluster::conditions::ReachableNodes;
use crate::names::burst::sum_of;
use crate::names::commit::Database;
use crate::names::holdings::objects_below;
use crate::names::parts;
use crate::names::replicas::{COMING, CURRENT};
use crate::names::shared::NamesShared;
use crate::names::vnode::NO_NODE;
use crate::names::{Fault, SqliteNames};
use crate::namespace_service::refused;
use crate::rebuild;
use crate::scrub;
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_model::replicas::REPLICAS_MAX;
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
            removed: shared.leaving.removed(),
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
                corrupt: corrupt(db, 0, FEW)?,
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
    let sql = "SELECT node FROM held WHERE object = ?1 \
               UNION SELECT node FROM replica WHERE object = ?1 AND state = ?2";
    let mut holders = db.prepare_cached(sql)?;
    let mut objects = Vec::new();
    for object in objects_below(db, shared, path)? {
        match parts::parts(db, object)? {
            Some((_, parts)) => objects.extend(parts.iter().map(|part| part.object)),
            None => objects.push(object),
        }
    }
    for object in objects {
        let rows = holders.query_map(params![object.cast_signed(), CURRENT], |row| row.get(0))?;
        for node in rows.collect::<Result<Vec<u32>, _>>()? {
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
    let mut reply = counted(db, clock::now_ns())?;
    reply.unavailable = unavailable(db, &known.presence, &known.removed)?;
    reply.lost = lost_for_good(db, &known.removed)?;
    reply.bytes_per_sec = shared.copied_bytes_per_sec().unwrap_or(0);
    reply.scrubs = scrub::list(db, None)?;
    let mut nodes = db.prepare_cached("SELECT node FROM lost WHERE back = 0")?;
    let nodes = nodes.query_map([], |row| row.get(0))?;
    reply.failed_nodes = nodes.collect::<Result<_, _>>()?;
    let lists: [(&str, &AilingQuery<'_>); 4] = [
        ("lost", &|after, limit| {
            without_replica(db, known, true, (after, limit))
        }),
        ("unavailable", &|after, limit| {
            without_replica(db, known, false, (after, limit))
        }),
        ("corrupt", &|after, limit| corrupt(db, after, limit)),
        ("short", &|after, limit| short(db, after, limit)),
    ];
    for (kind, list) in lists {
        if request.kind.is_empty() {
            reply.ailing.extend(list(0, FEW)?);
        } else if request.kind == kind {
            let page = list(request.after, PAGE)?;
            reply.more = page.len() as u64 >= u64::from(PAGE);
            reply.ailing = page;
        }
    }
    Ok(reply)
}

type AilingQuery<'a> = dyn Fn(u64, u32) -> Result<Vec<v1::Ailing>, Fault> + 'a;

/// Returns an SQL condition for versions with bytes that have an intact replica, but no intact replica on these nodes.
fn nowhere(present: &[u32]) -> String {
    let present = listed(present);
    let intact = |place: &str| {
        format!(
            "NOT EXISTS (SELECT 1 FROM corruption WHERE corruption.object = held.object AND corruption.node = {place})"
        )
    };
    let (first, other) = (intact("held.node"), intact("replica.node"));
    let somewhere = |within: &str| {
        format!(
            "(held.node {within} ({present}) AND {first} OR EXISTS (SELECT 1 FROM replica WHERE replica.object = held.object \
             AND state = {CURRENT} AND replica.node {within} ({present}) AND {other}))"
        )
    };
    format!(
        "(held.node != {NO_NODE} AND held.size > 0 AND NOT {} AND {})",
        somewhere("IN"),
        somewhere("NOT IN")
    )
}

/// Returns node ids as a list for SQL.
fn listed<'a>(nodes: impl IntoIterator<Item = &'a u32>) -> String {
    let nodes: Vec<String> = nodes.into_iter().map(ToString::to_string).collect();
    nodes.join(",")
}

/// Returns an SQL condition for versions whose replicas were only on removed nodes (`migrations::remove` has put them on the list).
fn only_on_removed(removed: &BTreeSet<u32>) -> String {
    format!(
        "(held.node IN ({}) AND EXISTS (SELECT 1 FROM short WHERE short.object = held.object AND has = 0))",
        listed(removed)
    )
}

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
    let mut reached = presence.present.clone();
    reached.extend(removed);
    let sql = format!(
        "SELECT count(DISTINCT version) FROM held WHERE removed = 0 AND {}",
        nowhere(&reached)
    );
    let count: i64 = db.query_row(&sql, [], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

/// Whether any node may be offline. A recovered database does not know the nodes whose data was not given for the recovery.
fn may_be_offline(db: &Connection, presence: &ReachableNodes) -> Result<bool, Fault> {
    Ok(presence.any_offline || rebuild::noted_at(db)?.is_some())
}

/// Returns the number of files whose replicas were only on removed nodes.
pub(crate) fn lost_for_good(db: &Connection, removed: &BTreeSet<u32>) -> Result<u64, Fault> {
    if removed.is_empty() {
        return Ok(0);
    }
    let sql = format!(
        "SELECT count(DISTINCT held.version) FROM short CROSS JOIN held ON held.object = short.object \
         WHERE short.has = 0 AND held.removed = 0 AND {}",
        only_on_removed(removed)
    );
    let count: i64 = db.query_row(&sql, [], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

/// SQL expression for the number of intact replicas of a version, without replicas that are being created.
const GOOD: &str = "((SELECT count(*) FROM replica WHERE replica.object = held.object AND state = 1) + 1 \
     - (SELECT count(*) FROM corruption WHERE corruption.object = held.object))";

/// Returns the numbers of missing replicas, corrupt replicas and repairs in progress.
pub(crate) fn counted(db: &Connection, now: i64) -> Result<v1::HealthReply, Fault> {
    let count = |sql: &str| -> Result<u64, Fault> {
        let mut statement = db.prepare_cached(sql)?;
        let count: i64 = statement.query_row([], |row| row.get(0))?;
        Ok(count.cast_unsigned())
    };
    Ok(v1::HealthReply {
        short: count(&format!(
            "SELECT count(*) FROM short JOIN held USING (object) WHERE removed = 0 AND replicas > 1 AND has < {REPLICAS_MAX}"
        ))?,
        resting: count(&format!(
            "SELECT count(*) FROM short JOIN held USING (object) WHERE removed = 0 AND replicas > 1 AND has < {REPLICAS_MAX} \
             AND at > {now} AND NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = short.object AND state = {COMING})"
        ))?,
        corrupt: count("SELECT count(*) FROM corruption")?,
        all_corrupt: count(&format!(
            "SELECT count(*) FROM held WHERE object IN (SELECT object FROM corruption) AND {GOOD} < 1"
        ))?,
        repairing: count(&format!(
            "SELECT (SELECT count(*) FROM replica WHERE state = {COMING}) + (SELECT count(*) FROM corruption WHERE repairing = 1)"
        ))?,
        bytes_left: count(&format!(
            "SELECT {} FROM short JOIN held USING (object) WHERE removed = 0 AND has < {REPLICAS_MAX}",
            sum_of(&format!("size * max(replicas - max({GOOD}, 0), 0)"))
        ))?,
        ..v1::HealthReply::default()
    })
}

fn ailing(
    db: &Connection,
    kind: &str,
    sql: &str,
    after: u64,
    limit: u32,
) -> Result<Vec<v1::Ailing>, Fault> {
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![after.cast_signed(), limit], |row| {
        let nodes: String = row.get(3)?;
        Ok(v1::Ailing {
            kind: kind.into(),
            object: row.get::<_, i64>(0)?.cast_unsigned(),
            path: row.get(1)?,
            size: row.get::<_, i64>(2)?.cast_unsigned(),
            nodes: nodes
                .split(',')
                .filter_map(|one| one.parse().ok())
                .collect(),
            what: row.get(4)?,
            repairing: row.get(5)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// SQL expression for the list of all nodes that store a version or once stored it.
const HOLDERS: &str = "(held.node || coalesce((SELECT ',' || group_concat(node) FROM replica \
     WHERE replica.object = held.object), ''))";

/// Returns the files that are only on removed nodes, or with `removed` unset on nodes that do not answer.
fn without_replica(
    db: &Connection,
    known: &AnsweringNodes,
    removed: bool,
    (after, limit): (u64, u32),
) -> Result<Vec<v1::Ailing>, Fault> {
    let (kind, what, condition) = match removed {
        true if known.removed.is_empty() => return Ok(Vec::new()),
        true => (
            "lost",
            "its nodes were removed from the cluster",
            only_on_removed(&known.removed),
        ),
        false if !may_be_offline(db, &known.presence)? => return Ok(Vec::new()),
        false => {
            let mut reached = known.presence.present.clone();
            reached.extend(&known.removed);
            ("unavailable", "its nodes do not answer", nowhere(&reached))
        }
    };
    let sql = format!(
        "SELECT object, path, size, {HOLDERS}, '{what}', 0 FROM held \
         WHERE object > ?1 AND removed = 0 AND {condition} ORDER BY object LIMIT ?2"
    );
    ailing(db, kind, &sql, after, limit)
}

fn corrupt(db: &Connection, after: u64, limit: u32) -> Result<Vec<v1::Ailing>, Fault> {
    let sql = format!(
        "SELECT held.object, path, size, group_concat(corruption.node), \
         what || iif({GOOD} < 1, ', and no other replica exists', ''), max(repairing) \
         FROM corruption CROSS JOIN held ON held.object = corruption.object WHERE corruption.object > ?1 \
         GROUP BY corruption.object ORDER BY corruption.object LIMIT ?2"
    );
    ailing(db, "corrupt", &sql, after, limit)
}

fn short(db: &Connection, after: u64, limit: u32) -> Result<Vec<v1::Ailing>, Fault> {
    let sql = format!(
        "SELECT short.object, path, size, {HOLDERS}, 'it has ' || max({GOOD}, 0) || ' of ' || replicas || ' replicas', \
         EXISTS (SELECT 1 FROM replica WHERE replica.object = short.object AND state = {COMING}) \
         FROM short CROSS JOIN held ON held.object = short.object \
         WHERE short.object > ?1 AND removed = 0 AND replicas > 1 AND has < {REPLICAS_MAX} ORDER BY short.object LIMIT ?2"
    );
    ailing(db, "short", &sql, after, limit)
}
