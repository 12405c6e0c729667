//! Connections of suspended nodes: the last message of a node, and the processes that wait for a resume message.

use super::{Cluster, DriverReport, KnownAddresses, NodeConnection, check_same};
use std::sync::Arc;
use tidemill_meta::placement::energy::PowerFacts;
use tidemill_meta::wakes::NODES;
use tidemill_sched::elastic::{ElasticEvent as SuspendEvent, NodePower};
use tidemill_wire::v1::{self, to_node::Message as To};
use tokio::sync::{mpsc, watch};
use tonic::Status;

impl Cluster {
    /// Handles the last message of a node, which announces that the node suspends itself.
    pub(super) fn on_suspended(&self, node: u32, epoch: u64) {
        {
            let slots = self.slots.lock();
            let Some(slot) = slots.get(&node).filter(|slot| slot.epoch == epoch) else {
                return;
            };
            self.shared.suspensions.on(node, SuspendEvent::Suspended);
            if let Some(connection) = &slot.connection {
                // The end of the stream confirms the message to the node.
                let _ = connection.end.send(true);
            }
        }
        tracing::info!(node, "a node is suspended");
    }

    /// Admits a process that stays connected while its node is suspended. Returns the node, the number of the process's connection, and the
    /// signal that ends the connection.
    pub(crate) fn keep(
        &self,
        hello: &v1::Hello,
        outbox: mpsc::Sender<v1::ToNode>,
    ) -> Result<(u32, u64, watch::Receiver<bool>), Status> {
        let node = self.check(hello)?;
        let id = node.node;
        let suspensions = &self.shared.suspensions;
        let up = {
            let slots = self.slots.lock();
            let slot = slots.get(&id).ok_or_else(|| {
                Status::failed_precondition(format!("node {id} was never part of this cluster"))
            })?;
            check_same(&slot.status, &node, true)?;
            slot.connection.is_some()
        };
        let (end, ended) = watch::channel(false);
        let number = {
            let mut keepers = self.keepers.lock();
            let number = keepers.get(&id).map_or(1, |(number, _)| number + 1);
            let known = KnownAddresses::default();
            let connection = NodeConnection { outbox, known, end };
            if let Some((_, old)) = keepers.insert(id, (number, connection)) {
                let _ = old.end.send(true);
            }
            number
        };
        if up && !suspensions.is_suspending(id) && !suspensions.is_suspended(id) {
            // The node's last message did not arrive, and the server relied on the node. The node has to resume.
            self.resume(id);
            return Ok((id, number, ended));
        }
        suspensions.on(id, SuspendEvent::Suspended);
        if let Some(slot) = self.slots.lock().get(&id)
            && let Some(connection) = &slot.connection
        {
            let _ = connection.end.send(true);
        }
        Ok((id, number, ended))
    }

    /// Handles the end of a process that waited to resume a node.
    pub(crate) fn unkeep(&self, node: u32, number: u64) {
        let mut keepers = self.keepers.lock();
        if keepers.get(&node).is_some_and(|(own, _)| *own == number) {
            keepers.remove(&node);
        }
    }

    /// Ends the connection of the process that waits to resume a node: the node is up, or was removed from the cluster.
    pub(super) fn dismiss(&self, node: u32) {
        if let Some((_, keeper)) = self.keepers.lock().remove(&node) {
            let _ = keeper.end.send(true);
        }
    }

    /// Sends the resume message to the process that waits to resume a node. Returns whether such a process exists and the message was
    /// queued.
    pub(crate) fn resume(&self, node: u32) -> bool {
        let keepers = self.keepers.lock();
        keepers.get(&node).is_some_and(|(_, keeper)| {
            let message = Some(To::Resume(v1::Resume {}));
            keeper.outbox.try_send(v1::ToNode { message }).is_ok()
        })
    }

    /// Reports to the driver that a node is suspended, so that the node does not count as missing.
    pub(crate) fn tell_suspended(&self, node: u32) {
        self.report(DriverReport::Suspended { node });
        self.refresh();
        self.tell_peers(node);
    }

    /// Makes a suspended node that can't be resumed count as offline, like any other offline node.
    pub(crate) fn declare_offline(self: &Arc<Self>, node: u32) {
        let epoch = {
            let mut slots = self.slots.lock();
            let Some(slot) = slots.get_mut(&node) else {
                return;
            };
            if slot.connection.is_some() {
                return;
            }
            slot.offline_since = tokio::time::Instant::now();
            slot.epoch
        };
        tracing::warn!(node, "a suspended node does not resume");
        self.shared.wakes.wake(NODES);
        self.refresh();
        self.lose_if_offline(node, epoch);
    }

    /// Returns the activity of a node, from which its idle time is computed: labels and transferred bytes. Returns `None` if it is not up.
    pub(crate) fn activity(&self, node: u32) -> Option<Activity> {
        let slots = self.slots.lock();
        let slot = slots.get(&node)?;
        let status = &slot.status;
        slot.connection.as_ref().map(|_| Activity {
            busy: status.running + status.queued > 0,
            moved: status.bytes_read.wrapping_add(status.bytes_written),
            may: status.role == "store" && !slot.in_memory(),
        })
    }

    /// Returns the data from which the power draw of all nodes is computed.
    pub(crate) fn draws(&self) -> Vec<PowerFacts> {
        let slots = self.slots.lock();
        let draws = slots.values().map(|slot| {
            let status = &slot.status;
            let reported = self.shared.suspensions.reported(status.node);
            let reported = reported.unwrap_or_default();
            PowerFacts {
                node: status.node,
                power: power(status),
                running: status.running,
                cores: status.cores,
                up: slot.connection.is_some(),
                suspended: reported.suspended,
                resuming: reported.resuming,
                measured: (!status.measured_by.is_empty())
                    .then(|| (status.measured_milli, status.measured_by.clone())),
            }
        });
        draws.collect()
    }

    /// Returns the power values that a node reported, and its number of cores, whether the node is up or not.
    pub(crate) fn power(&self, node: u32) -> Option<(NodePower, u32)> {
        let slots = self.slots.lock();
        let status = &slots.get(&node)?.status;
        Some((power(status), status.cores))
    }
}

fn power(status: &v1::Node) -> NodePower {
    NodePower {
        busy_milli: status.watts_milli,
        idle_milli: status.idle_milli,
        suspended_milli: status.suspended_milli,
    }
}

/// Activity of a node, as [`Cluster::activity`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Whether the node has queued or running labels.
    pub(crate) busy: bool,
    pub(crate) moved: u64,
    /// Whether the node is of a kind that may be suspended.
    pub(crate) may: bool,
}
