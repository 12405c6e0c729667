//! Recall of labels. Run times are guesses, so work may wait for one element while another is idle. Then the dispatcher considers labels
//! that were sent and have not begun, the last of the longest queue first. It asks the task's policy as if the label was not sent. If the
//! policy prefers an idle element, the dispatcher asks the label's own element to return the label.
//!
//! Nothing is assumed: the label stays the try of its task until its element has answered, so a label that began in between continues to
//! run, and no task runs twice. The task of a returned label is placed like any other.

use super::{Dispatcher, RECALL_ASKS_MAX, RECALL_LOOKS_MAX, RECALLS_MAX, Turn};
use crate::event::{Action, TaskState};
use crate::id::{ElementId, LabelId, TaskId};
use crate::time::{Span, Time};
use std::cmp::Reverse;

impl Dispatcher {
    /// Recalls labels for idle elements, one at a time for each.
    pub(super) fn recall(&mut self, turn: &mut Turn<'_>) {
        if self.idle.is_empty() || self.crowded.is_empty() || self.to_look == 0 {
            return;
        }
        self.forget_answered();
        if self.recalled.len() >= self.idle.len() {
            return;
        }
        let mut asks = 0;
        for element in self.longest(turn.now) {
            if asks == RECALL_ASKS_MAX {
                self.to_look = self.to_look.saturating_add(1);
                continue;
            }
            let Some((label, task)) = self.last_queued(element) else {
                continue;
            };
            asks += 1;
            let news = self.news;
            self.task_mut(task).asked = news;
            if let Some(idle) = self.elsewhere(element, label, task, turn.now) {
                self.task_mut(task).recalls += 1;
                self.recalled.insert(label, idle);
                // There may be more such labels.
                self.to_look = usize::MAX;
                turn.out.push(Action::Recall { element, label });
            }
        }
    }

    /// Forgets recalls of labels that began or ended.
    fn forget_answered(&mut self) {
        let mut recalled = std::mem::take(&mut self.recalled);
        recalled.retain(|&label, _| {
            let task = self.labels.get(&label).map(|issued| issued.task);
            let task = task.and_then(|task| self.tasks.get(&task));
            task.is_some_and(|task| task.current == Some(label) && task.state == TaskState::Sent)
        });
        self.recalled = recalled;
    }

    /// Returns some of the elements with more work than cores, in turn; elements whose labels wait longest come first.
    fn longest(&mut self, now: Time) -> Vec<ElementId> {
        let after = self.crowded.range(self.looked..);
        let all = after.chain(self.crowded.range(..self.looked));
        let looks = self.to_look.min(RECALL_LOOKS_MAX);
        let some: Vec<ElementId> = all.take(looks).copied().collect();
        self.to_look = self.to_look.min(self.crowded.len()) - some.len();
        if let Some(last) = some.last() {
            self.looked = ElementId(last.0.wrapping_add(1));
        }
        let wait = |id| self.elements.get(&id).map(|element| element.wait(now));
        let mut some: Vec<_> = some.into_iter().map(|id| (Reverse(wait(id)), id)).collect();
        some.sort_unstable();
        some.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the last label of an element that could also run on another element, and its task, if anything has changed since its policy
    /// was asked.
    fn last_queued(&self, element: ElementId) -> Option<(LabelId, TaskId)> {
        let queued = self.elements.get(&element)?.outstanding.keys().rev();
        let mut queued = queued.filter_map(|label| Some((label, self.labels.get(&label)?.task)));
        queued.find(|&(label, id)| {
            self.tasks.get(&id).is_some_and(|task| {
                let policy = self.jobs.get(&task.job);
                let policy = policy.and_then(|job| self.policies.get(&job.policy));
                task.current == Some(label)
                    && task.state == TaskState::Sent
                    && task.spec.element.is_none()
                    && task.recalls < RECALLS_MAX
                    && task.asked < self.news
                    && !self.recalled.contains_key(&label)
                    && policy.is_some_and(|policy| policy.weighs_waits())
                    && (0..task.spec.inputs.len()).all(|index| {
                        let input = self.input(id, index);
                        input
                            .is_some_and(|placed| self.reachable(placed, self.selection(id, index)))
                    })
            })
        })
    }

    /// Returns the idle element on which a task would be placed if its label was not sent.
    fn elsewhere(
        &mut self,
        element: ElementId,
        label: LabelId,
        task: TaskId,
        now: Time,
    ) -> Option<ElementId> {
        let expected = self
            .elements
            .get(&element)?
            .outstanding
            .get(label)?
            .expected;
        let needs = self.needs(task);
        self.element_mut(element).remove(label);
        let answer = self.ask(task, Span::default(), None, now);
        self.element_mut(element).add(label, expected, needs, false);
        self.spare_reads = answer.reads.emptied();
        let choice = answer.choice?.element;
        let waited_for = self.recalled.values().any(|&idle| idle == choice);
        (self.idle.contains(&choice) && choice != element && !waited_for).then_some(choice)
    }
}
