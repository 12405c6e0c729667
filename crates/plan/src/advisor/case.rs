//! What the advisor is asked: a kernel, an input, both sides and the link between them.

use super::Infeasible;
use super::Load;
use crate::units::{Bytes, BytesPerSecond, JoulesPerByte, Seconds, Watts};
use serde::Serialize;
use std::fmt;
use thiserror::Error;

/// One of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The element that holds the input.
    Element,
    /// The machine that asks.
    Host,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Element => "element",
            Self::Host => "host",
        })
    }
}

/// One of the two places where the kernel may run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Side {
    /// Input per second on one free core; none if nobody measured it.
    pub rate: Option<BytesPerSecond>,
    /// What a run takes over next to no input.
    pub start: Seconds,
    /// What else it has to do.
    pub load: Load,
    /// Space for input and result; none if there is no bound.
    pub free: Option<Bytes>,
}

impl Side {
    /// A side without load.
    pub fn idle(rate: BytesPerSecond) -> Self {
        Self {
            rate: Some(rate),
            start: Seconds::ZERO,
            load: Load::none(1),
            free: None,
        }
    }

    /// Starting and running over `input` (A3), if the other side works on nothing.
    pub(super) fn run(&self, place: Place, input: Bytes) -> Result<Seconds, Infeasible> {
        Ok(self.start + self.load.run(self.work(place, input)?))
    }

    /// The same while the other side works, too.
    pub(super) fn run_beside(&self, place: Place, input: Bytes) -> Result<Seconds, Infeasible> {
        Ok(self.start + self.work(place, input)? / self.load.share_beside)
    }

    /// What it takes on a processor of its own.
    fn work(&self, place: Place, input: Bytes) -> Result<Seconds, Infeasible> {
        if self.load.cores == 0 {
            return Err(Infeasible::NoCores(place));
        }
        Ok(input / self.rate.ok_or(Infeasible::NotMeasured(place))?)
    }

    /// Whether there is space.
    pub(super) fn holds(&self, place: Place, needed: Bytes) -> Result<(), Infeasible> {
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

/// The way between host and element, the same in both directions at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// What it moves.
    pub bandwidth: BytesPerSecond,
    /// From asking for data to its first byte.
    pub latency: Seconds,
}

/// What one core takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Power {
    /// When it works.
    pub busy: Watts,
    /// When it waits.
    pub idle: Watts,
}

/// What a run takes while it lasts: nothing tells a program, so somebody has to know it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Powers {
    /// A core of the element.
    pub element: Power,
    /// A core of the host.
    pub host: Power,
    /// Moving a byte over the link.
    pub link: JoulesPerByte,
}

impl Link {
    /// Moving `data` (A4); nothing takes no time.
    pub(super) fn time(&self, data: Bytes) -> Seconds {
        if data > Bytes::ZERO {
            self.latency + data / self.bandwidth
        } else {
            Seconds::ZERO
        }
    }
}

/// What the advisor is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// What is to be worked on; it lies on the element.
    pub input: Bytes,
    /// Size of the result for each byte of input.
    pub output_ratio: f64,
    /// Whether results of parts make the result of the whole.
    pub splittable: bool,
    /// Where the result is wanted.
    pub result: Place,
    /// The element that holds the input.
    pub element: Side,
    /// The machine that asks.
    pub host: Side,
    /// The way between them.
    pub link: Link,
    /// What they take, if that is known.
    pub powers: Option<Powers>,
}

/// A case that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum CaseError {
    /// A number that must be more than zero.
    #[error("{what} is {value}; it must be above zero and finite")]
    NotPositive {
        /// Which.
        what: &'static str,
        /// What it was, in its SI unit.
        value: f64,
    },
    /// A number that must not be negative.
    #[error("{what} is {value}; it must not be negative or infinite")]
    Negative {
        /// Which.
        what: &'static str,
        /// What it was, in its SI unit.
        value: f64,
    },
    /// Shares of a processor that can't be.
    #[error(
        "the shares of a processor on the {place} are not between 0 and 1, or grow with what else runs"
    )]
    Share {
        /// Where.
        place: Place,
    },
    /// A core that takes more when it waits.
    #[error("a core of the {place} takes {idle} when it waits and {busy} when it works: swap them")]
    IdlePower {
        /// Where.
        place: Place,
        /// When it waits.
        idle: Watts,
        /// When it works.
        busy: Watts,
    },
    /// There is no way at all.
    #[error("nothing can run this: {element}; {host}")]
    Nowhere {
        /// Why the element can't.
        element: Infeasible,
        /// Why the host can't.
        host: Infeasible,
    },
}

impl Case {
    /// Whether all numbers make sense.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), CaseError> {
        positive("the size of the input", self.input.get())?;
        not_negative("the output ratio", self.output_ratio)?;
        positive("the link's bandwidth", self.link.bandwidth.get())?;
        not_negative("the link's latency", self.link.latency.get())?;
        if let Some(powers) = &self.powers {
            not_negative("the link's energy", powers.link.get())?;
            powers.element.check(Place::Element)?;
            powers.host.check(Place::Host)?;
        }
        for (place, side) in [(Place::Element, &self.element), (Place::Host, &self.host)] {
            side_makes_sense(place, side)?;
        }
        Ok(())
    }
}

fn side_makes_sense(place: Place, side: &Side) -> Result<(), CaseError> {
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

impl Power {
    fn check(&self, place: Place) -> Result<(), CaseError> {
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
