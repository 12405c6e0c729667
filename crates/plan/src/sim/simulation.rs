//! Simulations: define the workflow, the platform, the placement of files and the policy of a simulation run.

use super::engine::Engine;
use super::error::SimError;
use super::platform::{Platform, PlatformNode};
use super::report::{Setup, SimulationReport, TaskTimes};
use super::workflow::{Workflow, WorkflowTask};
use std::collections::BTreeMap;
use tidemill_model::event::{
    Event, IdSource, InputSpec, JobSpec, JobState, Origin, OutputSpec, TaskRole, TaskSpec,
};
use tidemill_model::id::{Inode, JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Limits, Owner};
use tidemill_model::layout::Layout;
use tidemill_model::object::Placed;
use tidemill_model::random::RandomSource;
use tidemill_model::resources::{NodeOffer, TaskRequirements, why_nowhere};
use tidemill_sched::dispatch::{Config, Dispatcher};
use tidemill_sched::policy;

/// Placement of the files that exist before the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Files are on the nodes in turn, in the order of the workflow's files.
    RoundRobin,
    /// Files are on random nodes, by the seed.
    Random,
    /// Files are on the nodes that the workflow records.
    Recorded,
}

impl Placement {
    /// Names of the placements in command lines and reports.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("round-robin", Self::RoundRobin),
        ("random", Self::Random),
        ("recorded", Self::Recorded),
    ];

    /// Returns the name of the placement.
    #[must_use]
    pub fn name(self) -> &'static str {
        let known = Self::NAMES.iter().find(|(_, one)| *one == self);
        known.map_or("", |(name, _)| name)
    }
}

/// Choice of suspended nodes to resume (LABIOS §4.2.3). Nodes with data or programs that no other node has are resumed in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// Resume no suspended nodes.
    Static,
    /// Resume as many suspended nodes as pays, as in a running cluster.
    #[default]
    Elastic,
    /// Resume all suspended nodes at once.
    All,
}

/// Simulation that is ready to run, any number of times: the same simulation always gives the same report.
#[derive(Clone, Debug)]
pub struct Simulation<'a> {
    platform: &'a Platform,
    workflow: &'a Workflow,
    policy: String,
    placement: Placement,
    allocation: Allocation,
    seed: u64,
}

impl<'a> Simulation<'a> {
    /// Returns a simulation with the workflow's policy or else the default of a running cluster, files placed round-robin, and seed 0.
    #[must_use]
    pub fn new(platform: &'a Platform, workflow: &'a Workflow) -> Self {
        let policy = workflow.policy.as_deref().unwrap_or(policy::DEFAULT);
        Self {
            platform,
            workflow,
            policy: policy.to_owned(),
            placement: Placement::RoundRobin,
            allocation: Allocation::default(),
            seed: 0,
        }
    }

    /// Sets the scheduling policy by its name.
    #[must_use]
    pub fn policy(mut self, name: &str) -> Self {
        name.clone_into(&mut self.policy);
        self
    }

    /// Sets the placement of the files that exist before the job.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Sets the choice of suspended nodes to resume.
    #[must_use]
    pub fn allocation(mut self, allocation: Allocation) -> Self {
        self.allocation = allocation;
        self
    }

    /// Sets the seed of all random numbers of the simulation.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs the simulation and returns its report.
    ///
    /// # Errors
    /// [`SimError`] if a name is not known, or a task or file is bound to a node that the platform lacks.
    pub fn run(&self) -> Result<SimulationReport, SimError> {
        let config = Config {
            policy: self.policy.clone(),
            seed: self.seed,
        };
        let placed = self.place_files()?;
        let (parted, objects) = self.parted(&placed)?;
        let submitted = self.submitted(&placed)?;
        let ids = Counter { labels: 0, objects };
        let dispatcher = Dispatcher::new(config, Box::new(ids))?.without_explanations();
        let engine = Engine::new(
            self.platform,
            self.workflow,
            dispatcher,
            (self.seed, self.allocation),
        );
        let finished = engine.run(parted, submitted);
        let tasks = finished.times.len();
        let times: Vec<TaskTimes> = finished.times.into_iter().flatten().collect();
        if times.len() < tasks || finished.state != Some(JobState::Done) {
            let left = tasks - times.len();
            let why = finished.why;
            return Err(SimError::Unfinished { left, tasks, why });
        }
        let setup = Setup {
            policy: self.policy.clone(),
            placement: self.placement.name(),
            seed: self.seed,
        };
        Ok(SimulationReport::new(
            self.platform,
            self.workflow,
            setup,
            finished.end,
            times,
            (finished.counts, &finished.lost, &finished.suspend_times),
        ))
    }

    /// Returns the job in the form that the dispatcher receives. Fields that only servers and nodes read are left empty, because they would
    /// be copied with every label.
    fn submitted(&self, placed: &[Placed]) -> Result<Event, SimError> {
        self.check_wants()?;
        let mut tasks = Vec::with_capacity(self.workflow.tasks.len());
        for (id, task) in (0..).zip(&self.workflow.tasks) {
            if let Some(node) = task.node {
                self.check_node(node, || format!("task `{}`", task.name))?;
            }
            let input = |(index, &file): (usize, &usize)| {
                let known = &self.workflow.files[file];
                let origin = match known.maker {
                    Some((maker, output)) => Origin::Task(TaskId(maker as u64), output),
                    None => Origin::File(placed[file]),
                };
                // Only the name of a kernel's own code is compared.
                let code = Some(&known.name).filter(|name| task.kernel.is_in(name));
                InputSpec {
                    name: code.cloned().unwrap_or_default(),
                    path: String::new(),
                    origin,
                    selection: task.selection(index).clone(),
                    streaming: false,
                }
            };
            let output = |_: &usize| OutputSpec {
                name: String::new(),
                path: String::new(),
                inode: Inode(0),
                part: false,
                memory: false,
            };
            tasks.push(TaskSpec {
                task: TaskId(id),
                name: String::new(),
                kernel: task.kernel.clone(),
                args: Vec::new(),
                inputs: task.inputs.iter().enumerate().map(input).collect(),
                outputs: task.outputs.iter().map(output).collect(),
                stdin: None,
                stdout: None,
                node: task.node,
                retries: self.platform.retries,
                needs: task.needs.clone(),
                programs: self.programs(task),
                limits: Limits::default(),
                runtime_environment:
                    tidemill_model::runtime_environment::RuntimeEnvironment::default(),
                share: TaskRole::All,
                ended: None,
            });
        }
        Ok(Event::Submitted(Box::new(JobSpec {
            job: JobId(1),
            owner: Owner::default(),
            policy: None,
            tasks,
        })))
    }

    /// Returns the programs that a task needs; empty if all nodes have all programs.
    fn programs(&self, task: &WorkflowTask) -> Vec<String> {
        let mut nodes = self
            .platform
            .nodes
            .iter()
            .chain(&self.platform.server_cores);
        match nodes.any(|node| node.programs.is_some()) {
            true => task.kernel.programs(),
            false => Vec::new(),
        }
    }

    /// Checks that every task can run on some node, because a cluster refuses a job with a task that can't.
    fn check_wants(&self) -> Result<(), SimError> {
        let place = |node: NodeId, one: &PlatformNode, server_cores: bool| NodeOffer {
            node,
            server_cores,
            offers: one.offers(),
            programs: None,
        };
        let stores = (0..).zip(&self.platform.nodes);
        let mut places: Vec<NodeOffer> = stores
            .map(|(id, one)| place(NodeId(id), one, false))
            .collect();
        let server_cores = self.platform.server_cores.as_ref();
        places.extend(server_cores.map(|one| place(self.platform.server_cores_id(), one, true)));
        let mut known = BTreeMap::new();
        for task in &self.workflow.tasks {
            let wants = TaskRequirements {
                needs: task.needs.clone(),
                programs: self.programs(task),
            };
            if wants == TaskRequirements::default() {
                continue;
            }
            let why = known.entry((wants, task.node));
            let why = why.or_insert_with_key(|(wants, pinned)| {
                let open = |place: &&NodeOffer| {
                    pinned.is_some() || !place.server_cores || self.policy == "advised"
                };
                let open = places.iter().filter(open).map(|place| {
                    let node = self.platform.node(place.node);
                    let has = node.and_then(|one| one.programs.clone());
                    let all = || wants.programs.iter().cloned().collect();
                    NodeOffer {
                        programs: Some(has.unwrap_or_else(all)),
                        ..place.clone()
                    }
                });
                why_nowhere(wants, &open.collect::<Vec<_>>(), *pinned)
            });
            if let Some(why) = why {
                let (task, why) = (task.name.clone(), why.clone());
                return Err(SimError::Nowhere { task, why });
            }
        }
        Ok(())
    }

    /// Returns all files of the workflow, with the locations of the files that existed before the job.
    fn place_files(&self) -> Result<Vec<Placed>, SimError> {
        let count = self.platform.nodes.len() as u64;
        let mut turn = 0;
        let mut dice = RandomSource::seeded(self.seed);
        let mut placed = Vec::with_capacity(self.workflow.files.len());
        for (object, file) in (1..).zip(&self.workflow.files) {
            let node = match self.placement {
                _ if file.maker.is_some() => 0,
                Placement::Recorded => {
                    let not_recorded = || SimError::NotRecorded {
                        file: file.name.clone(),
                    };
                    let node = file.home.ok_or_else(not_recorded)?;
                    self.check_node(node, || format!("file `{}`", file.name))?;
                    u64::from(node.0)
                }
                Placement::RoundRobin => {
                    turn += 1;
                    (turn - 1) % count
                }
                Placement::Random => dice.next_u64() % count,
            };
            placed.push(Placed {
                object: ObjectId(object),
                node: NodeId(u32::try_from(node).unwrap_or(u32::MAX)),
                size: file.size,
            });
        }
        Ok(placed)
    }

    /// Returns the layouts of files that consist of several objects, and the first number that is not an object's id.
    fn parted(&self, placed: &[Placed]) -> Result<(Vec<(ObjectId, Layout)>, u64), SimError> {
        let mut next = self.workflow.files.len() as u64 + 1;
        let mut parted = Vec::new();
        for (file, placed) in self.workflow.files.iter().zip(placed) {
            let Some(striped) = &file.striped else {
                continue;
            };
            for &(node, _) in &striped.parts {
                self.check_node(node, || format!("file `{}`", file.name))?;
            }
            parted.push((placed.object, file.layout(placed.object, next)));
            next += striped.parts.len() as u64;
        }
        Ok((parted, next))
    }

    fn check_node(&self, node: NodeId, what: impl FnOnce() -> String) -> Result<(), SimError> {
        match self.platform.node(node) {
            Some(_) => Ok(()),
            None => Err(SimError::NoSuchNode { what: what(), node }),
        }
    }
}

/// Source of consecutive ids; the ids of labels are indices of the engine's lists.
#[derive(Debug)]
struct Counter {
    labels: u64,
    objects: u64,
}

impl IdSource for Counter {
    fn ready(&mut self, _objects: u64) -> bool {
        true
    }

    fn label(&mut self) -> LabelId {
        self.labels += 1;
        LabelId(self.labels - 1)
    }

    fn objects(&mut self, count: u64) -> ObjectId {
        self.objects += count;
        ObjectId(self.objects - count)
    }
}
