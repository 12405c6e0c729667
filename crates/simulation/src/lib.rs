//! One deterministic simulation of the whole array's control plane under faults.
//!
//! The *production* dispatcher, its driver, journal, publication and remembered results, the namespace on SQLite, the
//! server's timers and its list of elements, and the elements' label state machine with its database run in one
//! thread under a virtual clock and a virtual network. Clients, kernels, objects' bytes and connections are modelled.
//! What is checked, which faults there are, and what is left out is in `docs/testing.md`.
//!
//! One seed decides everything: [`run`] with the same seed does the same.

mod broker;
mod carry;
mod check;
mod dice;
mod element;
mod hooks;
mod labels;
mod mount;
mod port;
mod reference;
mod rot;
mod rules;
mod shuffler;
mod sleep;
mod store;
mod time;
mod together;
mod warehouse;
mod weather;
mod world;

use hooks::Hooked;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

/// How long faults last, in virtual milliseconds.
const STORM_MS: u64 = 60_000;
/// Everything must have come to rest so long after.
const CALM_MS: u64 = 300_000;
/// And where files are held back from draining until they are mapped, or can't be.
const HELD_MS: u64 = 900_000;
/// How often that is looked for.
const CALM_LOOK_MS: u64 = 5_000;
/// After this long of calm jobs that wait for files are given up.
const CANCEL_MS: u64 = 30_000;

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events simulated.
    pub events: u64,
    /// Jobs that were accepted.
    pub jobs: u64,
    /// Outputs that were published.
    pub outputs: u64,
    /// Reads of files that several mounts write.
    pub reads: u64,
    /// How often elements that slept were woken.
    pub wakes: u64,
    /// Versions that were lost with memory, in the end.
    pub lost: u64,
    /// Rounds of hooks whose results were reduced.
    pub rounds: u64,
    /// Files that went because they were mapped.
    pub dropped: u64,
    /// Rooms that have ended.
    pub rooms: u64,
    /// Labels of applications that were carried out.
    pub labels: u64,
    /// Agents that were killed.
    pub agents: u64,
    /// Lives of the server.
    pub servers: u64,
    /// Virtual time, in milliseconds.
    pub time_ms: u64,
    /// Of all that happened, in order.
    pub fingerprint: u64,
}

/// A seed that shows a defect.
#[derive(Clone, Debug)]
pub struct Defect {
    /// Which.
    pub seed: u64,
    /// What was not as it must be.
    pub what: String,
    /// What happened last.
    pub trace: String,
    /// Events until then.
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

/// How a seed is simulated.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Every event is printed.
    pub verbose: bool,
    /// Faults that are left out, by the names in `docs/testing.md`: to find out which ones a defect takes.
    pub without: Vec<String>,
    /// Copies that the server is to make of versions; 0 is as 1.
    pub copies: u32,
    /// Objects change and vanish below their elements, where there are other copies.
    pub rot: bool,
    /// Elements are emptied now and then, while everything goes on.
    pub drains: bool,
    /// Several mounts write the same files, instead of all else.
    pub together: bool,
    /// A rule fires for every version of the clients' files.
    pub rules: bool,
    /// A hook maps every version of the clients' files, as it is written.
    pub hooks: bool,
    /// Hooks reduce rounds and have files go, and are changed and removed.
    pub rounds: bool,
    /// Elements sleep while nobody needs them, or somebody wants them to.
    pub sleeps: bool,
    /// Some elements are in memory, whose hosts end, and rooms come and end.
    pub warehouse: bool,
    /// An application's labels, shuffled by an agent that is killed, instead of all else.
    pub labels: bool,
    /// Some elements are of the burst tier: new versions go there, and drain to the others.
    pub bursts: bool,
}

/// Simulates one seed.
///
/// # Errors
/// What was not as it must be.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Defect> {
    if options.labels {
        let ran = catch_unwind(|| shuffler::run(seed));
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

fn build(seed: u64, options: &Options) -> World {
    let mut world = World::new(seed);
    world.verbose = options.verbose;
    world.copies = options.copies.max(1);
    if options.rot {
        world.rots = true;
        world.rot = Some(dice::Dice::new(dice::mix(seed)));
    }
    world.drains = options.drains;
    world.rules = options.rules || options.hooks;
    world.hooks = options.hooks;
    world.reference.hooks = options.hooks || options.rounds;
    world.reference.rounds = options.rounds;
    world.hooked = options.rounds.then(|| Hooked::new(seed));
    world.sleeps = options.sleeps;
    if options.warehouse {
        world.build_warehouse(seed);
    }
    world.bursts = options.bursts;
    if options.together {
        let together = together::Together::new(seed);
        if together.is_prompt() {
            world.weather.be_prompt();
        }
        world.together = Some(together);
    }
    world.weather.leave_out(&options.without);
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
        if world.sleeps {
            world.wake_all();
        }
        world.run_until(STORM_MS + calm);
        if calm >= CANCEL_MS {
            world.cancel_waiting();
            world.settle_hooks();
        }
        if calm > CANCEL_MS && world.unsettled().is_empty() {
            break;
        }
    }
    world.check_end();
    world.check_awake();
}
