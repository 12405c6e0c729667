//! The simulated cluster in virtual time: an ordered list of pending events, and their effects on servers, nodes and clients.

use crate::Summary;
use crate::broker::Broker;
use crate::dice::{Dice, mix};
use crate::fault_mix::FaultMix;
use crate::hooks::{Hooked, REDUCED};
use crate::memory_tier::{MEMORY, MemoryTier};
use crate::mount::{ClientState, DIRECTORIES, Habits, OUT};
use crate::multi_writer::MultiWriter;
use crate::node::SimulatedNode;
use crate::port::{Port, RunningClient, WorldAnswer};
use crate::reference::Reference;
use crate::rules::RULED;
use crate::store::StoreRefusal;
use crate::time;
use parking_lot::Mutex;
use rusqlite::Connection;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::{Caller, NamesRequest};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::time::Span;
use tidemill_sched::burst::TierLimits;
use tidemill_server::queue::LabelQueue;
use tidemill_server::simulated::{self, NodeStream, Simulated, SimulatedOptions, Submitted};
use tidemill_wire::capability::CapabilityKey;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Named};

/// Interval at which the simulation looks for changes by the server itself, in milliseconds.
const LOOK_MS: u64 = 200;
/// Time after which the replicas on an offline node are recreated, in milliseconds.
const REPAIR_MS: u64 = 6000;
/// Interval at which all objects of a node are verified, in runs that corrupt objects, in milliseconds.
const SCRUB_MS: u64 = 12_000;
/// Rate limit of migrations in half of the runs that drain nodes, in bytes per second.
const MOVE_BYTES_PER_SEC: u64 = 20_000;
/// Interval at which the driver is woken even if nothing happened, in milliseconds.
const DRIVER_LOOK_MS: u64 = 5000;
/// Number of events that are kept for the report of a failure.
const TRACE_MAX: usize = 60;

const POLICIES: [&str; 5] = [
    "input-locality",
    "round-robin",
    "min-wait",
    "hybrid",
    "random",
];

type Act = Box<dyn FnOnce(&mut World)>;

/// Event that happens at a later virtual time.
struct PendingEvent {
    at: u64,
    order: u64,
    what: &'static str,
    act: Act,
}

impl PartialEq for PendingEvent {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for PendingEvent {}

impl PartialOrd for PendingEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Connection of one node with the server.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) node: usize,
    /// Whether the connection belongs to a suspended node.
    suspended: bool,
    /// Server's end, once the server knows the connection.
    pub(crate) link: Option<NodeStream>,
    /// Arrival time of the last message to the server; `to_node` is the same for the other direction. Later messages must arrive later.
    to_server: u64,
    to_node: u64,
}

/// One client with its state in the world.
#[derive(Debug)]
pub(crate) struct ClientSlot {
    pub(crate) port: Port,
    pub(crate) running: Option<RunningClient>,
    pub(crate) session: u64,
    /// Number of times that the client was started.
    pub(crate) life: u64,
    /// Object that the client has open for reading, and the life of the server that knows about the open object.
    pub(crate) holds: Option<(u64, u64)>,
    /// Inode and object that the client writes, and the node that stores the object.
    pub(crate) writes: Option<(u64, u64, u32)>,
    /// Whether the client writes and reads objects directly on the node's device.
    pub(crate) in_place: bool,
}

/// Panic payload with which the server is killed in the middle of its work.
#[derive(Debug)]
pub(crate) struct Killed;

/// Simulated cluster with its pending events.
pub(crate) struct World {
    pub(crate) now: u64,
    order: u64,
    due: BinaryHeap<Reverse<PendingEvent>>,
    pub(crate) events: u64,
    fingerprint: u64,
    trace: VecDeque<(u64, &'static str)>,
    pub(crate) verbose: bool,
    pub(crate) dice: Dice,
    pub(crate) fault_mix: FaultMix,
    pub(crate) server: Option<Simulated>,
    disk: Option<Connection>,
    pub(crate) server_life: u64,
    /// Key with which nodes sign receipts.
    pub(crate) key: Option<CapabilityKey>,
    server_start: u64,
    driver_due: bool,
    policy: String,
    /// Number of replicas that the server makes of each version.
    pub(crate) replicas: u32,
    /// Source of corrupted objects; `None` if no objects are corrupted.
    pub(crate) bit_rot: Option<Dice>,
    pub(crate) bit_rots: bool,
    /// Objects that were ever corrupted, by node.
    pub(crate) corrupted: BTreeSet<(usize, u64)>,
    /// Whether nodes are drained at random times.
    pub(crate) drains: bool,
    /// Whether the clients' files trigger a rule.
    pub(crate) rules: bool,
    /// Whether the rule is a hook.
    pub(crate) hooks: bool,
    /// State of hooks that use all their features.
    pub(crate) hooked: Option<Hooked>,
    /// Whether nodes are suspended.
    pub(crate) suspends: bool,
    /// Whether some nodes belong to the burst tier.
    pub(crate) bursts: bool,
    burst: TierLimits,
    suspend_after_ms: Option<u64>,
    /// Number of times that nodes were resumed; set at the end of the run.
    pub(crate) resumes: u64,
    /// State of nodes of the memory tier, and of workspaces.
    pub(crate) memory_tier: Option<MemoryTier>,
    /// State of several mounts that write the same files; if set, nothing else is simulated.
    pub(crate) multi_writer: Option<MultiWriter>,
    /// Broker in which labels wait, if they do not wait in the server's database.
    pub(crate) broker: Option<Arc<Broker>>,
    pub(crate) nodes: Vec<SimulatedNode>,
    pub(crate) wires: BTreeMap<u64, Wire>,
    /// Number of each node's connection.
    pub(crate) attached: Vec<Option<u64>>,
    next_wire: u64,
    pub(crate) slots: Vec<ClientSlot>,
    pub(crate) calm: Rc<Cell<bool>>,
    habits: Habits,
    pub(crate) reference: Reference,
    /// All labels that were ever sent: the node, and the task of the label or the objects that the label removes.
    pub(crate) labels: BTreeMap<u64, (usize, Result<u64, Vec<u64>>)>,
    pub(crate) submissions: Vec<(Submitted, usize, u64, u64)>,
    /// Seals that their node has committed, with the clients that wait for them.
    pub(crate) sealed: CommittedSeals,
}

/// A committed seal: the client and the number of its request, the object and its node, and the object's length.
type CommittedSeal = (
    (usize, u64, u64),
    (NodeId, ObjectId),
    Result<u64, StoreRefusal>,
);
pub(crate) type CommittedSeals = Arc<Mutex<Vec<CommittedSeal>>>;

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let fault_mix = FaultMix::draw(&mut dice);
        let disk = Connection::open_in_memory().expect("SQLite works in memory");
        let nodes = 1 + dice.roll(4);
        let nodes = (0..nodes).map(|id| {
            let cores = 1 + u32::try_from(dice.roll(3)).unwrap_or(0);
            SimulatedNode::new(u32::try_from(id).unwrap_or(0), cores)
        });
        let nodes: Vec<SimulatedNode> = nodes.collect();
        let habits = Habits {
            write: 1 + dice.roll(10),
            rename: dice.roll(8),
            unlink: dice.roll(3),
            read: dice.roll(6),
            submit: dice.roll(8),
            chmod: dice.roll(4),
            pause: [50, 400, 3000][usize::try_from(dice.roll(3)).unwrap_or(0)],
        };
        let policy = POLICIES[usize::try_from(dice.roll(5)).unwrap_or(0)];
        let attached = vec![None; nodes.len()];
        Self {
            now: 0,
            order: 0,
            due: BinaryHeap::new(),
            events: 0,
            fingerprint: 0,
            trace: VecDeque::new(),
            verbose: false,
            fault_mix,
            server: None,
            disk: Some(disk),
            server_life: 0,
            key: None,
            server_start: 0,
            driver_due: false,
            policy: policy.into(),
            replicas: 1,
            bit_rot: None,
            bit_rots: false,
            corrupted: BTreeSet::new(),
            drains: false,
            rules: false,
            hooks: false,
            hooked: None,
            suspends: false,
            bursts: false,
            burst: TierLimits::default(),
            suspend_after_ms: None,
            resumes: 0,
            memory_tier: None,
            multi_writer: None,
            broker: dice.chance(500).then(Arc::default),
            nodes,
            wires: BTreeMap::new(),
            attached,
            next_wire: 0,
            slots: Vec::new(),
            calm: Rc::default(),
            habits,
            reference: Reference::new(),
            labels: BTreeMap::new(),
            submissions: Vec::new(),
            sealed: CommittedSeals::default(),
            dice,
        }
    }

    /// Schedules the first events of the simulation.
    pub(crate) fn begin(&mut self) {
        time::set(0);
        simulated::time::set_commit_failure_hook(|| resume_unwind(Box::new(Killed)));
        if self.drains {
            let paced = self.dice.chance(500);
            self.fault_mix.move_bytes_per_sec = if paced { MOVE_BYTES_PER_SEC } else { 0 };
        }
        if self.suspends {
            let automatic = self.dice.chance(700);
            self.suspend_after_ms = automatic.then(|| 500 + self.dice.roll(5000));
        }
        if self.bursts {
            self.make_bursts();
        }
        self.start_server();
        self.make_directories();
        if self.rules {
            self.make_rule();
        }
        for node in 0..self.nodes.len() {
            self.start_node(node);
        }
        let clients = 1 + self.dice.roll(3);
        let clients = self
            .multi_writer
            .as_mut()
            .map_or(clients, MultiWriter::mounts);
        for number in 0..clients {
            self.start_client(usize::try_from(number).unwrap_or(0));
        }
        if self.multi_writer.is_some() {
            self.later(1, "a mount's stream breaks", World::cut_some);
        }
        self.later(1, "look", World::look);
        self.later(1, "driver looks", World::driver_looks);
        self.later(1, "fault mix", World::change_fault_mix);
        if self.bit_rot.is_some() {
            self.later(1, "bit rot", World::bit_rot);
        }
        if self.drains {
            self.drain_some();
        }
        if self.suspends {
            self.suspend_some();
        }
        self.open_memory_tier();
        if self.hooked.is_some() {
            self.begin_hooks();
        }
    }

    /// Makes some of the nodes with disks nodes of the burst tier, but not the first node.
    fn make_bursts(&mut self) {
        let disks = self.nodes.iter_mut().skip(1);
        for node in disks.filter(|one| one.store.capacity_bytes.is_none()) {
            node.burst = self.dice.chance(600);
        }
        self.burst = TierLimits {
            after: Span::from_millis(self.dice.roll(4000)),
            pass: self.dice.chance(300),
            ..TierLimits::default()
        };
    }

    /// Schedules an event `delay` milliseconds from now.
    pub(crate) fn later(
        &mut self,
        delay: u64,
        what: &'static str,
        act: impl FnOnce(&mut World) + 'static,
    ) {
        self.order += 1;
        self.due.push(Reverse(PendingEvent {
            at: self.now + delay,
            order: self.order,
            what,
            act: Box::new(act),
        }));
    }

    /// Processes events until a virtual time.
    pub(crate) fn run_until(&mut self, end: u64) {
        while let Some(Reverse(next)) = self.due.peek() {
            if next.at > end {
                break;
            }
            let Some(Reverse(due)) = self.due.pop() else {
                break;
            };
            self.happen(due);
        }
        self.set_now(end);
    }

    fn happen(&mut self, due: PendingEvent) {
        self.set_now(due.at);
        // The server may have changed its state as time passed.
        self.take_memory_tier();
        self.take_dropped();
        self.events += 1;
        let text = due.what.bytes();
        self.fingerprint = text.fold(mix(self.fingerprint ^ due.at), |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        if self.trace.len() == TRACE_MAX {
            self.trace.pop_front();
        }
        self.trace.push_back((due.at, due.what));
        if self.verbose {
            self.say(due.what);
        }
        (due.act)(self);
        self.listen();
    }

    /// Prints the text of an event, if printing is enabled.
    #[allow(clippy::print_stderr, reason = "a failure is looked for")]
    pub(crate) fn say(&self, what: &str) {
        if self.verbose {
            eprintln!("{:>9} {what}", self.now);
        }
    }

    fn set_now(&mut self, now: u64) {
        if now > self.now {
            self.now = now;
            if let Some(server) = &self.server {
                server.advance(Duration::from_millis(now - self.server_start));
            }
        }
        time::set(self.now);
        self.reference.set_now(self.now);
    }

    /// Returns the texts of the last events.
    pub(crate) fn trace(&self) -> String {
        let lines = self
            .trace
            .iter()
            .map(|(at, what)| format!("{at:>9} {what}\n"));
        lines.collect()
    }

    fn look(&mut self) {
        self.later(LOOK_MS, "look", World::look);
    }

    fn driver_looks(&mut self) {
        self.drive();
        self.later(DRIVER_LOOK_MS, "driver looks", World::driver_looks);
    }

    /// Handles changes that the server made by itself.
    fn listen(&mut self) {
        let Some(server) = &mut self.server else {
            return;
        };
        if server.has_messages() && !self.driver_due {
            self.driver_due = true;
            let delay = self.dice.roll(3);
            let life = self.server_life;
            self.later(delay, "driver", move |world| {
                world.driver_due = false;
                if world.server_life == life {
                    world.drive();
                }
            });
        }
        self.take_outboxes();
        self.take_memory_tier();
        self.take_dropped();
        self.take_submitted();
        self.take_together();
    }

    /// At random times begins to drain a node, cancels the drain, or moves all files to one node. The simulation does not wait for the end
    /// of a drain when the faults stop.
    fn drain_some(&mut self) {
        let node = u32::try_from(self.dice.roll(self.nodes.len() as u64)).unwrap_or(0);
        let (moves, cancel) = (self.dice.chance(300), self.dice.chance(400));
        if let Some(server) = &self.server {
            let done = match moves {
                true => server.move_all(node),
                false => server.drain(node, cancel),
            };
            self.say(&format!(
                "node {node}: move {moves}, cancel {cancel}: {done}"
            ));
        }
        if !self.calm.get() {
            let delay = 1 + self.dice.roll(20_000);
            self.later(delay, "a node is emptied", World::drain_some);
        }
    }

    /// Runs the server's driver.
    fn drive(&mut self) {
        let Some(server) = &mut self.server else {
            return;
        };
        match catch_unwind(AssertUnwindSafe(|| server.turn())) {
            Ok(()) if self.dice.chance(self.fault_mix.kill_after_commit) => self.kill_server(),
            Ok(()) => {}
            Err(thrown) if thrown.is::<Killed>() => self.kill_server(),
            Err(thrown) => resume_unwind(thrown),
        }
    }

    fn take_outboxes(&mut self) {
        let mut sent = Vec::new();
        let mut over = Vec::new();
        for (&wire, state) in &mut self.wires {
            let Some(link) = &mut state.link else {
                continue;
            };
            while let Ok(message) = link.outbox.try_recv() {
                sent.push((wire, message));
            }
            if link.ended.has_changed().unwrap_or(true) {
                over.push(wire);
            }
        }
        for (wire, message) in sent {
            self.send_to_node(wire, message);
        }
        for wire in over {
            self.cut(wire);
        }
    }

    fn send_to_node(&mut self, wire: u64, message: v1::ToNode) {
        let Some(message) = message.message else {
            return;
        };
        let delay = self.fault_mix.delay(&mut self.dice);
        let now = self.now;
        let Some(state) = self.wires.get_mut(&wire) else {
            return;
        };
        state.to_node = state.to_node.max(now + delay);
        let wait = state.to_node - now;
        if self.dice.chance(self.fault_mix.twice) {
            let (node, again) = (state.node, message.clone());
            let late = wait + self.dice.roll(5000);
            self.later(late, "to node, twice", move |world| {
                world.deliver_to_node(node, again);
            });
        }
        self.later(wait, "to node", move |world| {
            if let Some(state) = world.wires.get(&wire) {
                let node = state.node;
                world.deliver_to_node(node, message);
            }
        });
    }

    /// Sends the waiting messages of a node to the server.
    pub(crate) fn send_from_node(&mut self, node: usize) {
        let messages = self.nodes[node].take_outgoing();
        let Some(wire) = self.attached[node] else {
            return;
        };
        for message in messages {
            let Some(message) = message.message else {
                continue;
            };
            let delay = self.fault_mix.delay(&mut self.dice);
            let now = self.now;
            let Some(state) = self.wires.get_mut(&wire) else {
                return;
            };
            state.to_server = state.to_server.max(now + delay);
            let wait = state.to_server - now;
            self.later(wait, "to server", move |world| {
                world.server_hears(wire, message)
            });
        }
    }

    fn server_hears(&mut self, wire: u64, message: v1::from_node::Message) {
        use v1::from_node::Message as From;
        let Some(state) = self.wires.get_mut(&wire) else {
            return;
        };
        let Some(server) = &mut self.server else {
            return self.cut(wire);
        };
        match message {
            From::Hello(hello) if hello.suspended => match server.keep(&hello) {
                Ok(link) => state.link = Some(link),
                Err(_) => self.cut(wire),
            },
            From::Hello(hello) => match server.join(hello) {
                Ok(link) => state.link = Some(link),
                Err(why) => panic!("a node is not taken: {why}"),
            },
            message => {
                let Some(link) = &state.link else { return };
                let node = self.nodes[state.node].id;
                let times = 1 + u64::from(self.dice.chance(self.fault_mix.twice));
                for _ in 0..times {
                    server.hear(node, link.epoch, message.clone());
                }
            }
        }
    }

    /// Connects a node to the server.
    pub(crate) fn connect(&mut self, node: usize) {
        let is_there = self.nodes[node].life.is_some() || self.nodes[node].suspended;
        if !is_there || self.attached[node].is_some() {
            return;
        }
        if self.nodes[node].suspending {
            return self.complete_suspend(node);
        }
        if self.server.is_none() {
            let delay = self.dice.between(50, 3000);
            return self.later(delay, "connect", move |world| world.connect(node));
        }
        self.next_wire += 1;
        let wire = Wire {
            node,
            suspended: self.nodes[node].suspended,
            link: None,
            to_server: 0,
            to_node: 0,
        };
        self.wires.insert(self.next_wire, wire);
        self.attached[node] = Some(self.next_wire);
        self.nodes[node].connect();
        self.send_from_node(node);
    }

    /// Breaks a connection: messages on their way are lost, and each side notices the break at its own time.
    pub(crate) fn cut(&mut self, wire: u64) {
        let Some(state) = self.wires.remove(&wire) else {
            return;
        };
        let (node, suspended) = (state.node, state.suspended);
        if let Some(link) = state.link {
            let (id, life) = (self.nodes[node].id, self.server_life);
            let delay = self.dice.roll(self.fault_mix.notice_ms);
            self.later(delay, "server notices", move |world| {
                let server = world.server.as_ref();
                match server.filter(|_| world.server_life == life) {
                    Some(server) if suspended => server.unkeep(id, link.epoch),
                    Some(server) => server.leave(id, link.epoch),
                    None => {}
                }
            });
        }
        let delay = self.dice.roll(self.fault_mix.notice_ms);
        self.later(delay, "node notices", move |world| {
            if world.attached[node] == Some(wire) {
                world.attached[node] = None;
                world.nodes[node].disconnect();
                let delay = world.dice.between(50, 1000);
                world.later(delay, "connect", move |world| world.connect(node));
            }
        });
    }

    pub(crate) fn start_server(&mut self) {
        let Some(disk) = self.disk.take() else { return };
        self.server_life += 1;
        let options = SimulatedOptions {
            seed: mix(self.dice.roll(u64::MAX) ^ self.server_life),
            node_timeout: Duration::from_millis(self.fault_mix.node_timeout_ms),
            policy: self.policy.clone(),
            replicas: self.replicas,
            repair_after: Duration::from_millis(REPAIR_MS),
            scrub_every: Duration::from_millis(SCRUB_MS),
            move_bytes_per_sec: self.fault_mix.move_bytes_per_sec,
            suspend_after: self.suspend_after_ms.map(Duration::from_millis),
            burst: self.burst,
            queue: self
                .broker
                .clone()
                .map(|broker| broker as Arc<dyn LabelQueue>),
        };
        self.server_start = self.now;
        match Simulated::start(disk, time::since_epoch(self.now), &options) {
            Ok(server) => {
                self.key = Some(server.key());
                for slot in self.slots.iter().filter(|slot| slot.session != 0) {
                    if let Some((ino, object, node)) = slot.writes {
                        server.hold(slot.session, (ino, object), node);
                    }
                }
                self.server = Some(server);
                self.say("server starts");
                self.compare();
                self.expect_sessions();
            }
            Err((disk, error)) => {
                self.say(&format!("server can't start: {error}"));
                self.disk = Some(disk);
                self.later(500, "start server", World::start_server);
            }
        }
    }

    /// Kills the server; messages on their way to nodes are lost with the connections.
    pub(crate) fn kill_server(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        self.say("server is killed");
        self.disk = Some(server.kill());
        self.driver_due = false;
        for wire in self.wires.keys().copied().collect::<Vec<_>>() {
            self.cut(wire);
        }
        self.take_submitted();
        self.cut_streams();
        let delay = self.dice.between(1, self.fault_mix.server_offline_ms);
        self.later(delay, "start server", World::start_server);
    }

    fn make_directories(&mut self) {
        let ruled = (self.rules || self.hooked.is_some()).then_some(RULED);
        let reduced = self.hooked.as_ref().map(|_| REDUCED);
        let memory = self.memory_tier.is_some().then_some(MEMORY);
        let server = self.server.as_ref().expect("the server has just started");
        let directories = DIRECTORIES
            .into_iter()
            .chain([OUT])
            .chain(ruled)
            .chain(reduced);
        let directories = directories.chain(memory);
        for directory in directories {
            let create = v1::Create {
                name: format!("/{directory}").into_bytes(),
                kind: v1::Kind::Directory.into(),
                mode: 0o777,
                ..v1::Create::default()
            };
            let request = NamesRequest {
                caller: Caller::root(),
                ops: vec![v1::NameOp {
                    op: Some(Op::Create(create)),
                }],
                ..NamesRequest::default()
            };
            let results = server
                .apply(request)
                .expect("an empty cluster takes a directory");
            let Some(Some(Named::Entry(entry))) = results.into_iter().next().map(|r| r.result)
            else {
                panic!("a directory can't be made");
            };
            let attr = entry.attr.expect("an entry has attributes");
            self.reference.directory(directory, attr.ino);
            if directory == MEMORY {
                let wish = Op::SetXattr(v1::SetXattr {
                    ino: attr.ino,
                    name: b"user.tidemill.tier".to_vec(),
                    value: b"memory".to_vec(),
                    ..v1::SetXattr::default()
                });
                let request = NamesRequest {
                    caller: Caller::root(),
                    ops: vec![v1::NameOp { op: Some(wish) }],
                    ..NamesRequest::default()
                };
                server.apply(request).expect("a directory takes a wish");
            }
        }
    }

    pub(crate) fn start_node(&mut self, node: usize) {
        if self.nodes[node].life.is_some() || self.nodes[node].suspended {
            return;
        }
        self.nodes[node].start(self.bit_rots);
        self.say("node starts");
        let life = self.nodes[node].lives;
        self.process_pending(node);
        let delay = self.dice.roll(50);
        self.later(delay, "connect", move |world| world.connect(node));
        self.later(200, "status", move |world| world.status(node, life));
    }

    pub(crate) fn kill_node(&mut self, node: usize) {
        if self.nodes[node].life.is_none() && !self.nodes[node].suspended {
            return;
        }
        self.say("node is killed");
        self.nodes[node].kill();
        if let Some(wire) = self.attached[node].take() {
            self.cut(wire);
        }
        let delay = self.dice.between(1, self.fault_mix.node_offline_ms);
        self.later(delay, "start node", move |world| world.start_node(node));
    }

    fn status(&mut self, node: usize, life: u64) {
        if self.nodes[node].lives != life || self.nodes[node].life.is_none() {
            return;
        }
        self.nodes[node].tell_status();
        self.process_pending(node);
        self.later(1000, "status", move |world| world.status(node, life));
    }

    pub(crate) fn start_client(&mut self, number: usize) {
        let port = Port::new(self.dice.fork());
        let life = self.slots.get(number).map_or(0, |slot| slot.life) + 1;
        let (habits, calm) = (self.habits, Rc::clone(&self.calm));
        let memory = self.memory_of(number);
        let client = ClientState::new(port.clone(), (number, life), (habits, memory), calm);
        let slot = ClientSlot {
            port,
            running: None,
            session: 0,
            life,
            holds: None,
            writes: None,
            in_place: self.dice.chance(500),
        };
        if number < self.slots.len() {
            self.slots[number] = slot;
        } else {
            self.slots.push(slot);
        }
        let mount = self.begin_mount(number);
        self.slots[number].running = mount.or_else(|| Some(RunningClient::new(client.live())));
        self.poll(number);
    }

    /// Runs a client until it waits for an answer.
    pub(crate) fn poll(&mut self, number: usize) {
        loop {
            let slot = &mut self.slots[number];
            let Some(running) = &mut slot.running else {
                return;
            };
            let ended = running.go_on();
            let (port, life) = (slot.port.clone(), slot.life);
            if ended {
                // The client unmounts, which closes all files that it may still have open.
                slot.running = None;
                self.end_mount(number);
                let slot = &mut self.slots[number];
                let session = std::mem::take(&mut slot.session);
                self.expect_session(session);
            }
            let mut asked = false;
            while let Some((ticket, ask)) = port.take() {
                asked |= self.carry(number, life, ticket, ask);
            }
            // The client continues if a request was answered at once.
            if !asked {
                return;
            }
        }
    }

    /// Delivers an answer to its client, if the client that asked still runs.
    pub(crate) fn answer(&mut self, number: usize, life: u64, ticket: u64, answer: WorldAnswer) {
        if self.slots[number].life == life {
            self.slots[number].port.answer(ticket, answer);
            self.poll(number);
        }
    }

    fn take_submitted(&mut self) {
        use tokio::sync::oneshot::error::TryRecvError;
        let mut index = 0;
        while index < self.submissions.len() {
            let answer = match self.submissions[index].0.try_recv() {
                Err(TryRecvError::Empty) => {
                    index += 1;
                    continue;
                }
                Ok(Ok(job)) => {
                    let new = self.reference.accepted.insert(job);
                    assert!(new, "job {job} is accepted twice");
                    WorldAnswer::Submitted(Ok(job))
                }
                Ok(Err(why)) => WorldAnswer::Submitted(Err(why)),
                Err(TryRecvError::Closed) => WorldAnswer::Lost,
            };
            let (_, number, life, ticket) = self.submissions.swap_remove(index);
            let delay = self.fault_mix.delay(&mut self.dice);
            self.later(delay, "submitted", move |world| {
                world.answer(number, life, ticket, answer);
            });
        }
    }

    pub(crate) fn fill_disk(&mut self, full: bool) {
        if let Some(disk) = &self.disk {
            crate::node::fill(disk, full);
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            events: self.events,
            jobs: self.reference.accepted.len() as u64,
            outputs: self.reference.published,
            reads: self.multi_writer.as_ref().map_or(0, MultiWriter::reads),
            resumes: self.resumes,
            lost: self.lost().len() as u64,
            batches: self.reference.reduces,
            dropped: self
                .hooked
                .as_ref()
                .map_or(0, |one| one.dropped.len() as u64),
            workspaces: self.memory_tier.as_ref().map_or(0, |one| one.ended),
            labels: 0,
            agents: 0,
            servers: self.server_life,
            time_ms: self.now,
            fingerprint: self.fingerprint,
        }
    }

    /// Compares the server's namespace with the reference model.
    pub(crate) fn compare(&mut self) {
        if self.multi_writer.is_some() {
            return;
        }
        self.take_memory_tier();
        self.take_dropped();
        self.check_order();
        self.check_held();
        let Self {
            server,
            reference,
            nodes,
            ..
        } = self;
        if let Some(server) = server {
            let compared = server.read(|db| {
                reference.compare(db, nodes);
                Ok(())
            });
            compared.expect("a committed namespace can be read");
        }
    }
}
