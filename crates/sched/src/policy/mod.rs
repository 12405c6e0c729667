//! Policies: each policy chooses the node on which a ready task runs. A policy is a pure function of the request, the view and its own
//! small state; it sees no clock and no dispatcher. To add a policy, add a file in this directory, its name to [`NAMES`], and a row to
//! [`by_name`].
//!
//! Asking and choosing are two steps. [`Policy::place`] answers without changing anything, so that the dispatcher may look ahead and drop
//! the answer; [`Policy::chosen`] informs the policy that the dispatcher carried out its answer.

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
pub use constraint::ConstraintPolicy;
pub use hybrid::{Hybrid, REDUCE_HOLDERS_MIN, REDUCE_INPUTS_MIN};
pub use input_locality::InputLocality;
pub use min_wait::MinWait;
pub use minmax::{BATCH_MAX, BEAM, CHOICES, Minmax, PASSES};
pub use random::Random;
pub use round_robin::RoundRobin;
pub(crate) use view::FullScan;
pub use view::{CountedNodes, OnlineView};
pub use write_amplification::WriteAmplification;

use crate::score::{ScoreInputs, WeightsError};
use std::fmt;
use tidemill_model::event::{Estimate, Role};
use tidemill_model::id::{JobId, NodeId, TaskId};

/// Name of the default policy, for clusters and jobs that name no policy.
pub const DEFAULT: &str = "min-wait";

/// Policy names that [`by_name`] knows, for help texts and errors. `wa` is short for `write-amplification`;
/// [weights](crate::score::Weights) of the user may follow `constraint:`, too.
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

/// Request for the placement of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementRequest<'a> {
    /// Job of the task.
    pub job: JobId,
    /// Id of the task.
    pub task: TaskId,
    /// Name under which the run-time history of the task's kernel is stored.
    pub kernel: &'a str,
    /// Number of inputs of the task, not counting the code of its kernel.
    pub inputs: usize,
    /// Number of nodes that hold inputs of the task.
    pub holders: usize,
    /// Size of all inputs of the task, in bytes.
    pub input_bytes: u64,
    /// Number of tasks of the same job and kernel that are ready and not sent yet, including this task.
    pub wave_left: u64,
    /// Number of tasks of the same job and kernel that became ready since the last time when none of them was ready.
    pub wave_size: u64,
}

/// Node that could take the task, with the estimated costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Role of the node in the placement of tasks.
    pub role: Role,
    /// Number of kernels that the node runs at once.
    pub cores: u32,
    /// Whether the node's queue accepts another label now.
    pub has_space: bool,
    /// Number of unfinished labels of the node.
    pub outstanding: usize,
    /// Size of the task's inputs that the node holds, in bytes.
    pub local_bytes: u64,
    /// Minimum number of labels that the node's queue accepts now.
    pub slots: usize,
    /// Last reported free space of the node's device, in bytes.
    pub free_bytes: u64,
    /// Power that the node draws at full load, in thousandths of a watt, as configured; 0 if no power is configured.
    pub watts_milli: u64,
    /// Properties from which the scores of the node are computed.
    pub standing: ScoreInputs,
    /// Estimated costs of the task on the node.
    pub estimate: Estimate,
}

/// Task with its candidate nodes.
#[derive(Clone, Debug)]
pub struct PlacementQuestion<'a> {
    /// Request of the task.
    pub request: PlacementRequest<'a>,
    /// All storage nodes on which the task may be placed.
    pub candidates: Vec<Candidate>,
}

/// Returns the number of labels per core, in units so small that more labels always give a larger number.
#[must_use]
pub fn labels_per_core(labels: usize, cores: u32) -> u64 {
    (labels as u64).saturating_mul(1 << 32) / u64::from(cores.max(1))
}

impl Candidate {
    /// Returns the time until the task would end on the node, in nanoseconds: waiting, fetching its inputs and running.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        let cost = &self.estimate;
        cost.wait_ns
            .saturating_add(cost.transfer_ns)
            .saturating_add(cost.run_ns)
    }
}

/// Answer of a policy to a placement request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyChoice {
    /// Chosen node. If the queue of the node is full, the task waits in the dispatcher for this node.
    pub node: NodeId,
    /// Reason for the choice.
    pub reason: Reason,
}

/// Reason for which a node was chosen; its `Display` is the sentence that `tidemill job explain` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The job file names the node.
    Pinned,
    /// The producer of a streamed input runs on the node, and another core is free.
    Beside,
    /// The node is the next one in the policy's round-robin order.
    Turn,
    /// The node was chosen at random.
    Drawn,
    /// The node holds the largest part of the inputs.
    MostInput {
        /// Size of the inputs on the node, in bytes.
        local_bytes: u64,
        /// Size of all inputs, in bytes.
        input_bytes: u64,
    },
    /// The node has the least time for waiting and fetching inputs.
    LeastWait {
        /// Time until a core of the node is free, in nanoseconds.
        wait_ns: u64,
        /// Time to fetch the task's inputs, in nanoseconds.
        transfer_ns: u64,
    },
    /// The node has to fetch the fewest bytes for the task's inputs.
    LeastAmplification {
        /// Size of all inputs, in bytes.
        input_bytes: u64,
        /// Size of the inputs that the node has to fetch, in bytes.
        transfer_bytes: u64,
    },
    /// The node has the highest score among the nodes with capacity.
    HighestScore {
        /// Score of the node, in thousandths.
        score: u16,
        /// Properties from which the score was computed.
        standing: ScoreInputs,
    },
    /// The cheapest plan that was found for several tasks places the task on the node.
    CheapestPlan {
        /// Number of tasks in the cheapest plan.
        together: usize,
        /// Time until a core of the node is free, not counting the plan's other tasks, in nanoseconds.
        wait_ns: u64,
        /// Time to fetch the task's inputs and to run it, in nanoseconds.
        service_ns: u64,
        /// Power of the node in thousandths of a watt, as configured; 0 if no power is configured.
        watts_milli: u64,
    },
    /// Waiting, fetching inputs and running take the least time on this node, compared with the best storage node and the server cores.
    Advised {
        /// Time until a core of the node is free, in nanoseconds.
        wait_ns: u64,
        /// Time to fetch the task's inputs, in nanoseconds.
        transfer_ns: u64,
        /// Time to run the task, in nanoseconds; 0 if the run time is unknown.
        run_ns: u64,
    },
    /// The task reads inputs from several nodes, so it runs on the server cores.
    Reduce {
        /// Number of inputs of the task.
        inputs: usize,
        /// Number of nodes that hold the inputs.
        holders: usize,
    },
    /// The task belongs to an incomplete wave, so it runs on the server cores.
    Unaligned {
        /// Number of tasks of the wave that are not sent, including this task.
        left: u64,
        /// Number of tasks of the wave.
        size: u64,
        /// Number of cores of all storage nodes.
        cores: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned => write!(f, "the job file names this node"),
            Self::Beside => write!(f, "its input is created there, and cores are free"),
            Self::Turn => write!(f, "it was this node's turn"),
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
                "waiting {:.1} ms for a core and {:.1} ms for inputs is the least of all nodes",
                millis(*wait_ns),
                millis(*transfer_ns)
            ),
            Self::LeastAmplification {
                input_bytes,
                transfer_bytes,
            } => write!(
                f,
                "fetching {transfer_bytes} bytes for {input_bytes} bytes of input amplifies writes {:.2} times, the least of all nodes",
                write_amplification(*input_bytes, *transfer_bytes)
            ),
            Self::HighestScore { score, standing } => write!(
                f,
                "a score of {:.2} is the highest of all nodes with space: {standing}",
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
                "waiting {:.1} ms for a core, {:.1} ms for inputs and running {:.1} ms is the least of all nodes and the server cores",
                millis(*wait_ns),
                millis(*transfer_ns),
                millis(*run_ns)
            ),
            Self::Reduce { inputs, holders } => write!(
                f,
                "it gathers {inputs} inputs from {holders} nodes, which the server cores do with fewer bytes transferred"
            ),
            Self::Unaligned { left, size, cores } => write!(
                f,
                "it is one of the last {left} of {size} similar tasks, which do not fill the {cores} storage cores"
            ),
        }
    }
}

fn power(watts_milli: u64) -> String {
    if watts_milli == 0 {
        return "on a node whose power is not known".to_owned();
    }
    let watts = millis(watts_milli) * 1e3;
    format!("on a node configured with {watts:.1} W")
}

/// Returns the bytes written per byte of input: (input + transferred) / input; 1 without input (AnalyzeThis Eq. 1).
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

/// State of a policy that it keeps from one task to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PolicyState {
    /// Last node that a policy with a round-robin order has chosen.
    pub last: Option<NodeId>,
    /// State of the policy's random number generator.
    pub source: Option<u64>,
}

/// Interface of policies.
pub trait Policy: fmt::Debug + Send {
    /// Returns the name of the policy.
    fn name(&self) -> &str;

    /// Returns the node for a task. Returns `None` if no node that the policy may choose is online and has capacity: the task is placed
    /// again when such a node has capacity.
    fn place(
        &self,
        request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice>;

    /// Returns the maximum number of tasks that the policy places together; 1 if the policy places each task by itself.
    fn batch_max(&self) -> usize {
        1
    }

    /// Returns the nodes for tasks that are ready at the same time, in the tasks' order. Like [`Self::place`], this changes nothing.
    fn place_all(&self, batch: &mut [PlacementQuestion<'_>]) -> Vec<Option<PolicyChoice>> {
        vec![None; batch.len()]
    }

    /// Returns whether the policy considers waiting times, so that a waiting task is worth placing again.
    fn weighs_waits(&self) -> bool {
        false
    }

    /// Returns the state of the policy, to store it.
    fn memory(&self) -> PolicyState {
        PolicyState::default()
    }

    /// Restores the state of a policy of the same kind.
    fn restore(&mut self, _memory: PolicyState) {}

    /// Handles a choice that the dispatcher carried out; policies advance their turns and seeds here.
    fn chosen(&mut self, choice: &PolicyChoice);
}

/// Error of a policy's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPolicy {
    /// No policy has this name.
    #[error("policy `{0}` does not exist; known policies are {known}", known = NAMES.join(", "))]
    Name(String),
    /// The policy's weights can't be used.
    #[error(
        "the policy `{name}`: {source}; write constraint:low-latency, or constraint:load=2,speed=1"
    )]
    Weights {
        /// Requested name of the policy.
        name: String,
        /// Fault in the weights.
        source: WeightsError,
    },
    /// The name is longer than any valid name.
    #[error("a policy's name has at most {NAME_MAX} bytes, this one {0}")]
    Long(usize),
}

/// Maximum length of a policy's name, in bytes.
pub const NAME_MAX: usize = 120;

/// Returns the policy with this name. `seed` is used by policies that draw random numbers.
///
/// # Errors
/// [`UnknownPolicy`], whose message lists the known names.
pub fn by_name(name: &str, seed: u64) -> Result<Box<dyn Policy>, UnknownPolicy> {
    if name.len() > NAME_MAX {
        return Err(UnknownPolicy::Long(name.len()));
    }
    let base = name.strip_prefix("hybrid:");
    let unknown = || UnknownPolicy::Name(name.to_owned());
    if let Some(weights) = base.unwrap_or(name).strip_prefix("constraint:") {
        let constraint =
            ConstraintPolicy::by(weights).map_err(|source| UnknownPolicy::Weights {
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

/// Returns whether a policy is defined by a job's own weights: such a policy has no state, and is dropped with the last job that uses it.
#[must_use]
pub(crate) fn is_own(name: &str) -> bool {
    name.contains("constraint:")
}

/// Returns a policy on which [`Hybrid`] can be based.
fn plain(name: &str, seed: u64) -> Option<Box<dyn Policy>> {
    match name {
        "round-robin" => Some(Box::new(RoundRobin::default())),
        "random" => Some(Box::new(Random::seeded(seed, CountedNodes::Open))),
        "random:all" => Some(Box::new(Random::seeded(seed, CountedNodes::Stores))),
        "input-locality" => Some(Box::new(InputLocality)),
        "min-wait" => Some(Box::new(MinWait)),
        "write-amplification" | "wa" => Some(Box::new(WriteAmplification::default())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a candidate for test scenarios: a storage node with capacity and a free core unless a test changes it.
    pub(super) fn store(id: u32) -> Candidate {
        Candidate {
            role: Role::Store,
            cores: 1,
            has_space: true,
            outstanding: 0,
            local_bytes: 0,
            slots: 1,
            free_bytes: 1 << 40,
            watts_milli: 0,
            standing: ScoreInputs::default(),
            estimate: Estimate {
                node: NodeId(id),
                wait_ns: 0,
                transfer_ns: 0,
                transfer_bytes: 0,
                run_ns: 0,
            },
        }
    }

    /// Returns a placement request for a task with one input.
    pub(super) fn request() -> PlacementRequest<'static> {
        PlacementRequest {
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
    fn plain_policies_never_choose_server_cores_or_empty_set() {
        let server_cores = Candidate {
            role: Role::ServerCores,
            ..store(9)
        };
        for name in NAMES
            .into_iter()
            .filter(|name| !name.contains("hybrid") && *name != "advised")
        {
            let policy = by_name(name, 1).unwrap();
            assert_eq!(
                policy.place(&request(), &mut FullScan::of(&[server_cores])),
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
    fn policies_without_draws_choose_first_of_equal_nodes() {
        let all: Vec<Candidate> = (0..10_000).rev().map(store).collect();
        for name in NAMES.into_iter().filter(|name| !name.contains("random")) {
            let policy = by_name(name, 7).unwrap();
            let choice = policy.place(&request(), &mut FullScan::of(&all));
            assert_eq!(choice.map(|choice| choice.node.0), Some(0), "{name}");
        }
    }

    #[test]
    fn policy_place_gives_same_answer_twice() {
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
