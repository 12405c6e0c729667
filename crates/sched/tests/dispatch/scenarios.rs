//! Scenarios of the dispatcher: each test checks its behaviour for one kind of job, node or event.

use crate::cluster::{Dice, DispatchWorld, failed, job, task, view};
use crate::faults::QUIET;
use std::collections::BTreeMap;
use tidemill_model::event::*;
use tidemill_model::id::*;
use tidemill_model::label::*;
use tidemill_model::layout::{Layout, Part, Selection, StripedLayout};
use tidemill_model::object::Placed;
use tidemill_model::time::Span;
use tidemill_sched::dispatch::{
    COPY_LABELS_BYTES_MAX, COPY_LABELS_MAX, COPY_LABELS_MIN, Config, LOSSES_MAX,
    MAINTENANCE_TASKS_MAX, QUEUE_FACTOR, QUEUE_FACTOR_MAX, QUEUE_MIN, UNKNOWN_RUN,
};

/// Returns a cluster of storage nodes 0.. with one core each, all online.
fn cluster(nodes: u32) -> DispatchWorld {
    let machines: Vec<_> = (0..nodes).map(|id| (id, Role::Store, 1)).collect();
    with_machines(&machines)
}

fn with_machines(machines: &[(u32, Role, u32)]) -> DispatchWorld {
    let mut world = DispatchWorld::new(1, QUIET, Config::default(), machines);
    for &(id, role, cores) in machines {
        world.on(Event::NodeUp {
            node: NodeId(id),
            view: view(role, cores),
        });
    }
    world
}

impl DispatchWorld {
    /// Returns the node and the label of a task's latest try.
    fn sent(&self, task: u64) -> Option<(u32, Label)> {
        let mut found = None;
        for action in &self.log {
            if let Action::Send { node, labels } = action {
                let mut of_task = labels
                    .iter()
                    .filter(|label| analysis(label).task == TaskId(task));
                found = of_task
                    .next_back()
                    .map(|label| (node.0, label.clone()))
                    .or(found);
            }
        }
        found
    }

    fn states(&self, job: u64) -> Vec<TaskState> {
        self.dispatcher
            .tasks(JobId(job))
            .map(|task| task.state)
            .collect()
    }

    fn job_state(&self, job: u64) -> JobState {
        self.dispatcher.job(JobId(job)).unwrap().state
    }

    /// Returns the last reported failure of a task.
    fn failure(&self, task: u64) -> Option<Failure> {
        self.log.iter().rev().find_map(|action| match action {
            Action::Task {
                task: id,
                failure: Some(failure),
                ..
            } if id.0 == task => Some(failure.clone()),
            _ => None,
        })
    }

    fn finish(&mut self, task: u64, result: Result<u64, FailureKind>) {
        let (node, label) = self.sent(task).unwrap();
        self.finish_label(node, &label, result);
    }

    fn finish_label(&mut self, node: u32, label: &Label, result: Result<u64, FailureKind>) {
        let mut outcome = failed(FailureKind::Exit(1));
        outcome.result = match result {
            Ok(size) => {
                let outputs = analysis(label).outputs.iter();
                Ok(outputs
                    .map(|output| SealedOutput::file(output.object, size))
                    .collect())
            }
            Err(kind) => failed(kind).result,
        };
        for output in outcome.result.iter().flatten() {
            self.make(output.object, NodeId(node));
        }
        self.on(Event::Finished {
            node: NodeId(node),
            label: label.id,
            outcome,
        });
    }

    fn begin(&mut self, task: u64) {
        let (node, label) = self.sent(task).unwrap();
        self.on(Event::Started {
            node: NodeId(node),
            label: label.id,
        });
    }

    fn lose(&mut self, node: u32) {
        self.on(Event::NodeDown { node: NodeId(node) });
    }

    fn suspend(&mut self, node: u32) {
        self.on(Event::NodeSuspended { node: NodeId(node) });
    }

    /// Returns the suspended nodes that are needed.
    fn needed(&self) -> Vec<u32> {
        let demand = self.dispatcher.demand(self.now);
        demand.wanted.into_iter().map(|node| node.0).collect()
    }

    fn gain(&mut self, node: u32) {
        self.on(Event::NodeUp {
            node: NodeId(node),
            view: view(Role::Store, 1),
        });
    }

    fn count(&self, is: impl Fn(&Action) -> bool) -> usize {
        self.log.iter().filter(|action| is(action)).count()
    }
}

fn analysis(label: &Label) -> &Analysis {
    let Operation::Analyse(analysis) = &label.operation else {
        panic!("{label:?}")
    };
    analysis
}

fn from(task: u64) -> Origin {
    Origin::Task(TaskId(task), 0)
}

fn publishes(task: u64) -> impl Fn(&Action) -> bool {
    move |action| matches!(action, Action::Publish { task: id, .. } if id.0 == task)
}

#[test]
fn chain_is_sent_to_its_data_as_one_mini_dag() {
    let mut world = cluster(3);
    let raw = world.file(NodeId(2), 1 << 20);
    let chain = vec![
        task(1, "a", vec![Origin::File(raw)]),
        task(2, "b", vec![from(1)]),
        task(3, "c", vec![from(2)]),
    ];
    world.submit(job(1, "min-wait", chain));
    assert_eq!(
        world.count(|action| matches!(action, Action::Send { .. })),
        1
    );
    let (node, first) = world.sent(1).unwrap();
    let (_, second) = world.sent(2).unwrap();
    assert_eq!(node, 2);
    assert_eq!(first.after, []);
    assert_eq!(second.after, [first.id]);
    assert_eq!(
        analysis(&second).inputs[0].object,
        analysis(&first).outputs[0].object
    );
    for id in 1..=3 {
        world.finish(id, Ok(10));
    }
    assert_eq!(world.job_state(1), JobState::Done);
    assert_eq!(
        world.count(|action| matches!(action, Action::Publish { .. })),
        3
    );
}

/// A task with a streaming input runs on the node of the task that streams it if a core is free there, whatever the policy chooses. A
/// label that is rescheduled because its producer failed does not count as a try.
#[test]
fn streaming_task_runs_on_node_of_its_producer() {
    let mut world = with_machines(&[(0, Role::Store, 2), (1, Role::Store, 2)]);
    let mut streaming = task(2, "b", vec![from(1)]);
    streaming.inputs[0].streaming = true;
    let mut after = task(3, "c", vec![from(2)]);
    after.inputs[0].streaming = true;
    let tasks = vec![task(1, "a", vec![]), streaming, after];
    world.submit(job(1, "round-robin", tasks));
    let (node, first) = world.sent(1).unwrap();
    let (beside, second) = world.sent(2).unwrap();
    assert_eq!((node, beside), (0, 0));
    assert_eq!(analysis(&second).streaming, [0]);
    assert_eq!(
        (&second.after[..], &analysis(&first).streaming[..]),
        (&[first.id][..], &[][..])
    );
    world.begin(1);
    world.begin(2);
    assert_eq!(world.states(1)[..2], [TaskState::Running; 2]);
    world.finish(1, Err(FailureKind::Exit(1)));
    assert_eq!(
        world.count(|action| matches!(action, Action::Abort { label, .. } if *label == second.id)),
        1
    );
    world.finish_label(0, &second, Err(FailureKind::Dependency));
    let tries = |world: &DispatchWorld, task: usize| {
        world.dispatcher.tasks(JobId(1)).nth(task).unwrap().tries
    };
    assert_eq!((tries(&world, 0), tries(&world, 1)), (2, 1));
    world.begin(1);
    world.begin(2);
    for id in 1..=3 {
        world.finish(id, Ok(10));
    }
    assert_eq!((world.job_state(1), tries(&world, 1)), (JobState::Done, 1));
}

#[test]
fn task_with_inputs_on_two_nodes_waits_for_both() {
    let mut world = cluster(2);
    let (left, right) = (
        world.file(NodeId(0), 1 << 30),
        world.file(NodeId(1), 1 << 30),
    );
    let tasks = vec![
        task(1, "a", vec![Origin::File(left)]),
        task(2, "a", vec![Origin::File(right)]),
        task(3, "b", vec![from(1), from(2)]),
    ];
    world.submit(job(1, "input-locality", tasks));
    assert_eq!((world.sent(1).unwrap().0, world.sent(2).unwrap().0), (0, 1));
    world.finish(1, Ok(10));
    assert_eq!(world.states(1)[2], TaskState::Waiting);
    world.finish(2, Ok(1000));
    let (node, label) = world.sent(3).unwrap();
    assert_eq!(node, 1);
    assert_eq!(analysis(&label).inputs[0].node, NodeId(0));
    assert_eq!(label.after, []);
}

#[test]
fn failed_dependency_cancels_task_and_others_continue() {
    let mut world = cluster(1);
    let tasks = vec![
        task(1, "a", vec![]),
        task(2, "b", vec![from(1)]),
        task(3, "c", vec![]),
    ];
    world.submit(job(1, "min-wait", tasks));
    world.finish(1, Err(FailureKind::Timeout));
    assert_eq!(
        world.states(1),
        [TaskState::Failed, TaskState::Cancelled, TaskState::Sent]
    );
    assert!(world.failure(2).unwrap().message.contains("`t1`"));
    assert_eq!(world.job_state(1), JobState::Running);
    world.finish(3, Ok(1));
    assert_eq!(world.job_state(1), JobState::Failed);
}

#[test]
fn retryable_failure_is_retried_with_new_ids_up_to_limit() {
    let mut world = cluster(1);
    world.submit(job(1, "min-wait", vec![task(1, "a", vec![])]));
    let mut labels = std::collections::BTreeSet::new();
    for tries in 1..=3 {
        let label = world.sent(1).unwrap().1;
        assert!(labels.insert((label.id, analysis(&label).outputs[0].object)));
        assert_eq!(
            world.dispatcher.tasks(JobId(1)).next().unwrap().tries,
            tries
        );
        world.finish(1, Err(FailureKind::Exit(2)));
    }
    assert_eq!(world.states(1), [TaskState::Failed]);
    assert_eq!(world.failure(1).unwrap().kind, FailureKind::Exit(2));
}

#[test]
fn retry_avoids_failing_device() {
    let mut world = cluster(2);
    let raw = world.file(NodeId(0), 1 << 30);
    world.submit(job(
        1,
        "input-locality",
        vec![task(1, "a", vec![Origin::File(raw)])],
    ));
    assert_eq!(world.sent(1).unwrap().0, 0);
    world.finish(1, Err(FailureKind::Device));
    assert_eq!(world.sent(1).unwrap().0, 1);
}

#[test]
fn awaited_file_starts_its_task() {
    let mut world = cluster(1);
    world.submit(job(
        1,
        "min-wait",
        vec![task(1, "a", vec![Origin::Awaited])],
    ));
    assert_eq!(world.states(1), [TaskState::Waiting]);
    let placed = world.file(NodeId(0), 7);
    world.on(Event::FileSealed {
        path: "/other".into(),
        placed,
    });
    assert_eq!(world.states(1), [TaskState::Waiting]);
    world.on(Event::FileSealed {
        path: "/t1/in0".into(),
        placed,
    });
    let (_, label) = world.sent(1).unwrap();
    assert_eq!(analysis(&label).inputs[0].object, placed.object);
    // A later version does not affect this task.
    let later = Placed {
        object: ObjectId(77),
        ..placed
    };
    world.on(Event::FileSealed {
        path: "/t1/in0".into(),
        placed: later,
    });
    world.finish(1, Err(FailureKind::Exit(1)));
    assert_eq!(
        analysis(&world.sent(1).unwrap().1).inputs[0].object,
        placed.object
    );
}

#[test]
fn work_of_lost_node_is_rescheduled_if_inputs_are_up() {
    let mut world = cluster(2);
    let raw = world.file(NodeId(1), 10);
    let mut pinned_by_policy = task(1, "a", vec![Origin::File(raw)]);
    pinned_by_policy.retries = 0;
    world.submit(job(1, "round-robin", vec![pinned_by_policy]));
    let (node, old) = world.sent(1).unwrap();
    assert_eq!(node, 0);
    world.begin(1);
    world.lose(0);
    let (node, new) = world.sent(1).unwrap();
    assert_eq!(node, 1);
    assert_ne!(old.id, new.id);
    // The lost node reconnects with a result that another try has replaced.
    world.gain(0);
    assert_eq!(
        world.count(|action| matches!(action, Action::Abort { label, .. } if *label == old.id)),
        1
    );
    world.finish_label(0, &old, Ok(5));
    assert_eq!(
        world.count(|action| matches!(action, Action::Discard { .. })),
        1
    );
    world.finish(1, Ok(5));
    assert_eq!(world.count(publishes(1)), 1);
    assert_eq!(world.job_state(1), JobState::Done);
}

#[test]
fn work_waits_if_its_only_input_is_on_a_lost_node() {
    let mut world = cluster(2);
    let raw = world.file(NodeId(0), 10);
    world.submit(job(
        1,
        "min-wait",
        vec![task(1, "a", vec![Origin::File(raw)])],
    ));
    let (_, old) = world.sent(1).unwrap();
    world.begin(1);
    world.lose(0);
    assert_eq!(world.states(1), [TaskState::Waiting]);
    let reported = world.failure(1).unwrap().message;
    assert!(
        reported.contains("`in0`") && reported.contains("node 0"),
        "{reported}"
    );
    // The node reconnects and continues with its label: the same label, not another try.
    world.gain(0);
    assert_eq!(world.states(1), [TaskState::Sent]);
    assert_eq!(world.sent(1).unwrap().1.id, old.id);
    assert_eq!(world.wanted(NodeId(0)), [old]);
    world.finish(1, Ok(5));
    assert_eq!(world.count(publishes(1)), 1);
}

#[test]
fn maintenance_task_is_resent_until_its_node_has_done_it() {
    let mut world = cluster(2);
    let node = NodeId(1);
    let remove = |object| Operation::Remove {
        objects: vec![ObjectId(object)],
    };
    let copy = Operation::Copy {
        from: LabelInput {
            name: String::new(),
            object: ObjectId(7),
            node: NodeId(0),
            size: 5,
            selection: Selection::WHOLE,
        },
        to: LabelOutput {
            name: String::new(),
            object: ObjectId(8),
            inode: Inode(9),
            path: "/f".into(),
            memory: false,
        },
        part: None,
        mode: None,
    };
    let maintenance_task = |operation| Event::MaintenanceTask {
        node,
        owner: Owner::default(),
        operation,
    };
    world.on(maintenance_task(copy.clone()));
    for object in 0..10 {
        world.on(maintenance_task(remove(object)));
    }
    let sent = world.wanted(node);
    assert_eq!(
        sent.len(),
        1 + MAINTENANCE_TASKS_MAX,
        "the others are asked for again"
    );
    assert!(!world.dispatcher.takes_maintenance_task(node, Lane::Remove));
    assert_eq!(sent[0].operation, copy);
    assert_eq!(sent[1].operation, remove(0));
    // The label belongs to this node even while the node is lost.
    world.lose(1);
    world.on(maintenance_task(remove(20)));
    assert_eq!(world.wanted(node), sent);
    world.gain(1);
    assert_eq!(world.wanted(node), sent);
    // A report from another node has no effect.
    for (on, left) in [(NodeId(0), sent.len()), (node, sent.len() - 1)] {
        world.on(Event::Finished {
            node: on,
            label: sent[1].id,
            outcome: failed(FailureKind::Device),
        });
        assert_eq!(world.wanted(node).len(), left);
    }
    assert!(world.dispatcher.takes_maintenance_task(node, Lane::Remove));
    world.dispatcher.check();
}

#[test]
fn node_gets_many_small_replicas_or_few_large_ones() {
    for (size, expected) in [
        (0, COPY_LABELS_MAX),
        (COPY_LABELS_BYTES_MAX / 16, 16),
        (COPY_LABELS_BYTES_MAX, COPY_LABELS_MIN),
    ] {
        let mut world = cluster(2);
        let node = NodeId(1);
        let copy = |object| Operation::Copy {
            from: LabelInput {
                name: String::new(),
                object: ObjectId(object),
                node: NodeId(0),
                size,
                selection: Selection::WHOLE,
            },
            to: LabelOutput {
                name: String::new(),
                object: ObjectId(object),
                inode: Inode(9),
                path: "/f".into(),
                memory: false,
            },
            part: None,
            mode: None,
        };
        let maintenance_task = |operation| Event::MaintenanceTask {
            node,
            owner: Owner::default(),
            operation,
        };
        for object in 0..2 * COPY_LABELS_MAX as u64 {
            world.on(maintenance_task(copy(object)));
        }
        let sent = world.wanted(node);
        assert_eq!(sent.len(), expected, "{size}");
        // Removals wait for none of the replicas.
        world.on(maintenance_task(Operation::Remove {
            objects: vec![ObjectId(1)],
        }));
        assert_eq!(world.wanted(node).len(), expected + 1);
        // Labels that were under way before a restart count.
        let mut again = cluster(2);
        for label in sent {
            again.on(Event::MaintenanceSent {
                node,
                label: label.id,
                operation: label.operation,
            });
        }
        assert!(!again.dispatcher.takes_maintenance_task(node, Lane::Copy));
        assert!(
            again
                .dispatcher
                .takes_maintenance_task(NodeId(0), Lane::Copy)
        );
    }
}

/// t1 reads a file on node 1 and runs on node 0 (pinned), t2 follows on node 1.
fn with_intermediate_on_node_0(reader_node: u32) -> DispatchWorld {
    let mut world = cluster(2);
    let raw = world.file(NodeId(1), 10);
    let gate = task(9, "gate", vec![Origin::Awaited]);
    let maker = task(1, "a", vec![Origin::File(raw)]);
    let mut reader = task(2, "b", vec![from(1), from(9)]);
    reader.node = Some(NodeId(reader_node));
    // The first turn of round-robin belongs to node 0.
    world.submit(job(1, "round-robin", vec![maker, gate, reader]));
    assert_eq!(world.sent(1).unwrap().0, 0);
    world.finish(1, Ok(10));
    world
}

#[test]
fn lost_intermediate_still_needed_is_recomputed() {
    let mut world = with_intermediate_on_node_0(1);
    world.lose(0);
    assert_eq!(world.states(1)[0], TaskState::Done);
    // The other inputs arrive; now the lost one is needed.
    let placed = world.file(NodeId(1), 1);
    world.on(Event::FileSealed {
        path: "/t9/in0".into(),
        placed,
    });
    world.finish(9, Ok(1));
    assert_eq!(world.states(1)[0], TaskState::Sent);
    assert_eq!(world.sent(1).unwrap().0, 1);
    assert!(world.log.iter().any(|action| matches!(
        action,
        Action::Task { task: TaskId(1), state: TaskState::Waiting, failure: Some(failure), .. }
            if failure.message.contains("run again")
    )));
    world.finish(1, Ok(10));
    world.finish(2, Ok(10));
    assert_eq!(world.job_state(1), JobState::Done);
    assert_eq!(world.count(publishes(1)), 2);
}

#[test]
fn suspended_node_is_resumed_and_its_data_not_recomputed() {
    let mut world = with_intermediate_on_node_0(1);
    assert!(world.needed().is_empty());
    world.suspend(0);
    // A task that has not ended reads the object.
    assert_eq!(world.needed(), [0]);
    let placed = world.file(NodeId(1), 1);
    world.on(Event::FileSealed {
        path: "/t9/in0".into(),
        placed,
    });
    world.finish(9, Ok(1));
    let states = world.states(1);
    assert_eq!(
        (states[0], states[2]),
        (TaskState::Done, TaskState::Waiting)
    );
    let reported = world.failure(2).unwrap().message;
    assert!(reported.contains("suspended"), "{reported}");
    world.gain(0);
    world.finish(2, Ok(10));
    assert_eq!(world.job_state(1), JobState::Done);
    assert_eq!(world.count(publishes(1)), 1);
    // A replica on an online node is sufficient; a node to which a task is pinned is needed nevertheless.
    world.suspend(0);
    assert!(world.needed().is_empty());
    let mut pinned = task(3, "c", vec![Origin::File(placed)]);
    pinned.node = Some(NodeId(0));
    world.submit(job(2, "min-wait", vec![pinned]));
    assert_eq!(world.needed(), [0]);
    world.gain(0);
    world.finish(3, Ok(1));
    assert_eq!(world.job_state(2), JobState::Done);
}

/// No online node can run the task. A suspended node that can run it is wanted; the others are not.
#[test]
fn task_that_only_suspended_nodes_can_run_resumes_one() {
    let mut world = with_machines(&[
        (0, Role::Store, 1),
        (1, Role::Store, 4),
        (2, Role::Store, 1),
    ]);
    world.suspend(1);
    world.suspend(2);
    let raw = world.file(NodeId(0), 10);
    let mut wide = task(1, "a", vec![Origin::File(raw)]);
    wide.needs.cores = 4;
    world.submit(job(1, "min-wait", vec![wide]));
    assert_eq!(world.needed(), [1]);
}

#[test]
fn lost_intermediate_is_read_from_replica_not_recomputed() {
    let mut world = with_intermediate_on_node_0(1);
    let made = world.log.iter().find_map(|action| match action {
        Action::Publish {
            task: TaskId(1),
            outputs,
            ..
        } => Some(outputs[0]),
        _ => None,
    });
    let made = made.unwrap();
    world.on(Event::Copied {
        object: made.object,
        node: NodeId(1),
        there: true,
    });
    world.lose(0);
    let placed = world.file(NodeId(1), 1);
    world.on(Event::FileSealed {
        path: "/t9/in0".into(),
        placed,
    });
    world.finish(9, Ok(1));
    let reader = world.wanted(NodeId(1)).pop().unwrap();
    let Operation::Analyse(analysis) = reader.operation else {
        panic!("{reader:?}")
    };
    let input = &analysis.inputs[0];
    assert_eq!((input.object, input.node), (made.object, NodeId(1)));
    world.finish(2, Ok(10));
    assert_eq!(world.job_state(1), JobState::Done);
    assert_eq!(world.count(publishes(1)), 1);
    world.dispatcher.check();
}

#[test]
fn waiting_task_continues_when_its_input_is_copied() {
    let mut world = cluster(2);
    let raw = world.file(NodeId(0), 10);
    world.lose(0);
    let reader = task(1, "a", vec![Origin::File(raw)]);
    world.submit(job(1, "input-locality", vec![reader]));
    assert_eq!(world.states(1), [TaskState::Waiting]);
    let copied = |there| Event::Copied {
        object: raw.object,
        node: NodeId(1),
        there,
    };
    world.on(copied(true));
    assert_eq!(world.sent(1).unwrap().0, 1);
    world.finish(1, Ok(10));
    world.on(copied(false));
    let reader = task(2, "b", vec![Origin::File(raw)]);
    world.submit(job(2, "input-locality", vec![reader]));
    assert_eq!(world.states(2), [TaskState::Waiting]);
    world.gain(0);
    assert_eq!(world.sent(2).unwrap().0, 0);
    world.dispatcher.check();
}

#[test]
fn no_task_is_placed_on_a_draining_node() {
    let mut world = cluster(2);
    let emptied = |emptied| Event::Emptied {
        node: NodeId(0),
        emptied,
    };
    let raw = world.file(NodeId(0), 1 << 30);
    let reader = |id| task(id, "a", vec![Origin::File(raw)]);
    world.submit(job(1, "input-locality", vec![reader(1)]));
    assert_eq!(world.sent(1).unwrap().0, 0);
    world.on(emptied(true));
    let mut pinned = reader(3);
    pinned.node = Some(NodeId(0));
    for policy in [
        "input-locality",
        "round-robin",
        "min-wait",
        "hybrid",
        "random",
    ] {
        let id = 10 + policy.len() as u64;
        world.submit(job(id, policy, vec![reader(id)]));
        assert_eq!(world.sent(id).unwrap().0, 1, "{policy}");
    }
    world.submit(job(3, "input-locality", vec![pinned]));
    assert!(world.sent(3).is_none(), "it waits");
    // A running task on the node continues.
    world.finish(1, Ok(10));
    assert_eq!(world.states(1), [TaskState::Done]);
    world.dispatcher.check();
    world.on(emptied(false));
    assert_eq!(world.sent(3).unwrap().0, 0);
    world.dispatcher.check();
}

#[test]
fn every_replica_counts_as_local() {
    let mut world = cluster(3);
    let raw = world.file(NodeId(0), 1 << 30);
    world.on(Event::Copied {
        object: raw.object,
        node: NodeId(2),
        there: true,
    });
    let readers = (1..=24).map(|id| task(id, "a", vec![Origin::File(raw)]));
    world.submit(job(1, "input-locality", readers.collect()));
    let nodes: Vec<u32> = (1..=24).filter_map(|id| Some(world.sent(id)?.0)).collect();
    assert!(nodes.contains(&0) && nodes.contains(&2), "{nodes:?}");
    assert!(!nodes.contains(&1), "{nodes:?}");
}

/// Size of a stripe, in bytes.
const UNIT: u64 = 1 << 20;

/// Creates a file whose bytes are distributed over these parts.
fn striped(world: &mut DispatchWorld, parts: &[(u32, u64)]) -> Placed {
    let place =
        |world: &mut DispatchWorld, (node, size): (u32, u64)| world.file(NodeId(node), size);
    let parts: Vec<Placed> = parts.iter().map(|&part| place(world, part)).collect();
    let sizes: Vec<u64> = parts.iter().map(|part| part.size).collect();
    let size = StripedLayout::size_of(UNIT, &sizes).unwrap();
    let whole = world.file(parts[0].node, size);
    let parts = parts.iter();
    let parts = parts.map(|part| Part::on(part.object, part.size, part.node));
    world.on(Event::Parted {
        object: whole.object,
        layout: Layout::Striped(StripedLayout {
            unit: UNIT,
            size,
            parts: parts.collect(),
        }),
    });
    whole
}

/// Returns a task that reads a selection of a file.
fn selecting(id: u64, file: Placed, selection: &Selection) -> TaskSpec {
    let mut reader = task(id, "a", vec![Origin::File(file)]);
    reader.inputs[0].selection = selection.clone();
    reader
}

/// Returns the selection in the label of a task, and the node of its input.
fn sent_selection(world: &DispatchWorld, id: u64) -> (u32, Selection) {
    let sent = world.sent(id).unwrap();
    let Operation::Analyse(analysis) = &sent.1.operation else {
        panic!("a task is analysed")
    };
    let input = &analysis.inputs[0];
    (input.node.0, input.selection.clone())
}

#[test]
fn task_of_a_part_runs_at_its_part_and_needs_no_other() {
    let mut world = cluster(3);
    let raw = striped(&mut world, &[(0, 1 << 30), (1, 1 << 30), (2, 1 << 30)]);
    for (id, part) in [(1, 2), (2, 0), (3, 1)] {
        let of_part = selecting(id, raw, &Selection::part(part));
        world.submit(job(id, "input-locality", vec![of_part]));
        assert_eq!(world.sent(id).unwrap().0, part);
        assert_eq!(sent_selection(&world, id), (part, Selection::part(part)));
        world.finish(id, Ok(10));
    }
    // Other nodes may be lost. If the node of its own part is lost, the task waits, and it continues with a replica.
    world.lose(0);
    world.submit(job(
        4,
        "min-wait",
        vec![selecting(4, raw, &Selection::part(1))],
    ));
    assert!(world.sent(4).is_some());
    world.finish(4, Ok(10));
    world.submit(job(
        5,
        "min-wait",
        vec![selecting(5, raw, &Selection::part(0))],
    ));
    assert_eq!(world.states(5), [TaskState::Waiting]);
    let first = ObjectId(raw.object.0 - 3);
    world.on(Event::Copied {
        object: first,
        node: NodeId(2),
        there: true,
    });
    assert_eq!(world.sent(5).unwrap().0, 2, "the replica is there");
    world.finish(5, Ok(10));
    world.dispatcher.check();
}

#[test]
fn only_selected_bytes_count_for_locality() {
    let mut world = cluster(3);
    // Node 0 holds most of the file, and nodes 1 and 2 hold all of the selection.
    let raw = striped(&mut world, &[(0, 1 << 30), (1, UNIT), (2, UNIT)]);
    let few = Selection::ranges(None, &[UNIT..UNIT + 10, 2 * UNIT..3 * UNIT]).unwrap();
    world.submit(job(1, "input-locality", vec![selecting(1, raw, &few)]));
    assert_eq!(world.sent(1).unwrap().0, 2, "most of the ranges is there");
    world.finish(1, Ok(10));
    // Nodes without selected bytes do not matter.
    world.lose(0);
    world.submit(job(2, "min-wait", vec![selecting(2, raw, &few)]));
    assert!(world.sent(2).is_some());
    world.finish(2, Ok(10));
    world.submit(job(
        3,
        "min-wait",
        vec![selecting(3, raw, &Selection::WHOLE)],
    ));
    assert_eq!(world.states(3), [TaskState::Waiting]);
    // A selection that the file does not contain is sent nevertheless: the node reports the error.
    let absent = selecting(4, raw, &Selection::part(9));
    let all = 0..u64::MAX;
    let behind = Selection::ranges(Some(1), std::slice::from_ref(&all)).unwrap();
    let behind = selecting(5, raw, &behind);
    world.submit(job(4, "min-wait", vec![absent, behind]));
    assert!(world.sent(4).is_some() && world.sent(5).is_some());
    world.dispatcher.check();
}

#[test]
fn striped_file_counts_by_part_on_each_node() {
    let mut world = cluster(3);
    let raw = striped(&mut world, &[(0, 1 << 30), (1, 3 << 30), (2, 2 << 30)]);
    let reader = task(1, "a", vec![Origin::File(raw)]);
    world.submit(job(1, "input-locality", vec![reader]));
    assert_eq!(world.sent(1).unwrap().0, 1, "most of it is there");
    world.finish(1, Ok(10));
    // The file can be read as long as all nodes have their part.
    world.lose(2);
    let reader = task(2, "a", vec![Origin::File(raw)]);
    world.submit(job(2, "input-locality", vec![reader]));
    assert_eq!(world.states(2), [TaskState::Waiting]);
    world.gain(2);
    assert!(world.sent(2).is_some());
    world.finish(2, Ok(10));
    world.dispatcher.check();
}

#[test]
fn lost_part_is_read_from_replica() {
    let mut world = cluster(3);
    let raw = striped(&mut world, &[(0, 1 << 20), (1, 1 << 20)]);
    world.lose(1);
    let reader = task(1, "a", vec![Origin::File(raw)]);
    world.submit(job(1, "min-wait", vec![reader]));
    assert_eq!(world.states(1), [TaskState::Waiting]);
    let second = ObjectId(raw.object.0 - 1);
    world.on(Event::Copied {
        object: second,
        node: NodeId(2),
        there: true,
    });
    assert!(world.sent(1).is_some());
    // Now the file can't be read any more.
    let reader = task(2, "a", vec![Origin::File(raw)]);
    world.on(Event::Copied {
        object: second,
        node: NodeId(2),
        there: false,
    });
    world.submit(job(2, "min-wait", vec![reader]));
    assert_eq!(world.states(2), [TaskState::Waiting]);
    world.gain(1);
    assert!(world.sent(2).is_some());
    world.dispatcher.check();
}

#[test]
fn intermediate_that_cannot_be_recomputed_is_awaited() {
    let mut world = with_intermediate_on_node_0(1);
    let placed = world.file(NodeId(1), 1);
    world.lose(0);
    world.lose(1);
    world.on(Event::FileSealed {
        path: "/t9/in0".into(),
        placed,
    });
    world.gain(1);
    world.lose(1);
    assert_eq!(world.states(1)[0], TaskState::Done);
    world.gain(0);
    world.gain(1);
    world.finish(9, Ok(1));
    world.finish(2, Ok(1));
    assert_eq!(world.job_state(1), JobState::Done);
    assert_eq!(world.count(publishes(1)), 1);
}

#[test]
fn task_that_crashes_nodes_repeatedly_fails() {
    let mut world = cluster(1);
    world.submit(job(1, "min-wait", vec![task(1, "a", vec![])]));
    for _ in 0..=LOSSES_MAX {
        assert_eq!(world.states(1), [TaskState::Sent]);
        world.begin(1);
        world.lose(0);
        world.gain(0);
    }
    assert_eq!(world.states(1), [TaskState::Failed]);
    assert_eq!(world.failure(1).unwrap().kind, FailureKind::NodeLost);
}

#[test]
fn pinned_task_waits_for_its_node() {
    let mut world = cluster(1);
    let mut pinned = task(1, "a", vec![]);
    pinned.node = Some(NodeId(7));
    world.submit(job(1, "min-wait", vec![pinned, task(2, "a", vec![])]));
    assert_eq!(world.states(1), [TaskState::Ready, TaskState::Sent]);
    world.gain(7);
    let (node, _) = world.sent(1).unwrap();
    assert_eq!(node, 7);
    let decision = world.log.iter().rev().find_map(|action| match action {
        Action::Decided(decision) => Some(decision.clone()),
        _ => None,
    });
    assert_eq!(decision.unwrap().policy, "pinned");
}

#[test]
fn queue_of_node_is_bounded_and_rest_placed_late() {
    let mut world = cluster(2);
    let raw = world.file(NodeId(0), 1 << 40);
    let tasks = (1..=100)
        .map(|id| task(id, "a", vec![Origin::File(raw)]))
        .collect();
    world.submit(job(1, "input-locality", tasks));
    let bound = QUEUE_FACTOR.max(QUEUE_MIN);
    let sent =
        |world: &DispatchWorld| world.dispatcher.job(JobId(1)).unwrap().tasks[&TaskState::Sent];
    assert_eq!(sent(&world), bound);
    world.finish(1, Ok(1));
    assert_eq!(sent(&world), bound);
    assert_eq!(world.sent(9).unwrap().0, 0);
}

#[test]
fn short_tasks_fill_queue_further_up_to_a_limit() {
    let mut world = cluster(1);
    let tasks = (1..=1000).map(|id| task(id, "blink", vec![])).collect();
    world.submit(job(1, "min-wait", tasks));
    let mut most = 0;
    for id in 1..=1000 {
        most = most.max(
            world
                .dispatcher
                .nodes(world.now)
                .next()
                .unwrap()
                .outstanding,
        );
        world.finish(id, Ok(1));
    }
    assert!(most > QUEUE_MIN && most <= QUEUE_FACTOR_MAX, "{most}");
    assert_eq!(world.job_state(1), JobState::Done);
}

#[test]
fn node_load_includes_tasks_waiting_for_queue_space() {
    let mut world = cluster(1);
    let loads = |world: &DispatchWorld| world.dispatcher.loads(world.now).collect::<Vec<_>>();
    assert_eq!(
        (loads(&world)[0].queued, loads(&world)[0].left),
        (0, Span(0))
    );
    let tasks = (1..=20).map(|id| task(id, "a", vec![])).collect();
    world.submit(job(1, "min-wait", tasks));
    world.begin(1);
    let full = loads(&world)[0];
    assert_eq!((full.running, full.queued), (1, QUEUE_MIN - 1));
    assert_eq!(full.running + full.queued + full.waiting, 20);
    assert_eq!([full.wait, full.left], [Span(20 * UNKNOWN_RUN.0); 2]);
    world.now = world.now + Span::from_secs(30);
    assert!(loads(&world)[0].left < full.left);
    world.on(Event::NodeDown { node: NodeId(0) });
    assert_eq!(loads(&world), [], "one that is offline has nothing to tell");
}

#[test]
fn idle_node_gets_tasks_waiting_for_a_full_one() {
    let mut world = cluster(1);
    let tasks = (1..=20).map(|id| task(id, "a", vec![])).collect();
    world.submit(job(1, "min-wait", tasks));
    world.gain(1);
    let on = |world: &DispatchWorld, node: u32| {
        (1..=20)
            .filter(|&id| world.sent(id).is_some_and(|(at, _)| at == node))
            .count()
    };
    assert!(on(&world, 1) > 0);
    for _ in 0..8 {
        world.on(Event::NodeStatus {
            node: NodeId(1),
            view: view(Role::Store, 1),
        });
    }
    assert_eq!(on(&world, 0), QUEUE_MIN);
}

#[test]
fn cancelled_job_aborts_labels_and_discards_late_results() {
    let mut world = cluster(1);
    world.submit(job(
        1,
        "min-wait",
        vec![task(1, "a", vec![]), task(2, "b", vec![from(1)])],
    ));
    world.on(Event::Cancel { job: JobId(1) });
    assert_eq!(world.states(1), [TaskState::Cancelled; 2]);
    assert_eq!(world.job_state(1), JobState::Cancelled);
    assert_eq!(
        world.count(|action| matches!(action, Action::Abort { .. })),
        2
    );
    world.finish(1, Ok(3));
    assert_eq!(
        world.count(|action| matches!(action, Action::Discard { .. })),
        1
    );
    assert_eq!(
        world.count(|action| matches!(action, Action::Publish { .. })),
        0
    );
    world.finish(2, Err(FailureKind::Cancelled));
    assert_eq!(
        world
            .dispatcher
            .nodes(world.now)
            .next()
            .unwrap()
            .outstanding,
        0
    );
    assert!(world.dispatcher.forget(JobId(1)));
    assert_eq!(world.dispatcher.jobs().count(), 0);
}

#[test]
fn hybrid_alone_sends_reduce_tasks_to_server_cores() {
    for (policy, expected) in [("hybrid", 9), ("min-wait", 0)] {
        let mut world = with_machines(&[
            (0, Role::Store, 1),
            (1, Role::Store, 1),
            (9, Role::ServerCores, 2),
        ]);
        let files: Vec<_> = (0..3).map(|id| world.file(NodeId(id % 2), 10)).collect();
        let reduce = task(1, "sum", files.into_iter().map(Origin::File).collect());
        world.submit(job(1, policy, vec![reduce]));
        assert_eq!(world.sent(1).unwrap().0, expected, "{policy}");
    }
}

#[test]
fn hybrid_sends_unaligned_rest_of_wave_to_server_cores() {
    let mut machines: Vec<_> = (0..4).map(|id| (id, Role::Store, 1)).collect();
    machines.push((9, Role::ServerCores, 2));
    let mut world = with_machines(&machines);
    let mut tasks = Vec::new();
    for id in 1..=10 {
        let raw = world.file(NodeId(id as u32 % 4), 1000);
        tasks.push(task(id, "mProjectPP", vec![Origin::File(raw)]));
    }
    world.submit(job(1, "hybrid:round-robin", tasks));
    let mut counts = BTreeMap::new();
    for id in 1..=10 {
        *counts.entry(world.sent(id).unwrap().0).or_insert(0) += 1;
    }
    assert_eq!(
        counts,
        BTreeMap::from([(0, 2), (1, 2), (2, 2), (3, 2), (9, 2)])
    );
}

#[test]
fn explanation_lists_every_node_with_its_cost() {
    let mut world = cluster(2);
    let raw = world.file(NodeId(1), 125_000_000);
    world.submit(job(
        1,
        "min-wait",
        vec![task(1, "a", vec![Origin::File(raw)])],
    ));
    let decision = world.log.iter().find_map(|action| match action {
        Action::Decided(decision) => Some(decision.clone()),
        _ => None,
    });
    let decision = decision.unwrap();
    assert_eq!(
        (decision.node, decision.policy.as_str()),
        (NodeId(1), "min-wait")
    );
    let costs: Vec<_> = decision
        .estimates
        .iter()
        .map(|one| (one.transfer_bytes, one.transfer_ns))
        .collect();
    assert_eq!(costs, [(125_000_000, 1_000_000_000), (0, 0)]);
}

#[test]
fn learned_run_times_decide_placement_of_next_tasks() {
    let mut world = cluster(2);
    let raw = world.file(NodeId(0), 1_000_000);
    let tasks = (1..=4)
        .map(|id| task(id, "slow", vec![Origin::File(raw)]))
        .collect();
    world.submit(job(1, "min-wait", tasks));
    // Moving the input takes 8 ms, and a kernel without history is expected to take a minute: moving pays.
    assert!((1..=4).any(|id| world.sent(id).unwrap().0 == 1));
    for id in 1..=4 {
        world.finish(id, Ok(1));
    }
    // Runs turn out to take a few milliseconds: moving another input does not pay.
    let other = world.file(NodeId(0), 1_000_000);
    let tasks = (11..=12)
        .map(|id| task(id, "slow", vec![Origin::File(other)]))
        .collect();
    world.submit(job(2, "min-wait", tasks));
    assert!((11..=12).all(|id| world.sent(id).unwrap().0 == 0));
}

#[test]
fn unknown_kernels_spread_after_their_shared_dependency() {
    let mut world = cluster(4);
    let raw = world.file(NodeId(0), 1_000_000);
    let mut tasks = vec![task(1, "index", vec![Origin::File(raw)])];
    tasks.extend((2..=4).map(|id| task(id, "sleep", vec![from(1)])));
    world.submit(job(1, "min-wait", tasks));
    world.begin(1);
    world.finish(1, Ok(8));
    let mut places: Vec<u32> = (2..=4).map(|id| world.sent(id).unwrap().0).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 3, "they wait for each other");
}

/// Sends five tasks to node 0, which runs the first, before node 1 connects and is idle.
fn queue_beside_an_idle_node(policy: &str) -> DispatchWorld {
    let mut world = cluster(2);
    world.lose(1);
    let large = world.file(NodeId(0), 1_000_000_000);
    let tasks = (11..=15).map(|id| task(id, "slow", vec![Origin::File(large)]));
    world.submit(job(2, policy, tasks.collect()));
    assert!((11..=15).all(|id| world.sent(id).unwrap().0 == 0));
    world.begin(11);
    world.gain(1);
    world
}

/// Labels that follow others take no core of their node before their dependencies have ended, however many labels follow.
#[test]
fn cores_not_used_by_a_chain_are_free() {
    let mut world = with_machines(&[(0, Role::Store, 2), (1, Role::Store, 2)]);
    let raw = world.file(NodeId(0), 1 << 20);
    let link = |id: u64| match id {
        1 => task(id, "link", vec![Origin::File(raw)]),
        _ => task(id, "link", vec![from(id - 1)]),
    };
    world.submit(job(1, "min-wait", (1..=8).map(link).collect()));
    assert!((1..=8).all(|id| world.sent(id).unwrap().0 == 0));
    world.begin(1);
    let free = |world: &DispatchWorld| -> Vec<u32> {
        let nodes = world.dispatcher.nodes(world.now);
        let waits = nodes.filter(|node| node.wait.0 == 0);
        waits.map(|node| node.node.0).collect()
    };
    assert_eq!(free(&world), [0, 1]);
    let others = (11..=13).map(|id| task(id, "other", vec![]));
    world.submit(job(2, "min-wait", others.collect()));
    let mut places: Vec<u32> = (11..=13).map(|id| world.sent(id).unwrap().0).collect();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 1], "one next to the chain");
    assert_eq!(free(&world), [0; 0]);
    // The next task of the chain takes the place of the previous one.
    world.finish(1, Ok(10));
    assert_eq!(free(&world), [0; 0]);
    world.finish(11, Ok(10));
    world.begin(2);
    assert_eq!(free(&world), [world.sent(11).unwrap().0]);
}

fn rescheduled(world: &DispatchWorld) -> Vec<u64> {
    let all = world.log.iter().filter_map(|action| match action {
        Action::Reschedule { label, .. } => Some(label.0),
        _ => None,
    });
    all.collect()
}

#[test]
fn label_on_busy_node_is_rescheduled_to_an_idle_one() {
    let mut world = queue_beside_an_idle_node("min-wait");
    let last = world.sent(15).unwrap().1;
    assert_eq!(rescheduled(&world), [last.id.0], "one for one idle node");
    assert_eq!(
        world.states(2)[4],
        TaskState::Sent,
        "until it is given back"
    );
    world.finish_label(0, &last, Err(FailureKind::Rescheduled));
    let (node, label) = world.sent(15).unwrap();
    assert_eq!((node, label.id == last.id), (1, false));
    assert_eq!(world.failure(15).unwrap().kind, FailureKind::Rescheduled);
    let task = world.dispatcher.tasks(JobId(2)).nth(4).unwrap();
    assert_eq!((task.state, task.tries), (TaskState::Sent, 1));
}

#[test]
fn label_that_began_before_reschedule_runs_on() {
    let mut world = queue_beside_an_idle_node("min-wait");
    let (node, last) = world.sent(15).unwrap();
    world.begin(15);
    assert_eq!(world.states(2)[4], TaskState::Running);
    let next = world.sent(14).unwrap().1.id.0;
    assert_eq!(
        rescheduled(&world),
        [last.id.0, next],
        "another one instead"
    );
    world.finish(15, Ok(1));
    assert_eq!(world.sent(15).unwrap(), (node, last));
    assert_eq!(world.states(2)[4], TaskState::Done);
}

#[test]
fn reschedule_respects_placement_by_input_locality() {
    let world = queue_beside_an_idle_node("input-locality");
    assert_eq!(rescheduled(&world), [] as [u64; 0]);
}

#[test]
fn fetched_input_counts_as_local_until_node_restarts() {
    let mut world = cluster(2);
    let raw = world.file(NodeId(0), 1_000_000);
    let costs = |world: &DispatchWorld, id: u64| -> Vec<u64> {
        let mut decisions = world.log.iter().filter_map(|action| match action {
            Action::Decided(decision) if decision.task.0 == id => Some(decision),
            _ => None,
        });
        let last = decisions.next_back().unwrap();
        last.estimates
            .iter()
            .map(|one| one.transfer_bytes)
            .collect()
    };
    for (id, expected) in [(1, [0, 1_000_000]), (2, [0, 0])] {
        let mut pinned = task(id, "any", vec![Origin::File(raw)]);
        pinned.node = Some(NodeId(1));
        world.submit(job(id, "min-wait", vec![pinned]));
        assert_eq!(costs(&world, id), expected);
        world.finish(id, Ok(1));
    }
    world.lose(1);
    world.gain(1);
    world.submit(job(
        3,
        "min-wait",
        vec![task(3, "any", vec![Origin::File(raw)])],
    ));
    assert_eq!(costs(&world, 3), [0, 1_000_000]);
}

#[test]
fn jobs_are_served_in_order_of_their_ids() {
    let mut world = cluster(1);
    world.submit(job(
        2,
        "min-wait",
        (201..=220).map(|id| task(id, "a", vec![])).collect(),
    ));
    world.submit(job(1, "min-wait", vec![task(101, "a", vec![])]));
    assert!(world.sent(101).is_none());
    let mut dice = Dice(3);
    world.finish(201 + dice.roll(8), Ok(1));
    assert!(
        world.sent(101).is_some(),
        "the job with the lower id is first in line"
    );
}

/// One user's ten tasks wait for no more than one task of another user's backlog each, for every policy and number of nodes.
#[test]
fn users_take_turns() {
    for policy in [
        "min-wait",
        "round-robin",
        "random",
        "input-locality",
        "minmax",
    ] {
        for nodes in [1, 3] {
            let mut world = cluster(nodes);
            let of = |uid: u32, id: u64, tasks: std::ops::Range<u64>| {
                let tasks = tasks.map(|id| task(id, "a", vec![])).collect();
                let mut job = job(id, policy, tasks);
                job.owner.uid = uid;
                job
            };
            world.submit(of(1, 1, 1000..3000));
            let sent = |world: &DispatchWorld, tasks: std::ops::Range<u64>| {
                tasks.filter(|&task| world.sent(task).is_some()).count()
            };
            let mut running = std::collections::VecDeque::new();
            let mut seen = std::collections::BTreeSet::new();
            let mut finish = |world: &mut DispatchWorld| {
                for task in (1000..3000).chain(5000..5010) {
                    if world.sent(task).is_some() && seen.insert(task) {
                        running.push_back(task);
                    }
                }
                world.finish(running.pop_front().unwrap(), Ok(1));
            };
            for _ in 0..100 {
                finish(&mut world);
            }
            let before = sent(&world, 1000..3000);
            world.submit(of(2, 2, 5000..5010));
            let mut ends = 0;
            while sent(&world, 5000..5010) < 10 {
                finish(&mut world);
                ends += 1;
                assert!(ends <= 40, "{policy} on {nodes} nodes: {ends} tasks ended");
            }
            let others = sent(&world, 1000..3000) - before;
            assert!(
                others <= 20,
                "{policy} on {nodes} nodes: {others} tasks went first"
            );
        }
    }
}

#[test]
fn task_is_sent_only_to_node_that_has_its_program() {
    let mut world = cluster(2);
    let mut spec = task(1, "none", vec![]);
    spec.kernel = Kernel::Program("tool".to_owned());
    spec.programs = spec.kernel.programs();
    world.submit(job(1, "round-robin", vec![spec, task(2, "mean", vec![])]));
    let tool = || vec!["tool".to_owned()];
    let unknown = world.dispatcher.unknown_programs();
    assert_eq!(unknown, [(NodeId(0), tool()), (NodeId(1), tool())]);
    assert_eq!(
        world.sent(1),
        None,
        "no element has reported that it has it"
    );
    assert!(world.sent(2).is_some(), "others do not wait for that");
    let says = |world: &mut DispatchWorld, node, has: bool| {
        let (found, missing) = if has {
            (tool(), vec![])
        } else {
            (vec![], tool())
        };
        world.on(Event::Programs {
            node: NodeId(node),
            found,
            missing,
        });
    };
    says(&mut world, 0, false);
    assert_eq!(world.sent(1), None);
    says(&mut world, 1, true);
    assert_eq!(world.sent(1).unwrap().0, 1);
    assert_eq!(world.dispatcher.unknown_programs(), []);
    // The node is lost. A new node is asked for its programs before it gets a task, and the programs of a reconnected node must be
    // reported again.
    world.on(Event::NodeDown { node: NodeId(1) });
    let reported = world.log.iter().rev().find_map(|action| match action {
        Action::Task {
            task: TaskId(1),
            failure: Some(failure),
            ..
        } => Some(failure.message.clone()),
        _ => None,
    });
    let reported = reported.unwrap();
    assert!(reported.contains("the program `tool`"), "{reported}");
    for (node, has) in [(5, true), (0, true)] {
        world.on(Event::NodeUp {
            node: NodeId(node),
            view: view(Role::Store, 1),
        });
        assert_eq!(
            world.dispatcher.unknown_programs(),
            [(NodeId(node), tool())]
        );
        says(&mut world, node, has);
        assert_eq!(world.sent(1).unwrap().0, 5);
    }
}

#[test]
fn tasks_of_one_kind_do_not_block_those_of_another() {
    let mut world = with_machines(&[(0, Role::Store, 2)]);
    let mut large = task(1, "mean", vec![]);
    large.needs.cores = 3;
    let mut light = task(2, "mean", vec![]);
    light.needs.cores = 0;
    world.submit(job(
        1,
        "random",
        vec![large, light, task(3, "mean", vec![])],
    ));
    assert_eq!(world.sent(1), None);
    assert!(world.sent(2).is_some() && world.sent(3).is_some());
    // The node now reports more cores.
    world.on(Event::NodeStatus {
        node: NodeId(0),
        view: view(Role::Store, 3),
    });
    assert_eq!(world.sent(1).unwrap().0, 0);
}

#[test]
fn tasks_with_several_cores_spread_over_free_nodes() {
    let mut world = with_machines(&[(0, Role::Store, 4), (1, Role::Store, 4)]);
    let tasks = (1..=4).map(|id| {
        let mut spec = task(id, "mean", vec![]);
        spec.needs.cores = 2;
        spec
    });
    world.submit(job(1, "min-wait", tasks.collect()));
    let mut on: Vec<u32> = (1..=4).map(|id| world.sent(id).unwrap().0).collect();
    on.sort_unstable();
    assert_eq!(on, [0, 0, 1, 1]);
}
