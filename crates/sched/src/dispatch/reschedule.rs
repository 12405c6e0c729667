//! Rescheduling of labels. Run times are guesses, so work may wait for one node while another is idle. Then the dispatcher considers labels
//! that were sent and have not begun, the last of the longest queue first. It asks the task's policy as if the label was not sent. If the
//! policy prefers an idle node, the dispatcher asks the label's own node to return the label.
//!
//! A label stays the current try of its task until its node has answered. So a label that began before the answer continues to run, and no
//! task runs twice. The task of a returned label is placed like any other task.

use super::{Dispatcher, RESCHEDULE_ASKS_MAX, RESCHEDULE_LOOKS_MAX, RESCHEDULES_MAX, Turn};
use std::cmp::Reverse;
use tidemill_model::event::{Action, TaskState};
use tidemill_model::id::{LabelId, NodeId, TaskId};
use tidemill_model::time::{Span, Time};

impl Dispatcher {
    /// Reschedules labels to idle nodes, one label at a time for each idle node.
    pub(super) fn reschedule(&mut self, turn: &mut Turn<'_>) {
        if self.idle.is_empty() || self.crowded.is_empty() || self.to_look == 0 {
            return;
        }
        self.forget_answered();
        if self.rescheduled.len() >= self.idle.len() {
            return;
        }
        let mut asks = 0;
        for node in self.longest(turn.now) {
            if asks == RESCHEDULE_ASKS_MAX {
                self.to_look = self.to_look.saturating_add(1);
                continue;
            }
            let Some((label, task)) = self.last_queued(node) else {
                continue;
            };
            asks += 1;
            let news = self.news;
            self.task_mut(task).asked = news;
            if let Some(idle) = self.elsewhere(node, label, task, turn.now) {
                self.task_mut(task).reschedules += 1;
                self.rescheduled.insert(label, idle);
                // There may be more such labels.
                self.to_look = usize::MAX;
                turn.out.push(Action::Reschedule { node, label });
            }
        }
    }

    /// Forgets reschedule requests for labels that began or ended.
    fn forget_answered(&mut self) {
        let mut rescheduled = std::mem::take(&mut self.rescheduled);
        rescheduled.retain(|&label, _| {
            let task = self.labels.get(&label).map(|issued| issued.task);
            let task = task.and_then(|task| self.tasks.get(&task));
            task.is_some_and(|task| task.current == Some(label) && task.state == TaskState::Sent)
        });
        self.rescheduled = rescheduled;
    }

    /// Returns some of the nodes with more work than cores, in turn; nodes whose labels wait longest come first.
    fn longest(&mut self, now: Time) -> Vec<NodeId> {
        let after = self.crowded.range(self.looked..);
        let all = after.chain(self.crowded.range(..self.looked));
        let looks = self.to_look.min(RESCHEDULE_LOOKS_MAX);
        let some: Vec<NodeId> = all.take(looks).copied().collect();
        self.to_look = self.to_look.min(self.crowded.len()) - some.len();
        if let Some(last) = some.last() {
            self.looked = NodeId(last.0.wrapping_add(1));
        }
        let wait = |id| self.nodes.get(&id).map(|node| node.wait(now));
        let mut some: Vec<_> = some.into_iter().map(|id| (Reverse(wait(id)), id)).collect();
        some.sort_unstable();
        some.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the last label of a node that could also run on another node, and the label's task, if anything has changed since the policy
    /// was asked.
    fn last_queued(&self, node: NodeId) -> Option<(LabelId, TaskId)> {
        let queued = self.nodes.get(&node)?.outstanding.keys().rev();
        let mut queued = queued.filter_map(|label| Some((label, self.labels.get(&label)?.task)));
        queued.find(|&(label, id)| {
            self.tasks.get(&id).is_some_and(|task| {
                let policy = self.jobs.get(&task.job);
                let policy = policy.and_then(|job| self.policies.get(&job.policy));
                task.current == Some(label)
                    && task.state == TaskState::Sent
                    && task.spec.node.is_none()
                    && task.reschedules < RESCHEDULES_MAX
                    && task.asked < self.news
                    && !self.rescheduled.contains_key(&label)
                    && policy.is_some_and(|policy| policy.weighs_waits())
                    && (0..task.spec.inputs.len()).all(|index| {
                        let input = self.input(id, index);
                        input
                            .is_some_and(|placed| self.reachable(placed, self.selection(id, index)))
                    })
            })
        })
    }

    /// Returns the idle node on which a task would be placed if its label was not sent.
    fn elsewhere(
        &mut self,
        node: NodeId,
        label: LabelId,
        task: TaskId,
        now: Time,
    ) -> Option<NodeId> {
        let expected = self.nodes.get(&node)?.outstanding.get(label)?.expected;
        let needs = self.needs(task);
        self.node_mut(node).remove(label);
        let answer = self.ask(task, Span::default(), None, now);
        self.node_mut(node).add(label, expected, needs, false);
        self.spare_reads = answer.reads.emptied();
        let choice = answer.choice?.node;
        let waited_for = self.rescheduled.values().any(|&idle| idle == choice);
        (self.idle.contains(&choice) && choice != node && !waited_for).then_some(choice)
    }
}
