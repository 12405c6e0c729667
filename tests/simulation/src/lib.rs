//! Deterministic simulation of the whole cluster's control plane under faults.
//!
//! The *production* dispatcher, its driver, journal, publication and cached results, the namespace on SQLite, the server's timers and its
//! list of nodes, and the nodes' label state machine with its database run in one thread under a virtual clock and a virtual network.
//! Clients, kernels, objects' bytes and connections are modelled. `docs/testing.md` lists the checks, the faults and the omissions.
//!
//! One seed decides all random choices: [`run`] with the same seed simulates the same events.

mod bit_rot;
mod broker;
mod check;
mod dice;
mod fault_mix;
mod hooks;
mod labels;
mod memory_tier;
mod mount;
mod multi_writer;
mod node;
mod port;
mod reference;
mod request_scheduler;
mod rules;
mod store;
mod suspend;
mod time;
mod transport;
mod world;

use hooks::Hooked;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

/// Duration of the phase with faults, in virtual milliseconds.
const STORM_MS: u64 = 60_000;
/// Maximum time after the faults until the cluster is at rest, in virtual milliseconds.
const CALM_MS: u64 = 300_000;
/// Maximum time until the cluster is at rest if files are not staged out before they are mapped, or can't be mapped.
const HELD_MS: u64 = 900_000;
/// Interval at which the simulation checks whether the cluster is at rest.
const CALM_LOOK_MS: u64 = 5_000;
/// Time for which the cluster stays at rest at the end, in virtual milliseconds.
const REST_MS: u64 = 20_000;
/// Maximum number of commits of the server in this time: work that repeats each second without a result commits more often.
const REST_COMMITS_MAX: u64 = 10;
/// Time without faults after which jobs that wait for files are cancelled.
const CANCEL_MS: u64 = 30_000;

/// Statistics of a simulation run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of simulated events.
    pub events: u64,
    /// Number of jobs that were accepted.
    pub jobs: u64,
    /// Number of outputs that were published.
    pub outputs: u64,
    /// Number of reads of files that several mounts write at the same time.
    pub reads: u64,
    /// Number of times that suspended nodes were resumed.
    pub resumes: u64,
    /// Number of versions that were lost with a node's memory until the end.
    pub lost: u64,
    /// Number of batches of hooks whose results were reduced.
    pub batches: u64,
    /// Number of files that hooks deleted after mapping them.
    pub dropped: u64,
    /// Number of workspaces that have ended.
    pub workspaces: u64,
    /// Number of labels of applications that were executed.
    pub labels: u64,
    /// Number of agents that were killed.
    pub agents: u64,
    /// Number of starts of the server.
    pub servers: u64,
    /// Virtual time at the end of the run, in milliseconds.
    pub time_ms: u64,
    /// Fingerprint of all events of the run, in order.
    pub fingerprint: u64,
}

/// Defect that a seed shows.
#[derive(Clone, Debug)]
pub struct Defect {
    /// Seed of the run.
    pub seed: u64,
    /// Description of the violated condition.
    pub what: String,
    /// Last events before the defect.
    pub trace: String,
    /// Number of events until the defect.
    pub events: u64,
}

impl std::fmt::Display for Defect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            seed, what, trace, ..
        } = self;
        write!(
            f,
            "seed {seed}: {what}\nwhat happened last:\n{trace}replay: cargo run -p tidemill-simulation --example \
             simulate -- --verbose --seeds {seed}..{}",
            seed + 1
        )
    }
}

/// Options of a simulation.
#[derive(Clone, Debug, Default)]
pub struct SimulationOptions {
    /// Whether every event is printed.
    pub verbose: bool,
    /// Faults that are left out, by the names in `docs/testing.md`, to find out which faults a defect needs.
    pub without: Vec<String>,
    /// Number of replicas that the server makes of each version; 0 is the same as 1.
    pub replicas: u32,
    /// Whether objects change and vanish on the disks of nodes, as long as other replicas exist.
    pub bit_rot: bool,
    /// Whether nodes are drained at random times during normal operation.
    pub drains: bool,
    /// Whether several mounts write the same files, which replaces all other simulation.
    pub multi_writer: bool,
    /// Whether a rule is triggered for every version of the clients' files.
    pub rules: bool,
    /// Whether a hook maps every version of the clients' files, as it is written.
    pub hooks: bool,
    /// Whether hooks reduce batches, delete files, and are changed and removed.
    pub batches: bool,
    /// Whether nodes are suspended while no work needs them, or on request.
    pub suspends: bool,
    /// Whether some nodes belong to the memory tier, on hosts that die, and workspaces are created and end.
    pub memory_tier: bool,
    /// Whether an application's labels are simulated, scheduled by an agent that is killed, which replaces all other simulation.
    pub labels: bool,
    /// Whether some nodes belong to the burst tier: new versions are stored on these nodes, and are staged out to other nodes.
    pub bursts: bool,
}

/// Simulates the cluster's control plane with one seed.
///
/// # Errors
/// The condition that was violated, with the last events.
pub fn run(seed: u64, options: &SimulationOptions) -> Result<Summary, Defect> {
    if options.labels {
        let ran = catch_unwind(|| request_scheduler::run(seed));
        return ran.map_err(|thrown| Defect {
            seed,
            what: what(thrown.as_ref()),
            trace: String::new(),
            events: 0,
        });
    }
    let mut world = build(seed, options);
    let ran = catch_unwind(AssertUnwindSafe(|| storm_and_calm(&mut world)));
    match ran {
        Ok(()) => Ok(world.summary()),
        Err(thrown) => Err(Defect {
            seed,
            what: what(thrown.as_ref()),
            trace: world.trace(),
            events: world.events,
        }),
    }
}

fn what(thrown: &(dyn std::any::Any + Send)) -> String {
    let text = thrown.downcast_ref::<String>().cloned();
    let text = text.or_else(|| thrown.downcast_ref::<&str>().map(|text| (*text).into()));
    text.unwrap_or_else(|| "it panicked".into())
}

fn build(seed: u64, options: &SimulationOptions) -> World {
    let mut world = World::new(seed);
    world.verbose = options.verbose;
    world.replicas = options.replicas.max(1);
    if options.bit_rot {
        world.bit_rots = true;
        world.bit_rot = Some(dice::Dice::new(dice::mix(seed)));
    }
    world.drains = options.drains;
    world.rules = options.rules || options.hooks;
    world.hooks = options.hooks;
    world.reference.hooks = options.hooks || options.batches;
    world.reference.batches = options.batches;
    world.hooked = options.batches.then(|| Hooked::new(seed));
    world.suspends = options.suspends;
    if options.memory_tier {
        world.build_memory_tier(seed);
    }
    world.bursts = options.bursts;
    if options.multi_writer {
        let multi_writer = multi_writer::MultiWriter::new(seed);
        if multi_writer.is_prompt() {
            world.fault_mix.be_prompt();
        }
        world.multi_writer = Some(multi_writer);
    }
    world.fault_mix.leave_out(&options.without);
    world
}

fn storm_and_calm(world: &mut World) {
    world.begin();
    for second in 1..=STORM_MS / 1000 {
        world.run_until(second * 1000);
        if second % 5 == 0 {
            world.compare();
        }
    }
    world.clear_up();
    let mut calm = 0;
    let most = if world.hooked.is_some() {
        HELD_MS
    } else {
        CALM_MS
    };
    while calm < most {
        calm += CALM_LOOK_MS;
        if world.suspends {
            world.resume_all();
        }
        world.run_until(STORM_MS + calm);
        if calm >= CANCEL_MS {
            world.cancel_waiting();
            world.finish_hooks();
        }
        if calm > CANCEL_MS && world.unsettled().is_empty() {
            break;
        }
    }
    world.check_end();
    world.check_active();
    let commits = world.commits();
    world.run_until(STORM_MS + calm + REST_MS);
    let commits = world.commits() - commits;
    // Where replicas may rot, scrubs never end.
    assert!(
        world.bit_rots || commits <= REST_COMMITS_MAX,
        "the server of a cluster at rest has committed {commits} times in {REST_MS} ms"
    );
}
