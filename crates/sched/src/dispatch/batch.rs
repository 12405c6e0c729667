//! Batches of tasks: the first tasks of a ready queue, for a policy that places several tasks together. Effects are dispatcher actions.
//!
//! A batch has at most as many tasks as node queues have free places, so the tasks that wait longest are still sent first.

use super::cost_view::CostView;
use super::place::{PlacementChoice, TaskReads, policy_of, request};
use super::{Dispatcher, ReadyQueue, Turn};
use crate::policy::{Candidate, PlacementQuestion};
use tidemill_model::event::TaskRole;
use tidemill_model::id::TaskId;
use tidemill_model::time::Span;

/// Maximum number of candidate nodes that a policy sees for all tasks of a batch together, except for the first two tasks.
const CANDIDATES_MAX: usize = 1 << 16;

impl Dispatcher {
    /// Returns the first tasks of a ready queue, if their policy places several tasks together and the queue has several tasks.
    pub(super) fn batch(
        &mut self,
        line: ReadyQueue,
        first: TaskId,
        turn: &Turn<'_>,
    ) -> Vec<TaskId> {
        if !matches!(line, ReadyQueue::Fresh | ReadyQueue::Any(_)) {
            return Vec::new();
        }
        let policy = |id: TaskId| {
            let task = self.tasks.get(&id)?;
            let free = task.spec.node.is_none() && task.spec.share != TaskRole::Join;
            Some(policy_of(task, self.jobs.get(&task.job)?)).filter(|_| free)
        };
        let Some(name) = policy(first) else {
            return Vec::new();
        };
        let most = self.policies.get(name).map_or(1, |one| one.batch_max());
        if most < 2 {
            return Vec::new();
        }
        let stores = self.nodes.stores().len();
        let most = most.min(CANDIDATES_MAX / stores.max(1)).max(2);
        let members = self.lines.get(&line);
        let members = members
            .into_iter()
            .flat_map(|line| line.in_turn(&self.turns));
        let members = members
            .take(most)
            .take_while(|&id| policy(id) == Some(name));
        let mut tasks: Vec<TaskId> = members.collect();
        self.nodes.renew(turn.now);
        let mut slots = 0;
        for id in self.nodes.open().iter() {
            slots += self.nodes.get(id).map_or(0, |node| node.slots());
            if slots >= tasks.len() {
                break;
            }
        }
        tasks.truncate(slots);
        if tasks.len() < 2 {
            tasks.clear();
        }
        tasks
    }

    /// Asks the policy of some tasks for a node for each task, and sends or queues each task. Returns whether all tasks were sent.
    pub(super) fn place_together(&mut self, tasks: &[TaskId], turn: &mut Turn<'_>) -> bool {
        let news = self.news;
        for &id in tasks {
            self.task_mut(id).asked = news;
        }
        let mut all_sent = true;
        for (id, answer) in tasks.iter().zip(self.ask_together(tasks, turn)) {
            if !self.can_issue(*id) {
                // The task stays in its line, and the next event continues here.
                return true;
            }
            all_sent &= self.carry_out(*id, answer, turn);
        }
        all_sent
    }

    pub(super) fn ask_together(
        &mut self,
        tasks: &[TaskId],
        turn: &Turn<'_>,
    ) -> Vec<PlacementChoice> {
        let mut asks = Vec::with_capacity(tasks.len());
        let mut all_reads = Vec::with_capacity(tasks.len());
        for &id in tasks {
            let mut reads = TaskReads::default();
            self.read(id, None, &mut reads);
            let task = self
                .tasks
                .get(&id)
                .expect("a task that is asked for is known");
            let spare = std::mem::take(&mut self.spare);
            let barred = self.classes.barred(task.class, &self.nodes);
            let mut cost_view = CostView::new(
                &mut self.nodes,
                &self.learned,
                (task, barred),
                &reads,
                (Span::default(), turn.now),
                spare,
            );
            let candidates = cost_view.all_stores().to_vec();
            self.spare = cost_view.into_lists();
            asks.push(PlacementQuestion {
                request: request(id, task, self.jobs.get(&task.job), &reads),
                candidates,
            });
            all_reads.push(reads);
        }
        let task = tasks.first().and_then(|id| self.tasks.get(id));
        let name = task.and_then(|task| Some(policy_of(task, self.jobs.get(&task.job)?)));
        let policy = name.and_then(|name| self.policies.get(name));
        let choices = policy.map_or_else(Vec::new, |policy| policy.place_all(&mut asks));
        let answers = asks.into_iter().zip(choices).zip(all_reads);
        let answers = answers.map(|((ask, choice), reads)| {
            let on =
                |one: &&Candidate| choice.is_some_and(|choice| choice.node == one.estimate.node);
            PlacementChoice {
                choice,
                chosen: ask.candidates.iter().find(on).copied(),
                reads,
                earliest: Span::default(),
            }
        });
        answers.collect()
    }
}
