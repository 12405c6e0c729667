//! Conditions of nodes that require an administrator: conditions that the server sees by its connections, and conditions that nodes report.

use super::{Cluster, NodeSlot};
use std::time::{Duration, Instant};
use tidemill_model::display::line;
use tidemill_wire::condition::{self, ConditionKind};
use tidemill_wire::v1;
use tonic::Status;

/// Time after which a rejected node counts as stopped. A rejected node that still runs retries within 3 s.
const REFUSED: Duration = Duration::from_secs(10);

/// Free space in bytes below which a node can store no file of useful size.
const FULL_BYTES: u64 = 1 << 20;

/// Nodes from which the server can request objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReachableNodes {
    /// Nodes that answer and suspended nodes, in the order of their ids.
    pub(crate) present: Vec<u32>,
    /// Whether the cluster has any other node.
    pub(crate) any_offline: bool,
}

impl Cluster {
    /// Returns the nodes that answer, and the suspended nodes, which can be resumed.
    pub(crate) fn presence(&self) -> ReachableNodes {
        let slots = self.slots.lock();
        let suspensions = &self.shared.suspensions;
        let is_present = |slot: &NodeSlot| {
            let answers = slot.connection.is_some() && !slot.hangs();
            answers || suspensions.is_suspended(slot.status.node)
        };
        let present = slots.values().filter(|slot| is_present(slot));
        let present: Vec<u32> = present.map(|slot| slot.status.node).collect();
        ReachableNodes {
            any_offline: present.len() < slots.len(),
            present,
        }
    }

    /// Records the reason why the server rejected a node.
    pub(super) fn note_refused(&self, hello: &v1::Hello, status: &Status) {
        let (Some(node), Some(kind)) = (&hello.node, ConditionKind::why(status)) else {
            return;
        };
        let now = Instant::now();
        let mut refused = self.refused.lock();
        refused.retain(|_, (.., at)| at.elapsed() < REFUSED);
        let why = (kind, status.message().to_owned(), now);
        refused.insert(node.node, why);
    }

    /// Returns the conditions of all nodes. `failed_nodes` contains the nodes that have been offline for longer than `--repair-after`.
    pub(crate) fn conditions(&self, failed_nodes: &[u32]) -> Vec<v1::Condition> {
        let mut found = Vec::new();
        let refused = self.refused.lock().clone();
        let recent = refused
            .iter()
            .filter(|(_, (.., at))| at.elapsed() < REFUSED);
        found.extend(recent.map(|(&node, (kind, why, _))| kind.of(Some(node), why.clone())));
        let slots = self.slots.lock();
        for slot in slots.values() {
            self.add_conditions(slot, failed_nodes, &mut found);
        }
        let mut stores = slots
            .values()
            .filter(|slot| slot.status.role == "store")
            .peekable();
        if stores.peek().is_none() {
            let cause = "no node that stores data was ever attached";
            found.push(condition::NO_NODE.of(None, cause));
        }
        let mut take = stores
            .filter(|slot| slot.connection.is_some() && slot.is_plain())
            .peekable();
        if take.peek().is_some() && take.all(NodeSlot::is_full) {
            let cause = "no node that is up has space for new files";
            found.push(condition::CLUSTER_FULL.of(None, cause));
        }
        found
    }

    fn add_conditions(
        &self,
        slot: &NodeSlot,
        failed_nodes: &[u32],
        found: &mut Vec<v1::Condition>,
    ) {
        let id = slot.status.node;
        let node = Some(id);
        if slot.connection.is_none() {
            let suspension = self.shared.suspensions.reported(id).unwrap_or_default();
            if suspension.suspended || suspension.resuming {
                if !suspension.trouble.is_empty() {
                    found.push(condition::NODE_NOT_RESUMED.of(node, suspension.trouble));
                }
                return;
            }
            let offline_s = slot.offline_since.elapsed().as_secs();
            found.push(match failed_nodes.contains(&id) {
                true => {
                    let cause =
                        "it has been offline for too long: its replicas are recreated elsewhere";
                    condition::NODE_FAILED.of(node, cause)
                }
                false => condition::NODE_OFFLINE
                    .of(node, format!("it has had no connection for {offline_s} s")),
            });
            return;
        }
        if slot.hangs() {
            let silent_s = slot.heard.elapsed().as_secs();
            let cause = format!("it has not answered for {silent_s} s");
            found.push(condition::NODE_SILENT.of(node, cause));
        }
        // A node that is silent now may have reported the cause before.
        let reported = &slot.status.conditions;
        for one in reported {
            let kind = condition::ALL.iter().find(|kind| kind.name == one.name);
            // The node is of this release, so the server knows all its states.
            found.extend(kind.map(|kind| kind.of(node, line(&one.cause))));
        }
        if reported.is_empty() && slot.is_plain() && slot.is_full() {
            let cause = "it has no space for new files: its disk or its `--capacity` is used up";
            found.push(condition::NODE_FULL.of(node, cause));
        }
    }
}

impl NodeSlot {
    /// Whether the node belongs to the capacity tier and stores files on its own disk, not in memory or a backend.
    fn is_plain(&self) -> bool {
        let status = &self.status;
        status.role == "store" && !self.in_memory() && !self.is_burst() && status.backend.is_none()
    }

    fn is_full(&self) -> bool {
        self.status.free_bytes < FULL_BYTES
    }
}
