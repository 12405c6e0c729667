//! Input of the advisor: a kernel, its input data, the client, the node and the link between them.

use super::Infeasible;
use super::Load;
use crate::units::{Bytes, BytesPerSecond, JoulesPerByte, Seconds, Watts};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use thiserror::Error;

/// Client or node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExecutionSide {
    /// Node that holds the input.
    Node,
    /// Machine of the reader.
    Client,
}

impl fmt::Display for ExecutionSide {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Node => "node",
            Self::Client => "client",
        })
    }
}

/// Client or node, where the kernel may run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SideFacts {
    /// Input rate on one free core; `None` if it was not measured.
    pub rate: Option<BytesPerSecond>,
    /// Time of a run over a very small input.
    pub start: Seconds,
    /// Other load of this side.
    pub load: Load,
    /// Space for input and result; `None` if it is not limited.
    pub free: Option<Bytes>,
}

impl SideFacts {
    /// Returns a side without load.
    pub fn idle(rate: BytesPerSecond) -> Self {
        Self {
            rate: Some(rate),
            start: Seconds::ZERO,
            load: Load::none(1),
            free: None,
        }
    }

    /// Returns the time of starting and running over `input` (A3), if the other side does not work.
    pub(super) fn run(&self, place: ExecutionSide, input: Bytes) -> Result<Seconds, Infeasible> {
        Ok(self.start + self.load.run(self.work(place, input)?))
    }

    /// Returns the same time while the other side works, too.
    pub(super) fn run_beside(
        &self,
        place: ExecutionSide,
        input: Bytes,
    ) -> Result<Seconds, Infeasible> {
        Ok(self.start + self.work(place, input)? / self.load.share_beside)
    }

    /// Returns the time of the work on a processor of its own.
    fn work(&self, place: ExecutionSide, input: Bytes) -> Result<Seconds, Infeasible> {
        if self.load.cores == 0 {
            return Err(Infeasible::NoCores(place));
        }
        Ok(input / self.rate.ok_or(Infeasible::NotMeasured(place))?)
    }

    /// Checks that there is enough space.
    pub(super) fn holds(&self, place: ExecutionSide, needed: Bytes) -> Result<(), Infeasible> {
        match self.free {
            Some(free) if needed > free => Err(Infeasible::NoSpace {
                place,
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }
}

/// Link between client and node, with the same properties in both directions at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bandwidth of the link.
    pub bandwidth: BytesPerSecond,
    /// Time from the request for data to its first byte.
    pub latency: Seconds,
}

/// Power of one core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CorePower {
    /// Power when busy.
    pub busy: Watts,
    /// Power when idle.
    pub idle: Watts,
}

/// Powers during a run. No program can measure them, so the user must supply them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Powers {
    /// Power of a core of the node.
    pub node: CorePower,
    /// Power of a core of the client.
    pub client: CorePower,
    /// Energy of transferring a byte over the link.
    pub link: JoulesPerByte,
}

impl Link {
    /// Returns the time of transferring `data` (A4); no data takes no time.
    pub(super) fn time(&self, data: Bytes) -> Seconds {
        if data > Bytes::ZERO {
            self.latency + data / self.bandwidth
        } else {
            Seconds::ZERO
        }
    }
}

/// Question to the advisor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// Size of the input data, which is stored on the node.
    pub input: Bytes,
    /// Size of the result per byte of input.
    pub output_ratio: f64,
    /// Whether results of parts can be merged to the result of the whole.
    pub splittable: bool,
    /// Place where the result is wanted.
    pub result: ExecutionSide,
    /// Node that holds the input.
    pub node: SideFacts,
    /// Machine of the reader.
    pub client: SideFacts,
    /// Link between client and node.
    pub link: Link,
    /// Powers of client and node, if they are known.
    pub powers: Option<Powers>,
}

/// Invalid case.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum CaseError {
    /// A number must be more than zero.
    #[error("{what} is {value}; it must be above zero and finite")]
    NotPositive {
        /// Name of the number.
        what: &'static str,
        /// Value in its SI unit.
        value: f64,
    },
    /// A number must not be negative.
    #[error("{what} is {value}; it must not be negative or infinite")]
    Negative {
        /// Name of the number.
        what: &'static str,
        /// Value in its SI unit.
        value: f64,
    },
    /// Shares of a processor are invalid.
    #[error(
        "the shares of a processor on the {place} are not between 0 and 1, or grow with what else runs"
    )]
    Share {
        /// Side with the shares.
        place: ExecutionSide,
    },
    /// A core draws more power when it is idle.
    #[error("a core of the {place} takes {idle} when it waits and {busy} when it works: swap them")]
    IdlePower {
        /// Side of the core.
        place: ExecutionSide,
        /// Power when idle.
        idle: Watts,
        /// Power when busy.
        busy: Watts,
    },
    /// Neither side can run the kernel.
    #[error("nothing can run this: {node}; {client}")]
    Nowhere {
        /// Reason of the node.
        node: Infeasible,
        /// Reason of the client.
        client: Infeasible,
    },
}

impl Case {
    /// Checks that all numbers are valid.
    ///
    /// # Errors
    /// The first invalid number.
    pub fn check(&self) -> Result<(), CaseError> {
        positive("the size of the input", self.input.get())?;
        not_negative("the output ratio", self.output_ratio)?;
        positive("the link's bandwidth", self.link.bandwidth.get())?;
        not_negative("the link's latency", self.link.latency.get())?;
        if let Some(powers) = &self.powers {
            not_negative("the link's energy", powers.link.get())?;
            powers.node.check(ExecutionSide::Node)?;
            powers.client.check(ExecutionSide::Client)?;
        }
        for (place, side) in [
            (ExecutionSide::Node, &self.node),
            (ExecutionSide::Client, &self.client),
        ] {
            side_makes_sense(place, side)?;
        }
        Ok(())
    }
}

fn side_makes_sense(place: ExecutionSide, side: &SideFacts) -> Result<(), CaseError> {
    if let Some(rate) = side.rate {
        positive("the kernel's throughput", rate.get())?;
    }
    not_negative("the time to start", side.start.get())?;
    not_negative("the wait for a core", side.load.wait.get())?;
    not_negative("the time that kernels go on", side.load.crowded.get())?;
    let Load {
        share,
        share_later,
        share_beside,
        ..
    } = side.load;
    let in_order = share_beside <= share && share <= share_later && share_later <= 1.0;
    if !in_order || positive("the share", share_beside).is_err() {
        return Err(CaseError::Share { place });
    }
    if let Some(free) = side.free {
        not_negative("the free space", free.get())?;
    }
    Ok(())
}

impl CorePower {
    fn check(&self, place: ExecutionSide) -> Result<(), CaseError> {
        let Self { busy, idle } = *self;
        not_negative("the power of a core that waits", idle.get())?;
        not_negative("the power of a core at work", busy.get())?;
        if idle > busy {
            return Err(CaseError::IdlePower { place, idle, busy });
        }
        Ok(())
    }
}

fn positive(what: &'static str, value: f64) -> Result<(), CaseError> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(CaseError::NotPositive { what, value })
}

fn not_negative(what: &'static str, value: f64) -> Result<(), CaseError> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(CaseError::Negative { what, value })
}
