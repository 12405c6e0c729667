//! Maintenance tasks: labels that belong to no job, such as removals and replicas. They belong to one node even if it is lost, and take no core of
//! it; so they are in no line and in no estimate.

use super::{
    COPY_LABELS_BYTES_MAX, COPY_LABELS_MAX, COPY_LABELS_MIN, Dispatcher, MAINTENANCE_TASKS_MAX,
};
use crate::id::{LabelId, NodeId};
use crate::label::{Label, Lane, Operation, Owner};
use std::collections::BTreeMap;

/// Maintenance tasks under way.
#[derive(Debug, Default)]
pub(super) struct MaintenanceTasks {
    labels: BTreeMap<LabelId, (NodeId, Lane, u64)>,
    /// Number of maintenance tasks, and the bytes that are being copied.
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

    /// Records the end of a maintenance task on a node. Returns whether it was under way there.
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

    /// Returns whether a maintenance task is under way on a node.
    pub(super) fn any(&self, node: NodeId) -> bool {
        let mut lanes = Lane::ALL.into_iter();
        lanes.any(|lane| self.sum(node, lane).0 > 0)
    }

    fn sum(&self, node: NodeId, lane: Lane) -> (usize, u64) {
        self.sums.get(&(node, lane)).copied().unwrap_or_default()
    }
}

impl Dispatcher {
    /// Returns whether a node takes another maintenance task of this lane now. It takes so many replicas that it never waits for the next one.
    /// Verifications leave space for removals.
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

    /// Records a maintenance task that is under way since before a restart.
    pub(super) fn on_maintenance_sent(&mut self, node: NodeId, id: LabelId, operation: &Operation) {
        self.maintenance_tasks.add(id, node, operation);
    }

    /// Sends a maintenance task, or drops it if it can't be sent now: the driver then asks again.
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

    /// Returns whether a label that was sent is still to be executed: it is the current try of its task, or a maintenance task.
    #[must_use]
    pub fn wants(&self, label: LabelId) -> bool {
        self.live(label) || self.maintenance_tasks.contains(label)
    }
}
