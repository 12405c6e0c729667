//! Handling of nodes that connect, disconnect or are suspended. Connecting and losing a node take time in proportion to the number of ready
//! tasks; all other steps take time in proportion to the work of the node. Effects are actions of the dispatcher.

use super::node::Presence;
use super::outcome::discard;
use super::small_map::SmallMap;
use super::turns::Line;
use super::{Dispatcher, LOSSES_MAX, ReadyQueue, Turn};
use tidemill_model::event::{Action, NodeView, TaskState};
use tidemill_model::id::{LabelId, NodeId, TaskId};
use tidemill_model::label::{Failure, FailureKind};

impl Dispatcher {
    pub(super) fn on_node_up(&mut self, id: NodeId, view: NodeView, turn: &mut Turn<'_>) {
        self.node_mut(id).presence = Presence::Up;
        self.forget_programs(id);
        self.refresh(id, view);
        self.offers_changed(id);
        self.replicas.forget(id);
        // The node may not have received messages of its last connection.
        let labels = &self.labels;
        self.rescheduled
            .retain(|label, _| labels.get(label).is_some_and(|issued| issued.node != id));
        self.restore_redone(turn);
        self.take_up(id, turn);
        for task in std::mem::take(&mut self.stranded) {
            self.settle(task, turn);
        }
        self.restore_redone(turn);
        self.touch(id);
    }

    /// Resumes the labels of a connected node, each after the labels that it depends on, and aborts labels that were replaced.
    fn take_up(&mut self, id: NodeId, turn: &mut Turn<'_>) {
        let known = self.labels.iter().filter(|(_, issued)| issued.node == id);
        let mut left: Vec<LabelId> = known.map(|(label, _)| *label).collect();
        left.retain(|&label| !self.live(label));
        for &label in &left {
            // The label may have been aborted on the old connection without the node's knowledge.
            self.release(id, label);
        }
        loop {
            let before = left.len();
            left.retain(|&label| {
                let revivable = self.revivable(label);
                if revivable {
                    self.revive(label, turn);
                }
                !revivable
            });
            if left.len() == before {
                break;
            }
        }
        turn.out.extend(
            left.into_iter()
                .map(|label| Action::Abort { node: id, label }),
        );
    }

    pub(super) fn on_node_status(&mut self, id: NodeId, view: NodeView) {
        if self.up(id) {
            let before = self.nodes.get(&id).map(|known| known.view.offers.clone());
            let same = before.as_ref() == Some(&view.offers);
            self.refresh(id, view);
            if same {
                self.touch(id);
            } else {
                self.offers_changed(id);
            }
        }
    }

    /// Stores the reported status of a node.
    fn refresh(&mut self, id: NodeId, mut view: NodeView) {
        for (kernel, history) in std::mem::take(&mut view.history) {
            if let Some(new) = self.learned.report(&kernel, id, history) {
                self.expect_again(new);
            }
        }
        self.node_mut(id).view = view;
    }

    pub(super) fn on_node_down(&mut self, id: NodeId, turn: &mut Turn<'_>) {
        let node = self.node_mut(id);
        if node.presence == Presence::Down {
            return;
        }
        node.presence = Presence::Down;
        self.offers_changed(id);
        let back = self.revoke_labels(id, turn);
        self.look_again(id, back, turn);
    }

    /// Handles a suspended node, which keeps its unfinished labels, if it has any.
    pub(super) fn on_node_suspended(&mut self, id: NodeId, turn: &mut Turn<'_>) {
        let node = self.node_mut(id);
        if node.presence == Presence::Suspended {
            return;
        }
        node.presence = Presence::Suspended;
        self.offers_changed(id);
        self.look_again(id, Vec::new(), turn);
        self.count_idle(id);
    }

    /// Decides the next state of tasks that depend on a node which is no longer online: tasks that were revoked, tasks with inputs on the
    /// node, and tasks that waited for the node.
    fn look_again(&mut self, id: NodeId, back: Vec<TaskId>, turn: &mut Turn<'_>) {
        let unready = self.lines.values().flat_map(Line::iter).filter(|&task| {
            let inputs = 0..self.task(task).spec.inputs.len();
            inputs
                .filter_map(|index| Some((self.input(task, index)?, index)))
                .any(|(placed, index)| self.is_on(placed, self.selection(task, index), id))
        });
        let unready: Vec<TaskId> = unready.collect();
        let stranded = std::mem::take(&mut self.stranded);
        self.freshen(ReadyQueue::At(id), |_| true);
        for task in back.into_iter().chain(unready).chain(stranded) {
            if self.tasks.contains_key(&task) {
                self.settle(task, turn);
            }
        }
    }

    /// Revokes the labels of a lost node and returns their tasks. The tasks are Waiting, or Failed after too many losses; the caller
    /// decides their next state.
    pub(super) fn revoke_labels(&mut self, id: NodeId, turn: &mut Turn<'_>) -> Vec<TaskId> {
        let node = self.node_mut(id);
        let labels: Vec<LabelId> = node.outstanding.keys().collect();
        for &label in &labels {
            self.node_mut(id).remove(label);
        }
        let live: Vec<LabelId> = labels
            .into_iter()
            .filter(|&label| self.live(label))
            .collect();
        let mut tasks = Vec::new();
        for label in live {
            let Some(issued) = self.labels.get_mut(&label) else {
                continue;
            };
            issued.revoked = true;
            let (task, held) = (issued.task, issued.held.take());
            if let Some(outcome) = held {
                self.labels.remove(&label);
                discard(id, &outcome, turn);
            }
            self.lose(task, id, turn);
            tasks.push(task);
        }
        let (lost, kept): (Vec<_>, Vec<_>) = tasks
            .into_iter()
            .partition(|&task| self.task(task).losses > LOSSES_MAX);
        for task in lost {
            let message = format!("its node was lost {} times while it ran", LOSSES_MAX + 1);
            self.abandon(task, TaskState::Failed, loss(message), turn);
        }
        kept
    }

    /// Makes a task Waiting after its label was lost. Only a run that was under way counts as a loss: a running task may be the cause of
    /// nodes' failures, while a queued one is not.
    fn lose(&mut self, id: TaskId, node: NodeId, turn: &mut Turn<'_>) {
        let task = self.task_mut(id);
        task.losses += u32::from(task.state == TaskState::Running);
        task.tries = task.tries.saturating_sub(1);
        task.current = None;
        self.tell(
            id,
            loss(format!("node {node} was lost; it is placed again")),
        );
        self.set_state(id, TaskState::Waiting, turn);
    }

    /// Returns whether the outcome of a label still counts.
    pub(super) fn live(&self, label: LabelId) -> bool {
        self.labels
            .get(&label)
            .and_then(|issued| self.tasks.get(&issued.task))
            .is_some_and(|task| task.current == Some(label))
    }

    /// Returns whether a revoked label can still produce its task's result: no other label has replaced it, and its inputs are those that
    /// the task would read now.
    pub(super) fn revivable(&self, label: LabelId) -> bool {
        let Some(issued) = self.labels.get(&label).filter(|issued| issued.revoked) else {
            return false;
        };
        let Some(task) = self.tasks.get(&issued.task).filter(|task| task.idle()) else {
            return false;
        };
        if task.redone()
            && task
                .outputs
                .iter()
                .flatten()
                .all(|placed| self.up(placed.node))
        {
            return false;
        }
        issued
            .inputs
            .iter()
            .zip(&task.spec.inputs)
            .enumerate()
            .all(|(index, (used, input))| {
                let sealed = self.input(issued.task, index).map(|placed| placed.object);
                let flying = || {
                    self.flying(input.origin, issued.node)
                        .map(|placed| placed.object)
                };
                sealed.or_else(flying) == Some(used.object)
            })
    }

    fn revive(&mut self, label: LabelId, turn: &mut Turn<'_>) {
        let Some(issued) = self.labels.get_mut(&label) else {
            return;
        };
        issued.revoked = false;
        let (id, node) = (issued.task, issued.node);
        let expected = self.expected_of(label);
        let needs = self.needs(id);
        let follows = self.before_its_turn(label);
        self.node_mut(node).add(label, expected, needs, follows);
        self.count_idle(node);
        self.stranded.remove(&id);
        let task = self.task_mut(id);
        task.stranded = false;
        task.missing = SmallMap::default();
        task.current = Some(label);
        task.tries += 1;
        self.set_state(id, TaskState::Sent, turn);
        // The label is sent again, so that the driver's records show that it is the task's label again.
        if let Some(built) = self.build(label) {
            let labels = self.outbox.get_or_insert_with(node, Vec::new);
            labels.push(built);
        }
    }
}

fn loss(message: String) -> Failure {
    Failure {
        kind: FailureKind::NodeLost,
        message,
    }
}
