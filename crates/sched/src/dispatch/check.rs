//! Checks of the dispatcher's invariants between events, for tests. A release build checks nothing.

use super::task::is_end;
use super::{DispatchedTask, Dispatcher, Presence, ReadyQueue};
use tidemill_model::event::{JobState, Origin, Role, TaskState};
use tidemill_model::id::TaskId;

impl Dispatcher {
    /// Checks every invariant of the dispatcher's state; takes time in proportion to the size of the state.
    ///
    /// # Panics
    /// If an invariant is violated; the panic message names the invariant.
    pub fn check(&self) {
        for (&id, task) in self.tasks.iter() {
            self.check_task(id, task);
            self.check_waiting(id, task);
        }
        self.check_lines();
        self.check_nodes();
        for (id, job) in &self.jobs {
            for (&state, &count) in &job.counts {
                let actual = job
                    .tasks
                    .iter()
                    .filter(|task| self.task(**task).state == state)
                    .count();
                assert_eq!(count, actual, "{id:?} counts its {state:?} tasks wrongly");
            }
            assert_eq!(
                job.state == JobState::Running,
                job.open() > 0,
                "{id:?} is {:?}",
                job.state
            );
        }
        for &id in &self.redone {
            assert!(self.task(id).redone(), "{id:?} is not run again");
        }
        assert!(self.outbox.is_empty(), "labels were left behind");
        assert!(self.labels_add_up(), "labels and nodes disagree");
    }

    fn check_task(&self, id: TaskId, task: &DispatchedTask) {
        let sent = matches!(task.state, TaskState::Sent | TaskState::Running);
        assert_eq!(sent, task.current.is_some(), "{id:?} is {:?}", task.state);
        assert_eq!(
            task.line.is_some(),
            task.state == TaskState::Ready,
            "{id:?} stands in line"
        );
        assert!(
            task.failure.is_none(),
            "{id:?} has a failure that was not reported"
        );
        if let Some(label) = task.current {
            let issued = self.labels.get(&label).expect("a live label is known");
            assert_eq!(issued.task, id);
            let node = self.nodes.get(&issued.node);
            let queued = node.is_some_and(|node| node.outstanding.contains_key(label));
            assert!(queued, "{label:?} of {id:?} is in no queue");
            let follows = node.is_some_and(|node| node.follows(label));
            let waits = task.state == TaskState::Sent && self.before_its_turn(label);
            assert_eq!(follows, waits, "{label:?} of {id:?} can run, or can't");
            for (input, used) in task.spec.inputs.iter().zip(&issued.inputs) {
                let flying = self.flying(input.origin, issued.node);
                let follows = flying.is_some_and(|flying| flying.object == used.object);
                assert!(issued.chained || !follows, "{label:?} is sent along");
            }
        }
        if task.state == TaskState::Done {
            let outputs = task.outputs.as_ref().map(Vec::len);
            assert_eq!(
                outputs,
                Some(task.spec.outputs.len()),
                "{id:?} is done without its result"
            );
        }
        if task.state == TaskState::Ready {
            for index in 0..task.spec.inputs.len() {
                let placed = self.input(id, index).expect("a ready task has its inputs");
                let used = task.ready_inputs.get(index);
                let used = used.expect("a ready task has all of its inputs");
                assert_eq!(
                    (used.object, used.size),
                    (placed.object, placed.size),
                    "{id:?}"
                );
                let selection = self.selection(id, index);
                assert!(
                    self.is_on(placed, selection, used.node) && self.reachable(*used, selection),
                    "{id:?} is ready, {used:?} is out of reach"
                );
            }
        }
        for (index, input) in task.spec.inputs.iter().enumerate() {
            let open = !is_end(task.state) && !task.found.contains_key(&index);
            if input.origin == Origin::Awaited && open && task.current.is_none() {
                assert!(
                    self.awaited[&input.path].contains(&id),
                    "{id:?} was not notified of {}",
                    input.path
                );
            }
        }
    }

    fn check_waiting(&self, id: TaskId, task: &DispatchedTask) {
        if task.state == TaskState::Waiting {
            let reason = !task.missing.is_empty() || task.awaited > 0 || task.stranded;
            assert!(reason, "{id:?} waits for nothing");
            assert_eq!(
                task.stranded,
                self.stranded.contains(&id),
                "{id:?} is stranded or not"
            );
        }
        for input in task
            .spec
            .inputs
            .iter()
            .filter(|_| task.state == TaskState::Waiting)
        {
            if let Origin::Task(maker, _) = input.origin {
                let made = self.task(maker).state == TaskState::Done;
                assert_ne!(
                    made,
                    task.missing.contains_key(maker),
                    "{id:?} waits for {maker:?} or not"
                );
            }
        }
        for maker in task.missing.keys() {
            assert!(
                !is_end(self.task(maker).state),
                "{id:?} waits for {maker:?}, which has ended"
            );
        }
    }

    fn check_lines(&self) {
        let mut standing = 0;
        for (line, members) in &self.lines {
            assert!(
                !members.is_empty() || *line == ReadyQueue::Fresh,
                "{line:?} is kept empty"
            );
            standing += members.len();
            for id in members.iter() {
                assert_eq!(
                    self.task(id).line,
                    Some(*line),
                    "{id:?} stands in two lines"
                );
            }
            let open = match line {
                ReadyQueue::Fresh => !members.is_empty(),
                ReadyQueue::Any(_) => false,
                // No node that can run these tasks is online.
                ReadyQueue::Barred(class) => members.iter().any(|id| self.could_run(*class, id)),
                ReadyQueue::Pinned(id) => self
                    .nodes
                    .get(id)
                    .is_some_and(super::node::NodeState::has_space),
                // If all cores are busy, another event will follow.
                ReadyQueue::At(id) => self
                    .nodes
                    .get(id)
                    .is_some_and(|node| node.has_space() && node.idle_cores() > 0),
            };
            assert!(!open, "{line:?} is not empty although there is space");
        }
        let ready = self
            .tasks
            .values()
            .filter(|task| task.state == TaskState::Ready)
            .count();
        assert_eq!(standing, ready, "ready tasks that stand in no line");
    }

    fn check_nodes(&self) {
        self.nodes.check();
        for (id, node) in self.nodes.iter() {
            let queued = || node.outstanding.values();
            let sum: u64 = queued().map(|queued| queued.work().0).sum();
            assert_eq!(sum, node.backlog.0, "backlog of {id:?}");
            let counted = node.outstanding.entries();
            let counted = counted.filter(|(label, _)| !node.follows(*label));
            let counted: Vec<u32> = counted.map(|(_, queued)| queued.cores).collect();
            let cores: u64 = counted.iter().map(|&cores| u64::from(cores)).sum();
            let running = node.running.values();
            let running: u64 = running.map(|(_, queued)| u64::from(queued.cores)).sum();
            let light = counted.iter().filter(|&&cores| cores == 0).count();
            assert_eq!(node.counted(), (cores, running, light), "cores of {id:?}");
            if node.presence == Presence::Down {
                assert!(node.outstanding.is_empty(), "{id:?} is down and has labels");
            }
            for label in node.running.keys() {
                assert!(
                    node.outstanding.contains_key(label),
                    "{label:?} runs on {id:?} unasked"
                );
            }
            let idle = node.view.role == Role::Store && node.idle_cores() > 0;
            assert_eq!(idle, self.idle.contains(&id), "{id:?} is idle or not");
        }
    }

    /// Returns whether every label in a node's queue is known; takes time in proportion to the number of nodes.
    pub(super) fn labels_add_up(&self) -> bool {
        let queued: usize = self
            .nodes
            .iter()
            .map(|(_, node)| node.outstanding.len())
            .sum();
        queued <= self.labels.len()
    }
}
