//! Demand for nodes: determines which suspended nodes are needed, and which online nodes are not needed. This module changes nothing.

use super::class::ClassNumber;
use super::node::{Presence, expected_run};
use super::task::is_end;
use super::turns::Line;
use super::{Dispatcher, EXPECTED_MAX, ReadyQueue, UNKNOWN_RUN};
use std::collections::BTreeSet;
use tidemill_model::id::{NodeId, TaskId};
use tidemill_model::layout::Selection;
use tidemill_model::object::Placed;
use tidemill_model::time::{Span, Time};

/// Demand of all tasks for online and suspended nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Suspended nodes that have data or programs for waiting work.
    pub wanted: BTreeSet<NodeId>,
    /// Nodes that have labels or inputs of an unfinished job.
    pub used: BTreeSet<NodeId>,
    /// Core time that all ready and sent tasks need on storage nodes.
    pub work: Span,
    /// Number of cores of the online storage nodes.
    pub cores: u64,
    /// Suspended nodes that could run ready tasks for which no online node has capacity.
    pub able: BTreeSet<NodeId>,
}

impl Dispatcher {
    /// Returns the current demand for nodes. Takes time in proportion to the number of unfinished tasks; call it only at intervals.
    #[must_use]
    pub fn demand(&self, now: Time) -> Demand {
        let mut demand = Demand::default();
        let mut work = 0_u64;
        for (id, node) in self.nodes.iter() {
            if !node.outstanding.is_empty() || self.maintenance_tasks.any(id) {
                demand.used.insert(id);
            }
            if node.up() && node.view.role == tidemill_model::event::Role::Store {
                let cores = u64::from(node.view.offers.cores);
                demand.cores += cores;
                let left = node.all_left(now).0.saturating_mul(cores);
                work = work.saturating_add(left);
            }
        }
        for (line, tasks) in &self.lines {
            self.demand_space(*line, tasks, &mut demand);
            for task in tasks.iter() {
                work = work.saturating_add(self.expected_of_ready(task));
                demand.wanted.extend(self.task(task).spec.node);
            }
        }
        for (&id, task) in self.tasks.iter() {
            if is_end(task.state) {
                continue;
            }
            for index in 0..task.spec.inputs.len() {
                if let Some(placed) = self.input(id, index) {
                    self.demand_input(placed, self.selection(id, index), &mut demand);
                }
            }
        }
        let suspended = |id: &NodeId| self.presence(*id) == Presence::Suspended;
        demand.wanted.extend(&demand.used);
        demand.wanted.retain(suspended);
        demand.work = Span(work);
        demand
    }

    /// Returns the expected core time of a waiting task on any node, in nanoseconds.
    fn expected_of_ready(&self, id: TaskId) -> u64 {
        let task = self.task(id);
        let inputs = (0..task.spec.inputs.len()).filter_map(|index| {
            let placed = self.input(id, index)?;
            Some(self.bytes_of(placed, self.selection(id, index)))
        });
        let bytes = inputs.fold(0, u64::saturating_add);
        let known = expected_run(&self.learned.of(task.kernel).pooled, bytes);
        let run = known.unwrap_or(UNKNOWN_RUN).min(EXPECTED_MAX);
        run.0
            .saturating_mul(u64::from(task.spec.needs.cores.max(1)))
    }

    /// Adds the suspended nodes that could run the tasks of a ready queue: one of these nodes is wanted if no online node can run them.
    fn demand_space(&self, line: ReadyQueue, tasks: &Line, demand: &mut Demand) {
        let classes: BTreeSet<ClassNumber> = match line {
            ReadyQueue::Any(class) | ReadyQueue::Barred(class) => [class].into(),
            // The policy chose an online node whose queue is full.
            ReadyQueue::At(_) => tasks.iter().map(|task| self.task(task).class).collect(),
            ReadyQueue::Fresh | ReadyQueue::Pinned(_) => return,
        };
        for class in classes {
            let suspended = self.nodes.iter();
            let suspended = suspended.filter(|(_, node)| node.presence == Presence::Suspended);
            let mut able = suspended
                .map(|(id, _)| id)
                .filter(|&id| self.could_run_resumed(class, id));
            if matches!(line, ReadyQueue::Barred(_)) {
                demand.wanted.extend(able.next());
            } else {
                demand.able.extend(able);
            }
        }
    }

    /// Adds the nodes of a task's input: the node counts as used if the input can be read, and as wanted otherwise.
    fn demand_input(&self, placed: Placed, selection: &Selection, demand: &mut Demand) {
        if let Some(parts) = self.replicas.selected(placed.object, selection) {
            for (part, _) in parts {
                self.demand_input(part, &Selection::WHOLE, demand);
            }
            return;
        }
        let nearest = self.nearest(placed, selection).node;
        if self.up(nearest) {
            demand.used.insert(nearest);
        } else {
            demand.wanted.insert(nearest);
        }
    }

    /// Returns a suspended node with a replica of an object.
    pub(super) fn suspended_with(&self, placed: Placed) -> Option<NodeId> {
        let lasting = self.replicas.lasting(placed.object);
        let mut replicas = std::iter::once(placed.node).chain(lasting);
        replicas.find(|&node| {
            self.presence(node) == Presence::Suspended
                && !self.replicas.is_missing(placed.object, node)
        })
    }
}
