//! Benchmark of the dispatcher: prints the number of labels per second that are placed on one core, by each policy and size of cluster, as
//! JSON lines: `cargo test --release -p tidemill-sched --lib dispatch::speed -- --ignored --nocapture`.
//!
//! Time is processor time, so that other load of the processor matters little. *decide* is the scheduling of LABIOS: the locations of a
//! task's inputs, the policy's view, its choice and the change of the queues. *dispatch* is the whole state machine, from a job's
//! submission to labels for the nodes.
use super::{Config, Dispatcher, ReadyQueue};
use std::collections::{BTreeMap, VecDeque};
use tidemill_model::event::{
    Action, Event, History, IdSource, InputSpec, JobSpec, NodeView, Origin, OutputSpec, Role,
    TaskRole, TaskSpec,
};
use tidemill_model::id::{Inode, JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Kernel, Limits, Owner};
use tidemill_model::layout::Selection;
use tidemill_model::object::Placed;
use tidemill_model::random::RandomSource;
use tidemill_model::resources::{Needs, Offers};
use tidemill_model::runtime_environment::RuntimeEnvironment;
use tidemill_model::time::{Span, Time};

const POLICIES: [&str; 8] = [
    "round-robin",
    "random",
    "random:all",
    "min-wait",
    "constraint:low-latency",
    "constraint:bandwidth",
    "constraint:energy",
    "minmax",
];
const TASKS: u64 = 100_000;
/// Number of benchmark runs; each printed figure is the median of these runs.
const RUNS: usize = 5;

#[derive(Debug, Default)]
pub(super) struct IdCounter(u64);

impl IdSource for IdCounter {
    fn ready(&mut self, _objects: u64) -> bool {
        true
    }

    fn label(&mut self) -> LabelId {
        self.0 += 1;
        LabelId(self.0)
    }

    fn objects(&mut self, count: u64) -> ObjectId {
        self.0 += count;
        ObjectId((1 << 40) + self.0)
    }
}

/// Returns the status of a node; nodes differ in speed, power and stored data by their id.
fn view(id: u32, cores: u32) -> NodeView {
    let history = History {
        runs: 10,
        total_ns: 10_000_000 * u64::from(1 + id % 3),
        input_bytes: 10 << 20,
    };
    NodeView {
        role: Role::Store,
        offers: Offers::of_cores(cores),
        capacity_bytes: 1 << 40,
        free_bytes: (1 << 40) / u64::from(1 + id % 7),
        link_bytes_per_sec: 125_000_000,
        device_bytes_per_sec: 300_000_000 * u64::from(1 + id % 5),
        watts_milli: 20_000 * u64::from(1 + id % 4),
        history: BTreeMap::from([("mean".to_owned(), history)]),
    }
}

fn task(id: u64, nodes: u32, source: &mut RandomSource) -> TaskSpec {
    let placed = Placed {
        object: ObjectId(id),
        node: NodeId(source.below(nodes)),
        size: 1 << 20,
    };
    TaskSpec {
        task: TaskId(id),
        name: format!("t{id}"),
        kernel: Kernel::Builtin("mean".to_owned()),
        args: vec![],
        inputs: vec![InputSpec {
            name: "in".to_owned(),
            path: format!("/in/{id}"),
            origin: Origin::File(placed),
            selection: Selection::WHOLE,
            streaming: false,
        }],
        outputs: vec![OutputSpec {
            name: "out".to_owned(),
            path: format!("/out/{id}"),
            inode: Inode(id),
            part: false,
            memory: false,
        }],
        stdin: None,
        stdout: None,
        node: None,
        retries: 2,
        needs: Needs::default(),
        programs: vec![],
        limits: Limits::default(),
        runtime_environment: RuntimeEnvironment::default(),
        share: TaskRole::All,
        ended: None,
    }
}

/// Returns a cluster with a job whose ready tasks are sent as far as nodes have capacity, and the time that sending took.
fn cluster(policy: &str, nodes: u32, cores: u32) -> (Dispatcher, Vec<Action>, f64) {
    let config = Config {
        policy: policy.to_owned(),
        seed: 1,
    };
    let dispatcher =
        Dispatcher::new(config, Box::<IdCounter>::default()).expect("the policy is known");
    let mut dispatcher = dispatcher.without_explanations();
    let mut out = Vec::new();
    for id in 0..nodes {
        let (node, view) = (NodeId(id), view(id, cores));
        dispatcher.on(Event::NodeUp { node, view }, Time(0), &mut out);
    }
    let mut source = RandomSource::seeded(1);
    let spec = JobSpec {
        job: JobId(1),
        owner: Owner::default(),
        policy: None,
        tasks: (0..TASKS).map(|id| task(id, nodes, &mut source)).collect(),
    };
    let submitted = Event::Submitted(Box::new(spec));
    let start = busy();
    dispatcher.on(submitted, Time(1), &mut out);
    let seconds = busy() - start;
    (dispatcher, out, seconds)
}

/// Returns the number of labels per second for which the policy finds a node, while each node has a few labels.
fn decide(policy: &str, nodes: u32) -> f64 {
    let (mut dispatcher, _, _) = cluster(policy, nodes, 1);
    let ids: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    for &id in &ids {
        let queue = &dispatcher.nodes.get(&id).expect("it is up").outstanding;
        let labels: Vec<LabelId> = queue.keys().collect();
        for label in labels {
            dispatcher.release(id, label);
        }
    }
    let ready = dispatcher.lines.iter();
    let ready = ready.filter(|(line, _)| !matches!(line, ReadyQueue::Pinned(_)));
    let tasks: Vec<TaskId> = ready.flat_map(|(_, all)| all.iter()).collect();
    let most = dispatcher.policies[policy].batch_max();
    let outstanding = 4 * nodes as usize;
    let mut sent: VecDeque<(NodeId, LabelId)> = VecDeque::new();
    let (mut labels, mut out) = (1_u64 << 50, Vec::new());
    let begin = busy();
    for batch in tasks.chunks(most) {
        let turn = super::Turn {
            now: Time(labels - (1 << 50)),
            out: &mut out,
        };
        let answers = match most {
            1 => vec![dispatcher.ask(batch[0], Span::default(), None, turn.now)],
            _ => dispatcher.ask_together(batch, &turn),
        };
        for (task, answer) in batch.iter().zip(answers) {
            let Some(choice) = answer.choice else {
                continue;
            };
            dispatcher.commit((JobId(1), *task), &choice);
            dispatcher.spare_reads = answer.reads.emptied();
            labels += 1;
            let (node, label) = (choice.node, LabelId(labels));
            let expected = Span(10_000_000);
            let queue = dispatcher.node_mut(node);
            queue.add(label, expected, Needs::default(), false);
            sent.push_back((node, label));
        }
        while sent.len() > outstanding {
            if let Some((node, label)) = sent.pop_front() {
                dispatcher.node_mut(node).remove(label);
            }
        }
    }
    let placed = labels - (1 << 50);
    assert_eq!(placed, tasks.len() as u64, "{policy} found no place");
    rate(placed, busy() - begin)
}

/// Returns the processor time of this thread, in seconds; a measurement must take many clock ticks of the system.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says it");
    let first = text.split(' ').next().and_then(|ns| ns.parse().ok());
    Span(first.expect("the first is a number of nanoseconds")).as_secs_f64()
}

fn rate(count: u64, seconds: f64) -> f64 {
    Span(count).as_secs_f64() * 1e9 / seconds
}

fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

#[test]
#[ignore = "prints figures, which mean nothing without --release"]
fn speed_of_decisions_and_dispatch_in_labels_per_second() {
    for nodes in [32, 1000, 10_000] {
        for policy in POLICIES {
            let runs = (0..RUNS).map(|_| decide(policy, nodes)).collect();
            // All nodes have capacity: 64 labels per core.
            let cores = u32::try_from(TASKS).unwrap() / nodes / 16 + 1;
            let whole = (0..RUNS).map(|_| rate(TASKS, cluster(policy, nodes, cores).2));
            println!(
                "{{\"nodes\": {nodes}, \"policy\": \"{policy}\", \"decide_per_sec\": {:.0}, \"dispatch_per_sec\": {:.0}}}",
                median(runs),
                median(whole.collect())
            );
        }
    }
}
