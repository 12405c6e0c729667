//! The advisor: should a kernel run on the host, on the element that holds its input, or on both?
//!
//! [`advise`] predicts time, bytes over the link and energy of each and says which is best, and why. The equations
//! are numbered A1 to A9 as in `docs/advisor.md`; what of them is taken from D. Tiwari et al., "Active Flash" (FAST
//! 2013) and from AnalyzeThis is said where it is used, the rest is our own. Pure: speeds are measured and loads are
//! asked for elsewhere.

mod case;
mod choose;
pub mod hook;
mod load;
#[cfg(test)]
mod tests;

pub use case::{Case, CaseError, Link, Place, Power, Powers, Side};
pub use choose::{Advice, Choice, SPLIT_GAIN_MIN, SPLIT_SAVED_MIN, TIE, TIE_SECONDS, advise};
pub use load::{Load, Machine, Queue};

use crate::units::{Bytes, Joules, Seconds};
use serde::Serialize;
use std::fmt;

/// What one way of running is predicted to take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// From now until the result is where it is wanted (A7).
    #[serde(rename = "seconds")]
    pub time: Seconds,
    /// Share of the input that the element works on.
    pub element_share: f64,
    /// Until cores are free, both sides together (A1).
    #[serde(rename = "waiting_seconds")]
    pub waiting: Seconds,
    /// Starting and running on the element (A3).
    #[serde(rename = "element_seconds")]
    pub on_element: Seconds,
    /// Starting and running on the host (A3).
    #[serde(rename = "host_seconds")]
    pub on_host: Seconds,
    /// Of the link (A4).
    #[serde(rename = "moving_seconds")]
    pub moving: Seconds,
    /// Bytes over the link, both directions (A8).
    #[serde(rename = "moved_bytes")]
    pub moved: Bytes,
    /// Energy of a core on each side and of the link (A9), if it is known what they take.
    #[serde(rename = "joules")]
    pub energy: Option<Joules>,
}

/// Why a way of running can't be had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Infeasible {
    /// Nobody measured the kernel there.
    NotMeasured(Place),
    /// There is no core to run on.
    NoCores(Place),
    /// Input or result do not fit.
    NoSpace {
        /// Where.
        place: Place,
        /// What is needed there.
        needed: Bytes,
        /// What is free there.
        free: Bytes,
    },
    /// Results of parts do not make the result of the whole.
    NotSplittable,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMeasured(place) => {
                write!(formatter, "the kernel was never measured on the {place}")
            }
            Self::NoCores(place) => write!(formatter, "the {place} has no cores for kernels"),
            Self::NoSpace {
                place,
                needed,
                free,
            } => write!(formatter, "the {place} needs {needed} and has {free} free"),
            Self::NotSplittable => formatter
                .write_str("results of parts are not known to make the result of the whole"),
        }
    }
}
