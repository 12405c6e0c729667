//! End of labels: decides which outcomes count, and the next state of the task. Effects are actions of the dispatcher.

use super::small_map::SmallMap;
use super::task::SentLabel;
use super::{Dispatcher, LOSSES_MAX, Turn};
use tidemill_model::directory;
use tidemill_model::event::{Action, Origin, OutputSpec, TaskState};
use tidemill_model::id::{LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Failure, FailureKind, Outcome, SealedOutput};
use tidemill_model::object::Placed;

impl Dispatcher {
    pub(super) fn on_started(&mut self, node: NodeId, label: LabelId, turn: &mut Turn<'_>) {
        let Some(issued) = self.labels.get(&label).filter(|issued| issued.node == node) else {
            return;
        };
        let task = issued.task;
        if self.live(label) && self.task(task).state == TaskState::Sent {
            self.node_mut(node).start(label, turn.now);
            self.count_idle(node);
            self.set_state(task, TaskState::Running, turn);
        }
    }

    /// Handles the end of a label. Unknown labels are ignored: they were answered already, or belong to an earlier start of the dispatcher.
    /// Outputs of unknown labels are never discarded, since they may be in use.
    pub(super) fn on_finished(
        &mut self,
        node: NodeId,
        label: LabelId,
        outcome: Box<Outcome>,
        turn: &mut Turn<'_>,
    ) {
        if self.maintenance_tasks.end(label, node) {
            return;
        }
        if self
            .labels
            .get(&label)
            .is_none_or(|issued| issued.node != node)
        {
            return;
        }
        if !self.live(label) {
            self.release(node, label);
            return self.finish_late(label, outcome, turn);
        }
        if outcome.result.is_ok() && self.before_its_turn(label) {
            if let Some(issued) = self.labels.get_mut(&label) {
                issued.held = Some(outcome);
            }
            return;
        }
        self.conclude(label, *outcome, turn);
    }

    /// Handles the outcome of a label that was revoked or aborted.
    fn finish_late(&mut self, label: LabelId, outcome: Box<Outcome>, turn: &mut Turn<'_>) {
        if outcome.result.is_ok() && self.revivable(label) && !self.before_its_turn(label) {
            let Some(issued) = self.labels.get(&label) else {
                return;
            };
            let id = issued.task;
            let task = self.task_mut(id);
            task.current = Some(label);
            task.tries += 1;
            task.missing = SmallMap::default();
            task.stranded = false;
            self.stranded.remove(&id);
            return self.conclude(label, *outcome, turn);
        }
        if let Some(issued) = self.labels.remove(&label) {
            discard(issued.node, &outcome, turn);
        }
    }

    /// Returns whether the label read an output of another label whose outcome has not been reported yet.
    pub(super) fn before_its_turn(&self, label: LabelId) -> bool {
        let Some(issued) = self.labels.get(&label).filter(|issued| issued.chained) else {
            return false;
        };
        let inputs = self
            .task(issued.task)
            .spec
            .inputs
            .iter()
            .zip(&issued.inputs);
        inputs.into_iter().any(|(input, used)| {
            let flying = self.flying(input.origin, issued.node);
            flying.is_some_and(|flying| flying.object == used.object)
        })
    }

    /// Counts the resources that labels need from now on, after the labels that they followed have ended.
    pub(super) fn follow_no_more(&mut self, label: LabelId) {
        let Some(node) = self.labels.get(&label).map(|issued| issued.node) else {
            return;
        };
        if self.node_mut(node).follows_no_more(label) {
            self.count_idle(node);
        }
    }

    /// Returns the object that an input will be after an outstanding label on `node` has succeeded.
    pub(super) fn flying(&self, origin: Origin, node: NodeId) -> Option<Placed> {
        let Origin::Task(maker, output) = origin else {
            return None;
        };
        let label = self.tasks.get(&maker)?.current?;
        let issued = self
            .labels
            .get(&label)
            .filter(|issued| issued.node == node)?;
        let object = *issued.objects.get(output)?;
        Some(Placed {
            object,
            node,
            size: issued.output_bytes,
        })
    }

    /// Handles the outcome of a live label.
    fn conclude(&mut self, label: LabelId, outcome: Outcome, turn: &mut Turn<'_>) {
        let Some(issued) = self.labels.remove(&label) else {
            return;
        };
        let id = issued.task;
        self.release(issued.node, label);
        self.task_mut(id).current = None;
        let measured = (
            outcome.end.since(outcome.kernel_start).0,
            outcome.read_bytes,
        );
        match outcome.result {
            Ok(sealed) => match self.outputs(&issued, &sealed) {
                Some(outputs) => {
                    // The time of a cached result or of a streamed input does not tell how long a run takes.
                    if outcome.reused.is_none() && outcome.streamed == 0 {
                        self.learn(id, issued.node, measured);
                    }
                    self.succeed(id, label, outputs, turn);
                }
                None => {
                    let message = "the node did not report all of its outputs".to_owned();
                    let kind = FailureKind::MissingOutput;
                    let failure = Failure { kind, message };
                    self.fail(id, issued, failure, turn);
                }
            },
            Err(failure) => self.fail(id, issued, failure, turn),
        }
    }

    /// Returns the outputs of a label in the order of its task's outputs; `None` if the node did not report all of them.
    fn outputs(&self, issued: &SentLabel, sealed: &[SealedOutput]) -> Option<Vec<Placed>> {
        let node = issued.node;
        let find = |(output, &object): (&OutputSpec, &ObjectId)| {
            let size = if output.is_directory() {
                let files = directory::files(&output.name, object, sealed)?;
                files.iter().map(|file| file.size).sum()
            } else {
                sealed.iter().find(|sealed| sealed.object == object)?.size
            };
            Some(Placed { object, node, size })
        };
        let outputs = &self.task(issued.task).spec.outputs;
        outputs.iter().zip(&issued.objects).map(find).collect()
    }

    /// Revokes the labels that follow a label that did not succeed, and returns their tasks. The node does not run these labels, either,
    /// but may not have been informed of them yet.
    fn abandon_followers(
        &mut self,
        id: TaskId,
        objects: Vec<ObjectId>,
        turn: &mut Turn<'_>,
    ) -> Vec<TaskId> {
        let mut abandoned = Vec::new();
        let mut pending = vec![(id, objects)];
        while let Some((id, objects)) = pending.pop() {
            let name = self.task(id).spec.name.clone();
            for other in self.dependents(id) {
                let Some(label) = self.task(other).current else {
                    continue;
                };
                let Some(issued) = self.labels.get(&label) else {
                    continue;
                };
                if !issued
                    .inputs
                    .iter()
                    .any(|used| objects.contains(&used.object))
                {
                    continue;
                }
                pending.push((other, issued.objects.clone()));
                self.abort(label, turn);
                let message =
                    format!("task `{name}`, which it was sent along with, did not succeed");
                let task = self.task_mut(other);
                task.tries = task.tries.saturating_sub(1);
                let kind = FailureKind::Dependency;
                self.tell(other, Failure { kind, message });
                self.set_state(other, TaskState::Waiting, turn);
                abandoned.push(other);
            }
        }
        abandoned
    }

    fn learn(&mut self, id: TaskId, node: NodeId, measured: (u64, u64)) {
        let kernel = self.task(id).kernel;
        let new = self.learned.of(kernel).pooled.runs == 0;
        let history = self.learned.add(kernel, node, measured);
        if new {
            self.expect_again(kernel);
        }
        // A mean changes most with the first runs.
        if history.runs.is_power_of_two() {
            self.news += 1;
            self.to_look = usize::MAX;
        }
    }

    fn succeed(&mut self, id: TaskId, label: LabelId, outputs: Vec<Placed>, turn: &mut Turn<'_>) {
        self.redone.remove(&id);
        let task = self.task_mut(id);
        task.avoid.clear();
        task.outputs = Some(outputs.clone());
        turn.out.push(Action::Publish {
            task: id,
            label,
            outputs,
        });
        self.set_state(id, TaskState::Done, turn);
        self.release_held(id, turn);
        self.release_dependents(id, turn);
    }

    /// Handles successes that were held until this task's success was known.
    fn release_held(&mut self, id: TaskId, turn: &mut Turn<'_>) {
        let mut dependents = 0..;
        while let Some(other) = self.next_dependent(id, &mut dependents) {
            let Some(label) = self.task(other).current else {
                continue;
            };
            if self.before_its_turn(label) {
                continue;
            }
            if let Some(outcome) = self
                .labels
                .get_mut(&label)
                .and_then(|issued| issued.held.take())
            {
                self.conclude(label, *outcome, turn);
            }
        }
    }

    /// Handles a failure of a task. A failure without the task's own fault (its node was lost, an input could not be fetched) counts as a
    /// loss and not as a try.
    fn fail(&mut self, id: TaskId, issued: SentLabel, failure: Failure, turn: &mut Turn<'_>) {
        let followers = self.abandon_followers(id, issued.objects, turn);
        let kind = failure.kind;
        let task = self.task_mut(id);
        if matches!(
            kind,
            FailureKind::NodeLost | FailureKind::Device | FailureKind::Input | FailureKind::Unfit
        ) {
            task.avoid.insert(issued.node);
        }
        let again = match kind {
            FailureKind::Dependency | FailureKind::Rescheduled => true,
            FailureKind::NodeLost | FailureKind::Input | FailureKind::Unfit => {
                task.losses += 1;
                task.losses <= LOSSES_MAX
            }
            _ => kind.retryable() && task.tries <= task.spec.retries,
        };
        if matches!(
            kind,
            FailureKind::Dependency
                | FailureKind::NodeLost
                | FailureKind::Input
                | FailureKind::Rescheduled
                | FailureKind::Unfit
        ) {
            task.tries = task.tries.saturating_sub(1);
        }
        if again {
            self.tell(id, failure);
            self.set_state(id, TaskState::Waiting, turn);
            self.settle(id, turn);
        } else {
            self.abandon(id, TaskState::Failed, failure, turn);
        }
        for follower in followers {
            self.settle(follower, turn);
        }
    }
}

/// Deletes the outputs of a success that does not count.
pub(super) fn discard(node: NodeId, outcome: &Outcome, turn: &mut Turn<'_>) {
    if let Ok(sealed) = &outcome.result
        && !sealed.is_empty()
    {
        let objects = sealed.iter().map(|sealed| sealed.object).collect();
        turn.out.push(Action::Discard { node, objects });
    }
}
