//! Properties of every simulation: random workflows on random platforms under every policy and scheduler.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tidemill_model::id::NodeId;
use tidemill_model::label::Kernel;
use tidemill_model::resources::{LIGHT_MAX, Needs};
use tidemill_model::time::Span;
use tidemill_plan::sim::{
    Placement, Platform, PlatformNode, SimError, Simulation, SimulationReport, Workflow,
    WorkflowFile, WorkflowTask,
};
use tidemill_sched::policy;

/// Draft of a task: (run time in ms, sizes of outputs, inputs: an earlier task or file by a number that is reduced to the valid range,
/// pinned, needs: cores, memory, a named resource)
type Draft = (u64, Vec<u64>, Vec<u32>, Option<u32>, (u32, u64, u64));

const PLAIN: (u32, u64, u64) = (1, 0, 0);

/// Minimum number of cores of each node, so that every task can run on each node.
const CORES: u32 = 2;
const MEMORY_BYTES: u64 = 10;
const GPUS: u64 = 1;

fn workflow(drafts: &[Draft], sources: &[u64], nodes: u32) -> Workflow {
    let file = |name: String, size| WorkflowFile {
        name,
        size,
        maker: None,
        home: None,
        striped: None,
    };
    let mut files: Vec<WorkflowFile> = sources
        .iter()
        .enumerate()
        .map(|(index, &size)| file(format!("source {index}"), size))
        .collect();
    let mut tasks = Vec::new();
    for (index, (millis, outputs, inputs, pinned, needs)) in drafts.iter().enumerate() {
        let known = files.len();
        let mut inputs: Vec<usize> = inputs.iter().map(|&input| input as usize % known).collect();
        inputs.sort_unstable();
        inputs.dedup();
        for (number, &size) in outputs.iter().enumerate() {
            let mut output = file(format!("output {index} {number}"), size);
            output.maker = Some((index, number));
            files.push(output);
        }
        let node = pinned.map(|node| NodeId(node % nodes));
        tasks.push(WorkflowTask {
            name: format!("task {index}"),
            kernel: Kernel::Program(format!("kernel {}", index % 3)),
            inputs,
            selections: Vec::new(),
            outputs: (known..files.len()).collect(),
            compute: Span::from_millis(*millis),
            node,
            needs: Needs {
                cores: needs.0,
                memory_bytes: needs.1,
                named: (needs.2 > 0)
                    .then(|| ("gpu".to_owned(), needs.2))
                    .into_iter()
                    .collect(),
            },
            reused: None,
        });
    }
    Workflow {
        name: "random".to_owned(),
        policy: None,
        tasks,
        files,
    }
}

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    let outputs = prop::collection::vec(0_u64..5_000_000, 0..3);
    let inputs = prop::collection::vec(any::<u32>(), 0..4);
    let pinned = prop::option::weighted(0.1, any::<u32>());
    let more = (0..=CORES, 0..=MEMORY_BYTES, 0..=GPUS);
    let needs = prop_oneof![3 => Just(PLAIN), 1 => more];
    prop::collection::vec((0_u64..3000, outputs, inputs, pinned, needs), 1..60)
}

fn node() -> impl Strategy<Value = PlatformNode> {
    let rate = || prop::option::of(100_000_u64..100_000_000);
    let latency = || prop_oneof![Just(Span(0)), (0_u64..50).prop_map(Span::from_millis)];
    let speed = prop_oneof![Just(1.0), 0.25_f64..4.0];
    (
        (CORES..5, speed, rate(), rate(), rate()),
        (latency(), latency(), latency(), 0_u64..20_000_000),
    )
        .prop_map(
            |(
                (cores, core_speed, read, write, link),
                (read_latency, write_latency, link_latency, input_cache),
            )| {
                PlatformNode {
                    cores,
                    memory_bytes: Some(MEMORY_BYTES),
                    resources: BTreeMap::from([("gpu".to_owned(), GPUS)]),
                    core_speed,
                    read_bandwidth: read,
                    write_bandwidth: write,
                    read_latency,
                    write_latency,
                    link_bandwidth: link,
                    link_latency,
                    input_cache_bytes_max: input_cache,
                    power_busy_watts: 10.0,
                    power_idle_watts: 2.0,
                    ..PlatformNode::default()
                }
            },
        )
}

fn platform() -> impl Strategy<Value = Platform> {
    let nodes = prop::collection::vec(node(), 1..7);
    let server_cores = prop::option::of(node());
    let delay = prop_oneof![Just(Span(0)), (1_u64..20).prop_map(Span::from_millis)];
    (nodes, server_cores, delay, prop::option::of(1_u32..6)).prop_map(
        |(nodes, server_cores, label_latency, processors)| Platform {
            nodes,
            server_cores,
            label_latency,
            processors,
            ..Platform::uniform(0, &PlatformNode::default())
        },
    )
}

/// Checks that no task runs before its inputs exist, and that no core runs two tasks at once.
fn check_order(workflow: &Workflow, report: &SimulationReport) -> Result<(), TestCaseError> {
    let mut cores: BTreeMap<(u32, u32), Vec<(u64, u64)>> = BTreeMap::new();
    for (task, ran) in workflow.tasks.iter().zip(&report.tasks) {
        prop_assert!(ran.sent_ns <= ran.start_ns && ran.start_ns <= ran.kernel_start_ns);
        let phases = ran.read_ns + ran.compute_ns + ran.write_ns + ran.hash_ns;
        prop_assert_eq!(ran.kernel_start_ns + phases, ran.end_ns);
        for &input in &task.inputs {
            if let Some((maker, _)) = workflow.files[input].maker {
                prop_assert!(
                    report.tasks[maker].end_ns <= ran.start_ns,
                    "{} was too early",
                    ran.name
                );
            }
        }
        if let Some(pinned) = task.node {
            prop_assert_eq!(ran.node, pinned.0);
        }
        prop_assert_eq!(ran.cores.len(), task.needs.cores as usize);
        for &core in &ran.cores {
            let core = cores.entry((ran.node, core)).or_default();
            core.push((ran.start_ns, ran.end_ns));
        }
    }
    check_resources(workflow, report)?;
    for (core, mut runs) in cores {
        runs.sort_unstable();
        for pair in runs.windows(2) {
            prop_assert!(
                pair[0].1 <= pair[1].0,
                "{core:?} runs two at once: {pair:?}"
            );
        }
    }
    Ok(())
}

/// Checks that tasks never use more of any resource of a node at once than the node has.
fn check_resources(workflow: &Workflow, report: &SimulationReport) -> Result<(), TestCaseError> {
    // Changes by node and time, ends before begins: tasks without a core, memory, GPUs.
    let mut changes: BTreeMap<u32, Vec<(u64, bool, [i64; 3])>> = BTreeMap::new();
    for (task, ran) in workflow.tasks.iter().zip(&report.tasks) {
        let gpus = task.needs.named.get("gpu").copied().unwrap_or(0);
        let taken = [
            i64::from(task.needs.cores == 0),
            task.needs.memory_bytes.cast_signed(),
            gpus.cast_signed(),
        ];
        let changes = changes.entry(ran.node).or_default();
        changes.push((ran.start_ns, true, taken));
        changes.push((ran.end_ns, false, taken.map(|amount| -amount)));
    }
    let most = [
        i64::from(LIGHT_MAX),
        MEMORY_BYTES.cast_signed(),
        GPUS.cast_signed(),
    ];
    for (node, mut changes) in changes {
        // A change that takes no time would end before it begins.
        changes.retain(|(_, _, taken)| taken.iter().any(|amount| *amount != 0));
        changes.sort_by_key(|&(at, begins, _)| (at, begins));
        let mut sum = [0; 3];
        for (at, _, taken) in changes {
            for (sum, taken) in sum.iter_mut().zip(taken) {
                *sum += taken;
            }
            let within = sum.iter().zip(most).all(|(sum, most)| *sum <= most);
            prop_assert!(within, "node {node} at {at}: {sum:?} of {most:?}");
        }
    }
    Ok(())
}

fn check_bounds(
    platform: &Platform,
    workflow: &Workflow,
    report: &SimulationReport,
) -> Result<(), TestCaseError> {
    let all = || platform.nodes.iter().chain(&platform.server_cores);
    let fastest = all().map(|one| one.core_speed).fold(0.0, f64::max);
    let together: f64 = all().map(|one| one.core_speed * f64::from(one.cores)).sum();
    let makespan = Span(report.makespan_ns).as_secs_f64();
    // Times are rounded to nanoseconds.
    let slack = 1e-9 * workflow.tasks.len() as f64;
    prop_assert!(makespan + slack >= critical_path(workflow).as_secs_f64() / fastest);
    prop_assert!(makespan + slack >= work(workflow).as_secs_f64() / together);
    for (one, node) in report.nodes.iter().zip(all()) {
        prop_assert_eq!(
            one.busy_ns + one.idle_ns,
            report.makespan_ns * u64::from(one.cores)
        );
        // A device did not write faster than its bandwidth.
        if let Some(rate) = node.write_bandwidth {
            let bytes = (one.written_bytes + one.fetched_bytes) as f64;
            prop_assert!(bytes / rate as f64 <= makespan + 1e-6);
        }
        let energy = one.energy_joules / makespan.max(1e-12);
        prop_assert!(
            makespan <= 0.0 || (1.999..=10.001).contains(&energy),
            "{energy} W"
        );
    }
    prop_assert!(report.transferred_bytes <= report.input_bytes);
    prop_assert!((1.0..=2.0).contains(&report.write_amplification));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn simulated_tasks_end_once_in_order_on_separate_cores(
        drafts in drafts(),
        sources in prop::collection::vec(0_u64..20_000_000, 1..8),
        platform in platform(),
        policy in prop::sample::select(&policy::NAMES[..]),
        random in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let nodes = u32::try_from(platform.nodes.len()).unwrap();
        let workflow = workflow(&drafts, &sources, nodes);
        let placement = if random { Placement::Random } else { Placement::RoundRobin };
        let simulation = Simulation::new(&platform, &workflow)
            .policy(policy)
            .placement(placement)
            .seed(seed);
        let report = simulation.run().unwrap();
        prop_assert_eq!(report.tasks.len(), workflow.tasks.len());
        // Every node connects, the job is submitted, every task starts once and ends once; some labels are returned before.
        let events = report.nodes.len() + 1 + 2 * workflow.tasks.len();
        prop_assert_eq!(report.events.dispatcher, events as u64 + report.events.abandoned);
        check_order(&workflow, &report)?;
        check_bounds(&platform, &workflow, &report)?;
        prop_assert_eq!(simulation.run().unwrap(), report);
    }

    /// Runs fail, devices fill, inputs are hashed and decisions are written to disk: the job ends well and follows all rules of other runs,
    /// or the error names the cause.
    #[test]
    fn simulation_with_faults_ends_well_or_names_the_cause(
        drafts in drafts(),
        sources in prop::collection::vec(0_u64..20_000_000, 1..8),
        mut platform in platform(),
        policy in prop::sample::select(&policy::NAMES[..]),
        (rate, capacity) in (prop_oneof![Just(0.0), 0.0..0.3_f64], prop::option::of(0_u64..100_000_000)),
        (hash, commit, retries) in (prop::option::of(1_u64..5_000_000), 0_u64..30, 0_u32..20),
        seed in any::<u64>(),
    ) {
        let nodes = u32::try_from(platform.nodes.len()).unwrap();
        let workflow = workflow(&drafts, &sources, nodes);
        for (index, node) in platform.nodes.iter_mut().enumerate() {
            (node.failure_rate, node.hash_bandwidth) = (rate, hash);
            // The other nodes always have space.
            node.capacity = capacity.filter(|_| index % 2 == 0);
        }
        (platform.commit_latency, platform.retries) = (Span::from_millis(commit), retries);
        let simulation = Simulation::new(&platform, &workflow).policy(policy).seed(seed);
        let report = match simulation.run() {
            Ok(report) => report,
            Err(SimError::Unfinished { why: Some(why), .. }) => {
                let failed = rate > 0.0 && why.contains("again and again");
                let full = capacity.is_some() && why.contains("is full");
                prop_assert!(failed || full, "{why}");
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        check_order(&workflow, &report)?;
        check_bounds(&platform, &workflow, &report)?;
        prop_assert_eq!(report.events.failed, report.nodes.iter().map(|one| one.failed).sum::<u64>());
        if rate == 0.0 && capacity.is_none() {
            prop_assert_eq!(report.events.failed, 0);
        }
        for (one, node) in report.nodes.iter().zip(&platform.nodes) {
            prop_assert!(node.capacity.is_none_or(|capacity| one.written_bytes <= capacity));
        }
        prop_assert_eq!(simulation.run().unwrap(), report);
    }
}

#[test]
fn failed_runs_are_retried_and_cost_their_time() {
    let drafts: Vec<Draft> = (0..40)
        .map(|_| (1000, vec![1], vec![], None, PLAIN))
        .collect();
    let workflow = workflow(&drafts, &[], 2);
    let mut platform = plain(1, 2);
    platform.retries = 20;
    let run = |platform: &Platform| Simulation::new(platform, &workflow).run();
    assert_eq!(run(&platform).unwrap().makespan_ns, 20_000_000_000);
    let set = |platform: &mut Platform, rate| {
        for node in &mut platform.nodes {
            node.failure_rate = rate;
        }
    };
    set(&mut platform, 0.2);
    let report = run(&platform).unwrap();
    let failed = report.events.failed;
    assert!((4..20).contains(&failed), "{failed}");
    let busy: u64 = report.nodes.iter().map(|one| one.busy_ns).sum();
    assert_eq!(busy, (40 + failed) * 1_000_000_000);
    assert!(report.makespan_ns >= busy / 2);
    assert!(report.text().contains("failed runs"), "{}", report.text());
    set(&mut platform, 1.0);
    let error = run(&platform).unwrap_err().to_string();
    assert!(
        error.contains("40 of 40 tasks undone") && error.contains("failed again and again"),
        "{error}"
    );
    set(&mut platform, 0.2);
    platform.retries = 0;
    assert!(
        run(&platform).is_err(),
        "one of 40 fails, and nobody tries again"
    );
}

#[test]
fn simulated_full_device_refuses_files_and_other_nodes_take_them() {
    const MIB: u64 = 1 << 20;
    let drafts: Vec<Draft> = (0..8)
        .map(|_| (5000, vec![10 * MIB], vec![0], None, PLAIN))
        .collect();
    let mut workflow = workflow(&drafts, &[30 * MIB], 2);
    workflow.files[0].home = Some(NodeId(0));
    let mut platform = plain(1, 2);
    platform.nodes[0].capacity = Some(55 * MIB);
    let run = |platform: &Platform| {
        let simulation = Simulation::new(platform, &workflow).policy("input-locality");
        simulation.placement(Placement::Recorded).run()
    };
    let report = run(&platform).unwrap();
    let written: Vec<u64> = report.nodes.iter().map(|one| one.written_bytes).collect();
    assert!(written[0] <= 25 * MIB && written[1] > 0, "{written:?}");
    assert_eq!(written.iter().sum::<u64>(), 80 * MIB);
    // A node with space only for a replica of the input.
    platform.nodes[1].capacity = Some(35 * MIB);
    let error = run(&platform).unwrap_err().to_string();
    assert!(
        error.contains("the device of node") && error.contains("is full"),
        "{error}"
    );
}

/// The simulator uses the rule of a node: hashing pays for runs of at least four times its time.
#[test]
fn inputs_of_expensive_runs_are_hashed_while_core_is_held() {
    let drafts = [
        (5000, vec![1], vec![0], None, PLAIN),
        (5000, vec![1], vec![0], None, PLAIN),
    ];
    let mut workflow = workflow(&drafts, &[1_000_000_000], 1);
    let mut platform = plain(1, 1);
    let run = |platform: &Platform, workflow: &Workflow| {
        Simulation::new(platform, workflow).run().unwrap()
    };
    assert_eq!(run(&platform, &workflow).makespan_ns, 10_000_000_000);
    platform.nodes[0].hash_bandwidth = Some(500_000_000);
    let report = run(&platform, &workflow);
    let hash_ns = 2_000_000_000 + 50_000;
    assert!(report.tasks.iter().all(|task| task.hash_ns == hash_ns));
    assert_eq!(report.makespan_ns, 10_000_000_000 + 2 * hash_ns);
    for task in &mut workflow.tasks {
        task.compute = Span::from_millis(1000);
    }
    assert_eq!(
        run(&platform, &workflow).makespan_ns,
        2_000_000_000,
        "it does not pay"
    );
}

#[test]
fn every_decision_is_stored_before_its_label_is_sent() {
    // A chain across two nodes: no task can be sent ahead.
    let drafts = [
        (100, vec![1], vec![0], Some(0), PLAIN),
        (100, vec![1], vec![1], Some(1), PLAIN),
        (100, vec![1], vec![2], Some(0), PLAIN),
    ];
    let workflow = workflow(&drafts, &[1], 2);
    let mut platform = plain(1, 2);
    let run = |platform: &Platform| {
        Simulation::new(platform, &workflow)
            .run()
            .unwrap()
            .makespan_ns
    };
    let before = run(&platform);
    platform.commit_latency = Span::from_millis(7);
    assert_eq!(run(&platform), before + 3 * 7_000_000);
    platform.label_latency = Span::from_millis(2);
    assert_eq!(run(&platform), before + 3 * 7_000_000 + 5 * 2_000_000);
}

fn plain(cores: u32, nodes: usize) -> Platform {
    let node = PlatformNode {
        cores,
        ..PlatformNode::default()
    };
    Platform::uniform(nodes, &node)
}

#[test]
fn unknown_names_and_nodes_are_errors() {
    let platform = plain(1, 2);
    let drafts = [(1, vec![1], vec![0], None, PLAIN)];
    let mut workflow = workflow(&drafts, &[5], 2);
    let run = |workflow: &Workflow, placement| {
        let simulation = Simulation::new(&platform, workflow).placement(placement);
        simulation
            .run()
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let simulation = Simulation::new(&platform, &workflow);
    assert!(
        simulation
            .policy("best")
            .run()
            .unwrap_err()
            .to_string()
            .contains("`best`")
    );
    let error = run(&workflow, Placement::Recorded).unwrap_err();
    assert!(
        error.contains("the node of `source 0` is not recorded"),
        "{error}"
    );
    workflow.files[0].home = Some(NodeId(2));
    let error = run(&workflow, Placement::Recorded).unwrap_err();
    assert!(
        error.contains("file `source 0` is bound to node 2"),
        "{error}"
    );
    workflow.tasks[0].node = Some(NodeId(7));
    let error = run(&workflow, Placement::Random).unwrap_err();
    assert!(
        error.contains("task `task 0` is bound to node 7"),
        "{error}"
    );
}

/// The workflow has one task for each step that takes time, computed by hand.
#[test]
fn task_time_matches_hand_computed_steps() {
    let node = PlatformNode {
        read_bandwidth: Some(1_000_000),
        write_bandwidth: Some(500_000),
        read_latency: Span::from_millis(10),
        write_latency: Span::from_millis(20),
        link_bandwidth: Some(250_000),
        link_latency: Span::from_millis(1),
        core_speed: 2.0,
        ..PlatformNode::default()
    };
    let mut platform = Platform::uniform(2, &node);
    platform.label_latency = Span::from_millis(3);
    let drafts = [(1000, vec![500_000], vec![0], Some(1), PLAIN)];
    let mut workflow = workflow(&drafts, &[1_000_000], 2);
    workflow.files[0].home = Some(NodeId(0));
    let report = Simulation::new(&platform, &workflow)
        .placement(Placement::Recorded)
        .run()
        .unwrap();
    let task = &report.tasks[0];
    let millis = [
        task.start_ns,
        task.kernel_start_ns - task.start_ns,
        task.read_ns,
        task.compute_ns,
        task.write_ns,
    ]
    .map(|ns| ns / 1_000_000);
    // Label; 10 + 1 + 1 + 20 of latency and 4 s of link; 10 + 1 s; half a second at speed 2; 20 + 1 s.
    assert_eq!(millis, [3, 4032, 1010, 500, 1020]);
    assert_eq!(
        (report.transferred_bytes, report.makespan_ns),
        (1_000_000, task.end_ns)
    );
    assert!((report.write_amplification - 2.0).abs() < 1e-12);
}

#[test]
fn nodes_on_one_machine_share_its_processors() {
    let drafts: Vec<Draft> = (0..4)
        .map(|at| (1000, vec![1], vec![], Some(at), PLAIN))
        .collect();
    let workflow = workflow(&drafts, &[], 4);
    let mut platform = plain(1, 4);
    let makespan = |platform: &Platform| {
        let report = Simulation::new(platform, &workflow).run().unwrap();
        report.makespan_ns / 1_000_000
    };
    assert_eq!(makespan(&platform), 1000);
    for (processors, expected) in [(4, 1000), (3, 1333), (2, 2000), (1, 4000)] {
        platform.processors = Some(processors);
        assert_eq!(makespan(&platform), expected, "{processors}");
    }
}

#[test]
fn labels_with_the_same_input_fetch_it_once() {
    let drafts: Vec<Draft> = (0..4)
        .map(|_| (10, vec![1], vec![0], Some(1), PLAIN))
        .collect();
    let mut workflow = workflow(&drafts, &[3_000_000], 2);
    workflow.files[0].home = Some(NodeId(0));
    let mut platform = plain(4, 2);
    for node in &mut platform.nodes {
        node.link_bandwidth = Some(1_000_000);
    }
    let report = Simulation::new(&platform, &workflow)
        .placement(Placement::Recorded)
        .run()
        .unwrap();
    assert_eq!(report.transferred_bytes, 3_000_000);
    assert!(
        report
            .tasks
            .iter()
            .all(|task| task.kernel_start_ns == 3_000_000_000)
    );
}

/// Returns the time of the longest chain of tasks on cores of speed 1 without any reading, writing or waiting: no run on such cores can be
/// shorter.
fn critical_path(workflow: &Workflow) -> Span {
    let mut ends = vec![Span(0); workflow.tasks.len()];
    // A chain has no more links than there are tasks.
    for _ in 0..workflow.tasks.len() {
        let before = ends.clone();
        for (index, task) in workflow.tasks.iter().enumerate() {
            let makers = workflow.tasks.iter().zip(&before);
            let start = makers
                .filter(|(maker, _)| maker.outputs.iter().any(|file| task.inputs.contains(file)))
                .map(|(_, end)| *end)
                .max();
            ends[index] = start.unwrap_or_default() + task.compute;
        }
        if ends == before {
            break;
        }
    }
    ends.into_iter().max().unwrap_or_default()
}

/// Returns the core time of all tasks together on cores of speed 1.
fn work(workflow: &Workflow) -> Span {
    let tasks = workflow.tasks.iter();
    tasks.fold(Span(0), |sum, task| {
        sum + Span(task.compute.0 * u64::from(task.needs.cores))
    })
}

#[test]
fn tasks_wait_for_cores_and_run_where_their_program_is() {
    let drafts: Vec<Draft> = (0..4)
        .map(|_| (1000, vec![1], vec![0], None, (2, 0, 0)))
        .collect();
    let mut workflow = workflow(&drafts, &[5], 2);
    let mut platform = plain(2, 2);
    let run = |platform: &Platform, workflow: &Workflow, policy: &str| {
        let simulation = Simulation::new(platform, workflow).policy(policy);
        simulation.run().map_err(|error| error.to_string())
    };
    for policy in policy::NAMES {
        let report = run(&platform, &workflow, policy).unwrap();
        assert!(report.makespan_ns >= 2_000_000_000, "{policy}");
    }
    assert_eq!(
        run(&platform, &workflow, "min-wait").unwrap().makespan_ns,
        2_000_000_000
    );
    platform.nodes[1].programs = Some(["kernel 9".to_owned()].into());
    for policy in policy::NAMES {
        let report = run(&platform, &workflow, policy).unwrap();
        let first = report.tasks.iter().all(|task| task.node == 0);
        assert!(first, "{policy}: node 1 does not have the programs");
        assert_eq!(report.makespan_ns, 4_000_000_000, "{policy}");
    }
    workflow.tasks[0].needs.cores = 3;
    let error = run(&platform, &workflow, "min-wait").unwrap_err();
    assert_eq!(
        error,
        "no node can run task `task 0`: it needs cores = 3, and the most that a node offers is 2"
    );
    workflow.tasks[0].needs.cores = 2;
    workflow.tasks[0].kernel = Kernel::Program("kernel 9".to_owned());
    let usual = (0..3).map(|number| format!("kernel {number}"));
    platform.nodes[0].programs = Some(usual.collect());
    let report = run(&platform, &workflow, "round-robin").unwrap();
    assert_eq!(report.tasks[0].node, 1);
    platform.nodes[1].programs = Some([].into());
    platform.nodes[0].programs = Some(["kernel 1".to_owned()].into());
    let error = run(&platform, &workflow, "min-wait").unwrap_err();
    assert_eq!(
        error,
        "no node can run task `task 0`: no storage node has the program `kernel 9`"
    );
}

#[test]
fn policies_use_unequal_speed_and_power_as_documented() {
    let drafts: Vec<Draft> = (0..12)
        .map(|_| (100, vec![1], vec![0], None, PLAIN))
        .collect();
    let workflow = workflow(&drafts, &[5], 2);
    let mut platform = plain(2, 3);
    let [fast, thrifty, _] = &mut platform.nodes[..] else {
        panic!("there are three");
    };
    // Run times are learned, so that a plan can be computed.
    let learned = |millis: u64| {
        let history = tidemill_model::event::History {
            runs: 1,
            total_ns: millis * 1_000_000,
            input_bytes: 5,
        };
        (0..3).map(|n| (format!("kernel {n}"), history)).collect()
    };
    fast.core_speed = 4.0;
    fast.history = learned(25);
    fast.read_bandwidth = Some(3_600_000_000);
    fast.write_bandwidth = Some(3_600_000_000);
    fast.power_busy_watts = 300.0;
    thrifty.history = learned(100);
    thrifty.read_bandwidth = Some(500_000_000);
    thrifty.write_bandwidth = Some(500_000_000);
    thrifty.power_busy_watts = 10.0;
    let slow = &mut platform.nodes[2];
    slow.history = learned(100);
    slow.read_bandwidth = Some(100_000_000);
    slow.write_bandwidth = Some(100_000_000);
    slow.power_busy_watts = 300.0;
    let ran = |policy: &str| {
        let simulation = Simulation::new(&platform, &workflow).policy(policy);
        let report = simulation.run().unwrap();
        let on = |node| report.tasks.iter().filter(|one| one.node == node).count();
        ([on(0), on(1), on(2)], report.makespan_ns)
    };
    let most = |policy: &str, node: usize| {
        let ([a, b, c], _) = ran(policy);
        let rest = a + b + c - [a, b, c][node];
        assert!([a, b, c][node] > rest, "{policy}: {a}, {b}, {c}");
    };
    most("constraint:bandwidth", 0);
    most("constraint:energy", 1);
    most("constraint:speed=1", 0);
    // The fast node draws 30 times the power for a quarter of the time.
    most("minmax", 1);
    // Without configured power, only time counts.
    for node in &mut platform.nodes {
        node.power_busy_watts = 0.0;
    }
    let ran = |policy: &str| {
        let simulation = Simulation::new(&platform, &workflow).policy(policy);
        simulation.run().unwrap().makespan_ns
    };
    assert!(ran("minmax") < ran("round-robin"));
}
