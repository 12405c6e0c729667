//! Maintenance tasks: labels that belong to no job, such as removals and replicas. A maintenance task belongs to one node even if the node
//! is lost, and takes no core of the node; so it is in no ready queue and in no estimate.

use super::{
    COPY_LABELS_BYTES_MAX, COPY_LABELS_MAX, COPY_LABELS_MIN, Dispatcher, MAINTENANCE_TASKS_MAX,
};
use std::collections::BTreeMap;
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::{Label, Lane, Operation, Owner};

/// Maintenance tasks that were sent and have not ended.
#[derive(Debug, Default)]
pub(super) struct MaintenanceTasks {
    labels: BTreeMap<LabelId, (NodeId, Lane, u64)>,
    /// Number of maintenance tasks per node and lane, and the bytes that they copy.
    sums: BTreeMap<(NodeId, Lane), (usize, u64)>,
}

impl MaintenanceTasks {
    fn add(&mut self, id: LabelId, node: NodeId, operation: &Operation) {
        let bytes = match operation {
            Operation::Copy { from, .. } => from.size,
            _ => 0,
        };
        let lane = operation.lane();
        if self.labels.insert(id, (node, lane, bytes)).is_none() {
            let (count, sum) = self.sums.entry((node, lane)).or_default();
            (*count, *sum) = (*count + 1, sum.saturating_add(bytes));
        }
    }

    pub(super) fn contains(&self, id: LabelId) -> bool {
        self.labels.contains_key(&id)
    }

    /// Records the end of a maintenance task on a node. Returns whether the task was sent to this node.
    pub(super) fn end(&mut self, id: LabelId, on: NodeId) -> bool {
        let Some(&(node, lane, bytes)) = self.labels.get(&id).filter(|(node, ..)| *node == on)
        else {
            return false;
        };
        self.labels.remove(&id);
        if let Some((count, sum)) = self.sums.get_mut(&(node, lane)) {
            (*count, *sum) = (*count - 1, sum.saturating_sub(bytes));
        }
        true
    }

    /// Returns whether a maintenance task was sent to a node and has not ended.
    pub(super) fn any(&self, node: NodeId) -> bool {
        let mut lanes = Lane::ALL.into_iter();
        lanes.any(|lane| self.sum(node, lane).0 > 0)
    }

    fn sum(&self, node: NodeId, lane: Lane) -> (usize, u64) {
        self.sums.get(&(node, lane)).copied().unwrap_or_default()
    }
}

impl Dispatcher {
    /// Returns whether a node accepts another maintenance task of this lane now. The limit for replicas is so high that the node never
    /// waits for the next replica. Verifications leave places for removals.
    #[must_use]
    pub fn takes_maintenance_task(&self, node: NodeId, lane: Lane) -> bool {
        let (replicas, bytes) = self.maintenance_tasks.sum(node, Lane::Copy);
        let count = |lane| self.maintenance_tasks.sum(node, lane).0;
        let others = count(Lane::Remove) + count(Lane::Verify);
        let takes = match lane {
            Lane::Copy => {
                replicas < COPY_LABELS_MIN
                    || (replicas < COPY_LABELS_MAX && bytes < COPY_LABELS_BYTES_MAX)
            }
            Lane::Verify => others + 2 < MAINTENANCE_TASKS_MAX,
            Lane::Kernel | Lane::Light | Lane::Remove => others < MAINTENANCE_TASKS_MAX,
        };
        takes && self.up(node)
    }

    /// Records a maintenance task that was sent before a restart of the server.
    pub(super) fn on_maintenance_sent(&mut self, node: NodeId, id: LabelId, operation: &Operation) {
        self.maintenance_tasks.add(id, node, operation);
    }

    /// Sends a maintenance task, or drops it if the node can't accept it now: the driver then sends the event again.
    pub(super) fn on_maintenance_task(&mut self, node: NodeId, owner: Owner, operation: Operation) {
        if !self.takes_maintenance_task(node, operation.lane()) || !self.ids.ready(0) {
            return;
        }
        let id = self.ids.label();
        self.maintenance_tasks.add(id, node, &operation);
        let label = Label {
            id,
            owner,
            after: Vec::new(),
            operation,
        };
        self.outbox.get_or_insert_with(node, Vec::new).push(label);
    }

    /// Returns whether a sent label must still be executed: the label is the current try of its task, or a maintenance task.
    #[must_use]
    pub fn wants(&self, label: LabelId) -> bool {
        self.live(label) || self.maintenance_tasks.contains(label)
    }
}
