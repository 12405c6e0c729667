//! Jobs: handling of submission, restoration after a restart, cancellation and deletion.

use super::task::{SentLabel, is_end};
use super::{DispatchedJob, DispatchedTask, Dispatcher, INSTANCES, Presence, Turn, UNKNOWN_RUN};
use crate::policy;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::event::{
    Action, JobSpec, JobState, Origin, RecoveredState, TaskRole, TaskState,
};
use tidemill_model::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Failure, FailureKind};
use tidemill_model::object::Placed;
use tidemill_model::resources::TaskRequirements;

impl Dispatcher {
    pub(super) fn on_submitted(&mut self, spec: JobSpec, turn: &mut Turn<'_>) {
        if self.jobs.contains_key(&spec.job) {
            return;
        }
        let id = spec.job;
        let policy = self.known_policy(spec.policy);
        let mut roles = spec.tasks.iter().map(|task| task.share);
        if roles.any(|role| role == TaskRole::Instance) {
            self.known_policy(Some(INSTANCES.to_owned()));
        }
        let tasks: Vec<TaskId> = spec.tasks.iter().map(|task| task.task).collect();
        let mut job = DispatchedJob {
            owner: spec.owner,
            policy,
            tasks: tasks.clone(),
            state: JobState::Running,
            counts: BTreeMap::new(),
            waves: BTreeMap::new(),
            submitted: turn.now,
            ended: None,
        };
        let mut sent = Vec::new();
        for mut spec in spec.tasks {
            let ended = spec.ended.take();
            let key = spec.task;
            let kernel = self.learned.number(spec.kernel.name());
            let class = self.classes.enter(TaskRequirements {
                needs: spec.needs.clone(),
                programs: spec.programs.clone(),
            });
            let mut task = DispatchedTask::new(id, spec, (kernel, class));
            task.awaited = task
                .spec
                .inputs
                .iter()
                .filter(|input| input.origin == Origin::Awaited)
                .count();
            match ended {
                Some(RecoveredState::Done(outputs)) => {
                    task.state = TaskState::Done;
                    task.outputs = Some(outputs);
                }
                Some(RecoveredState::Failed) => task.state = TaskState::Failed,
                Some(RecoveredState::Sent {
                    label,
                    node,
                    objects,
                    tries,
                }) => {
                    task.tries = tries;
                    sent.push((key, label, node, objects));
                }
                None => {}
            }
            *job.counts.entry(task.state).or_default() += 1;
            self.tasks.insert(key, task);
        }
        self.jobs.insert(id, job);
        turn.out.push(Action::Job {
            job: id,
            state: JobState::Running,
            at: turn.now,
        });
        self.link(&tasks);
        self.bring_back(id, sent, turn);
        for &task in &tasks {
            if self.task(task).idle() {
                self.settle(task, turn);
            }
        }
        self.ending.insert(id, ());
    }

    /// Returns the name of an existing policy for a job, and creates the policy at its first use.
    fn known_policy(&mut self, name: Option<String>) -> String {
        let Some(name) = name else {
            return self.config.policy.clone();
        };
        if self.policies.contains_key(&name) {
            return name;
        }
        match crate::policy::by_name(&name, self.config.seed) {
            Ok(policy) => {
                self.policies.insert(name.clone(), policy);
                name
            }
            Err(_) => self.config.policy.clone(),
        }
    }

    /// Records tasks with their dependencies and with the file paths that the tasks wait for.
    fn link(&mut self, tasks: &[TaskId]) {
        for &id in tasks {
            let open = !is_end(self.task(id).state);
            for index in 0..self.task(id).spec.inputs.len() {
                match self.task(id).spec.inputs[index].origin {
                    Origin::File(_) => {}
                    Origin::Awaited if open => {
                        let path = self.task(id).spec.inputs[index].path.clone();
                        self.awaited.entry(path).or_default().insert(id);
                    }
                    Origin::Awaited => {}
                    Origin::Task(maker, _) => {
                        if let Some(maker) = self.tasks.get_mut(&maker) {
                            maker.dependents.insert(id, ());
                        }
                    }
                }
            }
        }
    }

    /// Resumes the labels that were outstanding before a restart. A label whose inputs can't be determined any more is aborted, and its
    /// task is placed again.
    fn bring_back(
        &mut self,
        job: JobId,
        mut sent: Vec<(TaskId, LabelId, NodeId, Vec<ObjectId>)>,
        turn: &mut Turn<'_>,
    ) {
        sent.sort_by_key(|(_, label, ..)| *label);
        let mut flying = BTreeMap::new();
        let mut down = BTreeSet::new();
        for (id, label, node, objects) in sent {
            let made = |origin| {
                let Origin::Task(maker, output) = origin else {
                    return None;
                };
                // Only earlier labels are considered: a later label of the producer would recompute the output that this label has read.
                let (on, objects): &(NodeId, Vec<ObjectId>) = flying.get(&maker)?;
                let object = *objects.get(output)?;
                (*on == node).then_some(Placed {
                    object,
                    node,
                    size: 0,
                })
            };
            let inputs: Option<Vec<Placed>> = (0..)
                .zip(&self.task(id).spec.inputs)
                .map(|(index, input)| self.input(id, index).or_else(|| made(input.origin)))
                .collect();
            let known = inputs.is_some();
            let count = self.task(id).spec.inputs.len();
            let follows = known && (0..count).any(|index| self.input(id, index).is_none());
            if known {
                flying.insert(id, (node, objects.clone()));
            }
            let issued = SentLabel {
                task: id,
                job,
                node,
                objects,
                inputs: inputs.unwrap_or_default(),
                output_bytes: 0,
                chained: true,
                revoked: false,
                held: None,
            };
            self.labels.insert(label, issued);
            let needs = self.needs(id);
            self.node_mut(node).add(label, UNKNOWN_RUN, needs, follows);
            self.count_idle(node);
            if known {
                let task = self.task_mut(id);
                task.current = Some(label);
                task.tries += 1;
                self.set_state(id, TaskState::Sent, turn);
            } else {
                turn.out.push(Action::Abort { node, label });
                let message =
                    "its inputs are not known any more after a restart; it is placed again";
                let kind = FailureKind::Dependency;
                self.tell(
                    id,
                    Failure {
                        kind,
                        message: message.to_owned(),
                    },
                );
                self.set_state(id, TaskState::Waiting, turn);
            }
            if self.presence(node) == Presence::Down {
                down.insert(node);
            }
        }
        for node in down {
            self.revoke_labels(node, turn);
        }
    }

    pub(super) fn on_cancel(&mut self, id: JobId, turn: &mut Turn<'_>) {
        let Some(job) = self
            .jobs
            .get_mut(&id)
            .filter(|job| job.state == JobState::Running)
        else {
            return;
        };
        job.state = JobState::Cancelled;
        job.ended = Some(turn.now);
        for task in job.tasks.clone() {
            if is_end(self.task(task).state) {
                continue;
            }
            if let Some(label) = self.task(task).current {
                self.abort(label, turn);
            }
            let redone = self.task(task).redone();
            self.end_task(
                task,
                if redone {
                    TaskState::Done
                } else {
                    TaskState::Cancelled
                },
                turn,
            );
        }
        turn.out.push(Action::Job {
            job: id,
            state: JobState::Cancelled,
            at: turn.now,
        });
    }

    /// Aborts a live label. The label keeps its place in the node's queue until the node reports its end.
    pub(super) fn abort(&mut self, label: LabelId, turn: &mut Turn<'_>) {
        let Some(issued) = self.labels.get_mut(&label) else {
            return;
        };
        let (node, task) = (issued.node, issued.task);
        let held = issued.held.take();
        self.task_mut(task).current = None;
        if let Some(outcome) = held {
            self.labels.remove(&label);
            self.release(node, label);
            super::outcome::discard(node, &outcome, turn);
        } else {
            turn.out.push(Action::Abort { node, label });
        }
    }

    /// Deletes a job that has ended, and returns whether the job existed. Outcomes of its labels that arrive later are discarded.
    pub fn forget(&mut self, id: JobId) -> bool {
        if self
            .jobs
            .get(&id)
            .is_none_or(|job| job.state == JobState::Running)
        {
            return false;
        }
        let Some(job) = self.jobs.remove(&id) else {
            return false;
        };
        let other = self.jobs.values().any(|other| other.policy == job.policy);
        if policy::is_own(&job.policy) && !other && job.policy != self.config.policy {
            self.policies.remove(&job.policy);
        }
        for task in job.tasks {
            if let Some(task) = self.tasks.remove(&task) {
                self.classes.leave(task.class);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::super::speed::IdCounter;
    use super::*;
    use tidemill_model::event::Event;
    use tidemill_model::label::Owner;
    use tidemill_model::time::Time;

    #[test]
    fn policy_with_own_weights_is_forgotten_with_its_last_job() {
        let ids = Box::<IdCounter>::default();
        let mut dispatcher = Dispatcher::new(Config::default(), ids).unwrap();
        let mut out = Vec::new();
        for id in 1..=100 {
            let spec = JobSpec {
                job: JobId(id),
                owner: Owner::default(),
                policy: Some(format!("constraint:load={}", id / 2 + 1)),
                tasks: Vec::new(),
            };
            dispatcher.on(Event::Submitted(Box::new(spec)), Time(id), &mut out);
        }
        assert_eq!(dispatcher.policies.len(), 52);
        for id in 1..100 {
            assert!(dispatcher.forget(JobId(id)));
        }
        let left = ["constraint:load=51", "min-wait"];
        assert!(dispatcher.policies.keys().eq(left), "the last job has one");
    }
}
