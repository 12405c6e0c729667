//! A small cluster in virtual time for the dispatcher's tests: nodes that queue, run, crash and reconnect; a network that delays,
//! reorders, repeats and loses messages; and a driver that stores the state of a server. One seed decides all random choices.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_model::event::*;
use tidemill_model::id::*;
use tidemill_model::label::*;
use tidemill_model::layout::{Layout, Part, Selection, StripedLayout, UNIT_GRAIN};
use tidemill_model::object::Placed;
use tidemill_model::resources::{Needs, Offers, ResourceLedger};
use tidemill_model::time::{Span, Time};
use tidemill_sched::dispatch::{Config, Dispatcher};

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

/// Ids that survive a restart of the dispatcher.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids(Arc<AtomicU64>);

impl IdSource for Ids {
    fn ready(&mut self, _objects: u64) -> bool {
        true
    }

    fn label(&mut self) -> LabelId {
        LabelId(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn objects(&mut self, count: u64) -> ObjectId {
        ObjectId(1_000_000 + self.0.fetch_add(count, Ordering::Relaxed))
    }
}

#[derive(Clone, Debug)]
enum Progress {
    Queued,
    Running,
    Ended(Box<Outcome>),
}

/// A node; the state on its disk survives a crash.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) view: NodeView,
    /// Programs of its host.
    pub(crate) programs: BTreeSet<String>,
    pub(crate) connected: bool,
    /// Presence of the node in the dispatcher's last event.
    pub(crate) declared_up: bool,
    labels: BTreeMap<LabelId, (Label, Progress)>,
    inbox: VecDeque<Action>,
    outbox: Vec<Event>,
}

#[derive(Debug, Default, Clone)]
struct Kept {
    state: Option<TaskState>,
    tries: u32,
    label: Option<(LabelId, NodeId, Vec<ObjectId>)>,
    published: Option<Vec<Placed>>,
    /// Whether the task's state left Done since its outputs were published.
    reopened: bool,
}

/// Probabilities of faults, in percent per step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) crash: u64,
    /// Probability that a node gains or loses programs or resources.
    pub(crate) change: u64,
    pub(crate) restart: u64,
    pub(crate) cancel: u64,
    pub(crate) kernel: u64,
    pub(crate) repeat: u64,
    pub(crate) reorder: bool,
}

#[derive(Debug)]
pub(crate) struct DispatchWorld {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) now: Time,
    pub(crate) dice: Dice,
    pub(crate) machines: BTreeMap<NodeId, Machine>,
    pub(crate) log: Vec<Action>,
    pub(crate) jobs: BTreeMap<JobId, JobSpec>,
    pub(crate) job_states: BTreeMap<JobId, JobState>,
    tasks: BTreeMap<TaskId, Kept>,
    /// All labels that were ever sent.
    queue: BTreeMap<LabelId, (NodeId, Label)>,
    /// Objects that exist, and their nodes.
    objects: BTreeMap<ObjectId, NodeId>,
    /// Objects that consist of other objects.
    parted: BTreeMap<ObjectId, Layout>,
    /// Files that jobs wait for.
    pub(crate) unwritten: Vec<(String, Placed)>,
    ids: Ids,
    config: Config,
    pub(crate) faults: Faults,
}

pub(crate) fn view(role: Role, cores: u32) -> NodeView {
    NodeView {
        role,
        offers: Offers::of_cores(cores),
        capacity_bytes: 1 << 40,
        free_bytes: 1 << 39,
        link_bytes_per_sec: 125_000_000,
        // Some nodes are fast, some use little power, and some report neither.
        device_bytes_per_sec: u64::from(cores % 3) * 400_000_000,
        watts_milli: u64::from(cores % 2) * 60_000 * u64::from(cores),
        history: BTreeMap::new(),
    }
}

impl DispatchWorld {
    pub(crate) fn new(
        seed: u64,
        faults: Faults,
        config: Config,
        machines: &[(u32, Role, u32)],
    ) -> Self {
        let ids = Ids::default();
        let dispatcher = Dispatcher::new(config.clone(), Box::new(ids.clone())).unwrap();
        let machines = machines.iter().map(|&(id, role, cores)| {
            let machine = Machine {
                view: view(role, cores),
                programs: BTreeSet::new(),
                connected: false,
                declared_up: false,
                labels: BTreeMap::new(),
                inbox: VecDeque::new(),
                outbox: Vec::new(),
            };
            (NodeId(id), machine)
        });
        Self {
            dispatcher,
            now: Time(0),
            dice: Dice(seed),
            machines: machines.collect(),
            log: Vec::new(),
            jobs: BTreeMap::new(),
            job_states: BTreeMap::new(),
            tasks: BTreeMap::new(),
            queue: BTreeMap::new(),
            objects: BTreeMap::new(),
            parted: BTreeMap::new(),
            unwritten: Vec::new(),
            ids,
            config,
            faults,
        }
    }

    /// Creates a striped file that exists before any job, with a stripe on each of these nodes.
    pub(crate) fn striped(&mut self, nodes: &[NodeId]) -> Placed {
        let parts = nodes.iter().map(|&node| {
            let placed = self.file(node, UNIT_GRAIN);
            Part::on(placed.object, placed.size, node)
        });
        let parts: Vec<Part> = parts.collect();
        let size = UNIT_GRAIN * nodes.len() as u64;
        let whole = self.file(nodes[0], size);
        let unit = UNIT_GRAIN;
        let layout = Layout::Striped(StripedLayout { unit, size, parts });
        self.parted.insert(whole.object, layout.clone());
        let object = whole.object;
        self.on(Event::Parted { object, layout });
        whole
    }

    /// Creates a file that exists before any job.
    pub(crate) fn file(&mut self, node: NodeId, size: u64) -> Placed {
        let object = self.ids.objects(1);
        self.objects.insert(object, node);
        Placed { object, node, size }
    }

    /// Creates an object.
    pub(crate) fn make(&mut self, object: ObjectId, node: NodeId) {
        self.objects.insert(object, node);
    }

    pub(crate) fn submit(&mut self, spec: JobSpec) {
        self.jobs.insert(spec.job, spec.clone());
        self.on(Event::Submitted(Box::new(spec)));
        self.ask_for_programs();
    }

    /// Makes nodes report the programs that the dispatcher does not know.
    pub(crate) fn ask_for_programs(&mut self) {
        for (node, names) in self.dispatcher.unknown_programs() {
            if self.machines[&node].connected {
                self.tell_programs(node, names);
            }
        }
    }

    fn tell_programs(&mut self, node: NodeId, names: Vec<String>) {
        let programs = &self.machines[&node].programs;
        let (found, missing) = names.into_iter().partition(|name| programs.contains(name));
        self.on(Event::Programs {
            node,
            found,
            missing,
        });
    }

    /// Makes a node gain or lose programs and resources: programs at once, the rest when it reconnects.
    pub(crate) fn change(&mut self, id: NodeId) {
        let (gpus, has) = (self.dice.roll(3), self.dice.chance(60));
        let machine = self.machines.get_mut(&id).unwrap();
        if machine.connected {
            match has {
                true => machine.programs.insert(PROGRAM.to_owned()),
                false => machine.programs.remove(PROGRAM),
            };
            self.tell_programs(id, vec![PROGRAM.to_owned()]);
        } else {
            machine.offer(gpus);
        }
    }

    /// Passes an event to the dispatcher, checks its state, and stores and forwards its actions.
    pub(crate) fn on(&mut self, event: Event) {
        self.now = self.now + Span(1 + self.dice.roll(5_000_000));
        let mut out = Vec::new();
        self.dispatcher.on(event, self.now, &mut out);
        self.dispatcher.check();
        for node in self.dispatcher.nodes(self.now) {
            assert!(
                node.outstanding <= node.bound,
                "{node:?} has too much to do"
            );
        }
        for action in out {
            self.log.push(action.clone());
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match &action {
            Action::Send { node, labels } => {
                for label in labels {
                    self.queue.insert(label.id, (*node, label.clone()));
                    let Operation::Analyse(analysis) = &label.operation else {
                        continue;
                    };
                    let objects = analysis
                        .outputs
                        .iter()
                        .map(|output| output.object)
                        .collect();
                    let kept = self.tasks.entry(analysis.task).or_default();
                    kept.label = Some((label.id, *node, objects));
                }
                self.forward(*node, action);
            }
            Action::Abort { node, .. } | Action::Reschedule { node, .. } => {
                self.forward(*node, action);
            }
            Action::Publish { task, outputs, .. } => {
                self.publish(*task, outputs);
                for output in outputs {
                    let there = self.objects.get(&output.object);
                    assert_eq!(there, Some(&output.node), "{output:?}");
                }
            }
            Action::Join {
                task,
                outputs,
                layouts,
            } => {
                self.publish(*task, outputs);
                self.join(outputs, layouts);
            }
            Action::Task {
                task, state, tries, ..
            } => {
                let kept = self.tasks.entry(*task).or_default();
                kept.reopened |= kept.state == Some(TaskState::Done) && *state != TaskState::Done;
                kept.state = Some(*state);
                kept.tries = *tries;
            }
            Action::Job { job, state, .. } => {
                let before = self.job_states.insert(*job, *state);
                let ended = before.is_some_and(|before| before != JobState::Running);
                assert!(!ended, "{job:?} was {before:?} and is {state:?}");
            }
            Action::Discard { node, objects } => {
                for object in objects {
                    let published = self
                        .tasks
                        .values()
                        .flat_map(|kept| kept.published.iter().flatten());
                    let used = published.into_iter().any(|placed| placed.object == *object);
                    assert!(!used, "{object:?} is published and discarded");
                    assert_eq!(
                        self.objects.remove(object),
                        Some(*node),
                        "{object:?} never was"
                    );
                }
            }
            Action::Decided(_) => {}
        }
    }

    fn publish(&mut self, task: TaskId, outputs: &[Placed]) {
        let kept = self.tasks.entry(task).or_default();
        let first = kept.published.is_none() || kept.reopened;
        assert!(first, "{task:?} was published twice");
        kept.published = Some(outputs.to_vec());
        kept.reopened = false;
    }

    fn join(&mut self, outputs: &[Placed], layouts: &[StripedLayout]) {
        for part in layouts.iter().flat_map(|layout| &layout.parts) {
            let first = part.replicas.first().map(|replica| replica.node);
            assert_eq!(self.objects.get(&part.object).copied(), first, "{part:?}");
        }
        for (output, layout) in outputs.iter().zip(layouts) {
            let layout = Layout::Striped(layout.clone());
            self.parted.insert(output.object, layout);
            self.objects.insert(output.object, output.node);
        }
    }

    /// A message to a node is lost if there is no connection.
    fn forward(&mut self, node: NodeId, action: Action) {
        if let Some(machine) = self
            .machines
            .get_mut(&node)
            .filter(|machine| machine.connected)
        {
            machine.inbox.push_back(action);
        }
    }

    pub(crate) fn connect(&mut self, id: NodeId) {
        let machine = self.machines.get_mut(&id).unwrap();
        if machine.connected {
            return;
        }
        machine.connected = true;
        machine.declared_up = true;
        for (label, (_, progress)) in &machine.labels {
            if let Progress::Ended(outcome) = progress {
                let (node, label, outcome) = (id, *label, outcome.clone());
                machine.outbox.push(Event::Finished {
                    node,
                    label,
                    outcome,
                });
            }
        }
        let view = machine.view.clone();
        self.on(Event::NodeUp { node: id, view });
        self.ask_for_programs();
        let labels = self.wanted(id);
        let wanted: BTreeSet<LabelId> = labels.iter().map(|label| label.id).collect();
        let machine = self.machines.get_mut(&id).unwrap();
        for (&label, (_, progress)) in &machine.labels {
            if !wanted.contains(&label) && !matches!(progress, Progress::Ended(_)) {
                machine.inbox.push_back(Action::Abort { node: id, label });
            }
        }
        machine.inbox.push_back(Action::Send { node: id, labels });
    }

    /// Returns the labels that were sent to a node and are still to be executed.
    pub(crate) fn wanted(&self, id: NodeId) -> Vec<Label> {
        let sent = self.queue.values().filter(|(node, _)| *node == id);
        let labels = sent.map(|(_, label)| label);
        let wanted = labels.filter(|label| self.dispatcher.wants(label.id));
        wanted.cloned().collect()
    }

    /// Ends the connection; a crash also ends the running labels.
    pub(crate) fn disconnect(&mut self, id: NodeId, crash: bool) {
        let machine = self.machines.get_mut(&id).unwrap();
        machine.connected = false;
        machine.inbox.clear();
        machine.outbox.clear();
        if crash {
            for (_, progress) in machine.labels.values_mut() {
                if matches!(progress, Progress::Running) {
                    *progress = match self.dice.chance(50) {
                        true => Progress::Queued,
                        false => Progress::Ended(failed(FailureKind::NodeLost)),
                    };
                }
            }
        }
    }

    pub(crate) fn declare_down(&mut self, id: NodeId) {
        let machine = self.machines.get_mut(&id).unwrap();
        assert!(!machine.connected);
        machine.declared_up = false;
        self.on(Event::NodeDown { node: id });
    }

    /// Kills the server and restarts it with its stored state.
    pub(crate) fn restart(&mut self) {
        self.dispatcher = Dispatcher::new(self.config.clone(), Box::new(self.ids.clone())).unwrap();
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        for &id in &ids {
            self.disconnect(id, false);
        }
        let mut jobs: Vec<JobSpec> = self.jobs.values().cloned().collect();
        jobs.retain(|job| self.job_states[&job.job] == JobState::Running);
        for job in &mut jobs {
            for task in &mut job.tasks {
                let kept = self.tasks.get(&task.task).cloned().unwrap_or_default();
                task.ended = match kept.state {
                    Some(TaskState::Done) => kept.published.map(RecoveredState::Done),
                    Some(TaskState::Failed) => Some(RecoveredState::Failed),
                    Some(TaskState::Sent | TaskState::Running) => {
                        kept.label
                            .map(|(label, node, objects)| RecoveredState::Sent {
                                label,
                                node,
                                objects,
                                tries: kept.tries - 1,
                            })
                    }
                    _ => None,
                };
            }
        }
        let early = self.dice.roll(2) == 0;
        let mut late = Vec::new();
        for id in ids {
            match self.dice.roll(4) {
                0 if early => self.declare_down(id),
                _ => late.push(id),
            }
        }
        for (object, layout) in self.parted.clone() {
            self.on(Event::Parted { object, layout });
        }
        for job in jobs {
            self.on(Event::Submitted(Box::new(job)));
        }
        for id in late {
            match self.dice.roll(4) {
                0 => self.declare_down(id),
                _ => self.connect(id),
            }
        }
    }

    pub(crate) fn write(&mut self, index: usize) {
        let (path, placed) = self.unwritten.swap_remove(index);
        self.objects.insert(placed.object, placed.node);
        for input in self
            .jobs
            .values_mut()
            .flat_map(|job| &mut job.tasks)
            .flat_map(|task| &mut task.inputs)
        {
            if input.path == path && input.origin == Origin::Awaited {
                input.origin = Origin::File(placed);
            }
        }
        self.on(Event::FileSealed { path, placed });
    }

    /// Makes one random step on a node. Returns whether there was any work.
    pub(crate) fn progress(&mut self, id: NodeId) -> bool {
        let machine = self.machines.get_mut(&id).unwrap();
        let mut can = Vec::new();
        if machine.connected && !machine.inbox.is_empty() {
            can.push(0);
        }
        if machine.connected && !machine.outbox.is_empty() {
            can.push(1);
        }
        let running: Vec<LabelId> = ids_that(&machine.labels, |p| matches!(p, Progress::Running));
        if !running.is_empty() {
            can.push(2);
        }
        let mut startable = startable(&machine.labels);
        let ledger = machine.ledger();
        startable.retain(|label| {
            let needs = needs_of(&machine.labels[label].0);
            ledger.has(needs) || machine.view.offers.lacks(needs).is_some()
        });
        if !startable.is_empty() {
            can.push(3);
        }
        if can.is_empty() {
            return false;
        }
        match can[self.dice.roll(can.len() as u64) as usize] {
            0 => {
                let action = machine.inbox.pop_front().unwrap();
                self.receive(id, action);
            }
            1 => self.deliver(id),
            2 => {
                let label = running[self.dice.roll(running.len() as u64) as usize];
                if let Some(outcome) = self.run(id, label) {
                    self.end(id, label, outcome);
                }
            }
            _ => {
                let label = startable[self.dice.roll(startable.len() as u64) as usize];
                self.start(id, label);
            }
        }
        true
    }

    fn receive(&mut self, id: NodeId, action: Action) {
        let machine = self.machines.get_mut(&id).unwrap();
        match action {
            Action::Send { labels, .. } => {
                for label in labels {
                    machine
                        .labels
                        .entry(label.id)
                        .or_insert((label, Progress::Queued));
                }
            }
            Action::Abort { label, .. } => {
                let open = machine
                    .labels
                    .get(&label)
                    .is_some_and(|(_, p)| !matches!(p, Progress::Ended(_)));
                if open {
                    self.end(id, label, failed(FailureKind::Cancelled));
                }
            }
            Action::Reschedule { label, .. } => {
                let waits = machine
                    .labels
                    .get(&label)
                    .is_some_and(|(_, p)| matches!(p, Progress::Queued));
                if waits {
                    self.end(id, label, failed(FailureKind::Rescheduled));
                }
            }
            other => panic!("{other:?} is not for nodes"),
        }
    }

    fn deliver(&mut self, id: NodeId) {
        let machine = self.machines.get_mut(&id).unwrap();
        let index = match self.faults.reorder {
            true => self.dice.roll(machine.outbox.len() as u64) as usize,
            false => 0,
        };
        let event = machine.outbox.remove(index);
        if self.dice.chance(self.faults.repeat) {
            machine.outbox.push(event.clone());
        }
        self.on(event);
    }

    fn start(&mut self, id: NodeId, label: LabelId) {
        let machine = self.machines.get_mut(&id).unwrap();
        let after = machine.labels[&label].0.after.clone();
        let well = after.iter().all(|label| {
            let progress = machine.labels.get(label).map(|(_, progress)| progress);
            matches!(progress, Some(Progress::Ended(outcome)) if outcome.result.is_ok())
        });
        if !well {
            return self.end(id, label, failed(FailureKind::Dependency));
        }
        if machine
            .view
            .offers
            .lacks(needs_of(&machine.labels[&label].0))
            .is_some()
        {
            return self.end(id, label, failed(FailureKind::Unfit));
        }
        machine.labels.get_mut(&label).unwrap().1 = Progress::Running;
        if machine.connected {
            machine.outbox.push(Event::Started { node: id, label });
        }
    }

    fn run(&mut self, id: NodeId, label: LabelId) -> Option<Box<Outcome>> {
        let Operation::Analyse(analysis) = self.machines[&id].labels[&label].0.operation.clone()
        else {
            panic!("only tasks are run here")
        };
        let programs = analysis.kernel.programs();
        let missing =
            |machine: &Machine| programs.iter().any(|name| !machine.programs.contains(name));
        if missing(&self.machines[&id]) {
            if self.machines[&id].connected {
                self.tell_programs(id, programs);
            }
            return Some(failed(FailureKind::Unfit));
        }
        for input in &analysis.inputs {
            if !self.machines[&input.node].connected && input.node != id {
                // Nodes try for a while to fetch an input.
                return self.dice.chance(10).then(|| failed(FailureKind::Input));
            }
            match self.objects.get(&input.object) {
                Some(_) if self.parted.contains_key(&input.object) => {}
                Some(node) => assert_eq!(*node, input.node, "{input:?} is elsewhere"),
                // The label was replaced and its input was discarded; its outcome must not count.
                None if !self.dispatcher.wants(label) => return Some(failed(FailureKind::Input)),
                None => panic!(
                    "{label:?} of {} reads {input:?}, which never was",
                    analysis.name
                ),
            }
        }
        if self.dice.chance(self.faults.kernel) {
            let kinds = [
                FailureKind::Exit(1),
                FailureKind::Signal(11),
                FailureKind::Device,
                FailureKind::Timeout,
            ];
            return Some(failed(kinds[self.dice.roll(4) as usize]));
        }
        let mut sealed = Vec::new();
        for output in &analysis.outputs {
            assert!(
                self.objects.insert(output.object, id).is_none(),
                "{output:?} was made twice"
            );
            let size = match output.name == PART {
                true => UNIT_GRAIN * 2,
                false => self.dice.roll(1 << 20),
            };
            sealed.push(SealedOutput::file(output.object, size));
        }
        Some(Box::new(Outcome {
            result: Ok(sealed),
            ..*failed(FailureKind::Cancelled)
        }))
    }

    fn end(&mut self, id: NodeId, label: LabelId, outcome: Box<Outcome>) {
        let machine = self.machines.get_mut(&id).unwrap();
        machine.labels.get_mut(&label).unwrap().1 = Progress::Ended(outcome.clone());
        if machine.connected {
            machine.outbox.push(Event::Finished {
                node: id,
                label,
                outcome,
            });
        }
    }

    /// One random step of the whole cluster, including faults.
    pub(crate) fn step(&mut self) {
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        let id = ids[self.dice.roll(ids.len() as u64) as usize];
        let (connected, up) = (self.machines[&id].connected, self.machines[&id].declared_up);
        if self.dice.chance(self.faults.restart) {
            self.restart();
        } else if self.dice.chance(self.faults.cancel) {
            let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
            let job = jobs[self.dice.roll(jobs.len() as u64) as usize];
            self.on(Event::Cancel { job });
        } else if !self.unwritten.is_empty() && self.dice.chance(10) {
            let index = self.dice.roll(self.unwritten.len() as u64) as usize;
            self.write(index);
        } else if self.dice.chance(self.faults.change) {
            self.change(id);
        } else if connected && self.dice.chance(self.faults.crash) {
            let crash = self.dice.chance(70);
            self.disconnect(id, crash);
        } else if !connected && self.dice.chance(20) {
            match up && self.dice.chance(60) {
                true => self.declare_down(id),
                false => self.connect(id),
            }
        } else {
            self.progress(id);
        }
    }

    /// Stops all faults: every node connects, and the cluster runs until no work is left.
    pub(crate) fn settle(&mut self) {
        let kernel = 0;
        self.faults = Faults {
            change: 0,
            crash: 0,
            restart: 0,
            cancel: 0,
            kernel,
            repeat: 0,
            reorder: self.faults.reorder,
        };
        while !self.unwritten.is_empty() {
            self.write(0);
        }
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        for &id in &ids {
            // The node offers all resources that any task may need.
            self.disconnect(id, false);
            let machine = self.machines.get_mut(&id).unwrap();
            machine.programs.insert(PROGRAM.to_owned());
            machine.offer(GPUS_MAX);
            self.connect(id);
        }
        while ids.iter().filter(|&&id| self.progress(id)).count() > 0 {}
    }

    /// Checks the conditions that hold when no work is left.
    pub(crate) fn assert_ended(&self) {
        for (job, spec) in &self.jobs {
            let state = self.job_states[job];
            assert_ne!(
                state,
                JobState::Running,
                "{job:?} is stuck: {:#?}",
                self.dispatcher.job(*job)
            );
            for task in &spec.tasks {
                let kept = &self.tasks[&task.task];
                let done = kept.state == Some(TaskState::Done);
                assert!(
                    !done || kept.published.is_some(),
                    "{:?} is done, not published",
                    task.task
                );
                assert!(
                    state != JobState::Done || done,
                    "{:?} is not done, its job is",
                    task.task
                );
            }
        }
        for placed in self
            .tasks
            .values()
            .flat_map(|kept| kept.published.iter().flatten())
        {
            assert_eq!(
                self.objects.get(&placed.object),
                Some(&placed.node),
                "{placed:?} was lost"
            );
        }
        for node in self.dispatcher.nodes(self.now) {
            assert_eq!(node.outstanding, 0, "{node:?}");
        }
    }
}

/// Program that some tasks need.
pub(crate) const PROGRAM: &str = "simulate";
/// Output of task instances.
pub(crate) const PART: &str = "part";
pub(crate) const GPUS_MAX: u64 = 2;
pub(crate) const MEMORY_BYTES: u64 = 100;

fn needs_of(label: &Label) -> &Needs {
    label.operation.needs().expect("only tasks are run here")
}

impl Machine {
    /// Restarts the node with other resources: labels that were running run again.
    fn offer(&mut self, gpus: u64) {
        self.view.offers.memory_bytes = MEMORY_BYTES;
        self.view.offers.named = BTreeMap::from([("gpu".to_owned(), gpus)]);
        for (_, progress) in self.labels.values_mut() {
            if matches!(progress, Progress::Running) {
                *progress = Progress::Queued;
            }
        }
    }

    /// Returns the free resources; the running labels must never take more than the node offers.
    fn ledger(&self) -> ResourceLedger {
        let mut ledger = ResourceLedger::new(self.view.offers.clone());
        for (label, progress) in self.labels.values() {
            if matches!(progress, Progress::Running) {
                assert!(ledger.take(needs_of(label)), "{label:?} has too little");
            }
        }
        ledger
    }
}

fn ids_that(
    labels: &BTreeMap<LabelId, (Label, Progress)>,
    is: impl Fn(&Progress) -> bool,
) -> Vec<LabelId> {
    labels
        .iter()
        .filter(|(_, (_, progress))| is(progress))
        .map(|(label, _)| *label)
        .collect()
}

/// Returns the queued labels whose `after` have ended or are not known.
fn startable(labels: &BTreeMap<LabelId, (Label, Progress)>) -> Vec<LabelId> {
    let ended = |label: &LabelId| {
        labels
            .get(label)
            .is_none_or(|(_, progress)| matches!(progress, Progress::Ended(_)))
    };
    let queued = labels.iter().filter(|(_, (label, progress))| {
        matches!(progress, Progress::Queued) && label.after.iter().all(ended)
    });
    queued.map(|(label, _)| *label).collect()
}

pub(crate) fn failed(kind: FailureKind) -> Box<Outcome> {
    let failure = Failure {
        kind,
        message: format!("{kind:?}"),
    };
    Box::new(Outcome {
        end: Time(1_000_000),
        read_bytes: 100,
        ..Outcome::at(Time(0), Err(failure))
    })
}

/// Returns a task with one output unless the test changes it.
pub(crate) fn task(id: u64, kernel: &str, inputs: Vec<Origin>) -> TaskSpec {
    let input = |(index, origin): (usize, Origin)| InputSpec {
        name: format!("in{index}"),
        path: format!("/t{id}/in{index}"),
        origin,
        selection: Selection::WHOLE,
        streaming: false,
    };
    TaskSpec {
        task: TaskId(id),
        name: format!("t{id}"),
        kernel: Kernel::Builtin(kernel.to_owned()),
        args: vec![],
        inputs: inputs.into_iter().enumerate().map(input).collect(),
        outputs: vec![OutputSpec {
            name: "out".into(),
            path: format!("/t{id}/out"),
            inode: Inode(100 + id),
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
        runtime_environment: tidemill_model::runtime_environment::RuntimeEnvironment::default(),
        share: TaskRole::All,
        ended: None,
    }
}

pub(crate) fn job(id: u64, policy: &str, tasks: Vec<TaskSpec>) -> JobSpec {
    JobSpec {
        job: JobId(id),
        owner: Owner::default(),
        policy: Some(policy.to_owned()),
        tasks,
    }
}
