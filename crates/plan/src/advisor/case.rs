//! Input of the advisor: a kernel, its input data, the client, the node and the link between them.

use super::Infeasible;
use super::Load;
use crate::units::{Bytes, BytesPerSecond, JoulesPerByte, Seconds, Watts};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use thiserror::Error;

/// Machine on which a kernel may run: the client or the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExecutionSide {
    /// Node that holds the input of the kernel.
    Node,
    /// Machine of the user who reads the result.
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

/// Properties of the client or of the node, on which the kernel may run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SideFacts {
    /// Input rate of the kernel on one free core; `None` if the rate was not measured.
    pub rate: Option<BytesPerSecond>,
    /// Time of a kernel run over a very small input.
    pub start: Seconds,
    /// Load on this side from other work.
    pub load: Load,
    /// Space on this side for input and result; `None` if the space is not limited.
    pub free: Option<Bytes>,
}

impl SideFacts {
    /// Returns the facts of a side without load.
    pub fn idle(rate: BytesPerSecond) -> Self {
        Self {
            rate: Some(rate),
            start: Seconds::ZERO,
            load: Load::none(1),
            free: None,
        }
    }

    /// Returns the time of starting and running the kernel over `input` (A3), if the other side does not run it.
    pub(super) fn run(&self, place: ExecutionSide, input: Bytes) -> Result<Seconds, Infeasible> {
        Ok(self.start + self.load.run(self.work(place, input)?))
    }

    /// Returns the same time as `run` while the other side runs the kernel, too.
    pub(super) fn run_beside(
        &self,
        place: ExecutionSide,
        input: Bytes,
    ) -> Result<Seconds, Infeasible> {
        Ok(self.start + self.work(place, input)? / self.load.share_beside)
    }

    /// Returns the time of the computation on a processor without other load.
    fn work(&self, place: ExecutionSide, input: Bytes) -> Result<Seconds, Infeasible> {
        if self.load.cores == 0 {
            return Err(Infeasible::NoCores(place));
        }
        Ok(input / self.rate.ok_or(Infeasible::NotMeasured(place))?)
    }

    /// Checks that the side has enough space for `needed` bytes.
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

/// Link between client and node, with the same properties in both directions at the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bandwidth of the link.
    pub bandwidth: BytesPerSecond,
    /// Time from the request for data to its first byte.
    pub latency: Seconds,
}

/// Power of one core of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CorePower {
    /// Power of the core when it is busy.
    pub busy: Watts,
    /// Power of the core when it is idle.
    pub idle: Watts,
}

/// Powers during a run. No program can measure these powers, so the user must supply them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Powers {
    /// Power of a core of the node.
    pub node: CorePower,
    /// Power of a core of the client.
    pub client: CorePower,
    /// Energy of transferring data over the link, per byte.
    pub link: JoulesPerByte,
}

impl Link {
    /// Returns the time of transferring `data` over the link (A4); no data takes no time.
    pub(super) fn time(&self, data: Bytes) -> Seconds {
        if data > Bytes::ZERO {
            self.latency + data / self.bandwidth
        } else {
            Seconds::ZERO
        }
    }
}

/// Case for which the advisor is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// Size of the input data, which the node stores.
    pub input: Bytes,
    /// Size of the result per byte of input.
    pub output_ratio: f64,
    /// Whether results of parts of the input can be merged to the result of the whole input.
    pub splittable: bool,
    /// Side on which the result is wanted.
    pub result: ExecutionSide,
    /// Properties of the node that holds the input.
    pub node: SideFacts,
    /// Properties of the client.
    pub client: SideFacts,
    /// Link between client and node.
    pub link: Link,
    /// Powers of client and node, if they are known.
    pub powers: Option<Powers>,
}

/// Error of an invalid case.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum CaseError {
    /// A number of the case must be more than zero.
    #[error("{what} is {value}; it must be above zero and finite")]
    NotPositive {
        /// Name of the number.
        what: &'static str,
        /// Value of the number in its SI unit.
        value: f64,
    },
    /// A number of the case must not be negative.
    #[error("{what} is {value}; it must not be negative or infinite")]
    Negative {
        /// Name of the number.
        what: &'static str,
        /// Value of the number in its SI unit.
        value: f64,
    },
    /// Shares of a processor are invalid.
    #[error(
        "the shares of a processor on the {place} are not between 0 and 1, or grow with what else runs"
    )]
    Share {
        /// Side whose processor shares are invalid.
        place: ExecutionSide,
    },
    /// A core draws more power when it is idle than when it is busy.
    #[error("a core of the {place} takes {idle} when it waits and {busy} when it works: swap them")]
    IdlePower {
        /// Side on which the core is.
        place: ExecutionSide,
        /// Power of the idle core.
        idle: Watts,
        /// Power of the busy core.
        busy: Watts,
    },
    /// Neither side can run the kernel.
    #[error("nothing can run this: {node}; {client}")]
    Nowhere {
        /// Reason why the node can't run the kernel.
        node: Infeasible,
        /// Reason why the client can't run the kernel.
        client: Infeasible,
    },
}

impl Case {
    /// Checks that all numbers of the case are valid.
    ///
    /// # Errors
    /// The first invalid number of the case.
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
