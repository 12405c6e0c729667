//! Tasks from Waiting to Ready: decides whether a task's inputs are available, and handles missing inputs. Effects are actions of the
//! dispatcher.
//!
//! An input on an offline node is recomputed if a task of the same job wrote the input and that task's own inputs are available,
//! recursively (lineage-based recovery); otherwise the task waits until the node is online again.

use super::small_map::SmallMap;
use super::task::is_end;
use super::turns::Line;
use super::{Dispatcher, LOSSES_MAX, Presence, Turn};
use std::collections::BTreeSet;
use std::ops::RangeFrom;
use tidemill_model::event::{Origin, TaskState};
use tidemill_model::id::{NodeId, ObjectId, TaskId};
use tidemill_model::label::{Failure, FailureKind};
use tidemill_model::layout::Selection;
use tidemill_model::object::Placed;

/// Obstacles that keep a task from being ready.
#[derive(Debug, Default)]
struct Obstacles {
    /// Inputs of the task that can be read now.
    placed: Vec<Placed>,
    /// Tasks whose outputs the task reads and which do not exist yet.
    missing: SmallMap<TaskId>,
    /// Tasks whose outputs are on a node that is not online, with the input's name and the node.
    lost: Vec<(TaskId, String, NodeId)>,
    /// Name and node of an input on a node that is not online, if any.
    stranded: Option<(String, NodeId)>,
    /// Dependency that will never be met: the input's path and the task that failed.
    hopeless: Option<(String, TaskId)>,
}

impl Dispatcher {
    pub(super) fn up(&self, node: NodeId) -> bool {
        self.presence(node) == Presence::Up
    }

    /// Returns whether a selection of a sealed object can be read now. A file that never contained a byte has no object and is always
    /// readable.
    pub(super) fn reachable(&self, placed: Placed, selection: &Selection) -> bool {
        if let Some(parts) = self.replicas.selected(placed.object, selection) {
            let mut parts = parts.into_iter();
            return parts.all(|(part, _)| self.reachable(part, &Selection::WHOLE));
        }
        let nearest = self.nearest(placed, selection);
        placed.object == ObjectId::STATUS || self.has(nearest)
    }

    /// Returns whether a node is online and still has the object.
    fn has(&self, placed: Placed) -> bool {
        self.up(placed.node) && !self.replicas.is_missing(placed.object, placed.node)
    }

    /// Returns the object with a location from which the selection can be read now, if such a location exists. An object that consists of
    /// parts gets the location of the first part that can't be read, or else of the first part.
    pub(super) fn nearest(&self, placed: Placed, selection: &Selection) -> Placed {
        if let Some(parts) = self.replicas.selected(placed.object, selection) {
            let parts = parts.into_iter();
            let parts = parts.map(|(part, _)| self.nearest(part, &Selection::WHOLE).node);
            let mut parts = parts.peekable();
            let first = parts.peek().copied();
            let offline = parts.find(|&node| !self.up(node));
            let node = offline.or(first).unwrap_or(placed.node);
            return Placed { node, ..placed };
        }
        if self.has(placed) {
            return placed;
        }
        let mut replicas = self.replicas.lasting(placed.object);
        let node = replicas.find(|&node| self.up(node));
        let suspended = || self.suspended_with(placed);
        let node = node.or_else(suspended).unwrap_or(placed.node);
        Placed { node, ..placed }
    }

    /// Returns whether the availability of the selection of an input may depend on `node`.
    pub(super) fn is_on(&self, placed: Placed, selection: &Selection, node: NodeId) -> bool {
        if let Some(parts) = self.replicas.selected(placed.object, selection) {
            let mut parts = parts.into_iter();
            return parts.any(|(part, _)| self.is_on(part, &Selection::WHOLE, node));
        }
        let mut replicas = self.replicas.lasting(placed.object);
        placed.node == node || replicas.any(|replica| replica == node)
    }

    /// Returns the number of bytes of an object that the selection covers.
    pub(super) fn bytes_of(&self, placed: Placed, selection: &Selection) -> u64 {
        if selection.is_whole() {
            return placed.size;
        }
        match self.replicas.selected(placed.object, selection) {
            Some(parts) => parts.iter().map(|(_, bytes)| bytes).sum(),
            None => selection.bytes_of(placed.size),
        }
    }

    /// Returns the selection of the task's input with this index.
    pub(super) fn selection(&self, id: TaskId, index: usize) -> &Selection {
        let input = self.task(id).spec.inputs.get(index);
        input.map_or(&Selection::WHOLE, |input| &input.selection)
    }

    /// Returns the sealed object of the task's input with this index, if it is sealed.
    pub(super) fn input(&self, id: TaskId, index: usize) -> Option<Placed> {
        let task = self.task(id);
        match task.spec.inputs.get(index)?.origin {
            Origin::File(placed) => Some(placed),
            Origin::Awaited => task.found.get(&index).copied(),
            Origin::Task(maker, output) => {
                let maker = self
                    .tasks
                    .get(&maker)
                    .filter(|maker| maker.state == TaskState::Done)?;
                maker.outputs.as_ref()?.get(output).copied()
            }
        }
    }

    /// Determines the state of tasks that no node has: makes them Ready, leaves them Waiting with the reason, or cancels them.
    pub(super) fn settle(&mut self, first: TaskId, turn: &mut Turn<'_>) {
        let mut pending = vec![first];
        while let Some(id) = pending.pop() {
            if self.task(id).idle() {
                self.settle_one(id, &mut pending, turn);
            }
        }
    }

    fn settle_one(&mut self, id: TaskId, pending: &mut Vec<TaskId>, turn: &mut Turn<'_>) {
        let mut obstacles = self.obstacles(id);
        if let Some((path, maker)) = obstacles.hopeless {
            let message = match self.tasks.get(&maker) {
                Some(maker) => format!(
                    "it reads `{path}`, which task `{}` did not make because it failed or was cancelled",
                    maker.spec.name
                ),
                None => format!("it reads `{path}`, which no task of the job makes"),
            };
            return self.abandon(id, TaskState::Cancelled, dependency(message), turn);
        }
        for (maker, name, node) in obstacles.lost {
            // An earlier input may have reopened the same task already.
            let redone = self.task(maker).state != TaskState::Done;
            if redone || self.can_redo(maker) {
                obstacles.missing.insert(maker, ());
                if !redone {
                    self.redo(maker, node, turn);
                    pending.push(maker);
                }
            } else {
                obstacles.stranded.get_or_insert((name, node));
            }
        }
        let stranded = obstacles.stranded.clone();
        let task = self.task_mut(id);
        task.missing = obstacles.missing;
        let ready = task.missing.is_empty() && task.awaited == 0 && stranded.is_none();
        let known_stranded = task.stranded;
        task.stranded = stranded.is_some();
        if let Some((name, node)) = stranded {
            self.stranded.insert(id);
            if !known_stranded {
                let message = match self.presence(node) {
                    Presence::Suspended => format!(
                        "input `{name}` is only on node {node}, which is suspended; the task waits until it is active"
                    ),
                    _ => format!(
                        "input `{name}` is only on node {node}, which is down or where it is corrupt; the task waits until it can be read"
                    ),
                };
                self.tell(
                    id,
                    Failure {
                        kind: FailureKind::Input,
                        message,
                    },
                );
            }
        } else {
            self.stranded.remove(&id);
        }
        if ready {
            self.task_mut(id).ready_inputs = obstacles.placed;
        }
        self.set_state(
            id,
            if ready {
                TaskState::Ready
            } else {
                TaskState::Waiting
            },
            turn,
        );
    }

    fn obstacles(&self, id: TaskId) -> Obstacles {
        let mut found = Obstacles::default();
        for (index, input) in self.task(id).spec.inputs.iter().enumerate() {
            if let Some(placed) = self.input(id, index) {
                if self.reachable(placed, &input.selection) {
                    found.placed.push(self.nearest(placed, &input.selection));
                    continue;
                }
                let name = input.name.clone();
                match input.origin {
                    Origin::Task(maker, _) => found.lost.push((maker, name, placed.node)),
                    _ => found.stranded = found.stranded.or(Some((name, placed.node))),
                }
            } else if let Origin::Task(maker, _) = input.origin {
                match self.tasks.get(&maker).map(|maker| maker.state) {
                    Some(state) if !is_end(state) => {
                        found.missing.insert(maker, ());
                    }
                    _ => found.hopeless = found.hopeless.or(Some((input.path.clone(), maker))),
                }
            }
        }
        found
    }

    /// Returns whether a done task with lost outputs can be run again: its inputs are available, or can be recomputed.
    fn can_redo(&self, id: TaskId) -> bool {
        let mut seen = BTreeSet::new();
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            if !seen.insert(id) {
                continue;
            }
            let task = self.task(id);
            let outputs = task.outputs.iter().flatten();
            let expected = outputs
                .filter(|placed| {
                    matches!(
                        self.presence(self.nearest(**placed, &Selection::WHOLE).node),
                        Presence::Expected | Presence::Suspended
                    )
                })
                .count();
            let pinned_offline = task.spec.node.is_some_and(|node| !self.up(node));
            if task.losses >= LOSSES_MAX || expected > 0 || pinned_offline {
                return false;
            }
            for (index, input) in task.spec.inputs.iter().enumerate() {
                match (self.input(id, index), input.origin) {
                    (Some(placed), _) if self.reachable(placed, &input.selection) => {}
                    (Some(_), Origin::Task(maker, _)) => pending.push(maker),
                    (None, Origin::Task(maker, _)) => {
                        let maker = self.tasks.get(&maker);
                        if maker.is_none_or(|maker| maker.stranded || is_end(maker.state)) {
                            return false;
                        }
                    }
                    _ => return false,
                }
            }
        }
        true
    }

    /// Reopens a done task so that it is run again.
    fn redo(&mut self, id: TaskId, lost: NodeId, turn: &mut Turn<'_>) {
        let message = format!(
            "its outputs are on node {lost}, which is down or where they are corrupt, and are still needed; it is run again"
        );
        let task = self.task_mut(id);
        task.losses += 1;
        task.tries = 0;
        self.tell(
            id,
            Failure {
                kind: FailureKind::NodeLost,
                message,
            },
        );
        self.redone.insert(id);
        self.set_state(id, TaskState::Waiting, turn);
        for other in self.dependents(id) {
            let task = self.task_mut(other);
            if task.state == TaskState::Waiting {
                task.missing.insert(id, ());
            }
        }
    }

    /// Returns tasks that were to be run again to Done if their outputs are available after all or no task needs the outputs any more.
    /// Tasks that a node already has keep running.
    pub(super) fn restore_redone(&mut self, turn: &mut Turn<'_>) {
        loop {
            let restored: Vec<TaskId> = self
                .redone
                .iter()
                .copied()
                .filter(|&id| self.restorable(id))
                .collect();
            if restored.is_empty() {
                return;
            }
            for id in restored {
                self.restore(id, turn);
            }
        }
    }

    fn restorable(&self, id: TaskId) -> bool {
        let task = self.task(id);
        let reachable = || {
            task.outputs
                .iter()
                .flatten()
                .all(|&placed| self.up(self.nearest(placed, &Selection::WHOLE).node))
        };
        let needed = || {
            task.dependents
                .keys()
                .any(|other| self.task(other).missing.contains_key(id))
        };
        task.idle() && (reachable() || !needed())
    }

    /// Restores the earlier result of a reopened task.
    pub(super) fn restore(&mut self, id: TaskId, turn: &mut Turn<'_>) {
        self.redone.remove(&id);
        self.stranded.remove(&id);
        let task = self.task_mut(id);
        task.stranded = false;
        task.missing = SmallMap::default();
        task.failure = None;
        self.set_state(id, TaskState::Done, turn);
        self.release_dependents(id, turn);
    }

    /// Returns the tasks that read the outputs of a task.
    pub(super) fn dependents(&self, id: TaskId) -> Vec<TaskId> {
        self.task(id).dependents.keys().collect()
    }

    /// Returns the next dependent of a task. Tasks and their dependents do not change after their job was added, so the caller sees every
    /// dependent whatever it changes in between.
    pub(super) fn next_dependent(
        &self,
        id: TaskId,
        places: &mut RangeFrom<usize>,
    ) -> Option<TaskId> {
        self.task(id).dependents.nth_key(places.next()?)
    }

    /// Informs the tasks that wait for task `id` that its outputs exist.
    pub(super) fn release_dependents(&mut self, id: TaskId, turn: &mut Turn<'_>) {
        let mut dependents = 0..;
        while let Some(other) = self.next_dependent(id, &mut dependents) {
            let task = self.task_mut(other);
            let last = task.missing.remove(id).is_some() && task.missing.is_empty();
            let (idle, current) = (task.idle(), task.current);
            if last && idle {
                self.settle(other, turn);
            } else if let Some(label) = current.filter(|&label| !self.before_its_turn(label)) {
                self.follow_no_more(label);
            }
        }
    }

    /// Ends a task as failed, together with all dependent tasks that no node has. Dependent tasks that a node has either read an earlier
    /// result, or the node reports their failure.
    pub(super) fn abandon(
        &mut self,
        id: TaskId,
        state: TaskState,
        failure: Failure,
        turn: &mut Turn<'_>,
    ) {
        let mut pending = vec![(id, state, failure)];
        while let Some((id, state, failure)) = pending.pop() {
            if is_end(self.task(id).state) {
                continue;
            }
            self.tell(id, failure);
            self.end_task(id, state, turn);
            let name = self.task(id).spec.name.clone();
            for other in self.task(id).dependents.keys().rev() {
                let task = self.task(other);
                if task.idle() && task.missing.contains_key(id) {
                    let message =
                        format!("it depends on task `{name}`, which failed or was cancelled");
                    pending.push((other, TaskState::Cancelled, dependency(message)));
                }
            }
        }
        self.restore_redone(turn);
    }

    /// Ends a task that no node has, with the given final state.
    pub(super) fn end_task(&mut self, id: TaskId, state: TaskState, turn: &mut Turn<'_>) {
        self.stranded.remove(&id);
        self.redone.remove(&id);
        let task = self.task_mut(id);
        task.missing = SmallMap::default();
        task.stranded = false;
        task.current = None;
        self.forget_awaited(id);
        self.set_state(id, state, turn);
    }

    fn forget_awaited(&mut self, id: TaskId) {
        let paths: Vec<String> = {
            let inputs = self.task(id).spec.inputs.iter();
            inputs
                .filter(|input| input.origin == Origin::Awaited)
                .map(|input| input.path.clone())
                .collect()
        };
        for path in paths {
            if let Some(waiting) = self.awaited.get_mut(&path) {
                waiting.remove(&id);
                if waiting.is_empty() {
                    self.awaited.remove(&path);
                }
            }
        }
    }

    /// Handles a gained or lost replica of an object. Tasks that waited for a node may now read their input from another node, and ready
    /// tasks may have to wait again.
    pub(super) fn on_copied(
        &mut self,
        object: ObjectId,
        node: NodeId,
        there: bool,
        turn: &mut Turn<'_>,
    ) {
        self.replicas.set(object, node, there);
        if there {
            for task in std::mem::take(&mut self.stranded) {
                self.settle(task, turn);
            }
            return;
        }
        let ready = self.lines.values().flat_map(Line::iter);
        let ready = ready.filter(|&task| {
            let mut inputs = self.task(task).ready_inputs.iter();
            inputs.any(|placed| {
                let mut parts = self.replicas.parts(placed.object).into_iter().flatten();
                (placed.object == object && placed.node == node)
                    || parts.any(|part| part.object == object)
            })
        });
        for task in ready.collect::<Vec<_>>() {
            self.settle(task, turn);
        }
    }

    /// Returns whether replicas of an object were reported and not forgotten since. If so, the driver must report their changes, too.
    #[must_use]
    pub fn knows_replicas(&self, object: ObjectId) -> bool {
        self.replicas.knows(object)
    }

    /// Removes the records of an object's replicas, because no job reads the object any more and no changes are reported.
    pub fn forget_replicas(&mut self, object: ObjectId) {
        self.replicas.forget_lasting(object);
    }

    pub(super) fn on_file_sealed(&mut self, path: &str, placed: Placed, turn: &mut Turn<'_>) {
        for id in self.awaited.remove(path).unwrap_or_default() {
            let task = self.task_mut(id);
            for (index, input) in task.spec.inputs.iter().enumerate() {
                if input.origin == Origin::Awaited && input.path == path {
                    task.found.insert(index, placed);
                    task.awaited -= 1;
                }
            }
            if task.awaited == 0 && task.missing.is_empty() && task.idle() {
                self.settle(id, turn);
            }
        }
    }
}

fn dependency(message: String) -> Failure {
    Failure {
        kind: FailureKind::Dependency,
        message,
    }
}
