//! Rebalancing: files migrate from full nodes to empty nodes. This module selects files among the versions that exist at the time of the
//! request, and requests their migrations. Next: `server/src/replicas.rs`, which decides about the replicas.

use std::collections::BTreeMap;
use tidemill_meta::placement::migrations::{self, Movable};
use tidemill_meta::placement::replicas;
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Connection, Fault};
use tidemill_model::id::NodeId;
use tidemill_model::replicas::OnlineNode;
use tidemill_sched::balance::{BalancePlan, NodeFill};
use tidemill_wire::v1;

/// Maximum number of migrations written in one transaction.
const MIGRATIONS_MAX: usize = 16_384;

/// Planned migration of one replica of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedMove {
    object: u64,
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
        let held = replicas::bytes_of_nodes(db)?;
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
        migrations::each_movable(db, |movable: Movable| {
            if plan.is_done() {
                return false;
            }
            let (source, size) = (movable.first, movable.size);
            let others: Vec<NodeId> = movable.others.into_iter().map(NodeId).collect();
            if let Some(NodeId(target)) = plan.take(NodeId(source), size, &others) {
                migrations.push(PlannedMove {
                    object: movable.object,
                    source,
                    target,
                });
                let (files, bytes) = flows.entry((source, target)).or_insert((0, 0));
                *files += 1;
                *bytes += size;
            }
            true
        })?;
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

/// Writes planned migrations to the database. Objects that were deleted or moved since the plan was made are left out.
pub(crate) fn keep(
    db: &Connection,
    shared: &NamesShared,
    planned: &[PlannedMove],
    now: i64,
) -> Result<(), Fault> {
    shared.nodes.set_moving();
    planned
        .iter()
        .try_for_each(|one| migrations::rebalance(db, one.object, (one.source, one.target), now))
}
