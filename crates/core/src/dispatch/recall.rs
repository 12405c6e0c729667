//! Labels that are taken back. Run times are guesses, so work may wait for one element while another has nothing to
//! do. Then the dispatcher looks at what was sent and has not begun, the last of the longest queue first, and asks
//! the task's policy as if that had not been sent; if it would have the task on an idle element, the label's own is
//! told to give it back.
//!
//! Nothing is assumed: the label stays the try of its task until its element has answered, so a label that began
//! meanwhile runs on, and no task runs twice. One that comes back is placed like any other.

use super::{Dispatcher, RECALL_ASKS_MAX, RECALL_LOOKS_MAX, RECALLS_MAX, Turn};
use crate::event::{Action, TaskState};
use crate::id::{ElementId, LabelId, TaskId};
use crate::time::{Span, Time};
use std::cmp::Reverse;

impl Dispatcher {
    /// Takes labels back for elements that have nothing to do, one at a time for each.
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
                // There may be more like it.
                self.to_look = usize::MAX;
                turn.out.push(Action::Recall { element, label });
            }
        }
    }

    /// Labels that began or ended are not on their way back any more.
    fn forget_answered(&mut self) {
        let mut recalled = std::mem::take(&mut self.recalled);
        recalled.retain(|&label, _| {
            let task = self.labels.get(&label).map(|issued| issued.task);
            let task = task.and_then(|task| self.tasks.get(&task));
            task.is_some_and(|task| task.current == Some(label) && task.state == TaskState::Sent)
        });
        self.recalled = recalled;
    }

    /// Some of the elements that have more to do than cores, in turn, those first where a label waits longest.
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

    /// The last label of an element that could as well run elsewhere, and its task, if there are news since its policy
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

    /// The idle element that a task would go to if its label had not been sent.
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
