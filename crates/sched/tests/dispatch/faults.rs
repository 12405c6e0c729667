//! Property tests of the dispatcher: random jobs on a random cluster under crashes, restarts, cancelled jobs, failing kernels, and messages
//! that are lost, repeated and reordered. After every event all of the dispatcher's invariants are checked (see `cluster::DispatchWorld::on`).

use crate::cluster::{self, Dice, DispatchWorld, Faults, job, task};
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};
use tidemill_model::event::{
    Action, Event, InputSpec, JobSpec, JobState, Origin, OutputSpec, Role, TaskRole, TaskSpec,
};
use tidemill_model::id::{Inode, JobId, NodeId, TaskId};
use tidemill_model::label::{FailureKind, Kernel};
use tidemill_model::layout::Selection;
use tidemill_sched::dispatch::Config;
use tidemill_sched::policy;

/// Returns the number of labels that nodes returned.
fn given_back(world: &DispatchWorld) -> usize {
    world.log.iter().filter(|action| matches!(action, Action::Task { failure: Some(failure), .. } if failure.kind == FailureKind::Rescheduled)).count()
}

#[test]
fn faults_of_these_seeds_reschedule_labels() {
    let given_back = (0..40)
        .map(|seed| given_back(&run(seed, ALL, 400)))
        .sum::<usize>();
    assert!(given_back > 0);
}

pub(crate) const QUIET: Faults = Faults {
    crash: 0,
    change: 0,
    restart: 0,
    cancel: 0,
    kernel: 0,
    repeat: 0,
    reorder: false,
};
const FAILING: Faults = Faults {
    kernel: 10,
    repeat: 20,
    reorder: true,
    ..QUIET
};
const CRASHING: Faults = Faults {
    crash: 4,
    change: 4,
    ..FAILING
};
const ALL: Faults = Faults {
    restart: 1,
    cancel: 1,
    ..CRASHING
};

fn cluster(dice: &mut Dice) -> Vec<(u32, Role, u32)> {
    // Some clusters are so large that the dispatcher does not examine every node.
    let stores = if dice.chance(25) {
        17 + dice.roll(8) as u32
    } else {
        1 + dice.roll(4) as u32
    };
    let mut machines: Vec<_> = (0..stores)
        .map(|id| (id, Role::Store, 1 + dice.roll(3) as u32))
        .collect();
    if dice.chance(50) {
        machines.push((99, Role::ServerCores, 2));
    }
    machines
}

fn random_job(world: &mut DispatchWorld, id: u64, stores: u64) -> JobSpec {
    let count = 1 + world.dice.roll(25);
    let mut tasks = Vec::new();
    for number in 0..count {
        let task_id = id * 1000 + number;
        let origins = (0..world.dice.roll(5))
            .map(|_| origin(world, id, number, stores))
            .collect();
        let kernel = ["mean", "max", "grep"][world.dice.roll(3) as usize];
        let mut spec = task(task_id, kernel, origins);
        spec.retries = world.dice.roll(3) as u32;
        if world.dice.chance(10) {
            spec.node = Some(NodeId(world.dice.roll(stores) as u32));
        }
        if world.dice.chance(20) {
            let name = "second".to_owned();
            spec.outputs.push(OutputSpec {
                path: format!("/t{task_id}/second"),
                name,
                inode: Inode(task_id),
                part: false,
                memory: false,
            });
        }
        want(&mut world.dice, &mut spec);
        for InputSpec { path, origin, .. } in &spec.inputs {
            if *origin == Origin::Awaited {
                let node = NodeId(world.dice.roll(stores) as u32);
                let object = tidemill_model::id::ObjectId(
                    5_000_000 + task_id * 10 + world.unwritten.len() as u64,
                );
                world.unwritten.push((
                    path.clone(),
                    tidemill_model::object::Placed {
                        object,
                        node,
                        size: 10,
                    },
                ));
            }
        }
        tasks.push(spec);
    }
    if world.dice.chance(30) {
        instances(world, id * 1000 + count, stores, &mut tasks);
    }
    let policy = policy::NAMES[world.dice.roll(policy::NAMES.len() as u64) as usize];
    job(id, policy, tasks)
}

/// Adds the task instances of a striped file, the task that joins their outputs, and one that reads the joined file.
fn instances(world: &mut DispatchWorld, first: u64, stores: u64, tasks: &mut Vec<TaskSpec>) {
    let width = 1 + world.dice.roll(4);
    let lies = |_| NodeId(world.dice.roll(stores) as u32);
    let lies: Vec<NodeId> = (0..width).map(lies).collect();
    let file = Origin::File(world.striped(&lies));
    let mut makers = vec![file];
    for part in 0..width {
        let mut instance = task(first + part, "a", vec![file]);
        instance.share = TaskRole::Instance;
        instance.inputs[0].selection = Selection::part(part as u32);
        instance.outputs[0].name = cluster::PART.to_owned();
        instance.outputs[0].part = true;
        makers.push(Origin::Task(instance.task, 0));
        tasks.push(instance);
    }
    let mut join = task(first + width, "a", makers);
    join.share = TaskRole::Join;
    let joined = Origin::Task(join.task, 0);
    tasks.push(join);
    tasks.push(task(first + width + 1, "max", vec![joined]));
}

/// Lets some tasks need more than a core, some less, and some a program.
fn want(dice: &mut Dice, spec: &mut TaskSpec) {
    match dice.roll(10) {
        0 => spec.needs.cores = 0,
        1 => spec.needs.memory_bytes = 1 + dice.roll(cluster::MEMORY_BYTES),
        2 => {
            let gpus = 1 + dice.roll(cluster::GPUS_MAX);
            spec.needs.named.insert("gpu".to_owned(), gpus);
        }
        3 => {
            let kernel = Kernel::Program(cluster::PROGRAM.to_owned());
            spec.programs = kernel.programs();
            spec.kernel = kernel;
        }
        _ => {}
    }
}

fn origin(world: &mut DispatchWorld, job: u64, number: u64, stores: u64) -> Origin {
    match world.dice.roll(10) {
        0 => Origin::Awaited,
        1..=6 if number > 0 => Origin::Task(TaskId(job * 1000 + world.dice.roll(number)), 0),
        _ => {
            let node = NodeId(world.dice.roll(stores) as u32);
            let size = world.dice.roll(1 << 24);
            Origin::File(world.file(node, size))
        }
    }
}

/// Runs random jobs to their end and returns all actions.
fn run(seed: u64, faults: Faults, steps: u64) -> DispatchWorld {
    let mut dice = Dice(seed);
    let machines = cluster(&mut dice);
    let stores = machines
        .iter()
        .filter(|(_, role, _)| *role == Role::Store)
        .count() as u64;
    let mut world = DispatchWorld::new(dice.roll(u64::MAX), faults, Config::default(), &machines);
    for (id, ..) in &machines {
        if world.dice.chance(80) {
            world.connect(NodeId(*id));
        }
    }
    for id in 1..=1 + world.dice.roll(3) {
        let spec = random_job(&mut world, id, stores);
        world.submit(spec);
        for _ in 0..world.dice.roll(50) {
            world.step();
        }
    }
    for _ in 0..steps {
        world.step();
    }
    world.settle();
    world.assert_ended();
    world
}

/// Runs a property for fixed random seeds; a failure names its seed. `TIDEMILL_SEED` runs only this seed, and `TIDEMILL_CASES` multiplies
/// the number of runs.
fn for_seeds(cases: u32, property: impl Fn(u64)) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().unwrap())
    };
    if let Some(seed) = number("TIDEMILL_SEED") {
        return property(seed);
    }
    let cases = cases * number("TIDEMILL_CASES").unwrap_or(1) as u32;
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Cases {
        cases,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Cases::default()
    };
    let outcome = TestRunner::new_with_rng(config, rng).run(&proptest::num::u64::ANY, |seed| {
        property(seed);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn without_faults_every_task_is_published_once() {
    for_seeds(200, |seed| {
        let world = run(seed, QUIET, 100);
        let mut published = std::collections::BTreeSet::new();
        for action in &world.log {
            if let Action::Publish { task, .. } | Action::Join { task, .. } = action {
                assert!(published.insert(*task), "{task:?} twice");
            }
        }
        let all: usize = world.jobs.values().map(|job| job.tasks.len()).sum();
        assert_eq!(published.len(), all);
        assert!(
            world
                .job_states
                .values()
                .all(|state| *state == JobState::Done)
        );
    });
}

#[test]
fn failing_kernels_and_faulty_network_lose_nothing() {
    for_seeds(300, |seed| {
        run(seed, FAILING, 300);
    });
}

#[test]
fn crashing_nodes_lose_nothing() {
    for_seeds(400, |seed| {
        run(seed, CRASHING, 600);
    });
}

#[test]
fn crashes_restarts_and_cancelled_jobs_lose_nothing() {
    for_seeds(600, |seed| {
        run(seed, ALL, 600);
    });
}

#[test]
fn same_seed_gives_same_actions() {
    for_seeds(30, |seed| {
        assert_eq!(run(seed, ALL, 300).log, run(seed, ALL, 300).log);
    });
}

#[test]
fn crashes_with_restart_fail_no_job() {
    let crashes = Faults { crash: 1, ..QUIET };
    for_seeds(100, |seed| {
        let world = run(seed, crashes, 200);
        let failed = world.log.iter().any(|action| {
            matches!(
                action,
                Action::Job {
                    state: JobState::Failed,
                    ..
                }
            )
        });
        assert!(!failed, "a job failed");
    });
}

#[test]
fn events_with_unknown_ids_are_ignored() {
    let mut world = DispatchWorld::new(1, QUIET, Config::default(), &[(0, Role::Store, 1)]);
    world.on(Event::Cancel { job: JobId(7) });
    world.on(Event::NodeDown { node: NodeId(5) });
    let label = tidemill_model::id::LabelId(99);
    world.on(Event::Started {
        node: NodeId(0),
        label,
    });
    let outcome = cluster::failed(tidemill_model::label::FailureKind::Timeout);
    world.on(Event::Finished {
        node: NodeId(0),
        label,
        outcome,
    });
    assert_eq!(world.log, []);
}
