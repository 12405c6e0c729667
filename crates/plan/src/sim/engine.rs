//! The engine of the simulator: carries out the dispatcher's decisions in virtual time.
//!
//! A label passes through the phases of [`LabelPhase`], as on a running node. It holds its core while its inputs are fetched one after the
//! other, and while its kernel reads, computes and writes. It releases the core after its outputs are sealed and, if hashing pays, its
//! inputs are hashed. A run may fail after it has computed ([`super::faults`]), or because the device is full. Messages between server and
//! nodes take the platform's label latency and stay in order. Messages to nodes also take the time of storing the decision.

mod failures;
mod suspend;

use super::clock::{Clock, MessageDirection, PlannedEvent};
use super::faults::FailureDice;
use super::flow::FlowNetwork;
use super::node::{ObjectState, Station};
use super::platform::{Platform, PlatformNode};
use super::quantity::whole;
use super::report::{EventCounts, Lost, TaskTimes};
use super::simulation::Allocation;
use super::workflow::Workflow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use suspend::PowerStates;
pub(super) use suspend::SuspendTimes;
use tidemill_model::content;
use tidemill_model::event::{Action, Event, JobState, NodeView, Origin, Role};
use tidemill_model::id::{LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{
    Failure, FailureKind, Label, LabelInput, Operation, Outcome, SealedOutput,
};
use tidemill_model::layout::{Layout, Part, Selection};
use tidemill_model::object::Placed;
use tidemill_model::time::{Span, Time};
use tidemill_sched::dispatch::Dispatcher;
use tidemill_sched::policy::PolicyState;

/// Capacity and free space of nodes whose devices have no limit, in bytes.
const CAPACITY_BYTES: u64 = 1 << 60;

/// Phase of a label in the simulation. Each phase begins when the previous phase has ended; phases that take no time are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelPhase {
    /// The label waits for other labels or for a core.
    Queued,
    /// The label looks for its next input on another node.
    Fetch,
    /// The label waits for the latencies of a fetch.
    TransferDelay,
    /// The label fetches the bytes of an input.
    Transfer,
    ReadDelay,
    Read,
    Compute,
    WriteDelay,
    Write,
    /// The label's inputs are hashed, if hashing pays.
    Hash,
    Ended,
    /// The label began and failed.
    Failed,
    /// The label was returned before it began.
    Abandoned,
}

/// State of one label in the simulation.
#[derive(Debug)]
struct LabelState {
    task: u32,
    /// Index of the station that simulates the label's node.
    station: u32,
    phase: LabelPhase,
    /// Time since which the label is in its phase.
    since: Time,
    /// Number of labels that have to end before this label can begin.
    missing: u32,
    /// Labels that wait for this label.
    followers: Vec<u32>,
    /// Inputs of the label on other nodes: object, station that holds the object, bytes.
    remote: Vec<(ObjectId, u32, u64)>,
    /// Number of these remote inputs that have been processed.
    fetched: usize,
    outputs: Vec<ObjectId>,
    /// Kind of the failure, if the label failed.
    kind: FailureKind,
    times: TaskTimes,
}

/// Work of a task in one record, because the lists of the workflow are far apart in memory.
#[derive(Clone, Copy, Debug)]
struct TaskWork {
    /// Whether the task runs its kernel; otherwise its cached result is returned.
    ran: bool,
    inputs: u32,
    outputs: u32,
    input_bytes: u64,
    output_bytes: u64,
    compute: Span,
}

/// Message between server and nodes.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most are reports, and a box for each would cost more than the space"
)]
enum EngineMessage {
    Labels(NodeId, Vec<Label>),
    Reschedule(LabelId),
    Report(Event),
}

/// State of a simulation run.
#[derive(Debug)]
pub(super) struct Engine<'a> {
    platform: &'a Platform,
    workflow: &'a Workflow,
    works: Vec<TaskWork>,
    dispatcher: Dispatcher,
    dice: FailureDice,
    clock: Clock,
    network: FlowNetwork,
    stations: Vec<Station>,
    runs: Vec<LabelState>,
    /// Messages without latency; the next fields are the messages on their way to nodes and to the server.
    instant: VecDeque<EngineMessage>,
    mail: [VecDeque<EngineMessage>; 2],
    /// Time of each station's last report of free space.
    reported: Vec<Time>,
    /// Reason for the last failure, and the reasons for all losses on each station.
    why: Option<String>,
    lost: Vec<Lost>,
    power_states: PowerStates,
    /// Programs that the simulated job needs.
    programs: BTreeSet<String>,
    /// Layouts of files that consist of several parts.
    parted: BTreeMap<ObjectId, Layout>,
    /// Pseudo objects for bytes that are fetched from a part, by the object, the selection and the part.
    gathered: BTreeMap<(ObjectId, Selection, usize), ObjectId>,
    actions: Vec<Action>,
    counts: EventCounts,
    ended: Option<JobState>,
}

/// Result of a simulation.
#[derive(Debug)]
pub(super) struct Finished {
    /// End of the simulated job.
    pub(super) end: Time,
    /// Final state of the job.
    pub(super) state: Option<JobState>,
    /// Times of each task, by its index; `None` if the task did not run.
    pub(super) times: Vec<Option<TaskTimes>>,
    pub(super) counts: EventCounts,
    /// Reason for the last failure, and the reasons for all losses on each station.
    pub(super) why: Option<String>,
    pub(super) lost: Vec<Lost>,
    /// Times for which each storage node was suspended; empty if no node was ever suspended.
    pub(super) suspend_times: Vec<SuspendTimes>,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        platform: &'a Platform,
        workflow: &'a Workflow,
        dispatcher: Dispatcher,
        (seed, allocation): (u64, Allocation),
    ) -> Self {
        let works = works(workflow);
        // The nodes of the platform in order, with the server cores last.
        let nodes = platform.nodes.iter().chain(&platform.server_cores);
        let nodes_count = nodes.clone().count();
        let stations = nodes.clone();
        let stations = stations.map(Station::new);
        let rates = nodes.flat_map(|node| {
            let link = node.link_bandwidth;
            [node.read_bandwidth, node.write_bandwidth, link, link]
        });
        let processors = platform.processors;
        let processors = processors.map(|count| u64::from(count) * PROCESSOR_NS_PER_SEC);
        Self {
            platform,
            workflow,
            works,
            dispatcher,
            dice: FailureDice::new(seed),
            clock: Clock::default(),
            network: FlowNetwork::new(rates.chain([processors])),
            stations: stations.collect(),
            runs: Vec::with_capacity(workflow.tasks.len()),
            instant: VecDeque::new(),
            mail: Default::default(),
            reported: vec![Time(0); nodes_count],
            why: None,
            lost: vec![Lost::default(); nodes_count],
            power_states: PowerStates::new(platform, allocation),
            programs: BTreeSet::new(),
            parted: BTreeMap::new(),
            gathered: BTreeMap::new(),
            actions: Vec::new(),
            counts: EventCounts::default(),
            ended: None,
        }
    }

    /// Connects all nodes, submits the job, and runs until no event is left.
    pub(super) fn run(mut self, parted: Vec<(ObjectId, Layout)>, submitted: Event) -> Finished {
        let platform = self.platform;
        self.programs = programs_of(&submitted);
        for index in 0..self.stations.len() {
            let (id, role) = id_of(platform, index);
            let view = view(node_at(platform, index), role);
            self.feed(Event::NodeUp { node: id, view });
            self.tell_programs(index);
        }
        self.begin_power_states();
        self.parted = parted.iter().cloned().collect();
        self.resume(&submitted);
        for (object, layout) in parted {
            self.feed(Event::Parted { object, layout });
        }
        for station in 0..count(self.stations.len()) {
            if let Some(status) = self.status(station) {
                self.feed(status);
            }
        }
        self.feed(submitted);
        self.begin_looks();
        loop {
            while let Some(message) = self.instant.pop_front() {
                self.on_message(message);
            }
            let Some(wake) = self.clock.next() else {
                break;
            };
            self.on_wake(wake);
        }
        let why = self.why.take().or_else(|| self.first_full());
        // The dispatcher's state is not needed any more, and its memory is needed for the report.
        drop(self.dispatcher);
        let mut times = vec![None; self.workflow.tasks.len()];
        for run in self
            .runs
            .into_iter()
            .filter(|run| run.phase == LabelPhase::Ended)
        {
            times[run.task as usize] = Some(run.times);
        }
        let ends = times.iter().flatten().map(|times: &TaskTimes| times.end);
        let end = ends.max().unwrap_or_default();
        Finished {
            end,
            suspend_times: self.power_states.ended(end),
            state: self.ended,
            times,
            counts: self.counts,
            why,
            lost: self.lost,
        }
    }

    /// Reports to the dispatcher which of the job's programs a node has.
    fn tell_programs(&mut self, index: usize) {
        if self.programs.is_empty() {
            return;
        }
        let wanted = self.programs.clone();
        let known = node_at(self.platform, index).programs.as_ref();
        let has = |name: &String| known.is_none_or(|programs| programs.contains(name));
        let (found, missing) = wanted.into_iter().partition(has);
        let (node, _) = id_of(self.platform, index);
        self.feed(Event::Programs {
            node,
            found,
            missing,
        });
    }

    /// Restores the dispatcher's and the nodes' state from earlier jobs.
    fn resume(&mut self, submitted: &Event) {
        let Event::Submitted(job) = submitted else {
            return;
        };
        let mut objects = BTreeMap::new();
        for (task, spec) in self.workflow.tasks.iter().zip(&job.tasks) {
            for (&file, input) in task.inputs.iter().zip(&spec.inputs) {
                if let Origin::File(placed) = input.origin {
                    objects.insert(self.workflow.files[file].name.as_str(), placed);
                }
            }
        }
        for placed in objects.values() {
            let layout = self.parted.get(&placed.object).cloned();
            let layout = layout.unwrap_or_else(|| one_object(placed.object, placed));
            for part in layout.parts() {
                let station = self.station_index(part.replicas[0].node) as usize;
                self.stations[station].space.holds(part.size);
            }
        }
        let mut memory = PolicyState {
            last: None,
            source: None,
        };
        let mut replicas = Vec::new();
        for index in 0..self.stations.len() {
            let (id, _) = id_of(self.platform, index);
            let node = node_at(self.platform, index);
            if node.last_turn {
                memory.last = Some(id);
            }
            let known = node
                .replicas
                .iter()
                .filter_map(|name| objects.get(name.as_str()));
            let known: Vec<Placed> = known.copied().collect();
            for placed in known {
                let Some(layout) = self.parted.get(&placed.object).cloned() else {
                    if placed.node != id {
                        replicas.push((id, placed.object, placed.size));
                        self.stations[index]
                            .input_cache
                            .keep(placed.object, placed.size);
                    }
                    continue;
                };
                replicas.push((id, placed.object, placed.size));
                for (part, of) in layout.parts().iter().enumerate() {
                    if of.replicas[0].node != id {
                        let object = self.fetched_as(placed.object, &Selection::WHOLE, part);
                        self.stations[index].input_cache.keep(object, of.size);
                    }
                }
            }
        }
        self.dispatcher.resume(memory, &replicas);
    }

    fn on_wake(&mut self, wake: PlannedEvent) {
        match wake {
            PlannedEvent::Step(label) => {
                self.counts.clock += 1;
                self.step(label);
            }
            PlannedEvent::Flow(id) => {
                let (label, counts) = self.network.on_due(id, &mut self.clock);
                self.counts.clock += u64::from(counts);
                if let Some(label) = label {
                    self.step(label);
                }
            }
            PlannedEvent::Look => self.look(),
            PlannedEvent::Up(station) => {
                self.counts.clock += 1;
                self.on_active(station);
            }
            PlannedEvent::Mail(direction) => {
                self.counts.clock += 1;
                if let Some(message) = self.mail[direction as usize].pop_front() {
                    self.on_message(message);
                }
            }
        }
    }

    fn send(&mut self, message: EngineMessage) {
        let way = self.platform.label_latency;
        let (direction, latency) = match message {
            EngineMessage::Labels(..) | EngineMessage::Reschedule(_) => {
                (MessageDirection::Down, way + self.platform.commit_latency)
            }
            EngineMessage::Report(_) => (MessageDirection::Up, way),
        };
        if latency == Span(0) {
            return self.instant.push_back(message);
        }
        self.mail[direction as usize].push_back(message);
        let at = self.clock.now() + latency;
        self.clock.plan(at, PlannedEvent::Mail(direction));
    }

    fn on_message(&mut self, message: EngineMessage) {
        match message {
            EngineMessage::Labels(node, labels) => {
                let station = self.station_index(node);
                for label in labels {
                    self.accept(node, station, label);
                }
                self.begin(station);
            }
            EngineMessage::Reschedule(label) => {
                let label = index_of(label.0);
                if self.runs[label as usize].phase == LabelPhase::Queued {
                    self.abandon(label, FailureKind::Rescheduled);
                }
            }
            EngineMessage::Report(event) => self.feed(event),
        }
    }

    /// Passes an event to the dispatcher and carries out its actions.
    fn feed(&mut self, event: Event) {
        self.counts.dispatcher += 1;
        let mut actions = std::mem::take(&mut self.actions);
        self.dispatcher.on(event, self.clock.now(), &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Send { node, labels } => self.send(EngineMessage::Labels(node, labels)),
                Action::Reschedule { label, .. } => self.send(EngineMessage::Reschedule(label)),
                Action::Job { state, .. } => self.ended = Some(state),
                // Names, explanations and states belong to the server. No job is cancelled here and no node is lost, so nothing is
                // discarded. Only labels that follow a rescheduled or failed label are aborted, and their node has aborted them already.
                Action::Abort { .. }
                | Action::Decided(_)
                | Action::Publish { .. }
                | Action::Join { .. }
                | Action::Task { .. }
                | Action::Discard { .. } => {}
            }
        }
        self.actions = actions;
        self.look_soon();
    }

    /// Adds a label that the dispatcher sent to its node.
    fn accept(&mut self, node: NodeId, station: u32, label: Label) {
        let Operation::Analyse(analysis) = label.operation else {
            return;
        };
        let index = index_of(label.id.0);
        let task = index_of(analysis.task.0);
        let files = &self.workflow.tasks[task as usize].inputs;
        let reused = self.workflow.tasks[task as usize].reused;
        let mut remote = Vec::new();
        for (input, &file) in analysis.inputs.iter().zip(files) {
            if reused.is_none() {
                let size = self.workflow.files[file].size;
                self.add_remote(input, size, node, &mut remote);
            }
        }
        let mut missing = 0;
        let mut orphan = false;
        for before in label.after {
            let before = &mut self.runs[index_of(before.0) as usize];
            orphan |= matches!(before.phase, LabelPhase::Abandoned | LabelPhase::Failed);
            if before.phase != LabelPhase::Ended {
                before.followers.push(index);
                missing += 1;
            }
        }
        let now = self.clock.now();
        let outputs = analysis.outputs.iter().map(|output| output.object);
        let run = LabelState {
            task,
            station,
            since: now,
            missing,
            remote,
            outputs: outputs.collect(),
            times: TaskTimes {
                node,
                sent: now,
                transferred_bytes: reused.map_or(0, |reused| reused.transferred_bytes),
                ..TaskTimes::default()
            },
            ..LabelState::default()
        };
        // Labels of one event are numbered across nodes but arrive by node.
        if self.runs.len() <= index as usize {
            self.runs
                .resize_with(index as usize + 1, LabelState::default);
        }
        self.runs[index as usize] = run;
        if orphan {
            self.abandon(index, FailureKind::Dependency);
        } else if missing == 0 {
            self.add(index);
        }
    }

    /// Adds the parts of an input on other nodes to a label: object, station that holds the object, bytes.
    fn add_remote(
        &mut self,
        input: &LabelInput,
        size: u64,
        here: NodeId,
        remote: &mut Vec<(ObjectId, u32, u64)>,
    ) {
        let placed = Placed {
            object: input.object,
            node: input.node,
            size,
        };
        let layout = self.parted.get(&input.object).cloned();
        let layout = layout.unwrap_or_else(|| one_object(input.object, &placed));
        let Ok(selected) = layout.selected(&input.selection) else {
            return;
        };
        for (index, bytes) in selected.bytes_by_part() {
            let part = &layout.parts()[index];
            let holder = part.replicas[0].node;
            if holder == here {
                continue;
            }
            let object = match &input.selection {
                selection if *selection == Selection::part(number(index)) => part.object,
                selection if layout.parts().len() > 1 || !selection.is_whole() => {
                    self.fetched_as(input.object, selection, index)
                }
                _ => input.object,
            };
            remote.push((object, self.station_index(holder), bytes));
        }
        // An empty file is fetched like any other.
        if layout.size() == 0 && input.selection.is_whole() && input.node != here {
            remote.push((input.object, self.station_index(input.node), 0));
        }
    }

    /// Returns the pseudo object for selected bytes of an object in one of its parts.
    fn fetched_as(&mut self, object: ObjectId, selection: &Selection, part: usize) -> ObjectId {
        let next = ObjectId(GATHERED - self.gathered.len() as u64);
        let known = (object, selection.clone(), part);
        *self.gathered.entry(known).or_insert(next)
    }

    /// Adds a label to the labels of its station that are ready to run.
    fn add(&mut self, label: u32) {
        let run = &self.runs[label as usize];
        let needs = &self.workflow.tasks[run.task as usize].needs;
        self.stations[run.station as usize].add(label, needs);
    }

    /// Reports that a label and the labels that follow it never began.
    fn abandon(&mut self, label: u32, kind: FailureKind) {
        let mut pending = vec![(label, kind)];
        while let Some((label, kind)) = pending.pop() {
            let run = &mut self.runs[label as usize];
            if run.phase == LabelPhase::Abandoned {
                continue;
            }
            run.phase = LabelPhase::Abandoned;
            self.counts.abandoned += 1;
            let followers = std::mem::take(&mut run.followers);
            pending.extend(
                followers
                    .into_iter()
                    .map(|id| (id, FailureKind::Dependency)),
            );
            let (node, station) = (run.times.node, run.station);
            let needs = &self.workflow.tasks[run.task as usize].needs;
            self.stations[station as usize].remove(label, needs);
            let message = String::new();
            let outcome = Outcome::at(self.clock.now(), Err(Failure { kind, message }));
            self.send(EngineMessage::Report(Event::Finished {
                node,
                label: LabelId(label.into()),
                outcome: Box::new(outcome),
            }));
        }
    }

    /// Begins ready labels of a station as long as the station has cores for them.
    fn begin(&mut self, station: u32) {
        loop {
            let (runs, tasks) = (&self.runs, &self.workflow.tasks);
            let needs = |label: u32| &tasks[runs[label as usize].task as usize].needs;
            let Some((label, cores)) = self.stations[station as usize].take(needs) else {
                break;
            };
            let run = &mut self.runs[label as usize];
            run.times.cores = cores;
            run.times.start = self.clock.now();
            run.phase = LabelPhase::Fetch;
            run.since = self.clock.now();
            let (node, label_id) = (run.times.node, LabelId(label.into()));
            self.send(EngineMessage::Report(Event::Started {
                node,
                label: label_id,
            }));
            self.go_on(label);
        }
    }

    /// Ends a phase of a label that took time.
    fn step(&mut self, label: u32) {
        self.leave_phase(label);
        self.go_on(label);
    }

    /// Skips phases of a label until a phase takes time.
    fn go_on(&mut self, label: u32) {
        while !self.takes_time(label) {
            self.leave_phase(label);
            match self.runs[label as usize].phase {
                LabelPhase::Ended => return self.on_ended(label),
                LabelPhase::Failed => return self.on_failed(label),
                _ => {}
            }
        }
    }

    /// Begins the current phase of a label and returns whether the phase takes time.
    fn takes_time(&mut self, label: u32) -> bool {
        let run = &self.runs[label as usize];
        let node = node_at(self.platform, run.station as usize);
        let work = self.works[run.task as usize];
        let here = run.station * RESOURCES;
        match run.phase {
            LabelPhase::Queued | LabelPhase::Ended | LabelPhase::Failed | LabelPhase::Abandoned => {
                false
            }
            LabelPhase::Fetch => self.fetch(label),
            LabelPhase::TransferDelay => {
                let (_, holder, _) = run.remote[run.fetched];
                let holder = node_at(self.platform, holder as usize);
                let link = holder.link_latency + node.link_latency;
                self.wait(label, holder.read_latency + link + node.write_latency)
            }
            LabelPhase::Transfer => {
                let (_, holder, bytes) = run.remote[run.fetched];
                let there = holder * RESOURCES;
                let crossed = [there + READ, there + LINK_OUT, here + LINK_IN, here + WRITE];
                self.flow(label, bytes, &crossed)
            }
            LabelPhase::ReadDelay => self.wait(label, times(node.read_latency, work.inputs)),
            LabelPhase::Read => self.flow(label, work.input_bytes, &[here + READ]),
            LabelPhase::Compute => self.compute(label, slowed(work.compute, node.core_speed)),
            LabelPhase::WriteDelay => self.wait(label, times(node.write_latency, work.outputs)),
            LabelPhase::Write => self.flow(label, work.output_bytes, &[here + WRITE]),
            LabelPhase::Hash => self.compute(label, hashing(node, &work)),
        }
    }

    fn wait(&mut self, label: u32, span: Span) -> bool {
        if span > Span(0) {
            self.clock
                .plan(self.clock.now() + span, PlannedEvent::Step(label));
        }
        span > Span(0)
    }

    fn flow(&mut self, label: u32, bytes: u64, crossed: &[u32]) -> bool {
        let unbounded = (label, u64::MAX);
        self.network
            .start(unbounded, bytes, crossed, &mut self.clock)
    }

    /// Starts the computation of a label. If nodes share a machine, the machine's processors are a resource like a link, through which
    /// nanoseconds of computation flow. Returns whether the computation takes time.
    fn compute(&mut self, label: u32, span: Span) -> bool {
        if self.platform.processors.is_none() {
            return self.wait(label, span);
        }
        let machine = u32::try_from(self.stations.len()).unwrap_or(u32::MAX) * RESOURCES;
        // A label without a core counts as one core.
        let cores = self.runs[label as usize].times.cores.len().max(1) as u64;
        let processors = (label, cores.saturating_mul(PROCESSOR_NS_PER_SEC));
        let work = span.0.saturating_mul(cores);
        self.network
            .start(processors, work, &[machine], &mut self.clock)
    }

    /// Looks for a label's next input on another node. Returns whether the label now waits, for its own fetch or for another label's fetch.
    fn fetch(&mut self, label: u32) -> bool {
        let run = &mut self.runs[label as usize];
        let station = &mut self.stations[run.station as usize];
        while let Some(&(object, _, size)) = run.remote.get(run.fetched) {
            if !station.input_cache.has(object) && station.free().is_some_and(|free| size > free) {
                run.phase = LabelPhase::Failed;
                self.why = Some(failures::full(run.times.node, size));
                return false;
            }
            match station.input_cache.share(object, size, label) {
                ObjectState::Waits => return true,
                ObjectState::Here => run.fetched += 1,
                ObjectState::Fetch => {
                    run.phase = LabelPhase::TransferDelay;
                    return self.takes_time(label);
                }
            }
        }
        false
    }

    /// Ends the current phase of a label, and chooses the next phase.
    fn leave_phase(&mut self, label: u32) {
        let now = self.clock.now();
        let run = &mut self.runs[label as usize];
        let spent = now.since(run.since);
        run.since = now;
        let times = &mut run.times;
        run.phase = match run.phase {
            // A label that waited for another label's fetch looks again.
            LabelPhase::Queued => LabelPhase::Fetch,
            LabelPhase::Fetch if run.fetched < run.remote.len() => LabelPhase::Fetch,
            LabelPhase::Fetch => {
                times.kernel_start = now;
                LabelPhase::ReadDelay
            }
            LabelPhase::TransferDelay => LabelPhase::Transfer,
            LabelPhase::Transfer => {
                let (object, _, size) = run.remote[run.fetched];
                run.fetched += 1;
                times.transferred_bytes += size;
                let station = &mut self.stations[run.station as usize];
                for waiting in station.input_cache.arrived(object) {
                    self.clock.plan(now, PlannedEvent::Step(waiting));
                }
                LabelPhase::Fetch
            }
            LabelPhase::ReadDelay => {
                times.read = spent;
                LabelPhase::Read
            }
            LabelPhase::Read => {
                times.read = times.read + spent;
                LabelPhase::Compute
            }
            LabelPhase::Compute => {
                times.compute = spent;
                let station = &mut self.stations[run.station as usize];
                for (object, ..) in std::mem::take(&mut run.remote) {
                    station.input_cache.give_back(object);
                }
                let work = self.works[run.task as usize];
                let node = node_at(self.platform, run.station as usize);
                if work.ran && self.dice.fails(node) {
                    run.kind = FailureKind::Exit(1);
                    let task = &self.workflow.tasks[run.task as usize].name;
                    self.why = Some(format!("task `{task}` failed again and again"));
                    LabelPhase::Failed
                } else if !station
                    .space
                    .take(work.output_bytes, station.input_cache.bytes())
                {
                    self.why = Some(failures::full(run.times.node, work.output_bytes));
                    LabelPhase::Failed
                } else {
                    LabelPhase::WriteDelay
                }
            }
            LabelPhase::WriteDelay => {
                times.write = spent;
                LabelPhase::Write
            }
            LabelPhase::Abandoned => LabelPhase::Abandoned,
            LabelPhase::Failed => LabelPhase::Failed,
            LabelPhase::Write => {
                times.write = times.write + spent;
                LabelPhase::Hash
            }
            LabelPhase::Hash | LabelPhase::Ended => {
                times.hash = times.hash + spent;
                times.end = now;
                LabelPhase::Ended
            }
        };
    }

    /// Reports the end of a label, starts labels that waited for it, and gives its core to the next label.
    fn on_ended(&mut self, label: u32) {
        let run = &mut self.runs[label as usize];
        let (station, task) = (run.station, run.task as usize);
        let followers = std::mem::take(&mut run.followers);
        let outputs = std::mem::take(&mut run.outputs);
        let times = run.times.clone();
        let work = self.works[task];
        let files = self.workflow.tasks[task].outputs.iter();
        let sealed = outputs
            .into_iter()
            .zip(files)
            .map(|(object, &file)| SealedOutput::file(object, self.workflow.files[file].size));
        let outcome = Outcome {
            kernel_start: times.kernel_start,
            end: times.end,
            transferred_bytes: times.transferred_bytes,
            read_bytes: work.input_bytes,
            written_bytes: work.output_bytes,
            cpu: times.compute,
            reused: self.workflow.tasks[task].reused.map(|_| TaskId(0)),
            ..Outcome::at(times.start, Ok(sealed.collect()))
        };
        let needs = &self.workflow.tasks[task].needs;
        self.stations[station as usize].end(needs, &times.cores);
        for follower in followers {
            let run = &mut self.runs[follower as usize];
            run.missing -= 1;
            if run.missing == 0 {
                self.add(follower);
            }
        }
        self.send(EngineMessage::Report(Event::Finished {
            node: times.node,
            label: LabelId(label.into()),
            outcome: Box::new(outcome),
        }));
        self.tell_space(station);
        self.begin(station);
    }

    fn station_index(&self, node: NodeId) -> u32 {
        let last = self.stations.len() - 1;
        if self.platform.server_cores.is_some() && node == self.platform.server_cores_id() {
            return u32::try_from(last).unwrap_or(u32::MAX);
        }
        node.0
    }
}

/// Id of the first pseudo object of fetched bytes; the ids of further pseudo objects count down from this id.
const GATHERED: u64 = u64::MAX;

fn number(part: usize) -> u32 {
    u32::try_from(part).unwrap_or(u32::MAX)
}

/// Returns the layout of a file that is a single object.
fn one_object(object: ObjectId, placed: &Placed) -> Layout {
    Layout::Whole(Part::on(object, placed.size, placed.node))
}

/// Core time that a processor provides per second, in nanoseconds of computation.
const PROCESSOR_NS_PER_SEC: u64 = 1_000_000_000;

/// Number of resources that each node has in the network of flows.
const RESOURCES: u32 = 4;
const READ: u32 = 0;
const WRITE: u32 = 1;
const LINK_OUT: u32 = 2;
const LINK_IN: u32 = 3;

impl Default for LabelState {
    fn default() -> Self {
        Self {
            task: 0,
            station: 0,
            phase: LabelPhase::Queued,
            since: Time(0),
            missing: 0,
            followers: Vec::new(),
            remote: Vec::new(),
            fetched: 0,
            outputs: Vec::new(),
            kind: FailureKind::Device,
            times: TaskTimes::default(),
        }
    }
}

/// Returns the platform node that a station simulates.
fn node_at(platform: &Platform, station: usize) -> &PlatformNode {
    let server_cores = || platform.server_cores.as_ref().unwrap_or(&platform.nodes[0]);
    platform.nodes.get(station).unwrap_or_else(server_cores)
}

fn id_of(platform: &Platform, station: usize) -> (NodeId, Role) {
    if station < platform.nodes.len() {
        let id = u32::try_from(station).unwrap_or(u32::MAX);
        return (NodeId(id), Role::Store);
    }
    (platform.server_cores_id(), Role::ServerCores)
}

fn view(node: &PlatformNode, role: Role) -> NodeView {
    NodeView {
        role,
        offers: node.offers(),
        capacity_bytes: CAPACITY_BYTES,
        free_bytes: CAPACITY_BYTES,
        link_bytes_per_sec: node.link_assumed,
        device_bytes_per_sec: node.device_bytes_per_sec(),
        watts_milli: node.watts_milli(),
        history: node.history.clone(),
    }
}

/// Returns the index of a label or task, whose ids the simulation numbers from 0.
fn index_of(id: u64) -> u32 {
    u32::try_from(id).expect("a job has fewer tasks than 32 bits count")
}

fn times(span: Span, count: u32) -> Span {
    Span(span.0.saturating_mul(count.into()))
}

fn programs_of(submitted: &Event) -> BTreeSet<String> {
    let Event::Submitted(job) = submitted else {
        return BTreeSet::new();
    };
    let wanted = job.tasks.iter().flat_map(|task| &task.programs);
    wanted.cloned().collect()
}

/// Returns the work of each task of a workflow.
fn works(workflow: &Workflow) -> Vec<TaskWork> {
    let works = workflow.tasks.iter().enumerate().map(|(index, task)| {
        let ran = task.reused.is_none();
        TaskWork {
            ran,
            inputs: count(task.inputs.len()),
            outputs: count(task.outputs.len()),
            input_bytes: if ran { workflow.input_bytes(index) } else { 0 },
            output_bytes: if ran { workflow.output_bytes(index) } else { 0 },
            compute: task.reused.map_or(task.compute, |reused| reused.time),
        }
    });
    works.collect()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the time that hashing the inputs of a task takes on a node; zero if hashing does not pay.
fn hashing(node: &PlatformNode, work: &TaskWork) -> Span {
    let cpu = slowed(work.compute, node.core_speed);
    let files = work.inputs as usize;
    match node.hash_bandwidth {
        Some(rate) if work.ran && content::pays(cpu, files, work.input_bytes) => {
            let reading = u128::from(work.input_bytes) * 1_000_000_000 / u128::from(rate.max(1));
            let all = reading + files as u128 * u128::from(content::FILE_NS);
            Span(u64::try_from(all).unwrap_or(u64::MAX))
        }
        _ => Span(0),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 ns are a hundred days; beyond, some ns are lost"
)]
fn slowed(span: Span, speed: f64) -> Span {
    if speed.to_bits() == 1.0_f64.to_bits() {
        return span;
    }
    Span(whole(span.0 as f64 / speed))
}
