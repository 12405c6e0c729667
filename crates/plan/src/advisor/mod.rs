//! The advisor: answers whether a kernel should run on the client, on the node that holds its input, or on both.
//!
//! [`advise`] predicts time, bytes over the link and energy of each way to run the kernel and returns the best way, with the reason. The
//! equations are numbered A1 to A9 as in `docs/advisor-equations.md`. Comments name the equations from D. Tiwari et al., "Active Flash"
//! (FAST 2013) or from AnalyzeThis; the other equations are our own. This module does no I/O: the caller measures speeds and queries loads.

mod case;
mod choose;
pub mod hook;
mod load;
#[cfg(test)]
mod tests;

pub use case::{Case, CaseError, CorePower, ExecutionSide, Link, Powers, SideFacts};
pub use choose::{Advice, RunChoice, SPLIT_GAIN_MIN, SPLIT_SAVED_MIN, TIE, TIE_SECONDS, advise};
pub use load::{Load, MachineLoad, SideQueue};

use crate::units::{Bytes, Joules, Seconds};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// Predicted costs of one way to run a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Prediction {
    /// Time from now until the result is stored at the wanted place (A7).
    #[serde(rename = "seconds")]
    pub time: Seconds,
    /// Share of the input that the node processes.
    pub node_share: f64,
    /// Time until cores are free: the sum of client and node (A1).
    #[serde(rename = "waiting_seconds")]
    pub waiting: Seconds,
    /// Time of starting and running the kernel on the node (A3).
    #[serde(rename = "node_seconds")]
    pub on_node: Seconds,
    /// Time of starting and running the kernel on the client (A3).
    #[serde(rename = "client_seconds")]
    pub on_client: Seconds,
    /// Time for which the link transfers data (A4).
    #[serde(rename = "transfer_seconds")]
    pub transferring: Seconds,
    /// Bytes transferred over the link in both directions (A8).
    #[serde(rename = "transferred_bytes")]
    pub transferred: Bytes,
    /// Energy of a core on each side and of the link (A9), if the powers of client and node are known.
    #[serde(rename = "joules")]
    pub energy: Option<Joules>,
}

/// Reason for which a way to run the kernel is infeasible.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Infeasible {
    /// The kernel was not measured on this side.
    NotMeasured(ExecutionSide),
    /// The side has no core to run the kernel on.
    NoCores(ExecutionSide),
    /// Input or result do not fit into the free space of a side.
    NoSpace {
        /// Side without enough space.
        place: ExecutionSide,
        /// Needed space on this side.
        needed: Bytes,
        /// Free space on this side.
        free: Bytes,
    },
    /// Results of parts of the input can't be merged to the result of the whole input.
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
