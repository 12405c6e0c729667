//! Rebalancing: files migrate from full nodes to empty nodes. This module selects files among the versions that exist at the time of the
//! request, and writes the table `migration`. Next: `server/src/replicas.rs`, which executes the migrations.

use crate::names::Fault;
use crate::names::burst;
use crate::names::replicas::{CURRENT, REBALANCE, look_again, migrates_at};
use crate::names::shared::NamesShared;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use tidemill_model::id::NodeId;
use tidemill_model::replicas::OnlineNode;
use tidemill_sched::balance::{BalancePlan, NodeFill};
use tidemill_wire::v1;

/// Maximum number of migrations written in one transaction.
const MIGRATIONS_MAX: usize = 16_384;

/// Planned migration of one replica of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedMove {
    object: i64,
    source: u32,
    target: u32,
}

/// Plan of the migrations of one rebalance.
#[derive(Debug)]
pub(crate) struct Rebalance {
    fills: Vec<NodeFill>,
    migrations: Vec<PlannedMove>,
    flows: BTreeMap<(u32, u32), (u64, u64)>,
}

impl Rebalance {
    /// Plans migrations after which all nodes are equally full, within `within` percent.
    pub(crate) fn plan(db: &Connection, sites: &[OnlineNode], within: u32) -> Result<Self, Fault> {
        let held = held(db)?;
        let takes = sites
            .iter()
            .filter(|site| site.takes && !site.memory && !site.burst && !site.backend);
        let fills = takes.map(|site| NodeFill {
            node: site.node,
            host: site.host.clone(),
            held_bytes: held.get(&site.node.0).copied().unwrap_or(0),
            free_bytes: site.free_bytes,
        });
        let fills: Vec<NodeFill> = fills.collect();
        let mut plan = BalancePlan::new(&fills, within);
        let (mut migrations, mut flows) = (Vec::new(), BTreeMap::new());
        let sql = "SELECT object, node, size FROM held WHERE removed = 0 AND size > 0 AND node >= 0 \
                   AND NOT EXISTS (SELECT 1 FROM migration WHERE migration.object = held.object) ORDER BY object";
        let mut statement = db.prepare_cached(sql)?;
        let mut others = db.prepare_cached("SELECT node FROM replica WHERE object = ?1")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if plan.is_done() {
                break;
            }
            let (object, source, size): (i64, u32, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let others = others.query_map([object], |row| row.get(0).map(NodeId))?;
            let others = others.collect::<Result<Vec<_>, _>>()?;
            let size = size.cast_unsigned();
            let Some(NodeId(target)) = plan.take(NodeId(source), size, &others) else {
                continue;
            };
            migrations.push(PlannedMove {
                object,
                source,
                target,
            });
            let (files, bytes) = flows.entry((source, target)).or_insert((0, 0));
            *files += 1;
            *bytes += size;
        }
        Ok(Self {
            fills,
            migrations,
            flows,
        })
    }

    pub(crate) fn reply(&self) -> v1::RebalanceReply {
        let flows = self.flows.iter();
        let flows = flows.map(|(&(source, target), &(files, bytes))| v1::Flow {
            source,
            target,
            files,
            bytes,
        });
        let nodes = self.fills.iter().map(|fill| v1::Fill {
            node: fill.node.0,
            held_bytes: fill.held_bytes,
            free_bytes: fill.free_bytes,
        });
        v1::RebalanceReply {
            flows: flows.collect(),
            nodes: nodes.collect(),
        }
    }

    /// Returns the planned migrations in groups; each group is written in one transaction.
    pub(crate) fn into_migrations(self) -> Vec<Vec<PlannedMove>> {
        self.migrations
            .chunks(MIGRATIONS_MAX)
            .map(<[_]>::to_vec)
            .collect()
    }
}

/// Returns the total size of versions on each node, with all replicas, in bytes.
fn held(db: &Connection) -> Result<BTreeMap<u32, u64>, Fault> {
    let bytes = burst::sum_of("size");
    let sql = format!(
        "SELECT node, {bytes} FROM (\
         SELECT node, size FROM held WHERE removed = 0 AND node >= 0 \
         UNION ALL SELECT replica.node, held.size FROM replica \
         CROSS JOIN held ON held.object = replica.object) GROUP BY node"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let rows = statement.query_map([], |row| {
        Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Writes planned migrations to the database. Objects that were deleted or moved since the plan was made are left out.
pub(crate) fn keep(
    db: &Connection,
    shared: &NamesShared,
    migrations: &[PlannedMove],
    now: i64,
) -> Result<(), Fault> {
    shared.leaving.set_moving();
    let sql = "INSERT OR IGNORE INTO migration SELECT ?2, object, ?3, size, ?4 FROM held \
               WHERE object = ?1 AND removed = 0 AND node = ?2 \
               AND NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = ?1 AND replica.node = ?3 AND state = ?5)";
    let mut insert = db.prepare_cached(sql)?;
    for one in migrations {
        let row = params![one.object, one.source, one.target, REBALANCE, CURRENT];
        if insert.execute(row)? > 0 {
            migrates_at(db, one.object, now)?;
        }
    }
    Ok(())
}

/// Cancels all migrations of rebalances that have not been executed.
pub(crate) fn cancel(db: &Connection) -> Result<(), Fault> {
    let sql = "DELETE FROM migration WHERE why = ?1 RETURNING object";
    let mut statement = db.prepare_cached(sql)?;
    let objects = statement.query_map([REBALANCE], |row| row.get::<_, i64>(0))?;
    for object in objects.collect::<Result<Vec<_>, _>>()? {
        look_again(db, object.cast_unsigned(), 0)?;
    }
    Ok(())
}
