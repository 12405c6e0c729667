//! Policies: where a task that is ready runs. A policy is a pure function of the request, the view and
//! its own small state; it sees no clock and no dispatcher. To add one: a file here and a row in
//! [`by_name`].
//!
//! Asking and choosing are two steps. [`Policy::place`] answers without changing anything, so that the
//! dispatcher may look ahead and drop the answer; [`Policy::chosen`] tells the policy that its answer
//! was carried out.

mod advised;
mod constraint;
mod hybrid;
mod input_locality;
mod min_wait;
mod minmax;
mod random;
mod round_robin;
mod view;
mod write_amplification;

pub use advised::Advised;
pub use constraint::Constraint;
pub use hybrid::{Hybrid, REDUCE_HOLDERS_MIN, REDUCE_INPUTS_MIN};
pub use input_locality::InputLocality;
pub use min_wait::MinWait;
pub use minmax::{BATCH_MAX, BEAM, CHOICES, Minmax, PASSES};
pub use random::Random;
pub use round_robin::RoundRobin;
pub(crate) use view::FullScan;
pub use view::{Among, View};
pub use write_amplification::WriteAmplification;

use crate::event::{Estimate, Role};
use crate::id::{ElementId, JobId, TaskId};
use crate::score::{Standing, WeightsError};
use std::fmt;

/// The policy of an array and of a job that names none.
pub const DEFAULT: &str = "min-wait";

/// Names that [`by_name`] knows, for help texts and errors. `wa` is short for `write-amplification`; `constraint:` may also
/// be followed by [weights](crate::score::Weights) of one's own.
pub const NAMES: [&str; 18] = [
    "round-robin",
    "random",
    "random:all",
    "input-locality",
    "min-wait",
    "write-amplification",
    "wa",
    "constraint:low-latency",
    "constraint:energy",
    "constraint:bandwidth",
    "minmax",
    "hybrid",
    "hybrid:round-robin",
    "hybrid:random",
    "hybrid:input-locality",
    "hybrid:min-wait",
    "hybrid:write-amplification",
    "advised",
];

/// A task that looks for an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its job.
    pub job: JobId,
    /// The task.
    pub task: TaskId,
    /// The name its kernel's history is kept under.
    pub kernel: &'a str,
    /// How many inputs it has, its kernel's code not counted.
    pub inputs: usize,
    /// How many elements hold them.
    pub holders: usize,
    /// All its inputs together, in bytes.
    pub input_bytes: u64,
    /// Tasks of the same job and kernel that are ready and not sent yet, this one counted.
    pub wave_left: u64,
    /// Tasks of the same job and kernel that became ready since none of them was.
    pub wave_size: u64,
}

/// An element that could take the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What it is for.
    pub role: Role,
    /// Kernels it runs at once.
    pub cores: u32,
    /// Whether its queue takes another label now.
    pub room: bool,
    /// Labels it has and that have not ended.
    pub outstanding: usize,
    /// Bytes of the task's inputs that it holds.
    pub local_bytes: u64,
    /// Labels that its queue surely takes now.
    pub slots: usize,
    /// Bytes free on its device, as it said last.
    pub free_bytes: u64,
    /// Power that it draws at full load in thousandths of a watt, as configured; 0: nobody said.
    pub watts_milli: u64,
    /// What its scores are made of.
    pub standing: Standing,
    /// What it would cost.
    pub estimate: Estimate,
}

/// A task with the elements that it may go to.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// The task.
    pub request: Request<'a>,
    /// All storage elements that it may go to.
    pub candidates: Vec<Candidate>,
}

/// Labels per core, in parts so small that more labels always count for more.
#[must_use]
pub fn labels_per_core(labels: usize, cores: u32) -> u64 {
    (labels as u64).saturating_mul(1 << 32) / u64::from(cores.max(1))
}

impl Candidate {
    /// Until the task would have ended there, in nanoseconds: waiting, pulling its inputs and running.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        let cost = &self.estimate;
        cost.wait_ns
            .saturating_add(cost.transfer_ns)
            .saturating_add(cost.run_ns)
    }
}

/// What a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The element. If its queue has no room the task waits in the dispatcher for this element.
    pub element: ElementId,
    /// Why.
    pub reason: Reason,
}

/// Why an element was chosen; its `Display` is the sentence that `tidemill explain` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The job script says so.
    Pinned,
    /// What it reads forward is made there, and a core is free beside that.
    Beside,
    /// It was its turn.
    Turn,
    /// It was drawn.
    Drawn,
    /// It holds the largest part of the inputs.
    MostInput {
        /// Bytes it holds.
        local_bytes: u64,
        /// Bytes of all inputs.
        input_bytes: u64,
    },
    /// Waiting and pulling inputs together take the least time there.
    LeastWait {
        /// Until a core is free, in nanoseconds.
        wait_ns: u64,
        /// To pull inputs, in nanoseconds.
        transfer_ns: u64,
    },
    /// It has the least to pull for the task's inputs.
    LeastAmplification {
        /// Bytes of all inputs.
        input_bytes: u64,
        /// Bytes of them that it has to pull.
        transfer_bytes: u64,
    },
    /// Its score is the highest of those with room.
    HighestScore {
        /// The score, in thousandths.
        score: u16,
        /// What it is made of.
        standing: Standing,
    },
    /// The cheapest plan that was found for some tasks gives it to that element.
    CheapestPlan {
        /// Tasks of the plan.
        together: usize,
        /// Until a core is free, the plan's other tasks not counted, in nanoseconds.
        wait_ns: u64,
        /// To pull inputs and to run, in nanoseconds.
        service_ns: u64,
        /// Power of the element in thousandths of a watt, as configured; 0: nobody said.
        watts_milli: u64,
    },
    /// Waiting, pulling inputs and running take the least time there, of the best storage element and the host.
    Advised {
        /// Until a core is free, in nanoseconds.
        wait_ns: u64,
        /// To pull inputs, in nanoseconds.
        transfer_ns: u64,
        /// To run, in nanoseconds; 0 if nobody knows.
        run_ns: u64,
    },
    /// It gathers inputs from several elements, which is the host's work.
    Reduce {
        /// Number of inputs.
        inputs: usize,
        /// Number of elements that hold them.
        holders: usize,
    },
    /// It is one of the tasks that do not fill a wave, which is the host's work.
    Unaligned {
        /// Tasks of the wave that are left, this one counted.
        left: u64,
        /// Tasks of the wave.
        size: u64,
        /// Cores of all storage elements.
        cores: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned => write!(f, "the job script names this element"),
            Self::Beside => write!(f, "what it reads is made there, beside free cores"),
            Self::Turn => write!(f, "it was this element's turn"),
            Self::Drawn => write!(f, "it was drawn at random"),
            Self::MostInput {
                local_bytes,
                input_bytes,
            } => {
                write!(
                    f,
                    "it holds {local_bytes} of {input_bytes} input bytes, more than any other"
                )
            }
            Self::LeastWait {
                wait_ns,
                transfer_ns,
            } => write!(
                f,
                "waiting {:.1} ms for a core and {:.1} ms for inputs is the least of all elements",
                millis(*wait_ns),
                millis(*transfer_ns)
            ),
            Self::LeastAmplification {
                input_bytes,
                transfer_bytes,
            } => write!(
                f,
                "pulling {transfer_bytes} bytes for {input_bytes} bytes of input amplifies writes {:.2} times, the least of all elements",
                write_amplification(*input_bytes, *transfer_bytes)
            ),
            Self::HighestScore { score, standing } => write!(
                f,
                "a score of {:.2} is the highest of all elements with room: {standing}",
                f64::from(*score) / 1000.0
            ),
            Self::CheapestPlan {
                together,
                wait_ns,
                service_ns,
                watts_milli,
            } => write!(
                f,
                "the cheapest plan found for {together} ready tasks: {:.1} ms until a core is free and {:.1} ms of work, {}",
                millis(*wait_ns),
                millis(*service_ns),
                power(*watts_milli)
            ),
            Self::Advised {
                wait_ns,
                transfer_ns,
                run_ns,
            } => write!(
                f,
                "waiting {:.1} ms for a core, {:.1} ms for inputs and running {:.1} ms is the least of all elements and the host",
                millis(*wait_ns),
                millis(*transfer_ns),
                millis(*run_ns)
            ),
            Self::Reduce { inputs, holders } => write!(
                f,
                "it gathers {inputs} inputs from {holders} elements, which the host does with less movement"
            ),
            Self::Unaligned { left, size, cores } => write!(
                f,
                "it is one of the last {left} of {size} like tasks, which do not fill the {cores} storage cores"
            ),
        }
    }
}

fn power(watts_milli: u64) -> String {
    if watts_milli == 0 {
        return "on an element of which nobody said what it draws".to_owned();
    }
    let watts = millis(watts_milli) * 1e3;
    format!("on an element configured with {watts:.1} W")
}

/// Bytes written for bytes of input: (input + transferred) / input, 1 without input (AnalyzeThis Eq. 1).
#[expect(
    clippy::cast_precision_loss,
    reason = "a ratio for display and reports"
)]
#[must_use]
pub fn write_amplification(input_bytes: u64, transfer_bytes: u64) -> f64 {
    if input_bytes == 0 {
        return 1.0;
    }
    1.0 + transfer_bytes as f64 / input_bytes as f64
}

#[expect(clippy::cast_precision_loss, reason = "display only")]
fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// What a policy carries from one task to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Memory {
    /// The element whose turn it was last.
    pub last: Option<ElementId>,
    /// What its source of numbers goes on from.
    pub source: Option<u64>,
}

/// Decides where tasks run.
pub trait Policy: fmt::Debug + Send {
    /// The name it is known under.
    fn name(&self) -> &str;

    /// The element for a task. `None` if no element that it may choose has room or is up: the task is
    /// asked for again when one has.
    fn place(&self, request: &Request<'_>, view: &mut dyn View) -> Option<Choice>;

    /// How many tasks it places together at most; with 1 it is asked for each by itself.
    fn batch_max(&self) -> usize {
        1
    }

    /// The elements for tasks that are ready together, in their order; as [`Self::place`], nothing changes.
    fn place_all(&self, batch: &mut [Ask<'_>]) -> Vec<Option<Choice>> {
        vec![None; batch.len()]
    }

    /// Whether it weighs how long a task waits, so that one that waits is worth asking for again.
    fn weighs_waits(&self) -> bool {
        false
    }

    /// What it goes on from.
    fn memory(&self) -> Memory {
        Memory::default()
    }

    /// Goes on from what one of its kind remembered.
    fn restore(&mut self, _memory: Memory) {}

    /// Its choice was carried out; the place to advance turns and seeds.
    fn chosen(&mut self, choice: &Choice);
}

/// There is no policy of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPolicy {
    /// None begins like that.
    #[error("policy `{0}` does not exist; known are {known}", known = NAMES.join(", "))]
    Name(String),
    /// Its weights can't be used.
    #[error(
        "the policy `{name}`: {source}; write constraint:low-latency, or constraint:load=2,speed=1"
    )]
    Weights {
        /// The name that was asked for.
        name: String,
        /// What is wrong with them.
        source: WeightsError,
    },
    /// It is longer than any that makes sense.
    #[error("a policy's name has at most {NAME_MAX} bytes, this one {0}")]
    Long(usize),
}

/// Most bytes of a policy's name.
pub const NAME_MAX: usize = 120;

/// Makes the policy of a name. `seed` is for those that draw.
///
/// # Errors
/// [`UnknownPolicy`] with the known names.
pub fn by_name(name: &str, seed: u64) -> Result<Box<dyn Policy>, UnknownPolicy> {
    if name.len() > NAME_MAX {
        return Err(UnknownPolicy::Long(name.len()));
    }
    let base = name.strip_prefix("hybrid:");
    let unknown = || UnknownPolicy::Name(name.to_owned());
    if let Some(weights) = base.unwrap_or(name).strip_prefix("constraint:") {
        let constraint = Constraint::by(weights).map_err(|source| UnknownPolicy::Weights {
            name: name.to_owned(),
            source,
        })?;
        let constraint = Box::new(constraint);
        return Ok(match base {
            Some(_) => Box::new(Hybrid::over(constraint)),
            None => constraint,
        });
    }
    if let Some(base) = base {
        let plain = plain(base, seed).ok_or_else(unknown)?;
        return Ok(Box::new(Hybrid::over(plain)));
    }
    match name {
        "hybrid" => Ok(Box::new(Hybrid::over(Box::new(MinWait)))),
        "advised" => Ok(Box::new(Advised)),
        "minmax" => Ok(Box::new(Minmax)),
        _ => plain(name, seed).ok_or_else(unknown),
    }
}

/// Whether a policy is made by a job's own weights: it remembers nothing, and is forgotten with the last job that has it.
#[must_use]
pub(crate) fn is_own(name: &str) -> bool {
    name.contains("constraint:")
}

/// The table of policies that [`Hybrid`] can stand on.
fn plain(name: &str, seed: u64) -> Option<Box<dyn Policy>> {
    match name {
        "round-robin" => Some(Box::new(RoundRobin::default())),
        "random" => Some(Box::new(Random::seeded(seed, Among::Open))),
        "random:all" => Some(Box::new(Random::seeded(seed, Among::Stores))),
        "input-locality" => Some(Box::new(InputLocality)),
        "min-wait" => Some(Box::new(MinWait)),
        "write-amplification" | "wa" => Some(Box::new(WriteAmplification::default())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A candidate for scenarios: a store with room and a free core unless a test says otherwise.
    pub(super) fn store(id: u32) -> Candidate {
        Candidate {
            role: Role::Store,
            cores: 1,
            room: true,
            outstanding: 0,
            local_bytes: 0,
            slots: 1,
            free_bytes: 1 << 40,
            watts_milli: 0,
            standing: Standing::default(),
            estimate: Estimate {
                element: ElementId(id),
                wait_ns: 0,
                transfer_ns: 0,
                transfer_bytes: 0,
                run_ns: 0,
            },
        }
    }

    /// A request with one input.
    pub(super) fn request() -> Request<'static> {
        Request {
            job: JobId(1),
            task: TaskId(1),
            kernel: "mean",
            inputs: 1,
            holders: 1,
            input_bytes: 100,
            wave_left: 1,
            wave_size: 1,
        }
    }

    #[test]
    fn by_name_creates_every_known_policy() {
        for name in NAMES {
            let policy = by_name(name, 1).unwrap();
            let short = ["hybrid", "wa"].contains(&name);
            assert!(policy.name() == name || short, "{name}");
        }
    }

    #[test]
    fn by_name_error_lists_known_policies() {
        let error = by_name("fastest", 1).unwrap_err().to_string();
        assert!(
            error.contains("`fastest`") && error.contains("min-wait"),
            "{error}"
        );
        assert!(by_name("hybrid:hybrid", 1).is_err());
        assert!(by_name("hybrid:minmax", 1).is_err());
        let error = by_name("constraint:load=0", 1).unwrap_err().to_string();
        assert!(error.contains("constraint:load=0") && error.contains("all weights are zero"));
        let long = format!("constraint:{}", "x".repeat(NAME_MAX));
        assert!(matches!(by_name(&long, 1), Err(UnknownPolicy::Long(_))));
        let own = by_name("hybrid:constraint:load=2,speed=0.5", 1).unwrap();
        assert_eq!(own.name(), "hybrid:constraint:load=2,speed=0.5");
    }

    #[test]
    fn plain_policies_never_choose_host_or_empty_set() {
        let host = Candidate {
            role: Role::Host,
            ..store(9)
        };
        for name in NAMES
            .into_iter()
            .filter(|name| !name.contains("hybrid") && *name != "advised")
        {
            let policy = by_name(name, 1).unwrap();
            assert_eq!(
                policy.place(&request(), &mut FullScan::of(&[host])),
                None,
                "{name}"
            );
            assert_eq!(
                policy.place(&request(), &mut FullScan::of(&[])),
                None,
                "{name}"
            );
        }
    }

    #[test]
    fn policies_without_draws_choose_first_of_equal_elements() {
        let all: Vec<Candidate> = (0..10_000).rev().map(store).collect();
        for name in NAMES.into_iter().filter(|name| !name.contains("random")) {
            let policy = by_name(name, 7).unwrap();
            let choice = policy.place(&request(), &mut FullScan::of(&all));
            assert_eq!(choice.map(|choice| choice.element.0), Some(0), "{name}");
        }
    }

    #[test]
    fn place_gives_same_answer_twice() {
        let all = [store(0), store(1), store(2)];
        for name in NAMES {
            let policy = by_name(name, 7).unwrap();
            let first = policy.place(&request(), &mut FullScan::of(&all));
            assert_eq!(
                first,
                policy.place(&request(), &mut FullScan::of(&all)),
                "{name}"
            );
        }
    }
}
